/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a rank: join, random calls, sometimes a part of the communicator, the end; after an error what an
 * application does: leave, or shrink and go on. What it saw it writes into memory shared with the driver.
 */
#include "chaos/chaos.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LEAVE_LIMIT_MS 3000
#define HOLD_LIMIT_MS  3000
#define ROOT_LIMIT_MS  25000
#define STEPS_AFTER    3

void chaos_doing(chaos_life_t *l, const char *what)
{
    snprintf(l->report->doing, sizeof l->report->doing, "%s", what);
}

void chaos_note_error(chaos_life_t *l, kolo_status_t status, kolo_comm_t comm)
{
    chaos_report_t *r = l->report;
    if (atomic_load(&r->error_ns)) return;
    r->status = status;
    r->victim_at = l->victim_at;
    r->beside = comm && comm != l->comm;
    snprintf(r->where, sizeof r->where, "%.60s", r->doing);
    const char *text = comm ? kolo_get_last_error(comm) : "";
    snprintf(r->text, sizeof r->text, "%s", *text ? text : kolo_get_last_error(NULL));
    atomic_store(&r->error_ns, chaos_now_ns());
    atomic_store(&l->shared->broken, 1);
}

#define CALLED_OFF (1 << 16)

/* All of comm hear the same: either each of them came, or the first who did not wait any longer called it off. */
bool chaos_meet(chaos_life_t *l, _Atomic int *met)
{
    uint64_t end = chaos_now_ns() + chaos_wait_ns();
    int there = atomic_fetch_add(met, 1) + 1;
    while (there < l->n) {
        bool trouble = atomic_load(&l->shared->broken) && l->victim_at >= 0; /* who is out of comm is not missed */
        if (!trouble && chaos_now_ns() <= end) {
            chaos_nap_us(200);
            there = atomic_load(met);
        } else if (atomic_compare_exchange_weak(met, &there, there | CALLED_OFF)) {
            return false;
        }
    }
    return !(there & CALLED_OFF);
}

/* ---- joining ---- */

static bool get_id(chaos_life_t *l)
{
    chaos_shared_t *sh = l->shared;
    chaos_doing(l, "get_unique_id");
    if (l->proc == 0) {
        kolo_status_t status = kolo_get_unique_id(&sh->id);
        if (status != KOLO_OK) chaos_note_error(l, status, NULL);
        atomic_store(&sh->id_there, status == KOLO_OK ? 1 : -1);
    }
    while (atomic_load(&sh->id_there) == 0) chaos_nap_us(200); /* the driver sees to it that this ends */
    return atomic_load(&sh->id_there) > 0;
}

static kolo_status_t join(chaos_life_t *l)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.init_timeout_ms = chaos_init_timeout_ms();
    config.blocking = !l->s->background;
    config.name = "chaos";
    chaos_doing(l, "init");
    atomic_store(&l->report->progress, CHAOS_JOINING);
    l->rank = l->proc;
    l->n = l->s->nranks;
    l->victim_at = l->s->victim < l->n ? l->s->victim : -1;
    l->report->victim_as = l->victim_at;
    kolo_status_t status = kolo_comm_init_rank(&l->comm, l->n, l->shared->id, l->rank, &config);
    return status == KOLO_OK || status == KOLO_IN_PROGRESS ? chaos_settle(l->comm, status) : status;
}

/* ---- working ---- */

kolo_status_t chaos_work(chaos_life_t *l, kolo_comm_t comm, uint64_t seed, int from, int count, bool counts)
{
    chaos_caller_t c = {l->s, l->report, comm, 0, 0, NULL};
    kolo_status_t status = kolo_comm_count(comm, &c.nranks);
    if (status == KOLO_OK) status = kolo_comm_user_rank(comm, &c.rank);
    for (int k = from; k < from + count && status == KOLO_OK; k++) {
        c.stream = chaos_mix(seed ^ (uint64_t)k) % 4 == 0 ? l->stream : NULL;
        status = chaos_call(&c, seed, k);
        if (counts) atomic_store(&l->report->progress, CHAOS_READY + k + 1);
    }
    return status;
}

