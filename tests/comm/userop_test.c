/* SPDX-License-Identifier: Apache-2.0
 *
 * User operators and registrations: they compute what they say, belong to their communicator and type, and calls
 * that are on their way keep the operator that they were made with.
 */
#include "kit/ranks.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define COUNT 20011

static void scale_and_add(rank_t *r)
{
    float *f = malloc(COUNT * sizeof *f), factor = (float)(r->rank + 1) / 4;
    int64_t *i = malloc(COUNT * sizeof *i), times = r->rank - 1;
    kolo_op_t fop, iop;
    int n = r->nranks, wrong = 0;
    EXPECT_OK(kolo_op_create_premul_sum(&fop, &factor, KOLO_FLOAT32, r->comm));
    EXPECT_OK(kolo_op_create_premul_sum(&iop, &times, KOLO_INT64, r->comm));
    factor = -1, times = -1; /* the scalar was read by the call */
    for (size_t count = 1; count <= COUNT; count *= COUNT) {
        for (size_t k = 0; k < count; k++) f[k] = (float)(k % 64), i[k] = (int64_t)k;
        EXPECT_OK(kolo_all_reduce(f, f, count, KOLO_FLOAT32, fop, r->comm, NULL));
        EXPECT_OK(kolo_all_reduce(i, i, count, KOLO_INT64, iop, r->comm, NULL));
        int64_t sum = (int64_t)n * (n - 1) / 2 - n;
        for (size_t k = 0; k < count; k++)
            wrong += f[k] != (float)(k % 64) * (float)n * (float)(n + 1) / 8 || i[k] != (int64_t)k * sum;
        EXPECT(wrong == 0);
    }
    EXPECT_OK(kolo_op_destroy(fop, r->comm));
    EXPECT_OK(kolo_op_destroy(iop, r->comm));
    free(f);
    free(i);
}

static void premul_sum_scales_each_ranks_input(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n++) assert_int_equal(run_ranks(n, scale_and_add, NULL), 0);
}

#define LONG 150001 /* floats: several blocks where one rank reads the other's memory */

static void scale_and_reduce(rank_t *r)
{
    int n = r->nranks, wrong = 0;
    float *x = malloc((size_t)n * LONG * sizeof *x), *y = malloc(LONG * sizeof *y), factor = (float)(r->rank + 1);
    kolo_op_t op;
    EXPECT_OK(kolo_op_create_premul_sum(&op, &factor, KOLO_FLOAT32, r->comm));
    for (int root = 0; root < n; root++) {
        for (int in_place = 0; in_place < 2; in_place++) {
            float *to = in_place ? x : y;
            for (size_t k = 0; k < LONG; k++) x[k] = (float)(k % 64);
            EXPECT_OK(kolo_reduce(x, r->rank == root ? to : NULL, LONG, KOLO_FLOAT32, op, root, r->comm, NULL));
            for (size_t k = 0; k < LONG && r->rank == root; k++)
                wrong += to[k] != (float)(k % 64) * (float)n * (float)(n + 1) / 2;
        }
    }
    for (size_t k = 0; k < (size_t)n * LONG; k++) x[k] = (float)(k % 64);
    EXPECT_OK(kolo_reduce_scatter(x, y, LONG, KOLO_FLOAT32, op, r->comm, NULL));
    for (size_t k = 0; k < LONG; k++)
        wrong += y[k] != (float)(((size_t)r->rank * LONG + k) % 64) * (float)n * (float)(n + 1) / 2;
    EXPECT(wrong == 0);
    EXPECT_OK(kolo_op_destroy(op, r->comm));
    free(x);
    free(y);
}

static void premul_sum_of_a_long_vector_uses_its_owners_scalar(void **state)
{
    (void)state;
    for (int n = 1; n <= 3; n++) assert_int_equal(run_ranks(n, scale_and_reduce, NULL), 0);
}

/* The larger absolute value; counts its calls. */
static void farther(const void *in, void *inout, size_t count, kolo_type_t type, void *arg)
{
    const int32_t *a = in;
    int32_t *b = inout;
    if (type != KOLO_INT32) abort();
    for (size_t i = 0; i < count; i++)
        if (abs(a[i]) > abs(b[i])) b[i] = a[i];
    atomic_fetch_add((_Atomic int *)arg, 1);
}

static void reduce_by_callback(rank_t *r)
{
    int32_t *x = malloc(COUNT * sizeof *x), *y = calloc(COUNT, sizeof *y);
    _Atomic int calls = 0;
    kolo_op_t op;
    int n = r->nranks, wrong = 0;
    EXPECT_OK(kolo_op_create_callback(&op, farther, &calls, KOLO_INT32, r->comm));
    for (size_t count = 1; count <= COUNT; count *= COUNT) {
        for (size_t k = 0; k < count; k++) x[k] = (r->rank % 2 ? -1 : 1) * (int32_t)(k + (size_t)r->rank + 1);
        EXPECT_OK(kolo_all_reduce(x, y, count, KOLO_INT32, op, r->comm, NULL));
        for (size_t k = 0; k < count; k++) wrong += y[k] != ((n - 1) % 2 ? -1 : 1) * (int32_t)(k + (size_t)n);
        EXPECT_OK(kolo_reduce(x, r->rank ? NULL : y, count, KOLO_INT32, op, 0, r->comm, NULL));
        for (size_t k = 0; k < count; k++) wrong += y[k] != ((n - 1) % 2 ? -1 : 1) * (int32_t)(k + (size_t)n);
        EXPECT(wrong == 0);
    }
    EXPECT(n == 1 || atomic_load(&calls) > 0);
    EXPECT_OK(kolo_op_destroy(op, r->comm));
    free(x);
    free(y);
}

