/* SPDX-License-Identifier: Apache-2.0
 *
 * What a ncclComm_t points to. Handles come from blocks that are never given back, and one that has ended goes to
 * the end of the free list: a stale handle, or any other pointer, is told from a live one without a crash.
 */
#include "nccl/layer.h"

#include "base/wait.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_HANDLES 64
#define QUARANTINE    64 /* handles kept unused before one is given out again */

typedef struct block {
    struct block *next;
    struct ncclComm handles[BLOCK_HANDLES];
} block_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(block_t *) blocks;
static ncclComm_t free_head, free_tail;
static size_t free_count;

void kolo_nccl_handles_hold(bool hold)
{
    (void)(hold ? pthread_mutex_lock(&lock) : pthread_mutex_unlock(&lock));
}

void kolo_nccl_handles_renew(void)
{
    for (block_t *b = atomic_load(&blocks); b; b = b->next)
        for (int i = 0; i < BLOCK_HANDLES; i++) pthread_mutex_init(&b->handles[i].lock, NULL);
}

static void push_free(ncclComm_t comm)
{
    comm->next_free = NULL;
    if (free_tail)
        free_tail->next_free = comm;
    else
        free_head = comm;
    free_tail = comm;
    free_count++;
}

static bool add_block(void)
{
    block_t *b = calloc(1, sizeof *b);
    if (!b) return false;
    for (int i = 0; i < BLOCK_HANDLES; i++) {
        pthread_mutex_init(&b->handles[i].lock, NULL);
        push_free(&b->handles[i]);
    }
    b->next = atomic_load(&blocks);
    atomic_store_explicit(&blocks, b, memory_order_release);
    return true;
}

ncclComm_t kolo_nccl_handle_new(const ncclConfig_t *config, int nranks, int rank, int device)
{
    pthread_mutex_lock(&lock);
    while (free_count <= QUARANTINE && add_block()) {
    }
    ncclComm_t comm = free_head;
    if (comm) {
        free_head = comm->next_free;
        if (!free_head) free_tail = NULL;
        free_count--;
    }
    pthread_mutex_unlock(&lock);
    if (!comm) {
        kolo_nccl_fail(ncclSystemError, "out of memory for a communicator's handle");
        return NULL;
    }
    atomic_store(&comm->kolo, NULL);
    comm->nranks = nranks;
    atomic_store(&comm->rank, rank);
    comm->device = device;
    comm->config = *config;
    comm->blocking = kolo_nccl_config_blocks(config);
    snprintf(comm->name, sizeof comm->name, "%s", config->commName ? config->commName : "");
    comm->config.commName = config->commName ? comm->name : NULL;
    atomic_store(&comm->finalized, false);
    atomic_store(&comm->stopped, false);
    atomic_store(&comm->suspended, 0);
    atomic_store(&comm->failed, ncclSuccess);
    atomic_store(&comm->reported, KOLO_OK);
    comm->child = NULL;
    comm->child_out = NULL;
    comm->windows = NULL;
    memset(&comm->profile, 0, sizeof comm->profile);
    atomic_store_explicit(&comm->life, KOLO_NCCL_LIVE, memory_order_release);
    return comm;
}

static void drop_windows(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    kolo_nccl_window_t *list = comm->windows;
    comm->windows = NULL;
    pthread_mutex_unlock(&comm->lock);
    for (kolo_nccl_window_t *w = list, *next; w; w = next) {
        next = w->next;
        free(w);
    }
}

void kolo_nccl_handle_drop(ncclComm_t comm, int life)
{
    drop_windows(comm);
    atomic_store_explicit(&comm->life, life, memory_order_release);
    pthread_mutex_lock(&lock);
    push_free(comm);
    pthread_mutex_unlock(&lock);
}

static bool is_handle(ncclComm_t comm)
{
    for (block_t *b = atomic_load_explicit(&blocks, memory_order_acquire); b; b = b->next) {
        uintptr_t at = (uintptr_t)comm - (uintptr_t)b->handles;
        if (at < sizeof b->handles) return at % sizeof b->handles[0] == 0;
    }
    return false;
}

