/* SPDX-License-Identifier: Apache-2.0
 *
 * Base of the wires whose queue lies in memory that both ends map (local, cma, shm). The writer makes the memory
 * and formats the queue; each reader finds it by the random id on the writer's card. What differs, where the memory
 * comes from, is a kolo_mapped_memory_t that the wire passes in.
 */
#ifndef KOLO_WIRE_MAPPED_H
#define KOLO_WIRE_MAPPED_H

#include "wire/control.h"
#include "wire/queue.h"

#define KOLO_MAPPED_ID_BYTES 16

typedef struct {
    void *base;
    size_t bytes;
    void *handle; /* of the kind of memory */
    uint8_t id[KOLO_MAPPED_ID_BYTES];
    bool owner; /* made here, not found */
} kolo_mapping_t;

typedef struct {
    /* Zeroed memory under a random id, to be found by `readers` ranks. bytes and id are filled in. */
    kolo_status_t (*create)(kolo_wire_ctx_t *ctx, uint32_t readers, kolo_mapping_t *map);
    /* Finds the memory that the process of `writer` made; bytes and id are filled in. */
    kolo_status_t (*open)(kolo_wire_ctx_t *ctx, const kolo_peer_card_t *writer, kolo_mapping_t *map);
    void (*release)(kolo_mapping_t *map);
} kolo_mapped_memory_t;

/* An end's priv. */
typedef struct {
    kolo_wire_ctx_t *ctx;
    const kolo_mapped_memory_t *memory;
    kolo_mapping_t map;
    kolo_queue_header_t *queue; /* NULL until mapped */
    bool gone;                  /* a check has found the peer gone: the next one fails */
    uint32_t npeers;
    kolo_bell_t *bells;           /* npeers */
    kolo_control_peer_t *peers[]; /* the readers, or the writer */
} kolo_mapped_t;

static inline kolo_mapped_t *kolo_mapped_of_rx(const kolo_rx_t *rx)
{
    return (kolo_mapped_t *)rx->priv;
}

/* Sets up the reader's end; all wires share this and the members of kolo_wire_ops_t below. */
kolo_status_t kolo_mapped_rx_setup(kolo_wire_ctx_t *ctx, kolo_rx_t *rx, const kolo_mapped_memory_t *memory,
                                   kolo_wire_card_t *card);
kolo_status_t kolo_mapped_tx_setup(kolo_wire_ctx_t *ctx, kolo_tx_t *tx, const kolo_mapped_memory_t *memory,
                                   kolo_wire_card_t *card);
kolo_status_t kolo_mapped_tx_connect(kolo_wire_ctx_t *ctx, kolo_tx_t *tx, const kolo_wire_card_t *reader_cards);
kolo_status_t kolo_mapped_rx_connect(kolo_wire_ctx_t *ctx, kolo_rx_t *rx, const kolo_wire_card_t *writer_card);
kolo_status_t kolo_mapped_tx_check(kolo_tx_t *tx);
kolo_status_t kolo_mapped_rx_check(kolo_rx_t *rx);
void kolo_mapped_tx_close(kolo_tx_t *tx);
void kolo_mapped_rx_close(kolo_rx_t *rx);
void kolo_mapped_tx_fini(kolo_tx_t *tx);
void kolo_mapped_rx_fini(kolo_rx_t *rx);
size_t kolo_mapped_tx_memory(const kolo_tx_t *tx);
size_t kolo_mapped_rx_memory(const kolo_rx_t *rx);

/* These, and what no such wire has, in a wire's table. */
#define KOLO_MAPPED_MEMBERS                                                                                        \
    .tx_connect = kolo_mapped_tx_connect, .rx_connect = kolo_mapped_rx_connect,                                    \
    .rx_can_connect = kolo_wire_no_wait, .tx_check = kolo_mapped_tx_check, .rx_check = kolo_mapped_rx_check,       \
    .tx_post_from = kolo_wire_no_post_from, .rx_expect = kolo_wire_no_expect,                                      \
    .rx_unexpect = kolo_wire_no_unexpect, .tx_close = kolo_mapped_tx_close, .rx_close = kolo_mapped_rx_close,      \
    .tx_fini = kolo_mapped_tx_fini, .rx_fini = kolo_mapped_rx_fini, .tx_memory = kolo_mapped_tx_memory,            \
    .rx_memory = kolo_mapped_rx_memory

/* References of wires whose readers copy by themselves: the key is the writer's process. */
kolo_status_t kolo_mapped_ref_make(kolo_tx_t *tx, const void *data, uint64_t bytes, kolo_ref_t *ref);
kolo_status_t kolo_mapped_ref_start(kolo_rx_t *rx, const kolo_ref_t *ref, kolo_ref_copy_t *copy);
/* Counts so many bytes more as copied; returns what ref_done does. */
static inline kolo_status_t kolo_mapped_ref_copied(kolo_ref_copy_t *copy, size_t bytes)
{
    copy->theirs += bytes;
    copy->mine += bytes;
    copy->left -= bytes;
    return copy->left ? KOLO_IN_PROGRESS : KOLO_OK;
}
/* Tells whether a and b can use `wire` and see the same abstract sockets under the same user. */
bool kolo_mapped_same_host(const kolo_peer_card_t *a, const kolo_peer_card_t *b, const kolo_wire_ops_t *wire);
extern bool kolo_mapped_huge_pages; /* KOLO_SHM_HUGE_PAGES */
/* Makes ends in sealed memfds (memfd.c), for the wires "shm" and "cma". */
kolo_status_t kolo_memfd_rx_setup(kolo_wire_ctx_t *ctx, kolo_rx_t *rx, kolo_wire_card_t *card);
kolo_status_t kolo_memfd_tx_setup(kolo_wire_ctx_t *ctx, kolo_tx_t *tx, kolo_wire_card_t *card);
/* Fills their cards: KOLO_ERR_UNSUPPORTED where the process may not have as much shared memory (RLIMIT_FSIZE). */
kolo_status_t kolo_memfd_card(kolo_peer_card_t *card);
extern const kolo_wire_ops_t kolo_wire_shm; /* wire/shm, which is little more than that */

#endif
