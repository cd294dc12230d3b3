/* SPDX-License-Identifier: Apache-2.0
 *
 * What seldom meets: calls of two threads on one communicator's end, several that make or end communicators in one
 * group, memory of another device, ranks that disagree on who they are.
 */
#include "kit.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void nap_s(double s)
{
    nanosleep(&(struct timespec){.tv_sec = (time_t)s, .tv_nsec = (long)((s - (double)(time_t)s) * 1e9)}, NULL);
}

static bool says(const char *word)
{
    return strstr(ncclGetLastError(NULL), word) != NULL;
}

typedef struct {
    const me_t *me;
    ncclComm_t comm;
    ncclResult_t (*end)(ncclComm_t comm);
    _Atomic int result;
} ender_t;

static void *ends(void *arg)
{
    ender_t *e = arg;
    use_device(device_of(e->me->rank));
    atomic_store(&e->result, (int)e->end(e->comm));
    return NULL;
}

/* On host memory an operation is complete when its call returns, and nothing waits. */
static void an_abort_ends_what_waits_for_others(me_t *me, ncclResult_t (*end)(ncclComm_t comm))
{
    ncclComm_t child = NULL;
    pthread_t thread;
    ncclResult_t now = ncclInternalError;
    float *a = floats(me, 10, 1);
    if (!on_gpu()) return;
    OK(ncclCommSplit(me->comm, 0, me->rank, &child, NULL));
    works(me, child, me->n);
    meet(me);
    if (me->rank == 0) {
        ender_t e = {.me = me, .comm = child, .end = end, .result = -1};
        OK(ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, child, me->stream)); /* the others never call it */
        if (!FACT(pthread_create(&thread, NULL, ends, &e) == 0)) return;
        nap_s(0.3);
        EQ(atomic_load(&e.result), -1); /* it waits */
        OK(ncclCommGetAsyncError(child, &now));
        FACT(now == ncclSuccess || now == ncclInProgress); /* who watches it sees no error */
        double began = now_s();
        OK(ncclCommAbort(child));
        pthread_join(thread, NULL);
        FACT(now_s() < began + 5);
        FACT(atomic_load(&e.result) != ncclSuccess); /* its operations did not end */
    }
    meet(me);
    if (me->rank != 0) OK(ncclCommAbort(child));
    works(me, me->comm, me->n);
}

static void an_abort_ends_a_destroy_that_waits(me_t *me)
{
    an_abort_ends_what_waits_for_others(me, ncclCommDestroy);
}

static void an_abort_ends_a_finalize_that_waits(me_t *me)
{
    an_abort_ends_what_waits_for_others(me, ncclCommFinalize);
}

static void an_operator_and_its_communicator_end_in_one_group(me_t *me)
{
    ncclComm_t child = NULL;
    ncclRedOp_t op;
    float two = 2;
    OK(ncclCommSplit(me->comm, 0, me->rank, &child, NULL));
    OK(ncclRedOpCreatePreMulSum(&op, &two, ncclFloat32, ncclScalarHostImmediate, child));
    OK(ncclGroupStart());
    OK(ncclRedOpDestroy(op, child));
    OK(ncclCommDestroy(child));
    OK(ncclGroupEnd());
    works(me, me->comm, me->n);
}

static void operators_belong_to_their_communicator_and_type(me_t *me)
{
    ncclRedOp_t op;
    float two = 2, *a = floats(me, 10, 1);
    ncclComm_t child = NULL;
    OK(ncclCommSplit(me->comm, 0, me->rank, &child, NULL));
    OK(ncclRedOpCreatePreMulSum(&op, &two, ncclFloat32, ncclScalarHostImmediate, child));
    IS(ncclInvalidArgument, ncclAllReduce(a, a, 4, ncclFloat64, op, child, me->stream));
    IS(ncclInvalidArgument, ncclAllReduce(a, a, 10, ncclFloat32, op, me->comm, me->stream));
    IS(ncclInvalidArgument, ncclRedOpDestroy(op, me->comm));
    OK(ncclAllReduce(a, a, 10, ncclFloat32, op, child, me->stream));
    sync_stream(me);
    EQ(at(me, a, 9), 2 * me->n);
    OK(ncclRedOpDestroy(op, child));
    IS(ncclInvalidArgument, ncclAllReduce(a, a, 10, ncclFloat32, op, child, me->stream));
    IS(ncclInvalidArgument, ncclRedOpDestroy(op, child));
    IS(ncclInvalidArgument, ncclRedOpDestroy(ncclSum, child));
    OK(ncclCommDestroy(child));
    works(me, me->comm, me->n);
}

