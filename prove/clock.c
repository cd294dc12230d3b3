/* SPDX-License-Identifier: Apache-2.0
 *
 * Vector clocks of the verifier, one thread per lane of every rank, threads by the thousand. What a thread knows of
 * the others is a tree with the known times in its leaves. Trees never change once they are shared: a stamp costs
 * no copy, joining two makes new nodes only where both know something that the other does not, and what they have
 * in common, which is most of it, is not even looked at.
 */
#include "prove/model.h"

#include <stdlib.h>
#include <string.h>

#define FANOUT_BITS 4 /* as KOLO_CLOCK_FANOUT */

static kolo_status_t no_memory(void)
{
    return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for the verifier's clocks");
}

/* Counts one holder more. Node 0 knows nothing; it is child and root of itself, and never counted. */
static void hold(kolo_clocks_t *c, uint32_t node)
{
    if (node) c->nodes[node].refs++;
}

static void drop(kolo_clocks_t *c, uint32_t node, uint32_t level)
{
    if (!node || --c->nodes[node].refs) return;
    for (uint32_t k = 0; level && k < KOLO_CLOCK_FANOUT; k++) drop(c, c->nodes[node].at[k], level - 1);
    c->nodes[node].at[0] = c->free;
    c->free = node;
}

/* Makes a node that nobody holds yet and that holds its children; 0: no memory. */
static uint32_t new_node(kolo_clocks_t *c, const uint32_t *at, uint32_t level)
{
    uint32_t node = c->free;
    if (node) {
        c->free = c->nodes[node].at[0];
    } else {
        if (c->count == c->cap) {
            uint32_t cap = c->cap * 2;
            kolo_clock_node_t *p = realloc(c->nodes, cap * sizeof(*p));
            if (!p) return 0;
            c->nodes = p;
            c->cap = cap;
        }
        node = c->count++;
    }
    c->nodes[node].refs = 0;
    memcpy(c->nodes[node].at, at, sizeof(c->nodes[node].at));
    for (uint32_t k = 0; level && k < KOLO_CLOCK_FANOUT; k++) hold(c, at[k]);
    return node;
}

kolo_status_t kolo_clock_init(kolo_clocks_t *c, uint32_t nthreads)
{
    *c = (kolo_clocks_t){.nthreads = nthreads, .count = 1, .cap = 256};
    if (!nthreads) return KOLO_OK;
    while (c->top < 7 && nthreads > 1u << FANOUT_BITS * (c->top + 1)) c->top++;
    c->root = calloc(nthreads, sizeof(*c->root));
    c->time = malloc(nthreads * sizeof(*c->time));
    c->nodes = malloc(c->cap * sizeof(*c->nodes));
    if (!c->root || !c->time || !c->nodes) {
        kolo_clock_fini(c);
        return no_memory();
    }
    c->nodes[0] = (kolo_clock_node_t){0};
    for (uint32_t t = 0; t < nthreads; t++) c->time[t] = 1;
    return KOLO_OK;
}

void kolo_clock_fini(kolo_clocks_t *c)
{
    free(c->root);
    free(c->time);
    free(c->nodes);
    *c = (kolo_clocks_t){0};
}

kolo_epoch_t kolo_clock_now(const kolo_clocks_t *c, uint32_t thread)
{
    return (kolo_epoch_t){.thread = thread, .time = c->nthreads ? c->time[thread] : 0};
}

kolo_stamp_t kolo_clock_stamp(kolo_clocks_t *c, uint32_t thread)
{
    if (!c->nthreads) return (kolo_stamp_t){0};
    hold(c, c->root[thread]);
    return (kolo_stamp_t){.root = c->root[thread], .epoch = {.thread = thread, .time = c->time[thread]++}};
}

void kolo_clock_drop_stamp(kolo_clocks_t *c, kolo_stamp_t *stamp)
{
    if (stamp->root) drop(c, stamp->root, c->top);
    *stamp = (kolo_stamp_t){0};
}

