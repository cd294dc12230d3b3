/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of wire "cma": may I read the writer's memory, and copies between two processes.
 */
#ifndef KOLO_WIRE_CMA_CMA_H
#define KOLO_WIRE_CMA_CMA_H

#include "wire/mapped.h"

extern const kolo_wire_ops_t kolo_wire_cma;

kolo_status_t kolo_cma_fill_card(kolo_peer_card_t *card);
bool kolo_cma_may_copy(const kolo_wire_ctx_t *ctx, const kolo_peer_card_t *peer);
/* Tries a copy with the process that is `pid` here and announced `card`; *why says what stood in the way. */
bool kolo_cma_permitted(int pid, const kolo_peer_card_t *card, const char **why);
/* Copies to that address of the peer's process, which has said that this rank may write there. */
kolo_status_t kolo_cma_put(kolo_wire_ctx_t *ctx, kolo_control_peer_t *peer, uint64_t theirs, const void *mine,
                           size_t bytes);
kolo_status_t kolo_cma_ref_done(kolo_rx_t *rx, kolo_ref_copy_t *copy);

#endif
