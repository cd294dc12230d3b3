/* SPDX-License-Identifier: Apache-2.0
 *
 * See verdict.h. The oldest operation in which somebody waits is the one to look at: who has not come to it, or
 * came to something else, keeps those inside waiting. Sends and receives have no number that all share: of them it
 * is said who waits for whom, and whether that goes round in a circle.
 */
#include "diag/verdict.h"

#include "base/clock.h"
#include "plan/plan.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define NAMED_MOST 6 /* ranks that get a sentence of their own */

typedef struct {
    const kolo_verdict_rank_t *ranks;
    int count, nranks;
    bool any;       /* somebody is in a collective, or failed in one */
    uint64_t stuck; /* its number, the oldest such */
    uint64_t word;  /* what most of those that came to it entered */
    char *text;
    size_t bytes, at;
} verdict_t;

static void say(verdict_t *v, const char *fmt, ...) KOLO_PRINTF(2, 3);
static void say(verdict_t *v, const char *fmt, ...)
{
    va_list args;
    if (v->at >= v->bytes) return;
    va_start(args, fmt);
    int n = vsnprintf(v->text + v->at, v->bytes - v->at, fmt, args);
    va_end(args);
    if (n > 0) v->at = KOLO_MIN(v->at + (size_t)n, v->bytes - 1);
}

void kolo_verdict_duration(uint64_t ns, char *text, size_t bytes)
{
    double s = (double)ns / (double)KOLO_NS_PER_S;
    if (ns == KOLO_AGE_UNKNOWN)
        snprintf(text, bytes, "an unknown time");
    else if (s < 1)
        snprintf(text, bytes, "%.0f ms", s * 1e3);
    else if (s < 300)
        snprintf(text, bytes, "%.1f s", s);
    else
        snprintf(text, bytes, "%.0f min", s / 60);
}

void kolo_verdict_words(const kolo_verdict_op_t *op, char *text, size_t bytes)
{
    kolo_signature_print(op->word, text, bytes);
}

void kolo_verdict_take(kolo_verdict_rank_t *rank, const kolo_record_op_t *ops, size_t count, uint64_t now_ns)
{
    size_t skip = count > KOLO_VERDICT_OPS ? count - KOLO_VERDICT_OPS : 0;
    rank->nops = 0;
    for (size_t i = 0; i < skip; i++) /* a device may be far behind what it was given */
        if (ops[i].state == KOLO_RECORD_RUNNING) skip = i;
    for (size_t i = skip; i < count && rank->nops < KOLO_VERDICT_OPS; i++) {
        const kolo_record_op_t *o = &ops[i];
        bool over = o->state == KOLO_RECORD_DONE || o->state == KOLO_RECORD_FAILED;
        uint64_t since = over && o->ended_ns ? o->ended_ns : o->begun_ns;
        kolo_verdict_op_t *to = &rank->ops[rank->nops++];
        *to = (kolo_verdict_op_t){o->number, o->word, KOLO_AGE_UNKNOWN, o->root, o->kind, o->state};
        if (since && since <= now_ns) to->age_ns = now_ns - since;
    }
}

/* ---- looking at ranks ---- */

static bool is_under_way(const kolo_verdict_op_t *op)
{
    return op->state == KOLO_RECORD_CONNECTING || op->state == KOLO_RECORD_RUNNING;
}

/* Numbers may wrap. */
static bool is_before(uint64_t a, uint64_t b)
{
    return (int64_t)(a - b) < 0;
}

/* The collective that runs, or the newest that was begun. */
static const kolo_verdict_op_t *last_coll(const kolo_verdict_rank_t *r)
{
    for (uint32_t i = 0; i < r->nops && r->waits.count; i++)
        if (r->ops[i].kind == KOLO_RECORD_COLL && is_under_way(&r->ops[i])) return &r->ops[i];
    for (uint32_t i = r->nops; i-- > 0;)
        if (r->ops[i].kind == KOLO_RECORD_COLL && r->ops[i].state != KOLO_RECORD_QUEUED) return &r->ops[i];
    return NULL;
}

static const kolo_verdict_op_t *coll_numbered(const kolo_verdict_rank_t *r, uint64_t number)
{
    for (uint32_t i = r->nops; i-- > 0;)
        if (r->ops[i].kind == KOLO_RECORD_COLL && r->ops[i].state != KOLO_RECORD_QUEUED &&
            r->ops[i].number == number)
            return &r->ops[i];
    return NULL;
}

