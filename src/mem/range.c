/* SPDX-License-Identifier: Apache-2.0
 *
 * The registered ranges of the process (range.h).
 *
 * Two locks. `list` guards which ranges there are and whether they are good; nothing is allocated or freed under
 * it, for the thread that listens to the kernel takes it. `pins` guards what devices hold, and is taken first.
 */
#include "mem/range.h"
#include "base/clock.h"
#include "base/file/fds.h"
#include "base/log.h"
#include "mem/watch.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define MAX_PINS 16 /* devices that hold one range */

typedef struct {
    const kolo_mem_pinner_t *by;
    void *handle;
} pin_t;

struct kolo_mem_range {
    kolo_mem_range_t *next;
    uintptr_t from, to;
    uint32_t registered, uses; /* by the program; by it and by what is under way */
    bool good, watched, told;
    uint64_t used_at; /* turn of the last find */
    pin_t pins[MAX_PINS];
    uint32_t npins;
};

static bool unwatched_is_fine;
static int64_t pin_mb = 65536; /* also before the parameters are read */
static const kolo_param_t rows[] = {
    {"KOLO_MEM_UNWATCHED", KOLO_PARAM_BOOL, "0", 0, 0, NULL, false,
     "use registered memory (kolo_comm_register) without a copy also where the kernel does not report memory that "
     "is unmapped: right only if the program gives every registration back before it frees the memory",
     &unwatched_is_fine},
    {"KOLO_MEM_PIN_MB", KOLO_PARAM_INT, "65536", 0, 1 << 30, NULL, false,
     "megabytes of registered memory that devices may hold in place at once; what was not used for the longest "
     "time makes room",
     &pin_mb},
};
const kolo_param_table_t kolo_mem_params = {"mem", rows, KOLO_COUNTOF(rows), NULL};

static pthread_mutex_t list = PTHREAD_MUTEX_INITIALIZER, pins = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static kolo_mem_range_t *first;
static _Atomic uint32_t nranges; /* registered by the program */
static uint64_t turn, pinned, lost_ranges;
static uint32_t npinned;
static bool watching;

/* ---- fork: the child has neither the thread nor a right to the devices ---- */

static void lock_both(void)
{
    pthread_mutex_lock(&pins);
    pthread_mutex_lock(&list);
}
static void unlock_both(void)
{
    pthread_mutex_unlock(&list);
    pthread_mutex_unlock(&pins);
}
static void forget(void)
{
    kolo_mem_watch_forget();
    first = NULL; /* the parent's; not freed, for nothing of it is known to be whole */
    atomic_store(&nranges, 0);
    pinned = npinned = 0;
    watching = false;
    unlock_both();
}
static void watch_forks(void)
{
    kolo_fd_watch_forks(); /* first: its lock is taken last */
    pthread_atfork(lock_both, unlock_both, forget);
}

/* ---- what the kernel tells ---- */

/* Loses ranges, with the list locked. */
static void lose(uintptr_t from, uintptr_t to)
{
    for (kolo_mem_range_t *r = first; r; r = r->next)
        if (r->good && from < r->to && r->from < to) {
            r->good = false;
            lost_ranges++;
        }
}

/* Logs a sentence for the person who wonders why copies are made again; not by the thread that listens. */
static void tell(kolo_mem_range_t *r)
{
    if (r->good || r->told || !r->watched) return;
    r->told = true;
    kolo_warn("mem",
              "pages of the registered memory %#zx to %#zx were unmapped, moved or dropped; it is not used without "
              "a copy any more (give registrations back before memory is freed)",
              r->from, r->to);
}

/* ---- pins, with `pins` locked ---- */

static void unpin_all(kolo_mem_range_t *r)
{
    for (uint32_t i = 0; i < r->npins; i++) {
        r->pins[i].by->unpin(r->pins[i].by->arg, r->pins[i].handle);
        pinned -= r->to - r->from;
        npinned--;
    }
    r->npins = 0;
}

