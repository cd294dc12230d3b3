/* SPDX-License-Identifier: Apache-2.0
 *
 * Entries: the tensors of this rank that are outstanding, where their results go, and how they fail.
 */
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kolo_status_t kolo_entry_new(const char *name, uint32_t length, const int64_t *splits, int nsplits,
                             kolo_entry_t **entry)
{
    size_t table = splits ? (size_t)nsplits * sizeof *splits : 0;
    kolo_entry_t *e = malloc(sizeof *e + table + length + 1);
    if (!e) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for tensor %s", name);
    memset(e, 0, sizeof *e);
    char *text = (char *)(e + 1) + table;
    memcpy(text, name, length);
    text[length] = '\0';
    if (splits) {
        e->splits = (int64_t *)(e + 1);
        memcpy(e->splits, splits, table);
    }
    kolo_name_init(&e->request.name, text, length);
    e->request.prescale = e->request.postscale = 1.0;
    e->handle = -1;
    e->last_joined = -1;
    *entry = e;
    return KOLO_OK;
}

void kolo_entry_free(kolo_entry_t *entry)
{
    if (!entry) return;
    free(entry->text);
    free(entry->part_rows);
    free(entry);
}

static bool refuses(kolo_tensor_request_t *q, kolo_refuses_t what, const void *memory, size_t bytes)
{
    kolo_accessed_t found;
    if (!memory || bytes == 0) return false;
    kolo_mem_access_find(memory, bytes, what == KOLO_REFUSES_OUTPUT, &found);
    if (found.access == KOLO_ACCESS_FULL) return false;
    q->refusal = (kolo_refusal_t){what, found.access, found.at};
    return true;
}

void kolo_entry_examine(kolo_entry_t *entry, int rank)
{
    kolo_tensor_request_t *q = &entry->request;
    size_t bytes = kolo_output_bytes(entry, q->shape, q->ndims);
    bool reads = q->work != KOLO_WORK_BROADCAST || q->root == rank;
    bool sized = q->work == KOLO_WORK_ALL_REDUCE || q->work == KOLO_WORK_BROADCAST;
    if (entry->use || (reads && refuses(q, KOLO_REFUSES_INPUT, entry->input, bytes)) || !sized) return;
    refuses(q, KOLO_REFUSES_OUTPUT, entry->output, bytes);
}

void kolo_entry_fail(kolo_entry_t *entry, kolo_status_t status, const char *text)
{
    if (entry->status != KOLO_OK) return;
    entry->status = status;
    entry->text = strdup(text); /* without memory the status has to do */
}

size_t kolo_output_bytes(const kolo_entry_t *entry, const int64_t *shape, int ndims)
{
    size_t elem = kolo_type_size(entry->request.type);
    return (size_t)kolo_shape_elements(shape, ndims, 0, elem) * elem;
}

void *kolo_output_memory(kolo_entry_t *entry, const int64_t *shape, int ndims)
{
    size_t bytes = kolo_output_bytes(entry, shape, ndims);
    char text[KOLO_TENSOR_NAME_MAX + 100];
    entry->out_ndims = ndims;
    memcpy(entry->out_shape, shape, (size_t)ndims * sizeof *shape);
    if (!entry->output && entry->how.allocate) {
        kolo_queue_calls(entry->lane->queue, true);
        entry->output = entry->how.allocate(entry->how.arg, entry->index, bytes, ndims, shape);
        kolo_queue_calls(entry->lane->queue, false);
    }
    if (entry->output || bytes == 0) return entry->output;
    snprintf(text, sizeof text, "tensor %s: its allocate function gave no memory for %zu bytes",
             entry->request.name.text, bytes);
    kolo_entry_fail(entry, KOLO_ERR_NO_MEMORY, text);
    return NULL;
}
