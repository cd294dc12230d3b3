/* SPDX-License-Identifier: Apache-2.0
 *
 * One-sided transfers: one end of a connection writes into memory that the other has exposed, and can tell it with
 * the write, by a number of 32 bits. This is what RDMA offers; over shared memory and TCP it is done by the two
 * ends themselves, so that whoever is built on it need not know the difference.
 *
 * A domain is what connections of one owner share: the waker on which its thread sleeps and the key of the job. An
 * end is one side of a connection to another process. It is opened on a socket whose two ends have proven to each
 * other who they are (link/); the two tell each other what they can, and choose the best kind that both have.
 *
 * Order: of one end, what is written first is there first. A notice is seen after the bytes of its own write and of
 * all before it. Between ends there is no order.
 * Threads: a domain and its ends belong to one thread at a time, but memory may be freed by any thread.
 * Waiting: nothing here waits, but for one thing: opening an end over shared memory fetches descriptors from the
 * peer's process, whose progress thread answers (KOLO_ONESIDED_FETCH_MS at most). Who waits sleeps on the domain's
 * waker and calls kolo_onesided_progress() for each end.
 */
#ifndef KOLO_WIRE_ONESIDED_H
#define KOLO_WIRE_ONESIDED_H

#include "base/params.h"
#include "base/wait.h"
#include "oob/oob.h"

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
/* `key`: of the job; proves to the peer's process that it may have our descriptors. */
kolo_status_t kolo_onesided_domain_create(const uint8_t key[32], kolo_onesided_domain_t **domain);
kolo_waker_t *kolo_onesided_domain_waker(kolo_onesided_domain_t *domain);
void kolo_onesided_domain_destroy(kolo_onesided_domain_t *domain); /* after its ends; NULL is fine */

typedef struct kolo_onesided kolo_onesided_t;
typedef struct {
    kolo_socket_t socket; /* a connected stream, non-blocking; taken in any case */
    unsigned kinds;       /* bits of those that may be used; 0: all */
    size_t mailbox;       /* bytes that the peer may write to from the start; 0: none */
    char who[96];         /* the peer, for messages */
} kolo_onesided_config_t;
kolo_status_t kolo_onesided_open(kolo_onesided_domain_t *domain, const kolo_onesided_config_t *config,
                                 kolo_onesided_t **end);
/* Closes and frees. What was written and not sent is lost. Memory stays until it is freed. NULL is fine. */
void kolo_onesided_close(kolo_onesided_t *end);
bool kolo_onesided_is_open(const kolo_onesided_t *end); /* KOLO_ONESIDED_OPENED has been seen */
kolo_onesided_kind_t kolo_onesided_kind(const kolo_onesided_t *end);
/* Bytes this end holds for itself; with what was allocated from it. */
size_t kolo_onesided_memory(const kolo_onesided_t *end);

/* Large writes over TCP go by several connections side by side. Whoever has opened the end opens them: how many are
 * to be opened for writes of `bytes` in one of both directions; 0: none would help, or it was asked before the end
 * was open. Both ends add theirs, in any order; the first connection carries what is written until then. */
int kolo_onesided_wants_lanes(const kolo_onesided_t *end, uint64_t bytes);
/* Takes the socket in any case; its two ends have proven to each other who they are. */
kolo_status_t kolo_onesided_add_lane(kolo_onesided_t *end, kolo_socket_t socket);

/* ---- memory that a peer may write to ---- */

typedef struct kolo_onesided_arena kolo_onesided_arena_t;
typedef struct {
    void *base;
    size_t bytes;
    kolo_onesided_arena_t *arena;
} kolo_onesided_memory_t;
/* Memory that this end can expose, aligned to 64 bytes; its contents are undefined. From the opening on. */
kolo_status_t kolo_onesided_alloc(kolo_onesided_t *end, size_t bytes, kolo_onesided_memory_t *memory);
void kolo_onesided_free(kolo_onesided_memory_t *memory); /* any thread; also after the end was closed */

