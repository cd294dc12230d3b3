/* SPDX-License-Identifier: Apache-2.0
 *
 * What a client does wrong with communicators that end: in one group, beside a thread that asks, in a forked child.
 * No call crashes, and what is right goes on.
 */
#include "kit.h"

#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED
#endif

static ncclComm_t alone(void)
{
    ncclComm_t c = NULL;
    use_device(device_of(0));
    OK(ncclCommInitAll(&c, 1, NULL));
    return c;
}

enum { SPLIT, SHRINK, GROW, WINDOW, FINALIZE, DESTROY, ABORT, REVOKE, REDUCE, SUSPEND, KINDS };

static void call_one(int kind, ncclComm_t c, float *a, cudaStream_t s, ncclComm_t *child)
{
    int other = 1;
    static ncclWindow_t w; /* a group sets it at its end */
    switch (kind) {
    case SPLIT:
        ncclCommSplit(c, 0, 0, child, NULL);
        break;
    case SHRINK:
        ncclCommShrink(c, &other, 1, child, NULL, NCCL_SHRINK_ABORT);
        break;
    case GROW:
        ncclCommGrow(c, 1, NULL, -1, child, NULL);
        break;
    case WINDOW:
        ncclCommWindowRegister(c, a, 40, &w, 0);
        break;
    case FINALIZE:
        ncclCommFinalize(c);
        break;
    case DESTROY:
        ncclCommDestroy(c);
        break;
    case ABORT:
        ncclCommAbort(c);
        break;
    case REVOKE:
        ncclCommRevoke(c, 0);
        break;
    case REDUCE:
        ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, c, s);
        break;
    default:
        ncclCommSuspend(c, NCCL_SUSPEND_MEM);
    }
}

/* Right or wrong, in a group or one after the other: each third of a thousand. */
static void any_three_calls_on_one_communicator(me_t *me)
{
    float *a = floats(me, 10, 1);
    use_device(device_of(0));
    cudaStream_t s = new_stream(device_of(0));
    for (int all = me->n % 7; all < 2 * KINDS * KINDS * KINDS; all += 7) {
        ncclComm_t c = alone(), child[3] = {NULL};
        int kinds[3] = {all / 2 % KINDS, all / 2 / KINDS % KINDS, all / 2 / KINDS / KINDS};
        if (all % 2) OK(ncclGroupStart());
        for (int i = 0; i < 3; i++) call_one(kinds[i], c, a, s, &child[i]);
        if (all % 2) ncclGroupEnd();
        for (int i = 0; i < 3; i++)
            if (child[i]) ncclCommAbort(child[i]);
        ncclCommAbort(c);
    }
    ncclComm_t c = alone();
    works(me, c, 1);
    OK(ncclCommDestroy(c));
}

/* Counts whose bytes wrap around. */
static void counts_that_wrap_around(me_t *me)
{
    float *a = floats(me, 64, 1);
    const size_t counts[] = {SIZE_MAX,
                             SIZE_MAX / 2,
                             SIZE_MAX / 4,
                             SIZE_MAX / 4 + 2,
                             SIZE_MAX / 8 + 1,
                             SIZE_MAX / 4 / (size_t)me->n + 1,
                             (size_t)INT64_MAX / 4 + 1};
    int next = (me->rank + 1) % me->n;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        size_t n = counts[i];
        FACT(ncclAllReduce(a, a, n, ncclFloat32, ncclSum, me->comm, me->stream) != ncclSuccess);
        FACT(ncclReduce(a, a, n, ncclFloat64, ncclSum, 0, me->comm, me->stream) != ncclSuccess);
        FACT(ncclBroadcast(a, a, n, ncclFloat32, 0, me->comm, me->stream) != ncclSuccess);
        FACT(ncclAllGather(a, a, n, ncclFloat32, me->comm, me->stream) != ncclSuccess);
        FACT(ncclReduceScatter(a, a, n, ncclFloat32, ncclSum, me->comm, me->stream) != ncclSuccess);
        FACT(ncclAlltoAll(a, a + 32, n, ncclFloat32, me->comm, me->stream) != ncclSuccess);
        FACT(ncclAlltoAll(a, a, n, ncclFloat32, me->comm, me->stream) != ncclSuccess);
        FACT(ncclGather(a, a, n, ncclFloat32, 0, me->comm, me->stream) != ncclSuccess);
        FACT(ncclScatter(a, a, n, ncclFloat32, 0, me->comm, me->stream) != ncclSuccess);
        FACT(ncclSend(a, n, ncclFloat32, next, me->comm, me->stream) != ncclSuccess);
        FACT(ncclRecv(a, n, ncclFloat32, next, me->comm, me->stream) != ncclSuccess);
        ncclGroupStart();
        ncclSend(a, n, ncclFloat32, next, me->comm, me->stream);
        ncclRecv(a, n, ncclFloat32, next, me->comm, me->stream);
        FACT(ncclGroupEnd() != ncclSuccess);
    }
    meet(me);
    works(me, me->comm, me->n);
}

