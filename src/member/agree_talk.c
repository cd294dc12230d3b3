/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages of an agreement: sending, which never waits, and what each one that comes means. See agreement.c.
 */
#include "base/failpoint.h"
#include "member/agree_run.h"

#include <stdlib.h>
#include <string.h>

int kolo_agree_lowest(const kolo_agree_run_t *x)
{
    int r = 0;
    while (r < x->oob->nranks && kolo_map_has(x->out, r)) r++;
    return r;
}

/* ---- sending; never waits ---- */

static kolo_agree_post_t *new_post(int nranks, uint64_t tag, int to, const kolo_ballot_t *b)
{
    size_t bytes = kolo_ballot_bytes(b, nranks);
    kolo_agree_post_t *p = malloc(sizeof(*p) + bytes);
    if (p == NULL) return NULL;
    p->rank = to;
    p->next = NULL;
    kolo_ballot_encode(b, nranks, p->bytes);
    kolo_outbound_init(&p->out, KOLO_FRAME_AGREE, tag);
    kolo_outbound_add(&p->out, p->bytes, bytes);
    p->out.owned = true;
    return p;
}

void kolo_agree_post(kolo_agree_run_t *x, int to, const kolo_ballot_t *b)
{
    kolo_oob_t *oob = x->oob;
    kolo_peer_t *peer = kolo_peer_get(oob, to);
    kolo_agree_post_t *p = peer != NULL ? new_post(oob->nranks, x->tag, to, b) : NULL;
    if (p == NULL) {
        x->failed = kolo_fail(KOLO_ERR_NO_MEMORY, "%s: rank %d has no memory for a message", oob->name, oob->rank);
        return;
    }
    kolo_conn_t *conn = kolo_peer_out(peer);
    if (conn != NULL) {
        kolo_conn_send(conn, &p->out);
        return;
    }
    *x->unsent_tail = p;
    x->unsent_tail = &p->next;
    if (kolo_peer_dial(oob, peer, x->deadline_ns) != KOLO_OK) peer->dial_status = KOLO_ERR_SYSTEM;
}

kolo_ballot_t kolo_agree_ballot(const kolo_agree_run_t *x, kolo_ballot_type_t type, int coordinator)
{
    return (kolo_ballot_t){.type = type,
                           .ballot = coordinator,
                           .key = x->a->key,
                           .row_bytes = (uint32_t)x->a->row_bytes,
                           .accepted = -1,
                           .out = x->out};
}

void kolo_agree_refuse(kolo_agree_run_t *x, int to, kolo_status_t why, int about)
{
    kolo_ballot_t b = kolo_agree_ballot(x, KOLO_BALLOT_REFUSE, to);
    b.flags = (uint32_t)why;
    b.about = about;
    kolo_agree_post(x, to, &b);
}

void kolo_agree_report(kolo_agree_run_t *x, int to)
{
    kolo_ballot_t b = kolo_agree_ballot(x, KOLO_BALLOT_REPORT, to);
    b.flags = x->a->flags;
    b.row = x->rows + (size_t)x->oob->rank * x->a->row_bytes;
    b.accepted = x->accepted_ballot;
    b.value = x->accepted_ballot >= 0 ? x->value : NULL;
    x->promised = to;
    x->repeat_ns = kolo_deadline_ms(KOLO_AGREE_REPEAT_MS);
    KOLO_FAIL_POINT("oob.agree.report");
    kolo_agree_post(x, to, &b);
    KOLO_FAIL_POINT("oob.agree.reported");
}

void kolo_agree_send_value(kolo_agree_run_t *x, kolo_ballot_type_t type, int to)
{
    kolo_ballot_t b = kolo_agree_ballot(x, type, x->oob->rank);
    b.value = x->value;
    kolo_agree_post(x, to, &b);
}

static bool is_unsent_ready(kolo_agree_run_t *x, const kolo_agree_post_t *p)
{
    kolo_peer_t *peer = kolo_peer_find(x->oob, p->rank);
    return peer == NULL || kolo_peer_out(peer) != NULL || kolo_map_has(x->out, p->rank);
}

bool kolo_agree_can_send(kolo_agree_run_t *x)
{
    for (const kolo_agree_post_t *p = x->unsent; p != NULL; p = p->next)
        if (is_unsent_ready(x, p)) return true;
    return false;
}

void kolo_agree_send_unsent(kolo_agree_run_t *x)
{
    kolo_agree_post_t **at = &x->unsent;
    while (*at != NULL) {
        kolo_agree_post_t *p = *at;
        if (!is_unsent_ready(x, p)) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        kolo_peer_t *peer = kolo_peer_find(x->oob, p->rank);
        kolo_conn_t *conn = peer != NULL ? kolo_peer_out(peer) : NULL;
        if (conn != NULL)
            kolo_conn_send(conn, &p->out);
        else
            free(p);
    }
    x->unsent_tail = at;
}

/* ---- what is learnt ---- */

/* Tells who is out. Who has taken leave comes to no agreement any more, like one that is lost. If it has this one
 * behind it, all have accepted what it decided, so its absence changes nothing. */
