/* SPDX-License-Identifier: Apache-2.0
 *
 * The processes of one host. All are in one process group whose leader is the guard, a child of the agent that does
 * nothing but wait for the end of a pipe that only the agent holds. However the agent ends, kill -9 included, the
 * pipe closes; then the guard removes the directory and kills the group, children of the processes included, and
 * those that have left the group (kolorun_leftover.c). While the guard lives the group's number cannot mean
 * anything else. Each process also asks the kernel to be killed with its parent, should the guard be gone too.
 */
#include "kolorun_agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int kolorun_pidfd_open(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0); /* close-on-exec by itself */
}

bool kolorun_pidfd_signal(int pidfd, int sig)
{
    return pidfd >= 0 && syscall(SYS_pidfd_send_signal, pidfd, sig, NULL, 0) == 0;
}

static bool complain(kolorun_group_t *group, const char *what)
{
    snprintf(group->error, sizeof group->error, "%s: %s", what, strerror(errno));
    return false;
}

/* ---- the directory ---- */

#define LOCK_FILE   ".lock"
#define STALE_AGE_S 10 /* between the making of a lock and the locking of it lies less */

static void remove_files(int fd)
{
    int again = dup(fd);
    DIR *dir = again >= 0 ? fdopendir(again) : NULL;
    if (dir == NULL) {
        if (again >= 0) close(again);
        return;
    }
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) unlinkat(fd, e->d_name, 0);
    closedir(dir);
}

/* Where agent and guard have both died at once, nobody else removes their directory: nobody holds its lock. */
static void remove_if_stale(int tmp, const char *name)
{
    struct stat st;
    int fd = openat(tmp, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), lock = -1;
    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_uid == geteuid())
        lock = openat(fd, LOCK_FILE, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (lock >= 0 && fstat(lock, &st) == 0 && S_ISREG(st.st_mode) && st.st_mtime + STALE_AGE_S < time(NULL) &&
        flock(lock, LOCK_EX | LOCK_NB) == 0) {
        remove_files(fd);
        unlinkat(tmp, name, AT_REMOVEDIR);
    }
    if (lock >= 0) close(lock);
    if (fd >= 0) close(fd);
}

static void remove_stale_dirs(const char *tmp)
{
    DIR *dir = opendir(tmp);
    if (dir == NULL) return;
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        if (strncmp(e->d_name, "kolorun-", 8) == 0 && strlen(e->d_name) == 14)
            remove_if_stale(dirfd(dir), e->d_name);
    closedir(dir);
}

static bool make_dir(kolorun_group_t *group)
{
    const char *tmp = getenv("TMPDIR");
    int n = snprintf(group->dir, sizeof group->dir, "%s/kolorun-XXXXXX", tmp != NULL && *tmp ? tmp : "/tmp");
    if (n < 0 || (size_t)n >= sizeof group->dir) {
        group->dir[0] = '\0';
        errno = ENAMETOOLONG;
        return complain(group, "TMPDIR");
    }
    if (mkdtemp(group->dir) == NULL) { /* mode 0700 */
        char what[sizeof group->dir + 64];
        snprintf(what, sizeof what, "cannot make the job's directory %s (TMPDIR chooses where)", group->dir);
        complain(group, what);
        group->dir[0] = '\0';
        return false;
    }
    char path[sizeof group->dir + 16];
    snprintf(path, sizeof path, "%s/" LOCK_FILE, group->dir);
    group->dir_lock = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (group->dir_lock < 0 || flock(group->dir_lock, LOCK_SH | LOCK_NB) != 0) return complain(group, path);
    remove_stale_dirs(tmp != NULL && *tmp ? tmp : "/tmp");
    return true;
}

static void remove_dir(const char *path)
{
    DIR *dir = path[0] != '\0' ? opendir(path) : NULL;
    if (dir == NULL) return;
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) unlinkat(dirfd(dir), e->d_name, 0);
    closedir(dir);
    rmdir(path);
}

/* ---- the guard ---- */

/* Runs in the guard; its signals are still blocked as in the agent, so what the group gets does not end it
 * early. */
static _Noreturn void guard_main(const kolorun_group_t *group, int pipe_end)
{
    setpgid(0, 0);
    prctl(PR_SET_NAME, "kolorun-guard");
    if (dup2(pipe_end, 0) < 0 || dup2(group->dir_lock, 1) < 0)
        _exit(1); /* the lock lives as long as one of the two */
    /* Holds nothing of the user's: neither the connection to kolorun nor what whoever started it left open. */
    if (syscall(SYS_close_range, 2u, ~0u, 0u) != 0)
        for (int fd = 2; fd < 1024; fd++) close(fd);
    char c;
    while (read(0, &c, 1) < 0 && errno == EINTR) {
    }
    remove_dir(group->dir);
    char mark[sizeof group->dir + 32];
    snprintf(mark, sizeof mark, "KOLO_ID_FILE=%s/id", group->dir);
    kolorun_kill_marked(mark); /* those that have left the group, too */
    kill(0, SIGKILL);
    _exit(0);
}

