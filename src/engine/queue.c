/* SPDX-License-Identifier: Apache-2.0
 *
 * The queue: tensors of this rank that are outstanding, by name and by handle. Any thread submits, the loop takes
 * what is new and gives back what is complete. One lock, held for moments; a submission costs it once, a batch of
 * completions too. Each process set has a lane of its own in it, for names are those of a set; handles are those of
 * the engine.
 */
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kolo_status_t kolo_queue_init(kolo_queue_t *queue)
{
    memset(queue, 0, sizeof *queue);
    queue->held_tail = &queue->held;
    pthread_mutex_init(&queue->lock, NULL);
    return KOLO_OK;
}

void kolo_queue_fini(kolo_queue_t *queue)
{
    for (size_t i = 0; i < queue->nslots; i++) kolo_entry_free(queue->slots[i].entry);
    for (kolo_entry_t *e = queue->waited, *next; e; e = next) {
        next = e->next;
        kolo_entry_free(e);
    }
    free(queue->slots);
    free(queue->unused);
    pthread_mutex_destroy(&queue->lock);
}

void kolo_tensors_init(kolo_tensors_t *lane, kolo_queue_t *queue, int set)
{
    memset(lane, 0, sizeof *lane);
    lane->queue = queue;
    lane->set = set;
    lane->fresh_tail = &lane->fresh;
}

void kolo_tensors_fini(kolo_tensors_t *lane)
{
    kolo_names_fini(&lane->names);
}

/* ---- handles: the number of a slot, and how often it was used ---- */

static kolo_status_t grow_handles(kolo_queue_t *queue)
{
    size_t n = queue->nslots ? queue->nslots * 2 : 64;
    kolo_handle_slot_t *slots = realloc(queue->slots, n * sizeof *slots);
    if (slots) queue->slots = slots;
    size_t *unused = realloc(queue->unused, n * sizeof *unused);
    if (unused) queue->unused = unused;
    if (!slots || !unused) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %zu handles", n);
    for (size_t i = n; i > queue->nslots; i--) {
        slots[i - 1] = (kolo_handle_slot_t){NULL, 1};
        unused[queue->nunused++] = i - 1;
    }
    queue->nslots = n;
    return KOLO_OK;
}

static void take_handle(kolo_queue_t *queue, kolo_entry_t *entry, int64_t *handle)
{
    size_t i = queue->unused[--queue->nunused];
    queue->slots[i].entry = entry;
    entry->handle = (int64_t)((uint64_t)queue->slots[i].generation << 32 | i);
    *handle = entry->handle;
}

static void free_handle(kolo_queue_t *queue, const kolo_entry_t *entry)
{
    size_t i = (size_t)(entry->handle & UINT32_MAX);
    queue->slots[i].entry = NULL;
    queue->slots[i].generation = (queue->slots[i].generation + 1) & INT32_MAX;
    queue->unused[queue->nunused++] = i;
}

static kolo_entry_t *entry_of(const kolo_queue_t *queue, int64_t handle)
{
    uint64_t i = (uint64_t)handle & UINT32_MAX;
    kolo_entry_t *entry = handle >= 0 && i < queue->nslots ? queue->slots[i].entry : NULL;
    return entry && entry->handle == handle ? entry : NULL;
}

static kolo_status_t find_handle(const kolo_queue_t *queue, int64_t handle, kolo_entry_t **entry)
{
    *entry = entry_of(queue, handle);
    if (*entry) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                     "engine: handle %lld is none, or was waited for already; each is waited for once",
                     (long long)handle);
}

/* ---- submitting ---- */

static kolo_status_t refuse(const kolo_tensors_t *lane, const kolo_entry_t *entry)
{
    char title[KOLO_TENSOR_NAME_MAX + 16];
    kolo_tensor_request_title(&entry->request, title, sizeof title);
    if (lane->queue->closed != KOLO_OK)
        return kolo_fail(lane->queue->closed, "engine: %s comes too late, the engine has ended: %s", title,
                         lane->queue->closed_text);
    if (lane->closing)
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "engine: %s comes too late: process set %d is being removed",
                         title, lane->set);
    if (lane->joining)
        return kolo_fail(KOLO_ERR_INVALID_USAGE,
                         "engine: %s comes after this rank has joined; wait until the join is complete", title);
    return kolo_fail(KOLO_ERR_INVALID_USAGE,
                     "engine: %s is outstanding already: a name may be used again once its tensor is complete",
                     title);
}

