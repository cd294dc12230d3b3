/* SPDX-License-Identifier: Apache-2.0
 *
 * Element types of the reduction kernels as small functions that the compiler vectorises: 8- and 16-bit floats to
 * and from float32, and floats of any width to and from integer keys in whose order MIN and MAX are taken. No
 * branches, no calls, no denormal operands on the way (so that only the arithmetic itself depends on the CPU's
 * denormal mode). docs/reductions.md has the rules.
 */
#ifndef KOLO_EXEC_HOST_REDUCE_TYPES_H
#define KOLO_EXEC_HOST_REDUCE_TYPES_H

#include <stdint.h>
#include <string.h>

#define KOLO_INLINE static inline __attribute__((always_inline, unused))

/* The caller's pointers need no alignment. */
typedef uint8_t u8_t __attribute__((aligned(1), may_alias));
typedef int8_t i8_t __attribute__((aligned(1), may_alias));
typedef uint16_t u16_t __attribute__((aligned(1), may_alias));
typedef int16_t i16_t __attribute__((aligned(1), may_alias));
typedef uint32_t u32_t __attribute__((aligned(1), may_alias));
typedef int32_t i32_t __attribute__((aligned(1), may_alias));
typedef uint64_t u64_t __attribute__((aligned(1), may_alias));
typedef int64_t i64_t __attribute__((aligned(1), may_alias));
typedef float f32_t __attribute__((aligned(1), may_alias));
typedef double f64_t __attribute__((aligned(1), may_alias));

/* Element i of the result depends on elements i of the sources only. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

KOLO_INLINE uint32_t bits_of_float(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}
KOLO_INLINE float float_of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}
KOLO_INLINE uint64_t bits_of_double(double f)
{
    uint64_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}

/* A NaN result is always the one positive quiet NaN: which operand's payload the CPU passes on depends on the order
 * in which the compiler put the operands, and that may differ between builds. */
