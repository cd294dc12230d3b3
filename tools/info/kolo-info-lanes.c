/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-info --topo: what the topology search makes of the machine that is drawn above: the ring of each lane over
 * its ranks, and the network card that the lane uses.
 */
#include "base/clock.h"
#include "kolo-info-machine.h"
#include "kolo-info.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int count_of(const kolo_topo_t *topo, kolo_topo_kind_t kind)
{
    int n = 0;
    for (int i = 0; i < topo->count; i++) n += topo->nodes[i].kind == kind;
    return n;
}

/* The fast ones: a card for the management of the machine, say, has no lane. */
static void find_cards(info_machine_t *m)
{
    int64_t fastest = 0;
    for (int i = 0; i < m->topo.count; i++)
        if (m->topo.nodes[i].kind == KOLO_TOPO_NIC) fastest = KOLO_MAX(fastest, m->topo.nodes[i].link_mbps);
    for (int i = 0; i < m->topo.count && m->ncards < INFO_MAX_CARDS; i++)
        if (m->topo.nodes[i].kind == KOLO_TOPO_NIC && 2 * m->topo.nodes[i].link_mbps >= fastest)
            m->cards[m->ncards++] = i;
}

/* Ranks have a GPU each where there are enough; else they are spread over the cores. */
static void place_ranks(info_machine_t *m, int nlocal)
{
    int gpus = count_of(&m->topo, KOLO_TOPO_GPU), cores = count_of(&m->topo, KOLO_TOPO_CORE);
    if (nlocal == 0) nlocal = gpus ? gpus : KOLO_MAX(count_of(&m->topo, KOLO_TOPO_NUMA), 1);
    m->nlocal = KOLO_MIN(nlocal, INFO_MAX_LOCAL);
    m->by_gpu = gpus >= m->nlocal;
    for (int r = 0; r < m->nlocal; r++) {
        int index = m->by_gpu ? r : cores ? (int)((int64_t)r * cores / m->nlocal) % cores : 0;
        m->ranks[r] = kolo_topo_find(&m->topo, m->by_gpu ? KOLO_TOPO_GPU : KOLO_TOPO_CORE, index);
    }
}

void kolo_info_machine_place(info_machine_t *m, int nlocal)
{
    m->ncards = 0;
    find_cards(m);
    place_ranks(m, nlocal);
}

kolo_topo_place_t kolo_info_rank_place(const info_machine_t *m, int local, int node)
{
    if (m->ranks[local] < 0) return (kolo_topo_place_t){node, -1, -1, local, -1, -1};
    kolo_topo_place_t place = kolo_topo_place(&m->topo, m->ranks[local], node);
    return place;
}

int kolo_info_close_cards(const info_machine_t *m, int local, uint32_t *close)
{
    kolo_distance_t best = KOLO_DISTANCE_NETWORK;
    int n = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int c = 0; c < m->ncards; c++) {
            kolo_distance_t d = m->ranks[local] < 0 ? KOLO_DISTANCE_NETWORK
                                                    : kolo_topo_distance(&m->topo, m->ranks[local], m->cards[c]);
            if (pass == 0)
                best = KOLO_MIN(best, d);
            else if (d == best)
                close[n++] = (uint32_t)c;
        }
    return n;
}

static void print_lane(const info_machine_t *m, const kolo_topo_search_t *s, int lane)
{
    printf("  lane %-2d ring", lane);
    for (int i = 0; i < m->nlocal; i++) {
        const int *ring = s->ring + (size_t)lane * (size_t)m->nlocal;
        const kolo_topo_node_t *node = m->ranks[ring[i]] < 0 ? NULL : &m->topo.nodes[m->ranks[ring[i]]];
        printf(" %s%d", !node ? "rank " : m->by_gpu ? "GPU" : "core", node ? node->index : ring[i]);
    }
    for (int c = 0; c < m->ncards; c++) {
        const kolo_topo_node_t *nic = &m->topo.nodes[m->cards[c]];
        if (nic->index == s->nic[lane])
            printf(", NIC %d (%s)", nic->index, nic->netdev[0] ? nic->netdev : nic->name);
    }
    putchar('\n');
}

int kolo_info_print_lanes(info_machine_t *m)
{
    kolo_topo_place_t ranks[INFO_MAX_LOCAL], cards[INFO_MAX_CARDS];
    kolo_topo_search_t search = {0};
    kolo_info_machine_place(m, 0);
    for (int r = 0; r < m->nlocal; r++) ranks[r] = kolo_info_rank_place(m, r, 0);
    for (int c = 0; c < m->ncards; c++) cards[c] = kolo_topo_place(&m->topo, m->cards[c], 0);
    if (kolo_topo_search(ranks, m->nlocal, KOLO_MAX(m->ncards, 1), cards, m->ncards, &search) != KOLO_OK) {
        fprintf(stderr, "kolo-info: %s\n", kolo_error_text());
        return INFO_FAILED;
    }
    printf("\nlanes of %d ranks, one for each %s\n", m->nlocal, m->by_gpu ? "GPU" : "NUMA node");
    for (int lane = 0; lane < search.nlanes; lane++) print_lane(m, &search, lane);
    kolo_topo_search_fini(&search);
    return INFO_OK;
}
