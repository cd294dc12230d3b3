/* SPDX-License-Identifier: Apache-2.0
 *
 * A server: holds its part of the weights. After each step its part is in a file before anybody sees it, so that a
 * server that was killed goes on where it was: with the step after the last one that is in the file.
 */
#include "ps.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RATE     0.05f
#define MOMENTUM 0.9f

typedef struct {
    uint64_t step;                  /* that is done */
    uint64_t applied;               /* gradients that have gone into it */
    uint64_t of_worker[MOST_TASKS]; /* asynchronous: of each worker */
    float weights[NET_PARAMS], speed[NET_PARAMS];
} part_t;

static void file_name(const role_t *role, char *name, size_t room, const char *suffix)
{
    snprintf(name, room, "%s/param-server-part-%d%s", role->options->out, role->options->task, suffix);
}

/* The new file takes the old one's name only once it is complete. */
static bool save(const role_t *role, const part_t *part)
{
    char name[512], fresh[512];
    file_name(role, name, sizeof name, "");
    file_name(role, fresh, sizeof fresh, ".new");
    int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool fine = fd >= 0 && write(fd, part, sizeof *part) == (ssize_t)sizeof *part;
    if (fd >= 0 && close(fd) != 0) fine = false;
    if (fine && rename(fresh, name) == 0) return true;
    perror(fresh);
    return false;
}

static void load(const role_t *role, part_t *part, size_t first, size_t count)
{
    char name[512];
    file_name(role, name, sizeof name, "");
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    bool found = fd >= 0 && read(fd, part, sizeof *part) == (ssize_t)sizeof *part;
    if (fd >= 0) close(fd);
    if (found) return;
    float *all = calloc(NET_PARAMS, sizeof *all);
    memset(part, 0, sizeof *part);
    if (all == NULL) return;
    net_init(all, role->options->seed);
    memcpy(part->weights, all + first, count * sizeof *all);
    free(all);
}

static kolo_status_t send_weights_to(role_t *role, const part_t *part, int worker, uint64_t step, size_t count,
                                     uint64_t incarnation)
{
    char to[64], key[KOLO_TENSOR_KEY_MAX + 1];
    task_name(to, "worker", worker);
    kolo_status_t status = make_key(role->me, incarnation, to, "weights", key);
    return status == KOLO_OK ? send_floats(role, step, key, part->weights, count) : status;
}

static kolo_status_t send_weights(role_t *role, const part_t *part, size_t count, uint64_t incarnation)
{
    for (int w = 0; w < role->options->workers; w++) {
        kolo_status_t status = send_weights_to(role, part, w, part->step + 1, count, incarnation);
        if (status != KOLO_OK) return status;
    }
    return KOLO_OK;
}

/* Where this life begins, for workers that have seen another one end. */
static kolo_status_t tell_step(role_t *role, const part_t *part, uint64_t incarnation)
{
    char to[64], key[KOLO_TENSOR_KEY_MAX + 1];
    for (int w = 0; w < role->options->workers; w++) {
        float step = (float)(role->options->async ? part->of_worker[w] : part->step); /* exact up to 16 million */
        task_name(to, "worker", w);
        kolo_status_t status = make_key(role->me, incarnation, to, "step", key);
        if (status == KOLO_OK) status = send_floats(role, 0, key, &step, 1);
        if (status != KOLO_OK) return status;
    }
    return KOLO_OK;
}

static kolo_status_t add_gradients(role_t *role, part_t *part, size_t count, float *sum, float *one,
                                   const uint64_t *incarnations)
{
    char from[64], key[KOLO_TENSOR_KEY_MAX + 1];
    memset(sum, 0, count * sizeof *sum);
    for (int w = 0; w < role->options->workers; w++) {
        task_name(from, "worker", w);
        kolo_status_t status = make_key(from, incarnations[w], role->me, "gradient", key);
        if (status == KOLO_OK) status = receive_floats(role, part->step + 1, key, one, count);
        if (status != KOLO_OK) return status;
        for (size_t i = 0; i < count; i++) sum[i] += one[i];
        part->applied++;
    }
    return KOLO_OK;
}

