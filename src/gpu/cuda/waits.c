/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels wait for, as far as they tell the host (args.h): a wait that lasts writes into pinned memory each
 * time it looks whether it is to end. Nothing is written while all goes well, and nothing is asked of the driver.
 */
#include "base/clock.h"
#include "gpu/cuda/cuda.h"

#include <stdio.h>

#define HISTORY_MS 1000 /* a beat that does not change for this long: the wait is over */

static uint64_t load(const uint64_t *at)
{
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

/* Does this rank's operation wait for `peer`, and in what? */
static bool look(kolo_cuda_state_t *s, int peer, uint64_t now, kolo_exec_waits_t *w, kolo_exec_await_t *on)
{
    const kolo_cuda_waiting_t *line = &s->mailbox->waiting[peer];
    uint64_t beat = load(&line->beat), at = load(&line->at);
    if (beat != s->watched[peer].beat) s->watched[peer].seen_ns = now;
    s->watched[peer].beat = beat;
    if (!beat || now - s->watched[peer].seen_ns > HISTORY_MS * KOLO_NS_PER_MS) return false;
    w->number = load(&line->number);
    w->word = load(&line->word);
    w->seen_ns = s->watched[peer].seen_ns;
    *on = (kolo_exec_await_t){
        .rank = peer, .block = at >> 32 & 0xffff, .step = (uint32_t)at, .room = at >> 48 == KOLO_CUDA_WAITS_CREDIT};
    return true;
}

/* Reads what lanes wait for. Lines of an earlier operation may be left: those of the newest count. */
void kolo_cuda_waits(void *state, kolo_exec_waits_t *waits)
{
    kolo_cuda_state_t *s = state;
    const kolo_cuda_unfit_t *unfit = &s->mailbox->unfit;
    uint64_t now = kolo_now_ns();
    *waits = (kolo_exec_waits_t){.unfit = -1};
    for (int peer = 0; peer < s->regions.nranks; peer++) {
        kolo_exec_waits_t w;
        kolo_exec_await_t on;
        if (!look(s, peer, now, &w, &on)) continue;
        bool newer = !waits->count || (int64_t)(w.number - waits->number) > 0;
        if (!newer && (w.number != waits->number || w.word != waits->word)) continue;
        if (newer) {
            waits->count = 0;
            waits->seen_ns = 0;
        }
        waits->number = w.number;
        waits->word = w.word;
        waits->seen_ns = KOLO_MAX(waits->seen_ns, w.seen_ns);
        if (waits->count < KOLO_EXEC_WAITS) waits->on[waits->count++] = on;
    }
    kolo_cuda_copies_waits(s, now, waits);
    if (__atomic_load_n(&unfit->set, __ATOMIC_ACQUIRE) != 1 || unfit->peer >= (uint32_t)s->regions.nranks) return;
    waits->unfit = (int)unfit->peer;
    waits->unfit_sends = unfit->sends != 0;
    waits->number = unfit->number;
    for (int i = 0; i < 2; i++) {
        uint64_t tag = i ? unfit->theirs : unfit->mine;
        waits->unfit_type[i] = (kolo_type_t)(tag >> 56);
        waits->unfit_bytes[i] = tag << 8 >> 8;
    }
}

void kolo_cuda_awaited(void *state, char *buf, size_t bytes)
{
    static const char *const words[] = {[KOLO_CUDA_WAITS_LINES] = "lines from",
                                        [KOLO_CUDA_WAITS_TILE] = "a tile from",
                                        [KOLO_CUDA_WAITS_CREDIT] = "room at"};
    const kolo_cuda_state_t *s = state;
    const kolo_cuda_report_t *r = &s->mailbox->report;
    buf[0] = 0;
    if (__atomic_load_n(&r->set, __ATOMIC_ACQUIRE) != 1 || r->what > KOLO_CUDA_WAITS_CREDIT) return;
    snprintf(buf, bytes, "block %u waited for %s rank %u, step %u", r->block, words[r->what], r->peer, r->step);
}
