/* SPDX-License-Identifier: Apache-2.0
 *
 * Commits and the loop around the program's function. See state.h.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/params.h"
#include "comm/comm.h"
#include "elastic/state.h"

#include <stdio.h>
#include <stdlib.h>

#define LISTEN_MS  100 /* how long rank 0 waits for a word before it looks after the others */
#define BARREN_MAX 10  /* losses without a commit in between after which a job is not getting anywhere */

enum { AT_COMMIT = 1, AT_END, AT_WAIT };

/* Runs one small all_reduce in which all ranks see that they are at the same point, and whether one of them has
 * heard of a plan: all hear of it here. */
static kolo_status_t agree(kolo_state_t s, uint64_t at, uint64_t number)
{
    bool heard = s->word.plan > s->plan;
    uint64_t key = heard ? (uint64_t)s->word.plan << 32 | (UINT32_MAX - (uint32_t)s->rank) : 0;
    uint64_t x[] = {key, at, ~at, number, ~number, ~(uint64_t)s->min};
    KOLO_TRY(kolo_call_all_reduce(KOLO_CALL_WORD_COMMIT, x, KOLO_COUNTOF(x), KOLO_UINT64, KOLO_MAX, s->comm));
    if (x[1] != ~x[2] || x[3] != ~x[4])
        return kolo_state_end_together(
            s, kolo_fail(KOLO_ERR_MISMATCH,
                         "state: the ranks are not at the same point: this one is at %s %llu, others are "
                         "elsewhere",
                         at == AT_COMMIT ? "commit" : "the end after commit", (unsigned long long)number));
    s->min = (int)~x[5];
    s->plan_source = x[0] ? (int)(UINT32_MAX - (uint32_t)x[0]) : -1;
    return KOLO_OK;
}

kolo_status_t kolo_state_commit(kolo_state_t s)
{
    KOLO_TRY(kolo_state_check(s, "state_commit"));
    if (!s->in_round || !s->comm)
        return kolo_fail(KOLO_ERR_INVALID_USAGE,
                         "state_commit: only from the function of kolo_state_run(), or between two calls of "
                         "kolo_state_next()");
    if (s->plan_source >= 0)
        return kolo_fail(
            KOLO_ERR_INVALID_USAGE,
            "state_commit: the last commit returned KOLO_IN_PROGRESS, which the function has to return");
    KOLO_TRY(kolo_state_listen(s, 0));
    KOLO_TRY(kolo_state_copy_out(s, &s->next));
    s->has_next = true;
    KOLO_TRY(agree(s, AT_COMMIT, s->number));
    kolo_state_promote(s);
    s->number++;
    s->barren = 0;
    return s->plan_source < 0 ? KOLO_OK : KOLO_IN_PROGRESS;
}

/* ---- the loop ---- */

/* Finishes where all say that all is done: a rank that misses this does its last steps again, alone if it must. Who
 * is lost from here on changes nothing, but what the ranks have called differently does. */
static kolo_status_t finish(kolo_state_t s)
{
    KOLO_TRY(agree(s, AT_END, s->number));
    s->plan_source = -1;
    s->running = false;
    kolo_status_t status = kolo_state_link_say(&s->link, "done");
    if (kolo_call_finalize(KOLO_CALL_WORD_COMMIT, s->comm) == KOLO_ERR_MISMATCH)
        status = kolo_fail_prefix(KOLO_ERR_MISMATCH, "state: ");
    kolo_comm_destroy(s->comm);
    s->comm = NULL;
    return status;
}

/* Ends here what is not a loss that could be mended. */
static kolo_status_t end_with_too_few(kolo_state_t s)
{
    return kolo_state_end_together(s, kolo_fail(KOLO_ERR_REMOTE,
                                                "state: %d rank%s left, %d are needed, and there is no launcher",
                                                s->nranks, s->nranks == 1 ? " is" : "s are", s->min));
}

/* Waits, where there are too few, until the launcher sends some, or says that these are enough. */
static kolo_status_t wait_for_more(kolo_state_t s)
{
    if (s->link.watch < 0) return end_with_too_few(s);
    KOLO_TRY(kolo_state_listen(s, s->rank == 0 && s->word.plan <= s->plan ? LISTEN_MS : 0));
    KOLO_TRY(agree(s, AT_WAIT, s->number));
    return s->plan_source < 0 ? KOLO_OK : KOLO_IN_PROGRESS;
}

