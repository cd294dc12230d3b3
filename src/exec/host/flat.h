/* SPDX-License-Identifier: Apache-2.0
 *
 * What the flat loops share. A flat loop is one operation of a few kilobytes at most, in one pass: put my lines,
 * read the others' in rank order, done. It follows the plan of the one-step or direct algorithm, without
 * interpreting it; the tests compare its trace with that plan.
 */
#ifndef KOLO_EXEC_HOST_FLAT_H
#define KOLO_EXEC_HOST_FLAT_H

#include "exec/host/task.h"
#include "wire/ll.h"

/* task->flat.state; the second pair are those of the second step. */
enum { KOLO_FLAT_PUT, KOLO_FLAT_GET, KOLO_FLAT_PUT_RESULT, KOLO_FLAT_GET_RESULT };

extern const kolo_task_way_t kolo_flat_way;

/* Returns the step function that runs a collective (flat_steps.c, flat_two.c); NULL if none does. */
kolo_task_step_fn_t kolo_flat_step(kolo_coll_t coll);
kolo_task_step_fn_t kolo_flat_two_step(kolo_coll_t coll);

/* Returns the rank that is read as the i-th, 0 <= i < nranks - 1: each rank starts after itself, so that not all
 * read the same writer's lines at once. */
static inline uint32_t kolo_flat_turn(const kolo_task_t *task, uint32_t i)
{
    uint32_t r = task->rank + 1 + i;
    return r < task->flat.nranks ? r : r - task->flat.nranks;
}

/* Copies `bytes` from line `first` on of the message in `rx`, as far as it is there: KOLO_OK when complete.
 * task->flat.done holds what was copied until then. */
static inline kolo_status_t kolo_flat_get(kolo_task_t *task, const kolo_rx_t *rx, size_t first, void *dst,
                                          size_t bytes, uint32_t signature)
{
    bool mismatch = false;
    if (KOLO_UNLIKELY(bytes == 0)) {
        if (!kolo_ll_arrived(rx, first)) return KOLO_IN_PROGRESS;
        mismatch = kolo_ll_line_signature(kolo_ll_rx_line(rx, first)) != signature;
    } else {
        task->flat.done = kolo_ll_get(rx, first, dst, bytes, task->flat.done, signature, &mismatch);
    }
    if (KOLO_UNLIKELY(mismatch)) return kolo_task_mismatch(task, rx, bytes, bytes);
    if (task->flat.done < bytes) return KOLO_IN_PROGRESS;
    task->flat.done = 0;
    return KOLO_OK;
}

/* Tells whether this line of the message in `rx` is there. For `bytes` that fit one: the caller takes them. */
static inline kolo_status_t kolo_flat_line(kolo_task_t *task, const kolo_rx_t *rx, size_t line, size_t bytes,
                                           uint32_t signature)
{
    if (!kolo_ll_arrived(rx, line)) return KOLO_IN_PROGRESS;
    if (KOLO_UNLIKELY(kolo_ll_line_signature(kolo_ll_rx_line(rx, line)) != signature))
        return kolo_task_mismatch(task, rx, bytes, bytes);
    return KOLO_OK;
}

/* Returns where the operand from rank r is copied to. */
static inline void *kolo_flat_operand(const kolo_task_t *task, uint32_t r)
{
    return task->flat.ll_temp + (size_t)r * KOLO_FLAT_MAX;
}

#define KOLO_FLAT_AHEAD 3 /* misses overlap: lines of so many ranks ahead are on their way */

#endif
