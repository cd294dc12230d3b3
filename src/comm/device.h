/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators whose ranks work on devices: the calls of kolo.h go to an executor that queues them on the caller's
 * stream (exec/exec.h). Tickets, life cycle and what is known of the other ranks are the same as on the CPU.
 */
#ifndef KOLO_COMM_DEVICE_H
#define KOLO_COMM_DEVICE_H

#include "base/recorder.h"
#include "exec/exec.h"
#include "progress/progress.h"

struct kolo_body;
struct kolo_call;

extern const kolo_param_table_t kolo_gpus_params; /* KOLO_GPU_EXECUTOR, ... */
extern int64_t kolo_gpus_profile;                 /* KOLO_GPU_PROFILE */
/* device_host.c: the argument of its functions is a kolo_host_side_t. */
extern const kolo_exec_host_t kolo_device_host;
typedef struct {
    struct kolo_body *body;  /* that operations run on */
    struct kolo_body *owner; /* whose calls they are, and which fails with them */
} kolo_host_side_t;

/* gpus.c: who has which GPU, and what runs operations on them. Collective. */
kolo_status_t kolo_gpus_meet(struct kolo_body *body, const kolo_exec_ops_t **exec);

/* device_levels.c: the hierarchical executor, with its communicators. open: collective. stop: what runs on them
 * ends; any thread. close: after the executor. */
kolo_status_t kolo_levels_open(void *body, const kolo_exec_env_t *env, void **state); /* env->levels */
void kolo_levels_stop(struct kolo_body *body);
void kolo_levels_look_away(struct kolo_body *body); /* before the executor is closed: nobody looks at its kernels */
/* A part has found ranks that differ: all ranks of its owner are told. Not with locks held. */
void kolo_levels_tell(struct kolo_body *part);
/* A rank of a part by its number in the owner; of any other communicator as it is. */
int kolo_levels_rank(const struct kolo_body *body, int rank);
void kolo_levels_close(struct kolo_body *body);

/* The operation whose kernels wait, as the progress thread sees it from look to look (device_watch.c). */
typedef struct {
    kolo_progress_t *progress;
    kolo_timer_t *timer;
    bool waits, told;   /* told: it has failed by what was seen, or is about to */
    bool shows;         /* ranks may differ without anybody waiting */
    int shown;          /* how often the last operation was shown to the next rank */
    _Atomic bool alone; /* the communicator is being closed: nobody may be sent to ask around */
    _Atomic int sent;   /* threads that ask around */
    uint64_t number, word, since_ns, last_shown;
    kolo_exec_waits_t last;
    kolo_record_waits_t recorded;
} kolo_device_watch_t;

/* What a communicator asks of an executor, and what the table file says of so many GPUs. */
kolo_exec_tuned_t kolo_device_tuned(const struct kolo_body *body);
/* Sends and receives on a device, as peers may ask for them (device_pairs.c). open: before the first is queued.
 * count: when it has been, before operation `number` is. ask: those that `waits` waits for. */
typedef struct kolo_device_pairs kolo_device_pairs_t;
kolo_status_t kolo_device_pairs_open(struct kolo_body *body);
void kolo_device_pairs_free(struct kolo_body *body);
void kolo_device_pairs_count(struct kolo_body *body, const struct kolo_call *call, uint64_t number);
void kolo_device_pairs_ask(struct kolo_body *body, const kolo_exec_waits_t *waits);

/* device.c. After the ranks have met: opens the executor if this communicator has a device. Collective. */
kolo_status_t kolo_device_open(struct kolo_body *body);
/* Ends what runs and frees. Safe without a device, and twice. Does not wait for peers. */
void kolo_device_close(struct kolo_body *body);
/* Waits until all that was queued is complete, or the communicator has failed; as long as init may take at most. */
kolo_status_t kolo_device_drain(struct kolo_body *body);
/* stop.c: the communicator has failed: kernels end. Any thread. */
void kolo_device_cancel(struct kolo_body *body);
/* Looks from now on, on the progress thread, what kernels wait for: time limits, ranks that differ, ranks that have
 * given up. Nothing on the way of a call. stop: also before the executor is closed; safe without start. */
kolo_status_t kolo_device_watch_start(struct kolo_body *body);
bool kolo_device_forces_plans(void); /* KOLO_ALGO names one for some collective */
void kolo_device_watch_alone(struct kolo_body *body);
void kolo_device_watch_stop(struct kolo_body *body);
/* call/on_device.c: a call outside a group, and the calls of a group. They are queued when this returns. */
kolo_status_t kolo_device_submit(struct kolo_call *call);
kolo_status_t kolo_device_submit_group(struct kolo_call *calls, size_t count);

#endif
