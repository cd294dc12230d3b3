/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs on the public interface: a list of events (collectives and messages on several communicators)
 * that all ranks draw alike, and for each rank by itself how it calls its share of them: cut into groups or not, on
 * streams or not, and when it is late. Windows come and go between them. Run in the order of the list such a
 * program never blocks, so it may not hang however it is cut. Every result is compared with a scalar reference,
 * bytes around the buffers are looked at, and what the programs leave behind is counted.
 *
 *     comm_programs [RUNS [SEED [-v]]]    SEED and one run repeat what failed
 */
#include "coll/values.h"
#include "kit/ranks.h"
#include "programs/windows.h"

#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    EVENTS = 48,
    FLUSH = 12, /* events after which all streams are waited for */
    COMMS = 4,  /* all; all again; halves; without one rank */
    STREAMS = 2,
    GUARD = 64,
    LIMIT_S = 120,
    LATE_EACH = 48, /* events, of which one is called late by a rank */
    LATE_MS = 20,
    KEPT_BYTES = 4096 /* what one program may leave behind on average: nothing but noise of the heap */
};

enum {
    ALL_REDUCE,
    REDUCE,
    BROADCAST,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    GATHER,
    SCATTER,
    BARRIER,
    KINDS,
    MESSAGE
};

typedef struct {
    int kind, comm, root, to; /* root: of a message the sender, both by their rank in all */
    kolo_type_t type;
    kolo_op_t op;
    size_t count;
    uint64_t seed;
} event_t;

typedef struct { /* a rank's call of an event, until it is checked */
    const event_t *e;
    char *src, *dst;
    size_t src_count, dst_count;
    bool sends, receives;
} held_t;

typedef struct {
    rank_t *r;
    uint64_t own; /* what this rank draws for itself */
    kolo_comm_t comms[COMMS];
    int ranks[COMMS], sizes[COMMS];
    kolo_stream_t streams[STREAMS];
    held_t held[FLUSH * 2];
    size_t nheld;
    int cut_left; /* events left of the open group, 0: none is open */
} run_t;

static event_t events[EVENTS];
static bool verbose;

static uint64_t draw(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed * 0x9e3779b97f4a7c15ull >> 11;
}

static size_t draw_count(uint64_t *seed, bool message)
{
    static const size_t most[] = {1, 2, 20, 700, 5000, 60000};
    size_t at = draw(seed) % (sizeof most / sizeof most[0]);
    size_t n = draw(seed) % 8 == 0 ? 0 : 1 + draw(seed) % most[at];
    return message && draw(seed) % 16 == 0 ? n * 8 : n;
}

static void draw_events(uint64_t seed, int nranks)
{
    for (int i = 0; i < EVENTS; i++) {
        event_t *e = &events[i];
        bool message = draw(&seed) % 2 == 0;
        e->kind = message ? MESSAGE : (int)(draw(&seed) % KINDS);
        e->comm = (int)(draw(&seed) % COMMS);
        e->type = (kolo_type_t)(draw(&seed) % KOLO_TYPE_COUNT);
        do e->op = (kolo_op_t)(draw(&seed) % KOLO_OP_BUILTIN_COUNT);
        while (!kolo_op_takes(e->op, e->type));
        e->root = (int)(draw(&seed) % (uint64_t)nranks);
        e->to = (int)(draw(&seed) % (uint64_t)nranks);
        e->count = draw_count(&seed, message);
        e->seed = draw(&seed);
    }
}

/* The members of communicator c as the rank numbers of all; halves: those of `rank`. */
static int members(int c, int rank, int nranks, int *list)
{
    int n = 0;
    for (int r = 0; r < nranks; r++) {
        bool in = c == 2 ? r % 2 == rank % 2 : c == 3 ? r != 0 || nranks == 1 : true;
        if (in) list[n++] = r;
    }
    return n;
}

static int place(const int *list, int n, int rank)
{
    for (int i = 0; i < n; i++)
        if (list[i] == rank) return i;
    return -1;
}

/* ---- calls ---- */

static char *guarded(size_t bytes)
{
    char *p = malloc(bytes + 2 * GUARD);
    memset(p, 0xa5, bytes + 2 * GUARD);
    return p + GUARD;
}

