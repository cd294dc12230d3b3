/* SPDX-License-Identifier: Apache-2.0
 *
 * Two windows of one communicator, in every pattern of who has memory in the first and in the second. A pair of
 * ranks connects with the first window in which something travels between the two, so pairs of one communicator are
 * of different ages, and each window must end all the same.
 */
#include "kit/ranks.h"

#include <string.h>

#define RANKS    3
#define PATTERNS (1 << RANKS)
#define BYTES    256

typedef struct {
    kolo_window_t window;
    uint8_t own[RANKS * BYTES], *at;
    bool has[RANKS];
} mine_t;

/* Every other pattern has memory that Kolo makes. */
static void make(mine_t *m, kolo_comm_t comm, int rank, int pattern)
{
    size_t bytes;
    for (int r = 0; r < RANKS; r++) m->has[r] = pattern >> r & 1;
    void *buf = m->has[rank] && pattern % 2 ? m->own : NULL;
    EXPECT_OK(kolo_window_register(comm, buf, m->has[rank] ? sizeof m->own : 0, &m->window));
    EXPECT_OK(kolo_window_memory(comm, m->window, (void **)&m->at, &bytes));
}

/* Everybody to everybody who has memory. The last puts are not waited for: deregistering does. */
static void put_all(mine_t *m, kolo_comm_t comm, int rank, bool wait)
{
    uint8_t src[BYTES];
    memset(src, 1 + rank, sizeof src);
    for (int to = 0; to < RANKS; to++)
        if (m->has[to])
            EXPECT_OK(kolo_put_signal(src, BYTES, KOLO_UINT8, to, m->window, (size_t)rank * BYTES, 0, comm, NULL));
    if (!wait || !m->has[rank]) return;
    for (int from = 0; from < RANKS; from++) {
        const kolo_signal_wait_t one = {from, 0, 1};
        EXPECT_OK(kolo_wait_signal(&one, 1, comm, NULL));
        for (int i = 0; i < BYTES; i++) EXPECT(m->at[from * BYTES + i] == 1 + from);
    }
}

static void two_windows(rank_t *r)
{
    for (int first = 0; first < PATTERNS; first++)
        for (int second = 0; second < PATTERNS; second++) {
            kolo_comm_t comm = NULL;
            mine_t a = {0}, b = {0};
            bool together = (first + second) % 2; /* the first one ends while the second is in use */
            if (!EXPECT_OK(kolo_comm_dup(r->comm, &comm, NULL))) return;
            make(&a, comm, r->rank, first);
            put_all(&a, comm, r->rank, true);
            if (!together) EXPECT_OK(kolo_window_deregister(comm, a.window));
            make(&b, comm, r->rank, second);
            if (together) put_all(&b, comm, r->rank, true);
            if (together) EXPECT_OK(kolo_window_deregister(comm, a.window));
            put_all(&b, comm, r->rank, false);
            EXPECT_OK(kolo_window_deregister(comm, b.window));
            for (int i = 0; b.has[r->rank] && second % 2 && i < RANKS * BYTES; i++)
                EXPECT(b.own[i] == 1 + i / BYTES); /* what was put before the end is there after it */
            end_comm(&comm);
        }
}

static void windows_end_whoever_has_memory_in_them(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(RANKS, two_windows, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(windows_end_whoever_has_memory_in_them)};
    limit_s(100);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
