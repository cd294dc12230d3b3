/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL's variables, and what each is in Kolo. scripts/check-nccl writes the page of docs/nccl-env.md from this
 * table.
 */
#include "nccl/env.h"

#include "base/text/plain.h"

#include <string.h>
#include <strings.h>

#define ON_GPUS   "Kolo's kernels have their own sizes and shapes (KOLO_GPU_ parameters)"
#define CHOSEN    "Kolo chooses by itself; KOLO_ALGO forces an algorithm"
#define NO_SWITCH "Kolo does not reduce in switches"
#define ITS_OWN   "Kolo decides this by itself"
#define NO_DEVICE "kernels do not communicate by themselves"
#define FEW       "less than 32: as the profile compute, unless KOLO_GPU_PROFILE is set"

#define KOLO(key, to, words, help)                                                                                 \
    {                                                                                                              \
        key, KOLO_NCCL_ENV_KOLO, to, words, help                                                                   \
    }
#define HERE(key, help)                                                                                            \
    {                                                                                                              \
        key, KOLO_NCCL_ENV_HERE, NULL, NULL, help                                                                  \
    }
#define NONE(key, help)                                                                                            \
    {                                                                                                              \
        key, KOLO_NCCL_ENV_NONE, NULL, NULL, help                                                                  \
    }

