/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulator's network: the cards of each node and the switches between them. Each card, and each leaf switch's
 * way up, carries one thing after the other, in each direction; what goes through several of them goes through all
 * at once, behind what each of them has to carry before.
 */
#ifndef KOLO_PROVE_FABRIC_H
#define KOLO_PROVE_FABRIC_H

#include "prove/verify.h"

typedef struct {
    double busy[2]; /* until when, in microseconds: out of the node and into it, or up and down */
    uint64_t bytes[2];
} kolo_fabric_port_t;

typedef struct {
    const kolo_sim_fabric_t *of;
    uint32_t nnodes, nleaves;
    kolo_fabric_port_t *cards;  /* by node and card */
    kolo_fabric_port_t *leaves; /* by pod, and by card where there are rails */
} kolo_fabric_t;

kolo_status_t kolo_fabric_init(kolo_fabric_t *f, const kolo_sim_fabric_t *of, uint32_t nnodes);
void kolo_fabric_fini(kolo_fabric_t *f);
typedef struct {
    uint32_t node, local; /* local: the rank's number on its node */
} kolo_fabric_place_t;
/* Sends `bytes` at `now` from one rank to another, by lane `lane`; when its last byte is there, without the latency
 * of the ends. */
double kolo_fabric_send(kolo_fabric_t *f, kolo_fabric_place_t from, kolo_fabric_place_t to, uint32_t lane,
                        uint64_t bytes, double now);
/* Counts what the busiest card has carried in one direction, and what has gone up from leaf switches. */
void kolo_fabric_count(const kolo_fabric_t *f, uint64_t *busiest, uint64_t *up);

#endif
