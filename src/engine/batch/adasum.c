/* SPDX-License-Identifier: Apache-2.0
 *
 * Adasum: a sum that adds what two gradients do not have in common and averages what they have. Of two vectors a
 * and b it makes (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b; more ranks are taken pairwise, in a tree: ranks from
 * the largest power of two on are folded into the first ones, then neighbours at distance 1, 2, 4 and so on
 * combine. Coefficients are those of each tensor alone, also when many lie in one fused buffer, and are computed in
 * double.
 *
 * The tree runs as vector halving and distance doubling: at each level two partners exchange halves of what they
 * hold, so each combines half as much as before; the ranks that together hold both whole vectors add up their parts
 * of the products. At the end each has one piece of the result, and the pieces go back the way they came. Every
 * element is computed by one rank only, so all ranks get the same bits.
 *
 * On GPUs the same is queued: messages of the communicator of GPUs, kernels for the arithmetic
 * (gpu/cuda/blend.cuh), sums and coefficients in the GPU's memory. Only the order in which products are added
 * differs.
 *
 * A rank that has joined brings zeros: Adasum of a and zero is a, and no coefficient of anyone changes.
 */
#include "engine/batch/native.h"
#include "engine/batch/parts.h"
#include "engine/batch/perform.h"
#include "engine/values_kernels.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

enum { LEVELS_MAX = 31, ALIGN = 8 }; /* elements: of begins of pieces, for wide loads */

typedef struct {
    size_t from, to; /* elements of data */
} piece_t;

typedef struct {
    kolo_set_t *s;
    kolo_type_t type;
    kolo_use_t *use; /* of the GPU that all lies on; NULL: host memory */
    size_t elem, ntensors;
    piece_t *tensors;
    kolo_blend_t *parts;   /* of a piece, for the GPU */
    double *sums, *others; /* KOLO_BLEND_SUMS per tensor: this rank's or the group's, and what a partner sent */
    double *room;          /* of the GPU's, for products */
    char *data, *theirs;
} adasum_t;

/* ---- arithmetic ---- */

/* 16-bit floats are worked on in blocks that stay in the first-level cache, as float32. */
#define BLOCK 1024

static void widen(kolo_type_t type, float *dst, const void *src, size_t n)
{
    (type == KOLO_FLOAT16 ? kolo_values()->widen_f16 : kolo_values()->widen_bf16)(dst, src, n);
}

static void narrow(kolo_type_t type, void *dst, const float *src, size_t n)
{
    (type == KOLO_FLOAT16 ? kolo_values()->narrow_f16 : kolo_values()->narrow_bf16)(dst, src, n);
}

static double sum_of(const double *lanes)
{
    double sum = 0;
    for (int k = 0; k < KOLO_LANES; k++) sum += lanes[k];
    return sum;
}

static void products(const void *a, const void *b, size_t n, kolo_type_t type, double *out)
{
    kolo_products_t p = {{0}, {0}, {0}};
    float x[BLOCK], y[BLOCK];
    if (type == KOLO_FLOAT32) kolo_values()->products_f32(&p, a, b, n);
    if (type == KOLO_FLOAT64) kolo_values()->products_f64(&p, a, b, n);
    for (size_t at = 0; at < n && kolo_type_size(type) == 2; at += BLOCK) {
        size_t m = KOLO_MIN((size_t)BLOCK, n - at);
        widen(type, x, (const uint16_t *)a + at, m);
        widen(type, y, (const uint16_t *)b + at, m);
        kolo_values()->products_f32(&p, x, y, m);
    }
    out[KOLO_BLEND_AB] = sum_of(p.ab);
    out[KOLO_BLEND_AA] = sum_of(p.aa);
    out[KOLO_BLEND_BB] = sum_of(p.bb);
}

/* Computes dst = c[0] a + c[1] b; dst may be a or b. */
static void combine(kolo_type_t type, size_t n, void *dst, const void *a, const void *b, const double c[2])
{
    double ca = c[0], cb = c[1];
    float x[BLOCK], y[BLOCK];
    if (type == KOLO_FLOAT32) kolo_values()->combine_f32(dst, a, b, n, ca, cb);
    if (type == KOLO_FLOAT64) kolo_values()->combine_f64(dst, a, b, n, ca, cb);
    for (size_t at = 0; at < n && kolo_type_size(type) == 2; at += BLOCK) {
        size_t m = KOLO_MIN((size_t)BLOCK, n - at);
        widen(type, x, (const uint16_t *)a + at, m);
        widen(type, y, (const uint16_t *)b + at, m);
        kolo_values()->combine_f32(x, x, y, m, ca, cb);
        narrow(type, (uint16_t *)dst + at, x, m);
    }
}

