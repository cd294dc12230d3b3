/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan: what one rank does in one collective, as data. An algorithm (algo/) emits it; the host executor runs
 * it, the verifier proves it over all ranks, the simulator times it. A plan names chunks, never bytes, so it is the
 * same for every count with the same grid.
 *
 * Grid. The data of a collective are `nparts` parts (all_reduce, reduce, broadcast: equal parts of `count`;
 * all_gather, reduce_scatter, all_to_all, gather, scatter and their v forms: part p belongs to rank p; groups of
 * sends and receives: part i of SRC is the i-th send, part i of DST the i-th receive). Each part is cut into
 * `nsubs` equal sub-chunks; chunk c = part * nsubs + sub. Which buffer has which parts:
 *
 *     all_reduce, broadcast, reduce   SRC and DST all parts
 *     all_gather, gather              SRC one part, DST nranks parts
 *     reduce_scatter, scatter         SRC nranks parts, DST one
 *     all_to_all                      SRC and DST nranks parts
 *     p2p                             SRC a part for each send, DST one for each receive
 *
 * SCRATCH has nscratch chunks, each as large as the largest chunk of a tile. A barrier moves one element: its grid
 * is one part, and every chunk of it is one element long.
 *
 * Lengths. A chunk of SRC or DST is as long as the grid says (in the v forms: as the call says for that part). A
 * chunk of SCRATCH, and of a NONE segment of RECV_SEND, has no length of its own: the segment names the grid chunk
 * whose length it takes (`shape`, always modulo nparts * nsubs). All operands of an instruction are equally long.
 * In all_to_all only equal parts have such a grid: a plan that uses shapes there is for equal counts only
 * (kolo_plan_equal_only), and P2P plans cannot use them.
 *
 * Tiles. The executor runs the body of each lane once per tile: tile t covers bytes [t*T, (t+1)*T) of every chunk,
 * T = slices * slot bytes at most, and a chunk of a tile travels as at most `slices` slots. So a body never has
 * more than `slices` slots per chunk in flight, and `depth` slots of a connection suffice if the verifier says so
 * with these two numbers. A piece of zero length is skipped by the same rule at both ends. SCRATCH is private to
 * the tile.
 *
 * Rows. The pieces that an instruction's chunks have in a tile are one row of bytes for the executor, which it cuts
 * into slots without regard to the borders of chunks. So both ends of a connection have instructions with the same
 * number of chunks; a row takes at most n * slices slots.
 *
 * Lanes are independent except through events; each has its own tile counter. Instructions on one connection
 * match in order. One lane only posts to, and one lane only reads from, a given connection.
 */
#ifndef KOLO_PLAN_PLAN_H
#define KOLO_PLAN_PLAN_H

#include "base/clock.h"
#include "base/status.h"
#include "plan/traits.h"

#include <stdbool.h>

typedef enum {
    KOLO_ALGO_RING,
    KOLO_ALGO_TREE,             /* double binary tree */
    KOLO_ALGO_HALVING_DOUBLING, /* recursive */
    KOLO_ALGO_DIRECT,           /* two-step: everyone with everyone, through slots or fan-out */
    KOLO_ALGO_ONE_STEP,         /* direct, every rank reduces everything */
    KOLO_ALGO_BRUCK,
    KOLO_ALGO_PAIRWISE,
    KOLO_ALGO_PAT, /* parallel aggregated trees: log steps for all_gather and reduce_scatter */
    KOLO_ALGO_HIERARCHICAL,
    KOLO_ALGO_SINGLE_COPY, /* references: expose, get, put */
    KOLO_ALGO_P2P,
    KOLO_ALGO_COUNT
} kolo_algo_t;
const char *kolo_plan_algo_name(kolo_algo_t algo);
kolo_status_t kolo_plan_algo_parse(const char *name, kolo_algo_t *algo);

typedef enum { KOLO_BUF_NONE, KOLO_BUF_SRC, KOLO_BUF_DST, KOLO_BUF_SCRATCH } kolo_buf_t;

/* `n` consecutive chunks of a buffer: number k is (base + stride[0]*i + stride[1]*j + k) mod `mod`, with i the
 * innermost and j the outer loop counter; the modulus is taken as non-negative; mod 0 means none. Inside one loop
 * only, i is its counter and j is 0. SCRATCH and NONE: chunk k is as long as grid chunk (shape + shape_stride[0]*i
 * + shape_stride[1]*j + k) mod (nparts * nsubs). */
