/* SPDX-License-Identifier: Apache-2.0
 *
 * Adasum against its formula, written down as a serial tree over whole vectors: every number of ranks, every type,
 * tensors that are fused and tensors that are not, with ranks that have joined; and equal bits on all ranks.
 */
#include "engine/kit/engines.h"
#include "exec/host/reduce_types.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS = 6, LONGEST = 70001, RANKS = 8 };
static const int64_t counts[TENSORS] = {1, 7, 0, 1000, LONGEST, 333}; /* one is too long to be fused */

/* ---- values ---- */

static double get(const void *at, int64_t i, kolo_type_t type)
{
    if (type == KOLO_FLOAT64) return ((const double *)at)[i];
    if (type == KOLO_FLOAT32) return (double)((const float *)at)[i];
    uint16_t bits = ((const uint16_t *)at)[i];
    return (double)(type == KOLO_FLOAT16 ? load_f16(bits) : load_bf16(bits));
}

static void put(void *at, int64_t i, kolo_type_t type, double v)
{
    if (type == KOLO_FLOAT64)
        ((double *)at)[i] = v;
    else if (type == KOLO_FLOAT32)
        ((float *)at)[i] = (float)v;
    else
        ((uint16_t *)at)[i] = type == KOLO_FLOAT16 ? store_f16((float)v) : store_bf16((float)v);
}

static double rounded(double v, kolo_type_t type)
{
    uint64_t room;
    put(&room, 0, type, v);
    return get(&room, 0, type);
}

/* Of each tensor another mixture: equal on all ranks, unlike each other, nothing on some ranks, and so on. */
static double value(int tensor, int rank, int64_t i)
{
    uint64_t x = (uint64_t)(tensor * 1000 + rank) * 2654435761u + (uint64_t)i * 40503u;
    x ^= x >> 13;
    x *= 0x9e3779b97f4a7c15u;
    double noise = (double)(x >> 40) / (double)(1 << 24) - 0.5;
    if (tensor % 3 == 1) return 0.25 + 0.1 * noise; /* nearly the same everywhere */
    if (tensor == 5 && rank % 2) return 0;
    return noise;
}

/* ---- the reference ---- */

static void pair(double *a, const double *b, int64_t n, kolo_type_t type)
{
    double ab = 0, aa = 0, bb = 0;
    for (int64_t i = 0; i < n; i++) {
        ab += a[i] * b[i];
        aa += a[i] * a[i];
        bb += b[i] * b[i];
    }
    double ca = aa > 0 ? 1 - ab / (2 * aa) : 1, cb = bb > 0 ? 1 - ab / (2 * bb) : 1;
    for (int64_t i = 0; i < n; i++) a[i] = rounded(ca * a[i] + cb * b[i], type);
}

/* of[r] is each rank's vector; of[0] becomes the result. */
static void tree(double **of, int nranks, int64_t n, kolo_type_t type)
{
    int leaves = 1;
    while (leaves * 2 <= nranks) leaves *= 2;
    for (int r = leaves; r < nranks; r++) pair(of[r - leaves], of[r], n, type);
    for (int d = 1; d < leaves; d *= 2)
        for (int r = 0; r < leaves; r += 2 * d) pair(of[r], of[r + d], n, type);
}

typedef struct {
    kolo_type_t type;
    int absent; /* this rank joins at once, -1: none does */
    double pre, post;
    double *want[TENSORS], tolerance;
    char *got[RANKS][TENSORS]; /* every rank's last results */
} case_t;

static void make_reference(case_t *c, int nranks)
{
    double *of[RANKS];
    for (int t = 0; t < TENSORS; t++) {
        int64_t n = counts[t];
        for (int r = 0; r < nranks; r++) {
            of[r] = malloc((size_t)(n + 1) * sizeof(double));
            for (int64_t i = 0; i < n; i++)
                of[r][i] = r == c->absent ? 0 : rounded(rounded(value(t, r, i), c->type) * c->pre, c->type);
        }
        tree(of, nranks, n, c->type);
        for (int64_t i = 0; i < n; i++) of[0][i] = rounded(of[0][i] * c->post, c->type);
        c->want[t] = of[0];
        for (int r = 1; r < nranks; r++) free(of[r]);
    }
}

