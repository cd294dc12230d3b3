/* SPDX-License-Identifier: Apache-2.0
 *
 * The room that is libnccl.so.2: NCCL's functions on kolo.h. It has a handle per communicator, the calls of an open
 * group, and NCCL's rules where they differ from Kolo's (the table in docs/nccl.md). All communication is Kolo's.
 */
#ifndef KOLO_NCCL_LAYER_H
#define KOLO_NCCL_LAYER_H

#include "base/params.h"
#include "base/status.h"
#include "mem/cuda/cuda.h"
#include "nccl/abi.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- errors.c ---- */
/* Stores the text as the process's last error, logs it as NCCL logs a warning, returns `result`. */
ncclResult_t kolo_nccl_fail(ncclResult_t result, const char *fmt, ...) KOLO_PRINTF(2, 3);
/* Writes a log line with NCCL's names of calls for Kolo's. */
void kolo_nccl_words(const char *text, char *out, size_t bytes);
/* Translates a status of Kolo's. On failure the calling thread's text becomes the last error. */
ncclResult_t kolo_nccl_result(kolo_status_t status);
/* Does the same with another text, in which names of Kolo's calls are replaced by NCCL's. */
ncclResult_t kolo_nccl_result_text(kolo_status_t status, const char *text);
/* Does the same, and logs it only if `reported` has another status: clients poll several communicators by turns. */
ncclResult_t kolo_nccl_result_polled(kolo_status_t status, const char *text, _Atomic int *reported);

/* Holds, or lets go, the lock that errors.c, handle.c and memory.c have for the process: across a fork(), by whose
 * child it would never be let go if another thread had it. */
void kolo_nccl_errors_hold(bool hold);
void kolo_nccl_handles_hold(bool hold);
void kolo_nccl_memory_hold(bool hold);
/* Makes the locks of communicators anew, in a forked child. */
void kolo_nccl_handles_renew(void);

/* A thread that is cancelled (pthread_cancel()) while it is in here ends only when the block is left: it would
 * leave locks and an operation behind for which an abort waits. Stands in each call that may wait, or lock. */
#define KOLO_NCCL_WHOLE                                                                                            \
    const int cancel_was __attribute__((cleanup(kolo_nccl_cancel_let), unused)) = kolo_nccl_cancel_hold()
static inline int kolo_nccl_cancel_hold(void)
{
    int was = PTHREAD_CANCEL_ENABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &was);
    return was;
}
static inline void kolo_nccl_cancel_let(const int *was)
{
    pthread_setcancelstate(*was, NULL);
}

/* ---- start.c ---- */
/* Tells whether the environment asks for CPU mode (comm/params.c). */
bool kolo_nccl_on_cpu(void);
int kolo_nccl_version(void);
/* Initializes the library. Every function that can be the first call of a process calls it. */
ncclResult_t kolo_nccl_start(void);
/* Returns the GPU of the calling thread's context; -1 in CPU mode. */
int kolo_nccl_current_device(void);

/* ---- config.c ---- */
/* Fills *out with what the client has set of `config`, the rest undefined. NULL: all undefined. */
ncclResult_t kolo_nccl_config_read(const ncclConfig_t *config, const char *call, ncclConfig_t *out);
/* Returns whether calls block, 1 or 0, as the config, the environment and the default say. */
int kolo_nccl_config_blocks(const ncclConfig_t *config);
/* Translates what Kolo has of the config; the caller sets `device` and whether the call blocks. */
kolo_config_t kolo_nccl_config_kolo(const ncclConfig_t *config, int blocking);

/* ---- handle.c ---- */
#define KOLO_NCCL_NAME_BYTES 64
typedef struct kolo_nccl_window { /* windows.c */
    struct kolo_nccl_window *next;
    bool live; /* false: deregistered. Under the communicator's lock, as `next` */
    kolo_window_t kolo;
    void *buf;
    size_t bytes;
} kolo_nccl_window_t;
/* 0: none, or destroyed. FAILED: destroyed, with an error that the client was told of and may answer by an abort */
enum { KOLO_NCCL_LIVE = 1, KOLO_NCCL_ABORTED, KOLO_NCCL_ENDING /* destroy waits */, KOLO_NCCL_FAILED };

