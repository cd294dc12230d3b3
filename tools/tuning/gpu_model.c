/* SPDX-License-Identifier: Apache-2.0
 *
 * See gpu_model.h. The executor's own function says which way a call goes (gpu/cuda/choose.c); the plan of that
 * way is emitted for all ranks and simulated. A GPU is a rank that sends one thing at a time, since all that it
 * sends goes over the same links; a slot holds a whole part, since blocks work on all of it at once, but for a
 * broadcast, whose receivers hand on what they load as it comes, and its like, a reduce. A short operation has one
 * step behind its launch; a long one meets before, between and after its steps.
 */
#include "gpu_model.h"

#include "gpu_spread.h"
#include "prove/verify.h"

#include <stdlib.h>

/* Fitted to bench/results/gpu-2.txt. */
static const gpu_machine_t pair = {.launch_us = 3.6,
                                   .gap_us = 0.6,
                                   .begin_us = 1.6,
                                   .hop_us = 0.7,
                                   .meet_us = 1.6,
                                   .message_us = 1.6,
                                   .ll_gbps = 120,
                                   .ll128_gbps = 185,
                                   .store_gbps = 362,
                                   .load_gbps = 337,
                                   .store_block_gbps = 40,
                                   .load_block_gbps = 22,
                                   .memory_block_gbps = 60,
                                   .memory_gbps = 40000,
                                   .multiprocessors = 132};

/* Among more, fitted to bench/results/gpu-4.txt: a kernel looks for what three others send. */
gpu_machine_t gpu_machine_built_in(uint32_t nranks)
{
    gpu_machine_t m = pair;
    if (nranks <= 2) return m;
    m.launch_us = 4.4;
    m.gap_us = 1.0;
    m.begin_us = 2.2;
    m.ll_gbps = 140;
    return m;
}

#define SLOT_MOST   (1u << 30)
#define SLOT_PASSED (1u << 20) /* of what is handed on */
#define TAKEN_OUT   1.7  /* a gather's root copies lines, of several ranks at once; one of a reduce adds them up */
#define AT_ONCE     1.6  /* by lines in two steps: those to all others are under way at once, */
#define STEP_US     1.2  /* and a step reads, sums and stores them */
#define TO_MANY     0.95 /* of stores that go to several GPUs in no order */
#define ONE_WAY     1.4  /* by lines, a GPU that only sends is so much faster: it has no lines to look for */

gpu_machine_t gpu_machine_of(const kolo_tune_machine_t *t)
{
    gpu_machine_t m = pair;
    m.launch_us = (double)t->launch_ns / 1e3;
    m.gap_us = (double)t->gap_ns / 1e3;
    m.begin_us = (double)t->begin_ns / 1e3;
    m.hop_us = (double)t->hop_ns / 1e3;
    m.meet_us = (double)t->meet_ns / 1e3;
    m.message_us = (double)t->message_ns / 1e3;
    if (t->ll_mbps) m.ll_gbps = (double)t->ll_mbps / 1e3;
    if (t->ll128_mbps) m.ll128_gbps = (double)t->ll128_mbps / 1e3;
    if (t->store_mbps) m.store_gbps = (double)t->store_mbps / 1e3;
    if (t->load_mbps) m.load_gbps = (double)t->load_mbps / 1e3;
    return m;
}

/* How a call goes: the executor's choice, and what of the machine it uses. */
typedef struct {
    kolo_cuda_family_t family;
    bool message, two_lines, piped;
    int meetings; /* before, between and behind the steps */
    uint32_t blocks, threads, slot_bytes;
    double gbps, memory_gbps, latency_us;
} way_t;

/* A long broadcast to several receivers. */
static bool spreads(const gpu_call_t *call, const way_t *way)
{
    return call->coll == KOLO_COLL_BROADCAST && way->family == KOLO_CUDA_TWO_STEP && call->nranks > 2;
}

/* A long reduce, or one in two steps by lines, whose root owns nothing. */
static bool owned(const gpu_call_t *call, const way_t *way)
{
    bool two_steps = way->family == KOLO_CUDA_TWO_STEP && (way->piped || call->nranks > 2);
    return call->coll == KOLO_COLL_REDUCE && (two_steps || way->two_lines);
}

