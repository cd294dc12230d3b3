/* SPDX-License-Identifier: Apache-2.0
 *
 * See levels.h. The three executors order what they get by the caller's stream, so a collective is a few launches
 * on it. What does not divide by the GPUs of a host, short collectives, messages and the collectives that are not
 * here go through host memory as a whole.
 */
#include "exec/levels/levels.h"
#include "base/log.h"
#include "mem/mem.h"

#include <stdio.h>
#include <stdlib.h>

#define SCRATCH_BYTES ((size_t)32 << 20)
#define SHORT_BYTES   65536 /* below this one way through host memory is shorter than three launches */

typedef struct {
    kolo_levels_env_t env;
    int host, local;
    kolo_mem_t scratch; /* of reduce_scatter: what this host's ranks have for each host */
} levels_t;

static kolo_status_t launch_on(const kolo_exec_part_t *part, const kolo_exec_call_t *call)
{
    return part->ops->launch(part->state, call, 1);
}

static kolo_status_t launch_inside(const levels_t *s, const kolo_exec_call_t *c)
{
    kolo_exec_call_t call = *c;
    call.number = s->env.enter(s->env.enter_arg, c->number, call.word);
    return launch_on(&s->env.inside, &call);
}

/* Inside a host inputs are scaled, once, where they are reduced; between hosts results are divided. */
static kolo_exec_call_t inside(const kolo_exec_call_t *c, kolo_coll_t coll)
{
    kolo_exec_call_t call = *c;
    call.coll = coll;
    call.reducer.post_div = 0;
    if (!kolo_coll_reduces(coll)) call.reducer.pre = call.reducer.pre_own = false;
    return call;
}

static kolo_exec_call_t across(const kolo_exec_call_t *c, kolo_coll_t coll)
{
    kolo_exec_call_t call = *c;
    call.coll = coll;
    call.reducer.pre = call.reducer.pre_own = false;
    call.op = call.reducer.post_div > 1 ? KOLO_OP_BUILTIN_COUNT : call.reducer.op; /* not the average of averages */
    return call;
}

static char *at(const void *p, uint64_t elements, size_t elem)
{
    return (char *)(uintptr_t)p + elements * elem; /* NOLINT: device memory */
}

/* What does not divide evenly. */
static kolo_status_t launch_rest(const levels_t *s, const kolo_exec_call_t *c, uint64_t done)
{
    kolo_exec_call_t rest = *c;
    if (done == c->count) return KOLO_OK;
    rest.count = c->count - done;
    if (c->src) rest.src = at(c->src, done, c->elem);
    if (c->dst) rest.dst = at(c->dst, done, c->elem);
    return launch_on(&s->env.whole, &rest);
}

/* The parts of dst go to all ranks of this host. */
static kolo_status_t gather_parts(const levels_t *s, const kolo_exec_call_t *c, uint64_t part)
{
    kolo_exec_call_t gather = inside(c, KOLO_COLL_ALL_GATHER);
    gather.src = at(c->dst, (uint64_t)s->local * part, c->elem);
    gather.count = part;
    return launch_inside(s, &gather);
}

static kolo_status_t all_reduce(const levels_t *s, const kolo_exec_call_t *c)
{
    uint64_t part = c->count / (uint64_t)s->env.per_host;
    char *mine = at(c->dst, (uint64_t)s->local * part, c->elem);
    kolo_exec_call_t scatter = inside(c, KOLO_COLL_REDUCE_SCATTER), reduce = across(c, KOLO_COLL_ALL_REDUCE);
    scatter.count = reduce.count = part;
    scatter.dst = reduce.dst = mine;
    reduce.src = mine;
    KOLO_TRY(launch_inside(s, &scatter));
    KOLO_TRY(launch_on(&s->env.across, &reduce));
    KOLO_TRY(gather_parts(s, c, part));
    return launch_rest(s, c, part * (uint64_t)s->env.per_host);
}

