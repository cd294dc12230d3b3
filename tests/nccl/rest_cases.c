/* SPDX-License-Identifier: Apache-2.0
 *
 * What programs seldom call: several ids, the rest of the device API, parameters of each width.
 */
#include "kit.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A ring and a collective, which each rank has at another place among them; a message to itself around one. */
static void messages_and_collectives_of_a_group_have_no_order(me_t *me)
{
    int next = (me->rank + 1) % me->n, before = (me->rank + me->n - 1) % me->n;
    float *a = floats(me, 1000, (float)me->rank), *b = floats(me, 1000, -1), *sum = floats(me, 10, 1);
    for (int round = 0; round < 6; round++) {
        put(me, a, 999, (float)(me->rank + 10 * round));
        for (int i = 0; i < 10; i++) put(me, sum, i, 1);
        OK(ncclGroupStart());
        for (int i = 0; i < 3; i++) {
            int what = (i + round + me->rank) % 3;
            if (what == 0) OK(ncclSend(a, 1000, ncclFloat32, next, me->comm, me->stream));
            if (what == 1) OK(ncclAllReduce(sum, sum, 10, ncclFloat32, ncclSum, me->comm, me->stream));
            if (what == 2) OK(ncclRecv(b, 1000, ncclFloat32, before, me->comm, me->stream));
        }
        OK(ncclGroupEnd());
        EQ(at(me, b, 999), before + 10 * round);
        EQ(at(me, sum, 9), me->n);
    }
    OK(ncclGroupStart());
    OK(ncclSend(a, 1000, ncclFloat32, me->rank, me->comm, me->stream));
    OK(ncclBroadcast(sum, sum, 10, ncclFloat32, 0, me->comm, me->stream));
    OK(ncclRecv(b, 1000, ncclFloat32, me->rank, me->comm, me->stream));
    OK(ncclGroupEnd());
    EQ(at(me, b, 5), me->rank);
    for (int half = 0; half < 3; half++) { /* what has no other half is refused, and nothing of its group runs */
        OK(ncclGroupStart());
        OK(ncclAllReduce(sum, sum, 10, ncclFloat32, ncclSum, me->comm, me->stream));
        if (half != 1) OK(ncclSend(a, 1000, ncclFloat32, me->rank, me->comm, me->stream));
        if (half != 0) OK(ncclRecv(b, half == 2 ? 999 : 1000, ncclFloat32, me->rank, me->comm, me->stream));
        IS(ncclInvalidUsage, ncclGroupEnd());
        works(me, me->comm, me->n);
    }
}

static void ranks_meet_by_several_ids(me_t *me)
{
    ncclUniqueId ids[2];
    ncclComm_t comm = NULL;
    for (int i = 0; i < 2; i++) ids[i] = shared_id(me);
    OK(ncclCommInitRankScalable(&comm, me->n, me->rank, 2, ids, NULL));
    works(me, comm, me->n);
    OK(ncclCommDestroy(comm));
    IS(ncclInvalidArgument, ncclCommInitRankScalable(&comm, me->n, me->rank, 0, ids, NULL));
    FACT(comm == NULL);
    IS(ncclInvalidArgument, ncclCommInitRankScalable(&comm, me->n, me->rank, me->n + 1, ids, NULL));
    IS(ncclInvalidArgument, ncclCommInitRankScalable(&comm, me->n, me->rank, 1, NULL, NULL));
}

static void teams_of_ranks_that_kernels_do_not_reach(me_t *me)
{
    ncclTeam_t world = ncclTeamWorld(me->comm), rail = ncclTeamRail(me->comm), alone = ncclTeamLsa(me->comm);
    EQ(rail.nRanks, me->n);
    EQ(rail.rank, me->rank);
    EQ(ncclTeamCft(me->comm, 0).nRanks, 1);
    EQ(ncclTeamCftMultimem(me->comm).nRanks, 1);
    EQ(ncclTeamRankToWorld(me->comm, alone, 0), me->rank);
    EQ(ncclTeamRankToWorld(me->comm, world, me->n - 1), me->n - 1);
    EQ(ncclTeamRankToLsa(me->comm, alone, 0), 0);
    EQ(ncclTeamWorld(NULL).nRanks, 0);
}