/* Gives the function's own errors words, which they have only if a call of the library has failed. */
static kolo_status_t judge(kolo_state_t s, kolo_status_t status)
{
    if (status != KOLO_OK && status != KOLO_IN_PROGRESS && kolo_error_text()[0] == '\0')
        kolo_fail(status, "state: the function has returned \"%s\"", kolo_status_string(status));
    if (status == KOLO_OK && s->plan_source >= 0)
        return kolo_fail(KOLO_ERR_INVALID_USAGE,
                         "state: a commit returned KOLO_IN_PROGRESS, but the function has returned KOLO_OK");
    if (status == KOLO_IN_PROGRESS && s->plan_source < 0)
        return kolo_fail(KOLO_ERR_INVALID_USAGE,
                         "state: the function has returned KOLO_IN_PROGRESS, which no commit had said");
    return status == KOLO_OK ? finish(s) : status;
}

/* Ends the communicator, which tells the others; the words of the failure stay. */
static kolo_status_t give_up(kolo_state_t s, kolo_status_t status)
{
    char text[KOLO_ERROR_TEXT_BYTES];
    if (!s->comm) return status;
    snprintf(text, sizeof text, "%s", kolo_error_text());
    kolo_comm_abort(s->comm);
    s->comm = NULL;
    return kolo_fail(status, "%s", text);
}

/* Losses may come while one is being mended; each time the ranks are fewer. */
static kolo_status_t mend(kolo_state_t s, kolo_status_t status)
{
    while (kolo_state_is_loss(status)) {
        if (++s->barren > BARREN_MAX + s->nranks)
            return give_up(s, kolo_fail_prefix(status,
                                               "state: the ranks have changed %d times and nothing was committed",
                                               s->barren));
        kolo_info("state", "rank %d of %d goes on from commit %llu: %s", s->rank, s->nranks,
                  (unsigned long long)(s->number ? s->number - 1 : 0), kolo_error_text());
        status = kolo_state_mend(s);
    }
    return status;
}

/* Does what follows a round, or getting in, up to the next round or the end. */
static kolo_status_t advance(kolo_state_t s, kolo_status_t status)
{
    for (;;) {
        if (status == KOLO_IN_PROGRESS && s->plan_source >= 0) status = kolo_state_change(s);
        if (s->comm) status = mend(s, status);
        if (status != KOLO_OK || !s->running) return status;
        if (s->nranks >= s->min) {
            s->in_round = true;
            return KOLO_OK;
        }
        status = wait_for_more(s);
    }
}

/* Sets *again when a round begins. Else this is the end, whose words stay. */
static kolo_status_t step(kolo_state_t s, kolo_status_t result, int *again)
{
    bool had_round = s->in_round;
    s->in_round = false;
    kolo_status_t status = advance(s, had_round ? judge(s, result) : s->met);
    *again = s->in_round;
    if (s->in_round) {
        kolo_error_clear(); /* so that the round's own failure is told from an old one */
        return KOLO_OK;
    }
    s->running = false;
    kolo_state_link_close(&s->link);
    return give_up(s, status);
}

kolo_status_t kolo_state_enter(kolo_state_t s)
{
    KOLO_TRY(kolo_state_check(s, "state_enter"));
    if (s->entered) return kolo_fail(KOLO_ERR_INVALID_USAGE, "state_enter: a state runs once");
    KOLO_TRY(kolo_state_copies_open(s));
    s->entered = s->running = true;
    return s->met = kolo_state_get_in(s);
}

kolo_status_t kolo_state_next(kolo_state_t s, kolo_status_t result, int *again)
{
    if (again) *again = 0;
    KOLO_TRY(kolo_state_check(s, "state_next"));
    if (!again) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "state_next: again is NULL");
    if (!s->entered && result != KOLO_OK) return result; /* of kolo_state_enter(), whose words are there */
    if (!s->running)
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "state_next: %s",
                         s->entered ? "the loop has ended: *again was 0"
                                    : "kolo_state_enter() comes before the loop");
    if (s->calling)
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "state_next: not from the function of kolo_state_run()");
    return step(s, result, again);
}

kolo_status_t kolo_state_run(kolo_state_t s, kolo_status_t (*fn)(kolo_state_t state, void *arg), void *arg)
{
    int again;
    KOLO_TRY(kolo_state_check(s, "state_run"));
    if (!fn) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "state_run: the function is NULL");
    if (s->entered) return kolo_fail(KOLO_ERR_INVALID_USAGE, "state_run: a state runs once");
    kolo_status_t status = kolo_state_enter(s);
    if (!s->entered) return status;
    while ((status = step(s, status, &again)) == KOLO_OK && again) {
        s->calling = true;
        status = fn(s, arg);
        s->calling = false;
    }
    return status;
}
