/* SPDX-License-Identifier: Apache-2.0
 *
 * What a short call asks of the driver, function by function: each costs the host time, and there is no other on
 * the way of a call. Counted by the fake driver. See conform.h.
 */
#include "clients.h"

#include <stdlib.h>

enum { CALLS = 40, FEW = 64 };

typedef struct {
    const char *name;
    bool apart;   /* source and destination are in two allocations */
    bool changes; /* each call is on another stream than the one before */
    bool grouped; /* a message to the next rank and one from the last, of which each is looked at once */
    bool slow;    /* each call comes so late that the driver is asked again about its memory */
} way_t;

typedef struct {
    const char *function;
    int least;               /* of a call */
    bool of_two, of_streams; /* once more for the second allocation; for the other stream alone */
    bool soon;               /* not so soon after the last time */
} cost_t;

static const cost_t costs[] = {
    {"cuCtxGetCurrent", 1, false, false, false},      /* whose context this thread has */
    {"cuPointerGetAttributes", 1, true, false, true}, /* is the same allocation still there? */
    {"cuStreamIsCapturing", 1, false, false, false},
    {"cuStreamGetId", 1, false, false, false}, /* a handle may be another stream's by now */
    {"cuStreamWaitEvent", 0, false, true, false},
    {"cuStreamGetCtx", 0, false, true, false}, /* is it one of this GPU? */
    {"cuEventRecord", 1, false, false, false}, /* the stream may be gone at the next call */
};

static bool exchange(kit_rank_t *r, const char *src)
{
    int next = (r->rank + 1) % r->nranks, last = (r->rank + r->nranks - 1) % r->nranks;
    bool good = KIT_OK(kolo_group_start()) &&
                KIT_OK(kolo_send(src, FEW, KOLO_INT32, next, r->comm, r->streams[0])) &&
                KIT_OK(kolo_recv(r->buffer + 4096, FEW, KOLO_INT32, last, r->comm, r->streams[0]));
    return KIT_OK(kolo_group_end()) && good;
}

static bool call_all(kit_rank_t *r, const way_t *way, const char *src, int calls)
{
    bool good = true;
    for (int i = 0; i < calls && good; i++) {
        good = way->grouped ? exchange(r, src)
                            : KIT_OK(kolo_all_reduce(src, r->buffer + 4096, FEW, KOLO_INT32, KOLO_SUM, r->comm,
                                                     r->streams[way->changes ? i & 1 : 0]));
        if (way->slow) kit_nap();
    }
    return good;
}

static bool is_cost(const kit_rank_t *r, const way_t *way, const long *before, long all)
{
    long calls = (long)CALLS * r->nranks, sum = 0;
    for (size_t i = 0; i < sizeof costs / sizeof costs[0]; i++) {
        const cost_t *c = &costs[i];
        long want =
            calls * (c->least + (c->of_two && (way->apart || way->grouped)) + (c->of_streams && way->changes));
        long found = kit_calls(c->function) - before[i];
        if (c->soon && !way->slow && found < want) want = found;
        if (found != want)
            return KIT_FAIL("%s: %ld calls of %s in %ld operations, not %ld", way->name, found, c->function, calls,
                            want);
        sum += want;
    }
    if (kit_calls(NULL) - all != sum + calls)
        return KIT_FAIL("%s: %ld calls of the driver in %ld operations, not %ld", way->name, kit_calls(NULL) - all,
                        calls, sum + calls);
    return true;
}

static bool counted(kit_team_t *t, const way_t *way)
{
    kit_rank_t *r = &t->ranks[0];
    const char *early = getenv("KOLO_GPU_EARLY_LAUNCH"),
               *launch = early || way->changes ? "cuLaunchKernel" : "cuLaunchKernelEx";
    long before[sizeof costs / sizeof costs[0]], all = 0, launched = 0;
    char *other = kit_alloc(r, 4096);
    const char *src = way->apart ? other : r->buffer;
    bool good = other && call_all(r, way, src, 4) && kit_sync(r, r->streams[0]) && kit_sync(r, r->streams[1]);
    if (!kit_meet(t)) return false;
    kit_enter(r);
    if (!kit_meet(t)) return false; /* nobody calls the driver */
    for (size_t i = 0; i < sizeof costs / sizeof costs[0]; i++) before[i] = kit_calls(costs[i].function);
    all = kit_calls(NULL);
    launched = kit_calls(launch);
    if (!kit_meet(t)) return false;
    good = call_all(r, way, src, CALLS) && good;
    if (!kit_meet(t)) return false;
    launched = kit_calls(launch) - launched;
    if (good && launched != (long)CALLS * r->nranks)
        good = KIT_FAIL("%ld calls of %s in %d operations of %d ranks", launched, launch, CALLS, r->nranks);
    good = good && is_cost(r, way, before, all);
    if (!kit_meet(t)) return false;
    good = kit_sync(r, r->streams[0]) && kit_sync(r, r->streams[1]) && good;
    kit_free(r, other);
    return kit_case_end(t, good, way->name);
}

