/* SPDX-License-Identifier: Apache-2.0
 *
 * Windows, puts and signals as users call them, ranks as threads: run for each wire, so that every way into another
 * rank's memory gets its turn (a plain copy, a copy by the kernel, shared memory, bytes that travel).
 */
#include "kit/ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int rank_counts[] = {1, 2, 3, 5, 8};

static kolo_window_t make(rank_t *r, void *buf, size_t bytes)
{
    kolo_window_t window = NULL;
    EXPECT_OK(kolo_window_register(r->comm, buf, bytes, &window));
    EXPECT(window != NULL);
    return window;
}

static kolo_status_t wait_for(rank_t *r, int peer, int signal, uint32_t count)
{
    kolo_signal_wait_t wait = {peer, signal, count};
    return kolo_wait_signal(&wait, 1, r->comm, NULL);
}

/* Bytes from `from` on of what is put, at most BLOCK; how many. */
#define BLOCK 4096
TEST_PLAIN static size_t pattern(uint8_t *block, size_t from, size_t end, unsigned seed)
{
    size_t n = end - from < BLOCK ? end - from : BLOCK;
    for (size_t i = from; i < from + n; i++) block[i - from] = (uint8_t)(seed * 31 + i * 7 + i / 251);
    return n;
}

static void fill(uint8_t *at, size_t bytes, unsigned seed)
{
    uint8_t block[BLOCK];
    for (size_t i = 0, n; i < bytes; i += n) {
        n = pattern(block, i, bytes, seed);
        memcpy(at + i, block, n);
    }
}

static bool is_filled(const uint8_t *at, size_t bytes, unsigned seed)
{
    uint8_t block[BLOCK];
    for (size_t i = 0, n; i < bytes; i += n) {
        n = pattern(block, i, bytes, seed);
        if (memcmp(at + i, block, n) != 0) return false;
    }
    return true;
}

/* ---- sizes and ways ---- */

static const size_t sizes[] = {0, 1, 7, 64, 4096, 65537, (5u << 20) + 3};
#define LARGEST ((5u << 20) + 3)

/* Everybody puts to everybody, itself included, each into its own place; `kolo` says who makes the memory. */
static void all_to_all(rank_t *r, bool kolo)
{
    size_t part = LARGEST + 64;
    uint8_t *own = kolo ? NULL : calloc((size_t)r->nranks, part), *src = malloc(LARGEST);
    kolo_window_t window = make(r, own, (size_t)r->nranks * part);
    void *base;
    size_t bytes;
    EXPECT_OK(kolo_window_memory(r->comm, window, &base, &bytes));
    EXPECT(bytes == (size_t)r->nranks * part && (kolo || base == own));
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        size_t offset = (size_t)r->rank * part + k;
        for (int p = 0; p < r->nranks; p++) {
            fill(src, sizes[k], (unsigned)(r->rank * 16 + p) + (unsigned)k);
            EXPECT_OK(kolo_put_signal(src, sizes[k], KOLO_UINT8, p, window, offset, (int)k, r->comm, NULL));
            memset(src, 0xee, sizes[k]); /* it may be used again */
        }
        for (int p = 0; p < r->nranks; p++) {
            EXPECT_OK(wait_for(r, p, (int)k, 1));
            EXPECT(is_filled((uint8_t *)base + (size_t)p * part + k, sizes[k],
                             (unsigned)(p * 16 + r->rank) + (unsigned)k));
        }
        EXPECT_OK(kolo_barrier(r->comm, NULL)); /* the next round writes to the same place */
    }
    EXPECT_OK(kolo_window_deregister(r->comm, window));
    free(own);
    free(src);
}

static void users_memory(rank_t *r)
{
    all_to_all(r, false);
}

static void kolos_memory(rank_t *r)
{
    all_to_all(r, true);
}

static void what_is_put_is_there_after_the_signal(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rank_counts / sizeof *rank_counts; i++) {
        assert_int_equal(run_ranks(rank_counts[i], users_memory, NULL), 0);
        assert_int_equal(run_ranks(rank_counts[i], kolos_memory, NULL), 0);
    }
}

/* ---- order ---- */

#define ROUNDS 3000

