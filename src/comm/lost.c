/* SPDX-License-Identifier: Apache-2.0
 *
 * When a rank is lost, the communicator revoked or the network split, every operation of this rank ends at once and
 * later ones are refused, whether they would have needed that rank or not: all ranks are to come to the same end.
 * Here the news from the out-of-band room becomes a state, and a sentence that says who, where, how it was noticed
 * and what was under way.
 */
#include "base/log.h"
#include "comm/call/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_LOST_MS 250 /* how long the name of a lost rank may take to go round */
#define WORDS_BYTES   600

static const char ended[] = "aborted while waiting for "; /* how the error of such a wait begins (base/wait.c) */

static kolo_status_t status_of(uint32_t stop)
{
    return stop == KOLO_STOP_REVOKED     ? KOLO_ERR_REVOKED
           : stop == KOLO_STOP_PARTITION ? KOLO_ERR_PARTITION
           : stop == KOLO_STOP_MISMATCH  ? KOLO_ERR_MISMATCH
           : stop == KOLO_STOP_LOST      ? KOLO_ERR_REMOTE
                                         : KOLO_ERR_ABORTED;
}

/* Asks why operations end: word of a rank that was lost, if it comes in time, or of two that differ. */
static int ask_why(kolo_body_t *body, int wait_ms, char *why, size_t bytes)
{
    int rank = kolo_member_first_lost(body->oob, wait_ms, why, bytes);
    if (atomic_load(&body->stop.reason) != KOLO_STOP_MISMATCH) return rank;
    (void)kolo_diag_difference(body->oob);
    snprintf(why, bytes, "%s", kolo_error_text());
    return rank;
}

static void put_words(const kolo_body_t *body, uint32_t stop, int rank, const char *why, char *buf, size_t bytes)
{
    const kolo_peer_card_t *card = body->member.peers && rank >= 0 ? &body->member.peers[rank] : NULL;
    if (stop == KOLO_STOP_REVOKED)
        snprintf(buf, bytes, "rank %d revoked the communicator", rank);
    else if (stop == KOLO_STOP_PARTITION)
        snprintf(buf, bytes, "the network has split: %s", why);
    else if (stop == KOLO_STOP_MISMATCH)
        snprintf(buf, bytes, "%s", why);
    else if (card)
        snprintf(buf, bytes, "rank %d (host %s, process %d) was lost: %s", rank, card->host_name, (int)card->pid,
                 why);
    else
        snprintf(buf, bytes, "rank %d was lost: %s", rank, why);
}

/* Writes words about a rank of ours in the set-up of a child (member/inherit.c). */
static void who(void *arg, int rank, char *buf, size_t bytes)
{
    const kolo_body_t *body = arg;
    const kolo_peer_card_t *card = &body->member.peers[rank];
    snprintf(buf, bytes, " (host %s, process %d)", card->host_name, (int)card->pid);
}

static void end_operations(kolo_body_t *body, uint32_t stop)
{
    uint32_t none = KOLO_STOP_NONE;
    atomic_compare_exchange_strong(&body->stop.reason, &none, stop);
    kolo_device_cancel(body); /* whoever sees its kernels end finds the reason */
    kolo_waker_wake(&body->ctx.waker);
    kolo_gate_open(&body->handle->gate);
    kolo_body_ring(body);
}

static void keep_error(kolo_body_t *body, uint32_t stop, int rank, const char *why)
{
    kolo_comm_t h = body->handle;
    pthread_mutex_lock(&h->error_lock);
    if (h->error == KOLO_OK || atomic_load(&h->quiet)) {
        h->error = status_of(stop);
        h->error_is_news = true;
        put_words(body, stop, rank, why, h->error_text, sizeof h->error_text);
        kolo_comm_failure_note(h->error, h->error_text);
    }
    pthread_mutex_unlock(&h->error_lock);
}

/* ---- quiet ends (KOLO_QUIET_EXIT) ----
 *
 * Programs that end at different times, or abort on one rank, are no failure to NCCL as long as nobody needs that
 * rank. So the communicator fails, but its error is not shown, and kernels that run are left alone, until this rank
 * calls something (kolo_handle_refuse()) or a wait lasts (mismatch.c, gpu/watch.c). */

static bool is_idle(kolo_comm_t h)
{
    return atomic_load(&h->done) == atomic_load(&h->tickets) && !atomic_load(&h->in_background);
}

