/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests of other tasks: each waits in the rendezvous of its step for its value, like a receive of this task, and
 * then sends it. The value is kept until its last byte has been written.
 */
#include "base/failpoint.h"
#include "rendezvous/remote/channel.h"
#include "rendezvous/watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPARE 512 /* of an adapter, kept for the next requests */

static kolo_answer_t **find(kolo_channel_t *channel, uint32_t index)
{
    kolo_answer_t **at = &channel->answers[index % KOLO_CHANNEL_BUCKETS];
    while (*at && (*at)->request.index != index) at = &(*at)->next;
    return at;
}

void kolo_answer_free(kolo_answer_t *answer)
{
    if (answer->channel) {
        kolo_answer_t **at = find(answer->channel, answer->request.index);
        if (*at == answer) *at = answer->next;
    }
    kolo_adapter_t *adapter = answer->adapter;
    if (answer->has_value) kolo_value_release(&answer->value);
    if (answer->receive) kolo_receive_unref(answer->receive);
    kolo_rendezvous_close(answer->rendezvous);
    free(answer->why);
    if (adapter->nspare == SPARE) {
        free(answer);
        return;
    }
    answer->next = adapter->spare;
    adapter->spare = answer;
    adapter->nspare++;
}

/* Takes one of a free list, last freed first: malloc() caches only seven blocks of a size. */
static kolo_answer_t *new_answer(kolo_adapter_t *adapter)
{
    kolo_answer_t *answer = adapter->spare;
    if (answer == NULL) return malloc(sizeof *answer);
    adapter->spare = answer->next;
    adapter->nspare--;
    return answer;
}

static kolo_status_t refuse(kolo_channel_t *channel, uint32_t index, kolo_status_t status, const char *why)
{
    kolo_message_t message = {.kind = KOLO_MESSAGE_ERROR_STATUS, .index = index, .status = status};
    snprintf(message.name, sizeof message.name, "%s", why);
    return kolo_channel_send(channel, &message);
}

/* Hands a value to its answer, on whatever thread it comes. */
static void value_ready(void *arg, kolo_status_t status, const char *why, const kolo_transfer_args_t *sender,
                        const kolo_transfer_args_t *receiver, kolo_value_t *value)
{
    kolo_answer_t *answer = arg;
    (void)sender;
    (void)receiver;
    answer->status = status;
    if (why) answer->why = strdup(why);
    if (value) answer->value = *value;
    answer->has_value = value != NULL;
    KOLO_FAIL_POINT("rendezvous.answer.handed");
    kolo_adapter_answer_ready(answer);
}

kolo_status_t kolo_answer_request(kolo_channel_t *channel, const kolo_message_t *m, const kolo_tensor_key_t *key)
{
    kolo_adapter_t *adapter = channel->adapter;
    if (*find(channel, m->index)) return kolo_channel_bad_message(channel, "TENSOR_REQUEST", "its index is in use");
    if (m->index >= KOLO_NOTICE_BUFFER)
        return kolo_channel_bad_message(channel, "TENSOR_REQUEST", "no index is so large");
    if ((m->flags & KOLO_MESSAGE_KNOWN) && m->window.bytes < m->shape.bytes)
        return kolo_channel_bad_message(channel, "TENSOR_REQUEST", "its memory is smaller than the value");
    if (!kolo_device_is_of(key->dst_device, adapter->tasks[channel->peer].name))
        return refuse(channel, m->index, KOLO_ERR_INVALID_ARGUMENT, "the key's destination is another task");
    kolo_answer_t *answer = new_answer(adapter);
    if (answer == NULL) return refuse(channel, m->index, KOLO_ERR_NO_MEMORY, "no memory for a request");
    *answer = (kolo_answer_t){.adapter = adapter, .channel = channel, .request = *m};
    kolo_answer_t **at = &channel->answers[m->index % KOLO_CHANNEL_BUCKETS];
    answer->next = *at;
    *at = answer;
    kolo_status_t status = kolo_rendezvous_open(adapter->manager, m->step, &answer->rendezvous);
    if (status == KOLO_OK &&
        kolo_rendezvous_take(answer->rendezvous, m->name, key, m->most ? m->most : UINT64_MAX, &answer->value)) {
        answer->has_value = true;
        return kolo_answer_ready(answer);
    }
    if (status == KOLO_OK) {
        atomic_fetch_add(&adapter->served, 1);
        status = kolo_rendezvous_serve(
            answer->rendezvous, &(kolo_serve_t){m->name, key, m->most, value_ready, answer}, &answer->receive);
        if (status != KOLO_OK) atomic_fetch_sub(&adapter->served, 1);
    }
    if (status == KOLO_OK) return KOLO_OK;
    kolo_answer_free(answer);
    return refuse(channel, m->index, status, kolo_error_text());
}

/* ---- sending ---- */

/* Writes the value in pieces of KOLO_RENDEZVOUS_CHUNK bytes; the last one carries the notice. */
static kolo_status_t send_value(kolo_answer_t *answer)
{
    kolo_channel_t *channel = answer->channel;
    uint64_t bytes = answer->value.bytes, chunk = (uint64_t)kolo_rendezvous_param_chunk;
    answer->state = KOLO_ANSWER_WRITES;
    for (uint64_t at = 0; at < bytes; at += chunk) {
        bool last = bytes - at <= chunk;
        kolo_onesided_write_t write = {.data = (const char *)answer->value.data + at,
                                       .bytes = last ? bytes - at : chunk,
                                       .to = &answer->request.window,
                                       .offset = at};
        if (last) {
            write.flags = KOLO_ONESIDED_NOTIFY;
            write.number = answer->request.index;
            write.cookie = (uint64_t)(uintptr_t)answer;
        }
        KOLO_TRY(kolo_channel_write(channel, &write));
    }
    return KOLO_OK;
}

