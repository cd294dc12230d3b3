/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations on a device that do not get on. Their kernels run, or wait for those of other ranks, while no thread
 * of this process waits for them: so the progress thread looks what they wait for, a few times a second, and does
 * what a wait on the CPU does by itself (base/wait.h, mismatch.c): asks the ranks that are awaited which operation
 * they are in, and ends what has waited longer than op_timeout_ms. A call costs nothing for that.
 *
 * Where the host runs the operations, it waits by itself; there, and in plans that are interpreted, ranks may
 * differ without anybody waiting, as in the root of a short broadcast. So each shows its last operation to the next
 * rank while it has none to look at.
 *
 * The time runs while a kernel waits for other ranks, not while it stands behind other work on its stream.
 */
#include "base/clock.h"
#include "base/log.h"
#include "comm/call/call.h"
#include "comm/window/window.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IDLE_MS  200 /* from look to look while nothing waits */
#define BUSY_MS  25
#define LEAST_MS 5

/* For a thread of its own, which can wait for answers as the progress thread cannot. KOLO_OK: only a warning. */
typedef struct {
    kolo_body_t *body;
    kolo_status_t status;
    char text[KOLO_ERROR_TEXT_BYTES];
} errand_t;

static void describe(const kolo_body_t *body, const kolo_exec_waits_t *w, char *buf, size_t bytes)
{
    char words[160];
    int me = kolo_device_levels_rank(body, body->rank);
    kolo_signature_print(w->word, words, sizeof words);
    int n = kolo_signature_fields(w->word).coll == KOLO_COLL_P2P || body->levels.owner
                ? snprintf(buf, bytes, "rank %d, in %s", me, words)
                : snprintf(buf, bytes, "rank %d, in operation %" PRIu64 " (%s)", me, w->number, words);
    for (int i = 0; i < w->count && n > 0 && (size_t)n < bytes; i++)
        n += snprintf(buf + n, bytes - (size_t)n, "%s%s rank %d", i ? ", " : KOLO_WAIT_FOR,
                      w->on[i].room ? "room at" : "data from", kolo_device_levels_rank(body, w->on[i].rank));
}

static void warn_of(const char *waits, const char *whose_fault)
{
    kolo_warn("wait", "still waiting: %s%s%s", waits, *whose_fault ? "; " : "", whose_fault);
}

/* Asks around as the rank's own thread would, if that is not inside: both would wait for answers. */
static void ask_around(const errand_t *errand)
{
    kolo_body_t *body = errand->body;
    kolo_comm_t h = body->handle;
    uint64_t ticket;
    char why[500] = "";
    bool alone = atomic_load(&h->done) == atomic_load(&h->tickets) && !body->levels.owner;
    bool drawn = alone && kolo_ticket_draw(h, &ticket) == KOLO_OK;
    bool turn = drawn && kolo_ticket_wait(h, ticket) == KOLO_OK;
    kolo_fail(errand->status, "%s", errand->text);
    if (turn && errand->status == KOLO_ERR_TIMEOUT) kolo_ask_around_time_out(body);
    if (turn && errand->status == KOLO_OK) kolo_ask_around_stalled(body, why, sizeof why);
    if (drawn) kolo_ticket_end(h, ticket);
    if (errand->status == KOLO_OK) warn_of(errand->text, why);
}

/* Fails the whole of which this is a part. */
static void fail_whole(kolo_body_t *body, kolo_status_t status)
{
    kolo_body_t *whole = body->levels.owner ? body->levels.owner : body;
    kolo_fail_prefix(status, "%s rank %d: ", whole->name, whole->rank);
    if (!atomic_load(&whole->stop.reason)) kolo_body_fail(whole, status); /* else the news have said why */
    if (body->levels.owner) kolo_device_cancel(whole);
}

static void *run_errand(void *arg)
{
    errand_t *errand = arg;
    kolo_body_t *body = errand->body;
    kolo_fail(errand->status, "%s", errand->text);
    if (errand->status == KOLO_ERR_TIMEOUT || errand->status == KOLO_OK) ask_around(errand);
    if (errand->status != KOLO_OK) fail_whole(body, errand->status);
    free(errand);
    atomic_fetch_sub(&body->gpu.watch.sent, 1);
    kolo_handle_leave(body->handle);
    return NULL;
}

/* Returns false where no thread is to be had. */
static bool send_errand(kolo_body_t *body, kolo_status_t status, const char *text)
{
    errand_t *errand = atomic_load(&body->gpu.watch.alone) ? NULL : malloc(sizeof *errand);
    if (!errand) return false;
    *errand = (errand_t){.body = body, .status = status};
    snprintf(errand->text, sizeof errand->text, "%s", text);
    atomic_fetch_add(&body->gpu.watch.sent, 1);
    if (kolo_body_background(body, run_errand, errand) == KOLO_OK) return true;
    atomic_fetch_sub(&body->gpu.watch.sent, 1);
    free(errand);
    return false;
}

