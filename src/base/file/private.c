/* SPDX-License-Identifier: Apache-2.0
 *
 * See private.h. What is checked is the file that was opened, not its name: a name may be changed in between.
 */
#include "base/file/private.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int look(const struct stat *st, const char *path, char *why, size_t bytes)
{
    uid_t self = geteuid();
    if (!S_ISREG(st->st_mode)) {
        snprintf(why, bytes, "%s is not a regular file", path);
    } else if (st->st_uid != self && st->st_uid != 0) {
        snprintf(
            why, bytes,
            "%s belongs to user %u, and not to the user of this process (%u): only a file of its own is believed",
            path, (unsigned)st->st_uid, (unsigned)self);
    } else if (st->st_mode & (st->st_uid == self ? 077 : 037)) {
        snprintf(why, bytes,
                 "others may read or change %s (its mode is %03o): chmod 600 it, and replace what it held if it "
                 "was secret",
                 path, (unsigned)st->st_mode & 0777);
    } else {
        return 0;
    }
    return EPERM;
}

int kolo_private_open(const char *path, char *why, size_t bytes)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    int err = fd < 0 || fstat(fd, &st) != 0 ? errno : 0;
    if (err == ELOOP)
        snprintf(why, bytes, "%s is a symbolic link: name the file itself", path);
    else if (err)
        snprintf(why, bytes, "%s: %s", path, strerror(err));
    else
        err = look(&st, path, why, bytes);
    if (!err) return fd;
    if (fd >= 0) close(fd);
    errno = err;
    return -1;
}

static size_t whole_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return KOLO_ROUND_UP(bytes, page);
}

void *kolo_private_alloc(size_t bytes)
{
    void *memory;
    if (posix_memalign(&memory, (size_t)sysconf(_SC_PAGESIZE), whole_pages(bytes)) != 0) return NULL;
    memset(memory, 0, whole_pages(bytes));
    madvise(memory, whole_pages(bytes), MADV_DONTDUMP);
    return memory;
}

void kolo_private_free(void *memory, size_t bytes)
{
    if (!memory) return;
    explicit_bzero(memory, bytes);
    madvise(memory, whole_pages(bytes), MADV_DODUMP); /* it becomes somebody else's */
    free(memory);
}