static void append(kolo_tensors_t *lane, kolo_entry_t *entry)
{
    entry->next = NULL;
    *lane->fresh_tail = entry;
    lane->fresh_tail = &entry->next;
}

static kolo_status_t push(kolo_tensors_t *lane, kolo_entry_t *const *entries, int count, int64_t *handles)
{
    int i = 0;
    size_t nfresh = 0;
    kolo_status_t status = KOLO_OK;
    while (handles && lane->queue->nunused < (size_t)count) KOLO_TRY(grow_handles(lane->queue));
    for (; i < count; i++) {
        kolo_entry_t *e = entries[i];
        bool late = lane->queue->closed != KOLO_OK || lane->joining || lane->closing;
        status = late || kolo_names_find(&lane->names, &e->request.name)
                     ? refuse(lane, e)
                     : kolo_names_add(&lane->names, &e->request.name);
        if (status != KOLO_OK) break;
    }
    if (status != KOLO_OK) {
        while (i > 0) kolo_names_remove(&lane->names, &entries[--i]->request.name);
        return status;
    }
    for (i = 0; i < count; i++) {
        if (handles) take_handle(lane->queue, entries[i], &handles[i]);
        lane->joining |= entries[i]->request.work == KOLO_WORK_JOIN;
        entries[i]->lane = lane;
        if (KOLO_LIKELY(!entries[i]->ready)) {
            append(lane, entries[i]);
            nfresh++;
            continue;
        }
        entries[i]->next = NULL;
        *lane->queue->held_tail = entries[i];
        lane->queue->held_tail = &entries[i]->next;
    }
    atomic_fetch_add(&lane->nelsewhere, (size_t)count - nfresh);
    atomic_fetch_add(&lane->nfresh, nfresh);
    return KOLO_OK;
}

static void stamp(kolo_entry_t *const *entries, int count)
{
    uint64_t now = kolo_now_ns();
    for (int i = 0; i < count; i++) entries[i]->submitted_ns = now;
}

kolo_status_t kolo_tensors_push(kolo_tensors_t *lane, kolo_entry_t *const *entries, int count, int64_t *handles)
{
    if (KOLO_UNLIKELY(atomic_load_explicit(&lane->queue->stamping, memory_order_relaxed))) stamp(entries, count);
    pthread_mutex_lock(&lane->queue->lock);
    kolo_status_t status = push(lane, entries, count, handles);
    pthread_mutex_unlock(&lane->queue->lock);
    return status;
}

/* ---- the loop's side ---- */

kolo_entry_t *kolo_tensors_take(kolo_tensors_t *lane)
{
    if (atomic_load(&lane->nfresh) == 0) return NULL;
    pthread_mutex_lock(&lane->queue->lock);
    kolo_entry_t *first = lane->fresh;
    lane->fresh = NULL;
    lane->fresh_tail = &lane->fresh;
    atomic_store(&lane->nfresh, 0);
    pthread_mutex_unlock(&lane->queue->lock);
    return first;
}

/* ---- the finisher's side ---- */

kolo_entry_t *kolo_queue_take_held(kolo_queue_t *queue)
{
    pthread_mutex_lock(&queue->lock);
    kolo_entry_t *first = queue->held;
    queue->held = NULL;
    queue->held_tail = &queue->held;
    pthread_mutex_unlock(&queue->lock);
    return first;
}

void kolo_tensors_release(kolo_entry_t *entry)
{
    kolo_tensors_t *lane = entry->lane;
    pthread_mutex_lock(&lane->queue->lock);
    append(lane, entry);
    atomic_fetch_add(&lane->nfresh, 1);
    atomic_fetch_sub(&lane->nelsewhere, 1);
    pthread_mutex_unlock(&lane->queue->lock);
}

