/* SPDX-License-Identifier: Apache-2.0
 *
 * Verifies every row of the algorithm table: ranks x roots x node maps x in place or not, and random groups of
 * sends and receives. Prints one line per row with the number of cases; a failed case is printed and makes exit
 * status 1.
 *
 *     sweep [--ranks FROM-TO] [--only COLL/ALGO] [--step K] [--keep-going]
 *
 * What is limited, and how, is decided in limits_for(): with more ranks fewer roots, schedules and tiles. A search
 * for races takes time and memory by the lanes of all ranks: above 64 ranks hierarchical plans (lanes by the
 * hundred per rank) go without, above 128 pairwise exchanges too. A plan depends on its root only by where ranks
 * stand relative to it, so the roots that are left are both ends, the middle and random ones. Plans that are equal
 * to some that were verified (most algorithms do not look at the node map) are counted, not verified again.
 */
#include "algo/algo.h"
#include "algo/test_shapes.h"
#include "prove/verify.h"

#include <stdio.h>
#include <time.h>

typedef struct {
    uint32_t roots;     /* how many roots; 0: all */
    uint32_t schedules; /* as in kolo_verify_options_t */
    uint32_t seeds;
    uint32_t tiles; /* the last one is ragged; 0: depth + 3 */
    bool one_tile;  /* one more run with a single tile, so that calls follow each other closely */
    bool empty;     /* and one with random empty parts */
} limits_t;

static limits_t limits_for(uint32_t n)
{
    if (n <= 9) return (limits_t){.schedules = 3, .seeds = 2, .one_tile = true, .empty = true};
    if (n <= 17) return (limits_t){.schedules = 2, .one_tile = true, .empty = true};
    if (n <= 64) return (limits_t){.schedules = 1, .roots = n <= 32 ? 0 : 8, .empty = true, .tiles = 4};
    return (limits_t){.schedules = 1, .roots = 3, .tiles = 3};
}

typedef struct {
    uint64_t cases, failed, equal; /* equal: sets of plans that were verified already */
    double seconds;
} tally_t;

static uint64_t random_state = 1;
static uint32_t random_below(uint32_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 20) % n);
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void complain(tally_t *t, const kolo_algo_row_t *row, const kolo_emit_env_t *env, shape_t shape,
                     const kolo_verify_options_t *o)
{
    t->failed++;
    printf("FAILED %s/%s ranks=%u root=%u nodes=%u (map %d)%s%s tiles=%u%s: %s\n", kolo_coll_name(row->coll),
           kolo_plan_algo_name(row->algo), env->nranks, env->root, env->nnodes, (int)shape,
           env->fanout ? " fanout" : "", o->in_place ? " in place" : "", o->tiles,
           o->empty_parts ? " empty parts" : "", kolo_error_text());
}

static void free_plans(kolo_plan_t **plans, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++) kolo_plan_free(plans[r]);
}

/* ---- plans that were verified already ---- */

/* Node maps, fan-out and rings matter to some algorithms only: for the others all of these make equal plans, of
 * which one is enough. By a hash of 64 bits of all bytes (padding included: then equal ones are verified twice). */
#define MOST_SEEN 8192
static uint64_t seen[MOST_SEEN];
static uint32_t nseen;

static uint64_t hash_of(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
    }
    while (bytes--) hash = (hash ^ *p++) * 0x100000001b3u;
    return hash;
}

/* The same plans on the same nodes as before in this row, for as many ranks? Where they are is seen only by those
 * who write to a whole node. */
