/* SPDX-License-Identifier: Apache-2.0
 *
 * Who talks to whom: the arithmetic behind the algorithms, free of plans and builders so that it is tested alone.
 * Positions run from 0 to n - 1; which rank sits at a position is the caller's business.
 */
#ifndef KOLO_ALGO_PATTERN_H
#define KOLO_ALGO_PATTERN_H

#include <stdbool.h>
#include <stdint.h>

/* Returns (a + d) mod n for any sign of d; n > 0. */
static inline uint32_t kolo_pattern_wrap(int64_t a, uint32_t n)
{
    int64_t m = a % (int64_t)n;
    return (uint32_t)(m < 0 ? m + n : m);
}
static inline bool kolo_pattern_is_power_of_two(uint32_t n)
{
    return n && !(n & (n - 1));
}
/* Returns the largest power of two <= n; n > 0. */
static inline uint32_t kolo_pattern_floor_power(uint32_t n)
{
    return 1u << (31 - __builtin_clz(n));
}

/* One of the two trees of a double binary tree over n positions, both rooted at position 0, whose only child is the
 * top of a binary tree over 1..n-1. An inner position of one tree is a leaf of the other (but for at most one
 * position, a leaf of both), so that each carries about the same load when both trees carry half of the data. */
typedef struct {
    int parent;   /* -1: position 0 */
    int child[2]; /* -1: none; child[0] < 0 implies child[1] < 0 */
} kolo_tree_links_t;
kolo_tree_links_t kolo_pattern_tree(uint32_t n, uint32_t which, uint32_t position);

/* Folding n positions onto the largest power of two p <= n: of the first 2(n - p) positions the even ones hand
 * their data to the odd neighbour and sit out; the others are numbered 0..p-1. */
typedef struct {
    uint32_t p;
    int core;    /* my number among the p, -1 if I sit out */
    int partner; /* the position I hand to or receive from, -1 if none */
} kolo_fold_t;
kolo_fold_t kolo_pattern_fold(uint32_t n, uint32_t position);
/* Returns the position of core number `core`. */
uint32_t kolo_pattern_unfold(uint32_t n, uint32_t core);

#endif
