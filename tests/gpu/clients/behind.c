/* SPDX-License-Identifier: Apache-2.0
 *
 * Short calls on one stream for a while, none of which has run yet, and what comes behind them: a call on another
 * stream, also when theirs is gone; a capture; whoever waits for the end. See clients.h.
 */
#include "clients.h"

#include <pthread.h>
#include <string.h>

enum { CALLS = 40, SHORT = 500 };

static bool sum(const kit_rank_t *r, size_t from, size_t to, void *stream)
{
    return KIT_OK(kolo_all_reduce(r->buffer + from, r->buffer + to, SHORT, KOLO_INT32, KOLO_SUM, r->comm, stream));
}

static bool sums(kit_team_t *t, size_t from, size_t to, void *const *streams)
{
    bool good = clients_begin(t);
    for (int i = 0; i < t->n && good; i++) good = sum(&t->ranks[i], from, to, streams[i]);
    return good && clients_end(t);
}

static bool ring(kit_team_t *t, size_t from, size_t to, void *const *streams)
{
    bool good = KIT_OK(kolo_group_start());
    for (int i = 0; i < t->n && good; i++) {
        kit_rank_t *r = &t->ranks[i];
        int next = (r->rank + 1) % r->nranks, last = (r->rank + r->nranks - 1) % r->nranks;
        good = KIT_OK(kolo_send(r->buffer + from, SHORT, KOLO_INT32, next, r->comm, streams[i])) &&
               KIT_OK(kolo_recv(r->buffer + to, SHORT, KOLO_INT32, last, r->comm, streams[i]));
    }
    return KIT_OK(kolo_group_end()) && good;
}

/* From A to B again and again; B holds nothing before. held: none of it runs yet. */
static bool many(kit_team_t *t, int salt, bool messages, bool held, void *const *streams)
{
    bool good = true;
    for (int i = 0; i < t->n && good; i++) {
        kit_rank_t *r = &t->ranks[i];
        good = clients_put(r, A, SHORT, salt, streams[i]) && clients_put(r, B, SHORT, 99, streams[i]) &&
               kit_sync(r, streams[i]) && (!held || kit_hold(r, streams[i]));
    }
    for (int c = 0; c < CALLS && good; c++) good = messages ? ring(t, A, B, streams) : sums(t, A, B, streams);
    return good;
}

static void let_go(kit_team_t *t)
{
    for (int k = 0; k < 20; k++) kit_nap();
    for (int i = 0; i < t->n; i++) kit_let_go(&t->ranks[i]);
}

static void on(const kit_team_t *t, int which, void *streams[KIT_RANKS])
{
    for (int i = 0; i < t->n; i++) streams[i] = t->ranks[i].streams[which];
}

static bool then_on_another_stream(kit_team_t *t, bool gone, bool messages)
{
    void *first[KIT_RANKS], *second[KIT_RANKS];
    bool good = true;
    on(t, 0, first);
    on(t, 1, second);
    for (int i = 0; i < t->n && gone; i++) good = (first[i] = kit_stream_new(&t->ranks[i])) && good;
    good = good && many(t, 61, messages, true, first);
    for (int i = 0; i < t->n && gone; i++) kit_stream_end(&t->ranks[i], first[i]);
    good = good && (messages ? ring(t, B, C, second) : sums(t, B, C, second));
    let_go(t);
    for (int i = 0; i < t->n && good; i++) {
        kit_rank_t *r = &t->ranks[i];
        int from = (r->rank + 2 * r->nranks - 2) % r->nranks;
        good = messages ? clients_is_from(r, from, C, SHORT, 61, second[i], "behind many messages")
                        : clients_is_sum(r, C, SHORT, 61, 2, second[i], "behind many calls");
    }
    return kit_case_end(t, good,
                        messages ? "messages behind many on another stream"
                        : gone   ? "a call behind many on a stream that is gone"
                                 : "a call behind many on another stream");
}

