/* SPDX-License-Identifier: Apache-2.0
 *
 * What clients do that a benchmark does not: streams that come and go, groups on several streams, groups of which a
 * part is refused, groups of many messages, captures with branches, replays beside calls. See conform.h.
 */
#include "clients.h"

#include <stdlib.h>
#include <string.h>

int32_t clients_number(int rank, size_t k, int salt)
{
    return (int32_t)(k * 3 + (size_t)rank * 7 + (size_t)salt * 11);
}

bool clients_put(kit_rank_t *r, size_t at, size_t count, int salt, void *stream)
{
    for (size_t k = 0; k < count; k++) ((int32_t *)(void *)(r->image + at))[k] = clients_number(r->rank, k, salt);
    return kit_upload(r, at, 4 * count, stream);
}

bool clients_is_sum(kit_rank_t *r, size_t at, size_t count, int salt, int times, void *stream, const char *what)
{
    const int32_t *back = (const int32_t *)(const void *)(r->back + at);
    if (!kit_download(r, at, 4 * count, stream) || !kit_sync(r, stream)) return false;
    for (size_t k = 0; k < count; k++) {
        int32_t want = 0;
        for (int i = 0; i < r->nranks; i++) want += clients_number(i, k, salt);
        for (int i = 1; i < times; i++) want *= r->nranks;
        if (back[k] != want)
            return KIT_FAIL("%s: rank %d: element %zu is %d, not %d", what, r->rank, k, (int)back[k], (int)want);
    }
    return true;
}

bool clients_is_from(kit_rank_t *r, int rank, size_t at, size_t count, int salt, void *stream, const char *what)
{
    const int32_t *back = (const int32_t *)(const void *)(r->back + at);
    if (!kit_download(r, at, 4 * count, stream) || !kit_sync(r, stream)) return false;
    for (size_t k = 0; k < count; k++)
        if (back[k] != clients_number(rank, k, salt))
            return KIT_FAIL("%s: rank %d: element %zu is %d, not %d", what, r->rank, k, (int)back[k],
                            (int)clients_number(rank, k, salt));
    return true;
}

bool clients_sum(const kit_rank_t *r, size_t from, size_t to, void *stream)
{
    return KIT_OK(kolo_all_reduce(r->buffer + from, r->buffer + to, COUNT, KOLO_INT32, KOLO_SUM, r->comm, stream));
}

bool clients_begin(const kit_team_t *t)
{
    return t->n == 1 || KIT_OK(kolo_group_start());
}
bool clients_end(const kit_team_t *t)
{
    return t->n == 1 || KIT_OK(kolo_group_end());
}

/* ---- streams ---- */

/* Each call on a stream of its own, which is gone when the next one comes. */
static bool on_short_streams(kit_team_t *t, int calls)
{
    void *streams[KIT_RANKS];
    bool good = true;
    for (int c = 0; c < calls && good; c++) {
        for (int i = 0; i < t->n; i++) good = (streams[i] = kit_stream_new(&t->ranks[i])) && good;
        for (int i = 0; i < t->n && good && !c; i++)
            good = kit_hold(&t->ranks[i], streams[i]) && clients_put(&t->ranks[i], A, COUNT, 1, streams[i]);
        good = good && clients_begin(t);
        for (int i = 0; i < t->n && good; i++) good = clients_sum(&t->ranks[i], c ? B : A, B, streams[i]);
        good = good && clients_end(t);
        for (int i = 0; i < t->n; i++) kit_stream_end(&t->ranks[i], streams[i]);
    }
    for (int k = 0; k < 20; k++) kit_nap(); /* handles come again while the first stream is held */
    for (int i = 0; i < t->n; i++) kit_let_go(&t->ranks[i]);
    return good;
}

static bool streams_go(kit_team_t *t)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t first[KIT_RANKS];
    bool good = on_short_streams(t, 3);
    if (good) good = clients_begin(t); /* behind them, on a stream that stays */
    for (int i = 0; i < t->n && good; i++) good = clients_sum(&t->ranks[i], B, C, t->ranks[i].streams[1]);
    good = good && clients_end(t);
    for (int i = 0; i < t->n && good; i++)
        good = clients_is_sum(&t->ranks[i], C, COUNT, 1, 4, t->ranks[i].streams[1], "streams that go");
    if (!kit_case_end(t, good, "streams that are destroyed behind their call")) return false;
    for (int i = 0; i < t->n; i++) first[i] = t->ranks[i].comm;
    if (!kit_comms_make(t, &config)) return false;
    good = on_short_streams(t, 2); /* and then the communicator */
    kit_comms_end(t);
    for (int i = 0; i < t->n; i++) t->ranks[i].comm = first[i];
    return kit_case_end(t, good, "a communicator that ends after its streams");
}

