/* SPDX-License-Identifier: Apache-2.0
 *
 * Rank and size from the variables of launchers. One row per launcher lists the variables that must be set. An
 * incomplete set, or two contradicting ones, is an error: a rank that wrongly believes to be alone would make the
 * others wait.
 */
#include "job/job.h"

#include "base/params.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"auto", "kolorun", "torchrun", "openmpi", "mpich", "slurm", "none"};

#define AT(field) offsetof(kolo_job_values_t, field)
#define NOTHING   SIZE_MAX
typedef struct {
    int launcher;
    size_t rank, size, also; /* all must be set */
    size_t local_rank, local_size;
} source_t;

/* torchrun and mpirun may have been started by srun, once a host, so what they tell comes first. srun, too,
 * sets PMI_RANK for an MPI that it starts, but not how many ranks this host has; who sets only these two is
 * asked last. */
static const source_t sources[] = {
    {KOLO_JOB_KOLORUN, AT(rank), AT(size), NOTHING, AT(local_rank), AT(local_size)},
    {KOLO_JOB_TORCHRUN, AT(torch_rank), AT(torch_size), AT(torch_address), AT(torch_local_rank),
     AT(torch_local_size)},
    {KOLO_JOB_OPENMPI, AT(ompi_rank), AT(ompi_size), NOTHING, AT(ompi_local_rank), AT(ompi_local_size)},
    {KOLO_JOB_MPICH, AT(pmi_rank), AT(pmi_size), AT(mpi_local_size), AT(mpi_local_rank), AT(mpi_local_size)},
    {KOLO_JOB_SLURM, AT(slurm_rank), AT(slurm_size), NOTHING, AT(slurm_local_rank), NOTHING},
    {KOLO_JOB_MPICH, AT(pmi_rank), AT(pmi_size), NOTHING, AT(mpi_local_rank), NOTHING},
};

/* Returns the text; NULL: not set. */
static const char *text_at(const kolo_job_values_t *v, size_t at)
{
    const char *text = NULL;
    if (at != NOTHING) memcpy(&text, (const char *)v + at, sizeof text);
    return kolo_job_is_set(text) ? text : NULL;
}

kolo_status_t kolo_job_number(const char *name, const char *text, int min, int *value)
{
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || v < min || v > INT32_MAX)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "job: %s=\"%.64s\" is not a whole number from %d on", name,
                         text, min);
    *value = (int)v;
    return KOLO_OK;
}

static kolo_status_t number_at(const kolo_job_values_t *v, size_t at, int min, int *value)
{
    const char *text = text_at(v, at);
    return text ? kolo_job_number(kolo_job_variable(at), text, min, value) : KOLO_OK;
}

/* ---- whose variables are there ---- */

static bool is_whole(const source_t *s, const kolo_job_values_t *v)
{
    return text_at(v, s->rank) && text_at(v, s->size) && (s->also == NOTHING || text_at(v, s->also));
}

/* Tells whether all but one are set. A batch script of Slurm has SLURM_PROCID, too, and is no task of a step. */
static bool is_half(const source_t *s, const kolo_job_values_t *v)
{
    int needed = s->also == NOTHING ? 2 : 3;
    int set = (text_at(v, s->rank) != NULL) + (text_at(v, s->size) != NULL) + (text_at(v, s->also) != NULL);
    return set == needed - 1 && s->launcher != KOLO_JOB_SLURM;
}

static kolo_status_t fail_half(const source_t *s, const kolo_job_values_t *v)
{
    const size_t needed[] = {s->rank, s->size, s->also};
    const char *there = "", *missing = "";
    for (int i = 2; i >= 0; i--) {
        if (needed[i] == NOTHING) continue;
        if (text_at(v, needed[i]))
            there = kolo_job_variable(needed[i]);
        else
            missing = kolo_job_variable(needed[i]);
    }
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                     "job: %s is set but %s is not, and %s sets both: set or unset both, or set KOLO_JOB_LAUNCHER "
                     "to the launcher of this process (none: no launcher)",
                     there, missing, names[s->launcher]);
}

/* Finds the launcher; *found: NULL when no launcher's variables are there. */
static kolo_status_t find(const kolo_job_values_t *v, const source_t **found)
{
    const source_t *half = NULL;
    *found = NULL;
    for (size_t i = 0; i < KOLO_COUNTOF(sources) && !*found; i++) {
        const source_t *s = &sources[i];
        if (v->launcher != KOLO_JOB_AUTO && v->launcher != s->launcher) continue;
        if (is_whole(s, v)) *found = s;
        if (is_half(s, v) && !half) half = s;
        if (half && half->launcher == KOLO_JOB_KOLORUN) break; /* nobody else's variables are named like that */
    }
    if (*found) return KOLO_OK;
    if (half) return fail_half(half, v);
    if (v->launcher == KOLO_JOB_AUTO || v->launcher == KOLO_JOB_NONE) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                     "job: KOLO_JOB_LAUNCHER is %s, but this process has none of its variables",
                     names[v->launcher]);
}

