/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors in memory that the CPU may not touch, on a fake device: what they give, and when they take part. Whoever
 * touches such memory outside of the device's own threads ends the test by a fault.
 */
#include "engine/kit/buffers.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the fake itself ---- */

static void memory_of_the_device_cannot_be_touched(void **state)
{
    int how;
    (void)state;
    fake_t *f = fake_new(0, 1, 0);
    float *memory = fake_alloc(f, 64);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile float *)memory = 1;
        _exit(0);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_false(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    fake_free(f, memory);
    fake_end(f);
}

/* ---- all_reduce: many fused, one alone, scaled; with events, and each rank's some on the CPU ---- */

enum { TENSORS = 12, STEPS = 12 };

static void reduce_steps(erank_t *r)
{
    fake_t *f = fakes[r->rank];
    fake_queue_t *q = fake_queue_new(f);
    buffer_t b[TENSORS];
    fake_event_t *events[TENSORS];
    int64_t handles[TENSORS];
    char names[TENSORS][16];
    for (int i = 0; i < TENSORS; i++) {
        bool here = (i + r->rank) % 4 == 3; /* of the CPU, on this rank */
        snprintf(names[i], sizeof names[i], "t.%d", i);
        make(&b[i], here ? NULL : f, q, i % 5 == 4 ? LARGE : SMALL + i);
    }
    float n = (float)r->size, ranks = n * (n - 1) / 2;
    for (int step = 0, steps = kolo_test_steps(STEPS); step < steps; step++) {
        for (int k = 0; k < TENSORS; k++) {
            int i = (k * 5 + step + r->rank) % TENSORS; /* in some order */
            double pre = i % 3 ? 1.0 : 2.0, post = i % 2 ? 1.0 : 0.5;
            fill(&b[i], (float)(r->rank + step));
            events[i] = b[i].f ? fake_event_new(q) : NULL;
            kolo_tensor_memory_t memory = {b[i].f ? r->rank : KOLO_DEVICE_CPU, events[i], NULL};
            kolo_submission_t how = {.memory = &memory};
            kolo_tensor_t t = tensor_of(names[i], &b[i]);
            EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, pre, post, &how, &handles[i]));
        }
        for (int i = 0; i < TENSORS; i++) EXPECT_OK(kolo_engine_wait(r->engine, handles[i], WAIT_MS, NULL));
        for (int i = 0; i < TENSORS; i++) {
            float scale = (i % 3 ? 1.0f : 2.0f) * (i % 2 ? 1.0f : 0.5f) * n;
            EXPECT(holds(&b[i], scale, (float)step + ranks / n));
            if (events[i]) fake_event_end(events[i]);
        }
    }
    for (int i = 0; i < TENSORS; i++) drop(&b[i]);
    fake_queue_end(q);
}

static void reductions_of_device_memory_give_the_sum(void **state)
{
    (void)state;
    for (int n = 1; n <= FAKES; n++) assert_int_equal(run_on_fakes(n, FAKE_TELLS, NULL, reduce_steps), 0);
}

static void a_device_that_does_not_tell_is_asked(void **state)
{
    (void)state;
    assert_int_equal(run_on_fakes(2, 0, NULL, reduce_steps), 0);
}

static void small_batches_follow_each_other_through_both_buffers(void **state)
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    (void)state;
    config.fusion_threshold = 600;
    assert_int_equal(run_on_fakes(2, FAKE_TELLS, &config, reduce_steps), 0);
    config.fusion_threshold = 0;
    config.cache_capacity = 0;
    assert_int_equal(run_on_fakes(2, FAKE_TELLS, &config, reduce_steps), 0);
}

