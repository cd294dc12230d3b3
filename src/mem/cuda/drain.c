/* SPDX-License-Identifier: Apache-2.0
 *
 * Waiting for a stream with a deadline, which the driver's own call has not: another stream of the program may hold
 * a GPU's copies up for as long as it likes. See cuda.h.
 */
#include "base/wait.h"
#include "mem/cuda/cuda.h"

#include <stdio.h>

typedef struct {
    const kolo_cuda_device_t *device;
    const char *what;
} drain_t;

static void describe(void *arg, char *buf, size_t bytes)
{
    const drain_t *d = arg;
    snprintf(buf, bytes,
             "GPU %d (%s)" KOLO_WAIT_FOR "it to %s (does a stream of this program, or another program, hold "
             "this GPU up? nvidia-smi shows who uses it)",
             d->device->ordinal, d->device->bus_id, d->what);
}

kolo_status_t kolo_cuda_drain(const kolo_cuda_device_t *device, kolo_cu_stream_t stream, uint64_t deadline_ns,
                              const char *what)
{
    drain_t d = {device, what};
    kolo_status_t status = KOLO_OK;
    kolo_cu_result_t r;
    kolo_wait_t wait;
    kolo_wait_init(&wait, NULL, deadline_ns, describe, &d, 1);
    while ((r = kolo_cuda_stream_query(stream)) == KOLO_CU_NOT_READY &&
           (status = kolo_wait_pause(&wait)) == KOLO_OK) {
    }
    kolo_wait_end(&wait);
    return r && status == KOLO_OK ? kolo_cuda_fail(r, device->ordinal, what) : status;
}
