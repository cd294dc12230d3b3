/* SPDX-License-Identifier: Apache-2.0
 *
 * Words of copies without a kernel: how ranks come to share them, who is waited for, and how streams that wait are
 * let go on. See words.h.
 */
#include "gpu/cuda/engines/words.h"
#include "base/clock.h"
#include "base/file/fds.h"
#include "base/log.h"
#include "base/process.h"
#include "share/fdpass.h"
#include "share/memfd.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define STILL_MS   5 /* words that stand still for this long: somebody is waited for */
#define RELEASE_NS (2 * UINT64_C(1000000))

/* Travels; fixed layout. */
typedef struct {
    uint8_t name[KOLO_FDPASS_NAME_BYTES];
    uint32_t able;
} board_card_t;

static kolo_status_t map_lines(kolo_cuda_state_t *s, int fd, kolo_cuda_copies_t *c)
{
    void *at = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return kolo_fail_errno(KOLO_ERR_NO_MEMORY, errno, "rank %d cannot map the words of its copies",
                               s->regions.rank);
    c->lines = at;
    return KOLO_OK;
}

/* Makes the memory on rank 0, which the others fetch. */
static kolo_status_t share_lines(kolo_cuda_state_t *s, kolo_wire_ctx_t *ctx, kolo_cuda_copies_t *c, bool *able)
{
    int rank = s->regions.rank, n = s->regions.nranks, fd = -1;
    board_card_t cards[KOLO_CUDA_RANKS] = {0};
    kolo_status_t status = KOLO_OK;
    cards[rank].able = s->api->stream_wait_word && s->api->stream_write_word;
    if (rank == 0) {
        KOLO_TRY(kolo_random(cards[0].name, sizeof cards[0].name));
        KOLO_TRY(kolo_memfd_make("kolo-gpu-copies", c->bytes, &fd));
        status = kolo_fdpass_offer(cards[0].name, ctx->key, &fd, 1, 0);
    }
    if (status == KOLO_OK) status = kolo_oob_all_gather(ctx->oob, cards, sizeof *cards);
    *able = true;
    for (int r = 0; r < n; r++) *able = *able && cards[r].able;
    const kolo_peer_card_t *owner = &ctx->member->peers[0];
    if (status == KOLO_OK && *able && rank > 0) {
        status = kolo_wire_fetch(ctx, owner, cards[0].name, KOLO_FDPASS_MAY_COME, &fd, 1);
        if (status == KOLO_OK) status = kolo_memfd_check(fd, c->bytes, KOLO_WHO(owner));
    }
    if (status == KOLO_OK && *able) status = map_lines(s, fd, c);
    if (fd >= 0) kolo_fd_close(fd);
    if (status == KOLO_OK) status = kolo_oob_barrier(ctx->oob); /* all have fetched */
    if (rank == 0) kolo_fdpass_withdraw(cards[0].name);
    return status;
}

static kolo_status_t pin(kolo_cuda_state_t *s, kolo_cuda_copies_t *c)
{
    kolo_cu_result_t r = s->api->host_register(c->lines, c->bytes, KOLO_CU_HOST_PORTABLE | KOLO_CU_HOST_MAPPED);
    if (r) return kolo_cuda_fail(r, s->device->ordinal, "pin the words of copies");
    r = s->api->host_device_pointer(&c->device, c->lines, 0);
    if (!r) r = s->api->stream_create(&c->side, KOLO_CU_STREAM_NON_BLOCKING);
    if (!r) r = s->api->event_create(&c->fork, KOLO_CU_EVENT_NO_TIMING);
    if (!r) r = s->api->event_create(&c->join, KOLO_CU_EVENT_NO_TIMING);
    if (!c->device) s->api->host_unregister(c->lines);
    return r ? kolo_cuda_fail(r, s->device->ordinal, "prepare copies without kernels") : KOLO_OK;
}

kolo_status_t kolo_cuda_copies_open(kolo_cuda_state_t *s, kolo_wire_ctx_t *ctx)
{
    size_t n = (size_t)s->regions.nranks;
    bool able;
    if (!kolo_cuda_copies_wanted(s, &s->regions)) return KOLO_OK;
    kolo_cuda_copies_t *c = calloc(1, sizeof *c);
    if (!c) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a GPU communicator");
    s->copies = c;
    c->piece = kolo_cuda_copies_piece(s->regions.nranks);
    c->bytes = KOLO_ROUND_UP(n * n * sizeof(kolo_cuda_line_t), (size_t)4096);
    KOLO_TRY(share_lines(s, ctx, c, &able));
    if (!able) {
        kolo_info("exec", "rank %d: no copies without kernels: some driver has no stream memory operations",
                  s->regions.rank);
        kolo_cuda_copies_close(s);
        return KOLO_OK;
    }
    for (size_t from = 0; from < n; from++)
        for (size_t k = 0; k < KOLO_CUDA_SLOTS; k++)
            atomic_store(&c->lines[(size_t)s->regions.rank * n + from].credit[k], KOLO_CUDA_FREE);
    return pin(s, c);
}

/* Leaves the words pinned: to end that a driver waits for all that the GPU has to do, and other threads' launches
 * wait meanwhile. Nor are they used again, since a late peer may still write there. */
