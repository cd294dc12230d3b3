/* SPDX-License-Identifier: Apache-2.0
 *
 * Sockets whose two ends have proven to each other that they know a secret (auth.h): listeners let callers in,
 * diallers call. Both live on the progress thread.
 */
#ifndef KOLO_LINK_LINK_H
#define KOLO_LINK_LINK_H

#include "base/clock.h"
#include "base/params.h"
#include "base/wait.h"
#include "link/address.h"
#include "link/auth.h"
#include "link/seal.h"
#include "progress/progress.h"

/* ---- parameters ---- */

extern const kolo_param_table_t kolo_link_params;

enum { KOLO_FAMILY_AUTO, KOLO_FAMILY_IPV4, KOLO_FAMILY_IPV6 };
typedef struct {
    const char *socket_ifname;
    int64_t socket_family;
    int64_t security; /* KOLO_SECURITY_ */
    int64_t pending_max, handshake_ms;
} kolo_link_values_t;
extern kolo_link_values_t kolo_link_values;

/* ---- counters (accept.c) ---- */

typedef enum {
    KOLO_COUNT_ACCEPTED,
    KOLO_COUNT_MAGIC,
    KOLO_COUNT_AUTH,
    KOLO_COUNT_FRAME,
    KOLO_COUNT_TIMEOUT,
    KOLO_COUNT_FULL,
    KOLO_COUNT_KINDS
} kolo_count_t;
void kolo_link_count(kolo_count_t what);

/* ---- listener (listener.c, accept.c) ---- */

typedef struct kolo_listener kolo_listener_t;
/* Both are called on the progress thread, with a claim that is proven. */
typedef struct {
    /* How many bytes of frame follow the hello (0: the descriptor is handed over); KOLO_VERDICT_OK to let it in. */
    kolo_auth_verdict_t (*admit)(void *owner, const kolo_claim_t *claim, size_t *frame_bytes);
    /* frame_bytes 0: takes the socket (or closes it); else the frame is complete and the socket stays the
     * listener's. */
    void (*accepted)(void *owner, const kolo_claim_t *claim, kolo_socket_t socket, const uint8_t *frame);
    bool keeps; /* accepted() takes the socket also with a frame, and acknowledges it itself, in plain */
    /* A caller was refused (for the root's report); may be NULL. */
    void (*refused)(void *owner, const kolo_address_t *caller, kolo_count_t why);
    /* Whose listener it is, for messages: "rank 3 of 24 (comm)", and how many ranks there are; may be NULL. */
    int (*who)(void *owner, char *text, size_t bytes);
    /* No caller can be accepted since then (mostly for want of descriptors); again and again while it lasts; may
     * be NULL. */
    void (*starved)(void *owner, uint64_t since_ns, int err);
} kolo_listener_ops_t;
/* A set-up that waits while this process has had no descriptor for so long fails. */
#define KOLO_STARVED_MS 3000
/* `address` with its port (0: any) is bound; KOLO_ERR_INVALID_USAGE if it is taken or not of this machine (errno is
 * kept). The text of such a failure is set only if `quiet` is false. */
typedef struct {
    const kolo_address_t *address;
    const kolo_key_t *key;
    const kolo_listener_ops_t *ops;
    void *owner;
    bool quiet;
} kolo_listener_config_t;
kolo_status_t kolo_listener_open(kolo_progress_t *progress, const kolo_listener_config_t *config,
                                 kolo_listener_t **out);
/* Sockets of this process that may have any port do not get this one from here on (one port, the last): a root is
 * expected there that may be about to come (a fixed address) or may have left, and a rank that found its own kind
 * there would call the job's secret wrong. Any thread. */
void kolo_listener_reserve(uint16_t port);
kolo_address_t kolo_listener_address(const kolo_listener_t *listener);
void kolo_listener_close(kolo_listener_t *listener); /* on the progress thread; NULL is fine */

/* ---- dialler (dial.c) ---- */

typedef struct kolo_dial kolo_dial_t;
/* On the progress thread, once; the call is over and the slot cleared. KOLO_OK: the socket is the owner's. Else
 * text says why. */
typedef void (*kolo_dial_done_t)(void *arg, kolo_status_t status, kolo_socket_t socket, const char *text);
typedef struct {
    kolo_address_t address;
    kolo_key_t key;
    kolo_claim_t claim;
    uint64_t deadline_ns;
    bool retry_refused;         /* nobody may be listening yet */
    void (*refused)(void *arg); /* before each retry of a refused connection; may be NULL */
    /* Whom we call may be at one of several addresses: nobody, or somebody else (strangers), is at the one that was
     * tried, which becomes the one to be tried next. NULL: there is one address, and strangers end the call. */
    void (*elsewhere)(void *arg, bool strangers, kolo_address_t *address);
    kolo_dial_done_t done;
    void *arg;
    const uint8_t *frame; /* to be delivered, stays until done; the connection then ends and done's fd is -1, unless
                             the other end keeps it: then done gets it */
    size_t frame_bytes;   /* 0: done gets the connection */
    char who[64];         /* whom we call, for messages: "rank 3", "the root" */
} kolo_dial_config_t;
/* Starts a call. *slot is the call while it lasts and belongs to the progress thread. done is never called from
 * within. */
kolo_status_t kolo_dial_start(kolo_progress_t *progress, const kolo_dial_config_t *config, kolo_dial_t **slot);
/* Cancels it: done is not running and will not be called. Any thread that holds no lock which done takes. */
void kolo_dial_cancel(kolo_progress_t *progress, kolo_dial_t **slot);
/* Sends bytes to a side that may have let us in already: before a cancel, on the progress thread. NULL is fine. */
void kolo_dial_last_word(const kolo_dial_t *dial, const void *bytes, size_t n);

/* The same counts, for tests. */
typedef struct {
    uint64_t accepted, refused_magic, refused_auth, refused_frame, refused_timeout, refused_full;
} kolo_link_counters_t;
void kolo_link_get_counters(kolo_link_counters_t *counters); /* process-wide */

#endif
