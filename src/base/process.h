/* SPDX-License-Identifier: Apache-2.0
 *
 * What the system tells of another process of this host.
 */
#ifndef KOLO_BASE_PROCESS_H
#define KOLO_BASE_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* The state letter of proc(5): R, S, T for stopped, Z for ended but not waited for, ...; '\0': there is none. */
char kolo_process_state(int pid);
static inline bool kolo_process_stopped(int pid)
{
    char state = kolo_process_state(pid);
    return state == 'T' || state == 't';
}
static inline bool kolo_process_gone(int pid)
{
    char state = kolo_process_state(pid);
    return state == '\0' || state == 'Z' || state == 'X';
}

/* Its parent, and when it was started, in clock ticks since the system was. false: it is gone. */
bool kolo_process_origin(int pid, int *parent, uint64_t *start_ticks);

#endif
