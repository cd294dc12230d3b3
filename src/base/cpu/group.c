/* SPDX-License-Identifier: Apache-2.0
 *
 * See group.h.
 */
#include "base/cpu/group.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define GROUP_LINE "0::" /* of /proc/self/cgroup: the group in the unified hierarchy */

static void look_at(const char *group, const char *file, void (*look)(void *arg, const char *line), void *arg)
{
    char path[1200], line[64] = "";
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/%s", group, file);
    FILE *f = fopen(path, "re");
    if (!f) return;
    if (fgets(line, sizeof line, f)) look(arg, line);
    fclose(f);
}

void kolo_group_each(const char *file, void (*look)(void *arg, const char *line), void *arg)
{
    char line[1024], *group = NULL;
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f) return;
    while (!group && fgets(line, sizeof line, f))
        if (strncmp(line, GROUP_LINE, sizeof GROUP_LINE - 1) == 0) group = line + sizeof GROUP_LINE - 1;
    fclose(f);
    if (!group) return;
    group[strcspn(group, "\n")] = '\0';
    for (char *end = group + strlen(group); end; end = strrchr(group, '/')) {
        *end = '\0';
        look_at(group, file, look, arg);
    }
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
    kolo_group_each("memory.max", take_less, &memory);
}

uint64_t kolo_memory_limit(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_memory);
    return memory;
}
