/* SPDX-License-Identifier: Apache-2.0
 *
 * What this process holds: descriptors, threads, mappings of memory that others may share.
 */
#include "chaos/chaos.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void add(char *text, size_t bytes, const char *word)
{
    size_t used = strlen(text);
    snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", word);
}

static int list(const char *path, bool links, char *text, size_t bytes)
{
    int n = 0;
    DIR *dir = opendir(path);
    if (!dir) return -1;
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        char name[300], target[200] = "";
        if (e->d_name[0] == '.') continue;
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        if (links) {
            ssize_t got = readlink(name, target, sizeof target - 1);
            target[got > 0 ? got : 0] = '\0';
            if (strstr(target, path + 5)) continue; /* the directory that is being read */
        }
        if (links) add(text, bytes, target);
        n++;
    }
    closedir(dir);
    return n;
}

chaos_census_t chaos_census(char *text, size_t bytes)
{
    char line[512], self[64];
    chaos_census_t c = {0};
    text[0] = '\0';
    snprintf(self, sizeof self, "/proc/%d/fd", (int)getpid());
    c.fds = list(self, true, text, bytes);
    snprintf(self, sizeof self, "/proc/%d/task", (int)getpid());
    c.threads = list(self, false, text, bytes);
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (!strstr(line, "memfd:") && !strstr(line, "/dev/shm/")) continue;
        c.mappings++;
        line[strcspn(line, "\n")] = '\0';
        add(text, bytes, strchr(line, '/') ? strchr(line, '/') : line);
    }
    if (f) fclose(f);
    return c;
}
