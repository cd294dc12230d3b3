/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups. Calls of a thread are kept until the outermost end: first what makes or ends communicators (jobs.c), then
 * the operations, as one group of Kolo's. If one of the calls was wrong, nothing of the group runs. A group of
 * several communicators may so be simulated, which is: dropped.
 */
#include "nccl/layer.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    kolo_op_t op;
    ncclComm_t comm;
} op_t;

/* What has grown stays for the thread's next group. */
static _Thread_local struct {
    int depth;
    ncclResult_t error;
    kolo_nccl_call_t *calls;
    size_t count, capacity;
    op_t *ops; /* to be destroyed at the end */
    size_t nops, op_capacity;
    kolo_nccl_job_t *jobs, **last;
} group;

static pthread_key_t at_exit;
static bool at_exit_made;
static pthread_once_t at_exit_once = PTHREAD_ONCE_INIT;

static void forget(void *unused)
{
    (void)unused;
    if (group.count > 0 || group.jobs)
        kolo_warn("nccl",
                  "a thread has ended between ncclGroupStart() and ncclGroupEnd(): the calls of its group, %zu "
                  "operations%s, were never made",
                  group.count, group.jobs ? " and calls that make or end communicators" : "");
    for (size_t i = 0; i < group.count; i++) free(group.calls[i].waits);
    kolo_nccl_jobs_drop(group.jobs);
    free(group.calls);
    free(group.ops);
    memset(&group, 0, sizeof group);
}

static void make_key(void)
{
    at_exit_made = pthread_key_create(&at_exit, forget) == 0;
}

bool kolo_nccl_grouped(void)
{
    return group.depth > 0;
}

ncclResult_t kolo_nccl_noted(ncclResult_t result)
{
    if (group.depth && result != ncclSuccess && result != ncclInProgress && group.error == ncclSuccess)
        group.error = result;
    return result;
}

static ncclResult_t grow(void **array, size_t *capacity, size_t count, size_t elem)
{
    if (count < *capacity) return ncclSuccess;
    size_t n = *capacity ? *capacity * 2 : 64;
    void *p = realloc(*array, n * elem);
    if (!p) return kolo_nccl_noted(kolo_nccl_fail(ncclSystemError, "out of memory for a group of %zu calls", n));
    *array = p;
    *capacity = n;
    return ncclSuccess;
}

ncclResult_t kolo_nccl_group_destroys(kolo_op_t op, ncclComm_t comm)
{
    ncclResult_t r = grow((void **)&group.ops, &group.op_capacity, group.nops, sizeof *group.ops);
    if (r == ncclSuccess) group.ops[group.nops++] = (op_t){op, comm};
    return r;
}

static kolo_status_t record(const kolo_nccl_call_t *c)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    if (!api || c->comm->device < 0) return KOLO_OK;
    kolo_cu_result_t r = api->event_record((kolo_cu_event_t)c->event, c->stream);
    return r ? kolo_cuda_fail(r, c->comm->device, "record the event of a call's configuration") : KOLO_OK;
}

/* Runs an all-to-all in place as messages, as NCCL does, which defines no result for it. */
static kolo_status_t in_place(const kolo_nccl_call_t *c)
{
    int rank, nranks;
    if (kolo_nccl_place(c->comm, &rank, &nranks) != ncclSuccess) return KOLO_ERR_INVALID_USAGE;
    size_t elem = kolo_type_size(c->type), part = c->count * elem;
    if (c->count > PTRDIFF_MAX / elem / (size_t)nranks)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "all_to_all: count %zu is too large", c->count);
    KOLO_TRY(kolo_group_start());
    kolo_status_t status = KOLO_OK;
    for (int r = 0; r < nranks && status == KOLO_OK; r++) {
        char *at = (char *)c->dst + (size_t)r * part;
        if (r == rank) continue;
        status = kolo_send(at, c->count, c->type, r, c->comm->kolo, c->stream);
        if (status == KOLO_OK) status = kolo_recv(at, c->count, c->type, r, c->comm->kolo, c->stream);
    }
    kolo_status_t end = kolo_group_end();
    return status == KOLO_OK ? end : status;
}

