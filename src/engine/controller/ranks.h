/* SPDX-License-Identifier: Apache-2.0
 *
 * Sets of ranks as runs, for what nearly all ranks have in common: all of 10,000 ranks are one run. Each run
 * carries a number of rows, because the ranks that gather one tensor may have different first dimensions.
 */
#ifndef KOLO_ENGINE_CONTROLLER_RANKS_H
#define KOLO_ENGINE_CONTROLLER_RANKS_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int first, end; /* ranks [first, end) */
    int64_t rows;   /* of each of them; 0 where that does not matter */
} kolo_ranks_run_t;

typedef struct {
    kolo_ranks_run_t *runs; /* ascending, none empty; neighbours that touch have other rows */
    int count, room, total; /* total: ranks of all runs */
} kolo_ranks_t;

/* Returns the lowest rank of it that is at least `from`; INT_MAX: none. */
int kolo_ranks_next(const kolo_ranks_t *ranks, int from);
/* Adds a run, of which none may be in it already. Fails only for memory. */
kolo_status_t kolo_ranks_add(kolo_ranks_t *ranks, kolo_ranks_run_t run);
void kolo_ranks_fini(kolo_ranks_t *ranks);

#endif
