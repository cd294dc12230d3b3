/* SPDX-License-Identifier: Apache-2.0
 *
 * How a communicator ends: finalize, where all meet; leave, where nobody does; destroy, abort.
 */
#include "base/failpoint.h"
#include "base/log.h"
#include "comm/call/call.h"
#include "comm/life/life.h"
#include "comm/tagged/tagged.h"
#include "comm/window/window.h"

#include <stdio.h>
#include <stdlib.h>

/* Shows the end to the other ranks as one more operation, which waits for all as a barrier does: who calls
 * something else is told. */
static void show_end(kolo_whole_t *whole, kolo_body_t *body)
{
    uint64_t word = kolo_signature_of_call(body->life.ends_as);
    kolo_device_show_end(body, word);
    kolo_board_publish(&body->track.board, body->track.operation, word); /* drained: nothing runs beside it */
    kolo_record_begin_whole(body, body->track.operation, word);
    kolo_whole_name(whole, body, body->life.ends_as, body->track.operation++);
    kolo_diag_look_left(body->oob); /* who has left does not come to it */
}

/* ---- have all called the same? ---- */

#define DIFFERENCE_MS 2000 /* for the ranks to find out where they have parted */
#define ASK_EACH_MS   50

/* Of all operations of a rank, as on its board (decision 0054). */
typedef struct {
    uint64_t last, sum;
} calls_t;

/* Returns what this rank has called; none for kernels, which are not counted alike where only some ranks have
 * captured them into a graph. */
static calls_t my_calls(const kolo_body_t *body)
{
    bool kernels = atomic_load(&body->gpu.state) && !body->gpu.exec->by_host;
    uint64_t last = kolo_board_last(&body->track.board);
    if (kernels || body->levels.inside || last == KOLO_BOARD_NONE) return (calls_t){0, 0};
    return (calls_t){last, atomic_load(&body->track.board.sums[last % KOLO_BOARD_SUMS])};
}

static bool alike(const calls_t *a, const calls_t *b)
{
    return a->last == b->last && a->sum == b->sum;
}

static int first_unlike(const calls_t *all, int nranks, int rank)
{
    int r = 0;
    while (r < nranks && alike(&all[r], &all[rank])) r++;
    return r;
}

/* Returns a rank that has called what most have, -1 if there is no majority. */
static int find_usual(const calls_t *all, int nranks)
{
    int usual = 0, votes = 0, same = 0;
    for (int r = 0; r < nranks; r++) {
        if (votes == 0) usual = r;
        votes += alike(&all[r], &all[usual]) ? 1 : -1;
    }
    for (int r = 0; r < nranks; r++) same += alike(&all[r], &all[usual]);
    return 2 * same > nranks ? usual : -1;
}

/* Tells all ranks, which are here and know that `odd` has called something else than `usual` (-1: than rank 0),
 * what it is: the first shows that one its sums, which finds the operation. */
static kolo_status_t tell_difference(kolo_body_t *body, int usual, int odd)
{
    char seen[KOLO_ERROR_TEXT_BYTES], why[8];
    uint64_t end = kolo_deadline_ms(DIFFERENCE_MS);
    while (kolo_oob_check_peer(body->oob, body->rank, "comparing calls") == KOLO_OK &&
           !atomic_load(&body->stop.abort) && kolo_now_ns() < end) {
        if (body->rank == odd) kolo_diag_ask(body->oob, KOLO_MAX(usual, 0), kolo_board_last(&body->track.board));
        (void)kolo_member_first_lost(body->oob, ASK_EACH_MS, why, sizeof why);
    }
    if (kolo_diag_difference(body->oob) != KOLO_ERR_MISMATCH)
        (void)kolo_fail(KOLO_ERR_MISMATCH, "which operation is not known");
    snprintf(seen, sizeof seen, "%s", kolo_error_text());
    return kolo_fail(KOLO_ERR_MISMATCH,
                     "%s rank %d: rank %d differs from %s in what it has called, so results may be wrong: %.600s",
                     body->name, body->rank, odd, usual >= 0 ? "most others" : "rank 0", seen);
}

