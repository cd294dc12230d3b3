/* SPDX-License-Identifier: Apache-2.0
 *
 * What every file of this room may ask of the engine itself: whether a handle is one, who is calling, whether it
 * has failed; and how its threads are woken.
 */
#include "base/process.h"
#include "comm/comm.h"
#include "engine/batch/device.h"

static _Thread_local const struct kolo_tensor_engine *inside;

bool kolo_engine_is_inside(const struct kolo_tensor_engine *e)
{
    return inside == e;
}

void kolo_engine_enter(struct kolo_tensor_engine *e)
{
    inside = e;
}

kolo_status_t kolo_engine_check(kolo_tensor_engine_t e, const char *what)
{
    if (!e) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the engine is NULL", what);
    if (KOLO_LIKELY(kolo_slot_lives(e))) return kolo_process_check_own(e->forks, what, "engine");
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: %p is not an engine, or one that was shut down or aborted",
                     what, (void *)e);
}

void kolo_engine_kick(struct kolo_tensor_engine *e)
{
    kolo_gate_open(e->gate);
}

void kolo_finisher_wake(struct kolo_tensor_engine *e)
{
    kolo_gate_open(&e->devices->gate);
}

kolo_status_t kolo_engine_status(const struct kolo_tensor_engine *e)
{
    kolo_status_t status = KOLO_OK;
    if (atomic_load(&e->aborting)) return kolo_fail(KOLO_ERR_ABORTED, "engine: this rank has aborted it");
    if (KOLO_UNLIKELY(atomic_load(&e->devices->failed)))
        return kolo_fail(e->devices->failure, "%s", e->devices->failure_text);
    KOLO_TRY(kolo_comm_get_async_error(e->all->comm, &status));
    return status == KOLO_OK || status == KOLO_IN_PROGRESS
               ? KOLO_OK
               : kolo_fail(status, "%s", kolo_get_last_error(e->all->comm));
}
