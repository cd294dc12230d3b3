/* SPDX-License-Identifier: Apache-2.0
 *
 * Kolo: collective communication between processes, threads and hosts.
 *
 * Life of a communicator: one rank calls kolo_get_unique_id() and hands the 128 bytes to the others by any
 * means; every rank calls kolo_comm_init_rank(); every rank makes the same collective calls in the same order;
 * every rank calls kolo_comm_finalize() (optional) and kolo_comm_destroy().
 *
 * Threads: a communicator is used by one thread at a time; kolo_comm_abort(), kolo_comm_get_async_error() and the
 * kolo_comm_* queries may be called from any thread at any time. Different communicators are independent.
 * Errors: every function returns a status. The message behind the last failure of the calling thread is
 * kolo_get_last_error(NULL), of a communicator kolo_get_last_error(comm). Output arguments are set on success only.
 * Networks: the two ends of a TCP connection prove to each other that they know the job's secret. What it carries
 * then is plain by default; with KOLO_TCP_SECURITY=mac changed bytes end it with an error, with =encrypt nobody
 * else can read them either (bytes by RDMA cannot be covered, so it is not used then). Units: counts are elements
 * of the given type, never bytes.
 */
#ifndef KOLO_H
#define KOLO_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

#define KOLO_VERSION_MAJOR 0
#define KOLO_VERSION_MINOR 1
#define KOLO_VERSION_PATCH 0
#define KOLO_VERSION       (KOLO_VERSION_MAJOR * 10000 + KOLO_VERSION_MINOR * 100 + KOLO_VERSION_PATCH)

/* ---- status ------------------------------------------------------------------------------------------------ */

typedef enum kolo_status {
    KOLO_OK = 0,
    KOLO_IN_PROGRESS = 1,          /* non-blocking call accepted; ask kolo_comm_get_async_error() */
    KOLO_ERR_INVALID_ARGUMENT = 2, /* an argument is out of its domain; nothing was done */
    KOLO_ERR_INVALID_USAGE = 3,    /* a call that is not allowed now (group misuse, communicator not ready) */
    KOLO_ERR_UNSUPPORTED = 4,      /* known, but not built in or not possible on this machine */
    KOLO_ERR_NO_MEMORY = 5,
    KOLO_ERR_SYSTEM = 6,     /* a system call failed; the message holds its error */
    KOLO_ERR_TIMEOUT = 7,    /* a deadline passed; the message says what was awaited */
    KOLO_ERR_REMOTE = 8,     /* a peer died or closed its connection */
    KOLO_ERR_MISMATCH = 9,   /* ranks called different operations, counts or types */
    KOLO_ERR_ABORTED = 10,   /* kolo_comm_abort() was called */
    KOLO_ERR_AUTH = 11,      /* a peer could not prove knowledge of the job's secret */
    KOLO_ERR_PROTOCOL = 12,  /* bytes from outside that make no sense, or were changed on their way */
    KOLO_ERR_INTERNAL = 13,  /* a bug in Kolo; please report the message */
    KOLO_ERR_PARTITION = 14, /* the network has split and this rank is on the side that does not go on */
    KOLO_ERR_REVOKED = 15    /* some rank called kolo_comm_revoke(): the communicator can only be shrunk */
} kolo_status_t;

/* The name of a status and one sentence on it; never NULL, static storage. Any thread. */
const char *kolo_status_string(kolo_status_t status);

/* Tells the KOLO_VERSION of the library that is loaded. */
kolo_status_t kolo_get_version(int *version);

/* ---- types and operators ----------------------------------------------------------------------------------- */

typedef enum kolo_type {
    KOLO_INT8 = 0,
    KOLO_UINT8 = 1,
    KOLO_INT32 = 2,
    KOLO_UINT32 = 3,
    KOLO_INT64 = 4,
    KOLO_UINT64 = 5,
    KOLO_FLOAT16 = 6,
    KOLO_BFLOAT16 = 7,
    KOLO_FLOAT32 = 8,
    KOLO_FLOAT64 = 9,
    KOLO_FLOAT8_E4M3 = 10, /* OCP e4m3fn: no infinities, saturates to NaN */
    KOLO_FLOAT8_E5M2 = 11, /* OCP e5m2 */
    KOLO_INT16 = 12,
    KOLO_UINT16 = 13,
    KOLO_BOOL = 14, /* one byte: 0 is false, all others are true; results are 0 and 1 */
    KOLO_TYPE_COUNT = 15
} kolo_type_t;

