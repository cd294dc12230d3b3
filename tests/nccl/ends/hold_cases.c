/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of what has failed stay on their stream until the program hears of it (KOLO_HOLD_MS): a program that asks
 * first whether a stream is through, and then for errors, must not take what is there for a result.
 */
#include "kit.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

typedef struct {
    const me_t *me;
    _Atomic bool through;
} waiter_t;

static void nap_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL);
}

static void *waits(void *arg)
{
    waiter_t *w = arg;
    sync_stream(w->me);
    atomic_store(&w->through, true);
    return NULL;
}

static void asks(const me_t *me, ncclComm_t comm, float *a)
{
    ncclResult_t now = ncclSuccess;
    (void)me;
    (void)a;
    while (OK(ncclCommGetAsyncError(comm, &now)) && now == ncclSuccess) nap_ms(1);
    FACT(now == ncclRemoteError);
}

static void calls(const me_t *me, ncclComm_t comm, float *a)
{
    while (ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, comm, me->stream) == ncclSuccess) nap_ms(20);
}

static void aborts(const me_t *me, ncclComm_t comm, float *a)
{
    (void)me;
    (void)a;
    OK(ncclCommAbort(comm));
}

/* The last rank aborts, and the first one's kernel waits for it. */
static void a_failed_stream_is_held_until_it_is_told(me_t *me)
{
    void (*const ways[])(const me_t *, ncclComm_t, float *) = {asks, calls, aborts};
    if (!on_gpu() || !getenv("KOLO_HOLD_MS")) return;
    for (int i = 0; i < (int)(sizeof ways / sizeof *ways); i++) {
        ncclComm_t child;
        if (!OK(ncclCommSplit(me->comm, 0, me->rank, &child, NULL))) return;
        works(me, child, me->n);
        meet(me);
        if (me->rank == 0) {
            float *a = floats(me, 10, 1);
            pthread_t thread;
            waiter_t w = {.me = me};
            OK(ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, child, me->stream));
            if (!FACT(pthread_create(&thread, NULL, waits, &w) == 0)) return;
            meet(me);
            nap_ms(450);
            FACT(!atomic_load(&w.through));
            ways[i](me, child, a);
            pthread_join(thread, NULL); /* far sooner than the limit of this test */
            if (ways[i] != aborts) OK(ncclCommAbort(child));
        } else {
            meet(me);
            OK(ncclCommAbort(child));
        }
        meet(me);
    }
    works(me, me->comm, me->n);
}

const case_t hold_cases[] = {
    {"a_failed_stream_is_held_until_it_is_told", a_failed_stream_is_held_until_it_is_told, EACH},
    {NULL, NULL, EACH},
};
