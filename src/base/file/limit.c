/* SPDX-License-Identifier: Apache-2.0
 *
 * See limit.h. The signal is the thread's own, so it is blocked around the call and taken back if it came.
 */
#include "base/file/limit.h"

#include <errno.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

bool kolo_file_fits(uint64_t bytes)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur;
}

static void only_xfsz(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGXFSZ);
}

void kolo_file_quiet(kolo_file_quiet_t *quiet)
{
    sigset_t xfsz, waiting;
    quiet->limited = !kolo_file_fits(INT64_MAX);
    if (!quiet->limited) return;
    only_xfsz(&xfsz);
    pthread_sigmask(SIG_BLOCK, &xfsz, &quiet->before);
    sigpending(&waiting);
    quiet->pending = sigismember(&waiting, SIGXFSZ) == 1;
}

void kolo_file_loud(const kolo_file_quiet_t *quiet)
{
    static const struct timespec at_once = {0};
    sigset_t xfsz;
    int err = errno;
    if (!quiet->limited) return;
    only_xfsz(&xfsz);
    if (!quiet->pending) (void)sigtimedwait(&xfsz, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, &quiet->before, NULL);
    errno = err;
}

int kolo_file_resize(int fd, uint64_t bytes)
{
    kolo_file_quiet_t quiet;
    kolo_file_quiet(&quiet);
    int result = ftruncate(fd, (off_t)bytes);
    kolo_file_loud(&quiet);
    return result;
}

ssize_t kolo_file_write(int fd, const void *data, size_t bytes)
{
    kolo_file_quiet_t quiet;
    kolo_file_quiet(&quiet);
    ssize_t n = write(fd, data, bytes);
    kolo_file_loud(&quiet);
    return n;
}
