/* SPDX-License-Identifier: Apache-2.0
 *
 * See verdict.h. The oldest operation in which somebody waits is the one to look at: who has not come to it, or
 * came to something else, keeps those inside waiting. Sends and receives have no number that all share: of them it
 * is said who waits for whom, and whether that goes round in a circle.
 */
#include "diag/verdict_parts.h"

#include "base/clock.h"
#include "plan/plan.h"

#include <inttypes.h>

/* ---- findings; each ends its sentences itself ---- */

static void tell_stuck(kolo_verdict_t *v)
{
    uint64_t age = KOLO_AGE_UNKNOWN;
    for (int i = 0; i < v->count; i++) {
        const kolo_verdict_op_t *op = kolo_verdict_coll(&v->ranks[i], v->stuck);
        if (op && kolo_verdict_op_runs(op) && op->age_ns != KOLO_AGE_UNKNOWN &&
            (age == KOLO_AGE_UNKNOWN || op->age_ns > age))
            age = op->age_ns;
    }
    kolo_verdict_op_t op = {.number = v->stuck, .word = v->word};
    int n = kolo_verdict_say_ranks(v, KOLO_POSITION_INSIDE);
    if (n > 0) {
        kolo_verdict_say(v, n == 1 ? " has been in " : " have been in ");
        kolo_verdict_say_op(v, &op);
        kolo_verdict_say_age(v, " for ", age, "");
        kolo_verdict_say(v, ".\n");
    }
    if (kolo_verdict_say_ranks(v, KOLO_POSITION_FAILED) > 0) {
        kolo_verdict_say(v, " failed in ");
        kolo_verdict_say_op(v, &op);
        kolo_verdict_say(v, ".\n");
    }
}

/* Tells what operations on a device wait for: there it is known for whom. */
static void tell_device_waits(kolo_verdict_t *v)
{
    int n = 0;
    for (int i = 0; i < v->count; i++) {
        const kolo_verdict_rank_t *r = &v->ranks[i];
        const kolo_record_waits_t *w = &r->waits;
        if (r->presence != KOLO_RANK_HEARD || w->count == 0 || ++n > KOLO_VERDICT_NAMED) continue;
        kolo_verdict_op_t op = {.number = w->number, .word = w->word};
        bool message = kolo_signature_fields(w->word).coll == KOLO_COLL_P2P;
        op.kind = message ? KOLO_RECORD_RECV : KOLO_RECORD_COLL;
        kolo_verdict_say(v, "rank %d, in ", r->rank);
        kolo_verdict_say_op(v, &op);
        kolo_verdict_say(v, ", waits on its GPU for ");
        for (uint32_t k = 0; k < w->count && k < KOLO_RECORD_WAITS; k++)
            kolo_verdict_say(v, "%s%s rank %d", k ? ", " : "", w->on[k].room ? "room at" : "data from",
                             w->on[k].rank);
        kolo_verdict_say(v, " (block %u, step %u).\n", w->on[0].block, w->on[0].step);
    }
}

static int tell_each(kolo_verdict_t *v, kolo_position_t which, int most)
{
    int n = 0;
    for (int i = 0; i < v->count; i++) {
        const kolo_verdict_rank_t *r = &v->ranks[i];
        if (kolo_verdict_position(v, r) != which || ++n > most) continue;
        kolo_verdict_say(v, "rank %d", r->rank);
        kolo_verdict_say_process(v, r);
        if (which == KOLO_POSITION_BEHIND) {
            kolo_verdict_op_t op = {.number = v->stuck, .word = v->word};
            kolo_verdict_say(v, " did not enter ");
            kolo_verdict_say_op(v, &op);
            kolo_verdict_say(v, ": ");
            kolo_verdict_say_state(v, r);
        } else {
            char theirs[160], others[160];
            const kolo_verdict_op_t *op = kolo_verdict_coll(r, v->stuck), reference = {.word = v->word};
            kolo_verdict_words(op, theirs, sizeof theirs);
            kolo_verdict_words(&reference, others, sizeof others);
            kolo_verdict_say(v, " entered %s as operation %" PRIu64 ", the others %s", theirs, v->stuck, others);
        }
        kolo_verdict_say(v, ".\n");
    }
    if (n > most) kolo_verdict_say(v, "The same holds for %d more ranks.\n", n - most);
    return n;
}

/* From then on others are told of it: most functions of users are over sooner. */
#define CALLBACK_LONG_NS KOLO_NS_PER_S

/* Tells whether its callback is what keeps a rank in an operation: it takes long, or most of the time there. */
static bool callback_keeps(const kolo_verdict_rank_t *r, const kolo_verdict_op_t *op, bool alone)
{
    return r->callback_ns >= CALLBACK_LONG_NS || (alone && r->callback_ns > op->age_ns / 2);
}

/* Tells, where all have entered it, for whom they still wait: whose process is stopped inside, whose own callback
 * does not return, or who alone stays there while others have gone on to the next one. */
