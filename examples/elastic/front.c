/* SPDX-License-Identifier: Apache-2.0
 *
 * The front: makes requests at a rate that goes up and down, keeps each until it is answered, and has one batch out
 * at a time, at rank 0 of the epoch that serves. After a failure the same requests go out again in a new batch. An
 * answer counts when it is of this epoch and this batch, so a request is answered once whoever wakes up late.
 */
#include "monitor.h"

#include <stdlib.h>
#include <string.h>

#define PHASE_NS     (UINT64_C(3000) * MS) /* high, low, high ... */
#define WINDOW_NS    (UINT64_C(400) * MS)  /* over which the load is measured */
#define TICK_NS      (UINT64_C(20) * MS) /* an empty batch when there is nothing to do, so that nobody times out */
#define PER_WORKER_S 150                 /* requests that a worker is meant to take in a second */

static double rate_now(const monitor_t *m, uint64_t now)
{
    int n = m->options.workers;
    bool high = (now - m->start_ns) / PHASE_NS % 2 == 0;
    return (high ? n : (n + 1) / 2) * (double)PER_WORKER_S;
}

/* How many workers the load of the last moments needs. */
int rules_want(const monitor_t *m)
{
    int want = (int)((m->front.rate + PER_WORKER_S / 2) / PER_WORKER_S);
    if (want < 2) want = 2;
    return want > m->options.workers ? m->options.workers : want;
}

static bool make_request(monitor_t *m, uint64_t now)
{
    front_t *f = &m->front;
    if (f->made == f->capacity) {
        uint64_t capacity = f->capacity ? 2 * f->capacity : 4096;
        request_t *grown = realloc(f->requests, capacity * sizeof *grown);
        if (!grown) return false;
        f->requests = grown;
        f->capacity = capacity;
    }
    f->requests[f->made++] = (request_t){.value = dice(m, UINT64_MAX), .made_ns = now};
    return true;
}

bool front_generate(monitor_t *m)
{
    front_t *f = &m->front;
    uint64_t now = now_ns();
    if (!f->clock_ns) {
        f->clock_ns = f->window_ns = now;
        f->rate = (uint64_t)rate_now(m, now); /* until something was measured */
    }
    f->owed += rate_now(m, now) * (double)(now - f->clock_ns) / 1e9;
    f->clock_ns = now;
    for (; f->owed >= 1; f->owed -= 1)
        if (!make_request(m, now)) return false;
    if (now - f->window_ns >= WINDOW_NS) {
        f->rate = (f->made - f->window_made) * UINT64_C(1000) / ((now - f->window_ns) / MS);
        f->window_ns = now;
        f->window_made = f->made;
    }
    return true;
}

static peer_t *rank_zero(monitor_t *m)
{
    for (int i = 0; i < MOST_PEERS; i++)
        if (m->peers[i].state == PEER_MEMBER && m->peers[i].rank == 0) return &m->peers[i];
    return NULL;
}

void front_work(monitor_t *m)
{
    front_t *f = &m->front;
    uint64_t now = now_ns(), waiting = f->made - f->done;
    peer_t *p = rank_zero(m);
    bool mending = m->move.recovery && m->move.step != STEP_RESUME;
    if (!m->epoch || mending || f->waiting || !p) return;
    if (!waiting && !m->order && now - f->answered_ns < TICK_NS) return;
    uint64_t number = f->batch.number + 1;
    memset(&f->batch, 0, sizeof f->batch);
    f->batch.number = number;
    f->batch.epoch = m->epoch;
    f->batch.count = (uint32_t)(waiting < MOST_REQUESTS ? waiting : MOST_REQUESTS);
    f->batch.order = m->order;
    f->batch.order_epoch = m->move.epoch;
    f->batch.excluded_count = m->order == ORDER_SHRINK ? (uint32_t)m->excluded_count : 0;
    memcpy(f->batch.excluded, m->excluded, sizeof m->excluded);
    for (uint32_t i = 0; i < f->batch.count; i++) {
        request_t *r = &f->requests[f->done + i];
        f->batch.requests[i] = (item_t){f->done + i, r->value};
        if (r->tries++) f->retried++;
    }
    m->order = ORDER_NONE;
    f->waiting = true; /* also when it could not be sent: then rank 0 is stuck, and the rules find that out */
    f->sent_ns = now;
    frame_send(p->front, &f->batch, sizeof f->batch);
}

/* What was out will be sent again, to whoever serves then. */
void front_interrupt(monitor_t *m)
{
    m->front.waiting = false;
    m->front.disturbed = true;
    m->order = ORDER_NONE;
}

static void take_answers(monitor_t *m, const answers_t *a)
{
    front_t *f = &m->front;
    for (uint32_t i = 0; i < a->count; i++) {
        uint64_t number = a->results[i].number;
        if (number != f->batch.requests[i].number ||
            a->results[i].value != work_answer(f->requests[number].value)) {
            f->wrong++;
            continue;
        }
        if (f->requests[number].answers++) f->duplicates++;
    }
    while (f->done < f->made && f->requests[f->done].answers) f->done++;
    uint64_t now = now_ns(), gap = f->answered_ns ? now - f->answered_ns : 0;
    if (gap > f->gap_ns) f->gap_ns = gap;
    if (!f->disturbed && !m->move.kind && gap > f->calm_gap_ns) f->calm_gap_ns = gap;
    if (!f->disturbed && m->move.kind && gap > m->move.gap_ns) m->move.gap_ns = gap;
    if (m->move.gap_ns > f->move_gap_ns) f->move_gap_ns = m->move.gap_ns;
    f->disturbed = false;
    f->answered_ns = now;
    f->waiting = false;
    recovery_answered(m, gap);
    if (f->batch.order == ORDER_SWITCH) move_switched(m);
    if (f->batch.order == ORDER_STOP) m->stopping = true;
}

void front_hear(monitor_t *m, peer_t *p)
{
    front_t *f = &m->front;
    answers_t a;
    while (frame_receive(p->front, &a, sizeof a) > 0) {
        bool mine = f->waiting && p->state == PEER_MEMBER && p->rank == 0 && a.epoch == f->batch.epoch &&
                    a.batch == f->batch.number && a.count == f->batch.count;
        if (mine) {
            take_answers(m, &a);
        } else {
            f->refused++;
            say(m, "worker %d answers batch %llu of epoch %llu: too late, epoch %llu serves; refused", p->index,
                (unsigned long long)a.batch, (unsigned long long)a.epoch, (unsigned long long)m->epoch);
        }
    }
}
