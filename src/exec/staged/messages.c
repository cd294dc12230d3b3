/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages that stand side by side. A long one goes in pieces, as many as both ends compute from its length alone.
 * The messages to and those from one peer form a lane with two slots; lanes do not wait for each other.
 */
#include "exec/staged/staged.h"

#include <stdlib.h>

typedef struct {
    char *device;
    uint64_t bytes;
    uint32_t lane, slot;
    size_t next; /* in its lane; 0: none (the first of all is nobody's next) */
} piece_t;

typedef struct {
    bool used;
    size_t last; /* while lanes are filled */
    uint64_t count;
} lane_t;

typedef struct {
    kolo_staged_t *s;
    piece_t *pieces;
    kolo_exec_call_t *calls; /* by piece, in host memory */
    lane_t *lanes;           /* [2][nranks] */
    size_t n;
} run_t;

static kolo_staged_slot_t *slot_of(const run_t *r, const piece_t *p)
{
    return &r->s->lanes[p->lane * 2 + p->slot];
}

static char *host_of(const run_t *r, const piece_t *p)
{
    return r->s->room + (p->lane * 2 + p->slot) * r->s->message_bytes;
}

static uint64_t pieces_of(const kolo_staged_t *s, const kolo_exec_call_t *c)
{
    uint64_t bytes = c->count * c->elem;
    return bytes ? (bytes + s->message_bytes - 1) / s->message_bytes : 1;
}

static void add_piece(run_t *r, const kolo_exec_call_t *c, uint64_t offset, uint64_t bytes)
{
    bool send = c->kind == KOLO_EXEC_SEND;
    uint32_t number = (uint32_t)(send ? 0 : r->s->nranks) + (uint32_t)c->root;
    lane_t *lane = &r->lanes[number];
    size_t i = r->n++;
    piece_t *p = &r->pieces[i];
    *p = (piece_t){.device = (char *)(send ? (uintptr_t)c->src : (uintptr_t)c->dst) + offset, /* NOLINT */
                   .bytes = bytes,
                   .lane = number,
                   .slot = (uint32_t)(lane->count & 1)};
    if (lane->used) r->pieces[lane->last].next = i;
    lane->used = true;
    lane->last = i;
    lane->count++;
    r->calls[i] = *c;
    r->calls[i].count = bytes / c->elem;
    r->calls[i].src = send ? host_of(r, p) : NULL;
    r->calls[i].dst = send ? NULL : host_of(r, p);
}

/* Queues the copy of a send from the device. */
static kolo_status_t fetch(const run_t *r, size_t i)
{
    const piece_t *p = &r->pieces[i];
    kolo_staged_slot_t *slot = slot_of(r, p);
    if (!p->bytes) return KOLO_OK;
    KOLO_TRY(kolo_staged_copy(r->s, r->s->down, host_of(r, p), p->device, p->bytes));
    return kolo_staged_mark(r->s, r->s->down, slot->came, &slot->coming);
}

static kolo_status_t ready(void *arg, size_t i)
{
    const run_t *r = arg;
    kolo_staged_slot_t *slot = slot_of(r, &r->pieces[i]);
    bool send = r->calls[i].kind == KOLO_EXEC_SEND;
    return send ? kolo_staged_look(r->s, slot->came, &slot->coming)
                : kolo_staged_look(r->s, slot->left, &slot->leaving);
}

static kolo_status_t over(void *arg, size_t i)
{
    run_t *r = arg;
    const piece_t *p = &r->pieces[i];
    kolo_staged_slot_t *slot = slot_of(r, p);
    if (r->calls[i].kind == KOLO_EXEC_SEND) {
        size_t next = p->next ? r->pieces[p->next].next : 0; /* the one that has this slot after it */
        return next ? fetch(r, next) : KOLO_OK;
    }
    if (!p->bytes) return KOLO_OK;
    KOLO_TRY(kolo_staged_copy(r->s, r->s->up, p->device, host_of(r, p), p->bytes));
    return kolo_staged_mark(r->s, r->s->up, slot->left, &slot->leaving);
}

static kolo_status_t run(run_t *r, const kolo_exec_call_t *calls, size_t n)
{
    kolo_staged_t *s = r->s;
    for (size_t i = 0; i < n; i++) {
        uint64_t bytes = calls[i].count * calls[i].elem, at = 0;
        for (uint64_t k = pieces_of(s, &calls[i]); k; k--) {
            uint64_t left = bytes - at, each = left < s->message_bytes ? left : s->message_bytes;
            add_piece(r, &calls[i], at, each);
            at += each;
        }
    }
    for (int lane = 0; lane < s->nranks; lane++) r->lanes[lane].count = 0;
    for (size_t i = 0; i < r->n; i++) {
        const piece_t *p = &r->pieces[i];
        if (r->calls[i].kind == KOLO_EXEC_SEND && r->lanes[p->lane].count++ < 2) KOLO_TRY(fetch(r, i));
    }
    kolo_exec_turns_t turns = {.ready = ready, .over = over, .arg = r};
    return s->env.host->exchange(s->env.host_arg, r->calls, r->n, &turns);
}

kolo_status_t kolo_staged_messages(kolo_staged_t *s, const kolo_exec_call_t *calls, size_t n)
{
    uint64_t pieces = 0;
    for (size_t i = 0; i < n; i++) pieces += pieces_of(s, &calls[i]);
    run_t r = {.s = s,
               .pieces = calloc(pieces, sizeof(piece_t)),
               .calls = calloc(pieces, sizeof(kolo_exec_call_t)),
               .lanes = calloc(2 * (size_t)s->nranks, sizeof(lane_t))};
    kolo_status_t status = KOLO_OK;
    if (!r.pieces || !r.calls || !r.lanes)
        status = kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %zu messages", n);
    if (status == KOLO_OK) status = run(&r, calls, n);
    free(r.pieces);
    free(r.calls);
    free(r.lanes);
    return status;
}
