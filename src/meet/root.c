/* SPDX-License-Identifier: Apache-2.0
 *
 * The root of an id. It takes the check-ins of its share of the ranks, checks that they describe one job, and calls
 * each rank back with the address of the next rank as soon as it knows it, or with the reason why there is no job.
 * It runs on the progress thread only, and frees itself when every rank has its answer and all lifelines have
 * ended.
 *
 * Ranks are called back, instead of being answered on their check-in connection, so that a root can have more ranks
 * than descriptors. As far as these go it keeps the connections as lifelines (lifeline.c): a rank that dies or
 * gives up before the ring is closed ends the job for all at once, with an error that names it; so does a root that
 * dies.
 *
 * A root without callers ends after KOLO_ROOT_IDLE_MS. Its timer is made with it, so that it ends even if memory or
 * descriptors run out later.
 */
#include "meet/root.h"
#include "base/failpoint.h"
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CALLS_AT_ONCE 128
#define LINGER_MS     2000 /* how long a failed root tells ranks that come late */
#define LINGERS_MAX   10   /* ... and goes on while ranks have not been told */

static pthread_mutex_t roots_lock = PTHREAD_MUTEX_INITIALIZER;
static root_t *roots;

static void root_fail(root_t *root, kolo_status_t status, const char *fmt, ...) KOLO_PRINTF(3, 4);

static void root_timer(void *arg);

/* ---- end ---- */

static void calls_free(call_t *call, kolo_progress_t *progress)
{
    for (call_t *next; call != NULL; call = next) {
        next = call->next;
        kolo_dial_cancel(progress, &call->dial);
        free(call);
    }
}

/* The last word on all lifelines; NULL: none. */
static void root_close_lines(root_t *root, kolo_status_t status, const char *text)
{
    for (int i = 0; root->entries != NULL && i < root->count; i++) {
        kolo_lifeline_close(root->entries[i].line, status, text);
        root->entries[i].line = NULL;
    }
}

/* Every rank knows its next one. */
static bool root_told_all(const root_t *root)
{
    return root->failure == KOLO_OK && root->count > 0 && root->told == root->count;
}

/* On the progress thread; the root is no longer in the list. */
static void root_free(root_t *root)
{
    kolo_progress_t *progress = root->progress;
    root_close_lines(root, root_told_all(root) ? KOLO_OK : KOLO_ERR_REMOTE, root_told_all(root) ? "" : NULL);
    calls_free(root->waiting, progress);
    calls_free(root->active, progress);
    kolo_timer_cancel(root->timer);
    kolo_listener_close(root->listener);
    kolo_auth_wipe(&root->id, sizeof(root->id));
    free(root->entries);
    free(root);
}

static bool root_unlist(root_t *root)
{
    bool found = false;
    pthread_mutex_lock(&roots_lock);
    for (root_t **at = &roots; *at != NULL; at = &(*at)->next)
        if (*at == root) {
            *at = root->next;
            found = true;
            break;
        }
    pthread_mutex_unlock(&roots_lock);
    return found;
}

/* Nobody needs the root any more. */
static void root_finish(root_t *root)
{
    kolo_progress_t *progress = root->progress;
    kolo_debug("oob", "the root has told its %d ranks and leaves", root->told);
    if (!root_unlist(root)) return; /* kolo_oob_stop_roots() is about to free it */
    root_close_lines(root, root->failure, root->failure_text);
    root_free(root);
    kolo_progress_put(progress);
}

static void root_free_call(void *arg)
{
    root_free(arg);
}

/* All have been told and are through, as far as they have lifelines: one that gives up while the ring is being
 * closed still says why, and the others hear it. */
static void root_finish_if_done(root_t *root)
{
    bool waits = false;
    for (int i = 0; root_told_all(root) && !waits && i < root->count; i++) waits = root->entries[i].line != NULL;
    if (root_told_all(root) && !waits) root_finish(root);
}

typedef struct {
    const uint8_t *secret;
    kolo_status_t status;
    const char *text;
} dismissal_t;

