/* SPDX-License-Identifier: Apache-2.0
 *
 * Why it hangs: boards, by which ranks that wait for each other find out that they are in different operations; and
 * surveys, by which a rank asks the others what they do.
 */
#ifndef KOLO_DIAG_DIAG_H
#define KOLO_DIAG_DIAG_H

#include "base/recorder.h"
#include "oob/oob.h"

/* ---- boards: who is in which operation ---- */

#define KOLO_BOARD_SUMS 1024  /* about as many operations can still be looked up */
#define KOLO_BOARD_PAST 65536 /* of so many it is known whether they were called alike */
#define KOLO_BOARD_NONE UINT64_MAX
typedef struct {
    _Atomic uint64_t number, word; /* word: what the operation is; equal on all ranks if all call the same */
} kolo_board_entry_t;
/* Sends and receives have no numbers that all ranks share; both ends of a pair count them instead, each way for
 * itself and without empty messages. Counted before anything else is done. */
enum { KOLO_BOARD_RECV, KOLO_BOARD_SEND };
enum { KOLO_BOARD_LINES, KOLO_BOARD_SLOTS };
typedef struct {
    _Atomic uint64_t begun[2][2]; /* by direction and way */
    _Atomic uint64_t firm[2];     /* by way: the last send that cannot end before its receive has begun */
    _Atomic uint64_t word[2];     /* by direction: what the last one is */
    _Atomic uint64_t refused[2];  /* by direction: which one this rank refused last, counted from 1 on; 0: none */
} kolo_board_pair_t;
/* Where parts of a communicator run its operations, each under numbers of its own (comm/gpu/levels.c), the calls
 * of the user have a row for themselves. Their numbers begin at KOLO_BOARD_CALLS, where no operation's number comes
 * to, and are KOLO_BOARD_STEPS apart: a call may run in steps. */
#define KOLO_BOARD_CALLS (UINT64_C(1) << 62)
#define KOLO_BOARD_STEPS (UINT64_C(1) << 16)
enum { KOLO_BOARD_WHOLE, KOLO_BOARD_LANE, KOLO_BOARD_KERNELS, KOLO_BOARD_PARTS };
static inline bool kolo_board_is_call(uint64_t number)
{
    return number >> 62 == 1;
}
static inline uint64_t kolo_board_call_of(uint64_t step)
{
    return step & ~(KOLO_BOARD_STEPS - 1);
}
/* Returns a number as it is shown to people. */
static inline uint64_t kolo_board_shown(uint64_t number)
{
    return kolo_board_is_call(number) ? (number - KOLO_BOARD_CALLS) / KOLO_BOARD_STEPS : number;
}
#define KOLO_BOARD_CALLS_KEPT 8
typedef struct {
    /* Of the words of all operations up to this one, by number modulo: equal on two ranks if all were (sums.c). */
    _Atomic uint64_t sums[KOLO_BOARD_SUMS];
    /* A few bits of more of them: a rank may be as far ahead as the kernels' buffers take what it sends. */
    _Atomic uint16_t past[KOLO_BOARD_PAST];
    _Atomic uint64_t last;                           /* the newest operation, or KOLO_BOARD_NONE */
    uint64_t first;                                  /* the number that operations begin with */
    kolo_board_entry_t calls[KOLO_BOARD_CALLS_KEPT]; /* by number / KOLO_BOARD_STEPS modulo; zero at first */
    /* The call that each part is in, or is seen to wait in; 0: none. What was called before it is over. */
    _Atomic uint64_t in[KOLO_BOARD_PARTS];
    _Atomic uint64_t connecting;            /* the operation whose connections are being made */
    _Atomic uint64_t pairing;               /* those of sends and receives are: the number of the next operation */
    _Atomic uint64_t refused, refused_word; /* the operation that this rank refused last, or KOLO_BOARD_NONE */
    _Atomic(kolo_board_pair_t *) pairs;     /* by rank; NULL until there is a send or receive */
    /* Where messages are begun long after they were counted: what questions show of them, and answers do not. NULL:
     * the same. */
    _Atomic(kolo_board_pair_t *) asking;
} kolo_board_t;
/* Notes a message that begins. One thread at a time writes, any reads; readers see the counts at the latest with
 * the next operation. */
