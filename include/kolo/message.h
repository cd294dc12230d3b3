/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages with tags: each with a request of its own, which completes, fails, ends by a time limit or is cancelled
 * apart from all others. They are no operations: they have no order with the collectives of their communicator nor
 * with kolo_send() and kolo_recv(), and go on while the program computes, on a thread of the library.
 *
 * A receive takes the first message that fits in the order in which messages of a source were sent; of several
 * receives that fit one message the one that was called first takes it. Between different sources and tags there is
 * no order. A send does not wait for its peer's receive before it returns, not even the first one: the library's
 * threads make the connection. It is complete when its buffer may be used again: short messages (64 KB and less)
 * mostly before they are received, as the receiver keeps up to 1 MB of each source that nobody has asked for; long
 * ones wait for their receive.
 *
 * Threads: all of these functions may be called by several threads at once, also for one communicator; the order of
 * two sends is that in which the calls were made. Requests are this process's: not for a child of fork().
 *
 * A receive from any source ends with KOLO_ERR_REMOTE when all other ranks have left and what they had sent is
 * received: nobody could send it.
 *
 * When a rank is lost, and when the communicator is aborted or revoked, every request fails with the communicator's
 * error. When a time limit ends a request or it is cancelled, the communicator and all else on it go on.
 *
 * Buffers are ordinary memory; on a GPU communicator all calls here are KOLO_ERR_UNSUPPORTED.
 *
 * Arguments: these names mean the same in all functions; the others are those of kolo.h.
 *
 *     buf      the elements that are sent, or room for those that are received
 *     count    how many elements; for a receive the most that there is room for
 *     tag      the number of the kind of message, the same at both ends
 *     source   the rank to receive from, or KOLO_ANY_SOURCE
 *     opts     options of this call; NULL: defaults
 *     request  the request
 */
#ifndef KOLO_MESSAGE_H
#define KOLO_MESSAGE_H

#include <kolo/kolo.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/* ---- sending and receiving --------------------------------------------------------------------------------- */

#define KOLO_ANY_SOURCE (-1) /* a receive takes the next message, whoever sent it */

typedef struct kolo_request *kolo_request_t;

/* Options of one call. Start from KOLO_CALL_OPTS_INITIALIZER. */
typedef struct kolo_call_opts {
    uint32_t size;  /* sizeof of the caller's struct: newer fields than the caller knows take defaults */
    int timeout_ms; /* limit of this call, from now on; 0: none. Default: op_timeout_ms of the communicator */
} kolo_call_opts_t;
#define KOLO_CALL_OPTS_INITIALIZER                                                                                 \
    {                                                                                                              \
        sizeof(kolo_call_opts_t), KOLO_UNDEFINED_INT                                                               \
    }

/* What has been received. */
typedef struct kolo_received {
    int source;   /* the rank that sent it */
    uint64_t tag; /* its tag */
    size_t bytes; /* its length, which may be less than there was room for */
} kolo_received_t;

/* Starts to send count elements to rank `peer`, which may be the caller, and sets *request. The buffer stays in use
 * until the request is complete. opts may be NULL. Any thread. */
kolo_status_t kolo_isend_tag(const void *buf, size_t count, kolo_type_t type, int peer, uint64_t tag,
                             kolo_comm_t comm, const kolo_call_opts_t *opts, kolo_request_t *request);
/* Starts to receive at most count elements from rank `source`, or from any with KOLO_ANY_SOURCE, and sets *request.
 * A longer message is taken away, and ends the request with KOLO_ERR_MISMATCH. The buffer stays in use until the
 * request is complete. opts may be NULL. Any thread. */
kolo_status_t kolo_irecv_tag(void *buf, size_t count, kolo_type_t type, int source, uint64_t tag, kolo_comm_t comm,
                             const kolo_call_opts_t *opts, kolo_request_t *request);

/* Sends a message, and returns when its buffer may be used again. Any thread. */
kolo_status_t kolo_send_tag(const void *buf, size_t count, kolo_type_t type, int peer, uint64_t tag,
                            kolo_comm_t comm, const kolo_call_opts_t *opts);
/* Waits for a message. received (may be NULL) is what came. Any thread. */
kolo_status_t kolo_recv_tag(void *buf, size_t count, kolo_type_t type, int source, uint64_t tag, kolo_comm_t comm,
                            const kolo_call_opts_t *opts, kolo_received_t *received);

/* ---- requests ---------------------------------------------------------------------------------------------- */

/* Sets *complete to 1 if the request is complete, with whatever result, else to 0. Never waits. Any thread. */
kolo_status_t kolo_request_test(kolo_request_t request, int *complete);
/* Waits until the request is complete, at most timeout_ms milliseconds (-1: no limit but that of the request).
 * Returns its result, or KOLO_IN_PROGRESS if it is not complete by then; it goes on in that case. Any thread. */
kolo_status_t kolo_request_wait(kolo_request_t request, int timeout_ms);
/* Waits until one of requests[0..count) is complete, with whatever result, and sets *index to the first that is.
 * NULL requests are passed over; if all are, *index is -1. timeout_ms as above: then KOLO_IN_PROGRESS. Any thread.
 */
kolo_status_t kolo_request_wait_any(const kolo_request_t *requests, int count, int timeout_ms, int *index);
/* Returns the result of a request, and its text in *text (may be NULL), which stays until the request is freed:
 * KOLO_IN_PROGRESS and "" while it is not complete. Any thread. */
kolo_status_t kolo_request_error(kolo_request_t request, const char **text);
/* Returns what a receive that is complete has received in *received. Any thread. */
kolo_status_t kolo_request_get_received(kolo_request_t request, kolo_received_t *received);
/* Ends a request that is not complete with KOLO_ERR_ABORTED; its buffer may be used again. A short message may
 * still be received; what a receive had already been given is lost. Does nothing to one that is complete. Any
 * thread. */
kolo_status_t kolo_request_cancel(kolo_request_t request);
/* Frees a request; one that is not complete is cancelled first. Requests outlive their communicator, so each has to
 * be freed. NULL is fine. No other thread may use the request. */
kolo_status_t kolo_request_free(kolo_request_t request);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
