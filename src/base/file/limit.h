/* SPDX-License-Identifier: Apache-2.0
 *
 * Files that are a convenience (a log, a timeline, a flight record) end no job. A process may have
 * a limit on the size of what it writes (RLIMIT_FSIZE, ulimit -f): beyond it the system sends SIGXFSZ, which ends
 * the process, also for memory that processes share. And the name of a file may be that of a pipe which nobody
 * reads.
 */
#ifndef KOLO_BASE_FILE_LIMIT_H
#define KOLO_BASE_FILE_LIMIT_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Tells whether a file of this process may have so many bytes. */
bool kolo_file_fits(uint64_t bytes);
/* Calls ftruncate(2) or write(2) without the signal: EFBIG where the limit does not permit it. */
int kolo_file_resize(int fd, uint64_t bytes);
ssize_t kolo_file_write(int fd, const void *data, size_t bytes);
/* Between the two this thread gets no SIGXFSZ: for what writes through a stream. */
typedef struct {
    sigset_t before;
    bool limited, pending;
} kolo_file_quiet_t;
void kolo_file_quiet(kolo_file_quiet_t *quiet);
void kolo_file_loud(const kolo_file_quiet_t *quiet); /* keeps errno */

#endif
