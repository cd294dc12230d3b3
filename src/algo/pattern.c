/* SPDX-License-Identifier: Apache-2.0
 *
 * Tree and fold arithmetic. The trees are those of P. Sanders, J. Speck, J. L. Traeff, "Two-tree algorithms for
 * full bandwidth broadcast, reduction and scan", Parallel Computing 35 (2009): an in-order binary tree, whose
 * leaves are the odd numbers, and its mirror image (an even number of nodes) or a copy shifted by one (an odd
 * number), whose leaves are the even ones. Folding is the usual first step of recursive halving on any number of
 * ranks (R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH",
 * 2005).
 */
#include "algo/pattern.h"

static uint32_t low_bit(uint32_t u)
{
    return u & (0u - u);
}

/* Returns the parent in the in-order tree over 1..m: a node whose lowest set bit is b covers u - b + 1 .. u + b -
 * 1. Its parent has the next higher bit lowest; parents beyond m are skipped, which hands their left part to the
 * next one up. 0: u is the top. */
static uint32_t in_order_parent(uint32_t m, uint32_t u)
{
    if (u == kolo_pattern_floor_power(m)) return 0;
    do {
        uint32_t b = low_bit(u);
        u = (u & ~b) | (b << 1);
    } while (u > m);
    return u;
}

static uint32_t in_order_right(uint32_t m, uint32_t u)
{
    uint32_t step = low_bit(u) / 2;
    while (step && u + step > m) step /= 2;
    return step ? u + step : 0;
}

/* Turns position 1..m into its number in tree `which`, and back. */
static uint32_t to_tree(uint32_t m, uint32_t which, uint32_t position)
{
    if (!which) return position;
    if (m % 2 == 0) return m + 1 - position;
    return position == 1 ? m : position - 1;
}

static uint32_t from_tree(uint32_t m, uint32_t which, uint32_t u)
{
    if (!which) return u;
    if (m % 2 == 0) return m + 1 - u;
    return u == m ? 1 : u + 1;
}

kolo_tree_links_t kolo_pattern_tree(uint32_t n, uint32_t which, uint32_t position)
{
    kolo_tree_links_t links = {.parent = -1, .child = {-1, -1}};
    if (n < 2) return links;
    uint32_t m = n - 1;
    if (position == 0) {
        links.child[0] = (int)from_tree(m, which, kolo_pattern_floor_power(m));
        return links;
    }
    uint32_t u = to_tree(m, which, position), up = in_order_parent(m, u);
    links.parent = up ? (int)from_tree(m, which, up) : 0;
    int at = 0;
    if (low_bit(u) > 1) links.child[at++] = (int)from_tree(m, which, u - low_bit(u) / 2);
    uint32_t right = in_order_right(m, u);
    if (right) links.child[at] = (int)from_tree(m, which, right);
    return links;
}

kolo_fold_t kolo_pattern_fold(uint32_t n, uint32_t position)
{
    kolo_fold_t fold = {.p = kolo_pattern_floor_power(n), .core = -1, .partner = -1};
    uint32_t extra = n - fold.p;
    if (position >= 2 * extra) {
        fold.core = (int)(position - extra);
    } else {
        fold.partner = (int)(position ^ 1u);
        if (position & 1) fold.core = (int)(position / 2);
    }
    return fold;
}

uint32_t kolo_pattern_unfold(uint32_t n, uint32_t core)
{
    uint32_t extra = n - kolo_pattern_floor_power(n);
    return core < extra ? 2 * core + 1 : core + extra;
}
