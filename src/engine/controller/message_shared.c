/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests with the ranks that send them: of one rank, or of all that a rank of the tree speaks for. As in
 * message.c, all bounds are checked before anything is done: length, memory, every field, and that a rank speaks
 * for itself and those below it only.
 */
#include "engine/controller/message.h"
#include "engine/controller/tree.h"

#include <stdlib.h>
#include <string.h>

#ifdef KOLO_HAVE_PROTOBUF

/* ---- out ---- */

static bool is_everybody(const kolo_ranks_t *ranks, const kolo_tree_place_t *place)
{
    return ranks->count == 1 && ranks->runs[0].first == place->first && ranks->runs[0].end == place->end;
}

/* Writes the ranks. numbers: two for each run; rows: one. */
static void put_ranks(const kolo_ranks_t *ranks, const kolo_tree_place_t *place, KoloWire__Request *out,
                      uint32_t *numbers, int64_t *rows)
{
    if (is_everybody(ranks, place)) return;
    out->ranks = numbers;
    out->n_ranks = 2 * (size_t)ranks->count;
    bool differ = false;
    for (int i = 0, end = place->first; i < ranks->count; end = ranks->runs[i++].end) {
        *numbers++ = (uint32_t)(ranks->runs[i].first - end);
        *numbers++ = (uint32_t)(ranks->runs[i].end - ranks->runs[i].first);
        rows[i] = ranks->runs[i].rows;
        differ = differ || rows[i] != rows[0];
    }
    out->rows = rows;
    out->n_rows = differ ? (size_t)ranks->count : 0;
}

typedef struct {
    KoloWire__Request *requests, **table;
    uint32_t *numbers;
    int64_t *rows;
} draft_t;

static void free_draft(draft_t *d)
{
    free(d->table);
    free(d->requests);
    free(d->numbers);
    free(d->rows);
}

static kolo_status_t fill_draft(const kolo_merge_t *m, const kolo_tree_place_t *place, draft_t *d)
{
    size_t runs = 0, i = 0, at = 0;
    for (const kolo_shared_t *s = m->first; s; s = s->behind) runs += (size_t)s->ranks.count;
    d->table = malloc(m->count * sizeof(KoloWire__Request *));
    d->requests = malloc(m->count * sizeof *d->requests);
    d->numbers = malloc(2 * runs * sizeof *d->numbers);
    d->rows = malloc(runs * sizeof *d->rows);
    if (!d->table || !d->requests || !d->numbers || !d->rows)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %zu requests", m->count);
    for (const kolo_shared_t *s = m->first; s; s = s->behind, i++) {
        kolo_message_put(&s->request, &d->requests[i]);
        put_ranks(&s->ranks, place, &d->requests[i], d->numbers + 2 * at, d->rows + at);
        d->table[i] = &d->requests[i];
        at += (size_t)s->ranks.count;
    }
    return KOLO_OK;
}

kolo_status_t kolo_merge_encode(const kolo_merge_t *m, const kolo_tree_place_t *place, kolo_bytes_t *out)
{
    draft_t d = {NULL, NULL, NULL, NULL};
    out->length = 0;
    if (m->count == 0) return KOLO_OK;
    kolo_status_t status = fill_draft(m, place, &d);
    if (status == KOLO_OK) status = kolo_message_pack(d.table, m->count, out);
    if (status == KOLO_OK && out->length > kolo_shared_bytes_max(place))
        status = kolo_fail(
            KOLO_ERR_UNSUPPORTED,
            "engine: the %zu requests of ranks %d to %d are %zu bytes, at most %llu are sent at once: "
            "submit fewer tensors at a time, or the same ones on all ranks",
            m->count, place->first, place->end - 1, out->length, (unsigned long long)kolo_shared_bytes_max(place));
    free_draft(&d);
    return status;
}

/* ---- in ---- */

