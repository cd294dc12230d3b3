/* SPDX-License-Identifier: Apache-2.0
 *
 * Verdicts on ranks that were made up here: the shapes that jobs of real processes (tests/kolo-top, tests/comm) are
 * hard to bring into, and input that makes no sense.
 */
#include "diag/verdict.h"

#include "base/clock.h"
#include "base/test.h"
#include "plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char text[KOLO_VERDICT_TEXT], brief[400];

static uint64_t all_reduce(uint64_t count)
{
    return kolo_signature(KOLO_COLL_ALL_REDUCE, KOLO_FLOAT32, KOLO_SUM, 0, count);
}

static void add(kolo_verdict_rank_t *r, kolo_record_kind_t kind, uint64_t number, uint64_t word, uint32_t peer,
                kolo_record_state_t state)
{
    r->presence = KOLO_RANK_HEARD;
    r->ops[r->nops++] = (kolo_verdict_op_t){number, word, 5 * KOLO_NS_PER_S, peer, kind, state};
}

static void coll(kolo_verdict_rank_t *r, uint64_t number, kolo_record_state_t state)
{
    add(r, KOLO_RECORD_COLL, number, all_reduce(4), 0, state);
}

static void recv_from(kolo_verdict_rank_t *r, uint32_t peer)
{
    add(r, KOLO_RECORD_RECV, 0, kolo_signature(KOLO_COLL_P2P, KOLO_INT32, KOLO_P2P_WORD_RECV, peer, 1), peer,
        KOLO_RECORD_RUNNING);
}

static kolo_verdict_rank_t *ranks_new(int n)
{
    kolo_verdict_rank_t *ranks = calloc((size_t)n, sizeof *ranks);
    assert_non_null(ranks);
    for (int i = 0; i < n; i++) ranks[i].rank = i;
    return ranks;
}

static bool judge(const kolo_verdict_rank_t *ranks, int count, int nranks)
{
    bool wrong = kolo_verdict_print(ranks, count, nranks, text, sizeof text);
    kolo_verdict_brief(ranks, count, nranks, brief, sizeof brief);
    assert_null(strchr(brief, '\n'));
    return wrong;
}

static void has(const char *where, const char *what)
{
    if (!strstr(where, what)) print_message("no \"%s\" in: %s\n", what, where);
    assert_non_null(strstr(where, what));
}

static void a_job_that_runs_is_not_accused(void **state)
{
    (void)state;
    kolo_verdict_rank_t *r = ranks_new(3);
    for (int i = 0; i < 3; i++) coll(&r[i], 7, KOLO_RECORD_DONE);
    assert_false(judge(r, 3, 3));
    has(text, "Nobody waits");
    has(text, "Complete on all ranks: all up to operation 7");
    for (int i = 0; i < 3; i++) coll(&r[i], 8, i == 1 ? KOLO_RECORD_DONE : KOLO_RECORD_RUNNING);
    assert_false(judge(r, 3, 3));
    has(text, "ranks 0, 2 have been in operation 8 (all_reduce 4 float32 sum) for 5.0 s");
    has(text, "All have entered it");
    has(text, "all up to operation 7");
    free(r);
}

static void who_stays_in_an_operation_is_told(void **state)
{
    (void)state;
    kolo_verdict_rank_t *r = ranks_new(3);
    for (int i = 0; i < 3; i++) coll(&r[i], 8, KOLO_RECORD_RUNNING);
    assert_false(judge(r, 3, 3)); /* all are inside, and nobody is known to keep the others */
    r[1].stopped = true;
    assert_true(judge(r, 3, 3));
    has(brief, "rank 1 did not leave operation 8 (all_reduce 4 float32 sum): its process is stopped, it has been "
               "there for");
    r[1].stopped = false;
    for (int i = 0; i < 3; i += 2) {
        r[i].nops = 0;
        coll(&r[i], 8, KOLO_RECORD_DONE);
        coll(&r[i], 9, KOLO_RECORD_RUNNING);
    }
    assert_true(judge(r, 3, 3));
    has(brief,
        "rank 1 did not leave operation 8 (all_reduce 4 float32 sum), after which others wait for it, it has "
        "been there for");
    r[1].callback_ns =
        9 * KOLO_NS_PER_S / 10; /* short, but most of that time: others may have a limit of a second */
    r[1].ops[0].age_ns = KOLO_NS_PER_S;
    assert_true(judge(r, 3, 3));
    has(brief, ", after which others wait for it: it has been inside its own callback (");
    r[1].callback_ns = 0;
    r[2].nops = 0;
    coll(&r[2], 8, KOLO_RECORD_RUNNING); /* of two that are inside one may wait for the other */
    assert_false(judge(r, 3, 3));
    free(r);
}

