/* SPDX-License-Identifier: Apache-2.0
 *
 * Kolo: collective communication between processes, threads and hosts.
 *
 * Life of a communicator: one rank calls kolo_get_unique_id() and passes the 128 bytes to the others; every rank
 * calls kolo_comm_init_rank(); every rank makes the same collective calls in the same order; every rank calls
 * kolo_comm_finalize() (optional) and kolo_comm_destroy().
 *
 * Threads: a communicator is used by one thread at a time; kolo_comm_abort(), kolo_comm_get_async_error() and the
 * kolo_comm_* queries may be called from any thread at any time. A call that comes while another thread is in one
 * without a stream, on the same communicator, is KOLO_ERR_INVALID_USAGE, and nothing is done. On CPUs several
 * threads may queue calls on streams: each call has one place in the order of the communicator. Different
 * communicators are independent. Streams and events may be used by several threads. A group belongs to the thread
 * that started it. The library's own threads block signals, also while they run functions of the program
 * (callbacks, kolo_stream_call(), operators on a stream); threads and processes that such a function starts
 * inherit that. A thread that calls Kolo needs 64 KB of stack, and the table of descriptors that the library's
 * threads have: unshare(CLONE_FILES) comes before the first communicator, or is an error of the next one.
 *
 * Errors: every function returns a status. kolo_get_last_error(NULL) is the message of the calling thread's last
 * failure, kolo_get_last_error(comm) that of a communicator's, if it has had one. Output arguments are set on
 * success only.
 *
 * Networks: the two ends of a TCP connection prove to each other that they know the job's secret. After that the
 * bytes are plain by default. With KOLO_TCP_SECURITY=mac changed bytes end the connection with an error; with
 * =encrypt they cannot be read either. Neither can protect RDMA, which is then not used.
 *
 * Units: counts are elements of the given type, never bytes; times are milliseconds.
 *
 * Arguments: these names mean the same in all functions whose words say nothing else.
 *
 *     comm      the communicator
 *     newcomm   set to the new communicator, which the caller ends like any other
 *     comms     room for the handles, one for each rank
 *     config    options of the communicator; NULL: all defaults
 *     nranks    the number of ranks
 *     rank      the number of a rank of the communicator, from 0
 *     src       where this rank's elements are
 *     dst       where the result goes
 *     buf       memory of the caller
 *     count     how many elements
 *     counts    how many elements for each rank, in rank order
 *     displs    where each rank's part begins, in elements
 *     type      the type of the elements
 *     op        the operator that reduces
 *     root      the rank that has what the others get, or gets what the others have
 *     peer      the rank at the other end
 *     stream    NULL, a kolo_stream_t, or a CUstream on a GPU communicator: see the section on collectives
 *     window    the handle of the window
 *     offset    where in the peer's window, in bytes from its beginning
 *     signal    the number of the signal, 0 to KOLO_SIGNALS - 1
 *     event     the event
 *     request   the request
 *     path      the name of a file
 */
#ifndef KOLO_H
#define KOLO_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

#define KOLO_VERSION_MAJOR 0 /* of these headers */
#define KOLO_VERSION_MINOR 1 /* of these headers */
#define KOLO_VERSION_PATCH 0 /* of these headers */
#define KOLO_VERSION       (KOLO_VERSION_MAJOR * 10000 + KOLO_VERSION_MINOR * 100 + KOLO_VERSION_PATCH) /* as one */

/* ---- status ------------------------------------------------------------------------------------------------ */

typedef enum kolo_status {
    KOLO_OK = 0,                   /* success */
    KOLO_IN_PROGRESS = 1,          /* non-blocking call accepted; ask kolo_comm_get_async_error() */
    KOLO_ERR_INVALID_ARGUMENT = 2, /* an argument is out of its domain; nothing was done */
    KOLO_ERR_INVALID_USAGE = 3,    /* a call that is not allowed now (group misuse, communicator not ready) */
    KOLO_ERR_UNSUPPORTED = 4,      /* known, but not built in or not possible on this machine */
    KOLO_ERR_NO_MEMORY = 5,        /* memory could not be had */
    KOLO_ERR_SYSTEM = 6,           /* a system call failed; the message holds its error */
    KOLO_ERR_TIMEOUT = 7,          /* a deadline passed; the message says what was awaited */
    KOLO_ERR_REMOTE = 8,           /* a peer died or closed its connection */
    KOLO_ERR_MISMATCH = 9,         /* ranks called different operations, counts or types */
    KOLO_ERR_ABORTED = 10,         /* kolo_comm_abort() was called */
    KOLO_ERR_AUTH = 11,            /* a peer could not prove knowledge of the job's secret */
    KOLO_ERR_PROTOCOL = 12,        /* bytes from outside that are malformed or were changed */
    KOLO_ERR_INTERNAL = 13,        /* a bug in Kolo; please report the message */
    KOLO_ERR_PARTITION = 14,       /* the network has split and this rank is on the side that does not go on */
    KOLO_ERR_REVOKED = 15          /* some rank called kolo_comm_revoke(): the communicator can only be shrunk */
} kolo_status_t;