/* Each rank runs them in their order, however its threads are scheduled. */
static void splits_of_one_parent_in_one_group(me_t *me)
{
    enum { N = 6 };
    ncclComm_t child[N] = {NULL};
    OK(ncclGroupStart());
    for (int i = 0; i < N; i++) OK(ncclCommSplit(me->comm, 0, i % 2 ? me->rank : -me->rank, &child[i], NULL));
    OK(ncclGroupEnd());
    for (int i = 0; i < N; i++) {
        int rank = -1;
        if (!FACT(child[i] != NULL)) continue;
        OK(ncclCommUserRank(child[i], &rank));
        EQ(rank, i % 2 ? me->rank : me->n - 1 - me->rank);
        works(me, child[i], me->n);
    }
    OK(ncclGroupStart());
    for (int i = 0; i < N; i++) OK(ncclCommDestroy(child[i]));
    OK(ncclGroupEnd());
    works(me, me->comm, me->n);
}

/* Of a parent that does not block the client can learn of one child. */
static void a_second_split_of_a_group_is_refused_if_the_parent_does_not_block(me_t *me)
{
    ncclConfig_t config = new_config();
    ncclComm_t parent = NULL, one = NULL, two = NULL;
    ncclUniqueId id = shared_id(me);
    config.blocking = 0;
    ncclResult_t r = ncclCommInitRankConfig(&parent, me->n, id, me->rank, &config);
    FACT(r == ncclSuccess || r == ncclInProgress);
    IS(ncclSuccess, settled(parent));
    OK(ncclGroupStart());
    OK(ncclCommSplit(parent, 0, me->rank, &one, NULL));
    OK(ncclCommSplit(parent, 0, me->rank, &two, NULL));
    r = ncclGroupEnd();
    if (r == ncclInvalidUsage) FACT(says("a split or shrink of communicator") && two == NULL);
    FACT(r == ncclInvalidUsage || (one && two)); /* the first may be through already */
    IS(ncclSuccess, settled(parent));
    if (FACT(one != NULL)) works(me, one, me->n);
    meet(me);
    OK(ncclCommAbort(one));
    if (two) OK(ncclCommAbort(two));
    OK(ncclCommAbort(parent));
}

static void a_name_is_read_by_its_call(me_t *me)
{
    char name[20] = "firstname";
    ncclConfig_t config = new_config();
    ncclComm_t child = NULL;
    float *a = floats(me, 4, 1);
    config.commName = name;
    OK(ncclGroupStart());
    OK(ncclCommSplit(me->comm, 0, me->rank, &child, &config));
    memset(name, 'x', sizeof name - 1);
    OK(ncclGroupEnd());
    works(me, child, me->n);
    meet(me);
    if (me->rank != 0 && !on_gpu()) {
        IS(ncclRemoteError, ncclAllReduce(a, a, 4, ncclFloat32, ncclSum, child, me->stream));
        FACT(says("firstname rank"));
    }
    OK(ncclCommAbort(child));
    meet(me);
}

static void *frees(void *p)
{
    OK(ncclMemFree(p)); /* the thread has used no device yet */
    return NULL;
}

static void memory_is_freed_by_any_thread(me_t *me)
{
    pthread_t thread;
    void *p = NULL, *none = me;
    use_device(device_of(me->rank));
    OK(ncclMemAlloc(&none, 0)); /* as cudaMalloc() */
    FACT(none == NULL);
    OK(ncclMemAlloc(&p, 100000));
    if (!FACT(pthread_create(&thread, NULL, frees, p) == 0)) return;
    pthread_join(thread, NULL);
    OK(ncclMemAlloc(&p, 100000));
    use_device(device_of(me->rank + 1));
    OK(ncclMemFree(p));
    use_device(device_of(me->rank));
    works(me, me->comm, me->n);
}

static void what_is_no_registration_is_refused(me_t *me)
{
    static char junk[256];
    void *handle = NULL;
    float *a = floats(me, 1000, 1);
    IS(ncclInvalidArgument, ncclCommDeregister(me->comm, junk));
    OK(ncclCommRegister(me->comm, a, 4000, &handle));
    if (handle) {
        OK(ncclCommDeregister(me->comm, handle));
        IS(ncclInvalidArgument, ncclCommDeregister(me->comm, handle));
    }
    IS(ncclInvalidArgument, ncclCommRegister(me->comm, a, 4000, NULL));
    void *p = NULL;
    OK(ncclMemAlloc(&p, 100));
    OK(ncclMemFree(p));
    if (!on_gpu()) IS(ncclInvalidArgument, ncclMemFree(p));
    FACT(ncclMemFree(junk) != ncclSuccess);
    works(me, me->comm, me->n);
}

