/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps that make communicators from the one in use. Beside it: split, shrink in default mode. Instead of it: grow
 * (new processes join), revoke and shrink of all that are left, shrink of which one rank is left out for good. Who
 * loses somebody in a revoked communicator goes on without an error, as an application would.
 */
#include "chaos/chaos.h"

#include <stdio.h>
#include <stdlib.h>

/* A call that made nothing: its words are the thread's, those of comm may be older. */
static kolo_status_t failed(chaos_life_t *l, kolo_status_t status)
{
    chaos_note_error(l, status, NULL);
    return status;
}

/* ---- beside it ---- */

static kolo_status_t use_child(chaos_life_t *l, kolo_comm_t child, uint64_t seed)
{
    kolo_status_t status = chaos_settle(child, KOLO_IN_PROGRESS);
    if (status == KOLO_OK) status = chaos_work(l, child, seed, 0, 2, false);
    return chaos_part_with(l, child, status, "the child");
}

kolo_status_t chaos_split(chaos_life_t *l, uint64_t seed)
{
    kolo_comm_t child = NULL;
    int color = (int)(chaos_mix(seed ^ (uint64_t)l->rank) % 3);
    l->report->victim_as = 0; /* larger ranks come first */
    for (int r = l->victim_at + 1; r < l->n; r++)
        l->report->victim_as += (int)(chaos_mix(seed ^ (uint64_t)r) % 3) == color;
    if (color == 2) color = KOLO_SPLIT_NOCOLOR;
    chaos_doing(l, "split");
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.split_share = (int)(seed / 7 % 2);
    kolo_status_t status = kolo_comm_split(l->comm, color, -l->rank, &child, &config);
    if (status != KOLO_OK && status != KOLO_IN_PROGRESS) return failed(l, status);
    if (!child) return chaos_settle(l->comm, status);
    return use_child(l, child, seed + (uint64_t)color);
}

/* One rank takes no part; the parent serves on. */
kolo_status_t chaos_shrink_beside(chaos_life_t *l, uint64_t seed)
{
    int out = (int)(chaos_mix(seed) % (uint64_t)l->n);
    kolo_comm_t child = NULL;
    if (l->rank == out) return KOLO_OK;
    l->report->victim_as = l->victim_at - (l->victim_at > out);
    chaos_doing(l, "shrink (default mode)");
    kolo_status_t status = kolo_comm_shrink(l->comm, &out, 1, KOLO_SHRINK_DEFAULT, &child, NULL);
    if (status != KOLO_OK && status != KOLO_IN_PROGRESS) return failed(l, status);
    return use_child(l, child, seed);
}

/* ---- instead of it ---- */

/* Where the victim is in the communicator that was shrunk from comm without `out` (-1: nobody) and the lost. */
static int find_victim(const chaos_life_t *l, int out)
{
    int lost[CHAOS_PROCS], n = CHAOS_PROCS, at = l->victim_at;
    if (at < 0 || at == out) return -1;
    at -= out >= 0 && out < at;
    if (kolo_comm_lost(l->comm, lost, &n) != KOLO_OK) return at;
    for (int i = 0; i < n && i < CHAOS_PROCS; i++) {
        if (lost[i] == l->victim_at) return -1;
        at -= lost[i] < l->victim_at && lost[i] != out;
    }
    return at;
}

/* The next one is in use from here on; the old one is the caller's to free. */
static kolo_status_t move_to(chaos_life_t *l, kolo_comm_t next, int victim_at)
{
    l->comm = next;
    l->generation++;
    l->victim_at = l->report->victim_as = victim_at;
    kolo_status_t status = kolo_comm_count(next, &l->n);
    return status == KOLO_OK ? kolo_comm_user_rank(next, &l->rank) : status;
}

