/* SPDX-License-Identifier: Apache-2.0
 *
 * config.order = KOLO_ORDER_RANKS: each element is ((r0 + r1) + r2) + ..., summed in float32 where its type is
 * shorter, rounded once, divided last. Random counts, offsets and splits of one vector give the bits of a loop over
 * ranks, whatever algorithm is chosen or forced. TEST_SEED repeats a run.
 */
#include "exec/host/reduce_types.h"
#include "kit/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CASES 10000 /* (count, offset, split): over all numbers of ranks and this many steps of each */
#define MOST  70000 /* elements of the vector */

typedef struct {
    uint64_t seed;
    int steps;
} program_t;

static const kolo_type_t types[] = {KOLO_FLOAT32, KOLO_BFLOAT16,    KOLO_FLOAT16,
                                    KOLO_FLOAT64, KOLO_FLOAT8_E4M3, KOLO_FLOAT8_E5M2};
static const size_t sizes[] = {4, 2, 2, 8, 1, 1};
enum { TYPES = 6 };

static uint64_t draw(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* What rank r has at place i: of very different sizes, so that any other order gives other bits. */
TEST_PLAIN static double given(int r, size_t i)
{
    uint64_t x = (i * 31u + (uint64_t)r * 7919u + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x ^= x >> 31;
    double v = (double)(int64_t)(x % 2001) - 1000;
    return v / 1024 * (double)(1u << x / 4096 % 5);
}

static void put(int type, void *at, size_t i, double v)
{
    uint32_t w = bits_of_float((float)v);
    switch (type) {
    case 0:
        memcpy((char *)at + 4 * i, &w, 4);
        break;
    case 1:
        ((uint16_t *)at)[i] = store_bf16((float)v);
        break;
    case 2:
        ((uint16_t *)at)[i] = store_f16((float)v);
        break;
    case 3:
        ((double *)at)[i] = v;
        break;
    case 4:
        ((uint8_t *)at)[i] = store_e4m3((float)v);
        break;
    default:
        ((uint8_t *)at)[i] = store_e5m2((float)v);
    }
}

TEST_PLAIN static float widened(int type, double v)
{
    char e[8];
    uint16_t h;
    put(type, e, 0, v);
    memcpy(&h, e, 2);
    switch (type) {
    case 1:
        return load_bf16(h);
    case 2:
        return load_f16(h);
    case 4:
        return load_e4m3((uint8_t)h);
    case 5:
        return load_e5m2((uint8_t)h);
    default:
        return (float)v;
    }
}

/* The definition. */
TEST_PLAIN static void fold(int type, kolo_op_t op, int n, size_t i, void *out)
{
    volatile float sum = widened(type, given(0, i)); /* each step is rounded to a float32 */
    volatile double wide = given(0, i);
    for (int r = 1; r < n; r++) {
        sum = op == KOLO_PROD ? sum * widened(type, given(r, i)) : sum + widened(type, given(r, i));
        wide = op == KOLO_PROD ? wide * given(r, i) : wide + given(r, i);
    }
    if (op == KOLO_AVG) {
        sum = sum / (float)n;
        wide = wide / n;
    }
    put(type, out, 0, type == 3 ? wide : (double)sum);
}

typedef struct {
    int type, what, root;
    kolo_op_t op;
    size_t begin, count, cut; /* a run of the vector, in one call or in two */
    bool in_place;
} case_t;
enum { ALL_REDUCE, REDUCE, REDUCE_SCATTER };

static case_t make(uint64_t *seed, int n)
{
    static const kolo_op_t ops[] = {KOLO_SUM, KOLO_AVG, KOLO_SUM, KOLO_PROD};
    static const size_t most[] = {8, 200, 3000, 9000, 3000, 200, 200, MOST - 200};
    case_t c = {.type = (int)(draw(seed) % TYPES), .what = (int)(draw(seed) % 4)};
    if (c.what > REDUCE_SCATTER) c.what = ALL_REDUCE;
    c.op = ops[draw(seed) % 4];
    c.begin = draw(seed) % 200;
    c.count = draw(seed) % most[draw(seed) % 8] + 1;
    c.root = (int)(draw(seed) % (uint64_t)n);
    c.cut = draw(seed) % 3 ? c.count : draw(seed) % c.count;
    c.in_place = c.what == ALL_REDUCE && draw(seed) % 2;
    return c;
}

static void call(const case_t *c, const rank_t *r, char *src, char *dst)
{
    const kolo_type_t t = types[c->type];
    size_t e = sizes[c->type], parts[2][2] = {{0, c->cut}, {c->cut, c->count - c->cut}};
    for (int k = 0; k < 2; k++) {
        char *from = src + (c->begin + parts[k][0]) * e,
             *to = c->in_place ? from : dst + (c->begin + parts[k][0]) * e;
        size_t count = parts[k][1];
        if (c->what == ALL_REDUCE) EXPECT_OK(kolo_all_reduce(from, to, count, t, c->op, r->comm, NULL));
        if (c->what == REDUCE) EXPECT_OK(kolo_reduce(from, to, count, t, c->op, c->root, r->comm, NULL));
        if (c->what == REDUCE_SCATTER && k == 0)
            EXPECT_OK(kolo_reduce_scatter(src + c->begin * e, dst, c->count / (size_t)r->nranks, t, c->op, r->comm,
                                          NULL));
    }
}

/* Is what came back for element `i` of the vector the definition's? */
static bool same(const case_t *c, int n, size_t i, const char *got)
{
    char want[8];
    fold(c->type, c->op, n, i, want);
    return memcmp(want, got, sizes[c->type]) == 0;
}

static bool check(const case_t *c, const rank_t *r, const char *src, const char *dst)
{
    size_t e = sizes[c->type], n = (size_t)r->nranks, each = c->count / n;
    size_t first = c->what == REDUCE_SCATTER ? (size_t)r->rank * each : 0;
    size_t count = c->what == REDUCE_SCATTER ? each : c->count;
    if (c->what == REDUCE && r->rank != c->root) return true;
    for (size_t k = 0; k < count; k += 1 + k / 500) { /* all of short ones */
        const char *base = c->in_place ? src : dst;
        const char *at = base + (c->what == REDUCE_SCATTER ? k : c->begin + k) * e;
        if (same(c, r->nranks, c->begin + first + k, at)) continue;
        fprintf(stderr,
                "rank %d of %d: type %d, operator %d, collective %d: element %zu of %zu from %zu, cut at %zu\n",
                r->rank, r->nranks, c->type, (int)c->op, c->what, k, c->count, c->begin, c->cut);
        return false;
    }
    return true;
}

static void run_cases(rank_t *r)
{
    const program_t *p = r->arg;
    uint64_t seed = p->seed;
    int before = expect_failures();
    kolo_comm_t given_comm = r->comm, ordered = NULL;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.order = KOLO_ORDER_RANKS;
    if (!EXPECT_OK(kolo_comm_dup(r->comm, &ordered, &config))) return;
    r->comm = ordered;
    char *src = malloc(MOST * 8), *dst = malloc(MOST * 8);
    for (int k = 0; k < p->steps && expect_failures() == before; k++) {
        case_t c = make(&seed, r->nranks);
        for (size_t i = c.begin; i < c.begin + c.count; i++) put(c.type, src, i, given(r->rank, i));
        call(&c, r, src, dst);
        EXPECT(check(&c, r, src, dst));
    }
    free(src);
    free(dst);
    end_comm(&ordered);
    r->comm = given_comm;
}

static void any_count_offset_and_split_gives_the_same_bits(void **state)
{
    (void)state;
    const char *text = getenv("TEST_SEED");
    program_t p = {text ? strtoull(text, NULL, 0) : (now_ms() << 16 ^ (uint64_t)getpid()) | 1,
                   kolo_test_steps(CASES / 5)};
    for (int n = 1; n <= 5; n++) {
        print_message("%d ranks, TEST_SEED=%llu\n", n, (unsigned long long)p.seed);
        assert_int_equal(run_ranks(n, run_cases, &p), 0);
    }
}

/* The parent's is the child's; ranks that differ are told; a number that is none is refused. */
static void one_order_for_all(rank_t *r)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t child = NULL;
    config.order = 7;
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_comm_dup(r->comm, &child, &config), "config.order is 7");
    config.order = r->rank ? KOLO_ORDER_RANKS : KOLO_ORDER_FREE;
    config.split_share = 0;
    EXPECT_ERROR(KOLO_ERR_MISMATCH, kolo_comm_split(r->comm, 0, r->rank, &child, &config), "config.order");
    end_comm(&child);
}

static void ranks_that_ask_for_different_orders_are_told(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(3, one_order_for_all, NULL), 0);
}

int main(void)
{
    limit_s(110);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_count_offset_and_split_gives_the_same_bits),
        cmocka_unit_test(ranks_that_ask_for_different_orders_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