static void lists_of_excluded_ranks_in_any_order(me_t *me)
{
    ncclComm_t child = NULL;
    int twice[] = {1, 1}, back[] = {2, 1}, self[] = {0, 1, me->rank};
    IS(ncclInvalidArgument, ncclCommShrink(me->comm, self, 3, &child, NULL, 0));
    IS(ncclInvalidArgument, ncclCommShrink(me->comm, back, INT_MIN, &child, NULL, 0));
    if (me->rank != 1) IS(ncclInvalidArgument, ncclCommShrink(me->comm, twice, 2, &child, NULL, 0));
    FACT(child == NULL);
    if (me->n > 2 && me->rank != 1 && me->rank != 2) {
        OK(ncclCommShrink(me->comm, back, 2, &child, NULL, NCCL_SHRINK_DEFAULT));
        works(me, child, me->n - 2);
        OK(ncclCommDestroy(child));
    }
    meet(me);
    works(me, me->comm, me->n);
}

static void colors_and_keys_of_any_size(me_t *me)
{
    ncclComm_t child = NULL;
    const int keys[] = {INT_MAX, INT_MIN, 0, INT_MIN, -1};
    for (int i = 0; i < 5; i++) {
        int rank = -1;
        OK(ncclCommSplit(me->comm, i % 2 ? INT_MAX : INT_MAX - me->rank % 2, keys[(i + me->rank) % 5], &child,
                         NULL));
        if (!FACT(child != NULL)) continue;
        OK(ncclCommUserRank(child, &rank));
        OK(ncclCommDestroy(child));
    }
    OK(ncclCommSplit(me->comm, me->rank ? NCCL_SPLIT_NOCOLOR : 5, 0, &child, NULL));
    FACT((child != NULL) == (me->rank == 0));
    if (child) works(me, child, 1);
    if (child) OK(ncclCommDestroy(child));
    works(me, me->comm, me->n);
}

