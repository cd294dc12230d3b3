/* SPDX-License-Identifier: Apache-2.0
 *
 * The wait primitive's slow half: yielding, parking, abort and deadline. See wait.h.
 */
#include "base/wait.h"
#include "base/clock.h"
#include "base/cpu/yield.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/params.h"

#include <linux/membarrier.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Longer than a sleeper takes to wake (50 to 200 us on virtual machines): else ranks that pass data on in a ring
 * fall asleep at every step once one of them has, and each step costs a wake-up from then on. */
#define YIELDS 10000
/* A rank with a core of its own goes on yielding for so long after that: longer than a neighbour is away when the
 * scheduler of the machine, or of the machine below it, takes its core. If all sleep meanwhile, all come late to
 * the next operation. */
#define OUTLAST_NS (25 * KOLO_NS_PER_MS)
/* Stores leave a core within less than a microsecond; this is a hundred times that. */
#define SETTLE_NS 100000

#define STALL_AGAIN_NS (60 * KOLO_NS_PER_S) /* a wait that stalls says so again after this at the latest */

static int64_t param_spins = -1, param_yields = -1, param_stall_ms, param_log_format;
static const char *param_log, *param_log_file, *param_fail_point;

static const kolo_param_t rows[] = {
    {"KOLO_LOG", KOLO_PARAM_STR, "warn", 0, 0, NULL, false,
     "log level none, error, warn, info, debug or trace: messages of this importance and of every higher one are "
     "printed; then levels of single rooms, as in info,wire=debug (the name in brackets in each line)",
     &param_log},
    {"KOLO_LOG_FORMAT", KOLO_PARAM_ENUM, "text", 0, 0, "text|long|json", false,
     "long: log lines begin with time, version, rank and job; json: an object a line with all of these",
     &param_log_format},
    {"KOLO_LOG_FILE", KOLO_PARAM_FILE, NULL, 0, 0, NULL, false,
     "file for log lines instead of stderr; %p becomes the process id", &param_log_file},
    {"KOLO_SPINS", KOLO_PARAM_INT, "-1", -1, 1 << 30, NULL, false,
     "polls of a wait before it gives the core away; -1: 2000, or 4 with more ranks than cores", &param_spins},
    {"KOLO_YIELDS", KOLO_PARAM_INT, "-1", -1, 1 << 30, NULL, false,
     "times a wait gives the core away before it sleeps; -1: 10000, or none for a second after other programs were "
     "seen to use the core",
     &param_yields},
    {"KOLO_STALL_WARN_MS", KOLO_PARAM_INT, "60000", 0, INT64_MAX / 1000000, NULL, false,
     "a wait that lasts this many milliseconds logs a warning that says what it waits for, and later ones after "
     "twice as long each, until that is a minute; 0: never",
     &param_stall_ms},
    {"KOLO_FAIL_POINT", KOLO_PARAM_STR, NULL, 0, 0, NULL, false,
     "tests: faults at named places, name:hit:action[:number][,...]; kolo-info --fail-points lists the names",
     &param_fail_point},
};
static kolo_status_t check(const kolo_param_t *row, const char *text)
{
    bool bad = strcmp(row->key, "KOLO_LOG") == 0 && !kolo_log_levels_good(text);
    return bad ? kolo_param_refuse(row, text, KOLO_LOG_GRAMMAR) : KOLO_OK;
}

const kolo_param_table_t kolo_base_params = {"base", rows, KOLO_COUNTOF(rows), check};

kolo_status_t kolo_params_apply_base(void)
{
    KOLO_TRY(kolo_log_open(param_log, (kolo_log_format_t)param_log_format, param_log_file));
    return kolo_fail_points_arm(param_fail_point);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool have_membarrier;
_Atomic bool kolo_fence_is_full = true; /* until it is known to be needless */
static int cores;

static void probe(void)
{
    cpu_set_t set;
    cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    have_membarrier = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0 &&
                      syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0;
    atomic_store(&kolo_fence_is_full, !have_membarrier);
}

int kolo_cores(void)
{
    pthread_once(&once, probe);
    return cores;
}

void kolo_cores_mask(uint8_t mask[KOLO_CORE_MASK_BYTES])
{
    cpu_set_t set;
    memset(mask, 0, KOLO_CORE_MASK_BYTES);
    if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_ZERO(&set);
    for (unsigned c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &set)) mask[c % 128 / 8] |= (uint8_t)(1u << c % 8);
}

void kolo_fence_cores(void)
{
    pthread_once(&once, probe);
    atomic_thread_fence(memory_order_seq_cst);
    if (have_membarrier) syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
}

