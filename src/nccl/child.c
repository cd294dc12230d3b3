/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators from communicators: split, shrink, grow. As with NCCL the parent's configuration decides whether a
 * split or shrink waits, and the client has the child when it is complete: of a parent that does not block,
 * ncclCommGetAsyncError() reports ncclInProgress until then.
 */
#include "nccl/layer.h"

#include "comm/life/life.h"

#include <string.h>

/* Splits what a shrink makes of a revoked parent, which itself cannot be split. It waits, for the shrink has to. */
static kolo_status_t split_revoked(const kolo_nccl_job_t *job, kolo_comm_t parent, kolo_config_t config,
                                   kolo_comm_t *made)
{
    kolo_comm_t whole = NULL;
    config.blocking = 1;
    KOLO_TRY(kolo_comm_shrink(parent, NULL, 0, KOLO_SHRINK_DEFAULT, &whole, &config));
    kolo_status_t status = kolo_comm_split(whole, job->color, job->key, made, &config), left;
    left = kolo_comm_leave(whole); /* others may still be in the split */
    kolo_comm_destroy(whole);
    return status == KOLO_OK ? left : status;
}

static kolo_status_t make(const kolo_nccl_job_t *job, const kolo_config_t *config, kolo_comm_t *made)
{
    kolo_comm_t parent = job->comm ? atomic_load(&job->comm->kolo) : NULL;
    switch (job->kind) {
    case KOLO_NCCL_SPLIT:
        if (atomic_load(&job->comm->stopped)) return split_revoked(job, parent, *config, made);
        return kolo_comm_split(parent, job->color, job->key, made, config);
    case KOLO_NCCL_SHRINK:
        return kolo_comm_shrink(parent, job->excluded, job->count,
                                job->flags & NCCL_SHRINK_ABORT ? KOLO_SHRINK_ABORT : KOLO_SHRINK_DEFAULT, made,
                                config);
    default:
        return kolo_comm_grow(parent, job->nranks,
                              job->nids ? (const kolo_unique_id_t *)(const void *)job->ids : NULL, job->rank, made,
                              config);
    }
}

/* Gives the client what a child that goes on in the background has come to. */
static ncclResult_t deliver(ncclComm_t comm, ncclResult_t r)
{
    ncclComm_t child = comm->child;
    comm->child = NULL;
    if (r != ncclSuccess) {
        if (child->kolo) kolo_comm_abort(child->kolo);
        kolo_nccl_handle_drop(child, 0);
        return r;
    }
    kolo_handle_set_blocking(child->kolo, child->blocking);
    *comm->child_out = child;
    return ncclSuccess;
}

ncclResult_t kolo_nccl_poll_child(ncclComm_t comm)
{
    kolo_status_t status, now = KOLO_OK;
    ncclResult_t r = ncclSuccess;
    pthread_mutex_lock(&comm->lock);
    if (comm->child) {
        status = kolo_comm_get_async_error(comm->child->kolo, &now);
        if (status != KOLO_OK)
            r = deliver(comm, kolo_nccl_result(status));
        else if (now == KOLO_IN_PROGRESS)
            r = ncclInProgress;
        else
            r = deliver(comm,
                        kolo_nccl_result_text(now, now == KOLO_OK ? "" : kolo_get_last_error(comm->child->kolo)));
    }
    pthread_mutex_unlock(&comm->lock);
    return r;
}

/* Refuses a second child while one goes on in the background. */
static ncclResult_t check_no_child(ncclComm_t comm, const char *call)
{
    if (kolo_nccl_poll_child(comm) != ncclInProgress) return ncclSuccess;
    return kolo_nccl_fail(ncclInvalidUsage,
                          "%s: a split or shrink of communicator %p is not complete: wait until "
                          "ncclCommGetAsyncError() no longer reports ncclInProgress",
                          call, (void *)comm);
}

