/* SPDX-License-Identifier: Apache-2.0
 *
 * Boards: which of its numbered operations a rank is in, for peers who wait for it and wonder. A rank that has
 * waited too long shows its peer the entry of the operation it is in. The peer's progress thread compares it with
 * the entry that it has under the same number, whatever its own thread does, and answers with that one, so that
 * both sides learn of a difference; difference.c tells everybody else. Of a number that the peer has left more than
 * a thousand operations ago it knows no more than whether they have parted up to it; for one that it has not
 * reached it shows what it is in. If it has failed, it says so.
 *
 * With each entry goes a sum of all operations up to it. Where entries are alike and sums are not, something before
 * them differs: sums.c finds out what.
 *
 * Who waits in a send or receive shows how many it has begun instead: answer_pair() says when that proves
 * something.
 */
#include "base/log.h"
#include "diag/state.h"
#include "plan/plan.h"

#include <stdio.h>

void kolo_diag_set_board(kolo_oob_t *oob, const kolo_board_t *board, int stalled_ms, kolo_board_tell_fn_t tell,
                         kolo_board_needs_fn_t needs)
{
    pthread_mutex_lock(&oob->lock);
    kolo_diag(oob)->board = board;
    kolo_diag(oob)->board_tell = tell;
    kolo_diag(oob)->board_needs = needs;
    kolo_diag(oob)->stalled_ns = (uint64_t)stalled_ms * KOLO_NS_PER_MS;
    pthread_mutex_unlock(&oob->lock);
}

/* Reads a word. A writer makes the number invalid, writes the word, then the number; so equal numbers around the
 * word prove it. */
static bool look_up_call(const kolo_board_t *board, uint64_t number, uint64_t *word)
{
    const kolo_board_entry_t *e = &board->calls[number / KOLO_BOARD_STEPS % KOLO_BOARD_CALLS_KEPT];
    if (atomic_load_explicit(&e->number, memory_order_acquire) != number) return false;
    *word = atomic_load_explicit(&e->word, memory_order_acquire);
    return atomic_load_explicit(&e->number, memory_order_acquire) == number;
}

static bool look_up(const kolo_board_t *board, uint64_t number, uint64_t *word)
{
    return kolo_board_is_call(number) ? look_up_call(board, number, word) : kolo_sums_word(board, number, word);
}

static bool look_back(const kolo_oob_t *oob, uint64_t number, uint64_t *word)
{
    const kolo_board_t *board = kolo_diag(oob)->board;
    return board != NULL && look_up(board, number, word);
}

bool kolo_diag_look_back(kolo_oob_t *oob, uint64_t number, uint64_t *word)
{
    pthread_mutex_lock(&oob->lock);
    bool found = look_back(oob, number, word);
    pthread_mutex_unlock(&oob->lock);
    return found;
}

/* ---- sending; with the lock held ---- */

/* Returns the connection to show something on, if that can go out now. */
kolo_conn_t *kolo_board_way_out(kolo_peer_t *peer)
{
    const kolo_outbound_t *out = &kolo_peer_diag(peer)->board_out;
    return out->total > 0 && !out->done ? NULL : kolo_peer_out(peer); /* the next time, then */
}

void kolo_board_put_up(kolo_conn_t *conn, kolo_frame_kind_t kind, uint64_t number, size_t bytes)
{
    kolo_peer_t *peer = conn->peer;
    kolo_outbound_init(&kolo_peer_diag(peer)->board_out, kind, number);
    kolo_outbound_add(&kolo_peer_diag(peer)->board_out, kolo_peer_diag(peer)->board_bytes, bytes);
    kolo_debug("oob", "%s: rank %d shows rank %d its %s %llu", conn->oob->name, conn->oob->rank, peer->rank,
               kind == KOLO_FRAME_PAIR   ? "messages before operation"
               : kind == KOLO_FRAME_SUMS ? "sums up to operation"
                                         : "operation",
               (unsigned long long)number);
    kolo_conn_send(conn, &kolo_peer_diag(peer)->board_out);
}

static bool show(kolo_peer_t *peer, uint64_t number, uint64_t word, int rank, uint32_t flags)
{
    kolo_conn_t *conn = kolo_board_way_out(peer);
    kolo_board_frame_t f = {word, number, rank, flags, 0};
    if (conn == NULL) return false;
    if (!kolo_sums_at(kolo_diag(peer->oob)->board, number, &f.sum)) f.sum = 0;
    kolo_board_encode(&f, kolo_peer_diag(peer)->board_bytes);
    kolo_board_put_up(conn, KOLO_FRAME_BOARD, number, KOLO_BOARD_FRAME_BYTES);
    return true;
}

