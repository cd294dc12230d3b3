/* SPDX-License-Identifier: Apache-2.0
 *
 * What a staged communicator has, and how it comes and goes. Everything is allocated here: a driver may wait for
 * the whole device when it allocates, and a stream that waits for this thread would never let it go on.
 */
#include "base/log.h"
#include "base/process.h"
#include "gpu/staged/staged.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t staging_bytes;

static const kolo_param_t rows[] = {
    {.key = "KOLO_GPU_STAGING_SIZE",
     .kind = KOLO_PARAM_SIZE,
     .def = "16M",
     .min = 1 << 20,
     .max = INT64_C(1) << 32,
     .must_agree = true,
     .help = "Pinned host memory of a communicator of GPUs that works through host memory, in bytes",
     .value = &staging_bytes},
};
const kolo_param_table_t kolo_exec_staged_params = {
    .module = "exec_staged", .rows = rows, .count = KOLO_COUNTOF(rows)};

/* Pins memory which a peer on this host may read by process_vm_readv(2). */
kolo_status_t kolo_staged_pin(kolo_staged_t *s, size_t bytes, char **at)
{
    kolo_staged_pinned_t *pinned = calloc(1, sizeof *pinned);
    void *p = NULL;
    if (!pinned) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a GPU communicator");
    int mode = KOLO_CU_CAPTURE_RELAXED; /* the program may be capturing */
    s->api->capture_mode(&mode);
    kolo_status_t status = kolo_cuda_take_pages(s->device, bytes, &p);
    s->api->capture_mode(&mode);
    if (status != KOLO_OK) {
        free(pinned);
        return status;
    }
    *pinned = (kolo_staged_pinned_t){.next = s->pinned, .at = p, .bytes = bytes};
    s->pinned = pinned;
    *at = p;
    return KOLO_OK;
}

static kolo_status_t make_memory(kolo_staged_t *s)
{
    char *p;
    s->room_bytes = s->message_bytes = (size_t)staging_bytes;
    s->slot_bytes = s->room_bytes / KOLO_STAGED_DEPTH / 4096 * 4096;
    if (s->slot_bytes < 16ull * (uint64_t)s->nranks)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "KOLO_GPU_STAGING_SIZE=%zu is not enough for %d ranks",
                         s->room_bytes, s->nranks);
    KOLO_TRY(kolo_staged_pin(s, KOLO_STAGED_WORDS_BYTES + s->room_bytes, &p));
    memset(p, 0, KOLO_STAGED_WORDS_BYTES); /* it may have been another communicator's */
    s->words = (uint32_t *)p;
    s->room = s->message_room = p + KOLO_STAGED_WORDS_BYTES;
    s->words[0] = s->words[1] = s->number;
    return kolo_staged_done(s, s->api->host_device_pointer(&s->words_device, p, 0), "map pinned host memory");
}

static kolo_status_t open_entered(kolo_staged_t *s)
{
    if (!s->api->stream_wait_word || !s->api->stream_write_word)
        return kolo_fail(
            KOLO_ERR_UNSUPPORTED,
            "the driver of GPU %d has no stream memory operations: one of CUDA 11.7 or newer is needed",
            s->device->ordinal);
    s->counts = calloc((size_t)s->nranks, sizeof *s->counts);
    if (!s->counts) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %d ranks", s->nranks);
    KOLO_TRY(make_memory(s));
    KOLO_TRY(kolo_cuda_order_open(&s->order, s->device));
    int err = kolo_thread_start(&s->thread, 0, kolo_staged_work, s);
    if (err) return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "cannot start a thread for GPU %d", s->device->ordinal);
    s->started = true;
    return KOLO_OK;
}

