/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulator beside the measurement: emits the plan that ran for all ranks and simulates it on a machine of
 * which only this was measured: memcpy by size with all ranks copying at once, one barrier through lines, one
 * through a plan, and between hosts one large send. Latencies (or the switch, with more ranks than cores) are what
 * makes the simulated barriers take as long as the measured ones.
 */
#include "inside.h"
#include "prove/verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RATES = 6, CALLS = 301, SENDS = 5 };
#define RATE_MIN   (16u << 10)
#define SEND_BYTES (8u << 20)
#define CAST_BYTES (128u << 10) /* of the broadcast through a plan */

typedef struct { /* one of the two ways, through lines or through plans */
    bool by_lines;
    uint64_t cast_bytes;        /* 0: there is no such way here */
    double barrier_us, cast_us; /* measured */
    double core_rate;           /* most bytes per us from one core to another */
    kolo_sim_machine_t machine; /* without rates and slot */
} way_t;

struct perf_model {
    const perf_job_t *job;
    double rate[RATES]; /* bytes per us of a host, buffers of RATE_MIN << 2 i */
    double remote_gbps;
    uint32_t cast_piece; /* slot of the broadcast through a plan */
    way_t lines, plans;
};

/* ---- measuring ---- */

static kolo_status_t measure_rates(perf_model_t *m)
{
    const perf_job_t *job = m->job;
    const kolo_body_t *body = job->comm->body;
    size_t most = (size_t)RATE_MIN << 2 * (RATES - 1);
    double window = body->choice.tune.max_node_size > body->choice.tune.cores ? 24e3 : 6e3;
    char *a = malloc(most), *b = malloc(most);
    kolo_status_t status = a && b ? KOLO_OK : kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to measure memcpy");
    if (status == KOLO_OK) {
        memset(a, 1, most);
        memset(b, 2, most);
    }
    for (int i = 0; i < RATES && status == KOLO_OK; i++) {
        size_t bytes = (size_t)RATE_MIN << 2 * i;
        double copied = 0, start, now;
        status = kolo_barrier(job->comm, NULL);
        start = perf_now_us();
        do {
            memcpy(b, a, bytes);
            __asm__ volatile("" : : "r"(b) : "memory");
            copied += (double)bytes;
            now = perf_now_us();
        } while (now - start < window);
        m->rate[i] = copied / (now - start);
    }
    if (status == KOLO_OK)
        status = kolo_all_reduce(m->rate, m->rate, RATES, KOLO_FLOAT64, KOLO_SUM, job->comm, NULL);
    /* the sum is over all hosts */
    for (int i = 0; i < RATES; i++) m->rate[i] *= (double)body->choice.tune.max_node_size / job->nranks;
    free(a);
    free(b);
    return status;
}

static kolo_status_t measure_call(const perf_job_t *job, perf_coll_t coll, uint64_t bytes, double *us)
{
    double times[CALLS];
    perf_buffers_t b;
    kolo_status_t status = perf_buffers_make(job, coll, bytes, &b);
    if (status == KOLO_OK) status = perf_time_calls(job, coll, &b, false, 20, CALLS, times);
    if (status == KOLO_OK) status = perf_slowest_sorted(job, times, CALLS);
    perf_buffers_free(&b);
    *us = times[CALLS / 2];
    return status;
}

/* Through lines: the longest broadcast that goes that way. */
static kolo_status_t measure_lines(perf_model_t *m)
{
    const perf_job_t *job = m->job;
    kolo_tune_choice_t choice;
    perf_inside_force(job, "barrier=flat,broadcast=flat");
    for (uint64_t bytes = 2048; bytes >= 256 && !m->lines.cast_bytes; bytes /= 2) {
        KOLO_TRY(perf_inside_choose(job, PERF_BROADCAST, bytes / kolo_type_size(job->options->type), &choice));
        if (choice.way.lines) m->lines.cast_bytes = bytes;
    }
    m->lines.by_lines = true;
    if (!m->lines.cast_bytes) return KOLO_OK;
    KOLO_TRY(measure_call(job, PERF_BARRIER, 0, &m->lines.barrier_us));
    return measure_call(job, PERF_BROADCAST, m->lines.cast_bytes, &m->lines.cast_us);
}

