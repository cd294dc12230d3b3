/* SPDX-License-Identifier: Apache-2.0
 *
 * How a communicator is made from another one (split, shrink, grow): the common frame. A start is an operation of
 * the parent where it has a ticket, so it has its place in the order of calls, also when it runs in the background.
 * Only what needs the parent happens in that turn; then the parent's operations go on while the child is set up.
 *
 * What ends a start. In the turn: what ends operations of the parent, except that a shrink is there for losses, and
 * a shrink or grow agrees instead of failing by one. Then, until the child is ready on this rank
 * (member/inherit.c):
 *
 *     the parent's news                       split        grow (old ranks)    shrink
 *     a member of the child is lost           fails        fails on all        begins again without it
 *     another rank of the parent is lost      -            (there is none)     -
 *     this rank is cut off from a member      PARTITION    PARTITION           PARTITION
 *     revoked                                 REVOKED      REVOKED on all      -
 *
 * Abort of the parent on this rank aborts what is being made from it, but in the background only until its turn is
 * over; destroy waits for the turn. What other ranks do with their handle of the parent (destroy it, abort it, give
 * it up) does not matter to the child.
 */
#include "comm/call/call.h"
#include "comm/life/life.h"

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/text/plain.h"
#include "member/map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kolo_status_t kolo_start_check(kolo_comm_t parent, kolo_comm_t *newcomm, const kolo_config_t *config,
                               const char *what)
{
    KOLO_TRY(kolo_handle_check(parent, what));
    if (!newcomm) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the output handle is NULL", what);
    KOLO_TRY(kolo_comm_config_check(config, what));
    KOLO_TRY(kolo_group_admit_life(what));
    if (atomic_load(&parent->state) == KOLO_COMM_STARTING)
        return kolo_fail_prefix(kolo_handle_refuse(parent, KOLO_COMM_STARTING), "%s: ", what);
    return kolo_comm_begin_aside(parent, what);
}

/* ---- the parent knows what is being made from it ---- */

static void making_add(kolo_start_t *s)
{
    kolo_comm_t h = s->parent;
    if (!s->child) return;
    pthread_mutex_lock(&h->error_lock);
    s->child->life.next_making = h->making;
    h->making = s->child;
    pthread_mutex_unlock(&h->error_lock);
}

static void making_del(kolo_start_t *s)
{
    kolo_comm_t h = s->parent;
    if (!s->child) return;
    pthread_mutex_lock(&h->error_lock);
    kolo_body_t **at = &h->making;
    while (*at && *at != s->child) at = &(*at)->life.next_making;
    if (*at) *at = s->child->life.next_making;
    pthread_mutex_unlock(&h->error_lock);
}

static void end_turn(kolo_start_t *s)
{
    if (s->counted) atomic_fetch_sub(&s->parent->turns, 1);
    s->counted = false;
    if (s->has_ticket) kolo_ticket_end(s->parent, s->ticket);
    s->has_ticket = false;
}

uint64_t kolo_start_deadline(const kolo_start_t *s, int init_timeout_ms)
{
    int limit = kolo_nccl_options.wait_ms ? s->parent->body->op_timeout_ms : 0;
    return kolo_deadline_ms(limit ? KOLO_MIN(limit, init_timeout_ms) : init_timeout_ms);
}

void kolo_start_leave(kolo_start_t *s)
{
    end_turn(s);
    if (!s->background || s->left || !s->child) return; /* a caller who waits may abort the parent to get out */
    s->left = true;
    making_del(s);
    kolo_handle_leave(s->parent);
}

/* ---- running ---- */

static kolo_origin_t origin_of(kolo_comm_t parent)
{
    kolo_origin_t from = {.rank = parent->rank, .nranks = parent->nranks};
    snprintf(from.name, sizeof from.name, "%s", parent->name);
    return from;
}

static void *run_in_background(void *arg)
{
    kolo_start_t *s = arg;
    kolo_body_t *child = s->child;
    kolo_comm_t parent = s->parent;
    kolo_origin_t from = origin_of(parent);
    kolo_status_t status = s->run(s);
    end_turn(s);
    bool left = s->left;
    if (!left) making_del(s);
    if (child) kolo_body_started(child, status, s->what, &from);
    free(s);
    if (!left) kolo_handle_leave(parent);
    if (child) kolo_handle_leave(child->handle);
    return NULL;
}

