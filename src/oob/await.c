/* SPDX-License-Identifier: Apache-2.0
 *
 * How a rank's thread waits for the progress thread: it sleeps on the gate of its object. The progress thread tests
 * the condition itself and opens the gate only when it holds: with thousands of ranks, needless wake-ups are what
 * costs. A set abort flag opens no gate, so objects with a sleeping thread are in a list, and one ticker of the
 * process checks their flags; thousands of sleeping ranks cost one timer, and none when no rank waits. A rank
 * mostly has one thread that waits; two where a thread of the communicator's own runs its operations, and connects
 * for them, while the program's makes another communicator from it.
 */
#include "base/log.h"
#include "base/process.h"
#include "oob/internal.h"

#define TICK_MS 50

static struct {
    pthread_mutex_t lock;
    kolo_oob_t *first;
    kolo_timer_t *timer;
    kolo_progress_t *progress;
    int users; /* objects that exist */
} ticker = {.lock = PTHREAD_MUTEX_INITIALIZER};
KOLO_FORK_RENEWS(ticker.lock)

static void tick(void *unused);

static void ticker_arm_locked(void)
{
    if (kolo_timer_add(ticker.progress, TICK_MS, tick, NULL, &ticker.timer) != KOLO_OK)
        kolo_warn("oob", "abort may be noticed late: %s", kolo_error_text());
}

static void tick(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&ticker.lock);
    kolo_timer_t *fired = ticker.timer;
    if (fired != NULL) { /* else the last object is being freed, and with it this timer */
        ticker.timer = NULL;
        uint64_t now = kolo_now_ns();
        for (kolo_oob_t *oob = ticker.first; oob != NULL; oob = oob->next_waiting) {
            if (oob->abort != NULL && atomic_load_explicit(oob->abort, memory_order_acquire) != 0)
                kolo_gate_open(&oob->gate);
            else
                kolo_rooms_look(oob, now);
        }
        if (ticker.first != NULL) ticker_arm_locked();
    }
    pthread_mutex_unlock(&ticker.lock);
    kolo_timer_cancel(fired);
}

void kolo_ticker_join(kolo_progress_t *progress)
{
    pthread_mutex_lock(&ticker.lock);
    ticker.progress = progress;
    ticker.users++;
    pthread_mutex_unlock(&ticker.lock);
}

void kolo_ticker_leave(void)
{
    pthread_mutex_lock(&ticker.lock);
    kolo_timer_t *last = --ticker.users == 0 ? ticker.timer : NULL;
    if (last != NULL) ticker.timer = NULL;
    pthread_mutex_unlock(&ticker.lock);
    kolo_timer_cancel(last); /* waits for a tick that runs, so not under the lock */
}

static void waiting_add(kolo_oob_t *oob)
{
    pthread_mutex_lock(&ticker.lock);
    oob->next_waiting = ticker.first;
    oob->prev_waiting = &ticker.first;
    if (ticker.first != NULL) ticker.first->prev_waiting = &oob->next_waiting;
    ticker.first = oob;
    if (ticker.timer == NULL) ticker_arm_locked();
    pthread_mutex_unlock(&ticker.lock);
}

static void waiting_del(kolo_oob_t *oob)
{
    pthread_mutex_lock(&ticker.lock);
    *oob->prev_waiting = oob->next_waiting;
    if (oob->next_waiting != NULL) oob->next_waiting->prev_waiting = oob->prev_waiting;
    pthread_mutex_unlock(&ticker.lock);
}

uint64_t kolo_oob_deadline(const kolo_oob_t *oob, uint64_t deadline_ns)
{
    return deadline_ns != 0 ? deadline_ns : kolo_deadline_ms(oob->timeout_ms);
}

void kolo_oob_wake(kolo_oob_t *oob)
{
    atomic_fetch_add_explicit(&oob->changes, 1, memory_order_release);
    if (oob->bell != NULL) kolo_waker_wake(oob->bell);
    if (oob->stream_bell != NULL) kolo_waker_wake(oob->stream_bell);
    for (const kolo_awaiting_t *w = oob->awaiting; w != NULL; w = w->next)
        if (w->ready(oob, w->arg)) {
            kolo_gate_open(&oob->gate); /* for all: each looks for itself */
            return;
        }
}

