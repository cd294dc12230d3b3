/* SPDX-License-Identifier: Apache-2.0
 *
 * See pieces.h. Descriptors go in parts of what one offer holds, each part under the run's name with its number in
 * it.
 */
#include "gpu/peers/pieces.h"
#include "base/clock.h"
#include "base/file/fds.h"
#include "base/log.h"
#include "base/process.h"
#include "wire/mapped.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FETCH_MS 2000

struct kolo_pieces {
    kolo_cu_ptr_t at;
    uint64_t bytes;
    int device;
    uint32_t n;        /* that are mapped */
    uint64_t length[]; /* of each */
};

static void name_of(const kolo_pieces_card_t *card, uint32_t first, uint8_t name[KOLO_FDPASS_NAME_BYTES])
{
    uint32_t part = first / KOLO_FDPASS_MAX;
    memcpy(name, card->name, KOLO_FDPASS_NAME_BYTES);
    for (int i = 0; i < 4; i++) name[i] ^= (uint8_t)(part >> 8 * i);
}

static uint32_t part_of(uint32_t n, uint32_t first)
{
    return n - first < KOLO_FDPASS_MAX ? n - first : KOLO_FDPASS_MAX;
}

static void close_all(const int *fds, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) kolo_fd_close(fds[i]);
}

/* ---- the owner ---- */

static kolo_status_t export_one(uintptr_t at, int *fd)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    kolo_cu_mem_t handle;
    if (!api->mem_retain) return kolo_fail(KOLO_ERR_UNSUPPORTED, "this driver gives no handles of mapped memory");
    kolo_cu_result_t r = api->mem_retain(&handle, (void *)at); /* NOLINT: device memory */
    if (!r) {
        r = api->mem_export(fd, handle, KOLO_CU_HANDLE_FD, 0);
        api->mem_release(handle);
    }
    return r ? kolo_fail(KOLO_ERR_UNSUPPORTED, "the driver gives no descriptor: CUDA error %d", (int)r) : KOLO_OK;
}

static kolo_status_t offer_part(kolo_wire_ctx_t *ctx, const kolo_cuda_run_t *run, kolo_pieces_card_t *card,
                                uint32_t first, uintptr_t *at)
{
    int fds[KOLO_FDPASS_MAX];
    uint8_t name[KOLO_FDPASS_NAME_BYTES];
    uint32_t n = part_of(run->n, first), made = 0;
    kolo_status_t status = KOLO_OK;
    for (; made < n && status == KOLO_OK; made += status == KOLO_OK) {
        const kolo_cuda_piece_t *piece = &run->pieces[first + made];
        if (piece->bytes % KOLO_PIECES_UNIT || piece->bytes / KOLO_PIECES_UNIT > UINT32_MAX)
            status = kolo_fail(KOLO_ERR_UNSUPPORTED, "a piece of %zu bytes", piece->bytes);
        else
            status = export_one(*at, &fds[made]);
        card->units[first + made] = (uint32_t)(piece->bytes / KOLO_PIECES_UNIT);
        *at += piece->bytes;
    }
    name_of(card, first, name);
    if (status == KOLO_OK) status = kolo_fdpass_offer(name, ctx->key, fds, (int)n, 0);
    close_all(fds, made);
    return status;
}

kolo_status_t kolo_pieces_offer(kolo_wire_ctx_t *ctx, const kolo_cuda_run_t *run, kolo_pieces_card_t *card)
{
    uintptr_t at = run->base;
    card->n = 0;
    kolo_status_t status = kolo_random(card->name, sizeof card->name);
    for (uint32_t first = 0; first < run->n && status == KOLO_OK; first += KOLO_FDPASS_MAX) {
        status = offer_part(ctx, run, card, first, &at);
        if (status == KOLO_OK) card->n = first + part_of(run->n, first);
    }
    if (status == KOLO_OK) return KOLO_OK;
    kolo_pieces_withdraw(card);
    card->n = 0;
    return status;
}

void kolo_pieces_withdraw(const kolo_pieces_card_t *card)
{
    uint8_t name[KOLO_FDPASS_NAME_BYTES];
    for (uint32_t first = 0; first < card->n; first += KOLO_FDPASS_MAX) {
        name_of(card, first, name);
        kolo_fdpass_withdraw(name);
    }
}

/* ---- the others ---- */

kolo_cu_ptr_t kolo_pieces_at(const kolo_pieces_t *pieces)
{
    return pieces->at;
}

