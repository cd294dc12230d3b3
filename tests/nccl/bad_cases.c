/* SPDX-License-Identifier: Apache-2.0
 *
 * What a program may do wrong: NCCL's codes, a text that says what it was, no crash, and afterwards all goes on.
 */
#include "kit.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool says(const char *word)
{
    return strstr(ncclGetLastError(NULL), word) != NULL;
}

static void pointers_that_are_no_communicators(me_t *me)
{
    static char junk[4096];
    float *a = floats(me, 10, 1);
    const uintptr_t wrong[] = {1,
                               (uintptr_t)junk,
                               (uintptr_t)me->comm + 8,
                               (uintptr_t)me->comm - 1,
                               UINTPTR_MAX,
                               UINT64_C(0xdeadbeefdeadbeef)};
    int n = 7;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ncclComm_t c = (ncclComm_t)wrong[i];
        ncclResult_t now = ncclSuccess;
        IS(ncclInvalidArgument, ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, c, me->stream));
        IS(ncclInvalidArgument, ncclCommCount(c, &n));
        IS(ncclInvalidArgument, ncclCommGetAsyncError(c, &now));
        IS(ncclInvalidArgument, ncclCommDestroy(c));
        IS(ncclInvalidArgument, ncclCommAbort(c));
        IS(ncclInvalidArgument, ncclCommSplit(c, 0, 0, &(ncclComm_t){NULL}, NULL));
        meet(me); /* one text for all threads: each has what another has said of the same pointer */
        FACT(says("is no communicator of this library"));
        meet(me);
    }
    EQ(n, 7);
    works(me, me->comm, me->n);
}

static void buffers_and_counts_that_cannot_be(me_t *me)
{
    float *a = floats(me, 10, 1);
    IS(ncclInvalidArgument, ncclAllReduce(NULL, a, 10, ncclFloat32, ncclSum, me->comm, me->stream));
    IS(ncclInvalidArgument, ncclAllReduce(a, NULL, 10, ncclFloat32, ncclSum, me->comm, me->stream));
    IS(ncclInvalidArgument, ncclAllReduce(a, a, SIZE_MAX, ncclFloat32, ncclSum, me->comm, me->stream));
    IS(ncclInvalidArgument, ncclAllGather(a, a, SIZE_MAX / 4, ncclFloat32, me->comm, me->stream));
    IS(ncclInvalidArgument, ncclSend(NULL, 10, ncclFloat32, (me->rank + 1) % me->n, me->comm, me->stream));
    IS(ncclInvalidUsage, ncclSend(a, 10, ncclFloat32, me->rank, me->comm, me->stream));
    FACT(ncclGetLastError(me->comm)[0] != 0);
    works(me, me->comm, me->n);
}

#define SAYS(code, call, word)                                                                                     \
    do {                                                                                                           \
        IS(code, call);                                                                                            \
        FACT(says(word));                                                                                          \
    } while (0)

static void bad_operations_say_what_to_do(ncclComm_t c, float *a, cudaStream_t s)
{
    SAYS(ncclInvalidArgument, ncclAllReduce(a, a, 10, (ncclDataType_t)12, ncclSum, c, s),
         "ncclAllReduce: there is no type 12: expected 0 (ncclInt8) to 11");
    SAYS(ncclInvalidArgument, ncclReduceScatter(a, a, 10, ncclFloat32, (ncclRedOp_t)-1, c, s),
         "expected 0 (ncclSum) to 4 (ncclAvg), or one that ncclRedOpCreatePreMulSum() gave");
    SAYS(ncclInvalidArgument, ncclAllReduce(a, a, 10, ncclFloat32, (ncclRedOp_t)1234, c, s),
         "ncclAllReduce: operator 1234 is not known");
    SAYS(ncclInvalidArgument, ncclReduce(a, a, 10, ncclFloat32, ncclSum, 1, c, s),
         "ncclReduce: root 1: expected 0 to 0");
    SAYS(ncclInvalidArgument, ncclSend(a, 10, ncclFloat32, -1, c, s), "ncclSend: peer -1: expected 0 to 0");
    SAYS(ncclInvalidArgument, ncclAllGather(NULL, a, 10, ncclFloat32, c, s), "ncclAllGather: the source is NULL");
    SAYS(ncclInvalidArgument, ncclAllReduce(a, a, SIZE_MAX, ncclFloat32, ncclSum, c, s),
         "ncclAllReduce: count 18446744073709551615 is too large");
    SAYS(ncclInvalidArgument, ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, NULL, s),
         "ncclAllReduce: the communicator is NULL: it was never made");
    SAYS(ncclInvalidUsage, ncclGroupEnd(), "ncclGroupEnd without ncclGroupStart()");
}

