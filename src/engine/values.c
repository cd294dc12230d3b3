/* SPDX-License-Identifier: Apache-2.0
 *
 * Arithmetic on tensors outside collectives: scaling, and the value that changes nothing under an operator, which
 * ranks that have joined contribute.
 */
#include "engine/engine.h"
#include "engine/values_kernels.h"
#include "exec/host/reduce_table.h"

#include <string.h>

/* ---- which kernels ---- */

const kolo_values_table_t *kolo_values_table(int i)
{
    if (!kolo_reduce_table(i)) return NULL;
    if (i == 0) return &kolo_values_table_baseline;
#if defined(__x86_64__)
    if (i == 1) return &kolo_values_table_avx2;
    if (i == 2) return &kolo_values_table_avx512;
#endif
    return NULL;
}

const kolo_values_table_t *kolo_values(void)
{
    static _Atomic(const kolo_values_table_t *) picked;
    const kolo_values_table_t *t = atomic_load_explicit(&picked, memory_order_relaxed), *more;
    if (KOLO_LIKELY(t != NULL)) return t;
    t = kolo_values_table(0);
    for (int i = 1; strcmp(t->name, kolo_reduce_isa()) != 0 && (more = kolo_values_table(i)) != NULL; i++) t = more;
    atomic_store_explicit(&picked, t, memory_order_relaxed); /* all threads find the same */
    return t;
}

/* ---- scaling ---- */

void kolo_scale(void *dst, const void *src, size_t count, kolo_type_t type, double factor)
{
    if (!kolo_type_is_float(type)) {
        if (kolo_values()->scale[type]) kolo_values()->scale[type](dst, src, count, factor);
        return;
    }
    kolo_reducer_t r;
    if (kolo_reducer_init(&r, type, KOLO_SUM, 1) != KOLO_OK) return; /* types were checked at the submission */
    r.pre = true;
    r.pre_float = type == KOLO_FLOAT64 ? factor : (double)(float)factor;
    kolo_reduce_load(&r, dst, src, count, true, false);
}

/* ---- identities ---- */

static uint64_t bits_of(kolo_type_t type, kolo_op_t op)
{
    enum { ONE, LOWEST, HIGHEST }; /* columns; infinities where the type has them */
    static const uint64_t table[KOLO_TYPE_COUNT][3] = {
        [KOLO_INT8] = {1, 0x80, 0x7f},
        [KOLO_UINT8] = {1, 0, 0xff},
        [KOLO_INT32] = {1, 0x80000000u, 0x7fffffffu},
        [KOLO_UINT32] = {1, 0, 0xffffffffu},
        [KOLO_INT64] = {1, 0x8000000000000000u, 0x7fffffffffffffffu},
        [KOLO_UINT64] = {1, 0, UINT64_MAX},
        [KOLO_FLOAT16] = {0x3c00, 0xfc00, 0x7c00},
        [KOLO_BFLOAT16] = {0x3f80, 0xff80, 0x7f80},
        [KOLO_FLOAT32] = {0x3f800000u, 0xff800000u, 0x7f800000u},
        [KOLO_FLOAT64] = {0x3ff0000000000000u, 0xfff0000000000000u, 0x7ff0000000000000u},
        [KOLO_FLOAT8_E4M3] = {0x38, 0xfe, 0x7e},
        [KOLO_FLOAT8_E5M2] = {0x3c, 0xfc, 0x7c},
        [KOLO_INT16] = {1, 0x8000, 0x7fff},
        [KOLO_UINT16] = {1, 0, 0xffff},
        [KOLO_BOOL] = {1, 0, 1},
    };
    switch (op) {
    case KOLO_BAND:
        return type == KOLO_BOOL ? 1 : UINT64_MAX;
    case KOLO_PROD:
    case KOLO_LAND:
        return table[type][ONE];
    case KOLO_MIN:
        return table[type][HIGHEST];
    case KOLO_MAX:
        return table[type][LOWEST];
    default:
        return 0;
    }
}

void kolo_fill_identity(void *dst, size_t count, kolo_type_t type, kolo_op_t op)
{
    if (count == 0) return; /* then there need be no memory either */
    size_t elem = kolo_type_size(type);
    uint64_t bits = bits_of(type, op);
    if (elem == 1 || bits == 0) {
        memset(dst, (int)bits, count * elem);
        return;
    }
    for (size_t i = 0; i < count; i++) memcpy((char *)dst + i * elem, &bits, elem); /* little endian */
}
