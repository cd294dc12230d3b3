/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank's part in an agreement: what agreement.c (the steps) and agree_talk.c (the messages) share. All with the
 * lock held.
 */
#ifndef KOLO_MEMBER_AGREE_RUN_H
#define KOLO_MEMBER_AGREE_RUN_H

#include "member/agree_frame.h"
#include "member/life.h"

#define KOLO_AGREE_REPEAT_MS 1000 /* a message that went with its connection is said again */

typedef struct kolo_agree_post {
    kolo_outbound_t out; /* first: freed as this */
    struct kolo_agree_post *next;
    int rank;
    uint8_t bytes[];
} kolo_agree_post_t;

typedef struct {
    kolo_oob_t *oob;
    kolo_agreement_t *a;
    kolo_series_t *series;
    uint64_t tag, deadline_ns, repeat_ns;
    size_t map_bytes, value_bytes;
    uint8_t *out;              /* map: known to be out */
    bool *reported, *accepted; /* by rank; of my ballot */
    uint8_t *rows;
    uint32_t flags;
    int promised;        /* whom I have reported to, -1: nobody */
    int accepted_ballot; /* of `value`, -1: there is none */
    uint8_t *value;
    bool proposed, decided;
    bool took_over;    /* as coordinator: somebody else was before, and may have decided */
    kolo_status_t bad; /* the coordinator's reason to decide that there is no result */
    int bad_about;
    kolo_status_t failed; /* my own end without a decision */
    kolo_agree_post_t *unsent, **unsent_tail;
} kolo_agree_run_t;

/* Returns the coordinator, as far as this rank knows. */
int kolo_agree_lowest(const kolo_agree_run_t *x);

/* Sends without waiting; what has no connection yet goes out by kolo_agree_send_unsent(). */
void kolo_agree_post(kolo_agree_run_t *x, int to, const kolo_ballot_t *b);
kolo_ballot_t kolo_agree_ballot(const kolo_agree_run_t *x, kolo_ballot_type_t type, int coordinator);
void kolo_agree_refuse(kolo_agree_run_t *x, int to, kolo_status_t why, int about);
void kolo_agree_report(kolo_agree_run_t *x, int to);
void kolo_agree_send_value(kolo_agree_run_t *x, kolo_ballot_type_t type, int to);
void kolo_agree_send_unsent(kolo_agree_run_t *x);
bool kolo_agree_can_send(kolo_agree_run_t *x);

/* Adds who has gone to `out`; with only_ask, whether there is anybody new. */
bool kolo_agree_learn_losses(kolo_agree_run_t *x, bool only_ask);
void kolo_agree_take_messages(kolo_agree_run_t *x);
bool kolo_agree_has_message(const kolo_agree_run_t *x);
void kolo_agree_fail_apart(kolo_agree_run_t *x, int from);
void kolo_agree_fail_mismatch(kolo_agree_run_t *x, int rank);

#endif
