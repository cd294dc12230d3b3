/* SPDX-License-Identifier: Apache-2.0
 *
 * Keyed tensors in kolo-top: which keys the tasks of this host wait for, of whom, and for how long, from the memory
 * files named "kolo-tensors" of their processes.
 */
#include "kolo-top.h"

#include "base/clock.h"
#include "rendezvous/watch.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINK        "/memfd:" KOLO_WATCH_NAME
#define MOST_TASKS  4096
#define SHOWN_ENDED 8     /* of each task: receives that ended after a long wait, or failed, ... */
#define ENDED_MS    60000 /* ... within this time */

typedef struct {
    kolo_watch_view_t **views;
    ino_t *inodes;
    size_t count;
} tasks_t;

/* Only a file that cannot shrink may be mapped: it is another process's. */
static void take_memory(int fd, tasks_t *tasks)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || !(fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK)) return;
    if (st.st_size < (off_t)sizeof(kolo_watch_t) || tasks->count == MOST_TASKS) return;
    for (size_t i = 0; i < tasks->count; i++)
        if (tasks->inodes[i] == st.st_ino) return;
    void *bytes = mmap(NULL, sizeof(kolo_watch_t), PROT_READ, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED) return;
    kolo_watch_view_t *view = malloc(sizeof *view);
    bool there = false;
    for (int again = 0; view && again < 10 && !there; again++)
        there = kolo_watch_view(bytes, sizeof(kolo_watch_t), view);
    munmap(bytes, sizeof(kolo_watch_t));
    if (!there) {
        free(view);
        return;
    }
    tasks->inodes[tasks->count] = st.st_ino;
    tasks->views[tasks->count++] = view;
}

static void take_process(int pid, tasks_t *tasks)
{
    char path[300], link[64];
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *dir = opendir(path);
    if (!dir) return; /* somebody else's, or gone */
    for (struct dirent *d; (d = readdir(dir));) {
        snprintf(path, sizeof path, "/proc/%d/fd/%s", pid, d->d_name);
        ssize_t n = readlink(path, link, sizeof link - 1);
        if (n < (ssize_t)strlen(LINK) || strncmp(link, LINK, strlen(LINK)) != 0) continue;
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        take_memory(fd, tasks);
        close(fd);
    }
    closedir(dir);
}

static const kolo_watch_view_t *find_task(const tasks_t *tasks, const char *name)
{
    for (size_t i = 0; i < tasks->count; i++)
        if (strcmp(tasks->views[i]->task, name) == 0) return tasks->views[i];
    return NULL;
}

static int print(FILE *out, const tasks_t *tasks)
{
    uint64_t now = kolo_now_ns();
    int lines = 0;
    for (size_t i = 0; i < tasks->count; i++) {
        const kolo_watch_view_t *task = tasks->views[i];
        for (size_t w = 0; w < task->nwaits; w++) {
            char words[800];
            kolo_watch_words(task, &task->waits[w], now, find_task(tasks, task->waits[w].from), words,
                             sizeof words);
            fprintf(out, "%s\n", words);
            lines++;
        }
        for (size_t e = 0; e < task->nended && e < SHOWN_ENDED; e++) {
            char words[800];
            if (now > task->ended[e].end_ns + ENDED_MS * KOLO_NS_PER_MS) break;
            kolo_watch_ended_words(task, e, now, words, sizeof words);
            fprintf(out, "%s\n", words);
            lines++;
        }
        if (task->more) fprintf(out, "task %s waits for %zu tensors more\n", task->task, task->more);
    }
    return lines;
}

int top_show_keys(FILE *out, const top_options_t *options)
{
    tasks_t tasks = {.views = calloc(MOST_TASKS, sizeof *tasks.views),
                     .inodes = calloc(MOST_TASKS, sizeof *tasks.inodes)};
    DIR *dir = options->npids ? NULL : opendir("/proc");
    int lines = 0;
    if (tasks.views && tasks.inodes) {
        for (int i = 0; i < options->npids; i++) take_process(options->pids[i], &tasks);
        for (struct dirent *d; dir && (d = readdir(dir));)
            if (d->d_name[0] >= '1' && d->d_name[0] <= '9') take_process(atoi(d->d_name), &tasks);
        lines = print(out, &tasks);
    }
    if (dir) closedir(dir);
    while (tasks.count) free(tasks.views[--tasks.count]);
    free(tasks.views);
    free(tasks.inodes);
    return lines;
}