/* Returns the name of a status and one sentence about it: never NULL, static storage. Any thread. */
const char *kolo_status_string(kolo_status_t status);

/* Returns the KOLO_VERSION of the loaded library in *version. Any thread. */
kolo_status_t kolo_get_version(int *version);

/* ---- types and operators ----------------------------------------------------------------------------------- */

typedef enum kolo_type {
    KOLO_INT8 = 0,         /* 1 byte */
    KOLO_UINT8 = 1,        /* 1 byte, without a sign */
    KOLO_INT32 = 2,        /* 4 bytes */
    KOLO_UINT32 = 3,       /* 4 bytes, without a sign */
    KOLO_INT64 = 4,        /* 8 bytes */
    KOLO_UINT64 = 5,       /* 8 bytes, without a sign */
    KOLO_FLOAT16 = 6,      /* IEEE binary16 */
    KOLO_BFLOAT16 = 7,     /* the upper half of a float32 */
    KOLO_FLOAT32 = 8,      /* IEEE binary32 */
    KOLO_FLOAT64 = 9,      /* IEEE binary64 */
    KOLO_FLOAT8_E4M3 = 10, /* OCP e4m3fn: no infinities, saturates to NaN */
    KOLO_FLOAT8_E5M2 = 11, /* OCP e5m2 */
    KOLO_INT16 = 12,       /* 2 bytes */
    KOLO_UINT16 = 13,      /* 2 bytes, without a sign */
    KOLO_BOOL = 14,        /* one byte: 0 is false, all other values are true; results are 0 and 1 */
    KOLO_TYPE_COUNT = 15   /* the number of types */
} kolo_type_t;

/* Integer arithmetic wraps. Floats of 8 and 16 bits are reduced in float32 inside one step and rounded to nearest
 * even when a step ends. MIN and MAX return NaN when any input is NaN. AVG multiplies each float input with 1/ranks
 * before the sum; it divides an integer sum afterwards, truncating towards zero. Bitwise and logical operators are
 * for integers and KOLO_BOOL. Logical ones treat any value but 0 as true and return 0 or 1. For KOLO_BOOL, PROD and
 * MIN are "and", SUM and MAX are "or", AVG is not allowed. GPUs do all of it. All ranks get the same bits, and the
 * same call on the same ranks gives the same bits again; docs/reductions.md has all rules. */
typedef enum kolo_op {
    KOLO_SUM = 0,              /* the sum */
    KOLO_PROD = 1,             /* the product */
    KOLO_MIN = 2,              /* the least */
    KOLO_MAX = 3,              /* the greatest */
    KOLO_AVG = 4,              /* the sum divided by the number of ranks */
    KOLO_BAND = 5,             /* bitwise and, or, exclusive or */
    KOLO_BOR = 6,              /* bitwise or */
    KOLO_BXOR = 7,             /* bitwise exclusive or */
    KOLO_LAND = 8,             /* logical and, or, exclusive or */
    KOLO_LOR = 9,              /* logical or */
    KOLO_LXOR = 10,            /* logical exclusive or */
    KOLO_OP_BUILTIN_COUNT = 11 /* values from here on come from kolo_op_create_*() */
} kolo_op_t;

/* Returns the size of one element in bytes, 0 for an unknown type. Any thread. */
size_t kolo_type_size(kolo_type_t type);
/* Returns 1 if the built-in operator `op` can reduce elements of a type, else 0. Any thread. */
int kolo_op_takes(kolo_op_t op, kolo_type_t type);

/* ---- handles ----------------------------------------------------------------------------------------------- */

typedef struct kolo_comm *kolo_comm_t;
typedef struct kolo_cpu_stream *kolo_stream_t; /* passed as void *: a GPU communicator takes a CUstream there */
typedef struct kolo_cpu_event *kolo_event_t;
typedef struct kolo_registration *kolo_registration_t;
typedef struct kolo_window *kolo_window_t;

#define KOLO_UNIQUE_ID_BYTES 128 /* of an id */
/* Holds the root's address and the job's secret: send it only over channels you trust. */
typedef struct kolo_unique_id {
    char bytes[KOLO_UNIQUE_ID_BYTES]; /* to be copied as they are */
} kolo_unique_id_t;

#define KOLO_UNDEFINED_INT INT32_MIN   /* a field that takes its default */
#define KOLO_CONFIG_MAGIC  0x6b6f6c6fu /* "kolo" */

/* Options of one communicator. Start from KOLO_CONFIG_INITIALIZER; a field left undefined takes the parameter of
 * the same name (KOLO_BLOCKING, ...; see kolo-info --params) or its default. */
