/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that call different things. Most are caught by the signature that travels with every slot (executor). Here
 * are the cases in which no slot arrives, because the ranks wait on different connections: each leaves the
 * signature of its operation on its board before it connects or waits for anything, and who waits long asks those
 * it waits for (diag/board.c). Only collectives have numbers that all ranks share; of sends and receives both
 * ends count how many they have begun.
 */
#include "base/clock.h"
#include "comm/call/call.h"

#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ASKED_AT_ONCE    16
#define ANSWER_MS        200
#define QUICK_QUESTIONS  10
#define NEIGHBOUR_EACH   4 /* questions: the next rank is asked, too */
#define PAIRS_AT_ONCE    64
#define PAUSE_MOST_NS    (10 * KOLO_NS_PER_S)
#define ROOTS_TOLD_APART 8191                  /* by a signature */
#define PAIRS            (KOLO_BOARD_NONE - 1) /* in the place of an operation that is long in coming */

/* Tells that one rank has refused the call that another one has made. */
static bool tell_refused(const kolo_difference_t *d, char *buf, size_t bytes)
{
    uint64_t refused = kolo_signature_of_call(KOLO_CALL_WORD_REFUSED);
    bool first = d->word == refused;
    uint64_t word = first ? d->other_word : d->word;
    char words[160], operation[200] = "";
    if (!first && d->other_word != refused) return false;
    kolo_signature_print(word, words, sizeof words);
    if (kolo_signature_fields(word).coll != KOLO_COLL_P2P)
        snprintf(operation, sizeof operation, "operation %" PRIu64 ", ", kolo_board_shown(d->number));
    snprintf(buf, bytes,
             "rank %d is in %s%s, which rank %d has refused: nobody can go on, and what kolo_get_last_error() said "
             "there is the reason",
             first ? d->other : d->rank, operation, words, first ? d->rank : d->other);
    return true;
}

static void tell(const kolo_difference_t *d, char *buf, size_t bytes)
{
    static const char rule[] = "all ranks must make the same calls in the same order";
    char words[160], others[160];
    uint64_t number = kolo_board_shown(d->number), other_number = kolo_board_shown(d->other_number);
    if (tell_refused(d, buf, bytes)) return;
    kolo_signature_print(d->word, words, sizeof words);
    kolo_signature_print(d->other_word, others, sizeof others);
    if (d->word == 0 && d->other_word == 0)
        snprintf(
            buf, bytes,
            "rank %d and rank %d are in different places of their programs: an operation not after number %" PRIu64
            ", too long ago to be known still, was another one on one of them than on the other, or had another "
            "root, count, type or operator: %s; KOLO_CHECK=deep finds it when it is called",
            d->rank, d->other, number, rule);
    else if (kolo_signature_fields(d->word).coll == KOLO_COLL_P2P && d->word != d->other_word &&
             kolo_signature_fields(d->other_word).coll == KOLO_COLL_P2P)
        snprintf(buf, bytes, "rank %d is in %s, but what rank %d has for it is %s: both ends must name the same",
                 d->rank, words, d->other, others);
    else if (kolo_signature_fields(d->word).coll == KOLO_COLL_P2P)
        snprintf(buf, bytes,
                 "rank %d waits in %s, but rank %d is in operation %" PRIu64
                 " (%s), which rank %d has not called: neither can go on",
                 d->rank, words, d->other, other_number, others, d->rank);
    else if (kolo_signature_fields(d->other_word).coll == KOLO_COLL_P2P)
        snprintf(buf, bytes,
                 "operation %" PRIu64 " of rank %d is %s, but rank %d has not called it and is in %s: neither can "
                 "go on",
                 number, d->rank, words, d->other, others);
    else if (d->number != d->other_number)
        snprintf(buf, bytes,
                 "rank %d is in operation %" PRIu64 " (%s), but rank %d is in operation %" PRIu64 " (%s): %s",
                 d->rank, number, words, d->other, other_number, others, rule);
    else if (d->word == d->other_word)
        snprintf(buf, bytes, "operation %" PRIu64 " (%s) has another count on rank %d than on rank %d: %s", number,
                 words, d->rank, d->other, rule);
    else
        snprintf(buf, bytes, "operation %" PRIu64 " of rank %d is %s, that of rank %d is %s: %s", number, d->rank,
                 words, d->other, others, rule);
}

/* Tells whether `rank` needs the other's data by what the operation computes, whatever the algorithm. The v forms
 * (their root is none) may have nothing from it, and without elements nobody waits. */