/* Windows of others, offsets beyond the end, counts that wrap around; memory that is freed behind a window. */
static void windows_used_wrongly(me_t *me)
{
    ncclComm_t child = NULL;
    ncclWindow_t w = NULL, other = NULL;
    void *p = NULL, *q = NULL, *at = NULL;
    int next = (me->rank + 1) % me->n;
    OK(ncclCommSplit(me->comm, 0, me->rank, &child, NULL));
    OK(ncclMemAlloc(&p, 1 << 16));
    OK(ncclMemAlloc(&q, 1 << 16));
    OK(ncclCommWindowRegister(child, p, 1 << 16, &w, 0));
    OK(ncclCommWindowRegister(me->comm, q, 1 << 16, &other, 0));
    if (w && other) {
        const size_t offsets[] = {(1 << 16) - 39, 1 << 16, SIZE_MAX, SIZE_MAX - 39, SIZE_MAX / 2};
        for (size_t i = 0; i < 5; i++)
            FACT(ncclPutSignal(p, 10, ncclFloat32, next, w, offsets[i], 0, 0, 0, child, me->stream) != ncclSuccess);
        FACT(ncclPutSignal(p, SIZE_MAX / 4 + 2, ncclFloat32, next, w, 0, 0, 0, 0, child, me->stream) !=
             ncclSuccess);
        FACT(ncclPutSignal(p, SIZE_MAX, ncclFloat32, next, w, 0, 0, 0, 0, child, me->stream) != ncclSuccess);
        FACT(ncclPutSignal(NULL, 10, ncclFloat32, next, w, 0, 0, 0, 0, child, me->stream) != ncclSuccess);
        FACT(ncclPutSignal(p, 10, ncclFloat32, next, other, 0, 0, 0, 0, child, me->stream) != ncclSuccess);
        FACT(ncclPutSignal(p, 10, ncclFloat32, next, (ncclWindow_t)p, 0, 0, 0, 0, child, me->stream) !=
             ncclSuccess);
        FACT(ncclPutSignal(p, 10, ncclFloat32, me->n, w, 0, 0, 0, 0, child, me->stream) != ncclSuccess);
        FACT(ncclSignal(INT_MIN, 0, 0, 0, child, me->stream) != ncclSuccess);
        FACT(ncclSignal(next, INT_MAX, INT_MAX, 0, child, me->stream) != ncclSuccess);
        FACT(ncclWinGetUserPtr(child, other, &at) != ncclSuccess);
        OK(ncclWinGetUserPtr(child, w, &at));
        FACT(at == p);
    }
    meet(me);
    OK(ncclCommWindowDeregister(child, w));
    OK(ncclMemFree(p)); /* as it should be: what is deregistered may be freed */
    meet(me);
    OK(ncclCommDestroy(child));
    if (w) {
        IS(ncclInvalidArgument, ncclPutSignal(q, 10, ncclFloat32, next, w, 0, 0, 0, 0, child, me->stream));
        IS(ncclInvalidArgument, ncclCommWindowDeregister(child, w));
        IS(ncclInvalidArgument, ncclCommWindowDeregister(me->comm, w));
    }
    meet(me);
    OK(ncclCommWindowDeregister(me->comm, other));
    works(me, me->comm, me->n);
    OK(ncclMemFree(q));
}

/* Memory that is given out again at the same address is another window. */
static void windows_in_memory_that_comes_again(me_t *me)
{
    int next = (me->rank + 1) % me->n, before = (me->rank + me->n - 1) % me->n;
    for (int i = 0; i < 6; i++) {
        ncclWindow_t w = NULL;
        void *p = NULL;
        ncclWaitSignalDesc_t wait = {.opCnt = 1, .peer = before};
        float *src = floats(me, 10, (float)(10 * i + me->rank));
        OK(ncclMemAlloc(&p, 1 << 16));
        OK(ncclCommWindowRegister(me->comm, p, 1 << 16, &w, 0));
        if (w) {
            OK(ncclPutSignal(src, 10, ncclFloat32, next, w, 0, 0, 0, 0, me->comm, me->stream));
            OK(ncclWaitSignal(1, &wait, me->comm, me->stream));
            sync_stream(me);
            EQ(at(me, p, 9), 10 * i + before);
        }
        meet(me);
        OK(ncclCommWindowDeregister(me->comm, w));
        OK(ncclMemFree(p));
        meet(me);
    }
    works(me, me->comm, me->n);
}

static void registrations_of_nothing(me_t *me)
{
    void *handle = NULL;
    float *a = floats(me, 10, 1);
    ncclCommRegister(me->comm, NULL, 100, &handle);
    if (handle) OK(ncclCommDeregister(me->comm, handle));
    handle = NULL;
    ncclCommRegister(me->comm, a, 0, &handle);
    if (handle) OK(ncclCommDeregister(me->comm, handle));
    handle = NULL;
    ncclCommRegister(me->comm, a, SIZE_MAX, &handle);
    if (handle) OK(ncclCommDeregister(me->comm, handle));
    handle = NULL;
    ncclCommRegister(me->comm, a, SIZE_MAX - (uintptr_t)a + 1, &handle);
    if (handle) OK(ncclCommDeregister(me->comm, handle));
    IS(ncclInvalidArgument, ncclMemAlloc(NULL, 10));
#ifndef SANITIZED
    if (!on_gpu())
        IS(ncclSystemError, ncclMemAlloc(&handle, SIZE_MAX)); /* the fake driver gives up, as sanitizers do */
#endif
    works(me, me->comm, me->n);
}

