/* SPDX-License-Identifier: Apache-2.0
 *
 * See kolorun_host.h. The near end of an agent: a child of ours that is the agent itself, or the ssh that carries
 * it.
 */
#include "kolorun_host.h"
#include "kolorun.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define READ_BYTES    65536u
#define READ_ROUNDS   16     /* per call of progress, so that one host does not starve the others */
#define GREETING_MAX  65536u /* what login scripts may print before the agent speaks */
#define BEAT_EVERY_S  15.0   /* four are missed before an agent gives up */
#define SSH_WORDS_MAX 64
#define SSH_FAILED    255 /* its own status; others are those of the command there */

enum { AT_IN, AT_OUT, AT_SAID, AT_END };

struct kolorun_host {
    const char *name;
    const kolorun_way_t *way;
    const kolorun_host_events_t *events;
    void *arg;
    bool local, greeted, ready, lost;
    bool hushed; /* the user does not read what it says */
    pid_t pid;
    int pidfd, in, said; /* its stdout and stderr */
    kolorun_sink_t out;  /* its stdin */
    uint8_t *buf;
    size_t used, cap;
    char line[512]; /* of its stderr */
    size_t line_used;
    double start_by, next_beat; /* 0: none */
};

/* ---- starting the agent ---- */

bool kolorun_way_init(kolorun_way_t *way)
{
    *way = (kolorun_way_t){.start_timeout_s = 60};
    ssize_t n = readlink("/proc/self/exe", way->self, sizeof way->self - 1);
    return n > 0 && sigprocmask(SIG_SETMASK, NULL, &way->mask) == 0 && getrlimit(RLIMIT_NOFILE, &way->files) == 0;
}

/* An address, not a name, which an entry of ssh's configuration may lead elsewhere. Of the loopback network all are
 * this host's: a distribution may give its name 127.0.1.1. */
static bool is_own_address(const char *name)
{
    struct in_addr four;
    struct in6_addr six;
    struct ifaddrs *all;
    bool own = false;
    const int family = inet_pton(AF_INET, name, &four) == 1   ? AF_INET
                       : inet_pton(AF_INET6, name, &six) == 1 ? AF_INET6
                                                              : AF_UNSPEC;
    if (family == AF_INET && ntohl(four.s_addr) >> IN_CLASSA_NSHIFT == IN_LOOPBACKNET) return true;
    if (family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&six)) return true;
    if (family == AF_UNSPEC || getifaddrs(&all) != 0) return false;
    for (const struct ifaddrs *i = all; i != NULL && !own; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != family) continue;
        own = family == AF_INET ? memcmp(&((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr, &four,
                                         sizeof four) == 0
                                : memcmp(&((const struct sockaddr_in6 *)(const void *)i->ifa_addr)->sin6_addr, &six,
                                         sizeof six) == 0;
    }
    freeifaddrs(all);
    return own;
}

bool kolorun_host_is_here(const char *name)
{
    char own[256] = "";
    gethostname(own, sizeof own - 1);
    return is_own_address(name) || strcmp(name, "localhost") == 0 || (own[0] != '\0' && strcmp(name, own) == 0);
}

/* 'it'\''s' for the shell of the other side. */
static bool quote(char *to, size_t size, const char *text)
{
    size_t at = 0;
    for (const char *c = text; *c && at + 8 < size; c++) {
        if (c == text) to[at++] = '\'';
        if (*c == '\'') {
            memcpy(to + at, "'\\''", 4);
            at += 4;
        } else {
            to[at++] = *c;
        }
        if (c[1] == '\0') {
            to[at++] = '\'';
            to[at] = '\0';
            return true;
        }
    }
    return false;
}

