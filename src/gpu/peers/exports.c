/* SPDX-License-Identifier: Apache-2.0
 *
 * Boards of offered and of mapped allocations; see exports.h. The owner of a board alone writes it; others have it
 * mapped to read. What cudaMalloc() gave goes by the driver's handles of 64 bytes, runs of pieces by descriptors
 * (pieces.h). What the driver refuses is not asked for again.
 *
 * What is freed is withdrawn before anything is offered, and unmapped before anything is mapped in its pages
 * (spans.h).
 */
#include "gpu/peers/exports.h"
#include "base/file/fds.h"
#include "base/log.h"
#include "base/process.h"
#include "gpu/peers/pieces.h"
#include "gpu/peers/spans.h"
#include "share/memfd.h"
#include "wire/mapped.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    _Atomic uint64_t id; /* 0: nothing is offered here */
    kolo_cu_ipc_t handle;
    uint64_t base, bytes;      /* as its owner sees it */
    kolo_pieces_card_t pieces; /* of none: by the handle */
} offer_t;
typedef struct {
    _Atomic uint64_t id; /* of the offer that this rank has looked at */
    uint64_t address;    /* as this rank's GPU sees it; 0: it cannot be mapped */
} mapped_t;
typedef struct {
    _Alignas(64) _Atomic uint32_t changes; /* of offers */
    offer_t offers[KOLO_EXPORTS_PLACES];
    mapped_t mapped[KOLO_EXPORTS_RANKS][KOLO_EXPORTS_PLACES]; /* by owner and place */
} board_t;

typedef struct {
    const board_t *board;                       /* NULL: in this process */
    uint32_t seen;                              /* of its changes */
    bool again;                                 /* what it offers can be mapped only later */
    uint64_t process;                           /* which one it is */
    kolo_cu_ptr_t mapped[KOLO_EXPORTS_PLACES];  /* by a handle */
    kolo_pieces_t *pieces[KOLO_EXPORTS_PLACES]; /* or by these */
} peer_t;

struct kolo_exports {
    int nranks, rank;
    kolo_wire_ctx_t *ctx;
    const kolo_cuda_device_t *device;
    board_t *mine;
    peer_t peers[KOLO_EXPORTS_RANKS];
    uint64_t used[KOLO_EXPORTS_PLACES]; /* when each place was asked for last */
    uintptr_t base[KOLO_EXPORTS_PLACES];
    kolo_cuda_run_t *run[KOLO_EXPORTS_PLACES]; /* its pieces; NULL: one allocation */
    bool fetched[KOLO_EXPORTS_PLACES];         /* descriptors are offered no more */
    bool kept[KOLO_EXPORTS_PLACES];
    uint64_t refused[KOLO_EXPORTS_PLACES]; /* allocations that the driver gives no handle for */
    uint64_t clock;
    uint32_t refusals;
    kolo_spans_closer_t *closer; /* NULL: out of memory */
};

/* Travels; fixed layout. */
typedef struct {
    uint8_t name[KOLO_FDPASS_NAME_BYTES];
} board_card_t;

/* ---- boards ---- */

