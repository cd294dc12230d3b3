/* SPDX-License-Identifier: Apache-2.0
 *
 * Kolo's engine: operations on named tensors, which each rank submits in the order in which they become ready.
 *
 * A training program does not produce its gradients in the same order on all ranks, and collectives need one order.
 * So each rank submits tensors by name. A thread of the engine agrees with those of the other ranks on the tensors
 * that all have submitted, joins small ones into large operations, runs them and calls back.
 *
 * Life: kolo_engine_init() on every rank, submissions from any thread, kolo_engine_shutdown(). A process may do so
 * several times, also on a communicator that was shrunk after a loss.
 *
 * Threads: every function may be called from any thread at any time. Shutdown and abort free the handle: no other
 * call may run at that time or come later. Callbacks run on the engine's threads: one thread, and at the same time
 * a second one for tensors on devices. In a child of fork(), which has none of these threads, every function is
 * KOLO_ERR_INVALID_USAGE.
 *
 * Errors: a function that returns anything but KOLO_OK has done nothing; kolo_get_last_error(NULL) says why. Later
 * failures, and failures of other ranks, come with the completion of the tensor. Output arguments are set on
 * success only.
 *
 * Units: shapes count elements of the tensor's type; the first dimension counts rows. Names end in the unit of a
 * time (_ms, _us, _ns); sizes are bytes.
 *
 * Arguments: these names mean the same in all functions whose words say nothing else.
 *
 *     engine     the engine
 *     tensor     name, type, shape and buffers of the tensor
 *     tensors    `count` tensors, which are submitted together
 *     count      how many entries the list beside it has
 *     op         the operator: KOLO_SUM, _AVG, _MIN, _MAX, _PROD; for all_reduce also KOLO_ADASUM
 *     prescale   what each input is multiplied with first; 1.0: no change
 *     postscale  what the result is multiplied with at the end; 1.0: no change
 *     root       the rank of the set whose input all get
 *     how        callbacks, process set and memory; NULL: no callback, all ranks
 *     handle     set to the tensor's handle, to be passed to kolo_engine_wait() once; NULL: none
 *     handles    room for `count` handles; NULL: none
 *     set        the id of a process set
 *     info       set to what is known
 *     place      set to the place
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
#define KOLO_TENSOR_DIMS_MAX 16  /* dimensions of a tensor */

/* ---- options ----------------------------------------------------------------------------------------------- */

/* What "average" means while some ranks have joined. */
#define KOLO_AVERAGE_ALL          0 /* divide by all ranks (what Horovod does) */
#define KOLO_AVERAGE_CONTRIBUTORS 1 /* divide by the ranks that have not joined */

/* The ranks of a process set: `count` of them, each once, in any order. */
typedef struct kolo_rank_list {
    const int *ranks; /* in the job */
    int count;        /* of ranks */
} kolo_rank_list_t;

#define KOLO_UNDEFINED_INT64     INT64_MIN   /* a field that takes its default */
#define KOLO_ENGINE_CONFIG_MAGIC 0x6b6f656eu /* "koen" */

/* Options of one engine. Start from KOLO_ENGINE_CONFIG_INITIALIZER; a field left undefined takes the parameter
 * named beside it, or its default. All but `core` must be equal on all ranks, which init checks. */
