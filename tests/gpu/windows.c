/* SPDX-License-Identifier: Apache-2.0
 *
 * Windows in the memory of GPUs: puts by copy engines, signals and waits on streams, for ranks as threads and as
 * processes, in memory from cuMemAlloc() and in memory that Kolo makes. See conform.h.
 */
#include "conform.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PART  (300000u) /* of each rank, in each window */
#define STEPS 300
#ifdef KOLO_SANITIZED
#define LIMIT_MS 4000
#else
#define LIMIT_MS 1000
#endif

static uint8_t value(int from, int to, int round, size_t i)
{
    return (uint8_t)(from * 59 + to * 31 + round * 13 + (int)(i % 251));
}

static bool refused(const kit_rank_t *r, kolo_status_t want, kolo_status_t got, const char *needle)
{
    const char *text = got == KOLO_OK ? "" : kolo_get_last_error(NULL);
    if (got == want && strstr(text, needle)) return true;
    return KIT_FAIL("rank %d: %s instead of %s with \"%s\": %s", r->rank, kolo_status_string(got),
                    kolo_status_string(want), needle, text);
}

/* buffer: what is put, then the window of the caller's memory, then where Kolo's is looked at. */
static size_t window_at(const kit_rank_t *r)
{
    return (size_t)r->nranks * PART;
}

/* Everybody puts to everybody, itself included, into the window; then waits for all. */
static bool round_of(kit_rank_t *r, kolo_window_t window, int round, bool grouped)
{
    static const size_t lengths[] = {1, 17, 4096, 65537, PART};
    size_t n = lengths[round % 5];
    void *stream = r->streams[round % 2];
    kolo_signal_wait_t waits[KIT_RANKS];
    bool good = true;
    for (int p = 0; p < r->nranks; p++) {
        for (size_t i = 0; i < n; i++) r->image[(size_t)p * PART + i] = (char)value(r->rank, p, round, i);
        waits[p] = (kolo_signal_wait_t){p, round % KOLO_SIGNALS, 1};
    }
    good = kit_upload(r, 0, window_at(r), stream) && good;
    if (grouped) good = KIT_OK(kolo_group_start()) && good;
    if (grouped) good = KIT_OK(kolo_wait_signal(waits, r->nranks, r->comm, stream)) && good;
    for (int p = 0; p < r->nranks; p++)
        good = KIT_OK(kolo_put_signal(r->buffer + (size_t)p * PART, n, KOLO_UINT8, p, window,
                                      (size_t)r->rank * PART, round % KOLO_SIGNALS, r->comm, stream)) &&
               good;
    if (!grouped) good = KIT_OK(kolo_wait_signal(waits, r->nranks, r->comm, stream)) && good;
    if (grouped) good = KIT_OK(kolo_group_end()) && good;
    return good;
}

static bool came(kit_rank_t *r, size_t at, int round)
{
    static const size_t lengths[] = {1, 17, 4096, 65537, PART};
    void *stream = r->streams[round % 2];
    if (!kit_download(r, at, window_at(r), stream) || !kit_sync(r, stream)) return false;
    for (int p = 0; p < r->nranks; p++)
        for (size_t i = 0; i < lengths[round % 5]; i++)
            if ((uint8_t)r->back[at + (size_t)p * PART + i] != value(p, r->rank, round, i))
                return KIT_FAIL("rank %d, round %d: byte %zu from rank %d is wrong", r->rank, round, i, p);
    return true;
}

static bool all_put(kit_team_t *t, bool kolo)
{
    kit_rank_t *r = &t->ranks[0];
    kolo_window_t window = NULL, copy = NULL, again = NULL;
    void *base = NULL;
    size_t at = window_at(r);
    bool good = KIT_OK(kolo_window_register(r->comm, kolo ? NULL : r->buffer + at, at, &window)) &&
                KIT_OK(kolo_window_memory(r->comm, window, &base, NULL));
    if (good && kolo) good = KIT_OK(kolo_window_register(r->comm, r->buffer + 2 * at, at, &copy));
    /* memory of the virtual kind, as if it were the caller's */
    if (good && kolo) good = KIT_OK(kolo_window_register(r->comm, base, at, &again));
    for (int round = 0; good && round < (t->options->quick ? 10 : 60); round++) {
        good = round_of(r, again && round % 2 ? again : window, round, round % 3 == 1);
        /* what lies in Kolo's memory is put where it can be looked at */
        if (good && kolo)
            good = KIT_OK(kolo_put(base, at, KOLO_UINT8, r->rank, copy, 0, r->comm, r->streams[round % 2]));
        good = good && came(r, kolo ? 2 * at : at, round);
        if (!kit_meet(t)) return false; /* the next round writes to the same place */
    }
    if (good && again) good = KIT_OK(kolo_window_deregister(r->comm, again));
    if (good && copy) good = KIT_OK(kolo_window_deregister(r->comm, copy));
    if (good) good = KIT_OK(kolo_window_deregister(r->comm, window));
    return kit_case_end(t, good, kolo ? "puts into memory that Kolo made" : "puts into memory of the caller");
}

