/* SPDX-License-Identifier: Apache-2.0
 *
 * Two hosts on one machine: network namespaces joined by a veth pair, the cable. Each belongs to a process that
 * does nothing and dies with this one, and goes with it; nothing outside of them is touched.
 */
#include "monitor.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t holders[2];
static int spaces[2] = {-1, -1};

/* Returns once the child is in a namespace of its own. */
static bool hold(int host)
{
    int pipe_fds[2];
    char path[64], ready = 0;
    pid_t parent = getpid();
    if (pipe2(pipe_fds, O_CLOEXEC)) return false;
    fflush(NULL);
    holders[host] = fork();
    if (holders[host] == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setpgid(0, 0);
        if (getppid() != parent || unshare(CLONE_NEWNET) || write(pipe_fds[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    close(pipe_fds[1]);
    bool fine = holders[host] > 0 && read(pipe_fds[0], &ready, 1) == 1;
    close(pipe_fds[0]);
    if (!fine) return false;
    snprintf(path, sizeof path, "/proc/%d/ns/net", (int)holders[host]);
    spaces[host] = open(path, O_RDONLY | O_CLOEXEC);
    return spaces[host] >= 0;
}

bool hosts_enter(int host)
{
    return host < 0 || setns(spaces[host], CLONE_NEWNET) == 0;
}

/* Runs ip(8) on a host. */
static bool ip(int host, const char *const *arguments)
{
    const char *argv[16] = {"ip"};
    int status, n = 1;
    for (; arguments[n - 1] && n < 15; n++) argv[n] = arguments[n - 1];
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (hosts_enter(host)) execvp("ip", (char *const *)argv);
        _exit(127);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool hosts_make(monitor_t *m, const char **why_not)
{
    const char *const address[2] = {"10.79.0.1/24", "10.79.0.2/24"};
    char peer[16];
    *why_not = "only root can make network namespaces";
    if (geteuid() != 0) return false;
    *why_not = "this machine gives no network namespaces";
    if (!hold(0) || !hold(1)) return false;
    *why_not = "ip(8) cannot make a veth pair here";
    snprintf(peer, sizeof peer, "%d", (int)holders[1]);
    if (!ip(0, (const char *const[]){"link", "add", "name", "eth0", "type", "veth", "peer", "name", "eth0", "netns",
                                     peer, NULL}))
        return false;
    for (int host = 0; host < 2; host++) {
        bool up = ip(host, (const char *const[]){"link", "set", "lo", "up", NULL}) &&
                  ip(host, (const char *const[]){"addr", "add", address[host], "dev", "eth0", NULL}) &&
                  ip(host, (const char *const[]){"link", "set", "eth0", "up", NULL});
        if (!up) return false;
    }
    m->linked = true;
    return true;
}

void hosts_link(bool up)
{
    ip(0, (const char *const[]){"link", "set", "eth0", up ? "up" : "down", NULL});
}

void hosts_end(void)
{
    for (int host = 0; host < 2; host++) {
        if (spaces[host] >= 0) close(spaces[host]);
        spaces[host] = -1;
        if (holders[host] <= 0) continue;
        kill(holders[host], SIGKILL);
        waitpid(holders[host], NULL, 0);
        holders[host] = 0;
    }
}
