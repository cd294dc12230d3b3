/* SPDX-License-Identifier: Apache-2.0
 *
 * The rendezvous of one step: sends wait in the table of their own task; receives are answered from there or passed
 * to the adapter, which fetches from other tasks. An abort ends all of them, once. internal.h says which thread
 * ends a receive.
 */
#include "base/failpoint.h"
#include "rendezvous/watch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kolo_slots_t all = KOLO_SLOTS_OF(struct kolo_rendezvous);

kolo_rendezvous_t kolo_rendezvous_new(kolo_rendezvous_manager_t manager, uint64_t step)
{
    kolo_rendezvous_t rendezvous = kolo_slots_take(&all);
    if (rendezvous == NULL) return NULL;
    atomic_init(&rendezvous->refs, 1);
    rendezvous->manager = manager;
    rendezvous->step = step;
    pthread_mutex_init(&rendezvous->lock, NULL);
    return rendezvous;
}

void kolo_rendezvous_ref(kolo_rendezvous_t rendezvous)
{
    atomic_fetch_add_explicit(&rendezvous->refs, 1, memory_order_relaxed);
}

/* ---- what waits ---- */

/* A send needs no receive, so a task that sends faster than the others receive would fill its memory. */

static uint64_t cost_of(const kolo_item_t *send)
{
    return sizeof *send + (send->args.memory == KOLO_MEMORY_HOST ? send->value.bytes : 0);
}

/* Counts a send that is to wait. A value may be larger than all that may wait, if nothing does. `must`: it is too
 * late to refuse it. */
static kolo_status_t begin_waiting(kolo_rendezvous_manager_t manager, const kolo_item_t *send, bool must)
{
    uint64_t cost = cost_of(send), before = atomic_fetch_add_explicit(&manager->waits, cost, memory_order_relaxed);
    if (KOLO_LIKELY(before == 0 || before + cost <= manager->waits_most || must)) return KOLO_OK;
    atomic_fetch_sub_explicit(&manager->waits, cost, memory_order_relaxed);
    return kolo_fail(KOLO_ERR_NO_MEMORY,
                     "no receive waits for its %" PRIu64 " bytes, and %" PRIu64
                     " bytes that %s has sent wait already, of %" PRIu64
                     " that may (KOLO_RENDEZVOUS_WAITING): the receivers are behind, or do not come; send again "
                     "when they have received",
                     send->value.bytes, before, manager->task, manager->waits_most);
}

static void end_waiting(kolo_rendezvous_t rendezvous, const kolo_item_t *send)
{
    atomic_fetch_sub_explicit(&rendezvous->manager->waits, cost_of(send), memory_order_relaxed);
}

static void item_drop(kolo_item_t *item)
{
    if (item->receive)
        kolo_receive_unref(item->receive);
    else
        kolo_value_release(&item->value);
    free(item);
}

static void drop_all(kolo_rendezvous_t rendezvous, kolo_item_t *item)
{
    while (item) {
        kolo_item_t *next = item->next;
        if (item->receive)
            kolo_receive_finish(item->receive, rendezvous->status, rendezvous->why, NULL, NULL);
        else
            end_waiting(rendezvous, item);
        item_drop(item);
        item = next;
    }
}

void kolo_rendezvous_unref(kolo_rendezvous_t rendezvous)
{
    if (atomic_fetch_sub_explicit(&rendezvous->refs, 1, memory_order_acq_rel) != 1) return;
    /* Receives hold references, so all that can be left are sends. */
    drop_all(rendezvous, kolo_table_take_all(&rendezvous->table));
    pthread_mutex_destroy(&rendezvous->lock);
    kolo_rendezvous_manager_unref(rendezvous->manager);
    (void)kolo_slot_end(rendezvous);
    kolo_slots_give(&all, rendezvous);
}

/* ---- checks ---- */

static kolo_status_t check_call(const char *call, kolo_rendezvous_t rendezvous, const char *text,
                                kolo_tensor_key_t *key)
{
    KOLO_TRY(kolo_rendezvous_check_handle(call, "rendezvous", rendezvous));
    KOLO_TRY(kolo_rendezvous_check_process(rendezvous->manager));
    KOLO_TRY(kolo_rendezvous_check_given(call, "key", text));
    return kolo_tensor_key_parse(text, key);
}