/* The calls of a group read what another of its streams writes, which is held up, and are read on yet another. */
static bool group_meets(kit_team_t *t, bool messages)
{
    bool good = true;
    for (int i = 0; i < t->n; i++) {
        kit_rank_t *r = &t->ranks[i];
        good = clients_put(r, A, COUNT, 2, r->streams[0]) && clients_put(r, B, COUNT, 3, r->streams[0]) &&
               kit_sync(r, r->streams[0]) && kit_hold(r, r->streams[1]) &&
               clients_put(r, A, COUNT, 4, r->streams[1]) && good;
    }
    good = good && KIT_OK(kolo_group_start());
    for (int i = 0; i < t->n && good; i++) {
        kit_rank_t *r = &t->ranks[i];
        int next = (r->rank + 1) % r->nranks, last = (r->rank + r->nranks - 1) % r->nranks;
        if (messages)
            good = KIT_OK(kolo_send(r->buffer + A, COUNT, KOLO_INT32, next, r->comm, r->streams[0])) &&
                   KIT_OK(kolo_recv(r->buffer + C, COUNT, KOLO_INT32, last, r->comm, r->streams[1]));
        else
            good = clients_sum(r, A, C, r->streams[0]) && clients_sum(r, B, D, r->streams[1]);
    }
    good = KIT_OK(kolo_group_end()) && good;
    for (int k = 0; k < 100; k++) kit_nap();
    for (int i = 0; i < t->n; i++) kit_let_go(&t->ranks[i]);
    for (int i = 0; i < t->n && good; i++) {
        kit_rank_t *r = &t->ranks[i];
        if (messages)
            good =
                clients_is_from(r, (r->rank + r->nranks - 1) % r->nranks, C, COUNT, 4, r->streams[0], "messages");
        else
            good = clients_is_sum(r, D, COUNT, 3, 1, r->streams[0], "on the other stream") &&
                   clients_is_sum(r, C, COUNT, 4, 1, r->streams[1], "behind the other stream");
        good = kit_sync(r, r->streams[1]) && good;
    }
    return kit_case_end(t, good, messages ? "messages of a group on two streams" : "a group on two streams");
}

/* ---- captures ---- */

/* B is the sum of A, on one branch; C that of B, on another, with which the program makes no order. */
static bool capture_branches(kit_rank_t *r, void **graph)
{
    kolo_cu_event_t fork = NULL, join = NULL;
    void *plan = NULL;
    bool good = kit_event_new(&fork) && kit_event_new(&join) && kit_capture(r, r->streams[0]);
    good = good && kit_event_record(fork, r->streams[0]) && kit_stream_wait(r, r->streams[1], fork);
    good = good && clients_sum(r, A, B, r->streams[0]) && clients_sum(r, B, C, r->streams[1]) &&
           clients_sum(r, C, D, r->streams[0]);
    good = good && kit_event_record(join, r->streams[1]) && kit_stream_wait(r, r->streams[0], join);
    good = kit_captured(r, r->streams[0], &plan) && good;
    kit_event_end(fork);
    kit_event_end(join);
    return good && kit_graph(r, plan, graph);
}

static bool replays_in_order(kit_rank_t *r, void *graph)
{
    bool held = r->rank % 2 == 0, good = true;
    for (int round = 0; round < 4 && good; round++) {
        void *first = r->streams[round % 2], *second = r->streams[1 - round % 2];
        good = clients_put(r, A, COUNT, 5 + round, first) && kit_sync(r, first);
        if (held) good = kit_hold(r, first) && good; /* on some ranks only: others are ahead */
        good = good && kit_replay(r, graph, first) && clients_sum(r, D, E, second); /* behind the replay */
        for (int k = 0; k < 20; k++) kit_nap();
        kit_let_go(r);
        good = good && clients_is_sum(r, E, COUNT, 5 + round, 4, second, "behind a replay") && kit_sync(r, first);
        if (held) good = good && kit_hold(r, first);
        good = good && clients_sum(r, A, E, first) && kit_replay(r, graph, second); /* ahead of it */
        for (int k = 0; k < 20; k++) kit_nap();
        kit_let_go(r);
        good = good && clients_is_sum(r, D, COUNT, 5 + round, 3, second, "a replay behind a call") &&
               clients_is_sum(r, E, COUNT, 5 + round, 1, first, "a call ahead of a replay");
    }
    return good;
}

