/* SPDX-License-Identifier: Apache-2.0
 *
 * See yield.h. A thread finds strangers by timing its yields, and remembers them for a while.
 */
#include "base/cpu/yield.h"
#include "base/clock.h"
#include "base/status.h"

#include <sched.h>
#include <stdio.h>
#include <sys/resource.h>

/* Who gets its core back this late has let somebody compute for a whole slice; a rank that waits gives it back in
 * microseconds. */
#define LONG_YIELD_NS KOLO_NS_PER_MS
#define CROWDED_NS    KOLO_NS_PER_S
#define LOOK_NS       (20 * KOLO_NS_PER_MS) /* what others took is looked up so often; it costs some microseconds */

static _Thread_local struct {
    uint64_t until_ns; /* the core is taken to be crowded */
    uint64_t taken;    /* others_took() when it was looked up */
    uint64_t look_ns;  /* when it is to be looked up again */
} seen;

/* Returns for how many nanoseconds others have had the core while this thread could have run; since when does not
 * matter. Where the kernel does not count them, each switch to another thread is taken for a long one. */
static uint64_t others_took(void)
{
    unsigned long long ran, waited;
    struct rusage use;
    FILE *f = fopen("/proc/thread-self/schedstat", "re");
    int found = f ? fscanf(f, "%llu %llu", &ran, &waited) : 0;
    if (f) fclose(f);
    if (found == 2) return waited;
    return getrusage(RUSAGE_THREAD, &use) == 0 ? (uint64_t)(use.ru_nvcsw + use.ru_nivcsw) * KOLO_NS_PER_S : 0;
}

bool kolo_yield_is_crowded(void)
{
    if (KOLO_LIKELY(seen.until_ns == 0)) return false;
    if (kolo_now_ns() < seen.until_ns) return true;
    seen.until_ns = 0;
    return false;
}

/* Yields once. That takes long also where the machine below takes the core away, or somebody has stopped the
 * process. Nobody else has run here then, and to sleep would not help: two ranks that sleep both come late. */
bool kolo_yield(void)
{
    if (kolo_yield_is_crowded()) return false;
    uint64_t before = kolo_now_ns();
    if (KOLO_UNLIKELY(before >= seen.look_ns)) {
        seen.taken = others_took();
        seen.look_ns = before + LOOK_NS;
    }
    sched_yield();
    uint64_t now = kolo_now_ns();
    if (KOLO_LIKELY(now - before < LONG_YIELD_NS)) return true;
    uint64_t taken = others_took();
    if (taken - seen.taken >= (now - before) / 2) seen.until_ns = now + CROWDED_NS;
    seen.taken = taken;
    return true;
}
