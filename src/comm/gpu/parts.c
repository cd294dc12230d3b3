/* SPDX-License-Identifier: Apache-2.0
 *
 * What a part of a hierarchical GPU communicator (levels.c) knows, in the words of the whole: it numbers its ranks
 * from 0 on, and hears news by connections of its own.
 */
#include "base/failpoint.h"
#include "comm/call/call.h"

int kolo_device_levels_rank(const kolo_body_t *body, int rank)
{
    return body->levels.owner ? body->levels.owner_ranks[rank] : rank;
}

void kolo_device_levels_tell(kolo_body_t *part)
{
    kolo_difference_t d;
    if (!part->levels.owner || !kolo_diag_found_difference(part->oob, &d)) return;
    d.rank = kolo_device_levels_rank(part, d.rank);
    d.other = kolo_device_levels_rank(part, d.other);
    KOLO_FAIL_POINT("comm.device.tell_whole");
    kolo_diag_note_difference(part->levels.owner->oob, &d);
}

kolo_status_t kolo_device_levels_hear(kolo_body_t *body, kolo_status_t status)
{
    kolo_body_t *parts[] = {body->levels.inside, body->levels.across};
    bool lost = false;
    if (status != KOLO_ERR_ABORTED && status != KOLO_ERR_REMOTE) return status;
    for (int i = 0; i < 2; i++) {
        uint32_t stop = parts[i] && !atomic_load(&body->stop.reason) ? atomic_load(&parts[i]->stop.reason) : 0;
        if (stop == KOLO_STOP_MISMATCH) kolo_device_levels_tell(parts[i]);
        lost = lost || stop == KOLO_STOP_LOST || stop == KOLO_STOP_PARTITION;
    }
    return lost ? KOLO_ERR_REMOTE : status;
}