ncclResult_t kolo_nccl_run_child(kolo_nccl_job_t *job)
{
    ncclComm_t parent = job->comm;
    bool grows = job->kind == KOLO_NCCL_GROW,
         none = job->kind == KOLO_NCCL_SPLIT && job->color == NCCL_SPLIT_NOCOLOR;
    ncclResult_t r = parent ? check_no_child(parent, job->name) : ncclSuccess; /* of a call of the same group */
    if (r != ncclSuccess) return r;
    ncclComm_t child = kolo_nccl_handle_new(&job->config, -1, -1, job->device);
    kolo_comm_t made = NULL;
    if (!child) return ncclSystemError;
    kolo_nccl_profile_load(); /* of a newcomer it is the first */
    int waits = grows ? child->blocking : parent->blocking;
    kolo_config_t config = kolo_nccl_config_kolo(&job->config, waits);
    config.device = job->device;
    if (parent && !(job->config.commName && *job->config.commName)) config.name = NULL; /* the parent's */
    if (job->kind == KOLO_NCCL_SHRINK && (job->flags & NCCL_SHRINK_ABORT)) atomic_store(&parent->stopped, true);
    r = kolo_nccl_result(make(job, &config, &made));
    atomic_store(&child->kolo, made);
    if (none || (r != ncclSuccess && r != ncclInProgress)) {
        kolo_nccl_handle_drop(child, 0);
        return r;
    }
    if (r == ncclInProgress && !grows) {
        pthread_mutex_lock(&parent->lock);
        parent->child = child;
        parent->child_out = job->out;
        pthread_mutex_unlock(&parent->lock);
        return r;
    }
    if (r == ncclSuccess) kolo_handle_set_blocking(made, child->blocking);
    *job->out = child;
    if (r == ncclSuccess) kolo_nccl_profile_open(child);
    return r;
}

/* Reads the child's configuration, which is the parent's if the client gives none. */
static ncclResult_t read_config(const ncclConfig_t *config, ncclComm_t parent, kolo_nccl_job_t *job)
{
    if (config || !parent) return kolo_nccl_config_read(config, job->name, &job->config);
    job->config = parent->config;
    return ncclSuccess;
}

static ncclResult_t check_parent(ncclComm_t comm, ncclComm_t *newcomm, const char *call)
{
    ncclResult_t r = kolo_nccl_check_made(comm, call);
    if (r != ncclSuccess) return r;
    if (!newcomm) return kolo_nccl_fail(ncclInvalidArgument, "%s: the output is NULL", call);
    r = check_no_child(comm, call);
    if (r != ncclSuccess) return r;
    if (comm->blocking || atomic_load(&comm->stopped)) return ncclSuccess;
    return kolo_nccl_settle(comm); /* NCCL waits for the parent, too */
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
    static const char call[] = "ncclCommSplit";
    ncclResult_t r = check_parent(comm, newcomm, call);
    if (r != ncclSuccess) return kolo_nccl_noted(r);
    kolo_nccl_job_t job = {.kind = KOLO_NCCL_SPLIT, .name = call, .comm = comm, .out = newcomm};
    *newcomm = NULL;
    if (color < 0 && color != NCCL_SPLIT_NOCOLOR)
        return kolo_nccl_noted(
            kolo_nccl_fail(ncclInvalidArgument, "%s: the color is %d: expected 0 or more", call, color));
    job.color = color;
    job.key = key;
    job.device = comm->device;
    r = read_config(config, comm, &job);
    return r == ncclSuccess ? kolo_nccl_job_submit(&job) : kolo_nccl_noted(r);
}
KOLO_NCCL_TWIN(ncclCommSplit, pncclCommSplit);

