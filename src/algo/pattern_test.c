/* SPDX-License-Identifier: Apache-2.0
 *
 * Properties of the arithmetic behind the algorithms, over every size up to a few hundred.
 */
#include "algo/pattern.h"
#include "base/test.h"

static int depth_of(uint32_t n, uint32_t which, uint32_t position)
{
    int depth = 0;
    for (int at = (int)position; at != 0 && depth <= (int)n; depth++)
        at = kolo_pattern_tree(n, which, (uint32_t)at).parent;
    return depth;
}

static int is_inner(uint32_t n, uint32_t which, uint32_t position)
{
    return kolo_pattern_tree(n, which, position).child[0] >= 0;
}

static void wrap_takes_any_sign(void **state)
{
    (void)state;
    assert_int_equal(kolo_pattern_wrap(-1, 5), 4);
    assert_int_equal(kolo_pattern_wrap(-5, 5), 0);
    assert_int_equal(kolo_pattern_wrap(7, 5), 2);
    assert_int_equal(kolo_pattern_wrap(-11, 5), 4);
}

static void floor_power_is_the_largest_not_above(void **state)
{
    (void)state;
    for (uint32_t n = 1; n < 5000; n++) {
        uint32_t p = kolo_pattern_floor_power(n);
        assert_true(kolo_pattern_is_power_of_two(p) && p <= n && 2 * p > n);
    }
    assert_int_equal(kolo_pattern_floor_power(0xffffffffu), 0x80000000u);
    assert_false(kolo_pattern_is_power_of_two(0));
}

static void tree_links_agree_at_both_ends(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 300; n++) {
        for (uint32_t which = 0; which < 2; which++) {
            uint32_t children = 0;
            for (uint32_t p = 0; p < n; p++) {
                kolo_tree_links_t l = kolo_pattern_tree(n, which, p);
                assert_int_equal(l.parent < 0, p == 0);
                assert_false(l.child[0] < 0 && l.child[1] >= 0);
                for (int k = 0; k < 2; k++) {
                    if (l.child[k] < 0) continue;
                    assert_true((uint32_t)l.child[k] < n);
                    assert_int_equal(kolo_pattern_tree(n, which, (uint32_t)l.child[k]).parent, p);
                    children++;
                }
            }
            assert_int_equal(children, n - 1);
        }
    }
}

static void trees_are_flat(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 300; n++) {
        int most = 32 - __builtin_clz(n - 1); /* of a binary tree over n - 1 positions, and the root above it */
        for (uint32_t which = 0; which < 2; which++)
            for (uint32_t p = 0; p < n; p++) assert_in_range(depth_of(n, which, p), 0, most);
    }
}

/* That is what makes two trees carry the full bandwidth. */
static void nobody_but_the_root_is_inside_both_trees(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 300; n++) {
        uint32_t leaf_of_both = 0;
        for (uint32_t p = 1; p < n; p++) {
            assert_false(is_inner(n, 0, p) && is_inner(n, 1, p));
            leaf_of_both += !is_inner(n, 0, p) && !is_inner(n, 1, p);
        }
        assert_in_range(leaf_of_both, 0, 1);
    }
}

static void folding_numbers_the_core_once(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 300; n++) {
        uint32_t seen = 0;
        for (uint32_t r = 0; r < n; r++) {
            kolo_fold_t f = kolo_pattern_fold(n, r);
            assert_int_equal(f.p, kolo_pattern_floor_power(n));
            if (f.partner >= 0) {
                kolo_fold_t other = kolo_pattern_fold(n, (uint32_t)f.partner);
                assert_int_equal(other.partner, r);
                assert_true((f.core < 0) != (other.core < 0));
            }
            if (f.core < 0) {
                assert_true(f.partner >= 0);
                continue;
            }
            assert_int_equal(kolo_pattern_unfold(n, (uint32_t)f.core), r);
            seen++;
        }
        assert_int_equal(seen, kolo_pattern_floor_power(n));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrap_takes_any_sign),
        cmocka_unit_test(floor_power_is_the_largest_not_above),
        cmocka_unit_test(tree_links_agree_at_both_ends),
        cmocka_unit_test(trees_are_flat),
        cmocka_unit_test(nobody_but_the_root_is_inside_both_trees),
        cmocka_unit_test(folding_numbers_the_core_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
