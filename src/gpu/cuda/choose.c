/* SPDX-License-Identifier: Apache-2.0
 *
 * From an operation to a launch: what goes where, which family, how many blocks. A pure function of what all ranks
 * pass alike, so all come to the same.
 */
#include "gpu/cuda/cuda.h"

#include <string.h>

#define TILE_USUAL       8192u       /* 16 bytes for each thread */
#define HOP_MOST         (32u << 10) /* of a tile in a chain */
#define PIECE_ROUND      32u         /* elements: pieces begin as the whole does */
#define TWO_REDUCE_RANKS 4u          /* ll128_two.cuh has lines of so many under way at once */

static void fill_reducer(const kolo_exec_call_t *call, kolo_cuda_args_t *a)
{
    const kolo_reducer_t *r = &call->reducer;
    static const uint32_t ops[KOLO_OP_BUILTIN_COUNT] = {
        [KOLO_SUM] = KOLO_CUDA_SUM, [KOLO_PROD] = KOLO_CUDA_PROD, [KOLO_MIN] = KOLO_CUDA_MIN,
        [KOLO_MAX] = KOLO_CUDA_MAX, [KOLO_AVG] = KOLO_CUDA_SUM,   [KOLO_BAND] = KOLO_CUDA_BAND,
        [KOLO_BOR] = KOLO_CUDA_BOR, [KOLO_BXOR] = KOLO_CUDA_BXOR, [KOLO_LAND] = KOLO_CUDA_LAND,
        [KOLO_LOR] = KOLO_CUDA_LOR, [KOLO_LXOR] = KOLO_CUDA_LXOR};
    static const uint32_t truth[KOLO_OP_BUILTIN_COUNT] = {
        [KOLO_SUM] = KOLO_CUDA_LOR,   [KOLO_PROD] = KOLO_CUDA_LAND, [KOLO_MIN] = KOLO_CUDA_LAND,
        [KOLO_MAX] = KOLO_CUDA_LOR,   [KOLO_BAND] = KOLO_CUDA_LAND, [KOLO_BOR] = KOLO_CUDA_LOR,
        [KOLO_BXOR] = KOLO_CUDA_LXOR, [KOLO_LAND] = KOLO_CUDA_LAND, [KOLO_LOR] = KOLO_CUDA_LOR,
        [KOLO_LXOR] = KOLO_CUDA_LXOR};
    if (r->op < KOLO_OP_BUILTIN_COUNT) /* others do not come here to be reduced */
        a->op = r->type == KOLO_BOOL ? truth[r->op] : ops[r->op];
    a->scale = !r->pre ? KOLO_CUDA_SCALE_NONE : r->pre_own ? KOLO_CUDA_SCALE_OWN : KOLO_CUDA_SCALE_COMMON;
    a->finish = r->truth                               ? KOLO_CUDA_TRUTH
                : r->post_div > 1 || r->op == KOLO_AVG ? KOLO_CUDA_DIVIDED /* AVG of floats: of one fold */
                                                       : KOLO_CUDA_AS_IT_IS;
    a->factor_at = (uint64_t)(uintptr_t)r->pre_at;
    if (kolo_type_is_float(r->type))
        memcpy(&a->factor, &r->pre_float, sizeof a->factor);
    else
        a->factor = (uint64_t)r->pre_int;
}

/* Fills in who sends what to whom; bytes is what one rank sends to one other, or the whole vector. */
static kolo_status_t fill_shape(const kolo_exec_call_t *call, kolo_cuda_args_t *a)
{
    const kolo_coll_traits_t *t = kolo_coll_traits(call->coll);
    uint64_t bytes = call->coll == KOLO_COLL_BARRIER ? 0 : call->count * call->elem;
    if (!t->whole && !kolo_coll_by_rank(call->coll) && call->coll != KOLO_COLL_BARRIER)
        return kolo_fail(KOLO_ERR_UNSUPPORTED, "collective %s is not there on GPUs", t->name);
    a->src = (uint64_t)(uintptr_t)call->src;
    a->dst = (uint64_t)(uintptr_t)call->dst;
    a->bytes = bytes;
    a->part_bytes = 0;
    a->src_stride = !t->src_by_rank ? 0 : call->src_stride ? call->src_stride : bytes;
    a->dst_stride = !t->dst_by_rank ? 0 : call->dst_stride ? call->dst_stride : bytes;
    a->senders = t->src_at_root ? call->root : KOLO_CUDA_ALL;
    a->receivers = t->dst_at_root ? call->root : KOLO_CUDA_ALL;
    a->reduce = t->reduces;
    return KOLO_OK;
}

