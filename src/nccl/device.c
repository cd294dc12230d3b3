/* SPDX-License-Identifier: Apache-2.0
 *
 * The host's side of NCCL's device API, which Kolo does not have: its structs are read by code compiled into the
 * client's kernels. Questions are answered with "not there"; what would make something for a kernel says so.
 */
#include "nccl/layer.h"

#include "comm/identity.h"

#include <string.h>

static ncclResult_t none(const char *call)
{
    return kolo_nccl_fail(ncclInvalidUsage,
                          "%s: Kolo has no device API: kernels cannot communicate by themselves "
                          "(ncclCommQueryProperties() says so; docs/nccl.md)",
                          call);
}

ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *properties)
{
    static const char call[] = "ncclCommQueryProperties";
    ncclCommProperties_t p;
    int nhosts;
    ncclResult_t r = kolo_nccl_check_made(comm, call);
    if (r != ncclSuccess) return r;
    if (!properties || properties->head.magic != NCCL_API_MAGIC || properties->head.size < sizeof properties->head)
        return kolo_nccl_fail(ncclInvalidArgument,
                              "%s: the output was not initialised: begin with NCCL_COMM_PROPERTIES_INITIALIZER",
                              call);
    memset(&p, 0, sizeof p);
    r = kolo_nccl_place(comm, &p.rank, &p.nRanks);
    if (r != ncclSuccess) return r;
    p.head = properties->head;
    p.cudaDev = p.nvmlDev = comm->device < 0 ? 0 : comm->device;
    p.nLsaTeams = p.nRanks;
    if (kolo_comm_identity(comm->kolo, &p.commHash, &nhosts) != KOLO_OK) p.commHash = 0;
    p.ginMinStride = 1;
    size_t bytes = properties->head.size < sizeof p ? properties->head.size : sizeof p;
    memcpy(properties, &p, bytes);
    return ncclSuccess;
}
KOLO_NCCL_TWIN(ncclCommQueryProperties, pncclCommQueryProperties);

ncclResult_t ncclDevCommCreate(ncclComm_t comm, const void *requirements, void *dev_comm)
{
    (void)comm, (void)requirements, (void)dev_comm;
    return none("ncclDevCommCreate");
}
KOLO_NCCL_TWIN(ncclDevCommCreate, pncclDevCommCreate);

ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const void *dev_comm)
{
    (void)comm, (void)dev_comm;
    return none("ncclDevCommDestroy");
}
KOLO_NCCL_TWIN(ncclDevCommDestroy, pncclDevCommDestroy);

/* ---- addresses of a window in other ranks: none ---- */

static ncclResult_t no_pointer(void **p, const char *call)
{
    if (!p) return kolo_nccl_fail(ncclInvalidArgument, "%s: the output is NULL", call);
    *p = NULL;
    return none(call);
}

/* Says no, by NULL and success: multicast is missing on most machines, and clients ask whether it is. */
static ncclResult_t no_multicast(void **p, const char *call)
{
    if (!p) return kolo_nccl_fail(ncclInvalidArgument, "%s: the output is NULL", call);
    *p = NULL;
    return ncclSuccess;
}

ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void **p)
{
    (void)window, (void)offset;
    return no_multicast(p, "ncclGetLsaMultimemDevicePointer");
}
KOLO_NCCL_TWIN(ncclGetLsaMultimemDevicePointer, pncclGetLsaMultimemDevicePointer);

ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t window, size_t offset, void *multimem, void **p)
{
    (void)window, (void)offset, (void)multimem;
    return no_multicast(p, "ncclGetMultimemDevicePointer");
}
KOLO_NCCL_TWIN(ncclGetMultimemDevicePointer, pncclGetMultimemDevicePointer);

ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int rank, void **p)
{
    (void)window, (void)offset, (void)rank;
    return no_pointer(p, "ncclGetLsaDevicePointer");
}
KOLO_NCCL_TWIN(ncclGetLsaDevicePointer, pncclGetLsaDevicePointer);

ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **p)
{
    (void)window, (void)offset, (void)peer;
    return no_pointer(p, "ncclGetPeerDevicePointer");
}
KOLO_NCCL_TWIN(ncclGetPeerDevicePointer, pncclGetPeerDevicePointer);

static ncclResult_t no_endpoint(uint32_t *id, size_t *at, const char *call)
{
    if (!id || !at) return kolo_nccl_fail(ncclInvalidArgument, "%s: an output is NULL", call);
    *id = UINT32_MAX;
    *at = 0;
    return none(call);
}

ncclResult_t ncclGetMultimemDeviceLeInfo(ncclWindow_t window, size_t offset, uint32_t *id, size_t *at)
{
    (void)window, (void)offset;
    return no_endpoint(id, at, "ncclGetMultimemDeviceLeInfo");
}
KOLO_NCCL_TWIN(ncclGetMultimemDeviceLeInfo, pncclGetMultimemDeviceLeInfo);

ncclResult_t ncclGetCftDeviceLeInfo(ncclWindow_t window, size_t offset, int peer, ncclTeam_t team, uint32_t *id,
                                    size_t *at)
{
    (void)window, (void)offset, (void)peer, (void)team;
    return no_endpoint(id, at, "ncclGetCftDeviceLeInfo");
}
KOLO_NCCL_TWIN(ncclGetCftDeviceLeInfo, pncclGetCftDeviceLeInfo);

