/* SPDX-License-Identifier: Apache-2.0
 *
 * The conformance kit of collectives: every collective through the public header, checked against its definition.
 * See cases.h.
 */
#include "coll/cases.h"
#include "coll/values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- plumbing ---- */

static bool fail(const test_rank_t *t, const char *what, kolo_status_t status)
{
    static _Atomic int told;
    if (told++ > 3) return false; /* one failure makes all later calls fail */
    fprintf(stderr, "rank %d of %d: %s: %s: %s\n", t->rank, t->nranks, what, kolo_status_string(status),
            kolo_get_last_error(NULL));
    return false;
}

/* A buffer that starts at an odd element, between canaries. */
typedef struct {
    char *block, *data;
    size_t bytes;
} test_buf_t;
#define CANARY 64

static test_buf_t buf_new(size_t count, size_t elem, size_t skew)
{
    test_buf_t b = {.bytes = count * elem};
    b.block = malloc(b.bytes + 2 * CANARY + 64);
    if (!b.block) abort();
    memset(b.block, 0xa5, b.bytes + 2 * CANARY + 64);
    b.data = b.block + CANARY + skew * elem % 48;
    return b;
}

static bool buf_free(test_buf_t *b, const test_rank_t *t, const char *what)
{
    bool fine = true;
    for (int i = 1; i <= CANARY / 2; i++)
        fine =
            fine && (unsigned char)b->data[-i] == 0xa5 && (unsigned char)b->data[b->bytes + (size_t)i - 1] == 0xa5;
    free(b->block);
    if (!fine) fprintf(stderr, "rank %d: %s wrote outside its buffer\n", t->rank, what);
    return fine;
}

static uint64_t hash(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t h = 0xcbf29ce484222325ull, word;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        memcpy(&word, p, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15ull;
        h ^= h >> 32;
    }
    for (size_t i = 0; i < bytes; i++) h = (h ^ p[i]) * 0x100000001b3ull;
    return h;
}

/* All ranks hold the same bits. */
static bool same_everywhere(test_rank_t *t, const void *data, size_t bytes, const char *what)
{
    uint64_t mine = hash(data, bytes), all[TEST_MAX_RANKS];
    kolo_status_t status = kolo_all_gather(&mine, all, 1, KOLO_UINT64, t->comm, NULL);
    if (status != KOLO_OK) return fail(t, what, status);
    for (int r = 0; r < t->nranks; r++) {
        if (all[r] == mine) continue;
        fprintf(stderr, "%s: ranks %d and %d have different bits\n", what, t->rank, r);
        return false;
    }
    return true;
}

/* On an error the operation is over: the buffers of the case, src and dst, are its own again. */
#define CHECK(status_expr, what)                                                                                   \
    do {                                                                                                           \
        kolo_status_t check_status = (status_expr);                                                                \
        if (check_status != KOLO_OK) {                                                                             \
            free(src.block);                                                                                       \
            free(dst.block);                                                                                       \
            return fail(t, what, check_status);                                                                    \
        }                                                                                                          \
    } while (0)

/* ---- one case each ---- */

bool test_all_reduce(test_rank_t *t, size_t count, kolo_type_t type, kolo_op_t op, bool in_place)
{
    size_t elem = kolo_type_size(type);
    uint64_t seed = ++t->seed;
    test_buf_t src = buf_new(count, elem, (size_t)t->rank), dst = buf_new(count, elem, 3);
    char *in = in_place ? dst.data : src.data;
    test_fill(in, count, type, op, seed, t->rank, 0);
    CHECK(kolo_all_reduce(in, dst.data, count, type, op, t->comm, t->stream), "all_reduce");
    CHECK(test_finish(t), "all_reduce");
    /* All have the same bits, so it is enough that one looks at the values, each time another. */
    bool fine = same_everywhere(t, dst.data, count * elem, "all_reduce");
    if (seed % (uint64_t)t->nranks == (uint64_t)t->rank)
        fine = test_reduced(dst.data, count, type, op, seed, t->nranks, 0, "all_reduce") && fine;
    fine = buf_free(&src, t, "all_reduce") && fine;
    return buf_free(&dst, t, "all_reduce") && fine;
}

