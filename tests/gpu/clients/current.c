/* SPDX-License-Identifier: Apache-2.0
 *
 * All calls while no context is current, or that of another GPU: each works on its communicator's GPU, and leaves
 * the program's context as it was. See clients.h.
 */
#include "clients.h"

#include <stdlib.h>

enum { FEW = 500, LONG = 100000 };

typedef struct {
    kit_rank_t *r;
    kolo_cu_ctx_t ctx; /* that the program has made current; NULL: none */
} now_t;

static bool same(const now_t *n, bool good, const char *call)
{
    kolo_cu_ctx_t now = NULL;
    if (kit_cuda()->ctx_get(&now)) return KIT_FAIL("rank %d: the driver does not tell its context", n->r->rank);
    if (now == n->ctx) return good;
    return KIT_FAIL("rank %d: %s has changed the current context", n->r->rank, call);
}
#define CALL(call) same(n, KIT_OK(call), #call)

static bool collectives(const now_t *n, size_t count)
{
    const kit_rank_t *r = n->r;
    const char *a = r->buffer + A;
    char *b = r->buffer + B;
    void *s = r->streams[0];
    kolo_comm_t c = r->comm;
    size_t part = count / (size_t)r->nranks, parts[KIT_RANKS], at[KIT_RANKS];
    for (int i = 0; i < r->nranks; i++) parts[i] = part, at[i] = (size_t)i * part;
    return CALL(kolo_all_reduce(a, b, count, KOLO_INT32, KOLO_SUM, c, s)) &&
           CALL(kolo_reduce(a, b, count, KOLO_INT32, KOLO_SUM, 0, c, s)) &&
           CALL(kolo_broadcast(a, b, count, KOLO_INT32, 1, c, s)) &&
           CALL(kolo_all_gather(a, b, part, KOLO_INT32, c, s)) &&
           CALL(kolo_reduce_scatter(a, b, part, KOLO_INT32, KOLO_SUM, c, s)) &&
           CALL(kolo_all_to_all(a, b, part, KOLO_INT32, c, s)) &&
           CALL(kolo_gather(a, b, part, KOLO_INT32, 0, c, s)) &&
           CALL(kolo_scatter(a, b, part, KOLO_INT32, 0, c, s)) && CALL(kolo_barrier(c, s)) &&
           CALL(kolo_all_gatherv(a, b, parts, at, KOLO_INT32, c, s)) &&
           CALL(kolo_reduce_scatterv(a, b, parts, at, KOLO_INT32, KOLO_SUM, c, s)) &&
           CALL(kolo_all_to_allv(a, parts, at, b, parts, at, KOLO_INT32, c, s)) &&
           CALL(kolo_gatherv(a, b, parts, at, KOLO_INT32, 0, c, s)) &&
           CALL(kolo_scatterv(a, parts, at, b, KOLO_INT32, 0, c, s));
}

static bool groups(const now_t *n)
{
    const kit_rank_t *r = n->r;
    int next = (r->rank + 1) % r->nranks, last = (r->rank + r->nranks - 1) % r->nranks;
    return CALL(kolo_group_start()) && CALL(kolo_send(r->buffer, FEW, KOLO_INT32, next, r->comm, r->streams[0])) &&
           CALL(kolo_recv(r->buffer + D, FEW, KOLO_INT32, last, r->comm, r->streams[1])) &&
           CALL(kolo_group_end()) && CALL(kolo_group_start()) &&
           CALL(kolo_all_reduce(r->buffer, r->buffer + B, FEW, KOLO_INT32, KOLO_SUM, r->comm, r->streams[0])) &&
           CALL(kolo_group_drop());
}

static bool factors(const now_t *n)
{
    const kit_rank_t *r = n->r;
    kolo_op_t op;
    return CALL(kolo_op_create_premul_sum(&op, r->buffer + E, KOLO_INT32, r->comm)) &&
           CALL(kolo_all_reduce(r->buffer, r->buffer + B, FEW, KOLO_INT32, op, r->comm, r->streams[0])) &&
           CALL(kolo_op_destroy(op, r->comm));
}

/* Memory that is registered; what is refused, too. */
static bool others(const now_t *n)
{
    const kit_rank_t *r = n->r;
    kolo_registration_t one = NULL;
    size_t bytes = 0;
    int device = -1;
    bool good = CALL(kolo_comm_register(r->comm, r->buffer, 4096, &one)) &&
                CALL(kolo_comm_deregister(r->comm, one)) && CALL(kolo_comm_memory(r->comm, &bytes)) &&
                CALL(kolo_comm_device(r->comm, &device)) && CALL(kolo_comm_synchronize(r->comm));
    kolo_status_t status = kolo_all_reduce(NULL, r->buffer, 1, KOLO_INT32, KOLO_SUM, r->comm, r->streams[0]);
    return same(n, good && status != KOLO_OK, "a call that is refused");
}

