/* SPDX-License-Identifier: Apache-2.0
 *
 * Walking a lane of a checked plan: loops unrolled one instruction at a time. Used by the readers of this room that
 * are not executors (verifier, trace check, simulator, mutation tests).
 */
#ifndef KOLO_PROVE_WALK_H
#define KOLO_PROVE_WALK_H

#include "plan/plan.h"

typedef struct {
    uint32_t pc; /* relative to the lane's first instruction */
    uint32_t nopen;
    uint32_t first[2]; /* instruction after the LOOP */
    uint32_t turn[2];
} kolo_cursor_t;

static inline void kolo_cursor_start(kolo_cursor_t *c)
{
    *c = (kolo_cursor_t){0};
}

/* Returns the instruction that comes now; passes over LOOP and END. NULL at the end of the lane. */
static inline const kolo_insn_t *kolo_cursor_at(kolo_cursor_t *c, const kolo_plan_t *plan, uint32_t lane)
{
    const kolo_plan_lane_t *l = &plan->lanes[lane];
    while (c->pc < l->count) {
        const kolo_insn_t *in = &plan->insns[l->first + c->pc];
        if (in->op == KOLO_OP_LOOP) {
            c->pc++;
            c->first[c->nopen] = c->pc;
            c->turn[c->nopen++] = 0;
        } else if (in->op == KOLO_OP_END) {
            uint32_t top = c->nopen - 1;
            if (++c->turn[top] < plan->insns[in->count].count) {
                c->pc = c->first[top];
            } else {
                c->nopen--;
                c->pc++;
            }
        } else {
            return in;
        }
    }
    return NULL;
}

static inline void kolo_cursor_next(kolo_cursor_t *c)
{
    c->pc++;
}

/* Returns a loop counter as segments use it. */
static inline uint32_t kolo_cursor_i(const kolo_cursor_t *c)
{
    return c->nopen ? c->turn[c->nopen - 1] : 0;
}
static inline uint32_t kolo_cursor_j(const kolo_cursor_t *c)
{
    return c->nopen == 2 ? c->turn[0] : 0;
}

static inline bool kolo_insn_has_chunks(const kolo_insn_t *in)
{
    return in->op <= KOLO_OP_PUT;
}
/* Returns the segment that stands for the instruction's payload in lengths and traces. */
static inline const kolo_segment_t *kolo_insn_payload(const kolo_insn_t *in)
{
    bool from_src = in->op == KOLO_OP_SEND || in->op == KOLO_OP_RECV_REDUCE_SEND || in->op == KOLO_OP_EXPOSE ||
                    in->op == KOLO_OP_PUT;
    return from_src ? &in->src : &in->dst;
}

#endif