static bool seen_before(kolo_plan_t *const *plans, const kolo_emit_env_t *env)
{
    uint64_t hash = 0xcbf29ce484222325u;
    bool node = false;
    for (uint32_t r = 0; r < env->nranks; r++) {
        const kolo_plan_t *p = plans[r];
        kolo_plan_t head = *p;
        head.insns = NULL;
        head.conns = NULL;
        head.lanes = NULL;
        head.list = NULL;
        hash = hash_of(hash, &head, sizeof(head));
        hash = hash_of(hash, p->insns, p->ninsns * sizeof(*p->insns));
        hash = hash_of(hash, p->conns, p->nconns * sizeof(*p->conns));
        hash = hash_of(hash, p->lanes, p->nlanes * sizeof(*p->lanes));
        hash = hash_of(hash, p->list, p->nlist * sizeof(*p->list));
        for (uint32_t c = 0; c < p->nconns; c++) node = node || p->conns[c].node;
    }
    if (node) hash = hash_of(hash, env->node_of, env->nranks * sizeof(*env->node_of));
    for (uint32_t i = 0; i < nseen; i++)
        if (seen[i] == hash) return true;
    if (nseen < MOST_SEEN) seen[nseen++] = hash;
    return false;
}

/* Bits for all parts of any collective of n ranks. */
static const uint8_t *random_empty(uint32_t n)
{
    static uint8_t bits[SHAPE_MOST_RANKS * SHAPE_MOST_RANKS / 8 + 1];
    uint32_t odds = 2 + random_below(5);
    memset(bits, 0, sizeof(bits));
    for (uint32_t i = 0; i < n * n; i++)
        if (random_below(odds) == 0) bits[i / 8] |= (uint8_t)(1u << i % 8);
    return bits;
}

static bool too_large_for_races(const kolo_algo_row_t *row, uint32_t n)
{
    if (row->algo == KOLO_ALGO_HIERARCHICAL) return n > 64;
    return row->coll == KOLO_COLL_ALL_TO_ALL && row->algo == KOLO_ALGO_PAIRWISE && n > 128;
}

static void verify_case(tally_t *t, const kolo_algo_row_t *row, kolo_emit_env_t *env, shape_t shape,
                        kolo_plan_t **plans)
{
    limits_t l = limits_for(env->nranks);
    kolo_verify_options_t o = {.schedules = l.schedules,
                               .random_seeds = l.seeds,
                               .tiles = l.tiles,
                               .seed = random_below(1u << 30),
                               .rank_order = !row->commutative && kolo_coll_reduces(row->coll),
                               .one_fold = row->one_fold || (row->fold_of_two && env->nranks == 2),
                               .skip_races = too_large_for_races(row, env->nranks),
                               .node_of = env->node_of};
    const kolo_plan_t *const *p = (const kolo_plan_t *const *)plans;
    for (int in_place = 0; in_place <= (int)row->in_place; in_place++) {
        o.in_place = in_place;
        t->cases++;
        if (kolo_prove_verify(p, env->nranks, &o) != KOLO_OK) complain(t, row, env, shape, &o);
        if (l.one_tile) {
            kolo_verify_options_t one = o;
            one.tiles = 1;
            t->cases++;
            if (kolo_prove_verify(p, env->nranks, &one) != KOLO_OK) complain(t, row, env, shape, &one);
        }
    }
    if (!l.empty || row->coll == KOLO_COLL_BARRIER) return;
    o.in_place = false;
    o.empty_parts = random_empty(env->nranks);
    t->cases++;
    if (kolo_prove_verify(p, env->nranks, &o) != KOLO_OK) complain(t, row, env, shape, &o);
}

static void one_root(tally_t *t, const kolo_algo_row_t *row, kolo_emit_env_t *env, shape_t shape)
{
    static kolo_plan_t *plans[SHAPE_MOST_RANKS];
    for (uint32_t r = 0; r < env->nranks; r++) {
        env->rank = r;
        if (kolo_algo_emit(row->coll, row->algo, env, &plans[r]) == KOLO_OK) continue;
        kolo_verify_options_t none = {0};
        complain(t, row, env, shape, &none);
        free_plans(plans, r);
        return;
    }
    if (seen_before(plans, env))
        t->equal++;
    else
        verify_case(t, row, env, shape, plans);
    free_plans(plans, env->nranks);
}

