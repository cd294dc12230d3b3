/* SPDX-License-Identifier: Apache-2.0
 *
 * What other tasks have asked of this one: each waits in the rendezvous of its step for its value, like a receive
 * of this task's own, and then sends it. The value is held until its last byte has been written.
 */
#include "rendezvous/remote/channel.h"
#include "rendezvous/watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPARE 512 /* of an adapter, kept for the next requests */

static kolo_answer_t **find(kolo_channel_t *channel, uint32_t index)
{
    kolo_answer_t **at = &channel->responses[index % KOLO_CHANNEL_BUCKETS];
    while (*at && (*at)->request.index != index) at = &(*at)->next;
    return at;
}

void kolo_answer_free(kolo_answer_t *response)
{
    if (response->channel) {
        kolo_answer_t **at = find(response->channel, response->request.index);
        if (*at == response) *at = response->next;
    }
    kolo_adapter_t *adapter = response->adapter;
    if (response->has_value) kolo_value_release(&response->value);
    if (response->receive) kolo_receive_unref(response->receive);
    kolo_rendezvous_close(response->rendezvous);
    free(response->why);
    if (adapter->nspare == SPARE) {
        free(response);
        return;
    }
    response->next = adapter->spare;
    adapter->spare = response;
    adapter->nspare++;
}

/* Those that were freed last come first: malloc() keeps only seven of a kind at hand. */
static kolo_answer_t *new_answer(kolo_adapter_t *adapter)
{
    kolo_answer_t *response = adapter->spare;
    if (response == NULL) return malloc(sizeof *response);
    adapter->spare = response->next;
    adapter->nspare--;
    return response;
}

static kolo_status_t refuse(kolo_channel_t *channel, uint32_t index, kolo_status_t status, const char *why)
{
    kolo_message_t message = {.kind = KOLO_MESSAGE_ERROR_STATUS, .index = index, .status = status};
    snprintf(message.name, sizeof message.name, "%s", why);
    return kolo_channel_send(channel, &message);
}

/* On whatever thread it comes. */
static void come(void *arg, kolo_status_t status, const char *why, const kolo_transfer_args_t *sender,
                 const kolo_transfer_args_t *receiver, kolo_value_t *value)
{
    kolo_answer_t *response = arg;
    (void)sender;
    (void)receiver;
    response->status = status;
    if (why) response->why = strdup(why);
    if (value) response->value = *value;
    response->has_value = value != NULL;
    kolo_adapter_answer_come(response);
}

kolo_status_t kolo_answer_asked(kolo_channel_t *channel, const kolo_message_t *m, const kolo_tensor_key_t *key)
{
    kolo_adapter_t *adapter = channel->adapter;
    if (*find(channel, m->index)) return kolo_channel_nonsense(channel, "TENSOR_REQUEST", "its index is in use");
    if (m->index >= KOLO_NOTICE_BUFFER)
        return kolo_channel_nonsense(channel, "TENSOR_REQUEST", "no index is so large");
    if ((m->flags & KOLO_MESSAGE_KNOWN) && m->window.bytes < m->shape.bytes)
        return kolo_channel_nonsense(channel, "TENSOR_REQUEST", "its memory is smaller than the value");
    if (!kolo_device_is_of(key->dst_device, adapter->tasks[channel->peer].name))
        return refuse(channel, m->index, KOLO_ERR_INVALID_ARGUMENT, "the key's destination is another task");
    kolo_answer_t *response = new_answer(adapter);
    if (response == NULL) return refuse(channel, m->index, KOLO_ERR_NO_MEMORY, "no memory for a request");
    *response = (kolo_answer_t){.adapter = adapter, .channel = channel, .request = *m};
    kolo_answer_t **at = &channel->responses[m->index % KOLO_CHANNEL_BUCKETS];
    response->next = *at;
    *at = response;
    kolo_status_t status = kolo_rendezvous_open(adapter->manager, m->step, &response->rendezvous);
    if (status == KOLO_OK && kolo_rendezvous_take(response->rendezvous, m->name, key,
                                                  m->most ? m->most : UINT64_MAX, &response->value)) {
        response->has_value = true;
        return kolo_answer_come(response);
    }
    if (status == KOLO_OK)
        status =
            kolo_rendezvous_serve(response->rendezvous, m->name, key, m->most, come, response, &response->receive);
    if (status == KOLO_OK) return KOLO_OK;
    kolo_answer_free(response);
    return refuse(channel, m->index, status, kolo_error_text());
}

/* ---- sending ---- */

