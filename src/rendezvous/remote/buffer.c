/* SPDX-License-Identifier: Apache-2.0
 *
 * Buffered mode: for each key a buffer at both ends, as large as the largest value so far. The task that sent
 * copies head and value into its own and writes both at once into the other's, which copies the value out and says
 * that the buffer is idle. Until both sides are idle again further values of the key queue. It costs two copies,
 * and serves where the destination's own memory cannot be written to.
 */
#include "base/log.h"
#include "rendezvous/remote/channel.h"

#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES KOLO_ROUND_UP(KOLO_MESSAGE_TEXT_BYTES, 64u) /* ahead of the value, so that it is aligned */

static kolo_tensor_buffer_t **find(kolo_channel_t *channel, const char *name)
{
    kolo_tensor_buffer_t **at = &channel->buffers[kolo_key_hash(name) % KOLO_CHANNEL_BUCKETS];
    while (*at && strcmp((*at)->name, name) != 0) at = &(*at)->next;
    return at;
}

static kolo_tensor_buffer_t *find_or_make(kolo_channel_t *channel, const char *name)
{
    kolo_tensor_buffer_t **at = find(channel, name);
    if (*at) return *at;
    kolo_tensor_buffer_t *buffer = calloc(1, sizeof *buffer);
    if (buffer == NULL) return NULL;
    memcpy(buffer->name, name, strlen(name) + 1);
    buffer->last = &buffer->first;
    return *at = buffer;
}

/* ---- the task that sent ---- */

static kolo_status_t grow(kolo_channel_t *channel, kolo_tensor_buffer_t *buffer, uint64_t bytes)
{
    kolo_onesided_free(&buffer->memory);
    KOLO_TRY(kolo_onesided_alloc(channel->end, (size_t)bytes, &buffer->memory));
    buffer->size = bytes;
    buffer->asked = true;
    KOLO_RDV_COUNT(buffers_grown, 1);
    kolo_trace("rendezvous", "the buffer of %s grows to %llu bytes", buffer->name, (unsigned long long)bytes);
    kolo_message_t wanted = {.kind = KOLO_MESSAGE_BUFFER_REQUEST};
    wanted.shape.bytes = bytes;
    memcpy(wanted.name, buffer->name, sizeof wanted.name);
    return kolo_channel_send(channel, &wanted);
}

static kolo_status_t write_first(kolo_channel_t *channel, kolo_tensor_buffer_t *buffer)
{
    kolo_answer_t *answer = buffer->first;
    uint64_t bytes = answer->value.bytes, chunk = (uint64_t)kolo_rendezvous_param_chunk;
    kolo_message_t head = {.kind = KOLO_MESSAGE_TENSOR_WRITE,
                           .index = answer->request.index,
                           .flags = KOLO_MESSAGE_KNOWN | (answer->value.dead ? KOLO_MESSAGE_DEAD : 0u)};
    kolo_shape_of(&answer->value, &head.shape);
    uint8_t *copy = buffer->memory.base;
    kolo_message_encode(&head, copy);
    if (bytes) memcpy(copy + HEAD_BYTES, answer->value.data, bytes);
    KOLO_RDV_COUNT(copies, 1);
    KOLO_RDV_COUNT(copied_bytes, bytes);
    buffer->first = answer->next_queued;
    if (buffer->first == NULL) buffer->last = &buffer->first;
    kolo_answer_free(answer);
    buffer->local_busy = buffer->remote_busy = true;
    kolo_trace("rendezvous", "to %s: TENSOR_WRITE index %u into the buffer of %s",
               channel->adapter->tasks[channel->peer].name, head.index, buffer->name);
    for (uint64_t at = 0, all = HEAD_BYTES + bytes; at < all; at += chunk) {
        bool last = all - at <= chunk;
        kolo_onesided_write_t write = {
            .data = copy + at, .bytes = last ? all - at : chunk, .to = &buffer->window, .offset = at};
        if (last) {
            write.flags = KOLO_ONESIDED_NOTIFY;
            write.number = KOLO_NOTICE_BUFFER + buffer->number;
            write.cookie = (uint64_t)(uintptr_t)buffer | 1;
        }
        KOLO_TRY(kolo_channel_write(channel, &write));
    }
    return KOLO_OK;
}