typedef struct kolo_config {
    uint32_t size;       /* sizeof of the caller's struct: newer fields than the caller knows take defaults */
    uint32_t magic;      /* KOLO_CONFIG_MAGIC */
    int blocking;        /* 0: init, split, shrink, grow, finalize, first uses return KOLO_IN_PROGRESS. Default 1 */
    int init_timeout_ms; /* limit of init, split, shrink, grow, of connecting with who has called. Default 120000 */
    int op_timeout_ms;   /* limit of one operation, 0 = none (a peer may be minutes late). The error comes up to
                          * 200 ms later and says what the other ranks do. On a GPU only the time in which the
                          * operation waits for other ranks counts, not that behind other work on its stream. An
                          * operation that makes connections has init_timeout_ms if that is longer. Default 0 */
    const char *name;    /* copied; used in messages. Default "comm" */
    int split_share; /* 1, on all ranks of a color: a split takes over its parent's knowledge of hosts, processes
                        and wires and its buffer sizes, and needs fewer messages. Default 0 */
    int device; /* -1: buffers are ordinary memory. 0 and up: memory of the GPU with this number (CUDA's in this
                   process), or that it reaches; streams are CUDA streams, and a call returns when the operation
                   is queued. Either all ranks have a GPU or none. Default -1, or the parent's */
    int gpu_profile; /* How much of a GPU operations take: KOLO_GPU_LATENCY most, KOLO_GPU_COMPUTE a quarter,
                        BALANCED half if long. The same on all ranks. Default KOLO_GPU_PROFILE, or the parent's */
    int order;       /* KOLO_ORDER_FREE: a reduction combines the ranks' values as is fastest for its count.
                        KOLO_ORDER_RANKS: each element is ((r0 + r1) + r2) + ..., whatever the count, the offset and
                        the algorithm, on CPUs and GPUs: equal values give equal bits in any batch. Floats of 8 and
                        16 bits are summed in float32 and rounded once; KOLO_AVG divides last.
                        docs/reductions.md. The same on all ranks. Default KOLO_REDUCE_ORDER, or the parent's */
} kolo_config_t;
#define KOLO_GPU_LATENCY  0 /* see kolo_config_t.gpu_profile */
#define KOLO_GPU_COMPUTE  1 /* see kolo_config_t.gpu_profile */
#define KOLO_GPU_BALANCED 2 /* see kolo_config_t.gpu_profile */
#define KOLO_ORDER_FREE   0 /* see kolo_config_t.order */
#define KOLO_ORDER_RANKS  1 /* see kolo_config_t.order */
#define KOLO_CONFIG_INITIALIZER                                                                                    \
    {                                                                                                              \
        sizeof(kolo_config_t), KOLO_CONFIG_MAGIC, KOLO_UNDEFINED_INT, KOLO_UNDEFINED_INT, KOLO_UNDEFINED_INT,      \
            NULL, KOLO_UNDEFINED_INT, KOLO_UNDEFINED_INT, KOLO_UNDEFINED_INT, KOLO_UNDEFINED_INT                   \
    }

/* ---- unique id and initialisation -------------------------------------------------------------------------- */

/* Makes an id for one job: opens a listening socket and serves the ranks that connect to it until all are in. With
 * KOLO_COMM_ID=host:port set, the address comes from there and the secret from KOLO_COMM_SECRET_FILE; then every
 * rank may call this and gets an equal id. The socket is closed when the job is complete or has failed, or when no
 * rank has connected for KOLO_ROOT_IDLE_MS (a day). If this process dies before all ranks are in, those that wait
 * get KOLO_ERR_REMOTE at once. Any thread. */
kolo_status_t kolo_get_unique_id(kolo_unique_id_t *id);

/* Writes the id to a file (mode 0600, atomically), or reads it from there. Reading waits for the file, at most
 * timeout_ms milliseconds. Any thread. */
kolo_status_t kolo_unique_id_save(const kolo_unique_id_t *id, const char *path);
kolo_status_t kolo_unique_id_load(kolo_unique_id_t *id, const char *path, int timeout_ms);

/* Joins the communicator of `nranks` ranks that `id` names, as `rank`. Collective. With config->blocking == 0
 * returns KOLO_IN_PROGRESS, and until kolo_comm_get_async_error() reports KOLO_OK *comm may only be passed to that
 * function, kolo_comm_abort() and kolo_comm_destroy(). The caller owns *comm and ends it with kolo_comm_destroy()
 * or kolo_comm_abort(). config may be NULL. Any thread. */
kolo_status_t kolo_comm_init_rank(kolo_comm_t *comm, int nranks, kolo_unique_id_t id, int rank,
                                  const kolo_config_t *config);

/* Joins a communicator like kolo_comm_init_rank(), with several roots, for very many ranks: ids[0..nids) made by
 * kolo_get_unique_id() in different processes, the same list in the same order on every rank. */
kolo_status_t kolo_comm_init_rank_scalable(kolo_comm_t *comm, int nranks, int rank, int nids,
                                           const kolo_unique_id_t *ids, const kolo_config_t *config);

/* Makes a communicator all of whose ranks are in this process: comms[0..nranks) is filled with one handle per rank.
 * To call a collective on several of them from one thread, put the calls between kolo_group_start() and
 * kolo_group_end(). */
kolo_status_t kolo_comm_init_all(kolo_comm_t *comms, int nranks, const kolo_config_t *config);
/* Makes a communicator like kolo_comm_init_all(), with a device for each rank: devices[i] takes the place of
 * config->device for rank i; -1: the CPU. */
kolo_status_t kolo_comm_init_devices(kolo_comm_t *comms, int nranks, const int *devices,
                                     const kolo_config_t *config);

