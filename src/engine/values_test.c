/* SPDX-License-Identifier: Apache-2.0
 *
 * Scales, and values that change nothing: checked against what a reduction makes of them.
 */
#include "base/test.h"
#include "engine/engine.h"
#include "engine/values_kernels.h"
#include "exec/host/reduce.h"
#include "exec/host/reduce_types.h"

#include <math.h>
#include <string.h>

static void integers_truncate_and_stay_in_range(void **state)
{
    int8_t a[5] = {100, -100, 7, -7, 0};
    uint8_t b[3] = {200, 3, 0};
    int64_t c[2] = {INT64_MAX, INT64_MIN};
    (void)state;
    kolo_values_scale(a, a, 5, KOLO_INT8, 1.5);
    const int8_t want[5] = {127, -128, 10, -10, 0};
    assert_memory_equal(a, want, sizeof a);
    kolo_values_scale(b, b, 3, KOLO_UINT8, -1.0);
    const uint8_t none[3] = {0, 0, 0};
    assert_memory_equal(b, none, sizeof b);
    kolo_values_scale(c, c, 2, KOLO_INT64, 2.0);
    assert_true(c[0] == INT64_MAX && c[1] == INT64_MIN);
}

static void floats_scale_in_their_type(void **state)
{
    float f[3] = {1, -2, 3}, g[3];
    double d[2] = {1, 3};
    uint16_t h[2] = {0x3c00, 0x4200}, b[2] = {0x3f80, 0x4040}; /* 1 and 3 */
    (void)state;
    kolo_values_scale(g, f, 3, KOLO_FLOAT32, 0.5);
    assert_true(g[0] == 0.5f && g[1] == -1.0f && g[2] == 1.5f && f[0] == 1.0f);
    kolo_values_scale(d, d, 2, KOLO_FLOAT64, 0.1);
    assert_true(d[0] == 0.1 && d[1] == 3 * 0.1);
    kolo_values_scale(h, h, 2, KOLO_FLOAT16, 2.0);
    assert_true(h[0] == 0x4000 && h[1] == 0x4600);
    kolo_values_scale(b, b, 2, KOLO_BFLOAT16, 2.0);
    assert_true(b[0] == 0x4000 && b[1] == 0x40c0);
}

static void identities_change_nothing(void **state)
{
    static const kolo_op_t ops[] = {KOLO_SUM, KOLO_PROD, KOLO_MIN,  KOLO_MAX, KOLO_BAND,
                                    KOLO_BOR, KOLO_BXOR, KOLO_LAND, KOLO_LOR, KOLO_LXOR};
    static const uint8_t samples[][8] = {{0x38, 0x3c, 0x38, 0x3c, 0x38, 0x3c, 0x38, 0x3c},
                                         {0xb8, 0xbc, 0xb8, 0xbc, 0xb8, 0xbc, 0xb8, 0xbc},
                                         {0x01, 0, 0, 0, 0, 0, 0, 0x40}};
    (void)state;
    for (int type = 0; type < KOLO_TYPE_COUNT; type++) {
        size_t elem = kolo_type_size((kolo_type_t)type);
        for (size_t o = 0; o < KOLO_COUNTOF(ops); o++) {
            for (size_t s = 0; s < 3 && kolo_op_fits(ops[o], (kolo_type_t)type); s++) {
                kolo_reducer_t r;
                uint8_t identity[16], out[16], in[16];
                memcpy(in, samples[s], 8);
                memcpy(in + 8, samples[s], 8);
                kolo_values_fill_identity(identity, 16 / elem, (kolo_type_t)type, ops[o]);
                assert_int_equal(kolo_reducer_init(&r, (kolo_type_t)type, ops[o], 2), KOLO_OK);
                kolo_reduce_pair(&r, out, identity, in, 16 / elem, KOLO_RAW_A | KOLO_RAW_B | KOLO_FINAL);
                for (size_t i = 0; i < 16 && r.truth; i += elem) { /* itself, as a truth value */
                    uint64_t v = 0;
                    memcpy(&v, in + i, elem);
                    v = v != 0;
                    memcpy(in + i, &v, elem);
                }
                assert_memory_equal(out, in, 16);
            }
        }
    }
}

/* ---- every build of the kernels against plain code ---- */

enum { N = 1003 }; /* whole vectors and a rest */

static uint64_t next_random(void)
{
    static uint64_t s = 88172645463325252ull;
    s ^= s << 13;
    s ^= s >> 7;
    return s ^= s << 17;
}

/* Small ones, large ones, limits. */
static uint64_t some_integer(void)
{
    static const uint64_t special[] = {0,         1,        UINT64_MAX, INT64_MAX, 1ull << 63,
                                       INT32_MAX, 1u << 31, UINT32_MAX, 127,       128};
    uint64_t r = next_random();
    return r % 4 == 0 ? special[r / 4 % 10] : next_random() >> r % 64;
}

/* What the header promises, one by one. */
#define WANT(T, MIN, MAX)                                                                                          \
    do {                                                                                                           \
        T x, y;                                                                                                    \
        memcpy(&x, from, sizeof x);                                                                                \
        volatile double v = (double)x * factor;                                                                    \
        y = v != v ? 0 : v <= (double)(MIN) ? (T)(MIN) : v >= (double)(MAX) ? (T)(MAX) : (T)v;                     \
        memcpy(to, &y, sizeof y);                                                                                  \
    } while (0)

