/* SPDX-License-Identifier: Apache-2.0
 *
 * Single tensors of a device, for operations that do not go through fusion buffers: their input is fetched into
 * host memory, the operation runs there, and its result is stored. The loop waits for the fetch, not for the store.
 */
#include "engine/batch/device.h"

#include <stdlib.h>

enum { INPUT, OUTPUT };

static kolo_status_t room(kolo_set_t *s, kolo_entry_t *entry, int which, size_t bytes, void **memory)
{
    kolo_use_t *use = entry->use;
    if (!entry->stage) {
        KOLO_TRY(kolo_flight_take(s->engine, &s->lane, 1, 1, &entry->stage));
        entry->stage->on = use;
        bool waited;
        KOLO_TRY(kolo_use_follow(use, entry, &waited));
    }
    if (posix_memalign(memory, 4096, KOLO_MAX(bytes, (size_t)1)))
        return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for tensor %s of device %d, %zu bytes",
                         entry->request.name.text, use->number, bytes);
    kolo_status_t status = kolo_use_pin(use, *memory, KOLO_MAX(bytes, (size_t)1));
    if (status == KOLO_OK)
        entry->stage->scratch[which] = *memory;
    else
        free(*memory);
    return status;
}

kolo_status_t kolo_stage_in(kolo_set_t *s, kolo_entry_t *entry, size_t bytes, const void **input)
{
    kolo_use_t *use = entry->use;
    uint64_t mark;
    void *memory;
    KOLO_TRY(room(s, entry, INPUT, bytes, &memory));
    if (bytes > 0) {
        KOLO_TRY(kolo_use_fetch(use, memory, entry->input, bytes));
        KOLO_TRY(kolo_use_mark(use, &mark));
        KOLO_TRY(kolo_use_wait(s->engine, use, mark, "fetching of a tensor"));
    }
    *input = memory;
    return KOLO_OK;
}

kolo_status_t kolo_stage_room(kolo_set_t *s, kolo_entry_t *entry, size_t bytes, void **output)
{
    return room(s, entry, OUTPUT, bytes, output);
}

kolo_status_t kolo_stage_out(kolo_entry_t *entry, void *output, size_t bytes)
{
    kolo_use_t *use = entry->use;
    kolo_flight_t *flight = entry->stage;
    if (bytes > 0) KOLO_TRY(kolo_use_store(use, output, flight->scratch[OUTPUT], bytes));
    KOLO_TRY(kolo_use_mark(use, &flight->marks[use->number]));
    flight->uses = UINT32_C(1) << use->number;
    flight->entries[flight->nentries++] = entry;
    return KOLO_OK;
}

void kolo_stage_drop(kolo_entry_t *entry)
{
    if (entry->stage) kolo_flight_free(entry->stage);
    entry->stage = NULL;
}
