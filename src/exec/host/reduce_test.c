/* SPDX-License-Identifier: Apache-2.0
 *
 * Every kernel of every instruction set this machine has, against the scalar reference, to the bit.
 */
#include "base/clock.h"
#include "base/test.h"
#include "exec/host/reduce_reference.h"
#include "exec/host/reduce_table.h"

#include <stdlib.h>

#define MAX_SRCS 17
#define MAX_N    1100

static uint64_t seed = 88172645463325252ull;
static uint64_t random64(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed * 0x2545f4914f6cdd1dull;
}

static size_t elem_of(kolo_type_t type)
{
    kolo_reducer_t r;
    assert_int_equal(kolo_reducer_init(&r, type, KOLO_SUM, 1), KOLO_OK);
    return r.elem;
}

/* Half of the values are special: zeros, infinities, NaNs, largest, smallest, top bit, ones. */
static uint64_t random_value(kolo_type_t type)
{
    const ref_format_t *f = ref_format(type);
    uint64_t r = random64();
    if (r & 1) return random64();
    uint64_t sign = f ? (r >> 1 & 1) << (f->width - 1) : 0;
    if (!f) {
        static const uint64_t special[] = {0,          1,          UINT64_MAX, 0x80,     0x7f,
                                           0x80000000, 0x7fffffff, 1ull << 63, INT64_MAX};
        return special[(r >> 8) % KOLO_COUNTOF(special)];
    }
    uint64_t one = (uint64_t)f->bias << f->man;
    uint64_t special[] = {0, f->inf, f->nan, f->inf - 1, 1, (1ull << f->man) - 1, 1ull << f->man, f->inf + 1, one};
    return special[(r >> 8) % KOLO_COUNTOF(special)] | sign;
}

static void put(void *p, size_t elem, uint64_t v)
{
    memcpy(p, &v, elem);
}

typedef struct {
    char *mem, *srcs[MAX_SRCS], *dst, *dst2;
} buffers_t;

static void buffers_init(buffers_t *b)
{
    size_t each = MAX_N * 8 + 256;
    b->mem = malloc((MAX_SRCS + 2) * each);
    assert_non_null(b->mem);
    for (int k = 0; k < MAX_SRCS; k++) b->srcs[k] = b->mem + (size_t)k * each;
    b->dst = b->mem + MAX_SRCS * each;
    b->dst2 = b->dst + each;
}

static void check_fold(kolo_type_t type, kolo_op_t op, size_t elem, const void *dst, char *const *saved, int nsrcs,
                       size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t in[MAX_SRCS] = {0};
        for (int k = 0; k < nsrcs; k++) in[k] = ref_load(elem, saved[k] + i * elem);
        uint64_t want = ref_fold(type, op, elem, in, nsrcs), got = ref_load(elem, (const char *)dst + i * elem);
        if (got != want)
            fail_msg("%s type %d op %d, %d operands, element %zu of %zu: %llx op %llx ...: %llx, wanted %llx",
                     kolo_reduce_isa(), (int)type, (int)op, nsrcs, i, n, (unsigned long long)in[0],
                     (unsigned long long)in[1], (unsigned long long)got, (unsigned long long)want);
    }
}

/* Lengths round the block and vector borders, operands off by some elements and, once, by a byte. */
static void fold_case(kolo_type_t type, kolo_op_t op, int nsrcs, size_t n, size_t shift, int in_place, buffers_t *b,
                      buffers_t *copy)
{
    size_t elem = elem_of(type);
    const void *srcs[MAX_SRCS];
    char *saved[MAX_SRCS];
    for (int k = 0; k < nsrcs; k++) {
        char *s = b->srcs[k] + shift * (size_t)(k + 1);
        saved[k] = copy->srcs[k];
        for (size_t i = 0; i < n; i++) put(s + i * elem, elem, random_value(type));
        memcpy(saved[k], s, n * elem);
        srcs[k] = s;
    }
    char *dst = in_place >= 0 ? b->srcs[in_place] + shift * (size_t)(in_place + 1) : b->dst + shift;
    dst[n * elem] = 0x5a;
    kolo_reducer_t r;
    assert_int_equal(kolo_reducer_init(&r, type, op, 1), KOLO_OK);
    kolo_reducer_one_fold(&r, op, (uint32_t)nsrcs);
    kolo_reduce_many_t what = {.dst = dst, .srcs = srcs, .nsrcs = nsrcs, .raw = -1};
    if (nsrcs == 2 && (n & 1))
        kolo_reduce_pair(&r, dst, srcs[0], srcs[1], n, 0);
    else
        kolo_reduce_many(&r, &what, n);
    check_fold(type, op, elem, dst, saved, nsrcs, n);
    assert_int_equal(dst[n * elem], 0x5a);
}

