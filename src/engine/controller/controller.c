/* SPDX-License-Identifier: Apache-2.0
 *
 * The coordinator's table, on rank 0: who has sent which tensor. A tensor is ready when every rank has sent it or
 * has joined; a group when all of its tensors are. What is ready is checked (check.c) and answered, in the order in
 * which it became so.
 */
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

kolo_status_t kolo_controller_init(kolo_controller_t *c, int nranks)
{
    *c = (kolo_controller_t){.nranks = nranks, .last_joined = -1};
    kolo_responses_init(&c->out);
    kolo_stall_init(&c->stall, 0, 0);
    c->join_request.work = KOLO_WORK_JOIN;
    kolo_name_init(&c->join_request.name, KOLO_JOIN_NAME, (uint32_t)strlen(KOLO_JOIN_NAME));
    c->join_kind.request = &c->join_request;
    c->join_row.kinds = &c->join_kind;
    c->join_row.nkinds = 1;
    c->join_row.name = c->join_request.name;
    c->joined = calloc((size_t)nranks, sizeof *c->joined);
    if (!c->joined) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %d ranks", nranks);
    return KOLO_OK;
}

/* ---- rows ---- */

static void free_row(kolo_row_t *row)
{
    for (int k = 0; k < row->nkinds; k++) {
        free(row->kinds[k].request);
        kolo_ranks_fini(&row->kinds[k].ranks);
    }
    free(row->kinds);
    kolo_ranks_fini(&row->sent);
    free(row);
}

void kolo_controller_fini(kolo_controller_t *c)
{
    for (size_t i = 0; i < c->rows.nbuckets; i++) {
        for (kolo_name_t *n = c->rows.buckets[i], *next; n; n = next) {
            next = n->next;
            free_row((kolo_row_t *)n);
        }
    }
    for (size_t i = 0; i < c->groups.nbuckets; i++) {
        for (kolo_name_t *n = c->groups.buckets[i], *next; n; n = next) {
            next = n->next;
            for (kolo_row_t *row = ((kolo_row_group_t *)n)->first, *more; row; row = more) {
                more = row->next_in_group;
                free_row(row);
            }
            free(n);
        }
    }
    kolo_names_fini(&c->rows);
    kolo_names_fini(&c->groups);
    kolo_responses_free(&c->out);
    free(c->joined);
    c->joined = NULL;
}

static kolo_tensor_request_t *copy_request(const kolo_tensor_request_t *request)
{
    kolo_tensor_request_t *copy = malloc(sizeof *copy + request->name.length + 1);
    if (!copy) return NULL;
    kolo_tensor_request_copy(copy, request, (char *)(copy + 1));
    return copy;
}

static kolo_status_t out_of_memory(const kolo_tensor_request_t *request)
{
    return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: the coordinator is out of memory for tensor %s",
                     request->name.text);
}

static kolo_kind_t *find_kind(const kolo_row_t *row, const kolo_tensor_request_t *request)
{
    if (row->nkinds == 1) return kolo_tensor_request_alike(row->kinds[0].request, request) ? &row->kinds[0] : NULL;
    uint64_t hash = kolo_tensor_request_hash(request);
    for (int k = 0; k < row->nkinds; k++)
        if (row->kinds[k].hash == hash && kolo_tensor_request_alike(row->kinds[k].request, request))
            return &row->kinds[k];
    return NULL;
}

/* Adds what ranks sent: one for all that sent alike. Kinds are in the order in which they would have come from the
 * ranks one by one, so that the same one speaks for all whatever way they came. */
static kolo_kind_t *add_kind(const kolo_controller_t *c, kolo_row_t *row, const kolo_tensor_request_t *request,
                             int first)
{
    bool full = (row->nkinds & (row->nkinds - 1)) == 0; /* room is the next power of two */
    size_t room = row->nkinds ? 2 * (size_t)row->nkinds : 1;
    kolo_kind_t *kinds = full ? realloc(row->kinds, room * sizeof *kinds) : row->kinds;
    kolo_tensor_request_t *copy = kinds ? copy_request(request) : NULL;
    if (kinds) row->kinds = kinds;
    if (!copy) return NULL;
    int at = row->nkinds;
    while (at > 0 && kinds[at - 1].cycle == c->cycle && kinds[at - 1].ranks.runs[0].first > first) at--;
    memmove(&kinds[at + 1], &kinds[at], (size_t)(row->nkinds - at) * sizeof *kinds);
    kinds[at] = (kolo_kind_t){.request = copy, .hash = kolo_tensor_request_hash(request), .cycle = c->cycle};
    row->nkinds++;
    return &kinds[at];
}

static kolo_status_t new_row(kolo_controller_t *c, const kolo_tensor_request_t *request, int first,
                             kolo_row_t **out)
{
    kolo_row_t *row = calloc(1, sizeof *row);
    if (!row) return out_of_memory(request);
    if (!add_kind(c, row, request, first)) {
        free_row(row);
        return out_of_memory(request);
    }
    kolo_name_init(&row->name, row->kinds[0].request->name.text, request->name.length);
    kolo_status_t status = kolo_names_add(&c->rows, &row->name);
    if (status != KOLO_OK) {
        free_row(row);
        return status;
    }
    kolo_stall_new_row(&c->stall, row);
    *out = row;
    return KOLO_OK;
}

