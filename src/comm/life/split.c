/* SPDX-License-Identifier: Apache-2.0
 *
 * Split: ranks of equal color form a child. Nobody calls a root: the parent's ranks exchange colors, keys and the
 * addresses of fresh listeners over the parent, and the child's keys derive from the parent's. A split counts as an
 * operation of the parent, so it has its place in the order of calls, also when it runs in the background. A rank
 * that has no descriptor left for the listener takes part and says so: its child fails on all, and the parent goes
 * on. Until the child is ready, what the parent comes to know of its members (lost, cut off, revoked) ends the
 * start on all.
 */
#include "base/failpoint.h"
#include "comm/call/call.h"
#include "comm/life/life.h"
#include "oob/gather.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int32_t color, key;
    uint32_t share;
    kolo_offer_t offer;
} kolo_split_row_t;

typedef struct {
    kolo_start_t start;  /* its child: NULL for KOLO_SPLIT_NOCOLOR */
    kolo_call_word_t as; /* what its user has called */
    int color, key;
    int *members; /* of the child: their ranks in the parent */
} kolo_split_t;

typedef struct {
    int color, key, rank;
} kolo_split_order_t;

static int by_key(const void *a, const void *b)
{
    const kolo_split_order_t *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->rank - y->rank;
}

/* Finds the child's rank order, my place in it, the members' ranks in the parent and their addresses. */
static kolo_status_t pick_members(kolo_split_t *s, const kolo_split_row_t *rows, uint8_t **addresses)
{
    kolo_body_t *parent = s->start.parent->body;
    size_t n = (size_t)parent->nranks, m = 0;
    bool share = true;
    KOLO_FAIL_POINT_TRY("comm.split.members");
    kolo_split_order_t *order = malloc(n * sizeof *order);
    *addresses = malloc(n * KOLO_OOB_ADDRESS_BYTES);
    s->members = malloc(n * sizeof *s->members);
    if (!order || !*addresses || !s->members) {
        free(order);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "split: out of memory for %zu ranks", n);
    }
    for (size_t r = 0; r < n; r++)
        if (rows[r].color == s->color) order[m++] = (kolo_split_order_t){rows[r].color, rows[r].key, (int)r};
    qsort(order, m, sizeof *order, by_key);
    for (size_t i = 0; i < m; i++) {
        s->members[i] = order[i].rank;
        memcpy(*addresses + i * KOLO_OOB_ADDRESS_BYTES, rows[order[i].rank].offer.address, KOLO_OOB_ADDRESS_BYTES);
        if (order[i].rank == parent->rank) s->start.child->rank = (int)i;
        share = share && rows[order[i].rank].share;
    }
    s->start.child->nranks = (int)m;
    free(order);
    if (!share) return KOLO_OK;
    return kolo_body_borrow(s->start.child, parent->member.peers, &parent->life.agreed, s->members);
}

/* Fails if a member of my child could not begin it; `own` is my own failure. */
static kolo_status_t check_members(const kolo_split_t *s, const kolo_split_row_t *rows,
                                   const kolo_own_failure_t *own)
{
    const kolo_body_t *parent = s->start.parent->body;
    if (own->status != KOLO_OK) return kolo_fail(own->status, "%s", own->text);
    for (int r = 0; r < parent->nranks; r++)
        if (rows[r].color == s->color) KOLO_TRY(kolo_child_check_offer(&rows[r].offer, r, parent->name));
    return KOLO_OK;
}

/* Exchanges the rows. The status is the parent's; *began is the child's. */
static kolo_status_t exchange(kolo_split_t *s, kolo_oob_child_t **oob_child, uint8_t **addresses,
                              kolo_status_t *began)
{
    kolo_own_failure_t own = {KOLO_OK, ""};
    kolo_body_t *parent = s->start.parent->body;
    kolo_split_row_t *rows = calloc((size_t)parent->nranks, sizeof *rows);
    if (!rows) return kolo_fail(KOLO_ERR_NO_MEMORY, "split: out of memory for %d ranks", parent->nranks);
    kolo_split_row_t *mine = &rows[parent->rank];
    mine->color = s->color;
    mine->key = s->key;
    mine->share = s->start.child && s->start.child->life.split_share;
    KOLO_FAIL_POINT("comm.split.exchange");
    if (s->start.child) kolo_child_offer(parent->oob, oob_child, &mine->offer, &own);
    kolo_status_t status = kolo_oob_all_gather_until(parent->oob, rows, sizeof *rows,
                                                     kolo_start_deadline(&s->start, parent->init_timeout_ms));
    if (status == KOLO_OK && s->start.child) *began = check_members(s, rows, &own);
    if (status == KOLO_OK && s->start.child && *began == KOLO_OK) status = pick_members(s, rows, addresses);
    free(rows);
    return status;
}

