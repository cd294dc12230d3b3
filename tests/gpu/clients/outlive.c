/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs that outlive the communicator whose calls they have: a replay ends and touches nothing that is gone, and
 * the memory goes with the graph, once its last replay is over. See clients.h.
 */
#include "clients.h"

#include <stdio.h>
#include <string.h>

enum { SHORT = 500, LONG = 100000, MESSAGES = 100, MESSAGE = 16 };

/* A short sum, a long one, and more messages than fit into a launch. */
static bool calls(const kit_rank_t *r, void *stream)
{
    int next = (r->rank + 1) % r->nranks, last = (r->rank + r->nranks - 1) % r->nranks;
    char *at = r->buffer;
    bool good = KIT_OK(kolo_all_reduce(at + A, at + B, SHORT, KOLO_INT32, KOLO_SUM, r->comm, stream)) &&
                KIT_OK(kolo_all_reduce(at + A, at + C, LONG, KOLO_INT32, KOLO_SUM, r->comm, stream)) &&
                KIT_OK(kolo_group_start());
    for (size_t k = 0; k < MESSAGES * MESSAGE * 4 && good; k += MESSAGE * 4)
        good = KIT_OK(kolo_send(at + A + k, MESSAGE, KOLO_INT32, next, r->comm, stream)) &&
               KIT_OK(kolo_recv(at + D + k, MESSAGE, KOLO_INT32, last, r->comm, stream));
    return KIT_OK(kolo_group_end()) && good;
}

/* Pieces of virtual memory that are mapped here, regions among them; 0: a real driver does not tell. */
static long mapped(void)
{
    return kit_calls("cuMemMap") - kit_calls("cuMemUnmap");
}

static bool another_communicator_comes_and_goes(kit_team_t *t)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    if (!kit_comms_make(t, &config)) return false;
    kit_comms_end(t);
    return kit_meet(t);
}

/* All ranks are where nothing is made or ended. */
static bool is_mapped(kit_team_t *t, long want, const char *when)
{
    long now = kit_meet(t) ? mapped() : -1;
    if (!kit_meet(t)) return false;
    return now == want || KIT_FAIL("%s %ld pieces are mapped, not %ld", when, now, want);
}

static bool captured(kit_rank_t *r, void **graph)
{
    void *plan = NULL, *stream = r->streams[0];
    bool good = kit_capture(r, stream) && calls(r, stream);
    good = kit_captured(r, stream, &plan) && good && kit_graph(r, plan, graph);
    return good && clients_put(r, A, LONG, 71, stream) && kit_replay(r, *graph, stream) &&
           clients_is_sum(r, B, SHORT, 71, 1, stream, "short, of a replay") &&
           clients_is_sum(r, C, LONG, 71, 1, stream, "long, of a replay") &&
           clients_is_from(r, (r->rank + r->nranks - 1) % r->nranks, D, MESSAGES * MESSAGE, 71, stream, "replayed");
}

/* The graph goes while its last replay is held. */
static bool the_last_replay(kit_team_t *t, void *graph, long with, bool fake)
{
    kit_rank_t *r = &t->ranks[0];
    void *stream = r->streams[0];
    bool good = kit_hold(r, stream) && kit_replay(r, graph, stream);
    kit_graph_end(graph);
    for (int k = 0; k < 20; k++) kit_nap();
    good =
        good && another_communicator_comes_and_goes(t) && (!fake || is_mapped(t, with, "before the last replay"));
    kit_let_go(r);
    return kit_sync(r, stream) && good;
}

static bool outlived(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t first = r->comm;
    void *graph = NULL;
    bool fake = kit_calls(NULL) >= 0, gone = false;
    if (t->n > 1) return true;
    if (!another_communicator_comes_and_goes(t)) return false;
    long before = mapped(), with;
    if (!kit_meet(t) || !kit_comms_make(t, &config) || !kit_meet(t)) return false;
    bool good = captured(r, &graph) && kit_meet(t);
    with = mapped();
    if (!good || !kit_meet(t)) return false;
    kit_comms_end(t);
    good = !fake || is_mapped(t, with, "behind the end");
    for (int k = 0; k < 3 && good; k++) /* what comes out is not told */
        good = kit_replay(r, graph, r->streams[0]) && kit_sync(r, r->streams[0]);
    good = the_last_replay(t, graph, with, fake) && good;
    for (int k = 0; k < 50 && fake && good && !gone; k++) { /* the driver's thread may be late */
        good = another_communicator_comes_and_goes(t) && kit_meet(t);
        gone = mapped() <= before;
        good = good && kit_meet(t);
    }
    if (good && fake && !gone) good = KIT_FAIL("%ld pieces stay mapped, %ld were before", mapped(), before);
    r->comm = first;
    return good;
}

bool clients_outlive(kit_team_t *t)
{
    return kit_case_end(t, outlived(t), "graphs that are replayed behind the end of their communicator");
}
