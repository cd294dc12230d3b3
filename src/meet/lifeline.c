/* SPDX-License-Identifier: Apache-2.0
 *
 * Lifelines: the connection of a check-in is kept until the bootstrap is over, so that a rank knows at once when
 * its root dies, and the root when a rank does. What travels on it is each end's last word: one byte, all is well,
 * or a reply with the reason why not; and before that, replies with news of whom the root waits for. An end without
 * a word is a death. (The root's answers come by calls of its own, because there may be more ranks than descriptors
 * for lifelines.)
 */
#include "meet/lifeline.h"

#include "base/wait.h"
#include "link/link.h"
#include "meet/checkin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINES_MAX 4096 /* of one process, as far as its descriptors go */

struct kolo_lifeline {
    kolo_progress_t *progress;
    kolo_socket_t socket;
    int tag;
    kolo_watch_t *watch;
    kolo_lifeline_fn_t fn;
    void *arg;
    uint8_t *word; /* what has come of one */
    size_t got;
    bool stuck; /* only a part of the last news went out: nothing can follow it */
};

static _Atomic int nlines;

/* Passes on the last word. Who is told of it may close the line. */
static void line_last(kolo_lifeline_t *line, kolo_status_t status, const char *text)
{
    kolo_watch_del(line->watch);
    line->watch = NULL;
    line->fn(line->arg, line->tag, status, text);
}

/* Takes a reply that has come whole; returns whether more may come. */
static bool line_word(kolo_lifeline_t *line)
{
    kolo_reply_t word;
    line->got = 0;
    if (kolo_meet_reply_decode(line->word, KOLO_REPLY_BYTES, &word) != NULL || word.status == KOLO_OK)
        word = (kolo_reply_t){.status = KOLO_ERR_PROTOCOL, .text = "it sent bytes that are no word"};
    if (word.status != KOLO_IN_PROGRESS) {
        line_last(line, word.status, word.text);
        return false;
    }
    line->fn(line->arg, line->tag, KOLO_IN_PROGRESS, word.text);
    return true;
}

static void line_readable(void *arg, int fd, uint32_t events)
{
    kolo_lifeline_t *line = arg;
    (void)events;
    (void)fd;
    for (;;) {
        ssize_t n = kolo_socket_recv_bytes(&line->socket, line->word + line->got, KOLO_REPLY_BYTES - line->got);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (line->got != 1 || line->word[0] != KOLO_FRAME_ACK) return;
            line_last(line, KOLO_OK, "");
            return;
        }
        if (n <= 0) {
            bool fine = line->got == 1 && line->word[0] == KOLO_FRAME_ACK;
            line_last(line, fine ? KOLO_OK : KOLO_ERR_REMOTE, "");
            return;
        }
        line->got += (size_t)n;
        if (line->got == KOLO_REPLY_BYTES && !line_word(line)) return;
    }
}

bool kolo_lifeline_room(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
    return (rlim_t)atomic_load(&nlines) < KOLO_MIN(limit.rlim_cur / 4, (rlim_t)LINES_MAX);
}

kolo_status_t kolo_lifeline_open(kolo_progress_t *progress, kolo_socket_t socket, int tag, kolo_lifeline_fn_t fn,
                                 void *arg, kolo_lifeline_t **out)
{
    kolo_lifeline_t *line = calloc(1, sizeof(*line));
    kolo_status_t status = line != NULL ? KOLO_OK : kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a lifeline");
    if (status == KOLO_OK) {
        *line = (kolo_lifeline_t){.progress = progress, .socket = socket, .tag = tag, .fn = fn, .arg = arg};
        line->word = malloc(KOLO_REPLY_BYTES);
        if (line->word == NULL) status = kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a lifeline");
    }
    if (status == KOLO_OK) status = kolo_watch_add(progress, socket.fd, EPOLLIN, line_readable, line, &line->watch);
    if (status != KOLO_OK) {
        kolo_socket_leave(&socket);
        if (line != NULL) free(line->word);
        free(line);
        return status;
    }
    atomic_fetch_add(&nlines, 1);
    *out = line;
    return KOLO_OK;
}

void kolo_lifeline_tell(kolo_lifeline_t *line, const char *text)
{
    uint8_t bytes[KOLO_REPLY_BYTES];
    kolo_reply_t news = {.status = KOLO_IN_PROGRESS};
    if (line == NULL || line->stuck || kolo_socket_within(&line->socket)) return;
    snprintf(news.text, sizeof(news.text), "%s", text);
    kolo_meet_reply_encode(&news, bytes);
    ssize_t n = kolo_socket_send_bytes(&line->socket, bytes, sizeof(bytes));
    line->stuck = n > 0 && n < (ssize_t)sizeof(bytes);
}

typedef struct {
    kolo_lifeline_t *line;
    kolo_status_t status;
    const char *text;
} last_word_t;

static void close_here(void *arg)
{
    const last_word_t *last = arg;
    kolo_lifeline_t *line = last->line;
    uint8_t bytes[KOLO_REPLY_BYTES] = {KOLO_FRAME_ACK};
    kolo_reply_t word = {.status = last->status};
    size_t length = 1;
    if (last->status != KOLO_OK && last->text != NULL) {
        snprintf(word.text, sizeof(word.text), "%s", last->text);
        kolo_meet_reply_encode(&word, bytes);
        length = sizeof(bytes);
    }
    kolo_watch_del(line->watch);
    if (last->text != NULL && !line->stuck) {
        ssize_t n = kolo_socket_send_bytes(&line->socket, bytes, length);
        (void)n; /* who does not get it sees the end */
    }
    kolo_socket_leave(&line->socket);
    atomic_fetch_sub(&nlines, 1);
    free(line->word);
    free(line);
}

void kolo_lifeline_close(kolo_lifeline_t *line, kolo_status_t status, const char *text)
{
    last_word_t last = {line, status, text};
    if (line != NULL) kolo_progress_call(line->progress, close_here, &last);
}
