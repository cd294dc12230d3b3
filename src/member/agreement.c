/* SPDX-License-Identifier: Apache-2.0
 *
 * A uniform agreement among the ranks that are left: who is out, the AND of a flag word, and a row of each rank
 * that is not. Every rank that returns KOLO_OK has the same result, whoever dies meanwhile and in whatever order
 * the news comes.
 *
 * The coordinator is the lowest rank that is not known to be out; its rank is the ballot. A member REPORTs to it
 * what it knows and what it has accepted before, and from then on ignores lower ballots. The coordinator waits for
 * a report of each rank that it does not know to be out. It PROPOSEs the accepted value of the highest ballot that
 * a report brought, or, if there is none, the union of what was reported; it DECIDEs when every rank that it does
 * not know to be out has ACCEPTed that. When it is lost the next one takes over, and CALLs those that do not know
 * yet.
 *
 * Why that is uniform: ballot b decides v only when all ranks but those that b knows to be out have accepted v. A
 * later coordinator waits for all ranks that it does not know to be out, so each report that it gets is of one that
 * accepted v under b, or under a ballot in between, which proposed v for the same reason; it proposes v. A rank
 * that b wrongly held to be out learns it when it sends something, and gets no result. A dying rank loses nothing:
 * all have v before the first one returns. The number of messages is linear in the ranks; no rank forwards a
 * decision, because progress threads answer ranks that still ask.
 *
 * Waits here do not end when a rank is lost, unlike all others of this room: a loss is what this is about.
 */
#include "base/bytes.h"
#include "base/failpoint.h"
#include "base/text/plain.h"
#include "member/agree_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALL_MS   20  /* the lowest rank of all calls those that have not reported by then */
#define CANCEL_MS 50  /* how often the caller's flag is looked at: it opens no gate of ours */
#define GRACE_MS  500 /* the coordinator gives up first, and says whom it has missed */

/* ---- the coordinator ---- */

static void build_value(kolo_agree_run_t *x, kolo_status_t status, int about)
{
    uint8_t *rows = x->value + KOLO_BALLOT_VALUE_BYTES + x->map_bytes;
    size_t row = x->a->row_bytes;
    memset(x->value, 0, x->value_bytes);
    kolo_put32(x->value, (uint32_t)status);
    kolo_put32(x->value + 4, (uint32_t)about);
    kolo_put32(x->value + 8, x->flags);
    memcpy(x->value + KOLO_BALLOT_VALUE_BYTES, x->out, x->map_bytes);
    for (int r = 0; r < x->oob->nranks && status == KOLO_OK; r++)
        if (!kolo_map_has(x->out, r)) memcpy(rows + (size_t)r * row, x->rows + (size_t)r * row, row);
}

/* Sends to those who have reported. */
static void send_all(kolo_agree_run_t *x, kolo_ballot_type_t type)
{
    for (int r = 0; r < x->oob->nranks; r++) {
        if (r == x->oob->rank || !x->reported[r] || kolo_map_has(x->out, r)) continue;
        kolo_agree_send_value(x, type, r);
        if (type == KOLO_BALLOT_PROPOSE)
            KOLO_FAIL_POINT("oob.agree.propose");
        else
            KOLO_FAIL_POINT("oob.agree.decide");
    }
}

static bool all_have(const kolo_agree_run_t *x, const bool *done)
{
    for (int r = 0; r < x->oob->nranks; r++)
        if (!done[r] && !kolo_map_has(x->out, r)) return false;
    return true;
}

static void call_missing(kolo_agree_run_t *x)
{
    kolo_ballot_t b = kolo_agree_ballot(x, KOLO_BALLOT_CALL, x->oob->rank);
    for (int r = 0; r < x->oob->nranks; r++)
        if (!x->reported[r] && !kolo_map_has(x->out, r)) kolo_agree_post(x, r, &b);
    x->repeat_ns = kolo_deadline_ms(KOLO_AGREE_REPEAT_MS);
}

static void decide_without_result(kolo_agree_run_t *x, kolo_status_t status, int about)
{
    build_value(x, status, about);
    send_all(x, KOLO_BALLOT_DECIDE);
    if (status == KOLO_ERR_MISMATCH && !x->reported[about]) kolo_agree_refuse(x, about, status, x->oob->rank);
    x->decided = true;
}

