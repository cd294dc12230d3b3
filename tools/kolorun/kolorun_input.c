/* SPDX-License-Identifier: Apache-2.0
 *
 * See kolorun_input.h. When the last reader has gone descriptor 0 is given up, so that whoever writes to it gets
 * the SIGPIPE that the rank itself would have caused in a shell's pipeline.
 */
#include "kolorun_input.h"
#include "kolorun.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READ_BYTES   65536u
#define LOOK_AGAIN_S 0.5 /* at a terminal, for a job in the background */

void kolorun_input_init(kolorun_input_t *input, int who)
{
    const bool open = who != KOLORUN_INPUT_NONE && fcntl(STDIN_FILENO, F_GETFD) >= 0;
    *input = (kolorun_input_t){.who = who, .fd = open ? STDIN_FILENO : -1};
}

bool kolorun_input_wanted(const kolorun_input_t *input, int id)
{
    return input->fd >= 0 && (input->who == KOLORUN_INPUT_ALL || input->who == id);
}

void kolorun_input_add(kolorun_input_t *input, kolorun_host_t *host, int id)
{
    input->readers = kolorun_grow(input->readers, sizeof *input->readers * ((size_t)input->nreaders + 1));
    input->readers[input->nreaders++] = (kolorun_reader_t){.host = host, .id = id};
}

static void stop(kolorun_input_t *input)
{
    int null = input->fd >= 0 ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -1;
    if (null >= 0) {
        dup2(null, STDIN_FILENO); /* never free: it would become some other file's number */
        close(null);
    }
    input->fd = -1;
}

static void stop_if_nobody_reads(kolorun_input_t *input)
{
    for (int i = 0; i < input->nreaders; i++)
        if (!input->readers[i].gone) return;
    if (input->nreaders > 0) stop(input);
}

void kolorun_input_took(kolorun_input_t *input, const kolorun_host_t *host, int id, int bytes)
{
    for (int i = 0; i < input->nreaders; i++) {
        kolorun_reader_t *r = &input->readers[i];
        if (r->id != id || r->host != host || r->gone) continue;
        /* The number comes from elsewhere. */
        if (bytes < 0 || (uint32_t)bytes > r->waiting)
            r->gone = true;
        else
            r->waiting -= (uint32_t)bytes;
    }
    stop_if_nobody_reads(input);
}

void kolorun_input_leave(kolorun_input_t *input, int id)
{
    for (int i = 0; i < input->nreaders; i++)
        if (input->readers[i].id == id) input->readers[i].gone = true;
    stop_if_nobody_reads(input);
}

/* What all of them have room for: with --stdin all the slowest one sets the pace. */
static size_t room(const kolorun_input_t *input)
{
    size_t least = input->nreaders > 0 && input->fd >= 0 ? READ_BYTES : 0;
    for (int i = 0; i < input->nreaders; i++) {
        const kolorun_reader_t *r = &input->readers[i];
        if (!r->gone && KOLORUN_INPUT_WINDOW - r->waiting < least) least = KOLORUN_INPUT_WINDOW - r->waiting;
    }
    return least;
}

/* A process in the background that reads its terminal is stopped, and the job's output with it. */
static bool in_background(const kolorun_input_t *input)
{
    pid_t group = input->fd >= 0 ? tcgetpgrp(input->fd) : -1;
    return group >= 0 && group != getpgrp();
}

struct pollfd kolorun_input_poll(const kolorun_input_t *input)
{
    const bool read_now = room(input) > 0 && !in_background(input);
    return (struct pollfd){.fd = read_now ? input->fd : -1, .events = POLLIN};
}

double kolorun_input_next_s(const kolorun_input_t *input)
{
    return room(input) > 0 && in_background(input) ? kolorun_now() + LOOK_AGAIN_S : 0;
}

void kolorun_input_progress(kolorun_input_t *input, const struct pollfd *polled)
{
    char data[READ_BYTES];
    const size_t most = room(input);
    if (polled->fd < 0 || polled->revents == 0 || most == 0 || in_background(input)) return;
    ssize_t n = read(input->fd, data, most);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n < 0)
        snprintf(input->error, sizeof input->error,
                 "cannot read the standard input: %s; its ranks see the end of it", strerror(errno));
    for (int i = 0; i < input->nreaders; i++) { /* 0 bytes: the end */
        kolorun_reader_t *r = &input->readers[i];
        if (r->gone) continue;
        kolorun_host_input(r->host, r->id, data, n > 0 ? (size_t)n : 0);
        r->waiting += n > 0 ? (uint32_t)n : 0;
    }
    if (n <= 0) stop(input);
}

void kolorun_input_fini(kolorun_input_t *input)
{
    free(input->readers);
    *input = (kolorun_input_t){.fd = -1};
}
