/* SPDX-License-Identifier: Apache-2.0
 *
 * What stands between the executors and the kernels: picks the instruction set, and does block-wise what the
 * kernels do not know (scaling of raw input, division of finished integer averages, callback operators, a second
 * copy of the result, writes past the cache). Blocks are small enough that every operand of a block stays in the
 * first-level cache between two passes over it.
 */
#include "exec/host/reduce.h"
#include "base/clock.h"
#include "exec/host/reduce_table.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <stdatomic.h>
#include <string.h>

#define BLOCK_BYTES      4096
#define LINE_BYTES       64
#define PEEL_LEAST_BYTES 1024
#define PEEL_MOST_SRCS   8

enum { ISA_AUTO, ISA_BASELINE, ISA_AVX2, ISA_AVX512 };
static int64_t isa_param;
static const kolo_param_t rows[] = {
    {.key = "KOLO_CPU_ISA",
     .kind = KOLO_PARAM_ENUM,
     .def = "auto",
     .choices = "auto|baseline|avx2|avx512",
     .help = "Instruction set of reductions on the CPU: the best one the machine has, or at most the one named.",
     .value = &isa_param},
};
const kolo_param_table_t kolo_reduce_params = {"reduce", rows, KOLO_COUNTOF(rows), NULL};

static _Atomic(const kolo_reduce_table_t *) picked;

const kolo_reduce_table_t *kolo_reduce_table(int i)
{
    if (i == 0) return &kolo_reduce_table_baseline;
#if defined(__x86_64__)
    unsigned a, b, c, d; /* not every compiler's cpu_supports knows f16c */
    bool avx2 = __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (i == 1 && avx2) return &kolo_reduce_table_avx2;
    if (i == 2 && avx512) return &kolo_reduce_table_avx512;
#endif
    return NULL;
}

static const kolo_reduce_table_t *pick(void)
{
    int64_t most = isa_param == ISA_AUTO ? ISA_AVX512 : isa_param;
    const kolo_reduce_table_t *best = kolo_reduce_table(0);
    for (int i = 1; i < most && kolo_reduce_table(i); i++) best = kolo_reduce_table(i);
    atomic_store_explicit(&picked, best, memory_order_relaxed); /* all threads find the same */
    return best;
}

static inline const kolo_reduce_table_t *kernels(void)
{
    const kolo_reduce_table_t *t = atomic_load_explicit(&picked, memory_order_relaxed);
    return KOLO_LIKELY(t != NULL) ? t : pick();
}

void kolo_reduce_use(const kolo_reduce_table_t *table)
{
    atomic_store_explicit(&picked, table, memory_order_relaxed);
}

const char *kolo_reduce_isa(void)
{
    return kernels()->name;
}

kolo_status_t kolo_reducer_init(kolo_reducer_t *r, kolo_type_t type, kolo_op_t op, uint32_t nranks)
{
    static const uint8_t bytes[KOLO_TYPE_COUNT] = {
        [KOLO_INT8] = 1,        [KOLO_UINT8] = 1,       [KOLO_INT32] = 4,    [KOLO_UINT32] = 4,  [KOLO_INT64] = 8,
        [KOLO_UINT64] = 8,      [KOLO_FLOAT16] = 2,     [KOLO_BFLOAT16] = 2, [KOLO_FLOAT32] = 4, [KOLO_FLOAT64] = 8,
        [KOLO_FLOAT8_E4M3] = 1, [KOLO_FLOAT8_E5M2] = 1, [KOLO_INT16] = 2,    [KOLO_UINT16] = 2,  [KOLO_BOOL] = 1};
    if ((int)type < 0 || type >= KOLO_TYPE_COUNT)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "type %d is not a type of kolo.h", (int)type);
    if ((int)op < 0 || op >= KOLO_OP_BUILTIN_COUNT)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "operator %d is not built in", (int)op);
    if (!kolo_op_fits(op, type))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "operator %d does not reduce type %d", (int)op, (int)type);
    if (!nranks) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "a reduction over 0 ranks");
    *r = (kolo_reducer_t){.type = type, .op = op == KOLO_AVG ? KOLO_SUM : op, .elem = bytes[type], .pre_int = 1};
    r->truth = type == KOLO_BOOL || op >= KOLO_LAND;
    if (nranks == 1 && kolo_type_is_float(type)) { /* nothing is folded, which would make each NaN the one NaN */
        r->pre = true;
        r->pre_float = 1;
    }
    if (op != KOLO_AVG || nranks == 1) return KOLO_OK;
    if (kolo_type_is_float(type)) {
        r->pre = true;
        r->pre_float = type == KOLO_FLOAT64 ? 1.0 / nranks : (double)(float)(1.0 / nranks);
    } else {
        r->post_div = nranks;
    }
    return KOLO_OK;
}

