/* SPDX-License-Identifier: Apache-2.0
 *
 * What runs operations on a device: the contract between the communicator and an executor whose operations go on by
 * themselves once they are queued. The communicator checks arguments, keeps the order of calls and knows who is
 * lost; the executor queues work on the caller's stream and returns. (On the CPU the caller's thread is the
 * executor: exec/host, entered without this table.)
 */
#ifndef KOLO_EXEC_EXEC_H
#define KOLO_EXEC_EXEC_H

#include "base/params.h"
#include "exec/host/reduce.h"
#include "mem/mem.h"
#include "plan/plan.h"
#include "wire/wire.h"

typedef enum { KOLO_EXEC_COLL, KOLO_EXEC_SEND, KOLO_EXEC_RECV } kolo_exec_kind_t;

/* One operation. Addresses are of the device; count is per part, as in kolo.h. */
typedef struct {
    kolo_exec_kind_t kind;
    kolo_coll_t coll;
    kolo_op_t op;           /* as the caller named it */
    kolo_reducer_t reducer; /* type and operator; the type alone where nothing is reduced */
    int root;               /* or the peer of a send or receive */
    const void *src;
    void *dst;
    uint64_t count;
    size_t elem;
    size_t src_stride, dst_stride; /* bytes from one part to the next, where there are several; 0: they touch */
    bool others; /* staged: in an all_gather or all_to_all this rank's part for itself stays as it is */
    /* Parts of unequal lengths, by rank, as in kolo.h; NULL: they are equal. For executors that run plans, and only
     * for collectives that a plan is forced for; others get a v form as messages or as several calls. An executor
     * may give them to the host side. */
    const size_t *send_counts, *send_displs, *recv_counts, *recv_displs;
    void *stream;
    uint64_t number, word; /* of the collective, that all ranks share; of a message: those of the next collective
                              and of its call. Parts of one call have the same */
} kolo_exec_call_t;

/* Kernels have functions for the types before this one, of which KOLO_UINT8's reduce KOLO_BOOL, too; other types
 * they move as bytes. */
#define KOLO_EXEC_DEVICE_TYPES (KOLO_UINT16 + 1)
static inline bool kolo_exec_device_reduces(const kolo_reducer_t *r)
{
    return !r->user;
}
kolo_status_t kolo_exec_refuse_reducer(const kolo_reducer_t *reducer); /* in words */

/* Finds how many bytes a call reads from its source on, and writes from its destination on, where it has them. */
void kolo_exec_reach(const kolo_exec_call_t *call, int rank, int nranks, uint64_t *src, uint64_t *dst);
/* Checks that the buffers of a call are memory of this device, and long enough. */
kolo_status_t kolo_exec_check(const kolo_exec_call_t *call, int rank, int nranks, int device);

/* Checks that this rank's n-th send to itself, among messages side by side, has as long an n-th receive. */
kolo_status_t kolo_exec_check_own(const kolo_exec_call_t *calls, size_t n, int rank);

/* What an executor that works through host memory asks of the communicator: to run operations there, as those of a
 * CPU communicator. One thread at a time, which waits for their end; addresses are of host memory, streams are not
 * looked at. */
typedef struct {
    kolo_status_t (*run)(void *arg, const kolo_exec_call_t *call); /* a collective */
    /* Messages side by side; to and from each peer in their order. None to this rank itself. */
    kolo_status_t (*exchange)(void *arg, const kolo_exec_call_t *calls, size_t n);
    /* An operation has failed: the communicator takes the thread's last error as its own, and cancels. */
    void (*fail)(void *arg, kolo_status_t status, const kolo_exec_call_t *call);
} kolo_exec_host_t;

/* What a communicator asks of an executor of GPUs, and what was measured of them (the tuner's table file); 0: as
 * the executor knows it. Lengths in bytes, equal on all ranks. */
#define KOLO_GPU_QUARTER                                                                                           \
    3 /* a profile beside those of kolo.h, for communicators whose operations run beside each                      \
       * other: as balanced, but none has more than a quarter of the blocks that find room */
typedef struct {
    int profile; /* KOLO_GPU_LATENCY and others */
    uint64_t ll_all_reduce, ll_others, ll128_all_reduce, ll128_others, message_lines, ll128_two, give, pipe;
} kolo_exec_tuned_t;

typedef struct {
    kolo_coll_t coll;
    uint32_t rank, root;
    bool uneven; /* its parts may be of unequal lengths */
    bool slots;  /* it passes no references to memory: for buffers that others do not reach */
} kolo_exec_plan_ask_t;

typedef struct kolo_exec_env {
    kolo_wire_ctx_t *ctx;
    int device; /* ordinal */
    kolo_exec_tuned_t tuned;
    const kolo_exec_host_t *host;
    void *host_arg;
    uint32_t start; /* number of the first operation; cyclic */
    bool by_pci;    /* some of its GPUs reach each other by the PCI bus, where long stores may come in parts */
    bool one_fold;  /* all ranks' values are to be folded at once, in their order (config.order) */
    /* For an executor that runs plans: the plan that is asked for, where one is forced for that collective, else
     * NULL. The same on all ranks. NULL: none is forced for any. The executor frees them. */
    kolo_status_t (*plan)(void *arg, const kolo_exec_plan_ask_t *ask, kolo_plan_t **plan);
    void *plan_arg;
    /* For an executor made of others: opens them, over communicators of their own (gpu/levels). Collective. */
    kolo_status_t (*levels)(void *arg, const struct kolo_exec_env *env, void **state);
    void *levels_arg;
} kolo_exec_env_t;