static kolo_status_t broadcast(const levels_t *s, const kolo_exec_call_t *c)
{
    uint64_t part = c->count / (uint64_t)s->env.per_host;
    char *mine = at(c->dst, (uint64_t)s->local * part, c->elem);
    kolo_exec_call_t scatter = inside(c, KOLO_COLL_SCATTER), spread = across(c, KOLO_COLL_BROADCAST);
    scatter.count = spread.count = part;
    scatter.root = c->root % s->env.per_host;
    spread.root = c->root / s->env.per_host;
    scatter.dst = spread.dst = mine;
    spread.src = spread.root == s->host ? mine : NULL;
    if (spread.root == s->host) KOLO_TRY(launch_inside(s, &scatter));
    KOLO_TRY(launch_on(&s->env.across, &spread));
    KOLO_TRY(gather_parts(s, c, part));
    return launch_rest(s, c, part * (uint64_t)s->env.per_host);
}

/* Each rank gets what its lane has, then the ranks of a host exchange it, host by host. */
static kolo_status_t all_gather(const levels_t *s, const kolo_exec_call_t *c)
{
    uint64_t n = (uint64_t)s->env.per_host, me = (uint64_t)s->local;
    kolo_exec_call_t lane = across(c, KOLO_COLL_ALL_GATHER), gather = inside(c, KOLO_COLL_ALL_GATHER);
    lane.dst = at(c->dst, me * c->count, c->elem);
    lane.dst_stride = n * c->count * c->elem;
    KOLO_TRY(launch_on(&s->env.across, &lane));
    for (uint64_t h = 0; h < (uint64_t)s->env.hosts; h++) {
        gather.dst = at(c->dst, h * n * c->count, c->elem);
        gather.src = at(gather.dst, me * c->count, c->elem);
        KOLO_TRY(launch_inside(s, &gather));
    }
    return KOLO_OK;
}

/* What the ranks of this host have for this rank's place on each host is reduced to scratch memory, then over the
 * lane. As much at a time as there is scratch memory. */
static kolo_status_t reduce_scatter(const levels_t *s, const kolo_exec_call_t *c)
{
    uint64_t n = (uint64_t)s->env.per_host, hosts = (uint64_t)s->env.hosts;
    uint64_t most = s->scratch.bytes / hosts / c->elem / 64 * 64;
    for (uint64_t done = 0; done < c->count; done += most) {
        kolo_exec_call_t scatter = inside(c, KOLO_COLL_REDUCE_SCATTER), lane = across(c, KOLO_COLL_REDUCE_SCATTER);
        scatter.count = lane.count = c->count - done < most ? c->count - done : most;
        scatter.src_stride = c->count * c->elem;
        for (uint64_t h = 0; h < hosts; h++) {
            scatter.src = at(c->src, h * n * c->count + done, c->elem);
            scatter.dst = at(s->scratch.address, h * scatter.count, c->elem);
            KOLO_TRY(launch_inside(s, &scatter));
        }
        lane.src = s->scratch.address;
        lane.dst = at(c->dst, done, c->elem);
        KOLO_TRY(launch_on(&s->env.across, &lane));
    }
    return KOLO_OK;
}

/* Each rank of a host gets the host's sum of a part, the lanes take the parts to the root's host, and there the
 * root gathers them. As much at a time as there is scratch memory. */
static kolo_status_t reduce(const levels_t *s, const kolo_exec_call_t *c)
{
    uint64_t n = (uint64_t)s->env.per_host, most = s->scratch.bytes / c->elem / 64 * 64;
    uint64_t whole = c->count / n * n;
    for (uint64_t done = 0; done < whole;) {
        uint64_t part = KOLO_MIN((whole - done) / n, most);
        kolo_exec_call_t scatter = inside(c, KOLO_COLL_REDUCE_SCATTER), lane = across(c, KOLO_COLL_REDUCE);
        kolo_exec_call_t gather = inside(c, KOLO_COLL_GATHER);
        scatter.count = lane.count = gather.count = part;
        scatter.src = at(c->src, done, c->elem);
        scatter.dst = s->scratch.address;
        lane.src = gather.src = s->scratch.address;
        lane.root = c->root / s->env.per_host;
        lane.dst = lane.root == s->host ? s->scratch.address : NULL;
        gather.root = c->root % s->env.per_host;
        gather.dst = c->root == s->env.rank ? at(c->dst, done, c->elem) : NULL;
        KOLO_TRY(launch_inside(s, &scatter));
        KOLO_TRY(launch_on(&s->env.across, &lane));
        if (lane.root == s->host) KOLO_TRY(launch_inside(s, &gather));
        done += part * n;
    }
    return launch_rest(s, c, whole);
}

