/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections that are being set up: the walk (connect.c) and what ranks tell each other on it (connect_talk.c).
 */
#ifndef KOLO_WIRE_CONNECTING_H
#define KOLO_WIRE_CONNECTING_H

#include "wire/queue.h"

typedef struct { /* out of band, one per end */
    uint32_t magic, version;
    int32_t status; /* not KOLO_OK: the sender has failed, and why */
    uint32_t caps;
    kolo_wire_id_t wire;
    uint32_t depth, slot_bytes;
    uint64_t start;
    union {
        kolo_wire_card_t card; /* KOLO_OK */
        char reason[256];
    } u;
} kolo_connecting_message_t;

typedef struct { /* out of band, one per pair of ranks at the end */
    uint32_t magic, version;
    int32_t status, reserved;
    char reason[512];
} kolo_connecting_outcome_t;

typedef struct { /* one request under way */
    kolo_conn_request_t *request;
    const kolo_wire_ops_t *ops;
    uint32_t nreaders;
    bool meant;              /* the request names this rank and ranks that exist: others may wait for my message */
    bool told;               /* my message is out */
    kolo_wire_card_t *cards; /* of the readers, at the writer */
} kolo_connecting_pending_t;

struct kolo_connecting {
    kolo_wire_ctx_t *ctx;
    uint64_t deadline_ns; /* of waiting for peers, 0: none */
    bool patient;
    kolo_conn_request_t *requests;
    kolo_connecting_pending_t *pending;
    int count;
    uint64_t *sums; /* by rank: what stands for the connections that it shares with me, 0: none */
    /* where the walk is */
    size_t phase;
    int at;
    uint32_t reader;
    bool settling; /* all phases are over, and all were told how */
    int rank;      /* whose outcome comes next */
    bool over;
    kolo_status_t status; /* when over */
    /* the message that is missing */
    kolo_oob_receipt_t *receipt;
    int awaits;
    uint64_t seen; /* what had changed when it was last looked for */
    union {
        kolo_connecting_message_t message;
        kolo_connecting_outcome_t outcome;
    } in;
};

/* Begins a message of this rank's end. ops: NULL if none was chosen. */
void kolo_connecting_fill(kolo_connecting_message_t *message, const kolo_conn_spec_t *spec,
                          const kolo_wire_ops_t *ops, uint32_t caps);
/* Sends it to the writer, or to all readers. */
kolo_status_t kolo_connecting_tell(kolo_wire_ctx_t *ctx, kolo_connecting_pending_t *p,
                                   const kolo_connecting_message_t *message);
/* Tells whether the sender has chosen this wire. */
bool kolo_connecting_says(const kolo_connecting_message_t *message, const kolo_wire_ops_t *wire);
/* Receives the message of `from` into c->in and checks it. KOLO_IN_PROGRESS: it is not there yet. */
kolo_status_t kolo_connecting_hear(kolo_connecting_t *c, const kolo_connecting_pending_t *p, int from);
/* Tells whoever still waits for my message of a connection why it fails. */
void kolo_connecting_refuse(kolo_wire_ctx_t *ctx, kolo_connecting_pending_t *p, kolo_status_t status,
                            const char *text);
/* Returns until when a patient caller waits for peers. */
uint64_t kolo_connecting_patience(const kolo_connecting_t *c);
/* Fails with the time-out of waiting for this rank. */
kolo_status_t kolo_connecting_late(const kolo_connecting_t *c, int rank);

/* Adds to a number for each rank that shares connections of this list with me; it is the same at both. */
void kolo_connecting_sum_up(kolo_connecting_t *c, const kolo_connecting_pending_t *p);
/* Tells each rank that shares connections with this one how it went: both ends are up or none is. */
kolo_status_t kolo_connecting_tell_outcome(kolo_connecting_t *c, kolo_status_t status);
/* Hears from each of them. KOLO_IN_PROGRESS: one has not said it yet. */
kolo_status_t kolo_connecting_hear_outcomes(kolo_connecting_t *c);

#endif