/* A thread asks for errors, as PyTorch's does, while communicators are made and ended. */
static _Atomic(ncclComm_t) watched[8];
static _Atomic int stop_watching;

static void *watches(void *arg)
{
    me_t *me = arg;
    while (!atomic_load(&stop_watching)) {
        ncclComm_t c = atomic_load(&watched[me->rank % 8]);
        ncclResult_t now;
        int n;
        if (!c) continue;
        ncclCommGetAsyncError(c, &now);
        ncclCommCount(c, &n);
        ncclCommUserRank(c, &n);
        ncclGetLastError(c);
    }
    return NULL;
}

static void a_watcher_asks_what_ends(me_t *me)
{
    pthread_t thread;
    atomic_store(&stop_watching, 0);
    meet(me);
    if (!FACT(pthread_create(&thread, NULL, watches, me) == 0)) return;
    for (int i = 0; i < 30; i++) {
        ncclComm_t child = NULL;
        OK(ncclCommSplit(me->comm, 0, me->rank, &child, NULL));
        atomic_store(&watched[me->rank % 8], child);
        if (i % 3 == 0) works(me, child, me->n);
        meet(me);
        if (i % 2)
            OK(ncclCommDestroy(child));
        else
            OK(ncclCommAbort(child));
    }
    meet(me);
    atomic_store(&stop_watching, 1);
    pthread_join(thread, NULL);
    works(me, me->comm, me->n);
}

#ifndef SANITIZED /* no sanitizer survives a fork beside threads */
static _Atomic int stop_calling;

static void *calls_on(void *arg)
{
    ncclComm_t own = NULL;
    ncclResult_t now;
    void *p;
    int n;
    while (!atomic_load(&stop_calling)) {
        ncclCommGetAsyncError(arg, &now);
        ncclCommCount((ncclComm_t)(void *)&n, &n); /* is told that this is none */
        OK(ncclMemAlloc(&p, 100));
        OK(ncclMemFree(p));
        OK(ncclCommInitAll(&own, 1, NULL));
        OK(ncclCommDestroy(own));
    }
    return NULL;
}

/* What a child of fork() calls: it has no part in the communicators of its parent, and may have its own. */
static void in_a_child(ncclComm_t c, int way)
{
    ncclComm_t own = NULL;
    ncclResult_t now;
    void *p;
    int n;
    alarm(20);
    ncclCommGetAsyncError(c, &now);
    ncclCommCount((ncclComm_t)(void *)&n, &n);
    bool good = ncclMemAlloc(&p, 100) == ncclSuccess && ncclMemFree(p) == ncclSuccess;
    if (way == 0) good = good && ncclCommDestroy(c) == ncclInvalidUsage;
    if (way == 1) good = good && ncclCommAbort(c) == ncclInvalidUsage;
    if (way == 2) good = good && ncclCommSplit(c, 0, 0, &own, NULL) == ncclInvalidUsage;
    if (way == 3)
        good = good && ncclCommInitAll(&own, 1, NULL) == ncclSuccess && ncclCommDestroy(own) == ncclSuccess;
    exit(good ? 0 : 1);
}

static void a_fork_beside_calls(me_t *me)
{
    enum { THREADS = 3, FORKS = 60 };
    pthread_t thread[THREADS];
    if (on_gpu()) return; /* a driver does not survive it */
    ncclComm_t c = alone();
    atomic_store(&stop_calling, 0);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&thread[i], NULL, calls_on, c)) abort();
    for (int i = 0, status = -1; i < FORKS; i++) {
        pid_t pid = fork();
        if (pid == 0) in_a_child(c, i % 4);
        waitpid(pid, &status, 0);
        if (!FACT(status == 0)) break;
    }
    atomic_store(&stop_calling, 1);
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    works(me, c, 1);
    OK(ncclCommDestroy(c));
}
#else
static void a_fork_beside_calls(me_t *me)
{
    (void)me;
}
#endif

