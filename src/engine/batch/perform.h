/* SPDX-License-Identifier: Apache-2.0
 *
 * What is done with what all ranks have agreed on: batches are reduced, other responses moved, results put where
 * their owners want them.
 */
#ifndef KOLO_ENGINE_BATCH_PERFORM_H
#define KOLO_ENGINE_BATCH_PERFORM_H

#include "engine/engine.h"

/* Computes, in place, the Adasum over the set's ranks of a batch's tensors, which lie in `data` one behind the
 * other (adasum.c). scratch has so many bytes, aligned for doubles. */
size_t kolo_adasum_scratch(const kolo_set_t *s, size_t count, size_t elem, size_t ntensors);
kolo_status_t kolo_adasum(kolo_set_t *s, kolo_response_t *const *batch, size_t n, void *data, void *scratch);

/* Runs batches in order and completes their tensors (perform.c). Fails only if the engine cannot go on. */
kolo_status_t kolo_perform(kolo_set_t *s, const kolo_batches_t *batches);
/* Runs what is not reduced in batches (perform_move.c). The caller completes the entry. */
kolo_status_t kolo_perform_move(kolo_set_t *s, const kolo_response_t *response);
/* Runs one all_gather or reduce_scatter for all tensors of a batch that lies packed in a fusion buffer
 * (parts.h). */
kolo_status_t kolo_perform_packed(kolo_set_t *s, kolo_response_t *const *batch, size_t n, void *packed);
/* Sets dst to src times the factor: at once, or queued on the GPU that the operation runs on. */
kolo_status_t kolo_perform_scale(kolo_set_t *s, void *dst, const void *src, size_t count, kolo_type_t type,
                                 double factor);
/* kolo_output_memory() for who puts it there: memory of the CPU in any case, so that this rank takes part, and to
 * be given back by kolo_output_done(). */
typedef struct {
    void *data, *scratch;
    size_t bytes;
} kolo_output_t;
kolo_status_t kolo_output_find(kolo_set_t *s, kolo_entry_t *entry, const int64_t *shape, int ndims,
                               kolo_output_t *output);
/* Ends an output. Returns the operation's `status` unless that is KOLO_OK. */
kolo_status_t kolo_output_done(kolo_entry_t *entry, const kolo_output_t *output, kolo_status_t status);

/* Fails this rank's tensor, with KOLO_CHECK=deep, if it cannot write its output. */
void kolo_output_examine(kolo_entry_t *entry, void *memory, size_t bytes);
/* Fails this rank's tensor if its output lies over the input and not in the operation's in-place form; the
 * operation then writes elsewhere, so that this rank takes part. `in`: where the operation reads; NULL: nowhere
 * here. */
kolo_status_t kolo_output_apart(kolo_set_t *s, kolo_entry_t *entry, const void *in, size_t in_bytes, bool in_place,
                                kolo_output_t *output);

/* Keeps a batch whose operation has failed with the status and the words of this thread, until all ranks have said
 * what failed (failed.c). Returns KOLO_OK, or that status with those words if the engine cannot go on. */
kolo_status_t kolo_failed_keep(kolo_set_t *s, kolo_response_t *const *batch, size_t n, kolo_status_t status);

#endif
