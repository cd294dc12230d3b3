/* SPDX-License-Identifier: Apache-2.0
 *
 * What the interpreter and the flat loops share inside the executor.
 */
#ifndef KOLO_EXEC_HOST_TASK_H
#define KOLO_EXEC_HOST_TASK_H

#include "exec/host/exec.h"

/* Fails with a message that has both sides in words: the slot that `rx` shows is not of this task. `bytes` is what
 * was expected, `got` what the slot says; equal when only the operations differ. */
kolo_status_t kolo_task_mismatch(kolo_task_t *task, const kolo_rx_t *rx, uint64_t bytes, uint64_t got);

typedef kolo_status_t (*kolo_task_visit_fn_t)(kolo_tx_t *tx, kolo_rx_t *rx, const char *what, void *arg);
typedef struct kolo_task_way {
    /* The connections that keep the task from going on (of all lanes). Stops at the first status that is not
     * KOLO_OK. */
    kolo_status_t (*visit_waits)(kolo_task_t *task, kolo_task_visit_fn_t visit, void *arg);
    void (*cancel)(kolo_task_t *task); /* as kolo_task_cancel() */
    const char *(*algorithm)(const kolo_task_t *task);
} kolo_task_way_t;
/* Passes the fail point of the instruction's kind. */
kolo_status_t kolo_interp_fail_point(const kolo_insn_t *in);

/* Records one step where a trace was asked for. */
void kolo_task_trace_step(kolo_task_t *task, const kolo_trace_step_t *step);
static inline void kolo_task_trace(kolo_task_t *task, const kolo_trace_step_t *step)
{
    if (KOLO_UNLIKELY(task->trace != NULL)) kolo_task_trace_step(task, step);
}

#endif
