/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread that is cancelled (pthread_cancel()) while it is in a call: the call goes on, an abort by another thread
 * ends it, and then the thread ends.
 */
#include "kit.h"

#include <pthread.h>
#include <time.h>

typedef struct {
    const me_t *me;
    ncclComm_t comm;
    _Atomic bool inside;
    void (*call)(const me_t *me, ncclComm_t comm);
} caller_t;

static void *calls(void *arg)
{
    caller_t *c = arg;
    use_device(device_of(c->me->rank));
    atomic_store(&c->inside, true);
    c->call(c->me, c->comm);
    for (;;) pthread_testcancel(); /* it can be cancelled again */
    return NULL;
}

static void nap_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL);
}

static void reduces(const me_t *me, ncclComm_t comm)
{
    float *a = floats(me, 10, 1);
    (void)ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, comm, me->stream);
}

static void reduces_in_a_group(const me_t *me, ncclComm_t comm)
{
    OK(ncclGroupStart());
    reduces(me, comm);
    (void)ncclGroupEnd();
}

static void splits(const me_t *me, ncclComm_t comm)
{
    ncclComm_t child;
    (void)ncclCommSplit(comm, 0, me->rank, &child, NULL);
}

static void finalizes(const me_t *me, ncclComm_t comm)
{
    reduces(me, comm); /* on a GPU it waits on the stream */
    (void)ncclCommFinalize(comm);
}

static void a_thread_is_cancelled_in_a_call(me_t *me)
{
    void (*const all[])(const me_t *, ncclComm_t) = {reduces, reduces_in_a_group, splits, finalizes};
    for (int i = 0; i < (int)(sizeof all / sizeof *all); i++) {
        ncclComm_t child;
        if (!OK(ncclCommSplit(me->comm, 0, me->rank, &child, NULL))) return;
        works(me, child, me->n);
        if (me->rank == 0) { /* the others never call it */
            pthread_t thread;
            void *end = NULL;
            caller_t c = {.me = me, .comm = child, .call = all[i]};
            if (!FACT(pthread_create(&thread, NULL, calls, &c) == 0)) return;
            while (!atomic_load(&c.inside)) nap_ms(1);
            nap_ms(50);
            FACT(pthread_cancel(thread) == 0);
            nap_ms(20);
            OK(ncclCommAbort(child));
            pthread_join(thread, &end);
            FACT(end == PTHREAD_CANCELED);
        }
        meet(me);
        if (me->rank != 0) OK(ncclCommAbort(child));
    }
    works(me, me->comm, me->n);
}

const case_t cancel_cases[] = {
    {"a_thread_is_cancelled_in_a_call", a_thread_is_cancelled_in_a_call, EACH},
    {NULL, NULL, EACH},
};
