/* SPDX-License-Identifier: Apache-2.0
 *
 * Sets of ranks as runs. See ranks.h.
 */
#include "engine/controller/ranks.h"

#include "base/clock.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Returns the first run that ends behind `rank`; count: none. Mostly ranks come in their order. */
static int find(const kolo_ranks_t *ranks, int rank)
{
    int low = 0, high = ranks->count;
    if (high == 0 || ranks->runs[high - 1].end <= rank) return high;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (ranks->runs[mid].end <= rank)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

int kolo_ranks_next(const kolo_ranks_t *ranks, int from)
{
    int at = find(ranks, from);
    return at == ranks->count ? INT_MAX : KOLO_MAX(from, ranks->runs[at].first);
}

static kolo_status_t make_room(kolo_ranks_t *ranks)
{
    if (ranks->count < ranks->room) return KOLO_OK;
    int room = ranks->room ? 2 * ranks->room : 2;
    kolo_ranks_run_t *runs = realloc(ranks->runs, (size_t)room * sizeof *runs);
    if (!runs) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for a set of %d ranks", ranks->total);
    ranks->runs = runs;
    ranks->room = room;
    return KOLO_OK;
}

static void take_out(kolo_ranks_t *ranks, int at)
{
    memmove(&ranks->runs[at], &ranks->runs[at + 1], (size_t)(ranks->count - at - 1) * sizeof *ranks->runs);
    ranks->count--;
}

kolo_status_t kolo_ranks_add(kolo_ranks_t *ranks, kolo_ranks_run_t run)
{
    int at = find(ranks, run.first);
    kolo_ranks_run_t *before = at > 0 ? &ranks->runs[at - 1] : NULL;
    kolo_ranks_run_t *behind = at < ranks->count ? &ranks->runs[at] : NULL;
    bool joins_before = before && before->end == run.first && before->rows == run.rows;
    bool joins_behind = behind && behind->first == run.end && behind->rows == run.rows;
    if (!joins_before && !joins_behind) {
        KOLO_TRY(make_room(ranks));
        memmove(&ranks->runs[at + 1], &ranks->runs[at], (size_t)(ranks->count - at) * sizeof *ranks->runs);
        ranks->runs[at] = run;
        ranks->count++;
    } else if (joins_before) {
        before->end = joins_behind ? behind->end : run.end;
        if (joins_behind) take_out(ranks, at);
    } else {
        behind->first = run.first;
    }
    ranks->total += run.end - run.first;
    return KOLO_OK;
}

void kolo_ranks_fini(kolo_ranks_t *ranks)
{
    free(ranks->runs);
    *ranks = (kolo_ranks_t){NULL, 0, 0, 0};
}
