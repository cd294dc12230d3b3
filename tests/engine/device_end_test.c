/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors of a device when something goes wrong: the device breaks, the engine ends in the middle, the memory is
 * not what it is said to be.
 */
#include "engine/kit/buffers.h"

#include <stdio.h>
#include <string.h>

/* ---- a device that breaks ---- */

static fake_step_t breaking;

static void break_on_one(erank_t *r)
{
    fake_t *f = fakes[r->rank];
    fake_queue_t *q = fake_queue_new(f);
    buffer_t b[2];
    int64_t handles[2] = {-1, -1};
    fake_event_t *kept[2] = {NULL, NULL};
    kolo_status_t last = KOLO_OK;
    for (int i = 0; i < 2; i++) make(&b[i], f, q, SMALL);
    for (int step = 0; step < 20 && last == KOLO_OK; step++) {
        if (step == 5 && r->rank == 1) fake_break(f, breaking, 1);
        for (int i = 0; i < 2; i++) {
            fill(&b[i], 1);
            fake_event_t *event = fake_event_new(q);
            kolo_tensor_memory_t memory = {r->rank, event, NULL};
            kolo_submission_t how = {.memory = &memory};
            kolo_tensor_t t = tensor_of(i ? "one" : "other", &b[i]);
            kolo_status_t status = kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, &how, &handles[i]);
            if (status == KOLO_OK) status = kolo_engine_wait(r->engine, handles[i], WAIT_MS, NULL);
            if (status != KOLO_OK) last = status;
            if (status != KOLO_OK && r->rank == 1 && breaking != FAKE_STORE)
                EXPECT(strstr(kolo_get_last_error(NULL), "the fake device has broken"));
            if (status == KOLO_OK) EXPECT(r->rank == 1 || holds(&b[i], (float)r->size, 1));
            if (status == KOLO_OK)
                fake_event_end(event);
            else
                kept[i] = event; /* somebody may look at it until the engine ends */
        }
    }
    EXPECT(last != KOLO_OK && last != KOLO_ERR_TIMEOUT);
    meet();
    EXPECT(kolo_engine_shutdown(r->engine) != KOLO_OK);
    r->engine = NULL;
    for (int i = 0; i < 2; i++)
        if (kept[i]) fake_event_end(kept[i]);
    for (int i = 0; i < 2; i++) drop(&b[i]);
    fake_queue_end(q);
    kolo_comm_abort(r->comm);
    r->comm = NULL;
}

static void before_the_reduction_it_ends_the_engine_on_all_ranks(void **state)
{
    static const fake_step_t steps[] = {FAKE_EVENT, FAKE_LIFT, FAKE_FETCH};
    (void)state;
    for (int i = 0; i < 3; i++) {
        breaking = steps[i];
        assert_int_equal(run_on_fakes(FAKES, FAKE_TELLS, NULL, break_on_one), 0);
    }
    breaking = FAKE_EVENT;
    assert_int_equal(run_on_fakes(2, 0, NULL, break_on_one), 0);
}

/* The others have what they want; who lost his result is told so. */
static void lose_a_result(erank_t *r)
{
    fake_t *f = fakes[r->rank];
    fake_queue_t *q = fake_queue_new(f);
    buffer_t b;
    int64_t handle;
    make(&b, f, q, SMALL);
    fill(&b, 1);
    kolo_tensor_memory_t memory = {r->rank, fake_event_new(q), NULL};
    kolo_submission_t how = {.memory = &memory};
    kolo_tensor_t t = tensor_of("lost", &b);
    if (r->rank == 1) fake_break(f, FAKE_STORE, 0);
    EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, &how, &handle));
    if (r->rank == 1) {
        EXPECT_ERROR(KOLO_ERR_SYSTEM, kolo_engine_wait(r->engine, handle, WAIT_MS, NULL), "tensor lost", "device 1",
                     "the fake device has broken");
    } else {
        EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
        EXPECT(holds(&b, (float)r->size, 1));
    }
    float x = 1; /* and the engine goes on */
    EXPECT_OK(reduce_now(r, "on", &x, 1, KOLO_SUM));
    EXPECT(x == (float)r->size);
    meet();
    EXPECT_OK(kolo_engine_shutdown(r->engine));
    r->engine = NULL;
    fake_event_end(memory.ready);
    drop(&b);
    fake_queue_end(q);
}

