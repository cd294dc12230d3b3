/* SPDX-License-Identifier: Apache-2.0
 *
 * Windows: memory of each rank that the others write to, and signals that say so (kolo.h).
 *
 * A rank reaches another rank's memory in one of four ways. HERE: both are one process. COPY: the kernel lets it
 * copy there. MAP: both map memory that Kolo has made. FAR: bytes are sent, and the relay, a thread of the other
 * rank, stores them; so no rank has to make a call when others write to it. A board counts signals: one line of
 * words for each rank that may signal. Ranks that share memory with the board's owner increment the counters
 * themselves; others send signals through the relay, behind their data.
 *
 * board.c: boards, and how ranks reach each other. pinned.c: those that GPUs have mapped. relay.c: bytes that are
 * sent. register.c: making and ending windows. run.c: puts, signals and waits whose turn it is.
 */
#ifndef KOLO_COMM_WINDOW_WINDOW_H
#define KOLO_COMM_WINDOW_WINDOW_H

#include "comm/comm.h"
#include "mem/cuda/cuda.h"
#include "remote/onesided.h"

typedef enum { KOLO_REACH_HERE, KOLO_REACH_COPY, KOLO_REACH_MAP, KOLO_REACH_FAR } kolo_reach_t;

typedef struct {                                       /* of one rank that signals */
    _Alignas(64) _Atomic uint32_t words[KOLO_SIGNALS]; /* cyclic */
} kolo_signal_line_t;
_Static_assert(sizeof(kolo_signal_line_t) == 64, "a line of the cache");

#define KOLO_SIGNALS_MOST 0x7fffffffu /* of one number that may have come and not been waited for */

typedef struct kolo_relay kolo_relay_t;

typedef struct {
    kolo_reach_t reach;
    kolo_signal_line_t *line;     /* of this rank, on that rank's board; NULL: by the relay */
    kolo_signal_line_t *map;      /* its board, of another process, as mapped here; or NULL */
    struct kolo_board_ref *board; /* its board, of this process; or NULL */
    kolo_control_peer_t *control; /* of the same host, but not this rank; else NULL */
    uint32_t taken[KOLO_SIGNALS]; /* of its signals, those that were waited for */
    bool pinned;                  /* `map` is one that GPUs have mapped, and stays (pinned.c) */
    uint64_t device_line;         /* GPUs: `line` as mapped for this rank's */
    uint32_t sent[KOLO_SIGNALS];  /* GPUs: the last value of each word there */
} kolo_window_rank_t;

typedef struct { /* of another process, as this rank's GPU sees it: one of the two */
    kolo_cu_ptr_t opened;
    kolo_mem_t mapped;
} kolo_window_device_peer_t;
typedef struct {
    kolo_mem_t made; /* by Kolo */
    kolo_window_device_peer_t peers[];
} kolo_window_device_t;

typedef struct kolo_window_peers {
    uint64_t handle; /* a number that no other window of this process has or had */
    struct kolo_window_peers *next;
    void *base; /* mine */
    size_t bytes;
    bool made;                    /* host memory that Kolo has made, */
    int fd;                       /* and its descriptor; -1: others cannot map it */
    kolo_window_device_t *device; /* of a GPU communicator */
    struct {
        uint64_t address, bytes; /* as the owner sees it */
        char *at;                /* where this process stores; NULL: it does not */
        bool mapped, relayed;
        bool connects;                      /* the connection was made with this window */
        kolo_onesided_window_t there, mine; /* through the relay: to it; from it */
    } peers[];
} kolo_window_peers_t;

typedef struct kolo_windows {
    kolo_body_t *body;
    int fd; /* of the board, until all have it; of one that is pinned, which keeps it */
    uint8_t name[16];
    kolo_signal_line_t *lines; /* my board, by rank */
    kolo_window_rank_t *ranks;
    uint8_t *reach; /* kolo_reach_t, [from * nranks + to] */
    kolo_relay_t *relay;
    uint64_t device_lines; /* GPUs: my board as mapped for mine */
    _Atomic uint32_t *due; /* GPUs: [rank * KOLO_SIGNALS + number] that streams wait for, at most */
    _Atomic bool released; /* GPUs: a stream was let go without its signal */
    struct {               /* GPUs, where calls have a time limit: the wait that a stream has come to */
        uint64_t word;     /* where it says so, as mapped for the GPU: in the line behind the board's last */
        uint32_t number;   /* of the last wait */
        uint32_t seen;     /* what was there at the last look, and since when */
        uint64_t since_ns;
    } at;
    pthread_mutex_t lock; /* of the list: calls look while a turn changes it */
    kolo_window_peers_t *first;
} kolo_windows_t;

