/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor of GPU communicators (exec.h): a launch per collective, nothing else on the way of a call. Kernels
 * of one communicator follow each other, on whatever streams they were queued.
 */
#include "base/log.h"
#include "gpu/cuda/cuda.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Communicators of several ranks that this process has on a GPU, by ordinal. */
static _Atomic uint32_t opened[KOLO_CUDA_DEVICES];

static size_t region_bytes(void *arg, const kolo_regions_t *regions)
{
    kolo_cuda_state_t *s = arg;
    s->resident = kolo_cuda_resident(s->profile, regions->min_multiprocessors, regions->ranks_per_gpu);
    bool torn = regions->ranks_per_gpu > 1 || s->by_pci;
    kolo_cuda_layout((uint32_t)regions->nranks, s->resident, torn, &s->limits, &s->layout);
    s->region_bytes = kolo_cuda_plans_room(s->plans, (uint32_t)regions->nranks, s->layout.bytes);
    s->region_bytes = kolo_cuda_copies_room(s, regions, s->region_bytes);
    return s->region_bytes;
}

static kolo_status_t make_mailbox(kolo_cuda_state_t *s)
{
    void *host = NULL;
    kolo_cu_ptr_t device = 0;
    kolo_cu_result_t r = kolo_cuda_take_host(s->device, sizeof *s->mailbox + KOLO_CUDA_STAGE, &host);
    if (r) return kolo_cuda_fail(r, s->device->ordinal, "get pinned host memory");
    s->mailbox = host;
    memset(host, 0, sizeof *s->mailbox);
    r = s->api->host_device_pointer(&device, host, 0);
    if (r) return kolo_cuda_fail(r, s->device->ordinal, "map pinned host memory");
    s->args.c.mailbox = s->p2p.head.mailbox = device;
    return KOLO_OK;
}

/* Tests: all counters and flags begin at `start`, just below wrap-around, and what is only written before it is
 * read holds some byte. Then all ranks wait for each other, since others write there as soon as they may. */
static kolo_status_t prepare_region(kolo_cuda_state_t *s, kolo_wire_ctx_t *ctx)
{
    kolo_cu_ptr_t own = (kolo_cu_ptr_t)(uintptr_t)s->regions.address[s->regions.rank];
    uint64_t counted = s->layout.lines;
    if (!s->start && kolo_cuda_options.poison < 0) return KOLO_OK;
    uint32_t *words = malloc(counted);
    if (!words) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %llu bytes", (unsigned long long)counted);
    for (uint64_t i = 0; i < counted / sizeof *words; i++) words[i] = s->start;
    kolo_status_t status =
        kolo_mem_cuda.write(s->device->ordinal, (void *)(uintptr_t)own, words, counted); /* NOLINT */
    free(words);
    KOLO_TRY(status);
    if (kolo_cuda_options.poison >= 0) {
        kolo_cu_result_t r = s->api->memset8(own + counted, (unsigned char)kolo_cuda_options.poison,
                                             s->layout.bytes - counted, NULL);
        if (r) return kolo_cuda_fail(r, s->device->ordinal, "fill memory");
        KOLO_TRY(kolo_cuda_drain(s->device, NULL, ctx->deadline_ns, "fill memory"));
    }
    return kolo_oob_barrier(ctx->oob);
}

static kolo_status_t open_regions(kolo_cuda_state_t *s, kolo_wire_ctx_t *ctx)
{
    KOLO_TRY(kolo_cuda_regions_open(ctx, s->device, region_bytes, s, &s->regions));
    KOLO_TRY(prepare_region(s, ctx));
    KOLO_TRY(kolo_exports_open(ctx, s->device, s->regions.nranks, &s->exports));
    s->args.c.layout = s->p2p.head.layout = s->layout;
    s->args.c.rank = s->p2p.head.rank = (uint32_t)s->regions.rank;
    for (int i = 0; i < s->regions.nranks; i++)
        s->args.c.regions[i] = s->p2p.head.regions[i] = (uint64_t)(uintptr_t)s->regions.address[i];
    return KOLO_OK;
}

