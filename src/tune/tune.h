/* SPDX-License-Identifier: Apache-2.0
 *
 * The tuner: which algorithm, protocol and sizes for (collective, bytes, ranks, node map, wire capabilities). Pure
 * functions of numbers that all ranks share, so all ranks choose alike. A measured table (bench/, kolo-perf) is
 * laid over a cost model; parameters can force any choice.
 */
#ifndef KOLO_TUNE_TUNE_H
#define KOLO_TUNE_TUNE_H

#include "algo/algo.h"
#include "base/params.h"

#include <stdio.h>

extern const kolo_param_table_t kolo_tune_params; /* KOLO_ALGO (e.g. "all_reduce=ring,broadcast=tree"),
                                                     KOLO_FLAT_MAX, KOLO_SLOT_BYTES, ... */

typedef struct {
    uint32_t nranks, nnodes, max_node_size, min_node_size;
    uint32_t cores;        /* fewest cores of a rank's machine */
    bool fanout, refs, ll; /* inside a node: NODE connections, references, LL lines */
    uint64_t l3_bytes;     /* 0 unknown */
} kolo_tune_env_t;

/* Connection sizes, fixed at init for the life of the communicator. */
typedef struct {
    uint32_t local_slot_bytes, local_depth;   /* PAIR inside a host, NODE but for its depth */
    uint32_t remote_slot_bytes, remote_depth; /* PAIR between hosts */
    uint32_t ll_slot_bytes, ll_depth;
} kolo_tune_sizes_t;
void kolo_tune_sizes(const kolo_tune_env_t *env, kolo_tune_sizes_t *sizes);
/* Returns the depth of a NODE connection. Its writer waits for the slowest reader once a queueful, and of many one
 * is always late. */
uint32_t kolo_tune_node_depth(const kolo_tune_env_t *env, const kolo_tune_sizes_t *sizes, bool lines);
/* Returns the depth of a PAIR connection inside a host that carries slots. */
uint32_t kolo_tune_pair_depth(const kolo_tune_sizes_t *sizes, uint32_t lane);
/* Returns the payload that fits a slot of every SIMPLE connection of the communicator. */
uint32_t kolo_tune_slot_bytes(const kolo_tune_env_t *env, const kolo_tune_sizes_t *sizes);
/* Returns how much of it a send or receive of `bytes` through slots uses; the same at both ends whatever else is in
 * their groups. */
uint32_t kolo_tune_p2p_piece(const kolo_tune_env_t *env, const kolo_tune_sizes_t *sizes, uint64_t bytes);

typedef struct {
    kolo_way_t way;
    uint32_t piece_bytes; /* <= the slot bytes of every connection involved */
    double predicted_us;  /* of the cost model; 0 for a measured choice */
    const char *reason;   /* static text */
} kolo_tune_choice_t;

/* What is asked of the tuner: count elements of elem bytes as in the call. `emit` says what is usable. */
typedef struct {
    const kolo_tune_env_t *env;
    const kolo_emit_env_t *emit;
    const kolo_tune_sizes_t *sizes;
    kolo_coll_t coll;
    uint64_t count;
    size_t elem;
} kolo_tune_ask_t;
kolo_status_t kolo_tune_choose(const kolo_tune_ask_t *ask, kolo_tune_choice_t *choice);
/* How a send of `bytes` goes to its peer: both ends know the same numbers. */
typedef enum { KOLO_P2P_LL, KOLO_P2P_SLOTS, KOLO_P2P_REF, KOLO_P2P_HALVES } kolo_p2p_way_t;
kolo_p2p_way_t kolo_tune_p2p(const kolo_tune_sizes_t *sizes, uint64_t bytes, bool ll, bool refs);
/* Prints all candidates with their predicted times and the choice, for kolo-info --explain. */
kolo_status_t kolo_tune_explain(const kolo_tune_ask_t *ask, FILE *out);
/* Returns the way that KOLO_ALGO forces for this collective, or none. It may not be usable. */
kolo_way_t kolo_tune_forced(kolo_coll_t coll);
/* Makes KOLO_ALGO `text` (NULL: not set), which must live on; returns what was before. For tools that measure every
 * algorithm: all ranks must do it between the same calls, and choices that were remembered forgotten. */
const char *kolo_tune_force(const char *text);
/* Hashes the rules and the table file: ranks must agree on it. */
uint64_t kolo_tune_hash(void);

/* ---- the table file (KOLO_TUNE_FILE; table.h) ---- */

/* Reads it, if one is named; once, after the parameters. unload: as if none were named. */
kolo_status_t kolo_tune_load(void);
void kolo_tune_unload(void);
/* What was measured with this number of GPUs: limits in bytes; 0: nothing. */
typedef struct {
    uint32_t ranks;
    uint64_t ll_all_reduce, ll_others, ll128_all_reduce, ll128_others, message_lines;
    uint64_t ll128_two, give, pipe;
} kolo_tune_gpu_t;
void kolo_tune_gpu(uint32_t nranks, kolo_tune_gpu_t *gpu);
/* Constants of the GPUs, from which the simulator predicts; mbps: 10^6 bytes a second. NULL: not measured. */
typedef struct {
    uint64_t launch_ns, gap_ns, begin_ns, hop_ns, meet_ns, message_ns;
    uint64_t ll_mbps, ll128_mbps, store_mbps, load_mbps;
} kolo_tune_machine_t;
const kolo_tune_machine_t *kolo_tune_machine(void);

#endif
