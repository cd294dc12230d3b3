/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests in which the progress thread has to be within a handler.
 */
#ifndef KOLO_PROGRESS_TEST_RUNNING_H
#define KOLO_PROGRESS_TEST_RUNNING_H

#include "progress/internal.h"

#include <sched.h>

/* Waits until the progress thread is in the watch's handler. */
static inline void kolo_test_await_handler(kolo_progress_t *progress, const kolo_watch_t *watch)
{
    for (bool runs = false; !runs; sched_yield()) {
        pthread_mutex_lock(&progress->lock);
        runs = progress->running == watch;
        pthread_mutex_unlock(&progress->lock);
    }
}

#endif