static void who_is_inside_its_own_callback_is_told(void **state)
{
    (void)state;
    kolo_verdict_rank_t *r = ranks_new(3);
    for (int i = 0; i < 3; i++) coll(&r[i], 8, KOLO_RECORD_RUNNING);
    r[1].callback_ns = KOLO_NS_PER_S / 2;
    assert_false(judge(r, 3, 3)); /* many functions of users take that long */
    r[1].callback_ns = 2 * KOLO_NS_PER_S;
    assert_true(judge(r, 3, 3));
    has(brief,
        "rank 1 did not leave operation 8 (all_reduce 4 float32 sum): it has been inside its own callback (the "
        "function of a user operator) for 2.0 s");
    r[1].nops = 0;
    r[1].callback = KOLO_CALLBACK_TENSOR;
    coll(&r[1], 7, KOLO_RECORD_DONE);
    assert_true(judge(r, 3, 3));
    has(brief,
        "rank 1 did not enter operation 8 (all_reduce 4 float32 sum): it has been inside its own callback (of a "
        "named tensor) for 2.0 s");
    free(r);
}

static void what_a_gpu_waits_for_is_told(void **state)
{
    (void)state;
    kolo_verdict_rank_t *r = ranks_new(3);
    kolo_record_op_t ops[40] = {{0}};
    for (uint64_t i = 0; i < 40; i++)
        ops[i] = (kolo_record_op_t){
            .number = i, .word = all_reduce(4), .state = i < 12 ? KOLO_RECORD_DONE : KOLO_RECORD_LAUNCHED};
    ops[12].state = KOLO_RECORD_RUNNING; /* rank 0: far behind what it was given */
    for (int i = 0; i < 2; i++) r[i].presence = KOLO_RANK_HEARD;
    r[0].waits = (kolo_record_waits_t){.number = 12, .word = all_reduce(4), .count = 2};
    r[0].waits.on[0].rank = 1;
    r[0].waits.on[0].block = 7;
    r[0].waits.on[0].step = 21;
    r[0].waits.on[1].rank = 2;
    r[0].waits.on[1].room = 1;
    kolo_verdict_take(&r[0], ops, 40, 0);
    kolo_verdict_take(&r[1], ops, 12, 0);
    ops[12].state = KOLO_RECORD_LAUNCHED;
    r[2].presence = KOLO_RANK_HEARD;
    kolo_verdict_take(&r[2], ops, 13, 0);
    assert_true(judge(r, 3, 3));
    has(text, "rank 0 has been in operation 12 (all_reduce 4 float32 sum)");
    has(text, "waits on its GPU for data from rank 1, room at rank 2 (block 7, step 21)");
    has(text, "rank 1 did not enter operation 12");
    has(text,
        "rank 2 has given operation 12 (all_reduce 4 float32 sum) to the GPU, where it is complete, or waits for "
        "earlier work");
    has(brief, "rank 1 did not enter operation 12");
    free(r);
}

static void the_oldest_operation_is_the_one_to_look_at(void **state)
{
    (void)state;
    kolo_verdict_rank_t *r = ranks_new(4);
    coll(&r[0], 8, KOLO_RECORD_DONE); /* a broadcast's root may be far ahead */
    coll(&r[0], 9, KOLO_RECORD_RUNNING);
    coll(&r[1], 8, KOLO_RECORD_RUNNING);
    coll(&r[2], 7, KOLO_RECORD_DONE);
    coll(&r[3], 8, KOLO_RECORD_RUNNING);
    assert_true(judge(r, 4, 4));
    has(text, "ranks 1, 3 have been in operation 8");
    has(brief, "rank 2 did not enter operation 8");
    free(r);
}

static void numbers_may_wrap(void **state)
{
    (void)state;
    kolo_verdict_rank_t *r = ranks_new(2);
    coll(&r[0], UINT64_MAX, KOLO_RECORD_DONE);
    coll(&r[0], 0, KOLO_RECORD_RUNNING);
    coll(&r[1], UINT64_MAX, KOLO_RECORD_DONE);
    assert_true(judge(r, 2, 2));
    has(brief, "rank 1 did not enter operation 0");
    free(r);
}

static void the_one_that_differs_is_named_and_not_the_many(void **state)
{
    (void)state;
    for (int odd = 0; odd < 4; odd++) {
        kolo_verdict_rank_t *r = ranks_new(4);
        for (int i = 0; i < 4; i++)
            add(&r[i], KOLO_RECORD_COLL, 3, all_reduce(i == odd ? 5 : 4), 0, KOLO_RECORD_RUNNING);
        assert_true(judge(r, 4, 4));
        char name[128];
        snprintf(name, sizeof name, "rank %d entered all_reduce 5 float32 sum as operation 3, the others", odd);
        has(brief, name);
        assert_null(strstr(strstr(text, name) + strlen(name), "entered"));
        free(r);
    }
}

