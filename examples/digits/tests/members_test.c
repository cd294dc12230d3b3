/* SPDX-License-Identifier: Apache-2.0
 *
 * Settling and agreement between ranks that are threads here: after a loss in the middle of a commit, with a
 * newcomer, with ranks that have different weights.
 */
#include "members.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#define RANKS 4

typedef struct {
    members_t members;
    train_t train;
    pthread_t thread;
    bool has_state, equal;
    uint64_t greatest;
    kolo_status_t status;
} rank_t;

static digits_t digits;
static rank_t ranks[RANKS];

/* `commits[r]`: steps that rank r has committed; one more is computed but not committed where `ahead[r]`. */
static void set_up(const int *commits, const bool *ahead)
{
    kolo_comm_t comms[RANKS];
    const char *why;
    assert_int_equal(kolo_comm_init_all(comms, RANKS, NULL), KOLO_OK);
    for (int r = 0; r < RANKS; r++) {
        rank_t *x = &ranks[r];
        *x = (rank_t){.has_state = commits[r] >= 0, .greatest = (uint64_t)r};
        x->members = (members_t){.comm = comms[r], .rank = r, .nranks = RANKS};
        assert_true(train_open(&x->train, &digits.train, 1, 1));
        for (int i = 0; i < commits[r] + ahead[r]; i++) {
            train_compute(&x->train, 0, 1, NULL, NULL);
            for (int k = 0; k < NET_PARAMS; k++) x->train.gradient[k] /= train_samples(&x->train);
            assert_true(train_update(&x->train, &why));
            if (i < commits[r]) train_commit(&x->train);
        }
    }
}

static void tear_down(void)
{
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(kolo_comm_abort(ranks[r].members.comm), KOLO_OK);
        train_close(&ranks[r].train);
    }
}

static void on_all(void *(*fn)(void *))
{
    for (int r = 0; r < RANKS; r++) assert_int_equal(pthread_create(&ranks[r].thread, NULL, fn, &ranks[r]), 0);
    for (int r = 0; r < RANKS; r++) pthread_join(ranks[r].thread, NULL);
    for (int r = 0; r < RANKS; r++) assert_int_equal(ranks[r].status, KOLO_OK);
}

static void *settle(void *arg)
{
    rank_t *x = arg;
    x->status = members_settle(&x->members, &x->train, x->has_state, &x->greatest, &x->equal);
    return NULL;
}

static void check_settled(uint64_t step)
{
    for (int r = 0; r < RANKS; r++) {
        assert_true(ranks[r].equal);
        assert_true(ranks[r].train.now->step == step && !ranks[r].train.has_next);
        assert_true(train_hash(ranks[r].train.now) == train_hash(ranks[0].train.now));
        assert_true(ranks[r].greatest == RANKS - 1);
    }
}

static void a_step_that_one_rank_has_committed_counts(void **state)
{
    (void)state;
    set_up((const int[]){2, 2, 3, 2}, (const bool[]){true, true, false, true});
    on_all(settle);
    check_settled(3);
    tear_down();
}

static void a_step_that_nobody_has_committed_does_not(void **state)
{
    (void)state;
    set_up((const int[]){2, 2, 2, 2}, (const bool[]){true, false, true, true});
    on_all(settle);
    check_settled(2);
    tear_down();
}

static void a_newcomer_gets_the_state(void **state)
{
    (void)state;
    set_up((const int[]){5, 5, 5, -1}, (const bool[]){false, false, false, false});
    ranks[3].train.now->weights[0] += 1; /* of no matter */
    on_all(settle);
    check_settled(5);
    tear_down();
}

static void other_weights_of_the_same_step_are_told(void **state)
{
    (void)state;
    set_up((const int[]){2, 2, 2, 2}, (const bool[]){false, true, false, false});
    ranks[2].train.now->weights[77] += 1e-6f;
    on_all(settle);
    for (int r = 0; r < RANKS; r++) assert_int_equal(ranks[r].equal, r != 2);
    tear_down();
}

/* Behind by a step, and what would catch up is something else. */
static void other_weights_of_the_next_step_are_told(void **state)
{
    (void)state;
    set_up((const int[]){3, 2, 2, 2}, (const bool[]){false, true, true, true});
    ranks[1].train.next->velocity[5] += 1;
    on_all(settle);
    for (int r = 0; r < RANKS; r++) assert_int_equal(ranks[r].equal, r != 1);
    tear_down();
}

static void *agree(void *arg)
{
    rank_t *x = arg;
    agreement_t all;
    uint64_t hash = train_hash(x->train.now), wish = x->members.rank == 1 ? 9 : 4;
    x->status = members_agree(&x->members, x->train.now->step, hash, wish, &all);
    x->equal = x->status == KOLO_OK && all.equal;
    x->greatest = all.wish;
    return NULL;
}

static void agreement_compares_states_and_passes_wishes_on(void **state)
{
    (void)state;
    for (int different = 0; different < 3; different++) {
        set_up((const int[]){1, 1, 1, 1}, (const bool[]){false, false, false, false});
        if (different == 1) ranks[3].train.now->ledger[8] ^= 1;
        if (different == 2) ranks[0].train.now->step = 2;
        on_all(agree);
        for (int r = 0; r < RANKS; r++) assert_true(ranks[r].equal == (different == 0) && ranks[r].greatest == 9);
        tear_down();
    }
}

int main(void)
{
    char message[400];
    alarm(110);
    if (!digits_load(&digits, DIGITS_DATA, message, sizeof message)) {
        fprintf(stderr, "%s\n", message);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_that_one_rank_has_committed_counts),
        cmocka_unit_test(a_step_that_nobody_has_committed_does_not),
        cmocka_unit_test(a_newcomer_gets_the_state),
        cmocka_unit_test(other_weights_of_the_same_step_are_told),
        cmocka_unit_test(other_weights_of_the_next_step_are_told),
        cmocka_unit_test(agreement_compares_states_and_passes_wishes_on),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    digits_free(&digits);
    return failed;
}
