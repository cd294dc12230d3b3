/* SPDX-License-Identifier: Apache-2.0
 *
 * Windows, and the calls that write to them. A window is one of Kolo's. NCCL's deregistration meets nobody and
 * Kolo's meets all ranks, so what a client deregisters is only forgotten here and ends with the communicator.
 */
#include "nccl/layer.h"

#include <stdlib.h>
#include <string.h>

/* Finds a window that is registered, which lives as long as its communicator. `forget`: of several that deregister
 * it, one finds it. */
static kolo_nccl_window_t *find(ncclComm_t comm, ncclWindow_t window, bool forget)
{
    pthread_mutex_lock(&comm->lock);
    kolo_nccl_window_t *w = comm->windows;
    while (w && (void *)w != (void *)window) w = w->next;
    if (w && !w->live) w = NULL;
    if (w && forget) w->live = false;
    pthread_mutex_unlock(&comm->lock);
    return w;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    KOLO_NCCL_WHOLE;
    static const char call[] = "ncclCommWindowDeregister";
    ncclResult_t r = kolo_nccl_check_made(comm, call);
    if (r != ncclSuccess || !window) return r;
    if (!find(comm, window, true))
        return kolo_nccl_fail(ncclInvalidArgument, "%s: %p is no window of communicator %p", call, (void *)window,
                              (void *)comm);
    return ncclSuccess;
}
KOLO_NCCL_TWIN(ncclCommWindowDeregister, pncclCommWindowDeregister);

ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void **p)
{
    static const char call[] = "ncclWinGetUserPtr";
    ncclResult_t r = kolo_nccl_check_made(comm, call);
    if (r != ncclSuccess) return r;
    if (!p) return kolo_nccl_fail(ncclInvalidArgument, "%s: the output is NULL", call);
    *p = NULL;
    if (!window) return ncclSuccess; /* as without symmetric memory */
    kolo_nccl_window_t *w = find(comm, window, false);
    if (!w)
        return kolo_nccl_fail(ncclInvalidArgument, "%s: %p is no window of communicator %p", call, (void *)window,
                              (void *)comm);
    *p = w->buf;
    return ncclSuccess;
}
KOLO_NCCL_TWIN(ncclWinGetUserPtr, pncclWinGetUserPtr);

/* ---- put, signal, wait ---- */

/* Signals are numbered by context and index; Kolo has one row of numbers. */
static ncclResult_t number(ncclComm_t comm, int signal, int ctx, const char *call, int *out)
{
    int ctxs = comm->config.numRmaCtx == NCCL_CONFIG_UNDEF_INT ? 1 : comm->config.numRmaCtx;
    int each = comm->config.numRmaSig == NCCL_CONFIG_UNDEF_INT ? 1 : comm->config.numRmaSig;
    if (ctx < 0 || ctx >= ctxs)
        return kolo_nccl_fail(ncclInvalidArgument, "%s: context %d: numRmaCtx of the communicator is %d", call, ctx,
                              ctxs);
    if (signal < 0 || signal >= each)
        return kolo_nccl_fail(ncclInvalidArgument, "%s: signal %d: numRmaSig of the communicator is %d", call,
                              signal, each);
    if (signal >= KOLO_SIGNALS || ctx > (KOLO_SIGNALS - 1 - signal) / each)
        return kolo_nccl_fail(ncclInvalidUsage,
                              "%s: signal %d of context %d: Kolo has %d signals from each rank, over all contexts",
                              call, signal, ctx, KOLO_SIGNALS);
    *out = ctx * each + signal;
    return ncclSuccess;
}

static ncclResult_t check(ncclComm_t comm, int peer, unsigned flags, const char *call)
{
    int rank, nranks;
    ncclResult_t r = kolo_nccl_check_made(comm, call);
    if (r == ncclSuccess) r = kolo_nccl_place(comm, &rank, &nranks);
    if (r != ncclSuccess) return r;
    if (peer < 0 || peer >= nranks)
        return kolo_nccl_fail(ncclInvalidArgument, "%s: peer %d: expected 0 to %d", call, peer, nranks - 1);
    if (flags) return kolo_nccl_fail(ncclInvalidArgument, "%s: the flags are 0x%x: expected 0", call, flags);
    if (atomic_load(&comm->suspended))
        return kolo_nccl_fail(ncclInvalidUsage, "%s: communicator %p is suspended: call ncclCommResume() first",
                              call, (void *)comm);
    return ncclSuccess;
}

