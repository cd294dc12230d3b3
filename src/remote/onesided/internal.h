/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of one-sided transfers: the end and its queue of writes, arenas, cards, and what a kind has to offer.
 */
#ifndef KOLO_REMOTE_ONESIDED_INTERNAL_H
#define KOLO_REMOTE_ONESIDED_INTERNAL_H

#include "base/clock.h"
#include "remote/onesided.h"

#include <pthread.h>

extern int64_t kolo_onesided_param_arena, kolo_onesided_param_keep, kolo_onesided_param_ring,
    kolo_onesided_param_copiers, kolo_onesided_param_sources, kolo_onesided_param_split;
extern bool kolo_onesided_param_shm, kolo_onesided_param_verbs;

/* ---- arenas (arena.c): address space for what a peer may write to, taken as it is needed ---- */

kolo_status_t kolo_arena_create(int fd /* of a memfd that is long enough, not taken; -1: private memory */,
                                size_t skip /* bytes ahead of it in the memfd, mapped, too */, size_t bytes,
                                kolo_onesided_arena_t **arena);
void kolo_arena_unref(kolo_onesided_arena_t *arena); /* its creator's; it lives until all its memory is freed */
kolo_status_t kolo_arena_alloc(kolo_onesided_arena_t *arena, size_t bytes, kolo_onesided_memory_t *memory);
char *kolo_arena_map(kolo_onesided_arena_t *arena); /* with the skipped bytes */
char *kolo_arena_base(kolo_onesided_arena_t *arena);
size_t kolo_arena_size(const kolo_onesided_arena_t *arena);
/* Asked with the arena's lock held, on any thread, before pages go back to the system: may they? NULL: they may. */
typedef bool (*kolo_arena_ask_t)(void *arg, const char *base, size_t bytes);
void kolo_arena_ask(kolo_onesided_arena_t *arena, kolo_arena_ask_t ask, void *arg);
size_t kolo_arena_held(kolo_onesided_arena_t *arena); /* bytes that were touched and not given back */

/* ---- cards (card.c): what the ends tell each other first ---- */

#define KOLO_ONESIDED_CARD_BYTES  256
#define KOLO_ONESIDED_HELLO_BYTES 72
typedef struct {
    uint32_t kinds;
    uint32_t uid;
    int32_t pid;
    uint32_t ring;     /* entries of the ring to write to me */
    uint64_t shm_hash; /* who can exchange descriptors: kolo_peer_card_t */
    uint64_t segment_bytes;
    uint8_t fd_address[16], segment[16];
    uint64_t mailbox_bytes, mailbox_key, mailbox_at; /* at: in the segment's arena */
    uint64_t mailbox_address, mailbox_rkey;          /* as a network card knows it */
    uint64_t probe; /* address of `segment` in the process that serves it: who reads it there may copy */
    uint8_t verbs[KOLO_ONESIDED_HELLO_BYTES]; /* zeros where it is not offered */
} kolo_onesided_card_t;
void kolo_onesided_card_encode(const kolo_onesided_card_t *card, uint8_t bytes[KOLO_ONESIDED_CARD_BYTES]);
/* Decodes a card; returns NULL, or what is wrong. Fuzzed. */
const char *kolo_onesided_card_decode(const uint8_t *bytes, size_t length, kolo_onesided_card_t *card);

/* ---- frames of kind tcp (card.c) ---- */

#define KOLO_ONESIDED_FRAME_BYTES 48
enum {                            /* flags of frames, beside KOLO_ONESIDED_NOTIFY */
       KOLO_ONESIDED_PARTED = 2u, /* no bytes follow: they come in pieces, by lanes */
       KOLO_ONESIDED_PIECE = 4u   /* on lanes (lanes.h) */
};
typedef struct {
    uint32_t flags, number;
    uint64_t bytes, address, key; /* zeros where bytes is 0 */
} kolo_onesided_frame_t;
void kolo_onesided_frame_encode(const kolo_onesided_frame_t *frame, uint8_t bytes[KOLO_ONESIDED_FRAME_BYTES]);
const char *kolo_onesided_frame_decode(const uint8_t *bytes, size_t length, kolo_onesided_frame_t *frame);

/* ---- copiers (copiers.c): threads of the process for large copies ---- */