static void afterwards_it_fails_that_rank_alone(void **state)
{
    (void)state;
    assert_int_equal(run_on_fakes(FAKES, FAKE_TELLS, NULL, lose_a_result), 0);
    assert_int_equal(run_on_fakes(2, 0, NULL, lose_a_result), 0);
}

/* ---- the end in the middle ---- */

static void abort_in_the_middle(erank_t *r)
{
    fake_t *f = fakes[r->rank];
    fake_queue_t *q = fake_queue_new(f);
    buffer_t b[8];
    int64_t handles[8];
    fake_event_t *events[8];
    char names[8][8];
    float x = 1;
    int submitted = 0;
    EXPECT_OK(reduce_now(r, "first", &x, 1, KOLO_SUM)); /* connected */
    for (int i = 0; i < 8; i++) {
        make(&b[i], f, q, i == 3 ? LARGE : SMALL);
        fill(&b[i], 1);
        events[i] = fake_event_new(q);
    }
    for (; submitted < 8; submitted++) {
        int i = submitted;
        snprintf(names[i], sizeof names[i], "e.%d", i);
        kolo_tensor_memory_t memory = {r->rank, events[i], NULL};
        kolo_submission_t how = {.memory = &memory};
        kolo_tensor_t t = tensor_of(names[i], &b[i]);
        if (kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, &how, &handles[i]) != KOLO_OK) break;
    }
    if (r->rank > 0)
        for (int i = 0; i < submitted; i++)
            EXPECT(kolo_engine_wait(r->engine, handles[i], WAIT_MS, NULL) != KOLO_ERR_TIMEOUT);
    if (r->rank == 0) EXPECT_OK(kolo_engine_abort(r->engine));
    if (r->rank > 0) kolo_engine_shutdown(r->engine);
    r->engine = NULL;
    for (uint64_t until = now_ms() + WAIT_MS; fake_left(f) > 0 && now_ms() < until;)
        nap_ms(1); /* the user's queue */
    EXPECT(fake_left(f) == 0);
    for (int i = 0; i < 8; i++) {
        drop(&b[i]);
        fake_event_end(events[i]);
    }
    fake_queue_end(q);
    kolo_comm_abort(r->comm);
    r->comm = NULL;
}

static void an_abort_leaves_nothing_behind(void **state)
{
    (void)state;
    for (int round = 0; round < 5; round++)
        for (int n = 1; n <= FAKES; n++)
            assert_int_equal(run_on_fakes(n, FAKE_TELLS, NULL, abort_in_the_middle), 0);
}

/* ---- a device that is stuck ---- */

static kolo_work_t stuck_in; /* all_reduce: while it packs; all_gather: while a tensor is staged */

