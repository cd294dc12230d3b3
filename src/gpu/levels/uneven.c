/* SPDX-License-Identifier: Apache-2.0
 *
 * all_gather and reduce_scatter in levels where hosts have unequal numbers of ranks: the lanes take turns. At turn
 * t lane l carries the blocks of the ranks with place t * lanes + l on their hosts. A host without such a rank
 * takes part with whatever it has there, and what comes of that is not looked at.
 */
#include "gpu/levels/parts.h"

/* Tells whether a rank has the place that this rank's lane carries blocks of at this turn. */
static bool has_turn(const kolo_levels_t *s, int turn)
{
    return turn * s->lanes + s->local < s->most;
}

/* Blocks of host h at this turn. */
static int blocks_of(const kolo_levels_t *s, int h, int turn)
{
    return KOLO_MIN(s->env.size[h] - turn * s->lanes, s->lanes);
}

/* Tells whether one kernel can move all blocks, each from or to a rank of its own. */
static bool at_once(const kolo_levels_t *s, int h, int turn)
{
    return blocks_of(s, h, turn) == s->lanes && kolo_levels_all_lead(s);
}

static char *block_at(const kolo_levels_t *s, const kolo_exec_call_t *c, const void *blocks, int h, int place)
{
    return kolo_levels_at(blocks, (uint64_t)(s->env.first[h] + place) * c->count, c->elem);
}

/* ---- all_gather ---- */

/* Spreads `part` elements of the blocks of host h, which the lanes have brought to scratch memory, to all ranks of
 * this host. */
static kolo_status_t spread_turn(kolo_levels_t *s, const kolo_exec_call_t *c, int h, int turn, uint64_t done,
                                 uint64_t part)
{
    kolo_exec_call_t gather = kolo_levels_inside(c, KOLO_COLL_ALL_GATHER);
    kolo_exec_call_t spread = kolo_levels_inside(c, KOLO_COLL_BROADCAST);
    char *brought = kolo_levels_at(s->scratch.address, (uint64_t)h * part, c->elem);
    char *to = kolo_levels_at(block_at(s, c, c->dst, h, turn * s->lanes), done, c->elem);
    gather.count = spread.count = part;
    if (at_once(s, h, turn)) {
        gather.src = brought;
        gather.dst = to;
        gather.dst_stride = c->count * c->elem;
        return kolo_levels_launch_inside(s, &gather);
    }
    for (int l = 0; l < blocks_of(s, h, turn); l++) {
        spread.root = l;
        spread.src = l == s->local ? brought : NULL;
        spread.dst = kolo_levels_at(to, (uint64_t)l * c->count, c->elem);
        KOLO_TRY(kolo_levels_launch_inside(s, &spread));
    }
    return KOLO_OK;
}

/* Gathers the blocks of this host, then has the lanes bring those of the others. */
kolo_status_t kolo_levels_all_gather_uneven(kolo_levels_t *s, const kolo_exec_call_t *c)
{
    uint64_t most = kolo_levels_room(s, c, (uint64_t)s->env.hosts);
    kolo_exec_call_t near = kolo_levels_inside(c, KOLO_COLL_ALL_GATHER);
    kolo_exec_call_t lane = kolo_levels_across(c, KOLO_COLL_ALL_GATHER);
    near.dst = block_at(s, c, c->dst, s->host, 0);
    KOLO_TRY(kolo_levels_launch_inside(s, &near));
    lane.dst = s->scratch.address;
    lane.others = true;
    for (int turn = 0; turn * s->lanes < s->most; turn++) {
        int block = turn * s->lanes + s->local;
        const char *src = block < s->here ? kolo_levels_at(near.dst, (uint64_t)block * c->count, c->elem) : c->src;
        for (uint64_t done = 0; done < c->count; done += lane.count) {
            lane.count = KOLO_MIN(c->count - done, most);
            lane.src = kolo_levels_at(src, done, c->elem);
            if (has_turn(s, turn)) KOLO_TRY(kolo_levels_launch_across(s, &lane));
            for (int h = 0; h < s->env.hosts; h++)
                if (h != s->host) KOLO_TRY(spread_turn(s, c, h, turn, done, lane.count));
        }
    }
    return KOLO_OK;
}

