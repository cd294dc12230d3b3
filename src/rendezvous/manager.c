/* SPDX-License-Identifier: Apache-2.0
 *
 * The manager: finds or makes the rendezvous of a step, for local opens and for requests of other tasks, and ends
 * steps. It holds a reference to each step that it lists; each running call holds one, too.
 */
#include "base/cpu/group.h"
#include "base/process.h"
#include "comm/params.h"
#include "rendezvous/watch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 256 /* steps that live at a time are few */

int64_t kolo_rendezvous_param_waiting;

static kolo_slots_t managers = KOLO_SLOTS_OF(struct kolo_rendezvous_manager);

static void give_back(kolo_rendezvous_manager_t manager)
{
    kolo_watch_unmap(manager->watch);
    free(manager->buckets);
    (void)kolo_slot_end(manager); /* its owner's destroy has, but for one that was never handed out */
    kolo_slots_give(&managers, manager);
}

kolo_status_t kolo_rendezvous_manager_create(kolo_rendezvous_manager_t *out)
{
    KOLO_TRY(kolo_rendezvous_check_given("rendezvous_manager_create", "result", out));
    KOLO_TRY(kolo_comm_library_init());
    kolo_rendezvous_manager_t manager = kolo_slots_take(&managers);
    if (manager) manager->buckets = calloc(BUCKETS, sizeof(kolo_rendezvous_t));
    if (manager == NULL || manager->buckets == NULL) {
        if (manager) give_back(manager);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "rendezvous_manager_create: no memory");
    }
    atomic_init(&manager->refs, 1);
    manager->forks = kolo_process_forks();
    manager->nbuckets = BUCKETS;
    int64_t most = kolo_rendezvous_param_waiting;
    manager->waits_most = most ? (uint64_t)most : kolo_memory_limit() / 2;
    manager->last_deferred = &manager->deferred;
    pthread_mutex_init(&manager->lock, NULL);
    *out = manager;
    return KOLO_OK;
}

void kolo_rendezvous_manager_set_remote(kolo_rendezvous_manager_t manager, const kolo_remote_ops_t *ops, void *arg)
{
    manager->remote = ops;
    manager->remote_arg = arg;
}

static kolo_rendezvous_t *find(kolo_rendezvous_manager_t manager, uint64_t step)
{
    uint64_t hash = kolo_hash_bytes(KOLO_HASH_INIT, &step, sizeof step);
    kolo_rendezvous_t *at = &manager->buckets[hash % manager->nbuckets];
    while (*at && (*at)->step != step) at = &(*at)->next;
    return at;
}

kolo_status_t kolo_rendezvous_open(kolo_rendezvous_manager_t manager, uint64_t step, kolo_rendezvous_t *out)
{
    KOLO_TRY(kolo_rendezvous_check_handle("rendezvous_open", "manager", manager));
    KOLO_TRY(kolo_rendezvous_check_given("rendezvous_open", "result", out));
    KOLO_TRY(kolo_rendezvous_check_process(manager));
    pthread_mutex_lock(&manager->lock);
    kolo_rendezvous_t *at = find(manager, step), rendezvous = *at;
    if (rendezvous == NULL && (rendezvous = kolo_rendezvous_new(manager, step)) != NULL) {
        *at = rendezvous;
        manager->nsteps++;
        atomic_fetch_add_explicit(&manager->refs, 1, memory_order_relaxed);
    }
    if (rendezvous) {
        kolo_rendezvous_ref(rendezvous);
        atomic_fetch_add_explicit(&rendezvous->opens, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&manager->lock);
    if (rendezvous == NULL)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "rendezvous_open: no memory for step %" PRIu64, step);
    *out = rendezvous;
    return KOLO_OK;
}

void kolo_rendezvous_manager_unref(kolo_rendezvous_manager_t manager)
{
    if (atomic_fetch_sub_explicit(&manager->refs, 1, memory_order_acq_rel) != 1) return;
    pthread_mutex_destroy(&manager->lock);
    give_back(manager);
}

/* Takes a step out of the list, with the list's reference: the one of this number, or (NULL) any. */
static kolo_rendezvous_t unlist(kolo_rendezvous_manager_t manager, const uint64_t *step)
{
    pthread_mutex_lock(&manager->lock);
    kolo_rendezvous_t *at = step ? find(manager, *step) : &manager->buckets[0];
    for (size_t i = 1; !step && !*at && i < manager->nbuckets; i++) at = &manager->buckets[i];
    kolo_rendezvous_t rendezvous = *at;
    if (rendezvous) {
        *at = rendezvous->next;
        manager->nsteps--;
    }
    pthread_mutex_unlock(&manager->lock);
    return rendezvous;
}

static void clean_up(kolo_rendezvous_t rendezvous, const char *why)
{
    (void)kolo_rendezvous_abort(rendezvous, KOLO_ERR_ABORTED, why);
    kolo_rendezvous_unref(rendezvous);
}

