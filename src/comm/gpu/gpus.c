/* SPDX-License-Identifier: Apache-2.0
 *
 * Which GPUs a communicator has, and which executor runs its operations. Each rank says who its GPU is; then, with
 * all of them known, whether its GPU reaches those of the ranks on its host. Both go round, so every rank comes to
 * the same executor for the same reason.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/text/plain.h"
#include "comm/comm.h"
#include "gpu/cuda/cuda.h"
#include "gpu/gpu.h"
#include "topo/nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *forced;
static int64_t level;
int64_t kolo_gpus_profile;
static bool gpu_shared;

static const kolo_param_t rows[] = {
    {.key = "KOLO_GPU_EXECUTOR",
     .kind = KOLO_PARAM_STR,
     .def = "auto",
     .must_agree = true,
     .help = "What runs the operations of GPU communicators. cuda: kernels that reach all peers' memory; "
             "hierarchical: kernels inside each host, staged between them; staged: copies to host memory and the "
             "CPU's algorithms there; auto: the first of these that can",
     .value = &forced},
    {.key = "KOLO_P2P_LEVEL",
     .kind = KOLO_PARAM_ENUM,
     .def = "socket",
     .choices = "off|nvlink|pci|hostbridge|socket",
     .must_agree = true,
     .help =
         "How far apart two GPUs of a host may be for kernels to use the access that they have to each other: not "
         "at all, over NVLink, below one PCI switch, in one socket, anywhere; farther ones go through host memory",
     .value = &level},
    {.key = "KOLO_GPU_PROFILE",
     .kind = KOLO_PARAM_ENUM,
     .def = "latency",
     .choices = "latency|compute|balanced|quarter",
     .must_agree = true,
     .help = "What operations on GPUs are made for, where config.gpu_profile does not say it. latency: to be done "
             "soon, with most of a GPU's multiprocessors; compute: to leave them to what the program computes "
             "meanwhile; balanced: as latency, but long operations take less than half of them, except an "
             "all_reduce of 256 MB or more, which no product hides; quarter: no operation "
             "takes more, so those of four communicators find room at once",
     .value = &kolo_gpus_profile},
    {.key = "KOLO_GPU_SHARED",
     .kind = KOLO_PARAM_BOOL,
     .def = "0",
     .must_agree = true,
     .help = "1: several ranks of a communicator may use one GPU (for tests; they take turns on it)",
     .value = &gpu_shared},
};
const kolo_param_table_t kolo_gpus_params = {
    .module = "gpus", .rows = rows, .count = KOLO_COUNTOF(rows), .check = kolo_gpu_check_name};

typedef struct { /* travels; fixed layout */
    uint8_t uuid[16];
    char bus_id[20];
    int32_t ordinal, major, minor, multiprocessors;
    uint32_t kernels;   /* there are some for it */
    uint32_t shareable; /* its memory goes to other processes by descriptor */
    int32_t profile;    /* KOLO_GPU_LATENCY and others */
    int32_t queues;     /* of the hardware, that the streams of its process share */
} gpu_card_t;

enum { FEW_QUEUES = 8, MOST_QUEUES = 32 }; /* of the hardware: what the driver takes, and can take */
enum { REACH_ALL, REACH_HOSTS, REACH_KERNELS, REACH_MEMORY, REACH_PEER, REACH_FAR, REACH_RANKS };
typedef struct { /* travels: what keeps this rank from using kernels, with all ranks or with those of its host, and
                    which rank is the other one */
    int32_t why, rank;
    int32_t why_inside;
    int32_t by_pci; /* to some rank of its host there is no NVLink */
} gpu_reach_t;

/* Refuses two ranks with one GPU, which hinder each other, and mostly were not meant. By UUID alone: ordinals
 * repeat under CUDA_VISIBLE_DEVICES, and containers of one machine look like several hosts. */
static kolo_status_t check_shared(const kolo_body_t *body, const gpu_card_t *cards)
{
    const kolo_peer_card_t *peers = body->member.peers;
    for (int a = 0; a < body->nranks && !gpu_shared; a++)
        for (int b = 0; b < a; b++)
            if (memcmp(cards[a].uuid, cards[b].uuid, sizeof cards[a].uuid) == 0)
                return kolo_fail(
                    KOLO_ERR_INVALID_USAGE,
                    "rank %d (host %s, process %d) and rank %d (host %s, process %d) both use the GPU at "
                    "%.19s: each rank needs its own (KOLO_GPU_SHARED=1 allows it)",
                    b, peers[b].host_name, (int)peers[b].pid, a, peers[a].host_name, (int)peers[a].pid,
                    cards[a].bus_id);
    return KOLO_OK;
}

