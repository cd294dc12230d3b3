/* SPDX-License-Identifier: Apache-2.0
 *
 * Do all ranks mean the same by a name? The checks come in a fixed order; the first that fails makes the sentence,
 * which names the tensor, the ranks that differ from most others, and what both sent.
 */
#include "engine/engine.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is compared, as text: equal means equal text ---- */

typedef void (*show_fn_t)(const kolo_tensor_request_t *request, char *buf, size_t bytes);

static void show_type(const kolo_tensor_request_t *r, char *buf, size_t bytes)
{
    snprintf(buf, bytes, "%s", kolo_tensor_request_type_name(r->type));
}

static void show_work(const kolo_tensor_request_t *r, char *buf, size_t bytes)
{
    snprintf(buf, bytes, "%s", kolo_tensor_request_work_name(r->work));
}

static void show_shape(const kolo_tensor_request_t *r, char *buf, size_t bytes)
{
    char shape[300];
    kolo_shape_print(r->shape, r->ndims, shape, sizeof shape);
    snprintf(buf, bytes, "shape %s", shape);
}

static void show_ndims(const kolo_tensor_request_t *r, char *buf, size_t bytes)
{
    snprintf(buf, bytes, "%d dimension%s", r->ndims, r->ndims == 1 ? "" : "s");
}

static void show_row(const kolo_tensor_request_t *r, char *buf, size_t bytes)
{
    char shape[300];
    kolo_shape_print(r->shape + 1, r->ndims - 1, shape, sizeof shape);
    snprintf(buf, bytes, "rows of shape %s", shape);
}

static void show_prescale(const kolo_tensor_request_t *r, char *buf, size_t bytes)
{
    snprintf(buf, bytes, "prescale %.17g", r->prescale);
}

static void show_postscale(const kolo_tensor_request_t *r, char *buf, size_t bytes)
{
    snprintf(buf, bytes, "postscale %.17g", r->postscale);
}

static void show_op(const kolo_tensor_request_t *r, char *buf, size_t bytes)
{
    snprintf(buf, bytes, "operator %s", kolo_tensor_request_op_name(r->op));
}

static void show_root(const kolo_tensor_request_t *r, char *buf, size_t bytes)
{
    snprintf(buf, bytes, "root %d", r->root);
}

static void show_change(const kolo_tensor_request_t *r, char *buf, size_t bytes)
{
    kolo_sets_show(r, buf, bytes);
}

static void show_group(const kolo_tensor_request_t *r, char *buf, size_t bytes)
{
    if (r->group)
        snprintf(buf, bytes, "it in a group of %u tensors (%016llx)", r->group_size, (unsigned long long)r->group);
    else
        snprintf(buf, bytes, "it alone");
}

enum { ALL = (1 << KOLO_WORK_COUNT) - 1 };
#define BIT(work) (1 << (work))
static const struct {
    show_fn_t show;
    int works; /* for which it matters */
} checks[] = {
    {show_type, ALL},
    {show_work, ALL},
    {show_shape, BIT(KOLO_WORK_ALL_REDUCE) | BIT(KOLO_WORK_BROADCAST) | BIT(KOLO_WORK_REDUCE_SCATTER)},
    {show_prescale, BIT(KOLO_WORK_ALL_REDUCE) | BIT(KOLO_WORK_REDUCE_SCATTER)},
    {show_postscale, BIT(KOLO_WORK_ALL_REDUCE) | BIT(KOLO_WORK_REDUCE_SCATTER)},
    {show_op, BIT(KOLO_WORK_ALL_REDUCE) | BIT(KOLO_WORK_REDUCE_SCATTER)},
    {show_ndims, BIT(KOLO_WORK_ALL_GATHER) | BIT(KOLO_WORK_ALL_TO_ALL)},
    {show_row, BIT(KOLO_WORK_ALL_GATHER) | BIT(KOLO_WORK_ALL_TO_ALL)},
    {show_root, BIT(KOLO_WORK_BROADCAST)},
    {show_change, BIT(KOLO_WORK_ADD_SET) | BIT(KOLO_WORK_REMOVE_SET)},
    {show_group, ALL},
};

/* ---- sentences ---- */

#define SHOW_BYTES 360

/* Returns how a rank of the set is called in the job. */
static int job_rank(const kolo_controller_t *c, int rank)
{
    return c->ranks ? c->ranks[rank] : rank;
}

/* Writes "tensor x", "tensor x of process set 3". */
static const char *title_of(const kolo_controller_t *c, const kolo_row_t *row, char *buf, size_t bytes)
{
    kolo_tensor_request_title(row->kinds[0].request, buf, bytes);
    size_t n = strlen(buf);
    if (c->set != 0) snprintf(buf + n, bytes - n, " of process set %d", c->set);
    return buf;
}

/* Kinds that show alike are one view. */
typedef struct {
    uint64_t shown; /* hash of the text */
    const kolo_kind_t *kind;
} shown_t;

typedef struct {
    const shown_t *kinds;
    int count, total, lowest; /* ranks, and the lowest of them */
} view_t;

