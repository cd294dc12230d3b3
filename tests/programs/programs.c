/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs on the public interface: a list of events (collectives and messages on several communicators)
 * that all ranks draw alike, and for each rank by itself how it calls its share of them: cut into groups or not, on
 * streams or not, and when it is late. Windows come and go between them. Run in the order of the list such a
 * program never blocks, so it may not hang however it is cut. Messages go with requests and with tags too. Every
 * result is compared with a scalar reference, bytes around the buffers are looked at, and what the programs leave
 * behind is counted.
 *
 *     comm_programs [RUNS [SEED [-v]]]    SEED and one run repeat what failed
 */
#include "programs/programs.h"
#include "coll/values.h"
#include "programs/windows.h"

#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LIMIT_S = 120,
    LATE_EACH = 48, /* events, of which one is called late by a rank */
    LATE_MS = 20,
    TAGS = 3,
    KEPT_BYTES = 4096,     /* what one program may leave behind on average: nothing but noise of the heap */
    KEPT_ONCE = 128 * 1024 /* and all of them: blocks of handles and requests, which stay */
};

static event_t events[EVENTS];
static bool verbose;

uint64_t program_draw(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed * 0x9e3779b97f4a7c15ull >> 11;
}

static size_t draw_count(uint64_t *seed, bool message)
{
    static const size_t most[] = {1, 2, 20, 700, 5000, 60000};
    size_t at = program_draw(seed) % (sizeof most / sizeof most[0]);
    size_t n = program_draw(seed) % 8 == 0 ? 0 : 1 + program_draw(seed) % most[at];
    return message && program_draw(seed) % 16 == 0 ? n * 8 : n;
}

static void draw_events(uint64_t seed, int nranks)
{
    for (int i = 0; i < EVENTS; i++) {
        event_t *e = &events[i];
        bool message = program_draw(&seed) % 2 == 0;
        e->kind = message ? MESSAGE : (int)(program_draw(&seed) % KINDS);
        e->comm = (int)(program_draw(&seed) % COMMS);
        e->type = (kolo_type_t)(program_draw(&seed) % KOLO_TYPE_COUNT);
        do e->op = (kolo_op_t)(program_draw(&seed) % KOLO_OP_BUILTIN_COUNT);
        while (!kolo_op_takes(e->op, e->type));
        e->root = (int)(program_draw(&seed) % (uint64_t)nranks);
        e->to = (int)(program_draw(&seed) % (uint64_t)nranks);
        e->count = draw_count(&seed, message);
        e->seed = program_draw(&seed);
        if (message && program_draw(&seed) % 4 == 0) e->kind = TAGGED;
        e->any = program_draw(&seed) % 2;
        e->tag = e->any ? (uint64_t)(TAGS + i) : program_draw(&seed) % TAGS;
    }
}

int program_members(int c, int rank, int nranks, int *list)
{
    int n = 0;
    for (int r = 0; r < nranks; r++) {
        bool in = c == 2 ? r % 2 == rank % 2 : c == 3 ? r != 0 || nranks == 1 : true;
        if (in) list[n++] = r;
    }
    return n;
}

int program_place(const int *list, int n, int rank)
{
    for (int i = 0; i < n; i++)
        if (list[i] == rank) return i;
    return -1;
}

static void flush(run_t *run)
{
    if (run->cut_left) EXPECT_OK(kolo_group_end());
    run->cut_left = 0;
    program_begin_aside(run, -1);
    program_wait_requests(run);
    for (int i = 0; i < STREAMS; i++) EXPECT_OK(kolo_stream_synchronize(run->streams[i]));
    program_check(run, events);
}

/* ---- one program ---- */

/* A message names ranks of all; on a communicator without one of them it does not take place. */
static void do_event(run_t *run, const event_t *e)
{
    int list[MAX_RANKS], c = e->comm, me = run->r->rank;
    int n = program_members(c, me, run->r->nranks, list), mine = program_place(list, n, me);
    int from = program_place(list, n, e->root), to = program_place(list, n, e->to);
    bool message = e->kind == MESSAGE || e->kind == TAGGED;
    if (mine < 0 || (message && (from < 0 || to < 0 || (from != mine && to != mine)))) return;
    bool to_myself = message && from == to;
    if (program_draw(&run->own) % LATE_EACH == 0) nap_ms(1 + (int)(program_draw(&run->own) % LATE_MS));
    if (e->kind == TAGGED) {
        program_call_tagged(run, e, from, to);
        return;
    }
    if (!run->cut_left) program_begin_aside(run, c);
    if (message && !to_myself && !run->cut_left && program_draw(&run->own) % 3 == 0) {
        program_put_aside(run, e, from, to);
        return;
    }
    if (!run->cut_left && (to_myself || program_draw(&run->own) % 2)) {
        run->cut_left = 1 + (int)(program_draw(&run->own) % 6);
        EXPECT_OK(kolo_group_start());
    }
    uint64_t where = program_draw(&run->own) % 4;
    void *stream = where < STREAMS ? run->streams[where] : NULL;
    run->aside[c] = NULL; /* they go along */
    if (message)
        program_call_message(run, e, from, to, stream);
    else
        program_call_collective(run, e, stream);
    if (run->cut_left && --run->cut_left == 0) EXPECT_OK(kolo_group_end());
}