/* ---- reduce_scatter ---- */

/* Reduces what this host's ranks have for the ranks of host h at this turn, to the ranks whose lanes go there. */
static kolo_status_t sum_turn(kolo_levels_t *s, const kolo_exec_call_t *c, int h, int turn, uint64_t done,
                              uint64_t part)
{
    kolo_exec_call_t scatter = kolo_levels_inside(c, KOLO_COLL_REDUCE_SCATTER);
    kolo_exec_call_t sum = kolo_levels_inside(c, KOLO_COLL_REDUCE);
    char *to = kolo_levels_at(s->scratch.address, (uint64_t)h * part, c->elem);
    char *from = kolo_levels_at(block_at(s, c, c->src, h, turn * s->lanes), done, c->elem);
    scatter.count = sum.count = part;
    if (at_once(s, h, turn)) {
        scatter.src = from;
        scatter.dst = to;
        scatter.src_stride = c->count * c->elem;
        return kolo_levels_launch_inside(s, &scatter);
    }
    for (int l = 0; l < blocks_of(s, h, turn); l++) {
        sum.root = l;
        sum.src = kolo_levels_at(from, (uint64_t)l * c->count, c->elem);
        sum.dst = l == s->local ? to : NULL;
        KOLO_TRY(kolo_levels_launch_inside(s, &sum));
    }
    return KOLO_OK;
}

/* Results that lanes have brought for ranks without a lane, from `brought` to dst. A broadcast brings each; ranks
 * that do not need it have it behind there. */
static kolo_status_t hand_over(kolo_levels_t *s, const kolo_exec_call_t *c, int turn, char *brought, char *dst,
                               uint64_t part)
{
    kolo_exec_call_t bring = kolo_levels_inside(c, KOLO_COLL_BROADCAST);
    bring.count = part;
    for (int l = 0; l < blocks_of(s, s->host, turn); l++) {
        bring.root = l;
        bring.src = l == s->local ? brought : NULL;
        bring.dst = turn * s->lanes + l == s->local ? dst
                    : l == s->local                 ? brought
                                                    : kolo_levels_at(brought, part, c->elem);
        KOLO_TRY(kolo_levels_launch_inside(s, &bring));
    }
    return KOLO_OK;
}

/* Scatters in turns. The scratch memory has a part of each host, the result, and the results of others. */
kolo_status_t kolo_levels_reduce_scatter_uneven(kolo_levels_t *s, const kolo_exec_call_t *c)
{
    uint64_t hosts = (uint64_t)s->env.hosts, most = kolo_levels_room(s, c, hosts + 2);
    kolo_exec_call_t lane = kolo_levels_across(c, KOLO_COLL_REDUCE_SCATTER);
    lane.src = s->scratch.address;
    for (int turn = 0; turn * s->lanes < s->most; turn++) {
        for (uint64_t done = 0; done < c->count; done += lane.count) {
            char *dst = kolo_levels_at(c->dst, done, c->elem);
            lane.count = KOLO_MIN(c->count - done, most);
            char *brought = kolo_levels_at(s->scratch.address, hosts * lane.count, c->elem);
            lane.dst = turn == 0 ? dst : brought;
            for (int h = 0; h < s->env.hosts; h++) KOLO_TRY(sum_turn(s, c, h, turn, done, lane.count));
            if (has_turn(s, turn)) KOLO_TRY(kolo_levels_launch_across(s, &lane));
            if (turn > 0) KOLO_TRY(hand_over(s, c, turn, brought, dst, lane.count));
        }
    }
    return KOLO_OK;
}