static bool is_guarded(const char *p, size_t bytes)
{
    for (int i = 0; i < GUARD; i++)
        if ((uint8_t)p[-1 - i] != 0xa5 || (uint8_t)p[bytes + (size_t)i] != 0xa5) return false;
    return true;
}

static held_t *hold(run_t *run, const event_t *e, size_t src_count, size_t dst_count)
{
    held_t *h = &run->held[run->nheld++];
    size_t elem = kolo_type_size(e->type);
    *h = (held_t){.e = e, .src_count = src_count, .dst_count = dst_count};
    h->src = guarded(src_count * elem);
    h->dst = guarded(dst_count * elem);
    return h;
}

static bool call_collective(run_t *run, const event_t *e, void *stream)
{
    kolo_comm_t comm = run->comms[e->comm];
    size_t all = e->count * (size_t)run->sizes[e->comm];
    int n = run->sizes[e->comm], root = e->root % n;
    bool many_src = e->kind == REDUCE_SCATTER || e->kind == ALL_TO_ALL || e->kind == SCATTER;
    bool many_dst = e->kind == ALL_GATHER || e->kind == ALL_TO_ALL || e->kind == GATHER;
    held_t *h = hold(run, e, many_src ? all : e->count, many_dst ? all : e->count);
    bool reduces = e->kind == ALL_REDUCE || e->kind == REDUCE || e->kind == REDUCE_SCATTER;
    test_fill(h->src, h->src_count, e->type, reduces ? e->op : KOLO_SUM, e->seed, run->ranks[e->comm], 0);
    switch (e->kind) {
    case ALL_REDUCE:
        return EXPECT_OK(kolo_all_reduce(h->src, h->dst, e->count, e->type, e->op, comm, stream));
    case REDUCE:
        return EXPECT_OK(kolo_reduce(h->src, h->dst, e->count, e->type, e->op, root, comm, stream));
    case BROADCAST:
        return EXPECT_OK(kolo_broadcast(h->src, h->dst, e->count, e->type, root, comm, stream));
    case ALL_GATHER:
        return EXPECT_OK(kolo_all_gather(h->src, h->dst, e->count, e->type, comm, stream));
    case REDUCE_SCATTER:
        return EXPECT_OK(kolo_reduce_scatter(h->src, h->dst, e->count, e->type, e->op, comm, stream));
    case ALL_TO_ALL:
        return EXPECT_OK(kolo_all_to_all(h->src, h->dst, e->count, e->type, comm, stream));
    case GATHER:
        return EXPECT_OK(kolo_gather(h->src, h->dst, e->count, e->type, root, comm, stream));
    case SCATTER:
        return EXPECT_OK(kolo_scatter(h->src, h->dst, e->count, e->type, root, comm, stream));
    default:
        return EXPECT_OK(kolo_barrier(comm, stream));
    }
}

/* from, to: ranks of the communicator. */
static bool call_message(run_t *run, const event_t *e, int from, int to, void *stream)
{
    kolo_comm_t comm = run->comms[e->comm];
    bool ok = true;
    held_t *h = hold(run, e, e->count, e->count);
    h->sends = run->ranks[e->comm] == from;
    h->receives = run->ranks[e->comm] == to;
    if (h->sends) test_fill(h->src, e->count, e->type, KOLO_SUM, e->seed, from, 0);
    if (h->sends) ok = EXPECT_OK(kolo_send(h->src, e->count, e->type, to, comm, stream));
    if (h->receives) ok = ok && EXPECT_OK(kolo_recv(h->dst, e->count, e->type, from, comm, stream));
    return ok;
}

/* ---- checking ---- */

