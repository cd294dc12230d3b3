/* SPDX-License-Identifier: Apache-2.0
 *
 * The pair of binary trees between hosts (Sanders, Speck, Traeff: Two-tree algorithms for full bandwidth broadcast,
 * reduction and scan, 2009): each host is a leaf in one tree and an inner node in the other, so that with half of
 * the data on each tree every link carries it once in each direction.
 *
 * A tree over labels 1..m in in-order numbering: label i with lowest set bit b sits at height log2(b), its parent
 * is the one of i - b and i + b that has the next higher bit; where that one is beyond m it is i - b. Odd labels
 * are the leaves. Tree 0 labels host h with h + 1. For an even number of hosts tree 1 is the mirror image, n - h,
 * which turns odd into even. For an odd number the mirror image keeps odd odd, and the paper's shift leaves one
 * host a leaf (or inner) twice; there tree 1 labels host h with h and puts host 0 above the root: odd hosts are its
 * leaves.
 */
#include "topo/topo.h"

/* Returns the label of the parent of label i among 1..m, 0 for the root. */
static int parent_label(int i, int m)
{
    int64_t low = i & -i, up = (i ^ low) | (low << 1);
    return (int)(up > m ? i ^ low : up);
}

void kolo_topo_tree_pair(int n, int which, int *parent)
{
    bool mirror = which && n % 2 == 0, below_first = which && n % 2 == 1;
    for (int h = 0; h < n; h++) {
        if (below_first) { /* label 0 is host 0, also as the parent of the topmost label */
            parent[h] = h == 0 ? -1 : parent_label(h, n - 1);
            continue;
        }
        int label = mirror ? n - h : h + 1, up = parent_label(label, n);
        parent[h] = up == 0 ? -1 : mirror ? n - up : up - 1;
    }
}
