/* SPDX-License-Identifier: Apache-2.0
 *
 * What goes wrong in a random program: one rank does not come, comes with something else, aborts, destroys,
 * revokes, or is aborted by another thread in its call. Whatever each is told, all calls end, and after the
 * communicator's end, in any way, the others work.
 */
#include "ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct {
    const me_t *me;
    ncclComm_t comm;
    unsigned us;
} aborter_t;

static void *aborts(void *arg)
{
    const aborter_t *a = arg;
    use_device(device_of(a->me->rank));
    nanosleep(&(struct timespec){.tv_nsec = (long)a->us * 1000}, NULL);
    OK(ncclCommAbort(a->comm));
    return NULL;
}

static ncclResult_t operation(play_t *p, const room_t *room, int kind, size_t count)
{
    ncclComm_t c = room->comm, child = NULL;
    cudaStream_t s = p->me->stream;
    ncclResult_t r;
    int last = room->n - 1;
    switch (kind) {
    case 0:
        return ncclAllReduce(p->in, p->out, count, ncclFloat32, ncclSum, c, s);
    case 1:
        return ncclAllGather(p->in, p->out, count, ncclFloat32, c, s);
    case 2:
        return ncclBroadcast(p->in, p->out, count, ncclFloat32, last, c, s);
    case 3:
        return ncclAlltoAll(p->in, p->out, count, ncclFloat32, c, s);
    case 4:
        OK(ncclGroupStart());
        (void)ncclAllReduce(p->in, p->out, count, ncclFloat32, ncclSum, c, s);
        (void)ncclReduceScatter(p->in, p->out, count, ncclFloat32, ncclMax, c, s);
        return ncclGroupEnd();
    case 5:
        OK(ncclGroupStart());
        (void)ncclSend(p->in, count, ncclFloat32, (room->at + 1) % room->n, c, s);
        (void)ncclRecv(p->out, count, ncclFloat32, (room->at + last) % room->n, c, s);
        return ncclGroupEnd();
    default: /* it blocks: the rooms that do not are left out */
        r = ncclCommSplit(c, 0, room->at, &child, NULL);
        if (child) OK(ncclCommAbort(child));
        return r;
    }
}

/* What an operation comes to on the device, too. Nothing waits longer than KOLO_NCCL_WAIT_MS allows. */
static ncclResult_t outcome(const room_t *room, ncclResult_t r)
{
    ncclResult_t now = ncclSuccess;
    if (r != ncclSuccess && r != ncclInProgress) return r;
    for (double end = now_s() + (on_gpu() ? 1 : 0); (now == ncclSuccess || now == ncclInProgress) && now_s() < end;)
        if (ncclCommGetAsyncError(room->comm, &now) != ncclSuccess) break; /* another thread has ended it */
    return now;
}

static bool may_be(ncclResult_t r)
{
    return r == ncclSuccess || r == ncclInProgress || r == ncclRemoteError || r == ncclInvalidUsage ||
           r == ncclInvalidArgument || r == ncclTimeout;
}

static void end_somehow(play_t *p, room_t *room, bool ended)
{
    ncclResult_t r = ncclSuccess;
    int way = (int)alone(p, 4);
    if (!ended && way == 1) {
        r = ncclCommDestroy(room->comm);
    } else if (!ended && way == 2) {
        r = ncclCommFinalize(room->comm);
        if (r == ncclInProgress) r = outcome(room, r);
        (void)ncclCommDestroy(room->comm);
    } else if (!ended) {
        OK(ncclCommAbort(room->comm));
    }
    if (!FACT(may_be(r))) printf("step %d: ended by way %d: %d\n", p->step, way, r);
}

void spoil(play_t *p)
{
    enum { MISSES, OTHER_COUNT, OTHER_CALL, ABORTS, DESTROYS, REVOKES, THREAD_ABORTS, WAYS };
    room_t *room = some_room(p, 2);
    int way = (int)for_all(p, WAYS), kind = (int)for_all(p, room->blocks ? 7 : 6),
        who = (int)for_all(p, (unsigned)room->n);
    size_t count = 1 + for_all(p, 300);
    bool ended = false;
    pthread_t thread;
    double began = now_s();
    if (room == &p->rooms[0]) return;
    meet(p->me); /* what went before is complete everywhere */
    if (room->at >= 0) {
        ncclResult_t r = ncclSuccess;
        aborter_t a = {.me = p->me, .comm = room->comm, .us = alone(p, 3000)};
        if (room->at != who || way == OTHER_COUNT || way == OTHER_CALL || way == THREAD_ABORTS) {
            bool differs = room->at == who, threaded = differs && way == THREAD_ABORTS;
            if (threaded && pthread_create(&thread, NULL, aborts, &a)) return;
            r = operation(p, room, differs && way == OTHER_CALL ? (kind + 1) % 6 : kind,
                          differs && way == OTHER_COUNT ? count + 7 : count);
            if (threaded) pthread_join(thread, NULL);
            ended = threaded;
            if (!threaded) r = outcome(room, r);
        } else if (way == ABORTS) {
            OK(ncclCommAbort(room->comm));
            ended = true;
        } else if (way == DESTROYS) {
            r = ncclCommDestroy(room->comm);
            ended = true;
        } else if (way == REVOKES) {
            OK(ncclCommRevoke(room->comm, NCCL_REVOKE_DEFAULT));
        }
        if (!ended && !FACT(may_be(r)))
            printf("step %d: way %d, kind %d, who %d of %d: %d\n", p->step, way, kind, who, room->n, r);
        end_somehow(p, room, ended);
        sync_stream(p->me);
        if (!FACT(now_s() - began < 20))
            printf("step %d: way %d, kind %d, who %d of %d: %.1f s\n", p->step, way, kind, who, room->n,
                   now_s() - began);
    }
    memset(room, 0, sizeof *room);
    meet(p->me); /* the arenas are used again */
}
