/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading of the flight record of keyed tensors, from bytes of unknown origin, and the sentence that a person gets.
 * See watch.h.
 */
#include "base/text/plain.h"
#include "rendezvous/watch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void take_sent(const kolo_rendezvous_watch_t *watch, kolo_watch_view_t *view)
{
    view->left_out = atomic_load_explicit(&watch->left_out, memory_order_relaxed) != 0;
    for (int i = 0; i < KOLO_WATCH_EDGES; i++) {
        const kolo_watch_edge_t *edge = &watch->edges[i];
        if (!atomic_load_explicit(&edge->named, memory_order_acquire)) continue;
        view->sent[view->nsent].step = atomic_load_explicit(&edge->step, memory_order_relaxed);
        kolo_plain_copy(view->sent[view->nsent].to, sizeof view->sent[view->nsent].to, edge->to, sizeof edge->to);
        kolo_plain_copy(view->sent[view->nsent].edge, sizeof view->sent[view->nsent].edge, edge->edge,
                        sizeof edge->edge);
        view->nsent++;
    }
}

static void take_ended(const kolo_rendezvous_watch_t *watch, kolo_watch_view_t *view)
{
    uint64_t last = atomic_load_explicit(&watch->nended, memory_order_acquire);
    for (uint64_t i = 0; i < KOLO_WATCH_ENDED && i < last; i++) {
        const kolo_watch_ended_t *ended = &watch->ended[(last - 1 - i) % KOLO_WATCH_ENDED];
        if (atomic_load_explicit(&ended->number, memory_order_acquire) != last - i) continue;
        view->ended[view->nended].since_ns = ended->since_ns;
        view->ended[view->nended].end_ns = ended->end_ns;
        view->ended[view->nended].step = ended->step;
        view->ended[view->nended].status = (kolo_status_t)ended->status;
        kolo_plain_copy(view->ended[view->nended].from, sizeof view->ended[view->nended].from, ended->from,
                        sizeof ended->from);
        kolo_plain_copy(view->ended[view->nended].edge, sizeof view->ended[view->nended].edge, ended->edge,
                        sizeof ended->edge);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&ended->number, memory_order_relaxed) == last - i) view->nended++;
    }
}

bool kolo_watch_view(const void *bytes, size_t size, kolo_watch_view_t *view)
{
    const kolo_rendezvous_watch_t *watch = bytes;
    memset(view, 0, sizeof *view);
    if (size < sizeof *watch || watch->magic != KOLO_WATCH_MAGIC) return false;
    uint64_t seq = atomic_load_explicit(&watch->seq, memory_order_acquire);
    if (seq & 1) return false;
    view->pid = watch->pid;
    kolo_plain_copy(view->task, sizeof view->task, watch->task, sizeof watch->task);
    uint32_t n = atomic_load_explicit(&watch->nwaits, memory_order_relaxed);
    view->nwaits = KOLO_MIN(n, (uint32_t)KOLO_WATCH_WAITS);
    view->more = atomic_load_explicit(&watch->more, memory_order_relaxed);
    for (size_t i = 0; i < view->nwaits; i++) {
        const kolo_watch_wait_t *wait = &watch->waits[i];
        view->waits[i].since_ns = wait->since_ns;
        view->waits[i].step = wait->step;
        view->waits[i].sent = wait->sent;
        view->waits[i].sent_step = wait->sent_step;
        view->waits[i].callback_ns = wait->callback_ns;
        kolo_plain_copy(view->waits[i].from, sizeof view->waits[i].from, wait->from, sizeof wait->from);
        kolo_plain_copy(view->waits[i].edge, sizeof view->waits[i].edge, wait->edge, sizeof wait->edge);
    }
    for (int i = 0; i < KOLO_WATCH_CALLS; i++) {
        uint64_t since = atomic_load_explicit(&watch->calls[i], memory_order_relaxed);
        if (since && (!view->call_ns || since < view->call_ns)) view->call_ns = since;
    }
    take_sent(watch, view);
    take_ended(watch, view);
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&watch->seq, memory_order_relaxed) == seq;
}

/* Shortens "/job:ps/task:0" to "ps:0", for people. */
static void short_name(const char *task, char *text, size_t bytes)
{
    const char *job = task, *number = strstr(task, "/task:");
    if (strncmp(task, "/job:", 5) != 0 || number == NULL) {
        snprintf(text, bytes, "%s", task);
        return;
    }
    job += 5;
    snprintf(text, bytes, "%.*s:%s", (int)(number - job), job, number + 6);
}

