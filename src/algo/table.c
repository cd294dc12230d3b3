/* SPDX-License-Identifier: Apache-2.0
 *
 * All algorithms in one table, and the one way to a plan: look the row up, ask whether it is usable, emit.
 */
#include "algo/emit.h"

#include <stddef.h>

/* ---- when is an algorithm usable? One rank is a copy, whatever the algorithm. ---- */

#define MOST_OPERANDS 256u  /* of a REDUCE_MANY, my own included */
#define MOST_LANES    4096u /* of a plan */

static bool always(const kolo_emit_env_t *env)
{
    return env->nranks > 0;
}

static bool few_operands(const kolo_emit_env_t *env)
{
    return env->nranks <= MOST_OPERANDS;
}

static bool few_lanes(const kolo_emit_env_t *env)
{
    return env->nranks <= MOST_LANES;
}

static bool power_of_two(const kolo_emit_env_t *env)
{
    return kolo_pattern_is_power_of_two(env->nranks);
}

static bool references(const kolo_emit_env_t *env)
{
    return env->nranks == 1 || (env->refs && env->nranks <= MOST_OPERANDS);
}

static bool two_references(const kolo_emit_env_t *env)
{
    return env->nranks == 1 || (env->refs && env->nranks == 2);
}

/* Tells whether there are several nodes, and one of them has several ranks. Every rank has at most a lane pair per
 * rail, and adds up at most its node and one partial sum of each other node. */
static bool several_nodes(const kolo_emit_env_t *env)
{
    if (env->nranks == 1) return true;
    if (env->nnodes < 2 || env->nnodes >= env->nranks || !env->node_of) return false;
    for (uint32_t v = 0; v < env->nnodes; v++)
        if ((uint32_t)env->node_size[v] + env->nnodes > MOST_OPERANDS) return false;
    return true;
}

/* ---- the table ---- */

#define RING_SOURCE   "Patarasuk, Yuan 2009; NCCL"
#define TREE_SOURCE   "Sanders, Speck, Traeff 2009; NCCL"
#define HALVE_SOURCE  "Thakur, Rabenseifner, Gropp 2005"
#define DIRECT_SOURCE "Rabenseifner 2004; XHC; two-shot of GPU libraries"
#define STEP_SOURCE   "XHC copy-in/copy-out; one-shot of GPU libraries"
#define LINEAR_SOURCE "linear algorithms of MPI libraries"
#define BRUCK_SOURCE  "Bruck et al. 1997"
#define PAT_SOURCE    "PAT of NCCL 2.23"
#define HIER_SOURCE   "HAN of Open MPI; rails of NCCL"
#define COPY_SOURCE   "kernel-assisted collectives (KNEM, CMA, XPMEM)"

