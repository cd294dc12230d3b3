/* SPDX-License-Identifier: Apache-2.0
 *
 * What measurement says where the cost model is too coarse. Each row: for this collective on this many ranks of one
 * host, from this many bytes on, take this algorithm if it is usable; lines that the call does not fit are passed
 * over. Later rows win. Measured with kolo-perf and KOLO_ALGO forcing each algorithm in turn, at 2, 8, 16
 * and 32 ranks on as many cores and 4 ranks on 2 (Sapphire Rapids); 2 ranks on 2 (Cascade Lake, where a system
 * call, and so a single copy, costs a microsecond).
 *
 * What the rows of lines show: lines of a message with many readers are fetched while they are still being written,
 * so with more than two ranks a slot with one flag is cheaper from a few lines on, unless ranks share cores, where
 * a round is a switch of the scheduler and nothing else counts.
 */
#include "tune/internal.h"

typedef enum { ANY, ROOMY, CROWDED } kolo_load_t; /* ranks of a host within or beyond its cores */

typedef struct {
    kolo_coll_t coll;
    uint32_t ranks_from, ranks_to;
    uint64_t from; /* bytes as in the call: count * elem */
    uint64_t work; /* and bytes * ranks */
    kolo_load_t load;
    uint32_t way; /* kolo_way_number() */
} kolo_rule_t;
#define LINES KOLO_WAY_LINES

