/* SPDX-License-Identifier: Apache-2.0
 *
 * What an engine has open on devices, and where the memory of a submission is.
 */
#include "engine/batch/device.h"
#include "comm/comm.h"
#include "mem/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t kolo_engine_overlap, kolo_engine_gpu_overlap, kolo_engine_gpu_streams;

/* ---- of an engine ---- */

kolo_status_t kolo_engine_devices_open(struct kolo_tensor_engine *e, int number, kolo_use_t **use)
{
    kolo_devices_t *d = e->devices;
    *use = atomic_load(&d->uses[number]);
    if (*use) return KOLO_OK;
    pthread_mutex_lock(&d->lock);
    *use = atomic_load(&d->uses[number]);
    kolo_status_t status = *use ? KOLO_OK : kolo_use_open(e, number, use);
    if (status == KOLO_OK) atomic_store(&d->uses[number], *use);
    pthread_mutex_unlock(&d->lock);
    return status;
}

kolo_status_t kolo_engine_devices_init(struct kolo_tensor_engine *e, kolo_comm_t comm)
{
    const kolo_member_t *m = &comm->body->member;
    /* Bound or not, two threads of each rank can run at once. */
    bool room = kolo_cores() >= 2 && kolo_cores_of_node(m, m->my_node) >= 2 * (uint32_t)e->place.local_size;
    e->devices = calloc(1, sizeof *e->devices);
    if (!e->devices) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine_init: out of memory");
    kolo_cuda_load_if_used();
    e->devices->late_tail = &e->devices->late;
    pthread_mutex_init(&e->devices->lock, NULL);
    e->devices->overlap =
        kolo_engine_overlap == KOLO_OVERLAP_ON || (kolo_engine_overlap == KOLO_OVERLAP_AUTO && room);
    return KOLO_OK;
}

/* Keeps for good what devices that are stuck may still read, write and tell, should they come back one day. */
static void keep(kolo_devices_t *d)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static kolo_devices_t *kept;
    pthread_mutex_lock(&lock);
    d->next = kept;
    kept = d;
    pthread_mutex_unlock(&lock);
}

void kolo_engine_devices_fini(struct kolo_tensor_engine *e)
{
    kolo_devices_t *d = e->devices;
    bool stuck = false;
    if (!d) return;
    kolo_fusion_fini(e);
    for (int i = 0; i < KOLO_USES; i++) {
        kolo_use_t *use = atomic_load(&d->uses[i]);
        if (!use) continue;
        stuck |= use->stuck;
        if (use->stuck) {
            for (int k = 0; k < KOLO_USE_QUEUES; k++)
                if (kolo_use_queue(use, k)) kolo_use_forget(kolo_use_queue(use, k));
            continue;
        }
        kolo_use_close(use);
        atomic_store(&d->uses[i], NULL);
    }
    e->devices = NULL;
    if (stuck) {
        keep(d);
        return;
    }
    pthread_mutex_destroy(&d->lock);
    free(d);
}

/* ---- submissions ---- */

static int owner_of(const void *memory)
{
    kolo_mem_place_t place = {.device = -1};
    if (memory) kolo_mem_find(memory, &place);
    return place.device < 0 ? KOLO_DEVICE_CPU : place.device;
}

/* Checks whose memory it is; NULL counts as anybody's. */
static kolo_status_t check_owner(const kolo_entry_t *entry, const void *memory, int device, const char *which,
                                 const char *what)
{
    int owner = owner_of(memory);
    if (!memory || owner == device) return KOLO_OK;
    const char *name = entry->request.name.text;
    if (owner == KOLO_DEVICE_CPU)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: tensor %s: its %s is no memory of device %d", what, name,
                         which, device);
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: tensor %s: its %s is memory of device %d, not of %s", what,
                     name, which, owner,
                     device == KOLO_DEVICE_CPU ? "the CPU" : "that of its input or its submission");
}

/* Tells whether its event has passed. One that has failed is left to the finisher, which ends the engine: refused
 * here, this rank alone would know. */
static bool passed_already(kolo_entry_t *entry)
{
    kolo_status_t status = entry->use ? entry->use->ops->passed(entry->use->queue, entry->ready)
                                      : kolo_event_query((kolo_event_t)entry->ready);
    if (status != KOLO_OK && status != KOLO_IN_PROGRESS) kolo_error_clear();
    return status == KOLO_OK;
}

/* Has the stream of the device wait, and nobody else. The first tensor decides which GPU this rank works on. */
static kolo_status_t place_on_gpu(struct kolo_tensor_engine *e, const kolo_tensor_memory_t *memory,
                                  kolo_entry_t *entry, const char *what)
{
    int none = -1, number = entry->use->number;
    const kolo_tensor_request_t *q = &entry->request;
    size_t elem = kolo_type_size(q->type);
    const void *bad = (uintptr_t)entry->input % elem ? entry->input : entry->output;
    if ((uintptr_t)bad % elem) /* a kernel that meets it would take the whole process's GPU away */
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "%s: tensor %s: its address %p on GPU %d is no multiple of the %zu bytes of a %s", what,
                         q->name.text, bad, number, elem, kolo_tensor_request_type_name(q->type));
    atomic_compare_exchange_strong(&e->device, &none, number);
    bool adasum = q->work == KOLO_WORK_ALL_REDUCE && q->op == KOLO_ADASUM;
    entry->request.device = atomic_load(&e->device) == number && (!adasum || entry->use->ops->blend);
    entry->after = entry->ready;
    entry->ready = NULL;
    entry->stream = memory ? memory->stream : NULL;
    if (!entry->stream) return KOLO_OK;
    kolo_status_t status = entry->use->ops->note(entry->use->queue, entry->stream, &entry->note);
    return status == KOLO_OK ? KOLO_OK : kolo_fail_prefix(status, "%s: tensor %s: ", what, q->name.text);
}

kolo_status_t kolo_engine_devices_place(struct kolo_tensor_engine *e, const kolo_tensor_memory_t *memory,
                                        kolo_entry_t *entry, const char *what)
{
    if (!memory && KOLO_LIKELY(!kolo_mem_has_devices())) return KOLO_OK;
    int device = memory ? memory->device : owner_of(entry->input ? entry->input : entry->output);
    if (device != KOLO_DEVICE_CPU && (device < 0 || device >= KOLO_DEVICES_MAX))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: tensor %s: there is no device %d", what,
                         entry->request.name.text, device);
    if (device != KOLO_DEVICE_CPU) {
        kolo_status_t status = kolo_engine_devices_open(e, device, &entry->use);
        if (status != KOLO_OK) return kolo_fail_prefix(status, "%s: tensor %s: ", what, entry->request.name.text);
    }
    KOLO_TRY(check_owner(entry, entry->input, device, "input", what));
    if (entry->output != entry->input) KOLO_TRY(check_owner(entry, entry->output, device, "output", what));
    if (memory && memory->stream && !(entry->use && entry->use->ops->stream))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "%s: tensor %s: a stream comes with memory of a GPU; device %d has no streams", what,
                         entry->request.name.text, device);
    entry->ready = memory ? memory->ready : NULL;
    if (entry->ready && passed_already(entry)) entry->ready = NULL;
    if (entry->use && entry->use->ops->stream && entry->request.work < KOLO_WORK_JOIN)
        KOLO_TRY(place_on_gpu(e, memory, entry, what));
    return entry->use || entry->ready ? kolo_finisher_start(e) : KOLO_OK;
}
