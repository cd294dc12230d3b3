/* SPDX-License-Identifier: Apache-2.0
 *
 * The callers of a root: who is let in, whether a check-in fits the ones before it, and what becomes of its
 * connection, which the root keeps as a lifeline if it can.
 */
#include "base/failpoint.h"
#include "base/log.h"
#include "meet/root.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Has the root speak before the first rank gives up by itself. */
static void root_set_deadline(root_t *root, int timeout_ms)
{
    int64_t left_ms = timeout_ms - KOLO_MIN(timeout_ms / 5, 4000);
    uint64_t deadline = kolo_now_ns() + (uint64_t)left_ms * KOLO_NS_PER_MS;
    if (timeout_ms == 0 || (root->deadline_ns != 0 && root->deadline_ns <= deadline)) return;
    root->deadline_ns = deadline;
    kolo_timer_restart(root->timer, left_ms);
}

/* ---- check-ins ---- */

static kolo_status_t root_adopt(root_t *root, const kolo_checkin_t *c)
{
    int first, count;
    kolo_root_share(c->nranks, c->nids, c->id_index, &first, &count);
    root->entries = calloc((size_t)count, sizeof(*root->entries));
    if (root->entries == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for %d ranks", count);
    root->first = first;
    root->count = count;
    root->nranks = c->nranks;
    root->nids = c->nids;
    root->index = c->id_index;
    root->first_rank = c->rank;
    return KOLO_OK;
}

/* Returns NULL if it fits to the first check-in, else what does not. */
static const char *root_mismatch(const root_t *root, const kolo_checkin_t *c, char *buf, size_t bytes)
{
    if (c->nranks != root->nranks)
        snprintf(buf, bytes, "rank %d says there are %d ranks, rank %d says %d", c->rank, c->nranks,
                 root->first_rank, root->nranks);
    else if (c->nids != root->nids || c->id_index != root->index)
        snprintf(buf, bytes,
                 "rank %d has %d ids and calls this root as number %d, rank %d has %d ids and number %d: "
                 "all ranks need the same list of ids",
                 c->rank, c->nids, c->id_index, root->first_rank, root->nids, root->index);
    else
        return NULL;
    return buf;
}

static void root_neighbour(root_t *root, const kolo_checkin_t *c)
{
    int expected = (root->first + root->count) % root->nranks;
    if (root->neighbour_seen && memcmp(&root->neighbour, &c->peer, sizeof(c->peer)) == 0) return; /* repeated */
    if (c->rank != expected || root->neighbour_seen) {
        kolo_root_fail(root, KOLO_ERR_MISMATCH,
                       "rank %d checked in as the neighbour of a share that ends before rank %d%s", c->rank,
                       expected, root->neighbour_seen ? " (twice)" : "");
        return;
    }
    root->neighbour_seen = true;
    root->neighbour = c->peer;
    kolo_root_tell_next(root, root->first + root->count - 1);
}

static void root_rank(root_t *root, const kolo_checkin_t *c)
{
    entry_t *entry = &root->entries[c->rank - root->first];
    char a[KOLO_ADDRESS_TEXT_BYTES], b[KOLO_ADDRESS_TEXT_BYTES];
    if (entry->step >= STEP_CHECKED_IN && memcmp(&entry->peer, &c->peer, sizeof(c->peer)) == 0)
        return; /* repeated */
    if (entry->step >= STEP_CHECKED_IN) {
        bool complete = root->seen == root->count;
        if (complete) { /* the job is fine; this one does not belong to it */
            kolo_reply_t reply = {.status = KOLO_ERR_INVALID_USAGE};
            snprintf(reply.text, sizeof(reply.text),
                     "all %d ranks of this id have checked in already, rank %d from "
                     "%s: %s",
                     root->nranks, c->rank, kolo_address_print(&entry->peer, a),
                     root->id.computed
                         ? "is this another job with the same MASTER_ADDR and MASTER_PORT (or Slurm job)? "
                           "Give each its own KOLO_JOB_NAME"
                         : "an id is good for one job, make a new one");
            kolo_root_call(root, c->rank, &c->root_only, false, &reply);
            return;
        }
        kolo_root_fail(
            root, KOLO_ERR_MISMATCH,
            "rank %d checked in twice, from %s and from %s: two processes have the same "
            "rank, or %s",
            kolo_root_shown(root, c->rank), kolo_address_print(&entry->peer, a), kolo_address_print(&c->peer, b),
            root->id.computed ? "two jobs the same MASTER_ADDR and MASTER_PORT (or Slurm job): give each its "
                                "own KOLO_JOB_NAME"
                              : "the id is used for two jobs");
        kolo_root_tell_failure(root, c->rank, &c->root_only, false);
        return;
    }
    entry->peer = c->peer;
    entry->root_only = c->root_only;
    entry->step = STEP_CHECKED_IN;
    root->seen++;
    kolo_root_show(root);
    if (root->failure != KOLO_OK) {
        kolo_root_tell_failure(root, c->rank, &c->root_only, true);
        return;
    }
    kolo_root_tell_next(root, c->rank);
    int before = (c->rank - 1 + root->nranks) % root->nranks;
    if (before != c->rank && before >= root->first && before < root->first + root->count)
        kolo_root_tell_next(root, before);
}

static void root_checkin(root_t *root, const kolo_checkin_t *c)
{
    char text[256];
    KOLO_FAIL_POINT("oob.root.checkin");
    if (root->nranks == 0 && root_adopt(root, c) != KOLO_OK) {
        kolo_root_fail(root, KOLO_ERR_NO_MEMORY, "the root: %s", kolo_error_text());
        return;
    }
    root_set_deadline(root, c->timeout_ms);
    const char *mismatch = root_mismatch(root, c, text, sizeof(text));
    bool mine = c->neighbour || (c->rank >= root->first && c->rank < root->first + root->count);
    if (mismatch == NULL && !mine) {
        snprintf(text, sizeof(text), "rank %d called the root of ranks %d-%d", c->rank, root->first,
                 root->first + root->count - 1);
        mismatch = text;
    }
    if (mismatch != NULL) {
        kolo_root_fail(root, KOLO_ERR_MISMATCH, "%s", mismatch);
        if (!c->neighbour) kolo_root_tell_failure(root, c->rank, &c->root_only, false);
        return;
    }
    if (c->neighbour)
        root_neighbour(root, c);
    else
        root_rank(root, c);
}

/* ---- listener ---- */

static kolo_auth_verdict_t root_admit(void *owner, const kolo_claim_t *claim, size_t *frame_bytes)
{
    root_t *root = owner;
    if (claim->purpose != KOLO_PURPOSE_CHECKIN || claim->to != KOLO_RANK_ROOT) return KOLO_VERDICT_REFUSED;
    if (!kolo_seal_fits(claim->security)) {
        kolo_root_fail(
            root, KOLO_ERR_MISMATCH,
            "rank %d has KOLO_TCP_SECURITY=%s, and the root, which another rank has started, %s; all ranks need "
            "the same value",
            kolo_root_shown(root, claim->from), kolo_seal_mode_name(claim->security),
            kolo_seal_mode_name(kolo_seal_offer()));
        return KOLO_VERDICT_REFUSED;
    }
    int i = claim->from - root->first;
    if (root->entries != NULL && i >= 0 && i < root->count && root->entries[i].step == STEP_NEVER)
        root->entries[i].step = STEP_PROVEN;
    *frame_bytes = KOLO_CHECKIN_BYTES;
    return KOLO_VERDICT_OK;
}

static void root_ended_unheard(void *arg, int rank, kolo_status_t status, const char *text)
{
    (void)arg, (void)rank, (void)status, (void)text;
}

/* Tells a caller that the job has failed, by it or before it came. It is called back, too, but that may be too
 * late: this process may be about to end, having heard of the failure first. */
static void root_last_word(root_t *root, int rank, kolo_socket_t socket)
{
    static const uint8_t kept = KOLO_FRAME_KEPT;
    kolo_lifeline_t *line = NULL;
    if (send(socket.fd, &kept, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1)
        kolo_socket_leave(&socket);
    else if (kolo_lifeline_open(root->progress, socket, rank, root_ended_unheard, NULL, &line) == KOLO_OK)
        kolo_lifeline_close(line, root->failure, root->failure_text);
}

/* Acknowledges the check-in, and keeps the connection of a rank that is to be told more. */
static void root_acknowledge(root_t *root, const kolo_checkin_t *c, kolo_socket_t socket)
{
    static const uint8_t acks[] = {KOLO_FRAME_ACK, KOLO_FRAME_KEPT};
    int i = c->rank - root->first;
    if (root->failure != KOLO_OK && !c->neighbour && kolo_lifeline_room()) {
        root_last_word(root, c->rank, socket);
        return;
    }
    bool mine = !c->neighbour && root->failure == KOLO_OK && i >= 0 && i < root->count;
    entry_t *entry = mine ? &root->entries[i] : NULL;
    bool keeps =
        mine && entry->line == NULL && memcmp(&entry->peer, &c->peer, sizeof(c->peer)) == 0 && kolo_lifeline_room();
    if (send(socket.fd, &acks[keeps], 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1 || !keeps)
        kolo_socket_leave(&socket);
    else if (kolo_lifeline_open(root->progress, socket, c->rank, kolo_root_line_ended, root, &entry->line) !=
             KOLO_OK)
        kolo_root_fail(root, KOLO_ERR_NO_MEMORY, "the root: %s", kolo_error_text());
}

static void root_accepted(void *owner, const kolo_claim_t *claim, kolo_socket_t socket, const uint8_t *frame)
{
    kolo_checkin_t checkin;
    const char *wrong = kolo_meet_checkin_decode(frame, KOLO_CHECKIN_BYTES, &checkin);
    if (wrong == NULL && checkin.rank != claim->from) wrong = "a check-in for another rank than its caller's";
    if (wrong != NULL) {
        kolo_link_count(KOLO_COUNT_FRAME);
        kolo_warn("oob", "the root refused %s (claimed rank %d)", wrong, claim->from);
        kolo_socket_leave(&socket);
        return;
    }
    root_checkin(owner, &checkin);
    root_acknowledge(owner, &checkin, socket);
}

static void root_refused(void *owner, const kolo_address_t *caller, kolo_count_t why)
{
    root_t *root = owner;
    char buf[KOLO_ADDRESS_TEXT_BYTES];
    root->refused++;
    snprintf(root->refused_text, sizeof(root->refused_text), "%llu, the last from %s (%s)",
             (unsigned long long)root->refused, kolo_address_print(caller, buf),
             why == KOLO_COUNT_AUTH ? "wrong secret" : "not one of ours");
}

const kolo_listener_ops_t kolo_root_ops = {
    .admit = root_admit, .accepted = root_accepted, .refused = root_refused, .keeps = true};
