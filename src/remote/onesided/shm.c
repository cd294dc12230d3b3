/* SPDX-License-Identifier: Apache-2.0
 *
 * One-sided transfers between processes of one host. Each end makes a segment for its peer to write to: a ring of
 * notices, then an arena. The peer maps it and copies into it; a segment has one writer, so a faulty peer damages
 * only what it sends. The socket stays open: its end shows that the peer has gone. Memory that lies elsewhere in
 * the peer's process is written by process_vm_writev(), where the kernel permits it (decision 0023).
 */
#include "base/file/fds.h"
#include "base/log.h"
#include "base/process.h"
#include "remote/onesided/internal.h"
#include "share/fdpass.h"
#include "share/memfd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define SEGMENT_MAGIC 0x73736f6bu /* "koss" */
#define FETCH_MS      10000
#define COPY_FROM     (4u << 20)          /* from here on copiers do it, ... */
#define COPIES        8                   /* ... of so many writes at a time */
#define IN_PROCESS    (UINT64_C(1) << 63) /* of a window's address: not in the segment, but in the peer's process */
#define AT_ONCE       (8u << 20)          /* bytes of one call of progress, so that other ends have their turn */

typedef struct {
    _Alignas(32) _Atomic uint64_t seq; /* number of the notice + 1 when it is there */
    uint64_t bytes;
    uint32_t number, pad[3];
} notice_t;
_Static_assert(sizeof(notice_t) == 32, "the ring is shared between processes");

typedef struct { /* at the beginning of a segment */
    uint32_t magic, ring;
    uint64_t arena_bytes;
    _Atomic uint32_t permitted;             /* says the peer: it may copy into the owner's process */
    _Atomic uint32_t closed;                /* says the owner: nothing is to be written any more */
    kolo_onesided_route_t route;            /* of the owner's connection */
    _Alignas(64) _Atomic uint64_t consumed; /* by the owner */
    _Alignas(64) notice_t notices[];
} segment_t;

typedef struct {
    segment_t *mine; /* in end->arena; the peer writes there, so what it says is not asked again */
    uint32_t ring;
    uint64_t next_in;
    uint8_t id[16];
    bool offered;
    segment_t *theirs;
    size_t their_bytes;
    uint32_t their_ring;
    uint64_t their_arena, their_skip, next_out;
    void *their_page; /* asleep word */
    int their_bell;
    int their_pid; /* 0: this process may not copy into theirs */
    int alive_fd;  /* readable once that process has ended; -1: it is this one */
    bool hung_up;  /* the socket has ended; what lies in the ring comes first */
    unsigned looks;
} shm_t;

/* What a segment has besides its arena, at most. */
#define ROOM_BYTES (64u << 20)

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t head_bytes(uint32_t ring)
{
    return KOLO_ROUND_UP(sizeof(segment_t) + ring * sizeof(notice_t), page_bytes());
}

static kolo_status_t make_segment(kolo_onesided_t *end, shm_t *shm, kolo_onesided_card_t *card)
{
    int fd;
    uint32_t ring = 2;
    while (ring < (uint64_t)kolo_onesided_param_ring) ring *= 2;
    size_t head = head_bytes(ring), bytes = KOLO_ROUND_UP((size_t)kolo_onesided_param_arena, page_bytes());
    KOLO_TRY(kolo_memfd_make("kolo-onesided", head + bytes, &fd));
    kolo_status_t status = kolo_arena_create(fd, head, bytes, &end->arena);
    if (status == KOLO_OK) {
        shm->mine = (segment_t *)(void *)kolo_arena_map(end->arena);
        shm->ring = ring;
        shm->mine->magic = SEGMENT_MAGIC;
        shm->mine->ring = ring;
        shm->mine->arena_bytes = bytes;
        kolo_onesided_route(end, &shm->mine->route);
        card->ring = ring;
        card->segment_bytes = head + bytes;
        memcpy(card->segment, shm->id, sizeof shm->id);
        card->probe = (uint64_t)(uintptr_t)shm->id;
        int fds[3] = {fd, end->domain->page_fd, end->domain->waker.event_fd};
        status = kolo_fdpass_offer(shm->id, end->domain->key, fds, 3, 1);
        shm->offered = status == KOLO_OK;
    }
    kolo_fd_close(fd);
    return status;
}