const kolo_awaiting_t *kolo_oob_awaiting(const kolo_oob_t *oob, int rank)
{
    const kolo_awaiting_t *w = oob->awaiting;
    while (w != NULL && (rank >= 0 ? w->rank != rank : w->rank < 0)) w = w->next;
    return w;
}

static void awaiting_add(kolo_oob_t *oob, kolo_awaiting_t *mine)
{
    if (oob->abort != NULL && oob->awaiting == NULL) waiting_add(oob);
    mine->next = oob->awaiting;
    oob->awaiting = mine;
}

static void awaiting_del(kolo_oob_t *oob, const kolo_awaiting_t *mine)
{
    kolo_awaiting_t **at = &oob->awaiting;
    while (*at != mine) at = &(*at)->next; /* another thread may have come after this one */
    *at = mine->next;
    if (oob->abort != NULL && oob->awaiting == NULL) waiting_del(oob);
}

uint64_t kolo_oob_changes(const kolo_oob_t *oob)
{
    return atomic_load_explicit(&oob->changes, memory_order_acquire);
}

void kolo_oob_set_bell(kolo_oob_t *oob, kolo_waker_t *waker)
{
    pthread_mutex_lock(&oob->lock);
    oob->bell = waker;
    pthread_mutex_unlock(&oob->lock);
}

void kolo_oob_set_stream_bell(kolo_oob_t *oob, kolo_waker_t *waker)
{
    pthread_mutex_lock(&oob->lock);
    oob->stream_bell = waker;
    pthread_mutex_unlock(&oob->lock);
}

static kolo_status_t await(kolo_oob_t *oob, kolo_awaiting_t *mine, uint64_t deadline_ns,
                           kolo_describe_fn_t describe, void *describe_arg)
{
    if (mine->ready(oob, mine->arg)) return KOLO_OK;
    kolo_status_t status = KOLO_OK;
    kolo_wait_t wait;
    kolo_wait_init(&wait, oob->abort, deadline_ns, describe, describe_arg, 2);
    mine->since_ns = kolo_now_ns();
    awaiting_add(oob,
                 mine); /* maybe within another wait of this thread, which has lasted for long and asks around */
    while (status == KOLO_OK && !mine->ready(oob, mine->arg)) {
        if (oob->closed) {
            status = kolo_fail(KOLO_ERR_ABORTED, "%s: rank %d was closed while it waited", oob->name, oob->rank);
            break;
        }
        uint32_t ticket = kolo_gate_ticket(&oob->gate);
        pthread_mutex_unlock(&oob->lock);
        status = kolo_wait_check(&wait); /* sets when to warn first */
        if (status == KOLO_OK) status = kolo_gate_wait(&oob->gate, ticket, &wait);
        pthread_mutex_lock(&oob->lock);
    }
    awaiting_del(oob, mine);
    kolo_wait_end(&wait);
    /* A caller that set a deadline of its own may go on after it. */
    if (status != KOLO_OK && status != KOLO_ERR_TIMEOUT) oob->failed = true;
    return status;
}

kolo_status_t kolo_oob_await(kolo_oob_t *oob, kolo_ready_fn_t ready, void *arg, uint64_t deadline_ns,
                             kolo_describe_fn_t describe, void *describe_arg)
{
    kolo_awaiting_t mine = {.ready = ready, .arg = arg, .rank = -1};
    return await(oob, &mine, deadline_ns, describe, describe_arg);
}

kolo_status_t kolo_oob_await_rank(kolo_oob_t *oob, int rank, kolo_ready_fn_t ready, kolo_describe_fn_t describe,
                                  void *arg, uint64_t deadline_ns)
{
    kolo_awaiting_t mine = {.ready = ready, .arg = arg, .rank = rank};
    return await(oob, &mine, deadline_ns, describe, arg);
}