/* Tensors of the CPU, in batches that a thread of its own packs and unpacks while others are reduced. */
static void reduce_in_batches(erank_t *r)
{
    buffer_t b[TENSORS];
    int64_t handles[TENSORS];
    char names[TENSORS][16];
    for (int i = 0; i < TENSORS; i++) {
        snprintf(names[i], sizeof names[i], "b.%d", i);
        make(&b[i], NULL, NULL, LARGE / 2 + i);
    }
    for (int step = 0, steps = kolo_test_steps(STEPS); step < steps; step++) {
        for (int k = 0; k < TENSORS; k++) {
            int i = (k * 5 + step + r->rank) % TENSORS;
            kolo_tensor_t t = tensor_of(names[i], &b[i]);
            fill(&b[i], (float)(r->rank + step));
            EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, i % 3 ? 1 : 2, 1, NULL, &handles[i]));
        }
        for (int i = 0; i < TENSORS; i++) EXPECT_OK(kolo_engine_wait(r->engine, handles[i], WAIT_MS, NULL));
        float n = (float)r->size;
        for (int i = 0; i < TENSORS; i++)
            EXPECT(holds(&b[i], (i % 3 ? 1.0f : 2.0f) * n, (float)step + (n - 1) / 2));
    }
    for (int i = 0; i < TENSORS; i++) drop(&b[i]);
}

static void packing_overlaps_reducing(void **state)
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    (void)state;
    config.fusion_threshold = 700000; /* three tensors each */
    kolo_engine_overlap = KOLO_OVERLAP_ON;
    for (int n = 1; n <= FAKES; n++) assert_int_equal(run_engines(n, &config, reduce_in_batches, NULL), 0);
    kolo_engine_overlap = KOLO_OVERLAP_OFF;
    assert_int_equal(run_engines(2, &config, reduce_in_batches, NULL), 0);
    kolo_engine_overlap = KOLO_OVERLAP_AUTO;
}

/* Some of the CPU, which the loop completes, others of a device, which the finisher does: each keeps to its own.
 * Another operation, so that they are not packed together; and one that is staged alone. */
static void reduce_beside_a_device(erank_t *r)
{
    fake_t *f = fakes[r->rank];
    fake_queue_t *q = fake_queue_new(f);
    buffer_t b[TENSORS], all;
    int64_t handles[TENSORS], gathered, shape[2] = {1, SMALL};
    char names[TENSORS][16];
    fake_event_t *events[TENSORS];
    float n = (float)r->size;
    for (int i = 0; i < TENSORS; i++) {
        snprintf(names[i], sizeof names[i], "m.%d", i);
        make(&b[i], i % 2 ? f : NULL, q, i % 2 ? SMALL + i : 70000 + i);
    }
    make(&all, f, q, (int64_t)SMALL * r->size);
    for (int step = 0, steps = kolo_test_steps(STEPS); step < steps; step++) {
        for (int i = 0; i < TENSORS; i++) {
            kolo_tensor_t t = tensor_of(names[i], &b[i]);
            fill(&b[i], (float)(r->rank + step));
            events[i] = b[i].f ? fake_event_new(q) : NULL;
            kolo_tensor_memory_t memory = {b[i].f ? r->rank : KOLO_DEVICE_CPU, events[i], NULL};
            kolo_submission_t how = {.memory = &memory};
            kolo_op_t op = b[i].f ? KOLO_MAX : KOLO_SUM;
            EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, op, 1, 1, &how, &handles[i]));
        }
        kolo_tensor_t t = {"m.all", KOLO_FLOAT32, 2, shape, b[1].memory, all.memory};
        EXPECT_OK(kolo_engine_wait(r->engine, handles[1], WAIT_MS, NULL));
        EXPECT_OK(kolo_engine_all_gather(r->engine, &t, NULL, &gathered));
        for (int i = 0; i < TENSORS; i++)
            if (i != 1) EXPECT_OK(kolo_engine_wait(r->engine, handles[i], WAIT_MS, NULL));
        EXPECT_OK(kolo_engine_wait(r->engine, gathered, WAIT_MS, NULL));
        for (int i = 0; i < TENSORS; i++)
            if (events[i]) fake_event_end(events[i]);
        for (int i = 0; i < TENSORS; i++)
            EXPECT(b[i].f ? holds(&b[i], 1, (float)step + n - 1) : holds(&b[i], n, (float)step + (n - 1) / 2));
    }
    for (int i = 0; i < TENSORS; i++) drop(&b[i]);
    drop(&all);
    fake_queue_end(q);
}

