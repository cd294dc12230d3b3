/* SPDX-License-Identifier: Apache-2.0
 *
 * What host and kernels share: how a rank's region of device memory is laid out, and the arguments of a launch.
 * Plain C, read by gcc and by nvcc.
 *
 * Every rank has one region, and every peer has it mapped. Others write there: lines (ll.cuh) and stages
 * (staged.cuh) of what they send to this rank, and flags. A block of a launch works with the blocks of the same
 * number at the peers, and each block counts its own operations in memory that only it writes, so a launch needs no
 * number from the host and a captured graph may be replayed.
 */
#ifndef KOLO_GPU_CUDA_ARGS_H
#define KOLO_GPU_CUDA_ARGS_H

#include <stdint.h>

#define KOLO_CUDA_RANKS       32                     /* of one communicator of GPUs */
#define KOLO_CUDA_THREADS     512                    /* per block */
#define KOLO_CUDA_BLOCKS      128                    /* at most of one role */
#define KOLO_CUDA_GRID        (3 * KOLO_CUDA_BLOCKS) /* at most per launch */
#define KOLO_CUDA_DEPTH       2u                     /* tiles under way from one rank's block to another's */
#define KOLO_CUDA_CHAIN_DEPTH 4u                     /* the same in a chain */
#define KOLO_CUDA_PHASES      3                      /* stages: first step, second step, messages */
#define KOLO_CUDA_FLAG        128u                   /* bytes from one flag to the next */

/* Bytes of payload that a block sends to one peer by lines in one operation; lines take twice as much room. */
#define KOLO_CUDA_LL_BLOCK_BYTES 16384u
/* A message takes a block more for each of these; by lines of 128 bytes, for so many lines. */
#define KOLO_CUDA_MESSAGE_BLOCK_BYTES 8192u
#define KOLO_CUDA_MESSAGE_BLOCK_LINES 64u
/* Lines of a message that one block has room for at its receiver, KOLO_CUDA_DEPTH times. */
#define KOLO_CUDA_MESSAGE_SLOT_LINES 256u
#define KOLO_CUDA_MESSAGE_SLOT_BYTES (KOLO_CUDA_MESSAGE_SLOT_LINES * 128u + 128u) /* the last: what it is */

typedef struct {
    uint32_t nranks;
    uint32_t ll_blocks, blocks;         /* at most: blocks by lines; blocks of a role by stages */
    uint32_t message_blocks;            /* most blocks that move one message */
    uint32_t ll128_blocks, ll128_bytes; /* lines of 128 bytes: blocks at most, and bytes of lines of each */
    uint32_t stage_blocks;   /* whose tiles the stages hold: of messages, or as a call cuts them (choose.c) */
    uint32_t tile_bytes;     /* largest tile, a multiple of 128 */
    uint64_t counters;       /* offsets in a region: uint32_t [KOLO_CUDA_COUNTERS + MESSAGE_WAYS * nranks][GRID] */
    uint64_t ready, credit;  /* flags [PHASES][nranks][blocks] */
    uint64_t meetings;       /* [nranks][GRID], see direct.cuh */
    uint64_t lines;          /* [2][nranks][ll_blocks][2 * KOLO_CUDA_LL_BLOCK_BYTES] */
    uint64_t lines128;       /* [2][nranks][ll128_blocks][ll128_bytes] */
    uint64_t stages;         /* [PHASES][nranks][stage_blocks][DEPTH][tile_bytes] */
    uint64_t message_lines;  /* [nranks][message_blocks][DEPTH][MESSAGE_SLOT_BYTES] */
    uint64_t message_credit; /* flags [nranks][message_blocks] */
    uint64_t message_meetings;   /* [nranks][message_blocks], see messages.cuh */
    uint64_t message_lines_most; /* longest message by lines, in bytes */
    uint64_t bytes;              /* of a region */
} kolo_cuda_layout_t;

