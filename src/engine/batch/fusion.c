/* SPDX-License-Identifier: Apache-2.0
 *
 * Fusion buffers, and how tensors get into them and out again. There are two, so that one is packed or unpacked
 * while the other is reduced; while nothing overlaps only the first is used. A tensor lies at the same place in the
 * host's buffer and in that of its device: what is on the CPU is packed straight into the former, what is on a
 * device into the latter by the device itself, and crosses over in as few pieces as possible.
 *
 * A queue works in order, so the next batch may be packed into a buffer that the last one is still unpacked from,
 * if both are that one queue's affair alone; otherwise the loop waits.
 */
#include "engine/batch/device.h"
#include "engine/batch/parts.h"
#include "engine/batch/perform.h"
#include "engine/timeline/timeline.h"

#include <stdlib.h>
#include <string.h>

#define LEAST_BYTES 65536
#define CPU_BIT     (UINT32_C(1) << KOLO_USE_CPU)
#define AHEAD_LEAST (256 << 10) /* bytes: packing less takes no longer than telling another thread to do it */

static int use_of(const kolo_response_t *r)
{
    return r->entry && r->entry->use ? r->entry->use->number : KOLO_USE_CPU;
}

/* ---- buffers ---- */

static kolo_status_t grow_host(struct kolo_tensor_engine *e, int b, size_t bytes)
{
    kolo_fusion_buffer_t *buffer = &e->devices->buffers[b];
    void *p = NULL;
    if (buffer->memory && bytes <= buffer->bytes)
        return KOLO_OK; /* of empty tensors there is nothing, yet a place */
    bytes = KOLO_ROUND_UP(KOLO_MAX(KOLO_MAX(bytes, buffer->bytes * 2), (size_t)1), (size_t)LEAST_BYTES);
    if (posix_memalign(&p, 4096, bytes))
        return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for a fusion buffer of %zu bytes", bytes);
    for (int i = 0; i < KOLO_DEVICES_MAX; i++) { /* devices grow theirs, and pin this, when they need it */
        kolo_use_t *use = atomic_load(&e->devices->uses[i]);
        if (!use || !use->buffers[b].address) continue;
        kolo_use_unpin(use, buffer->memory);
        kolo_mem_free(&use->buffers[b]);
    }
    free(buffer->memory);
    buffer->memory = p;
    buffer->bytes = bytes;
    return KOLO_OK;
}

static kolo_status_t grow_device(struct kolo_tensor_engine *e, kolo_use_t *use, int b)
{
    kolo_fusion_buffer_t *buffer = &e->devices->buffers[b];
    kolo_mem_t memory;
    if (use->buffers[b].address) return KOLO_OK;
    KOLO_TRY(use->row->make(use->number, buffer->bytes, &memory));
    kolo_status_t status = kolo_use_pin(use, buffer->memory, buffer->bytes);
    if (status == KOLO_OK)
        use->buffers[b] = memory;
    else
        kolo_mem_free(&memory);
    return status;
}

/* Tells whether it may go behind what the last flight still does with it, in the same queue. */
static bool may_follow(const kolo_flight_t *last, uint32_t uses, bool now)
{
    bool one = (uses & (uses - 1)) == 0;
    return last->uses == uses && one && !last->now && !now;
}

/* Takes the first buffer that nobody uses; else that of the flight that is unpacked. */
static kolo_status_t take_buffer(struct kolo_tensor_engine *e, size_t bytes, uint32_t uses, bool now, int *out)
{
    kolo_devices_t *d = e->devices;
    int b = -1;
    for (int i = 0; i < KOLO_FUSION_BUFFERS && b < 0; i++)
        if (!d->buffers[i].flight || kolo_flight_is_free(d->buffers[i].flight) || d->buffers[i].flight->buffer != i)
            b = i;
    for (int i = 0; i < KOLO_FUSION_BUFFERS && b < 0; i++)
        if (atomic_load(&d->buffers[i].flight->state) != KOLO_FLIGHT_TAKEN) b = i;
    if (b < 0) return kolo_fail(KOLO_ERR_INTERNAL, "engine: all fusion buffers are taken");
    kolo_flight_t *last = d->buffers[b].flight;
    if (last && last->buffer == b && (bytes > d->buffers[b].bytes || !may_follow(last, uses, now)))
        KOLO_TRY(kolo_flight_await(e, last));
    *out = b;
    return grow_host(e, b, bytes);
}