static void a_callback_reduces(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n++) assert_int_equal(run_ranks(n, reduce_by_callback, NULL), 0);
}

/* Adds, and opens a group of its own, which is refused. */
static void add_beside_a_group(const void *in, void *inout, size_t count, kolo_type_t type, void *arg)
{
    const rank_t *r = arg;
    int32_t x = 0;
    if (type != KOLO_INT32) abort();
    for (size_t i = 0; i < count; i++) ((int32_t *)inout)[i] += ((const int32_t *)in)[i];
    EXPECT_OK(kolo_group_start());
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_send(&x, 1, KOLO_INT32, r->nranks, r->comm, NULL));
    EXPECT_IS(KOLO_ERR_INVALID_ARGUMENT, kolo_group_end());
}

/* The message that was put aside comes with the outer group. */
static void open_a_group_in_an_operator(rank_t *r)
{
    int32_t out = r->rank, in = -1, sum = 1;
    int other = 1 - r->rank;
    kolo_pending_t request;
    kolo_op_t op;
    EXPECT_OK(kolo_op_create_callback(&op, add_beside_a_group, r, KOLO_INT32, r->comm));
    EXPECT_OK(kolo_irecv(&in, 1, KOLO_INT32, other, r->comm, &request));
    EXPECT_OK(kolo_group_start());
    EXPECT_OK(kolo_send(&out, 1, KOLO_INT32, other, r->comm, NULL));
    EXPECT_OK(kolo_all_reduce(&sum, &sum, 1, KOLO_INT32, op, r->comm, NULL));
    EXPECT_OK(kolo_group_end());
    EXPECT_OK(kolo_pending_wait(request));
    EXPECT(in == other && sum == 2);
    EXPECT_OK(kolo_op_destroy(op, r->comm));
}

static void a_group_within_a_group_has_its_own_end(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, open_a_group_in_an_operator, NULL), 0);
}

static void misuse_operators(rank_t *r)
{
    enum { MANY = 500 };
    kolo_op_t op = KOLO_SUM, more[MANY];
    float one = 1;
    int32_t x = 1;
    kolo_comm_t other = NULL;
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_op_create_premul_sum(NULL, &one, KOLO_FLOAT32, r->comm),
                 "op_create_premul_sum", "output");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_op_create_premul_sum(&op, NULL, KOLO_FLOAT32, r->comm),
                 "op_create_premul_sum", "scalar");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_op_create_premul_sum(&op, &one, KOLO_TYPE_COUNT, r->comm),
                 "op_create_premul_sum", "type");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_op_create_premul_sum(&op, &one, KOLO_FLOAT32, NULL), "NULL");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_op_create_callback(NULL, farther, NULL, KOLO_INT32, r->comm),
                 "op_create_callback", "output");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_op_create_callback(&op, NULL, NULL, KOLO_INT32, r->comm),
                 "op_create_callback", "function");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_op_create_callback(&op, farther, NULL, (kolo_type_t)-1, r->comm),
                 "op_create_callback", "type");
    EXPECT(op == KOLO_SUM);
    for (int i = 0; i < 4; i++)
        EXPECT_ERROR(
            KOLO_ERR_INVALID_ARGUMENT,
            kolo_op_destroy((kolo_op_t[]){KOLO_SUM, KOLO_OP_BUILTIN_COUNT, (kolo_op_t)-1, (kolo_op_t)INT32_MIN}[i],
                            r->comm),
            "op_destroy", "operator");
    for (int i = 0; i < MANY; i++) EXPECT_OK(kolo_op_create_premul_sum(&more[i], &one, KOLO_FLOAT32, r->comm));
    EXPECT_OK(kolo_all_reduce(&one, &one, 1, KOLO_FLOAT32, more[MANY - 1], r->comm, NULL));
    EXPECT(one == (float)r->nranks);
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_all_reduce(&x, &x, 1, KOLO_INT32, more[5], r->comm, NULL),
                 "all_reduce", "was made for", ", not for ");
    EXPECT_OK(kolo_comm_split(r->comm, 0, 0, &other, NULL));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_all_reduce(&one, &one, 1, KOLO_FLOAT32, more[5], other, NULL),
                 "all_reduce", "not known");
    for (int i = 0; i < MANY; i++) EXPECT_OK(kolo_op_destroy(more[i], r->comm));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_op_destroy(more[5], r->comm), "op_destroy");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_all_reduce(&one, &one, 1, KOLO_FLOAT32, more[5], r->comm, NULL),
                 "all_reduce", "not known");
    works(other);
    end_comm(&other);
}

