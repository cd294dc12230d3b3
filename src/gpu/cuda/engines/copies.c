/* SPDX-License-Identifier: Apache-2.0
 *
 * Long operations without a reduction by copy engines alone. A rank copies piece by piece into a stage in the
 * receiver's region, which all ranks have mapped, and the receiver copies from there: so nobody needs to know where
 * another's buffer is. Streams wait for words and write them, which lie in host memory that all ranks share and
 * have pinned: a stage of a pair has a word that says that it is full (ready) and one that it is free (credit).
 * Whoever has waited for one takes it away, so no number is needed: a captured call may be replayed, also beside
 * calls that are not captured.
 *
 * The bit of a word that says "full" follows from the operation, so ranks that differ wait for each other. Other
 * bits say how far a rank is, for waits.c. After an abort the host writes the words that streams wait for, until
 * all that is queued has ended; it copies into stages and into this rank's own buffers only.
 *
 * Puts stand on the caller's stream and takes on another one, piece by piece in turn: where both streams share a
 * queue of the hardware, that order ends as well.
 */
#include "gpu/cuda/engines/words.h"

#include <string.h>

#define ROOM       (48u << 20) /* of all stages of a rank */
#define PIECE_MOST (16u << 20)

typedef struct {
    uint32_t peer;
    uint64_t at, bytes;
} part_t;

/* One step of an operation: what this rank puts and takes. */
typedef struct {
    kolo_cuda_state_t *s;
    const kolo_exec_call_t *call;
    uint32_t id;           /* in lately[] */
    kolo_cu_stream_t side; /* of takes */
    size_t nputs, ntakes;
    part_t puts[KOLO_CUDA_RANKS], takes[KOLO_CUDA_RANKS];
    uint64_t own_from, own_to, own_bytes; /* of this rank to itself; 0 bytes: nothing */
} step_t;

uint64_t kolo_cuda_copies_piece(int nranks)
{
    uint64_t each = ROOM / (KOLO_CUDA_SLOTS * (uint64_t)(nranks - 1)) / 4096 * 4096;
    uint64_t asked = (uint64_t)kolo_cuda_options.copy_piece;
    return asked ? KOLO_ROUND_UP(asked, (uint64_t)128) : KOLO_MIN(each, (uint64_t)PIECE_MOST);
}

bool kolo_cuda_copies_wanted(const kolo_cuda_state_t *s, const kolo_regions_t *regions)
{
    return regions->nranks > 1 && regions->ranks_per_gpu == 1 && s->limits.copy < KOLO_CUDA_NEVER;
}

uint64_t kolo_cuda_copies_room(kolo_cuda_state_t *s, const kolo_regions_t *regions, uint64_t bytes)
{
    if (!kolo_cuda_copies_wanted(s, regions)) return bytes;
    s->copies_at = KOLO_ROUND_UP(bytes, (uint64_t)4096);
    return s->copies_at +
           (uint64_t)(regions->nranks - 1) * KOLO_CUDA_SLOTS * kolo_cuda_copies_piece(regions->nranks);
}

/* ---- a piece ---- */

static kolo_cu_ptr_t seen(const kolo_cuda_state_t *s, const _Atomic uint32_t *word)
{
    return s->copies->device + (kolo_cu_ptr_t)((const char *)word - (const char *)s->copies->lines);
}

static kolo_cu_ptr_t stage(const kolo_cuda_state_t *s, uint32_t owner, uint32_t from, uint32_t k)
{
    uint64_t region = (uint64_t)(uintptr_t)s->regions.address[owner];
    uint64_t row = from > owner ? from - 1 : from;
    return region + s->copies_at + (row * KOLO_CUDA_SLOTS + k % KOLO_CUDA_SLOTS) * s->copies->piece;
}

static uint32_t ready_bit(const step_t *x, uint32_t k)
{
    uint64_t mixed = (x->call->word ^ k) * UINT64_C(0x9e3779b97f4a7c15);
    return UINT32_C(1) << (16 + (uint32_t)(mixed >> 40) % KOLO_CUDA_FULL_BITS);
}
static uint32_t also_bit(const step_t *x)
{
    return UINT32_C(1) << ((x->call->word ^ x->call->word >> 29) * UINT64_C(0xd6e8feb86659fd93) >> 59);
}