/* Becomes ssh, or the agent itself. Only async-signal-safe calls would be needed after vfork; this is a fork. */
static _Noreturn void become_agent(const kolorun_host_t *host, char *ssh_words, char *command)
{
    char *argv[SSH_WORDS_MAX + 16];
    int n = 0;
    if (host->local) {
        argv[n++] = (char *)(uintptr_t) "kolorun";
        argv[n++] = (char *)(uintptr_t) "--agent";
    } else {
        char *rest = NULL;
        for (char *w = strtok_r(ssh_words, " ", &rest); w && n < SSH_WORDS_MAX; w = strtok_r(NULL, " ", &rest))
            argv[n++] = w;
        static const char *const options[] = {"-T",
                                              "-x",
                                              "-oBatchMode=yes",
                                              "-oConnectTimeout=15",
                                              "-oServerAliveInterval=10",
                                              "-oServerAliveCountMax=3",
                                              "--"};
        for (size_t i = 0; i < sizeof options / sizeof *options; i++) argv[n++] = (char *)(uintptr_t)options[i];
        argv[n++] = (char *)(uintptr_t)host->name;
        argv[n++] = command;
    }
    argv[n] = NULL;
    sigprocmask(SIG_SETMASK, &host->way->mask, NULL);
    setrlimit(RLIMIT_NOFILE, &host->way->files);
    if (host->local)
        execv(host->way->self, argv);
    else
        execvp(argv[0], argv);
    dprintf(STDERR_FILENO, "cannot start %s: %s\n", host->local ? host->way->self : argv[0], strerror(errno));
    _exit(127);
}

static _Noreturn void child_main(const kolorun_host_t *host, pid_t parent, int in, int out, int err)
{
    char ssh_words[4096], path[4096], command[4200];
    setpgid(0, 0); /* a terminal's Ctrl-C is for us alone */
    bool ok = dup2(in, 0) == 0 && dup2(out, 1) == 1 && dup2(err, 2) == 2;
    /* The agent must outlive us: it has work to do then. An ssh has none, its end closes the connection. */
    if (!host->local) ok = ok && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent;
    const char *remote = host->way->remote != NULL ? host->way->remote : host->way->self;
    int n = snprintf(ssh_words, sizeof ssh_words, "%s", host->way->ssh != NULL ? host->way->ssh : "ssh");
    ok = ok && n > 0 && (size_t)n < sizeof ssh_words && quote(path, sizeof path, remote);
    snprintf(command, sizeof command, "exec %s --agent", path);
    if (ok) become_agent(host, ssh_words, command);
    _exit(126);
}

static bool start_child(kolorun_host_t *h)
{
    int fds[3][2]; /* its stdin, stdout, stderr */
    int made = 0;
    for (; made < 3; made++)
        if (pipe2(fds[made], O_CLOEXEC) != 0) break;
    pid_t parent = getpid();
    h->pid = made == 3 ? fork() : -1;
    if (h->pid == 0) child_main(h, parent, fds[0][0], fds[1][1], fds[2][1]);
    int error = errno;
    if (h->pid < 0) {
        for (int i = 0; i < made; i++) {
            close(fds[i][0]);
            close(fds[i][1]);
        }
        errno = error;
        return false;
    }
    close(fds[0][0]);
    close(fds[1][1]);
    close(fds[2][1]);
    kolorun_sink_init(&h->out, fds[0][1]);
    h->out.nonblocking = true;
    h->in = fds[1][0];
    h->said = fds[2][0];
    fcntl(h->out.fd, F_SETFL, O_NONBLOCK);
    fcntl(h->in, F_SETFL, O_NONBLOCK);
    fcntl(h->said, F_SETFL, O_NONBLOCK);
    h->pidfd = (int)syscall(SYS_pidfd_open, h->pid, 0);
    return h->pidfd >= 0;
}

kolorun_host_t *kolorun_host_open(const char *name, const kolorun_way_t *way, const kolorun_host_events_t *events,
                                  void *arg, char *why, size_t why_bytes)
{
    if (name[0] == '-' || name[0] == '\0') { /* ssh would take it for an option */
        snprintf(why, why_bytes, "\"%s\" is no host name", name);
        return NULL;
    }
    kolorun_host_t *h = kolorun_grow(NULL, sizeof *h);
    *h =
        (kolorun_host_t){.name = name, .way = way, .events = events, .arg = arg, .pidfd = -1, .in = -1, .said = -1};
    h->out.fd = -1;
    h->local = kolorun_host_is_here(name);
    h->start_by = kolorun_now() + way->start_timeout_s;
    if (start_child(h)) return h;
    snprintf(why, why_bytes, "host %s: cannot start its agent: %s", name, strerror(errno));
    kolorun_host_close(h, 0);
    return NULL;
}

