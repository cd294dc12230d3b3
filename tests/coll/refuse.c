/* SPDX-License-Identifier: Apache-2.0
 *
 * Ways to be refused copies: see refuse.h.
 */
#include "coll/refuse.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NOBODY 65534

bool test_drop_privileges(void)
{
    if (geteuid() == 0 && setresuid(NOBODY, NOBODY, NOBODY) != 0) return perror("setresuid"), false;
    return prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0;
}

static bool filter_copies(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    };
    struct sock_fprog program = {sizeof rules / sizeof rules[0], rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0)
        return true;
    return perror("seccomp"), false;
}

/* Yama decides, for the whole machine. */
static bool scope_is_set(void)
{
    FILE *f = fopen("/proc/sys/kernel/yama/ptrace_scope", "r");
    int scope = 0, found = f ? fscanf(f, "%d", &scope) : 0;
    if (f) fclose(f);
    if (found == 1 && scope > 0) return true;
    return fprintf(stderr, "--refuse ptrace_scope: /proc/sys/kernel/yama/ptrace_scope is not above 0\n"), false;
}

bool test_refuse(const char *how)
{
    if (strcmp(how, "dump") == 0) return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0;
    if (strcmp(how, "seccomp") == 0) return filter_copies();
    if (strcmp(how, "ptrace_scope") == 0) return scope_is_set();
    fprintf(stderr, "--refuse %s: no such way\n", how);
    return false;
}