static kolo_cu_result_t take_away(const step_t *x, _Atomic uint32_t *word, uint32_t bit, uint32_t leave,
                                  kolo_cu_stream_t stream)
{
    kolo_cu_ptr_t at = seen(x->s, word);
    kolo_cu_result_t r = x->s->api->stream_wait_word(stream, at, bit, KOLO_CU_WAIT_ANY_BIT);
    return r ? r : x->s->api->stream_write_word(stream, at, leave, 0);
}

/* Copies inside this GPU: unless it is asked for otherwise, a driver takes multiprocessors for that. */
static kolo_cu_result_t copy_here(const step_t *x, kolo_cu_ptr_t to, kolo_cu_ptr_t from, size_t bytes)
{
    const kolo_cuda_api_t *api = x->s->api;
    kolo_cu_copy_how_t how = {.order = KOLO_CU_COPY_IN_ORDER, .flags = KOLO_CU_COPY_BESIDE_KERNELS};
    size_t first = 0;
    if (x->side == x->call->stream || !api->memcpy_batch) return api->memcpy_async(to, from, bytes, x->side);
    return api->memcpy_batch(&to, &from, &bytes, 1, &how, &first, 1, x->side);
}

static size_t length_of(const step_t *x, const part_t *p, uint32_t k)
{
    uint64_t piece = x->s->copies->piece, left = p->bytes - k * piece;
    return KOLO_MIN(left, piece);
}

static kolo_cu_result_t put(const step_t *x, const part_t *p, uint32_t k)
{
    const kolo_cuda_state_t *s = x->s;
    uint32_t me = (uint32_t)s->regions.rank;
    kolo_cuda_line_t *theirs = kolo_cuda_line(s, p->peer, me);
    kolo_cu_stream_t stream = x->call->stream;
    kolo_cu_result_t r = take_away(x, &kolo_cuda_line(s, me, p->peer)->credit[k % KOLO_CUDA_SLOTS], KOLO_CUDA_FREE,
                                   kolo_cuda_begun(x->id, k), stream);
    if (!r)
        r = s->api->memcpy_async(stage(s, p->peer, me, k), p->at + k * s->copies->piece, length_of(x, p, k),
                                 stream);
    if (!r && !k) r = s->api->stream_write_word(stream, seen(s, &theirs->also), also_bit(x), 0);
    return r ? r
             : s->api->stream_write_word(stream, seen(s, &theirs->ready[k % KOLO_CUDA_SLOTS]), ready_bit(x, k), 0);
}

static kolo_cu_result_t take(const step_t *x, const part_t *p, uint32_t k)
{
    const kolo_cuda_state_t *s = x->s;
    uint32_t me = (uint32_t)s->regions.rank;
    kolo_cuda_line_t *mine = kolo_cuda_line(s, me, p->peer);
    kolo_cu_stream_t stream = x->side;
    kolo_cu_result_t r =
        take_away(x, &mine->ready[k % KOLO_CUDA_SLOTS], ready_bit(x, k), kolo_cuda_begun(x->id, k), stream);
    if (!r && !k) r = s->api->stream_wait_word(stream, seen(s, &mine->also), also_bit(x), KOLO_CU_WAIT_ANY_BIT);
    if (!r) r = copy_here(x, p->at + k * s->copies->piece, stage(s, me, p->peer, k), length_of(x, p, k));
    if (r) return r;
    return s->api->stream_write_word(stream, seen(s, &kolo_cuda_line(s, p->peer, me)->credit[k % KOLO_CUDA_SLOTS]),
                                     KOLO_CUDA_FREE, 0);
}

/* ---- a step ---- */

static uint32_t pieces_of(const step_t *x, const part_t *p)
{
    return (uint32_t)KOLO_DIV_UP(p->bytes, x->s->copies->piece);
}

