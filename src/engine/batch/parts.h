/* SPDX-License-Identifier: Apache-2.0
 *
 * How the tensors of a batch lie in a fusion buffer. What is all-reduced lies one tensor behind the other. What is
 * gathered or scattered has a part for each rank: rank 0's parts of all tensors, then rank 1's, and so on, so that
 * one all_gather or reduce_scatter of the buffer is that of each tensor in it. Behind these is room for this rank's
 * own parts once more: the input of the all_gather, the output of the reduce_scatter.
 *
 * In the host's buffer pieces touch. On a GPU (native.h) each begins at a multiple of 16 bytes, for the kernels
 * that move it, and the pieces of what is scattered have equal room, so that one reduce_scatter with equal parts
 * does.
 */
#ifndef KOLO_ENGINE_BATCH_PARTS_H
#define KOLO_ENGINE_BATCH_PARTS_H

#include "engine/engine.h"

/* Returns table i of the engine, of a number for each rank. */
static inline size_t *kolo_parts_table(const kolo_set_t *s, int i)
{
    return s->engine->counts + (size_t)i * (size_t)s->size;
}

typedef struct {
    size_t *counts,
        *displs;     /* elements: of each rank's part of the batch, and where it begins; until the next one */
    size_t elements; /* of all parts */
    size_t own;      /* where this rank's own parts begin, in bytes; 0: there are no parts */
    size_t bytes;    /* of all this */
} kolo_layout_t;
kolo_layout_t kolo_parts_layout(const kolo_set_t *s, kolo_response_t *const *batch, size_t n);

/* The pieces of one tensor: one, or one in each rank's part. */
typedef struct {
    int n;
    size_t row;          /* elements */
    const int64_t *rows; /* of each piece; NULL: */
    int64_t least;       /* this number of rows, */
    int longer;          /* and one more in this many pieces, the first ones */
    size_t align, room;  /* elements: the room of a piece is a multiple of `align`, and `room` at least */
} kolo_backend_pieces_t;

static inline size_t kolo_piece_elements(const kolo_backend_pieces_t *p, int i)
{
    return (size_t)(p->rows ? p->rows[i] : p->least + (i < p->longer)) * p->row;
}

/* Elements from the begin of a piece to where the next one may begin. */
static inline size_t kolo_piece_room(const kolo_backend_pieces_t *p, int i)
{
    return KOLO_ROUND_UP(KOLO_MAX(kolo_piece_elements(p, i), p->room), p->align);
}

/* Returns how this rank puts the tensor in; or, out, how it takes the result. */
kolo_backend_pieces_t kolo_pieces_of(const kolo_set_t *s, const kolo_response_t *response, bool out);
/* Returns where the first tensor's pieces lie, in bytes; the table is the engine's, until the next call. */
size_t *kolo_parts_places(const kolo_set_t *s, kolo_response_t *const *batch, size_t n, bool out);
/* Moves the places on by the pieces of a tensor. */
void kolo_parts_pass(size_t *places, const kolo_backend_pieces_t *p, size_t elem);
/* Finds the shape of this rank's result. */
void kolo_parts_result_shape(const kolo_set_t *s, const kolo_response_t *response, int64_t *shape);

#endif
