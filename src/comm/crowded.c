/* SPDX-License-Identifier: Apache-2.0
 *
 * Says once per process that ranks of this host share cores: then each hand-over is a switch of the scheduler, and
 * small operations take many times longer than with a core for each rank. The cards of the peers tell which cores
 * each may use.
 */
#include "base/log.h"
#include "comm/comm.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static int count_cores(const uint8_t mask[KOLO_CORE_MASK_BYTES])
{
    int n = 0;
    for (int i = 0; i < KOLO_CORE_MASK_BYTES; i++) n += __builtin_popcount(mask[i]);
    return n;
}

uint32_t kolo_cores_of_node(const kolo_member_t *m, int node)
{
    uint8_t all[KOLO_CORE_MASK_BYTES] = {0};
    uint32_t most = 1, sum = 0;
    for (int i = 0; i < m->node_size[node]; i++) {
        const kolo_peer_card_t *card = &m->peers[m->node_ranks[m->node_first[node] + i]];
        for (int byte = 0; byte < KOLO_CORE_MASK_BYTES; byte++) all[byte] |= card->core_mask[byte];
        most = KOLO_MAX(most, card->cores);
        sum += card->cores;
    }
    uint32_t cores = (uint32_t)count_cores(all), bits = 8 * KOLO_CORE_MASK_BYTES;
    /* The masks fold at 128 cores: on a larger host, ranks that are bound have cores of their own. */
    if (cores == bits && most < bits) return sum;
    return KOLO_MAX(cores, most);
}

/* Returns how many ranks of the node are bound to exactly the cores of this one; `text` names some of them. */
static int ranks_with(const kolo_member_t *m, int node, const uint8_t *mask, char *text, size_t bytes)
{
    int n = 0;
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < m->node_size[node]; i++) {
        int rank = m->node_ranks[m->node_first[node] + i];
        if (memcmp(m->peers[rank].core_mask, mask, KOLO_CORE_MASK_BYTES) != 0) continue;
        if (n < 8 && at < bytes) at += (size_t)snprintf(text + at, bytes - at, "%s%d", n ? ", " : "", rank);
        if (n++ == 8 && at < bytes) snprintf(text + at, bytes - at, ", ...");
    }
    return n;
}

bool kolo_cores_shared(const kolo_member_t *m, int node, char *text, size_t bytes)
{
    char ranks[128];
    int size = m->node_size[node], cores = (int)kolo_cores_of_node(m, node);
    if (size > cores) {
        snprintf(text, bytes, "%d ranks share %d core%s of host %.64s", size, cores, cores == 1 ? "" : "s",
                 m->peers[m->node_ranks[m->node_first[node]]].host_name);
        return true;
    }
    for (int i = 0; i < size; i++) {
        const kolo_peer_card_t *card = &m->peers[m->node_ranks[m->node_first[node] + i]];
        int own = count_cores(card->core_mask), n = ranks_with(m, node, card->core_mask, ranks, sizeof ranks);
        if (own == 0 || n <= own || m->node_size[node] > 8 * KOLO_CORE_MASK_BYTES) continue; /* masks fold */
        snprintf(text, bytes, "ranks %s are bound to the same %d core%s of host %.64s, whose ranks may use %d",
                 ranks, own, own == 1 ? "" : "s", card->host_name, cores);
        return true;
    }
    return false;
}

void kolo_cores_warn(const kolo_body_t *body)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    const kolo_member_t *m = &body->member;
    char text[320];
    if (m->local_of[body->rank] != 0 || !kolo_cores_shared(m, m->my_node, text, sizeof text)) return;
    if (atomic_flag_test_and_set(&said)) return;
    kolo_warn("comm",
              "%s: small operations will take many times longer than with a core for each rank "
              "(kolorun --report-bindings shows who runs where)",
              text);
}
