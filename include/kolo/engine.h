/* SPDX-License-Identifier: Apache-2.0
 *
 * Kolo's engine: operations on tensors that are named, submitted by each rank in whatever order they become ready.
 *
 * A training program does not produce its gradients in the same order on all ranks, and collectives need one order.
 * So each rank submits tensors by name; a thread of the engine agrees with those of the other ranks on what all
 * have submitted, joins small tensors into large operations, performs them and calls back.
 *
 * Life: kolo_engine_init() on every rank, submissions from any thread, kolo_engine_shutdown(). As often as one
 * likes, also on a communicator that was shrunk after a loss.
 *
 * Threads: every function may be called from any thread at any time, except that shutdown and abort end the life of
 * the handle: no other call may be inside or come later. Callbacks run on the engine's threads: on one, but on a
 * second at the same time for tensors of devices.
 *
 * Errors: a function that returns anything but KOLO_OK has done nothing; its sentence is kolo_get_last_error(NULL).
 * What goes wrong later, or on another rank, comes with the completion of the tensor. Output arguments are set on
 * success only.
 *
 * Units: shapes count elements of the tensor's type, first dimension first, as rows; times are microseconds, sizes
 * bytes, where nothing else is said.
 */
#ifndef KOLO_ENGINE_H
#define KOLO_ENGINE_H

#include <kolo/kolo.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

typedef struct kolo_tensor_engine *kolo_tensor_engine_t;

#define KOLO_TENSOR_NAME_MAX 511 /* bytes of a name */
#define KOLO_TENSOR_DIMS_MAX 16

/* ---- options ----------------------------------------------------------------------------------------------- */

/* What "average" means while some ranks have joined. */
#define KOLO_AVERAGE_ALL          0 /* divide by all ranks (what Horovod does) */
#define KOLO_AVERAGE_CONTRIBUTORS 1 /* divide by the ranks that have not joined */

/* Ranks that make a process set: count of them, each once, in any order. */
typedef struct kolo_rank_list {
    const int *ranks;
    int count;
} kolo_rank_list_t;

#define KOLO_UNDEFINED_INT64     INT64_MIN
#define KOLO_ENGINE_CONFIG_MAGIC 0x6b6f656eu /* "koen" */

/* Options of one engine. Start from KOLO_ENGINE_CONFIG_INITIALIZER; a field left undefined takes the parameter
 * named beside it, or its default. All but `core` must be equal on all ranks, which init checks. */
typedef struct kolo_engine_config {
    uint32_t size;            /* sizeof of the caller's struct: newer fields than the caller knows take defaults */
    uint32_t magic;           /* KOLO_ENGINE_CONFIG_MAGIC */
    int64_t fusion_threshold; /* KOLO_FUSION_THRESHOLD: most bytes of one fused operation; 0: no fusion. 128 MiB */
    int64_t
        fusion_tensor_max;  /* KOLO_FUSION_TENSOR_MAX: a larger tensor is reduced where it lies, without copies */
    int64_t cache_capacity; /* KOLO_CACHE_CAPACITY: tensors whose agreement is remembered; 0: none. 1024 */
    int64_t cycle_time_us;  /* KOLO_CYCLE_TIME (there in ms): least time between cycles; 0: at once. 0 */
    int average;            /* KOLO_ENGINE_AVERAGE: KOLO_AVERAGE_ALL or _CONTRIBUTORS. KOLO_AVERAGE_ALL */
    int core;               /* KOLO_ENGINE_CORE (there also a list by local rank): the core that the engine's thread
                             * stays on; -1: any. -1 */
    /* A tensor that some ranks have submitted and others have not for stall_warn_ms (KOLO_ENGINE_STALL_WARN_MS,
     * 60000; 0: never) is named in the log of rank 0 with the ranks that lack it, and again at each multiple. After
     * stall_limit_ms (KOLO_ENGINE_STALL_LIMIT_MS; 0: never, the default) it ends the engine on all ranks: what is
     * outstanding, and the shutdown, get KOLO_ERR_TIMEOUT with the same words. That is also the limit of a single
     * operation of the engine, which lasts too long when another rank hangs in a callback. */
    int64_t stall_warn_ms, stall_limit_ms;
    int nsets; /* process sets that are there from the start, with ids 1 to nsets. 0 */
    const kolo_rank_list_t *sets;
    /* KOLO_ENGINE_BACKENDS: who moves the data, the first that can: names of backends, for all operations and then
     * for single ones, as in "mpi,kolo;all_gather=hierarchical". Kolo itself is always last. "kolo" */
    const char *backends;
    int autotune; /* KOLO_AUTOTUNE: 1: what is left open of fusion_threshold, cycle_time_us, the cache and
                   * hierarchical backends is tried out while the job runs, and the best stays. 0 */
} kolo_engine_config_t;
#define KOLO_ENGINE_CONFIG_INITIALIZER                                                                             \
    {                                                                                                              \
        sizeof(kolo_engine_config_t), KOLO_ENGINE_CONFIG_MAGIC, KOLO_UNDEFINED_INT64, KOLO_UNDEFINED_INT64,        \
            KOLO_UNDEFINED_INT64, KOLO_UNDEFINED_INT64, KOLO_UNDEFINED_INT, KOLO_UNDEFINED_INT,                    \
            KOLO_UNDEFINED_INT64, KOLO_UNDEFINED_INT64, 0, NULL, NULL, KOLO_UNDEFINED_INT                          \
    }

