/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a list of requests or of responses: refused, or of the kind that an encoder writes. Requests are
 * merged and sent on, and then taken again.
 */
#include "engine/controller/tree.h"

#include <stdlib.h>

#define RANKS 5

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void see(const kolo_tensor_request_t *q)
{
    if (q->root < 0 || q->root >= RANKS || q->name.length == 0 || q->name.length > KOLO_TENSOR_NAME_MAX ||
        q->ndims > KOLO_TENSOR_DIMS_MAX || kolo_shape_elements(q->shape, q->ndims, 0, kolo_type_size(q->type)) < 0)
        abort();
}

static const kolo_tree_place_t place = {1, 4, 0, 2};

static kolo_status_t see_shared(void *arg, const kolo_tensor_request_t *q, const kolo_ranks_t *ranks)
{
    int end = place.first, total = 0;
    see(q);
    if (ranks->count < 1) abort();
    for (int i = 0; i < ranks->count; i++) {
        kolo_tensor_request_t of = *q;
        if (ranks->runs[i].first < end || ranks->runs[i].end <= ranks->runs[i].first) abort();
        if (kolo_tensor_request_rows(q) > 0) of.shape[0] = ranks->runs[i].rows;
        see(&of);
        end = ranks->runs[i].end;
        total += end - ranks->runs[i].first;
    }
    if (end > place.end || total != ranks->total) abort();
    return kolo_merge_add(arg, q, ranks);
}

static void take_shared(const uint8_t *data, size_t size)
{
    kolo_merge_t first = {NULL, NULL, 0, NULL, 0}, again = {NULL, NULL, 0, NULL, 0};
    kolo_bytes_t bytes = {NULL, 0, 0};
    if (kolo_requests_decode(data, size, &place, RANKS, see_shared, &first) == KOLO_OK && first.count > 0) {
        if (kolo_merge_encode(&first, &place, &bytes) != KOLO_OK ||
            kolo_requests_decode(bytes.bytes, bytes.length, &place, RANKS, see_shared, &again) != KOLO_OK ||
            again.count != first.count)
            abort();
    }
    free(bytes.bytes);
    kolo_merge_fini(&first);
    kolo_merge_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kolo_responses_t list;
    int njoined = 0;
    kolo_responses_init(&list);
    if (size == 0) return 0;
    if (data[0] & 3) {
        take_shared(data + 1, size - 1);
        return 0;
    }
    if (kolo_responses_decode(data + 1, size - 1, RANKS, &list, &njoined) == KOLO_OK) {
        for (const kolo_response_t *r = list.first; r; r = r->next) see(&r->request);
        if (njoined < 0 || njoined > RANKS) abort();
    }
    kolo_responses_free(&list);
    return 0;
}
