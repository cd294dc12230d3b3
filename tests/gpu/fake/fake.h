/* SPDX-License-Identifier: Apache-2.0
 *
 * A fake of the CUDA driver for machines without a GPU: devices of host memory, streams that are threads, kernels
 * that are the product's own device code compiled for the host. It is strict where a real driver is lenient or lets
 * a program crash later: a call in a wrong context, a stream of another context, a destroyed handle, memory past
 * the end of its allocation give the driver's error and a sentence on stderr; memory that is freed while work on it
 * is queued ends the process.
 *
 * Environment: FAKE_CUDA_DEVICES=N devices (2), FAKE_CUDA_SMS=N multiprocessors of each (132, as an H200),
 * FAKE_CUDA_APART=1: devices have no access to each other; FAKE_CUDA_PCI=1: they have it by the PCI bus;
 * FAKE_CUDA_RESIDENT=1: two blocks find room on a multiprocessor, and those of kernels that are launched early take
 * it as soon as there is some (else all kernels run at once);
 * FAKE_CUDA_ONE_QUEUE=1: while a stream waits for a word, no other one of the device copies, as where streams share
 * a queue of the hardware;
 * FAKE_CUDA_JITTER_US=N: each piece of work and each block starts up to N us late, at random (0);
 * FAKE_CUDA_TEARS=1: every third line of 128 bytes is seen in parts for a while, its flag first;
 * FAKE_CUDA_FAIL=FUNCTION:N: the Nth call of this function and all later ones fail;
 * CUDA_VISIBLE_DEVICES as the real one, by ordinals.
 *
 * What a real device has and this one has not: timing, weak memory order beyond the host's, errors that stick to a
 * context. Where the CPU has protection keys, host threads that touch device memory crash.
 */
#ifndef KOLO_TESTS_GPU_FAKE_FAKE_H
#define KOLO_TESTS_GPU_FAKE_FAKE_H

#include "cuda.h"
#include "gpu/cuda/steps.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { /* results beyond those of mem/cuda/api.h */
       FAKE_INVALID_VALUE = 1,
       FAKE_NO_MEMORY = 2,
       FAKE_NOT_INITIALIZED = 3,
       FAKE_INVALID_DEVICE = 101,
       FAKE_INVALID_CONTEXT = 201,
       FAKE_INVALID_HANDLE = 400,
       FAKE_NOT_FOUND = 500,
       FAKE_CONTEXT_DESTROYED = 709,
       FAKE_ALREADY_REGISTERED = 712,
       FAKE_NOT_REGISTERED = 713,
       FAKE_LAUNCH_FAILED = 719,
       FAKE_TOO_LARGE = 720,
       FAKE_CAPTURE_UNSUPPORTED = 900,
       FAKE_CAPTURE_INVALIDATED = 901,
       FAKE_CAPTURE_ISOLATION = 905,
       FAKE_CAPTURE_IMPLICIT = 906,
       FAKE_CAPTURED_EVENT = 907
};

#define FAKE_MAX_DEVICES 16

/* ---- device.c ---- */

struct CUctx_st {
    int device;              /* as this process counts */
    int retained;            /* 0: destroyed */
    kolo_cu_stream_t legacy; /* the default stream; made at first use */
    uint32_t peers;          /* devices whose allocations it may use */
    int stopped;             /* calls under way that other threads' launches wait for */
};

/* One lock for all books; held for moments, never while work runs. */
extern pthread_mutex_t fake_lock;