/* ---- life -------------------------------------------------------------------------------------------------- */

/* Starts an engine over the ranks of `comm`. Collective. The engine makes a communicator of its own from it, so
 * `comm` stays free for the caller and may be destroyed at any time after. comm NULL: the job that kolorun, mpirun,
 * srun or torchrun started (kolo/job.h; a job of one rank without them; an error in a worker of kolorun --min).
 * config NULL: all defaults. An option that is not equal on all ranks is KOLO_ERR_MISMATCH on all. */
kolo_status_t kolo_engine_init(kolo_tensor_engine_t *engine, kolo_comm_t comm, const kolo_engine_config_t *config);

/* Ends the engine. The first rank that calls it ends it for all: what is outstanding anywhere completes with
 * KOLO_ERR_ABORTED, later submissions on other ranks are refused. Waits for the cycle under way, not for tensors
 * that ranks still lack. Returns the first failure that the engine met (a lost rank, say), KOLO_OK if none, and
 * frees the engine in either case. Handles that nobody has waited for are freed, too. NULL is fine. Must not be
 * called from a callback. */
kolo_status_t kolo_engine_shutdown(kolo_tensor_engine_t engine);

/* Ends the engine on this rank without waiting for any other, also in the middle of an operation: the others get
 * KOLO_ERR_REMOTE. What is outstanding completes with KOLO_ERR_ABORTED. Frees the engine. NULL is fine. */
kolo_status_t kolo_engine_abort(kolo_tensor_engine_t engine);

/* ---- who and where ----------------------------------------------------------------------------------------- */

typedef struct kolo_engine_place {
    int rank, size;             /* in the job */
    int local_rank, local_size; /* among the ranks of this host, in rank order */
    int cross_rank, cross_size; /* among the ranks with this local rank, one per host, in the order of hosts */
    int homogeneous;            /* 1: all hosts have equally many ranks */
} kolo_engine_place_t;

/* Tells this rank's place. */
kolo_status_t kolo_engine_get_place(kolo_tensor_engine_t engine, kolo_engine_place_t *place);

typedef struct kolo_engine_counters {
    uint64_t cycles, slow_cycles, sleeps; /* agreements; those with the coordinator; times that the thread slept */
    uint64_t tensors, operations;         /* tensors completed; collectives that it took */
    uint64_t hits, misses, invalid;       /* submissions that were cached, not cached, cached otherwise */
    uint64_t reduced_bytes, packed_bytes; /* of all_reduce; of it what went through the fusion buffer */
    uint64_t negotiate_ns, pack_ns, operate_ns, complete_ns; /* time of the thread in each part of its work */
} kolo_engine_counters_t;

/* Tells what the engine has done so far on this rank; the parts may be of slightly different moments. */
kolo_status_t kolo_engine_get_counters(kolo_tensor_engine_t engine, kolo_engine_counters_t *counters);

/* Who moves the data of operations: Kolo's own collectives, or another library where the order of backends
 * (kolo_engine_config_t.backends) has it first and it can do what is asked. */
typedef struct kolo_backend_info {
    const char *name;
    int available;              /* 1: on all ranks, and this engine may choose it */
    const char *why;            /* it is not; "" */
    uint64_t operations, bytes; /* that it has run for this rank; of its inputs, of gathers of all ranks' */
} kolo_backend_info_t;

/* Tells of the index-th backend, which is the same on all ranks; KOLO_ERR_INVALID_ARGUMENT beyond the last. Strings
 * live as long as the engine. */
kolo_status_t kolo_engine_get_backend(kolo_tensor_engine_t engine, int index, kolo_backend_info_t *info);

/* ---- process sets -------------------------------------------------------------------------------------------- */