/* Integer arithmetic wraps. Floats of 8 and 16 bits are reduced in float32 inside one step and rounded to nearest
 * even when a step ends. MIN and MAX return NaN when any input is NaN. AVG scales each float input by 1/ranks
 * before summing and divides integer sums, truncating towards zero, after. Bitwise and logical operators are for
 * integers and KOLO_BOOL; logical ones take what is not 0 as true, and their results are 0 and 1. Of KOLO_BOOL,
 * PROD and MIN are "and", SUM and MAX "or", and there is no AVG. On GPUs the types from KOLO_INT16 on are moved,
 * but reducing them, and these operators, are KOLO_ERR_UNSUPPORTED. All ranks get the same bits, and the same call
 * on the same ranks gives the same bits again; docs/reductions.md has the rules in full. */
typedef enum kolo_op {
    KOLO_SUM = 0,
    KOLO_PROD = 1,
    KOLO_MIN = 2,
    KOLO_MAX = 3,
    KOLO_AVG = 4,
    KOLO_BAND = 5, /* bitwise and, or, exclusive or */
    KOLO_BOR = 6,
    KOLO_BXOR = 7,
    KOLO_LAND = 8, /* logical and, or, exclusive or */
    KOLO_LOR = 9,
    KOLO_LXOR = 10,
    KOLO_OP_BUILTIN_COUNT = 11 /* values from here on come from kolo_op_create_*() */
} kolo_op_t;

/* Size of one element in bytes, 0 for an unknown type. */
size_t kolo_type_size(kolo_type_t type);
/* Tells whether a built-in operator reduces elements of a type: 1 or 0. Any thread. */
int kolo_op_takes(kolo_op_t op, kolo_type_t type);

/* ---- handles ----------------------------------------------------------------------------------------------- */

typedef struct kolo_comm *kolo_comm_t;
typedef struct kolo_cpu_stream *kolo_stream_t; /* passed as void *: a GPU communicator takes a CUstream there */
typedef struct kolo_cpu_event *kolo_event_t;
typedef struct kolo_registration *kolo_registration_t;
typedef struct kolo_window *kolo_window_t;

#define KOLO_UNIQUE_ID_BYTES 128
/* Holds the root's address and the job's secret: send it over channels you trust. */
typedef struct kolo_unique_id {
    char bytes[KOLO_UNIQUE_ID_BYTES];
} kolo_unique_id_t;

#define KOLO_UNDEFINED_INT INT32_MIN
#define KOLO_CONFIG_MAGIC  0x6b6f6c6fu /* "kolo" */

/* Options of one communicator. Start from KOLO_CONFIG_INITIALIZER; a field left undefined takes the parameter of
 * the same name (KOLO_BLOCKING, ...; see kolo-info --params) or its default. */
typedef struct kolo_config {
    uint32_t size;       /* sizeof of the caller's struct: newer fields than the caller knows take defaults */
    uint32_t magic;      /* KOLO_CONFIG_MAGIC */
    int blocking;        /* 0: init, split, shrink, grow, finalize, first uses return KOLO_IN_PROGRESS. Default 1 */
    int init_timeout_ms; /* limit of init, split, shrink, grow, of making connections. Default 120000 */
    int op_timeout_ms;   /* limit of one operation, 0 = none (ranks may wait minutes for a peer); the error comes up
                            to 200 ms later, with what the other ranks are doing. On a GPU the time runs while the
                            operation waits for other ranks, not behind other work on its stream. Default 0 */
    const char *name;    /* copied; used in messages. Default "comm" */
    int split_share;     /* 1, on all ranks of a color: a split shares what its parent knows of hosts, processes and
                            wires, and the sizes of its buffers, and is made with fewer messages. Default 0 */
    int device;      /* -1: buffers are ordinary memory. 0 and up: they are memory of the GPU with this number (as
                        CUDA counts in this process), streams are CUDA streams, and a call is over for the caller
                        when it is queued. All ranks have a GPU or none has. Default -1, or the parent's */
    int gpu_profile; /* what operations on GPUs are made for: KOLO_GPU_LATENCY: to be done soon, with most of the
                        GPU; KOLO_GPU_COMPUTE: to leave it to what the program computes meanwhile. The same on all
                        ranks. Default KOLO_GPU_PROFILE, or the parent's */
} kolo_config_t;
#define KOLO_GPU_LATENCY 0
#define KOLO_GPU_COMPUTE 1
#define KOLO_CONFIG_INITIALIZER                                                                                    \
    {                                                                                                              \
        sizeof(kolo_config_t), KOLO_CONFIG_MAGIC, KOLO_UNDEFINED_INT, KOLO_UNDEFINED_INT, KOLO_UNDEFINED_INT,      \
            NULL, KOLO_UNDEFINED_INT, KOLO_UNDEFINED_INT, KOLO_UNDEFINED_INT                                       \
    }