kolo_entry_t *kolo_tensors_find(kolo_tensors_t *lane, const kolo_name_t *name)
{
    pthread_mutex_lock(&lane->queue->lock);
    kolo_name_t *found = kolo_names_find(&lane->names, name);
    pthread_mutex_unlock(&lane->queue->lock);
    return (kolo_entry_t *)found;
}

size_t kolo_tensors_count(kolo_tensors_t *lane)
{
    pthread_mutex_lock(&lane->queue->lock);
    size_t count = lane->names.count;
    pthread_mutex_unlock(&lane->queue->lock);
    return count;
}

void kolo_tensors_oldest(kolo_tensors_t *lane, kolo_tensors_oldest_t *oldest)
{
    const kolo_entry_t *found = NULL;
    *oldest = (kolo_tensors_oldest_t){0};
    pthread_mutex_lock(&lane->queue->lock);
    for (size_t i = 0; i < lane->names.nbuckets; i++)
        for (const kolo_name_t *name = lane->names.buckets[i]; name; name = name->next) {
            const kolo_entry_t *entry = (const kolo_entry_t *)name;
            if (entry->taken_ns == 0 || entry->event) continue; /* not the loop's yet, or given to a device */
            oldest->count++;
            if (!found || entry->taken_ns < found->taken_ns) found = entry;
        }
    if (found) {
        oldest->taken_ns = found->taken_ns;
        kolo_tensor_request_title(&found->request, oldest->title, sizeof oldest->title);
    }
    pthread_mutex_unlock(&lane->queue->lock);
}

static void describe(const kolo_entry_t *e, kolo_completion_t *c)
{
    *c = (kolo_completion_t){.name = e->request.name.text,
                             .index = e->index,
                             .status = e->status,
                             .text = e->text ? e->text : "",
                             .output = e->status == KOLO_OK ? e->output : NULL,
                             .ndims = e->out_ndims,
                             .shape = e->out_shape,
                             .parts = e->parts,
                             .part_rows = e->part_rows,
                             .last_joined = e->last_joined,
                             .event = e->status == KOLO_OK ? e->event : NULL};
}

void kolo_queue_calls(const kolo_queue_t *queue, bool begins)
{
    if (queue->calls) queue->calls(queue->calls_arg, begins);
}

/* Completes entries: names first, so that a callback may submit the same name again; then callbacks, without the
 * lock; then those who wait, for whom everything has happened by then. */
void kolo_tensors_finish(kolo_tensors_t *lane, kolo_entry_t *const *entries, size_t count)
{
    kolo_completion_t completion;
    bool awaited = false, calls = false;
    pthread_mutex_lock(&lane->queue->lock);
    for (size_t i = 0; i < count; i++) {
        kolo_names_remove(&lane->names, &entries[i]->request.name);
        if (entries[i]->request.work == KOLO_WORK_JOIN) lane->joining = false;
        awaited |= entries[i]->handle >= 0;
        calls |= entries[i]->how.done != NULL;
    }
    pthread_mutex_unlock(&lane->queue->lock);
    if (calls) kolo_queue_calls(lane->queue, true);
    for (size_t i = 0; i < count; i++) {
        kolo_entry_t *e = entries[i];
        if (!e->how.done) continue;
        describe(e, &completion);
        e->how.done(e->how.arg, &completion);
    }
    if (calls) kolo_queue_calls(lane->queue, false);
    if (awaited) pthread_mutex_lock(&lane->queue->lock);
    for (size_t i = 0; i < count; i++) {
        if (entries[i]->handle >= 0)
            entries[i]->complete = true;
        else
            kolo_entry_free(entries[i]);
    }
    if (!awaited) return;
    pthread_mutex_unlock(&lane->queue->lock);
    kolo_gate_open(&lane->queue->complete);
}