/* On the progress thread, where alone roots are freed. */
static void dismiss_here(void *arg)
{
    const dismissal_t *d = arg;
    pthread_mutex_lock(&roots_lock);
    root_t *root = roots;
    while (root != NULL && memcmp(root->id.secret.bytes, d->secret, sizeof(root->id.secret.bytes)) != 0)
        root = root->next;
    pthread_mutex_unlock(&roots_lock);
    if (root != NULL) root_fail(root, d->status, "%s", d->text);
}

void kolo_oob_dismiss_root(const kolo_unique_id_t *id, kolo_status_t status, const char *text)
{
    kolo_id_t known;
    kolo_progress_t *progress;
    if (kolo_id_decode(id, &known) != NULL || kolo_progress_get(&progress) != KOLO_OK) return;
    dismissal_t d = {known.secret.bytes, status, text};
    kolo_progress_call(progress, dismiss_here, &d);
    kolo_progress_put(progress);
    kolo_auth_wipe(&known, sizeof(known));
}

void kolo_oob_stop_roots(void)
{
    for (;;) {
        pthread_mutex_lock(&roots_lock);
        root_t *root = roots;
        if (root != NULL) roots = root->next;
        pthread_mutex_unlock(&roots_lock);
        if (root == NULL) return;
        kolo_progress_t *progress = root->progress;
        kolo_progress_call(progress, root_free_call, root);
        kolo_progress_put(progress);
    }
}

/* ---- calling back ---- */

static void root_call_more(root_t *root);

static void call_done(void *arg, kolo_status_t status, kolo_socket_t socket, const char *text)
{
    call_t *call = arg;
    root_t *root = call->root;
    for (call_t **at = &root->active; *at != NULL; at = &(*at)->next)
        if (*at == call) {
            *at = call->next;
            break;
        }
    root->nactive--;
    kolo_socket_leave(&socket); /* a reply's connection ends with it */
    bool counts = call->counts;
    int rank = call->rank;
    free(call);
    if (counts) {
        root->told++;
        if (status == KOLO_OK && rank >= root->first && rank < root->first + root->count)
            root->entries[rank - root->first].step = STEP_TOLD;
    }
    if (status != KOLO_OK && root->failure == KOLO_OK && counts)
        root_fail(root, KOLO_ERR_REMOTE, "rank %d checked in but cannot be called back: %s", rank, text);
    root_call_more(root);
    root_finish_if_done(root);
}

static void root_call_more(root_t *root)
{
    while (root->waiting != NULL && root->nactive < CALLS_AT_ONCE) {
        call_t *call = root->waiting;
        root->waiting = call->next;
        if (root->waiting == NULL) root->waiting_tail = &root->waiting;
        call->next = root->active;
        root->active = call;
        root->nactive++;
        kolo_dial_config_t config = {
            .address = call->address,
            .key = root->id.secret,
            .claim = {.purpose = KOLO_PURPOSE_REPLY, .from = KOLO_RANK_ROOT, .to = call->rank},
            .deadline_ns = root->deadline_ns + LINGER_MS * KOLO_NS_PER_MS,
            .done = call_done,
            .arg = call,
            .frame = call->reply,
            .frame_bytes = sizeof(call->reply)};
        snprintf(config.who, sizeof(config.who), "rank %d", call->rank);
        if (kolo_dial_start(root->progress, &config, &call->dial) != KOLO_OK) {
            int rank = call->rank;
            bool counts = call->counts;
            kolo_error("oob", "the root cannot call rank %d: %s", rank, kolo_error_text());
            root->active = call->next;
            root->nactive--;
            free(call);
            if (counts) root_fail(root, KOLO_ERR_REMOTE, "the root cannot call rank %d", rank);
        }
    }
}

static void root_call(root_t *root, int rank, const kolo_address_t *address, bool counts, const kolo_reply_t *reply)
{
    call_t *call = calloc(1, sizeof(*call));
    KOLO_FAIL_POINT("oob.root.reply");
    if (call == NULL) {
        kolo_error("oob", "the root has no memory to call rank %d", rank);
        if (counts) root_fail(root, KOLO_ERR_NO_MEMORY, "the root has no memory to call rank %d", rank);
        return;
    }
    call->root = root;
    call->rank = rank;
    call->counts = counts;
    call->address = *address;
    kolo_reply_encode(reply, call->reply);
    *root->waiting_tail = call;
    root->waiting_tail = &call->next;
    root_call_more(root);
}

