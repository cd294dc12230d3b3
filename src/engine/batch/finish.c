/* SPDX-License-Identifier: Apache-2.0
 *
 * The finisher: a thread that looks at what devices have not done yet, so that the loop need not. Tensors whose
 * ready event has not passed wait here and are handed to the loop once it has; tensors that are being unpacked on a
 * device are completed from here. It is there from the first tensor on that needs it, and sleeps while there are
 * none.
 *
 * What a device does wrong before a reduction ends the engine on all ranks, for the others would reduce with what
 * is no input; afterwards it fails the tensors of this rank alone.
 */
#include "base/log.h"
#include "base/process.h"
#include "engine/batch/device.h"
#include "engine/batch/perform.h"
#include "engine/timeline/timeline.h"

#include <stdio.h>
#include <string.h>

int kolo_finisher_end_ms = 10000;

/* ---- events ---- */

static void report(struct kolo_tensor_engine *e, const kolo_entry_t *entry, kolo_status_t status)
{
    kolo_devices_t *d = e->devices;
    char title[KOLO_TENSOR_NAME_MAX + 16];
    if (atomic_load(&d->failed)) return;
    d->failure = status;
    snprintf(d->failure_text, sizeof d->failure_text, "engine: the input of %s never came to be: device %d: %.400s",
             kolo_tensor_request_title(&entry->request, title, sizeof title), entry->use ? entry->use->number : -1,
             kolo_error_text());
    atomic_store(&d->failed, true);
    kolo_engine_kick(e);
}

