/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-perf --gpu --every-algorithm: which way of the executor of GPUs is the fastest at which length, and the
 * constants from which the simulator predicts. The limits of the executor are set between calls, on all ranks
 * alike, so that each length goes each way in one communicator.
 */
#include "../tuning/gpu_model.h"
#include "gpu.h"
#include "inside_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of an all_reduce alone: TWO: two steps by lines of 128 bytes; GIVE: by stores alone; PIPE: by tiles. */
enum { WAY_LL, WAY_LL128, WAY_LONG, WAY_TWO, WAY_GIVE, WAY_PIPE, WAYS };
static const char *const way_names[WAYS] = {"lines",           "lines of 128 bytes", "long", "lines, two steps",
                                            "long, by stores", "long, by tiles"};

#define FIRST      4096u /* bytes that a rank puts in */
#define POINTS     20    /* each twice as long as the one before, at most */
#define SAMPLES    7
#define NEVER      ((uint64_t)1 << 50)
#define LINES_MOST (16u << 20) /* longest message that is tried by lines */

typedef struct {
    perf_job_t job;
    perf_options_t options; /* of the job: with graphs or without */
    kolo_cuda_state_t *state;
    kolo_cuda_limits_t limits;
    uint64_t message_lines, lines_before; /* as tried, as it is */
    int points;
} bench_t;

static void force(bench_t *b, int way)
{
    kolo_cuda_state_t *s = b->state;
    s->limits = b->limits;
    s->limits.ll_all_reduce = s->limits.ll_others = way == WAY_LL ? NEVER : 0;
    s->limits.ll128_all_reduce = s->limits.ll128_others = s->limits.ll128_handed = way == WAY_LL128 ? NEVER : 0;
    s->limits.ll128_reduce = s->limits.ll128_gather = s->limits.ll128_others;
    s->limits.ll128_two = s->limits.ll128_two_reduce = way == WAY_TWO ? NEVER : 0;
    s->limits.give = way == WAY_GIVE ? 0 : NEVER;
    s->limits.give_most = NEVER;
    s->limits.pipe = way == WAY_PIPE ? 0 : NEVER;
    s->layout.message_lines_most = way == WAY_LL128 ? b->message_lines : 0;
    s->args.c.layout = s->p2p.head.layout = s->layout;
}

static void restore(bench_t *b)
{
    b->state->limits = b->limits;
    b->state->layout.message_lines_most = b->lines_before;
    b->state->args.c.layout = b->state->p2p.head.layout = b->state->layout;
}

/* Can a call of this many bytes go this way? */
static bool fits(const bench_t *b, perf_coll_t coll, int way, uint64_t bytes)
{
    const kolo_cuda_layout_t *l = &b->state->layout;
    if (way == WAY_GIVE || way == WAY_PIPE) return coll == PERF_ALL_REDUCE;
    if (way == WAY_TWO) return coll == PERF_ALL_REDUCE && bytes <= kolo_cuda_lines128_two_room(l);
    if (coll == PERF_SENDRECV)
        return way == WAY_LONG || (way == WAY_LL128 && l->ll128_blocks && bytes <= LINES_MOST);
    if (way == WAY_LL) return bytes <= (uint64_t)l->ll_blocks * KOLO_CUDA_LL_BLOCK_BYTES;
    if (way == WAY_LL128) return bytes <= (uint64_t)l->ll128_blocks * (l->ll128_bytes / 128 * 120);
    return true;
}

/* Of the slowest rank; `bytes` are those that a rank puts in. */
static kolo_status_t time_way(bench_t *b, perf_coll_t coll, int way, uint64_t bytes, bool graph, double *us)
{
    double times[SAMPLES];
    perf_buffers_t buffers;
    int burst = bytes <= 1 << 20 ? 20 : 4;
    bool parts = coll != PERF_ALL_REDUCE && coll != PERF_SENDRECV;
    b->options.graph = graph && perf_gpu_has_graphs();
    force(b, way);
    kolo_status_t status =
        perf_buffers_make(&b->job, coll, parts ? bytes * (uint64_t)b->job.nranks : bytes, &buffers);
    if (status == KOLO_OK) status = perf_gpu_time_calls(&b->job, coll, &buffers, false, burst, SAMPLES, times);
    if (status == KOLO_OK) status = perf_slowest_sorted(&b->job, times, SAMPLES);
    perf_buffers_free(&buffers);
    *us = times[SAMPLES / 2];
    return status;
}