/* A call on a stream that is not captured is none of the capture. */
static bool beside_a_capture(kit_rank_t *r)
{
    void *plan = NULL, *graph = NULL;
    bool good = clients_put(r, A, COUNT, 9, r->streams[1]) && kit_sync(r, r->streams[1]) &&
                clients_sum(r, A, B, r->streams[0]) && kit_sync(r, r->streams[0]);
    good = good && kit_capture(r, r->streams[0]) && clients_sum(r, A, C, r->streams[0]);
    good = good && clients_sum(r, A, B, r->streams[1]) && clients_sum(r, C, D, r->streams[0]);
    good = kit_captured(r, r->streams[0], &plan) && good && kit_graph(r, plan, &graph);
    good = good && clients_is_sum(r, B, COUNT, 9, 1, r->streams[1], "beside a capture");
    good = good && clients_sum(r, A, E, r->streams[1]) && kit_replay(r, graph, r->streams[0]);
    good = good && clients_is_sum(r, D, COUNT, 9, 2, r->streams[0], "the capture") &&
           clients_is_sum(r, E, COUNT, 9, 1, r->streams[1], "ahead of the replay");
    kit_graph_end(graph);
    return good;
}

static bool captures(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    void *graph = NULL;
    if (t->n > 1) return true; /* one thread's captures would need a group each */
    bool good = capture_branches(r, &graph);
    good = good && replays_in_order(r, graph);
    kit_graph_end(graph);
    if (!kit_case_end(t, good, "captured branches, replays and calls, in their order")) return false;
    return kit_case_end(t, beside_a_capture(r), "calls beside a capture");
}

/* ---- refused ---- */

static bool untouched(kit_rank_t *r, size_t at, size_t count, void *stream)
{
    if (!kit_download(r, at, 4 * count, stream) || !kit_sync(r, stream)) return false;
    for (size_t k = 0; k < 4 * count; k++)
        if (r->back[at + k] != 0x55) return KIT_FAIL("rank %d: a refused group has run", r->rank);
    return true;
}

typedef enum { BAD_ARGUMENT, BAD_MEMORY, DROPPED, WAYS } way_t;

/* On two communicators, of which the second has the call that is refused, on all ranks. */
static bool refuse(kit_team_t *t, const kolo_comm_t *second, way_t way)
{
    static int32_t mine[COUNT]; /* no GPU reaches it */
    bool good = true;
    for (int i = 0; i < t->n; i++) {
        kit_rank_t *r = &t->ranks[i];
        memset(r->image + B, 0x55, sizeof mine);
        good = kit_upload(r, B, sizeof mine, r->streams[0]) && clients_put(r, A, COUNT, 6, r->streams[0]) && good;
    }
    good = good && KIT_OK(kolo_group_start()) && KIT_OK(kolo_group_start());
    for (int i = 0; i < t->n && good; i++) {
        kit_rank_t *r = &t->ranks[i];
        kolo_status_t status = KOLO_OK;
        good = clients_sum(r, A, B, r->streams[0]);
        if (way == BAD_ARGUMENT)
            status = kolo_all_reduce(NULL, r->buffer + C, COUNT, KOLO_INT32, KOLO_SUM, second[i], r->streams[1]);
        else
            good = KIT_OK(kolo_all_reduce(way == BAD_MEMORY ? (void *)mine : r->buffer + A, r->buffer + C, COUNT,
                                          KOLO_INT32, KOLO_SUM, second[i], r->streams[1])) &&
                   good;
        if (way == BAD_ARGUMENT && status != KOLO_ERR_INVALID_ARGUMENT)
            good = KIT_FAIL("rank %d: a bad call in a group: %s", r->rank, kolo_status_string(status));
    }
    if (way == DROPPED) {
        good = KIT_OK(kolo_group_drop()) && good;
        if (kolo_group_end() != KOLO_ERR_INVALID_USAGE) good = KIT_FAIL("a dropped group can be ended");
    } else {
        good = KIT_OK(kolo_group_end()) && good;
        kolo_status_t status = kolo_group_end();
        if (status != KOLO_ERR_INVALID_ARGUMENT)
            good = KIT_FAIL("rank %d: a group that was refused: %s", t->ranks[0].rank, kolo_status_string(status));
    }
    for (int i = 0; i < t->n && good; i++) good = untouched(&t->ranks[i], B, COUNT, t->ranks[i].streams[0]);
    return good;
}