/* Fails if the step has ended; with the lock held. */
static kolo_status_t check_alive(kolo_rendezvous_t rendezvous)
{
    if (rendezvous->status == KOLO_OK) return KOLO_OK;
    return kolo_fail(rendezvous->status, "%s", rendezvous->why);
}

static kolo_status_t check_incarnation(const kolo_rendezvous_manager_t manager, const kolo_tensor_key_t *key)
{
    if (key->src_incarnation == manager->incarnation) return KOLO_OK;
    return kolo_fail(KOLO_ERR_REMOTE,
                     "%s has been restarted: the key of edge %s names its incarnation %016" PRIx64
                     ", it is %016" PRIx64 " now; make keys anew",
                     manager->task, key->edge_name, key->src_incarnation, manager->incarnation);
}

/* ---- send ---- */

/* Leaves a value that is counted in the table, with the lock held. */
static kolo_status_t leave_value(kolo_rendezvous_t rendezvous, const char *text, kolo_item_t *send)
{
    kolo_status_t status = kolo_table_add(&rendezvous->table, text, send);
    if (status != KOLO_OK) end_waiting(rendezvous, send);
    return status;
}

static bool one_takes(const kolo_item_t *receives, const kolo_item_t *send)
{
    while (receives && kolo_receive_takes(receives->receive, &send->value, &send->args) != KOLO_OK)
        receives = receives->next;
    return receives != NULL;
}

/* Meets a receive, under the lock: either it is now the caller's to end, or the value is in the table. *small:
 * those ahead of it that cannot take so much, for the caller to end. A send that is refused ends none. */
static kolo_status_t meet_receive(kolo_rendezvous_t rendezvous, const char *text, kolo_item_t *send,
                                  kolo_item_t **met, kolo_item_t **small)
{
    bool counted = false;
    KOLO_TRY(check_alive(rendezvous));
    for (;;) {
        kolo_item_t *item = kolo_table_first_receive(&rendezvous->table, text);
        bool fits = item && kolo_receive_takes(item->receive, &send->value, &send->args) == KOLO_OK;
        if (!fits && !counted && (item == NULL || (*small == NULL && !one_takes(item->next, send)))) {
            KOLO_TRY(begin_waiting(rendezvous->manager, send, *small != NULL));
            counted = true;
        }
        if (item == NULL) return leave_value(rendezvous, text, send);
        kolo_table_remove(&rendezvous->table, item);
        bool claimed = kolo_receive_claim(item->receive);
        *met = fits && claimed ? item : NULL;
        if (*met) return KOLO_OK;
        if (claimed) {
            item->next = *small;
            *small = item;
            continue;
        }
        /* Discarded by its owner, which holds a reference and is about to look for it here. */
        kolo_receive_unref(item->receive);
        free(item);
    }
}

/* Ends those that cannot take the value. What is said of the send stays. */
static kolo_status_t end_small(kolo_item_t *item, const kolo_value_t *value, const kolo_transfer_args_t *args,
                               kolo_status_t sent)
{
    char text[KOLO_ERROR_TEXT_BYTES];
    if (KOLO_LIKELY(!item)) return sent;
    snprintf(text, sizeof text, "%s", kolo_error_text());
    while (item) {
        kolo_item_t *next = item->next;
        kolo_status_t status = kolo_receive_takes(item->receive, value, args);
        kolo_receive_end(item->receive, status, kolo_error_text(), NULL, NULL);
        item_drop(item);
        item = next;
    }
    return sent == KOLO_OK ? KOLO_OK : kolo_fail(sent, "%s", text);
}

static kolo_status_t check_place(const kolo_value_t *value, const kolo_transfer_args_t *args)
{
    if (args == NULL || args->memory != KOLO_MEMORY_DEVICE || value->bytes == 0) return KOLO_OK;
    if (value->element == KOLO_ELEMENT_STRING)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "send: strings lie in host memory only");
    return kolo_rendezvous_device_check(value->data, "send: the data");
}