static int by_text(const void *a, const void *b)
{
    const shown_t *x = a, *y = b;
    return x->shown < y->shown ? -1 : x->shown > y->shown;
}

/* Returns the lowest rank of a view that is at least `from`. */
static int next_rank(const view_t *view, int from)
{
    int rank = INT_MAX;
    for (int k = 0; k < view->count; k++) rank = KOLO_MIN(rank, kolo_ranks_next(&view->kinds[k].kind->ranks, from));
    return rank;
}

static bool beats(const view_t *a, const view_t *b)
{
    return a->total != b->total ? a->total > b->total : a->total > 0 && a->lowest < b->lowest;
}

/* Picks what most sent, of equals the lowest rank's; and the one that most of the others sent. */
static void pick_two(shown_t *kinds, int n, view_t *most, view_t *odd)
{
    *most = *odd = (view_t){NULL, 0, 0, INT_MAX};
    qsort(kinds, (size_t)n, sizeof *kinds, by_text);
    for (int from = 0, to; from < n; from = to) {
        view_t v = {kinds + from, 0, 0, INT_MAX};
        for (to = from; to < n && kinds[to].shown == kinds[from].shown; to++)
            v.total += kinds[to].kind->ranks.total;
        v.count = to - from;
        v.lowest = next_rank(&v, 0);
        if (beats(&v, most)) {
            *odd = *most;
            *most = v;
        } else if (beats(&v, odd)) {
            *odd = v;
        }
    }
}

/* Writes "rank 2", "ranks 1, 4 and 6 more" of those who sent what shows alike. */
static void name_ranks(const kolo_controller_t *c, const view_t *view, char *buf, size_t bytes)
{
    enum { NAMED = 6 };
    size_t at = (size_t)snprintf(buf, bytes, view->total == 1 ? "rank " : "ranks ");
    for (int i = 0, r = -1; i < NAMED && i < view->total && at < bytes; i++) {
        r = next_rank(view, r + 1);
        at += (size_t)snprintf(buf + at, bytes - at, i ? ", %d" : "%d", job_rank(c, r));
    }
    if (view->total > NAMED && at < bytes) snprintf(buf + at, bytes - at, " and %d more", view->total - NAMED);
}

static bool differ(const kolo_row_t *row, show_fn_t show)
{
    char first[SHOW_BYTES], other[SHOW_BYTES];
    show(row->kinds[0].request, first, sizeof first);
    for (int k = 1; k < row->nkinds; k++) {
        show(row->kinds[k].request, other, sizeof other);
        if (strcmp(first, other) != 0) return true;
    }
    return false;
}

static kolo_status_t say_difference(const kolo_controller_t *c, const kolo_row_t *row, show_fn_t show, char *text,
                                    size_t bytes)
{
    char title[KOLO_TENSOR_NAME_MAX + 48], sent[SHOW_BYTES], usual[SHOW_BYTES], ranks[200], rest[200];
    view_t most, odd;
    title_of(c, row, title, sizeof title);
    snprintf(text, bytes, "%s: ranks do not mean the same, and memory is too short to say more", title);
    shown_t *kinds = malloc((size_t)row->nkinds * sizeof *kinds);
    for (int k = 0; kinds && k < row->nkinds; k++) {
        show(row->kinds[k].request, sent, sizeof sent);
        kinds[k] = (shown_t){kolo_hash_bytes(KOLO_HASH_INIT, sent, strlen(sent)), &row->kinds[k]};
    }
    if (kinds) pick_two(kinds, row->nkinds, &most, &odd);
    if (!kinds || odd.count == 0) { /* or two texts of one hash */
        free(kinds);
        return KOLO_ERR_MISMATCH;
    }
    name_ranks(c, &odd, ranks, sizeof ranks);
    if (most.total + odd.total == row->sent.total && most.total > 1)
        snprintf(rest, sizeof rest, "the others");
    else
        name_ranks(c, &most, rest, sizeof rest);
    show(odd.kinds[0].kind->request, sent, sizeof sent);
    show(most.kinds[0].kind->request, usual, sizeof usual);
    snprintf(text, bytes, "%s: %s sent %s, %s %s", title, ranks, sent, rest, usual);
    free(kinds);
    return KOLO_ERR_MISMATCH;
}

static bool joined_forbids(const kolo_controller_t *c, const kolo_row_t *row, char *text, size_t bytes)
{
    char title[KOLO_TENSOR_NAME_MAX + 48], list[160] = "";
    kolo_work_t work = row->kinds[0].request->work;
    size_t at = 0;
    if (c->njoined == 0 || work == KOLO_WORK_ALL_REDUCE || work == KOLO_WORK_BARRIER) return false;
    for (int r = 0, n = 0; r < c->nranks && at < sizeof list - 16; r++)
        if (c->joined[r]) at += (size_t)snprintf(list + at, sizeof list - at, n++ ? ", %d" : "%d", job_rank(c, r));
    snprintf(text, bytes, "%s: %s is not possible while %s %s %s joined; only all_reduce and barrier are",
             title_of(c, row, title, sizeof title), kolo_tensor_request_work_name(work),
             c->njoined == 1 ? "rank" : "ranks", list, c->njoined == 1 ? "has" : "have");
    return true;
}