static void all_roots(tally_t *t, const kolo_algo_row_t *row, kolo_emit_env_t *env, shape_t shape)
{
    env->rank = env->root = 0;
    if (!row->usable(env)) return;
    uint32_t n = env->nranks, roots = limits_for(n).roots;
    if (!shape_has_root(row->coll)) {
        one_root(t, row, env, shape);
        return;
    }
    if (roots == 0 || roots > n) roots = n;
    for (uint32_t k = 0; k < roots; k++) {
        env->root = roots == n ? k : k == 0 ? 0 : k == 1 ? n - 1 : k == 2 ? n / 2 : random_below(n);
        one_root(t, row, env, shape);
    }
}

/* Each lane by a ring of its own, as far as there are any. */
#define MOST_LANED 5
static void several_lanes(tally_t *t, const kolo_algo_row_t *row, shape_env_t *s, shape_t shape)
{
    static const uint32_t lanes[] = {2, 4, 16};
    s->env.rings = s->rings;
    s->env.nrings = 2;
    for (size_t i = 0; i < sizeof(lanes) / sizeof(lanes[0]); i++) {
        s->env.lanes = lanes[i];
        all_roots(t, row, &s->env, shape);
    }
    s->env.rings = NULL;
    s->env.nrings = s->env.lanes = 1;
}

/* Node maps; on one node with and without fan-out; for rings another order of ranks too. */
static void one_row(tally_t *t, const kolo_algo_row_t *row, uint32_t n)
{
    static shape_env_t s;
    nseen = 0;
    for (shape_t shape = 0; shape < SHAPE_COUNT; shape++) {
        if (!shape_make(&s, shape, n)) continue;
        if (n > 64 && shape != SHAPE_ONE_NODE && row->algo != KOLO_ALGO_HIERARCHICAL) continue;
        all_roots(t, row, &s.env, shape);
        if (shape == SHAPE_ONE_NODE && n <= 64) {
            s.env.fanout = false;
            if (row->algo != KOLO_ALGO_RING) all_roots(t, row, &s.env, shape);
            s.env.fanout = true;
        }
        if (row->algo == KOLO_ALGO_RING || row->algo == KOLO_ALGO_HIERARCHICAL) {
            s.env.rings = s.rings;
            all_roots(t, row, &s.env, shape);
            s.env.rings = NULL;
        }
        if (row->algo == KOLO_ALGO_RING && n <= MOST_LANED && shape == SHAPE_ONE_NODE)
            several_lanes(t, row, &s, shape);
    }
}

/* ---- groups of sends and receives ---- */

#define MOST_MESSAGES 24
typedef struct {
    int send[MOST_MESSAGES], recv[MOST_MESSAGES];
    bool send_ref[MOST_MESSAGES], recv_ref[MOST_MESSAGES];
    bool send_half[MOST_MESSAGES], recv_half[MOST_MESSAGES]; /* of those by reference */
    uint32_t nsends, nrecvs;
} group_t;

static void add_message(group_t *from, group_t *to, const group_t *first, bool ref, bool half)
{
    if (from->nsends == MOST_MESSAGES || to->nrecvs == MOST_MESSAGES) return;
    from->send[from->nsends] = (int)(to - first);
    from->send_half[from->nsends] = half;
    from->send_ref[from->nsends++] = ref;
    to->recv[to->nrecvs] = (int)(from - first);
    to->recv_half[to->nrecvs] = half;
    to->recv_ref[to->nrecvs++] = ref;
}

/* Messages between random ranks; each end makes its calls in the order in which the messages are drawn. In every
 * other case some go in halves; then each rank has one, since all plans have to cut messages alike. */