bool kolo_row_lacks(const kolo_controller_t *c, const kolo_row_t *row, int rank)
{
    return kolo_ranks_next(&row->sent, rank) != rank && !c->joined[rank];
}

static bool is_complete(const kolo_controller_t *c, const kolo_row_t *row)
{
    if (row->sent.total == c->nranks) return true;
    if (row->sent.total + c->njoined < c->nranks) return false;
    for (int r = 0; r < c->nranks; r++)
        if (kolo_row_lacks(c, row, r)) return false;
    return true;
}

/* ---- answers ---- */

static void fill_rows(const kolo_row_t *row, int64_t *rows)
{
    for (int k = 0; k < row->nkinds; k++) {
        const kolo_ranks_t *ranks = &row->kinds[k].ranks;
        for (int i = 0; i < ranks->count; i++)
            for (int r = ranks->runs[i].first; r < ranks->runs[i].end; r++) rows[r] = ranks->runs[i].rows;
    }
}

static kolo_status_t answer(kolo_controller_t *c, const kolo_row_t *row)
{
    char text[KOLO_ERROR_TEXT_BYTES];
    const kolo_tensor_request_t *first = row->kinds[0].request;
    kolo_response_t *r = calloc(1, sizeof *r);
    if (!r) return out_of_memory(first);
    r->slot = -1;
    r->last_joined = -1;
    r->request = *first;
    r->request.waited_ms = 0;
    r->name = strdup(first->name.text);
    r->status = kolo_row_check(c, row, text, sizeof text);
    bool rows =
        r->status == KOLO_OK && (first->work == KOLO_WORK_ALL_GATHER || first->work == KOLO_WORK_ALL_TO_ALL);
    r->text = r->status == KOLO_OK ? NULL : strdup(text);
    r->rows = rows ? calloc((size_t)c->nranks, sizeof *r->rows) : NULL;
    if (!r->name || (r->status != KOLO_OK && !r->text) || (rows && !r->rows)) {
        kolo_response_free(r);
        return out_of_memory(first);
    }
    kolo_name_init(&r->request.name, r->name, first->name.length);
    if (rows) fill_rows(row, r->rows);
    r->device = true;
    for (int k = 0; k < row->nkinds; k++) r->device = r->device && row->kinds[k].request->device;
    r->cacheable = r->status == KOLO_OK && c->njoined == 0 && first->work < KOLO_WORK_ADD_SET;
    kolo_responses_add(&c->out, r);
    return KOLO_OK;
}

/* ---- groups ---- */

static kolo_status_t find_group(kolo_controller_t *c, const kolo_tensor_request_t *request, kolo_row_group_t **out)
{
    kolo_name_t like;
    kolo_name_init(&like, (const char *)&request->group, sizeof request->group);
    kolo_row_group_t *g = (kolo_row_group_t *)kolo_names_find(&c->groups, &like);
    *out = g;
    if (g) return KOLO_OK;
    g = calloc(1, sizeof *g);
    if (!g) return out_of_memory(request);
    g->number = request->group;
    g->size = request->group_size;
    g->tail = &g->first;
    kolo_name_init(&g->name, (const char *)&g->number, sizeof g->number);
    kolo_status_t status = kolo_names_add(&c->groups, &g->name);
    if (status != KOLO_OK)
        free(g);
    else
        *out = g;
    return status;
}

static kolo_status_t leave_group(kolo_controller_t *c, kolo_row_group_t *g)
{
    kolo_status_t status = KOLO_OK;
    if (g->nready < g->size) return KOLO_OK;
    for (kolo_row_t *row = g->first, *next; row; row = next) {
        next = row->next_in_group;
        if (status == KOLO_OK) status = answer(c, row);
        free_row(row);
    }
    kolo_names_remove(&c->groups, &g->name);
    free(g);
    return status;
}

/* Fails a row, now, on whose group ranks disagree; none of the groups waits for it. */
static kolo_status_t answer_quarrel(kolo_controller_t *c, kolo_row_t *row)
{
    kolo_status_t status = answer(c, row);
    for (int k = 0; k < row->nkinds && status == KOLO_OK; k++) {
        kolo_row_group_t *g;
        bool again = row->kinds[k].request->group == 0;
        for (int i = 0; i < k; i++) again |= row->kinds[i].request->group == row->kinds[k].request->group;
        if (again) continue;
        status = find_group(c, row->kinds[k].request, &g);
        if (status != KOLO_OK) break;
        g->nready++;
        status = leave_group(c, g);
    }
    free_row(row);
    return status;
}

static kolo_status_t ready(kolo_controller_t *c, kolo_row_t *row)
{
    kolo_row_group_t *g;
    kolo_names_remove(&c->rows, &row->name);
    for (int k = 1; k < row->nkinds; k++)
        if (row->kinds[k].request->group != row->kinds[0].request->group) return answer_quarrel(c, row);
    if (row->kinds[0].request->group == 0) {
        kolo_status_t status = answer(c, row);
        free_row(row);
        return status;
    }
    kolo_status_t status = find_group(c, row->kinds[0].request, &g);
    if (status != KOLO_OK) {
        free_row(row);
        return status;
    }
    *g->tail = row;
    g->tail = &row->next_in_group;
    g->nready++;
    return leave_group(c, g);
}

