/* SPDX-License-Identifier: Apache-2.0
 *
 * The slow half of what a communicator writes into its flight record: opening it with who is where, calls that wait
 * in a queue, waits that turn out to be long, and groups.
 */
#include "comm/call/call.h"

#include <stdio.h>

_Static_assert((int)KOLO_CALL_COLL == KOLO_RECORD_COLL && (int)KOLO_CALL_SEND == KOLO_RECORD_SEND &&
                   (int)KOLO_CALL_RECV == KOLO_RECORD_RECV && (int)KOLO_CALL_PUT == KOLO_RECORD_PUT &&
                   (int)KOLO_CALL_SIGNAL == KOLO_RECORD_SIGNAL && (int)KOLO_CALL_WAIT == KOLO_RECORD_WAIT,
               "a record names the kinds of calls by the same numbers");

void kolo_record_open(kolo_body_t *body)
{
    const kolo_member_t *m = &body->member;
    kolo_record_t *record = kolo_recorder_take();
    if (!record) return;
    pthread_mutex_lock(&body->handle->error_lock); /* an abort may come now */
    kolo_record_head_begin(record);
    kolo_record_head_t *h = &record->head;
    h->job = kolo_oob_job(body->oob);
    h->rank = body->rank;
    h->nranks = body->nranks;
    h->since_ns = kolo_now_ns();
    snprintf(h->name, sizeof h->name, "%s", body->name);
    snprintf(h->host, sizeof h->host, "%s", m->peers[body->rank].host_name);
    h->npeers = KOLO_MIN((uint32_t)body->nranks, (uint32_t)KOLO_RECORD_PEERS);
    for (uint32_t r = 0; r < h->npeers; r++)
        h->peers[r] = (kolo_record_peer_t){m->peers[r].pid, m->node_of[r] == m->my_node};
    kolo_record_head_end(record);
    body->track.record = (kolo_recording_t){.at = record};
    if (body->handle->error != KOLO_OK) kolo_record_failed(body);
    pthread_mutex_unlock(&body->handle->error_lock);
    kolo_ask_around_open(body);
}

void kolo_record_close(kolo_body_t *body)
{
    if (!body->track.record.at) return;
    kolo_ask_around_close(body);
    kolo_recorder_release(body->track.record.at);
    body->track.record = (kolo_recording_t){0};
}

void kolo_record_failed(kolo_body_t *body)
{
    kolo_record_t *record = body->track.record.at;
    if (!record) return;
    kolo_record_head_begin(record);
    __atomic_store_n(&record->head.status, (int32_t)body->handle->error, __ATOMIC_RELAXED);
    snprintf(record->head.error, sizeof record->head.error, "%s", body->handle->error_text);
    kolo_record_head_end(record);
}

void kolo_record_launched(kolo_body_t *body, const kolo_call_t *call, uint64_t number, uint64_t word, uint32_t algo)
{
    kolo_record_begin(&body->track.record, call, number, word, KOLO_RECORD_LAUNCHED, algo);
    body->track.record.now = NULL;
}

void kolo_record_device_waits(kolo_body_t *body, const kolo_record_waits_t *waits)
{
    kolo_record_t *record = body->track.record.at;
    if (!record) return;
    pthread_mutex_lock(&body->handle->error_lock);
    kolo_record_head_begin(record);
    record->head.waits = *waits;
    kolo_record_head_end(record);
    pthread_mutex_unlock(&body->handle->error_lock);
}

static bool is_open(const kolo_record_entry_t *e)
{
    uint32_t state = atomic_load_explicit(&e->state, memory_order_acquire) & 0xff;
    return state == KOLO_RECORD_QUEUED || state == KOLO_RECORD_CONNECTING || state == KOLO_RECORD_RUNNING;
}

void kolo_record_queued(kolo_body_t *body, kolo_call_t *call)
{
    kolo_recording_t *r = &body->track.record;
    call->record = KOLO_RECORD_UNSEEN;
    /* a start in the background may be about to open the record */
    if (atomic_load_explicit(&body->handle->state, memory_order_acquire) == KOLO_COMM_STARTING || !r->at) return;
    uint64_t index = r->next;
    /* A queue longer than the record: what still waits keeps its place, and this one goes unrecorded. */
    if (is_open(&r->at->entries[index % KOLO_RECORD_ENTRIES])) return;
    kolo_record_entry_t *e = kolo_record_entry_begin(r->at, index);
    uint32_t what = kolo_record_what((kolo_record_kind_t)call->kind, call->elem, KOLO_RECORD_NO_ALGO);
    kolo_record_fill(e, (kolo_record_first_t){.word = kolo_mismatch_word(call),
                                              .count = call->count,
                                              .begun_ns = kolo_now_ns(),
                                              .root = call->root,
                                              .what = what,
                                              .state = KOLO_RECORD_QUEUED});
    kolo_record_entry_end(e, index);
    r->next = index + 1;
    call->record = index + 1;
}