static void fail(kolo_body_t *body, kolo_status_t status)
{
    char text[KOLO_ERROR_TEXT_BYTES];
    body->gpu.watch.told = true;
    snprintf(text, sizeof text, "%s", kolo_error_text());
    if (send_errand(body, status, text)) return;
    kolo_fail(status, "%s", text);
    fail_whole(body, status);
}

/* Tells that the ends of a message do not fit. */
static void tell_unfit(kolo_body_t *body, const kolo_exec_waits_t *w)
{
    uint64_t words[2];
    for (int i = 0; i < 2; i++) {
        size_t elem = kolo_type_bytes(w->unfit_type[i]);
        int way = (i != 0) == w->unfit_sends ? KOLO_P2P_WORD_RECV : KOLO_P2P_WORD_SEND;
        words[i] = kolo_signature(KOLO_COLL_P2P, (int)w->unfit_type[i], way, (uint32_t)(i ? body->rank : w->unfit),
                                  elem ? w->unfit_bytes[i] / elem : 0);
    }
    body->gpu.watch.told = true;
    kolo_diag_note_difference(body->oob,
                              &(kolo_difference_t){body->rank, w->unfit, w->number, words[0], w->number, words[1]});
}

static void time_out(kolo_body_t *body, const kolo_exec_waits_t *w, uint64_t waited_ns)
{
    char text[512], words[600];
    describe(body, w, text, sizeof text);
    kolo_wait_words(text, waited_ns, words, sizeof words);
    kolo_info("comm", "%s rank %d: block %u waits for rank %d at step %u", body->name, body->rank, w->on[0].block,
              w->on[0].rank, w->on[0].step);
    kolo_fail(KOLO_ERR_TIMEOUT, "time-out: %s", words);
    fail(body, KOLO_ERR_TIMEOUT);
}

/* Says it as a wait on the CPU does. */
static void warn(kolo_body_t *body, const kolo_exec_waits_t *w, uint64_t waited_ns)
{
    char text[512], words[600];
    describe(body, w, text, sizeof text);
    kolo_wait_words(text, waited_ns, words, sizeof words);
    if (atomic_load(&body->gpu.watch.sent) || !send_errand(body, KOLO_OK, words)) warn_of(words, "");
}

/* Records the wait for kolo-top, and for ranks that ask around. */
static void record(kolo_body_t *body, const kolo_exec_waits_t *w)
{
    kolo_record_waits_t r = {
        .number = w->number, .word = w->word, .since_ns = body->gpu.watch.since_ns, .count = (uint32_t)w->count};
    for (int i = 0; i < w->count; i++) {
        r.on[i].rank = w->on[i].rank;
        r.on[i].block = w->on[i].block;
        r.on[i].step = w->on[i].step;
        r.on[i].room = w->on[i].room;
    }
    if (!memcmp(&r, &body->gpu.watch.recorded, sizeof r)) return;
    body->gpu.watch.recorded = r;
    kolo_record_device_waits(body, &r);
}

/* Tells of a wait that has gone on between two looks: what is read of one may be of one that has just ended. */
static void tell_if_waits(kolo_body_t *body, const kolo_exec_waits_t *w)
{
    kolo_device_watch_t *watch = &body->gpu.watch;
    if (watch->quiet_seen_ns && w->seen_ns > watch->quiet_seen_ns) kolo_lost_tell(body);
    watch->quiet_seen_ns = w->seen_ns;
}

static void look(kolo_body_t *body)
{
    kolo_device_watch_t *watch = &body->gpu.watch;
    kolo_exec_waits_t *w = &watch->last;
    uint64_t before = watch->since_ns;
    int ranks[KOLO_EXEC_WAITS];
    body->gpu.exec->waits(atomic_load(&body->gpu.state), w);
    bool same = watch->waits && w->number == watch->number && w->word == watch->word;
    watch->waits = w->count > 0;
    watch->number = w->number;
    watch->word = w->word;
    watch->since_ns = same ? before : w->seen_ns;
    if (!same) watch->stall_ns = 0;
    record(body, w);
    if (body->levels.owner)
        atomic_store(&body->levels.owner->track.board.in[KOLO_BOARD_KERNELS],
                     watch->waits ? kolo_board_call_of(w->number) : 0);
    if (body->levels.owner && !watch->told && kolo_diag_difference(body->oob) == KOLO_ERR_MISMATCH) {
        watch->told = true;
        kolo_device_levels_tell(body);
    }
    if (watch->told || atomic_load(&body->stop.reason) || atomic_load(&body->gpu.cancelled)) return;
    if (w->unfit >= 0) {
        tell_unfit(body, w);
        return;
    }
    kolo_status_t signals = kolo_window_device_look(body);
    if (signals != KOLO_OK) fail(body, signals);
    if (!watch->waits || signals != KOLO_OK) return;
    uint64_t waited = w->seen_ns - watch->since_ns;
    if (atomic_load(&body->handle->quiet)) tell_if_waits(body, w);
    for (int i = 0; i < w->count; i++) ranks[i] = w->on[i].rank;
    /* messages have no number that both ends share */
    kolo_status_t status = kolo_signature_fields(w->word).coll == KOLO_COLL_P2P
                               ? kolo_mismatch_look_device_pairs(body, w, !same)
                               : kolo_mismatch_look_device(body, w->number, ranks, w->count);
    if (status != KOLO_OK)
        fail(body, status);
    else if (body->op_timeout_ms && waited >= (uint64_t)body->op_timeout_ms * KOLO_NS_PER_MS)
        time_out(body, w, waited);
    else if (kolo_wait_stalls(watch->since_ns, w->seen_ns, &watch->stall_ns))
        warn(body, w, waited);
}

