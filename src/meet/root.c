/* SPDX-License-Identifier: Apache-2.0
 *
 * The root of an id. It takes the check-ins of its share of the ranks, checks that they describe one job
 * (root_checkin.c), and calls each rank back with the address of the next rank as soon as it knows it, or with the
 * reason why there is no job (root_call.c). This file: how a root begins, fails and ends. It runs on the progress
 * thread only, and frees itself when every rank has its answer and all lifelines have ended.
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
#include "base/process.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINGERS_MAX 10 /* times KOLO_ROOT_LINGER_MS for ranks that have not been told yet */

static pthread_mutex_t roots_lock = PTHREAD_MUTEX_INITIALIZER;
KOLO_FORK_RENEWS(roots_lock)
static root_t *roots;

/* ---- the end ---- */

/* Closes all lifelines with a last word; NULL: none. */
static void root_close_lines(root_t *root, kolo_status_t status, const char *text)
{
    for (int i = 0; root->entries != NULL && i < root->count; i++) {
        kolo_lifeline_close(root->entries[i].line, status, text);
        root->entries[i].line = NULL;
    }
}

/* Tells whether every rank knows its next one. */
static bool root_told_all(const root_t *root)
{
    return root->failure == KOLO_OK && root->count > 0 && root->told == root->count;
}

/* Frees a root that is no longer in the list, on the progress thread. */
static void root_free(root_t *root)
{
    kolo_recorder_release(root->record);
    root_close_lines(root, root_told_all(root) ? KOLO_OK : KOLO_ERR_REMOTE, root_told_all(root) ? "" : NULL);
    kolo_root_free_calls(root);
    kolo_timer_cancel(root->timer);
    kolo_timer_cancel(root->news);
    kolo_watched_free(root->watched);
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

/* Finishes a root that nobody needs any more. */
static void root_finish(root_t *root)
{
    kolo_progress_t *progress = root->progress;
    kolo_debug("oob", "the root has told its %d ranks and leaves", root->told);
    if (!root_unlist(root)) return; /* kolo_root_stop_all() is about to free it */
    root_close_lines(root, root->failure, root->failure_text);
    root_free(root);
    kolo_progress_put(progress);
}

static void root_free_call(void *arg)
{
    root_free(arg);
}

/* Finishes once all have been told and are through, as far as they have lifelines: one that gives up while the ring
 * is being closed still says why, and the others hear it. */
void kolo_root_finish_if_done(root_t *root)
{
    bool waits = false;
    for (int i = 0; root_told_all(root) && !waits && i < root->count; i++) waits = root->entries[i].line != NULL;
    if (root_told_all(root) && !waits) root_finish(root);
}

/* What is to be done with the root of an id. */
typedef struct {
    const uint8_t *secret;
    kolo_status_t status; /* of a dismissal; KOLO_OK: this is none */
    const char *text;     /* of a dismissal, or the path of a file */
    const int *ranks;
    int count;
} errand_t;

/* Runs on the progress thread, where alone roots are freed. */
static void do_here(void *arg)
{
    const errand_t *e = arg;
    pthread_mutex_lock(&roots_lock);
    root_t *root = roots;
    while (root != NULL && memcmp(root->id.secret.bytes, e->secret, sizeof(root->id.secret.bytes)) != 0)
        root = root->next;
    pthread_mutex_unlock(&roots_lock);
    if (root == NULL) return;
    if (e->status != KOLO_OK)
        kolo_root_fail(root, e->status, "%s", e->text);
    else if (root->watched == NULL && kolo_watched_new(root, e->text, e->ranks, e->count) != KOLO_OK)
        kolo_warn("oob", "the root does not hear of ranks that have ended: %s", kolo_error_text());
}

static void call_root(const kolo_unique_id_t *id, errand_t *errand)
{
    kolo_id_t known;
    kolo_progress_t *progress;
    if (kolo_id_decode(id, &known) != NULL || kolo_progress_get(&progress) != KOLO_OK) return;
    errand->secret = known.secret.bytes;
    kolo_progress_call(progress, do_here, errand);
    kolo_progress_put(progress);
    kolo_auth_wipe(&known, sizeof(known));
}

void kolo_root_dismiss(const kolo_unique_id_t *id, kolo_status_t status, const char *text)
{
    call_root(id, &(errand_t){.status = status, .text = text});
}

void kolo_root_watch_ended(const kolo_unique_id_t *id, const char *path, const int *ranks, int count)
{
    call_root(id, &(errand_t){.text = path, .ranks = ranks, .count = count});
}

void kolo_root_stop_all(void)
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

/* ---- failures ---- */

void kolo_root_fail(root_t *root, kolo_status_t status, const char *fmt, ...)
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
        if (tells) kolo_root_tell_failure(root, root->first + i, &entry->root_only, entry->step == STEP_CHECKED_IN);
    }
    root_close_lines(root, status, root->failure_text);
    kolo_timer_restart(root->timer, KOLO_ROOT_LINGER_MS);
}