/* Notes the step for waits(). Numbers begin at 1; those of captured ones come again in each replay. */
static void note(step_t *x, uint32_t most)
{
    kolo_cuda_copies_t *c = x->s->copies;
    bool captured = x->s->order.capturing;
    uint32_t half = KOLO_CUDA_LATELY / 2;
    x->id = 1 + (captured ? half : 0) + c->next[captured]++ % (half - 1);
    kolo_cuda_lately_t l = {.number = x->call->number, .word = x->call->word, .pieces = most};
    for (size_t i = 0; i < x->nputs; i++) l.puts |= UINT64_C(1) << x->puts[i].peer;
    for (size_t i = 0; i < x->ntakes; i++) l.takes |= UINT64_C(1) << x->takes[i].peer;
    c->lately[x->id] = l;
}

static kolo_cu_result_t put_pieces(const step_t *x, uint32_t most)
{
    kolo_cu_result_t r = KOLO_CU_SUCCESS;
    for (uint32_t k = 0; k < most; k++) {
        for (size_t i = 0; i < x->nputs && !r; i++)
            if (k < pieces_of(x, &x->puts[i])) r = put(x, &x->puts[i], k);
        for (size_t i = 0; i < x->ntakes && !r; i++)
            if (k < pieces_of(x, &x->takes[i])) r = take(x, &x->takes[i], k);
        if (r) return r;
    }
    return r;
}

/* Waits until all is taken, on a rank that takes nothing: two that each give would not find out that they differ.
 */
static kolo_cu_result_t await_taken(const step_t *x, uint32_t peer)
{
    const kolo_cuda_state_t *s = x->s;
    kolo_cu_result_t r = KOLO_CU_SUCCESS;
    for (uint32_t k = 0; k < KOLO_CUDA_SLOTS && !r; k++)
        r = s->api->stream_wait_word(x->call->stream,
                                     seen(s, &kolo_cuda_line(s, (uint32_t)s->regions.rank, peer)->credit[k]),
                                     KOLO_CUDA_FREE, KOLO_CU_WAIT_ANY_BIT);
    return r;
}

static kolo_cu_result_t put_step(step_t *x)
{
    const kolo_cuda_api_t *api = x->s->api;
    kolo_cuda_copies_t *c = x->s->copies;
    kolo_cu_stream_t stream = x->call->stream;
    uint32_t most = 0, me = (uint32_t)x->s->regions.rank;
    for (size_t i = 0; i < x->nputs; i++) most = KOLO_MAX(most, pieces_of(x, &x->puts[i]));
    for (size_t i = 0; i < x->ntakes; i++) most = KOLO_MAX(most, pieces_of(x, &x->takes[i]));
    if (!most) return KOLO_CU_SUCCESS;
    note(x, most);
    bool forks = (x->ntakes || x->own_bytes) &&
                 !x->s->order.capturing; /* the other stream is no part of a capture: others may be open */
    x->side = forks ? c->side : stream;
    kolo_cu_result_t r =
        api->stream_write_word(stream, seen(x->s, &kolo_cuda_line(x->s, me, me)->ready[0]), x->id, 0);
    if (!r && forks) r = api->event_record(c->fork, stream);
    if (!r && forks) r = api->stream_wait(c->side, c->fork, 0);
    if (!r && x->own_bytes) r = copy_here(x, x->own_to, x->own_from, x->own_bytes);
    if (!r) r = put_pieces(x, most);
    for (size_t i = 0; i < x->nputs && !x->ntakes && !r; i++) r = await_taken(x, x->puts[i].peer);
    if (!r && forks) r = api->event_record(c->join, c->side);
    if (!r && forks) r = api->stream_wait(stream, c->join, 0);
    return r ? r : api->stream_write_word(stream, seen(x->s, &kolo_cuda_line(x->s, me, me)->ready[0]), 0, 0);
}

/* ---- operations ---- */

static void add(part_t *parts, size_t *n, uint32_t peer, uint64_t at, uint64_t bytes)
{
    parts[(*n)++] = (part_t){peer, at, bytes};
}

