/* SPDX-License-Identifier: Apache-2.0
 *
 * The backend that gives moves of device memory to a real NCCL (use_nccl.h), on one communicator of it per process
 * set.
 */
#include "engine/backends/use_nccl.h"

#include <stdlib.h>

static kolo_status_t meet(kolo_set_t *s, void *state, void **here)
{
    int *ranks = malloc((size_t)s->size * sizeof *ranks);
    kolo_nccl_t *c = NULL;
    if (!ranks) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %d ranks", s->size);
    for (int r = 0; r < s->size; r++) ranks[r] = r;
    kolo_status_t status = kolo_engine_nccl_meet(s, state, ranks, s->size, s->rank, &c);
    free(ranks);
    if (status == KOLO_OK) *here = c;
    return status;
}

static bool takes(const kolo_set_t *s, const kolo_need_t *need)
{
    (void)s;
    return kolo_engine_nccl_knows(need);
}

static kolo_status_t run(kolo_set_t *s, void *here, const kolo_move_t *move)
{
    (void)s;
    return kolo_engine_nccl_run(here, move);
}

const kolo_backend_t kolo_backend_nccl = {.name = "nccl",
                                          .open = kolo_engine_nccl_open_backend,
                                          .close = kolo_engine_nccl_close_backend,
                                          .meet = meet,
                                          .leave = kolo_engine_nccl_leave,
                                          .free = kolo_engine_nccl_free,
                                          .takes = takes,
                                          .run = run};
