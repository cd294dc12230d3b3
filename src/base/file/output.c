/* SPDX-License-Identifier: Apache-2.0
 *
 * See output.h.
 */
#include "base/file/output.h"
#include "base/file/fds.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_once(const char *path, int flags)
{
    return open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | flags, 0644);
}

int kolo_output_open(const char *path, int flags, char *why, size_t bytes)
{
    struct stat st;
    int fd = open_once(path, flags | O_NOFOLLOW);
    if (fd < 0 && errno == ELOOP) {
        if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && st.st_uid != geteuid() && st.st_uid != 0) {
            snprintf(why, bytes, "%s is a symbolic link of another user (%u)", path, (unsigned)st.st_uid);
            errno = ELOOP;
            return -1;
        }
        fd = open_once(path, flags);
    }
    if (fd < 0) {
        int err = errno;
        snprintf(why, bytes, "%s: %s", path, err == ENXIO ? "nobody reads from this pipe" : strerror(err));
        errno = err;
        return -1;
    }
    int mode = fcntl(fd, F_GETFL);
    if (mode >= 0) (void)fcntl(fd, F_SETFL, mode & ~O_NONBLOCK);
    fd = kolo_fd_above(fd);
    if (fd < 0) snprintf(why, bytes, "%s: %s", path, strerror(errno));
    return fd;
}

FILE *kolo_output_fopen(const char *path, char *why, size_t bytes)
{
    int fd = kolo_output_open(path, O_TRUNC, why, bytes);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (fd >= 0 && !file) {
        snprintf(why, bytes, "%s: %s", path, strerror(errno));
        kolo_fd_close(fd); /* keeps errno */
    }
    return file;
}
