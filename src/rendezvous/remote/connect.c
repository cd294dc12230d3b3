/* SPDX-License-Identifier: Apache-2.0
 *
 * The adapter's connections: letting other tasks in, dialling them, channels that begin and end, and the receives
 * that wait for a channel. The progress thread makes the sockets (link/) and passes them to the adapter's thread as
 * commands.
 */
#include "base/process.h"
#include "rendezvous/remote/adapter.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>

/* ---- incoming: on the progress thread ---- */

static kolo_auth_verdict_t admit(void *owner, const kolo_claim_t *claim, size_t *frame_bytes)
{
    const kolo_adapter_t *adapter = owner;
    *frame_bytes = 0;
    bool fine = claim->purpose == KOLO_PURPOSE_STREAM && claim->from >= 0 && claim->from < adapter->ntasks &&
                claim->from != adapter->me && claim->to == adapter->me;
    return fine ? KOLO_VERDICT_OK : KOLO_VERDICT_REFUSED;
}

static void let_in(void *owner, const kolo_claim_t *claim, kolo_socket_t socket, const uint8_t *frame)
{
    (void)frame;
    kolo_command_t *c = kolo_command_new(claim->tag & 1 ? KOLO_DO_LANE : KOLO_DO_LET_IN, claim->from);
    if (c == NULL) {
        kolo_socket_leave(&socket);
        return;
    }
    c->tag = claim->tag;
    c->socket = socket;
    if (!kolo_command_give(owner, c)) kolo_command_drop(c);
}

static const kolo_listener_ops_t listener_ops = {.admit = admit, .accepted = let_in};

kolo_status_t kolo_adapter_listen(kolo_adapter_t *adapter)
{
    kolo_address_t door;
    KOLO_TRY(kolo_meeting_choose_door(adapter, &door));
    const kolo_listener_config_t config = {&door, &adapter->key, &listener_ops, adapter, false};
    KOLO_TRY(kolo_listener_open(adapter->progress, &config, &adapter->listener));
    door = kolo_listener_address(adapter->listener);
    kolo_meeting_opened(adapter, &door);
    return KOLO_OK;
}

static void close_listener(void *arg)
{
    kolo_listener_close(arg);
}

void kolo_adapter_close_listener(kolo_adapter_t *adapter)
{
    if (adapter->listener) kolo_progress_call(adapter->progress, close_listener, adapter->listener);
    adapter->listener = NULL;
}

/* ---- outgoing: dialled() is on the progress thread, the rest on the adapter's ---- */

static void dialled(void *arg, kolo_status_t status, kolo_socket_t socket, const char *text)
{
    kolo_peer_task_t *peer = arg;
    kolo_command_t *c = peer->call;
    peer->call = NULL;
    kolo_command_called(peer->adapter, c, status, socket, text);
}

void kolo_adapter_fail_pending(kolo_adapter_t *adapter, kolo_peer_task_t *peer, kolo_status_t status,
                               const char *why)
{
    kolo_receive_t receive = peer->pending;
    peer->pending = NULL;
    peer->last_pending = &peer->pending;
    while (receive) {
        kolo_receive_t next = receive->next_deferred;
        receive->next_deferred = NULL;
        kolo_adapter_deliver(adapter, receive, status, why, NULL);
        receive = next;
    }
}

/* Notes a failure for threads that wait for a task without a receive (kolo_server_incarnation()). */
static void note_failure(kolo_adapter_t *adapter, int task, kolo_status_t status, const char *why)
{
    kolo_call_failure_t *failure = &adapter->failures[task];
    pthread_mutex_lock(&adapter->lock);
    failure->count++;
    failure->status = status;
    snprintf(failure->why, sizeof failure->why, "%s", why);
    pthread_mutex_unlock(&adapter->lock);
    kolo_gate_open(&adapter->changed);
}

void kolo_adapter_call_failed(kolo_adapter_t *adapter, int task, kolo_status_t status, const char *why)
{
    note_failure(adapter, task, status, why);
    kolo_adapter_fail_pending(adapter, &adapter->peers[task], status, adapter->failures[task].why);
}

void kolo_adapter_dial(kolo_adapter_t *adapter, int task)
{
    kolo_peer_task_t *peer = &adapter->peers[task];
    if (peer->channel || peer->dialling) return;
    kolo_dial_config_t config = {.key = adapter->key,
                                 .claim = {.purpose = KOLO_PURPOSE_STREAM, .from = adapter->me, .to = task},
                                 .deadline_ns = kolo_deadline_ms(adapter->connect_ms),
                                 .done = dialled};
    if (!kolo_meeting_find(adapter, task, &config.address, &config.deadline_ns)) return;
    /* A listed address may be refused now and served later; a refused address from the meeting is out of date. */
    config.retry_refused = memcmp(&config.address, &adapter->tasks[task].address, sizeof config.address) == 0;
    snprintf(config.who, sizeof config.who, "%.63s", adapter->tasks[task].name);
    if (kolo_random(&peer->tag, sizeof peer->tag) != KOLO_OK) peer->tag = 0; /* such a channel has no lanes */
    peer->tag &= ~UINT64_C(1);
    config.claim.tag = peer->tag;
    peer->address = config.address;
    kolo_status_t status = KOLO_ERR_NO_MEMORY;
    peer->call =
        kolo_command_new(KOLO_DO_CALLED, task); /* allocated ahead, so that the result can always be passed on */
    if (peer->call) {
        config.arg = peer;
        peer->dialling = true;
        status = kolo_dial_start(adapter->progress, &config, &peer->dial);
        if (status == KOLO_OK) return;
        peer->dialling = false;
        kolo_command_drop(peer->call);
        peer->call = NULL;
    }
    kolo_adapter_call_failed(adapter, task, status, kolo_error_text());
}