/* What a kernel that gave up leaves in pinned host memory; the host puts it into words. */
typedef struct {
    uint32_t set; /* 1 when the rest is written */
    uint32_t block, peer, what, step;
} kolo_cuda_report_t;
enum { KOLO_CUDA_WAITS_LINES, KOLO_CUDA_WAITS_TILE, KOLO_CUDA_WAITS_CREDIT };

/* What a kernel waits for now, told by waits that have lasted longer than one spins: whoever waits writes the line
 * of its peer each time it looks whether it is to end, and the host reads. A line whose beat stands still is
 * history. */
typedef struct {
    uint64_t number, word; /* of the operation, as in exec.h */
    uint64_t at;           /* step | block << 32 | what << 48 */
    uint64_t beat;         /* differs from look to look */
} kolo_cuda_waiting_t;

/* A message whose ends do not fit, as the one that finds it out sees them: see kolo_message_tag(). */
typedef struct {
    uint32_t set, peer;  /* set: 1 when the rest is written */
    uint32_t sends, pad; /* sends: this rank does */
    uint64_t number, mine, theirs;
} kolo_cuda_unfit_t;

typedef struct { /* pinned host memory, mapped: one per communicator */
    uint32_t abort;
    kolo_cuda_report_t report;
    kolo_cuda_unfit_t unfit;
    kolo_cuda_waiting_t waiting[KOLO_CUDA_RANKS]; /* by peer */
} kolo_cuda_mailbox_t;

/* What the kernel of one rank tells that of another; one for each pair and block. */
typedef struct {
    uint64_t src, dst;
    uint64_t word; /* of the operation: those of others never meet */
    uint32_t reachable, pad;
    uint32_t begin, given, summed, end; /* flags: numbers of operations */
    uint32_t ready, credit;             /* flags: tiles from here, and tiles taken from there (chain.cuh) */
} kolo_cuda_meeting_t;

/* How the ends of a long message meet. */
typedef struct {
    uint64_t there; /* from the receiver: where the message is to go, or 0: by stages */
    uint64_t tag;   /* and what it expects */
    uint32_t begin,
        end; /* flags: numbers of messages. To the sender: `there` is set; to the receiver: it has come */
    uint64_t offer_tag;  /* from a sender that waits for long: what it has, */
    uint32_t offer, pad; /* as the message of this number */
} kolo_message_meeting_t;

/* What a block counts: operations by lines; tiles sent and taken in both phases; then for each peer what its
 * messages took. Each has one block that writes it. */
enum {
    KOLO_CUDA_COUNT_LINES,
    KOLO_CUDA_COUNT_LINES_128,
    KOLO_CUDA_COUNT_SENT,
    KOLO_CUDA_COUNT_TAKEN,
    KOLO_CUDA_COUNT_SENT_2,
    KOLO_CUDA_COUNT_TAKEN_2,
    KOLO_CUDA_COUNT_MEETINGS,
    KOLO_CUDA_COUNT_CHAIN,
    KOLO_CUDA_COUNTERS
};
enum {
    KOLO_CUDA_MESSAGE_RECEIVED,
    KOLO_CUDA_MESSAGE_SENT,
    KOLO_CUDA_MESSAGE_RECEIVED_LINES,
    KOLO_CUDA_MESSAGE_SENT_LINES,
    KOLO_CUDA_MESSAGE_RECEIVED_LONG,
    KOLO_CUDA_MESSAGE_SENT_LONG,
    KOLO_CUDA_MESSAGE_WAYS
};
/* Blocks that work on the same tiles at the same time: one sends, one takes, or takes, reduces and sends on. */
#define KOLO_CUDA_STAGED_ROLES   2u
#define KOLO_CUDA_TWO_STEP_ROLES 3u

