/* SPDX-License-Identifier: Apache-2.0
 *
 * A batch becomes one collective: small tensors are packed into the fusion buffer (parts.h), reduced, gathered or
 * scattered there and unpacked; a tensor that is alone is reduced where it lies. Then its entries are complete. A
 * rank that has joined has no entry and contributes what changes nothing.
 */
#include "engine/batch/perform.h"
#include "comm/params.h"
#include "engine/backends/backend.h"
#include "engine/batch/native.h"
#include "engine/batch/parts.h"
#include "engine/timeline/timeline.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOTHING_NS 1000 /* a tensor that needs no preparation takes less */

kolo_status_t kolo_output_find(kolo_set_t *s, kolo_entry_t *entry, const int64_t *shape, int ndims,
                               kolo_output_t *output)
{
    *output =
        (kolo_output_t){kolo_output_memory(entry, shape, ndims), NULL, kolo_output_bytes(entry, shape, ndims)};
    if (s->engine->native)
        return output->data || output->bytes == 0
                   ? KOLO_OK
                   : kolo_native_room(s, KOLO_ROOM_OUTPUT, output->bytes, &output->data);
    if (entry->use) return kolo_stage_room(s, entry, output->bytes, &output->data);
    if (output->data || output->bytes == 0) return KOLO_OK;
    output->data = output->scratch = malloc(output->bytes);
    return output->data ? KOLO_OK : kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory: %s", entry->text);
}

static bool lies_over(const kolo_entry_t *entry, const void *in, size_t in_bytes, const kolo_output_t *output,
                      char *text, size_t bytes)
{
    uintptr_t a = (uintptr_t)in, b = (uintptr_t)output->data, end = b + output->bytes;
    if (in_bytes == 0 || output->bytes == 0 || a + in_bytes <= b || end <= a) return false;
    snprintf(text, bytes,
             "tensor %s: its output, 0x%" PRIxPTR " to 0x%" PRIxPTR ", lies over its input, 0x%" PRIxPTR
             " to 0x%" PRIxPTR,
             entry->request.name.text, b, end, a, a + in_bytes);
    return true;
}

/* Tells, with KOLO_CHECK=deep, that the program's output cannot be written. What was submitted with a size that was
 * known then has been looked at (kolo_entry_examine). */
static bool is_out_of_reach(const kolo_entry_t *entry, const kolo_output_t *output, char *text, size_t bytes)
{
    kolo_accessed_t found;
    if (kolo_comm_options.check != KOLO_CHECK_DEEP || entry->use || output->scratch || output->bytes == 0)
        return false;
    kolo_mem_access_find(output->data, output->bytes, true, &found);
    if (found.access == KOLO_ACCESS_FULL) return false;
    snprintf(text, bytes, "tensor %s: its output cannot be written from 0x%" PRIxPTR " on: %s",
             entry->request.name.text, found.at, kolo_mem_access_why(found.access));
    return true;
}

void kolo_output_examine(kolo_entry_t *entry, void *memory, size_t bytes)
{
    const kolo_output_t output = {.data = memory, .bytes = bytes};
    char text[KOLO_TENSOR_NAME_MAX + 200];
    if (is_out_of_reach(entry, &output, text, sizeof text)) kolo_entry_fail(entry, KOLO_ERR_INVALID_ARGUMENT, text);
}

kolo_status_t kolo_output_apart(kolo_set_t *s, kolo_entry_t *entry, const void *in, size_t in_bytes, bool in_place,
                                kolo_output_t *output)
{
    size_t bytes = output->bytes;
    char text[KOLO_TENSOR_NAME_MAX + 200];
    if (!is_out_of_reach(entry, output, text, sizeof text) &&
        !(!in_place && lies_over(entry, in, in_bytes, output, text, sizeof text)))
        return KOLO_OK;
    kolo_entry_fail(entry, KOLO_ERR_INVALID_ARGUMENT, text);
    if (s->engine->native) return kolo_native_room(s, KOLO_ROOM_OUTPUT, bytes, &output->data);
    output->data = output->scratch = malloc(bytes);
    return output->data ? KOLO_OK : kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory: %s", text);
}

kolo_status_t kolo_output_done(kolo_entry_t *entry, const kolo_output_t *output, kolo_status_t status)
{
    free(output->scratch);
    if (status != KOLO_OK || !entry->use || entry->use->engine->native) return status;
    if (entry->status == KOLO_OK) return kolo_stage_out(entry, entry->output, output->bytes);
    kolo_stage_drop(entry);
    return KOLO_OK;
}

