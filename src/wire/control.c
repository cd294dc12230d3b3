/* SPDX-License-Identifier: Apache-2.0
 *
 * Control pages: one per rank and communicator, found by peers under a name that derives from job and rank.
 * See control.h.
 */
#include "wire/control.h"
#include "base/failpoint.h"
#include "base/file/fds.h"
#include "base/log.h"
#include "share/fdpass.h"
#include "share/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE_BYTES   KOLO_CONTROL_BYTES
#define COPY_ENDS_MS 1000
#define LOOK_EACH_MS 5
#define QUIET_RANKS  8

struct kolo_control {
    kolo_control_page_t *page;
    int fd; /* of the page, lent to the descriptor server; -1: it has none */
    uint8_t name[KOLO_FDPASS_NAME_BYTES];
    bool serving, waking, offered;
    int npeers;
    kolo_control_peer_t *_Atomic
        *peers; /* by index on this host, NULL: not met; another thread may look on failure */
};

static void control_name(uint64_t job, int rank, uint8_t name[KOLO_FDPASS_NAME_BYTES])
{
    struct {
        uint64_t job, rank;
    } key = {job, (uint64_t)rank};
    uint64_t words[2];
    words[0] = kolo_hash_bytes(KOLO_HASH_INIT, &key, sizeof key);
    words[1] = kolo_hash_bytes(words[0] ^ 0x6b6f6c6f20637472ull, &key, sizeof key);
    memcpy(name, words, KOLO_FDPASS_NAME_BYTES);
}

/* Makes the control page. Where the process may have no memory with a descriptor it meets nobody there:
 * wire/memfd.c keeps it off the cards. */
static kolo_status_t make_page(kolo_wire_ctx_t *ctx, kolo_control_t *control)
{
    const bool alone = !kolo_memfd_may(PAGE_BYTES);
    if (!alone) KOLO_TRY(kolo_memfd_make("kolo-control", PAGE_BYTES, &control->fd));
    void *base = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, alone ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED,
                      control->fd, 0);
    if (base == MAP_FAILED) return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "cannot map a control page");
    control->page = (kolo_control_page_t *)base;
#ifdef F_SEAL_FUTURE_WRITE
    if (!alone)
        (void)fcntl(control->fd, F_ADD_SEALS,
                    F_SEAL_FUTURE_WRITE); /* peers only read it; older kernels: they could write */
#endif
    *control->page = (kolo_control_page_t){
        .magic = KOLO_CONTROL_MAGIC,
        .version = KOLO_CONTROL_VERSION,
        .rank = ctx->member->rank,
        .pid = (int32_t)getpid(),
        .job = ctx->job,
    };
    return KOLO_OK;
}

static kolo_status_t open_parts(kolo_wire_ctx_t *ctx, kolo_control_t *control)
{
    control->npeers = ctx->member->node_size[ctx->member->my_node];
    control->peers = (kolo_control_peer_t * _Atomic *)calloc((size_t)control->npeers, sizeof(*control->peers));
    if (!control->peers) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for %d control pages", control->npeers);
    KOLO_TRY(kolo_fdpass_start());
    control->serving = true;
    KOLO_FAIL_POINT_TRY("wire.control.page");
    KOLO_TRY(make_page(ctx, control));
    KOLO_TRY(kolo_waker_init_shared(&ctx->waker, &control->page->asleep));
    control->waking = true;
    control->page->bell = ctx->waker.bell->number;
    ctx->waker.outlasts = control->npeers <= kolo_cores_quota();
    ctx->waker.quiet = control->npeers > QUIET_RANKS;
    control_name(ctx->job, ctx->member->rank, control->name);
    if (control->fd < 0) return KOLO_OK;
    int fds[2] = {control->fd, ctx->waker.event_fd};
    KOLO_TRY(kolo_fdpass_lend(control->name, ctx->key, fds, 2));
    control->offered = true;
    return KOLO_OK;
}