/* Blocks of the same number work together, so there must be as many on all ranks. */
static kolo_status_t check_profiles(const kolo_body_t *body, const gpu_card_t *cards)
{
    static const char *const names[] = {[KOLO_GPU_LATENCY] = "latency",
                                        [KOLO_GPU_COMPUTE] = "compute",
                                        [KOLO_GPU_BALANCED] = "balanced",
                                        [KOLO_GPU_QUARTER] = "quarter"};
    for (int r = 0; r < body->nranks; r++) {
        uint32_t theirs = (uint32_t)cards[r].profile; /* from another process, maybe of another version */
        if (cards[r].profile != body->gpu.profile)
            return kolo_fail(
                KOLO_ERR_MISMATCH,
                "rank %d has the GPU profile %s, rank %d %s: config.gpu_profile must be the same on all "
                "ranks",
                body->rank, names[body->gpu.profile], r,
                theirs < KOLO_COUNTOF(names) ? names[theirs] : "another one");
    }
    return KOLO_OK;
}

/* Refuses too few queues of the hardware. A stream that waits holds up what is behind it in its queue, also what it
 * waits for: then both hang, and no order of ours prevents it, since the streams are the program's. */
static kolo_status_t check_queues(const gpu_card_t *cards, int rank, const char *crowded)
{
    int queues = cards[rank].queues;
    if (!*crowded || queues >= MOST_QUEUES) return KOLO_OK;
    return kolo_fail(
        KOLO_ERR_INVALID_USAGE,
        "%s: their streams share %d queues of the hardware, so one that waits may hold up what it waits "
        "for, and both hang: set CUDA_DEVICE_MAX_CONNECTIONS=%d before the process first uses a GPU, or "
        "start a process for each rank",
        crowded, queues, MOST_QUEUES);
}

/* Tells whether the two are near enough by the topology; what it does not know is as far as can be. */
static bool is_near(const kolo_topo_t *topo, const char *a, const char *b)
{
    static const kolo_distance_t most[] = {KOLO_DISTANCE_SELF, KOLO_DISTANCE_NVLINK, KOLO_DISTANCE_PCI,
                                           KOLO_DISTANCE_HOSTBRIDGE, KOLO_DISTANCE_SOCKET};
    int from = kolo_topo_find_bus(topo, a), to = kolo_topo_find_bus(topo, b);
    kolo_distance_t apart = strcmp(a, b) == 0    ? KOLO_DISTANCE_SELF
                            : from < 0 || to < 0 ? KOLO_DISTANCE_SOCKET
                                                 : kolo_topo_distance(topo, from, to);
    return apart <= most[level];
}

/* Tells whether the peer's GPU is one that this process sees. By its number: a record would open a context there,
 * which takes half a gigabyte of that GPU. */
static bool find_visible(const gpu_card_t *peer, kolo_cu_device_t *number)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    int count = 0;
    if (api->device_count(&count) != KOLO_CU_SUCCESS) return false;
    for (int i = 0; i < count; i++) {
        kolo_cu_uuid_t uuid;
        if (api->device_get(number, i) != KOLO_CU_SUCCESS || api->device_uuid(&uuid, *number) != KOLO_CU_SUCCESS)
            continue;
        if (memcmp(uuid.bytes, peer->uuid, sizeof peer->uuid) == 0) return true;
    }
    return false;
}

/* Asks the driver about a GPU that this process sees, NVML about others on this host. What nobody says is mostly
 * so. */
static bool has_access(const kolo_cuda_device_t *device, const gpu_card_t *peer)
{
    kolo_cu_device_t number;
    int can = 1;
    if (memcmp(device->uuid.bytes, peer->uuid, sizeof peer->uuid) == 0) return true;
    if (find_visible(peer, &number))
        return kolo_cuda_loaded()->can_access_peer(&can, device->device, number) != KOLO_CU_SUCCESS || can;
    return kolo_topo_nvml_reaches(device->bus_id, peer->bus_id) != 0;
}

/* Tells whether there is no NVLink between the two. Over those GPUs have atomics on each other's memory, over the
 * PCI bus they do not. Of a GPU that this process does not see NVML tells, where it tells of NVLinks at all. What
 * nobody says is mostly not so. */
static bool is_by_pci(const kolo_cuda_device_t *device, const gpu_card_t *peer, const kolo_topo_t *topo)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    kolo_cu_device_t number;
    int atomics = 0;
    if (memcmp(device->uuid.bytes, peer->uuid, sizeof peer->uuid) == 0) return false;
    if (api->peer_attribute && find_visible(peer, &number) &&
        api->peer_attribute(&atomics, KOLO_CU_P2P_ATOMICS, device->device, number) == KOLO_CU_SUCCESS)
        return !atomics;
    int from = kolo_topo_find_bus(topo, device->bus_id), to = kolo_topo_find_bus(topo, peer->bus_id);
    bool told = from >= 0 && to >= 0 && topo->nlinks > 0;
    return told && kolo_topo_distance(topo, from, to) > KOLO_DISTANCE_NVLINK;
}

