/* SPDX-License-Identifier: Apache-2.0
 *
 * An executor that the library does not know: a call waits for its stream, brings its buffers to host memory, runs
 * there, takes the result back and returns. All there is to it stands in this file, and executors.c has the list
 * with it.
 */
#include "blocking.h"

#include "mem/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    kolo_exec_env_t env;
    int rank, nranks;
} state_t;

static bool serves(const kolo_exec_gpus_t *gpus, char why[KOLO_EXEC_WHY])
{
    snprintf(why, KOLO_EXEC_WHY, "%d ranks with any GPUs", gpus->nranks);
    return true;
}

static kolo_status_t open_state(const kolo_exec_env_t *env, void **state)
{
    state_t *s = calloc(1, sizeof *s);
    if (!s) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for an executor");
    *s = (state_t){*env, kolo_oob_rank(env->ctx->oob), kolo_oob_nranks(env->ctx->oob)};
    *state = s;
    return KOLO_OK;
}

static uint64_t bytes_of(const state_t *s, const kolo_exec_call_t *c, bool dst)
{
    if (c->kind != KOLO_EXEC_COLL) return c->count * c->elem;
    return c->elem * (dst ? kolo_coll_dst_count : kolo_coll_src_count)(c->coll, c->count, (uint32_t)s->nranks);
}

/* The call with buffers in host memory, which hold what the device's do. */
static kolo_status_t bring(const state_t *s, const kolo_exec_call_t *c, kolo_exec_call_t *here)
{
    uint64_t src = bytes_of(s, c, false), dst = bytes_of(s, c, true);
    void *from = c->src ? malloc(src + 1) : NULL;
    *here = *c;
    here->src = from;
    here->dst = c->dst ? malloc(dst + 1) : NULL;
    if ((c->src && !here->src) || (c->dst && !here->dst))
        return kolo_fail(KOLO_ERR_NO_MEMORY, "no %zu bytes", src + dst);
    if (c->src && src) KOLO_TRY(kolo_mem_cuda.read(s->env.device, from, c->src, src));
    return KOLO_OK;
}

static kolo_status_t take_back(const state_t *s, const kolo_exec_call_t *c, const kolo_exec_call_t *here)
{
    uint64_t bytes = bytes_of(s, c, true);
    return c->dst && bytes ? kolo_mem_cuda.write(s->env.device, c->dst, here->dst, bytes) : KOLO_OK;
}

/* A rank's n-th message to itself goes to its n-th receive; the others go by the communicator. */
static kolo_status_t exchange(const state_t *s, kolo_exec_call_t *calls, size_t n)
{
    size_t out = 0, to = 0;
    for (size_t i = 0; i < n; i++) {
        if (calls[i].root != s->rank || calls[i].kind != KOLO_EXEC_SEND) continue;
        while (to < n && (calls[to].root != s->rank || calls[to].kind != KOLO_EXEC_RECV)) to++;
        if (to == n) return kolo_fail(KOLO_ERR_INVALID_USAGE, "rank %d does not receive from itself", s->rank);
        memcpy(calls[to++].dst, calls[i].src, calls[i].count * calls[i].elem);
    }
    kolo_exec_call_t *others = calloc(n, sizeof *others);
    if (!others) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for %zu messages", n);
    for (size_t i = 0; i < n; i++)
        if (calls[i].root != s->rank) others[out++] = calls[i];
    kolo_status_t status = out ? s->env.host->exchange(s->env.host_arg, others, out) : KOLO_OK;
    free(others);
    return status;
}

/* A collective, or messages that stand side by side. */
static kolo_status_t run(const state_t *s, const kolo_exec_call_t *calls, size_t n)
{
    kolo_status_t status = KOLO_OK;
    kolo_exec_call_t *here = calloc(n, sizeof *here);
    if (!here) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for %zu calls", n);
    for (size_t i = 0; i < n && status == KOLO_OK; i++) status = bring(s, &calls[i], &here[i]);
    if (status == KOLO_OK)
        status = calls->kind == KOLO_EXEC_COLL ? s->env.host->run(s->env.host_arg, here) : exchange(s, here, n);
    if (status != KOLO_OK) s->env.host->fail(s->env.host_arg, status, calls);
    for (size_t i = 0; i < n; i++) {
        if (status == KOLO_OK) status = take_back(s, &calls[i], &here[i]);
        free((void *)(uintptr_t)here[i].src);
        free(here[i].dst);
    }
    free(here);
    return status;
}

static kolo_status_t launch(void *state, const kolo_exec_call_t *calls, size_t n)
{
    const state_t *s = state;
    const kolo_cuda_device_t *device;
    bool pushed;
    for (size_t i = 0; i < n; i++) KOLO_TRY(kolo_exec_check(&calls[i], s->rank, s->nranks, s->env.device));
    KOLO_TRY(kolo_cuda_device(s->env.device, &device));
    KOLO_TRY(kolo_cuda_enter(device, &pushed));
    kolo_cu_result_t r = kolo_cuda_loaded()->stream_sync(calls->stream);
    kolo_cuda_leave(pushed);
    if (r) return kolo_cuda_fail(r, s->env.device, "wait for a stream");
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; calls[i].kind != KOLO_EXEC_COLL && end < n && calls[end].kind != KOLO_EXEC_COLL;) end++;
        KOLO_TRY(run(s, &calls[i], end - i));
    }
    return KOLO_OK;
}

static kolo_status_t poll(void *state)
{
    (void)state;
    return KOLO_OK;
}

static void cancel(void *state)
{
    (void)state; /* what runs, runs on the host, which ends it */
}

static void awaited(void *state, char *buf, size_t bytes)
{
    (void)state;
    if (bytes) buf[0] = '\0';
}

static size_t memory(const void *state)
{
    (void)state;
    return 0;
}

const kolo_exec_ops_t seam_exec_blocking = {.name = "blocking",
                                            .needs = "nothing",
                                            .by_host = true,
                                            .serves = serves,
                                            .open = open_state,
                                            .launch = launch,
                                            .poll = poll,
                                            .cancel = cancel,
                                            .awaited = awaited,
                                            .memory = memory,
                                            .close = free};