static void each_address_for_kernels_is_none(me_t *me)
{
    void *p = me;
    uint32_t id = 7;
    size_t at = 7;
    ncclTeam_t team = ncclTeamLsa(me->comm);
    OK(ncclGetMultimemDevicePointer(NULL, 0, NULL, &p));
    FACT(p == NULL);
    p = me;
    IS(ncclInvalidUsage, ncclGetLsaDevicePointer(NULL, 0, 0, &p));
    FACT(p == NULL);
    IS(ncclInvalidUsage, ncclGetMultimemDeviceLeInfo(NULL, 0, &id, &at));
    IS(ncclInvalidUsage, ncclGetCftDeviceLeInfo(NULL, 0, 0, team, &id, &at));
    IS(ncclInvalidUsage, ncclGetPeerDeviceLeInfo(NULL, 0, 0, &id, &at));
    IS(ncclInvalidArgument, ncclGetPeerDeviceLeInfo(NULL, 0, 0, NULL, &at));
    IS(ncclInvalidArgument, ncclGetLsaMultimemDevicePointer(NULL, 0, NULL));
    IS(ncclInvalidUsage, ncclDevCommDestroy(me->comm, NULL));
    IS(ncclInvalidUsage, ncclLsaBarrierCreateRequirement(team, 1, NULL, NULL));
    IS(ncclInvalidUsage, ncclGinBarrierCreateRequirement(me->comm, team, 1, NULL, NULL));
    IS(ncclInvalidUsage, ncclCftBarrierCreateRequirement(team, 1, NULL, NULL));
    IS(ncclInvalidUsage, ncclGinOutboxCreateRequirement(1, 10, NULL, NULL));
    IS(ncclInvalidUsage, ncclGinInboxA2ACreateRequirement(team, 1, 10, NULL, NULL));
    IS(ncclInvalidUsage, ncclLLA2ACreateRequirement(1, 1, NULL, NULL));
    EQ(ncclLLA2ACalcSlots(4, 16), 8);
    EQ(ncclLLA2ACalcSlots(-1, 16), 0);
}