static bool all_or_nothing(kit_team_t *t)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t first[KIT_RANKS], second[KIT_RANKS];
    bool good = true;
    for (int i = 0; i < t->n; i++) first[i] = t->ranks[i].comm;
    if (!kit_comms_make(t, &config)) return false;
    for (int i = 0; i < t->n; i++) second[i] = t->ranks[i].comm, t->ranks[i].comm = first[i];
    for (int way = 0; way < WAYS && good; way++) good = refuse(t, second, (way_t)way);
    good = good && KIT_OK(kolo_group_start()); /* both are as they were */
    for (int i = 0; i < t->n && good; i++) {
        kit_rank_t *r = &t->ranks[i];
        good = clients_sum(r, A, B, r->streams[0]);
        r->comm = second[i];
        good = clients_sum(r, A, C, r->streams[1]) && good;
        r->comm = first[i];
    }
    good = KIT_OK(kolo_group_end()) && good;
    for (int i = 0; i < t->n && good; i++)
        good = clients_is_sum(&t->ranks[i], B, COUNT, 6, 1, t->ranks[i].streams[0], "after a refused group") &&
               clients_is_sum(&t->ranks[i], C, COUNT, 6, 1, t->ranks[i].streams[1], "after a refused group");
    for (int i = 0; i < t->n; i++) good = KIT_OK(kolo_comm_destroy(second[i])) && good;
    return kit_case_end(t, good, "a group of which a part is refused does not run");
}

/* ---- many messages ---- */

enum { MESSAGES = 1000, LONGEST = 120 }; /* numbers in a message; every 97th is long */

static size_t length(int i)
{
    return i % 97 == 5 ? 12000 : (size_t)(i * 7 % LONGEST);
}

typedef enum { IN_A_GROUP, ONE_BY_ONE, RECEIVES_FIRST, IN_PIECES } cut_t;

/* To the next rank and from the last one. */
static bool exchange_many(kit_rank_t *r, cut_t cut, void *stream)
{
    int next = (r->rank + 1) % r->nranks, last = (r->rank + r->nranks - 1) % r->nranks;
    size_t to = A, from = C;
    bool good = true, groups = cut == IN_A_GROUP || cut == IN_PIECES;
    if (groups) good = KIT_OK(kolo_group_start());
    for (int i = 0; i < MESSAGES && good && cut == RECEIVES_FIRST; from += 4 * length(i++))
        good = KIT_OK(kolo_recv(r->buffer + from, length(i), KOLO_INT32, last, r->comm, stream));
    for (int i = 0; i < MESSAGES && good; i++) {
        if (cut == IN_PIECES && i % 130 == 129) good = KIT_OK(kolo_group_end()) && KIT_OK(kolo_group_start());
        good = KIT_OK(kolo_send(r->buffer + to, length(i), KOLO_INT32, next, r->comm, stream)) && good;
        if (cut != RECEIVES_FIRST)
            good = KIT_OK(kolo_recv(r->buffer + from, length(i), KOLO_INT32, last, r->comm, stream)) && good;
        to += 4 * length(i);
        from += 4 * length(i);
    }
    return !groups || (KIT_OK(kolo_group_end()) && good);
}

static size_t all_lengths(void)
{
    size_t n = 0;
    for (int i = 0; i < MESSAGES; i++) n += length(i);
    return n;
}