kolo_status_t kolo_control_open(kolo_wire_ctx_t *ctx)
{
    kolo_control_t *control = (kolo_control_t *)calloc(1, sizeof *control);
    if (!control) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for a control page");
    control->fd = -1;
    (void)kolo_cores(); /* registers the process for the barriers of sleeping peers before any of them can sleep */
    ctx->control = control;
    kolo_status_t status = open_parts(ctx, control);
    if (status != KOLO_OK) kolo_control_fini(ctx);
    return status;
}

/* Tells whether the process has ended, or was killed: its memory, which is freed first, may take seconds. */
static bool has_died(const kolo_control_peer_t *peer)
{
    struct pollfd pfd = {.fd = peer->alive_fd, .events = POLLIN};
    if (peer->alive_fd < 0) return false;
    return atomic_load_explicit(&peer->end, memory_order_relaxed) != KOLO_PROCESS_LIVES || poll(&pfd, 1, 0) > 0;
}

kolo_process_end_t kolo_control_look(kolo_control_peer_t *peer)
{
    peer->look_ns = kolo_deadline_ms(LOOK_EACH_MS);
    if (peer->visible && peer->alive_fd >= 0)
        atomic_store_explicit(&peer->end, (int)kolo_process_end(peer->pid), memory_order_relaxed);
    return (kolo_process_end_t)atomic_load_explicit(&peer->end, memory_order_relaxed);
}

/* ---- copies between the memories of ranks ---- */

/* Two ranks of one process have mapped a page twice, which the thread sanitizer takes for two places: it has to be
 * told that who reads touching comes after who wrote it. */
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
static char all_copies;
#define SYNC_AFTER_COPY()   __tsan_release(&all_copies)
#define SYNC_BEFORE_REUSE() __tsan_acquire(&all_copies)
#else
#define SYNC_AFTER_COPY()   ((void)0)
#define SYNC_BEFORE_REUSE() ((void)0)
#endif

typedef struct {
    const kolo_wire_ctx_t *ctx;
    const kolo_control_peer_t *peer;
} copier_t;

static bool is_touched_by(const kolo_wire_ctx_t *ctx, const kolo_control_peer_t *peer)
{
    return atomic_load(&peer->page->touching) == (uint32_t)ctx->member->rank + 1;
}

static void describe_copier(void *arg, char *buf, size_t bytes)
{
    const copier_t *c = arg;
    snprintf(buf, bytes, "the end of a copy by rank %d (process %d) from or to the memory of rank %d",
             c->peer->rank, c->peer->pid, c->ctx->member->rank);
}

static bool may_still_copy(const kolo_control_peer_t *peer)
{
    struct pollfd pfd = {.fd = peer->alive_fd, .events = POLLIN};
    if (peer->alive_fd < 0) return true;
    return poll(&pfd, 1, 0) <= 0 && !(peer->visible && kolo_process_end(peer->pid) == KOLO_PROCESS_ENDS);
}

static void await_copy(const kolo_wire_ctx_t *ctx, const kolo_control_peer_t *peer)
{
    kolo_wait_t wait;
    copier_t copier = {ctx, peer};
    if (!is_touched_by(ctx, peer)) return;
    /* No deadline in the wait itself: its error would take the place of the one that brought us here. */
    uint64_t end = kolo_deadline_ms(COPY_ENDS_MS);
    kolo_wait_init(&wait, NULL, 0, describe_copier, &copier, ctx->control->npeers);
    while (is_touched_by(ctx, peer) && may_still_copy(peer) && kolo_now_ns() < end) (void)kolo_wait_pause(&wait);
    kolo_wait_end(&wait);
    if (is_touched_by(ctx, peer) && may_still_copy(peer))
        kolo_warn("wire",
                  "rank %d gives its buffers back although rank %d (process %d) may still copy there: it is "
                  "stopped or has no core",
                  ctx->member->rank, peer->rank, peer->pid);
}