void kolo_cuda_copies_close(kolo_cuda_state_t *s)
{
    kolo_cuda_copies_t *c = s->copies;
    s->copies = NULL;
    if (!c) return;
    if (c->side) s->api->stream_destroy(c->side);
    if (c->fork) s->api->event_destroy(c->fork);
    if (c->join) s->api->event_destroy(c->join);
    if (c->lines && !c->device) munmap(c->lines, c->bytes);
    free(c);
}

/* ---- waits and their end ---- */

/* Returns whether a stream may have taken one away since the last time. */
static bool release(const kolo_cuda_state_t *s)
{
    uint32_t me = (uint32_t)s->regions.rank;
    bool any = false;
    for (uint32_t p = 0; p < (uint32_t)s->regions.nranks; p++) {
        kolo_cuda_line_t *l = kolo_cuda_line(s, me, p);
        if (p == me) continue;
        for (uint32_t k = 0; k < KOLO_CUDA_SLOTS; k++) {
            any = atomic_exchange(&l->ready[k], UINT32_MAX) != UINT32_MAX || any;
            any = atomic_exchange(&l->credit[k], UINT32_MAX) != UINT32_MAX || any;
        }
        atomic_store(&l->also, UINT32_MAX);
    }
    return any;
}

/* Tells whether the last piece of work is still to come to its end. */
static bool is_under_way(const kolo_cuda_state_t *s)
{
    bool pushed;
    if (kolo_cuda_enter(s->device, &pushed) != KOLO_OK) return true;
    bool ready = kolo_cuda_event_query(s->order.event) == KOLO_CU_SUCCESS;
    kolo_cuda_leave(pushed);
    return !ready;
}

void kolo_cuda_copies_release(kolo_cuda_state_t *s)
{
    uint64_t end = kolo_now_ns() + RELEASE_NS;
    if (!s->copies || !s->copies->device) return;
    if (!atomic_exchange(&s->copies->ended, true) && is_under_way(s)) atomic_store(&s->copies->cut, true);
    while (release(s) && kolo_now_ns() < end) sched_yield();
}

bool kolo_cuda_copies_cut(const kolo_cuda_state_t *s)
{
    return s->copies && atomic_load(&s->copies->cut);
}

/* Returns how many pieces the words of a pair show to be begun; *come: the next one may be. */
static uint32_t begun(const _Atomic uint32_t *words, uint32_t id, bool *come)
{
    uint32_t most = 0;
    for (uint32_t k = 0; k < KOLO_CUDA_SLOTS; k++) {
        uint32_t word = atomic_load(&words[k]);
        if (!(word >> 16) && word >> 10 == (id & 0x3f)) most = KOLO_MAX(most, word & 0x3ff);
    }
    *come = atomic_load(&words[most % KOLO_CUDA_SLOTS]) >> 16;
    return most;
}

static void add_wait(kolo_exec_waits_t *w, uint32_t peer, uint32_t step, bool room)
{
    if (w->count < KOLO_EXEC_WAITS)
        w->on[w->count++] = (kolo_exec_await_t){.rank = (int)peer, .step = step, .room = room};
}

/* Tells who is waited for. A replayed step has the words of its last replay: if they show nobody, all its peers. */
static void look(kolo_cuda_state_t *s, uint32_t id, kolo_exec_waits_t *w)
{
    const kolo_cuda_lately_t *l = &s->copies->lately[id];
    uint32_t me = (uint32_t)s->regions.rank, last = l->pieces & 0x3ff;
    for (int all = 0; all < 2 && !w->count; all++) {
        for (uint32_t p = 0; p < (uint32_t)s->regions.nranks; p++) {
            const kolo_cuda_line_t *mine = kolo_cuda_line(s, me, p);
            bool come;
            uint32_t n;
            if (l->takes >> p & 1) {
                n = begun(mine->ready, id, &come);
                if (all || (n != last && !come)) add_wait(w, p, n, false);
            }
            if (l->puts >> p & 1) {
                n = begun(mine->credit, id, &come);
                if (all ? !l->takes : n != last && !come) add_wait(w, p, n, true);
            }
        }
    }
    w->number = l->number;
    w->word = l->word;
}

void kolo_cuda_copies_waits(kolo_cuda_state_t *s, uint64_t now, kolo_exec_waits_t *w)
{
    kolo_cuda_copies_t *c = s->copies;
    uint32_t me = (uint32_t)s->regions.rank;
    if (!c || !c->device) return;
    if (__atomic_load_n(&s->mailbox->abort, __ATOMIC_ACQUIRE)) {
        kolo_cuda_copies_release(s);
        return;
    }
    uint32_t id = atomic_load(&kolo_cuda_line(s, me, me)->ready[0]);
    uint64_t sum = id;
    for (uint32_t p = 0; p < (uint32_t)s->regions.nranks; p++)
        for (uint32_t k = 0; k < KOLO_CUDA_SLOTS && p != me; k++)
            sum = (sum ^ atomic_load(&kolo_cuda_line(s, me, p)->ready[k]) ^
                   (uint64_t)atomic_load(&kolo_cuda_line(s, me, p)->credit[k]) << 32) *
                  UINT64_C(0x9e3779b97f4a7c15);
    if (sum != c->sum) c->since_ns = now;
    c->sum = sum;
    if (!id || id >= KOLO_CUDA_LATELY || w->count || now - c->since_ns < STILL_MS * KOLO_NS_PER_MS) return;
    w->seen_ns = now;
    look(s, id, w);
}
