/* SPDX-License-Identifier: Apache-2.0
 *
 * Arithmetic on tensors outside collectives: scaling, and the value that changes nothing under an operator, which
 * ranks that have joined contribute.
 */
#include "engine/engine.h"
#include "engine/values_kernels.h"
#include "exec/host/reduce_table.h"
#include "mem/identity.h"

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

void kolo_values_scale(void *dst, const void *src, size_t count, kolo_type_t type, double factor)
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

void kolo_values_fill_identity(void *dst, size_t count, kolo_type_t type, kolo_op_t op)
{
    if (count == 0) return; /* then there need be no memory either */
    size_t elem = kolo_type_size(type);
    uint64_t bits = kolo_mem_identity_word(type, op);
    if (elem == 1 || bits == 0) {
        memset(dst, (int)(bits & 0xff), count * elem);
        return;
    }
    for (size_t i = 0; i < count; i++) memcpy((char *)dst + i * elem, &bits, elem); /* little endian */
}
