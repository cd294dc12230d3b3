/* SPDX-License-Identifier: Apache-2.0
 *
 * Conformance of calls on streams: the default ones, those of two communicators, one communicator's calls on
 * several, and streams that are captured. See conform.h.
 */
#include "conform.h"

#include <stdlib.h>
#include <string.h>

/* Each rank's sum over `count` elements at `from`, to `to`; no context is current. */
static bool sums(kit_team_t *t, size_t from, size_t to, size_t count, void *const *streams)
{
    bool good = true;
    if (t->n > 1) good = KIT_OK(kolo_group_start());
    for (int i = 0; i < t->n; i++) {
        kit_rank_t *r = &t->ranks[i];
        kit_leave(r);
        good = KIT_OK(kolo_all_reduce(r->buffer + from, r->buffer + to, count, KOLO_INT32, KOLO_SUM, r->comm,
                                      streams[i])) &&
               good;
    }
    if (t->n > 1) good = KIT_OK(kolo_group_end()) && good;
    return good;
}

static void fill(kit_rank_t *r, size_t count)
{
    for (size_t k = 0; k < count; k++) ((int32_t *)(void *)r->image)[k] = (int32_t)k + r->rank;
}

/* After `sums` sums, each over the last one's result. */
static bool holds(kit_rank_t *r, size_t at, size_t count, int sums, void *stream)
{
    const int32_t *back = (const int32_t *)(const void *)(r->back + at);
    int32_t n = r->nranks, times = 1;
    for (int i = 1; i < sums; i++) times *= n;
    if (!kit_download(r, at, 4 * count, stream) || !kit_sync(r, stream)) return false;
    for (size_t k = 0; k < count; k++)
        if (back[k] != times * (n * (int32_t)k + n * (n - 1) / 2))
            return KIT_FAIL("rank %d: element %zu is %d", r->rank, k, (int)back[k]);
    return true;
}

/* The default streams by their three names, and a thread without a context. */
static bool default_streams(kit_team_t *t)
{
    void *const names[] = {NULL, (void *)(uintptr_t)1, (void *)(uintptr_t)2}; /* NOLINT: a driver's numbers */
    const size_t count = 5000;
    bool good = true;
    if (t->options->host || t->ranks[0].streams[3] != names[2]) return true; /* ranks that share a context */
    for (int s = 0; s < 3; s++) {
        void *streams[KIT_RANKS];
        for (int i = 0; i < t->n; i++) {
            fill(&t->ranks[i], count);
            streams[i] = names[s];
            good = kit_upload(&t->ranks[i], 0, 4 * count, names[s]) && good;
        }
        good = sums(t, 0, 65536, count, streams) && good;
        for (int i = 0; i < t->n && good; i++) good = holds(&t->ranks[i], 65536, count, 1, names[s]);
    }
    return kit_case_end(t, good, "the default streams, without a current context");
}

/* Two on each device, whose calls alternate on two streams, and wait for each other by the data alone. */
static bool two_communicators(kit_team_t *t)
{
    const size_t count = 20000;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t first[KIT_RANKS], second[KIT_RANKS];
    void *streams[2][KIT_RANKS];
    bool good = true;
    if (t->options->host) return true;
    for (int i = 0; i < t->n; i++) first[i] = t->ranks[i].comm;
    if (!kit_comms_make(t, &config)) return false;
    for (int i = 0; i < t->n; i++) {
        second[i] = t->ranks[i].comm;
        for (int s = 0; s < 2; s++) streams[s][i] = t->ranks[i].streams[s];
        fill(&t->ranks[i], count);
        good =
            kit_upload(&t->ranks[i], 0, 4 * count, streams[0][i]) && kit_sync(&t->ranks[i], streams[0][i]) && good;
    }
    for (int round = 0; round < 6; round++)
        for (int s = 0; s < 2; s++) {
            for (int i = 0; i < t->n; i++) t->ranks[i].comm = s ? second[i] : first[i];
            size_t place = 100000 * (1 + (size_t)s);
            good = sums(t, round % 3 ? place : 0, place, count, streams[s]) && good;
        }
    for (int i = 0; i < t->n; i++)
        for (int s = 0; s < 2 && good; s++)
            good = holds(&t->ranks[i], 100000 * (1 + (size_t)s), count, 3, streams[s][i]);
    for (int i = 0; i < t->n; i++) good = KIT_OK(kolo_comm_destroy(second[i])) && good;
    for (int i = 0; i < t->n; i++) t->ranks[i].comm = first[i];
    return kit_case_end(t, good, "two communicators on each device");
}

/* ---- one communicator, two streams ---- */

enum { SHORT = 1000, LONG = 70000 }; /* elements: over several hosts, as a whole, and in levels */
enum { FIRST = 1 << 20, SECOND = 2 << 20 };

