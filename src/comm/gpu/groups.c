/* SPDX-License-Identifier: Apache-2.0
 *
 * A group of calls on devices. Each communicator's calls are a share, which takes one turn. All shares are looked
 * at before the first is queued: kernels of a share whose group was refused elsewhere would wait for ever. One
 * share by itself is looked at where it is queued, once. Shares that have a stream in common, and all their
 * streams, meet before and after the group.
 */
#include "base/failpoint.h"
#include "comm/call/call.h"
#include "mem/cuda/order.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    kolo_comm_t comm;
    kolo_device_work_t work;
    size_t first; /* of its calls in the list */
    uint64_t ticket;
    bool drawn, turn;
} share_t;

typedef struct {
    void *stream;
    size_t lot;    /* streams that meet have the same */
    bool launches; /* a share goes there */
    kolo_body_t *body;
} place_t;

#define FEW 4 /* calls of a group that need no memory from the heap */

typedef struct {
    kolo_call_t *calls; /* share by share */
    share_t *shares;
    place_t *places;
    size_t count, nshares, nplaces;
    kolo_status_t first;
    char text[KOLO_ERROR_TEXT_BYTES];
} lot_t;

static void note(lot_t *g, kolo_status_t status)
{
    if (status == KOLO_OK || g->first != KOLO_OK) return;
    g->first = status;
    snprintf(g->text, sizeof g->text, "%s", kolo_error_text());
}

/* Compares alike on all ranks, so that shares on one stream do not wait for each other in a circle. */
static int by_communicator(const void *a, const void *b)
{
    uint64_t x = kolo_oob_job(((const share_t *)a)->work.body->oob);
    uint64_t y = kolo_oob_job(((const share_t *)b)->work.body->oob);
    return (x > y) - (x < y);
}

/* Begins all of it but w->one, which is long, and filled in before it is read. */
static void begin_share(share_t *s, kolo_comm_t comm)
{
    s->comm = comm;
    s->work.body = NULL;
    s->work.list = NULL;
    s->work.count = s->work.n = s->first = 0;
    s->ticket = 0;
    s->drawn = s->turn = false;
}

static void hand_out(lot_t *g, kolo_call_t *calls)
{
    size_t at = 0;
    for (size_t i = 0; i < g->count; i++) {
        size_t k = 0;
        while (k < g->nshares && g->shares[k].comm != calls[i].comm) k++;
        if (k == g->nshares) begin_share(&g->shares[g->nshares++], calls[i].comm);
        g->shares[k].work.count++;
    }
    if (g->nshares == 1) { /* they are in order already */
        g->calls = calls;
        g->shares->work.calls = calls;
        return;
    }
    for (size_t k = 0; k < g->nshares; k++) {
        g->shares[k].first = at;
        at += g->shares[k].work.count;
        g->shares[k].work.calls = &g->calls[g->shares[k].first];
        g->shares[k].work.count = 0;
    }
    for (size_t i = 0; i < g->count; i++) {
        size_t k = 0;
        while (g->shares[k].comm != calls[i].comm) k++;
        g->calls[g->shares[k].first + g->shares[k].work.count++] = calls[i];
    }
}

static void take_turns(lot_t *g)
{
    for (size_t k = 0; k < g->nshares && g->first == KOLO_OK; k++) {
        share_t *s = &g->shares[k];
        kolo_status_t status = kolo_ticket_draw(s->comm, &s->ticket);
        s->drawn = status == KOLO_OK;
        if (s->drawn) status = kolo_ticket_wait(s->comm, s->ticket);
        s->turn = s->drawn && status == KOLO_OK;
        if (s->turn) s->work.body = s->comm->body;
        if (s->turn) KOLO_FAIL_POINT("comm.device.turn");
        if (!s->turn && s->drawn && s->comm->error_is_news)
            kolo_lost_refused(s->comm->body, s->work.calls, s->work.count);
        note(g, status);
    }
}

/* ---- streams ---- */

static size_t place_of(lot_t *g, kolo_body_t *body, void *stream)
{
    size_t i = 0; /* the default streams of two devices have one name */
    while (i < g->nplaces && (g->places[i].stream != stream || g->places[i].body->gpu.device != body->gpu.device))
        i++;
    if (i == g->nplaces) g->places[g->nplaces++] = (place_t){.stream = stream, .lot = i, .body = body};
    return i;
}

/* Sends each share to its first stream. */
static void gather_streams(lot_t *g)
{
    for (size_t k = 0; k < g->nshares; k++) {
        share_t *s = &g->shares[k];
        size_t root = 0;
        for (size_t i = 0; i < s->work.count; i++) {
            kolo_call_t *call = &g->calls[s->first + i];
            size_t at = place_of(g, s->work.body, call->stream), old = g->places[at].lot;
            if (i == 0) root = at;
            for (size_t p = 0; p < g->nplaces; p++)
                if (g->places[p].lot == old) g->places[p].lot = g->places[root].lot;
            call->stream = g->places[root].stream;
        }
        g->places[root].launches = true;
    }
}

