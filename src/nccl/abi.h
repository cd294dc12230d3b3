/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL's binary interface as clients of libnccl.so.2 use it: values, layouts and functions up to version 2.32.
 * Layouts only grow at their end there, so a struct of any older version is the beginning of the one here. Written
 * from these facts; this is not NCCL's header, and clients do not include it.
 */
#ifndef KOLO_NCCL_ABI_H
#define KOLO_NCCL_ABI_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
    ncclTimeout = 8,
    ncclNumResults = 9
} ncclResult_t;

typedef enum {
    ncclInt8 = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclFloat32 = 7,
    ncclFloat64 = 8,
    ncclBfloat16 = 9,
    ncclFloat8e4m3 = 10,
    ncclFloat8e5m2 = 11,
    ncclNumTypes = 12
} ncclDataType_t;

typedef enum {
    ncclSum = 0,
    ncclProd = 1,
    ncclMax = 2,
    ncclMin = 3,
    ncclAvg = 4,
    ncclNumOps = 5, /* values from here on come from ncclRedOpCreatePreMulSum() */
    ncclMaxRedOp = INT_MAX
} ncclRedOp_t;

typedef enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 } ncclScalarResidence_t;
typedef enum {
    ncclStatGpuMemSuspend = 0,
    ncclStatGpuMemSuspended = 1,
    ncclStatGpuMemPersist = 2,
    ncclStatGpuMemTotal = 3
} ncclCommMemStat_t;

#define NCCL_API_MAGIC        0xcafebeefu
#define NCCL_SIM_INFO_MAGIC   0x74685283u
#define NCCL_UNIQUE_ID_BYTES  128
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_SPLIT_NOCOLOR    (-1)
#define NCCL_SHRINK_DEFAULT   0
#define NCCL_SHRINK_ABORT     1
#define NCCL_REVOKE_DEFAULT   0
#define NCCL_SUSPEND_MEM      1

typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

/* Begins every struct that may grow: what the client was compiled with. */
typedef struct {
    size_t size;
    unsigned magic, version;
} kolo_nccl_head_t;

typedef struct {
    kolo_nccl_head_t head;
    int blocking;                                /* 2.14 */
    int cgaClusterSize, minCTAs, maxCTAs;        /* 2.17 */
    const char *netName;                         /* 2.17 */
    int splitShare;                              /* 2.18 */
    int trafficClass;                            /* 2.25 */
    const char *commName;                        /* 2.27 */
    int collnetEnable, CTAPolicy, shrinkShare;   /* 2.27 */
    int nvlsCTAs;                                /* 2.27 */
    int nChannelsPerNetPeer, nvlinkCentricSched; /* 2.28 */
    int graphUsageMode, numRmaCtx;               /* 2.29 */
    int maxP2pPeers;                             /* 2.30 */
    int graphStreamOrdering;                     /* 2.30.5 */
    int launchOrderImplicit, numRmaSig;          /* 2.31 */
    int rmaEagerInit, hostCftMode;               /* 2.31 */
    int nvlsHostMode;                            /* 2.32 */
} ncclConfig_t;

typedef struct {
    kolo_nccl_head_t head;
    float estimatedTime;
} ncclSimInfo_t;

typedef struct ncclConfigExt {
    struct ncclConfigExt *next;
    struct {
        int vendorId, optionId;
    } key;
    union {
        int i;
        const char *s;
        void *raw;
    } val;
} ncclConfigExt_t;

/* Of one call, since 2.31. */
typedef struct {
    kolo_nccl_head_t head;
    ncclConfigExt_t *ext;
    int minCTAs, maxCTAs, nvlsCTAs, cgaClusterSize;
    const char *algSelection;
    int forceAlgSelection, CTAPolicy;
    uint64_t userProfilerTag;
    cudaEvent_t launchCompletionEvent; /* 2.32 */
} ncclCollConfig_t;

typedef struct {
    int opCnt, peer, sigIdx, ctx;
} ncclWaitSignalDesc_t;

typedef struct {
    int nRanks, rank, stride;
} ncclTeam_t;

typedef struct {
    kolo_nccl_head_t head;
    int rank, nRanks, cudaDev, nvmlDev;
    bool deviceApiSupport, multimemSupport;
    int ginType, nLsaTeams; /* 2.29 */
    bool hostRmaSupport;
    int railedGinType; /* 2.30 */
    uint64_t commHash; /* 2.31 */
    int ginMinStride, ginConnectionType;
    bool ginSupport[64];
    size_t devCommRuntimeVersionSize;
    bool cftSupport, cftMulticastSupport, cftCountedSupport; /* 2.32 */
} ncclCommProperties_t;

typedef struct {
    kolo_nccl_head_t head;
    int mode; /* 0: plain, 1: a key that all have */
    const char *psk;
} ncclEncryptionConfig_t;

typedef const struct kolo_nccl_env *ncclParamHandle_t;

#pragma GCC visibility push(default)

ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config);
ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int nids, ncclUniqueId *ids,
                                      ncclConfig_t *config);
ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *devices);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config);
ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int count, ncclComm_t *newcomm, ncclConfig_t *config,
                            int flags);
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *id);
ncclResult_t ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm,
                          ncclConfig_t *config);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result);