/* ---- board.c ---- */
/* Makes what windows need, with the first of them. Collective. */
kolo_status_t kolo_windows_open(kolo_body_t *body);
/* Frees what peers write to; nothing of this rank runs afterwards. Safe without open, and twice. Waits for no peer,
 * only for copies into this rank's memory that have begun. */
void kolo_windows_close(kolo_body_t *body);
kolo_reach_t kolo_windows_reach(const kolo_windows_t *w, int from, int to);
size_t kolo_windows_memory(kolo_body_t *body);
/* Returns a window, NULL if there is none by this handle any more. Valid in the caller's turn; outside of it only
 * under the lock. */
kolo_window_peers_t *kolo_window_find(kolo_windows_t *windows, uint64_t handle);
bool kolo_windows_any(kolo_windows_t *windows); /* is any registered? Any thread */
/* Frees a window that is not, or no longer, in the list. */
void kolo_window_free(kolo_windows_t *windows, kolo_window_peers_t *window);
/* Makes memory that peers of this host can map; *fd -1: they cannot, and write over TCP. */
kolo_status_t kolo_window_memory_make(const char *name, size_t bytes, int *fd, void **base);
kolo_status_t kolo_window_memory_fetch(kolo_body_t *body, int owner, const uint8_t name[16], size_t bytes,
                                       void **base);

/* ---- pinned.c: boards that GPUs have mapped; any thread ---- */
typedef struct kolo_window_pinned {
    struct kolo_window_pinned *next;
    uint8_t name[16];
    void *base; /* zeroed for who gets it */
    size_t bytes;
    uint64_t address; /* for GPUs */
    int fd;           /* of this process's own; -1: others cannot map it */
} kolo_window_pinned_t;
/* Makes a board for this rank, or takes one that a communicator of this process has left. */
kolo_status_t kolo_window_pinned_make(const kolo_body_t *body, size_t bytes, kolo_window_pinned_t **pinned);
/* Gives it back. in_order: nobody writes there any more. */
void kolo_window_pinned_give(kolo_window_pinned_t *pinned, bool in_order);
/* Maps the board of another process, once; it stays mapped. */
kolo_status_t kolo_window_pinned_fetch(kolo_body_t *body, int owner, const uint8_t name[16], size_t bytes,
                                       const kolo_window_pinned_t **pinned);

/* ---- relay.c; any thread, but connect and close ---- */
kolo_status_t kolo_relay_create(kolo_windows_t *windows);
void kolo_relay_close(kolo_relay_t *relay); /* NULL is fine */
/* Takes the socket. The end is usable once kolo_relay_settled() says so. */
kolo_status_t kolo_relay_connect(kolo_relay_t *relay, int peer, kolo_socket_t socket);
bool kolo_relay_has(const kolo_relay_t *relay, int peer); /* NULL: has none */
/* Tells whether the end to a peer is open: KOLO_IN_PROGRESS while it is being opened, or the error by which it
 * ended. */
kolo_status_t kolo_relay_settled(kolo_relay_t *relay, int peer);
kolo_status_t kolo_relay_expose(kolo_relay_t *relay, int peer, void *base, size_t bytes,
                                kolo_onesided_window_t *window);
void kolo_relay_hide(kolo_relay_t *relay, int peer, const kolo_onesided_window_t *window);
/* Writes into a peer's window. The data must stay until kolo_relay_pending() is 0. */
kolo_status_t kolo_relay_write(kolo_relay_t *relay, int peer, const void *data, uint64_t bytes,
                               const kolo_onesided_window_t *to, uint64_t offset);
kolo_status_t kolo_relay_signal(kolo_relay_t *relay, int peer, uint32_t number);
/* Writes whose data is still needed. */
uint64_t kolo_relay_pending(const kolo_relay_t *relay);
/* Moves what that rank sends, or what is still to be written to any (-1), so that who waits need not be woken. Did
 * anything move? */
