/* SPDX-License-Identifier: Apache-2.0
 *
 * The cost model: time = rounds * latency + messages * overhead + bytes touched / rate, after Hockney's alpha-beta
 * model, with one correction: when more ranks than cores share a machine, work adds up and a round costs a switch.
 */
#include "tune/internal.h"

#include <math.h>

typedef struct {
    double rounds, messages, bytes; /* inside a host, per rank; bytes are those that a core touches */
    double net_rounds, net_bytes;   /* between hosts; bytes through one host's uplink */
} kolo_cost_t;

static double log2_up(double n)
{
    return n > 1 ? ceil(log2(n)) : 0;
}

/* Returns the cost of n ranks in one host; b bytes: the whole vector (all_reduce, reduce, broadcast) or one part
 * (the others). */
static kolo_cost_t local_cost(kolo_coll_t coll, kolo_algo_t algo, double n, double b)
{
    bool parts = !kolo_coll_traits(coll)->whole;
    double whole = parts ? b * n : b, share = parts ? b : b / n;
    switch (algo) {
    case KOLO_ALGO_ONE_STEP:
        return (kolo_cost_t){1, n, whole * (parts ? 2 : n), 0, 0};
    case KOLO_ALGO_DIRECT:
        return (kolo_cost_t){2, 3 * n, 3 * whole, 0, 0};
    case KOLO_ALGO_SINGLE_COPY:
        return (kolo_cost_t){2, n + 8, 1.5 * whole + 2000 * n, 0, 0};
    case KOLO_ALGO_RING:
        return (kolo_cost_t){2 * (n - 1), 2 * n, 4 * whole, 0, 0};
    case KOLO_ALGO_TREE:
        return (kolo_cost_t){2 * log2_up(n), 4, 6 * whole, 0, 0};
    case KOLO_ALGO_HALVING_DOUBLING:
        return (kolo_cost_t){2 * log2_up(n), 2 * log2_up(n), 4 * whole, 0, 0};
    case KOLO_ALGO_BRUCK:
        return (kolo_cost_t){log2_up(n), log2_up(n), share * n * (log2_up(n) + 2), 0, 0};
    case KOLO_ALGO_PAT:
        return (kolo_cost_t){log2_up(n), log2_up(n), 4 * whole, 0, 0};
    case KOLO_ALGO_PAIRWISE:
        return (kolo_cost_t){1, 2 * n, 2.2 * whole, 0, 0};
    case KOLO_ALGO_HIERARCHICAL:
    case KOLO_ALGO_P2P:
    case KOLO_ALGO_COUNT:
        break; /* no default: the compiler names an algorithm without a cost */
    }
    return (kolo_cost_t){2, 4 * n, 4 * whole, 0, 0};
}

/* Returns the cost of flat algorithms over several hosts: every step that crosses pays the network. */
static kolo_cost_t cost(const kolo_tune_env_t *env, kolo_coll_t coll, kolo_algo_t algo, double b)
{
    double n = env->nranks, hosts = env->nnodes, per = env->max_node_size;
    if (hosts <= 1) return local_cost(coll, algo, n, b);
    bool parts = !kolo_coll_traits(coll)->whole;
    double whole = parts ? b * n : b;
    kolo_cost_t c = local_cost(coll, algo, n, b);
    if (algo == KOLO_ALGO_HIERARCHICAL) {
        c = local_cost(coll, KOLO_ALGO_DIRECT, per, parts ? b * n / per : b);
        c.net_rounds = 2 * log2_up(hosts);
        c.net_bytes = (coll == KOLO_COLL_ALL_REDUCE ? 2 : 1) * whole * (hosts - 1) / hosts;
        return c;
    }
    c.net_rounds = c.rounds;
    c.net_bytes = whole * (coll == KOLO_COLL_ALL_REDUCE ? 2 : 1);
    if (algo != KOLO_ALGO_RING && algo != KOLO_ALGO_TREE) c.net_bytes *= per;
    return c;
}

double kolo_tune_model(const kolo_tune_ask_t *q, kolo_algo_t algo)
{
    const kolo_tune_env_t *env = q->env;
    kolo_cost_t c = cost(env, q->coll, algo, (double)(q->count * q->elem));
    double crowd = env->max_node_size > env->cores ? (double)env->max_node_size / env->cores : 1;
    double round_us = crowd > 1 ? 1.5 * crowd : 0.2, message_us = 0.08, rate = 7000; /* bytes per us */
    double slots = c.bytes / q->sizes->local_slot_bytes;
    double us = c.rounds * round_us + (c.messages + slots) * message_us * crowd + c.bytes / rate * crowd;
    return us + c.net_rounds * 25 + c.net_bytes / 1500;
}