static void coordinate(kolo_agree_run_t *x)
{
    int me = x->oob->rank;
    if (x->promised != me) {
        x->took_over = x->promised >= 0;
        x->promised = me;
        x->reported[me] = true;
        x->repeat_ns = kolo_deadline_ms(CALL_MS);
        if (x->took_over) call_missing(x);
    }
    if (x->bad != KOLO_OK) {
        decide_without_result(x, x->bad, x->bad_about);
        return;
    }
    if (!x->proposed && all_have(x, x->reported)) {
        if (x->accepted_ballot < 0) build_value(x, KOLO_OK, 0);
        x->accepted_ballot = me;
        x->accepted[me] = x->proposed = true;
        send_all(x, KOLO_BALLOT_PROPOSE);
    }
    if (x->proposed && all_have(x, x->accepted)) {
        KOLO_FAIL_POINT("oob.agree.decided");
        send_all(x, KOLO_BALLOT_DECIDE);
        x->decided = true;
    }
}

/* ---- one rank's part ---- */

static void step(kolo_agree_run_t *x)
{
    kolo_agree_take_messages(x);
    if (x->decided || x->failed != KOLO_OK) return;
    kolo_agree_learn_losses(x, false);
    int c = kolo_agree_lowest(x), me = x->oob->rank;
    if (kolo_map_has(x->out, me))
        kolo_agree_fail_apart(x, c < x->oob->nranks ? c : me);
    else if (c == me)
        coordinate(x);
    else if (x->promised != c)
        kolo_agree_report(x, c);
    kolo_agree_send_unsent(x);
}

static bool something_new(kolo_oob_t *oob, void *arg)
{
    kolo_agree_run_t *x = arg;
    return kolo_agree_has_message(x) || kolo_life(oob)->partition || kolo_agree_learn_losses(x, true) ||
           kolo_agree_can_send(x);
}

/* Writes who is missing; *first is one of them. */
static void name_missing(const kolo_agree_run_t *x, int *first, char *buf, size_t bytes)
{
    int n = 0, at = 0, missing = 0;
    const bool *done = x->proposed ? x->accepted : x->reported;
    for (int r = 0; r < x->oob->nranks; r++) missing += !done[r] && !kolo_map_has(x->out, r);
    buf[0] = '\0';
    for (int r = 0; r < x->oob->nranks; r++) {
        if (done[r] || kolo_map_has(x->out, r)) continue;
        if (n == 0) *first = r;
        if (n++ < 8 && (size_t)at < bytes)
            at += snprintf(buf + at, bytes - (size_t)at, "%s%d",
                           n > 1         ? ", "
                           : missing > 1 ? "ranks "
                                         : "rank ",
                           r);
    }
    if (n > 8 && (size_t)at < bytes) snprintf(buf + at, bytes - (size_t)at, " and %d more", n - 8);
}

static void describe(void *arg, char *buf, size_t bytes)
{
    kolo_agree_run_t *x = arg;
    char missing[128];
    int first = 0;
    pthread_mutex_lock(&x->oob->lock);
    int c = kolo_agree_lowest(x);
    if (c == x->oob->rank) {
        name_missing(x, &first, missing, sizeof(missing));
        snprintf(buf, bytes, "%s to come to %s (%s, rank %d)", missing, x->a->what, x->oob->name, x->oob->rank);
    } else {
        snprintf(buf, bytes, "rank %d to bring the ranks together in %s (%s, rank %d)", c, x->a->what, x->oob->name,
                 x->oob->rank);
    }
    pthread_mutex_unlock(&x->oob->lock);
}

static void say_again(kolo_agree_run_t *x)
{
    if (kolo_agree_lowest(x) != x->oob->rank)
        kolo_agree_report(x, kolo_agree_lowest(x));
    else if (!x->proposed)
        call_missing(x);
    else
        x->repeat_ns = kolo_deadline_ms(KOLO_AGREE_REPEAT_MS); /* members ask again themselves */
}