typedef struct kolo_copy {
    struct kolo_copy *next;
    const char *from;
    char *to;
    int pid;                        /* 0: `to` is ours; else in that process, by process_vm_writev() */
    int alive_fd;                   /* pid: readable once that process has ended; -1: it is this one */
    const _Atomic uint32_t *closed; /* pid: nothing more is written once this is set */
    _Atomic int failed;             /* an errno; then nothing more of it is done */
    uint64_t bytes, taken;
    _Atomic uint64_t done;
    kolo_waker_t *waker; /* woken when all is done */
} kolo_copy_t;
void kolo_copy_pool_get(void); /* each domain, for its life; after all its copies: */
void kolo_copy_pool_put(void);
bool kolo_copy_start(kolo_copy_t *copy); /* false: there are no copiers */
void kolo_copy_wait(kolo_copy_t *copy);
/* Copies a piece, by the caller; returns 0 or an errno. ECANCELED: *closed is set. ESRCH: the process has ended;
 * its number may be another's by now. */
int kolo_copy_piece(const kolo_copy_t *copy, uint64_t at, uint64_t bytes);

/* ---- an end ---- */

typedef struct kolo_pending_write {
    struct kolo_pending_write *next;
    kolo_onesided_write_t w;
    kolo_onesided_window_t to;
    uint64_t done; /* bytes that have been moved */
    uint32_t head; /* tcp: bytes of the frame that have been sent */
    bool parted;   /* tcp: it goes by lanes, which say when it is done */
    bool copying;  /* shm: by copiers */
    kolo_copy_t copy;
    void *registered; /* verbs: its source, if that is not known anyway */
    uint32_t lkey;    /* verbs: 0: not looked up yet */
} kolo_pending_write_t;

typedef struct { /* a window of mine; its number stands in the low half of its key, `salt` in the high one */
    char *base;  /* NULL: free */
    uint64_t bytes;
    uint32_t salt;
    void *pin; /* of the kind */
} kolo_onesided_exposed_t;

typedef struct {
    kolo_onesided_kind_t kind;
    bool later;  /* push() hands writes over; they are done later, which the kind says (kolo_onesided_done) */
    bool shakes; /* after connect() both ends say that they are ready before either writes */
    /* What this end offers, ahead of the cards; KOLO_ERR_UNSUPPORTED: it cannot here. */
    kolo_status_t (*offer)(kolo_onesided_t *end, kolo_onesided_card_t *card);
    /* The same of end->mailbox, which is there by now; NULL: nothing more is needed. */
    kolo_status_t (*offer_mailbox)(kolo_onesided_t *end, kolo_onesided_card_t *card);
    kolo_status_t (*connect)(kolo_onesided_t *end, const kolo_onesided_card_t *peer);
    /* The mailbox of the peer; its size is set. */
    void (*find_mailbox)(const kolo_onesided_card_t *peer, kolo_onesided_window_t *mailbox);
    /* The address that the peer has to give for this memory; and, where the kind has one, a number for the window
     * that only who was told it knows (else *salt stays 0), and what hide() gets. */
    kolo_status_t (*expose)(kolo_onesided_t *end, void *base, size_t bytes, uint64_t *address, uint32_t *salt,
                            void **pin);
    void (*hide)(kolo_onesided_t *end, void *pin);            /* NULL: nothing is to be done */
    void (*forget)(kolo_onesided_t *end, uint64_t key);       /* the same, of kinds that only know the key */
    bool (*pays)(const kolo_onesided_t *end, uint64_t bytes); /* NULL: always */
    /* Writes will come from there until the end is closed. NULL: nothing is to be done. */
    kolo_status_t (*keep)(kolo_onesided_t *end, void *base, size_t bytes);
    /* Moves the first write on. KOLO_OK: it is done, or handed over. KOLO_IN_PROGRESS: later. */
    kolo_status_t (*push)(kolo_onesided_t *end, kolo_pending_write_t *write);
    /* The next notice. KOLO_IN_PROGRESS: none now. */
    kolo_status_t (*pull)(kolo_onesided_t *end, kolo_onesided_event_t *event);
    bool (*is_writing)(const kolo_onesided_t *end); /* of what was handed over; NULL: nothing is */
    /* Another connection, taken in any case. NULL: the kind has no use for it. */
    kolo_status_t (*add_lane)(kolo_onesided_t *end, kolo_socket_t socket);
    void (*close)(kolo_onesided_t *end); /* frees; safe after a failed or missing offer */
    size_t (*memory)(const kolo_onesided_t *end);
} kolo_onesided_ops_t;
extern const kolo_onesided_ops_t kolo_onesided_shm, kolo_onesided_tcp, kolo_onesided_verbs;

