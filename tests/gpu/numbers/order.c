/* SPDX-License-Identifier: Apache-2.0
 *
 * config.order = KOLO_ORDER_RANKS on GPUs: random reductions of parts of one vector have the bits that a loop over
 * ranks gives on a CPU, which coll_order asks of CPU communicators. See conform.h.
 */
#include "coll/ordered.h"
#include "conform.h"

#include <string.h>

#define ROOM ((size_t)ORDERED_MOST * ORDERED_BYTES)

/* The sources begin at 0, the destinations behind them and `skew` bytes. */
static bool one(kit_team_t *t, const ordered_case_t *c, size_t skew)
{
    bool good = true;
    int n = t->ranks[0].nranks;
    for (int i = 0; i < t->n; i++) {
        kit_rank_t *r = &t->ranks[i];
        ordered_fill(c, r->rank, r->image);
        good = kit_upload(r, 0, ROOM, r->streams[0]) && good;
    }
    if (t->n > 1) good = KIT_OK(kolo_group_start()) && good;
    for (int i = 0; i < t->n; i++) {
        kit_rank_t *r = &t->ranks[i];
        good = KIT_OK(ordered_call(c, n, r->buffer, r->buffer + ROOM + skew, r->comm, r->streams[0])) && good;
    }
    if (t->n > 1) good = KIT_OK(kolo_group_end()) && good;
    for (int i = 0; i < t->n && good; i++) {
        kit_rank_t *r = &t->ranks[i];
        good = kit_download(r, 0, 2 * ROOM + skew, r->streams[0]) && kit_sync(r, r->streams[0]) &&
               ordered_check(c, r->rank, n, r->back, r->back + ROOM + skew);
    }
    return good;
}

bool conform_order(kit_team_t *t)
{
    uint64_t seed = t->options->seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
    bool good = true;
    for (uint64_t k = 0; k < t->options->order; k++) {
        ordered_case_t c = ordered_make(&seed, t->ranks[0].nranks);
        size_t skew = ordered_draw(&seed) % 4 ? 0 : 8; /* buffers that do not begin alike go other ways */
        good = one(t, &c, skew) && good;               /* all ranks make all calls */
    }
    return kit_case_end(t, good, "sums in the order of ranks have the bits of a loop over them");
}
