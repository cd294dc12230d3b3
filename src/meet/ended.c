/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes that have ended before they met the others. Nobody can miss a rank that was never heard of; its
 * launcher saw it end, though, and kolorun writes that into a file on each host: a line for each rank, or range of
 * ranks, that has ended well ("3", "5-7"). Who waits for a rank looks there now and then. What is known to have
 * ended is given a moment, for a shell may leave the program behind that is to come.
 */
#include "base/file/fds.h"
#include "base/file/private.h"
#include "meet/root.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_MS   250
#define STAYS_MS  2000
#define BYTES_MAX 65536

/* Reads the file; NULL: there is none. */
static char *read_text(const char *path)
{
    char why[4096 + 200];
    int fd = kolo_private_open(path, why, sizeof why);
    char *text = fd < 0 ? NULL : malloc(BYTES_MAX);
    size_t at = 0;
    ssize_t n = 1;
    while (text != NULL && n > 0 && at < BYTES_MAX - 1) {
        n = read(fd, text + at, BYTES_MAX - 1 - at);
        at += n > 0 ? (size_t)n : 0;
    }
    if (text != NULL) text[at] = '\0';
    if (fd >= 0) kolo_fd_close(fd);
    return text;
}

static bool text_has(const char *at, int rank)
{
    while (*at != '\0') {
        char *end;
        long from = strtol(at, &end, 10), to = from;
        if (end == at) return false;
        if (*end == '-') to = strtol(at = end + 1, &end, 10);
        if (end == at || *end != '\n') return false;
        if (rank >= from && rank <= to) return true;
        at = end + 1;
    }
    return false;
}

bool kolo_ended_wait(kolo_ended_t *ended, int rank)
{
    uint64_t now = kolo_now_ns();
    if (ended->path == NULL || now < ended->look_ns) return false;
    ended->look_ns = now + LOOK_MS * KOLO_NS_PER_MS;
    char *text = read_text(ended->path);
    bool has = text != NULL && text_has(text, rank);
    free(text);
    if (!has) ended->since_ns = 0;
    if (has && ended->since_ns == 0) ended->since_ns = now;
    return has && now >= ended->since_ns + STAYS_MS * KOLO_NS_PER_MS;
}

/* ---- ranks that a root misses ---- */

struct kolo_watched {
    kolo_timer_t *timer;
    uint64_t since_ns;
    int missed; /* the first of those that the file had; -1: none */
    int count, *ranks;
    char path[];
};

/* Returns the rank in the job of the first that has not checked in and has ended; -1: none. */
static int find_ended(const root_t *root, const char *text)
{
    const kolo_watched_t *w = root->watched;
    for (int i = 0; i < root->count && root->first + i < w->count; i++) {
        int rank = w->ranks[root->first + i];
        if (root->entries[i].step < STEP_CHECKED_IN && text_has(text, rank)) return rank;
    }
    return -1;
}

static void look(void *arg)
{
    root_t *root = arg;
    kolo_watched_t *w = root->watched;
    if (root->failure != KOLO_OK || (root->nranks > 0 && root->seen == root->count)) return;
    char *text = root->nranks > 0 ? read_text(w->path) : NULL;
    int rank = text != NULL ? find_ended(root, text) : -1;
    free(text);
    if (rank != w->missed) w->since_ns = kolo_now_ns();
    w->missed = rank;
    if (rank < 0 || kolo_now_ns() < w->since_ns + STAYS_MS * KOLO_NS_PER_MS)
        kolo_timer_restart(w->timer, LOOK_MS);
    else
        kolo_root_fail(root, KOLO_ERR_REMOTE, KOLO_ENDED_WORDS "; %d of %d ranks have called", rank, root->seen,
                       root->count);
}

kolo_status_t kolo_watched_new(root_t *root, const char *path, const int *ranks, int count)
{
    kolo_watched_t *w = calloc(1, sizeof *w + strlen(path) + 1);
    int *all = calloc((size_t)count, sizeof *all);
    kolo_status_t status =
        w != NULL && all != NULL ? KOLO_OK : kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for %d ranks", count);
    if (status == KOLO_OK) status = kolo_timer_add(root->progress, LOOK_MS, look, root, &w->timer);
    if (status != KOLO_OK) {
        free(all);
        free(w);
        return status;
    }
    for (int i = 0; i < count; i++) all[i] = ranks != NULL ? ranks[i] : i;
    memcpy(w->path, path, strlen(path) + 1);
    w->ranks = all;
    w->count = count;
    w->missed = -1;
    root->watched = w;
    return KOLO_OK;
}

void kolo_watched_free(kolo_watched_t *w)
{
    if (w == NULL) return;
    kolo_timer_cancel(w->timer);
    free(w->ranks);
    free(w);
}
