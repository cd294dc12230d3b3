/* SPDX-License-Identifier: Apache-2.0
 *
 * kolorun --agent: the far end of kolorun_host.c. Obeys frames from its input, hands on what the processes print
 * and how they end, and passes on files that appear in their directory. The end of its input is the end of
 * everything here. When kolorun does not read, the processes are not read either, and wait in write(): memory is
 * bounded.
 */
#include "kolorun_agent.h"
#include "kolorun_files.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define READ_BYTES   65536u
#define BEAT_LIMIT_S 60.0 /* without a beat for this long, a connection that carried some is dead */
#define FIXED_POLLS  6
#define CHILD_POLLS  4
#define HOLD_S       5.0 /* that the end of a process is kept back while another one is dying */

typedef struct {
    kolorun_group_t group;
    kolorun_sink_t out;
    uint8_t *in;
    size_t in_used, in_cap;
    kolorun_files_t files;
    bool paused[2];    /* streams that are not to be read */
    double last_beat;  /* 0: none was ever heard */
    double hold_until; /* 0: no end is kept back */
    bool over;
    struct pollfd *polls;
} agent_t;

static void send_frame(agent_t *a, kolorun_frame_type_t type, int id, const void *data, size_t bytes)
{
    uint8_t header[KOLORUN_FRAME_HEADER];
    kolorun_frame_header(header, type, id, (uint32_t)bytes);
    kolorun_sink_bytes(&a->out, header, sizeof header);
    kolorun_sink_bytes(&a->out, data, bytes);
}

static void send_number(agent_t *a, kolorun_frame_type_t type, int id, int value)
{
    uint8_t number[4];
    kolorun_put_i32(number, value);
    send_frame(a, type, id, number, sizeof number);
}

static void send_file(void *a, const void *data, size_t bytes)
{
    send_frame(a, KOLORUN_FILE, 0, data, bytes);
}

static void trouble(agent_t *a, const char *text)
{
    send_frame(a, KOLORUN_TROUBLE, 0, text, strlen(text));
}

/* ---- what kolorun says ---- */

static void on_start(agent_t *a, const kolorun_frame_t *frame)
{
    kolorun_spec_t spec;
    const kolorun_child_t *child;
    if (!kolorun_spec_decode(frame->data, frame->bytes, &spec)) {
        send_number(a, KOLORUN_NOT_STARTED, frame->id, EINVAL);
        return;
    }
    if (kolorun_group_start(&a->group, frame->id, &spec, &child)) {
        send_number(a, KOLORUN_STARTED, frame->id, (int)child->pid);
    } else {
        send_number(a, KOLORUN_NOT_STARTED, frame->id, errno);
    }
    free(spec.argv);
}

static void on_signal(agent_t *a, const kolorun_frame_t *frame)
{
    int32_t sig;
    if (!kolorun_frame_number(frame, &sig) || sig < 1 || sig > 64) return;
    if (frame->id == KOLORUN_ALL) {
        kolorun_group_signal(&a->group, sig);
        if (sig == SIGKILL && a->group.guard > 0) kolorun_group_guard_gone(&a->group);
    }
    for (int i = 0; i < a->group.nchildren; i++)
        if (a->group.children[i].id == frame->id) kolorun_pidfd_signal(a->group.children[i].pidfd, sig);
}

/* Writes what the process takes of its input now, and says so. That a process reads no more is sent once. */
static void feed_child(agent_t *a, kolorun_child_t *c, bool closed)
{
    if (c->in.fd < 0) return;
    const size_t before = kolorun_sink_pending(&c->in);
    kolorun_sink_flush(&c->in);
    if (c->in.broken || closed) {
        kolorun_child_close_input(c);
        send_number(a, KOLORUN_TOOK, c->id, -1);
        return;
    }
    const size_t left = kolorun_sink_pending(&c->in);
    if (left < before) send_number(a, KOLORUN_TOOK, c->id, (int)(before - left));
    if (c->in_over && left == 0) kolorun_child_close_input(c);
}

static void on_input_of(agent_t *a, const kolorun_frame_t *frame)
{
    for (int i = 0; i < a->group.nchildren; i++) {
        kolorun_child_t *c = &a->group.children[i];
        if (c->id != frame->id || c->pidfd < 0 || c->in.fd < 0) continue; /* it has ended, or closed it */
        if (kolorun_sink_pending(&c->in) + frame->bytes > KOLORUN_INPUT_WINDOW) {
            a->over = true; /* no kolorun does that */
            return;
        }
        c->in_over = c->in_over || frame->bytes == 0;
        kolorun_sink_bytes(&c->in, frame->data, frame->bytes);
        feed_child(a, c, false);
    }
}

