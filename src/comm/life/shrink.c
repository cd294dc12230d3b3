/* SPDX-License-Identifier: Apache-2.0
 *
 * Shrink: the ranks that go on make a communicator without the excluded and the lost ones, which take no part: they
 * may be dead, hung, or in the middle of a collective. The survivors agree on the lost ranks (member/agreement.c)
 * over the parent's out-of-band connections, and the same messages carry the addresses for the child; no root is
 * needed. If a rank is lost while the child is being set up, all start again over the connections of the child's
 * ranks, so the parent can be used after one agreement. Abort mode first ends the operations of the parent, which
 * can only be destroyed afterwards. The modes are those of NCCL's ncclCommShrink; here the list may also be empty.
 */
#include "comm/life/life.h"

#include "base/clock.h"
#include "base/failpoint.h"
#include "member/map.h"

#include <stdlib.h>
#include <string.h>

#define SHRINK_LABEL 0x736872696e6b0000ull /* "shrink" */
#define SERIES_ABORT KOLO_OOB_SERIES_LAST
#define SERIES_ALL   2

typedef struct {
    kolo_start_t start;
    int flags;
    bool named;   /* the caller gave a list */
    bool revoked; /* the caller knew that the parent is */
    uint64_t key, series;
    size_t map_bytes;
    uint8_t *out; /* map of the ranks of the parent that do not go on; behind this struct */
} kolo_shrink_t;

/* Opens the child of those who are left, with their addresses and cards. From then on the parent's news of them,
 * and of nobody else, are the child's; that the parent is revoked is no news to a shrink. */
static kolo_status_t open_rest(kolo_shrink_t *s, kolo_oob_t *channel, const uint8_t *out, const kolo_offer_t *rows,
                               kolo_oob_child_t *oob_child)
{
    kolo_body_t *child = s->start.child;
    const kolo_peer_card_t *cards = child->life.borrowed.cards;
    const kolo_agreed_t *agreed = &child->life.borrowed.agreed;
    int n = kolo_oob_nranks(channel), me = kolo_oob_rank(channel), left = 0, rank = 0;
    uint8_t *addresses = malloc((size_t)n * KOLO_OOB_ADDRESS_BYTES);
    int *members = malloc((size_t)n * sizeof *members);
    if (!addresses || !members) {
        free(addresses);
        free(members);
        kolo_oob_discard_child(oob_child);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "comm_shrink: out of memory for %d ranks", n);
    }
    for (int r = 0; r < n; r++) {
        if (kolo_map_has(out, r)) continue;
        if (r == me) rank = left;
        members[left] = r;
        memcpy(addresses + (size_t)left++ * KOLO_OOB_ADDRESS_BYTES, rows[r].address, KOLO_OOB_ADDRESS_BYTES);
    }
    uint64_t label = SHRINK_LABEL ^ kolo_hash_bytes(s->key, out, kolo_map_bytes(n));
    kolo_status_t status = kolo_child_open(child, rank, left, oob_child, label, addresses);
    if (status == KOLO_OK) status = kolo_inherit_failures(child->oob, channel, members, false);
    if (!cards) { /* the first time: `channel` is the parent's */
        cards = s->start.parent->body->member.peers;
        agreed = &s->start.parent->body->life.agreed;
    }
    if (status == KOLO_OK) status = kolo_body_borrow(child, cards, agreed, members);
    free(addresses);
    free(members);
    return status;
}

/* Fails if one of those who are left could not begin. */
static kolo_status_t check_offers(const kolo_shrink_t *s, const uint8_t *out, const kolo_offer_t *offers, int n)
{
    for (int r = 0; r < n; r++)
        if (!kolo_map_has(out, r)) KOLO_TRY(kolo_child_check_offer(&offers[r], r, s->start.child->name));
    return KOLO_OK;
}