kolo_status_t chaos_part_with(chaos_life_t *l, kolo_comm_t comm, kolo_status_t status, const char *whom)
{
    char what[64];
    if (status == KOLO_OK) {
        snprintf(what, sizeof what, "finalize of %s", whom);
        chaos_doing(l, what);
        status = chaos_settle(comm, kolo_comm_finalize(comm));
    }
    if (status != KOLO_OK) chaos_note_error(l, status, comm);
    snprintf(what, sizeof what, "%s of %s", status == KOLO_OK ? "destroy" : "abort", whom);
    chaos_doing(l, what);
    kolo_status_t end = status == KOLO_OK ? kolo_comm_destroy(comm) : kolo_comm_abort(comm);
    return status != KOLO_OK ? status : end;
}

static kolo_status_t one_step(chaos_life_t *l, int k)
{
    const chaos_scenario_t *s = l->s;
    uint64_t own = chaos_mix(s->seed * 77 + (uint64_t)k);
    if (k == s->grow_at) return chaos_grow(l, own);
    if (k == s->revoke_at) return chaos_revoke(l, own);
    if (k == s->exclude_at && l->n > 2) return chaos_exclude(l, own);
    if (own % 10 == 0) return chaos_split(l, own);
    if (own % 10 == 1) return chaos_shrink_beside(l, own);
    return chaos_work(l, l->comm, s->seed, k, 1, true);
}

static kolo_status_t run_steps(chaos_life_t *l, int from)
{
    kolo_status_t status = KOLO_OK;
    for (int k = from; k < l->s->nsteps && status == KOLO_OK && !l->left; k++) {
        status = one_step(l, k);
        if (status != KOLO_OK)
            chaos_note_error(l, status, l->comm); /* while victim_as is right */
        else
            l->report->victim_as = l->victim_at;
        atomic_store(&l->report->progress, CHAOS_READY + k + 1);
    }
    return status;
}

/* ---- the end ---- */

static void leave(chaos_life_t *l, bool destroys)
{
    char what[64];
    uint64_t start = chaos_now_ns();
    if (!l->comm) return;
    snprintf(what, sizeof what, "%s", destroys ? "destroy" : "abort");
    chaos_doing(l, what);
    kolo_status_t status = destroys ? kolo_comm_destroy(l->comm) : kolo_comm_abort(l->comm);
    l->comm = NULL;
    if (status != KOLO_OK)
        chaos_wrong(l->report, "%s gave %s: %s", what, kolo_status_string(status), kolo_get_last_error(NULL));
    uint64_t took = chaos_now_ns() - start;
    bool excused = l->s->fault == KOLO_FAULT_STOP || l->s->fault == KOLO_FAULT_DELAY;
    if (took > chaos_limit_ns(LEAVE_LIMIT_MS) && !excused)
        chaos_wrong(l->report, "%s took %llu ms", what, (unsigned long long)(took / 1000000));
}

/* Without rank `out` (-1: without those that are lost): a new communicator by shrink in abort mode, and calls. */
static void go_on_without(chaos_life_t *l, int out)
{
    chaos_report_t *r = l->report;
    kolo_comm_t rest = NULL;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.init_timeout_ms = chaos_init_timeout_ms();
    config.blocking = 1;
    chaos_doing(l, "shrink (abort mode)");
    kolo_status_t status =
        kolo_comm_shrink(l->comm, out < 0 ? NULL : &out, out >= 0, KOLO_SHRINK_ABORT, &rest, &config);
    const char *text = status == KOLO_OK ? "" : kolo_get_last_error(NULL);
    if (status == KOLO_OK) {
        status = chaos_work(l, rest, l->s->seed ^ 0xabcdef, 0, STEPS_AFTER, false);
        if (status == KOLO_OK) {
            chaos_doing(l, "finalize after the shrink");
            status = kolo_comm_finalize(rest);
        }
        if (status != KOLO_OK) text = kolo_get_last_error(rest);
    }
    r->shrunk_out = out;
    r->shrunk_of = l->generation;
    r->shrunk_ranks = l->n;
    r->shrunk = status == KOLO_OK ? 1 : -1;
    snprintf(r->shrink_text, sizeof r->shrink_text, "%.120s: %.380s", r->doing, text);
    if (rest && kolo_comm_destroy(rest) != KOLO_OK) chaos_wrong(r, "destroy after the shrink failed");
}

