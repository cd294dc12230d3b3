/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU as a device: a thread that packs and unpacks while the loop reduces. Where there is nothing to overlap,
 * the loop does the same work itself (kolo_lift_now), and this thread sleeps or is not there at all.
 */
#include "engine/batch/device.h"

#include <stdlib.h>
#include <string.h>

void kolo_lift_now(const kolo_lift_t *list, size_t n)
{
    for (const kolo_lift_t *l = list; l < list + n; l++) {
        if (!l->from)
            kolo_values_fill_identity(l->to, l->count, l->type, l->op);
        else if (l->factor != 1.0)
            kolo_values_scale(l->to, l->from, l->count, l->type, l->factor);
        else if (l->count > 0)
            memcpy(l->to, l->from, l->count * kolo_type_size(l->type));
    }
}

typedef struct {
    kolo_stream_t stream;
    void (*tell)(void *arg);
    void *arg;
    uint64_t queued; /* jobs */
    _Atomic uint64_t done;
} cpu_t;

typedef struct {
    cpu_t *cpu;
    const kolo_lift_t *list;
    size_t n;
} job_t;

static kolo_status_t open_queue(int device, void (*tell)(void *arg), void *arg, void **queue)
{
    cpu_t *c = calloc(1, sizeof *c);
    (void)device;
    if (!c) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for a thread that packs");
    c->tell = tell;
    c->arg = arg;
    kolo_status_t status = kolo_stream_create(&c->stream);
    if (status == KOLO_OK)
        *queue = c;
    else
        free(c);
    return status;
}

static void close_queue(void *queue)
{
    cpu_t *c = queue;
    kolo_stream_destroy(c->stream);
    free(c);
}

static void run(void *arg)
{
    job_t *job = arg;
    cpu_t *c = job->cpu;
    kolo_lift_now(job->list, job->n);
    free(job);
    atomic_fetch_add(&c->done, 1);
    c->tell(c->arg);
}

static kolo_status_t lift(void *queue, const kolo_lift_t *list, size_t n)
{
    cpu_t *c = queue;
    job_t *job = malloc(sizeof *job);
    if (!job) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for a thread that packs");
    *job = (job_t){c, list, n};
    kolo_status_t status = kolo_stream_call(c->stream, run, job);
    if (status == KOLO_OK)
        c->queued++;
    else
        free(job);
    return status;
}

static kolo_status_t mark(void *queue, uint64_t *at)
{
    *at = ((cpu_t *)queue)->queued;
    return KOLO_OK;
}

static kolo_status_t reached(void *queue, uint64_t at)
{
    return atomic_load(&((cpu_t *)queue)->done) >= at ? KOLO_OK : KOLO_IN_PROGRESS;
}

/* Its fusion buffers are the host's, so nothing is fetched or stored. */
const kolo_mem_queue_ops_t kolo_cpu_ops = {
    .tells = true, .open = open_queue, .close = close_queue, .lift = lift, .mark = mark, .reached = reached};