static void on_frame(agent_t *a, const kolorun_frame_t *frame)
{
    int32_t on;
    switch (frame->type) {
    case KOLORUN_START:
        on_start(a, frame);
        break;
    case KOLORUN_INPUT:
        on_input_of(a, frame);
        break;
    case KOLORUN_SIGNAL:
        on_signal(a, frame);
        break;
    case KOLORUN_PAUSE:
        if ((frame->id == 1 || frame->id == 2) && kolorun_frame_number(frame, &on))
            a->paused[frame->id - 1] = on != 0;
        break;
    case KOLORUN_FILE:
        if (!kolorun_files_put(&a->files, frame))
            trouble(a, "a file of another host cannot be written into the job's directory");
        break;
    case KOLORUN_BEAT:
        a->last_beat = kolorun_now();
        break;
    default: /* only ever comes from an agent */
        a->over = true;
    }
}

static void on_input(agent_t *a)
{
    if (a->in_cap - a->in_used < READ_BYTES) {
        a->in_cap = a->in_used * 2 + READ_BYTES;
        a->in = kolorun_grow(a->in, a->in_cap);
    }
    ssize_t n = read(STDIN_FILENO, a->in + a->in_used, a->in_cap - a->in_used);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        a->over = true;
        return;
    }
    a->in_used += (size_t)n;
    size_t at = 0;
    while (!a->over) {
        kolorun_frame_t frame;
        int64_t bytes = kolorun_frame_parse(a->in + at, a->in_used - at, &frame);
        if (bytes < 0) a->over = true;
        if (bytes <= 0) break;
        on_frame(a, &frame);
        at += (size_t)bytes;
    }
    a->in_used -= at;
    memmove(a->in, a->in + at, a->in_used);
}

/* ---- what the processes do ---- */

/* Reads once; false when there is nothing now, or any more. */
static bool read_child(agent_t *a, int i, int k)
{
    kolorun_child_t *c = &a->group.children[i];
    char buf[READ_BYTES];
    if (c->pipes[k] < 0) return false;
    ssize_t n = read(c->pipes[k], buf, sizeof buf);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0) {
        close(c->pipes[k]);
        c->pipes[k] = -1;
        return false;
    }
    send_frame(a, k == 0 ? KOLORUN_OUT : KOLORUN_ERR, c->id, buf, (size_t)n);
    return true;
}

/* What is in the pipe now goes before the end. Others may hold it open and write on: no more than a pipe holds. */
static void drain_child(agent_t *a, int i)
{
    for (int k = 0; k < 2; k++)
        for (int times = 0; times < 32 && read_child(a, i, k); times++) {
        }
}

/* Those of which nothing more can come; a long elastic job has many. */
static void forget_ended(agent_t *a)
{
    int kept = 0;
    for (int i = 0; i < a->group.nchildren; i++) {
        const kolorun_child_t *c = &a->group.children[i];
        if (c->pidfd >= 0 || c->pipes[0] >= 0 || c->pipes[1] >= 0) a->group.children[kept++] = *c;
    }
    a->group.nchildren = kept;
}

static void on_start_error(agent_t *a)
{
    kolorun_start_error_t why;
    while (read(a->group.start_read, &why, sizeof why) == (ssize_t)sizeof why)
        send_number(a, KOLORUN_NOT_STARTED, why.id, why.error);
}

static void tell_end(agent_t *a, int i)
{
    kolorun_child_t *c = &a->group.children[i];
    /* What it did before its end is told before it, whatever this turn of poll() saw of it. */
    on_start_error(a);
    kolorun_files_step(&a->files, true);
    drain_child(a, i);
    close(c->pidfd);
    c->pidfd = -1;
    kolorun_child_close_input(c);
    send_number(a, KOLORUN_ENDED, c->id, c->status);
}

/* Whose end is told next: deaths by signal come first, then what ended first. -1: nobody's now. */
static int next_ended(const agent_t *a, bool no_failures)
{
    int best = -1;
    for (int i = 0; i < a->group.nchildren; i++) {
        const kolorun_child_t *c = &a->group.children[i], *b = &a->group.children[best < 0 ? 0 : best];
        if (!c->reaped || c->pidfd < 0 || (no_failures && WIFEXITED(c->status) && WEXITSTATUS(c->status) != 0))
            continue;
        int by_signal = WIFSIGNALED(c->status), before = best >= 0 && WIFSIGNALED(b->status);
        if (best < 0 || by_signal > before || (by_signal == before && c->order < b->order)) best = i;
    }
    return best;
}

/* A process that is killed is missed by its peers at once, but ends only when its memory is given back: seconds, if
 * that is much. So they may fail before it has ended, and would be taken for the cause. */
static bool one_is_dying(const agent_t *a)
{
    for (int i = 0; i < a->group.nchildren; i++)
        if (!a->group.children[i].reaped && kolorun_is_dying(a->group.children[i].pid)) return true;
    return false;
}

static void collect_ended(agent_t *a)
{
    kolorun_group_reap(&a->group);
    double t = kolorun_now();
    for (int i; (i = next_ended(a, true)) >= 0;) tell_end(a, i);
    bool hold = next_ended(a, false) >= 0 && (a->hold_until == 0 || t < a->hold_until) && one_is_dying(a);
    if (!hold) {
        for (int i; (i = next_ended(a, false)) >= 0;) tell_end(a, i);
        a->hold_until = 0;
    } else if (a->hold_until == 0) {
        a->hold_until = t + HOLD_S;
    }
}

