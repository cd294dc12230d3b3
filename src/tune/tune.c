/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice: forced by parameter, else what the table file says, else a measured rule, else the cheapest of the
 * cost model. See tune.h.
 */
#include "tune/internal.h"

#include <string.h>

static uint32_t floor_power_of_two(uint64_t v)
{
    uint32_t p = 1;
    while ((uint64_t)p * 2 <= v && p < 1u << 30) p *= 2;
    return p;
}

void kolo_tune_sizes(const kolo_tune_env_t *env, kolo_tune_sizes_t *sizes)
{
    uint32_t peers = env->max_node_size > 1 ? env->max_node_size - 1 : 1;
    sizes->local_depth = 4;
    sizes->local_slot_bytes = (uint32_t)kolo_tune_config.slot_bytes / 64 * 64;
    if (!sizes->local_slot_bytes) {
        /* one queue per peer and one for the whole host, all of the same slots */
        uint32_t fit = floor_power_of_two((uint64_t)kolo_tune_config.budget / (sizes->local_depth * (peers + 1)));
        sizes->local_slot_bytes = KOLO_MIN(KOLO_MAX(fit, 8192u), 128u << 10);
    }
    sizes->remote_depth = 4;
    sizes->remote_slot_bytes = (uint32_t)kolo_tune_config.net_slot_bytes / 64 * 64;
    sizes->ll_depth = 16;
    sizes->ll_slot_bytes = 9408; /* 147 lines of 56 bytes: 8192 in one part */
}

#define MANY 16u
#define NODE_BYTES                                                                                                 \
    (512u << 10) /* of slots, that stay in the writer's cache: the part of one of 64 ranks in 32 MB */

uint32_t kolo_tune_node_depth(const kolo_tune_env_t *env, const kolo_tune_sizes_t *sizes, bool lines)
{
    if (env->max_node_size <= MANY) return lines ? sizes->ll_depth : sizes->local_depth;
    if (lines) return 4 * sizes->ll_depth;
    uint32_t fit = floor_power_of_two(NODE_BYTES / sizes->local_slot_bytes);
    return KOLO_MIN(KOLO_MAX(fit, sizes->local_depth), 16 * sizes->local_depth);
}

uint32_t kolo_tune_pair_depth(const kolo_tune_sizes_t *sizes, uint32_t lane)
{
    if (lane != KOLO_SCATTER_LANE) return sizes->local_depth;
    return KOLO_MAX(floor_power_of_two(NODE_BYTES / sizes->local_slot_bytes), sizes->local_depth);
}

kolo_p2p_way_t kolo_tune_p2p(const kolo_tune_sizes_t *sizes, uint64_t bytes, bool ll, bool refs)
{
    uint64_t flat = KOLO_MIN((uint64_t)kolo_tune_config.flat_max, (uint64_t)sizes->ll_slot_bytes / 64 * 56);
    if (ll && bytes <= flat) return KOLO_P2P_LL;
    if (!refs || bytes < (uint64_t)kolo_tune_config.ref_min) return KOLO_P2P_SLOTS;
    /* one or the other: next to halves in a group a whole reference would be two, and one to a peer without them */
    return kolo_tune_config.halves_min <= kolo_tune_config.ref_min ? KOLO_P2P_HALVES : KOLO_P2P_REF;
}

/* Where a wire moves the bytes: copies into and out of slots overlap with it from one piece to the next, but each
 * piece is a message of its own, and each queueful a round trip. */
#define WIRE_PIECES      4u
#define LEAST_WIRE_PIECE (64u << 10)

static uint32_t wire_piece(uint32_t slot, uint64_t bytes)
{
    uint64_t piece = KOLO_MAX(KOLO_ROUND_UP(KOLO_DIV_UP(bytes, WIRE_PIECES), 64u), (uint64_t)LEAST_WIRE_PIECE);
    return (uint32_t)KOLO_MIN((uint64_t)slot, piece);
}

/* Cuts messages: two copies through slots of shared memory overlap from one piece to the next. 16 KB between two
 * ranks takes 3.7 us in one piece, 2.9 in pieces of 8 KB, and a row of such sends 1.65 and 1.3. Not so between
 * hosts, and between ranks of one host that share no memory. */