static void all_builds_give_the_bits_of_the_reference(void **state)
{
    static const size_t lengths[] = {0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 257, 1023};
    static const int counts[] = {2, 3, 4, 5, 8, 9, 17};
    (void)state;
    buffers_t b, copy;
    buffers_init(&b);
    buffers_init(&copy);
    const kolo_reduce_table_t *table;
    for (int t = 0; (table = kolo_reduce_table(t)) != NULL; t++) {
        kolo_reduce_use(table);
        for (int type = 0; type < KOLO_TYPE_COUNT; type++)
            for (int op = 0; op < KOLO_REDUCE_OPS; op++)
                for (size_t c = 0; c < KOLO_COUNTOF(counts); c++)
                    for (size_t l = 0; table->fold[type][op] && l < KOLO_COUNTOF(lengths); l++) {
                        size_t elem = elem_of((kolo_type_t)type);
                        size_t shift = l % 4 == 3 ? 1 : elem * (l % 4);
                        int in_place = (int)(l + c) % (counts[c] + 1) - 1;
                        fold_case((kolo_type_t)type, (kolo_op_t)op, counts[c], lengths[l], shift, in_place, &b,
                                  &copy);
                    }
    }
    kolo_reduce_use(NULL);
    free(b.mem);
    free(copy.mem);
}

static void pairs(kolo_type_t type, const char *a, const char *b, size_t n)
{
    size_t elem = elem_of(type);
    char *dst = malloc(n * elem);
    assert_non_null(dst);
    const kolo_reduce_table_t *table;
    for (int t = 0; (table = kolo_reduce_table(t)) != NULL; t++) {
        kolo_reduce_use(table);
        for (int op = 0; op < KOLO_REDUCE_OPS; op++) {
            kolo_reducer_t r;
            if (!table->fold[type][op]) continue;
            assert_int_equal(kolo_reducer_init(&r, type, (kolo_op_t)op, 1), KOLO_OK);
            kolo_reducer_one_fold(&r, (kolo_op_t)op, 2);
            kolo_reduce_pair(&r, dst, a, b, n, 0);
            char *saved[2] = {(char *)(uintptr_t)a, (char *)(uintptr_t)b};
            check_fold(type, (kolo_op_t)op, elem, dst, saved, 2, n);
        }
    }
    kolo_reduce_use(NULL);
    free(dst);
}

static void eight_bit_floats_are_right_for_every_pair(void **state)
{
    (void)state;
    char *a = malloc(65536), *b = malloc(65536);
    assert_non_null(a);
    assert_non_null(b);
    for (int i = 0; i < 65536; i++) {
        a[i] = (char)(i & 255);
        b[i] = (char)(i >> 8);
    }
    pairs(KOLO_FLOAT8_E4M3, a, b, 65536);
    pairs(KOLO_FLOAT8_E5M2, a, b, 65536);
    free(a);
    free(b);
}

/* Every pattern against the special ones and against random ones. */
static void sixteen_bit_floats_are_right_for_every_value(void **state)
{
    (void)state;
    uint16_t *a = malloc(65536 * 2), *b = malloc(65536 * 2);
    assert_non_null(a);
    assert_non_null(b);
    for (int type = KOLO_FLOAT16; type <= KOLO_BFLOAT16; type++)
        for (int round = 0; round < 6; round++) {
            for (int i = 0; i < 65536; i++) {
                a[i] = (uint16_t)i;
                b[i] = (uint16_t)(round & 1 ? random64() : random_value((kolo_type_t)type));
                if (round == 0) b[i] = 0; /* conversion there and back */
            }
            pairs((kolo_type_t)type, (char *)(round & 1 ? b : a), (char *)(round & 1 ? a : b), 65536);
        }
    free(a);
    free(b);
}

