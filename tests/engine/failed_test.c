/* SPDX-License-Identifier: Apache-2.0
 *
 * An operation that fails though no rank is lost fails its tensors alone, in the same words on all ranks that it
 * fails on, and the engine goes on. The deep check refuses memory that cannot be used: when a tensor is submitted,
 * and once more in the backend, if it has become so since.
 */
#include "engine/kit/engines.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LARGE ((int64_t)3 << 17) /* floats: reduced where they lie */

static float *protected_floats(void)
{
    void *p = mmap(NULL, (size_t)LARGE * sizeof(float), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void expect_engine_goes_on(erank_t *r)
{
    float x = 1;
    EXPECT_OK(reduce_now(r, "after", &x, 1, KOLO_SUM));
    EXPECT(x == (float)r->size);
}

/* ---- on all ranks ---- */

/* For the output of a group's first tensor: from here on the second one's input cannot be read. */
static void *protect_the_next(void *arg, int index, size_t bytes, int ndims, const int64_t *shape)
{
    float **memory = arg;
    (void)index, (void)bytes, (void)ndims, (void)shape;
    mprotect(memory[0], (size_t)LARGE * sizeof(float), PROT_NONE);
    return memory[1];
}
/* A group whose second tensor is refused by the backend. */
static void refused_by_the_backend(erank_t *r)
{
    const int64_t count = LARGE;
    int64_t handles[2];
    for (int round = 0; round < 3; round++) { /* from the second on they are cached */
        float *out = calloc(2 * (size_t)count, sizeof *out), *in = protected_floats();
        float *memory[2] = {in, out};
        if (!EXPECT(in && out)) return;
        mprotect(in, (size_t)count * sizeof *in, PROT_READ | PROT_WRITE);
        kolo_submission_t how = {.allocate = protect_the_next, .arg = memory};
        kolo_tensor_t t[2] = {{"first", KOLO_FLOAT32, 1, &count, out, NULL},
                              {"second", KOLO_FLOAT32, 1, &count, in, out + count}};
        EXPECT_OK(kolo_engine_all_reduce_group(r->engine, t, 2, KOLO_SUM, 1, 1, &how, handles));
        EXPECT_OK(kolo_engine_wait(r->engine, handles[0], WAIT_MS, NULL));
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_wait(r->engine, handles[1], WAIT_MS, NULL),
                     "all_reduce of tensor second", "failed on rank 0", "protected");
        expect_engine_goes_on(r);
        munmap(in, (size_t)count * sizeof *in);
        free(out);
    }
}

/* The same when they are submitted. */
static void refused_memory(erank_t *r)
{
    static const char *const names[] = {"first", "second"};
    const int64_t count = LARGE;
    int64_t handles[2];
    float *out = calloc((size_t)count, sizeof *out), *in = protected_floats();
    if (!EXPECT(in && out)) return;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 2; i++) {
            kolo_tensor_t t = {names[i], KOLO_FLOAT32, 1, &count, in, out};
            EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, NULL, &handles[i]));
        }
        for (int i = 0; i < 2; i++)
            EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_wait(r->engine, handles[i], WAIT_MS, NULL),
                         "all_reduce of tensor", names[i], "failed on rank 0", "protected");
        expect_engine_goes_on(r);
    }
    mprotect(in, (size_t)count * sizeof *in, PROT_READ | PROT_WRITE);
    for (int64_t i = 0; i < count; i++) in[i] = 1;
    kolo_tensor_t t = {names[0], KOLO_FLOAT32, 1, &count, in, out};
    EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, NULL, &handles[0]));
    EXPECT_OK(kolo_engine_wait(r->engine, handles[0], WAIT_MS, NULL));
    EXPECT(out[0] == (float)r->size && out[count - 1] == (float)r->size);
    munmap(in, (size_t)count * sizeof *in);
    free(out);
}

static void an_operation_that_fails_everywhere_fails_its_tensors_alone(void **state)
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    (void)state;
    assert_int_equal(run_engines(1, NULL, refused_memory, NULL), 0);
    assert_int_equal(run_engines(3, NULL, refused_memory, NULL), 0);
    assert_int_equal(run_engines(1, NULL, refused_by_the_backend, NULL), 0);
    assert_int_equal(run_engines(3, NULL, refused_by_the_backend, NULL), 0);
    config.cache_capacity = 0;
    assert_int_equal(run_engines(2, &config, refused_by_the_backend, NULL), 0);
    assert_int_equal(run_engines(2, &config, refused_memory, NULL), 0);
}