bool test_reduce(test_rank_t *t, size_t count, kolo_type_t type, kolo_op_t op, int root, bool in_place)
{
    size_t elem = kolo_type_size(type);
    uint64_t seed = ++t->seed;
    bool is_root = t->rank == root;
    test_buf_t src = buf_new(count, elem, 1), dst = buf_new(count, elem, (size_t)t->rank);
    char *in = in_place && is_root ? dst.data : src.data;
    test_fill(in, count, type, op, seed, t->rank, 0);
    CHECK(kolo_reduce(in, is_root ? dst.data : NULL, count, type, op, root, t->comm, t->stream), "reduce");
    CHECK(test_finish(t), "reduce");
    bool fine = !is_root || test_reduced(dst.data, count, type, op, seed, t->nranks, 0, "reduce");
    fine = buf_free(&src, t, "reduce") && fine;
    return buf_free(&dst, t, "reduce") && fine;
}

bool test_broadcast(test_rank_t *t, size_t count, kolo_type_t type, int root, bool in_place)
{
    size_t elem = kolo_type_size(type);
    uint64_t seed = ++t->seed;
    bool is_root = t->rank == root;
    test_buf_t src = buf_new(count, elem, 1), dst = buf_new(count, elem, (size_t)t->rank);
    char *in = in_place ? dst.data : src.data;
    if (is_root) test_fill(in, count, type, KOLO_SUM, seed, root, 0);
    CHECK(kolo_broadcast(is_root || in_place ? in : NULL, dst.data, count, type, root, t->comm, t->stream),
          "broadcast");
    CHECK(test_finish(t), "broadcast");
    bool fine = test_equal(dst.data, count, type, seed, root, 0, "broadcast");
    fine = buf_free(&src, t, "broadcast") && fine;
    return buf_free(&dst, t, "broadcast") && fine;
}

bool test_all_gather(test_rank_t *t, size_t count, kolo_type_t type, bool in_place)
{
    size_t elem = kolo_type_size(type), n = (size_t)t->nranks;
    uint64_t seed = ++t->seed;
    test_buf_t src = buf_new(count, elem, 1), dst = buf_new(count * n, elem, (size_t)t->rank);
    char *in = in_place ? dst.data + (size_t)t->rank * count * elem : src.data;
    test_fill(in, count, type, KOLO_SUM, seed, t->rank, 0);
    CHECK(kolo_all_gather(in, dst.data, count, type, t->comm, t->stream), "all_gather");
    CHECK(test_finish(t), "all_gather");
    bool fine = true;
    for (size_t r = 0; r < n; r++)
        fine = test_equal(dst.data + r * count * elem, count, type, seed, (int)r, 0, "all_gather") && fine;
    fine = buf_free(&src, t, "all_gather") && fine;
    return buf_free(&dst, t, "all_gather") && fine;
}

bool test_reduce_scatter(test_rank_t *t, size_t count, kolo_type_t type, kolo_op_t op, bool in_place)
{
    size_t elem = kolo_type_size(type), n = (size_t)t->nranks, mine = (size_t)t->rank * count;
    uint64_t seed = ++t->seed;
    test_buf_t src = buf_new(count * n, elem, 1), dst = buf_new(count, elem, 2);
    char *out = in_place ? src.data + mine * elem : dst.data;
    test_fill(src.data, count * n, type, op, seed, t->rank, 0);
    CHECK(kolo_reduce_scatter(src.data, out, count, type, op, t->comm, t->stream), "reduce_scatter");
    CHECK(test_finish(t), "reduce_scatter");
    bool fine = test_reduced(out, count, type, op, seed, t->nranks, mine, "reduce_scatter");
    fine = buf_free(&src, t, "reduce_scatter") && fine;
    return buf_free(&dst, t, "reduce_scatter") && fine;
}