static kolo_status_t offer(kolo_onesided_t *end, kolo_onesided_card_t *card)
{
    if (end->domain->page_fd < 0 || !kolo_memfd_may((uint64_t)kolo_onesided_param_arena + ROOM_BYTES))
        return KOLO_ERR_UNSUPPORTED;
    shm_t *shm = calloc(1, sizeof *shm);
    if (shm == NULL)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "onesided: no memory for the connection with %s", end->who);
    shm->their_bell = shm->alive_fd = -1;
    end->state[KOLO_ONESIDED_SHM] = shm;
    card->shm_hash = end->domain->shm_hash;
    memcpy(card->fd_address, end->domain->fd_address, sizeof card->fd_address);
    KOLO_TRY(kolo_random(shm->id, sizeof shm->id));
    return make_segment(end, shm, card);
}

static kolo_status_t map_theirs(kolo_onesided_t *end, shm_t *shm, const int fds[3],
                                const kolo_onesided_card_t *peer)
{
    KOLO_TRY(kolo_memfd_check(fds[0], (size_t)peer->segment_bytes, end->who));
    KOLO_TRY(kolo_memfd_check(fds[1], page_bytes(), end->who));
    void *map =
        mmap(NULL, (size_t)peer->segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fds[0], 0);
    if (map == MAP_FAILED)
        return kolo_fail_errno(KOLO_ERR_NO_MEMORY, errno, "onesided: cannot map the %llu bytes of %s",
                               (unsigned long long)peer->segment_bytes, end->who);
    shm->theirs = map;
    shm->their_bytes = (size_t)peer->segment_bytes;
    void *page = mmap(NULL, page_bytes(), PROT_READ, MAP_SHARED, fds[1], 0);
    if (page == MAP_FAILED) return kolo_fail_errno(KOLO_ERR_NO_MEMORY, errno, "onesided: cannot map a page");
    shm->their_page = page;
    shm->their_ring = peer->ring;
    shm->their_skip = head_bytes(peer->ring);
    shm->their_arena = shm->their_bytes - shm->their_skip;
    if (shm->theirs->magic != SEGMENT_MAGIC || shm->theirs->ring != peer->ring ||
        shm->theirs->arena_bytes != shm->their_arena)
        return kolo_fail(KOLO_ERR_PROTOCOL, "the segment of %s is not what its card says", end->who);
    return KOLO_OK;
}

/* Tries whether this process may copy into the one that serves the peer's segment, which the kernel names. It has
 * to be the other end of this connection, and to hold the segment's number where the card says. */
static void probe(kolo_onesided_t *end, shm_t *shm, const kolo_onesided_card_t *peer, int pid)
{
    uint8_t id[16] = {0};
    struct iovec here = {id, sizeof id}, there = {(void *)(uintptr_t)peer->probe, sizeof id};
    const char *why = NULL;
    if (kolo_onesided_param_direct == 0) return;
    if (pid <= 0)
        why = "it is not visible from here";
    else if (!kolo_onesided_joined(end, &shm->theirs->route))
        why = "it is not the other end of this connection, as far as the system tells";
    else if (process_vm_readv(pid, &here, 1, &there, 1, 0) != (ssize_t)sizeof id)
        why = strerror(errno);
    else if (memcmp(id, peer->segment, sizeof id) != 0)
        why = "it is another one here";
    else if (process_vm_writev(pid, NULL, 0, NULL, 0, 0) != 0)
        why = strerror(errno);
    if (why)
        kolo_debug("onesided", "this process may not copy into that of %s (%s): destinations cost a copy more",
                   end->who, why);
    else
        shm->their_pid = pid;
    atomic_store_explicit(&shm->theirs->permitted, why == NULL, memory_order_release);
}

static kolo_status_t connect_end(kolo_onesided_t *end, const kolo_onesided_card_t *peer)
{
    shm_t *shm = end->state[KOLO_ONESIDED_SHM];
    kolo_fdpass_call_t call = {.address = peer->fd_address,
                               .key = end->domain->key,
                               .who = end->who,
                               .deadline_ns = kolo_deadline_ms(FETCH_MS),
                               .ranks_here = 1};
    int fds[3];
    if (peer->segment_bytes <= head_bytes(peer->ring))
        return kolo_fail(KOLO_ERR_PROTOCOL, "the card of %s: its segment has no room", end->who);
    kolo_fdpass_peer_t process = {.alive_fd = -1};
    kolo_status_t status = kolo_fdpass_fetch(&call, peer->segment, KOLO_FDPASS_MUST_BE_THERE, fds, 3, &process);
    if (status != KOLO_OK) return kolo_fail_prefix(status, "shared memory of %s: ", end->who);
    status = map_theirs(end, shm, fds, peer);
    kolo_fd_close(fds[0]);
    kolo_fd_close(fds[1]);
    shm->their_bell = fds[2];
    shm->alive_fd = process.alive_fd;
    if (status == KOLO_OK) probe(end, shm, peer, process.pid);
    return status;
}

