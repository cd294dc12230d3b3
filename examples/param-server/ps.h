/* SPDX-License-Identifier: Apache-2.0
 *
 * A parameter-server job: what its roles have in common. The weights of the digits' model are cut into as many
 * equal parts as there are servers. In each step every server sends its part to every worker, every worker sends
 * back the gradient of that part over its own samples, and the server adds them up, in the order of the workers,
 * and moves its part on. So the result depends on nothing but the seed and the number of workers. Asynchronous, a
 * server moves on with each gradient as it comes, and its worker does not wait for the others.
 */
#ifndef PARAM_SERVER_H
#define PARAM_SERVER_H

#include "../digits/data.h"
#include "../digits/net.h"
#include "../digits/shards.h"

#include <kolo/rendezvous.h>

#define MOST_TASKS 8

typedef struct {
    const char *job; /* "ps" or "worker"; NULL: the monitor, which starts all of them on this host */
    int task, servers, workers, epochs, limit_ms;
    int async; /* gradients count one by one, as they come */
    uint64_t seed;
    const char *ps, *work; /* addresses of either kind, with commas */
    const char *data, *secret, *out, *protocol;
    int report_fd; /* a role's: where its notes go; -1: to nobody */
} options_t;

/* What roles tell the monitor, each one write to a pipe. */
typedef struct {
    char role; /* 'p' or 'w' */
    int task;
    uint64_t step;    /* that is done */
    uint64_t applied; /* a server's: gradients that have gone into its part, since the beginning */
    float loss;       /* a worker's: of its samples, their mean */
    int right, of;    /* worker 0 at the end: of the test images; else 0 */
} note_t;

typedef struct {
    const options_t *options;
    digits_t digits;
    kolo_server_t server;
    kolo_rendezvous_manager_t manager;
    char me[64];
    uint64_t steps;
} role_t;

int run_server(role_t *role);
int run_worker(role_t *role);
int run_monitor(const options_t *options);

/* Part `i` of the weights: they begin at *first and are *count. */
void part_of(const options_t *options, int i, size_t *first, size_t *count);
void task_name(char name[64], const char *job, int task);
/* The key of an edge from a task in its life `incarnation` to another. */
kolo_status_t make_key(const char *from, uint64_t incarnation, const char *to, const char *edge, char *text);
/* Sends count floats, out of memory of their own, or receives exactly so many. */
kolo_status_t send_floats(role_t *role, uint64_t step, const char *key, const float *from, size_t count);
kolo_status_t receive_floats(role_t *role, uint64_t step, const char *key, float *to, size_t count);
void tell(const role_t *role, const note_t *note);
int complain(const char *what); /* with the library's words; returns 1 */

#endif
