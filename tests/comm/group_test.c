/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups: calls of any mix, on several communicators, run as one; one thread drives many ranks; messages to oneself
 * meet inside the group.
 */
#include "kit/ranks.h"

#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Values from `from` on, at most BLOCK; how many. */
#define BLOCK 1024
TEST_PLAIN static size_t values(int32_t *block, size_t from, size_t end, int seed)
{
    size_t n = end - from < BLOCK ? end - from : BLOCK;
    for (size_t i = from; i < from + n; i++) block[i - from] = (int32_t)(i * 7 + (size_t)seed * 1000003);
    return n;
}

static void fill(int32_t *data, size_t n, int seed)
{
    int32_t block[BLOCK];
    for (size_t i = 0, part; i < n; i += part) {
        part = values(block, i, n, seed);
        memcpy(data + i, block, part * sizeof *block);
    }
}

static bool filled(const int32_t *data, size_t n, int seed)
{
    int32_t block[BLOCK];
    for (size_t i = 0, part; i < n; i += part) {
        part = values(block, i, n, seed);
        if (memcmp(data + i, block, part * sizeof *block) != 0) return false;
    }
    return true;
}

/* Each sends to each, itself included, three messages of different lengths; all in one group. */
static void exchange_with_all(rank_t *r)
{
    static const size_t lengths[] = {0, 1, 500, 200000};
    enum { L = sizeof lengths / sizeof lengths[0] };
    int32_t *out[L], *in[MAX_RANKS][L];
    for (int l = 0; l < L; l++) {
        out[l] = malloc((lengths[l] + 1) * sizeof(int32_t));
        fill(out[l], lengths[l], r->rank * L + l);
        for (int p = 0; p < r->nranks; p++) in[p][l] = calloc(lengths[l] + 1, sizeof(int32_t));
    }
    for (int round = 0; round < 3; round++) {
        EXPECT_OK(kolo_group_start());
        for (int p = 0; p < r->nranks; p++) {
            for (int l = 0; l < L; l++)
                EXPECT_OK(kolo_send(lengths[l] ? out[l] : NULL, lengths[l], KOLO_INT32, p, r->comm, NULL));
            for (int l = 0; l < L; l++)
                EXPECT_OK(kolo_recv(lengths[l] ? in[p][l] : NULL, lengths[l], KOLO_INT32, p, r->comm, NULL));
        }
        EXPECT_OK(kolo_group_end());
        for (int p = 0; p < r->nranks; p++)
            for (int l = 0; l < L; l++) {
                EXPECT(filled(in[p][l], lengths[l], p * L + l));
                memset(in[p][l], 0, lengths[l] * sizeof(int32_t));
            }
    }
    for (int l = 0; l < L; l++) {
        free(out[l]);
        for (int p = 0; p < r->nranks; p++) free(in[p][l]);
    }
}

static void everybody_exchanges_with_everybody(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(1, exchange_with_all, NULL), 0);
    assert_int_equal(run_ranks(4, exchange_with_all, NULL), 0);
}

static void mix_two_communicators(rank_t *r)
{
    kolo_comm_t pair = NULL;
    int n = r->nranks, next = (r->rank + 1) % n, previous = (r->rank + n - 1) % n, mate = 1 - r->rank % 2;
    int32_t a = r->rank, b = -1, c[MAX_RANKS], d = r->rank + 10, e = -1, f = r->rank, g = -1;
    if (!EXPECT_OK(kolo_comm_split(r->comm, r->rank / 2, 0, &pair, NULL))) return;
    for (int round = 0; round < 20; round++) {
        b = e = g = -1;
        EXPECT_OK(kolo_group_start());
        EXPECT_OK(kolo_send(&a, 1, KOLO_INT32, next, r->comm, NULL));
        EXPECT_OK(kolo_all_gather(&a, c, 1, KOLO_INT32, r->comm, NULL));
        EXPECT_OK(kolo_group_start()); /* an inner pair does nothing */
        EXPECT_OK(kolo_send(&d, 1, KOLO_INT32, mate, pair, NULL));
        EXPECT_OK(kolo_all_reduce(&f, &g, 1, KOLO_INT32, KOLO_MAX, pair, NULL));
        EXPECT_OK(kolo_group_end());
        EXPECT(b == -1 && e == -1 && g == -1);
        EXPECT_OK(kolo_recv(&e, 1, KOLO_INT32, mate, pair, NULL));
        EXPECT_OK(kolo_recv(&b, 1, KOLO_INT32, previous, r->comm, NULL));
        EXPECT_OK(kolo_group_end());
        EXPECT(b == previous && e == (r->rank ^ 1) + 10 && g == (r->rank | 1));
        for (int p = 0; p < n; p++) EXPECT(c[p] == p);
    }
    end_comm(&pair);
}