static void the_loop_and_the_finisher_keep_to_their_own(void **state)
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    (void)state;
    config.fusion_threshold = 500000; /* one of the CPU's each */
    kolo_engine_overlap = KOLO_OVERLAP_ON;
    assert_int_equal(run_on_fakes(2, FAKE_TELLS, &config, reduce_beside_a_device), 0);
    kolo_engine_overlap = KOLO_OVERLAP_AUTO;
}

/* ---- what goes through no fusion buffer ---- */

static void *allocate_there(void *arg, int index, size_t bytes, int ndims, const int64_t *shape)
{
    (void)index, (void)ndims, (void)shape;
    return fake_alloc(arg, bytes);
}

static void move_each(erank_t *r)
{
    fake_t *f = fakes[r->rank];
    fake_queue_t *q = fake_queue_new(f);
    int64_t n = r->size;
    for (int round = 0; round < 4; round++) {
        buffer_t in, out;
        kolo_completion_t c;
        int64_t handle;
        make(&in, f, q, 5 * n);
        make(&out, f, q, 5 * n);
        fill(&in, (float)(r->rank + 1));
        kolo_tensor_memory_t memory = {r->rank, fake_event_new(q), NULL};
        kolo_submission_t how = {.memory = &memory, .allocate = allocate_there, .arg = f};
        int64_t shape[2] = {n, 5};
        kolo_tensor_t t = {"gathered", KOLO_FLOAT32, 2, shape, in.memory, NULL};
        EXPECT_OK(kolo_engine_all_gather(r->engine, &t, &how, &handle));
        if (EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, &c))) {
            for (int i = 0; i < n; i++) {
                buffer_t part = {f, q, (float *)c.output + i * 5 * n, 5 * n};
                EXPECT(holds(&part, 1, (float)(i + 1)));
            }
            EXPECT(c.shape[0] == n * n);
            fake_free(f, c.output);
        }
        t = (kolo_tensor_t){"scattered", KOLO_FLOAT32, 2, shape, in.memory, NULL};
        EXPECT_OK(kolo_engine_reduce_scatter(r->engine, &t, KOLO_SUM, round % 2 ? 2 : 1, 1, &how, &handle));
        if (EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, &c))) {
            buffer_t part = {f, q, c.output, 5};
            EXPECT(holds(&part, (float)n * (round % 2 ? 2 : 1), (float)(n + 1) / 2));
            fake_free(f, c.output);
        }
        t = (kolo_tensor_t){"exchanged", KOLO_FLOAT32, 2, shape, in.memory, out.memory};
        EXPECT_OK(kolo_engine_all_to_all(r->engine, &t, NULL, &how, &handle));
        EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
        for (int i = 0; i < n; i++) {
            buffer_t part = {f, q, out.memory + i * 5, 5};
            EXPECT(holds(&part, 1, (float)(i + 1)));
        }
        t = (kolo_tensor_t){"spread", KOLO_FLOAT32, 2, shape, in.memory, in.memory};
        EXPECT_OK(kolo_engine_broadcast(r->engine, &t, (int)n - 1, &how, &handle));
        EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
        EXPECT(holds(&in, 1, (float)n));
        fake_event_end(memory.ready);
        drop(&in);
        drop(&out);
    }
    fake_queue_end(q);
}

static void all_operations_take_device_memory(void **state)
{
    (void)state;
    for (int n = 1; n <= FAKES; n++) assert_int_equal(run_on_fakes(n, FAKE_TELLS, NULL, move_each), 0);
}

/* ---- events that do not come yet ---- */

static int is_complete(erank_t *r, int64_t handle)
{
    int complete = -1;
    EXPECT_OK(kolo_engine_poll(r->engine, handle, &complete));
    return complete;
}

