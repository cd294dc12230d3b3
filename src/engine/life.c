/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of an engine: a communicator of its own, memory, the thread; and the end, in order or not.
 */
#include "base/process.h"
#include "comm/comm.h"
#include "engine/backends/backend.h"
#include "engine/batch/device.h"
#include "engine/controller/talk.h"
#include "engine/controller/tree.h"
#include "engine/loop/loop.h"
#include "engine/timeline/timeline.h"
#include "engine/tuner/autotune.h"

#include <kolo/job.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the job that a launcher started ---- */

static kolo_status_t join_job(kolo_comm_t *comm)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.blocking = 1;
    config.name = "job";
    kolo_status_t status = kolo_job_connect(comm, &config);
    return status == KOLO_OK ? KOLO_OK : kolo_fail_prefix(status, "engine_init: ");
}

/* ---- init ---- */

static kolo_slots_t engines = KOLO_SLOTS_OF(struct kolo_tensor_engine);

static void fill_place(kolo_tensor_engine_t e, kolo_comm_t comm)
{
    const kolo_member_t *m = &comm->body->member;
    kolo_engine_place_t *p = &e->place;
    int local = m->local_of[e->rank];
    *p = (kolo_engine_place_t){.rank = e->rank,
                               .size = e->size,
                               .local_rank = local,
                               .local_size = m->node_size[m->my_node],
                               .homogeneous = 1};
    for (int n = 0; n < m->nnodes; n++) {
        if (m->node_size[n] != m->node_size[0]) p->homogeneous = 0;
        if (m->node_size[n] <= local) continue;
        if (n < m->my_node) p->cross_rank++;
        p->cross_size++;
    }
}

static kolo_status_t agree(kolo_tensor_engine_t e, kolo_comm_t comm)
{
    uint64_t backends = kolo_hash_bytes(KOLO_HASH_INIT, e->config.backends, strlen(e->config.backends));
    uint64_t talk = (uint64_t)kolo_talk_which, tree = (uint64_t)kolo_engine_tree_ranks,
             fan_in = (uint64_t)kolo_engine_tree_fan_in;
    uint64_t threshold = (uint64_t)e->config.fusion_threshold, tensor = (uint64_t)e->config.fusion_tensor_max,
             capacity = (uint64_t)e->config.cache_capacity, cycle = (uint64_t)e->config.cycle_time_us,
             average = (uint64_t)e->config.average, warn = (uint64_t)e->config.stall_warn_ms,
             limit = (uint64_t)e->config.stall_limit_ms, sets = kolo_sets_hash(e->config.sets, e->config.nsets),
             tuned = (uint64_t)e->config.autotune, groups = (uint64_t)e->config.group_fusion;
    const kolo_agree_row_t rows[] = {{"fusion_threshold of the engine", KOLO_AGREE_EQUAL, &threshold},
                                     {"fusion_tensor_max of the engine", KOLO_AGREE_EQUAL, &tensor},
                                     {"cache_capacity of the engine", KOLO_AGREE_EQUAL, &capacity},
                                     {"cycle_time_us of the engine", KOLO_AGREE_EQUAL, &cycle},
                                     {"average of the engine", KOLO_AGREE_EQUAL, &average},
                                     {"stall_warn_ms of the engine", KOLO_AGREE_EQUAL, &warn},
                                     {"stall_limit_ms of the engine", KOLO_AGREE_EQUAL, &limit},
                                     {"process sets of the engine (a hash)", KOLO_AGREE_EQUAL, &sets},
                                     {"autotune of the engine", KOLO_AGREE_EQUAL, &tuned},
                                     {"group_fusion of the engine", KOLO_AGREE_EQUAL, &groups},
                                     {"backends of the engine (a hash)", KOLO_AGREE_EQUAL, &backends},
                                     {"KOLO_ENGINE_CONTROLLER", KOLO_AGREE_EQUAL, &talk},
                                     {"KOLO_ENGINE_TREE_RANKS", KOLO_AGREE_EQUAL, &tree},
                                     {"KOLO_ENGINE_TREE_FAN_IN", KOLO_AGREE_EQUAL, &fan_in}};
    return kolo_member_agree(comm->body->oob, rows, KOLO_COUNTOF(rows));
}