/* Moves a buffer as far as it goes now. */
static kolo_status_t move_on(kolo_channel_t *channel, kolo_tensor_buffer_t *buffer)
{
    if (buffer->first == NULL || buffer->asked || buffer->local_busy || buffer->remote_busy) return KOLO_OK;
    uint64_t need = HEAD_BYTES + buffer->first->value.bytes;
    return need > buffer->size ? grow(channel, buffer, need) : write_first(channel, buffer);
}

kolo_status_t kolo_buffer_queue(kolo_channel_t *channel, kolo_answer_t *answer)
{
    kolo_tensor_buffer_t *buffer = find_or_make(channel, answer->request.name);
    if (buffer == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "rendezvous: no memory for a buffer");
    answer->state = KOLO_ANSWER_QUEUED;
    answer->next_queued = NULL;
    if (buffer->first) KOLO_RDV_COUNT(queued, 1);
    *buffer->last = answer;
    buffer->last = &answer->next_queued;
    return move_on(channel, buffer);
}

kolo_status_t kolo_buffer_made(kolo_channel_t *channel, const kolo_message_t *m)
{
    kolo_tensor_buffer_t *buffer = *find(channel, m->name);
    if (buffer == NULL || !buffer->asked)
        return kolo_channel_bad_message(channel, "BUFFER_RESPONSE", "no buffer was asked for");
    if (m->window.bytes < buffer->size || m->index >= KOLO_NOTICE_ACK - KOLO_NOTICE_BUFFER)
        return kolo_channel_bad_message(channel, "BUFFER_RESPONSE",
                                        "its memory is too small, or no buffer has its number");
    buffer->window = m->window;
    buffer->number = m->index;
    buffer->asked = false;
    return move_on(channel, buffer);
}

kolo_status_t kolo_buffer_written(kolo_channel_t *channel, kolo_tensor_buffer_t *buffer)
{
    buffer->local_busy = false;
    kolo_trace("rendezvous", "the write of %s is done: its buffer is idle here", buffer->name);
    return move_on(channel, buffer);
}

kolo_status_t kolo_buffer_idle(kolo_channel_t *channel, const kolo_message_t *m)
{
    kolo_tensor_buffer_t *buffer = *find(channel, m->name);
    if (buffer == NULL || !buffer->remote_busy)
        return kolo_channel_bad_message(channel, "BUFFER_IDLE", "the buffer is not busy or does not exist");
    buffer->remote_busy = false;
    return move_on(channel, buffer);
}

/* ---- the task that receives ---- */

static kolo_tensor_buffer_t *find_number(kolo_channel_t *channel, uint32_t number)
{
    for (int i = 0; i < KOLO_CHANNEL_BUCKETS; i++)
        for (kolo_tensor_buffer_t *b = channel->buffers[i]; b; b = b->next)
            if (b->number == number && b->memory.base) return b;
    return NULL;
}

/* Chooses the number that writes to it say: it follows from its name, and two names that make the same get
 * different ones. */
static uint32_t choose_number(kolo_channel_t *channel, const kolo_tensor_buffer_t *buffer)
{
    uint32_t number = (uint32_t)kolo_key_hash(buffer->name) & (KOLO_NOTICE_ACK - KOLO_NOTICE_BUFFER - 1);
    for (;;) {
        const kolo_tensor_buffer_t *other = find_number(channel, number);
        if (other == NULL || other == buffer) return number;
        number = (number + 1) & (KOLO_NOTICE_ACK - KOLO_NOTICE_BUFFER - 1);
    }
}

kolo_status_t kolo_buffer_wanted(kolo_channel_t *channel, const kolo_message_t *m)
{
    if (channel->adapter->mode != KOLO_MODE_BUFFERED)
        return kolo_channel_bad_message(channel, "BUFFER_REQUEST", "nothing was asked for by buffers");
    if (m->shape.bytes < HEAD_BYTES) return kolo_channel_bad_message(channel, "BUFFER_REQUEST", "it is too small");
    kolo_tensor_buffer_t *buffer = find_or_make(channel, m->name);
    if (buffer == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "rendezvous: no memory for a buffer");
    if (buffer->memory.base) kolo_onesided_hide(channel->end, &buffer->window);
    kolo_onesided_free(&buffer->memory);
    kolo_channel_widen(channel, m->shape.bytes);
    KOLO_TRY(kolo_onesided_alloc(channel->end, (size_t)m->shape.bytes, &buffer->memory));
    KOLO_TRY(kolo_onesided_expose(channel->end, buffer->memory.base, (size_t)m->shape.bytes, &buffer->window));
    buffer->size = m->shape.bytes;
    buffer->number = choose_number(channel, buffer);
    kolo_message_t made = {.kind = KOLO_MESSAGE_BUFFER_RESPONSE, .index = buffer->number, .window = buffer->window};
    memcpy(made.name, buffer->name, sizeof made.name);
    return kolo_channel_send(channel, &made);
}