static void messages_and_collectives_of_two_communicators_mix(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(4, mix_two_communicators, NULL), 0);
}

static void one_thread_drives_a_ring(void **state)
{
    (void)state;
    enum { N = 4, COUNT = 50000 };
    kolo_comm_t comms[N];
    int32_t *in = malloc(N * COUNT * sizeof *in), *out = calloc(N * COUNT, sizeof *out);
    int before = expect_failures();
    EXPECT_OK(kolo_comm_init_all(comms, N, NULL));
    for (int count = 10; count <= COUNT; count *= 5000) {
        EXPECT_OK(kolo_group_start());
        for (int r = 0; r < N; r++) {
            fill(in + r * COUNT, (size_t)count, r);
            EXPECT_OK(kolo_send(in + r * COUNT, (size_t)count, KOLO_INT32, (r + 1) % N, comms[r], NULL));
            EXPECT_OK(kolo_recv(out + r * COUNT, (size_t)count, KOLO_INT32, (r + N - 1) % N, comms[r], NULL));
        }
        EXPECT_OK(kolo_group_end());
        for (int r = 0; r < N; r++) EXPECT(filled(out + r * COUNT, (size_t)count, (r + N - 1) % N));
    }
    for (int r = 0; r < N; r++) EXPECT_OK(kolo_comm_destroy(comms[r]));
    free(in);
    free(out);
    assert_int_equal(expect_failures() - before, 0);
}

/* k-th send to the k-th receive; what does not pair is an error of the group. */
static void talk_to_oneself(rank_t *r)
{
    int32_t a[2] = {1, 2}, b[2] = {3, 4}, x[2] = {0}, y[2] = {0};
    EXPECT_OK(kolo_group_start());
    EXPECT_OK(kolo_recv(x, 2, KOLO_INT32, r->rank, r->comm, NULL));
    EXPECT_OK(kolo_send(a, 2, KOLO_INT32, r->rank, r->comm, NULL));
    EXPECT_OK(kolo_send(NULL, 0, KOLO_INT32, r->rank, r->comm, NULL));
    EXPECT_OK(kolo_send(b, 2, KOLO_INT32, r->rank, r->comm, NULL));
    EXPECT_OK(kolo_recv(NULL, 0, KOLO_INT32, r->rank, r->comm, NULL));
    EXPECT_OK(kolo_recv(y, 2, KOLO_INT32, r->rank, r->comm, NULL));
    EXPECT_OK(kolo_group_end());
    EXPECT(x[0] == 1 && x[1] == 2 && y[0] == 3 && y[1] == 4);
    works(r->comm);
    meet();
    EXPECT_OK(kolo_group_start());
    if (r->arg) /* a receive alone, else a send alone */
        EXPECT_OK(kolo_recv(x, 2, KOLO_INT32, r->rank, r->comm, NULL));
    else
        EXPECT_OK(kolo_send(a, 2, KOLO_INT32, r->rank, r->comm, NULL));
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_group_end(), "itself", "group");
}

static void send_oneself_too_much(rank_t *r)
{
    int32_t a[2] = {1, 2}, x[2] = {0};
    EXPECT_OK(kolo_group_start());
    EXPECT_OK(kolo_send(a, 2, KOLO_INT32, r->rank, r->comm, NULL));
    EXPECT_OK(kolo_recv(x, 1, KOLO_INT32, r->rank, r->comm, NULL));
    EXPECT_ERROR(KOLO_ERR_MISMATCH, kolo_group_end(), "8 bytes", "receives 4");
}

static void messages_to_oneself_pair_up(void **state)
{
    bool receive = true;
    (void)state;
    assert_int_equal(run_ranks(2, talk_to_oneself, NULL), 0);
    assert_int_equal(run_ranks(2, talk_to_oneself, &receive), 0);
    assert_int_equal(run_ranks(1, send_oneself_too_much, NULL), 0);
}

