/* SPDX-License-Identifier: Apache-2.0
 *
 * When the loop sleeps, and why it misses nothing. All ranks see the same result of a cycle. If something moved and
 * something is left, the next cycle follows at once on all ranks, without a message. Otherwise every rank has sent
 * all it has, and only something new on some rank can change that: all go to sleep before the same cycle n. A rank
 * that gets something new (a submission, a shutdown) enters cycle n and notifies the ranks that do not come anyway
 * (wake.c): the notification has the number of the cycle, their progress threads open the gate on which they sleep,
 * and all enter cycle n. A notification that arrives before a rank sleeps keeps it awake, because the rank checks
 * the number first; a late one names a cycle that is over. So a sleeping engine sends nothing, polls nothing, and
 * reads the clock once a second. The price is one notification between ranks when work comes to one rank of an idle
 * job.
 *
 * This holds while set 0 is the only one. With more sets, a rank with something new asks for a turn of the set
 * (order.c), and all sleep until a turn comes. Cycles that follow at once belong to the turn, unless some rank of
 * the set has another turn waiting.
 *
 * The gate is that of set 0's communicator: it is also opened when the communicator fails.
 */
#include "base/cpu/yield.h"
#include "comm/comm.h"
#include "engine/batch/device.h"

#include <stdio.h>

#define LINGER_NS 30000

/* Tells whether this rank belongs to it, and it is still there. */
static bool takes_part(const kolo_set_t *s)
{
    return s->rank >= 0 && !s->removed;
}

/* Returns when a cached tensor has waited long enough that the coordinator should hear of it; the first one is the
 * oldest. */
static uint64_t stale_at(const kolo_set_t *s)
{
    uint64_t patience = s->engine->patience_ns;
    return s->pending && patience < UINT64_MAX ? s->pending->taken_ns + patience : UINT64_MAX;
}

static bool has_new(const kolo_set_t *s)
{
    bool may_join = kolo_set_may_join(s) && atomic_load(&s->lane.nelsewhere) == 0;
    if (may_join || s->failed || atomic_load(&s->lane.nfresh) > 0) return true;
    const struct kolo_tensor_engine *e = s->engine;
    return s->id == 0 && (atomic_load(&e->stop) || e->stalled[0] || atomic_load(&e->clocks_wanted));
}

void kolo_engine_look_for_stalls(struct kolo_tensor_engine *e)
{
    uint64_t now = kolo_now_ns();
    for (int id = 0; id < e->nsets; id++) {
        kolo_set_t *s = e->sets[id];
        if (!takes_part(s) || now < s->controller.stall.next_ns || e->stalled[0]) continue;
        kolo_stall_look(&s->controller, s->ranks, e->stalled, sizeof e->stalled);
    }
}

/* Writes down for kolo-top what this rank has waited for, for long. On rank 0 the coordinator says more
 * (stall.c). */
static void note_waits(kolo_set_t *s)
{
    char text[KOLO_RECORD_NOTE_TEXT];
    kolo_tensors_oldest_t oldest;
    if (!takes_part(s) || s->rank == 0) return;
    kolo_tensors_oldest(&s->lane, &oldest);
    if (oldest.count == 0 || kolo_now_ns() < oldest.taken_ns + KOLO_STALL_SHOWN_NS) return;
    snprintf(text, sizeof text, oldest.count > 1 ? "%.300s and %zu more" : "%.300s", oldest.title,
             oldest.count - 1);
    kolo_note_wait(&s->note, oldest.taken_ns, false, text);
}

/* Returns when this rank looks again whether it has waited for long. */
static uint64_t note_at(kolo_set_t *s)
{
    bool noted = takes_part(s) && s->rank > 0 && kolo_tensors_count(&s->lane) > 0;
    return noted ? kolo_now_ns() + KOLO_STALL_SHOWN_NS : UINT64_MAX;
}

static void describe_sleep(void *arg, char *buf, size_t bytes)
{
    (void)arg;
    snprintf(buf, bytes, "tensors to work on");
}

/* Lingers when another rank has called and there is nothing to say: most likely this rank's own submission is about
 * to come, on a thread that shares the core. To let it in saves a cycle that would agree on nothing. */
static void linger(const kolo_set_t *s)
{
    uint64_t until = kolo_now_ns() + LINGER_NS;
    while (!has_new(s) && s->npending == 0 && kolo_now_ns() < until)
        if (!kolo_yield()) return;
}