uint32_t kolo_tune_p2p_piece(const kolo_tune_env_t *env, const kolo_tune_sizes_t *sizes, uint64_t bytes)
{
    uint32_t slot = kolo_tune_slot_bytes(env, sizes);
    bool shares = env->ll || env->refs || env->fanout;
    bool long_ones = !env->refs && env->max_node_size > env->cores; /* each queueful is a switch of the scheduler */
    if (env->nnodes > 1 || !shares) return wire_piece(slot, bytes);
    return long_ones ? slot : KOLO_MIN(slot, 8192u);
}

/* Returns lines for `parts` parts of `bytes` each in one slot, as close as they may lie there (wire/ll.h). */
static uint64_t lines_of(uint64_t bytes, uint64_t parts)
{
    uint64_t fit = bytes == 0 ? parts : bytes * 2 > 56 ? 1 : 56 / bytes;
    return KOLO_DIV_UP(parts, fit) * (bytes ? KOLO_DIV_UP(bytes, 56) : 1);
}

bool kolo_tune_fits(const kolo_tune_ask_t *q, kolo_algo_t algo)
{
    const kolo_tune_env_t *env = q->env;
    uint64_t bytes = q->count * q->elem, parts = 1, most = (uint64_t)kolo_tune_config.flat_max;
    if (!env->ll || !most || env->nnodes > 1 || env->nranks > 256 || bytes > most) return false;
    if (kolo_coll_traits(q->coll)->src_by_rank) parts = env->nranks;
    if (bytes * parts > most) return false;
    if (q->coll == KOLO_COLL_ALL_REDUCE && algo == KOLO_ALGO_DIRECT) {
        parts = env->nranks;
        bytes = KOLO_DIV_UP(q->count, parts) * q->elem;
    }
    return lines_of(bytes, parts) * 64 <= q->sizes->ll_slot_bytes;
}

static bool can_run(const kolo_tune_ask_t *q, kolo_way_t way)
{
    if (!kolo_way_exists(q->coll, way) || !kolo_algo_usable(kolo_algo_find(q->coll, way.algo), q->emit))
        return false;
    return !way.lines || (q->emit->fanout && kolo_tune_fits(q, way.algo));
}

uint32_t kolo_tune_slot_bytes(const kolo_tune_env_t *env, const kolo_tune_sizes_t *sizes)
{
    if (env->nnodes <= 1) return sizes->local_slot_bytes;
    if (env->max_node_size == 1) return sizes->remote_slot_bytes;
    return KOLO_MIN(sizes->local_slot_bytes, sizes->remote_slot_bytes);
}

/* Picks smaller pieces for a vector that fits few slots where a reader can only start when a piece is complete and
 * the writer has nothing else to do meanwhile (one writer, everybody else reads). Not between hosts: there each
 * piece is a system call at the reader, and the kernel hands over what has come so far. */
static uint32_t pick_piece(const kolo_tune_ask_t *q, kolo_algo_t algo)
{
    uint32_t slot = kolo_tune_slot_bytes(q->env, q->sizes);
    if (q->coll != KOLO_COLL_BROADCAST || (algo != KOLO_ALGO_DIRECT && algo != KOLO_ALGO_ONE_STEP)) return slot;
    if (q->env->max_node_size == 1) return slot;
    uint64_t piece = KOLO_ROUND_UP(KOLO_MAX(q->count * q->elem / 4, (uint64_t)8192), 4096);
    return piece < slot ? (uint32_t)piece : slot;
}

static kolo_algo_t cheapest(const kolo_tune_ask_t *q, double *best_us)
{
    kolo_algo_t best = KOLO_ALGO_COUNT;
    for (int a = 0; a < KOLO_ALGO_COUNT; a++) {
        if (!can_run(q, (kolo_way_t){(kolo_algo_t)a, false})) continue;
        double us = kolo_tune_model(q, (kolo_algo_t)a);
        if (best != KOLO_ALGO_COUNT && us >= *best_us) continue;
        best = (kolo_algo_t)a;
        *best_us = us;
    }
    return best;
}