static void run_program(rank_t *r)
{
    run_t *run = calloc(1, sizeof *run);
    int list[MAX_RANKS];
    run->r = r;
    run->own = *(const uint64_t *)r->arg * 1000003 + (uint64_t)r->rank * 7919 + 1;
    for (int c = 0; c < COMMS; c++) {
        run->sizes[c] = program_members(c, r->rank, r->nranks, list);
        run->ranks[c] = program_place(list, run->sizes[c], r->rank);
        int color = run->ranks[c] < 0 ? KOLO_SPLIT_NOCOLOR : c == 2 ? r->rank % 2 : 0;
        if (c == 0)
            run->comms[c] = r->comm;
        else
            EXPECT_OK(kolo_comm_split(r->comm, color, 0, &run->comms[c], NULL));
    }
    for (int i = 0; i < STREAMS; i++) EXPECT_OK(kolo_stream_create(&run->streams[i]));
    for (int i = 0; i < EVENTS; i++) {
        do_event(run, &events[i]);
        if (i % FLUSH != FLUSH - 1) continue;
        flush(run);
        int c = events[i].comm;
        if (run->ranks[c] >= 0) program_windows(run->comms[c], run->ranks[c], run->sizes[c], events[i].seed);
    }
    for (int i = 0; i < STREAMS; i++) EXPECT_OK(kolo_stream_destroy(run->streams[i]));
    for (int c = 1; c < COMMS; c++) end_comm(&run->comms[c]);
    free(run);
}

static char late[400];

static void say_late(int signal)
{
    (void)signal;
    ssize_t n = write(STDOUT_FILENO, late, strlen(late));
    (void)n;
    _exit(1);
}

/* Bytes that the C library has handed out. A sanitizer has an allocator of its own, and looks for leaks at the
 * end. */
static size_t bytes_held(void)
{
#if defined(KOLO_SANITIZED)
    return 0;
#else
    return mallinfo2().uordblks;
#endif
}

int main(int argc, char **argv)
{
    signal(SIGALRM, say_late);
    setenv("KOLO_MISMATCH_MS", "1", 0); /* right calls meet as many questions as can be */
    long runs = argc > 1 ? atol(argv[1]) : 25;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    size_t kept = 0;
    int bad = 0;
    census_t before = {0};
    verbose = argc > 3 && !strcmp(argv[3], "-v");
    for (long i = 0; i < runs; i++, seed++) {
        uint64_t own = seed * 0x9e3779b97f4a7c15ull | 1;
        int nranks = 1 + (int)(program_draw(&own) % 5);
        draw_events(own, nranks);
        if (verbose) printf("seed %llu: %d ranks\n", (unsigned long long)seed, nranks);
        fflush(stdout);
        snprintf(late, sizeof late, "seed %llu hangs: repeat it by %s 1 %llu\n", (unsigned long long)seed, argv[0],
                 (unsigned long long)seed);
        limit_s(LIMIT_S);
        if (i == 5) {
            before = census_take();
            kept = bytes_held();
        }
        if (run_ranks(nranks, run_program, &own) == 0) continue;
        printf("seed %llu failed: repeat it by %s 1 %llu\n", (unsigned long long)seed, argv[0],
               (unsigned long long)seed);
        bad++;
    }
    size_t now = bytes_held();
    bool leaks =
        runs > 10 && (!census_no_more_than(before) || now > kept + KEPT_ONCE + KEPT_BYTES * (size_t)(runs - 5));
    if (leaks) printf("left behind: %zu bytes after 5 programs, %zu now\n", kept, now);
    printf("%ld programs, %d wrong%s\n", runs, bad, leaks ? ", leaks" : "");
    return bad || leaks;
}