kolo_status_t kolo_cuda_fill(const kolo_exec_call_t *call, kolo_cuda_args_t *a)
{
    KOLO_TRY(fill_shape(call, a));
    fill_reducer(call, a);
    a->number = call->number;
    a->word = call->word;
    a->mark = (uint32_t)((call->word ^ call->word >> 32) * UINT64_C(0x9e3779b97f4a7c15) >> 32);
    return KOLO_OK;
}

static uint64_t lines_up_to(const kolo_cuda_state_t *s, const kolo_exec_call_t *call)
{
    uint64_t room = (uint64_t)s->layout.ll_blocks * KOLO_CUDA_LL_BLOCK_BYTES;
    uint64_t most = call->coll == KOLO_COLL_ALL_REDUCE ? s->limits.ll_all_reduce : s->limits.ll_others;
    most /= s->layout.nranks > 2 ? s->layout.nranks - 1 : 1;
    return most < room ? most : room;
}

static uint64_t room128(const kolo_cuda_state_t *s)
{
    return (uint64_t)s->layout.ll128_blocks * (s->layout.ll128_bytes / 128 * 120);
}

/* Returns the longest part for lines of 128 bytes. In a gather each rank sends its own once. */
static uint64_t lines128_up_to(const kolo_cuda_state_t *s, const kolo_exec_call_t *call)
{
    const kolo_cuda_limits_t *l = &s->limits;
    bool handed = call->coll == KOLO_COLL_BROADCAST || call->coll == KOLO_COLL_ALL_GATHER ||
                  call->coll == KOLO_COLL_ALL_TO_ALL;
    uint64_t most = call->coll == KOLO_COLL_ALL_REDUCE ? l->ll128_all_reduce
                    : call->coll == KOLO_COLL_REDUCE   ? l->ll128_reduce
                    : call->coll == KOLO_COLL_GATHER   ? l->ll128_gather
                    : handed                           ? l->ll128_handed
                                                       : l->ll128_others;
    if (s->layout.nranks > 2 && call->coll != KOLO_COLL_GATHER) most /= s->layout.nranks - 1;
    return KOLO_MIN(most, room128(s));
}

uint64_t kolo_cuda_lines128_two_room(const kolo_cuda_layout_t *l)
{
    return l->nranks < 3 ? 0 : (uint64_t)l->ll128_blocks * (l->ll128_bytes / 256 * 120) * l->nranks;
}
/* Returns the longest vector that goes in two steps at once: of a reduce all ranks but the root own a part, and a
 * part has the whole room. */
static uint64_t two_room(const kolo_cuda_state_t *s, kolo_coll_t coll)
{
    uint32_t n = s->layout.nranks;
    if (coll == KOLO_COLL_REDUCE) return n < 3 || n > TWO_REDUCE_RANKS ? 0 : room128(s) * (n - 1);
    return coll == KOLO_COLL_ALL_REDUCE ? kolo_cuda_lines128_two_room(&s->layout) : 0;
}
static uint64_t lines128_two_up_to(const kolo_cuda_state_t *s, const kolo_exec_call_t *call)
{
    bool all = call->coll == KOLO_COLL_ALL_REDUCE;
    return KOLO_MIN(all ? s->limits.ll128_two : s->limits.ll128_two_reduce, two_room(s, call->coll));
}

uint64_t kolo_cuda_piece(const kolo_cuda_state_t *s, const kolo_exec_call_t *call)
{
    uint64_t bytes = call->count * call->elem, room, most;
    if (call->send_counts || call->recv_counts) return 0;
    if (call->coll == KOLO_COLL_REDUCE || call->coll == KOLO_COLL_ALL_REDUCE) {
        room = two_room(s, call->coll);
        most = call->coll == KOLO_COLL_REDUCE ? s->limits.ll128_two_reduce : s->limits.ll128_two;
    } else if (call->coll == KOLO_COLL_GATHER && s->layout.nranks > 2) {
        room = room128(s);
        most = s->limits.ll128_gather;
    } else {
        return 0;
    }
    if (room <= PIECE_ROUND * call->elem || bytes <= room || bytes > most) return 0;
    return KOLO_ROUND_UP(KOLO_DIV_UP(call->count, KOLO_DIV_UP(bytes, room - PIECE_ROUND * call->elem)),
                         PIECE_ROUND);
}

