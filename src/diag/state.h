/* SPDX-License-Identifier: Apache-2.0
 *
 * What this room keeps of an oob and of each of its peers. All under the oob's lock.
 */
#ifndef KOLO_DIAG_STATE_H
#define KOLO_DIAG_STATE_H

#include "diag/frames.h"
#include "oob/internal.h"

/* What a peer wants to know. */
typedef struct {
    kolo_frame_kind_t kind; /* KOLO_FRAME_BOARD or _PAIR; 0: nothing, or it has been told */
    uint64_t number, word;
    kolo_pair_frame_t pair;
} kolo_question_t;

/* What is known of other ranks' calls (board.c, difference.c). The rest is written before `found`, once. */
typedef struct {
    _Atomic bool found;
    kolo_difference_t what;
} kolo_discovery_t;

/* A survey, on the stack of who asks. */
typedef struct {
    uint64_t number;
    kolo_finding_t *findings;
    int count;
    bool asked[KOLO_SURVEY_RANKS];
} kolo_survey_t;

/* A rank that has left in order, and up to where it had come (left.c). */
typedef struct {
    bool known, counts; /* counts: operations are counted alike on all ranks */
    uint64_t last, sum, gathers;
    uint64_t asked_ns; /* it was asked in what we differ */
} kolo_left_t;

/* Of an oob. */
typedef struct {
    const kolo_board_t *board; /* NULL: none yet */
    kolo_board_tell_fn_t board_tell;
    kolo_board_needs_fn_t board_needs;
    uint64_t stalled_ns, asked_ns; /* after which it asks; when it asked last */
    kolo_discovery_t difference;   /* two ranks, of which this one may be neither */
    kolo_discovery_t quitter;      /* only what.other, which has failed, and what.number, in which it is missed */
    bool gave_up;                  /* this rank has failed: it tells so who asks */
    uint64_t gave_up_word, gave_up_number; /* in this send or receive, before that operation; 0: in none */

    kolo_survey_fn_t survey_fn;
    void *survey_arg;
    kolo_survey_t *survey; /* ours, while it lasts */
    uint64_t surveys;

    kolo_left_t *left; /* by rank; NULL: nobody has left */
    uint64_t leave_word;
    bool went; /* this rank has left */
} kolo_diag_t;

/* Of a peer. */
typedef struct {
    kolo_outbound_t board_out; /* the last board shown to it */
    uint8_t board_bytes[KOLO_SUMS_FRAME_MOST];
    kolo_question_t asked;                    /* what it asked last, until there is an answer */
    bool pair_asked;                          /* by us, ever */
    kolo_outbound_t survey_out, findings_out; /* our last question, our last answer (survey.c) */
    uint8_t findings_bytes[KOLO_FINDINGS_FRAME_BYTES];
} kolo_peer_diag_t;

static inline kolo_diag_t *kolo_diag(const kolo_oob_t *oob)
{
    return oob->state[KOLO_ROOM_DIAG];
}

static inline kolo_peer_diag_t *kolo_peer_diag(const kolo_peer_t *peer)
{
    return peer->state[KOLO_ROOM_DIAG];
}

/* ---- boards (board.c); with the lock held ---- */

void kolo_board_ask(kolo_oob_t *oob, int rank, uint64_t number);
/* Sends what is in the peer's board_bytes, if that can go out now. */
kolo_conn_t *kolo_board_way_out(kolo_peer_t *peer);
void kolo_board_put_up(kolo_conn_t *conn, kolo_frame_kind_t kind, uint64_t number, size_t bytes);
/* Notes what `rank` shows, `theirs`: it has the number of an operation of mine, or tells of what a message of mine
 * never meets. */
void kolo_board_note(kolo_oob_t *oob, uint64_t number, uint64_t mine, int rank, uint64_t theirs);
/* Takes a message that has come in; on the progress thread. Returns NULL, or what is wrong with it. */
const char *kolo_board_arrived(kolo_conn_t *conn);
/* Asks on behalf of a rank's thread that waits, now and then. On the progress thread, without the lock. */
void kolo_board_look(kolo_oob_t *oob, uint64_t now_ns);

/* ---- sums (sums.c); with the lock held, but for the first three ---- */

/* Returns the sum of all operations up to this one, 0 before the first. false: it is not known, or not any more. */
bool kolo_sums_at(const kolo_board_t *board, uint64_t number, uint64_t *sum);
bool kolo_sums_word(const kolo_board_t *board, uint64_t number, uint64_t *word);
/* Tells whether it is certain that a rank with this sum has made other calls up to this one. */
bool kolo_sums_parted(const kolo_board_t *board, uint64_t number, uint64_t sum);
/* Shows a peer whose sum of this number is another one this rank's, by which it finds the first operation that
 * differs. */
bool kolo_sums_show(kolo_peer_t *peer, uint64_t number, uint32_t step);
const char *kolo_sums_arrived(kolo_conn_t *conn);

/* ---- differences (difference.c); with the lock held ---- */

/* Remembers the first one that is found and tells all ranks of it. */
void kolo_difference_note(kolo_oob_t *oob, const kolo_difference_t *found);
/* Tells the rank at the other end, if there is something to tell. */
void kolo_difference_tell(kolo_conn_t *conn);
const char *kolo_difference_arrived(kolo_conn_t *conn);

/* ---- ranks that have left (left.c); with the lock held ---- */

const char *kolo_left_arrived(kolo_conn_t *conn);
/* Tells the rank at the other end who has left. */
void kolo_left_tell(kolo_conn_t *conn);
/* Compares with them, while a thread waits. */
void kolo_left_look(kolo_oob_t *oob);

const char *kolo_diag_survey_asked(kolo_conn_t *conn);
const char *kolo_findings_arrived(kolo_conn_t *conn);

#endif