/* Data, then a signal, with no answer but a signal back; many in flight at the end. */
static void stress_order(rank_t *r)
{
    struct {
        uint32_t values[64];
    } *places = calloc(16, sizeof *places);
    kolo_window_t window = make(r, places, 16 * sizeof *places);
    int next = (r->rank + 1) % r->nranks, last = (r->rank + r->nranks - 1) % r->nranks;
    uint32_t src[64];
    for (uint32_t i = 0; i < ROUNDS; i++) {
        size_t at = i % 16 * sizeof *places;
        if (i >= 16) EXPECT_OK(wait_for(r, next, 1, 1)); /* the place is free again */
        for (uint32_t k = 0; k < 64; k++) src[k] = i * 64 + k;
        if (i % 3) {
            EXPECT_OK(kolo_put_signal(src, 64, KOLO_UINT32, next, window, at, 0, r->comm, NULL));
        } else { /* in two halves, and a signal by itself */
            EXPECT_OK(kolo_put(src, 32, KOLO_UINT32, next, window, at, r->comm, NULL));
            EXPECT_OK(kolo_put(src + 32, 32, KOLO_UINT32, next, window, at + 128, r->comm, NULL));
            EXPECT_OK(kolo_signal(next, 0, r->comm, NULL));
        }
        EXPECT_OK(wait_for(r, last, 0, 1));
        for (uint32_t k = 0; k < 64; k++)
            if (!EXPECT(places[i % 16].values[k] == i * 64 + k)) return;
        EXPECT_OK(kolo_signal(last, 1, r->comm, NULL));
    }
    EXPECT_OK(wait_for(r, next, 1, 16));
    for (int i = 0; i < 5000; i++) EXPECT_OK(kolo_signal(next, 2, r->comm, NULL));
    EXPECT_OK(wait_for(r, last, 2, 4999));
    EXPECT_OK(wait_for(r, last, 2, 1));
    EXPECT_OK(kolo_window_deregister(r->comm, window));
    free(places);
}

static void a_signal_does_not_overtake_what_was_put_before_it(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, stress_order, NULL), 0);
    assert_int_equal(run_ranks(4, stress_order, NULL), 0);
}

/* ---- several windows, sizes that differ, windows that come and go ---- */

static void several(rank_t *r)
{
    uint64_t a[8] = {0}, value = 0;
    size_t mine = r->rank == 1 ? 0 : 64;
    kolo_window_t first = make(r, a, mine), second = make(r, NULL, (size_t)r->rank * 8 + 8), third;
    void *base;
    EXPECT_OK(kolo_window_memory(r->comm, second, &base, NULL));
    EXPECT(*(uint64_t *)base == 0);
    if (r->rank == 0) {
        for (int p = 0; p < r->nranks; p++) {
            value = 100 + (uint64_t)p;
            EXPECT_OK(kolo_put(&value, 1, KOLO_UINT64, p, second, (size_t)p * 8, r->comm, NULL));
            value = 200 + (uint64_t)p;
            if (p != 1) EXPECT_OK(kolo_put(&value, 1, KOLO_UINT64, p, first, 56, r->comm, NULL));
            EXPECT_OK(kolo_signal(p, 3, r->comm, NULL));
        }
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_put(&value, 1, KOLO_UINT64, 1, first, 0, r->comm, NULL),
                     "do not fit into the window of rank 1", "has 0");
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_put(&value, 1, KOLO_UINT64, 1, second, 16, r->comm, NULL),
                     "8 bytes at offset 16", "has 16");
    }
    EXPECT_OK(wait_for(r, 0, 3, 1));
    EXPECT(((uint64_t *)base)[r->rank] == 100 + (uint64_t)r->rank);
    EXPECT(a[7] == (r->rank == 1 ? 0 : 200 + (uint64_t)r->rank));
    EXPECT_OK(kolo_window_deregister(r->comm, first));
    third = make(r, a, sizeof a);
    EXPECT(third != first);
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_put(&value, 1, KOLO_UINT64, 0, first, 0, r->comm, NULL),
                 "is not a window of", "deregistered");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_window_deregister(r->comm, first), "not a window of");
    EXPECT(works(r->comm)); /* no harm done */
    EXPECT_OK(kolo_window_deregister(r->comm, second));
    EXPECT_OK(kolo_window_deregister(r->comm, third));
    EXPECT_OK(kolo_window_deregister(r->comm, NULL));
}

static void windows_come_and_go(void **state)
{
    (void)state;
    census_t before = census_take();
    assert_int_equal(run_ranks(3, several, NULL), 0);
    assert_true(census_no_more_than(before));
}