static kolo_status_t end_in_peace(chaos_life_t *l)
{
    int last = l->n - 1;
    atomic_store(&l->report->progress, CHAOS_ENDING);
    if (l->s->ending == CHAOS_END_FINALIZE) {
        chaos_doing(l, "finalize");
        kolo_status_t status = chaos_settle(l->comm, kolo_comm_finalize(l->comm));
        if (status != KOLO_OK) return status;
        leave(l, true);
        return KOLO_OK;
    }
    chaos_doing(l, "meeting at the end");
    if (!chaos_meet(l, &l->shared->met_at_end)) { /* somebody is in trouble: find out by a call */
        chaos_doing(l, "barrier at the end");
        kolo_status_t status = chaos_settle(l->comm, kolo_barrier(l->comm, NULL));
        if (status != KOLO_OK) return status;
    } else if (l->s->ending == CHAOS_END_SHRINK && l->rank != last && l->n > 2) {
        go_on_without(l, last);
        if (l->report->shrunk < 0) {
            atomic_store(&l->shared->broken, 1);
            snprintf(l->report->where, sizeof l->report->where, "the last shrink");
            l->report->status = KOLO_ERR_REMOTE;
            snprintf(l->report->text, sizeof l->report->text, "%.500s", l->report->shrink_text);
            atomic_store(&l->report->error_ns, chaos_now_ns());
        }
    }
    leave(l, l->rank % 2);
    return KOLO_OK;
}

static kolo_status_t come_in(chaos_life_t *l, int *first_step)
{
    *first_step = 0;
    if (l->proc < l->s->nranks) return get_id(l) ? join(l) : KOLO_IN_PROGRESS;
    *first_step = l->s->grow_at + 1;
    return chaos_grow_in(l);
}

static void live(chaos_life_t *l)
{
    const chaos_scenario_t *s = l->s;
    int first_step;
    kolo_status_t status = come_in(l, &first_step);
    if (status == KOLO_IN_PROGRESS) return; /* nobody has called for this rank */
    if (status != KOLO_OK) {
        chaos_note_error(l, status, l->comm);
        leave(l, s->destroys);
        return;
    }
    atomic_store(&l->report->progress, CHAOS_READY + first_step);
    chaos_doing(l, "stream_create");
    if (kolo_stream_create(&l->stream) != KOLO_OK) l->stream = NULL;
    status = run_steps(l, first_step);
    if (status == KOLO_OK && !l->left) status = end_in_peace(l);
    if (status != KOLO_OK) {
        chaos_note_error(l, status, l->comm);
        bool named = l->victim_at >= 0 && !s->unnamed;
        bool tries = l->proc != s->victim || s->early_victim >= 0;
        if (s->shrinks && tries && l->comm && l->n > 2) go_on_without(l, named ? l->victim_at : -1);
    }
    leave(l, s->destroys);
    chaos_doing(l, "stream_destroy");
    if (l->stream) kolo_stream_destroy(l->stream);
}

/* The root of a job that did not come about goes on for a while telling ranks about it, and one that was never
 * called lasts for KOLO_ROOT_IDLE_MS (meet/root.c). */
static void compare(chaos_report_t *r, chaos_census_t before, bool root)
{
    char text[700];
    chaos_census_t now = before;
    bool lingers =
        root && atomic_load(&r->error_ns) && (r->made_grow_id || atomic_load(&r->progress) < CHAOS_READY);
    uint64_t limit_ns = chaos_limit_ns(lingers ? ROOT_LIMIT_MS : HOLD_LIMIT_MS);
    for (uint64_t end = chaos_now_ns() + limit_ns; chaos_now_ns() < end; chaos_nap_us(2000)) {
        now = chaos_census(text, sizeof text);
        if (now.fds <= before.fds && now.threads <= before.threads && now.mappings <= before.mappings) return;
    }
    snprintf(r->leak_text, sizeof r->leak_text, "%d descriptors, %d threads, %d mappings more: %s",
             now.fds - before.fds, now.threads - before.threads, now.mappings - before.mappings, text);
    atomic_store(&r->leaks, 1);
}

void chaos_rank_live(const chaos_scenario_t *s, chaos_shared_t *shared, int proc)
{
    char text[700];
    chaos_life_t l = {.s = s, .shared = shared, .report = &shared->ranks[proc], .proc = proc, .victim_at = -1};
    chaos_census_t before = chaos_census(text, sizeof text);
    l.report->victim_as = -1;
    atomic_store(&l.report->progress, CHAOS_BORN);
    live(&l);
    chaos_faults_end();
    chaos_doing(&l, "census");
    compare(l.report, before, proc == 0 || l.report->made_grow_id);
    atomic_store(&l.report->progress, CHAOS_GONE);
}