static void end_while_stuck(erank_t *r)
{
    fake_t *f = fakes[r->rank];
    fake_queue_t *q = fake_queue_new(f);
    buffer_t b[2], all;
    int64_t handles[2];
    float x = 1;
    for (int i = 0; i < 2; i++) {
        make(&b[i], f, q, SMALL);
        fill(&b[i], 1);
    }
    make(&all, f, q, (int64_t)SMALL * r->size);
    EXPECT_OK(reduce_now(r, "first", &x, 1, KOLO_SUM)); /* connected */
    if (r->rank == 1) fake_jam(f);
    for (int i = 0; i < 2; i++) {
        kolo_tensor_t t = tensor_of(i ? "one" : "other", &b[i]);
        if (stuck_in == KOLO_WORK_ALL_REDUCE) {
            EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, NULL, &handles[i]));
        } else if (i == 0) {
            t.output = all.memory;
            EXPECT_OK(kolo_engine_all_gather(r->engine, &t, NULL, &handles[i]));
        }
    }
    meet(); /* who comes too late is told of the abort */
    if (r->rank == 1) {
        fake_step_t first = stuck_in == KOLO_WORK_ALL_REDUCE ? FAKE_LIFT : FAKE_FETCH;
        for (uint64_t until = now_ms() + WAIT_MS; fake_steps(f, first) == 0 && now_ms() < until;) nap_ms(1);
        EXPECT(fake_steps(f, first) > 0);
        EXPECT_OK(kolo_engine_abort(r->engine));
        fake_unjam(f); /* it goes on with what the engine has left to it, and tells */
        for (uint64_t until = now_ms() + WAIT_MS; fake_left(f) > 0 && now_ms() < until;) nap_ms(1);
        EXPECT(fake_left(f) == 0);
    } else {
        EXPECT(kolo_engine_wait(r->engine, handles[0], WAIT_MS, NULL) != KOLO_ERR_TIMEOUT);
        EXPECT(kolo_engine_shutdown(r->engine) != KOLO_OK);
    }
    r->engine = NULL;
    drop(&all);
    for (int i = 0; i < 2; i++) drop(&b[i]);
    fake_queue_end(q);
    if (r->rank == 1) fake_bury(f);
    kolo_comm_abort(r->comm);
    r->comm = NULL;
}

/* ASan sees it if that is not so. */
static void a_stuck_device_keeps_what_it_may_still_use(void **state)
{
    int normal = kolo_finisher_end_ms;
    (void)state;
    kolo_finisher_end_ms = 200;
    stuck_in = KOLO_WORK_ALL_REDUCE;
    assert_int_equal(run_on_fakes(2, FAKE_TELLS, NULL, end_while_stuck), 0);
    stuck_in = KOLO_WORK_ALL_GATHER;
    assert_int_equal(run_on_fakes(2, FAKE_TELLS, NULL, end_while_stuck), 0);
    kolo_finisher_end_ms = normal;
}

/* ---- bad input ---- */

static void submit_wrongly(erank_t *r)
{
    fake_t *f = fakes[r->rank];
    fake_queue_t *q = fake_queue_new(f);
    buffer_t there;
    float here[SMALL];
    int64_t count = SMALL, handle;
    make(&there, f, q, SMALL);
    kolo_tensor_t t = tensor_of("wrong", &there);
    kolo_tensor_memory_t memory = {11, NULL, NULL};
    kolo_submission_t how = {.memory = &memory};
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, &how, NULL),
                 "tensor wrong", "no device 11");
    memory.device = -7;
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, &how, NULL),
                 "no device -7");
    memory.device = KOLO_DEVICE_CPU;
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, &how, NULL),
                 "its input is memory of device");
    memory.device = r->rank;
    t = float_tensor("wrong", here, &count);
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, &how, NULL),
                 "its input is no memory of device");
    t.input = there.memory;
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, &how, NULL),
                 "its output is no memory of device");
    t = tensor_of("found out", &there); /* whose memory it is needs not be said */
    float first = 6;
    fill(&there, first);
    buffer_t same = there;
    EXPECT(holds(&same, 1, first));
    EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, NULL, &handle));
    EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
    EXPECT(holds(&there, (float)r->size, first));
    drop(&there);
    fake_queue_end(q);
}

static void memory_that_is_not_what_it_is_said_to_be_is_refused(void **state)
{
    (void)state;
    assert_int_equal(run_on_fakes(2, FAKE_TELLS, NULL, submit_wrongly), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(before_the_reduction_it_ends_the_engine_on_all_ranks),
        cmocka_unit_test(afterwards_it_fails_that_rank_alone),
        cmocka_unit_test(an_abort_leaves_nothing_behind),
        cmocka_unit_test(a_stuck_device_keeps_what_it_may_still_use),
        cmocka_unit_test(memory_that_is_not_what_it_is_said_to_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