static void random_groups(group_t *g, uint32_t n, uint32_t messages, bool halves)
{
    memset(g, 0, n * sizeof(*g));
    for (uint32_t r = 0; halves && r < n; r++) add_message(&g[r], &g[(r + 1) % n], g, true, true);
    while (messages--) {
        uint32_t a = random_below(n), b = random_below(n);
        bool ref = a != b && random_below(3) == 0;
        add_message(&g[a], &g[b], g, ref, ref && halves && random_below(2));
    }
}

static bool emit_group(kolo_plan_t **plans, const group_t *g, shape_env_t *s, kolo_group_t *groups)
{
    uint32_t n = s->env.nranks;
    for (uint32_t r = 0; r < n; r++) {
        kolo_emit_env_t env = s->env;
        env.rank = r;
        env.send_peers = g[r].send;
        env.recv_peers = g[r].recv;
        env.send_refs = g[r].send_ref;
        env.recv_refs = g[r].recv_ref;
        env.send_halves = g[r].send_half;
        env.recv_halves = g[r].recv_half;
        env.nsends = g[r].nsends;
        env.nrecvs = g[r].nrecvs;
        groups[r] = (kolo_group_t){g[r].nsends, g[r].nrecvs, g[r].send, g[r].recv};
        if (kolo_algo_emit(KOLO_COLL_P2P, KOLO_ALGO_P2P, &env, &plans[r]) == KOLO_OK) continue;
        free_plans(plans, r);
        return false;
    }
    return true;
}

static void random_p2p(tally_t *t, const kolo_algo_row_t *row, uint32_t n, uint32_t rounds)
{
    static shape_env_t s;
    static group_t g[2][SHAPE_MOST_RANKS];
    static kolo_group_t groups[2][SHAPE_MOST_RANKS];
    static kolo_plan_t *plans[2][SHAPE_MOST_RANKS];
    shape_make(&s, SHAPE_ONE_NODE, n);
    for (uint32_t k = 0; k < rounds; k++) {
        kolo_verify_options_t o = {.schedules = limits_for(n).schedules,
                                   .random_seeds = 1,
                                   .seed = k,
                                   .tiles = limits_for(n).tiles,
                                   .groups = groups[0],
                                   .next_groups = groups[1],
                                   .next = (const kolo_plan_t *const *)plans[1]};
        uint32_t made = 0;
        for (; made < 2; made++) {
            random_groups(g[made], n, 1 + random_below(n * 4), n > 1 && k % 2);
            if (!emit_group(plans[made], g[made], &s, groups[made])) break;
        }
        t->cases++;
        if (made < 2 || kolo_prove_verify((const kolo_plan_t *const *)plans[0], n, &o) != KOLO_OK)
            complain(t, row, &s.env, SHAPE_ONE_NODE, &o);
        while (made--) free_plans(plans[made], n);
    }
}

/* ---- pairs of different plans on the same connections ---- */

static void random_pairs(tally_t *t, uint32_t n, uint32_t rounds)
{
    static shape_env_t s;
    static kolo_plan_t *plans[2][SHAPE_MOST_RANKS];
    if (!shape_make(&s, n >= 4 ? SHAPE_UNEVEN : SHAPE_ONE_NODE, n)) return;
    for (uint32_t k = 0; k < rounds; k++) {
        const kolo_algo_row_t *rows[2];
        for (uint32_t made = 0; made < 2;) {
            rows[made] = &kolo_algos[random_below((uint32_t)kolo_algo_rows)];
            s.env.root = random_below(n);
            s.env.rank = 0;
            if (rows[made]->coll == KOLO_COLL_P2P || !rows[made]->usable(&s.env)) continue;
            for (uint32_t r = 0; r < n; r++) {
                s.env.rank = r;
                if (kolo_algo_emit(rows[made]->coll, rows[made]->algo, &s.env, &plans[made][r]) != KOLO_OK) exit(1);
            }
            made++;
        }
        kolo_verify_options_t o = {.schedules = 1,
                                   .random_seeds = 1,
                                   .seed = k,
                                   .node_of = s.env.node_of,
                                   .tiles = 1 + random_below(4),
                                   .next = (const kolo_plan_t *const *)plans[1]};
        t->cases++;
        if (kolo_prove_verify((const kolo_plan_t *const *)plans[0], n, &o) != KOLO_OK) {
            printf("then %s/%s: ", kolo_coll_name(rows[1]->coll), kolo_plan_algo_name(rows[1]->algo));
            complain(t, rows[0], &s.env, SHAPE_UNEVEN, &o);
        }
        free_plans(plans[0], n);
        free_plans(plans[1], n);
    }
}