kolo_status_t kolo_fusion_room(struct kolo_tensor_engine *e, size_t bytes, void **memory)
{
    int b;
    KOLO_TRY(take_buffer(e, bytes, 0, true, &b));
    *memory = e->devices->buffers[b].memory;
    return KOLO_OK;
}

/* ---- in and out ---- */

/* Where one tensor's pieces lie in a buffer. */
typedef struct {
    kolo_type_t type;
    const kolo_backend_pieces_t *pieces;
    const size_t *places;
    char *buffer;
} spread_t;

/* Adds copies between its memory, where the pieces follow each other, and the buffer. memory NULL: there is none,
 * and the buffer gets what changes nothing. */
static void add_lifts(kolo_flight_t *flight, spread_t p, char *memory, bool out, kolo_lift_t like)
{
    size_t elem = kolo_type_size(p.type);
    like.type = p.type;
    for (int i = 0; i < p.pieces->n; i++) {
        char *place = p.buffer + p.places[i];
        like.count = kolo_piece_elements(p.pieces, i);
        like.to = out ? memory : place;
        like.from = out ? place : memory;
        flight->lifts[flight->nlifts++] = like;
        if (memory) memory += like.count * elem;
    }
}

/* Copies what of the batch is on this device across, neighbours together. */
static kolo_status_t cross(kolo_set_t *s, kolo_use_t *use, int b, kolo_response_t *const *batch, size_t n, bool out)
{
    size_t elem = kolo_type_size(batch[0]->request.type), at = kolo_parts_places(s, batch, n, out)[0], from = at;
    char *memory = use->buffers[b].address, *host = s->engine->devices->buffers[b].memory;
    size_t npieces = n * (size_t)kolo_pieces_of(s, batch[0], out).n;
    bool mine = false;
    for (size_t i = 0; i <= npieces; i++) { /* part by part, as they lie */
        const kolo_response_t *r = batch[i % n];
        bool is = i < npieces && use_of(r) == use->number;
        if (mine && !is && at > from)
            KOLO_TRY(out ? kolo_use_store(use, memory + from, host + from, at - from)
                         : kolo_use_fetch(use, host + from, memory + from, at - from));
        if (!mine) from = at;
        mine = is;
        if (i == npieces) break;
        kolo_backend_pieces_t pieces = kolo_pieces_of(s, r, out);
        at += kolo_piece_room(&pieces, (int)(i / n)) * elem;
    }
    return KOLO_OK;
}

kolo_status_t kolo_fusion_pack(kolo_set_t *s, kolo_use_t *use, kolo_flight_t *flight, kolo_response_t *const *batch,
                               size_t n, void *packed)
{
    double factor = 1.0;
    kolo_op_t op = kolo_set_reduction(s, batch[0]->request.op, &factor);
    size_t elem = kolo_type_size(batch[0]->request.type), first = flight->nlifts;
    size_t *places = kolo_parts_places(s, batch, n, false);
    for (size_t i = 0; i < n; i++) {
        kolo_entry_t *entry = batch[i]->entry;
        kolo_backend_pieces_t pieces = kolo_pieces_of(s, batch[i], false);
        const spread_t at = {batch[i]->request.type, &pieces, places, packed};
        bool waited;
        if (!entry && s->engine->native) /* this rank has joined */
            add_lifts(flight, at, NULL, false, (kolo_lift_t){.op = op, .factor = 1.0});
        if (use_of(batch[i]) == use->number) {
            KOLO_TRY(kolo_use_follow(use, entry, &waited));
            add_lifts(flight, at, (char *)entry->input, false,
                      (kolo_lift_t){.op = KOLO_SUM, .factor = batch[i]->request.prescale});
        }
        kolo_parts_pass(places, &pieces, elem);
    }
    return kolo_use_lift(use, flight->lifts + first, flight->nlifts - first);
}