static kolo_status_t time_out(kolo_agree_run_t *x)
{
    char missing[128];
    int first = 0;
    if (kolo_agree_lowest(x) != x->oob->rank)
        return kolo_fail(KOLO_ERR_TIMEOUT,
                         "%s: rank %d waited too long for rank %d, which leads the agreement in %s", x->oob->name,
                         x->oob->rank, kolo_agree_lowest(x), x->a->what);
    name_missing(x, &first, missing, sizeof(missing));
    decide_without_result(x, KOLO_ERR_TIMEOUT, first);
    return kolo_fail(KOLO_ERR_TIMEOUT, "%s: rank %d waited too long for %s, which did not reach %s", x->oob->name,
                     x->oob->rank, missing, x->a->what);
}

static kolo_status_t run(kolo_agree_run_t *x)
{
    kolo_oob_t *oob = x->oob;
    for (;;) {
        if (kolo_life(oob)->partition) /* before anything else: alone it would agree with itself */
            return kolo_fail(KOLO_ERR_PARTITION, "%s: rank %d was in %s when it was cut off: %s", oob->name,
                             oob->rank, x->a->what, kolo_life(oob)->partition_why);
        step(x);
        if (x->failed != KOLO_OK) return x->failed;
        if (x->decided) return KOLO_OK;
        uint64_t mine =
            kolo_agree_lowest(x) == oob->rank ? x->deadline_ns : x->deadline_ns + GRACE_MS * KOLO_NS_PER_MS;
        uint64_t until = KOLO_MIN(mine, x->repeat_ns);
        if (x->a->cancel != NULL) {
            if (atomic_load(x->a->cancel) != 0)
                return kolo_fail(KOLO_ERR_ABORTED, "%s: rank %d was in %s when that was aborted", oob->name,
                                 oob->rank, x->a->what);
            until = KOLO_MIN(until, kolo_deadline_ms(CANCEL_MS));
        }
        kolo_status_t status = kolo_oob_await(oob, something_new, x, until, describe, x);
        if (status != KOLO_OK && status != KOLO_ERR_TIMEOUT) return status;
        uint64_t now = kolo_now_ns();
        if (status == KOLO_OK) continue;
        if (now >= mine) return time_out(x);
        if (now >= x->repeat_ns) say_again(x);
    }
}

/* ---- afterwards ---- */

/* Adds why a rank gives up in the place of the rows, as far as there is room. Who is aborted mostly is so because
 * its program has seen a rank fail. */
static void add_words(kolo_agree_run_t *x)
{
    const kolo_oob_t *oob = x->oob;
    size_t room = (size_t)oob->nranks * x->a->row_bytes;
    char *at = (char *)x->value + KOLO_BALLOT_VALUE_BYTES + x->map_bytes, lost[160] = "";
    const char *why = oob->reason[0] != '\0' ? oob->reason : kolo_error_text();
    if (kolo_life(oob)->lost >= 0)
        snprintf(lost, sizeof(lost), "rank %d was lost: %.120s", kolo_life(oob)->lost, kolo_life(oob)->lost_why);
    const char *before = lost[0] != '\0' ? lost : kolo_inherited(oob)->word;
    if (room > 0) snprintf(at, room, "%s%s%s", before, before[0] != '\0' ? "; then " : "", why);
}

/* Reads what another rank has said in that place: bytes from outside. */
static void get_words(const kolo_agree_run_t *x, char *words, size_t bytes)
{
    const uint8_t *at = x->value + KOLO_BALLOT_VALUE_BYTES + x->map_bytes;
    kolo_plain_copy(words, bytes, at, (size_t)x->oob->nranks * x->a->row_bytes);
}

/* Keeps the decision, for the progress thread to answer with from here on; what has come and was not looked at is
 * answered now. */
static void remember(kolo_agree_run_t *x, kolo_status_t status)
{
    kolo_oob_t *oob = x->oob;
    kolo_decision_t *d = &x->series->decisions[x->series->begun % KOLO_COUNTOF(x->series->decisions)];
    if (!x->decided) {
        build_value(x, status, oob->rank);
        if (status != KOLO_OK) add_words(x);
    }
    kolo_ballot_t b = kolo_agree_ballot(x, KOLO_BALLOT_DECIDE, oob->rank);
    b.value = x->value;
    free(d->bytes);
    d->length = kolo_ballot_bytes(&b, oob->nranks);
    d->bytes = malloc(d->length); /* without memory nobody is answered: they run into their deadline */
    if (d->bytes != NULL) kolo_ballot_encode(&b, oob->nranks, d->bytes);
    x->series->ended = x->series->begun;
    for (kolo_inbound_t *in = oob->early, *next; in != NULL; in = next) {
        next = in->next;
        if (in->kind != KOLO_FRAME_AGREE || !in->done) continue;
        in->status = KOLO_OK; /* the next agreement looks at it afresh */
        kolo_agree_arrived(oob, in);
    }
}