typedef struct {
    uint8_t buf; /* kolo_buf_t */
    int32_t base;
    int32_t stride[2];
    uint32_t mod;
    uint32_t n;
    int32_t shape; /* SCRATCH, NONE: see above */
    int32_t shape_stride[2];
} kolo_segment_t;

typedef enum {
    KOLO_OP_SEND,                  /* tx <- src */
    KOLO_OP_RECV,                  /* dst <- rx */
    KOLO_OP_RECV_REDUCE,           /* dst = src op rx (src is usually dst or SRC) */
    KOLO_OP_RECV_SEND,             /* dst (or NONE with n and shape set) <- rx; tx <- the same */
    KOLO_OP_RECV_REDUCE_SEND,      /* tx <- src op rx */
    KOLO_OP_RECV_REDUCE_COPY_SEND, /* dst = src op rx; tx <- dst */
    KOLO_OP_REDUCE_MANY,           /* dst = reduction in rank order of one slot of each rx in the list and src at my
                                      own place in that order; with tx: tx <- dst as well (a NODE connection, say) */
    KOLO_OP_COPY,                  /* dst <- src; onto itself (in place, not reducing) it does nothing */
    KOLO_OP_REDUCE,                /* dst = src op dst when FLAG_DST_FIRST is not set, dst op src when it is */
    KOLO_OP_EXPOSE,                /* tx <- a reference to src (SRC or DST buffer): one REF slot per chunk piece */
    KOLO_OP_GET,                   /* dst <- memory behind the next reference on rx; releases it */
    KOLO_OP_GET_REDUCE,            /* dst = src op memory behind the next reference on rx; releases it */
    KOLO_OP_PUT,                   /* memory behind the next reference on rx <- src; releases it */
    KOLO_OP_RELEASE,               /* wait until everything posted on tx has been released by its readers */
    KOLO_OP_SIGNAL,                /* event += 1; one lane only signals a given event */
    KOLO_OP_WAIT,                  /* wait until event >= my number of waits on it (this lane, over all tiles) */
    KOLO_OP_LOOP,                  /* repeat the instructions up to END `count` times; nesting 2 */
    KOLO_OP_END,
    KOLO_OP_COUNT
} kolo_opcode_t;
const char *kolo_plan_opcode_name(kolo_opcode_t op);

enum {
    KOLO_FLAG_FINAL = 1u << 0,     /* dst is a finished result: apply the post-scale (integer AVG) */
    KOLO_FLAG_DST_FIRST = 1u << 1, /* REDUCE: operand order is dst, src */
    KOLO_FLAG_RX_FIRST = 1u << 2,  /* RECV_REDUCE*, GET_REDUCE: operand order is rx, src (default src, rx) */
    KOLO_FLAG_RAW = 1u << 3 /* GET, GET_REDUCE in a reducing collective: the memory is the peer's raw SRC; apply
                               the peer's pre-scale, which its reference brings, to what was read */
};
/* Raw input: whenever a reducing collective (all_reduce, reduce, reduce_scatter) reads a chunk of SRC, the executor
 * applies the pre-scale (AVG of floats, premul). DST and SCRATCH hold values that were scaled already. In place
 * (SRC == DST), a chunk named SRC must not have been written before; the verifier checks that. FINAL is for
 * instructions that reduce or copy locally (RECV_REDUCE, RECV_REDUCE_COPY_SEND, REDUCE_MANY, COPY, REDUCE,
 * GET_REDUCE) of reducing collectives, never for a value that was finished elsewhere. */

#define KOLO_NO_CONN 0xffffu

typedef struct {
    uint8_t op; /* kolo_opcode_t */
    uint8_t flags;
    uint16_t tx, rx;                 /* index into conns, or KOLO_NO_CONN */
    int16_t tx_stride, rx_stride;    /* added per innermost loop count */
    uint16_t event;                  /* SIGNAL, WAIT */
    uint16_t list_first, list_count; /* REDUCE_MANY: entries of plan->list, rx connections in rank order */
    uint16_t own_place; /* REDUCE_MANY: how many of the list come before src; 0xffff: src is not an operand */
    uint32_t count;     /* LOOP: how often; END: index of its LOOP */
    kolo_segment_t dst, src;
} kolo_insn_t;

