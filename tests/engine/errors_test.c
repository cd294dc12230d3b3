/* SPDX-License-Identifier: Apache-2.0
 *
 * What goes wrong, and what is said: errors that one rank sees, and those that only all ranks together show. These
 * fail one tensor, on all ranks, and the engine goes on.
 */
#include "engine/kit/engines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what one rank sees ---- */

static void bad_submissions(erank_t *r)
{
    char long_name[600] = "";
    kolo_tensor_engine_t e = r->engine;
    float x[4] = {0};
    int64_t shape[20] = {4}, negative[1] = {-1}, huge[2] = {INT64_C(1) << 40, INT64_C(1) << 40}, splits[2] = {3, 0};
    int64_t over[2] = {5, -1}, three[1] = {3};
    kolo_tensor_t t = {"bad", KOLO_FLOAT32, 1, shape, x, x}, u = t;
    memset(long_name, 'a', sizeof long_name - 1);
#define REFUSED(call, ...) EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, call, __VA_ARGS__)
#define REDUCE(tensor)     kolo_engine_all_reduce(e, tensor, KOLO_SUM, 1, 1, NULL, NULL)
    u.name = long_name;
    REFUSED(REDUCE(&u), "longer than 511");
    u.name = "";
    REFUSED(REDUCE(&u), "no name");
    u.name = "a\nb";
    REFUSED(REDUCE(&u), "control character", "byte 1");
    u = t;
    u.type = (kolo_type_t)99;
    REFUSED(REDUCE(&u), "bad", "type 99");
    u = t;
    u.ndims = 17;
    REFUSED(REDUCE(&u), "bad", "17 dimensions");
    u = t;
    u.shape = negative;
    REFUSED(REDUCE(&u), "bad", "[-1]");
    u.ndims = 2;
    u.shape = huge;
    REFUSED(REDUCE(&u), "bad", "too large");
    u = t;
    u.input = NULL;
    REFUSED(REDUCE(&u), "bad", "input");
    u = t;
    u.output = NULL;
    REFUSED(REDUCE(&u), "bad", "allocate");
    REFUSED(kolo_engine_all_reduce(e, &t, KOLO_OP_BUILTIN_COUNT, 1, 1, NULL, NULL), "operator 11");
    REFUSED(kolo_engine_all_reduce(e, &t, KOLO_BAND, 1, 1, NULL, NULL), "bitwise and is not for float32");
    u = t;
    u.type = KOLO_BOOL;
    REFUSED(kolo_engine_all_reduce(e, &u, KOLO_LOR, 1, 2, NULL, NULL), "a bool cannot be scaled");
    u = t;
    u.output = NULL;
    REFUSED(kolo_engine_all_reduce(e, &t, KOLO_SUM, 1.0 / 0.0, 1, NULL, NULL), "finite");
    REFUSED(kolo_engine_broadcast(e, &t, 2, NULL, NULL), "bad", "root 2", "0..1");
    REFUSED(kolo_engine_broadcast(e, &t, -1, NULL, NULL), "root -1");
    u.output = x;
    u.ndims = 0;
    REFUSED(kolo_engine_all_gather(e, &u, NULL, NULL), "scalar");
    REFUSED(kolo_engine_all_to_all(e, &u, NULL, NULL, NULL), "scalar");
    REFUSED(kolo_engine_reduce_scatter(e, &u, KOLO_SUM, 1, 1, NULL, NULL), "scalar");
    REFUSED(kolo_engine_all_to_all(e, &t, splits, NULL, NULL), "3 of 4 rows");
    REFUSED(kolo_engine_all_to_all(e, &t, over, NULL, NULL), "split 0");
    u = t;
    u.shape = three;
    REFUSED(kolo_engine_all_to_all(e, &u, NULL, NULL, NULL), "3 rows", "2 ranks");
    REFUSED(kolo_engine_all_reduce_group(e, &t, 0, KOLO_SUM, 1, 1, NULL, NULL), "no tensors");
    REFUSED(kolo_engine_all_reduce(NULL, &t, KOLO_SUM, 1, 1, NULL, NULL), "NULL");
    float y = 1; /* and all that has left nothing behind */
    EXPECT_OK(reduce_now(r, "bad", &y, 1, KOLO_SUM));
    EXPECT(y == 2);
}

static void bad_submissions_are_refused(void **state)
{
    (void)state;
    assert_int_equal(run_engines(2, NULL, bad_submissions, NULL), 0);
}

