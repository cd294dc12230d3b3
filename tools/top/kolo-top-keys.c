/* SPDX-License-Identifier: Apache-2.0
 *
 * Keyed tensors in kolo-top: which keys the tasks of this host wait for, of whom, and for how long, from the memory
 * files named "kolo-tensors" of their processes.
 */
#include "kolo-top.h"

#include "base/clock.h"
#include "rendezvous/watch.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define MOST_TASKS  1024  /* of one user */
#define SHOWN_ENDED 8     /* of each task: receives that ended after a long wait, or failed, ... */
#define ENDED_MS    60000 /* ... within this time */

typedef struct {
    kolo_watch_view_t *view;
    ino_t inode;
    dev_t fs;
    uid_t uid;
} task_t;

typedef struct {
    task_t *all;
    size_t count, room, left_out;
} tasks_t;

static bool is_known(tasks_t *tasks, const struct stat *st)
{
    size_t of_user = 0;
    for (size_t i = 0; i < tasks->count; i++) {
        if (tasks->all[i].inode == st->st_ino && tasks->all[i].fs == st->st_dev) return true;
        of_user += tasks->all[i].uid == st->st_uid;
    }
    tasks->left_out += of_user >= MOST_TASKS;
    return of_user >= MOST_TASKS;
}

static bool make_room(tasks_t *tasks)
{
    if (tasks->count < tasks->room) return true;
    size_t room = tasks->room ? 2 * tasks->room : 16;
    task_t *all = realloc(tasks->all, room * sizeof *all);
    if (!all) return false;
    tasks->all = all;
    tasks->room = room;
    return true;
}

static bool take_memory(void *arg, int pid, int fd, const struct stat *st)
{
    tasks_t *tasks = arg;
    (void)pid;
    if (st->st_size < (off_t)sizeof(kolo_rendezvous_watch_t) || is_known(tasks, st) || !make_room(tasks))
        return true;
    void *bytes = mmap(NULL, sizeof(kolo_rendezvous_watch_t), PROT_READ, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED) return true;
    kolo_watch_view_t *view = malloc(sizeof *view);
    bool there = false;
    for (int again = 0; view && again < 10 && !there; again++)
        there = kolo_watch_view(bytes, sizeof(kolo_rendezvous_watch_t), view);
    munmap(bytes, sizeof(kolo_rendezvous_watch_t));
    if (there)
        tasks->all[tasks->count++] = (task_t){view, st->st_ino, st->st_dev, st->st_uid};
    else
        free(view);
    return true;
}

static void take_process(int pid, tasks_t *tasks)
{
    top_each_memory(pid, KOLO_WATCH_NAME, take_memory, tasks);
}

/* Of the same user: who else calls a task like that has nothing to say of it. */
static const kolo_watch_view_t *find_task(const tasks_t *tasks, uid_t uid, const char *name)
{
    for (size_t i = 0; i < tasks->count; i++)
        if (tasks->all[i].uid == uid && strcmp(tasks->all[i].view->task, name) == 0) return tasks->all[i].view;
    return NULL;
}

static int print(FILE *out, const tasks_t *tasks)
{
    uint64_t now = kolo_now_ns();
    int lines = 0;
    for (size_t i = 0; i < tasks->count; i++) {
        const kolo_watch_view_t *task = tasks->all[i].view;
        for (size_t w = 0; w < task->nwaits; w++) {
            char words[800];
            kolo_watch_words(task, &task->waits[w], now, find_task(tasks, tasks->all[i].uid, task->waits[w].from),
                             words, sizeof words);
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
    tasks_t tasks = {0};
    DIR *dir = options->npids ? NULL : opendir("/proc");
    int lines;
    for (int i = 0; i < options->npids; i++) take_process(options->pids[i], &tasks);
    for (struct dirent *d; dir && (d = readdir(dir));)
        if (d->d_name[0] >= '1' && d->d_name[0] <= '9') take_process(atoi(d->d_name), &tasks);
    lines = print(out, &tasks);
    if (tasks.left_out)
        fprintf(out, "%zu tasks of users with more than %d are left out\n", tasks.left_out, MOST_TASKS);
    if (dir) closedir(dir);
    while (tasks.count) free(tasks.all[--tasks.count].view);
    free(tasks.all);
    return lines;
}