bool kolo_cuda_goes_by_lines(const kolo_cuda_state_t *s, const kolo_exec_call_t *call)
{
    uint64_t bytes = call->count * call->elem;
    if (call->kind != KOLO_EXEC_COLL) return bytes <= s->layout.message_lines_most;
    if (s->plans || s->copies || s->regions.nranks == 1) return false;
    return bytes <= lines_up_to(s, call) || bytes <= lines128_up_to(s, call);
}

static uint32_t most_blocks(const kolo_cuda_state_t *s, kolo_coll_t coll, uint64_t bytes)
{
    uint32_t most = s->limits.blocks;
    for (uint32_t i = 0; i < s->limits.nlengths; i++)
        if (s->limits.by_length[i].coll == coll && bytes >= s->limits.by_length[i].bytes)
            most = s->limits.by_length[i].blocks;
    return KOLO_MIN(most, s->layout.blocks);
}

/* Cuts `bytes` bytes for at most `most` blocks: pieces of at least TILE_USUAL, at most what a stage holds; as many
 * blocks as there are pieces. */
static uint32_t cut(const kolo_cuda_state_t *s, uint32_t most, uint64_t bytes, kolo_cuda_args_t *a)
{
    kolo_cuda_layout_t *l = &a->layout;
    kolo_cuda_cut_stages(&s->layout, most, l);
    uint64_t each = KOLO_MAX(KOLO_ROUND_UP(KOLO_DIV_UP(bytes, most), 128), TILE_USUAL);
    a->tile_bytes = (uint32_t)KOLO_MIN(each, l->tile_bytes);
    return (uint32_t)KOLO_MIN(KOLO_DIV_UP(bytes, a->tile_bytes), most);
}

/* Tells whether it is one. Sums that are handed on as elements lose nothing if those are as wide as what is added.
 */
static bool is_chain(const kolo_cuda_state_t *s, const kolo_exec_call_t *call, const kolo_cuda_args_t *a)
{
    return call->coll == KOLO_COLL_REDUCE && s->layout.nranks > 1 && !s->one_fold && call->elem > 2 &&
           a->bytes >= s->limits.chain;
}
/* Takes as many blocks as there would be by stages, which it goes by if buffers cannot be reached. */
static void by_chain(const kolo_cuda_state_t *s, kolo_cuda_args_t *a, kolo_cuda_family_t *family,
                     kolo_cuda_grid_t *grid)
{
    const kolo_cuda_layout_t *l = &s->layout;
    uint32_t most = KOLO_MIN(s->limits.chain_blocks, l->blocks);
    grid->blocks = KOLO_CUDA_TWO_STEP_ROLES * cut(s, most, a->part_bytes, a);
    uint64_t room = 2ull * l->nranks * l->stage_blocks * KOLO_CUDA_DEPTH * l->tile_bytes; /* of two phases */
    uint64_t each = s->limits.chain_row / grid->blocks;
    each = KOLO_MIN(KOLO_MAX(each, (uint64_t)TILE_USUAL / 8), (uint64_t)HOP_MOST);
    each = KOLO_MIN(each, room / KOLO_CUDA_CHAIN_DEPTH / grid->blocks);
    a->hop_bytes = (uint32_t)(each / 128 * 128);
    *family = KOLO_CUDA_CHAIN;
}

static void by_lines(const kolo_cuda_layout_t *l, uint64_t bytes, kolo_cuda_family_t *family,
                     kolo_cuda_grid_t *grid)
{
    uint64_t threads = (bytes + 7) / 8;
    *family = KOLO_CUDA_LL;
    grid->blocks = (uint32_t)KOLO_MIN(KOLO_DIV_UP(threads, KOLO_CUDA_THREADS), l->ll_blocks);
    if (grid->blocks == 0) grid->blocks = 1;
    if (threads < KOLO_CUDA_THREADS) /* no warps without work: 0.08 us of 3 */
        grid->threads = (uint32_t)KOLO_ROUND_UP(threads ? threads : 1, (uint64_t)32);
}

static void by_lines128(const kolo_cuda_layout_t *l, uint64_t lines, kolo_cuda_family_t *family,
                        kolo_cuda_grid_t *grid)
{
    *family = KOLO_CUDA_LL128;
    grid->blocks = (uint32_t)KOLO_MIN(KOLO_DIV_UP(lines, KOLO_CUDA_THREADS / 8), l->ll128_blocks);
}

