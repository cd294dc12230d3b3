/* SPDX-License-Identifier: Apache-2.0
 *
 * The response cache: hits, misses, what makes a tensor another, who is pushed out, groups, and that two caches
 * that are used in the same order have the same slots.
 */
#include "base/test.h"
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kolo_tensor_request_t request(const char *name, int64_t rows)
{
    kolo_tensor_request_t q = {.type = KOLO_FLOAT32, .prescale = 1, .postscale = 1, .ndims = 2, .shape = {rows, 3}};
    kolo_name_init(&q.name, name, (uint32_t)strlen(name));
    return q;
}

static int find(const kolo_cache_t *c, const kolo_tensor_request_t *q, kolo_cache_found_t want)
{
    int slot = -1;
    assert_int_equal(kolo_cache_find(c, q, &slot), want);
    return slot;
}

static void every_kind_of_work_is_remembered(void **state)
{
    kolo_cache_t c;
    (void)state;
    assert_int_equal(kolo_cache_init(&c, 16, 2), KOLO_OK);
    for (int work = 0; work < KOLO_WORK_COUNT; work++) {
        char name[16];
        int64_t rows[2] = {4, 5};
        snprintf(name, sizeof name, "w%d", work);
        kolo_tensor_request_t q = request(name, 4);
        q.work = (kolo_work_t)work;
        find(&c, &q, KOLO_CACHE_MISS);
        assert_int_equal(kolo_cache_put(&c, &q, work == KOLO_WORK_ALL_GATHER ? rows : NULL, false), KOLO_OK);
        int slot = find(&c, &q, KOLO_CACHE_HIT);
        assert_int_equal(slot, work);
        if (work == KOLO_WORK_ALL_GATHER) assert_int_equal(c.slots[slot].rows[1], 5);
    }
    kolo_cache_fini(&c);
}

static void any_difference_is_invalid(void **state)
{
    kolo_cache_t c;
    kolo_tensor_request_t q = request("x", 4);
    (void)state;
    assert_int_equal(kolo_cache_init(&c, 4, 1), KOLO_OK);
    assert_int_equal(kolo_cache_put(&c, &q, NULL, false), KOLO_OK);
    for (int i = 0; i < 9; i++) {
        kolo_tensor_request_t other = q;
        if (i == 0) other.work = KOLO_WORK_BROADCAST;
        if (i == 1) other.type = KOLO_INT32;
        if (i == 2) other.op = KOLO_MAX;
        if (i == 3) other.root = 1;
        if (i == 4) other.prescale = 2;
        if (i == 5) other.postscale = 2;
        if (i == 6) other.ndims = 1;
        if (i == 7) other.shape[1] = 2;
        if (i == 8) other.group = other.group_size = 1;
        find(&c, &other, KOLO_CACHE_INVALID);
    }
    find(&c, &q, KOLO_CACHE_HIT);
    kolo_cache_erase(&c, 0);
    find(&c, &q, KOLO_CACHE_MISS);
    kolo_cache_fini(&c);
}

static void the_longest_unused_is_pushed_out(void **state)
{
    kolo_cache_t c;
    kolo_tensor_request_t a = request("a", 1), b = request("b", 1), d = request("d", 1), e = request("e", 1);
    (void)state;
    assert_int_equal(kolo_cache_init(&c, 2, 1), KOLO_OK);
    assert_int_equal(kolo_cache_put(&c, &a, NULL, false), KOLO_OK);
    assert_int_equal(kolo_cache_put(&c, &b, NULL, false), KOLO_OK);
    kolo_cache_touch(&c, find(&c, &a, KOLO_CACHE_HIT));
    assert_int_equal(kolo_cache_put(&c, &d, NULL, false), KOLO_OK);
    find(&c, &b, KOLO_CACHE_MISS);
    assert_int_equal(find(&c, &a, KOLO_CACHE_HIT), 0);
    assert_int_equal(find(&c, &d, KOLO_CACHE_HIT), 1); /* its place */
    assert_int_equal(kolo_cache_put(&c, &e, NULL, false), KOLO_OK);
    find(&c, &a, KOLO_CACHE_MISS);
    kolo_cache_fini(&c);
    assert_int_equal(kolo_cache_init(&c, 0, 1), KOLO_OK); /* no cache at all */
    assert_int_equal(kolo_cache_put(&c, &a, NULL, false), KOLO_OK);
    find(&c, &a, KOLO_CACHE_MISS);
    kolo_cache_fini(&c);
}

static void a_group_is_cached_as_a_whole(void **state)
{
    kolo_cache_t c;
    kolo_tensor_request_t a = request("a", 1), b = request("b", 1), d = request("d", 1);
    uint64_t bits = 7;
    (void)state;
    a.group = b.group = 99;
    a.group_size = b.group_size = 2;
    assert_int_equal(kolo_cache_init(&c, 3, 1), KOLO_OK);
    assert_int_equal(kolo_cache_put(&c, &a, NULL, false), KOLO_OK);
    find(&c, &a, KOLO_CACHE_MISS);
    assert_int_equal(kolo_cache_put(&c, &b, NULL, false), KOLO_OK);
    assert_int_equal(kolo_cache_put(&c, &d, NULL, false), KOLO_OK);
    find(&c, &a, KOLO_CACHE_HIT);
    kolo_cache_keep_whole(&c, &bits);
    assert_int_equal(bits, 7);
    bits = 6; /* the group lacks a */
    kolo_cache_keep_whole(&c, &bits);
    assert_int_equal(bits, 4);
    kolo_cache_erase(&c, 0);
    find(&c, &b, KOLO_CACHE_MISS);
    find(&c, &d, KOLO_CACHE_HIT);
    kolo_cache_fini(&c);
}

static void the_same_order_gives_the_same_slots(void **state)
{
    kolo_cache_t one, two;
    uint64_t s = 12345;
    (void)state;
    assert_int_equal(kolo_cache_init(&one, 10, 1), KOLO_OK);
    assert_int_equal(kolo_cache_init(&two, 10, 1), KOLO_OK);
    for (int i = 0; i < 20000; i++) {
        char name[16];
        int slot = -1, other = -2;
        s = s * 6364136223846793005ull + 1442695040888963407ull;
        snprintf(name, sizeof name, "n%d", (int)(s >> 40) % 17);
        kolo_tensor_request_t q = request(name, (int64_t)(s >> 33) % 2), mine = q;
        mine.shape[0] += 10; /* another rank's first dimension */
        kolo_cache_found_t found = kolo_cache_find(&one, &q, &slot);
        assert_int_equal(found, kolo_cache_find(&two, &mine, &other));
        if (found == KOLO_CACHE_MISS) {
            assert_int_equal(kolo_cache_put(&one, &q, NULL, false), KOLO_OK);
            assert_int_equal(kolo_cache_put(&two, &mine, NULL, false), KOLO_OK);
            continue;
        }
        assert_int_equal(slot, other);
        if (found == KOLO_CACHE_HIT) {
            kolo_cache_touch(&one, slot);
            kolo_cache_touch(&two, slot);
        } else {
            kolo_cache_erase(&one, slot);
            kolo_cache_erase(&two, slot);
        }
        assert_int_equal(one.count, two.count);
    }
    kolo_cache_fini(&one);
    kolo_cache_fini(&two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_work_is_remembered),    cmocka_unit_test(any_difference_is_invalid),
        cmocka_unit_test(the_longest_unused_is_pushed_out),    cmocka_unit_test(a_group_is_cached_as_a_whole),
        cmocka_unit_test(the_same_order_gives_the_same_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