static void refused_and_over(erank_t *r)
{
    const int64_t count = LARGE;
    float *in = protected_floats(), *out = calloc(2 * (size_t)count, sizeof *out);
    float *memory[2] = {in, out};
    int64_t handles[2], handle;
    if (!EXPECT(in && out)) return;
    mprotect(in, (size_t)count * sizeof *in, PROT_READ | PROT_WRITE);
    kolo_submission_t how = {.allocate = protect_the_next, .arg = memory};
    kolo_tensor_t t[2] = {{"good", KOLO_FLOAT32, 1, &count, out, NULL},
                          {"bad", KOLO_FLOAT32, 1, &count, in, out + count}};
    EXPECT_OK(kolo_engine_all_reduce_group(r->engine, t, 2, KOLO_SUM, 1, 1, &how, handles));
    EXPECT_OK(kolo_engine_join(r->engine, NULL, &handle)); /* held back until the failure is through */
    EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_wait(r->engine, handles[1], 0, NULL), "bad", "protected");
    expect_engine_goes_on(r);
    munmap(in, (size_t)count * sizeof *in);
    free(out);
}

static void a_join_comes_behind_what_has_failed(void **state)
{
    (void)state;
    assert_int_equal(run_engines(3, NULL, refused_and_over, NULL), 0);
}

/* ---- on one rank ---- */

typedef kolo_status_t (*submit_fn_t)(erank_t *r, const kolo_tensor_t *t, int64_t *handle);

static kolo_status_t all_reduce(erank_t *r, const kolo_tensor_t *t, int64_t *handle)
{
    return kolo_engine_all_reduce(r->engine, t, KOLO_SUM, 1, 1, NULL, handle);
}

static kolo_status_t all_gather(erank_t *r, const kolo_tensor_t *t, int64_t *handle)
{
    return kolo_engine_all_gather(r->engine, t, NULL, handle);
}

static kolo_status_t broadcast(erank_t *r, const kolo_tensor_t *t, int64_t *handle)
{
    return kolo_engine_broadcast(r->engine, t, 1, NULL, handle);
}

static kolo_status_t all_to_all(erank_t *r, const kolo_tensor_t *t, int64_t *handle)
{
    return kolo_engine_all_to_all(r->engine, t, NULL, NULL, handle);
}

static kolo_status_t reduce_scatter(erank_t *r, const kolo_tensor_t *t, int64_t *handle)
{
    return kolo_engine_reduce_scatter(r->engine, t, KOLO_SUM, 1, 1, NULL, handle);
}

/* Rank 1's output lies over its input, but for a few bytes; the results of the others are right all the same. */
static void one_overlaps(erank_t *r, const char *name, submit_fn_t submit, float first)
{
    const int64_t count = LARGE;
    float *memory = malloc(5 * (size_t)count * sizeof *memory), *in = memory;
    float *out = r->rank == 1 ? memory + 3 : memory + count;
    int64_t handle;
    if (!EXPECT(memory)) return;
    for (int64_t i = 0; i < count; i++) in[i] = (float)(r->rank + 1);
    kolo_tensor_t t = {name, KOLO_FLOAT32, 1, &count, in, out};
    EXPECT_OK(submit(r, &t, &handle));
    if (r->rank == 1) {
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_wait(r->engine, handle, WAIT_MS, NULL), name,
                     "lies over its input");
    } else if (EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL))) {
        EXPECT(out[0] == first);
    }
    expect_engine_goes_on(r);
    free(memory);
}

static void one_overlaps_in_each(erank_t *r)
{
    one_overlaps(r, "reduced", all_reduce, 6);
    one_overlaps(r, "gathered", all_gather, 1);
    one_overlaps(r, "sent", broadcast, 2);
    one_overlaps(r, "exchanged", all_to_all, 1);
    one_overlaps(r, "scattered", reduce_scatter, 6);
}

static void an_output_over_its_input_fails_one_rank_alone(void **state)
{
    (void)state;
    assert_int_equal(run_engines(3, NULL, one_overlaps_in_each, NULL), 0);
}

/* Memory that one rank cannot use: known before anybody begins, so the tensor fails on all. */
static void one_is_refused(erank_t *r, const char *name, submit_fn_t submit, const char *why)
{
    const int64_t count = LARGE;
    float *memory = calloc(5 * (size_t)count, sizeof *memory), *bad = protected_floats();
    int64_t handle;
    if (!EXPECT(memory && bad)) return;
    for (int round = 0; round < 5; round++) { /* every other one is good, and is cached */
        bool is_bad = r->rank == 1 && round % 2;
        kolo_tensor_t t = {name, KOLO_FLOAT32, 1, &count, is_bad ? bad : memory, memory + count};
        EXPECT_OK(submit(r, &t, &handle));
        if (round % 2)
            EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_wait(r->engine, handle, WAIT_MS, NULL), name,
                         "failed on rank 1", why);
        else
            EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
    }
    expect_engine_goes_on(r);
    munmap(bad, (size_t)count * sizeof *bad);
    free(memory);
}

static void one_refuses_in_each(erank_t *r)
{
    one_is_refused(r, "reduced", all_reduce, "its input cannot be read");
    one_is_refused(r, "gathered", all_gather, "it is protected");
    one_is_refused(r, "sent", broadcast, "it is protected");
    one_is_refused(r, "exchanged", all_to_all, "it is protected");
    one_is_refused(r, "scattered", reduce_scatter, "it is protected");
}