static kolo_status_t open_entered(kolo_cuda_state_t *s, kolo_wire_ctx_t *ctx)
{
    KOLO_TRY(kolo_cuda_kernels(s->device, ctx->deadline_ns, &s->kernels));
    KOLO_TRY(open_regions(s, ctx));
    KOLO_TRY(make_mailbox(s));
    KOLO_TRY(kolo_cuda_copies_open(s, ctx));
    KOLO_TRY(kolo_cuda_order_open(&s->order, s->device));
    kolo_cu_result_t r = s->api->event_create(&s->mark, KOLO_CU_EVENT_NO_TIMING);
    return r ? kolo_cuda_fail(r, s->device->ordinal, "make an event") : KOLO_OK;
}

static void close_regions(kolo_cuda_state_t *s)
{
    kolo_exports_close(s->exports);
    s->exports = NULL;
    s->marked = s->wants_mark = false;
    s->complete = 0;
    kolo_cuda_regions_close(&s->regions);
}

static void suspend_state(void *state)
{
    kolo_cuda_state_t *s = state;
    bool pushed;
    if (kolo_cuda_enter(s->device, &pushed) != KOLO_OK) return;
    close_regions(s);
    kolo_cuda_leave(pushed);
}

static kolo_status_t resume_state(void *state, kolo_wire_ctx_t *ctx)
{
    kolo_cuda_state_t *s = state;
    bool pushed;
    KOLO_TRY(kolo_cuda_enter(s->device, &pushed));
    kolo_status_t status = open_regions(s, ctx);
    kolo_cuda_leave(pushed);
    return status;
}

static void free_state(void *state)
{
    kolo_cuda_state_t *s = state;
    bool pushed = false;
    if (s->api && s->device && kolo_cuda_enter(s->device, &pushed) == KOLO_OK) {
        kolo_cuda_order_close(&s->order);
        if (s->mark) s->api->event_destroy(s->mark);
        kolo_cuda_copies_close(s);
        close_regions(s);
        kolo_cuda_tables_free(s);
        /* A replay that stands behind a held stream may still look for the abort. */
        if (s->mailbox && (s->outlived || !__atomic_load_n(&s->mailbox->abort, __ATOMIC_ACQUIRE)))
            kolo_cuda_give_host(s->device, sizeof *s->mailbox + KOLO_CUDA_STAGE, s->mailbox);
        if (s->unsettled) s->api->stream_destroy(s->unsettled);
        kolo_cuda_leave(pushed);
    }
    kolo_mem_free(&s->adopted);
    kolo_cuda_plans_close(s->plans);
    kolo_cuda_forget_memory(s);
    free(s);
}

static void settle_entered(kolo_cuda_state_t *s)
{
    bool pushed = false;
    if (kolo_cuda_enter(s->device, &pushed) != KOLO_OK) return;
    kolo_cuda_settle(s);
    if (s->unsettled) {
        kolo_exports_close(s->exports);
        s->exports = NULL;
    }
    kolo_cuda_leave(pushed);
}

/* Graphs may be replayed all the same: their kernels are to end, not to wait for ranks that are gone. */
static void leave_graphs(kolo_cuda_state_t *s)
{
    if (kolo_cuda_graphs_any(&s->order) && !__atomic_load_n(&s->mailbox->abort, __ATOMIC_ACQUIRE)) {
        s->outlived = true;
        __atomic_store_n(&s->mailbox->abort, 1, __ATOMIC_RELEASE);
        kolo_info("exec",
                  "rank %d: graphs with calls of this communicator hold %.1f MB of GPU %d until they are destroyed",
                  s->regions.rank, (double)s->region_bytes / (1 << 20), s->device->ordinal);
    }
    kolo_cuda_graphs_leave(&s->order, free_state, s);
}

static void free_kept(void)
{
    for (kolo_cuda_state_t *s; (s = kolo_cuda_kept()) != NULL;) leave_graphs(s);
    kolo_cuda_graphs_sweep();
}

static void close_state(void *state)
{
    kolo_cuda_state_t *s = state;
    if (!s) return;
    free_kept();
    if (s->counted) atomic_fetch_sub(&opened[s->device->ordinal], 1);
    if (s->api && s->device && s->mailbox && __atomic_load_n(&s->mailbox->abort, __ATOMIC_ACQUIRE))
        settle_entered(s);
    if (s->unsettled)
        kolo_cuda_keep(s);
    else
        leave_graphs(s);
}

static void adopt(void *state, kolo_mem_t *mem)
{
    kolo_cuda_state_t *s = state;
    s->adopted = *mem;
    *mem = (kolo_mem_t){0};
}