/* Calls in a row do not ask each time. A few tries, and those that are slow do not count: the machine may be busy.
 */
static bool soon(kit_team_t *t)
{
    static const way_t way = {.name = "calls in a row ask once"};
    kit_rank_t *r = &t->ranks[0];
    bool good = call_all(r, &way, r->buffer, 4) && kit_sync(r, r->streams[0]), less = false, quick = false;
    for (int try = 0; try < 20 && !less; try++) {
        if (!kit_meet(t)) return false;
        long asked = kit_calls("cuPointerGetAttributes");
        if (!kit_meet(t)) return false;
        uint64_t begun = kit_now_ms();
        good = call_all(r, &way, r->buffer, CALLS) && good;
        quick = quick || kit_now_ms() == begun;
        if (!kit_meet(t)) return false;
        less = less || kit_calls("cuPointerGetAttributes") - asked < (long)CALLS * r->nranks * 3 / 4;
        if (!kit_meet(t)) return false;
        good = kit_sync(r, r->streams[0]) && good;
    }
    if (good && quick && !less)
        good = KIT_FAIL("%d calls in a row always asked the driver about their memory", CALLS);
    return kit_case_end(t, good, way.name);
}

/* A message to itself is a copy, behind which no kernel is launched early. */
static bool behind_a_copy(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    bool good = call_all(r, &(way_t){.grouped = true}, r->buffer, 4) && kit_sync(r, r->streams[0]);
    if (!kit_meet(t)) return false;
    long early = kit_calls("cuLaunchKernelEx");
    if (!kit_meet(t)) return false;
    for (int i = 0; i < CALLS && good; i++)
        good = KIT_OK(kolo_group_start()) &&
               KIT_OK(kolo_send(r->buffer, FEW, KOLO_INT32, r->rank, r->comm, r->streams[0])) &&
               KIT_OK(kolo_recv(r->buffer + 8192, FEW, KOLO_INT32, r->rank, r->comm, r->streams[0])) &&
               exchange(r, r->buffer) && KIT_OK(kolo_group_end());
    if (!kit_meet(t)) return false;
    early = kit_calls("cuLaunchKernelEx") - early;
    if (good && early) good = KIT_FAIL("%ld kernels behind copies were launched early", early);
    if (!kit_meet(t)) return false;
    return kit_case_end(t, kit_sync(r, r->streams[0]) && good, "a kernel behind a copy");
}

/* While there is another communicator on the GPU no kernel is launched early. */
static bool beside_another(kit_team_t *t)
{
    static const way_t way = {.name = "one beside another communicator"};
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kit_rank_t *r = &t->ranks[0];
    kolo_comm_t first = r->comm;
    if (!kit_comms_make(t, &config)) return false;
    bool good = call_all(r, &way, r->buffer, 4) && kit_sync(r, r->streams[0]);
    if (!kit_meet(t)) return false;
    long early = kit_calls("cuLaunchKernelEx");
    if (!kit_meet(t)) return false;
    good = call_all(r, &way, r->buffer, CALLS) && good;
    if (!kit_meet(t)) return false;
    early = kit_calls("cuLaunchKernelEx") - early;
    if (good && early) good = KIT_FAIL("%ld kernels beside another communicator were launched early", early);
    good = kit_sync(r, r->streams[0]) && good;
    kit_comms_end(t);
    r->comm = first;
    return kit_case_end(t, good, way.name);
}

bool conform_counts(kit_team_t *t)
{
    static const way_t ways[] = {{"what a short call asks of the driver", false, false, false, false},
                                 {"what one in two allocations asks", true, false, false, false},
                                 {"what a message and another one ask", false, false, true, false},
                                 {"what one on another stream asks", false, true, false, false},
                                 {"what one asks that comes late", true, false, false, true}};
    if (t->n > 1 || t->options->host || kit_calls(NULL) < 0) return true;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        if (!counted(t, &ways[i])) return false;
    return soon(t) && behind_a_copy(t) && beside_another(t);
}
