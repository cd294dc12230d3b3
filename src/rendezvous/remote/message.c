/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages between two tasks as bytes. See message.h.
 */
#include "rendezvous/remote/message.h"
#include "base/bytes.h"

#include <string.h>

#define MAGIC 0x346d726bu /* "krm4": the digit is the version */

const char *kolo_message_name(kolo_message_kind_t kind)
{
    static const char *const names[KOLO_MESSAGE_KINDS] = {"?",
                                                          "HELLO",
                                                          "TENSOR_REQUEST",
                                                          "TENSOR_META",
                                                          "TENSOR_REREQUEST",
                                                          "ERROR_STATUS",
                                                          "CANCEL",
                                                          "BUFFER_REQUEST",
                                                          "BUFFER_RESPONSE",
                                                          "TENSOR_WRITE",
                                                          "BUFFER_IDLE",
                                                          "DOOR",
                                                          "WHERE",
                                                          "HOW_FAR",
                                                          "SENT"};
    return (unsigned)kind < KOLO_MESSAGE_KINDS ? names[kind] : "?";
}

size_t kolo_message_encode(const kolo_message_t *message, uint8_t bytes[KOLO_MESSAGE_BYTES])
{
    size_t n = strlen(message->name);
    const kolo_shape_t *shape = &message->shape;
    memset(bytes, 0, KOLO_MESSAGE_HEAD_BYTES);
    kolo_put32(bytes, MAGIC);
    kolo_put32(bytes + 4, (uint32_t)message->kind);
    kolo_put64(bytes + 8, message->sequence);
    kolo_put32(bytes + 16, message->index);
    kolo_put32(bytes + 20, message->flags);
    kolo_put64(bytes + 24, message->step);
    kolo_onesided_window_encode(&message->window, bytes + 32);
    kolo_put64(bytes + 56, shape->bytes);
    kolo_put32(bytes + 64, (uint32_t)shape->element);
    kolo_put32(bytes + 68, (uint32_t)shape->ndims);
    for (int i = 0; i < shape->ndims; i++) kolo_put64(bytes + 72 + 8 * i, (uint64_t)shape->dims[i]);
    kolo_put32(bytes + 200, (uint32_t)message->status);
    kolo_put32(bytes + 204, (uint32_t)n);
    kolo_put64(bytes + 208, message->most);
    memcpy(bytes + KOLO_MESSAGE_HEAD_BYTES, message->name, n);
    return KOLO_MESSAGE_HEAD_BYTES + n;
}

/* Checks that a shape is one that a value can have; where there is none, nothing stands in its place. */
static const char *check_shape(const uint8_t *bytes, const kolo_message_t *m)
{
    uint64_t least;
    if (!(m->flags & KOLO_MESSAGE_KNOWN)) {
        uint64_t any = 0;
        for (int i = 64; i < 200; i += 8) any |= kolo_get64(bytes + i);
        if (any != 0) return "it has a shape that does not count";
        return m->flags & KOLO_MESSAGE_DEAD ? "nothing is dead" : NULL;
    }
    if (!kolo_rendezvous_value_size(m->shape.element, m->shape.ndims, m->shape.dims, &least))
        return "its shape is none";
    for (int i = m->shape.ndims; i < KOLO_VALUE_DIMS_MAX; i++)
        if (kolo_get64(bytes + 72 + 8 * i) != 0) return "it has dimensions that do not count";
    if (m->shape.bytes > INT64_MAX) return "its size is out of range";
    if (m->shape.dead && m->shape.bytes == 0) return NULL;
    bool strings = m->shape.element == KOLO_ELEMENT_STRING;
    return (strings ? m->shape.bytes < least : m->shape.bytes != least) ? "its size is not that of its shape"
                                                                        : NULL;
}

