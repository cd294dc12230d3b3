/* SPDX-License-Identifier: Apache-2.0
 *
 * Receives under way, at the receiving task. Direct mode: the receiver exposes memory of the channel, the sender
 * writes the value into it, and a notice says that it is complete. This needs the value's type and shape: the first
 * request of a key learns them in an additional round trip, later ones remember them.
 *
 * A request whose receive has ended early (abort, timeout) stays until its answer has arrived, so that nothing is
 * written into memory that is used again. If the memory is the caller's (a destination), the caller waits for that;
 * so a peer that does not answer in time loses the channel.
 */
#include "rendezvous/remote/channel.h"
#include "rendezvous/watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_REQUESTS (1u << 15) /* their places have 15 bits, their generations 16 */
#define MOST_SHAPES   16384u
#define NO_REQUEST    UINT32_MAX
#define ASK_AT_ONCE   16   /* receives that wait for long, of which the sender is asked, ... */
#define ASK_AGAIN_MS  1000 /* ... again and again */
#define PATIENCE_MS   1000 /* for a peer that may be writing to a destination that is not wanted any more */

/* ---- what is known of keys ---- */

static kolo_known_shape_t **find_shape(kolo_channel_t *channel, const char *name)
{
    kolo_known_shape_t **at = &channel->shapes[kolo_key_hash(name) % KOLO_CHANNEL_BUCKETS];
    while (*at && strcmp((*at)->name, name) != 0) at = &(*at)->next;
    return at;
}

static void learn_shape(kolo_channel_t *channel, const char *name, const kolo_shape_t *shape)
{
    kolo_known_shape_t **at = find_shape(channel, name);
    if (*at == NULL && channel->nshapes < MOST_SHAPES) {
        size_t n = strlen(name) + 1;
        *at = calloc(1, sizeof **at + n);
        if (*at == NULL) return; /* asked again, then */
        memcpy((*at)->name, name, n);
        channel->nshapes++;
    }
    if (*at) (*at)->shape = *shape;
}

/* ---- the table ---- */

static kolo_status_t more_requests(kolo_channel_t *channel)
{
    uint32_t n = channel->nrequests ? 2 * channel->nrequests : 64;
    kolo_fetch_t *more = n <= MOST_REQUESTS ? realloc(channel->requests, n * sizeof *more) : NULL;
    if (more == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "rendezvous: more than %u receives under way", n / 2);
    memset(more + channel->nrequests, 0, (n - channel->nrequests) * sizeof *more);
    for (uint32_t i = channel->nrequests; i < n; i++) more[i].next_free = i + 1 < n ? i + 1 : NO_REQUEST;
    for (uint32_t i = 0; i < channel->nrequests; i++) more[i].receive->remote = &more[i];
    channel->free_request = channel->nrequests;
    channel->requests = more;
    channel->nrequests = n;
    return KOLO_OK;
}

kolo_fetch_t *kolo_fetch_find(kolo_channel_t *channel, uint32_t index)
{
    uint32_t place = index & (MOST_REQUESTS - 1);
    kolo_fetch_t *request = place < channel->nrequests ? &channel->requests[place] : NULL;
    return request && request->used && request->index == index ? request : NULL;
}

static void free_request(kolo_channel_t *channel, kolo_fetch_t *request)
{
    if (request->exposed && channel->end) kolo_onesided_hide(channel->end, &request->window);
    kolo_onesided_free(&request->memory);
    request->used = request->exposed = request->direct = false;
    request->receive = NULL;
    request->next_free = channel->free_request;
    channel->free_request = (uint32_t)(request - channel->requests);
    channel->used_requests--;
}

static void give_memory_back(void *arg)
{
    kolo_onesided_memory_t *memory = arg;
    kolo_onesided_free(memory);
    free(memory);
}

void kolo_fetch_end(kolo_channel_t *channel, kolo_fetch_t *request, kolo_status_t status, const char *why,
                    const kolo_shape_t *shape, kolo_onesided_memory_t *memory)
{
    kolo_adapter_t *adapter = channel->adapter;
    kolo_receive_t receive = request->receive;
    kolo_value_t value;
    memset(&value, 0, sizeof value);
    receive->remote = NULL;
    if (status == KOLO_OK && shape) {
        value.element = shape->element;
        value.ndims = shape->ndims;
        memcpy(value.dims, shape->dims, sizeof value.dims);
        value.bytes = shape->bytes;
        value.dead = shape->dead;
    }
    if (status == KOLO_OK && memory == NULL && value.bytes > 0) value.data = receive->args.into;
    if (status == KOLO_OK && memory) {
        kolo_onesided_memory_t *kept = malloc(sizeof *kept);
        if (kept) {
            *kept = *memory;
            *memory = (kolo_onesided_memory_t){0};
            value.data = kept->base;
            value.release = give_memory_back;
            value.arg = kept;
        } else {
            kolo_onesided_free(memory);
            status = KOLO_ERR_NO_MEMORY;
            why = "no memory for a received value";
        }
    }
    free_request(channel, request);
    kolo_adapter_deliver(adapter, receive, status, why, status == KOLO_OK ? &value : NULL);
}

