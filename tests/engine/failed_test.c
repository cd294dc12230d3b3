/* SPDX-License-Identifier: Apache-2.0
 *
 * An operation that fails though no rank is lost fails its tensors alone, in the same words on all ranks that it
 * fails on, and the engine goes on. The deep check refuses memory that cannot be read: a real error of the backend,
 * on all ranks.
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

static void refused_memory(erank_t *r)
{
    static const char *const names[] = {"first", "second"};
    const int64_t count = LARGE;
    int64_t handles[2];
    float *out = calloc((size_t)count, sizeof *out), *in = protected_floats();
    if (!EXPECT(in && out)) return;
    for (int round = 0; round < 3; round++) { /* from the second on they are cached */
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
    config.cache_capacity = 0;
    assert_int_equal(run_engines(2, &config, refused_memory, NULL), 0);
}

static void refused_and_over(erank_t *r)
{
    const int64_t count = LARGE;
    float *in = protected_floats(), *out = malloc((size_t)count * sizeof *out);
    kolo_tensor_t t = {"bad", KOLO_FLOAT32, 1, &count, in, out};
    int64_t handle;
    if (!EXPECT(in && out)) return;
    EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, NULL, &handle));
    EXPECT_OK(kolo_engine_join(r->engine, NULL, &handle)); /* held back until the failure is through */
    EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
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

int main(void)
{
    setenv("KOLO_CHECK", "deep", 1);
    limit_s(200);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_operation_that_fails_everywhere_fails_its_tensors_alone),
        cmocka_unit_test(a_join_comes_behind_what_has_failed),
        cmocka_unit_test(an_output_over_its_input_fails_one_rank_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