static kolo_status_t open_state(const kolo_exec_env_t *env, void **state)
{
    int n = kolo_oob_nranks(env->ctx->oob), device = env->device;
    bool pushed;
    if (n > KOLO_CUDA_RANKS)
        return kolo_fail(KOLO_ERR_UNSUPPORTED, "a GPU communicator has at most %d ranks here, not %d",
                         KOLO_CUDA_RANKS, n);
    free_kept();
    kolo_cuda_state_t *s = calloc(1, sizeof *s);
    if (!s) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a GPU communicator");
    kolo_cuda_limits(&env->tuned, (uint32_t)n, &s->limits);
    s->profile = env->tuned.profile;
    s->start = env->start;
    s->by_pci = env->by_pci;
    s->one_fold = env->one_fold;
    kolo_status_t status = kolo_cuda_plans_open(env, &s->plans);
    if (status == KOLO_OK) status = kolo_cuda_load(&s->api);
    if (status == KOLO_OK) status = kolo_cuda_device(device, &s->device);
    if (status == KOLO_OK) status = kolo_cuda_enter(s->device, &pushed);
    if (status == KOLO_OK) {
        status = open_entered(s, env->ctx);
        kolo_cuda_leave(pushed);
    }
    if (status != KOLO_OK) {
        close_state(s);
        return status;
    }
    s->counted = n > 1;
    if (s->counted) atomic_fetch_add(&opened[s->device->ordinal], 1);
    *state = s;
    kolo_info(
        "exec",
        "rank %d: GPU %d (%s, %s), %u blocks, tiles of %u bytes, %.1f MB on the device, %s lines of 128 bytes",
        s->regions.rank, device, s->device->name, s->device->bus_id, s->layout.blocks, s->layout.tile_bytes,
        (double)s->region_bytes / (1 << 20), s->by_pci || s->regions.ranks_per_gpu > 1 ? "no" : "with");
    return KOLO_OK;
}

/* ---- putting work on a stream ---- */

/* Tells whether the kernel may be on the GPU beside the one before it. Behind a copy that gains nothing. Beside
 * another communicator's kernels none is early: those may fill this GPU while its own fill the next one, and on an
 * H200 one stayed away for ever though there was room. */
static bool is_early(const kolo_cuda_state_t *s)
{
    return kolo_cuda_options.early && !s->order.alone && !s->copied &&
           atomic_load_explicit(&opened[s->device->ordinal], memory_order_relaxed) < 2;
}

kolo_status_t kolo_cuda_put(kolo_cuda_state_t *s, kolo_cu_func_t function, kolo_cuda_grid_t grid, void *args,
                            kolo_cu_stream_t stream)
{
    void *params[] = {args};
    KOLO_TRY(kolo_cuda_order_before(&s->order, stream));
    kolo_cu_result_t r;
    if (s->kernels->early && is_early(s)) {
        kolo_cu_launch_attribute_t early = {.id = KOLO_CU_LAUNCH_EARLY, .value.flag = 1};
        kolo_cu_launch_t how = {grid.blocks, 1, 1, grid.threads, 1, 1, 0, stream, &early, 1};
        r = s->api->launch_ex(&how, function, params, NULL);
    } else {
        r = s->api->launch(function, grid.blocks, 1, 1, grid.threads, 1, 1, 0, stream, params, NULL);
    }
    if (r) return kolo_cuda_fail(r, s->device->ordinal, "launch a kernel");
    s->copied = false;
    if (KOLO_UNLIKELY(s->wants_mark)) kolo_cuda_mark(s, stream);
    return kolo_cuda_order_behind(&s->order, stream);
}

kolo_status_t kolo_cuda_put_copy(kolo_cuda_state_t *s, void *dst, const void *src, size_t bytes,
                                 kolo_cu_stream_t stream)
{
    if (dst == src || !bytes) return KOLO_OK;
    KOLO_TRY(kolo_cuda_order_before(&s->order, stream));
    kolo_cu_result_t r =
        s->api->memcpy_async((kolo_cu_ptr_t)(uintptr_t)dst, (kolo_cu_ptr_t)(uintptr_t)src, bytes, stream);
    if (r) return kolo_cuda_fail(r, s->device->ordinal, "queue a copy");
    s->copied = true;
    return kolo_cuda_order_behind(&s->order, stream);
}

