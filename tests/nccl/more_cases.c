/* SPDX-License-Identifier: Apache-2.0
 *
 * Windows, memory, configurations of calls, and what is not there.
 */
#include "kit.h"

#include <stdlib.h>
#include <string.h>

static void put_signal_and_wait(me_t *me)
{
    /* A window's memory is there as long as the communicator: it is not given back. */
    static _Atomic(void *) windows[RANKS_MAX];
    void *buf = NULL, *user = NULL;
    ncclWindow_t window = NULL;
    int next = (me->rank + 1) % me->n, before = (me->rank + me->n - 1) % me->n;
    OK(ncclMemAlloc(&buf, 8192));
    atomic_store(&windows[me->rank], buf);
    float *mine = buf, *a = floats(me, 10, (float)me->rank);
    put(me, mine, 25, -1);
    OK(ncclCommWindowRegister(me->comm, buf, 8192, &window, 1));
    if (on_gpu() && on_hosts() && !window) return; /* docs/nccl.md */
    if (!FACT(window != NULL)) return;
    OK(ncclWinGetUserPtr(me->comm, window, &user));
    FACT(user == buf);
    ncclWaitSignalDesc_t wait = {.opCnt = 2, .peer = before, .sigIdx = 0, .ctx = 0};
    OK(ncclGroupStart());
    OK(ncclPutSignal(a, 10, ncclFloat32, next, window, 80, 0, 0, 0, me->comm, me->stream));
    OK(ncclSignal(next, 0, 0, 0, me->comm, me->stream));
    OK(ncclWaitSignal(1, &wait, me->comm, me->stream));
    OK(ncclGroupEnd());
    EQ(at(me, mine, 25), before);
    IS(ncclInvalidArgument, ncclSignal(next, 0, 3, 0, me->comm, me->stream));
    IS(ncclInvalidArgument, ncclSignal(next, 0, 0, 1, me->comm, me->stream));
    IS(ncclInvalidArgument, ncclSignal(me->n, 0, 0, 0, me->comm, me->stream));
    IS(ncclInvalidArgument, ncclCommWindowDeregister(me->comm, (ncclWindow_t)(void *)a));
    meet(me);
    OK(ncclCommWindowDeregister(me->comm, window)); /* meets nobody */
    IS(ncclInvalidArgument, ncclPutSignal(a, 1, ncclFloat32, next, window, 0, 0, 0, 0, me->comm, me->stream));
    OK(ncclCommWindowDeregister(me->comm, NULL));
    works(me, me->comm, me->n);
}

/* Where ranks share no memory (KOLO_SHM_DISABLE) there is none on GPUs. */
static void a_window_that_cannot_be_leaves_the_communicator(me_t *me)
{
    static _Atomic(void *) kept[RANKS_MAX]; /* a window's memory is not given back */
    void *buf = NULL;
    ncclWindow_t window = NULL;
    works(me, me->comm, me->n);
    OK(ncclMemAlloc(&buf, 8192));
    atomic_store(&kept[me->rank], buf);
    for (int i = 0; i < 2; i++) {
        OK(ncclCommWindowRegister(me->comm, buf, 8192, &window, 1));
        works(me, me->comm, me->n);
        if (window) OK(ncclCommWindowDeregister(me->comm, window));
    }
    OK(ncclCommDestroy(me->comm));
    me->comm = NULL;
}

static void memory_is_made_and_registered(me_t *me)
{
    void *p = NULL, *handle = NULL;
    uint64_t bytes = 0;
    OK(ncclMemAlloc(&p, 100000));
    OK(ncclCommRegister(me->comm, p, 100000, &handle));
    OK(ncclAllReduce(p, p, 10, ncclInt32, ncclMax, me->comm, me->stream));
    sync_stream(me);
    if (handle) OK(ncclCommDeregister(me->comm, handle));
    OK(ncclMemFree(p));
    OK(ncclMemFree(NULL));
    IS(ncclInvalidArgument, ncclMemAlloc(NULL, 10));
    OK(ncclCommMemStats(me->comm, ncclStatGpuMemTotal, &bytes));
    FACT(bytes > 0);
    IS(ncclInvalidArgument, ncclCommMemStats(me->comm, (ncclCommMemStat_t)9, &bytes));
}

