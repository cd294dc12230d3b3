/* SPDX-License-Identifier: Apache-2.0
 *
 * Regions: cards with each GPU's identity go round, then each rank makes its region, offers it, and maps the
 * others'.
 */
#include "base/file/fds.h"
#include "base/log.h"
#include "base/process.h"
#include "gpu/peers/peers.h"
#include "share/fdpass.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Travels; fixed layout. */
typedef struct {
    uint8_t uuid[16];
    uint8_t name[KOLO_FDPASS_NAME_BYTES]; /* of the region: random, unique */
    char bus_id[20];
    int32_t ordinal, major, minor, multiprocessors;
    uint64_t bytes;
} gpu_card_t;

/* ---- regions of this process ---- */

struct kolo_region {
    uint8_t name[KOLO_FDPASS_NAME_BYTES];
    kolo_mem_t mem;
    int users;
    uint64_t allowed; /* devices of this process that may use it, beside its own */
    struct kolo_region *next;
};
typedef struct kolo_region_ref {
    struct kolo_region *region;
} kolo_region_ref_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kolo_region *regions_here;

static void region_drop(struct kolo_region *r)
{
    pthread_mutex_lock(&lock);
    bool last = --r->users == 0;
    for (struct kolo_region **at = &regions_here; last && *at; at = &(*at)->next) {
        if (*at != r) continue;
        *at = r->next;
        break;
    }
    pthread_mutex_unlock(&lock);
    if (!last) return;
    kolo_mem_free(&r->mem);
    free(r);
}

static struct kolo_region *region_add(const uint8_t *name, const kolo_mem_t *mem, bool listed)
{
    struct kolo_region *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    memcpy(r->name, name, sizeof r->name);
    r->mem = *mem;
    r->users = 1;
    pthread_mutex_lock(&lock);
    if (listed) {
        r->next = regions_here;
        regions_here = r;
    }
    pthread_mutex_unlock(&lock);
    return r;
}

static struct kolo_region *region_find(const uint8_t *name)
{
    pthread_mutex_lock(&lock);
    struct kolo_region *r = regions_here;
    while (r && memcmp(r->name, name, sizeof r->name) != 0) r = r->next;
    if (r) r->users++;
    pthread_mutex_unlock(&lock);
    return r;
}

/* ---- cards ---- */

static kolo_status_t check_cards(kolo_wire_ctx_t *ctx, const gpu_card_t *cards, kolo_regions_t *out)
{
    const kolo_peer_card_t *peers = ctx->member->peers;
    out->ranks_per_gpu = 1;
    out->min_major = cards[0].major;
    out->min_minor = cards[0].minor;
    out->min_multiprocessors = cards[0].multiprocessors;
    for (int a = 0; a < out->nranks; a++) {
        int same = 1, newest = cards[a].major * 100 + cards[a].minor;
        if (peers[a].host_hash != peers[out->rank].host_hash)
            return kolo_fail(KOLO_ERR_UNSUPPORTED,
                             "rank %d is on host %s, rank %d on %s: their GPUs do not reach each other's memory",
                             out->rank, peers[out->rank].host_name, a, peers[a].host_name);
        if (newest < out->min_major * 100 + out->min_minor) {
            out->min_major = cards[a].major;
            out->min_minor = cards[a].minor;
        }
        if (cards[a].multiprocessors < out->min_multiprocessors)
            out->min_multiprocessors = cards[a].multiprocessors;
        for (int b = 0; b < a; b++)
            if (memcmp(cards[a].uuid, cards[b].uuid, sizeof cards[a].uuid) == 0) same++;
        out->ranks_per_gpu = same > out->ranks_per_gpu ? same : out->ranks_per_gpu;
    }
    return KOLO_OK;
}

/* Lets this rank's GPU use what the peer's program got from cudaMalloc(). */
static bool open_peer(const kolo_cuda_device_t *device, int ordinal)
{
    const kolo_cuda_device_t *peer;
    int can = 0;
    if (ordinal == device->ordinal) return true;
    if (kolo_cuda_device(ordinal, &peer) != KOLO_OK) return false;
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    if (api->can_access_peer(&can, device->device, peer->device) != KOLO_CU_SUCCESS || !can) return false;
    kolo_cu_result_t r = api->enable_peer(peer->ctx, 0); /* from the current context, which is this rank's GPU's */
    return r == KOLO_CU_SUCCESS || r == KOLO_CU_PEER_ALREADY;
}

static kolo_status_t map_here(const kolo_cuda_device_t *device, const gpu_card_t *card, int peer,
                              kolo_regions_t *out)
{
    if (open_peer(device, card->ordinal)) out->here |= UINT64_C(1) << peer;
    struct kolo_region *r = region_find(card->name);
    if (!r) return kolo_fail(KOLO_ERR_REMOTE, "rank %d of this process has given its region up", peer);
    out->refs[peer].region = r;
    out->address[peer] = r->mem.address;
    pthread_mutex_lock(&lock);
    bool new = r->mem.device != device->device && !(r->allowed & UINT64_C(1) << device->ordinal);
    kolo_status_t status = new ? kolo_mem_cuda.allow(&r->mem, device->ordinal) : KOLO_OK;
    if (status == KOLO_OK) r->allowed |= UINT64_C(1) << device->ordinal;
    pthread_mutex_unlock(&lock);
    return status;
}

