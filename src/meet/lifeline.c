/* SPDX-License-Identifier: Apache-2.0
 *
 * Lifelines: the connection of a check-in is kept until the bootstrap is over, so that a rank knows at once when
 * its root dies, and the root when a rank does. Nothing travels on it but each end's last word: one byte, all is
 * well, or a reply with the reason why not. An end without a word is a death. (The root's answers come by calls of
 * its own, because there may be more ranks than descriptors for lifelines.)
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
};

static _Atomic int nlines;

static void line_readable(void *arg, int fd, uint32_t events)
{
    kolo_lifeline_t *line = arg;
    uint8_t bytes[KOLO_REPLY_BYTES];
    kolo_reply_t word = {.status = KOLO_ERR_REMOTE};
    (void)events;
    (void)fd;
    ssize_t n = kolo_socket_recv_bytes(&line->socket, bytes, sizeof(bytes));
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    kolo_watch_del(line->watch); /* one word is all */
    line->watch = NULL;
    bool fine = n == 1 && bytes[0] == KOLO_FRAME_ACK;
    if (n == KOLO_REPLY_BYTES && kolo_meet_reply_decode(bytes, KOLO_REPLY_BYTES, &word) != NULL)
        word = (kolo_reply_t){.status = KOLO_ERR_PROTOCOL, .text = "it sent bytes that are no word"};
    line->fn(line->arg, line->tag,
             fine                     ? KOLO_OK
             : word.status == KOLO_OK ? KOLO_ERR_PROTOCOL
                                      : word.status,
             word.text);
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
        status = kolo_watch_add(progress, socket.fd, EPOLLIN, line_readable, line, &line->watch);
    }
    if (status != KOLO_OK) {
        kolo_socket_leave(&socket);
        free(line);
        return status;
    }
    atomic_fetch_add(&nlines, 1);
    *out = line;
    return KOLO_OK;
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
    if (last->text != NULL) {
        ssize_t n = kolo_socket_send_bytes(&line->socket, bytes, length);
        (void)n; /* who does not get it sees the end */
    }
    kolo_socket_leave(&line->socket);
    atomic_fetch_sub(&nlines, 1);
    free(line);
}

void kolo_lifeline_close(kolo_lifeline_t *line, kolo_status_t status, const char *text)
{
    last_word_t last = {line, status, text};
    if (line != NULL) kolo_progress_call(line->progress, close_here, &last);
}
