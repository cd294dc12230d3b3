/* SPDX-License-Identifier: Apache-2.0
 *
 * See parts.h.
 */
#include "engine/batch/parts.h"

#include <string.h>

#define OWN_ALIGN    ((size_t)64)
#define NATIVE_ALIGN ((size_t)16) /* bytes; of each piece on a GPU */

static size_t align_of(const kolo_set_t *s, const kolo_tensor_request_t *q)
{
    return s->engine->native ? NATIVE_ALIGN / kolo_type_size(q->type) : 1;
}

/* Lists one piece in each rank's part, whoever's buffer it is. */
static kolo_backend_pieces_t pieces_of_all(const kolo_set_t *s, const kolo_response_t *response)
{
    const kolo_tensor_request_t *q = &response->request;
    kolo_backend_pieces_t p = {.n = s->size, .rows = response->rows, .align = align_of(s, q)};
    p.row = (size_t)kolo_shape_elements(q->shape, q->ndims, 1, kolo_type_size(q->type));
    p.least = q->shape[0] / s->size;
    p.longer = (int)(q->shape[0] % s->size);
    if (s->engine->native && !p.rows) p.room = kolo_piece_elements(&p, 0);
    return p;
}

kolo_backend_pieces_t kolo_pieces_of(const kolo_set_t *s, const kolo_response_t *response, bool out)
{
    const kolo_tensor_request_t *q = &response->request;
    kolo_backend_pieces_t one = {.n = 1, .least = 1, .align = align_of(s, q)};
    if (q->work == KOLO_WORK_ALL_REDUCE) {
        one.row = (size_t)kolo_shape_elements(q->shape, q->ndims, 0, kolo_type_size(q->type));
        return one;
    }
    kolo_backend_pieces_t all = pieces_of_all(s, response);
    if (out == (q->work == KOLO_WORK_ALL_GATHER)) return all;
    one.row = kolo_piece_elements(&all, s->rank);
    one.room = all.room;
    return one;
}

static void add(size_t *sums, const kolo_backend_pieces_t *p, size_t unit)
{
    for (int i = 0; i < p->n; i++) sums[i] += kolo_piece_room(p, i) * unit;
}

kolo_layout_t kolo_parts_layout(const kolo_set_t *s, kolo_response_t *const *batch, size_t n)
{
    const kolo_tensor_request_t *q = &batch[0]->request;
    size_t elem = kolo_type_size(q->type);
    bool parts = q->work != KOLO_WORK_ALL_REDUCE;
    kolo_layout_t l = {.counts = kolo_parts_table(s, 0), .displs = kolo_parts_table(s, 1)};
    int nparts = parts ? s->size : 1;
    memset(l.counts, 0, (size_t)nparts * sizeof *l.counts);
    for (size_t i = 0; i < n; i++) {
        kolo_backend_pieces_t p = parts ? pieces_of_all(s, batch[i]) : kolo_pieces_of(s, batch[i], false);
        add(l.counts, &p, 1);
    }
    for (int i = 0; i < nparts; i++) {
        l.displs[i] = l.elements;
        l.elements += l.counts[i];
    }
    l.bytes = l.elements * elem;
    if (!parts) return l;
    l.own = KOLO_ROUND_UP(KOLO_MAX(l.bytes, (size_t)1), OWN_ALIGN);
    l.bytes = l.own + l.counts[s->rank] * elem;
    return l;
}

size_t *kolo_parts_places(const kolo_set_t *s, kolo_response_t *const *batch, size_t n, bool out)
{
    const kolo_tensor_request_t *q = &batch[0]->request;
    size_t *places = kolo_parts_table(s, 2), elem = kolo_type_size(q->type);
    places[0] = 0;
    if (q->work == KOLO_WORK_ALL_REDUCE) return places;
    kolo_layout_t l = kolo_parts_layout(s, batch, n);
    for (int i = 0; i < s->size; i++) places[i] = l.displs[i] * elem;
    if (out != (q->work == KOLO_WORK_ALL_GATHER)) places[0] = l.own;
    return places;
}

void kolo_parts_pass(size_t *places, const kolo_backend_pieces_t *p, size_t elem)
{
    add(places, p, elem);
}

void kolo_parts_result_shape(const kolo_set_t *s, const kolo_response_t *response, int64_t *shape)
{
    const kolo_tensor_request_t *q = &response->request;
    memcpy(shape, q->shape, sizeof q->shape);
    if (q->work == KOLO_WORK_REDUCE_SCATTER) shape[0] = q->shape[0] / s->size + (s->rank < q->shape[0] % s->size);
    if (q->work != KOLO_WORK_ALL_GATHER) return;
    shape[0] = 0;
    for (int i = 0; i < s->size; i++) shape[0] += response->rows[i];
}
