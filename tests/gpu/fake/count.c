/* SPDX-License-Identifier: Apache-2.0
 *
 * How often each function of the fake driver was called. See fake.h.
 */
#include "fake.h"

#include <stdatomic.h>
#include <string.h>

#define FUNCTIONS 256

static struct {
    _Atomic(const char *) name; /* one text for each function */
    _Atomic long calls;
} counted[FUNCTIONS];

void fake_count(const char *function)
{
    for (int i = 0; i < FUNCTIONS; i++) {
        const char *name = atomic_load_explicit(&counted[i].name, memory_order_acquire);
        if (!name && atomic_compare_exchange_strong(&counted[i].name, &name, function)) name = function;
        if (name != function) continue;
        atomic_fetch_add_explicit(&counted[i].calls, 1, memory_order_relaxed);
        return;
    }
    fake_abort("more than %d functions", FUNCTIONS);
}

long fake_calls(const char *function)
{
    long calls = 0;
    for (int i = 0; i < FUNCTIONS; i++) {
        const char *name = atomic_load_explicit(&counted[i].name, memory_order_acquire);
        if (name && (function ? strcmp(name, function) == 0 : name[0] == 'c' && name[1] == 'u')) /* not kernels */
            calls += atomic_load(&counted[i].calls);
    }
    return calls;
}