typedef enum { KOLO_DIR_TX, KOLO_DIR_RX } kolo_dir_t;
typedef struct {
    uint8_t dir;   /* kolo_dir_t */
    bool node;     /* fan-out to, or from, all other ranks of the writer's host */
    uint16_t lane; /* connection lane; both ends compute the same */
    int32_t peer;  /* PAIR: the other end; NODE rx: the writer; NODE tx: -1 */
} kolo_plan_conn_t;

typedef struct {
    uint32_t first, count; /* range of insns */
} kolo_plan_lane_t;

typedef struct kolo_plan {
    kolo_coll_t coll;
    kolo_algo_t algo;
    uint32_t nranks, rank, root;
    uint32_t nparts, nsubs; /* of the larger buffer */
    uint32_t src_parts, dst_parts;
    uint32_t nscratch;
    uint32_t slices; /* most slots per chunk and tile: 1, 2 or 4 */
    uint32_t depth;  /* slots per connection that the plan needs and was verified with */
    uint32_t nevents;
    uint32_t ninsns, nconns, nlanes, nlist;
    kolo_insn_t *insns;
    kolo_plan_conn_t *conns;
    kolo_plan_lane_t *lanes;
    uint16_t *list;
} kolo_plan_t;

void kolo_plan_free(kolo_plan_t *plan); /* NULL is fine */
/* Does the plan hold only for equal parts (not for a v form)? all_to_all with SCRATCH, see "Lengths". */
bool kolo_plan_equal_only(const kolo_plan_t *plan);
/* Checks structure alone: indices, nesting, ranges. Executors may rely on what it accepts: among others every
 * connection and chunk index of every loop turn is in range, dst.n == src.n where both are used, one lane per
 * connection end, no rx twice in one list, at most 256 operands in a REDUCE_MANY (which always has a dst). */
kolo_status_t kolo_plan_check(const kolo_plan_t *plan);
/* Prints a listing, one instruction a line. */
void kolo_plan_print(const kolo_plan_t *plan, void *file);

/* Returns chunk `k` (0..n-1) of a segment with loop counters i, j. */
static inline uint32_t kolo_segment_chunk(const kolo_segment_t *s, uint32_t i, uint32_t j, uint32_t k)
{
    int64_t c = (int64_t)s->base + (int64_t)s->stride[0] * i + (int64_t)s->stride[1] * j + k;
    if (s->mod) {
        c %= (int64_t)s->mod;
        if (c < 0) c += s->mod;
    }
    return (uint32_t)c;
}

/* Returns the grid chunk whose length chunk `k` of a SCRATCH or NONE segment has; `chunks` = nparts * nsubs. */
static inline uint32_t kolo_segment_shape(const kolo_segment_t *s, uint32_t i, uint32_t j, uint32_t k,
                                          uint32_t chunks)
{
    int64_t c = (int64_t)s->shape + (int64_t)s->shape_stride[0] * i + (int64_t)s->shape_stride[1] * j + k;
    c %= (int64_t)chunks;
    return (uint32_t)(c < 0 ? c + chunks : c);
}

/* Equal parts as even as possible: the first count % n one longer. Borders are not rounded, so that every room
 * computes them alike from (count, n) alone. */
typedef struct {
    uint64_t each, more;
} kolo_part_cut_t;
static inline kolo_part_cut_t kolo_part_cut(uint64_t count, uint32_t n)
{
    if (n == 1) return (kolo_part_cut_t){count, 0};
    /* a division of 64 bits takes twice to four times as long, and small operations feel it */
    if (count <= UINT32_MAX) return (kolo_part_cut_t){(uint32_t)count / n, (uint32_t)count % n};
    return (kolo_part_cut_t){count / n, count % n};
}
static inline uint64_t kolo_part_offset(uint64_t count, uint32_t n, uint32_t p)
{
    kolo_part_cut_t cut = kolo_part_cut(count, n);
    return cut.each * p + (p < cut.more ? p : cut.more);
}
static inline uint64_t kolo_part_count(uint64_t count, uint32_t n, uint32_t p)
{
    kolo_part_cut_t cut = kolo_part_cut(count, n);
    return cut.each + (p < cut.more);
}

/* ---- what an operation is, in 64 bits: travels with every slot ---- */