static void receives_that_wait_are_followed(void **state)
{
    (void)state;
    kolo_verdict_rank_t *r = ranks_new(4);
    recv_from(&r[0], 1); /* waits for one in the circle, and is not in it */
    recv_from(&r[1], 2);
    recv_from(&r[2], 3);
    recv_from(&r[3], 1);
    assert_true(judge(r, 4, 4));
    has(text, "3 ranks wait for each other in a circle: 1 -> 2 -> 3 -> 1");
    has(text, "rank 0 has waited in recv 1 int32 from rank 1");
    r[2].ops[0].kind = KOLO_RECORD_SEND; /* and now 2 sends what nobody takes */
    r[2].ops[0].peer = 1;
    r[2].ops[0].word = kolo_signature(KOLO_COLL_P2P, KOLO_INT32, KOLO_P2P_WORD_SEND, 1, 1);
    judge(r, 4, 4);
    assert_null(strstr(text, "circle"));
    assert_null(strstr(text, "rank 2 waits")); /* 1 receives it */
    free(r);
}

static void who_is_missing_is_told_with_the_reason(void **state)
{
    (void)state;
    kolo_verdict_rank_t *r = ranks_new(6);
    coll(&r[0], 1, KOLO_RECORD_RUNNING);
    r[1].presence = KOLO_RANK_GONE;
    r[1].pid = 42;
    r[2].presence = KOLO_RANK_ELSEWHERE;
    r[3].presence = KOLO_RANK_UNREADABLE;
    r[4].presence = KOLO_RANK_UNRECORDED;
    r[5].stopped = true;
    assert_true(judge(r, 6, 9));
    has(text, "rank 1 (process 42) is gone");
    has(text, "rank 2 is on another host");
    has(text, "rank 3 cannot be looked into");
    has(text, "rank 4 lives, but has no record");
    has(text, "rank 5 is stopped and does not answer");
    has(text, "Nothing is known of 3 ranks");
    has(text, "Complete on the ranks that are known: all up to operation 0");
    free(r);
}

static void a_large_job_is_told_in_few_words(void **state)
{
    (void)state;
    enum { MANY = 1000 };
    kolo_verdict_rank_t *r = ranks_new(MANY);
    for (int i = 0; i < MANY; i++) coll(&r[i], 5, i % 2 ? KOLO_RECORD_RUNNING : KOLO_RECORD_DONE);
    for (int i = 100; i < 200; i++) r[i].ops[0].number = 4, r[i].ops[0].state = KOLO_RECORD_DONE;
    assert_true(judge(r, MANY, MANY));
    has(text, "and 444 more have been in operation 5");
    has(text, "rank 105 did not enter operation 5");
    has(text, "The same holds for 94 more ranks");
    assert_true(strlen(text) < 3000);
    assert_true(kolo_verdict_print(r, MANY, MANY, text, 40) && strlen(text) < 40);
    assert_true(kolo_verdict_brief(r, MANY, MANY, text, 1) && text[0] == '\0');
    free(r);
}

/* From outside anything may come. */
static void nonsense_does_no_harm(void **state)
{
    (void)state;
    unsigned seed = 1;
    kolo_verdict_rank_t *r = ranks_new(5);
    for (int round = 0; round < 20000; round++) {
        for (int i = 0; i < 5; i++) {
            r[i].presence = (kolo_rank_presence_t)(rand_r(&seed) % 6);
            r[i].nops = (uint32_t)rand_r(&seed) % (KOLO_VERDICT_OPS + 1);
            for (uint32_t k = 0; k < KOLO_VERDICT_OPS; k++)
                r[i].ops[k] = (kolo_verdict_op_t){(uint64_t)rand_r(&seed) % 4,
                                                  rand_r(&seed) % 2 ? all_reduce(rand_r(&seed) % 2)
                                                                    : (uint64_t)rand_r(&seed) << 33,
                                                  (uint64_t)rand_r(&seed),
                                                  (uint32_t)rand_r(&seed) % 7,
                                                  (kolo_record_kind_t)(rand_r(&seed) % KOLO_RECORD_KINDS),
                                                  (kolo_record_state_t)(1 + rand_r(&seed) % KOLO_RECORD_FAILED)};
        }
        judge(r, 5, 5 + (int)(rand_r(&seed) % 2));
        assert_true(strlen(text) > 0);
    }
    free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_that_runs_is_not_accused),
        cmocka_unit_test(what_a_gpu_waits_for_is_told),
        cmocka_unit_test(the_oldest_operation_is_the_one_to_look_at),
        cmocka_unit_test(numbers_may_wrap),
        cmocka_unit_test(the_one_that_differs_is_named_and_not_the_many),
        cmocka_unit_test(receives_that_wait_are_followed),
        cmocka_unit_test(who_is_missing_is_told_with_the_reason),
        cmocka_unit_test(who_stays_in_an_operation_is_told),
        cmocka_unit_test(who_is_inside_its_own_callback_is_told),
        cmocka_unit_test(a_large_job_is_told_in_few_words),
        cmocka_unit_test(nonsense_does_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
