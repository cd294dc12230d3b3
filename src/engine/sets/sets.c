/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of process sets. It changes on the loop only (set_change.c), at a point in the sequence of set 0's
 * operations that all ranks have agreed on, so all use the same ids. Ids are never reused, so an old one gives an
 * error. A removed set stays in memory until the engine ends.
 */
#include "comm/comm.h"
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- lists of ranks ---- */

static int by_value(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return x < y ? -1 : x > y;
}

/* Makes a sorted copy. */
kolo_status_t kolo_sets_sort(const struct kolo_tensor_engine *e, const kolo_rank_list_t *list, const char *what,
                             int **out)
{
    if (list->count < 1 || !list->ranks)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: a process set needs at least one rank", what);
    if (list->count > e->size) /* before more is read than there can be */
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: a list of %d ranks, of a job that has %d", what,
                         list->count, e->size);
    for (int i = 0; i < list->count; i++)
        if (list->ranks[i] < 0 || list->ranks[i] >= e->size)
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: %d is no rank of 0..%d", what, list->ranks[i],
                             e->size - 1);
    int *sorted = malloc((size_t)list->count * sizeof *sorted);
    if (!sorted) return kolo_fail(KOLO_ERR_NO_MEMORY, "%s: out of memory for %d ranks", what, list->count);
    memcpy(sorted, list->ranks, (size_t)list->count * sizeof *sorted);
    qsort(sorted, (size_t)list->count, sizeof *sorted, by_value);
    for (int i = 1; i < list->count; i++) {
        if (sorted[i] != sorted[i - 1]) continue;
        kolo_status_t status =
            kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: rank %d is in the list twice", what, sorted[i]);
        free(sorted);
        return status;
    }
    *out = sorted;
    return KOLO_OK;
}

uint64_t kolo_sets_hash(const kolo_rank_list_t *sets, int count)
{
    uint64_t hash = KOLO_HASH_INIT;
    for (int i = 0; i < count; i++) {
        hash = kolo_hash_bytes(hash, &sets[i].count, sizeof sets[i].count);
        if (sets[i].count > 0 && sets[i].ranks)
            hash = kolo_hash_bytes(hash, sets[i].ranks, (size_t)sets[i].count * sizeof *sets[i].ranks);
    }
    return hash;
}

/* ---- the table ---- */

kolo_set_t *kolo_sets_find(struct kolo_tensor_engine *e, int id)
{
    pthread_mutex_lock(&e->queue.lock);
    kolo_set_t *s = id >= 0 && id < e->nsets ? e->sets[id] : NULL;
    pthread_mutex_unlock(&e->queue.lock);
    return s;
}

static bool is_removed(kolo_set_t *s)
{
    pthread_mutex_lock(&s->engine->queue.lock);
    bool removed = s->removed;
    pthread_mutex_unlock(&s->engine->queue.lock);
    return removed;
}

kolo_status_t kolo_sets_find_live(struct kolo_tensor_engine *e, int id, const char *what, kolo_set_t **set)
{
    kolo_set_t *s = kolo_sets_find(e, id);
    if (!s) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: there is no process set %d", what, id);
    if (is_removed(s)) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: process set %d has been removed", what, id);
    *set = s;
    return KOLO_OK;
}

kolo_status_t kolo_sets_pick(struct kolo_tensor_engine *e, const kolo_submission_t *how, const char *what,
                             kolo_set_t **set)
{
    enum { SHOWN = 12 };
    char list[160];
    kolo_set_t *s = e->all;
    if (how && how->set != 0) KOLO_TRY(kolo_sets_find_live(e, how->set, what, &s));
    *set = s;
    if (s->rank >= 0) return KOLO_OK;
    kolo_sets_list(s->ranks, KOLO_MIN(s->size, SHOWN), s->size, list, sizeof list);
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: rank %d does not belong to process set %d (%s %s)", what,
                     e->rank, s->id, s->size == 1 ? "rank" : "ranks", list);
}

/* Puts it into the table, which holds it from then on. */
static kolo_status_t publish(struct kolo_tensor_engine *e, kolo_set_t *s)
{
    pthread_mutex_lock(&e->queue.lock);
    kolo_set_t **sets = realloc(e->sets, (size_t)(e->nsets + 1) * sizeof(kolo_set_t *));
    if (sets) {
        e->sets = sets;
        sets[e->nsets++] = s;
        e->nlive++;
    }
    pthread_mutex_unlock(&e->queue.lock);
    return sets ? KOLO_OK
                : kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %d process sets", e->nsets + 1);
}

static kolo_status_t split(struct kolo_tensor_engine *e, const kolo_set_t *s, kolo_comm_t *comm)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    char name[32];
    snprintf(name, sizeof name, "engine set %d", s->id);
    config.blocking = 1;
    config.op_timeout_ms = 0; /* ranks may be idle for as long as they like */
    config.name = name;
    config.device = -1;
    return kolo_comm_split(e->all->comm, s->rank >= 0 ? 0 : KOLO_SPLIT_NOCOLOR, 0, comm, &config);
}

/* Makes a set, whose id is the next one. With comm NULL this rank gets one by splitting that of set 0: collective
 * over all ranks. Takes comm. */
