/* SPDX-License-Identifier: Apache-2.0
 *
 * Ways to be refused copies from and to another process's memory (process_vm_readv(2), process_vm_writev(2)).
 */
#ifndef KOLO_TESTS_COLL_REFUSE_H
#define KOLO_TESTS_COLL_REFUSE_H

#include <stdbool.h>

/* A privileged process may read what others may not; a no-op for everybody else. */
bool test_drop_privileges(void);
/* "dump": others may not read this process, as it may not be dumped; "seccomp": this process may not read others;
 * "ptrace_scope": nothing is done, but Yama's must be set already (tests/vm/inside). */
bool test_refuse(const char *how);

#endif