struct ncclComm {
    _Atomic int life;
    _Atomic(kolo_comm_t) kolo; /* NULL: a group that makes it is still open */
    int nranks;
    _Atomic int rank; /* of children: -1 until asked, as nranks */
    int device;
    int blocking; /* as the client sees it */
    ncclConfig_t config;
    char name[KOLO_NCCL_NAME_BYTES]; /* config.commName is a copy here */
    _Atomic bool finalized;
    _Atomic int suspended; /* 0: not; else what Kolo has freed is 2, if there was nothing to free 1 */
    _Atomic bool stopped;  /* revoked, or shrunk in abort mode: what it then reports was asked for */
    _Atomic int failed;    /* a ncclResult_t: making it failed in a group */
    _Atomic int reported;  /* a kolo_status_t: what the client has heard when it asked */
    pthread_mutex_t lock;
    ncclComm_t child, *child_out; /* a split or shrink that goes on in the background, under the lock */
    kolo_nccl_window_t *windows;  /* under the lock */
    struct {                      /* profile.c */
        _Atomic bool open;        /* the plug-in knows it */
        void *context, *group;
        uint64_t calls[8]; /* by kind, of collectives */
    } profile;
    ncclComm_t next_free;
};
/* Makes a handle for a communicator that is about to be made. NULL: out of memory. */
ncclComm_t kolo_nccl_handle_new(const ncclConfig_t *config, int nranks, int rank, int device);
/* Gives it back; from now on it is recognised as one that has ended, for as long as possible. */
void kolo_nccl_handle_drop(ncclComm_t comm, int life);
/* Returns ncclInvalidArgument, with a text that names the client's `call`, for anything but a live handle. */
ncclResult_t kolo_nccl_check(ncclComm_t comm, const char *call);
/* Does the same, and makes sure that the communicator is made: no group that makes it is open, it did not fail. */
ncclResult_t kolo_nccl_check_made(ncclComm_t comm, const char *call);
/* Returns where it is in its life; 0 for what is no communicator, too. */
int kolo_nccl_life(ncclComm_t comm);
/* Returns a communicator's rank and size. Children are asked for theirs when these are first needed. */
ncclResult_t kolo_nccl_place(ncclComm_t comm, int *rank, int *nranks);
/* Waits until Kolo's communicator no longer works in the background; returns what it then is. */
ncclResult_t kolo_nccl_settle(ncclComm_t comm);

/* ---- groups.c ---- */
typedef enum {
    KOLO_NCCL_ALL_REDUCE,
    KOLO_NCCL_REDUCE,
    KOLO_NCCL_BROADCAST,
    KOLO_NCCL_ALL_GATHER,
    KOLO_NCCL_REDUCE_SCATTER,
    KOLO_NCCL_ALL_TO_ALL,
    KOLO_NCCL_GATHER,
    KOLO_NCCL_SCATTER,
    KOLO_NCCL_SEND,
    KOLO_NCCL_RECV,
    KOLO_NCCL_PUT_SIGNAL,
    KOLO_NCCL_SIGNAL,
    KOLO_NCCL_WAIT_SIGNAL
} kolo_nccl_kind_t;

typedef struct {
    kolo_nccl_kind_t kind;
    const char *name; /* the client's function */
    ncclComm_t comm;
    const void *src;
    void *dst;
    size_t count;
    kolo_type_t type;
    kolo_op_t op;
    int root; /* or the peer */
    void *stream;
    kolo_window_t window;
    size_t offset;
    int signal;
    kolo_signal_wait_t *waits; /* on the heap, the group's */
    int nwaits;
    cudaEvent_t event; /* recorded on the stream before the launch */
    /* for profilers */
    ncclDataType_t client_type;
    uint64_t tag;
    bool told; /* a profiler hears of it */
    void *call_event, *run_event;
} kolo_nccl_call_t;
/* Takes what concerns the call, event and tag, of its configuration, NULL: none. */
ncclResult_t kolo_nccl_call_config_read(const ncclCollConfig_t *config, kolo_nccl_call_t *call);
/* Runs a call whose arguments are right, or keeps it for the end of the open group. */
ncclResult_t kolo_nccl_submit(const kolo_nccl_call_t *call);
/* Tells whether a group is open on this thread. */
bool kolo_nccl_grouped(void);
/* Notes an error, which ends an open group: nothing of it runs, and ncclGroupEnd() returns the first. Returns
 * `result`. */
ncclResult_t kolo_nccl_noted(ncclResult_t result);
/* Has it done at the end of the open group, when all calls have run. */
ncclResult_t kolo_nccl_group_destroys(kolo_op_t op, ncclComm_t comm);