#define KOLO_SPLIT_NOCOLOR (-1) /* the color of a rank that gets no communicator */
/* Splits a communicator into new ones. Collective over `comm`: ranks of equal color (>= 0) form a new communicator,
 * ordered by key, then by old rank. A rank with KOLO_SPLIT_NOCOLOR takes part and gets *newcomm = NULL. config
 * NULL: the parent's. With blocking 0 (in config; in `comm` for a rank that gets none) it returns KOLO_IN_PROGRESS:
 * poll *newcomm with kolo_comm_get_async_error(). A rank whose *newcomm is NULL polls `comm`, which is
 * KOLO_IN_PROGRESS until its ranks have met for the split and can then be used again. Shrink and grow are polled in
 * the same way. */
kolo_status_t kolo_comm_split(kolo_comm_t comm, int color, int key, kolo_comm_t *newcomm,
                              const kolo_config_t *config);

/* Makes another communicator of the same ranks, whose calls have no order with those of `comm`: a kolo_comm_split()
 * with one color, the rank as key, and config.split_share 1 unless config sets it. */
kolo_status_t kolo_comm_dup(kolo_comm_t comm, kolo_comm_t *newcomm, const kolo_config_t *config);

#define KOLO_SHRINK_DEFAULT 0 /* operations under way are waited for */
#define KOLO_SHRINK_ABORT   1 /* operations under way are ended first */
/* Makes a communicator of the ranks that are left, in their old order. No new id is needed. It leaves out
 * excluded[0..count) (the same list on all callers; NULL and 0: none) and all lost ranks. The callers first agree
 * on who is lost, and again if one more is lost meanwhile, so all that return KOLO_OK have the same communicator.
 * Excluded ranks do not call; they may be dead, hung or inside an operation. `flags` is one of the two KOLO_SHRINK_
 * constants.
 *
 * KOLO_SHRINK_DEFAULT: waits for the operations of `comm` that were called before. `comm` stays usable, also while
 * the new one is set up. With no list `comm` may have lost ranks, with one those on it; it may be revoked.
 * KOLO_SHRINK_ABORT: first ends this rank's operations on `comm` with KOLO_ERR_ABORTED; afterwards `comm` can only
 * be destroyed, aborted, or shrunk in this mode again. KOLO_ERR_MISMATCH: the ranks passed different lists.
 * KOLO_ERR_PARTITION: the others go on without this rank. config NULL: the parent's. */
kolo_status_t kolo_comm_shrink(kolo_comm_t comm, const int *excluded, int count, int flags, kolo_comm_t *newcomm,
                               const kolo_config_t *config);

/* Makes an id with which new processes join `comm`, for one grow. One rank of `comm` calls it, any of them, and
 * passes the id to its own kolo_comm_grow(). The id is a secret, like those of kolo_get_unique_id(). Any
 * thread. */
kolo_status_t kolo_comm_get_grow_id(kolo_comm_t comm, kolo_unique_id_t *id);
/* Makes a communicator of all ranks of `comm`, with their old numbers, and new ones. Collective over both. An old
 * rank passes comm, rank -1 and id NULL, except the one that made the id, which passes it; a new rank passes comm
 * NULL, the id, and its rank in [old count, nranks). nranks counts both and is the same on all. `comm` stays
 * usable, with blocking 0 also while new ranks are awaited. If a new rank does not come within init_timeout_ms, all
 * others get KOLO_ERR_TIMEOUT with its number. A failure on one side is a failure on the other. config NULL: that
 * of `comm`, or defaults. KOLO_ERR_UNSUPPORTED: built without libsodium. */
kolo_status_t kolo_comm_grow(kolo_comm_t comm, int nranks, const kolo_unique_id_t *id, int rank,
                             kolo_comm_t *newcomm, const kolo_config_t *config);

/* Makes the communicator unusable on all ranks: operations under way or queued on any rank end with
 * KOLO_ERR_REVOKED; later operations, finalize, split and grow return it. Not collective: one rank calls, several
 * may; a second call of the same rank is KOLO_ERR_INVALID_ARGUMENT. Does not wait. Afterwards the ranks may shrink
 * it. Communicators made from it are not affected. Any thread. NULL is fine. */
kolo_status_t kolo_comm_revoke(kolo_comm_t comm);
/* Lists the ranks of `comm` that this rank knows to be lost, including those that a shrink left out as lost. In:
 * *count is the room in `ranks`. Out: *count is how many are lost; the first of them are in `ranks`, ascending.
 * ranks may be NULL if the room is 0. Other ranks may know other losses: kolo_comm_shrink() makes all agree. Any
 * thread. */
kolo_status_t kolo_comm_lost(kolo_comm_t comm, int *ranks, int *count);

/* Waits until all operations of this rank are complete, and says goodbye to the other ranks. Collective.
 * Afterwards only queries, destroy and abort are allowed, and the process may end. KOLO_ERR_MISMATCH: the ranks
 * have not called the same collectives, and results may be wrong. Compared are the order of the calls, types,
 * roots, counts and operators. Not compared: sends, receives, puts, signals and waits; the counts of
 * kolo_all_to_allv(); which created operator it was. On GPUs nothing is compared,
 * unless all data goes through host memory. */
