/* SPDX-License-Identifier: Apache-2.0
 *
 * kolorun and who started it: what it takes over at its begin (descriptors, signals) and how it hands over the last
 * of the output; and whether whoever started it is still there.
 */
#include "kolorun.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

int kolorun_begin(kolorun_sink_t *out, kolorun_sink_t *err)
{
    static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    kolorun_sink_init(out, STDOUT_FILENO);
    kolorun_sink_init(err, STDERR_FILENO);
    struct rlimit files; /* a host takes four; agents and what they start have the user's limit back */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    sigset_t mask;
    sigemptyset(&mask);
    for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++) sigaddset(&mask, passed_on[i]);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL); /* ignored by whoever started us, there would be nothing to wait for */
    int signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signal_fd < 0) kolorun_sink_printf(err, "signalfd: %s", strerror(errno));
    return signal_fd;
}

static bool is_ignored(int sig)
{
    struct sigaction now;
    return sigaction(sig, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

int kolorun_open_starter(void)
{
    const pid_t parent = getppid();
    /* nohup, a script's background, setsid, a shell with job control: it was meant to outlive that. */
    if (is_ignored(SIGHUP) || is_ignored(SIGINT) || getsid(0) == getpid() || parent <= 1 ||
        getpgid(parent) != getpgrp())
        return -1;
    int fd = (int)syscall(SYS_pidfd_open, parent, 0u);
    if (fd >= 0 && getppid() == parent) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

void kolorun_user_polls(const kolorun_sink_t *out, const kolorun_sink_t *err, int signal_fd,
                        struct pollfd polls[KOLORUN_USER_POLLS])
{
    polls[0] = (struct pollfd){.fd = signal_fd, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = kolorun_sink_pending(out) > 0 ? out->fd : -1, .events = POLLOUT};
    polls[2] = (struct pollfd){.fd = kolorun_sink_pending(err) > 0 ? err->fd : -1, .events = POLLOUT};
}

void kolorun_sooner(double *next, double at)
{
    if (at != 0 && (*next == 0 || at < *next)) *next = at;
}

int kolorun_wait_ms(double until)
{
    if (until == 0) return -1;
    double left = (until - kolorun_now()) * 1e3;
    return left <= 0 ? 0 : left > 1e6 ? 1000000 : (int)left + 1;
}

void kolorun_drain(kolorun_sink_t *out, kolorun_sink_t *err, int signal_fd)
{
    kolorun_sink_flush(out);
    kolorun_sink_flush(err);
    while (kolorun_sink_pending(out) + kolorun_sink_pending(err) > 0) {
        struct signalfd_siginfo info;
        struct pollfd polls[KOLORUN_USER_POLLS];
        kolorun_user_polls(out, err, signal_fd, polls);
        if (poll(polls, KOLORUN_USER_POLLS, -1) < 0 && errno != EINTR) return;
        if (polls[0].revents && read(signal_fd, &info, sizeof info) > 0 && info.ssi_signo != SIGUSR1 &&
            info.ssi_signo != SIGUSR2)
            return; /* the reader does not read and the user does not want to wait */
        kolorun_sink_flush(out);
        kolorun_sink_flush(err);
    }
}
