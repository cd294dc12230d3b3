/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches in flight: what is packed, reduced or unpacked, on which devices, and what its end completes.
 */
#include "engine/batch/device.h"

#include <stdio.h>
#include <stdlib.h>

#define CPU_BIT (UINT32_C(1) << KOLO_USE_CPU)

bool kolo_job_is_free(const kolo_job_t *job)
{
    return atomic_load(&job->state) == KOLO_JOB_FREE;
}

void kolo_job_free(kolo_job_t *job)
{
    for (int i = 0; i < 2; i++) {
        kolo_use_unpin(job->on, job->scratch[i]);
        free(job->scratch[i]);
        job->scratch[i] = NULL;
    }
    job->on = NULL;
    job->nentries = 0;
    atomic_store(&job->state, KOLO_JOB_FREE);
}

kolo_status_t kolo_job_status(struct kolo_tensor_engine *e, const kolo_job_t *job)
{
    kolo_status_t result = KOLO_OK;
    for (int i = 0; i < KOLO_USES; i++) {
        if (!(job->uses >> i & 1)) continue;
        kolo_use_t *use = atomic_load(&e->devices->uses[i]);
        kolo_status_t status = use->ops->reached(use->queue, job->marks[i]);
        if (status == KOLO_IN_PROGRESS) return status;
        if (status != KOLO_OK) result = kolo_fail_prefix(status, "device %d: ", i);
    }
    return result;
}

void kolo_job_finish(struct kolo_tensor_engine *e, kolo_job_t *job, kolo_status_t status)
{
    kolo_lane_t *lane = job->lane;
    size_t n = job->nentries;
    char text[KOLO_ERROR_TEXT_BYTES];
    for (size_t i = 0; i < n && status != KOLO_OK; i++) {
        snprintf(text, sizeof text, "tensor %.511s: its result was lost: %.400s",
                 job->entries[i]->request.name.text, kolo_error_text());
        kolo_entry_fail(job->entries[i], status, text);
    }
    kolo_lane_finish(lane, job->entries, n);
    atomic_fetch_sub(&lane->nelsewhere, n);
    kolo_job_free(job);
    kolo_engine_kick(e); /* the loop may wait for the job, or to send a join */
}

/* Completes what the CPU's thread has done, in order, or waits for it. */
static kolo_status_t settle(struct kolo_tensor_engine *e, kolo_job_t *job)
{
    kolo_use_t *cpu = atomic_load(&e->devices->uses[KOLO_USE_CPU]);
    if (atomic_load(&job->state) != KOLO_JOB_SETTLING) return KOLO_OK;
    KOLO_TRY(kolo_use_wait(e, cpu, job->marks[KOLO_USE_CPU], "unpacking of tensors"));
    kolo_job_finish(e, job, KOLO_OK);
    return KOLO_OK;
}

/* The other jobs are the finisher's, which opens the gate when one of them is over. */
kolo_status_t kolo_job_await(struct kolo_tensor_engine *e, kolo_job_t *job)
{
    kolo_wait_t wait;
    KOLO_TRY(settle(e, job));
    kolo_wait_init(&wait, NULL, 0, NULL, NULL, 1);
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(e->gate);
        if (kolo_job_is_free(job)) return KOLO_OK;
        KOLO_TRY(kolo_engine_status(e));
        KOLO_TRY(kolo_gate_wait(e->gate, ticket, &wait));
    }
}

kolo_status_t kolo_job_take(struct kolo_tensor_engine *e, kolo_lane_t *lane, size_t n, kolo_job_t **out)
{
    kolo_devices_t *d = e->devices;
    kolo_job_t *job = NULL;
    for (int i = 0; i < KOLO_JOBS && !job; i++)
        if (kolo_job_is_free(&d->jobs[i])) job = &d->jobs[i];
    /* What is taken already (the next batch, begun ahead) is the caller's own and would never come to its end. */
    for (int i = 0; i < KOLO_JOBS && !job; i++) {
        if (atomic_load(&d->jobs[d->next_job].state) != KOLO_JOB_TAKEN) job = &d->jobs[d->next_job];
        d->next_job = (d->next_job + 1) % KOLO_JOBS;
    }
    if (!job) return kolo_fail(KOLO_ERR_INTERNAL, "engine: all %d jobs of devices are taken", KOLO_JOBS);
    if (!kolo_job_is_free(job)) KOLO_TRY(kolo_job_await(e, job));
    if (n > job->entries_room) {
        kolo_entry_t **entries = realloc(job->entries, n * sizeof(kolo_entry_t *));
        if (entries) job->entries = entries;
        kolo_lift_t *lifts = realloc(job->lifts, n * sizeof *lifts);
        if (lifts) job->lifts = lifts;
        if (!entries || !lifts) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %zu tensors", n);
        job->entries_room = n;
    }
    job->lane = lane;
    job->uses = 0;
    job->now = true;
    job->buffer = -1;
    job->nentries = job->nlifts = 0;
    atomic_store(&job->state, KOLO_JOB_TAKEN);
    *out = job;
    return KOLO_OK;
}

kolo_status_t kolo_fusion_settle(struct kolo_tensor_engine *e)
{
    for (int i = 0; i < KOLO_JOBS; i++) KOLO_TRY(settle(e, &e->devices->jobs[i]));
    return KOLO_OK;
}

size_t kolo_job_hand_over(struct kolo_tensor_engine *e, kolo_job_t *job)
{
    bool devices = job->uses & ~CPU_BIT;
    size_t n = job->nentries;
    if (devices) job->uses &= ~CPU_BIT; /* whose part is done */
    atomic_fetch_add(&job->lane->nelsewhere, job->nentries);
    atomic_store(&job->state, devices ? KOLO_JOB_FINISHING : KOLO_JOB_SETTLING);
    if (devices) kolo_finisher_wake(e);
    return n;
}
