/* SPDX-License-Identifier: Apache-2.0
 *
 * What the timeline hears of GPUs: the loop only queues work there, so it notes what there will be to say; when the
 * GPU has come to the end, the finisher asks it for the times, and the loop puts the records, as it alone may.
 */
#include "engine/timeline/timeline.h"

#include <stdlib.h>
#include <string.h>

kolo_late_t *kolo_late_new(kolo_set_t *s, kolo_response_t *const *batch, size_t count)
{
    const kolo_timeline_t *t = s->engine->timeline;
    kolo_late_t *late = calloc(1, sizeof *late + count * sizeof late->tensors[0]);
    for (size_t i = 0; late && i < count; i++) {
        const kolo_entry_t *entry = batch[i]->entry;
        if (!entry) continue;
        const kolo_tensor_request_t *q = &entry->request;
        kolo_traced_t *traced = kolo_trace_find(t, entry);
        if (!traced) continue;
        kolo_late_tensor_t *at = &late->tensors[late->count++];
        *at = (kolo_late_tensor_t){
            .tensor = traced, .type = q->type, .work = kolo_trace_work(q), .ends = entry->late, .ndims = q->ndims};
        memcpy(at->shape, q->shape, (size_t)q->ndims * sizeof *q->shape);
    }
    if (late) late->round = t->round;
    if (late && late->count > 0) return late;
    free(late);
    return NULL;
}

void kolo_late_free(kolo_late_t *late)
{
    free(late);
}

void kolo_late_ended(kolo_late_t *late, kolo_status_t status)
{
    for (size_t i = 0; i < late->count; i++) late->tensors[i].status = status;
}

void kolo_late_put(struct kolo_tensor_engine *e, const kolo_late_t *late)
{
    kolo_timeline_t *t = e->timeline;
    uint64_t end = late->nsteps > 0 ? late->ns[late->nsteps - 1] : kolo_now_ns();
    if (!t || t->round != late->round) return; /* its rows are gone */
    for (size_t i = 0; i < late->count; i++) {
        const kolo_late_tensor_t *at = &late->tensors[i];
        for (int k = 1; k < late->nsteps; k++)
            kolo_trace_put(t, &(kolo_trace_record_t){late->ns[k - 1], late->ns[k], at->tensor, 0, KOLO_TRACE_DO,
                                                     (uint16_t)late->what[k]});
        if (!at->ends) continue;
        kolo_trace_record_t record = {end,
                                      (uint64_t)at->type << 32 | (uint64_t)at->ndims,
                                      at->tensor,
                                      (uint32_t)at->status,
                                      KOLO_TRACE_DONE,
                                      at->work};
        kolo_trace_put_done(t, &record, at->shape, at->ndims);
    }
    kolo_trace_cycle_over(e);
}