void kolo_wait_init(kolo_wait_t *wait, const _Atomic uint32_t *abort, uint64_t deadline_ns,
                    kolo_describe_fn_t describe, void *arg, int ranks_here)
{
    bool crowded = ranks_here > kolo_cores();
    wait->abort = abort;
    wait->deadline_ns = deadline_ns;
    wait->describe = describe;
    wait->arg = arg;
    wait->nwakers = 0; /* of wakers[] only so many are ever read */
    wait->look = NULL;
    wait->explain = NULL;
    wait->polls = 0;
    wait->armed = false;
    wait->since_ns = wait->stall_ns = wait->yield_ns = wait->settle_ns = 0;
    wait->outlasts = !crowded && param_yields < 0;
    wait->spins = param_spins >= 0 ? (uint32_t)param_spins : crowded ? 4 : 2000;
    wait->yields = param_yields >= 0 ? (uint32_t)param_yields : YIELDS;
}

static _Thread_local kolo_wait_purpose_t purpose;

kolo_wait_purpose_t kolo_wait_set_purpose(kolo_wait_purpose_t now)
{
    kolo_wait_purpose_t before = purpose;
    purpose = now;
    return before;
}

const char *kolo_wait_purpose_call(const char *what)
{
    return purpose.call ? purpose.call : what;
}

bool kolo_wait_purpose_words(char *buf, size_t bytes)
{
    char text[500];
    if (!purpose.describe) return false;
    purpose.describe(purpose.arg, text, sizeof text);
    const char *what = strstr(text, KOLO_WAIT_FOR);
    if (what)
        snprintf(buf, bytes, "%.*s, which waits for %s", (int)(what - text), text, what + sizeof KOLO_WAIT_FOR - 1);
    else
        snprintf(buf, bytes, "%s", text);
    return true;
}

static void describe(const kolo_wait_t *wait, char *text, size_t bytes)
{
    size_t n = 0;
    snprintf(text, bytes, "something unnamed");
    if (purpose.describe) {
        purpose.describe(purpose.arg, text, bytes);
        n = strlen(text);
    }
    if (!wait->describe || bytes - n < 4) return;
    if (n == 0) {
        wait->describe(wait->arg, text, bytes);
        return;
    }
    if (!strstr(text, KOLO_WAIT_FOR) && bytes - n > sizeof KOLO_WAIT_FOR) {
        memcpy(text + n, KOLO_WAIT_FOR, sizeof KOLO_WAIT_FOR);
        n += sizeof KOLO_WAIT_FOR - 1;
        wait->describe(wait->arg, text + n, bytes - n);
        return;
    }
    n += (size_t)snprintf(text + n, bytes - n, " (");
    wait->describe(wait->arg, text + n, bytes - n - 1);
    n += strlen(text + n);
    text[n++] = ')';
    text[n] = '\0';
}

void kolo_wait_words(const char *description, uint64_t waited_ns, char *buf, size_t bytes)
{
    const char *what = strstr(description, KOLO_WAIT_FOR);
    double s = (double)waited_ns / (double)KOLO_NS_PER_S;
    if (what)
        snprintf(buf, bytes, "%.*s, waited %.1f s for %s", (int)(what - description), description, s,
                 what + sizeof KOLO_WAIT_FOR - 1);
    else
        snprintf(buf, bytes, "waited %.1f s for %s", s, description);
}

static void describe_until(const kolo_wait_t *wait, uint64_t now, char *text, size_t bytes)
{
    char what[700];
    describe(wait, what, sizeof what);
    kolo_wait_words(what, now - wait->since_ns, text, bytes);
}

/* Tells what is awaited, and whose fault it is. Who is asked waits for answers: that wait explains nothing. */
static void warn(const kolo_wait_t *wait, uint64_t now)
{
    static _Thread_local bool explaining;
    char text[800], why[500] = "";
    describe_until(wait, now, text, sizeof text);
    if (!explaining) {
        explaining = true;
        if (wait->explain)
            wait->explain(wait->arg, why, sizeof why);
        else if (purpose.explain)
            purpose.explain(purpose.arg, why, sizeof why);
        explaining = false;
    }
    kolo_warn("wait", "still waiting: %s%s%s", text, *why ? "; " : "", why);
}

bool kolo_wait_stalls(uint64_t since_ns, uint64_t now, uint64_t *next_ns)
{
    uint64_t first = (uint64_t)param_stall_ms * KOLO_NS_PER_MS, lasted = now - since_ns;
    if (!first) return false;
    if (*next_ns == 0) *next_ns = now + first; /* who sets it to 0 has nothing to complain of yet */
    if (now < *next_ns) return false;
    *next_ns = now + KOLO_MAX(first, KOLO_MIN(lasted, STALL_AGAIN_NS));
    return true;
}