/* Tells whether a loss would be asked about: a wait on the host asks while it lasts, and tells it then, as the
 * watch does of kernels. A call that is about to start one would not, and a stream that waits for a signal is seen
 * by nobody. */
static bool is_asked_about(kolo_body_t *body)
{
    return !atomic_load(&body->gpu.state) || (is_idle(body->handle) && !atomic_load(&body->windows));
}

/* Keeps a loss from being shown. False: what has begun meanwhile would not be told. */
static bool go_quiet(kolo_body_t *body, int rank, const char *why)
{
    kolo_comm_t h = body->handle;
    int ready = KOLO_COMM_READY;
    if (!is_asked_about(body)) return false;
    keep_error(body, KOLO_STOP_LOST, rank, why);
    atomic_store(&h->quiet, true);
    if (!atomic_compare_exchange_strong(&h->state, &ready, KOLO_COMM_FAILED) || !is_asked_about(body)) {
        atomic_store(&h->quiet, false);
        return false;
    }
    kolo_info("comm", "%s rank %d: %s; no error until it is needed", body->name, body->rank, why);
    return true;
}

/* Keeps a loss from a rank that leaves already and waits for its kernels: whether they need the lost one the watch
 * will see. */
static bool end_is_quiet(kolo_body_t *body, int rank, const char *why)
{
    kolo_comm_t h = body->handle;
    if (!atomic_load(&body->gpu.state) || atomic_load(&h->state) != KOLO_COMM_FINALIZING) return false;
    keep_error(body, KOLO_STOP_LOST, rank, why);
    atomic_store(&h->quiet, true);
    return true;
}

void kolo_lost_tell(kolo_body_t *body)
{
    if (atomic_exchange(&body->handle->quiet, false)) end_operations(body, KOLO_STOP_LOST);
}

/* Takes news on the progress thread, with locks of the out-of-band room held. While init runs, its own waits end by
 * the news. */
static void on_news(void *arg, kolo_news_kind_t kind, int rank, const char *why)
{
    static const uint32_t stops[] = {[KOLO_NEWS_LOST] = KOLO_STOP_LOST,
                                     [KOLO_NEWS_REVOKED] = KOLO_STOP_REVOKED,
                                     [KOLO_NEWS_PARTITION] = KOLO_STOP_PARTITION,
                                     [KOLO_NEWS_MISMATCH] = KOLO_STOP_MISMATCH};
    kolo_body_t *body = arg;
    kolo_comm_t h = body->handle;
    int ready = KOLO_COMM_READY;
    bool mild = kolo_comm_options.quiet && kind == KOLO_NEWS_LOST && kolo_news_gave_up(body->oob, rank);
    bool quiet = atomic_load(&h->quiet);
    if (mild && (quiet || end_is_quiet(body, rank, why))) return;
    if (mild && atomic_load(&h->state) == KOLO_COMM_READY && go_quiet(body, rank, why)) return;
    if (quiet || atomic_load(&h->state) == KOLO_COMM_READY) {
        keep_error(body, stops[kind], rank, why);
        atomic_store(&h->quiet, false);
        atomic_compare_exchange_strong(&h->state, &ready, KOLO_COMM_FAILED);
    }
    end_operations(body, stops[kind]);
}

/* ---- words for an operation that failed ---- */

static _Thread_local const char *purpose; /* of what the library does by operations of its own */

const char *kolo_call_set_purpose(const char *words)
{
    const char *before = purpose;
    purpose = words;
    return before;
}

static void describe_calls(uint64_t number, const kolo_call_t *calls, size_t count, char *buf, size_t bytes)
{
    const kolo_call_t *c = calls;
    unsigned long long size = (unsigned long long)c->count * c->elem;
    if (purpose)
        snprintf(buf, bytes, "%s", purpose);
    else if (c->kind == KOLO_CALL_COLL && number == KOLO_BOARD_NONE)
        snprintf(buf, bytes, "%s of %llu elements (%llu bytes)", kolo_coll_name(c->coll),
                 (unsigned long long)c->count, size);
    else if (c->kind == KOLO_CALL_COLL)
        snprintf(buf, bytes, "%s number %llu (%llu elements, %llu bytes)", kolo_coll_name(c->coll),
                 (unsigned long long)number, (unsigned long long)c->count, size);
    else if (c->kind == KOLO_CALL_SIGNAL || c->kind == KOLO_CALL_WAIT)
        snprintf(buf, bytes,
                 c->kind == KOLO_CALL_WAIT ? "a wait for signals of rank %u%s" : "a signal to rank %u%s", c->root,
                 count > 1 ? " and more" : "");
    else
        snprintf(buf, bytes, "a %s of %llu bytes %s rank %u%s",
                 c->kind == KOLO_CALL_PUT    ? "put"
                 : c->kind == KOLO_CALL_SEND ? "send"
                                             : "receive",
                 size, c->kind == KOLO_CALL_RECV ? "from" : "to", c->root, count > 1 ? " and more" : "");
}