kolo_status_t kolo_perform_scale(kolo_set_t *s, void *dst, const void *src, size_t count, kolo_type_t type,
                                 double factor)
{
    if (s->engine->native) return kolo_native_lift(s, &(kolo_lift_t){dst, src, count, type, KOLO_SUM, factor}, 1);
    kolo_values_scale(dst, src, count, type, factor);
    return KOLO_OK;
}

/* ---- batches ---- */

/* A batch on its way. */
typedef struct {
    kolo_response_t *const *responses;
    size_t n;
    kolo_flight_t *flight; /* of what is reduced in a fusion buffer, once it has begun */
    bool more;             /* another batch follows */
    kolo_completed_t done;
} batch_t;

/* ---- reductions ---- */

static size_t count_of(const kolo_response_t *r)
{
    return (size_t)kolo_shape_elements(r->request.shape, r->request.ndims, 0, kolo_type_size(r->request.type));
}

static void timed(_Atomic uint64_t *part, uint64_t *since)
{
    uint64_t now = kolo_now_ns();
    KOLO_TALLY(*part, now - *since);
    *since = now;
}

/* Counts the time, and the timeline gets it, too. */
static void traced(kolo_set_t *s, kolo_response_t *const *batch, size_t n, int what, _Atomic uint64_t *part,
                   uint64_t *since)
{
    uint64_t from = *since;
    timed(part, since);
    if (s->engine->native) {
        if (KOLO_UNLIKELY(s->engine->timeline != NULL)) kolo_native_step(s, what);
        return;
    }
    bool nothing = (what == KOLO_DO_INPUT || what == KOLO_DO_OUTPUT) && *since - from < NOTHING_NS;
    if (KOLO_UNLIKELY(s->engine->timeline != NULL) && !nothing) kolo_trace_do(s, batch, n, what, from, *since);
}

/* Returns what has just been done, and by whom. */
static int operation_of(const kolo_set_t *s, const kolo_tensor_request_t *q)
{
    if (q->op == KOLO_ADASUM && q->work == KOLO_WORK_ALL_REDUCE) return KOLO_DO_ADASUM;
    return KOLO_DO_MOVE(s->engine->backend_ran, q->work);
}

/* Returns where adasum's scratch memory begins behind that many bytes in the fusion buffer. */
static size_t scratch_at(size_t bytes)
{
    return KOLO_ROUND_UP(bytes, (size_t)64);
}

/* Returns what the operator needs behind that many bytes. */
static size_t extra_of(kolo_set_t *s, const kolo_tensor_request_t *q, size_t count, size_t bytes, size_t ntensors)
{
    if (q->op != KOLO_ADASUM) return 0;
    return scratch_at(bytes) - bytes + kolo_adasum_scratch(s, count, kolo_type_size(q->type), ntensors);
}

static kolo_memory_t memory_of(const kolo_set_t *s)
{
    return s->engine->native ? KOLO_MEMORY_DEVICE : KOLO_MEMORY_HOST;
}

/* Memory of a reduction: of one tensor where it lies, or of a packed batch. */
typedef struct {
    const void *in;
    void *out;
    size_t count;  /* elements */
    char *scratch; /* as many bytes as extra_of() says; NULL if that is 0 */
} operands_t;

static kolo_status_t all_reduce(kolo_set_t *s, const batch_t *b, const operands_t *o)
{
    const kolo_tensor_request_t *q = &b->responses[0]->request;
    double unused = 1.0;
    kolo_op_t op = kolo_set_reduction(s, q->op, &unused);
    size_t bytes = o->count * kolo_type_size(q->type);
    if (op != KOLO_ADASUM)
        return kolo_backend_run(s, &(kolo_move_t){.need = {KOLO_WORK_ALL_REDUCE, q->type, op, memory_of(s), bytes},
                                                  .in = o->in,
                                                  .out = o->out,
                                                  .count = o->count,
                                                  .stream = kolo_native_stream(s)});
    if (o->in != o->out && bytes > 0 && s->engine->native)
        KOLO_TRY(kolo_native_lift(s, &(kolo_lift_t){o->out, o->in, o->count, q->type, KOLO_SUM, 1.0}, 1));
    else if (o->in != o->out && bytes > 0)
        memcpy(o->out, o->in, bytes);
    return kolo_adasum(s, b->responses, b->n, o->out, o->scratch);
}