static kolo_status_t start_background(kolo_start_t *s)
{
    kolo_body_t *holder = s->child ? s->child : s->parent->body;
    kolo_comm_t parent = s->parent;
    bool has_child = s->child != NULL;
    s->background = s->counted = true;
    atomic_fetch_add(&parent->turns, 1);
    if (has_child) atomic_fetch_add(&parent->visitors, 1); /* the holder is counted by kolo_body_background() */
    kolo_status_t status = kolo_body_background(holder, run_in_background, s);
    if (status == KOLO_OK) return KOLO_IN_PROGRESS;
    if (has_child) kolo_handle_leave(parent);
    return status;
}

/* Starts a child. The caller is a visitor of the parent. */
static kolo_status_t start(kolo_start_t *s, bool ticket, bool blocking)
{
    kolo_comm_t parent = s->parent;
    if (ticket) KOLO_TRY(kolo_ticket_draw(parent, &s->ticket));
    s->has_ticket = ticket;
    making_add(s);
    if (atomic_load(&parent->body->stop.abort)) kolo_start_abort_all(parent); /* it did not see this one */
    if (!blocking) {
        kolo_status_t status = start_background(s);
        if (status == KOLO_IN_PROGRESS) return status;
        making_del(s);
        if (ticket) kolo_ticket_wait(parent, s->ticket);
        end_turn(s);
        return status;
    }
    kolo_status_t status = s->run(s);
    end_turn(s);
    making_del(s);
    if (!s->child) return status;
    kolo_origin_t from = origin_of(parent);
    kolo_body_started(s->child, status, s->what, &from);
    return kolo_body_made(s->child, status);
}

kolo_status_t kolo_start(kolo_start_t *s, bool has_child, bool ticket, kolo_comm_t *newcomm,
                         const kolo_config_t *config)
{
    kolo_comm_t comm = s->parent;
    kolo_body_t *parent = kolo_handle_visit(comm, s->what), *child = NULL;
    if (!parent) {
        free(s);
        return KOLO_ERR_INVALID_ARGUMENT;
    }
    kolo_status_t status = KOLO_OK;
    if (has_child) status = kolo_body_new(0, 1, config, parent, s->what, &child);
    s->child = child;
    bool grouped = kolo_group_open(), blocking = child ? child->life.blocking : parent->life.blocking;
    if (status == KOLO_OK) status = start(s, ticket, blocking && !grouped);
    if (status != KOLO_IN_PROGRESS) free(s); /* else it is the background thread's */
    if (status == KOLO_IN_PROGRESS && grouped && child)
        status = kolo_group_add_life(child->handle, KOLO_GROUP_MAKES, NULL);
    if (status == KOLO_IN_PROGRESS && grouped) status = KOLO_OK; /* this rank's part: its next call waits for it */
    if (status == KOLO_OK || status == KOLO_IN_PROGRESS)
        *newcomm = child ? child->handle : NULL;
    else if (child)
        kolo_body_free(child);
    kolo_handle_leave(comm);
    return status;
}

/* ---- the child ---- */

void kolo_child_offer(kolo_oob_t *parent, kolo_oob_child_t **oob_child, kolo_offer_t *mine, kolo_own_failure_t *own)
{
    own->status = kolo_oob_prepare_child(parent, oob_child, mine->address);
    mine->failed = own->status;
    if (own->status != KOLO_OK) snprintf(own->text, sizeof own->text, "%s", kolo_error_text());
}

kolo_status_t kolo_child_check_offer(const kolo_offer_t *offer, int rank, const char *name)
{
    if (offer->failed == KOLO_OK) return KOLO_OK;
    return kolo_fail(KOLO_ERR_REMOTE, "rank %d of %s could not begin it (%s); its own error says why", rank, name,
                     kolo_status_string((kolo_status_t)offer->failed));
}

kolo_status_t kolo_child_open(kolo_body_t *child, int rank, int nranks, kolo_oob_child_t *oob_child, uint64_t label,
                              const uint8_t *addresses)
{
    kolo_oob_config_t config = {.rank = rank,
                                .nranks = nranks,
                                .timeout_ms = child->init_timeout_ms,
                                .abort = &child->stop.abort,
                                .name = child->name};
    if (child->handle->rank != rank) child->handle->rank = rank; /* calls that come too early may read it */
    if (child->handle->nranks != nranks) child->handle->nranks = nranks;
    child->rank = rank;
    child->nranks = nranks;
    return kolo_oob_open_child(oob_child, &config, label, addresses, &child->oob);
}

#define WORD_MS 250 /* how long the name of a lost rank may take to go round */

