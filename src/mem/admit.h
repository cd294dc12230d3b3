/* SPDX-License-Identifier: Apache-2.0
 *
 * Under Yama's ptrace_scope 1 only ancestors may copy from and to a process' memory; a process can name one more,
 * which stands for all that descends from it: its parent, by default, as launchers are the parents of all ranks of
 * a host (docs/decisions/0023).
 */
#ifndef KOLO_MEM_ADMIT_H
#define KOLO_MEM_ADMIT_H

#include <stdint.h>

enum { KOLO_PTRACER_NONE, KOLO_PTRACER_PARENT, KOLO_PTRACER_ANY };
extern int64_t kolo_mem_ptracer; /* KOLO_CMA_PTRACER */

/* Lets those copy that KOLO_CMA_PTRACER names. Where it is not needed it does nothing. */
void kolo_mem_admit_siblings(void);
/* Returns whom to name to the kernel, for a process with this parent; 0: nobody. Never process 1: all others
 * descend from it. */
unsigned long kolo_mem_admitted(int64_t ptracer, int parent);

#endif