static kolo_status_t split(kolo_start_t *start)
{
    kolo_split_t *s = (kolo_split_t *)start;
    kolo_oob_child_t *oob_child = NULL;
    uint8_t *addresses = NULL;
    kolo_body_t *child = start->child;
    kolo_status_t status = kolo_ticket_wait(start->parent, start->ticket);
    if (status == KOLO_OK) {
        kolo_body_t *parent = start->parent->body;
        /* the same on all members, new for each split */
        kolo_whole_t whole;
        uint64_t label = kolo_whole_begin(&whole, parent, s->as) << 24 ^ (uint64_t)(uint32_t)s->color;
        kolo_status_t began = KOLO_OK;
        status = exchange(s, &oob_child, &addresses, &began);
        kolo_whole_end(&whole, status != KOLO_OK ? status : began);
        if (status != KOLO_OK) kolo_body_fail(parent, status);
        if (status == KOLO_OK) status = began;
        if (status == KOLO_OK && child) {
            status = kolo_child_open(child, child->rank, child->nranks, oob_child, label, addresses);
            oob_child = NULL; /* consumed either way */
        }
        if (status == KOLO_OK && child) status = kolo_inherit_failures(child->oob, parent->oob, s->members, true);
    }
    KOLO_FAIL_POINT("comm.split.open");
    kolo_start_leave(start);
    if (oob_child) kolo_oob_discard_child(oob_child);
    free(addresses);
    free(s->members);
    if (status != KOLO_OK || !child) return status;
    status = kolo_body_setup(child);
    return status == KOLO_OK ? kolo_inherit_setup_done(child->oob) : kolo_child_blame(child, status);
}

kolo_status_t kolo_call_split(kolo_call_word_t as, kolo_comm_t comm, int color, int key, kolo_comm_t *newcomm,
                              const kolo_config_t *config)
{
    const char *what = kolo_plan_call_name(as);
    KOLO_TRY(kolo_start_check(comm, newcomm, config, what));
    if (color < 0 && color != KOLO_SPLIT_NOCOLOR)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: color is %d, expected 0 or more, or KOLO_SPLIT_NOCOLOR",
                         what, color);
    kolo_split_t *s = calloc(1, sizeof *s);
    if (!s) return kolo_fail(KOLO_ERR_NO_MEMORY, "%s: out of memory", what);
    s->start = (kolo_start_t){.parent = comm, .run = split, .what = what};
    s->as = as;
    s->color = color;
    s->key = key;
    return kolo_start(&s->start, color != KOLO_SPLIT_NOCOLOR, true, newcomm, config);
}

kolo_status_t kolo_comm_split(kolo_comm_t comm, int color, int key, kolo_comm_t *newcomm,
                              const kolo_config_t *config)
{
    return kolo_call_split(KOLO_CALL_WORD_SPLIT, comm, color, key, newcomm, config);
}

kolo_status_t kolo_comm_dup(kolo_comm_t comm, kolo_comm_t *newcomm, const kolo_config_t *config)
{
    kolo_config_t shared = KOLO_CONFIG_INITIALIZER;
    if (config) return kolo_call_split(KOLO_CALL_WORD_DUP, comm, 0, 0, newcomm, config);
    KOLO_TRY(kolo_start_check(comm, newcomm, NULL, "comm_dup"));
    shared.blocking = comm->blocking;
    shared.split_share = 1;
    return kolo_call_split(KOLO_CALL_WORD_DUP, comm, 0, 0, newcomm, &shared);
}
