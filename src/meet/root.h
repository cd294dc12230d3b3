/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of a root share: its life (root.c), its callers (root_checkin.c), the calls back (root_call.c),
 * and the words of its time-out (root_words.c).
 */
#ifndef KOLO_MEET_ROOT_H
#define KOLO_MEET_ROOT_H

#include "base/recorder.h"
#include "meet/checkin.h"
#include "meet/id.h"
#include "meet/lifeline.h"

#define KOLO_ROOT_LINGER_MS 2000 /* how long a failed root tells ranks that come late */

typedef enum { STEP_NEVER, STEP_PROVEN, STEP_CHECKED_IN, STEP_TOLD } step_t;

typedef struct {
    kolo_address_t peer, root_only;
    step_t step;
    kolo_lifeline_t *line; /* while it is neither through nor gone; NULL also if there are too many */
} entry_t;

typedef struct kolo_watched kolo_watched_t;
typedef struct root root_t;
typedef struct call call_t;
struct call { /* one rank that is to be called back */
    call_t *next;
    root_t *root;
    kolo_dial_t *dial;
    int rank;
    bool counts; /* its answer is what the root waits for; false: a caller that is not of this job */
    uint8_t reply[KOLO_REPLY_BYTES];
    kolo_address_t address;
};

struct root {
    root_t *next;
    kolo_progress_t *progress;
    kolo_id_t id;
    kolo_listener_t *listener;
    int nranks, nids, index; /* of the first check-in; nranks 0 before it */
    int first_rank;          /* who made it */
    int first, count, seen, told;
    entry_t *entries;
    bool neighbour_seen;
    kolo_address_t neighbour;
    kolo_status_t failure;
    int lingers;
    char failure_text[KOLO_REPLY_TEXT_BYTES];
    uint64_t deadline_ns;
    kolo_record_t *record;      /* for kolo-top: who has not called; NULL: nowhere */
    kolo_timer_t *timer, *news; /* news: NULL until it is due for the first time */
    bool news_due;
    uint64_t shown_ns; /* when the last one came */
    call_t *waiting, **waiting_tail, *active;
    int nactive;
    uint64_t refused;
    char refused_text[160];
    kolo_watched_t *watched; /* who has ended without a word; NULL: nobody tells */
};

/* ---- root.c ---- */

/* Ends the job before it begins: every rank that has checked in hears why, and those that come within
 * KOLO_ROOT_LINGER_MS. Only the first failure counts. */
void kolo_root_fail(root_t *root, kolo_status_t status, const char *fmt, ...) KOLO_PRINTF(3, 4);
/* Frees the root if all ranks have been told and all lifelines have ended. */
void kolo_root_finish_if_done(root_t *root);
void kolo_root_line_ended(void *root, int rank, kolo_status_t status, const char *text); /* of a rank's lifeline */

/* ---- root_checkin.c ---- */

extern const kolo_listener_ops_t kolo_root_ops; /* of its listener; the owner is the root */

/* ---- root_call.c ---- */

/* Queues a call. counts: the root waits for its end. */
void kolo_root_call(root_t *root, int rank, const kolo_address_t *address, bool counts, const kolo_reply_t *reply);
void kolo_root_tell_failure(root_t *root, int rank, const kolo_address_t *address, bool counts);
/* Tells the rank the address of the next one, if both are known. */
void kolo_root_tell_next(root_t *root, int rank);
void kolo_root_free_calls(root_t *root); /* cancels them */

/* ---- ended.c ---- */

/* Has the root look into the file now and then. ranks: of the job, by rank of the root; NULL: the same. On the
 * progress thread, like the end of it. */
kolo_status_t kolo_watched_new(root_t *root, const char *path, const int *ranks, int count);
void kolo_watched_free(kolo_watched_t *watched); /* NULL is fine */

/* ---- root_words.c ---- */

/* Returns a rank's number for people: in a grow the root's rank 0 is one of the old communicator's, and the new
 * ranks are counted behind those. */
int kolo_root_shown(const root_t *root, int rank);

/* Prints who has not come, as ranges of ranks and how far they got. */
void kolo_root_missing(const root_t *root, char *text, size_t bytes);
/* Says who is missing, in one sentence for a person. */
void kolo_root_sentence(const root_t *root, char *text, size_t bytes);
/* Writes that into the flight record after each call, and ends the record when all have called. The ranks that wait
 * are told a moment later, for many may come at once. */
void kolo_root_show(root_t *root);

#endif