/* ---- requests ---- */

static kolo_status_t join(kolo_controller_t *c, int rank)
{
    if (c->joined[rank]) return kolo_fail(KOLO_ERR_PROTOCOL, "engine: rank %d has joined twice", rank);
    c->joined[rank] = true;
    c->last_joined = rank;
    if (c->njoined++ == 0) {
        c->join_row.warnings = 0;
        kolo_stall_new_row(&c->stall, &c->join_row);
    }
    c->join_row.sent.total = c->njoined;
    return KOLO_OK;
}

static kolo_status_t join_all(kolo_controller_t *c, const kolo_ranks_t *ranks)
{
    for (int i = 0; i < ranks->count; i++)
        for (int r = ranks->runs[i].first; r < ranks->runs[i].end; r++) KOLO_TRY(join(c, r));
    return KOLO_OK;
}

void kolo_controller_worked(kolo_controller_t *c)
{
    if (c->njoined == 0) return;
    c->join_row.warnings = 0;
    c->join_row.since_ns = kolo_now_ns();
}

/* Refuses ranks that have sent it already. */
static kolo_status_t check_new(const kolo_row_t *row, const kolo_ranks_t *ranks)
{
    for (int i = 0; i < ranks->count; i++) {
        int rank = kolo_ranks_next(&row->sent, ranks->runs[i].first);
        if (rank < ranks->runs[i].end)
            return kolo_fail(KOLO_ERR_PROTOCOL, "engine: rank %d has sent tensor %s twice", rank, row->name.text);
    }
    return KOLO_OK;
}

kolo_status_t kolo_controller_shared(kolo_controller_t *c, const kolo_tensor_request_t *request,
                                     const kolo_ranks_t *ranks)
{
    if (request->work == KOLO_WORK_JOIN) return join_all(c, ranks);
    kolo_row_t *row = (kolo_row_t *)kolo_names_find(&c->rows, &request->name);
    if (!row) KOLO_TRY(new_row(c, request, ranks->runs[0].first, &row));
    KOLO_TRY(check_new(row, ranks));
    kolo_kind_t *kind = find_kind(row, request);
    if (!kind) kind = add_kind(c, row, request, ranks->runs[0].first);
    if (!kind) return out_of_memory(request);
    for (int i = 0; i < ranks->count; i++) {
        KOLO_TRY(kolo_ranks_add(&kind->ranks, ranks->runs[i]));
        KOLO_TRY(kolo_ranks_add(&row->sent, (kolo_ranks_run_t){ranks->runs[i].first, ranks->runs[i].end, 0}));
    }
    if (request->waited_ms > 0) kolo_stall_waited(&c->stall, row, request->waited_ms);
    return is_complete(c, row) ? ready(c, row) : KOLO_OK;
}

kolo_status_t kolo_controller_request(kolo_controller_t *c, int rank, const kolo_tensor_request_t *request)
{
    kolo_ranks_run_t one = {rank, rank + 1, kolo_tensor_request_rows(request)};
    kolo_ranks_t ranks = {&one, 1, 1, 1};
    return kolo_controller_shared(c, request, &ranks);
}

/* Rows that have become complete because ranks have joined, in the order of their names' text so that it is the
 * same whatever the table looks like. */
static kolo_status_t release_joined(kolo_controller_t *c)
{
    for (;;) {
        kolo_row_t *next = NULL;
        for (size_t i = 0; i < c->rows.nbuckets; i++)
            for (kolo_name_t *n = c->rows.buckets[i]; n; n = n->next)
                if (is_complete(c, (kolo_row_t *)n) && (!next || strcmp(n->text, next->name.text) < 0))
                    next = (kolo_row_t *)n;
        if (!next) return KOLO_OK;
        KOLO_TRY(ready(c, next));
    }
}

kolo_status_t kolo_controller_finish(kolo_controller_t *c)
{
    c->cycle++;
    if (c->njoined == 0) return KOLO_OK;
    KOLO_TRY(release_joined(c));
    if (c->njoined < c->nranks) return KOLO_OK;
    kolo_response_t *r = calloc(1, sizeof *r);
    if (!r) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: the coordinator is out of memory for a join");
    r->slot = -1;
    r->request.work = KOLO_WORK_JOIN;
    r->request.prescale = r->request.postscale = 1.0;
    r->name = strdup(KOLO_JOIN_NAME);
    if (!r->name) {
        kolo_response_free(r);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: the coordinator is out of memory for a join");
    }
    kolo_name_init(&r->request.name, r->name, (uint32_t)strlen(r->name));
    r->last_joined = c->last_joined;
    kolo_responses_add(&c->out, r);
    memset(c->joined, 0, (size_t)c->nranks * sizeof *c->joined);
    c->njoined = 0;
    return KOLO_OK;
}