static uint64_t load(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

static const kolo_board_pair_t *pair_with(const kolo_oob_t *oob, int rank)
{
    const kolo_board_pair_t *pairs = atomic_load_explicit(&kolo_diag(oob)->board->pairs, memory_order_acquire);
    return pairs != NULL ? &pairs[rank] : NULL;
}

/* Returns what a question shows. */
static const kolo_board_pair_t *asking_pair(const kolo_oob_t *oob, int rank)
{
    const kolo_board_pair_t *asking = atomic_load_explicit(&kolo_diag(oob)->board->asking, memory_order_acquire);
    return asking != NULL ? &asking[rank] : pair_with(oob, rank);
}

static void show_pair(kolo_oob_t *oob, kolo_peer_t *peer, uint64_t number)
{
    const kolo_board_pair_t *pair = asking_pair(oob, peer->rank);
    kolo_conn_t *conn = kolo_board_way_out(peer);
    kolo_pair_frame_t f;
    if (pair == NULL || conn == NULL) return;
    for (int i = 0; i < 2; i++) {
        f.words[i] = load(&pair->word[i]);
        f.begun[KOLO_BOARD_RECV][i] = load(&pair->begun[KOLO_BOARD_RECV][i]);
        f.begun[KOLO_BOARD_SEND][i] = load(&pair->firm[i]);
    }
    kolo_pair_encode(&f, kolo_peer_diag(peer)->board_bytes);
    kolo_peer_diag(peer)->pair_asked = true;
    kolo_board_put_up(conn, KOLO_FRAME_PAIR, number, KOLO_PAIR_FRAME_BYTES);
}

/* Returns the peer, if it can be asked now; calls it where there is no connection yet. */
static kolo_peer_t *whom_to_ask(kolo_oob_t *oob, int rank)
{
    if (rank < 0 || rank >= oob->nranks || rank == oob->rank || kolo_diag(oob)->board == NULL || oob->closed)
        return NULL;
    kolo_peer_t *peer = kolo_peer_get(oob, rank);
    if (peer == NULL || peer->gone) return NULL;
    if (kolo_peer_out(peer) != NULL) return peer;
    if (peer->dial_status == KOLO_ERR_REMOTE)
        kolo_peer_absent(peer); /* what it sent before it went has been taken in since that call */
    else
        kolo_peer_dial(oob, peer, kolo_oob_deadline(oob, 0)); /* a failure shows when it is needed */
    return NULL;
}

void kolo_board_ask(kolo_oob_t *oob, int rank, uint64_t number)
{
    uint64_t word;
    if (kolo_diag(oob)->board == NULL || !look_up(kolo_diag(oob)->board, number, &word)) return;
    kolo_peer_t *peer = whom_to_ask(oob, rank);
    if (peer != NULL) show(peer, number, word, oob->rank, KOLO_BOARD_ASKS);
}

static void ask_pair(kolo_oob_t *oob, int rank, uint64_t number)
{
    kolo_peer_t *peer = whom_to_ask(oob, rank);
    if (peer != NULL) show_pair(oob, peer, number);
}

void kolo_diag_ask(kolo_oob_t *oob, int peer, uint64_t number)
{
    pthread_mutex_lock(&oob->lock);
    kolo_board_ask(oob, peer, number);
    pthread_mutex_unlock(&oob->lock);
}

void kolo_diag_ask_pair(kolo_oob_t *oob, int peer, uint64_t number)
{
    pthread_mutex_lock(&oob->lock);
    ask_pair(oob, peer, number);
    pthread_mutex_unlock(&oob->lock);
}

void kolo_diag_give_up(kolo_oob_t *oob)
{
    pthread_mutex_lock(&oob->lock);
    kolo_diag(oob)->gave_up = true;
    pthread_mutex_unlock(&oob->lock);
}

void kolo_diag_give_up_pair(kolo_oob_t *oob, uint64_t number, uint64_t word)
{
    pthread_mutex_lock(&oob->lock);
    kolo_diag(oob)->gave_up_number = number;
    kolo_diag(oob)->gave_up_word = word;
    pthread_mutex_unlock(&oob->lock);
}

/* ---- what arrives; on the progress thread, with the lock held ---- */

static bool is_before(uint64_t a, uint64_t b)
{
    return (int64_t)(a - b) < 0;
}

/* Shows that I have failed. With it goes the last operation that I was in: perhaps that is what was wrong. */
static bool show_failure(kolo_oob_t *oob, kolo_peer_t *peer, uint64_t asked, uint32_t flags)
{
    const kolo_board_t *board = kolo_diag(oob)->board;
    kolo_board_frame_t f = {0, kolo_board_last(board), oob->rank, KOLO_BOARD_GAVE_UP | flags, 0};
    kolo_conn_t *conn = kolo_board_way_out(peer);
    if (conn == NULL) return false;
    if (!kolo_sums_word(board, f.number, &f.word)) f.number = KOLO_BOARD_NONE;
    kolo_board_encode(&f, kolo_peer_diag(peer)->board_bytes);
    kolo_board_put_up(conn, KOLO_FRAME_BOARD, asked, KOLO_BOARD_FRAME_BYTES);
    return true;
}

/* Shows the last operation to an asker that is ahead of me: is it in what comes next, or have we parted before? */
static void show_last(kolo_oob_t *oob, kolo_peer_t *peer, uint64_t asked)
{
    const kolo_board_t *board = kolo_diag(oob)->board;
    uint64_t last = kolo_board_last(board), word;
    if (!kolo_board_is_call(asked) && last != KOLO_BOARD_NONE && is_before(last, asked) &&
        kolo_sums_word(board, last, &word))
        show(peer, last, word, oob->rank, 0);
}

/* Has this rank refused what is asked about, and not called it since? */
static bool has_refused(const kolo_board_t *board, const kolo_question_t *q)
{
    return atomic_load_explicit(&board->refused, memory_order_acquire) == q->number &&
           load(&board->refused_word) == q->word;
}

static bool has_refused_message(const kolo_board_pair_t *mine, int direction)
{
    return mine != NULL && load(&mine->refused[direction]) == load(&mine->begun[direction][KOLO_BOARD_LINES]) +
                                                                  load(&mine->begun[direction][KOLO_BOARD_SLOTS]) +
                                                                  1;
}

static bool answer_board(kolo_oob_t *oob, kolo_peer_t *peer, const kolo_question_t *q)
{
    const kolo_diag_t *d = kolo_diag(oob);
    uint64_t mine;
    bool called = look_back(oob, q->number, &mine);
    if (called && mine != q->word) return show(peer, q->number, mine, oob->rank, 0);
    if (!called && has_refused(d->board, q))
        return show(peer, q->number, kolo_signature_of_call(KOLO_CALL_WORD_REFUSED), oob->rank, 0);
    if (d->gave_up_word != 0 && !is_before(q->number, d->gave_up_number))
        return show(peer, q->number, d->gave_up_word, oob->rank, 0);
    if (d->gave_up) return show_failure(oob, peer, q->number, 0);
    show_last(oob, peer, q->number);
    return false; /* there may be more to say later */
}

/* Returns the direction in which the asker has begun messages that I have not, -1: none. */
static int missing(const kolo_oob_t *oob, int rank, const kolo_pair_frame_t *theirs)
{
    const kolo_board_pair_t *mine = pair_with(oob, rank);
    for (int d = 0; d < 2; d++)
        for (int way = 0; way < 2; way++)
            if ((mine != NULL ? load(&mine->begun[!d][way]) : 0) < theirs->begun[d][way]) return d;
    return -1;
}

/* Tells whether the asker has begun a receive that goes another way than what I have sent for it: both ends choose
 * alike by what they have for a message, so what they have differs. Of as many sends as its receives fewer went
 * that way. */
static bool goes_apart(const kolo_oob_t *oob, int rank, const kolo_pair_frame_t *theirs)
{
    const kolo_board_pair_t *mine = pair_with(oob, rank);
    uint64_t sends = 0, receives = 0;
    bool fewer = false;
    for (int way = 0; way < 2 && mine != NULL; way++) {
        uint64_t begun = load(&mine->begun[KOLO_BOARD_SEND][way]), asked = theirs->begun[KOLO_BOARD_RECV][way];
        sends += begun;
        receives += asked;
        fewer = fewer || begun < asked;
    }
    return fewer && sends >= receives;
}

#define HELD_MOST 8 /* operations at the end of which one is looked for that holds me */

/* Tells whether I am in an operation, or a call, not before `number`, that I cannot leave without `rank`. Calls are
 * published when they are queued; in which ones I am is told apart. */
static bool is_held_by(const kolo_oob_t *oob, int rank, uint64_t *number, uint64_t *word)
{
    const kolo_board_t *board = kolo_diag(oob)->board;
    bool call = kolo_board_is_call(*number);
    uint64_t last = kolo_board_last(board);
    for (uint64_t i = 0; i < (call ? KOLO_BOARD_PARTS : HELD_MOST); i++) {
        uint64_t n = call ? atomic_load_explicit(&board->in[i], memory_order_acquire) : last - (HELD_MOST - 1) + i;
        if (kolo_board_is_call(n) != call || is_before(n, *number) || !look_up(board, n, word) ||
            !kolo_diag(oob)->board_needs(*word, oob->rank, rank, oob->nranks))
            continue;
        *number = n;
        return true;
    }
    return false;
}

/* Tells whether I wait for `rank` to connect, for an operation not before `number`. It comes to that by its own
 * call alone, whatever the operation then needs from it. */
static bool connects_with(const kolo_oob_t *oob, int rank, uint64_t *number, uint64_t *word)
{
    const kolo_board_t *board = kolo_diag(oob)->board;
    uint64_t n = load(&board->connecting);
    if (n == KOLO_BOARD_NONE || kolo_oob_awaiting(oob, rank) == NULL || is_before(n, *number)) return false;
    if (!look_up(board, n, word)) return false;
    *number = n;
    return true;
}

/* Answers who waits for messages that I have not begun, and comes to no further operation before that. If I am in
 * one that I cannot leave without it, neither of us ever goes on. The operation is looked at first: it is published
 * after the messages before it were counted, and those behind it cannot be begun, so the counts are final. */
static bool answer_pair(kolo_oob_t *oob, kolo_peer_t *peer, const kolo_question_t *q)
{
    uint64_t number = q->number, word = 0;
    bool held = is_held_by(oob, peer->rank, &number, &word) || connects_with(oob, peer->rank, &number, &word);
    int in = missing(oob, peer->rank, &q->pair);
    if (in < 0) return false;
    if (goes_apart(oob, peer->rank, &q->pair)) {
        in = KOLO_BOARD_RECV;
        held = true;
        word = load(&pair_with(oob, peer->rank)->word[KOLO_BOARD_SEND]);
        number = q->number;
    }
    uint32_t flags = KOLO_BOARD_STUCK | (in == KOLO_BOARD_SEND ? KOLO_BOARD_STUCK_SEND : 0);
    const kolo_board_pair_t *mine = pair_with(oob, peer->rank);
    if (!held && has_refused_message(mine, !in)) /* the asker knows whether it had refused it, too */
        return show(peer, load(&mine->refused[!in]), kolo_signature_of_call(KOLO_CALL_WORD_REFUSED), oob->rank,
                    flags);
    if (!held) return kolo_diag(oob)->gave_up && show_failure(oob, peer, q->number, KOLO_BOARD_STUCK);
    bool told = show(peer, number, word, oob->rank, flags);
    kolo_difference_note(oob, &(kolo_difference_t){oob->rank, peer->rank, number, word, number, q->pair.words[in]});
    return told;
}

static void answer(kolo_oob_t *oob, kolo_peer_t *peer)
{
    const kolo_question_t *q = &kolo_peer_diag(peer)->asked;
    if (q->kind == KOLO_FRAME_BOARD ? answer_board(oob, peer, q) : answer_pair(oob, peer, q))
        kolo_peer_diag(peer)->asked.kind = (kolo_frame_kind_t)0;
}

/* Tells those who asked before there was anything to tell. */
static void answer_all(kolo_oob_t *oob)
{
    for (int i = 0; i < KOLO_PEER_BUCKETS; i++)
        for (kolo_peer_t *peer = oob->peers[i]; peer != NULL; peer = peer->next)
            if (kolo_peer_diag(peer)->asked.kind != 0) answer(oob, peer);
}

static void note_quitter(kolo_oob_t *oob, int rank, uint64_t number)
{
    kolo_discovery_t *d = &kolo_diag(oob)->quitter;
    if (atomic_load_explicit(&d->found, memory_order_relaxed)) return;
    d->what = (kolo_difference_t){.other = rank, .number = number};
    atomic_store_explicit(&d->found, true, memory_order_release);
    kolo_oob_wake(oob);
}

void kolo_board_note(kolo_oob_t *oob, uint64_t number, uint64_t mine, int rank, uint64_t theirs)
{
    if (rank == oob->rank) return;
    kolo_difference_note(oob, &(kolo_difference_t){oob->rank, rank, number, mine, number, theirs});
    answer_all(oob);
}

/* Tells that the rank that shows operation f->number made other calls up to it. */
static void tell_parted(kolo_oob_t *oob, kolo_peer_t *peer, const kolo_board_frame_t *f)
{
    uint64_t mine;
    if (kolo_sums_at(kolo_diag(oob)->board, f->number, &mine))
        kolo_sums_show(peer, f->number, KOLO_SUMS_STEP);
    else
        kolo_board_note(oob, f->number, 0, f->rank, 0); /* too far behind me to find out which */
}

/* Tells whether this rank, too, had refused what it has called since, and the peer not yet: the peer may be late.
 */
static bool have_both_refused(const kolo_oob_t *oob, int peer, const kolo_board_frame_t *f)
{
    const kolo_board_t *board = kolo_diag(oob)->board;
    const kolo_board_pair_t *pair = pair_with(oob, peer);
    uint64_t mine;
    if (f->word != kolo_signature_of_call(KOLO_CALL_WORD_REFUSED)) return false;
    if (f->flags & KOLO_BOARD_STUCK) {
        int in = f->flags & KOLO_BOARD_STUCK_SEND ? KOLO_BOARD_SEND : KOLO_BOARD_RECV;
        return pair != NULL && load(&pair->refused[in]) == f->number;
    }
    return look_back(oob, f->number, &mine) && load(&board->refused) == f->number &&
           load(&board->refused_word) == mine;
}

static const char *board_arrived(kolo_conn_t *conn, kolo_question_t *q)
{
    kolo_oob_t *oob = conn->oob;
    kolo_board_frame_t f;
    const char *wrong = kolo_board_decode(conn->body, KOLO_BOARD_FRAME_BYTES, oob->nranks, &f);
    if (wrong != NULL || kolo_diag(oob)->board == NULL) return wrong;
    bool gave_up = (f.flags & KOLO_BOARD_GAVE_UP) != 0;
    if (!gave_up && f.number != q->number) return "a board of two numbers";
    uint64_t mine;
    q->word = f.word;
    if (f.flags & KOLO_BOARD_ASKS) q->kind = KOLO_FRAME_BOARD;
    if (have_both_refused(oob, conn->peer->rank, &f)) return NULL;
    if (((f.flags & KOLO_BOARD_STUCK) == 0 || gave_up) && look_back(oob, f.number, &mine) && mine != f.word) {
        kolo_board_note(oob, f.number, mine, f.rank, f.word);
    } else if (f.flags & KOLO_BOARD_STUCK) {
        const kolo_board_pair_t *pair = asking_pair(oob, conn->peer->rank);
        int in = f.flags & KOLO_BOARD_STUCK_SEND ? KOLO_BOARD_SEND : KOLO_BOARD_RECV;
        if (pair == NULL || !kolo_peer_diag(conn->peer)->pair_asked) return "an answer that nobody asked for";
        if (gave_up)
            note_quitter(oob, f.rank, q->number);
        else
            kolo_board_note(oob, q->number, load(&pair->word[in]), f.rank, f.word);
    } else if (gave_up && look_back(oob, q->number, &mine)) {
        note_quitter(oob, f.rank, q->number);
    } else if (!gave_up && f.sum != 0 && kolo_sums_parted(kolo_diag(oob)->board, f.number, f.sum)) {
        tell_parted(oob, conn->peer, &f);
    }
    return NULL;
}

const char *kolo_board_arrived(kolo_conn_t *conn)
{
    kolo_question_t q = {.number = conn->frame.tag};
    const char *wrong;
    if (conn->frame.kind == KOLO_FRAME_PAIR) {
        q.kind = KOLO_FRAME_PAIR;
        wrong = kolo_pair_decode(conn->body, KOLO_PAIR_FRAME_BYTES, &q.pair);
    } else {
        wrong = board_arrived(conn, &q);
    }
    if (wrong != NULL || kolo_diag(conn->oob)->board == NULL || q.kind == 0) return wrong;
    kolo_peer_diag(conn->peer)->asked = q;
    answer(conn->oob, conn->peer);
    return NULL;
}

/* ---- the waits of this room ---- */

void kolo_board_look(kolo_oob_t *oob, uint64_t now_ns)
{
    if (pthread_mutex_trylock(&oob->lock) != 0) return; /* somebody is busy with it: it does not wait */
    const kolo_awaiting_t *w = kolo_oob_awaiting(oob, -1);
    if (kolo_diag(oob)->board != NULL && w != NULL &&
        now_ns >= KOLO_MAX(w->since_ns, kolo_diag(oob)->asked_ns) + kolo_diag(oob)->stalled_ns) {
        uint64_t number = load(&kolo_diag(oob)->board->connecting);
        if (number != KOLO_BOARD_NONE)
            kolo_board_ask(oob, w->rank, number);
        else if ((number = load(&kolo_diag(oob)->board->pairing)) != KOLO_BOARD_NONE)
            ask_pair(oob, w->rank, number);
        kolo_diag(oob)->asked_ns = now_ns;
    }
    kolo_left_look(oob);
    pthread_mutex_unlock(&oob->lock);
}
