/* SPDX-License-Identifier: Apache-2.0
 *
 * One receive: claiming it, ending it, waiting for it. See internal.h.
 */
#include "rendezvous/watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kolo_slots_t all = KOLO_SLOTS_OF(struct kolo_receive);

kolo_status_t kolo_receive_new(kolo_rendezvous_t rendezvous, const char *text, const kolo_tensor_key_t *key,
                               const kolo_transfer_args_t *args, kolo_receive_t *out)
{
    kolo_receive_t receive = kolo_slots_take(&all);
    if (receive == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "rendezvous: no memory for a receive");
    atomic_init(&receive->refs, 1);
    kolo_rendezvous_ref(rendezvous);
    receive->rendezvous = rendezvous;
    receive->since_ns = kolo_about_now_ns();
    receive->key = *key;
    memcpy(receive->text, text, strlen(text) + 1); /* parsed, so it is short enough */
    if (args) receive->args = *args;
    receive->most = receive->args.into ? receive->args.into_bytes : UINT64_MAX;
    *out = receive;
    return KOLO_OK;
}

void kolo_receive_ref(kolo_receive_t receive)
{
    atomic_fetch_add_explicit(&receive->refs, 1, memory_order_relaxed);
}

void kolo_receive_unref(kolo_receive_t receive)
{
    if (atomic_fetch_sub_explicit(&receive->refs, 1, memory_order_acq_rel) != 1) return;
    kolo_value_release(&receive->value); /* it was never fetched */
    kolo_rendezvous_unref(receive->rendezvous);
    free(receive->why);
    (void)kolo_slot_end(receive);
    kolo_slots_give(&all, receive);
}

bool kolo_receive_claim(kolo_receive_t receive)
{
    return !atomic_exchange_explicit(&receive->claimed, true, memory_order_acq_rel);
}

void kolo_receive_settle(kolo_receive_t receive, kolo_status_t status, const char *why, const kolo_value_t *value)
{
    kolo_watch_ended(receive->rendezvous->manager->watch, receive, status);
    receive->status = status;
    if (value) receive->value = *value;
    if (status != KOLO_OK) receive->why = strdup(why);
    atomic_store_explicit(&receive->ended, true, memory_order_release);
}

void kolo_receive_end(kolo_receive_t receive, kolo_status_t status, const char *why,
                      const kolo_transfer_args_t *sender, const kolo_value_t *value)
{
    static const kolo_transfer_args_t none;
    kolo_value_t given;
    memset(&given, 0, sizeof given);
    if (value) {
        given = *value;
        status = kolo_receive_land(receive, sender, &given);
        if (status != KOLO_OK) {
            value = NULL;
            why = kolo_error_text();
            memset(&given, 0, sizeof given);
        }
    }
    if (receive->fn) {
        char own[KOLO_ERROR_TEXT_BYTES]; /* a function that fails within fn changes this thread's error */
        kolo_rendezvous_watch_t *watch = receive->rendezvous->manager->watch;
        if (why == kolo_error_text()) why = memcpy(own, why, strlen(why) + 1);
        kolo_watch_ended(watch, receive, status);
        _Atomic uint64_t *call = receive->serves ? NULL : kolo_watch_call(watch);
        receive->fn(receive->fn_arg, status, why, sender ? sender : &none, &receive->args, value ? &given : NULL);
        kolo_watch_call_over(call);
        return;
    }
    kolo_receive_ref(receive); /* its owner may free it as soon as it has ended */
    kolo_receive_settle(receive, status, why, &given);
    kolo_gate_open(&receive->gate);
    kolo_receive_unref(receive);
}

void kolo_receive_finish(kolo_receive_t receive, kolo_status_t status, const char *why,
                         const kolo_transfer_args_t *sender, const kolo_value_t *value)
{
    if (kolo_receive_claim(receive)) {
        kolo_receive_end(receive, status, why, sender, value);
    } else if (value) {
        kolo_value_t late = *value;
        kolo_value_release(&late);
    }
}

/* ---- public ---- */

kolo_status_t kolo_receive_poll(kolo_receive_t receive, int *ended)
{
    KOLO_TRY(kolo_rendezvous_check_handle("receive_poll", "receive", receive));
    KOLO_TRY(kolo_rendezvous_check_given("receive_poll", "result", ended));
    *ended = atomic_load_explicit(&receive->ended, memory_order_acquire);
    return KOLO_OK;
}