static void duplicates(erank_t *r)
{
    float x[2] = {1, 1};
    int64_t one = 1, handle, group[2];
    kolo_tensor_t t = float_tensor("twice", &x[0], &one), pair[2] = {t, t};
    if (r->rank == 0) {
        EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, NULL, &handle));
        EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, NULL, NULL),
                     "twice", "outstanding");
        pair[0].name = "other";
        EXPECT_ERROR(KOLO_ERR_INVALID_USAGE,
                     kolo_engine_all_reduce_group(r->engine, pair, 2, KOLO_SUM, 1, 1, NULL, group), "twice");
        pair[1].name = "other"; /* the half that was taken is given back; twice in a group is twice */
        EXPECT_ERROR(KOLO_ERR_INVALID_USAGE,
                     kolo_engine_all_reduce_group(r->engine, pair, 2, KOLO_SUM, 1, 1, NULL, group), "other");
        EXPECT_OK(kolo_engine_barrier(r->engine, NULL, &group[0]));
        EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_engine_barrier(r->engine, NULL, NULL), "the barrier");
    }
    meet();
    if (r->rank > 0) {
        EXPECT_OK(kolo_engine_all_reduce(r->engine, &t, KOLO_SUM, 1, 1, NULL, &handle));
        EXPECT_OK(kolo_engine_barrier(r->engine, NULL, &group[0]));
    }
    EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
    EXPECT_OK(kolo_engine_wait(r->engine, group[0], WAIT_MS, NULL));
    EXPECT(x[0] == (float)r->size);
    EXPECT_OK(reduce_now(r, "other", &x[1], 1, KOLO_SUM));
}

static void names_are_outstanding_once(void **state)
{
    (void)state;
    assert_int_equal(run_engines(2, NULL, duplicates, NULL), 0);
}

/* ---- what only all ranks show ---- */

typedef struct {
    const char *label;
    const char *said[3];
    int odd; /* the rank that differs */
    kolo_tensor_t ours, odds;
    int root[2];
    char kind[2]; /* r all_reduce, g all_gather, b broadcast, a all_to_all, s reduce_scatter */
    kolo_op_t op[2];
    double pre[2], post[2];
} mismatch_t;

static const int64_t s6[] = {6}, s23[] = {2, 3}, s32[] = {3, 2}, s16[] = {1, 6};

#define T(type, ndims, shape)                                                                                      \
    {                                                                                                              \
        "t", type, ndims, shape, NULL, NULL                                                                        \
    }
#define PLAIN .op = {KOLO_SUM, KOLO_SUM}, .pre = {1, 1}, .post = {1, 1}
static const mismatch_t mismatches[] = {
    {"type",
     {"rank 2 sent float16, the others float32"},
     2,
     T(KOLO_FLOAT32, 1, s6),
     T(KOLO_FLOAT16, 1, s6),
     {0, 0},
     "rr",
     PLAIN},
    {"work",
     {"rank 1 sent broadcast, the others all_reduce"},
     1,
     T(KOLO_FLOAT32, 1, s6),
     T(KOLO_FLOAT32, 1, s6),
     {0, 0},
     "rb",
     PLAIN},
    {"shape",
     {"rank 0 sent shape [2, 3], the others shape [6]"},
     0,
     T(KOLO_FLOAT32, 1, s6),
     T(KOLO_FLOAT32, 2, s23),
     {0, 0},
     "rr",
     PLAIN},
    {"shape of a broadcast",
     {"shape [3, 2]", "shape [2, 3]"},
     1,
     T(KOLO_INT32, 2, s23),
     T(KOLO_INT32, 2, s32),
     {0, 0},
     "bb",
     PLAIN},
    {"prescale",
     {"rank 2 sent prescale 0.5, the others prescale 1"},
     2,
     T(KOLO_FLOAT32, 1, s6),
     T(KOLO_FLOAT32, 1, s6),
     {0, 0},
     "rr",
     {KOLO_SUM, KOLO_SUM},
     {1, 0.5},
     {1, 1}},
    {"postscale",
     {"rank 2 sent postscale 2, the others"},
     2,
     T(KOLO_FLOAT32, 1, s6),
     T(KOLO_FLOAT32, 1, s6),
     {0, 0},
     "ss",
     {KOLO_SUM, KOLO_SUM},
     {1, 1},
     {1, 2}},
    {"operator",
     {"rank 1 sent operator max, the others operator sum"},
     1,
     T(KOLO_FLOAT32, 1, s6),
     T(KOLO_FLOAT32, 1, s6),
     {0, 0},
     "rr",
     {KOLO_SUM, KOLO_MAX},
     {1, 1},
     {1, 1}},
    {"dimensions",
     {"rank 2 sent 1 dimension, the others 2 dimensions"},
     2,
     T(KOLO_FLOAT32, 2, s16),
     T(KOLO_FLOAT32, 1, s6),
     {0, 0},
     "gg",
     PLAIN},
    {"rows",
     {"rank 2 sent rows of shape [2], the others rows of shape [3]"},
     2,
     T(KOLO_FLOAT32, 2, s23),
     T(KOLO_FLOAT32, 2, s32),
     {0, 0},
     "aa",
     PLAIN},
    {"root",
     {"rank 2 sent root 1, the others root 0"},
     2,
     T(KOLO_FLOAT32, 1, s6),
     T(KOLO_FLOAT32, 1, s6),
     {0, 1},
     "bb",
     PLAIN},
};