/* What was put is there when deregister returns, without a signal. */
static void without_signals(rank_t *r)
{
    size_t part = 3u << 20;
    uint8_t *own = calloc((size_t)r->nranks, part), *src = malloc(part);
    for (int round = 0; round < 3; round++) {
        kolo_window_t window = make(r, own, (size_t)r->nranks * part);
        fill(src, part, (unsigned)(r->rank + round));
        for (int p = 0; p < r->nranks; p++)
            EXPECT_OK(kolo_put(src, part, KOLO_UINT8, p, window, (size_t)r->rank * part, r->comm, NULL));
        EXPECT_OK(kolo_window_deregister(r->comm, window));
        for (int p = 0; p < r->nranks; p++) EXPECT(is_filled(own + (size_t)p * part, part, (unsigned)(p + round)));
    }
    free(own);
    free(src);
}

static void a_window_is_whole_when_it_is_given_back(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(4, without_signals, NULL), 0);
}

/* ---- groups and streams ---- */

/* Puts and waits of one group in whatever order, several waits, beside messages and a collective. */
static void grouped(rank_t *r)
{
    enum { N = 1000 };
    int n = r->nranks;
    int32_t *own = calloc((size_t)n, N * sizeof *own), *src = malloc((size_t)n * N * sizeof *src);
    int32_t sum = 0, one = 1, sent = r->rank, got = -1;
    kolo_signal_wait_t waits[MAX_RANKS];
    kolo_window_t window = make(r, own, (size_t)n * N * sizeof *own);
    for (int round = 0; round < 20; round++) {
        for (int p = 0; p < n; p++) waits[p] = (kolo_signal_wait_t){p, round % KOLO_SIGNALS, 1};
        for (int i = 0; i < n * N; i++) src[i] = round * 1000003 + r->rank * 1009 + i;
        EXPECT_OK(kolo_group_start());
        if (round % 2) EXPECT_OK(kolo_wait_signal(waits, n, r->comm, NULL));
        for (int p = 0; p < n; p++)
            EXPECT_OK(kolo_put_signal(src + p * N, N, KOLO_INT32, (p + r->rank) % n == p ? p : p, window,
                                      (size_t)r->rank * N * sizeof *own, round % KOLO_SIGNALS, r->comm, NULL));
        EXPECT_OK(kolo_send(&sent, 1, KOLO_INT32, (r->rank + 1) % n, r->comm, NULL));
        EXPECT_OK(kolo_recv(&got, 1, KOLO_INT32, (r->rank + n - 1) % n, r->comm, NULL));
        EXPECT_OK(kolo_all_reduce(&one, &sum, 1, KOLO_INT32, KOLO_SUM, r->comm, NULL));
        if (round % 2 == 0) EXPECT_OK(kolo_wait_signal(waits, n, r->comm, NULL));
        for (int p = 0; p < n; p++) waits[p].peer = -7; /* the list was read */
        EXPECT_OK(kolo_group_end());
        EXPECT(sum == n && got == (r->rank + n - 1) % n);
        for (int p = 0; p < n; p++)
            for (int i = 0; i < N; i++)
                if (!EXPECT(own[p * N + i] == round * 1000003 + p * 1009 + r->rank * N + i)) return;
        EXPECT_OK(kolo_barrier(r->comm, NULL));
    }
    EXPECT_OK(kolo_window_deregister(r->comm, window));
    free(own);
    free(src);
}

static void groups_run_puts_and_waits_side_by_side(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rank_counts / sizeof *rank_counts; i++)
        assert_int_equal(run_ranks(rank_counts[i], grouped, NULL), 0);
}

static void streamed(rank_t *r)
{
    uint32_t own[4] = {0}, src[100];
    int peer = (r->rank + 1) % r->nranks, from = (r->rank + r->nranks - 1) % r->nranks;
    kolo_signal_wait_t wait = {from, 5, 100};
    kolo_stream_t stream;
    kolo_window_t window = make(r, own, sizeof own);
    EXPECT_OK(kolo_stream_create(&stream));
    for (uint32_t i = 0; i < 100; i++) {
        src[i] = i + 1;
        EXPECT_OK(kolo_put_signal(&src[i], 1, KOLO_UINT32, peer, window, 8, 5, r->comm, stream));
    }
    EXPECT_OK(kolo_wait_signal(&wait, 1, r->comm, stream));
    wait.peer = 99;
    EXPECT_OK(kolo_group_start());
    EXPECT_OK(kolo_signal(peer, 6, r->comm, stream));
    EXPECT_OK(kolo_group_end());
    EXPECT_OK(kolo_stream_synchronize(stream));
    EXPECT(own[2] == 100);
    EXPECT_OK(wait_for(r, from, 6, 1));
    EXPECT_OK(kolo_window_deregister(r->comm, window));
    EXPECT_OK(kolo_stream_destroy(stream));
}

