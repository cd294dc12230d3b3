/* SPDX-License-Identifier: Apache-2.0
 *
 * Carrying out the four moves, step by step, as notes come in. Two are planned and leave the service running: a
 * second init by a new unique id, and a shrink in default mode; both end with an order to switch in a batch. Two
 * mend it: a shrink in abort mode, and abort and re-init. Each move has an epoch of its own and a deadline for
 * every step.
 */
#include "monitor.h"

#include <stdio.h>
#include <string.h>

const char *const move_names[MOVE_KINDS] = {
    [MOVE_NONE] = "none",
    [MOVE_SECOND_INIT] = "second init by a new unique id",
    [MOVE_SHRINK] = "shrink in default mode",
    [MOVE_RESCUE] = "shrink in abort mode",
    [MOVE_REINIT] = "abort and re-init",
};

static void next_step(monitor_t *m, move_step_t step, int limit_ms)
{
    m->move.step = step;
    m->move.deadline_ns = now_ns() + (uint64_t)limit_ms * MS;
}

/* ---- beginning ---- */

static void ask_for_id(monitor_t *m, peer_t *first)
{
    fleet_tell_kind(first, NOTE_MAKE_ID, m->move.epoch);
    next_step(m, STEP_ID, m->init_ms);
}

static void list_excluded(monitor_t *m)
{
    m->excluded_count = 0;
    for (int i = 0; i < MOST_PEERS; i++) {
        const peer_t *p = &m->peers[i];
        if (p->state == PEER_MEMBER && p->next_rank < 0 && m->excluded_count < MOST_WORKERS)
            m->excluded[m->excluded_count++] = p->rank;
    }
}

static void begin_rescue(monitor_t *m, peer_t **ranks)
{
    note_t note = {.kind = NOTE_RESCUE, .epoch = m->move.epoch, .batch = m->epoch};
    list_excluded(m);
    note.count = m->excluded_count;
    memcpy(note.list, m->excluded, sizeof note.list);
    for (int i = 0; i < m->move.nranks; i++) fleet_tell(ranks[i], &note);
    next_step(m, STEP_READY, 2 * m->init_ms);
}

static void describe_crew(const monitor_t *m, peer_t **ranks, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < m->move.nranks && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, " %d", ranks[i]->index);
}

/* ranks[0..nranks): who has which rank in the new epoch. Everybody else is not in it. */
void move_begin(monitor_t *m, move_kind_t kind, peer_t **ranks, int nranks, const char *reason)
{
    char crew[100];
    m->move.kind = kind;
    m->move.epoch = ++m->last_epoch;
    m->move.nranks = nranks;
    if (!m->move.recovery) m->move.started_ns = now_ns();
    for (int i = 0; i < MOST_PEERS; i++) {
        m->peers[i].next_rank = -1;
        m->peers[i].ready = false;
    }
    for (int i = 0; i < nranks; i++) ranks[i]->next_rank = i;
    describe_crew(m, ranks, crew, sizeof crew);
    say(m, "%s: %s -> epoch %llu, %d ranks: workers%s", reason, m->move.first ? "first init" : move_names[kind],
        (unsigned long long)m->move.epoch, nranks, crew);
    if (kind == MOVE_SHRINK) {
        list_excluded(m);
        m->order = ORDER_SHRINK;
        next_step(m, STEP_READY, 2 * m->init_ms);
    } else if (kind == MOVE_RESCUE) {
        begin_rescue(m, ranks);
    } else {
        for (int i = 0; i < nranks && kind == MOVE_REINIT; i++)
            fleet_tell_kind(ranks[i], NOTE_ABORT, m->move.epoch - 1);
        ask_for_id(m, ranks[0]);
    }
}

/* ---- going on ---- */

static void send_joins(monitor_t *m, const note_t *id)
{
    for (int i = 0; i < MOST_PEERS; i++) {
        peer_t *p = &m->peers[i];
        bool leaver = p->state == PEER_MEMBER && p->next_rank < 0 && m->move.kind == MOVE_SECOND_INIT;
        if (p->next_rank < 0 && !leaver) continue;
        note_t note = {.kind = NOTE_JOIN, .epoch = m->move.epoch, .id = id->id};
        note.rank = p->next_rank;
        note.nranks = m->move.nranks;
        fleet_tell(p, &note);
    }
    next_step(m, STEP_READY, 2 * m->init_ms);
}

/* The ranks of the new epoch hold; who has none in it is no member any more. */
static void install(monitor_t *m)
{
    for (int i = 0; i < MOST_PEERS; i++) {
        peer_t *p = &m->peers[i];
        if (p->next_rank >= 0) {
            fleet_tell_kind(p, NOTE_SERVE, m->move.epoch); /* who has switched at the batch drops it */
            p->state = PEER_MEMBER;
            p->rank = p->next_rank;
        } else if (p->state == PEER_MEMBER) {
            p->state = PEER_FENCED; /* dead, or leaving at the batch */
            p->rank = -1;
        }
        p->error = KOLO_OK;
        p->next_rank = -1;
        p->slow_ns = 0;
    }
    m->epoch = m->move.epoch;
}

