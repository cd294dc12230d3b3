/* SPDX-License-Identifier: Apache-2.0
 *
 * One channel: the messages of both directions with their credits, and what each notice means. See channel.h.
 */
#include "rendezvous/remote/channel.h"
#include "base/failpoint.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EVENTS 64
#define STEP   64u /* messages begin at multiples of it */

kolo_rendezvous_counters_t kolo_rendezvous_counters;

static const char *peer_name(const kolo_channel_t *channel)
{
    return channel->adapter->tasks[channel->peer].name;
}

kolo_status_t kolo_channel_bad_message(const kolo_channel_t *channel, const char *what, const char *wrong)
{
    return kolo_fail(KOLO_ERR_PROTOCOL, "%s of %s: %s", what, peer_name(channel), wrong);
}

kolo_status_t kolo_channel_open(kolo_adapter_t *adapter, int peer, bool caller, kolo_socket_t socket,
                                kolo_channel_t **out)
{
    kolo_onesided_config_t config = {.socket = socket, .kinds = adapter->kinds, .mailbox = KOLO_CHANNEL_MAILBOX};
    kolo_channel_t *channel = calloc(1, sizeof *channel);
    snprintf(config.who, sizeof config.who, "%s", adapter->tasks[peer].name);
    if (channel == NULL) {
        kolo_socket_leave(&socket);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "rendezvous: no memory for a channel with %s", config.who);
    }
    channel->adapter = adapter;
    channel->peer = peer;
    channel->caller = caller;
    channel->credit = 1;
    channel->deadline_ns = kolo_deadline_ms(adapter->connect_ms);
    channel->last_letter = &channel->letters;
    kolo_status_t status = kolo_onesided_open(adapter->domain, &config, &channel->end);
    if (status == KOLO_OK) status = kolo_adapter_add_channel(adapter, channel);
    if (status == KOLO_OK) {
        kolo_trace("rendezvous", "set-up: channel with %s and its mailbox", config.who);
        *out = channel;
        return KOLO_OK;
    }
    kolo_onesided_close(channel->end);
    free(channel);
    return status;
}

void kolo_channel_close(kolo_channel_t *channel, kolo_status_t status, const char *why)
{
    kolo_adapter_remove_channel(channel->adapter, channel);
    kolo_channel_narrow(channel);
    kolo_onesided_close(channel->end); /* first: nothing of ours is read or written any more */
    channel->end = NULL;
    kolo_fetches_close(channel, status, why);
    kolo_answer_close_all(channel);
    kolo_buffer_close_all(channel);
    for (int i = 0; i < KOLO_CHANNEL_BUCKETS; i++) {
        while (channel->shapes[i]) {
            kolo_known_shape_t *known = channel->shapes[i];
            channel->shapes[i] = known->next;
            free(known);
        }
    }
    while (channel->letters) {
        kolo_letter_t *letter = channel->letters;
        channel->letters = letter->next;
        free(letter);
    }
    if (channel->outbox) munmap(channel->outbox, KOLO_CHANNEL_MAILBOX);
    free(channel);
}

size_t kolo_channel_memory(const kolo_channel_t *channel)
{
    size_t bytes = sizeof *channel + kolo_onesided_memory(channel->end);
    bytes +=
        KOLO_MIN(channel->write_at, (uint64_t)KOLO_CHANNEL_MAILBOX) + channel->nletters * sizeof(kolo_letter_t);
    return bytes + channel->nrequests * sizeof *channel->requests + channel->nshapes * sizeof(kolo_known_shape_t);
}

kolo_status_t kolo_channel_write(kolo_channel_t *channel, const kolo_onesided_write_t *write)
{
    kolo_adapter_heat(channel);
    return kolo_onesided_write(channel->end, write);
}

/* ---- messages out ---- */

/* Returns where a message begins when the one before it ends at `at`. */
static uint64_t place(uint64_t at, size_t length)
{
    uint64_t left = KOLO_CHANNEL_MAILBOX - at % KOLO_CHANNEL_MAILBOX;
    return length <= left ? at : at + left;
}

/* Maps the outbox by itself: most channels never touch more than its first page, and malloc may fill what it gives
 * out. */
static kolo_status_t make_outbox(kolo_channel_t *channel)
{
    void *p = mmap(NULL, KOLO_CHANNEL_MAILBOX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "rendezvous: no memory for the messages to %s", peer_name(channel));
    (void)madvise(p, KOLO_CHANNEL_MAILBOX, MADV_NOHUGEPAGE); /* neighbours would make up a huge page */
    channel->outbox = p;
    return kolo_onesided_keep(channel->end, p, KOLO_CHANNEL_MAILBOX);
}