static kolo_status_t pack_device(kolo_set_t *s, kolo_use_t *use, kolo_flight_t *flight,
                                 kolo_response_t *const *batch, size_t n)
{
    KOLO_TRY(grow_device(s->engine, use, flight->buffer));
    KOLO_TRY(kolo_fusion_pack(s, use, flight, batch, n, use->buffers[flight->buffer].address));
    return cross(s, use, flight->buffer, batch, n, false);
}

static void pack_cpu(kolo_set_t *s, kolo_flight_t *flight, char *host, kolo_response_t *const *batch, size_t n)
{
    double unused = 1.0;
    kolo_op_t op = kolo_set_reduction(s, batch[0]->request.op, &unused); /* whose identity the absent contribute */
    size_t elem = kolo_type_size(batch[0]->request.type), *places = kolo_parts_places(s, batch, n, false);
    for (size_t i = 0; i < n; i++) {
        const kolo_response_t *r = batch[i];
        kolo_backend_pieces_t pieces = kolo_pieces_of(s, r, false);
        if (use_of(r) == KOLO_USE_CPU)
            add_lifts(flight, (spread_t){r->request.type, &pieces, places, host},
                      r->entry ? (char *)r->entry->input : NULL, false,
                      (kolo_lift_t){.op = op, .factor = r->entry ? r->request.prescale : 1.0});
        kolo_parts_pass(places, &pieces, elem);
    }
}

/* Queues the copies, or makes them at once if that is how the flight does it. */
static kolo_status_t lift_cpu(struct kolo_tensor_engine *e, kolo_flight_t *flight, size_t first)
{
    const kolo_lift_t *list = flight->lifts + first;
    if (flight->now) {
        kolo_lift_now(list, flight->nlifts - first);
        return KOLO_OK;
    }
    kolo_use_t *use;
    KOLO_TRY(kolo_engine_devices_open(e, KOLO_USE_CPU, &use));
    KOLO_TRY(kolo_use_lift(use, list, flight->nlifts - first));
    return kolo_use_mark(use, &flight->marks[KOLO_USE_CPU]);
}

static kolo_status_t fail_pack(const kolo_use_t *use, kolo_status_t status, kolo_response_t *const *batch,
                               const char *doing)
{
    return kolo_fail_prefix(status, "engine: %s tensor %.300s on device %d: ", doing, batch[0]->request.name.text,
                            use->number);
}

bool kolo_fusion_overlaps(kolo_set_t *s, kolo_response_t *const *batch, size_t n)
{
    if (s->engine->devices->overlap) return true;
    for (size_t i = 0; i < n; i++)
        if (use_of(batch[i]) != KOLO_USE_CPU) return true;
    return false;
}

/* Tells whether what is the CPU's is done on the spot: something of a device is there to be waited for anyway, or
 * nothing would go on meanwhile, or it is not worth a word. */
static bool does_now(const struct kolo_tensor_engine *e, uint32_t uses, bool overlaps, size_t bytes)
{
    if (!(uses & CPU_BIT)) return false;
    return uses != CPU_BIT || !overlaps || !e->devices->overlap || bytes < AHEAD_LEAST;
}

