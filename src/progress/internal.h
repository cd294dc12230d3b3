/* SPDX-License-Identifier: Apache-2.0
 *
 * What progress.c and timer.c share: the progress thread itself. One lock guards all of it; handlers run without
 * the lock, and `running` says whose handler that is, so that another thread which removes it can wait for its end.
 */
#ifndef KOLO_PROGRESS_INTERNAL_H
#define KOLO_PROGRESS_INTERNAL_H

#include "progress/progress.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

typedef struct kolo_progress_call kolo_progress_call_t;

struct kolo_progress {
    pthread_mutex_t lock;
    pthread_cond_t handler_ended;
    pthread_t thread;
    pid_t pid;         /* a child of fork() has this memory but not the thread */
    _Atomic pid_t tid; /* the thread's; 0: it does not run yet */
    int epoll_fd, event_fd;
    uint32_t refs; /* guarded by the singleton's lock */
    uint32_t waiting_for_handler;
    bool stop, detached;
    bool woken;    /* the doorbell has been rung and not yet read */
    void *running; /* watch or timer whose handler runs now */
    kolo_watch_t *garbage;
    kolo_progress_call_t *jobs, **jobs_tail;
    kolo_timer_t **heap; /* by due time */
    size_t ntimers, timers_cap;
    size_t timers_alive; /* also those that have fired and are not cancelled */
};

/* Returns true when the caller is the progress thread. */
bool kolo_progress_is_self(const kolo_progress_t *progress);
/* Tells whether fork() left it to this process: nothing of it may be touched but memory. */
bool kolo_progress_is_stale(const kolo_progress_t *progress);
void kolo_progress_wake_locked(kolo_progress_t *progress);
/* Waits, with the lock held, until the handler of `object` is not running (returns at once on the progress
 * thread). */
void kolo_progress_wait_handler_locked(kolo_progress_t *progress, const void *object);

/* Timers, with the lock held. next: milliseconds until the first is due, -1 if there is none. */
int kolo_timer_next_ms_locked(const kolo_progress_t *progress);
kolo_timer_t *kolo_timer_take_due_locked(kolo_progress_t *progress, uint64_t now_ns);
void kolo_timer_run(kolo_timer_t *timer);

#endif