/* The second call reads what the first one writes, which is held up on its stream. */
static bool follows(kit_team_t *t, size_t first, size_t second, void *streams[2][KIT_RANKS])
{
    bool good = true;
    for (int i = 0; i < t->n; i++) {
        kit_rank_t *r = &t->ranks[i];
        memset(r->image + FIRST, 0xff, sizeof(int32_t) * LONG);
        good = kit_upload(r, FIRST, sizeof(int32_t) * LONG, streams[1][i]) && kit_sync(r, streams[1][i]) && good;
        good = kit_hold(r, streams[0][i]) && good;
    }
    good = sums(t, 0, FIRST, first, streams[0]) && good;
    good = sums(t, FIRST, SECOND, second, streams[1]) && good;
    for (int k = 0; k < 100; k++) kit_nap();
    for (int i = 0; i < t->n; i++) kit_let_go(&t->ranks[i]);
    for (int i = 0; i < t->n && good; i++)
        good = holds(&t->ranks[i], SECOND, SHORT, 2, streams[1][i]) && kit_sync(&t->ranks[i], streams[0][i]);
    return kit_case_end(t, good, "calls of a communicator on two streams, in their order");
}

/* An executor may do all that a call is before it returns (tests/seams): then it waits for the stream itself. */
static bool calls_wait(void)
{
    const char *name = getenv("KOLO_GPU_EXECUTOR");
    return name && strcmp(name, "blocking") == 0;
}

/* Calls that go other ways were on the second stream last. */
static bool in_order(kit_team_t *t)
{
    void *streams[2][KIT_RANKS];
    bool good = true;
    if (t->options->host || calls_wait()) return true; /* its streams cannot be held */
    for (int i = 0; i < t->n; i++) {
        for (int s = 0; s < 2; s++) streams[s][i] = t->ranks[i].streams[s];
        fill(&t->ranks[i], LONG);
        good = kit_upload(&t->ranks[i], 0, sizeof(int32_t) * LONG, streams[1][i]) && good;
    }
    good = sums(t, 0, SECOND, SHORT, streams[1]) && sums(t, 0, SECOND, LONG, streams[1]) && good;
    return good && follows(t, LONG, SHORT, streams) && follows(t, SHORT, LONG, streams);
}

/* ---- graphs over several hosts ---- */

/* A captured call takes a place of its own in host memory, however many steps it has: of those there are 2047. */
enum { PLACES = 2047, CALLS = 12, BLOCK = 1400 << 10 };

static bool exchanged(kit_rank_t *r, size_t block, void *stream)
{
    size_t n = (size_t)r->nranks, to = n * block;
    if (!kit_download(r, to, n * block, stream) || !kit_sync(r, stream)) return false;
    for (size_t i = 0; i < n * block; i++)
        if ((uint8_t)r->back[to + i] != i / block * n + (size_t)r->rank)
            return KIT_FAIL("rank %d: byte %zu is wrong", r->rank, i);
    return true;
}

/* What is captured runs once: here and now on the fake, else by a replay. */
static bool replay(const kit_rank_t *r, void *stream)
{
    void *plan = NULL, *graph = NULL;
    bool good = kit_captured(r, stream, &plan);
    if (good && plan) good = kit_graph(r, plan, &graph) && kit_replay(r, graph, stream) && kit_sync(r, stream);
    kit_graph_end(graph);
    return good;
}

/* Each block holds who sends it to whom. */
static bool captured(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    void *stream = r->streams[0];
    size_t n = (size_t)r->nranks, most = r->room / 2 / n, block = most < BLOCK ? most : BLOCK;
    for (size_t p = 0; p < n; p++) memset(r->image + p * block, (int)((size_t)r->rank * n + p), block);
    bool good = kit_upload(r, 0, n * block, stream) && kit_sync(r, stream) && kit_capture(r, stream);
    for (int i = 0; i < CALLS && good; i++)
        good = KIT_OK(kolo_all_to_all(r->buffer, r->buffer + n * block, block, KOLO_UINT8, r->comm, stream));
    good = replay(r, stream) && good && exchanged(r, block, stream);
    return kit_case_end(t, good, "captured calls of many steps");
}

/* Nothing of a call runs that does not find a place. */
static bool refused(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    void *stream = r->streams[0];
    memset(r->image + FIRST, 0xff, sizeof(int32_t) * LONG);
    bool good =
        kit_upload(r, FIRST, sizeof(int32_t) * LONG, stream) && kit_sync(r, stream) && kit_capture(r, stream);
    kolo_status_t status = KOLO_OK;
    for (int i = 0; i <= PLACES && good && status == KOLO_OK; i++)
        status = kolo_all_reduce(r->buffer, r->buffer + SECOND, 1, KOLO_INT32, KOLO_SUM, r->comm, stream);
    if (status != KOLO_ERR_UNSUPPORTED) good = KIT_FAIL("rank %d: %s", r->rank, kolo_status_string(status));
    status = kolo_all_reduce(r->buffer, r->buffer + FIRST, LONG - 1, KOLO_INT32, KOLO_SUM, r->comm, stream);
    if (status != KOLO_ERR_UNSUPPORTED) good = KIT_FAIL("rank %d: %s", r->rank, kolo_status_string(status));
    good =
        replay(r, stream) && good && kit_download(r, FIRST, sizeof(int32_t) * LONG, stream) && kit_sync(r, stream);
    for (size_t i = 0; i < sizeof(int32_t) * LONG && good; i++)
        if (r->back[FIRST + i] != (char)0xff) good = KIT_FAIL("rank %d: a refused call has run", r->rank);
    return kit_case_end(t, good, "captured calls that find no place");
}

bool conform_streams(kit_team_t *t)
{
    bool good = default_streams(t) && two_communicators(t) && in_order(t);
    return t->options->hosts && !t->options->host ? good && captured(t) && refused(t) : good;
}