/* ---- ranks ---- */

static void submit_all(erank_t *r, char **data, bool grouped, int64_t *handles)
{
    const case_t *c = r->arg;
    static const char *const names[TENSORS] = {"a", "b", "c", "d", "e", "f"};
    kolo_tensor_t tensors[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        for (int64_t i = 0; i < counts[t]; i++) put(data[t], i, c->type, value(t, r->rank, i));
        tensors[t] = (kolo_tensor_t){names[t], c->type, 1, &counts[t], data[t], data[t]};
    }
    if (grouped)
        EXPECT_OK(
            kolo_engine_all_reduce_group(r->engine, tensors, TENSORS, KOLO_ADASUM, c->pre, c->post, NULL, handles));
    for (int k = 0; k < TENSORS && !grouped; k++) {
        int t = (k + r->rank) % TENSORS;
        EXPECT_OK(kolo_engine_all_reduce(r->engine, &tensors[t], KOLO_ADASUM, c->pre, c->post, NULL, &handles[t]));
    }
}

static void compare(const case_t *c, int t, const void *data)
{
    for (int64_t i = 0; i < counts[t]; i++) {
        double got = get(data, i, c->type), want = c->want[t][i];
        if (fabs(got - want) <= c->tolerance) continue;
        fprintf(stderr, "type %d tensor %d element %lld: %.17g, expected %.17g\n", (int)c->type, t, (long long)i,
                got, want);
        EXPECT(!"the result is that of the formula");
        return;
    }
}

static void join_now(erank_t *r)
{
    int64_t handle;
    EXPECT_OK(kolo_engine_join(r->engine, NULL, &handle));
    EXPECT_OK(kolo_engine_wait(r->engine, handle, WAIT_MS, NULL));
}

static void reduce_all(erank_t *r)
{
    case_t *c = r->arg;
    int64_t handles[TENSORS];
    char *data[TENSORS];
    for (int t = 0; t < TENSORS; t++) c->got[r->rank][t] = data[t] = calloc((size_t)counts[t] + 1, 8);
    for (int round = 0; round < 4; round++) { /* the second time all are cached, if nobody has joined */
        if (r->rank != c->absent) {
            submit_all(r, data, round >= 2, handles);
            for (int t = 0; t < TENSORS; t++) {
                EXPECT_OK(kolo_engine_wait(r->engine, handles[t], WAIT_MS, NULL));
                compare(c, t, data[t]);
            }
        }
        if (c->absent >= 0) join_now(r);
    }
    kolo_engine_counters_t counters;
    EXPECT_OK(kolo_engine_get_counters(r->engine, &counters));
    EXPECT(c->absent >= 0 || counters.hits == 2 * TENSORS);
    EXPECT(counters.operations < counters.tensors || c->absent == r->rank || r->size == 1);
}

static void equal_bits(const case_t *c, int nranks)
{
    for (int r = 1; r < nranks; r++)
        for (int t = 0; t < TENSORS && r != c->absent && c->absent != 0; t++)
            assert_memory_equal(c->got[r][t], c->got[0][t], (size_t)counts[t] * kolo_type_size(c->type));
}

static void run_case(kolo_type_t type, int nranks, int absent, double pre, double post)
{
    case_t *c = calloc(1, sizeof *c);
    *c = (case_t){.type = type, .absent = absent, .pre = pre, .post = post};
    c->tolerance = type == KOLO_FLOAT64   ? 1e-13
                   : type == KOLO_FLOAT32 ? 2e-6
                   : type == KOLO_FLOAT16 ? 1.0 / 128
                                          : 1.0 / 16;
    make_reference(c, nranks);
    int failures = run_engines(nranks, NULL, reduce_all, c);
    if (failures) fprintf(stderr, "type %d, %d ranks, rank %d joins\n", (int)type, nranks, absent);
    assert_int_equal(failures, 0);
    equal_bits(c, nranks);
    for (int t = 0; t < TENSORS; t++) {
        free(c->want[t]);
        for (int r = 0; r < nranks; r++) free(c->got[r][t]);
    }
    free(c);
}