static kolo_status_t say_idle(kolo_channel_t *channel, const kolo_tensor_buffer_t *buffer)
{
    kolo_message_t idle = {.kind = KOLO_MESSAGE_BUFFER_IDLE};
    memcpy(idle.name, buffer->name, sizeof idle.name);
    return kolo_channel_send(channel, &idle);
}

kolo_status_t kolo_buffer_filled(kolo_channel_t *channel, uint32_t number, uint64_t bytes)
{
    kolo_tensor_buffer_t *buffer = find_number(channel, number);
    kolo_message_t head;
    kolo_tensor_key_t none;
    uint8_t copy[HEAD_BYTES];
    (void)bytes; /* of the last piece */
    if (buffer == NULL) return kolo_channel_bad_message(channel, "a value", "there is no buffer of its number");
    memcpy(copy, buffer->memory.base, sizeof copy);
    const char *wrong = kolo_message_decode(copy, sizeof copy, &head, &none);
    kolo_trace("rendezvous", "from %s: TENSOR_WRITE in buffer %u (%s)", channel->adapter->tasks[channel->peer].name,
               number, buffer->name);
    if (wrong == NULL && head.kind != KOLO_MESSAGE_TENSOR_WRITE) wrong = "it has another head";
    if (wrong == NULL && head.shape.bytes > buffer->size - HEAD_BYTES) wrong = "it is larger than its buffer";
    kolo_fetch_t *request = wrong ? NULL : kolo_fetch_find(channel, head.index);
    if (wrong == NULL && request == NULL) wrong = "there is no such request";
    if (wrong == NULL && strcmp(request->receive->text, buffer->name) != 0) wrong = "it is of another key";
    if (wrong == NULL && head.shape.bytes > request->receive->most) wrong = "it is longer than there is room for";
    if (wrong) return kolo_channel_bad_message(channel, "TENSOR_WRITE", wrong);
    kolo_onesided_memory_t memory = {0};
    kolo_status_t status = KOLO_OK;
    void *to = kolo_fetch_into(request);
    if (head.shape.element == KOLO_ELEMENT_STRING && head.shape.bytes > 0 && to == NULL) {
        kolo_value_t strings = {.element = KOLO_ELEMENT_STRING,
                                .ndims = head.shape.ndims,
                                .data = (char *)buffer->memory.base + HEAD_BYTES,
                                .bytes = head.shape.bytes,
                                .dead = head.shape.dead};
        memcpy(strings.dims, head.shape.dims, sizeof strings.dims);
        KOLO_TRY(kolo_fetch_strings(channel, request, &strings));
        return say_idle(channel, buffer);
    }
    if (head.shape.bytes > 0 && to == NULL) {
        status = kolo_onesided_alloc(channel->end, (size_t)head.shape.bytes, &memory);
        to = memory.base;
    }
    if (status == KOLO_OK && head.shape.bytes > 0) {
        memcpy(to, (const char *)buffer->memory.base + HEAD_BYTES, (size_t)head.shape.bytes);
        KOLO_RDV_COUNT(copies, 1);
        KOLO_RDV_COUNT(copied_bytes, head.shape.bytes);
        kolo_value_t value = {.element = head.shape.element,
                              .ndims = head.shape.ndims,
                              .data = to,
                              .bytes = head.shape.bytes,
                              .dead = head.shape.dead};
        memcpy(value.dims, head.shape.dims, sizeof value.dims);
        wrong = kolo_rendezvous_value_check(&value);
    }
    if (wrong) {
        kolo_onesided_free(&memory);
        return kolo_channel_bad_message(channel, "a value", wrong);
    }
    kolo_fetch_end(channel, request, status, kolo_error_text(), &head.shape, memory.base ? &memory : NULL);
    return say_idle(channel, buffer);
}

void kolo_buffer_close_all(kolo_channel_t *channel)
{
    for (int i = 0; i < KOLO_CHANNEL_BUCKETS; i++) {
        while (channel->buffers[i]) {
            kolo_tensor_buffer_t *buffer = channel->buffers[i];
            channel->buffers[i] = buffer->next;
            kolo_onesided_free(&buffer->memory);
            free(buffer);
        }
    }
}