/* ---- unique id and initialisation -------------------------------------------------------------------------- */

/* Makes an id: opens a listening socket and serves the ranks that will call it until all of them have what they
 * need (one job per id). With KOLO_COMM_ID=host:port set, the address is taken from there and the secret from
 * KOLO_COMM_SECRET_FILE; then every rank may call this and gets an equal id. The socket is closed when the job has
 * come about or failed, or when no rank has called for KOLO_ROOT_IDLE_MS (a day). If this process dies before all
 * ranks are in, those that wait get KOLO_ERR_REMOTE at once. Any thread. */
kolo_status_t kolo_get_unique_id(kolo_unique_id_t *id);

/* Writes the id to, or reads it from, a file (mode 0600, written atomically). Reading waits up to timeout_ms for
 * the file to appear. */
kolo_status_t kolo_unique_id_save(const kolo_unique_id_t *id, const char *path);
kolo_status_t kolo_unique_id_load(kolo_unique_id_t *id, const char *path, int timeout_ms);

/* Joins the communicator of `nranks` ranks that `id` names, as `rank`. Collective. With config->blocking == 0
 * returns KOLO_IN_PROGRESS and *comm may only be passed to kolo_comm_get_async_error(), _abort and _destroy until
 * that reports KOLO_OK. config may be NULL. */
kolo_status_t kolo_comm_init_rank(kolo_comm_t *comm, int nranks, kolo_unique_id_t id, int rank,
                                  const kolo_config_t *config);

/* The same with several roots, for very many ranks: ids[0..nids) made by kolo_get_unique_id() in different
 * processes, the same list in the same order on every rank. */
kolo_status_t kolo_comm_init_rank_scalable(kolo_comm_t *comm, int nranks, int rank, int nids,
                                           const kolo_unique_id_t *ids, const kolo_config_t *config);

/* All ranks of a communicator in this process: comms[0..nranks) is filled with one handle per rank. To call a
 * collective on several of them from one thread, put the calls between kolo_group_start() and kolo_group_end(). */
kolo_status_t kolo_comm_init_all(kolo_comm_t *comms, int nranks, const kolo_config_t *config);

#define KOLO_SPLIT_NOCOLOR (-1)
/* Makes communicators of parts of one. Collective over `comm`: ranks of equal color (>= 0) form a new communicator,
 * ordered by key, then by old rank. KOLO_SPLIT_NOCOLOR takes part and gets *newcomm = NULL. config NULL: the
 * parent's. With blocking 0 (of config, or of `comm` where there is no new one) it returns KOLO_IN_PROGRESS: ask
 * kolo_comm_get_async_error() of *newcomm; where that is NULL, of `comm`, which is KOLO_IN_PROGRESS itself until
 * its ranks have met for the split, and then serves on. Shrink and grow are polled likewise. */
kolo_status_t kolo_comm_split(kolo_comm_t comm, int color, int key, kolo_comm_t *newcomm,
                              const kolo_config_t *config);

/* Makes another communicator of the same ranks, whose calls have no order with those of `comm`: kolo_comm_split()
 * with one color, rank for key, and what can be shared shared (config.split_share), unless config says otherwise.
 */
kolo_status_t kolo_comm_dup(kolo_comm_t comm, kolo_comm_t *newcomm, const kolo_config_t *config);

