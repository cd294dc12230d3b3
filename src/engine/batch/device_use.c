/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of a device's queue, as the loop and the finisher call them: one thread at a time is in a queue, as
 * devices are promised (device.h).
 */
#include "engine/batch/device.h"

#include <stdio.h>

enum { STREAMS = 8 }; /* of the program, that a batch looks for at most */

static kolo_status_t leave(kolo_use_t *use, kolo_status_t status)
{
    pthread_mutex_unlock(&use->lock);
    return status;
}

const char *kolo_use_name(const kolo_use_t *use)
{
    return use->row ? use->row->name : "the CPU's packing";
}

kolo_status_t kolo_use_pin(kolo_use_t *use, void *host, size_t bytes)
{
    if (!use->ops->pin) return KOLO_OK;
    pthread_mutex_lock(&use->lock);
    return leave(use, use->ops->pin(use->queue, host, bytes));
}

void kolo_use_unpin(kolo_use_t *use, void *host)
{
    if (!use || !host || !use->ops->unpin) return;
    pthread_mutex_lock(&use->lock);
    use->ops->unpin(use->queue, host);
    pthread_mutex_unlock(&use->lock);
}

kolo_status_t kolo_use_lift(kolo_use_t *use, const kolo_lift_t *list, size_t n)
{
    pthread_mutex_lock(&use->lock);
    return leave(use, use->ops->lift(use->queue, list, n));
}

kolo_status_t kolo_use_products(kolo_use_t *use, const kolo_blend_t *list, size_t n, kolo_type_t type, double *room)
{
    pthread_mutex_lock(&use->lock);
    return leave(use, use->ops->products(use->queue, list, n, type, room));
}

kolo_status_t kolo_use_blend(kolo_use_t *use, const kolo_blend_t *list, size_t n, kolo_type_t type)
{
    pthread_mutex_lock(&use->lock);
    return leave(use, use->ops->blend(use->queue, list, n, type));
}

kolo_status_t kolo_use_fetch(kolo_use_t *use, void *host, const void *memory, size_t bytes)
{
    pthread_mutex_lock(&use->lock);
    return leave(use, use->ops->fetch(use->queue, host, memory, bytes));
}

kolo_status_t kolo_use_store(kolo_use_t *use, void *memory, const void *host, size_t bytes)
{
    pthread_mutex_lock(&use->lock);
    return leave(use, use->ops->store(use->queue, memory, host, bytes));
}

kolo_status_t kolo_use_mark(kolo_use_t *use, uint64_t *mark)
{
    pthread_mutex_lock(&use->lock);
    return leave(use, use->ops->mark(use->queue, mark));
}

kolo_status_t kolo_use_after(kolo_use_t *use, kolo_use_t *other, uint64_t mark)
{
    if (use == other || !mark) return KOLO_OK;
    pthread_mutex_lock(&use->lock);
    return leave(use, use->ops->wait(use->queue, other->ops->event_of(other->queue, mark)));
}

kolo_status_t kolo_use_follow(kolo_use_t *use, kolo_entry_t *entry, bool *waited)
{
    kolo_status_t status = KOLO_OK;
    if (!entry->after && !entry->note.event) return KOLO_OK;
    *waited = true;
    pthread_mutex_lock(&use->lock);
    if (entry->after) status = use->ops->wait(use->queue, entry->after);
    if (entry->note.event && status == KOLO_OK) status = use->ops->wait_note(use->queue, entry->note.event);
    entry->after = entry->note.event = NULL;
    return leave(use, status);
}

void kolo_use_follow_last(kolo_use_t *use, kolo_response_t *const *batch, size_t n)
{
    kolo_queue_note_t *last[STREAMS];
    int streams = 0;
    for (size_t i = 0; i < n; i++) {
        kolo_queue_note_t *note = batch[i]->entry ? &batch[i]->entry->note : NULL;
        int k = 0;
        if (!note || !note->event || !note->stream) continue;
        while (k < streams && last[k]->stream != note->stream) k++;
        if (k == STREAMS) continue;
        if (k == streams) last[streams++] = note;
        kolo_queue_note_t *earlier = note->number < last[k]->number ? note : last[k];
        if (note == last[k]) continue;
        if (earlier == last[k]) last[k] = note;
        use->ops->drop_note(use->queue, earlier->event);
        earlier->event = NULL;
    }
}

static kolo_status_t lead(kolo_use_t *use, uint64_t mark, void *stream)
{
    pthread_mutex_lock(&use->lock);
    return leave(use, use->ops->lead(use->queue, mark, stream));
}

kolo_status_t kolo_use_lead(kolo_use_t *use, uint64_t mark, kolo_response_t *const *batch, size_t n)
{
    void *led[STREAMS];
    int streams = 0;
    for (size_t i = 0; i < n; i++) {
        void *stream = batch[i]->entry ? batch[i]->entry->stream : NULL;
        int k = 0;
        if (!stream) continue;
        while (k < streams && led[k] != stream) k++;
        if (k < streams) continue;
        if (streams < STREAMS) led[streams++] = stream;
        KOLO_TRY(lead(use, mark, stream));
    }
    return KOLO_OK;
}

kolo_status_t kolo_use_stamp(kolo_use_t *use, uint64_t *stamp)
{
    pthread_mutex_lock(&use->lock);
    return leave(use, use->ops->stamp(use->queue, stamp));
}

kolo_status_t kolo_use_time(kolo_use_t *use, uint64_t stamp, uint64_t *ns)
{
    pthread_mutex_lock(&use->lock);
    return leave(use, use->ops->time_of(use->queue, stamp, ns));
}

static void describe_wait(void *arg, char *buf, size_t bytes)
{
    snprintf(buf, bytes, "%s", (const char *)arg);
}

kolo_status_t kolo_use_wait(struct kolo_tensor_engine *e, kolo_use_t *use, uint64_t mark, const char *what)
{
    char text[128];
    kolo_wait_t wait;
    snprintf(text, sizeof text, "%s: %s", kolo_use_name(use), what);
    kolo_wait_init(&wait, NULL, 0, describe_wait, text, 1);
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(e->gate);
        kolo_status_t status = use->ops->reached(use->queue, mark);
        if (status != KOLO_IN_PROGRESS) {
            kolo_wait_end(&wait);
            return status == KOLO_OK ? KOLO_OK : kolo_fail_prefix(status, "engine: device %d: ", use->number);
        }
        KOLO_TRY(kolo_engine_status(e));
        KOLO_TRY(use->ops->tells ? kolo_gate_wait(e->gate, ticket, &wait) : kolo_wait_pause(&wait));
    }
}
