/* SPDX-License-Identifier: Apache-2.0
 *
 * Up to where each way of an operation goes, and with how many blocks: a profile's figures, over them what was
 * measured on this machine (the tuner's table file), over that the parameters. Fixed when a communicator is opened.
 */
#include "gpu/cuda/cuda.h"

#define NEVER KOLO_CUDA_NEVER

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
     .help = "Largest operation between two GPUs, in bytes, that goes in one step as lines, and longest "
             "chunk of a plan that KOLO_ALGO forces; 0: as measured",
     .value = &kolo_cuda_options.ll_bytes},
    {.key = "KOLO_GPU_LL128_SIZE",
     .kind = KOLO_PARAM_SIZE,
     .def = "0",
     .max = 1 << 30,
     .must_agree = true,
     .help =
         "Largest operation, in bytes, that goes in one step as lines of 128 bytes, and longest chunk of a plan "
         "that KOLO_ALGO forces; 0: as measured",
     .value = &kolo_cuda_options.ll128_bytes},
    {.key = "KOLO_GPU_LL128_TWO_SIZE",
     .kind = KOLO_PARAM_SIZE,
     .def = "0",
     .max = 1 << 30,
     .must_agree = true,
     .help =
         "Largest all_reduce of more than two GPUs, and reduce of three or four, in bytes, that goes in two steps "
         "as lines of 128 bytes; 0: as measured",
     .value = &kolo_cuda_options.two_bytes},
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
    {.key = "KOLO_GPU_PIPE_SIZE",
     .kind = KOLO_PARAM_SIZE,
     .def = "0",
     .max = (int64_t)1 << 50,
     .must_agree = true,
     .help = "Smallest all_reduce or reduce, in bytes, whose tiles are given to the owner of a part; 0: "
             "as measured",
     .value = &kolo_cuda_options.pipe_bytes},
    {.key = "KOLO_GPU_CHAIN_SIZE",
     .kind = KOLO_PARAM_SIZE,
     .def = "0",
     .max = (int64_t)1 << 50,
     .must_agree = true,
     .help = "Smallest reduce, in bytes, that goes from neighbour to neighbour, "
             "if its sums need not be in the order of ranks; 0: as measured",
     .value = &kolo_cuda_options.chain_bytes},
    {.key = "KOLO_GPU_CHAIN_ROW",
     .kind = KOLO_PARAM_SIZE,
     .def = "0",
     .max = 1 << 30,
     .must_agree = true,
     .help = "Bytes of the tiles of a reduce from neighbour to neighbour, of all blocks together; 0: as measured",
     .value = &kolo_cuda_options.chain_row},
    {.key = "KOLO_GPU_COPY_SIZE",
     .kind = KOLO_PARAM_SIZE,
     .def = "0",
     .max = (int64_t)1 << 50,
     .must_agree = true,
     .help = "Smallest all_gather, broadcast or all_to_all, in bytes that a rank gives, that copy engines move, "
             "without a kernel; 0: never",
     .value = &kolo_cuda_options.copy_bytes},
    {.key = "KOLO_GPU_COPY_PIECE",
     .kind = KOLO_PARAM_SIZE,
     .def = "0",
     .max = 1 << 30,
     .must_agree = true,
     .help = "Longest piece of what copy engines move without a kernel, in bytes; two for each pair of ranks are "
             "kept in a GPU's memory; 0: 16M, less among more than four",
     .value = &kolo_cuda_options.copy_piece},
    {.key = "KOLO_GPU_POISON",
     .kind = KOLO_PARAM_INT,
     .def = "-1",
     .min = -1,
     .max = 255,
     .must_agree = true,
     .help =
         "tests: the byte that a communicator's lines and stages on the GPU are filled with at first; -1: zero, "
         "as memory comes",
     .value = &kolo_cuda_options.poison},
    {.key = "KOLO_GPU_EARLY_LAUNCH",
     .kind = KOLO_PARAM_BOOL,
     .def = "1",
     .help = "Kernels may be launched beside the end of the one before them, for which they wait by themselves",
     .value = &kolo_cuda_options.early},
};
const kolo_param_table_t kolo_exec_cuda_params = {.module = "exec_cuda", .rows = rows, .count = KOLO_COUNTOF(rows)};