static bool start_guard(kolorun_group_t *group)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return complain(group, "pipe");
    group->guard_pipe = ends[1];
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[1]); /* or it would wait for itself */
        guard_main(group, ends[0]);
    }
    close(ends[0]);
    if (pid < 0) return complain(group, "fork");
    setpgid(pid, pid); /* here too: the processes join it at once */
    group->guard = pid;
    group->guard_pidfd = kolorun_pidfd_open(pid);
    return group->guard_pidfd >= 0 || complain(group, "pidfd_open (Linux 5.3 or newer is needed)");
}

bool kolorun_group_init(kolorun_group_t *group)
{
    struct rlimit files;
    int ends[2];
    *group = (kolorun_group_t){
        .guard_pidfd = -1, .guard_pipe = -1, .child_fd = -1, .start_read = -1, .start_write = -1, .dir_lock = -1};
    if (getrlimit(RLIMIT_NOFILE, &group->old_files) == 0) {
        files = group->old_files;
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    sigset_t mask, child;
    sigfillset(&mask); /* what the agent is to do comes by its input */
    sigprocmask(SIG_SETMASK, &mask, &group->old_mask);
    group->old_umask = umask(077);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);         /* ignored by whoever started us, there would be nothing to wait for */
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* processes that lose their parents become ours */
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    group->child_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    if (group->child_fd < 0) return complain(group, "signalfd");
    if (!make_dir(group) || !start_guard(group)) return false;
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return complain(group, "pipe");
    group->start_read = ends[0];
    group->start_write = ends[1];
    return true;
}

/* ---- the processes ---- */

/* Where kolorun's store is: kolorun says a whole address to hosts of its own, where an SSH_CONNECTION is that of
 * whoever started it; elsewhere only a port, on the host that the agent's ssh came from. */
static bool set_store(const kolorun_group_t *group)
{
    char address[300], path[sizeof group->dir + 16];
    const char *at = getenv("KOLO_STORE_AT"), *from = getenv("SSH_CONNECTION");
    if (at == NULL) return true;
    size_t n = from != NULL ? strcspn(from, " ") : 0;
    if (strchr(at, ':') != NULL || n == 0 || n >= 256)
        snprintf(address, sizeof address, "%s%s", strchr(at, ':') != NULL ? "" : "127.0.0.1:", at);
    else if (memchr(from, ':', n) != NULL)
        snprintf(address, sizeof address, "[%.*s]:%s", (int)n, from, at);
    else
        snprintf(address, sizeof address, "%.*s:%s", (int)n, from, at);
    snprintf(path, sizeof path, "%s/store.key", group->dir);
    return setenv("KOLO_STORE", address, 1) == 0 && setenv("KOLO_STORE_KEY_FILE", path, 1) == 0 &&
           unsetenv("KOLO_STORE_AT") == 0;
}

static bool set_environment(const kolorun_group_t *group, char **env)
{
    char path[sizeof group->dir + 8];
    snprintf(path, sizeof path, "%s/id", group->dir);
    bool ok = setenv("KOLO_ID_FILE", path, 1) == 0;
    for (; ok && env != NULL && *env != NULL; env++) ok = putenv(*env) == 0;
    return ok && set_store(group);
}

/* Runs in the child: becomes the program or says why not. */
static _Noreturn void child_main(const kolorun_group_t *group, int id, const kolorun_spec_t *spec, pid_t parent,
                                 const int pipes[3])
{
    setpgid(0, group->guard);
    int in = spec->input ? pipes[0] : open("/dev/null", O_RDONLY | O_CLOEXEC);
    /* The parent may have died before the request: then nobody would tell us. */
    bool ok = prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent && in >= 0 && dup2(in, 0) == 0 &&
              dup2(pipes[1], 1) == 1 && dup2(pipes[2], 2) == 2 && set_environment(group, spec->env);
    int stage = 0;
    if (ok && spec->dir != NULL && spec->dir[0] != '\0' && chdir(spec->dir) != 0) {
        ok = false;
        stage = KOLORUN_ERROR_DIR;
    }
    if (ok) {
        kolorun_bind_self(group->places, STDERR_FILENO);
        signal(SIGPIPE, SIG_DFL);
        sigprocmask(SIG_SETMASK, &group->old_mask, NULL);
        umask(group->old_umask);
        setrlimit(RLIMIT_NOFILE, &group->old_files);
        execvp(spec->argv[0], spec->argv);
    }
    kolorun_start_error_t why = {.id = id, .error = errno | stage};
    ssize_t n = write(group->start_write, &why, sizeof why);
    _exit(n == (ssize_t)sizeof why && why.error != ENOENT ? 126 : 127);
}

