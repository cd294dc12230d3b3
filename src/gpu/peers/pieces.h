/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs of memory of the virtual kind (mem/cuda/cuda.h) that processes of one host map from each other: a descriptor
 * for each piece, passed by share/fdpass.h, and one range of addresses at the receiver in which the pieces lie as
 * at their owner. A descriptor holds the memory, so an offer lasts until all have fetched it.
 */
#ifndef KOLO_GPU_PEERS_PIECES_H
#define KOLO_GPU_PEERS_PIECES_H

#include "mem/cuda/cuda.h"
#include "share/fdpass.h"
#include "wire/wire.h"

#define KOLO_PIECES_UNIT ((uint64_t)65536) /* lengths of pieces are multiples */

/* What travels: bytes from another process, so they are checked before use. */
typedef struct {
    uint8_t name[KOLO_FDPASS_NAME_BYTES];
    uint32_t n, units[KOLO_CUDA_PIECES]; /* n 0: no pieces */
} kolo_pieces_card_t;

/* Fills the card in and offers the descriptors. Not KOLO_OK: nothing is offered, and the words say why. */
kolo_status_t kolo_pieces_offer(kolo_wire_ctx_t *ctx, const kolo_cuda_run_t *run, kolo_pieces_card_t *card);
/* Ends the offer; who has mapped it keeps it. */
void kolo_pieces_withdraw(const kolo_pieces_card_t *card);

typedef struct kolo_pieces kolo_pieces_t;
/* Maps all of `bytes` for the device, whose context is current. Waits for the owner's progress thread for some
 * seconds at most. */
kolo_status_t kolo_pieces_map(kolo_wire_ctx_t *ctx, int owner, const kolo_pieces_card_t *card, uint64_t bytes,
                              const kolo_cuda_device_t *device, kolo_pieces_t **pieces);
kolo_cu_ptr_t kolo_pieces_at(const kolo_pieces_t *pieces);
void kolo_pieces_unmap(kolo_pieces_t *pieces); /* NULL is fine */

#endif