/* ---- arguments ---- */

static kolo_status_t check_call(kolo_cuda_state_t *s, const kolo_exec_call_t *c)
{
    uint64_t src, dst;
    kolo_exec_reach(c, s->regions.rank, s->regions.nranks, &src, &dst);
    if (c->kind == KOLO_EXEC_COLL && kolo_coll_reduces(c->coll) && !kolo_exec_device_reduces(&c->reducer))
        return kolo_exec_refuse_reducer(&c->reducer);
    s->asks = c->stream;
    if (KOLO_UNLIKELY(c->reducer.pre_at != NULL))
        KOLO_TRY(kolo_cuda_check_memory(s, c->reducer.pre_at, c->elem, "the scalar"));
    return kolo_cuda_check_buffers(s, c->src, src, c->dst, dst, kolo_cuda_goes_by_lines(s, c));
}

/* ---- the operations ---- */

/* Tells whether a call of one rank is a copy: the reduction kernel applies a scale. */
static bool is_copy(const kolo_exec_call_t *c)
{
    return !kolo_coll_reduces(c->coll) || !(c->reducer.pre || c->reducer.truth);
}

/* Launches a call by lines, `each` elements of each part at a time. An all_to_all in place only goes so: a thread
 * has loaded what it sends before it stores what comes in its place. */
static kolo_status_t launch_pieces(kolo_cuda_state_t *s, const kolo_exec_call_t *c, kolo_type_t type, uint64_t each)
{
    uint64_t whole = c->count * c->elem;
    for (uint64_t at = 0; at < c->count; at += each) {
        kolo_exec_call_t piece = *c;
        kolo_cuda_family_t family;
        kolo_cuda_grid_t grid;
        piece.count = KOLO_MIN(each, c->count - at);
        piece.src = (const char *)c->src + at * c->elem;
        if (c->dst) piece.dst = (char *)c->dst + at * c->elem;
        piece.src_stride = c->src_stride ? c->src_stride : whole;
        piece.dst_stride = c->dst_stride ? c->dst_stride : whole;
        KOLO_TRY(kolo_cuda_choose_lines(s, &piece, &s->args.c, &family, &grid));
        KOLO_TRY(kolo_cuda_put(s, s->kernels->collective[family][type], grid, &s->args, c->stream));
    }
    return KOLO_OK;
}

static kolo_status_t launch_collective(kolo_cuda_state_t *s, const kolo_exec_call_t *c)
{
    kolo_cuda_family_t family;
    kolo_cuda_grid_t grid;
    kolo_type_t type =
        c->reducer.type < KOLO_EXEC_DEVICE_TYPES ? c->reducer.type : KOLO_UINT8; /* of one byte, or only moved */
    bool planned;
    if (KOLO_UNLIKELY(c->coll == KOLO_COLL_ALL_TO_ALL && c->src == c->dst && c->count && s->regions.nranks > 1 &&
                      !c->send_counts))
        return launch_pieces(s, c, type, KOLO_MAX(kolo_cuda_lines_most(s) / c->elem, (uint64_t)1));
    KOLO_TRY(kolo_cuda_plans_launch(s, c, &planned));
    if (planned) return KOLO_OK;
    if (s->regions.nranks == 1 && c->coll == KOLO_COLL_BARRIER) return KOLO_OK;
    if (s->regions.nranks == 1 && is_copy(c))
        return kolo_cuda_put_copy(s, c->dst, c->src, c->count * c->elem, c->stream);
    if (kolo_cuda_copies_serve(s, c)) return kolo_cuda_copies_launch(s, c);
    uint64_t each = kolo_cuda_piece(s, c);
    if (each) return launch_pieces(s, c, type, each);
    KOLO_TRY(kolo_cuda_choose(s, c, &s->args.c, &family, &grid));
    if (family == KOLO_CUDA_STAGED || family == KOLO_CUDA_TWO_STEP || family == KOLO_CUDA_CHAIN)
        kolo_cuda_expose(s, c, &s->args);
    return kolo_cuda_put(s, s->kernels->collective[family][type], grid, &s->args, c->stream);
}

static kolo_status_t check_entered(kolo_cuda_state_t *s, const kolo_exec_call_t *calls, size_t n)
{
    for (size_t i = 0; i < n; i++) KOLO_TRY(check_call(s, &calls[i]));
    return calls->kind == KOLO_EXEC_COLL && n == 1 ? KOLO_OK : kolo_exec_check_own(calls, n, s->regions.rank);
}

