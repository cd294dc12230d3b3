/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs side by side: worker processes take numbers from a common counter and tell what came of each run. A worker
 * adopts whatever its own runs leave behind (subreaper), so that each looks for lost processes among its own
 * descendants only, and has its own shared memory, logs and, with hosts, its own network namespaces.
 */
#include "chaos/chaos.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define JOBS_MAX 256

typedef struct {
    _Atomic uint64_t next;
    _Atomic int stop;
} common_t;

static struct {
    common_t *common;
    int tell_fd; /* a worker's end: one message per run */
    int lock_fd; /* who prints */
} here = {.tell_fd = -1, .lock_fd = -1};

static void on_stop(int signo)
{
    atomic_store(&here.common->stop, 1);
    signal(signo, SIG_DFL); /* the second time it ends at once, and all below with it */
}

void chaos_result_send(const chaos_result_t *r)
{
    while (send(here.tell_fd, r, sizeof *r, MSG_NOSIGNAL) < 0)
        if (errno != EINTR) abort();
}

/* What one run has to say stays together. The lock is the process's, so a rank never holds it. */
void chaos_print_lock(bool locked)
{
    struct flock lock = {.l_type = locked ? F_WRLCK : F_UNLCK, .l_whence = SEEK_SET};
    if (here.lock_fd < 0) return;
    while (fcntl(here.lock_fd, F_SETLKW, &lock) != 0)
        if (errno != EINTR) abort();
}

static void be_worker(const chaos_jobs_t *j)
{
    char why[128];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    signal(SIGINT, SIG_IGN); /* the dispatcher decides; ranks inherit it */
    signal(SIGTERM, SIG_IGN);
    if (j->hosts && !chaos_net_open(j->hosts, why, sizeof why)) {
        fprintf(stderr, "chaos: %s\n", why);
        _exit(2);
    }
    while (!atomic_load(&here.common->stop) && chaos_now_ns() < j->end_ns) {
        uint64_t i = atomic_fetch_add(&here.common->next, 1);
        if (i >= j->count) break;
        j->work(j->arg, i);
    }
    if (j->hosts) chaos_net_close();
    fflush(NULL);
    _exit(0);
}

static void take(const chaos_jobs_t *j, int fd)
{
    chaos_result_t r;
    while (recv(fd, &r, sizeof r, MSG_DONTWAIT) == (ssize_t)sizeof r) j->took(j->arg, &r);
}

/* Until all workers are gone. false: one of them broke. */
static bool attend(const chaos_jobs_t *j, int fd, int left)
{
    bool fine = true;
    while (left) {
        struct pollfd pfd = {.fd = fd, .events = POLLIN};
        int status;
        (void)poll(&pfd, 1, 50);
        take(j, fd);
        for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0; left--) {
            if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
            fprintf(stderr, "chaos: worker %d broke (status 0x%x): its last run is missing\n", (int)pid, status);
            fine = false;
        }
    }
    take(j, fd);
    return fine;
}

bool chaos_jobs_run(const chaos_jobs_t *j)
{
    int pair[2], started = 0;
    here.common = mmap(NULL, sizeof *here.common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    here.lock_fd = memfd_create("chaos-lock", MFD_CLOEXEC);
    if (here.common == MAP_FAILED || here.lock_fd < 0) abort();
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) abort();
    here.tell_fd = pair[1];
    signal(SIGINT, on_stop);
    signal(SIGTERM, on_stop);
    fflush(NULL);
    for (int k = 0; k < chaos_options.jobs && k < JOBS_MAX; k++, started++) {
        pid_t pid = fork();
        if (pid < 0) break;
        if (pid > 0) continue;
        close(pair[0]);
        be_worker(j);
    }
    close(pair[1]);
    bool fine = attend(j, pair[0], started) && started > 0;
    close(pair[0]);
    close(here.lock_fd);
    here.lock_fd = here.tell_fd = -1;
    bool stopped = atomic_load(&here.common->stop);
    munmap(here.common, sizeof *here.common);
    if (stopped) chaos_options.stopped = true;
    return fine;
}
