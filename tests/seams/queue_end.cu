/* SPDX-License-Identifier: Apache-2.0
 *
 * A kernel at the ends of the host's queues: it takes each slot of one, adds one to every word of its payload and posts
 * it in the other. All that it has are the plain ends and wire/end.h. Compiled by nvcc it runs on a GPU, over memory that
 * is registered with it; by a C++ compiler, on a thread.
 */
#include "tests/seams/queue_end.h"

#ifdef __CUDACC__
#define DEVICE            __device__
#define SYNC()            __syncthreads()
#define THREADS           128
#define THREAD            threadIdx.x
#else
#include <pthread.h>
#include <sched.h>
#define DEVICE
#define SYNC()
#define THREADS 1u
#define THREAD  0u
#endif

static DEVICE bool may_go(echo_t *e)
{
    while (!(kolo_rx_end_ready(&e->rx) && kolo_tx_end_ready(&e->tx))) {
        if (kolo_end_load(&e->stop)) return false;
#ifndef __CUDACC__
        sched_yield();
#endif
    }
    return true;
}

static DEVICE void pass_on(echo_t *e, bool *goes)
{
    for (uint64_t i = 0; i < e->slots; i++) {
        if (THREAD == 0) *goes = may_go(e);
        SYNC();
        const kolo_slot_header_t *in = kolo_rx_end_header(&e->rx);
        uint32_t bytes = in->bytes <= e->tx.slot_bytes ? in->bytes : 0; /* the peer wrote it: bounded */
        const uint64_t *from = (const uint64_t *)(const void *)(in + 1);
        uint64_t *to = (uint64_t *)(void *)(kolo_tx_end_header(&e->tx) + 1);
        if (!*goes) return;
        for (uint32_t k = THREAD; k < bytes / sizeof *to; k += THREADS) to[k] = from[k] + 1;
        SYNC();
        if (THREAD != 0) continue;
        kolo_tx_end_post(&e->tx, bytes, 0, in->signature, in->operation);
        kolo_rx_end_release(&e->rx);
    }
}

#ifdef __CUDACC__
static __global__ void echo_kernel(echo_t *e)
{
    __shared__ bool goes;
    pass_on(e, &goes);
}

static void *registered;

template <typename T> static void move(T **p, const void *from, char *to)
{
    *p = (T *)(to + ((const char *)*p - (const char *)from));
}

const char *echo_start(void *memory, size_t bytes, echo_t *echo)
{
    void *there;
    cudaError_t error = cudaHostRegister(memory, bytes, cudaHostRegisterMapped);
    if (error == cudaSuccess) registered = memory;
    if (error == cudaSuccess) error = cudaHostGetDevicePointer(&there, memory, 0);
    if (error != cudaSuccess) return cudaGetErrorString(error);
    move(&echo->rx.slots, memory, (char *)there);
    move(&echo->rx.head, memory, (char *)there);
    move(&echo->tx.slots, memory, (char *)there);
    move(&echo->tx.heads, memory, (char *)there);
    move(&echo, memory, (char *)there);
    echo_kernel<<<1, THREADS>>>(echo);
    error = cudaGetLastError();
    return error == cudaSuccess ? NULL : cudaGetErrorString(error);
}

const char *echo_join(void)
{
    cudaError_t error = cudaDeviceSynchronize();
    if (registered) (void)cudaHostUnregister(registered);
    return error == cudaSuccess ? NULL : cudaGetErrorString(error);
}
#else
static pthread_t thread;

static void *run(void *arg)
{
    bool goes = false;
    pass_on((echo_t *)arg, &goes);
    return NULL;
}

const char *echo_start(void *memory, size_t bytes, echo_t *echo)
{
    (void)memory;
    (void)bytes;
    return pthread_create(&thread, NULL, run, echo) == 0 ? NULL : "no thread";
}

const char *echo_join(void)
{
    return pthread_join(thread, NULL) == 0 ? NULL : "no thread to wait for";
}
#endif
