/* SPDX-License-Identifier: Apache-2.0
 *
 * See process.h.
 */
#include "base/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

static _Atomic uint32_t forks; /* of this process and its ancestors */

static void count_fork(void)
{
    atomic_fetch_add(&forks, 1);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, count_fork);
}

uint32_t kolo_process_forks(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    return atomic_load_explicit(&forks, memory_order_relaxed);
}

enum { LOCKS = 32 };
static pthread_mutex_t *renewed[LOCKS];
static int nrenewed;

static void renew_locks(void)
{
    for (int i = 0; i < nrenewed; i++) pthread_mutex_init(renewed[i], NULL);
}

void kolo_process_renew_lock(pthread_mutex_t *lock)
{
    if (nrenewed == LOCKS) abort(); /* in each program alike: more of them want a larger table */
    if (nrenewed == 0) pthread_atfork(NULL, NULL, renew_locks);
    renewed[nrenewed++] = lock;
}

kolo_status_t kolo_process_check_own(uint32_t made, const char *call, const char *what)
{
    if (KOLO_LIKELY(made == kolo_process_forks())) return KOLO_OK;
    return kolo_fail(
        KOLO_ERR_INVALID_USAGE,
        "%s: the %s belongs to the process that this one was forked from; only there can it be used, or "
        "destroyed",
        call, what);
}

static void block_signals(sigset_t *before)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGPROF};
    sigset_t all;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) sigdelset(&all, own[i]);
    pthread_sigmask(SIG_BLOCK, &all, before);
}

static size_t for_each_thread; /* at most so many bytes of variables of the program and its libraries */
static pthread_once_t counted = PTHREAD_ONCE_INIT;

static int add_variables(struct dl_phdr_info *info, size_t bytes, void *sum)
{
    (void)bytes;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_TLS)
            *(size_t *)sum += info->dlpi_phdr[i].p_memsz + info->dlpi_phdr[i].p_align;
    return 0;
}

static void count_variables(void)
{
    dl_iterate_phdr(add_variables, &for_each_thread);
}

int kolo_thread_start(pthread_t *thread, size_t stack_bytes, void *(*fn)(void *), void *arg)
{
    pthread_attr_t attr;
    pthread_t unjoined;
    sigset_t before;
    int error = pthread_attr_init(&attr);
    if (error) return error;
    pthread_once(&counted, count_variables); /* glibc takes their room from the stack */
    if (stack_bytes > 0) error = pthread_attr_setstacksize(&attr, (stack_bytes + for_each_thread + 4095) & ~4095ul);
    if (!error && !thread) error = pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    block_signals(&before);
    if (!error) error = pthread_create(thread ? thread : &unjoined, &attr, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return error;
}

const char *kolo_fd_print_all(char *buf, size_t bytes)
{
    struct rlimit limit = {0};
    int open = 0;
    /* No descriptor may be left to read /proc with: those that there are tell by themselves. */
    getrlimit(RLIMIT_NOFILE, &limit);
    for (rlim_t fd = 0; fd < limit.rlim_cur && fd < 1u << 20; fd++) open += fcntl((int)fd, F_GETFD) >= 0;
    snprintf(buf, bytes, "this process has %d of at most %llu descriptors open (ulimit -n, RLIMIT_NOFILE)", open,
             (unsigned long long)limit.rlim_cur);
    return buf;
}

/* The kernel's own, but proc(5) shows it. */
#define PF_EXITING 0x4u

/* Reads what stands in a stat file behind the name, which may hold anything. NULL: it is gone. */
static const char *read_fields(const char *path, char *text, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    ssize_t n = read(fd, text, bytes - 1);
    close(fd);
    if (n <= 0) return NULL;
    text[n] = '\0';
    const char *end = strrchr(text, ')');
    return end && end[1] == ' ' ? end + 2 : NULL;
}

static const char *read_stat(int pid, char *text, size_t bytes)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    return read_fields(path, text, bytes);
}

char kolo_process_state(int pid)
{
    char text[1024];
    const char *fields = read_stat(pid, text, sizeof text);
    return fields ? fields[0] : '\0';
}

bool kolo_process_origin(int pid, int *parent, uint64_t *start_ticks)
{
    char text[1024];
    const char *at = read_stat(pid, text, sizeof text);
    int from;
    uint64_t start;
    if (!at || sscanf(at, "%*c %d", &from) != 1) return false;
    for (int field = 3; at && field < 22; field++) {
        at = strchr(at, ' ');
        if (at) at++;
    }
    if (!at || sscanf(at, "%" SCNu64, &start) != 1) return false;
    *parent = from;
    *start_ticks = start;
    return true;
}

/* ---- how far its end has come ---- */

static const char *skip_fields(const char *at, int count)
{
    while (at && count-- > 0) {
        at = strchr(at, ' ');
        if (at) at++;
    }
    return at;
}

/* Reads how a thread ended; false: there is no such thread. */
static bool thread_end(int pid, int thread, kolo_process_end_t *end)
{
    char text[1024], path[64];
    unsigned flags;
    unsigned long pending;
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, thread);
    const char *state = read_fields(path, text, sizeof text); /* field 3 */
    const char *at_flags = skip_fields(state, 6), *at_pending = skip_fields(state, 28);
    if (!at_pending || sscanf(at_flags, "%u", &flags) != 1 || sscanf(at_pending, "%lu", &pending) != 1)
        return false;
    bool over = *state == 'Z' || *state == 'X' || (flags & PF_EXITING);
    *end = over ? KOLO_PROCESS_ENDS : (pending & (1ul << (SIGKILL - 1))) ? KOLO_PROCESS_DOOMED : KOLO_PROCESS_LIVES;
    return true;
}

kolo_process_end_t kolo_process_end(int pid)
{
    char path[48];
    kolo_process_end_t least, one;
    if (!thread_end(pid, pid, &least) || least == KOLO_PROCESS_LIVES) return KOLO_PROCESS_LIVES; /* nearly always */
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *threads = opendir(path);
    if (!threads) return KOLO_PROCESS_LIVES;
    for (const struct dirent *e = readdir(threads); e && least != KOLO_PROCESS_LIVES; e = readdir(threads))
        if (e->d_name[0] != '.' && thread_end(pid, atoi(e->d_name), &one) && one < least) least = one;
    closedir(threads);
    return least;
}

kolo_status_t kolo_random(void *data, size_t bytes)
{
    uint8_t *p = data;
    while (bytes > 0) {
        ssize_t n = getrandom(p, bytes, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "no random bytes from the kernel");
        p += n;
        bytes -= (size_t)n;
    }
    return KOLO_OK;
}
