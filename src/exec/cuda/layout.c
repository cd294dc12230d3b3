/* SPDX-License-Identifier: Apache-2.0
 *
 * How a rank's region is cut, and the parameters that decide it. All ranks come to the same.
 */
#include "exec/cuda/cuda.h"

kolo_cuda_options_t kolo_cuda_options;

static const kolo_param_t rows[] = {
    {.key = "KOLO_GPU_BLOCKS",
     .kind = KOLO_PARAM_INT,
     .def = "0",
     .max = KOLO_CUDA_BLOCKS,
     .must_agree = true,
     .help = "Most thread blocks of a collective's kernel; 0: by the number of ranks",
     .value = &kolo_cuda_options.blocks},
    {.key = "KOLO_GPU_STAGE_SIZE",
     .kind = KOLO_PARAM_SIZE,
     .def = "0",
     .max = 1 << 30,
     .must_agree = true,
     .help = "Device memory for each of the three groups of stages of a communicator, in bytes; 0: 16M",
     .value = &kolo_cuda_options.stage_bytes},
    {.key = "KOLO_GPU_LL_SIZE",
     .kind = KOLO_PARAM_SIZE,
     .def = "0",
     .max = 1 << 20,
     .must_agree = true,
     .help = "Largest operation between two GPUs, in bytes, that goes in one step as lines; 0: as measured",
     .value = &kolo_cuda_options.ll_bytes},
    {.key = "KOLO_GPU_LL128_SIZE",
     .kind = KOLO_PARAM_SIZE,
     .def = "0",
     .max = 1 << 30,
     .must_agree = true,
     .help = "Largest operation, in bytes, that goes in one step as lines of 128 bytes; 0: as measured",
     .value = &kolo_cuda_options.ll128_bytes},
    {.key = "KOLO_GPU_MESSAGE_LINES_SIZE",
     .kind = KOLO_PARAM_SIZE,
     .def = "0",
     .max = (1 << 27) - 1, /* kolo_message_flag() */
     .must_agree = true,
     .help = "Largest message, in bytes, that goes as lines of 128 bytes; 0: as measured",
     .value = &kolo_cuda_options.message_lines_bytes},
    {.key = "KOLO_GPU_GIVE_SIZE",
     .kind = KOLO_PARAM_SIZE,
     .def = "0",
     .max = (int64_t)1 << 50,
     .must_agree = true,
     .help = "Smallest all_reduce out of place, in bytes, that loads nothing from other GPUs; 0: as measured",
     .value = &kolo_cuda_options.give_bytes},
    {.key = "KOLO_GPU_EARLY_LAUNCH",
     .kind = KOLO_PARAM_BOOL,
     .def = "1",
     .help = "1: kernels may be launched beside the end of the one before them, for which they wait by themselves",
     .value = &kolo_cuda_options.early},
};
const kolo_param_table_t kolo_exec_cuda_params = {.module = "exec_cuda", .rows = rows, .count = KOLO_COUNTOF(rows)};

#define LINE_ROOM     (8u << 20) /* bytes for lines */
#define LINE128_ROOM  (16u << 20)
#define STAGE_ROOM    (16u << 20) /* for the stages of one phase */
#define TILE_MOST     (64u << 10)
#define TILE_LEAST    1024u
#define BLOCKS_USUAL  64u
#define LL_BLOCKS     64u
#define LL128_BLOCKS  128u
#define MESSAGE_LINES (1u << 20) /* longest message by lines */

static uint32_t clamp(uint64_t x, uint32_t low, uint32_t high)
{
    return (uint32_t)(x < low ? low : x > high ? high : x);
}

void kolo_cuda_layout(uint32_t nranks, uint32_t resident, bool shared, kolo_cuda_layout_t *l)
{
    uint64_t room = kolo_cuda_options.stage_bytes ? (uint64_t)kolo_cuda_options.stage_bytes : STAGE_ROOM;
    uint32_t peers = nranks > 1 ? nranks - 1 : 1, roles = resident / KOLO_CUDA_TWO_STEP_ROLES;
    *l = (kolo_cuda_layout_t){.nranks = nranks};
    l->blocks = clamp(kolo_cuda_options.blocks ? (uint64_t)kolo_cuda_options.blocks : BLOCKS_USUAL, 1,
                      clamp(roles, 1, KOLO_CUDA_BLOCKS));
    l->ll_blocks = clamp(LINE_ROOM / (4ull * nranks * KOLO_CUDA_LL_BLOCK_BYTES), 1, clamp(resident, 1, LL_BLOCKS));
    l->ll128_blocks = clamp(LL128_BLOCKS, 1, clamp(resident, 1, KOLO_CUDA_BLOCKS));
    l->ll128_bytes = clamp(LINE128_ROOM / (2ull * nranks * l->ll128_blocks) / 128 * 128, 1024, 65536);
    if (shared) l->ll128_blocks = 0;
    /* A launch of messages holds a chain to and one from each peer at the same time. */
    l->message_blocks = clamp(resident / (2 * peers), 1, l->blocks);
    l->tile_bytes =
        clamp(room / ((uint64_t)nranks * l->blocks * KOLO_CUDA_DEPTH) / 128 * 128, TILE_LEAST, TILE_MOST);
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
    at += (uint64_t)KOLO_CUDA_PHASES * nranks * l->blocks * KOLO_CUDA_DEPTH * l->tile_bytes;
    l->message_lines = at;
    at += (uint64_t)nranks * l->message_blocks * KOLO_CUDA_DEPTH * KOLO_CUDA_MESSAGE_SLOT_BYTES;
    l->message_lines_most =
        kolo_cuda_options.message_lines_bytes ? (uint64_t)kolo_cuda_options.message_lines_bytes : MESSAGE_LINES;
    if (shared) l->message_lines_most = 0;
    l->bytes = at;
}