static bool long_group(kit_team_t *t, cut_t odd, int salt)
{
    bool good = true;
    if (t->n > 1) good = KIT_OK(kolo_group_start());
    for (int i = 0; i < t->n && good; i++) {
        kit_rank_t *r = &t->ranks[i];
        good = clients_put(r, A, all_lengths(), salt, r->streams[0]) &&
               exchange_many(r, t->n == 1 && r->rank % 2 ? odd : IN_A_GROUP, r->streams[0]);
    }
    if (t->n > 1) good = KIT_OK(kolo_group_end()) && good;
    for (int i = 0; i < t->n && good; i++) {
        kit_rank_t *r = &t->ranks[i];
        good = clients_is_from(r, (r->rank + r->nranks - 1) % r->nranks, C, all_lengths(), salt, r->streams[0],
                               "many");
    }
    return kit_case_end(t, good, "a group of many messages, which the peer may cut");
}

static bool long_captured(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    void *plan = NULL, *graph = NULL;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t first = r->comm, mine;
    if (t->n > 1) return true;
    if (!kit_comms_make(t, &config)) return false; /* one that has to get memory for it in the capture */
    mine = r->comm;
    bool good = kit_capture(r, r->streams[0]) && exchange_many(r, IN_A_GROUP, r->streams[0]);
    good = kit_captured(r, r->streams[0], &plan) && good && kit_graph(r, plan, &graph);
    for (int round = 0; round < 3 && good; round++) {
        good = clients_put(r, A, all_lengths(), 20 + round, r->streams[0]) && kit_replay(r, graph, r->streams[0]) &&
               clients_is_from(r, (r->rank + r->nranks - 1) % r->nranks, C, all_lengths(), 20 + round,
                               r->streams[0], "many") &&
               exchange_many(r, IN_A_GROUP, r->streams[1]) && /* with a table of its own, or the same */
               kit_sync(r, r->streams[1]);
    }
    r->comm = first;
    good = KIT_OK(kolo_comm_destroy(mine)) && good;
    kit_graph_end(graph); /* behind its communicator */
    return kit_case_end(t, good, "a captured group of many messages");
}

/* ---- buffers ---- */

/* Block p of rank r's buffer is for rank p. */
static bool swapped_in_place(kit_team_t *t, size_t count)
{
    bool good = true;
    if (t->n > 1) good = KIT_OK(kolo_group_start());
    for (int i = 0; i < t->n && good; i++) {
        kit_rank_t *r = &t->ranks[i];
        for (int p = 0; p < r->nranks; p++)
            for (size_t k = 0; k < count; k++)
                ((int32_t *)(void *)r->image)[(size_t)p * count + k] = clients_number(r->rank, k, p);
        good = kit_upload(r, A, 4 * count * (size_t)r->nranks, r->streams[0]) &&
               KIT_OK(kolo_all_to_all(r->buffer, r->buffer, count, KOLO_INT32, r->comm, r->streams[0]));
    }
    if (t->n > 1) good = KIT_OK(kolo_group_end()) && good;
    for (int i = 0; i < t->n && good; i++)
        for (int p = 0; p < t->ranks[i].nranks && good; p++)
            good = clients_is_from(&t->ranks[i], p, 4 * count * (size_t)p, count, t->ranks[i].rank,
                                   t->ranks[i].streams[0], "in place");
    return kit_case_end(t, good, "all_to_all in place");
}

/* Pinned host memory, and that of the next rank's GPU. */
static bool other_memory(kit_team_t *t, size_t count, bool pinned)
{
    bool good = true;
    if (!pinned && t->n == 1) return true;
    for (int i = 0; i < t->n && good; i++) good = clients_put(&t->ranks[i], A, count, 7, t->ranks[i].streams[0]);
    for (int i = 0; i < t->n && good; i++) good = kit_sync(&t->ranks[i], t->ranks[i].streams[0]);
    good = good && clients_begin(t);
    for (int i = 0; i < t->n && good; i++) {
        kit_rank_t *r = &t->ranks[i], *next = &t->ranks[(i + 1) % t->n];
        const char *src = pinned ? r->image : r->buffer;
        char *dst = (pinned ? r->back : next->buffer) + (size_t)E;
        good = KIT_OK(kolo_all_reduce(src, dst, count, KOLO_INT32, KOLO_SUM, r->comm, r->streams[0])) &&
               KIT_OK(kolo_all_reduce(dst, r->buffer + C, count, KOLO_INT32, KOLO_SUM, r->comm, r->streams[0]));
    }
    good = good && clients_end(t);
    for (int i = 0; i < t->n && good; i++)
        good = clients_is_sum(&t->ranks[i], C, count, 7, 2, t->ranks[i].streams[0],
                              pinned ? "pinned" : "of another GPU");
    return kit_case_end(t, good, pinned ? "pinned host memory" : "memory of another GPU");
}