static void unlink_range(const kolo_mem_range_t *r)
{
    pthread_mutex_lock(&list);
    kolo_mem_range_t **at = &first;
    while (*at != r) at = &(*at)->next;
    *at = r->next;
    pthread_mutex_unlock(&list);
}

/* Pages that another range has stay watched. */
static bool is_shared(const kolo_mem_range_t *r)
{
    bool shared = false;
    pthread_mutex_lock(&list);
    for (const kolo_mem_range_t *o = first; o; o = o->next) shared |= o->from < r->to && r->from < o->to;
    pthread_mutex_unlock(&list);
    return shared;
}

static void drop_use(kolo_mem_range_t *r)
{
    pthread_mutex_lock(&list);
    bool last = --r->uses == 0;
    pthread_mutex_unlock(&list);
    if (!last) return;
    pthread_mutex_lock(&pins);
    unlink_range(r); /* a range without registrations is never found, so it stays unused */
    unpin_all(r);
    if (r->watched && !is_shared(r)) kolo_mem_watch_remove(r->from, r->to);
    if (!first && watching) {
        watching = false;
        kolo_mem_watch_stop();
    }
    pthread_mutex_unlock(&pins);
    free(r);
}

/* ---- the program's side ---- */

/* Watches a range, with `pins` locked. */
static void watch(kolo_mem_range_t *r)
{
    const kolo_mem_watch_hooks_t hooks = {.lock = &list, .lost = lose};
    if (!watching) watching = kolo_mem_watch_start(&hooks) == KOLO_OK;
    r->watched = watching && kolo_mem_watch_add(r->from, r->to) == KOLO_OK;
    r->good = r->watched || unwatched_is_fine;
    if (!r->good)
        kolo_info("mem",
                  "registered memory is copied like any other: %s (KOLO_MEM_UNWATCHED=1 uses it in place anyway)",
                  kolo_error_text());
}

static kolo_mem_range_t *same_range(uintptr_t from, uintptr_t to)
{
    pthread_mutex_lock(&list);
    kolo_mem_range_t *r = first;
    while (r && !(r->from == from && r->to == to && r->good && r->registered)) r = r->next;
    if (r) {
        r->registered++;
        r->uses++;
    }
    pthread_mutex_unlock(&list);
    return r;
}

static kolo_status_t enter(void *memory, size_t bytes, bool quiet, kolo_mem_range_t **range)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)memory / page * page,
              end = (uintptr_t)memory + bytes;
    if (end < (uintptr_t)memory || end > UINTPTR_MAX - page)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%zu bytes at %p are no memory", bytes, memory);
    uintptr_t to = KOLO_ROUND_UP(end, page);
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&pins);
    kolo_mem_range_t *r = same_range(from, to);
    if (!r && (r = calloc(1, sizeof *r))) {
        *r = (kolo_mem_range_t){.from = from, .to = to, .registered = 1, .uses = 1, .told = quiet};
        watch(r);
        pthread_mutex_lock(&list);
        r->next = first;
        first = r;
        pthread_mutex_unlock(&list);
    }
    if (r) atomic_fetch_add(&nranges, 1);
    pthread_mutex_unlock(&pins);
    if (!r) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to register memory");
    *range = r;
    return KOLO_OK;
}

kolo_status_t kolo_mem_range_register(void *memory, size_t bytes, kolo_mem_range_t **range)
{
    return enter(memory, bytes, false, range);
}

kolo_status_t kolo_mem_range_keep(void *memory, size_t bytes, kolo_mem_range_t **range)
{
    return enter(memory, bytes, true, range);
}

bool kolo_mem_range_works(const kolo_mem_range_t *range)
{
    pthread_mutex_lock(&list);
    bool good = range->good;
    pthread_mutex_unlock(&list);
    return good;
}

void kolo_mem_range_deregister(kolo_mem_range_t *r)
{
    if (!r) return;
    tell(r);
    pthread_mutex_lock(&list);
    r->registered--;
    pthread_mutex_unlock(&list);
    atomic_fetch_sub(&nranges, 1);
    drop_use(r);
}

bool kolo_mem_ranges_exist(void)
{
    return atomic_load_explicit(&nranges, memory_order_relaxed) > 0;
}

