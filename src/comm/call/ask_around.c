/* SPDX-License-Identifier: Apache-2.0
 *
 * An operation has waited for long, or has run into its time limit: who keeps it waiting? The other ranks are
 * asked, and a short verdict goes into the warning or the error text; at the limit a long one goes into the log.
 * And what this rank answers when others ask.
 */
#include "base/log.h"
#include "base/process.h"
#include "comm/call/call.h"
#include "diag/verdict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_BACK 128 /* operations, of which a device may be in an older one */
#define WAIT_MS   200 /* for answers; an progress thread that is not stopped takes none of it */

/* Takes whole parts of a sentence on who is missing. */
static void take_note(const kolo_record_t *record, char *text, size_t bytes)
{
    kolo_record_note_t note;
    kolo_record_note_read(record, &note);
    size_t length = note.since_ns && note.blames ? strlen(note.text) : 0;
    if (length >= bytes) {
        length = bytes - 1;
        while (length > 0 && note.text[length] != ';' && note.text[length] != ',') length--;
    }
    for (size_t i = 0; i < length; i++) text[i] = note.text[i] < 0x20 || note.text[i] > 0x7e ? '?' : note.text[i];
    text[length] = '\0';
}

/* Answers on the progress thread; the record outlives this, see kolo_record_close(). */
static void answer(void *arg, kolo_finding_t *mine)
{
    kolo_body_t *body = arg;
    kolo_record_op_t ops[LOOK_BACK];
    kolo_verdict_rank_t last;
    mine->recorded = true;
    mine->failed = (kolo_status_t)__atomic_load_n(&body->track.record.at->head.status, __ATOMIC_RELAXED);
    kolo_record_callback_t callback = kolo_record_callback_read(body->track.record.at);
    mine->callback = callback.which;
    mine->callback_ns = callback.since_ns ? kolo_now_ns() - callback.since_ns : 0; /* the coarse clock is behind */
    take_note(body->track.record.at, mine->note, sizeof mine->note);
    size_t n = kolo_record_ops(body->track.record.at, ops, body->gpu.device < 0 ? KOLO_SURVEY_OPS : LOOK_BACK);
    kolo_verdict_take(&last, ops, n, kolo_now_ns());
    uint32_t from = last.nops > KOLO_SURVEY_OPS ? last.nops - KOLO_SURVEY_OPS : 0;
    for (uint32_t i = 0; i < from; i++)
        if (last.ops[i].state == KOLO_RECORD_RUNNING) from = i;
    mine->nops = KOLO_MIN(last.nops - from, (uint32_t)KOLO_SURVEY_OPS);
    for (uint32_t i = 0; i < mine->nops; i++) {
        const kolo_verdict_op_t *op = &last.ops[from + i];
        mine->ops[i] = (kolo_survey_op_t){op->number, op->word, op->age_ns, op->peer, op->kind, op->state};
    }
}

void kolo_ask_around_open(kolo_body_t *body)
{
    if (!body->track.record.at) return;
    kolo_diag_set_survey(body->oob, answer, body);
}

void kolo_ask_around_close(kolo_body_t *body)
{
    if (!body->oob) return;
    kolo_diag_set_survey(body->oob, NULL, NULL);
}

/* Adds what is known of a rank that did not answer. */
static void look_for(const kolo_body_t *body, kolo_verdict_rank_t *v)
{
    const kolo_peer_card_t *card = &body->member.peers[v->rank], *mine = &body->member.peers[body->rank];
    v->presence = kolo_news_rank_lost(body->oob, v->rank, NULL, 0) ? KOLO_RANK_GONE : KOLO_RANK_SILENT;
    if (card->host_hash != mine->host_hash) return;
    if (kolo_member_process_hash(card->host_hash, card->pid) == card->process_hash)
        v->stopped = kolo_process_stopped(card->pid);
    else
        v->presence = KOLO_RANK_GONE;
}

static void take(const kolo_body_t *body, const kolo_finding_t *f, kolo_verdict_rank_t *v)
{
    const kolo_peer_card_t *card = &body->member.peers[f->rank];
    *v = (kolo_verdict_rank_t){.rank = f->rank, .pid = card->pid, .failed = f->failed, .nops = f->nops};
    v->callback = f->callback;
    v->callback_ns = f->callback_ns;
    snprintf(v->host, sizeof v->host, "%.31s", card->host_name);
    v->presence = f->recorded ? KOLO_RANK_HEARD : KOLO_RANK_UNRECORDED;
    if (!f->heard) look_for(body, v);
    for (uint32_t i = 0; i < f->nops; i++) {
        const kolo_survey_op_t *op = &f->ops[i];
        v->ops[i] = (kolo_verdict_op_t){op->number, op->word, op->age_ns, op->peer, op->kind, op->state};
    }
}

