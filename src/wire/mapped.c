/* SPDX-License-Identifier: Apache-2.0
 *
 * Base of the wires whose queue lies in memory that both ends map. See mapped.h.
 */
#include "wire/mapped.h"

#include "base/log.h"
#include "base/process.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CARD_MAGIC   0x70616d6bu /* "kmap" */
#define CARD_VERSION 1u

bool kolo_mapped_huge_pages;

static const kolo_param_t rows[] = {
    {"KOLO_SHM_HUGE_PAGES", KOLO_PARAM_BOOL, "0", 0, 0, NULL, false,
     "1: ask for huge pages for shared segments of 2 MB and more; memory is then taken in pieces of 2 MB",
     &kolo_mapped_huge_pages},
};
const kolo_param_table_t kolo_wire_params = {"wire", rows, KOLO_COUNTOF(rows), NULL};

typedef struct { /* on the wire card of the writer; the reader's says nothing but who it is */
    uint32_t magic, version;
    uint64_t bytes;
    uint8_t id[KOLO_MAPPED_ID_BYTES];
} mapped_card_t;
_Static_assert(sizeof(mapped_card_t) <= KOLO_WIRE_CARD_BYTES, "fits a card");

bool kolo_mapped_same_host(const kolo_peer_card_t *a, const kolo_peer_card_t *b, const kolo_wire_ops_t *wire)
{
    return kolo_wire_on_card(a, wire) && kolo_wire_on_card(b, wire) && a->shm_hash == b->shm_hash &&
           a->uid == b->uid;
}

/* Returns what a process is known by, also where its number is another's by now. */
static uint64_t key_of(const kolo_mapped_t *end, int rank)
{
    return end->ctx->member->peers[rank].process_hash;
}

kolo_status_t kolo_mapped_ref_make(kolo_tx_t *tx, const void *data, uint64_t bytes, kolo_ref_t *ref)
{
    const kolo_mapped_t *end = tx->priv;
    *ref = (kolo_ref_t){(uint64_t)(uintptr_t)data, bytes, key_of(end, tx->spec.writer), tx->end.next};
    return KOLO_OK;
}

kolo_status_t kolo_mapped_ref_start(kolo_rx_t *rx, const kolo_ref_t *ref, kolo_ref_copy_t *copy)
{
    const kolo_mapped_t *end = kolo_mapped_of_rx(rx);
    uint64_t offset = copy->theirs, bytes = copy->left;
    if (KOLO_UNLIKELY(ref->key != key_of(end, rx->spec.writer) || ref->generation != rx->end.next))
        return kolo_fail(
            KOLO_ERR_PROTOCOL, "rank %d: a reference of slot %llu in slot %llu of the connection from rank %d, %s",
            rx->spec.reader, (unsigned long long)ref->generation, (unsigned long long)rx->end.next, rx->spec.writer,
            ref->generation != rx->end.next ? "which is over" : "to another process's memory");
    if (KOLO_UNLIKELY(offset > ref->bytes || bytes > ref->bytes - offset || ref->address > UINT64_MAX - ref->bytes))
        return kolo_fail(KOLO_ERR_PROTOCOL,
                         "rank %d: bytes %llu to %llu of a reference from rank %d are wanted, but it has %llu",
                         rx->spec.reader, (unsigned long long)offset, (unsigned long long)offset + bytes,
                         rx->spec.writer, (unsigned long long)ref->bytes);
    copy->theirs = ref->address + offset;
    return KOLO_OK;
}

/* Returns an end, or NULL with a message when there is no memory. */
static kolo_mapped_t *make_end(kolo_wire_ctx_t *ctx, const kolo_mapped_memory_t *memory, uint32_t npeers)
{
    kolo_mapped_t *end = (kolo_mapped_t *)calloc(1, sizeof *end + npeers * sizeof(end->peers[0]));
    kolo_bell_t *bells = (kolo_bell_t *)calloc(npeers, sizeof *bells);
    if (!end || !bells) {
        free(end);
        free(bells);
        (void)kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a connection to %u ranks", npeers);
        return NULL;
    }
    end->ctx = ctx;
    end->memory = memory;
    end->npeers = npeers;
    end->bells = bells;
    return end;
}