int kolo_nccl_life(ncclComm_t comm)
{
    return comm && is_handle(comm) ? atomic_load_explicit(&comm->life, memory_order_acquire) : 0;
}

ncclResult_t kolo_nccl_check(ncclComm_t comm, const char *call)
{
    if (KOLO_LIKELY(comm && is_handle(comm) &&
                    atomic_load_explicit(&comm->life, memory_order_acquire) == KOLO_NCCL_LIVE))
        return ncclSuccess;
    if (!comm)
        return kolo_nccl_fail(
            ncclInvalidArgument,
            "%s: the communicator is NULL: it was never made, or this rank is in no color of an ncclCommSplit()",
            call);
    if (!is_handle(comm))
        return kolo_nccl_fail(ncclInvalidArgument,
                              "%s: %p is no communicator of this library (was it made by another libnccl.so?)",
                              call, (void *)comm);
    return kolo_nccl_fail(ncclInvalidArgument, "%s: communicator %p was %s before: it cannot be used again", call,
                          (void *)comm, kolo_nccl_life(comm) == KOLO_NCCL_ABORTED ? "aborted" : "destroyed");
}

ncclResult_t kolo_nccl_check_made(ncclComm_t comm, const char *call)
{
    ncclResult_t r = kolo_nccl_check(comm, call);
    if (r != ncclSuccess) return r;
    if (KOLO_LIKELY(atomic_load(&comm->kolo) != NULL)) return ncclSuccess;
    r = (ncclResult_t)atomic_load(&comm->failed);
    if (r != ncclSuccess)
        return kolo_nccl_fail(r, "%s: communicator %p was never made: its initialisation failed", call,
                              (void *)comm);
    return kolo_nccl_fail(ncclInvalidUsage, "%s: communicator %p is made when the open group ends: end it first",
                          call, (void *)comm);
}

static void describe(void *arg, char *buf, size_t bytes)
{
    const struct ncclComm *comm = arg;
    snprintf(buf, bytes, "the start of communicator %p rank %d", arg, comm->rank);
}

/* Waits until it no longer works in the background. *now is what it then is; an error: who waits was ended. */
static kolo_status_t await_rest(ncclComm_t comm, kolo_status_t *now)
{
    KOLO_NCCL_WHOLE;
    kolo_wait_t wait; /* what works in the background has its own deadline, and ends when it is aborted */
    kolo_status_t status;
    kolo_wait_init(&wait, NULL, 0, describe, comm, 1);
    for (;;) {
        status = kolo_comm_get_async_error(comm->kolo, now);
        if (status != KOLO_OK || *now != KOLO_IN_PROGRESS) break;
        status = kolo_wait_pause(&wait);
        if (status != KOLO_OK) break;
    }
    kolo_wait_end(&wait);
    return status;
}

ncclResult_t kolo_nccl_settle(ncclComm_t comm)
{
    kolo_status_t now = KOLO_OK, status = await_rest(comm, &now);
    if (status != KOLO_OK) return kolo_nccl_result(status);
    return kolo_nccl_result_text(now, now == KOLO_OK ? "" : kolo_get_last_error(comm->kolo));
}

ncclResult_t kolo_nccl_place(ncclComm_t comm, int *rank, int *nranks)
{
    if (atomic_load(&comm->rank) < 0) {
        int r = -1, n = 0;
        kolo_status_t now = KOLO_OK, status = await_rest(comm, &now);
        /* one that has failed since it was made still has a place: a shrink needs it */
        if (status == KOLO_OK) status = kolo_comm_user_rank(comm->kolo, &r);
        if (status == KOLO_OK) status = kolo_comm_count(comm->kolo, &n);
        if (status != KOLO_OK) return kolo_nccl_result(status);
        if (n < 1) return kolo_nccl_result_text(now, kolo_get_last_error(comm->kolo)); /* it was never made */
        comm->nranks = n; /* before the rank: whoever finds that has both */
        atomic_store(&comm->rank, r);
    }
    *rank = atomic_load(&comm->rank);
    *nranks = comm->nranks;
    return ncclSuccess;
}
