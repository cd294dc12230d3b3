/* SPDX-License-Identifier: Apache-2.0
 *
 * Giving the core away to whoever shares it. To a rank that waits, too, that is cheap. To programs that compute it
 * costs a slice of the scheduler's for each of them, where a sleeper that is woken goes before them.
 */
#ifndef KOLO_BASE_CPU_YIELD_H
#define KOLO_BASE_CPU_YIELD_H

#include <stdbool.h>

/* Gives the core away once. false: it has not, since others compute on it; who waits should sleep. */
bool kolo_yield(void);
/* Tells whether others were seen to compute on this thread's core within the last second. */
bool kolo_yield_is_crowded(void);

#endif
