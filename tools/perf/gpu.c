/* SPDX-License-Identifier: Apache-2.0
 *
 * See gpu.h.
 */
#include "gpu.h"
#include "cuda.h"

#include <stdint.h>
#include <stdlib.h>

#define WARM_UPS 3

static void *begin_event, *end_event;

bool perf_gpu_open(int local_rank, bool graphs, int *number)
{
    bool good =
        cuda_open(local_rank, graphs) && CUDA_OK(event_new, &begin_event, 0) && CUDA_OK(event_new, &end_event, 0);
    *number = cuda_number();
    return good;
}

bool perf_gpu_has_graphs(void)
{
    return cuda_has_graphs();
}

const char *perf_gpu_error(void)
{
    return cuda_error();
}

char *perf_gpu_alloc(uint64_t bytes)
{
    cuda_address_t at = 0;
    return CUDA_OK(alloc, &at, bytes) ? (char *)(uintptr_t)at : NULL; /* NOLINT: a driver's address */
}

void perf_gpu_free(char *at)
{
    if (at) cuda.free(cuda_address(at));
}

bool perf_gpu_write(char *at, const void *host, uint64_t bytes)
{
    return cuda_copy(cuda_address(at), cuda_address(host), bytes);
}

bool perf_gpu_read(void *host, const char *at, uint64_t bytes)
{
    return cuda_copy(cuda_address(host), cuda_address(at), bytes);
}

void *perf_gpu_stream(void)
{
    return cuda_stream();
}

bool perf_gpu_sync(void)
{
    return CUDA_OK(stream_wait, cuda_stream());
}

/* ---- times ---- */

static kolo_status_t put_calls(const perf_job_t *job, perf_coll_t coll, const perf_buffers_t *b, bool in_place,
                               int calls)
{
    kolo_status_t status = KOLO_OK;
    for (int i = 0; i < calls && status == KOLO_OK; i++) {
        int k = job->options->rotate ? i & 1 : 0;
        const void *src = in_place ? perf_in_place_src(job, coll, b->dst[k], b->count) : b->src[k];
        status = perf_call(job, coll, src, b->dst[k], b->count, cuda_stream());
    }
    return status;
}

static kolo_status_t capture(const perf_job_t *job, perf_coll_t coll, const perf_buffers_t *b, bool in_place,
                             int calls, void **exec)
{
    void *graph = NULL;
    if (!CUDA_OK(capture_begin, cuda_stream(), 2)) return KOLO_ERR_SYSTEM; /* 2: of this thread's doing only */
    kolo_status_t status = put_calls(job, coll, b, in_place, calls);
    if (!CUDA_OK(capture_end, cuda_stream(), &graph)) return status == KOLO_OK ? KOLO_ERR_SYSTEM : status;
    if (status == KOLO_OK && !CUDA_OK(instantiate, exec, graph, 0)) status = KOLO_ERR_SYSTEM;
    cuda.graph_destroy(graph);
    return status;
}

/* One sample; *ms: of all calls. */
static kolo_status_t time_once(const perf_job_t *job, perf_coll_t coll, const perf_buffers_t *b, bool in_place,
                               int calls, void *exec, float *ms)
{
    kolo_status_t status = kolo_barrier(job->host, NULL);
    if (status == KOLO_OK && !CUDA_OK(event_record, begin_event, cuda_stream())) status = KOLO_ERR_SYSTEM;
    if (status == KOLO_OK && exec && !CUDA_OK(launch, exec, cuda_stream())) status = KOLO_ERR_SYSTEM;
    if (status == KOLO_OK && !exec) status = put_calls(job, coll, b, in_place, calls);
    if (status == KOLO_OK && !(CUDA_OK(event_record, end_event, cuda_stream()) && perf_gpu_sync() &&
                               CUDA_OK(elapsed, ms, begin_event, end_event)))
        status = KOLO_ERR_SYSTEM;
    return status;
}

kolo_status_t perf_gpu_time_calls(const perf_job_t *job, perf_coll_t coll, const perf_buffers_t *b, bool in_place,
                                  int calls, int n, double *times)
{
    void *exec = NULL;
    float ms = 0;
    kolo_status_t status = put_calls(job, coll, b, in_place, 1); /* the first use, by itself */
    if (status == KOLO_OK && job->options->graph) status = capture(job, coll, b, in_place, calls, &exec);
    for (int i = -WARM_UPS; i < n && status == KOLO_OK; i++) {
        status = time_once(job, coll, b, in_place, calls, exec, &ms);
        if (i >= 0) times[i] = (double)ms * 1e3 / calls;
    }
    if (exec) cuda.exec_destroy(exec);
    return status;
}
