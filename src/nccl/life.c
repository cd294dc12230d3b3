/* SPDX-License-Identifier: Apache-2.0
 *
 * How a communicator is asked and how it ends. NCCL's finalize and destroy meet no other rank, and ranks may end
 * several communicators in different orders.
 */
#include "nccl/layer.h"

#include <string.h>

/* Tells whether it can leave in order: others may be late, and still need what this rank has done, which stays.
 * Whoever has windows cannot leave, others may still write into them; nor can one that was stopped. */
static bool can_leave(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    bool windows = comm->windows != NULL;
    pthread_mutex_unlock(&comm->lock);
    return !windows && !atomic_load(&comm->stopped);
}

static ncclResult_t leave(ncclComm_t comm)
{
    kolo_status_t status = kolo_comm_leave(comm->kolo);
    if (status != KOLO_IN_PROGRESS) return kolo_nccl_result(status);
    return comm->blocking ? kolo_nccl_settle(comm) : ncclInProgress;
}

static ncclResult_t aborted_meanwhile(ncclComm_t comm, const char *call)
{
    return kolo_nccl_fail(ncclInternalError, "%s: communicator %p was aborted meanwhile", call, (void *)comm);
}

/* Waits for operations and leaves. An abort by another thread ends both: without results. */
ncclResult_t kolo_nccl_run_finalize(kolo_nccl_job_t *job)
{
    ncclComm_t comm = job->comm;
    ncclResult_t r = kolo_nccl_settle(comm);
    if (r != ncclSuccess || !can_leave(comm)) return r;
    r = leave(comm);
    return r == ncclSuccess && kolo_nccl_life(comm) == KOLO_NCCL_ABORTED ? aborted_meanwhile(comm, job->name) : r;
}

static ncclResult_t end_job(ncclComm_t comm, kolo_nccl_job_kind_t kind, const char *call)
{
    const kolo_nccl_job_t job = {.kind = kind, .name = call, .comm = comm};
    return kolo_nccl_job_submit(&job);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    static const char call[] = "ncclCommFinalize";
    if (!comm) return ncclSuccess;
    ncclResult_t r = kolo_nccl_check_made(comm, call);
    if (r != ncclSuccess) return kolo_nccl_noted(r);
    if (atomic_exchange(&comm->finalized, true))
        return kolo_nccl_noted(
            kolo_nccl_fail(ncclInvalidArgument, "%s: communicator %p was finalized before", call, (void *)comm));
    return end_job(comm, KOLO_NCCL_FINALIZE, call);
}
KOLO_NCCL_TWIN(ncclCommFinalize, pncclCommFinalize);

/* Drops a child that the client never got: it is its parent's. */
static void drop_child(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    ncclComm_t child = comm->child;
    comm->child = NULL;
    pthread_mutex_unlock(&comm->lock);
    if (!child) return;
    kolo_comm_abort(child->kolo);
    kolo_nccl_handle_drop(child, KOLO_NCCL_ABORTED);
}

/* Ends it on one thread; until that has, another may abort it. */
static ncclResult_t retire(ncclComm_t comm, int life, const char *call)
{
    int live = KOLO_NCCL_LIVE;
    if (atomic_compare_exchange_strong(&comm->life, &live, life)) return ncclSuccess;
    return kolo_nccl_fail(ncclInvalidArgument, "%s: another thread has ended communicator %p", call, (void *)comm);
}

/* Tells whether the client knows why its operations ended: it has revoked it, or shrunk it in abort mode. */
static bool was_asked_for(ncclComm_t comm, kolo_status_t status)
{
    return atomic_load(&comm->stopped) &&
           (status == KOLO_ERR_ABORTED || status == KOLO_ERR_REVOKED || status == KOLO_ERR_REMOTE);
}

/* Waits and leaves, if it is one that can. A start that nobody wants any more is only freed; so is what has failed,
 * and nobody may have asked for its error before. */
