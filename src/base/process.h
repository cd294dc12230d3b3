/* SPDX-License-Identifier: Apache-2.0
 *
 * What the system knows about another process of this host; how this one starts threads.
 */
#ifndef KOLO_BASE_PROCESS_H
#define KOLO_BASE_PROCESS_H

#include "base/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the state letter of proc(5): R, S, T for stopped, Z for ended but not waited for, ...; '\0': there is
 * none. */
char kolo_process_state(int pid);
static inline bool kolo_process_stopped(int pid)
{
    char state = kolo_process_state(pid);
    return state == 'T' || state == 't';
}
static inline bool kolo_process_gone(int pid)
{
    char state = kolo_process_state(pid);
    return state == '\0' || state == 'Z' || state == 'X';
}

/* A process with much memory takes seconds to end, and its sockets are closed, and those who wait for it told, only
 * when that memory has been freed. What goes on meanwhile: */
typedef enum {
    KOLO_PROCESS_LIVES,
    KOLO_PROCESS_DOOMED, /* killed: none of its threads goes back to its program; one may be in a system call */
    KOLO_PROCESS_ENDS    /* none of its threads is in a system call either */
} kolo_process_end_t;
/* Returns LIVES also where the system does not say. */
kolo_process_end_t kolo_process_end(int pid);

/* Prints "this process has 1024 of at most 1024 descriptors open (ulimit -n, RLIMIT_NOFILE)"; returns buf. */
const char *kolo_fd_print_all(char *buf, size_t bytes);

/* Returns how many fork()s lie between this process and the first one that asked: another number in each child,
 * which has its parent's memory but none of its threads. Any thread. */
uint32_t kolo_process_forks(void);
/* Was it made in this process, when kolo_process_forks() was `forks`? Else what waits for a thread of it would wait
 * for ever: KOLO_ERR_INVALID_USAGE with the names of the call and the thing. */
kolo_status_t kolo_process_check_own(uint32_t forks, const char *call, const char *what);

/* Gives a lock that any thread may hold to each child of fork() anew: whoever held it there is a thread that the
 * child does not have. What it guards must be good at each moment. Before main(), from a constructor. */
void kolo_process_renew_lock(pthread_mutex_t *lock);
#define KOLO_FORK_RENEWS(lock)                                                                                     \
    __attribute__((constructor)) static void renew_in_children(void)                                               \
    {                                                                                                              \
        kolo_process_renew_lock(&(lock));                                                                          \
    }

/* Starts fn(arg) in a thread of Kolo's own. Signals are for the program's threads: all are blocked in it but those
 * that a thread's own instructions bring (SIGSEGV and its like) and the profilers' SIGPROF. stack_bytes 0: what
 * the system gives. *thread is the caller's to join; NULL: nobody joins it. Returns 0 or an error number. Any
 * thread. */
int kolo_thread_start(pthread_t *thread, size_t stack_bytes, void *(*fn)(void *), void *arg);

/* Finds its parent, and its start in clock ticks since the system's. false: it is gone. */
bool kolo_process_origin(int pid, int *parent, uint64_t *start_ticks);

/* Fills it with random bytes of the kernel. */
kolo_status_t kolo_random(void *data, size_t bytes);

#endif
