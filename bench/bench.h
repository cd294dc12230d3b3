/* SPDX-License-Identifier: Apache-2.0
 *
 * What the benchmarks on the public header share: a clock, and an end with a sentence when something fails.
 */
#ifndef KOLO_BENCH_H
#define KOLO_BENCH_H

#include <errno.h>
#include <kolo/kolo.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline double now_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec * 1e-3;
}

static inline void must(kolo_status_t status, const char *what)
{
    if (status == KOLO_OK) return;
    fprintf(stderr, "%s: %s: %s: %s\n", program_invocation_short_name, what, kolo_status_string(status),
            kolo_get_last_error(NULL));
    exit(1);
}
#define MUST(call) must((call), #call)

/* Zeros. */
static inline void *room(size_t count, size_t bytes)
{
    void *p = calloc(count, bytes);
    if (p) return p;
    fprintf(stderr, "%s: out of memory for %zu times %zu bytes\n", program_invocation_short_name, count, bytes);
    exit(1);
}

#endif
