/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank's calls of events, their buffers with guard bytes, and the scalar reference. See programs.h.
 */
#include "programs/programs.h"

#include "coll/values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *guarded(size_t bytes)
{
    char *p = malloc(bytes + 2 * GUARD);
    memset(p, 0xa5, bytes + 2 * GUARD);
    return p + GUARD;
}

static bool is_guarded(const char *p, size_t bytes)
{
    for (int i = 0; i < GUARD; i++)
        if ((uint8_t)p[-1 - i] != 0xa5 || (uint8_t)p[bytes + (size_t)i] != 0xa5) return false;
    return true;
}

held_t *program_hold(run_t *run, const event_t *e, size_t src_count, size_t dst_count)
{
    held_t *h = &run->held[run->nheld++];
    size_t elem = kolo_type_size(e->type);
    *h = (held_t){.e = e, .src_count = src_count, .dst_count = dst_count};
    h->src = guarded(src_count * elem);
    h->dst = guarded(dst_count * elem);
    return h;
}

void program_call_collective(run_t *run, const event_t *e, void *stream)
{
    kolo_comm_t comm = run->comms[e->comm];
    size_t all = e->count * (size_t)run->sizes[e->comm];
    int n = run->sizes[e->comm], root = e->root % n;
    bool many_src = e->kind == REDUCE_SCATTER || e->kind == ALL_TO_ALL || e->kind == SCATTER;
    bool many_dst = e->kind == ALL_GATHER || e->kind == ALL_TO_ALL || e->kind == GATHER;
    held_t *h = program_hold(run, e, many_src ? all : e->count, many_dst ? all : e->count);
    bool reduces = e->kind == ALL_REDUCE || e->kind == REDUCE || e->kind == REDUCE_SCATTER;
    test_fill(h->src, h->src_count, e->type, reduces ? e->op : KOLO_SUM, e->seed, run->ranks[e->comm], 0);
    switch (e->kind) {
    case ALL_REDUCE:
        EXPECT_OK(kolo_all_reduce(h->src, h->dst, e->count, e->type, e->op, comm, stream));
        return;
    case REDUCE:
        EXPECT_OK(kolo_reduce(h->src, h->dst, e->count, e->type, e->op, root, comm, stream));
        return;
    case BROADCAST:
        EXPECT_OK(kolo_broadcast(h->src, h->dst, e->count, e->type, root, comm, stream));
        return;
    case ALL_GATHER:
        EXPECT_OK(kolo_all_gather(h->src, h->dst, e->count, e->type, comm, stream));
        return;
    case REDUCE_SCATTER:
        EXPECT_OK(kolo_reduce_scatter(h->src, h->dst, e->count, e->type, e->op, comm, stream));
        return;
    case ALL_TO_ALL:
        EXPECT_OK(kolo_all_to_all(h->src, h->dst, e->count, e->type, comm, stream));
        return;
    case GATHER:
        EXPECT_OK(kolo_gather(h->src, h->dst, e->count, e->type, root, comm, stream));
        return;
    case SCATTER:
        EXPECT_OK(kolo_scatter(h->src, h->dst, e->count, e->type, root, comm, stream));
        return;
    default:
        EXPECT_OK(kolo_barrier(comm, stream));
    }
}

void program_call_message(run_t *run, const event_t *e, int from, int to, void *stream)
{
    kolo_comm_t comm = run->comms[e->comm];
    held_t *h = program_hold(run, e, e->count, e->count);
    h->sends = run->ranks[e->comm] == from;
    h->receives = run->ranks[e->comm] == to;
    if (h->sends) test_fill(h->src, e->count, e->type, KOLO_SUM, e->seed, from, 0);
    if (h->sends) EXPECT_OK(kolo_send(h->src, e->count, e->type, to, comm, stream));
    if (h->receives) EXPECT_OK(kolo_recv(h->dst, e->count, e->type, from, comm, stream));
}

/* ---- checking ---- */

static bool right(const run_t *run, const held_t *h, const event_t *first_event)
{
    const event_t *e = h->e;
    char what[120];
    int c = e->comm, me = run->ranks[c], n = run->sizes[c], root = e->root % n, list[MAX_RANKS];
    size_t elem = kolo_type_size(e->type), first = (size_t)me * e->count;
    bool ok = is_guarded(h->src, h->src_count * elem) && is_guarded(h->dst, h->dst_count * elem);
    snprintf(what, sizeof what, "event %d (kind %d, communicator %d, %s, op %d, %zu elements), rank %d of %d",
             (int)(e - first_event), e->kind, c, test_type_names[e->type], (int)e->op, e->count, me, n);
    if (!ok) fprintf(stderr, "%s: bytes around a buffer have changed\n", what);
    switch (e->kind) {
    case MESSAGE:
    case TAGGED:
        if (!h->receives) return ok;
        program_members(c, run->r->rank, run->r->nranks, list);
        return test_equal(h->dst, e->count, e->type, e->seed, program_place(list, n, e->root), 0, what) && ok;
    case ALL_REDUCE:
        return test_reduced(h->dst, e->count, e->type, e->op, e->seed, n, 0, what) && ok;
    case REDUCE:
        return (me != root || test_reduced(h->dst, e->count, e->type, e->op, e->seed, n, 0, what)) && ok;
    case REDUCE_SCATTER:
        return test_reduced(h->dst, e->count, e->type, e->op, e->seed, n, first, what) && ok;
    case BROADCAST:
        return test_equal(h->dst, e->count, e->type, e->seed, root, 0, what) && ok;
    case SCATTER:
        return test_equal(h->dst, e->count, e->type, e->seed, root, first, what) && ok;
    case GATHER:
        if (me != root) return ok;
        break;
    case BARRIER:
        return ok;
    default:
        break;
    }
    for (int r = 0; r < n; r++)
        ok = test_equal(h->dst + (size_t)r * e->count * elem, e->count, e->type, e->seed, r,
                        e->kind == ALL_TO_ALL ? first : 0, what) &&
             ok;
    return ok;
}

void program_check(run_t *run, const event_t *first)
{
    for (size_t i = 0; i < run->nheld; i++) {
        EXPECT(right(run, &run->held[i], first));
        free(run->held[i].src - GUARD);
        free(run->held[i].dst - GUARD);
    }
    run->nheld = 0;
}
