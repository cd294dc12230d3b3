/* SPDX-License-Identifier: Apache-2.0
 *
 * What a process has left of communicators that it made and ended: descriptors, threads, memory.
 */
#include "kit.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct {
    long fds, threads, kib;
} holds_t;

static holds_t holds(void)
{
    holds_t h = {0, 0, 0};
    char line[256];
    DIR *d = opendir("/proc/self/fd");
    for (; d && readdir(d); h.fds++) continue;
    if (d) closedir(d);
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f)) {
        (void)sscanf(line, "Threads: %ld", &h.threads);
        (void)sscanf(line, "VmRSS: %ld", &h.kib);
    }
    if (f) fclose(f);
    return h;
}

static void make_and_end(me_t *me, int i, float *a)
{
    ncclComm_t comm;
    if (i % 4 == 0) {
        ncclUniqueId id = shared_id(me);
        if (!OK(ncclCommInitRank(&comm, me->n, id, me->rank))) return;
    } else if (!OK(ncclCommSplit(me->comm, 0, me->rank, &comm, NULL))) {
        return;
    }
    if (i % 8 < 2) { /* with one buffer: those of works() stay */
        OK(ncclAllReduce(a, a, 10, ncclFloat32, ncclMax, comm, me->stream));
        sync_stream(me);
        EQ(at(me, a, 9), 3);
    }
    meet(me); /* an abort ends what others are in */
    OK(i % 16 == 5 ? ncclCommAbort(comm) : ncclCommDestroy(comm));
    meet(me);
}

/* A thousand with CONFORM_MANY. What lingers for late ranks goes soon after the last has left. */
static void communicators_in_turn_leave_nothing(me_t *me)
{
    const char *many = getenv("CONFORM_MANY");
    int count = many ? atoi(many) : on_gpu() ? 20 : 120;
    float *a = floats(me, 10, 3);
    holds_t before, after;
    for (int i = 0; i < 32; i++) make_and_end(me, i, a);
    before = holds();
    for (int i = 0; i < count; i++) make_and_end(me, i, a);
    for (int tries = 0; tries < 500; tries++) { /* at most 5 s */
        after = holds();
        if (after.fds <= before.fds && after.threads <= before.threads) break;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    if (me->rank == 0)
        printf("%d communicators: %ld to %ld descriptors, %ld to %ld threads, %ld to %ld KiB\n", count, before.fds,
               after.fds, before.threads, after.threads, before.kib, after.kib);
    FACT(after.fds <= before.fds);
    FACT(after.threads <= before.threads);
#ifndef KOLO_SANITIZED /* a sanitizer keeps what is freed for a while */
    FACT(after.kib - before.kib < 4096 + 4 * count);
#endif
    meet(me);
}

const case_t many_cases[] = {
    {"communicators_in_turn_leave_nothing", communicators_in_turn_leave_nothing, EACH},
    {NULL, NULL, EACH},
};