/* Waits for all ranks and compares what they have called: where a broadcast with another root fits into the queues
 * nobody waits, and nobody would be told. */
static kolo_status_t meet_all(kolo_body_t *body)
{
    int n = body->nranks;
    calls_t *all = malloc((size_t)n * sizeof *all);
    if (!all) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %d ranks", n);
    all[body->rank] = my_calls(body);
    kolo_status_t status = kolo_oob_all_gather(body->oob, all, sizeof *all);
    int usual = status == KOLO_OK ? find_usual(all, n) : -1;
    int odd = status == KOLO_OK ? first_unlike(all, n, KOLO_MAX(usual, 0)) : n;
    free(all);
    if (status != KOLO_OK || odd == n) return status;
    (void)kolo_oob_barrier(body->oob); /* all know who it is before anybody is told what it is */
    return tell_difference(body, usual, odd);
}

/* ---- leaving ---- */

#define LEFT_MS 1000 /* for one that has left before to say in what this rank differs from it */

/* Compares with those that have left before; the others will compare with this one. */
static kolo_status_t compare_with_left(kolo_body_t *body)
{
    char why[8];
    uint64_t end = kolo_deadline_ms(LEFT_MS);
    while (!kolo_diag_compare_left(body->oob) && !atomic_load(&body->stop.abort) && kolo_now_ns() < end)
        (void)kolo_member_first_lost(body->oob, ASK_EACH_MS, why, sizeof why);
    kolo_status_t status = kolo_diag_difference(body->oob);
    return status == KOLO_ERR_MISMATCH ? status : KOLO_OK; /* this rank is done, whoever has failed meanwhile */
}

/* Puts a number behind the last on the board for leaving, which has none, so that who asks about it learns that
 * nothing comes. */
static void show_leaving(kolo_body_t *body)
{
    uint64_t word = kolo_signature_of_call(KOLO_CALL_WORD_LEAVE);
    calls_t mine = my_calls(body);
    bool counts = !body->levels.inside && !(atomic_load(&body->gpu.state) && !body->gpu.exec->by_host);
    kolo_diag_leave_at(body->oob, mine.sum || mine.last ? mine.last : KOLO_BOARD_NONE, mine.sum, counts);
    kolo_device_show_end(body, word);
    kolo_board_publish(&body->track.board, body->track.operation, word);
    kolo_record_begin_whole(body, body->track.operation++, word);
    kolo_record_end(&body->track.record, KOLO_OK);
}

/* Fails the end. Where the communicator has failed before for another reason, and this end only because of that,
 * the reason is what its caller is told. */
static kolo_status_t fail_end(kolo_body_t *body, kolo_status_t status, const char *what)
{
    char own[KOLO_ERROR_TEXT_BYTES], text[KOLO_ERROR_TEXT_BYTES];
    snprintf(own, sizeof own, "%s", kolo_error_text());
    kolo_body_fail(body, status);
    kolo_status_t first = kolo_handle_error(body->handle, text, sizeof text);
    bool follows = status == KOLO_ERR_REMOTE || status == KOLO_ERR_ABORTED || status == KOLO_ERR_TIMEOUT;
    if (!follows || first == KOLO_OK || first == status) return kolo_fail(status, "%s", own);
    return kolo_fail(first, "%s: %.900s", what, text);
}

/* Takes leave: a program may end now, as after MPI_Finalize. */
static void take_leave(kolo_body_t *body)
{
    if (body->levels.inside) kolo_oob_take_leave(body->levels.inside->oob);
    if (body->levels.across) kolo_oob_take_leave(body->levels.across->oob);
    kolo_oob_take_leave(body->oob);
}

