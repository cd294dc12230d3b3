/* SPDX-License-Identifier: Apache-2.0
 *
 * What is new to the ranks as bytes, to the coordinator and back (message.c).
 */
#ifndef KOLO_ENGINE_CONTROLLER_CODEC_H
#define KOLO_ENGINE_CONTROLLER_CODEC_H

#include "engine/request.h"

#define KOLO_ENGINE_MESSAGE_MAX  (64u << 20)
#define KOLO_ENGINE_REQUESTS_MAX 8192 /* of one rank in one cycle; the rest waits for the next */

typedef struct {
    uint8_t *bytes;
    size_t length, room;
} kolo_bytes_t;
kolo_status_t kolo_message_room(kolo_bytes_t *bytes, size_t room);
/* Encodes into `out`, which keeps its memory from call to call. */
kolo_status_t kolo_requests_encode(const kolo_tensor_request_t *const *requests, size_t count, kolo_bytes_t *out);
kolo_status_t kolo_responses_encode(const kolo_responses_t *list, int nranks, int njoined, kolo_bytes_t *out);
/* Adds to the list. */
kolo_status_t kolo_responses_decode(const uint8_t *bytes, size_t length, int nranks, kolo_responses_t *list,
                                    int *njoined);

#endif