typedef struct kolo_engine_config {
    uint32_t size;  /* sizeof of the caller's struct: newer fields than the caller knows take defaults */
    uint32_t magic; /* KOLO_ENGINE_CONFIG_MAGIC */
    /* KOLO_FUSION_THRESHOLD: the most bytes of one fused operation; 0: no fusion. 128 MiB */
    int64_t fusion_threshold;
    /* KOLO_FUSION_TENSOR_MAX: a tensor of more bytes is reduced in place, without copies; on GPUs the parameter
     * KOLO_FUSION_GPU_TENSOR_MAX, 8 MiB, holds instead. 256 KiB */
    int64_t fusion_tensor_max;
    /* KOLO_CACHE_CAPACITY: how many tensors are remembered between steps; 0: none. 1024 */
    int64_t cache_capacity;
    /* KOLO_CYCLE_TIME (there in ms): the least time between cycles; 0: at once. 0 */
    int64_t cycle_time_us;
    /* KOLO_ENGINE_AVERAGE: KOLO_AVERAGE_ALL or _CONTRIBUTORS. KOLO_AVERAGE_ALL */
    int average;
    /* KOLO_ENGINE_CORE (there also a list by local rank): the core of the engine's thread; -1: any. -1 */
    int core;
    /* A tensor that some ranks have submitted and others have not after stall_warn_ms (KOLO_ENGINE_STALL_WARN_MS,
     * 60000; 0: never) is logged by rank 0 with the ranks that lack it, and again at each multiple; likewise a join
     * for which some wait while no operation runs. After stall_limit_ms (KOLO_ENGINE_STALL_LIMIT_MS; 0: never, the
     * default) it ends the engine on all ranks: outstanding tensors and the shutdown get KOLO_ERR_TIMEOUT with the
     * same text. The same limit applies to a single operation of the engine, for instance when another rank hangs
     * in a callback. */
    int64_t stall_warn_ms, stall_limit_ms;
    int nsets;                    /* process sets that exist from the start, with ids 1 to nsets. 0 */
    const kolo_rank_list_t *sets; /* `nsets` lists */
    /* KOLO_ENGINE_BACKENDS: which backends move the data; the first that can is taken. A list for all operations,
     * then lists for single ones: "mpi,kolo;all_gather=hierarchical". Kolo itself is always last. "kolo" */
    const char *backends;
    int autotune; /* KOLO_AUTOTUNE: 1: the engine tries values of fusion_threshold, cycle_time_us, the cache and
                     hierarchical backends while the job runs, as far as they are not set, and keeps the best. 0 */
    /* KOLO_ENGINE_GROUP_FUSION: 0: the tensors of a group are fused with each other only, so that when a group is
     * complete does not depend on what else is ready. 1 */
    int group_fusion;
} kolo_engine_config_t;
#define KOLO_ENGINE_CONFIG_INITIALIZER                                                                             \
    {                                                                                                              \
        sizeof(kolo_engine_config_t), KOLO_ENGINE_CONFIG_MAGIC, KOLO_UNDEFINED_INT64, KOLO_UNDEFINED_INT64,        \
            KOLO_UNDEFINED_INT64, KOLO_UNDEFINED_INT64, KOLO_UNDEFINED_INT, KOLO_UNDEFINED_INT,                    \
            KOLO_UNDEFINED_INT64, KOLO_UNDEFINED_INT64, 0, NULL, NULL, KOLO_UNDEFINED_INT, KOLO_UNDEFINED_INT      \
    }

/* ---- life -------------------------------------------------------------------------------------------------- */

/* Starts an engine over the ranks of `comm`. Collective. The engine makes a communicator of its own from `comm`,
 * which stays the caller's and may be destroyed afterwards. comm NULL: the job of the launcher (kolo/job.h); one
 * rank without a launcher; an error in a worker of kolorun --min. config NULL: all defaults. Options that differ
 * between ranks are KOLO_ERR_MISMATCH on all. The caller ends *engine with kolo_engine_shutdown() or
 * kolo_engine_abort(). */
kolo_status_t kolo_engine_init(kolo_tensor_engine_t *engine, kolo_comm_t comm, const kolo_engine_config_t *config);

/* Ends the engine. The first rank that calls it ends the engine for all ranks: outstanding tensors complete with
 * KOLO_ERR_ABORTED, later submissions on other ranks are refused. Waits for the cycle under way, not for tensors
 * that some ranks have not submitted. Returns the engine's first failure (a lost rank, for instance) or KOLO_OK,
 * and frees the engine and all its handles in either case. NULL is fine. Not from a callback. */
kolo_status_t kolo_engine_shutdown(kolo_tensor_engine_t engine);