static int tell_held(kolo_verdict_t *v, int most)
{
    int n = 0, on = 0, inside = 0;
    for (int i = 0; i < v->count; i++) {
        const kolo_verdict_op_t *op = kolo_verdict_last_coll(&v->ranks[i]);
        kolo_position_t position = kolo_verdict_position(v, &v->ranks[i]);
        on += position == KOLO_POSITION_PAST && op && kolo_verdict_op_runs(op);
        inside += position == KOLO_POSITION_INSIDE;
    }
    for (int i = 0; i < v->count; i++) {
        const kolo_verdict_rank_t *r = &v->ranks[i];
        const kolo_verdict_op_t *op = kolo_verdict_coll(r, v->stuck);
        if (kolo_verdict_position(v, r) != KOLO_POSITION_INSIDE) continue;
        bool alone = on > 0 && inside == 1, calls = callback_keeps(r, op, alone);
        if (!(r->stopped || calls || alone) || ++n > most) continue;
        kolo_verdict_say(v, "rank %d", r->rank);
        kolo_verdict_say_process(v, r);
        kolo_verdict_say(v, " did not leave ");
        kolo_verdict_say_op(v, op);
        if (on > 0) kolo_verdict_say(v, ", after which others wait for it");
        if (r->stopped) kolo_verdict_say(v, ": its process is stopped");
        if (calls) {
            kolo_verdict_say(v, ": ");
            kolo_verdict_say_callback(v, r);
        } else {
            kolo_verdict_say_age(v, ", it has been there for ", op->age_ns, "");
        }
        kolo_verdict_say(v, ".\n");
    }
    if (n > most) kolo_verdict_say(v, "The same holds for %d more ranks.\n", n - most);
    return n;
}

/* Says what a device has got: it may be complete there. */
static void tell_given(kolo_verdict_t *v)
{
    kolo_verdict_op_t op = {.number = v->stuck, .word = v->word};
    int n = kolo_verdict_say_ranks(v, KOLO_POSITION_GIVEN);
    if (n == 0) return;
    kolo_verdict_say(v, n == 1 ? " has given " : " have given ");
    kolo_verdict_say_op(v, &op);
    kolo_verdict_say(v, " to the GPU, where it is complete, or waits for earlier work on its stream.\n");
}

static const char *const absences[] = {
    [KOLO_RANK_SILENT] = "does not answer",
    [KOLO_RANK_GONE] = "is gone: its process has ended",
    [KOLO_RANK_ELSEWHERE] = "is on another host, of which there is no record here",
    [KOLO_RANK_UNREADABLE] = "cannot be looked into: its process belongs to somebody else",
    [KOLO_RANK_UNRECORDED] = "lives, but has no record",
};

static int tell_absent(kolo_verdict_t *v, int most)
{
    int n = 0;
    for (int i = 0; i < v->count; i++) {
        const kolo_verdict_rank_t *r = &v->ranks[i];
        if (r->presence == KOLO_RANK_HEARD || r->presence > KOLO_RANK_UNRECORDED || ++n > most) continue;
        kolo_verdict_say(v, "rank %d", r->rank);
        kolo_verdict_say_process(v, r);
        kolo_verdict_say(v, " %s%s.\n", r->stopped ? "is stopped and " : "", absences[r->presence]);
    }
    if (n > most) kolo_verdict_say(v, "%d more ranks are unaccounted for.\n", n - most);
    if (v->count < v->nranks) kolo_verdict_say(v, "Nothing is known of %d ranks.\n", v->nranks - v->count);
    return n + v->nranks - v->count;
}

/* Follows who waits for whom from r; says the circle if it comes back to r and r is its smallest rank. */
static bool tell_circle(kolo_verdict_t *v, const kolo_verdict_rank_t *r)
{
    const kolo_verdict_rank_t *at = r;
    int steps = 0;
    do {
        const kolo_verdict_op_t *op = kolo_verdict_pair_op(at);
        at = op ? kolo_verdict_find_rank(v, op->peer) : NULL;
        if (!at || at->rank < r->rank || ++steps > v->count) return false;
    } while (at != r);
    if (steps == 1) {
        kolo_verdict_say(v, "rank %d waits for itself.\n", r->rank);
        return true;
    }
    kolo_verdict_say(v, "%d ranks wait for each other in a circle: %d", steps, r->rank);
    do {
        at = kolo_verdict_find_rank(v, kolo_verdict_pair_op(at)->peer);
        kolo_verdict_say(v, " -> %d", at->rank);
    } while (at != r);
    kolo_verdict_say(v, ".\n");
    return true;
}

