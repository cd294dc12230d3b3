/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators on devices: the calls of kolo.h go to an executor that queues them on the caller's stream
 * (exec/exec.h). Tickets, life cycle and news of other ranks work as on the CPU.
 */
#ifndef KOLO_COMM_GPU_DEVICE_H
#define KOLO_COMM_GPU_DEVICE_H

#include "base/recorder.h"
#include "comm/call/track.h"
#include "gpu/gpu.h"
#include "progress/progress.h"

struct kolo_body;
struct kolo_call;

extern const kolo_param_table_t kolo_gpus_params; /* KOLO_GPU_EXECUTOR, ... */
extern int64_t kolo_gpus_profile;                 /* KOLO_GPU_PROFILE */
/* host.c: the argument of its functions is a kolo_host_side_t. */
extern const kolo_exec_host_t kolo_device_host;
typedef struct {
    struct kolo_body *body;  /* runs the operations */
    struct kolo_body *owner; /* made the calls, and fails if they fail */
} kolo_host_side_t;

/* Exchanges the ranks' GPUs and chooses the executor (gpus.c). Collective. */
kolo_status_t kolo_device_meet(struct kolo_body *body, const kolo_exec_ops_t **exec);

/* Opens the communicators of the hierarchical executor (levels.c; collective); stop ends their operations, on any
 * thread; close frees them, after the executor. */
kolo_status_t kolo_device_levels_open(void *body, const kolo_exec_env_t *env, void **state); /* env->levels */
void kolo_device_levels_stop(struct kolo_body *body);
void kolo_device_levels_look_away(
    struct kolo_body *body); /* stops the watch of its kernels, before the executor is closed */
/* Passes a mismatch that a part has found to all ranks of its owner. Not with locks held. */
void kolo_device_levels_tell(struct kolo_body *part);
/* Passes what ended the parts of a communicator on to the whole, a wait of which has failed: news may come to a
 * part first. Returns the status that the wait has by them. Not with locks held. */
kolo_status_t kolo_device_levels_hear(struct kolo_body *body, kolo_status_t status);
/* Returns the owner's number of a rank of a part; of another communicator the rank itself. */
int kolo_device_levels_rank(const struct kolo_body *body, int rank);
void kolo_device_levels_close(struct kolo_body *body);

/* The last operation, or call, and how often it was shown to the next rank. */
typedef struct {
    uint64_t last;
    int times;
} kolo_device_shown_t;

/* The operation whose kernels wait, as the progress thread last saw it (watch.c). */
typedef struct {
    kolo_progress_t *progress;
    kolo_timer_t *timer, *hold;
    bool waits, told; /* told: its failure was reported, or is about to be */
    bool shows;       /* ranks may differ although none waits */
    kolo_device_shown_t operations, calls;
    _Atomic bool alone; /* the communicator is being closed: start no more threads that ask peers */
    _Atomic int sent;   /* threads that ask peers */
    uint64_t number, word, since_ns;
    uint64_t stall_ns;      /* when it is next warned of */
    uint64_t quiet_seen_ns; /* when a wait was last seen to go on, once a rank had gone quietly */
    kolo_exec_waits_t last;
    kolo_record_waits_t recorded;
} kolo_device_watch_t;

/* Kernels that must end stay until the program was told that they have failed, or for KOLO_HOLD_MS (stop.c). */
enum { KOLO_HELD_NOT, KOLO_HELD, KOLO_HELD_NEVER_MORE };

/* What a communicator has on a device. */
typedef struct {
    int device;  /* -1: the CPU */
    int profile; /* KOLO_GPU_LATENCY and others */
    bool by_pci; /* see kolo_exec_env_t */
    const kolo_exec_ops_t *exec;
    void *_Atomic state;        /* the executor's */
    kolo_host_side_t host_side; /* what its operations on the host run on */
    _Atomic uint32_t cancelled; /* its kernels must end */
    _Atomic int held;           /* KOLO_HELD_...: whether they stay meanwhile; changed under error_lock */
    bool suspended;             /* has no device memory now; used by the operation whose turn it is */
    kolo_device_watch_t watch;
    _Atomic(struct kolo_device_pairs *) pairs;
} kolo_body_gpu_t;

/* A hierarchical communicator and its parts. */
typedef struct {
    /* Of the whole: the ranks of this host; those of this rank's lane, NULL if it has none. */
    struct kolo_body *inside, *across;
    kolo_host_side_t lane_side;
    _Atomic uint64_t calls; /* user calls so far; their numbers are those of diag/diag.h's second row */
    uint64_t next;          /* the call after the messages under way; 0: not known */
    kolo_stalled_t stalled; /* the call that takes long */
    /* Of a part: */
    struct kolo_body *owner; /* the whole */
    int *owner_ranks;        /* its ranks' numbers there */
    uint64_t step;           /* the last call whose kernels were launched */
} kolo_body_levels_t;

/* Returns the executor's settings: those of the communicator and those of the table file for this number of GPUs.
 */
kolo_exec_tuned_t kolo_device_tuned(const struct kolo_body *body);
/* Counts of sends and receives on a device, for peers that ask (pairs.c). open: before the first one is
 * queued. count: after one is queued, before operation `number` is. ask: the peers that `waits` waits for. */
typedef struct kolo_device_pairs kolo_device_pairs_t;
kolo_status_t kolo_device_pairs_open(struct kolo_body *body);
void kolo_device_pairs_free(struct kolo_body *body);
void kolo_device_pairs_count(struct kolo_body *body, const struct kolo_call *call, uint64_t number);
void kolo_device_pairs_ask(struct kolo_body *body, const kolo_exec_waits_t *waits);

/* Opens the executor if this communicator has a device, after the ranks have met (device.c). Collective. */
kolo_status_t kolo_device_open(struct kolo_body *body);
/* Ends what runs and frees. Safe without a device, and twice. Does not wait for peers. */
void kolo_device_close(struct kolo_body *body);
/* Waits until all queued operations are complete or the communicator has failed, as long as they take. */
kolo_status_t kolo_device_drain(struct kolo_body *body);
/* Ends kernels after the communicator has failed (stop.c). Any thread. */
void kolo_device_cancel(struct kolo_body *body);
/* Ends those that are held: the program was told, or ends the communicator. Any thread. */
void kolo_device_let_go(struct kolo_body *body);
/* Starts to check on the progress thread what kernels wait for: time limits, mismatches, ranks that have given up.
 * Costs nothing on the path of a call. stop: before the executor is closed; safe without start. */
kolo_status_t kolo_device_watch_start(struct kolo_body *body);
bool kolo_device_forces_plans(void); /* KOLO_ALGO names one for some collective */
void kolo_device_watch_alone(struct kolo_body *body);
void kolo_device_watch_stop(struct kolo_body *body);
/* Queues a call outside a group, or the calls of a group (on_device.c). They are queued when this returns. */
kolo_status_t kolo_device_submit(struct kolo_call *call);
kolo_status_t kolo_device_submit_group(struct kolo_call *calls, size_t count);
/* Shows the end of a hierarchical communicator as one more call, in which this rank is from now on. */
void kolo_device_show_end(struct kolo_body *body, uint64_t word);

#endif