/* Sets failed before it reads touching; begin_copy has them the other way round: one sees the other. */
void kolo_control_fail(kolo_wire_ctx_t *ctx)
{
    kolo_control_t *control = ctx->control;
    if (!control || !control->page) return;
    atomic_store(&control->page->failed, 1);
    for (int i = 0; i < control->npeers; i++) {
        const kolo_control_peer_t *peer = atomic_load_explicit(&control->peers[i], memory_order_acquire);
        if (peer) await_copy(ctx, peer);
    }
    SYNC_BEFORE_REUSE();
}

static kolo_status_t check_copy(const kolo_wire_ctx_t *ctx, const kolo_control_peer_t *peer)
{
    if (KOLO_LIKELY(atomic_load(&peer->page->failed) == 0)) return KOLO_OK;
    return kolo_fail(KOLO_ERR_REMOTE, "rank %d cannot copy from or to rank %d, whose own operation has failed",
                     ctx->member->rank, peer->rank);
}

kolo_status_t kolo_control_begin_copy(kolo_wire_ctx_t *ctx, const kolo_control_peer_t *peer)
{
    atomic_store(&ctx->control->page->touching, (uint32_t)peer->rank + 1);
    kolo_status_t status = check_copy(ctx, peer);
    if (KOLO_UNLIKELY(status != KOLO_OK)) atomic_store(&ctx->control->page->touching, 0);
    return status;
}

kolo_status_t kolo_control_end_copy(kolo_wire_ctx_t *ctx, const kolo_control_peer_t *peer)
{
    atomic_thread_fence(memory_order_acquire); /* the copy was before */
    kolo_status_t status = check_copy(ctx, peer);
    SYNC_AFTER_COPY();
    atomic_store_explicit(&ctx->control->page->touching, 0, memory_order_release);
    return status;
}

void kolo_control_close(kolo_wire_ctx_t *ctx)
{
    kolo_control_t *control = ctx->control;
    if (!control || !control->page) return;
    atomic_store_explicit(&control->page->closed, 1, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
    for (int i = 0; i < control->npeers; i++) {
        const kolo_control_peer_t *peer = atomic_load_explicit(&control->peers[i], memory_order_acquire);
        if (peer) kolo_doorbell_ring(&peer->page->asleep, peer->event_fd);
    }
}

static void free_peer(kolo_control_peer_t *peer)
{
    if (peer->page) munmap((void *)(uintptr_t)peer->page, PAGE_BYTES);
    kolo_doorbell_put(peer->bell);
    free(peer);
}

void kolo_control_fini(kolo_wire_ctx_t *ctx)
{
    kolo_control_t *control = ctx->control;
    if (!control) return;
    if (control->offered) kolo_fdpass_withdraw(control->name);
    for (int i = 0; control->peers && i < control->npeers; i++)
        if (control->peers[i]) free_peer(control->peers[i]);
    if (control->waking) kolo_waker_fini(&ctx->waker);
    if (control->fd >= 0) kolo_fd_close(control->fd);
    if (control->page) munmap(control->page, PAGE_BYTES);
    if (control->serving) kolo_fdpass_stop();
    free(control->peers);
    free(control);
    ctx->control = NULL;
}

static kolo_status_t check_page(const kolo_wire_ctx_t *ctx, const kolo_control_page_t *page, int rank)
{
    if (page->magic == KOLO_CONTROL_MAGIC && page->version == KOLO_CONTROL_VERSION && page->rank == rank &&
        page->job == ctx->job && page->bell != 0)
        return KOLO_OK;
    return kolo_fail(KOLO_ERR_PROTOCOL, "the control page of rank %d is not one (magic %08x, version %u, rank %d)",
                     rank, page->magic, page->version, page->rank);
}

static kolo_status_t meet_peer(kolo_wire_ctx_t *ctx, int rank, kolo_control_peer_t *peer)
{
    const kolo_peer_card_t *card = &ctx->member->peers[rank];
    uint8_t name[KOLO_FDPASS_NAME_BYTES];
    kolo_fdpass_peer_t process;
    int fds[2];
    control_name(ctx->job, rank, name);
    KOLO_TRY(kolo_wire_fetch_peer(ctx, card, name, fds, &process));
    peer->pid = process.pid;
    peer->visible =
        process.pid == card->pid && kolo_member_process_hash(card->host_hash, process.pid) == card->process_hash;
    KOLO_FAIL_POINT("wire.control.met");
    kolo_status_t status = kolo_memfd_check(fds[0], PAGE_BYTES, KOLO_WHO(card));
    void *base = MAP_FAILED;
    if (status == KOLO_OK) {
        base = mmap(NULL, PAGE_BYTES, PROT_READ, MAP_SHARED, fds[0], 0);
        if (base == MAP_FAILED)
            status = kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "cannot map the control page of rank %d", rank);
    }
    kolo_fd_close(fds[0]);
    if (status == KOLO_OK) {
        peer->page = (const kolo_control_page_t *)base;
        status = check_page(ctx, peer->page, rank);
    }
    if (status != KOLO_OK) {
        kolo_fd_close(fds[1]);
        if (process.alive_fd >= 0) kolo_fd_close(process.alive_fd);
        return status;
    }
    KOLO_TRY(kolo_doorbell_meet(card->fd_address, peer->page->bell, fds[1], process.alive_fd, &peer->bell));
    peer->event_fd = peer->bell->event_fd;
    peer->alive_fd = peer->bell->alive_fd;
    return KOLO_OK;
}