#define KOLO_SHRINK_DEFAULT 0
#define KOLO_SHRINK_ABORT   1
/* Makes a communicator of the ranks that are left, in their old order; needs no new id. Left out are
 * excluded[0..count) (the same list on all that call; NULL and 0: nobody) and those that are lost: the callers
 * agree on them first, and again when one more is lost meanwhile, so that all that return KOLO_OK have the same
 * communicator. The excluded ranks do not call and may be dead, hung or in the middle of an operation.
 * KOLO_SHRINK_DEFAULT: the operations of `comm` come first, in the order of calls; it can be used on, and serves on
 * while the new one is being set up. Without a list `comm` may have lost ranks or be revoked. KOLO_SHRINK_ABORT:
 * this rank's operations on `comm` are ended (KOLO_ERR_ABORTED) before; afterwards `comm` can only be destroyed,
 * aborted, or shrunk in this mode again. KOLO_ERR_MISMATCH: the ranks name different ones. KOLO_ERR_PARTITION: the
 * others go on without this rank. config NULL: the parent's. */
kolo_status_t kolo_comm_shrink(kolo_comm_t comm, const int *excluded, int count, int flags, kolo_comm_t *newcomm,
                               const kolo_config_t *config);

/* Makes an id by which new processes join `comm` (one grow per id). On one rank that takes part in the grow, any of
 * them: it is the one that passes the id there. The id is a secret, like those of kolo_get_unique_id(). Any thread.
 */
kolo_status_t kolo_comm_get_grow_id(kolo_comm_t comm, kolo_unique_id_t *id);
/* Makes a communicator of all ranks of `comm`, with their old numbers, and new ones. Collective over both. An old
 * rank passes comm, rank -1 and id NULL, except the one that made the id, which passes it; a new rank passes comm
 * NULL, the id, and its rank in [old count, nranks). nranks counts both and is the same on all. `comm` can be used
 * on; with blocking 0 it serves while new ranks are awaited. A new rank that does not come within init_timeout_ms
 * is KOLO_ERR_TIMEOUT on all others, with its number; what fails on one side fails on the other. config NULL: that
 * of `comm`, or defaults. KOLO_ERR_UNSUPPORTED: built without libsodium. */
kolo_status_t kolo_comm_grow(kolo_comm_t comm, int nranks, const kolo_unique_id_t *id, int rank,
                             kolo_comm_t *newcomm, const kolo_config_t *config);

/* Makes the communicator unusable on all ranks: what is under way or queued, here and there, ends with
 * KOLO_ERR_REVOKED, later operations, finalize, split and grow are refused with it. Not collective: one rank calls,
 * and others that call at the same time do no harm; a second call of one rank is KOLO_ERR_INVALID_ARGUMENT. Does
 * not wait. Afterwards the ranks may shrink it (without a list, or in abort mode). Communicators made from it are
 * not affected. Any thread. NULL is fine. */
kolo_status_t kolo_comm_revoke(kolo_comm_t comm);
/* Tells which ranks of `comm` this rank knows to be lost, those that a shrink of it has left out unnamed included.
 * In: *count is the room in `ranks`; out: how many there are, of which the first fill `ranks` in rising order (NULL
 * for no room). Other ranks may know of others: what all agree on is what kolo_comm_shrink() leaves out. Any
 * thread. */
kolo_status_t kolo_comm_lost(kolo_comm_t comm, int *ranks, int *count);

/* Waits until all operations of this rank are complete and lets the others know. Collective. After it only queries,
 * destroy and abort are allowed. */
kolo_status_t kolo_comm_finalize(kolo_comm_t comm);
/* Frees the communicator once this rank's operations are complete; what returned KOLO_IN_PROGRESS and is not over
 * yet is ended. Waits for no peer, but for operations on streams, which may wait for one (kolo_comm_abort() ends
 * them): whoever still needs this rank gets KOLO_ERR_REMOTE, so ranks that leave together call kolo_comm_finalize()
 * before. NULL is fine. The handle is dead afterwards: later calls with it return KOLO_ERR_INVALID_ARGUMENT. */
kolo_status_t kolo_comm_destroy(kolo_comm_t comm);
/* Ends every wait of this communicator on this rank, from any thread, and frees it once no call is inside. The
 * handle is dead afterwards, as after kolo_comm_destroy(), but kolo_comm_get_async_error() gives KOLO_ERR_ABORTED
 * of it until at least 64 more communicators were made. */
kolo_status_t kolo_comm_abort(kolo_comm_t comm);

/* How many ranks the communicator has, and which of them the caller is. */
kolo_status_t kolo_comm_count(kolo_comm_t comm, int *nranks);
kolo_status_t kolo_comm_user_rank(kolo_comm_t comm, int *rank);
/* The device this rank's buffers live on: -1 for the CPU. */
kolo_status_t kolo_comm_device(kolo_comm_t comm, int *device);
/* Asks for the state: KOLO_OK, KOLO_IN_PROGRESS, or the first error that made this communicator unusable. Never
 * blocks. */
