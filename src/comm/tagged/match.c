/* SPDX-License-Identifier: Apache-2.0
 *
 * Which receive takes which message: both wait in the order in which they came, receives in that of their calls and
 * messages in that of their arrival, which is the order of the sends of each source.
 */
#include "comm/tagged/tagged.h"

#include <stdlib.h>
#include <string.h>

static bool fits(const struct kolo_request *r, const kolo_incoming_t *m)
{
    return r->tag == m->tag && (r->peer == KOLO_ANY_SOURCE || r->peer == m->peer->rank);
}

static void unasked_add(kolo_incoming_t *m)
{
    kolo_tagged_t *all = m->peer->messages;
    m->unasked = true;
    m->prev = all->last;
    m->next = NULL;
    if (all->last)
        all->last->next = m;
    else
        all->first = m;
    all->last = m;
}

static void unasked_remove(kolo_incoming_t *m)
{
    kolo_tagged_t *all = m->peer->messages;
    if (!m->unasked) return;
    m->unasked = false;
    if (m->prev)
        m->prev->next = m->next;
    else
        all->first = m->next;
    if (m->next)
        m->next->prev = m->prev;
    else
        all->last = m->prev;
}

void kolo_tagged_incoming_free(kolo_incoming_t *m)
{
    kolo_tagged_in_t *in = &m->peer->in;
    unasked_remove(m);
    if (m->request) m->request->incoming = NULL;
    if (m->own) {
        m->own->incoming = NULL;
    } else {
        if (m->prev_here)
            m->prev_here->next_here = m->next_here;
        else
            in->first = m->next_here;
        if (m->next_here) m->next_here->prev_here = m->prev_here;
        if (in->now == m) in->now = NULL;
    }
    free(m->data);
    free(m);
}

static void give(struct kolo_request *r, const kolo_incoming_t *m)
{
    r->got = (kolo_received_t){.source = m->peer->rank, .tag = m->tag, .bytes = m->total};
    kolo_tagged_complete(r, KOLO_OK);
}

void kolo_tagged_whole(kolo_incoming_t *m)
{
    struct kolo_request *r = m->request, *own = m->own;
    if (!r && !m->lost) return; /* nobody has asked for it yet */
    if (r) {
        r->incoming = NULL;
        m->request = NULL;
        if (own && m->total) memcpy(r->dst, own->src, m->total);
        if (m->data && m->total) memcpy(r->dst, m->data, m->total);
        give(r, m);
    }
    if (!own && !m->is_long) kolo_tagged_answer(m, KOLO_TAGGED_TAKEN, m->total);
    kolo_tagged_incoming_free(m);
    if (own) kolo_tagged_complete(own, KOLO_OK);
}

/* Refuses a message that is too long for the receive that has to take it. */
static void refuse(struct kolo_request *r, kolo_incoming_t *m)
{
    kolo_tagged_t *all = r->messages;
    struct kolo_request *own = m->own;
    size_t room = r->bytes;
    kolo_fail(KOLO_ERR_MISMATCH,
              "%s: a message of %zu bytes came to %s rank %d from rank %d with tag %llu, but the receive that "
              "was called for it has room for %zu; the message was thrown away",
              r->what, m->total, all->body->name, all->body->rank, m->peer->rank, (unsigned long long)m->tag, room);
    kolo_tagged_complete(r, KOLO_ERR_MISMATCH);
    if (own) {
        kolo_tagged_incoming_free(m);
        kolo_fail(KOLO_ERR_MISMATCH, "%s: %s rank %d sent itself %zu bytes and has room for %zu", own->what,
                  all->body->name, all->body->rank, own->bytes, room);
        kolo_tagged_complete(own, KOLO_ERR_MISMATCH);
    } else if (m->is_long) {
        kolo_tagged_answer(m, KOLO_TAGGED_REFUSED, room);
        kolo_tagged_incoming_free(m);
    } else {
        m->lost = true;
        if (m->have == m->total) kolo_tagged_whole(m);
    }
}

static void join(struct kolo_request *r, kolo_incoming_t *m)
{
    kolo_tagged_remove(r);
    unasked_remove(m);
    if (m->total > r->bytes) {
        refuse(r, m);
        return;
    }
    r->incoming = m;
    m->request = r;
    if (m->is_long) kolo_tagged_answer(m, KOLO_TAGGED_CLEAR, 0);
    if (m->own || (!m->is_long && m->have == m->total)) kolo_tagged_whole(m);
}

void kolo_tagged_arrive(kolo_incoming_t *m)
{
    for (struct kolo_request *r = m->peer->messages->posted.first; r; r = r->next)
        if (fits(r, m)) {
            join(r, m);
            return;
        }
    unasked_add(m);
}

static kolo_incoming_t *find(const struct kolo_request *r)
{
    kolo_incoming_t *m = r->messages->first;
    while (m && !fits(r, m)) m = m->next;
    return m;
}

void kolo_tagged_receive(struct kolo_request *r)
{
    kolo_incoming_t *m = find(r);
    kolo_tagged_add(&r->messages->posted, r);
    if (m) join(r, m);
}

/* Puts a receive back to its place among the others. */
static void receive_again(struct kolo_request *r)
{
    kolo_tagged_list_t *posted = &r->messages->posted;
    struct kolo_request *behind = posted->last, *next;
    kolo_incoming_t *m = find(r);
    while (behind && behind->number > r->number) behind = behind->prev;
    next = behind ? behind->next : posted->first;
    r->in = posted;
    r->prev = behind;
    r->next = next;
    if (behind)
        behind->next = r;
    else
        posted->first = r;
    if (next)
        next->prev = r;
    else
        posted->last = r;
    if (m) join(r, m);
}

void kolo_tagged_withdraw(kolo_incoming_t *m)
{
    struct kolo_request *r = m->request;
    if (m->unasked)
        kolo_tagged_answer(m, m->is_long ? KOLO_TAGGED_GONE : KOLO_TAGGED_TAKEN, m->is_long ? 0 : m->total);
    kolo_tagged_incoming_free(m);
    if (r) receive_again(r);
}

void kolo_tagged_receive_end(struct kolo_request *r)
{
    kolo_incoming_t *m = r->incoming;
    kolo_tagged_remove(r);
    if (!m) return;
    r->incoming = NULL;
    m->request = NULL;
    m->lost = true; /* what is still to come of it has no place */
}
