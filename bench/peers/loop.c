/* SPDX-License-Identifier: Apache-2.0
 *
 * The measuring loop. See loop.h.
 */
#include "loop.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const names[OP_COUNT] = {"all_reduce",     "reduce",     "broadcast", "all_gather",
                                            "reduce_scatter", "all_to_all", "pingpong"};
#define MOST_SIZES 64
#define MOST_BYTES ((size_t)1 << 30)

typedef struct {
    const peer_t *peer;
    kolo_comm_t comm;
    int rank, nranks;
    double budget;
    int turns; /* 0: call by call */
    size_t sizes[MOST_SIZES], max_bytes;
    int nsizes;
    bool ops[OP_COUNT];
    float *src[2], *dst[2], *check;
} bench_t;

static double now_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec * 1e-3;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void must(kolo_status_t status)
{
    if (status == KOLO_OK) return;
    fprintf(stderr, "kolo: %s: %s\n", kolo_status_string(status), kolo_get_last_error(NULL));
    abort();
}

/* bytes are the whole vector's, as in nccl-tests. */
static size_t count_of(const bench_t *b, int op, size_t bytes)
{
    size_t n = bytes / sizeof(float);
    if (op == OP_ALL_GATHER || op == OP_REDUCE_SCATTER || op == OP_ALL_TO_ALL) n /= (size_t)b->nranks;
    return n ? n : 1;
}

static void kolo_call(const bench_t *b, int op, const float *src, float *dst, size_t n)
{
    kolo_comm_t c = b->comm;
    switch (op) {
    case OP_ALL_REDUCE:
        must(kolo_all_reduce(src, dst, n, KOLO_FLOAT32, KOLO_SUM, c, NULL));
        return;
    case OP_REDUCE:
        must(kolo_reduce(src, dst, n, KOLO_FLOAT32, KOLO_SUM, 0, c, NULL));
        return;
    case OP_BROADCAST:
        must(kolo_broadcast(src, dst, n, KOLO_FLOAT32, 0, c, NULL));
        return;
    case OP_ALL_GATHER:
        must(kolo_all_gather(src, dst, n, KOLO_FLOAT32, c, NULL));
        return;
    case OP_REDUCE_SCATTER:
        must(kolo_reduce_scatter(src, dst, n, KOLO_FLOAT32, KOLO_SUM, c, NULL));
        return;
    case OP_ALL_TO_ALL:
        must(kolo_all_to_all(src, dst, n, KOLO_FLOAT32, c, NULL));
        return;
    default:
        break;
    }
    if (b->rank == 0) {
        must(kolo_send(src, n, KOLO_FLOAT32, 1, c, NULL));
        must(kolo_recv(dst, n, KOLO_FLOAT32, 1, c, NULL));
    } else if (b->rank == 1) {
        must(kolo_recv(dst, n, KOLO_FLOAT32, 0, c, NULL));
        must(kolo_send(src, n, KOLO_FLOAT32, 0, c, NULL));
    }
}

static int one_call(const bench_t *b, bool peer, int op, int turn, size_t n)
{
    const float *src = b->src[turn & 1];
    float *dst = b->dst[turn & 1];
    /* in MPI and Gloo a broadcast has one buffer; Kolo gets the same */
    if (op == OP_BROADCAST) src = dst;
    if (peer) return b->peer->call(op, src, dst, n, b->rank, b->nranks, b->peer->arg);
    kolo_call(b, op, src, dst, n);
    return 0;
}

static double timed(const bench_t *b, bool peer, int op, int turn, size_t n)
{
    must(kolo_barrier(b->comm, NULL));
    double start = now_us();
    one_call(b, peer, op, turn, n);
    double us = now_us() - start;
    return op == OP_PINGPONG ? us / 2 : us;
}

static double agreed_max(const bench_t *b, double v)
{
    must(kolo_all_reduce(&v, &v, 1, KOLO_FLOAT64, KOLO_MAX, b->comm, NULL));
    return v;
}

/* Floats of dst that count on this rank. */
static size_t result_count(const bench_t *b, int op, size_t n)
{
    if (op == OP_REDUCE && b->rank != 0) return 0;
    if (op == OP_PINGPONG && b->rank > 1) return 0;
    return op == OP_ALL_GATHER || op == OP_ALL_TO_ALL ? n * (size_t)b->nranks : n;
}