static void group_on_streams(rank_t *r)
{
    kolo_stream_t s[2] = {NULL};
    int n = r->nranks, next = (r->rank + 1) % n, previous = (r->rank + n - 1) % n;
    int32_t x = 1, y = 0, z = -1;
    for (int i = 0; i < 2; i++) EXPECT_OK(kolo_stream_create(&s[i]));
    for (int round = 0; round < 20; round++) {
        x = 1, y = 0, z = -1;
        EXPECT_OK(kolo_all_reduce(&x, &x, 1, KOLO_INT32, KOLO_SUM, r->comm, s[1])); /* the group comes after it */
        EXPECT_OK(kolo_group_start());
        EXPECT_OK(kolo_all_reduce(&x, &y, 1, KOLO_INT32, KOLO_SUM, r->comm, s[0]));
        EXPECT_OK(kolo_send(&r->rank, 1, KOLO_INT32, next, r->comm, s[1]));
        EXPECT_OK(kolo_recv(&z, 1, KOLO_INT32, previous, r->comm, s[1]));
        EXPECT_OK(kolo_group_end());
        EXPECT_OK(kolo_stream_synchronize(s[round % 2])); /* either stream has the whole group in it */
        EXPECT(x == n && y == n * n && z == previous);
        EXPECT_OK(kolo_stream_synchronize(s[1 - round % 2]));
    }
    for (int i = 0; i < 2; i++) EXPECT_OK(kolo_stream_destroy(s[i]));
}

static void a_group_orders_with_all_its_streams(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, group_on_streams, NULL), 0);
}

static void groups_without_calls_do_nothing(void **state)
{
    (void)state;
    int before = expect_failures();
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_group_end(), "group_end without group_start");
    for (int i = 0; i < 3; i++) EXPECT_OK(kolo_group_start());
    for (int i = 0; i < 3; i++) EXPECT_OK(kolo_group_end());
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_group_end(), "group_end without group_start");
    assert_int_equal(expect_failures() - before, 0);
}

static void *leave_a_group_open(void *arg)
{
    int32_t x[2] = {1, 2}, y[2];
    size_t counts[1] = {2}, places[1] = {0};
    int before = expect_failures();
    EXPECT_OK(kolo_group_start());
    EXPECT_OK(kolo_all_to_allv(x, counts, places, y, counts, places, KOLO_INT32, arg, NULL));
    return (void *)(intptr_t)(expect_failures() - before);
}

/* What the group has copied goes with the thread: under LeakSanitizer. */
static void a_thread_may_end_within_a_group(void **state)
{
    (void)state;
    kolo_comm_t comm;
    pthread_t thread;
    void *failures;
    int before = expect_failures();
    EXPECT_OK(kolo_comm_init_all(&comm, 1, NULL));
    assert_int_equal(pthread_create(&thread, NULL, leave_a_group_open, comm), 0);
    assert_int_equal(pthread_join(thread, &failures), 0);
    assert_null(failures);
    EXPECT_OK(kolo_comm_destroy(comm));
    assert_int_equal(expect_failures() - before, 0);
}

/* One thread makes, divides, uses and ends the communicators of all ranks, each step in one group. */
static void one_thread_drives_whole_lives(void **state)
{
    (void)state;
    enum { N = 4 };
    kolo_comm_t all[N], half[N], fewer[N];
    int32_t sums[N] = {0};
    int before = expect_failures();
    EXPECT_OK(kolo_comm_init_all(all, N, NULL));
    EXPECT_OK(kolo_group_start());
    for (int i = 0; i < N; i++) EXPECT_OK(kolo_comm_split(all[i], i % 2, -i, &half[i], NULL));
    EXPECT_OK(kolo_group_end());
    EXPECT_OK(kolo_group_start());
    for (int i = 0; i < N; i++)
        EXPECT_OK(kolo_all_reduce(&(int32_t){i}, &sums[i], 1, KOLO_INT32, KOLO_SUM, half[i], NULL));
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_comm_split(all[0], 0, 0, &fewer[0], NULL), "comm_split", "group");
    EXPECT_OK(kolo_group_drop());
    int32_t in[N] = {0, 1, 2, 3};
    EXPECT_OK(kolo_group_start());
    for (int i = 0; i < N; i++)
        EXPECT_OK(kolo_all_reduce(&in[i], &sums[i], 1, KOLO_INT32, KOLO_SUM, half[i], NULL));
    EXPECT_OK(kolo_group_end());
    for (int i = 0; i < N; i++) EXPECT(sums[i] == (i % 2 ? 4 : 2));
    EXPECT_OK(kolo_group_start()); /* rank 3 is left out */
    for (int i = 0; i < N - 1; i++)
        EXPECT_OK(kolo_comm_shrink(all[i], &(int){3}, 1, KOLO_SHRINK_DEFAULT, &fewer[i], NULL));
    EXPECT_OK(kolo_group_end());
    EXPECT_OK(kolo_group_start()); /* a dropped group ends nothing */
    for (int i = 0; i < N; i++) EXPECT_OK(kolo_comm_destroy(half[i]));
    EXPECT_OK(kolo_group_drop());
    EXPECT_OK(kolo_group_start());
    for (int i = 0; i < N; i++) EXPECT_OK(kolo_comm_finalize(half[i]));
    for (int i = 0; i < N - 1; i++) EXPECT_OK(kolo_comm_finalize(fewer[i]));
    EXPECT_OK(kolo_group_end());
    EXPECT_OK(kolo_group_start());
    for (int i = 0; i < N; i++) EXPECT_OK(kolo_comm_destroy(half[i]));
    for (int i = 0; i < N - 1; i++) EXPECT_OK(kolo_comm_destroy(fewer[i]));
    for (int i = 0; i < N; i++) EXPECT_OK(kolo_comm_finalize(all[i]));
    for (int i = 0; i < N; i++) EXPECT_OK(kolo_comm_destroy(all[i]));
    EXPECT_OK(kolo_group_end());
    assert_int_equal(expect_failures() - before, 0);
}