kolo_status_t kolo_control_peer(kolo_wire_ctx_t *ctx, int rank, kolo_control_peer_t **out)
{
    kolo_control_t *control = ctx->control;
    if (ctx->member->node_of[rank] != ctx->member->my_node)
        return kolo_fail(KOLO_ERR_INTERNAL, "rank %d is on another host than rank %d", rank, ctx->member->rank);
    kolo_control_peer_t *_Atomic *at = &control->peers[ctx->member->local_of[rank]];
    kolo_control_peer_t *peer = atomic_load_explicit(at, memory_order_relaxed); /* this thread's own */
    if (!peer) {
        peer = (kolo_control_peer_t *)calloc(1, sizeof *peer);
        if (!peer) return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory to meet rank %d", rank);
        peer->rank = rank;
        peer->event_fd = peer->alive_fd = -1;
        kolo_status_t status = meet_peer(ctx, rank, peer);
        if (status != KOLO_OK) {
            free_peer(peer);
            return status;
        }
        atomic_store_explicit(at, peer, memory_order_release);
    }
    *out = peer;
    return KOLO_OK;
}

bool kolo_control_gone(kolo_control_peer_t *peer)
{
    if (kolo_now_ns() >= peer->look_ns) kolo_control_look(peer);
    return atomic_load_explicit(&peer->page->closed, memory_order_acquire) != 0 || has_died(peer);
}

kolo_status_t kolo_control_check(kolo_wire_ctx_t *ctx, kolo_control_peer_t *peer)
{
    const kolo_peer_card_t *card = &ctx->member->peers[peer->rank];
    bool closed = atomic_load_explicit(&peer->page->closed, memory_order_acquire) != 0;
    /* Died is the graver word: a process that was killed while it closed is dead. */
    if (has_died(peer)) {
        if (!closed) kolo_news_report_lost(ctx->oob, peer->rank, KOLO_LOSS_PROCESS);
        return kolo_fail(KOLO_ERR_REMOTE, "rank %d (host %.32s, pid %d) has died; rank %d shared memory with it",
                         peer->rank, card->host_name, card->pid, ctx->member->rank);
    }
    if (closed)
        return kolo_fail(KOLO_ERR_REMOTE, "rank %d (host %.32s, pid %d) has closed the communicator", peer->rank,
                         card->host_name, card->pid);
    return KOLO_OK;
}
