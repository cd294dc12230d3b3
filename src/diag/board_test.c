/* SPDX-License-Identifier: Apache-2.0
 *
 * Boards, filled in by hand: which of them prove that two ranks wait for each other, and which prove nothing. Here
 * a rank is in any state one likes for as long as one likes, which ranks that run only pass through.
 */
#include "diag/diag.h"
#include "oob/oob_test_util.h"

#define COLLECTIVE 1000 /* words from here on need all ranks */
#define MESSAGE    500
#define LONG_MS    300 /* for answers that must not come */

static kolo_board_t boards[3];
static kolo_board_pair_t pairs[3][3];
static pthread_barrier_t barrier;

static void tell(const kolo_difference_t *d, char *buf, size_t bytes)
{
    snprintf(buf, bytes, "%d:%d %d:%d at %d", d->rank, (int)d->word, d->other, (int)d->other_word, (int)d->number);
}

static bool needs(uint64_t word, int rank, int other, int nranks)
{
    (void)nranks;
    return word >= COLLECTIVE && rank != other;
}

static void clear(uint64_t first)
{
    memset(pairs, 0, sizeof(pairs));
    memset(boards, 0, sizeof(boards));
    for (int r = 0; r < 3; r++) {
        kolo_board_init(&boards[r], first);
        atomic_store(&boards[r].pairs, pairs[r]);
    }
}

/* Until the rank knows of something, or not for so long; then what it knows. */
static kolo_status_t found(test_rank_t *me, int ms)
{
    for (uint64_t end = kolo_now_ns() + (uint64_t)ms * KOLO_NS_PER_MS; kolo_now_ns() < end; poll(NULL, 0, 1))
        if (kolo_diag_difference(me->oob) != KOLO_OK) break;
    return kolo_diag_difference(me->oob);
}

/* Rank 1 waits for rank 0 in its first receive and calls operation `next` afterwards. Rank 0 is in `number`. */
typedef struct {
    uint64_t number, word, next;
    bool begun;    /* rank 0 has begun the send that rank 1 waits for */
    bool is_send;  /* the other way round: rank 1 sends */
    bool is_loose; /* a send that may end without its receive */
    bool gave_up;  /* rank 0 has failed */
    kolo_status_t want;
} state_t;
static const state_t *now;

static void ask(test_rank_t *me)
{
    int mine = now->is_send ? KOLO_BOARD_SEND : KOLO_BOARD_RECV;
    kolo_diag_set_board(me->oob, &boards[me->rank], 1000, tell, needs);
    if (me->rank == 0 && now->begun) kolo_board_begin(&pairs[0][1], !mine, KOLO_BOARD_SLOTS, MESSAGE, false);
    if (me->rank == 0) kolo_board_publish(&boards[0], now->number, now->word);
    if (me->rank == 0 && now->gave_up) kolo_diag_give_up(me->oob);
    if (me->rank == 1)
        kolo_board_begin(&pairs[1][0], mine, KOLO_BOARD_SLOTS, MESSAGE, now->is_send && !now->is_loose);
    test_ok(kolo_oob_barrier(me->oob));
    for (int i = 0; me->rank == 1 && i < 20; i++) { /* the first may only bring a connection about */
        kolo_diag_ask_pair(me->oob, 0, now->next);
        if (found(me, now->want == KOLO_OK ? LONG_MS / 20 : 100) != KOLO_OK) break;
    }
    kolo_status_t want = me->rank == 0 && now->gave_up ? KOLO_OK : now->want; /* who failed knows already */
    test_equal(want, found(me, want == KOLO_OK ? 1 : 5000));
    if (want == KOLO_ERR_MISMATCH) {
        const char *words = me->rank == 0 ? "0:1000 1:500" : "1:500 0:1000";
        test_true(strstr(kolo_error_text(), words) != NULL);
    }
    pthread_barrier_wait(&barrier);
}

static void what_is_proven(void **state)
{
    static const state_t states[] = {
        {5, COLLECTIVE, 5, .want = KOLO_ERR_MISMATCH},
        {9, COLLECTIVE, 5, .want = KOLO_ERR_MISMATCH},
        {5, COLLECTIVE, 5, .is_send = true, .want = KOLO_ERR_MISMATCH},
        {0, COLLECTIVE, UINT64_MAX - 1, .want = KOLO_ERR_MISMATCH}, /* numbers wrap around */
        {5, COLLECTIVE, 5, .begun = true, .want = KOLO_OK},         /* it is under way */
        {5, COLLECTIVE, 5, .begun = true, .is_send = true, .want = KOLO_OK},
        {5, COLLECTIVE, 5, .is_send = true, .is_loose = true, .want = KOLO_OK}, /* there may be room soon */
        {4, COLLECTIVE, 5, .want = KOLO_OK},                                    /* late: both were in that one */
        {UINT64_MAX - 1, COLLECTIVE, 0, .want = KOLO_OK},
        {5, COLLECTIVE - 1, 5, .want = KOLO_OK}, /* which ends without rank 1 */
        {4, COLLECTIVE, 5, .gave_up = true, .want = KOLO_ERR_REMOTE},
        {4, COLLECTIVE, 5, .gave_up = true, .begun = true, .want = KOLO_OK},
    };
    (void)state;
    pthread_barrier_init(&barrier, NULL, 2);
    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        clear(states[i].number);
        now = &states[i];
        test_run(2, ask);
    }
    pthread_barrier_destroy(&barrier);
}