static const kolo_rule_t rules[] = {
    /* one round of everything to everybody while that is little, then two rounds of parts */
    {KOLO_COLL_ALL_REDUCE, 2, 256, 0, 0, ANY, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_ALL_REDUCE, 2, 256, 0, 0, ANY, LINES | KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_ALL_REDUCE, 2, 2, 4097, 0, ANY, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_ALL_REDUCE, 2, 2, 2049, 0, ROOMY, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_ALL_REDUCE, 3, 6, 600, 0, ROOMY, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_ALL_REDUCE, 7, 10, 300, 0, ROOMY, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_ALL_REDUCE, 11, 256, 200, 0, ROOMY, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_ALL_REDUCE, 3, 256, 769, 0, CROWDED, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_ALL_REDUCE, 3, 6, 0, 40 << 10, ROOMY, KOLO_ALGO_DIRECT},
    {KOLO_COLL_ALL_REDUCE, 7, 256, 0, 20 << 10, ROOMY, KOLO_ALGO_DIRECT},
    {KOLO_COLL_ALL_REDUCE, 3, 256, 0, 96 << 10, CROWDED, KOLO_ALGO_DIRECT},
    {KOLO_COLL_ALL_REDUCE, 7, 10, 600, 0, ROOMY, LINES | KOLO_ALGO_DIRECT},
    {KOLO_COLL_ALL_REDUCE, 7, 10, 2500, 0, ROOMY, KOLO_ALGO_DIRECT},
    {KOLO_COLL_ALL_REDUCE, 11, 19, 400, 0, ROOMY, LINES | KOLO_ALGO_DIRECT},
    {KOLO_COLL_ALL_REDUCE, 20, 256, 225, 0, ROOMY, LINES | KOLO_ALGO_DIRECT},
    {KOLO_COLL_ALL_REDUCE, 5, 10, 300 << 10, 0, ROOMY, KOLO_ALGO_SINGLE_COPY},
    {KOLO_COLL_ALL_REDUCE, 5, 10, 1500 << 10, 0, ROOMY, KOLO_ALGO_DIRECT},
    {KOLO_COLL_ALL_REDUCE, 2, 2, 48 << 10, 0, CROWDED, KOLO_ALGO_DIRECT},
    {KOLO_COLL_ALL_REDUCE, 2, 2, 112 << 10, 0, ROOMY, KOLO_ALGO_SINGLE_COPY},
    /* beyond the caches: each byte is fetched from memory once, and from a slot in cache by the other */
    {KOLO_COLL_ALL_REDUCE, 2, 2, 1500 << 10, 0, ROOMY, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_REDUCE, 2, 256, 0, 0, ANY, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_REDUCE, 2, 256, 0, 0, ANY, LINES | KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_REDUCE, 2, 2, 6000, 0, ANY, KOLO_ALGO_TREE},
    {KOLO_COLL_REDUCE, 2, 2, 72 << 10, 0, ROOMY, KOLO_ALGO_SINGLE_COPY},
    {KOLO_COLL_REDUCE, 2, 2, 320 << 10, 0, ROOMY, KOLO_ALGO_TREE},
    {KOLO_COLL_REDUCE, 3, 6, 300, 0, ROOMY, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_REDUCE, 3, 6, 3000, 0, CROWDED, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_REDUCE, 7, 10, 200, 0, ANY, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_REDUCE, 11, 256, 128, 0, ANY, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_REDUCE, 11, 16, 6000, 0, ANY, KOLO_ALGO_TREE},
    {KOLO_COLL_REDUCE, 5, 16, 12 << 10, 0, ANY, KOLO_ALGO_DIRECT},
    {KOLO_COLL_REDUCE, 17, 256, 600, 0, ANY, KOLO_ALGO_TREE},
    {KOLO_COLL_REDUCE, 17, 256, 200 << 10, 0, ANY, KOLO_ALGO_DIRECT},
    {KOLO_COLL_REDUCE, 17, 256, 400 << 10, 0, ROOMY, KOLO_ALGO_TREE},
    {KOLO_COLL_REDUCE, 7, 16, 400 << 10, 0, ROOMY, KOLO_ALGO_RING},
    {KOLO_COLL_REDUCE, 3, 256, 1 << 20, 0, ANY, KOLO_ALGO_RING},
    {KOLO_COLL_REDUCE_SCATTER, 2, 256, 0, 0, ANY, KOLO_ALGO_DIRECT},
    {KOLO_COLL_REDUCE_SCATTER, 2, 256, 0, 0, ANY, LINES | KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_REDUCE_SCATTER, 2, 2, 72 << 10, 0, ROOMY, KOLO_ALGO_SINGLE_COPY},
    {KOLO_COLL_REDUCE_SCATTER, 3, 6, 100 << 10, 0, CROWDED, KOLO_ALGO_RING},
    {KOLO_COLL_REDUCE_SCATTER, 7, 10, 40 << 10, 0, ROOMY, KOLO_ALGO_RING},
    {KOLO_COLL_REDUCE_SCATTER, 11, 19, 24 << 10, 0, ROOMY, KOLO_ALGO_RING},
    {KOLO_COLL_REDUCE_SCATTER, 11, 19, 100 << 10, 0, ROOMY, KOLO_ALGO_DIRECT},
    {KOLO_COLL_REDUCE_SCATTER, 20, 256, 12 << 10, 0, ROOMY, KOLO_ALGO_RING},
    {KOLO_COLL_REDUCE_SCATTER, 20, 256, 400 << 10, 0, ROOMY, KOLO_ALGO_DIRECT},
    {KOLO_COLL_BROADCAST, 2, 256, 0, 0, ANY, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_BROADCAST, 2, 256, 0, 0, ANY, LINES | KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_BROADCAST, 7, 19, 1500, 0, ROOMY, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_BROADCAST, 20, 256, 513, 0, ROOMY, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_BROADCAST, 5, 16, 1 << 20, 0, ROOMY, KOLO_ALGO_DIRECT},
    {KOLO_COLL_BROADCAST, 3, 256, 4097, 0, CROWDED, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_BROADCAST, 17, 256, 512 << 10, 0, ANY, KOLO_ALGO_DIRECT},
    {KOLO_COLL_BROADCAST, 2, 2, 24 << 10, 0, ROOMY, KOLO_ALGO_SINGLE_COPY},
    {KOLO_COLL_ALL_GATHER, 2, 256, 0, 0, ANY, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_ALL_GATHER, 2, 256, 0, 0, ANY, LINES | KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_ALL_GATHER, 3, 256, 600, 0, CROWDED, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_ALL_GATHER, 3, 256, 301, 0, ROOMY, KOLO_ALGO_DIRECT},
    {KOLO_COLL_ALL_GATHER, 2, 2, 3000, 0, ANY, KOLO_ALGO_DIRECT},
    {KOLO_COLL_ALL_GATHER, 2, 2, 40 << 10, 0, ROOMY, KOLO_ALGO_SINGLE_COPY},
    {KOLO_COLL_ALL_GATHER, 3, 10, 20 << 10, 0, ROOMY, KOLO_ALGO_SINGLE_COPY},
    {KOLO_COLL_ALL_GATHER, 11, 16, 60 << 10, 0, ROOMY, KOLO_ALGO_SINGLE_COPY},
    /* beyond the caches what counts is that results are stored past them */
    {KOLO_COLL_ALL_GATHER, 5, 8, 3 << 20, 0, ROOMY, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_ALL_GATHER, 9, 16, 1 << 20, 0, ROOMY, KOLO_ALGO_ONE_STEP},
    {KOLO_COLL_ALL_TO_ALL, 2, 256, 0, 0, ANY, KOLO_ALGO_DIRECT},
    {KOLO_COLL_ALL_TO_ALL, 2, 256, 0, 0, ANY, LINES | KOLO_ALGO_DIRECT},
    {KOLO_COLL_ALL_TO_ALL, 5, 16, 400, 0, ROOMY, KOLO_ALGO_DIRECT},
    {KOLO_COLL_ALL_TO_ALL, 2, 2, 24 << 10, 0, ROOMY, KOLO_ALGO_SINGLE_COPY},
    {KOLO_COLL_ALL_TO_ALL, 3, 16, 32 << 10, 0, ANY, KOLO_ALGO_SINGLE_COPY},
    {KOLO_COLL_ALL_TO_ALL, 17, 256, 12 << 10, 0, ROOMY, KOLO_ALGO_SINGLE_COPY},
    {KOLO_COLL_ALL_TO_ALL, 17, 256, 200 << 10, 0, ROOMY, KOLO_ALGO_DIRECT},
    {KOLO_COLL_GATHER, 2, 256, 0, 0, ANY, KOLO_ALGO_DIRECT},
    {KOLO_COLL_GATHER, 2, 256, 0, 0, ANY, LINES | KOLO_ALGO_DIRECT},
    {KOLO_COLL_GATHER, 3, 256, 301, 0, ROOMY, KOLO_ALGO_DIRECT},
    {KOLO_COLL_GATHER, 3, 6, 16000, 0, ROOMY, KOLO_ALGO_SINGLE_COPY},
    {KOLO_COLL_GATHER, 7, 256, 16000, 1200 << 10, ROOMY, KOLO_ALGO_SINGLE_COPY},
    {KOLO_COLL_GATHER, 3, 256, 4097, 0, CROWDED, KOLO_ALGO_DIRECT},
    {KOLO_COLL_GATHER, 3, 16, 30 << 10, 0, CROWDED, KOLO_ALGO_SINGLE_COPY},
    {KOLO_COLL_GATHER, 2, 2, 12 << 10, 0, ROOMY, KOLO_ALGO_SINGLE_COPY},
    {KOLO_COLL_SCATTER, 2, 256, 0, 0, ANY, KOLO_ALGO_DIRECT},
    {KOLO_COLL_SCATTER, 2, 256, 0, 0, ANY, LINES | KOLO_ALGO_DIRECT},
    {KOLO_COLL_SCATTER, 3, 16, 100 << 10, 0, CROWDED, KOLO_ALGO_SINGLE_COPY},
    {KOLO_COLL_SCATTER, 3, 256, 100 << 10, 0, ROOMY, KOLO_ALGO_SINGLE_COPY},
    {KOLO_COLL_SCATTER, 2, 2, 12 << 10, 0, ROOMY, KOLO_ALGO_SINGLE_COPY},
    {KOLO_COLL_BARRIER, 2, 256, 0, 0, ANY, KOLO_ALGO_DIRECT},
    {KOLO_COLL_BARRIER, 2, 256, 0, 0, ANY, LINES | KOLO_ALGO_DIRECT},
};

