/* SPDX-License-Identifier: Apache-2.0
 *
 * Inputs and right answers (conformance.h).
 */
#include "exec/host/conformance.h"

#include "base/test.h"
#include "exec/host/reduce_reference.h"

#include <stdio.h>
#include <stdlib.h>

#define GUARD 64

/* What rank r has at element i of its input. */
static int input(const case_t *c, uint32_t r, size_t i)
{
    uint32_t h = (uint32_t)(kolo_hash_bytes(KOLO_HASH_INIT + c->seed, &i, sizeof(i)) >> 17) + r * 7919u;
    h ^= h >> 13;
    bool is_signed = c->call.type != KOLO_UINT8 && c->call.type != KOLO_UINT16 && c->call.type != KOLO_UINT32 &&
                     c->call.type != KOLO_UINT64 && c->call.type != KOLO_BOOL;
    if (c->call.op == KOLO_PROD) return h % 5 == 0 ? (is_signed ? -1 : 2) : 1;
    return (int)(h % 3) - (is_signed ? 1 : 0);
}

static uint64_t encode(kolo_type_t type, size_t elem, int v)
{
    const ref_format_t *f = ref_format(type);
    uint64_t x = f ? ref_encode(f, v) : (uint64_t)(int64_t)v;
    return elem == 8 ? x : x & ((1ull << elem * 8) - 1);
}

static size_t elem_of(kolo_type_t type)
{
    kolo_reducer_t r;
    assert_int_equal(kolo_reducer_init(&r, type, KOLO_SUM, 1), KOLO_OK);
    return r.elem;
}

static void put(char *p, size_t elem, uint64_t v)
{
    memcpy(p, &v, elem);
}

static bool has(kolo_coll_t coll, bool root, bool src)
{
    if (coll == KOLO_COLL_BARRIER) return false;
    return root || !(src ? kolo_coll_traits(coll)->src_at_root : kolo_coll_traits(coll)->dst_at_root);
}

void case_open(const case_t *c, uint32_t rank, case_buffers_t *b, fixture_call_t *call)
{
    kolo_coll_t coll = c->call.coll;
    size_t elem = elem_of(c->call.type), n = c->nranks, count = c->call.count;
    bool root = rank == c->call.root;
    *call = c->call;
    b->src_count = kolo_coll_src_count(coll, count, (uint32_t)n);
    b->dst_count = kolo_coll_dst_count(coll, count, (uint32_t)n);
    size_t most = (KOLO_MAX(b->src_count, b->dst_count) + c->shift) * elem + 2 * GUARD;
    b->mem_src = malloc(most);
    b->mem_dst = malloc(most);
    assert_non_null(b->mem_src);
    assert_non_null(b->mem_dst);
    memset(b->mem_src, 0x5b, most);
    memset(b->mem_dst, 0x5b, most);
    b->src = b->mem_src + GUARD + c->shift * elem;
    b->dst = b->mem_dst + GUARD + (c->shift * 3 % 5 ? c->shift : 0) * elem;
    if (c->in_place && coll != KOLO_COLL_ALL_TO_ALL) {
        if (b->src_count >= b->dst_count) {
            bool mine = b->src_count != b->dst_count && (coll != KOLO_COLL_SCATTER || root);
            if (coll != KOLO_COLL_SCATTER || root) b->dst = b->src + (mine ? rank * count * elem : 0);
        } else if (coll == KOLO_COLL_ALL_GATHER || root) {
            b->src = b->dst + rank * count * elem;
        }
    }
    call->src = has(coll, root, true) || (c->in_place && coll == KOLO_COLL_BROADCAST) ? b->src : NULL;
    call->dst = has(coll, root, false) ? b->dst : NULL;
    for (size_t i = 0; has(coll, root, true) && i < b->src_count; i++)
        put(b->src + i * elem, elem, encode(c->call.type, elem, input(c, rank, i)));
}

/* Element i of rank's result, from all inputs; *known is false for what has only a rounded answer. */
static uint64_t answer(const case_t *c, uint32_t rank, size_t i, bool *known)
{
    size_t elem = elem_of(c->call.type), count = c->call.count;
    *known = true;
    switch (c->call.coll) {
    case KOLO_COLL_BROADCAST:
        return encode(c->call.type, elem, input(c, c->call.root, i));
    case KOLO_COLL_ALL_GATHER:
    case KOLO_COLL_GATHER:
        return encode(c->call.type, elem, input(c, (uint32_t)(i / count), i % count));
    case KOLO_COLL_SCATTER:
        return encode(c->call.type, elem, input(c, c->call.root, rank * count + i));
    case KOLO_COLL_ALL_TO_ALL:
        return encode(c->call.type, elem, input(c, (uint32_t)(i / count), rank * count + i % count));
    default:
        break;
    }
    size_t at = c->call.coll == KOLO_COLL_REDUCE_SCATTER ? rank * count + i : i;
    uint64_t in[FIXTURE_MAX_RANKS] = {0};
    for (uint32_t r = 0; r < c->nranks; r++) in[r] = encode(c->call.type, elem, input(c, r, at));
    kolo_op_t op = c->call.op == KOLO_AVG ? KOLO_SUM : c->call.op;
    uint64_t x = ref_fold(c->call.type, op, elem, in, (int)c->nranks);
    if (c->call.op != KOLO_AVG) return x;
    if (ref_format(c->call.type)) {
        *known = (c->nranks & (c->nranks - 1)) == 0;
        return ref_encode(ref_format(c->call.type), ref_decode(ref_format(c->call.type), x) / c->nranks);
    }
    x = ref_is_signed(c->call.type) ? (uint64_t)(ref_extend(elem, x) / (int64_t)c->nranks) : x / c->nranks;
    return elem == 8 ? x : x & ((1ull << elem * 8) - 1);
}

const char *case_check(const case_t *c, uint32_t rank, const case_buffers_t *b)
{
    static _Thread_local char text[160];
    size_t elem = elem_of(c->call.type);
    if (!has(c->call.coll, rank == c->call.root, false)) return NULL;
    for (size_t i = 0; i < b->dst_count; i++) {
        bool known;
        uint64_t want = answer(c, rank, i, &known), got = ref_load(elem, b->dst + i * elem);
        bool right = got == want;
        if (!known) {
            const ref_format_t *f = ref_format(c->call.type);
            double x = ref_decode(f, got), y = ref_decode(f, want);
            right = fabs(x - y) <= (fabs(y) + 1) * ldexp(c->nranks, -f->man);
        }
        if (right) continue;
        snprintf(text, sizeof(text), "rank %u, element %zu of %zu: %llx instead of %llx", rank, i, b->dst_count,
                 (unsigned long long)got, (unsigned long long)want);
        return text;
    }
    const char *end = b->dst + b->dst_count * elem;
    for (int k = 0; k < 8; k++)
        if (b->dst != b->src && c->call.coll != KOLO_COLL_SCATTER && c->call.coll != KOLO_COLL_REDUCE_SCATTER &&
            end[k] != 0x5b)
            return "bytes behind the result were written";
    return NULL;
}

void case_close(case_buffers_t *b)
{
    free(b->mem_src);
    free(b->mem_dst);
}
