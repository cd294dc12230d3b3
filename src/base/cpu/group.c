/* SPDX-License-Identifier: Apache-2.0
 *
 * See group.h.
 */
#include "base/cpu/group.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Appends the first line of a file; false: there is none. */
static bool add_line(const char *folder, const char *group, const char *file, char *line, size_t bytes)
{
    char path[1400];
    size_t n = strlen(line);
    snprintf(path, sizeof path, "/sys/fs/cgroup%s%s/%s", folder, group, file);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool found = fgets(line + n, (int)(bytes - n), f) != NULL;
    fclose(f);
    line[strcspn(line, "\n")] = '\0';
    return found;
}

static void look_at(const char *group, bool older, const kolo_group_word_t *word,
                    void (*look)(void *arg, const char *line), void *arg)
{
    char line[96] = "", folder[40] = "";
    if (older) snprintf(folder, sizeof folder, "/%s", word->controller);
    if (!add_line(folder, group, older ? word->older : word->file, line, sizeof line)) return;
    if (older && word->older_then) {
        snprintf(line + strlen(line), sizeof line - strlen(line), " ");
        if (!add_line(folder, group, word->older_then, line, sizeof line)) return;
    }
    look(arg, line);
}

/* Returns the group in a line of /proc/self/cgroup, "number:controller,...:group", if it is in the unified
 * hierarchy (without controllers) or in that of the controller; *older tells which. */
static char *group_of(char *line, const char *controller, bool *older)
{
    char *rest = strchr(line, ':'), *group = rest ? strchr(rest + 1, ':') : NULL;
    if (!group) return NULL;
    *group++ = '\0';
    group[strcspn(group, "\n")] = '\0';
    *older = rest[1] != '\0';
    if (!*older) return group;
    for (char *save = NULL, *word = strtok_r(rest + 1, ",", &save); word; word = strtok_r(NULL, ",", &save))
        if (strcmp(word, controller) == 0) return group;
    return NULL;
}

void kolo_group_each(const kolo_group_word_t *word, void (*look)(void *arg, const char *line), void *arg)
{
    char line[1024];
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f) return;
    while (fgets(line, sizeof line, f)) {
        bool older = false;
        char *group = group_of(line, word->controller, &older);
        for (char *end = group ? group + strlen(group) : NULL; end; end = strrchr(group, '/')) {
            *end = '\0';
            look_at(group, older, word, look, arg);
        }
    }
    fclose(f);
}

/* ---- memory ---- */

static void take_less(void *arg, const char *line)
{
    uint64_t *limit = arg, bytes;
    if (sscanf(line, "%" SCNu64, &bytes) == 1 && bytes < *limit) *limit = bytes; /* else "max" */
}

static uint64_t memory;

static void find_memory(void)
{
    struct rlimit space;
    int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    memory = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;
    if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY && space.rlim_cur < memory)
        memory = space.rlim_cur;
    kolo_group_each(&(kolo_group_word_t){"memory.max", "memory", "memory.limit_in_bytes", NULL}, take_less,
                    &memory);
}

uint64_t kolo_memory_limit(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_memory);
    return memory;
}
