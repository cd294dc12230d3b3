/* SPDX-License-Identifier: Apache-2.0
 *
 * Node maps for the tests of algo/: N ranks on one node, in pairs, on uneven nodes, or one per node.
 */
#ifndef KOLO_ALGO_TEST_SHAPES_H
#define KOLO_ALGO_TEST_SHAPES_H

#include "algo/algo.h"

#include <stdlib.h>
#include <string.h>

typedef enum { SHAPE_ONE_NODE, SHAPE_PAIRS, SHAPE_UNEVEN, SHAPE_SINGLES, SHAPE_COUNT } shape_t;

#define SHAPE_MOST_RANKS 256
typedef struct {
    kolo_emit_env_t env; /* points into the struct */
    int node_of[SHAPE_MOST_RANKS], first[SHAPE_MOST_RANKS], size[SHAPE_MOST_RANKS], ranks[SHAPE_MOST_RANKS];
    int rings[2 * SHAPE_MOST_RANKS]; /* another order of the ranks, and the same backwards */
} shape_env_t;

/* Returns a rank's node. Uneven: rank 0 alone, the others dealt two to one to two nodes, so that ranks of a node
 * are not consecutive. */
static inline int shape_node(shape_t shape, uint32_t r)
{
    switch (shape) {
    case SHAPE_PAIRS:
        return (int)(r / 2);
    case SHAPE_UNEVEN:
        return r == 0 ? 0 : r % 3 == 1 ? 1 : 2;
    case SHAPE_SINGLES:
        return (int)r;
    default:
        return 0;
    }
}

/* Fills *s; false when the shape makes no sense for so few ranks. */
static inline bool shape_make(shape_env_t *s, shape_t shape, uint32_t n)
{
    if (shape == SHAPE_UNEVEN && n < 4) return false;
    if (shape != SHAPE_ONE_NODE && n < 2) return false;
    memset(s, 0, sizeof(*s));
    uint32_t nodes = 0;
    for (uint32_t r = 0; r < n; r++) {
        s->node_of[r] = shape_node(shape, r);
        if ((uint32_t)s->node_of[r] >= nodes) nodes = (uint32_t)s->node_of[r] + 1;
    }
    for (uint32_t v = 0, at = 0; v < nodes; v++) {
        s->first[v] = (int)at;
        for (uint32_t r = 0; r < n; r++)
            if (s->node_of[r] == (int)v) s->ranks[at++] = (int)r;
        s->size[v] = (int)at - s->first[v];
    }
    uint32_t step = 7;
    while (n % step == 0 && step > 1) step -= 2; /* 7, 5, 3, 1: coprime to n, so a permutation */
    for (uint32_t i = 0; i < n; i++) s->rings[i] = s->rings[2 * n - 1 - i] = (int)((i * step + 3) % n);
    s->env = (kolo_emit_env_t){.nranks = n,
                               .nnodes = nodes,
                               .node_of = s->node_of,
                               .node_first = s->first,
                               .node_size = s->size,
                               .node_ranks = s->ranks,
                               .fanout = true,
                               .refs = true,
                               .nrings = 1,
                               .lanes = 1};
    return true;
}

/* Does the result depend on the root? */
static inline bool shape_has_root(kolo_coll_t coll)
{
    return kolo_coll_rooted(coll);
}

#endif
