/* SPDX-License-Identifier: Apache-2.0
 *
 * Pairwise exchange: one lane per distance k sends to the rank k ahead and receives from the rank k behind. The
 * lanes are independent, so that a long part (all_to_allv) or a slow peer holds up nobody else. Source: the
 * pairwise exchange of MPICH and Open MPI; lanes per peer as in NCCL's send/recv channels.
 */
#include "algo/emit.h"

kolo_status_t kolo_pairwise_all_to_all(const kolo_emit_env_t *env, kolo_plan_t **plan)
{
    uint32_t n = env->nranks, me = env->rank;
    kolo_builder_t *b;
    KOLO_TRY(kolo_emit_open(KOLO_COLL_ALL_TO_ALL, KOLO_ALGO_PAIRWISE, env, &b));
    kolo_builder_grid(b, n, 1, n, n);
    for (uint32_t k = 1; k < n; k++) {
        uint32_t to = (me + k) % n, from = (me + n - k) % n;
        kolo_builder_lane(b);
        kolo_builder_send(b, kolo_builder_tx(b, to, 0), kolo_seg(KOLO_BUF_SRC, (int32_t)to, 1));
        kolo_builder_recv(b, kolo_builder_rx(b, from, 0), kolo_seg(KOLO_BUF_DST, (int32_t)from, 1));
    }
    kolo_builder_lane(b);
    kolo_builder_copy(b, kolo_seg(KOLO_BUF_DST, (int32_t)me, 1), kolo_seg(KOLO_BUF_SRC, (int32_t)me, 1));
    return kolo_builder_finish(b, plan);
}