kolo_status_t kolo_fusion_begin(kolo_set_t *s, kolo_response_t *const *batch, size_t n, size_t extra, bool ahead,
                                kolo_flight_t **out)
{
    struct kolo_tensor_engine *e = s->engine;
    size_t bytes = kolo_parts_layout(s, batch, n).bytes;
    bool parts = batch[0]->request.work != KOLO_WORK_ALL_REDUCE;
    uint32_t uses = 0;
    kolo_flight_t *flight;
    KOLO_TRY(kolo_flight_take(e, &s->lane, n, parts ? n * (size_t)s->size : n, &flight));
    for (size_t i = 0; i < n; i++) uses |= UINT32_C(1) << use_of(batch[i]);
    flight->now = does_now(e, uses, ahead, bytes);
    KOLO_TRY(take_buffer(e, bytes + extra, uses, flight->now, &flight->buffer));
    flight->uses = uses;
    flight->bytes = bytes;
    e->devices->buffers[flight->buffer].flight = flight;
    for (int i = 0; i < KOLO_DEVICES_MAX; i++) {
        if (!(uses >> i & 1)) continue;
        kolo_use_t *use = atomic_load(&e->devices->uses[i]);
        kolo_status_t status = pack_device(s, use, flight, batch, n);
        if (status == KOLO_OK) status = kolo_use_mark(use, &flight->marks[i]);
        if (status != KOLO_OK) return fail_pack(use, status, batch, "packing");
    }
    if (uses & CPU_BIT) {
        size_t first = flight->nlifts;
        pack_cpu(s, flight, e->devices->buffers[flight->buffer].memory, batch, n);
        KOLO_TRY(lift_cpu(e, flight, first));
    }
    *out = flight;
    return KOLO_OK;
}

kolo_status_t kolo_fusion_await(kolo_set_t *s, kolo_flight_t *flight, void **memory)
{
    struct kolo_tensor_engine *e = s->engine;
    for (int i = 0; i < KOLO_USES; i++) {
        if (!(flight->uses >> i & 1) || (i == KOLO_USE_CPU && flight->now)) continue;
        KOLO_TRY(kolo_use_wait(e, atomic_load(&e->devices->uses[i]), flight->marks[i], "packing of tensors"));
    }
    *memory = e->devices->buffers[flight->buffer].memory;
    return KOLO_OK;
}

/* Results of those tensors that are `of` a device, from where they lie packed. Their entries go to `entries`. */
static size_t unpack(kolo_set_t *s, kolo_flight_t *flight, const kolo_packed_t *packed, int of,
                     kolo_entry_t **entries)
{
    kolo_response_t *const *batch = packed->responses;
    size_t elem = kolo_type_size(batch[0]->request.type), nentries = 0, n = packed->n;
    size_t *places = kolo_parts_places(s, batch, n, true);
    int64_t shape[KOLO_TENSOR_DIMS_MAX];
    for (size_t i = 0; i < n; i++) {
        const kolo_response_t *r = batch[i];
        kolo_backend_pieces_t pieces = kolo_pieces_of(s, r, true);
        double factor = r->request.postscale;
        if (r->entry && use_of(r) == of) {
            entries[nentries++] = r->entry;
            kolo_set_reduction(s, r->request.op, &factor);
            kolo_parts_result_shape(s, r, shape);
            char *output = kolo_output_memory(r->entry, shape, r->request.ndims);
            kolo_output_examine(r->entry, output, kolo_output_bytes(r->entry, shape, r->request.ndims));
            if (r->entry->status == KOLO_OK)
                add_lifts(flight, (spread_t){r->request.type, &pieces, places, packed->packed}, output, true,
                          (kolo_lift_t){.op = KOLO_SUM, .factor = factor});
        }
        kolo_parts_pass(places, &pieces, elem);
    }
    return nentries;
}

kolo_status_t kolo_fusion_unpack(kolo_set_t *s, kolo_use_t *use, kolo_flight_t *flight, const kolo_packed_t *batch,
                                 size_t *nentries)
{
    size_t first = flight->nlifts;
    *nentries += unpack(s, flight, batch, use->number, flight->entries + *nentries);
    return kolo_use_lift(use, flight->lifts + first, flight->nlifts - first);
}

