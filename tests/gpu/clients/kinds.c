/* SPDX-License-Identifier: Apache-2.0
 *
 * Kinds of memory: managed, of a stream's pool, of a graph; and memory that was registered. See clients.h.
 */
#include "clients.h"

#include <stdlib.h>

typedef enum { MANAGED, QUEUED } kind_t;
static const char *const names[] = {"managed memory", "memory of a pool"};

static char *take(kit_rank_t *r, kind_t kind, size_t bytes)
{
    return kind == MANAGED ? kit_alloc_managed(r, bytes) : kit_alloc_queued(r, bytes, r->streams[0]);
}
static void give(kit_rank_t *r, kind_t kind, char *p)
{
    if (kind == MANAGED)
        kit_free(r, p);
    else if (p)
        kit_free_queued(r, p, r->streams[0]);
}

static bool sum(const kit_rank_t *r, const char *src, char *dst, size_t count)
{
    return KIT_OK(kolo_all_reduce(src, dst, count, KOLO_INT32, KOLO_SUM, r->comm, r->streams[0]));
}

static void number(kit_rank_t *r, size_t count, int salt)
{
    for (size_t k = 0; k < count; k++) ((int32_t *)(void *)r->image)[k] = clients_number(r->rank, k, salt);
}

/* From there, to there, and in place. */
static bool of_kind(kit_team_t *t, kind_t kind, size_t count)
{
    char *src[KIT_RANKS] = {0}, *dst[KIT_RANKS] = {0};
    bool good = true;
    for (int i = 0; i < t->n && good; i++) {
        kit_rank_t *r = &t->ranks[i];
        good = (src[i] = take(r, kind, 4 * count)) && (dst[i] = take(r, kind, 4 * count));
        number(r, count, 40 + (int)kind);
        good = good && kit_put(r, (uintptr_t)src[i], 4 * count, r->streams[0]) && kit_sync(r, r->streams[0]);
    }
    for (int call = 0; call < 3 && good; call++) {
        good = clients_begin(t);
        for (int i = 0; i < t->n && good; i++)
            good = sum(&t->ranks[i], call ? dst[i] : src[i], call < 2 ? dst[i] : t->ranks[i].buffer, count);
        good = clients_end(t) && good;
    }
    for (int i = 0; i < t->n && good; i++)
        good = clients_is_sum(&t->ranks[i], 0, count, 40 + (int)kind, 3, t->ranks[i].streams[0], names[kind]);
    for (int i = 0; i < t->n; i++) give(&t->ranks[i], kind, src[i]), give(&t->ranks[i], kind, dst[i]);
    return kit_case_end(t, good, names[kind]);
}

/* Memory that a graph gets, uses and gives back. */
static bool of_a_graph(kit_team_t *t, size_t count)
{
    kit_rank_t *r = &t->ranks[0];
    void *plan = NULL, *graph = NULL, *stream = r->streams[0];
    char *src = NULL, *dst = NULL;
    if (t->n > 1) return true; /* one thread's captures would need a group each */
    bool good = kit_capture(r, stream) && (src = kit_alloc_queued(r, 4 * count, stream)) &&
                (dst = kit_alloc_queued(r, 4 * count, stream)) && kit_put(r, (uintptr_t)src, 4 * count, stream);
    good = good && sum(r, src, dst, count) && sum(r, dst, r->buffer, count);
    good = good && kit_free_queued(r, src, stream) && kit_free_queued(r, dst, stream);
    good = kit_captured(r, stream, &plan) && good && kit_graph(r, plan, &graph);
    for (int round = 0; round < 3 && good; round++) {
        number(r, count, 50 + round);
        good =
            kit_replay(r, graph, stream) && clients_is_sum(r, 0, count, 50 + round, 2, stream, "memory of a graph");
    }
    kit_graph_end(graph);
    return kit_case_end(t, good, "memory of a graph");
}

/* ---- registered ---- */

/* What all have registered is reached by the first operation on it; other memory not before the second. */
static bool registered(kit_team_t *t)
{
    const size_t bytes = (size_t)16 << 20; /* not by lines */
    kit_rank_t *r = &t->ranks[0];
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t first = r->comm;
    kolo_registration_t one = NULL, two = NULL;
    static char mine[4096];
    const char *opens = "cuIpcOpenMemHandle_v2";
    long before = kit_calls(opens); /* of mappings, which communicators that have ended may still close */
    char *p = kit_alloc(r, 2 * bytes);
    if (!kit_comms_make(t, &config)) return false; /* that has nothing mapped */
    bool good = p && KIT_OK(kolo_comm_register(r->comm, p, 2 * bytes, &one)) &&
                KIT_OK(kolo_comm_register(r->comm, p, 4096, &two));
    if (!kit_meet(t)) return false;
    good = good && KIT_OK(kolo_all_reduce(p, p + bytes, bytes / 4, KOLO_INT32, KOLO_SUM, r->comm, r->streams[0])) &&
           kit_sync(r, r->streams[0]);
    bool maps = before >= 0 && t->options->mode == KIT_PROCESSES && !getenv("KOLO_GPU_EXECUTOR");
    if (good && maps && kit_calls(opens) - before != r->nranks - 1)
        good = KIT_FAIL("rank %d: the first operation on registered memory mapped that of %ld ranks, not %d",
                        r->rank, kit_calls(opens) - before, r->nranks - 1);
    good = good && KIT_OK(kolo_comm_deregister(r->comm, one)) && KIT_OK(kolo_comm_deregister(r->comm, two));
    if (good && !getenv("KOLO_GPU_EXECUTOR")) {
        kolo_status_t status = kolo_comm_register(r->comm, mine, sizeof mine, &one);
        if (status != KOLO_ERR_INVALID_ARGUMENT)
            good = KIT_FAIL("rank %d: memory that no GPU reaches is registered: %s", r->rank,
                            kolo_status_string(status));
    }
    if (!kit_meet(t)) return false;
    good = KIT_OK(kolo_comm_destroy(r->comm)) && good;
    r->comm = first;
    kit_free(r, p);
    return kit_case_end(t, good, "registered memory");
}

bool clients_kinds(kit_team_t *t)
{
    static const size_t counts[] = {100, 60000, 1000000}; /* by lines of both kinds, and by stages */
    bool real = kit_foreign() < 0, good = true;
    for (int i = 0; i < 3 && good; i++)
        good =
            (real || of_kind(t, MANAGED, counts[i])) && of_kind(t, QUEUED, counts[i]) && of_a_graph(t, counts[i]);
    return good && (t->n > 1 || registered(t));
}
