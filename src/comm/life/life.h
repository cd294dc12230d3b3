/* SPDX-License-Identifier: Apache-2.0
 *
 * How communicators come and go: init, children by split, shrink and grow, what a child takes over from its parent,
 * and the end.
 */
#ifndef KOLO_COMM_LIFE_LIFE_H
#define KOLO_COMM_LIFE_LIFE_H

#include "comm/comm.h"

/* ---- init.c, free.c ---- */
/* Makes a body that is not set up yet. `what` names the function whose config it is. */
kolo_status_t kolo_body_new(int rank, int nranks, const kolo_config_t *config, const kolo_body_t *parent,
                            const char *what, kolo_body_t **body);
/* Sets the body up once body->oob is open: peers, topology, tuning, agreement, wires. Blocking. */
kolo_status_t kolo_body_setup(kolo_body_t *body);
/* Takes back what kolo_body_setup() has made; the oob stays. */
void kolo_body_unset(kolo_body_t *body);
typedef struct { /* of a parent, which may have ended when the child is told to have failed */
    char name[48];
    int rank, nranks;
} kolo_origin_t;
/* Ends an init or split: the state becomes READY or FAILED, and those who wait are told. from: its parent; of a
 * child that has no rank yet it is the parent's rank that is told of. NULL: none, or the child has its rank. */
void kolo_body_started(kolo_body_t *body, kolo_status_t status, const char *what, const kolo_origin_t *from);
/* Returns what the call returns that has made a child with `status`. All ranks have agreed that the child is there,
 * so a loss since then fails its operations and not its making: an error on some ranks alone would send them
 * another way. */
kolo_status_t kolo_body_made(const kolo_body_t *body, kolo_status_t status);
/* Frees everything and gives the handle back, once nobody is inside any more. Never waits for a peer. */
void kolo_body_free(kolo_body_t *body);
/* Does the same for a rank that has left (kolo_comm_leave()), once all others have left or are lost (linger.c). */
void kolo_body_linger(kolo_body_t *body);
kolo_status_t kolo_comm_config_check(const kolo_config_t *config, const char *what);
/* Copies a config; the caller's may be older and shorter than ours. NULL: the usual one. */
void kolo_comm_config_copy(kolo_config_t *to, const kolo_config_t *from);

/* ---- child.c ---- */
/* Making a communicator from another; the first member of what split, shrink and grow keep. Allocated; kolo_start()
 * frees it, at the latest when run() has returned. */
typedef struct kolo_start {
    kolo_comm_t parent;
    uint64_t ticket; /* of the parent, if has_ticket: run() waits for its turn and ends it by kolo_start_leave() */
    bool has_ticket, background, counted;       /* counted: among the parent's turns */
    bool left;                                  /* the parent is not needed any more */
    kolo_body_t *child;                         /* NULL: this rank only takes part */
    kolo_status_t (*run)(struct kolo_start *s); /* makes the child ready, or fails */
    const char *what;                           /* "comm_split", for messages */
} kolo_start_t;
kolo_status_t kolo_start_check(kolo_comm_t parent, kolo_comm_t *newcomm, const kolo_config_t *config,
                               const char *what);
kolo_status_t kolo_start(kolo_start_t *s, bool has_child, bool ticket, kolo_comm_t *newcomm,
                         const kolo_config_t *config);
/* Returns until when the parent's ranks are awaited. Each comes when its program calls: KOLO_NCCL_WAIT_MS limits
 * that, too.
 */
uint64_t kolo_start_deadline(const kolo_start_t *s, int init_timeout_ms);
/* Ends the parent's turn: its operations go on, and in the background it may be destroyed while the child is being
 * made. A second call does nothing. */
void kolo_start_leave(kolo_start_t *s);
typedef struct { /* what the ranks of the parent know of each other before a child is opened */
    uint8_t address[KOLO_OOB_ADDRESS_BYTES];
    int32_t failed; /* kolo_status_t of a rank that could not make its listener */
} kolo_offer_t;
typedef struct { /* why this rank could not; status KOLO_OK: it could */
    kolo_status_t status;
    char text[KOLO_ERROR_TEXT_BYTES];
} kolo_own_failure_t;
/* Makes this rank's listener. A rank that cannot, for want of descriptors, takes part in what the ranks exchange
 * all the same: else they would wait for it. */
void kolo_child_offer(kolo_oob_t *parent, kolo_oob_child_t **oob_child, kolo_offer_t *mine,
                      kolo_own_failure_t *own);
/* Fails if rank `rank` of `name`, a member of the child, could not begin it. */
kolo_status_t kolo_child_check_offer(const kolo_offer_t *offer, int rank, const char *name);
/* Opens the out-of-band object of the child; takes oob_child. */
kolo_status_t kolo_child_open(kolo_body_t *child, int rank, int nranks, kolo_oob_child_t *oob_child, uint64_t label,
                              const uint8_t *addresses);
/* Lends cards and agreed values to a body whose rank r is rank members[r] of those that `cards` are of: its set-up
 * then meets and agrees without asking (lend.c). _end: when the body is set up, or never will be. */
kolo_status_t kolo_body_borrow(kolo_body_t *body, const kolo_peer_card_t *cards, const kolo_agreed_t *agreed,
                               const int *members);
void kolo_body_borrow_end(kolo_body_t *body);
/* Sets whether its calls block, before anybody calls it: its parent may have decided how it was made. */
void kolo_handle_set_blocking(kolo_comm_t comm, bool blocking);
/* Meets the other ranks, and agrees with them: two steps of kolo_body_setup() that need all ranks. */
kolo_status_t kolo_body_meet(kolo_body_t *body);
kolo_status_t kolo_body_agree(kolo_body_t *body);
/* Adds to the error of a child that could not be set up because a member went whom the parent has lost: that is
 * most likely why. */
kolo_status_t kolo_child_blame(kolo_body_t *child, kolo_status_t status);
/* Sets the child up, on all its ranks or on none. KOLO_ERR_REMOTE with *again: a rank was lost meanwhile; what was
 * set up is taken back, and the child's oob may serve to begin again without `out` (a map). */
kolo_status_t kolo_child_settle(kolo_body_t *child, uint64_t deadline_ns, bool *again, uint8_t *out);

#endif