static void bad_operators_say_what_to_do(ncclComm_t c)
{
    ncclRedOp_t op;
    float two = 2;
    SAYS(ncclInvalidArgument, ncclRedOpDestroy((ncclRedOp_t)77, c),
         "ncclRedOpDestroy: operator 77 was not made for this communicator");
    SAYS(ncclInvalidArgument, ncclRedOpDestroy(ncclMax, c),
         "2 is no operator that ncclRedOpCreatePreMulSum() gave");
    SAYS(ncclInvalidArgument, ncclRedOpCreatePreMulSum(&op, &two, ncclFloat32, (ncclScalarResidence_t)5, c),
         "expected ncclScalarDevice (0) or ncclScalarHostImmediate (1)");
}

static void bad_makings_say_what_to_do(ncclComm_t c)
{
    ncclConfig_t config = new_config();
    ncclComm_t child = NULL;
    ncclUniqueId id;
    int none = 0;
    OK(ncclGetUniqueId(&id));
    SAYS(ncclInvalidArgument, ncclCommSplit(c, -3, 0, &child, NULL),
         "ncclCommSplit: the color is -3: expected 0 or more");
    SAYS(ncclInvalidArgument, ncclCommShrink(c, &none, 1, &child, NULL, 0),
         "ncclCommShrink: rank 0 excludes itself");
    SAYS(ncclInvalidArgument, ncclCommShrink(c, NULL, 0, &child, NULL, 0), "expected a list of 1 or more");
    SAYS(ncclInvalidArgument, ncclCommGrow(NULL, 2, NULL, 0, &child, NULL),
         "ncclCommGrow: a new rank passes the id");
    SAYS(ncclInvalidArgument, ncclCommInitRank(&child, 2, id, 2), "ncclCommInitRank: rank 2 of 2: expected 0 to 1");
    memset(&id, 0, sizeof id);
    SAYS(ncclInvalidArgument, ncclCommInitRank(&child, 1, id, 0), "ncclGetUniqueId");
    SAYS(ncclInvalidArgument, ncclCommGrow(NULL, 2, &id, 1, &child, NULL), "ncclCommGrow: ");
    config.blocking = 2;
    SAYS(ncclInvalidArgument, ncclCommSplit(c, 0, 0, &child, &config),
         "blocking is 2 in the configuration, expected 0 to 1");
    config.head.magic = 0;
    SAYS(ncclInvalidArgument, ncclCommSplit(c, 0, 0, &child, &config), "begin with NCCL_CONFIG_INITIALIZER");
}

/* Each text has the client's call and says what is expected, in the client's words. */
static void bad_calls_say_what_to_do(me_t *me)
{
    ncclComm_t c = NULL;
    uint64_t bytes;
    float *a = floats(me, 10, 1);
    use_device(device_of(0));
    cudaStream_t s = new_stream(device_of(0));
    OK(ncclCommInitAll(&c, 1, NULL));
    bad_operations_say_what_to_do(c, a, s);
    bad_operators_say_what_to_do(c);
    bad_makings_say_what_to_do(c);
    SAYS(ncclInvalidArgument, ncclCommSuspend(c, 8), "expected NCCL_SUSPEND_MEM (1)");
    SAYS(ncclInvalidUsage, ncclCommResume(c), "is not suspended");
    SAYS(ncclInvalidArgument, ncclCommMemStats(c, (ncclCommMemStat_t)9, &bytes), "there is no figure 9");
    SAYS(ncclInvalidArgument, ncclCommDeregister(c, a), "ncclCommDeregister: ");
    OK(ncclCommSuspend(c, NCCL_SUSPEND_MEM));
    SAYS(ncclInvalidUsage, ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, c, s), "call ncclCommResume() first");
    OK(ncclCommResume(c));
    OK(ncclCommFinalize(c));
    SAYS(ncclInvalidUsage, ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, c, s), "was finalized");
    OK(ncclCommDestroy(c));
    SAYS(ncclInvalidArgument, ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, c, s),
         "was destroyed before: it cannot be used again");
}