/* Hands on what has passed. Tells whether anything has; *poll: what is left has to be asked again. */
static bool look_at_events(struct kolo_tensor_engine *e, bool *poll)
{
    kolo_devices_t *d = e->devices;
    bool moved = false;
    kolo_entry_t **end = &d->waiting;
    while (*end) end = &(*end)->next;
    *end = kolo_queue_take_held(&e->queue);
    for (kolo_entry_t **at = &d->waiting, *entry; (entry = *at) != NULL;) {
        kolo_status_t status = entry->use ? entry->use->ops->passed(entry->use->queue, entry->ready)
                                          : kolo_event_query((kolo_event_t)entry->ready);
        if (status != KOLO_OK) {
            if (status != KOLO_IN_PROGRESS) report(e, entry, status);
            *poll |= !entry->use || !entry->use->ops->tells;
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        kolo_tensors_release(entry);
        moved = true;
    }
    if (moved) kolo_engine_kick(e);
    return moved;
}

/* ---- flights ---- */

/* Completes what is done; *left: how many are not. */
static bool look_at_flights(struct kolo_tensor_engine *e, int *left, bool *poll)
{
    kolo_devices_t *d = e->devices;
    bool moved = false;
    *left = 0;
    for (int i = 0; i < KOLO_FLIGHTS; i++) {
        kolo_flight_t *flight = &d->flights[i];
        if (atomic_load(&flight->state) != KOLO_FLIGHT_FINISHING) continue;
        kolo_status_t status = kolo_flight_status(e, flight);
        if (status != KOLO_IN_PROGRESS) {
            kolo_flight_finish(e, flight, status);
            moved = true;
            continue;
        }
        ++*left;
        for (int u = 0; u < KOLO_USES; u++)
            if (flight->uses >> u & 1) *poll |= !atomic_load(&d->uses[u])->ops->tells;
    }
    return moved;
}

void kolo_finisher_publish(struct kolo_tensor_engine *e)
{
    kolo_devices_t *d = e->devices;
    if (KOLO_LIKELY(!atomic_load_explicit(&e->has_late, memory_order_acquire))) return;
    pthread_mutex_lock(&d->lock);
    kolo_late_t *late = d->late;
    d->late = NULL;
    d->late_tail = &d->late;
    pthread_mutex_unlock(&d->lock);
    for (kolo_late_t *next; late; late = next) {
        next = late->next;
        kolo_late_put(e, late);
        kolo_late_free(late);
    }
    pthread_mutex_lock(&d->lock); /* who stops a timeline waits for this */
    atomic_store(&e->has_late, d->late != NULL);
    pthread_mutex_unlock(&d->lock);
}

/* ---- the thread ---- */

static void describe_sleep(void *arg, char *buf, size_t bytes)
{
    (void)arg;
    snprintf(buf, bytes, "devices to have done their work");
}

static void *finisher_main(void *arg)
{
    struct kolo_tensor_engine *e = arg;
    kolo_devices_t *d = e->devices;
    kolo_wait_t wait;
    pthread_setname_np(pthread_self(), "kolo-finisher");
    kolo_engine_enter(e);
    kolo_wait_init(&wait, NULL, 0, describe_sleep, NULL, 1);
    for (;;) {
        bool poll = false;
        int left;
        uint32_t ticket = kolo_gate_ticket(&d->gate);
        uint64_t end = atomic_load(&d->end_ns);
        bool moved = !end && look_at_events(e, &poll);
        moved |= look_at_flights(e, &left, &poll);
        if (end && (left == 0 || kolo_now_ns() > end)) break;
        wait.deadline_ns = end;
        if (!moved && poll) {
            kolo_wait_pause(&wait);
            continue;
        }
        kolo_wait_renew(&wait); /* to have nothing to do is no stall */
        if (!moved) kolo_gate_wait(&d->gate, ticket, &wait);
    }
    kolo_wait_end(&wait);
    return NULL;
}

kolo_status_t kolo_finisher_start(struct kolo_tensor_engine *e)
{
    kolo_devices_t *d = e->devices;
    int error = 0;
    pthread_mutex_lock(&d->lock);
    if (!d->started && !atomic_load(&d->end_ns)) {
        error = kolo_thread_start(&d->finisher, 0, finisher_main, e);
        d->started = !error;
    }
    pthread_mutex_unlock(&d->lock);
    return error ? kolo_fail_errno(KOLO_ERR_SYSTEM, error, "engine: cannot start a thread") : KOLO_OK;
}

/* Waits for what queues still read and write: it belongs to the user as soon as its tensors are complete. */
static void quiesce(kolo_use_t *use, uint64_t end_ns)
{
    uint64_t mark;
    kolo_wait_t wait;
    kolo_status_t status = kolo_use_mark(use, &mark);
    kolo_wait_init(&wait, NULL, end_ns, describe_sleep, NULL, 1);
    while (status == KOLO_OK) {
        status = use->ops->reached(use->queue, mark);
        if (status != KOLO_IN_PROGRESS) break;
        status = kolo_wait_pause(&wait);
    }
    kolo_wait_end(&wait);
    use->stuck = status == KOLO_ERR_TIMEOUT;
    if (status != KOLO_OK)
        kolo_warn("engine", "device %d (%s) still has work of an engine that ends, or has failed: %s", use->number,
                  kolo_use_name(use), kolo_error_text());
}

void kolo_finisher_stop(struct kolo_tensor_engine *e)
{
    kolo_devices_t *d = e->devices;
    uint64_t end_ns = kolo_deadline_ms(kolo_finisher_end_ms);
    pthread_mutex_lock(&d->lock);
    bool started = d->started;
    d->started = false;
    atomic_store(&d->end_ns, end_ns);
    pthread_mutex_unlock(&d->lock);
    kolo_finisher_wake(e);
    if (started) pthread_join(d->finisher, NULL);
    for (int i = 0; i < KOLO_USES; i++) {
        kolo_use_t *use = atomic_load(&d->uses[i]), *each;
        for (int k = 0; use && k < KOLO_USE_QUEUES; k++) {
            if (!(each = kolo_use_queue(use, k))) continue;
            quiesce(each, end_ns);
            use->stuck |= each->stuck;
        }
    }
    const kolo_use_t *cpu = atomic_load(&d->uses[KOLO_USE_CPU]);
    if (!cpu || !cpu->stuck) kolo_fusion_settle(e);
}
