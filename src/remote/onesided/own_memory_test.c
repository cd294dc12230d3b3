/* SPDX-License-Identifier: Apache-2.0
 *
 * One-sided transfers into memory that is the caller's own: the same for every kind, and what is special over
 * shared memory, where the peer copies into this process.
 */
#include "remote/onesided/test_ends.h"

static void memory_of_the_callers_own_may_be_exposed(void **state)
{
    pair_t *p = *state;
    kolo_onesided_event_t event;
    kolo_onesided_window_t window;
    char *mine = calloc(1, 100000), *data = malloc(100000);
    assert_true(kolo_onesided_pays(p->end[1], 1 << 20));
    assert_int_equal(kolo_onesided_expose(p->end[1], mine, 100000, &window), KOLO_OK);
    for (int round = 0; round < 3; round++) {
        kolo_onesided_write_t w = {data, 99999, &window, 1, KOLO_ONESIDED_NOTIFY, 6, 1};
        memset(data, 'a' + round, 100000);
        assert_int_equal(kolo_onesided_write(p->end[0], &w), KOLO_OK);
        expect(p, 1, 1, &event);
        assert_int_equal(event.bytes, 99999);
        assert_int_equal(mine[0], 0);
        assert_memory_equal(mine + 1, data, 99999);
        kolo_onesided_hide(p->end[1], &window);
        assert_int_equal(kolo_onesided_expose(p->end[1], mine, 100000, &window), KOLO_OK);
    }
    kolo_onesided_hide(p->end[1], &window);
    if (kind != KOLO_ONESIDED_SHM) forge(p, window); /* who may copy into a process may do so anywhere */
    free(data);
    free(mine);
}

static void large_writes_to_memory_of_the_callers_own_keep_their_order(void **state)
{
    enum { BYTES = 6 << 20, PARTS = 3 }; /* copiers do these */
    pair_t *p = *state;
    kolo_onesided_event_t events[PARTS];
    kolo_onesided_window_t window;
    char *mine = calloc(PARTS, BYTES), *data = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++) data[i] = (char)(i * 7 + i / 251);
    assert_int_equal(kolo_onesided_expose(p->end[1], mine, (size_t)PARTS * BYTES, &window), KOLO_OK);
    for (uint32_t i = 0; i < PARTS; i++) {
        kolo_onesided_write_t w = {data, BYTES, &window, (uint64_t)i * BYTES, KOLO_ONESIDED_NOTIFY, i, i + 1};
        assert_int_equal(kolo_onesided_write(p->end[0], &w), KOLO_OK);
    }
    expect(p, PARTS, PARTS, events);
    for (uint32_t i = 0; i < PARTS; i++) {
        assert_int_equal(events[i].number, i);
        assert_memory_equal(mine + (size_t)i * BYTES, data, BYTES);
    }
    free(data);
    free(mine);
}

/* Over shared memory. */
static void memory_that_the_peer_may_not_copy_to_is_not_exposed(void **state)
{
    kolo_onesided_window_t window;
    char mine[100];
    if (kind != KOLO_ONESIDED_SHM) return;
    tear_down(state);
    int64_t from = kolo_onesided_param_direct;
    kolo_onesided_param_direct = 0;
    set_up(state);
    pair_t *p = *state;
    assert_false(kolo_onesided_pays(p->end[1], 1 << 20));
    assert_int_equal(kolo_onesided_expose(p->end[1], mine, sizeof mine, &window), KOLO_ERR_UNSUPPORTED);
    kolo_onesided_param_direct = from;
}

/* A peer that names memory where it has none: over shared memory the writer finds it out. */
static void a_place_without_memory_is_refused(void **state)
{
    pair_t *p = *state;
    kolo_onesided_window_t window = {.address = UINT64_C(1) << 63 | 64, .bytes = 100};
    if (kind == KOLO_ONESIDED_SHM) forge(p, window);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(memory_of_the_callers_own_may_be_exposed),
        TEST(large_writes_to_memory_of_the_callers_own_keep_their_order),
        TEST(memory_that_the_peer_may_not_copy_to_is_not_exposed),
        TEST(a_place_without_memory_is_refused),
    };
    return run_kinds(argc, argv, tests, KOLO_COUNTOF(tests));
}