static bool windows(const now_t *n)
{
    const kit_rank_t *r = n->r;
    kolo_window_t window = NULL;
    kolo_signal_wait_t wait = {.peer = (r->rank + r->nranks - 1) % r->nranks, .signal = 0, .count = 1};
    int next = (r->rank + 1) % r->nranks;
    return CALL(kolo_window_register(r->comm, r->buffer + D, 4096, &window)) &&
           CALL(kolo_put_signal(r->buffer, 100, KOLO_INT32, next, window, 0, 0, r->comm, r->streams[0])) &&
           CALL(kolo_wait_signal(&wait, 1, r->comm, r->streams[0])) && CALL(kolo_comm_synchronize(r->comm)) &&
           CALL(kolo_window_deregister(r->comm, window));
}

static bool lives(const now_t *n)
{
    const kit_rank_t *r = n->r;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t made[5] = {NULL};
    int last = r->nranks - 1;
    size_t bytes;
    bool good = CALL(kolo_comm_split(r->comm, 0, r->rank, &made[0], &config)) &&
                CALL(kolo_comm_dup(r->comm, &made[1], &config)) &&
                CALL(kolo_comm_dup(r->comm, &made[2], &config)) && CALL(kolo_comm_dup(r->comm, &made[4], &config));
    for (int i = 0; i < 3 && good; i++)
        good = CALL(kolo_all_reduce(r->buffer, r->buffer + B, LONG, KOLO_INT32, KOLO_SUM, made[i], r->streams[0]));
    if (good && !getenv("KOLO_GPU_EXECUTOR")) /* else there is nothing to give */
        good = CALL(kolo_comm_suspend(made[0], &bytes)) && CALL(kolo_comm_resume(made[0]));
    good = good && CALL(kolo_comm_finalize(made[0])) && CALL(kolo_comm_destroy(made[0])) &&
           CALL(kolo_comm_leave(made[1])) && CALL(kolo_comm_destroy(made[1])) && CALL(kolo_comm_destroy(made[2]));
    if (good && r->nranks > 2 && r->rank != last)
        good = CALL(kolo_comm_shrink(made[4], &last, 1, KOLO_SHRINK_ABORT, &made[3], NULL)) &&
               CALL(kolo_comm_destroy(made[3]));
    return CALL(kolo_comm_abort(made[4])) && good;
}

static bool all(const now_t *n)
{
    bool kernels = !getenv("KOLO_GPU_EXECUTOR"); /* factors of a GPU and windows need them */
    return same(n, true, "the program") && collectives(n, FEW) && collectives(n, LONG) && groups(n) && others(n) &&
           (!kernels || (factors(n) && windows(n))) && lives(n);
}

/* Values are right, too: what was queued went to the communicator's GPU. */
static bool beside(kit_team_t *t, kolo_cu_ctx_t ctx, const char *name)
{
    kit_rank_t *r = &t->ranks[0];
    kolo_cu_ctx_t old;
    now_t n = {r, ctx};
    bool good = clients_put(r, A, LONG, 90, r->streams[0]) && clients_put(r, E, 1, 90, r->streams[0]) &&
                kit_sync(r, r->streams[0]);
    kit_leave(r);
    good = good && (!ctx || !kit_cuda()->ctx_push(ctx)) && all(&n);
    good = good && KIT_OK(kolo_all_reduce(r->buffer + A, r->buffer + C, LONG, KOLO_INT32, KOLO_SUM, r->comm,
                                          r->streams[0]));
    if (ctx) kit_cuda()->ctx_pop(&old);
    kit_enter(r);
    good = good && clients_is_sum(r, C, LONG, 90, 1, r->streams[0], name);
    return kit_case_end(t, good, name);
}

/* Communicators and windows come and go while this thread captures a stream: their memory is none of the capture.
 */
static bool beside_a_capture(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    now_t n = {r, NULL};
    void *plan = NULL, *graph = NULL;
    if (kit_cuda()->ctx_get(&n.ctx)) return false;
    bool good = clients_put(r, A, COUNT, 92, r->streams[0]) && kit_sync(r, r->streams[0]) &&
                kit_capture(r, r->streams[1]) && clients_sum(r, A, C, r->streams[1]);
    good = good && (getenv("KOLO_GPU_EXECUTOR") || windows(&n)) && lives(&n);
    good = kit_captured(r, r->streams[1], &plan) && good && kit_graph(r, plan, &graph);
    good = good && kit_replay(r, graph, r->streams[1]) && kit_sync(r, r->streams[1]) &&
           clients_is_sum(r, C, COUNT, 92, 1, r->streams[1], "the replay");
    kit_graph_end(graph);
    return kit_case_end(t, good, "communicators that come and go beside a capture");
}

bool clients_current(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    kolo_cu_ctx_t other = NULL;
    if (t->n > 1) return true;
    if (!beside(t, NULL, "calls while no context is current") || !beside_a_capture(t)) return false;
    if (kit_devices() < 2 || kit_cuda()->primary_retain(&other, (r->device + 1) % kit_devices())) return true;
    bool good = beside(t, other, "calls while another GPU's context is current");
    kit_cuda()->primary_release((r->device + 1) % kit_devices());
    return good;
}