struct kolo_onesided_domain {
    uint8_t key[32];
    uint64_t shm_hash;
    uint8_t fd_address[16];
    kolo_waker_t waker;
    int page_fd; /* a page for peers to map: the asleep word; -1: shared memory is off */
    void *page;
    bool serving;                       /* the descriptor-passing server is running for us */
    struct kolo_net_open *device;       /* opened when it is first offered; NULL: none, or not yet */
    bool no_device;                     /* it was tried in vain */
    struct kolo_verbs_sources *sources; /* of the device: memory of the program that it knows */
    struct kolo_movers *movers;         /* threads of its lanes; made when they are first needed */
    uint32_t ends;
    uint32_t salts[64], nsalts; /* random, the first nsalts unused: a system call for each window costs more */
};

struct kolo_onesided {
    kolo_onesided_domain_t *domain;
    kolo_socket_t socket;
    unsigned kinds;
    char who[96];
    const kolo_onesided_ops_t *ops; /* NULL: not chosen yet */
    void *state[KOLO_ONESIDED_KINDS];
    kolo_onesided_arena_t *arena;
    kolo_onesided_memory_t mailbox;
    kolo_onesided_window_t peer_mailbox;
    uint8_t card_out[KOLO_ONESIDED_CARD_BYTES], card_in[KOLO_ONESIDED_CARD_BYTES];
    size_t card_sent, card_got;
    bool said_ready, heard_ready; /* of kinds that shake hands */
    bool told;                    /* OPENED has been returned */
    kolo_pending_write_t *writes, **last_write, *spare_writes;
    uint64_t *cookies; /* of writes that are done and not told yet, a ring */
    size_t ncookies, first_cookie, cookie_room;
    kolo_onesided_exposed_t *exposed;
    uint32_t nexposed, free_exposed; /* below free_exposed none is free */
    kolo_status_t failed;            /* why it has ended */
    char why[300];
};

/* ---- connect.c ---- */

extern const kolo_onesided_ops_t *const kolo_onesided_kinds[KOLO_ONESIDED_KINDS]; /* NULL: not built */
/* Fills this end's card: what each kind offers, and a mailbox of so many bytes. */
kolo_status_t kolo_onesided_offer(kolo_onesided_t *end, size_t mailbox);
/* Exchanges the cards, and sets end->ops. KOLO_IN_PROGRESS: call again. */
kolo_status_t kolo_onesided_exchange(kolo_onesided_t *end);
/* Fails with why the connection is of no use any more: an errno, 0 if it has ended. */
kolo_status_t kolo_onesided_broken(const kolo_onesided_t *end, int err);
/* Tells whether the socket carries nothing any more: whatever comes on it is its end. */
bool kolo_onesided_hung_up(const kolo_onesided_t *end);
/* Tells whether the other end of the socket is on this host, as far as its addresses say. */
bool kolo_onesided_is_near(const kolo_onesided_t *end);

/* ---- route.c ---- */

typedef struct { /* lies in a segment */
    uint8_t from[16], to[16];
    uint16_t from_port, to_port;
    uint32_t known; /* 0: the system did not say */
} kolo_onesided_route_t;
void kolo_onesided_route(const kolo_onesided_t *end, kolo_onesided_route_t *route);
/* Tells whether the end that has left `theirs` is the other end of this end's connection. */
bool kolo_onesided_joined(const kolo_onesided_t *end, const kolo_onesided_route_t *theirs);

/* ---- windows.c ---- */

/* Makes a window; *key is what the peer writes with. */
kolo_status_t kolo_onesided_add_window(kolo_onesided_t *end, const kolo_onesided_exposed_t *exposed, uint64_t *key);
/* Returns where (address, bytes) lies in a window of mine; NULL: nowhere. */
char *kolo_onesided_find(kolo_onesided_t *end, uint64_t key, uint64_t address, uint64_t bytes);
/* Makes the end's arena, of private memory, if there is none yet. */
kolo_status_t kolo_onesided_need_arena(kolo_onesided_t *end);

/* ---- end.c ---- */

/* Completes a write with this cookie that was handed over. */
kolo_status_t kolo_onesided_done(kolo_onesided_t *end, uint64_t cookie);
#if defined(KOLO_HAVE_VERBS)
void kolo_onesided_verbs_leave(kolo_onesided_domain_t *domain); /* closes the device */
#endif

/* ---- counters.c ---- */

void kolo_onesided_count(uint64_t writes, uint64_t bytes, uint64_t notices, uint64_t refused);
void kolo_onesided_count_parted(void);
void kolo_onesided_count_card(uint64_t requests, uint64_t completions, uint64_t registrations);

#endif
