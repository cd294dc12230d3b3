/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel of the soak test, see soak.h. Compiled by nvcc, and for the fake driver by a C++ compiler.
 */
#include "gpu/cuda/device.cuh"
#include "soak.h"

KOLO_DEV uint64_t soak_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

/* Element `i` of rank `rank`'s source, as its bits. Floats are small whole numbers: their sums are exact. */
KOLO_DEV uint64_t soak_value(const soak_call_t &c, uint64_t round, uint32_t rank, uint64_t i)
{
    uint64_t bits = soak_mix(c.seed + round * 0x9e3779b97f4a7c15ull + ((uint64_t)rank << 48) + i);
    return c.type == SOAK_UINT8     ? bits & 0xff
           : c.type == SOAK_UINT32  ? bits & 0xffffffffu
           : c.type == SOAK_FLOAT32 ? bits & 0xffff
                                    : bits;
}
KOLO_DEV uint64_t soak_bits(const soak_call_t &c, uint64_t value)
{
    union {
        float f;
        uint32_t u;
    } x;
    if (c.type == SOAK_UINT8) return value & 0xff;
    if (c.type == SOAK_UINT32) return value & 0xffffffffu;
    if (c.type != SOAK_FLOAT32) return value;
    x.f = (float)value;
    return x.u;
}
/* What element `i` of the destination is to be. */
KOLO_DEV uint64_t soak_result(const soak_call_t &c, uint64_t round, uint32_t nranks, uint64_t i)
{
    uint64_t in = c.base + i % c.count, all = 0;
    if (c.op == SOAK_COPY)
        return soak_bits(
            c, soak_value(c, round, c.from == SOAK_BY_BLOCK ? (uint32_t)(i / c.count) : (uint32_t)c.from, in));
    for (uint32_t r = 0; r < nranks; r++) {
        uint64_t v = soak_value(c, round, r, in);
        all = c.op == SOAK_SUM ? all + v : v > all ? v : all;
    }
    return soak_bits(c, all);
}
/* What lies in and around a destination before the call. */
KOLO_DEV uint64_t soak_poison(const soak_call_t &c, uint64_t i)
{
    uint64_t bits = 0xa5a5a5a5a5a5a5a5ull ^ soak_mix(c.seed + i);
    return c.type == SOAK_UINT8 ? bits & 0xff : c.type == SOAK_UINT64 ? bits : bits & 0xffffffffu;
}

KOLO_DEV uint64_t soak_load(const soak_call_t &c, uint64_t at, uint64_t i)
{
    return c.type == SOAK_UINT8    ? ((const uint8_t *)at)[i]
           : c.type == SOAK_UINT64 ? ((const uint64_t *)at)[i]
                                   : ((const uint32_t *)at)[i];
}
KOLO_DEV void soak_store(const soak_call_t &c, uint64_t at, uint64_t i, uint64_t bits)
{
    if (c.type == SOAK_UINT8)
        ((uint8_t *)at)[i] = (uint8_t)bits;
    else if (c.type == SOAK_UINT64)
        ((uint64_t *)at)[i] = bits;
    else
        ((uint32_t *)at)[i] = (uint32_t)bits;
}
KOLO_DEV uint32_t soak_elem(const soak_call_t &c)
{
    return c.type == SOAK_UINT8 ? 1 : c.type == SOAK_UINT64 ? 8 : 4;
}

#ifdef __CUDACC__
KOLO_DEV uint32_t soak_add(uint32_t *p)
{
    return atomicAdd(p, 1u);
}
KOLO_DEV void soak_be_late(uint32_t ns)
{
    for (; ns > 1000; ns -= 1000) __nanosleep(1000);
}
#else
KOLO_DEV uint32_t soak_add(uint32_t *p)
{
    return __atomic_fetch_add(p, 1u, __ATOMIC_RELAXED);
}
KOLO_DEV void soak_be_late(uint32_t ns)
{
    for (; ns > 1000; ns -= 1000) kolo_pause();
}
#endif

/* The guards stand before and behind the destination. */
KOLO_DEV uint64_t soak_before(const soak_call_t &c)
{
    return c.dst - SOAK_GUARD * soak_elem(c);
}

KOLO_DEV void soak_check(const soak_args_t &a, uint64_t round, uint64_t first, uint64_t step)
{
    const soak_call_t &c = a.last;
    soak_found_t *found = (soak_found_t *)a.found;
    for (uint64_t i = first; i < c.dst_count + 2 * SOAK_GUARD; i += step) {
        bool guard = i < SOAK_GUARD || i >= c.dst_count + SOAK_GUARD;
        uint64_t should = guard ? soak_poison(c, i) : soak_result(c, round, a.nranks, i - SOAK_GUARD);
        uint64_t is = soak_load(c, soak_before(c), i);
        if (is == should || soak_add(&found->wrong)) continue;
        found->number = c.number;
        found->round = (uint32_t)round;
        found->guard = guard;
        found->at = guard ? i : i - SOAK_GUARD;
        found->is = is;
        found->should = should;
    }
}

KOLO_DEV void soak_fill(const soak_args_t &a, uint64_t round, uint64_t first, uint64_t step)
{
    const soak_call_t &c = a.next;
    for (uint64_t i = first; c.dst && i < c.dst_count + 2 * SOAK_GUARD; i += step)
        if (!c.in_place || i < SOAK_GUARD || i >= c.dst_count + SOAK_GUARD)
            soak_store(c, soak_before(c), i, soak_poison(c, i));
    for (uint64_t i = first; c.src && i < c.src_count; i += step)
        soak_store(c, c.src, i, soak_bits(c, soak_value(c, round, a.rank, i)));
}

KOLO_KERNEL soak_turn(KOLO_PARAM soak_args_t a)
{
    uint64_t first = (uint64_t)kolo_bid() * kolo_nthreads() + kolo_tid();
    uint64_t step = (uint64_t)kolo_nblocks() * kolo_nthreads(), *round = (uint64_t *)a.round;
    if (a.last.type != SOAK_TYPES && a.last.dst) soak_check(a, *round, first, step);
    if (a.next.type != SOAK_TYPES) {
        soak_fill(a, *round, first, step);
        if (first == 0) soak_be_late(a.next.late_ns);
    }
    if (a.ends && first == 0) ++*round; /* of one block: the others have no use of it */
}