/* Moves from each rank to each: all_gather and all_to_all. */
static kolo_cu_result_t put_all(step_t *x, uint64_t bytes, uint64_t src_stride, uint64_t dst_stride)
{
    uint32_t n = (uint32_t)x->s->regions.nranks, me = (uint32_t)x->s->regions.rank;
    uint64_t src = (uint64_t)(uintptr_t)x->call->src, dst = (uint64_t)(uintptr_t)x->call->dst;
    for (uint32_t j = 1; j < n; j++) {
        uint32_t to = (me + j) % n, from = (me + n - j) % n;
        add(x->puts, &x->nputs, to, src + to * src_stride, bytes);
        add(x->takes, &x->ntakes, from, dst + from * dst_stride, bytes);
    }
    x->own_from = src + me * src_stride;
    x->own_to = dst + me * dst_stride;
    x->own_bytes = x->own_from == x->own_to ? 0 : bytes;
    return put_step(x);
}

/* Gives a part to each rank but the root, which those give to each other. */
static kolo_cu_result_t put_from_root(step_t *x, uint64_t bytes)
{
    uint32_t n = (uint32_t)x->s->regions.nranks, me = (uint32_t)x->s->regions.rank, root = (uint32_t)x->call->root;
    uint64_t src = (uint64_t)(uintptr_t)x->call->src, dst = (uint64_t)(uintptr_t)x->call->dst;
    uint64_t part = KOLO_ROUND_UP(KOLO_DIV_UP(bytes, n - 1), 128);
    uint64_t from[KOLO_CUDA_RANKS], length[KOLO_CUDA_RANKS];
    step_t second = *x;
    for (uint32_t p = 0; p < n; p++) {
        uint64_t at = (p > root ? p - 1 : p) * part;
        from[p] = at;
        length[p] = p == root || at >= bytes ? 0 : KOLO_MIN(part, bytes - at);
    }
    for (uint32_t j = 1; j < n; j++) {
        uint32_t to = (me + j) % n, behind = (me + n - j) % n;
        if (me == root) add(x->puts, &x->nputs, to, src + from[to], length[to]);
        if (me == root) continue;
        if (to != root) add(second.puts, &second.nputs, to, dst + from[me], length[me]);
        if (behind != root) add(second.takes, &second.ntakes, behind, dst + from[behind], length[behind]);
    }
    if (me != root) add(x->takes, &x->ntakes, root, dst + from[me], length[me]);
    x->own_from = src;
    x->own_to = dst;
    x->own_bytes = me != root || src == dst || !dst ? 0 : bytes;
    kolo_cu_result_t r = put_step(x);
    return r ? r : put_step(&second);
}

bool kolo_cuda_copies_serve(const kolo_cuda_state_t *s, const kolo_exec_call_t *c)
{
    if (!s->copies || c->kind != KOLO_EXEC_COLL || c->send_counts || c->recv_counts) return false;
    if (c->coll != KOLO_COLL_ALL_GATHER && c->coll != KOLO_COLL_BROADCAST && c->coll != KOLO_COLL_ALL_TO_ALL)
        return false;
    return c->count * c->elem >= s->limits.copy;
}

kolo_status_t kolo_cuda_copies_launch(kolo_cuda_state_t *s, const kolo_exec_call_t *c)
{
    uint64_t bytes = c->count * c->elem;
    uint64_t src_stride = c->src_stride ? c->src_stride : bytes, dst_stride = c->dst_stride ? c->dst_stride : bytes;
    step_t x = {.s = s, .call = c};
    KOLO_TRY(kolo_cuda_order_before(&s->order, c->stream));
    kolo_cu_result_t r = c->coll == KOLO_COLL_BROADCAST
                             ? put_from_root(&x, bytes)
                             : put_all(&x, bytes, c->coll == KOLO_COLL_ALL_TO_ALL ? src_stride : 0, dst_stride);
    if (r) return kolo_cuda_fail(r, s->device->ordinal, "queue copies without kernels");
    s->copied = true;
    kolo_status_t status = kolo_cuda_order_behind(&s->order, c->stream);
    if (__atomic_load_n(&s->mailbox->abort, __ATOMIC_ACQUIRE)) atomic_store(&s->copies->cut, true);
    return status;
}
