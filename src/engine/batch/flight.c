/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches in flight: what is packed, reduced or unpacked, on which devices, and what its end completes.
 */
#include "engine/batch/native.h"
#include "engine/timeline/timeline.h"

#include <stdio.h>
#include <stdlib.h>

#define CPU_BIT (UINT32_C(1) << KOLO_USE_CPU)

bool kolo_flight_is_free(const kolo_flight_t *flight)
{
    return atomic_load(&flight->state) == KOLO_FLIGHT_FREE;
}

void kolo_flight_free(kolo_flight_t *flight)
{
    for (int i = 0; i < 2; i++) {
        kolo_use_unpin(flight->on, flight->scratch[i]);
        free(flight->scratch[i]);
        flight->scratch[i] = NULL;
    }
    flight->on = NULL;
    flight->nentries = 0;
    atomic_store(&flight->state, KOLO_FLIGHT_FREE);
}

kolo_status_t kolo_flight_status(struct kolo_tensor_engine *e, const kolo_flight_t *flight)
{
    kolo_status_t result = KOLO_OK;
    for (int i = 0; i < KOLO_USES; i++) {
        if (!(flight->uses >> i & 1)) continue;
        kolo_use_t *use = flight->set ? flight->end : atomic_load(&e->devices->uses[i]);
        kolo_status_t status = use->ops->reached(use->queue, flight->marks[i]);
        if (status == KOLO_IN_PROGRESS) return status;
        if (status != KOLO_OK) result = kolo_fail_prefix(status, "device %d: ", i);
    }
    return result == KOLO_OK && flight->set ? kolo_native_result(e, flight) : result;
}

/* Leaves the times of a flight that a GPU has come to the end of, for the loop to put into the timeline. */
static void leave_times(struct kolo_tensor_engine *e, kolo_flight_t *flight)
{
    kolo_devices_t *d = e->devices;
    kolo_late_t *late = flight->late;
    flight->late = NULL;
    for (int i = 0; i < flight->nsteps; i++) {
        if (kolo_use_time(flight->steps[i].use, flight->steps[i].stamp, &late->ns[i]) != KOLO_OK) break;
        late->what[late->nsteps++] = flight->steps[i].what;
    }
    pthread_mutex_lock(&d->lock);
    *d->late_tail = late;
    d->late_tail = &late->next;
    atomic_store(&e->has_late, true);
    pthread_mutex_unlock(&d->lock);
}

void kolo_flight_finish(struct kolo_tensor_engine *e, kolo_flight_t *flight, kolo_status_t status)
{
    kolo_tensors_t *lane = flight->lane;
    size_t n = flight->nentries;
    char text[KOLO_ERROR_TEXT_BYTES];
    for (size_t i = 0; i < n && status != KOLO_OK; i++) {
        snprintf(text, sizeof text, "tensor %.511s: its result was lost: %.400s",
                 flight->entries[i]->request.name.text, kolo_error_text());
        kolo_entry_fail(flight->entries[i], status, text);
    }
    if (flight->late) {
        kolo_late_ended(flight->late, status);
        leave_times(e, flight);
    }
    kolo_tensors_finish(lane, flight->entries, n);
    atomic_fetch_sub(&lane->nelsewhere, n);
    kolo_flight_free(flight);
    kolo_engine_kick(e); /* the loop may wait for the flight, or to send a join */
}

/* Completes what the CPU's thread has done, in order, or waits for it. */
static kolo_status_t settle(struct kolo_tensor_engine *e, kolo_flight_t *flight)
{
    kolo_use_t *cpu = atomic_load(&e->devices->uses[KOLO_USE_CPU]);
    if (atomic_load(&flight->state) != KOLO_FLIGHT_SETTLING) return KOLO_OK;
    KOLO_TRY(kolo_use_wait(e, cpu, flight->marks[KOLO_USE_CPU], "unpacking of tensors"));
    kolo_flight_finish(e, flight, KOLO_OK);
    return KOLO_OK;
}

/* Waits for the finisher, which has the other flights and opens the gate when one of them is over. */
kolo_status_t kolo_flight_await(struct kolo_tensor_engine *e, kolo_flight_t *flight)
{
    kolo_wait_t wait;
    KOLO_TRY(settle(e, flight));
    kolo_wait_init(&wait, NULL, 0, NULL, NULL, 1);
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(e->gate);
        if (kolo_flight_is_free(flight)) return KOLO_OK;
        KOLO_TRY(kolo_engine_status(e));
        KOLO_TRY(kolo_gate_wait(e->gate, ticket, &wait));
    }
}

static kolo_status_t grow(kolo_flight_t *flight, size_t nentries, size_t nlifts)
{
    if (nentries > flight->entries_room) {
        kolo_entry_t **entries = realloc(flight->entries, nentries * sizeof(kolo_entry_t *));
        if (!entries) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %zu tensors", nentries);
        flight->entries = entries;
        flight->entries_room = nentries;
    }
    if (nlifts > flight->lifts_room) {
        kolo_lift_t *lifts = realloc(flight->lifts, nlifts * sizeof *lifts);
        if (!lifts) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %zu copies", nlifts);
        flight->lifts = lifts;
        flight->lifts_room = nlifts;
    }
    return KOLO_OK;
}

kolo_status_t kolo_flight_take(struct kolo_tensor_engine *e, kolo_tensors_t *lane, size_t n, size_t nlifts,
                               kolo_flight_t **out)
{
    kolo_devices_t *d = e->devices;
    kolo_flight_t *flight = NULL;
    for (int i = 0; i < KOLO_FLIGHTS && !flight; i++)
        if (kolo_flight_is_free(&d->flights[i])) flight = &d->flights[i];
    /* What is taken already (the next batch, begun ahead) is the caller's own and would never come to its end. */
    for (int i = 0; i < KOLO_FLIGHTS && !flight; i++) {
        if (atomic_load(&d->flights[d->next_flight].state) != KOLO_FLIGHT_TAKEN)
            flight = &d->flights[d->next_flight];
        d->next_flight = (d->next_flight + 1) % KOLO_FLIGHTS;
    }
    if (!flight) return kolo_fail(KOLO_ERR_INTERNAL, "engine: all %d flights of devices are taken", KOLO_FLIGHTS);
    if (!kolo_flight_is_free(flight)) KOLO_TRY(kolo_flight_await(e, flight));
    KOLO_TRY(grow(flight, n, nlifts));
    flight->lane = lane;
    flight->uses = 0;
    flight->now = true;
    flight->buffer = -1;
    flight->nentries = flight->nlifts = 0;
    flight->set = NULL;
    flight->nsteps = 0;
    atomic_store(&flight->state, KOLO_FLIGHT_TAKEN);
    *out = flight;
    return KOLO_OK;
}

kolo_status_t kolo_fusion_settle(struct kolo_tensor_engine *e)
{
    for (int i = 0; i < KOLO_FLIGHTS; i++) KOLO_TRY(settle(e, &e->devices->flights[i]));
    return KOLO_OK;
}

size_t kolo_flight_hand_over(struct kolo_tensor_engine *e, kolo_flight_t *flight)
{
    bool devices = flight->uses & ~CPU_BIT;
    size_t n = flight->nentries;
    if (devices) flight->uses &= ~CPU_BIT; /* whose part is done */
    atomic_fetch_add(&flight->lane->nelsewhere, flight->nentries);
    atomic_store(&flight->state, devices ? KOLO_FLIGHT_FINISHING : KOLO_FLIGHT_SETTLING);
    if (devices) kolo_finisher_wake(e);
    return n;
}