static kolo_status_t meet(kolo_mapped_t *end, uint32_t i, int rank)
{
    KOLO_TRY(kolo_control_peer(end->ctx, rank, &end->peers[i]));
    end->bells[i] = (kolo_bell_t){.asleep = &end->peers[i]->page->asleep, .event_fd = end->peers[i]->event_fd};
    return KOLO_OK;
}

kolo_status_t kolo_mapped_rx_setup(kolo_wire_ctx_t *ctx, kolo_rx_t *rx, const kolo_mapped_memory_t *memory,
                                   kolo_wire_card_t *card)
{
    mapped_card_t mine = {.magic = CARD_MAGIC, .version = CARD_VERSION};
    kolo_mapped_t *end = make_end(ctx, memory, 1);
    if (!end) return KOLO_ERR_NO_MEMORY;
    rx->priv = end;
    kolo_wire_card_put(card, &mine, sizeof mine);
    return KOLO_OK;
}

kolo_status_t kolo_mapped_tx_setup(kolo_wire_ctx_t *ctx, kolo_tx_t *tx, const kolo_mapped_memory_t *memory,
                                   kolo_wire_card_t *card)
{
    kolo_mapped_t *end = make_end(ctx, memory, tx->end.nreaders);
    if (!end) return KOLO_ERR_NO_MEMORY;
    tx->priv = end;
    tx->bells = end->bells;
    end->map.bytes = kolo_queue_bytes(&tx->spec, tx->end.nreaders);
    KOLO_TRY(kolo_random(end->map.id, sizeof end->map.id));
    KOLO_TRY(memory->create(ctx, tx->end.nreaders, &end->map));
    end->queue = (kolo_queue_header_t *)end->map.base;
    kolo_queue_format(end->map.base, &tx->spec, tx->end.nreaders, ctx->job);
    kolo_queue_bind_tx(end->map.base, tx);

    mapped_card_t mine = {.magic = CARD_MAGIC, .version = CARD_VERSION, .bytes = end->map.bytes};
    memcpy(mine.id, end->map.id, sizeof mine.id);
    kolo_wire_card_put(card, &mine, sizeof mine);
    return KOLO_OK;
}

static kolo_status_t check_card(const kolo_wire_card_t *card, int rank, mapped_card_t *out)
{
    if (kolo_wire_card_get(card, out, sizeof *out) && out->magic == CARD_MAGIC && out->version == CARD_VERSION)
        return KOLO_OK;
    return kolo_fail(KOLO_ERR_PROTOCOL, "the wire card of rank %d is not one (magic %08x, version %u)", rank,
                     out->magic, out->version);
}

kolo_status_t kolo_mapped_tx_connect(kolo_wire_ctx_t *ctx, kolo_tx_t *tx, const kolo_wire_card_t *reader_cards)
{
    kolo_mapped_t *end = (kolo_mapped_t *)tx->priv;
    for (uint32_t i = 0; i < end->npeers; i++) {
        mapped_card_t card;
        int rank = kolo_wire_reader_at(ctx, &tx->spec, i);
        KOLO_TRY(check_card(&reader_cards[i], rank, &card));
        KOLO_TRY(meet(end, i, rank));
    }
    return KOLO_OK;
}

kolo_status_t kolo_mapped_rx_connect(kolo_wire_ctx_t *ctx, kolo_rx_t *rx, const kolo_wire_card_t *writer_card)
{
    kolo_mapped_t *end = (kolo_mapped_t *)rx->priv;
    uint32_t nreaders = kolo_wire_readers(ctx, &rx->spec);
    int index = kolo_wire_reader_index(ctx, &rx->spec, ctx->member->rank);
    mapped_card_t card;
    KOLO_TRY(check_card(writer_card, rx->spec.writer, &card));
    end->map.bytes = kolo_queue_bytes(&rx->spec, nreaders);
    if (card.bytes != end->map.bytes)
        return kolo_fail(KOLO_ERR_MISMATCH, "rank %d's queue has %llu bytes, rank %d expects %zu", rx->spec.writer,
                         (unsigned long long)card.bytes, ctx->member->rank, end->map.bytes);
    memcpy(end->map.id, card.id, sizeof card.id);
    KOLO_TRY(end->memory->open(ctx, &ctx->member->peers[rx->spec.writer], &end->map));
    KOLO_TRY(kolo_queue_check(end->map.base, &rx->spec, nreaders, ctx->job));
    end->queue = (kolo_queue_header_t *)end->map.base;
    kolo_queue_bind_rx(end->map.base, rx, nreaders, (uint32_t)index);
    KOLO_TRY(meet(end, 0, rx->spec.writer));
    rx->bell = end->bells[0];
    return KOLO_OK;
}

