/* SPDX-License-Identifier: Apache-2.0
 *
 * The backends that move in levels (levels.h), each a choice of groups: inside the hosts, and across.
 */
#include "engine/backends/levels.h"
#include "engine/backends/use_mpi.h"
#include "engine/backends/use_nccl.h"

#include <stdio.h>

static const kolo_backend_levels_t kolo_kolo = {.inside = &kolo_group_kolo, .across = &kolo_group_kolo};
static const kolo_backend_levels_t mpi_mpi = {
    .inside = &kolo_group_mpi, .across = &kolo_group_mpi, .apart = true, .no_average = true};
static const kolo_backend_levels_t nccl_kolo = {
    .inside = &kolo_group_nccl, .across = &kolo_group_kolo, .on_gpus = true};
static const kolo_backend_levels_t nccl_mpi = {
    .inside = &kolo_group_nccl, .across = &kolo_group_mpi_staged, .on_gpus = true};

static bool takes_host(const kolo_set_t *s, const kolo_backend_levels_t *levels, const kolo_need_t *need)
{
    return need->memory == KOLO_MEMORY_HOST && kolo_backend_levels_have_some(s) &&
           kolo_backend_levels_fit(s, levels, need);
}

static bool takes_gpus(const kolo_set_t *s, const kolo_backend_levels_t *levels, const kolo_need_t *need)
{
    return kolo_engine_nccl_knows(need) && kolo_backend_levels_fit(s, levels, need);
}

/* ---- Kolo ---- */

static kolo_status_t meet_kolo(kolo_set_t *s, void *state, void **here)
{
    return kolo_backend_levels_meet(s, state, &kolo_kolo, here);
}

static bool takes_kolo(const kolo_set_t *s, const kolo_need_t *need)
{
    return takes_host(s, &kolo_kolo, need);
}

const kolo_backend_t kolo_backend_hierarchical = {.name = "hierarchical",
                                                  .meet = meet_kolo,
                                                  .leave = kolo_backend_levels_leave,
                                                  .free = kolo_backend_levels_free,
                                                  .takes = takes_kolo,
                                                  .run = kolo_backend_levels_run};

/* ---- MPI ---- */

static kolo_status_t meet_mpi(kolo_set_t *s, void *state, void **here)
{
    return kolo_backend_levels_meet(s, state, &mpi_mpi, here);
}

static bool takes_mpi(const kolo_set_t *s, const kolo_need_t *need)
{
    return takes_host(s, &mpi_mpi, need);
}

const kolo_backend_t kolo_backend_mpi_levels = {.name = "mpi_hierarchical",
                                                .open = kolo_mpi_open_backend,
                                                .close = kolo_mpi_close_backend,
                                                .meet = meet_mpi,
                                                .leave = kolo_backend_levels_leave,
                                                .free = kolo_backend_levels_free,
                                                .takes = takes_mpi,
                                                .run = kolo_backend_levels_run};

/* ---- NCCL inside, Kolo across ---- */

static kolo_status_t meet_nccl(kolo_set_t *s, void *state, void **here)
{
    return kolo_backend_levels_meet(s, state, &nccl_kolo, here);
}

static bool takes_nccl(const kolo_set_t *s, const kolo_need_t *need)
{
    return takes_gpus(s, &nccl_kolo, need);
}

const kolo_backend_t kolo_backend_nccl_levels = {.name = "nccl_hierarchical",
                                                 .open = kolo_engine_nccl_open_backend,
                                                 .close = kolo_engine_nccl_close_backend,
                                                 .meet = meet_nccl,
                                                 .leave = kolo_backend_levels_leave,
                                                 .free = kolo_backend_levels_free,
                                                 .takes = takes_nccl,
                                                 .status = kolo_backend_levels_status,
                                                 .run = kolo_backend_levels_run};

/* ---- NCCL inside, MPI across ---- */

/* Opens both. MPI's part is collective over the job, so it comes also where there is no NCCL. */
static kolo_status_t open_both(struct kolo_tensor_engine *e, void **state)
{
    char why[KOLO_ERROR_TEXT_BYTES];
    kolo_status_t nccl = kolo_engine_nccl_open_backend(e, state);
    snprintf(why, sizeof why, "%s", kolo_error_text());
    kolo_status_t mpi = kolo_mpi_open(e);
    if (nccl == KOLO_OK && mpi == KOLO_OK) return KOLO_OK;
    if (mpi == KOLO_OK) kolo_mpi_close(e);
    if (nccl != KOLO_OK) return kolo_fail(nccl, "%s", why);
    kolo_engine_nccl_close_backend(e, *state);
    *state = NULL;
    return mpi;
}

static void close_both(struct kolo_tensor_engine *e, void *state)
{
    kolo_engine_nccl_close_backend(e, state);
    kolo_mpi_close(e);
}

static kolo_status_t meet_both(kolo_set_t *s, void *state, void **here)
{
    return kolo_backend_levels_meet(s, state, &nccl_mpi, here);
}

static bool takes_both(const kolo_set_t *s, const kolo_need_t *need)
{
    return takes_gpus(s, &nccl_mpi, need);
}

const kolo_backend_t kolo_backend_nccl_mpi = {.name = "nccl_mpi_hierarchical",
                                              .open = open_both,
                                              .close = close_both,
                                              .meet = meet_both,
                                              .leave = kolo_backend_levels_leave,
                                              .free = kolo_backend_levels_free,
                                              .takes = takes_both,
                                              .status = kolo_backend_levels_status,
                                              .run = kolo_backend_levels_run};
