/* SPDX-License-Identifier: Apache-2.0
 *
 * Starting flat tasks, what they wait for, and the two point-to-point ones, which are one message on a connection
 * of their own.
 */
#include "exec/host/flat.h"

kolo_status_t kolo_flat_loop(kolo_algo_t algo, kolo_coll_t coll, kolo_task_step_fn_t *loop)
{
    kolo_task_step_fn_t step = algo == KOLO_ALGO_DIRECT ? kolo_flat_two_step(coll) : NULL;
    if (!step) step = kolo_flat_step(coll);
    if (!step)
        return kolo_fail(KOLO_ERR_INTERNAL, "there is no loop over lines for %s by %s", kolo_coll_name(coll),
                         kolo_plan_algo_name(algo));
    *loop = step;
    return KOLO_OK;
}

void kolo_flat_start(kolo_task_t *task, kolo_task_step_fn_t loop)
{
    task->step = loop;
    task->way = &kolo_flat_way;
    task->flat.state = KOLO_FLAT_PUT;
    task->flat.at = task->flat.polls = 0;
    task->flat.done = 0;
}

static void trace_message(kolo_task_t *t, const kolo_conn_spec_t *spec, kolo_dir_t dir)
{
    kolo_trace_step_t step = {.peer = dir == KOLO_DIR_TX ? spec->reader : spec->writer,
                              .dir = (uint8_t)dir,
                              .buf = dir == KOLO_DIR_TX ? KOLO_BUF_SRC : KOLO_BUF_DST};
    kolo_task_trace(t, &step);
}

static kolo_status_t step_send(kolo_task_t *t, bool *moved)
{
    kolo_tx_t *tx = t->flat.ll_tx;
    if (!kolo_tx_ready(tx)) return KOLO_IN_PROGRESS;
    kolo_ll_begin(tx, t->signature, t->operation);
    kolo_ll_put(tx, 0, t->flat.src, t->flat.count * t->reducer->elem,
                kolo_ll_signature(t->signature, t->operation));
    kolo_ll_post(tx);
    trace_message(t, &tx->spec, KOLO_DIR_TX);
    *moved = true;
    return KOLO_OK;
}

static kolo_status_t step_recv(kolo_task_t *t, bool *moved)
{
    kolo_rx_t *rx = t->flat.ll_rx[0];
    size_t before = t->flat.done;
    kolo_status_t status = kolo_flat_get(t, rx, 0, t->flat.dst, t->flat.count * t->reducer->elem,
                                         kolo_ll_signature(t->signature, t->operation));
    *moved |= t->flat.done != before;
    if (status != KOLO_OK) return status;
    kolo_ll_release(rx);
    trace_message(t, &rx->spec, KOLO_DIR_RX);
    *moved = true;
    return KOLO_OK;
}

static kolo_status_t start_message(kolo_task_t *task, kolo_task_step_fn_t step)
{
    task->step = step;
    task->way = &kolo_flat_way;
    task->flat.done = 0;
    return KOLO_OK;
}

kolo_status_t kolo_flat_start_send(kolo_task_t *task)
{
    task->flat.state = KOLO_FLAT_PUT;
    return start_message(task, step_send);
}

kolo_status_t kolo_flat_start_recv(kolo_task_t *task)
{
    task->flat.state = KOLO_FLAT_GET;
    return start_message(task, step_recv);
}

static kolo_status_t visit_waits(kolo_task_t *t, kolo_task_visit_fn_t visit, void *arg)
{
    if (t->flat.state == KOLO_FLAT_PUT || t->flat.state == KOLO_FLAT_PUT_RESULT)
        return visit(t->flat.ll_tx, NULL, "room in the queue to", arg);
    if (t->step == step_recv) return visit(NULL, t->flat.ll_rx[0], "data from", arg);
    if (t->flat.at + 1 >= t->flat.nranks) return KOLO_OK;
    return visit(NULL, t->flat.ll_rx[kolo_flat_turn(t, t->flat.at)], "data from", arg);
}

static void cancel(kolo_task_t *task)
{
    (void)task; /* lines are read by this process itself */
}

static const char *algorithm(const kolo_task_t *task)
{
    (void)task;
    return "flat";
}

const kolo_task_way_t kolo_flat_way = {visit_waits, cancel, algorithm};