static void everything_in_one(rank_t *r)
{
    size_t n = (size_t)r->nranks, counts[MAX_RANKS], places[MAX_RANKS];
    int32_t src[MAX_RANKS], a[MAX_RANKS] = {0}, b[MAX_RANKS] = {0}, c = 0, d[MAX_RANKS] = {0}, e = 0, f = 0;
    for (size_t i = 0; i < n; i++) {
        src[i] = (int32_t)(i + 1);
        counts[i] = 1;
        places[i] = n - 1 - i;
    }
    EXPECT_OK(kolo_group_start());
    EXPECT_OK(kolo_all_gatherv(src, a, counts, places, KOLO_INT32, r->comm, NULL));
    EXPECT_OK(kolo_all_to_allv(src, counts, places, b, counts, places, KOLO_INT32, r->comm, NULL));
    EXPECT_OK(kolo_reduce_scatterv(src, &c, counts, NULL, KOLO_INT32, KOLO_SUM, r->comm, NULL));
    memset(counts, 0xff, sizeof counts); /* tables are read by the call */
    memset(places, 0xff, sizeof places);
    EXPECT_OK(kolo_gather(&src[1], d, 1, KOLO_INT32, 0, r->comm, NULL));
    EXPECT_OK(kolo_scatter(src, &e, 1, KOLO_INT32, 0, r->comm, NULL));
    EXPECT_OK(kolo_reduce(src, &f, 1, KOLO_INT32, KOLO_SUM, 0, r->comm, NULL));
    EXPECT_OK(kolo_barrier(r->comm, NULL));
    EXPECT_OK(kolo_group_end());
    for (size_t i = 0; i < n; i++) EXPECT(a[i] == 1 && b[i] == (int32_t)n - r->rank);
    EXPECT(c == (r->rank + 1) * (int32_t)n && e == r->rank + 1);
    EXPECT(r->rank || (f == (int32_t)n && d[n - 1] == 2));
}

static void all_collectives_fit_in_a_group(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(4, everything_in_one, NULL), 0);
}

/* Rank 0 sends a row of messages to the others, all take theirs in order, and each cuts its row into groups as it
 * likes: what one end calls together says nothing of the other. */
#define ROW         24
#define ROW_LENGTHS 9
static const size_t row_lengths[ROW_LENGTHS] = {25, 2300, 4000, 4096, 4750, 4800, 16384, 75000, 280000};

