/* SPDX-License-Identifier: Apache-2.0
 *
 * A worker: fetches all parts of the weights, computes the gradient over its samples, leaves each server its part.
 * When a server is gone it waits for its next life, asks where that begins, and leaves the last gradient again if
 * it was not in yet.
 */
#include "ps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    float *weights, *gradient;
    net_pass_t pass[STEP_SAMPLES];
    int *order, epoch;
    uint64_t mine, servers[MOST_TASKS]; /* incarnations */
} worker_t;

static kolo_status_t leave_gradient(role_t *role, worker_t *w, int server, uint64_t step)
{
    char to[64], key[KOLO_TENSOR_KEY_MAX + 1];
    size_t first, count;
    part_of(role->options, server, &first, &count);
    task_name(to, "ps", server);
    kolo_status_t status = make_key(role->me, w->mine, to, "gradient", key);
    return status == KOLO_OK ? send_floats(role, step, key, w->gradient + first, count) : status;
}

/* The server's next life, for a worker that waits for the weights of `step`. */
static kolo_status_t find_again(role_t *role, worker_t *w, int server, uint64_t step)
{
    char from[64], key[KOLO_TENSOR_KEY_MAX + 1];
    float at = 0;
    task_name(from, "ps", server);
    kolo_status_t status =
        kolo_server_incarnation(role->server, from, role->options->limit_ms, &w->servers[server]);
    if (status == KOLO_OK) status = make_key(from, w->servers[server], role->me, "step", key);
    if (status == KOLO_OK) status = receive_floats(role, 0, key, &at, 1);
    if (status != KOLO_OK) return status;
    if ((uint64_t)at + 1 == step) return KOLO_OK; /* it has all that this worker has given */
    if ((uint64_t)at + 2 == step) return leave_gradient(role, w, server, step - 1);
    fprintf(stderr, "param-server: %s begins after step %.0f, while %s is in step %llu\n", from, (double)at,
            role->me, (unsigned long long)step);
    return KOLO_ERR_MISMATCH;
}

static kolo_status_t fetch_part(role_t *role, worker_t *w, int server, uint64_t step)
{
    char from[64], key[KOLO_TENSOR_KEY_MAX + 1];
    size_t first, count;
    part_of(role->options, server, &first, &count);
    task_name(from, "ps", server);
    for (int lives = 0;; lives++) {
        kolo_status_t status = make_key(from, w->servers[server], role->me, "weights", key);
        if (status == KOLO_OK) status = receive_floats(role, step, key, w->weights + first, count);
        if (status != KOLO_ERR_REMOTE && status != KOLO_ERR_ABORTED) return status;
        if (lives == 10) return status;
        status = find_again(role, w, server, step);
        if (status != KOLO_OK && status != KOLO_ERR_REMOTE) return status; /* gone once more: again */
    }
}

static kolo_status_t fetch_all(role_t *role, worker_t *w, uint64_t step)
{
    for (int s = 0; s < role->options->servers; s++) {
        kolo_status_t status = fetch_part(role, w, s, step);
        if (status != KOLO_OK) return status;
    }
    return KOLO_OK;
}

static float compute(role_t *role, worker_t *w, uint64_t step)
{
    const images_t *images = &role->digits.train;
    uint64_t steps = (uint64_t)shards_steps(images->count);
    int epoch = (int)((step - 1) / steps);
    span_t mine =
        shards_of_rank(images->count, (int)((step - 1) % steps), role->options->task, role->options->workers);
    int n = mine.end - mine.first;
    if (epoch != w->epoch) shards_order(w->order, images->count, role->options->seed, epoch);
    w->epoch = epoch;
    memset(w->gradient, 0, NET_PARAMS * sizeof *w->gradient);
    if (n <= 0) return 0;
    float loss = net_forward(w->weights, images, w->order + mine.first, n, w->pass);
    for (int l = NET_LAYERS - 1; l >= 0; l--) net_backward(w->weights, l, w->pass, n, w->gradient);
    return loss / (float)n;
}

/* A server ends once all workers have said that they are done, and a worker once all servers have fetched that:
 * which it sees by the end of a receive that no value ever comes to, and that was begun before. */
static int leave_together(role_t *role, worker_t *w)
{
    kolo_receive_t ends[MOST_TASKS];
    kolo_rendezvous_t last;
    kolo_value_t nothing;
    int failed = kolo_rendezvous_open(role->manager, 0, &last) != KOLO_OK, begun = 0;
    for (; !failed && begun < role->options->servers; begun += !failed) {
        char server[64], over[KOLO_TENSOR_KEY_MAX + 1], done[KOLO_TENSOR_KEY_MAX + 1];
        float yes = 1;
        task_name(server, "ps", begun);
        failed = make_key(server, w->servers[begun], role->me, "over", over) != KOLO_OK ||
                 make_key(role->me, w->mine, server, "done", done) != KOLO_OK ||
                 kolo_rendezvous_receive_begin(last, over, NULL, &ends[begun]) != KOLO_OK ||
                 send_floats(role, 0, done, &yes, 1) != KOLO_OK;
    }
    for (int s = 0; s < begun; s++) {
        kolo_status_t status = kolo_receive_wait(ends[s], role->options->limit_ms, &nothing);
        if (status != KOLO_ERR_REMOTE && status != KOLO_ERR_ABORTED) failed = 1;
        if (status == KOLO_ERR_TIMEOUT) kolo_receive_discard(ends[s]);
    }
    kolo_rendezvous_close(last);
    return failed ? complain(role->me) : 0;
}

static int finish(role_t *role, worker_t *w)
{
    note_t note = {.role = 'w', .task = role->options->task, .step = role->steps + 1};
    if (fetch_all(role, w, role->steps + 1) != KOLO_OK) return complain(role->me);
    if (role->options->task == 0) {
        note.of = role->digits.test.count;
        note.right = net_right(w->weights, &role->digits.test, 0, note.of);
        printf("%s: %d of %d test images are right\n", role->me, note.right, note.of);
    }
    tell(role, &note);
    return leave_together(role, w);
}

static int work(role_t *role, worker_t *w)
{
    if (kolo_server_incarnation(role->server, role->me, 0, &w->mine) != KOLO_OK) return complain(role->me);
    for (int s = 0; s < role->options->servers; s++)
        if (find_again(role, w, s, 1) != KOLO_OK) return complain(role->me);
    for (uint64_t step = 1; step <= role->steps; step++) {
        if (fetch_all(role, w, step) != KOLO_OK) return complain(role->me);
        if (step > 1) kolo_rendezvous_manager_cleanup(role->manager, step - 1); /* it is in, everywhere */
        float loss = compute(role, w, step);
        for (int s = 0; s < role->options->servers; s++)
            if (leave_gradient(role, w, s, step) != KOLO_OK) return complain(role->me);
        tell(role, &(note_t){.role = 'w', .task = role->options->task, .step = step, .loss = loss});
    }
    return finish(role, w);
}

int run_worker(role_t *role)
{
    worker_t *w = calloc(1, sizeof *w);
    int failed = 1;
    if (w) {
        w->epoch = -1;
        w->weights = calloc(NET_PARAMS, sizeof *w->weights);
        w->gradient = calloc(NET_PARAMS, sizeof *w->gradient);
        w->order = calloc((size_t)role->digits.train.count, sizeof *w->order);
        if (w->weights && w->gradient && w->order) failed = work(role, w);
        free(w->weights);
        free(w->gradient);
        free(w->order);
    }
    free(w);
    return failed;
}