bool test_all_to_all(test_rank_t *t, size_t count, kolo_type_t type)
{
    size_t elem = kolo_type_size(type), n = (size_t)t->nranks;
    uint64_t seed = ++t->seed;
    test_buf_t src = buf_new(count * n, elem, 1), dst = buf_new(count * n, elem, 2);
    test_fill(src.data, count * n, type, KOLO_SUM, seed, t->rank, 0);
    CHECK(kolo_all_to_all(src.data, dst.data, count, type, t->comm, t->stream), "all_to_all");
    CHECK(test_finish(t), "all_to_all");
    bool fine = true;
    for (size_t r = 0; r < n; r++)
        fine = test_equal(dst.data + r * count * elem, count, type, seed, (int)r, (size_t)t->rank * count,
                          "all_to_all") &&
               fine;
    fine = buf_free(&src, t, "all_to_all") && fine;
    return buf_free(&dst, t, "all_to_all") && fine;
}

bool test_gather(test_rank_t *t, size_t count, kolo_type_t type, int root, bool in_place)
{
    size_t elem = kolo_type_size(type), n = (size_t)t->nranks;
    uint64_t seed = ++t->seed;
    bool is_root = t->rank == root;
    test_buf_t src = buf_new(count, elem, 1), dst = buf_new(count * n, elem, 2);
    char *in = in_place && is_root ? dst.data + (size_t)root * count * elem : src.data;
    test_fill(in, count, type, KOLO_SUM, seed, t->rank, 0);
    CHECK(kolo_gather(in, is_root ? dst.data : NULL, count, type, root, t->comm, t->stream), "gather");
    CHECK(test_finish(t), "gather");
    bool fine = true;
    for (size_t r = 0; r < n && is_root; r++)
        fine = test_equal(dst.data + r * count * elem, count, type, seed, (int)r, 0, "gather") && fine;
    fine = buf_free(&src, t, "gather") && fine;
    return buf_free(&dst, t, "gather") && fine;
}

bool test_scatter(test_rank_t *t, size_t count, kolo_type_t type, int root, bool in_place)
{
    size_t elem = kolo_type_size(type), n = (size_t)t->nranks;
    uint64_t seed = ++t->seed;
    bool is_root = t->rank == root;
    test_buf_t src = buf_new(count * n, elem, 1), dst = buf_new(count, elem, 2);
    char *out = in_place && is_root ? src.data + (size_t)root * count * elem : dst.data;
    if (is_root) test_fill(src.data, count * n, type, KOLO_SUM, seed, root, 0);
    CHECK(kolo_scatter(is_root ? src.data : NULL, out, count, type, root, t->comm, t->stream), "scatter");
    CHECK(test_finish(t), "scatter");
    bool fine = test_equal(out, count, type, seed, root, (size_t)t->rank * count, "scatter");
    fine = buf_free(&src, t, "scatter") && fine;
    return buf_free(&dst, t, "scatter") && fine;
}

/* ---- unequal parts ---- */

/* Rank r's share; some are empty. */
static size_t uneven(size_t count, size_t r, uint64_t seed)
{
    size_t v = (size_t)((r + 1) * 2654435761u ^ seed * 40503u) % (count + 1);
    return v % 5 == 0 ? 0 : v;
}

