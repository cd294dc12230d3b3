/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels made for their collectives follow verified plans: one step by lines, lines of 128 bytes and stages;
 * two steps by stages; the same without stages, by stores and loads in the peers' buffers; a chain. Each
 * block tells its steps (gpu/cuda/steps.h); a block is held against the plan of the same algorithm as a replica of
 * it, and all blocks together must move each byte of each chunk once, from where its taker expects it. Ranks are
 * streams of the fake driver. Values are compared by gpu_conform.
 */
#include "../../tools/tuning/gpu_spread.h"
#include "algo/test_shapes.h"
#include "base/test.h"
#include "gpu/cuda/cuda.h"
#include "gpu/cuda/steps.h"
#include "prove/verify.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS    4u
#define RESIDENT 24u
#define STEPS    16384u
#define MOST     ((size_t)4 << 20) /* of a buffer, and a gap behind it */

typedef struct {
    kolo_cuda_mailbox_t mailbox;
    char *region, *src, *dst;
    kolo_cu_stream_t stream;
} rank_t;

typedef enum {
    WAY_LINES,
    WAY_LINES_128,
    WAY_LINES_TWO,
    WAY_STAGES,
    WAY_UNALIGNED,
    WAY_PIPED,
    WAY_CHAIN,
    WAY_REACHED,
    WAY_GIVEN
} way_t;

typedef struct {
    kolo_coll_t coll;
    way_t way;
    kolo_algo_t algo; /* whose plan it follows */
} row_t;

static kolo_status_t emit(const row_t *row, const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    if (row->coll == KOLO_COLL_BROADCAST && row->way == WAY_REACHED) return gpu_emit_spread(env, plan);
    if (row->coll == KOLO_COLL_REDUCE &&
        (row->way == WAY_PIPED || row->way == WAY_LINES_TWO || (row->way == WAY_REACHED && env->nranks > 2)))
        return gpu_emit_owned_reduce(env, plan);
    return kolo_algo_emit(row->coll, row->algo, env, plan);
}

static const row_t rows[] = {
    {KOLO_COLL_ALL_REDUCE, WAY_LINES, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_REDUCE, WAY_LINES, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_BROADCAST, WAY_LINES, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_ALL_GATHER, WAY_LINES, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_REDUCE_SCATTER, WAY_LINES, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_ALL_TO_ALL, WAY_LINES, KOLO_ALGO_DIRECT},
    {KOLO_COLL_GATHER, WAY_LINES, KOLO_ALGO_DIRECT},
    {KOLO_COLL_SCATTER, WAY_LINES, KOLO_ALGO_DIRECT},
    {KOLO_COLL_ALL_REDUCE, WAY_LINES_128, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_REDUCE, WAY_LINES_128, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_BROADCAST, WAY_LINES_128, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_ALL_GATHER, WAY_LINES_128, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_REDUCE_SCATTER, WAY_LINES_128, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_ALL_TO_ALL, WAY_LINES_128, KOLO_ALGO_DIRECT},
    {KOLO_COLL_ALL_REDUCE, WAY_LINES_TWO, KOLO_ALGO_DIRECT},
    {KOLO_COLL_REDUCE, WAY_LINES_TWO, KOLO_ALGO_DIRECT}, /* gpu_emit_owned_reduce() */
    {KOLO_COLL_ALL_REDUCE, WAY_STAGES, KOLO_ALGO_DIRECT},
    {KOLO_COLL_REDUCE, WAY_STAGES, KOLO_ALGO_DIRECT},
    {KOLO_COLL_BROADCAST, WAY_STAGES, KOLO_ALGO_DIRECT},
    {KOLO_COLL_ALL_GATHER, WAY_STAGES, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_REDUCE_SCATTER, WAY_STAGES, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_ALL_TO_ALL, WAY_STAGES, KOLO_ALGO_DIRECT},
    {KOLO_COLL_GATHER, WAY_STAGES, KOLO_ALGO_DIRECT},
    {KOLO_COLL_SCATTER, WAY_STAGES, KOLO_ALGO_DIRECT},
    {KOLO_COLL_ALL_REDUCE, WAY_UNALIGNED, KOLO_ALGO_DIRECT},
    {KOLO_COLL_BROADCAST, WAY_UNALIGNED, KOLO_ALGO_DIRECT},
    {KOLO_COLL_ALL_GATHER, WAY_UNALIGNED, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_REDUCE_SCATTER, WAY_UNALIGNED, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_ALL_REDUCE, WAY_PIPED, KOLO_ALGO_DIRECT},
    {KOLO_COLL_REDUCE, WAY_PIPED, KOLO_ALGO_DIRECT}, /* gpu_emit_owned_reduce() */
    {KOLO_COLL_REDUCE, WAY_CHAIN, KOLO_ALGO_RING},
    {KOLO_COLL_ALL_REDUCE, WAY_REACHED, KOLO_ALGO_DIRECT},
    {KOLO_COLL_ALL_REDUCE, WAY_GIVEN, KOLO_ALGO_DIRECT},
    {KOLO_COLL_REDUCE, WAY_REACHED, KOLO_ALGO_DIRECT},    /* of more than two gpu_emit_owned_reduce() */
    {KOLO_COLL_BROADCAST, WAY_REACHED, KOLO_ALGO_DIRECT}, /* gpu_emit_spread() */
    {KOLO_COLL_ALL_GATHER, WAY_REACHED, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_REDUCE_SCATTER, WAY_REACHED, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_ALL_TO_ALL, WAY_REACHED, KOLO_ALGO_DIRECT},
    {KOLO_COLL_GATHER, WAY_REACHED, KOLO_ALGO_DIRECT},
    {KOLO_COLL_SCATTER, WAY_REACHED, KOLO_ALGO_DIRECT},
};
static const char *const way_names[] = {
    [WAY_LINES] = "lines",
    [WAY_LINES_128] = "lines of 128 bytes",
    [WAY_LINES_TWO] = "lines of 128 bytes in two steps",
    [WAY_STAGES] = "stages",
    [WAY_UNALIGNED] = "stages, since a buffer is not aligned",
    [WAY_PIPED] = "tiles under way in both steps",
    [WAY_CHAIN] = "tiles from neighbour to neighbour",
    [WAY_REACHED] = "buffers that are reached",
    [WAY_GIVEN] = "stores alone",
};

