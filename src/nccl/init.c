/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators from an id. The handle is there at once, also inside a group, where the communicator is made at the
 * end.
 */
#include "nccl/layer.h"

#include <string.h>

_Static_assert(sizeof(ncclUniqueId) == sizeof(kolo_unique_id_t), "an id is passed on as it is");

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    KOLO_NCCL_WHOLE;
    ncclResult_t r = kolo_nccl_start();
    if (r != ncclSuccess) return r;
    if (!id) return kolo_nccl_fail(ncclInvalidArgument, "ncclGetUniqueId: the output is NULL");
    return kolo_nccl_result(kolo_get_unique_id((kolo_unique_id_t *)(void *)id));
}
KOLO_NCCL_TWIN(ncclGetUniqueId, pncclGetUniqueId);

ncclResult_t kolo_nccl_run_init(kolo_nccl_job_t *job)
{
    kolo_comm_t made = NULL;
    if (kolo_nccl_life(job->comm) != KOLO_NCCL_LIVE)
        return kolo_nccl_fail(ncclInvalidUsage, "%s: communicator %p was aborted before its group ended", job->name,
                              (void *)job->comm);
    kolo_nccl_profile_load();
    kolo_config_t config = kolo_nccl_config_kolo(&job->comm->config, job->comm->blocking);
    config.device = job->device;
    ncclResult_t r = kolo_nccl_result(kolo_comm_init_rank_scalable(
        &made, job->nranks, job->rank, job->nids, (const kolo_unique_id_t *)(const void *)job->ids, &config));
    if (r == ncclSuccess || r == ncclInProgress)
        atomic_store(&job->comm->kolo, made);
    else
        atomic_store(&job->comm->failed, r);
    if (r == ncclSuccess && !kolo_nccl_grouped()) kolo_nccl_profile_open(job->comm);
    return r;
}

/* Starts the job that makes a communicator; job.name is the client's call. */
static ncclResult_t init(ncclComm_t *comm, kolo_nccl_job_t job, const ncclConfig_t *config)
{
    const char *call = job.name;
    int nranks = job.nranks, rank = job.rank, nids = job.nids;
    ncclConfig_t read;
    ncclResult_t r = kolo_nccl_start();
    if (r != ncclSuccess) return kolo_nccl_noted(r);
    if (!comm) return kolo_nccl_noted(kolo_nccl_fail(ncclInvalidArgument, "%s: the output is NULL", call));
    *comm = NULL;
    if (nranks < 1 || rank < 0 || rank >= nranks)
        return kolo_nccl_noted(kolo_nccl_fail(ncclInvalidArgument, "%s: rank %d of %d: expected 0 to %d", call,
                                              rank, nranks, nranks < 1 ? 0 : nranks - 1));
    if (!job.ids) return kolo_nccl_noted(kolo_nccl_fail(ncclInvalidArgument, "%s: the list of ids is NULL", call));
    if (nids < 1 || nids > nranks)
        return kolo_nccl_noted(kolo_nccl_fail(ncclInvalidArgument, "%s: %d ids for %d ranks: expected 1 to %d",
                                              call, nids, nranks, nranks));
    r = kolo_nccl_config_read(config, call, &read);
    if (r != ncclSuccess) return kolo_nccl_noted(r);
    ncclComm_t made = kolo_nccl_handle_new(&read, nranks, rank, job.device);
    if (!made) return kolo_nccl_noted(ncclSystemError);
    job.kind = KOLO_NCCL_INIT;
    job.comm = made;
    r = kolo_nccl_job_submit(&job);
    if (r != ncclSuccess && r != ncclInProgress) {
        kolo_nccl_handle_drop(made, 0);
        return r;
    }
    *comm = made;
    return r;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
    kolo_nccl_start();
    kolo_nccl_job_t job = {.name = "ncclCommInitRank",
                           .nranks = nranks,
                           .rank = rank,
                           .nids = 1,
                           .ids = &id,
                           .device = kolo_nccl_current_device()};
    return init(comm, job, NULL);
}
KOLO_NCCL_TWIN(ncclCommInitRank, pncclCommInitRank);

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    kolo_nccl_start();
    kolo_nccl_job_t job = {.name = "ncclCommInitRankConfig",
                           .nranks = nranks,
                           .rank = rank,
                           .nids = 1,
                           .ids = &id,
                           .device = kolo_nccl_current_device()};
    return init(comm, job, config);
}
KOLO_NCCL_TWIN(ncclCommInitRankConfig, pncclCommInitRankConfig);

ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int nids, ncclUniqueId *ids,
                                      ncclConfig_t *config)
{
    kolo_nccl_start();
    kolo_nccl_job_t job = {.name = "ncclCommInitRankScalable",
                           .nranks = nranks,
                           .rank = rank,
                           .nids = nids,
                           .ids = ids,
                           .device = kolo_nccl_current_device()};
    return init(comm, job, config);
}
KOLO_NCCL_TWIN(ncclCommInitRankScalable, pncclCommInitRankScalable);

static ncclResult_t check_devices(int n, const int *devices)
{
    for (int i = 0; devices && i < n; i++) {
        if (devices[i] < 0)
            return kolo_nccl_fail(ncclInvalidUsage, "ncclCommInitAll: device %d is %d", i, devices[i]);
        for (int j = 0; j < i; j++)
            if (devices[i] == devices[j])
                return kolo_nccl_fail(ncclInvalidUsage, "ncclCommInitAll: device %d is there twice, as %d and %d",
                                      devices[i], j, i);
    }
    return ncclSuccess;
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *devices)
{
    KOLO_NCCL_WHOLE;
    static const char call[] = "ncclCommInitAll";
    ncclUniqueId id;
    ncclResult_t r = kolo_nccl_start();
    if (r != ncclSuccess) return r;
    if (!comms || n < 1)
        return kolo_nccl_fail(ncclInvalidArgument, "%s: %d devices: expected 1 or more and an array", call, n);
    r = check_devices(n, devices);
    if (r == ncclSuccess) r = kolo_nccl_result(kolo_get_unique_id((kolo_unique_id_t *)(void *)&id));
    if (r == ncclSuccess) r = ncclGroupStart();
    if (r != ncclSuccess) return r;
    for (int i = 0; i < n; i++) {
        int device = kolo_nccl_on_cpu() ? -1 : devices ? devices[i] : i;
        kolo_nccl_job_t job = {.name = call, .nranks = n, .rank = i, .nids = 1, .ids = &id, .device = device};
        ncclResult_t one = init(&comms[i], job, NULL);
        if (r == ncclSuccess) r = one;
    }
    ncclResult_t end = ncclGroupEnd();
    if (r == ncclSuccess) r = end;
    for (int i = 0; i < n && r != ncclSuccess && r != ncclInProgress && !kolo_nccl_grouped(); i++) {
        if (comms[i]) ncclCommAbort(comms[i]);
        comms[i] = NULL;
    }
    return r;
}
KOLO_NCCL_TWIN(ncclCommInitAll, pncclCommInitAll);