kolo_status_t kolo_comm_finalize(kolo_comm_t comm);
/* Leaves the communicator without meeting the others: waits until all operations of this rank are complete, and
 * tells them that it leaves in order. So communicators may be left in an order that differs by rank, and while
 * others are late or still in operations that this rank has completed. Deregister windows first. Afterwards only
 * queries, destroy and abort are allowed, and the process may end. What others need of this rank stays until all
 * have left, finalized or destroyed the communicator, or are lost, even when it is destroyed here. A rank that has
 * called something else than one of whose leaving it has heard, or that calls a collective, finalize, split or grow
 * afterwards, gets KOLO_ERR_MISMATCH, with what kolo_comm_finalize() compares; the rank that left first is told of
 * nothing, and word of a leaving is not waited for. Sends and puts between the other ranks go on. With blocking 0
 * it returns KOLO_IN_PROGRESS. NULL is fine. */
kolo_status_t kolo_comm_leave(kolo_comm_t comm);
/* Waits until the operations that this rank has called on `comm`, on whatever stream, are complete, messages that
 * were only asked for (kolo_isend(), kolo_irecv()) included; on a GPU until the GPU is through with them. The
 * communicator goes on. Returns the error of an operation that has failed. Not in a group. Any thread. NULL is
 * fine. */
kolo_status_t kolo_comm_synchronize(kolo_comm_t comm);
/* Frees the communicator once this rank's operations are complete; a call that returned KOLO_IN_PROGRESS and is not
 * complete is ended. Does not wait for other ranks, except inside operations on streams that wait for one
 * (kolo_comm_abort() ends those). Ranks that still need this one get KOLO_ERR_REMOTE, so ranks that leave together
 * call kolo_comm_finalize() first. NULL is fine. The handle is invalid afterwards: later calls with it return
 * KOLO_ERR_INVALID_ARGUMENT. */
kolo_status_t kolo_comm_destroy(kolo_comm_t comm);
/* Ends every wait of this communicator on this rank, from any thread, and frees it once no call is inside. The
 * handle is invalid afterwards, as after kolo_comm_destroy(), except that kolo_comm_get_async_error() reports
 * KOLO_ERR_ABORTED for it until at least 64 more communicators were made. */
kolo_status_t kolo_comm_abort(kolo_comm_t comm);

/* Returns the number of ranks in *nranks, and which of them the caller is in *rank. Any thread. */
kolo_status_t kolo_comm_count(kolo_comm_t comm, int *nranks);
kolo_status_t kolo_comm_user_rank(kolo_comm_t comm, int *rank);
/* Sets the limit of one operation to timeout_ms (kolo_config_t.op_timeout_ms; 0: none) for this rank's operations
 * that begin from now on, those that are queued and have not begun included. Ranks may set different ones: each has
 * its own error. So a single call has a limit of its own when the limit is set before it, and set back behind it:
 * *before (may be NULL) is what it was. On the thread that calls operations, once the communicator is ready. */
kolo_status_t kolo_comm_set_op_timeout(kolo_comm_t comm, int timeout_ms, int *before);
/* Returns the device of this rank's buffers in *device, -1 for the CPU. Any thread. */
kolo_status_t kolo_comm_device(kolo_comm_t comm, int *device);
/* Returns the state in *async_error: KOLO_OK, KOLO_IN_PROGRESS, or the first error that made this communicator
 * unusable. Never waits. Any thread. */
kolo_status_t kolo_comm_get_async_error(kolo_comm_t comm, kolo_status_t *async_error);
/* Returns the text of the error that `comm` has had; while it has had none, and for NULL or what is no
 * communicator (any more), that of the calling thread's last failure: a call that was refused for its arguments
 * leaves the communicator as it was. Never NULL. The text is a copy that belongs to the calling thread: no other
 * thread, and no later failure of the communicator, changes it. It is valid until this thread's next call into the
 * library, and must not be freed. Any thread. */
const char *kolo_get_last_error(kolo_comm_t comm);

/* ---- collectives -------------------------------------------------------------------------------------------
 * Buffers belong to the caller and must not be touched between the call and its completion. stream NULL: the call
 * is complete when it returns; a kolo_stream_t: it is queued and completes in the stream's order. Source and
 * destination must not overlap except in the in-place forms named below. Displacements are elements. All ranks must
 * pass the same type, op, root and count. Count 0 moves nothing but is a call like any other: all ranks must make
 * it. Arrays of counts and displacements are read by the call and may change when it has returned, also when it was
 * queued or put into a group.
 *
 * Order: operations of one communicator run one after the other in the order of the calls, whatever streams they
 * were queued on. Work on other streams or communicators has no order with them, except by events
 * (kolo_stream_wait_event).
 *
 * Mistakes: ranks whose calls differ get KOLO_ERR_MISMATCH, as a rule. Not always: with different roots a small
 * broadcast may return KOLO_OK, and each rank has the data of the root that it named; kolo_comm_finalize() says so
 * at the end. KOLO_CHECK=deep finds all at once.
 *
 * First use: connections are made by the first operation that needs them. With config.blocking 0 such an operation
 * without a stream (or the group that holds it) returns KOLO_IN_PROGRESS and goes on in the background. Its buffers
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
/* Every rank gets every rank's src, of different lengths. counts[i] elements from rank i go to dst + displs[i]; the
 * same counts on all ranks. In place: src == dst + displs[rank]. Parts may lie in memory of different allocations:
 * with dst the lowest of their addresses and displs[i] the distance of each from there, nothing is copied together.
 * So for the other functions with displacements; not on GPUs. */
