/* SPDX-License-Identifier: Apache-2.0
 *
 * Reductions on the CPU: every type and operator, vectorised by the compiler for the baseline, AVX2 and AVX-512
 * from one source (reduce_kernels.c, built three times) and picked once at run time. All builds give the same bits
 * (no contraction, same order), so ranks on different machines agree. The scalar reference lives in the tests.
 */
#ifndef KOLO_EXEC_HOST_REDUCE_H
#define KOLO_EXEC_HOST_REDUCE_H

#include "base/params.h"
#include "base/recorder.h"

#include <stdbool.h>

extern const kolo_param_table_t kolo_reduce_params; /* KOLO_CPU_ISA */

static inline bool kolo_type_is_float(kolo_type_t type)
{
    return type >= KOLO_FLOAT16 && type <= KOLO_FLOAT8_E5M2;
}

/* Types of an operator that is built in, as bits. */
static inline bool kolo_op_fits(kolo_op_t op, kolo_type_t type)
{
    enum {
        FLOATS = (1 << (KOLO_FLOAT8_E5M2 + 1)) - (1 << KOLO_FLOAT16),
        ALL = (1 << KOLO_TYPE_COUNT) - 1,
        WHOLE = ALL & ~FLOATS
    };
    static const uint16_t types[KOLO_OP_BUILTIN_COUNT] = {[KOLO_SUM] = ALL,
                                                          [KOLO_PROD] = ALL,
                                                          [KOLO_MIN] = ALL,
                                                          [KOLO_MAX] = ALL,
                                                          [KOLO_AVG] = ALL & ~(1 << KOLO_BOOL),
                                                          [KOLO_BAND] = WHOLE,
                                                          [KOLO_BOR] = WHOLE,
                                                          [KOLO_BXOR] = WHOLE,
                                                          [KOLO_LAND] = WHOLE,
                                                          [KOLO_LOR] = WHOLE,
                                                          [KOLO_LXOR] = WHOLE};
    return (unsigned)op < KOLO_OP_BUILTIN_COUNT && (unsigned)type < KOLO_TYPE_COUNT && (types[op] >> type & 1);
}

/* One operator as the executor sees it. Filled by comm from (type, op, ranks) or from a user operator. */
typedef struct {
    kolo_type_t type;
    kolo_op_t op;           /* what is done between two values; AVG: only of floats, where all ranks' values are
                               folded at once (kolo_reducer_one_fold) */
    size_t elem;            /* bytes of an element */
    bool pre;               /* raw inputs are multiplied by the scalar first (AVG of floats, premul-sum) */
    bool pre_own;           /* and each rank has a scalar of its own (premul-sum) */
    double pre_float;       /* for float types; rounded to float32 (float64 for FLOAT64) once, here */
    int64_t pre_int;        /* for integer types (wraps) */
    const void *pre_at;     /* or the scalar is there, in memory of a GPU, and is read when an operation runs */
    bool truth;             /* finished results are 0 or 1 (logical operators, bool), also of a single operand */
    uint32_t post_div;      /* AVG of integers: finished results are divided by this, towards zero; 0 or 1: no */
    kolo_user_op_fn_t user; /* callback operator: replaces `op` */
    void *user_arg;
    kolo_record_t *noted; /* where it is seen that the callback runs; NULL: nowhere */
} kolo_reducer_t;

/* Elements in `bytes`. Types are powers of two long, and a division takes as long as a small reduction. */
static inline size_t kolo_reducer_elems(const kolo_reducer_t *r, size_t bytes)
{
    return bytes >> __builtin_ctzl(r->elem);
}

/* Fills a reducer. KOLO_ERR_INVALID_ARGUMENT for an op that is not built in, or not for this type. */
kolo_status_t kolo_reducer_init(kolo_reducer_t *r, kolo_type_t type, kolo_op_t op, uint32_t nranks);

/* Changes a reducer just filled for one fold of all ranks' inputs: AVG of floats then divides the sum by their
 * number before it is rounded, instead of scaling each input. */
void kolo_reducer_one_fold(kolo_reducer_t *r, kolo_op_t op, uint32_t nranks);

enum { KOLO_RAW_A = 1, KOLO_RAW_B = 2, KOLO_FINAL = 4 };
/* Computes dst = a op b over n elements; dst may be a or b (not overlap otherwise). flags say which operand is raw
 * input and whether dst is a finished result. */
void kolo_reduce_pair(const kolo_reducer_t *r, void *dst, const void *a, const void *b, size_t n, unsigned flags);

/* dst = srcs[0] op srcs[1] op ... in that order; 8- and 16-bit floats accumulate in float32 and round once. */
#define KOLO_REDUCE_MAX 256
typedef struct {
    void *dst;  /* may be one of srcs */
    void *dst2; /* may be NULL; gets a copy while it is in cache */
    const void *const *srcs;
    int nsrcs;   /* 1..KOLO_REDUCE_MAX */
    int raw;     /* index of the operand that is raw input, -1 none */
    bool final;  /* the result is finished: apply the post-scale */
    bool stream; /* dst will not be read soon: write it past the cache */
} kolo_reduce_many_t;
void kolo_reduce_many(const kolo_reducer_t *r, const kolo_reduce_many_t *what, size_t n);

/* Computes dst = src with the pre-scale (raw) and the post-scale (final) applied; plain copy when neither does
 * anything. dst may be src. */
void kolo_reduce_load(const kolo_reducer_t *r, void *dst, const void *src, size_t n, bool raw, bool final);

/* Copies; large ones to memory that will not be read soon may bypass the cache (`stream`). */
void kolo_copy(void *dst, const void *src, size_t bytes, bool stream);

/* Returns "avx512", "avx2" or "baseline": what was picked (KOLO_CPU_ISA forces a lower one). */
const char *kolo_reduce_isa(void);

#endif
