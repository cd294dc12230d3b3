/* SPDX-License-Identifier: Apache-2.0
 *
 * Which tensors share an operation.
 */
#include "base/test.h"
#include "engine/engine.h"

#include <stdio.h>
#include <string.h>

static kolo_work_t work_of(char letter)
{
    switch (letter) {
    case 'g':
    case 'G':
        return KOLO_WORK_ALL_GATHER;
    case 's':
    case 't':
        return KOLO_WORK_REDUCE_SCATTER;
    case 'b':
        return KOLO_WORK_BROADCAST;
    case 'B':
        return KOLO_WORK_BARRIER;
    default:
        return KOLO_WORK_ALL_REDUCE;
    }
}

/* One letter per response: f float32, h float16, m float32 with max, g all_gather, G on GPUs, s reduce_scatter,
 * t with max, b broadcast, B barrier, e error; a digit is its size in elements times ten, for g of each of two
 * ranks. Upper case X and Y: like f, of two groups. "f1 h2": the batches come back as "f1+f3 | h2". */
static bool groups_apart;

static void expect_batches(int64_t threshold, int64_t tensor_max, const char *in, const char *want)
{
    kolo_response_t r[32];
    kolo_response_t *all[32];
    kolo_batches_t b = {NULL, NULL, 0, 0};
    kolo_fuse_rules_t rules = {threshold, tensor_max, 2 * tensor_max, 2, groups_apart};
    int64_t rows[32][2];
    char got[300] = "";
    size_t n = 0, at = 0;
    memset(r, 0, sizeof r);
    for (const char *p = in; *p; p += p[2] ? 3 : 2, n++) {
        kolo_tensor_request_t *q = &r[n].request;
        q->type = *p == 'h' ? KOLO_FLOAT16 : KOLO_FLOAT32;
        q->op = *p == 'm' || *p == 't' ? KOLO_MAX : KOLO_SUM;
        q->work = work_of(*p);
        q->ndims = 1;
        q->group = *p == 'X' ? 7 : *p == 'Y' ? 8 : 0;
        q->shape[0] = 10 * (p[1] - '0');
        rows[n][0] = rows[n][1] = q->shape[0];
        r[n].rows = q->work == KOLO_WORK_ALL_GATHER ? rows[n] : NULL;
        r[n].device = *p == 'G';
        r[n].status = *p == 'e' ? KOLO_ERR_MISMATCH : KOLO_OK;
        r[n].text = (char *)(uintptr_t)p;
        all[n] = &r[n];
    }
    assert_int_equal(kolo_fusion_batches(&rules, all, n, &b), KOLO_OK);
    for (size_t i = 0; i < b.nbatches; i++)
        for (size_t first = at; at < b.ends[i]; at++)
            snprintf(got + strlen(got), sizeof got - strlen(got), "%s%.2s",
                     at > first ? "+"
                     : i        ? " | "
                                : "",
                     b.responses[at]->text);
    assert_int_equal(at, n);
    assert_string_equal(got, want);
    kolo_fusion_batches_fini(&b);
}

static void like_goes_with_like(void **state)
{
    (void)state;
    expect_batches(1000, 1000, "f1 f2 f3", "f1+f2+f3");
    expect_batches(1000, 1000, "f1 h2 f3 h4", "f1+f3 | h2+h4");
    expect_batches(1000, 1000, "f1 m2 f3", "f1+f3 | m2");
    expect_batches(1000, 1000, "f1 g2 f3 e1 f1", "f1+f3+f1 | g2 | e1");
    expect_batches(1000, 1000, "f0 f0", "f0+f0");
}

static void parts_go_with_parts_of_the_same_operation(void **state)
{
    (void)state;
    expect_batches(1000, 1000, "g1 s1 g2 f1 s2 t1 s0 f2", "g1+g2 | s1+s2+s0 | f1+f2 | t1");
    expect_batches(1000, 1000, "b1 b1 g1 b2 g1", "b1 | b1 | g1+g1 | b2");
    expect_batches(1000, 1000, "G1 g1 G1 g1", "G1+G1 | g1+g1"); /* on GPUs by themselves */
    expect_batches(240, 1000, "g1 g2 g1", "g1+g2 | g1");        /* of all ranks together */
    expect_batches(1000, 159, "g1 g2 g1", "g1+g1 | g2");
    expect_batches(1000, 159, "G1 g2 G2 g1", "G1+G2 | g2 | g1"); /* there a copy costs less */
}

static void the_threshold_bounds_a_batch(void **state)
{
    (void)state;
    expect_batches(240, 1000, "f1 f2 f3 f1", "f1+f2+f3 | f1");
    expect_batches(239, 1000, "f1 f2 f3 f1", "f1+f2 | f3+f1");
    expect_batches(0, 1000, "f1 f2", "f1 | f2");
    expect_batches(1000, 79, "f1 f2 f1", "f1+f1 | f2"); /* large ones stay where they lie */
}

static void the_look_ahead_is_bounded(void **state)
{
    (void)state;
    expect_batches(200, 1000, "f1 h9 f1", "f1 | h9 | f1");
    expect_batches(260, 1000, "f1 h9 f1", "f1+f1 | h9");
}

static void groups_stay_apart_where_that_is_wished(void **state)
{
    (void)state;
    expect_batches(1000, 1000, "X1 f1 Y1 X2 f2 Y2", "X1+f1+Y1+X2+f2+Y2");
    groups_apart = true;
    expect_batches(1000, 1000, "X1 f1 Y1 X2 f2 Y2", "X1+X2 | f1+f2 | Y1+Y2");
    expect_batches(80, 1000, "X1 X1 X1 Y1", "X1+X1 | X1 | Y1"); /* the threshold holds as ever */
    groups_apart = false;
}

static void nothing_passes_a_barrier(void **state)
{
    (void)state;
    expect_batches(1000, 1000, "f1 B0 f2 f3", "f1 | B0 | f2+f3");
}

/* A cached all_gather has the rank's own first dimension in its request; all ranks must see the same batches. */
static void batches_do_not_depend_on_the_rank(void **state)
{
    int64_t rows[2] = {1, 50};
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        kolo_response_t r[3], *all[3] = {&r[0], &r[1], &r[2]};
        kolo_batches_t b = {NULL, NULL, 0, 0};
        const kolo_fuse_rules_t rules = {300, 200, 200, 2, false};
        memset(r, 0, sizeof r);
        for (int i = 0; i < 3; i++) {
            r[i].request = (kolo_tensor_request_t){.work = i == 1 ? KOLO_WORK_ALL_GATHER : KOLO_WORK_ALL_REDUCE,
                                                   .type = KOLO_FLOAT32,
                                                   .ndims = 1,
                                                   .shape = {i == 1 ? rows[rank] : 10}};
            r[i].rows = i == 1 ? rows : NULL;
        }
        assert_int_equal(kolo_fusion_batches(&rules, all, 3, &b), KOLO_OK);
        assert_int_equal(b.nbatches, 2);
        assert_int_equal(b.ends[0], 2);
        kolo_fusion_batches_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(like_goes_with_like),
        cmocka_unit_test(parts_go_with_parts_of_the_same_operation),
        cmocka_unit_test(the_threshold_bounds_a_batch),
        cmocka_unit_test(the_look_ahead_is_bounded),
        cmocka_unit_test(groups_stay_apart_where_that_is_wished),
        cmocka_unit_test(nothing_passes_a_barrier),
        cmocka_unit_test(batches_do_not_depend_on_the_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
