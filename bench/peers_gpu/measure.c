/* SPDX-License-Identifier: Apache-2.0
 *
 * How long a call takes, in turn by NCCL, by Kolo and by its variants. All ranks meet, each takes the host's clock,
 * makes its calls one behind the other (or launches a graph that holds them), waits for the stream and takes the
 * clock again; the slowest rank's time over the number of calls is one figure, and the row has the median of the
 * rounds. All libraries get the same number of calls.
 */
#include "peers_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define WARM_UPS     3
#define CALLS_LEAST  2
#define CALLS_MOST   400
#define ROUND_US     4000.0 /* of calls in one round, as far as the least and the most allow */
#define ROUNDS_MOST  101
#define THREAD_LOCAL 1 /* CU_STREAM_CAPTURE_MODE_THREAD_LOCAL */

typedef struct {
    void *graph, *exec;
} graph_t;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static void capture(const rank_t *r, library_t library, op_t op, place_t place, size_t count, int calls, graph_t *g)
{
    CUDA_MUST(cuda.capture_begin(r->stream, THREAD_LOCAL));
    for (int i = 0; i < calls; i++) call(r, library, op, place, count);
    CUDA_MUST(cuda.capture_end(r->stream, &g->graph));
    CUDA_MUST(cuda.graph_instantiate(&g->exec, g->graph, 0));
}

/* The slowest rank's time for one call, on rank 0; 0 elsewhere. */
static double once(rank_t *r, library_t library, op_t op, place_t place, size_t count, int calls, const graph_t *g)
{
    double worst = 0, *us = r->shared->us[r->turn++ & 1];
    if (r->rank == 0) atomic_store(&r->shared->whose, (int)library);
    meet(r);
    double start = now_us();
    if (g)
        CUDA_MUST(cuda.graph_launch(g->exec, r->stream));
    else
        for (int i = 0; i < calls; i++) call(r, library, op, place, count);
    CUDA_MUST(cuda.stream_sync(r->stream));
    us[r->rank] = (now_us() - start) / calls;
    meet(r);
    for (int i = 0; i < r->o->gpus && r->rank == 0; i++)
        if (us[i] > worst) worst = us[i];
    return worst;
}

/* Rank 0 decides by how long the slowest takes at its best, and all ranks get the same. */
static void decide(rank_t *r, op_t op, place_t place, size_t count)
{
    double slow = 0;
    for (int l = first_library(r->o); l < (int)end_of_libraries(r->o); l++) {
        double best = 0;
        for (int i = 0; i < 4; i++) {
            double us = once(r, (library_t)l, op, place, count, CALLS_LEAST, NULL);
            if (i == 0 || us < best) best = us;
        }
        if (best > slow) slow = best;
    }
    if (r->rank == 0) {
        double calls = ROUND_US / (slow > 0.1 ? slow : 0.1), rounds;
        if (calls < CALLS_LEAST) calls = CALLS_LEAST;
        if (calls > CALLS_MOST) calls = CALLS_MOST;
        rounds = r->o->budget_s * 1e6 / (slow * calls + 1);
        if (rounds > ROUNDS_MOST) rounds = ROUNDS_MOST;
        if (rounds < r->o->rounds) rounds = r->o->rounds;
        atomic_store(&r->shared->calls, (int)calls);
        atomic_store(&r->shared->rounds, (int)rounds);
    }
    meet(r);
}

static void capture_all(rank_t *r, op_t op, place_t place, size_t count, int calls, graph_t *graphs)
{
    for (int l = first_library(r->o); l < (int)end_of_libraries(r->o) && r->o->graph; l++) {
        capture(r, (library_t)l, op, place, count, calls, &graphs[l]);
        once(r, (library_t)l, op, place, count, calls, &graphs[l]); /* the first launch uploads it */
    }
}

static void measure_place(rank_t *r, op_t op, place_t place, size_t count, row_t *row)
{
    int first = first_library(r->o), end = end_of_libraries(r->o);
    double us[MOST_LIBRARIES][ROUNDS_MOST + 1];
    graph_t graphs[MOST_LIBRARIES];
    if (r->rank == 0)
        snprintf(r->shared->doing, sizeof r->shared->doing, "%s of %llu bytes, %s", op_names[op],
                 (unsigned long long)row->bytes, place_names[place]);
    for (int l = first; l < end; l++) {
        if (r->rank == 0) atomic_store(&r->shared->whose, l);
        for (int i = 0; i < WARM_UPS; i++) call(r, (library_t)l, op, place, count);
        CUDA_MUST(cuda.stream_sync(r->stream));
        meet(r);
    }
    compare(r, op, place, count, row->bytes);
    decide(r, op, place, count);
    int calls = atomic_load(&r->shared->calls), rounds = atomic_load(&r->shared->rounds);
    if (rounds > ROUNDS_MOST) rounds = ROUNDS_MOST;
    capture_all(r, op, place, count, calls, graphs);
    for (int i = 0; i < rounds; i++) {
        for (int k = 0; k < end - first; k++) {
            int l = first + (i + k) % (end - first); /* each is first as often as the others */
            us[l][i] = once(r, (library_t)l, op, place, count, calls, r->o->graph ? &graphs[l] : NULL);
        }
    }
    for (int l = first; l < end && r->o->graph; l++) {
        CUDA_MUST(cuda.graph_exec_destroy(graphs[l].exec));
        CUDA_MUST(cuda.graph_destroy(graphs[l].graph));
    }
    row->calls = calls;
    row->rounds = rounds;
    for (int l = first; l < end && r->rank == 0; l++) row->us[place][l] = median(us[l], rounds);
}

void measure(rank_t *r, op_t op, uint64_t bytes, row_t *row)
{
    size_t count = count_of(r->o, op, &bytes);
    *row = (row_t){.op = op, .bytes = bytes};
    for (int place = 0; place < PLACES; place++)
        if (r->o->places[place] && has_place(op, (place_t)place)) measure_place(r, op, (place_t)place, count, row);
}