kolo_status_t kolo_tune_choose(const kolo_tune_ask_t *q, kolo_tune_choice_t *choice)
{
    const kolo_tune_env_t *env = q->env;
    kolo_tune_choice_t c = {kolo_tune_forced(q->coll), 0, 0, "forced by KOLO_ALGO"};
    if (!can_run(q, c.way)) {
        const kolo_tune_row_t *row = kolo_tune_loaded_row(env, q->coll, q->count * q->elem);
        c.way = row ? row->way : KOLO_WAY_NONE;
        c.reason = "from the table file";
    }
    if (!can_run(q, c.way)) {
        c.way = kolo_tune_rule(q);
        c.reason = c.way.lines ? "measured rule: by lines" : "measured rule";
    }
    if (!can_run(q, c.way)) {
        c.way = (kolo_way_t){cheapest(q, &c.predicted_us), false};
        c.reason = "cheapest of the cost model";
    }
    if (c.way.algo == KOLO_ALGO_COUNT && q->emit->one_fold && kolo_coll_reduces(q->coll))
        return kolo_fail(KOLO_ERR_UNSUPPORTED,
                         "%s among %u ranks: sums in rank order (config.order, KOLO_REDUCE_ORDER) are there for at "
                         "most 256 ranks",
                         kolo_coll_name(q->coll), env->nranks);
    if (c.way.algo == KOLO_ALGO_COUNT)
        return kolo_fail(KOLO_ERR_INTERNAL, "no algorithm for %s on %u ranks of %u hosts", kolo_coll_name(q->coll),
                         env->nranks, env->nnodes);
    c.piece_bytes = pick_piece(q, c.way.algo);
    *choice = c;
    return KOLO_OK;
}

/* Says why this one, and what the model thinks of it. */
static void explain_choice(const kolo_tune_ask_t *q, const kolo_tune_choice_t *choice, FILE *out)
{
    char rule[300];
    double best_us = 0, us = kolo_tune_model(q, choice->way.algo);
    kolo_algo_t best = cheapest(q, &best_us);
    const kolo_tune_row_t *row = kolo_tune_loaded_row(q->env, q->coll, q->count * q->elem);
    kolo_tune_rule_words(q, rule, sizeof rule);
    fprintf(out, "chosen: %s, pieces of %u bytes (%s)\n", kolo_way_name(q->coll, choice->way), choice->piece_bytes,
            choice->reason);
    if (row && kolo_way_is(row->way, choice->way))
        fprintf(out, "  KOLO_TUNE_FILE=%s: %s of %u ranks from %llu bytes on: %s\n", kolo_tune_config.file,
                kolo_coll_name(row->coll), row->ranks, (unsigned long long)row->from,
                kolo_way_name(row->coll, row->way));
    else if (row)
        fprintf(out, "  KOLO_TUNE_FILE=%s names %s, which is forced away or cannot run here\n",
                kolo_tune_config.file, kolo_way_name(row->coll, row->way));
    fprintf(out, "  %s\n", rule);
    if (kolo_way_is(kolo_tune_forced(q->coll), choice->way))
        fprintf(out, "  KOLO_ALGO comes before rules and model\n");
    else if (best == choice->way.algo && !choice->way.lines)
        fprintf(out, "  the cost model would choose the same\n");
    else if (best != KOLO_ALGO_COUNT && choice->way.lines)
        fprintf(out,
                "  the cost model does not know the loops over lines; of the others it would choose %s (%.1f us)\n",
                kolo_plan_algo_name(best), best_us);
    else if (best != KOLO_ALGO_COUNT)
        fprintf(out,
                "  the cost model would choose %s (%.1f us, against %.1f us for %s); a measured rule comes before "
                "it, since it knows neither caches nor the scheduler\n",
                kolo_plan_algo_name(best), best_us, us, kolo_way_name(q->coll, choice->way));
}

kolo_status_t kolo_tune_explain(const kolo_tune_ask_t *q, FILE *out)
{
    kolo_tune_choice_t choice;
    KOLO_TRY(kolo_tune_choose(q, &choice));
    fprintf(out, "%s of %llu elements of %zu bytes on %u ranks of %u host(s), %u cores each\n",
            kolo_coll_name(q->coll), (unsigned long long)q->count, q->elem, q->env->nranks, q->env->nnodes,
            q->env->cores);
    kolo_way_t list[KOLO_WAYS_MAX];
    size_t n = kolo_way_all(q->coll, list);
    for (size_t i = 0; i < n; i++) {
        const char *mark = kolo_way_is(list[i], choice.way) ? "   <- chosen" : "";
        if (can_run(q, list[i]))
            fprintf(out, "  %-18s %12.1f us predicted%s\n", kolo_way_name(q->coll, list[i]),
                    kolo_tune_model(q, list[i].algo), mark);
        else
            fprintf(out, "  %-18s not usable here\n", kolo_way_name(q->coll, list[i]));
    }
    explain_choice(q, &choice, out);
    return KOLO_OK;
}
