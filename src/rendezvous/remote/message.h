/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages between two tasks. Fixed little-endian layout, versioned; encoders and decoders are pure over
 * (bytes, length) and fuzzed. A channel is called by the task that receives, so requests go from the caller, values
 * come back:
 *
 *     HELLO            each side first: its task and incarnation
 *     TENSOR_REQUEST   caller: the value of `name` (a key) in `step`; direct: its memory, if its size is known
 *     TENSOR_META      direct: they are these; `final`: and its bytes, if any, are behind the name
 *     TENSOR_REREQUEST direct, caller: here is memory of that size
 *     ERROR_STATUS     the request fails, with `status` and words (`name`)
 *     CANCEL           caller: the request is not wanted any more
 *     BUFFER_REQUEST   buffered: I need a buffer of `bytes` for `name` (a key)
 *     BUFFER_RESPONSE  buffered, caller: here it is; writes to it say `index`
 *     TENSOR_WRITE     buffered: ahead of the bytes, in the buffer
 *     BUFFER_IDLE      buffered, caller: I have taken the value out of the buffer of `name`
 *     HOW_FAR          caller: in which step was the edge of `name` (a key) sent last? about the request `index`
 *     SENT             it was in `step`, or (bytes 0) never; and for `most` ns I have been in a callback
 *     DOOR             where task `index` listens (`name`: an address in hexadecimal digits) in its life `bytes`
 *     WHERE            caller, to the task that keeps the book: the door of task `index`, not that of life `bytes`
 *
 * The messages' acknowledgement is a count in a word of its own (channel.c).
 */
#ifndef KOLO_RENDEZVOUS_MESSAGE_H
#define KOLO_RENDEZVOUS_MESSAGE_H

#include "remote/onesided.h"
#include "rendezvous/internal.h"

typedef enum {
    KOLO_MESSAGE_HELLO = 1,
    KOLO_MESSAGE_TENSOR_REQUEST,
    KOLO_MESSAGE_TENSOR_META,
    KOLO_MESSAGE_TENSOR_REREQUEST,
    KOLO_MESSAGE_ERROR_STATUS,
    KOLO_MESSAGE_CANCEL,
    KOLO_MESSAGE_BUFFER_REQUEST,
    KOLO_MESSAGE_BUFFER_RESPONSE,
    KOLO_MESSAGE_TENSOR_WRITE,
    KOLO_MESSAGE_BUFFER_IDLE,
    KOLO_MESSAGE_DOOR,
    KOLO_MESSAGE_WHERE,
    KOLO_MESSAGE_HOW_FAR,
    KOLO_MESSAGE_SENT,
    KOLO_MESSAGE_KINDS
} kolo_message_kind_t;
const char *kolo_message_name(kolo_message_kind_t kind);

enum {
    KOLO_MESSAGE_BUFFERED = 1u, /* of a request: by buffers */
    KOLO_MESSAGE_KNOWN = 2u,    /* there is a shape */
    KOLO_MESSAGE_DEAD = 4u,
    KOLO_MESSAGE_FINAL = 8u
};

typedef struct { /* type, shape and size of a value */
    int element, ndims;
    int64_t dims[KOLO_VALUE_DIMS_MAX];
    uint64_t bytes;
    bool dead;
} kolo_shape_t;

/* 0 magic and version, 4 kind, 8 sequence, 16 index, 20 flags, 24 step, 32 window, 56 bytes, 64 element, 68 ndims,
 * 72 dims, 200 status, 204 length of the name, 208 most, 216 name */
#define KOLO_MESSAGE_HEAD_BYTES 216
#define KOLO_MESSAGE_TEXT_BYTES (KOLO_MESSAGE_HEAD_BYTES + KOLO_TENSOR_KEY_MAX + 1)
#define KOLO_MESSAGE_VALUE_MAX  4096 /* bytes of a value that a message may carry */
#define KOLO_MESSAGE_BYTES      4352 /* room for one, with name or value */
typedef struct {
    kolo_message_kind_t kind;
    uint64_t sequence; /* counted by the channel, from 0; of TENSOR_WRITE 0 */
    uint32_t index, flags;
    uint64_t step;
    kolo_onesided_window_t window;
    kolo_shape_t shape; /* bytes also of buffers, and of HELLO: the incarnation */
    uint64_t most;      /* of TENSOR_REQUEST: bytes that there is room for; 0: as many as there are. Also of SENT */
    kolo_status_t status;
    char name[KOLO_TENSOR_KEY_MAX + 1];
} kolo_message_t;
_Static_assert(KOLO_MESSAGE_BYTES >= KOLO_MESSAGE_HEAD_BYTES + KOLO_MESSAGE_VALUE_MAX, "a value fits");
_Static_assert(KOLO_MESSAGE_BYTES >= KOLO_MESSAGE_TEXT_BYTES, "a name fits");
/* Returns its length. */
size_t kolo_message_encode(const kolo_message_t *message, uint8_t bytes[KOLO_MESSAGE_BYTES]);
/* Returns NULL, or what is wrong. Of `room` bytes it reads KOLO_MESSAGE_TEXT_BYTES at most: the bytes of a value
 * that a message carries (KOLO_MESSAGE_FINAL) are behind its head. *key: its name taken apart, if that is a key. */
const char *kolo_message_decode(const uint8_t *bytes, size_t room, kolo_message_t *message, kolo_tensor_key_t *key);

/* Returns its length, with the bytes of a value that it carries. */
size_t kolo_message_length(const kolo_message_t *message);

void kolo_shape_of(const kolo_value_t *value, kolo_shape_t *shape);
bool kolo_shape_equal(const kolo_shape_t *a, const kolo_shape_t *b);

#endif