static ncclResult_t check_excluded(ncclComm_t comm, const int *excluded, int count, const char *call)
{
    int rank, nranks;
    ncclResult_t r = kolo_nccl_place(comm, &rank, &nranks);
    if (r != ncclSuccess) return r;
    if (!excluded || count < 1)
        return kolo_nccl_fail(ncclInvalidArgument, "%s: %d excluded ranks: expected a list of 1 or more", call,
                              count);
    for (int i = 0; i < count; i++) {
        if (excluded[i] < 0 || excluded[i] >= nranks)
            return kolo_nccl_fail(ncclInvalidArgument, "%s: excluded rank %d: expected 0 to %d", call, excluded[i],
                                  nranks - 1);
        if (excluded[i] == rank)
            return kolo_nccl_fail(ncclInvalidArgument, "%s: rank %d excludes itself: excluded ranks do not call",
                                  call, rank);
    }
    return ncclSuccess;
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int count, ncclComm_t *newcomm, ncclConfig_t *config,
                            int flags)
{
    static const char call[] = "ncclCommShrink";
    ncclResult_t r = kolo_nccl_check_made(comm, call);
    if (r != ncclSuccess) return kolo_nccl_noted(r);
    /* a communicator that is stuck or has failed is shrunk as it is */
    if (!(flags & NCCL_SHRINK_ABORT)) r = check_parent(comm, newcomm, call);
    if (r == ncclSuccess && !newcomm) r = kolo_nccl_fail(ncclInvalidArgument, "%s: the output is NULL", call);
    if (r == ncclSuccess) r = check_excluded(comm, excluded, count, call);
    if (r == ncclSuccess && flags & ~NCCL_SHRINK_ABORT)
        r = kolo_nccl_fail(ncclInvalidArgument, "%s: the flags are 0x%x: expected 0 or NCCL_SHRINK_ABORT", call,
                           (unsigned)flags);
    if (r != ncclSuccess) return kolo_nccl_noted(r);
    kolo_nccl_job_t job = {.kind = KOLO_NCCL_SHRINK,
                           .name = call,
                           .comm = comm,
                           .out = newcomm,
                           .excluded = excluded,
                           .count = count,
                           .flags = flags,
                           .device = comm->device};
    *newcomm = NULL;
    r = read_config(config, comm, &job);
    return r == ncclSuccess ? kolo_nccl_job_submit(&job) : kolo_nccl_noted(r);
}
KOLO_NCCL_TWIN(ncclCommShrink, pncclCommShrink);

ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *id)
{
    KOLO_NCCL_WHOLE;
    ncclResult_t r = kolo_nccl_check_made(comm, "ncclCommGetUniqueId");
    if (r != ncclSuccess) return r;
    if (!id) return kolo_nccl_fail(ncclInvalidArgument, "ncclCommGetUniqueId: the output is NULL");
    r = kolo_nccl_settle(comm);
    return r == ncclSuccess ? kolo_nccl_result(kolo_comm_get_grow_id(comm->kolo, (kolo_unique_id_t *)(void *)id))
                            : r;
}
KOLO_NCCL_TWIN(ncclCommGetUniqueId, pncclCommGetUniqueId);

ncclResult_t ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm,
                          ncclConfig_t *config)
{
    static const char call[] = "ncclCommGrow";
    ncclUniqueId copy;
    ncclResult_t r = kolo_nccl_start();
    if (r != ncclSuccess) return kolo_nccl_noted(r);
    if (!newcomm) return kolo_nccl_noted(kolo_nccl_fail(ncclInvalidArgument, "%s: the output is NULL", call));
    *newcomm = NULL;
    if (comm) r = check_parent(comm, newcomm, call);
    if (r == ncclSuccess && nranks < 1)
        r = kolo_nccl_fail(ncclInvalidArgument, "%s: the number of ranks is %d", call, nranks);
    if (r == ncclSuccess && comm && rank != -1)
        r = kolo_nccl_fail(ncclInvalidArgument, "%s: a rank of the communicator passes rank -1, not %d", call,
                           rank);
    if (r == ncclSuccess && !comm && (!id || rank < 0 || rank >= nranks))
        r = kolo_nccl_fail(ncclInvalidArgument, "%s: a new rank passes the id, and a rank below %d, not %d", call,
                           nranks, rank);
    if (r != ncclSuccess) return kolo_nccl_noted(r);
    if (id) copy = *id;
    kolo_nccl_job_t job = {.kind = KOLO_NCCL_GROW,
                           .name = call,
                           .comm = comm,
                           .out = newcomm,
                           .nranks = nranks,
                           .rank = rank,
                           .nids = id ? 1 : 0,
                           .ids = id ? &copy : NULL,
                           .device = comm ? comm->device : kolo_nccl_current_device()};
    r = read_config(config, comm, &job);
    return r == ncclSuccess ? kolo_nccl_job_submit(&job) : kolo_nccl_noted(r);
}
KOLO_NCCL_TWIN(ncclCommGrow, pncclCommGrow);