kolo_status_t kolo_rendezvous_send(kolo_rendezvous_t rendezvous, const char *text, const kolo_value_t *value,
                                   const kolo_transfer_args_t *args)
{
    kolo_tensor_key_t key;
    KOLO_TRY(check_call("rendezvous_send", rendezvous, text, &key));
    KOLO_TRY(kolo_rendezvous_transfer_check(args, false));
    KOLO_TRY(kolo_rendezvous_check_given("rendezvous_send", "value", value));
    KOLO_TRY(check_place(value, args));
    const char *wrong = kolo_rendezvous_value_check(value);
    if (wrong) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "send of edge %s: the value: %s", key.edge_name, wrong);
    kolo_rendezvous_manager_t manager = rendezvous->manager;
    if (!atomic_load_explicit(&manager->named, memory_order_acquire))
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "send of edge %s: the manager does not know its task yet",
                         key.edge_name);
    if (!kolo_device_is_of(key.src_device, manager->task))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "send of edge %s: its source %s is not of this task, %s",
                         key.edge_name, key.src_device, manager->task);
    KOLO_TRY(check_incarnation(manager, &key));
    kolo_item_t *send = calloc(1, sizeof *send), *met = NULL, *small = NULL;
    if (send == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "send of edge %s: no memory", key.edge_name);
    send->value = *value;
    if (args) send->args = *args;
    pthread_mutex_lock(&rendezvous->lock);
    kolo_status_t status = meet_receive(rendezvous, text, send, &met, &small);
    pthread_mutex_unlock(&rendezvous->lock);
    if (status != KOLO_OK || met) free(send);
    if (status == KOLO_ERR_NO_MEMORY)
        kolo_fail_prefix(status, "send of edge %s to %s: ", key.edge_name, key.dst_device);
    status = end_small(small, value, args, status);
    KOLO_FAIL_POINT("rendezvous.send.met");
    if (status == KOLO_OK && manager->watch) kolo_watch_sent(manager->watch, &key, rendezvous->step);
    if (met) {
        kolo_receive_end(met->receive, KOLO_OK, NULL, args, value);
        item_drop(met);
    }
    return status;
}

/* ---- receive ---- */

/* Lists a receive from another task, with the lock held. */
static void list_other(kolo_receive_t receive)
{
    kolo_rendezvous_t rendezvous = receive->rendezvous;
    kolo_receive_ref(receive);
    receive->next_other = rendezvous->others;
    receive->prev_other = &rendezvous->others;
    if (rendezvous->others) rendezvous->others->prev_other = &receive->next_other;
    rendezvous->others = receive;
}

/* Removes it from the list, with the lock held; true: it was there, and its reference is the caller's now. */
static bool unlist_other(kolo_receive_t receive)
{
    if (receive->prev_other == NULL) return false;
    *receive->prev_other = receive->next_other;
    if (receive->next_other) receive->next_other->prev_other = receive->prev_other;
    receive->next_other = NULL;
    receive->prev_other = NULL;
    return true;
}

void kolo_rendezvous_unlist(kolo_receive_t receive)
{
    pthread_mutex_lock(&receive->rendezvous->lock);
    bool listed = unlist_other(receive);
    pthread_mutex_unlock(&receive->rendezvous->lock);
    if (listed) kolo_receive_unref(receive);
}

/* Meets a send, under the lock: the receive is claimed and has its send, or it is in the table, or its owner has
 * given it up. */
static kolo_status_t meet_send(kolo_receive_t receive, kolo_item_t *item, kolo_item_t **met, bool *listed)
{
    kolo_key_table_t *table = &receive->rendezvous->table;
    KOLO_TRY(check_alive(receive->rendezvous));
    kolo_item_t *first = kolo_table_first_send(table, receive->text);
    if (first) {
        KOLO_TRY(kolo_receive_takes(receive, &first->value, &first->args));
        if (!kolo_receive_claim(receive)) return KOLO_OK;
        kolo_table_remove(table, first);
        end_waiting(receive->rendezvous, first);
        *met = first;
    } else if (!atomic_load_explicit(&receive->claimed, memory_order_acquire)) {
        KOLO_TRY(kolo_table_add(table, receive->text, item));
        *listed = true;
    }
    return KOLO_OK;
}