/* Hears the other end of a rank's lifeline, on the progress thread. */
void kolo_root_line_ended(void *arg, int rank, kolo_status_t status, const char *text)
{
    root_t *root = arg;
    entry_t *entry = &root->entries[rank - root->first];
    char at[KOLO_ADDRESS_TEXT_BYTES];
    if (status == KOLO_IN_PROGRESS) return; /* ranks have no news for a root */
    kolo_lifeline_close(entry->line, KOLO_OK, NULL);
    entry->line = NULL;
    if (status == KOLO_OK) {
        kolo_root_finish_if_done(root);
        return;
    }
    if (root->failure != KOLO_OK) return;
    kolo_address_print(&entry->peer, at);
    if (text[0] == '\0') {
        entry->step = STEP_PROVEN; /* there is nobody to be told */
        kolo_root_fail(root, KOLO_ERR_REMOTE,
                       "rank %d, at %s, died after it had checked in: its connection to the root was closed",
                       kolo_root_shown(root, rank), at);
    } else {
        kolo_root_fail(root, status == KOLO_ERR_REVOKED ? status : KOLO_ERR_REMOTE,
                       "rank %d, at %s, gave up after it had checked in: %s", kolo_root_shown(root, rank), at,
                       text);
    }
}

/* ---- time-out ---- */

static void root_time_out(root_t *root)
{
    char text[600];
    kolo_root_sentence(root, text, sizeof(text));
    kolo_root_fail(root, KOLO_ERR_TIMEOUT,
                   "%s%s%s. Look at their logs: not started, "
                   "another id, or the root's address is not reachable for them",
                   text, root->refused > 0 ? "; refused callers: " : "",
                   root->refused > 0 ? root->refused_text : "");
}

static void root_timer(void *arg)
{
    root_t *root = arg;
    if (root->failure != KOLO_OK) {
        if (root->active == NULL || root->lingers++ >= LINGERS_MAX)
            root_finish(root);
        else
            kolo_timer_restart(root->timer, KOLO_ROOT_LINGER_MS); /* some have not been told yet */
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

kolo_status_t kolo_root_start(kolo_id_t *id, bool *taken)
{
    kolo_progress_t *progress;
    char buf[KOLO_ADDRESS_TEXT_BYTES];
    int err = 0;
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
        kolo_address_t at = id->address;
        if (id->wide) kolo_address_widen(&at);
        const kolo_listener_config_t config = {&at, &id->secret, &kolo_root_ops, root, id->fixed};
        status = kolo_listener_open(progress, &config, &root->listener);
        err = errno;
        if (status == KOLO_OK) {
            at = kolo_listener_address(root->listener);
            kolo_address_set_port(&id->address, kolo_address_port(&at));
            if (!id->wide) id->address = at;
            root->next = roots;
            roots = root;
            kolo_info("oob", "root listens on %s", kolo_address_print(&id->address, buf));
        }
        pthread_mutex_unlock(&roots_lock);
    }
    if (status != KOLO_OK) {
        *taken = status == KOLO_ERR_INVALID_USAGE;
        if (root != NULL) kolo_timer_cancel(root->timer);
        if (root != NULL) kolo_auth_wipe(&root->id, sizeof(root->id));
        free(root);
        kolo_progress_put(progress);
        errno = err;
    }
    return status;
}