/* ---- asking ---- */

/* Exposes memory for a value of this shape, which the peer may write to: the destination, where that works and
 * pays. */
static kolo_status_t expose(kolo_channel_t *channel, kolo_fetch_t *request, const kolo_shape_t *shape)
{
    void *into = kolo_fetch_into(request);
    kolo_channel_widen(channel, shape->bytes);
    if (into && kolo_onesided_pays(channel->end, shape->bytes) &&
        kolo_onesided_expose(channel->end, into, (size_t)shape->bytes, &request->window) == KOLO_OK) {
        request->exposed = request->direct = true;
        request->shape = *shape;
        return KOLO_OK;
    }
    KOLO_TRY(kolo_onesided_alloc(channel->end, (size_t)shape->bytes, &request->memory));
    KOLO_TRY(kolo_onesided_expose(channel->end, request->memory.base, (size_t)shape->bytes, &request->window));
    request->exposed = true;
    request->shape = *shape;
    return KOLO_OK;
}

static kolo_status_t ask(kolo_channel_t *channel, kolo_fetch_t *request)
{
    kolo_message_t message = {
        .kind = KOLO_MESSAGE_TENSOR_REQUEST, .index = request->index, .step = request->receive->rendezvous->step};
    const kolo_known_shape_t *known = *find_shape(channel, request->receive->text);
    memcpy(message.name, request->receive->text, strlen(request->receive->text) + 1);
    if (request->receive->args.into) message.most = request->receive->most;
    if (channel->adapter->mode == KOLO_MODE_BUFFERED) {
        message.flags = KOLO_MESSAGE_BUFFERED;
    } else if (known && known->shape.bytes > (uint64_t)kolo_rendezvous_param_inline &&
               known->shape.bytes <= request->receive->most && !known->shape.dead) {
        kolo_status_t status = expose(channel, request, &known->shape);
        if (status != KOLO_OK) {
            kolo_fetch_end(channel, request, status, kolo_error_text(), NULL, NULL);
            return KOLO_OK;
        }
        message.flags = KOLO_MESSAGE_KNOWN;
        message.shape = known->shape;
        message.window = request->window;
    }
    KOLO_RDV_COUNT(requests, 1);
    return kolo_channel_send(channel, &message);
}

kolo_status_t kolo_fetch_begin(kolo_channel_t *channel, kolo_receive_t receive)
{
    if (channel->nrequests == channel->used_requests) {
        kolo_status_t status = more_requests(channel);
        if (status != KOLO_OK) {
            kolo_adapter_deliver(channel->adapter, receive, status, kolo_error_text(), NULL);
            return KOLO_OK;
        }
    }
    kolo_fetch_t *request = &channel->requests[channel->free_request];
    uint16_t generation = (uint16_t)(request->generation + 1);
    uint32_t place = channel->free_request;
    channel->free_request = request->next_free;
    channel->used_requests++;
    *request = (kolo_fetch_t){
        .used = true, .generation = generation, .index = (uint32_t)generation << 15 | place, .receive = receive};
    receive->remote = request;
    receive->remote_channel = channel;
    return ask(channel, request);
}

bool kolo_fetch_cancel(kolo_receive_t receive)
{
    kolo_fetch_t *request = receive->remote;
    if (request == NULL) return true;
    if (request->cancelled) return !request->direct;
    kolo_channel_t *channel = receive->remote_channel;
    kolo_message_t message = {.kind = KOLO_MESSAGE_CANCEL, .index = request->index};
    request->cancelled = true;
    (void)kolo_channel_send(channel, &message); /* if this fails, the answer still comes */
    if (!request->direct) return true;
    request->patience_ns = kolo_deadline_ms(PATIENCE_MS);
    if (channel->patience_ns == 0) channel->patience_ns = request->patience_ns;
    return false;
}

kolo_status_t kolo_fetches_poll(kolo_channel_t *channel)
{
    uint64_t now = kolo_now_ns(), first = 0;
    if (now < channel->patience_ns) return KOLO_OK;
    for (uint32_t i = 0; i < channel->nrequests; i++) {
        const kolo_fetch_t *request = &channel->requests[i];
        if (!request->used || request->patience_ns == 0) continue;
        if (now >= request->patience_ns)
            return kolo_fail(KOLO_ERR_TIMEOUT,
                             "%s has not left off writing to a destination that was given up %d ms ago (edge %s); "
                             "its channel is closed",
                             channel->adapter->tasks[channel->peer].name, PATIENCE_MS,
                             request->receive->key.edge_name);
        if (first == 0 || request->patience_ns < first) first = request->patience_ns;
    }
    channel->patience_ns = first;
    return KOLO_OK;
}