static void all_ready(monitor_t *m)
{
    if (m->move.recovery) {
        install(m);
        next_step(m, STEP_RESUME, 0);
    } else {
        m->order = ORDER_SWITCH;
        next_step(m, STEP_ORDER, 0); /* that the batch ends is the rules' concern */
    }
}

void move_hear(monitor_t *m, peer_t *p, const note_t *note)
{
    char why[500];
    if (note->epoch != m->move.epoch || p->next_rank < 0) return;
    bool expected =
        note->kind == NOTE_ID ? m->move.step == STEP_ID && p->next_rank == 0 : m->move.step == STEP_READY;
    if (!expected) return;
    if (note->status != KOLO_OK) {
        snprintf(why, sizeof why, "worker %d: %s (%.300s)", p->index,
                 kolo_status_string((kolo_status_t)note->status), note->text);
        move_give_up(m, why);
        return;
    }
    if (note->kind == NOTE_ID) {
        send_joins(m, note);
        return;
    }
    p->ready = true;
    for (int i = 0; i < MOST_PEERS; i++)
        if (m->peers[i].next_rank >= 0 && !m->peers[i].ready) return;
    all_ready(m);
}

/* The batch with the order to switch was answered. */
void move_switched(monitor_t *m)
{
    install(m);
    m->moves[m->move.kind]++;
    say(m,
        "epoch %llu serves with %d ranks, %.0f ms after the decision; the longest gap in service meanwhile was "
        "%.1f ms",
        (unsigned long long)m->epoch, m->move.nranks, (double)(now_ns() - m->move.started_ns) / 1e6,
        (double)m->move.gap_ns / 1e6);
    m->move = (move_t){0};
}

void move_give_up(monitor_t *m, const char *why)
{
    if (m->move.recovery) {
        say(m, "epoch %llu does not come about: %s", (unsigned long long)m->move.epoch, why);
        m->move.attempt++;
        next_step(m, STEP_SETTLE, 0);
        return;
    }
    say(m, "%s is given up, epoch %llu serves on: %s", move_names[m->move.kind], (unsigned long long)m->epoch, why);
    for (int i = 0; i < MOST_PEERS; i++) {
        if (m->peers[i].next_rank >= 0) fleet_tell_kind(&m->peers[i], NOTE_DROP, m->move.epoch);
        m->peers[i].next_rank = -1;
        if (m->peers[i].dead && m->peers[i].state != PEER_MEMBER) m->peers[i].state = PEER_FENCED;
    }
    m->failed_moves++;
    m->order = ORDER_NONE;
    m->retry_ns = now_ns() + 4 * (uint64_t)m->settle_ms * MS;
    m->move = (move_t){0};
}

/* ---- recovery ---- */

void recovery_begin(monitor_t *m, const char *reason)
{
    /* While ranks change from one communicator to another they may disagree about which is the current one. */
    bool tangled = m->move.kind == MOVE_SHRINK || (m->move.kind && m->move.step == STEP_ORDER);
    if (m->move.kind) m->failed_moves++;
    m->move = (move_t){.recovery = true, .started_ns = now_ns(), .attempt = tangled ? 1 : 0};
    snprintf(m->move.reason, sizeof m->move.reason, "%s", reason);
    for (int i = 0; i < MOST_PEERS; i++) {
        peer_t *p = &m->peers[i];
        if (p->state == PEER_SPARE && p->next_rank >= 0) fleet_tell_kind(p, NOTE_DROP, m->last_epoch);
        p->next_rank = -1;
    }
    front_interrupt(m);
    next_step(m, STEP_SETTLE, m->settle_ms);
}

/* Members that can go on. Those that are silent are fenced; those on the wrong side of a cut become spares. */
static int survivors(monitor_t *m, peer_t **list, bool *silence)
{
    int n = fleet_members(m, list), left = 0;
    uint64_t now = now_ns();
    for (int i = 0; i < n; i++) {
        peer_t *p = list[i];
        if (p->dead) continue;
        if (now - p->heard_ns > (uint64_t)m->silent_ms * MS) {
            *silence = true;
            fleet_fence(m, p, "no heartbeat; when it wakes up it finds itself replaced");
            continue;
        }
        list[left++] = p;
    }
    return left;
}

static void to_spare(monitor_t *m, peer_t *p)
{
    fleet_tell_kind(p, NOTE_ABORT, m->last_epoch);
    p->state = PEER_SPARE;
    p->rank = -1;
}

