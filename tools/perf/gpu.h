/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-perf --gpu: buffers on the ranks' GPUs, times by the GPU's own clock. A sample is a burst of calls in a row,
 * or a graph of as many, between two events on a stream; the ranks meet before each on the CPU.
 */
#ifndef KOLO_TOOLS_PERF_GPU_H
#define KOLO_TOOLS_PERF_GPU_H

#include "perf.h"

/* Takes the GPU of this rank; *number: which. */
bool perf_gpu_open(int local_rank, bool graphs, int *number);
/* What the driver said of the last call here that failed; "": none has. */
const char *perf_gpu_error(void);
/* Has its driver graphs? */
bool perf_gpu_has_graphs(void);
/* NULL: it failed. Ends by perf_gpu_free(). */
char *perf_gpu_alloc(uint64_t bytes);
void perf_gpu_free(char *at);
/* Copies between host and GPU, complete on return. */
bool perf_gpu_write(char *at, const void *host, uint64_t bytes);
bool perf_gpu_read(void *host, const char *at, uint64_t bytes);
/* The stream of all calls. */
void *perf_gpu_stream(void);
bool perf_gpu_sync(void);
/* Microseconds of a call in each of n samples. */
kolo_status_t perf_gpu_time_calls(const perf_job_t *job, perf_coll_t coll, const perf_buffers_t *b, bool in_place,
                                  int calls, int n, double *times);

#endif