/* ---- what they say ---- */

/* Returns how many ranks host number `node` has: "2(x3),1" is two on each of the first three, then one. 0: not to
 * be read. */
static int slurm_local_size(const char *text, int node)
{
    while (*text) {
        char *end;
        long tasks = strtol(text, &end, 10), hosts = 1;
        if (end == text || tasks < 1 || tasks > INT32_MAX) return 0;
        if (strncmp(end, "(x", 2) == 0) {
            hosts = strtol(end + 2, &end, 10);
            if (*end != ')' || hosts < 1 || hosts > INT32_MAX) return 0;
            end++;
        }
        if (node < hosts) return (int)tasks;
        node -= (int)hosts;
        if (*end != ',') return 0;
        text = end + 1;
    }
    return 0;
}

static kolo_status_t read_place(const source_t *s, const kolo_job_values_t *v, kolo_job_place_t *p)
{
    kolo_job_place_t place = {.local_rank = -1, .launcher = names[s->launcher]};
    KOLO_TRY(number_at(v, s->rank, 0, &place.rank));
    KOLO_TRY(number_at(v, s->size, 1, &place.nranks));
    KOLO_TRY(number_at(v, s->local_rank, 0, &place.local_rank));
    KOLO_TRY(number_at(v, s->local_size, 1, &place.local_size));
    if (s->launcher == KOLO_JOB_SLURM && kolo_job_is_set(v->slurm_node) && kolo_job_is_set(v->slurm_tasks)) {
        int node = 0;
        KOLO_TRY(number_at(v, AT(slurm_node), 0, &node));
        place.local_size = slurm_local_size(v->slurm_tasks, node);
    }
    if (place.rank >= place.nranks)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "job: rank %d of %d is out of range (%s and %s)", place.rank,
                         place.nranks, kolo_job_variable(s->rank), kolo_job_variable(s->size));
    if (place.local_size > place.nranks || place.local_rank >= place.nranks ||
        (place.local_size > 0 && place.local_rank >= place.local_size))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "job: rank %d of %d cannot be rank %d of %d on this host, as %s and the like say",
                         place.rank, place.nranks, place.local_rank, place.local_size,
                         kolo_job_variable(s->local_rank));
    *p = place;
    return KOLO_OK;
}

/* Refuses torchrun's variables beside those of another launcher, unless they were set by who has started more ranks
 * inside a rank of it than that had. Otherwise they are left from somewhere, and all ranks would be the same one.
 * */
static kolo_status_t check_second(const source_t *s, const kolo_job_values_t *v, const kolo_job_place_t *p)
{
    kolo_job_place_t other;
    if (v->launcher != KOLO_JOB_AUTO || s->launcher != KOLO_JOB_TORCHRUN || kolo_job_is_set(v->torch_run))
        return KOLO_OK;
    while (++s < sources + KOLO_COUNTOF(sources)) {
        if (!is_whole(s, v)) continue;
        KOLO_TRY(read_place(s, v, &other));
        if (p->nranks > other.nranks || (p->nranks == other.nranks && p->rank == other.rank)) return KOLO_OK;
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "job: RANK and WORLD_SIZE say rank %d of %d, but %s and %s rank %d of %d: unset two of "
                         "them, or set KOLO_JOB_LAUNCHER to torchrun or %s",
                         p->rank, p->nranks, kolo_job_variable(s->rank), kolo_job_variable(s->size), other.rank,
                         other.nranks, other.launcher);
    }
    return KOLO_OK;
}

/* Fails, since each worker would otherwise be rank 0 of a job of its own, and all of them would end well. */
static kolo_status_t fail_elastic(const kolo_job_values_t *v)
{
    return kolo_fail(
        KOLO_ERR_INVALID_USAGE,
        "job: this process is worker %.32s of an elastic job (kolorun --min), whose ranks come and go: "
        "call kolo_state_run() (kolo/state.h) and use the communicator that it hands to your function",
        v->worker);
}

kolo_status_t kolo_job_place_from(const kolo_job_values_t *v, kolo_job_place_t *place)
{
    const source_t *s;
    kolo_job_place_t p;
    KOLO_TRY(find(v, &s));
    if (!s && v->launcher == KOLO_JOB_AUTO && kolo_job_is_set(v->worker)) return fail_elastic(v);
    if (!s) {
        *place = (kolo_job_place_t){.nranks = 1, .local_size = 1, .launcher = "none"};
        return KOLO_OK;
    }
    KOLO_TRY(read_place(s, v, &p));
    KOLO_TRY(check_second(s, v, &p));
    *place = p;
    return KOLO_OK;
}
