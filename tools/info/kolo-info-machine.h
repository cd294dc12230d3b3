/* SPDX-License-Identifier: Apache-2.0
 *
 * A machine as kolo-info imagines jobs on it: its topology, where ranks would be, and the cards that lanes use.
 */
#ifndef KOLO_TOOLS_KOLO_INFO_MACHINE_H
#define KOLO_TOOLS_KOLO_INFO_MACHINE_H

#include "plan/builder.h"
#include "topo/topo.h"

#define INFO_MAX_CARDS 32
#define INFO_MAX_LOCAL 256

typedef struct {
    kolo_topo_t topo;
    int cards[INFO_MAX_CARDS], ncards; /* nodes of NICs */
    int ranks[INFO_MAX_LOCAL], nlocal; /* nodes of GPUs or cores; -1: the topology has none */
    bool by_gpu;
} info_machine_t;

/* Finds cards, and places for this many ranks; 0: one for each GPU, else for each NUMA node. The topology is
 * loaded. */
void kolo_info_machine_place(info_machine_t *machine, int nlocal);
kolo_topo_place_t kolo_info_rank_place(const info_machine_t *machine, int local, int node);
/* The cards (by number in `cards`) that are closest to a rank; how many. */
int kolo_info_close_cards(const info_machine_t *machine, int local, uint32_t *close);
int kolo_info_print_lanes(info_machine_t *machine);

/* kolo-info-fabric.c: predicts a collective on many such machines and explains what is fastest. `env` is that of
 * rank 0 on one lane without rings; `options` is FILE[,rails][,pod=N][,over=X]. */
int kolo_info_predict(const char *options, const kolo_emit_env_t *env, kolo_coll_t coll, uint64_t count,
                      uint32_t elem_bytes, uint32_t slot_bytes);

#endif