/* A chain of small puts, each answered by a signal; the value is looked at on the way by copying it behind the
 * last. */
static bool chain(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    int next = (r->rank + 1) % r->nranks, last = (r->rank + r->nranks - 1) % r->nranks;
    size_t at = 4u * STEPS, seen = 8u * STEPS + 64;
    kolo_signal_wait_t data = {last, 0, 1}, room = {next, 1, 1};
    kolo_window_t window = NULL, log = NULL;
    int32_t *image = (int32_t *)(void *)r->image, *back = (int32_t *)(void *)(r->back + seen);
    void *stream = r->streams[0];
    bool good = KIT_OK(kolo_window_register(r->comm, r->buffer + at, 64, &window)) &&
                KIT_OK(kolo_window_register(r->comm, r->buffer + seen, 4u * STEPS, &log));
    for (int i = 0; i < STEPS; i++) image[i] = r->rank * 100000 + i;
    good = good && kit_upload(r, 0, 4u * STEPS, stream);
    for (int i = 0; good && i < STEPS; i++) {
        if (i) good = KIT_OK(kolo_wait_signal(&room, 1, r->comm, stream));
        good = good &&
               KIT_OK(kolo_put_signal(r->buffer + 4 * (size_t)i, 1, KOLO_INT32, next, window, 0, 0, r->comm,
                                      stream)) &&
               KIT_OK(kolo_wait_signal(&data, 1, r->comm, stream)) &&
               KIT_OK(kolo_put(r->buffer + at, 1, KOLO_INT32, r->rank, log, 4 * (size_t)i, r->comm, stream)) &&
               KIT_OK(kolo_signal(last, 1, r->comm, stream));
    }
    good = good && KIT_OK(kolo_wait_signal(&room, 1, r->comm, stream)) &&
           kit_download(r, seen, 4u * STEPS, stream) && kit_sync(r, stream);
    for (int i = 0; good && i < STEPS; i++)
        if (back[i] != last * 100000 + i) good = KIT_FAIL("rank %d: step %d brought %d", r->rank, i, (int)back[i]);
    good = good && KIT_OK(kolo_window_deregister(r->comm, window)) && KIT_OK(kolo_window_deregister(r->comm, log));
    return kit_case_end(t, good, "a chain of puts and signals");
}

static bool wrong(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    int32_t host[4] = {0};
    kolo_window_t window = NULL;
    bool good = refused(r, KOLO_ERR_INVALID_ARGUMENT, kolo_window_register(r->comm, host, sizeof host, &window),
                        "not memory of GPU");
    good =
        refused(r, KOLO_ERR_INVALID_ARGUMENT,
                kolo_window_register(r->comm, r->buffer + r->room - 16, 4096, &window), "end of its allocation") &&
        good;
    good = KIT_OK(kolo_window_register(r->comm, r->buffer, 64, &window)) && good;
    good =
        refused(r, KOLO_ERR_INVALID_ARGUMENT,
                kolo_put(host, 4, KOLO_INT32, r->rank, window, 0, r->comm, r->streams[0]), "not memory of a GPU") &&
        good;
    good = refused(r, KOLO_ERR_INVALID_ARGUMENT,
                   kolo_put(r->buffer, 4, KOLO_INT32, r->rank, window, 52, r->comm, r->streams[0]), "do not fit") &&
           good;
    good = KIT_OK(kolo_window_deregister(r->comm, window)) && good;
    return kit_case_end(t, good, "windows, and puts, that do not fit");
}

/* Nobody signals: an abort, on one rank after the other, lets the stream go on. */
static bool aborted(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    kolo_signal_wait_t wait = {(r->rank + 1) % r->nranks, 3, 1};
    kolo_window_t window = NULL;
    kolo_status_t state = KOLO_IN_PROGRESS;
    bool good = KIT_OK(kolo_window_register(r->comm, r->buffer, 64, &window)) &&
                KIT_OK(kolo_wait_signal(&wait, 1, r->comm, r->streams[0]));
    for (int i = 0; good && i < 20; i++) kit_nap();
    if (good && kit_query(r, r->streams[0]) != KOLO_IN_PROGRESS) good = KIT_FAIL("rank %d did not wait", r->rank);
    if (!kit_meet(t)) return false;
    good = KIT_OK(kolo_comm_abort(r->comm)) && good;
    r->comm = NULL;
    for (uint64_t end = kit_now_ms() + 20000; state == KOLO_IN_PROGRESS && kit_now_ms() < end; kit_nap())
        state = kit_query(r, r->streams[0]);
    if (state != KOLO_OK) good = KIT_FAIL("rank %d: the wait does not end: %s", r->rank, kolo_status_string(state));
    return kit_case_end(t, good, "an abort ends a wait for signals");
}