static kolo_record_entry_t *entry_of(const kolo_recording_t *r, const kolo_call_t *call)
{
    if (call->record == 0 || call->record == KOLO_RECORD_UNSEEN || !r->at) return NULL;
    return &r->at->entries[(call->record - 1) % KOLO_RECORD_ENTRIES];
}

void kolo_record_resume(kolo_recording_t *r, const kolo_call_t *call, uint64_t number, uint64_t word,
                        kolo_record_state_t state, uint32_t algo)
{
    kolo_record_entry_t *e = entry_of(r, call);
    r->now = e;
    if (!e) return;
    uint64_t now = kolo_now_ns(), queued = atomic_load_explicit(&e->begun_ns, memory_order_relaxed);
    atomic_store_explicit(&e->number, number, memory_order_relaxed);
    atomic_store_explicit(&e->word, word, memory_order_relaxed);
    atomic_store_explicit(&e->queued_us, (uint32_t)KOLO_MIN((now - queued) / 1000, (uint64_t)UINT32_MAX),
                          memory_order_relaxed);
    atomic_store_explicit(&e->begun_ns, now, memory_order_relaxed);
    r->timed = true;
    kolo_record_state(r, state, algo);
}

void kolo_record_begin_whole(kolo_body_t *body, uint64_t number, uint64_t word)
{
    kolo_recording_t *r = &body->track.record;
    const kolo_call_t call = {.kind = KOLO_CALL_COLL};
    r->now = NULL;
    if (!body->life.blocking)
        return; /* it runs in the background, and the record belongs to the callers' threads */
    kolo_record_begin(r, &call, number, word, KOLO_RECORD_RUNNING, KOLO_RECORD_NO_ALGO);
    if (r->now) kolo_record_waits_slow(r);
}

static void end_entry(kolo_record_entry_t *e, uint64_t now, kolo_status_t status)
{
    atomic_store_explicit(&e->ended_ns, now, memory_order_relaxed);
    atomic_store_explicit(&e->state, kolo_record_end_state(status), memory_order_release);
}

void kolo_record_drop(kolo_body_t *body, const kolo_call_t *call, kolo_status_t status)
{
    kolo_record_entry_t *e = entry_of(&body->track.record, call);
    if (e && is_open(e)) end_entry(e, kolo_now_ns(), status);
}

void kolo_record_waits_slow(kolo_recording_t *r)
{
    r->timed = true;
    if (atomic_load_explicit(&r->now->begun_ns, memory_order_relaxed) == 0)
        atomic_store_explicit(&r->now->begun_ns, kolo_now_ns(), memory_order_relaxed);
}

void kolo_record_begin_pairs(kolo_body_t *body, kolo_call_t *calls, size_t count)
{
    kolo_recording_t *r = &body->track.record;
    if (!r->at) return;
    uint64_t now = kolo_now_ns();
    for (size_t i = 0; i < count; i++) {
        kolo_record_begin(r, &calls[i], body->track.operation, kolo_mismatch_word(&calls[i]), KOLO_RECORD_RUNNING,
                          KOLO_RECORD_NO_ALGO);
        if (!calls[i].record) calls[i].record = r->next;
        if (r->now) atomic_store_explicit(&r->now->begun_ns, now, memory_order_relaxed);
    }
    r->now = NULL;
}

void kolo_record_end_pairs(kolo_body_t *body, const kolo_call_t *calls, size_t count, kolo_status_t status)
{
    kolo_recording_t *r = &body->track.record;
    if (!r->at) return;
    uint64_t now = kolo_now_ns();
    for (size_t i = count > KOLO_RECORD_ENTRIES ? count - KOLO_RECORD_ENTRIES : 0; i < count; i++) {
        kolo_record_entry_t *e = entry_of(r, &calls[i]);
        if (e) end_entry(e, now, status);
    }
}