/* Returns 1 for a vector that is as good as zero: it has no direction to take anything out of. */
static double coefficient(double ab, double norm)
{
    return norm < sqrt(DBL_MIN) ? 1.0 : 1.0 - ab / (2.0 * norm);
}

/* ---- tensor by tensor ---- */

/* Lists the parts of tensors that lie in the piece: mine at its place in data, theirs from the begin of that
 * buffer. Returns how many; all: also those of which nothing does. */
static size_t list_parts(const adasum_t *x, piece_t piece, bool mine_is_a, bool all)
{
    size_t n = 0;
    for (size_t t = 0; t < x->ntensors; t++) {
        size_t from = KOLO_MAX(x->tensors[t].from, piece.from), to = KOLO_MIN(x->tensors[t].to, piece.to);
        size_t count = from < to ? to - from : 0;
        if (count == 0 && !all) continue;
        char *mine = x->data + (count ? from : piece.from) * x->elem;
        const char *theirs = x->theirs + (count ? from - piece.from : 0) * x->elem;
        x->parts[n++] = (kolo_blend_t){.to = mine,
                                       .a = mine_is_a ? mine : theirs,
                                       .b = mine_is_a ? theirs : mine,
                                       .count = count,
                                       .sums = x->sums + t * KOLO_BLEND_SUMS};
    }
    return n;
}

static kolo_status_t sum_up(const adasum_t *x, piece_t piece, bool mine_is_a)
{
    size_t n = list_parts(x, piece, mine_is_a, true);
    if (x->use) return kolo_use_products(x->use, x->parts, n, x->type, x->room);
    for (const kolo_blend_t *p = x->parts; p < x->parts + n; p++) products(p->a, p->b, p->count, x->type, p->sums);
    return KOLO_OK;
}

static kolo_status_t merge(const adasum_t *x, piece_t piece, bool mine_is_a)
{
    size_t n = list_parts(x, piece, mine_is_a, false);
    if (x->use) return kolo_use_blend(x->use, x->parts, n, x->type);
    for (const kolo_blend_t *p = x->parts; p < x->parts + n; p++) {
        const double *sums = p->sums, ab = sums[KOLO_BLEND_AB];
        const double c[2] = {coefficient(ab, sums[KOLO_BLEND_AA]), coefficient(ab, sums[KOLO_BLEND_BB])};
        combine(x->type, p->count, p->to, p->a, p->b, c);
    }
    return KOLO_OK;
}

/* ---- between ranks ---- */

/* Sends and receives. Both sides know when there is nothing to send. */
static kolo_status_t exchange(const adasum_t *x, int peer, const kolo_swap_t *w)
{
    kolo_status_t status = KOLO_OK;
    if (x->use) return kolo_native_swap(x->s, peer, w);
    KOLO_TRY(kolo_group_start());
    if (w->nout > 0) status = kolo_send(w->out, w->nout, w->type, peer, x->s->comm, NULL);
    if (w->nin > 0 && status == KOLO_OK) status = kolo_recv(w->in, w->nin, w->type, peer, x->s->comm, NULL);
    kolo_status_t ended = kolo_group_end();
    return status == KOLO_OK ? ended : status;
}

static kolo_status_t send_piece(const adasum_t *x, int peer, piece_t out, piece_t in, void *into)
{
    const kolo_swap_t w = {x->data + out.from * x->elem, out.to - out.from, into, in.to - in.from, x->type};
    return exchange(x, peer, &w);
}

/* Adds the parts of the ranks around this one, `group` of them. Partners add the same two numbers, so the sums have
 * the same bits on all. */
static kolo_status_t sum_over(const adasum_t *x, int group)
{
    size_t n = x->ntensors * KOLO_BLEND_SUMS;
    for (int d = 1; d < group; d *= 2) {
        KOLO_TRY(exchange(x, x->s->rank ^ d, &(kolo_swap_t){x->sums, n, x->others, n, KOLO_FLOAT64}));
        const kolo_blend_t add = {.to = x->sums, .a = x->sums, .b = x->others, .count = n};
        if (x->use) KOLO_TRY(kolo_use_blend(x->use, &add, 1, KOLO_FLOAT64));
        for (size_t i = 0; i < n && !x->use; i++) x->sums[i] += x->others[i];
    }
    return KOLO_OK;
}

