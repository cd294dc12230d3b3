/* SPDX-License-Identifier: Apache-2.0
 *
 * The programs of a communicator: made when a forced collective is first called, copied into this rank's region by
 * the stream of that call, and kept, so that a captured graph may use them as long as the communicator lives.
 */
#include "base/log.h"
#include "gpu/cuda/cuda.h"
#include "gpu/cuda/plan/plan.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    kolo_plan_t *plan; /* this rank's; NULL: there is none */
    kolo_cuda_lowered_t lowered;
    uint64_t at; /* in the region */
} form_t;

typedef struct program {
    struct program *next;
    kolo_coll_t coll;
    bool uneven; /* for parts of unequal lengths */
    uint32_t root;
    form_t forms[2]; /* the plan that is forced; where it passes references, one that does without */
    bool there;      /* has been copied */
} program_t;

struct kolo_cuda_plans {
    kolo_status_t (*emit)(void *arg, const kolo_exec_plan_ask_t *ask, kolo_plan_t **plan);
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
    for (int f = 0; f < 2; f++) {
        free(g->forms[f].lowered.image);
        kolo_plan_free(g->forms[f].plan);
    }
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
    if (kolo_cuda_options.ll_bytes) plans->args.plan.lines_most = (uint64_t)kolo_cuda_options.ll_bytes;
    if (kolo_cuda_options.ll128_bytes) plans->args.plan.lines128_most = (uint64_t)kolo_cuda_options.ll128_bytes;
    for (program_t *g = plans->programs; g; g = g->next) g->there = false; /* the region is a new one */
    return plans->args.plan.bytes;
}

/* ---- making one ---- */

/* Emits the plans of all ranks into `all`, which the caller frees; this rank's is taken. */
static kolo_status_t emit_form(kolo_cuda_state_t *s, const program_t *g, bool slots, form_t *form,
                               kolo_plan_t **all)
{
    kolo_cuda_plans_t *p = s->plans;
    kolo_exec_plan_ask_t ask = {.coll = g->coll, .root = g->root, .uneven = g->uneven, .slots = slots};
    for (ask.rank = 0; ask.rank < (uint32_t)s->regions.nranks; ask.rank++) {
        KOLO_TRY(p->emit(p->emit_arg, &ask, &all[ask.rank]));
        if (!all[ask.rank]) return KOLO_OK; /* for no rank, then */
        KOLO_TRY(kolo_plan_check(all[ask.rank]));
    }
    KOLO_TRY(kolo_cuda_lower((const kolo_plan_t *const *)all, (uint32_t)s->regions.nranks,
                             (uint32_t)s->regions.rank, &form->lowered));
    if (p->args.plan.programs_bytes - p->used < form->lowered.bytes)
        return kolo_fail(KOLO_ERR_UNSUPPORTED,
                         "a GPU communicator has room for %llu bytes of plans; %zu more are "
                         "needed for %s",
                         (unsigned long long)p->args.plan.programs_bytes, form->lowered.bytes,
                         kolo_coll_name(g->coll));
    form->at = p->used;
    p->used += KOLO_ROUND_UP(form->lowered.bytes, 128u);
    form->plan = all[s->regions.rank];
    all[s->regions.rank] = NULL;
    return KOLO_OK;
}

static kolo_status_t make_form(kolo_cuda_state_t *s, const program_t *g, bool slots, form_t *form)
{
    kolo_plan_t **all = calloc((size_t)s->regions.nranks, sizeof(kolo_plan_t *));
    if (!all) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a plan");
    kolo_status_t status = emit_form(s, g, slots, form, all);
    for (int r = 0; r < s->regions.nranks; r++) kolo_plan_free(all[r]);
    free(all);
    return status;
}

static void tell(const kolo_cuda_state_t *s, const program_t *g)
{
    const kolo_plan_t *plan = g->forms[0].plan;
    if (plan)
        kolo_info("exec",
                  "rank %d: %s by the %s plan: %u lanes, %u instructions, run by the kernel that interprets "
                  "plans (forced by KOLO_ALGO)",
                  s->regions.rank, kolo_coll_name(g->coll), kolo_plan_algo_name(plan->algo), plan->nlanes,
                  plan->ninsns);
    else
        kolo_info("exec", "rank %d: %s by the kernels made for it: KOLO_ALGO names no algorithm that it has",
                  s->regions.rank, kolo_coll_name(g->coll));
}