/* The message, put or wait that it is in; or that has just run into its time limit, which nobody has been told yet.
 */
static const kolo_verdict_op_t *pair_of(const kolo_verdict_rank_t *r)
{
    for (uint32_t i = r->nops; r->presence == KOLO_RANK_HEARD && i-- > 0;) {
        bool late = r->ops[i].state == KOLO_RECORD_FAILED && r->failed == KOLO_OK;
        if (r->ops[i].kind != KOLO_RECORD_COLL && (late || is_under_way(&r->ops[i]))) return &r->ops[i];
    }
    return NULL;
}

/* FELL: failed in it; GIVEN: to a device, on which it does not wait */
typedef enum { UNKNOWN, BEHIND, INSIDE, FELL, GIVEN, PAST, DIFFERENT } standing_t;

static standing_t standing(const verdict_t *v, const kolo_verdict_rank_t *r)
{
    if (r->presence != KOLO_RANK_HEARD) return UNKNOWN;
    const kolo_verdict_op_t *last = last_coll(r), *op = coll_numbered(r, v->stuck);
    if (op && op->word != v->word) return DIFFERENT;
    if (op && op->state == KOLO_RECORD_LAUNCHED) return GIVEN;
    if (op) return is_under_way(op) ? INSIDE : op->state == KOLO_RECORD_FAILED ? FELL : PAST;
    return !last || is_before(last->number, v->stuck) ? BEHIND : PAST;
}

static void find_stuck(verdict_t *v)
{
    for (int i = 0; i < v->count; i++) {
        const kolo_verdict_op_t *op = v->ranks[i].presence == KOLO_RANK_HEARD ? last_coll(&v->ranks[i]) : NULL;
        if (!op || (!is_under_way(op) && op->state != KOLO_RECORD_FAILED)) continue;
        if (v->any && !is_before(op->number, v->stuck)) continue;
        v->stuck = op->number;
        v->any = true;
    }
    int most = 0;
    for (int i = 0; i < v->count && v->any; i++) { /* at most count squared, of a bounded count */
        const kolo_verdict_op_t *op = coll_numbered(&v->ranks[i], v->stuck);
        int same = 0;
        if (!op || (i > 0 && most > 0 && op->word == v->word)) continue;
        for (int k = 0; k < v->count; k++) {
            const kolo_verdict_op_t *other = coll_numbered(&v->ranks[k], v->stuck);
            same += other && other->word == op->word;
        }
        if (same <= most) continue;
        most = same;
        v->word = op->word;
    }
}

/* ---- words ---- */

/* "rank 3", "ranks 0, 2-5 and 40 more": those that stand like this. Returns how many. */
static int say_ranks(verdict_t *v, standing_t which)
{
    int total = 0, said = 0;
    for (int i = 0; i < v->count; i++) total += standing(v, &v->ranks[i]) == which;
    if (total == 0) return 0;
    say(v, total == 1 ? "rank " : "ranks ");
    int left = total;
    for (int i = 0; i < v->count && said < NAMED_MOST; i++) {
        if (standing(v, &v->ranks[i]) != which) continue;
        int last = i;
        while (last + 1 < v->count && v->ranks[last + 1].rank == v->ranks[last].rank + 1 &&
               standing(v, &v->ranks[last + 1]) == which)
            last++;
        say(v, last > i ? "%s%d-%d" : "%s%d", said ? ", " : "", v->ranks[i].rank, v->ranks[last].rank);
        left -= last - i + 1;
        said++;
        i = last;
    }
    if (left > 0) say(v, " and %d more", left);
    return total;
}

static void say_process(verdict_t *v, const kolo_verdict_rank_t *r)
{
    if (r->pid && r->host[0])
        say(v, " (process %d on %s)", r->pid, r->host);
    else if (r->pid)
        say(v, " (process %d)", r->pid);
    else if (r->host[0])
        say(v, " (on %s)", r->host);
}

static void say_op(verdict_t *v, const kolo_verdict_op_t *op)
{
    char words[160];
    kolo_verdict_words(op, words, sizeof words);
    if (op->kind == KOLO_RECORD_COLL)
        say(v, "operation %" PRIu64 " (%s)", op->number, words);
    else
        say(v, "%s", words);
}