static void wait_for_others(erank_t *r)
{
    fake_t *f = fakes[r->rank];
    fake_queue_t *slow = fake_queue_new(f), *fast = fake_queue_new(f);
    buffer_t late, other;
    int64_t held, handle, barrier, join;
    kolo_completion_t c;
    make(&late, f, slow, SMALL);
    make(&other, f, fast, SMALL);
    for (int round = 0; round < 3; round++) { /* not cached, then cached */
        if (r->rank == 0) fake_hold(slow);
        fill(&late, 3);
        kolo_tensor_memory_t memory = {r->rank, fake_event_new(slow), NULL};
        kolo_submission_t how = {.memory = &memory};
        kolo_tensor_t t = tensor_of("late", &late);
        EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, &how, &held));
        for (int step = 0; step < 5; step++) { /* nothing waits for it */
            fill(&other, (float)step);
            kolo_tensor_memory_t m = {r->rank, fake_event_new(fast), NULL};
            kolo_submission_t h = {.memory = &m};
            kolo_tensor_t o = tensor_of("other", &other);
            EXPECT_OK(kolo_engine_all_reduce(r->engine, &o, KOLO_SUM, 1, 1, &h, &handle));
            EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
            EXPECT(holds(&other, (float)r->size, (float)step));
            fake_event_end(m.ready);
        }
        EXPECT_OK(kolo_engine_barrier(r->engine, NULL, &barrier));
        EXPECT_OK(kolo_engine_wait(r->engine, barrier, WAIT_MS, NULL));
        if (r->rank == 0) EXPECT(!is_complete(r, held));
        EXPECT_IS(KOLO_ERR_INVALID_USAGE, kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, &how, NULL));
        EXPECT_OK(kolo_engine_join(r->engine, NULL, &join)); /* comes after it */
        EXPECT_IS(KOLO_ERR_TIMEOUT, kolo_engine_wait(r->engine, join, 30, NULL));
        meet();
        if (r->rank == 0) fake_go(slow);
        EXPECT_OK(kolo_engine_wait(r->engine, join, WAIT_MS, &c));
        EXPECT(is_complete(r, held) == 1);
        EXPECT_OK(kolo_engine_wait(r->engine, held, WAIT_MS, NULL));
        EXPECT(holds(&late, (float)r->size, 3));
        fake_event_end(memory.ready);
    }
    drop(&late);
    drop(&other);
    fake_queue_end(slow);
    fake_queue_end(fast);
}

static void who_is_not_ready_keeps_nobody_waiting(void **state)
{
    (void)state;
    for (int n = 1; n <= FAKES; n++) assert_int_equal(run_on_fakes(n, FAKE_TELLS, NULL, wait_for_others), 0);
    assert_int_equal(run_on_fakes(2, 0, NULL, wait_for_others), 0);
}

typedef struct {
    float *to;
    float value;
} late_t;

static void write_late(void *arg)
{
    const late_t *l = arg;
    nap_ms(5);
    *l->to = l->value;
}

/* An event of the CPU: a tensor that a stream makes. */
static void reduce_of_stream(erank_t *r)
{
    kolo_stream_t stream;
    kolo_event_t event;
    float x;
    int64_t one = 1, handle;
    EXPECT_OK(kolo_stream_create(&stream));
    EXPECT_OK(kolo_event_create(&event));
    for (int step = 0; step < 5; step++) {
        late_t late = {&x, (float)(r->rank + step)};
        x = -100;
        EXPECT_OK(kolo_stream_call(stream, write_late, &late));
        EXPECT_OK(kolo_event_record(event, stream));
        kolo_tensor_memory_t memory = {KOLO_DEVICE_CPU, event, NULL};
        kolo_submission_t how = {.memory = &memory};
        kolo_tensor_t t = float_tensor("made", &x, &one);
        EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, &how, &handle));
        EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
        int sum = r->size * step + r->size * (r->size - 1) / 2;
        EXPECT(x == (float)sum);
    }
    EXPECT_OK(kolo_event_destroy(event));
    EXPECT_OK(kolo_stream_destroy(stream));
}

static void a_tensor_of_the_cpu_may_have_an_event_too(void **state)
{
    (void)state;
    for (int n = 1; n <= FAKES; n++) assert_int_equal(run_engines(n, NULL, reduce_of_stream, NULL), 0);
}

/* ---- joined ranks ---- */

