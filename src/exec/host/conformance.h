/* SPDX-License-Identifier: Apache-2.0
 *
 * Inputs and right answers of every collective, for tests that run ranks as threads. Inputs are small whole numbers
 * chosen so that every type holds every partial result exactly (averages of floats apart), whatever the algorithm's
 * order; so answers are compared to the bit.
 */
#ifndef KOLO_EXEC_HOST_CONFORMANCE_H
#define KOLO_EXEC_HOST_CONFORMANCE_H

#include "exec/host/fixture.h"

typedef struct {
    fixture_call_t call;
    uint32_t nranks;
    uint32_t seed;
    bool in_place;
    size_t shift; /* elements by which user buffers are off alignment */
} case_t;

typedef struct { /* one rank's user memory */
    char *mem_src, *mem_dst, *src, *dst;
    size_t src_count, dst_count; /* elements */
} case_buffers_t;

/* Allocates and fills; sets src and dst of *call (a copy of c->call). */
void case_open(const case_t *c, uint32_t rank, case_buffers_t *b, fixture_call_t *call);
/* Compares what is in dst; returns NULL or what is wrong (static per thread). */
const char *case_check(const case_t *c, uint32_t rank, const case_buffers_t *b);
void case_close(case_buffers_t *b);

#endif
