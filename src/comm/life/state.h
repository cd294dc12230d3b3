/* SPDX-License-Identifier: Apache-2.0
 *
 * What a communicator keeps of its making and its end.
 */
#ifndef KOLO_COMM_LIFE_STATE_H
#define KOLO_COMM_LIFE_STATE_H

#include "wire/wire.h"

#include <kolo/kolo.h>

struct kolo_body;

/* Values that the ranks agree on: the smallest of each. */
typedef struct {
    uint64_t l3_bytes, local_slot_bytes, remote_slot_bytes, ll_slot_bytes;
    uint64_t fanout, refs, ll; /* 0 or 1 */
} kolo_agreed_t;

typedef struct {
    bool blocking, split_share; /* of its config */
    int nids;                   /* until init is over */
    kolo_unique_id_t *ids;
    struct kolo_body *next_making; /* the next child of the same parent that is being made */
    kolo_agreed_t agreed;
    struct {                     /* from the parent, until this one is set up */
        kolo_peer_card_t *cards; /* by rank; NULL: to be asked for */
        kolo_agreed_t agreed;
    } borrowed;
    bool ctx_open;            /* its wires are there */
    uint8_t *agreed_lost;     /* bitmap of ranks agreed to be lost, NULL: none; under the handle's error_lock */
    bool went;                /* this rank has left; others may not have */
    kolo_call_word_t ends_as; /* the call that finalizes it, as its user knows it; 0: kolo_comm_finalize() */
} kolo_body_life_t;

#endif