static kolo_status_t make_board(kolo_exports_t *e, kolo_wire_ctx_t *ctx, board_card_t *card)
{
    int fd = -1;
    KOLO_TRY(kolo_random(card->name, sizeof card->name));
    KOLO_TRY(kolo_memfd_make("kolo-gpu-exports", sizeof(board_t), &fd));
    void *map = mmap(NULL, sizeof(board_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    kolo_status_t status;
    if (map == MAP_FAILED) {
        status = kolo_fail_errno(KOLO_ERR_NO_MEMORY, errno, "cannot map a board of offered GPU memory");
    } else {
        e->mine = map;
        status = kolo_fdpass_offer(card->name, ctx->key, &fd, 1, 0);
    }
    kolo_fd_close(fd);
    return status;
}

static kolo_status_t map_board(kolo_exports_t *e, kolo_wire_ctx_t *ctx, int peer, const board_card_t *card)
{
    const kolo_peer_card_t *owner = &ctx->member->peers[peer];
    int fd = -1;
    KOLO_TRY(kolo_wire_fetch(ctx, owner, card->name, KOLO_FDPASS_MAY_COME, &fd, 1));
    kolo_status_t status = kolo_memfd_check(fd, sizeof(board_t), KOLO_WHO(owner));
    if (status == KOLO_OK) {
        void *map = mmap(NULL, sizeof(board_t), PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
            status = kolo_fail_errno(KOLO_ERR_NO_MEMORY, errno, "cannot map the board of rank %d", peer);
        else
            e->peers[peer].board = map;
        e->peers[peer].process = owner->process_hash;
    }
    kolo_fd_close(fd);
    return status;
}

kolo_status_t kolo_exports_open(kolo_wire_ctx_t *ctx, const kolo_cuda_device_t *device, int nranks,
                                kolo_exports_t **exports)
{
    const kolo_peer_card_t *peers = ctx->member->peers;
    int rank = kolo_oob_rank(ctx->oob);
    board_card_t cards[KOLO_EXPORTS_RANKS] = {0};
    bool others = false;
    *exports = NULL;
    for (int r = 0; r < nranks; r++) others = others || peers[r].process_hash != peers[rank].process_hash;
    if (!others || nranks > KOLO_EXPORTS_RANKS) return KOLO_OK; /* all ranks see the same */
    kolo_exports_t *e = calloc(1, sizeof *e);
    if (!e) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for a board of offered GPU memory");
    e->nranks = nranks;
    e->rank = rank;
    e->ctx = ctx;
    e->device = device;
    e->closer = kolo_spans_closer_open(device);
    kolo_status_t status = make_board(e, ctx, &cards[rank]);
    if (status == KOLO_OK) status = kolo_oob_all_gather(ctx->oob, cards, sizeof *cards);
    for (int i = 1; i < nranks && status == KOLO_OK; i++) {
        int p = (rank + i) % nranks;
        if (peers[p].process_hash != peers[rank].process_hash) status = map_board(e, ctx, p, &cards[p]);
    }
    if (status == KOLO_OK) status = kolo_oob_barrier(ctx->oob); /* all have fetched */
    kolo_fdpass_withdraw(cards[rank].name);
    if (status == KOLO_OK)
        *exports = e;
    else
        kolo_exports_close(e);
    return status;
}

/* ---- what others offer ---- */

static void unmap_what(peer_t *p, int place, kolo_spans_closer_t *closer)
{
    kolo_spans_unmap(p->mapped[place], closer);
    p->mapped[place] = 0;
    kolo_pieces_unmap(p->pieces[place]);
    p->pieces[place] = NULL;
}

/* Withdraws the place's descriptors and forgets what is known of its pieces. */
static void end_run(kolo_exports_t *e, int place)
{
    if (e->run[place] && !e->fetched[place]) kolo_pieces_withdraw(&e->mine->offers[place].pieces);
    free(e->run[place]);
    e->run[place] = NULL;
}

void kolo_exports_close(kolo_exports_t *e)
{
    if (!e) return;
    for (int i = 0; i < KOLO_EXPORTS_PLACES && e->mine; i++) end_run(e, i);
    for (int r = 0; r < e->nranks; r++) {
        for (int i = 0; i < KOLO_EXPORTS_PLACES; i++) unmap_what(&e->peers[r], i, e->closer);
        if (e->peers[r].board) munmap((void *)(uintptr_t)e->peers[r].board, sizeof(board_t)); /* NOLINT: to const */
    }
    kolo_spans_closer_end(e->closer);
    if (e->mine) munmap(e->mine, sizeof(board_t));
    free(e);
}

/* Unmaps a place in which another allocation than before is, or none: its owner says that nobody uses the old
 * one. */
static void unmap_place(kolo_exports_t *e, int owner, int place)
{
    mapped_t *m = &e->mine->mapped[owner][place];
    uint64_t id = atomic_load_explicit(&e->peers[owner].board->offers[place].id, memory_order_acquire);
    if (id == atomic_load_explicit(&m->id, memory_order_relaxed)) return;
    atomic_store_explicit(&m->id, 0, memory_order_release);
    unmap_what(&e->peers[owner], place, e->closer);
}

/* Maps an offer at *address. Returns NULL, or why it is not mapped; *later: what is in its way is being closed. */
static const char *map_offer(kolo_exports_t *e, int owner, int place, const offer_t *offer, uint64_t *address,
                             bool *later)
{
    peer_t *p = &e->peers[owner];
    uint64_t id = atomic_load_explicit(&offer->id, memory_order_relaxed);
    *later = false;
    if (!offer->pieces.n) {
        kolo_spans_what_t what = {offer->handle, p->process, id, offer->base, offer->bytes};
        const char *why = kolo_spans_map(&what, &p->mapped[place], later);
        *address = p->mapped[place];
        return why;
    }
    if (kolo_pieces_map(e->ctx, owner, &offer->pieces, offer->bytes, e->device, &p->pieces[place]) == KOLO_OK) {
        *address = kolo_pieces_at(p->pieces[place]);
        return NULL;
    }
    *address = 0;
    return kolo_error_text();
}

/* Returns false: it cannot be mapped before something else is closed. */
static bool map_place(kolo_exports_t *e, int owner, int place)
{
    bool later;
    const offer_t *theirs = &e->peers[owner].board->offers[place];
    mapped_t *m = &e->mine->mapped[owner][place];
    uint64_t id = atomic_load_explicit(&theirs->id, memory_order_acquire), address;
    if (!id || id == atomic_load_explicit(&m->id, memory_order_relaxed)) return true;
    offer_t offer = {
        .id = id, .handle = theirs->handle, .base = theirs->base, .bytes = theirs->bytes, .pieces = theirs->pieces};
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&theirs->id, memory_order_relaxed) != id) return true; /* it is being changed */
    unmap_what(&e->peers[owner], place, e->closer);
    const char *why = map_offer(e, owner, place, &offer, &address, &later);
    if (later) return false;
    kolo_info("wire", "rank %d: allocation %llu of rank %d: %s%s", e->rank, (unsigned long long)id, owner,
              why ? "not mapped: " : "mapped", why ? why : "");
    kolo_error_clear();
    m->address = address;
    atomic_store_explicit(&m->id, id, memory_order_release);
    return true;
}

/* Descriptors that all have fetched, or could not use, hold memory for nothing. */
static void end_fetched(kolo_exports_t *e, int place)
{
    uint64_t id = atomic_load_explicit(&e->mine->offers[place].id, memory_order_relaxed);
    if (!e->run[place] || e->fetched[place]) return;
    for (int r = 0; r < e->nranks; r++) {
        const board_t *theirs = e->peers[r].board;
        if (theirs && atomic_load_explicit(&theirs->mapped[e->rank][place].id, memory_order_acquire) != id) return;
    }
    kolo_pieces_withdraw(&e->mine->offers[place].pieces);
    e->fetched[place] = true;
}

void kolo_exports_look(kolo_exports_t *e)
{
    for (int i = 0; i < KOLO_EXPORTS_PLACES; i++) end_fetched(e, i);
    for (int r = 0; r < e->nranks; r++) {
        peer_t *p = &e->peers[r];
        if (!p->board) continue;
        uint32_t changes = atomic_load_explicit(&p->board->changes, memory_order_acquire);
        if (changes == p->seen && !p->again) continue;
        p->seen = changes;
        p->again = false;
        for (int i = 0; i < KOLO_EXPORTS_PLACES; i++) unmap_place(e, r, i);
        for (int i = 0; i < KOLO_EXPORTS_PLACES; i++)
            if (!map_place(e, r, i)) p->again = true;
    }
}

/* ---- what this rank offers ---- */

static int place_of(const kolo_exports_t *e, uint64_t id)
{
    for (int i = 0; i < KOLO_EXPORTS_PLACES; i++)
        if (atomic_load_explicit(&e->mine->offers[i].id, memory_order_relaxed) == id) return i;
    return -1;
}

bool kolo_exports_has_room(const kolo_exports_t *e)
{
    return place_of(e, 0) >= 0;
}

/* Returns an empty place, or the one that was asked for longest ago if that may be given up; -1: none. */
static int find_place(const kolo_exports_t *e, uint64_t complete)
{
    int oldest = -1, empty = place_of(e, 0);
    for (int i = 0; i < KOLO_EXPORTS_PLACES && empty < 0; i++)
        if (!e->kept[i] && e->used[i] <= complete && (oldest < 0 || e->used[i] < e->used[oldest])) oldest = i;
    return empty >= 0 ? empty : oldest;
}

/* Was the memory that is offered in this place freed? */
static bool is_freed(const kolo_exports_t *e, int place)
{
    uint64_t id = atomic_load_explicit(&e->mine->offers[place].id, memory_order_relaxed);
    const kolo_cuda_run_t *run = e->run[place];
    if (!id) return false;
    if (run) return !kolo_cuda_run_same(run, run->base, run->bytes);
    return kolo_cuda_buffer_id((const void *)e->base[place]) != id; /* NOLINT: device memory */
}

/* Fills an empty place in, but for its number. */
static bool fill_in(kolo_exports_t *e, int place, const kolo_exports_memory_t *m)
{
    offer_t *offer = &e->mine->offers[place];
    offer->pieces.n = 0;
    offer->base = m->base;
    offer->bytes = m->bytes;
    e->base[place] = m->base;
    if (!m->run) return kolo_cuda_loaded()->ipc_get(&offer->handle, m->base) == KOLO_CU_SUCCESS;
    kolo_cuda_run_t *run = kolo_cuda_run_copy(m->run);
    if (!run || kolo_pieces_offer(e->ctx, run, &offer->pieces) != KOLO_OK) {
        kolo_info("wire", "rank %d: memory of %zu bytes in %u pieces is not offered: %s", e->rank, m->bytes,
                  m->run->n, run ? kolo_error_text() : "out of memory");
        kolo_error_clear();
        free(run);
        return false;
    }
    e->run[place] = run;
    e->fetched[place] = false;
    return true;
}

uint64_t kolo_exports_clock(const kolo_exports_t *e)
{
    return e->clock;
}

bool kolo_exports_offer(kolo_exports_t *e, const kolo_exports_memory_t *m, uint64_t complete)
{
    if (!m->id || place_of(e, m->id) >= 0) return true;
    for (int i = 0; i < KOLO_EXPORTS_PLACES; i++)
        if (e->refused[i] == m->id) return true;
    if (!kolo_exports_withdraw_freed(e, complete)) return false;
    int place = find_place(e, complete);
    if (place < 0) return false;
    offer_t *offer = &e->mine->offers[place];
    atomic_store_explicit(&offer->id, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    end_run(e, place);
    if (fill_in(e, place, m)) {
        atomic_store_explicit(&offer->id, m->id, memory_order_release);
        e->used[place] = ++e->clock;
        e->kept[place] = false;
    } else {
        e->refused[e->refusals++ % KOLO_EXPORTS_PLACES] = m->id;
    }
    atomic_fetch_add_explicit(&e->mine->changes, 1, memory_order_release);
    return true;
}

bool kolo_exports_withdraw_freed(kolo_exports_t *e, uint64_t complete)
{
    bool all = true;
    for (int i = 0; i < KOLO_EXPORTS_PLACES; i++) {
        if (!is_freed(e, i)) continue;
        if (e->used[i] > complete) {
            all = false;
            continue;
        }
        atomic_store_explicit(&e->mine->offers[i].id, 0, memory_order_release);
        end_run(e, i);
        atomic_fetch_add_explicit(&e->mine->changes, 1, memory_order_release);
    }
    return all;
}

uint64_t kolo_exports_at(kolo_exports_t *e, uint64_t id, int peer, bool keep)
{
    const board_t *theirs = e->peers[peer].board;
    int place = id && theirs ? place_of(e, id) : -1;
    if (place < 0) return 0;
    const mapped_t *m = &theirs->mapped[e->rank][place];
    if (atomic_load_explicit(&m->id, memory_order_acquire) != id) return 0;
    e->used[place] = ++e->clock;
    e->kept[place] = e->kept[place] || keep;
    return m->address;
}
