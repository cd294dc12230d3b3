/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA driver for programs that have buffers on GPUs and no CUDA toolkit: loaded as Kolo loads it, and a
 * sentence for each call that fails. One GPU for a process.
 */
#ifndef KOLO_TOOLS_CUDA_H
#define KOLO_TOOLS_CUDA_H

#include <stdbool.h>
#include <stddef.h>

typedef unsigned long long cuda_address_t;

/* Of cuda.h what is called by those who use this; the result is 0 or an error of the driver. */
typedef struct {
    int (*init)(unsigned flags);
    int (*error_name)(int error, const char **name);
    int (*error_text)(int error, const char **text);
    int (*count)(int *devices);
    int (*get)(int *device, int ordinal);
    int (*retain)(void **context, int device);
    int (*set_context)(void *context);
    int (*alloc)(cuda_address_t *at, size_t bytes);
    int (*free)(cuda_address_t at);
    int (*copy)(cuda_address_t to, cuda_address_t from, size_t bytes, void *stream);
    int (*stream_new)(void **stream, unsigned flags);
    int (*stream_wait)(void *stream);
    int (*event_new)(void **event, unsigned flags);
    int (*event_record)(void *event, void *stream);
    int (*elapsed)(float *ms, void *from, void *to);
    /* graphs; NULL where the driver has none */
    int (*capture_begin)(void *stream, int mode);
    int (*capture_end)(void *stream, void **graph);
    int (*instantiate)(void **exec, void *graph, unsigned long long flags);
    int (*launch)(void *exec, void *stream);
    int (*exec_destroy)(void *exec);
    int (*graph_destroy)(void *graph);
} cuda_driver_t;
extern cuda_driver_t cuda;

/* Loads the driver and takes GPU `worker`, modulo their number, for this thread, with a stream. */
bool cuda_open(int worker, bool graphs);
bool cuda_has_graphs(void);
int cuda_number(void); /* -1 before */
void *cuda_stream(void);
/* CUDA_OK(alloc, &at, bytes): true if the call succeeded. If not, cuda_error() has what was called, on which GPU,
 * and the driver's name and text of the error, until the next one; "" before the first. */
#define CUDA_OK(function, ...) cuda_succeeded(cuda.function(__VA_ARGS__), &cuda.function)
bool cuda_succeeded(int result, const void *function);
const char *cuda_error(void);
/* Between host and GPU, complete on return. */
bool cuda_copy(cuda_address_t to, cuda_address_t from, size_t bytes);
cuda_address_t cuda_address(const void *p);

#endif