/* Makes a clause of an aborted wait's error, and takes a cause away that `words` name already. */
static void put_clause(char *seen, size_t bytes, const char *words)
{
    const char *text = seen + sizeof ended - 1, *cause = strstr(words, " was lost: ");
    char clause[KOLO_ERROR_TEXT_BYTES], *again = cause ? strstr(seen, cause) : NULL;
    if (again && !strcmp(again, cause)) again[sizeof " was lost" - 1] = '\0';
    if (strncmp(seen, ended, sizeof ended - 1) != 0) return;
    const char *what = strstr(text, KOLO_WAIT_FOR);
    if (what)
        snprintf(clause, sizeof clause, "%.*s, waited for %s", (int)(what - text), text,
                 what + sizeof KOLO_WAIT_FOR - 1);
    else
        snprintf(clause, sizeof clause, "it waited for %s", text);
    snprintf(seen, bytes, "%s", clause);
}

/* Says what went wrong as the one who waited saw it: a wire names the neighbour that went, which may only have
 * given up. */
static void say(kolo_body_t *body, kolo_status_t status, const kolo_call_t *calls, size_t count)
{
    char why[WORDS_BYTES] = "", seen[KOLO_ERROR_TEXT_BYTES], doing[128], words[WORDS_BYTES];
    uint32_t stop = atomic_load(&body->stop.reason);
    snprintf(seen, sizeof seen, "%s", kolo_error_text());
    int rank = ask_why(body, stop ? 0 : FIRST_LOST_MS, why, sizeof why);
    /* A hierarchical one has no number for a part of a call. */
    describe_calls(body->levels.inside ? KOLO_BOARD_NONE : body->track.operation - 1, calls, count, doing,
                   sizeof doing);
    stop = atomic_load(&body->stop.reason);
    if (!stop || stop == KOLO_STOP_ABORT) {
        kolo_fail(status, "%s: %.700s", doing, seen);
        return;
    }
    put_words(body, stop, rank, why, words, sizeof words);
    put_clause(seen, sizeof seen, words);
    kolo_fail(status_of(stop), "%s; %s was under way: %.400s", words, doing, seen);
}

/* Adds what this rank was in itself: two ranks differ, of which it may be neither. */
static void add_own(kolo_body_t *body, const kolo_call_t *call)
{
    char words[160], seen[KOLO_ERROR_TEXT_BYTES];
    kolo_signature_print(kolo_mismatch_word(call), words, sizeof words);
    snprintf(seen, sizeof seen, "%s", kolo_error_text());
    if (!strstr(seen, words)) kolo_fail(KOLO_ERR_MISMATCH, "%.800s; rank %d is in %s", seen, body->rank, words);
}

kolo_status_t kolo_body_fail_operation(kolo_body_t *body, kolo_status_t status, const kolo_call_t *calls,
                                       size_t count)
{
    kolo_lost_tell(body); /* whoever has gone quietly is the first cause */
    uint32_t stop = atomic_load(&body->stop.reason);
    bool news = stop > KOLO_STOP_ABORT && !atomic_load(&body->stop.abort);
    if (status == KOLO_ERR_REMOTE || (status == KOLO_ERR_ABORTED && news)) {
        say(body, status, calls, count);
        stop = atomic_load(&body->stop.reason);
        if (stop > KOLO_STOP_ABORT) status = status_of(stop);
    }
    if (status == KOLO_ERR_MISMATCH && atomic_load(&body->stop.reason) == KOLO_STOP_MISMATCH) add_own(body, calls);
    if (status == KOLO_ERR_TIMEOUT) kolo_ask_around_time_out(body);
    kolo_fail_prefix(status, "%s rank %d: ", body->name, body->rank);
    return kolo_body_fail(body, status);
}