void kolo_reducer_one_fold(kolo_reducer_t *r, kolo_op_t op, uint32_t nranks)
{
    if (op != KOLO_AVG || nranks == 1 || !kolo_type_is_float(r->type)) return;
    r->op = KOLO_AVG;
    r->pre = false;
}

/* ---- the post-scale: integers divided towards zero ---- */

#define DIVIDE_INT(T)                                                                                              \
    do {                                                                                                           \
        T *x = p;                                                                                                  \
        for (size_t i = 0; i < n; i++) {                                                                           \
            T v;                                                                                                   \
            memcpy(&v, x + i, sizeof(v));                                                                          \
            v = (T)((double)v / by); /* exact: the quotient has fewer bits than a double */                        \
            memcpy(x + i, &v, sizeof(v));                                                                          \
        }                                                                                                          \
    } while (0)

static void divide(kolo_type_t type, void *p, size_t n, uint32_t by)
{
    char *at = p;
    switch (type) {
    case KOLO_INT8:
        DIVIDE_INT(int8_t);
        break;
    case KOLO_UINT8:
        DIVIDE_INT(uint8_t);
        break;
    case KOLO_INT16:
        DIVIDE_INT(int16_t);
        break;
    case KOLO_UINT16:
        DIVIDE_INT(uint16_t);
        break;
    case KOLO_INT32:
        DIVIDE_INT(int32_t);
        break;
    case KOLO_UINT32:
        DIVIDE_INT(uint32_t);
        break;
    case KOLO_INT64:
        for (int64_t v; n; n--, at += sizeof(v)) {
            memcpy(&v, at, sizeof(v));
            v /= (int64_t)by;
            memcpy(at, &v, sizeof(v));
        }
        break;
    case KOLO_UINT64:
        for (uint64_t v; n; n--, at += sizeof(v)) {
            memcpy(&v, at, sizeof(v));
            v /= by;
            memcpy(at, &v, sizeof(v));
        }
        break;
    default:
        break;
    }
}

/* ---- truth values of what was not folded, which makes them ---- */

static void make_truth(const kolo_reducer_t *r, void *p, size_t n)
{
    for (char *at = p; n; n--, at += r->elem) {
        uint64_t v = 0;
        memcpy(&v, at, r->elem);
        v = v != 0;
        memcpy(at, &v, r->elem); /* little-endian, as all we build for */
    }
}

static inline bool divides(const kolo_reducer_t *r, bool final)
{
    return final && r->post_div > 1;
}

static void scale(const kolo_reducer_t *r, void *dst, const void *src, size_t n)
{
    kernels()->scale[r->type](dst, src, n, r->pre_float, r->pre_int);
}

void kolo_reduce_load(const kolo_reducer_t *r, void *dst, const void *src, size_t n, bool raw, bool final)
{
    if (raw && r->pre)
        scale(r, dst, src, n);
    else if (dst != src)
        memcpy(dst, src, n * r->elem);
    if (divides(r, final)) divide(r->type, dst, n, r->post_div);
    if (KOLO_UNLIKELY(final && r->truth)) make_truth(r, dst, n);
}

/* ---- one block ---- */

/* Computes inout = f(in, inout) over a chain: the result so far is always the first operand, so the order is the
 * ranks'. */
static void fold_user(const kolo_reducer_t *r, void *dst, const void *const *srcs, int nsrcs, size_t n)
{
    _Alignas(64) char temp[2][BLOCK_BYTES];
    const void *so_far = srcs[0];
    for (int k = 1; k < nsrcs; k++) {
        void *next = temp[k & 1];
        memcpy(next, srcs[k], n * r->elem);
        kolo_record_callback(r->noted, KOLO_CALLBACK_OPERATOR, r->noted ? kolo_about_now_ns() : 0);
        r->user(so_far, next, n, r->type, r->user_arg);
        kolo_record_callback(r->noted, KOLO_CALLBACK_OPERATOR, 0);
        so_far = next;
    }
    memcpy(dst, so_far, n * r->elem);
}

/* Kernels store whole vectors from dst on: where those would straddle cache lines (a fifth slower in the caches),
 * the elements before the first line go first. Elements do not depend on each other, so the bits are the same. */