static kolo_status_t finalize(kolo_body_t *body)
{
    kolo_comm_t h = body->handle;
    int finalizing = KOLO_COMM_FINALIZING;
    KOLO_FAIL_POINT("comm.finalize.start");
    KOLO_TRY(kolo_handle_quiet(h, &body->stop.abort, false));
    int state = atomic_load(&h->state);
    if (state != KOLO_COMM_FINALIZING) return kolo_handle_refuse(h, state); /* a queued operation failed */
    kolo_status_t status = kolo_lost_ends(body, kolo_device_drain(body));
    if (status == KOLO_OK) {
        kolo_whole_t whole;
        show_end(&whole, body);
        status = meet_all(body);
        kolo_whole_end(&whole, status);
        if (status != KOLO_OK) kolo_fail_prefix(status, "%s: ", kolo_plan_call_name(body->life.ends_as));
    }
    KOLO_FAIL_POINT("comm.finalize.met");
    if (status == KOLO_OK) take_leave(body);
    if (status == KOLO_OK)
        atomic_compare_exchange_strong(&h->state, &finalizing, KOLO_COMM_FINALIZED);
    else
        status = fail_end(body, status, kolo_plan_call_name(body->life.ends_as));
    return status;
}

static kolo_status_t leave(kolo_body_t *body)
{
    kolo_comm_t h = body->handle;
    int finalizing = KOLO_COMM_FINALIZING;
    KOLO_FAIL_POINT("comm.leave.start");
    KOLO_TRY(kolo_handle_quiet(h, &body->stop.abort, false));
    int state = atomic_load(&h->state);
    if (state != KOLO_COMM_FINALIZING) return kolo_handle_refuse(h, state);
    kolo_status_t status = kolo_lost_ends(body, kolo_device_drain(body));
    if (status == KOLO_OK) status = compare_with_left(body);
    if (status != KOLO_OK) {
        kolo_fail_prefix(status, "comm_leave: %s rank %d: ", body->name, body->rank);
        return fail_end(body, status, "comm_leave");
    }
    show_leaving(body);
    KOLO_FAIL_POINT("comm.leave.told");
    kolo_tagged_leave(body);
    take_leave(body);
    body->life.went = true;
    atomic_compare_exchange_strong(&h->state, &finalizing, KOLO_COMM_FINALIZED);
    return KOLO_OK;
}

static void *finalize_in_background(void *arg)
{
    kolo_body_t *body = arg;
    kolo_comm_t h = body->handle;
    finalize(body);
    kolo_handle_leave(h);
    return NULL;
}

static void *leave_in_background(void *arg)
{
    kolo_body_t *body = arg;
    kolo_comm_t h = body->handle;
    leave(body);
    kolo_handle_leave(h);
    return NULL;
}

/* Ends it as a visitor: an abort on another thread ends the wait here and frees nothing before we have left. */
static kolo_status_t visit_end(kolo_body_t *body, bool meet, bool here)
{
    kolo_comm_t h = body->handle;
    int state = KOLO_COMM_READY;
    /* what was queued before still runs; only this thread draws tickets */
    if (atomic_load(&h->state) == state) atomic_store(&h->last_ticket, atomic_load(&h->tickets));
    if (!atomic_compare_exchange_strong(&h->state, &state, KOLO_COMM_FINALIZING)) {
        if (!meet && state == KOLO_COMM_FAILED && atomic_load(&h->quiet))
            return kolo_lost_ends(body, kolo_device_drain(body)); /* what still runs may need who has gone */
        return kolo_fail_prefix(kolo_handle_refuse(h, state),
                                "%s: ", meet ? kolo_plan_call_name(body->life.ends_as) : "comm_leave");
    }
    if (here) return meet ? finalize(body) : leave(body);
    kolo_status_t status = kolo_body_background(body, meet ? finalize_in_background : leave_in_background, body);
    return status == KOLO_OK ? KOLO_IN_PROGRESS : kolo_body_fail(body, status);
}

