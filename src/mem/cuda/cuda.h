/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA driver as the rooms above see it: one table of functions, one record per device. Nothing is loaded
 * before the first GPU communicator; where there is no driver or no GPU, kolo_cuda_load() says so in words. What
 * was loaded (the driver, primary contexts) stays for the life of the process.
 */
#ifndef KOLO_MEM_CUDA_CUDA_H
#define KOLO_MEM_CUDA_CUDA_H

#include "base/params.h"
#include "mem/cuda/api.h"
#include "mem/mem.h"
#include "mem/queue.h"

extern const kolo_param_table_t kolo_cuda_params; /* KOLO_CUDA_LIBRARY, ... */
extern const char *kolo_cuda_connections;         /* CUDA_DEVICE_MAX_CONNECTIONS; NULL: not set */

/* Loads the driver, once. KOLO_ERR_UNSUPPORTED with the reason where there is none. Any thread. */
kolo_status_t kolo_cuda_load(const kolo_cuda_api_t **api);
/* Returns the table if it was loaded, else NULL. */
const kolo_cuda_api_t *kolo_cuda_loaded(void);
/* Loads it if the program has it already. */
void kolo_cuda_load_if_used(void);
/* Fails like kolo_fail() with what the driver says of `result`: "cannot <what> on GPU 1: CUDA_ERROR_...". */
kolo_status_t kolo_cuda_fail(kolo_cu_result_t result, int device, const char *what);

#define KOLO_CUDA_DEVICES 64
typedef struct {
    int ordinal;
    kolo_cu_device_t device;
    kolo_cu_ctx_t ctx; /* primary */
    kolo_cu_uuid_t uuid;
    char name[64], bus_id[20];
    int multiprocessors, major, minor;
    bool shareable; /* virtual memory management with handles by descriptor */
} kolo_cuda_device_t;
/* Returns the record of a device, made at first use. Any thread. */
kolo_status_t kolo_cuda_device(int ordinal, const kolo_cuda_device_t **device);
/* Returns which allocation `p` lies in: another number than any before it had. 0: none, or the driver does not
 * say. */
uint64_t kolo_cuda_buffer_id(const void *p);
/* Tells whether this device may load from and store to memory that another one of this process has at `p`.
 * `legacy`: it came from cudaMalloc(), which every device with peer access has mapped. */
bool kolo_cuda_reaches(kolo_cu_device_t device, const void *p, bool legacy);
/* Finds memory that is not this device's own, but that it and its copy engines reach: pinned host memory, that of
 * another device of this process with peer access, managed, or from a graph. The device's context is current. */
bool kolo_cuda_find_other(const kolo_cuda_device_t *device, const void *p, kolo_mem_place_t *place);
/* Tells whether a stream is being captured. KOLO_ERR_INVALID_USAGE: a capture keeps anything from being queued
 * there, so the program has to end it first, and no operation is lost. */
kolo_status_t kolo_cuda_capturing(const kolo_cuda_device_t *device, kolo_cu_stream_t stream, bool *capturing);
/* Finds memory that the graph which a stream is being captured into gets when it runs: until then the driver knows
 * its address only there. The same holds of the context. */
bool kolo_cuda_find_captured(const kolo_cuda_device_t *device, kolo_cu_stream_t stream, const void *p,
                             kolo_mem_place_t *place);
/* Makes the device's context current on this thread until _leave(), which takes what enter returned. */
kolo_status_t kolo_cuda_enter(const kolo_cuda_device_t *device, bool *pushed);
void kolo_cuda_leave(bool pushed);
/* Lets this thread get and free memory while it, or another one, captures a stream; until _captured(), which takes
 * what it returned. Without a driver: nothing. */
int kolo_cuda_uncaptured(void);
void kolo_cuda_captured(int mode);
/* Asks whether what an event stands behind, or what is queued on a stream, is complete; also while this thread
 * captures a stream, where a driver refuses the bare question and ends the capture. */