static void streams_keep_the_order(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, streamed, NULL), 0);
}

/* The owner computes: what is put to it is complete all the same. */
static void to_a_rank_that_makes_no_call(rank_t *r)
{
    size_t bytes = 24u << 20; /* more than sockets hold */
    uint8_t *own = calloc(1, bytes), *src = malloc(bytes);
    kolo_window_t window = make(r, own, bytes);
    if (r->rank == 0) {
        fill(src, bytes, 3);
        EXPECT_OK(kolo_put_signal(src, bytes, KOLO_UINT8, 1, window, 0, 0, r->comm, NULL));
    }
    meet(); /* rank 1 has called nothing since */
    if (r->rank == 1) {
        EXPECT_OK(wait_for(r, 0, 0, 1));
        EXPECT(is_filled(own, bytes, 3));
    }
    EXPECT_OK(kolo_window_deregister(r->comm, window));
    free(own);
    free(src);
}

static void a_put_needs_no_call_of_its_target(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, to_a_rank_that_makes_no_call, NULL), 0);
}

/* ---- a communicator that does not block ---- */

static void without_blocking(rank_t *r)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t child = NULL;
    kolo_window_t window = NULL;
    uint64_t own = 0, value = 77 + (uint64_t)r->rank;
    int peer = (r->rank + 1) % r->nranks, last = (r->rank + r->nranks - 1) % r->nranks;
    kolo_signal_wait_t wait = {last, 0, 1};
    config.blocking = 0;
    kolo_status_t status = kolo_comm_split(r->comm, 0, r->rank, &child, &config);
    EXPECT_OK(settled(r->comm, status));
    EXPECT_OK(settled(child, KOLO_IN_PROGRESS));
    EXPECT_OK(settled(child, kolo_window_register(child, &own, sizeof own, &window)));
    EXPECT(window != NULL);
    EXPECT_OK(kolo_put_signal(&value, 1, KOLO_UINT64, peer, window, 0, 0, child, NULL));
    EXPECT_OK(kolo_wait_signal(&wait, 1, child, NULL));
    EXPECT(own == 77 + (uint64_t)last);
    EXPECT_OK(settled(child, kolo_window_deregister(child, window)));
    EXPECT_OK(settled(child, kolo_comm_finalize(child)));
    EXPECT_OK(kolo_comm_destroy(child));
}

static void registering_goes_on_in_the_background(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, without_blocking, NULL), 0);
}

/* ---- what is refused ---- */

static void bad_calls(rank_t *r)
{
    uint64_t own[4] = {0}, value = 1;
    kolo_window_t window = NULL, none = (kolo_window_t)(uintptr_t)own;
    kolo_signal_wait_t wait = {0, 0, 1};
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_signal(0, 0, r->comm, NULL), "has never had a window");
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_wait_signal(&wait, 1, r->comm, NULL), "has never had a window");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_put(&value, 1, KOLO_UINT64, 0, none, 0, r->comm, NULL),
                 "is not a window of");
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_window_register(r->comm, own, sizeof own, NULL));
    EXPECT_OK(kolo_group_start());
    EXPECT_IS(KOLO_ERR_INVALID_USAGE, kolo_window_register(r->comm, own, sizeof own, &window));
    EXPECT_OK(kolo_group_end());
    /* what is wrong on one rank is told to all, and the communicator goes on */
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT,
                 kolo_window_register(r->comm, own, r->rank == 1 ? (size_t)-5 : sizeof own, &window),
                 "rank 1: ", "too many (a negative number?)");
    window = make(r, own, sizeof own);
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_put(&value, 1, KOLO_UINT64, 0, window, 25, r->comm, NULL),
                 "8 bytes at offset 25 do not fit into the window of rank 0, which has 32");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_put(&value, 1, KOLO_UINT64, 0, window, (size_t)-8, r->comm, NULL),
                 "8 bytes at offset 18446744073709551608 (a negative number?) do not fit");
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_put(&value, (size_t)-1, KOLO_UINT64, 0, window, 0, r->comm, NULL));
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_put(&value, 1, (kolo_type_t)99, 0, window, 0, r->comm, NULL));
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_put(NULL, 1, KOLO_UINT64, 0, window, 0, r->comm, NULL));
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_put(&value, 1, KOLO_UINT64, -1, window, 0, r->comm, NULL));
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_put(&value, 1, KOLO_UINT64, r->nranks, window, 0, r->comm, NULL));
    for (int bad = -1; bad <= KOLO_SIGNALS; bad += KOLO_SIGNALS + 1) {
        wait.signal = bad;
        EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT,
                  kolo_put_signal(&value, 1, KOLO_UINT64, 0, window, 0, bad, r->comm, NULL));
        EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_signal(0, bad, r->comm, NULL));
        EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_wait_signal(&wait, 1, r->comm, NULL));
    }
    wait = (kolo_signal_wait_t){0, 0, 0x80000000u};
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_wait_signal(&wait, 1, r->comm, NULL),
                 "2147483648 signals of rank 0");
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_wait_signal(NULL, 1, r->comm, NULL));
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_wait_signal(&wait, -1, r->comm, NULL));
    EXPECT_OK(kolo_wait_signal(NULL, 0, r->comm, NULL));
    EXPECT(own[0] == 0 && own[3] == 0 && works(r->comm));
    EXPECT_OK(kolo_window_deregister(r->comm, window));
}

