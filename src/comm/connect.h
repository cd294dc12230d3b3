/* SPDX-License-Identifier: Apache-2.0
 *
 * The connections of a communicator: made when a plan first needs them, kept until it ends.
 */
#ifndef KOLO_COMM_CONNECT_H
#define KOLO_COMM_CONNECT_H

#include "plan/plan.h"
#include "wire/control.h"

struct kolo_body;
struct kolo_bound;

typedef struct kolo_comm_conn {
    kolo_plan_conn_t key; /* dir, node, lane, peer */
    kolo_proto_t proto;
    union {
        kolo_tx_t tx;
        kolo_rx_t rx;
    } u;
    struct kolo_comm_conn *next;
} kolo_comm_conn_t;

typedef struct {
    kolo_comm_conn_t **by_peer; /* lists; [nranks]: my NODE tx */
    size_t bytes;
    /* Of the flat path: */
    kolo_tx_t *ll_tx;  /* NODE LL of this rank; NULL until connected or when there is none */
    kolo_rx_t **ll_rx; /* by rank */
    uint8_t *ll_temp;
} kolo_body_conns_t;

/* Binds and, where needed, connects a plan. Takes ownership of the plan, also on failure. */
kolo_status_t kolo_body_bind(struct kolo_body *body, kolo_plan_t *plan, struct kolo_bound **bound);
void kolo_body_bound_free(struct kolo_bound *bound);
/* Makes the NODE LL connections of the flat path. Collective over the node. */
kolo_status_t kolo_body_connect_flat(struct kolo_body *body);
/* Returns the bytes that its connections hold; call only while no operation is under way. */
size_t kolo_body_conn_memory(const struct kolo_body *body);
/* Makes the missing connections of keys[0..count); protos NULL: all SIMPLE. */
kolo_status_t kolo_body_connect(struct kolo_body *body, const kolo_plan_conn_t *keys, const kolo_proto_t *protos,
                                uint32_t count);
/* The same in steps (wire.h, kolo_connecting_t). end: with the status that step returned; unfinished connections
 * are dropped. Safe on NULL. */
typedef struct kolo_making kolo_making_t;
kolo_status_t kolo_making_begin(struct kolo_body *body, const kolo_plan_conn_t *keys, const kolo_proto_t *protos,
                                uint32_t count, kolo_making_t **making);
kolo_status_t kolo_making_begin_flat(struct kolo_body *body, kolo_making_t **making); /* for connect_flat */
kolo_status_t kolo_making_step(kolo_making_t *making);
void kolo_making_end(kolo_making_t *making, kolo_status_t status);
int kolo_making_awaits(const kolo_making_t *making); /* the rank that it waits for next, -1: none */
kolo_comm_conn_t *kolo_body_find_conn(struct kolo_body *body, const kolo_plan_conn_t *key, kolo_proto_t proto);
void kolo_body_disconnect(struct kolo_body *body);
/* Tells whether both ends of a pair can use references (KOLO_CAP_REF); lines (LL). */
bool kolo_body_pair_refs(const struct kolo_body *body, uint32_t peer);
bool kolo_body_pair_ll(const struct kolo_body *body, uint32_t peer);

#endif
