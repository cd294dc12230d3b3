/* SPDX-License-Identifier: Apache-2.0
 *
 * In which order the sets of this job run their cycles. A rank does one thing at a time, so ranks that are in two
 * sets must come to the cycles of both in one order, or they wait for each other for ever. There is one order for
 * the whole job, made by the rank 0 of all, the root: a set that has something to say sends a call (set, cycle) up
 * the tree of wake.c; the root gives each one place, once, and sends it down to those who belong to the set, as a
 * turn. Connections keep order, so every rank gets its turns in the root's order, and takes them in it. The turn
 * that came first of all that are not over can always be finished: all of its ranks have finished what came before.
 * Sets that have nothing to say send nothing.
 *
 * A turn is one cycle and those that follow at once because something has moved (loop.c), until a rank of the set
 * has another turn waiting: then the set gets in line again. While there is but one set none of this is used.
 */
#include "comm/comm.h"
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

#define KIND_AT  62
#define SET_AT   42
#define SET_MASK (KOLO_SETS_MAX - 1)
#define AT_MASK  ((UINT64_C(1) << SET_AT) - 1)

static uint64_t number_of(uint64_t kind, int set, uint64_t cycle)
{
    return kind << KIND_AT | (uint64_t)set << SET_AT | (cycle & AT_MASK);
}

kolo_notify_kind_t kolo_order_kind(uint64_t number)
{
    return (kolo_notify_kind_t)(number >> KIND_AT);
}

/* ---- who is where in the tree ---- */

static int parent_of(int rank)
{
    return (rank - 1) / KOLO_WAKE_FAN_OUT;
}

/* Returns the child of `above` whose part of the tree `rank` is in; -1: rank is not below it. */
static int branch_of(int above, int rank)
{
    while (rank > above) {
        if (parent_of(rank) == above) return rank;
        rank = parent_of(rank);
    }
    return -1;
}

/* ---- the tables, under the lock ---- */

static kolo_order_set_t *find(kolo_order_t *o, int set)
{
    if ((size_t)set < o->nsets) return &o->sets[set];
    size_t n = KOLO_MAX((size_t)set + 1, o->nsets * 2);
    kolo_order_set_t *sets = realloc(o->sets, n * sizeof *sets);
    if (!sets) {
        o->broken = true; /* the loop will say so */
        return NULL;
    }
    for (size_t i = o->nsets; i < n; i++) sets[i] = (kolo_order_set_t){.mine = true, .branches = UINT8_MAX};
    o->sets = sets;
    o->nsets = n;
    return &sets[set];
}

static void append(kolo_order_t *o, int set, uint64_t cycle)
{
    if (o->end == o->room) {
        size_t n = KOLO_MAX((size_t)64, 2 * (o->end - o->begin));
        kolo_turn_t *turns = malloc(n * sizeof *turns);
        if (!turns) {
            o->broken = true;
            return;
        }
        if (o->end > o->begin) memcpy(turns, o->turns + o->begin, (o->end - o->begin) * sizeof *turns);
        free(o->turns);
        o->turns = turns;
        o->end -= o->begin;
        o->begin = 0;
        o->room = n;
    }
    o->turns[o->end++] = (kolo_turn_t){set, cycle};
    atomic_store(&o->waiting, o->end - o->begin);
}

/* Tells whether no rank has raised this number for this set before. */
static bool is_new(kolo_order_t *o, int set, uint64_t cycle)
{
    kolo_order_set_t *s = find(o, set);
    if (!s || cycle <= s->asked) return false;
    s->asked = cycle;
    return true;
}

/* Keeps it if this rank belongs to the set, as far as it knows yet; returns which branches are to hear of it. */
static uint8_t take_in(kolo_order_t *o, int set, uint64_t cycle)
{
    kolo_order_set_t *s = find(o, set);
    if (!s) return UINT8_MAX;
    if (s->mine) append(o, set, cycle);
    return s->branches;
}

