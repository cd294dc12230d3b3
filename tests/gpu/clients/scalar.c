/* SPDX-License-Identifier: Apache-2.0
 *
 * Operators whose factor lies in a GPU's memory: it is what it is when an operation runs, also in a graph. See
 * clients.h.
 */
#include "clients.h"

#include <stdlib.h>

static bool put_factor(kit_rank_t *r, int32_t factor, void *stream)
{
    *(int32_t *)(void *)(r->image + E) = factor;
    return kit_upload(r, E, sizeof factor, stream);
}

static bool has_sum(kit_rank_t *r, size_t at, size_t count, int salt, int factor, void *stream, const char *what)
{
    const int32_t *back = (const int32_t *)(const void *)(r->back + at);
    if (!kit_download(r, at, 4 * count, stream) || !kit_sync(r, stream)) return false;
    for (size_t k = 0; k < count; k++) {
        int32_t want = 0;
        for (int i = 0; i < r->nranks; i++) want += (factor + i) * clients_number(i, k, salt);
        if (back[k] != want)
            return KIT_FAIL("%s: rank %d: element %zu is %d, not %d", what, r->rank, k, (int)back[k], (int)want);
    }
    return true;
}

static bool scaled(const kit_rank_t *r, size_t from, size_t to, size_t count, kolo_op_t op)
{
    return KIT_OK(kolo_all_reduce(r->buffer + from, r->buffer + to, count, KOLO_INT32, op, r->comm, r->streams[0]));
}

/* The factor is written by the stream itself, behind what holds it, when the call has long returned. */
static bool reads_late(kit_rank_t *r, size_t count, kolo_op_t op)
{
    bool good = clients_put(r, A, count, 70, r->streams[0]) && put_factor(r, -5, r->streams[0]) &&
                kit_sync(r, r->streams[0]) && kit_hold(r, r->streams[0]);
    good = good && put_factor(r, 3 + r->rank, r->streams[0]) && scaled(r, A, B, count, op);
    kit_let_go(r);
    return good && has_sum(r, B, count, 70, 3, r->streams[0], "a factor that is written late");
}

static bool reads_at_each_replay(kit_rank_t *r, size_t count, kolo_op_t op)
{
    void *plan = NULL, *graph = NULL;
    bool good = kit_capture(r, r->streams[0]) && scaled(r, A, C, count, op);
    good = kit_captured(r, r->streams[0], &plan) && good && kit_graph(r, plan, &graph);
    for (int turn = 0; turn < 3 && good; turn++)
        good = put_factor(r, 10 * turn + r->rank, r->streams[0]) && kit_replay(r, graph, r->streams[0]) &&
               has_sum(r, C, count, 70, 10 * turn, r->streams[0], "a factor of a replay");
    kit_graph_end(graph);
    return good;
}

static bool refuses(kit_rank_t *r)
{
    int32_t *none = kit_alloc(r, 4096);
    kolo_op_t op;
    if (!none || !KIT_OK(kolo_op_create_premul_sum(&op, none, KOLO_INT32, r->comm))) return false;
    kit_free(r, none);
    kolo_status_t status = kolo_all_reduce(r->buffer, r->buffer + B, 10, KOLO_INT32, op, r->comm, r->streams[0]);
    bool good = status == KOLO_ERR_INVALID_ARGUMENT ||
                KIT_FAIL("rank %d: a factor that was freed: %s", r->rank, kolo_status_string(status));
    return KIT_OK(kolo_op_destroy(op, r->comm)) && good;
}

bool clients_scalars(kit_team_t *t)
{
    static const size_t counts[] = {300, 60000, 120000}; /* by lines of both kinds, and by stages */
    kit_rank_t *r = &t->ranks[0];
    kolo_op_t op;
    if (t->n > 1) return true;
    kolo_status_t status = kolo_op_create_premul_sum(&op, r->buffer + E, KOLO_INT32, r->comm);
    if (getenv("KOLO_GPU_EXECUTOR")) {
        bool good = status == KOLO_ERR_UNSUPPORTED ||
                    KIT_FAIL("rank %d: a factor in a GPU's memory: %s", r->rank, kolo_status_string(status));
        return kit_case_end(t, good, "factors in a GPU's memory are refused");
    }
    bool good = KIT_OK(status);
    for (int i = 0; i < 3 && good; i++)
        good = reads_late(r, counts[i], op) && reads_at_each_replay(r, counts[i], op);
    good = good && refuses(r) && KIT_OK(kolo_op_destroy(op, r->comm));
    return kit_case_end(t, good, "factors in a GPU's memory");
}