static void fold_builtin(const kolo_reducer_t *r, void *dst, const void *const *srcs, int nsrcs, size_t n)
{
    kolo_fold_fn_t run = kernels()->fold[r->type][r->op];
    size_t over = (uintptr_t)dst % LINE_BYTES, head = LINE_BYTES - over;
    const void *rest[PEEL_MOST_SRCS];
    if (!over || n * r->elem < PEEL_LEAST_BYTES || nsrcs > PEEL_MOST_SRCS || (head & (r->elem - 1))) {
        run(dst, srcs, nsrcs, n);
        return;
    }
    for (int k = 0; k < nsrcs; k++) rest[k] = (const char *)srcs[k] + head;
    size_t first = kolo_reducer_elems(r, head);
    run(dst, srcs, nsrcs, first);
    run((char *)dst + head, rest, nsrcs, n - first);
}

static void fold(const kolo_reducer_t *r, void *dst, const void *const *srcs, int nsrcs, size_t n)
{
    if (KOLO_UNLIKELY(nsrcs == 1)) {
        if (dst != srcs[0]) memcpy(dst, srcs[0], n * r->elem);
    } else if (KOLO_UNLIKELY(r->user != NULL)) {
        fold_user(r, dst, srcs, nsrcs, n);
    } else {
        fold_builtin(r, dst, srcs, nsrcs, n);
    }
}

void kolo_reduce_pair(const kolo_reducer_t *r, void *dst, const void *a, const void *b, size_t n, unsigned flags)
{
    _Alignas(64) char temp[2][BLOCK_BYTES];
    const void *srcs[2] = {a, b};
    unsigned raw = r->pre ? flags & (KOLO_RAW_A | KOLO_RAW_B) : 0;
    bool final = divides(r, flags & KOLO_FINAL);
    if (KOLO_LIKELY(!raw && !final && !r->user)) {
        fold_builtin(r, dst, srcs, 2, n);
        return;
    }
    size_t block = kolo_reducer_elems(r, BLOCK_BYTES);
    for (size_t at = 0; at < n; at += block) {
        size_t m = KOLO_MIN(block, n - at), byte = at * r->elem;
        char *to = (char *)dst + byte;
        srcs[0] = (const char *)a + byte;
        srcs[1] = (const char *)b + byte;
        for (int k = 0; k < 2; k++) {
            if (!(raw & (k == 0 ? KOLO_RAW_A : KOLO_RAW_B))) continue;
            scale(r, temp[k], srcs[k], m);
            srcs[k] = temp[k];
        }
        fold(r, to, srcs, 2, m);
        if (final) divide(r->type, to, m, r->post_div);
    }
}

void kolo_reduce_many(const kolo_reducer_t *r, const kolo_reduce_many_t *what, size_t n)
{
    int raw = r->pre ? what->raw : -1;
    bool final = divides(r, what->final);
    if (raw < 0 && !final && !what->dst2 && !what->stream && !r->user) {
        fold(r, what->dst, what->srcs, what->nsrcs, n);
        return;
    }
    _Alignas(64) char temp[BLOCK_BYTES], scaled[BLOCK_BYTES];
    const void *srcs[KOLO_REDUCE_MAX];
    size_t block = kolo_reducer_elems(r, BLOCK_BYTES);
    for (size_t at = 0; at < n; at += block) {
        size_t m = KOLO_MIN(block, n - at), byte = at * r->elem;
        for (int k = 0; k < what->nsrcs; k++) srcs[k] = (const char *)what->srcs[k] + byte;
        if (raw >= 0) {
            scale(r, scaled, srcs[raw], m);
            srcs[raw] = scaled;
        }
        /* What is written past the cache is made elsewhere first: in the second copy, or in a block of our own. */
        char *to = (char *)what->dst + byte, *to2 = what->dst2 ? (char *)what->dst2 + byte : NULL;
        char *hot = !what->stream ? to : to2 ? to2 : temp;
        fold(r, hot, srcs, what->nsrcs, m);
        if (final) divide(r->type, hot, m, r->post_div);
        if (hot != to) kolo_copy(to, hot, m * r->elem, what->stream);
        if (to2 && hot != to2) memcpy(to2, hot, m * r->elem);
    }
}

void kolo_copy(void *dst, const void *src, size_t bytes, bool stream)
{
    if (stream)
        kernels()->stream(dst, src, bytes);
    else
        memcpy(dst, src, bytes);
}