void kolo_queue_close(kolo_queue_t *queue, kolo_status_t status, const char *text)
{
    pthread_mutex_lock(&queue->lock);
    queue->closed = status;
    snprintf(queue->closed_text, sizeof queue->closed_text, "%s", text);
    pthread_mutex_unlock(&queue->lock);
}

kolo_entry_t *kolo_tensors_drain(kolo_tensors_t *lane)
{
    kolo_name_t *found = NULL;
    pthread_mutex_lock(&lane->queue->lock);
    lane->fresh = NULL;
    lane->fresh_tail = &lane->fresh;
    atomic_store(&lane->nfresh, 0);
    for (size_t i = 0; i < lane->names.nbuckets && !found; i++) found = lane->names.buckets[i];
    pthread_mutex_unlock(&lane->queue->lock);
    return (kolo_entry_t *)found;
}

/* ---- waiting ---- */

int kolo_queue_set_of(kolo_queue_t *queue, int64_t handle)
{
    pthread_mutex_lock(&queue->lock);
    const kolo_entry_t *entry = entry_of(queue, handle);
    int set = entry ? entry->lane->set : -1;
    pthread_mutex_unlock(&queue->lock);
    return set;
}

kolo_status_t kolo_queue_poll(kolo_queue_t *queue, int64_t handle, int *complete)
{
    kolo_entry_t *entry;
    pthread_mutex_lock(&queue->lock);
    kolo_status_t status = find_handle(queue, handle, &entry);
    if (status == KOLO_OK) *complete = entry->complete;
    pthread_mutex_unlock(&queue->lock);
    return status;
}

/* Takes the entry out of its slot; it stays in memory until its waiter waits again. */
static void hand_over(kolo_queue_t *queue, kolo_entry_t *entry)
{
    pthread_t self = pthread_self();
    for (kolo_entry_t **at = &queue->waited, *e; (e = *at) != NULL;) {
        if (!pthread_equal(e->waiter, self)) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        kolo_entry_free(e);
    }
    free_handle(queue, entry);
    entry->waiter = self;
    entry->next = queue->waited;
    queue->waited = entry;
}

static void describe_wait(void *arg, char *buf, size_t bytes)
{
    snprintf(buf, bytes, "%s", (const char *)arg);
}

/* Tells whether it is over. Else title, if there is one, is what is waited for. */
static bool is_over(kolo_queue_t *queue, int64_t handle, char *title, size_t bytes, kolo_entry_t **entry,
                    kolo_status_t *status)
{
    pthread_mutex_lock(&queue->lock);
    *status = find_handle(queue, handle, entry);
    bool complete = *status == KOLO_OK && (*entry)->complete;
    if (*status == KOLO_OK && !complete && title) kolo_tensor_request_title(&(*entry)->request, title, bytes);
    if (complete) hand_over(queue, *entry);
    pthread_mutex_unlock(&queue->lock);
    return *status != KOLO_OK || complete;
}

/* Waits for an entry. Most are complete when they are asked for: who waits for many has waited for the last of
 * them. */
static kolo_status_t await(kolo_queue_t *queue, int64_t handle, int timeout_ms, kolo_entry_t **entry)
{
    char title[KOLO_TENSOR_NAME_MAX + 64];
    kolo_status_t status;
    kolo_wait_t wait;
    if (is_over(queue, handle, NULL, 0, entry, &status)) return status;
    kolo_wait_init(&wait, NULL, kolo_deadline_ms(timeout_ms), describe_wait, title, 1);
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(&queue->complete);
        if (is_over(queue, handle, title, sizeof title, entry, &status)) return status;
        KOLO_TRY(kolo_gate_wait(&queue->complete, ticket, &wait));
    }
}

kolo_status_t kolo_queue_wait(kolo_queue_t *queue, int64_t handle, int timeout_ms, kolo_completion_t *completion)
{
    kolo_entry_t *entry;
    KOLO_TRY(await(queue, handle, timeout_ms, &entry));
    if (completion) describe(entry, completion);
    return entry->status == KOLO_OK ? KOLO_OK : kolo_fail(entry->status, "%s", entry->text ? entry->text : "");
}
