/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of kolorun: output (lines of the ranks on their way to the user), options, and the loop
 * that drives a job (job/job.h).
 */
#ifndef KOLO_TOOLS_KOLORUN_H
#define KOLO_TOOLS_KOLORUN_H

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

/* ---- output ---- */

#define KOLORUN_LINE_MAX  (1u << 20) /* a longer line is cut into several */
#define KOLORUN_SINK_HIGH (1u << 20) /* with more than this unwritten, ranks are not read: they wait in write() */

/* Where bytes go: our own stdout or stderr, a file, an agent. Never blocks the loop. */
typedef struct {
    int fd;
    bool is_file;     /* takes any amount at once */
    bool nonblocking; /* ours alone, and set so */
    bool broken;      /* it cannot be written any more; everything is dropped */
    int error;        /* why: errno */
    char *buf;        /* [at, used) is not written yet */
    size_t at, used, cap;
} kolorun_sink_t;

/* What comes from one of the two outputs of one rank, cut into lines. */
typedef struct {
    bool cut; /* the buffer starts in the middle of a line */
    char tag[64];
    kolorun_sink_t *sink, *file; /* file: NULL or a second place, without tags */
    char *buf;
    size_t used, cap;
} kolorun_stream_t;

void kolorun_sink_init(kolorun_sink_t *sink, int fd);
void kolorun_sink_printf(kolorun_sink_t *sink, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void kolorun_sink_bytes(kolorun_sink_t *sink, const void *data, size_t bytes);
/* Writes what can be written without waiting. */
void kolorun_sink_flush(kolorun_sink_t *sink);
static inline size_t kolorun_sink_pending(const kolorun_sink_t *sink)
{
    return sink->used - sink->at;
}
void kolorun_sink_fini(kolorun_sink_t *sink);

void kolorun_stream_init(kolorun_stream_t *stream, const char *tag, kolorun_sink_t *sink, kolorun_sink_t *file);
void kolorun_stream_feed(kolorun_stream_t *stream, const void *data, size_t bytes);
/* Hands on an unfinished last line. */
void kolorun_stream_fini(kolorun_stream_t *stream);

/* ---- who started kolorun (kolorun_user.c) ---- */

/* The two outputs, and a descriptor of the signals that are for the job; -1: they cannot be had, which is printed
 * on err. */
int kolorun_begin(kolorun_sink_t *out, kolorun_sink_t *err);
/* A descriptor that becomes readable when the process that started this one, and waits for it, ends; -1: there is
 * none such. Waits for nothing. */
int kolorun_open_starter(void);
#define KOLORUN_USER_POLLS 3
/* The signals first, then what the outputs wait for. */
void kolorun_user_polls(const kolorun_sink_t *out, const kolorun_sink_t *err, int signal_fd,
                        struct pollfd polls[KOLORUN_USER_POLLS]);
/* For poll(): until a time of kolorun_now(), 0: without end. */
int kolorun_wait_ms(double until);
/* Takes the earlier one; 0: none. */
void kolorun_sooner(double *next, double at);
/* Waits until all is written, at most until the next signal that wants the end. */
void kolorun_drain(kolorun_sink_t *out, kolorun_sink_t *err, int signal_fd);

void *kolorun_grow(void *buf, size_t bytes); /* realloc that ends the program when there is no memory */
double kolorun_now(void);                    /* seconds of the monotonic clock */

#endif