static int keep_one_side(monitor_t *m, peer_t **list, int n, bool by_host)
{
    int on[2] = {0, 0}, left = 0;
    for (int i = 0; i < n; i++) on[list[i]->host == 1]++;
    int larger = on[1] > on[0];
    for (int i = 0; i < n; i++) {
        bool other = list[i]->error == KOLO_ERR_PARTITION || (by_host && list[i]->host != larger);
        if (other)
            to_spare(m, list[i]);
        else
            list[left++] = list[i];
    }
    if (left < n) say(m, "the network is cut: %d workers go on on one side, %d wait", left, n - left);
    return left;
}

static void crew_up(monitor_t *m)
{
    for (int i = 0; i < MOST_PEERS; i++)
        if (m->peers[i].state == PEER_MEMBER) m->peers[i].state = PEER_FENCED; /* dead */
    while (fleet_count(m, PEER_STARTING) + fleet_count(m, PEER_SPARE) < rules_want(m) && fleet_spawn(m)) continue;
    next_step(m, STEP_CREW, m->init_ms);
}

static void choose(monitor_t *m)
{
    peer_t *list[MOST_WORKERS];
    bool silence = false, deaths = false;
    for (int i = 0; i < MOST_PEERS; i++) {
        if (m->peers[i].state == PEER_MEMBER && m->peers[i].dead && !deaths) {
            deaths = true;
            snprintf(m->move.reason, sizeof m->move.reason, "worker %d (rank %d) died", m->peers[i].index,
                     m->peers[i].rank);
        }
        if (m->peers[i].state == PEER_SPARE && m->peers[i].dead) m->peers[i].state = PEER_FENCED;
    }
    int n = survivors(m, list, &silence);
    if (n) n = keep_one_side(m, list, n, m->linked && m->move.attempt >= 2);
    if (n == 0)
        crew_up(m);
    else if (deaths && !silence && m->move.attempt == 0 && n > 0)
        move_begin(m, MOVE_RESCUE, list, n, m->move.reason);
    else
        move_begin(m, MOVE_REINIT, list, n, m->move.reason);
    if (m->move.attempt == 0) m->move.attempt = 1; /* the next one is an abort and re-init in any case */
}

static void watch_crew(monitor_t *m)
{
    peer_t *list[MOST_WORKERS];
    int n = 0;
    bool late = now_ns() > m->move.deadline_ns;
    if (fleet_count(m, PEER_STARTING) && !(late && fleet_count(m, PEER_SPARE))) return;
    for (int i = 0; i < MOST_PEERS && n < m->options.workers; i++)
        if (m->peers[i].state == PEER_SPARE && !m->peers[i].dead) list[n++] = &m->peers[i];
    if (n && m->linked && m->move.attempt >= 2) n = keep_one_side(m, list, n, true);
    if (n)
        move_begin(m, MOVE_REINIT, list, n, m->move.first ? "start" : "nobody was left");
    else if (late)
        crew_up(m);
}

static bool settled(const monitor_t *m)
{
    uint64_t now = now_ns();
    bool deaths = false, all = true;
    for (int i = 0; i < MOST_PEERS; i++) {
        const peer_t *p = &m->peers[i];
        if (p->state != PEER_MEMBER) continue;
        deaths = deaths || p->dead;
        all = all && (p->error || p->dead || now - p->heard_ns > (uint64_t)m->silent_ms * MS);
    }
    return deaths || all || now >= m->move.deadline_ns;
}

void move_watch(monitor_t *m)
{
    char why[120];
    uint64_t now = now_ns(), silent = 2 * (uint64_t)m->silent_ms * MS;
    if (m->move.step == STEP_SETTLE && settled(m)) choose(m);
    if (m->move.step == STEP_CREW) watch_crew(m);
    if (m->move.step != STEP_ID && m->move.step != STEP_READY) return;
    for (int i = 0; i < MOST_PEERS; i++) {
        const peer_t *p = &m->peers[i];
        if (p->next_rank < 0 || (!p->dead && now - p->heard_ns < silent)) continue;
        snprintf(why, sizeof why, "worker %d %s", p->index, p->dead ? "died" : "does not answer");
        move_give_up(m, why);
        return;
    }
    if (now > m->move.deadline_ns) move_give_up(m, "not all workers came in time");
}

/* An answer has come, the first for gap_ns. */
void recovery_answered(monitor_t *m, uint64_t gap_ns)
{
    if (!m->move.recovery || m->move.step != STEP_RESUME) return;
    uint64_t took = now_ns() - m->move.started_ns;
    if (m->move.first) {
        say(m, "epoch %llu serves with %d ranks, %.0f ms after the start", (unsigned long long)m->epoch,
            m->move.nranks, (double)took / 1e6);
    } else {
        m->recoveries++;
        m->recovery_ns += took;
        if (took > m->longest_recovery_ns) m->longest_recovery_ns = took;
        m->moves[m->move.kind]++;
        say(m, "epoch %llu serves with %d ranks: recovered in %.0f ms; no answer for %.0f ms",
            (unsigned long long)m->epoch, m->move.nranks, (double)took / 1e6, (double)gap_ns / 1e6);
    }
    m->move = (move_t){0};
}
