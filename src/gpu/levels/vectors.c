/* SPDX-License-Identifier: Apache-2.0
 *
 * all_reduce, broadcast and reduce in levels: the vector is cut into a part for each lane. Where each rank of a
 * host has a lane, kernels scatter and gather the parts. On a host with more ranks than lanes these collectives
 * would cut the vector by the ranks; there kernels make the whole vector, or hand out the parts one by one.
 */
#include "gpu/levels/parts.h"

/* Launches what does not divide by the lanes. */
static kolo_status_t launch_rest(kolo_levels_t *s, const kolo_exec_call_t *c, uint64_t done)
{
    kolo_exec_call_t rest = *c;
    if (done == c->count) return KOLO_OK;
    rest.count = c->count - done;
    if (c->src) rest.src = kolo_levels_at(c->src, done, c->elem);
    if (c->dst) rest.dst = kolo_levels_at(c->dst, done, c->elem);
    return kolo_levels_launch_whole(s, &rest, 1);
}

/* Spreads the parts of dst, which the ranks with lanes have, to all ranks of this host. */
static kolo_status_t spread_parts(kolo_levels_t *s, const kolo_exec_call_t *c, uint64_t part)
{
    kolo_exec_call_t gather = kolo_levels_inside(c, KOLO_COLL_ALL_GATHER);
    kolo_exec_call_t spread = kolo_levels_inside(c, KOLO_COLL_BROADCAST);
    gather.count = spread.count = part;
    if (kolo_levels_all_lead(s)) {
        gather.src = kolo_levels_at(c->dst, (uint64_t)s->local * part, c->elem);
        return kolo_levels_launch_inside(s, &gather);
    }
    for (int l = 0; l < s->lanes; l++) {
        spread.root = l;
        spread.dst = kolo_levels_at(c->dst, (uint64_t)l * part, c->elem);
        spread.src = l == s->local ? spread.dst : NULL;
        KOLO_TRY(kolo_levels_launch_inside(s, &spread));
    }
    return KOLO_OK;
}

kolo_status_t kolo_levels_all_reduce(kolo_levels_t *s, const kolo_exec_call_t *c)
{
    uint64_t part = c->count / (uint64_t)s->lanes, whole = part * (uint64_t)s->lanes;
    bool scatters = kolo_levels_all_lead(s);
    char *mine = kolo_levels_at(c->dst, (uint64_t)s->local * part, c->elem);
    kolo_exec_call_t sum = kolo_levels_inside(c, scatters ? KOLO_COLL_REDUCE_SCATTER : KOLO_COLL_ALL_REDUCE);
    kolo_exec_call_t reduce = kolo_levels_across(c, KOLO_COLL_ALL_REDUCE);
    sum.count = scatters ? part : whole;
    sum.dst = scatters ? mine : c->dst;
    reduce.count = part;
    reduce.src = reduce.dst = mine;
    KOLO_TRY(kolo_levels_launch_inside(s, &sum));
    KOLO_TRY(kolo_levels_launch_across(s, &reduce));
    KOLO_TRY(spread_parts(s, c, part));
    return launch_rest(s, c, whole);
}

/* Broadcasts, on the root's host first, which needs nothing from the lanes. */
kolo_status_t kolo_levels_broadcast(kolo_levels_t *s, const kolo_exec_call_t *c)
{
    uint64_t part = c->count / (uint64_t)s->lanes, whole = part * (uint64_t)s->lanes;
    kolo_exec_call_t near = kolo_levels_inside(c, KOLO_COLL_BROADCAST);
    kolo_exec_call_t lane = kolo_levels_across(c, KOLO_COLL_BROADCAST);
    lane.root = kolo_levels_host_of(s, c->root);
    near.root = c->root - s->env.first[lane.root];
    near.count = whole;
    lane.count = part;
    lane.dst = kolo_levels_at(c->dst, (uint64_t)s->local * part, c->elem);
    lane.src = lane.root == s->host ? lane.dst : NULL;
    if (lane.root == s->host) KOLO_TRY(kolo_levels_launch_inside(s, &near));
    KOLO_TRY(kolo_levels_launch_across(s, &lane));
    if (lane.root != s->host) KOLO_TRY(spread_parts(s, c, part));
    return launch_rest(s, c, whole);
}