static void free_state(void *state)
{
    kolo_staged_t *s = state;
    bool pushed = false;
    if (s->api && s->device && kolo_cuda_enter(s->device, &pushed) == KOLO_OK) {
        kolo_cuda_order_close(&s->order);
        kolo_cuda_leave(pushed);
    }
    for (kolo_staged_op_t *op; (op = kolo_staged_pop(&s->queue));) free(op);
    for (kolo_staged_op_t *op = s->captured, *next; op; op = next) {
        next = op->next_captured;
        free(op);
    }
    for (kolo_staged_pinned_t *p; (p = s->pinned);) {
        s->pinned = p->next;
        kolo_cuda_give_pages(s->device, p->bytes, p->at);
        free(p);
    }
    kolo_staged_free_copies(s);
    pthread_mutex_destroy(&s->lock);
    free(s->counts);
    free(s);
}

static void close_state(void *state)
{
    kolo_staged_t *s = state;
    if (!s) return;
    if (s->started) {
        atomic_store(&s->stopping, 1);
        kolo_gate_open(&s->gate);
        pthread_join(s->thread, NULL);
        kolo_staged_end_replays(s);
    }
    kolo_cuda_graphs_leave(&s->order, free_state, s);
    kolo_cuda_graphs_sweep();
}

static kolo_status_t open_state(const kolo_exec_env_t *env, void **state)
{
    bool pushed;
    kolo_cuda_graphs_sweep();
    kolo_staged_t *s = calloc(1, sizeof *s);
    if (!s) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a GPU communicator");
    s->env = *env;
    s->rank = kolo_oob_rank(env->ctx->oob);
    s->nranks = kolo_oob_nranks(env->ctx->oob);
    s->queue.tail = &s->queue.head;
    s->replays.tail = &s->replays.head;
    s->pairs_used = 1;
    s->number = env->start;
    pthread_mutex_init(&s->lock, NULL);
    kolo_status_t status = kolo_cuda_load(&s->api);
    if (status == KOLO_OK) status = kolo_cuda_device(env->device, &s->device);
    if (status == KOLO_OK) status = kolo_cuda_enter(s->device, &pushed);
    if (status == KOLO_OK) {
        status = open_entered(s);
        kolo_cuda_leave(pushed);
    }
    if (status == KOLO_OK) status = kolo_oob_barrier(env->ctx->oob); /* all have it, or none */
    if (status != KOLO_OK) {
        close_state(s);
        return status;
    }
    *state = s;
    kolo_info("exec", "rank %d: GPU %d (%s, %s), staged in %zu bytes of pinned memory, pieces of %zu", s->rank,
              env->device, s->device->name, s->device->bus_id, s->room_bytes, s->slot_bytes);
    return KOLO_OK;
}

static void cancel(void *state)
{
    kolo_staged_t *s = state;
    atomic_store(&s->cancelled, 1);
    kolo_gate_open(&s->gate);
}

static bool gave_up(const void *state)
{
    const kolo_staged_t *s = state;
    return atomic_load(&s->dropped);
}

static void awaited(void *state, char *buf, size_t bytes)
{
    (void)state; /* the host's operation has said it */
    if (bytes) buf[0] = 0;
}

static size_t memory(const void *state)
{
    (void)state;
    return 0; /* none on the device */
}

/* Streams of one context share queues of the hardware: one rank's wait would keep the other's copies behind it. */
static bool serves(const kolo_exec_gpus_t *gpus, char why[KOLO_EXEC_WHY])
{
    if (*gpus->crowded)
        snprintf(why, KOLO_EXEC_WHY, "%.170s: through host memory that is possible in processes of their own only",
                 gpus->crowded);
    else
        snprintf(why, KOLO_EXEC_WHY, "each rank of a process has a GPU");
    return !*gpus->crowded;
}

const kolo_exec_ops_t kolo_exec_staged = {.name = "staged",
                                          .needs = "a GPU for each rank of a process",
                                          .by_host = true,
                                          .params = &kolo_exec_staged_params,
                                          .serves = serves,
                                          .open = open_state,
                                          .launch = kolo_staged_launch,
                                          .check = kolo_staged_check,
                                          .follow = kolo_staged_follow,
                                          .poll = kolo_staged_poll,
                                          .cancel = cancel,
                                          .gave_up = gave_up,
                                          .awaited = awaited,
                                          .memory = memory,
                                          .close = close_state};