/* Ends the engine on this rank without waiting for other ranks, also in the middle of an operation: the others get
 * KOLO_ERR_REMOTE. Outstanding tensors complete with KOLO_ERR_ABORTED. Frees the engine. NULL is fine. Not from a
 * callback. */
kolo_status_t kolo_engine_abort(kolo_tensor_engine_t engine);

/* ---- who and where ----------------------------------------------------------------------------------------- */

typedef struct kolo_engine_place {
    int rank, size;             /* in the job */
    int local_rank, local_size; /* among the ranks of this host, in rank order */
    int cross_rank, cross_size; /* among the ranks with this local rank, one per host, in the order of hosts */
    int homogeneous;            /* 1: all hosts have equally many ranks */
} kolo_engine_place_t;

/* Returns this rank's place in the job and on its host. */
kolo_status_t kolo_engine_get_place(kolo_tensor_engine_t engine, kolo_engine_place_t *place);

typedef struct kolo_engine_counters {
    uint64_t cycles, slow_cycles, sleeps; /* agreements; those with the coordinator; times that the thread slept */
    uint64_t tensors, operations;         /* tensors completed; collectives that it took */
    uint64_t hits, misses, invalid;       /* submissions that were cached, not cached, cached otherwise */
    uint64_t reduced_bytes, packed_bytes; /* of all_reduce; of it what went through the fusion buffer */
    uint64_t negotiate_ns, pack_ns, operate_ns, complete_ns; /* time of the thread in each part of its work */
} kolo_engine_counters_t;

/* Returns what the engine has done so far on this rank. The counters are not read at one moment. */
kolo_status_t kolo_engine_get_counters(kolo_tensor_engine_t engine, kolo_engine_counters_t *counters);

/* A backend moves the data of operations: Kolo's own collectives, or another library if
 * kolo_engine_config_t.backends lists it first and it can do the operation. */
typedef struct kolo_backend_info {
    const char *name; /* as in kolo_engine_config_t.backends */
    int available;    /* 1: on all ranks, and this engine may choose it */
    const char *why;  /* why it is not available; "" if it is */
    uint64_t operations,
        bytes; /* operations it has run on this rank; bytes of their inputs (of a gather: all ranks' inputs) */
} kolo_backend_info_t;

/* Describes the index-th backend (from 0, the same on all ranks); KOLO_ERR_INVALID_ARGUMENT beyond the last. The
 * strings belong to the engine and live as long as it. */
kolo_status_t kolo_engine_get_backend(kolo_tensor_engine_t engine, int index, kolo_backend_info_t *info);

/* ---- process sets -------------------------------------------------------------------------------------------- */

/* A process set is a part of the ranks that submits tensors among itself. Every submission belongs to a set
 * (kolo_submission_t.set); each set has its own names, so the same name may be outstanding in several sets. A set's
 * ranks are numbered from 0 in the order of their ranks in the job; roots, splits, parts and last_joined use these
 * numbers, error messages use ranks of the job. Set 0 is all ranks and always exists. Ids are the same on all ranks
 * and are never used twice. Sets may overlap. Tensors of one set do not wait for another set, but the engine runs
 * one operation at a time. */

/* Makes a process set and returns its id in *set. Collective over all ranks of the engine, with the same list on
 * all (else KOLO_ERR_MISMATCH); waits until all have called it. KOLO_ERR_INVALID_USAGE if a set of these ranks
 * exists. One change of the sets at a time on each rank; not from a callback. */
kolo_status_t kolo_engine_add_set(kolo_tensor_engine_t engine, const int *ranks, int count, int *set);
/* Removes a process set. Collective over all ranks of the engine, also those outside the set; waits until all have
 * called it. From the call on this rank submits nothing to the set. If a rank has tensors outstanding in it, all
 * ranks get KOLO_ERR_INVALID_USAGE and the set stays. Not from a callback. */
kolo_status_t kolo_engine_remove_set(kolo_tensor_engine_t engine, int set);

typedef struct kolo_set_info {
    int id, size;       /* the set's id; how many ranks it has */
    int included, rank; /* 1 and this rank's number in the set, or 0 and -1 */
} kolo_set_info_t;