bool test_all_gatherv(test_rank_t *t, size_t count, kolo_type_t type)
{
    size_t elem = kolo_type_size(type), n = (size_t)t->nranks, counts[TEST_MAX_RANKS], displs[TEST_MAX_RANKS],
           end = 0;
    uint64_t seed = ++t->seed;
    for (size_t r = 0; r < n; r++) {
        counts[r] = uneven(count, r, seed);
        displs[r] = end + 1; /* gaps stay untouched */
        end = displs[r] + counts[r];
    }
    test_buf_t src = buf_new(counts[t->rank], elem, 1), dst = buf_new(end, elem, 0);
    test_fill(src.data, counts[t->rank], type, KOLO_SUM, seed, t->rank, 0);
    CHECK(kolo_all_gatherv(src.data, dst.data, counts, displs, type, t->comm, t->stream), "all_gatherv");
    CHECK(test_finish(t), "all_gatherv");
    bool fine = true;
    for (size_t r = 0; r < n; r++) {
        fine = test_equal(dst.data + displs[r] * elem, counts[r], type, seed, (int)r, 0, "all_gatherv") && fine;
        fine = (unsigned char)dst.data[displs[r] * elem - 1] == 0xa5 && fine;
    }
    fine = buf_free(&src, t, "all_gatherv") && fine;
    return buf_free(&dst, t, "all_gatherv") && fine;
}

/* Parts at the root, with gaps between them that stay untouched; where they lie only the root knows. */
typedef struct {
    size_t counts[TEST_MAX_RANKS], displs[TEST_MAX_RANKS], end;
} parts_t;

static parts_t cut(const test_rank_t *t, size_t count, uint64_t seed)
{
    parts_t p = {.end = 0};
    for (size_t r = 0; r < (size_t)t->nranks; r++) {
        p.counts[r] = uneven(count, r, seed);
        p.displs[r] = p.end + 1;
        p.end = p.displs[r] + p.counts[r];
    }
    return p;
}

bool test_gatherv(test_rank_t *t, size_t count, kolo_type_t type, int root, bool in_place)
{
    size_t elem = kolo_type_size(type);
    uint64_t seed = ++t->seed;
    parts_t p = cut(t, count, seed);
    bool here = t->rank == root, fine = true;
    size_t mine = p.counts[t->rank];
    test_buf_t src = buf_new(mine, elem, 1), dst = buf_new(here ? p.end : 0, elem, 0);
    char *from = here && in_place ? dst.data + p.displs[root] * elem : src.data;
    test_fill(from, mine, type, KOLO_SUM, seed, t->rank, 0);
    CHECK(kolo_gatherv(from, here ? dst.data : NULL, p.counts, here ? p.displs : NULL, type, root, t->comm,
                       t->stream),
          "gatherv");
    CHECK(test_finish(t), "gatherv");
    for (size_t r = 0; here && r < (size_t)t->nranks; r++) {
        fine = test_equal(dst.data + p.displs[r] * elem, p.counts[r], type, seed, (int)r, 0, "gatherv") && fine;
        fine = (unsigned char)dst.data[p.displs[r] * elem - 1] == 0xa5 && fine;
    }
    fine = buf_free(&src, t, "gatherv") && fine;
    return buf_free(&dst, t, "gatherv") && fine;
}

bool test_scatterv(test_rank_t *t, size_t count, kolo_type_t type, int root, bool in_place)
{
    size_t elem = kolo_type_size(type);
    uint64_t seed = ++t->seed;
    parts_t p = cut(t, count, seed);
    bool here = t->rank == root;
    size_t mine = p.counts[t->rank], first = p.displs[t->rank];
    test_buf_t src = buf_new(here ? p.end : 0, elem, 1), dst = buf_new(mine, elem, 0);
    if (here) test_fill(src.data, p.end, type, KOLO_SUM, seed, root, 0);
    char *to = here && in_place ? src.data + p.displs[root] * elem : dst.data;
    CHECK(
        kolo_scatterv(here ? src.data : NULL, p.counts, here ? p.displs : NULL, to, type, root, t->comm, t->stream),
        "scatterv");
    CHECK(test_finish(t), "scatterv");
    bool fine = test_equal(to, mine, type, seed, root, first, "scatterv");
    fine = buf_free(&src, t, "scatterv") && fine;
    return buf_free(&dst, t, "scatterv") && fine;
}