kolo_status_t kolo_comm_get_async_error(kolo_comm_t comm, kolo_status_t *async_error);
/* The text behind the last error of `comm`, or of the calling thread for NULL. Valid until the next call. */
const char *kolo_get_last_error(kolo_comm_t comm);

/* ---- collectives -------------------------------------------------------------------------------------------
 * Buffers belong to the caller and must not be touched between the call and its completion. stream NULL: the call
 * is complete when it returns; a kolo_stream_t: it is queued and completes in the stream's order. Source and
 * destination must not overlap except for the in-place forms named below. Count 0 is allowed and moves nothing
 * (it still counts as a call: all ranks must make it). All ranks must pass the same type, op, root and count.
 * Arrays of counts and displacements are read by the call and may change as soon as it has returned, also when it
 * is queued or in a group. Operations of one communicator run one after the other in the order of the calls,
 * whatever streams they were queued on; several streams only let the caller go on. What follows on another stream,
 * or on another communicator, has no order with them but by events (kolo_stream_wait_event). First use: connections
 * are made by the first operation that needs them. On a communicator with config.blocking 0 such an operation
 * without a stream (or the group that holds it) returns KOLO_IN_PROGRESS and goes on in the background; the buffers
 * are in use, and other operations are refused (KOLO_ERR_INVALID_USAGE), until kolo_comm_get_async_error() no
 * longer reports KOLO_IN_PROGRESS. A group holds communicators of one kind only, blocking or not. */

/* Every rank gets the reduction of all ranks' src. In place: src == dst. */
kolo_status_t kolo_all_reduce(const void *src, void *dst, size_t count, kolo_type_t type, kolo_op_t op,
                              kolo_comm_t comm, void *stream);
/* The root gets the reduction of all ranks' src. dst is used on the root only and may be NULL elsewhere. In place:
 * src == dst on the root. */
kolo_status_t kolo_reduce(const void *src, void *dst, size_t count, kolo_type_t type, kolo_op_t op, int root,
                          kolo_comm_t comm, void *stream);
/* Every rank gets the root's src. src is used on the root only and may be NULL elsewhere. In place: src == dst. */
kolo_status_t kolo_broadcast(const void *src, void *dst, size_t count, kolo_type_t type, int root, kolo_comm_t comm,
                             void *stream);
/* Every rank gets every rank's src. dst holds nranks * count elements in rank order. In place: src == dst + rank *
 * count. */
kolo_status_t kolo_all_gather(const void *src, void *dst, size_t count, kolo_type_t type, kolo_comm_t comm,
                              void *stream);
/* Every rank gets every rank's src, of different lengths. counts[i], displs[i]: elements from rank i and where they
 * go in dst; the same arrays on all ranks. */
kolo_status_t kolo_all_gatherv(const void *src, void *dst, const size_t *counts, const size_t *displs,
                               kolo_type_t type, kolo_comm_t comm, void *stream);
/* Rank i gets the reduction of part i of all ranks' src. src holds nranks * count elements. In place: dst == src +
 * rank * count. */
kolo_status_t kolo_reduce_scatter(const void *src, void *dst, size_t count, kolo_type_t type, kolo_op_t op,
                                  kolo_comm_t comm, void *stream);
/* Rank i gets the reduction of part i, of different lengths. Part i has counts[i] elements, parts lie back to back
 * in src. */
kolo_status_t kolo_reduce_scatterv(const void *src, void *dst, const size_t *counts, kolo_type_t type, kolo_op_t op,
                                   kolo_comm_t comm, void *stream);
/* Every rank sends a part to every rank. Part i of src (count elements) goes to part `rank` of rank i's dst. No
 * in-place form. */
kolo_status_t kolo_all_to_all(const void *src, void *dst, size_t count, kolo_type_t type, kolo_comm_t comm,
                              void *stream);
/* Every rank sends a part to every rank, of different lengths. send_counts[i] at send_displs[i] go to rank i,
 * recv_counts[i] from rank i go to recv_displs[i]. */
kolo_status_t kolo_all_to_allv(const void *src, const size_t *send_counts, const size_t *send_displs, void *dst,
                               const size_t *recv_counts, const size_t *recv_displs, kolo_type_t type,
                               kolo_comm_t comm, void *stream);
