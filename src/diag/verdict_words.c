/* SPDX-License-Identifier: Apache-2.0
 *
 * The words of a verdict: lists of ranks, processes, operations, times, and what a rank is doing. All of it is
 * added to the end of the verdict's text, as far as there is room.
 */
#include "diag/verdict_parts.h"

#include "base/clock.h"
#include "plan/plan.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

void kolo_verdict_say(kolo_verdict_t *v, const char *fmt, ...)
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

int kolo_verdict_say_ranks(kolo_verdict_t *v, kolo_position_t which)
{
    int total = 0, said = 0;
    for (int i = 0; i < v->count; i++) total += kolo_verdict_position(v, &v->ranks[i]) == which;
    if (total == 0) return 0;
    kolo_verdict_say(v, total == 1 ? "rank " : "ranks ");
    int left = total;
    for (int i = 0; i < v->count && said < KOLO_VERDICT_NAMED; i++) {
        if (kolo_verdict_position(v, &v->ranks[i]) != which) continue;
        int last = i;
        while (last + 1 < v->count && v->ranks[last + 1].rank == v->ranks[last].rank + 1 &&
               kolo_verdict_position(v, &v->ranks[last + 1]) == which)
            last++;
        kolo_verdict_say(v, last > i ? "%s%d-%d" : "%s%d", said ? ", " : "", v->ranks[i].rank, v->ranks[last].rank);
        left -= last - i + 1;
        said++;
        i = last;
    }
    if (left > 0) kolo_verdict_say(v, " and %d more", left);
    return total;
}

void kolo_verdict_say_process(kolo_verdict_t *v, const kolo_verdict_rank_t *r)
{
    if (r->pid && r->host[0])
        kolo_verdict_say(v, " (process %d on %s)", r->pid, r->host);
    else if (r->pid)
        kolo_verdict_say(v, " (process %d)", r->pid);
    else if (r->host[0])
        kolo_verdict_say(v, " (on %s)", r->host);
}

void kolo_verdict_say_op(kolo_verdict_t *v, const kolo_verdict_op_t *op)
{
    char words[160];
    kolo_verdict_words(op, words, sizeof words);
    if (op->kind == KOLO_RECORD_COLL)
        kolo_verdict_say(v, "operation %" PRIu64 " (%s)", op->number, words);
    else
        kolo_verdict_say(v, "%s", words);
}

void kolo_verdict_say_age(kolo_verdict_t *v, const char *before, uint64_t age_ns, const char *after)
{
    char duration[32];
    if (age_ns == KOLO_AGE_UNKNOWN) return;
    kolo_verdict_duration(age_ns, duration, sizeof duration);
    kolo_verdict_say(v, "%s%s%s", before, duration, after);
}

void kolo_verdict_say_callback(kolo_verdict_t *v, const kolo_verdict_rank_t *r)
{
    static const char *const names[KOLO_CALLBACKS] = {
        [KOLO_CALLBACK_OPERATOR] = "the function of a user operator",
        [KOLO_CALLBACK_TENSOR] = "of a named tensor",
    };
    kolo_verdict_say(v, "it has been inside its own callback (%s)", names[r->callback]);
    kolo_verdict_say_age(v, " for ", r->callback_ns, "");
}

void kolo_verdict_say_state(kolo_verdict_t *v, const kolo_verdict_rank_t *r)
{
    const kolo_verdict_op_t *now = r->nops ? &r->ops[r->nops - 1] : NULL;
    for (uint32_t i = 0; i < r->nops; i++)
        if (kolo_verdict_op_runs(&r->ops[i])) now = &r->ops[i];
    if (r->stopped) kolo_verdict_say(v, "its process is stopped, ");
    if (r->failed != KOLO_OK) kolo_verdict_say(v, "it has failed (%s), ", kolo_status_string(r->failed));
    if (r->callback_ns) {
        kolo_verdict_say_callback(v, r);
        return;
    }
    if (!now) {
        kolo_verdict_say(v, "it has called nothing on this communicator yet");
        return;
    }
    if (kolo_verdict_op_runs(now)) {
        kolo_verdict_say(v, now->state == KOLO_RECORD_CONNECTING ? "it has been making the connections of "
                                                                 : "it has been in ");
        kolo_verdict_say_op(v, now);
        kolo_verdict_say_age(v, " for ", now->age_ns, "");
        return;
    }
    if (now->state == KOLO_RECORD_LAUNCHED) {
        kolo_verdict_say(v, "it has given ");
        kolo_verdict_say_op(v, now);
        kolo_verdict_say(v, " to its GPU, which waits for nobody");
        return;
    }
    if (now->state == KOLO_RECORD_QUEUED) {
        kolo_verdict_say(v, "it has queued ");
        char words[160];
        kolo_verdict_words(now, words, sizeof words);
        kolo_verdict_say(v, "%s on a stream whose turn has not come", words);
        kolo_verdict_say_age(v, " for ", now->age_ns, "");
        return;
    }
    kolo_verdict_say(v,
                     now->state == KOLO_RECORD_FAILED ? "its last call failed: " : "its last call is complete: ");
    kolo_verdict_say_op(v, now);
    kolo_verdict_say_age(v, ", ", now->age_ns, " ago");
}