void kolo_adapter_end_channel(kolo_channel_t *channel, kolo_status_t status, const char *why)
{
    kolo_adapter_t *adapter = channel->adapter;
    kolo_peer_task_t *peer = &adapter->peers[channel->peer];
    int task = channel->peer;
    bool caller = channel->caller;
    if (caller) {
        peer->channel = NULL;
        atomic_store(&adapter->incarnations[task], 0);
    } else {
        kolo_channel_t **at = &adapter->accepted;
        while (*at != channel) at = &(*at)->next;
        *at = channel->next;
    }
    kolo_meeting_left(adapter, channel);
    if (!atomic_load(&adapter->stop))
        kolo_info("rendezvous", "a channel with %s has ended: %s", adapter->tasks[task].name, why);
    kolo_channel_close(channel, status, why);
    if (caller) kolo_adapter_call_failed(adapter, task, status, why);
    if (caller && task == 0) kolo_meeting_keeper_lost(adapter, status, why);
}

/* Ends and frees the channel if a call on it has failed. */
void kolo_adapter_check(kolo_channel_t *channel, kolo_status_t status)
{
    char why[KOLO_WHY_BYTES];
    if (status == KOLO_OK) return;
    snprintf(why, sizeof why, "%s", kolo_error_text());
    kolo_adapter_end_channel(channel, status, why);
}

void kolo_adapter_begin_pending(kolo_adapter_t *adapter, int task)
{
    kolo_peer_task_t *peer = &adapter->peers[task];
    while (peer->channel && peer->channel->greeted && peer->pending) {
        kolo_receive_t receive = peer->pending;
        peer->pending = receive->next_deferred;
        if (peer->pending == NULL) peer->last_pending = &peer->pending;
        receive->next_deferred = NULL;
        if (atomic_load(&receive->claimed))
            kolo_adapter_part(adapter, receive);
        else
            kolo_adapter_check(peer->channel, kolo_fetch_begin(peer->channel, receive));
    }
}

void kolo_adapter_start_receive(kolo_adapter_t *adapter, int task, kolo_receive_t receive)
{
    kolo_peer_task_t *peer = &adapter->peers[task];
    kolo_receives_append(&peer->last_pending, receive);
    if (peer->channel)
        kolo_adapter_begin_pending(adapter, task);
    else
        kolo_adapter_dial(adapter, task);
}

void kolo_adapter_take_socket(kolo_adapter_t *adapter, const kolo_command_t *c)
{
    kolo_channel_t *channel;
    bool caller = c->what == KOLO_DO_CALLED;
    kolo_status_t status = c->status;
    char why[KOLO_WHY_BYTES];
    snprintf(why, sizeof why, "%s", c->why);
    if (caller) adapter->peers[c->task].dialling = false;
    if (status == KOLO_OK) {
        status = kolo_channel_open(adapter, c->task, caller, c->socket, &channel);
        if (status != KOLO_OK) snprintf(why, sizeof why, "%s", kolo_error_text());
    }
    if (status != KOLO_OK && caller) {
        if (kolo_meeting_shut(adapter, c->task, status)) return;
        kolo_adapter_call_failed(adapter, c->task, status, why);
        if (c->task == 0) kolo_meeting_keeper_lost(adapter, status, why);
    } else if (status != KOLO_OK) {
        kolo_warn("rendezvous", "cannot let %s in: %s", adapter->tasks[c->task].name, why);
    } else if (caller) {
        channel->tag = adapter->peers[c->task].tag;
        adapter->peers[c->task].channel = channel;
        kolo_meeting_reached(adapter, c->task);
    } else {
        channel->tag = c->tag;
        channel->next = adapter->accepted;
        adapter->accepted = channel;
    }
}

/* Adds a lane to its channel, which may have ended meanwhile. */
void kolo_adapter_take_lane(kolo_adapter_t *adapter, kolo_command_t *c)
{
    kolo_channel_t *channel = c->caller ? adapter->peers[c->task].channel : adapter->accepted;
    while (channel && (channel->peer != c->task || channel->tag != (c->tag & ~UINT64_C(1))))
        channel = c->caller ? NULL : channel->next;
    if (c->status != KOLO_OK) {
        kolo_info("rendezvous", "large values of %s go by one connection: %s", adapter->tasks[c->task].name,
                  c->why);
    } else if (channel) {
        kolo_adapter_check(channel, kolo_channel_add_lane(channel, c->socket));
    } else {
        kolo_socket_leave(&c->socket);
    }
}