static kolo_status_t allocate(kolo_tensor_engine_t e)
{
    size_t capacity = (size_t)e->config.cache_capacity, words = 1 + KOLO_DIV_UP(capacity, 64);
    size_t size = (size_t)e->size;
    e->bits = calloc(4 * words, sizeof *e->bits);
    e->requests = calloc(KOLO_ENGINE_REQUESTS_MAX, sizeof(kolo_tensor_request_t *));
    e->from_cache = calloc(capacity + 1, sizeof *e->from_cache);
    e->hits = calloc(capacity + 1, sizeof(kolo_entry_t *));
    e->counts = calloc(4 * size, sizeof *e->counts);
    e->splits = calloc(2 * size, sizeof *e->splits);
    if (!e->bits || !e->requests || !e->from_cache || !e->hits || !e->counts || !e->splits)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "engine_init: out of memory");
    e->agreed = e->bits + words;
    e->invalid = e->agreed + words;
    e->erased = e->invalid + words;
    uint64_t patience = e->all->controller.stall.patience_ns;
    e->patience_ns = patience ? KOLO_MIN(patience, KOLO_STALL_SHOWN_NS) : KOLO_STALL_SHOWN_NS;
    return KOLO_OK;
}

static kolo_status_t start_thread(kolo_tensor_engine_t e)
{
    int error = kolo_thread_start(&e->thread, 0, kolo_engine_loop, e);
    return error ? kolo_fail_errno(KOLO_ERR_SYSTEM, error, "engine_init: cannot start a thread") : KOLO_OK;
}

static kolo_status_t build(kolo_tensor_engine_t e, kolo_comm_t comm)
{
    e->gate = &comm->gate;
    e->size = comm->body->nranks;
    e->rank = comm->body->rank;
    fill_place(e, comm);
    KOLO_TRY(kolo_engine_core_fill(&e->place, &e->config));
    KOLO_TRY(kolo_sets_make_all(e, comm));
    KOLO_TRY(agree(e, comm));
    KOLO_TRY(allocate(e));
    KOLO_TRY(kolo_engine_devices_init(e, comm));
    KOLO_TRY(kolo_talk_open(e));
    KOLO_TRY(kolo_backends_open(e));
    KOLO_TRY(kolo_wake_init(e));
    KOLO_TRY(kolo_sets_make_first(e));
    KOLO_TRY(kolo_autotune_begin(e));
    kolo_timeline_begin(e);
    return start_thread(e);
}

static void free_all(kolo_tensor_engine_t e)
{
    kolo_timeline_end(e);
    kolo_engine_devices_fini(e);
    pthread_mutex_destroy(&e->timeline_lock);
    kolo_autotune_end(e);
    kolo_sets_fini(e);
    kolo_backends_close(e);
    kolo_talk_close(e);
    kolo_queue_fini(&e->queue);
    kolo_order_fini(&e->order);
    kolo_fusion_batches_fini(&e->batches);
    kolo_wake_fini(e);
    free(e->bits);
    free(e->requests);
    free(e->ordered);
    free(e->from_cache);
    free(e->hits);
    free(e->counts);
    free(e->splits);
    free(e->out.bytes);
    free(e->in.bytes);
    free(e->entries);
    (void)kolo_slot_end(e);
    kolo_slots_give(&engines, e);
}

static kolo_status_t start(kolo_tensor_engine_t e, kolo_comm_t comm)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.blocking = 1;
    /* Ranks may be idle for as long as they like, but not outside of their sleep: an operation that a rank does not
     * come to, because its thread hangs in a callback, stalls the others as well as a tensor that it lacks. */
    config.op_timeout_ms = (int)e->config.stall_limit_ms;
    config.name = "engine";
    config.device = -1; /* ranks agree on the CPU, whatever the tensors lie on */
    kolo_comm_t own = NULL;
    KOLO_TRY(kolo_call_split(KOLO_CALL_WORD_ENGINE, comm, 0, 0, &own, &config));
    kolo_status_t status = build(e, own);
    if (status == KOLO_OK) return KOLO_OK;
    char text[KOLO_ERROR_TEXT_BYTES]; /* leaving has words of its own */
    snprintf(text, sizeof text, "%s", kolo_error_text());
    /* What all find wrong alike, each finds by itself: news of an abort could overtake it. */
    bool alike = status == KOLO_ERR_UNSUPPORTED || status == KOLO_ERR_MISMATCH ||
                 status == KOLO_ERR_INVALID_ARGUMENT || status == KOLO_ERR_INVALID_USAGE;
    kolo_sets_leave(e, !alike);
    return kolo_fail(status, "%s", text);
}