kolo_status_t kolo_all_gatherv(const void *src, void *dst, const size_t *counts, const size_t *displs,
                               kolo_type_t type, kolo_comm_t comm, void *stream);
/* Rank i gets the reduction of part i of all ranks' src. src holds nranks * count elements. In place: dst == src +
 * rank * count. */
kolo_status_t kolo_reduce_scatter(const void *src, void *dst, size_t count, kolo_type_t type, kolo_op_t op,
                                  kolo_comm_t comm, void *stream);
/* Rank i gets the reduction of part i, of different lengths, in dst. Part i has counts[i] elements at src +
 * displs[i]; displs NULL: they lie back to back. counts are the same on all ranks, displs need not be. */
kolo_status_t kolo_reduce_scatterv(const void *src, void *dst, const size_t *counts, const size_t *displs,
                                   kolo_type_t type, kolo_op_t op, kolo_comm_t comm, void *stream);
/* Every rank sends a part to every rank. Part i of src (count elements) goes to part `rank` of rank i's dst. In
 * place, on GPUs only, and on all ranks or none: dst == src; part i is replaced by what comes from rank i. It is
 * slower where parts are long. */
kolo_status_t kolo_all_to_all(const void *src, void *dst, size_t count, kolo_type_t type, kolo_comm_t comm,
                              void *stream);
/* Every rank sends a part to every rank, of different lengths. send_counts[i] elements at src + send_displs[i] go
 * to rank i; recv_counts[i] elements from rank i go to dst + recv_displs[i]. No in-place form. */
kolo_status_t kolo_all_to_allv(const void *src, const size_t *send_counts, const size_t *send_displs, void *dst,
                               const size_t *recv_counts, const size_t *recv_displs, kolo_type_t type,
                               kolo_comm_t comm, void *stream);
/* The root gets every rank's src in rank order. In place on the root: src == dst + root * count. dst may be NULL
 * elsewhere. */
kolo_status_t kolo_gather(const void *src, void *dst, size_t count, kolo_type_t type, int root, kolo_comm_t comm,
                          void *stream);
/* Rank i gets part i of the root's src. In place on the root: dst == src + root * count. src may be NULL
 * elsewhere. */
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
/* Waits for all ranks: completes on no rank before all have called it. */
kolo_status_t kolo_barrier(kolo_comm_t comm, void *stream);
/* Sends a message in `buf` to another rank, or receives one there. Sends and receives between two ranks match in
 * the order of the calls. Both must have the same number of bytes; count 0 is matched too. A send may wait until
 * the peer receives, and the first one always does: two ranks that exchange messages call in a group. A rank may
 * send to itself inside a group only; there its k-th send to itself goes to its k-th receive. */
kolo_status_t kolo_send(const void *buf, size_t count, kolo_type_t type, int peer, kolo_comm_t comm, void *stream);
kolo_status_t kolo_recv(void *buf, size_t count, kolo_type_t type, int peer, kolo_comm_t comm, void *stream);

/* A message with a request to wait for, *request. kolo_isend() and kolo_irecv() put a message aside and return; its
 * buffer is in use until kolo_pending_wait() has returned. Messages that were put aside run as one group, together
 * with the next operation on this communicator (with a stream or without; in a group: with that group), or when one
 * of them is waited for; that returns when all are complete. So both ends of an exchange may call kolo_isend() and
 * then kolo_recv(). Making or ending windows, or making communicators, comes after them. Wait before finalize. No
 * group. KOLO_ERR_UNSUPPORTED on GPUs: use streams and events there. */
typedef struct kolo_pending *kolo_pending_t;
kolo_status_t kolo_isend(const void *buf, size_t count, kolo_type_t type, int peer, kolo_comm_t comm,
                         kolo_pending_t *request);
kolo_status_t kolo_irecv(void *buf, size_t count, kolo_type_t type, int peer, kolo_comm_t comm,
                         kolo_pending_t *request);
/* Sets *complete to 1 if the message is complete, else to 0. Starts the message if it has not started: from then on
 * it runs in the background, before later calls on this communicator. In an open group nothing starts. */
kolo_status_t kolo_pending_test(kolo_pending_t request, int *complete);
/* Waits until the message is complete, frees the request and returns the status of the message. NULL is fine. */
kolo_status_t kolo_pending_wait(kolo_pending_t request);