static kolo_sent_t look_up(const kolo_watch_view_t *sender, const char *to, const char *edge, uint64_t *step)
{
    for (size_t i = 0; i < sender->nsent; i++) {
        if (strcmp(sender->sent[i].edge, edge) != 0 || strcmp(sender->sent[i].to, to) != 0) continue;
        *step = sender->sent[i].step;
        return KOLO_SENT_UP_TO;
    }
    return sender->left_out ? KOLO_SENT_UNKNOWN : KOLO_SENT_NEVER;
}

void kolo_watch_wait_words(const char *task, const kolo_watch_wait_t *wait, uint64_t now_ns, char *text,
                           size_t bytes)
{
    char who[128], whom[128];
    uint64_t ns = now_ns > wait->since_ns ? now_ns - wait->since_ns : 0;
    short_name(task, who, sizeof who);
    short_name(wait->from, whom, sizeof whom);
    int n = snprintf(text, bytes, "task %s waits %.*f s for edge %s of %s, ", who, ns < 10 * KOLO_NS_PER_S ? 1 : 0,
                     (double)ns / (double)KOLO_NS_PER_S, wait->edge, whom);
    if (n < 0 || (size_t)n >= bytes) return;
    text += n;
    bytes -= (size_t)n;
    if (wait->sent == KOLO_SENT_NEVER)
        n = snprintf(text, bytes, "step %" PRIu64 ", which has never sent it", wait->step);
    else if (wait->sent != KOLO_SENT_UP_TO)
        n = snprintf(text, bytes, "step %" PRIu64 ", which has not said what it has sent", wait->step);
    else if (wait->sent_step < wait->step)
        n = snprintf(text, bytes, "which has sent steps up to %" PRIu64, wait->sent_step);
    else
        n = snprintf(text, bytes,
                     "step %" PRIu64 ", which has sent steps up to %" PRIu64 ": the value is on its way",
                     wait->step, wait->sent_step);
    if (n < 0 || (size_t)n >= bytes || !wait->callback_ns || wait->callback_ns >= now_ns) return;
    snprintf(text + n, bytes - (size_t)n, " and has been inside its own callback for %.1f s",
             (double)(now_ns - wait->callback_ns) / (double)KOLO_NS_PER_S);
}

void kolo_watch_words(const kolo_watch_view_t *task, const kolo_watch_wait_t *wait, uint64_t now_ns,
                      const kolo_watch_view_t *sender, char *text, size_t bytes)
{
    kolo_watch_wait_t fresh = *wait;
    if (sender) { /* fresher than what it has said */
        fresh.sent = look_up(sender, task->task, wait->edge, &fresh.sent_step);
        bool lasts = sender->call_ns && now_ns > sender->call_ns + KOLO_WATCH_LOOK_MS * KOLO_NS_PER_MS;
        fresh.callback_ns = lasts ? sender->call_ns : 0;
    }
    kolo_watch_wait_words(task->task, &fresh, now_ns, text, bytes);
    if (!sender && fresh.sent != KOLO_SENT_NEVER && fresh.sent != KOLO_SENT_UP_TO) {
        size_t n = strlen(text);
        snprintf(text + n, bytes - n, "; no process of this host is that task");
    }
}

void kolo_watch_ended_words(const kolo_watch_view_t *task, size_t i, uint64_t now_ns, char *text, size_t bytes)
{
    char who[128], whom[128], how[64] = "got";
    uint64_t end = task->ended[i].end_ns, since = task->ended[i].since_ns;
    short_name(task->task, who, sizeof who);
    short_name(task->ended[i].from, whom, sizeof whom);
    if (task->ended[i].status != KOLO_OK)
        snprintf(how, sizeof how, "did not get (status %d)", (int)task->ended[i].status);
    snprintf(text, bytes, "task %s %s edge %s of %s, step %" PRIu64 ", %.1f s ago, after %.1f s", who, how,
             task->ended[i].edge, whom, task->ended[i].step,
             now_ns > end ? (double)(now_ns - end) / (double)KOLO_NS_PER_S : 0,
             end > since ? (double)(end - since) / (double)KOLO_NS_PER_S : 0);
}
