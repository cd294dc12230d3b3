/* SPDX-License-Identifier: Apache-2.0
 *
 * The two ends of a queue of slots as plain memory: numbers, and addresses as they are for whoever advances the
 * end. All that an end does is here.
 *
 * Slot n (n counts from the connection's start, 64 bit, never reset) lies at slots + (n & mask) * stride. It is
 * full for the reader when its header's seq equals n + 1, and free for the writer when every reader's `consumed`
 * exceeds n - depth.
 *
 * Who checks. The wire fills an end in from what both sides have agreed on and it has checked (kolo_queue_check),
 * so nothing of an end was written by a peer. What a peer does write, seq, consumed and the rest of a header, is
 * compared with what is expected and never used as an address, an index or a length.
 */
#ifndef KOLO_WIRE_END_H
#define KOLO_WIRE_END_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    _Alignas(64) _Atomic uint64_t seq; /* slot number + 1 when full */
    uint32_t bytes;                    /* payload bytes; untrusted: the reader compares with what it expects */
    uint32_t flags;                    /* KOLO_SLOT_REF */
    uint64_t signature;                /* what operation the writer is in (plan/plan.h) */
    uint64_t operation;                /* its sequence number on the communicator */
    uint8_t pad[32];
} kolo_slot_header_t;

typedef struct {
    _Alignas(64) _Atomic uint64_t consumed; /* slots below this number have been released by this reader */
    _Atomic uint32_t closed;                /* this reader has closed the connection */
} kolo_head_line_t;

typedef struct {
    uint64_t next; /* slot to post next */
    uint64_t room; /* slots below this number are free */
    char *slots;
    const kolo_head_line_t *heads; /* nreaders */
    uint64_t mask;
    uint64_t stride;
    uint32_t slot_bytes, depth, nreaders, pad;
} kolo_tx_end_t;

typedef struct {
    uint64_t next; /* slot to read next */
    char *slots;
    kolo_head_line_t *head; /* this reader's */
    uint64_t mask;
    uint64_t stride;
    uint32_t slot_bytes, depth;
} kolo_rx_end_t;

/* ---- the words that both sides see ---- */

static inline uint64_t kolo_end_load(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}
/* Stores behind all that the caller has read and written. */
static inline void kolo_end_store(_Atomic uint64_t *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}

/* ---- writer ---- */

static inline kolo_slot_header_t *kolo_tx_end_header(const kolo_tx_end_t *tx)
{
    return (kolo_slot_header_t *)(void *)(tx->slots + (tx->next & tx->mask) * tx->stride);
}
/* Returns the lowest `consumed` of all readers. */
static inline uint64_t kolo_tx_end_consumed(const kolo_tx_end_t *tx)
{
    uint64_t low = kolo_end_load(&tx->heads[0].consumed);
    for (uint32_t i = 1; i < tx->nreaders; i++) {
        uint64_t c = kolo_end_load(&tx->heads[i].consumed);
        if ((int64_t)(c - low) < 0) low = c;
    }
    return low;
}
/* Tells whether slot `next` is free. */
static inline bool kolo_tx_end_ready(kolo_tx_end_t *tx)
{
    if (__builtin_expect((int64_t)(tx->room - tx->next) > 0, 1)) return true;
    tx->room = kolo_tx_end_consumed(tx) + tx->depth;
    return (int64_t)(tx->room - tx->next) > 0;
}
/* Publishes slot `next` whose payload is written. The slot must have been ready. */
static inline void kolo_tx_end_post(kolo_tx_end_t *tx, uint32_t bytes, uint32_t flags, uint64_t signature,
                                    uint64_t operation)
{
    kolo_slot_header_t *h = kolo_tx_end_header(tx);
    h->bytes = bytes;
    h->flags = flags;
    h->signature = signature;
    h->operation = operation;
    kolo_end_store(&h->seq, tx->next + 1);
    tx->next++;
}

/* ---- reader ---- */

static inline kolo_slot_header_t *kolo_rx_end_header(const kolo_rx_end_t *rx)
{
    return (kolo_slot_header_t *)(void *)(rx->slots + (rx->next & rx->mask) * rx->stride);
}
static inline bool kolo_rx_end_ready(const kolo_rx_end_t *rx)
{
    return kolo_end_load(&kolo_rx_end_header(rx)->seq) == rx->next + 1;
}
/* Gives slot `next` back to the writer. */
static inline void kolo_rx_end_release(kolo_rx_end_t *rx)
{
    rx->next++;
    kolo_end_store(&rx->head->consumed, rx->next);
}

#endif