static uint32_t known(const kolo_clocks_t *c, uint32_t root, uint32_t thread)
{
    uint32_t node = root;
    for (uint32_t level = c->top; level; level--)
        node = c->nodes[node].at[thread >> FANOUT_BITS * level & (KOLO_CLOCK_FANOUT - 1)];
    return c->nodes[node].at[thread & (KOLO_CLOCK_FANOUT - 1)];
}

/* Returns the later of both for every thread: one of the two where it knows all that the other does, else a new
 * node. */
static uint32_t join(kolo_clocks_t *c, uint32_t x, uint32_t y, uint32_t level)
{
    uint32_t at[KOLO_CLOCK_FANOUT], not_x = 0, not_y = 0;
    if (x == y || !y) return x;
    if (!x) return y;
    for (uint32_t k = 0; level && k < KOLO_CLOCK_FANOUT; k++) {
        uint32_t a = c->nodes[x].at[k], b = c->nodes[y].at[k];
        at[k] = join(c, a, b, level - 1);
        not_x |= at[k] ^ a;
        not_y |= at[k] ^ b;
    }
    for (uint32_t k = 0; !level && k < KOLO_CLOCK_FANOUT; k++) {
        uint32_t a = c->nodes[x].at[k], b = c->nodes[y].at[k];
        at[k] = a > b ? a : b;
        not_x |= at[k] ^ a;
        not_y |= at[k] ^ b;
    }
    if (!not_x) return x;
    if (!not_y) return y;
    uint32_t node = new_node(c, at, level);
    c->failed |= !node;
    return node;
}

/* Returns the same with another time for one thread; changes nodes that only `node`'s holder knows in place. */
static uint32_t with_time(kolo_clocks_t *c, uint32_t node, kolo_epoch_t e, uint32_t level)
{
    uint32_t k = e.thread >> FANOUT_BITS * level & (KOLO_CLOCK_FANOUT - 1), at[KOLO_CLOCK_FANOUT];
    uint32_t old = c->nodes[node].at[k], now = e.time;
    bool mine = node && c->nodes[node].refs == 1;
    if (level) {
        /* A child that others reach through this node too is not to be changed. */
        if (!mine) hold(c, old);
        now = with_time(c, old, e, level - 1);
        if (!mine) drop(c, old, level - 1);
        if (!now) return 0;
    }
    if (!mine) {
        memcpy(at, c->nodes[node].at, sizeof(at));
        at[k] = now;
        node = new_node(c, at, level);
        c->failed |= !node;
    } else if (old != now) {
        if (level) {
            hold(c, now);
            drop(c, old, level - 1);
        }
        c->nodes[node].at[k] = now;
    }
    return node;
}

static void set_root(kolo_clocks_t *c, uint32_t thread, uint32_t root)
{
    uint32_t old = c->root[thread];
    if (root == old) return;
    hold(c, root);
    c->root[thread] = root;
    drop(c, old, c->top);
}

kolo_status_t kolo_clock_join(kolo_clocks_t *c, uint32_t thread, const kolo_stamp_t *stamp)
{
    kolo_epoch_t e = stamp->epoch;
    if (!c->nthreads || e.time == 0 || e.thread == thread) return KOLO_OK;
    /* Whoever knows this time of that thread has been told, directly or not, all that the thread knew then. */
    if (known(c, c->root[thread], e.thread) >= e.time) return KOLO_OK;
    uint32_t root = join(c, c->root[thread], stamp->root, c->top);
    if (!c->failed) set_root(c, thread, root);
    if (!c->failed && known(c, root, e.thread) < e.time) {
        root = with_time(c, root, e, c->top);
        if (!c->failed) set_root(c, thread, root);
    }
    return c->failed ? no_memory() : KOLO_OK;
}

bool kolo_clock_after(const kolo_clocks_t *c, uint32_t thread, kolo_epoch_t e)
{
    if (!c->nthreads || e.time == 0 || e.thread == thread) return true;
    return known(c, c->root[thread], e.thread) >= e.time;
}
