/* SPDX-License-Identifier: Apache-2.0
 *
 * A queue of slots in memory that both ends see: one header, one line per reader with what it has released, then
 * the slots. The writer formats it, the reader checks every field against its own spec before it believes in it;
 * after that nothing in the header but `closed` is read again, so a peer that scribbles harms only the data it
 * sends.
 */
#ifndef KOLO_WIRE_QUEUE_H
#define KOLO_WIRE_QUEUE_H

#include "wire/wire.h"

#define KOLO_QUEUE_MAGIC     0x6575716bu /* "kque" */
#define KOLO_QUEUE_VERSION   1u
#define KOLO_QUEUE_MAX_DEPTH (1u << 24)
#define KOLO_QUEUE_MAX_SLOT  (1u << 30)
#define KOLO_QUEUE_MAX_BYTES (1ull << 40)

typedef struct {
    _Alignas(64) uint32_t magic;
    uint32_t version;
    uint64_t job, bytes, start;
    uint32_t kind, proto;
    int32_t writer, reader;
    uint32_t lane, depth, slot_bytes, nreaders;
    _Alignas(64) _Atomic uint32_t closed; /* the writer has closed the connection */
} kolo_queue_header_t;
_Static_assert(sizeof(kolo_queue_header_t) == 128, "the header is shared between processes");

/* Fails for a connection that no wire can carry (choose.c). */
kolo_status_t kolo_wire_none(const kolo_wire_ctx_t *ctx, const kolo_conn_spec_t *spec);
/* Ranges of a spec that any wire can serve; the message names the field. */
kolo_status_t kolo_conn_check_spec(const kolo_conn_spec_t *spec);
/* Returns the bytes from one slot to the next. */
static inline size_t kolo_queue_stride(const kolo_conn_spec_t *spec)
{
    return sizeof(kolo_slot_header_t) + spec->slot_bytes;
}
/* Ends as their wire finds them: nothing of memory yet. ops: NULL in tests of queues alone. */
static inline kolo_tx_t kolo_queue_tx(const kolo_conn_spec_t *spec, uint32_t nreaders, const kolo_wire_ops_t *ops)
{
    return (kolo_tx_t){.end = {.next = spec->start,
                               .room = spec->start + spec->depth,
                               .mask = spec->depth - 1,
                               .stride = kolo_queue_stride(spec),
                               .slot_bytes = spec->slot_bytes,
                               .depth = spec->depth,
                               .nreaders = nreaders},
                       .caps = ops ? ops->caps : 0,
                       .ops = ops,
                       .spec = *spec};
}
static inline kolo_rx_t kolo_queue_rx(const kolo_conn_spec_t *spec, const kolo_wire_ops_t *ops)
{
    return (kolo_rx_t){.end = {.next = spec->start,
                               .mask = spec->depth - 1,
                               .stride = kolo_queue_stride(spec),
                               .slot_bytes = spec->slot_bytes,
                               .depth = spec->depth},
                       .caps = ops ? ops->caps : 0,
                       .ops = ops,
                       .spec = *spec};
}
/* Returns the bytes of a whole queue (the spec has been checked). */
size_t kolo_queue_bytes(const kolo_conn_spec_t *spec, uint32_t nreaders);

/* Makes fresh slots (all zero) safe for numbers from spec->start on: none of them may look full before it is.
 * Touches nothing unless the start is near a wrap-around. */
void kolo_queue_prepare(const kolo_conn_spec_t *spec, char *slots);

/* Formats zeroed memory, on the writer's side. */
void kolo_queue_format(void *memory, const kolo_conn_spec_t *spec, uint32_t nreaders, uint64_t job);
/* Checks every field against what the reader expects. */
kolo_status_t kolo_queue_check(const void *memory, const kolo_conn_spec_t *spec, uint32_t nreaders, uint64_t job);

/* Points an end at the queue: slots and heads. */
void kolo_queue_bind_tx(void *memory, kolo_tx_t *tx);
void kolo_queue_bind_rx(void *memory, kolo_rx_t *rx, uint32_t nreaders, uint32_t index);

#endif