static kolo_status_t make(struct kolo_tensor_engine *e, const int *ranks, int count, kolo_comm_t comm)
{
    kolo_set_t *s = NULL;
    kolo_status_t status = kolo_set_new(e, e->nsets, ranks, count, &s);
    if (status == KOLO_OK && !comm) status = split(e, s, &comm);
    if (status == KOLO_OK && comm) {
        status = kolo_set_open(s, comm);
        comm = NULL;
    }
    if (status == KOLO_OK) status = kolo_order_meet(e, s);
    if (status == KOLO_OK) status = publish(e, s);
    if (status == KOLO_OK) return KOLO_OK;
    char text[KOLO_ERROR_TEXT_BYTES]; /* leaving has words of its own */
    snprintf(text, sizeof text, "%s", kolo_error_text());
    kolo_comm_abort(comm);
    if (s) kolo_set_leave(s, true);
    kolo_set_free(s);
    return kolo_fail(status, "%s", text);
}

kolo_status_t kolo_sets_make_all(struct kolo_tensor_engine *e, kolo_comm_t comm)
{
    int *ranks = malloc((size_t)e->size * sizeof *ranks);
    for (int r = 0; ranks && r < e->size; r++) ranks[r] = r;
    if (!ranks) {
        kolo_comm_abort(comm);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "engine_init: out of memory for %d ranks", e->size);
    }
    kolo_status_t status = make(e, ranks, e->size, comm);
    if (status == KOLO_OK) e->all = e->sets[0];
    free(ranks);
    return status;
}

static kolo_set_t *find_equal(struct kolo_tensor_engine *e, const int *sorted, int count)
{
    for (int i = 0; i < e->nsets; i++) {
        kolo_set_t *s = e->sets[i];
        if (!s->removed && s->size == count && memcmp(s->ranks, sorted, (size_t)count * sizeof *sorted) == 0)
            return s;
    }
    return NULL;
}

kolo_status_t kolo_sets_add(struct kolo_tensor_engine *e, const int *sorted, int count, const char *what)
{
    kolo_set_t *equal = find_equal(e, sorted, count);
    if (equal)
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "%s: process set %d consists of these ranks already", what,
                         equal->id);
    if (e->nsets == KOLO_SETS_MAX)
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "%s: there have been %d process sets, more are not possible", what,
                         KOLO_SETS_MAX);
    return make(e, sorted, count, NULL);
}

kolo_status_t kolo_sets_make_first(struct kolo_tensor_engine *e)
{
    for (int i = 0; i < e->config.nsets; i++) {
        int *sorted;
        KOLO_TRY(kolo_sets_sort(e, &e->config.sets[i], "engine_init", &sorted));
        kolo_status_t status = kolo_sets_add(e, sorted, e->config.sets[i].count, "engine_init");
        free(sorted);
        if (status != KOLO_OK) return status;
    }
    return KOLO_OK;
}

void kolo_sets_leave(struct kolo_tensor_engine *e, bool abort)
{
    kolo_set_t *s;
    for (int id = 0; (s = kolo_sets_find(e, id)) != NULL; id++) kolo_set_leave(s, abort);
}

void kolo_sets_fini(struct kolo_tensor_engine *e)
{
    for (int i = 0; i < e->nsets; i++) kolo_set_free(e->sets[i]);
    free(e->sets);
    e->sets = NULL;
    e->nsets = e->nlive = 0;
    e->all = NULL;
}

/* ---- queries ---- */

kolo_status_t kolo_engine_get_set(kolo_tensor_engine_t engine, int set, kolo_set_info_t *info)
{
    kolo_set_t *s;
    KOLO_TRY(kolo_engine_check(engine, "engine_get_set"));
    if (!info) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "engine_get_set: the output is NULL");
    KOLO_TRY(kolo_sets_find_live(engine, set, "engine_get_set", &s));
    *info = (kolo_set_info_t){.id = set, .size = s->size, .included = s->rank >= 0, .rank = s->rank};
    return KOLO_OK;
}

kolo_status_t kolo_engine_get_set_ranks(kolo_tensor_engine_t engine, int set, int *ranks, int room)
{
    kolo_set_t *s;
    KOLO_TRY(kolo_engine_check(engine, "engine_get_set_ranks"));
    if (room > 0 && !ranks) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "engine_get_set_ranks: the output is NULL");
    KOLO_TRY(kolo_sets_find_live(engine, set, "engine_get_set_ranks", &s));
    for (int i = 0; i < s->size && i < room; i++) ranks[i] = s->ranks[i];
    return KOLO_OK;
}

kolo_status_t kolo_engine_get_set_ids(kolo_tensor_engine_t engine, int *ids, int room, int *count)
{
    int n = 0;
    KOLO_TRY(kolo_engine_check(engine, "engine_get_set_ids"));
    if (!count || (room > 0 && !ids))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "engine_get_set_ids: an output is NULL");
    pthread_mutex_lock(&engine->queue.lock);
    for (int i = 0; i < engine->nsets; i++) {
        if (engine->sets[i]->removed) continue;
        if (n < room) ids[n] = i;
        n++;
    }
    pthread_mutex_unlock(&engine->queue.lock);
    *count = n;
    return KOLO_OK;
}
