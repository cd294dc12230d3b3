/* SPDX-License-Identifier: Apache-2.0
 *
 * The adapter: one thread that moves all channels of a task, runs commands of other threads, and sleeps when it has
 * nothing to do. Outgoing and incoming connections are made on the engine thread (link/), which passes their
 * sockets on as commands.
 */
#include "rendezvous/remote/channel.h"
#include "rendezvous/watch.h"

#include "base/failpoint.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPINS        200
#define YIELDS       50
#define QUIET_ROUNDS 200 /* without an event; then a channel is cold */
#define COLD_LOOKS   4   /* how many cold channels each round looks at */

int64_t kolo_rendezvous_param_credits, kolo_rendezvous_param_chunk, kolo_rendezvous_param_threads,
    kolo_rendezvous_param_inline;

/* ---- connections: on the engine thread ---- */

static kolo_verdict_t admit(void *owner, const kolo_claim_t *claim, size_t *frame_bytes)
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

static void dialled(void *arg, kolo_status_t status, kolo_socket_t socket, const char *text)
{
    kolo_peer_task_t *peer = arg;
    kolo_command_t *c = peer->call;
    peer->call = NULL;
    kolo_command_called(peer->adapter, c, status, socket, text);
}

/* ---- the thread ---- */

static void fail_pending(kolo_adapter_t *adapter, kolo_peer_task_t *peer, kolo_status_t status, const char *why)
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

/* For threads that wait for a task without a receive (kolo_server_incarnation()). */
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
    fail_pending(adapter, &adapter->peers[task], status, why);
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
    if (kolo_auth_random(&peer->tag, sizeof peer->tag) != KOLO_OK) peer->tag = 0; /* such a channel has no lanes */
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

static void end_channel(kolo_channel_t *channel, kolo_status_t status, const char *why)
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
static void check(kolo_channel_t *channel, kolo_status_t status)
{
    char why[KOLO_WHY_BYTES];
    if (status == KOLO_OK) return;
    snprintf(why, sizeof why, "%s", kolo_error_text());
    end_channel(channel, status, why);
}

static void begin_pending(kolo_adapter_t *adapter, int task)
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
            check(peer->channel, kolo_fetch_begin(peer->channel, receive));
    }
}

static void start_receive(kolo_adapter_t *adapter, int task, kolo_receive_t receive)
{
    kolo_peer_task_t *peer = &adapter->peers[task];
    kolo_receives_append(&peer->last_pending, receive);
    if (peer->channel)
        begin_pending(adapter, task);
    else
        kolo_adapter_dial(adapter, task);
}

static void take_socket(kolo_adapter_t *adapter, const kolo_command_t *c)
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
static void take_lane(kolo_adapter_t *adapter, kolo_command_t *c)
{
    kolo_channel_t *channel = c->caller ? adapter->peers[c->task].channel : adapter->accepted;
    while (channel && (channel->peer != c->task || channel->tag != (c->tag & ~UINT64_C(1))))
        channel = c->caller ? NULL : channel->next;
    if (c->status != KOLO_OK) {
        kolo_info("rendezvous", "large values of %s go by one connection: %s", adapter->tasks[c->task].name,
                  c->why);
    } else if (channel) {
        check(channel, kolo_channel_add_lane(channel, c->socket));
    } else {
        kolo_socket_leave(&c->socket);
    }
}

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
        take_socket(adapter, c);
        break;
    case KOLO_DO_LANE:
        take_lane(adapter, c);
        break;
    }
    free(c);
}

/* Starts receives until `last` have been started in all; returns the rest of the list. */
static kolo_receive_t begin_receives(kolo_adapter_t *adapter, kolo_receive_t receive, uint64_t last)
{
    while (receive && adapter->nbegun < last) {
        kolo_receive_t next = receive->next_deferred;
        start_receive(adapter, receive->remote_task, receive);
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
        if (channel) check(channel, status);
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
    check(channel, kolo_channel_progress(channel, &busy));
    if (caller) begin_pending(adapter, task);
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
        if (channel && channel->greeted) check(channel, kolo_fetches_ask_progress(channel, now));
    }
}

/* True once this thread has announced that it will sleep: peers ring from now on, so every channel must be checked
 * once more. */
static bool is_asleep(const kolo_adapter_t *adapter)
{
    return atomic_load_explicit(kolo_onesided_domain_waker(adapter->domain)->asleep, memory_order_relaxed) != 0;
}

static void *run(void *arg)
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

/* ---- life ---- */

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
    int err = pthread_create(&adapter->thread, NULL, run, adapter);
    if (err) return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "rendezvous: cannot start a thread");
    adapter->running = true;
    kolo_trace("rendezvous", "set-up: thread of %s", adapter->tasks[adapter->me].name);
    pthread_mutex_lock(&adapter->lock);
    adapter->closed = false;
    pthread_mutex_unlock(&adapter->lock);
    KOLO_FAIL_POINT_TRY("rendezvous.adapter.listen");
    kolo_address_t door;
    KOLO_TRY(kolo_meeting_choose_door(adapter, &door));
    KOLO_TRY(kolo_listener_open(adapter->progress, &door, &adapter->key, &listener_ops, adapter, false,
                                &adapter->listener));
    door = kolo_listener_address(adapter->listener);
    kolo_meeting_opened(adapter, &door);
    return KOLO_OK;
}

static void close_listener(void *arg)
{
    kolo_listener_close(arg);
}

/* The thread has ended: this one is the adapter's now. */
static void end_all(kolo_adapter_t *adapter)
{
    static const char why[] = "this task's server has been stopped";
    while (adapter->accepted) end_channel(adapter->accepted, KOLO_ERR_ABORTED, why);
    for (int i = 0; adapter->peers && i < adapter->ntasks; i++) {
        kolo_dial_cancel(adapter->progress, &adapter->peers[i].dial);
        if (adapter->peers[i].call) kolo_command_drop(adapter->peers[i].call); /* it will not be told */
        adapter->peers[i].call = NULL;
        if (adapter->peers[i].channel) end_channel(adapter->peers[i].channel, KOLO_ERR_ABORTED, why);
        fail_pending(adapter, &adapter->peers[i], KOLO_ERR_ABORTED, why);
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

void kolo_adapter_stop(kolo_adapter_t *adapter)
{
    if (adapter->listener) kolo_progress_call(adapter->progress, close_listener, adapter->listener);
    adapter->listener = NULL;
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