/* Describes a process set; KOLO_ERR_INVALID_ARGUMENT if there is no set with that id. */
kolo_status_t kolo_engine_get_set(kolo_tensor_engine_t engine, int set, kolo_set_info_t *info);
/* Writes the set's ranks in the job to `ranks`, ascending, at most `room` of them. */
kolo_status_t kolo_engine_get_set_ranks(kolo_tensor_engine_t engine, int set, int *ranks, int room);
/* Returns the number of sets in *count and writes their ids to `ids`, ascending, at most `room` of them. */
kolo_status_t kolo_engine_get_set_ids(kolo_tensor_engine_t engine, int *ids, int room, int *count);

/* ---- submissions ------------------------------------------------------------------------------------------- */

/* A tensor: dense, row by row. The call copies name and shape. The buffers belong to the caller and must not be
 * touched or freed until the tensor is complete. Then its name may be used again. */
typedef struct kolo_tensor {
    const char *name;     /* 1 to KOLO_TENSOR_NAME_MAX bytes, no control characters; the same on all ranks */
    kolo_type_t type;     /* the same on all ranks */
    int ndims;            /* 0 to KOLO_TENSOR_DIMS_MAX; 0: a scalar */
    const int64_t *shape; /* of ndims dimensions */
    const void *input;    /* this rank's part */
    void *output; /* may be `input` for all_reduce and broadcast; NULL: kolo_submission_t.allocate makes it */
} kolo_tensor_t;

/* How a tensor ended. The pointers are the engine's and valid until the callback returns, or until the next
 * kolo_engine_wait() of the same thread. */
typedef struct kolo_completion {
    const char *name;         /* of the tensor */
    int index;                /* place in its group, 0 outside groups */
    kolo_status_t status;     /* KOLO_OK, or why there is no output */
    const char *text;         /* the error message, "" for KOLO_OK */
    void *output;             /* the tensor's, or what allocate returned */
    int ndims;                /* shape of the output */
    const int64_t *shape;     /* of the output */
    int parts;                /* number of ranks for all_gather and all_to_all, else 0 */
    const int64_t *part_rows; /* rows that came from each rank */
    int last_joined;          /* of join: the rank that joined last, else -1 */
    /* An event of the device (a CUevent for CUDA): the output is ready when it has passed. To be queried or waited
     * for; the engine owns it. NULL: the output is ready. */
    void *event;
} kolo_completion_t;

/* Where a tensor's input and output are, and when the input is ready. A tensor in GPU memory is reduced there, by a
 * communicator of GPUs, if all ranks have it on the GPU that they first used. Otherwise it passes through host
 * memory. A program that starts CUDA after its engine must name the device. */
#define KOLO_DEVICE_CPU (-1)
typedef struct kolo_tensor_memory {
    int device; /* KOLO_DEVICE_CPU, or CUDA's number of the GPU whose memory both are */
    /* An event after which the input is ready: on the CPU a recorded kolo_event_t, on a GPU a CUevent. NULL: it is
     * ready. On the CPU the tensor takes part once the event has passed, and other tensors do not wait. On a GPU
     * the ranks agree at once, and the engine's stream waits for the event. */
    void *ready;
    /* The program's stream (on a GPU a CUstream other than 0), or NULL. The input is ready when the work now in the
     * stream is done. The tensor is complete as soon as its operation is queued: work that the program queues into
     * the stream after that sees the result. A later failure of the GPU ends the engine. */
    void *stream;
} kolo_tensor_memory_t;