/* ---- the wires' side ---- */

kolo_mem_range_t *kolo_mem_range_find(const void *memory, size_t bytes)
{
    uintptr_t from = (uintptr_t)memory, to = from + bytes;
    if (!kolo_mem_ranges_exist() || to < from) return NULL;
    kolo_mem_range_t *gone = NULL;
    pthread_mutex_lock(&list);
    kolo_mem_range_t *r = first;
    for (; r; r = r->next) {
        if (!r->registered || from < r->from || to > r->to) continue;
        if (r->good) break;
        gone = r;
    }
    if (r) {
        r->uses++;
        r->used_at = ++turn;
    } else if (gone && (gone->told || !gone->watched)) {
        gone = NULL;
    } else if (gone) {
        gone->uses++;
    }
    pthread_mutex_unlock(&list);
    if (!r && gone) {
        tell(gone);
        drop_use(gone);
    }
    return r;
}

void kolo_mem_range_put(kolo_mem_range_t *range)
{
    if (range) drop_use(range);
}

/* Unpins unused ranges, the oldest first, until `bytes` more have room. */
static bool make_room(uint64_t bytes)
{
    uint64_t most = (uint64_t)pin_mb << 20;
    while (pinned + bytes > most) {
        kolo_mem_range_t *oldest = NULL;
        pthread_mutex_lock(&list);
        for (kolo_mem_range_t *r = first; r; r = r->next) /* only registered, nothing under way */
            if (r->npins && r->uses == r->registered && (!oldest || r->used_at < oldest->used_at)) oldest = r;
        pthread_mutex_unlock(&list);
        if (!oldest) return false;
        unpin_all(oldest);
    }
    return true;
}

static kolo_status_t pin(kolo_mem_range_t *r, const kolo_mem_pinner_t *pinner, void **handle)
{
    uint64_t bytes = r->to - r->from;
    for (uint32_t i = 0; i < r->npins; i++)
        if (r->pins[i].by == pinner) {
            *handle = r->pins[i].handle;
            return KOLO_OK;
        }
    if (r->npins == MAX_PINS || !make_room(bytes))
        return kolo_fail(KOLO_ERR_NO_MEMORY, "no room to pin %llu bytes (KOLO_MEM_PIN_MB)",
                         (unsigned long long)bytes);
    KOLO_TRY(pinner->pin(pinner->arg, (void *)r->from, bytes, handle)); // NOLINT(performance-no-int-to-ptr)
    r->pins[r->npins++] = (pin_t){pinner, *handle};
    pinned += bytes;
    npinned++;
    return KOLO_OK;
}

kolo_status_t kolo_mem_range_pin(kolo_mem_range_t *range, const kolo_mem_pinner_t *pinner, void **handle)
{
    pthread_mutex_lock(&pins);
    kolo_status_t status = pin(range, pinner, handle);
    pthread_mutex_unlock(&pins);
    KOLO_TRY(status);
    pthread_mutex_lock(&list);
    bool good = range->good; /* pages that went away meanwhile may be the ones that are pinned */
    pthread_mutex_unlock(&list);
    return good ? KOLO_OK : kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "the registered memory was unmapped");
}

void kolo_mem_pinner_leave(const kolo_mem_pinner_t *pinner)
{
    pthread_mutex_lock(&pins);
    for (kolo_mem_range_t *r = first; r; r = r->next)
        for (uint32_t i = 0; i < r->npins; i++) {
            if (r->pins[i].by != pinner) continue;
            pinner->unpin(pinner->arg, r->pins[i].handle);
            r->pins[i--] = r->pins[--r->npins];
            pinned -= r->to - r->from;
            npinned--;
        }
    pthread_mutex_unlock(&pins);
}

void kolo_mem_range_count(kolo_mem_range_counts_t *out)
{
    lock_both();
    *out = (kolo_mem_range_counts_t){.pins = npinned, .pinned_bytes = pinned, .lost = lost_ranges};
    for (const kolo_mem_range_t *r = first; r; r = r->next) out->ranges++;
    unlock_both();
}