/* Rows of all ranks together, or the most that can be. */
static int64_t sum_rows(const kolo_row_t *row)
{
    int64_t sum = 0;
    for (int k = 0; k < row->nkinds; k++) {
        const kolo_ranks_t *ranks = &row->kinds[k].ranks;
        for (int i = 0; i < ranks->count; i++) {
            const kolo_ranks_run_t *run = &ranks->runs[i];
            if (run->rows > (KOLO_TENSOR_BYTES_MAX - sum) / (run->end - run->first)) return KOLO_TENSOR_BYTES_MAX;
            sum += run->rows * (run->end - run->first);
        }
    }
    return sum;
}

static bool too_large(const kolo_controller_t *c, const kolo_row_t *row, char *text, size_t bytes)
{
    const kolo_tensor_request_t *r = row->kinds[0].request;
    char title[KOLO_TENSOR_NAME_MAX + 48];
    int64_t shape[KOLO_TENSOR_DIMS_MAX];
    if (r->work != KOLO_WORK_ALL_GATHER && r->work != KOLO_WORK_ALL_TO_ALL) return false;
    memcpy(shape, r->shape, sizeof shape);
    shape[0] = sum_rows(row);
    if (kolo_shape_elements(shape, r->ndims, 0, kolo_type_size(r->type)) >= 0) return false;
    snprintf(text, bytes, "%s: the parts of all ranks together are too large",
             title_of(c, row, title, sizeof title));
    return true;
}

/* Returns the lowest rank from `from` on that has tensors outstanding. */
static int next_busy(const kolo_row_t *row, int from)
{
    int rank = INT_MAX;
    for (int k = 0; k < row->nkinds; k++)
        if (kolo_sets_is_busy(row->kinds[k].request))
            rank = KOLO_MIN(rank, kolo_ranks_next(&row->kinds[k].ranks, from));
    return rank;
}

/* Tells whether the set stays since a rank has tensors outstanding in it. */
static bool is_busy(const kolo_controller_t *c, const kolo_row_t *row, char *text, size_t bytes)
{
    char list[160] = "", set[32];
    size_t at = 0;
    for (int r = next_busy(row, 0), n = 0; r != INT_MAX && at < sizeof list - 16; r = next_busy(row, r + 1))
        at += (size_t)snprintf(list + at, sizeof list - at, n++ ? ", %d" : "%d", job_rank(c, r));
    if (at == 0) return false;
    kolo_sets_show(row->kinds[0].request, set, sizeof set);
    snprintf(text, bytes, "process %s cannot be removed: tensors are outstanding in it on %s %s", set,
             strchr(list, ',') ? "ranks" : "rank", list);
    return true;
}

/* Finds memory that a rank cannot use; of several ranks the lowest. */
static bool is_refused(const kolo_controller_t *c, const kolo_row_t *row, char *text, size_t bytes)
{
    char title[KOLO_TENSOR_NAME_MAX + 48];
    const kolo_kind_t *lowest = NULL;
    for (int k = 0; k < row->nkinds; k++) {
        const kolo_kind_t *kind = &row->kinds[k];
        if (kind->request->refusal.what == KOLO_REFUSES_NOTHING) continue;
        if (!lowest || kind->ranks.runs[0].first < lowest->ranks.runs[0].first) lowest = kind;
    }
    if (!lowest) return false;
    const kolo_refusal_t *r = &lowest->request->refusal;
    bool input = r->what == KOLO_REFUSES_INPUT;
    snprintf(text, bytes, "%s of %s failed on rank %d: its %s cannot be %s from 0x%" PRIx64 " on: %s",
             kolo_tensor_request_work_name(lowest->request->work), title_of(c, row, title, sizeof title),
             job_rank(c, lowest->ranks.runs[0].first), input ? "input" : "output", input ? "read" : "written",
             r->at, kolo_mem_access_why(r->why));
    return true;
}

kolo_status_t kolo_row_check(const kolo_controller_t *c, const kolo_row_t *row, char *text, size_t bytes)
{
    if (is_refused(c, row, text, bytes)) return KOLO_ERR_INVALID_ARGUMENT;
    for (size_t i = 0; i < KOLO_COUNTOF(checks) && row->nkinds > 1; i++) {
        if (!(checks[i].works >> row->kinds[0].request->work & 1) || !differ(row, checks[i].show)) continue;
        return say_difference(c, row, checks[i].show, text, bytes);
    }
    if (joined_forbids(c, row, text, bytes)) return KOLO_ERR_MISMATCH;
    if (too_large(c, row, text, bytes)) return KOLO_ERR_MISMATCH;
    if (is_busy(c, row, text, bytes)) return KOLO_ERR_INVALID_USAGE;
    return KOLO_OK;
}
