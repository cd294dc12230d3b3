/* SPDX-License-Identifier: Apache-2.0
 *
 * Random calls of one thread on communicators of one rank, some of which have ended or were never made: groups that
 * are open, jobs and operations in them, operators, windows, registrations. Whatever each returns, nothing crashes
 * or hangs, and a new communicator works. RANDOM_SEED and RANDOM_CALLS for more.
 */
#include "kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 12

static uint64_t state;

static unsigned some(unsigned n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(state >> 33) % n;
}

typedef struct {
    const me_t *me;
    ncclComm_t comm[SLOTS]; /* live, ended, or NULL */
    ncclComm_t born[SLOTS]; /* where calls write what they make; kept until their group has ended */
    ncclRedOp_t op[SLOTS];
    ncclWindow_t window[SLOTS];
    void *handle[SLOTS];
    float *a, *b;
    int depth, good; /* good: calls that succeeded */
} play_t;

static ncclConfig_t some_config(void)
{
    ncclConfig_t c = new_config();
    if (some(3) == 0) c.blocking = (int)some(2);
    if (some(6) == 0) c.commName = "random";
    if (some(8) == 0) c.splitShare = (int)some(3); /* 2: no value of it */
    if (some(30) == 0) c.head.magic = 0;
    return c;
}

/* Moves what was made into its place, when nobody writes it any more. */
static void take(play_t *p)
{
    for (int i = 0; i < SLOTS && p->depth == 0; i++) {
        if (!p->born[i]) continue;
        if (p->comm[i]) (void)ncclCommAbort(p->comm[i]); /* nothing is left behind */
        p->comm[i] = p->born[i];
        p->born[i] = NULL;
    }
}

static void make(play_t *p, int to, ncclComm_t c)
{
    static const int excluded[] = {0, 1, -1};
    ncclConfig_t config = some_config();
    ncclUniqueId id;
    switch (some(6)) {
    case 0:
    case 1:
        if (ncclGetUniqueId(&id) == ncclSuccess)
            p->good += ncclSuccess == ncclCommInitRankConfig(&p->born[to], 1, id, 0, &config);
        break;
    case 2:
        if (p->depth == 0) p->good += ncclSuccess == ncclCommInitAll(&p->born[to], 1, NULL);
        break;
    case 3:
    case 4:
        p->good += ncclSuccess == ncclCommSplit(c, some(4) ? 0 : NCCL_SPLIT_NOCOLOR, (int)some(3), &p->born[to],
                                                some(2) ? &config : NULL);
        break;
    case 5:
        p->good += ncclSuccess ==
                   ncclCommShrink(c, (int *)(uintptr_t)&excluded[some(3)], 1, &p->born[to], NULL, (int)some(3));
        break;
    }
}

static void end(play_t *p, int from)
{
    ncclComm_t c = p->comm[from];
    switch (some(6)) {
    case 0:
    case 1:
        p->good += ncclSuccess == ncclCommDestroy(c);
        break;
    case 2:
        p->good += ncclSuccess == ncclCommAbort(c);
        break;
    case 3:
        p->good += ncclSuccess == ncclCommFinalize(c);
        break;
    case 4:
        p->good += ncclSuccess == ncclCommRevoke(c, (int)some(2));
        break;
    case 5:
        p->good += ncclSuccess == ncclCommSuspend(c, 1);
        break;
    }
}

static void operate(play_t *p, ncclComm_t c)
{
    size_t n = some(9) ? some(100) : SIZE_MAX / 2;
    ncclDataType_t type = (ncclDataType_t)(some(9) ? ncclFloat32 : (int)some(14) - 1);
    ncclRedOp_t op = some(2) ? p->op[some(SLOTS)] : (ncclRedOp_t)some(7);
    int root = some(9) ? 0 : (int)some(4) - 1;
    switch (some(9)) {
    case 0:
    case 1:
        p->good += ncclSuccess == ncclAllReduce(p->a, p->b, n, type, op, c, p->me->stream);
        break;
    case 2:
        p->good += ncclSuccess == ncclBroadcast(p->a, p->b, n, type, root, c, p->me->stream);
        break;
    case 3:
        p->good += ncclSuccess == ncclReduceScatter(p->a, p->b, n, type, op, c, p->me->stream);
        break;
    case 4: /* outside of a group it has no partner, and is refused */
        p->good += ncclSuccess == ncclSend(p->a, n, type, root, c, p->me->stream);
        if (some(4)) p->good += ncclSuccess == ncclRecv(p->b, n, type, root, c, p->me->stream);
        break;
    case 5:
        p->good += ncclSuccess == ncclAlltoAll(p->a, some(2) ? p->a : p->b, n, type, c, p->me->stream);
        break;
    case 6:
        p->good += ncclSuccess == ncclGather(p->a, p->b, n, type, root, c, p->me->stream);
        break;
    case 7:
        p->good += ncclSuccess ==
                   ncclPutSignal(p->a, n % 100, type, root, p->window[some(SLOTS)], 0, 0, 0, 0, c, p->me->stream);
        break;
    case 8:
        p->good += ncclSuccess == ncclReduce(p->a, some(20) ? p->b : NULL, n, type, op, root, c, p->me->stream);
        break;
    }
}

