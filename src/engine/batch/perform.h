/* SPDX-License-Identifier: Apache-2.0
 *
 * What is done with what all ranks have agreed on: batches are reduced, other responses moved, results put where
 * their owners want them.
 */
#ifndef KOLO_ENGINE_BATCH_PERFORM_H
#define KOLO_ENGINE_BATCH_PERFORM_H

#include "engine/engine.h"

/* adasum.c: data holds the batch's tensors one behind the other and becomes their Adasum over the set's ranks.
 * scratch has so many bytes, aligned for doubles. */
size_t kolo_adasum_scratch(const kolo_set_t *s, size_t count, size_t elem, size_t ntensors);
kolo_status_t kolo_adasum(kolo_set_t *s, kolo_response_t *const *batch, size_t n, void *data, void *scratch);

/* perform.c: runs batches, in order, and completes their tensors. Fails only if the engine cannot go on. */
kolo_status_t kolo_perform(kolo_set_t *s, const kolo_batches_t *batches);
/* perform_move.c: what is not reduced in batches; the entry is completed by the caller. */
kolo_status_t kolo_perform_move(kolo_set_t *s, const kolo_response_t *response);
/* All tensors of a batch that lies packed in a fusion buffer (parts.h): one all_gather or reduce_scatter. */
kolo_status_t kolo_perform_packed(kolo_set_t *s, kolo_response_t *const *batch, size_t n, void *packed);
/* dst becomes src times the factor: at once, or queued on the GPU that the operation runs on. */
kolo_status_t kolo_scale_there(kolo_set_t *s, void *dst, const void *src, size_t count, kolo_type_t type,
                               double factor);
/* kolo_output_memory() for who puts it there: memory of the CPU in any case, so that this rank takes part, and to
 * be given back by kolo_output_done(). */
typedef struct {
    void *data, *scratch;
    size_t bytes;
} kolo_output_t;
kolo_status_t kolo_output_find(kolo_set_t *s, kolo_entry_t *entry, const int64_t *shape, int ndims,
                               kolo_output_t *output);
/* status: of the operation, which is returned unless it is KOLO_OK. */
kolo_status_t kolo_output_done(kolo_entry_t *entry, const kolo_output_t *output, kolo_status_t status);

/* With KOLO_CHECK=deep: fails this rank's tensor if it cannot write its output. */
void kolo_output_examine(kolo_entry_t *entry, void *memory, size_t bytes);
/* What lies over the input of the operation, and not in its in-place form, fails this rank's tensor; the operation
 * then writes elsewhere, so that this rank takes part. `in`: where the operation reads; NULL: nowhere here. */
kolo_status_t kolo_output_apart(kolo_set_t *s, kolo_entry_t *entry, const void *in, size_t in_bytes, bool in_place,
                                kolo_output_t *output);

/* failed.c: a batch whose operation has failed with the status and the words of this thread. KOLO_OK: its
 * tensors are kept until all ranks have said what failed; else the engine cannot go on, with that status and
 * those words. */
kolo_status_t kolo_failed_keep(kolo_set_t *s, kolo_response_t *const *batch, size_t n, kolo_status_t status);

#endif