static bool needs(uint64_t word, int rank, int other, int nranks)
{
    kolo_signature_fields_t f = kolo_signature_fields(word);
    if (f.coll == KOLO_COLL_BARRIER) return true;
    if (f.count == 0 || f.op == KOLO_SIGNATURE_V) return false;
    const kolo_coll_traits_t *t = kolo_coll_traits(f.coll);
    if (!t->whole && !kolo_coll_by_rank(f.coll)) return false;
    if (!kolo_coll_rooted(f.coll)) return f.root == 0;
    return nranks <= ROOTS_TOLD_APART && f.root == (uint32_t)(t->dst_at_root ? rank : other);
}

void kolo_mismatch_open(kolo_body_t *body)
{
    kolo_board_init(&body->track.board, body->track.operation);
    body->waits.stalled.operation = body->waits.stalled_pairs.operation = KOLO_BOARD_NONE;
    kolo_diag_set_leave_word(body->oob, kolo_signature_of_call(KOLO_CALL_WORD_LEAVE));
    kolo_diag_set_board(body->oob, &body->track.board, (int)kolo_comm_options.mismatch_ms, tell, needs);
}

uint64_t kolo_mismatch_count(kolo_body_t *body, kolo_call_word_t which)
{
    uint64_t word = kolo_signature_of_call(which);
    if (body->gpu.exec && body->gpu.exec->by_host) return body->track.apart++;
    kolo_board_publish(&body->track.board, body->track.operation, word);
    kolo_record_begin_whole(body, body->track.operation, word);
    kolo_diag_look_left(body->oob); /* who has left does not come to it */
    return body->track.operation++;
}

/* Asks the ranks in turn: who waits for room in a queue with many readers does not know which of them is late. */
static size_t next_in_turn(kolo_body_t *body, kolo_stalled_t *stalled, int *ranks, size_t most)
{
    size_t n = KOLO_MIN(most, (size_t)body->nranks - 1);
    for (size_t i = 0; i < n; i++)
        ranks[i] = (body->rank + 1 + (int)(stalled->turn++ % (uint32_t)(body->nranks - 1))) % body->nranks;
    return n;
}

static kolo_body_t *body_of(const kolo_task_t *task)
{
    return (kolo_body_t *)((char *)task->ctx - offsetof(kolo_body_t, ctx));
}

/* Tells whether it is time to ask, again. */
static bool is_due(kolo_stalled_t *stalled, uint64_t operation)
{
    uint64_t now = kolo_now_ns(), first = (uint64_t)kolo_comm_options.mismatch_ms * KOLO_NS_PER_MS;
    if (stalled->operation != operation) {
        stalled->operation = operation;
        stalled->asked = 0;
        stalled->pause_ns = first;
        stalled->ask_at_ns = now + first;
    }
    if (now < stalled->ask_at_ns) return false;
    /* A question may go unheard: the peer has to be called first, or has nothing to say yet. */
    if (stalled->asked++ < QUICK_QUESTIONS) {
        stalled->ask_at_ns = now + first / QUICK_QUESTIONS;
        return true;
    }
    stalled->pause_ns = KOLO_MIN(2 * stalled->pause_ns, (uint64_t)PAUSE_MOST_NS);
    stalled->ask_at_ns = now + stalled->pause_ns;
    return true;
}

/* Asks the next rank: those that this rank waits for may have called the same, and wait for one that has not, or
 * for who waits for one. Where each asks the next, somebody asks who differs, or that one asks. */
static void ask_neighbour(kolo_body_t *body, uint64_t operation)
{
    if (body->waits.stalled.asked % NEIGHBOUR_EACH == 0)
        kolo_diag_ask(body->oob, (body->rank + 1) % body->nranks, operation);
}

static void explain(void *arg, char *buf, size_t bytes)
{
    kolo_ask_around_stalled(body_of(arg), buf, bytes);
}

void kolo_mismatch_wait_init(kolo_body_t *body, kolo_wait_t *wait, kolo_task_t *task)
{
    uint64_t deadline = KOLO_UNLIKELY(body->op_timeout_ms) ? kolo_deadline_ms(body->op_timeout_ms) : 0;
    bool crowded = body->choice.tune.max_node_size > body->choice.tune.cores;
    kolo_wait_init(wait, &body->stop.reason, deadline, kolo_task_describe, task, crowded ? INT_MAX : 1);
    wait->wakers[0] = &body->ctx.waker;
    wait->nwakers = 1;
    wait->explain = explain;
    body->waits.stalled.operation = body->waits.stalled_pairs.operation = KOLO_BOARD_NONE;
}