static kolo_status_t check(void *state, const kolo_exec_call_t *calls, size_t n)
{
    kolo_cuda_state_t *s = state;
    bool pushed;
    KOLO_TRY(kolo_cuda_enter(s->device, &pushed));
    kolo_status_t status = kolo_cuda_order_look(&s->order, calls->stream); /* launch() itself looks later */
    if (status == KOLO_OK) status = check_entered(s, calls, n);
    kolo_cuda_leave(pushed);
    return status;
}

static kolo_status_t launch_entered(kolo_cuda_state_t *s, const kolo_exec_call_t *calls, size_t n)
{
    KOLO_TRY(check_entered(s, calls, n));
    if (KOLO_UNLIKELY(s->exports && (++s->launches % KOLO_CUDA_TIDY_EACH == 0 || s->marked)))
        kolo_cuda_tidy(s, calls->stream);
    for (size_t i = 0; i < n;) {
        size_t end = i;
        if (calls[i].kind == KOLO_EXEC_COLL) {
            KOLO_TRY(launch_collective(s, &calls[i++]));
            continue;
        }
        while (end < n && calls[end].kind != KOLO_EXEC_COLL) end++;
        KOLO_TRY(kolo_cuda_messages(s, &calls[i], end - i));
        i = end;
    }
    return KOLO_OK;
}

static kolo_status_t launch(void *state, const kolo_exec_call_t *calls, size_t n)
{
    kolo_cuda_state_t *s = state;
    bool pushed;
    KOLO_TRY(kolo_cuda_enter(s->device, &pushed));
    kolo_status_t status = launch_entered(s, calls, n);
    kolo_cuda_leave(pushed);
    return status;
}

static kolo_status_t follow(void *state, void *stream)
{
    kolo_cuda_state_t *s = state;
    bool pushed;
    KOLO_TRY(kolo_cuda_enter(s->device, &pushed));
    kolo_status_t status = kolo_cuda_order_before(&s->order, stream);
    kolo_cuda_leave(pushed);
    return status;
}

static kolo_status_t poll(void *state)
{
    kolo_cuda_state_t *s = state;
    bool pushed;
    KOLO_TRY(kolo_cuda_enter(s->device, &pushed));
    if (__atomic_load_n(&s->mailbox->abort, __ATOMIC_ACQUIRE)) kolo_cuda_copies_release(s);
    kolo_status_t status = kolo_cuda_order_poll(&s->order);
    kolo_cuda_leave(pushed);
    return status;
}

static void cancel(void *state)
{
    kolo_cuda_state_t *s = state;
    __atomic_store_n(&s->mailbox->abort, 1, __ATOMIC_RELEASE);
}

/* Kernels that give up leave a report, before they end; what goes by copies alone leaves none. */
static bool gave_up(const void *state)
{
    const kolo_cuda_state_t *s = state;
    return __atomic_load_n(&s->mailbox->report.set, __ATOMIC_ACQUIRE) != 0 || kolo_cuda_copies_cut(s);
}

static size_t memory(const void *state)
{
    return ((const kolo_cuda_state_t *)state)->region_bytes;
}

static bool serves(const kolo_exec_gpus_t *gpus, char why[KOLO_EXEC_WHY])
{
    memcpy(why, gpus->reach, KOLO_EXEC_WHY);
    return gpus->all;
}

const kolo_exec_ops_t kolo_exec_cuda = {.name = "cuda",
                                        .needs = "kernels for all GPUs, that reach each other's memory",
                                        .by_kernels = true,
                                        .by_plans = true,
                                        .reads = true,
                                        .params = &kolo_exec_cuda_params,
                                        .serves = serves,
                                        .open = open_state,
                                        .launch = launch,
                                        .check = check,
                                        .expect = kolo_cuda_expect,
                                        .follow = follow,
                                        .move = kolo_cuda_move,
                                        .poll = poll,
                                        .cancel = cancel,
                                        .gave_up = gave_up,
                                        .waits = kolo_cuda_waits,
                                        .awaited = kolo_cuda_awaited,
                                        .memory = memory,
                                        .suspend = suspend_state,
                                        .resume = resume_state,
                                        .adopt = adopt,
                                        .close = close_state};