/* ---- the loop ---- */

static bool is_full(const agent_t *a)
{
    return kolorun_sink_pending(&a->out) > KOLORUN_SINK_HIGH;
}

static nfds_t fill_polls(agent_t *a)
{
    a->polls = kolorun_grow(a->polls, sizeof *a->polls * (FIXED_POLLS + CHILD_POLLS * (size_t)a->group.nchildren));
    struct pollfd *p = a->polls;
    const bool full = is_full(a);
    *p++ = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    *p++ = (struct pollfd){.fd = kolorun_sink_pending(&a->out) > 0 ? STDOUT_FILENO : -1, .events = POLLOUT};
    *p++ = (struct pollfd){.fd = a->group.guard_pidfd, .events = POLLIN};
    *p++ = (struct pollfd){.fd = a->group.start_read, .events = POLLIN};
    *p++ = (struct pollfd){.fd = full ? -1 : a->files.watch, .events = POLLIN};
    *p++ = (struct pollfd){.fd = a->group.child_fd, .events = POLLIN};
    for (int i = 0; i < a->group.nchildren; i++) {
        const kolorun_child_t *c = &a->group.children[i];
        *p++ = (struct pollfd){.fd = c->reaped ? -1 : c->pidfd, .events = POLLIN};
        for (int k = 0; k < 2; k++)
            *p++ = (struct pollfd){.fd = full || a->paused[k] ? -1 : c->pipes[k], .events = POLLIN};
        /* Also without an event: poll() reports that nobody reads it any more. */
        *p++ = (struct pollfd){.fd = c->in.fd, .events = kolorun_sink_pending(&c->in) > 0 ? POLLOUT : 0};
    }
    return (nfds_t)(p - a->polls);
}

static int wait_ms(const agent_t *a)
{
    double next = a->hold_until;
    if (!is_full(a)) kolorun_sooner(&next, a->files.look_at);
    if (a->last_beat != 0) kolorun_sooner(&next, a->last_beat + BEAT_LIMIT_S);
    return kolorun_wait_ms(next);
}

static void run(agent_t *a)
{
    while (!a->over && !a->out.broken) {
        nfds_t n = fill_polls(a);
        if (poll(a->polls, n, wait_ms(a)) < 0 && errno != EINTR) break;
        const int nchildren = a->group.nchildren; /* starts add more */
        if (a->polls[4].revents || (a->files.watch < 0 && !is_full(a))) kolorun_files_step(&a->files, false);
        if (a->polls[3].revents) on_start_error(a);
        bool ended = a->polls[5].revents != 0 || a->hold_until != 0;
        for (int i = 0; i < nchildren; i++) {
            const struct pollfd *p = a->polls + FIXED_POLLS + CHILD_POLLS * i;
            for (int k = 0; k < 2; k++)
                if (p[1 + k].revents) read_child(a, i, k);
            if (p[3].revents) feed_child(a, &a->group.children[i], (p[3].revents & (POLLERR | POLLNVAL)) != 0);
            ended |= p[0].revents != 0;
        }
        if (ended) collect_ended(a);
        if (a->polls[2].revents) {
            kolorun_group_guard_gone(&a->group);
            trouble(a, "the guard of the job was killed; ending the job");
        }
        if (a->polls[0].revents) on_input(a);
        forget_ended(a);
        kolorun_sink_flush(&a->out);
        if (a->last_beat != 0 && kolorun_now() > a->last_beat + BEAT_LIMIT_S) a->over = true;
    }
}

int kolorun_agent_main(void)
{
    agent_t a = {.files.watch = -1};
    /* Descriptors of whoever started us are nobody's here. */
    if (syscall(SYS_close_range, 3u, ~0u, 0u) != 0)
        for (int fd = 3; fd < 1024; fd++) close(fd);
    fcntl(STDIN_FILENO, F_SETFL, fcntl(STDIN_FILENO, F_GETFL) | O_NONBLOCK);
    fcntl(STDOUT_FILENO, F_SETFL, fcntl(STDOUT_FILENO, F_GETFL) | O_NONBLOCK);
    kolorun_sink_init(&a.out, STDOUT_FILENO);
    a.out.nonblocking = true;
    kolorun_sink_bytes(&a.out, KOLORUN_AGENT_MAGIC, strlen(KOLORUN_AGENT_MAGIC));
    bool ok = kolorun_group_init(&a.group);
    if (ok) {
        kolorun_files_init(&a.files, a.group.dir, send_file, &a);
        send_number(&a, KOLORUN_HELLO, 0, (int)getpid());
    } else {
        trouble(&a, a.group.error);
    }
    kolorun_sink_flush(&a.out);
    if (ok) run(&a);
    kolorun_group_fini(&a.group);
    kolorun_sink_flush(&a.out);
    kolorun_sink_fini(&a.out);
    kolorun_files_fini(&a.files);
    free(a.in);
    free(a.polls);
    return ok ? 0 : 1;
}