/* In pieces that one write can take. */
static kolo_status_t send_value(kolo_answer_t *response)
{
    kolo_channel_t *channel = response->channel;
    uint64_t bytes = response->value.bytes, chunk = (uint64_t)kolo_rendezvous_param_chunk;
    response->state = KOLO_ANSWER_WRITES;
    for (uint64_t at = 0; at < bytes; at += chunk) {
        bool last = bytes - at <= chunk;
        kolo_onesided_write_t write = {.data = (const char *)response->value.data + at,
                                       .bytes = last ? bytes - at : chunk,
                                       .to = &response->request.window,
                                       .offset = at};
        if (last) {
            write.flags = KOLO_ONESIDED_NOTIFY;
            write.number = response->request.index;
            write.cookie = (uint64_t)(uintptr_t)response;
        }
        KOLO_TRY(kolo_channel_write(channel, &write));
    }
    return KOLO_OK;
}

/* A value that has no place to be written to yet comes with the answer if it can: it spares a round trip. */
static uint64_t most_carried(void)
{
    return kolo_rendezvous_param_inline ? KOLO_MESSAGE_VALUE_MAX : 0;
}

kolo_status_t kolo_answer_come(kolo_answer_t *response)
{
    kolo_channel_t *channel = response->channel;
    kolo_shape_t shape;
    if (channel == NULL) { /* nobody is there any more to have it */
        kolo_answer_free(response);
        return KOLO_OK;
    }
    uint32_t index = response->request.index;
    if (response->status != KOLO_OK) {
        kolo_status_t status = refuse(channel, index, response->status, response->why ? response->why : "");
        kolo_answer_free(response);
        return status;
    }
    kolo_shape_of(&response->value, &shape);
    if (response->request.flags & KOLO_MESSAGE_BUFFERED) return kolo_buffer_queue(channel, response);
    bool known =
        (response->request.flags & KOLO_MESSAGE_KNOWN) && kolo_shape_equal(&shape, &response->request.shape);
    if (known) return send_value(response);
    kolo_message_t meta = {.kind = KOLO_MESSAGE_TENSOR_META, .index = index, .flags = KOLO_MESSAGE_KNOWN};
    meta.shape = shape;
    if (shape.dead) meta.flags |= KOLO_MESSAGE_DEAD;
    response->state = KOLO_ANSWER_TOLD;
    if (shape.bytes > most_carried()) return kolo_channel_send(channel, &meta);
    meta.flags |= KOLO_MESSAGE_FINAL;
    kolo_status_t status = kolo_channel_send_with(channel, &meta, response->value.data, (size_t)shape.bytes);
    KOLO_RDV_COUNT(copies, shape.bytes > 0);
    KOLO_RDV_COUNT(copied_bytes, shape.bytes);
    kolo_answer_free(response);
    return status;
}

/* Only of what goes to the task that asks. */
kolo_status_t kolo_answer_how_far(kolo_channel_t *channel, const kolo_message_t *m, const kolo_tensor_key_t *key)
{
    kolo_adapter_t *adapter = channel->adapter;
    kolo_message_t sent = {.kind = KOLO_MESSAGE_SENT, .index = m->index};
    if (!kolo_device_is_of(key->dst_device, adapter->tasks[channel->peer].name))
        return kolo_channel_nonsense(channel, "HOW_FAR", "the key's destination is another task");
    kolo_watch_t *watch = adapter->manager->watch;
    sent.shape.bytes = watch && kolo_watch_last_sent(watch, key, &sent.step);
    return kolo_channel_send(channel, &sent);
}

kolo_status_t kolo_answer_memory(kolo_channel_t *channel, const kolo_message_t *m)
{
    kolo_answer_t *response = *find(channel, m->index);
    if (response == NULL || response->state != KOLO_ANSWER_TOLD)
        return kolo_channel_nonsense(channel, "TENSOR_REREQUEST", "there is no such request, or it is not due");
    if (m->window.bytes < response->value.bytes)
        return kolo_channel_nonsense(channel, "TENSOR_REREQUEST", "its memory is smaller than the value");
    response->request.window = m->window;
    return send_value(response);
}

kolo_status_t kolo_answer_cancel(kolo_channel_t *channel, const kolo_message_t *m)
{
    kolo_answer_t *response = *find(channel, m->index);
    bool waits = response && response->state == KOLO_ANSWER_WAITS && kolo_rendezvous_give_up(response->receive);
    bool told = response && response->state == KOLO_ANSWER_TOLD;
    if (!waits && !told) return KOLO_OK; /* its answer is on its way */
    kolo_answer_free(response);
    return refuse(channel, m->index, KOLO_ERR_ABORTED, "the receive was given up");
}

kolo_status_t kolo_answer_written(kolo_channel_t *channel, kolo_answer_t *response)
{
    (void)channel;
    kolo_answer_free(response);
    return KOLO_OK;
}

void kolo_answers_close(kolo_channel_t *channel)
{
    for (int i = 0; i < KOLO_CHANNEL_BUCKETS; i++) {
        for (kolo_answer_t *response = channel->responses[i], *next; response; response = next) {
            next = response->next;
            response->channel = NULL;
            /* One whose value comes at this moment is freed when it has come. */
            if (response->state != KOLO_ANSWER_WAITS || kolo_rendezvous_give_up(response->receive))
                kolo_answer_free(response);
        }
        channel->responses[i] = NULL;
    }
}