/* Callbacks, process set and memory of a submission. All zero: no callbacks, all ranks take part. */
typedef struct kolo_submission {
    /* Called once when the tensor is complete, on a thread of the engine. Must not block or shut the engine down;
     * may submit. NULL: none. */
    void (*done)(void *arg, const kolo_completion_t *completion);
    /* Allocates an output whose size is known only now; on the engine's thread. index: the tensor's place in its
     * group, 0 outside groups; `bytes` may be 0. The memory stays the caller's. NULL: no memory; this rank's tensor
     * fails with KOLO_ERR_NO_MEMORY. */
    void *(*allocate)(void *arg, int index, size_t bytes, int ndims, const int64_t *shape);
    void *arg;
    int set; /* the process set, whose ranks are "all ranks" of the operation; equal for all tensors of a group */
    /* NULL: the input is ready, and the engine finds out whose memory it is. Copied by the call; its event must
     * live until the tensor is complete. The same for all tensors of a group. Ranks may keep a tensor in different
     * kinds of memory. */
    const kolo_tensor_memory_t *memory;
} kolo_submission_t;

/* Rules for all submissions. `how` may be NULL. `handle` may be NULL; else it is set and must be passed to
 * kolo_engine_wait() once. Errors that this rank can see are returned: a name that is outstanding, empty or too
 * long; a set that does not exist or does not contain this rank; a bad type, shape, operator, root or splits; an
 * engine that has ended (with status and text of its first failure, KOLO_ERR_REMOTE after a loss). If type, shape,
 * operator, root or kind of operation differ between ranks, that tensor fails on all ranks with KOLO_ERR_MISMATCH,
 * which names tensor, ranks and both values; the engine goes on. It also goes on after an operation that fails
 * without a loss, because a backend refuses it or an output overlaps its input: the tensors fail on the ranks on
 * which it failed, with the error of the lowest of them. */

/* Adasum, an operator of kolo_engine_all_reduce() only, for float16, bfloat16, float32 and float64, for each tensor
 * alone: adds where gradients are orthogonal and averages where they are parallel. Two vectors give (1 - a.b /
 * 2|a|^2) a + (1 - a.b / 2|b|^2) b, with products in double. More ranks combine pairwise in a tree with a power of
 * two of leaves; ranks beyond that are first folded into the first ones. */
#define KOLO_ADASUM ((kolo_op_t)0x1000)

/* Every rank gets the reduction (KOLO_SUM, _AVG, _MIN, _MAX, _PROD, KOLO_ADASUM) of all inputs. Inputs are
 * multiplied with prescale first, results with postscale at the end; 1.0: no change. Integers are multiplied in
 * double and truncated. A rank that has joined contributes neutral values. */
kolo_status_t kolo_engine_all_reduce(kolo_tensor_engine_t engine, const kolo_tensor_t *tensor, kolo_op_t op,
                                     double prescale, double postscale, const kolo_submission_t *how,
                                     int64_t *handle);
/* Submits `count` tensors that are reduced together, once all of them are submitted on all ranks. The same group
 * with the same names on all ranks. done is called once per tensor; handles: NULL, or `count` of them. */
kolo_status_t kolo_engine_all_reduce_group(kolo_tensor_engine_t engine, const kolo_tensor_t *tensors, int count,
                                           kolo_op_t op, double prescale, double postscale,
                                           const kolo_submission_t *how, int64_t *handles);
/* Groups of the other operations, with the same rules: all tensors or none, the same group on all ranks, one
 * operation, root and operator per group. Shapes and types may differ between its tensors. splits: NULL, or one
 * entry per tensor, which may be NULL. */
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
/* Every rank gets the rows of all inputs, in rank order. The first dimension may differ between ranks and may be 0;
 * the others must be equal. Scalars are refused. output NULL: how->allocate makes it; else it must be large enough
 * for all rows. */
kolo_status_t kolo_engine_all_gather(kolo_tensor_engine_t engine, const kolo_tensor_t *tensor,
                                     const kolo_submission_t *how, int64_t *handle);
/* Every rank gets the root's input in its output. input is used on the root only. */
kolo_status_t kolo_engine_broadcast(kolo_tensor_engine_t engine, const kolo_tensor_t *tensor, int root,
                                    const kolo_submission_t *how, int64_t *handle);
/* Every rank sends splits[i] rows to rank i, in order, and gets the rows of all ranks in rank order. splits NULL:
 * equal parts; the first dimension must then be a multiple of the number of ranks. splits has one entry per rank
 * and is copied; its sum must be the first dimension, which may differ between ranks. output NULL: how->allocate
 * makes it. */