kolo_status_t kolo_mismatch_look_connecting(kolo_body_t *body, uint64_t operation, int rank)
{
    kolo_record_waits(&body->track.record);
    KOLO_TRY(kolo_diag_difference(body->oob));
    if (!is_due(&body->waits.stalled, operation)) return KOLO_OK;
    kolo_diag_look_left(body->oob);
    if (rank >= 0) kolo_diag_ask(body->oob, rank, operation);
    ask_neighbour(body, operation);
    return KOLO_OK;
}

kolo_status_t kolo_mismatch_look(void *arg)
{
    kolo_task_t *task = arg;
    kolo_body_t *body = body_of(task);
    int ranks[ASKED_AT_ONCE];
    kolo_record_waits(&body->track.record);
    if (body->waits.on_wait) KOLO_TRY(body->waits.on_wait(body->waits.arg));
    kolo_pidwatch_look_out(body->oob);
    KOLO_TRY(kolo_diag_difference(body->oob));
    if (!is_due(&body->waits.stalled, task->operation)) return KOLO_OK;
    kolo_lost_tell(body);
    kolo_diag_look_left(body->oob);
    KOLO_TRY(kolo_call_leftover_look(body, task->operation, task->signature));
    size_t n = kolo_task_awaited(task, ranks, ASKED_AT_ONCE);
    if (n == 0 || n == ASKED_AT_ONCE) n = next_in_turn(body, &body->waits.stalled, ranks, ASKED_AT_ONCE);
    for (size_t i = 0; i < n; i++) kolo_diag_ask(body->oob, ranks[i], task->operation);
    ask_neighbour(body, task->operation);
    return KOLO_OK;
}

kolo_status_t kolo_mismatch_look_device(kolo_body_t *body, uint64_t number, const int *ranks, int count)
{
    KOLO_TRY(kolo_diag_difference(body->oob));
    if (!is_due(&body->waits.stalled, number)) return KOLO_OK;
    for (int i = 0; i < count; i++) kolo_diag_ask(body->oob, ranks[i], number);
    return KOLO_OK;
}

void kolo_mismatch_look_call(kolo_body_t *body, uint64_t call)
{
    int ranks[ASKED_AT_ONCE];
    if (!is_due(&body->levels.stalled, call)) return;
    size_t n = next_in_turn(body, &body->levels.stalled, ranks, ASKED_AT_ONCE);
    for (size_t i = 0; i < n; i++) kolo_diag_ask(body->oob, ranks[i], call);
}

kolo_status_t kolo_mismatch_look_device_pairs(kolo_body_t *body, const kolo_exec_waits_t *waits, bool anew)
{
    if (anew) body->waits.stalled_pairs.operation = KOLO_BOARD_NONE;
    KOLO_TRY(kolo_diag_difference(body->oob));
    if (is_due(&body->waits.stalled_pairs, PAIRS)) kolo_device_pairs_ask(body, waits);
    return KOLO_OK;
}

/* Asks the writer what it was in as its own operation of this number, since what came is of a later one. */
static void ask_writer(kolo_body_t *body, const kolo_task_t *task)
{
    char why[8];
    uint64_t end = kolo_deadline_ms(ANSWER_MS);
    while (kolo_diag_difference(body->oob) != KOLO_ERR_MISMATCH && kolo_now_ns() < end) {
        kolo_diag_ask(body->oob, task->met_rank, task->operation);
        (void)kolo_member_first_lost(body->oob, ANSWER_MS / 4, why, sizeof why);
    }
}

void kolo_mismatch_met(const kolo_task_t *task)
{
    kolo_body_t *body = body_of(task);
    char seen[KOLO_ERROR_TEXT_BYTES];
    uint64_t then;
    if (!task->met) return;
    kolo_difference_t d = {.rank = body->rank,
                           .other = task->met_rank,
                           .number = task->operation,
                           .word = task->signature,
                           .other_number = task->met_operation,
                           .other_word = task->met_signature};
    bool message = kolo_signature_fields(d.other_word).coll == KOLO_COLL_P2P;
    bool behind = (int64_t)(task->met_operation - task->operation) < 0;
    snprintf(seen, sizeof seen, "%s", kolo_error_text());
    if (behind && kolo_diag_look_back(body->oob, task->met_operation, &then) && then != task->met_signature) {
        d.number = task->met_operation;
        d.word = then;
    } else if (!behind && !message && d.number != d.other_number) {
        ask_writer(body, task);
    }
    kolo_diag_note_difference(body->oob, &d);
    /* Of a message in the way, or counts that differ by too little for words to tell, the executor has said
     * more. */
    if (message || d.word == d.other_word || kolo_diag_difference(body->oob) != KOLO_ERR_MISMATCH)
        (void)kolo_fail(KOLO_ERR_MISMATCH, "%s", seen);
}

