/* SPDX-License-Identifier: Apache-2.0
 *
 * The verifier's clocks against plain tables: whatever threads stamp, drop and join in whatever order, each knows
 * exactly what it was told.
 */
#include "base/test.h"
#include "prove/model.h"

#include <stdlib.h>
#include <string.h>

#define STAMPS 40

typedef struct {
    kolo_stamp_t stamp;
    uint32_t *known; /* by thread, as its thread knew then */
} held_t;

static uint64_t state;
static uint32_t below(uint32_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 20) % n);
}

static void tell(uint32_t *known, const held_t *h, uint32_t n)
{
    for (uint32_t t = 0; t < n; t++)
        if (known[t] < h->known[t]) known[t] = h->known[t];
    if (known[h->stamp.epoch.thread] < h->stamp.epoch.time) known[h->stamp.epoch.thread] = h->stamp.epoch.time;
}

static void stamps_and_joins(uint32_t n, uint32_t rounds)
{
    kolo_clocks_t c;
    held_t held[STAMPS] = {0};
    uint32_t *known = calloc((size_t)n * n, sizeof(*known));
    assert_non_null(known);
    assert_int_equal(kolo_clock_init(&c, n), KOLO_OK);
    for (uint32_t k = 0; k < STAMPS; k++) assert_non_null(held[k].known = calloc(n, sizeof(uint32_t)));
    for (uint32_t round = 0; round < rounds; round++) {
        held_t *h = &held[below(STAMPS)];
        uint32_t t = below(n), u = below(n);
        uint32_t *mine = known + (size_t)t * n;
        if (below(2)) {
            kolo_clock_drop_stamp(&c, &h->stamp);
            h->stamp = kolo_clock_stamp(&c, t);
            memcpy(h->known, mine, n * sizeof(*mine));
        } else if (h->stamp.epoch.time && h->stamp.epoch.thread != t) {
            assert_int_equal(kolo_clock_join(&c, t, &h->stamp), KOLO_OK);
            tell(mine, h, n);
        }
        uint32_t time = 1 + below(c.time[u]);
        assert_int_equal(kolo_clock_after(&c, t, (kolo_epoch_t){u, time}), t == u || mine[u] >= time);
    }
    for (size_t i = 0; i < (size_t)n * n; i++) {
        uint32_t t = (uint32_t)(i / n), u = (uint32_t)(i % n);
        assert_int_equal(kolo_clock_after(&c, t, (kolo_epoch_t){u, known[i]}), true);
        assert_int_equal(kolo_clock_after(&c, t, (kolo_epoch_t){u, known[i] + 1}), t == u);
    }
    for (uint32_t k = 0; k < STAMPS; k++) {
        kolo_clock_drop_stamp(&c, &held[k].stamp);
        free(held[k].known);
    }
    /* What nobody holds any more is used again. */
    assert_true(c.count <= (n + STAMPS) * (n / 8 + 8));
    kolo_clock_fini(&c);
    free(known);
}

static void clocks_know_what_they_were_told(void **unused)
{
    static const uint32_t threads[] = {1, 2, 15, 16, 17, 100, 256, 257, 400};
    (void)unused;
    state = 88172645463325252u;
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) stamps_and_joins(threads[i], 20000);
}

static void without_threads_all_is_ordered(void **unused)
{
    kolo_clocks_t c;
    (void)unused;
    assert_int_equal(kolo_clock_init(&c, 0), KOLO_OK);
    kolo_stamp_t s = kolo_clock_stamp(&c, 3);
    assert_int_equal(kolo_clock_join(&c, 5, &s), KOLO_OK);
    assert_true(kolo_clock_after(&c, 5, (kolo_epoch_t){7, 9}));
    kolo_clock_drop_stamp(&c, &s);
    kolo_clock_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(clocks_know_what_they_were_told),
                                       cmocka_unit_test(without_threads_all_is_ordered)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