static kolo_status_t post(kolo_channel_t *channel, const uint8_t *bytes, size_t length)
{
    if (channel->outbox == NULL) KOLO_TRY(make_outbox(channel));
    uint64_t at = place(channel->write_at, length), offset = at % KOLO_CHANNEL_MAILBOX;
    memcpy(channel->outbox + offset, bytes, length);
    kolo_onesided_write_t write = {.data = channel->outbox + offset,
                                   .bytes = length,
                                   .to = kolo_onesided_peer_mailbox(channel->end),
                                   .offset = offset,
                                   .flags = KOLO_ONESIDED_NOTIFY,
                                   .number = KOLO_NOTICE_MESSAGE};
    channel->write_at = at + KOLO_ROUND_UP(length, STEP);
    channel->ends[channel->sent++ % KOLO_CHANNEL_CREDITS] = channel->write_at;
    return kolo_channel_write(channel, &write);
}

static bool has_room(const kolo_channel_t *channel, size_t length)
{
    uint64_t behind = 0; /* what the peer has not taken begins there */
    if (!channel->opened || channel->sent - channel->taken >= channel->credit) return false;
    if (channel->taken > 0) behind = channel->ends[(channel->taken - 1) % KOLO_CHANNEL_CREDITS];
    return place(channel->write_at, length) + length - behind <= KOLO_CHANNEL_MAILBOX;
}

kolo_status_t kolo_channel_send(kolo_channel_t *channel, kolo_message_t *message)
{
    return kolo_channel_send_with(channel, message, NULL, 0);
}

kolo_status_t kolo_channel_send_with(kolo_channel_t *channel, kolo_message_t *message, const void *value, size_t n)
{
    uint8_t bytes[KOLO_MESSAGE_BYTES];
    message->sequence = channel->sent + channel->nletters;
    size_t length = kolo_message_encode(message, bytes);
    if (n > 0) memcpy(bytes + length, value, n);
    length += n;
    KOLO_RDV_COUNT(messages, 1);
    kolo_trace("rendezvous", "to %s: %s index %u step %llu %s", peer_name(channel),
               kolo_message_name(message->kind), message->index, (unsigned long long)message->step, message->name);
    if (channel->letters == NULL && has_room(channel, length)) return post(channel, bytes, length);
    kolo_letter_t *letter = malloc(sizeof *letter + length);
    if (letter == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "rendezvous: no memory for a message");
    letter->next = NULL;
    letter->length = length;
    memcpy(letter->bytes, bytes, length);
    *channel->last_letter = letter;
    channel->last_letter = &letter->next;
    channel->nletters++;
    return KOLO_OK;
}

static kolo_status_t post_letters(kolo_channel_t *channel)
{
    while (channel->letters && has_room(channel, channel->letters->length)) {
        kolo_letter_t *letter = channel->letters;
        KOLO_TRY(post(channel, letter->bytes, letter->length));
        channel->letters = letter->next;
        channel->nletters--;
        if (channel->letters == NULL) channel->last_letter = &channel->letters;
        free(letter);
    }
    return KOLO_OK;
}

/* ---- messages in ---- */

static kolo_status_t greet(kolo_channel_t *channel)
{
    kolo_message_t hello = {.kind = KOLO_MESSAGE_HELLO};
    const kolo_adapter_t *adapter = channel->adapter;
    /* Stop and wait is what buffered mode began with; else as many as there is room for. */
    hello.index = adapter->mode == KOLO_MODE_BUFFERED ? 1 : (uint32_t)kolo_rendezvous_param_credits;
    hello.shape.bytes = adapter->incarnation;
    snprintf(hello.name, sizeof hello.name, "%s", adapter->tasks[adapter->me].name);
    return kolo_channel_send(channel, &hello);
}