/* How many blocks Kolo's kernels have is its profile, which all ranks must share: their difference tells it. */
static void few_CTAs_are_the_profile_compute(me_t *me)
{
    ncclConfig_t config = new_config();
    ncclComm_t comm = NULL;
    if (!on_gpu()) return;
    ncclUniqueId id = shared_id(me);
    config.maxCTAs = 8;
    OK(ncclCommInitRankConfig(&comm, me->n, id, me->rank, &config));
    works(me, comm, me->n);
    OK(ncclCommDestroy(comm));
    config.maxCTAs = me->rank ? 8 : 32;
    id = shared_id(me);
    IS(ncclInvalidUsage, ncclCommInitRankConfig(&comm, me->n, id, me->rank, &config));
    FACT(says("compute") && says("balanced") && says("maxCTAs"));
    meet(me);
    works(me, me->comm, me->n);
}

/* Its handle is given out again later: what the group still has of it must not be made. */
static void an_abort_before_the_end_of_its_group(me_t *me)
{
    ncclComm_t comm = NULL;
    ncclUniqueId id;
    (void)me;
    OK(ncclGetUniqueId(&id));
    for (int i = 0; i < 3; i++) {
        OK(ncclGroupStart());
        OK(ncclCommInitRank(&comm, 1, id, 0));
        OK(ncclCommAbort(comm));
        IS(ncclInvalidUsage, ncclGroupEnd());
        FACT(says("was aborted before its group ended"));
        IS(ncclInvalidArgument, ncclCommDestroy(comm));
    }
    OK(ncclCommInitRank(&comm, 1, id, 0));
    OK(ncclCommDestroy(comm));
}

typedef struct {
    ncclUniqueId id;
    int rank, nranks;
    _Atomic int result;
    char text[1024];
} claim_t;

static void *claims(void *arg)
{
    claim_t *c = arg;
    ncclComm_t comm = NULL;
    use_device(device_of(c->rank));
    ncclResult_t r = ncclCommInitRank(&comm, c->nranks, c->id, c->rank);
    snprintf(c->text, sizeof c->text, "%s", ncclGetLastError(NULL));
    atomic_store(&c->result, (int)r);
    if (r == ncclSuccess) OK(ncclCommAbort(comm));
    return NULL;
}

static void both_fail(claim_t *c, const char *word)
{
    pthread_t thread[2];
    double began = now_s();
    OK(ncclGetUniqueId(&c[0].id));
    c[1].id = c[0].id;
    for (int i = 0; i < 2; i++)
        if (pthread_create(&thread[i], NULL, claims, &c[i])) abort();
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 2; i++) FACT(atomic_load(&c[i].result) != ncclSuccess);
    FACT(now_s() < began + 10);
    FACT(strstr(c[0].text, word) || strstr(c[1].text, word));
    if (!strstr(c[0].text, word) && !strstr(c[1].text, word)) printf("%s | %s\n", c[0].text, c[1].text);
}

static void two_that_claim_one_rank_are_told(me_t *me)
{
    claim_t same[2] = {{.rank = 0, .nranks = 2}, {.rank = 0, .nranks = 2}};
    (void)me;
    both_fail(same, "rank 0");
}

static void two_that_count_ranks_differently_are_told(me_t *me)
{
    claim_t counts[2] = {{.rank = 0, .nranks = 2}, {.rank = 1, .nranks = 3}};
    (void)me;
    both_fail(counts, "3");
}

const case_t edge_cases[] = {
    {"an_abort_ends_a_destroy_that_waits", an_abort_ends_a_destroy_that_waits, EACH},
    {"an_abort_ends_a_finalize_that_waits", an_abort_ends_a_finalize_that_waits, EACH},
    {"an_operator_and_its_communicator_end_in_one_group", an_operator_and_its_communicator_end_in_one_group, EACH},
    {"operators_belong_to_their_communicator_and_type", operators_belong_to_their_communicator_and_type, EACH},
    {"splits_of_one_parent_in_one_group", splits_of_one_parent_in_one_group, EACH},
    {"a_second_split_of_a_group_is_refused_if_the_parent_does_not_block",
     a_second_split_of_a_group_is_refused_if_the_parent_does_not_block, EACH},
    {"a_name_is_read_by_its_call", a_name_is_read_by_its_call, EACH},
    {"memory_is_freed_by_any_thread", memory_is_freed_by_any_thread, EACH},
    {"what_is_no_registration_is_refused", what_is_no_registration_is_refused, EACH},
    {"few_CTAs_are_the_profile_compute", few_CTAs_are_the_profile_compute, EACH},
    {"an_abort_before_the_end_of_its_group", an_abort_before_the_end_of_its_group, FIRST},
    {"two_that_claim_one_rank_are_told", two_that_claim_one_rank_are_told, FIRST},
    {"two_that_count_ranks_differently_are_told", two_that_count_ranks_differently_are_told, FIRST},
    {NULL, NULL, EACH},
};