/* Measured on two H200 (bench/results/gpu-2.txt). Between two GPUs one step by lines wins up to ll_*. `give`: from
 * here on an all_reduce without loads from other GPUs wins, though its blocks meet once more. */
static const kolo_cuda_blocks_t two_by_length[] = {{KOLO_COLL_REDUCE, 24u << 20, 96}};
static const kolo_cuda_limits_t between_two = {.ll_all_reduce = 384u << 10,
                                               .ll_others = 384u << 10,
                                               .ll128_all_reduce = 3u << 20,
                                               .ll128_others = 3u << 20,
                                               .ll128_handed = 3u << 20,
                                               .ll128_reduce = 3u << 20,
                                               .ll128_gather = 3u << 20,
                                               .message_lines = 1536u << 10,
                                               .give = 12u << 20,
                                               .give_most = NEVER,
                                               .pipe = 96u << 20,
                                               .pipe_reduce = NEVER, /* not faster by tiles */
                                               .chain = 96u << 20,
                                               .chain_blocks = 88,
                                               .chain_row = 8u << 20,
                                               .copy = NEVER,
                                               .blocks = 64,
                                               .most_blocks = 96,
                                               .by_length = two_by_length,
                                               .nlengths = KOLO_COUNTOF(two_by_length),
                                               .ll_blocks = 64,
                                               .ll128_blocks = 128};
/* More blocks keep more under way, and those of the links that all use at once get in each other's way. */
static const kolo_cuda_blocks_t more_by_length[] = {
    {KOLO_COLL_BROADCAST, 16u << 20, 96},   {KOLO_COLL_BROADCAST, 32u << 20, 32},
    {KOLO_COLL_ALL_REDUCE, 256u << 20, 44}, {KOLO_COLL_REDUCE, 1u << 20, 16}, /* by loads */
    {KOLO_COLL_REDUCE, 48u << 20, 24},      {KOLO_COLL_REDUCE, 160u << 20, 96},
};
/* Measured on four H200 (bench/results/gpu-4.txt). One step by lines sends the whole vector to each rank, so
 * choose.c divides its limits by the number of others, but for a gather; from there on an all_reduce goes in two
 * steps by lines. */
static const kolo_cuda_limits_t among_more = {.ll_all_reduce = 384u << 10,
                                              .ll_others = 384u << 10,
                                              .ll128_all_reduce = 1152u << 10,
                                              .ll128_others = 3u << 20,
                                              .ll128_handed = 2304u << 10,
                                              .ll128_two = 5u << 20,
                                              .ll128_reduce = 2304u << 10,
                                              .ll128_two_reduce = 3u << 20,
                                              .ll128_gather = 10u << 20,
                                              .message_lines = 1536u << 10,
                                              .give = 12u << 20,
                                              .give_most = 128u << 20,
                                              .pipe = 12u << 20,
                                              .pipe_reduce = 160u << 20,
                                              .chain = 64u << 20,
                                              .chain_blocks = 88,
                                              .chain_row = 3u << 20,
                                              .copy = NEVER,
                                              .blocks = 64,
                                              .most_blocks = 96,
                                              .by_length = more_by_length,
                                              .nlengths = KOLO_COUNTOF(more_by_length),
                                              .ll_blocks = 64,
                                              .ll128_blocks = 128};
/* Beside a program's own kernels, which keep most multiprocessors (decision 0035). With few blocks loads from other
 * GPUs are no bound, and going twice over the vector, as stores alone do, takes longer. */
static const kolo_cuda_limits_t compute = {.ll_all_reduce = 256u << 10,
                                           .ll_others = 256u << 10,
                                           .ll128_all_reduce = 512u << 10,
                                           .ll128_others = 512u << 10,
                                           .ll128_handed = 512u << 10,
                                           .ll128_reduce = 512u << 10,
                                           .ll128_gather = 512u << 10,
                                           .message_lines = 1u << 20,
                                           .give = NEVER,
                                           .give_most = NEVER,
                                           .pipe = NEVER,
                                           .pipe_reduce = NEVER,
                                           .chain = NEVER,
                                           .copy = NEVER,
                                           .blocks = 10,
                                           .ll_blocks = 30,
                                           .ll128_blocks = 30};

