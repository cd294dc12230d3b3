/* SPDX-License-Identifier: Apache-2.0
 *
 * Test data of collectives. See values.h.
 */
#include "coll/values.h"
#include "exec/host/reduce_types.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const test_type_names[KOLO_TYPE_COUNT] = {"int8",       "uint8",      "int32",    "uint32",  "int64",
                                                      "uint64",     "float16",    "bfloat16", "float32", "float64",
                                                      "float8e4m3", "float8e5m2", "int16",    "uint16",  "bool"};
const char *const test_op_names[KOLO_OP_BUILTIN_COUNT] = {"sum", "prod", "min",  "max", "avg", "band",
                                                          "bor", "bxor", "land", "lor", "lxor"};

/* A quarter of the values is 0, so that there are truth values of both kinds. */
static uint64_t mix(uint64_t seed, uint64_t rank, uint64_t index)
{
    uint64_t h =
        seed * 0x9e3779b97f4a7c15ull ^ (rank + 1) * 0xbf58476d1ce4e5b9ull ^ (index + 1) * 0x94d049bb133111ebull;
    h ^= h >> 31;
    h *= 0xd6e8feb86659fd93ull;
    return h >> 62 ? h ^ h >> 29 : 0;
}

static double float_value(uint64_t h, kolo_op_t op)
{
    double unit = (double)(h >> 11) / 9007199254740992.0;
    return op == KOLO_PROD ? 0.75 + unit * 0.5 : unit * 4 - 2;
}

static void store(void *at, kolo_type_t type, double value)
{
    uint16_t half;
    uint8_t byte;
    float f = (float)value;
    switch (type) {
    case KOLO_FLOAT16:
        half = store_f16(f);
        memcpy(at, &half, 2);
        return;
    case KOLO_BFLOAT16:
        half = store_bf16(f);
        memcpy(at, &half, 2);
        return;
    case KOLO_FLOAT32:
        memcpy(at, &f, 4);
        return;
    case KOLO_FLOAT64:
        memcpy(at, &value, 8);
        return;
    case KOLO_FLOAT8_E4M3:
        byte = store_e4m3(f);
        memcpy(at, &byte, 1);
        return;
    default:
        byte = store_e5m2(f);
        memcpy(at, &byte, 1);
        return;
    }
}

static double load(const void *at, kolo_type_t type)
{
    uint16_t half;
    uint8_t byte;
    float f;
    double d;
    switch (type) {
    case KOLO_FLOAT16:
        memcpy(&half, at, 2);
        return load_f16(half);
    case KOLO_BFLOAT16:
        memcpy(&half, at, 2);
        return load_bf16(half);
    case KOLO_FLOAT32:
        memcpy(&f, at, 4);
        return f;
    case KOLO_FLOAT64:
        memcpy(&d, at, 8);
        return d;
    case KOLO_FLOAT8_E4M3:
        memcpy(&byte, at, 1);
        return load_e4m3(byte);
    default:
        memcpy(&byte, at, 1);
        return load_e5m2(byte);
    }
}

static bool is_float(kolo_type_t type)
{
    return type >= KOLO_FLOAT16 && type <= KOLO_FLOAT8_E5M2;
}

static void value(void *at, kolo_type_t type, kolo_op_t op, uint64_t seed, int rank, size_t index)
{
    uint64_t h = mix(seed, (uint64_t)rank, index);
    if (is_float(type))
        store(at, type, float_value(h, op));
    else
        memcpy(at, &h, kolo_type_size(type));
}

/* Integers, the low bytes of the mix, in loops of their own: most of a run of the kit is spent on its values. */
#define FILL_INTEGERS(T)                                                                                           \
    for (size_t i = 0; i < count; i++) {                                                                           \
        T v = (T)mix(seed, (uint64_t)rank, first + i);                                                             \
        memcpy((char *)buf + i * sizeof(T), &v, sizeof(T));                                                        \
    }

void test_fill(void *buf, size_t count, kolo_type_t type, kolo_op_t op, uint64_t seed, int rank, size_t first)
{
    size_t elem = kolo_type_size(type);
    if (is_float(type)) {
        for (size_t i = 0; i < count; i++)
            store((char *)buf + i * elem, type, float_value(mix(seed, (uint64_t)rank, first + i), op));
    } else if (elem == 1) {
        FILL_INTEGERS(uint8_t)
    } else if (elem == 2) {
        FILL_INTEGERS(uint16_t)
    } else if (elem == 4) {
        FILL_INTEGERS(uint32_t)
    } else {
        FILL_INTEGERS(uint64_t)
    }
}

bool test_equal(const void *got, size_t count, kolo_type_t type, uint64_t seed, int rank, size_t first,
                const char *what)
{
    enum { BLOCK = 512 };
    size_t elem = kolo_type_size(type);
    unsigned char want[BLOCK * 8];
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? count - at : BLOCK, i = 0;
        const char *have = (const char *)got + at * elem;
        test_fill(want, n, type, KOLO_SUM, seed, rank, first + at);
        if (memcmp(have, want, n * elem) == 0) continue;
        while (memcmp(have + i * elem, want + i * elem, elem) == 0) i++;
        fprintf(stderr, "%s: element %zu of %zu is not rank %d's value %zu\n", what, at + i, count, rank,
                first + at + i);
        return false;
    }
    return true;
}

