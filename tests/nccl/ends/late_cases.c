/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that are late: the log names them, and with KOLO_NCCL_WAIT_MS an error does.
 */
#include "kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The error of a call that rank 1 does not make. */
static ncclResult_t waited_for_rank_1(me_t *me, ncclComm_t comm)
{
    ncclResult_t now = ncclSuccess;
    float *a = floats(me, 10, 1);
    ncclResult_t r = ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, comm, me->stream);
    if (!on_gpu() || r != ncclSuccess) return r;
    while (OK(ncclCommGetAsyncError(comm, &now)) && now == ncclSuccess) continue;
    return now;
}

/* With KOLO_NCCL_WAIT_MS, which the test sets: a rank that does not come is an error that names it, also in the
 * first call, which connects. */
static void a_late_rank_is_named(me_t *me)
{
    if (!getenv("KOLO_NCCL_WAIT_MS")) return;
    for (int connected = 0; connected < 2; connected++) {
        ncclComm_t comm;
        ncclUniqueId id = shared_id(me);
        OK(ncclCommInitRank(&comm, me->n, id, me->rank));
        if (connected) works(me, comm, me->n);
        meet(me);
        if (me->rank != 1) {
            IS(ncclRemoteError, waited_for_rank_1(me, comm));
            FACT(strstr(ncclGetLastError(NULL), "rank 1") != NULL);
        }
        meet(me);
        OK(ncclCommAbort(comm));
    }
}

/* On host memory an operation is complete when its call returns, and nothing waits. */
static void a_late_rank_is_named_by_finalize_and_destroy(me_t *me)
{
    float *a = floats(me, 10, 1);
    if (!getenv("KOLO_NCCL_WAIT_MS") || !on_gpu()) return;
    for (int destroys = 0; destroys < 2; destroys++) {
        ncclComm_t comm = NULL;
        OK(ncclCommSplit(me->comm, 0, me->rank, &comm, NULL));
        works(me, comm, me->n);
        meet(me);
        if (me->rank == 0) {
            OK(ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, comm, me->stream));
            IS(ncclRemoteError, destroys ? ncclCommDestroy(comm) : ncclCommFinalize(comm));
            FACT(strstr(ncclGetLastError(NULL), "rank 1") != NULL);
        }
        meet(me);
        if (me->rank != 0 || !destroys) OK(ncclCommAbort(comm));
        meet(me);
    }
}

static bool is_logged(const char *path, const char *one, const char *other)
{
    char line[2000];
    bool found = false;
    FILE *f = fopen(path, "r");
    while (f && !found && fgets(line, sizeof line, f)) found = strstr(line, one) && strstr(line, other);
    if (f) fclose(f);
    return found;
}

/* Without a time limit: the others say in the log whom they wait for, in the words of kolo-top, and who comes late
 * finishes right. Rank 1 comes when it has read that. */
static void a_late_rank_is_named_in_the_log(me_t *me)
{
    struct timespec began, now;
    char log[500];
    if (!getenv("LATE_LOG")) return; /* KOLO_LOG_FILE without -%p */
    snprintf(log, sizeof log, "%.400s-%d", getenv("LATE_LOG"), (int)getpid());
    float *a = floats(me, 10, 1);
    works(me, me->comm, me->n);
    meet(me);
    if (me->rank == 1) {
        bool named = false;
        clock_gettime(CLOCK_MONOTONIC, &began);
        do {
            nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
            named = is_logged(log, "still waiting", "; rank 1 (process ") &&
                    is_logged(log, "; rank 1 (process ", "did not enter operation ");
            clock_gettime(CLOCK_MONOTONIC, &now);
        } while (!named && now.tv_sec < began.tv_sec + 20);
        printf("the log named it after %.2f s\n",
               (double)(now.tv_sec - began.tv_sec) + 1e-9 * (double)(now.tv_nsec - began.tv_nsec));
        FACT(named);
        unlink(log);
    }
    OK(ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, me->comm, me->stream));
    sync_stream(me);
    EQ(at(me, a, 9), me->n);
}

/* Who had nothing to do, or one operation after another, has not waited: the thread that stages waits anew for
 * each. */
