/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of a verdict share: what it finds (verdict_facts.c), how it says it (verdict_words.c), and what it
 * says in which order (verdict.c).
 */
#ifndef KOLO_DIAG_VERDICT_PARTS_H
#define KOLO_DIAG_VERDICT_PARTS_H

#include "diag/verdict.h"

#define KOLO_VERDICT_NAMED 6 /* ranks that get a sentence of their own */

typedef struct {
    const kolo_verdict_rank_t *ranks;
    int count, nranks;
    bool any;       /* some rank is in a collective, or failed in one */
    uint64_t stuck; /* its number, the oldest such */
    uint64_t word;  /* what most of the ranks that came to it entered */
    char *text;
    size_t bytes, at;
} kolo_verdict_t;

/* Where a rank is with regard to the collective that is stuck. */
typedef enum {
    KOLO_POSITION_UNKNOWN,
    KOLO_POSITION_BEHIND, /* has not come to it */
    KOLO_POSITION_INSIDE,
    KOLO_POSITION_FAILED, /* in it */
    KOLO_POSITION_GIVEN,  /* given to a device, on which the rank does not wait */
    KOLO_POSITION_PAST,
    KOLO_POSITION_DIFFERENT /* entered another operation under its number */
} kolo_position_t;

/* ---- verdict_facts.c ---- */

/* Sets any, stuck and word. */
void kolo_verdict_find_stuck(kolo_verdict_t *v);
kolo_position_t kolo_verdict_position(const kolo_verdict_t *v, const kolo_verdict_rank_t *r);
bool kolo_verdict_op_runs(const kolo_verdict_op_t *op); /* it connects or runs */
bool kolo_verdict_is_before(uint64_t a, uint64_t b);    /* numbers of operations, which may wrap */
/* Returns the collective that runs, or the newest that was begun; NULL if there was none. */
const kolo_verdict_op_t *kolo_verdict_last_coll(const kolo_verdict_rank_t *r);
/* Returns the collective of this number, NULL unless the rank has begun it. */
const kolo_verdict_op_t *kolo_verdict_coll(const kolo_verdict_rank_t *r, uint64_t number);
/* Returns the message, put or wait that the rank is in, or that has just reached its time limit and has not been
 * reported yet; else NULL. */
const kolo_verdict_op_t *kolo_verdict_pair_op(const kolo_verdict_rank_t *r);
const kolo_verdict_rank_t *kolo_verdict_find_rank(const kolo_verdict_t *v, uint32_t rank); /* or NULL */
/* Tells whether the peer of `op` is in the call that op waits for: then the two make progress. */
bool kolo_verdict_is_met(const kolo_verdict_t *v, const kolo_verdict_rank_t *r, const kolo_verdict_op_t *op);

/* ---- verdict_words.c ---- */

void kolo_verdict_say(kolo_verdict_t *v, const char *fmt, ...) KOLO_PRINTF(2, 3);
/* Says which ranks are in this position: "rank 3", "ranks 0, 2-5 and 40 more". Returns how many. */
int kolo_verdict_say_ranks(kolo_verdict_t *v, kolo_position_t which);
/* Says " (process 12 on host a)". */
void kolo_verdict_say_process(kolo_verdict_t *v, const kolo_verdict_rank_t *r);
/* Says "operation 12 (all_reduce 4 float32 sum)", "recv 1 int32 from rank 3". */
void kolo_verdict_say_op(kolo_verdict_t *v, const kolo_verdict_op_t *op);
/* Says an age between two words, and nothing if it is not known. */
void kolo_verdict_say_age(kolo_verdict_t *v, const char *before, uint64_t age_ns, const char *after);
/* Says "it has been inside its own callback (of a named tensor) for 3 s". */
void kolo_verdict_say_callback(kolo_verdict_t *v, const kolo_verdict_rank_t *r);
/* Says what a rank does instead: "it has been in ... for 3 s", "its last call failed: ...". */
void kolo_verdict_say_state(kolo_verdict_t *v, const kolo_verdict_rank_t *r);

#endif
