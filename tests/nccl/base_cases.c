/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives, messages, operators, groups and wrong arguments.
 */
#include "kit.h"

#include <stdlib.h>
#include <string.h>

static void each_collective_gives_its_result(me_t *me)
{
    int n = me->n, r = me->rank, sum = n * (n - 1) / 2;
    ncclComm_t c = me->comm;
    cudaStream_t s = me->stream;
    float *a = floats(me, 8, (float)r), *b = floats(me, 8 * n, -1);
    OK(ncclAllReduce(a, b, 8, ncclFloat32, ncclSum, c, s));
    EQ(at(me, b, 7), sum);
    OK(ncclAllReduce(a, b, 8, ncclFloat32, ncclMax, c, s));
    EQ(at(me, b, 0), n - 1);
    OK(ncclAllReduce(a, b, 8, ncclFloat32, ncclMin, c, s));
    EQ(at(me, b, 0), 0);
    OK(ncclAllReduce(a, b, 8, ncclFloat32, ncclProd, c, s));
    EQ(at(me, b, 0), 0);
    OK(ncclAllGather(a, b, 8, ncclFloat32, c, s));
    for (int i = 0; i < n; i++) EQ(at(me, b, 8 * i + 3), i);
    OK(ncclReduceScatter(b, a, 8, ncclFloat32, ncclSum, c, s));
    EQ(at(me, a, 0), n * r);
    a = floats(me, 8, (float)r);
    OK(ncclBroadcast(a, b, 8, ncclFloat32, n - 1, c, s));
    EQ(at(me, b, 1), n - 1);
    OK(ncclBcast(a, 8, ncclFloat32, 1, c, s));
    EQ(at(me, a, 2), 1);
    a = floats(me, 8, (float)r);
    OK(ncclReduce(a, r == 1 ? b : NULL, 8, ncclFloat32, ncclSum, 1, c, s));
    if (r == 1) EQ(at(me, b, 5), sum);
    OK(ncclGather(a, r ? NULL : b, 8, ncclFloat32, 0, c, s));
    for (int i = 0; i < n && r == 0; i++) EQ(at(me, b, 8 * i), i);
    a = floats(me, n, 0);
    for (int i = 0; i < n; i++) put(me, a, i, (float)(10 * r + i));
    OK(ncclScatter(r == 1 ? a : NULL, b, 1, ncclFloat32, 1, c, s));
    EQ(at(me, b, 0), 10 + r);
    OK(ncclAlltoAll(a, b, 1, ncclFloat32, c, s));
    for (int i = 0; i < n; i++) EQ(at(me, b, i), 10 * i + r);
}

static void average_of_floats(me_t *me)
{
    float *a = floats(me, 4, (float)(me->n * me->rank));
    OK(ncclAllReduce(a, a, 4, ncclFloat32, ncclAvg, me->comm, me->stream));
    EQ(at(me, a, 3), 0.5F * (float)(me->n * (me->n - 1)));
}

/* The sum is -n - 1: its n-th part has a rest, and goes towards zero. */
static void average_of_integers(me_t *me)
{
    float *a = floats(me, 2, 0);
    int32_t mine[2] = {me->rank ? -1 : -2, me->rank ? 1 : 2}, got[2];
    copy_bytes(me, a, mine, sizeof mine);
    OK(ncclAllReduce(a, a, 2, ncclInt32, ncclAvg, me->comm, me->stream));
    sync_stream(me);
    copy_bytes(me, got, a, sizeof got);
    EQ(got[0], me->n == 1 ? -2 : -1);
    EQ(got[1], me->n == 1 ? 2 : 1);
}

static void a_collective_of_nothing_needs_no_other_rank(me_t *me)
{
    if (me->rank == 0) OK(ncclAllReduce(NULL, NULL, 0, ncclFloat32, ncclSum, me->comm, me->stream));
    works(me, me->comm, me->n);
}