/* Makes one agreement among the ranks of `channel`, and the child's out-of-band object from what it brought. */
static kolo_status_t agree_on_rest(kolo_shrink_t *s, kolo_oob_t *channel, uint8_t *out, uint64_t deadline_ns)
{
    int n = kolo_oob_nranks(channel);
    kolo_oob_child_t *oob_child = NULL;
    kolo_own_failure_t own;
    kolo_offer_t *offers = calloc((size_t)n, sizeof *offers);
    kolo_agreement_t a = {.series = s->series,
                          .key = s->key,
                          .out = out,
                          .rows = (uint8_t *)offers,
                          .row_bytes = sizeof *offers,
                          .deadline_ns = deadline_ns,
                          .cancel = &s->start.child->stop.abort,
                          .what = "comm_shrink"};
    if (!offers) return kolo_fail(KOLO_ERR_NO_MEMORY, "comm_shrink: out of memory for %d ranks", n);
    KOLO_FAIL_POINT("comm.shrink.listen");
    kolo_child_offer(channel, &oob_child, &offers[kolo_oob_rank(channel)], &own);
    kolo_status_t status = kolo_agree_survivors(channel, &a);
    KOLO_FAIL_POINT("comm.shrink.gathered");
    if (own.status != KOLO_OK) status = kolo_fail(own.status, "%s", own.text);
    if (status == KOLO_OK) status = check_offers(s, out, offers, n);
    if (status == KOLO_OK)
        status = open_rest(s, channel, out, offers, oob_child);
    else if (oob_child)
        kolo_oob_discard_child(oob_child);
    free(offers);
    return status;
}

/* Begins again with the members of `channel` without `out`. */
static kolo_status_t begin_again(kolo_shrink_t *s, uint8_t *out, uint64_t deadline_ns)
{
    kolo_body_t *child = s->start.child;
    kolo_oob_t *channel = child->oob;
    child->oob = NULL;
    kolo_status_t status = agree_on_rest(s, channel, out, deadline_ns);
    kolo_oob_close(channel);
    kolo_oob_fini(channel);
    return status;
}

static kolo_status_t build(kolo_shrink_t *s, uint64_t deadline_ns)
{
    bool again = false;
    kolo_status_t status = kolo_child_settle(s->start.child, deadline_ns, &again, s->out);
    while (again) {
        KOLO_FAIL_POINT("comm.shrink.again");
        status = begin_again(s, s->out, deadline_ns);
        if (status != KOLO_OK) break;
        status = kolo_child_settle(s->start.child, deadline_ns, &again, s->out);
    }
    return status;
}

/* Ends what runs on the parent; no new operation gets in. The flag is taken back, so that the shrink itself may
 * wait, unless the program aborts the parent meanwhile. */
static void end_operations(kolo_comm_t parent)
{
    kolo_body_t *body = parent->body;
    kolo_fail(KOLO_ERR_ABORTED, "%s rank %d was shrunk in abort mode", parent->name, parent->rank);
    atomic_store(&body->stop.abort, 1);
    atomic_store(&body->stop.reason, KOLO_STOP_ABORT);
    kolo_body_fail(body, KOLO_ERR_ABORTED);
    kolo_waker_wake(&body->ctx.waker);
    kolo_handle_quiet(parent, NULL, false);
    atomic_store(&body->stop.abort, 0);
    if (atomic_load(&parent->magic) != KOLO_COMM_MAGIC) atomic_store(&body->stop.abort, 1);
}

/* Tells whether the parent has failed for nothing but the loss of ranks that the caller leaves out anyway. */
static bool lost_excluded_only(const kolo_shrink_t *s)
{
    kolo_comm_t parent = s->start.parent;
    bool any = false;
    pthread_mutex_lock(&parent->error_lock);
    const bool remote = parent->error == KOLO_ERR_REMOTE;
    pthread_mutex_unlock(&parent->error_lock);
    for (int r = 0; remote && r < parent->nranks; r++) {
        if (r == parent->rank || !kolo_news_rank_lost(parent->body->oob, r, NULL, 0)) continue;
        if (!kolo_map_has(s->out, r)) return false;
        any = true;
    }
    return any;
}

/* Waits for the turn. Without a list a communicator that has failed may be shrunk, too: its operations have ended,
 * in order. With one, only where those who are lost are on it, and who did not know of the revoke is told of it:
 * the others may have another list. */
static kolo_status_t await_turn(kolo_shrink_t *s)
{
    kolo_status_t status = kolo_ticket_wait(s->start.parent, s->start.ticket);
    if (atomic_load(&s->start.parent->state) != KOLO_COMM_FAILED) return status;
    return !s->named || s->revoked || lost_excluded_only(s) ? KOLO_OK : status;
}