static void raw_operands_are_scaled_and_rounded_to_their_type_first(void **state)
{
    (void)state;
    for (int type = 0; type < KOLO_BOOL; type++) { /* bools have no scale */
        size_t elem = elem_of((kolo_type_t)type), n = 999;
        const ref_format_t *f = ref_format((kolo_type_t)type);
        char a[1000 * 8], b[1000 * 8], d[1000 * 8], d2[1000 * 8], loaded[1000 * 8];
        kolo_reducer_t r;
        assert_int_equal(kolo_reducer_init(&r, (kolo_type_t)type, KOLO_SUM, 1), KOLO_OK);
        r.pre = true;
        r.pre_float = type == KOLO_FLOAT64 ? 1.0 / 3 : (double)(1.0f / 3);
        r.pre_int = -3;
        for (size_t i = 0; i < n; i++) {
            put(a + i * elem, elem, random_value((kolo_type_t)type));
            put(b + i * elem, elem, random_value((kolo_type_t)type));
        }
        kolo_reduce_pair(&r, d, a, b, n, KOLO_RAW_B);
        const void *srcs[3] = {a, b, a};
        kolo_reduce_many(&r, &(kolo_reduce_many_t){.dst = d2, .srcs = srcs, .nsrcs = 2, .raw = 1, .stream = true},
                         n);
        kolo_reduce_load(&r, loaded, b, n, true, false);
        for (size_t i = 0; i < n; i++) {
            uint64_t y = ref_load(elem, b + i * elem), mask = elem == 8 ? UINT64_MAX : (1ull << elem * 8) - 1;
            double product = f ? ref_decode(f, y) * r.pre_float : 0;
            if (f && type != KOLO_FLOAT64) product = (double)((float)ref_decode(f, y) * (float)r.pre_float);
            uint64_t scaled = f ? ref_encode(f, product) : y * (uint64_t)r.pre_int & mask;
            uint64_t in[2] = {ref_load(elem, a + i * elem), scaled};
            assert_int_equal(ref_load(elem, loaded + i * elem), scaled);
            assert_int_equal(ref_load(elem, d + i * elem), ref_fold((kolo_type_t)type, KOLO_SUM, elem, in, 2));
        }
        assert_memory_equal(d, d2, n * elem);
    }
}

static void integer_averages_are_divided_towards_zero(void **state)
{
    (void)state;
    for (int type = KOLO_INT8; type < KOLO_BOOL; type++)
        for (uint32_t ranks = 2; ranks < 1000 && !ref_format((kolo_type_t)type); ranks = ranks * 3 + 1) {
            size_t elem = elem_of((kolo_type_t)type), n = 1001;
            char a[1001 * 8], b[1001 * 8], d[1001 * 8], d2[1001 * 8];
            kolo_reducer_t r;
            assert_int_equal(kolo_reducer_init(&r, (kolo_type_t)type, KOLO_AVG, ranks), KOLO_OK);
            for (size_t i = 0; i < n; i++) {
                put(a + i * elem, elem, random_value((kolo_type_t)type));
                put(b + i * elem, elem, random_value((kolo_type_t)type));
            }
            kolo_reduce_pair(&r, d, a, b, n, KOLO_FINAL);
            for (size_t i = 0; i < n; i++) {
                uint64_t in[2] = {ref_load(elem, a + i * elem), ref_load(elem, b + i * elem)};
                uint64_t sum = ref_fold((kolo_type_t)type, KOLO_SUM, elem, in, 2);
                uint64_t want = ref_is_signed((kolo_type_t)type)
                                    ? (uint64_t)(ref_extend(elem, sum) / (int64_t)ranks)
                                    : sum / ranks;
                if (elem < 8) want &= (1ull << elem * 8) - 1;
                assert_int_equal(ref_load(elem, d + i * elem), want);
            }
            const void *srcs[2] = {a, b};
            char d3[1001 * 8];
            kolo_reduce_many_t what = {.dst = d2, .dst2 = d3, .srcs = srcs, .nsrcs = 2, .raw = -1, .final = true};
            kolo_reduce_many(&r, &what, n);
            assert_memory_equal(d, d2, n * elem);
            assert_memory_equal(d, d3, n * elem);
        }
}