/* Lists whom to ask; in a large job only the neighbours: asking all ranks would flood the network when all reach
 * the limit at once. */
static int whom_to_ask(const kolo_body_t *body, kolo_finding_t *findings)
{
    int n = KOLO_MIN(body->nranks, KOLO_SURVEY_RANKS), count = 0;
    for (int rank = 0; rank < body->nranks; rank++) {
        int ahead = (rank - body->rank + body->nranks) % body->nranks;
        if (ahead > 0 && (ahead <= n / 2 || body->nranks - ahead <= (n - 1) / 2)) findings[count++].rank = rank;
    }
    return count;
}

static void log_lines(const kolo_body_t *body, const char *text)
{
    for (const char *line = text, *end; *line; line = *end ? end + 1 : end) {
        end = line + strcspn(line, "\n");
        kolo_warn("comm", "%s rank %d: %.*s", body->name, body->rank, (int)(end - line), line);
    }
}

/* Asks what the other ranks do, fills in `ranks`, with this one among them, and returns how many. */
static int ask(kolo_body_t *body, kolo_finding_t *findings, kolo_verdict_rank_t *ranks)
{
    kolo_finding_t mine = {.rank = body->rank, .heard = true};
    int asked = whom_to_ask(body, findings), n = 0;
    bool in = false;
    kolo_record_waits_t waits;
    kolo_diag_survey(body->oob, findings, asked, WAIT_MS);
    answer(body, &mine);
    kolo_record_waits_read(body->track.record.at, &waits);
    for (int i = 0; i < asked; i++) {
        if (!in && findings[i].rank > body->rank) take(body, &mine, &ranks[n++]);
        in = in || findings[i].rank > body->rank;
        take(body, &findings[i], &ranks[n++]);
    }
    if (!in) take(body, &mine, &ranks[n++]);
    for (int i = 0; i < n; i++)
        if (ranks[i].rank == body->rank) ranks[i].waits = waits;
    return n;
}

/* Writes the short verdict, "" if nobody is found; tell_all: the long one goes into the log. */
static void ask_around(kolo_body_t *body, bool tell_all, char *brief, size_t bytes)
{
    kolo_finding_t *findings = calloc(KOLO_SURVEY_RANKS, sizeof *findings);
    kolo_verdict_rank_t *ranks = calloc(KOLO_SURVEY_RANKS + 1, sizeof *ranks);
    char *text = malloc(KOLO_VERDICT_TEXT);
    if (bytes) *brief = '\0';
    if (findings && ranks && text && body->oob && body->track.record.at && body->nranks > 1) {
        int n = ask(body, findings, ranks);
        if (tell_all) {
            kolo_verdict_print(ranks, n, body->nranks, text, KOLO_VERDICT_TEXT);
            log_lines(body, text);
        }
        if (!kolo_verdict_brief(ranks, n, body->nranks, brief, bytes) && bytes) *brief = '\0';
    }
    free(findings);
    free(ranks);
    free(text);
}

void kolo_ask_around_time_out(kolo_body_t *body)
{
    char seen[KOLO_ERROR_TEXT_BYTES], brief[400];
    snprintf(seen, sizeof seen, "%s", kolo_error_text());
    ask_around(body, true, brief, sizeof brief);
    kolo_fail(KOLO_ERR_TIMEOUT, *brief ? "%.550s; %s" : "%.550s", seen, brief);
}

void kolo_ask_around_stalled(kolo_body_t *body, char *buf, size_t bytes)
{
    ask_around(body, false, buf, bytes);
}

void kolo_ask_around_note(kolo_comm_t comm, int rank, char *text, size_t bytes)
{
    kolo_finding_t *f = calloc(1, sizeof *f);
    *text = '\0';
    kolo_body_t *body = f ? kolo_handle_visit(comm, "engine_wait") : NULL;
    if (body && body->oob && body->track.record.at) {
        f->rank = rank;
        if (rank == body->rank)
            take_note(body->track.record.at, f->note, sizeof f->note);
        else
            kolo_diag_survey(body->oob, f, 1, WAIT_MS);
        snprintf(text, bytes, "%s", f->note);
    }
    if (body) kolo_handle_leave(comm);
    free(f);
}