/* ---- jobs.c: what makes or ends communicators, or windows; in a group it is done at its end, side by side ---- */
typedef enum {
    KOLO_NCCL_INIT,
    KOLO_NCCL_SPLIT,
    KOLO_NCCL_SHRINK,
    KOLO_NCCL_GROW,
    KOLO_NCCL_WINDOW,
    KOLO_NCCL_FINALIZE,
    KOLO_NCCL_DESTROY
} kolo_nccl_job_kind_t;

typedef struct kolo_nccl_job {
    kolo_nccl_job_kind_t kind;
    const char *name;
    ncclComm_t comm, *out; /* comm: the parent, or what is finalized or destroyed; of an init: what is made */
    int color, key, nranks, rank, nids, flags, count, device;
    int *excluded;
    ncclUniqueId *ids;
    void *buf; /* of a window */
    size_t bytes;
    ncclWindow_t *window;
    ncclConfig_t config;
    char comm_name[KOLO_NCCL_NAME_BYTES]; /* of a job that is kept: config.commName is a copy here */
    /* of a job that runs beside others */
    pthread_t thread;
    bool started, follows;
    ncclResult_t result;
    struct kolo_nccl_job *next, *after; /* after: on the same communicator, when this one is through */
} kolo_nccl_job_t;
/* Copies `job` with its lists; NULL: out of memory. */
kolo_nccl_job_t *kolo_nccl_job_copy(const kolo_nccl_job_t *job);
void kolo_nccl_job_free(kolo_nccl_job_t *job);
ncclResult_t kolo_nccl_job_run(kolo_nccl_job_t *job);
/* Runs it, or keeps a copy for the end of the open group. */
ncclResult_t kolo_nccl_job_submit(const kolo_nccl_job_t *job);
/* Runs a list side by side, frees it, and returns the first error, or ncclInProgress. */
ncclResult_t kolo_nccl_jobs_run(kolo_nccl_job_t *list);
/* Drops it: what would have been made is not. */
void kolo_nccl_jobs_drop(kolo_nccl_job_t *list);

/* ---- init.c, child.c, register.c, life.c: one job each ---- */
ncclResult_t kolo_nccl_run_init(kolo_nccl_job_t *job);
ncclResult_t kolo_nccl_run_child(kolo_nccl_job_t *job);
ncclResult_t kolo_nccl_run_window(kolo_nccl_job_t *job);
ncclResult_t kolo_nccl_run_finalize(kolo_nccl_job_t *job);
ncclResult_t kolo_nccl_run_destroy(kolo_nccl_job_t *job);
/* Looks how far a child is that is made in the background. Returns ncclInProgress, its error or ncclSuccess; from
 * then on the client has it. */
ncclResult_t kolo_nccl_poll_child(ncclComm_t comm);

/* ---- profile.c: plug-ins that are told of calls ---- */
extern _Atomic bool kolo_nccl_profiles; /* there is one */
/* Looks for a plug-in, once. */
void kolo_nccl_profile_load(void);
/* Tells it of a communicator that is complete; again: nothing. */
void kolo_nccl_profile_open(ncclComm_t comm);
void kolo_nccl_profile_close(ncclComm_t comm);
/* Tells it of a call that was made, in so many groups of the program's. */
void kolo_nccl_profile_call(kolo_nccl_call_t *call, int depth);
/* Tells it that they are handed over, then: were. */
void kolo_nccl_profile_begin(kolo_nccl_call_t *calls, size_t n, bool grouped);
void kolo_nccl_profile_end(kolo_nccl_call_t *calls, size_t n);

/* ---- operators.c ---- */
/* Translates a type; -1 if Kolo has none. */
int kolo_nccl_type(ncclDataType_t type);
int kolo_nccl_op(ncclRedOp_t op);

/* ---- env.c ---- */
/* Reads the NCCL_ variables and the configuration files, once, before Kolo's parameters are loaded. */
kolo_status_t kolo_nccl_env_load(void);
/* Warns about unknown ones, and logs what those that are set do. */
void kolo_nccl_env_report(void);
/* Finds the variable of NCCL's that has set this parameter of Kolo's, NULL: none has. */
const char *kolo_nccl_env_behind(const char *parameter, size_t length);
/* Returns NCCL's value of a variable as text, NULL if it is not set. */
const char *kolo_nccl_env(const char *key);

#endif