ncclResult_t ncclPutSignal(const void *src, size_t count, ncclDataType_t type, int peer, ncclWindow_t window,
                           size_t offset, int signal, int ctx, unsigned flags, ncclComm_t comm, cudaStream_t stream)
{
    kolo_nccl_call_t c = {.kind = KOLO_NCCL_PUT_SIGNAL,
                          .name = "ncclPutSignal",
                          .comm = comm,
                          .src = src,
                          .count = count,
                          .root = peer,
                          .offset = offset};
    int t = kolo_nccl_type(type);
    ncclResult_t r = check(comm, peer, flags, c.name);
    if (r == ncclSuccess) r = number(comm, signal, ctx, c.name, &c.signal);
    if (r == ncclSuccess && t < 0)
        r = kolo_nccl_fail(ncclInvalidArgument, "%s: there is no type %d", c.name, (int)type);
    if (r != ncclSuccess) return kolo_nccl_noted(r);
    kolo_nccl_window_t *w = find(comm, window, false);
    if (!w)
        return kolo_nccl_noted(kolo_nccl_fail(window ? ncclInvalidArgument : ncclInvalidUsage,
                                              "%s: %p is no window of communicator %p", c.name, (void *)window,
                                              (void *)comm));
    c.type = (kolo_type_t)t;
    c.window = w->kolo;
    c.stream = comm->device < 0 ? NULL : (void *)stream;
    return kolo_nccl_noted(kolo_nccl_submit(&c));
}
KOLO_NCCL_TWIN(ncclPutSignal, pncclPutSignal);

ncclResult_t ncclSignal(int peer, int signal, int ctx, unsigned flags, ncclComm_t comm, cudaStream_t stream)
{
    kolo_nccl_call_t c = {.kind = KOLO_NCCL_SIGNAL, .name = "ncclSignal", .comm = comm, .root = peer};
    ncclResult_t r = check(comm, peer, flags, c.name);
    if (r == ncclSuccess) r = number(comm, signal, ctx, c.name, &c.signal);
    if (r != ncclSuccess) return kolo_nccl_noted(r);
    c.stream = comm->device < 0 ? NULL : (void *)stream;
    return kolo_nccl_noted(kolo_nccl_submit(&c));
}
KOLO_NCCL_TWIN(ncclSignal, pncclSignal);

ncclResult_t ncclWaitSignal(int n, ncclWaitSignalDesc_t *waits, ncclComm_t comm, cudaStream_t stream)
{
    kolo_nccl_call_t c = {.kind = KOLO_NCCL_WAIT_SIGNAL, .name = "ncclWaitSignal", .comm = comm, .nwaits = n};
    ncclResult_t r = kolo_nccl_check_made(comm, c.name);
    if (r == ncclSuccess && (n < 1 || !waits))
        r = kolo_nccl_fail(ncclInvalidArgument, "%s: %d signals: expected a list of 1 or more", c.name, n);
    if (r != ncclSuccess) return kolo_nccl_noted(r);
    c.waits = malloc((size_t)n * sizeof *c.waits);
    if (!c.waits) return kolo_nccl_noted(kolo_nccl_fail(ncclSystemError, "%s: out of memory", c.name));
    for (int i = 0; i < n && r == ncclSuccess; i++) {
        r = check(comm, waits[i].peer, 0, c.name);
        if (r == ncclSuccess && waits[i].opCnt < 0)
            r = kolo_nccl_fail(ncclInvalidArgument, "%s: %d signals of rank %d", c.name, waits[i].opCnt,
                               waits[i].peer);
        c.waits[i].peer = waits[i].peer;
        c.waits[i].count = (uint32_t)waits[i].opCnt;
        if (r == ncclSuccess) r = number(comm, waits[i].sigIdx, waits[i].ctx, c.name, &c.waits[i].signal);
    }
    if (r != ncclSuccess) {
        free(c.waits);
        return kolo_nccl_noted(r);
    }
    c.stream = comm->device < 0 ? NULL : (void *)stream;
    return kolo_nccl_noted(kolo_nccl_submit(&c));
}
KOLO_NCCL_TWIN(ncclWaitSignal, pncclWaitSignal);
