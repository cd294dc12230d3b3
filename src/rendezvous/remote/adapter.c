/* SPDX-License-Identifier: Apache-2.0
 *
 * The adapter's thread: it runs what other threads have queued, moves all channels of a task, and sleeps when it
 * has nothing to do.
 */
#include "rendezvous/remote/adapter.h"
#include "rendezvous/watch.h"

#include <stdio.h>
#include <stdlib.h>

#define SPINS        200
#define YIELDS       50
#define QUIET_ROUNDS 200 /* without an event; then a channel is cold */
#define COLD_LOOKS   4   /* how many cold channels each round looks at */

int64_t kolo_rendezvous_param_credits, kolo_rendezvous_param_chunk, kolo_rendezvous_param_threads,
    kolo_rendezvous_param_inline;

static void run_command(kolo_adapter_t *adapter, kolo_command_t *c)
{
    switch (c->what) {
    case KOLO_DO_CANCEL:
        if (kolo_fetch_cancel(c->receive))
            kolo_adapter_part(adapter, c->receive);
        else
            kolo_receive_unref(c->receive);
        break;
    case KOLO_DO_CALL:
        kolo_adapter_dial(adapter, c->task);
        break;
    case KOLO_DO_CALLED:
    case KOLO_DO_LET_IN:
        kolo_adapter_take_socket(adapter, c);
        break;
    case KOLO_DO_LANE:
        kolo_adapter_take_lane(adapter, c);
        break;
    }
    free(c);
}

/* Starts receives until `last` have been started in all; returns the rest of the list. */
static kolo_receive_t begin_receives(kolo_adapter_t *adapter, kolo_receive_t receive, uint64_t last)
{
    while (receive && adapter->nbegun < last) {
        kolo_receive_t next = receive->next_deferred;
        kolo_adapter_start_receive(adapter, receive->remote_task, receive);
        adapter->nbegun++;
        receive = next;
    }
    return receive;
}

static bool run_commands(kolo_adapter_t *adapter)
{
    pthread_mutex_lock(&adapter->lock);
    kolo_command_t *c = adapter->commands;
    kolo_answer_t *answer = adapter->ready;
    kolo_receive_t receive = adapter->asked;
    adapter->asked = NULL;
    adapter->last_asked = &adapter->asked;
    adapter->commands = NULL;
    adapter->last_command = &adapter->commands;
    adapter->ready = NULL;
    adapter->last_ready = &adapter->ready;
    pthread_mutex_unlock(&adapter->lock);
    bool busy = c != NULL || answer != NULL || receive != NULL;
    while (c) {
        kolo_command_t *next = c->next;
        receive = begin_receives(adapter, receive,
                                 c->behind); /* receives and commands in the order in which they were queued */
        run_command(adapter, c);
        c = next;
    }
    (void)begin_receives(adapter, receive, UINT64_MAX);
    while (answer) {
        kolo_answer_t *next = answer->next_ready;
        kolo_channel_t *channel = answer->channel;
        kolo_status_t status = kolo_answer_ready(answer);
        if (channel) kolo_adapter_check(channel, status);
        answer = next;
    }
    return busy;
}

/* Moves one channel and returns whether anything happened. The channel may have ended afterwards. */
static bool move_one(kolo_channel_t *channel)
{
    kolo_adapter_t *adapter = channel->adapter;
    int task = channel->peer;
    uint32_t place = channel->place;
    bool caller = channel->caller, busy = false;
    kolo_adapter_check(channel, kolo_channel_step(channel, &busy));
    if (caller) kolo_adapter_begin_pending(adapter, task);
    if (place >= adapter->nchannels || adapter->channels[place] != channel)
        return busy; /* it has ended, or moved */
    if (busy)
        kolo_adapter_heat(channel);
    else if (++channel->quiet >= QUIET_ROUNDS && channel->greeted && !kolo_onesided_is_writing(channel->end))
        kolo_adapter_cool(channel);
    return busy;
}

static bool move_all(kolo_adapter_t *adapter, bool also_cold)
{
    bool busy = false;
    uint64_t looks = 0;
    for (uint32_t i = 0; i < adapter->nhot; looks++) {
        const kolo_channel_t *channel = adapter->channels[i];
        busy |= move_one(adapter->channels[i]);
        i += i < adapter->nhot && adapter->channels[i] == channel; /* else another channel has taken its place */
    }
    uint32_t cold = adapter->nchannels - adapter->nhot, n = also_cold ? cold : KOLO_MIN(cold, (uint32_t)COLD_LOOKS);
    for (uint32_t i = 0; i < n && adapter->nchannels > adapter->nhot; i++) {
        uint32_t at = adapter->nhot + adapter->next_cold++ % (adapter->nchannels - adapter->nhot);
        busy |= move_one(adapter->channels[at]);
    }
    KOLO_RDV_COUNT(rounds, !also_cold);
    KOLO_RDV_COUNT(round_looks, also_cold ? 0 : looks + n);
    return busy;
}

static void describe(void *arg, char *buf, size_t bytes)
{
    const kolo_adapter_t *adapter = arg;
    snprintf(buf, bytes, "something to do for %s", adapter->tasks[adapter->me].name);
}

/* Writes down what has waited for long, for kolo-top, and asks the senders how far they are. */
static void look_now_and_then(kolo_adapter_t *adapter)
{
    uint64_t now = kolo_now_ns();
    if (adapter->manager->watch == NULL || now < adapter->looked_ns + KOLO_WATCH_LOOK_MS * KOLO_NS_PER_MS) return;
    kolo_watch_look(adapter->manager->watch, adapter->manager);
    adapter->looked_ns = now;
    for (int i = 0; i < adapter->ntasks; i++) {
        kolo_channel_t *channel = adapter->peers[i].channel;
        if (channel && channel->greeted) kolo_adapter_check(channel, kolo_fetches_ask_progress(channel, now));
    }
}

/* Tells whether this thread has announced that it will sleep: peers ring from now on, so every channel must be
 * checked once more. */
static bool is_asleep(const kolo_adapter_t *adapter)
{
    return atomic_load_explicit(kolo_onesided_domain_waker(adapter->domain)->asleep, memory_order_relaxed) != 0;
}

void *kolo_adapter_run(void *arg)
{
    kolo_adapter_t *adapter = arg;
    kolo_wait_t wait;
    uint32_t rounds = 0;
    (void)kolo_rendezvous_enter(KOLO_THREAD_OF_CHANNELS);
    bool woken = false;                                   /* whether it may have slept since the last round */
    kolo_wait_init(&wait, NULL, 0, describe, adapter, 1); /* it may be stopped before its first round */
    for (bool busy = true; !atomic_load_explicit(&adapter->stop, memory_order_acquire);) {
        if (busy) { /* an idle adapter is no stall: each sleep starts a new wait */
            kolo_wait_init(&wait, NULL, 0, describe, adapter, 1);
            wait.spins = SPINS;
            wait.yields = YIELDS;
            wait.wakers[wait.nwakers++] = kolo_onesided_domain_waker(adapter->domain);
        }
        busy = run_commands(adapter);
        bool all = is_asleep(adapter);
        busy |= move_all(adapter, all || woken);
        woken = all;
        kolo_adapter_wake_settled(adapter);
        if (!busy || ++rounds % 256 == 0) {
            look_now_and_then(adapter);
            kolo_meeting_poll(adapter);
        }
        if (busy) {
            kolo_wait_end(&wait);
            continue;
        }
        (void)kolo_wait_pause(&wait); /* this wait has no time limit */
        wait.stall_ns = 0;
    }
    kolo_wait_end(&wait);
    return NULL;
}