static bool then_a_replay(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    void *plan = NULL, *graph = NULL;
    if (t->n > 1) return true;
    bool good = many(t, 62, false, true, r->streams) && kit_capture(r, r->streams[1]);
    good = good && sum(r, B, C, r->streams[1]);
    good = kit_captured(r, r->streams[1], &plan) && good && kit_graph(r, plan, &graph);
    good = good && kit_replay(r, graph, r->streams[1]) && sum(r, C, D, r->streams[0]);
    let_go(t);
    good = good && clients_is_sum(r, D, SHORT, 62, 3, r->streams[0], "behind a replay behind many calls") &&
           kit_sync(r, r->streams[1]);
    kit_graph_end(graph);
    return kit_case_end(t, good, "a replay behind many calls");
}

static void *let_go_soon(void *arg)
{
    for (int k = 0; k < 500; k++) kit_nap();
    kit_let_go(arg);
    return NULL;
}

/* The program queues a replay, of which the communicator hears nothing. */
static bool then_a_wait_for_a_replay(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    void *plan = NULL, *graph = NULL;
    pthread_t thread;
    if (t->n > 1) return true;
    bool good = many(t, 66, false, false, r->streams) && kit_sync(r, r->streams[0]) &&
                clients_put(r, C, SHORT, 99, r->streams[0]) && kit_sync(r, r->streams[0]);
    good = good && kit_capture(r, r->streams[1]) && sum(r, B, C, r->streams[1]);
    good = kit_captured(r, r->streams[1], &plan) && good && kit_graph(r, plan, &graph);
    good = good && kit_hold(r, r->streams[1]) && kit_replay(r, graph, r->streams[1]);
    if (!good || pthread_create(&thread, NULL, let_go_soon, r)) return false;
    good = KIT_OK(kolo_comm_synchronize(r->comm));
    good = clients_is_sum(r, C, SHORT, 66, 2, r->streams[0], "after a wait for a replay") && good;
    pthread_join(thread, NULL);
    good = kit_sync(r, r->streams[1]) && good;
    kit_graph_end(graph);
    return kit_case_end(t, good, "a wait for a replay that a held stream has");
}

static bool then_the_end(kit_team_t *t)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t first[KIT_RANKS];
    void *streams[KIT_RANKS];
    on(t, 0, streams);
    bool good = many(t, 63, false, true, streams);
    let_go(t);
    for (int i = 0; i < t->n && good; i++) good = KIT_OK(kolo_comm_synchronize(t->ranks[i].comm));
    for (int i = 0; i < t->n && good; i++)
        good = clients_is_sum(&t->ranks[i], B, SHORT, 63, 1, t->ranks[i].streams[1], "after a wait");
    for (int i = 0; i < t->n; i++) first[i] = t->ranks[i].comm;
    if (!kit_comms_make(t, &config)) return false;
    good = good && many(t, 64, false, false, streams);
    kit_comms_end(t); /* at once */
    for (int i = 0; i < t->n; i++) t->ranks[i].comm = first[i];
    for (int i = 0; i < t->n && good; i++)
        good = clients_is_sum(&t->ranks[i], B, SHORT, 64, 1, streams[i], "before the end");
    return kit_case_end(t, good, "a wait, and the end, behind many calls");
}

/* The replay comes last: pieces of a communicator that were captured change how it orders its calls. */
bool clients_behind(kit_team_t *t)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t first[KIT_RANKS];
    for (int i = 0; i < t->n; i++) first[i] = t->ranks[i].comm;
    if (!kit_comms_make(t, &config)) return false;
    bool good = then_on_another_stream(t, false, false) && then_on_another_stream(t, true, false) &&
                then_on_another_stream(t, false, true) && then_the_end(t) && then_a_replay(t) &&
                then_a_wait_for_a_replay(t);
    if (good) kit_comms_end(t);
    for (int i = 0; i < t->n; i++) t->ranks[i].comm = first[i];
    return good;
}