static void root_tell_failure(root_t *root, int rank, const kolo_address_t *address, bool counts)
{
    kolo_reply_t reply = {.status = root->failure};
    snprintf(reply.text, sizeof(reply.text), "%s", root->failure_text);
    root_call(root, rank, address, counts, &reply);
}

/* The job cannot come about: every rank that has checked in hears why, and those that come within LINGER_MS. */
static void root_fail(root_t *root, kolo_status_t status, const char *fmt, ...)
{
    va_list args;
    if (root->failure != KOLO_OK) return;
    root->failure = status;
    va_start(args, fmt);
    vsnprintf(root->failure_text, sizeof(root->failure_text), fmt, args);
    va_end(args);
    kolo_info("oob", "root: %s", root->failure_text);
    for (int i = 0; i < root->count; i++) {
        entry_t *entry = &root->entries[i];
        bool tells = entry->step >= STEP_CHECKED_IN && entry->line == NULL; /* also if it closes the ring already */
        if (tells) root_tell_failure(root, root->first + i, &entry->root_only, entry->step == STEP_CHECKED_IN);
    }
    root_close_lines(root, status, root->failure_text);
    kolo_timer_restart(root->timer, LINGER_MS);
}

/* The other end of a rank's lifeline, on the progress thread. */
static void root_line_ended(void *arg, int rank, kolo_status_t status, const char *text)
{
    root_t *root = arg;
    entry_t *entry = &root->entries[rank - root->first];
    char at[KOLO_ADDRESS_TEXT_BYTES];
    kolo_lifeline_close(entry->line, KOLO_OK, NULL);
    entry->line = NULL;
    if (status == KOLO_OK) {
        root_finish_if_done(root);
        return;
    }
    if (root->failure != KOLO_OK) return;
    kolo_address_print(&entry->peer, at);
    if (text[0] == '\0') {
        entry->step = STEP_PROVEN; /* there is nobody to be told */
        root_fail(root, KOLO_ERR_REMOTE,
                  "rank %d, at %s, died after it had checked in: its connection to the root was closed",
                  kolo_root_shown(root, rank), at);
    } else {
        root_fail(root, status == KOLO_ERR_REVOKED ? status : KOLO_ERR_REMOTE,
                  "rank %d, at %s, gave up after it had checked in: %s", kolo_root_shown(root, rank), at, text);
    }
}

static void root_tell_next(root_t *root, int rank)
{
    int next = (rank + 1) % root->nranks, i = rank - root->first;
    bool mine = next >= root->first && next < root->first + root->count;
    kolo_reply_t reply = {.status = KOLO_OK, .next_rank = next};
    if (root->entries[i].step != STEP_CHECKED_IN) return;
    if (mine && root->entries[next - root->first].step < STEP_CHECKED_IN) return;
    if (!mine && !root->neighbour_seen) return;
    reply.next = mine ? root->entries[next - root->first].peer : root->neighbour;
    root_call(root, rank, &root->entries[i].root_only, true, &reply);
}

/* ---- time-out ---- */

static void root_time_out(root_t *root)
{
    char text[400];
    kolo_root_missing(root, text, sizeof(text));
    root_fail(root, KOLO_ERR_TIMEOUT,
              "%d of the root's %d ranks checked in; missing: %s%s%s. Look at their logs: not started, "
              "another id, or the root's address is not reachable for them",
              root->seen, root->count, text, root->refused > 0 ? "; refused callers: " : "",
              root->refused > 0 ? root->refused_text : "");
}

