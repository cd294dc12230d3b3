/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules of docs/reductions.md once more, as slow scalar code that shares nothing with the kernels: floats are
 * taken apart and put together with ldexp and nearbyint, minima are taken on values. For tests.
 */
#ifndef KOLO_EXEC_HOST_REDUCE_REFERENCE_H
#define KOLO_EXEC_HOST_REDUCE_REFERENCE_H

#include "exec/host/reduce.h"

#include <math.h>
#include <string.h>

typedef struct {
    int width, man, bias;
    uint64_t inf, nan; /* patterns; for e4m3 there is no infinity: inf is the NaN */
} ref_format_t;

static inline const ref_format_t *ref_format(kolo_type_t type)
{
    static const ref_format_t f16 = {16, 10, 15, 0x7c00, 0x7e00}, bf16 = {16, 7, 127, 0x7f80, 0x7fc0},
                              f32 = {32, 23, 127, 0x7f800000, 0x7fc00000},
                              f64 = {64, 52, 1023, 0x7ff0000000000000, 0x7ff8000000000000},
                              e4m3 = {8, 3, 7, 0x7f, 0x7f}, e5m2 = {8, 2, 15, 0x7c, 0x7f};
    switch (type) {
    case KOLO_FLOAT16:
        return &f16;
    case KOLO_BFLOAT16:
        return &bf16;
    case KOLO_FLOAT32:
        return &f32;
    case KOLO_FLOAT64:
        return &f64;
    case KOLO_FLOAT8_E4M3:
        return &e4m3;
    case KOLO_FLOAT8_E5M2:
        return &e5m2;
    default:
        return NULL;
    }
}

static inline double ref_decode(const ref_format_t *f, uint64_t x)
{
    uint64_t top = 1ull << (f->width - 1), em = x & (top - 1), mantissa = em & ((1ull << f->man) - 1);
    int exponent = (int)(em >> f->man);
    double v;
    if (em > f->inf || (em == f->inf && f->inf == f->nan))
        v = (double)NAN;
    else if (em == f->inf)
        v = (double)INFINITY;
    else if (exponent == 0)
        v = ldexp((double)mantissa, 1 - f->bias - f->man);
    else
        v = ldexp((double)(mantissa + (1ull << f->man)), exponent - f->bias - f->man);
    return x & top ? -v : v;
}

static inline uint64_t ref_encode(const ref_format_t *f, double v)
{
    if (isnan(v)) return f->nan;
    uint64_t sign = signbit(v) ? 1ull << (f->width - 1) : 0, bits;
    double a = fabs(v);
    if (isinf(a)) {
        bits = f->inf;
    } else {
        int e = a == 0 ? 1 - f->bias : ilogb(a);
        if (e < 1 - f->bias) e = 1 - f->bias;
        uint64_t q = (uint64_t)nearbyint(ldexp(a, f->man - e)); /* to nearest even */
        bits = q + ((uint64_t)(e + f->bias - 1) << f->man);     /* a carry into the exponent is what we want */
        if (bits > f->inf) bits = f->inf;
    }
    return bits == f->nan ? f->nan : bits | sign;
}

static inline uint64_t ref_load(size_t elem, const void *p)
{
    uint64_t u = 0;
    memcpy(&u, p, elem); /* little-endian, as all we build for */
    return u;
}

static inline bool ref_is_signed(kolo_type_t type)
{
    return type == KOLO_INT8 || type == KOLO_INT16 || type == KOLO_INT32 || type == KOLO_INT64;
}

static inline int64_t ref_extend(size_t elem, uint64_t x)
{
    return elem == 1 ? (int8_t)x : elem == 2 ? (int16_t)x : elem == 4 ? (int32_t)x : (int64_t)x;
}

static inline uint64_t ref_truth(kolo_op_t op, bool a, bool b)
{
    if (op == KOLO_LXOR || op == KOLO_BXOR) return a != b;
    bool both = op == KOLO_LAND || op == KOLO_BAND || op == KOLO_PROD || op == KOLO_MIN;
    return both ? a && b : a || b;
}

static inline uint64_t ref_int(kolo_type_t type, kolo_op_t op, size_t elem, uint64_t a, uint64_t b)
{
    if (type == KOLO_BOOL || op >= KOLO_LAND) return ref_truth(op, a != 0, b != 0);
    bool less = ref_is_signed(type) ? ref_extend(elem, a) < ref_extend(elem, b) : a < b;
    switch (op) {
    case KOLO_SUM:
        return a + b;
    case KOLO_PROD:
        return a * b;
    case KOLO_BAND:
        return a & b;
    case KOLO_BOR:
        return a | b;
    case KOLO_BXOR:
        return a ^ b;
    case KOLO_MIN:
        return less ? a : b;
    default:
        return less ? b : a;
    }
}

static inline uint64_t ref_pick(const ref_format_t *f, kolo_op_t op, uint64_t a, uint64_t b)
{
    double x = ref_decode(f, a), y = ref_decode(f, b);
    if (isnan(x) || isnan(y)) return f->nan;
    bool a_less = x != y ? x < y : signbit(x) && !signbit(y);
    return (op == KOLO_MIN) == a_less ? a : b;
}

/* Folds one element: srcs[0] op srcs[1] op ..., patterns in and out. */
static inline uint64_t ref_fold(kolo_type_t type, kolo_op_t op, size_t elem, const uint64_t *srcs, int nsrcs)
{
    const ref_format_t *f = ref_format(type);
    if (!f || op == KOLO_MIN || op == KOLO_MAX) {
        uint64_t r = srcs[0];
        if (nsrcs == 1 && !f && (type == KOLO_BOOL || op >= KOLO_LAND)) r = r != 0;
        for (int k = 1; k < nsrcs; k++) r = f ? ref_pick(f, op, r, srcs[k]) : ref_int(type, op, elem, r, srcs[k]);
        return f || elem == 8 ? r : r & ((1ull << elem * 8) - 1);
    }
    if (type == KOLO_FLOAT64) {
        volatile double acc = ref_decode(f, srcs[0]);
        for (int k = 1; k < nsrcs; k++)
            acc = op != KOLO_PROD ? acc + ref_decode(f, srcs[k]) : acc * ref_decode(f, srcs[k]);
        if (op == KOLO_AVG) acc = acc / nsrcs; /* a fold of all ranks: docs/reductions.md */
        return ref_encode(f, acc);
    }
    volatile float acc = (float)ref_decode(f, srcs[0]);
    for (int k = 1; k < nsrcs; k++)
        acc = op != KOLO_PROD ? acc + (float)ref_decode(f, srcs[k]) : acc * (float)ref_decode(f, srcs[k]);
    if (op == KOLO_AVG) acc = acc / (float)nsrcs;
    return ref_encode(f, (double)acc);
}

#endif
