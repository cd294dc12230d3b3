/* SPDX-License-Identifier: Apache-2.0
 *
 * --stdin: kolorun's own standard input on its way to ranks. No more is read than the ranks have room for: of what
 * was sent to each, at most KOLORUN_INPUT_WINDOW bytes wait on its host until it reads them.
 */
#ifndef KOLO_TOOLS_KOLORUN_INPUT_H
#define KOLO_TOOLS_KOLORUN_INPUT_H

#include "kolorun_host.h"

#define KOLORUN_INPUT_NONE (-2) /* who gets it: nobody, */
#define KOLORUN_INPUT_ALL  (-1) /* or every rank, or the one with this number */

typedef struct {
    kolorun_host_t *host;
    int id;
    uint32_t waiting; /* bytes that were sent and that it has not taken */
    bool gone;        /* it reads no more */
} kolorun_reader_t;

typedef struct {
    int who;
    int fd;          /* -1: nothing is read (any more) */
    char error[100]; /* why reading failed, for the user; "": it did not */
    kolorun_reader_t *readers;
    int nreaders;
} kolorun_input_t;

/* Before anything is opened: where descriptor 0 is closed, another file would take its place. */
void kolorun_input_init(kolorun_input_t *input, int who);
/* Does this rank get what is read? Then it is to be started with kolorun_spec_t.input. */
bool kolorun_input_wanted(const kolorun_input_t *input, int id);
void kolorun_input_add(kolorun_input_t *input, kolorun_host_t *host, int id);
/* To be called by kolorun_host_events_t.took. */
void kolorun_input_took(kolorun_input_t *input, const kolorun_host_t *host, int id, int bytes);
/* The rank has ended, or was lost with its host. */
void kolorun_input_leave(kolorun_input_t *input, int id);

struct pollfd kolorun_input_poll(const kolorun_input_t *input);
/* Seconds of the monotonic clock at which kolorun_input_poll() may say something else; 0: not by time. */
double kolorun_input_next_s(const kolorun_input_t *input);
/* After poll(): reads once and sends it. */
void kolorun_input_progress(kolorun_input_t *input, const struct pollfd *polled);
void kolorun_input_fini(kolorun_input_t *input);

#endif