static const kolo_cuda_api_t *api;
static const kolo_cuda_kernels_t *kernels;
static void (*listen_to)(void (*)(const kolo_cuda_told_t *));
static rank_t ranks[RANKS];
static size_t region_bytes;
static uint32_t compared;

/* ---- what was told ---- */

static struct {
    pthread_mutex_t lock;
    uint32_t n;
    kolo_cuda_told_t steps[STEPS];
} told = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void hear(const kolo_cuda_told_t *step)
{
    pthread_mutex_lock(&told.lock);
    if (told.n < STEPS) told.steps[told.n] = *step;
    told.n++;
    pthread_mutex_unlock(&told.lock);
}

/* ---- set-up ---- */

/* Which way by the limits alone; few blocks and short tiles, so that each has several. */
static void fill_state(kolo_cuda_state_t *s, uint32_t n, way_t way)
{
    memset(s, 0, sizeof *s);
    s->limits = (kolo_cuda_limits_t){.blocks = 4,
                                     .ll_blocks = 8,
                                     .ll128_blocks = 8,
                                     .give = 1,
                                     .pipe = UINT64_MAX,
                                     .pipe_reduce = UINT64_MAX,
                                     .chain = UINT64_MAX,
                                     .chain_blocks = 4,
                                     .chain_row = 12 << 10};
    if (way == WAY_PIPED) s->limits.pipe = s->limits.pipe_reduce = 0;
    if (way == WAY_CHAIN) s->limits.chain = 0;
    if (way == WAY_LINES_TWO) s->limits.ll128_two = s->limits.ll128_two_reduce = UINT64_MAX;
    if (way == WAY_LINES) s->limits.ll_all_reduce = s->limits.ll_others = UINT64_MAX;
    if (way == WAY_LINES_128)
        s->limits.ll128_all_reduce = s->limits.ll128_others = s->limits.ll128_handed = s->limits.ll128_reduce =
            s->limits.ll128_gather = UINT64_MAX;
    kolo_cuda_options.stage_bytes = (int64_t)n * 4 * KOLO_CUDA_DEPTH * 4096;
    kolo_cuda_layout(n, RESIDENT, false, &s->limits, &s->layout);
}