/* coll:5 type:5 op:5 root:13 (modulo 8191) count:36 (modulo 2^36). Never 0. */
#define KOLO_SIGNATURE_COUNT_BITS 36
#define KOLO_SIGNATURE_ROOT_BITS  13
/* In the place of the operator of a gather or scatter: its parts are of unequal length. */
#define KOLO_SIGNATURE_V 30
/* The operators by which engines agree on what is ready: two created ones, which no user gets. */
#define KOLO_SIGNATURE_AGREE 28
/* In the place of the root of the others with such parts. */
#define KOLO_SIGNATURE_V_ROOT 8000
/* The count where parts are of unequal length and all ranks have the same table of lengths: table:14, which differs
 * for nearly all others, and sum:22, or the most that fits. The others have 0. */
#define KOLO_SIGNATURE_SUM_BITS 22
static inline uint64_t kolo_signature_table(uint64_t sum, uint32_t table)
{
    const uint64_t most = ((uint64_t)1 << KOLO_SIGNATURE_SUM_BITS) - 1;
    return sum == 0 ? 0 : (uint64_t)(table & 0x3fff) << KOLO_SIGNATURE_SUM_BITS | (sum < most ? sum : most);
}
static inline uint64_t kolo_signature(kolo_coll_t coll, int type, int op, uint32_t root, uint64_t count)
{
    /* The collective is stored plus one, so that no operation is 0. Created operators all count as one: their
     * numbers are each rank's own. */
    bool created = op >= KOLO_OP_BUILTIN_COUNT && op != KOLO_SIGNATURE_AGREE && op != KOLO_SIGNATURE_AGREE + 1 &&
                   kolo_coll_reduces(coll);
    uint64_t v = ((uint64_t)coll + 1) & 31;
    v = v << 5 | ((uint64_t)type & 31);
    v = v << 5 | ((op < 0 || op > 31 || created) ? 31u : (uint64_t)op);
    v = v << KOLO_SIGNATURE_ROOT_BITS | root % 8191;
    return v << KOLO_SIGNATURE_COUNT_BITS | (count & (((uint64_t)1 << KOLO_SIGNATURE_COUNT_BITS) - 1));
}
/* Calls of all ranks that are no collectives to their user: a barrier's word with V as operator, and one of these
 * as root. */
typedef enum {
    KOLO_CALL_WORD_FINALIZE,
    KOLO_CALL_WORD_SPLIT,
    KOLO_CALL_WORD_GROW,
    KOLO_CALL_WORD_REGISTER,
    KOLO_CALL_WORD_DEREGISTER,
    KOLO_CALL_WORD_LEAVE, /* of one rank: behind its last operation */
    KOLO_CALL_WORD_DUP,
    KOLO_CALL_WORD_COMMIT, /* of kolo_state_t */
    KOLO_CALL_WORD_ENGINE, /* the start of an engine */
    KOLO_CALL_WORD_ENGINE_END,
    KOLO_CALL_WORD_SET_END, /* a process set of an engine is removed */
    KOLO_CALL_WORD_REFUSED, /* of one rank: it has refused the call that others have made */
    KOLO_CALL_WORDS
} kolo_call_word_t;
static inline uint64_t kolo_signature_of_call(kolo_call_word_t which)
{
    return kolo_signature(KOLO_COLL_BARRIER, 0, KOLO_SIGNATURE_V, which, 0);
}
const char *kolo_plan_type_name(int type);                              /* "float32" */
const char *kolo_plan_op_name(int op);                                  /* "sum" */
const char *kolo_plan_call_name(kolo_call_word_t which);                /* "comm_split" */
void kolo_signature_print(uint64_t signature, char *buf, size_t bytes); /* "all_reduce 1024 float32 sum root 0" */
typedef struct {
    kolo_coll_t coll; /* KOLO_COLL_COUNT: none that exists */
    int type, op;
    uint32_t root;
    uint64_t count;
} kolo_signature_fields_t;
kolo_signature_fields_t kolo_signature_fields(uint64_t signature); /* modulo what is said above */
/* In the place of the operator of KOLO_COLL_P2P, for words only: root is then the peer. */
enum {
    KOLO_P2P_WORD_NONE,
    KOLO_P2P_WORD_RECV,
    KOLO_P2P_WORD_SEND,
    KOLO_P2P_WORD_PUT,
    KOLO_P2P_WORD_SIGNAL,
    KOLO_P2P_WORD_WAIT /* count: signals */
};

#endif