/* ---- windows: memory that other ranks write to, without a call of its owner ---------------------------------
 * A put copies data into a window of another rank. A signal adds one to a counter there; each rank has a counter
 * per sending rank and number (0 to KOLO_SIGNALS - 1). The counters belong to the communicator, not to a window.
 *
 * Order: when a signal of a rank is counted, all data that the rank put to that peer before the signal is in place.
 * Nothing else says so. Puts to one peer have no order among themselves; signals of one rank with one number have;
 * calls of different ranks have none. No call on a communicator, on any stream, overtakes a wait that was called
 * before it. So two ranks that both wait first and signal then never end; in a group they do.
 *
 * A put is complete when its source may be used again. An error, an abort or a lost rank ends puts and waits as it
 * ends collectives; the data of the last puts may then be in place in part.
 *
 * On GPU communicators windows and sources are memory of the rank's GPU, copy engines copy, and a wait blocks its
 * stream. All GPUs must reach each other's memory, else KOLO_ERR_UNSUPPORTED. A put can be captured in a graph.
 * Signals and waits cannot, since a replay would repeat their counts (KOLO_ERR_UNSUPPORTED). op_timeout_ms does not
 * end a wait there. */

#define KOLO_SIGNALS 16 /* numbers of signals from each rank */
typedef struct kolo_signal_wait {
    int peer;       /* the rank that signals */
    int signal;     /* the number, 0 to KOLO_SIGNALS - 1 */
    uint32_t count; /* how many to wait for, at most 2^31 - 1 */
} kolo_signal_wait_t;

/* Makes `bytes` bytes at buf writable for the other ranks, until the window is deregistered. Collective; sizes may
 * differ, and may be 0. buf NULL: Kolo allocates the memory, zeroed, such that processes of one host write to it
 * directly, and frees it with the window. If ranks are in several processes, GPU memory made by cuMemCreate() needs
 * a handle that is a file descriptor. A failure on one rank is a failure on all. Makes the connections. Waits for
 * all ranks, at most init_timeout_ms. With blocking 0 it returns KOLO_IN_PROGRESS; *window is set before
 * kolo_comm_get_async_error() reports anything else, and after a failure the communicator cannot be used. Not in a
 * group. Windows that are left when the communicator is destroyed end then: finalize it first, or peers may still
 * write. */
kolo_status_t kolo_window_register(kolo_comm_t comm, void *buf, size_t bytes, kolo_window_t *window);
/* Ends a window. Collective, for the window that all ranks made together. When it returns, all earlier puts into it
 * are in place and no rank writes there any more. The handle is invalid afterwards. NULL is fine. */
kolo_status_t kolo_window_deregister(kolo_comm_t comm, kolo_window_t window);
/* Returns the address in *buf and the size in *bytes of this rank's part of a window. Either output may be NULL. */
kolo_status_t kolo_window_memory(kolo_comm_t comm, kolo_window_t window, void **buf, size_t *bytes);

/* Copies count elements from src into the window of rank `peer` (which may be the caller), `offset` bytes behind
 * its beginning. KOLO_ERR_INVALID_ARGUMENT, and nothing is done, if they do not fit or the window has ended. */
kolo_status_t kolo_put(const void *src, size_t count, kolo_type_t type, int peer, kolo_window_t window,
                       size_t offset, kolo_comm_t comm, void *stream);
/* Copies like kolo_put(), then signals the peer. Count 0 only signals. */
kolo_status_t kolo_put_signal(const void *src, size_t count, kolo_type_t type, int peer, kolo_window_t window,
                              size_t offset, int signal, kolo_comm_t comm, void *stream);
/* Adds one to this rank's counter of this number at rank `peer`. A window must have been made on this communicator
 * before. At most 2^31 - 1 signals may be unconsumed: with more the peer's next wait fails. */
kolo_status_t kolo_signal(int peer, int signal, kolo_comm_t comm, void *stream);
/* Waits until all signals listed in waits[0..nwaits) have come, and subtracts them from the counters. The list is
 * read by the call. The wait is limited by op_timeout_ms; meanwhile kolo-top shows which ranks it waits for. */
kolo_status_t kolo_wait_signal(const kolo_signal_wait_t *waits, int nwaits, kolo_comm_t comm, void *stream);

/* ---- groups ------------------------------------------------------------------------------------------------ */

/* Runs several calls together. Calls of a thread between the outermost start and end are collected and run at the
 * end: messages, puts, signals and collectives in any mix, on any number of communicators. Each call checks its
 * own arguments; if one is refused nothing of the group runs, and kolo_group_end() returns its error, too. On GPUs
 * all communicators' calls are looked at before the first is queued. kolo_group_end() returns the first later
 * error; calls on other communicators still run to their end. On GPUs it fails its communicator. Groups nest; an
 * inner pair does nothing. kolo_group_drop() ends the group, however deep, and nothing of it runs.
 *
 * The collectives of a communicator run in the order of their calls, as do its messages to or from one peer, its
 * puts and signals to one peer, and its waits. Beyond that the calls of a group have no order: none may read what
 * another one writes. Ranks may group the same calls differently, or not at all.
 *
 * In a group may be: operations (collectives, sends, receives, puts, signals, waits), all on communicators that
 * block or all on such that do not, all on CPUs or all on GPUs. Or calls that make and end communicators
 * (kolo_comm_init_rank(), split, dup, shrink, grow, finalize, leave, destroy), but not both kinds in one group.
 * Refused there: kolo_isend(), kolo_irecv() and their waits, kolo_comm_synchronize(), suspend, resume, and making
 * or ending a window.
 *
 * Calls without a stream are complete when kolo_group_end() returns. Calls with one are queued. All streams of a
 * group that carry calls of one communicator, or of communicators that share one of these streams, meet before the
 * calls and after them: the calls begin once all of these streams have reached them, and all of these streams go on
 * when the calls are complete. On GPUs too; there either all of these streams are being captured, or none.
 *
 * KOLO_CHECK=deep compares each collective among all ranks before anything else of its communicator goes on: with
 * it, groups that mix messages and collectives must be the same on all ranks. */