/* Blames the parent's loss, where there is one, member or not: another member may only have left because of it. */
kolo_status_t kolo_child_blame(kolo_body_t *child, kolo_status_t status)
{
    char seen[KOLO_ERROR_TEXT_BYTES], word[400];
    snprintf(seen, sizeof seen, "%s", kolo_error_text());
    if (status != KOLO_ERR_REMOTE || !child->oob || kolo_inherit_names(child->oob, seen)) return status;
    if (!kolo_inherit_failure(child->oob, WORD_MS, word, sizeof word)) return kolo_fail(status, "%s", seen);
    return kolo_fail(status, "%s; while %s was being made: %.500s", word, child->name, seen);
}

#define TEXT_BYTES 124
typedef struct { /* how it went on one rank; travels within one agreement, between equal builds */
    int32_t status;
    char text[TEXT_BYTES];
} outcome_t;

static bool any_out(const uint8_t *out, int nranks)
{
    for (int r = 0; r < nranks; r++)
        if (kolo_map_has(out, r)) return true;
    return false;
}

static kolo_status_t tell_outcome(const kolo_body_t *child, const outcome_t *rows)
{
    for (int r = 0; r < child->nranks; r++) {
        kolo_status_t status = (kolo_status_t)rows[r].status;
        char text[TEXT_BYTES];
        if (status <= KOLO_IN_PROGRESS || status > KOLO_ERR_REVOKED) continue;
        return kolo_fail(status, "rank %d of the new communicator could not set it up: %s", r,
                         kolo_plain_copy(text, sizeof text, rows[r].text, TEXT_BYTES));
    }
    return kolo_fail(KOLO_ERR_REMOTE, "the new communicator could not be set up");
}

/* Tells of all that are lost: the first may only have given up because of another. */
static kolo_status_t tell_lost(const kolo_body_t *child, const uint8_t *out)
{
    char list[KOLO_ERROR_TEXT_BYTES / 2] = "";
    for (int r = 0; r < child->nranks; r++) {
        char why[160] = "";
        size_t used = strlen(list);
        if (!kolo_map_has(out, r)) continue;
        bool known = kolo_news_rank_lost(child->oob, r, why, sizeof why);
        snprintf(list + used, sizeof list - used, "%srank %d%s%s%s", used ? ", " : "", r, known ? " (" : "", why,
                 known ? ")" : "");
    }
    return kolo_fail(KOLO_ERR_REMOTE, "lost while %s was being made: %s", child->name, list);
}

/* Forgets the parent's revoke, which comes too late once the set-up is behind all ranks, though it may have left
 * its mark here. */
static void forget_parent(kolo_body_t *child)
{
    uint32_t revoked = KOLO_STOP_REVOKED;
    if (kolo_inherit_setup_done(child->oob) == KOLO_OK) return;
    atomic_compare_exchange_strong(&child->stop.reason, &revoked, KOLO_STOP_NONE);
    kolo_error_clear();
}

kolo_status_t kolo_child_settle(kolo_body_t *child, uint64_t deadline_ns, bool *again, uint8_t *out)
{
    uint32_t lost = KOLO_STOP_LOST, revoked = KOLO_STOP_REVOKED;
    kolo_agreement_t a = {
        .key = 1, .out = out, .row_bytes = sizeof(outcome_t), .deadline_ns = deadline_ns, .what = "set-up"};
    outcome_t *rows = calloc((size_t)child->nranks, sizeof *rows);
    kolo_status_t status = rows ? kolo_body_setup(child) : kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for rows");
    KOLO_FAIL_POINT("comm.child.setup");
    *again = false;
    memset(out, 0, kolo_map_bytes(child->nranks));
    bool follows =
        status == KOLO_ERR_REVOKED && !kolo_inherit_setup_failed(child->oob); /* it is another rank's failure */
    if (status != KOLO_OK) kolo_news_revoke(child->oob); /* who waits for me in the set-up stops */
    if (!rows) return status;
    rows[child->rank].status = follows ? KOLO_IN_PROGRESS : (int32_t)status;
    if (status != KOLO_OK) snprintf(rows[child->rank].text, TEXT_BYTES, "%s", kolo_error_text());
    a.flags = status == KOLO_OK;
    a.rows = (uint8_t *)rows;
    status = kolo_agree_survivors(child->oob, &a);
    if (status == KOLO_OK && any_out(out, child->nranks)) {
        *again = true;
        status = tell_lost(child, out);
    } else if (status == KOLO_OK && !a.flags) {
        status = tell_outcome(child, rows);
    } else if (status == KOLO_OK) {
        forget_parent(child);
    }
    free(rows);
    if (!*again) return status;
    kolo_body_unset(child);
    if (!atomic_compare_exchange_strong(&child->stop.reason, &lost, KOLO_STOP_NONE))
        atomic_compare_exchange_strong(&child->stop.reason, &revoked, KOLO_STOP_NONE);
    return status;
}