/* The same values, each part in memory of its own, in an order that differs by rank. */
static bool scattered_parts(test_rank_t *t, const void *whole, const size_t *counts, void *dst, size_t mine,
                            kolo_type_t type, kolo_op_t op, uint64_t seed)
{
    size_t elem = kolo_type_size(type), n = (size_t)t->nranks, displs[TEST_MAX_RANKS], at = 0;
    char *parts[TEST_MAX_RANKS], *low = NULL;
    for (size_t i = 0; i < n; i++) {
        size_t r = (n - 1 - i + (size_t)t->rank) % n;
        parts[r] = aligned_alloc(64, (counts[r] * elem + 64) / 64 * 64);
        if (!low || parts[r] < low) low = parts[r];
    }
    for (size_t r = 0; r < n; at += counts[r++]) {
        memcpy(parts[r], (const char *)whole + at * elem, counts[r] * elem);
        displs[r] = (size_t)(parts[r] - low) / elem;
    }
    memset(dst, 0x5a, counts[t->rank] * elem);
    kolo_status_t status = kolo_reduce_scatterv(low, dst, counts, displs, type, op, t->comm, t->stream);
    if (status == KOLO_OK) status = test_finish(t);
    for (size_t r = 0; r < n; r++) free(parts[r]);
    if (status != KOLO_OK) {
        fprintf(stderr, "reduce_scatterv, apart: rank %d: %s\n", t->rank, kolo_get_last_error(NULL));
        return false;
    }
    return test_reduced(dst, counts[t->rank], type, op, seed, t->nranks, mine, "reduce_scatterv, apart");
}

bool test_reduce_scatterv(test_rank_t *t, size_t count, kolo_type_t type, kolo_op_t op)
{
    size_t elem = kolo_type_size(type), n = (size_t)t->nranks, counts[TEST_MAX_RANKS], total = 0, mine = 0;
    uint64_t seed = ++t->seed;
    for (size_t r = 0; r < n; r++) {
        counts[r] = uneven(count, r, seed);
        if ((int)r == t->rank) mine = total;
        total += counts[r];
    }
    test_buf_t src = buf_new(total, elem, 1), dst = buf_new(counts[t->rank], elem, 0);
    test_fill(src.data, total, type, op, seed, t->rank, 0);
    CHECK(kolo_reduce_scatterv(src.data, dst.data, counts, NULL, type, op, t->comm, t->stream), "reduce_scatterv");
    CHECK(test_finish(t), "reduce_scatterv");
    bool fine = test_reduced(dst.data, counts[t->rank], type, op, seed, t->nranks, mine, "reduce_scatterv");
    fine = scattered_parts(t, src.data, counts, dst.data, mine, type, op, seed) && fine;
    fine = buf_free(&src, t, "reduce_scatterv") && fine;
    return buf_free(&dst, t, "reduce_scatterv") && fine;
}

bool test_all_to_allv(test_rank_t *t, size_t count, kolo_type_t type)
{
    size_t elem = kolo_type_size(type), n = (size_t)t->nranks, me = (size_t)t->rank, at = 0, to = 0;
    size_t sc[TEST_MAX_RANKS], sd[TEST_MAX_RANKS], rc[TEST_MAX_RANKS], rd[TEST_MAX_RANKS];
    uint64_t seed = ++t->seed;
    for (size_t r = 0; r < n; r++) { /* from a to b: uneven(a * n + b) */
        sc[r] = uneven(count, me * n + r, seed);
        rc[r] = uneven(count, r * n + me, seed);
        sd[r] = at;
        rd[r] = to;
        at += sc[r] + 1;
        to += rc[r];
    }
    test_buf_t src = buf_new(at, elem, 1), dst = buf_new(to, elem, 0);
    for (size_t r = 0; r < n; r++)
        test_fill(src.data + sd[r] * elem, sc[r], type, KOLO_SUM, seed, t->rank, r * 1000003);
    CHECK(kolo_all_to_allv(src.data, sc, sd, dst.data, rc, rd, type, t->comm, t->stream), "all_to_allv");
    CHECK(test_finish(t), "all_to_allv");
    bool fine = true;
    for (size_t r = 0; r < n; r++)
        fine = test_equal(dst.data + rd[r] * elem, rc[r], type, seed, (int)r, me * 1000003, "all_to_allv") && fine;
    fine = buf_free(&src, t, "all_to_allv") && fine;
    return buf_free(&dst, t, "all_to_allv") && fine;
}