const char *kolorun_host_name(const kolorun_host_t *host)
{
    return host->name;
}

bool kolorun_host_is_local(const kolorun_host_t *host)
{
    return host->local;
}

/* ---- what it is told ---- */

static void send_frame(kolorun_host_t *h, kolorun_frame_type_t type, int id, const void *data, size_t bytes)
{
    uint8_t header[KOLORUN_FRAME_HEADER];
    if (h->lost) return;
    kolorun_frame_header(header, type, id, (uint32_t)bytes);
    kolorun_sink_bytes(&h->out, header, sizeof header);
    kolorun_sink_bytes(&h->out, data, bytes);
    kolorun_sink_flush(&h->out); /* mostly all of it; the loop does the rest */
}

static void send_number(kolorun_host_t *h, kolorun_frame_type_t type, int id, int value)
{
    uint8_t number[4];
    kolorun_put_i32(number, value);
    send_frame(h, type, id, number, sizeof number);
}

bool kolorun_host_start(kolorun_host_t *host, int id, const kolorun_spec_t *spec)
{
    uint32_t bytes;
    uint8_t *data = kolorun_spec_encode(spec, &bytes);
    if (data == NULL) return false;
    send_frame(host, KOLORUN_START, id, data, bytes);
    free(data);
    return true;
}

void kolorun_host_signal(kolorun_host_t *host, int id, int sig)
{
    send_number(host, KOLORUN_SIGNAL, id, sig);
}

void kolorun_host_pause(kolorun_host_t *host, int stream, bool on)
{
    if (stream == 2) host->hushed = on;
    send_number(host, KOLORUN_PAUSE, stream, on);
}

void kolorun_host_input(kolorun_host_t *host, int id, const void *data, size_t bytes)
{
    send_frame(host, KOLORUN_INPUT, id, data, bytes);
}

void kolorun_host_put_file(kolorun_host_t *host, const char *name, const void *data, size_t bytes)
{
    size_t n = strlen(name) + 1;
    if (n > KOLORUN_FILE_NAME_MAX || bytes > KOLORUN_FILE_MAX || !kolorun_file_name_ok(name)) return;
    uint8_t *all = kolorun_grow(NULL, n + bytes);
    memcpy(all, name, n);
    memcpy(all + n, data, bytes);
    send_frame(host, KOLORUN_FILE, 0, all, n + bytes);
    explicit_bzero(all, n + bytes);
    free(all);
}

/* ---- what it tells ---- */

static void lose(kolorun_host_t *h, const char *why)
{
    if (h->lost) return;
    h->lost = true;
    if (h->out.fd >= 0) close(h->out.fd); /* the agent ends what it has */
    h->out.fd = -1;
    h->events->lost(h->arg, h, why);
}