static void fill(const bench_t *b, size_t n)
{
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < n; i++) {
            b->src[k][i] = (float)((i * 7 + (size_t)b->rank * 3 + (size_t)k) % 11);
            b->dst[k][i] = b->rank == 0 ? (float)(i % 13) : -1;
        }
    }
}

/* 0, -1 when the peer has no such call; aborts on a wrong value. */
static int check(const bench_t *b, int op, size_t n)
{
    bool parts = op == OP_ALL_GATHER || op == OP_REDUCE_SCATTER || op == OP_ALL_TO_ALL;
    size_t results = result_count(b, op, n), all = parts ? n * (size_t)b->nranks : n;
    fill(b, all);
    if (one_call(b, true, op, 0, n)) return -1;
    memcpy(b->check, b->dst[0], results * sizeof(float));
    fill(b, all);
    one_call(b, false, op, 0, n);
    if (memcmp(b->check, b->dst[0], results * sizeof(float)) != 0) {
        fprintf(stderr, "%s of %zu floats: Kolo and %s differ\n", names[op], n, b->peer->name);
        abort();
    }
    return 0;
}

static void run_row(const bench_t *b, int op, size_t bytes)
{
    enum { MOST = 3000 };
    static double peer_us[MOST], kolo_us[MOST];
    size_t n = count_of(b, op, bytes);
    if (check(b, op, n)) return;
    double one = 0;
    for (int i = 0; i < 3; i++) one = timed(b, true, op, i, n) + timed(b, false, op, i, n);
    one = agreed_max(b, one);
    int iters = (int)(b->budget * 1e6 / (one * 1.3 + 2));
    iters = iters < 5 ? 5 : iters > MOST ? MOST : iters;
    for (int i = 0; i < iters; i++) {
        bool first = i & 2; /* each goes first in turn */
        if (first) kolo_us[i] = timed(b, false, op, i, n);
        peer_us[i] = timed(b, true, op, i, n);
        if (!first) kolo_us[i] = timed(b, false, op, i, n);
    }
    must(kolo_all_reduce(peer_us, peer_us, (size_t)iters, KOLO_FLOAT64, KOLO_MAX, b->comm, NULL));
    must(kolo_all_reduce(kolo_us, kolo_us, (size_t)iters, KOLO_FLOAT64, KOLO_MAX, b->comm, NULL));
    qsort(peer_us, (size_t)iters, sizeof(double), by_value);
    qsort(kolo_us, (size_t)iters, sizeof(double), by_value);
    if (b->rank) return;
    printf("row %s %d %zu %s %.3f %.3f\n", names[op], b->nranks, bytes, b->peer->name, peer_us[iters / 2],
           kolo_us[iters / 2]);
    fflush(stdout);
}

/* ---- turns: many calls of one, then many of the other ---- */

typedef struct {
    double us, steal; /* of a call; the part of the machine's time that its host took */
} turn_t;

/* Ticks of all cores since the start: all of them, and those in which the host did something else. */
static void read_ticks(double *all, double *stolen)
{
    double t[8] = {0};
    FILE *f = fopen("/proc/stat", "r");
    *all = *stolen = 0;
    if (!f) return;
    if (fscanf(f, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &t[7]) ==
        8)
        *stolen = t[7];
    for (int i = 0; i < 8; i++) *all += t[i];
    fclose(f);
}

/* Calls without a pause for so long, in parts whose times are added: each is as many calls as should take an eighth
 * of it, for a call may take a hundred times as long as the one before where the host takes cores away. The time is
 * the slowest rank's. *part: how many calls the next part has. */
static turn_t take_turn(const bench_t *b, bool peer, int op, size_t n, double want_us, int *part)
{
    enum { LEAST = 2, MOST = 50000 };
    double all[2], stolen[2], us = 0, calls = 0;
    must(kolo_barrier(b->comm, NULL));
    read_ticks(&all[0], &stolen[0]);
    do {
        must(kolo_barrier(b->comm, NULL));
        double start = now_us();
        for (int i = 0; i < *part; i++) one_call(b, peer, op, i, n);
        double took = agreed_max(b, now_us() - start), fit = want_us / 8 * *part / (took + 0.01);
        us += took;
        calls += *part;
        if (fit > 8.0 * *part) fit = 8.0 * *part;
        *part = fit < LEAST ? LEAST : fit > MOST ? MOST : (int)fit;
    } while (us < want_us);
    read_ticks(&all[1], &stolen[1]);
    double ticks = all[1] - all[0];
    return (turn_t){us / calls, ticks > 0 ? (stolen[1] - stolen[0]) / ticks : 0};
}