/* ---- sends and receives ---- */

kolo_status_t kolo_mismatch_open_pairs(kolo_body_t *body)
{
    if (KOLO_LIKELY(body->track.pairs != NULL)) return KOLO_OK;
    body->track.pairs = calloc((size_t)body->nranks, sizeof *body->track.pairs);
    if (!body->track.pairs) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %d peers", body->nranks);
    atomic_store_explicit(&body->track.board.pairs, body->track.pairs, memory_order_release);
    return KOLO_OK;
}

bool kolo_mismatch_is_firm(kolo_body_t *body, int peer, kolo_p2p_way_t way, uint64_t bytes)
{
    bool ll = way == KOLO_P2P_LL, remote = body->member.node_of[peer] != body->member.my_node;
    kolo_plan_conn_t key = {KOLO_DIR_TX, false, KOLO_P2P_LANE, (int32_t)peer};
    uint64_t room = (uint64_t)(remote ? body->choice.sizes.remote_depth : body->choice.sizes.local_depth) *
                    kolo_tune_p2p_piece(&body->choice.tune, &body->choice.sizes, bytes);
    if (way == KOLO_P2P_REF || way == KOLO_P2P_HALVES) return true;
    if (!kolo_body_find_conn(body, &key, ll ? KOLO_PROTO_LL : KOLO_PROTO_SIMPLE)) return true;
    return !ll && bytes > room;
}

void kolo_mismatch_begin_pair(kolo_body_t *body, const kolo_call_t *call, kolo_p2p_way_t way)
{
    bool send = call->kind == KOLO_CALL_SEND;
    bool firm = send && kolo_mismatch_is_firm(body, (int)call->root, way, call->count * call->elem);
    kolo_mismatch_show_pair(body, call, way, kolo_mismatch_word(call), firm);
}

kolo_status_t kolo_mismatch_end_pairs(const kolo_call_t *calls, size_t count, kolo_status_t status)
{
    kolo_body_t *body = calls[0].comm->body;
    char words[160];
    if (KOLO_LIKELY(status != KOLO_ERR_MISMATCH)) return status;
    kolo_diag_give_up_pair(body->oob, body->track.operation, kolo_mismatch_word(&calls[0]));
    kolo_signature_print(kolo_mismatch_word(&calls[0]), words, sizeof words);
    if (strstr(kolo_error_text(), words)) return status; /* peers were asked, and it is said */
    return kolo_fail_prefix(status, "in %s%s: ", words, count > 1 ? " and others of its group" : "");
}

static kolo_status_t look(kolo_body_t *body, bool *due)
{
    kolo_record_waits(&body->track.record);
    kolo_pidwatch_look_out(body->oob);
    KOLO_TRY(kolo_diag_difference(body->oob));
    *due = is_due(&body->waits.stalled_pairs, PAIRS);
    if (*due) kolo_lost_tell(body);
    return KOLO_OK;
}

/* Asks about messages. `behind`: collectives that go on beside them and have no number yet. This rank comes to them
 * whatever becomes of the messages, so a peer that is in one of them does not wait in vain. */
static void ask_pairs(kolo_body_t *body, const int *ranks, size_t n, uint64_t behind)
{
    uint64_t next = body->levels.next ? body->levels.next : body->track.operation + behind;
    for (size_t i = 0; i < n; i++) kolo_diag_ask_pair(body->oob, ranks[i], next);
}

kolo_status_t kolo_mismatch_look_pair(void *arg)
{
    kolo_task_t *task = arg;
    kolo_body_t *body = body_of(task);
    int ranks[PAIRS_AT_ONCE];
    bool due;
    KOLO_TRY(look(body, &due));
    if (!due) return KOLO_OK;
    KOLO_TRY(kolo_call_leftover_look(body, body->track.operation, 0));
    ask_pairs(body, ranks, kolo_task_awaited(task, ranks, PAIRS_AT_ONCE), 0);
    return KOLO_OK;
}

kolo_status_t kolo_mismatch_look_pairs(kolo_p2p_t *p2p, uint64_t behind)
{
    int ranks[PAIRS_AT_ONCE];
    bool due;
    KOLO_TRY(look(p2p->body, &due));
    if (due) ask_pairs(p2p->body, ranks, kolo_p2p_awaited(p2p, ranks, PAIRS_AT_ONCE), behind);
    return KOLO_OK;
}