/* ---- destinations ---- */

void *kolo_fetch_into(const kolo_fetch_t *request)
{
    const kolo_transfer_args_t *args = &request->receive->args; /* a device's memory is written to at the end */
    return args->memory == KOLO_MEMORY_DEVICE || kolo_receive_has_parted(request->receive) ? NULL : args->into;
}

/* ---- answers ---- */

/* Takes a value that came with the message. */
static kolo_status_t take_carried(kolo_channel_t *channel, kolo_fetch_t *request, const kolo_message_t *m,
                                  const uint8_t *bytes)
{
    kolo_adapter_t *adapter = channel->adapter;
    kolo_receive_t receive = request->receive;
    kolo_value_t value = {.element = m->shape.element, .ndims = m->shape.ndims, .dead = m->shape.dead};
    memcpy(value.dims, m->shape.dims, sizeof value.dims);
    value.bytes = m->shape.bytes;
    void *into = kolo_fetch_into(request), *made = NULL;
    if (value.bytes > 0) value.data = into ? into : (made = malloc(value.bytes));
    if (value.bytes > 0 && value.data == NULL) {
        kolo_fetch_end(channel, request, KOLO_ERR_NO_MEMORY, "no memory for a received value", NULL, NULL);
        return KOLO_OK;
    }
    if (value.bytes > 0) memcpy(value.data, bytes, value.bytes);
    const char *wrong = kolo_rendezvous_value_check(&value);
    if (wrong) {
        free(made);
        return kolo_channel_bad_message(channel, "a value", wrong);
    }
    if (made) value.release = free;
    value.arg = made;
    KOLO_RDV_COUNT(carried, 1);
    KOLO_RDV_COUNT(copies, value.bytes > 0);
    KOLO_RDV_COUNT(copied_bytes, value.bytes);
    if (value.bytes > (uint64_t)kolo_rendezvous_param_inline) learn_shape(channel, receive->text, &m->shape);
    receive->remote = NULL;
    free_request(channel, request);
    kolo_adapter_deliver(adapter, receive, KOLO_OK, NULL, &value);
    return KOLO_OK;
}

kolo_status_t kolo_fetch_meta(kolo_channel_t *channel, const kolo_message_t *m, const uint8_t *bytes)
{
    kolo_fetch_t *request = kolo_fetch_find(channel, m->index);
    if (request == NULL) return kolo_channel_bad_message(channel, "TENSOR_META", "there is no such request");
    KOLO_RDV_COUNT(metas, 1);
    if (m->shape.bytes > request->receive->most)
        return kolo_channel_bad_message(channel, "TENSOR_META", "it is longer than there is room for");
    if (m->flags & KOLO_MESSAGE_FINAL) return take_carried(channel, request, m, bytes);
    if (m->shape.bytes == 0)
        return kolo_channel_bad_message(channel, "TENSOR_META", "it has no bytes and is not final");
    learn_shape(channel, request->receive->text, &m->shape);
    if (request->cancelled) return KOLO_OK; /* the answer to that is on its way */
    if (request->exposed) kolo_onesided_hide(channel->end, &request->window);
    request->exposed = request->direct = false;
    kolo_onesided_free(&request->memory);
    if (expose(channel, request, &m->shape) != KOLO_OK) {
        kolo_receive_t receive = request->receive;
        char why[KOLO_WHY_BYTES];
        snprintf(why, sizeof why, "%s", kolo_error_text());
        kolo_receive_ref(receive); /* the request goes on without it, until it is answered */
        (void)kolo_fetch_cancel(receive);
        kolo_adapter_deliver(channel->adapter, receive, KOLO_ERR_NO_MEMORY, why, NULL);
        return KOLO_OK;
    }
    KOLO_RDV_COUNT(rerequests, 1);
    kolo_message_t again = {.kind = KOLO_MESSAGE_TENSOR_REREQUEST, .index = m->index, .window = request->window};
    return kolo_channel_send(channel, &again);
}

kolo_status_t kolo_fetch_error(kolo_channel_t *channel, const kolo_message_t *m)
{
    kolo_fetch_t *request = kolo_fetch_find(channel, m->index);
    if (request == NULL) return kolo_channel_bad_message(channel, "ERROR_STATUS", "there is no such request");
    kolo_fetch_end(channel, request, m->status, m->name, NULL, NULL);
    return KOLO_OK;
}

