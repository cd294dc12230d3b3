/* SPDX-License-Identifier: Apache-2.0
 *
 * What the others see of a rank that goes: an abort, an exit and a kill are told, with the rank; destroy waits for
 * the rank's own operations, however late the others are, and ends with the name of one that is killed.
 */
#include "kit.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

static bool names(int rank)
{
    char name[20];
    snprintf(name, sizeof name, "rank %d", rank);
    return strstr(ncclGetLastError(NULL), name) != NULL;
}

/* What an all_reduce comes to, at the call or later. */
static ncclResult_t all_reduce(me_t *me, ncclComm_t comm)
{
    ncclResult_t now = ncclSuccess;
    float *a = floats(me, 10, 1);
    ncclResult_t r = ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, comm, me->stream);
    if (!on_gpu() || r != ncclSuccess) return r;
    for (double end = now_s() + 20; now == ncclSuccess && now_s() < end;)
        if (!OK(ncclCommGetAsyncError(comm, &now))) break;
    return now;
}

static bool quiet(void)
{
    const char *text = getenv("KOLO_QUIET_EXIT");
    return !text || strcmp(text, "0") != 0;
}

/* Returns a child of all ranks, over which an operation has gone. */
static ncclComm_t child_that_works(me_t *me)
{
    ncclComm_t child = NULL;
    OK(ncclCommSplit(me->comm, 0, me->rank, &child, NULL));
    works(me, child, me->n);
    meet(me);
    return child;
}

static ncclResult_t error_within(ncclComm_t comm, double s)
{
    ncclResult_t now = ncclSuccess;
    for (double end = now_s() + s; now == ncclSuccess && now_s() < end; nap_s(0.001))
        OK(ncclCommGetAsyncError(comm, &now));
    return now;
}

static void an_abort_is_told_to_the_others(me_t *me)
{
    if (quiet()) return;
    ncclComm_t child = child_that_works(me);
    if (me->rank == 0) OK(ncclCommAbort(child));
    meet(me);
    if (me->rank != 0) {
        IS(ncclRemoteError, error_within(child, 20));
        FACT(names(0) && strstr(ncclGetLastError(NULL), "its program aborted the communicator"));
        IS(ncclRemoteError, all_reduce(me, child));
        OK(ncclCommAbort(child));
    }
    meet(me);
    works(me, me->comm, me->n); /* the parent is another communicator */
}

/* Unless KOLO_QUIET_EXIT is 0, as an_abort_is_told_to_the_others has it. */
static void an_abort_is_no_error_before_a_call_that_needs_the_rank(me_t *me)
{
    ncclComm_t child = child_that_works(me);
    if (me->rank == 0) OK(ncclCommAbort(child));
    meet(me);
    if (me->rank == 1) { /* who is through with it hears nothing */
        IS(ncclSuccess, error_within(child, 0.4));
        OK(ncclCommDestroy(child));
    } else if (me->rank != 0) {
        IS(ncclSuccess, error_within(child, 0.4));
        IS(ncclRemoteError, all_reduce(me, child));
        FACT(names(0) && strstr(ncclGetLastError(NULL), "its program aborted the communicator"));
        IS(ncclRemoteError, error_within(child, 20));
        OK(ncclCommAbort(child));
    }
    meet(me);
    works(me, me->comm, me->n);
}

/* The last rank does not come to it, and aborts. */
static void an_operation_that_waits_for_a_rank_which_aborts_ends(me_t *me)
{
    ncclComm_t child = child_that_works(me);
    if (me->rank == me->n - 1) {
        nap_s(0.1);
        OK(ncclCommAbort(child));
    } else {
        double began = now_s();
        IS(ncclRemoteError, all_reduce(me, child));
        FACT(names(me->n - 1) && now_s() < began + 5);
        OK(ncclCommAbort(child));
    }
    meet(me);
    works(me, me->comm, me->n);
}

