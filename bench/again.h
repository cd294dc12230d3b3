/* SPDX-License-Identifier: Apache-2.0
 *
 * A library beside itself with other parameters. Kolo reads its parameters once, at the first call into it: so its
 * file is loaded again, as another file, and called first while the other parameters are in the environment.
 */
#ifndef KOLO_BENCH_AGAIN_H
#define KOLO_BENCH_AGAIN_H

#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#define AGAIN_MOST 16 /* settings */

/* NULL: dlerror() or errno says why. The descriptor stays open: its number must not come to name another file,
 * which would be taken for this library. */
static inline void *again_load(const char *file)
{
    char path[64];
    struct stat st;
    off_t done = 0;
    int from = open(file, O_RDONLY | O_CLOEXEC), to = memfd_create("again", MFD_CLOEXEC);
    bool read_all = from >= 0 && to >= 0 && fstat(from, &st) == 0;
    while (read_all && done < st.st_size) read_all = sendfile(to, from, &done, (size_t)(st.st_size - done)) > 0;
    if (from >= 0) close(from);
    if (!read_all) return NULL;
    snprintf(path, sizeof path, "/proc/self/fd/%d", to);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
}

typedef struct {
    char text[512], *keys[AGAIN_MOST], *old[AGAIN_MOST];
    int n;
} again_t;

static inline void again_leave(again_t *a)
{
    for (int i = 0; i < a->n; i++) {
        if (a->old[i])
            setenv(a->keys[i], a->old[i], 1);
        else
            unsetenv(a->keys[i]);
        free(a->old[i]);
    }
    a->n = 0;
}

/* Puts KEY=VALUE,... into the environment until again_leave(); an empty value is none. Tells whether it can be
 * read; if not nothing is changed. */
static inline bool again_enter(again_t *a, const char *settings)
{
    char *rest = NULL, *value;
    a->n = 0;
    if ((size_t)snprintf(a->text, sizeof a->text, "%s", settings) >= sizeof a->text) return false;
    for (char *key = strtok_r(a->text, ",", &rest); key; key = strtok_r(NULL, ",", &rest)) {
        value = strchr(key, '=');
        if (!value || a->n == AGAIN_MOST) {
            again_leave(a);
            return false;
        }
        *value = 0;
        a->keys[a->n] = key;
        a->old[a->n++] = getenv(key) ? strdup(getenv(key)) : NULL;
        setenv(key, value + 1, 1);
    }
    return true;
}

#endif