static bool right(const run_t *run, const held_t *h)
{
    const event_t *e = h->e;
    char what[120];
    int c = e->comm, me = run->ranks[c], n = run->sizes[c], root = e->root % n, list[MAX_RANKS];
    size_t elem = kolo_type_size(e->type), first = (size_t)me * e->count;
    bool ok = is_guarded(h->src, h->src_count * elem) && is_guarded(h->dst, h->dst_count * elem);
    snprintf(what, sizeof what, "event %d (kind %d, communicator %d, %s, op %d, %zu elements), rank %d of %d",
             (int)(e - events), e->kind, c, test_type_names[e->type], (int)e->op, e->count, me, n);
    if (!ok) fprintf(stderr, "%s: bytes around a buffer have changed\n", what);
    switch (e->kind) {
    case MESSAGE:
        if (!h->receives) return ok;
        members(c, run->r->rank, run->r->nranks, list);
        return test_equal(h->dst, e->count, e->type, e->seed, place(list, n, e->root), 0, what) && ok;
    case ALL_REDUCE:
        return test_reduced(h->dst, e->count, e->type, e->op, e->seed, n, 0, what) && ok;
    case REDUCE:
        return (me != root || test_reduced(h->dst, e->count, e->type, e->op, e->seed, n, 0, what)) && ok;
    case REDUCE_SCATTER:
        return test_reduced(h->dst, e->count, e->type, e->op, e->seed, n, first, what) && ok;
    case BROADCAST:
        return test_equal(h->dst, e->count, e->type, e->seed, root, 0, what) && ok;
    case SCATTER:
        return test_equal(h->dst, e->count, e->type, e->seed, root, first, what) && ok;
    case GATHER:
        if (me != root) return ok;
        break;
    case BARRIER:
        return ok;
    default:
        break;
    }
    for (int r = 0; r < n; r++)
        ok = test_equal(h->dst + (size_t)r * e->count * elem, e->count, e->type, e->seed, r,
                        e->kind == ALL_TO_ALL ? first : 0, what) &&
             ok;
    return ok;
}

static void flush(run_t *run)
{
    if (run->cut_left) EXPECT_OK(kolo_group_end());
    run->cut_left = 0;
    for (int i = 0; i < STREAMS; i++) EXPECT_OK(kolo_stream_synchronize(run->streams[i]));
    for (size_t i = 0; i < run->nheld; i++) {
        EXPECT(right(run, &run->held[i]));
        free(run->held[i].src - GUARD);
        free(run->held[i].dst - GUARD);
    }
    run->nheld = 0;
}

/* ---- one program ---- */

/* A message names ranks of all; on a communicator without one of them it does not take place. */
static void do_event(run_t *run, const event_t *e)
{
    int list[MAX_RANKS], c = e->comm, me = run->r->rank;
    int n = members(c, me, run->r->nranks, list), mine = place(list, n, me);
    int from = place(list, n, e->root), to = place(list, n, e->to);
    bool message = e->kind == MESSAGE;
    if (mine < 0 || (message && (from < 0 || to < 0 || (from != mine && to != mine)))) return;
    bool to_myself = message && from == to;
    if (draw(&run->own) % LATE_EACH == 0) nap_ms(1 + (int)(draw(&run->own) % LATE_MS));
    if (!run->cut_left && (to_myself || draw(&run->own) % 2)) {
        run->cut_left = 1 + (int)(draw(&run->own) % 6);
        EXPECT_OK(kolo_group_start());
    }
    uint64_t where = draw(&run->own) % 4;
    void *stream = where < STREAMS ? run->streams[where] : NULL;
    if (message)
        call_message(run, e, from, to, stream);
    else
        call_collective(run, e, stream);
    if (run->cut_left && --run->cut_left == 0) EXPECT_OK(kolo_group_end());
}

static void run_program(rank_t *r)
{
    run_t *run = calloc(1, sizeof *run);
    int list[MAX_RANKS];
    run->r = r;
    run->own = *(const uint64_t *)r->arg * 1000003 + (uint64_t)r->rank * 7919 + 1;
    for (int c = 0; c < COMMS; c++) {
        run->sizes[c] = members(c, r->rank, r->nranks, list);
        run->ranks[c] = place(list, run->sizes[c], r->rank);
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
        int nranks = 1 + (int)(draw(&own) % 5);
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
    bool leaks = runs > 10 && (!census_no_more_than(before) || now > kept + KEPT_BYTES * (size_t)(runs - 5));
    if (leaks) printf("left behind: %zu bytes after 5 programs, %zu now\n", kept, now);
    printf("%ld programs, %d wrong%s\n", runs, bad, leaks ? ", leaks" : "");
    return bad || leaks;
}
