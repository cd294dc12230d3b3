/* SPDX-License-Identifier: Apache-2.0
 *
 * The beginning and the end of an adapter.
 */
#include "base/process.h"
#include "rendezvous/remote/adapter.h"
#include "rendezvous/watch.h"

#include "base/failpoint.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>

static kolo_status_t allocate(kolo_adapter_t *adapter)
{
    size_t n = (size_t)adapter->ntasks;
    adapter->peers = calloc(n, sizeof *adapter->peers);
    adapter->incarnations = calloc(n, sizeof *adapter->incarnations);
    adapter->failures = calloc(n, sizeof *adapter->failures);
    if (!adapter->peers || !adapter->incarnations || !adapter->failures)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "rendezvous: no memory for %zu tasks", n);
    for (size_t i = 0; i < n; i++) {
        adapter->peers[i].last_pending = &adapter->peers[i].pending;
        adapter->peers[i].adapter = adapter;
    }
    return KOLO_OK;
}

kolo_status_t kolo_adapter_init(kolo_adapter_t *adapter)
{
    pthread_mutex_init(&adapter->lock, NULL);
    adapter->last_command = &adapter->commands;
    adapter->last_ready = &adapter->ready;
    adapter->last_asked = &adapter->asked;
    adapter->last_settled = &adapter->settled;
    adapter->closed = true;
    return allocate(adapter);
}

kolo_status_t kolo_adapter_start(kolo_adapter_t *adapter)
{
    KOLO_TRY(kolo_progress_get(&adapter->progress));
    KOLO_TRY(kolo_onesided_domain_create(adapter->key.bytes, &adapter->domain));
    kolo_trace("rendezvous", "set-up: adapter of %s, its domain and its waker", adapter->tasks[adapter->me].name);
    adapter->manager->watch =
        kolo_watch_create(adapter->tasks[adapter->me].name, adapter->incarnation, &adapter->watch_fd);
    KOLO_TRY(kolo_callback_pool_create((int)kolo_rendezvous_param_threads, &adapter->pool));
    int err = kolo_thread_start(&adapter->thread, 0, kolo_adapter_run, adapter);
    if (err) return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "rendezvous: cannot start a thread");
    adapter->running = true;
    kolo_trace("rendezvous", "set-up: thread of %s", adapter->tasks[adapter->me].name);
    pthread_mutex_lock(&adapter->lock);
    adapter->closed = false;
    pthread_mutex_unlock(&adapter->lock);
    KOLO_FAIL_POINT_TRY("rendezvous.adapter.listen");
    return kolo_adapter_listen(adapter);
}

/* Ends channels, requests and answers. The thread has ended: this one is the adapter's now. */
static void end_all(kolo_adapter_t *adapter)
{
    static const char why[] = "this task's server has been stopped";
    while (adapter->accepted) kolo_adapter_end_channel(adapter->accepted, KOLO_ERR_ABORTED, why);
    for (int i = 0; adapter->peers && i < adapter->ntasks; i++) {
        kolo_dial_cancel(adapter->progress, &adapter->peers[i].dial);
        if (adapter->peers[i].call) kolo_command_drop(adapter->peers[i].call); /* it will not be told */
        adapter->peers[i].call = NULL;
        if (adapter->peers[i].channel) kolo_adapter_end_channel(adapter->peers[i].channel, KOLO_ERR_ABORTED, why);
        kolo_adapter_fail_pending(adapter, &adapter->peers[i], KOLO_ERR_ABORTED, why);
    }
    pthread_mutex_lock(&adapter->lock);
    kolo_command_t *c = adapter->commands, *next;
    kolo_receive_t receive = adapter->asked;
    adapter->commands = NULL;
    adapter->asked = NULL;
    adapter->closed = true;
    pthread_mutex_unlock(&adapter->lock);
    while (receive) {
        kolo_receive_t after = receive->next_deferred;
        kolo_adapter_deliver(adapter, receive, KOLO_ERR_ABORTED, why, NULL);
        receive = after;
    }
    for (; c; c = next) {
        next = c->next;
        if (c->what == KOLO_DO_CANCEL) kolo_adapter_part(adapter, c->receive);
        if (c->what == KOLO_DO_CANCEL) c->receive = NULL; /* with its reference */
        kolo_command_drop(c);
    }
    kolo_adapter_wake_settled(adapter);
}

static void free_ready(kolo_adapter_t *adapter)
{
    while (adapter->ready) {
        kolo_answer_t *answer = adapter->ready;
        adapter->ready = answer->next_ready;
        kolo_answer_free(answer);
    }
    while (adapter->spare) {
        kolo_answer_t *answer = adapter->spare;
        adapter->spare = answer->next;
        free(answer);
    }
    adapter->nspare = 0;
}

static void describe_served(void *arg, char *buf, size_t bytes)
{
    const kolo_adapter_t *adapter = arg;
    snprintf(buf, bytes, "threads that hand %u values for other tasks to the stopped server of %s",
             atomic_load(&adapter->served), adapter->tasks[adapter->me].name);
}

/* Waits for answers that are between two instructions: a send that found the request before it was given up. */
static void await_served(kolo_adapter_t *adapter)
{
    kolo_wait_t wait;
    kolo_wait_init(&wait, NULL, 0, describe_served, adapter, 1);
    while (atomic_load(&adapter->served) > 0) (void)kolo_wait_pause(&wait);
    kolo_wait_end(&wait);
}

void kolo_adapter_stop(kolo_adapter_t *adapter)
{
    kolo_adapter_close_listener(adapter);
    atomic_store(&adapter->stop, true);
    if (adapter->running) {
        kolo_waker_wake(kolo_onesided_domain_waker(adapter->domain));
        pthread_join(adapter->thread, NULL);
        adapter->running = false;
        end_all(adapter);
    }
    /* Ends what still waits in a step, also for those who asked from elsewhere. */
    (void)kolo_rendezvous_manager_cleanup_all(adapter->manager);
    kolo_callback_pool_destroy(adapter->pool);
    adapter->pool = NULL;
    await_served(adapter);
    free_ready(adapter);
    kolo_gate_open(&adapter->changed);
}

void kolo_adapter_fini(kolo_adapter_t *adapter)
{
    kolo_onesided_domain_destroy(adapter->domain);
    kolo_meeting_destroy(adapter);
    if (adapter->progress) kolo_progress_put(adapter->progress);
    free(adapter->peers);
    free(adapter->incarnations);
    free(adapter->channels);
    free(adapter->failures);
    pthread_mutex_destroy(&adapter->lock);
}
