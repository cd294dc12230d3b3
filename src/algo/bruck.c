/* SPDX-License-Identifier: Apache-2.0
 *
 * Bruck's algorithms: ceil(log2 n) steps at any n, for small messages between many ranks. Step k talks over the
 * distance 2^k. Source: J. Bruck, C. Ho, S. Kipnis, E. Upfal, D. Weathersby, "Efficient algorithms for all-to-all
 * communications in multiport message-passing systems", IEEE TPDS 8 (1997); the barrier is the dissemination
 * barrier of D. Hensgen, R. Finkel, U. Manber, "Two algorithms for barrier synchronization", IJPP 17 (1988).
 *
 * Blocks are sent and received in turn, one by one, so that two slots suffice. There is no rotation before or
 * after: chunks are named modulo n where they lie.
 */
#include "algo/emit.h"

/* Gathers in doubling distances: I hold parts me .. me + have - 1 (mod n); my successor at the distance `have`
 * gives me the next ones. */
kolo_status_t kolo_bruck_all_gather(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, me = env->rank;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_ALL_GATHER, KOLO_ALGO_BRUCK, env, &b));
    kolo_builder_grid(b, n, 1, 1, n);
    kolo_builder_lane(b);
    kolo_builder_copy(b, kolo_seg(KOLO_BUF_DST, (int32_t)me, 1), kolo_seg(KOLO_BUF_SRC, 0, 1));
    for (uint32_t have = 1; have < n; have *= 2) {
        uint32_t count = have < n - have ? have : n - have;
        uint16_t tx = kolo_builder_tx(b, (me + n - have) % n, 0), rx = kolo_builder_rx(b, (me + have) % n, 0);
        kolo_builder_loop(b, count);
        kolo_builder_send(b, tx, kolo_seg_loop(KOLO_BUF_DST, (int32_t)me, 1, n));
        kolo_builder_recv(b, rx, kolo_seg_loop(KOLO_BUF_DST, (int32_t)(me + have), 1, n));
        kolo_builder_end(b);
    }
    return kolo_builder_finish(b, plan);
}

/* Blocks of the distances j .. j + count - 1 (all within one run of a set bit) make the hop over `hop`: they leave
 * from SRC on their first hop, else from SCRATCH[distance]; they end in DST on their last one. */
static void hop_run(kolo_builder_t *b, const kolo_emit_env_t *env, uint32_t hop, uint32_t j, uint32_t count)
{
    uint32_t n = env->nranks, me = env->rank;
    uint16_t tx = kolo_builder_tx(b, (me + hop) % n, 0), rx = kolo_builder_rx(b, (me + n - hop) % n, 0);
    kolo_segment_t scratch = kolo_seg_loop(KOLO_BUF_SCRATCH, (int32_t)j, 1, 0);
    bool first = (j & (hop - 1)) == 0, last = j < 2 * hop;
    kolo_builder_loop(b, count);
    kolo_builder_send(b, tx, first ? kolo_seg(KOLO_BUF_SRC, (int32_t)((me + j) % n), 1) : scratch);
    kolo_builder_recv(b, rx, last ? kolo_seg_loop(KOLO_BUF_DST, (int32_t)me - (int32_t)j, -1, n) : scratch);
    kolo_builder_end(b);
}

kolo_status_t kolo_bruck_all_to_all(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, me = env->rank;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_ALL_TO_ALL, KOLO_ALGO_BRUCK, env, &b));
    kolo_builder_grid(b, n, 1, n, n);
    kolo_builder_scratch(b, n);
    kolo_builder_lane(b);
    kolo_builder_copy(b, kolo_seg(KOLO_BUF_DST, (int32_t)me, 1), kolo_seg(KOLO_BUF_SRC, (int32_t)me, 1));
    for (uint32_t hop = 1; hop < n; hop *= 2) {
        for (uint32_t j = hop; j < n; j += 2 * hop) {
            uint32_t count = hop < n - j ? hop : n - j;
            hop_run(b, env, hop, j, 1);
            if (count > 1) hop_run(b, env, hop, j + 1, count - 1);
        }
    }
    return kolo_builder_finish(b, plan);
}

/* Waits in doubling distances: after the step of distance d, everyone has heard, directly or not, of the 2d - 1
 * ranks before it. */
kolo_status_t kolo_bruck_barrier(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, me = env->rank;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_BARRIER, KOLO_ALGO_BRUCK, env, &b));
    kolo_builder_grid(b, 1, 1, 0, 0);
    kolo_builder_scratch(b, 2);
    kolo_builder_lane(b);
    for (uint32_t d = 1; d < n; d *= 2) {
        kolo_builder_send(b, kolo_builder_tx(b, (me + d) % n, 0), kolo_seg_scratch(0, 1, 0));
        kolo_builder_recv(b, kolo_builder_rx(b, (me + n - d) % n, 0), kolo_seg_scratch(1, 1, 0));
    }
    return kolo_builder_finish(b, plan);
}