static void root_timer(void *arg)
{
    root_t *root = arg;
    if (root->failure != KOLO_OK) {
        if (root->active == NULL || root->lingers++ >= LINGERS_MAX)
            root_finish(root);
        else
            kolo_timer_restart(root->timer, LINGER_MS); /* some have not been told yet */
    } else if (root_told_all(root)) {
        root_finish(root); /* whoever is not through tells of that itself */
    } else if (root->nranks > 0) {
        root_time_out(root);
    } else if (kolo_meet_values.root_idle_ms == 0) {
        kolo_timer_restart(root->timer, INT32_MAX);
    } else {
        kolo_info("oob", "nobody has called the root for KOLO_ROOT_IDLE_MS: it ends");
        root_finish(root);
    }
}

/* The root speaks before the first rank gives up by itself. */
static void root_set_deadline(root_t *root, int timeout_ms)
{
    int64_t left_ms = timeout_ms - KOLO_MIN(timeout_ms / 5, 4000);
    uint64_t deadline = kolo_now_ns() + (uint64_t)left_ms * KOLO_NS_PER_MS;
    if (timeout_ms == 0 || (root->deadline_ns != 0 && root->deadline_ns <= deadline)) return;
    root->deadline_ns = deadline;
    kolo_timer_restart(root->timer, left_ms);
}

/* ---- check-ins ---- */

