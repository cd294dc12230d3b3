/* SPDX-License-Identifier: Apache-2.0
 *
 * Which of this rank's buffers the GPUs of other ranks reach, and at which address: ranks of one process at the
 * same one, others where they have mapped it (gpu/peers/exports.h). Long operations use that (direct.cuh); what
 * is found here goes to the others with the kernel.
 */
#include "gpu/cuda/cuda.h"

uint64_t kolo_cuda_seen_here(const kolo_cuda_state_t *s, const void *p, bool legacy)
{
    const kolo_cuda_device_t *peer;
    uint64_t seen = 0;
    for (int r = 0; r < s->regions.nranks; r++)
        if (s->regions.here >> r & 1 && kolo_cuda_device(s->regions.ordinal[r], &peer) == KOLO_OK &&
            kolo_cuda_reaches(peer->device, p, legacy))
            seen |= UINT64_C(1) << r;
    return seen;
}

/* Finds what kolo_cuda_check_memory() has just seen. */
static const kolo_cuda_known_t *find(const kolo_cuda_state_t *s, const void *p, uint64_t bytes)
{
    for (int i = 0; i < KOLO_CUDA_KNOWN; i++) {
        const kolo_cuda_known_t *k = &s->known[i];
        uint64_t offset = (uintptr_t)p - k->base;
        if (offset < k->bytes && bytes <= k->bytes - offset) return k;
    }
    return NULL;
}

/* Returns up to which use of places what was queued is complete. */
static uint64_t complete(kolo_cuda_state_t *s)
{
    if (s->marked && kolo_cuda_event_query(s->mark) == KOLO_CU_SUCCESS) {
        s->complete = s->mark_clock;
        s->marked = false;
    }
    return s->complete;
}

void kolo_cuda_mark(kolo_cuda_state_t *s, kolo_cu_stream_t stream)
{
    int now = KOLO_CU_CAPTURE_NONE;
    if (s->marked || s->api->stream_capturing(stream, &now) || now != KOLO_CU_CAPTURE_NONE) return;
    if (s->api->event_record(s->mark, stream)) return;
    s->mark_clock = kolo_exports_clock(s->exports);
    s->marked = true;
    s->wants_mark = false;
}

static void offer(kolo_cuda_state_t *s, const kolo_cuda_known_t *known)
{
    kolo_exports_memory_t m = {known->base, known->bytes, known->id, known->run};
    kolo_exports_look(s->exports);
    if (!kolo_exports_offer(s->exports, &m, complete(s))) s->wants_mark = true;
}

void kolo_cuda_offer(kolo_cuda_state_t *s, const void *p, uint64_t bytes, kolo_cu_stream_t stream)
{
    const kolo_cuda_known_t *known = find(s, p, bytes);
    int now = KOLO_CU_CAPTURE_NONE;
    if (!s->exports || !known || known->here) return;
    s->capturing = s->api->stream_capturing(stream, &now) || now != KOLO_CU_CAPTURE_NONE;
    if (s->capturing) return; /* nothing but the operation itself is to happen now */
    offer(s, known);
}

static kolo_status_t expect_entered(kolo_cuda_state_t *s, const void *p, uint64_t bytes)
{
    s->asks = NULL;
    KOLO_TRY(kolo_cuda_check_memory(s, p, bytes, "the buffer"));
    const kolo_cuda_known_t *known = find(s, p, bytes);
    int mode = KOLO_CU_CAPTURE_RELAXED; /* the program may be capturing */
    if (!s->exports || !known || known->here || !kolo_exports_has_room(s->exports)) return KOLO_OK;
    s->api->capture_mode(&mode);
    offer(s, known);
    s->api->capture_mode(&mode);
    return KOLO_OK;
}

kolo_status_t kolo_cuda_expect(void *state, const void *p, uint64_t bytes)
{
    kolo_cuda_state_t *s = state;
    bool pushed;
    KOLO_TRY(kolo_cuda_enter(s->device, &pushed));
    kolo_status_t status = expect_entered(s, p, bytes);
    kolo_cuda_leave(pushed);
    return status;
}

void kolo_cuda_tidy(kolo_cuda_state_t *s, kolo_cu_stream_t stream)
{
    int now = KOLO_CU_CAPTURE_NONE;
    if (s->api->stream_capturing(stream, &now) || now != KOLO_CU_CAPTURE_NONE) return;
    kolo_exports_look(s->exports);
    if (!kolo_exports_withdraw_freed(s->exports, complete(s))) s->wants_mark = true;
}

uint64_t kolo_cuda_seen_by(const kolo_cuda_state_t *s, const void *p, uint64_t bytes, int peer)
{
    const kolo_cuda_known_t *known = find(s, p, bytes);
    if (!known) return 0;
    if (known->seen >> peer & 1) return (uintptr_t)p;
    if (!s->exports) return 0;
    uint64_t at = kolo_exports_at(s->exports, known->id, peer, s->capturing);
    return at ? at + ((uintptr_t)p - known->base) : 0;
}

void kolo_cuda_expose(kolo_cuda_state_t *s, const kolo_exec_call_t *call, kolo_cuda_long_args_t *a)
{
    uint64_t src, dst;
    kolo_exec_reach(call, s->regions.rank, s->regions.nranks, &src, &dst);
    if (call->src) kolo_cuda_offer(s, call->src, src, call->stream);
    if (call->dst) kolo_cuda_offer(s, call->dst, dst, call->stream);
    bool all = a->c.scale != KOLO_CUDA_SCALE_OWN; /* others must not see the input as it is */
    for (int r = 0; r < s->regions.nranks; r++) {
        a->src[r] = call->src ? kolo_cuda_seen_by(s, call->src, src, r) : 0;
        a->dst[r] = call->dst ? kolo_cuda_seen_by(s, call->dst, dst, r) : 0;
        all = all && (a->src[r] || !call->src) && (a->dst[r] || !call->dst);
    }
    a->c.reachable = all ? KOLO_CUDA_REACHABLE : 0;
    if (all && kolo_cuda_gives(s, call, &a->c)) a->c.reachable |= KOLO_CUDA_APART;
}