static void find_mailbox(const kolo_onesided_card_t *peer, kolo_onesided_window_t *mailbox)
{
    mailbox->address = peer->mailbox_at;
}

static kolo_status_t expose(kolo_onesided_t *end, void *base, size_t bytes, uint64_t *address, uint32_t *salt,
                            void **pin)
{
    (void)salt;
    (void)pin;
    const shm_t *shm = end->state[KOLO_ONESIDED_SHM];
    uintptr_t at = (uintptr_t)base - (uintptr_t)kolo_arena_base(end->arena);
    bool allocated = at <= kolo_arena_size(end->arena) && bytes <= kolo_arena_size(end->arena) - at;
    if (!allocated && !atomic_load_explicit(&shm->mine->permitted, memory_order_acquire))
        return kolo_fail(
            KOLO_ERR_UNSUPPORTED,
            "over shared memory only what was allocated for it can be exposed to %s, which may not copy "
            "into this process",
            end->who);
    *address = allocated ? at : (uint64_t)(uintptr_t)base | IN_PROCESS;
    return KOLO_OK;
}

static bool pays(const kolo_onesided_t *end, uint64_t bytes)
{
    const shm_t *shm = end->state[KOLO_ONESIDED_SHM];
    return kolo_onesided_param_direct > 0 && bytes >= (uint64_t)kolo_onesided_param_direct &&
           atomic_load_explicit(&shm->mine->permitted, memory_order_relaxed);
}

static bool is_in_process(const shm_t *shm, const kolo_pending_write_t *write)
{
    return shm->their_pid && write->w.bytes > 0 && (write->to.address & IN_PROCESS);
}

/* Returns where a write goes; NULL: outside of the peer's memory. */
static char *find_place(const shm_t *shm, const kolo_pending_write_t *write)
{
    uint64_t at = write->to.address + write->w.offset, bytes = write->w.bytes;
    if (is_in_process(shm, write)) return (char *)(uintptr_t)(at & ~IN_PROCESS);
    if (bytes > 0 && (at < write->to.address || at > shm->their_arena || bytes > shm->their_arena - at))
        return NULL;
    return (char *)shm->theirs + shm->their_skip + at;
}

static kolo_copy_t copy_of(kolo_onesided_t *end, const kolo_pending_write_t *write, char *to)
{
    const shm_t *shm = end->state[KOLO_ONESIDED_SHM];
    return (kolo_copy_t){.from = write->w.data,
                         .to = to,
                         .pid = is_in_process(shm, write) ? shm->their_pid : 0,
                         .alive_fd = shm->alive_fd,
                         .closed = &shm->theirs->closed,
                         .bytes = write->w.bytes,
                         .waker = &end->domain->waker};
}

static kolo_status_t copy_failed(const kolo_onesided_t *end, int err)
{
    if (err == ESRCH || err == ECANCELED) return kolo_onesided_broken(end, 0);
    if (err == EFAULT) return kolo_fail(KOLO_ERR_PROTOCOL, "%s named a window where it has no memory", end->who);
    return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "cannot copy into the process of %s", end->who);
}

/* Starts large writes among the first ones, which go on side by side; what follows one of them waits, for the
 * order. */
static void start_copies(kolo_onesided_t *end, kolo_pending_write_t *write)
{
    const shm_t *shm = end->state[KOLO_ONESIDED_SHM];
    for (int i = 0; write && i < COPIES; write = write->next, i++) {
        char *to =
            write->w.bytes >= COPY_FROM && !write->copying && write->done == 0 ? find_place(shm, write) : NULL;
        if (to == NULL) continue;
        write->copy = copy_of(end, write, to);
        write->copying = kolo_copy_start(&write->copy);
    }
}

