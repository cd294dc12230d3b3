/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of the driver beside the caller, who does not wait for them without end. See beside.h.
 */
#include "mem/cuda/beside.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/process.h"
#include "base/wait.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define END_MS 1000

/* Ends that are under way, and whether one of them was not waited for to its end: then others are not, either. */
static _Atomic int ending;
static _Atomic bool late;

typedef struct {
    const kolo_cuda_device_t *device;
    void (*fn)(void *arg);
    void *arg;
    _Atomic bool done;
    _Atomic int users; /* the caller and the thread; the last one frees it */
} beside_t;

static void leave(beside_t *b)
{
    if (atomic_fetch_sub(&b->users, 1) == 1) free(b);
}

static void run(const beside_t *b)
{
    int mode = KOLO_CU_CAPTURE_RELAXED; /* another thread may be capturing */
    bool pushed = false;
    if (kolo_cuda_enter(b->device, &pushed) != KOLO_OK) kolo_error_clear();
    kolo_cuda_loaded()->capture_mode(&mode);
    b->fn(b->arg);
    kolo_cuda_loaded()->capture_mode(&mode);
    kolo_cuda_leave(pushed);
}

static void *work(void *arg)
{
    beside_t *b = arg;
    run(b);
    atomic_store(&b->done, true);
    leave(b);
    return NULL;
}

static bool is_done(void *arg)
{
    return atomic_load(&((beside_t *)arg)->done);
}

/* ---- waiting ---- */

typedef struct {
    const kolo_cuda_device_t *device;
    const char *what;
} awaited_t;

static void describe(void *arg, char *buf, size_t bytes)
{
    const awaited_t *a = arg;
    snprintf(buf, bytes,
             "GPU %d (%s)" KOLO_WAIT_FOR "it to %s, which the driver does only when the GPU has done all that is "
             "queued (does a stream of this program wait for something that has yet to come?)",
             a->device->ordinal, a->device->bus_id, a->what);
}

kolo_status_t kolo_cuda_beside_wait(const kolo_cuda_device_t *device, bool (*through)(void *arg), void *arg,
                                    uint64_t deadline_ns, const char *what)
{
    awaited_t a = {device, what};
    kolo_status_t status = KOLO_OK;
    kolo_wait_t wait;
    kolo_wait_init(&wait, NULL, deadline_ns, describe, &a, 1);
    while (!through(arg) && (status = kolo_wait_pause(&wait)) == KOLO_OK) {
    }
    kolo_wait_end(&wait);
    return status != KOLO_OK && through(arg) ? KOLO_OK : status;
}

kolo_status_t kolo_cuda_beside(const kolo_cuda_device_t *device, void (*fn)(void *arg), void *arg,
                               uint64_t deadline_ns, const char *what)
{
    beside_t here = {.device = device, .fn = fn, .arg = arg}, *b = malloc(sizeof *b);
    if (b) {
        *b = here;
        atomic_init(&b->users, 2);
    }
    if (!b || kolo_thread_start(NULL, 0, work, b)) {
        free(b);
        run(&here);
        return KOLO_OK;
    }
    kolo_status_t status = kolo_cuda_beside_wait(device, is_done, b, deadline_ns, what);
    leave(b);
    return status;
}

/* ---- ends ---- */

typedef struct {
    const kolo_cuda_device_t *device;
    kolo_cu_ptr_t at;
} end_t;

static const char closing[] = "close a mapping of another process's memory";

static void close_idle(void *arg)
{
    const end_t *e = arg;
    kolo_cu_result_t r = kolo_cuda_loaded()->ipc_close(e->at);
    if (!r) return;
    kolo_cuda_fail(r, e->device->ordinal, closing);
    kolo_info("cuda", "%s", kolo_error_text());
    kolo_error_clear();
}

static void finish(void *arg)
{
    end_t *e = arg;
    kolo_cuda_when_idle(e->device, close_idle, e);
    free(e);
    if (atomic_fetch_sub(&ending, 1) == 1) atomic_store(&late, false);
}

void kolo_cuda_close_mapping(const kolo_cuda_device_t *device, kolo_cu_ptr_t at)
{
    end_t *e = at ? malloc(sizeof *e) : NULL;
    if (!e) return; /* what is mapped stays so: better than a wait without end */
    *e = (end_t){device, at};
    atomic_fetch_add(&ending, 1);
    kolo_status_t status =
        kolo_cuda_beside(device, finish, e, kolo_deadline_ms(atomic_load(&late) ? 1 : END_MS), closing);
    if (status == KOLO_OK) return;
    atomic_store(&late, true);
    kolo_error_clear();
    kolo_info("cuda",
              "GPU %d: a mapping of another process's memory is closed when the GPU has done what is queued",
              device->ordinal);
}