kolo_status_t kolo_engine_all_to_all(kolo_tensor_engine_t engine, const kolo_tensor_t *tensor,
                                     const int64_t *splits, const kolo_submission_t *how, int64_t *handle);
/* Rank i gets part i of the rows of the reduction (KOLO_SUM, _AVG, _MIN, _MAX, _PROD) of all inputs. With n rows
 * and p ranks the first n % p ranks get n / p + 1 rows, the others n / p. output NULL: how->allocate makes it. */
kolo_status_t kolo_engine_reduce_scatter(kolo_tensor_engine_t engine, const kolo_tensor_t *tensor, kolo_op_t op,
                                         double prescale, double postscale, const kolo_submission_t *how,
                                         int64_t *handle);
/* Declares that this rank has no more input: until all ranks have joined, it takes part in the others' reductions
 * with neutral values. Completes on all ranks once all have joined; then all take part again. While some have
 * joined, operations other than all_reduce and barrier fail. */
kolo_status_t kolo_engine_join(kolo_tensor_engine_t engine, const kolo_submission_t *how, int64_t *handle);
/* Completes when all ranks that have not joined have submitted a barrier. One at a time. */
kolo_status_t kolo_engine_barrier(kolo_tensor_engine_t engine, const kolo_submission_t *how, int64_t *handle);

/* ---- handles ----------------------------------------------------------------------------------------------- */

/* Sets *complete to 1 if the tensor of this handle is complete, successfully or not, else to 0. Never waits. */
kolo_status_t kolo_engine_poll(kolo_tensor_engine_t engine, int64_t handle, int *complete);
/* Waits until the tensor is complete, frees the handle, fills *completion (may be NULL) and returns the tensor's
 * status. After timeout_ms (0: no limit) it returns KOLO_ERR_TIMEOUT, leaves *completion alone, and the handle
 * stays; a tensor that failed by a time limit of its own (KOLO_OP_TIMEOUT_MS) is KOLO_ERR_TIMEOUT as well, but
 * complete, and its handle is freed. At its limit the error names the ranks that have not submitted the tensor, as
 * far as the set's coordinator has told: it tells of a tensor that has waited for a second, and of those that have
 * waited longest if there are many. A handle that was waited for before is KOLO_ERR_INVALID_ARGUMENT, a call in a
 * callback KOLO_ERR_INVALID_USAGE. When the engine is aborted, or a rank is lost, the wait ends with that. */
kolo_status_t kolo_engine_wait(kolo_tensor_engine_t engine, int64_t handle, int timeout_ms,
                               kolo_completion_t *completion);

/* ---- timeline ---------------------------------------------------------------------------------------------- */

/* Starts a timeline: a JSON file, for chrome://tracing and Perfetto, with the steps of each tensor that is
 * submitted from now on. A timeline that this rank writes already is ended first. "%r" in the path becomes the
 * rank, so each rank can write its own file, which kolo-trace(1) merges. Without it rank 0 writes the file and the
 * call does nothing on other ranks. mark_cycles 1: also write the start of each cycle. An existing file is
 * overwritten. A name that ends in ".gz" makes a gzip file (KOLO_ERR_UNSUPPORTED without zlib), a twelfth of the
 * size. With KOLO_TIMELINE_EVERY=N only the first and then every Nth operation of each tensor is written, the same
 * ones on all ranks if they start between the same steps. Not collective. The file is valid JSON at any time,
 * packed or not, except during a write. Events that find the queue (KOLO_TIMELINE_QUEUE) full are left out and
 * counted. The parameter KOLO_TIMELINE starts a timeline with the engine. */
kolo_status_t kolo_engine_timeline_start(kolo_tensor_engine_t engine, const char *path, int mark_cycles);
/* Ends the timeline: completes and closes the file, without ends for tensors that are outstanding. Does nothing
 * without a timeline. The end of the engine ends it, too. */
kolo_status_t kolo_engine_timeline_stop(kolo_tensor_engine_t engine);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
