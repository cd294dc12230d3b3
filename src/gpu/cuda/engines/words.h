/* SPDX-License-Identifier: Apache-2.0
 *
 * The words by which ranks tell each other of copies without a kernel (copies.c), in host memory that all ranks of
 * a communicator share and have pinned, and what becomes of the streams that wait for them (words.c).
 */
#ifndef KOLO_GPU_CUDA_WORDS_H
#define KOLO_GPU_CUDA_WORDS_H

#include "gpu/cuda/cuda.h"

#include <stdatomic.h>

#define KOLO_CUDA_SLOTS  2u    /* stages of a pair */
#define KOLO_CUDA_LATELY 1024u /* steps that waits() can tell of; half of them captured */
#define KOLO_CUDA_FREE   (UINT32_C(1) << 31)
/* Bits from 16 on: what is in a stage; below: the step, and how many of its pieces are begun. */
#define KOLO_CUDA_FULL_BITS 15u

/* What `from` tells the owner of the line, whose streams wait for it. A rank's line with itself has in ready[0] the
 * step that it is in. */
typedef struct {
    _Alignas(64) _Atomic uint32_t ready[KOLO_CUDA_SLOTS];
    _Atomic uint32_t credit[KOLO_CUDA_SLOTS], also; /* also: more bits of the operation, with the first piece */
} kolo_cuda_line_t;

typedef struct {
    uint64_t number, word, puts, takes; /* peers by bit */
    uint32_t pieces;
} kolo_cuda_lately_t;

struct kolo_cuda_copies {
    kolo_cuda_line_t *lines; /* [owner][from] */
    size_t bytes;            /* of them */
    kolo_cu_ptr_t device;    /* where the GPU has them */
    uint64_t piece;
    kolo_cu_stream_t side; /* of takes */
    kolo_cu_event_t fork, join;
    kolo_cuda_lately_t lately[KOLO_CUDA_LATELY];
    uint32_t next[2]; /* of steps, and of captured ones */
    uint64_t sum, since_ns;
    _Atomic bool ended, cut; /* waits were ended by the host; what was under way has gone on without its data */
};

static inline kolo_cuda_line_t *kolo_cuda_line(const kolo_cuda_state_t *s, uint32_t owner, uint32_t from)
{
    return &s->copies->lines[(size_t)owner * (size_t)s->regions.nranks + from];
}
/* Returns what the low bits of a word are when piece `k` of a step is begun. */
static inline uint32_t kolo_cuda_begun(uint32_t step, uint32_t k)
{
    return (step & 0x3f) << 10 | ((k + 1) & 0x3ff);
}
/* Returns whether this rank's communicator has such copies at all. */
bool kolo_cuda_copies_wanted(const kolo_cuda_state_t *s, const kolo_regions_t *regions);
uint64_t kolo_cuda_copies_piece(int nranks);

#endif
