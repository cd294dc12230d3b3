/* SPDX-License-Identifier: Apache-2.0
 *
 * What ends the work of a communicator before it is done: an error that stays, an abort, kernels that are told to
 * end. It lies below calls, life and devices, for all of them come here, and so do the news of a loss.
 */
#include "comm/window/window.h"

#include <stdio.h>

/* ---- errors ---- */

kolo_status_t kolo_body_fail(kolo_body_t *body, kolo_status_t status)
{
    kolo_comm_t h = body->handle;
    pthread_mutex_lock(&h->error_lock);
    if (h->error == KOLO_OK || (h->error_is_news && h->error == status)) {
        h->error = status;
        h->error_is_news = false;
        snprintf(h->error_text, sizeof h->error_text, "%s", kolo_error_text());
        kolo_record_failed(body);
    }
    pthread_mutex_unlock(&h->error_lock);
    /* while init runs only init ends STARTING, so that nothing is freed that it still uses */
    if (atomic_load(&h->state) != KOLO_COMM_STARTING)
        atomic_store(&h->state, atomic_load(&body->abort) ? KOLO_COMM_ABORTED : KOLO_COMM_FAILED);
    if (body->oob) kolo_oob_give_up(body->oob);
    kolo_device_cancel(body);
    if (body->ctx_open) kolo_control_fail(&body->ctx); /* before the caller has its buffers back */
    kolo_gate_open(&h->gate);
    return status;
}

/* A child that is aborted while it is being set up mostly is so because its program has seen the parent fail. */
static void give_reason(kolo_oob_t *oob, const char *last_error)
{
    char words[512], word[400];
    bool told = kolo_oob_inherited_failure(oob, 0, word, sizeof word);
    if (!told) snprintf(word, sizeof word, "%s", last_error);
    snprintf(words, sizeof words, "its program aborted the communicator%s%s",
             told    ? "; before that, "
             : *word ? "; its last error was: "
                     : "",
             word);
    kolo_oob_give_reason(oob, words);
}

void kolo_body_interrupt(kolo_body_t *body, const char *last_error)
{
    if (body->ctx_open) kolo_waker_wake(&body->ctx.waker);
    if (body->oob && last_error) {
        give_reason(body->oob, last_error);
        kolo_oob_give_notice(body->oob);
    }
    if (body->oob) kolo_oob_close(body->oob);
    kolo_gate_open(&body->handle->gate);
}

/* Their waits look at the flags at least every 50 ms. */
void kolo_start_abort_all(kolo_comm_t parent)
{
    pthread_mutex_lock(&parent->error_lock);
    for (kolo_body_t *child = parent->making; child; child = child->next_making) {
        atomic_store(&child->abort, 1);
        atomic_store(&child->stop, KOLO_STOP_ABORT);
    }
    pthread_mutex_unlock(&parent->error_lock);
}

/* ---- devices ---- */

void kolo_levels_stop(kolo_body_t *body)
{
    kolo_body_t *children[] = {body->inside, body->across};
    for (int i = 0; i < 2; i++) {
        uint32_t none = KOLO_STOP_NONE;
        if (!children[i]) continue;
        atomic_compare_exchange_strong(&children[i]->stop, &none, KOLO_STOP_ABORT);
        atomic_store(&children[i]->abort, 1); /* connections that are being made wait in the room below (oob) */
        if (children[i]->ctx_open) kolo_waker_wake(&children[i]->ctx.waker);
    }
}

void kolo_device_cancel(kolo_body_t *body)
{
    void *state = atomic_load(&body->exec_state);
    if (!state) return;
    atomic_store(&body->device_cancelled, 1);
    kolo_levels_stop(body);
    body->exec->cancel(state);
    kolo_window_device_release(body);
}