/* Rank 2 is in the same operation as rank 0 and has asked rank 1, which had nothing to say then. */
static void hear(test_rank_t *me)
{
    kolo_diag_set_board(me->oob, &boards[me->rank], 1000, tell, needs);
    if (me->rank != 1) kolo_board_publish(&boards[me->rank], 5, COLLECTIVE);
    if (me->rank == 1) kolo_board_begin(&pairs[1][0], KOLO_BOARD_RECV, KOLO_BOARD_LINES, MESSAGE, false);
    test_ok(kolo_oob_barrier(me->oob));
    for (int i = 0; me->rank == 2 && i < 10; i++) {
        kolo_diag_ask(me->oob, 1, 5);
        kolo_diag_ask(me->oob, 0, 5); /* in the same one: nothing to say either */
        test_equal(KOLO_OK, found(me, 20));
    }
    pthread_barrier_wait(&barrier);
    for (int i = 0; me->rank == 1 && i < 50 && found(me, 100) == KOLO_OK; i++) kolo_diag_ask_pair(me->oob, 0, 5);
    test_equal(KOLO_ERR_MISMATCH, found(me, 30000)); /* rank 2 without asking again */
    test_says(kolo_error_text(), "1:500");
    pthread_barrier_wait(&barrier);
}

static void who_asked_too_early_is_told(void **state)
{
    (void)state;
    clear(5);
    pthread_barrier_init(&barrier, NULL, 3);
    test_run(3, hear);
    pthread_barrier_destroy(&barrier);
}

/* Rank 0 failed in operation 3; rank 1 has gone on to 4. */
static uint64_t word_of_1;
static void give_up(test_rank_t *me)
{
    kolo_diag_set_board(me->oob, &boards[me->rank], 1000, tell, needs);
    kolo_board_publish(&boards[me->rank], 3, me->rank == 0 ? COLLECTIVE : word_of_1);
    if (me->rank == 1) kolo_board_publish(&boards[1], 4, COLLECTIVE + 7);
    if (me->rank == 0) kolo_diag_give_up(me->oob);
    test_ok(kolo_oob_barrier(me->oob));
    for (int i = 0; me->rank == 1 && i < 50 && found(me, 100) == KOLO_OK; i++) kolo_diag_ask(me->oob, 0, 4);
    if (me->rank == 1) test_equal(word_of_1 == COLLECTIVE ? KOLO_ERR_REMOTE : KOLO_ERR_MISMATCH, found(me, 1));
    pthread_barrier_wait(&barrier);
}

static void who_failed_says_in_what(void **state)
{
    (void)state;
    pthread_barrier_init(&barrier, NULL, 2);
    for (word_of_1 = COLLECTIVE; word_of_1 < COLLECTIVE + 2; word_of_1++) {
        clear(3);
        test_run(2, give_up);
    }
    pthread_barrier_destroy(&barrier);
}

/* Ranks that have made the same calls but for one, long ago, ask about the last. */
typedef struct {
    uint64_t first, calls, odd; /* odd: the call that differs */
    uint64_t behind;            /* calls that rank 0 has not come to yet */
    const char *says;
} history_t;
static const history_t *history;

static void call_all(test_rank_t *me)
{
    uint64_t first = history->first, calls = history->calls - (me->rank == 0 ? history->behind : 0);
    kolo_diag_set_board(me->oob, &boards[me->rank], 1000, tell, needs);
    for (uint64_t i = 0; i < calls; i++)
        kolo_board_publish(&boards[me->rank], first + i,
                           COLLECTIVE + i % 7 + (i == history->odd && me->rank == 0 ? 100 : 0));
    test_ok(kolo_oob_barrier(me->oob));
    kolo_status_t want = history->says ? KOLO_ERR_MISMATCH : KOLO_OK;
    for (int i = 0; me->rank == 1 && i < 20; i++) {
        kolo_diag_ask(me->oob, 0, first + calls - 1); /* the last one */
        if (found(me, want == KOLO_OK ? LONG_MS / 20 : 100) != KOLO_OK) break;
    }
    test_equal(want, found(me, want == KOLO_OK ? 1 : 5000));
    if (history->says && me->rank == 1) test_true(strstr(kolo_error_text(), history->says) != NULL);
    pthread_barrier_wait(&barrier);
}

static void the_first_that_differs_is_found(void **state)
{
    static const history_t histories[] = {
        {0, 1, 0, 0, "1:1000 0:1100 at 0"},
        {0, 23, 0, 0, "1:1000 0:1100 at 0"},
        {0, 23, 5, 0, "1:1005 0:1105 at 5"},
        {0, 23, 22, 0, "1:1001 0:1101 at 22"},
        {0, 23, 5, 10, "1:1005 0:1105 at 5"},
        {0, 500, 31, 0, "1:1003 0:1103 at 31"},
        {0, 500, 32, 1, "1:1004 0:1104 at 32"},
        {0, 1000, 0, 0, "1:1000 0:1100 at 0"},
        {0, 5000, 4800, 0, "1:1005 0:1105 at 4800"},
        {0, 5000, 4020, 0, "1:1002 0:1102 at 4020"},
        {0, 5000, 17, 0, "1:0 0:0 at "}, /* too long ago */
        {0, 5000, 5000, 0, NULL},        /* none */
        {0, 5000, 5000, 300, NULL},
        {UINT64_MAX - 60, 100, 20, 0, "1:1006 0:1106 at "}, /* numbers wrap around */
    };
    (void)state;
    pthread_barrier_init(&barrier, NULL, 2);
    for (size_t i = 0; i < sizeof(histories) / sizeof(histories[0]); i++) {
        history = &histories[i];
        clear(history->first);
        test_run(2, call_all);
    }
    pthread_barrier_destroy(&barrier);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_proven, test_before, test_after),
        cmocka_unit_test_setup_teardown(who_asked_too_early_is_told, test_before, test_after),
        cmocka_unit_test_setup_teardown(who_failed_says_in_what, test_before, test_after),
        cmocka_unit_test_setup_teardown(the_first_that_differs_is_found, test_before, test_after),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