static bool has_gone(const kolo_peer_t *peer)
{
    return kolo_peer_is_lost(peer) || peer->gone || peer->farewell ||
           (peer->live == 0 && peer->dial_status == KOLO_ERR_REMOTE);
}

/* Adds who is out; with `only_ask`, whether there is anybody new. */
bool kolo_agree_learn_losses(kolo_agree_run_t *x, bool only_ask)
{
    bool any = false;
    for (int i = 0; i < KOLO_PEER_BUCKETS; i++)
        for (const kolo_peer_t *peer = x->oob->peers[i]; peer != NULL; peer = peer->next) {
            if (kolo_map_has(x->out, peer->rank) || peer->rank == x->oob->rank || !has_gone(peer)) continue;
            if (only_ask) return true;
            kolo_map_add(x->out, peer->rank);
            any = true;
        }
    return any;
}

static void merge(kolo_agree_run_t *x, const uint8_t *out)
{
    for (size_t i = 0; i < x->map_bytes; i++) x->out[i] |= out[i];
}

void kolo_agree_fail_apart(kolo_agree_run_t *x, int from)
{
    x->failed =
        kolo_fail(KOLO_ERR_PARTITION, "%s: rank %d says that rank %d is lost: the others go on without this rank",
                  x->oob->name, from, x->oob->rank);
}

void kolo_agree_fail_mismatch(kolo_agree_run_t *x, int rank)
{
    x->failed =
        kolo_fail(KOLO_ERR_MISMATCH,
                  "%s: rank %d means other ranks, or another call, than rank %d in %s: all must name the same",
                  x->oob->name, rank, x->oob->rank, x->a->what);
}

/* Takes a mismatch: `from` is in another call, or names other ranks. */
static void take_mismatch(kolo_agree_run_t *x, int from)
{
    int c = kolo_agree_lowest(x);
    if (c == x->oob->rank) {
        if (x->bad == KOLO_OK) x->bad = KOLO_ERR_MISMATCH, x->bad_about = from;
        x->reported[from] = true; /* it is to hear of it */
    } else {
        kolo_agree_refuse(x, c, KOLO_ERR_MISMATCH, c == from ? x->oob->rank : from);
        if (c == from)
            kolo_agree_fail_mismatch(x, from);
        else
            kolo_agree_refuse(x, from, KOLO_ERR_MISMATCH, x->oob->rank);
    }
}

static void take_refusal(kolo_agree_run_t *x, int from, const kolo_ballot_t *b)
{
    if (b->flags != KOLO_ERR_MISMATCH)
        kolo_agree_fail_apart(x, from);
    else if (kolo_agree_lowest(x) != x->oob->rank)
        kolo_agree_fail_mismatch(x, from);
    else if (x->bad == KOLO_OK && !x->took_over)
        x->bad = KOLO_ERR_MISMATCH, x->bad_about = b->about;
}

static void take_report(kolo_agree_run_t *x, int from, const kolo_ballot_t *b)
{
    if (b->ballot != x->oob->rank) return;
    merge(x, b->out);
    if (x->proposed) { /* it asks again: what we said is lost */
        kolo_agree_send_value(x, KOLO_BALLOT_PROPOSE, from);
        return;
    }
    memcpy(x->rows + (size_t)from * x->a->row_bytes, b->row, x->a->row_bytes);
    if (!x->reported[from]) x->flags &= b->flags;
    x->reported[from] = true;
    if (b->accepted > x->accepted_ballot) {
        x->accepted_ballot = b->accepted;
        memcpy(x->value, b->value, x->value_bytes);
    }
}

static void take_proposal(kolo_agree_run_t *x, int from, const kolo_ballot_t *b)
{
    if (b->ballot != from || b->ballot != x->promised) return;
    x->accepted_ballot = from;
    memcpy(x->value, b->value, x->value_bytes);
    kolo_ballot_t yes = kolo_agree_ballot(x, KOLO_BALLOT_ACCEPT, from);
    KOLO_FAIL_POINT("oob.agree.accept");
    kolo_agree_post(x, from, &yes);
    KOLO_FAIL_POINT("oob.agree.accepted");
}

static void take(kolo_agree_run_t *x, int from, const kolo_ballot_t *b)
{
    bool same = b->key == x->a->key && b->row_bytes == x->a->row_bytes, is_out = kolo_map_has(x->out, from);
    if (same && b->type == KOLO_BALLOT_DECIDE) {
        memcpy(x->value, b->value, x->value_bytes);
        x->decided = true;
    } else if (b->type == KOLO_BALLOT_REFUSE) {
        if (!is_out) take_refusal(x, from, b);
    } else if (is_out) {
        bool named = x->a->out != NULL && kolo_map_has(x->a->out, from);
        if (b->type != KOLO_BALLOT_ACCEPT && b->type != KOLO_BALLOT_DECIDE)
            kolo_agree_refuse(x, from, named ? KOLO_ERR_MISMATCH : KOLO_ERR_PARTITION, x->oob->rank);
    } else if (!same) {
        take_mismatch(x, from);
    } else if (b->type == KOLO_BALLOT_REPORT) {
        take_report(x, from, b);
    } else if (b->type == KOLO_BALLOT_CALL) {
        merge(x, b->out);
        if (b->ballot == x->promised) kolo_agree_report(x, from);
    } else if (b->type == KOLO_BALLOT_PROPOSE) {
        take_proposal(x, from, b);
    } else if (b->ballot == x->oob->rank) {
        x->accepted[from] = true;
    }
}

