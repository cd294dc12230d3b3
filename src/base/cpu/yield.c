/* SPDX-License-Identifier: Apache-2.0
 *
 * See yield.h. A thread finds strangers by timing its yields, and remembers them for a while.
 */
#include "base/cpu/yield.h"
#include "base/clock.h"
#include "base/status.h"

#include <sched.h>
#include <sys/resource.h>

/* Who gets its core back this late has let somebody compute for a whole slice; a rank that waits gives it back in
 * microseconds. */
#define LONG_YIELD_NS KOLO_NS_PER_MS
#define CROWDED_NS    KOLO_NS_PER_S

static _Thread_local struct {
    uint64_t until_ns; /* the core is taken to be crowded */
    long switches;     /* of this thread to others, at its last long yield; 0: there was none */
} seen;

bool kolo_yield_is_crowded(void)
{
    if (KOLO_LIKELY(seen.until_ns == 0)) return false;
    if (kolo_now_ns() < seen.until_ns) return true;
    seen.until_ns = 0;
    return false;
}

/* A yield is also long where the machine below takes the core away. Nobody else has run here then, and to sleep
 * would not help: two ranks that sleep both come late. */
bool kolo_yield(void)
{
    struct rusage use;
    if (kolo_yield_is_crowded()) return false;
    uint64_t before = kolo_now_ns();
    sched_yield();
    uint64_t now = kolo_now_ns();
    if (KOLO_LIKELY(now - before < LONG_YIELD_NS) || getrusage(RUSAGE_THREAD, &use) != 0) return true;
    long switches = use.ru_nvcsw + use.ru_nivcsw;
    if (seen.switches != 0 && switches > seen.switches) seen.until_ns = now + CROWDED_NS;
    seen.switches = switches;
    return true;
}