static kolo_status_t map_other(kolo_wire_ctx_t *ctx, const kolo_cuda_device_t *device, const gpu_card_t *card,
                               int peer, kolo_regions_t *out)
{
    int fd = -1;
    kolo_mem_t mem;
    KOLO_TRY(kolo_wire_fetch(ctx, &ctx->member->peers[peer], card->name, KOLO_FDPASS_MAY_COME, &fd, 1));
    kolo_status_t status = kolo_mem_cuda.map(fd, card->bytes, device->ordinal, &mem);
    kolo_fd_close(fd);
    if (status != KOLO_OK) return status;
    out->refs[peer].region = region_add(card->name, &mem, false);
    if (!out->refs[peer].region) {
        kolo_mem_free(&mem);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a mapped region");
    }
    out->address[peer] = mem.address;
    return KOLO_OK;
}

static kolo_status_t map_all(kolo_wire_ctx_t *ctx, const kolo_cuda_device_t *device, const gpu_card_t *cards,
                             kolo_regions_t *out)
{
    const kolo_peer_card_t *peers = ctx->member->peers;
    for (int i = 1; i < out->nranks; i++) {
        int p = (out->rank + i) % out->nranks;
        bool here = peers[p].process_hash == peers[out->rank].process_hash;
        kolo_status_t status =
            here ? map_here(device, &cards[p], p, out) : map_other(ctx, device, &cards[p], p, out);
        if (status != KOLO_OK)
            return kolo_fail_prefix(status,
                                    "rank %d (GPU %s) cannot reach the memory of rank %d (GPU %.19s): ", out->rank,
                                    device->bus_id, p, cards[p].bus_id);
        kolo_info("wire", "rank %d [%s] -> rank %d [%.19s]: %s", out->rank, device->bus_id, p, cards[p].bus_id,
                  here ? "one process, peer access" : "memory by descriptor");
    }
    return KOLO_OK;
}

/* Makes the region of this rank, lists it for this process, offers it to others. */
static kolo_status_t make_own(kolo_wire_ctx_t *ctx, const kolo_cuda_device_t *device, size_t bytes,
                              const uint8_t *name, kolo_regions_t *out)
{
    kolo_mem_t mem;
    int fd = -1;
    KOLO_TRY(kolo_mem_cuda.make(device->ordinal, bytes, &mem));
    out->refs[out->rank].region = region_add(name, &mem, true);
    if (!out->refs[out->rank].region) {
        kolo_mem_free(&mem);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a region");
    }
    out->address[out->rank] = mem.address;
    KOLO_TRY(kolo_mem_cuda.share(&mem, &fd));
    kolo_status_t status = kolo_fdpass_offer(name, ctx->key, &fd, 1, 0);
    kolo_fd_close(fd);
    return status;
}

kolo_status_t kolo_cuda_regions_open(kolo_wire_ctx_t *ctx, const kolo_cuda_device_t *device,
                                     kolo_region_bytes_fn_t bytes, void *arg, kolo_regions_t *out)
{
    int n = kolo_oob_nranks(ctx->oob), rank = kolo_oob_rank(ctx->oob);
    gpu_card_t *cards = calloc((size_t)n, sizeof *cards), *mine = cards ? &cards[rank] : NULL;
    *out = (kolo_regions_t){.nranks = n,
                            .rank = rank,
                            .here = UINT64_C(1) << rank,
                            .address = calloc((size_t)n, sizeof(void *)),
                            .ordinal = calloc((size_t)n, sizeof(int)),
                            .refs = calloc((size_t)n, sizeof(kolo_region_ref_t))};
    kolo_status_t status = KOLO_OK;
    if (!cards || !out->address || !out->ordinal || !out->refs)
        status = kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for the GPUs of %d ranks", n);
    if (status == KOLO_OK) {
        memcpy(mine->uuid, device->uuid.bytes, sizeof mine->uuid);
        memcpy(mine->bus_id, device->bus_id, sizeof mine->bus_id);
        mine->ordinal = device->ordinal;
        mine->major = device->major;
        mine->minor = device->minor;
        mine->multiprocessors = device->multiprocessors;
        status = kolo_random(mine->name, sizeof mine->name);
    }
    if (status == KOLO_OK) status = kolo_oob_all_gather(ctx->oob, cards, sizeof *cards);
    if (status == KOLO_OK) status = check_cards(ctx, cards, out);
    if (status == KOLO_OK) {
        size_t each = bytes(arg, out);
        for (int r = 0; r < n; r++) {
            cards[r].bytes = each;
            out->ordinal[r] = cards[r].ordinal;
        }
        status = make_own(ctx, device, each, mine->name, out);
    }
    if (status == KOLO_OK) status = kolo_oob_barrier(ctx->oob); /* all are listed and offered */
    if (status == KOLO_OK) status = map_all(ctx, device, cards, out);
    if (status == KOLO_OK) status = kolo_oob_barrier(ctx->oob); /* all have mapped */
    if (mine) kolo_fdpass_withdraw(mine->name);
    free(cards);
    if (status != KOLO_OK) kolo_cuda_regions_close(out);
    return status;
}

void kolo_cuda_regions_close(kolo_regions_t *regions)
{
    for (int r = 0; regions->refs && r < regions->nranks; r++)
        if (regions->refs[r].region) region_drop(regions->refs[r].region);
    free(regions->refs);
    free(regions->address);
    free(regions->ordinal);
    *regions = (kolo_regions_t){0};
}