static void an_id_that_nobody_made(me_t *me)
{
    ncclUniqueId id;
    ncclComm_t comm = (ncclComm_t)(void *)me;
    memset(&id, 0, sizeof id);
    IS(ncclInvalidArgument, ncclCommInitRank(&comm, 2, id, 0));
    FACT(comm == NULL && says("ncclGetUniqueId"));
    memset(&id, 0x5a, sizeof id);
    IS(ncclInvalidArgument, ncclCommInitRank(&comm, 2, id, 1));
    FACT(comm == NULL);
}

/* A thread that ends leaves its open group, with calls and communicators that were never made. */
static void *left_open(void *arg)
{
    me_t *me = arg;
    ncclComm_t child = NULL;
    float *a = floats(me, 10, 1);
    use_device(device_of(me->rank));
    OK(ncclGroupStart());
    OK(ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, me->comm, me->stream));
    OK(ncclCommSplit(me->comm, 0, me->rank, &child, NULL));
    return NULL;
}

static void a_group_left_open_goes_with_its_thread(me_t *me)
{
    pthread_t thread;
    if (!FACT(pthread_create(&thread, NULL, left_open, me) == 0)) return;
    pthread_join(thread, NULL);
    meet(me);
    IS(ncclInvalidUsage, ncclGroupEnd()); /* of another thread: it has none open */
    works(me, me->comm, me->n);
}

/* Each end of a message has another size. */
static void a_message_of_two_sizes(me_t *me)
{
    float *a = floats(me, 10, 1);
    ncclResult_t r = ncclSuccess, now = ncclSuccess;
    if (on_gpu() && me->n < 2) return;
    works(me, me->comm, me->n);
    if (me->rank == 0) r = ncclSend(a, 10, ncclFloat32, 1, me->comm, me->stream);
    if (me->rank == 1) r = ncclRecv(a, 5, ncclFloat32, 0, me->comm, me->stream);
    if (me->rank == 1) {
        while (on_gpu() && r == ncclSuccess && OK(ncclCommGetAsyncError(me->comm, &now)) && now == ncclSuccess)
            continue;
        IS(ncclInvalidUsage, r == ncclSuccess ? now : r);
        FACT(says("rank 0") &&
             (on_gpu() ? says("5 float32") && says("10 float32") : says("20 bytes") && says("40 bytes")));
    }
    meet(me);
    OK(ncclCommAbort(me->comm));
    me->comm = NULL;
}

static void a_stream_of_another_device(me_t *me)
{
    if (!on_gpu()) return; /* there streams are ignored */
    float *a = floats(me, 10, 1);
    cudaStream_t other = new_stream(device_of(me->rank + 1));
    use_device(device_of(me->rank));
    IS(ncclInvalidArgument, ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, me->comm, other));
    FACT(says("pass a stream of that GPU"));
    works(me, me->comm, me->n);
}

static void *fails(void *arg)
{
    IS(ncclInvalidArgument, ncclCommCount(arg, NULL));
    return NULL;
}

static void the_last_error_is_the_process_s(me_t *me)
{
    pthread_t thread;
    int n;
    IS(ncclInvalidArgument, ncclCommCount((ncclComm_t)(void *)&n, &n));
    if (!FACT(pthread_create(&thread, NULL, fails, me) == 0)) return;
    pthread_join(thread, NULL);
    FACT(says("ncclCommCount: 0x") && says("is no communicator"));
    ncclGetVersion(&n); /* a call that succeeds leaves it */
    FACT(says("is no communicator"));
}

const case_t bad_cases[] = {
    {"pointers_that_are_no_communicators", pointers_that_are_no_communicators, EACH},
    {"buffers_and_counts_that_cannot_be", buffers_and_counts_that_cannot_be, EACH},
    {"bad_calls_say_what_to_do", bad_calls_say_what_to_do, FIRST},
    {"an_id_that_nobody_made", an_id_that_nobody_made, FIRST},
    {"a_group_left_open_goes_with_its_thread", a_group_left_open_goes_with_its_thread, EACH},
    {"a_message_of_two_sizes", a_message_of_two_sizes, EACH},
    {"a_stream_of_another_device", a_stream_of_another_device, EACH},
    {"the_last_error_is_the_process_s", the_last_error_is_the_process_s, FIRST},
    {NULL, NULL, EACH},
};
