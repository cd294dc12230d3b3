/* SPDX-License-Identifier: Apache-2.0
 *
 * See native.h.
 */
#include "engine/batch/native.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "engine/backends/backend.h"
#include "engine/timeline/timeline.h"
#include "exec/exec.h"

#include <stdio.h>
#include <string.h>

#define LEAST_BYTES ((size_t)1 << 20)

/* ---- the communicator of GPUs ---- */

/* Tells whether operations of different sets run beside each other. Decided by the first communicator of GPUs: so
 * sets that are made later do not count, and as all ranks come to sets and operations in one order (0011), all
 * decide alike. */
static bool has_quarters(struct kolo_tensor_engine *e)
{
    kolo_devices_t *d = e->devices;
    if (!d->met_sets) d->quarters = e->nsets > 1 && kolo_engine_gpu_streams > 1;
    d->met_sets = true;
    return d->quarters;
}

/* Opens the communicator of GPUs. Collective over the set, at the same place in the order of its operations on all
 * ranks. */
static kolo_status_t open_gpu(kolo_set_t *s)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    char why[KOLO_ERROR_TEXT_BYTES] = "another rank says why";
    kolo_comm_t gpu = NULL;
    uint32_t mine, all = 0;
    s->gpu_asked = true;
    config.blocking = 1;
    config.op_timeout_ms = s->id == 0 ? (int)s->engine->config.stall_limit_ms : 0;
    config.name = "engine on GPUs";
    config.device = atomic_load(&s->engine->device);
    if (has_quarters(s->engine)) config.gpu_profile = KOLO_GPU_QUARTER;
    mine = kolo_comm_split(s->comm, 0, 0, &gpu, &config) == KOLO_OK;
    if (!mine) snprintf(why, sizeof why, "%s", kolo_error_text());
    KOLO_TRY(kolo_all_reduce(&mine, &all, 1, KOLO_UINT32, KOLO_MIN, s->comm, NULL));
    if (all) {
        atomic_store(&s->gpu, gpu);
        if (atomic_load(&s->engine->aborting)) kolo_set_leave_gpu(s, true); /* it may have come before this one */
        return KOLO_OK;
    }
    if (gpu) kolo_comm_abort(gpu);
    s->gpu_missing = true;
    kolo_warn("engine", "tensors of GPUs pass through host memory: %s", why);
    return KOLO_OK;
}

kolo_status_t kolo_native_settle(const kolo_set_t *s)
{
    kolo_devices_t *d = s->engine->devices;
    for (int i = 0; i < KOLO_FLIGHTS; i++)
        if (d->flights[i].set == s && atomic_load(&d->flights[i].state) == KOLO_FLIGHT_FINISHING)
            KOLO_TRY(kolo_flight_await(s->engine, &d->flights[i]));
    return KOLO_OK;
}

void kolo_native_give_up(kolo_set_t *s)
{
    struct kolo_tensor_engine *e = s->engine;
    kolo_comm_t gpu = atomic_load(&s->gpu);
    kolo_flight_free(e->native->flight);
    e->native = NULL;
    if (kolo_native_settle(s) == KOLO_OK && gpu) (void)kolo_comm_revoke(gpu); /* another rank may have been first */
}

kolo_status_t kolo_native_renew(kolo_set_t *s)
{
    kolo_comm_t gpu = atomic_load(&s->gpu);
    if (!gpu) return KOLO_OK;
    (void)kolo_comm_revoke(gpu); /* the news may not have come yet */
    KOLO_TRY(kolo_native_settle(s));
    KOLO_FAIL_POINT("engine.native.renew");
    kolo_set_leave_gpu(s, true);
    s->gpu_asked = false;
    kolo_info("engine", "the communicator of GPUs is made anew: an operation failed");
    return KOLO_OK;
}