static void *allocate_output(void *arg, int index, size_t bytes, int ndims, const int64_t *shape)
{
    (void)index, (void)arg, (void)ndims, (void)shape;
    return malloc(bytes + 1);
}

static kolo_status_t submit(erank_t *r, char kind, const kolo_tensor_t *t, const mismatch_t *m, int i,
                            int64_t *handle)
{
    const kolo_submission_t how = {.allocate = allocate_output};
    const int64_t splits[8] = {t->shape ? t->shape[0] : 0};
    switch (kind) {
    case 'r':
        return kolo_engine_all_reduce(r->engine, t, m->op[i], m->pre[i], m->post[i], NULL, handle);
    case 'g':
        return kolo_engine_all_gather(r->engine, t, &how, handle);
    case 'b':
        return kolo_engine_broadcast(r->engine, t, m->root[i], NULL, handle);
    case 'a':
        return kolo_engine_all_to_all(r->engine, t, splits, &how, handle);
    default:
        return kolo_engine_reduce_scatter(r->engine, t, m->op[i], m->pre[i], m->post[i], NULL, handle);
    }
}

static void one_mismatch(erank_t *r, const mismatch_t *m)
{
    double in[8] = {0}, out[8];
    float x = 1;
    int64_t handle;
    int i = r->rank == m->odd;
    kolo_tensor_t t = i ? m->odds : m->ours;
    t.name = m->label;
    t.input = in;
    t.output = m->kind[i] == 'g' || m->kind[i] == 'a' ? NULL : out;
    if (!EXPECT_OK(submit(r, m->kind[i], &t, m, i, &handle))) return;
    kolo_status_t status = kolo_engine_wait(r->engine, handle, WAIT_MS, NULL);
    EXPECT_ERROR(KOLO_ERR_MISMATCH, status, "tensor", m->label, m->said[0]);
    if (m->said[1]) EXPECT_ERROR(KOLO_ERR_MISMATCH, status, m->said[1]);
    EXPECT_OK(reduce_now(r, "after", &x, 1, KOLO_SUM)); /* the engine goes on */
    EXPECT(x == (float)r->size);
}

static void each_mismatch(erank_t *r)
{
    for (size_t i = 0; i < sizeof mismatches / sizeof *mismatches; i++) one_mismatch(r, &mismatches[i]);
}

/* Cached first, on all ranks alike, so that the difference finds an entry that must go. */
static void each_mismatch_after_agreement(erank_t *r)
{
    for (size_t i = 0; i < sizeof mismatches / sizeof *mismatches; i++) {
        mismatch_t same = mismatches[i];
        double in[8] = {0}, out[40];
        int64_t handle;
        same.ours.name = same.label;
        same.ours.input = in;
        same.ours.output = out;
        EXPECT_OK(submit(r, same.kind[0], &same.ours, &same, 0, &handle));
        EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
        one_mismatch(r, &mismatches[i]);
    }
}

static void a_mismatch_names_tensor_and_ranks(void **state)
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    (void)state;
    assert_int_equal(run_engines(3, NULL, each_mismatch, NULL), 0);
    assert_int_equal(run_engines(3, NULL, each_mismatch_after_agreement, NULL), 0);
    assert_int_equal(run_engines(5, NULL, each_mismatch_after_agreement, NULL), 0);
    config.cache_capacity = 0;
    assert_int_equal(run_engines(3, &config, each_mismatch, NULL), 0);
}