static kolo_status_t check_captures(const lot_t *g)
{
    for (size_t p = 0; p < g->nplaces; p++) {
        const kolo_cuda_device_t *device;
        const place_t *mine = &g->places[p], *other = mine;
        bool alike = true;
        for (size_t q = 0; q < p && other == mine; q++)
            if (g->places[q].lot == mine->lot) other = &g->places[q];
        if (other == mine || !kolo_cuda_loaded()) continue;
        KOLO_TRY(kolo_cuda_device(mine->body->gpu.device, &device));
        KOLO_TRY(kolo_cuda_streams_alike(device, mine->stream, other->stream, &alike));
        if (!alike)
            return kolo_fail(
                KOLO_ERR_INVALID_USAGE,
                "group_end: of the streams of a group on %s rank %d some are being captured and some are "
                "not; they meet, so all of them have to be",
                mine->body->name, mine->body->rank);
    }
    return KOLO_OK;
}

/* Has streams meet. Before: those to which shares go wait for all of their lot; after: all wait for those. */
static kolo_status_t meet(const lot_t *g, bool after)
{
    for (size_t p = 0; p < g->nplaces; p++) {
        const kolo_cuda_device_t *device;
        const place_t *from = &g->places[p];
        void *streams[KOLO_CUDA_STREAMS_MEET];
        size_t n = 1;
        if (after && !from->launches) continue;
        streams[0] = from->stream;
        for (size_t q = 0; q <= g->nplaces; q++) {
            const place_t *to = &g->places[q];
            bool one = q < g->nplaces && q != p && to->lot == from->lot && (after || to->launches);
            if (one) streams[n++] = to->stream;
            if (n < KOLO_CUDA_STREAMS_MEET && q < g->nplaces) continue;
            if (n > 1) {
                KOLO_TRY(kolo_cuda_device(from->body->gpu.device, &device));
                KOLO_TRY(kolo_cuda_streams_follow(device, streams, n));
            }
            n = 1;
        }
    }
    return KOLO_OK;
}

/* ---- a group ---- */

/* Tells whether kolo_device_queue() by itself refuses all of the group or nothing. Puts to windows would go ahead
 * of what it looks at. */
static bool is_alone(const lot_t *g)
{
    const kolo_body_t *body = g->shares->work.body;
    return g->nshares == 1 && !body->windows && !body->levels.inside && !body->gpu.exec->by_host;
}

static kolo_status_t check(lot_t *g)
{
    gather_streams(g);
    for (size_t k = 0; k < g->nshares; k++) {
        KOLO_TRY(kolo_device_prepare(&g->shares[k].work));
        if (!is_alone(g)) KOLO_TRY(kolo_device_check(&g->shares[k].work));
    }
    return g->nplaces > 1 ? check_captures(g) : KOLO_OK;
}

/* Checks a group; one that is refused is refused as a whole. */
static kolo_status_t check_all(lot_t *g)
{
    kolo_status_t status = check(g);
    for (size_t k = 0; k < g->nshares && status != KOLO_OK; k++) kolo_device_refuse(&g->shares[k].work);
    return status;
}

/* Queues all shares. What fails now, fails its communicator: others wait for what is queued already, or is not. */
static void queue(lot_t *g)
{
    bool begun = false;
    kolo_status_t met = g->nplaces > 1 ? meet(g, false) : KOLO_OK;
    for (size_t k = 0; k < g->nshares; k++) {
        share_t *s = &g->shares[k];
        kolo_status_t status = met == KOLO_OK ? kolo_device_queue(&s->work) : met;
        if (status != KOLO_OK && !kolo_device_fails(status) && begun)
            status = kolo_fail_prefix(KOLO_ERR_SYSTEM, "a part of a group was queued: ");
        if (status != KOLO_OK && status != KOLO_ERR_SYSTEM && is_alone(g)) kolo_device_refuse(&s->work);
        if (kolo_device_fails(status)) status = kolo_device_fail(&s->work, status);
        note(g, status);
        begun = true;
    }
    if (met == KOLO_OK && g->nplaces > 1) note(g, meet(g, true));
}

kolo_status_t kolo_device_submit_group(kolo_call_t *calls, size_t count)
{
    kolo_call_t few_calls[FEW];
    share_t few_shares[FEW];
    place_t few_places[FEW];
    bool few = count <= FEW;
    lot_t g;
    g.count = count;
    g.nshares = g.nplaces = 0;
    g.first = KOLO_OK;
    kolo_call_t *room = g.calls = few ? few_calls : malloc(count * sizeof *g.calls);
    g.shares = few ? few_shares : malloc(count * sizeof *g.shares);
    g.places = few ? few_places : malloc(count * sizeof *g.places);
    if (g.calls && g.shares && g.places) {
        hand_out(&g, calls);
        take_turns(&g);
        if (g.nshares > 1 && g.first == KOLO_OK) qsort(g.shares, g.nshares, sizeof *g.shares, by_communicator);
        if (g.first == KOLO_OK) note(&g, check_all(&g));
        if (g.first == KOLO_OK) queue(&g);
    } else {
        note(&g, kolo_fail(KOLO_ERR_NO_MEMORY, "group_end: out of memory for %zu calls", count));
    }
    for (size_t k = 0; k < g.nshares; k++) {
        kolo_device_work_end(&g.shares[k].work);
        if (g.shares[k].drawn) kolo_ticket_end(g.shares[k].comm, g.shares[k].ticket);
    }
    for (size_t i = 0; i < count; i++) kolo_call_disown(&calls[i]);
    if (!few) {
        free(room);
        free(g.shares);
        free(g.places);
    }
    return g.first == KOLO_OK ? KOLO_OK : kolo_fail(g.first, "%s", g.text);
}
