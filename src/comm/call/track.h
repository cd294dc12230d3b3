/* SPDX-License-Identifier: Apache-2.0
 *
 * What a communicator notes of the operations that run and have run: for peers that ask, for its flight record, and
 * for what is said of an operation that takes long.
 */
#ifndef KOLO_COMM_CALL_TRACK_H
#define KOLO_COMM_CALL_TRACK_H

#include "comm/record.h"
#include "diag/diag.h"

typedef struct {
    uint64_t operation; /* collectives run so far */
    uint64_t apart;     /* calls that no plan runs so far, where operations run beside calls */
    kolo_recording_t record;
    kolo_board_t board;       /* the last operations, for peers that ask */
    kolo_board_pair_t *pairs; /* messages by peer, on the board too */
} kolo_body_track_t;

typedef struct { /* which rank to ask next and when, while an operation waits (mismatch.c) */
    uint64_t operation, ask_at_ns, pause_ns;
    uint32_t turn, asked;
} kolo_stalled_t;

typedef struct {
    /* Called repeatedly by a collective that waits longer than it spins; a failure ends the wait. NULL: none. Set
     * only while no collective runs. */
    kolo_status_t (*on_wait)(void *arg);
    void *arg;
    kolo_stalled_t stalled, stalled_pairs; /* the collective, and the messages, that take long */
} kolo_body_waits_t;

#endif