static bool applies(const kolo_rule_t *r, const kolo_tune_ask_t *q)
{
    const kolo_tune_env_t *env = q->env;
    bool crowded = env->max_node_size > env->cores;
    uint64_t bytes = q->count * q->elem;
    if (r->coll != q->coll || bytes < r->from || bytes * env->nranks < r->work) return false;
    if (env->nranks < r->ranks_from || env->nranks > r->ranks_to) return false;
    if (r->load != ANY && (r->load == CROWDED) != crowded) return false;
    kolo_way_t way = kolo_way_of_number(r->way);
    if (way.algo == KOLO_ALGO_SINGLE_COPY) return env->refs;
    return !way.lines || kolo_tune_fits(q, way.algo);
}

static const kolo_rule_t *last_that_applies(const kolo_tune_ask_t *q)
{
    const kolo_rule_t *found = NULL;
    if (q->env->nnodes > 1) return NULL;
    for (size_t i = 0; i < KOLO_COUNTOF(rules); i++)
        if (applies(&rules[i], q)) found = &rules[i];
    return found;
}

kolo_way_t kolo_tune_rule(const kolo_tune_ask_t *q)
{
    const kolo_rule_t *rule = last_that_applies(q);
    return rule ? kolo_way_of_number(rule->way) : KOLO_WAY_NONE;
}

void kolo_tune_rule_words(const kolo_tune_ask_t *q, char *text, size_t bytes)
{
    const kolo_rule_t *r = last_that_applies(q);
    char work[80] = "";
    if (!r) {
        snprintf(text, bytes, "no measured rule");
        return;
    }
    if (r->work) snprintf(work, sizeof work, ", from %llu bytes over all ranks on", (unsigned long long)r->work);
    snprintf(text, bytes, "measured rule %d of %d: %s of %u to %u ranks on one host%s, from %llu bytes on%s: %s",
             (int)(r - rules) + 1, (int)KOLO_COUNTOF(rules), kolo_coll_name(q->coll), (unsigned)r->ranks_from,
             (unsigned)r->ranks_to,
             r->load == ANY       ? ""
             : r->load == CROWDED ? ", more ranks than cores"
                                  : ", a core for each rank",
             (unsigned long long)r->from, work, kolo_way_name(q->coll, kolo_way_of_number(r->way)));
}

uint64_t kolo_tune_hash(void)
{
    uint64_t hash = KOLO_HASH_INIT;
    for (size_t i = 0; i < KOLO_COUNTOF(rules); i++) {
        const uint64_t row[] = {rules[i].work,     rules[i].coll, rules[i].from, rules[i].ranks_from,
                                rules[i].ranks_to, rules[i].load, rules[i].way};
        hash = kolo_hash_bytes(hash, row, sizeof row);
    }
    uint64_t file = kolo_tune_loaded_hash();
    return kolo_hash_bytes(hash, &file, sizeof file);
}