static void on_frame(kolorun_host_t *h, const kolorun_frame_t *f)
{
    const kolorun_host_events_t *e = h->events;
    const char *name;
    const uint8_t *content;
    size_t bytes;
    int32_t number = 0;
    char text[512];
    switch (f->type) {
    case KOLORUN_HELLO:
        h->ready = true;
        h->start_by = 0;
        if (!h->local) h->next_beat = kolorun_now();
        return;
    case KOLORUN_STARTED:
        if (kolorun_frame_number(f, &number)) e->started(h->arg, h, f->id, number);
        return;
    case KOLORUN_NOT_STARTED:
        if (kolorun_frame_number(f, &number)) e->not_started(h->arg, h, f->id, number);
        return;
    case KOLORUN_TOOK:
        if (kolorun_frame_number(f, &number)) e->took(h->arg, h, f->id, number);
        return;
    case KOLORUN_OUT:
    case KOLORUN_ERR:
        e->output(h->arg, h, f->id, f->type == KOLORUN_OUT ? 1 : 2, f->data, f->bytes);
        return;
    case KOLORUN_ENDED:
        if (kolorun_frame_number(f, &number)) e->ended(h->arg, h, f->id, number);
        return;
    case KOLORUN_FILE:
        if (e->file != NULL && kolorun_file_decode(f, &name, &content, &bytes))
            e->file(h->arg, h, name, content, bytes);
        return;
    case KOLORUN_TROUBLE:
        snprintf(text, sizeof text, "%.*s", (int)(f->bytes < 400 ? f->bytes : 400), (const char *)f->data);
        lose(h, text);
        return;
    default:
        lose(h, "it sent what no agent sends (are the versions of kolorun equal?)");
    }
}

/* Skips what login scripts print. */
static void look_for_greeting(kolorun_host_t *h)
{
    static const char magic[] = KOLORUN_AGENT_MAGIC;
    const size_t n = sizeof magic - 1;
    const uint8_t *at = memmem(h->buf, h->used, magic, n);
    if (at != NULL) {
        h->greeted = true;
        h->used -= (size_t)(at + n - h->buf);
        memmove(h->buf, at + n, h->used);
    } else if (h->used > GREETING_MAX) {
        lose(h, "something there prints without end and is no kolorun");
    }
}

static void take_frames(kolorun_host_t *h)
{
    size_t at = 0;
    if (!h->greeted) look_for_greeting(h);
    while (h->greeted && !h->lost) {
        kolorun_frame_t frame;
        int64_t bytes = kolorun_frame_parse(h->buf + at, h->used - at, &frame);
        if (bytes < 0) lose(h, "it sent what no agent sends (are the versions of kolorun equal?)");
        if (bytes <= 0) break;
        on_frame(h, &frame);
        at += (size_t)bytes;
    }
    h->used -= at;
    memmove(h->buf, h->buf + at, h->used);
}

/* false: nothing there now, or any more */
static bool read_frames(kolorun_host_t *h)
{
    if (h->in < 0 || h->lost) return false;
    if (h->cap - h->used < READ_BYTES) {
        h->cap = h->used * 2 + READ_BYTES;
        h->buf = kolorun_grow(h->buf, h->cap);
    }
    ssize_t n = read(h->in, h->buf + h->used, h->cap - h->used);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0) {
        close(h->in);
        h->in = -1;
        return false;
    }
    h->used += (size_t)n;
    take_frames(h);
    return true;
}

/* A login script may write without end. */
static void read_said(kolorun_host_t *h)
{
    char c[4096];
    ssize_t n = 1;
    for (int k = 0; k < READ_ROUNDS && h->said >= 0 && !h->hushed && (n = read(h->said, c, sizeof c)) != 0; k++) {
        if (n < 0) return; /* nothing more now */
        for (ssize_t i = 0; i < n; i++) {
            if (c[i] != '\n' && c[i] != '\r') h->line[h->line_used++] = c[i];
            if ((c[i] != '\n' && h->line_used < sizeof h->line - 1) || h->line_used == 0) continue;
            h->line[h->line_used] = '\0';
            h->line_used = 0;
            h->events->said(h->arg, h, h->line);
        }
    }
    if (n != 0 || h->said < 0) return;
    close(h->said);
    h->said = -1;
}

static void on_end(kolorun_host_t *h)
{
    char text[200];
    int status;
    if (h->pidfd < 0 || waitpid(h->pid, &status, WNOHANG) != h->pid) return;
    close(h->pidfd);
    h->pidfd = -1;
    h->pid = 0;
    while (read_frames(h)) {
    }
    read_said(h);
    const char *what = h->local ? "its agent" : "the ssh to it";
    if (WIFSIGNALED(status))
        snprintf(text, sizeof text, "%s was killed by signal %d", what, WTERMSIG(status));
    else
        snprintf(text, sizeof text, "%s ended with status %d%s", what, WEXITSTATUS(status),
                 h->ready ? ""
                 : !h->local && WEXITSTATUS(status) == SSH_FAILED
                     ? " before it answered (is it reached without a password? try: ssh HOST true)"
                     : " before it answered (can kolorun be started there? --remote-kolorun)");
    lose(h, text);
}