/* Small tensors of one batch: the others are reduced, without the one. */
static void one_of_a_batch(erank_t *r)
{
    enum { TENSORS = 6, BAD = 3 };
    static const char *const names[TENSORS] = {"a", "b", "c", "d", "e", "f"};
    const int64_t count = 10;
    float data[TENSORS][10], *bad = protected_floats();
    kolo_tensor_t t[TENSORS];
    int64_t handles[TENSORS];
    if (!EXPECT(bad)) return;
    mprotect(bad, (size_t)LARGE * sizeof *bad, PROT_READ);
    for (int i = 0; i < TENSORS; i++) {
        for (int k = 0; k < count; k++) data[i][k] = 1;
        t[i] = (kolo_tensor_t){names[i], KOLO_FLOAT32, 1, &count, data[i], data[i]};
        if (i == BAD && r->rank == 2) t[i].output = bad;
    }
    EXPECT_OK(kolo_engine_all_reduce_group(r->engine, t, TENSORS, KOLO_SUM, 1, 1, NULL, handles));
    for (int i = 0; i < TENSORS; i++) {
        kolo_status_t status = kolo_engine_wait(r->engine, handles[i], WAIT_MS, NULL);
        if (i == BAD)
            EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, status, "all_reduce of tensor d", "failed on rank 2",
                         "its output cannot be written", "may only be read");
        else
            EXPECT(status == KOLO_OK && data[i][0] == (float)r->size && data[i][9] == (float)r->size);
    }
    expect_engine_goes_on(r);
    munmap(bad, (size_t)LARGE * sizeof *bad);
}

/* How large the output is comes out too late to warn the others: they get right results. */
static void one_has_no_room(erank_t *r)
{
    const int64_t count = 1000;
    float *in = malloc(1000 * sizeof *in), *out = calloc(3000, sizeof *out), *bad = protected_floats();
    int64_t handle;
    if (!EXPECT(in && out && bad)) return;
    for (int i = 0; i < 1000; i++) in[i] = (float)(r->rank + i);
    kolo_tensor_t t = {"gathered", KOLO_FLOAT32, 1, &count, in, r->rank == 1 ? bad : out};
    EXPECT_OK(kolo_engine_all_gather(r->engine, &t, NULL, &handle));
    if (r->rank == 1)
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_wait(r->engine, handle, WAIT_MS, NULL),
                     "its output cannot be written", "protected");
    else if (EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL)))
        EXPECT(out[999] == 999 && out[1000] == 1 && out[2999] == 1001);
    expect_engine_goes_on(r);
    munmap(bad, (size_t)LARGE * sizeof *bad);
    free(in);
    free(out);
}

/* The same of one in a batch. */
static void one_of_a_batch_has_no_room(erank_t *r)
{
    static const char *const names[3] = {"g", "h", "i"};
    const int64_t count = 10;
    float in[10], out[3][30], *bad = protected_floats();
    kolo_tensor_t t[3];
    int64_t handles[3];
    if (!EXPECT(bad)) return;
    for (int k = 0; k < 10; k++) in[k] = (float)(r->rank + k);
    for (int i = 0; i < 3; i++) t[i] = (kolo_tensor_t){names[i], KOLO_FLOAT32, 1, &count, in, out[i]};
    if (r->rank == 1) t[1].output = bad;
    EXPECT_OK(kolo_engine_all_gather_group(r->engine, t, 3, NULL, handles));
    for (int i = 0; i < 3; i++) {
        kolo_status_t status = kolo_engine_wait(r->engine, handles[i], WAIT_MS, NULL);
        if (r->rank == 1 && i == 1)
            EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, status, "tensor h", "its output cannot be written",
                         "protected");
        else if (EXPECT_OK(status))
            EXPECT(out[i][9] == 9 && out[i][10] == 1 && out[i][29] == 11);
    }
    expect_engine_goes_on(r);
    munmap(bad, (size_t)LARGE * sizeof *bad);
}

static void memory_that_one_rank_cannot_use_fails_that_tensor_alone(void **state)
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    (void)state;
    assert_int_equal(run_engines(3, NULL, one_refuses_in_each, NULL), 0);
    assert_int_equal(run_engines(3, NULL, one_of_a_batch, NULL), 0);
    assert_int_equal(run_engines(3, NULL, one_has_no_room, NULL), 0);
    assert_int_equal(run_engines(3, NULL, one_of_a_batch_has_no_room, NULL), 0);
    config.cache_capacity = 0;
    assert_int_equal(run_engines(3, &config, one_refuses_in_each, NULL), 0);
}

int main(void)
{
    setenv("KOLO_CHECK", "deep", 1);
    limit_s(200);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_operation_that_fails_everywhere_fails_its_tensors_alone),
        cmocka_unit_test(a_join_comes_behind_what_has_failed),
        cmocka_unit_test(an_output_over_its_input_fails_one_rank_alone),
        cmocka_unit_test(memory_that_one_rank_cannot_use_fails_that_tensor_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