static kolo_status_t run(const kolo_nccl_call_t *c)
{
    kolo_comm_t k = c->comm->kolo;
    if (c->event) KOLO_TRY(record(c));
    switch (c->kind) {
    case KOLO_NCCL_ALL_REDUCE:
        return kolo_all_reduce(c->src, c->dst, c->count, c->type, c->op, k, c->stream);
    case KOLO_NCCL_REDUCE:
        return kolo_reduce(c->src, c->dst, c->count, c->type, c->op, c->root, k, c->stream);
    case KOLO_NCCL_BROADCAST:
        return kolo_broadcast(c->src, c->dst, c->count, c->type, c->root, k, c->stream);
    case KOLO_NCCL_ALL_GATHER:
        return kolo_all_gather(c->src, c->dst, c->count, c->type, k, c->stream);
    case KOLO_NCCL_REDUCE_SCATTER:
        return kolo_reduce_scatter(c->src, c->dst, c->count, c->type, c->op, k, c->stream);
    case KOLO_NCCL_ALL_TO_ALL:
        if (c->src == c->dst) return in_place(c);
        return kolo_all_to_all(c->src, c->dst, c->count, c->type, k, c->stream);
    case KOLO_NCCL_GATHER:
        return kolo_gather(c->src, c->dst, c->count, c->type, c->root, k, c->stream);
    case KOLO_NCCL_SCATTER:
        return kolo_scatter(c->src, c->dst, c->count, c->type, c->root, k, c->stream);
    case KOLO_NCCL_SEND:
        return kolo_send(c->src, c->count, c->type, c->root, k, c->stream);
    case KOLO_NCCL_RECV:
        return kolo_recv(c->dst, c->count, c->type, c->root, k, c->stream);
    case KOLO_NCCL_PUT_SIGNAL:
        return kolo_put_signal(c->src, c->count, c->type, c->root, c->window, c->offset, c->signal, k, c->stream);
    case KOLO_NCCL_SIGNAL:
        return kolo_signal(c->root, c->signal, k, c->stream);
    case KOLO_NCCL_WAIT_SIGNAL:
        return kolo_wait_signal(c->waits, c->nwaits, k, c->stream);
    }
    return kolo_fail(KOLO_ERR_INTERNAL, "there is no call of kind %d", (int)c->kind);
}

/* Runs a call of which a profiler hears. */
static ncclResult_t run_told(kolo_nccl_call_t call)
{
    kolo_nccl_profile_call(&call, 0);
    kolo_nccl_profile_begin(&call, 1, false);
    ncclResult_t r = kolo_nccl_result(run(&call));
    kolo_nccl_profile_end(&call, 1);
    return r;
}

ncclResult_t kolo_nccl_submit(const kolo_nccl_call_t *call)
{
    bool told = atomic_load_explicit(&kolo_nccl_profiles, memory_order_relaxed);
    if (!group.depth) {
        KOLO_NCCL_WHOLE;
        ncclResult_t r = KOLO_UNLIKELY(told) ? run_told(*call) : kolo_nccl_result(run(call));
        free(call->waits);
        return r;
    }
    ncclResult_t r = grow((void **)&group.calls, &group.capacity, group.count, sizeof *group.calls);
    if (r != ncclSuccess) {
        free(call->waits);
        return r;
    }
    group.calls[group.count++] = *call;
    if (KOLO_UNLIKELY(told)) kolo_nccl_profile_call(&group.calls[group.count - 1], group.depth);
    return r;
}

ncclResult_t kolo_nccl_job_submit(const kolo_nccl_job_t *job)
{
    if (!group.depth) {
        KOLO_NCCL_WHOLE;
        kolo_nccl_job_t now = *job;
        return kolo_nccl_job_run(&now);
    }
    kolo_nccl_job_t *kept = kolo_nccl_job_copy(job);
    if (!kept) return kolo_nccl_noted(ncclSystemError);
    if (!group.jobs) group.last = &group.jobs;
    *group.last = kept;
    group.last = &kept->next;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
    ncclResult_t r = kolo_nccl_start();
    if (r != ncclSuccess) return r;
    pthread_once(&at_exit_once, make_key);
    if (!at_exit_made)
        return kolo_nccl_fail(ncclSystemError,
                              "ncclGroupStart: the program has used up all keys of thread-specific data "
                              "(PTHREAD_KEYS_MAX): call ncclGroupStart() once before it does");
    if (pthread_setspecific(at_exit, &at_exit) != 0)
        return kolo_nccl_fail(ncclSystemError, "ncclGroupStart: out of memory");
    if (group.depth++ == 0) group.error = ncclSuccess;
    return ncclSuccess;
}
KOLO_NCCL_TWIN(ncclGroupStart, pncclGroupStart);

