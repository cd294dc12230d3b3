/* SPDX-License-Identifier: Apache-2.0
 *
 * The verifier: runs the plans of all ranks abstractly. Each chunk of each tile carries the expression tree of what
 * it holds (a leaf is "chunk c of rank r's SRC", hash-consed, so equal trees are equal numbers). Shown: (1) every
 * connection's instructions match in number, order and length; (2) no schedule deadlocks with the stated depth
 * (depth counted in slots, `slices` slots a chunk, depth-first, breadth-first and seeded random interleavings);
 * (3) every output chunk's tree is the definition's, each input exactly once, and equal on all ranks where the
 * collective says so; (4) nothing is read while it may be written: across depth + 2 tiles, in place and out of
 * place, and across the border to the next plan on the same connections; (5) a trace is the plan's trace.
 */
#ifndef KOLO_PROVE_VERIFY_H
#define KOLO_PROVE_VERIFY_H

#include "plan/trace.h"

/* P2P: what one rank sends and receives, in call order. The k-th send to a peer goes to its k-th receive from
 * me. */
typedef struct {
    uint32_t nsends, nrecvs;
    const int *send_peers, *recv_peers;
} kolo_group_t;

typedef struct {
    bool in_place;
    bool rank_order;       /* reductions must take their operands in rank order (callback operators) */
    bool one_fold;         /* each result is one REDUCE_MANY of all ranks' inputs, in rank order (config.order) */
    uint32_t schedules;    /* 0: depth-first, breadth-first and reverse; 1: only the first, and so on */
    uint32_t tiles;        /* 0: depth + 2 full ones and a ragged one */
    bool skip_races;       /* do not look for races: clocks take time and memory, by all lanes of all ranks */
    uint32_t random_seeds; /* further random interleavings; 0 is fine */
    uint64_t seed;
    /* zero-length parts (v collectives, count < parts): bit p set = part p is empty; NULL = none. What rank r sends
     * to rank p in all_to_all is part r * nranks + p; in P2P the sends of all ranks are numbered through, in rank
     * order. */
    const uint8_t *empty_parts;
    const int *node_of;                       /* rank -> host, for NODE connections; NULL: all on one */
    const kolo_group_t *groups, *next_groups; /* by rank; needed for P2P plans */
    /* per-rank plans that run after these on the same connections; NULL = the same plans again */
    const kolo_plan_t *const *next;
} kolo_verify_options_t;

/* Proves plans[0..nranks). KOLO_ERR_INTERNAL has a message: rank, lane, instruction, chunk, what is wrong. */
kolo_status_t kolo_prove_verify(const kolo_plan_t *const *plans, uint32_t nranks,
                                const kolo_verify_options_t *options);

/* Checks that per connection the steps of the trace are the plan's, in order (order across connections is free).
 * One step per chunk, tile and connection end, for the segment that is the payload (dst, but src of SEND,
 * RECV_REDUCE_SEND, EXPOSE and PUT); the count must be such that every chunk has bytes in each of the `tiles`. The
 * chunk of a NONE segment is not looked at. */
kolo_status_t kolo_prove_verify_trace(const kolo_plan_t *plan, uint32_t tiles, const kolo_trace_step_t *steps,
                                      size_t count);

/* ---- simulator ---- */

typedef struct {
    double latency_us; /* per slot between two ranks of a node / of two nodes */
    double gbps;       /* bytes per ns of one rank's copies / of a node's uplink, shared by its ranks */
} kolo_sim_link_t;
/* Nodes with several network cards, and the switches between them: leaf switches, each joined to all others by one
 * way up. All nodes are alike. */
typedef struct {
    uint32_t cards;          /* of a node */
    const double *card_gbps; /* by card: bytes per ns, each way */
    uint32_t nlocal;         /* ranks of a node that the next two describe; others begin again at the first */
    const uint32_t *close;   /* nlocal x cards: the cards that a rank uses, in the order of lanes */
    const uint32_t *nclose;  /* how many of these, at least 1 */
    bool rails;              /* card c of all nodes of a pod is at one leaf switch; else all cards of a pod are */
    uint32_t pod_nodes;      /* 0: all are one pod */
    double oversubscription; /* what cards could send to a leaf switch, by what goes up from it; at least 1 */
    double switch_us;        /* of each switch on the way: one, or three between leaf switches */
} kolo_sim_fabric_t;
typedef struct {
    kolo_sim_link_t local, remote;
    double copy_gbps; /* local copy or reduce, bytes per ns */
    double insn_us;   /* cost of an instruction */
    double switch_us; /* cost of giving the core to another rank of the node when ranks > cores */
    uint32_t cores;   /* per node */
    uint32_t slot_bytes;
    const kolo_sim_fabric_t *fabric; /* instead of remote.gbps; NULL: a node has one way out */
} kolo_sim_machine_t;
typedef struct {
    double time_us;                     /* until the last rank is done */
    uint64_t local_bytes, remote_bytes; /* sum over links */
    uint64_t max_link_bytes;            /* most on one node's uplink, or one way of a card */
    uint64_t spine_bytes;               /* that went up from leaf switches */
} kolo_sim_result_t;
typedef struct {
    const kolo_plan_t *const *plans; /* of each rank */
    uint32_t nranks;
    const int *node_of;
    uint64_t count; /* as in the call, of elements of type_bytes */
    uint32_t type_bytes;
    const kolo_sim_machine_t *machine;
} kolo_sim_case_t;
kolo_status_t kolo_prove_simulate(const kolo_sim_case_t *c, kolo_sim_result_t *result);

/* Simulates very many ranks that all do alike, each on a node of its own (a ring): one rank's plan stands for all,
 * what it posts on a connection lane is what arrives there. One lane only, PAIR connections only. */
kolo_status_t kolo_prove_simulate_alike(const kolo_plan_t *plan, uint64_t count, uint32_t type_bytes,
                                        const kolo_sim_machine_t *machine, kolo_sim_result_t *result);

#endif
