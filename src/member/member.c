/* SPDX-License-Identifier: Apache-2.0
 *
 * The cards of all ranks: gathered, checked, and turned into the node map.
 */
#include "member/member.h"

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/text/plain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- node map ---- */

/* Open addressing over host hashes. */
typedef struct {
    uint64_t *hash;
    int *node;
    size_t mask;
} node_table_t;

static int node_number(node_table_t *table, uint64_t host, int *nnodes)
{
    size_t at = (size_t)(host * 0x9e3779b97f4a7c15ull >> 20) & table->mask;
    while (table->node[at] >= 0 && table->hash[at] != host) at = (at + 1) & table->mask;
    if (table->node[at] < 0) {
        table->node[at] = (*nnodes)++;
        table->hash[at] = host;
    }
    return table->node[at];
}

static kolo_status_t number_nodes(kolo_member_t *m)
{
    size_t slots = 4;
    while (slots < (size_t)m->nranks * 2) slots *= 2;
    node_table_t table = {calloc(slots, sizeof(uint64_t)), malloc(slots * sizeof(int)), slots - 1};
    kolo_status_t status = KOLO_OK;
    if (table.hash == NULL || table.node == NULL) {
        status = kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to number the nodes of %d ranks", m->nranks);
    } else {
        memset(table.node, 0xff, slots * sizeof(int));
        for (int r = 0; r < m->nranks; r++) {
            m->node_of[r] = node_number(&table, m->peers[r].host_hash, &m->nnodes);
            m->local_of[r] = m->node_size[m->node_of[r]]++;
        }
    }
    free(table.hash);
    free(table.node);
    return status;
}

static void group_by_node(kolo_member_t *m)
{
    for (int node = 0, first = 0; node < m->nnodes; node++) {
        m->node_first[node] = first;
        first += m->node_size[node];
    }
    for (int r = 0; r < m->nranks; r++) m->node_ranks[m->node_first[m->node_of[r]] + m->local_of[r]] = r;
    m->my_node = m->node_of[m->rank];
}

/* Takes `peers` (malloc'ed) in any case. */
static kolo_status_t build(kolo_member_t *member, int rank, int nranks, kolo_peer_card_t *peers)
{
    size_t n = (size_t)nranks;
    kolo_member_t m = {.rank = rank, .nranks = nranks, .peers = peers};
    int *all = calloc(n * 5, sizeof(int)); /* one allocation; node_of owns it */
    if (all == NULL) {
        free(peers);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for the node map of %d ranks", nranks);
    }
    m.node_of = all;
    m.local_of = all + n;
    m.node_size = all + 2 * n;
    m.node_first = all + 3 * n;
    m.node_ranks = all + 4 * n;
    kolo_status_t status = number_nodes(&m);
    if (status != KOLO_OK) {
        kolo_member_fini(&m);
        return status;
    }
    group_by_node(&m);
    *member = m;
    return KOLO_OK;
}

kolo_status_t kolo_member_build(kolo_member_t *member, int rank, int nranks, const kolo_peer_card_t *cards)
{
    if (member == NULL || cards == NULL) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "member or cards is NULL");
    if (nranks < 1 || rank < 0 || rank >= nranks)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "rank %d of %d ranks", rank, nranks);
    kolo_peer_card_t *peers = malloc((size_t)nranks * sizeof(*peers));
    if (peers == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for the cards of %d ranks", nranks);
    memcpy(peers, cards, (size_t)nranks * sizeof(*peers));
    return build(member, rank, nranks, peers);
}

void kolo_member_fini(kolo_member_t *member)
{
    if (member == NULL) return;
    if (member->job) kolo_member_own_remove(member->job, member->rank);
    free(member->peers);
    free(member->node_of);
    *member = (kolo_member_t){0};
}

/* ---- checks ---- */

static kolo_status_t check_cards(const kolo_peer_card_t *mine, kolo_peer_card_t *peers, int nranks)
{
    for (int r = 0; r < nranks; r++) {
        kolo_peer_card_t *card = &peers[r];
        kolo_plain_copy(card->host_name, sizeof(card->host_name), card->host_name, sizeof(card->host_name));
        if (card->version != mine->version || card->card_version != mine->card_version)
            return kolo_fail(KOLO_ERR_MISMATCH,
                             "rank %d on %s has Kolo version %u (card %u), rank %d on %s has %u "
                             "(card %u): all ranks need the same library",
                             r, card->host_name, card->version, card->card_version, mine->rank, mine->host_name,
                             mine->version, mine->card_version);
        if (card->nwires > KOLO_CARD_WIRES)
            return kolo_fail(KOLO_ERR_PROTOCOL, "the card of rank %d names %u wires, at most %d fit", r,
                             card->nwires, KOLO_CARD_WIRES);
        if (card->rank != r)
            return kolo_fail(KOLO_ERR_PROTOCOL, "the card of rank %d says that it is rank %d", r, card->rank);
    }
    return KOLO_OK;
}

/* Checks that all have a device or none has. Whether two have the same one is seen where devices are known by their
 * identity (gpu/peers): numbers differ between processes. */
static kolo_status_t check_devices(const kolo_peer_card_t *peers, int nranks)
{
    for (int r = 1; r < nranks; r++) {
        bool first = peers[0].device >= 0, this = peers[r].device >= 0;
        if (first == this) continue;
        return kolo_fail(
            KOLO_ERR_MISMATCH,
            "rank %d (host %s) has a GPU and rank %d (host %s) has none: config.device must name one on all "
            "ranks or on none",
            first ? 0 : r, peers[first ? 0 : r].host_name, first ? r : 0, peers[first ? r : 0].host_name);
    }
    return KOLO_OK;
}

/* Checks what ranks here share, after the checks that all ranks fail alike: who has failed one of them is not here
 * any more. */
static kolo_status_t check_own(uint64_t job, const kolo_peer_card_t *mine, const kolo_peer_card_t *peers,
                               int nranks)
{
    for (int r = 0; r < nranks; r++)
        if (peers[r].process_hash == mine->process_hash && !kolo_member_own_has(job, r))
            return kolo_fail(
                KOLO_ERR_AUTH,
                "the card of rank %d says that it is in process %d, with rank %d, and it is not: it shows "
                "the card of another rank, or has ended already",
                r, mine->pid, mine->rank);
    return KOLO_OK;
}

kolo_status_t kolo_member_gather(kolo_oob_t *oob, const kolo_peer_card_t *mine, kolo_member_t *member)
{
    if (oob == NULL || mine == NULL || member == NULL)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "oob, card or member is NULL");
    int rank = kolo_oob_rank(oob), nranks = kolo_oob_nranks(oob);
    uint64_t job = kolo_oob_job(oob);
    kolo_peer_card_t *peers = malloc((size_t)nranks * sizeof(*peers));
    if (peers == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for the cards of %d ranks", nranks);
    peers[rank] = *mine;
    kolo_status_t status = kolo_member_own_add(job, rank);
    if (status != KOLO_OK) {
        free(peers);
        return status;
    }
    status = kolo_oob_all_gather(oob, peers, sizeof(*peers));
    KOLO_FAIL_POINT("member.cards");
    if (status == KOLO_OK) status = check_cards(mine, peers, nranks);
    if (status == KOLO_OK) status = check_devices(peers, nranks);
    if (status == KOLO_OK) status = check_own(job, mine, peers, nranks);
    if (status == KOLO_OK)
        status = build(member, rank, nranks, peers);
    else
        free(peers);
    if (status == KOLO_OK)
        member->job = job;
    else
        kolo_member_own_remove(job, rank);
    return status;
}