static void suspended_until_it_is_resumed(me_t *me)
{
    uint64_t is = 7;
    float *a = floats(me, 10, 1);
    works(me, me->comm, me->n);
    IS(ncclInvalidArgument, ncclCommSuspend(me->comm, 0));
    IS(ncclInvalidUsage, ncclCommResume(me->comm));
    OK(ncclCommSuspend(me->comm, NCCL_SUSPEND_MEM));
    OK(ncclCommMemStats(me->comm, ncclStatGpuMemSuspended, &is));
    EQ((double)is, 1);
    IS(ncclInvalidUsage, ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, me->comm, me->stream));
    OK(ncclCommResume(me->comm));
    works(me, me->comm, me->n);
}

static ncclCollConfig_t call_config(void)
{
    ncclCollConfig_t c;
    memset(&c, 0, sizeof c);
    c.head.size = sizeof c;
    c.head.magic = NCCL_API_MAGIC;
    c.head.version = 23203;
    c.minCTAs = c.maxCTAs = c.nvlsCTAs = c.cgaClusterSize = c.CTAPolicy = NCCL_CONFIG_UNDEF_INT;
    c.forceAlgSelection = 1;
    return c;
}

static void calls_with_a_configuration(me_t *me)
{
    ncclCollConfig_t c = call_config();
    int n = me->n, r = me->rank;
    float *a = floats(me, 4 * n, (float)r), *b = floats(me, 4 * n, -1);
    OK(ncclAllReduceConfig(a, b, 4, ncclFloat32, ncclMax, me->comm, me->stream, &c));
    EQ(at(me, b, 3), n - 1);
    OK(ncclReduceConfig(a, b, 4, ncclFloat32, ncclMin, 0, me->comm, me->stream, &c));
    OK(ncclBroadcastConfig(a, b, 4, ncclFloat32, 1, me->comm, me->stream, NULL));
    EQ(at(me, b, 0), 1);
    OK(ncclAllGatherConfig(a, b, 4, ncclFloat32, me->comm, me->stream, &c));
    EQ(at(me, b, 4 * n - 1), n - 1);
    OK(ncclReduceScatterConfig(a, b, 4, ncclFloat32, ncclMax, me->comm, me->stream, &c));
    OK(ncclAlltoAllConfig(a, b, 4, ncclFloat32, me->comm, me->stream, &c));
    EQ(at(me, b, 4), 1);
    OK(ncclGatherConfig(a, b, 4, ncclFloat32, 0, me->comm, me->stream, &c));
    OK(ncclScatterConfig(a, b, 4, ncclFloat32, 0, me->comm, me->stream, &c));
    EQ(at(me, b, 0), 0);
    c.head.magic = 0;
    IS(ncclInvalidArgument, ncclAllReduceConfig(a, b, 4, ncclFloat32, ncclMax, me->comm, me->stream, &c));
    c = call_config();
    c.minCTAs = 9;
    c.maxCTAs = 3;
    IS(ncclInvalidArgument, ncclAllReduceConfig(a, b, 4, ncclFloat32, ncclMax, me->comm, me->stream, &c));
    sync_stream(me);
}

/* Behind what the stream had, and before the call itself, in which this rank waits for the last one. */
static void an_event_of_a_call_is_recorded_before_it(me_t *me)
{
    ncclCollConfig_t c = call_config();
    float *a = floats(me, 4, 1);
    _Atomic int go = 0;
    if (!on_gpu()) return;
    works(me, me->comm, me->n); /* connected: no call waits */
    sync_stream(me);
    c.launchCompletionEvent = new_event(me);
    if (me->rank == me->n - 1) meet(me);
    hold_stream(me, &go);
    OK(ncclAllReduceConfig(a, a, 4, ncclFloat32, ncclSum, me->comm, me->stream, &c));
    FACT(!is_over(c.launchCompletionEvent));
    atomic_store(&go, 1);
    while (!is_over(c.launchCompletionEvent)) {
    }
    if (me->rank != me->n - 1) meet(me);
    sync_stream(me);
    EQ(at(me, a, 3), me->n);
}