ncclResult_t ncclGetPeerDeviceLeInfo(ncclWindow_t window, size_t offset, int peer, uint32_t *id, size_t *at)
{
    (void)window, (void)offset, (void)peer;
    return no_endpoint(id, at, "ncclGetPeerDeviceLeInfo");
}
KOLO_NCCL_TWIN(ncclGetPeerDeviceLeInfo, pncclGetPeerDeviceLeInfo);

/* ---- teams: all ranks, or the rank alone, whose memory no kernel of another reaches ---- */

ncclTeam_t ncclTeamWorld(ncclComm_t comm)
{
    ncclTeam_t team = {0, 0, 1};
    if (kolo_nccl_check_made(comm, "ncclTeamWorld") == ncclSuccess) kolo_nccl_place(comm, &team.rank, &team.nRanks);
    return team;
}
KOLO_NCCL_TWIN(ncclTeamWorld, pncclTeamWorld);

ncclTeam_t ncclTeamLsa(ncclComm_t comm)
{
    (void)comm;
    return (ncclTeam_t){1, 0, 1};
}
KOLO_NCCL_TWIN(ncclTeamLsa, pncclTeamLsa);

ncclTeam_t ncclTeamRail(ncclComm_t comm)
{
    return pncclTeamWorld(comm);
}
KOLO_NCCL_TWIN(ncclTeamRail, pncclTeamRail);

ncclTeam_t ncclTeamCft(ncclComm_t comm, int mode)
{
    (void)comm, (void)mode;
    return (ncclTeam_t){1, 0, 1};
}
KOLO_NCCL_TWIN(ncclTeamCft, pncclTeamCft);

ncclTeam_t ncclTeamCftMultimem(ncclComm_t comm)
{
    (void)comm;
    return (ncclTeam_t){1, 0, 1};
}
KOLO_NCCL_TWIN(ncclTeamCftMultimem, pncclTeamCftMultimem);

int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank)
{
    return pncclTeamWorld(comm).rank + (rank - team.rank) * team.stride;
}
KOLO_NCCL_TWIN(ncclTeamRankToWorld, pncclTeamRankToWorld);

int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank)
{
    (void)comm;
    return (rank - team.rank) * team.stride;
}
KOLO_NCCL_TWIN(ncclTeamRankToLsa, pncclTeamRankToLsa);

/* ---- what a kernel would need ---- */

ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam_t team, int n, void *handle, void *requirement)
{
    (void)team, (void)n, (void)handle, (void)requirement;
    return none("ncclLsaBarrierCreateRequirement");
}
KOLO_NCCL_TWIN(ncclLsaBarrierCreateRequirement, pncclLsaBarrierCreateRequirement);

ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int n, void *handle,
                                             void *requirement)
{
    (void)comm, (void)team, (void)n, (void)handle, (void)requirement;
    return none("ncclGinBarrierCreateRequirement");
}
KOLO_NCCL_TWIN(ncclGinBarrierCreateRequirement, pncclGinBarrierCreateRequirement);

ncclResult_t ncclCftBarrierCreateRequirement(ncclTeam_t team, int n, void *handle, void *requirement)
{
    (void)team, (void)n, (void)handle, (void)requirement;
    return none("ncclCftBarrierCreateRequirement");
}
KOLO_NCCL_TWIN(ncclCftBarrierCreateRequirement, pncclCftBarrierCreateRequirement);

ncclResult_t ncclGinOutboxCreateRequirement(int blocks, int size_log2, void *handle, void *requirement)
{
    (void)blocks, (void)size_log2, (void)handle, (void)requirement;
    return none("ncclGinOutboxCreateRequirement");
}
KOLO_NCCL_TWIN(ncclGinOutboxCreateRequirement, pncclGinOutboxCreateRequirement);

ncclResult_t ncclGinInboxA2ACreateRequirement(ncclTeam_t peers, int blocks, int size_log2, void *handle,
                                              void *requirement)
{
    (void)peers, (void)blocks, (void)size_log2, (void)handle, (void)requirement;
    return none("ncclGinInboxA2ACreateRequirement");
}
KOLO_NCCL_TWIN(ncclGinInboxA2ACreateRequirement, pncclGinInboxA2ACreateRequirement);

int ncclLLA2ACalcSlots(int elements, int bytes)
{
    return elements < 0 || bytes < 0 ? 0 : elements * ((bytes + 7) / 8); /* 8 bytes of data beside 8 of flags */
}
KOLO_NCCL_TWIN(ncclLLA2ACalcSlots, pncclLLA2ACalcSlots);

ncclResult_t ncclLLA2ACreateRequirement(int blocks, int slots, void *handle, void *requirement)
{
    (void)blocks, (void)slots, (void)handle, (void)requirement;
    return none("ncclLLA2ACreateRequirement");
}
KOLO_NCCL_TWIN(ncclLLA2ACreateRequirement, pncclLLA2ACreateRequirement);