/* ---- reduce ---- */

/* Leaves the host's sum of its part in the scratch memory of each rank with a lane. */
static kolo_status_t sum_parts(kolo_levels_t *s, const kolo_exec_call_t *c, uint64_t done, uint64_t part)
{
    kolo_exec_call_t scatter = kolo_levels_inside(c, KOLO_COLL_REDUCE_SCATTER);
    kolo_exec_call_t sum = kolo_levels_inside(c, KOLO_COLL_REDUCE);
    scatter.count = sum.count = part;
    if (kolo_levels_all_lead(s)) {
        scatter.src = kolo_levels_at(c->src, done, c->elem);
        scatter.dst = s->scratch.address;
        return kolo_levels_launch_inside(s, &scatter);
    }
    for (int l = 0; l < s->lanes; l++) {
        sum.root = l;
        sum.src = kolo_levels_at(c->src, done + (uint64_t)l * part, c->elem);
        sum.dst = l == s->local ? s->scratch.address : NULL;
        KOLO_TRY(kolo_levels_launch_inside(s, &sum));
    }
    return KOLO_OK;
}

/* Brings the parts from the ranks of the root's host that have lanes to the root. Where others have none, a
 * broadcast brings each part; ranks that do not need it have it in the second half of the scratch memory. */
static kolo_status_t collect_parts(kolo_levels_t *s, const kolo_exec_call_t *c, uint64_t done, uint64_t part)
{
    kolo_exec_call_t gather = kolo_levels_inside(c, KOLO_COLL_GATHER);
    kolo_exec_call_t bring = kolo_levels_inside(c, KOLO_COLL_BROADCAST);
    bool root = c->root == s->env.rank;
    gather.count = bring.count = part;
    if (kolo_levels_all_lead(s)) {
        gather.root = c->root - s->env.first[s->host];
        gather.src = s->scratch.address;
        gather.dst = root ? kolo_levels_at(c->dst, done, c->elem) : NULL;
        return kolo_levels_launch_inside(s, &gather);
    }
    for (int l = 0; l < s->lanes; l++) {
        bool mine = l == s->local;
        bring.root = l;
        bring.src = mine ? s->scratch.address : NULL;
        bring.dst = root   ? kolo_levels_at(c->dst, done + (uint64_t)l * part, c->elem)
                    : mine ? s->scratch.address
                           : kolo_levels_at(s->scratch.address, part, c->elem);
        KOLO_TRY(kolo_levels_launch_inside(s, &bring));
    }
    return KOLO_OK;
}

/* Takes a part over each lane to the root's host, as much at a time as there is scratch memory. */
kolo_status_t kolo_levels_reduce(kolo_levels_t *s, const kolo_exec_call_t *c)
{
    uint64_t lanes = (uint64_t)s->lanes, most = kolo_levels_room(s, c, s->even ? 1 : 2);
    uint64_t whole = c->count / lanes * lanes;
    for (uint64_t done = 0; done < whole;) {
        uint64_t part = KOLO_MIN((whole - done) / lanes, most);
        kolo_exec_call_t lane = kolo_levels_across(c, KOLO_COLL_REDUCE);
        lane.count = part;
        lane.src = s->scratch.address;
        lane.root = kolo_levels_host_of(s, c->root);
        lane.dst = lane.root == s->host ? s->scratch.address : NULL;
        KOLO_TRY(sum_parts(s, c, done, part));
        KOLO_TRY(kolo_levels_launch_across(s, &lane));
        if (lane.root == s->host) KOLO_TRY(collect_parts(s, c, done, part));
        done += part * lanes;
    }
    return launch_rest(s, c, whole);
}
