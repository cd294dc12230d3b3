/* SPDX-License-Identifier: Apache-2.0
 *
 * Whom this process lets copy from and to its memory, where the kernel wants to be told: see admit.h.
 */
#include "mem/admit.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define SCOPE_FILE "/proc/sys/kernel/yama/ptrace_scope"

int64_t kolo_mem_ptracer;

static int yama_scope(void)
{
    FILE *file = fopen(SCOPE_FILE, "re");
    int scope = 0;
    if (!file) return 0; /* a kernel without Yama */
    if (fscanf(file, "%d", &scope) != 1) scope = 0;
    fclose(file);
    return scope;
}

unsigned long kolo_mem_admitted(int64_t ptracer, int parent)
{
    if (ptracer == KOLO_PTRACER_ANY) return PR_SET_PTRACER_ANY;
    return ptracer == KOLO_PTRACER_NONE || parent <= 1 ? 0 : (unsigned long)parent;
}

/* Admits siblings only where it is needed: there is one such exception per process, and a debugger's helper may
 * have made it. */
void kolo_mem_admit_siblings(void)
{
    unsigned long who = kolo_mem_admitted(kolo_mem_ptracer, (int)getppid());
    if (who == 0 && kolo_mem_ptracer != KOLO_PTRACER_NONE && getppid() == 1 && yama_scope() == 1)
        kolo_info("wire",
                  "process %d admits no copies by its siblings: its parent is process 1, whose descendants all "
                  "processes are (KOLO_CMA_PTRACER=any admits them)",
                  (int)getpid());
    if (who == 0 || yama_scope() != 1) return;
    if (prctl(PR_SET_PTRACER, who, 0, 0, 0) != 0)
        kolo_info("wire", "process %d cannot admit copies by its siblings (ptrace_scope 1): %s", (int)getpid(),
                  strerror(errno));
}
