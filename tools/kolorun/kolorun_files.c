/* SPDX-License-Identifier: Apache-2.0
 *
 * See kolorun_files.h. The kernel drops events where too many wait to be read, and has a limit of watchers for each
 * user: in both cases the directory itself says what is there.
 */
#include "kolorun_files.h"

#include "kolorun.h"

#include "base/file/limit.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOOK_S    0.05 /* from look to look, without inotify */
#define DIR_MAX   256
#define PATH_MOST (DIR_MAX + KOLORUN_FILE_NAME_MAX + 2)

void kolorun_files_init(kolorun_files_t *files, const char *dir, kolorun_files_fn_t pass_on, void *arg)
{
    *files = (kolorun_files_t){.dir = dir, .pass_on = pass_on, .arg = arg};
    files->watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (files->watch >= 0 && inotify_add_watch(files->watch, dir, IN_MOVED_TO | IN_ONLYDIR) >= 0) return;
    if (files->watch >= 0) close(files->watch);
    files->watch = -1;
    files->look_at = kolorun_now();
}

/* Notes this version of a file; false: it was noted before. */
static bool note(kolorun_files_t *files, const char *name, const struct stat *st)
{
    kolorun_known_t *known = files->known, *end = known + files->nknown;
    while (known < end && strcmp(known->name, name) != 0) known++;
    if (known < end && known->inode == st->st_ino && known->written.tv_sec == st->st_mtim.tv_sec &&
        known->written.tv_nsec == st->st_mtim.tv_nsec)
        return false;
    if (known == end) {
        files->known = kolorun_grow(files->known, sizeof *known * (files->nknown + 1));
        known = &files->known[files->nknown++];
        snprintf(known->name, sizeof known->name, "%s", name);
    }
    known->inode = st->st_ino;
    known->written = st->st_mtim;
    return true;
}

static void pass_on(kolorun_files_t *files, const char *name)
{
    char path[PATH_MOST];
    uint8_t data[KOLORUN_FILE_NAME_MAX + KOLORUN_FILE_MAX];
    struct stat st;
    size_t n = strlen(name) + 1;
    if (n > KOLORUN_FILE_NAME_MAX || !kolorun_file_name_ok(name)) return;
    snprintf(path, sizeof path, "%s/%s", files->dir, name);
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return; /* gone again */
    memcpy(data, name, n);
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
        st.st_size <= (off_t)KOLORUN_FILE_MAX && note(files, name, &st)) {
        ssize_t got = read(fd, data + n, KOLORUN_FILE_MAX);
        if (got >= 0) files->pass_on(files->arg, data, n + (size_t)got);
    }
    close(fd);
    explicit_bzero(data, sizeof data);
}

static void look_around(kolorun_files_t *files)
{
    DIR *dir = opendir(files->dir);
    if (dir == NULL) return;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) pass_on(files, e->d_name);
    closedir(dir);
}

/* Takes what inotify tells; true: it has lost some. */
static bool take_events(kolorun_files_t *files)
{
    char buf[4096] __attribute__((aligned(__alignof__(struct inotify_event))));
    bool lost = false;
    ssize_t n;
    while ((n = read(files->watch, buf, sizeof buf)) > 0)
        for (char *p = buf; p < buf + n;) {
            const struct inotify_event *e = (const struct inotify_event *)p;
            if (e->len > 0) pass_on(files, e->name);
            lost = lost || (e->mask & IN_Q_OVERFLOW);
            p += sizeof *e + e->len;
        }
    return lost;
}

void kolorun_files_step(kolorun_files_t *files, bool now)
{
    if (files->watch >= 0) {
        if (take_events(files)) look_around(files);
    } else if (now || kolorun_now() >= files->look_at) {
        look_around(files);
        files->look_at = kolorun_now() + LOOK_S;
    }
}

/* The name that is written first starts with a dot: such names are not passed on. The file is then linked and not
 * moved, of which inotify tells nothing. */
bool kolorun_files_put(kolorun_files_t *files, const kolorun_frame_t *frame)
{
    const char *name;
    const uint8_t *content;
    size_t bytes;
    struct stat st;
    char first[PATH_MOST], path[PATH_MOST];
    if (!kolorun_file_decode(frame, &name, &content, &bytes)) return true; /* no kolorun sends that */
    snprintf(first, sizeof first, "%s/.new", files->dir);
    snprintf(path, sizeof path, "%s/%s", files->dir, name);
    int fd = open(first, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && kolo_file_write(fd, content, bytes) == (ssize_t)bytes && fstat(fd, &st) == 0;
    if (fd >= 0) close(fd);
    if (ok) {
        note(files, name, &st);
        unlink(path);
        ok = link(first, path) == 0;
    }
    unlink(first);
    return ok;
}

void kolorun_files_fini(kolorun_files_t *files)
{
    if (files->watch >= 0) close(files->watch);
    free(files->known);
    *files = (kolorun_files_t){.watch = -1};
}
