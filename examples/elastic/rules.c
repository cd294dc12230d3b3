/* SPDX-License-Identifier: Apache-2.0
 *
 * The monitor's rules, in the order in which they are asked. README.md has them in words.
 */
#include "monitor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOW_TIMES 5   /* a worker is slow when its terms take this many times the median */
#define SLOW_MS    300 /* for so long */
#define SURPLUS_MS 300 /* fewer workers would do for so long */

/* ---- what workers say ---- */

static void hear_error(monitor_t *m, peer_t *p, const note_t *n)
{
    kolo_status_t status = (kolo_status_t)n->status;
    if (p->state == PEER_FENCED) {
        if (n->kind == NOTE_ERROR)
            say(m, "worker %d woke up in batch %llu of epoch %llu (%s); it is fenced and leaves", p->index,
                (unsigned long long)n->batch, (unsigned long long)n->epoch, kolo_status_string(status));
        return;
    }
    if (n->epoch != m->epoch || p->state != PEER_MEMBER || p->error) return;
    if (m->move.recovery && m->move.step != STEP_SETTLE && m->move.step != STEP_RESUME) return;
    p->error = status;
    say(m, "worker %d, rank %d: batch %llu of epoch %llu failed: %.300s", p->index, p->rank,
        (unsigned long long)n->batch, (unsigned long long)n->epoch,
        n->text[0] ? n->text : kolo_status_string(status));
}

static void hear(monitor_t *m, peer_t *p, const note_t *n)
{
    p->heard_ns = now_ns();
    switch ((note_kind_t)n->kind) {
    case NOTE_HELLO:
        if (p->state == PEER_STARTING) p->state = PEER_SPARE;
        break;
    case NOTE_BEAT:
        p->batches = n->batches;
        p->latency_us = n->latency_us;
        p->term_ps = n->term_ps;
        /* in progress: it connects on first use, in the background */
        if (n->status != KOLO_OK && n->status != KOLO_IN_PROGRESS) hear_error(m, p, n);
        break;
    case NOTE_ERROR:
        hear_error(m, p, n);
        break;
    case NOTE_ID:
    case NOTE_READY:
        move_hear(m, p, n);
        break;
    case NOTE_SAY:
        if (!m->said_abort) say(m, "worker %d on epoch %llu: %s", p->index, (unsigned long long)n->epoch, n->text);
        m->said_abort = true;
        break;
    default:
        break;
    }
}

void rules_hear(monitor_t *m, peer_t *p)
{
    note_t n;
    while (frame_receive(p->control, &n, sizeof n) > 0) {
        n.text[sizeof n.text - 1] = '\0';
        hear(m, p, &n);
    }
}

/* ---- is something wrong? ---- */

/* Rules 1 to 3. */
static bool trouble(monitor_t *m, char *reason, size_t bytes)
{
    const front_t *f = &m->front;
    for (int i = 0; i < MOST_PEERS; i++) {
        const peer_t *p = &m->peers[i];
        if (p->state != PEER_MEMBER) continue;
        if (p->dead) {
            snprintf(reason, bytes, "worker %d (rank %d) died", p->index, p->rank);
            return true;
        }
        if (p->error) {
            snprintf(reason, bytes, "a batch of epoch %llu failed", (unsigned long long)m->epoch);
            return true;
        }
    }
    if (!f->waiting || now_ns() - f->sent_ns < 3 * (uint64_t)m->batch_ms * MS) return false;
    snprintf(reason, bytes, "batch %llu of epoch %llu is not answered", (unsigned long long)f->batch.number,
             (unsigned long long)m->epoch);
    return true;
}

/* ---- would other workers do better? ---- */

static int by_speed(const void *a, const void *b)
{
    const peer_t *x = *(peer_t *const *)a, *y = *(peer_t *const *)b;
    if (x->host != y->host) return x->host - y->host;
    return (x->term_ps > y->term_ps) - (x->term_ps < y->term_ps);
}

static uint64_t median_term(peer_t *const *list, int n)
{
    uint64_t middle = 0;
    for (int i = 0; i < n; i++) { /* the smallest that half of them do not exceed */
        int below = 0;
        for (int j = 0; j < n; j++) below += list[j]->term_ps <= list[i]->term_ps;
        if (2 * below >= n && (!middle || list[i]->term_ps < middle)) middle = list[i]->term_ps;
    }
    return middle;
}

static bool is_slow(peer_t *p, uint64_t median)
{
    uint64_t now = now_ns();
    if (!median || p->term_ps < SLOW_TIMES * median) p->slow_ns = 0;
    if (median && p->term_ps >= SLOW_TIMES * median && !p->slow_ns) p->slow_ns = now;
    return p->slow_ns && now - p->slow_ns > SLOW_MS * MS;
}

/* Rule 4: the members that keep up, and spares for the rest. Ranks go by host, then by speed. */
static void second_init(monitor_t *m, peer_t **good, int ngood, int want, const char *reason)
{
    int n = ngood;
    for (int i = 0; i < MOST_PEERS && n < want; i++)
        if (m->peers[i].state == PEER_SPARE && !m->peers[i].dead) good[n++] = &m->peers[i];
    qsort(good, (size_t)n, sizeof good[0], by_speed);
    move_begin(m, MOVE_SECOND_INIT, good, n, reason);
}

static void dismiss_spares(monitor_t *m)
{
    for (int i = 0; i < MOST_PEERS; i++)
        if (m->peers[i].state == PEER_SPARE) fleet_fence(m, &m->peers[i], "it is not needed");
}

static void plan(monitor_t *m)
{
    peer_t *members[MOST_WORKERS], *good[MOST_WORKERS];
    char reason[200];
    int n = fleet_members(m, members), ngood = 0, want = rules_want(m);
    uint64_t now = now_ns(), median = median_term(members, n);
    for (int i = 0; i < n; i++)
        if (!is_slow(members[i], median)) good[ngood++] = members[i];
    if (ngood == 0) return;
    int starting = fleet_count(m, PEER_STARTING), spares = fleet_count(m, PEER_SPARE);
    if (ngood < want) m->surplus_ns = 0;
    for (int i = ngood + spares + starting; i < want; i++)
        if (!fleet_spawn(m)) break;
    if (ngood < want && spares && !fleet_count(m, PEER_STARTING)) {
        snprintf(reason, sizeof reason, "load of %llu requests/s wants %d workers, %d serve%s",
                 (unsigned long long)m->front.rate, want, n, ngood < n ? ", some of them too slow" : "");
        second_init(m, good, ngood, want, reason);
        return;
    }
    if (n > want && !m->surplus_ns) m->surplus_ns = now;
    if (n <= want) m->surplus_ns = 0;
    if (ngood >= want && spares) dismiss_spares(m);
    if (n <= want || now - m->surplus_ns < SURPLUS_MS * MS) return;
    snprintf(reason, sizeof reason, "load of %llu requests/s wants %d workers, %d serve",
             (unsigned long long)m->front.rate, want, n);
    m->surplus_ns = 0;
    move_begin(m, MOVE_SHRINK, members, want, reason); /* rule 5: the last ranks go */
}

void rules_decide(monitor_t *m)
{
    char reason[200];
    if (m->stopping) return;
    bool mending = m->move.recovery && m->move.step != STEP_RESUME;
    if (!mending && trouble(m, reason, sizeof reason)) recovery_begin(m, reason);
    if (m->move.recovery || m->move.kind) {
        move_watch(m);
        return;
    }
    uint64_t now = now_ns();
    if (now >= m->retry_ns && now < m->end_ns) plan(m);
}