static kolo_status_t unpack_device(kolo_set_t *s, kolo_use_t *use, kolo_flight_t *flight,
                                   kolo_response_t *const *batch, size_t n)
{
    KOLO_TRY(cross(s, use, flight->buffer, batch, n, true));
    const kolo_packed_t packed = {batch, n, use->buffers[flight->buffer].address};
    KOLO_TRY(kolo_fusion_unpack(s, use, flight, &packed, &flight->nentries));
    return kolo_use_mark(use, &flight->marks[use->number]);
}

kolo_status_t kolo_fusion_end(kolo_set_t *s, kolo_flight_t *flight, kolo_response_t *const *batch, size_t n,
                              bool more, kolo_completed_t *done)
{
    struct kolo_tensor_engine *e = s->engine;
    char *packed = e->devices->buffers[flight->buffer].memory;
    flight->nlifts = flight->nentries = done->n = 0;
    for (int i = 0; i < KOLO_DEVICES_MAX; i++) {
        if (!(flight->uses >> i & 1)) continue;
        kolo_use_t *use = atomic_load(&e->devices->uses[i]);
        kolo_status_t status = unpack_device(s, use, flight, batch, n);
        if (status != KOLO_OK) return fail_pack(use, status, batch, "unpacking");
    }
    if (flight->uses & CPU_BIT) {
        size_t first = flight->nlifts;
        flight->now = does_now(e, flight->uses, more, flight->bytes);
        done->n = unpack(s, flight, &(kolo_packed_t){batch, n, packed}, KOLO_USE_CPU,
                         flight->now ? done->entries : flight->entries);
        KOLO_TRY(lift_cpu(e, flight, first));
    }
    if ((flight->uses & CPU_BIT) && !flight->now) {
        flight->nentries = done->n;
        done->n = 0;
    }
    done->later = flight;
    if (!flight->now || flight->uses != CPU_BIT) return KOLO_OK;
    done->later = NULL;
    kolo_flight_free(flight);
    return KOLO_OK;
}

static bool is_stuck(const kolo_devices_t *d, int i)
{
    const kolo_use_t *use = atomic_load(&d->uses[i]);
    return use && use->stuck;
}

/* Does a device that is stuck still have a part in it? */
static bool is_kept(const kolo_devices_t *d, const kolo_flight_t *flight)
{
    if (kolo_flight_is_free(flight)) return false;
    bool kept = flight->on && flight->on->stuck;
    for (int i = 0; i < KOLO_USES; i++) kept |= (flight->uses >> i & 1) && is_stuck(d, i);
    return kept;
}

static void free_buffer(kolo_devices_t *d, int b)
{
    bool kept = is_stuck(d, KOLO_USE_CPU); /* it packs straight into that of the host */
    for (int i = 0; i < KOLO_DEVICES_MAX; i++) {
        kolo_use_t *use = atomic_load(&d->uses[i]);
        if (!use || !use->buffers[b].address) continue;
        kept |= use->stuck;
        if (use->stuck) continue;
        kolo_use_unpin(use, d->buffers[b].memory);
        kolo_mem_free(&use->buffers[b]);
    }
    if (!kept) free(d->buffers[b].memory);
}

void kolo_fusion_fini(struct kolo_tensor_engine *e)
{
    kolo_devices_t *d = e->devices;
    for (int i = 0; i < KOLO_DEVICES_MAX; i++) {
        kolo_use_t *use = atomic_load(&d->uses[i]), *each;
        for (int q = 0; use && !use->stuck && q < KOLO_USE_QUEUES; q++)
            for (size_t k = 0; (each = kolo_use_queue(use, q)) != NULL && k < KOLO_COUNTOF(each->rooms); k++)
                kolo_mem_free(&each->rooms[k]);
    }
    for (int b = 0; b < KOLO_FUSION_BUFFERS; b++) free_buffer(d, b);
    for (int i = 0; i < KOLO_FLIGHTS; i++) {
        kolo_flight_t *flight = &d->flights[i];
        if (is_kept(d, flight)) continue;
        kolo_flight_free(flight);
        kolo_late_free(flight->late);
        free(flight->entries);
        free(flight->lifts);
    }
}