/* Turns within the budget, half of it for each; at least two of each, more only within thrice the budget. */
static void run_turns(const bench_t *b, int op, size_t bytes)
{
    size_t n = count_of(b, op, bytes);
    int part[2] = {2, 2};
    if (check(b, op, n)) return;
    double begun = 0;
    for (int t = -1; t < b->turns && (t < 2 || agreed_max(b, now_us() - begun) < 3e6 * b->budget); t++) {
        turn_t turn[2];
        if (t == 0) begun = now_us(); /* the first ones only find how long a call takes */
        for (int i = 0; i < 2; i++) {
            int who = (t ^ i) & 1; /* each goes first in turn */
            turn[who] = take_turn(b, who == 0, op, n, b->budget * (t < 0 ? 1e4 : 5e5) / b->turns, &part[who]);
        }
        if (b->rank || t < 0) continue;
        printf("turn %s %d %zu %s %.3f %.3f %.4f %.4f\n", names[op], b->nranks, bytes, b->peer->name, turn[0].us,
               turn[1].us, turn[0].steal, turn[1].steal);
        fflush(stdout);
    }
}

/* "8,4096,..."; 0 or -1 */
static int parse_sizes(bench_t *b, const char *text)
{
    b->nsizes = 0;
    b->max_bytes = 0;
    for (char *end; *text && b->nsizes < MOST_SIZES; text = end + (*end == ',')) {
        size_t size = (size_t)strtoull(text, &end, 10);
        if (end == text || (*end && *end != ',') || size > MOST_BYTES) return -1;
        b->sizes[b->nsizes++] = size;
        if (size > b->max_bytes) b->max_bytes = size;
    }
    return *text || !b->nsizes ? -1 : 0;
}

static int parse(bench_t *b, int argc, char **argv)
{
    bool any = false;
    parse_sizes(b, "8,512,32768,2097152");
    for (int i = 1; i < argc; i++) {
        int op = 0;
        if (strcmp(argv[i], "--budget") == 0 && i + 1 < argc) {
            b->budget = atof(argv[++i]);
            continue;
        }
        if (strcmp(argv[i], "--turns") == 0 && i + 1 < argc) {
            b->turns = atoi(argv[++i]);
            continue;
        }
        if (strcmp(argv[i], "--sizes") == 0 && i + 1 < argc) {
            if (parse_sizes(b, argv[++i]) == 0) continue;
            fprintf(stderr, "--sizes %s: want numbers with commas between\n", argv[i]);
            return 2;
        }
        while (op < OP_COUNT && strcmp(argv[i], names[op]) != 0) op++;
        if (op == OP_COUNT) {
            fprintf(stderr, "unknown argument %s\n", argv[i]);
            return 2;
        }
        b->ops[op] = any = true;
    }
    for (int op = 0; op < OP_COUNT && !any; op++) b->ops[op] = op != OP_PINGPONG || b->nranks == 2;
    return 0;
}

int peers_run(const peer_t *peer, kolo_comm_t comm, int rank, int nranks, int argc, char **argv)
{
    bench_t b = {.peer = peer, .comm = comm, .rank = rank, .nranks = nranks, .budget = 0.3};
    int status = parse(&b, argc, argv);
    if (status) return status;
    size_t room = b.max_bytes + (size_t)nranks * 64 + 4096;
    b.check = malloc(room);
    for (int k = 0; k < 2; k++) {
        b.src[k] = malloc(room);
        b.dst[k] = malloc(room);
        if (!b.src[k] || !b.dst[k] || !b.check) return 1;
    }
    for (int op = 0; op < OP_COUNT; op++)
        for (int i = 0; i < b.nsizes && b.ops[op]; i++) (b.turns ? run_turns : run_row)(&b, op, b.sizes[i]);
    for (int k = 0; k < 2; k++) {
        free(b.src[k]);
        free(b.dst[k]);
    }
    free(b.check);
    return 0;
}