static kolo_status_t greeted(kolo_channel_t *channel, const kolo_message_t *hello)
{
    kolo_adapter_t *adapter = channel->adapter;
    if (strcmp(hello->name, peer_name(channel)) != 0)
        return kolo_fail(KOLO_ERR_PROTOCOL, "%.95s is at the address of %s: the tasks have different clusters",
                         hello->name, peer_name(channel));
    if (hello->index < 1 || hello->index > KOLO_CHANNEL_CREDITS || hello->shape.bytes == 0)
        return kolo_channel_bad_message(channel, "the greeting", "its credit or incarnation is out of range");
    channel->credit = hello->index;
    channel->greeted = true;
    KOLO_TRY(kolo_meeting_greeted(channel));
    kolo_debug("rendezvous", "the channel with %s holds %zu bytes", peer_name(channel),
               kolo_channel_memory(channel));
    if (!channel->caller) return KOLO_OK;
    kolo_info("rendezvous", "%s is connected with %s by %s", adapter->tasks[adapter->me].name, peer_name(channel),
              kolo_onesided_kind_name(kolo_onesided_kind(channel->end)));
    atomic_store(&adapter->incarnations[channel->peer], hello->shape.bytes);
    kolo_gate_open(&adapter->changed);
    return KOLO_OK;
}

/* Handles a message. key: its name, if that is one. bytes: what the peer has written behind its head. */
static kolo_status_t handle(kolo_channel_t *channel, const kolo_message_t *m, const kolo_tensor_key_t *key,
                            const uint8_t *bytes)
{
    if (!channel->greeted)
        return m->kind == KOLO_MESSAGE_HELLO
                   ? greeted(channel, m)
                   : kolo_channel_bad_message(channel, "a message", "it comes before the greeting");
    switch (channel->caller ? m->kind : KOLO_MESSAGE_KINDS) { /* who has called gets answers */
    case KOLO_MESSAGE_DOOR:
        return kolo_meeting_heard(channel, m);
    case KOLO_MESSAGE_SENT:
        return kolo_fetch_sent(channel, m);
    case KOLO_MESSAGE_TENSOR_META:
        return kolo_fetch_meta(channel, m, bytes);
    case KOLO_MESSAGE_ERROR_STATUS:
        return kolo_fetch_error(channel, m);
    case KOLO_MESSAGE_BUFFER_REQUEST:
        return kolo_buffer_wanted(channel, m);
    default:
        break;
    }
    switch (channel->caller ? KOLO_MESSAGE_KINDS : m->kind) {
    case KOLO_MESSAGE_DOOR:
        return kolo_meeting_heard(channel, m);
    case KOLO_MESSAGE_WHERE:
        return kolo_meeting_asked(channel, m);
    case KOLO_MESSAGE_HOW_FAR:
        return kolo_answer_step(channel, m, key);
    case KOLO_MESSAGE_TENSOR_REQUEST:
        return kolo_answer_request(channel, m, key);
    case KOLO_MESSAGE_TENSOR_REREQUEST:
        return kolo_answer_memory(channel, m);
    case KOLO_MESSAGE_CANCEL:
        return kolo_answer_cancel(channel, m);
    case KOLO_MESSAGE_BUFFER_RESPONSE:
        return kolo_buffer_made(channel, m);
    case KOLO_MESSAGE_BUFFER_IDLE:
        return kolo_buffer_idle(channel, m);
    default:
        return kolo_channel_bad_message(channel, kolo_message_name(m->kind), "it goes the wrong way");
    }
}

static kolo_status_t acknowledge(kolo_channel_t *channel)
{
    uint32_t mine = channel->adapter->mode == KOLO_MODE_BUFFERED ? 1 : (uint32_t)kolo_rendezvous_param_credits;
    /* The greeting was sent before the credit was known. */
    if (channel->received > 1 && channel->received - channel->told < KOLO_MAX(1u, mine / 2) &&
        channel->read_at - channel->told_at < KOLO_CHANNEL_MAILBOX / 4)
        return KOLO_OK;
    channel->told = channel->received;
    channel->told_at = channel->read_at;
    KOLO_RDV_COUNT(acks, 1);
    kolo_onesided_write_t ack = {.flags = KOLO_ONESIDED_NOTIFY,
                                 .number = KOLO_NOTICE_ACK + (uint32_t)(channel->received & KOLO_ACK_MASK)};
    kolo_trace("rendezvous", "to %s: ACK %llu", peer_name(channel), (unsigned long long)channel->received);
    return kolo_channel_write(channel, &ack);
}

