/* SPDX-License-Identifier: Apache-2.0
 *
 * Breaks things at random moments, in an order that follows from the seed: each kind of fault comes once before any
 * comes again. The rules are not told.
 */
#include "monitor.h"

#include <signal.h>
#include <string.h>

enum { FAULT_KILL, FAULT_STOP, FAULT_CUT, FAULT_SLOW, FAULTS };

static peer_t *victim(monitor_t *m)
{
    peer_t *list[MOST_WORKERS];
    int n = fleet_members(m, list), sound = 0;
    for (int i = 0; i < n; i++)
        if (!list[i]->dead && !list[i]->wake_ns && list[i]->pid > 0) list[sound++] = list[i];
    uint64_t pick =
        dice(m, (uint64_t)MOST_WORKERS * 1000); /* rolled in any case: the order follows from the seed */
    return sound < 2 ? NULL : list[pick % (uint64_t)sound];
}

static void cut(monitor_t *m)
{
    uint64_t ms = (uint64_t)m->batch_ms * (2 + dice(m, 3));
    if (m->is_cut) return;
    say(m, "FAULT: the cable between the hosts is cut for %llu ms", (unsigned long long)ms);
    hosts_link(false);
    m->is_cut = true;
    m->heal_ns = now_ns() + ms * MS;
    m->faults[FAULT_CUT]++;
}

static void hurt(monitor_t *m, int fault)
{
    peer_t *p = victim(m);
    uint64_t ms = (uint64_t)m->batch_ms * (2 + dice(m, 3));
    if (!p) return;
    m->faults[fault]++;
    if (fault == FAULT_KILL) {
        say(m, "FAULT: kill -9 of worker %d, rank %d, process %d", p->index, p->rank, (int)p->pid);
        p->expected = true;
        kill(p->pid, SIGKILL);
    } else if (fault == FAULT_STOP) {
        say(m, "FAULT: SIGSTOP of worker %d, rank %d, for %llu ms", p->index, p->rank, (unsigned long long)ms);
        p->wake_ns = now_ns() + ms * MS;
        kill(p->pid, SIGSTOP);
    } else {
        say(m, "FAULT: worker %d, rank %d, becomes slow", p->index, p->rank);
        kill(p->pid, SIGUSR1);
    }
}

static int draw(monitor_t *m)
{
    const bool on[FAULTS] = {m->options.kill, m->options.stop, m->options.cut, m->options.slow};
    int left[FAULTS], n = 0;
    for (int refill = 0; refill < 2 && !n; refill++) {
        if (refill) m->bag = ~0u;
        for (int i = 0; i < FAULTS; i++)
            if (on[i] && (m->bag & 1u << i)) left[n++] = i;
    }
    if (!n) return -1;
    int fault = left[dice(m, (uint64_t)n)];
    m->bag &= ~(1u << fault);
    return fault;
}

static void wake(monitor_t *m, uint64_t now)
{
    for (int i = 0; i < MOST_PEERS; i++) {
        peer_t *p = &m->peers[i];
        if (!p->wake_ns || now < p->wake_ns) continue;
        p->wake_ns = 0;
        if (p->pid <= 0) continue;
        say(m, "worker %d is woken up (SIGCONT)", p->index);
        kill(p->pid, SIGCONT);
    }
    if (m->is_cut && now >= m->heal_ns) {
        say(m, "the cable is plugged in again");
        hosts_link(true);
        m->is_cut = false;
    }
}

void faults_work(monitor_t *m)
{
    uint64_t now = now_ns();
    wake(m, now);
    if (now < m->next_fault_ns || now >= m->end_ns) return;
    bool first = m->next_fault_ns == 0;
    uint64_t pause_ms = (uint64_t)m->options.pause_ms;
    m->next_fault_ns = now + (pause_ms / 2 + dice(m, pause_ms)) * MS * (uint64_t)m->options.patience;
    if (first) return;
    int fault = draw(m);
    m->front.disturbed = true; /* a gap until the next answer is not the moves' */
    if (fault == FAULT_CUT)
        cut(m);
    else if (fault >= 0)
        hurt(m, fault);
}

/* No more faults, and nobody stays stopped. */
void faults_undo(monitor_t *m)
{
    wake(m, UINT64_MAX);
}