static ncclResult_t leave_for_good(ncclComm_t comm)
{
    kolo_status_t now = KOLO_OK, status = kolo_comm_get_async_error(comm->kolo, &now);
    int n;
    if (status != KOLO_OK) return kolo_nccl_result(status);
    if (was_asked_for(comm, now)) return ncclSuccess;
    if (now == KOLO_IN_PROGRESS && kolo_comm_count(comm->kolo, &n) != KOLO_OK) return ncclSuccess;
    ncclResult_t r = kolo_nccl_settle(comm);
    if (r != ncclSuccess || atomic_load(&comm->finalized) || !can_leave(comm)) return r;
    status = kolo_comm_leave(comm->kolo);
    return status == KOLO_IN_PROGRESS ? kolo_nccl_settle(comm) : kolo_nccl_result(status);
}

static ncclResult_t leave_and_destroy(ncclComm_t comm)
{
    ncclResult_t left = leave_for_good(comm), r = kolo_nccl_result(kolo_comm_destroy(comm->kolo));
    return r == ncclSuccess ? left : r;
}

ncclResult_t kolo_nccl_run_destroy(kolo_nccl_job_t *job)
{
    ncclComm_t comm = job->comm;
    ncclResult_t r = retire(comm, KOLO_NCCL_ENDING, job->name);
    if (r != ncclSuccess) return r;
    drop_child(comm);
    r = comm->kolo ? leave_and_destroy(comm) : (ncclResult_t)atomic_load(&comm->failed);
    kolo_nccl_profile_close(comm);
    bool aborted = atomic_load(&comm->life) == KOLO_NCCL_ABORTED; /* by another thread meanwhile */
    kolo_nccl_handle_drop(comm, aborted ? KOLO_NCCL_ABORTED : r == ncclSuccess ? 0 : KOLO_NCCL_FAILED);
    return aborted ? aborted_meanwhile(comm, job->name) : r;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    static const char call[] = "ncclCommDestroy";
    if (!comm) return ncclSuccess;
    ncclResult_t r = kolo_nccl_check(comm, call);
    return r == ncclSuccess ? end_job(comm, KOLO_NCCL_DESTROY, call) : kolo_nccl_noted(r);
}
KOLO_NCCL_TWIN(ncclCommDestroy, pncclCommDestroy);

/* Aborts one that another thread destroys, which gives the handle back. Kolo's is gone if that is done with it. */
static bool abort_ending(ncclComm_t comm)
{
    int ending = KOLO_NCCL_ENDING;
    if (kolo_nccl_life(comm) != KOLO_NCCL_ENDING ||
        !atomic_compare_exchange_strong(&comm->life, &ending, KOLO_NCCL_ABORTED))
        return false;
    (void)kolo_comm_abort(comm->kolo);
    return true;
}

/* Takes the abort that NCCL wants after a destroy has failed: here the communicator is gone already. */
static bool abort_failed(ncclComm_t comm)
{
    int failed = KOLO_NCCL_FAILED;
    return kolo_nccl_life(comm) == KOLO_NCCL_FAILED &&
           atomic_compare_exchange_strong(&comm->life, &failed, KOLO_NCCL_ABORTED);
}

