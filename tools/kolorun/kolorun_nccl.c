/* SPDX-License-Identifier: Apache-2.0
 *
 * --as-nccl: where libnccl.so.2 is, which the ranks load before they look for NCCL. It is not among the system's
 * libraries, where it would stand in for NCCL in programs that nobody has asked about.
 */
#include "kolorun_nccl.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Beside the build's kolorun, or installed, or in the Python package, where a lib/ is ours alone; the paths are
 * relative to the folder of kolorun. */
#ifdef KOLORUN_IN_PACKAGE
#define INSTALLED "../lib/libnccl.so.2"
#else
#define INSTALLED "../" KOLORUN_LIBDIR "/kolo/libnccl.so.2"
#endif
static const char *const places[] = {"../libnccl.so.2", INSTALLED};

bool kolorun_nccl_find(char *path, size_t bytes, char *why, size_t why_bytes)
{
    char own[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    char *slash = n > 0 ? memrchr(own, '/', (size_t)n) : NULL;
    if (!slash) {
        snprintf(why, why_bytes, "kolorun cannot find its own program in /proc");
        return false;
    }
    *slash = '\0';
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if ((size_t)snprintf(path, bytes, "%s/%s", own, places[i]) < bytes && access(path, R_OK) == 0) return true;
    }
    snprintf(why, why_bytes, "there is neither %s/%s nor %s/%s: build it, or install Kolo", own, places[0], own,
             places[1]);
    return false;
}
