/* SPDX-License-Identifier: Apache-2.0
 *
 * How a rank's region is cut. All ranks come to the same.
 */
#include "gpu/cuda/cuda.h"

#define LINE_ROOM    (8u << 20)  /* bytes for lines */
#define LINE128_ROOM (16u << 20) /* twice among more than two, who go in two steps by it, too */
#define STAGE_ROOM   (16u << 20) /* for the stages of one phase */
#define TILE_MOST    (64u << 10)
#define TILE_LEAST   1024u

static uint32_t clamp(uint64_t x, uint32_t low, uint32_t high)
{
    return (uint32_t)(x < low ? low : x > high ? high : x);
}

uint32_t kolo_cuda_resident(int profile, int multiprocessors, int ranks)
{
    uint32_t all = (uint32_t)(2 * multiprocessors / ranks);
    return profile == KOLO_GPU_QUARTER ? KOLO_MAX(all / 4, (uint32_t)KOLO_CUDA_TWO_STEP_ROLES) : all;
}

void kolo_cuda_cut_stages(const kolo_cuda_layout_t *l, uint32_t blocks, kolo_cuda_layout_t *cut)
{
    uint64_t each = (uint64_t)l->stage_blocks * l->tile_bytes / blocks / 128 * 128;
    cut->stage_blocks = blocks;
    cut->tile_bytes = (uint32_t)KOLO_MIN(each, (uint64_t)TILE_MOST);
}

void kolo_cuda_layout(uint32_t nranks, uint32_t resident, bool torn, const kolo_cuda_limits_t *limits,
                      kolo_cuda_layout_t *l)
{
    uint64_t room = kolo_cuda_options.stage_bytes ? (uint64_t)kolo_cuda_options.stage_bytes : STAGE_ROOM;
    uint32_t peers = nranks > 1 ? nranks - 1 : 1, roles = resident / KOLO_CUDA_TWO_STEP_ROLES;
    *l = (kolo_cuda_layout_t){.nranks = nranks};
    l->blocks = clamp(KOLO_MAX(limits->most_blocks, limits->blocks), 1, clamp(roles, 1, KOLO_CUDA_BLOCKS));
    uint32_t usual = clamp(limits->blocks, 1, l->blocks); /* if those cannot fill the room, there are more */
    l->stage_blocks = clamp(room / ((uint64_t)nranks * KOLO_CUDA_DEPTH * TILE_MOST), usual, l->blocks);
    l->ll_blocks =
        clamp(LINE_ROOM / (4ull * nranks * KOLO_CUDA_LL_BLOCK_BYTES), 1, clamp(resident, 1, limits->ll_blocks));
    l->ll128_blocks = clamp(limits->ll128_blocks, 1, clamp(resident, 1, KOLO_CUDA_BLOCKS));
    l->ll128_bytes =
        clamp((nranks > 2 ? 2 : 1) * LINE128_ROOM / (2ull * nranks * l->ll128_blocks) / 128 * 128, 1024, 65536);
    if (torn) l->ll128_blocks = 0;
    /* A launch of messages holds a chain to and one from each peer at the same time. */
    l->message_blocks = clamp(resident / (2 * peers), 1, usual);
    l->tile_bytes =
        clamp(room / ((uint64_t)nranks * l->stage_blocks * KOLO_CUDA_DEPTH) / 128 * 128, TILE_LEAST, TILE_MOST);
    uint64_t flags = (uint64_t)KOLO_CUDA_PHASES * nranks * l->blocks * KOLO_CUDA_FLAG, at = 0;
    l->counters = at;
    at += (KOLO_CUDA_COUNTERS + (uint64_t)KOLO_CUDA_MESSAGE_WAYS * nranks) * KOLO_CUDA_GRID * sizeof(uint32_t);
    at = (at + 4095) / 4096 * 4096;
    l->ready = at;
    at += flags;
    l->credit = at;
    at += flags;
    l->message_credit = at;
    at += (uint64_t)nranks * l->message_blocks * KOLO_CUDA_FLAG;
    l->message_meetings = at;
    at += (uint64_t)nranks * l->message_blocks * KOLO_CUDA_FLAG;
    at = (at + 4095) / 4096 * 4096;
    l->meetings = at;
    at += (uint64_t)nranks * KOLO_CUDA_GRID * KOLO_CUDA_FLAG;
    l->lines = at;
    at += 4ull * nranks * l->ll_blocks * KOLO_CUDA_LL_BLOCK_BYTES;
    l->lines128 = at;
    at += 2ull * nranks * l->ll128_blocks * l->ll128_bytes;
    l->stages = at;
    at += (uint64_t)KOLO_CUDA_PHASES * nranks * l->stage_blocks * KOLO_CUDA_DEPTH * l->tile_bytes;
    l->message_lines = at;
    at += (uint64_t)nranks * l->message_blocks * KOLO_CUDA_DEPTH * KOLO_CUDA_MESSAGE_SLOT_BYTES;
    l->message_lines_most = torn ? 0 : limits->message_lines;
    l->bytes = at;
}