const kolo_nccl_env_t kolo_nccl_env_table[] = {
    KOLO("NCCL_DEBUG", "KOLO_LOG", "NONE=error|VERSION=info|WARN=warn|INFO=info|ABORT=warn|TRACE=debug|*=warn",
         "how much is logged, in lines as NCCL's, with Kolo named in each"),
    KOLO("NCCL_DEBUG_FILE", "KOLO_LOG_FILE", NULL, "where to; %h is the host's name, %p the process"),
    NONE("NCCL_DEBUG_SUBSYS", "all subsystems are logged"),
    NONE("NCCL_DEBUG_TIMESTAMP_FORMAT", "lines have no time"),
    NONE("NCCL_DEBUG_TIMESTAMP_LEVELS", "lines have no time"),
    HERE("NCCL_CONF_FILE",
         "a file of NAME=value lines that is read instead of ~/.nccl.conf; /etc/nccl.conf is read, too"),
    KOLO("NCCL_COMM_ID", "KOLO_COMM_ID", NULL,
         "host:port of the root; needs the job's secret in KOLO_COMM_SECRET_FILE, for connections are proved"),
    HERE("NCCL_COMM_BLOCKING", "1 or 0: all communicators block, or none, whatever their configuration says"),
    KOLO("NCCL_HOSTID", "KOLO_HOST_ID", NULL, "ranks with one id are taken to be on one host"),
    /* the network */
    KOLO("NCCL_SOCKET_IFNAME", "KOLO_SOCKET_IFNAME", NULL,
         "prefixes of interfaces; = before the list: exact names, ^: all but these"),
    KOLO("NCCL_SOCKET_FAMILY", "KOLO_SOCKET_FAMILY", "AF_INET=ipv4|AF_INET6=ipv6|*=", "AF_INET or AF_INET6"),
    NONE("NCCL_SOCKET_NTHREADS", "KOLO_TCP_SOCKETS has the number of connections"),
    NONE("NCCL_NSOCKS_PERTHREAD", "KOLO_TCP_SOCKETS has the number of connections"),
    KOLO("NCCL_SOCKET_SNDBUF", "KOLO_TCP_SNDBUF", "-1=|*", "bytes of a socket's buffer for sending"),
    KOLO("NCCL_SOCKET_RCVBUF", "KOLO_TCP_RCVBUF", "-1=|*", "bytes of a socket's buffer for receiving"),
    NONE("NCCL_SOCKET_MAGIC", "connections are proved with the job's secret"),
    NONE("NCCL_SOCKET_RETRY_CNT", "KOLO_INIT_TIMEOUT_MS limits how long is tried"),
    NONE("NCCL_SOCKET_RETRY_SLEEP_MSEC", ITS_OWN),
    NONE("NCCL_SOCKET_POLL_TIMEOUT_MSEC", ITS_OWN),
    KOLO("NCCL_IB_DISABLE", "KOLO_NET_DISABLE", NULL, "1: no network cards by RDMA, but TCP"),
    KOLO("NCCL_IB_HCA", "KOLO_IB_HCA", NULL, "which cards"),
    KOLO("NCCL_IB_GID_INDEX", "KOLO_IB_GID_INDEX", NULL, "the GID of RoCE ports"),
    KOLO("NCCL_IB_TIMEOUT", "KOLO_IB_TIMEOUT", NULL, "the time-out of a packet, as the verbs count it"),
    KOLO("NCCL_IB_RETRY_CNT", "KOLO_IB_RETRY_CNT", NULL, "how often a packet is sent again"),
    KOLO("NCCL_IB_SL", "KOLO_IB_SL", NULL, "service level"),
    KOLO("NCCL_IB_TC", "KOLO_IB_TC", NULL, "traffic class"),
    KOLO("NCCL_IB_PKEY", "KOLO_IB_PKEY", NULL, "index of the partition key"),
    KOLO("NCCL_IB_QPS_PER_CONNECTION", "KOLO_NET_QPS", NULL, "queue pairs of a connection"),
    NONE("NCCL_IB_FIFO_TC", ITS_OWN),
    NONE("NCCL_IB_SPLIT_DATA_ON_QPS", ITS_OWN),
    NONE("NCCL_IB_ADDR_FAMILY", ITS_OWN),
    NONE("NCCL_IB_ADDR_RANGE", "KOLO_IB_GID_INDEX names the address"),
    NONE("NCCL_IB_ROCE_VERSION_NUM", "KOLO_IB_GID_INDEX names the address"),
    NONE("NCCL_IB_RETURN_ASYNC_EVENTS", "events of cards always become errors"),
    NONE("NCCL_IB_CUDA_SUPPORT", "GPUDirect RDMA is missing"),
    NONE("NCCL_IB_PCI_RELAXED_ORDERING", ITS_OWN),
    NONE("NCCL_IB_ADAPTIVE_ROUTING", ITS_OWN),
    NONE("NCCL_IB_AR_THRESHOLD", ITS_OWN),
    NONE("NCCL_IB_ECE_ENABLE", ITS_OWN),
    NONE("NCCL_IB_OOO_RQ", ITS_OWN),
    NONE("NCCL_IB_MERGE_NICS", "KOLO_NET_NICS has the number of cards"),
    NONE("NCCL_IB_RESILIENCY_PORT_FAILOVER", "a port that fails is left by itself"),
    NONE("NCCL_NET_MERGE_POLICY", "KOLO_NET_NICS has the number of cards"),
    NONE("NCCL_NETDEVS_POLICY", "KOLO_NET_NICS has the number of cards"),
    NONE("NCCL_NET", "KOLO_NET_PROVIDER names the provider"),
    KOLO("NCCL_NET_PLUGIN", "KOLO_NET_PLUGIN", "none=|*", "a network plug-in made for NCCL"),
    NONE("NCCL_NET_GDR_LEVEL", "GPUDirect RDMA is missing"),
    NONE("NCCL_NET_GDR_READ", "GPUDirect RDMA is missing"),
    NONE("NCCL_NET_GDR_C2C", "GPUDirect RDMA is missing"),
    NONE("NCCL_DMABUF_ENABLE", "GPUDirect RDMA is missing"),
    NONE("NCCL_NET_SHARED_BUFFERS", ITS_OWN),
    NONE("NCCL_NET_SHARED_COMMS", ITS_OWN),
    NONE("NCCL_CROSS_NIC", ITS_OWN),
    NONE("NCCL_PXN_DISABLE", ITS_OWN),
    NONE("NCCL_P2P_PXN_LEVEL", ITS_OWN),
    NONE("NCCL_PXN_C2C", ITS_OWN),
    NONE("NCCL_OOB_NET_ENABLE", "ranks find each other over TCP"),
    NONE("NCCL_OOB_NET_IFNAME", "ranks find each other over TCP"),
    KOLO("NCCL_UID_STAGGER_THRESHOLD", "KOLO_OOB_STAGGER_ABOVE", NULL,
         "more ranks than this call the root one after the other"),
    KOLO("NCCL_UID_STAGGER_RATE", "KOLO_OOB_STAGGER_RATE", NULL, "so many of them in a second"),
    NONE("NCCL_IGNORE_NET_MISMATCH", "a mismatch is an error"),
    NONE("NCCL_IGNORE_COLLNET_MISMATCH", NO_SWITCH),
    /* within a host */
    KOLO("NCCL_P2P_DISABLE", "KOLO_P2P_LEVEL",
         "1=off|*=", "1: GPUs do not use the access that they have to each other"),
    KOLO("NCCL_P2P_LEVEL", "KOLO_P2P_LEVEL",
         "LOC=off|NVL=nvlink|PIX=pci|PXB=pci|PHB=hostbridge|SYS=socket|0=off|1=nvlink|2=pci|3=pci|4=hostbridge|5="
         "socket|*=",
         "how far apart GPUs may be that use the access that they have to each other"),
    KOLO("NCCL_SHM_DISABLE", "KOLO_SHM_DISABLE", NULL, "1: no shared memory between processes of a host"),
    NONE("NCCL_P2P_DIRECT_DISABLE", ITS_OWN),
    NONE("NCCL_NVB_DISABLE", ITS_OWN),
    NONE("NCCL_NVLS_ENABLE", NO_SWITCH),
    NONE("NCCL_NVLS_NCHANNELS", NO_SWITCH),
    NONE("NCCL_COLLNET_ENABLE", NO_SWITCH),
    NONE("NCCL_COLLNET_NODE_THRESHOLD", NO_SWITCH),
    NONE("NCCL_MNNVL_ENABLE", "NVLink between hosts is not used"),
    NONE("NCCL_MNNVL_UUID", "NVLink between hosts is not used"),
    NONE("NCCL_MNNVL_CLIQUE_ID", "NVLink between hosts is not used"),
    NONE("NCCL_MULTI_RANK_GPU_ENABLE", "several ranks may always share a GPU"),
    NONE("NCCL_IPC_USE_ABSTRACT_SOCKET", ITS_OWN),
    NONE("NCCL_CUMEM_ENABLE", ITS_OWN),
    NONE("NCCL_CUMEM_HOST_ENABLE", "shared memory is anonymous (memfd), /dev/shm is not used"),
    NONE("NCCL_LEGACY_CUDA_REGISTER", ITS_OWN),
    NONE("NCCL_LOCAL_REGISTER", ITS_OWN),
    NONE("NCCL_GRAPH_REGISTER", ITS_OWN),
    HERE("NCCL_WIN_ENABLE", "0: as KOLO_NCCL_WINDOWS=0"),
    /* algorithms, kernels */
    NONE("NCCL_ALGO", CHOSEN),
    NONE("NCCL_PROTO", CHOSEN),
    NONE("NCCL_SINGLE_RING_THRESHOLD", CHOSEN),
    NONE("NCCL_LL_THRESHOLD", CHOSEN),
    NONE("NCCL_TREE_THRESHOLD", CHOSEN),
    NONE("NCCL_P2P_LL_THRESHOLD", CHOSEN),
    NONE("NCCL_P2P_NET_CHUNKSIZE", ON_GPUS),
    NONE("NCCL_ALLOC_P2P_NET_LL_BUFFERS", ON_GPUS),
    NONE("NCCL_BUFFSIZE", ON_GPUS),
    NONE("NCCL_NTHREADS", ON_GPUS),
    NONE("NCCL_MIN_NCHANNELS", ON_GPUS),
    HERE("NCCL_MAX_NCHANNELS", FEW),
    HERE("NCCL_MAX_NRINGS", FEW),
    NONE("NCCL_MIN_NRINGS", ON_GPUS),
    NONE("NCCL_MIN_CTAS", ON_GPUS),
    HERE("NCCL_MAX_CTAS", FEW),
    NONE("NCCL_MIN_P2P_NCHANNELS", ON_GPUS),
    NONE("NCCL_MAX_P2P_NCHANNELS", ON_GPUS),
    NONE("NCCL_NCHANNELS_PER_NET_PEER", ON_GPUS),
    NONE("NCCL_SYM_CTAS", ON_GPUS),
    NONE("NCCL_SYM_GIN_KERNELS_ENABLE", ON_GPUS),
    NONE("NCCL_CGA_CLUSTER_SIZE", ON_GPUS),
    KOLO("NCCL_CTA_POLICY", "KOLO_GPU_PROFILE",
         "DEFAULT=balanced|EFFICIENCY=compute|ZERO=compute|0=balanced|1=compute|2=compute|*=",
         "EFFICIENCY, ZERO: operations leave most of the GPU to the program"),
    NONE("NCCL_LAUNCH_MODE", ITS_OWN),
    NONE("NCCL_LAUNCH_ORDER_IMPLICIT", "the order of launches on a GPU is the program's"),
    NONE("NCCL_LAUNCH_RACE_FATAL", "the order of launches on a GPU is the program's"),
    NONE("NCCL_MEM_SYNC_DOMAIN", ITS_OWN),
    NONE("NCCL_SET_STACK_SIZE", "Kolo's kernels need no stack"),
    NONE("NCCL_SET_THREAD_NAME", ITS_OWN),
    NONE("NCCL_GRAPH_MIXING_SUPPORT", "graphs and other calls may always be mixed"),
    NONE("NCCL_GRAPH_STREAM_ORDERING", "graphs and other calls may always be mixed"),
    NONE("NCCL_RUNTIME_CONNECT", "connections are made by the first call that needs them"),
    NONE("NCCL_COMM_SPLIT_SHARE_RESOURCES", "a configuration's splitShare has it"),
    NONE("NCCL_COMM_SHRINK_SHARE_RESOURCES", ITS_OWN),
    NONE("NCCL_P2P_MAX_PEERS", ITS_OWN),
    NONE("NCCL_NUM_RMA_CTX", "a configuration's numRmaCtx has it"),
    /* topology, checks, tools */
    NONE("NCCL_TOPO_FILE", "the machine is looked at; KOLO_TOPO_FILE takes files of hwloc"),
    NONE("NCCL_TOPO_DUMP_FILE", "KOLO_TOPO_DUMP writes one"),
    NONE("NCCL_GRAPH_FILE", ITS_OWN),
    NONE("NCCL_GRAPH_DUMP_FILE", ITS_OWN),
    NONE("NCCL_IGNORE_CPU_AFFINITY", "threads are not bound"),
    NONE("NCCL_CHECKS_DISABLE", "arguments are always checked"),
    KOLO("NCCL_CHECK_POINTERS", "KOLO_CHECK", "1=basic|*=", "1: buffers are touched at both ends"),
    KOLO("NCCL_CHECK_MODE", "KOLO_CHECK",
         "DEBUG_LOCAL=basic|DEBUG_GLOBAL=deep|*=", "DEBUG_GLOBAL: all arguments of all ranks are compared"),
    NONE("NCCL_TUNER_PLUGIN", CHOSEN),
    HERE("NCCL_PROFILER_PLUGIN",
         "a profiler plug-in made for NCCL, versions 4 to 7: a file, or NAME of libnccl-profiler-NAME.so; none"),
    HERE("NCCL_PROFILE_EVENT_MASK", "plug-ins read it themselves"),
    NONE("NCCL_ENV_PLUGIN", "the environment is read as it is"),
    NONE("NCCL_RAS_ENABLE", "kolo-top shows which rank the others wait for"),
    NONE("NCCL_RAS_ADDR", "kolo-top shows which rank the others wait for"),
    NONE("NCCL_RAS_TIMEOUT_FACTOR", "kolo-top shows which rank the others wait for"),
    NONE("NCCL_NVTX_DISABLE", "there are no such marks"),
    NONE("NCCL_PARAM_DUMP_ALL", ITS_OWN),
    /* seldom set */
    NONE("NCCL_ALLGATHERV_ENABLE", ON_GPUS),
    NONE("NCCL_CHUNK_SIZE", ON_GPUS),
    NONE("NCCL_CONNECT_ROUND_MAX_PEERS", ITS_OWN),
    NONE("NCCL_DEV_API_JIT", NO_DEVICE),
    NONE("NCCL_DISABLE_MEM_MANAGER", ITS_OWN),
    NONE("NCCL_ELASTIC_BUFFER_REGISTER", ITS_OWN),
    NONE("NCCL_ENABLE_VERSION_CHECK", "a peer of another version is an error"),
    NONE("NCCL_GDAKI_USE_RELIABLE_DB", NO_DEVICE),
    NONE("NCCL_GDRCOPY_ENABLE", "GPUDirect RDMA is missing"),
    NONE("NCCL_GDRCOPY_FIFO_ENABLE", "GPUDirect RDMA is missing"),
    NONE("NCCL_GDRCOPY_FLUSH_ENABLE", "GPUDirect RDMA is missing"),
    NONE("NCCL_GDRCOPY_SYNC_ENABLE", "GPUDirect RDMA is missing"),
    NONE("NCCL_GDR_FLUSH_DISABLE", "GPUDirect RDMA is missing"),
    NONE("NCCL_GIN_CONNECTION_RAIL", NO_DEVICE),
    NONE("NCCL_GIN_ENABLE", NO_DEVICE),
    NONE("NCCL_GIN_ERROR_QUERY_SEC", NO_DEVICE),
    NONE("NCCL_GIN_GDAKI_MAX_DEST_RD_ATOMIC", NO_DEVICE),
    NONE("NCCL_GIN_GDAKI_MAX_QP_RD_ATOMIC", NO_DEVICE),
    NONE("NCCL_GIN_GDAKI_NIC_HANDLER", NO_DEVICE),
    NONE("NCCL_GIN_GDAKI_QP_DEPTH", NO_DEVICE),
    NONE("NCCL_GIN_IB_TC", NO_DEVICE),
    NONE("NCCL_GIN_NCONNECTIONS", NO_DEVICE),
    NONE("NCCL_GIN_PLUGIN", NO_DEVICE),
    NONE("NCCL_GIN_PLUGIN_REF_COUNT", NO_DEVICE),
    NONE("NCCL_GIN_PROXY_QUEUE_SIZE", NO_DEVICE),
    NONE("NCCL_GIN_TYPE", NO_DEVICE),
    NONE("NCCL_GRAPH_DUMP_FILE_RANK", ITS_OWN),
    NONE("NCCL_GRAPH_HELPER_DISABLE", ITS_OWN),
    NONE("NCCL_GROUP_CUDA_STREAM", ITS_OWN),
    NONE("NCCL_IBVERBS_LIB", ITS_OWN),
    NONE("NCCL_IB_DATA_DIRECT", ITS_OWN),
    NONE("NCCL_IB_DEVICE_PCI_ORDER", ITS_OWN),
    NONE("NCCL_IB_MERGE_VFS", ITS_OWN),
    NONE("NCCL_IB_MQP_RETRY_ALL", ITS_OWN),
    NONE("NCCL_IB_MQP_RETRY_CNT", ITS_OWN),
    NONE("NCCL_IB_MQP_RETRY_SLEEP_MSEC", ITS_OWN),
    NONE("NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS", ITS_OWN),
    NONE("NCCL_IB_QUERY_PORT_SPEED", ITS_OWN),
    NONE("NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME", ITS_OWN),
    NONE("NCCL_IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS", ITS_OWN),
    NONE("NCCL_IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY", ITS_OWN),
    NONE("NCCL_IB_RESILIENCY_PORT_RECOVERY", ITS_OWN),
    NONE("NCCL_IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT", ITS_OWN),
    NONE("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL", ITS_OWN),
    NONE("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE", ITS_OWN),
    NONE("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE", ITS_OWN),
    NONE("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT", ITS_OWN),
    NONE("NCCL_IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX", ITS_OWN),
    NONE("NCCL_IB_RESILIENCY_PORT_RECOVERY_START_DELAY", ITS_OWN),
    NONE("NCCL_IB_ROUTABLE_FLID_GID_INDEX", ITS_OWN),
    NONE("NCCL_IB_SUBNET_AWARE_ROUTING", ITS_OWN),
    NONE("NCCL_IB_SUBNET_PREFIX_LEN", ITS_OWN),
    NONE("NCCL_IB_USE_INLINE", ITS_OWN),
    NONE("NCCL_IB_WARN_RAIL_LOCAL", ITS_OWN),
    NONE("NCCL_IGNORE_DISABLED_P2P", ITS_OWN),
    NONE("NCCL_L1_SHARED_MEMORY_CARVEOUT", ON_GPUS),
    NONE("NCCL_LL128_BUFFSIZE", ON_GPUS),
    NONE("NCCL_LL128_C2C", ON_GPUS),
    NONE("NCCL_LL128_NTHREADS", ON_GPUS),
    NONE("NCCL_LL_BUFFSIZE", ON_GPUS),
    NONE("NCCL_LSA_TEAM_SIZE", NO_DEVICE),
    NONE("NCCL_MLOPART_RDMA_ENABLE", ITS_OWN),
    NONE("NCCL_MNNVL_CROSS_CLIQUE", "NVLink between hosts is not used"),
    NONE("NCCL_MNNVL_RAIL_PER_HOST", "NVLink between hosts is not used"),
    NONE("NCCL_MNNVL_SCATTER_NETS_ENABLE", "NVLink between hosts is not used"),
    NONE("NCCL_MULTI_SEGMENT_REGISTER", ITS_OWN),
    NONE("NCCL_NET_DISABLE_INTRA", ITS_OWN),
    NONE("NCCL_NET_FORCE_FLUSH", ITS_OWN),
    NONE("NCCL_NET_FORCE_MERGE", ITS_OWN),
    NONE("NCCL_NET_GDR_MLOPART", "GPUDirect RDMA is missing"),
    NONE("NCCL_NET_MERGE_LEVEL", ITS_OWN),
    NONE("NCCL_NET_OPTIONAL_RECV_COMPLETION", ITS_OWN),
    NONE("NCCL_NET_OVERHEAD", ITS_OWN),
    NONE("NCCL_NET_PLUGIN_REF_COUNT", ITS_OWN),
    NONE("NCCL_NO_CACHE", ITS_OWN),
    NONE("NCCL_NVB_PRECONNECT", ITS_OWN),
    NONE("NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE", ITS_OWN),
    NONE("NCCL_NVLSTREE_MAX_CHUNKSIZE", NO_SWITCH),
    NONE("NCCL_NVLS_CHUNKSIZE", NO_SWITCH),
    NONE("NCCL_P2P_EPOCH_ENABLE", ITS_OWN),
    NONE("NCCL_P2P_NVL_CHUNKSIZE", ON_GPUS),
    NONE("NCCL_P2P_PCI_CHUNKSIZE", ON_GPUS),
    NONE("NCCL_P2P_PER_CHANNEL_NET_BW", ITS_OWN),
    NONE("NCCL_P2P_READ_ENABLE", ITS_OWN),
    NONE("NCCL_P2P_SCHEDULE_GROUP_SIZE", ITS_OWN),
    NONE("NCCL_P2P_USE_CUDA_MEMCPY", ITS_OWN),
    NONE("NCCL_PAT_ENABLE", CHOSEN),
    NONE("NCCL_PROGRESS_APPENDOP_FREQ", ITS_OWN),
    NONE("NCCL_PROXY_APPEND_BATCH_SIZE", ITS_OWN),
    NONE("NCCL_PROXY_CPUSET", ITS_OWN),
    NONE("NCCL_PROXY_DUMP_SIGNAL", ITS_OWN),
    NONE("NCCL_REPORT_CONNECT_PROGRESS", ITS_OWN),
    NONE("NCCL_RMA_DISABLE", NO_DEVICE),
    NONE("NCCL_RMA_PLUGIN", NO_DEVICE),
    NONE("NCCL_RMA_PLUGIN_REF_COUNT", NO_DEVICE),
    NONE("NCCL_RMA_PROXY_DUMP_SIGNAL", NO_DEVICE),
    NONE("NCCL_RMA_PROXY_QUEUE_SIZE", NO_DEVICE),
    NONE("NCCL_SET_CPU_STACK_SIZE", ITS_OWN),
    NONE("NCCL_SHADOW_MEMPOOL_MAX_SIZE", ITS_OWN),
    NONE("NCCL_SHM_LOCALITY", ITS_OWN),
    NONE("NCCL_SINGLE_PROC_MEM_REG_ENABLE", ITS_OWN),
    NONE("NCCL_SOCKET_INLINE", ITS_OWN),
    NONE("NCCL_SOCKET_MIN_TASKSIZE", ITS_OWN),
    NONE("NCCL_SYM_CE_THRESHOLD", NO_DEVICE),
    NONE("NCCL_SYM_KERNEL", NO_DEVICE),
    NONE("NCCL_SYM_NOWIN_ENABLE", NO_DEVICE),
    NONE("NCCL_SYM_REUSE_SYSMEM_HANDLES", NO_DEVICE),
    NONE("NCCL_SYM_RS_GIN_CHUNK_SIZE", NO_DEVICE),
    NONE("NCCL_SYM_TMA_ENABLE", NO_DEVICE),
    NONE("NCCL_THREAD_THRESHOLDS", ON_GPUS),
    NONE("NCCL_TOPO_DUMP_FILE_RANK", "KOLO_TOPO_DUMP writes one"),
    NONE("NCCL_TOPO_SPLIT_MLOPART", ITS_OWN),
    NONE("NCCL_UNPACK_DOUBLE_NCHANNELS", ON_GPUS),
    NONE("NCCL_WIN_STRIDE", NO_DEVICE),
    NONE("NCCL_WORK_ARGS_BYTES", ON_GPUS),
    NONE("NCCL_WORK_FIFO_BYTES", ON_GPUS),
    /* not NCCL's own */
    NONE("NCCL_VERSION", "images and packages set it; KOLO_NCCL_VERSION is what this library claims"),
    NONE("NCCL_HOME", "for builds of programs"),
    NONE("NCCL_ROOT", "for builds of programs"),
    NONE("NCCL_INCLUDE_DIR", "for builds of programs"),
    NONE("NCCL_LIB_DIR", "for builds of programs"),
};
const size_t kolo_nccl_env_count = sizeof kolo_nccl_env_table / sizeof kolo_nccl_env_table[0];

