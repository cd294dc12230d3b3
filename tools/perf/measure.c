/* SPDX-License-Identifier: Apache-2.0
 *
 * Timing: every call starts from a barrier, its time is the slowest rank's, the figures are over calls.
 */
#include "gpu.h"

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
    if (job->options->gpu) return 20;
    if (bytes <= 4096) return 2000;
    if (bytes <= 262144) return 400;
    return bytes <= (4 << 20) ? 60 : 15;
}

/* Calls of a sample on GPUs: enough that launching the first does not matter. */
static int burst(uint64_t bytes)
{
    return bytes <= (1 << 20) ? 20 : bytes <= (64 << 20) ? 5 : 1;
}

kolo_status_t perf_slowest_sorted(const perf_job_t *job, double *times, int n)
{
    if (n == 0) return KOLO_OK;
    kolo_status_t status = kolo_all_reduce(times, times, (size_t)n, KOLO_FLOAT64, KOLO_MAX, job->host, NULL);
    qsort(times, (size_t)n, sizeof *times, by_value);
    return status;
}

static void free_host(char *p)
{
    free(p);
}

void perf_buffers_free(perf_buffers_t *b)
{
    for (int i = 0; i < 2; i++) {
        (b->on_gpu ? perf_gpu_free : free_host)(b->src[i]);
        (b->on_gpu ? perf_gpu_free : free_host)(b->dst[i]);
    }
}

/* The same on the GPU; the source is filled here and copied. */
static kolo_status_t make_on_gpu(const perf_job_t *job, perf_coll_t coll, uint64_t src_count, uint64_t dst_count,
                                 perf_buffers_t *b)
{
    size_t elem = kolo_type_size(job->options->type);
    char *image = malloc(src_count * elem + 64);
    kolo_status_t status = image ? KOLO_OK : KOLO_ERR_NO_MEMORY;
    b->on_gpu = true;
    if (image) perf_fill(job, coll, image, src_count, job->rank);
    for (int i = 0; status == KOLO_OK && i < (job->options->rotate ? 2 : 1); i++) {
        b->src[i] = perf_gpu_alloc(src_count * elem + 64);
        b->dst[i] = b->src[i] ? perf_gpu_alloc(dst_count * elem + 64) : NULL;
        if (!b->dst[i])
            status = KOLO_ERR_NO_MEMORY;
        else if (src_count && !perf_gpu_write(b->src[i], image, src_count * elem))
            status = KOLO_ERR_SYSTEM;
    }
    free(image);
    return status;
}

kolo_status_t perf_buffers_make(const perf_job_t *job, perf_coll_t coll, uint64_t bytes, perf_buffers_t *b)
{
    uint64_t src_count, dst_count;
    size_t elem = kolo_type_size(job->options->type);
    memset(b, 0, sizeof *b);
    perf_shape(job, coll, bytes, &b->count, &src_count, &dst_count);
    if (job->options->gpu) return make_on_gpu(job, coll, src_count, dst_count, b);
    for (int i = 0; i < (job->options->rotate ? 2 : 1); i++) {
        b->src[i] = malloc(src_count * elem + 64);
        b->dst[i] = calloc(1, dst_count * elem + 64);
        if (!b->src[i] || !b->dst[i]) return KOLO_ERR_NO_MEMORY;
        memset(b->dst[i], 1, dst_count * elem);
        perf_fill(job, coll, b->src[i], src_count, job->rank);
    }
    return KOLO_OK;
}

/* Destinations become windows. */
static kolo_status_t open_windows(const perf_job_t *job, perf_buffers_t *b)
{
    void *const dst[2] = {b->dst[0], b->dst[1]};
    size_t bytes = b->count * kolo_type_size(job->options->type);
    kolo_status_t status = KOLO_OK;
    for (int i = 0; i < 2 && b->dst[i] && status == KOLO_OK; i++)
        status = kolo_window_register(job->comm, b->dst[i], bytes, &b->windows[i]);
    perf_put_windows(dst, b->windows);
    return status;
}

static kolo_status_t close_windows(const perf_job_t *job, perf_buffers_t *b)
{
    kolo_status_t status = KOLO_OK;
    perf_put_windows(NULL, NULL);
    for (int i = 0; i < 2 && status == KOLO_OK; i++) {
        status = kolo_window_deregister(job->comm, b->windows[i]);
        b->windows[i] = NULL;
    }
    return status;
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

/* Poisoned before, by values of another rank, which would be seen. */
static kolo_status_t check_on_gpu(const perf_job_t *job, perf_coll_t coll, const perf_buffers_t *b, bool in_place,
                                  long *wrong)
{
    uint64_t count, src_count, dst_count, elem = kolo_type_size(job->options->type);
    char *dst = b->dst[0], *src = in_place ? perf_in_place_src(job, coll, dst, b->count) : b->src[0];
    perf_shape(job, coll, 0, &count, &src_count, &dst_count);
    bool all = coll == PERF_ALL_GATHER || coll == PERF_ALL_TO_ALL || coll == PERF_GATHER;
    dst_count = all ? b->count * (uint64_t)job->nranks : b->count;
    char *image = malloc(dst_count * elem + 64);
    kolo_status_t status = image ? KOLO_OK : KOLO_ERR_NO_MEMORY;
    if (image) {
        memset(image, 1, dst_count * elem);
        if (dst_count && !perf_gpu_write(dst, image, dst_count * elem)) status = KOLO_ERR_SYSTEM;
        perf_fill(job, coll, image, b->count, job->rank);
        if (in_place && b->count && !perf_gpu_write(src, image, b->count * elem)) status = KOLO_ERR_SYSTEM;
    }
    if (status == KOLO_OK) status = perf_call(job, coll, src, dst, b->count, perf_gpu_stream());
    if (status == KOLO_OK && (!perf_gpu_sync() || (dst_count && !perf_gpu_read(image, dst, dst_count * elem))))
        status = KOLO_ERR_SYSTEM;
    int64_t bad = status == KOLO_OK ? perf_check(job, coll, image, b->count) : 0;
    free(image);
    if (status == KOLO_OK) status = kolo_all_reduce(&bad, &bad, 1, KOLO_INT64, KOLO_SUM, job->host, NULL);
    *wrong = (long)bad;
    return status;
}

kolo_status_t perf_check_call(const perf_job_t *job, perf_coll_t coll, perf_buffers_t *b, bool in_place,
                              long *wrong)
{
    int64_t bad;
    void *dst = b->dst[0], *src = b->src[0];
    if (job->options->gpu) return check_on_gpu(job, coll, b, in_place, wrong);
    if (in_place) {
        src = perf_in_place_src(job, coll, dst, b->count);
        perf_fill(job, coll, src, b->count, job->rank);
    }
    kolo_status_t status = perf_call(job, coll, src, dst, b->count, NULL);
    if (status != KOLO_OK) return status;
    bad = perf_check(job, coll, dst, b->count);
    status = kolo_all_reduce(&bad, &bad, 1, KOLO_INT64, KOLO_SUM, job->host, NULL);
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
    if (status == KOLO_OK && coll == PERF_PUT) status = open_windows(job, &b);
    if (status == KOLO_OK && job->options->check) status = perf_check_call(job, coll, &b, in_place, &row->wrong);
    if (status == KOLO_OK && b.on_gpu)
        status = perf_gpu_time_calls(job, coll, &b, in_place, burst(bytes), iters, times);
    else if (status == KOLO_OK)
        status = perf_time_calls(job, coll, &b, in_place, job->options->warmup, iters, times);
    if (status == KOLO_OK && coll == PERF_PUT) status = close_windows(job, &b);
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
