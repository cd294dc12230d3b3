/* SPDX-License-Identifier: Apache-2.0
 *
 * How far the clocks of ranks are apart. No rank comes out of an all_reduce before all have gone in, so the times
 * at which a rank enters and leaves one bound its clock from both sides against rank 0's: what is added to this
 * clock to get rank 0's is at least (rank 0 enters) - (this rank leaves), and at most (rank 0 leaves) - (this rank
 * enters). Some rounds, the best of both bounds: the error is half of what is left between them, a few microseconds
 * within a machine. All ranks learn theirs at once, so a thousand ranks cost no more than two of the same distance.
 */
#include "engine/timeline/timeline.h"

#define ROUNDS 16

kolo_status_t kolo_clock_compare(struct kolo_tensor_engine *e)
{
    uint64_t mine[2][ROUNDS], roots[2][ROUNDS];
    uint32_t in = 0, out;
    for (int i = 0; i < ROUNDS; i++) {
        mine[0][i] = kolo_now_ns();
        KOLO_TRY(kolo_all_reduce(&in, &out, 1, KOLO_UINT32, KOLO_MAX, e->all->comm, NULL));
        mine[1][i] = kolo_now_ns();
    }
    KOLO_TRY(kolo_broadcast(mine, roots, sizeof mine / sizeof(uint64_t), KOLO_UINT64, 0, e->all->comm, NULL));
    int64_t least = INT64_MIN, most = INT64_MAX;
    for (int i = 0; i < ROUNDS; i++) {
        least = KOLO_MAX(least, (int64_t)(roots[0][i] - mine[1][i]));
        most = KOLO_MIN(most, (int64_t)(roots[1][i] - mine[0][i]));
    }
    e->clock_ns = mine[1][ROUNDS - 1];
    e->clock_offset_ns = e->rank == 0 ? 0 : least + (most - least) / 2;
    e->clock_error_ns = e->rank == 0 ? 0 : (uint64_t)(most - least) / 2;
    if (e->timeline) kolo_trace_clock(e);
    return KOLO_OK;
}