static void say_age(verdict_t *v, const char *before, uint64_t age_ns, const char *after)
{
    char duration[32];
    if (age_ns == KOLO_AGE_UNKNOWN) return;
    kolo_verdict_duration(age_ns, duration, sizeof duration);
    say(v, "%s%s%s", before, duration, after);
}

/* What a rank does that does not come. */
static void say_whereabouts(verdict_t *v, const kolo_verdict_rank_t *r)
{
    const kolo_verdict_op_t *now = r->nops ? &r->ops[r->nops - 1] : NULL;
    for (uint32_t i = 0; i < r->nops; i++)
        if (is_under_way(&r->ops[i])) now = &r->ops[i];
    if (r->stopped) say(v, "its process is stopped, ");
    if (r->failed != KOLO_OK) say(v, "it has failed (%s), ", kolo_status_string(r->failed));
    if (!now) {
        say(v, "it has called nothing yet");
        return;
    }
    if (is_under_way(now)) {
        say(v, now->state == KOLO_RECORD_CONNECTING ? "it has been making the connections of " : "it has been in ");
        say_op(v, now);
        say_age(v, " for ", now->age_ns, "");
        return;
    }
    if (now->state == KOLO_RECORD_LAUNCHED) {
        say(v, "it has given ");
        say_op(v, now);
        say(v, " to its GPU, which waits for nobody");
        return;
    }
    if (now->state == KOLO_RECORD_QUEUED) {
        say(v, "it has queued ");
        char words[160];
        kolo_verdict_words(now, words, sizeof words);
        say(v, "%s on a stream whose turn has not come", words);
        say_age(v, " for ", now->age_ns, "");
        return;
    }
    say(v, now->state == KOLO_RECORD_FAILED ? "its last call failed: " : "its last call is complete: ");
    say_op(v, now);
    say_age(v, ", ", now->age_ns, " ago");
}

/* ---- findings; each ends its sentences itself ---- */

static void tell_stuck(verdict_t *v)
{
    uint64_t age = KOLO_AGE_UNKNOWN;
    for (int i = 0; i < v->count; i++) {
        const kolo_verdict_op_t *op = coll_numbered(&v->ranks[i], v->stuck);
        if (op && is_under_way(op) && op->age_ns != KOLO_AGE_UNKNOWN &&
            (age == KOLO_AGE_UNKNOWN || op->age_ns > age))
            age = op->age_ns;
    }
    kolo_verdict_op_t op = {.number = v->stuck, .word = v->word};
    int n = say_ranks(v, INSIDE);
    if (n > 0) {
        say(v, n == 1 ? " has been in " : " have been in ");
        say_op(v, &op);
        say_age(v, " for ", age, "");
        say(v, ".\n");
    }
    if (say_ranks(v, FELL) > 0) {
        say(v, " failed in ");
        say_op(v, &op);
        say(v, ".\n");
    }
}

/* On a device it is known for whom. */
static void tell_device_waits(verdict_t *v)
{
    int n = 0;
    for (int i = 0; i < v->count; i++) {
        const kolo_verdict_rank_t *r = &v->ranks[i];
        const kolo_record_waits_t *w = &r->waits;
        if (r->presence != KOLO_RANK_HEARD || w->count == 0 || ++n > NAMED_MOST) continue;
        kolo_verdict_op_t op = {.number = w->number, .word = w->word};
        bool message = kolo_signature_fields(w->word).coll == KOLO_COLL_P2P;
        op.kind = message ? KOLO_RECORD_RECV : KOLO_RECORD_COLL;
        say(v, "rank %d, in ", r->rank);
        say_op(v, &op);
        say(v, ", waits on its GPU for ");
        for (uint32_t k = 0; k < w->count && k < KOLO_RECORD_WAITS; k++)
            say(v, "%s%s rank %d", k ? ", " : "", w->on[k].room ? "room at" : "data from", w->on[k].rank);
        say(v, " (block %u, step %u).\n", w->on[0].block, w->on[0].step);
    }
}