static kolo_status_t measure_plans(perf_model_t *m)
{
    m->plans.cast_bytes = CAST_BYTES;
    perf_inside_force(m->job, "barrier=direct,broadcast=one_step");
    KOLO_TRY(measure_call(m->job, PERF_BARRIER, 0, &m->plans.barrier_us));
    return measure_call(m->job, PERF_BROADCAST, CAST_BYTES, &m->plans.cast_us);
}

/* One large send from rank 0 to a rank of another host. */
static kolo_status_t measure_network(perf_model_t *m)
{
    const perf_job_t *job = m->job;
    const kolo_emit_env_t *emit = &job->comm->body->choice.emit;
    double best = 0;
    int to = 0;
    while (to < job->nranks && emit->node_of[to] == emit->node_of[0]) to++;
    bool mine = job->rank == 0 || job->rank == to;
    char *buf = mine ? calloc(1, SEND_BYTES) : NULL;
    if (mine && !buf) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to measure the network");
    kolo_status_t status = KOLO_OK;
    for (int i = 0; i < SENDS && mine && status == KOLO_OK; i++) {
        double start = perf_now_us();
        status = job->rank == 0 ? kolo_send(buf, SEND_BYTES, KOLO_UINT8, to, job->comm, NULL)
                                : kolo_recv(buf, SEND_BYTES, KOLO_UINT8, 0, job->comm, NULL);
        double gbps = SEND_BYTES / (perf_now_us() - start) / 1e3;
        if (i && gbps > best) best = gbps;
    }
    free(buf);
    if (status == KOLO_OK) status = kolo_all_reduce(&best, &best, 1, KOLO_FLOAT64, KOLO_MAX, job->comm, NULL);
    m->remote_gbps = best;
    return status;
}

/* Bytes per us of a host whose ranks copy buffers of `bytes` bytes in all. */
static double copy_rate(const perf_model_t *m, double bytes)
{
    double x = log2(bytes / 2 / m->job->comm->body->choice.tune.max_node_size / RATE_MIN) / 2;
    if (!(x > 0)) return m->rate[0];
    if (x >= RATES - 1) return m->rate[RATES - 1];
    int i = (int)x;
    return m->rate[i] * pow(m->rate[i + 1] / m->rate[i], x - i);
}

/* ---- simulating ---- */

static kolo_status_t emit_all(const perf_job_t *job, kolo_coll_t coll, kolo_algo_t algo, kolo_p2p_way_t way,
                              kolo_plan_t **plans)
{
    kolo_emit_env_t env = job->comm->body->choice.emit;
    bool refs = way == KOLO_P2P_REF || way == KOLO_P2P_HALVES, halves = way == KOLO_P2P_HALVES;
    env.root = kolo_coll_rooted(coll) ? (uint32_t)job->options->root : 0;
    for (uint32_t r = 0; r < env.nranks; r++) {
        int next = (int)((r + 1) % env.nranks), prev = (int)((r + env.nranks - 1) % env.nranks);
        env.rank = r;
        if (coll == KOLO_COLL_P2P) {
            env.nsends = env.nrecvs = 1;
            env.send_peers = &next;
            env.recv_peers = &prev;
            env.send_refs = env.recv_refs = &refs;
            env.send_halves = env.recv_halves = &halves;
        }
        KOLO_TRY(kolo_algo_emit(coll, algo, &env, &plans[r]));
    }
    return KOLO_OK;
}

typedef struct {
    kolo_coll_t coll;
    kolo_algo_t algo;
    kolo_p2p_way_t way;
    uint64_t count;
    size_t elem;
    uint32_t piece_bytes; /* 0: references, long tiles */
    double touched;       /* bytes of all buffers of the host */
} sim_call_t;

