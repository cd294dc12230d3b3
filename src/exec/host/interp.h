/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the interpreter share. interp.c runs the lanes; moves.c and references.c handle one slot of an
 * instruction; plan_start.c makes a task ready for its first step.
 */
#ifndef KOLO_EXEC_HOST_INTERP_H
#define KOLO_EXEC_HOST_INTERP_H

#include "exec/host/cursor.h"
#include "exec/host/task.h"

typedef struct {
    kolo_task_t *task;
    kolo_lane_state_t *lane;
    const kolo_insn_t *in;
    kolo_tx_t *tx;
    kolo_rx_t *rx;
    uint16_t tx_index, rx_index;
    uint32_t bytes;
} kolo_interp_slot_t;

/* Handlers, one for each kind of instruction that moves data: everything the slot needs is there. KOLO_IN_PROGRESS:
 * there is more to copy; it is called again, after the other lanes have had a turn. */
typedef kolo_status_t (*kolo_slot_handler_t)(const kolo_interp_slot_t *s);
extern const kolo_slot_handler_t kolo_slot_handlers[KOLO_OP_COUNT]; /* moves.c */
kolo_status_t kolo_slot_expose(const kolo_interp_slot_t *s);        /* references.c */
kolo_status_t kolo_slot_get_put(const kolo_interp_slot_t *s);

/* Takes the step of a task that has a plan (kolo_task_t.step); below: what such a task says of itself. */
kolo_status_t kolo_interp_step(kolo_task_t *task, bool *moved);
extern const kolo_task_way_t kolo_interp_way;

/* Records the steps of this fragment on all its connections (moves.c). */
void kolo_slot_trace(const kolo_interp_slot_t *s, uint32_t chunk);

/* Returns the next fragment of the slot, traced once per chunk and connection. */
static inline kolo_fragment_t kolo_slot_fragment(const kolo_interp_slot_t *s, uint32_t done)
{
    kolo_fragment_t f = kolo_row_fragment(s->task, s->lane, s->in, s->bytes - done);
    if (KOLO_UNLIKELY(s->task->trace != NULL) && s->lane->at == 0) kolo_slot_trace(s, f.chunk);
    return f;
}

static inline bool kolo_slot_raw(const kolo_interp_slot_t *s)
{
    return s->task->reducing && s->in->src.buf == KOLO_BUF_SRC;
}

static inline bool kolo_slot_final(const kolo_interp_slot_t *s)
{
    return s->in->flags & KOLO_FLAG_FINAL;
}

static inline bool kolo_insn_is_reference(const kolo_insn_t *in)
{
    return in->op >= KOLO_OP_EXPOSE && in->op <= KOLO_OP_PUT;
}

#endif
