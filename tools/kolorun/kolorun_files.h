/* SPDX-License-Identifier: Apache-2.0
 *
 * Files that the processes of one host leave for those of others: what is moved into the job's directory is passed
 * on, what comes from another host is put there. A host that has no inotify left looks at the directory by time.
 */
#ifndef KOLO_TOOLS_KOLORUN_FILES_H
#define KOLO_TOOLS_KOLORUN_FILES_H

#include "kolorun_frame.h"

#include <sys/types.h>
#include <time.h>

typedef struct { /* a file that needs no passing on: it was passed on, or is from elsewhere */
    char name[KOLORUN_FILE_NAME_MAX];
    ino_t inode;
    struct timespec written;
} kolorun_known_t;

/* Hands on what a frame of type KOLORUN_FILE holds. */
typedef void (*kolorun_files_fn_t)(void *arg, const void *data, size_t bytes);

typedef struct {
    const char *dir;
    int watch;      /* inotify on it; -1: there is none, and look_at counts */
    double look_at; /* when the directory is looked at next; 0: not by time */
    kolorun_files_fn_t pass_on;
    void *arg;
    kolorun_known_t *known;
    size_t nknown;
} kolorun_files_t;

void kolorun_files_init(kolorun_files_t *files, const char *dir, kolorun_files_fn_t pass_on, void *arg);
/* Passes on what has come. `now`: also where the time to look has not come. */
void kolorun_files_step(kolorun_files_t *files, bool now);
/* Puts a file of another host in place. */
bool kolorun_files_put(kolorun_files_t *files, const kolorun_frame_t *frame);
void kolorun_files_fini(kolorun_files_t *files);

#endif