static int tell_each(verdict_t *v, standing_t which, int most)
{
    int n = 0;
    for (int i = 0; i < v->count; i++) {
        const kolo_verdict_rank_t *r = &v->ranks[i];
        if (standing(v, r) != which || ++n > most) continue;
        say(v, "rank %d", r->rank);
        say_process(v, r);
        if (which == BEHIND) {
            kolo_verdict_op_t op = {.number = v->stuck, .word = v->word};
            say(v, " did not enter ");
            say_op(v, &op);
            say(v, ": ");
            say_whereabouts(v, r);
        } else {
            char theirs[160], others[160];
            const kolo_verdict_op_t *op = coll_numbered(r, v->stuck), reference = {.word = v->word};
            kolo_verdict_words(op, theirs, sizeof theirs);
            kolo_verdict_words(&reference, others, sizeof others);
            say(v, " entered %s as operation %" PRIu64 ", the others %s", theirs, v->stuck, others);
        }
        say(v, ".\n");
    }
    if (n > most) say(v, "The same holds for %d more ranks.\n", n - most);
    return n;
}

/* It may be complete there. */
static void tell_given(verdict_t *v)
{
    kolo_verdict_op_t op = {.number = v->stuck, .word = v->word};
    int n = say_ranks(v, GIVEN);
    if (n == 0) return;
    say(v, n == 1 ? " has given " : " have given ");
    say_op(v, &op);
    say(v, " to the GPU, where it is complete, or waits for earlier work on its stream.\n");
}

static const char *const absences[] = {
    [KOLO_RANK_SILENT] = "does not answer",
    [KOLO_RANK_GONE] = "is gone: its process has ended",
    [KOLO_RANK_ELSEWHERE] = "is on another host, of which there is no record here",
    [KOLO_RANK_UNREADABLE] = "cannot be looked into: its process belongs to somebody else",
    [KOLO_RANK_UNRECORDED] = "lives, but has no record",
};

static int tell_absent(verdict_t *v, int most)
{
    int n = 0;
    for (int i = 0; i < v->count; i++) {
        const kolo_verdict_rank_t *r = &v->ranks[i];
        if (r->presence == KOLO_RANK_HEARD || r->presence > KOLO_RANK_UNRECORDED || ++n > most) continue;
        say(v, "rank %d", r->rank);
        say_process(v, r);
        say(v, " %s%s.\n", r->stopped ? "is stopped and " : "", absences[r->presence]);
    }
    if (n > most) say(v, "%d more ranks are unaccounted for.\n", n - most);
    if (v->count < v->nranks) say(v, "Nothing is known of %d ranks.\n", v->nranks - v->count);
    return n + v->nranks - v->count;
}

static const kolo_verdict_rank_t *by_rank(const verdict_t *v, uint32_t rank)
{
    for (int i = 0; i < v->count; i++)
        if ((uint32_t)v->ranks[i].rank == rank) return &v->ranks[i];
    return NULL;
}

/* Follows who waits for whom from r; says the circle if it comes back to r and r is its smallest rank. */
static bool tell_circle(verdict_t *v, const kolo_verdict_rank_t *r)
{
    const kolo_verdict_rank_t *at = r;
    int steps = 0;
    do {
        const kolo_verdict_op_t *op = pair_of(at);
        at = op ? by_rank(v, op->peer) : NULL;
        if (!at || at->rank < r->rank || ++steps > v->count) return false;
    } while (at != r);
    if (steps == 1) {
        say(v, "rank %d waits for itself.\n", r->rank);
        return true;
    }
    say(v, "%d ranks wait for each other in a circle: %d", steps, r->rank);
    do {
        at = by_rank(v, pair_of(at)->peer);
        say(v, " -> %d", at->rank);
    } while (at != r);
    say(v, ".\n");
    return true;
}

/* One sends, the other receives; or one waits for what the other is about to signal. */
static bool suit(const kolo_verdict_op_t *op, const kolo_verdict_op_t *other)
{
    if (op->kind == KOLO_RECORD_WAIT) return other->kind == KOLO_RECORD_PUT || other->kind == KOLO_RECORD_SIGNAL;
    return (op->kind == KOLO_RECORD_SEND && other->kind == KOLO_RECORD_RECV) ||
           (op->kind == KOLO_RECORD_RECV && other->kind == KOLO_RECORD_SEND);
}

/* A pair of calls that suit gets on. */
static bool meets(const verdict_t *v, const kolo_verdict_rank_t *r, const kolo_verdict_op_t *op)
{
    const kolo_verdict_rank_t *peer = by_rank(v, op->peer);
    for (uint32_t i = 0; peer && peer->presence == KOLO_RANK_HEARD && i < peer->nops; i++) {
        const kolo_verdict_op_t *o = &peer->ops[i];
        if (is_under_way(o) && suit(op, o) && (int)o->peer == r->rank) return true;
    }
    return false;
}