/* What the hosts' ranks have comes over their lanes to the root's host, so all GPUs there take a share, and from
 * there to the root, host by host. */
static kolo_status_t gather(const levels_t *s, const kolo_exec_call_t *c)
{
    uint64_t n = (uint64_t)s->env.per_host;
    kolo_exec_call_t lane = across(c, KOLO_COLL_GATHER), near = inside(c, KOLO_COLL_GATHER);
    lane.root = c->root / s->env.per_host;
    lane.dst = lane.root == s->host ? s->scratch.address : NULL;
    KOLO_TRY(launch_on(&s->env.across, &lane));
    near.root = c->root % s->env.per_host;
    for (uint64_t h = 0; h < (uint64_t)s->env.hosts && lane.root == s->host; h++) {
        near.src = at(s->scratch.address, h * c->count, c->elem);
        near.dst = c->root == s->env.rank ? at(c->dst, h * n * c->count, c->elem) : NULL;
        KOLO_TRY(launch_inside(s, &near));
    }
    return KOLO_OK;
}

/* The other way round. */
static kolo_status_t scatter(const levels_t *s, const kolo_exec_call_t *c)
{
    uint64_t n = (uint64_t)s->env.per_host;
    kolo_exec_call_t lane = across(c, KOLO_COLL_SCATTER), near = inside(c, KOLO_COLL_SCATTER);
    lane.root = c->root / s->env.per_host;
    near.root = c->root % s->env.per_host;
    for (uint64_t h = 0; h < (uint64_t)s->env.hosts && lane.root == s->host; h++) {
        near.src = c->root == s->env.rank ? at(c->src, h * n * c->count, c->elem) : NULL;
        near.dst = at(s->scratch.address, h * c->count, c->elem);
        KOLO_TRY(launch_inside(s, &near));
    }
    lane.src = lane.root == s->host ? s->scratch.address : NULL;
    return launch_on(&s->env.across, &lane);
}

/* ---- the executor ---- */

typedef kolo_status_t (*collective_fn_t)(const levels_t *s, const kolo_exec_call_t *c);

/* The scratch memory has a part of each host. */
static bool has_room(const levels_t *s, const kolo_exec_call_t *c)
{
    return c->count <= s->scratch.bytes / (uint64_t)s->env.hosts / c->elem;
}

static collective_fn_t collective_of(const levels_t *s, const kolo_exec_call_t *c)
{
    if (c->kind != KOLO_EXEC_COLL || c->count * c->elem < SHORT_BYTES) return NULL;
    if (kolo_coll_reduces(c->coll) && !kolo_exec_device_reduces(&c->reducer)) return NULL;
    if (c->count < (uint64_t)s->env.per_host) return NULL;
    switch (c->coll) {
    case KOLO_COLL_ALL_REDUCE:
        return all_reduce;
    case KOLO_COLL_BROADCAST:
        return broadcast;
    case KOLO_COLL_ALL_GATHER:
        return all_gather;
    case KOLO_COLL_REDUCE_SCATTER:
        return reduce_scatter;
    case KOLO_COLL_REDUCE:
        return reduce;
    case KOLO_COLL_GATHER:
        return has_room(s, c) ? gather : NULL;
    case KOLO_COLL_SCATTER:
        return has_room(s, c) ? scatter : NULL;
    default:
        return NULL;
    }
}

