/* SPDX-License-Identifier: Apache-2.0
 *
 * Hosts as network namespaces: one each, and one with the bridge between them. The driver holds them by descriptors
 * alone, so they are gone when it is, however it ends. A link is cut on the bridge's side: packets are dropped, and
 * nobody is told.
 */
#include "chaos/chaos.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
    int hosts, bridge_fd, fds[CHAOS_HOSTS], pid;
} net = {.bridge_fd = -1};

/* A namespace of its own lives as long as the descriptor. */
static int make_namespace(void)
{
    int ready[2], fd = -1;
    char byte = 0, path[64];
    if (pipe2(ready, O_CLOEXEC) != 0) return -1;
    pid_t pid = fork();
    if (pid == 0) {
        if (unshare(CLONE_NEWNET) == 0) byte = 1;
        if (write(ready[1], &byte, 1) != 1) _exit(1);
        for (;;) pause();
    }
    if (pid > 0 && read(ready[0], &byte, 1) == 1 && byte) {
        snprintf(path, sizeof path, "/proc/%d/ns/net", (int)pid);
        fd = open(path, O_RDONLY); /* inherited by nsenter, on purpose */
    }
    if (pid > 0) kill(pid, SIGKILL);
    if (pid > 0) waitpid(pid, NULL, 0);
    close(ready[0]);
    close(ready[1]);
    return fd;
}

static bool inside(int fd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool inside(int fd, const char *fmt, ...)
{
    char command[256], whole[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(command, sizeof command, fmt, args);
    va_end(args);
    snprintf(whole, sizeof whole, "nsenter --net=/proc/%d/fd/%d %s >/dev/null 2>&1", net.pid, fd, command);
    return system(whole) == 0;
}

bool chaos_net_open(int hosts, char *why, size_t bytes)
{
    net.pid = (int)getpid();
    net.bridge_fd = make_namespace();
    if (geteuid() != 0 || net.bridge_fd < 0) {
        snprintf(why, bytes, "no network namespaces here (not root?)");
        return false;
    }
    bool fine = inside(net.bridge_fd, "ip link add name bridge0 type bridge forward_delay 0 stp_state 0") &&
                inside(net.bridge_fd, "ip link set bridge0 up");
    for (int h = 0; h < hosts && h < CHAOS_HOSTS && fine; h++, net.hosts++) {
        int fd = net.fds[h] = make_namespace();
        fine = fd >= 0 &&
               inside(net.bridge_fd, "ip link add name host%d type veth peer name eth0 netns /proc/%d/fd/%d", h,
                      net.pid, fd) &&
               inside(net.bridge_fd, "ip link set host%d master bridge0 up", h) &&
               inside(fd, "ip link set lo up") && inside(fd, "ip addr add 10.78.0.%d/16 dev eth0", h + 1) &&
               inside(fd, "ip link set eth0 up");
    }
    if (!fine) snprintf(why, bytes, "ip(8) cannot join namespaces by a bridge here");
    return fine;
}

void chaos_net_close(void)
{
    for (int h = 0; h < net.hosts; h++) close(net.fds[h]);
    if (net.bridge_fd >= 0) close(net.bridge_fd);
    net.bridge_fd = -1;
    net.hosts = 0;
}

bool chaos_net_enter(int host)
{
    if (setns(net.fds[host], CLONE_NEWNET) != 0) return false;
    chaos_net_close(); /* a rank holds no namespaces */
    return true;
}

void chaos_net_link(int host, bool up)
{
    for (int h = 0; h < net.hosts; h++)
        if (h == host || host < 0) (void)inside(net.bridge_fd, "ip link set host%d %s", h, up ? "up" : "down");
}