static ncclResult_t check_kinds(void)
{
    for (size_t i = 1; i < group.count; i++)
        if (group.calls[i].comm->blocking != group.calls[0].comm->blocking)
            return kolo_nccl_fail(ncclInvalidArgument,
                                  "ncclGroupEnd: the group has communicators that block and others that do not");
    for (size_t i = 0; i < group.count; i++) { /* ended by another thread since then */
        ncclResult_t r = kolo_nccl_check_made(group.calls[i].comm, group.calls[i].name);
        if (r != ncclSuccess) return r;
    }
    return ncclSuccess;
}

/* Collectives first: their order is the same on all ranks, that of messages among them need not be, and on GPUs
 * Kolo takes a group in its order. */
static kolo_status_t run_in_order(ncclResult_t *first)
{
    kolo_status_t failed = KOLO_OK;
    for (int messages = 0; messages < 2; messages++)
        for (size_t i = 0; i < group.count; i++) {
            if ((group.calls[i].kind >= KOLO_NCCL_SEND) != messages) continue;
            kolo_status_t status = run(&group.calls[i]);
            if (status == KOLO_OK || failed != KOLO_OK) continue;
            failed = status;
            *first = kolo_nccl_result(status); /* its text, before the end has another */
        }
    return failed;
}

static ncclResult_t run_calls(void)
{
    ncclResult_t r = check_kinds();
    if (r != ncclSuccess || !group.count) return r;
    kolo_nccl_profile_begin(group.calls, group.count, true);
    kolo_status_t first = kolo_group_start();
    if (first != KOLO_OK) return kolo_nccl_result(first);
    first = run_in_order(&r);
    kolo_status_t end = kolo_group_end();
    return first != KOLO_OK ? r : kolo_nccl_result(end);
}

static void clear(void)
{
    for (size_t i = 0; i < group.count; i++) free(group.calls[i].waits);
    group.count = group.nops = 0;
    group.jobs = NULL;
    group.error = ncclSuccess;
}

static ncclResult_t end_group(const char *call, bool drop)
{
    KOLO_NCCL_WHOLE;
    ncclResult_t r = kolo_nccl_start();
    if (r != ncclSuccess) return r;
    if (!group.depth) return kolo_nccl_fail(ncclInvalidUsage, "%s without ncclGroupStart()", call);
    if (--group.depth > 0) return ncclSuccess;
    r = group.error;
    if (r != ncclSuccess || drop) {
        kolo_nccl_jobs_drop(group.jobs);
    } else {
        r = kolo_nccl_jobs_run(group.jobs);
        ncclResult_t ran = r == ncclSuccess || r == ncclInProgress ? run_calls() : ncclSuccess;
        if (ran != ncclSuccess) r = ran;
    }
    for (size_t i = 0; i < group.nops; i++) {
        if (kolo_nccl_life(group.ops[i].comm) != KOLO_NCCL_LIVE) continue; /* it went with its communicator */
        ncclResult_t ended = kolo_nccl_result(kolo_op_destroy(group.ops[i].op, group.ops[i].comm->kolo));
        if (r == ncclSuccess) r = ended;
    }
    kolo_nccl_profile_end(group.calls, group.count);
    clear();
    return r;
}

ncclResult_t ncclGroupEnd(void)
{
    return end_group("ncclGroupEnd", false);
}
KOLO_NCCL_TWIN(ncclGroupEnd, pncclGroupEnd);

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info)
{
    if (info && (info->head.magic != NCCL_SIM_INFO_MAGIC || info->head.size < sizeof info->head))
        return kolo_nccl_noted(kolo_nccl_fail(
            ncclInvalidArgument,
            "ncclGroupSimulateEnd: the ncclSimInfo_t was not initialised: begin with NCCL_SIM_INFO_INITIALIZER"));
    ncclResult_t r = end_group("ncclGroupSimulateEnd", true);
    if (r == ncclSuccess && info && info->head.size >= offsetof(ncclSimInfo_t, estimatedTime) + sizeof(float))
        info->estimatedTime = 0;
    return r;
}
KOLO_NCCL_TWIN(ncclGroupSimulateEnd, pncclGroupSimulateEnd);