kolo_status_t kolo_native_result(struct kolo_tensor_engine *e, const kolo_flight_t *flight)
{
    kolo_comm_t gpu = atomic_load(&flight->set->gpu);
    kolo_status_t status = KOLO_OK;
    if (atomic_load(&e->has_failed)) return kolo_fail(e->failure, "%s", e->failure_text);
    if (gpu) KOLO_TRY(kolo_comm_get_async_error(gpu, &status));
    if (status != KOLO_OK && status != KOLO_IN_PROGRESS) return kolo_fail(status, "%s", kolo_get_last_error(gpu));
    KOLO_TRY(kolo_backends_status(flight->set));
    return kolo_engine_status(e);
}

/* ---- whether ---- */

bool kolo_native_may(const kolo_set_t *s, const kolo_response_t *r)
{
    const kolo_tensor_request_t *q = &r->request;
    bool reduces = q->work == KOLO_WORK_ALL_REDUCE || q->work == KOLO_WORK_REDUCE_SCATTER;
    if (reduces && (q->type > KOLO_FLOAT8_E5M2 || (q->op > KOLO_AVG && q->op < KOLO_OP_BUILTIN_COUNT)))
        return false;                                   /* NCCL and packing do not; through host memory */
    if (s->njoined > 0 && !s->ran_native) return false; /* who has joined may have no GPU */
    return r->device && r->status == KOLO_OK && q->work < KOLO_MOVES;
}

/* Returns what backends choose by; the same on all ranks. */
static kolo_need_t need_of(const kolo_set_t *s, kolo_response_t *const *batch, size_t n)
{
    const kolo_tensor_request_t *q = &batch[0]->request;
    kolo_need_t need = {q->work, q->type, q->op, KOLO_MEMORY_DEVICE, 0};
    for (size_t i = 0; i < n; i++) {
        const kolo_tensor_request_t *r = &batch[i]->request;
        size_t elem = kolo_type_size(r->type);
        int64_t rows = batch[i]->rows ? 0 : 1;
        for (int k = 0; batch[i]->rows && k < s->size; k++) rows += batch[i]->rows[k];
        need.bytes +=
            (size_t)kolo_shape_elements(r->shape, r->ndims, batch[i]->rows ? 1 : 0, elem) * (size_t)rows * elem;
    }
    return need;
}

/* ---- the engine's stream ---- */

static kolo_status_t step(kolo_native_t *nt, int what)
{
    kolo_flight_t *flight = nt->flight;
    if (flight->nsteps == KOLO_FLIGHT_STEPS) return KOLO_OK;
    kolo_flight_step_t *at = &flight->steps[flight->nsteps];
    uint64_t unused; /* the first one of a queue waits for what is there: nothing yet */
    if (what == -1 && nt->unpacks != nt->use) KOLO_TRY(kolo_use_stamp(nt->unpacks, &unused));
    bool packs = what == -1 || what == KOLO_DO_WAIT || what == KOLO_DO_COPY_IN;
    at->use = packs ? nt->packs : what == KOLO_DO_COPY_OUT ? nt->unpacks : nt->use;
    KOLO_TRY(kolo_use_stamp(at->use, &at->stamp));
    at->what = what;
    flight->nsteps++;
    return KOLO_OK;
}

void kolo_native_step(kolo_set_t *s, int what)
{
    if (step(s->engine->native, what) == KOLO_OK) return;
    kolo_warn("engine", "the timeline has no times of GPU %d: %s", s->engine->native->use->number,
              kolo_error_text());
}

/* Finds the queue of a set's operations by Kolo; others have one for all sets. All ranks queue what they have in
 * common in one order, so of all that is not over the first can always go on, whatever waits in one stream, or in
 * one queue of the hardware, behind what; and kernels of all streams find room at once, each having a quarter. */
static kolo_status_t find_queue(kolo_set_t *s, bool by_kolo, kolo_use_t **use)
{
    kolo_devices_t *d = s->engine->devices;
    *use = atomic_load(&d->uses[atomic_load(&s->engine->device)]);
    if (!by_kolo || s->id == 0 || !d->quarters) return KOLO_OK;
    if (!s->stream) s->stream = 1 + d->next_stream++ % (int)(kolo_engine_gpu_streams - 1);
    return kolo_use_open_other(s->engine, *use, s->stream - 1, use);
}