/* Cuts what this rank holds into what it keeps and what the partner does. The lower one keeps the first half. */
static void halve(piece_t whole, bool lower, piece_t *keep, piece_t *give)
{
    size_t middle = whole.from + (whole.to - whole.from) / 2 / ALIGN * ALIGN;
    piece_t first = {whole.from, middle}, second = {middle, whole.to};
    *keep = lower ? first : second;
    *give = lower ? second : first;
}

static kolo_status_t run_tree(const adasum_t *x, size_t count, int ranks)
{
    piece_t held[LEVELS_MAX + 1] = {{0, count}};
    int level = 0, me = x->s->rank;
    for (int d = 1; d < ranks; d *= 2, level++) {
        piece_t give;
        bool lower = !(me & d);
        halve(held[level], lower, &held[level + 1], &give);
        KOLO_TRY(send_piece(x, me ^ d, give, held[level + 1], x->theirs));
        KOLO_TRY(sum_up(x, held[level + 1], lower));
        KOLO_TRY(sum_over(x, 2 * d));
        KOLO_TRY(merge(x, held[level + 1], lower));
    }
    for (int d = ranks / 2; d > 0; d /= 2, level--) {
        piece_t same, other;
        halve(held[level - 1], !(me & d), &same, &other);
        KOLO_TRY(send_piece(x, me ^ d, held[level], other, x->data + other.from * x->elem));
    }
    return KOLO_OK;
}

/* Has ranks beyond the power of two give what they have to the one that far below, and get the result from it. */
static kolo_status_t run(const adasum_t *x, size_t count)
{
    const piece_t all = {0, count}, none = {0, 0};
    int ranks = 1, me = x->s->rank;
    while (ranks <= x->s->size / 2) ranks *= 2;
    if (me >= ranks) {
        KOLO_TRY(send_piece(x, me - ranks, all, none, NULL));
        return send_piece(x, me - ranks, none, all, x->data);
    }
    bool folds = me + ranks < x->s->size;
    if (folds) {
        KOLO_TRY(send_piece(x, me + ranks, none, all, x->theirs));
        KOLO_TRY(sum_up(x, all, true));
        KOLO_TRY(merge(x, all, true));
    }
    KOLO_TRY(run_tree(x, count, ranks));
    return folds ? send_piece(x, me + ranks, all, none, NULL) : KOLO_OK;
}

/* ---- what perform.c calls ---- */

/* Returns the bytes of a partner's vector that come here at once. */
static size_t theirs_of(const kolo_set_t *s, size_t count, size_t elem)
{
    bool power = (s->size & (s->size - 1)) == 0;
    return (power ? (count + 1) / 2 + ALIGN : count) * elem;
}

/* Returns where the vector of a partner begins behind so many doubles, for loads of any width. */
static size_t theirs_at(size_t doubles)
{
    return KOLO_ROUND_UP(doubles * sizeof(double), (size_t)64);
}

size_t kolo_adasum_scratch(const kolo_set_t *s, size_t count, size_t elem, size_t ntensors)
{
    size_t theirs = theirs_of(s, count, elem);
    return theirs_at(2 * ntensors * KOLO_BLEND_SUMS + kolo_blend_room(theirs, ntensors)) + theirs;
}

kolo_status_t kolo_adasum(kolo_set_t *s, kolo_response_t *const *batch, size_t n, void *data, void *scratch)
{
    adasum_t x = {.s = s, .type = batch[0]->request.type, .ntensors = n, .data = data, .sums = scratch};
    size_t count = 0, at = 0, bytes;
    x.use = s->engine->native ? s->engine->native->use : NULL;
    x.elem = kolo_type_size(x.type);
    x.parts = malloc(n * (sizeof *x.parts + sizeof *x.tensors));
    if (!x.parts) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for Adasum of %zu tensors", n);
    x.tensors = (piece_t *)(x.parts + n);
    for (size_t i = 0; i < n; i++) {
        kolo_backend_pieces_t p = kolo_pieces_of(s, batch[i], false);
        count = at + kolo_piece_elements(&p, 0);
        x.tensors[i] = (piece_t){at, count};
        at += kolo_piece_room(&p, 0);
    }
    bytes = kolo_adasum_scratch(s, count, x.elem, n);
    x.others = x.sums + n * KOLO_BLEND_SUMS;
    x.room = x.others + n * KOLO_BLEND_SUMS;
    x.theirs = (char *)scratch + bytes - theirs_of(s, count, x.elem);
    kolo_status_t status = count > 0 && s->size > 1 ? run(&x, count) : KOLO_OK;
    free(x.parts);
    return status;
}
