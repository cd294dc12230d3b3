/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulator's network (fabric.h).
 */
#include "prove/fabric.h"

#include <stdlib.h>

static kolo_status_t check(const kolo_sim_fabric_t *of)
{
    bool good = of->cards >= 1 && of->nlocal >= 1 && of->oversubscription >= 1 && of->switch_us >= 0;
    for (uint32_t c = 0; good && c < of->cards; c++) good = of->card_gbps[c] > 0;
    for (uint32_t r = 0; good && r < of->nlocal; r++) {
        good = of->nclose[r] >= 1 && of->nclose[r] <= of->cards;
        for (uint32_t i = 0; good && i < of->nclose[r]; i++) good = of->close[r * of->cards + i] < of->cards;
    }
    if (good) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                     "a simulated network needs cards with a speed, and one for each rank");
}

static uint32_t pod_of(const kolo_sim_fabric_t *of, uint32_t node)
{
    return of->pod_nodes ? node / of->pod_nodes : 0;
}

kolo_status_t kolo_fabric_init(kolo_fabric_t *f, const kolo_sim_fabric_t *of, uint32_t nnodes)
{
    KOLO_TRY(check(of));
    f->of = of;
    f->nnodes = nnodes;
    f->nleaves = (pod_of(of, nnodes - 1) + 1) * (of->rails ? of->cards : 1);
    f->cards = calloc((size_t)nnodes * of->cards, sizeof *f->cards);
    f->leaves = calloc(f->nleaves, sizeof *f->leaves);
    if (f->cards && f->leaves) return KOLO_OK;
    return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to simulate a network of %u nodes", nnodes);
}

void kolo_fabric_fini(kolo_fabric_t *f)
{
    free(f->cards);
    free(f->leaves);
}

static uint32_t card_for(const kolo_sim_fabric_t *of, uint32_t local, uint32_t lane)
{
    uint32_t r = local % of->nlocal;
    return of->close[r * of->cards + lane % of->nclose[r]];
}

static uint32_t leaf_of(const kolo_sim_fabric_t *of, uint32_t node, uint32_t card)
{
    uint32_t pod = pod_of(of, node);
    return of->rails ? pod * of->cards + card : pod;
}

/* Returns the way up from a card's leaf switch: a part of what all cards below it could fill. */
static double leaf_gbps(const kolo_sim_fabric_t *of, uint32_t nnodes, uint32_t card)
{
    double sum = of->rails ? of->card_gbps[card] : 0;
    for (uint32_t c = 0; !of->rails && c < of->cards; c++) sum += of->card_gbps[c];
    return sum * (of->pod_nodes ? of->pod_nodes : nnodes) / of->oversubscription;
}

/* Takes the port's turn, which begins not before *begin, and moves that on; returns when it is through. */
static double through(kolo_fabric_port_t *port, int way, double gbps, uint64_t bytes, double *begin)
{
    if (port->busy[way] > *begin) *begin = port->busy[way];
    port->busy[way] = *begin + (double)bytes / gbps / 1000;
    port->bytes[way] += bytes;
    return port->busy[way];
}

double kolo_fabric_send(kolo_fabric_t *f, kolo_fabric_place_t from, kolo_fabric_place_t to, uint32_t lane,
                        uint64_t bytes, double now)
{
    const kolo_sim_fabric_t *of = f->of;
    uint32_t a = card_for(of, from.local, lane), b = card_for(of, to.local, lane);
    uint32_t leaf_a = leaf_of(of, from.node, a), leaf_b = leaf_of(of, to.node, b);
    double begin = now, end = through(&f->cards[from.node * of->cards + a], 0, of->card_gbps[a], bytes, &begin), t;
    if (leaf_a != leaf_b) {
        t = through(&f->leaves[leaf_a], 0, leaf_gbps(of, f->nnodes, a), bytes, &begin);
        if (t > end) end = t;
        t = through(&f->leaves[leaf_b], 1, leaf_gbps(of, f->nnodes, b), bytes, &begin);
        if (t > end) end = t;
    }
    t = through(&f->cards[to.node * of->cards + b], 1, of->card_gbps[b], bytes, &begin);
    if (t > end) end = t;
    return end + of->switch_us * (leaf_a != leaf_b ? 3 : 1);
}

void kolo_fabric_count(const kolo_fabric_t *f, uint64_t *busiest, uint64_t *up)
{
    *busiest = *up = 0;
    for (size_t i = 0; i < (size_t)f->nnodes * f->of->cards; i++)
        for (int way = 0; way < 2; way++)
            if (f->cards[i].bytes[way] > *busiest) *busiest = f->cards[i].bytes[way];
    for (uint32_t i = 0; i < f->nleaves; i++) *up += f->leaves[i].bytes[0];
}