/* A rank waits for the second of two signals; the other sends one. What stands before the wait does not count. */
static bool late(kit_team_t *t)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kit_rank_t *r = &t->ranks[0];
    kolo_signal_wait_t waits[2] = {{1, 2, 1}, {1, 5, 2}};
    kolo_window_t window = NULL;
    kolo_status_t error = KOLO_OK, state = KOLO_IN_PROGRESS;
    config.op_timeout_ms = LIMIT_MS;
    if (r->nranks < 2) return true;
    if (!kit_comms_make(t, &config)) return false;
    bool good = KIT_OK(kolo_window_register(r->comm, r->buffer, 64, &window));
    if (r->rank == 1) good = KIT_OK(kolo_signal(0, 2, r->comm, r->streams[0])) && good;
    if (r->rank == 1) good = KIT_OK(kolo_signal(0, 5, r->comm, r->streams[0])) && good;
    if (r->rank == 0) {
        good = kit_hold(r, r->streams[0]) && KIT_OK(kolo_wait_signal(waits, 2, r->comm, r->streams[0])) && good;
        uint64_t begin = kit_now_ms();
        while (kit_now_ms() < begin + LIMIT_MS + LIMIT_MS / 2) kit_nap();
        if (!KIT_OK(kolo_comm_get_async_error(r->comm, &error)) || error != KOLO_OK)
            good = KIT_FAIL("the time limit ran while the stream was held");
        kit_let_go(r);
        for (uint64_t end = kit_now_ms() + 20000; error == KOLO_OK && kit_now_ms() < end; kit_nap())
            if (kolo_comm_get_async_error(r->comm, &error) != KOLO_OK) break;
        if (error != KOLO_ERR_TIMEOUT || !strstr(kolo_get_last_error(r->comm), "rank 1 to signal with number 5"))
            good = KIT_FAIL("%s: %s", kolo_status_string(error), kolo_get_last_error(r->comm));
        for (uint64_t end = kit_now_ms() + 20000; state == KOLO_IN_PROGRESS && kit_now_ms() < end; kit_nap())
            state = kit_query(r, r->streams[0]);
        if (state != KOLO_OK) good = KIT_FAIL("the wait does not end: %s", kolo_status_string(state));
    }
    bool go_on = kit_case_end(t, good, "a time limit ends a wait for signals that do not come");
    good = KIT_OK(kolo_comm_abort(r->comm));
    r->comm = NULL;
    return go_on && good;
}

/* Whose signals are awaited is killed: streams go on, and the others know who it was. */
static bool killed(kit_team_t *t)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kit_rank_t *r = &t->ranks[0];
    int victim = r->nranks / 2;
    kolo_signal_wait_t wait = {victim, 0, 1};
    kolo_window_t window = NULL;
    kolo_status_t error = KOLO_OK, state = KOLO_IN_PROGRESS;
    char needle[32];
    if (t->options->mode != KIT_PROCESSES || r->nranks < 3) return true;
    if (!kit_comms_make(t, &config)) return false;
    bool good = KIT_OK(kolo_window_register(r->comm, r->buffer, 64, &window)) &&
                KIT_OK(kolo_wait_signal(&wait, 1, r->comm, r->streams[0]));
    if (!kit_meet(t)) return false;
    if (r->rank == victim) kill(getpid(), SIGKILL);
    t->teams--; /* the dead do not meet */
    for (uint64_t end = kit_now_ms() + 20000; error == KOLO_OK && kit_now_ms() < end; kit_nap())
        if (kolo_comm_get_async_error(r->comm, &error) != KOLO_OK) break;
    snprintf(needle, sizeof needle, "rank %d (host", victim);
    if (error != KOLO_ERR_REMOTE || !strstr(kolo_get_last_error(r->comm), needle))
        good = KIT_FAIL("rank %d: %s: %s", r->rank, kolo_status_string(error), kolo_get_last_error(r->comm));
    for (uint64_t end = kit_now_ms() + 20000; state == KOLO_IN_PROGRESS && kit_now_ms() < end; kit_nap())
        state = kit_query(r, r->streams[0]);
    if (state != KOLO_OK) good = KIT_FAIL("rank %d: the wait does not end: %s", r->rank, kolo_status_string(state));
    good = KIT_OK(kolo_comm_destroy(r->comm)) && good;
    r->comm = NULL;
    return kit_case_end(t, good, "the loss of a rank ends waits for its signals");
}

bool conform_windows(kit_team_t *t)
{
    const kit_rank_t *r = &t->ranks[0];
    kolo_window_t window = NULL;
    if (t->n > 1) return true; /* one thread cannot register for all */
    if (getenv("KOLO_GPU_EXECUTOR") || t->options->hosts) {
        bool good = refused(r, KOLO_ERR_UNSUPPORTED, kolo_window_register(r->comm, r->buffer, 64, &window),
                            "GPUs that all reach each other's memory");
        return kit_case_end(t, good, "windows are refused where GPUs do not reach each other");
    }
    return all_put(t, false) && all_put(t, true) && chain(t) && wrong(t) && aborted(t) && late(t) && killed(t);
}