/* Begins the end. in_group: in the background, at the group's end. */
static kolo_status_t begin_end(kolo_comm_t comm, bool meet, bool in_group)
{
    kolo_status_t status;
    kolo_body_t *body = kolo_handle_visit(comm, meet ? "comm_finalize" : "comm_leave");
    if (!body) return KOLO_ERR_INVALID_ARGUMENT;
    kolo_windows_t *windows = atomic_load(&body->windows);
    size_t requests = kolo_tagged_open(body);
    if (requests > 0)
        status = kolo_fail(KOLO_ERR_INVALID_USAGE,
                           "%s: %s rank %d has %zu request%s not complete: kolo_request_wait() or "
                           "kolo_request_cancel() comes first",
                           meet ? "comm_finalize" : "comm_leave", comm->name, comm->rank, requests,
                           requests == 1 ? " that is" : "s that are");
    else if (!meet && windows && kolo_windows_any(windows))
        status = kolo_fail(KOLO_ERR_INVALID_USAGE,
                           "comm_leave: %s rank %d has windows, into which others may still write: "
                           "kolo_window_deregister() comes first",
                           comm->name, comm->rank);
    else
        status = visit_end(body, meet, body->life.blocking && !in_group);
    kolo_handle_leave(comm);
    return status;
}

static kolo_status_t begin_finalize(kolo_comm_t comm)
{
    return begin_end(comm, true, true);
}

static kolo_status_t begin_leave(kolo_comm_t comm)
{
    return begin_end(comm, false, true);
}

static kolo_status_t end_comm(kolo_comm_t comm, bool meet, const char *what)
{
    if (!comm) return KOLO_OK;
    KOLO_TRY(kolo_handle_check(comm, what));
    if (comm->aside)
        return kolo_fail(KOLO_ERR_INVALID_USAGE,
                         "%s: %s rank %d has messages that nobody has waited for: kolo_pending_wait() comes first",
                         what, comm->name, comm->rank);
    if (kolo_group_open()) return kolo_group_add_life(comm, KOLO_GROUP_ENDS, meet ? begin_finalize : begin_leave);
    return begin_end(comm, meet, false);
}

kolo_status_t kolo_comm_finalize(kolo_comm_t comm)
{
    return end_comm(comm, true, "comm_finalize");
}

kolo_status_t kolo_call_finalize(kolo_call_word_t as, kolo_comm_t comm)
{
    kolo_body_t *body = kolo_handle_visit(comm, kolo_plan_call_name(as)); /* another thread may abort it */
    if (!body) return KOLO_ERR_INVALID_ARGUMENT;
    body->life.ends_as = as;
    kolo_handle_leave(comm);
    return end_comm(comm, true, kolo_plan_call_name(as));
}

kolo_status_t kolo_comm_leave(kolo_comm_t comm)
{
    return end_comm(comm, false, "comm_leave");
}

static void free_body(kolo_body_t *body)
{
    if (body->life.went)
        kolo_body_linger(body);
    else
        kolo_body_free(body);
}

kolo_status_t kolo_comm_destroy(kolo_comm_t comm)
{
    if (!comm) return KOLO_OK;
    KOLO_TRY(kolo_handle_check(comm, "comm_destroy"));
    if (kolo_group_open()) return kolo_group_add_life(comm, KOLO_GROUP_DESTROYS, kolo_comm_destroy);
    /* a start or first use that nobody wants any more must not run to its time limit */
    int state = atomic_load(&comm->state);
    bool unwanted = state == KOLO_COMM_STARTING || state == KOLO_COMM_CONNECTING;
    KOLO_TRY(kolo_handle_retire(comm, "comm_destroy", unwanted));
    kolo_requests_drop(comm);
    free_body(comm->body);
    return KOLO_OK;
}

kolo_status_t kolo_comm_abort(kolo_comm_t comm)
{
    if (!comm) return KOLO_OK;
    KOLO_FAIL_POINT("comm.abort");
    KOLO_TRY(kolo_handle_retire(comm, "comm_abort", true));
    kolo_requests_drop(comm);
    free_body(comm->body);
    return KOLO_OK;
}