/* Some of the ranks, that submit tensors among themselves. Every submission belongs to a set
 * (kolo_submission_t.set); names are those of a set, so the same name may be outstanding in several. A set's ranks
 * are numbered from 0 in the order of their ranks in the job: roots, splits, parts and last_joined count so;
 * sentences of errors name ranks of the job. Set 0 is all ranks and always there. Ids are the same on all ranks and
 * are not given twice. Sets may overlap. What is outstanding in one set does not wait for another, but the engine
 * does one thing at a time. */

/* Makes a set. Collective over all ranks of the engine, the same list on all (else KOLO_ERR_MISMATCH); waits until
 * all have called it. A set of these ranks that exists is KOLO_ERR_INVALID_USAGE. One change of the sets at a time
 * on each rank; not from a callback. */
kolo_status_t kolo_engine_add_set(kolo_tensor_engine_t engine, const int *ranks, int count, int *set);
/* Removes a set. Collective over all ranks of the engine, those that are not in it, too; waits until all have
 * called it. KOLO_ERR_INVALID_USAGE on all of them, and the set stays, while a rank has tensors outstanding in it.
 * From the call on this rank submits nothing to it. Not from a callback. */
kolo_status_t kolo_engine_remove_set(kolo_tensor_engine_t engine, int set);

typedef struct kolo_set_info {
    int id, size;
    int included, rank; /* 1 and this rank's number in it; 0 and -1: it does not belong to it */
} kolo_set_info_t;

/* Describes a set; KOLO_ERR_INVALID_ARGUMENT if no set has that id, or has it any more. */
kolo_status_t kolo_engine_get_set(kolo_tensor_engine_t engine, int set, kolo_set_info_t *info);
/* Tells its ranks in the job, in ascending order: `room` of them at most are written. */
kolo_status_t kolo_engine_get_set_ranks(kolo_tensor_engine_t engine, int set, int *ranks, int room);
/* Tells how many sets there are and their ids, in ascending order, of which `room` at most are written. */
kolo_status_t kolo_engine_get_set_ids(kolo_tensor_engine_t engine, int *ids, int room, int *count);

/* ---- submissions ------------------------------------------------------------------------------------------- */

/* A tensor: dense, row by row. Name and shape are copied by the call; the buffers belong to the caller and must
 * stay, untouched, until the tensor is complete. A name may be used again once its tensor is complete. */
typedef struct kolo_tensor {
    const char *name; /* 1 to KOLO_TENSOR_NAME_MAX bytes, no control characters; the same on all ranks */
    kolo_type_t type; /* the same on all ranks */
    int ndims;        /* 0 to KOLO_TENSOR_DIMS_MAX; 0: a scalar */
    const int64_t *shape;
    const void *input;
    void *output; /* may be `input` for all_reduce and broadcast; NULL: kolo_submission_t.allocate makes it */
} kolo_tensor_t;

/* How a tensor ended. Pointers are valid until the callback returns, or until the next kolo_engine_wait() of the
 * same thread. */
typedef struct kolo_completion {
    const char *name;
    int index;            /* place in its group, 0 outside groups */
    kolo_status_t status; /* KOLO_OK, or why output holds nothing */
    const char *text;     /* the sentence to it, "" for KOLO_OK */
    void *output;         /* the tensor's, or what allocate returned */
    int ndims;            /* shape of the output */
    const int64_t *shape;
    int parts;                /* number of ranks for all_gather and all_to_all, else 0 */
    const int64_t *part_rows; /* rows that came from each rank */
    int last_joined;          /* of join: the rank that joined last, else -1 */
    /* An event of the device (of CUDA a CUevent) behind which the output is there: for whoever lets a stream wait,
     * or asks it. The engine's own; NULL: it is there already. */
    void *event;
} kolo_completion_t;

/* Where a tensor's input and output lie, and from when on the input is there. Memory of a GPU (its number is that
 * of CUDA in this process) is reduced there, by a communicator of GPUs, if all ranks have the tensor on the GPU
 * that they began with; what some keep elsewhere, and Adasum, passes through host memory. A program that starts
 * CUDA after its engine names the device. */
#define KOLO_DEVICE_CPU (-1)
typedef struct kolo_tensor_memory {
    int device; /* KOLO_DEVICE_CPU, or the number of the device whose memory both are */
    /* An event after which the input is there: of the CPU a kolo_event_t that was recorded, of a GPU a CUevent.
     * NULL: the input is there. On the CPU the tensor takes part from then on, and nothing else waits for it. On a
     * GPU the ranks agree at once, and the engine's stream waits, with what it does behind it. */
    void *ready;
    /* The program's stream (of a GPU a CUstream other than 0), or NULL. The input is there once what is in the
     * stream now is done. The tensor is complete as soon as its operation is queued: what the program queues into
     * the stream from then on comes after the result. A failure of the GPU after that is the engine's. */
    void *stream;
} kolo_tensor_memory_t;