static void run_row(const kolo_algo_row_t *row, uint32_t from, uint32_t to, uint32_t step, tally_t *all)
{
    tally_t t = {0};
    double start = seconds_now();
    for (uint32_t n = from; n <= to; n += step) {
        if (row->coll == KOLO_COLL_P2P)
            random_p2p(&t, row, n, n <= 16 ? 40 : 5);
        else
            one_row(&t, row, n);
    }
    t.seconds = seconds_now() - start;
    printf("%-15s %-17s %8llu cases %6llu equal %4llu failed %7.2f s\n", kolo_coll_name(row->coll),
           kolo_plan_algo_name(row->algo), (unsigned long long)t.cases, (unsigned long long)t.equal,
           (unsigned long long)t.failed, t.seconds);
    fflush(stdout);
    all->cases += t.cases;
    all->failed += t.failed;
    all->seconds += t.seconds;
}

static int wrong_usage(const char *why)
{
    fprintf(stderr, "%s\nusage: verify_sweep [--ranks FROM-TO] [--only COLL/ALGO] [--step K]\n", why);
    return 2;
}

int main(int argc, char **argv)
{
    uint32_t from = 1, to = 64, step = 1;
    kolo_coll_t coll = KOLO_COLL_COUNT;
    kolo_algo_t algo = KOLO_ALGO_COUNT;
    for (int i = 1; i + 1 < argc; i += 2) {
        char name[64];
        const char *slash;
        if (strcmp(argv[i], "--ranks") == 0) {
            char *end;
            from = (uint32_t)strtoul(argv[i + 1], &end, 10);
            to = *end == '-' ? (uint32_t)strtoul(end + 1, NULL, 10) : from;
        } else if (strcmp(argv[i], "--step") == 0) {
            step = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--only") == 0 && (slash = strchr(argv[i + 1], '/'))) {
            snprintf(name, sizeof(name), "%.*s", (int)(slash - argv[i + 1]), argv[i + 1]);
            if (kolo_coll_parse(name, &coll) != KOLO_OK || kolo_plan_algo_parse(slash + 1, &algo) != KOLO_OK)
                return wrong_usage(kolo_error_text());
            if (!kolo_algo_find(coll, algo)) return wrong_usage("the table has no such row");
        }
    }
    if (from == 0 || step == 0 || to >= SHAPE_MOST_RANKS)
        return wrong_usage("so many ranks, or steps, are not possible");
    tally_t all = {0};
    for (size_t i = 0; i < kolo_algo_rows; i++)
        if (coll == KOLO_COLL_COUNT || (kolo_algos[i].coll == coll && kolo_algos[i].algo == algo))
            run_row(&kolo_algos[i], from, to, step, &all);
    if (coll == KOLO_COLL_COUNT) {
        tally_t t = {0};
        for (uint32_t n = from; n <= to && n <= 32; n += step) random_pairs(&t, n, 100);
        printf("%-33s %8llu cases %4llu failed\n", "two different plans in a row", (unsigned long long)t.cases,
               (unsigned long long)t.failed);
        all.cases += t.cases;
        all.failed += t.failed;
    }
    printf("verified: ranks %u to %u, %llu cases, %llu failed, %.1f s\n", from, to, (unsigned long long)all.cases,
           (unsigned long long)all.failed, all.seconds);
    return all.failed ? 1 : 0;
}
