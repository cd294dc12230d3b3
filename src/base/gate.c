/* SPDX-License-Identifier: Apache-2.0
 *
 * A gate between threads of one process, on a futex. See wait.h.
 */
#include "base/clock.h"
#include "base/wait.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

uint32_t kolo_gate_ticket(kolo_gate_t *gate)
{
    return atomic_load_explicit(&gate->count, memory_order_acquire);
}

void kolo_gate_open(kolo_gate_t *gate)
{
    atomic_fetch_add(&gate->count, 1);
    if (atomic_load(&gate->waiters))
        syscall(SYS_futex, (uint32_t *)&gate->count, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void kolo_gate_join(kolo_gate_t *gate)
{
    atomic_fetch_add(&gate->waiters, 1);
    kolo_fence_cores();
}

void kolo_gate_quit(kolo_gate_t *gate)
{
    atomic_fetch_sub(&gate->waiters, 1);
}

/* Checks a wait. One that may last long because there is nothing to do has no stall_ns, and warns of nothing. */
static kolo_status_t check(kolo_wait_t *wait, uint64_t now)
{
    char text[512] = "something unnamed", words[600];
    if (wait->stall_ns != 0) return kolo_wait_check(wait);
    if (wait->since_ns == 0) wait->since_ns = now;
    bool aborted = wait->abort && atomic_load_explicit(wait->abort, memory_order_acquire);
    if (!aborted && (!wait->deadline_ns || now < wait->deadline_ns)) return KOLO_OK;
    if (wait->describe) wait->describe(wait->arg, text, sizeof text);
    if (aborted) return kolo_fail(KOLO_ERR_ABORTED, "aborted while waiting for %s", text);
    kolo_wait_words(text, now - wait->since_ns, words, sizeof words);
    return kolo_fail(KOLO_ERR_TIMEOUT, "time-out: %s", words);
}

kolo_status_t kolo_gate_wait(kolo_gate_t *gate, uint32_t ticket, kolo_wait_t *wait)
{
    kolo_status_t status = KOLO_OK;
    atomic_fetch_add(&gate->waiters, 1);
    while (atomic_load(&gate->count) == ticket) {
        uint64_t now = kolo_now_ns(), left = KOLO_NS_PER_S;
        if ((status = check(wait, now)) != KOLO_OK) break;
        if (wait->deadline_ns) left = KOLO_MIN(left, wait->deadline_ns - now);
        struct timespec ts = {(time_t)(left / KOLO_NS_PER_S), (long)(left % KOLO_NS_PER_S)};
        syscall(SYS_futex, (uint32_t *)&gate->count, FUTEX_WAIT_PRIVATE, ticket, &ts, NULL, 0);
    }
    atomic_fetch_sub(&gate->waiters, 1);
    return status;
}