uint64_t kolo_cuda_lines_most(const kolo_cuda_state_t *s)
{
    uint64_t room = (uint64_t)s->layout.ll_blocks * KOLO_CUDA_LL_BLOCK_BYTES;
    return KOLO_MAX(room, room128(s)) / 256 * 256;
}

/* Makes it two steps by lines of 128 bytes, if it is no longer than those may be. */
static bool by_two_steps(const kolo_cuda_state_t *s, const kolo_exec_call_t *call, kolo_cuda_args_t *a,
                         kolo_cuda_family_t *family, kolo_cuda_grid_t *grid)
{
    uint32_t owners = call->coll == KOLO_COLL_REDUCE ? s->layout.nranks - 1 : s->layout.nranks;
    if (a->bytes > lines128_two_up_to(s, call)) return false;
    uint64_t lines = KOLO_DIV_UP(KOLO_DIV_UP(a->bytes, 120), owners);
    a->part_bytes = lines * 120;
    by_lines128(&s->layout, lines, family, grid);
    return true;
}

kolo_status_t kolo_cuda_choose_lines(const kolo_cuda_state_t *s, const kolo_exec_call_t *call, kolo_cuda_args_t *a,
                                     kolo_cuda_family_t *family, kolo_cuda_grid_t *grid)
{
    KOLO_TRY(kolo_cuda_fill(call, a));
    grid->threads = KOLO_CUDA_THREADS;
    if (by_two_steps(s, call, a, family, grid)) return KOLO_OK;
    if (a->bytes <= lines_up_to(s, call) || a->bytes > room128(s))
        by_lines(&s->layout, a->bytes, family, grid);
    else
        by_lines128(&s->layout, KOLO_DIV_UP(a->bytes, 120), family, grid);
    return KOLO_OK;
}

static bool apart(uint64_t a, uint64_t b, uint64_t bytes)
{
    return a + bytes <= b || b + bytes <= a;
}

bool kolo_cuda_gives(const kolo_cuda_state_t *s, const kolo_exec_call_t *call, const kolo_cuda_args_t *a)
{
    uint64_t before_last = (s->layout.nranks - 1) * a->part_bytes;
    return call->coll == KOLO_COLL_ALL_REDUCE && a->bytes >= s->limits.give && a->bytes <= s->limits.give_most &&
           a->bytes >= before_last + 128 /* a head, meet.cuh */ && apart(a->src, a->dst, a->bytes);
}

kolo_status_t kolo_cuda_choose(const kolo_cuda_state_t *s, const kolo_exec_call_t *call, kolo_cuda_args_t *a,
                               kolo_cuda_family_t *family, kolo_cuda_grid_t *grid)
{
    const kolo_cuda_layout_t *l = &s->layout;
    bool vector =
        call->coll == KOLO_COLL_ALL_REDUCE || call->coll == KOLO_COLL_REDUCE || call->coll == KOLO_COLL_BROADCAST;
    KOLO_TRY(kolo_cuda_fill(call, a));
    grid->threads = KOLO_CUDA_THREADS;
    if (a->bytes <= lines_up_to(s, call)) {
        by_lines(l, a->bytes, family, grid);
        return KOLO_OK;
    }
    if (a->bytes <= lines128_up_to(s, call)) {
        by_lines128(l, KOLO_DIV_UP(a->bytes, 120), family, grid);
        return KOLO_OK;
    }
    if (by_two_steps(s, call, a, family, grid)) return KOLO_OK;
    if (vector) {
        *family = KOLO_CUDA_TWO_STEP;
        a->part_bytes = KOLO_ROUND_UP(KOLO_DIV_UP(a->bytes, l->nranks), 128);
        grid->blocks = KOLO_CUDA_TWO_STEP_ROLES * cut(s, most_blocks(s, call->coll, a->bytes), a->part_bytes, a);
        bool all = call->coll == KOLO_COLL_ALL_REDUCE;
        a->piped = a->bytes >= (all ? s->limits.pipe : s->limits.pipe_reduce) && a->reduce && l->nranks > 1;
        if (is_chain(s, call, a)) by_chain(s, a, family, grid);
        return KOLO_OK;
    }
    *family = KOLO_CUDA_STAGED;
    grid->blocks = KOLO_CUDA_STAGED_ROLES * cut(s, most_blocks(s, call->coll, a->bytes), a->bytes, a);
    return KOLO_OK;
}
