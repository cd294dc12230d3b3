/* SPDX-License-Identifier: Apache-2.0
 *
 * See ordered.h. Compiled without sanitizers: it stands for the user's arithmetic.
 */
#include "coll/ordered.h"
#include "exec/host/reduce_types.h"

#include <stdio.h>
#include <string.h>

static const kolo_type_t types[] = {KOLO_FLOAT32, KOLO_BFLOAT16,    KOLO_FLOAT16,
                                    KOLO_FLOAT64, KOLO_FLOAT8_E4M3, KOLO_FLOAT8_E5M2};
static const size_t sizes[] = {4, 2, 2, 8, 1, 1};
enum { TYPES = 6 };

uint64_t ordered_draw(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* What rank r has at place i: of very different sizes, so that another order gives other bits. Sums of eleven bits
 * are exact as long as exponents are near each other: those of the types with many bits are far apart. */
static double given(int type, int r, size_t i)
{
    static const unsigned sizes_apart[TYPES] = {24, 20, 5, 61, 5, 5};
    uint64_t x = (i * 31u + (uint64_t)r * 7919u + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x ^= x >> 31;
    double v = (double)(int64_t)(x % 2001) - 1000;
    return v / 1024 * (double)(UINT64_C(1) << x / 4096 % sizes_apart[type]);
}

static void put(int type, void *at, size_t i, double v)
{
    uint32_t w = bits_of_float((float)v);
    switch (type) {
    case 0:
        memcpy((char *)at + 4 * i, &w, 4);
        break;
    case 1:
        ((uint16_t *)at)[i] = store_bf16((float)v);
        break;
    case 2:
        ((uint16_t *)at)[i] = store_f16((float)v);
        break;
    case 3:
        ((double *)at)[i] = v;
        break;
    case 4:
        ((uint8_t *)at)[i] = store_e4m3((float)v);
        break;
    default:
        ((uint8_t *)at)[i] = store_e5m2((float)v);
    }
}

static float widened(int type, double v)
{
    char e[8];
    uint16_t h;
    put(type, e, 0, v);
    memcpy(&h, e, 2);
    switch (type) {
    case 1:
        return load_bf16(h);
    case 2:
        return load_f16(h);
    case 4:
        return load_e4m3((uint8_t)h);
    case 5:
        return load_e5m2((uint8_t)h);
    default:
        return (float)v;
    }
}

/* The definition. */
static void fold(int type, kolo_op_t op, int n, size_t i, void *out)
{
    volatile float sum = widened(type, given(type, 0, i)); /* each step is rounded to a float32 */
    volatile double wide = given(type, 0, i);
    for (int r = 1; r < n; r++) {
        sum = op == KOLO_PROD ? sum * widened(type, given(type, r, i)) : sum + widened(type, given(type, r, i));
        wide = op == KOLO_PROD ? wide * given(type, r, i) : wide + given(type, r, i);
    }
    if (op == KOLO_AVG) {
        sum = sum / (float)n;
        wide = wide / n;
    }
    put(type, out, 0, type == 3 ? wide : (double)sum);
}

ordered_case_t ordered_make(uint64_t *seed, int n)
{
    static const kolo_op_t ops[] = {KOLO_SUM, KOLO_AVG, KOLO_SUM, KOLO_PROD};
    static const size_t most[] = {8, 200, 3000, 9000, 3000, 200, 200, ORDERED_MOST - 200};
    ordered_case_t c = {.type = (int)(ordered_draw(seed) % TYPES), .what = (int)(ordered_draw(seed) % 4)};
    if (c.what > ORDERED_REDUCE_SCATTER) c.what = ORDERED_ALL_REDUCE;
    c.op = ops[ordered_draw(seed) % 4];
    c.begin = ordered_draw(seed) % 200;
    c.count = ordered_draw(seed) % most[ordered_draw(seed) % 8] + 1;
    c.root = (int)(ordered_draw(seed) % (uint64_t)n);
    c.cut = ordered_draw(seed) % 3 ? c.count : ordered_draw(seed) % c.count;
    c.in_place = c.what == ORDERED_ALL_REDUCE && ordered_draw(seed) % 2;
    return c;
}

void ordered_fill(const ordered_case_t *c, int rank, void *src)
{
    for (size_t i = c->begin; i < c->begin + c->count; i++) put(c->type, src, i, given(c->type, rank, i));
}

kolo_status_t ordered_call(const ordered_case_t *c, int nranks, char *src, char *dst, kolo_comm_t comm,
                           void *stream)
{
    const kolo_type_t t = types[c->type];
    size_t e = sizes[c->type], parts[2][2] = {{0, c->cut}, {c->cut, c->count - c->cut}};
    kolo_status_t status = KOLO_OK;
    if (c->what == ORDERED_REDUCE_SCATTER)
        return kolo_reduce_scatter(src + c->begin * e, dst, c->count / (size_t)nranks, t, c->op, comm, stream);
    for (int k = 0; k < 2 && status == KOLO_OK; k++) {
        char *from = src + (c->begin + parts[k][0]) * e,
             *to = c->in_place ? from : dst + (c->begin + parts[k][0]) * e;
        size_t count = parts[k][1];
        status = c->what == ORDERED_ALL_REDUCE ? kolo_all_reduce(from, to, count, t, c->op, comm, stream)
                                               : kolo_reduce(from, to, count, t, c->op, c->root, comm, stream);
    }
    return status;
}

/* Is what came back for element `i` of the vector the definition's? */
static bool same(const ordered_case_t *c, int n, size_t i, const char *got)
{
    char want[8];
    fold(c->type, c->op, n, i, want);
    return memcmp(want, got, sizes[c->type]) == 0;
}

bool ordered_check(const ordered_case_t *c, int rank, int nranks, const char *src, const char *dst)
{
    size_t e = sizes[c->type], n = (size_t)nranks, each = c->count / n;
    size_t first = c->what == ORDERED_REDUCE_SCATTER ? (size_t)rank * each : 0;
    size_t count = c->what == ORDERED_REDUCE_SCATTER ? each : c->count;
    if (c->what == ORDERED_REDUCE && rank != c->root) return true;
    for (size_t k = 0; k < count; k += 1 + k / 500) { /* all of short ones */
        const char *base = c->in_place ? src : dst;
        const char *at = base + (c->what == ORDERED_REDUCE_SCATTER ? k : c->begin + k) * e;
        if (same(c, nranks, c->begin + first + k, at)) continue;
        fprintf(stderr,
                "rank %d of %d: type %d, operator %d, collective %d: element %zu of %zu from %zu, cut at %zu\n",
                rank, nranks, c->type, (int)c->op, c->what, k, c->count, c->begin, c->cut);
        return false;
    }
    return true;
}