static void messages_in_a_group_to_others_and_oneself(me_t *me)
{
    int next = (me->rank + 1) % me->n, before = (me->rank + me->n - 1) % me->n;
    float *a = floats(me, 1000, (float)me->rank), *b = floats(me, 1000, -1), *own = floats(me, 1000, -1);
    OK(ncclGroupStart());
    OK(ncclSend(a, 1000, ncclFloat32, next, me->comm, me->stream));
    OK(ncclRecv(b, 1000, ncclFloat32, before, me->comm, me->stream));
    OK(ncclSend(a, 1000, ncclFloat32, me->rank, me->comm, me->stream));
    OK(ncclRecv(own, 1000, ncclFloat32, me->rank, me->comm, me->stream));
    OK(ncclSend(a, 0, ncclFloat32, next, me->comm, me->stream)); /* matched, too */
    OK(ncclRecv(b, 0, ncclFloat32, before, me->comm, me->stream));
    OK(ncclGroupEnd());
    EQ(at(me, b, 999), before);
    EQ(at(me, own, 999), me->rank);
}

static void all_to_all_in_place_runs(me_t *me)
{
    float *a = floats(me, 4 * me->n, 1);
#ifdef __SANITIZE_THREAD__ /* it tells why there is none: messages come to where others are sent from */
    if (on_gpu()) return;
#endif
    OK(ncclAlltoAll(a, a, 4, ncclFloat32, me->comm, me->stream)); /* NCCL defines no result */
    sync_stream(me);
    works(me, me->comm, me->n);
}

static void an_operator_may_be_destroyed_inside_the_group_that_uses_it(me_t *me)
{
    ncclRedOp_t op;
    float scalar = (float)(me->rank + 1), *a = floats(me, 10, 1), *b = floats(me, 10, 0);
    OK(ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat32, ncclScalarHostImmediate, me->comm));
    OK(ncclGroupStart());
    OK(ncclAllReduce(a, b, 10, ncclFloat32, op, me->comm, me->stream));
    OK(ncclRedOpDestroy(op, me->comm));
    OK(ncclGroupEnd());
    EQ(at(me, b, 9), 0.5F * (float)(me->n * (me->n + 1)));
    IS(ncclInvalidArgument, ncclRedOpDestroy(ncclSum, me->comm));
}

static void a_scalar_on_the_device(me_t *me)
{
    ncclRedOp_t op;
    float *scalar = floats(me, 1, (float)(me->rank + 1)), *a = floats(me, 10, 1);
    OK(ncclRedOpCreatePreMulSum(&op, scalar, ncclFloat32, ncclScalarDevice, me->comm));
    OK(ncclAllReduce(a, a, 10, ncclFloat32, op, me->comm, me->stream));
    OK(ncclRedOpDestroy(op, me->comm));
    EQ(at(me, a, 9), 0.5F * (float)(me->n * (me->n + 1)));
}

static void a_wrong_call_ends_its_group_and_nothing_of_it_runs(me_t *me)
{
    float *a = floats(me, 10, 1), *b = floats(me, 10, -1);
    OK(ncclGroupStart());
    OK(ncclAllReduce(a, b, 10, ncclFloat32, ncclSum, me->comm, me->stream));
    IS(ncclInvalidArgument, ncclAllReduce(a, b, 10, (ncclDataType_t)99, ncclSum, me->comm, me->stream));
    IS(ncclInvalidArgument, ncclGroupEnd());
    FACT(strstr(ncclGetLastError(NULL), "ncclAllReduce: there is no type 99") != NULL);
    sync_stream(me);
    EQ(at(me, b, 0), -1);
    works(me, me->comm, me->n);
}

static void a_simulated_group_does_not_run(me_t *me)
{
    ncclSimInfo_t info = {.head = {sizeof info, NCCL_SIM_INFO_MAGIC, 23007}, .estimatedTime = -1};
    float *a = floats(me, 10, 1), *b = floats(me, 10, -1);
    OK(ncclGroupStart());
    OK(ncclAllReduce(a, b, 10, ncclFloat32, ncclSum, me->comm, me->stream));
    OK(ncclGroupSimulateEnd(&info));
    EQ(at(me, b, 0), -1);
    FACT(info.estimatedTime >= 0);
    works(me, me->comm, me->n);
}