kolo_status_t kolo_engine_init(kolo_tensor_engine_t *engine, kolo_comm_t comm, const kolo_engine_config_t *config)
{
    if (!engine) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "engine_init: the output is NULL");
    KOLO_TRY(kolo_comm_library_init());
    kolo_tensor_engine_t e = kolo_slots_take(&engines);
    if (!e) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine_init: out of memory");
    e->forks = kolo_process_forks();
    atomic_store(&e->device, -1);
    pthread_mutex_init(&e->timeline_lock, NULL);
    kolo_comm_t job = NULL;
    kolo_queue_init(&e->queue);
    e->queue.calls = kolo_engine_loop_calls;
    e->queue.calls_arg = e;
    kolo_order_init(&e->order);
    kolo_status_t status = kolo_engine_config_fill(config, &e->config);
    e->tunable = kolo_engine_tunable(config);
    if (status == KOLO_OK && !comm) status = join_job(&job);
    if (status == KOLO_OK) status = start(e, comm ? comm : job);
    if (job) kolo_comm_destroy(job);
    if (status == KOLO_OK)
        *engine = e;
    else
        free_all(e);
    return status;
}

/* ---- the end ---- */

static kolo_status_t end(kolo_tensor_engine_t e)
{
    char text[KOLO_ERROR_TEXT_BYTES];
    pthread_join(e->thread, NULL);
    kolo_sets_leave(e, false);
    kolo_status_t status = e->failure;
    memcpy(text, e->failure_text, sizeof text);
    free_all(e);
    return status == KOLO_OK ? KOLO_OK : kolo_fail(status, "%s", text);
}

kolo_status_t kolo_engine_shutdown(kolo_tensor_engine_t engine)
{
    if (!engine) return KOLO_OK;
    KOLO_TRY(kolo_engine_check(engine, "engine_shutdown"));
    if (kolo_engine_is_inside(engine))
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "engine_shutdown: not allowed in a callback of the engine");
    atomic_store(&engine->stop, true);
    kolo_engine_kick(engine);
    return end(engine);
}

kolo_status_t kolo_engine_abort(kolo_tensor_engine_t engine)
{
    if (!engine) return KOLO_OK;
    KOLO_TRY(kolo_engine_check(engine, "engine_abort"));
    if (kolo_engine_is_inside(engine))
        return kolo_fail(KOLO_ERR_INVALID_USAGE, "engine_abort: not allowed in a callback of the engine");
    atomic_store(&engine->aborting, true);
    kolo_engine_kick(engine);
    kolo_sets_leave(engine, true);
    end(engine);
    return KOLO_OK;
}

/* ---- queries ---- */

kolo_status_t kolo_engine_get_place(kolo_tensor_engine_t engine, kolo_engine_place_t *place)
{
    KOLO_TRY(kolo_engine_check(engine, "engine_get_place"));
    if (!place) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "engine_get_place: the output is NULL");
    *place = engine->place;
    return KOLO_OK;
}

kolo_status_t kolo_engine_get_counters(kolo_tensor_engine_t engine, kolo_engine_counters_t *counters)
{
    KOLO_TRY(kolo_engine_check(engine, "engine_get_counters"));
    if (!counters) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "engine_get_counters: the output is NULL");
    const kolo_tally_t *t = &engine->tally;
    *counters =
        (kolo_engine_counters_t){t->cycles,       t->slow_cycles, t->sleeps,     t->tensors,       t->operations,
                                 t->hits,         t->misses,      t->invalid,    t->reduced_bytes, t->packed_bytes,
                                 t->negotiate_ns, t->pack_ns,     t->operate_ns, t->complete_ns};
    return KOLO_OK;
}
