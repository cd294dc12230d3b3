/* SPDX-License-Identifier: Apache-2.0
 *
 * Timing: every call starts from a barrier, its time is the slowest rank's, the figures are over calls.
 */
#include "perf.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

double perf_now_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec * 1e-3;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int iterations(const perf_job_t *job, uint64_t bytes)
{
    if (job->options->iters) return job->options->iters;
    if (bytes <= 4096) return 2000;
    if (bytes <= 262144) return 400;
    return bytes <= (4 << 20) ? 60 : 15;
}

kolo_status_t perf_slowest_sorted(const perf_job_t *job, double *times, int n)
{
    if (n == 0) return KOLO_OK;
    kolo_status_t status = kolo_all_reduce(times, times, (size_t)n, KOLO_FLOAT64, KOLO_MAX, job->comm, NULL);
    qsort(times, (size_t)n, sizeof *times, by_value);
    return status;
}

void perf_buffers_free(perf_buffers_t *b)
{
    for (int i = 0; i < 2; i++) {
        free(b->src[i]);
        free(b->dst[i]);
    }
}

kolo_status_t perf_buffers_make(const perf_job_t *job, perf_coll_t coll, uint64_t bytes, perf_buffers_t *b)
{
    uint64_t src_count, dst_count;
    size_t elem = kolo_type_size(job->options->type);
    memset(b, 0, sizeof *b);
    perf_shape(job, coll, bytes, &b->count, &src_count, &dst_count);
    for (int i = 0; i < (job->options->rotate ? 2 : 1); i++) {
        b->src[i] = malloc(src_count * elem + 64);
        b->dst[i] = calloc(1, dst_count * elem + 64);
        if (!b->src[i] || !b->dst[i]) return KOLO_ERR_NO_MEMORY;
        memset(b->dst[i], 1, dst_count * elem);
        perf_fill(job, coll, b->src[i], src_count, job->rank);
    }
    return KOLO_OK;
}

kolo_status_t perf_time_calls(const perf_job_t *job, perf_coll_t coll, perf_buffers_t *b, bool in_place, int warmup,
                              int iters, double *times)
{
    kolo_status_t status = KOLO_OK;
    for (int i = -warmup; i < iters && status == KOLO_OK; i++) {
        int k = job->options->rotate ? i & 1 : 0;
        const void *src = in_place ? perf_in_place_src(job, coll, b->dst[k], b->count) : b->src[k];
        status = kolo_barrier(job->comm, NULL);
        double start = perf_now_us();
        if (status == KOLO_OK) status = perf_call(job, coll, src, b->dst[k], b->count, NULL);
        if (i >= 0) times[i] = perf_now_us() - start;
    }
    return status;
}

kolo_status_t perf_check_call(const perf_job_t *job, perf_coll_t coll, perf_buffers_t *b, bool in_place,
                              long *wrong)
{
    int64_t bad;
    void *dst = b->dst[0], *src = b->src[0];
    if (in_place) {
        src = perf_in_place_src(job, coll, dst, b->count);
        perf_fill(job, coll, src, b->count, job->rank);
    }
    kolo_status_t status = perf_call(job, coll, src, dst, b->count, NULL);
    if (status != KOLO_OK) return status;
    bad = perf_check(job, coll, dst, b->count);
    status = kolo_all_reduce(&bad, &bad, 1, KOLO_INT64, KOLO_SUM, job->comm, NULL);
    *wrong = (long)bad;
    return status;
}

kolo_status_t perf_measure(const perf_job_t *job, perf_coll_t coll, uint64_t bytes, bool in_place, perf_row_t *row)
{
    perf_buffers_t b;
    int iters = iterations(job, bytes);
    double *times = malloc((size_t)iters * sizeof *times);
    kolo_status_t status = perf_buffers_make(job, coll, bytes, &b);
    memset(row, 0, sizeof *row);
    *row = (perf_row_t){.coll = coll, .bytes = bytes, .in_place = in_place, .iters = iters, .wrong = -1};
    if (!times) status = KOLO_ERR_NO_MEMORY;
    if (status == KOLO_OK && job->options->check) status = perf_check_call(job, coll, &b, in_place, &row->wrong);
    if (status == KOLO_OK) status = perf_time_calls(job, coll, &b, in_place, job->options->warmup, iters, times);
    if (status == KOLO_OK) status = perf_slowest_sorted(job, times, iters);
    if (status == KOLO_OK) {
        row->count = b.count;
        row->min_us = times[0];
        row->median_us = times[iters / 2];
        row->p99_us = times[(int)((double)(iters - 1) * 0.99)];
        if (row->median_us > 0) row->algbw = (double)bytes / row->median_us / 1e3;
        row->busbw = row->algbw * perf_bus_factor(coll, job->nranks);
    }
    perf_buffers_free(&b);
    free(times);
    return status;
}