static int64_t pause_ms(const kolo_body_t *body)
{
    int64_t ms = body->gpu.watch.waits ? BUSY_MS : IDLE_MS;
    if (atomic_load(&body->gpu.cancelled) && atomic_load(&body->gpu.held) != KOLO_HELD)
        return LEAST_MS; /* streams that wait are let go on step by step */
    if (body->op_timeout_ms) ms = KOLO_MIN(ms, (int64_t)body->op_timeout_ms / 4);
    return KOLO_MAX(ms, LEAST_MS);
}

/* A question may go unheard: the next rank has to be called first, or is not there yet; then that
 * one is to ask, or the one behind it. */
#define SHOWN_MOST 3
static void show(kolo_body_t *body, kolo_device_shown_t *shown, uint64_t last)
{
    if (last == KOLO_BOARD_NONE || atomic_load(&body->stop.reason)) return;
    if (last != shown->last) shown->times = 0;
    shown->last = last;
    if (shown->times++ < SHOWN_MOST) kolo_diag_ask(body->oob, (body->rank + 1) % body->nranks, last);
    if (shown->times > SHOWN_MOST) shown->times = SHOWN_MOST;
}

/* Operations, and where parts run them also the calls: hosts may have gone different ways in a call that left no
 * operation here. */
static void show_last(kolo_body_t *body)
{
    uint64_t calls = atomic_load(&body->levels.calls);
    show(body, &body->gpu.watch.operations, kolo_board_last(&body->track.board));
    if (calls) show(body, &body->gpu.watch.calls, KOLO_BOARD_CALLS + (calls - 1) * KOLO_BOARD_STEPS);
}

/* Parts that wait may wait in different ones: then each waits for ranks that do not know of its operation. */
static void look_calls(kolo_body_t *body)
{
    uint64_t first = 0;
    for (int i = 0; i < KOLO_BOARD_PARTS; i++) {
        uint64_t call = atomic_load(&body->track.board.in[i]);
        if (call && (!first || (int64_t)(call - first) < 0)) first = call;
    }
    body->gpu.watch.waits = first != 0;
    if (first && !atomic_load(&body->stop.reason)) kolo_mismatch_look_call(body, first);
}

static void tick(void *arg)
{
    kolo_body_t *body = arg;
    if (atomic_load(&body->gpu.cancelled) && atomic_load(&body->gpu.held) != KOLO_HELD)
        kolo_window_device_release(body);
    if (body->levels.inside) look_calls(body);
    if (!body->gpu.exec->by_host) look(body);
    if (body->gpu.watch.shows && (body->gpu.exec->by_host || !body->gpu.watch.waits)) show_last(body);
    kolo_timer_restart(body->gpu.watch.timer, pause_ms(body));
}

kolo_status_t kolo_device_watch_start(kolo_body_t *body)
{
    if (body->nranks == 1) return KOLO_OK;
    body->gpu.watch.shows = body->gpu.exec->by_host || (!body->levels.owner && kolo_device_forces_plans());
    KOLO_TRY(kolo_progress_get(&body->gpu.watch.progress));
    kolo_status_t status =
        kolo_timer_add(body->gpu.watch.progress, pause_ms(body), tick, body, &body->gpu.watch.timer);
    if (status == KOLO_OK) return KOLO_OK;
    kolo_progress_put(body->gpu.watch.progress);
    body->gpu.watch.progress = NULL;
    return status;
}

static void nothing(void *arg)
{
    (void)arg;
}

static void describe_sent(void *arg, char *buf, size_t bytes)
{
    const kolo_body_t *body = arg;
    snprintf(buf, bytes, "the thread of %s rank %d that asks around", body->name, body->rank);
}

/* Waits until no look is under way, and those whom earlier ones have sent are back. */
void kolo_device_watch_alone(kolo_body_t *body)
{
    if (!body->gpu.watch.progress) return;
    atomic_store(&body->gpu.watch.alone, true);
    kolo_progress_call(body->gpu.watch.progress, nothing, NULL);
    kolo_wait_t wait; /* it has a limit of its own */
    kolo_wait_init(&wait, NULL, 0, describe_sent, body, 1);
    while (atomic_load(&body->gpu.watch.sent)) (void)kolo_wait_pause(&wait);
    kolo_wait_end(&wait);
}

void kolo_device_watch_stop(kolo_body_t *body)
{
    if (!body->gpu.watch.progress) return;
    kolo_timer_cancel(body->gpu.watch.timer);
    kolo_device_let_go(body); /* from now on nothing is held: the timer is the last one */
    kolo_timer_cancel(body->gpu.watch.hold);
    kolo_progress_put(body->gpu.watch.progress);
    body->gpu.watch = (kolo_device_watch_t){0};
}