/* Sleeps until there is something to do: new here, or called by another rank, or waiting for too long. */
static kolo_status_t sleep_until_called(struct kolo_tensor_engine *e)
{
    kolo_wait_t wait;
    kolo_wait_init(&wait, NULL, 0, describe_sleep, NULL, 1);
    bool slept = false;
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(e->gate);
        KOLO_TRY(kolo_engine_status(e));
        kolo_engine_look_for_stalls(e);
        kolo_finisher_publish(e);
        uint64_t stale = stale_at(e->all), look = KOLO_MIN(stale, e->all->controller.stall.next_ns);
        if (has_new(e->all) || kolo_wake_called(e, e->all->cycle) || kolo_now_ns() >= stale) break;
        look = KOLO_MIN(look, note_at(e->all));
        wait.deadline_ns = look == UINT64_MAX ? 0 : look;
        kolo_status_t status = kolo_gate_wait(e->gate, ticket, &wait);
        if (status == KOLO_ERR_TIMEOUT) note_waits(e->all);
        if (status != KOLO_OK && status != KOLO_ERR_TIMEOUT) return status;
        slept = true;
    }
    if (slept) KOLO_TALLY(e->tally.sleeps, 1);
    linger(e->all);
    return kolo_wake_call(e, e->all->cycle);
}

/* Asks for a turn for every set in which there is something new here, or old enough. Returns until when this rank
 * may sleep if no turn comes. */
static kolo_status_t call_sets(struct kolo_tensor_engine *e, uint64_t *until)
{
    uint64_t now = kolo_now_ns();
    *until = UINT64_MAX;
    for (int id = 0; id < e->nsets; id++) {
        kolo_set_t *s = e->sets[id];
        if (!takes_part(s)) continue;
        *until = KOLO_MIN(*until, KOLO_MIN(s->controller.stall.next_ns, note_at(s)));
        if (s->called >= s->cycle) continue;
        if (has_new(s) || now >= stale_at(s))
            KOLO_TRY(kolo_order_call(s));
        else
            *until = KOLO_MIN(*until, stale_at(s));
    }
    return KOLO_OK;
}

/* Takes the next turn that is this rank's: the others are of sets that it does not belong to, or that were removed
 * after a rank asked for a cycle that was not needed. */
static kolo_status_t take_turn(struct kolo_tensor_engine *e, kolo_set_t **set)
{
    kolo_turn_t turn = {0, 0};
    for (bool found = true; found;) {
        KOLO_TRY(kolo_order_next(&e->order, &turn, &found));
        kolo_set_t *s = found && turn.set < e->nsets ? e->sets[turn.set] : NULL;
        if (!s || !takes_part(s) || turn.cycle < s->cycle) continue;
        if (turn.cycle > s->cycle)
            return kolo_fail(KOLO_ERR_PROTOCOL, "engine: cycle %llu of process set %d comes when %llu is next",
                             (unsigned long long)turn.cycle, s->id, (unsigned long long)s->cycle);
        *set = s;
        return KOLO_OK;
    }
    return KOLO_OK;
}

static kolo_status_t sleep_until_turn(struct kolo_tensor_engine *e, kolo_set_t **set)
{
    kolo_wait_t wait;
    kolo_wait_init(&wait, NULL, 0, describe_sleep, NULL, 1);
    bool slept = false;
    for (*set = NULL;; slept = true) {
        uint64_t until;
        uint32_t ticket = kolo_gate_ticket(e->gate);
        KOLO_TRY(kolo_engine_status(e));
        kolo_engine_look_for_stalls(e);
        kolo_finisher_publish(e);
        KOLO_TRY(call_sets(e, &until));
        KOLO_TRY(take_turn(e, set));
        if (*set) break;
        wait.deadline_ns = until == UINT64_MAX ? 0 : until;
        kolo_status_t status = kolo_gate_wait(e->gate, ticket, &wait);
        for (int id = 0; status == KOLO_ERR_TIMEOUT && id < e->nsets; id++) note_waits(e->sets[id]);
        if (status != KOLO_OK && status != KOLO_ERR_TIMEOUT) return status;
    }
    if (slept) KOLO_TALLY(e->tally.sleeps, 1);
    linger(*set);
    return KOLO_OK;
}

kolo_status_t kolo_engine_sleep(struct kolo_tensor_engine *e, kolo_set_t **set)
{
    if (e->nlive > 1) return sleep_until_turn(e, set);
    *set = e->all;
    return sleep_until_called(e);
}