static kolo_status_t push(kolo_onesided_t *end, kolo_pending_write_t *write)
{
    shm_t *shm = end->state[KOLO_ONESIDED_SHM];
    uint64_t bytes = write->w.bytes;
    char *to = find_place(shm, write);
    if (to == NULL) {
        kolo_onesided_count(0, 0, 0, 1);
        return kolo_fail(KOLO_ERR_PROTOCOL, "%s named a window that lies outside of its memory", end->who);
    }
    if (bytes >= COPY_FROM && kolo_onesided_param_copiers > 0) start_copies(end, write);
    if (write->copying) {
        if (atomic_load_explicit(&write->copy.done, memory_order_acquire) < bytes) return KOLO_IN_PROGRESS;
        int failed = atomic_load_explicit(&write->copy.failed, memory_order_relaxed);
        if (failed) return copy_failed(end, failed);
        write->done = bytes;
    }
    if (write->done < bytes) {
        size_t n = (size_t)KOLO_MIN(bytes - write->done, (uint64_t)AT_ONCE);
        if (is_in_process(shm, write)) {
            kolo_copy_t copy = copy_of(end, write, to);
            int failed = kolo_copy_piece(&copy, write->done, n);
            if (failed) return copy_failed(end, failed);
        } else {
            memcpy(to + write->done, (const char *)write->w.data + write->done, n);
        }
        write->done += n;
        if (write->done < bytes) {
            kolo_waker_wake(&end->domain->waker); /* come back without sleeping */
            return KOLO_IN_PROGRESS;
        }
    }
    if (!(write->w.flags & KOLO_ONESIDED_NOTIFY)) return KOLO_OK;
    uint64_t consumed = atomic_load_explicit(&shm->theirs->consumed, memory_order_acquire);
    if (shm->next_out - consumed >= shm->their_ring) return KOLO_IN_PROGRESS;
    notice_t *notice = &shm->theirs->notices[shm->next_out & (shm->their_ring - 1)];
    notice->bytes = bytes;
    notice->number = write->w.number;
    atomic_store_explicit(&notice->seq, ++shm->next_out, memory_order_release);
    kolo_doorbell_ring(shm->their_page, shm->their_bell);
    return KOLO_OK;
}

static kolo_status_t pull(kolo_onesided_t *end, kolo_onesided_event_t *event)
{
    shm_t *shm = end->state[KOLO_ONESIDED_SHM];
    const notice_t *notice = &shm->mine->notices[shm->next_in & (shm->ring - 1)];
    if (atomic_load_explicit(&notice->seq, memory_order_acquire) != shm->next_in + 1) {
        if (shm->hung_up) return kolo_onesided_broken(end, 0);
        /* Looked at now and then, and whenever the thread is about to sleep. */
        bool sleepy = atomic_load_explicit(end->domain->waker.asleep, memory_order_relaxed) != 0;
        if ((sleepy || ++shm->looks % 64 == 0) && kolo_onesided_hung_up(end)) shm->hung_up = true;
        return KOLO_IN_PROGRESS;
    }
    event->number = notice->number;
    event->bytes = notice->bytes;
    shm->next_in++;
    atomic_store_explicit(&shm->mine->consumed, shm->next_in, memory_order_release);
    /* Who waits for room wants to know, but not of each. */
    if (shm->next_in % (shm->ring / 2) == 0) kolo_doorbell_ring(shm->their_page, shm->their_bell);
    return KOLO_OK;
}

static void close_end(kolo_onesided_t *end)
{
    shm_t *shm = end->state[KOLO_ONESIDED_SHM];
    if (shm == NULL) return;
    for (kolo_pending_write_t *write = end->writes; write; write = write->next)
        if (write->copying) kolo_copy_wait(&write->copy); /* it reads what is not ours, and writes where we unmap */
    if (shm->offered) kolo_fdpass_withdraw(shm->id);
    if (shm->mine) atomic_store_explicit(&shm->mine->closed, 1, memory_order_release);
    if (shm->theirs) munmap(shm->theirs, shm->their_bytes);
    if (shm->their_page) munmap(shm->their_page, page_bytes());
    if (shm->their_bell >= 0) kolo_fd_close(shm->their_bell);
    if (shm->alive_fd >= 0) kolo_fd_close(shm->alive_fd);
    free(shm);
    end->state[KOLO_ONESIDED_SHM] = NULL;
}

static size_t memory(const kolo_onesided_t *end)
{
    const shm_t *shm = end->state[KOLO_ONESIDED_SHM];
    return sizeof *shm + head_bytes(shm->ring);
}

const kolo_onesided_ops_t kolo_onesided_shm = {
    .kind = KOLO_ONESIDED_SHM,
    .offer = offer,
    .connect = connect_end,
    .find_mailbox = find_mailbox,
    .expose = expose,
    .pays = pays,
    .push = push,
    .pull = pull,
    .close = close_end,
    .memory = memory,
};
