/* SPDX-License-Identifier: Apache-2.0
 *
 * See access.h.
 */
#include "mem/access.h"
#include "base/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define PROBES_AT_ONCE 256

typedef struct { /* a line of /proc/self/maps */
    uintptr_t from, to;
    char perms[8], path[96];
} mapping_t;

const char *kolo_mem_access_why(kolo_access_t access)
{
    static const char *const why[KOLO_ACCESS_COUNT] = {
        [KOLO_ACCESS_FULL] = "it can be used",
        [KOLO_ACCESS_UNMAPPED] = "nothing is mapped there (memory that was freed, or memory of a device)",
        [KOLO_ACCESS_PROTECTED] = "it is protected",
        [KOLO_ACCESS_READ_ONLY] = "it may only be read",
        [KOLO_ACCESS_ABSENT] = "it is mapped, but nothing is there (the end of a file, or memory of a device)",
    };
    return why[access];
}

static bool fails(kolo_accessed_t *found, kolo_access_t why, uintptr_t at, const char *path)
{
    found->access = why;
    found->at = at;
    snprintf(found->path, sizeof found->path, "%s", path);
    return true;
}

/* Finds what is mapped, and still not there: a file that ends before, or memory of a device. */
static bool probe_fails(uintptr_t from, uintptr_t to, const char *path, kolo_accessed_t *found)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char bytes[PROBES_AT_ONCE];
    struct iovec local = {bytes, 0}, remote[PROBES_AT_ONCE];
    for (uintptr_t at = from; at < to;) {
        size_t n = 0;
        for (uintptr_t p = at; p < to && n < PROBES_AT_ONCE; p = (p / page + 1) * page)
            remote[n++] = (struct iovec){(void *)p, 1};
        local.iov_len = n;
        ssize_t got = process_vm_readv(getpid(), &local, 1, remote, n, 0);
        if (got < 0 && errno != EFAULT) return false; /* not allowed here */
        if (got < (ssize_t)n)
            return fails(found, KOLO_ACCESS_ABSENT, (uintptr_t)remote[got < 0 ? 0 : got].iov_base, path);
        at = ((uintptr_t)remote[n - 1].iov_base / page + 1) * page;
    }
    return false;
}

static bool read_mapping(FILE *f, mapping_t *m)
{
    char line[256];
    if (!fgets(line, sizeof line, f)) return false;
    m->path[0] = '\0';
    int fields =
        sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s %*s %*s %*s %95[^\n]", &m->from, &m->to, m->perms, m->path);
    while (!strchr(line, '\n') && fgets(line, sizeof line, f)) continue; /* the rest of a long path */
    return fields >= 3;
}

void kolo_mem_access_find(const void *memory, size_t bytes, bool write, kolo_accessed_t *found)
{
    uintptr_t at = (uintptr_t)memory, to = at + bytes;
    mapping_t m;
    bool failed = false;
    *found = (kolo_accessed_t){.access = KOLO_ACCESS_FULL};
    FILE *f = fopen("/proc/self/maps", "re");
    if (!f) return; /* no procfs: nothing can be said */
    while (at < to && !failed && read_mapping(f, &m)) {
        if (m.to <= at) continue;
        if (m.from > at) break;
        if (m.perms[0] != 'r')
            failed = fails(found, KOLO_ACCESS_PROTECTED, at, m.path);
        else if (write && m.perms[1] != 'w')
            failed = fails(found, KOLO_ACCESS_READ_ONLY, at, m.path);
        else if (m.path[0] == '/')
            failed = probe_fails(at, KOLO_MIN(m.to, to), m.path, found);
        at = m.to;
    }
    fclose(f);
    if (!failed && at < to) fails(found, KOLO_ACCESS_UNMAPPED, at, "");
}