static void the_device_API_says_that_it_is_not_there(me_t *me)
{
    ncclCommProperties_t p;
    void *q = me;
    memset(&p, 0x55, sizeof p);
    p.head = (kolo_nccl_head_t){sizeof p, NCCL_API_MAGIC, 23203};
    OK(ncclCommQueryProperties(me->comm, &p));
    EQ(p.rank, me->rank);
    EQ(p.nRanks, me->n);
    FACT(p.commHash != 0);
    FACT(!p.deviceApiSupport && !p.multimemSupport && !p.hostRmaSupport && !p.cftSupport);
    memset(&p, 0x55, sizeof p); /* of a client of 2.29: nothing behind its end is written */
    p.head = (kolo_nccl_head_t){offsetof(ncclCommProperties_t, hostRmaSupport), NCCL_API_MAGIC, 22907};
    OK(ncclCommQueryProperties(me->comm, &p));
    EQ((double)p.commHash, (double)UINT64_C(0x5555555555555555));
    IS(ncclInvalidUsage, ncclDevCommCreate(me->comm, NULL, NULL));
    FACT(strstr(ncclGetLastError(NULL), "no device API") != NULL);
    OK(ncclGetLsaMultimemDevicePointer(NULL, 0, &q));
    FACT(q == NULL);
    q = me;
    IS(ncclInvalidUsage, ncclGetPeerDevicePointer(NULL, 0, 0, &q));
    FACT(q == NULL);
    EQ(ncclTeamWorld(me->comm).nRanks, me->n);
    EQ(ncclTeamWorld(me->comm).rank, me->rank);
    EQ(ncclTeamLsa(me->comm).nRanks, 1);
}

static void parameters_can_be_read(me_t *me)
{
    ncclParamHandle_t handle = NULL;
    const char *text = NULL, **keys;
    int n = 0;
    (void)me;
    setenv("NCCL_NTHREADS", "256", 1);
    OK(ncclParamBind(&handle, "NCCL_NTHREADS"));
    int64_t value = 0;
    int8_t small = 0;
    OK(ncclParamGetI64(handle, &value));
    EQ((double)value, 256);
    IS(ncclInvalidArgument, ncclParamGetI8(handle, &small));
    OK(ncclParamGetStr(handle, &text));
    FACT(strcmp(text, "256") == 0);
    OK(ncclParamGetParameter("NCCL_NTHREADS", &text, &n));
    EQ(n, 3);
    IS(ncclInvalidArgument, ncclParamBind(&handle, "NCCL_NO_SUCH_THING"));
    OK(ncclParamGetAllParameterKeys(&keys, &n));
    FACT(n > 80 && strncmp(keys[0], "NCCL_", 5) == 0);
}

const case_t more_cases[] = {
    {"put_signal_and_wait", put_signal_and_wait, EACH},
    {"a_window_that_cannot_be_leaves_the_communicator", a_window_that_cannot_be_leaves_the_communicator, EACH},
    {"memory_is_made_and_registered", memory_is_made_and_registered, EACH},
    {"suspended_until_it_is_resumed", suspended_until_it_is_resumed, EACH},
    {"calls_with_a_configuration", calls_with_a_configuration, EACH},
    {"an_event_of_a_call_is_recorded_before_it", an_event_of_a_call_is_recorded_before_it, EACH},
    {"the_device_API_says_that_it_is_not_there", the_device_API_says_that_it_is_not_there, EACH},
    {"parameters_can_be_read", parameters_can_be_read, FIRST},
    {NULL, NULL, EACH},
};