static kolo_status_t take_result(kolo_agree_run_t *x)
{
    kolo_oob_t *oob = x->oob;
    kolo_agreement_t *a = x->a;
    kolo_status_t status = (kolo_status_t)kolo_get32(x->value);
    int about = (int)kolo_get32(x->value + 4);
    if (status == KOLO_ERR_MISMATCH) {
        kolo_agree_fail_mismatch(x, about);
        return KOLO_ERR_MISMATCH;
    }
    if (status != KOLO_OK) {
        char words[KOLO_WORDS_FRAME_MAX + 1];
        get_words(x, words, sizeof(words));
        return kolo_fail(status, "%s: rank %d, %s: rank %d %s%s%s", oob->name, oob->rank, a->what, about,
                         status == KOLO_ERR_TIMEOUT ? "has not come in time" : "gave up",
                         words[0] != '\0' ? ": " : "", words);
    }
    const uint8_t *out = x->value + KOLO_BALLOT_VALUE_BYTES;
    if (kolo_map_has(out, oob->rank)) {
        kolo_agree_fail_apart(x, about);
        return KOLO_ERR_PARTITION;
    }
    memcpy(a->out, out, x->map_bytes);
    a->flags = kolo_get32(x->value + 8);
    if (a->row_bytes > 0) memcpy(a->rows, out + x->map_bytes, (size_t)oob->nranks * a->row_bytes);
    return KOLO_OK;
}

static void free_run(kolo_agree_run_t *x)
{
    for (kolo_agree_post_t *p = x->unsent, *next; p != NULL; p = next) {
        next = p->next;
        free(p);
    }
    free(x->out);
    free(x->reported);
    free(x->accepted);
    free(x->rows);
    free(x->value);
}

kolo_status_t kolo_agree_survivors(kolo_oob_t *oob, kolo_agreement_t *a)
{
    pthread_mutex_lock(&oob->lock);
    kolo_series_t *series = kolo_agree_series(oob, a->series << KOLO_SERIES_SHIFT, true);
    pthread_mutex_unlock(&oob->lock);
    if (series == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "%s: no memory to agree", oob->name);
    size_t n = (size_t)oob->nranks, map = kolo_map_bytes(oob->nranks);
    kolo_agree_run_t x = {.oob = oob,
                          .a = a,
                          .series = series,
                          .deadline_ns = kolo_oob_deadline(oob, a->deadline_ns),
                          .map_bytes = map,
                          .value_bytes = kolo_ballot_value_bytes(oob->nranks, a->row_bytes),
                          .out = calloc(1, map),
                          .reported = calloc(n, sizeof(bool)),
                          .accepted = calloc(n, sizeof(bool)),
                          .rows = calloc(n, a->row_bytes + 1),
                          .flags = a->flags,
                          .promised = -1,
                          .accepted_ballot = -1};
    x.unsent_tail = &x.unsent;
    x.value = calloc(1, x.value_bytes);
    if (x.out == NULL || x.reported == NULL || x.accepted == NULL || x.rows == NULL || x.value == NULL ||
        2 * x.value_bytes + n > KOLO_OOB_MESSAGE_MAX) {
        free_run(&x);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "%s: no room for rows of %zu bytes of %zu ranks", oob->name,
                         a->row_bytes, n);
    }
    memcpy(x.out, a->out, map);
    if (a->row_bytes > 0)
        memcpy(x.rows + (size_t)oob->rank * a->row_bytes, a->rows + (size_t)oob->rank * a->row_bytes, a->row_bytes);
    pthread_mutex_lock(&oob->lock);
    x.tag = series->id | ++series->begun;
    kolo_status_t status = run(&x);
    remember(&x, status);
    if (status == KOLO_OK) status = take_result(&x);
    if (status == KOLO_OK) kolo_error_clear(); /* saying it again leaves words behind */
    pthread_mutex_unlock(&oob->lock);
    free_run(&x);
    return status;
}