static void groups_nest(me_t *me)
{
    float *a = floats(me, 10, 1), *b = floats(me, 10, 0);
    OK(ncclGroupStart());
    OK(ncclGroupStart());
    OK(ncclAllReduce(a, b, 10, ncclFloat32, ncclSum, me->comm, me->stream));
    OK(ncclGroupEnd());
    OK(ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, me->comm, me->stream));
    OK(ncclGroupEnd());
    EQ(at(me, b, 0), me->n);
    EQ(at(me, a, 0), me->n);
}

static void wrong_arguments_have_NCCLs_codes(me_t *me)
{
    float *a = floats(me, 10, 1);
    int n;
    if (me->rank == 0) {
        IS(ncclInvalidArgument, ncclAllReduce(a, a, 10, ncclFloat32, (ncclRedOp_t)-1, me->comm, me->stream));
        IS(ncclInvalidArgument, ncclAllReduce(a, a, 10, (ncclDataType_t)12, ncclSum, me->comm, me->stream));
        IS(ncclInvalidArgument, ncclBroadcast(a, a, 10, ncclFloat32, me->n, me->comm, me->stream));
        IS(ncclInvalidArgument, ncclReduce(a, a, 10, ncclFloat32, ncclSum, -1, me->comm, me->stream));
        IS(ncclInvalidArgument, ncclSend(a, 10, ncclFloat32, me->n, me->comm, me->stream));
        IS(ncclInvalidArgument, ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, NULL, me->stream));
        IS(ncclInvalidArgument, ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, (ncclComm_t)(void *)a, me->stream));
        IS(ncclInvalidArgument, ncclCommCount(me->comm, NULL));
        IS(ncclInvalidArgument, ncclCommCount((ncclComm_t)(void *)&n, &n));
        IS(ncclInvalidUsage, ncclGroupEnd());
        FACT(strstr(ncclGetLastError(NULL), "ncclGroupEnd without ncclGroupStart()") != NULL);
    }
    works(me, me->comm, me->n);
}

static void types_and_their_sizes(me_t *me)
{
    static const int sizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    for (int t = 0; t < ncclNumTypes; t++) {
        float *a = floats(me, 16, (float)me->rank), *b = floats(me, 16, -1);
        OK(ncclBroadcast(a, b, (size_t)(8 / sizes[t]), (ncclDataType_t)t, 1, me->comm, me->stream));
        EQ(at(me, b, 1), 1);
        EQ(at(me, b, 2), -1);
    }
}

static void the_version_can_be_asked_before_all_else(me_t *me)
{
    int version = 0;
    (void)me;
    OK(ncclGetVersion(&version));
    EQ(version, 23007);
    IS(ncclInvalidArgument, ncclGetVersion(NULL));
    FACT(strcmp(ncclGetErrorString(ncclRemoteError), "remote process exited or there was a network error") == 0);
    FACT(strcmp(ncclGetErrorString((ncclResult_t)77), "unknown result code") == 0);
}

const case_t base_cases[] = {
    {"the_version_can_be_asked_before_all_else", the_version_can_be_asked_before_all_else, FIRST},
    {"each_collective_gives_its_result", each_collective_gives_its_result, EACH},
    {"average_of_floats", average_of_floats, EACH},
    {"average_of_integers", average_of_integers, EACH},
    {"a_collective_of_nothing_needs_no_other_rank", a_collective_of_nothing_needs_no_other_rank, EACH},
    {"messages_in_a_group_to_others_and_oneself", messages_in_a_group_to_others_and_oneself, EACH},
    {"all_to_all_in_place_runs", all_to_all_in_place_runs, EACH},
    {"an_operator_may_be_destroyed_inside_the_group_that_uses_it",
     an_operator_may_be_destroyed_inside_the_group_that_uses_it, EACH},
    {"a_scalar_on_the_device", a_scalar_on_the_device, EACH},
    {"a_wrong_call_ends_its_group_and_nothing_of_it_runs", a_wrong_call_ends_its_group_and_nothing_of_it_runs,
     EACH},
    {"a_simulated_group_does_not_run", a_simulated_group_does_not_run, EACH},
    {"groups_nest", groups_nest, EACH},
    {"wrong_arguments_have_NCCLs_codes", wrong_arguments_have_NCCLs_codes, EACH},
    {"types_and_their_sizes", types_and_their_sizes, EACH},
    {NULL, NULL, EACH},
};
