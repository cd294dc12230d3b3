/* SPDX-License-Identifier: Apache-2.0
 *
 * How ranks that sleep learn that another has work. Cycles are numbered, and a rank that wants number n to begin
 * notifies its neighbours in a tree over all ranks; the progress thread of each passes the notification on, once,
 * and opens the gate on which the loop sleeps. In small jobs all ranks are neighbours and none forwards. The number
 * names the cycle, so late and double notifications do nothing. sleep.c says when ranks sleep. All this is for set
 * 0 when it is the only one; with several sets order.c has notifications that carry their order.
 *
 * Most of the time all ranks get work at about the same time and need no notification. So a rank enters the cycle
 * silently, and notifies the others from there once it has waited longer than they usually need. It notifies first
 * if some rank will not come without it: one that has sent its requests and sleeps until the others have theirs, or
 * one that has joined. Also if its wait might not get to the notification: before a first use of connections, with
 * KOLO_CHECK=deep, over MPI.
 */
#include "comm/comm.h"
#include "comm/params.h"
#include "engine/controller/talk.h"
#include "engine/engine.h"

#include <stdlib.h>

#define DIRECT_MAX 8                            /* ranks that tell each other directly */
#define MEET_TAG   UINT64_C(0x6b6f6c6f6e756467) /* "kolonudg" */

uint64_t kolo_wake_patience_ns = 20000;

/* Raises the number; false: it is there already. */
static bool raise_to(kolo_wake_t *wake, uint64_t cycle)
{
    uint64_t old = atomic_load(&wake->called);
    while (old < cycle)
        if (atomic_compare_exchange_weak(&wake->called, &old, cycle)) return true;
    return false;
}

/* Takes a notification, on the progress thread. A neighbour that is gone is told by the communicator's own news. */
static void on_notify(void *arg, int from, uint64_t cycle)
{
    kolo_tensor_engine_t e = arg;
    kolo_wake_t *w = &e->wake;
    if (kolo_order_kind(cycle) != KOLO_NOTIFY_CYCLE) {
        kolo_order_heard(e, from, cycle);
        return;
    }
    if (!raise_to(w, cycle)) return;
    for (int i = 0; i < w->count && !w->direct; i++)
        if (w->neighbours[i] != from) kolo_oob_notify_more(e->all->comm->body->oob, w->neighbours[i], cycle);
    kolo_gate_open(e->gate);
}

static void find_neighbours(kolo_wake_t *w, int rank, int size)
{
    w->direct = size <= DIRECT_MAX;
    for (int r = 0; r < size; r++) {
        bool tree =
            (rank > 0 && r == (rank - 1) / KOLO_WAKE_FAN_OUT) || (r > 0 && rank == (r - 1) / KOLO_WAKE_FAN_OUT);
        if (r != rank && (w->direct || tree)) w->neighbours[w->count++] = r;
    }
}

static kolo_status_t notify_all(struct kolo_tensor_engine *e, uint64_t cycle)
{
    if (!raise_to(&e->wake, cycle)) return KOLO_OK;
    kolo_body_t *body = kolo_handle_visit(e->all->comm, "engine");
    if (!body) return KOLO_ERR_ABORTED;
    kolo_status_t status = KOLO_OK;
    for (int i = 0; i < e->wake.count && status == KOLO_OK; i++)
        status = kolo_oob_notify(body->oob, e->wake.neighbours[i], cycle);
    kolo_handle_leave(e->all->comm);
    KOLO_TALLY(e->wake.sent, 1);
    /* One that is gone will be found so by the cycle itself, with better words. */
    if (status == KOLO_ERR_REMOTE) status = KOLO_OK;
    return status;
}

static bool may_come_first(const struct kolo_tensor_engine *e)
{
    const kolo_set_t *s = e->all;
    return e->wake.settled && e->talk == &kolo_talk_kolo && s->njoined == 0 &&
           e->wake.words == kolo_controller_vector_words(s) && kolo_comm_options.check != KOLO_CHECK_DEEP;
}

/* Notifies those who are owed a word while the loop waits in an operation of set 0. */
static kolo_status_t on_wait(void *arg)
{
    struct kolo_tensor_engine *e = arg;
    if (!e->wake.owes || kolo_now_ns() < e->wake.since_ns + kolo_wake_patience_ns) return KOLO_OK;
    e->wake.owes = false;
    return notify_all(e, e->all->cycle);
}

kolo_status_t kolo_wake_init(struct kolo_tensor_engine *e)
{
    kolo_wake_t *w = &e->wake;
    kolo_oob_t *oob = e->all->comm->body->oob;
    w->neighbours = calloc((size_t)KOLO_MAX(e->size, 1), sizeof *w->neighbours);
    if (!w->neighbours) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %d ranks", e->size);
    find_neighbours(w, e->rank, e->size);
    if (e->size == 1) return KOLO_OK;
    kolo_oob_set_notify(oob, on_notify, e);
    e->all->comm->body->waits.on_wait = on_wait;
    e->all->comm->body->waits.arg = e;
    for (int i = 0; i < w->count; i++) KOLO_TRY(kolo_oob_send(oob, w->neighbours[i], MEET_TAG, NULL, 0));
    for (int i = 0; i < w->count; i++) KOLO_TRY(kolo_oob_recv(oob, w->neighbours[i], MEET_TAG, NULL, 0, 0));
    return KOLO_OK;
}

void kolo_wake_fini(struct kolo_tensor_engine *e)
{
    free(e->wake.neighbours);
    e->wake.neighbours = NULL;
    e->wake.count = 0;
}

bool kolo_wake_called(const struct kolo_tensor_engine *e, uint64_t cycle)
{
    return atomic_load(&e->wake.called) >= cycle;
}

kolo_status_t kolo_wake_call(struct kolo_tensor_engine *e, uint64_t cycle)
{
    if (e->size == 1 || kolo_wake_called(e, cycle)) return KOLO_OK;
    if (!may_come_first(e)) return notify_all(e, cycle);
    e->wake.owes = true;
    e->wake.since_ns = kolo_now_ns();
    return KOLO_OK;
}

void kolo_wake_met(struct kolo_tensor_engine *e, size_t words)
{
    e->wake.owes = false;
    e->wake.words = words;
}

void kolo_wake_note(struct kolo_tensor_engine *e, const kolo_outcome_t *outcome)
{
    if (outcome->left || outcome->count > 0) e->wake.settled = !outcome->left;
}
