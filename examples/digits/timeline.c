/* SPDX-License-Identifier: Apache-2.0
 *
 * The timelines that the workers' engines write, one for each rank of each engine: a place for them, and one file
 * of all, which kolo-trace makes.
 */
#include "job.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST_FILES 512

static int is_timeline(const struct dirent *entry)
{
    const char *end = strrchr(entry->d_name, '.');
    return end && strcmp(end, ".json") == 0 && strstr(entry->d_name, "-of-");
}

/* Their names in the order of the steps; each must be freed. -1: the folder cannot be read. */
static int list(const char *folder, struct dirent ***entries)
{
    return scandir(folder, entries, is_timeline, alphasort);
}

bool timeline_prepare(const char *folder)
{
    struct dirent **entries;
    char path[4096 + 300];
    if (mkdir(folder, 0777) && errno != EEXIST) return false;
    int count = list(folder, &entries);
    for (int i = 0; i < count; i++) { /* of another run */
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        unlink(path);
        free(entries[i]);
    }
    if (count >= 0) free(entries);
    return count >= 0;
}

/* ---- one of all ---- */

/* Files of one engine have the same name up to the rank: "000660-of-3". */
static bool same_engine(const char *a, const char *b)
{
    size_t n = strcspn(a, ".");
    return strncmp(a, b, n + 1) == 0;
}

static bool is_empty(const char *path)
{
    struct stat s;
    return stat(path, &s) || s.st_size == 0;
}

static char then[] = "--then";

/* kolo-trace's arguments; what was allocated for them is argv[3] and on, but for `then`. False: no memory. */
static bool arguments(const char *folder, struct dirent **entries, int count, char **argv)
{
    int n = 3, last = -1;
    for (int i = 0; i < count && n < MOST_FILES; i++) {
        char *path;
        if (asprintf(&path, "%s/%s", folder, entries[i]->d_name) < 0) return false;
        if (is_empty(path)) { /* killed before it could write anything */
            free(path);
            continue;
        }
        if (last >= 0 && !same_engine(entries[last]->d_name, entries[i]->d_name)) argv[n++] = then;
        argv[n++] = path;
        last = i;
    }
    argv[n] = NULL;
    return n > 3;
}

static bool run(char **argv)
{
    int status = -1;
    sigset_t none;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        execvp(argv[0], argv);
        fprintf(stderr, "digits: %s cannot be started: %s\n", argv[0], strerror(errno));
        _exit(127);
    }
    if (pid > 0) waitpid(pid, &status, 0);
    return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool timeline_merge(const char *folder, const char *path)
{
    char *argv[MOST_FILES + 2] = {(char *)DIGITS_TRACE, (char *)"--merge", (char *)path};
    struct dirent **entries;
    int count = list(folder, &entries);
    if (count < 0) return false;
    bool fine = arguments(folder, entries, count, argv) && run(argv);
    for (int i = 3; argv[i]; i++)
        if (argv[i] != then) free(argv[i]);
    for (int i = 0; i < count; i++) free(entries[i]);
    free(entries);
    return fine;
}
