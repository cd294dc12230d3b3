/* SPDX-License-Identifier: Apache-2.0
 *
 * Wire "local": both ranks are threads of one process. The queue is ordinary memory, found by the random id on the
 * writer's card in a registry of this process; references are plain addresses.
 */
#include "share/memfd.h"
#include "wire/local/local.h"

static bool can_connect(const struct kolo_wire_ctx *ctx, const kolo_peer_card_t *a, const kolo_peer_card_t *b)
{
    (void)ctx;
    if (!kolo_mapped_same_host(a, b, &kolo_wire_local) || a->process_hash != b->process_hash) return false;
    return true;
}

static bool may_copy(const struct kolo_wire_ctx *ctx, const kolo_peer_card_t *peer)
{
    (void)ctx;
    (void)peer;
    return true;
}

static kolo_status_t rx_setup(kolo_wire_ctx_t *ctx, kolo_rx_t *rx, kolo_wire_card_t *card)
{
    return kolo_mapped_rx_setup(ctx, rx, &kolo_local_memory, card);
}

static kolo_status_t tx_setup(kolo_wire_ctx_t *ctx, kolo_tx_t *tx, kolo_wire_card_t *card)
{
    return kolo_mapped_tx_setup(ctx, tx, &kolo_local_memory, card);
}

/* Puts the control page on the card: the ranks of a process meet by it as well. */
static kolo_status_t fill_card(kolo_peer_card_t *card)
{
    (void)card;
    return kolo_memfd_may(KOLO_CONTROL_BYTES) ? KOLO_OK : KOLO_ERR_UNSUPPORTED;
}

static bool disabled;
static const kolo_param_t rows[] = {
    {"KOLO_LOCAL_DISABLE", KOLO_PARAM_BOOL, "0", 0, 0, NULL, false,
     "1: ranks of one process do not use its memory directly", &disabled},
};
static const kolo_param_table_t params = {"local", rows, KOLO_COUNTOF(rows), NULL};

const kolo_wire_ops_t kolo_wire_local = {
    .name = "local",
    .version = 1,
    .what = "ranks of one process: ordinary memory",
    .params = &params,
    .caps = KOLO_CAP_REF | KOLO_CAP_FANOUT,
    .can_connect = can_connect,
    .fill_card = fill_card,
    .may_copy = may_copy,
    .rx_setup = rx_setup,
    .tx_setup = tx_setup,
    .ref_make = kolo_mapped_ref_make,
    .ref_start = kolo_mapped_ref_start,
    .ref_done = kolo_wire_local_ref_done,
    KOLO_MAPPED_MEMBERS,
};
