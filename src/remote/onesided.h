/* SPDX-License-Identifier: Apache-2.0
 *
 * One-sided transfers: one end of a connection writes into memory that the other has exposed, and may add a notice,
 * a number of 32 bits. RDMA cards do this; over shared memory and TCP the two ends do it themselves, so users of
 * this interface see no difference.
 *
 * A domain holds what the connections of one owner share: the waker on which its thread sleeps and the key of the
 * job. An end is one side of a connection to another process. It is opened on a socket whose two ends are
 * authenticated (link/). The two ends exchange cards and choose the best kind that both support.
 *
 * Order: the writes of one end arrive in order. A notice is seen after the bytes of its own write and of all
 * earlier ones. Different ends have no order. Threads: a domain and its ends belong to one thread at a time, but
 * memory may be freed by any thread. Waiting: no function waits, with one exception: opening an end over shared
 * memory fetches descriptors from the peer's process, whose progress thread answers (at most
 * KOLO_ONESIDED_FETCH_MS). To wait, sleep on the domain's waker and call kolo_onesided_step() for each end.
 */
#ifndef KOLO_REMOTE_ONESIDED_H
#define KOLO_REMOTE_ONESIDED_H

#include "base/params.h"
#include "base/wait.h"
#include "link/link.h"

/* In the order of preference. */
typedef enum {
    KOLO_ONESIDED_SHM,
    KOLO_ONESIDED_VERBS, /* RDMA over InfiniBand or RoCE */
    KOLO_ONESIDED_TCP,
    KOLO_ONESIDED_KINDS
} kolo_onesided_kind_t;
const char *kolo_onesided_kind_name(kolo_onesided_kind_t kind);
extern const kolo_param_table_t kolo_onesided_params;
extern int64_t kolo_onesided_param_direct; /* KOLO_ONESIDED_DIRECT */
extern int64_t kolo_onesided_param_lanes;  /* KOLO_ONESIDED_LANES */

typedef struct kolo_onesided_domain kolo_onesided_domain_t;
/* Makes a domain. key: of the job; proves to the peer's process that it may get our descriptors. */
kolo_status_t kolo_onesided_domain_create(const uint8_t key[32], kolo_onesided_domain_t **domain);
kolo_waker_t *kolo_onesided_domain_waker(kolo_onesided_domain_t *domain);
void kolo_onesided_domain_destroy(kolo_onesided_domain_t *domain); /* after its ends; NULL is fine */

typedef struct kolo_onesided kolo_onesided_t;
typedef struct {
    kolo_socket_t socket; /* a connected stream, non-blocking; taken in any case */
    unsigned kinds;       /* bits 1 << kind of those that may be used; 0: all */
    size_t mailbox;       /* bytes that the peer may write to from the start; 0: none */
    char who[96];         /* the peer, for messages */
} kolo_onesided_config_t;
kolo_status_t kolo_onesided_open(kolo_onesided_domain_t *domain, const kolo_onesided_config_t *config,
                                 kolo_onesided_t **end);
/* Closes and frees the end. Queued writes are lost. Memory from kolo_onesided_alloc() stays until it is freed. NULL
 * is fine. */
void kolo_onesided_close(kolo_onesided_t *end);
kolo_onesided_kind_t kolo_onesided_kind(const kolo_onesided_t *end);
/* Returns the bytes that this end holds, including memory allocated from it. */
size_t kolo_onesided_memory(const kolo_onesided_t *end);

/* Returns how many lanes (large writes over TCP use several connections at once) the owner of the end should open
 * for writes of `bytes` bytes in either direction; 0: none would help, or the end is not open yet. Both ends add
 * their sockets, in any order; until then the first connection carries all writes. */
int kolo_onesided_wants_lanes(const kolo_onesided_t *end, uint64_t bytes);
/* Takes the socket in any case. Its two ends are authenticated. */
kolo_status_t kolo_onesided_add_lane(kolo_onesided_t *end, kolo_socket_t socket);

/* ---- memory that a peer may write to ---- */

typedef struct kolo_onesided_arena kolo_onesided_arena_t;
typedef struct {
    void *base;
    size_t bytes;
    kolo_onesided_arena_t *arena;
} kolo_onesided_memory_t;
/* Allocates memory that this end can expose, aligned to 64 bytes, not zeroed. Only once the end is open. */
kolo_status_t kolo_onesided_alloc(kolo_onesided_t *end, size_t bytes, kolo_onesided_memory_t *memory);
void kolo_onesided_free(kolo_onesided_memory_t *memory); /* any thread; also after the end was closed */