/* As latency, but long operations take fewer blocks: all multiprocessors gain 3 % for an all_reduce of 64 MB on
 * four H200, and cost a training step whose product runs beside it 15 % (decision 0087). */
#define BALANCED_BLOCKS 20
/* No product hides an all_reduce of so many bytes, and no bucket of a training step is as long by default: it goes
 * as with latency. For two ranks, and for more. */
#define BALANCED_LONG (256u << 20)
static const kolo_cuda_blocks_t balanced_by_length[] = {{KOLO_COLL_ALL_REDUCE, BALANCED_LONG, 64},
                                                        {KOLO_COLL_ALL_REDUCE, BALANCED_LONG, 44}};

static void take(uint64_t *to, uint64_t value)
{
    if (value) *to = value;
}

/* Sets a number of blocks for every length. */
static void blocks_of_a_role(kolo_cuda_limits_t *limits, uint32_t blocks)
{
    limits->blocks = limits->most_blocks = limits->chain_blocks = blocks;
    limits->nlengths = 0;
}

void kolo_cuda_limits(const kolo_exec_tuned_t *tuned, uint32_t nranks, kolo_cuda_limits_t *limits)
{
    const kolo_cuda_options_t *o = &kolo_cuda_options;
    uint64_t blocks = (uint64_t)o->blocks;
    *limits = tuned->profile == KOLO_GPU_COMPUTE ? compute : nranks > 2 ? among_more : between_two;
    if (tuned->profile == KOLO_GPU_BALANCED || tuned->profile == KOLO_GPU_QUARTER) {
        blocks_of_a_role(limits, BALANCED_BLOCKS);
        limits->chain = NEVER;                 /* not measured with so few */
        if (nranks == 2) limits->pipe = NEVER; /* 256 MB in place took a third longer */
    }
    if (tuned->profile == KOLO_GPU_BALANCED) {
        limits->by_length = &balanced_by_length[nranks > 2];
        limits->nlengths = 1;
        limits->most_blocks = limits->by_length->blocks;
        if (nranks == 2) limits->pipe = BALANCED_LONG;
    }
    if (tuned->profile != KOLO_GPU_COMPUTE) { /* what is measured is how fast it goes */
        take(&limits->ll_all_reduce, tuned->ll_all_reduce);
        take(&limits->ll_others, tuned->ll_others);
        take(&limits->ll128_all_reduce, tuned->ll128_all_reduce);
        take(&limits->ll128_others, tuned->ll128_others);
        take(&limits->ll128_handed, tuned->ll128_others);
        take(&limits->ll128_reduce, tuned->ll128_others);
        take(&limits->ll128_gather, tuned->ll128_others);
        take(&limits->message_lines, tuned->message_lines);
        take(&limits->ll128_two, tuned->ll128_two);
        take(&limits->give, tuned->give);
        take(&limits->pipe, tuned->pipe);
    }
    take(&limits->ll_all_reduce, (uint64_t)o->ll_bytes);
    take(&limits->ll_others, (uint64_t)o->ll_bytes);
    take(&limits->ll128_all_reduce, (uint64_t)o->ll128_bytes);
    take(&limits->ll128_others, (uint64_t)o->ll128_bytes);
    take(&limits->ll128_handed, (uint64_t)o->ll128_bytes);
    take(&limits->ll128_two, (uint64_t)o->two_bytes);
    take(&limits->ll128_reduce, (uint64_t)o->ll128_bytes);
    take(&limits->ll128_two_reduce, (uint64_t)o->two_bytes);
    take(&limits->ll128_gather, (uint64_t)o->ll128_bytes);
    take(&limits->message_lines, (uint64_t)o->message_lines_bytes);
    take(&limits->give, (uint64_t)o->give_bytes);
    take(&limits->pipe, (uint64_t)o->pipe_bytes);
    take(&limits->pipe_reduce, (uint64_t)o->pipe_bytes);
    take(&limits->chain, (uint64_t)o->chain_bytes);
    take(&limits->chain_row, (uint64_t)o->chain_row);
    take(&limits->copy, (uint64_t)o->copy_bytes);
    if (blocks) blocks_of_a_role(limits, (uint32_t)blocks);
    if (limits->most_blocks < limits->blocks) limits->most_blocks = limits->blocks;
}
