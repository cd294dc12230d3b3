/* SPDX-License-Identifier: Apache-2.0
 *
 * Is what a call names memory of this rank's GPU? What was found is kept, so that a call need only ask the driver
 * whether the same allocation is still there, or the same pieces of a run.
 */
#include "base/clock.h"
#include "exec/place.h"
#include "gpu/cuda/cuda.h"

#include <stdatomic.h>
#include <stdlib.h>

/* Numbers of runs: no allocation's, and each only once. */
#define RUNS (UINT64_C(1) << 63)
static _Atomic uint64_t last_run;

/* For so long a call by lines does not ask again: a question to the driver takes a tenth of a microsecond, and to
 * free memory takes about as long as this. Longer calls always ask: others have their buffers mapped by number. */
#define SOON_NS 50000u

static void forget(kolo_cuda_known_t *k)
{
    free(k->run);
    *k = (kolo_cuda_known_t){0};
}

void kolo_cuda_forget_memory(kolo_cuda_state_t *s)
{
    for (int i = 0; i < KOLO_CUDA_KNOWN; i++) forget(&s->known[i]);
}

/* Finds what is known of memory, which may have been freed since, with other memory there now. */
static bool find_known(kolo_cuda_state_t *s, uintptr_t at, uint64_t bytes)
{
    for (int i = 0; i < KOLO_CUDA_KNOWN; i++) {
        kolo_cuda_known_t *k = &s->known[i];
        if (at - k->base >= k->bytes || bytes > k->bytes - (at - k->base)) continue;
        if (KOLO_UNLIKELY(k->run != NULL)) {
            if (kolo_cuda_run_same(k->run, at, bytes)) return true;
        } else if (s->asked_ns && s->asked_ns - k->asked_ns < SOON_NS) {
            return true;
        } else if (KOLO_LIKELY(k->id && k->id == kolo_cuda_buffer_id((const void *)at))) { /* NOLINT */
            k->asked_ns = s->asked_ns;
            return true;
        }
        forget(k);
    }
    return false;
}

/* Keeps it instead of what was known of memory that was there before, longer or shorter; but runs may share pieces,
 * where there are more than one takes. */
static void keep(kolo_cuda_state_t *s, kolo_cuda_known_t new)
{
    for (int i = 0; i < KOLO_CUDA_KNOWN; i++) {
        kolo_cuda_known_t *k = &s->known[i];
        if (k->base >= new.base + new.bytes || new.base >= k->base + k->bytes) continue;
        bool both = new.run != NULL && k->run != NULL;
        if (!both || !kolo_cuda_run_same(k->run, k->base, k->bytes)) forget(k);
    }
    kolo_cuda_known_t *k = &s->known[s->next_known++ % KOLO_CUDA_KNOWN];
    forget(k);
    *k = new;
}

static void keep_run(kolo_cuda_state_t *s, const kolo_mem_place_t *place, uintptr_t at, uint64_t bytes)
{
    kolo_cuda_run_t *run = kolo_cuda_run_find(place, at, bytes);
    if (!run) return; /* by stages, and looked at again the next time */
    kolo_cuda_known_t new = {.base = run->base, .bytes = run->bytes, .run = run, .seen = UINT64_MAX};
    uintptr_t piece = run->base;
    for (uint32_t i = 0; i < run->n; piece += run->pieces[i++].bytes)
        new.seen &= kolo_cuda_seen_here(s, (const void *)piece, false); /* NOLINT: device memory */
    if (run->shareable) new.id = RUNS | (atomic_fetch_add(&last_run, 1) + 1);
    keep(s, new);
}

kolo_status_t kolo_cuda_check_memory(kolo_cuda_state_t *s, const void *p, uint64_t bytes, const char *what)
{
    uintptr_t at = (uintptr_t)p;
    kolo_mem_place_t place;
    if (!bytes) return KOLO_OK;
    if (KOLO_LIKELY(find_known(s, at, bytes))) return KOLO_OK;
    kolo_mem_find(p, &place);
    bool own = place.ops == &kolo_mem_cuda && place.device == s->device->ordinal;
    bool other = !own && kolo_cuda_find_other(s->device, p, &place);
    bool captured = !own && !other && kolo_cuda_find_captured(s->device, s->asks, p, &place);
    KOLO_TRY(kolo_exec_check_place(&place, p, bytes, s->regions.rank, s->device->ordinal, what));
    if (captured) return KOLO_OK; /* by lines and stages; it has no number to know it again by */
    if (other)                    /* likewise */
        keep(s, (kolo_cuda_known_t){
                    .base = place.base, .bytes = place.bytes, .id = kolo_cuda_buffer_id(p), .here = true});
    else if (place.joins)
        keep_run(s, &place, at, bytes);
    else
        keep(s, (kolo_cuda_known_t){.base = place.base,
                                    .bytes = place.bytes,
                                    .id = kolo_cuda_buffer_id(p),
                                    .seen = kolo_cuda_seen_here(s, p, place.peers)});
    return KOLO_OK;
}

/* Tells whether what was just found of the source is true of the destination, too. */
static bool in_one(const kolo_cuda_state_t *s, uintptr_t src, uint64_t sends, uintptr_t dst, uint64_t receives)
{
    for (int i = 0; i < KOLO_CUDA_KNOWN; i++) {
        const kolo_cuda_known_t *k = &s->known[i];
        if (src - k->base >= k->bytes || sends > k->bytes - (src - k->base)) continue;
        return dst - k->base < k->bytes && receives <= k->bytes - (dst - k->base) && k->id && !k->run;
    }
    return false;
}

static kolo_status_t check_both(kolo_cuda_state_t *s, const void *src, uint64_t sends, const void *dst,
                                uint64_t receives)
{
    if (src) KOLO_TRY(kolo_cuda_check_memory(s, src, sends, "the source"));
    if (!dst || (src && sends && in_one(s, (uintptr_t)src, sends, (uintptr_t)dst, receives))) return KOLO_OK;
    return kolo_cuda_check_memory(s, dst, receives, "the destination");
}

kolo_status_t kolo_cuda_check_buffers(kolo_cuda_state_t *s, const void *src, uint64_t sends, const void *dst,
                                      uint64_t receives, bool by_lines)
{
    s->asked_ns = by_lines ? kolo_now_ns() : 0;
    kolo_status_t status = check_both(s, src, sends, dst, receives);
    s->asked_ns = 0;
    return status;
}