static void scale_one(kolo_type_t type, void *to, const void *from, double factor)
{
    switch (type) {
    case KOLO_INT8:
        WANT(int8_t, INT8_MIN, INT8_MAX);
        return;
    case KOLO_UINT8:
        WANT(uint8_t, 0, UINT8_MAX);
        return;
    case KOLO_INT32:
        WANT(int32_t, INT32_MIN, INT32_MAX);
        return;
    case KOLO_UINT32:
        WANT(uint32_t, 0, UINT32_MAX);
        return;
    case KOLO_INT64:
        WANT(int64_t, INT64_MIN, INT64_MAX);
        return;
    default:
        WANT(uint64_t, 0, UINT64_MAX);
    }
}

static void integers_scale_alike_on_every_instruction_set(void **state)
{
    static const double factors[] = {0.5, -1.0, 3.7, 1e-9, 1e12, -1e300, INFINITY, NAN, 0.0, 1.0 / 3};
    static const kolo_type_t types[] = {KOLO_INT8, KOLO_UINT8, KOLO_INT32, KOLO_UINT32, KOLO_INT64, KOLO_UINT64};
    static uint8_t in[N * 8 + 1], want[N * 8 + 1], out[N * 8 + 1];
    const kolo_values_table_t *t;
    (void)state;
    for (size_t k = 0; k < 6 * 10; k++) {
        kolo_type_t type = types[k % 6];
        size_t elem = kolo_type_size(type);
        double factor = factors[k / 6];
        for (size_t i = 0; i < N; i++) {
            uint64_t r = some_integer();
            memcpy(in + 1 + i * elem, &r, elem);
            scale_one(type, want + 1 + i * elem, in + 1 + i * elem, factor);
        }
        for (int i = 0; (t = kolo_values_table(i)) != NULL; i++) {
            t->scale[type](out + 1, in + 1, N, factor); /* misaligned */
            assert_memory_equal(out + 1, want + 1, N * elem);
            memcpy(out + 1, in + 1, N * elem);
            t->scale[type](out + 1, out + 1, N, factor); /* in place */
            assert_memory_equal(out + 1, want + 1, N * elem);
        }
    }
}

static void all_16_bit_floats_convert_alike_on_every_instruction_set(void **state)
{
    enum { ALL = 65536 };
    static uint16_t all[ALL], back[ALL];
    static float wide[ALL], any[ALL];
    const kolo_values_table_t *t;
    (void)state;
    for (int i = 0; i < ALL; i++) {
        uint32_t bits = (uint32_t)next_random();
        all[i] = (uint16_t)i;
        memcpy(&any[i], &bits, 4);
        if (i % 2) any[i] = load_f16((uint16_t)i) * 1.0003f; /* near to what rounds */
    }
    for (int k = 0; (t = kolo_values_table(k)) != NULL; k++) {
        t->widen_f16(wide, all, ALL);
        for (int i = 0; i < ALL; i++) assert_int_equal(bits_of_float(wide[i]), bits_of_float(load_f16(all[i])));
        t->narrow_f16(back, wide, ALL);
        for (int i = 0; i < ALL; i++) assert_int_equal(back[i], store_f16(wide[i]));
        t->narrow_f16(back, any, ALL);
        for (int i = 0; i < ALL; i++) assert_int_equal(back[i], store_f16(any[i]));
        t->widen_bf16(wide, all, ALL);
        for (int i = 0; i < ALL; i++) assert_int_equal(bits_of_float(wide[i]), bits_of_float(load_bf16(all[i])));
        t->narrow_bf16(back, any, ALL);
        for (int i = 0; i < ALL; i++) assert_int_equal(back[i], store_bf16(any[i]));
    }
}

static void adasum_computes_alike_on_every_instruction_set(void **state)
{
    static float a[N], b[N], out[N];
    static double da[N], db[N], dout[N];
    const kolo_values_table_t *t;
    (void)state;
    for (int i = 0; i < N; i++) {
        da[i] = a[i] = (float)((double)(int64_t)next_random() * 1e-17);
        db[i] = b[i] = (float)((double)(int64_t)next_random() * 1e-19);
    }
    for (int k = 0; (t = kolo_values_table(k)) != NULL; k++) {
        kolo_products_t p = {{0}, {0}, {0}}, q = p, want = p;
        for (int i = 0; i < N; i++) {
            volatile double ab = da[i] * db[i], aa = da[i] * da[i], bb = db[i] * db[i];
            want.ab[i % KOLO_LANES] += ab;
            want.aa[i % KOLO_LANES] += aa;
            want.bb[i % KOLO_LANES] += bb;
        }
        t->products_f32(&p, a, b, 512); /* in two calls */
        t->products_f32(&p, a + 512, b + 512, N - 512);
        t->products_f64(&q, da, db, N);
        assert_memory_equal(&p, &want, sizeof p);
        assert_memory_equal(&q, &want, sizeof q);
        t->combine_f32(out, a, b, N, 0.3, -1.7);
        t->combine_f64(dout, da, db, N, 0.3, -1.7);
        for (int i = 0; i < N; i++) {
            volatile double x = 0.3 * da[i], y = -1.7 * db[i];
            double sum = x + y;
            float f = (float)sum;
            assert_memory_equal(&out[i], &f, sizeof f);
            assert_memory_equal(&dout[i], &sum, sizeof sum);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_truncate_and_stay_in_range),
        cmocka_unit_test(floats_scale_in_their_type),
        cmocka_unit_test(identities_change_nothing),
        cmocka_unit_test(integers_scale_alike_on_every_instruction_set),
        cmocka_unit_test(all_16_bit_floats_convert_alike_on_every_instruction_set),
        cmocka_unit_test(adasum_computes_alike_on_every_instruction_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