kolo_status_t kolo_wait_check(kolo_wait_t *wait)
{
    char text[800];
    if (wait->abort && atomic_load_explicit(wait->abort, memory_order_acquire)) {
        describe(wait, text, sizeof text);
        return kolo_fail(KOLO_ERR_ABORTED, "aborted while waiting for %s", text);
    }
    if (wait->look) KOLO_TRY(wait->look(wait->arg));
    if (!wait->deadline_ns && !param_stall_ms) return KOLO_OK;
    uint64_t now = kolo_now_ns();
    if (wait->since_ns == 0) wait->since_ns = now;
    if (wait->deadline_ns && now >= wait->deadline_ns) {
        describe_until(wait, now, text, sizeof text);
        return kolo_fail(KOLO_ERR_TIMEOUT, "time-out: %s", text);
    }
    if (kolo_wait_stalls(wait->since_ns, now, &wait->stall_ns)) warn(wait, now);
    return KOLO_OK;
}

static void arm(kolo_wait_t *wait)
{
    bool quiet = have_membarrier && wait->nwakers > 0;
    for (uint32_t i = 0; i < wait->nwakers; i++) {
        kolo_waker_t *waker = wait->wakers[i];
        atomic_store_explicit(waker->asleep, 1, memory_order_relaxed);
        if (waker->arm) waker->arm(waker->arm_arg);
        quiet &= waker->quiet;
    }
    /* A peer either sees asleep or we see its data, in the poll before we sleep. A barrier on all cores makes sure
     * of that. It interrupts whoever runs, so where 64 ranks go to sleep each is interrupted 63 times and comes
     * late itself. There that poll comes later instead, when what was stored before a peer looked has long left its
     * core; and should it not have, the sleep has its limit. */
    if (quiet) {
        atomic_thread_fence(memory_order_seq_cst);
        wait->settle_ns = kolo_now_ns() + SETTLE_NS;
    } else {
        kolo_fence_cores();
        wait->settle_ns = 0;
    }
    wait->armed = true;
}

static void disarm(kolo_wait_t *wait)
{
    /* A ring that comes too late cuts the next sleep short. */
    for (uint32_t i = 0; i < wait->nwakers; i++)
        atomic_store_explicit(wait->wakers[i]->asleep, 0, memory_order_relaxed);
    wait->armed = false;
}

static void park(kolo_wait_t *wait)
{
    int ms = have_membarrier ? KOLO_PARK_MAX_MS : KOLO_PARK_BLIND_MS;
    if (wait->deadline_ns) {
        uint64_t now = kolo_now_ns();
        uint64_t left = wait->deadline_ns > now ? (wait->deadline_ns - now) / KOLO_NS_PER_MS + 1 : 0;
        if (left < (uint64_t)ms) ms = (int)left;
    }
    if (wait->nwakers == 1) {
        struct epoll_event events[8]; /* edge-triggered: all that are ready count as seen */
        epoll_wait(wait->wakers[0]->epoll_fd, events, 8, ms);
    } else {
        struct pollfd fds[KOLO_WAIT_MAX_WAKERS];
        struct epoll_event events[8];
        for (uint32_t i = 0; i < wait->nwakers; i++)
            fds[i] = (struct pollfd){.fd = wait->wakers[i]->epoll_fd, .events = POLLIN};
        poll(fds, wait->nwakers, ms);
        for (uint32_t i = 0; i < wait->nwakers; i++)
            if (fds[i].revents) epoll_wait(wait->wakers[i]->epoll_fd, events, 8, 0);
    }
}

static bool all_outlast(const kolo_wait_t *wait)
{
    bool all = wait->outlasts && wait->nwakers > 0;
    for (uint32_t i = 0; i < wait->nwakers; i++) all &= wait->wakers[i]->outlasts;
    return all;
}

/* Limits yields by their number, and then by time where all whom it waits for have a core of their own. */
static bool still_yields(kolo_wait_t *wait)
{
    uint32_t yields = wait->polls - wait->spins;
    if (yields <= wait->yields) return true;
    if (yields == wait->yields + 1)
        wait->yield_ns = all_outlast(wait) ? kolo_now_ns() + OUTLAST_NS : 0;
    else if (wait->yield_ns != 0 && (yields & 15) == 0 && kolo_now_ns() >= wait->yield_ns)
        wait->yield_ns = 0;
    return wait->yield_ns != 0;
}

kolo_status_t kolo_wait_pause_slow(kolo_wait_t *wait)
{
    wait->polls++;
    if (!wait->armed && still_yields(wait)) {
        if ((wait->polls & 15) == 0) KOLO_TRY(kolo_wait_check(wait));
        if (param_yields < 0 ? kolo_yield() : sched_yield() == 0) return KOLO_OK;
    }
    kolo_status_t status = kolo_wait_check(wait);
    if (status != KOLO_OK) {
        if (wait->armed) disarm(wait);
        return status;
    }
    if (wait->nwakers == 0) {
        struct timespec ts = {0, 50000};
        nanosleep(&ts, NULL);
    } else if (!wait->armed) {
        arm(wait);
    } else if (wait->settle_ns != 0 && kolo_now_ns() < wait->settle_ns) {
        (void)kolo_yield();
    } else {
        park(wait);
        disarm(wait);
    }
    return KOLO_OK;
}

void kolo_wait_end_slow(kolo_wait_t *wait)
{
    disarm(wait);
}