/* All ranks of a thread by one call, each with its device. */
static bool by_devices(kit_team_t *t)
{
    int devices[KIT_RANKS];
    kolo_comm_t first[KIT_RANKS], made[KIT_RANKS];
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    if (t->n == 1) return true;
    for (int i = 0; i < t->n; i++) devices[i] = t->ranks[i].device, first[i] = t->ranks[i].comm;
    config.init_timeout_ms = 2147483647; /* whoever sets no limit */
    bool good = KIT_OK(kolo_comm_init_devices(made, t->n, devices, &config)) && clients_begin(t);
    for (int i = 0; i < t->n && good; i++) {
        int device = -2;
        t->ranks[i].comm = made[i];
        good = clients_put(&t->ranks[i], A, COUNT, 8, t->ranks[i].streams[0]) &&
               clients_sum(&t->ranks[i], A, B, t->ranks[i].streams[0]) &&
               KIT_OK(kolo_comm_device(made[i], &device)) && good;
        if (device != devices[i]) good = KIT_FAIL("rank %d works on GPU %d, not %d", i, device, devices[i]);
    }
    good = good && clients_end(t);
    for (int i = 0; i < t->n && good; i++)
        good = clients_is_sum(&t->ranks[i], B, COUNT, 8, 1, t->ranks[i].streams[0], "by devices");
    for (int i = 0; i < t->n; i++) {
        good = KIT_OK(kolo_comm_destroy(made[i])) && good;
        t->ranks[i].comm = first[i];
    }
    return kit_case_end(t, good, "all ranks of a process by one call, a device each");
}

static bool buffers(kit_team_t *t)
{
    return swapped_in_place(t, 50) && swapped_in_place(t, 7001) && swapped_in_place(t, 200001) &&
           other_memory(t, 100, true) && other_memory(t, 60000, true) && other_memory(t, 100, false) &&
           other_memory(t, 60000, false);
}

/* Each fills much of a GPU; which comes first differs by rank, and both have a stream. */
static bool opposite_orders(kit_team_t *t)
{
    enum { MB2 = 2 << 20, ROUNDS = 20 };
    kit_rank_t *r = &t->ranks[0];
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t comms[2] = {r->comm, NULL};
    if (t->n > 1) return true;
    if (!kit_comms_make(t, &config)) return false;
    comms[1] = r->comm;
    bool good = clients_put(r, 0, MB2 / 4, 30, r->streams[0]) && clients_put(r, MB2, MB2 / 4, 31, r->streams[0]) &&
                kit_sync(r, r->streams[0]);
    for (int i = 0; i < 2 * ROUNDS && good; i++) {
        size_t which = (size_t)((i + r->rank) & 1), from = which * MB2;
        good = KIT_OK(kolo_all_reduce(r->buffer + from, r->buffer + from + 2 * (size_t)MB2, MB2 / 4, KOLO_INT32,
                                      KOLO_SUM, comms[which], r->streams[which]));
    }
    r->comm = comms[0];
    for (size_t which = 0; which < 2 && good; which++)
        good = clients_is_sum(r, (which + 2) * MB2, MB2 / 4, 30 + (int)which, 1, r->streams[which],
                              "two communicators");
    good = KIT_OK(kolo_comm_destroy(comms[1])) && good;
    return kit_case_end(t, good, "two communicators, in another order on each rank");
}

bool conform_clients(kit_team_t *t)
{
    if (t->ranks[0].nranks < 2 || t->options->host) return true;
    if (!clients_behind(t) || !streams_go(t) || !group_meets(t, false) || !group_meets(t, true) ||
        !all_or_nothing(t))
        return false;
    if (!long_group(t, IN_A_GROUP, 10) || !long_group(t, ONE_BY_ONE, 11) || !long_group(t, RECEIVES_FIRST, 12) ||
        !long_group(t, IN_PIECES, 13))
        return false;
    return buffers(t) && by_devices(t) && captures(t) && long_captured(t) && opposite_orders(t) &&
           clients_scalars(t) && clients_kinds(t) && clients_current(t) && clients_broken(t) &&
           clients_leaving(t) && clients_outlive(t);
}