static const char *check_kind(const kolo_message_t *m, kolo_tensor_key_t *key)
{
    static const struct {
        uint32_t flags; /* that it may have */
        bool known, key, words;
    } rules[KOLO_MESSAGE_KINDS] = {
        [KOLO_MESSAGE_HELLO] = {.words = true},
        [KOLO_MESSAGE_TENSOR_REQUEST] = {.flags = KOLO_MESSAGE_BUFFERED | KOLO_MESSAGE_KNOWN, .key = true},
        [KOLO_MESSAGE_TENSOR_META] = {.flags = KOLO_MESSAGE_KNOWN | KOLO_MESSAGE_DEAD | KOLO_MESSAGE_FINAL,
                                      .known = true},
        [KOLO_MESSAGE_TENSOR_REREQUEST] = {0},
        [KOLO_MESSAGE_ERROR_STATUS] = {.words = true},
        [KOLO_MESSAGE_CANCEL] = {0},
        [KOLO_MESSAGE_BUFFER_REQUEST] = {.key = true},
        [KOLO_MESSAGE_BUFFER_RESPONSE] = {.key = true},
        [KOLO_MESSAGE_TENSOR_WRITE] = {.flags = KOLO_MESSAGE_KNOWN | KOLO_MESSAGE_DEAD, .known = true},
        [KOLO_MESSAGE_BUFFER_IDLE] = {.key = true},
        [KOLO_MESSAGE_DOOR] = {.words = true},
        [KOLO_MESSAGE_WHERE] = {0},
        [KOLO_MESSAGE_HOW_FAR] = {.key = true},
        [KOLO_MESSAGE_SENT] = {0},
    };
    if (m->kind < 1 || m->kind >= KOLO_MESSAGE_KINDS) return "there is no such kind";
    if (m->flags & ~rules[m->kind].flags) return "it has flags that it must not have";
    if (rules[m->kind].known && !(m->flags & KOLO_MESSAGE_KNOWN)) return "it lacks its shape";
    if (m->name[0] != '\0' && !rules[m->kind].key && !rules[m->kind].words) return "it has a name";
    if (m->most != 0 && m->kind != KOLO_MESSAGE_TENSOR_REQUEST && m->kind != KOLO_MESSAGE_SENT)
        return "nothing has room";
    if ((m->status != KOLO_OK) != (m->kind == KOLO_MESSAGE_ERROR_STATUS)) return "its status makes no sense";
    if (m->flags & KOLO_MESSAGE_FINAL && m->shape.bytes > KOLO_MESSAGE_VALUE_MAX) return "its bytes never come";
    return rules[m->kind].key ? kolo_rendezvous_key_decode(m->name, strlen(m->name), key) : NULL;
}

const char *kolo_message_decode(const uint8_t *bytes, size_t room, kolo_message_t *m, kolo_tensor_key_t *key)
{
    if (room < KOLO_MESSAGE_HEAD_BYTES) return "it is truncated";
    if (kolo_get32(bytes) != MAGIC) return "it is no message of this version";
    uint32_t name = kolo_get32(bytes + 204), status = kolo_get32(bytes + 200), ndims = kolo_get32(bytes + 68);
    if (name > KOLO_TENSOR_KEY_MAX || name > room - KOLO_MESSAGE_HEAD_BYTES) return "its name is too long";
    if (memchr(bytes + KOLO_MESSAGE_HEAD_BYTES, '\0', name) != NULL) return "its name has a zero in it";
    if (ndims > KOLO_VALUE_DIMS_MAX) return "it has too many dimensions";
    if (status > KOLO_ERR_REVOKED || status == KOLO_IN_PROGRESS) return "there is no such status";
    memset(m, 0, sizeof *m);
    m->kind = (kolo_message_kind_t)kolo_get32(bytes + 4);
    m->sequence = kolo_get64(bytes + 8);
    m->index = kolo_get32(bytes + 16);
    m->flags = kolo_get32(bytes + 20);
    m->step = kolo_get64(bytes + 24);
    kolo_onesided_window_decode(bytes + 32, &m->window);
    m->shape.bytes = kolo_get64(bytes + 56);
    m->shape.element = (int)kolo_get32(bytes + 64);
    m->shape.ndims = (int)ndims;
    for (uint32_t i = 0; i < ndims; i++) m->shape.dims[i] = (int64_t)kolo_get64(bytes + 72 + 8 * i);
    m->shape.dead = (m->flags & KOLO_MESSAGE_DEAD) != 0;
    m->status = (kolo_status_t)status;
    m->most = kolo_get64(bytes + 208);
    memcpy(m->name, bytes + KOLO_MESSAGE_HEAD_BYTES, name);
    const char *wrong = check_kind(m, key);
    return wrong ? wrong : check_shape(bytes, m);
}

size_t kolo_message_length(const kolo_message_t *message)
{
    size_t carried = message->flags & KOLO_MESSAGE_FINAL ? (size_t)message->shape.bytes : 0;
    return KOLO_MESSAGE_HEAD_BYTES + strlen(message->name) + carried;
}

void kolo_shape_of(const kolo_value_t *value, kolo_shape_t *shape)
{
    memset(shape, 0, sizeof *shape);
    shape->element = value->element;
    shape->ndims = value->ndims;
    for (int i = 0; i < value->ndims; i++) shape->dims[i] = value->dims[i];
    shape->bytes = value->bytes;
    shape->dead = value->dead != 0;
}

bool kolo_shape_equal(const kolo_shape_t *a, const kolo_shape_t *b)
{
    return a->element == b->element && a->ndims == b->ndims && a->bytes == b->bytes && a->dead == b->dead &&
           memcmp(a->dims, b->dims, sizeof a->dims) == 0;
}