/* Returns the largest value that travels inside the answer when no memory for it is known yet, which saves a round
 * trip. */
static uint64_t most_carried(void)
{
    return kolo_rendezvous_param_inline ? KOLO_MESSAGE_VALUE_MAX : 0;
}

kolo_status_t kolo_answer_ready(kolo_answer_t *answer)
{
    kolo_channel_t *channel = answer->channel;
    kolo_shape_t shape;
    if (channel == NULL) { /* the channel has ended */
        kolo_answer_free(answer);
        return KOLO_OK;
    }
    uint32_t index = answer->request.index;
    if (answer->status != KOLO_OK) {
        kolo_status_t status = refuse(channel, index, answer->status, answer->why ? answer->why : "");
        kolo_answer_free(answer);
        return status;
    }
    kolo_shape_of(&answer->value, &shape);
    if (answer->request.flags & KOLO_MESSAGE_BUFFERED) return kolo_buffer_queue(channel, answer);
    bool known = (answer->request.flags & KOLO_MESSAGE_KNOWN) && kolo_shape_equal(&shape, &answer->request.shape);
    if (known) return send_value(answer);
    kolo_message_t meta = {.kind = KOLO_MESSAGE_TENSOR_META, .index = index, .flags = KOLO_MESSAGE_KNOWN};
    meta.shape = shape;
    if (shape.dead) meta.flags |= KOLO_MESSAGE_DEAD;
    answer->state = KOLO_ANSWER_TOLD;
    if (shape.bytes > most_carried()) return kolo_channel_send(channel, &meta);
    meta.flags |= KOLO_MESSAGE_FINAL;
    kolo_status_t status = kolo_channel_send_with(channel, &meta, answer->value.data, (size_t)shape.bytes);
    KOLO_RDV_COUNT(copies, shape.bytes > 0);
    KOLO_RDV_COUNT(copied_bytes, shape.bytes);
    kolo_answer_free(answer);
    return status;
}

/* Says how far an edge was sent, only for keys whose destination is the task that asks. */
kolo_status_t kolo_answer_step(kolo_channel_t *channel, const kolo_message_t *m, const kolo_tensor_key_t *key)
{
    kolo_adapter_t *adapter = channel->adapter;
    kolo_message_t sent = {.kind = KOLO_MESSAGE_SENT, .index = m->index};
    if (!kolo_device_is_of(key->dst_device, adapter->tasks[channel->peer].name))
        return kolo_channel_bad_message(channel, "HOW_FAR", "the key's destination is another task");
    kolo_rendezvous_watch_t *watch = adapter->manager->watch;
    sent.shape.bytes = kolo_watch_last_sent(watch, key, &sent.step);
    if (watch) sent.most = kolo_watch_callback_ns(watch, kolo_now_ns());
    return kolo_channel_send(channel, &sent);
}

kolo_status_t kolo_answer_memory(kolo_channel_t *channel, const kolo_message_t *m)
{
    kolo_answer_t *answer = *find(channel, m->index);
    if (answer == NULL || answer->state != KOLO_ANSWER_TOLD)
        return kolo_channel_bad_message(channel, "TENSOR_REREQUEST", "there is no such request, or it is not due");
    if (m->window.bytes < answer->value.bytes)
        return kolo_channel_bad_message(channel, "TENSOR_REREQUEST", "its memory is smaller than the value");
    answer->request.window = m->window;
    return send_value(answer);
}

/* Gives an answer's receive up; false: its value comes at this moment. */
static bool give_up(kolo_answer_t *answer)
{
    if (!kolo_rendezvous_give_up(answer->receive)) return false;
    atomic_fetch_sub(&answer->adapter->served, 1);
    return true;
}

kolo_status_t kolo_answer_cancel(kolo_channel_t *channel, const kolo_message_t *m)
{
    kolo_answer_t *answer = *find(channel, m->index);
    bool waits = answer && answer->state == KOLO_ANSWER_WAITS && give_up(answer);
    bool told = answer && answer->state == KOLO_ANSWER_TOLD;
    if (!waits && !told) return KOLO_OK; /* its answer is on its way */
    kolo_answer_free(answer);
    return refuse(channel, m->index, KOLO_ERR_ABORTED, "the receive was given up");
}

kolo_status_t kolo_answer_written(kolo_channel_t *channel, kolo_answer_t *answer)
{
    (void)channel;
    kolo_answer_free(answer);
    return KOLO_OK;
}

void kolo_answer_close_all(kolo_channel_t *channel)
{
    for (int i = 0; i < KOLO_CHANNEL_BUCKETS; i++) {
        for (kolo_answer_t *answer = channel->answers[i], *next; answer; answer = next) {
            next = answer->next;
            answer->channel = NULL;
            /* Else kolo_answer_ready() frees it, or the adapter's end. */
            if (answer->state != KOLO_ANSWER_WAITS || give_up(answer)) kolo_answer_free(answer);
        }
        channel->answers[i] = NULL;
    }
}