/* Fills in ranks, whose memory is kept from one to the next. NULL: it makes sense. */
static const char *get_runs(const KoloWire__Request *in, const kolo_tree_place_t *place, int64_t rows,
                            kolo_ranks_t *ranks)
{
    int64_t at = place->first;
    for (size_t i = 0; i < in->n_ranks; i += 2) {
        if (in->ranks[i + 1] == 0) return "a run of no ranks";
        int64_t first = at + in->ranks[i], end = first + in->ranks[i + 1];
        if (end > place->end) return "ranks that its sender does not speak for";
        kolo_ranks_run_t run = {(int)first, (int)end, in->n_rows > 0 ? in->rows[i / 2] : rows};
        if (kolo_ranks_add(ranks, run) != KOLO_OK) return "more ranks than memory can hold";
        at = end;
    }
    return NULL;
}

static const char *get_shared(const KoloWire__Request *in, const kolo_tree_place_t *place, int nranks, char *text,
                              kolo_tensor_request_t *request, kolo_ranks_t *ranks)
{
    const char *bad = kolo_message_get(in, nranks, text, request);
    if (bad) return bad;
    ranks->count = ranks->total = 0;
    int64_t rows = kolo_tensor_request_rows(request);
    if (in->n_ranks % 2 != 0) return "half a run of ranks";
    if (in->n_rows > 0) {
        kolo_tensor_request_t like = *request;
        if (request->ndims == 0 || (request->work != KOLO_WORK_ALL_GATHER && request->work != KOLO_WORK_ALL_TO_ALL))
            return "rows of what has none";
        if (in->n_rows != in->n_ranks / 2 || in->rows[0] != rows) return "rows of other ranks";
        for (size_t i = 0; i < in->n_rows; i++) {
            like.shape[0] = in->rows[i];
            if (kolo_shape_elements(like.shape, like.ndims, 0, kolo_type_size(like.type)) < 0)
                return "rows out of range";
        }
    }
    if (in->n_ranks > 0) return get_runs(in, place, rows, ranks);
    return kolo_ranks_add(ranks, (kolo_ranks_run_t){place->first, place->end, rows}) == KOLO_OK
               ? NULL
               : "more ranks than memory can hold";
}

static kolo_status_t each(const KoloWire__RequestList *list, const kolo_tree_place_t *place, int nranks,
                          kolo_request_fn_t fn, void *arg, kolo_ranks_t *ranks)
{
    char text[KOLO_TENSOR_NAME_MAX + 1];
    kolo_tensor_request_t request;
    if (list == NULL) return kolo_message_wrong("no list of requests");
    if (list->version != KOLO_MESSAGE_VERSION) return kolo_message_wrong("requests of another version");
    if (list->n_requests > (size_t)KOLO_ENGINE_REQUESTS_MAX * (size_t)(place->end - place->first))
        return kolo_message_wrong("too many requests");
    for (int pass = 0; pass < 2; pass++) { /* all are checked before anything is done */
        for (size_t i = 0; i < list->n_requests; i++) {
            const char *bad = get_shared(list->requests[i], place, nranks, text, &request, ranks);
            if (bad) return kolo_message_wrong(bad);
            if (pass) KOLO_TRY(fn(arg, &request, ranks));
        }
    }
    return KOLO_OK;
}

kolo_status_t kolo_requests_decode(const uint8_t *bytes, size_t length, const kolo_tree_place_t *place, int nranks,
                                   kolo_request_fn_t fn, void *arg)
{
    kolo_arena_t arena;
    kolo_ranks_t ranks = {NULL, 0, 0, 0};
    if (length > kolo_shared_bytes_max(place)) return kolo_message_wrong("it is too long");
    KOLO_TRY(kolo_arena_init(&arena, length));
    kolo_status_t status =
        each(kolo_wire__request_list__unpack(&arena.allocator, length, bytes), place, nranks, fn, arg, &ranks);
    kolo_ranks_fini(&ranks);
    kolo_arena_fini(&arena);
    return status;
}

#else

kolo_status_t kolo_merge_encode(const kolo_merge_t *m, const kolo_tree_place_t *place, kolo_bytes_t *out)
{
    (void)m, (void)place, (void)out;
    return kolo_message_absent();
}

kolo_status_t kolo_requests_decode(const uint8_t *bytes, size_t length, const kolo_tree_place_t *place, int nranks,
                                   kolo_request_fn_t fn, void *arg)
{
    (void)bytes, (void)length, (void)place, (void)nranks, (void)fn, (void)arg;
    return kolo_message_absent();
}

#endif
