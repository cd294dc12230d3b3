/* SPDX-License-Identifier: Apache-2.0
 *
 * Addresses and lengths of chunks in a tile (cursor.h).
 */
#include "exec/host/cursor.h"

/* Does as kolo_segment_chunk(), without the division where there is nothing to wrap. */
static inline uint32_t chunk_of(const kolo_segment_t *s, const kolo_lane_state_t *lane, uint32_t k)
{
    int64_t c = (int64_t)s->base + (int64_t)s->stride[0] * lane->i + (int64_t)s->stride[1] * lane->j + k;
    if (KOLO_LIKELY(!s->mod || (c >= 0 && c < (int64_t)s->mod))) return (uint32_t)c;
    return kolo_segment_chunk(s, lane->i, lane->j, k);
}

static inline uint64_t chunk_bytes(const kolo_task_t *task, const kolo_part_t *parts, uint32_t chunk)
{
    uint32_t nsubs = task->interp.plan->nsubs;
    if (KOLO_LIKELY(nsubs == 1)) return parts[chunk].count * task->reducer->elem;
    return kolo_part_count(parts[chunk / nsubs].count, nsubs, chunk % nsubs) * task->reducer->elem;
}

/* Returns the length of a chunk of the grid, which is that of the larger buffer. */
static uint64_t grid_bytes(const kolo_task_t *task, uint32_t chunk)
{
    const kolo_plan_t *p = task->interp.plan;
    if (p->coll == KOLO_COLL_BARRIER) return task->reducer->elem;
    return chunk_bytes(task, p->dst_parts == p->nparts ? task->interp.dst_parts : task->interp.src_parts, chunk);
}

uint64_t kolo_row_length(const kolo_task_t *task, const kolo_lane_state_t *lane, const kolo_insn_t *in, uint32_t k)
{
    const kolo_segment_t *d = &in->dst, *s = &in->src;
    uint64_t bytes, from = lane->tile * task->interp.tile_bytes;
    if (d->buf == KOLO_BUF_DST || d->buf == KOLO_BUF_SRC) {
        bytes = chunk_bytes(task, d->buf == KOLO_BUF_DST ? task->interp.dst_parts : task->interp.src_parts,
                            chunk_of(d, lane, k));
    } else if (s->buf == KOLO_BUF_DST || s->buf == KOLO_BUF_SRC) {
        bytes = chunk_bytes(task, s->buf == KOLO_BUF_DST ? task->interp.dst_parts : task->interp.src_parts,
                            chunk_of(s, lane, k));
    } else {
        const kolo_segment_t *shaped = d->n ? d : s;
        bytes = grid_bytes(task, kolo_segment_shape(shaped, lane->i, lane->j, k,
                                                    task->interp.plan->nparts * task->interp.plan->nsubs));
    }
    if (bytes <= from) return 0;
    return KOLO_MIN(bytes - from, task->interp.tile_bytes);
}

char *kolo_row_address(const kolo_task_t *task, const kolo_lane_state_t *lane, const kolo_segment_t *s, uint32_t k)
{
    if (s->buf == KOLO_BUF_NONE) return NULL;
    uint32_t c = chunk_of(s, lane, k), nsubs = task->interp.plan->nsubs;
    if (s->buf == KOLO_BUF_SCRATCH) return (char *)task->interp.scratch + c * task->interp.tile_bytes;
    const kolo_part_t *parts = s->buf == KOLO_BUF_SRC ? task->interp.src_parts : task->interp.dst_parts;
    uint64_t from = lane->tile * task->interp.tile_bytes;
    if (KOLO_LIKELY(nsubs == 1)) return (char *)parts[c].base + from;
    const kolo_part_t *part = &parts[c / nsubs];
    return (char *)part->base + kolo_part_offset(part->count, nsubs, c % nsubs) * task->reducer->elem + from;
}

void kolo_row_begin(const kolo_task_t *task, kolo_lane_state_t *lane, const kolo_insn_t *in)
{
    uint32_t n = KOLO_MAX(in->dst.n, in->src.n);
    lane->i = lane->depth ? lane->loop_i[lane->depth - 1] : 0;
    lane->j = lane->depth == 2 ? lane->loop_i[0] : 0;
    lane->chunk = lane->list_at = 0;
    lane->at = lane->left = 0;
    for (uint32_t k = 0; k < n; k++) lane->left += kolo_row_length(task, lane, in, k);
}

kolo_fragment_t kolo_row_fragment(const kolo_task_t *task, kolo_lane_state_t *lane, const kolo_insn_t *in,
                                  uint32_t most)
{
    uint64_t length;
    while ((length = kolo_row_length(task, lane, in, lane->chunk)) <= lane->at) { /* done, or empty */
        lane->chunk++;
        lane->at = 0;
    }
    kolo_fragment_t f = {.dst = kolo_row_address(task, lane, &in->dst, lane->chunk),
                         .src = kolo_row_address(task, lane, &in->src, lane->chunk),
                         .bytes = (uint32_t)KOLO_MIN(length - lane->at, (uint64_t)most),
                         .chunk = lane->chunk};
    if (f.dst) f.dst += lane->at;
    if (f.src) f.src += lane->at;
    return f;
}

char *kolo_row_run(const kolo_task_t *task, kolo_lane_state_t *lane, const kolo_insn_t *in, const kolo_segment_t *s,
                   uint32_t bytes)
{
    kolo_lane_state_t walk = *lane;
    char *first = NULL, *next = NULL;
    while (bytes) {
        kolo_fragment_t f = kolo_row_fragment(task, &walk, in, bytes);
        char *p = s == &in->dst ? f.dst : f.src;
        if (!p || (first && p != next)) return NULL;
        if (!first) first = p;
        next = p + f.bytes;
        bytes -= f.bytes;
        kolo_row_advance(&walk, f.bytes);
    }
    return first;
}
