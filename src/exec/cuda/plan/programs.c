/* SPDX-License-Identifier: Apache-2.0
 *
 * The programs of a communicator: made when a forced collective is first called, copied into this rank's region by
 * the stream of that call, and kept, so that a captured graph may use them as long as the communicator lives.
 */
#include "base/log.h"
#include "exec/cuda/cuda.h"
#include "exec/cuda/plan/plan.h"

#include <stdlib.h>
#include <string.h>

typedef struct program {
    struct program *next;
    kolo_coll_t coll;
    uint32_t root;
    kolo_plan_t *plan; /* this rank's; NULL: none is forced for this collective */
    kolo_cuda_lowered_t lowered;
    uint64_t at; /* in the region */
    bool there;  /* has been copied */
} program_t;

struct kolo_cuda_plans {
    kolo_status_t (*emit)(void *arg, kolo_coll_t coll, uint32_t rank, uint32_t root, kolo_plan_t **plan);
    void *emit_arg;
    program_t *programs;
    uint64_t used; /* bytes of the region's part for programs */
    kolo_cuda_plan_args_t args;
};

kolo_status_t kolo_cuda_plans_open(const kolo_exec_env_t *env, kolo_cuda_plans_t **plans)
{
    if (!env->plan) return KOLO_OK;
    kolo_cuda_plans_t *p = calloc(1, sizeof *p);
    if (!p) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for the plans of a GPU communicator");
    p->emit = env->plan;
    p->emit_arg = env->plan_arg;
    *plans = p;
    return KOLO_OK;
}

static void free_program(program_t *g)
{
    free(g->lowered.image);
    kolo_plan_free(g->plan);
    free(g);
}

void kolo_cuda_plans_close(kolo_cuda_plans_t *plans)
{
    if (!plans) return;
    for (program_t *g = plans->programs, *next; g; g = next) {
        next = g->next;
        free_program(g);
    }
    free(plans);
}

uint64_t kolo_cuda_plans_room(kolo_cuda_plans_t *plans, uint32_t nranks, uint64_t bytes)
{
    if (!plans) return bytes;
    kolo_cuda_plan_layout(nranks, bytes, &plans->args.plan);
    for (program_t *g = plans->programs; g; g = g->next) g->there = false; /* the region is a new one */
    return plans->args.plan.bytes;
}

/* ---- making one ---- */

static kolo_status_t emit_all(kolo_cuda_state_t *s, program_t *g, kolo_plan_t **all)
{
    kolo_cuda_plans_t *p = s->plans;
    for (int r = 0; r < s->regions.nranks; r++) {
        KOLO_TRY(p->emit(p->emit_arg, g->coll, (uint32_t)r, g->root, &all[r]));
        if (!all[r]) return KOLO_OK; /* for no rank, then */
        KOLO_TRY(kolo_plan_check(all[r]));
    }
    KOLO_TRY(kolo_cuda_lower((const kolo_plan_t *const *)all, (uint32_t)s->regions.nranks,
                             (uint32_t)s->regions.rank, &g->lowered));
    if (p->args.plan.programs_bytes - p->used < g->lowered.bytes)
        return kolo_fail(KOLO_ERR_UNSUPPORTED,
                         "a GPU communicator has room for %llu bytes of plans; %zu more are "
                         "needed for %s",
                         (unsigned long long)p->args.plan.programs_bytes, g->lowered.bytes,
                         kolo_coll_name(g->coll));
    g->at = p->used;
    p->used += KOLO_ROUND_UP(g->lowered.bytes, 128u);
    g->plan = all[s->regions.rank];
    all[s->regions.rank] = NULL;
    return KOLO_OK;
}