static void operators_belong_to_their_communicator_and_type(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, misuse_operators, NULL), 0);
}

/* A rank makes as many operators as it likes: the numbers of those that meet are not the same. */
static void use_an_operator_of_another_number(rank_t *r)
{
    float factor = 2, x = 1, y = 0;
    kolo_op_t op[20];
    int n = 1 + 9 * r->rank;
    for (int i = 0; i < n; i++) EXPECT_OK(kolo_op_create_premul_sum(&op[i], &factor, KOLO_FLOAT32, r->comm));
    for (int i = 0; i < 3; i++) EXPECT_OK(kolo_all_reduce(&x, &y, 1, KOLO_FLOAT32, op[n - 1], r->comm, NULL));
    EXPECT(y == 2 * (float)r->nranks);
    for (int i = 0; i < n; i++) EXPECT_OK(kolo_op_destroy(op[i], r->comm));
}

static void numbers_of_operators_are_each_ranks_own(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, use_an_operator_of_another_number, NULL), 0);
}

static void hold(void *arg)
{
    for (uint64_t end = now_ms() + 20000; !atomic_load((_Atomic int *)arg) && now_ms() < end;) nap_ms(1);
}

/* The place of a destroyed operator is taken by the next one; calls made before must not see that. */
static void replace_while_queued(rank_t *r)
{
    kolo_stream_t stream = NULL;
    int32_t two = 2, hundred = 100, x = 1, y = 1, z = 1, n = r->nranks;
    kolo_op_t first, second;
    _Atomic int go = 0;
    EXPECT_OK(kolo_stream_create(&stream));
    EXPECT_OK(kolo_stream_call(stream, hold, &go));
    EXPECT_OK(kolo_op_create_premul_sum(&first, &two, KOLO_INT32, r->comm));
    EXPECT_OK(kolo_all_reduce(&x, &x, 1, KOLO_INT32, first, r->comm, stream));
    EXPECT_OK(kolo_op_destroy(first, r->comm));
    EXPECT_OK(kolo_op_create_premul_sum(&second, &hundred, KOLO_INT32, r->comm));
    EXPECT_OK(kolo_all_reduce(&y, &y, 1, KOLO_INT32, second, r->comm, stream));
    atomic_store(&go, 1);
    EXPECT_OK(kolo_stream_synchronize(stream));
    EXPECT(x == 2 * n && y == 100 * n);
    EXPECT_OK(kolo_group_start());
    EXPECT_OK(kolo_all_reduce(&z, &z, 1, KOLO_INT32, second, r->comm, NULL));
    EXPECT_OK(kolo_op_destroy(second, r->comm));
    EXPECT_OK(kolo_op_create_premul_sum(&first, &two, KOLO_INT32, r->comm));
    EXPECT_OK(kolo_group_end());
    EXPECT(z == 100 * n);
    EXPECT_OK(kolo_stream_destroy(stream));
}

static void a_call_keeps_the_operator_it_was_made_with(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(1, replace_while_queued, NULL), 0);
    assert_int_equal(run_ranks(3, replace_while_queued, NULL), 0);
}

static void register_and_give_back(rank_t *r)
{
    static char buffer[4096];
    kolo_registration_t a = NULL, b = NULL;
    kolo_comm_t other = NULL;
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_register(r->comm, NULL, 10, &a), "comm_register", "buffer");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_register(r->comm, buffer, 0, &a), "comm_register", "size");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_register(r->comm, buffer, 10, NULL), "comm_register",
                 "output");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_register(NULL, buffer, 10, &a), "comm_register", "NULL");
    EXPECT(a == NULL);
    EXPECT_OK(kolo_comm_register(r->comm, buffer, sizeof buffer, &a));
    EXPECT_OK(kolo_comm_register(r->comm, buffer, sizeof buffer, &b)); /* left to the communicator's end */
    EXPECT_OK(kolo_comm_split(r->comm, 0, 0, &other, NULL));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_deregister(other, a), "comm_deregister", "handle");
    EXPECT_OK(kolo_comm_deregister(r->comm, a));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_deregister(r->comm, a), "comm_deregister", "given back");
    EXPECT_OK(kolo_comm_deregister(r->comm, NULL));
    end_comm(&other);
}

static void registrations_are_given_back_once(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, register_and_give_back, NULL), 0);
}

int main(void)
{
    limit_s(110);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(premul_sum_scales_each_ranks_input),
        cmocka_unit_test(premul_sum_of_a_long_vector_uses_its_owners_scalar),
        cmocka_unit_test(a_callback_reduces),
        cmocka_unit_test(a_group_within_a_group_has_its_own_end),
        cmocka_unit_test(operators_belong_to_their_communicator_and_type),
        cmocka_unit_test(numbers_of_operators_are_each_ranks_own),
        cmocka_unit_test(a_call_keeps_the_operator_it_was_made_with),
        cmocka_unit_test(registrations_are_given_back_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