static kolo_status_t root_adopt(root_t *root, const kolo_checkin_t *c)
{
    int first, count;
    kolo_root_share(c->nranks, c->nids, c->id_index, &first, &count);
    root->entries = calloc((size_t)count, sizeof(*root->entries));
    if (root->entries == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for %d ranks", count);
    root->first = first;
    root->count = count;
    root->nranks = c->nranks;
    root->nids = c->nids;
    root->index = c->id_index;
    root->first_rank = c->rank;
    return KOLO_OK;
}

/* NULL: it fits to the first check-in. */
static const char *root_mismatch(const root_t *root, const kolo_checkin_t *c, char *buf, size_t bytes)
{
    if (c->nranks != root->nranks)
        snprintf(buf, bytes, "rank %d says there are %d ranks, rank %d says %d", c->rank, c->nranks,
                 root->first_rank, root->nranks);
    else if (c->nids != root->nids || c->id_index != root->index)
        snprintf(buf, bytes,
                 "rank %d has %d ids and calls this root as number %d, rank %d has %d ids and number %d: "
                 "all ranks need the same list of ids",
                 c->rank, c->nids, c->id_index, root->first_rank, root->nids, root->index);
    else
        return NULL;
    return buf;
}

static void root_neighbour(root_t *root, const kolo_checkin_t *c)
{
    int expected = (root->first + root->count) % root->nranks;
    if (root->neighbour_seen && memcmp(&root->neighbour, &c->peer, sizeof(c->peer)) == 0) return; /* repeated */
    if (c->rank != expected || root->neighbour_seen) {
        root_fail(root, KOLO_ERR_MISMATCH,
                  "rank %d checked in as the neighbour of a share that ends before rank %d%s", c->rank, expected,
                  root->neighbour_seen ? " (twice)" : "");
        return;
    }
    root->neighbour_seen = true;
    root->neighbour = c->peer;
    root_tell_next(root, root->first + root->count - 1);
}

static void root_rank(root_t *root, const kolo_checkin_t *c)
{
    entry_t *entry = &root->entries[c->rank - root->first];
    char a[KOLO_ADDRESS_TEXT_BYTES], b[KOLO_ADDRESS_TEXT_BYTES];
    if (entry->step >= STEP_CHECKED_IN && memcmp(&entry->peer, &c->peer, sizeof(c->peer)) == 0)
        return; /* repeated */
    if (entry->step >= STEP_CHECKED_IN) {
        bool complete = root->seen == root->count;
        if (complete) { /* the job is fine; this one does not belong to it */
            kolo_reply_t reply = {.status = KOLO_ERR_INVALID_USAGE};
            snprintf(reply.text, sizeof(reply.text),
                     "all %d ranks of this id have checked in already, rank %d from "
                     "%s: an id is good for one job, make a new one",
                     root->nranks, c->rank, kolo_address_print(&entry->peer, a));
            root_call(root, c->rank, &c->root_only, false, &reply);
            return;
        }
        root_fail(root, KOLO_ERR_MISMATCH,
                  "rank %d checked in twice, from %s and from %s: two processes have the same "
                  "rank, or the id is used for two jobs",
                  kolo_root_shown(root, c->rank), kolo_address_print(&entry->peer, a),
                  kolo_address_print(&c->peer, b));
        root_tell_failure(root, c->rank, &c->root_only, false);
        return;
    }
    entry->peer = c->peer;
    entry->root_only = c->root_only;
    entry->step = STEP_CHECKED_IN;
    root->seen++;
    if (root->failure != KOLO_OK) {
        root_tell_failure(root, c->rank, &c->root_only, true);
        return;
    }
    root_tell_next(root, c->rank);
    int before = (c->rank - 1 + root->nranks) % root->nranks;
    if (before != c->rank && before >= root->first && before < root->first + root->count)
        root_tell_next(root, before);
}

static void root_checkin(root_t *root, const kolo_checkin_t *c)
{
    char text[256];
    KOLO_FAIL_POINT("oob.root.checkin");
    if (root->nranks == 0 && root_adopt(root, c) != KOLO_OK) {
        root_fail(root, KOLO_ERR_NO_MEMORY, "the root: %s", kolo_error_text());
        return;
    }
    root_set_deadline(root, c->timeout_ms);
    const char *mismatch = root_mismatch(root, c, text, sizeof(text));
    bool mine = c->neighbour || (c->rank >= root->first && c->rank < root->first + root->count);
    if (mismatch == NULL && !mine) {
        snprintf(text, sizeof(text), "rank %d called the root of ranks %d-%d", c->rank, root->first,
                 root->first + root->count - 1);
        mismatch = text;
    }
    if (mismatch != NULL) {
        root_fail(root, KOLO_ERR_MISMATCH, "%s", mismatch);
        if (!c->neighbour) root_tell_failure(root, c->rank, &c->root_only, false);
        return;
    }
    if (c->neighbour)
        root_neighbour(root, c);
    else
        root_rank(root, c);
}

/* ---- listener ---- */

static kolo_verdict_t root_admit(void *owner, const kolo_claim_t *claim, size_t *frame_bytes)
{
    root_t *root = owner;
    if (claim->purpose != KOLO_PURPOSE_CHECKIN || claim->to != KOLO_RANK_ROOT) return KOLO_VERDICT_REFUSED;
    if (!kolo_seal_fits(claim->security)) {
        root_fail(root, KOLO_ERR_MISMATCH,
                  "rank %d has KOLO_TCP_SECURITY=%s, and the root, which another rank has started, %s; all ranks "
                  "need the "
                  "same value",
                  kolo_root_shown(root, claim->from), kolo_seal_mode_name(claim->security),
                  kolo_seal_mode_name(kolo_seal_offer()));
        return KOLO_VERDICT_REFUSED;
    }
    int i = claim->from - root->first;
    if (root->entries != NULL && i >= 0 && i < root->count && root->entries[i].step == STEP_NEVER)
        root->entries[i].step = STEP_PROVEN;
    *frame_bytes = KOLO_CHECKIN_BYTES;
    return KOLO_VERDICT_OK;
}

static void root_ended_unheard(void *arg, int rank, kolo_status_t status, const char *text)
{
    (void)arg, (void)rank, (void)status, (void)text;
}

/* The job has failed, by this caller or before it came. It is called back, too, but that may be too late: this
 * process may be about to end, having heard of the failure first. */
static void root_last_word(root_t *root, int rank, kolo_socket_t socket)
{
    static const uint8_t kept = KOLO_FRAME_KEPT;
    kolo_lifeline_t *line = NULL;
    if (send(socket.fd, &kept, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1)
        kolo_socket_leave(&socket);
    else if (kolo_lifeline_open(root->progress, socket, rank, root_ended_unheard, NULL, &line) == KOLO_OK)
        kolo_lifeline_close(line, root->failure, root->failure_text);
}

/* Acknowledges the check-in, and keeps the connection of a rank that is to be told more. */
static void root_acknowledge(root_t *root, const kolo_checkin_t *c, kolo_socket_t socket)
{
    static const uint8_t acks[] = {KOLO_FRAME_ACK, KOLO_FRAME_KEPT};
    int i = c->rank - root->first;
    if (root->failure != KOLO_OK && !c->neighbour && kolo_lifeline_room()) {
        root_last_word(root, c->rank, socket);
        return;
    }
    bool mine = !c->neighbour && root->failure == KOLO_OK && i >= 0 && i < root->count;
    entry_t *entry = mine ? &root->entries[i] : NULL;
    bool keeps =
        mine && entry->line == NULL && memcmp(&entry->peer, &c->peer, sizeof(c->peer)) == 0 && kolo_lifeline_room();
    if (send(socket.fd, &acks[keeps], 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1 || !keeps)
        kolo_socket_leave(&socket);
    else if (kolo_lifeline_open(root->progress, socket, c->rank, root_line_ended, root, &entry->line) != KOLO_OK)
        root_fail(root, KOLO_ERR_NO_MEMORY, "the root: %s", kolo_error_text());
}

static void root_accepted(void *owner, const kolo_claim_t *claim, kolo_socket_t socket, const uint8_t *frame)
{
    kolo_checkin_t checkin;
    const char *wrong = kolo_checkin_decode(frame, KOLO_CHECKIN_BYTES, &checkin);
    if (wrong == NULL && checkin.rank != claim->from) wrong = "a check-in for another rank than its caller's";
    if (wrong != NULL) {
        kolo_oob_count(KOLO_COUNT_FRAME);
        kolo_warn("oob", "the root refused %s (claimed rank %d)", wrong, claim->from);
        kolo_socket_leave(&socket);
        return;
    }
    root_checkin(owner, &checkin);
    root_acknowledge(owner, &checkin, socket);
}

static void root_refused(void *owner, const kolo_address_t *caller, kolo_count_t why)
{
    root_t *root = owner;
    char buf[KOLO_ADDRESS_TEXT_BYTES];
    root->refused++;
    snprintf(root->refused_text, sizeof(root->refused_text), "%llu, the last from %s (%s)",
             (unsigned long long)root->refused, kolo_address_print(caller, buf),
             why == KOLO_COUNT_AUTH ? "wrong secret" : "not one of ours");
}

static const kolo_listener_ops_t root_ops = {
    .admit = root_admit, .accepted = root_accepted, .refused = root_refused, .keeps = true};

kolo_status_t kolo_root_start(kolo_id_t *id, bool *taken)
{
    kolo_progress_t *progress;
    char buf[KOLO_ADDRESS_TEXT_BYTES];
    *taken = false;
    KOLO_FAIL_POINT_TRY("oob.root.start");
    KOLO_TRY(kolo_progress_get(&progress));
    root_t *root = calloc(1, sizeof(*root));
    kolo_status_t status = root != NULL ? KOLO_OK : kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a root");
    if (status == KOLO_OK) {
        root->progress = progress;
        root->waiting_tail = &root->waiting;
        root->id = *id;
        int64_t idle_ms = kolo_meet_values.root_idle_ms;
        status = kolo_timer_add(progress, idle_ms > 0 ? idle_ms : INT32_MAX, root_timer, root, &root->timer);
    }
    if (status == KOLO_OK) {
        /* Listed before it can be called, so that it is always found by those who end it. */
        pthread_mutex_lock(&roots_lock);
        status =
            kolo_listener_open(progress, &id->address, &id->secret, &root_ops, root, id->fixed, &root->listener);
        if (status == KOLO_OK) {
            id->address = kolo_listener_address(root->listener);
            root->next = roots;
            roots = root;
            kolo_info("oob", "root listens on %s", kolo_address_print(&id->address, buf));
        }
        pthread_mutex_unlock(&roots_lock);
    }
    if (status != KOLO_OK) {
        *taken = status == KOLO_ERR_INVALID_USAGE;
        if (root != NULL) kolo_timer_cancel(root->timer);
        free(root);
        kolo_progress_put(progress);
    }
    return status;
}
