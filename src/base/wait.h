/* SPDX-License-Identifier: Apache-2.0
 *
 * The one way to wait. A wait has a deadline, an abort flag and a description, and goes through three phases: spin,
 * yield, park. The caller polls its condition and calls kolo_wait_pause() after each poll that found nothing:
 *
 *     kolo_wait_init(&w, abort_flag, deadline, describe, arg, ranks_here); w.wakers[0] = waker; w.nwakers = 1;
 *     while (!(done = poll()) && (st = kolo_wait_pause(&w)) == KOLO_OK) {}
 *     kolo_wait_end(&w);
 *
 * Parking takes two pauses: the first arms the waker (asleep = 1, then a barrier that peers' cores take part in)
 * and returns so that the caller polls once more; the second sleeps, at most KOLO_PARK_MAX_MS, and disarms. So a
 * peer's fast path is: store the data, compiler barrier, load `asleep`; only if set, one write to the doorbell. The
 * full fence that this needs is paid by the sleeper (membarrier(2), global expedited; with many ranks it waits for
 * their stores to arrive instead). Where membarrier is missing both sides pay for a fence, and the sleep is bounded
 * to KOLO_PARK_BLIND_MS.
 */
#ifndef KOLO_BASE_WAIT_H
#define KOLO_BASE_WAIT_H

#include "base/status.h"

#include <stdatomic.h>
#include <stdbool.h>

#define KOLO_PARK_MAX_MS     10
#define KOLO_PARK_BLIND_MS   1
#define KOLO_WAIT_MAX_WAKERS 16

/* What a sleeper sleeps on: an epoll descriptor that holds a doorbell eventfd and any sockets added to it, all
 * edge-triggered: nobody reads the eventfd, which several wakers may share (file/doorbell.h).
 * `asleep` may point into memory shared with peers (a control page) or at own_asleep. A descriptor that reports
 * events only on request (the completion channel of a network card) is requested to by `arm`, which a sleeper calls
 * before its last poll: what arrives after that ends the sleep. */
typedef struct kolo_waker {
    int epoll_fd;
    int event_fd;
    struct kolo_doorbell *bell; /* whose eventfd it is; NULL: the waker's own */
    _Atomic uint32_t *asleep;
    _Atomic uint32_t own_asleep;
    bool outlasts; /* who rings it has a core of its own: a wait for it polls for longer than short absences */
    bool quiet;    /* they are many: who goes to sleep must not interrupt them all */
    void (*arm)(void *arg); /* on the sleeper's thread; NULL: not needed */
    void *arm_arg;
} kolo_waker_t;

kolo_status_t kolo_waker_init(kolo_waker_t *waker, _Atomic uint32_t *asleep /* or NULL */);
/* Shares its doorbell with other wakers that this thread makes so: rings for them end its sleeps, too. */
kolo_status_t kolo_waker_init_shared(kolo_waker_t *waker, _Atomic uint32_t *asleep);
void kolo_waker_fini(kolo_waker_t *waker); /* safe on a zeroed struct with fds -1, and twice */
/* Adds or removes a socket (edge-triggered, in and out): readiness ends the sleep. */
kolo_status_t kolo_waker_add_fd(kolo_waker_t *waker, int fd);
void kolo_waker_del_fd(kolo_waker_t *waker, int fd);

/* The fast half of a handshake whose slow half is kolo_fence_cores(): between the store and the load. Nothing but a
 * barrier to the compiler, except where that is no fence on other cores; then both halves have to be full. */
extern _Atomic bool kolo_fence_is_full;
static inline void kolo_fence_light(void)
{
    atomic_signal_fence(memory_order_seq_cst);
    if (KOLO_UNLIKELY(atomic_load_explicit(&kolo_fence_is_full, memory_order_relaxed)))
        atomic_thread_fence(memory_order_seq_cst);
}

/* Wakes the sleeper, if there is one, after a condition has come true: the fast path. Any thread of any process
 * that has the word mapped and the descriptor. */