/* clang-format off */
const kolo_algo_row_t kolo_algos[] = {
    {KOLO_COLL_ALL_REDUCE, KOLO_ALGO_RING, kolo_ring_all_reduce, always, .source = RING_SOURCE, .in_place = true, .commutative = true},
    {KOLO_COLL_ALL_REDUCE, KOLO_ALGO_TREE, kolo_tree_all_reduce, always, .source = TREE_SOURCE, .in_place = true, .commutative = true, .fold_of_two = true},
    {KOLO_COLL_ALL_REDUCE, KOLO_ALGO_HALVING_DOUBLING, kolo_halving_doubling_all_reduce, always, .source = HALVE_SOURCE,
     .in_place = true, .commutative = true},
    {KOLO_COLL_ALL_REDUCE, KOLO_ALGO_DIRECT, kolo_direct_all_reduce, few_operands, .source = DIRECT_SOURCE, .in_place = true, .one_fold = true, .lines = true},
    {KOLO_COLL_ALL_REDUCE, KOLO_ALGO_ONE_STEP, kolo_one_step_all_reduce, few_operands, .source = STEP_SOURCE, .in_place = true, .one_fold = true, .lines = true},
    {KOLO_COLL_ALL_REDUCE, KOLO_ALGO_HIERARCHICAL, kolo_hierarchical_all_reduce, several_nodes, .source = HIER_SOURCE,
     .in_place = true, .commutative = true},
    {KOLO_COLL_ALL_REDUCE, KOLO_ALGO_SINGLE_COPY, kolo_single_copy_all_reduce, references, .source = COPY_SOURCE, .in_place = true, .one_fold = true},

    {KOLO_COLL_REDUCE, KOLO_ALGO_RING, kolo_ring_reduce, always, .source = RING_SOURCE, .in_place = true, .commutative = true},
    {KOLO_COLL_REDUCE, KOLO_ALGO_TREE, kolo_tree_reduce, always, .source = TREE_SOURCE, .in_place = true, .commutative = true, .fold_of_two = true},
    {KOLO_COLL_REDUCE, KOLO_ALGO_DIRECT, kolo_direct_reduce, few_operands, .source = DIRECT_SOURCE, .in_place = true, .one_fold = true},
    {KOLO_COLL_REDUCE, KOLO_ALGO_ONE_STEP, kolo_one_step_reduce, few_operands, .source = STEP_SOURCE, .in_place = true, .one_fold = true, .lines = true},
    {KOLO_COLL_REDUCE, KOLO_ALGO_SINGLE_COPY, kolo_single_copy_reduce, references, .source = COPY_SOURCE, .in_place = true, .one_fold = true},

    {KOLO_COLL_BROADCAST, KOLO_ALGO_RING, kolo_ring_broadcast, always, .source = RING_SOURCE, .in_place = true},
    {KOLO_COLL_BROADCAST, KOLO_ALGO_TREE, kolo_tree_broadcast, always, .source = TREE_SOURCE, .in_place = true},
    {KOLO_COLL_BROADCAST, KOLO_ALGO_DIRECT, kolo_direct_broadcast, always, .source = DIRECT_SOURCE, .in_place = true},
    {KOLO_COLL_BROADCAST, KOLO_ALGO_ONE_STEP, kolo_one_step_broadcast, always, .source = STEP_SOURCE, .in_place = true, .lines = true},
    {KOLO_COLL_BROADCAST, KOLO_ALGO_HIERARCHICAL, kolo_hierarchical_broadcast, several_nodes, .source = HIER_SOURCE, .in_place = true},
    {KOLO_COLL_BROADCAST, KOLO_ALGO_SINGLE_COPY, kolo_single_copy_broadcast, references, .source = COPY_SOURCE, .in_place = true},

    {KOLO_COLL_ALL_GATHER, KOLO_ALGO_RING, kolo_ring_all_gather, always, .source = RING_SOURCE, .in_place = true},
    {KOLO_COLL_ALL_GATHER, KOLO_ALGO_HALVING_DOUBLING, kolo_halving_doubling_all_gather, power_of_two, .source = HALVE_SOURCE,
     .in_place = true},
    {KOLO_COLL_ALL_GATHER, KOLO_ALGO_DIRECT, kolo_direct_all_gather, always, .source = DIRECT_SOURCE, .in_place = true},
    {KOLO_COLL_ALL_GATHER, KOLO_ALGO_ONE_STEP, kolo_one_step_all_gather, always, .source = STEP_SOURCE, .in_place = true, .lines = true},
    {KOLO_COLL_ALL_GATHER, KOLO_ALGO_BRUCK, kolo_bruck_all_gather, always, .source = BRUCK_SOURCE, .in_place = true},
    {KOLO_COLL_ALL_GATHER, KOLO_ALGO_PAT, kolo_pat_all_gather, always, .source = PAT_SOURCE, .in_place = true},
    {KOLO_COLL_ALL_GATHER, KOLO_ALGO_HIERARCHICAL, kolo_hierarchical_all_gather, several_nodes, .source = HIER_SOURCE, .in_place = true},
    {KOLO_COLL_ALL_GATHER, KOLO_ALGO_SINGLE_COPY, kolo_single_copy_all_gather, references, .source = COPY_SOURCE, .in_place = true},

    {KOLO_COLL_REDUCE_SCATTER, KOLO_ALGO_RING, kolo_ring_reduce_scatter, always, .source = RING_SOURCE, .in_place = true,
     .commutative = true},
    {KOLO_COLL_REDUCE_SCATTER, KOLO_ALGO_HALVING_DOUBLING, kolo_halving_doubling_reduce_scatter, power_of_two, .source = HALVE_SOURCE,
     .in_place = true, .commutative = true},
    {KOLO_COLL_REDUCE_SCATTER, KOLO_ALGO_DIRECT, kolo_direct_reduce_scatter, few_operands, .source = DIRECT_SOURCE, .in_place = true, .one_fold = true},
    {KOLO_COLL_REDUCE_SCATTER, KOLO_ALGO_ONE_STEP, kolo_one_step_reduce_scatter, few_operands, .source = STEP_SOURCE, .in_place = true, .one_fold = true, .lines = true},
    {KOLO_COLL_REDUCE_SCATTER, KOLO_ALGO_PAT, kolo_pat_reduce_scatter, always, .source = PAT_SOURCE, .in_place = true, .commutative = true},
    {KOLO_COLL_REDUCE_SCATTER, KOLO_ALGO_HIERARCHICAL, kolo_hierarchical_reduce_scatter, several_nodes, .source = HIER_SOURCE,
     .in_place = true, .commutative = true},
    {KOLO_COLL_REDUCE_SCATTER, KOLO_ALGO_SINGLE_COPY, kolo_single_copy_reduce_scatter, two_references, .source = COPY_SOURCE,
     .in_place = true, .one_fold = true},

    {KOLO_COLL_ALL_TO_ALL, KOLO_ALGO_DIRECT, kolo_direct_all_to_all, always, .source = LINEAR_SOURCE, .lines = true},
    {KOLO_COLL_ALL_TO_ALL, KOLO_ALGO_PAIRWISE, kolo_pairwise_all_to_all, few_lanes, .source = LINEAR_SOURCE},
    {KOLO_COLL_ALL_TO_ALL, KOLO_ALGO_BRUCK, kolo_bruck_all_to_all, few_lanes, .source = BRUCK_SOURCE},
    {KOLO_COLL_ALL_TO_ALL, KOLO_ALGO_SINGLE_COPY, kolo_single_copy_all_to_all, references, .source = COPY_SOURCE},

    {KOLO_COLL_GATHER, KOLO_ALGO_DIRECT, kolo_direct_gather, always, .source = LINEAR_SOURCE, .in_place = true, .lines = true},
    {KOLO_COLL_GATHER, KOLO_ALGO_SINGLE_COPY, kolo_single_copy_gather, references, .source = COPY_SOURCE, .in_place = true},

    {KOLO_COLL_SCATTER, KOLO_ALGO_DIRECT, kolo_direct_scatter, always, .source = LINEAR_SOURCE, .in_place = true, .lines = true},
    {KOLO_COLL_SCATTER, KOLO_ALGO_SINGLE_COPY, kolo_single_copy_scatter, references, .source = COPY_SOURCE, .in_place = true},

    {KOLO_COLL_BARRIER, KOLO_ALGO_DIRECT, kolo_direct_barrier, always, .source = LINEAR_SOURCE, .in_place = true, .lines = true},
    {KOLO_COLL_BARRIER, KOLO_ALGO_BRUCK, kolo_bruck_barrier, always, .source = "Hensgen, Finkel, Manber 1988", .in_place = true},

    {KOLO_COLL_P2P, KOLO_ALGO_P2P, kolo_p2p_group, always, .source = "grouped send and receive of NCCL"},
};
/* clang-format on */
const size_t kolo_algo_rows = sizeof(kolo_algos) / sizeof(kolo_algos[0]);