#define KOLO_WINDOW_BYTES 24
typedef struct { /* travels to the peer; what it needs to write there */
    uint64_t address, bytes, key;
} kolo_onesided_window_t;
void kolo_onesided_window_encode(const kolo_onesided_window_t *window, uint8_t bytes[KOLO_WINDOW_BYTES]);
void kolo_onesided_window_decode(const uint8_t bytes[KOLO_WINDOW_BYTES], kolo_onesided_window_t *window);
/* The mailboxes of the two ends, zeroed at first; NULL, and bytes 0, where there is none. Both from the opening on.
 */
void *kolo_onesided_mailbox(kolo_onesided_t *end);
const kolo_onesided_window_t *kolo_onesided_peer_mailbox(const kolo_onesided_t *end);
/* From now on the peer may write there. KOLO_ERR_UNSUPPORTED: this connection can only expose what it has allocated
 * (over shared memory where the peer may not copy into this process). */
kolo_status_t kolo_onesided_expose(kolo_onesided_t *end, void *base, size_t bytes, kolo_onesided_window_t *window);
/* Is memory of the caller's own that would be written to once better exposed (true) than what was allocated and a
 * copy out of it? */
bool kolo_onesided_pays(const kolo_onesided_t *end, uint64_t bytes);
/* Not any more. Over shared memory and RDMA a peer that breaks the rules can still write to what it has once seen
 * of its own arena. */
void kolo_onesided_hide(kolo_onesided_t *end, const kolo_onesided_window_t *window);

/* Memory of the caller's that many writes come from and that stays where it is until the end is closed: a network
 * card is told of it once, instead of at each write. From the opening on. */
kolo_status_t kolo_onesided_keep(kolo_onesided_t *end, void *base, size_t bytes);

/* ---- writes and notices ---- */

enum { KOLO_ONESIDED_NOTIFY = 1u }; /* the peer gets a notice with `number`, once the bytes are there */
typedef struct {
    const void *data; /* stays until the write is done */
    uint64_t bytes;   /* 0 is fine, `to` then too */
    const kolo_onesided_window_t *to;
    uint64_t offset; /* in the window */
    uint32_t flags, number;
    uint64_t cookie; /* comes back with KOLO_ONESIDED_WRITTEN; 0: it does not */
} kolo_onesided_write_t;
/* Queues a write. One that does not fit into its window is KOLO_ERR_INVALID_ARGUMENT. */
kolo_status_t kolo_onesided_write(kolo_onesided_t *end, const kolo_onesided_write_t *write);

bool kolo_onesided_is_writing(const kolo_onesided_t *end); /* some are not done, or their cookies not told */

typedef enum {
    KOLO_ONESIDED_OPENED,  /* once, first */
    KOLO_ONESIDED_WRITTEN, /* the data of the write with `cookie` is not needed any more */
    KOLO_ONESIDED_NOTIFIED /* the peer has written `bytes` bytes, and says `number` */
} kolo_onesided_event_kind_t;
typedef struct {
    kolo_onesided_event_kind_t kind;
    uint32_t number;
    uint64_t bytes, cookie;
} kolo_onesided_event_t;
/* Moves what can be moved; fills in up to `max` events: `max` of them mean that there may be more. KOLO_OK; or,
 * after the events of all that came before, why the connection has ended: KOLO_ERR_REMOTE (the peer has closed or
 * died), KOLO_ERR_PROTOCOL (it sent something that makes no sense, or wrote where it may not), ... */
kolo_status_t kolo_onesided_progress(kolo_onesided_t *end, kolo_onesided_event_t *events, int max, int *count);

/* Process-wide, for tests and benchmarks. */
typedef struct {
    uint64_t writes, written_bytes, notices, refused;
    uint64_t requests, completions, registrations; /* of network cards */
    uint64_t parted;                               /* writes whose bytes went by lanes */
} kolo_onesided_counters_t;
void kolo_onesided_get_counters(kolo_onesided_counters_t *counters);

#endif