ncclResult_t ncclCommCount(const ncclComm_t comm, int *count);
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device);
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank);
const char *ncclGetErrorString(ncclResult_t result);
const char *ncclGetLastError(ncclComm_t comm);
void ncclResetDebugInit(void);

ncclResult_t ncclAllReduce(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduce(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void *src, void *dst, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclBcast(void *buf, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream);
ncclResult_t ncclAllGather(const void *src, void *dst, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAlltoAll(const void *src, void *dst, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream);
ncclResult_t ncclGather(const void *src, void *dst, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream);
ncclResult_t ncclScatter(const void *src, void *dst, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream);
ncclResult_t ncclAllReduceConfig(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclReduceConfig(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op,
                              int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclBroadcastConfig(const void *src, void *dst, size_t count, ncclDataType_t type, int root,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclAllGatherConfig(const void *src, void *dst, size_t count, ncclDataType_t type, ncclComm_t comm,
                                 cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclReduceScatterConfig(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                     ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclAlltoAllConfig(const void *src, void *dst, size_t count, ncclDataType_t type, ncclComm_t comm,
                                cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclGatherConfig(const void *src, void *dst, size_t count, ncclDataType_t type, int root,
                              ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclScatterConfig(const void *src, void *dst, size_t count, ncclDataType_t type, int root,
                               ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config);
ncclResult_t ncclSend(const void *buf, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void *buf, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclPutSignal(const void *src, size_t count, ncclDataType_t type, int peer, ncclWindow_t window,
                           size_t offset, int signal, int ctx, unsigned flags, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclSignal(int peer, int signal, int ctx, unsigned flags, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclWaitSignal(int n, ncclWaitSignalDesc_t *waits, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info);
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

ncclResult_t ncclMemAlloc(void **p, size_t bytes);
ncclResult_t ncclMemFree(void *p);
ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buf, size_t bytes, void **handle);
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle);
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t ncclCommResume(ncclComm_t comm);
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value);
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buf, size_t bytes, ncclWindow_t *window, int flags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window);
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void **p);

/* Answers for the device API's host side. */
ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *properties);
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const void *requirements, void *dev_comm);
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const void *dev_comm);
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void **p);
ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t window, size_t offset, void *multimem, void **p);
ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int rank, void **p);
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **p);
ncclResult_t ncclGetMultimemDeviceLeInfo(ncclWindow_t window, size_t offset, uint32_t *id, size_t *at);
ncclResult_t ncclGetCftDeviceLeInfo(ncclWindow_t window, size_t offset, int peer, ncclTeam_t team, uint32_t *id,
                                    size_t *at);
ncclResult_t ncclGetPeerDeviceLeInfo(ncclWindow_t window, size_t offset, int peer, uint32_t *id, size_t *at);
ncclTeam_t ncclTeamWorld(ncclComm_t comm);
ncclTeam_t ncclTeamLsa(ncclComm_t comm);
ncclTeam_t ncclTeamRail(ncclComm_t comm);
ncclTeam_t ncclTeamCft(ncclComm_t comm, int mode);
ncclTeam_t ncclTeamCftMultimem(ncclComm_t comm);
int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);
int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);
ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam_t team, int n, void *handle, void *requirement);
ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int n, void *handle,
                                             void *requirement);
ncclResult_t ncclCftBarrierCreateRequirement(ncclTeam_t team, int n, void *handle, void *requirement);
ncclResult_t ncclGinOutboxCreateRequirement(int blocks, int size_log2, void *handle, void *requirement);
ncclResult_t ncclGinInboxA2ACreateRequirement(ncclTeam_t peers, int blocks, int size_log2, void *handle,
                                              void *requirement);
int ncclLLA2ACalcSlots(int elements, int bytes);
ncclResult_t ncclLLA2ACreateRequirement(int blocks, int slots, void *handle, void *requirement);
ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t *config);

ncclResult_t ncclParamBind(ncclParamHandle_t *handle, const char *key);
ncclResult_t ncclParamGetI8(ncclParamHandle_t handle, int8_t *value);
ncclResult_t ncclParamGetI16(ncclParamHandle_t handle, int16_t *value);
ncclResult_t ncclParamGetI32(ncclParamHandle_t handle, int32_t *value);
ncclResult_t ncclParamGetI64(ncclParamHandle_t handle, int64_t *value);
ncclResult_t ncclParamGetU8(ncclParamHandle_t handle, uint8_t *value);
ncclResult_t ncclParamGetU16(ncclParamHandle_t handle, uint16_t *value);
ncclResult_t ncclParamGetU32(ncclParamHandle_t handle, uint32_t *value);
ncclResult_t ncclParamGetU64(ncclParamHandle_t handle, uint64_t *value);
ncclResult_t ncclParamGetStr(ncclParamHandle_t handle, const char **value);
ncclResult_t ncclParamGet(ncclParamHandle_t handle, void *out, int room, int *bytes);
ncclResult_t ncclParamGetParameter(const char *key, const char **value, int *length);
ncclResult_t ncclParamGetAllParameterKeys(const char ***keys, int *count);
void ncclParamDumpAll(void);

#pragma GCC visibility pop

/* The second name that tools which wrap the first one call. Both stand here in full. */
#define KOLO_NCCL_TWIN(name, twin) extern __typeof(name) twin __attribute__((alias(#name), visibility("default")))

#endif
