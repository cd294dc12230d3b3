/* SPDX-License-Identifier: Apache-2.0
 *
 * The progress thread: one per process, started by the first user and stopped by the last. It waits on one epoll
 * descriptor and calls handlers: descriptors that became ready, timers that are due, and calls posted by other
 * threads. Handlers must not block. Set-up traffic (listeners, authentication, the root, out-of-band messages,
 * descriptor passing) runs here, so that no peer ever waits for a rank that is busy computing.
 */
#ifndef KOLO_PROGRESS_PROGRESS_H
#define KOLO_PROGRESS_PROGRESS_H

#include "base/status.h"

typedef struct kolo_progress kolo_progress_t;
typedef struct kolo_watch kolo_watch_t;
typedef struct kolo_timer kolo_timer_t;

/* events: EPOLLIN, EPOLLOUT, ... Runs on the progress thread; may call watch_mod / watch_del on itself. */
typedef void (*kolo_watch_fn_t)(void *arg, int fd, uint32_t events);
typedef void (*kolo_timer_fn_t)(void *arg);

/* Counts a reference to the process's one. Any thread. After fork() the child has no progress thread: it gets a
 * fresh one. */
kolo_status_t kolo_progress_get(kolo_progress_t **progress);
/* Does the calling thread share its descriptors with the progress thread? Not after unshare(CLONE_FILES): what one
 * opens means nothing to the other, KOLO_ERR_INVALID_USAGE. Ask before descriptors are made or taken. */
kolo_status_t kolo_progress_check_files(void);
void kolo_progress_put(
    kolo_progress_t *progress); /* the last put joins the thread (from the thread itself: detaches) */

/* Watches fd, level-triggered. Any thread. The progress thread never closes fd. */
kolo_status_t kolo_watch_add(kolo_progress_t *progress, int fd, uint32_t events, kolo_watch_fn_t fn, void *arg,
                             kolo_watch_t **watch);
kolo_status_t kolo_watch_mod(kolo_watch_t *watch, uint32_t events);
/* Ends a watch: its handler will not run again, also when called on another thread while it runs (it then waits for
 * it). On the progress thread itself it never waits. */
void kolo_watch_del(kolo_watch_t *watch);

/* Calls fn once after delay_ms. Any thread. cancel has watch_del's guarantee; cancelling a fired timer is fine and
 * is how it is freed. */
kolo_status_t kolo_timer_add(kolo_progress_t *progress, int64_t delay_ms, kolo_timer_fn_t fn, void *arg,
                             kolo_timer_t **timer);
void kolo_timer_cancel(kolo_timer_t *timer);
/* Fires the same timer again after delay_ms, whether it has fired or not (then: instead). Never fails. Not while it
 * may be cancelled on another thread, but by its own handler. */
void kolo_timer_restart(kolo_timer_t *timer, int64_t delay_ms);

/* Runs fn(arg) on the progress thread and waits until it has run (runs it in place when called there). */
void kolo_progress_call(kolo_progress_t *progress, void (*fn)(void *), void *arg);

#endif