static void what_makes_no_sense_is_refused(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, bad_calls, NULL), 0);
}

/* ---- waits that end otherwise ---- */

typedef struct {
    kolo_comm_t comm;
    _Atomic int *waits;
} victim_t;

static void *abort_it(void *arg)
{
    victim_t *v = arg;
    (void)await_count(v->waits, 1);
    nap_ms(20);
    EXPECT_OK(kolo_comm_abort(v->comm));
    return NULL;
}

static void aborted(rank_t *r)
{
    _Atomic int waits = 0;
    uint64_t own = 0;
    victim_t v = {r->comm, &waits};
    pthread_t thread;
    (void)make(r, &own, sizeof own);
    assert_int_equal(pthread_create(&thread, NULL, abort_it, &v), 0);
    waits = 1;
    EXPECT_IS(KOLO_ERR_ABORTED, wait_for(r, r->rank, 0, 1)); /* nobody will */
    pthread_join(thread, NULL);
    r->comm = NULL;
}

static void an_abort_ends_a_wait(void **state)
{
    (void)state;
    census_t before = census_take();
    assert_int_equal(run_ranks(1, aborted, NULL), 0);
    assert_true(census_no_more_than(before));
}

/* Rank 1 leaves in good order after its signal: that is seen, and more of them are not. */
static void left_alone(rank_t *r)
{
    uint64_t own = 0, value = 42;
    kolo_window_t window = make(r, &own, sizeof own);
    if (r->rank == 1) {
        EXPECT_OK(kolo_put_signal(&value, 1, KOLO_UINT64, 0, window, 0, 0, r->comm, NULL));
        EXPECT_OK(kolo_comm_destroy(r->comm));
        r->comm = NULL;
        return;
    }
    kolo_status_t status = wait_for(r, 1, 0, 1);
    if (status == KOLO_OK) {
        EXPECT(own == 42);
        EXPECT_ERROR(KOLO_ERR_REMOTE, wait_for(r, 1, 0, 1), "rank 1");
    } else { /* the news of its leaving were first */
        EXPECT_IS(KOLO_ERR_REMOTE, status);
    }
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
}

static void a_rank_that_leaves_ends_waits_for_it(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, left_alone, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_put_is_there_after_the_signal),
        cmocka_unit_test(a_signal_does_not_overtake_what_was_put_before_it),
        cmocka_unit_test(windows_come_and_go),
        cmocka_unit_test(a_window_is_whole_when_it_is_given_back),
        cmocka_unit_test(groups_run_puts_and_waits_side_by_side),
        cmocka_unit_test(streams_keep_the_order),
        cmocka_unit_test(a_put_needs_no_call_of_its_target),
        cmocka_unit_test(registering_goes_on_in_the_background),
        cmocka_unit_test(what_makes_no_sense_is_refused),
        cmocka_unit_test(an_abort_ends_a_wait),
        cmocka_unit_test(a_rank_that_leaves_ends_waits_for_it),
    };
    limit_s(110);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