kolo_cu_result_t kolo_cuda_event_query(kolo_cu_event_t event);
kolo_cu_result_t kolo_cuda_stream_query(kolo_cu_stream_t stream);

/* Waits for all that is queued on a stream of this room or those above it, whose device's context is current: what
 * else the GPU has to do may hold it up. KOLO_ERR_TIMEOUT: it did not end by the deadline, and its work still uses
 * its memory. `what` completes "for it to". */
#define KOLO_CUDA_COPY_MS 60000
kolo_status_t kolo_cuda_drain(const kolo_cuda_device_t *device, kolo_cu_stream_t stream, uint64_t deadline_ns,
                              const char *what);

/* Takes memory, if it can what an earlier communicator left (pool.c): a driver frees nothing before the GPUs of the
 * process have done what is queued, and other threads cannot launch meanwhile. What is there is what its last owner
 * left. The device's context is current. */
kolo_cu_result_t kolo_cuda_take_host(const kolo_cuda_device_t *device, size_t bytes,
                                     void **at); /* pinned, mapped */
kolo_cu_result_t kolo_cuda_take_block(const kolo_cuda_device_t *device, size_t bytes, kolo_cu_ptr_t *at);
void kolo_cuda_give_host(const kolo_cuda_device_t *device, size_t bytes, void *at);
void kolo_cuda_give_block(const kolo_cuda_device_t *device, size_t bytes, kolo_cu_ptr_t at);
/* Takes pinned memory of ours, not the driver's: another process may read it by process_vm_readv(2). */
kolo_status_t kolo_cuda_take_pages(const kolo_cuda_device_t *device, size_t bytes, void **at);
void kolo_cuda_give_pages(const kolo_cuda_device_t *device, size_t bytes, void *at);

/* pieces.c: memory of the virtual kind around an address, as a program has put it together: pieces that touch
 * (cuMemMap), of which a tensor may cover several. */
#define KOLO_CUDA_PIECES 256 /* of a buffer at most */
#define KOLO_CUDA_BESIDE 32  /* if it has fewer, those behind it and before it are taken along up to so many */
typedef struct {
    uint64_t id; /* kolo_cuda_buffer_id() */
    size_t bytes;
} kolo_cuda_piece_t;
typedef struct {
    uintptr_t base;
    size_t bytes;
    bool shareable; /* all of them, by descriptor */
    uint32_t n;
    kolo_cuda_piece_t pieces[];
} kolo_cuda_run_t;
/* Finds the run of pieces that a buffer is. NULL: it has more pieces, or the driver does not number them. Freed by
 * free(). */
kolo_cuda_run_t *kolo_cuda_run_find(const kolo_mem_place_t *place, uintptr_t at, size_t bytes);
kolo_cuda_run_t *kolo_cuda_run_copy(const kolo_cuda_run_t *run);
/* Tells whether the pieces under [at, at + bytes) are those that were there. */
bool kolo_cuda_run_same(const kolo_cuda_run_t *run, uintptr_t at, size_t bytes);

/* queue.c */
extern const kolo_mem_queue_ops_t kolo_cuda_queues;
/* Work on tensors by kernels, put on a stream whose device's context is current. Kernels live above this room
 * (gpu/cuda), which enters its functions here. */
typedef struct {
    kolo_status_t (*lift)(const kolo_cuda_device_t *device, const kolo_lift_t *list, size_t n,
                          kolo_cu_stream_t stream);
    /* Blends; or, into `room`, sums up products. */
    kolo_status_t (*blend)(const kolo_cuda_device_t *device, const kolo_blend_t *list, size_t n, kolo_type_t type,
                           double *room, kolo_cu_stream_t stream);
} kolo_cuda_tensor_fns_t;
void kolo_cuda_set_tensor_fns(const kolo_cuda_tensor_fns_t *fns);

#endif