/* Between the last length at which `short_way` was not slower and the next one; 0: it never was the faster. */
static uint64_t limit_of(const bench_t *b, double us[][WAYS], int short_way, int long_way, int other_way)
{
    int last = -1;
    for (int i = 0; i < b->points; i++) {
        double rest = us[i][long_way];
        if (other_way >= 0 && us[i][other_way] > 0 && us[i][other_way] < rest) rest = us[i][other_way];
        if (us[i][short_way] > 0 && us[i][short_way] <= rest) last = i;
    }
    if (last < 0) return 0;
    uint64_t at = (uint64_t)FIRST << last;
    return at + at / 2;
}

static uint64_t at_most(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static kolo_status_t measure_ways(bench_t *b, perf_coll_t coll, double us[POINTS][WAYS])
{
    for (int i = 0; i < b->points; i++) {
        uint64_t bytes = (uint64_t)FIRST << i;
        for (int way = 0; way < WAYS; way++) {
            us[i][way] = 0;
            if (fits(b, coll, way, bytes)) KOLO_TRY(time_way(b, coll, way, bytes, false, &us[i][way]));
        }
        if (b->job.rank) continue;
        printf("  %-14s %10llu", perf_coll_names[coll], (unsigned long long)bytes);
        for (int way = 0; way < WAYS; way++)
            if (us[i][way] > 0) printf("  %s %.2f us", way_names[way], us[i][way]);
        printf("\n");
        fflush(stdout);
    }
    return KOLO_OK;
}

/* choose.c divides the limits by the number of peers. */
static kolo_status_t measure_limits(bench_t *b, kolo_tune_gpu_t *gpu)
{
    static double us[POINTS][WAYS];
    uint64_t peers = b->job.nranks > 2 ? (uint64_t)b->job.nranks - 1 : 1;
    *gpu = (kolo_tune_gpu_t){.ranks = (uint32_t)b->job.nranks};
    KOLO_TRY(measure_ways(b, PERF_ALL_REDUCE, us));
    gpu->ll_all_reduce = at_most(limit_of(b, us, WAY_LL, WAY_LONG, WAY_LL128) * peers, 1 << 20);
    gpu->ll128_all_reduce =
        at_most(limit_of(b, us, WAY_LL128, WAY_LONG, b->job.nranks > 2 ? WAY_TWO : WAY_GIVE) * peers, 1 << 30);
    gpu->ll128_two = at_most(limit_of(b, us, WAY_TWO, WAY_LONG, WAY_GIVE), 1 << 30);
    gpu->give = limit_of(b, us, WAY_LONG, WAY_GIVE, -1);
    gpu->pipe = limit_of(b, us, WAY_LONG, WAY_PIPE, -1);
    KOLO_TRY(measure_ways(b, PERF_ALL_GATHER, us));
    gpu->ll_others = at_most(limit_of(b, us, WAY_LL, WAY_LONG, WAY_LL128) * peers, 1 << 20);
    gpu->ll128_others = at_most(limit_of(b, us, WAY_LL128, WAY_LONG, -1) * peers, 1 << 30);
    KOLO_TRY(measure_ways(b, PERF_SENDRECV, us));
    gpu->message_lines = at_most(limit_of(b, us, WAY_LL128, WAY_LONG, -1), (1 << 27) - 1);
    return KOLO_OK;
}

/* ---- constants ---- */

static uint64_t whole(double x)
{
    return x > 0 ? (uint64_t)llround(x) : 0;
}

/* 10^6 bytes a second, from the difference of two calls. */
static uint64_t rate(double bytes, double us)
{
    return us > 0 ? whole(bytes / us) : 0;
}

static kolo_status_t measure_machine(bench_t *b, kolo_tune_machine_t *m)
{
    const uint64_t k = 1024, longest = (uint64_t)FIRST << (b->points - 1);
    double tiny, tiny_graph, middle, middle_graph, lines128, store[2], load[2], long_tiny, message;
    double peers = b->job.nranks > 1 ? b->job.nranks - 1 : 1;
    KOLO_TRY(time_way(b, PERF_ALL_REDUCE, WAY_LL, 8, false, &tiny));
    KOLO_TRY(time_way(b, PERF_ALL_REDUCE, WAY_LL, 8, true, &tiny_graph));
    KOLO_TRY(time_way(b, PERF_ALL_REDUCE, WAY_LL, 192 * k, false, &middle));
    KOLO_TRY(time_way(b, PERF_ALL_REDUCE, WAY_LL, 192 * k, true, &middle_graph));
    KOLO_TRY(time_way(b, PERF_ALL_REDUCE, WAY_LL128, 1024 * k, true, &lines128));
    KOLO_TRY(time_way(b, PERF_ALL_GATHER, WAY_LONG, 4 * k, false, &long_tiny));
    for (int i = 0; i < 2; i++) {
        KOLO_TRY(time_way(b, PERF_ALL_GATHER, WAY_LONG, longest / 4 * (1 + 3 * (uint64_t)i), false, &store[i]));
        KOLO_TRY(time_way(b, PERF_REDUCE_SCATTER, WAY_LONG, longest / 4 * (1 + 3 * (uint64_t)i), false, &load[i]));
    }
    KOLO_TRY(time_way(b, PERF_SENDRECV, WAY_LL128, 8, false, &message));
    double gap = fmax(middle - middle_graph, 0), hop = 0.3 * tiny_graph, begin = tiny_graph - hop;
    *m = (kolo_tune_machine_t){.launch_ns = whole(tiny * 1e3),
                               .gap_ns = whole(gap * 1e3),
                               .begin_ns = whole(begin * 1e3),
                               .hop_ns = whole(hop * 1e3),
                               .meet_ns = whole((long_tiny - begin - gap) / 3 * 1e3),
                               .message_ns = whole((message - begin - gap - hop) * 1e3),
                               .ll_mbps = rate(192.0 * 1024 * peers, middle_graph - tiny_graph),
                               .ll128_mbps = rate(1024.0 * 1024 * peers, lines128 - tiny_graph),
                               .store_mbps = rate((double)longest * 0.75 * peers, store[1] - store[0]),
                               .load_mbps = rate((double)longest * 0.75 * peers, load[1] - load[0])};
    return KOLO_OK;
}

static kolo_status_t save(const bench_t *b, const kolo_tune_gpu_t *gpu, const kolo_tune_machine_t *m)
{
    static kolo_tune_table_t table;
    const char *path = b->job.options->table;
    if (b->job.rank) return KOLO_OK;
    printf("ll_all_reduce %llu ll_others %llu ll128_all_reduce %llu ll128_others %llu message_lines %llu give %llu "
           "ll128_two %llu pipe %llu\n",
           (unsigned long long)gpu->ll_all_reduce, (unsigned long long)gpu->ll_others,
           (unsigned long long)gpu->ll128_all_reduce, (unsigned long long)gpu->ll128_others,
           (unsigned long long)gpu->message_lines, (unsigned long long)gpu->give,
           (unsigned long long)gpu->ll128_two, (unsigned long long)gpu->pipe);
    if (!path) return KOLO_OK;
    KOLO_TRY(perf_table_open(path, &table));
    perf_table_drop_gpu(&table, gpu->ranks);
    KOLO_TRY(perf_table_add_gpu(&table, gpu));
    if (!table.has_machine || gpu->ranks == 2) table.machine = *m;
    table.has_machine = true;
    return perf_table_save(&table, path);
}

int perf_gpu_limits(const perf_job_t *job)
{
    static bench_t b;
    kolo_tune_gpu_t gpu;
    kolo_tune_machine_t machine;
    const kolo_body_t *body = job->comm->body;
    if (job->nranks < 2 || body->gpu.exec != &kolo_exec_cuda) {
        fprintf(stderr, "kolo-perf: --every-algorithm needs 2 GPUs or more that reach each other\n");
        return 2;
    }
    b = (bench_t){.job = *job, .options = *job->options, .state = atomic_load(&body->gpu.state)};
    b.job.options = &b.options;
    b.limits = b.state->limits;
    b.lines_before = b.state->layout.message_lines_most;
    b.message_lines = b.lines_before ? LINES_MOST : 0; /* ranks that share a GPU have none */
    while (b.points < POINTS && (uint64_t)FIRST << b.points <= job->options->max_bytes) b.points++;
    kolo_status_t status = b.points > 2
                               ? measure_limits(&b, &gpu)
                               : kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "--max must be 16K or more for GPUs");
    if (status == KOLO_OK) status = measure_machine(&b, &machine);
    restore(&b);
    if (status == KOLO_OK) status = save(&b, &gpu, &machine);
    if (status == KOLO_OK) return 0;
    fprintf(stderr, "kolo-perf: rank %d: %s: %s\n", job->rank, kolo_status_string(status), kolo_error_text());
    return 1;
}

void perf_gpu_predict(const perf_job_t *job, perf_row_t *row)
{
    const kolo_body_t *body = job->comm->body;
    const kolo_tune_machine_t *measured = kolo_tune_machine();
    gpu_machine_t machine = measured ? gpu_machine_of(measured) : gpu_machine_built_in((uint32_t)job->nranks);
    gpu_prediction_t p;
    gpu_call_t call = {.coll = perf_inside_coll(row->coll),
                       .nranks = (uint32_t)job->nranks,
                       .count = row->count,
                       .type = job->options->type,
                       .graph = job->options->graph,
                       .tuned = kolo_device_tuned(body)};
    if (body->gpu.exec != &kolo_exec_cuda || gpu_predict(&machine, &call, &p) != KOLO_OK) return;
    row->predicted_us = p.us;
    row->algo = p.way;
}