static void describe(void *arg, char *buf, size_t bytes)
{
    const kolo_receive_t receive = arg;
    const kolo_rendezvous_manager_t manager = receive->rendezvous->manager;
    kolo_watch_wait_t wait = {0};
    int n = snprintf(buf, bytes, "a value of edge %s from %s (step %llu); ", receive->key.edge_name,
                     receive->key.src_device, (unsigned long long)receive->rendezvous->step);
    if (n < 0 || (size_t)n >= bytes) return;
    kolo_watch_describe(receive, &wait);
    if (kolo_device_is_of(receive->key.src_device, manager->task)) { /* it is to come from here */
        kolo_rendezvous_watch_t *watch = manager->watch;
        uint64_t now = kolo_now_ns(), lasted = watch ? kolo_watch_callback_ns(watch, now) : 0;
        wait.sent = kolo_watch_last_sent(watch, &receive->key, &wait.sent_step);
        wait.callback_ns = lasted ? now - lasted : 0;
    }
    kolo_watch_wait_words(manager->task, &wait, kolo_now_ns(), buf + n, bytes - (size_t)n);
}

kolo_status_t kolo_receive_await(kolo_receive_t receive, int timeout_ms, kolo_value_t *value, bool *ended)
{
    kolo_wait_t wait;
    *ended = false;
    if (!atomic_load_explicit(&receive->ended, memory_order_acquire))
        KOLO_TRY(kolo_rendezvous_check_wait("receive_wait", KOLO_THREAD_OF_PROGRAM));
    bool begun = false; /* most have ended when they are waited for: those ask for no time */
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(&receive->gate);
        if (atomic_load_explicit(&receive->ended, memory_order_acquire)) break;
        if (!begun) kolo_wait_init(&wait, NULL, kolo_deadline_ms(timeout_ms), describe, receive, 1);
        begun = true;
        KOLO_TRY(kolo_wait_check(&wait)); /* sets when to warn first */
        KOLO_TRY(kolo_gate_wait(&receive->gate, ticket, &wait));
    }
    kolo_status_t status = receive->status;
    if (status == KOLO_OK) {
        *value = receive->value;
        memset(&receive->value, 0, sizeof receive->value);
    } else {
        kolo_fail(status, "%s", receive->why ? receive->why : "no memory for the reason");
    }
    *ended = true;
    (void)kolo_slot_end(receive);
    kolo_receive_unref(receive);
    return status;
}

kolo_status_t kolo_receive_wait(kolo_receive_t receive, int timeout_ms, kolo_value_t *value)
{
    bool ended;
    KOLO_TRY(kolo_rendezvous_check_handle("receive_wait", "receive", receive));
    KOLO_TRY(kolo_rendezvous_check_given("receive_wait", "result", value));
    KOLO_TRY(kolo_rendezvous_check_timeout("receive_wait", timeout_ms));
    KOLO_TRY(kolo_rendezvous_check_process(receive->rendezvous->manager));
    kolo_status_t status = kolo_receive_await(receive, timeout_ms, value, &ended);
    return ended && status == KOLO_ERR_TIMEOUT ? KOLO_ERR_ABORTED : status; /* the handle has gone */
}

kolo_status_t kolo_receive_discard(kolo_receive_t receive)
{
    if (receive == NULL) return KOLO_OK;
    KOLO_TRY(kolo_rendezvous_check_handle("receive_discard", "receive", receive));
    KOLO_TRY(kolo_rendezvous_check_process(receive->rendezvous->manager));
    if (receive->args.into && !atomic_load_explicit(&receive->ended, memory_order_acquire))
        KOLO_TRY(kolo_rendezvous_check_wait("receive_discard", KOLO_THREAD_OF_CALLBACKS));
    (void)kolo_slot_end(receive);
    /* Where it has just found its value, that may be on its way into the caller's memory. */
    if (!kolo_rendezvous_give_up(receive) && receive->args.into) {
        kolo_wait_t wait;
        kolo_wait_init(&wait, NULL, 0, describe, receive, 1);
        for (uint32_t ticket; ticket = kolo_gate_ticket(&receive->gate),
                              !atomic_load_explicit(&receive->ended, memory_order_acquire);)
            (void)kolo_gate_wait(&receive->gate, ticket, &wait); /* whoever has claimed it is about to end it */
    }
    kolo_receive_unref(receive);
    return KOLO_OK;
}
