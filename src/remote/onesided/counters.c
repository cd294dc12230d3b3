/* SPDX-License-Identifier: Apache-2.0
 *
 * What all one-sided transfers of the process have done so far.
 */
#include "remote/onesided/internal.h"

static _Atomic uint64_t counts[8];

static void add(int first, const uint64_t *n, int many)
{
    for (int i = 0; i < many; i++)
        if (n[i]) atomic_fetch_add_explicit(&counts[first + i], n[i], memory_order_relaxed);
}

void kolo_onesided_count(uint64_t writes, uint64_t bytes, uint64_t notices, uint64_t refused)
{
    add(0, (uint64_t[]){writes, bytes, notices, refused}, 4);
}

void kolo_onesided_count_card(uint64_t requests, uint64_t completions, uint64_t registrations)
{
    add(4, (uint64_t[]){requests, completions, registrations}, 3);
}

void kolo_onesided_count_parted(void)
{
    add(7, (uint64_t[]){1}, 1);
}

void kolo_onesided_get_counters(kolo_onesided_counters_t *c)
{
    uint64_t *const to[] = {&c->writes,   &c->written_bytes, &c->notices,       &c->refused,
                            &c->requests, &c->completions,   &c->registrations, &c->parted};
    for (size_t i = 0; i < KOLO_COUNTOF(to); i++) *to[i] = atomic_load_explicit(&counts[i], memory_order_relaxed);
}