/* Not associative on purpose: shows the order and the sides of the operands. */
static void twice_in_plus_inout(const void *in, void *inout, size_t count, kolo_type_t type, void *arg)
{
    assert_int_equal(type, KOLO_INT64);
    *(size_t *)arg += count;
    for (size_t i = 0; i < count; i++) ((int64_t *)inout)[i] += 2 * ((const int64_t *)in)[i];
}

static void callbacks_fold_in_the_order_of_the_operands(void **state)
{
    (void)state;
    enum { N = 3000 };
    static int64_t s[4][N], d[N], d2[N];
    size_t called = 0;
    kolo_reducer_t r;
    assert_int_equal(kolo_reducer_init(&r, KOLO_INT64, KOLO_SUM, 4), KOLO_OK);
    r.user = twice_in_plus_inout;
    r.user_arg = &called;
    for (int into = -1; into < 4; into++) {
        for (int k = 0; k < 4; k++)
            for (int i = 0; i < N; i++) s[k][i] = k * 1000 + i;
        const void *srcs[4] = {s[0], s[1], s[2], s[3]};
        int64_t *dst = into < 0 ? d : s[into];
        called = 0;
        kolo_reduce_many(&r, &(kolo_reduce_many_t){.dst = dst, .dst2 = d2, .srcs = srcs, .nsrcs = 4, .raw = -1}, N);
        assert_int_equal(called, 3 * N);
        for (int64_t i = 0; i < N; i++) {
            assert_int_equal(dst[i], ((i * 2 + 1000 + i) * 2 + 2000 + i) * 2 + 3000 + i);
            assert_int_equal(d2[i], dst[i]);
        }
    }
    kolo_reduce_pair(&r, s[0], s[1], s[0], 0, 0);
    for (int i = 0; i < N; i++) s[0][i] = i, s[1][i] = 7;
    kolo_reduce_pair(&r, s[0], s[0], s[1], N, 0);
    for (int i = 0; i < N; i++) assert_int_equal(s[0][i], 2 * i + 7);
}

static void copies_past_the_cache_are_exact_at_every_alignment(void **state)
{
    (void)state;
    static char from[6000], to[6000];
    const kolo_reduce_table_t *table;
    for (int t = 0; (table = kolo_reduce_table(t)) != NULL; t++) {
        kolo_reduce_use(table);
        for (size_t i = 0; i < sizeof(from); i++) from[i] = (char)random64();
        for (size_t bytes = 0; bytes < 5000; bytes += bytes < 700 ? 37 : 491)
            for (size_t shift = 0; shift < 70; shift += 23) {
                memset(to, 0x33, sizeof(to));
                kolo_copy(to + shift + 1, from + shift / 2, bytes, true);
                assert_memory_equal(to + shift + 1, from + shift / 2, bytes);
                assert_int_equal(to[shift], 0x33);
                assert_int_equal(to[shift + 1 + bytes], 0x33);
            }
    }
    kolo_reduce_use(NULL);
}

static void operators_that_are_not_built_in_are_refused(void **state)
{
    (void)state;
    kolo_reducer_t r;
    assert_int_equal(kolo_reducer_init(&r, KOLO_INT8, (kolo_op_t)KOLO_OP_BUILTIN_COUNT, 2),
                     KOLO_ERR_INVALID_ARGUMENT);
    assert_int_equal(kolo_reducer_init(&r, KOLO_TYPE_COUNT, KOLO_SUM, 2), KOLO_ERR_INVALID_ARGUMENT);
    for (int type = 0; type < KOLO_TYPE_COUNT; type++)
        for (int op = 0; op < KOLO_OP_BUILTIN_COUNT; op++) {
            bool fits = op <= KOLO_AVG ? op != KOLO_AVG || type != KOLO_BOOL : !ref_format((kolo_type_t)type);
            assert_int_equal(kolo_op_fits((kolo_op_t)op, (kolo_type_t)type), fits);
            assert_int_equal(kolo_reducer_init(&r, (kolo_type_t)type, (kolo_op_t)op, 2),
                             fits ? KOLO_OK : KOLO_ERR_INVALID_ARGUMENT);
            if (op != KOLO_AVG) assert_int_equal(kolo_reduce_table(0)->fold[type][op] != NULL, fits);
        }
    assert_int_equal(kolo_reducer_init(&r, KOLO_FLOAT32, KOLO_AVG, 3), KOLO_OK);
    assert_true(r.pre && r.op == KOLO_SUM && r.pre_float == (double)(1.0f / 3));
}