/* The ends of pipes for stdin (-1 without input), stdout and stderr: the process's and ours. */
static bool make_pipes(kolorun_group_t *group, bool input, int theirs[3], int ours[3])
{
    for (int k = 0; k < 3; k++) theirs[k] = ours[k] = -1;
    for (int k = input ? 0 : 1; k < 3; k++) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0) return complain(group, "pipe");
        theirs[k] = ends[k > 0];
        ours[k] = ends[k == 0];
        fcntl(ours[k], F_SETFL, O_NONBLOCK);
    }
    return true;
}

static void close_ends(const int ends[3])
{
    const int error = errno;
    for (int k = 0; k < 3; k++)
        if (ends[k] >= 0) close(ends[k]);
    errno = error;
}

bool kolorun_group_start(kolorun_group_t *group, int id, const kolorun_spec_t *spec, const kolorun_child_t **child)
{
    int theirs[3], ours[3];
    if (!make_pipes(group, spec->input, theirs, ours)) {
        close_ends(theirs);
        close_ends(ours);
        return false;
    }
    group->children = kolorun_grow(group->children, sizeof *group->children * ((size_t)group->nchildren + 1));
    kolorun_child_t *c = &group->children[group->nchildren];
    kolorun_places_need(&group->places, spec->env);
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) child_main(group, id, spec, parent, theirs);
    close_ends(theirs);
    if (pid < 0) {
        complain(group, "fork");
        close_ends(ours);
        return false;
    }
    setpgid(pid, group->guard); /* the child does it too; whoever is first, it is done before a signal is sent */
    *c = (kolorun_child_t){.id = id, .pid = pid, .pidfd = kolorun_pidfd_open(pid), .pipes = {ours[1], ours[2]}};
    if (c->pidfd < 0) { /* out of descriptors: a process that cannot be watched is not to be */
        int error = errno;
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        errno = error;
        close_ends(ours);
        return complain(group, "pidfd_open");
    }
    kolorun_sink_init(&c->in, ours[0]);
    c->in.nonblocking = true;
    group->nchildren++;
    *child = c;
    return true;
}

void kolorun_child_close_input(kolorun_child_t *child)
{
    if (child->in.fd >= 0) close(child->in.fd);
    kolorun_sink_fini(&child->in); /* fd -1 */
}

void kolorun_group_signal(const kolorun_group_t *group, int sig)
{
    if (group->guard > 0) {
        kill(-group->guard, sig);
        return;
    }
    for (int i = 0; i < group->nchildren; i++) /* the guard is gone: its number may be another's by now */
        kolorun_pidfd_signal(group->children[i].pidfd, sig);
}

void kolorun_group_reap(kolorun_group_t *group)
{
    struct signalfd_siginfo info;
    int status;
    while (read(group->child_fd, &info, sizeof info) == (ssize_t)sizeof info) {
    }
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        if (pid == group->guard) group->guard = 0; /* its descriptor tells the loop */
        for (int i = 0; i < group->nchildren; i++) {
            kolorun_child_t *c = &group->children[i];
            if (c->pid != pid || c->reaped) continue;
            c->reaped = true;
            c->status = status;
            c->order = group->nreaped++;
        }
    }
}

void kolorun_group_guard_gone(kolorun_group_t *group)
{
    while (group->guard > 0 && waitpid(group->guard, NULL, 0) < 0 && errno == EINTR) {
    }
    if (group->guard_pidfd >= 0) close(group->guard_pidfd);
    group->guard_pidfd = -1;
    group->guard = 0;
}

void kolorun_group_fini(kolorun_group_t *group)
{
    kolorun_group_signal(group, SIGKILL); /* the guard with it */
    for (int i = 0; i < group->nchildren; i++) {
        kolorun_child_t *c = &group->children[i];
        if (c->pidfd >= 0) close(c->pidfd);
        kolorun_child_close_input(c);
        for (int k = 0; k < 2; k++)
            if (c->pipes[k] >= 0) close(c->pipes[k]);
    }
    kolorun_group_guard_gone(group);
    kolorun_kill_children();
    if (group->child_fd >= 0) close(group->child_fd);
    if (group->guard_pipe >= 0) close(group->guard_pipe);
    if (group->start_read >= 0) close(group->start_read);
    if (group->start_write >= 0) close(group->start_write);
    remove_dir(group->dir);
    if (group->dir_lock >= 0) close(group->dir_lock);
    kolorun_places_free(group->places);
    free(group->children);
    *group = (kolorun_group_t){
        .guard_pidfd = -1, .guard_pipe = -1, .child_fd = -1, .start_read = -1, .start_write = -1, .dir_lock = -1};
}