static kolo_status_t agree_with_parent(kolo_shrink_t *s, uint64_t deadline_ns)
{
    kolo_body_t *parent = s->start.parent->body;
    if (!parent->member.peers)
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "comm_shrink: %s was never set up, its init has failed",
                         parent->name);
    uint8_t *named = malloc(s->map_bytes);
    if (!named) return kolo_fail(KOLO_ERR_NO_MEMORY, "comm_shrink: out of memory");
    memcpy(named, s->out, s->map_bytes);
    kolo_status_t status = agree_on_rest(s, parent->oob, s->out, deadline_ns);
    if (status == KOLO_OK) kolo_body_note_lost(parent, s->out, named);
    free(named);
    return status;
}

static kolo_status_t shrink(kolo_start_t *start)
{
    kolo_shrink_t *s = (kolo_shrink_t *)start;
    kolo_status_t status = KOLO_OK;
    if (s->flags & KOLO_SHRINK_ABORT)
        end_operations(start->parent);
    else
        status = await_turn(s);
    int limit = start->child->init_timeout_ms;
    uint64_t deadline = kolo_deadline_ms(limit);
    if (status == KOLO_OK) status = agree_with_parent(s, kolo_start_deadline(start, limit));
    kolo_start_leave(start);
    return status == KOLO_OK ? build(s, deadline) : status;
}

/* ---- the call ---- */

static kolo_status_t check_excluded(kolo_comm_t comm, const int *excluded, int count, uint8_t *out)
{
    if (!excluded && count == 0) return KOLO_OK;
    if (count < 1 || count >= comm->nranks || !excluded)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "comm_shrink: %d ranks to exclude (%s), expected 1 to %d of the %d ranks, or NULL and 0",
                         count, excluded ? "a list" : "the list is NULL", comm->nranks - 1, comm->nranks);
    for (int i = 0; i < count; i++) {
        int r = excluded[i];
        if (r < 0 || r >= comm->nranks)
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                             "comm_shrink: excluded[%d] is %d, the communicator has %d ranks", i, r, comm->nranks);
        if (r == comm->rank)
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "comm_shrink: rank %d is to be excluded and does not call",
                             r);
        if (kolo_map_has(out, r))
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "comm_shrink: rank %d is excluded twice", r);
        kolo_map_add(out, r);
    }
    return KOLO_OK;
}

static bool is_revoked(kolo_comm_t comm)
{
    pthread_mutex_lock(&comm->error_lock);
    bool revoked = atomic_load(&comm->state) == KOLO_COMM_FAILED && comm->error == KOLO_ERR_REVOKED;
    pthread_mutex_unlock(&comm->error_lock);
    return revoked || atomic_load(&comm->revoked_here);
}

static kolo_status_t new_shrink(kolo_comm_t comm, const int *excluded, int count, int flags, kolo_shrink_t **out)
{
    size_t map_bytes = kolo_map_bytes(comm->nranks);
    kolo_shrink_t *s = calloc(1, sizeof *s + map_bytes);
    if (!s) return kolo_fail(KOLO_ERR_NO_MEMORY, "comm_shrink: out of memory");
    s->start = (kolo_start_t){.parent = comm, .run = shrink, .what = "comm_shrink"};
    s->flags = flags;
    s->named = excluded != NULL;
    s->revoked = is_revoked(comm);
    s->map_bytes = map_bytes;
    s->out = (uint8_t *)(s + 1);
    kolo_status_t status = check_excluded(comm, excluded, count, s->out);
    if (status != KOLO_OK) {
        free(s);
        return status;
    }
    s->key = kolo_hash_bytes(SHRINK_LABEL, s->out, map_bytes);
    /* In default mode named ranks may take part again later, so only shrinks with just this list are counted. */
    s->series = flags & KOLO_SHRINK_ABORT ? SERIES_ABORT : s->named ? s->key >> 24 : SERIES_ALL;
    *out = s;
    return KOLO_OK;
}

kolo_status_t kolo_comm_shrink(kolo_comm_t comm, const int *excluded, int count, int flags, kolo_comm_t *newcomm,
                               const kolo_config_t *config)
{
    kolo_shrink_t *s = NULL;
    KOLO_TRY(kolo_start_check(comm, newcomm, config, "comm_shrink"));
    if (flags & ~KOLO_SHRINK_ABORT)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "comm_shrink: flags %#x, expected 0 or KOLO_SHRINK_ABORT",
                         (unsigned)flags);
    KOLO_TRY(new_shrink(comm, excluded, count, flags, &s));
    return kolo_start(&s->start, true, !(flags & KOLO_SHRINK_ABORT), newcomm, config);
}
