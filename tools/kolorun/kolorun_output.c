/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes on their way out. A stream collects what a rank writes until a line is complete and puts it, with the
 * rank's tag, into a sink; a sink writes when its descriptor takes bytes. Our stdout may be shared with a shell, so
 * it is not made non-blocking; instead a pipe or terminal that polls writable is given at most PIPE_BUF bytes,
 * which it takes without waiting. A full sink stops the reading of ranks, so memory is bounded.
 */
#include "kolorun.h"

#include "base/file/limit.h"
#include "base/text/plain.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

double kolorun_now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

void *kolorun_grow(void *buf, size_t bytes)
{
    void *p = realloc(buf, bytes);
    if (p == NULL) {
        fprintf(stderr, "kolorun: no memory for %zu bytes of output\n", bytes);
        _exit(1); /* the guard ends the ranks */
    }
    return p;
}

void kolorun_sink_init(kolorun_sink_t *sink, int fd)
{
    struct stat st;
    *sink = (kolorun_sink_t){.fd = fd, .is_file = fstat(fd, &st) == 0 && S_ISREG(st.st_mode)};
}

static char *sink_room(kolorun_sink_t *sink, size_t bytes)
{
    if (sink->at > 0 && sink->used + bytes > sink->cap) {
        memmove(sink->buf, sink->buf + sink->at, sink->used - sink->at);
        sink->used -= sink->at;
        sink->at = 0;
    }
    if (sink->used + bytes > sink->cap) {
        sink->cap = (sink->used + bytes) * 2;
        sink->buf = kolorun_grow(sink->buf, sink->cap);
    }
    char *at = sink->buf + sink->used;
    sink->used += bytes;
    return at;
}

void kolorun_sink_bytes(kolorun_sink_t *sink, const void *data, size_t bytes)
{
    if (!sink->broken && bytes > 0) memcpy(sink_room(sink, bytes), data, bytes);
}

static void sink_line(kolorun_sink_t *sink, const char *tag, const char *line, size_t bytes)
{
    if (sink->broken) return;
    size_t tag_bytes = strlen(tag);
    char *at = sink_room(sink, tag_bytes + bytes + 1);
    memcpy(at, tag, tag_bytes);
    memcpy(at + tag_bytes, line, bytes);
    at[tag_bytes + bytes] = '\n';
}

void kolorun_sink_printf(kolorun_sink_t *sink, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n <= 0) return;
    kolo_plain_copy(text, sizeof text, text, sizeof text); /* what an agent, an ssh or a host's name brings in */
    sink_line(sink, "kolorun: ", text, strlen(text));
}

void kolorun_sink_flush(kolorun_sink_t *sink)
{
    while (kolorun_sink_pending(sink) > 0) {
        struct pollfd p = {.fd = sink->fd, .events = POLLOUT};
        if (!sink->is_file && !sink->nonblocking &&
            (poll(&p, 1, 0) != 1 || !(p.revents & (POLLOUT | POLLERR | POLLNVAL))))
            return;
        size_t bytes = kolorun_sink_pending(sink);
        if (!sink->is_file && !sink->nonblocking && bytes > PIPE_BUF) bytes = PIPE_BUF;
        ssize_t n = kolo_file_write(sink->fd, sink->buf + sink->at, bytes);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
        if (n < 0) {
            sink->broken = true;
            sink->error = errno;
            sink->at = sink->used;
        } else {
            sink->at += (size_t)n;
        }
    }
    sink->at = sink->used = 0;
}

void kolorun_sink_fini(kolorun_sink_t *sink)
{
    free(sink->buf);
    *sink = (kolorun_sink_t){.fd = -1};
}

void kolorun_stream_init(kolorun_stream_t *stream, const char *tag, kolorun_sink_t *sink, kolorun_sink_t *file)
{
    *stream = (kolorun_stream_t){.sink = sink, .file = file};
    snprintf(stream->tag, sizeof stream->tag, "%s", tag);
}

/* Hands on the complete lines among the first `used` bytes; the first `seen` are known to hold no line end. */
static void split_lines(kolorun_stream_t *stream, size_t seen)
{
    size_t start = 0;
    char *end;
    while ((end = memchr(stream->buf + seen, '\n', stream->used - seen)) != NULL) {
        size_t stop = (size_t)(end - stream->buf);
        /* The end of a line that was cut exactly there ends nothing. */
        if (!(stream->cut && stop == start) || stream->tag[0] == '\0')
            sink_line(stream->sink, stream->tag, stream->buf + start, stop - start);
        stream->cut = false;
        start = seen = stop + 1;
    }
    while (stream->used - start >= KOLORUN_LINE_MAX) {
        if (stream->tag[0] == '\0') /* as it is: no line end where there was none */
            kolorun_sink_bytes(stream->sink, stream->buf + start, KOLORUN_LINE_MAX);
        else
            sink_line(stream->sink, stream->tag, stream->buf + start, KOLORUN_LINE_MAX);
        stream->cut = true;
        start += KOLORUN_LINE_MAX;
    }
    stream->used -= start;
    if (start > 0) memmove(stream->buf, stream->buf + start, stream->used);
}

void kolorun_stream_feed(kolorun_stream_t *stream, const void *data, size_t bytes)
{
    if (stream->file != NULL) {
        kolorun_sink_bytes(stream->file, data, bytes);
        kolorun_sink_flush(stream->file);
    }
    if (stream->cap - stream->used < bytes) {
        stream->cap = stream->used * 2 + bytes;
        stream->buf = kolorun_grow(stream->buf, stream->cap);
    }
    size_t seen = stream->used;
    memcpy(stream->buf + stream->used, data, bytes);
    stream->used += bytes;
    split_lines(stream, seen);
}

void kolorun_stream_fini(kolorun_stream_t *stream)
{
    if (stream->tag[0] == '\0')
        kolorun_sink_bytes(stream->sink, stream->buf, stream->used);
    else if (stream->used > 0)
        sink_line(stream->sink, stream->tag, stream->buf, stream->used);
    free(stream->buf);
    stream->buf = NULL;
    stream->used = stream->cap = 0;
}