/* The root gets every rank's src in rank order. In place on the root: src == dst + root * count. dst may be NULL
 * elsewhere. */
kolo_status_t kolo_gather(const void *src, void *dst, size_t count, kolo_type_t type, int root, kolo_comm_t comm,
                          void *stream);
/* Rank i gets part i of the root's src. In place on the root: dst == src + root * count. src may be NULL elsewhere.
 */
kolo_status_t kolo_scatter(const void *src, void *dst, size_t count, kolo_type_t type, int root, kolo_comm_t comm,
                           void *stream);
/* The root gets every rank's src, of different lengths. counts[i]: elements from rank i, the same array on all
 * ranks; displs[i]: where they go in dst, used on the root only, as dst, and NULL is fine elsewhere. In place on
 * the root: src == dst + displs[root]. */
kolo_status_t kolo_gatherv(const void *src, void *dst, const size_t *counts, const size_t *displs, kolo_type_t type,
                           int root, kolo_comm_t comm, void *stream);
/* Rank i gets a part of the root's src, of different lengths. counts[i]: elements for rank i, the same array on all
 * ranks; displs[i]: where they begin in src, used on the root only, as src, and NULL is fine elsewhere. In place on
 * the root: dst == src + displs[root]. */
kolo_status_t kolo_scatterv(const void *src, const size_t *counts, const size_t *displs, void *dst,
                            kolo_type_t type, int root, kolo_comm_t comm, void *stream);
/* Waits for all ranks: returns on no rank before it was called on all. */
kolo_status_t kolo_barrier(kolo_comm_t comm, void *stream);
/* Moves a message between two ranks. Sends to and receives from one peer match in the order of the calls, and both
 * must have the same number of bytes: a receive does not take less. A send may wait until the peer receives, the
 * first one always does: exchange in a group. Count 0 is matched too. A rank sends to itself inside a group only,
 * in which its k-th send to itself goes to its k-th receive. */
kolo_status_t kolo_send(const void *buf, size_t count, kolo_type_t type, int peer, kolo_comm_t comm, void *stream);
kolo_status_t kolo_recv(void *buf, size_t count, kolo_type_t type, int peer, kolo_comm_t comm, void *stream);

/* A message of its own to wait for. kolo_isend() and kolo_irecv() put a message aside and return; its buffer is in
 * use until kolo_pending_wait() has returned. The messages that were put aside run together, as one group, and with
 * them the next call on this communicator (of any kind, without a stream or with one); or they run when one of them
 * is waited for. So such a call, or wait, returns when all of them are complete: both ends of an exchange may call
 * kolo_isend() and then kolo_recv(). Wait for all requests before the communicator is finalized or destroyed. Not
 * in a group. On a GPU KOLO_ERR_UNSUPPORTED: there streams and events do it. */
typedef struct kolo_pending *kolo_pending_t;
kolo_status_t kolo_isend(const void *buf, size_t count, kolo_type_t type, int peer, kolo_comm_t comm,
                         kolo_pending_t *request);
kolo_status_t kolo_irecv(void *buf, size_t count, kolo_type_t type, int peer, kolo_comm_t comm,
                         kolo_pending_t *request);
/* Asks whether the message is complete, *complete becomes 1 or 0, and lets it begin if it has not: from then on it
 * is under way in the background, and later calls on this communicator come after it. The request stays. */
kolo_status_t kolo_pending_test(kolo_pending_t request, int *complete);
/* Waits until the message is complete, returns how it ended and frees the request. NULL is fine. */
kolo_status_t kolo_pending_wait(kolo_pending_t request);

/* ---- windows: memory that other ranks write to, without a call of its owner ---------------------------------
 * A put is a copy into a window of another rank; a signal is a count there, one for each rank that signals and each
 * number 0 ... KOLO_SIGNALS - 1; they belong to the communicator, whatever windows it has. Order: what a rank has
 * put to a peer is in place when a signal is counted that the rank sent it later, by put_signal or signal; nothing
 * else says that it is. Puts to one peer have no order among themselves, signals of one rank with one number do,
 * and of different ranks nothing has. They take part in the order of calls: on a communicator nothing overtakes a
 * wait that was called before it, on whatever stream, so a program in which two ranks wait first and signal then
 * does not end; in a group they run side by side. A put is complete when its source may be used again; an error, an
 * abort or the loss of a rank ends it and all waits as it ends collectives, and what was put last may then be in
 * place in part.
 *
 * On GPU communicators windows and sources are memory of the rank's GPU, copy engines copy, and a wait holds up its
 * stream. All GPUs must reach each other's memory, else KOLO_ERR_UNSUPPORTED. A put can be captured in a graph;
 * signals and waits cannot, since a replay would repeat their counts (KOLO_ERR_UNSUPPORTED). op_timeout_ms does not
 * end a wait there. */