/* What happens with a tensor later, and where. All zero: nothing is called, and all ranks take part. */
typedef struct kolo_submission {
    /* Called once when the tensor is complete, on a thread of the engine's. Must not block, nor shut the engine
     * down; may submit. NULL: none. */
    void (*done)(void *arg, const kolo_completion_t *completion);
    /* Makes an output whose size is known only now, on the engine's thread; index: the tensor's place in its group,
     * 0 outside groups; `bytes` may be 0. What it returns is the caller's. NULL means that there is no memory and
     * fails this rank's tensor with KOLO_ERR_NO_MEMORY. */
    void *(*allocate)(void *arg, int index, size_t bytes, int ndims, const int64_t *shape);
    void *arg;
    int set; /* the process set: its ranks are "all ranks" of the operation. Of a group: of all its tensors */
    /* NULL: the input is there, and whose memory it is is found out. Copied by the call; its event must stay until
     * the tensor is complete. Of a group: of all its tensors. Ranks may keep a tensor in different kinds of memory.
     */
    const kolo_tensor_memory_t *memory;
} kolo_submission_t;

/* Rules for all submissions: `how` may be NULL. `handle` may be NULL; else it is set and must be given to
 * kolo_engine_wait() once. Errors that this rank sees are returned: a name that is outstanding, empty or too long;
 * a set that there is not or that this rank does not belong to; a bad type, shape, operator, root or splits; an
 * engine that has ended (with status and words of its first failure: after a loss KOLO_ERR_REMOTE, as what was
 * outstanding got). What only all ranks together show (another type, shape, operator, root or kind of operation
 * elsewhere) fails that tensor on all ranks with KOLO_ERR_MISMATCH and names tensor, ranks and both values; the
 * engine goes on. So it does after an operation that fails without a loss, because a backend refuses it or an
 * output lies over its input: its tensors fail on the ranks on which it failed, in the words of the lowest of
 * these. */

/* An operator of kolo_engine_all_reduce() alone, for float16, bfloat16, float32 and float64, each tensor for
 * itself: Adasum, which adds what gradients do not have in common and averages what they have. Two vectors make (1
 * - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b, with products in double; more ranks combine pairwise in a tree of which
 * a power of two are leaves, those beyond being folded into the first ones before. */
#define KOLO_ADASUM ((kolo_op_t)0x1000)

/* Every rank gets the reduction (KOLO_SUM, _AVG, _MIN, _MAX, _PROD, KOLO_ADASUM) of all inputs. Inputs are
 * multiplied by prescale before, results by postscale after; 1.0: not. Integers are multiplied in double and
 * truncated. A rank that has joined contributes what does not change the result. */
kolo_status_t kolo_engine_all_reduce(kolo_tensor_engine_t engine, const kolo_tensor_t *tensor, kolo_op_t op,
                                     double prescale, double postscale, const kolo_submission_t *how,
                                     int64_t *handle);
/* Submits count tensors at once that are reduced together: none before all of them are there on all ranks. The same
 * group, of the same names, on all ranks. done is called once per tensor; handles: NULL, or count of them. */
kolo_status_t kolo_engine_all_reduce_group(kolo_tensor_engine_t engine, const kolo_tensor_t *tensors, int count,
                                           kolo_op_t op, double prescale, double postscale,
                                           const kolo_submission_t *how, int64_t *handles);
/* Groups of the other operations, by the same rules: all or nothing, the same group on all ranks; of one operation,
 * root and operator, while shapes and types may differ from tensor to tensor. splits: NULL, or one entry per
 * tensor, which may be NULL. */
kolo_status_t kolo_engine_all_gather_group(kolo_tensor_engine_t engine, const kolo_tensor_t *tensors, int count,
                                           const kolo_submission_t *how, int64_t *handles);
kolo_status_t kolo_engine_broadcast_group(kolo_tensor_engine_t engine, const kolo_tensor_t *tensors, int count,
                                          int root, const kolo_submission_t *how, int64_t *handles);
kolo_status_t kolo_engine_all_to_all_group(kolo_tensor_engine_t engine, const kolo_tensor_t *tensors, int count,
                                           const int64_t *const *splits, const kolo_submission_t *how,
                                           int64_t *handles);