static int start(void **state)
{
    const kolo_cuda_device_t *device;
    bool pushed;
    const kolo_param_table_t *const tables[] = {&kolo_cuda_params, &kolo_exec_cuda_params};
    static kolo_cuda_state_t s;
    (void)state;
    if (kolo_params_load(tables, KOLO_COUNTOF(tables), NULL, NULL) != KOLO_OK) return 1;
    if (kolo_cuda_load(&api) != KOLO_OK || kolo_cuda_device(0, &device) != KOLO_OK) return 1;
    if (kolo_cuda_enter(device, &pushed) != KOLO_OK || kolo_cuda_kernels(device, 0, &kernels) != KOLO_OK) return 1;
    void *fake = dlopen(getenv("KOLO_CUDA_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
    if (!fake) return 1;
    *(void **)&listen_to = dlsym(fake, "fake_listen");
    if (!listen_to) return 1;
    for (uint32_t n = 2; n <= RANKS; n++) {
        fill_state(&s, n, WAY_LINES);
        region_bytes = KOLO_MAX(region_bytes, s.layout.bytes);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        ranks[r].region = aligned_alloc(4096, KOLO_ROUND_UP(region_bytes, (size_t)4096));
        ranks[r].src = aligned_alloc(4096, MOST);
        ranks[r].dst = aligned_alloc(4096, MOST);
        if (!ranks[r].region || !ranks[r].src || !ranks[r].dst || api->stream_create(&ranks[r].stream, 1)) return 1;
        memset(ranks[r].src, 0, MOST);
        memset(ranks[r].dst, 0, MOST);
    }
    listen_to(hear);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    listen_to(NULL);
    for (uint32_t r = 0; r < RANKS; r++) {
        if (ranks[r].stream) api->stream_destroy(ranks[r].stream);
        free(ranks[r].region);
        free(ranks[r].src);
        free(ranks[r].dst);
    }
    return 0;
}

/* ---- one operation ---- */

typedef struct {
    const row_t *row;
    uint32_t n, root;
    uint64_t count; /* float32 */
    kolo_plan_t *plan[RANKS];
} case_t;

static uint64_t part_of(const case_t *c) /* bytes of a chunk */
{
    uint64_t bytes = c->count * 4;
    return kolo_coll_traits(c->row->coll)->whole ? bytes / c->plan[0]->nparts : bytes;
}

/* Of one rank alone: all must find out. */
static size_t shift_of(const case_t *c, uint32_t rank)
{
    return c->row->way == WAY_UNALIGNED && rank == c->n - 1 ? 4 : 0;
}

static void launch(const case_t *c, uint32_t rank, kolo_cuda_state_t *s)
{
    char *src = ranks[rank].src + shift_of(c, rank), *dst = ranks[rank].dst + shift_of(c, rank);
    static kolo_cuda_long_args_t a;
    kolo_cuda_family_t family;
    kolo_cuda_grid_t grid;
    kolo_exec_call_t call = {.coll = c->row->coll,
                             .op = KOLO_SUM,
                             .root = (int)c->root,
                             .src = src,
                             .dst = dst,
                             .count = c->count,
                             .elem = 4,
                             .word = kolo_signature(c->row->coll, KOLO_FLOAT32, KOLO_SUM, c->root, c->count)};
    assert_int_equal(kolo_reducer_init(&call.reducer, KOLO_FLOAT32, KOLO_SUM, c->n), KOLO_OK);
    memset(&a, 0, sizeof a);
    a.c.rank = rank;
    a.c.layout = s->layout;
    a.c.mailbox = (uint64_t)(uintptr_t)&ranks[rank].mailbox;
    for (uint32_t r = 0; r < c->n; r++) {
        a.c.regions[r] = (uint64_t)(uintptr_t)ranks[r].region;
        a.src[r] = (uint64_t)(uintptr_t)src;
        a.dst[r] = (uint64_t)(uintptr_t)dst;
    }
    if (c->row->way >= WAY_UNALIGNED) a.c.reachable = KOLO_CUDA_REACHABLE;
    if (c->row->way == WAY_GIVEN) a.c.reachable |= KOLO_CUDA_APART;
    assert_int_equal(kolo_cuda_choose(s, &call, &a.c, &family, &grid), KOLO_OK);
    assert_int_equal(family == KOLO_CUDA_LL, c->row->way == WAY_LINES);
    assert_int_equal(family == KOLO_CUDA_LL128, c->row->way == WAY_LINES_128 || c->row->way == WAY_LINES_TWO);
    assert_int_equal(family == KOLO_CUDA_CHAIN, c->row->way == WAY_CHAIN);
    if (c->row->way == WAY_PIPED) a.c.piped = 1; /* also a reduce between two, which the limits leave to loads */
    void *params[] = {&a};
    assert_int_equal(api->launch(kernels->collective[family][KOLO_FLOAT32], grid.blocks, 1, 1, 32, 1, 1, 0,
                                 ranks[rank].stream, params, NULL),
                     0);
}

static void run(const case_t *c)
{
    kolo_cuda_state_t *s = calloc(1, sizeof *s);
    assert_non_null(s);
    fill_state(s, c->n, c->row->way);
    for (uint32_t r = 0; r < c->n; r++) memset(ranks[r].region, 0, region_bytes);
    told.n = 0;
    for (uint32_t r = 0; r < c->n; r++) launch(c, r, s);
    for (uint32_t r = 0; r < c->n; r++) assert_int_equal(api->stream_sync(ranks[r].stream), 0);
    if (!told.n || told.n > STEPS) fail_msg("%s: %u steps were told", way_names[c->row->way], told.n);
    free(s);
}

/* ---- against the plan ---- */

/* Which buffer of its rank, which chunk, and where in the chunk. */
static void place(const case_t *c, const kolo_cuda_told_t *t, kolo_trace_step_t *s, uint64_t *offset)
{
    const char *at = (const char *)(uintptr_t)t->address; /* NOLINT: told as a number */
    const rank_t *r = &ranks[t->rank];
    uint64_t part = part_of(c);
    bool src = at >= r->src && at < r->src + MOST;
    *offset = 0;
    s->buf = KOLO_BUF_SCRATCH;
    s->chunk = 0;
    if (!at) return;
    if (!src && (at < r->dst || at >= r->dst + MOST)) fail_msg("rank %u: an address that is not its own", t->rank);
    *offset = (uint64_t)(at - (src ? r->src : r->dst)) - shift_of(c, t->rank);
    s->buf = src ? KOLO_BUF_SRC : KOLO_BUF_DST;
    s->chunk = (uint32_t)(*offset / part);
    *offset %= part;
    if (*offset + t->bytes > part) fail_msg("rank %u: a piece lies in two chunks", t->rank);
}

static const char *name_of(const case_t *c)
{
    static char text[96];
    snprintf(text, sizeof text, "%s by %s, %u ranks", kolo_coll_name(c->row->coll), way_names[c->row->way], c->n);
    return text;
}

/* The steps of one block of one rank, as a replica's. Returns how many; *tiles: of the longest chunk. */
static size_t steps_of(const case_t *c, uint32_t rank, uint32_t block, kolo_trace_step_t *steps, uint32_t *tiles)
{
    size_t n = 0;
    *tiles = 0;
    for (uint32_t i = 0; i < told.n; i++) {
        const kolo_cuda_told_t *t = &told.steps[i];
        if (t->rank != rank || t->block != block || t->peer == rank) continue;
        kolo_trace_step_t s = {
            .peer = (int32_t)t->peer, .dir = t->sends ? KOLO_DIR_TX : KOLO_DIR_RX, .lane = t->phase};
        uint64_t offset;
        place(c, t, &s, &offset);
        for (size_t k = 0; k < n; k++)
            s.tile += steps[k].peer == s.peer && steps[k].dir == s.dir && steps[k].lane == s.lane &&
                      steps[k].chunk == s.chunk && steps[k].buf == s.buf;
        *tiles = KOLO_MAX(*tiles, s.tile + 1);
        steps[n++] = s;
    }
    return n;
}

/* Operands are taken in the order of ranks, this rank's own in its place; from neighbour to neighbour in another.
 */
static void check_order(const case_t *c, uint32_t rank, uint32_t block)
{
    uint32_t next = 0;
    if (c->row->way == WAY_CHAIN) return;
    for (uint32_t i = 0; i < told.n && kolo_coll_reduces(c->row->coll); i++) {
        const kolo_cuda_told_t *t = &told.steps[i];
        if (t->rank != rank || t->block != block || t->sends || t->phase) continue;
        if (t->peer != next)
            fail_msg("%s: rank %u adds what rank %u has before rank %u's", name_of(c), rank, t->peer, next);
        next = (next + 1) % c->n;
    }
    assert_int_equal(next, 0);
}

/* Each byte that a rank sends to another in a phase is taken there once, from the same place in its chunk. */
static void check_bytes(const case_t *c, uint32_t from, uint32_t to, uint32_t phase)
{
    uint64_t sent = 0, taken = 0, sum[2] = {0, 0};
    for (uint32_t i = 0; i < told.n; i++) {
        const kolo_cuda_told_t *t = &told.steps[i];
        kolo_trace_step_t s;
        uint64_t offset;
        bool sends = t->sends && t->rank == from && t->peer == to,
             takes = !t->sends && t->rank == to && t->peer == from;
        if (t->phase != phase || (!sends && !takes)) continue;
        if (c->row->way >= WAY_REACHED && t->block) continue; /* there each tells the whole */
        place(c, t, &s, &offset);
        *(sends ? &sent : &taken) += t->bytes;
        for (uint64_t b = offset; b < offset + t->bytes && t->address; b += 4) sum[!sends] += b * b + 7 * b + 1;
    }
    if (sent != taken)
        fail_msg("%s: rank %u sends %llu bytes to rank %u, which takes %llu", name_of(c), from,
                 (unsigned long long)sent, to, (unsigned long long)taken);
    if (sent && sent != part_of(c))
        fail_msg("%s: rank %u sends %llu of %llu bytes to rank %u", name_of(c), from, (unsigned long long)sent,
                 (unsigned long long)part_of(c), to);
    if (sum[0] && sum[1] && sum[0] != sum[1])
        fail_msg("%s: rank %u takes other bytes than rank %u sends", name_of(c), to, from);
}

static void compare(const case_t *c)
{
    static kolo_trace_step_t steps[STEPS];
    uint32_t most = c->row->way >= WAY_REACHED ? 1 : RESIDENT;
    for (uint32_t rank = 0; rank < c->n; rank++)
        for (uint32_t block = 0; block < most; block++) {
            uint32_t tiles;
            size_t n = steps_of(c, rank, block, steps, &tiles);
            if (!n && block) continue;
            if (kolo_prove_verify_trace(c->plan[rank], n ? tiles : 0, steps, n) != KOLO_OK)
                fail_msg("%s, block %u: %s", name_of(c), block, kolo_error_text());
            check_order(c, rank, block);
            compared++;
        }
    for (uint32_t from = 0; from < c->n; from++)
        for (uint32_t to = 0; to < c->n; to++)
            for (uint32_t phase = 0; phase < 2 && from != to; phase++) check_bytes(c, from, to, phase);
}

static void run_case(const row_t *row, uint32_t n, uint32_t root, uint64_t elems)
{
    case_t c = {.row = row, .n = n, .root = root};
    kolo_verify_options_t options = {.schedules = 1, .tiles = 2, .skip_races = true};
    shape_env_t shape;
    assert_true(shape_make(&shape, SHAPE_ONE_NODE, n));
    kolo_emit_env_t env = shape.env;
    env.fanout = env.refs = false;
    env.root = root;
    for (env.rank = 0; env.rank < n; env.rank++) assert_int_equal(emit(row, &env, &c.plan[env.rank]), KOLO_OK);
    if (kolo_prove_verify((const kolo_plan_t *const *)c.plan, n, &options) != KOLO_OK)
        fail_msg("%s", kolo_error_text());
    c.count = elems * (kolo_coll_traits(row->coll)->whole ? c.plan[0]->nparts : 1); /* all parts are equal */
    run(&c);
    compare(&c);
    for (uint32_t r = 0; r < n; r++) kolo_plan_free(c.plan[r]);
}

static void kernels_follow_their_plans(void **state)
{
    static const uint64_t elems[] = {32, 1024, 25600}; /* multiples of 128 bytes: parts are equal there, too */
    (void)state;
    for (size_t i = 0; i < KOLO_COUNTOF(rows); i++)
        for (uint32_t n = 2; n <= RANKS; n++)
            for (size_t k = 0; k < KOLO_COUNTOF(elems); k++) {
                if (rows[i].way == WAY_LINES_TWO && n == 2) continue; /* there it goes in one */
                if (rows[i].way == WAY_CHAIN && n == 2) continue;     /* stores to one alone anyway */
                /* Lines have less room; direct ones go in many turns. */
                bool stages = rows[i].way >= WAY_STAGES && rows[i].way <= WAY_CHAIN;
                uint64_t e = !stages && elems[k] > 3008 ? 3008 : elems[k];
                if (rows[i].way == WAY_LINES_TWO) e = 480 << k; /* whole lines a part */
                run_case(&rows[i], n, kolo_coll_rooted(rows[i].coll) ? (n + (uint32_t)k) % n : 0, e);
            }
    assert_true(compared > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(kernels_follow_their_plans)};
    return cmocka_run_group_tests(tests, start, stop);
}