KOLO_INLINE uint32_t store_f32(float f)
{
    uint32_t u = bits_of_float(f);
    return (u & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : u;
}
KOLO_INLINE uint64_t store_f64(double f)
{
    uint64_t u = bits_of_double(f);
    return (u & 0x7fffffffffffffffull) > 0x7ff0000000000000ull ? 0x7ff8000000000000ull : u;
}
KOLO_INLINE float load_f32(uint32_t u)
{
    return float_of_bits(u);
}
KOLO_INLINE double load_f64(uint64_t u)
{
    double f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

/* ---- small floats: `man` mantissa bits, exponent bias `bias`; the sign is the top bit of `width` bits ---- */

KOLO_INLINE float widen(uint32_t x, int width, int man, int bias, uint32_t inf)
{
    const uint32_t top = 1u << (width - 1);
    const uint32_t least = (uint32_t)(127 - bias + 1) << 23; /* smallest normal number, as float32 bits */
    uint32_t em = x & (top - 1), bits = em << (23 - man);
    uint32_t normal = bits + ((uint32_t)(127 - bias) << 23);
    uint32_t small = bits_of_float(float_of_bits(bits + least) - float_of_bits(least));
    uint32_t u = em < (1u << man) ? small : normal;
    u = em >= inf ? bits | 0x7f800000u : u; /* e4m3 has only its NaN there */
    return float_of_bits(u | (x & top) << (32 - width));
}
/* Round to nearest even; what is too large becomes `inf`, which for e4m3 is its NaN. */
KOLO_INLINE uint32_t narrow(float f, int width, int man, int bias, uint32_t inf, uint32_t nan)
{
    const uint32_t least = (uint32_t)(127 - bias + 1) << 23, shift = (uint32_t)(23 - man);
    const uint32_t magic = (uint32_t)(127 - bias + 23 - man + 1) << 23;
    uint32_t x = bits_of_float(f), a = x & 0x7fffffffu;
    uint32_t small = bits_of_float(float_of_bits(a) + float_of_bits(magic)) - magic;
    uint32_t normal =
        (a - ((uint32_t)(127 - bias) << 23) + ((1u << (shift - 1)) - 1) + ((a >> shift) & 1)) >> shift;
    uint32_t u = a < least ? small : normal;
    u = u > inf ? inf : u;
    u |= (x >> 31) << (width - 1);
    u = (u & ((1u << (width - 1)) - 1)) == nan ? nan : u; /* e4m3: too large is NaN, and NaN has no sign */
    return a > 0x7f800000u ? nan : u;
}

#define KOLO_F16_INF  0x7c00u
#define KOLO_F16_NAN  0x7e00u
#define KOLO_BF16_INF 0x7f80u
#define KOLO_BF16_NAN 0x7fc0u
#define KOLO_E4M3_INF 0x7fu /* none: the largest pattern is NaN */
#define KOLO_E4M3_NAN 0x7fu
#define KOLO_E5M2_INF 0x7cu
#define KOLO_E5M2_NAN 0x7fu

KOLO_INLINE float load_f16(uint16_t x)
{
    return widen(x, 16, 10, 15, KOLO_F16_INF);
}
KOLO_INLINE uint16_t store_f16(float f)
{
    return (uint16_t)narrow(f, 16, 10, 15, KOLO_F16_INF, KOLO_F16_NAN);
}
KOLO_INLINE float load_bf16(uint16_t x)
{
    return float_of_bits((uint32_t)x << 16);
}
KOLO_INLINE uint16_t store_bf16(float f)
{
    uint32_t u = bits_of_float(f), r = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? KOLO_BF16_NAN : r);
}
KOLO_INLINE float load_e4m3(uint8_t x)
{
    return widen(x, 8, 3, 7, KOLO_E4M3_INF);
}
KOLO_INLINE uint8_t store_e4m3(float f)
{
    return (uint8_t)narrow(f, 8, 3, 7, KOLO_E4M3_INF, KOLO_E4M3_NAN);
}
KOLO_INLINE float load_e5m2(uint8_t x)
{
    return widen(x, 8, 2, 15, KOLO_E5M2_INF);
}
KOLO_INLINE uint8_t store_e5m2(float f)
{
    return (uint8_t)narrow(f, 8, 2, 15, KOLO_E5M2_INF, KOLO_E5M2_NAN);
}

/* ---- keys: a signed integer in the order of the floats, -0 below +0; NaN at the end that MIN or MAX picks.
 * The mapping is its own inverse. ---- */

KOLO_INLINE int64_t key64(int64_t x)
{
    return x ^ ((x >> 63) & INT64_MAX);
}
KOLO_INLINE int32_t key32(int32_t x)
{
    return x ^ ((x >> 31) & INT32_MAX);
}
KOLO_INLINE int16_t key16(int16_t x)
{
    return (int16_t)(x ^ ((int16_t)(x >> 15) & INT16_MAX));
}
KOLO_INLINE int8_t key8(int8_t x)
{
    return (int8_t)(x ^ ((int8_t)(x >> 7) & INT8_MAX));
}
KOLO_INLINE int64_t key_f64(uint64_t x, int64_t nan)
{
    return (int64_t)(x & INT64_MAX) > 0x7ff0000000000000ll ? nan : key64((int64_t)x);
}
KOLO_INLINE int32_t key_f32(uint32_t x, int32_t nan)
{
    return (int32_t)(x & INT32_MAX) > 0x7f800000 ? nan : key32((int32_t)x);
}
KOLO_INLINE int16_t key_f16(uint16_t x, int16_t inf, int16_t nan)
{
    return (int16_t)(x & INT16_MAX) > inf ? nan : key16((int16_t)x);
}
KOLO_INLINE int8_t key_f8(uint8_t x, int8_t inf, int8_t nan)
{
    return (int8_t)(x & INT8_MAX) > inf ? nan : key8((int8_t)x);
}

#endif
