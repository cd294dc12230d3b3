/* SPDX-License-Identifier: Apache-2.0
 *
 * What same-host wires share: a control page per rank and communicator, one memfd page that peers map read-only.
 * Its asleep word and a doorbell eventfd wake the rank, its closed word says that the rank has gone in good order,
 * and a descriptor of the peer's process tells its death. Pages and doorbells travel by share/fdpass.h.
 */
#ifndef KOLO_WIRE_CONTROL_H
#define KOLO_WIRE_CONTROL_H

#include "base/file/doorbell.h"
#include "base/process.h"
#include "wire/wire.h"

#define KOLO_CONTROL_BYTES   4096        /* of a page */
#define KOLO_CONTROL_MAGIC   0x6c74636bu /* "kctl" */
#define KOLO_CONTROL_VERSION 5u

typedef struct {
    _Alignas(64) _Atomic uint32_t asleep; /* the rank sleeps: ring its doorbell */
    _Atomic uint32_t closed;              /* the rank has closed this communicator: nothing more will come */
    _Atomic uint32_t failed; /* an operation failed there: its caller may use the buffers for something else now */
    uint32_t magic, version;
    int32_t rank, pid;
    uint64_t job;
    uint64_t bell; /* number of the doorbell, which may serve other communicators of that process, too */
    _Alignas(64) _Atomic uint32_t touching; /* 1 + the rank whose memory this one copies from or to now; 0: none */
} kolo_control_page_t;

typedef struct kolo_control kolo_control_t;
/* A peer's page as mapped here, with its doorbell and a descriptor that tells its death. Cached per context. */
typedef struct kolo_control_peer {
    const kolo_control_page_t *page;
    kolo_doorbell_t *bell;
    int rank;
    int event_fd;     /* both are the doorbell's */
    int alive_fd;     /* readable when the peer's process has died; -1: the peer is in this process */
    int pid;          /* of the peer's process as seen here; 0: not visible from here */
    bool visible;     /* /proc tells of it under that number */
    uint64_t look_ns; /* when to look there again */
    _Atomic int end;  /* kolo_process_end_t: what was seen there */
    int cma;          /* may its memory be read? 0 not tried, 1 yes, -1 no (wire/cma) */
} kolo_control_peer_t;

kolo_status_t kolo_control_open(kolo_wire_ctx_t *ctx);
void kolo_control_close(kolo_wire_ctx_t *ctx); /* sets closed, wakes those who sleep on it */
/* Ends copies from and to this rank's buffers before the error of an operation gets to its caller, who may use them
 * for something else: peers begin none any more, and those that run are waited for. One second at most: a process
 * that is stopped in the middle of a copy may write there later (a warning tells). Any thread. */
void kolo_control_fail(kolo_wire_ctx_t *ctx);
/* Opens a copy from or to the peer's memory: KOLO_ERR_REMOTE if the peer has failed, then nothing may be copied,
 * and end is not called. end: KOLO_ERR_REMOTE if it failed meanwhile: what was read is not used. */
kolo_status_t kolo_control_begin_copy(kolo_wire_ctx_t *ctx, const kolo_control_peer_t *peer);
kolo_status_t kolo_control_end_copy(kolo_wire_ctx_t *ctx, const kolo_control_peer_t *peer);
void kolo_control_fini(kolo_wire_ctx_t *ctx);
/* Maps the page of a same-host peer (or returns it from the cache). Blocking within ctx->deadline_ns. */
kolo_status_t kolo_control_peer(kolo_wire_ctx_t *ctx, int rank, kolo_control_peer_t **peer);
/* Tells whether the peer has gone: one load, at most one poll(2), now and then a look into /proc. */
bool kolo_control_gone(kolo_control_peer_t *peer);
/* Looks into /proc now: something has gone wrong with the peer's memory. */
kolo_process_end_t kolo_control_look(kolo_control_peer_t *peer);
/* Fails with KOLO_ERR_REMOTE if the peer has closed or died; the other ranks are told who died. Cheap enough for
 * every park. */
kolo_status_t kolo_control_check(kolo_wire_ctx_t *ctx, kolo_control_peer_t *peer);

#endif