/* What is known of a communicator's GPUs when its executor is chosen. The same on all ranks. */
#define KOLO_EXEC_WHY 256
typedef struct {
    int nranks, hosts;
    const int *host_of;          /* by rank */
    bool inside;                 /* on each host all GPUs have kernels, and they reach each other's memory */
    bool all;                    /* there is one host, and the same */
    bool one_fold;               /* all ranks' values are to be folded at once (config.order) */
    char reach[KOLO_EXEC_WHY];   /* which of the ranks' GPUs keep `all` from being true; or that it is */
    char crowded[KOLO_EXEC_WHY]; /* which ranks are in one process and use one GPU; "": none are */
} kolo_exec_gpus_t;

/* What the operation that runs waits for. Told only of waits that have lasted for some milliseconds. */
#define KOLO_EXEC_WAITS 8
typedef struct {
    int rank;
    uint32_t block, step;
    bool room; /* for room at that rank, else for data from it */
} kolo_exec_await_t;
typedef struct {
    uint64_t number, word, seen_ns; /* when it was last seen to wait */
    int count;                      /* ranks that are waited for; 0: it waits for nobody, or nothing runs */
    kolo_exec_await_t on[KOLO_EXEC_WAITS];
    int unfit;        /* a rank whose end of a message does not fit this rank's, else -1 */
    bool unfit_sends; /* this rank does */
    kolo_type_t unfit_type[2];
    uint64_t unfit_bytes[2]; /* this rank's, the other's */
} kolo_exec_waits_t;

/* A piece of one-sided work: a copy to memory that this rank's GPU reaches, then a word that is written; or the
 * wait for a word. Words lie in host memory that the device has mapped, at the addresses that it has for them. */
typedef struct {
    void *dst;
    const void *src;
    uint64_t bytes, word; /* bytes 0: no copy; word 0: none */
    uint32_t value;
    bool wait; /* until the word is at least that, cyclic; else it is written */
    void *stream;
} kolo_exec_move_t;

typedef struct kolo_exec_ops {
    const char *name;  /* in KOLO_GPU_EXECUTOR, too */
    const char *needs; /* of the GPUs, in words */
    bool by_kernels;   /* kernels are looked for when it may be chosen, for each GPU */
    bool by_plans;     /* it runs plans (env->plan) */
    bool reads;        /* scalars in the GPU's memory, when an operation runs (kolo_reducer_t.pre_at) */
    bool by_host;      /* operations are run, counted and recorded by the communicator's host side */
    const kolo_param_table_t *params; /* its own; NULL: it has none */
    /* Can it serve a communicator with these GPUs? Says why, or why not; every rank answers the same. */
    bool (*serves)(const kolo_exec_gpus_t *gpus, char why[KOLO_EXEC_WHY]);
    /* Collective over the communicator; blocking within the context's deadline. */
    kolo_status_t (*open)(const kolo_exec_env_t *env, void **state);
    /* Queues operations, in order; sends and receives that stand side by side run together. One thread at a time.
     * On failure nothing of the call that failed, and of those behind it, was queued; KOLO_ERR_SYSTEM: a part of it
     * may be, and the communicator fails. */
    kolo_status_t (*launch)(void *state, const kolo_exec_call_t *calls, size_t n);
    /* Would launch() take these? Nothing is queued. NULL: it takes all. */
    kolo_status_t (*check)(void *state, const kolo_exec_call_t *calls, size_t n);
    /* This memory will be used often: other ranks are to reach it by the first operation on it. Local, while
     * nothing is in launch(). NULL: nothing is to be done. */
    kolo_status_t (*expect)(void *state, const void *p, uint64_t bytes);
    /* What is queued on this stream from now on comes behind all that this executor has queued on others, whether
     * it is given any of it or not. A stream that is being captured has its order from the program that replays it;
     * there it fails if no call could be queued. NULL: it is never a part of another executor. */
    kolo_status_t (*follow)(void *state, void *stream);
    /* Queues them, in order, as launch() does. Source and word have been checked when the first one is queued.
     * NULL: this executor cannot. */
    kolo_status_t (*move)(void *state, const kolo_exec_move_t *moves, size_t n);
    /* KOLO_OK: all that was queued is complete. KOLO_IN_PROGRESS, or the device's error. */
    kolo_status_t (*poll)(void *state);
    /* Ends what is queued or running; any thread, also while another is in launch(). Nothing runs well after it. */
    void (*cancel)(void *state);
    /* Tells whether anything that was queued has ended without its results; read when poll() has said that all is
     * over. */
    bool (*gave_up)(const void *state);
    /* What it waits for now, where operations do not run by the host; one thread at a time, which comes every few
     * milliseconds at most. Never blocks. */
    void (*waits)(void *state, kolo_exec_waits_t *waits);
    /* What an operation that was ended had waited for: words, or "". */
    void (*awaited)(void *state, char *buf, size_t bytes);
    size_t (*memory)(const void *state); /* bytes on the device */
    /* Gives the device memory back, once nothing runs on any rank; gets it again: collective, as open. NULL: there
     * is nothing to give. */
    void (*suspend)(void *state);
    kolo_status_t (*resume)(void *state, kolo_wire_ctx_t *ctx);
    /* Takes over memory that operations use, too, and frees it with its own. Once, before close(). NULL: it is
     * never a part of another executor. */
    void (*adopt)(void *state, kolo_mem_t *mem);
    /* Everything is complete or was cancelled. Graphs that were captured hold what their replays use. Does not wait
     * for peers. NULL is fine. */
    void (*close)(void *state);
} kolo_exec_ops_t;

#endif
