/* SPDX-License-Identifier: Apache-2.0
 *
 * Process sets are added and removed as works of set 0 with names of their own, so ranks agree on one change at a
 * time and perform it at the same place in the order of everything.
 *
 * A change travels in the request's shape. Adding: how many ranks, a hash of them all, and the first few for
 * sentences. Removing: the id, and how many tensors this rank has outstanding in the set.
 */
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

/* ---- changes, on the loop ---- */

static kolo_status_t add(struct kolo_tensor_engine *e, kolo_entry_t *entry)
{
    int count = (int)entry->request.shape[KOLO_CHANGE_COUNT], *sorted = malloc((size_t)count * sizeof *sorted);
    if (!sorted) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for a process set of %d ranks", count);
    for (int i = 0; i < count; i++) sorted[i] = (int)entry->splits[i];
    int before = e->nsets;
    kolo_status_t status = kolo_sets_add(e, sorted, count, "engine_add_set");
    free(sorted);
    if (status == KOLO_ERR_INVALID_USAGE) { /* on all ranks; no reason to end the engine */
        kolo_entry_fail(entry, status, kolo_error_text());
        return KOLO_OK;
    }
    entry->out_ndims = 1;
    entry->out_shape[0] = before;
    return status;
}

static void reopen(kolo_set_t *s)
{
    pthread_mutex_lock(&s->engine->queue.lock);
    s->lane.closing = false;
    pthread_mutex_unlock(&s->engine->queue.lock);
}

static kolo_status_t take_away(struct kolo_tensor_engine *e, int id)
{
    kolo_set_t *s = kolo_sets_find(e, id);
    if (!s || id == 0) return kolo_fail(KOLO_ERR_PROTOCOL, "engine: there is no process set %d to be removed", id);
    pthread_mutex_lock(&e->queue.lock);
    bool again = s->removed;
    s->removed = true;
    e->nlive -= !again;
    pthread_mutex_unlock(&e->queue.lock);
    if (again) return kolo_fail(KOLO_ERR_PROTOCOL, "engine: process set %d is removed twice", id);
    if (s->rank >= 0) kolo_set_close(s);
    return KOLO_OK;
}

kolo_status_t kolo_sets_change(struct kolo_tensor_engine *e, const kolo_response_t *response)
{
    kolo_entry_t *entry = response->entry;
    if (!entry)
        return kolo_fail(KOLO_ERR_INTERNAL, "engine: rank %d has joined and is to change the sets", e->rank);
    if (response->request.work == KOLO_WORK_ADD_SET) return response->status == KOLO_OK ? add(e, entry) : KOLO_OK;
    int id = (int)entry->request.shape[KOLO_CHANGE_ID];
    if (response->status == KOLO_OK) return take_away(e, id);
    reopen(kolo_sets_find(e, id));
    return KOLO_OK;
}

/* ---- the public functions ---- */

static kolo_status_t submit(struct kolo_tensor_engine *e, kolo_entry_t *entry, const char *what, int64_t *handle)
{
    kolo_status_t status = kolo_tensors_push(&e->all->lane, &entry, 1, handle);
    if (status == KOLO_OK) {
        kolo_engine_kick(e);
        return KOLO_OK;
    }
    kolo_entry_free(entry);
    return kolo_fail_prefix(status, "%s: ", what);
}

static kolo_status_t check_caller(kolo_tensor_engine_t e, const char *what)
{
    KOLO_TRY(kolo_engine_check(e, what));
    if (kolo_engine_is_inside(e))
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "%s: not allowed in a callback of the engine", what);
    return KOLO_OK;
}

static kolo_status_t adding_entry(const int *sorted, int count, kolo_entry_t **entry)
{
    const kolo_rank_list_t whole = {sorted, count};
    int64_t *wide = malloc((size_t)count * sizeof *wide);
    if (!wide) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine_add_set: out of memory for %d ranks", count);
    for (int i = 0; i < count; i++) wide[i] = sorted[i];
    kolo_status_t status = kolo_entry_new(KOLO_ADD_SET_NAME, sizeof KOLO_ADD_SET_NAME - 1, wide, count, entry);
    free(wide);
    if (status != KOLO_OK) return status;
    kolo_tensor_request_t *q = &(*entry)->request;
    q->work = KOLO_WORK_ADD_SET;
    q->ndims = KOLO_CHANGE_FIRST + KOLO_MIN(count, (int)KOLO_CHANGE_NAMED);
    q->shape[KOLO_CHANGE_COUNT] = count;
    q->shape[KOLO_CHANGE_HASH] = (int64_t)(kolo_sets_hash(&whole, 1) & INT64_MAX);
    for (int i = 0; i < q->ndims - KOLO_CHANGE_FIRST; i++) q->shape[KOLO_CHANGE_FIRST + i] = sorted[i];
    return KOLO_OK;
}

kolo_status_t kolo_engine_add_set(kolo_tensor_engine_t engine, const int *ranks, int count, int *set)
{
    static const char what[] = "engine_add_set";
    const kolo_rank_list_t list = {ranks, count};
    kolo_completion_t completion;
    kolo_entry_t *entry = NULL;
    int64_t handle;
    int *sorted;
    KOLO_TRY(check_caller(engine, what));
    if (!set) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the output is NULL", what);
    KOLO_TRY(kolo_sets_sort(engine, &list, what, &sorted));
    kolo_status_t status = adding_entry(sorted, count, &entry);
    free(sorted);
    if (status == KOLO_OK) status = submit(engine, entry, what, &handle);
    if (status == KOLO_OK) status = kolo_queue_wait(&engine->queue, handle, 0, &completion);
    if (status == KOLO_OK) *set = (int)completion.shape[0];
    return status;
}

/* Lets nothing be submitted to it from here on, and says how much is outstanding. false: that holds already. */
static bool begin_closing(kolo_set_t *s, size_t *outstanding)
{
    pthread_mutex_lock(&s->engine->queue.lock);
    bool first = !s->lane.closing;
    s->lane.closing = true;
    *outstanding = s->lane.names.count;
    pthread_mutex_unlock(&s->engine->queue.lock);
    return first;
}

kolo_status_t kolo_engine_remove_set(kolo_tensor_engine_t engine, int set)
{
    static const char what[] = "engine_remove_set";
    kolo_set_t *s;
    kolo_entry_t *entry;
    size_t outstanding;
    int64_t handle;
    KOLO_TRY(check_caller(engine, what));
    if (set == 0)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: process set 0 is all ranks and cannot be removed", what);
    KOLO_TRY(kolo_sets_find_live(engine, set, what, &s));
    KOLO_TRY(kolo_entry_new(KOLO_REMOVE_SET_NAME, sizeof KOLO_REMOVE_SET_NAME - 1, NULL, 0, &entry));
    if (!begin_closing(s, &outstanding)) {
        kolo_entry_free(entry);
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "%s: process set %d is being removed already", what, set);
    }
    entry->request.work = KOLO_WORK_REMOVE_SET;
    entry->request.ndims = 2;
    entry->request.shape[KOLO_CHANGE_ID] = set;
    entry->request.shape[KOLO_CHANGE_OUTSTANDING] = (int64_t)outstanding;
    kolo_status_t status = submit(engine, entry, what, &handle);
    if (status == KOLO_OK) return kolo_queue_wait(&engine->queue, handle, 0, NULL);
    reopen(s);
    return status;
}
