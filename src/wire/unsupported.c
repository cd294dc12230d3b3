/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions in a wire's table that the wire does not have. A caller of one has ignored the connection's
 * capabilities and gets an error that says so, instead of a crash.
 */
#include "wire/wire.h"

kolo_status_t kolo_wire_no_card(kolo_peer_card_t *card)
{
    (void)card;
    return KOLO_OK;
}

bool kolo_wire_no_copies(const struct kolo_wire_ctx *ctx, const kolo_peer_card_t *peer)
{
    (void)ctx;
    (void)peer;
    return false;
}

static kolo_status_t no_copy(const kolo_conn_spec_t *spec, const kolo_wire_ops_t *wire)
{
    return kolo_fail(
        KOLO_ERR_UNSUPPORTED,
        "the connection from rank %d to rank %d needs single copies, but goes over %s: copies were permitted when "
        "the communicator was made and are not any more; KOLO_CMA_DISABLE=1 on all ranks avoids them",
        spec->writer, spec->reader, wire->name);
}

kolo_status_t kolo_wire_no_ref_make(kolo_tx_t *tx, const void *data, uint64_t bytes, kolo_ref_t *ref)
{
    (void)data;
    (void)bytes;
    (void)ref;
    return no_copy(&tx->spec, tx->ops);
}

kolo_status_t kolo_wire_no_ref_start(kolo_rx_t *rx, const kolo_ref_t *ref, kolo_ref_copy_t *copy)
{
    (void)ref;
    (void)copy;
    return no_copy(&rx->spec, rx->ops);
}

kolo_status_t kolo_wire_no_ref_done(kolo_rx_t *rx, kolo_ref_copy_t *copy)
{
    (void)copy;
    return no_copy(&rx->spec, rx->ops);
}

kolo_status_t kolo_wire_no_post_from(kolo_tx_t *tx, const void *data, uint32_t bytes, uint64_t signature,
                                     uint64_t operation)
{
    (void)data;
    (void)signature;
    return kolo_fail(
        KOLO_ERR_UNSUPPORTED,
        "wire %s sends from its slots only: %u bytes of operation %llu from rank %d to rank %d are elsewhere",
        tx->ops->name, bytes, (unsigned long long)operation, tx->spec.writer, tx->spec.reader);
}

/* Returns true: to connect, a reader needs the writer's card only. */
bool kolo_wire_no_wait(struct kolo_wire_ctx *ctx, const kolo_rx_t *rx, const kolo_wire_card_t *writer_card)
{
    (void)ctx;
    (void)rx;
    (void)writer_card;
    return true;
}

void kolo_wire_no_expect(kolo_rx_t *rx, uint32_t ahead, void *data, uint32_t bytes)
{
    (void)ahead;
    (void)rx;
    (void)data;
    (void)bytes;
}

void kolo_wire_no_unexpect(kolo_rx_t *rx)
{
    (void)rx;
}
