/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files that read and write messages of the slow path share: requests as protobuf, and the memory that a
 * parse may use.
 */
#ifndef KOLO_ENGINE_CONTROLLER_MESSAGE_H
#define KOLO_ENGINE_CONTROLLER_MESSAGE_H

#include "engine/engine.h"

#ifdef KOLO_HAVE_PROTOBUF

#include <engine.pb-c.h> /* made from engine.proto */

#define KOLO_MESSAGE_VERSION 1u

/* A bounded allocator: everything that one parse allocates is freed together. */
typedef struct {
    ProtobufCAllocator allocator;
    char *block;
    size_t used, room;
} kolo_arena_t;
/* A pointer per repeated message and a struct of about 200 bytes per 2 bytes on the wire is the worst that a parse
 * can ask for; real lists need far less. */
#define KOLO_ARENA_FACTOR 32
#define KOLO_ARENA_EXTRA  (1u << 16)
kolo_status_t kolo_arena_init(kolo_arena_t *a, size_t length);
void kolo_arena_fini(kolo_arena_t *a);

kolo_status_t kolo_message_wrong(const char *what);
void kolo_message_put(const kolo_tensor_request_t *request, KoloWire__Request *out);
/* Packs a list of requests. */
kolo_status_t kolo_message_pack(KoloWire__Request **table, size_t count, kolo_bytes_t *out);
/* Fills in *out, its name in `text`, and returns NULL; else what is wrong. */
const char *kolo_message_get(const KoloWire__Request *in, int nranks, char *text, kolo_tensor_request_t *out);

#else
kolo_status_t kolo_message_absent(void); /* fails */
#endif

#endif