/* Returns what ended a wait for this rank's own operations, if that was one of them: it ran out of time. */
static kolo_status_t earlier_failure(kolo_body_t *body, kolo_status_t status, const char *awaited)
{
    char text[KOLO_ERROR_TEXT_BYTES], own[KOLO_ERROR_TEXT_BYTES];
    size_t n = (size_t)snprintf(own, sizeof own, "%s rank %d: ", body->name, body->rank);
    kolo_status_t error = kolo_handle_error(body->handle, text, sizeof text);
    if (error == KOLO_OK) return kolo_fail(status, "aborted; waited for %s", awaited);
    return kolo_fail(error, "%.900s; waited for %s", text + (strncmp(text, own, n) ? 0 : n), awaited);
}

kolo_status_t kolo_lost_ends(kolo_body_t *body, kolo_status_t status)
{
    char why[WORDS_BYTES] = "", words[WORDS_BYTES], seen[300];
    uint32_t stop = atomic_load(&body->stop.reason);
    if (status != KOLO_ERR_ABORTED || atomic_load(&body->stop.abort)) return status;
    const char *text = kolo_error_text();
    if (!strncmp(text, ended, sizeof ended - 1)) text += sizeof ended - 1;
    snprintf(seen, sizeof seen, "%.*s", (int)sizeof seen - 1, text);
    if (stop <= KOLO_STOP_ABORT) return earlier_failure(body, status, seen);
    int rank = ask_why(body, 0, why, sizeof why);
    put_words(body, stop, rank, why, words, sizeof words);
    return kolo_fail(status_of(stop), "%s; waited for %s", words, seen);
}

/* Adds to the words of a loss that came between two operations the one that it kept from running. */
void kolo_lost_refused(kolo_body_t *body, const kolo_call_t *calls, size_t count)
{
    kolo_comm_t h = body->handle;
    char doing[128];
    bool runs = body->gpu.exec && body->gpu.exec->by_host; /* beside this, on a thread that counts */
    describe_calls(runs ? KOLO_BOARD_NONE : body->track.operation, calls, count, doing, sizeof doing);
    pthread_mutex_lock(&h->error_lock);
    size_t n = strlen(h->error_text);
    if (h->error_is_news) snprintf(h->error_text + n, sizeof h->error_text - n, "; %s was to be next", doing);
    h->error_is_news = false;
    pthread_mutex_unlock(&h->error_lock);
}

/* ---- start ---- */

/* Watches the processes of neighbours on this host; their pids say nothing in another pid namespace, and the hash
 * differs. */
static void watch_processes(kolo_body_t *body)
{
    const kolo_member_t *m = &body->member;
    const kolo_peer_card_t *mine = &m->peers[body->rank];
    for (int r = 0; r < body->nranks; r++) {
        const kolo_peer_card_t *card = &m->peers[r];
        if (card->host_hash != mine->host_hash || card->process_hash == mine->process_hash) continue;
        if (!kolo_oob_connected(body->oob, r)) continue;
        if (kolo_member_process_hash(card->host_hash, card->pid) != card->process_hash) continue;
        if (kolo_pidwatch_add(body->oob, r, card->pid) != KOLO_OK) /* closed connections tell as well */
            kolo_debug("comm", "%s rank %d: %s", body->name, body->rank, kolo_error_text());
    }
    kolo_error_clear();
}

kolo_status_t kolo_lost_watch(kolo_body_t *body)
{
    const kolo_member_t *m = &body->member;
    kolo_status_t status = KOLO_OK;
    if (body->nranks > 1 && m->nnodes > 1) {
        bool *remote = calloc((size_t)body->nranks, sizeof *remote);
        if (!remote) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for heartbeats of %d ranks", body->nranks);
        for (int r = 0; r < body->nranks; r++) remote[r] = m->node_of[r] != m->my_node;
        status = kolo_beat_start(body->oob, remote);
        free(remote);
    }
    watch_processes(body);
    kolo_news_set_handler(body->oob, on_news, body);
    kolo_inherit_set_who(body->oob, who, body);
    return status;
}

/* Counts what came before READY was set, or at the same moment, too. */
void kolo_lost_started(kolo_body_t *body)
{
    char why[WORDS_BYTES] = "", words[WORDS_BYTES];
    uint32_t stop = atomic_load(&body->stop.reason);
    if (stop <= KOLO_STOP_ABORT || atomic_load(&body->handle->state) != KOLO_COMM_READY) return;
    int rank = ask_why(body, 0, why, sizeof why);
    put_words(body, stop, rank, why, words, sizeof words);
    kolo_fail(status_of(stop), "%s rank %d: %s", body->name, body->rank, words);
    kolo_body_fail(body, status_of(stop));
}
