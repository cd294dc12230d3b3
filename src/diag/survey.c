/* SPDX-License-Identifier: Apache-2.0
 *
 * Surveys: a rank whose operation has run into its time limit asks the others what they do. Their progress threads
 * answer from what their rank left in its flight record, whatever the rank itself does. Nobody asks because he was
 * asked, an answer has a fixed length, and each peer has at most one on its way.
 */
#include "base/log.h"
#include "diag/state.h"
#include "member/life.h"

#include <stdio.h>
#include <string.h>

void kolo_diag_set_survey(kolo_oob_t *oob, kolo_survey_fn_t fn, void *arg)
{
    pthread_mutex_lock(&oob->lock);
    kolo_diag(oob)->survey_fn = fn;
    kolo_diag(oob)->survey_arg = arg;
    pthread_mutex_unlock(&oob->lock);
}

/* ---- answering; on the progress thread, with the lock held ---- */

const char *kolo_diag_survey_asked(kolo_conn_t *conn)
{
    kolo_oob_t *oob = conn->oob;
    kolo_peer_t *peer = conn->peer;
    kolo_conn_t *out = kolo_peer_out(peer);
    kolo_finding_t mine = {.rank = oob->rank};
    if (out == NULL || (kolo_peer_diag(peer)->findings_out.total > 0 && !kolo_peer_diag(peer)->findings_out.done))
        return NULL;
    if (kolo_diag(oob)->survey_fn != NULL) kolo_diag(oob)->survey_fn(kolo_diag(oob)->survey_arg, &mine);
    kolo_findings_encode(&mine, kolo_peer_diag(peer)->findings_bytes);
    kolo_outbound_init(&kolo_peer_diag(peer)->findings_out, KOLO_FRAME_FINDINGS, conn->frame.tag);
    kolo_outbound_add(&kolo_peer_diag(peer)->findings_out, kolo_peer_diag(peer)->findings_bytes,
                      sizeof(kolo_peer_diag(peer)->findings_bytes));
    kolo_conn_send(out, &kolo_peer_diag(peer)->findings_out);
    return NULL;
}

const char *kolo_findings_arrived(kolo_conn_t *conn)
{
    kolo_survey_t *s = kolo_diag(conn->oob)->survey;
    kolo_finding_t f = {.rank = conn->peer->rank};
    const char *wrong = kolo_findings_decode(conn->body, conn->frame.bytes, &f);
    if (wrong != NULL || s == NULL || conn->frame.tag != s->number) return wrong; /* or it comes too late */
    for (int i = 0; i < s->count; i++)
        if (s->findings[i].rank == f.rank && s->asked[i]) s->findings[i] = f;
    kolo_oob_wake(conn->oob);
    return NULL;
}

/* ---- asking ---- */

static void ask(kolo_oob_t *oob, kolo_survey_t *s, int i)
{
    kolo_peer_t *peer = kolo_peer_find(oob, s->findings[i].rank);
    kolo_conn_t *conn = peer != NULL ? kolo_peer_out(peer) : NULL;
    if (conn == NULL || (kolo_peer_diag(peer)->survey_out.total > 0 && !kolo_peer_diag(peer)->survey_out.done))
        return;
    s->asked[i] = true; /* first: what follows may come back here */
    kolo_outbound_init(&kolo_peer_diag(peer)->survey_out, KOLO_FRAME_SURVEY, s->number);
    kolo_conn_send(conn, &kolo_peer_diag(peer)->survey_out);
}

static bool may_answer(kolo_oob_t *oob, int rank)
{
    const kolo_peer_t *peer = kolo_peer_find(oob, rank);
    return peer != NULL && !peer->gone && !peer->farewell && !kolo_peer_is_lost(peer) &&
           (peer->live > 0 || peer->dialling);
}

/* Asks those whose connection has come meanwhile, too. */
static bool all_heard(kolo_oob_t *oob, void *arg)
{
    kolo_survey_t *s = arg;
    bool all = true;
    for (int i = 0; i < s->count; i++) {
        if (!s->asked[i]) ask(oob, s, i);
        all = all && (s->findings[i].heard || !may_answer(oob, s->findings[i].rank));
    }
    return all;
}

static void describe(void *arg, char *buf, size_t bytes)
{
    const kolo_oob_t *oob = arg;
    snprintf(buf, bytes, "what the other ranks do, as %s rank %d", oob->name, oob->rank);
}

void kolo_diag_survey(kolo_oob_t *oob, kolo_finding_t *findings, int count, int wait_ms)
{
    kolo_survey_t s = {.findings = findings, .count = KOLO_MIN(count, KOLO_SURVEY_RANKS)};
    pthread_mutex_lock(&oob->lock);
    s.number = ++kolo_diag(oob)->surveys;
    for (int i = 0; i < s.count && !oob->closed; i++) {
        kolo_peer_t *peer = kolo_peer_get(oob, findings[i].rank);
        findings[i].heard = false;
        if (peer == NULL || kolo_peer_is_lost(peer) || kolo_peer_out(peer) != NULL) continue;
        if (kolo_peer_dial(oob, peer, kolo_oob_deadline(oob, 0)) != KOLO_OK)
            kolo_debug("oob", "%s: rank %d cannot ask rank %d: %s", oob->name, oob->rank, peer->rank,
                       kolo_error_text());
    }
    kolo_diag(oob)->survey = &s;
    if (!oob->closed &&
        kolo_oob_await(oob, all_heard, &s, kolo_deadline_ms(wait_ms), describe, oob) == KOLO_ERR_TIMEOUT)
        kolo_debug("oob", "%s: rank %d goes without some answers", oob->name, oob->rank);
    kolo_diag(oob)->survey = NULL;
    pthread_mutex_unlock(&oob->lock);
}