enum {
    KOLO_CUDA_SUM,
    KOLO_CUDA_PROD,
    KOLO_CUDA_MIN,
    KOLO_CUDA_MAX,
    KOLO_CUDA_BAND, /* from here on of integers alone */
    KOLO_CUDA_BOR,
    KOLO_CUDA_BXOR,
    KOLO_CUDA_LAND,
    KOLO_CUDA_LOR,
    KOLO_CUDA_LXOR
};
/* What becomes of a result: it is divided by the number of ranks, or is 0 or 1. */
enum { KOLO_CUDA_AS_IT_IS, KOLO_CUDA_DIVIDED, KOLO_CUDA_TRUTH };
#define KOLO_CUDA_ALL (-1)
/* By one factor that all ranks have, where inputs meet; or by this rank's own, before its input is seen by
 * others. */
enum { KOLO_CUDA_SCALE_NONE, KOLO_CUDA_SCALE_COMMON, KOLO_CUDA_SCALE_OWN };

/* One collective. In the first step each sender sends `bytes` to each receiver, from src + receiver * src_stride,
 * and the receiver puts what came from rank r at dst + r * dst_stride, or, with reduce, the reduction over all
 * senders at dst. Two steps (staged.cuh): the ranks' parts of one vector are reduced or taken over by their owners
 * first, then handed to the receivers. */
typedef struct {
    uint64_t src, dst;
    uint64_t bytes, src_stride, dst_stride;
    int32_t senders, receivers; /* a rank or KOLO_CUDA_ALL */
    uint32_t rank;
    uint32_t reduce, op;
    uint32_t scale;        /* KOLO_CUDA_SCALE_*: inputs are multiplied by `factor` first */
    uint32_t finish;       /* KOLO_CUDA_DIVIDED, KOLO_CUDA_TRUTH */
    uint64_t factor;       /* bits of a double, or an integer */
    uint64_t factor_at;    /* or where it is, as an element in the GPU's memory; 0: it is here */
    uint64_t part_bytes;   /* two steps: length of a part, a multiple of 128 */
    uint32_t tile_bytes;   /* of this call */
    uint32_t reachable;    /* KOLO_CUDA_REACHABLE, KOLO_CUDA_APART: what holds for this rank's buffers */
    uint64_t number, word; /* of the operation; word: equal on all ranks, or they never meet */
    uint32_t mark;         /* bits of the word, for flags */
    uint32_t piped;        /* two steps: by tiles, where buffers are reached (piped.cuh) */
    uint32_t hop_bytes;    /* of a chain: a tile, a multiple of 128 (chain.cuh) */
    uint32_t pad;
    kolo_cuda_layout_t layout;
    uint64_t mailbox; /* device address */
    uint64_t regions[KOLO_CUDA_RANKS];
} kolo_cuda_args_t;

/* All other ranks' GPUs may load from src and store to dst; dst is no part of src, so that others may leave what
 * they give there. */
#define KOLO_CUDA_REACHABLE 1u
#define KOLO_CUDA_APART     2u

/* The long operations take more: this rank's buffers as the other ranks' GPUs see them. */
typedef struct {
    kolo_cuda_args_t c;
    uint64_t src[KOLO_CUDA_RANKS], dst[KOLO_CUDA_RANKS];
} kolo_cuda_long_args_t;

/* A group of messages: per peer at most one chain each way, worked off in order by `blocks` blocks. Few of them
 * take a launch whose arguments are short, which is queued sooner. */
