/* SPDX-License-Identifier: Apache-2.0
 *
 * How much may wait. A send needs no receive, so a task that sends faster than the others receive would fill its
 * memory: the bytes of sends that wait in the tables of all steps are counted, and a send beyond the limit is
 * refused.
 *
 * Each step counts for itself, under the lock of its table, and takes from the manager's count more than it needs:
 * else the threads that send and those that receive would pull its line from each other with each value. What it
 * has spare is a small part of the limit (where the limit is small, nothing), and goes back when no send of it
 * waits.
 */
#include "rendezvous/internal.h"

#include <inttypes.h>

static uint64_t cost_of(const kolo_item_t *send)
{
    return sizeof *send + (send->args.memory == KOLO_MEMORY_HOST ? send->value.bytes : 0);
}

static uint64_t spare_for(const kolo_rendezvous_manager_t manager)
{
    return KOLO_MIN(manager->waits_most >> 16, UINT64_C(64) << 10);
}

/* Adds to the manager's count; false: too much waits. A value may be larger than the limit, if nothing waits.
 * *before: what was counted. */
static bool take(kolo_rendezvous_manager_t manager, uint64_t bytes, uint64_t *before)
{
    *before = atomic_fetch_add_explicit(&manager->waits, bytes, memory_order_relaxed);
    if (KOLO_LIKELY(*before == 0 || *before + bytes <= manager->waits_most)) return true;
    atomic_fetch_sub_explicit(&manager->waits, bytes, memory_order_relaxed);
    return false;
}

kolo_status_t kolo_rendezvous_begin_waiting(kolo_rendezvous_t rendezvous, const kolo_item_t *send)
{
    kolo_rendezvous_manager_t manager = rendezvous->manager;
    uint64_t cost = cost_of(send), before;
    if (KOLO_LIKELY(cost <= rendezvous->spare)) {
        rendezvous->spare -= cost;
        return KOLO_OK;
    }
    uint64_t need = cost - rendezvous->spare, more = spare_for(manager);
    if (!take(manager, need + more, &before)) {
        more = 0;
        if (!take(manager, need, &before))
            return kolo_fail(
                KOLO_ERR_NO_MEMORY,
                "no receive waits for its %" PRIu64 " bytes, and %" PRIu64
                " bytes that %s has sent wait already, of %" PRIu64
                " that may (KOLO_RENDEZVOUS_WAITING): the receivers are behind, or do not come; send again "
                "when they have received",
                send->value.bytes, before, manager->task, manager->waits_most);
    }
    rendezvous->waits += need + more;
    rendezvous->spare = more;
    return KOLO_OK;
}

void kolo_rendezvous_end_waiting(kolo_rendezvous_t rendezvous, const kolo_item_t *send)
{
    rendezvous->spare += cost_of(send);
    bool last = rendezvous->spare == rendezvous->waits;
    uint64_t keep = last ? 0 : spare_for(rendezvous->manager);
    if (KOLO_LIKELY(!last && rendezvous->spare <= 2 * keep)) return;
    uint64_t back = rendezvous->spare - keep;
    rendezvous->spare = keep;
    rendezvous->waits -= back;
    atomic_fetch_sub_explicit(&rendezvous->manager->waits, back, memory_order_relaxed);
}
