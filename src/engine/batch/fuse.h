/* SPDX-License-Identifier: Apache-2.0
 *
 * How responses become batches (fuse.c), and what is done to values on the way (values.c).
 */
#ifndef KOLO_ENGINE_BATCH_FUSE_H
#define KOLO_ENGINE_BATCH_FUSE_H

#include "engine/request.h"

/* ---- fuse.c ---- */

typedef struct {
    int64_t threshold;                  /* bytes of a batch */
    int64_t tensor_max, gpu_tensor_max; /* bytes of a tensor in one of several, in host memory and on GPUs */
    int nranks;                         /* of the set */
    bool groups_apart;                  /* no batch has tensors of two groups, or of a group and of none */
} kolo_fuse_rules_t;
typedef struct {
    kolo_response_t **responses; /* in the order of their batches */
    size_t *ends;                /* of each batch, as an index into responses */
    size_t nbatches, room;
} kolo_batches_t;
void kolo_fusion_batches_fini(kolo_batches_t *batches);
extern int64_t kolo_engine_gpu_tensor_max; /* parameter */
/* Puts `count` responses into batches; the same on all ranks, for it looks only at what all have agreed on. */
kolo_status_t kolo_fusion_batches(const kolo_fuse_rules_t *rules, kolo_response_t *const *responses, size_t count,
                                  kolo_batches_t *batches);

/* ---- values.c ---- */

/* Sets dst[i] = src[i] * factor; floats by the type's rules, integers in double, truncated and kept in range. */
void kolo_values_scale(void *dst, const void *src, size_t count, kolo_type_t type, double factor);
/* Fills dst with what changes nothing under op. */
void kolo_values_fill_identity(void *dst, size_t count, kolo_type_t type, kolo_op_t op);

#endif