static gpu_reach_t reach_of(const kolo_body_t *body, const kolo_cuda_device_t *device, const gpu_card_t *cards)
{
    const kolo_member_t *m = &body->member;
    int me = body->rank;
    kolo_topo_t topo = {0};
    bool known = kolo_topo_load_gpus(&topo) == KOLO_OK;
    gpu_reach_t reach = {.why = REACH_ALL, .rank = me};
    for (int r = 0; r < body->nranks && reach.why == REACH_ALL; r++)
        if (m->node_of[r] == m->my_node && !has_access(device, &cards[r]))
            reach = (gpu_reach_t){.why = REACH_PEER, .rank = r};
    for (int r = 0; r < body->nranks && reach.why == REACH_ALL && known; r++)
        if (m->node_of[r] == m->my_node && !is_near(&topo, cards[me].bus_id, cards[r].bus_id))
            reach = (gpu_reach_t){.why = REACH_FAR, .rank = r};
    for (int r = 0; r < body->nranks; r++)
        if (m->node_of[r] == m->my_node && is_by_pci(device, &cards[r], &topo)) reach.by_pci = 1;
    kolo_topo_fini(&topo);
    int32_t own = !cards[me].kernels                           ? REACH_KERNELS
                  : !cards[me].shareable                       ? REACH_MEMORY
                  : m->node_size[m->my_node] > KOLO_CUDA_RANKS ? REACH_RANKS
                                                               : REACH_ALL;
    if (own != REACH_ALL) reach = (gpu_reach_t){.why = own, .rank = me, .by_pci = reach.by_pci};
    reach.why_inside = reach.why;
    for (int r = 0; r < body->nranks && reach.why == REACH_ALL; r++)
        if (m->node_of[r] != m->my_node) reach.why = REACH_HOSTS, reach.rank = r;
    return reach;
}

/* Writes which is the first rank that is kept from it, in words. */
static void put_reason(const kolo_body_t *body, const gpu_card_t *cards, const gpu_reach_t *reach, char *buf,
                       size_t bytes)
{
    const kolo_peer_card_t *peers = body->member.peers;
    int a = 0;
    while (a < body->nranks && reach[a].why == REACH_ALL) a++;
    if (a == body->nranks) {
        snprintf(buf, bytes, "all GPUs reach each other");
        return;
    }
    int b = reach[a].rank >= 0 && reach[a].rank < body->nranks ? reach[a].rank : a;
    if (reach[a].why == REACH_HOSTS)
        snprintf(buf, bytes, "rank %d is on host %s, rank %d on %s", a, peers[a].host_name, b, peers[b].host_name);
    else if (reach[a].why == REACH_KERNELS)
        snprintf(buf, bytes, "there are no kernels for the GPU of rank %d (%.19s, compute capability %d.%d)", a,
                 cards[a].bus_id, cards[a].major, cards[a].minor);
    else if (reach[a].why == REACH_MEMORY)
        snprintf(buf, bytes, "the GPU of rank %d (%.19s) cannot share memory by descriptor", a, cards[a].bus_id);
    else if (reach[a].why == REACH_FAR)
        snprintf(buf, bytes,
                 "the GPU of rank %d (%.19s) is farther from that of rank %d (%.19s) than KOLO_P2P_LEVEL", a,
                 cards[a].bus_id, b, cards[b].bus_id);
    else if (reach[a].why == REACH_RANKS)
        snprintf(buf, bytes, "there are more than %d ranks", KOLO_CUDA_RANKS);
    else
        snprintf(buf, bytes, "the GPU of rank %d (%.19s) has no access to that of rank %d (%.19s)", a,
                 cards[a].bus_id, b, cards[b].bus_id);
}

/* Writes which two ranks of one process use one GPU, in words; those with the fewest queues. Returns one of them,
 * or 0. */
static int put_crowded(const kolo_body_t *body, const gpu_card_t *cards, char *buf, size_t bytes)
{
    const kolo_peer_card_t *peers = body->member.peers;
    int rank = 0;
    for (int a = 0; a < body->nranks; a++)
        for (int b = 0; b < a; b++) {
            if (peers[a].process_hash != peers[b].process_hash ||
                memcmp(cards[a].uuid, cards[b].uuid, sizeof cards[a].uuid) != 0 ||
                (*buf && cards[a].queues >= cards[rank].queues))
                continue;
            rank = a;
            snprintf(buf, bytes, "ranks %d and %d are in one process (host %s, %d) and use one GPU, at %.19s", b, a,
                     peers[a].host_name, (int)peers[a].pid, cards[a].bus_id);
        }
    return rank;
}

