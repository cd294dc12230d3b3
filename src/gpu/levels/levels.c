/* SPDX-License-Identifier: Apache-2.0
 *
 * See levels.h. A collective is a few launches on the caller's stream, of which each of the three executors gets
 * some or none, so all three are told of each stream that comes. What does not divide by the lanes, short
 * collectives, messages and the collectives that are not here go through host memory as a whole.
 */
#include "base/log.h"
#include "gpu/levels/parts.h"

#include <stdio.h>
#include <stdlib.h>

#define ROOM_LEAST  1024  /* of scratch memory, for each rank: 64 elements of each, in two halves */
#define SHORT_BYTES 65536 /* below this one way through host memory is shorter than three launches */

static int64_t scratch_bytes;

static const kolo_param_t rows[] = {
    {.key = "KOLO_GPU_SCRATCH_SIZE",
     .kind = KOLO_PARAM_SIZE,
     .def = "32M",
     .min = 65536,
     .max = INT64_C(1) << 36,
     .must_agree = true,
     .help =
         "Device memory of a communicator of GPUs over several hosts, between what kernels do inside a host and "
         "what goes across, in bytes",
     .value = &scratch_bytes},
};
static const kolo_param_table_t params = {.module = "exec_levels", .rows = rows, .count = KOLO_COUNTOF(rows)};

/* Tells whether the scratch memory has room for a part of each host. */
static bool has_room(const kolo_levels_t *s, const kolo_exec_call_t *c)
{
    return c->count <= s->room_bytes / (uint64_t)s->env.hosts / c->elem;
}

/* Hosts with unequal numbers of ranks. */
static kolo_levels_fn_t uneven_of(const kolo_exec_call_t *c)
{
    switch (c->coll) {
    case KOLO_COLL_ALL_REDUCE:
        return kolo_levels_all_reduce;
    case KOLO_COLL_BROADCAST:
        return kolo_levels_broadcast;
    case KOLO_COLL_ALL_GATHER:
        return kolo_levels_all_gather_uneven;
    case KOLO_COLL_REDUCE_SCATTER:
        return kolo_levels_reduce_scatter_uneven;
    case KOLO_COLL_REDUCE:
        return kolo_levels_reduce;
    default:
        return NULL;
    }
}

static kolo_levels_fn_t even_of(const kolo_levels_t *s, const kolo_exec_call_t *c)
{
    switch (c->coll) {
    case KOLO_COLL_ALL_GATHER:
        return kolo_levels_all_gather;
    case KOLO_COLL_REDUCE_SCATTER:
        return kolo_levels_reduce_scatter;
    case KOLO_COLL_ALL_TO_ALL:
        return kolo_levels_all_to_all;
    case KOLO_COLL_GATHER:
        return has_room(s, c) ? kolo_levels_gather : NULL;
    case KOLO_COLL_SCATTER:
        return has_room(s, c) ? kolo_levels_scatter : NULL;
    default:
        return uneven_of(c);
    }
}

/* Chooses the levels of a call by what all ranks know alike. NULL: it goes through host memory as a whole. */
static kolo_levels_fn_t collective_of(const kolo_levels_t *s, const kolo_exec_call_t *c)
{
    uint64_t lanes = (uint64_t)s->lanes, bytes = c->count * c->elem;
    if (c->coll == KOLO_COLL_ALL_TO_ALL) bytes *= lanes; /* a lane carries so much from a host to another */
    if (c->kind != KOLO_EXEC_COLL || bytes < SHORT_BYTES || c->count < lanes) return NULL;
    if (kolo_coll_reduces(c->coll) && !kolo_exec_device_reduces(&c->reducer)) return NULL;
    return s->even ? even_of(s, c) : uneven_of(c);
}

/* Lists the executors that there are; returns how many. */
static int parts_of(const kolo_levels_t *s, const kolo_exec_part_t *parts[3])
{
    const kolo_exec_part_t *all[] = {&s->env.inside, &s->env.across, &s->env.whole};
    int n = 0;
    for (int i = 0; i < 3; i++)
        if (all[i]->ops) parts[n++] = all[i];
    return n;
}

/* Puts a call behind those before it, whichever executors they went to. */
static kolo_status_t follow(const kolo_levels_t *s, void *stream)
{
    const kolo_exec_part_t *parts[3];
    int n = parts_of(s, parts);
    for (int i = 0; i < n; i++) KOLO_TRY(parts[i]->ops->follow(parts[i]->state, stream));
    return KOLO_OK;
}

/* Runs a collective in levels. If a part of it was queued when it fails, the communicator has to fail, since others
 * wait in it. */
static kolo_status_t in_levels(kolo_levels_t *s, kolo_levels_fn_t collective, const kolo_exec_call_t *c)
{
    s->begun = false;
    kolo_status_t status = collective(s, c);
    if (status == KOLO_OK || status == KOLO_ERR_ABORTED || !s->begun) return status;
    return kolo_fail_prefix(KOLO_ERR_SYSTEM, "rank %d has queued a part of a collective only: ", s->env.rank);
}

static kolo_status_t check(void *state, const kolo_exec_call_t *calls, size_t n)
{
    const kolo_levels_t *s = state;
    int last = s->env.hosts - 1, ranks = s->env.first[last] + s->env.size[last];
    for (size_t i = 0; i < n; i++) KOLO_TRY(kolo_exec_check(&calls[i], s->env.rank, ranks, s->env.device));
    return kolo_exec_check_own(calls, n, s->env.rank);
}

