/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations but all_reduce: all_gather, broadcast, all_to_all, reduce_scatter of one tensor, where it lies; and
 * all_gather and reduce_scatter of many that are packed. No rank has joined while they run (check.c), so each has
 * its entry.
 */
#include "engine/backends/backend.h"
#include "engine/batch/native.h"
#include "engine/batch/parts.h"
#include "engine/batch/perform.h"

#include <stdlib.h>
#include <string.h>

static size_t elements_from(const kolo_tensor_request_t *q, int dim)
{
    return (size_t)kolo_shape_elements(q->shape, q->ndims, dim, kolo_type_size(q->type));
}

/* Rows of each part -> elements and where they begin; returns the rows of all. */
static int64_t lay_out(const kolo_set_t *s, const int64_t *rows, size_t row, size_t *counts, size_t *displs)
{
    int64_t sum = 0;
    for (int r = 0; r < s->size; r++) {
        counts[r] = (size_t)rows[r] * row;
        displs[r] = (size_t)sum * row;
        sum += rows[r];
    }
    return sum;
}

static kolo_status_t note_parts(const kolo_set_t *s, kolo_entry_t *entry, const int64_t *rows)
{
    size_t bytes = (size_t)s->size * sizeof *rows;
    entry->part_rows = malloc(bytes);
    if (!entry->part_rows)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for tensor %s", entry->request.name.text);
    memcpy(entry->part_rows, rows, bytes);
    entry->parts = s->size;
    return KOLO_OK;
}

static kolo_need_t need_of(const kolo_set_t *s, const kolo_tensor_request_t *q, size_t elements)
{
    kolo_memory_t memory = s->engine->native ? KOLO_MEMORY_DEVICE : KOLO_MEMORY_HOST;
    return (kolo_need_t){q->work, q->type, q->op, memory, elements * kolo_type_size(q->type)};
}

/* Finds where whoever runs the operation can read this rank's input. */
static kolo_status_t find_input(kolo_set_t *s, kolo_entry_t *entry, const void **input)
{
    const kolo_tensor_request_t *q = &entry->request;
    *input = entry->input;
    if (!entry->use || s->engine->native) return KOLO_OK;
    return kolo_stage_in(s, entry, elements_from(q, 0) * kolo_type_size(q->type), input);
}

static kolo_status_t all_gather(kolo_set_t *s, const kolo_response_t *r, kolo_entry_t *entry)
{
    const kolo_tensor_request_t *q = &entry->request;
    size_t *counts = kolo_parts_table(s, 0), *displs = kolo_parts_table(s, 1);
    int64_t shape[KOLO_TENSOR_DIMS_MAX];
    kolo_output_t out;
    memcpy(shape, q->shape, sizeof shape);
    shape[0] = lay_out(s, r->rows, elements_from(q, 1), counts, displs);
    size_t rows = (size_t)shape[0];
    const void *in;
    KOLO_TRY(find_input(s, entry, &in));
    KOLO_TRY(note_parts(s, entry, r->rows));
    KOLO_TRY(kolo_output_find(s, entry, shape, q->ndims, &out));
    size_t elem = kolo_type_size(q->type), before = displs[s->rank] * elem;
    KOLO_TRY(kolo_output_apart(s, entry, in, counts[s->rank] * elem, (const char *)in == (char *)out.data + before,
                               &out));
    kolo_status_t status = kolo_backend_run(s, &(kolo_move_t){.stream = kolo_native_stream(s),
                                                              .need = need_of(s, q, elements_from(q, 1) * rows),
                                                              .in = in,
                                                              .out = out.data,
                                                              .counts = counts,
                                                              .displs = displs});
    return kolo_output_done(entry, &out, status);
}

static kolo_status_t broadcast(kolo_set_t *s, kolo_entry_t *entry)
{
    const kolo_tensor_request_t *q = &entry->request;
    bool root = q->root == s->rank;
    const void *in = NULL;
    kolo_output_t out;
    if (root) KOLO_TRY(find_input(s, entry, &in));
    KOLO_TRY(kolo_output_find(s, entry, q->shape, q->ndims, &out));
    if (root) KOLO_TRY(kolo_output_apart(s, entry, in, out.bytes, in == out.data, &out));
    size_t count = elements_from(q, 0);
    kolo_status_t status = kolo_backend_run(s, &(kolo_move_t){.stream = kolo_native_stream(s),
                                                              .need = need_of(s, q, count),
                                                              .in = in,
                                                              .out = out.data,
                                                              .count = count,
                                                              .root = q->root});
    return kolo_output_done(entry, &out, status);
}