/* ---- point to point ---- */

bool test_ring_exchange(test_rank_t *t, size_t count, kolo_type_t type)
{
    size_t elem = kolo_type_size(type);
    uint64_t seed = ++t->seed;
    int next = (t->rank + 1) % t->nranks, prev = (t->rank + t->nranks - 1) % t->nranks;
    test_buf_t src = buf_new(count, elem, 1), dst = buf_new(count, elem, 2);
    test_fill(src.data, count, type, KOLO_SUM, seed, t->rank, 0);
    CHECK(kolo_group_start(), "group_start");
    CHECK(kolo_send(src.data, count, type, next, t->comm, t->stream), "send");
    CHECK(kolo_recv(dst.data, count, type, prev, t->comm, t->stream), "recv");
    CHECK(kolo_group_end(), "group_end");
    CHECK(test_finish(t), "sendrecv");
    bool fine = test_equal(dst.data, count, type, seed, prev, 0, "sendrecv");
    fine = buf_free(&src, t, "sendrecv") && fine;
    return buf_free(&dst, t, "sendrecv") && fine;
}

/* Several messages of different sizes to every rank, myself included, in one group with a collective. */
bool test_group_mix(test_rank_t *t, size_t count)
{
    enum { MESSAGES = 3 };
    size_t n = (size_t)t->nranks, sizes[MESSAGES] = {count, count / 7, 3 * count};
    size_t per_peer = sizes[0] + sizes[1] + sizes[2];
    uint64_t seed = ++t->seed;
    test_buf_t src = buf_new(per_peer * n, 4, 1), dst = buf_new(per_peer * n + count, 4, 2);
    char *sum = dst.data + per_peer * n * 4;
    test_fill(src.data, per_peer * n, KOLO_INT32, KOLO_SUM, seed, t->rank, 0);
    test_fill(sum, count, KOLO_INT32, KOLO_SUM, seed + 1, t->rank, 0);
    t->seed++;
    CHECK(kolo_group_start(), "group_start");
    for (size_t r = 0; r < n; r++) {
        size_t at = r * per_peer * 4;
        for (int m = 0; m < MESSAGES; m++) {
            CHECK(kolo_send(src.data + at, sizes[m], KOLO_INT32, (int)r, t->comm, t->stream), "send");
            CHECK(kolo_recv(dst.data + at, sizes[m], KOLO_INT32, (int)r, t->comm, t->stream), "recv");
            at += sizes[m] * 4;
        }
        if (r == 0) CHECK(kolo_all_reduce(sum, sum, count, KOLO_INT32, KOLO_SUM, t->comm, t->stream), "all_reduce");
    }
    CHECK(kolo_group_end(), "group_end");
    CHECK(test_finish(t), "group");
    bool fine = test_reduced(sum, count, KOLO_INT32, KOLO_SUM, seed + 1, t->nranks, 0, "group all_reduce");
    for (size_t r = 0; r < n; r++)
        fine = test_equal(dst.data + r * per_peer * 4, per_peer, KOLO_INT32, seed, (int)r,
                          (size_t)t->rank * per_peer, "group sendrecv") &&
               fine;
    fine = buf_free(&src, t, "group") && fine;
    return buf_free(&dst, t, "group") && fine;
}
