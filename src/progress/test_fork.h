/* SPDX-License-Identifier: Apache-2.0
 *
 * fork() for unit tests of processes that have an progress thread. glibc's malloc survives a fork at any moment;
 * AddressSanitizer's does not: what its allocator holds while the progress thread allocates stays held in the child
 * for ever. So the progress thread is made to stand idle first.
 */
#ifndef KOLO_PROGRESS_TEST_FORK_H
#define KOLO_PROGRESS_TEST_FORK_H

#include "progress/progress.h"

#include <unistd.h>

static inline void kolo_test_nothing(void *arg)
{
    (void)arg;
}

/* Forks; the child is ended after 30 s whatever it waits for. */
static inline pid_t kolo_test_fork(kolo_progress_t *progress)
{
    kolo_progress_call(progress, kolo_test_nothing, NULL); /* it has started, and run all that came before */
    pid_t child = fork();
    if (child == 0) alarm(30);
    return child;
}

#endif