/* Chooses where a batch of so many bytes is packed and unpacked; 0: it is not. */
static void choose_queues(kolo_native_t *nt, size_t bytes)
{
    kolo_use_t *use = nt->packs = nt->unpacks = nt->use;
    nt->buffer = -1;
    if (bytes == 0 || !use->sides[0] || bytes < (size_t)kolo_engine_gpu_overlap) return;
    nt->packs = use->sides[KOLO_SIDE_PACKS];
    nt->unpacks = use->sides[KOLO_SIDE_UNPACKS];
    nt->buffer = use->next_buffer;
    use->next_buffer = (nt->buffer + 1) % KOLO_FUSION_BUFFERS;
}

kolo_status_t kolo_native_begin(kolo_set_t *s, kolo_response_t *const *batch, size_t n, bool *native)
{
    struct kolo_tensor_engine *e = s->engine;
    kolo_native_t *nt = &e->devices->native;
    bool waited = false;
    *native = false;
    if (!kolo_native_may(s, batch[0])) return KOLO_OK;
    kolo_need_t need = need_of(s, batch, n);
    bool adasum = need.work == KOLO_WORK_ALL_REDUCE && need.op == KOLO_ADASUM;
    if (adasum) need.op = KOLO_SUM; /* where a sum would run; by messages between the GPUs, which Kolo has */
    bool by_kolo = adasum || kolo_backend_is_kolo(s, &need);
    if (kolo_backend_takes_device(s, &need) && !s->gpu_asked && by_kolo) KOLO_TRY(open_gpu(s));
    if (!kolo_backend_takes_device(s, &need) || (adasum && s->gpu_missing)) return KOLO_OK;
    KOLO_TRY(find_queue(s, by_kolo, &nt->use));
    choose_queues(nt, n > 1 ? need.bytes : 0);
    bool parts = n > 1 && batch[0]->request.work != KOLO_WORK_ALL_REDUCE;
    KOLO_TRY(kolo_flight_take(e, &s->lane, n, parts ? n * (size_t)s->size : n, &nt->flight));
    nt->flight->set = s;
    nt->flight->uses = UINT32_C(1) << nt->use->number;
    nt->flight->end = nt->unpacks;
    e->native = nt;
    *native = true;
    if (KOLO_UNLIKELY(e->timeline != NULL)) kolo_native_step(s, -1);
    s->ran_native = true;
    kolo_use_follow_last(nt->packs, batch, n);
    for (size_t i = 0; i < n; i++)
        if (batch[i]->entry) KOLO_TRY(kolo_use_follow(nt->packs, batch[i]->entry, &waited));
    if (KOLO_UNLIKELY(e->timeline != NULL) && waited) kolo_native_step(s, KOLO_DO_WAIT);
    return KOLO_OK;
}

void *kolo_native_stream(const kolo_set_t *s)
{
    const kolo_native_t *nt = s->engine->native;
    return nt ? nt->use->ops->stream(nt->use->queue) : NULL;
}

/* Waits until what was queued so far is done, in all queues of the device. */
static kolo_status_t drain(struct kolo_tensor_engine *e, kolo_use_t *use)
{
    static const char what[] = "work in a fusion buffer that is to grow";
    uint64_t mark;
    for (int i = -1; i < KOLO_SIDES; i++) {
        kolo_use_t *each = i < 0 ? use : use->sides[i];
        if (!each) continue;
        KOLO_TRY(kolo_use_mark(each, &mark));
        KOLO_TRY(kolo_use_wait(e, each, mark, what));
    }
    return KOLO_OK;
}

kolo_status_t kolo_native_room(kolo_set_t *s, kolo_native_room_t which, size_t bytes, void **memory)
{
    kolo_use_t *use = s->engine->native->use;
    kolo_mem_t *room = &use->rooms[which];
    if (bytes > room->bytes) {
        bytes = KOLO_MAX(bytes, KOLO_MAX(2 * room->bytes, LEAST_BYTES));
        if (room->address) { /* what was queued before may use it */
            KOLO_TRY(drain(s->engine, use));
            kolo_mem_free(room);
        }
        KOLO_TRY(use->row->make(use->number, bytes, room));
    }
    *memory = room->address;
    return KOLO_OK;
}