/* Prints what is wrong and returns `result`, for calls that no right program makes. */
kolo_cu_result_t fake_wrong(kolo_cu_result_t result, const char *format, ...) __attribute__((format(printf, 2, 3)));
void fake_abort(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* Waits, before a launch, until no other thread stops them. */
void fake_go_on(const struct CUctx_st *ctx);
/* By FAKE_CUDA_FAIL; counts the calls. */
bool fake_fails(const char *function);
/* cuInit() was called, and in this process; and the call is not to fail (cuStreamSynchronize asks for that itself).
 */
kolo_cu_result_t fake_ready(const char *function);
/* The current context of this thread, alive; NULL with a complaint and the result in *why. */
struct CUctx_st *fake_context(const char *function, kolo_cu_result_t *why);
int fake_devices(void);
struct CUctx_st *fake_context_of(int device);
/* Counted over the machine, while CUDA_VISIBLE_DEVICES renumbers: what is in names of memory files and UUIDs. */
int fake_device_of_machine(int device);
int fake_device_here(int of_machine); /* -1: not visible */
int fake_multiprocessors(void);
/* Waits up to FAKE_CUDA_JITTER_US at random. */
void fake_jitter(void);
bool fake_tears(void); /* FAKE_CUDA_TEARS */
bool fake_resident(void);
bool fake_one_queue(void);
/* Waits for all that is queued in a context, or in all of them (NULL). */
void fake_await_all(const struct CUctx_st *ctx);
/* The same in a call that meanwhile stops other threads' launches and records in its context, as a real driver was
 * seen to do: it waits with a lock that these want. */
void fake_await_and_stop(struct CUctx_st *ctx, bool all);

#define FAKE_READY()                                                                                               \
    do {                                                                                                           \
        kolo_cu_result_t ready_why = fake_ready(__func__);                                                         \
        if (ready_why) return ready_why;                                                                           \
    } while (0)
#define FAKE_CONTEXT(ctx)                                                                                          \
    kolo_cu_result_t ctx##_why;                                                                                    \
    struct CUctx_st *ctx = fake_context(__func__, &ctx##_why);                                                     \
    if (!ctx) return ctx##_why

/* ---- count.c ---- */

void fake_count(const char *function);
/* For tests (by dlsym): how often this function was called, or this kernel launched; NULL: all functions. */
__attribute__((visibility("default"))) long fake_calls(const char *function);

/* ---- memory.c ---- */

/* May work on a stream of `device` use [p, p + bytes)? Says why not. `pageable`: may be plain host memory, which is
 * told in *pageable. Lock held. */
bool fake_usable_locked(uintptr_t p, size_t bytes, int device, bool *pageable, const char *what);
bool fake_is_host_locked(uintptr_t p);   /* pinned, registered, or unknown to the driver */
bool fake_is_mapped_locked(uintptr_t p); /* virtual memory, as the flags of kernels are in */

/* ---- keys.c ---- */

/* Makes memory that only the device's threads may touch; as mprotect(). */
int fake_protect(void *at, size_t bytes);
/* This thread runs the device's code: it may touch device memory. */
void fake_become_device(void);

/* ---- stream.c ---- */

typedef struct fake_launch fake_launch_t;

/* Queues a launch, which is freed by fake_launch_free() when it has run. */
kolo_cu_result_t fake_stream_launch(kolo_cu_stream_t stream, struct CUctx_st *ctx, fake_launch_t *launch);

/* graph.c: adds a node that gets memory to the graph that the stream is captured into. */
kolo_cu_result_t fake_capture_get(kolo_cu_stream_t stream, struct CUctx_st *ctx, uintptr_t at, size_t bytes);

/* ---- launch.c ---- */

void fake_launch_run(fake_launch_t *launch);
/* Waits for room on the device for a launch's blocks (FAKE_CUDA_RESIDENT). next: the launch behind it, which takes
 * what room there is if it may come early. Both may be NULL. */
void fake_launch_take(fake_launch_t *launch, fake_launch_t *next, int device);
void fake_launch_free(fake_launch_t *launch);
fake_launch_t *fake_launch_again(const fake_launch_t *launch); /* a copy, for a replay */

/* A kernel of the table in kernels.cc: its parameters and the code of one block. */
#define FAKE_MAX_PARAMS 8
typedef struct {
    const char *name;
    int count;
    size_t bytes[FAKE_MAX_PARAMS];
    void (*block)(void *const *params);
} fake_kernel_t;
extern const fake_kernel_t fake_kernels[]; /* ends with a name of NULL */
/* For tests (by dlsym): whom kernels tell their steps; NULL: nobody. While nothing runs. */
__attribute__((visibility("default"))) void fake_listen(void (*tell)(const kolo_cuda_told_t *));
/* Which block this thread is. */
void fake_block_enter(unsigned index, unsigned blocks, unsigned threads);

#ifdef __cplusplus
}
#endif
#endif
