/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes of a job that left its process group, by setsid() as daemons do. They are found in two ways. The agent
 * is the subreaper of all that it starts: who loses its parent becomes its child, so at the end it kills its
 * children until there are none. The guard, which acts when the agent was killed, knows the processes of the job by
 * the variable in their environment that names the job's directory.
 */
#include "kolorun_agent.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS        20 /* of looking for what was forked meanwhile */
#define ORPHANS_S     3
#define ENVIRON_BYTES (4u << 20)
#define PF_EXITING    0x4u /* linux/sched.h: what it holds is being given back */

/* The number behind the n-th word after the name in /proc/PID/stat; -1: it has gone. */
static long long stat_field(pid_t pid, int n)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t bytes = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0) close(fd);
    if (bytes <= 0) return -1;
    text[bytes] = '\0';
    const char *at = strrchr(text, ')'); /* the name may hold anything */
    for (; at != NULL && n > 0; n--) at = strchr(at + 1, ' ');
    return at != NULL && *at == ' ' ? strtoll(at, NULL, 10) : -1;
}

bool kolorun_is_dying(pid_t pid)
{
    long long flags = stat_field(pid, 7);
    return flags >= 0 && ((unsigned long long)flags & PF_EXITING);
}

/* Calls `act` for each process that there is; returns the sum of what it returned. */
static int each_process(int (*act)(pid_t pid, const void *arg), const void *arg)
{
    DIR *dir = opendir("/proc");
    int n = 0;
    if (dir == NULL) return 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        if (isdigit((unsigned char)e->d_name[0])) n += act((pid_t)atoi(e->d_name), arg);
    closedir(dir);
    return n;
}

/* By its number, which is its own until we wait for it. */
static int kill_child(pid_t pid, const void *arg)
{
    return stat_field(pid, 2) == *(const pid_t *)arg && kill(pid, SIGKILL) == 0;
}

void kolorun_kill_children(void)
{
    pid_t self = getpid(), pid;
    for (;;) {
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0) {
        }
        if (pid < 0 && errno == ECHILD) return;
        each_process(kill_child, &self);
        while (waitpid(-1, NULL, 0) < 0 && errno == EINTR) {
        }
    }
}

void kolorun_end_orphans(void)
{
    double until = kolorun_now() + ORPHANS_S;
    pid_t pid;
    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0 || (pid == 0 && kolorun_now() < until))
        if (pid == 0) poll(NULL, 0, 10); /* a guard may be at its work */
    if (pid == 0) kolorun_kill_children();
}

/* Kills it if it has this variable; the text is "KEY=VALUE". Its descriptor comes before the look: it is somebody
 * else's child, which may be reaped at any time. */
static int kill_marked(pid_t pid, const void *arg)
{
    const char *mark = arg;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    int pidfd = kolorun_pidfd_open(pid), fd = open(path, O_RDONLY | O_CLOEXEC), killed = 0;
    char *text = fd >= 0 && pid != getpid() ? malloc(ENVIRON_BYTES) : NULL;
    size_t used = 0, length = strlen(mark) + 1; /* with its NUL */
    for (ssize_t n; text != NULL && (n = read(fd, text + used, ENVIRON_BYTES - used)) > 0;) used += (size_t)n;
    for (const char *at = text; at != NULL && at + length <= text + used && !killed;) {
        if (memcmp(at, mark, length) == 0) killed = kolorun_pidfd_signal(pidfd, SIGKILL);
        const char *end = memchr(at, '\0', used - (size_t)(at - text));
        at = end != NULL ? end + 1 : NULL;
    }
    free(text);
    if (fd >= 0) close(fd);
    if (pidfd >= 0) close(pidfd);
    return killed;
}

void kolorun_kill_marked(const char *mark)
{
    for (int i = 0; i < ROUNDS && each_process(kill_marked, mark) > 0; i++) {
    }
}
