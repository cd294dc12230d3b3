/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading of the flight record of keyed tensors, from bytes of unknown origin, and the sentence that a person gets.
 * See watch.h.
 */
#include "rendezvous/watch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void copy_name(char *to, const char *from, size_t room)
{
    size_t i = 0;
    for (; i + 1 < room && from[i]; i++) to[i] = from[i] < 32 || from[i] == 127 ? '?' : from[i];
    to[i] = '\0';
}

static void take_sent(const kolo_watch_t *watch, kolo_watch_view_t *view)
{
    for (int i = 0; i < KOLO_WATCH_EDGES; i++) {
        const kolo_watch_edge_t *edge = &watch->edges[i];
        if (!atomic_load_explicit(&edge->named, memory_order_acquire)) continue;
        view->sent[view->nsent].step = atomic_load_explicit(&edge->step, memory_order_relaxed);
        copy_name(view->sent[view->nsent].to, edge->to, sizeof edge->to);
        copy_name(view->sent[view->nsent].edge, edge->edge, sizeof edge->edge);
        view->nsent++;
    }
}

bool kolo_watch_view(const void *bytes, size_t size, kolo_watch_view_t *view)
{
    const kolo_watch_t *watch = bytes;
    memset(view, 0, sizeof *view);
    if (size < sizeof *watch || watch->magic != KOLO_WATCH_MAGIC) return false;
    uint64_t seq = atomic_load_explicit(&watch->seq, memory_order_acquire);
    if (seq & 1) return false;
    view->pid = watch->pid;
    copy_name(view->task, watch->task, sizeof view->task);
    uint32_t n = atomic_load_explicit(&watch->nwaits, memory_order_relaxed);
    view->nwaits = KOLO_MIN(n, (uint32_t)KOLO_WATCH_WAITS);
    view->more = atomic_load_explicit(&watch->more, memory_order_relaxed);
    for (size_t i = 0; i < view->nwaits; i++) {
        const kolo_watch_wait_t *wait = &watch->waits[i];
        view->waits[i].since_ns = wait->since_ns;
        view->waits[i].step = wait->step;
        copy_name(view->waits[i].from, wait->from, sizeof wait->from);
        copy_name(view->waits[i].edge, wait->edge, sizeof wait->edge);
    }
    take_sent(watch, view);
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&watch->seq, memory_order_relaxed) == seq;
}

/* "/job:ps/task:0" is "ps:0" to a person. */
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

void kolo_watch_words(const kolo_watch_view_t *task, const kolo_watch_wait_t *wait, uint64_t now_ns,
                      const kolo_watch_view_t *sender, char *text, size_t bytes)
{
    char who[128], whom[128];
    uint64_t ns = now_ns > wait->since_ns ? now_ns - wait->since_ns : 0;
    short_name(task->task, who, sizeof who);
    short_name(wait->from, whom, sizeof whom);
    int n = snprintf(text, bytes, "task %s waits %.*f s for edge %s of %s, ", who, ns < 10 * KOLO_NS_PER_S ? 1 : 0,
                     (double)ns / (double)KOLO_NS_PER_S, wait->edge, whom);
    if (n < 0 || (size_t)n >= bytes) return;
    text += n;
    bytes -= (size_t)n;
    if (sender == NULL) {
        snprintf(text, bytes, "step %" PRIu64 "; no process of this host is %s", wait->step, whom);
        return;
    }
    for (size_t i = 0; i < sender->nsent; i++) {
        if (strcmp(sender->sent[i].edge, wait->edge) != 0 || strcmp(sender->sent[i].to, task->task) != 0) continue;
        if (sender->sent[i].step < wait->step)
            snprintf(text, bytes, "which has sent steps up to %" PRIu64, sender->sent[i].step);
        else
            snprintf(text, bytes,
                     "step %" PRIu64 ", which has sent steps up to %" PRIu64 ": the value is on its way",
                     wait->step, sender->sent[i].step);
        return;
    }
    snprintf(text, bytes, "step %" PRIu64 ", which has never sent it", wait->step);
}