/* Tells whether all send to one, whose links are the limit. */
static bool converges(const gpu_call_t *call, const way_t *way)
{
    bool lines = way->family <= KOLO_CUDA_LL128 && !way->two_lines;
    return call->coll == KOLO_COLL_GATHER || (call->coll == KOLO_COLL_REDUCE && lines);
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

static kolo_status_t choose(const gpu_machine_t *m, const gpu_call_t *call, kolo_cuda_state_t *s, way_t *way)
{
    kolo_cuda_args_t args = {0};
    kolo_exec_call_t c = {.kind = KOLO_EXEC_COLL,
                          .coll = call->coll,
                          .op = KOLO_SUM,
                          .count = call->count,
                          .elem = call->coll == KOLO_COLL_BARRIER ? 1 : kolo_type_size(call->type)};
    kolo_cuda_limits(&call->tuned, call->nranks, &s->limits);
    kolo_cuda_layout(call->nranks, 2 * m->multiprocessors, false, &s->limits, &s->layout);
    KOLO_TRY(kolo_reducer_init(&c.reducer, call->type, KOLO_SUM, call->nranks));
    if (call->coll == KOLO_COLL_P2P) {
        bool lines = call->count * c.elem <= s->layout.message_lines_most;
        *way = (way_t){.family = lines ? KOLO_CUDA_LL128 : KOLO_CUDA_STAGED, .message = true};
        return KOLO_OK;
    }
    kolo_cuda_grid_t grid;
    *way = (way_t){.family = KOLO_CUDA_LL};
    uint64_t each = kolo_cuda_piece(s, &c);
    if (each) c.count = each;
    KOLO_TRY(each ? kolo_cuda_choose_lines(s, &c, &args, &way->family, &grid)
                  : kolo_cuda_choose(s, &c, &args, &way->family, &grid));
    way->two_lines = way->family == KOLO_CUDA_LL128 && args.part_bytes;
    way->piped = way->family == KOLO_CUDA_TWO_STEP && args.piped;
    way->blocks = grid.blocks;
    way->threads = grid.threads;
    return KOLO_OK;
}

/* Rates of the way: of all blocks together, or of the links. */
static void rate(const gpu_machine_t *m, const gpu_call_t *call, const kolo_cuda_limits_t *limits, way_t *way)
{
    uint64_t bytes = call->count * kolo_type_size(call->type);
    double blocks = way->blocks ? way->blocks : m->multiprocessors;
    bool reduces = call->coll == KOLO_COLL_ALL_REDUCE || call->coll == KOLO_COLL_REDUCE ||
                   call->coll == KOLO_COLL_REDUCE_SCATTER;
    bool gives = call->coll == KOLO_COLL_ALL_REDUCE && bytes >= limits->give && bytes <= limits->give_most;
    if (gives) way->piped = false; /* predicted are buffers that are apart */
    way->latency_us = m->hop_us;
    way->memory_gbps = m->memory_gbps;
    way->slot_bytes = spreads(call, way) || owned(call, way) || way->piped || way->family == KOLO_CUDA_CHAIN
                          ? SLOT_PASSED
                          : SLOT_MOST;
    if (way->family == KOLO_CUDA_LL || way->family == KOLO_CUDA_LL128) {
        way->gbps = way->family == KOLO_CUDA_LL ? m->ll_gbps : m->ll128_gbps;
        if (kolo_coll_rooted(call->coll)) way->gbps *= ONE_WAY;
        if (converges(call, way)) way->gbps /= call->nranks > 1 ? call->nranks - 1 : 1;
        if (call->coll == KOLO_COLL_GATHER && call->nranks > 2) way->gbps *= TAKEN_OUT;
        if (way->two_lines) way->gbps *= AT_ONCE;
        if (way->two_lines) way->latency_us += STEP_US;
        way->gbps = least(way->gbps, blocks * m->store_block_gbps);
        return;
    }
    way->meetings = gives ? 3 : 2;
    way->latency_us = m->meet_us;
    if ((reduces && !gives && !way->piped && way->family != KOLO_CUDA_CHAIN) || spreads(call, way))
        way->gbps = least(m->load_gbps, blocks * m->load_block_gbps);
    else
        way->gbps = least(m->store_gbps, blocks * m->store_block_gbps);
    if (way->piped && call->nranks > 2) way->gbps *= TO_MANY;
    if (converges(call, way)) way->gbps /= call->nranks > 1 ? call->nranks - 1 : 1;
    way->memory_gbps = least(m->memory_gbps, blocks * m->memory_block_gbps);
}

static kolo_algo_t algorithm(const gpu_call_t *call, const way_t *way)
{
    bool two = way->family == KOLO_CUDA_TWO_STEP || way->two_lines;
    if (call->coll == KOLO_COLL_P2P) return KOLO_ALGO_P2P;
    if (way->family == KOLO_CUDA_CHAIN) return KOLO_ALGO_RING;
    if (call->coll == KOLO_COLL_BROADCAST) two = spreads(call, way); /* the root stores all to one receiver */
    return !two && kolo_algo_find(call->coll, KOLO_ALGO_ONE_STEP) ? KOLO_ALGO_ONE_STEP : KOLO_ALGO_DIRECT;
}

static kolo_status_t emit(const gpu_call_t *call, const way_t *way, kolo_algo_t algo, const int *nodes,
                          kolo_plan_t **plans)
{
    const int first = 0, size = (int)call->nranks;
    bool no = false;
    kolo_emit_env_t env = {.nranks = call->nranks,
                           .nnodes = 1,
                           .node_of = nodes,
                           .node_first = &first,
                           .node_size = &size,
                           .node_ranks = nodes + call->nranks,
                           .lanes = 1};
    for (uint32_t r = 0; r < call->nranks; r++) {
        int next = (int)((r + 1) % call->nranks), prev = (int)((r + call->nranks - 1) % call->nranks);
        env.rank = r;
        if (call->coll == KOLO_COLL_P2P) {
            env.nsends = env.nrecvs = 1;
            env.send_peers = &next;
            env.recv_peers = &prev;
            env.send_refs = env.recv_refs = env.send_halves = env.recv_halves = &no;
        }
        if (spreads(call, way))
            KOLO_TRY(gpu_emit_spread(&env, &plans[r]));
        else if (owned(call, way))
            KOLO_TRY(gpu_emit_owned_reduce(&env, &plans[r]));
        else
            KOLO_TRY(kolo_algo_emit(call->coll, algo, &env, &plans[r]));
    }
    return KOLO_OK;
}

static kolo_status_t simulate(const gpu_call_t *call, const way_t *way, kolo_algo_t algo, double *us)
{
    uint32_t n = call->nranks;
    kolo_sim_result_t result = {0};
    kolo_sim_machine_t machine = {.local = {way->latency_us, way->gbps},
                                  .remote = {1, 1},
                                  .copy_gbps = way->memory_gbps,
                                  .cores = n,
                                  .slot_bytes = way->slot_bytes};
    kolo_plan_t **plans = calloc(n, sizeof *plans);
    int *nodes = calloc((size_t)2 * n, sizeof *nodes);
    kolo_status_t status =
        plans && nodes ? KOLO_OK : kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for the plans of %u GPUs", n);
    for (uint32_t r = 0; r < n && nodes; r++) nodes[n + r] = (int)r;
    if (status == KOLO_OK) status = emit(call, way, algo, nodes, plans);
    if (status == KOLO_OK)
        status = kolo_prove_simulate(
            &(kolo_sim_case_t){(const kolo_plan_t *const *)plans, n, nodes, call->count,
                               call->coll == KOLO_COLL_BARRIER ? 1 : (uint32_t)kolo_type_size(call->type),
                               &machine},
            &result);
    for (uint32_t r = 0; r < n && plans; r++) kolo_plan_free(plans[r]);
    free(plans);
    free(nodes);
    *us = result.time_us;
    return status;
}

kolo_status_t gpu_predict(const gpu_machine_t *m, const gpu_call_t *call, gpu_prediction_t *out)
{
    static const char *const ways[] = {[KOLO_CUDA_LL] = "lines",
                                       [KOLO_CUDA_LL128] = "lines of 128 bytes",
                                       [KOLO_CUDA_STAGED] = "one step",
                                       [KOLO_CUDA_TWO_STEP] = "two steps",
                                       [KOLO_CUDA_CHAIN] = "from neighbour to neighbour"};
    static kolo_cuda_state_t s; /* large; of it only limits and layout are used */
    way_t way;
    double us = 0;
    KOLO_TRY(choose(m, call, &s, &way));
    rate(m, call, &s.limits, &way);
    kolo_algo_t algo = algorithm(call, &way);
    if (call->nranks > 1) KOLO_TRY(simulate(call, &way, algo, &us));
    us += m->begin_us + way.meetings * m->meet_us + (way.message ? m->message_us : 0);
    if (!call->graph) us = us + m->gap_us > m->launch_us ? us + m->gap_us : m->launch_us;
    *out = (gpu_prediction_t){
        .us = us, .way = ways[way.family], .algo = algo, .blocks = way.blocks, .threads = way.threads};
    return KOLO_OK;
}