/* Receives from the table of this task. */
static kolo_status_t receive_here(kolo_receive_t receive)
{
    kolo_rendezvous_t rendezvous = receive->rendezvous;
    kolo_item_t *item = calloc(1, sizeof *item), *met = NULL;
    if (item == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "rendezvous: no memory for a receive");
    kolo_receive_ref(receive);
    item->receive = receive;
    pthread_mutex_lock(&rendezvous->lock);
    bool listed = false;
    kolo_status_t status = meet_send(receive, item, &met, &listed);
    pthread_mutex_unlock(&rendezvous->lock);
    if (!listed) item_drop(item);
    if (met) {
        kolo_receive_end(receive, KOLO_OK, NULL, &met->args, &met->value);
        free(met);
    }
    return status;
}

bool kolo_rendezvous_take(kolo_rendezvous_t rendezvous, const char *text, const kolo_tensor_key_t *key,
                          uint64_t most, kolo_value_t *value)
{
    const kolo_rendezvous_manager_t manager = rendezvous->manager;
    if (!atomic_load_explicit(&manager->named, memory_order_acquire) ||
        key->src_incarnation != manager->incarnation || !kolo_device_is_of(key->src_device, manager->task))
        return false;
    pthread_mutex_lock(&rendezvous->lock);
    kolo_item_t *item = rendezvous->status == KOLO_OK ? kolo_table_first_send(&rendezvous->table, text) : NULL;
    if (item && (item->args.memory == KOLO_MEMORY_DEVICE || item->value.bytes > most)) item = NULL;
    if (item) kolo_table_remove(&rendezvous->table, item);
    if (item) end_waiting(rendezvous, item);
    pthread_mutex_unlock(&rendezvous->lock);
    if (item == NULL) return false;
    *value = item->value;
    free(item);
    return true;
}

static kolo_status_t receive_from_other(kolo_receive_t receive)
{
    kolo_rendezvous_t rendezvous = receive->rendezvous;
    kolo_rendezvous_manager_t manager = rendezvous->manager;
    if (manager->remote == NULL)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "receive of edge %s: its source %s is not of this task, %s, "
                         "which is connected to no other",
                         receive->key.edge_name, receive->key.src_device, manager->task);
    if (receive->args.memory == KOLO_MEMORY_DEVICE && receive->args.into == NULL)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "receive of edge %s: it comes from another task, so it needs a destination on the device",
                         receive->key.edge_name);
    pthread_mutex_lock(&rendezvous->lock);
    kolo_status_t status = check_alive(rendezvous);
    if (status == KOLO_OK) list_other(receive); /* so that an abort reaches it */
    if (status == KOLO_OK) atomic_fetch_add(&manager->asking, 1);
    pthread_mutex_unlock(&rendezvous->lock);
    if (status != KOLO_OK) return status;
    KOLO_FAIL_POINT("rendezvous.receive.listed");
    status = manager->remote->receive(manager->remote_arg, receive);
    if (status != KOLO_OK) kolo_rendezvous_unlist(receive);
    atomic_fetch_sub(&manager->asking, 1);
    return status;
}

/* Starts a receive, of a task that has a name. */
static kolo_status_t receive_named(kolo_receive_t receive)
{
    kolo_rendezvous_manager_t manager = receive->rendezvous->manager;
    const kolo_tensor_key_t *key = &receive->key;
    bool from_here = kolo_device_is_of(key->src_device, manager->task);
    if (receive->serves && !from_here)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s was asked for edge %s of %s, which is not its device",
                         manager->task, key->edge_name, key->src_device);
    if (!receive->serves && !kolo_device_is_of(key->dst_device, manager->task))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "receive of edge %s: its destination %s is not of this task, %s", key->edge_name,
                         key->dst_device, manager->task);
    if (!from_here) return receive_from_other(receive);
    KOLO_TRY(check_incarnation(manager, key));
    return receive_here(receive);
}