#define KOLO_SIGNALS 16 /* numbers of signals from each rank */
typedef struct kolo_signal_wait {
    int peer;       /* whose signals */
    int signal;     /* which number */
    uint32_t count; /* how many, at most 2^31 - 1 */
} kolo_signal_wait_t;

/* Lends `bytes` of memory at buf to the other ranks to write to, until the window is given back. Collective; sizes
 * may differ, and be 0. buf NULL: Kolo makes the memory, zeroed, such that processes of one host write to it
 * directly, and frees it with the window. GPU memory of the virtual kind must have been made with a handle that is
 * a descriptor, if ranks are in several processes. What fails on one rank fails on all. Waits for all ranks, at
 * most init_timeout_ms; with blocking 0 it returns KOLO_IN_PROGRESS and sets *window before
 * kolo_comm_get_async_error() stops saying so, and a failure ends the use of the communicator. Not in a group.
 * Connections are made here. What is left when the communicator is destroyed is given back then: finalize it
 * before, or peers may still write. */
kolo_status_t kolo_window_register(kolo_comm_t comm, void *buf, size_t bytes, kolo_window_t *window);
/* Gives the memory back: collective, of the window that all ranks made together. When it returns all that was put
 * into it before is in place, and nobody writes there any more. The handle is dead afterwards. NULL is fine. */
kolo_status_t kolo_window_deregister(kolo_comm_t comm, kolo_window_t window);
/* Returns where this rank's part of a window lies, and how long it is. Either output may be NULL. */
kolo_status_t kolo_window_memory(kolo_comm_t comm, kolo_window_t window, void **buf, size_t *bytes);

/* Copies count elements at src into the window of rank `peer` (itself is fine), `offset` bytes behind its
 * beginning. KOLO_ERR_INVALID_ARGUMENT, and nothing is done: they do not fit there, or this is no window (any
 * more). */
kolo_status_t kolo_put(const void *src, size_t count, kolo_type_t type, int peer, kolo_window_t window,
                       size_t offset, kolo_comm_t comm, void *stream);
/* The same, then a signal. Count 0 only signals. */
kolo_status_t kolo_put_signal(const void *src, size_t count, kolo_type_t type, int peer, kolo_window_t window,
                              size_t offset, int signal, kolo_comm_t comm, void *stream);
/* Adds one to the signals with this number at rank `peer`. There must have been a window on this communicator. At
 * most 2^31 - 1 may come that were not waited for: more make the peer's next wait fail. */
kolo_status_t kolo_signal(int peer, int signal, kolo_comm_t comm, void *stream);
/* Waits until each of these has come, and takes that many off. The list is read by the call. The limit of the wait
 * is op_timeout_ms; while it lasts kolo-top shows for whom. */
kolo_status_t kolo_wait_signal(const kolo_signal_wait_t *waits, int nwaits, kolo_comm_t comm, void *stream);

/* Makes several calls one. Calls between the outermost start and end of a thread are collected and run together at
 * the end: point-to-point calls, one-sided ones and collectives in any mix, on any number of communicators.
 * Arguments are checked by the call itself: one that fails there is not part of the group, and the rest runs.
 * kolo_group_end() returns the first other error; the shares of other communicators run to their end all the same.
 * Groups nest; an inner pair does nothing.
 *
 * The collectives of a communicator run in the order of their calls, as do its messages to or from one peer, its
 * puts and signals to one peer, and its waits. Beyond
 * that the calls of a group have no order: none may read what another one writes. A group on one rank may meet
 * several groups, or single calls, on another: how they are cut does not matter.
 *
 * Without a stream the group is complete when kolo_group_end() returns. Calls with one are queued: communicators
 * that have a stream in common in this group run together, when all their streams have come to it, and all of these
 * streams wait for them. KOLO_CHECK=deep compares a collective among all ranks before anything else of its
 * communicator goes on: with it, cut groups that mix messages and collectives alike on all ranks. */