static void move_on(const role_t *role, part_t *part, size_t count, const float *sum)
{
    float rate = RATE * 0.5f * (1 + cosf(3.14159265f * (float)part->step / (float)role->steps));
    for (size_t i = 0; i < count; i++) {
        part->speed[i] = MOMENTUM * part->speed[i] + sum[i] / STEP_SAMPLES;
        part->weights[i] -= rate * part->speed[i];
    }
    part->step++;
}

static kolo_status_t serve_together(role_t *role, part_t *part, size_t count, float *sum, float *one, uint64_t mine,
                                    const uint64_t *incarnations)
{
    for (;;) {
        kolo_status_t status = send_weights(role, part, count, mine);
        if (status != KOLO_OK || part->step == role->steps) return status;
        status = add_gradients(role, part, count, sum, one, incarnations);
        if (status != KOLO_OK) return status;
        uint64_t done = part->step + 1; /* all workers have had the weights of it */
        move_on(role, part, count, sum);
        if (!save(role, part)) return KOLO_ERR_SYSTEM;
        kolo_rendezvous_manager_cleanup(role->manager, done);
        tell(role,
             &(note_t){.role = 'p', .task = role->options->task, .step = part->step, .applied = part->applied});
    }
}

/* ---- asynchronous: each gradient moves the part on by itself, and its worker goes on at once ---- */

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    int come[MOST_TASKS], n; /* workers whose gradients have come, in their order */
    kolo_status_t status[MOST_TASKS];
    char why[MOST_TASKS][200];
    kolo_value_t value[MOST_TASKS];
} inbox_t;
typedef struct {
    inbox_t *inbox;
    int worker;
} inlet_t;

static void gradient_came(void *arg, kolo_status_t status, const char *why, const kolo_transfer_args_t *sender,
                          const kolo_transfer_args_t *receiver, kolo_value_t *value)
{
    const inlet_t *inlet = arg;
    inbox_t *inbox = inlet->inbox;
    int w = inlet->worker;
    (void)sender;
    (void)receiver;
    pthread_mutex_lock(&inbox->lock);
    inbox->status[w] = status;
    snprintf(inbox->why[w], sizeof inbox->why[w], "%s", why ? why : "");
    if (value) inbox->value[w] = *value;
    inbox->come[inbox->n++] = w;
    pthread_cond_signal(&inbox->more);
    pthread_mutex_unlock(&inbox->lock);
}

/* The worker whose gradient came first; -1: none in time. */
static int next_gradient(inbox_t *inbox, int limit_ms)
{
    struct timespec end;
    int worker = -1, late = 0;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += limit_ms / 1000;
    pthread_mutex_lock(&inbox->lock);
    while (inbox->n == 0 && !late) late = pthread_cond_timedwait(&inbox->more, &inbox->lock, &end);
    if (inbox->n > 0) {
        worker = inbox->come[0];
        memmove(inbox->come, inbox->come + 1, (size_t)--inbox->n * sizeof *inbox->come);
    }
    pthread_mutex_unlock(&inbox->lock);
    return worker;
}

/* Weights for the worker's next step, and a receive for what it makes of them. */
static kolo_status_t hand_out(role_t *role, const part_t *part, size_t count, inlet_t *inlet, uint64_t mine,
                              const uint64_t *incarnations)
{
    char from[64], key[KOLO_TENSOR_KEY_MAX + 1];
    kolo_rendezvous_t rendezvous;
    int w = inlet->worker;
    uint64_t step = part->of_worker[w] + 1;
    kolo_status_t status = send_weights_to(role, part, w, step, count, mine);
    if (status != KOLO_OK || step > role->steps) return status;
    task_name(from, "worker", w);
    status = make_key(from, incarnations[w], role->me, "gradient", key);
    if (status == KOLO_OK) status = kolo_rendezvous_open(role->manager, step, &rendezvous);
    if (status != KOLO_OK) return status;
    status = kolo_rendezvous_receive_call(rendezvous, key, NULL, gradient_came, inlet);
    kolo_rendezvous_close(rendezvous);
    return status;
}

