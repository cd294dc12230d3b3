/* SPDX-License-Identifier: Apache-2.0
 *
 * What the interpreter and its handlers of references (references.c) share: one slot's worth of an instruction.
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
} kolo_slot_t;

void kolo_slot_trace(const kolo_slot_t *s, uint32_t chunk);

/* The next fragment of the slot, traced once per chunk and connection. */
static inline kolo_fragment_t kolo_slot_fragment(const kolo_slot_t *s, uint32_t done)
{
    kolo_fragment_t f = kolo_row_fragment(s->task, s->lane, s->in, s->bytes - done);
    if (KOLO_UNLIKELY(s->task->trace != NULL) && s->lane->at == 0) kolo_slot_trace(s, f.chunk);
    return f;
}

static inline bool kolo_slot_raw(const kolo_slot_t *s)
{
    return s->task->reducing && s->in->src.buf == KOLO_BUF_SRC;
}

static inline bool kolo_slot_final(const kolo_slot_t *s)
{
    return s->in->flags & KOLO_FLAG_FINAL;
}

static inline bool kolo_insn_is_reference(const kolo_insn_t *in)
{
    return in->op >= KOLO_OP_EXPOSE && in->op <= KOLO_OP_PUT;
}

/* Handlers (references.c): everything the slot needs is there. get_put: KOLO_IN_PROGRESS when there is more to
 * copy; it comes again, as other lanes do between. */
kolo_status_t kolo_slot_expose(const kolo_slot_t *s);
kolo_status_t kolo_slot_get_put(const kolo_slot_t *s);

#endif
