/* SPDX-License-Identifier: Apache-2.0
 *
 * See values.h. Integers are any bits: they wrap. Floats are drawn from so few values that sums over 16 ranks (8
 * for floats of 8 bits) are exact, whatever the order and wherever they are rounded.
 */
#include "values.h"
#include "coll/values.h"
#include "exec/host/reduce_reference.h"
#include "exec/host/reduce_types.h"

#include <math.h>
#include <string.h>

const char *const values_type_names[VALUES_TYPES] = {"int8",    "uint8",   "int32",      "uint32",
                                                     "int64",   "uint64",  "float16",    "bfloat16",
                                                     "float32", "float64", "float8e4m3", "float8e5m2"};
const char *const values_op_names[VALUES_PREMUL + 1] = {"sum", "prod", "min", "max", "avg", "premul"};

static uint64_t mix(uint64_t seed, uint64_t rank, uint64_t index)
{
    uint64_t h =
        seed * 0x9e3779b97f4a7c15ull ^ (rank + 1) * 0xbf58476d1ce4e5b9ull ^ (index + 1) * 0x94d049bb133111ebull;
    h ^= h >> 31;
    h *= 0xd6e8feb86659fd93ull;
    return h ^ h >> 29;
}

static bool is_float(kolo_type_t type)
{
    return type >= KOLO_FLOAT16;
}

/* ---- exact floats ---- */

static uint64_t pattern(kolo_type_t type, double value)
{
    float f = (float)value;
    uint64_t bits = 0;
    switch (type) {
    case KOLO_FLOAT16:
        return store_f16(f);
    case KOLO_BFLOAT16:
        return store_bf16(f);
    case KOLO_FLOAT8_E4M3:
        return store_e4m3(f);
    case KOLO_FLOAT8_E5M2:
        return store_e5m2(f);
    case KOLO_FLOAT32:
        memcpy(&bits, &f, 4);
        return bits;
    default:
        memcpy(&bits, &value, 8);
        return bits;
    }
}

/* Sums of 16 (8 bits: 8) of them, times four, have an exact pattern. */
static int span(kolo_type_t type)
{
    switch (type) {
    case KOLO_FLOAT8_E5M2:
        return 1;
    case KOLO_FLOAT8_E4M3:
        return 2;
    case KOLO_BFLOAT16:
        return 4;
    case KOLO_FLOAT16:
        return 30;
    default:
        return 30000;
    }
}

static double exact(const values_t *v, int rank, size_t index)
{
    static const double factors[] = {1, -1, 2, 0.5};
    uint64_t h = mix(v->seed, (uint64_t)rank, index);
    if (v->op == KOLO_PROD) return factors[h >> 20 & 3];
    uint64_t n = 2 * (uint64_t)span(v->type) + 1;
    return (double)(int64_t)((h >> 20) % n) - span(v->type);
}

static double scalar_of(kolo_type_t type, int rank)
{
    static const double small[] = {1, -1}, large[] = {1, -2, 4};
    if (!is_float(type)) return rank * 7 + 3;
    return kolo_type_size(type) == 1 ? small[rank % 2] : large[rank % 3];
}

void values_scalar(kolo_type_t type, int rank, void *scalar)
{
    uint64_t bits = is_float(type) ? pattern(type, scalar_of(type, rank)) : (uint64_t)scalar_of(type, rank);
    memcpy(scalar, &bits, kolo_type_size(type));
}

static double exact_sum(const values_t *v, int nranks, size_t index)
{
    double acc = exact(v, 0, index) * (v->op == VALUES_PREMUL ? scalar_of(v->type, 0) : 1);
    for (int r = 1; r < nranks; r++) {
        double x = exact(v, r, index);
        if (v->op == VALUES_PREMUL) x *= scalar_of(v->type, r);
        if (v->op == KOLO_PROD)
            acc *= x;
        else if (v->op == KOLO_MIN || v->op == KOLO_MAX)
            acc = (v->op == KOLO_MIN) == (x < acc) ? x : acc;
        else
            acc += x;
    }
    return v->op == KOLO_AVG ? acc / nranks : acc;
}

/* Where an average cannot be exact: two units in the last place, of the inputs' size. */
static bool close_to(kolo_type_t type, uint64_t got, double want)
{
    const ref_format_t *f = ref_format(type);
    double x = ref_decode(f, got), unit = ldexp(1, -f->man);
    return fabs(x - want) <= 2 * unit * (fabs(want) + span(type));
}

static void reduce_exact(const values_t *v, char *want, const char *got, size_t count, int nranks, size_t first)
{
    size_t elem = kolo_type_size(v->type);
    bool loose = v->op == KOLO_AVG && (nranks & (nranks - 1));
    for (size_t i = 0; i < count; i++) {
        double sum = exact_sum(v, nranks, first + i);
        uint64_t bits = pattern(v->type, sum), have = 0;
        if (loose) {
            memcpy(&have, got + i * elem, elem);
            if (close_to(v->type, have, sum)) bits = have;
        }
        memcpy(want + i * elem, &bits, elem);
    }
}

/* ---- special floats ---- */

