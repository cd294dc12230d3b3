/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor of a communicator on a device, from the meeting of the ranks to its end: finalize and destroy wait
 * until the device is through. What it runs comes from on_device.c; when a rank is lost, the news end the
 * kernels (stop.c).
 */
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "comm/call/call.h"
#include "comm/window/window.h"
#include "mem/cuda/cuda.h"

#include <stdio.h>

#define CANCEL_MS 10000 /* kernels look every millisecond whether they are to end */

kolo_exec_tuned_t kolo_device_tuned(const kolo_body_t *body)
{
    kolo_tune_gpu_t gpu;
    kolo_tune_gpu((uint32_t)body->nranks, &gpu);
    return (kolo_exec_tuned_t){.profile = body->gpu.profile,
                               .ll_all_reduce = gpu.ll_all_reduce,
                               .ll_others = gpu.ll_others,
                               .ll128_all_reduce = gpu.ll128_all_reduce,
                               .ll128_others = gpu.ll128_others,
                               .message_lines = gpu.message_lines,
                               .ll128_two = gpu.ll128_two,
                               .give = gpu.give,
                               .pipe = gpu.pipe};
}

static kolo_status_t forced_plan(void *arg, const kolo_exec_plan_ask_t *ask, kolo_plan_t **plan)
{
    const kolo_body_t *body = arg;
    kolo_way_t way = kolo_device_way(ask->coll, ask->uneven);
    kolo_emit_env_t env = body->choice.emit;
    *plan = NULL;
    if (way.algo == KOLO_ALGO_COUNT || (env.one_fold && kolo_coll_reduces(ask->coll))) return KOLO_OK;
    env.rank = ask->rank;
    env.root = ask->root;
    env.fanout = way.lines;
    env.refs = !ask->slots;
    if (ask->slots && way.algo == KOLO_ALGO_SINGLE_COPY) way.algo = KOLO_ALGO_DIRECT; /* every collective has it */
    kolo_status_t status = kolo_algo_emit(ask->coll, way.algo, &env, plan);
    return status == KOLO_OK ? KOLO_OK : kolo_fail_prefix(status, "KOLO_ALGO on GPUs: ");
}

bool kolo_device_forces_plans(void)
{
    for (int c = 0; c < KOLO_COLL_P2P; c++)
        if (kolo_tune_forced((kolo_coll_t)c).algo != KOLO_ALGO_COUNT) return true;
    return false;
}

kolo_status_t kolo_device_open(kolo_body_t *body)
{
    const kolo_exec_ops_t *exec = NULL;
    void *state = NULL;
    if (body->gpu.device < 0) return KOLO_OK;
    KOLO_TRY(kolo_device_meet(body, &exec));
    body->ctx.deadline_ns = kolo_deadline_ms(body->init_timeout_ms);
    kolo_exec_env_t env = {.ctx = &body->ctx,
                           .device = body->gpu.device,
                           .tuned = kolo_device_tuned(body),
                           .host = &kolo_device_host,
                           .host_arg = &body->gpu.host_side,
                           .start = (uint32_t)kolo_comm_options.counter_start,
                           .by_pci = body->gpu.by_pci,
                           .one_fold = body->choice.emit.one_fold,
                           .plan = kolo_device_forces_plans() ? forced_plan : NULL,
                           .plan_arg = body,
                           .levels = kolo_device_levels_open,
                           .levels_arg = body};
    body->gpu.host_side = (kolo_host_side_t){body, body};
    int mode = kolo_cuda_uncaptured();
    kolo_status_t status = exec->open(&env, &state);
    kolo_cuda_captured(mode);
    body->ctx.deadline_ns = 0;
    if (status != KOLO_OK) return status;
    body->gpu.exec = exec;
    atomic_store(&body->gpu.state, state);
    if (atomic_load(&body->stop.reason)) kolo_device_cancel(body);
    return kolo_device_watch_start(body);
}

static void describe(void *arg, char *buf, size_t bytes)
{
    const kolo_body_t *body = arg;
    snprintf(buf, bytes, "the operations that %s rank %d has queued on GPU %d", body->name, body->rank,
             body->gpu.device);
}

/* Waits for the kernels. What has come to its end with its results is complete, whatever comes meanwhile. */
static kolo_status_t wait_done(kolo_body_t *body, const _Atomic uint32_t *abort, uint64_t deadline)
{
    kolo_wait_t wait;
    char what[160];
    kolo_status_t status, now;
    void *state = atomic_load(&body->gpu.state);
    kolo_wait_init(&wait, abort, deadline, describe, body, 1);
    while ((status = body->gpu.exec->poll(state)) == KOLO_IN_PROGRESS) {
        KOLO_FAIL_POINT("comm.device.not_done");
        if (atomic_load(&body->gpu.cancelled)) kolo_window_device_release(body);
        if ((status = kolo_wait_pause(&wait)) == KOLO_OK) continue;
        now = body->gpu.exec->poll(state);
        if (now != KOLO_IN_PROGRESS) status = now;
        break;
    }
    kolo_wait_end(&wait);
    if (status != KOLO_OK || !abort || !atomic_load(abort)) return status;
    if (!body->gpu.exec->gave_up(state) && !kolo_window_device_released(body)) return KOLO_OK;
    describe(body, what, sizeof what);
    return kolo_fail(KOLO_ERR_ABORTED, "aborted while waiting for %s", what);
}

/* Waits as long as it takes, like an operation on the CPU: op_timeout_ms, a lost rank or an abort ends what waits
 * (watch.c). */
kolo_status_t kolo_device_drain(kolo_body_t *body)
{
    if (!atomic_load(&body->gpu.state)) return KOLO_OK;
    return wait_done(body, &body->gpu.cancelled, 0);
}

/* Ends what runs on the host for the executor. */
static void stop_host(kolo_body_t *body)
{
    uint32_t none = KOLO_STOP_NONE;
    if (!body->gpu.exec->by_host) return;
    atomic_compare_exchange_strong(&body->stop.reason, &none, KOLO_STOP_ABORT);
    kolo_waker_wake(&body->ctx.waker);
    kolo_device_levels_stop(body);
}

void kolo_device_close(kolo_body_t *body)
{
    char awaited[160];
    void *state = atomic_load(&body->gpu.state);
    if (!state) return;
    kolo_device_watch_alone(body);
    kolo_status_t status = kolo_device_drain(body);
    if (status != KOLO_OK) {
        body->gpu.exec->cancel(state);
        stop_host(body);
        status = wait_done(body, NULL, kolo_deadline_ms(CANCEL_MS));
        body->gpu.exec->awaited(state, awaited, sizeof awaited);
        if (*awaited) kolo_info("comm", "%s rank %d: %s", body->name, body->rank, awaited);
    }
    kolo_device_watch_stop(body);
    kolo_device_levels_look_away(body);
    atomic_store(&body->gpu.state, NULL);
    if (status != KOLO_OK) { /* what a kernel may still write to is not given back */
        body->windows = NULL;
        kolo_warn("comm", "%s rank %d keeps its memory on GPU %d: its kernels have not ended: %s", body->name,
                  body->rank, body->gpu.device, kolo_error_text());
        return;
    }
    int mode = kolo_cuda_uncaptured();
    body->gpu.exec->close(state);
    kolo_cuda_captured(mode);
    kolo_device_levels_close(body);
}