/* A shrink of which the result replaces comm. An error leaves comm as it is. */
static kolo_status_t shrink_and_move(chaos_life_t *l, int out, int flags, uint64_t seed)
{
    kolo_comm_t old = l->comm, next = NULL;
    int old_n = l->n;
    chaos_doing(l, flags ? "shrink of all (abort mode)" : "shrink of all (default mode)");
    kolo_status_t status = kolo_comm_shrink(old, out < 0 ? NULL : &out, out >= 0, flags, &next, NULL);
    if (next) status = chaos_settle(next, status);
    if (status != KOLO_OK) {
        chaos_note_error(l, status, next);
        if (next) kolo_comm_abort(next);
        l->report->shrunk_before = true;
        return status;
    }
    status = move_to(l, next, find_victim(l, out));
    int most = old_n - (out >= 0);
    if (status == KOLO_OK && (l->n > most || (chaos_is_harmless(l->s) && l->n < most)))
        chaos_wrong(l->report, "a shrink of %d ranks has %d", old_n, l->n);
    if (status == KOLO_OK) status = chaos_work(l, l->comm, seed, 0, 1, false);
    /* Nobody needs the old one any more, or there is an error. */
    if (kolo_comm_destroy(old) != KOLO_OK) chaos_wrong(l->report, "destroy of a shrunk communicator failed");
    return status;
}

/* All meet before they leave comm in one way. If some are in trouble already, they leave it in another one, as all
 * have to: a call finds the trouble. */
static kolo_status_t meet(chaos_life_t *l, _Atomic int *met, const char *why)
{
    chaos_doing(l, why);
    if (chaos_meet(l, met)) return KOLO_OK;
    return chaos_settle(l->comm, kolo_barrier(l->comm, NULL));
}

/* A rank revokes what the others are in. All that are left go on together; who is lost is not an error here. */
kolo_status_t chaos_revoke(chaos_life_t *l, uint64_t seed)
{
    int revoker = (int)(chaos_mix(seed + 1) % (uint64_t)l->n), flags = seed & 16 ? KOLO_SHRINK_ABORT : 0;
    /* A revoke ends what others still are in, also the step before, of which some ranks may have got a child. */
    kolo_status_t status = meet(l, &l->shared->met_to_revoke, "meeting before the revoke");
    if (status != KOLO_OK) return status;
    if (l->rank == revoker && seed & 32) chaos_nap_us((long)(seed >> 8) % 2000);
    if (l->rank == revoker) {
        chaos_doing(l, "revoke");
        status = kolo_comm_revoke(l->comm);
        if (status != KOLO_OK) return status;
    } else {
        status = chaos_work(l, l->comm, seed, 0, 1 + (int)(seed % 3), false);
        bool expected = status == KOLO_ERR_REVOKED || status == KOLO_ERR_REMOTE;
        if (status != KOLO_OK && !expected) return status;
    }
    return shrink_and_move(l, -1, flags, seed + 2);
}

/* One rank leaves for good. In default mode the others need it until they are through with comm. */
kolo_status_t chaos_exclude(chaos_life_t *l, uint64_t seed)
{
    int out = (int)(chaos_mix(seed + 3) % (uint64_t)l->n), flags = seed & 16 ? KOLO_SHRINK_ABORT : 0, all = l->n;
    /* In abort mode others must not still be in the step before. */
    kolo_status_t status = meet(l, &l->shared->met_to_exclude, "meeting before one leaves");
    if (status != KOLO_OK) return status;
    if (l->rank != out) {
        status = shrink_and_move(l, out, flags, seed + 4);
        atomic_fetch_add(&l->shared->through, 1);
        return status;
    }
    chaos_doing(l, "being left out");
    l->left = true;
    uint64_t end = chaos_now_ns() + chaos_wait_ns();
    while (!flags && atomic_load(&l->shared->through) < all - 1 && status == KOLO_OK && chaos_now_ns() < end) {
        chaos_nap_us(200);
        if (kolo_comm_get_async_error(l->comm, &status) != KOLO_OK) break;
    }
    return KOLO_OK;
}

/* ---- grow ---- */

static kolo_status_t check_size(chaos_life_t *l, kolo_status_t status, int n, int rank)
{
    if (status == KOLO_OK && (l->n != n || l->rank != rank))
        chaos_wrong(l->report, "grew to %d ranks, expected %d; is rank %d, expected %d", l->n, n, l->rank, rank);
    return status;
}