static int tell_pairs(kolo_verdict_t *v, int most)
{
    int n = 0, circles = 0;
    for (int i = 0; i < v->count; i++) {
        const kolo_verdict_rank_t *r = &v->ranks[i];
        const kolo_verdict_op_t *op = kolo_verdict_pair_op(r);
        if (!op || kolo_verdict_is_met(v, r, op)) continue;
        circles += tell_circle(v, r);
        if (++n > most) continue;
        const kolo_verdict_rank_t *peer = kolo_verdict_find_rank(v, op->peer);
        kolo_verdict_say(v, "rank %d", r->rank);
        kolo_verdict_say_process(v, r);
        kolo_verdict_say(v, " has waited in ");
        kolo_verdict_say_op(v, op);
        if (kolo_verdict_op_runs(op)) kolo_verdict_say_age(v, " for ", op->age_ns, "");
        if (peer && peer->presence == KOLO_RANK_HEARD) {
            kolo_verdict_say(v, "; rank %u", op->peer);
            kolo_verdict_say_process(v, peer);
            kolo_verdict_say(v, ": ");
            kolo_verdict_say_state(v, peer);
        }
        kolo_verdict_say(v, ".\n");
    }
    if (n > most)
        kolo_verdict_say(v, "%d more rank%s in a message, or for signals.\n", n - most,
                         n - most == 1 ? " waits" : "s wait");
    return n + circles;
}

static void tell_complete(kolo_verdict_t *v)
{
    bool all = v->count == v->nranks, any = false;
    uint64_t complete = 0;
    for (int i = 0; i < v->count; i++) {
        const kolo_verdict_rank_t *r = &v->ranks[i];
        const kolo_verdict_op_t *op = r->presence == KOLO_RANK_HEARD ? kolo_verdict_last_coll(r) : NULL;
        all = all && r->presence == KOLO_RANK_HEARD;
        if (r->presence == KOLO_RANK_HEARD && !op) return; /* one has completed nothing yet */
        if (!op) continue;
        if (op->state == KOLO_RECORD_LAUNCHED && !r->waits.count) return; /* who knows */
        uint64_t mine = op->state == KOLO_RECORD_DONE ? op->number : op->number - 1;
        if (op->state == KOLO_RECORD_LAUNCHED) mine = r->waits.number - 1;
        if (!any || kolo_verdict_is_before(mine, complete)) complete = mine;
        any = true;
    }
    if (any && complete != UINT64_MAX)
        kolo_verdict_say(v, "Complete on %s: all up to operation %" PRIu64 ".\n",
                         all ? "all ranks" : "the ranks that are known", complete);
}

static kolo_verdict_t open_verdict(const kolo_verdict_rank_t *ranks, int count, int nranks, char *text,
                                   size_t bytes)
{
    kolo_verdict_t v = {.ranks = ranks, .count = count, .nranks = nranks, .text = text, .bytes = bytes};
    if (bytes) text[0] = '\0';
    kolo_verdict_find_stuck(&v);
    return v;
}

bool kolo_verdict_print(const kolo_verdict_rank_t *ranks, int count, int nranks, char *text, size_t bytes)
{
    kolo_verdict_t v = open_verdict(ranks, count, nranks, text, bytes);
    int wrong = 0;
    if (v.any) {
        tell_stuck(&v);
        wrong += tell_each(&v, KOLO_POSITION_DIFFERENT, KOLO_VERDICT_NAMED);
        wrong += tell_each(&v, KOLO_POSITION_BEHIND, KOLO_VERDICT_NAMED);
        if (wrong == 0) wrong = tell_held(&v, KOLO_VERDICT_NAMED);
        tell_given(&v);
    }
    wrong += tell_pairs(&v, KOLO_VERDICT_NAMED);
    tell_device_waits(&v);
    int absent = tell_absent(&v, KOLO_VERDICT_NAMED);
    if (v.any) wrong += absent;
    if (v.any && wrong == 0) kolo_verdict_say(&v, "All have entered it.\n");
    if (!v.any && wrong == 0) kolo_verdict_say(&v, "Nobody waits.\n");
    tell_complete(&v);
    return wrong > 0;
}

bool kolo_verdict_brief(const kolo_verdict_rank_t *ranks, int count, int nranks, char *text, size_t bytes)
{
    kolo_verdict_t v = open_verdict(ranks, count, nranks, text, bytes);
    int wrong = v.any ? tell_each(&v, KOLO_POSITION_DIFFERENT, 1) : 0;
    if (wrong == 0 && v.any) wrong = tell_each(&v, KOLO_POSITION_BEHIND, 1);
    if (wrong == 0 && v.any) wrong = tell_held(&v, 1);
    if (wrong == 0) wrong = tell_absent(&v, 1);
    if (wrong == 0) wrong = tell_pairs(&v, 1);
    if (wrong == 0) kolo_verdict_say(&v, "all ranks have entered the operation");
    for (char *c = text; bytes && *c; c++) /* one line */
        if (*c == '\n') *c = ' ';
    while (v.at > 0 && (text[v.at - 1] == ' ' || text[v.at - 1] == '.')) text[--v.at] = '\0';
    return wrong > 0;
}