void kolo_waker_doorbell(int event_fd);
static inline void kolo_doorbell_ring(const _Atomic uint32_t *asleep, int event_fd)
{
    kolo_fence_light();
    if (KOLO_UNLIKELY(atomic_load_explicit(asleep, memory_order_relaxed) != 0)) kolo_waker_doorbell(event_fd);
}
/* Wakes the sleeper with a full fence, for slow paths (abort). */
void kolo_waker_wake(kolo_waker_t *waker);

/* Writes what is awaited: "the next stream"; or which rank waits in which operation and, behind KOLO_WAIT_FOR, for
 * what: "rank 2, in operation 1, for data from rank 1". */
typedef void (*kolo_describe_fn_t)(void *arg, char *buf, size_t bytes);
#define KOLO_WAIT_FOR ", for "
/* Writes a wait as people read it: "rank 2, in operation 1, waited 3.0 s for data from rank 1". */
void kolo_wait_words(const char *description, uint64_t waited_ns, char *buf, size_t bytes);

/* Tells whether to warn now of a wait that began at since_ns (KOLO_STALL_WARN_MS). For waits that no kolo_wait_t
 * has. *next_ns: 0 at first, or to have it begin anew; when it is the next time, each after twice as long, until
 * that is a minute. */
bool kolo_wait_stalls(uint64_t since_ns, uint64_t now, uint64_t *next_ns);

/* What this thread waits for, in words of the call that its user made: rooms below know messages and sockets only.
 * While one is set it comes first in what waits tell. What they know themselves stands behind KOLO_WAIT_FOR if the
 * purpose does not say what it waits for, and else in parentheses. */
typedef struct {
    kolo_describe_fn_t describe; /* NULL: none */
    void *arg;
    kolo_describe_fn_t explain; /* as in kolo_wait_t, with the same arg */
    const char
        *call; /* "in comm_split", for errors of rooms below; NULL: they say what they are doing themselves */
} kolo_wait_purpose_t;
/* Sets it and returns what was set before, to be set again. */
kolo_wait_purpose_t kolo_wait_set_purpose(kolo_wait_purpose_t purpose);
/* Returns `what`, or the call of the purpose that is set. */
const char *kolo_wait_purpose_call(const char *what);
/* Writes the purpose's words without KOLO_WAIT_FOR, for errors of waits that have none; false: none is set. */
bool kolo_wait_purpose_words(char *buf, size_t bytes);

typedef struct kolo_wait {
    const _Atomic uint32_t *abort; /* non-zero ends the wait with KOLO_ERR_ABORTED; may be NULL */
    uint64_t deadline_ns;          /* monotonic; 0 = none */
    kolo_describe_fn_t describe;   /* what is awaited, for the message on expiry */
    void *arg;
    kolo_waker_t
        *wakers[KOLO_WAIT_MAX_WAKERS]; /* none: sleeps 50 us at a time once spinning and yielding are over */
    uint32_t nwakers;
    kolo_status_t (*look)(
        void *arg);             /* asked with `arg` whenever a wait past its spinning checks abort and deadline
                                   (each 10 ms at least); anything but KOLO_OK ends the wait; may be NULL */
    kolo_describe_fn_t explain; /* asked with `arg` when a "still waiting" warning is due: whose fault it is, which
                                   is put behind the description. May take some tenths of a second; may be NULL */
    uint32_t spins;             /* polls before the first yield */
    uint32_t yields;            /* yields before the first park */
    /* private */
    uint32_t polls;
    bool armed;
    uint64_t since_ns;  /* the first reading of the clock: about when the wait began */
    uint64_t stall_ns;  /* 0: never yet; when the next "still waiting" warning is due */
    uint64_t yield_ns;  /* until when it yields, once their number is over */
    uint64_t settle_ns; /* when it may sleep once it is armed; 0: at once */
    bool outlasts;
} kolo_wait_t;

/* Fills in defaults: spins and yields from the number of cores and `ranks_here`, the ranks that share this machine
 * (more ranks than cores: give the core away at once). */
