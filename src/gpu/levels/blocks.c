/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives with a block for each rank, in levels, where hosts have equally many ranks: a lane carries the blocks
 * of the ranks with its place. What lies in other places than the user's buffers goes through scratch memory, as
 * much at a time as there is room for.
 */
#include "gpu/levels/parts.h"

/* Gathers what each lane has to its rank; then the ranks of a host exchange it, host by host. */
kolo_status_t kolo_levels_all_gather(kolo_levels_t *s, const kolo_exec_call_t *c)
{
    uint64_t n = (uint64_t)s->lanes, me = (uint64_t)s->local;
    kolo_exec_call_t lane = kolo_levels_across(c, KOLO_COLL_ALL_GATHER);
    kolo_exec_call_t gather = kolo_levels_inside(c, KOLO_COLL_ALL_GATHER);
    lane.dst = kolo_levels_at(c->dst, me * c->count, c->elem);
    lane.dst_stride = n * c->count * c->elem;
    lane.others = true;
    KOLO_TRY(kolo_levels_launch_across(s, &lane));
    for (int h = 0; h < s->env.hosts; h++) {
        gather.dst = kolo_levels_at(c->dst, (uint64_t)h * n * c->count, c->elem);
        gather.src = h == s->host ? c->src : kolo_levels_at(gather.dst, me * c->count, c->elem);
        KOLO_TRY(kolo_levels_launch_inside(s, &gather));
    }
    return KOLO_OK;
}

/* Reduces what this host's ranks have for this rank's place on each host into scratch memory, then over the
 * lane. */
kolo_status_t kolo_levels_reduce_scatter(kolo_levels_t *s, const kolo_exec_call_t *c)
{
    uint64_t n = (uint64_t)s->lanes, hosts = (uint64_t)s->env.hosts, most = kolo_levels_room(s, c, hosts);
    for (uint64_t done = 0; done < c->count; done += most) {
        kolo_exec_call_t scatter = kolo_levels_inside(c, KOLO_COLL_REDUCE_SCATTER);
        kolo_exec_call_t lane = kolo_levels_across(c, KOLO_COLL_REDUCE_SCATTER);
        scatter.count = lane.count = KOLO_MIN(c->count - done, most);
        scatter.src_stride = c->count * c->elem;
        for (uint64_t h = 0; h < hosts; h++) {
            scatter.src = kolo_levels_at(c->src, h * n * c->count + done, c->elem);
            scatter.dst = kolo_levels_at(s->scratch.address, h * scatter.count, c->elem);
            KOLO_TRY(kolo_levels_launch_inside(s, &scatter));
        }
        lane.src = s->scratch.address;
        lane.dst = kolo_levels_at(c->dst, done, c->elem);
        KOLO_TRY(kolo_levels_launch_across(s, &lane));
    }
    return KOLO_OK;
}

/* ---- all_to_all ---- */

/* Exchanges scratch memory, where the blocks for a host lie one behind the other by the place of their senders.
 * Whole blocks lie like that where they go to, too; parts of blocks go to each place by themselves. */
static kolo_status_t exchange(kolo_levels_t *s, const kolo_exec_call_t *c, uint64_t done, uint64_t part)
{
    uint64_t n = (uint64_t)s->lanes;
    kolo_exec_call_t lane = kolo_levels_across(c, KOLO_COLL_ALL_TO_ALL);
    lane.others = true;
    if (part == c->count) {
        lane.src = s->scratch.address;
        lane.count = n * part;
        return kolo_levels_launch_across(s, &lane);
    }
    lane.count = part;
    lane.src_stride = n * part * c->elem;
    lane.dst_stride = n * c->count * c->elem;
    for (uint64_t from = 0; from < n; from++) {
        lane.src = kolo_levels_at(s->scratch.address, from * part, c->elem);
        lane.dst = kolo_levels_at(c->dst, from * c->count + done, c->elem);
        KOLO_TRY(kolo_levels_launch_across(s, &lane));
    }
    return KOLO_OK;
}

/* Collects, inside each host, what its ranks have for this rank's place on every host; the lane takes that there,
 * and what stays on this host has come to its place with that. */
kolo_status_t kolo_levels_all_to_all(kolo_levels_t *s, const kolo_exec_call_t *c)
{
    uint64_t n = (uint64_t)s->lanes, hosts = (uint64_t)s->env.hosts, host = (uint64_t)s->host;
    uint64_t most = kolo_levels_room(s, c, hosts * n);
    kolo_exec_call_t near = kolo_levels_inside(c, KOLO_COLL_ALL_TO_ALL);
    near.src = kolo_levels_at(c->src, host * n * c->count, c->elem);
    near.dst = kolo_levels_at(c->dst, host * n * c->count, c->elem);
    KOLO_TRY(kolo_levels_launch_inside(s, &near));
    near.src_stride = c->count * c->elem;
    for (uint64_t done = 0; done < c->count; done += near.count) {
        near.count = KOLO_MIN(c->count - done, most);
        for (uint64_t h = 0; h < hosts; h++) {
            if (h == host) continue;
            near.src = kolo_levels_at(c->src, h * n * c->count + done, c->elem);
            near.dst = kolo_levels_at(s->scratch.address, h * n * near.count, c->elem);
            KOLO_TRY(kolo_levels_launch_inside(s, &near));
        }
        KOLO_TRY(exchange(s, c, done, near.count));
    }
    return KOLO_OK;
}

/* ---- gather and scatter ---- */

/* Gathers over the lanes to the root's host, so that all GPUs there take a share, and from there to the root, host
 * by host. */
kolo_status_t kolo_levels_gather(kolo_levels_t *s, const kolo_exec_call_t *c)
{
    uint64_t n = (uint64_t)s->lanes;
    kolo_exec_call_t lane = kolo_levels_across(c, KOLO_COLL_GATHER), near = kolo_levels_inside(c, KOLO_COLL_GATHER);
    lane.root = kolo_levels_host_of(s, c->root);
    lane.dst = lane.root == s->host ? s->scratch.address : NULL;
    KOLO_TRY(kolo_levels_launch_across(s, &lane));
    near.root = c->root - s->env.first[lane.root];
    for (uint64_t h = 0; h < (uint64_t)s->env.hosts && lane.root == s->host; h++) {
        near.src = kolo_levels_at(s->scratch.address, h * c->count, c->elem);
        near.dst = c->root == s->env.rank ? kolo_levels_at(c->dst, h * n * c->count, c->elem) : NULL;
        KOLO_TRY(kolo_levels_launch_inside(s, &near));
    }
    return KOLO_OK;
}

/* Scatters, the other way round. */
kolo_status_t kolo_levels_scatter(kolo_levels_t *s, const kolo_exec_call_t *c)
{
    uint64_t n = (uint64_t)s->lanes;
    kolo_exec_call_t lane = kolo_levels_across(c, KOLO_COLL_SCATTER);
    kolo_exec_call_t near = kolo_levels_inside(c, KOLO_COLL_SCATTER);
    lane.root = kolo_levels_host_of(s, c->root);
    near.root = c->root - s->env.first[lane.root];
    for (uint64_t h = 0; h < (uint64_t)s->env.hosts && lane.root == s->host; h++) {
        near.src = c->root == s->env.rank ? kolo_levels_at(c->src, h * n * c->count, c->elem) : NULL;
        near.dst = kolo_levels_at(s->scratch.address, h * c->count, c->elem);
        KOLO_TRY(kolo_levels_launch_inside(s, &near));
    }
    lane.src = lane.root == s->host ? s->scratch.address : NULL;
    return kolo_levels_launch_across(s, &lane);
}