#define KOLO_WINDOW_BYTES 24
typedef struct { /* travels to the peer, which needs it to write there */
    uint64_t address, bytes, key;
} kolo_onesided_window_t;
void kolo_onesided_window_encode(const kolo_onesided_window_t *window, uint8_t bytes[KOLO_WINDOW_BYTES]);
void kolo_onesided_window_decode(const uint8_t bytes[KOLO_WINDOW_BYTES], kolo_onesided_window_t *window);
/* Finds the mailboxes of the two ends, zeroed at first; NULL, bytes 0: none. Only once the end is open. */
void *kolo_onesided_mailbox(kolo_onesided_t *end);
const kolo_onesided_window_t *kolo_onesided_peer_mailbox(const kolo_onesided_t *end);
/* Lets the peer write to this memory from now on. KOLO_ERR_UNSUPPORTED: this connection can only expose memory from
 * kolo_onesided_alloc() (shared memory where the peer may not copy into this process). */
kolo_status_t kolo_onesided_expose(kolo_onesided_t *end, void *base, size_t bytes, kolo_onesided_window_t *window);
/* Tells, for one write of `bytes` bytes, whether it is cheaper to expose the caller's own memory (true), or to let
 * the peer write to allocated memory and copy. */
bool kolo_onesided_pays(const kolo_onesided_t *end, uint64_t bytes);
/* Ends an exposure. Over shared memory and RDMA a peer that breaks the rules can still write to memory of its own
 * arena that it has seen once. */
void kolo_onesided_hide(kolo_onesided_t *end, const kolo_onesided_window_t *window);

/* Registers memory of the caller that many writes will come from, once instead of at each write. It must stay until
 * the end is closed. Only once the end is open. */
kolo_status_t kolo_onesided_keep(kolo_onesided_t *end, void *base, size_t bytes);

/* ---- writes and notices ---- */

enum { KOLO_ONESIDED_NOTIFY = 1u }; /* the peer gets a notice with `number` after the bytes */
typedef struct {
    const void *data; /* stays until the write is done */
    uint64_t bytes;   /* 0 is fine, `to` then too */
    const kolo_onesided_window_t *to;
    uint64_t offset; /* in the window */
    uint32_t flags, number;
    uint64_t cookie; /* returned with KOLO_ONESIDED_WRITTEN; 0: no such event */
} kolo_onesided_write_t;
/* Queues a write. One that does not fit into its window is KOLO_ERR_INVALID_ARGUMENT. */
kolo_status_t kolo_onesided_write(kolo_onesided_t *end, const kolo_onesided_write_t *write);

bool kolo_onesided_is_writing(
    const kolo_onesided_t *end); /* writes are not done, or their events not returned yet */

typedef enum {
    KOLO_ONESIDED_OPENED,  /* once, first */
    KOLO_ONESIDED_WRITTEN, /* the data of the write with `cookie` is not needed any more */
    KOLO_ONESIDED_NOTIFIED /* the peer has written `bytes` bytes with the notice `number` */
} kolo_onesided_event_kind_t;
typedef struct {
    kolo_onesided_event_kind_t kind;
    uint32_t number;
    uint64_t bytes, cookie;
} kolo_onesided_event_t;
/* Moves what can be moved and returns up to `max` events; if *count == max there may be more. Returns KOLO_OK, or,
 * after all earlier events, why the connection has ended: KOLO_ERR_REMOTE (the peer has closed or died),
 * KOLO_ERR_PROTOCOL (it sent a malformed frame, or wrote where it may not), ... */
kolo_status_t kolo_onesided_step(kolo_onesided_t *end, kolo_onesided_event_t *events, int max, int *count);

/* Process-wide, for tests and benchmarks. */
typedef struct {
    uint64_t writes, written_bytes, notices, refused;
    uint64_t requests, completions, registrations; /* of network cards */
    uint64_t parted;                               /* writes whose bytes went by lanes */
} kolo_onesided_counters_t;
void kolo_onesided_get_counters(kolo_onesided_counters_t *counters);

#endif