/* Takes a message of `length` bytes at the place where it is due. */
static kolo_status_t take_message(kolo_channel_t *channel, uint64_t length)
{
    uint8_t copy[KOLO_MESSAGE_TEXT_BYTES]; /* the peer could change what it has sent while we look */
    kolo_message_t message;
    kolo_tensor_key_t key;
    if (length < KOLO_MESSAGE_HEAD_BYTES || length > KOLO_MESSAGE_BYTES)
        return kolo_channel_bad_message(channel, "a message", "its length is out of range");
    uint64_t at = place(channel->read_at, (size_t)length);
    const uint8_t *slot = (const uint8_t *)kolo_onesided_mailbox(channel->end) + at % KOLO_CHANNEL_MAILBOX;
    size_t n = (size_t)KOLO_MIN(length, (uint64_t)sizeof copy);
    memcpy(copy, slot, n);
    const char *wrong = kolo_message_decode(copy, n, &message, &key);
    if (wrong == NULL && kolo_message_length(&message) != length)
        wrong = "it is truncated, or something follows it";
    if (wrong == NULL && message.sequence != channel->received) wrong = "it is not the one that is due";
    if (wrong == NULL && message.kind == KOLO_MESSAGE_TENSOR_WRITE) wrong = "it belongs into a buffer";
    if (wrong) return kolo_channel_bad_message(channel, "a message", wrong);
    kolo_trace("rendezvous", "from %s: %s index %u step %llu %s", peer_name(channel),
               kolo_message_name(message.kind), message.index, (unsigned long long)message.step, message.name);
    channel->received++;
    channel->read_at = at + KOLO_ROUND_UP(length, STEP);
    KOLO_TRY(handle(channel, &message, &key, slot + KOLO_MESSAGE_HEAD_BYTES));
    return acknowledge(channel); /* then the slot may be written again */
}

static kolo_status_t take_ack(kolo_channel_t *channel, uint32_t count)
{
    uint64_t more = (count - (uint32_t)(channel->taken & KOLO_ACK_MASK)) & KOLO_ACK_MASK;
    if (more > channel->sent - channel->taken)
        return kolo_channel_bad_message(channel, "an acknowledgement", "it is of messages that were not sent");
    channel->taken += more;
    kolo_trace("rendezvous", "from %s: ACK %llu", peer_name(channel), (unsigned long long)channel->taken);
    return post_letters(channel);
}

static kolo_status_t take_notice(kolo_channel_t *channel, const kolo_onesided_event_t *event)
{
    if (event->number == KOLO_NOTICE_MESSAGE) return take_message(channel, event->bytes);
    if (event->number >= KOLO_NOTICE_ACK) return take_ack(channel, event->number & KOLO_ACK_MASK);
    if (!channel->caller) return kolo_channel_bad_message(channel, "a value", "nobody has asked for it");
    if (event->number >= KOLO_NOTICE_BUFFER)
        return kolo_buffer_filled(channel, event->number - KOLO_NOTICE_BUFFER, event->bytes);
    return kolo_fetch_complete(channel, event->number);
}

static kolo_status_t take_event(kolo_channel_t *channel, const kolo_onesided_event_t *event)
{
    switch (event->kind) {
    case KOLO_ONESIDED_OPENED:
        KOLO_FAIL_POINT_TRY("rendezvous.channel.opened");
        if (kolo_onesided_peer_mailbox(channel->end)->bytes != KOLO_CHANNEL_MAILBOX)
            return kolo_channel_bad_message(channel, "the mailbox", "it has another size");
        channel->opened = true;
        return greet(channel);
    case KOLO_ONESIDED_WRITTEN: /* a buffer's cookie is odd */
        if (event->cookie & 1)
            return kolo_buffer_written(channel, (kolo_tensor_buffer_t *)(uintptr_t)(event->cookie - 1));
        return kolo_answer_written(channel, (kolo_answer_t *)(uintptr_t)event->cookie);
    case KOLO_ONESIDED_NOTIFIED:
        return take_notice(channel, event);
    }
    return KOLO_OK;
}

kolo_status_t kolo_channel_step(kolo_channel_t *channel, bool *busy)
{
    kolo_onesided_event_t events[EVENTS];
    int n;
    KOLO_RDV_COUNT(looks, 1);
    KOLO_TRY(kolo_onesided_step(channel->end, events, EVENTS, &n));
    for (int i = 0; i < n; i++) KOLO_TRY(take_event(channel, &events[i]));
    if (n > 0) *busy = true;
    if (channel->patience_ns) KOLO_TRY(kolo_fetches_poll(channel));
    if (!channel->greeted && kolo_now_ns() > channel->deadline_ns)
        return kolo_fail(KOLO_ERR_TIMEOUT, "%s was reached but has not greeted in time", peer_name(channel));
    return KOLO_OK;
}