kolo_status_t kolo_engine_reduce_scatter_group(kolo_tensor_engine_t engine, const kolo_tensor_t *tensors, int count,
                                               kolo_op_t op, double prescale, double postscale,
                                               const kolo_submission_t *how, int64_t *handles);
/* Every rank gets all inputs one below the other, in rank order. The first dimension may differ between ranks and
 * may be 0; the others must be equal; there must be one. output NULL: how->allocate makes it. Else it has room. */
kolo_status_t kolo_engine_all_gather(kolo_tensor_engine_t engine, const kolo_tensor_t *tensor,
                                     const kolo_submission_t *how, int64_t *handle);
/* Every rank gets the root's input in its output. Input is not used elsewhere than on the root. */
kolo_status_t kolo_engine_broadcast(kolo_tensor_engine_t engine, const kolo_tensor_t *tensor, int root,
                                    const kolo_submission_t *how, int64_t *handle);
/* Every rank sends rows to every rank: splits[i] rows to rank i, in order; what comes lies in rank order. splits
 * NULL: equal parts, the first dimension is then a multiple of the ranks. splits has one entry per rank and is
 * copied; the sum must be the first dimension. Shapes may differ between ranks in the first dimension. output NULL:
 * how->allocate makes it. */
kolo_status_t kolo_engine_all_to_all(kolo_tensor_engine_t engine, const kolo_tensor_t *tensor,
                                     const int64_t *splits, const kolo_submission_t *how, int64_t *handle);
/* Rank i gets rows of the reduction (KOLO_SUM, _AVG, _MIN, _MAX, _PROD) of all inputs: of n rows on p ranks the
 * first n % p ranks get one more than the others. output NULL: how->allocate makes it. */
kolo_status_t kolo_engine_reduce_scatter(kolo_tensor_engine_t engine, const kolo_tensor_t *tensor, kolo_op_t op,
                                         double prescale, double postscale, const kolo_submission_t *how,
                                         int64_t *handle);
/* Says that this rank has no more input: until all ranks have joined, it takes part in what the others reduce with
 * values that change nothing. Completes on all ranks once all have joined; then everything is as before. While some
 * have joined, other operations than all_reduce and barrier fail. */
kolo_status_t kolo_engine_join(kolo_tensor_engine_t engine, const kolo_submission_t *how, int64_t *handle);
/* Completes when all ranks that have not joined have submitted one. One at a time. */
kolo_status_t kolo_engine_barrier(kolo_tensor_engine_t engine, const kolo_submission_t *how, int64_t *handle);

/* ---- handles ----------------------------------------------------------------------------------------------- */

/* Says whether the tensor of this handle is complete, successfully or not. Never blocks. */
kolo_status_t kolo_engine_poll(kolo_tensor_engine_t engine, int64_t handle, int *complete);
/* Waits until the tensor is complete, at most timeout_ms (0: for ever); KOLO_ERR_TIMEOUT then, and the handle
 * stays. Else frees the handle, fills in *completion (may be NULL) and returns the tensor's status. Not from a
 * callback. */
kolo_status_t kolo_engine_wait(kolo_tensor_engine_t engine, int64_t handle, int timeout_ms,
                               kolo_completion_t *completion);

/* ---- timeline ---------------------------------------------------------------------------------------------- */

/* Begins to write down what happens to each tensor that is submitted from now on, into a file that chrome://tracing
 * and Perfetto show, an array of JSON; a timeline that this rank writes already is completed first. "%r" in the
 * path becomes the rank, so that every rank may write its own for kolo-trace(1) to merge; a path without it is
 * written by rank 0 only, and the call does nothing on others. mark_cycles: 1 to see the beginnings of cycles, too.
 * An existing file is overwritten; a name that ends in ".gz" makes it a gzip file (KOLO_ERR_UNSUPPORTED without
 * zlib), a twelfth of the size. With KOLO_TIMELINE_EVERY=N only the first and then every Nth operation on each
 * tensor is there, on all ranks the same ones if they start between the same steps. Not collective: each rank
 * starts and stops when it likes. The file is valid JSON at any time (packed or not) but for the moment of a write;
 * what finds no room in the queue (KOLO_TIMELINE_QUEUE) is counted and left out. The parameter KOLO_TIMELINE starts
 * one with the engine. */
kolo_status_t kolo_engine_timeline_start(kolo_tensor_engine_t engine, const char *path, int mark_cycles);
/* Completes the file and closes it; tensors that are outstanding stay without an end there. Without a timeline it
 * does nothing. The end of the engine does the same. */
kolo_status_t kolo_engine_timeline_stop(kolo_tensor_engine_t engine);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
