/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory files among the descriptors of other processes, which may belong to anybody: what only looks like one is
 * left alone. A plain file could be cut while it is read, a pipe holds up who opens it, a device may act on it.
 */
#include "kolo-top.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* -1: it is something else. */
static int open_memory(const char *path, const char *name, struct stat *st)
{
    char link[80], wanted[80], own[40];
    ssize_t n = readlink(path, link, sizeof link - 1);
    if (n < 0) return -1;
    link[n] = '\0';
    snprintf(wanted, sizeof wanted, "/memfd:%s (deleted)", name);
    if (strcmp(link, wanted) != 0) return -1;
    int place = open(path, O_PATH | O_CLOEXEC), fd = -1; /* opens nothing yet */
    if (place >= 0 && fstat(place, st) == 0 && S_ISREG(st->st_mode) && st->st_size > 0) {
        snprintf(own, sizeof own, "/proc/self/fd/%d", place);
        fd = open(own, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    }
    if (place >= 0) close(place);
    int seals = fd >= 0 ? fcntl(fd, F_GET_SEALS) : -1; /* -1: it has none, because it is no memory file */
    if (fd >= 0 && (seals < 0 || !(seals & F_SEAL_SHRINK))) {
        close(fd);
        fd = -1;
    }
    return fd;
}

bool top_each_memory(int pid, const char *name, top_memory_fn_t fn, void *arg)
{
    char path[300];
    bool good = true;
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *dir = opendir(path);
    if (!dir) return true; /* somebody else's, or gone */
    for (struct dirent *d; good && (d = readdir(dir));) {
        struct stat st;
        snprintf(path, sizeof path, "/proc/%d/fd/%s", pid, d->d_name);
        int fd = open_memory(path, name, &st);
        if (fd < 0) continue;
        good = fn(arg, pid, fd, &st);
        close(fd);
    }
    closedir(dir);
    return good;
}
