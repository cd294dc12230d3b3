/* SPDX-License-Identifier: Apache-2.0
 *
 * What errors say about a message with a tag: which one it is, and what the library knows of the other end.
 */
#include "base/clock.h"
#include "comm/tagged/tagged.h"

#include <stdio.h>
#include <string.h>

#define NAMED    4   /* messages that nobody has asked for, in one text */
#define SHOWN_MS 500 /* after which a wait is shown */

static void put_source(int rank, char *buf, size_t bytes)
{
    if (rank == KOLO_ANY_SOURCE)
        snprintf(buf, bytes, "any rank");
    else
        snprintf(buf, bytes, "rank %d", rank);
}

void kolo_tagged_describe(const struct kolo_request *r, char *buf, size_t bytes)
{
    const kolo_body_t *body = r->messages->body;
    char source[32];
    put_source(r->peer, source, sizeof source);
    snprintf(buf, bytes, "%s: %s rank %d, a message with tag %llu %s %s (%s%zu bytes)", r->what, body->name,
             body->rank, (unsigned long long)r->tag, r->sends ? "to" : "from", source, r->sends ? "" : "at most ",
             r->bytes);
}

/* Writes what has come, and no receive has asked for. */
static void put_unasked(const kolo_tagged_t *m, char *buf, size_t bytes)
{
    size_t used = 0, n = 0;
    for (const kolo_incoming_t *in = m->first; in; in = in->next, n++) {
        if (n >= NAMED || used + 1 >= bytes) continue;
        int put = snprintf(buf + used, bytes - used, "%s tag %llu of rank %d (%zu bytes)", n ? "," : ":",
                           (unsigned long long)in->tag, in->peer->rank, in->total);
        used = KOLO_MIN(bytes - 1, used + (size_t)put);
    }
    if (n > NAMED) snprintf(buf + used, bytes - used, " and %zu more", n - NAMED);
    if (n == 0) snprintf(buf, bytes, "; nothing else has come");
}

static void put_receive(const struct kolo_request *r, char *buf, size_t bytes)
{
    char unasked[240];
    if (r->incoming) {
        snprintf(buf, bytes, "rank %d has begun it: %zu of %zu bytes have come", r->incoming->peer->rank,
                 r->incoming->have, r->incoming->total);
        return;
    }
    put_unasked(r->messages, unasked, sizeof unasked);
    snprintf(buf, bytes, "no such message has come%s%s",
             r->messages->first ? "; what came and nobody asked for" : "", unasked);
}

static void put_send(const struct kolo_request *r, char *buf, size_t bytes)
{
    const kolo_tagged_peer_t *p = r->messages->peers[r->peer];
    const kolo_tagged_out_t *out = &p->out;
    if (out->state == KOLO_OUT_DIALLING)
        snprintf(buf, bytes, "rank %d could not be reached so far", p->rank);
    else if (r->in == &out->waiting)
        snprintf(buf, bytes, "earlier messages to rank %d wait for their receives (%u of them)", p->rank,
                 out->in_flight);
    else if (r->in == &out->clear || out->now == r)
        snprintf(buf, bytes, "rank %d has asked for it, and %zu bytes are on their way", p->rank, r->moved);
    else
        snprintf(buf, bytes, "rank %d has been told of it, and has called no receive for this tag", p->rank);
}

void kolo_tagged_fail_late(const struct kolo_request *r, uint64_t now)
{
    char words[KOLO_TAGGED_WORDS_BYTES], state[KOLO_TAGGED_WORDS_BYTES];
    kolo_tagged_describe(r, words, sizeof words);
    if (r->sends)
        put_send(r, state, sizeof state);
    else
        put_receive(r, state, sizeof state);
    kolo_fail(KOLO_ERR_TIMEOUT, "%s: not complete after %.1f s, its time limit; %s", words,
              (double)(now - r->since_ns) / 1e9, state);
}

void kolo_tagged_show(kolo_tagged_t *m, uint64_t now)
{
    const struct kolo_request *oldest = NULL;
    char state[KOLO_TAGGED_WORDS_BYTES], source[32], text[KOLO_RECORD_NOTE_TEXT];
    for (const struct kolo_request *r = m->open; r; r = r->next_open)
        if (!oldest || r->since_ns < oldest->since_ns) oldest = r;
    if (!oldest || now < oldest->since_ns + SHOWN_MS * KOLO_NS_PER_MS) {
        if (m->noted) kolo_record_note_wait(m->body->track.record.at, 0, false, "");
        m->noted = false;
        return;
    }
    put_source(oldest->peer, source, sizeof source);
    if (oldest->sends)
        put_send(oldest, state, sizeof state);
    else
        put_receive(oldest, state, sizeof state);
    int n = snprintf(text, sizeof text, "rank %d waits %.1f s %s a message with tag %llu %s %s", m->body->rank,
                     (double)(now - oldest->since_ns) / 1e9, oldest->sends ? "to send" : "for",
                     (unsigned long long)oldest->tag, oldest->sends ? "to" : "from", source);
    if (m->nopen > 1 && n > 0 && (size_t)n < sizeof text)
        n += snprintf(text + n, sizeof text - (size_t)n, ", and for %zu more", m->nopen - 1);
    if (n > 0 && (size_t)n < sizeof text) snprintf(text + n, sizeof text - (size_t)n, ": %.250s", state);
    kolo_record_note_wait(m->body->track.record.at, oldest->since_ns, true, text);
    m->noted = true;
}