/* A communicator of one rank folds nothing. */
static void a_single_operand_becomes_a_truth_value(void **state)
{
    (void)state;
    const int32_t in[4] = {0, 1, -7, 0x100};
    const uint8_t bools[4] = {0, 1, 2, 0xff};
    int32_t out[4];
    uint8_t truths[4];
    kolo_reducer_t r;
    assert_int_equal(kolo_reducer_init(&r, KOLO_INT32, KOLO_LOR, 1), KOLO_OK);
    kolo_reduce_load(&r, out, in, 4, true, true);
    for (int i = 0; i < 4; i++) assert_int_equal(out[i], in[i] != 0);
    kolo_reduce_load(&r, out, in, 4, true, false);
    assert_memory_equal(out, in, sizeof in);
    assert_int_equal(kolo_reducer_init(&r, KOLO_BOOL, KOLO_MAX, 1), KOLO_OK);
    kolo_reduce_load(&r, truths, bools, 4, true, true);
    for (int i = 0; i < 4; i++) assert_int_equal(truths[i], bools[i] != 0);
}

static void a_nan_of_a_single_operand_becomes_the_one_nan(void **state)
{
    (void)state;
    const uint32_t in[6] = {0xffc00001, 0x7f800001, 0x7fc00000, 0x80000000, 0x00000001, 0x3f800000};
    const uint32_t want[6] = {0x7fc00000, 0x7fc00000, 0x7fc00000, 0x80000000, 0x00000001, 0x3f800000};
    static const kolo_op_t ops[] = {KOLO_MIN, KOLO_MAX, KOLO_SUM, KOLO_PROD, KOLO_AVG};
    uint32_t out[6];
    kolo_reducer_t r;
    for (size_t i = 0; i < KOLO_COUNTOF(ops); i++) {
        assert_int_equal(kolo_reducer_init(&r, KOLO_FLOAT32, ops[i], 1), KOLO_OK);
        kolo_reduce_load(&r, out, in, 6, true, true);
        assert_memory_equal(out, want, sizeof want);
    }
}

static void a_parameter_forces_a_lower_instruction_set(void **state)
{
    (void)state;
    assert_int_equal(kolo_param_parse(&kolo_reduce_params.rows[0], "baseline"), KOLO_OK);
    kolo_reduce_use(NULL);
    assert_string_equal(kolo_reduce_isa(), "baseline");
    assert_int_equal(kolo_param_parse(&kolo_reduce_params.rows[0], "auto"), KOLO_OK);
    kolo_reduce_use(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_builds_give_the_bits_of_the_reference),
        cmocka_unit_test(a_nan_of_a_single_operand_becomes_the_one_nan),
        cmocka_unit_test(eight_bit_floats_are_right_for_every_pair),
        cmocka_unit_test(sixteen_bit_floats_are_right_for_every_value),
        cmocka_unit_test(raw_operands_are_scaled_and_rounded_to_their_type_first),
        cmocka_unit_test(integer_averages_are_divided_towards_zero),
        cmocka_unit_test(callbacks_fold_in_the_order_of_the_operands),
        cmocka_unit_test(copies_past_the_cache_are_exact_at_every_alignment),
        cmocka_unit_test(operators_that_are_not_built_in_are_refused),
        cmocka_unit_test(a_single_operand_becomes_a_truth_value),
        cmocka_unit_test(a_parameter_forces_a_lower_instruction_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