/* Finds what extra_of() wants, where an operation has nothing else of its own. */
static kolo_status_t find_scratch(kolo_set_t *s, size_t bytes, char **scratch)
{
    void *memory = NULL;
    *scratch = NULL;
    if (bytes == 0) return KOLO_OK;
    KOLO_TRY(s->engine->native ? kolo_native_room(s, KOLO_ROOM_SCRATCH, bytes, &memory)
                               : kolo_fusion_room(s->engine, bytes, &memory));
    *scratch = memory;
    return KOLO_OK;
}

/* Takes the part of a rank that has joined. */
static kolo_status_t reduce_nothing(kolo_set_t *s, const batch_t *b)
{
    const kolo_response_t *r = b->responses[0];
    const kolo_tensor_request_t *q = &r->request;
    size_t count = count_of(r), used = count * kolo_type_size(q->type), extra = 0;
    double factor = 1.0;
    kolo_op_t op = kolo_set_reduction(s, q->op, &factor);
    void *buffer = NULL;
    char *scratch = NULL;
    if (s->engine->native) {
        KOLO_TRY(find_scratch(s, extra_of(s, q, count, 0, 1), &scratch));
        KOLO_TRY(kolo_native_room(s, KOLO_ROOM_INPUT, used, &buffer));
        KOLO_TRY(kolo_native_lift(
            s, &(kolo_lift_t){.to = buffer, .count = count, .type = q->type, .op = op, .factor = 1.0}, 1));
    } else {
        extra = extra_of(s, q, count, used, 1);
        KOLO_TRY(kolo_fusion_room(s->engine, used + extra, &buffer));
        kolo_values_fill_identity(buffer, count, q->type, op);
        if (extra > 0) scratch = (char *)buffer + scratch_at(used);
    }
    return all_reduce(s, b, &(operands_t){buffer, buffer, count, scratch});
}

static kolo_status_t reduce_alone(kolo_set_t *s, const batch_t *b)
{
    kolo_response_t *const *batch = b->responses;
    const kolo_response_t *r = batch[0];
    kolo_entry_t *entry = r->entry;
    const kolo_tensor_request_t *q = &r->request;
    size_t count = count_of(r);
    double factor = q->postscale;
    (void)kolo_set_reduction(s, q->op, &factor);
    kolo_output_t out;
    char *scratch;
    uint64_t since = kolo_now_ns();
    if (!entry) return reduce_nothing(s, b);
    KOLO_TRY(find_scratch(s, extra_of(s, q, count, 0, 1), &scratch));
    KOLO_TRY(kolo_output_find(s, entry, q->shape, q->ndims, &out));
    const void *in = entry->input;
    KOLO_TRY(kolo_output_apart(s, entry, in, out.bytes, in == out.data, &out));
    if (q->prescale != 1.0) {
        KOLO_TRY(kolo_perform_scale(s, out.data, in, count, q->type, q->prescale));
        in = out.data;
    }
    if (q->prescale != 1.0 || !s->engine->native)
        traced(s, batch, 1, KOLO_DO_INPUT, &s->engine->tally.pack_ns, &since);
    kolo_status_t status = all_reduce(s, b, &(operands_t){in, out.data, count, scratch});
    traced(s, batch, 1, operation_of(s, q), &s->engine->tally.operate_ns, &since);
    if (status == KOLO_OK && factor != 1.0)
        status = kolo_perform_scale(s, out.data, out.data, count, q->type, factor);
    if (factor != 1.0 || !s->engine->native) traced(s, batch, 1, KOLO_DO_OUTPUT, &s->engine->tally.pack_ns, &since);
    return kolo_output_done(entry, &out, status);
}

/* ---- batches that run ---- */

/* Tells whether there are several tensors, or one to reduce that the CPU does not reach. */
static bool is_buffered(const batch_t *b)
{
    const kolo_response_t *r = b->responses[0]; /* of what does not run on GPUs */
    if (b->n > 1) return true;
    return r->status == KOLO_OK && r->request.work == KOLO_WORK_ALL_REDUCE && r->entry && r->entry->use;
}

static size_t count_all(const batch_t *b)
{
    size_t count = 0;
    for (size_t i = 0; i < b->n; i++) count += count_of(b->responses[i]);
    return count;
}

/* Begins a batch. ahead: while the one before it is reduced. */
static kolo_status_t begin(kolo_set_t *s, batch_t *b, bool ahead)
{
    const kolo_tensor_request_t *q = &b->responses[0]->request;
    size_t count = count_all(b), extra = extra_of(s, q, count, count * kolo_type_size(q->type), b->n);
    return kolo_fusion_begin(s, b->responses, b->n, extra, ahead, &b->flight);
}