void kolo_wait_init(kolo_wait_t *wait, const _Atomic uint32_t *abort, uint64_t deadline_ns,
                    kolo_describe_fn_t describe, void *arg, int ranks_here);
kolo_status_t kolo_wait_pause_slow(kolo_wait_t *wait);
void kolo_wait_end_slow(kolo_wait_t *wait);

/* Notes one failed poll. Returns KOLO_OK to poll again; KOLO_ERR_TIMEOUT and KOLO_ERR_ABORTED come with a
 * message. */
static inline kolo_status_t kolo_wait_pause(kolo_wait_t *wait)
{
    if (KOLO_LIKELY(wait->polls < wait->spins)) {
        wait->polls++;
        return KOLO_OK;
    }
    return kolo_wait_pause_slow(wait);
}
/* Was the wait aborted? For code that makes progress for long without a pause; kolo_wait_check() then returns the
 * error and its message. */
static inline bool kolo_wait_is_aborted(const kolo_wait_t *wait)
{
    return wait->abort && KOLO_UNLIKELY(atomic_load_explicit(wait->abort, memory_order_relaxed) != 0);
}
kolo_status_t kolo_wait_check(kolo_wait_t *wait);
/* Ends the wait, when the condition is true or the caller stops waiting: disarms; the next pause spins again. */
static inline void kolo_wait_end(kolo_wait_t *wait)
{
    wait->polls = 0;
    if (KOLO_UNLIKELY(wait->armed)) kolo_wait_end_slow(wait);
}
/* Ends the wait; the next pause begins another, which counts its own time: for a thread that waits time and again.
 */
static inline void kolo_wait_renew(kolo_wait_t *wait)
{
    kolo_wait_end(wait);
    wait->since_ns = wait->stall_ns = 0;
}

/* A gate between threads of one process: a counter on a futex. Take a ticket, test the condition, wait. Reliable
 * wake-ups, so a waiter costs nothing until it is woken; for the many waits of set-up, not for hot paths. */
typedef struct kolo_gate {
    _Atomic uint32_t count;
    _Atomic uint32_t waiters;
} kolo_gate_t;
uint32_t kolo_gate_ticket(kolo_gate_t *gate);
void kolo_gate_open(kolo_gate_t *gate); /* wakes all waiters whose ticket is older than this call */
/* Joins a gate whose openers are on a hot path and open it only if a waiter has joined. Such a waiter joins, takes
 * tickets, tests and waits as usual, then quits. Joining issues a barrier on the opener's core. */
void kolo_gate_join(kolo_gate_t *gate);
void kolo_gate_quit(kolo_gate_t *gate);
static inline void kolo_gate_open_if_joined(kolo_gate_t *gate)
{
    kolo_fence_light();
    if (KOLO_UNLIKELY(atomic_load_explicit(&gate->waiters, memory_order_relaxed) != 0)) kolo_gate_open(gate);
}
/* Sleeps until the gate was opened after `ticket` was taken; checks abort and deadline of `wait` (at least every
 * second). The code that sets the abort flag opens the gate. */
kolo_status_t kolo_gate_wait(kolo_gate_t *gate, uint32_t ticket, kolo_wait_t *wait);

/* Issues a barrier on every core that runs this process: the slow half of a Dekker-style handshake whose fast half
 * is a plain store, kolo_fence_light() and a plain load. */
void kolo_fence_cores(void);

/* Returns the number of cores this process may run on, and which (bit c mod 128 for core c). */
int kolo_cores(void);
/* Returns how many cores the quota of its cgroups lets this process use at once, INT_MAX: there is none. From the
 * text of a file cpu.max; 0: it says none. */
int kolo_cores_quota(void);
int kolo_cores_of_quota(const char *text);
#define KOLO_CORE_MASK_BYTES 16
void kolo_cores_mask(uint8_t mask[KOLO_CORE_MASK_BYTES]);

#endif