static void it_is_what_the_formula_says(void **state)
{
    (void)state;
    for (int n = 1; n <= RANKS; n++) {
        run_case(KOLO_FLOAT32, n, -1, 1, 1);
        run_case(KOLO_FLOAT64, n, -1, 1, 1);
    }
    run_case(KOLO_FLOAT16, 4, -1, 1, 1);
    run_case(KOLO_FLOAT16, 7, -1, 1, 1);
    run_case(KOLO_BFLOAT16, 3, -1, 1, 1);
    run_case(KOLO_BFLOAT16, 8, -1, 1, 1);
    run_case(KOLO_FLOAT64, 5, -1, 0.5, 3);
}

static void who_has_joined_changes_nothing(void **state)
{
    (void)state;
    for (int absent = 0; absent < 3; absent++) run_case(KOLO_FLOAT64, 3, absent, 1, 1);
    run_case(KOLO_FLOAT32, 4, 2, 2, 1);
}

/* ---- what one can see without a formula ---- */

static void same_and_unlike(erank_t *r)
{
    float same[3] = {1, 2, 3}, unlike[8] = {0}, nothing[2] = {0, 0}, tiny[1] = {1e-38f};
    unlike[r->rank] = 2;
    EXPECT_OK(reduce_now(r, "same", same, 3, KOLO_ADASUM));
    EXPECT(same[0] == 1 && same[1] == 2 && same[2] == 3); /* all agree: once is enough */
    EXPECT_OK(reduce_now(r, "unlike", unlike, r->size, KOLO_ADASUM));
    for (int i = 0; i < r->size; i++) EXPECT(unlike[i] == 2);
    EXPECT_OK(reduce_now(r, "nothing", nothing, 2, KOLO_ADASUM));
    EXPECT(nothing[0] == 0 && nothing[1] == 0);
    EXPECT_OK(reduce_now(r, "tiny", tiny, 1, KOLO_ADASUM));
    EXPECT(tiny[0] > 0);
}

static void equals_are_averaged_and_strangers_added(void **state)
{
    (void)state;
    for (int n = 2; n <= RANKS; n++) assert_int_equal(run_engines(n, NULL, same_and_unlike, NULL), 0);
}

static void misuse(erank_t *r)
{
    int32_t whole[2] = {1, 2};
    float data[2] = {1, 2};
    int64_t n = 2, handle;
    kolo_tensor_t t = {"whole", KOLO_INT32, 1, &n, whole, whole}, f = float_tensor("rows", data, &n);
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_engine_all_reduce(r->engine, &t, KOLO_ADASUM, 1, 1, NULL, &handle),
                 "tensor whole", "int32", "adasum is for");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT,
                 kolo_engine_reduce_scatter(r->engine, &f, KOLO_ADASUM, 1, 1, NULL, &handle), "adasum");
    kolo_status_t status = reduce_now(r, "quarrel", data, 2, r->rank == 1 ? KOLO_ADASUM : KOLO_SUM);
    EXPECT_ERROR(KOLO_ERR_MISMATCH, status, "quarrel", "rank 1 sent operator adasum", "the others operator sum");
    EXPECT_OK(reduce_now(r, "quarrel", data, 2, KOLO_ADASUM));
}

static void what_cannot_be_is_said(void **state)
{
    (void)state;
    assert_int_equal(run_engines(3, NULL, misuse, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_what_the_formula_says),
        cmocka_unit_test(who_has_joined_changes_nothing),
        cmocka_unit_test(equals_are_averaged_and_strangers_added),
        cmocka_unit_test(what_cannot_be_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