/* Begins a receive, or keeps it until the manager has a name. */
static kolo_status_t receive_begin(kolo_receive_t receive)
{
    kolo_rendezvous_t rendezvous = receive->rendezvous;
    if (atomic_load_explicit(&rendezvous->manager->named, memory_order_acquire)) return receive_named(receive);
    pthread_mutex_lock(&rendezvous->lock);
    kolo_status_t status = check_alive(rendezvous);
    if (status == KOLO_OK) list_other(receive); /* so that an abort reaches it */
    pthread_mutex_unlock(&rendezvous->lock);
    if (status != KOLO_OK || kolo_rendezvous_manager_defer(rendezvous->manager, receive)) return status;
    kolo_rendezvous_unlist(receive);
    return receive_named(receive);
}

void kolo_rendezvous_replay(kolo_receive_t receive)
{
    kolo_rendezvous_unlist(receive);
    if (atomic_load_explicit(&receive->claimed, memory_order_acquire)) return;
    kolo_status_t status = receive_named(receive);
    if (status != KOLO_OK) kolo_receive_finish(receive, status, kolo_error_text(), NULL, NULL);
}

/* Tells who was asked for its value that it is not wanted any more. It is listed no more. */
static void cancel_other(kolo_receive_t receive)
{
    kolo_rendezvous_manager_t manager = receive->rendezvous->manager;
    if (manager->remote)
        manager->remote->cancel(manager->remote_arg, receive);
    else if (kolo_receive_part(receive))
        kolo_receive_end_late(receive);
}

bool kolo_rendezvous_give_up(kolo_receive_t receive)
{
    kolo_rendezvous_t rendezvous = receive->rendezvous;
    bool mine = kolo_receive_claim(receive);
    pthread_mutex_lock(&rendezvous->lock);
    kolo_item_t *item = receive->item;
    if (item) kolo_table_remove(&rendezvous->table, item);
    bool listed = unlist_other(receive);
    if (listed) atomic_fetch_add(&rendezvous->manager->asking, 1);
    pthread_mutex_unlock(&rendezvous->lock);
    if (item) item_drop(item);
    if (listed) cancel_other(receive);
    if (listed) atomic_fetch_sub(&rendezvous->manager->asking, 1);
    if (listed && mine && receive->args.into) kolo_receive_wait_parted(receive);
    if (listed) kolo_receive_unref(receive);
    return mine;
}

/* ---- public ---- */

kolo_status_t kolo_rendezvous_receive_call(kolo_rendezvous_t rendezvous, const char *text,
                                           const kolo_transfer_args_t *args, kolo_receive_fn_t fn, void *arg)
{
    kolo_tensor_key_t key;
    kolo_receive_t receive;
    KOLO_TRY(check_call("rendezvous_receive_call", rendezvous, text, &key));
    KOLO_TRY(kolo_rendezvous_transfer_check(args, true));
    if (fn == NULL) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "receive of edge %s: fn is NULL", key.edge_name);
    KOLO_TRY(kolo_receive_new(rendezvous, text, &key, args, &receive));
    receive->fn = fn;
    receive->fn_arg = arg;
    kolo_status_t status = receive_begin(receive);
    /* An abort may have met it in between: fn is told that, and nothing here. */
    if (status != KOLO_OK && !kolo_receive_claim(receive)) status = KOLO_OK;
    kolo_receive_unref(receive);
    return status;
}

kolo_status_t kolo_receive_begin(const char *call, kolo_rendezvous_t rendezvous, const char *text,
                                 const kolo_transfer_args_t *args, kolo_receive_t *out)
{
    kolo_tensor_key_t key;
    kolo_receive_t receive;
    KOLO_TRY(check_call(call, rendezvous, text, &key));
    KOLO_TRY(kolo_rendezvous_transfer_check(args, true));
    KOLO_TRY(kolo_receive_new(rendezvous, text, &key, args, &receive));
    kolo_status_t status = receive_begin(receive);
    if (status == KOLO_OK)
        *out = receive;
    else
        kolo_receive_unref(receive);
    return status;
}

kolo_status_t kolo_rendezvous_receive_begin(kolo_rendezvous_t rendezvous, const char *text,
                                            const kolo_transfer_args_t *args, kolo_receive_t *out)
{
    KOLO_TRY(kolo_rendezvous_check_given("rendezvous_receive_begin", "result", out));
    return kolo_receive_begin("rendezvous_receive_begin", rendezvous, text, args, out);
}