static kolo_status_t make(kolo_cuda_state_t *s, kolo_coll_t coll, uint32_t root, program_t **out)
{
    kolo_plan_t **all = calloc((size_t)s->regions.nranks, sizeof(kolo_plan_t *));
    program_t *g = calloc(1, sizeof *g);
    kolo_status_t status = KOLO_OK;
    if (!all || !g) status = kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a plan");
    if (status == KOLO_OK) {
        g->coll = coll;
        g->root = root;
        status = emit_all(s, g, all);
    }
    for (int r = 0; all && r < s->regions.nranks; r++) kolo_plan_free(all[r]);
    free(all);
    if (status != KOLO_OK) {
        if (g) free_program(g);
        return status;
    }
    g->next = s->plans->programs;
    s->plans->programs = g;
    *out = g;
    if (g->plan)
        kolo_info("exec",
                  "rank %d: %s by the %s plan: %u lanes, %u instructions, run by the kernel that interprets "
                  "plans (forced by KOLO_ALGO)",
                  s->regions.rank, kolo_coll_name(coll), kolo_algo_name(g->plan->algo), g->plan->nlanes,
                  g->plan->ninsns);
    else
        kolo_info("exec", "rank %d: %s by the kernels made for it: KOLO_ALGO names no algorithm that it has",
                  s->regions.rank, kolo_coll_name(coll));
    return KOLO_OK;
}

static kolo_status_t find(kolo_cuda_state_t *s, kolo_coll_t coll, uint32_t root, program_t **out)
{
    for (program_t *g = s->plans->programs; g; g = g->next) {
        if (g->coll != coll || g->root != root) continue;
        *out = g;
        return KOLO_OK;
    }
    return make(s, coll, root, out);
}

/* ---- a call ---- */

/* Copied by the call's stream, so before the kernel. A stream that is being captured copies each time that the
 * graph is replayed. */
static kolo_status_t bring(kolo_cuda_state_t *s, program_t *g, void *region, kolo_cu_stream_t stream)
{
    int now = KOLO_CU_CAPTURE_NONE;
    char *to = (char *)region + s->plans->args.plan.programs + g->at;
    if (g->there) return KOLO_OK;
    KOLO_TRY(kolo_cuda_put_copy(s, to, g->lowered.image, g->lowered.bytes, stream));
    kolo_cu_result_t r = s->api->stream_capturing(stream, &now);
    if (r) return kolo_cuda_fail(r, s->device->ordinal, "ask whether a stream is being captured");
    g->there = now == KOLO_CU_CAPTURE_NONE;
    return KOLO_OK;
}

kolo_status_t kolo_cuda_plans_launch(kolo_cuda_state_t *s, const kolo_exec_call_t *call, bool *launched)
{
    kolo_cuda_plans_t *p = s->plans;
    program_t *g;
    uint32_t blocks;
    *launched = false;
    if (!p || s->regions.nranks == 1) return KOLO_OK;
    KOLO_TRY(find(s, call->coll, kolo_coll_rooted(call->coll) ? (uint32_t)call->root : 0, &g));
    if (!g->plan) return KOLO_OK;
    void *region = s->regions.address[s->regions.rank];
    kolo_cuda_plan_args_t *a = &p->args;
    a->c.layout = s->layout;
    a->c.mailbox = s->args.c.mailbox;
    a->c.rank = s->args.c.rank;
    memcpy(a->c.regions, s->args.c.regions, sizeof a->c.regions);
    KOLO_TRY(kolo_cuda_fill(call, &a->c));
    KOLO_TRY(kolo_cuda_plan_cut(&g->lowered, g->plan, call, s->resident, a, &blocks));
    a->program = (uint64_t)(uintptr_t)region + a->plan.programs + g->at;
    *launched = true;
    if (!blocks) return KOLO_OK; /* this rank has no part in it */
    KOLO_TRY(bring(s, g, region, call->stream));
    kolo_type_t type = call->coll == KOLO_COLL_BARRIER || call->reducer.type >= KOLO_EXEC_DEVICE_TYPES
                           ? KOLO_UINT8 /* only moved */
                           : call->reducer.type;
    return kolo_cuda_put(s, s->kernels->collective[KOLO_CUDA_PLAN][type], blocks, a, call->stream);
}