static void each_in_groups_of_its_own(rank_t *r)
{
    size_t longest = row_lengths[ROW_LENGTHS - 1];
    int32_t *data[ROW];
    unsigned chance = (unsigned)(r->rank + 1) * 2654435761u;
    for (int i = 0; i < ROW; i++) data[i] = malloc(longest * sizeof(int32_t));
    for (unsigned round = 0; round < 12; round++) {
        bool open = false;
        for (unsigned i = 0; i < ROW; i++) {
            unsigned pick = (round * ROW + i) * 40503u + 12345u; /* the same on all ranks */
            int to = 1 + (int)(pick >> 9) % (r->nranks - 1);
            size_t n = row_lengths[(pick >> 4) % ROW_LENGTHS];
            if (r->rank != 0 && r->rank != to) continue;
            chance = chance * 1664525u + 1013904223u;
            if (open && (chance >> 28) < 5) open = !EXPECT_OK(kolo_group_end());
            if (!open && (chance >> 24 & 15) < 9) open = EXPECT_OK(kolo_group_start());
            if (r->rank == 0) {
                fill(data[i], n, (int)i + (int)round);
                EXPECT_OK(kolo_send(data[i], n, KOLO_INT32, to, r->comm, NULL));
            } else {
                memset(data[i], 0xee, n * sizeof(int32_t));
                EXPECT_OK(kolo_recv(data[i], n, KOLO_INT32, 0, r->comm, NULL));
            }
        }
        if (open) EXPECT_OK(kolo_group_end());
        for (unsigned i = 0; i < ROW && r->rank != 0; i++) {
            unsigned pick = (round * ROW + i) * 40503u + 12345u;
            size_t n = row_lengths[(pick >> 4) % ROW_LENGTHS];
            if (r->rank == 1 + (int)(pick >> 9) % (r->nranks - 1)) EXPECT(filled(data[i], n, (int)(i + round)));
        }
    }
    for (int i = 0; i < ROW; i++) free(data[i]);
}

static void groups_of_the_two_ends_need_not_be_alike(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, each_in_groups_of_its_own, NULL), 0);
    assert_int_equal(run_ranks(3, each_in_groups_of_its_own, NULL), 0);
}

/* Bytes that the C library has handed out. A sanitizer has an allocator of its own, and looks for leaks at the end.
 */
static size_t bytes_held(void)
{
#if defined(KOLO_SANITIZED)
    return 0;
#else
    return mallinfo2().uordblks;
#endif
}

/* Collectives that own data (tables of counts, an operator) and messages in one group: nothing stays behind. */
static void mix_what_owns(rank_t *r)
{
    enum { GROUPS = 2000 };
    const size_t counts[2] = {1, 1}, displs[2] = {0, 1};
    int mate = 1 - r->rank;
    int32_t out[2] = {1, 2}, in[2], x = 3, y;
    float factor = 2, f = 1, g;
    kolo_op_t twice;
    size_t before = 0;
    EXPECT_OK(kolo_op_create_premul_sum(&twice, &factor, KOLO_FLOAT32, r->comm));
    for (int i = 0; i < GROUPS; i++) {
        if (i == GROUPS / 10) {
            meet();
            before = bytes_held();
            meet();
        }
        EXPECT_OK(kolo_group_start());
        EXPECT_OK(kolo_all_to_allv(out, counts, displs, in, counts, displs, KOLO_INT32, r->comm, NULL));
        EXPECT_OK(kolo_all_reduce(&f, &g, 1, KOLO_FLOAT32, twice, r->comm, NULL));
        EXPECT_OK(kolo_send(&x, 1, KOLO_INT32, mate, r->comm, NULL));
        EXPECT_OK(kolo_recv(&y, 1, KOLO_INT32, mate, r->comm, NULL));
        EXPECT_OK(kolo_group_end());
    }
    EXPECT(y == 3 && g == 4 && in[mate] == 1 + r->rank);
    meet();
    size_t after = bytes_held();
    EXPECT(after < before + GROUPS * 16); /* a table is 64 bytes */
    meet();
    EXPECT_OK(kolo_op_destroy(twice, r->comm));
}

static void groups_keep_nothing(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, mix_what_owns, NULL), 0);
}

int main(void)
{
    limit_s(110);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everybody_exchanges_with_everybody),
        cmocka_unit_test(messages_and_collectives_of_two_communicators_mix),
        cmocka_unit_test(one_thread_drives_a_ring),
        cmocka_unit_test(messages_to_oneself_pair_up),
        cmocka_unit_test(a_group_orders_with_all_its_streams),
        cmocka_unit_test(groups_without_calls_do_nothing),
        cmocka_unit_test(a_thread_may_end_within_a_group),
        cmocka_unit_test(one_thread_drives_whole_lives),
        cmocka_unit_test(all_collectives_fit_in_a_group),
        cmocka_unit_test(groups_of_the_two_ends_need_not_be_alike),
        cmocka_unit_test(groups_keep_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