static void who_is_on_time_is_not_in_the_log(me_t *me)
{
    char log[500];
    if (!getenv("LATE_LOG") || !on_gpu()) return;
    snprintf(log, sizeof log, "%.400s-%d", getenv("LATE_LOG"), (int)getpid());
    float *a = floats(me, 10, 1);
    works(me, me->comm, me->n);
    for (int i = 0; i < 2; i++) {
        delay_stream(me, 30);
        OK(ncclAllReduce(a, a, 10, ncclFloat32, ncclMax, me->comm, me->stream));
        sync_stream(me);
        if (i == 0) nanosleep(&(struct timespec){1, 200000000}, NULL); /* longer than KOLO_STALL_WARN_MS */
    }
    meet(me);
    FACT(!is_logged(log, "still waiting", "to come to the next operation"));
    meet(me);
    unlink(log);
}

/* A library without kernels for this GPU (the fake driver refuses them): all is right, and the log says why it is
 * slow. */
static void a_GPU_without_kernels_is_told(me_t *me)
{
    char log[500];
    if (!getenv("LATE_LOG") || !getenv("FAKE_CUDA_FAIL")) return;
    snprintf(log, sizeof log, "%.400s-%d", getenv("LATE_LOG"), (int)getpid());
    works(me, me->comm, me->n);
    FACT(is_logged(log, "has no kernels in this library", "through host memory"));
    meet(me);
    unlink(log);
}

/* What the stream has still to write is waited for where the scalar is read at once (through host memory), but not
 * for longer than an operation. */
static void a_scalar_behind_a_busy_stream(me_t *me)
{
    struct timespec began, now;
    ncclRedOp_t op;
    float *scalar = floats(me, 1, 2), *a = floats(me, 10, 1);
    const char *limit = getenv("KOLO_NCCL_WAIT_MS");
    if (!on_gpu() || !limit || atoi(limit) > 1000) return;
    works(me, me->comm, me->n);
    delay_stream(me, 6000);
    clock_gettime(CLOCK_MONOTONIC, &began);
    IS(ncclRemoteError, ncclRedOpCreatePreMulSum(&op, scalar, ncclFloat32, ncclScalarDevice, me->comm));
    clock_gettime(CLOCK_MONOTONIC, &now);
    FACT(now.tv_sec - began.tv_sec < 4);
    FACT(strstr(ncclGetLastError(NULL), "the scalar of ncclRedOpCreatePreMulSum") != NULL);
    sync_stream(me);
    OK(ncclRedOpCreatePreMulSum(&op, scalar, ncclFloat32, ncclScalarDevice, me->comm));
    OK(ncclAllReduce(a, a, 10, ncclFloat32, op, me->comm, me->stream));
    OK(ncclRedOpDestroy(op, me->comm));
    EQ(at(me, a, 9), 2.0F * (float)me->n);
}

/* The others have an operation under way that needs the rank which aborts, and destroy sooner or later after it. */
static void destroy_beside_an_abort_names_the_rank(me_t *me)
{
    for (int round = 0; on_gpu() && round < 2; round++) {
        ncclComm_t child = NULL;
        float *a = floats(me, 10, 1);
        OK(ncclCommSplit(me->comm, 0, me->rank, &child, NULL));
        works(me, child, me->n);
        if (me->rank > 0) OK(ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, child, me->stream));
        meet(me);
        if (me->rank == 0) {
            OK(ncclCommAbort(child));
        } else {
            nanosleep(&(struct timespec){.tv_nsec = round * 1000000L}, NULL);
            IS(ncclRemoteError, ncclCommDestroy(child));
        }
        sync_stream(me);
        meet(me);
    }
}

const case_t late_cases[] = {
    {"a_scalar_behind_a_busy_stream", a_scalar_behind_a_busy_stream, EACH},
    {"a_late_rank_is_named", a_late_rank_is_named, EACH},
    {"a_late_rank_is_named_by_finalize_and_destroy", a_late_rank_is_named_by_finalize_and_destroy, EACH},
    {"a_late_rank_is_named_in_the_log", a_late_rank_is_named_in_the_log, EACH},
    {"who_is_on_time_is_not_in_the_log", who_is_on_time_is_not_in_the_log, EACH},
    {"a_GPU_without_kernels_is_told", a_GPU_without_kernels_is_told, EACH},
    {"destroy_beside_an_abort_names_the_rank", destroy_beside_an_abort_names_the_rank, EACH},
    {NULL, NULL, EACH},
};