/* One gradient of one worker moves as far as its share of a step's would. */
static void move_by_one(const role_t *role, part_t *part, size_t count, const float *gradient, int worker)
{
    float workers = (float)role->options->workers, done = (float)part->applied / workers;
    float rate = RATE / workers * 0.5f * (1 + cosf(3.14159265f * done / (float)role->steps));
    float momentum = powf(MOMENTUM, 1 / workers);
    for (size_t i = 0; i < count; i++) {
        part->speed[i] = momentum * part->speed[i] + gradient[i] / STEP_SAMPLES;
        part->weights[i] -= rate * part->speed[i];
    }
    part->applied++;
    part->of_worker[worker]++;
    uint64_t least = part->of_worker[0];
    for (int w = 1; w < role->options->workers; w++)
        if (part->of_worker[w] < least) least = part->of_worker[w];
    for (; part->step < least; part->step++) kolo_rendezvous_manager_cleanup(role->manager, part->step + 1);
}

static kolo_status_t take_gradient(role_t *role, part_t *part, size_t count, inbox_t *inbox, int worker)
{
    if (inbox->status[worker] != KOLO_OK) {
        fprintf(stderr, "param-server: %s: gradient of worker %d: %s\n", role->me, worker, inbox->why[worker]);
        return inbox->status[worker];
    }
    kolo_value_t *value = &inbox->value[worker];
    bool fits = value->element == KOLO_FLOAT32 && value->bytes == count * sizeof(float);
    if (fits) move_by_one(role, part, count, value->data, worker);
    kolo_value_release(value);
    return fits ? KOLO_OK : KOLO_ERR_MISMATCH;
}

static kolo_status_t serve_each(role_t *role, part_t *part, size_t count, uint64_t mine,
                                const uint64_t *incarnations)
{
    static inbox_t inbox = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};
    static inlet_t inlets[MOST_TASKS];
    for (int w = 0; w < role->options->workers; w++) {
        inlets[w] = (inlet_t){&inbox, w};
        kolo_status_t status = hand_out(role, part, count, &inlets[w], mine, incarnations);
        if (status != KOLO_OK) return status;
    }
    while (part->step < role->steps) {
        int w = next_gradient(&inbox, role->options->limit_ms);
        if (w < 0) fprintf(stderr, "param-server: %s: no worker has left a gradient in time\n", role->me);
        kolo_status_t status = w < 0 ? KOLO_ERR_TIMEOUT : take_gradient(role, part, count, &inbox, w);
        if (status == KOLO_OK && !save(role, part)) status = KOLO_ERR_SYSTEM;
        if (status == KOLO_OK) status = hand_out(role, part, count, &inlets[w], mine, incarnations);
        if (status != KOLO_OK) return status;
        tell(role,
             &(note_t){.role = 'p', .task = role->options->task, .step = part->step, .applied = part->applied});
    }
    return KOLO_OK;
}

static int serve(role_t *role, part_t *part, size_t count, float *sum, float *one)
{
    uint64_t incarnations[MOST_TASKS], mine;
    if (kolo_server_incarnation(role->server, role->me, 0, &mine) != KOLO_OK) return complain(role->me);
    if (tell_step(role, part, mine) != KOLO_OK) return complain(role->me);
    for (int w = 0; w < role->options->workers; w++) {
        char name[64];
        task_name(name, "worker", w);
        if (kolo_server_incarnation(role->server, name, role->options->limit_ms, &incarnations[w]) != KOLO_OK)
            return complain(role->me);
    }
    kolo_status_t status = role->options->async ? serve_each(role, part, count, mine, incarnations)
                                                : serve_together(role, part, count, sum, one, mine, incarnations);
    if (status != KOLO_OK) return complain(role->me);
    /* The workers fetch the last weights, and then say so. */
    for (int w = 0; w < role->options->workers; w++) {
        char name[64], key[KOLO_TENSOR_KEY_MAX + 1];
        task_name(name, "worker", w);
        if (make_key(name, incarnations[w], role->me, "done", key) != KOLO_OK ||
            receive_floats(role, 0, key, one, 1) != KOLO_OK)
            return complain(role->me);
    }
    return 0;
}

int run_server(role_t *role)
{
    size_t first, count;
    part_t *part = calloc(1, sizeof *part);
    float *sum = calloc(NET_PARAMS, sizeof *sum), *one = calloc(NET_PARAMS, sizeof *one);
    int failed = 1;
    part_of(role->options, role->options->task, &first, &count);
    if (part && sum && one) {
        load(role, part, first, count);
        failed = serve(role, part, count, sum, one);
    }
    free(part);
    free(sum);
    free(one);
    return failed;
}
