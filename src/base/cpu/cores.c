/* SPDX-License-Identifier: Apache-2.0
 *
 * How many cores a container's quota lets this process use at once (kolo_cores_quota() of base/wait.h). Polling is
 * right only for ranks that have a core each: those that a quota stops come back only with its next period.
 */
#include "base/wait.h"

#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define GROUP_LINE "0::" /* of /proc/self/cgroup: the group in the unified hierarchy */

int kolo_cores_of_quota(const char *text)
{
    int64_t quota, period;
    if (sscanf(text, "%" SCNd64 " %" SCNd64, &quota, &period) != 2 || quota <= 0 || period <= 0)
        return 0; /* "max" */
    int64_t cores = quota / period + (quota % period != 0);
    return cores > INT_MAX ? 0 : (int)cores;
}

/* Of one group; 0: it has none, or there is no such file. */
static int quota_of(const char *group)
{
    char path[1100], text[64] = "";
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    if (!fgets(text, sizeof text, f)) text[0] = '\0';
    fclose(f);
    return kolo_cores_of_quota(text);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int quota = INT_MAX;

/* The smallest of this process's group and those above it. */
static void find_quota(void)
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
        int cores = quota_of(group);
        if (cores > 0 && cores < quota) quota = cores;
    }
}

int kolo_cores_quota(void)
{
    pthread_once(&once, find_quota);
    return quota;
}