/* Configurations of any size, at the end of their memory, with any numbers. */
static void configurations_of_any_bytes(me_t *me)
{
    unsigned seed = 12;
    ncclComm_t c = alone();
    for (int i = 0; i < 100; i++) {
        ncclConfig_t full = new_config();
        size_t size = sizeof full.head + (size_t)rand_r(&seed) % (sizeof full - sizeof full.head + 1);
        ncclConfig_t *config = malloc(size);
        ncclComm_t child = NULL;
        if (!config) return;
        for (size_t at = sizeof full.head; at + sizeof(int) <= sizeof full; at += sizeof(int))
            if (rand_r(&seed) % 12 == 0) ((int *)(void *)&full)[at / sizeof(int)] = rand_r(&seed) % 5 - 2;
        full.commName = full.netName = NULL;
        full.head.version = (unsigned)rand_r(&seed) % 40000;
        full.head.size = size;
        memcpy(config, &full, size);
        ncclResult_t r = ncclCommSplit(c, 0, 0, &child, config);
        FACT((r == ncclSuccess || r == ncclInProgress) == (child != NULL));
        if (child) OK(ncclCommAbort(child));
        free(config);
    }
    works(me, c, 1);
    OK(ncclCommDestroy(c));
}

/* Calls of a finalized communicator, on all ranks. */
static void what_was_finalized_makes_no_children(me_t *me)
{
    ncclComm_t c = NULL, child = NULL;
    ncclWindow_t w = NULL;
    int other = (me->rank + 1) % me->n;
    OK(ncclCommSplit(me->comm, 0, me->rank, &c, NULL));
    works(me, c, me->n);
    OK(ncclCommFinalize(c));
    FACT(ncclCommSplit(c, 0, 0, &child, NULL) != ncclSuccess);
    FACT(ncclCommShrink(c, &other, 1, &child, NULL, 0) != ncclSuccess);
    FACT(ncclCommGrow(c, me->n + 1, NULL, -1, &child, NULL) != ncclSuccess);
    ncclCommWindowRegister(c, floats(me, 10, 1), 40, &w, 0);
    FACT(child == NULL && w == NULL);
    OK(ncclCommDestroy(c));
    works(me, me->comm, me->n);
}

static void an_operator_is_destroyed_behind_its_call(me_t *me)
{
    ncclRedOp_t op;
    float two = 2, *scalar = floats(me, 1, 3), *a = floats(me, 10, 1);
    for (int dev = 0; dev < 2; dev++) {
        for (int i = 0; i < 10; i++) put(me, a, i, 1);
        delay_stream(me, 30);
        OK(ncclRedOpCreatePreMulSum(&op, dev ? scalar : &two, ncclFloat32,
                                    dev ? ncclScalarDevice : ncclScalarHostImmediate, me->comm));
        OK(ncclAllReduce(a, a, 10, ncclFloat32, op, me->comm, me->stream));
        OK(ncclRedOpDestroy(op, me->comm));
        two = 7;
        sync_stream(me);
        EQ(at(me, a, 9), (dev ? 3 : 2) * me->n);
    }
}

const case_t foul_cases[] = {
    {"any_three_calls_on_one_communicator", any_three_calls_on_one_communicator, FIRST},
    {"counts_that_wrap_around", counts_that_wrap_around, EACH},
    {"lists_of_excluded_ranks_in_any_order", lists_of_excluded_ranks_in_any_order, EACH},
    {"colors_and_keys_of_any_size", colors_and_keys_of_any_size, EACH},
    {"windows_used_wrongly", windows_used_wrongly, EACH},
    {"windows_in_memory_that_comes_again", windows_in_memory_that_comes_again, EACH},
    {"registrations_of_nothing", registrations_of_nothing, EACH},
    {"a_watcher_asks_what_ends", a_watcher_asks_what_ends, EACH},
    {"a_fork_beside_calls", a_fork_beside_calls, FIRST},
    {"configurations_of_any_bytes", configurations_of_any_bytes, FIRST},
    {"what_was_finalized_makes_no_children", what_was_finalized_makes_no_children, EACH},
    {"an_operator_is_destroyed_behind_its_call", an_operator_is_destroyed_behind_its_call, EACH},
    {NULL, NULL, EACH},
};
