/* SPDX-License-Identifier: Apache-2.0
 *
 * Descriptor passing between processes of one host: each process serves an abstract Unix socket on the progress
 * thread and hands out descriptors that were offered under a name, to callers that have the same user id and prove
 * that they know the offer's key. Nothing appears in a file system, so nothing can be left behind there.
 *
 *     server -> client   hello    {magic, version, nonce}
 *     client -> server   request  {magic, name, nonce, keyed hash over both nonces and the name}
 *     server -> client   answer   {magic, status, keyed hash over both nonces and the status} + descriptors
 *
 * An answer that the key does not cover ("no such offer") is a hint only: the client asks again until its deadline.
 * Built without libsodium the hash is none and the equal user id is all that protects an offer.
 */
#ifndef KOLO_SHARE_FDPASS_H
#define KOLO_SHARE_FDPASS_H

#include "base/status.h"
#include "base/wait.h"

#define KOLO_FDPASS_NAME_BYTES 16
#define KOLO_FDPASS_KEY_BYTES  32
#define KOLO_FDPASS_MAX        64 /* descriptors per offer */

/* Finds the address of this process's server, chosen once, for peer cards. */
kolo_status_t kolo_fdpass_address(uint8_t address[16]);
/* Starts or stops the server, counted: the first start listens, the last stop ends everything. Any thread. */
kolo_status_t kolo_fdpass_start(void);
void kolo_fdpass_stop(void);

/* Offers descriptors (duplicated) under a name. The offer ends after `uses` fetches (0: no limit) or by withdraw.
 * Any thread. Withdrawing what is not there is fine. */
kolo_status_t kolo_fdpass_offer(const uint8_t name[KOLO_FDPASS_NAME_BYTES],
                                const uint8_t key[KOLO_FDPASS_KEY_BYTES], const int *fds, int nfds, uint32_t uses);
/* Offers them without duplicates and without a limit: the caller keeps them open until it has withdrawn the
 * offer. */
kolo_status_t kolo_fdpass_lend(const uint8_t name[KOLO_FDPASS_NAME_BYTES], const uint8_t key[KOLO_FDPASS_KEY_BYTES],
                               const int *fds, int nfds);
void kolo_fdpass_withdraw(const uint8_t name[KOLO_FDPASS_NAME_BYTES]);

/* What the kernel says about the process behind a server. */
typedef struct {
    int pid;      /* as seen here; 0: not visible (another pid namespace), or this very process is asked */
    int alive_fd; /* pidfd, or the connection itself: readable when the process has died. -1: this very process */
} kolo_fdpass_peer_t;

/* May the offer still be on its way, or was it made before the caller heard of it? */
typedef enum { KOLO_FDPASS_MAY_COME, KOLO_FDPASS_MUST_BE_THERE } kolo_fdpass_patience_t;

/* What is to be said of a server at which nobody listens while its rank lives. */
#define KOLO_FDPASS_TWIN                                                                                           \
    "on another host that looks like this one (a copied virtual machine, or no /proc): set KOLO_HOST_ID to "       \
    "another "                                                                                                     \
    "text on each host"

/* Whose server is asked, and for how long. */
typedef struct {
    const uint8_t *address;        /* 16 bytes: of the server */
    const uint8_t *key;            /* of the offer */
    const char *who;               /* in messages: "rank 3 (host a, pid 7)" */
    uint64_t deadline_ns;          /* none: 30 s */
    const _Atomic uint32_t *abort; /* or NULL */
    kolo_waker_t *waker;           /* ends a sleep, too; or NULL */
    int ranks_here;                /* that share the processors */
    /* Asked while the offer is missing: is the other still there? served: its server answers. Or NULL. */
    kolo_status_t (*there)(void *arg, bool served);
    void *arg;
} kolo_fdpass_call_t;

/* Fetches an offer of exactly nfds descriptors (close-on-exec, owned by the caller). peer may be NULL.
 * KOLO_ERR_AUTH when the server refused the key; when there is no such offer, KOLO_ERR_REMOTE at once if it must be
 * there, else KOLO_ERR_TIMEOUT. */
kolo_status_t kolo_fdpass_fetch(const kolo_fdpass_call_t *call, const uint8_t name[KOLO_FDPASS_NAME_BYTES],
                                kolo_fdpass_patience_t patience, int *fds, int nfds, kolo_fdpass_peer_t *peer);

/* Process-wide, for tests and kolo-info. */
typedef struct {
    uint64_t served, refused_user, refused_key, refused_name, refused_frame, refused_timeout, refused_full;
    uint32_t pending, connections, offers; /* now */
} kolo_fdpass_counters_t;
void kolo_fdpass_get_counters(kolo_fdpass_counters_t *counters);

#endif