kolo_status_t kolo_native_lift(kolo_set_t *s, const kolo_lift_t *list, size_t n)
{
    return kolo_use_lift(s->engine->native->use, list, n);
}

kolo_status_t kolo_native_buffer(kolo_set_t *s, size_t bytes, void **packed)
{
    const kolo_native_t *nt = s->engine->native;
    if (nt->buffer < 0) return kolo_native_room(s, KOLO_ROOM_INPUT, bytes, packed);
    KOLO_TRY(kolo_native_room(s, KOLO_ROOM_SIDES + (kolo_native_room_t)nt->buffer, bytes, packed));
    return kolo_use_after(nt->packs, nt->unpacks, nt->use->busy[nt->buffer]); /* its last batch is unpacked */
}

/* Has `later` wait for all that `earlier` has been given so far. */
static kolo_status_t go_behind(kolo_use_t *later, kolo_use_t *earlier)
{
    uint64_t mark;
    if (later == earlier) return KOLO_OK;
    KOLO_TRY(kolo_use_mark(earlier, &mark));
    return kolo_use_after(later, earlier, mark);
}

kolo_status_t kolo_native_packed(kolo_set_t *s)
{
    return go_behind(s->engine->native->use, s->engine->native->packs);
}

kolo_status_t kolo_native_reduced(kolo_set_t *s)
{
    return go_behind(s->engine->native->unpacks, s->engine->native->use);
}

kolo_status_t kolo_native_swap(kolo_set_t *s, int peer, const kolo_swap_t *w)
{
    struct kolo_tensor_engine *e = s->engine;
    kolo_comm_t gpu = atomic_load(&s->gpu);
    void *stream = kolo_native_stream(s);
    kolo_status_t status = KOLO_OK;
    KOLO_TRY(kolo_group_start());
    if (w->nout > 0) status = kolo_send(w->out, w->nout, w->type, peer, gpu, stream);
    if (w->nin > 0 && status == KOLO_OK) status = kolo_recv(w->in, w->nin, w->type, peer, gpu, stream);
    kolo_status_t ended = kolo_group_end();
    if (status == KOLO_OK) status = ended;
    if (status == KOLO_OK) return KOLO_OK;
    e->foreign_failure = true; /* as any move that fails there (kolo_backend_run()) */
    e->backend_failed = status != KOLO_ERR_SYSTEM;
    return status;
}

kolo_status_t kolo_native_end(kolo_set_t *s, kolo_response_t *const *batch, size_t n, kolo_entry_t **done,
                              size_t *ndone, kolo_flight_t **later)
{
    struct kolo_tensor_engine *e = s->engine;
    kolo_native_t *nt = e->native;
    kolo_flight_t *flight = nt->flight;
    kolo_use_t *use = flight->end;
    uint64_t *mark = &flight->marks[use->number];
    KOLO_TRY(kolo_use_mark(use, mark));
    if (nt->buffer >= 0) nt->use->busy[nt->buffer] = *mark;
    KOLO_TRY(kolo_use_lead(use, *mark, batch, n));
    for (size_t i = 0; i < n; i++) {
        kolo_entry_t *entry = batch[i]->entry;
        if (!entry) continue; /* this rank has joined */
        entry->event = use->ops->event_of(use->queue, *mark);
        entry->late = !entry->stream && entry->status == KOLO_OK;
        if (entry->late)
            flight->entries[flight->nentries++] = entry;
        else
            done[(*ndone)++] = entry;
    }
    if (KOLO_UNLIKELY(e->timeline != NULL)) flight->late = kolo_late_new(s, batch, n);
    e->native = NULL;
    *later = flight->nentries > 0 || flight->late ? flight : NULL;
    if (!*later) kolo_flight_free(flight);
    return KOLO_OK;
}