bool kolo_relay_step(kolo_relay_t *relay, int peer);
/* Returns the error by which the end of that rank, or of any rank that something is still to be written to (-1),
 * has ended. */
kolo_status_t kolo_relay_check(kolo_relay_t *relay, int peer);
/* Ends connections on which something is still to be written: its data is not needed from here on. */
void kolo_relay_drop(kolo_relay_t *relay);
/* Sends the peer a fence, as it does to this rank: both send as many, from the birth of their connection on.
 * Passed: as many have come as were sent, and all that the peer wrote ahead of the last one is there. */
kolo_status_t kolo_relay_fence(kolo_relay_t *relay, int peer);
bool kolo_relay_fence_passed(const kolo_relay_t *relay, int peer);
/* Gives up the connections that a failed set-up has made. All ranks do, since not all may have them. */
void kolo_relay_give_up(kolo_relay_t *relay, int peer);
size_t kolo_relay_memory(kolo_relay_t *relay);

/* ---- register.c: whose turn it is; collective ---- */
/* Makes a window. *agreed: all ranks have the same status, and the communicator goes on. */
kolo_status_t kolo_window_make(kolo_body_t *body, void *buf, size_t bytes, uint64_t *handle, bool *agreed);
kolo_status_t kolo_window_unmake(kolo_body_t *body, uint64_t handle);

/* ---- device.c: on GPUs ---- */
typedef struct {                 /* travels */
    uint64_t offset, allocation; /* where in its allocation it lies, and how long that is */
    uint32_t way, legacy;
    uint8_t ticket[64];
} kolo_window_device_card_t;
kolo_status_t kolo_window_device_able(const kolo_body_t *body);
/* Lets GPUs write to host memory and wait for it, and returns its address there. */
kolo_status_t kolo_window_device_pin(const kolo_body_t *body, void *base, size_t bytes, uint64_t *address);
kolo_status_t kolo_window_device_make(kolo_body_t *body, kolo_window_peers_t *window,
                                      kolo_window_device_card_t *card, uint8_t name[16]);
kolo_status_t kolo_window_device_take(kolo_body_t *body, kolo_window_peers_t *window, int peer,
                                      const kolo_window_device_card_t *card, const uint8_t name[16]);
void kolo_window_device_free(kolo_body_t *body, kolo_window_peers_t *window);
/* Checks whether the puts, signals and waits of these calls can be queued. */
kolo_status_t kolo_window_device_check(kolo_body_t *body, const kolo_call_t *calls, size_t count);
/* Queues the puts and signals of these calls, or their waits. */
kolo_status_t kolo_window_device_launch(kolo_body_t *body, const kolo_call_t *calls, size_t count, bool waits);
/* Releases streams that wait, after the communicator has failed: writes what they wait for, again and again until
 * they are through, since peers may write there, too. Any thread. */
void kolo_window_device_release(kolo_body_t *body);
bool kolo_window_device_released(const kolo_body_t *body); /* some were */
/* Returns KOLO_ERR_TIMEOUT if a stream has waited longer than op_timeout_ms for a signal. On the progress
 * thread. */
kolo_status_t kolo_window_device_look(kolo_body_t *body);

/* ---- run.c: puts, signals and waits of one turn, in steps ---- */
typedef struct {
    kolo_body_t *body;
    const kolo_call_t *calls;
    size_t count;
    bool issued;
    size_t at;     /* the wait that is next */
    uint32_t part; /* of its list */
} kolo_window_run_t;
/* Issues puts and signals, in order. `calls` stay until end. */
kolo_status_t kolo_window_begin(kolo_window_run_t *run, kolo_body_t *body, const kolo_call_t *calls, size_t count);
kolo_status_t kolo_window_step(kolo_window_run_t *run, bool *moved);
kolo_status_t kolo_window_check(kolo_window_run_t *run); /* do those that it waits for live? */
void kolo_window_describe(void *run, char *buf, size_t bytes);
void kolo_window_end(kolo_window_run_t *run, kolo_status_t status);
/* Runs one call whose turn it is. */
kolo_status_t kolo_window_run_single(const kolo_call_t *call);

#endif