kolo_status_t kolo_rendezvous_manager_cleanup(kolo_rendezvous_manager_t manager, uint64_t step)
{
    KOLO_TRY(kolo_rendezvous_check_handle("rendezvous_manager_cleanup", "manager", manager));
    KOLO_TRY(kolo_rendezvous_check_process(manager));
    kolo_rendezvous_t rendezvous = unlist(manager, &step);
    if (rendezvous) clean_up(rendezvous, "it was cleaned up");
    return KOLO_OK;
}

static void clean_up_all(kolo_rendezvous_manager_t manager)
{
    kolo_rendezvous_t rendezvous;
    while ((rendezvous = unlist(manager, NULL)) != NULL) clean_up(rendezvous, "all steps were cleaned up");
}

kolo_status_t kolo_rendezvous_manager_cleanup_all(kolo_rendezvous_manager_t manager)
{
    KOLO_TRY(kolo_rendezvous_check_handle("rendezvous_manager_cleanup_all", "manager", manager));
    KOLO_TRY(kolo_rendezvous_check_process(manager));
    clean_up_all(manager);
    return KOLO_OK;
}

kolo_status_t kolo_rendezvous_manager_count(kolo_rendezvous_manager_t manager, size_t *steps)
{
    KOLO_TRY(kolo_rendezvous_check_handle("rendezvous_manager_count", "manager", manager));
    KOLO_TRY(kolo_rendezvous_check_given("rendezvous_manager_count", "result", steps));
    pthread_mutex_lock(&manager->lock);
    *steps = manager->nsteps;
    pthread_mutex_unlock(&manager->lock);
    return KOLO_OK;
}

/* ---- the name ---- */

bool kolo_rendezvous_manager_defer(kolo_rendezvous_manager_t manager, kolo_receive_t receive)
{
    pthread_mutex_lock(&manager->lock);
    bool defer = !atomic_load_explicit(&manager->named, memory_order_relaxed);
    if (defer) {
        kolo_receive_ref(receive);
        *manager->last_deferred = receive;
        manager->last_deferred = &receive->next_deferred;
    }
    pthread_mutex_unlock(&manager->lock);
    return defer;
}

static kolo_receive_t take_deferred(kolo_rendezvous_manager_t manager)
{
    pthread_mutex_lock(&manager->lock);
    kolo_receive_t first = manager->deferred;
    manager->deferred = NULL;
    manager->last_deferred = &manager->deferred;
    pthread_mutex_unlock(&manager->lock);
    return first;
}

kolo_status_t kolo_rendezvous_manager_initialize(kolo_rendezvous_manager_t manager, const char *task,
                                                 uint64_t incarnation)
{
    static const char call[] = "rendezvous_manager_initialize";
    KOLO_TRY(kolo_rendezvous_check_handle(call, "manager", manager));
    KOLO_TRY(kolo_rendezvous_check_given(call, "task", task));
    if (incarnation == 0)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: the incarnation is 0, which no start of a task has", call);
    const char *wrong = kolo_task_name_check(task);
    if (wrong) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s: \"%.100s\" is no task: %s", call, task, wrong);
    pthread_mutex_lock(&manager->lock);
    bool named = atomic_load_explicit(&manager->named, memory_order_relaxed);
    bool same = named && strcmp(manager->task, task) == 0 && manager->incarnation == incarnation;
    if (!named) {
        snprintf(manager->task, sizeof manager->task, "%s", task);
        manager->incarnation = incarnation;
        atomic_store_explicit(&manager->named, true, memory_order_release);
    }
    pthread_mutex_unlock(&manager->lock);
    if (named && !same)
        return kolo_fail(KOLO_ERR_INVALID_USAGE,
                         "the manager of %s (%016" PRIx64 ") cannot become that of %s "
                         "(%016" PRIx64 ")",
                         manager->task, manager->incarnation, task, incarnation);
    kolo_receive_t receive = named ? NULL : take_deferred(manager);
    while (receive) {
        kolo_receive_t next = receive->next_deferred;
        kolo_rendezvous_replay(receive);
        kolo_receive_unref(receive);
        receive = next;
    }
    return KOLO_OK;
}

void kolo_rendezvous_manager_end(kolo_rendezvous_manager_t manager)
{
    (void)kolo_slot_end(manager);
    clean_up_all(manager);
    kolo_receive_t receive = take_deferred(manager);
    while (receive) { /* the clean-up has ended them */
        kolo_receive_t next = receive->next_deferred;
        kolo_receive_unref(receive);
        receive = next;
    }
    kolo_rendezvous_manager_unref(manager);
}

kolo_status_t kolo_rendezvous_manager_destroy(kolo_rendezvous_manager_t manager)
{
    if (manager == NULL) return KOLO_OK;
    KOLO_TRY(kolo_rendezvous_check_handle("rendezvous_manager_destroy", "manager", manager));
    if (manager->remote)
        return kolo_fail(KOLO_ERR_INVALID_USAGE,
                         "rendezvous_manager_destroy: the manager belongs to a server, and goes with it");
    kolo_rendezvous_manager_end(manager);
    return KOLO_OK;
}