static inline void kolo_board_begin(kolo_board_pair_t *pair, int direction, int way, uint64_t word, bool firm)
{
    uint64_t n = atomic_load_explicit(&pair->begun[direction][way], memory_order_relaxed) + 1;
    atomic_store_explicit(&pair->word[direction], word, memory_order_relaxed);
    atomic_store_explicit(&pair->begun[direction][way], n, memory_order_relaxed);
    if (firm) atomic_store_explicit(&pair->firm[way], n, memory_order_relaxed);
}
/* Sets up a board of zeros, before anybody reads it. */
static inline void kolo_board_init(kolo_board_t *board, uint64_t first)
{
    board->first = first;
    atomic_init(&board->last, KOLO_BOARD_NONE);
    atomic_init(&board->connecting, KOLO_BOARD_NONE);
    atomic_init(&board->pairing, KOLO_BOARD_NONE);
    atomic_init(&board->refused, KOLO_BOARD_NONE);
}
/* Notes that this rank has refused its next operation, which others may have begun: for them, should it not call it
 * again. */
static inline void kolo_board_refuse(kolo_board_t *board, uint64_t number, uint64_t word)
{
    atomic_store_explicit(&board->refused_word, word, memory_order_relaxed);
    atomic_store_explicit(&board->refused, number, memory_order_release);
}
/* Does the same with its next message of a pair. */
static inline void kolo_board_refuse_message(kolo_board_pair_t *pair, int direction)
{
    uint64_t n = 1;
    for (int way = 0; way < 2; way++) n += atomic_load_explicit(&pair->begun[direction][way], memory_order_relaxed);
    atomic_store_explicit(&pair->refused[direction], n, memory_order_relaxed);
}
/* Mixes a sum with the next word. Twice in a row gives the word back; zero stays zero without one. */
static inline uint64_t kolo_board_mixed(uint64_t sum)
{
    sum *= UINT64_C(0x9e3779b97f4a7c15);
    return sum ^ sum >> 32;
}
static inline uint16_t kolo_board_short(uint64_t sum)
{
    return (uint16_t)(kolo_board_mixed(sum) >> 48); /* the last word is in its lower bits */
}
/* Publishes an operation. One thread at a time writes, any reads; it is a release, so who sees a sum also sees the
 * numbers before it. */
static inline void kolo_board_publish(kolo_board_t *board, uint64_t number, uint64_t word)
{
    uint64_t sum = atomic_load_explicit(&board->sums[(number - 1) % KOLO_BOARD_SUMS], memory_order_relaxed);
    sum = kolo_board_mixed(sum) + word;
    atomic_store_explicit(&board->past[number % KOLO_BOARD_PAST], kolo_board_short(sum), memory_order_release);
    atomic_store_explicit(&board->sums[number % KOLO_BOARD_SUMS], sum, memory_order_release);
    atomic_store_explicit(&board->last, number, memory_order_release);
}
/* Publishes a call of a hierarchical communicator, or a step of one. */
static inline void kolo_board_publish_call(kolo_board_t *board, uint64_t number, uint64_t word)
{
    kolo_board_entry_t *e = &board->calls[number / KOLO_BOARD_STEPS % KOLO_BOARD_CALLS_KEPT];
    atomic_store_explicit(&e->number, KOLO_BOARD_NONE, memory_order_relaxed);
    atomic_store_explicit(&e->word, word, memory_order_release);
    atomic_store_explicit(&e->number, number, memory_order_release);
}
/* Returns the newest operation, or KOLO_BOARD_NONE. */
static inline uint64_t kolo_board_last(const kolo_board_t *board)
{
    return atomic_load_explicit(&board->last, memory_order_acquire);
}
/* Two ranks that have called different things. The numbers are equal, unless it is only known that what the other
 * one sent is of another operation; then the words may be, too: the counts differ by more than words tell. One word
 * may be a send or receive, from which that rank never comes to this operation. Both words 0: some operation up to
 * this one differs, and which is not known any more. */
typedef struct {
    int rank, other;
    uint64_t number, word, other_number, other_word;
} kolo_difference_t;
typedef void (*kolo_board_tell_fn_t)(const kolo_difference_t *difference, char *buf, size_t bytes);
/* Can `rank` not leave the operation `word` before `other` has entered it? Only if that is certain. */
typedef bool (*kolo_board_needs_fn_t)(uint64_t word, int rank, int other, int nranks);
/* Answers peers' questions from this board from now on; waits of this room that last longer than stalled_ms ask on
 * behalf of board->connecting or board->pairing. The board must outlive the oob. */