/* Unit in the last place at 1.0. */
static double ulp(kolo_type_t type)
{
    switch (type) {
    case KOLO_FLOAT16:
        return 0x1p-10;
    case KOLO_BFLOAT16:
        return 0x1p-7;
    case KOLO_FLOAT32:
        return 0x1p-23;
    case KOLO_FLOAT64:
        return 0x1p-52;
    case KOLO_FLOAT8_E4M3:
        return 0x1p-3;
    default:
        return 0x1p-2;
    }
}

static bool float_right(const void *got, kolo_type_t type, kolo_op_t op, uint64_t seed, int nranks, size_t index)
{
    double acc = 0, size = 0,
           tiny = type == KOLO_FLOAT8_E4M3   ? 0x1p-9
                  : type == KOLO_FLOAT8_E5M2 ? 0x1p-16
                                             : 0x1p-24;
    for (int r = 0; r < nranks; r++) {
        unsigned char raw[8];
        value(raw, type, op, seed, r, index);
        double v = load(raw, type);
        size += fabs(v);
        if (r == 0)
            acc = v;
        else if (op == KOLO_SUM || op == KOLO_AVG)
            acc += v;
        else if (op == KOLO_PROD)
            acc *= v;
        else
            acc = (op == KOLO_MIN) == (v < acc) ? v : acc;
    }
    double out = load(got, type);
    if (op == KOLO_MIN || op == KOLO_MAX) return out == acc;
    if (op == KOLO_AVG) {
        acc /= nranks;
        size /= nranks;
    }
    if (op == KOLO_PROD) size = fabs(acc) * 2 + 1;
    return fabs(out - acc) <= (size + fabs(acc)) * ulp(type) * (nranks + 1) + tiny * nranks;
}

static uint64_t extend(const void *at, kolo_type_t type)
{
    uint64_t v = 0;
    memcpy(&v, at, kolo_type_size(type));
    if (type == KOLO_INT8) return (uint64_t)(int64_t)(int8_t)v;
    if (type == KOLO_INT16) return (uint64_t)(int64_t)(int16_t)v;
    if (type == KOLO_INT32) return (uint64_t)(int64_t)(int32_t)v;
    return v;
}

static uint64_t truth_of(uint64_t v)
{
    return v != 0;
}

static uint64_t truths_and_bits(uint64_t a, uint64_t b, kolo_type_t type, kolo_op_t op)
{
    bool one = type == KOLO_BOOL;
    switch (op) {
    case KOLO_BAND:
        return one ? truth_of(a) & truth_of(b) : a & b;
    case KOLO_BOR:
        return one ? truth_of(a) | truth_of(b) : a | b;
    case KOLO_BXOR:
        return one ? truth_of(a) ^ truth_of(b) : a ^ b;
    case KOLO_PROD: /* of bools, as the next ones */
    case KOLO_MIN:
    case KOLO_LAND:
        return truth_of(a) & truth_of(b);
    case KOLO_SUM:
    case KOLO_MAX:
    case KOLO_LOR:
        return truth_of(a) | truth_of(b);
    default:
        return truth_of(a) ^ truth_of(b);
    }
}

static bool integer_right(const void *got, kolo_type_t type, kolo_op_t op, uint64_t seed, int nranks, size_t index)
{
    bool is_signed = type == KOLO_INT8 || type == KOLO_INT16 || type == KOLO_INT32 || type == KOLO_INT64;
    bool truth = type == KOLO_BOOL || op >= KOLO_LAND;
    uint64_t acc = 0;
    for (int r = 0; r < nranks; r++) {
        unsigned char raw[8];
        value(raw, type, op, seed, r, index);
        uint64_t v = extend(raw, type);
        bool less = is_signed ? (int64_t)v < (int64_t)acc : v < acc;
        if (r == 0)
            acc = truth ? truth_of(v) : v;
        else if (truth || op >= KOLO_BAND)
            acc = truths_and_bits(acc, v, type, op);
        else if (op == KOLO_SUM || op == KOLO_AVG)
            acc += v;
        else if (op == KOLO_PROD)
            acc *= v;
        else
            acc = (op == KOLO_MIN) == less ? v : acc;
    }
    if (op == KOLO_AVG) {
        acc = extend(&acc, type); /* the sum wraps in the type, then is divided towards zero */
        acc = is_signed ? (uint64_t)((int64_t)acc / nranks) : acc / (uint64_t)nranks;
    }
    return memcmp(&acc, got, kolo_type_size(type)) == 0;
}

bool test_reduced(const void *got, size_t count, kolo_type_t type, kolo_op_t op, uint64_t seed, int nranks,
                  size_t first, const char *what)
{
    size_t elem = kolo_type_size(type);
    for (size_t i = 0; i < count; i++) {
        const char *at = (const char *)got + i * elem;
        bool right = is_float(type) ? float_right(at, type, op, seed, nranks, first + i)
                                    : integer_right(at, type, op, seed, nranks, first + i);
        if (right) continue;
        fprintf(stderr, "%s: %s %s, element %zu of %zu is wrong\n", what, test_type_names[type], test_op_names[op],
                i, count);
        return false;
    }
    return true;
}