static kolo_status_t choose(const kolo_body_t *body, const gpu_card_t *cards, const gpu_reach_t *reach,
                            const kolo_exec_ops_t **exec)
{
    char why[KOLO_EXEC_WHY];
    kolo_exec_gpus_t gpus = {.nranks = body->nranks,
                             .hosts = body->member.nnodes,
                             .host_of = body->member.node_of,
                             .inside = true,
                             .all = true,
                             .one_fold = body->choice.emit.one_fold};
    for (int r = 0; r < body->nranks; r++) {
        gpus.inside = gpus.inside && reach[r].why_inside == REACH_ALL;
        gpus.all = gpus.all && reach[r].why == REACH_ALL;
    }
    put_reason(body, cards, reach, gpus.reach, sizeof gpus.reach);
    int rank = put_crowded(body, cards, gpus.crowded, sizeof gpus.crowded);
    KOLO_TRY(kolo_gpu_choose(forced, &gpus, exec, why));
    if ((*exec)->by_kernels) KOLO_TRY(check_queues(cards, rank, gpus.crowded));
    kolo_info("comm", "%s rank %d of %d: GPU %d at %.19s: %s executor (%s)", body->name, body->rank, body->nranks,
              body->gpu.device, cards[body->rank].bus_id, (*exec)->name, why);
    return KOLO_OK;
}

/* Says it once: the program goes on, and its user would take the slowness for Kolo's. */
static void warn_of_no_kernels(const kolo_cuda_device_t *device)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&said)) return;
    kolo_warn(
        "comm",
        "GPU %d (compute capability %d.%d) has no kernels in this library, so all data goes through host memory, "
        "which is many times slower: %s",
        device->ordinal, device->major, device->minor, kolo_error_text());
}

static kolo_status_t fill_card(const kolo_body_t *body, const kolo_cuda_device_t *device, gpu_card_t *card)
{
    const kolo_cuda_kernels_t *kernels;
    card->profile = body->gpu.profile;
    memcpy(card->uuid, device->uuid.bytes, sizeof card->uuid);
    memcpy(card->bus_id, device->bus_id, sizeof card->bus_id);
    card->ordinal = device->ordinal;
    card->major = device->major;
    card->minor = device->minor;
    card->multiprocessors = device->multiprocessors;
    card->shareable = device->shareable;
    card->queues = kolo_cuda_connections ? atoi(kolo_cuda_connections) : FEW_QUEUES;
    card->kernels = true;
    if (!kolo_gpu_may_need_kernels(forced)) return KOLO_OK;
    kolo_status_t status = kolo_cuda_kernels(device, kolo_deadline_ms(body->init_timeout_ms), &kernels);
    card->kernels = status == KOLO_OK;
    if (!card->kernels) warn_of_no_kernels(device);
    return status == KOLO_ERR_TIMEOUT ? status : KOLO_OK; /* else others without them choose the same */
}

static kolo_status_t meet(kolo_body_t *body, gpu_card_t *cards, gpu_reach_t *reach, const kolo_exec_ops_t **exec)
{
    const kolo_cuda_device_t *device;
    KOLO_TRY(kolo_cuda_device(body->gpu.device, &device));
    KOLO_TRY(fill_card(body, device, &cards[body->rank]));
    KOLO_TRY(kolo_oob_all_gather(body->oob, cards, sizeof *cards));
    for (int r = 0; r < body->nranks; r++) /* text of other processes */
        kolo_plain_copy(cards[r].bus_id, sizeof cards[r].bus_id, cards[r].bus_id, sizeof cards[r].bus_id);
    KOLO_TRY(check_shared(body, cards));
    KOLO_TRY(check_profiles(body, cards));
    reach[body->rank] = reach_of(body, device, cards);
    KOLO_TRY(kolo_oob_all_gather(body->oob, reach, sizeof *reach));
    for (int r = 0; r < body->nranks; r++) body->gpu.by_pci = body->gpu.by_pci || reach[r].by_pci;
    return choose(body, cards, reach, exec);
}

kolo_status_t kolo_device_meet(kolo_body_t *body, const kolo_exec_ops_t **exec)
{
    gpu_card_t *cards = calloc((size_t)body->nranks, sizeof *cards);
    gpu_reach_t *reach = calloc((size_t)body->nranks, sizeof *reach);
    kolo_status_t status = cards && reach
                               ? meet(body, cards, reach, exec)
                               : kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %d GPUs", body->nranks);
    free(cards);
    free(reach);
    return status;
}
