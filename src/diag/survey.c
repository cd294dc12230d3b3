/* SPDX-License-Identifier: Apache-2.0
 *
 * Surveys: a rank whose operation has run into its time limit asks the others what they do. Their engine threads
 * answer from what their rank left in its flight record, whatever the rank itself does. Nobody asks because he was
 * asked, an answer has a fixed length, and each peer has at most one on its way.
 */
#include "base/bytes.h"
#include "base/log.h"
#include "oob/internal.h"

#include <stdio.h>
#include <string.h>

void kolo_findings_encode(const kolo_finding_t *f, uint8_t bytes[KOLO_FINDINGS_FRAME_BYTES])
{
    memset(bytes, 0, KOLO_FINDINGS_FRAME_BYTES);
    kolo_put32(bytes, f->nops | (f->recorded ? 1u << 8 : 0));
    kolo_put32(bytes + 4, (uint32_t)f->failed);
    for (uint32_t i = 0; i < f->nops; i++) {
        uint8_t *at = bytes + 8 + 32 * (size_t)i;
        kolo_put64(at, f->ops[i].number);
        kolo_put64(at + 8, f->ops[i].word);
        kolo_put64(at + 16, f->ops[i].age_ns);
        kolo_put32(at + 24, f->ops[i].peer);
        kolo_put32(at + 28, (uint32_t)f->ops[i].kind | (uint32_t)f->ops[i].state << 8);
    }
}

const char *kolo_findings_decode(const uint8_t *bytes, size_t length, kolo_finding_t *finding)
{
    kolo_finding_t f = {.heard = true};
    if (length != KOLO_FINDINGS_FRAME_BYTES) return "findings of the wrong length";
    uint32_t head = kolo_get32(bytes), failed = kolo_get32(bytes + 4);
    f.nops = head & 0xff;
    f.recorded = (head & 0x100) != 0;
    if (head > 0x1ff || f.nops > KOLO_SURVEY_OPS || failed > KOLO_ERR_REVOKED) return "findings out of range";
    f.failed = (kolo_status_t)failed;
    for (uint32_t i = 0; i < KOLO_SURVEY_OPS; i++) {
        const uint8_t *at = bytes + 8 + 32 * (size_t)i;
        uint32_t what = kolo_get32(at + 28);
        f.ops[i] = (kolo_survey_op_t){kolo_get64(at),
                                      kolo_get64(at + 8),
                                      kolo_get64(at + 16),
                                      kolo_get32(at + 24),
                                      (kolo_record_kind_t)(what & 0xff),
                                      (kolo_record_state_t)(what >> 8)};
        bool zero =
            what == 0 && f.ops[i].number == 0 && f.ops[i].word == 0 && f.ops[i].age_ns == 0 && f.ops[i].peer == 0;
        if (i >= f.nops && !zero) return "findings behind the last one";
        if (i < f.nops &&
            ((what & 0xff) >= KOLO_RECORD_KINDS || what >> 8 == KOLO_RECORD_NONE || what >> 8 > KOLO_RECORD_FAILED))
            return "findings of an unknown kind";
    }
    f.rank = finding->rank;
    *finding = f;
    return NULL;
}

void kolo_oob_set_survey(kolo_oob_t *oob, kolo_survey_fn_t fn, void *arg)
{
    pthread_mutex_lock(&oob->lock);
    oob->survey_fn = fn;
    oob->survey_arg = arg;
    pthread_mutex_unlock(&oob->lock);
}

/* ---- answering; on the engine thread, with the lock held ---- */

void kolo_survey_asked(kolo_conn_t *conn)
{
    kolo_oob_t *oob = conn->oob;
    kolo_peer_t *peer = conn->peer;
    kolo_conn_t *out = kolo_peer_out(peer);
    kolo_finding_t mine = {.rank = oob->rank};
    if (out == NULL || (peer->findings_out.total > 0 && !peer->findings_out.done)) return;
    if (oob->survey_fn != NULL) oob->survey_fn(oob->survey_arg, &mine);
    kolo_findings_encode(&mine, peer->findings_bytes);
    kolo_outbound_init(&peer->findings_out, KOLO_FRAME_FINDINGS, conn->frame.tag);
    kolo_outbound_add(&peer->findings_out, peer->findings_bytes, sizeof(peer->findings_bytes));
    kolo_conn_send(out, &peer->findings_out);
}

const char *kolo_findings_arrived(kolo_conn_t *conn)
{
    kolo_survey_t *s = conn->oob->survey;
    kolo_finding_t f = {.rank = conn->peer->rank};
    const char *wrong = kolo_findings_decode(conn->board_bytes, conn->frame.bytes, &f);
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
    if (conn == NULL || (peer->survey_out.total > 0 && !peer->survey_out.done)) return;
    s->asked[i] = true; /* first: what follows may come back here */
    kolo_outbound_init(&peer->survey_out, KOLO_FRAME_SURVEY, s->number);
    kolo_conn_send(conn, &peer->survey_out);
}

static bool may_answer(kolo_oob_t *oob, int rank)
{
    const kolo_peer_t *peer = kolo_peer_find(oob, rank);
    return peer != NULL && !peer->gone && !peer->farewell && peer->loss.order == 0 &&
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

void kolo_oob_survey(kolo_oob_t *oob, kolo_finding_t *findings, int count, int wait_ms)
{
    kolo_survey_t s = {.findings = findings, .count = KOLO_MIN(count, KOLO_SURVEY_RANKS)};
    pthread_mutex_lock(&oob->lock);
    s.number = ++oob->surveys;
    for (int i = 0; i < s.count && !oob->closed; i++) {
        kolo_peer_t *peer = kolo_peer_get(oob, findings[i].rank);
        findings[i].heard = false;
        if (peer == NULL || peer->loss.order > 0 || kolo_peer_out(peer) != NULL) continue;
        if (kolo_peer_dial(oob, peer, kolo_oob_deadline(oob, 0)) != KOLO_OK)
            kolo_debug("oob", "%s: rank %d cannot ask rank %d: %s", oob->name, oob->rank, peer->rank,
                       kolo_error_text());
    }
    oob->survey = &s;
    if (!oob->closed &&
        kolo_oob_await(oob, all_heard, &s, kolo_deadline_ms(wait_ms), describe, oob) == KOLO_ERR_TIMEOUT)
        kolo_debug("oob", "%s: rank %d goes without some answers", oob->name, oob->rank);
    oob->survey = NULL;
    pthread_mutex_unlock(&oob->lock);
}
