/* SPDX-License-Identifier: Apache-2.0
 *
 * Before the first step of a plan: how much state it needs, whether the sizes of elements, slots and tiles fit
 * together, how many tiles the call has, and where each lane begins.
 */
#include "exec/host/interp.h"

#include <inttypes.h>
#include <string.h>

size_t kolo_task_bounce_bytes(const kolo_plan_t *plan)
{
    for (uint32_t i = 0; i < plan->ninsns; i++)
        if (plan->insns[i].op == KOLO_OP_GET_REDUCE) return KOLO_BOUNCE_BYTES;
    return 0;
}

size_t kolo_task_plan_state_bytes(const kolo_plan_t *plan)
{
    return plan->nlanes * (sizeof(kolo_lane_state_t) + plan->nevents * sizeof(uint32_t)) +
           plan->nevents * sizeof(uint32_t);
}

static uint64_t longest_chunk(const kolo_task_t *task)
{
    const kolo_plan_t *p = task->interp.plan;
    uint64_t most = p->coll == KOLO_COLL_BARRIER ? 1 : 0;
    for (uint32_t i = 0; i < p->src_parts; i++) most = KOLO_MAX(most, task->interp.src_parts[i].count);
    for (uint32_t i = 0; i < p->dst_parts; i++) most = KOLO_MAX(most, task->interp.dst_parts[i].count);
    return kolo_part_count(most, p->nsubs, 0) * task->reducer->elem;
}

/* Does any part of SRC overlap any part of DST? */
static bool is_in_place(const kolo_task_t *task)
{
    const kolo_plan_t *p = task->interp.plan;
    for (uint32_t i = 0; i < p->src_parts; i++) {
        uintptr_t a = (uintptr_t)task->interp.src_parts[i].base,
                  a_end = a + task->interp.src_parts[i].count * task->reducer->elem;
        for (uint32_t k = 0; a && k < p->dst_parts; k++) {
            uintptr_t b = (uintptr_t)task->interp.dst_parts[k].base,
                      b_end = b + task->interp.dst_parts[k].count * task->reducer->elem;
            if (b && a < b_end && b < a_end) return true;
        }
    }
    return false;
}

static bool moves_slots(const kolo_insn_t *in)
{
    return in->op <= KOLO_OP_REDUCE_MANY;
}

/* Tells whether nothing of these plans waits in scratch or in slots for the end of a tile. */
static bool may_be_long(const kolo_plan_t *p)
{
    if (p->algo == KOLO_ALGO_P2P) return true;
    for (uint32_t i = 0; i < p->ninsns; i++)
        if (moves_slots(&p->insns[i])) return false;
    return p->algo == KOLO_ALGO_SINGLE_COPY;
}

kolo_status_t kolo_task_start_plan(kolo_task_t *task, void *state)
{
    const kolo_plan_t *p = task->interp.plan;
    size_t odd = task->reducer->elem - 1; /* a power of two, so what is no multiple has bits in it */
    bool too_long = task->interp.tile_bytes > (uint64_t)p->slices * task->interp.piece_bytes && !may_be_long(p);
    if (!task->reducer->elem || (task->reducer->elem & odd) || !task->interp.piece_bytes ||
        (task->interp.piece_bytes & odd) || !task->interp.tile_bytes || (task->interp.tile_bytes & odd) || too_long)
        return kolo_fail(KOLO_ERR_INTERNAL,
                         "rank %u: %s with elements of %zu bytes in slots of %u and tiles of %" PRIu64, p->rank,
                         kolo_coll_name(p->coll), task->reducer->elem, task->interp.piece_bytes,
                         task->interp.tile_bytes);
    memset(state, 0, kolo_task_plan_state_bytes(p));
    task->interp.bouncing = NULL;
    task->interp.src_stays = !task->reducing || !is_in_place(task);
    task->step = kolo_interp_step;
    task->way = &kolo_interp_way;
    task->interp.lanes = state;
    task->interp.events = (uint32_t *)(void *)(task->interp.lanes + p->nlanes);
    for (uint32_t k = 0; k < p->nlanes; k++) {
        task->interp.lanes[k].pc = p->lanes[k].first;
        task->interp.lanes[k].waits = task->interp.events + (size_t)p->nevents * (k + 1);
    }
    uint64_t longest = longest_chunk(task);
    task->interp.ntiles = 1;
    task->interp.idle = 0;
    task->interp.late = false;
    if (longest > task->interp.tile_bytes)
        task->interp.ntiles = (uint32_t)KOLO_DIV_UP(longest, task->interp.tile_bytes);
    task->interp.bounce =
        task->interp.scratch ? (char *)task->interp.scratch + (size_t)p->nscratch * task->interp.tile_bytes : NULL;
    return KOLO_OK;
}
