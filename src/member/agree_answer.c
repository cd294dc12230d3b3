/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of agreements as they come in, on the progress thread: those of the agreement that the rank's thread is
 * in, or will be in, wait for it; questions about one that it has left get the result.
 */
#include "member/agree_frame.h"
#include "member/life.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    kolo_outbound_t out; /* first: freed as this */
    uint8_t bytes[];
} answer_t;

kolo_series_t *kolo_agree_series(kolo_oob_t *oob, uint64_t tag, bool make)
{
    kolo_series_t *s = kolo_life(oob)->series;
    uint64_t id = tag >> KOLO_SERIES_SHIFT << KOLO_SERIES_SHIFT;
    while (s != NULL && s->id != id) s = s->next;
    if (s != NULL || !make) return s;
    s = calloc(1, sizeof(*s));
    if (s == NULL) return NULL;
    s->id = id;
    s->next = kolo_life(oob)->series;
    return kolo_life(oob)->series = s;
}

void kolo_agree_forget(kolo_oob_t *oob)
{
    for (kolo_series_t *s = kolo_life(oob)->series, *next; s != NULL; s = next) {
        next = s->next;
        for (size_t i = 0; i < KOLO_COUNTOF(s->decisions); i++) free(s->decisions[i].bytes);
        free(s);
    }
}

static void answer(const kolo_series_t *s, kolo_peer_t *peer, uint64_t tag)
{
    uint64_t number = tag - s->id;
    kolo_conn_t *conn = kolo_peer_out(peer);
    const kolo_decision_t *d = &s->decisions[number % KOLO_COUNTOF(s->decisions)];
    if (conn == NULL || number + KOLO_COUNTOF(s->decisions) <= s->ended || d->bytes == NULL) return;
    answer_t *a = malloc(sizeof(*a) + d->length);
    if (a == NULL) return; /* it asks again */
    memcpy(a->bytes, d->bytes, d->length);
    kolo_outbound_init(&a->out, KOLO_FRAME_AGREE, tag);
    kolo_outbound_add(&a->out, a->bytes, d->length);
    a->out.owned = true;
    kolo_conn_send(conn, &a->out);
}

static bool wants_answer(const kolo_ballot_t *b)
{
    return b->type == KOLO_BALLOT_REPORT || b->type == KOLO_BALLOT_CALL || b->type == KOLO_BALLOT_PROPOSE;
}

const char *kolo_agree_arrived(kolo_oob_t *oob, kolo_inbound_t *in)
{
    kolo_ballot_t b;
    const char *wrong = kolo_ballot_decode(in->part[0], in->bytes, oob->nranks, &b);
    const kolo_series_t *s = kolo_agree_series(oob, in->tag, false);
    if (wrong == NULL && (s == NULL || in->tag - s->id > s->ended)) {
        kolo_oob_wake(oob);
        return NULL;
    }
    kolo_peer_t *peer = kolo_peer_find(oob, in->peer);
    uint64_t tag = in->tag;
    bool asks = wrong == NULL && wants_answer(&b);
    kolo_oob_early_remove(oob, in);
    if (asks && peer != NULL) answer(s, peer, tag);
    return wrong;
}
