/* SPDX-License-Identifier: Apache-2.0
 *
 * Who is where in the tree of requests. See tree.h.
 */
#include "engine/controller/tree.h"

int64_t kolo_engine_tree_ranks, kolo_engine_tree_fan_in;

/* Returns where a child's piece begins: the ranks below a place are cut into as many as it has children, of nearly
 * equal length. */
static int child_begin(const kolo_tree_place_t *place, int child)
{
    return place->first + 1 + (int)((int64_t)(place->end - place->first - 1) * child / place->nchildren);
}

kolo_tree_place_t kolo_tree_child(const kolo_tree_place_t *place, int fan_in, int child)
{
    kolo_tree_place_t c = {child_begin(place, child), child_begin(place, child + 1), place->first, 0};
    c.nchildren = KOLO_MIN(c.end - c.first - 1, fan_in);
    return c;
}

kolo_tree_place_t kolo_tree_find(int nranks, int fan_in, int rank)
{
    kolo_tree_place_t place = {0, nranks, -1, KOLO_MIN(nranks - 1, fan_in)};
    while (place.first != rank) {
        int child = 0;
        while (child + 1 < place.nchildren && child_begin(&place, child + 1) <= rank) child++;
        place = kolo_tree_child(&place, fan_in, child);
    }
    return place;
}