void kolo_diag_set_board(kolo_oob_t *oob, const kolo_board_t *board, int stalled_ms, kolo_board_tell_fn_t tell,
                         kolo_board_needs_fn_t needs);
/* Shows `peer`, for which this rank has long waited in operation `number`, its entry. Never blocks;
 * kolo_diag_difference() finds an answer that differs. */
void kolo_diag_ask(kolo_oob_t *oob, int peer, uint64_t number);
/* Asks a peer for which this rank has long waited in a send or receive; its next operation, or call, has this
 * number. Answers are found likewise. */
void kolo_diag_ask_pair(kolo_oob_t *oob, int peer, uint64_t number);
/* Looks up what this rank was in under that number; false if it is no longer known. */
bool kolo_diag_look_back(kolo_oob_t *oob, uint64_t number, uint64_t *word);
/* Tells all ranks that data has shown two of them to differ. */
void kolo_diag_note_difference(kolo_oob_t *oob, const kolo_difference_t *difference);
/* Returns whether two ranks are known to differ, and in what. */
bool kolo_diag_found_difference(kolo_oob_t *oob, kolo_difference_t *difference);
/* Tells whoever asks from now on that this rank has failed. */
void kolo_diag_give_up(kolo_oob_t *oob);
/* Tells whoever asks about this rank's next operation, which has this number, or a later one, that a send or
 * receive, `word`, met something else. Called when it is about to fail because of that. */
void kolo_diag_give_up_pair(kolo_oob_t *oob, uint64_t number, uint64_t word);
/* Returns KOLO_ERR_MISMATCH, with its message, once two ranks are known to differ; KOLO_ERR_REMOTE when a peer has
 * failed. Any thread; two loads while there is nothing. */
kolo_status_t kolo_diag_difference(kolo_oob_t *oob);

/* ---- ranks that leave without meeting the others (left.c) ---- */

/* Sets the word that the call of leaving has in differences. Call it before set_board. */
void kolo_diag_set_leave_word(kolo_oob_t *oob, uint64_t word);
/* Tells all ranks that this one leaves after operation `last` (KOLO_BOARD_NONE: it has called none). !counts:
 * operations are not counted alike on all ranks. Does not wait. */
void kolo_diag_leave_at(kolo_oob_t *oob, uint64_t last, uint64_t sum, bool counts);
/* Has this rank called what those did that have left? If not, all are told of it (kolo_diag_difference()). */
void kolo_diag_look_left(kolo_oob_t *oob);
/* Compares the sums of ranks that have left with this one's, which is about to. Returns false while it is known
 * that they differ, but not where; call it again. */
bool kolo_diag_compare_left(kolo_oob_t *oob);
/* Tells whether all others have left, in any way. */
bool kolo_diag_all_left(kolo_oob_t *oob);

/* ---- surveys: what do the others do? (survey.c) ---- */

#define KOLO_SURVEY_OPS   4
#define KOLO_SURVEY_RANKS 64  /* asked at once, at most */
#define KOLO_SURVEY_NOTE  128 /* bytes of a sentence, with its end */
typedef struct {
    uint64_t number, word,
        age_ns; /* as in a flight record; the age is since its begin or, if it is over, its end */
    uint32_t peer;
    kolo_record_kind_t kind;
    kolo_record_state_t state;
} kolo_survey_op_t;
typedef struct {
    int rank;
    bool heard, recorded;     /* recorded: the rank keeps a record; else there are no ops */
    kolo_status_t failed;     /* what ended the use of its communicator */
    kolo_callback_t callback; /* in which function of the user it is, ... */
    uint64_t callback_ns;     /* ... and for how long; 0: in none */
    uint32_t nops;
    kolo_survey_op_t ops[KOLO_SURVEY_OPS]; /* its last operations, in the order of their calls */
    char note[KOLO_SURVEY_NOTE];           /* who is missing, as its engine knows it; printable; "": it does not */
} kolo_finding_t;
/* Fills in what this rank answers to others. Called on the progress thread with locks held: it does not wait and
 * calls nothing of this room. */
typedef void (*kolo_survey_fn_t)(void *arg, kolo_finding_t *mine);
void kolo_diag_set_survey(kolo_oob_t *oob, kolo_survey_fn_t fn, void *arg); /* NULL: none; it is not running then */
/* Asks the ranks findings[i].rank and waits wait_ms at most for those that may still answer. Sets the thread's
 * error text. */
void kolo_diag_survey(kolo_oob_t *oob, kolo_finding_t *findings, int count, int wait_ms);

#endif