static kolo_status_t make(kolo_cuda_state_t *s, const program_t *key, program_t **out)
{
    program_t *g = malloc(sizeof *g);
    if (!g) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a plan");
    *g = *key;
    kolo_status_t status = make_form(s, g, false, &g->forms[0]);
    if (status == KOLO_OK && g->forms[0].lowered.refs) status = make_form(s, g, true, &g->forms[1]);
    if (status != KOLO_OK) {
        free_program(g);
        return status;
    }
    g->next = s->plans->programs;
    s->plans->programs = g;
    *out = g;
    tell(s, g);
    return KOLO_OK;
}

static kolo_status_t find(kolo_cuda_state_t *s, const kolo_exec_call_t *call, program_t **out)
{
    program_t key = {.coll = call->coll,
                     .uneven = call->send_counts || call->recv_counts,
                     .root = kolo_coll_rooted(call->coll) ? (uint32_t)call->root : 0};
    for (program_t *g = s->plans->programs; g; g = g->next) {
        if (g->coll != key.coll || g->root != key.root || g->uneven != key.uneven) continue;
        *out = g;
        return KOLO_OK;
    }
    return make(s, &key, out);
}

/* ---- a call ---- */

/* Copies a program by the call's stream, so before the kernel. A stream that is being captured copies each time
 * that the graph is replayed. */
static kolo_status_t bring(kolo_cuda_state_t *s, program_t *g, void *region, kolo_cu_stream_t stream)
{
    bool captured;
    if (g->there) return KOLO_OK;
    for (int f = 0; f < 2; f++) {
        const form_t *form = &g->forms[f];
        char *to = (char *)region + s->plans->args.plan.programs + form->at;
        if (form->plan) KOLO_TRY(kolo_cuda_put_copy(s, to, form->lowered.image, form->lowered.bytes, stream));
    }
    KOLO_TRY(kolo_cuda_capturing(s->device, stream, &captured));
    g->there = !captured;
    return KOLO_OK;
}

/* Returns how many blocks. With references all ranks have as many, since they meet. */
static kolo_status_t fill(kolo_cuda_state_t *s, const kolo_exec_call_t *call, const program_t *g, void *region,
                          uint32_t *blocks)
{
    kolo_cuda_plan_args_t *a = &s->plans->args;
    bool refs = g->forms[1].plan != NULL;
    a->l.c.layout = s->layout;
    a->l.c.mailbox = s->args.c.mailbox;
    a->l.c.rank = s->args.c.rank;
    memcpy(a->l.c.regions, s->args.c.regions, sizeof a->l.c.regions);
    KOLO_TRY(kolo_cuda_fill(call, &a->l.c));
    *blocks = 0;
    for (int f = 0; f < 2; f++) {
        const form_t *form = &g->forms[f];
        kolo_cuda_plan_run_t *run = &a->runs[f];
        run->program = 0;
        if (!form->plan) continue;
        KOLO_TRY(kolo_cuda_plan_cut(&form->lowered, form->plan, call, s->resident, a, run));
        run->program = (uint64_t)(uintptr_t)region + a->plan.programs + form->at;
        *blocks = KOLO_MAX(*blocks, run->replicas * (refs ? form->lowered.lanes : form->plan->nlanes));
    }
    if (refs) kolo_cuda_expose(s, call, &a->l);
    return KOLO_OK;
}

kolo_status_t kolo_cuda_plans_launch(kolo_cuda_state_t *s, const kolo_exec_call_t *call, bool *launched)
{
    program_t *g = NULL;
    uint32_t blocks;
    *launched = false;
    if (!s->plans || s->regions.nranks == 1) return KOLO_OK;
    KOLO_TRY(find(s, call, &g));
    if (!g->forms[0].plan) return KOLO_OK;
    void *region = s->regions.address[s->regions.rank];
    KOLO_TRY(fill(s, call, g, region, &blocks));
    *launched = true;
    if (!blocks) return KOLO_OK; /* this rank has no part in it */
    KOLO_TRY(bring(s, g, region, call->stream));
    kolo_type_t type = call->coll == KOLO_COLL_BARRIER || call->reducer.type >= KOLO_EXEC_DEVICE_TYPES
                           ? KOLO_UINT8 /* of one byte, or only moved */
                           : call->reducer.type;
    return kolo_cuda_put(s, s->kernels->collective[KOLO_CUDA_PLAN][type],
                         (kolo_cuda_grid_t){blocks, KOLO_CUDA_THREADS}, &s->plans->args, call->stream);
}