static kolo_status_t launch(void *state, const kolo_exec_call_t *calls, size_t n)
{
    const levels_t *s = state;
    int ranks = s->env.hosts * s->env.per_host;
    for (size_t i = 0; i < n; i++) KOLO_TRY(kolo_exec_check(&calls[i], s->env.rank, ranks, s->env.device));
    for (size_t i = 0; i < n;) {
        size_t end = i;
        collective_fn_t collective = collective_of(s, &calls[i]);
        if (collective) {
            KOLO_TRY(collective(s, &calls[i++]));
            continue;
        }
        while (end < n && !collective_of(s, &calls[end])) end++;
        KOLO_TRY(s->env.whole.ops->launch(s->env.whole.state, &calls[i], end - i));
        i = end;
    }
    return KOLO_OK;
}

static kolo_status_t poll(void *state)
{
    const levels_t *s = state;
    const kolo_exec_part_t *parts[] = {&s->env.inside, &s->env.across, &s->env.whole};
    for (int i = 0; i < 3; i++) KOLO_TRY(parts[i]->ops->poll(parts[i]->state));
    return KOLO_OK;
}

static void cancel(void *state)
{
    const levels_t *s = state;
    const kolo_exec_part_t *parts[] = {&s->env.inside, &s->env.across, &s->env.whole};
    for (int i = 0; i < 3; i++) parts[i]->ops->cancel(parts[i]->state);
}

static void awaited(void *state, char *buf, size_t bytes)
{
    const levels_t *s = state;
    s->env.inside.ops->awaited(s->env.inside.state, buf, bytes);
}

static size_t memory(const void *state)
{
    const levels_t *s = state;
    return s->scratch.bytes + s->env.inside.ops->memory(s->env.inside.state);
}

static void close_state(void *state)
{
    levels_t *s = state;
    if (!s) return;
    const kolo_exec_part_t *parts[] = {&s->env.inside, &s->env.across, &s->env.whole};
    for (int i = 0; i < 3; i++) parts[i]->ops->close(parts[i]->state);
    kolo_mem_free(&s->scratch);
    free(s);
}

kolo_status_t kolo_levels_make(const kolo_levels_env_t *env, void **state)
{
    levels_t *s = calloc(1, sizeof *s);
    if (!s) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a GPU communicator");
    kolo_status_t status = kolo_mem_cuda.make(env->device, SCRATCH_BYTES, &s->scratch);
    if (status != KOLO_OK) {
        free(s);
        return status;
    }
    s->env = *env;
    s->host = env->rank / env->per_host;
    s->local = env->rank % env->per_host;
    *state = s;
    kolo_info("exec", "rank %d: host %d of %d, lane %d of %d, %.1f MB of scratch memory", env->rank, s->host,
              env->hosts, s->local, env->per_host, (double)s->scratch.bytes / (1 << 20));
    return KOLO_OK;
}

static kolo_status_t open_state(const kolo_exec_env_t *env, void **state)
{
    return env->levels(env->levels_arg, env, state);
}

/* Hosts with equally many ranks, numbered host by host, whose GPUs reach each other inside each host. */
static bool serves(const kolo_exec_gpus_t *gpus, char why[KOLO_EXEC_WHY])
{
    int each = gpus->nranks / gpus->hosts;
    bool even = gpus->hosts > 1 && each > 1 && each * gpus->hosts == gpus->nranks;
    for (int r = 0; r < gpus->nranks && even; r++) even = gpus->host_of[r] == r / each;
    if (!even)
        snprintf(why, KOLO_EXEC_WHY,
                 "there are not two hosts or more with equally many ranks, two or more, numbered host by host");
    else if (!gpus->inside)
        snprintf(why, KOLO_EXEC_WHY, "there is a host whose GPUs do not reach each other");
    else
        snprintf(why, KOLO_EXEC_WHY, "%s", *gpus->crowded ? gpus->crowded : gpus->reach);
    return even && gpus->inside && !*gpus->crowded;
}

const kolo_exec_ops_t kolo_exec_levels = {.name = "hierarchical",
                                          .needs = "GPUs that reach each other inside each of several hosts",
                                          .by_kernels = true,
                                          .by_host = true,
                                          .serves = serves,
                                          .open = open_state,
                                          .launch = launch,
                                          .poll = poll,
                                          .cancel = cancel,
                                          .awaited = awaited,
                                          .memory = memory,
                                          .close = close_state};