static uint64_t special(const values_t *v, int rank, size_t index)
{
    const ref_format_t *f = ref_format(v->type);
    uint64_t sign = 1ull << (f->width - 1), h = mix(v->seed, (uint64_t)rank, index) >> 20;
    switch (h % 16) {
    case 0: /* any NaN: with a sign, with a payload, signalling */
        return (h & 0x10 ? f->inf : f->nan) | (h & 0x20 ? sign : 0) | (h & 0x50 ? 1 : 0);
    case 1:
        return f->inf;
    case 2:
        return f->inf | sign;
    case 3:
    case 4:
        return 0;
    case 5:
    case 6:
        return sign;
    default:
        return pattern(v->type, (double)(h / 16 % 3) - 1);
    }
}

/* A result that is NaN is always the one of its type (docs/reductions.md), also of one rank. */
static void reduce_special(const values_t *v, char *want, size_t count, int nranks, size_t first)
{
    const ref_format_t *f = ref_format(v->type);
    size_t elem = kolo_type_size(v->type);
    for (size_t i = 0; i < count; i++) {
        uint64_t in[64], bits;
        for (int r = 0; r < nranks; r++) in[r] = special(v, r, first + i);
        bits = ref_fold(v->type, (kolo_op_t)v->op, elem, in, nranks);
        if (isnan(ref_decode(f, bits))) bits = f->nan;
        memcpy(want + i * elem, &bits, elem);
    }
}

/* ---- integers ---- */

#define REDUCE_INTEGERS(T)                                                                                         \
    for (size_t i = 0; i < count; i++) {                                                                           \
        T acc = 0, x;                                                                                              \
        for (int r = 0; r < nranks; r++) {                                                                         \
            x = (T)mix(v->seed, (uint64_t)r, first + i);                                                           \
            if (v->op == VALUES_PREMUL) x = (T)((uint64_t)x * (uint64_t)(r * 7 + 3));                              \
            if (r == 0)                                                                                            \
                acc = x;                                                                                           \
            else if (v->op == KOLO_PROD)                                                                           \
                acc = (T)((uint64_t)acc * (uint64_t)x);                                                            \
            else if (v->op == KOLO_MIN || v->op == KOLO_MAX)                                                       \
                acc = (v->op == KOLO_MIN) == (x < acc) ? x : acc;                                                  \
            else                                                                                                   \
                acc = (T)((uint64_t)acc + (uint64_t)x);                                                            \
        }                                                                                                          \
        if (v->op == KOLO_AVG) acc = (T)(acc / (T)nranks);                                                         \
        memcpy(want + i * sizeof(T), &acc, sizeof(T));                                                             \
    }

static void reduce_integers(const values_t *v, char *want, size_t count, int nranks, size_t first)
{
    switch (v->type) {
    case KOLO_INT8:
        REDUCE_INTEGERS(int8_t)
        return;
    case KOLO_UINT8:
        REDUCE_INTEGERS(uint8_t)
        return;
    case KOLO_INT32:
        REDUCE_INTEGERS(int32_t)
        return;
    case KOLO_UINT32:
        REDUCE_INTEGERS(uint32_t)
        return;
    case KOLO_INT64:
        REDUCE_INTEGERS(int64_t)
        return;
    default:
        REDUCE_INTEGERS(uint64_t)
        return;
    }
}

/* ---- both ---- */

/* Floats of 8 bits have no tolerance worth the name; a premultiplied sum is only looked at where it is exact. */
static values_kind_t kind_of(const values_t *v)
{
    bool wide = is_float(v->type) && kolo_type_size(v->type) > 1;
    if (v->kind == VALUES_ROUGH && (!wide || v->op == VALUES_PREMUL)) return VALUES_EXACT;
    return v->kind;
}

#define FILL(T, VALUE)                                                                                             \
    for (size_t i = 0; i < count; i++) {                                                                           \
        T x = (T)(VALUE);                                                                                          \
        memcpy(to + i * sizeof(T), &x, sizeof(T));                                                                 \
    }

static void fill_integers(const values_t *v, char *to, size_t count, int rank, size_t first)
{
    size_t elem = kolo_type_size(v->type);
    if (elem == 1)
        FILL(uint8_t, mix(v->seed, (uint64_t)rank, first + i))
    else if (elem == 4)
        FILL(uint32_t, mix(v->seed, (uint64_t)rank, first + i))
    else
        FILL(uint64_t, mix(v->seed, (uint64_t)rank, first + i))
}

void values_fill(const values_t *v, void *buf, size_t count, int rank, size_t first)
{
    size_t elem = kolo_type_size(v->type);
    values_kind_t kind = kind_of(v);
    char *to = buf;
    if (!is_float(v->type)) {
        fill_integers(v, to, count, rank, first);
        return;
    }
    if (kind == VALUES_ROUGH) {
        test_fill(buf, count, v->type, (kolo_op_t)v->op, v->seed, rank, first);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t bits =
            kind == VALUES_SPECIAL ? special(v, rank, first + i) : pattern(v->type, exact(v, rank, first + i));
        memcpy(to + i * elem, &bits, elem);
    }
}

void values_reduce(const values_t *v, void *want, const void *got, size_t count, int nranks, size_t first)
{
    if (!is_float(v->type))
        reduce_integers(v, want, count, nranks, first);
    else if (kind_of(v) == VALUES_EXACT)
        reduce_exact(v, want, got, count, nranks, first);
    else if (kind_of(v) == VALUES_SPECIAL)
        reduce_special(v, want, count, nranks, first);
    else if (test_reduced(got, count, v->type, (kolo_op_t)v->op, v->seed, nranks, first, "values"))
        memcpy(want, got, count * kolo_type_size(v->type));
    else
        memset(want, 0xee, count * kolo_type_size(v->type)); /* cannot be equal */
}