static kolo_cu_result_t map_one(kolo_pieces_t *p, uint64_t offset, uint64_t bytes, int fd)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    kolo_cu_mem_t handle;
    kolo_cu_result_t r =
        api->mem_import(&handle, (void *)(intptr_t)fd, KOLO_CU_HANDLE_FD); /* NOLINT: as it wants */
    if (r) return r;
    r = api->mem_map(p->at + offset, bytes, 0, handle, 0);
    if (!r) p->length[p->n++] = bytes;
    api->mem_release(handle); /* the mapping holds it */
    return r;
}

static kolo_status_t map_part(kolo_wire_ctx_t *ctx, int owner, const kolo_pieces_card_t *card, uint32_t first,
                              kolo_pieces_t *p, uint64_t *offset)
{
    int fds[KOLO_FDPASS_MAX];
    uint8_t name[KOLO_FDPASS_NAME_BYTES];
    uint32_t n = part_of(card->n, first);
    kolo_cu_result_t r = KOLO_CU_SUCCESS;
    name_of(card, first, name);
    KOLO_TRY(kolo_wire_fetch(ctx, &ctx->member->peers[owner], name, KOLO_FDPASS_MUST_BE_THERE, fds, (int)n));
    for (uint32_t i = 0; i < n && !r; i++) {
        uint64_t bytes = card->units[first + i] * KOLO_PIECES_UNIT;
        r = map_one(p, *offset, bytes, fds[i]);
        *offset += bytes;
    }
    close_all(fds, n);
    return r ? kolo_cuda_fail(r, p->device, "map memory of another process") : KOLO_OK;
}

static bool is_good(const kolo_pieces_card_t *card, uint64_t bytes)
{
    uint64_t sum = 0;
    if (!card->n || card->n > KOLO_CUDA_PIECES) return false;
    for (uint32_t i = 0; i < card->n; i++) {
        if (!card->units[i]) return false;
        sum += card->units[i] * KOLO_PIECES_UNIT;
    }
    return sum == bytes;
}

static kolo_status_t map_all(kolo_wire_ctx_t *ctx, int owner, const kolo_pieces_card_t *card,
                             const kolo_cuda_device_t *device, kolo_pieces_t *p)
{
    uint64_t offset = 0, before = ctx->deadline_ns;
    kolo_cu_access_t who = {{KOLO_CU_LOCATION_DEVICE, device->device}, KOLO_CU_ACCESS_READ_WRITE};
    kolo_status_t status = KOLO_OK;
    ctx->deadline_ns = kolo_deadline_ms(FETCH_MS);
    for (uint32_t first = 0; first < card->n && status == KOLO_OK; first += KOLO_FDPASS_MAX)
        status = map_part(ctx, owner, card, first, p, &offset);
    ctx->deadline_ns = before;
    KOLO_TRY(status);
    kolo_cu_result_t r = kolo_cuda_loaded()->mem_access(p->at, p->bytes, &who, 1);
    return r ? kolo_cuda_fail(r, p->device, "get access to memory of another process") : KOLO_OK;
}

kolo_status_t kolo_pieces_map(kolo_wire_ctx_t *ctx, int owner, const kolo_pieces_card_t *card, uint64_t bytes,
                              const kolo_cuda_device_t *device, kolo_pieces_t **pieces)
{
    if (!is_good(card, bytes))
        return kolo_fail(KOLO_ERR_PROTOCOL, "rank %d offers pieces that do not add up", owner);
    kolo_pieces_t *p = calloc(1, sizeof *p + card->n * sizeof p->length[0]);
    if (!p) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %u pieces", card->n);
    *p = (kolo_pieces_t){.bytes = bytes, .device = device->ordinal};
    kolo_cu_result_t r = kolo_cuda_loaded()->mem_reserve(&p->at, bytes, 0, 0, 0);
    if (r) {
        free(p);
        return kolo_cuda_fail(r, device->ordinal, "reserve addresses");
    }
    kolo_status_t status = map_all(ctx, owner, card, device, p);
    if (status == KOLO_OK)
        *pieces = p;
    else
        kolo_pieces_unmap(p);
    return status;
}

void kolo_pieces_unmap(kolo_pieces_t *p)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    kolo_cu_result_t r = KOLO_CU_SUCCESS;
    uint64_t offset = 0;
    if (!p) return;
    for (uint32_t i = 0; i < p->n && !r; offset += p->length[i++]) r = api->mem_unmap(p->at + offset, p->length[i]);
    if (!r) r = api->mem_unreserve(p->at, p->bytes);
    if (r) kolo_info("wire", "memory of another process cannot be unmapped: CUDA error %d", (int)r);
    free(p);
}