static int victim_in(const chaos_life_t *l, int old)
{
    return l->s->victim < l->s->nranks ? l->victim_at : old + l->s->victim - l->s->nranks;
}

static kolo_status_t make_id(chaos_life_t *l)
{
    int none = 0;
    chaos_doing(l, "get_grow_id");
    kolo_status_t status = kolo_comm_get_grow_id(l->comm, &l->shared->grow_id);
    l->report->made_grow_id = status == KOLO_OK;
    l->shared->grow_old = l->n;
    l->shared->grow_victim = victim_in(l, l->n);
    l->shared->grow_generation = l->generation;
    atomic_compare_exchange_strong(&l->shared->grow_there, &none, status == KOLO_OK ? 1 : -1);
    return status;
}

/* Old ranks. Without blocking the old communicator serves meanwhile. */
kolo_status_t chaos_grow(chaos_life_t *l, uint64_t seed)
{
    int gateway = (int)(chaos_mix(seed + 5) % (uint64_t)l->n), old = l->n, me = l->rank, total = l->n + l->s->grown;
    kolo_comm_t grown = NULL, before = l->comm;
    kolo_status_t status = KOLO_OK;
    if (l->rank == gateway) status = make_id(l);
    if (status != KOLO_OK) return status;
    chaos_doing(l, "grow");
    l->report->victim_as = victim_in(l, old);
    status = kolo_comm_grow(before, total, l->rank == gateway ? &l->shared->grow_id : NULL, -1, &grown, NULL);
    if (status != KOLO_OK && status != KOLO_IN_PROGRESS) return failed(l, status);
    kolo_status_t meanwhile = status == KOLO_IN_PROGRESS ? chaos_work(l, before, seed, 0, 2, false) : KOLO_OK;
    if (meanwhile != KOLO_OK) chaos_note_error(l, meanwhile, before);
    chaos_doing(l, "grow");
    status = meanwhile == KOLO_OK ? chaos_settle(grown, status) : meanwhile;
    if (status != KOLO_OK) {
        chaos_note_error(l, status, grown);
        kolo_comm_abort(grown);
        return status;
    }
    status = check_size(l, move_to(l, grown, victim_in(l, old)), total, me);
    if (status == KOLO_OK) status = chaos_work(l, grown, seed + 6, 0, 1, false);
    /* Nobody needs the old one any more, or there is an error. */
    if (kolo_comm_destroy(before) != KOLO_OK) chaos_wrong(l->report, "destroy of what was before the grow failed");
    return status;
}

/* A new one, until it is in. KOLO_IN_PROGRESS: nobody has called for it. */
kolo_status_t chaos_grow_in(chaos_life_t *l)
{
    const chaos_scenario_t *s = l->s;
    chaos_shared_t *sh = l->shared;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    chaos_doing(l, "waiting for a grow");
    while (atomic_load(&sh->grow_there) == 0) chaos_nap_us(200); /* the driver sees to it that this ends */
    if (atomic_load(&sh->grow_there) < 0) return KOLO_IN_PROGRESS;
    int old = sh->grow_old, me = old + l->proc - s->nranks, total = old + s->grown;
    config.init_timeout_ms = chaos_init_timeout_ms();
    config.blocking = !s->background;
    config.name = "chaos";
    l->n = total;
    l->victim_at = l->report->victim_as = sh->grow_victim;
    chaos_doing(l, "grow as a new rank");
    atomic_store(&l->report->progress, CHAOS_JOINING);
    kolo_status_t status = kolo_comm_grow(NULL, total, &sh->grow_id, me, &l->comm, &config);
    if (status == KOLO_IN_PROGRESS) status = chaos_settle(l->comm, status);
    if (status != KOLO_OK) return status;
    l->generation = sh->grow_generation;
    status = check_size(l, move_to(l, l->comm, l->victim_at), total, me);
    if (status != KOLO_OK) return status;
    return chaos_work(l, l->comm, chaos_mix(s->seed * 77 + (uint64_t)s->grow_at) + 6, 0, 1, false);
}