static kolo_status_t launch(void *state, const kolo_exec_call_t *calls, size_t n)
{
    kolo_levels_t *s = state;
    KOLO_TRY(check(state, calls, n));
    for (size_t i = 0; i < n;) {
        size_t end = i;
        kolo_levels_fn_t collective = collective_of(s, &calls[i]);
        KOLO_TRY(follow(s, calls[i].stream));
        if (collective) {
            KOLO_TRY(in_levels(s, collective, &calls[i++]));
            continue;
        }
        while (end < n && !collective_of(s, &calls[end])) end++;
        KOLO_TRY(kolo_levels_launch_whole(s, &calls[i], end - i));
        i = end;
    }
    return KOLO_OK;
}

static kolo_status_t poll(void *state)
{
    const kolo_exec_part_t *parts[3];
    int n = parts_of(state, parts);
    for (int i = 0; i < n; i++) KOLO_TRY(parts[i]->ops->poll(parts[i]->state));
    return KOLO_OK;
}

static void cancel(void *state)
{
    const kolo_exec_part_t *parts[3];
    int n = parts_of(state, parts);
    for (int i = 0; i < n; i++) parts[i]->ops->cancel(parts[i]->state);
}

static bool gave_up(const void *state)
{
    const kolo_exec_part_t *parts[3];
    int n = parts_of(state, parts);
    for (int i = 0; i < n; i++)
        if (parts[i]->ops->gave_up(parts[i]->state)) return true;
    return false;
}

static void awaited(void *state, char *buf, size_t bytes)
{
    const kolo_levels_t *s = state;
    s->env.inside.ops->awaited(s->env.inside.state, buf, bytes);
}

static size_t memory(const void *state)
{
    const kolo_levels_t *s = state;
    return s->scratch.bytes + s->env.inside.ops->memory(s->env.inside.state);
}

static void close_state(void *state)
{
    kolo_levels_t *s = state;
    const kolo_exec_part_t *parts[3];
    if (!s) return;
    int n = parts_of(s, parts);
    s->env.inside.ops->adopt(s->env.inside.state, &s->scratch);
    for (int i = 0; i < n; i++) parts[i]->ops->close(parts[i]->state);
    free(s);
}

int kolo_levels_lanes(const int *size, int hosts)
{
    int least = size[0];
    for (int h = 1; h < hosts; h++) least = KOLO_MIN(least, size[h]);
    return least;
}

kolo_status_t kolo_levels_make(const kolo_levels_env_t *env, void **state)
{
    kolo_levels_t *s = calloc(1, sizeof *s);
    if (!s) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a GPU communicator");
    s->env = *env;
    s->host = kolo_levels_host_of(s, env->rank);
    s->local = env->rank - env->first[s->host];
    s->here = env->size[s->host];
    s->lanes = kolo_levels_lanes(env->size, env->hosts);
    for (int h = 0; h < env->hosts; h++) s->most = KOLO_MAX(s->most, env->size[h]);
    s->even = s->most == s->lanes;
    int last = env->hosts - 1;
    size_t least = (size_t)(env->first[last] + env->size[last]) * ROOM_LEAST;
    s->room_bytes = KOLO_MAX((size_t)scratch_bytes, least);
    kolo_status_t status = kolo_mem_cuda.make(env->device, s->room_bytes, &s->scratch);
    if (status != KOLO_OK) {
        free(s);
        return status;
    }
    *state = s;
    kolo_info("exec", "rank %d: host %d of %d, place %d of %d, %d lanes, %.1f MB of scratch memory", env->rank,
              s->host, env->hosts, s->local, s->here, s->lanes, (double)s->scratch.bytes / (1 << 20));
    return KOLO_OK;
}

static kolo_status_t open_state(const kolo_exec_env_t *env, void **state)
{
    return env->levels(env->levels_arg, env, state);
}

/* Serves several hosts, numbered host by host, whose GPUs reach each other inside each host; one has two ranks or
 * more. */
static bool serves(const kolo_exec_gpus_t *gpus, char why[KOLO_EXEC_WHY])
{
    const char *lacks = NULL;
    for (int r = 1; r < gpus->nranks; r++)
        if (gpus->host_of[r] < gpus->host_of[r - 1]) lacks = "ranks are not numbered host by host";
    if (gpus->one_fold) lacks = "it sums inside each host first (config.order is KOLO_ORDER_RANKS)";
    if (gpus->hosts == 1) lacks = "there is one host";
    if (gpus->hosts == gpus->nranks) lacks = "no host has two ranks";
    if (!lacks && !gpus->inside) lacks = "there is a host whose GPUs do not reach each other";
    if (!lacks && *gpus->crowded) lacks = gpus->crowded;
    snprintf(why, KOLO_EXEC_WHY, "%s", lacks ? lacks : gpus->reach);
    return lacks == NULL;
}

const kolo_exec_ops_t kolo_exec_levels = {.name = "hierarchical",
                                          .needs = "GPUs that reach each other inside each of several hosts",
                                          .by_kernels = true,
                                          .by_host = true,
                                          .params = &params,
                                          .serves = serves,
                                          .open = open_state,
                                          .launch = launch,
                                          .check = check,
                                          .poll = poll,
                                          .cancel = cancel,
                                          .gave_up = gave_up,
                                          .awaited = awaited,
                                          .memory = memory,
                                          .close = close_state};