kolo_status_t kolo_group_start(void);
kolo_status_t kolo_group_end(void);
kolo_status_t kolo_group_drop(void);

/* ---- user operators ---------------------------------------------------------------------------------------- */

/* Makes *op, for `comm` and `type` alone: the sum of each rank's input times its *scalar, read by this call; from
 * memory of the communicator's GPU when an operation runs, KOLO_ERR_UNSUPPORTED where data goes through hosts. The
 * caller frees it with kolo_op_destroy(), when the last call that uses it has returned. */
kolo_status_t kolo_op_create_premul_sum(kolo_op_t *op, const void *scalar, kolo_type_t type, kolo_comm_t comm);
/* The function of a user operator: inout[i] = f(in[i], inout[i]) for count elements; must be associative and
 * commutative, and the same on all ranks. Called on the thread that runs the collective. */
typedef void (*kolo_user_op_fn_t)(const void *in, void *inout, size_t count, kolo_type_t type, void *arg);
/* Makes an operator from a function, in *op, for `type` on `comm`; fn gets arg. The caller frees it as above. */
kolo_status_t kolo_op_create_callback(kolo_op_t *op, kolo_user_op_fn_t fn, void *arg, kolo_type_t type,
                                      kolo_comm_t comm);
/* Frees the operator `op` that was made for `comm`. */
kolo_status_t kolo_op_destroy(kolo_op_t op, kolo_comm_t comm);

/* ---- streams and events on the CPU ------------------------------------------------------------------------- */

/* A stream is an ordered queue of operations with a thread of its own. `stream` is set to a new one, or names it.
 * Any thread; destroy while no other call uses it. */
kolo_status_t kolo_stream_create(kolo_stream_t *stream);
kolo_status_t kolo_stream_synchronize(kolo_stream_t stream); /* waits until it is empty; returns its first error */
kolo_status_t kolo_stream_query(kolo_stream_t stream);       /* KOLO_OK if empty, KOLO_IN_PROGRESS if not */
kolo_status_t kolo_stream_destroy(kolo_stream_t stream);     /* waits for the queue; NULL is fine */
/* Queues a call of fn(arg), which runs on the stream's thread in its order. */
kolo_status_t kolo_stream_call(kolo_stream_t stream, void (*fn)(void *), void *arg);

/* An event is a mark in a stream's queue: create it, record it in `stream`, then query it (KOLO_OK when the stream
 * has passed it, else KOLO_IN_PROGRESS) or wait for it, here or in another stream. It may be destroyed while waits
 * for it are queued; they stay right. NULL is fine. Any thread. */
kolo_status_t kolo_event_create(kolo_event_t *event);
kolo_status_t kolo_event_record(kolo_event_t event, kolo_stream_t stream);
kolo_status_t kolo_event_query(kolo_event_t event);
kolo_status_t kolo_event_synchronize(kolo_event_t event);
kolo_status_t kolo_stream_wait_event(kolo_stream_t stream, kolo_event_t event);
kolo_status_t kolo_event_destroy(kolo_event_t event);

/* ---- memory ------------------------------------------------------------------------------------------------ */

/* Registers `bytes` bytes at buf, under *handle, that will be used often: network cards read and write them in
 * place; GPUs of the host reach them by the first operation, if all have registered theirs (what a GPU does not
 * reach is refused). Optional, local, never needed; any thread. Deregister before it is freed. Where the kernel
 * has userfaultfd, pages that are freed are noticed and not used in place again, with a warning; else nothing is
 * unless KOLO_MEM_UNWATCHED is set. A child of fork() has none. What is left ends with comm. */
kolo_status_t kolo_comm_register(kolo_comm_t comm, void *buf, size_t bytes, kolo_registration_t *handle);
kolo_status_t kolo_comm_deregister(kolo_comm_t comm, kolo_registration_t handle);

/* Returns how many bytes this communicator holds on this rank: mapped segments and private buffers. They grow with
 * use; while an operation is under way the last figure is returned. On the thread that calls operations. */
kolo_status_t kolo_comm_memory(kolo_comm_t comm, size_t *bytes);

/* Frees the device memory of a GPU communicator until kolo_comm_resume(), which makes it again. Both are
 * collective. Suspend waits until all queued operations are complete, at most init_timeout_ms; *bytes (may be NULL)
 * is what this rank has freed. In between operations are refused with KOLO_ERR_INVALID_USAGE. CUDA graphs with
 * operations of this communicator must be captured anew. KOLO_ERR_UNSUPPORTED on the CPU and over several hosts,
 * where there is no such memory. */
kolo_status_t kolo_comm_suspend(kolo_comm_t comm, size_t *bytes);
kolo_status_t kolo_comm_resume(kolo_comm_t comm);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