/* Whom each waits for waits itself, for one that aborts: all are told, whatever they wait in. */
static void waits_of_each_kind_end_when_a_rank_aborts(me_t *me)
{
    enum { RING, SIGNAL, KINDS };
    for (int kind = 0; kind < KINDS; kind++) {
        ncclComm_t child;
        int next = (me->rank + 1) % me->n, before = (me->rank + me->n - 1) % me->n;
        ncclWaitSignalDesc_t wait = {.opCnt = 1, .peer = before};
        ncclResult_t r, now = ncclSuccess;
        float *a = floats(me, 10, 1), *b = floats(me, 10, 0);
        static _Atomic(void *) kept[KINDS][RANKS_MAX]; /* a window's memory is not given back */
        void *buf = NULL;
        ncclWindow_t window = NULL;
        OK(ncclCommSplit(me->comm, 0, me->rank, &child, NULL));
        works(me, child, me->n);
        OK(ncclMemAlloc(&buf, 4096));
        atomic_store(&kept[kind][me->rank], buf);
        OK(ncclCommWindowRegister(child, buf, 4096, &window, 0));
        meet(me);
        if (me->rank == me->n - 1) {
            nap_s(0.1);
            OK(ncclCommAbort(child));
            meet(me);
            continue;
        }
        double began = now_s();
        if (kind == RING) {
            r = ncclRecv(b, 10, ncclFloat32, before, child, me->stream);
            if (r == ncclSuccess && !on_gpu()) r = ncclSend(a, 10, ncclFloat32, next, child, me->stream);
        } else {
            r = window ? ncclWaitSignal(1, &wait, child, me->stream) : all_reduce(me, child);
        }
        for (double end = now_s() + 20; r == ncclSuccess && now == ncclSuccess && now_s() < end;)
            if (!OK(ncclCommGetAsyncError(child, &now))) break;
        IS(ncclRemoteError, r == ncclSuccess ? now : r);
        /* of the first that has gone, or of one that went because it was told: whose news came first */
        FACT(names(me->n - 1) || strstr(ncclGetLastError(NULL), "closed the communicator"));
        FACT(now_s() < began + 5);
        OK(ncclCommAbort(child));
        meet(me);
    }
    works(me, me->comm, me->n);
}

static void an_exit_is_no_error_before_a_call_that_needs_the_rank(me_t *me)
{
    works(me, me->comm, me->n);
    meet(me);
    if (me->rank == me->n - 1) exit(0);
    IS(ncclSuccess, error_within(me->comm, 0.4));
    if (me->rank == 0) {
        OK(ncclCommDestroy(me->comm));
    } else {
        IS(ncclRemoteError, all_reduce(me, me->comm));
        FACT(names(me->n - 1) && strstr(ncclGetLastError(NULL), "its process exited without ncclCommDestroy"));
        OK(ncclCommAbort(me->comm));
    }
    me->comm = NULL;
}

/* A quiet end before it does not hide it. */
static void a_kill_after_an_abort_is_told_without_a_call(me_t *me)
{
    ncclComm_t child = child_that_works(me);
    if (me->rank == 0) OK(ncclCommAbort(child));
    meet(me);
    if (me->rank != 0) IS(ncclSuccess, error_within(child, 0.3));
    meet(me);
    if (me->rank == me->n - 1) kill(getpid(), SIGKILL);
    if (me->rank != 0) {
        IS(ncclRemoteError, error_within(child, 20));
        FACT(names(me->n - 1));
        OK(ncclCommAbort(child));
    }
    OK(ncclCommAbort(me->comm));
    me->comm = NULL;
}

static void a_kill_is_told_without_a_call(me_t *me)
{
    works(me, me->comm, me->n);
    meet(me);
    if (me->rank == me->n - 1) kill(getpid(), SIGKILL);
    double began = now_s();
    IS(ncclRemoteError, error_within(me->comm, 20));
    if (me->rank == 0) printf("told after %.1f ms\n", 1e3 * (now_s() - began));
    FACT(names(me->n - 1));
    OK(ncclCommAbort(me->comm));
    me->comm = NULL;
}

static void an_exit_without_destroy_is_told(me_t *me)
{
    works(me, me->comm, me->n);
    meet(me);
    if (me->rank == me->n - 1) exit(0);
    IS(ncclRemoteError, all_reduce(me, me->comm));
    FACT(names(me->n - 1));
    OK(ncclCommAbort(me->comm));
    me->comm = NULL;
}