kolo_status_t kolo_group_start(void);
kolo_status_t kolo_group_end(void);

/* ---- user operators ---------------------------------------------------------------------------------------- */

/* Makes a sum in which this rank's input is first multiplied by *scalar (of `type`, a float type or an integer;
 * read now, and may be another one on each rank). Bound to `comm` and `type`. May be destroyed as soon as the last
 * call that uses it has returned. */
kolo_status_t kolo_op_create_premul_sum(kolo_op_t *op, const void *scalar, kolo_type_t type, kolo_comm_t comm);
/* The function of a user operator: inout[i] = f(in[i], inout[i]) for count elements; must be associative and
 * commutative, and the same on all ranks. Called on the thread that runs the collective. */
typedef void (*kolo_user_op_fn_t)(const void *in, void *inout, size_t count, kolo_type_t type, void *arg);
/* Makes an operator of a function, for `type` on `comm`; arg is handed to it. */
kolo_status_t kolo_op_create_callback(kolo_op_t *op, kolo_user_op_fn_t fn, void *arg, kolo_type_t type,
                                      kolo_comm_t comm);
/* Frees an operator. */
kolo_status_t kolo_op_destroy(kolo_op_t op, kolo_comm_t comm);

/* ---- streams and events on the CPU ------------------------------------------------------------------------- */

/* An ordered queue of operations with a thread of its own: make, wait, ask, free. */
kolo_status_t kolo_stream_create(kolo_stream_t *stream);
kolo_status_t kolo_stream_synchronize(kolo_stream_t stream); /* waits; returns the first error of the queue */
kolo_status_t kolo_stream_query(kolo_stream_t stream);       /* KOLO_OK if empty, KOLO_IN_PROGRESS if not */
kolo_status_t kolo_stream_destroy(kolo_stream_t stream);     /* waits for the queue; NULL is fine */
/* Queues a call: fn(arg) runs on the stream's thread in its order. */
kolo_status_t kolo_stream_call(kolo_stream_t stream, void (*fn)(void *), void *arg);

/* Marks a point of a stream's queue: record it, then ask or wait for it, here or in another stream. */
kolo_status_t kolo_event_create(kolo_event_t *event);
kolo_status_t kolo_event_record(kolo_event_t event, kolo_stream_t stream);
kolo_status_t kolo_event_query(kolo_event_t event);
kolo_status_t kolo_event_synchronize(kolo_event_t event);
kolo_status_t kolo_stream_wait_event(kolo_stream_t stream, kolo_event_t event);
kolo_status_t kolo_event_destroy(kolo_event_t event);

/* ---- memory ------------------------------------------------------------------------------------------------ */

/* Tells wires that a buffer will be used often, so that network cards read and write it in place: nothing is copied
 * when large data goes out of it or comes into it. Optional, local, never needed for right results; any thread.
 * Give it back before the memory is freed: pages that go away while they are registered are noticed and not used in
 * place again (with a warning), but only where the kernel has userfaultfd; elsewhere nothing is used in place
 * unless KOLO_MEM_UNWATCHED is set. A child of fork() has no registrations. What is left when the communicator is
 * destroyed is given back then. */
kolo_status_t kolo_comm_register(kolo_comm_t comm, void *buf, size_t bytes, kolo_registration_t *handle);
kolo_status_t kolo_comm_deregister(kolo_comm_t comm, kolo_registration_t handle);

/* Tells how much memory this communicator holds on this rank, in bytes: mapped segments and private buffers. They
 * grow with use; while an operation is under way the last figure is told again. On the thread that calls
 * operations. */
kolo_status_t kolo_comm_memory(kolo_comm_t comm, size_t *bytes);

/* Gives the device memory of a GPU communicator back for a while. All ranks call it; it waits until all that they
 * have queued is complete, at most init_timeout_ms. *bytes (may be NULL) becomes what this rank has given back.
 * Until kolo_comm_resume(), which all ranks call too, operations are refused with KOLO_ERR_INVALID_USAGE. CUDA
 * graphs that hold operations of this communicator must be captured anew. KOLO_ERR_UNSUPPORTED where a communicator
 * has no device memory of its own to give: on the CPU, and over several hosts. */
kolo_status_t kolo_comm_suspend(kolo_comm_t comm, size_t *bytes);
kolo_status_t kolo_comm_resume(kolo_comm_t comm);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