/* Strings say themselves where each of them ends, and the peer may still write to where they came: they are
 * checked, and handed out, where it cannot. (Into a destination of the caller's own, which is this process's, it
 * copies only by the leave of the kernel, which lets it write anywhere.) */
kolo_status_t kolo_fetch_strings(kolo_channel_t *channel, kolo_fetch_t *request, kolo_value_t *value)
{
    kolo_adapter_t *adapter = channel->adapter;
    kolo_receive_t receive = request->receive;
    void *own = malloc(value->bytes);
    if (own == NULL) {
        kolo_fetch_end(channel, request, KOLO_ERR_NO_MEMORY, "no memory for a received value", NULL, NULL);
        return KOLO_OK;
    }
    memcpy(own, value->data, value->bytes);
    value->data = value->arg = own;
    value->release = free;
    const char *wrong = kolo_rendezvous_value_check(value);
    if (wrong) {
        free(own);
        return kolo_channel_bad_message(channel, "a value", wrong);
    }
    KOLO_RDV_COUNT(copies, 1);
    KOLO_RDV_COUNT(copied_bytes, value->bytes);
    receive->remote = NULL;
    free_request(channel, request);
    kolo_adapter_deliver(adapter, receive, KOLO_OK, NULL, value);
    return KOLO_OK;
}

kolo_status_t kolo_fetch_complete(kolo_channel_t *channel, uint32_t index)
{
    kolo_fetch_t *request = kolo_fetch_find(channel, index);
    if (request == NULL || !request->exposed)
        return kolo_channel_bad_message(channel, "a value", "nobody has asked for it, or it came twice");
    kolo_shape_t shape = request->shape;
    void *data = request->direct ? request->receive->args.into : request->memory.base;
    kolo_value_t value = {.element = shape.element, .ndims = shape.ndims, .data = data, .bytes = shape.bytes};
    memcpy(value.dims, shape.dims, sizeof value.dims);
    if (shape.element == KOLO_ELEMENT_STRING && !request->direct)
        return kolo_fetch_strings(channel, request, &value);
    const char *wrong = shape.element == KOLO_ELEMENT_STRING ? kolo_rendezvous_value_check(&value) : NULL;
    if (wrong) return kolo_channel_bad_message(channel, "a value", wrong);
    kolo_fetch_end(channel, request, KOLO_OK, NULL, &shape, request->direct ? NULL : &request->memory);
    return KOLO_OK;
}

kolo_status_t kolo_fetches_ask_progress(kolo_channel_t *channel, uint64_t now_ns)
{
    int left = ASK_AT_ONCE;
    for (uint32_t i = 0; i < channel->nrequests && left > 0; i++) {
        const kolo_fetch_t *request = &channel->requests[i];
        kolo_receive_t receive = request->used && !request->cancelled ? request->receive : NULL;
        if (receive == NULL || now_ns < receive->since_ns + KOLO_WATCH_LOOK_MS * KOLO_NS_PER_MS ||
            now_ns < receive->asked_ns + ASK_AGAIN_MS * KOLO_NS_PER_MS)
            continue;
        receive->asked_ns = now_ns;
        left--;
        kolo_message_t message = {.kind = KOLO_MESSAGE_HOW_FAR, .index = request->index};
        memcpy(message.name, receive->text, strlen(receive->text) + 1);
        KOLO_TRY(kolo_channel_send(channel, &message));
    }
    return KOLO_OK;
}

kolo_status_t kolo_fetch_sent(kolo_channel_t *channel, const kolo_message_t *m)
{
    const kolo_fetch_t *request = kolo_fetch_find(channel, m->index);
    if (m->shape.bytes > KOLO_SENT_UP_TO)
        return kolo_channel_bad_message(channel, "SENT", "it is neither yes nor no nor unknown");
    if (request == NULL) return KOLO_OK; /* it has ended meanwhile */
    kolo_receive_t receive = request->receive;
    uint64_t now = kolo_now_ns(), lasted = KOLO_MIN(m->most, now - receive->since_ns);
    atomic_store_explicit(&receive->sent_step, m->step, memory_order_relaxed);
    atomic_store_explicit(&receive->callback_ns, m->most ? now - lasted : 0, memory_order_relaxed);
    atomic_store_explicit(&receive->sent, (uint32_t)m->shape.bytes, memory_order_release);
    return KOLO_OK;
}

void kolo_fetches_close(kolo_channel_t *channel, kolo_status_t status, const char *why)
{
    for (uint32_t i = 0; i < channel->nrequests; i++)
        if (channel->requests[i].used) kolo_fetch_end(channel, &channel->requests[i], status, why, NULL, NULL);
    free(channel->requests);
    channel->requests = NULL;
    channel->nrequests = 0;
}