/* Microseconds; 0 when it is not known. */
static double simulate(const perf_model_t *m, const sim_call_t *c, const way_t *way)
{
    const kolo_body_t *body = m->job->comm->body;
    uint32_t n = body->choice.emit.nranks;
    kolo_sim_machine_t machine = way->machine;
    kolo_sim_result_t result = {0};
    kolo_plan_t **plans = calloc(n, sizeof(kolo_plan_t *));
    if (!plans) return 0;
    kolo_status_t status = emit_all(m->job, c->coll, c->algo, c->way, plans);
    if (status == KOLO_OK) {
        /* through slots, which stay in the caches, one end of a copy is in memory; by reference both are */
        double rate = copy_rate(m, c->touched) / KOLO_MIN(body->choice.tune.max_node_size, body->choice.tune.cores);
        if (c->piece_bytes) rate *= 2;
        machine.copy_gbps = machine.local.gbps = KOLO_MIN(rate, way->core_rate) / 1e3;
        machine.slot_bytes = c->piece_bytes ? c->piece_bytes : KOLO_REF_TILE / plans[0]->slices;
        status =
            kolo_prove_simulate(&(kolo_sim_case_t){(const kolo_plan_t *const *)plans, n, body->choice.emit.node_of,
                                                   c->count, (uint32_t)c->elem, &machine},
                                &result);
    }
    for (uint32_t r = 0; r < n; r++) kolo_plan_free(plans[r]);
    free(plans);
    return status == KOLO_OK ? result.time_us : 0;
}

/* Sets *value, a field of *way, so that the simulated call takes `want` us; `rising`: more of it takes longer. */
static void fit(const perf_model_t *m, const sim_call_t *call, double want, const way_t *way, double *value,
                bool rising)
{
    double low = 1e-3, high = 1e6;
    for (int i = 0; i < 50; i++) {
        *value = sqrt(low * high);
        if ((simulate(m, call, way) > want) == rising)
            high = *value;
        else
            low = *value;
    }
}

static void fit_way(const perf_model_t *m, way_t *way, double insn_us)
{
    const perf_job_t *job = m->job;
    const kolo_body_t *body = job->comm->body;
    kolo_sim_machine_t *x = &way->machine;
    *x = (kolo_sim_machine_t){.local = {.latency_us = 0.2},
                              .remote = {.latency_us = 12, .gbps = m->remote_gbps > 0 ? m->remote_gbps : 4},
                              .insn_us = insn_us,
                              .cores = body->choice.tune.cores};
    way->core_rate = 1e9;
    if (!way->cast_bytes) return;
    double *value = &x->local.latency_us;
    if (body->choice.emit.nnodes > 1)
        value = &x->remote.latency_us;
    else if (body->choice.tune.max_node_size > body->choice.tune.cores)
        value = &x->switch_us;
    sim_call_t call = {
        .coll = KOLO_COLL_BARRIER, .algo = KOLO_ALGO_DIRECT, .elem = 1, .piece_bytes = 64, .touched = 1};
    fit(m, &call, way->barrier_us, way, value, true);
    call.coll = KOLO_COLL_BROADCAST;
    call.algo = KOLO_ALGO_ONE_STEP;
    call.count = way->cast_bytes;
    call.piece_bytes = way->by_lines ? body->choice.sizes.ll_slot_bytes : m->cast_piece;
    call.touched = (double)way->cast_bytes * (body->choice.tune.max_node_size + 1);
    fit(m, &call, way->cast_us, way, &way->core_rate, false);
}

