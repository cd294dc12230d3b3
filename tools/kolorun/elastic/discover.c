/* SPDX-License-Identifier: Apache-2.0
 *
 * The script that tells which hosts there are. It is a stranger: it may fail, hang, print nonsense or without end.
 * Then there is one warning and the last good answer stays.
 */
#include "elastic.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define TEXT_MAX (1u << 20)

void discovery_init(discovery_t *d, const elastic_options_t *options, const struct rlimit *files,
                    kolorun_sink_t *err)
{
    *d = (discovery_t){.options = options, .err = err, .files = files, .pidfd = -1, .out = -1, .said = -1};
    if (!options->discover) return;
    d->next_at = kolorun_now();
    d->text = kolorun_grow(NULL, TEXT_MAX);
}

__attribute__((format(printf, 2, 3))) static void warn(discovery_t *d, const char *format, ...)
{
    char text[sizeof d->warned];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (strcmp(text, d->warned) == 0) return;
    memcpy(d->warned, text, sizeof text);
    kolorun_sink_printf(d->err, "warning: %s%s", text,
                        d->has_answer ? "; the last good answer stays"
                                      : "; there is no answer yet, it is asked again");
}

static _Noreturn void become_script(const discovery_t *d, pid_t parent, int out, int said)
{
    sigset_t none;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    int nothing = open("/dev/null", O_RDONLY);
    if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(out, 1) < 0 || dup2(said, 2) < 0) _exit(126);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setrlimit(RLIMIT_NOFILE, d->files);
    signal(SIGPIPE, SIG_DFL);
    execl("/bin/sh", "sh", "-c", d->options->discover, (char *)NULL);
    _exit(127);
}

static void start(discovery_t *d)
{
    int out[2] = {-1, -1}, said[2] = {-1, -1};
    bool ok = pipe2(out, O_CLOEXEC) == 0 && pipe2(said, O_CLOEXEC) == 0;
    pid_t parent = getpid();
    d->pid = ok ? fork() : -1;
    if (d->pid == 0) become_script(d, parent, out[1], said[1]);
    int error = errno;
    if (out[1] >= 0) close(out[1]);
    if (said[1] >= 0) close(said[1]);
    d->out = out[0];
    d->said = said[0];
    d->used = d->complaint_used = 0;
    d->cut = false;
    if (d->pid > 0) {
        setpgid(d->pid, d->pid); /* here too: it may be killed at once */
        d->pidfd = (int)syscall(SYS_pidfd_open, d->pid, 0);
        fcntl(d->out, F_SETFL, O_NONBLOCK);
        fcntl(d->said, F_SETFL, O_NONBLOCK);
        d->kill_at = kolorun_now() + d->options->patience_s;
        d->next_at = 0;
        return;
    }
    d->pid = 0;
    if (d->out >= 0) close(d->out);
    if (d->said >= 0) close(d->said);
    d->out = d->said = -1;
    d->next_at = kolorun_now() + d->options->every_s;
    warn(d, "the discovery script cannot be started: %s", strerror(error));
}

static void close_end(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static void read_all(discovery_t *d)
{
    char rest[4096];
    ssize_t n;
    for (int i = 0; i < 64 && d->out >= 0; i++) {
        bool full = d->used == TEXT_MAX;
        n = read(d->out, full ? rest : d->text + d->used, full ? sizeof rest : TEXT_MAX - d->used);
        if (n == 0) close_end(&d->out);
        if (n <= 0) break;
        d->cut |= full;
        if (!full) d->used += (size_t)n;
    }
    for (int i = 0; i < 64 && d->said >= 0; i++) {
        n = read(d->said, rest, sizeof rest);
        if (n == 0) close_end(&d->said);
        if (n <= 0) break;
        size_t room = sizeof d->complaint - 1 - d->complaint_used, take = (size_t)n < room ? (size_t)n : room;
        for (size_t k = 0; k < take; k++)
            d->complaint[d->complaint_used++] = rest[k] >= 32 && rest[k] < 127 ? rest[k] : ' ';
    }
    d->complaint[d->complaint_used] = '\0';
}

/* It has ended, or is made to: whatever it left behind goes with it, and nothing of its output is waited for. */
static void reap(discovery_t *d, int *status)
{
    kill(-d->pid, SIGKILL);
    while (waitpid(d->pid, status, 0) < 0 && errno == EINTR) {
    }
    read_all(d);
    close_end(&d->out);
    close_end(&d->said);
    close_end(&d->pidfd);
    d->pid = 0;
    d->kill_at = 0;
    d->next_at = kolorun_now() + d->options->every_s;
}

static bool judge(discovery_t *d, int status)
{
    char why[300];
    while (d->complaint_used && d->complaint[d->complaint_used - 1] == ' ')
        d->complaint[--d->complaint_used] = '\0';
    const char *colon = d->complaint_used ? ": " : "";
    kolorun_hostlist_t list = {0};
    if (WIFSIGNALED(status)) {
        warn(d, "the discovery script was killed by signal %d%s%s", WTERMSIG(status), colon, d->complaint);
    } else if (WEXITSTATUS(status) != 0) {
        warn(d, "the discovery script ended with status %d%s%s", WEXITSTATUS(status), colon, d->complaint);
    } else if (d->cut || d->used == TEXT_MAX) {
        warn(d, "the discovery script printed more than %u bytes", TEXT_MAX - 1);
    } else if (memchr(d->text, '\0', d->used)) {
        warn(d, "the discovery script printed bytes that are no text");
    } else if (!kolorun_hostlist_add(&list, d->text, d->used, why, sizeof why)) {
        warn(d, "the discovery script printed what is no list of hosts: %s", why);
    } else {
        if (d->warned[0] != '\0') kolorun_sink_printf(d->err, "the discovery script answers again");
        d->warned[0] = '\0';
        kolorun_hostlist_fini(&d->answer);
        d->answer = list;
        return d->has_answer = true;
    }
    kolorun_hostlist_fini(&list);
    return false;
}

static bool has_ended(pid_t pid)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

bool discovery_progress(discovery_t *d)
{
    int status;
    if (d->pid == 0) {
        if (d->next_at != 0 && kolorun_now() >= d->next_at) start(d);
        return false;
    }
    read_all(d);
    if (has_ended(d->pid)) { /* its group is still its own: it has not been waited for */
        reap(d, &status);
        return judge(d, status);
    }
    if (d->cut || kolorun_now() >= d->kill_at) {
        bool cut = d->cut;
        reap(d, &status);
        if (cut)
            warn(d, "the discovery script printed more than %u bytes and was ended", TEXT_MAX - 1);
        else
            warn(d, "the discovery script did not end within %g s and was ended", d->options->patience_s);
    }
    return false;
}

void discovery_polls(const discovery_t *d, struct pollfd polls[POLICY_POLLS])
{
    /* Only its end is waited for, and room in its pipes while it writes. */
    polls[0] = (struct pollfd){.fd = d->pidfd, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = d->out, .events = POLLIN};
    polls[2] = (struct pollfd){.fd = d->said, .events = POLLIN};
}

double discovery_next_s(const discovery_t *d)
{
    return d->pid != 0 ? d->kill_at : d->next_at;
}

void discovery_fini(discovery_t *d)
{
    int status;
    if (d->pid != 0) reap(d, &status);
    kolorun_hostlist_fini(&d->answer);
    free(d->text);
    d->text = NULL;
    d->next_at = 0;
}