typedef struct {
    uint64_t address, bytes;
    uint64_t there;      /* of a long receive: the address as the sender's GPU sees it; 0: it does not */
    uint32_t peer, send; /* send: 1, receive: 0 */
    uint32_t type;
    int32_t next; /* in the same chain; -1: none */
} kolo_cuda_message_t;
#define KOLO_CUDA_MESSAGES_FEW 8
#define KOLO_CUDA_MESSAGES     96 /* per launch */
typedef struct {
    uint32_t rank, nchains, blocks; /* blocks per chain; grid = nchains * blocks */
    uint32_t pad;
    uint64_t number, word;
    uint64_t table; /* device address of a long group's messages, which stand there; else 0 */
    kolo_cuda_layout_t layout;
    uint64_t mailbox;
    uint64_t regions[KOLO_CUDA_RANKS];
    int32_t chains[2 * KOLO_CUDA_RANKS]; /* first message of each */
    kolo_cuda_message_t messages[KOLO_CUDA_MESSAGES_FEW];
} kolo_cuda_p2p_args_t;
typedef struct {
    kolo_cuda_p2p_args_t head;
    kolo_cuda_message_t more[KOLO_CUDA_MESSAGES - KOLO_CUDA_MESSAGES_FEW];
} kolo_cuda_p2p_many_t;

/* The messages of a group that are more than a launch holds are written to memory of the GPU ahead of it, so many
 * at a time: nothing of the host is needed when a captured group is replayed. */
#define KOLO_CUDA_TABLE_ROWS 96
typedef struct {
    uint64_t to;
    uint32_t n, pad;
    kolo_cuda_message_t rows[KOLO_CUDA_TABLE_ROWS];
} kolo_cuda_table_args_t;

/* Adasum: parts of two vectors, in chunks of KOLO_BLEND_CHUNK bytes (mem/queue.h). */
#define KOLO_CUDA_BLENDS 64                                                                /* per launch */
enum { KOLO_CUDA_BLEND_AB, KOLO_CUDA_BLEND_AA, KOLO_CUDA_BLEND_BB, KOLO_CUDA_BLEND_SUMS }; /* doubles of a part */
enum { KOLO_CUDA_BLEND_FLOAT16, KOLO_CUDA_BLEND_BFLOAT16, KOLO_CUDA_BLEND_FLOAT32, KOLO_CUDA_BLEND_FLOAT64 };
typedef struct {
    uint64_t to, a, b, sums; /* sums 0: to becomes a + b */
    uint64_t bytes;
    uint32_t first; /* its first chunk */
    uint32_t pad;
} kolo_cuda_blend_item_t;
typedef struct {
    uint64_t room; /* sums of chunks, one behind the other */
    uint32_t n, chunks, chunk_bytes;
    uint32_t type; /* KOLO_CUDA_BLEND_FLOAT... */
    kolo_cuda_blend_item_t items[KOLO_CUDA_BLENDS];
} kolo_cuda_blend_args_t;

/* Packing and unpacking: items of at most so many bytes a chunk, which a block works off. */
#define KOLO_CUDA_LIFTS      96 /* per launch */
#define KOLO_CUDA_LIFT_CHUNK 65536u
enum {
    KOLO_CUDA_LIFT_COPY,
    KOLO_CUDA_LIFT_INT8, /* scaled, by type */
    KOLO_CUDA_LIFT_UINT8,
    KOLO_CUDA_LIFT_INT32,
    KOLO_CUDA_LIFT_UINT32,
    KOLO_CUDA_LIFT_INT64,
    KOLO_CUDA_LIFT_UINT64,
    KOLO_CUDA_LIFT_FLOAT16,
    KOLO_CUDA_LIFT_BFLOAT16,
    KOLO_CUDA_LIFT_FLOAT32,
    KOLO_CUDA_LIFT_FLOAT64,
    KOLO_CUDA_LIFT_E4M3,
    KOLO_CUDA_LIFT_E5M2,
    KOLO_CUDA_LIFT_FILL /* with the 64 bits of `factor`, again and again */
};
typedef struct {
    uint64_t to, from, bytes;
    uint64_t factor; /* bits of a double; or what fills */
    uint32_t first;  /* its first chunk */
    uint32_t what;   /* KOLO_CUDA_LIFT_* */
} kolo_cuda_lift_item_t;
typedef struct {
    uint32_t n, chunks;
    kolo_cuda_lift_item_t items[KOLO_CUDA_LIFTS];
} kolo_cuda_lift_args_t;

#endif