const kolo_nccl_env_t *kolo_nccl_env_find(const char *key, size_t length)
{
    for (size_t i = 0; i < kolo_nccl_env_count; i++)
        if (strlen(kolo_nccl_env_table[i].key) == length && memcmp(kolo_nccl_env_table[i].key, key, length) == 0)
            return &kolo_nccl_env_table[i];
    return NULL;
}

/* Words as lines of one string, cut at its first use, are kept whole here: the answer is one of few. */
static const char *const known[] = {"error", "warn",       "info",   "debug",   "ipv4",    "ipv6",  "off", "nvlink",
                                    "pci",   "hostbridge", "socket", "latency", "compute", "basic", "deep"};

static const char *word(const char *at, size_t length)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strlen(known[i]) == length && memcmp(known[i], at, length) == 0) return known[i];
    return NULL;
}

const char *kolo_nccl_env_word(const kolo_nccl_env_t *row, const char *text)
{
    const char *p = row->words;
    while (p && *p) {
        size_t all = strcspn(p, "|"), name = strcspn(p, "=|");
        if ((name == 1 && *p == '*') || kolo_plain_is_word(p, name, text)) {
            if (name == all) return text;
            return word(p + name + 1, all - name - 1);
        }
        p += all + (p[all] == '|');
    }
    return text;
}