kolo_status_t kolo_rendezvous_receive(kolo_rendezvous_t rendezvous, const char *text,
                                      const kolo_transfer_args_t *args, int timeout_ms, kolo_value_t *value)
{
    static const char call[] = "rendezvous_receive";
    kolo_receive_t receive;
    bool ended;
    KOLO_TRY(kolo_rendezvous_check_given(call, "result", value));
    KOLO_TRY(kolo_rendezvous_check_timeout(call, timeout_ms));
    KOLO_TRY(kolo_rendezvous_check_wait(call, KOLO_THREAD_OF_PROGRAM));
    KOLO_TRY(kolo_receive_begin(call, rendezvous, text, args, &receive));
    kolo_status_t status = kolo_receive_await(receive, timeout_ms, value, &ended);
    if (ended) return status;
    if (kolo_rendezvous_give_up(receive)) {
        kolo_receive_unref(receive);
        return status;
    }
    return kolo_receive_await(receive, 0, value, &ended); /* it has ended at the last moment, or is about to */
}

kolo_status_t kolo_rendezvous_serve(kolo_rendezvous_t rendezvous, const kolo_serve_t *serve, kolo_receive_t *out)
{
    kolo_receive_t receive;
    KOLO_TRY(kolo_receive_new(rendezvous, serve->text, serve->key, NULL, &receive));
    if (serve->most) receive->most = serve->most;
    receive->fn = serve->fn;
    receive->fn_arg = serve->arg;
    receive->serves = true;
    kolo_status_t status = receive_begin(receive);
    if (status != KOLO_OK) kolo_receive_finish(receive, status, kolo_error_text(), NULL, NULL);
    *out = receive;
    return KOLO_OK;
}

kolo_status_t kolo_rendezvous_abort(kolo_rendezvous_t rendezvous, kolo_status_t status, const char *why)
{
    bool is_error = status > KOLO_IN_PROGRESS && status <= KOLO_ERR_REVOKED; /* it travels to other tasks */
    KOLO_TRY(kolo_rendezvous_check_handle("rendezvous_abort", "rendezvous", rendezvous));
    KOLO_TRY(kolo_rendezvous_check_given("rendezvous_abort", "reason", why));
    if (!is_error)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "rendezvous_abort: %d is not the status of an error",
                         (int)status);
    KOLO_TRY(kolo_rendezvous_check_process(rendezvous->manager));
    pthread_mutex_lock(&rendezvous->lock);
    bool first = rendezvous->status == KOLO_OK;
    if (first) {
        rendezvous->status = status;
        snprintf(rendezvous->why, sizeof rendezvous->why, "step %" PRIu64 ": %s", rendezvous->step, why);
    }
    kolo_item_t *item = kolo_table_take_all(&rendezvous->table);
    kolo_receive_t other = rendezvous->others;
    rendezvous->others = NULL;
    const bool asks = other != NULL;
    for (kolo_receive_t r = other; r; r = r->next_other) r->prev_other = NULL;
    if (asks) atomic_fetch_add(&rendezvous->manager->asking, 1);
    pthread_mutex_unlock(&rendezvous->lock);
    drop_all(rendezvous, item);
    while (other) {
        kolo_receive_t next = other->next_other;
        if (kolo_receive_claim(other)) kolo_receive_end_when_parted(other, rendezvous->status, rendezvous->why);
        cancel_other(other);
        kolo_receive_unref(other);
        other = next;
    }
    if (asks) atomic_fetch_sub(&rendezvous->manager->asking, 1);
    return KOLO_OK;
}

kolo_status_t kolo_rendezvous_close(kolo_rendezvous_t rendezvous)
{
    if (rendezvous == NULL) return KOLO_OK;
    KOLO_TRY(kolo_rendezvous_check_handle("rendezvous_close", "rendezvous", rendezvous));
    uint32_t opens = atomic_load_explicit(&rendezvous->opens, memory_order_relaxed);
    do {
        if (opens == 0)
            return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                             "rendezvous_close: step %" PRIu64 " was closed already, as often as it was opened",
                             rendezvous->step);
    } while (!atomic_compare_exchange_weak(&rendezvous->opens, &opens, opens - 1));
    kolo_rendezvous_unref(rendezvous);
    return KOLO_OK;
}