static kolo_status_t run_packed(kolo_set_t *s, batch_t *b, void *packed, size_t bytes)
{
    const kolo_tensor_request_t *q = &b->responses[0]->request;
    if (q->work != KOLO_WORK_ALL_REDUCE) return kolo_perform_packed(s, b->responses, b->n, packed);
    KOLO_TALLY(s->engine->tally.packed_bytes, bytes);
    KOLO_TALLY(s->engine->tally.reduced_bytes, bytes);
    size_t count = bytes / kolo_type_size(q->type);
    char *scratch = (char *)packed + scratch_at(bytes);
    if (s->engine->native) KOLO_TRY(find_scratch(s, extra_of(s, q, count, 0, b->n), &scratch));
    return all_reduce(s, b, &(operands_t){packed, packed, count, scratch});
}

static kolo_status_t run_fused(kolo_set_t *s, batch_t *b)
{
    struct kolo_tensor_engine *e = s->engine;
    void *packed;
    uint64_t since = kolo_now_ns();
    if (!b->flight) KOLO_TRY(begin(s, b, false));
    KOLO_TRY(kolo_fusion_await(s, b->flight, &packed));
    traced(s, b->responses, b->n, KOLO_DO_COPY_IN, &e->tally.pack_ns, &since);
    KOLO_TRY(run_packed(s, b, packed, b->flight->bytes));
    traced(s, b->responses, b->n, operation_of(s, &b->responses[0]->request), &e->tally.operate_ns, &since);
    KOLO_TRY(kolo_fusion_end(s, b->flight, b->responses, b->n, b->more, &b->done));
    traced(s, b->responses, b->n, KOLO_DO_COPY_OUT, &e->tally.pack_ns, &since);
    return KOLO_OK;
}

/* Changes the sets as all have agreed. The finisher asks the backends of a set for as long as it has something on
 * GPUs. */
static kolo_status_t change_sets(struct kolo_tensor_engine *e, const kolo_response_t *r)
{
    bool removes = r->request.work == KOLO_WORK_REMOVE_SET && r->entry;
    const kolo_set_t *s = removes ? kolo_sets_find(e, (int)r->entry->request.shape[KOLO_CHANGE_ID]) : NULL;
    if (s && s->rank >= 0) KOLO_TRY(kolo_native_settle(s));
    return kolo_sets_change(e, r);
}

static kolo_status_t run_alone(kolo_set_t *s, const kolo_response_t *r, batch_t *b)
{
    switch (r->request.work) {
    case KOLO_WORK_ALL_REDUCE:
        KOLO_TALLY(s->engine->tally.reduced_bytes, count_of(r) * kolo_type_size(r->request.type));
        return reduce_alone(s, b);
    case KOLO_WORK_BARRIER: /* that all have agreed is the barrier */
        return KOLO_OK;
    case KOLO_WORK_ADD_SET:
    case KOLO_WORK_REMOVE_SET:
        return change_sets(s->engine, r);
    case KOLO_WORK_JOIN:
        s->joined = false;
        s->join = NULL;
        if (r->entry) r->entry->last_joined = r->last_joined;
        return KOLO_OK;
    default: {
        uint64_t since = kolo_now_ns();
        kolo_status_t status = kolo_perform_move(s, r);
        traced(s, b->responses, b->n, operation_of(s, &r->request), &s->engine->tally.operate_ns, &since);
        return status;
    }
    }
}

/* Does the same as run_fused(), queued on a GPU. */
static kolo_status_t run_fused_native(kolo_set_t *s, batch_t *b)
{
    struct kolo_tensor_engine *e = s->engine;
    kolo_flight_t *flight = e->native->flight;
    kolo_use_t *packs = e->native->packs, *unpacks = e->native->unpacks;
    size_t bytes = kolo_parts_layout(s, b->responses, b->n).bytes, unpacked = 0;
    uint64_t since = kolo_now_ns();
    void *packed;
    KOLO_TRY(kolo_native_buffer(s, bytes, &packed));
    KOLO_TRY(kolo_fusion_pack(s, packs, flight, b->responses, b->n, packed));
    KOLO_TRY(kolo_native_packed(s));
    traced(s, b->responses, b->n, KOLO_DO_COPY_IN, &e->tally.pack_ns, &since);
    KOLO_TRY(run_packed(s, b, packed, bytes));
    traced(s, b->responses, b->n, operation_of(s, &b->responses[0]->request), &e->tally.operate_ns, &since);
    flight->nlifts = 0;
    KOLO_TRY(kolo_native_reduced(s));
    KOLO_TRY(kolo_fusion_unpack(s, unpacks, flight, &(kolo_packed_t){b->responses, b->n, packed}, &unpacked));
    traced(s, b->responses, b->n, KOLO_DO_COPY_OUT, &e->tally.pack_ns, &since);
    return KOLO_OK;
}

