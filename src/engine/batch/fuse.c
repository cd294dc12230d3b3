/* SPDX-License-Identifier: Apache-2.0
 *
 * Fusion: which of the tensors that are ready go into one operation. A batch takes the first that is left and looks
 * ahead for more of its kind while what it takes and what it passes over stays under the threshold, so that a
 * single tensor of another type does not cut a batch short and nothing waits behind much. Joins and barriers are
 * not passed. Scales need not be equal: they are applied tensor by tensor. all_reduce, all_gather and
 * reduce_scatter are fused, each with its own kind.
 */
#include "engine/engine.h"

#include <stdlib.h>

void kolo_fusion_batches_fini(kolo_batches_t *batches)
{
    free(batches->responses);
    free(batches->ends);
    *batches = (kolo_batches_t){NULL, NULL, 0, 0};
}

/* Returns the bytes, the same on all ranks: where each has rows of its own, those of all together. */
static int64_t bytes_of(const kolo_fuse_rules_t *rules, const kolo_response_t *r)
{
    size_t elem = kolo_type_size(r->request.type);
    int64_t rows = r->rows ? 0 : 1;
    if (r->status != KOLO_OK || r->request.work >= KOLO_WORK_JOIN) return 0;
    for (int i = 0; r->rows && i < rules->nranks; i++) rows += r->rows[i];
    return kolo_shape_elements(r->request.shape, r->request.ndims, r->rows ? 1 : 0, elem) * (int64_t)elem * rows;
}

static bool may_fuse(const kolo_fuse_rules_t *rules, const kolo_response_t *r, int64_t bytes)
{
    kolo_work_t work = r->request.work;
    bool fused = work == KOLO_WORK_ALL_REDUCE || work == KOLO_WORK_ALL_GATHER || work == KOLO_WORK_REDUCE_SCATTER;
    int64_t most = KOLO_MIN(r->device ? rules->gpu_tensor_max : rules->tensor_max, rules->threshold);
    return r->status == KOLO_OK && fused && bytes <= most;
}

/* Tells whether both may be in one operation. Scales and shapes are each tensor's own. */
static bool is_alike(const kolo_fuse_rules_t *rules, const kolo_response_t *a, const kolo_response_t *b)
{
    const kolo_tensor_request_t *x = &a->request, *y = &b->request;
    if (rules->groups_apart && x->group != y->group) return false;
    return x->work == y->work && x->type == y->type && x->op == y->op && a->device == b->device;
}

static bool is_wall(const kolo_response_t *r)
{
    return r->request.work >= KOLO_WORK_JOIN;
}

static kolo_status_t room_for(kolo_batches_t *b, size_t count)
{
    if (count <= b->room) return KOLO_OK;
    kolo_response_t **responses = realloc(b->responses, count * sizeof(kolo_response_t *));
    if (responses) b->responses = responses;
    size_t *ends = realloc(b->ends, count * sizeof *ends);
    if (ends) b->ends = ends;
    if (!responses || !ends) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %zu batches", count);
    b->room = count;
    return KOLO_OK;
}

/* Takes a batch out of left[0..n), which is in order, and returns how many stay, still in order. */
static size_t take_batch(const kolo_fuse_rules_t *rules, kolo_response_t **left, size_t n, kolo_batches_t *b,
                         size_t *at)
{
    const kolo_response_t *first = left[0];
    int64_t bytes = bytes_of(rules, first), skipped = 0;
    bool open = may_fuse(rules, first, bytes);
    size_t kept = 0;
    b->responses[(*at)++] = left[0];
    for (size_t i = 1; i < n; i++) {
        kolo_response_t *r = left[i];
        int64_t more = open ? bytes_of(rules, r) : 0;
        if (open && is_wall(r)) open = false;
        if (open && may_fuse(rules, r, more) && is_alike(rules, r, first) && bytes + more <= rules->threshold) {
            bytes += more;
            b->responses[(*at)++] = r;
            continue;
        }
        left[kept++] = r;
        skipped += more;
        if (bytes + skipped > rules->threshold) open = false;
    }
    b->ends[b->nbatches++] = *at;
    return kept;
}

kolo_status_t kolo_fusion_batches(const kolo_fuse_rules_t *rules, kolo_response_t *const *responses, size_t count,
                                  kolo_batches_t *batches)
{
    size_t at = 0;
    batches->nbatches = 0;
    KOLO_TRY(room_for(batches, count));
    kolo_response_t **left = malloc((count + 1) * sizeof(kolo_response_t *));
    if (!left) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %zu responses", count);
    for (size_t i = 0; i < count; i++) left[i] = responses[i];
    for (size_t n = count; n > 0;) n = take_batch(rules, left, n, batches, &at);
    free(left);
    return KOLO_OK;
}
