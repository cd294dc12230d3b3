/* SPDX-License-Identifier: Apache-2.0
 *
 * From chunks to bytes. The pieces that a segment's chunks have in the current tile, taken one after another, are a
 * row of bytes; an instruction moves along that row slot by slot, and inside a slot fragment by fragment, where a
 * fragment lies in one piece. Both ends of a connection cut the row by the same rule: slots of piece_bytes, the
 * last one shorter, none for an empty row. All operands of an instruction have equal rows, so one position serves
 * all.
 */
#ifndef KOLO_EXEC_HOST_CURSOR_H
#define KOLO_EXEC_HOST_CURSOR_H

#include "exec/host/exec.h"

/* Returns the bytes in the current tile of chunk `k` of the instruction's operands. */
uint64_t kolo_row_length(const kolo_task_t *task, const kolo_lane_state_t *lane, const kolo_insn_t *in, uint32_t k);
/* Returns the first byte in the current tile of chunk `k` of a segment. */
char *kolo_row_address(const kolo_task_t *task, const kolo_lane_state_t *lane, const kolo_segment_t *s, uint32_t k);

/* Puts the lane at the start of the instruction's row; sets left. */
void kolo_row_begin(const kolo_task_t *task, kolo_lane_state_t *lane, const kolo_insn_t *in);
/* Returns the bytes of the next slot. */
static inline uint32_t kolo_row_slot(const kolo_task_t *task, const kolo_lane_state_t *lane)
{
    return lane->left < task->interp.piece_bytes ? (uint32_t)lane->left : task->interp.piece_bytes;
}
/* Next fragment of at most `most` bytes (not 0): where it lies in dst and src (NULL for a NONE segment). */
typedef struct {
    char *dst, *src;
    uint32_t bytes;
    uint32_t chunk; /* number in the segment */
} kolo_fragment_t;
kolo_fragment_t kolo_row_fragment(const kolo_task_t *task, kolo_lane_state_t *lane, const kolo_insn_t *in,
                                  uint32_t most);
static inline void kolo_row_advance(kolo_lane_state_t *lane, uint32_t bytes)
{
    lane->at += bytes;
    lane->left -= bytes;
}
/* Returns the memory of the next `bytes` bytes of a segment when they lie in one run, else NULL. Does not move. */
char *kolo_row_run(const kolo_task_t *task, kolo_lane_state_t *lane, const kolo_insn_t *in, const kolo_segment_t *s,
                   uint32_t bytes);

#endif
