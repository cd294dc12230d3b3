/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults inside a rank: those that the driver asks for by a signal at a moment of its own, those of fail points,
 * and allocations that fail. The linker puts our allocator in front of the library's calls (--wrap), so only its
 * own allocations fail, not those of the harness or of other libraries.
 */
#include "chaos/chaos.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NAME_BYTES 48

static const chaos_scenario_t *scenario;
static chaos_shared_t *shared;
static int my_rank;
static _Atomic int to_fail; /* allocations that are still to fail */
static struct rlimit files;

/* ---- allocations ---- */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
char *__real_strdup(const char *s);
int __real_posix_memalign(void **p, size_t align, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);
char *__wrap_strdup(const char *s);
int __wrap_posix_memalign(void **p, size_t align, size_t bytes);

static bool fails(void)
{
    int left = atomic_load_explicit(&to_fail, memory_order_relaxed);
    while (left > 0 && !atomic_compare_exchange_weak(&to_fail, &left, left - 1)) continue;
    if (left > 0) errno = ENOMEM;
    return left > 0;
}

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return fails() ? NULL : __real_calloc(n, bytes);
}

void *__wrap_realloc(void *p, size_t bytes)
{
    return fails() ? NULL : __real_realloc(p, bytes);
}

char *__wrap_strdup(const char *s)
{
    return fails() ? NULL : __real_strdup(s);
}

int __wrap_posix_memalign(void **p, size_t align, size_t bytes)
{
    return fails() ? ENOMEM : __real_posix_memalign(p, align, bytes);
}

void *chaos_alloc(size_t bytes)
{
    void *p = __real_malloc(bytes ? bytes : 1);
    if (!p) abort();
    return p;
}

void chaos_free(void *p)
{
    free(p);
}

/* ---- doing it ---- */

static void note(void)
{
    uint64_t none = 0;
    if (my_rank != scenario->victim) return; /* who is lost before the fault */
    if (atomic_compare_exchange_strong(&shared->fault_ns, &none, chaos_now_ns()))
        atomic_store(&shared->fault_progress, atomic_load(&shared->ranks[my_rank].progress));
}

static size_t place_of(const char *name)
{
    for (size_t i = 0; kolo_fail_point_at(i); i++)
        if (strcmp(kolo_fail_point_at(i)->name, name) == 0) return i;
    return 0;
}

static void passed(const char *name, kolo_fault_t fault)
{
    size_t i = place_of(name);
    if (i < CHAOS_POINTS) atomic_fetch_add(&shared->ranks[my_rank].hits[i], 1);
    if (fault == KOLO_FAULT_NONE) return;
    note();
    if (fault == KOLO_FAULT_NOMEM) atomic_store(&to_fail, scenario->number);
}

/* At a moment that the driver chose; whatever the rank was doing. Only calls that a signal may interrupt. */
static void on_signal(int signo)
{
    int saved = errno;
    (void)signo;
    note();
    switch (scenario->fault) {
    case KOLO_FAULT_RESET:
        kolo_fault_reset_sockets();
        break;
    case KOLO_FAULT_NOFILE:
        kolo_fault_fill_descriptors();
        break;
    case KOLO_FAULT_NOMEM:
        atomic_store(&to_fail, scenario->number);
        break;
    case KOLO_FAULT_FORK:
    case KOLO_FAULT_ORPHAN:
        if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0) { /* fork() takes locks that we may hold */
            alarm(1);                                       /* holds everything until then */
            signal(SIGALRM, SIG_DFL);
            for (;;) pause();
        }
        if (scenario->fault == KOLO_FAULT_ORPHAN) kill(getpid(), SIGKILL);
        break;
    default:
        _exit(3);
    }
    errno = saved;
}

void chaos_faults_prepare(const chaos_scenario_t *s, chaos_shared_t *sh, int rank)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    scenario = s;
    shared = sh;
    my_rank = rank;
    kolo_fail_point_hook = passed;
    getrlimit(RLIMIT_NOFILE, &files);
    sigaction(SIGUSR1, &action, NULL);
}

void chaos_faults_end(void)
{
    signal(SIGUSR1, SIG_IGN); /* one that comes too late would take the descriptors of the last look */
    atomic_store(&to_fail, 0);
    setrlimit(RLIMIT_NOFILE, &files);
}