/* Aborts at once, also inside a group: it ends what the group may wait for. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    KOLO_NCCL_WHOLE;
    static const char call[] = "ncclCommAbort";
    if (!comm || abort_ending(comm) || abort_failed(comm)) return ncclSuccess;
    ncclResult_t r = kolo_nccl_check(comm, call);
    if (r == ncclSuccess) r = retire(comm, KOLO_NCCL_ABORTED, call);
    if (r != ncclSuccess) return r;
    drop_child(comm);
    if (comm->kolo) r = kolo_nccl_result(kolo_comm_abort(comm->kolo));
    kolo_nccl_profile_close(comm); /* calls of other threads have left */
    kolo_nccl_handle_drop(comm, KOLO_NCCL_ABORTED);
    return r;
}
KOLO_NCCL_TWIN(ncclCommAbort, pncclCommAbort);

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags)
{
    KOLO_NCCL_WHOLE;
    static const char call[] = "ncclCommRevoke";
    if (!comm) return ncclSuccess;
    ncclResult_t r = kolo_nccl_check_made(comm, call);
    if (r != ncclSuccess) return r;
    if (flags != NCCL_REVOKE_DEFAULT)
        return kolo_nccl_fail(ncclInvalidArgument, "%s: the flags are 0x%x: expected 0", call, (unsigned)flags);
    if (atomic_load(&comm->finalized))
        return kolo_nccl_fail(ncclInvalidArgument, "%s: communicator %p was finalized before", call, (void *)comm);
    if (atomic_exchange(&comm->stopped, true))
        return kolo_nccl_fail(ncclInvalidArgument, "%s: communicator %p was revoked before", call, (void *)comm);
    atomic_store(&comm->finalized, true); /* as with NCCL it can no longer be finalized */
    return kolo_nccl_result(kolo_comm_revoke(comm->kolo));
}
KOLO_NCCL_TWIN(ncclCommRevoke, pncclCommRevoke);

/* ---- asking ---- */

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result)
{
    KOLO_NCCL_WHOLE;
    static const char call[] = "ncclCommGetAsyncError";
    kolo_status_t now = KOLO_OK;
    if (!result) return kolo_nccl_fail(ncclInvalidArgument, "%s: the output is NULL", call);
    int life = kolo_nccl_life(comm);
    if (life == KOLO_NCCL_ABORTED) { /* an abort that is over is no error */
        *result = ncclSuccess;
        return ncclSuccess;
    }
    ncclResult_t r = life == KOLO_NCCL_ENDING ? ncclSuccess : kolo_nccl_check(comm, call);
    if (r != ncclSuccess) return r;
    if (!atomic_load(&comm->kolo)) {
        r = (ncclResult_t)atomic_load(&comm->failed);
        *result = r == ncclSuccess ? ncclInProgress : r;
        return ncclSuccess;
    }
    r = kolo_nccl_poll_child(comm);
    if (r != ncclSuccess) {
        *result = r;
        return ncclSuccess;
    }
    kolo_status_t status = kolo_comm_get_async_error(comm->kolo, &now);
    if (status != KOLO_OK) return kolo_nccl_result(status);
    if (was_asked_for(comm, now)) now = KOLO_OK;
    *result = kolo_nccl_result_polled(now, now == KOLO_OK ? "" : kolo_get_last_error(comm->kolo), &comm->reported);
    return ncclSuccess;
}
KOLO_NCCL_TWIN(ncclCommGetAsyncError, pncclCommGetAsyncError);

static ncclResult_t ask(ncclComm_t comm, const void *out, const char *call, int *rank, int *nranks)
{
    ncclResult_t r = kolo_nccl_check_made(comm, call);
    if (r != ncclSuccess) return r;
    if (!out) return kolo_nccl_fail(ncclInvalidArgument, "%s: the output is NULL", call);
    return kolo_nccl_place(comm, rank, nranks);
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    int rank, nranks;
    ncclResult_t r = ask(comm, count, "ncclCommCount", &rank, &nranks);
    if (r == ncclSuccess) *count = nranks;
    return r;
}
KOLO_NCCL_TWIN(ncclCommCount, pncclCommCount);

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    int mine, nranks;
    ncclResult_t r = ask(comm, rank, "ncclCommUserRank", &mine, &nranks);
    if (r == ncclSuccess) *rank = mine;
    return r;
}
KOLO_NCCL_TWIN(ncclCommUserRank, pncclCommUserRank);

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    int rank, nranks;
    ncclResult_t r = ask(comm, device, "ncclCommCuDevice", &rank, &nranks);
    if (r == ncclSuccess) *device = comm->device < 0 ? 0 : comm->device;
    return r;
}
KOLO_NCCL_TWIN(ncclCommCuDevice, pncclCommCuDevice);