const kolo_algo_row_t *kolo_algo_find(kolo_coll_t coll, kolo_algo_t algo)
{
    for (size_t i = 0; i < kolo_algo_rows; i++)
        if (kolo_algos[i].coll == coll && kolo_algos[i].algo == algo) return &kolo_algos[i];
    return NULL;
}

bool kolo_algo_usable(const kolo_algo_row_t *row, const kolo_emit_env_t *env)
{
    bool folds = row->one_fold || env->nranks == 1 || (row->fold_of_two && env->nranks == 2) ||
                 !kolo_coll_reduces(row->coll);
    return row->usable(env) && (folds || !env->one_fold);
}

/* Emits the plan of one rank: what it puts in comes out. */
static kolo_status_t emit_alone(kolo_coll_t coll, kolo_algo_t algo, const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(coll, algo, env, &b));
    if (coll == KOLO_COLL_BARRIER) {
        kolo_builder_grid(b, 1, 1, 0, 0);
        return kolo_builder_finish(b, plan);
    }
    kolo_insn_t *in = kolo_builder_insn(b, KOLO_OP_COPY);
    in->dst = kolo_seg(KOLO_BUF_DST, 0, 1);
    in->src = kolo_seg(KOLO_BUF_SRC, 0, 1);
    in->flags = kolo_coll_reduces(coll) ? KOLO_FLAG_FINAL : 0;
    return kolo_builder_finish(b, plan);
}

kolo_status_t kolo_algo_emit(kolo_coll_t coll, kolo_algo_t algo, const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    const kolo_algo_row_t *row = kolo_algo_find(coll, algo);
    if (!row)
        return kolo_fail(KOLO_ERR_UNSUPPORTED, "there is no %s algorithm for %s", kolo_plan_algo_name(algo),
                         kolo_coll_name(coll));
    if (row->usable(env) && !kolo_algo_usable(row, env))
        return kolo_fail(KOLO_ERR_UNSUPPORTED,
                         "the %s algorithm for %s does not sum in rank order (config.order is KOLO_ORDER_RANKS)",
                         kolo_plan_algo_name(algo), kolo_coll_name(coll));
    if (!row->usable(env))
        return kolo_fail(KOLO_ERR_UNSUPPORTED,
                         "the %s algorithm for %s cannot be used with %u ranks on %u nodes (fan-out %s, references "
                         "%s)",
                         kolo_plan_algo_name(algo), kolo_coll_name(coll), env->nranks, env->nnodes,
                         env->fanout ? "yes" : "no", env->refs ? "yes" : "no");
    if (env->nranks == 1 && coll != KOLO_COLL_P2P) return emit_alone(coll, algo, env, plan);
    return row->emit(env, plan);
}