static void print_head(const perf_model_t *m)
{
    printf("# model: memcpy of all ranks %.1f GB/s at 64K, %.1f at 16M", m->rate[1] / 1e3,
           m->rate[RATES - 1] / 1e3);
    const way_t *ways[] = {&m->lines, &m->plans};
    for (int i = 0; i < 2; i++)
        if (ways[i]->cast_bytes)
            printf("; by %s: barrier %.2f us, broadcast of %llu bytes %.2f us", i ? "a plan" : "lines",
                   ways[i]->barrier_us, (unsigned long long)ways[i]->cast_bytes, ways[i]->cast_us);
    if (m->remote_gbps > 0) printf("; network %.2f GB/s", m->remote_gbps);
    printf("\n");
}

kolo_status_t perf_model_open(const perf_job_t *job, perf_model_t **out)
{
    perf_ran_t ran;
    perf_model_t *m = *out = calloc(1, sizeof *m);
    if (!m) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for the model");
    m->job = job;
    KOLO_TRY(measure_rates(m));
    if (job->nranks == 1) return KOLO_OK;
    const char *before = perf_inside_force(job, NULL);
    KOLO_TRY(measure_lines(m));
    KOLO_TRY(measure_plans(m));
    KOLO_TRY(perf_inside_ran(job, PERF_BROADCAST, CAST_BYTES / kolo_type_size(job->options->type), &ran));
    m->cast_piece = ran.piece_bytes;
    perf_inside_force(job, before);
    if (job->comm->body->choice.emit.nnodes > 1) KOLO_TRY(measure_network(m));
    if (job->rank == 0) {
        fit_way(m, &m->lines, 0.02);
        fit_way(m, &m->plans, 0.08);
        print_head(m);
    }
    return KOLO_OK;
}

void perf_model_close(perf_model_t *model)
{
    free(model);
}

static void predict_pair(const perf_model_t *m, perf_row_t *row, sim_call_t *call)
{
    const kolo_body_t *body = m->job->comm->body;
    static const char *const ways[] = {"lines", "slots", "references", "halves"};
    uint32_t next = 1 % body->choice.emit.nranks;
    uint64_t bytes = row->count * call->elem;
    call->algo = KOLO_ALGO_P2P;
    call->way =
        kolo_tune_p2p(&body->choice.sizes, bytes, kolo_body_pair_ll(body, next), kolo_body_pair_refs(body, next));
    bool refs = call->way == KOLO_P2P_REF || call->way == KOLO_P2P_HALVES, lines = call->way == KOLO_P2P_LL;
    if (!refs)
        call->piece_bytes = lines ? body->choice.sizes.ll_slot_bytes
                                  : kolo_tune_p2p_piece(&body->choice.tune, &body->choice.sizes, bytes);
    row->algo = ways[call->way];
    row->predicted_us = simulate(m, call, lines && m->lines.cast_bytes ? &m->lines : &m->plans);
}

void perf_model_row(const perf_model_t *m, perf_row_t *row)
{
    const perf_job_t *job = m->job;
    int local = (int)job->comm->body->choice.tune.max_node_size;
    sim_call_t call = {.coll = perf_inside_coll(row->coll),
                       .count = row->count,
                       .elem = row->coll == PERF_BARRIER ? 1 : kolo_type_size(job->options->type),
                       .touched = perf_touched(job, row->coll, row->count, row->in_place, local)};
    perf_ran_t ran;
    if (row->bytes >= PERF_SHARE_FROM && row->median_us > 0)
        row->copy_share = call.touched / 2 / copy_rate(m, call.touched) / row->median_us;
    if (job->nranks == 1) return;
    if (row->coll == PERF_PUT) {
        row->algo = "put";
    } else if (row->coll == PERF_SENDRECV) {
        predict_pair(m, row, &call);
    } else if (perf_inside_ran(job, row->coll, row->count, &ran) == KOLO_OK) {
        call.algo = ran.way.algo;
        call.piece_bytes = ran.piece_bytes;
        row->algo = kolo_way_name(call.coll, ran.way);
        row->predicted_us = simulate(m, &call, ran.way.lines ? &m->lines : &m->plans);
    }
}