static kolo_status_t all_to_all(kolo_set_t *s, const kolo_response_t *response, kolo_entry_t *entry)
{
    const kolo_tensor_request_t *q = &entry->request;
    size_t row = elements_from(q, 1);
    int64_t shape[KOLO_TENSOR_DIMS_MAX], *mine = s->engine->splits, *theirs = s->engine->splits + s->size;
    kolo_output_t out;
    for (int r = 0; r < s->size; r++) mine[r] = entry->splits ? entry->splits[r] : q->shape[0] / s->size;
    KOLO_TRY(kolo_all_to_all(mine, theirs, 1, KOLO_INT64, s->comm, NULL));
    for (int r = 0; r < s->size; r++)
        if (theirs[r] < 0 || theirs[r] > KOLO_TENSOR_BYTES_MAX / s->size)
            return kolo_fail(KOLO_ERR_PROTOCOL, "engine: rank %d sends %lld rows of tensor %s", r,
                             (long long)theirs[r], q->name.text);
    memcpy(shape, q->shape, sizeof shape);
    lay_out(s, mine, row, kolo_parts_table(s, 0), kolo_parts_table(s, 1));
    shape[0] = lay_out(s, theirs, row, kolo_parts_table(s, 2), kolo_parts_table(s, 3));
    if (kolo_shape_elements(shape, q->ndims, 0, kolo_type_size(q->type)) < 0)
        return kolo_fail(KOLO_ERR_PROTOCOL, "engine: the parts of tensor %s are too large", q->name.text);
    const void *in;
    KOLO_TRY(find_input(s, entry, &in));
    KOLO_TRY(note_parts(s, entry, theirs));
    KOLO_TRY(kolo_output_find(s, entry, shape, q->ndims, &out));
    KOLO_TRY(kolo_output_apart(s, entry, in, elements_from(q, 0) * kolo_type_size(q->type), false, &out));
    int64_t rows = 0; /* of all ranks */
    for (int r = 0; r < s->size; r++) rows += response->rows[r];
    kolo_status_t status = kolo_backend_run(s, &(kolo_move_t){.stream = kolo_native_stream(s),
                                                              .need = need_of(s, q, row * (size_t)rows),
                                                              .in = in,
                                                              .out = out.data,
                                                              .counts = kolo_parts_table(s, 0),
                                                              .displs = kolo_parts_table(s, 1),
                                                              .recv_counts = kolo_parts_table(s, 2),
                                                              .recv_displs = kolo_parts_table(s, 3)});
    return kolo_output_done(entry, &out, status);
}

static kolo_status_t reduce_scatter(kolo_set_t *s, kolo_entry_t *entry)
{
    const kolo_tensor_request_t *q = &entry->request;
    size_t row = elements_from(q, 1), total = elements_from(q, 0), *counts = kolo_parts_table(s, 0);
    int64_t rows = q->shape[0], shape[KOLO_TENSOR_DIMS_MAX];
    double factor = q->postscale;
    kolo_op_t op = kolo_set_reduction(s, q->op, &factor);
    const void *src;
    kolo_output_t out;
    KOLO_TRY(find_input(s, entry, &src));
    for (int r = 0; r < s->size; r++) counts[r] = (size_t)(rows / s->size + (r < rows % s->size)) * row;
    memcpy(shape, q->shape, sizeof shape);
    shape[0] = rows / s->size + (s->rank < rows % s->size);
    KOLO_TRY(kolo_output_find(s, entry, shape, q->ndims, &out));
    size_t elem = kolo_type_size(q->type), before = 0;
    for (int r = 0; r < s->rank; r++) before += counts[r] * elem;
    KOLO_TRY(kolo_output_apart(s, entry, src, total * elem, (char *)out.data == (const char *)src + before, &out));
    kolo_status_t status = KOLO_OK;
    if (q->prescale != 1.0 && total > 0) {
        void *scaled = NULL;
        size_t bytes = total * kolo_type_size(q->type);
        status = s->engine->native ? kolo_native_room(s, KOLO_ROOM_INPUT, bytes, &scaled)
                                   : kolo_fusion_room(s->engine, bytes, &scaled);
        if (status == KOLO_OK) status = kolo_perform_scale(s, scaled, src, total, q->type, q->prescale);
        src = scaled;
    }
    kolo_move_t move = {.stream = kolo_native_stream(s),
                        .need = need_of(s, q, total),
                        .in = src,
                        .out = out.data,
                        .counts = counts};
    move.need.op = op;
    if (status == KOLO_OK) status = kolo_backend_run(s, &move);
    if (status == KOLO_OK && factor != 1.0 && counts[s->rank] > 0)
        status = kolo_perform_scale(s, out.data, out.data, counts[s->rank], q->type, factor);
    return kolo_output_done(entry, &out, status);
}

kolo_status_t kolo_perform_packed(kolo_set_t *s, kolo_response_t *const *batch, size_t n, void *packed)
{
    const kolo_tensor_request_t *q = &batch[0]->request;
    bool gathers = q->work == KOLO_WORK_ALL_GATHER;
    for (size_t i = 0; i < n; i++) {
        if (!batch[i]->entry) return kolo_perform_move(s, batch[i]);
        if (gathers) KOLO_TRY(note_parts(s, batch[i]->entry, batch[i]->rows));
    }
    double factor = 1.0;
    kolo_layout_t l = kolo_parts_layout(s, batch, n);
    char *own = (char *)packed + l.own;
    kolo_move_t move = {.stream = kolo_native_stream(s),
                        .need = need_of(s, q, l.elements),
                        .in = gathers ? own : packed,
                        .out = gathers ? packed : own,
                        .counts = l.counts,
                        .displs = l.displs};
    if (!gathers) move.need.op = kolo_set_reduction(s, q->op, &factor);
    return kolo_backend_run(s, &move);
}

kolo_status_t kolo_perform_move(kolo_set_t *s, const kolo_response_t *response)
{
    kolo_entry_t *entry = response->entry;
    if (!entry)
        return kolo_fail(KOLO_ERR_INTERNAL,
                         "engine: rank %d has joined, but the coordinator asks it for its part of tensor %s",
                         s->rank, response->request.name.text);
    switch (response->request.work) {
    case KOLO_WORK_ALL_GATHER:
        return all_gather(s, response, entry);
    case KOLO_WORK_BROADCAST:
        return broadcast(s, entry);
    case KOLO_WORK_ALL_TO_ALL:
        return all_to_all(s, response, entry);
    case KOLO_WORK_REDUCE_SCATTER:
        return reduce_scatter(s, entry);
    default:
        return kolo_fail(KOLO_ERR_INTERNAL, "engine: nobody performs a %s",
                         kolo_tensor_request_work_name(response->request.work));
    }
}