/* Operations on a GPU that wait for a rank that is killed: destroy ends, and says so. */
static void destroy_while_a_rank_is_killed(me_t *me)
{
    float *a = floats(me, 10, 1);
    works(me, me->comm, me->n);
    meet(me);
    if (me->rank == me->n - 1) {
        nap_s(0.3); /* the others are in destroy, mostly */
        kill(getpid(), SIGKILL);
    }
    if (on_gpu()) OK(ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, me->comm, me->stream));
    double began = now_s();
    ncclResult_t r = ncclCommDestroy(me->comm);
    me->comm = NULL;
    if (r != ncclSuccess || on_gpu()) IS(ncclRemoteError, r); /* on the CPU nothing waits for it */
    if (r != ncclSuccess) FACT(names(me->n - 1));
    FACT(now_s() < began + 10);
}

/* NCCL returns the error and keeps the communicator, for an abort; here it is gone, and the abort has nothing to
 * do. */
static void destroy_of_what_had_failed_says_so(me_t *me)
{
    for (int asked = 0; asked < 2; asked++) {
        ncclComm_t child = child_that_works(me);
        if (me->rank == 0) OK(ncclCommAbort(child));
        meet(me);
        if (me->rank != 0) IS(ncclRemoteError, all_reduce(me, child));
        meet(me); /* else some would be told of one that ended since it was told */
        if (me->rank != 0) {
            if (asked) IS(ncclRemoteError, error_within(child, 1));
            IS(ncclRemoteError, ncclCommDestroy(child));
            FACT(names(0) || !as_processes()); /* the text is the process's last one, of any thread */
            OK(ncclCommAbort(child));
            IS(ncclInvalidArgument, ncclCommDestroy(child));
        }
        meet(me);
    }
    works(me, me->comm, me->n);
}

/* What ended because its client wanted that is no failure. */
static void destroy_of_what_was_revoked_succeeds(me_t *me)
{
    ncclComm_t child = child_that_works(me);
    OK(ncclCommRevoke(child, NCCL_REVOKE_DEFAULT));
    meet(me);
    OK(ncclCommDestroy(child));
    works(me, me->comm, me->n);
}

/* KOLO_INIT_TIMEOUT_MS, which the test sets, is for starts: destroy waits longer. */
static void destroy_waits_for_a_rank_that_is_late(me_t *me)
{
    const char *limit = getenv("KOLO_INIT_TIMEOUT_MS");
    if (!limit) return;
    float *a = floats(me, 10, 1);
    ncclComm_t child = child_that_works(me);
    if (me->rank == 1) nap_s(1e-3 * atof(limit) + 1);
    OK(ncclAllReduce(a, a, 10, ncclFloat32, ncclSum, child, me->stream));
    OK(ncclCommDestroy(child));
    sync_stream(me);
    EQ(at(me, a, 9), me->n);
}

const case_t leave_cases[] = {
    {"an_abort_is_told_to_the_others", an_abort_is_told_to_the_others, EACH},
    {"an_abort_is_no_error_before_a_call_that_needs_the_rank",
     an_abort_is_no_error_before_a_call_that_needs_the_rank, EACH},
    {"an_operation_that_waits_for_a_rank_which_aborts_ends", an_operation_that_waits_for_a_rank_which_aborts_ends,
     EACH},
    {"waits_of_each_kind_end_when_a_rank_aborts", waits_of_each_kind_end_when_a_rank_aborts, EACH},
    {"destroy_waits_for_a_rank_that_is_late", destroy_waits_for_a_rank_that_is_late, EACH},
    {"a_kill_is_told_without_a_call", a_kill_is_told_without_a_call, PROCESSES},
    {"a_kill_after_an_abort_is_told_without_a_call", a_kill_after_an_abort_is_told_without_a_call, PROCESSES},
    {"an_exit_is_no_error_before_a_call_that_needs_the_rank", an_exit_is_no_error_before_a_call_that_needs_the_rank,
     PROCESSES},
    {"an_exit_without_destroy_is_told", an_exit_without_destroy_is_told, PROCESSES},
    {"destroy_of_what_had_failed_says_so", destroy_of_what_had_failed_says_so, EACH},
    {"destroy_of_what_was_revoked_succeeds", destroy_of_what_was_revoked_succeeds, EACH},
    {"destroy_while_a_rank_is_killed", destroy_while_a_rank_is_killed, PROCESSES},
    {NULL, NULL, EACH},
};