/* Notes that a peer is gone, which is not an error yet: see rx_check in wire.h. */
static kolo_status_t first_time(kolo_mapped_t *end)
{
    end->gone = true;
    return KOLO_OK;
}

kolo_status_t kolo_mapped_tx_check(kolo_tx_t *tx)
{
    kolo_mapped_t *end = (kolo_mapped_t *)tx->priv;
    for (uint32_t i = 0; i < end->npeers; i++) {
        kolo_control_peer_t *peer = end->peers[i];
        bool closed = atomic_load_explicit(&tx->end.heads[i].closed, memory_order_acquire) != 0;
        if (!closed && !kolo_control_gone(peer)) continue;
        if (!end->gone) return first_time(end);
        KOLO_TRY(kolo_control_check(end->ctx, peer));
        return kolo_fail(KOLO_ERR_REMOTE, "rank %d (host %.32s, pid %d) has closed its connection from rank %d",
                         peer->rank, end->ctx->member->peers[peer->rank].host_name,
                         end->ctx->member->peers[peer->rank].pid, tx->spec.writer);
    }
    return KOLO_OK;
}

kolo_status_t kolo_mapped_rx_check(kolo_rx_t *rx)
{
    kolo_mapped_t *end = (kolo_mapped_t *)rx->priv;
    kolo_control_peer_t *peer = end->peers[0];
    bool closed = atomic_load_explicit(&end->queue->closed, memory_order_acquire) != 0;
    if (!closed && !kolo_control_gone(peer)) return KOLO_OK;
    if (!end->gone) return first_time(end);
    KOLO_TRY(kolo_control_check(end->ctx, peer));
    return kolo_fail(KOLO_ERR_REMOTE, "rank %d (host %.32s, pid %d) has closed its connection to rank %d",
                     peer->rank, end->ctx->member->peers[peer->rank].host_name,
                     end->ctx->member->peers[peer->rank].pid, end->ctx->member->rank);
}

/* Wakes whoever sleeps on the connection once the word is out (they look again after KOLO_PARK_MAX_MS anyway). */
static void ring_all(const kolo_mapped_t *end)
{
    atomic_thread_fence(memory_order_seq_cst);
    for (uint32_t i = 0; i < end->npeers; i++)
        if (end->bells[i].asleep) kolo_doorbell_ring(end->bells[i].asleep, end->bells[i].event_fd);
}

void kolo_mapped_tx_close(kolo_tx_t *tx)
{
    kolo_mapped_t *end = (kolo_mapped_t *)tx->priv;
    if (!end || !end->queue) return;
    atomic_store_explicit(&end->queue->closed, 1, memory_order_release);
    ring_all(end);
}

void kolo_mapped_rx_close(kolo_rx_t *rx)
{
    kolo_mapped_t *end = (kolo_mapped_t *)rx->priv;
    if (!end || !end->queue) return;
    atomic_store_explicit(&rx->end.head->closed, 1, memory_order_release);
    ring_all(end);
}

static void free_end(kolo_mapped_t *end)
{
    if (!end) return;
    if (end->map.base) end->memory->release(&end->map);
    free(end->bells);
    free(end);
}

void kolo_mapped_tx_fini(kolo_tx_t *tx)
{
    free_end((kolo_mapped_t *)tx->priv);
    tx->priv = NULL;
}

void kolo_mapped_rx_fini(kolo_rx_t *rx)
{
    free_end((kolo_mapped_t *)rx->priv);
    rx->priv = NULL;
}

size_t kolo_mapped_tx_memory(const kolo_tx_t *tx)
{
    const kolo_mapped_t *end = (const kolo_mapped_t *)tx->priv;
    return end ? sizeof *end + end->npeers * (sizeof(kolo_bell_t) + sizeof(end->peers[0])) + end->map.bytes : 0;
}

size_t kolo_mapped_rx_memory(const kolo_rx_t *rx)
{
    /* The queue is the writer's: counting it here too would count it twice. */
    return rx->priv ? sizeof(kolo_mapped_t) + sizeof(kolo_bell_t) + sizeof(kolo_control_peer_t *) : 0;
}