static void join_early(erank_t *r)
{
    fake_t *f = fakes[r->rank];
    fake_queue_t *q = fake_queue_new(f);
    buffer_t b[2];
    int64_t handles[2], join;
    for (int i = 0; i < 2; i++) make(&b[i], f, q, SMALL);
    for (int step = 0; step <= r->rank; step++) {
        for (int i = 0; i < 2; i++) {
            fill(&b[i], 2);
            kolo_tensor_memory_t memory = {r->rank, fake_event_new(q), NULL};
            kolo_submission_t how = {.memory = &memory};
            kolo_tensor_t t = tensor_of(i ? "one" : "other", &b[i]);
            EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, &how, &handles[i]));
            EXPECT_OK(kolo_engine_wait(r->engine, handles[i], WAIT_MS, NULL));
            EXPECT(holds(&b[i], (float)(r->size - step), 2));
            fake_event_end(memory.ready);
        }
    }
    EXPECT_OK(kolo_engine_join(r->engine, NULL, &join));
    EXPECT_OK(kolo_engine_wait(r->engine, join, WAIT_MS, NULL));
    for (int i = 0; i < 2; i++) drop(&b[i]);
    fake_queue_end(q);
}

static void ranks_that_have_joined_bring_what_changes_nothing(void **state)
{
    (void)state;
    assert_int_equal(run_on_fakes(FAKES, FAKE_TELLS, NULL, join_early), 0);
}

/* ---- callbacks ---- */

#define AGAIN 40

typedef struct {
    erank_t *r;
    buffer_t *b;
    _Atomic int rounds, bad;
    _Atomic bool over;
} again_t;

static void submit_again(void *arg, const kolo_completion_t *c)
{
    again_t *a = arg;
    kolo_submission_t how = {.done = submit_again, .arg = a};
    kolo_tensor_t t = tensor_of("again", a->b);
    a->bad += c->status != KOLO_OK;
    a->bad += kolo_engine_shutdown(a->r->engine) != KOLO_ERR_INVALID_USAGE;
    if (++a->rounds < AGAIN)
        a->bad += kolo_engine_all_reduce(a->r->engine, &t, KOLO_SUM, 1, 1, &how, NULL) != KOLO_OK;
    else
        a->over = true;
}

/* What is complete is there: the next round begins in the callback, on what the last one has written. */
static void reduce_again_and_again(erank_t *r)
{
    fake_t *f = fakes[r->rank];
    fake_queue_t *q = fake_queue_new(f);
    buffer_t b;
    make(&b, f, q, SMALL);
    again_t a = {.r = r, .b = &b};
    kolo_submission_t how = {.done = submit_again, .arg = &a};
    kolo_tensor_t t = tensor_of("again", &b);
    fill(&b, 4);
    kolo_tensor_memory_t memory = {r->rank, fake_event_new(q), NULL};
    how.memory = &memory;
    EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, &how, NULL));
    for (uint64_t until = now_ms() + WAIT_MS; !a.over && now_ms() < until;) nap_ms(1);
    EXPECT(a.over && a.bad == 0);
    EXPECT(holds(&b, (float)(INT64_C(1) << AGAIN), 4)); /* doubled each time */
    fake_event_end(memory.ready);
    drop(&b);
    fake_queue_end(q);
}

static void what_is_complete_is_there(void **state)
{
    (void)state;
    assert_int_equal(run_on_fakes(2, FAKE_TELLS, NULL, reduce_again_and_again), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_of_the_device_cannot_be_touched),
        cmocka_unit_test(the_loop_and_the_finisher_keep_to_their_own),
        cmocka_unit_test(reductions_of_device_memory_give_the_sum),
        cmocka_unit_test(a_device_that_does_not_tell_is_asked),
        cmocka_unit_test(small_batches_follow_each_other_through_both_buffers),
        cmocka_unit_test(packing_overlaps_reducing),
        cmocka_unit_test(all_operations_take_device_memory),
        cmocka_unit_test(who_is_not_ready_keeps_nobody_waiting),
        cmocka_unit_test(a_tensor_of_the_cpu_may_have_an_event_too),
        cmocka_unit_test(ranks_that_have_joined_bring_what_changes_nothing),
        cmocka_unit_test(what_is_complete_is_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
