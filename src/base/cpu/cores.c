/* SPDX-License-Identifier: Apache-2.0
 *
 * How many cores a container's quota lets this process use at once (kolo_cores_quota() of base/wait.h). Polling is
 * right only for ranks that have a core each: those that a quota stops come back only with its next period.
 */
#include "base/cpu/group.h"
#include "base/wait.h"

#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>

int kolo_cores_of_quota(const char *text)
{
    int64_t quota, period;
    if (sscanf(text, "%" SCNd64 " %" SCNd64, &quota, &period) != 2 || quota <= 0 || period <= 0)
        return 0; /* "max" */
    int64_t cores = quota / period + (quota % period != 0);
    return cores > INT_MAX ? 0 : (int)cores;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int quota = INT_MAX;

static void take_less(void *arg, const char *line)
{
    int cores = kolo_cores_of_quota(line);
    (void)arg;
    if (cores > 0 && cores < quota) quota = cores;
}

static void find_quota(void)
{
    kolo_group_each(&(kolo_group_word_t){"cpu.max", "cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us"}, take_less,
                    NULL);
}

int kolo_cores_quota(void)
{
    pthread_once(&once, find_quota);
    return quota;
}
