/* SPDX-License-Identifier: Apache-2.0
 *
 * What the soak test's host side (soak.c) and its kernels (soak.cu) share: a call, as far as its values are
 * concerned. Plain C, read by gcc and by nvcc.
 *
 * The kernels stand between the calls on the same stream: each looks at what the last call left, at every byte of
 * the destination and around it, and makes the next one's source and an untouched-looking destination. What is
 * wrong is counted in device memory, which the host reads now and then, so millions of calls are checked without a
 * copy.
 */
#ifndef KOLO_TESTS_GPU_SOAK_H
#define KOLO_TESTS_GPU_SOAK_H

#include <stdint.h>

#define SOAK_GUARD 32 /* elements around a destination that nobody may touch */

enum { SOAK_UINT8, SOAK_UINT32, SOAK_UINT64, SOAK_FLOAT32, SOAK_TYPES };
enum { SOAK_COPY, SOAK_SUM, SOAK_MAX };
#define SOAK_BY_BLOCK (-1)

typedef struct {
    uint64_t src, dst; /* on this rank; 0: it has none */
    uint64_t seed;     /* of the call, the same on all ranks */
    uint64_t count;    /* of a block of dst */
    uint64_t base;     /* first element of the sources that comes to a block of dst */
    uint64_t src_count, dst_count;
    uint32_t type, op;
    int32_t from;      /* SOAK_COPY: whose source, or SOAK_BY_BLOCK */
    uint32_t in_place; /* dst holds the source, and is not to be made untouched */
    uint32_t number;   /* in its batch */
    uint32_t late_ns;  /* how long this rank is late */
    uint32_t pad[2];
} soak_call_t;

typedef struct {
    uint32_t wrong; /* elements */
    uint32_t number, round;
    uint32_t guard; /* it lies beside the destination */
    uint64_t at, is, should;
} soak_found_t;

typedef struct {
    uint64_t round; /* address of a word: which replay of a graph this is; in the values, too */
    uint64_t found;
    uint32_t rank, nranks;
    soak_call_t last, next; /* type SOAK_TYPES: none */
    uint32_t ends, pad;     /* ends: nothing comes behind; the round is counted */
} soak_args_t;

#endif