static int tell_pairs(verdict_t *v, int most)
{
    int n = 0, circles = 0;
    for (int i = 0; i < v->count; i++) {
        const kolo_verdict_rank_t *r = &v->ranks[i];
        const kolo_verdict_op_t *op = pair_of(r);
        if (!op || meets(v, r, op)) continue;
        circles += tell_circle(v, r);
        if (++n > most) continue;
        const kolo_verdict_rank_t *peer = by_rank(v, op->peer);
        say(v, "rank %d", r->rank);
        say_process(v, r);
        say(v, " has waited in ");
        say_op(v, op);
        if (is_under_way(op)) say_age(v, " for ", op->age_ns, "");
        if (peer && peer->presence == KOLO_RANK_HEARD) {
            say(v, "; rank %u", op->peer);
            say_process(v, peer);
            say(v, ": ");
            say_whereabouts(v, peer);
        }
        say(v, ".\n");
    }
    if (n > most) say(v, "%d more ranks wait in messages, or for signals.\n", n - most);
    return n + circles;
}

static void tell_complete(verdict_t *v)
{
    bool all = v->count == v->nranks, any = false;
    uint64_t complete = 0;
    for (int i = 0; i < v->count; i++) {
        const kolo_verdict_rank_t *r = &v->ranks[i];
        const kolo_verdict_op_t *op = r->presence == KOLO_RANK_HEARD ? last_coll(r) : NULL;
        all = all && r->presence == KOLO_RANK_HEARD;
        if (r->presence == KOLO_RANK_HEARD && !op) return; /* one has completed nothing yet */
        if (!op) continue;
        if (op->state == KOLO_RECORD_LAUNCHED && !r->waits.count) return; /* who knows */
        uint64_t mine = op->state == KOLO_RECORD_DONE ? op->number : op->number - 1;
        if (op->state == KOLO_RECORD_LAUNCHED) mine = r->waits.number - 1;
        if (!any || is_before(mine, complete)) complete = mine;
        any = true;
    }
    if (any && complete != UINT64_MAX)
        say(v, "Complete on %s: all up to operation %" PRIu64 ".\n", all ? "all ranks" : "the ranks that are known",
            complete);
}

static verdict_t open_verdict(const kolo_verdict_rank_t *ranks, int count, int nranks, char *text, size_t bytes)
{
    verdict_t v = {.ranks = ranks, .count = count, .nranks = nranks, .text = text, .bytes = bytes};
    if (bytes) text[0] = '\0';
    find_stuck(&v);
    return v;
}

bool kolo_verdict_print(const kolo_verdict_rank_t *ranks, int count, int nranks, char *text, size_t bytes)
{
    verdict_t v = open_verdict(ranks, count, nranks, text, bytes);
    int wrong = 0;
    if (v.any) {
        tell_stuck(&v);
        wrong += tell_each(&v, DIFFERENT, NAMED_MOST);
        wrong += tell_each(&v, BEHIND, NAMED_MOST);
        tell_given(&v);
    }
    wrong += tell_pairs(&v, NAMED_MOST);
    tell_device_waits(&v);
    int absent = tell_absent(&v, NAMED_MOST);
    if (v.any) wrong += absent;
    if (v.any && wrong == 0) say(&v, "All have entered it.\n");
    if (!v.any && wrong == 0) say(&v, "Nobody waits.\n");
    tell_complete(&v);
    return wrong > 0;
}

bool kolo_verdict_brief(const kolo_verdict_rank_t *ranks, int count, int nranks, char *text, size_t bytes)
{
    verdict_t v = open_verdict(ranks, count, nranks, text, bytes);
    int wrong = v.any ? tell_each(&v, DIFFERENT, 1) : 0;
    if (wrong == 0 && v.any) wrong = tell_each(&v, BEHIND, 1);
    if (wrong == 0) wrong = tell_absent(&v, 1);
    if (wrong == 0) wrong = tell_pairs(&v, 1);
    if (wrong == 0) say(&v, "all ranks have entered the operation");
    for (char *c = text; bytes && *c; c++) /* one line */
        if (*c == '\n') *c = ' ';
    while (v.at > 0 && (text[v.at - 1] == ' ' || text[v.at - 1] == '.')) text[--v.at] = '\0';
    return wrong > 0;
}
