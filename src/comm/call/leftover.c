/* SPDX-License-Identifier: Apache-2.0
 *
 * What lies unread in the queues of a rank that waits. An operation takes all slots that are sent to it, and its
 * slots carry its number. So one of an earlier operation, or one of this operation that is another one there,
 * proves that its writer has called something else, however far it has gone since: its board need not know any
 * more.
 */
#include "comm/call/call.h"

#include <stdio.h>

/* Finds a slot from `rank` that proves a difference. Queues of messages carry no numbers, and lines of a host have
 * many readers. */
static const kolo_slot_header_t *find_from(const kolo_body_t *body, int rank, uint64_t number, uint64_t word)
{
    for (kolo_comm_conn_t *c = body->conns.by_peer[rank]; c; c = c->next) {
        if (c->key.dir != KOLO_DIR_RX || c->key.node || c->key.lane >= KOLO_P2P_LANE ||
            c->proto != KOLO_PROTO_SIMPLE || !kolo_rx_ready(&c->u.rx))
            continue;
        const kolo_slot_header_t *h = kolo_rx_header(&c->u.rx);
        int64_t behind = (int64_t)(h->operation - number);
        if (behind < 0 || (behind == 0 && word && h->signature != word)) return h;
    }
    return NULL;
}

kolo_status_t kolo_call_leftover_look(kolo_body_t *body, uint64_t number, uint64_t word)
{
    for (int rank = 0; rank < body->nranks && body->conns.by_peer; rank++) {
        const kolo_slot_header_t *h = find_from(body, rank, number, word);
        if (!h) continue;
        kolo_difference_t d = {.rank = body->rank,
                               .other = rank,
                               .number = h->operation,
                               .word = word,
                               .other_number = h->operation,
                               .other_word = h->signature};
        bool known = d.number == number || kolo_diag_look_back(body->oob, d.number, &d.word);
        if (!known || d.word == d.other_word) d.word = d.other_word = 0; /* before it, and which one is not known */
        kolo_diag_note_difference(body->oob, &d);
        return kolo_diag_difference(body->oob);
    }
    return KOLO_OK;
}