static kolo_status_t run_native(kolo_set_t *s, batch_t *b)
{
    KOLO_TRY(b->n > 1 ? run_fused_native(s, b) : run_alone(s, b->responses[0], b));
    return kolo_native_end(s, b->responses, b->n, s->engine->entries, &b->done.n, &b->done.later);
}

static kolo_status_t run(kolo_set_t *s, batch_t *b)
{
    const kolo_response_t *r = b->responses[0];
    bool native;
    if (r->status == KOLO_OK && r->request.work < KOLO_MOVES) KOLO_TALLY(s->engine->tally.operations, 1);
    KOLO_TRY(kolo_native_begin(s, b->responses, b->n, &native));
    if (native) return run_native(s, b);
    if (is_buffered(b)) return run_fused(s, b);
    kolo_status_t status = KOLO_OK;
    if (r->status == KOLO_OK) {
        status = run_alone(s, r, b);
    } else {
        if (r->entry) kolo_entry_fail(r->entry, r->status, r->text ? r->text : "");
        if (r->request.work >= KOLO_WORK_ADD_SET && r->entry) status = kolo_sets_change(s->engine, r);
    }
    if (!r->entry) return status;
    b->done.later = r->entry->stage;
    if (!b->done.later) s->engine->entries[b->done.n++] = r->entry;
    return status;
}

static kolo_status_t room_for_entries(kolo_set_t *s, size_t n)
{
    if (n <= s->engine->entries_room) return KOLO_OK;
    kolo_entry_t **p = realloc(s->engine->entries, n * sizeof(kolo_entry_t *));
    if (!p) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %zu tensors", n);
    s->engine->entries = p;
    s->engine->entries_room = n;
    return KOLO_OK;
}

static kolo_status_t perform(kolo_set_t *s, batch_t *b)
{
    struct kolo_tensor_engine *e = s->engine;
    KOLO_TRY(room_for_entries(s, b->n));
    b->done.entries = e->entries;
    if (KOLO_UNLIKELY(e->timeline != NULL)) kolo_trace_begin(s, b->responses, b->n);
    e->backend_failed = e->foreign_failure = false;
    kolo_status_t status = run(s, b);
    s->operations++;
    if (status != KOLO_OK) {
        KOLO_TRY(kolo_failed_keep(s, b->responses, b->n, status));
        if (b->flight) kolo_flight_free(b->flight);
    }
    if (KOLO_UNLIKELY(e->timeline != NULL)) kolo_trace_done(s, b->responses, b->n);
    uint64_t since = kolo_now_ns();
    if (status != KOLO_OK) return KOLO_OK;
    size_t n = b->done.n;
    if (b->done.later) n += kolo_flight_hand_over(e, b->done.later);
    KOLO_TALLY(e->tally.tensors, n);
    if (b->done.n > 0) kolo_tensors_finish(&s->lane, e->entries, b->done.n);
    timed(&e->tally.complete_ns, &since);
    return KOLO_OK;
}

static batch_t batch_at(const kolo_batches_t *batches, size_t i)
{
    size_t from = i ? batches->ends[i - 1] : 0;
    return (batch_t){
        .responses = batches->responses + from, .n = batches->ends[i] - from, .more = i + 1 < batches->nbatches};
}

/* Packs the next batch while this one is reduced, where that is not this thread's work. */
kolo_status_t kolo_perform(kolo_set_t *s, const kolo_batches_t *batches)
{
    if (batches->nbatches == 0) return KOLO_OK;
    batch_t now = batch_at(batches, 0), next;
    for (size_t i = 0; i < batches->nbatches; i++, now = next) {
        if (now.more) next = batch_at(batches, i + 1);
        if (now.more && is_buffered(&next) && !kolo_native_may(s, next.responses[0]) &&
            kolo_fusion_overlaps(s, next.responses, next.n))
            KOLO_TRY(begin(s, &next, true));
        KOLO_TRY(perform(s, &now));
        if (!now.more) break;
    }
    return kolo_fusion_settle(s->engine);
}