static void keep(play_t *p, ncclComm_t c)
{
    static float two = 2;
    unsigned i = some(SLOTS);
    switch (some(7)) {
    case 0:
        p->good +=
            ncclSuccess == ncclRedOpCreatePreMulSum(&p->op[i], &two, ncclFloat32, ncclScalarHostImmediate, c);
        break;
    case 1:
        p->good += ncclSuccess == ncclRedOpDestroy(p->op[i], c);
        break;
    case 2:
        p->good += ncclSuccess == ncclCommWindowRegister(c, p->b, 400, &p->window[i], 0);
        break;
    case 3:
        p->good += ncclSuccess == ncclCommWindowDeregister(c, p->window[i]);
        break;
    case 4:
        p->good += ncclSuccess == ncclCommRegister(c, p->a, 400, &p->handle[i]);
        break;
    case 5:
        p->good += ncclSuccess == ncclCommDeregister(c, p->handle[i]);
        break;
    case 6:
        p->good += ncclSuccess == ncclCommResume(c);
        break;
    }
}

static void ask(ncclComm_t c)
{
    ncclResult_t now;
    uint64_t value;
    int n;
    (void)ncclCommGetAsyncError(c, &now);
    (void)ncclCommCount(c, &n);
    (void)ncclCommUserRank(c, &n);
    (void)ncclCommCuDevice(c, &n);
    (void)ncclCommMemStats(c, (ncclCommMemStat_t)some(5), &value);
    FACT(ncclGetLastError(c) != NULL);
}

static void group(play_t *p)
{
    ncclSimInfo_t info = {.head = {sizeof info, NCCL_SIM_INFO_MAGIC, 23007}};
    if (p->depth < 3 && some(2)) {
        p->depth += ncclGroupStart() == ncclSuccess;
    } else if (p->depth > 0) {
        p->depth--;
        (void)(some(9) ? ncclGroupEnd() : ncclGroupSimulateEnd(&info));
    } else {
        IS(ncclInvalidUsage, ncclGroupEnd());
    }
}

static void step(play_t *p)
{
    int from = (int)some(SLOTS), to = (int)some(SLOTS);
    ncclComm_t c = p->comm[from];
    take(p);
    switch (some(10)) {
    case 0:
    case 1:
        if (!p->born[to]) make(p, to, c);
        break;
    case 2:
        end(p, from);
        break;
    case 3:
    case 4:
        group(p);
        break;
    case 5:
        keep(p, c);
        break;
    case 6:
        ask(c);
        break;
    default:
        operate(p, c);
        break;
    }
}

static void random_calls_of_one_thread(me_t *me)
{
    const char *seed = getenv("RANDOM_SEED"), *calls = getenv("RANDOM_CALLS");
    play_t p = {.me = me, .a = floats(me, 256, 1), .b = floats(me, 256, 0)};
    ncclComm_t last = NULL;
    me_t alone = *me;
    alone.n = 1;
    state = seed ? strtoull(seed, NULL, 0) : 39;
    for (int i = 0, n = calls ? atoi(calls) : on_gpu() ? 600 : 4000; i < n; i++) step(&p);
    for (; p.depth > 0; p.depth--) (void)ncclGroupEnd();
    take(&p);
    for (int i = 0; i < SLOTS; i++)
        if (p.comm[i]) (void)ncclCommAbort(p.comm[i]); /* most have ended */
    printf("%d calls succeeded\n", p.good);
    OK(ncclCommInitAll(&last, 1, NULL));
    alone.stream = new_stream(device_of(0));
    works(&alone, last, 1);
    OK(ncclCommDestroy(last));
}

const case_t random_cases[] = {
    {"random_calls_of_one_thread", random_calls_of_one_thread, FIRST},
    {NULL, NULL, EACH},
};