/* ---- messages of other agreements ----
 * A rank that is in another agreement with us, while this one waits for it, never comes to this one: ranks named
 * different lists. Nobody guesses: the message may be of a rank that has this one behind it, but not while its
 * first coordinator has decided nothing; so that is who concludes, and the others pass on what they see. */

static bool is_foreign(const kolo_agree_run_t *x, const kolo_inbound_t *in)
{
    return (in->tag ^ x->tag) >> KOLO_SERIES_SHIFT != 0 && in->status == KOLO_OK;
}

/* Takes word of one that has given up: ranks that were in time for an agreement and ranks that heard of a loss
 * before it must not wait for each other. */
static void take_given_up(kolo_agree_run_t *x, int from, const kolo_ballot_t *b)
{
    int lost = 0;
    while (lost < x->oob->nranks - 1 && !kolo_map_has(b->out, lost)) lost++;
    if (!kolo_map_has(b->out, lost)) lost = from; /* without anybody: it is the one that is gone for us */
    x->failed = kolo_fail(KOLO_ERR_REMOTE,
                          "%s: rank %d waited in %s, but rank %d has given the communicator up and goes on without "
                          "rank %d",
                          x->oob->name, x->oob->rank, x->a->what, from, lost);
}

static bool is_question(const kolo_ballot_t *b)
{
    return b->type == KOLO_BALLOT_REPORT || b->type == KOLO_BALLOT_CALL;
}

/* Tells one that waits for us elsewhere that we never come there. The first of us would, too, but not if it is one
 * whom the other leaves out. */
static void tell_given_up(kolo_agree_run_t *x, int to)
{
    kolo_ballot_t b = kolo_agree_ballot(x, KOLO_BALLOT_CALL, x->oob->rank);
    kolo_agree_post(x, to, &b);
}

static void take_foreign(kolo_agree_run_t *x, kolo_inbound_t *in)
{
    int from = in->peer, c = kolo_agree_lowest(x);
    kolo_ballot_t b;
    in->status = KOLO_ERR_MISMATCH; /* it has been looked at, and waits for its own agreement */
    if (kolo_ballot_decode(in->part[0], in->bytes, x->oob->nranks, &b) != NULL) return;
    if (x->tag >> KOLO_SERIES_SHIFT == KOLO_OOB_SERIES_LAST) {
        if (is_question(&b) && !kolo_map_has(x->out, from)) tell_given_up(x, from);
        return;
    }
    if (in->tag >> KOLO_SERIES_SHIFT == KOLO_OOB_SERIES_LAST) {
        if (!kolo_map_has(x->out, from)) take_given_up(x, from, &b); /* of one left out it is about what follows */
        return;
    }
    bool refuses = b.type == KOLO_BALLOT_REFUSE && b.flags == KOLO_ERR_MISMATCH;
    if (!refuses && (kolo_map_has(x->out, from) || !is_question(&b))) return;
    if (c == x->oob->rank) {
        if (!x->took_over && x->bad == KOLO_OK) x->bad = KOLO_ERR_MISMATCH, x->bad_about = from;
    } else {
        kolo_agree_refuse(x, c, KOLO_ERR_MISMATCH, c == from ? x->oob->rank : from);
        if (refuses || c == from) kolo_agree_fail_mismatch(x, from);
    }
    if (refuses) kolo_oob_early_remove(x->oob, in);
}

static kolo_inbound_t *find_message(const kolo_agree_run_t *x, bool foreign)
{
    for (kolo_inbound_t *in = x->oob->early; in != NULL; in = in->next)
        if (in->kind == KOLO_FRAME_AGREE && in->done && (foreign ? is_foreign(x, in) : in->tag == x->tag))
            return in;
    return NULL;
}

bool kolo_agree_has_message(const kolo_agree_run_t *x)
{
    return find_message(x, false) != NULL || find_message(x, true) != NULL;
}

void kolo_agree_take_messages(kolo_agree_run_t *x)
{
    kolo_inbound_t *in;
    kolo_ballot_t b;
    while (!x->decided && x->failed == KOLO_OK && (in = find_message(x, false)) != NULL) {
        if (kolo_ballot_decode(in->part[0], in->bytes, x->oob->nranks, &b) == NULL) take(x, in->peer, &b);
        kolo_oob_early_remove(x->oob, in);
    }
    while (!x->decided && x->failed == KOLO_OK && (in = find_message(x, true)) != NULL) take_foreign(x, in);
}
