/* SPDX-License-Identifier: Apache-2.0
 *
 * See process.h.
 */
#include "base/process.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What stands in /proc/PID/stat behind the name, which may hold anything. NULL: it is gone. */
static const char *read_stat(int pid, char *text, size_t bytes)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    ssize_t n = read(fd, text, bytes - 1);
    close(fd);
    if (n <= 0) return NULL;
    text[n] = '\0';
    const char *end = strrchr(text, ')');
    return end && end[1] == ' ' ? end + 2 : NULL;
}

char kolo_process_state(int pid)
{
    char text[1024];
    const char *fields = read_stat(pid, text, sizeof text);
    return fields ? fields[0] : '\0';
}

bool kolo_process_origin(int pid, int *parent, uint64_t *start_ticks)
{
    char text[1024];
    const char *at = read_stat(pid, text, sizeof text);
    int from;
    uint64_t start;
    if (!at || sscanf(at, "%*c %d", &from) != 1) return false;
    for (int field = 3; at && field < 22; field++) {
        at = strchr(at, ' ');
        if (at) at++;
    }
    if (!at || sscanf(at, "%" SCNu64, &start) != 1) return false;
    *parent = from;
    *start_ticks = start;
    return true;
}