#define READ(suffix, type, text, want)                                                                             \
    do {                                                                                                           \
        type value = 0;                                                                                            \
        setenv("NCCL_NTHREADS", text, 1);                                                                          \
        OK(ncclParamGet##suffix(handle, &value));                                                                  \
        FACT(value == (type)(want));                                                                               \
    } while (0)

static void a_parameter_of_each_width(me_t *me)
{
    ncclParamHandle_t handle = NULL;
    char text[8];
    int bytes = 0;
    uint8_t narrow = 0;
    uint64_t wide = 0;
    int64_t whole = 0;
    (void)me;
    OK(ncclParamBind(&handle, "NCCL_NTHREADS"));
    READ(I8, int8_t, "-128", -128);
    READ(I16, int16_t, "-32768", -32768);
    READ(I32, int32_t, "-2147483648", INT32_MIN);
    READ(I64, int64_t, "-9223372036854775808", INT64_MIN);
    READ(U8, uint8_t, "255", 255);
    READ(U16, uint16_t, "65535", 65535);
    READ(U32, uint32_t, "4294967295", 4294967295U);
    READ(U64, uint64_t, "18446744073709551615", UINT64_MAX);
    READ(U64, uint64_t, "0x8000000000000000", UINT64_C(1) << 63);
    IS(ncclInvalidArgument, ncclParamGetU8(handle, &narrow));
    setenv("NCCL_NTHREADS", "-1", 1);
    IS(ncclInvalidArgument, ncclParamGetU64(handle, &wide));
    setenv("NCCL_NTHREADS", "18446744073709551616", 1);
    IS(ncclInvalidArgument, ncclParamGetU64(handle, &wide));
    setenv("NCCL_NTHREADS", "9223372036854775808", 1);
    IS(ncclInvalidArgument, ncclParamGetI64(handle, &whole));
    setenv("NCCL_NTHREADS", "-9223372036854775809", 1);
    IS(ncclInvalidArgument, ncclParamGetI64(handle, &whole));
    setenv("NCCL_NTHREADS", "many", 1);
    IS(ncclInvalidArgument, ncclParamGetU64(handle, &wide));
    OK(ncclParamGet(handle, text, sizeof text, &bytes));
    EQ(bytes, 5);
    FACT(strcmp(text, "many") == 0);
    IS(ncclInvalidArgument, ncclParamGet(handle, text, 4, &bytes));
    IS(ncclInvalidArgument, ncclParamGetI32((ncclParamHandle_t)(void *)text, NULL));
    unsetenv("NCCL_NTHREADS");
}

static void all_parameters_are_printed(me_t *me)
{
    char seen[64] = "";
    FILE *f = tmpfile();
    int out = dup(STDOUT_FILENO);
    (void)me;
    if (!FACT(f != NULL && out >= 0)) return;
    fflush(stdout);
    dup2(fileno(f), STDOUT_FILENO);
    ncclParamDumpAll();
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    close(out);
    rewind(f);
    FACT(fgets(seen, sizeof seen, f) && strstr(seen, "Kolo"));
    fclose(f);
    ncclResetDebugInit();
}

static void encryption_is_the_job_s(me_t *me)
{
    ncclEncryptionConfig_t c = {.head = {sizeof c, NCCL_API_MAGIC, 23203}, .mode = 0};
    (void)me;
    OK(ncclSetEncryption(&c));
    c.mode = 1; /* a key of the client's: the job's secret encrypts, if all ranks are told to */
    IS(ncclInvalidUsage, ncclSetEncryption(&c));
    FACT(strstr(ncclGetLastError(NULL), "KOLO_TCP_SECURITY=encrypt") != NULL);
    c.mode = 2;
    IS(ncclInvalidArgument, ncclSetEncryption(&c));
    c.head.magic = 0;
    IS(ncclInvalidArgument, ncclSetEncryption(&c));
    IS(ncclInvalidArgument, ncclSetEncryption(NULL));
}

/* As FSDP's coalesced calls are: each has its operator, which it destroys at once. */
static void a_group_has_any_number_of_operators(me_t *me)
{
    enum { CALLS = 150, EACH_HAS = 8 };
    float half = 0.5f, *x = floats(me, EACH_HAS * me->n, 1), *y = floats(me, CALLS * EACH_HAS, 0);
    ncclRedOp_t op;
    OK(ncclGroupStart());
    for (int i = 0; i < CALLS; i++) {
        OK(ncclRedOpCreatePreMulSum(&op, &half, ncclFloat32, ncclScalarHostImmediate, me->comm));
        OK(ncclReduceScatter(x, y + i * EACH_HAS, EACH_HAS, ncclFloat32, op, me->comm, me->stream));
        OK(ncclRedOpDestroy(op, me->comm));
    }
    OK(ncclGroupEnd());
    sync_stream(me);
    for (int i = 0; i < CALLS * EACH_HAS; i += 7) EQ(at(me, y, i), me->n * 0.5);
}

static void numbers_of_operators_are_each_ranks_own(me_t *me)
{
    float two = 2, *x = floats(me, 64, 1), *y = floats(me, 64, 0);
    ncclRedOp_t op[RANKS_MAX];
    for (int i = 0; i <= me->rank; i++)
        OK(ncclRedOpCreatePreMulSum(&op[i], &two, ncclFloat32, ncclScalarHostImmediate, me->comm));
    OK(ncclAllReduce(x, y, 64, ncclFloat32, op[me->rank], me->comm, me->stream));
    sync_stream(me);
    EQ(at(me, y, 63), 2 * me->n);
    for (int i = 0; i <= me->rank; i++) OK(ncclRedOpDestroy(op[i], me->comm));
}

/* One thread has several ranks, as nccl-tests with -g: it cannot wait for one after the other. */
static void windows_in_a_group_of_one_thread(me_t *me)
{
    enum { TWO = 2 };
    ncclUniqueId id;
    ncclComm_t c[TWO] = {NULL};
    ncclWindow_t w[TWO] = {NULL};
    void *p[TWO];
    me_t each[TWO];
    OK(ncclGetUniqueId(&id));
    OK(ncclGroupStart());
    for (int r = 0; r < TWO; r++) {
        use_device(device_of(r));
        each[r] = (me_t){.rank = r, .n = TWO, .stream = new_stream(device_of(r))};
        OK(ncclMemAlloc(&p[r], 4096));
        OK(ncclCommInitRank(&c[r], TWO, id, r));
    }
    OK(ncclGroupEnd());
    OK(ncclGroupStart());
    for (int r = 0; r < TWO; r++) OK(ncclCommWindowRegister(c[r], p[r], 4096, &w[r], 0));
    OK(ncclGroupEnd());
    if (!getenv("KOLO_GPU_EXECUTOR") && FACT(w[0] && w[1])) { /* staged, there are none */
        ncclWaitSignalDesc_t wait = {.opCnt = 1, .peer = 0};
        OK(ncclPutSignal(floats(&each[0], 8, 5), 8, ncclFloat32, 1, w[0], 0, 0, 0, 0, c[0], each[0].stream));
        OK(ncclWaitSignal(1, &wait, c[1], each[1].stream));
        sync_stream(&each[1]);
        EQ(at(&each[1], p[1], 7), 5);
    }
    OK(ncclGroupStart());
    IS(ncclInvalidArgument, ncclCommWindowRegister(c[0], NULL, 4096, &w[0], 0));
    OK(ncclCommWindowRegister(c[1], p[1], 4096, &w[1], 0));
    IS(ncclInvalidArgument, ncclGroupEnd()); /* nothing of it was done */
    FACT(!w[1]);
    OK(ncclGroupStart());
    for (int r = 0; r < TWO; r++) OK(ncclCommDestroy(c[r]));
    OK(ncclGroupEnd());
    for (int r = 0; r < TWO; r++) OK(ncclMemFree(p[r]));
    use_device(device_of(me->rank));
}

typedef struct {
    ncclComm_t comm;
    ncclWindow_t window;
    pthread_barrier_t *begin;
    ncclResult_t result;
} forget_t;

static void *forgets(void *arg)
{
    forget_t *f = arg;
    void *p = NULL;
    pthread_barrier_wait(f->begin);
    for (int i = 0; i < 20; i++) (void)ncclWinGetUserPtr(f->comm, f->window, &p);
    f->result = ncclCommWindowDeregister(f->comm, f->window);
    return NULL;
}

/* Of several threads that deregister a window one does, beside others that ask for its memory. */
static void a_window_is_deregistered_once(me_t *me)
{
    enum { THREADS = 3 };
    static void *kept[8]; /* a window's memory is not given back */
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    pthread_t thread[THREADS];
    pthread_barrier_t begin;
    (void)me;
    OK(ncclGetUniqueId(&id));
    OK(ncclCommInitRank(&comm, 1, id, 0));
    pthread_barrier_init(&begin, NULL, THREADS);
    for (int round = 0; round < 8; round++) {
        forget_t f[THREADS];
        ncclWindow_t window = NULL;
        int good = 0;
        OK(ncclMemAlloc(&kept[round], 4096));
        OK(ncclCommWindowRegister(comm, kept[round], 4096, &window, 0));
        if (!window) break; /* as on GPUs, staged */
        for (int i = 0; i < THREADS; i++) {
            f[i] = (forget_t){comm, window, &begin, ncclSuccess};
            if (pthread_create(&thread[i], NULL, forgets, &f[i])) abort();
        }
        for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
        for (int i = 0; i < THREADS; i++) good += f[i].result == ncclSuccess;
        EQ(good, 1);
    }
    pthread_barrier_destroy(&begin);
    OK(ncclCommDestroy(comm));
}

const case_t rest_cases[] = {
    {"messages_and_collectives_of_a_group_have_no_order", messages_and_collectives_of_a_group_have_no_order, EACH},
    {"ranks_meet_by_several_ids", ranks_meet_by_several_ids, EACH},
    {"teams_of_ranks_that_kernels_do_not_reach", teams_of_ranks_that_kernels_do_not_reach, EACH},
    {"each_address_for_kernels_is_none", each_address_for_kernels_is_none, EACH},
    {"a_parameter_of_each_width", a_parameter_of_each_width, FIRST},
    {"all_parameters_are_printed", all_parameters_are_printed, FIRST},
    {"encryption_is_the_job_s", encryption_is_the_job_s, FIRST},
    {"a_group_has_any_number_of_operators", a_group_has_any_number_of_operators, EACH},
    {"numbers_of_operators_are_each_ranks_own", numbers_of_operators_are_each_ranks_own, EACH},
    {"windows_in_a_group_of_one_thread", windows_in_a_group_of_one_thread, FIRST},
    {"a_window_is_deregistered_once", a_window_is_deregistered_once, FIRST},
    {NULL, NULL, EACH},
};