/* ---- on the progress thread, or as a rank's notification to itself: always with the out-of-band room's lock, so
 * that the root sends turns in the order in which it makes them ---- */

static void send_down(struct kolo_tensor_engine *e, int set, uint64_t cycle)
{
    kolo_order_t *o = &e->order;
    pthread_mutex_lock(&o->lock);
    uint8_t branches = take_in(o, set, cycle);
    pthread_mutex_unlock(&o->lock);
    kolo_gate_open(e->gate);
    for (int i = 0; i < KOLO_WAKE_FAN_OUT; i++) {
        int child = e->rank * KOLO_WAKE_FAN_OUT + 1 + i;
        if (child < e->size && (branches >> i & 1))
            kolo_oob_notify_more(e->all->comm->body->oob, child, number_of(KOLO_NOTIFY_TURN, set, cycle));
    }
}

void kolo_order_heard(struct kolo_tensor_engine *e, int from, uint64_t number)
{
    kolo_order_t *o = &e->order;
    int set = (int)(number >> SET_AT & SET_MASK);
    uint64_t cycle = number & AT_MASK;
    if (kolo_order_kind(number) == KOLO_NOTIFY_TURN) {
        if (e->rank > 0 && from == parent_of(e->rank)) send_down(e, set, cycle);
        return;
    }
    pthread_mutex_lock(&o->lock);
    bool new = is_new(o, set, cycle);
    pthread_mutex_unlock(&o->lock);
    if (new && e->rank == 0) send_down(e, set, cycle);
    if (new && e->rank > 0) kolo_oob_notify_more(e->all->comm->body->oob, parent_of(e->rank), number);
}

/* ---- the loop's side ---- */

kolo_status_t kolo_order_init(kolo_order_t *o)
{
    pthread_mutex_init(&o->lock, NULL);
    return KOLO_OK;
}

void kolo_order_fini(kolo_order_t *o)
{
    free(o->sets);
    free(o->turns);
    pthread_mutex_destroy(&o->lock);
}

kolo_status_t kolo_order_meet(struct kolo_tensor_engine *e, const kolo_set_t *set)
{
    kolo_order_t *o = &e->order;
    uint8_t branches = 0;
    for (int i = 0; i < set->size; i++) {
        int branch = branch_of(e->rank, set->ranks[i]);
        if (branch >= 0) branches |= (uint8_t)(1u << (branch - e->rank * KOLO_WAKE_FAN_OUT - 1));
    }
    pthread_mutex_lock(&o->lock);
    kolo_order_set_t *s = find(o, set->id);
    if (s) {
        s->mine = set->rank >= 0;
        s->branches = branches;
    }
    pthread_mutex_unlock(&o->lock);
    return s ? KOLO_OK : kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for process set %d", set->id);
}

kolo_status_t kolo_order_call(kolo_set_t *s)
{
    kolo_tensor_engine_t e = s->engine;
    if (s->called >= s->cycle) return KOLO_OK;
    s->called = s->cycle;
    kolo_body_t *body = kolo_handle_visit(e->all->comm, "engine");
    if (!body) return KOLO_ERR_ABORTED;
    int to = e->rank > 0 ? parent_of(e->rank) : 0;
    kolo_status_t status = kolo_oob_notify(body->oob, to, number_of(KOLO_NOTIFY_CALL, s->id, s->cycle));
    kolo_handle_leave(e->all->comm);
    /* A parent that is gone ends the communicator, with better words. */
    return status == KOLO_ERR_REMOTE ? KOLO_OK : status;
}

kolo_status_t kolo_order_next(kolo_order_t *o, kolo_turn_t *turn, bool *found)
{
    pthread_mutex_lock(&o->lock);
    bool broken = o->broken;
    *found = !broken && o->end > o->begin;
    if (*found) *turn = o->turns[o->begin++];
    atomic_store(&o->waiting, o->end - o->begin);
    pthread_mutex_unlock(&o->lock);
    return broken ? kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for the order of process sets") : KOLO_OK;
}