void kolorun_host_polls(const kolorun_host_t *host, struct pollfd polls[KOLORUN_HOST_POLLS])
{
    polls[AT_IN] = (struct pollfd){.fd = host->lost ? -1 : host->in, .events = POLLIN};
    polls[AT_OUT] =
        (struct pollfd){.fd = kolorun_sink_pending(&host->out) > 0 ? host->out.fd : -1, .events = POLLOUT};
    polls[AT_SAID] = (struct pollfd){.fd = host->hushed ? -1 : host->said, .events = POLLIN};
    polls[AT_END] = (struct pollfd){.fd = host->pidfd, .events = POLLIN};
}

void kolorun_host_progress(kolorun_host_t *h)
{
    double t = kolorun_now();
    for (int i = 0; i < READ_ROUNDS && read_frames(h); i++) {
    }
    read_said(h);
    on_end(h);
    if (h->lost) return;
    if (h->start_by != 0 && t >= h->start_by) {
        char text[100];
        snprintf(text, sizeof text, "kolorun there did not start within %d s", h->way->start_timeout_s);
        lose(h, text);
        return;
    }
    if (h->next_beat != 0 && t >= h->next_beat) {
        send_frame(h, KOLORUN_BEAT, 0, NULL, 0);
        h->next_beat = t + BEAT_EVERY_S;
    }
    kolorun_sink_flush(&h->out);
}

double kolorun_host_next_s(const kolorun_host_t *host)
{
    if (host->lost) return 0;
    return host->start_by != 0 ? host->start_by : host->next_beat;
}

/* ---- the end ---- */

/* Its output is thrown away meanwhile, or it might wait for us. */
static void await_end(kolorun_host_t *h, double until)
{
    char buf[4096];
    while (h->pidfd >= 0) {
        double left = until - kolorun_now();
        struct pollfd p[] = {{h->pidfd, POLLIN, 0}, {h->in, POLLIN, 0}, {h->said, POLLIN, 0}};
        if (left <= 0) kill(h->pid, SIGKILL);
        if (poll(p, 3, left <= 0 ? -1 : (int)(left * 1e3) + 1) < 0 && errno != EINTR) break;
        int *fds[] = {&h->in, &h->said};
        for (int i = 0; i < 2; i++) {
            if (!p[i + 1].revents) continue;
            ssize_t n = read(*fds[i], buf, sizeof buf);
            if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) continue;
            close(*fds[i]);
            *fds[i] = -1;
        }
        if (p[0].revents && waitpid(h->pid, NULL, 0) == h->pid) {
            close(h->pidfd);
            h->pidfd = -1;
        }
    }
}

void kolorun_hosts_close(kolorun_host_t **hosts, int count, double patience_s)
{
    double until = kolorun_now() + patience_s;
    for (int i = 0; i < count; i++) {
        if (hosts[i] == NULL) continue;
        hosts[i]->lost = true; /* no more events */
        if (hosts[i]->out.fd >= 0) close(hosts[i]->out.fd);
        hosts[i]->out.fd = -1;
    }
    for (int i = 0; i < count; i++) {
        kolorun_host_t *h = hosts[i];
        if (h == NULL) continue;
        await_end(h, until);
        if (h->in >= 0) close(h->in);
        if (h->said >= 0) close(h->said);
        if (h->pidfd >= 0) close(h->pidfd);
        kolorun_sink_fini(&h->out);
        free(h->buf);
        free(h);
        hosts[i] = NULL;
    }
}

void kolorun_host_close(kolorun_host_t *host, double patience_s)
{
    kolorun_hosts_close(&host, 1, patience_s);
}