static void quarrel_about_a_group(erank_t *r)
{
    float x[2] = {1, 1};
    int64_t one = 1, handles[2];
    kolo_tensor_t t[2] = {float_tensor("first", &x[0], &one), float_tensor("second", &x[1], &one)};
    if (r->rank == 1) {
        for (int i = 0; i < 2; i++)
            EXPECT_OK(kolo_engine_all_reduce(r->engine, &t[i], KOLO_SUM, 1, 1, NULL, &handles[i]));
    } else {
        EXPECT_OK(kolo_engine_all_reduce_group(r->engine, t, 2, KOLO_SUM, 1, 1, NULL, handles));
    }
    for (int i = 0; i < 2; i++)
        EXPECT_ERROR(KOLO_ERR_MISMATCH, kolo_engine_wait(r->engine, handles[i], WAIT_MS, NULL),
                     "rank 1 sent it alone, the others it in a group of 2");
}

static void a_group_must_be_one_everywhere(void **state)
{
    (void)state;
    assert_int_equal(run_engines(3, NULL, quarrel_about_a_group, NULL), 0);
}

static void no_memory(erank_t *r)
{
    kolo_submission_t how = {.allocate = allocate_output};
    int64_t two = 2, handle;
    int32_t in[2] = {1, 2};
    kolo_tensor_t t = {"rows", KOLO_INT32, 1, &two, in, NULL};
    EXPECT_OK(kolo_engine_all_gather(r->engine, &t, &how, &handle));
    kolo_completion_t c;
    EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, &c));
    free(c.output);
}

static void *allocate_nothing(void *arg, int index, size_t bytes, int ndims, const int64_t *shape)
{
    (void)index, (void)arg, (void)bytes, (void)ndims, (void)shape;
    return NULL;
}

static void one_has_no_memory(erank_t *r)
{
    kolo_submission_t how = {.allocate = r->rank == 1 ? allocate_nothing : allocate_output};
    int64_t two = 2, handle;
    int32_t in[2] = {1, 2};
    kolo_tensor_t t = {"rows", KOLO_INT32, 1, &two, in, NULL};
    kolo_completion_t c;
    EXPECT_OK(kolo_engine_all_gather(r->engine, &t, &how, &handle));
    if (r->rank == 1) {
        EXPECT_ERROR(KOLO_ERR_NO_MEMORY, kolo_engine_wait(r->engine, handle, WAIT_MS, &c), "rows", "allocate");
    } else if (EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, &c))) {
        EXPECT(((int32_t *)c.output)[3] == 2);
        free(c.output);
    }
    no_memory(r);
}

static void a_rank_without_memory_fails_alone(void **state)
{
    (void)state;
    assert_int_equal(run_engines(3, NULL, one_has_no_memory, NULL), 0);
}

/* ---- options and handles ---- */

static void differing_options(rank_t *r)
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    kolo_tensor_engine_t e;
    config.cache_capacity = r->rank == 1 ? 5 : 6;
    EXPECT_ERROR(KOLO_ERR_MISMATCH, kolo_engine_init(&e, r->comm, &config), "cache_capacity", "5", "6");
    config.cache_capacity = -2;
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_init(&e, r->comm, &config), "cache_capacity is -2");
    config.magic = 0;
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_init(&e, r->comm, &config));
    EXPECT(works(r->comm));
}

static void ended_twice(rank_t *r)
{
    kolo_tensor_engine_t e;
    int64_t handle;
    EXPECT_OK(kolo_engine_init(&e, r->comm, NULL));
    EXPECT_OK(kolo_engine_shutdown(e));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_shutdown(e), "engine_shutdown", "not an engine");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_abort(e), "engine_abort", "not an engine");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_barrier(e, NULL, &handle), "engine_barrier");
}

static void an_engine_that_has_ended_is_recognised(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, ended_twice, NULL), 0);
}

static void options_must_agree(void **state)
{
    census_t before = census_take();
    (void)state;
    assert_int_equal(run_ranks(2, differing_options, NULL), 0);
    assert_true(census_no_more_than(before));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_submissions_are_refused),
        cmocka_unit_test(names_are_outstanding_once),
        cmocka_unit_test(a_mismatch_names_tensor_and_ranks),
        cmocka_unit_test(a_group_must_be_one_everywhere),
        cmocka_unit_test(a_rank_without_memory_fails_alone),
        cmocka_unit_test(options_must_agree),
        cmocka_unit_test(an_engine_that_has_ended_is_recognised),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
