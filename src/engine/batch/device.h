/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that the CPU may not touch. A device is a row of src/mem that has queues (mem/queue.h); the engine has one
 * queue on each device that it meets. Nothing here ever waits for a device: work is queued, and a mark behind it is
 * reached when it is done.
 *
 *     submission --(its ready event passes: finish.c)--> negotiation --> pack, fetch | mark | reduce on the CPU
 *         --> store, unpack | mark | --(the mark is reached: finish.c)--> completion
 *
 * device.c has the engine's devices, fusion.c packs and unpacks, finish.c is the thread that polls events and
 * marks. CPU memory is a device whose work is done at once, or on its own thread so that packing overlaps reducing
 * (device_cpu.c).
 *
 * Collectives run on host memory here, so data on a device passes through pinned host memory. Ranks need not have a
 * tensor in the same kind of memory.
 */
#ifndef KOLO_ENGINE_BATCH_DEVICE_H
#define KOLO_ENGINE_BATCH_DEVICE_H

#include "engine/engine.h"
#include "mem/queue.h"

#define KOLO_DEVICES_MAX 16 /* numbers 0 to 15 */

/* Runs a lift (mem/queue.h) on the CPU, at once. */
void kolo_lift_now(const kolo_lift_t *list, size_t n);

/* ---- an engine's use of a device ---- */

enum { KOLO_USE_CPU = KOLO_DEVICES_MAX, KOLO_USES }; /* the CPU's own thread is the last */
#define KOLO_FUSION_BUFFERS 2                        /* one is packed or unpacked while the other is reduced */
enum { KOLO_SIDE_PACKS, KOLO_SIDE_UNPACKS, KOLO_SIDES };
#define KOLO_GPU_STREAMS 4 /* of process sets: so many quarters of a GPU there are (KOLO_GPU_QUARTER) */

typedef struct kolo_use {
    struct kolo_tensor_engine *engine; /* NULL: it has ended, and this is stuck; under `tells` */
    pthread_mutex_t tells;
    int number;
    const kolo_mem_ops_t *row; /* NULL: the CPU's own */
    const kolo_mem_queue_ops_t *ops;
    void *queue;
    pthread_mutex_t lock;                    /* one at a time in the queue */
    kolo_mem_t buffers[KOLO_FUSION_BUFFERS]; /* each as large as the host's, which is pinned; or none */
    kolo_mem_t rooms[5];                     /* native.h: memory of what never leaves the device */
    struct kolo_use *sides[KOLO_SIDES];      /* native.h: queues of its own beside this one; NULL: there are none */
    struct kolo_use *others[KOLO_GPU_STREAMS - 1]; /* native.h: for other process sets; NULL: not opened yet */
    uint64_t busy[KOLO_FUSION_BUFFERS]; /* marks of the side that unpacks: until then it reads the buffer */
    int next_buffer;                    /* of the sides */
    bool stuck;                         /* it did not come to an end */
} kolo_use_t;

/* Says whose a flight is: FREE and TAKEN are the loop's. What `uses` names has work queued, and who completes the
 * entries then is the finisher (FINISHING), or, if it is the CPU's thread that works, the loop (SETTLING). */
typedef enum {
    KOLO_FLIGHT_FREE,
    KOLO_FLIGHT_TAKEN,
    KOLO_FLIGHT_FINISHING,
    KOLO_FLIGHT_SETTLING
} kolo_flight_state_t;

#define KOLO_FLIGHT_STEPS 8
typedef struct {
    int what; /* KOLO_DO_... that ended here; -1: the begin */
    uint64_t stamp;
    struct kolo_use *use; /* whose queue has the stamp */
} kolo_flight_step_t;

/* Tensors on their way through a fusion buffer, a single one that is staged, or what runs on a GPU. */
typedef struct kolo_flight {
    _Atomic int state; /* kolo_flight_state_t */
    kolo_tensors_t *lane;
    int buffer;    /* -1: none */
    uint32_t uses; /* bits: whose queues have a part in it */
    bool now;      /* what is the CPU's is done on the spot */
    size_t bytes;
    uint64_t marks[KOLO_USES];
    kolo_entry_t **entries; /* those that its end completes */
    size_t nentries, entries_room;
    kolo_lift_t *lifts;
    size_t nlifts, lifts_room;
    void *scratch[2]; /* host memory, pinned on `on` */
    kolo_use_t *on;
    kolo_set_t *set; /* native.h; NULL: it passes through host memory */
    kolo_use_t *end; /* of that: whose queue has the mark */
    kolo_flight_step_t steps[KOLO_FLIGHT_STEPS];
    int nsteps;
    struct kolo_late *late; /* what the timeline is to hear of it */
} kolo_flight_t;

typedef struct kolo_native {
    kolo_use_t *use;
    kolo_use_t *packs, *unpacks; /* use itself, or its sides while collectives run beside them */
    int buffer;                  /* of the sides; -1: none */
    kolo_flight_t *flight;
} kolo_native_t;

#define KOLO_FLIGHTS 16

typedef struct {
    void *memory;
    size_t bytes;
    kolo_flight_t *flight; /* that used it last; may be over */
} kolo_fusion_buffer_t;

typedef struct kolo_devices {
    struct kolo_devices *next; /* of those that a stuck device keeps */
    pthread_mutex_t lock;
    kolo_use_t *_Atomic uses[KOLO_USES]; /* opened at first need, under the lock */
    kolo_fusion_buffer_t buffers[KOLO_FUSION_BUFFERS];
    kolo_flight_t flights[KOLO_FLIGHTS];
    int next_flight;
    bool overlap; /* the CPU has cores to pack on */
    kolo_native_t native;
    bool met_sets,
        quarters; /* native.h, the loop's: whether each set has a quarter of the GPU is decided; it has */
    int next_stream;
    struct kolo_late *late, **late_tail; /* under the lock: for the loop to put into the timeline */

    /* finish.c */
    bool started;
    pthread_t finisher;
    kolo_gate_t gate;        /* opened when there may be something to look at */
    kolo_entry_t *waiting;   /* the finisher's: their events have not passed */
    _Atomic uint64_t end_ns; /* not 0: nothing new comes, and how long it may take what there is */
    _Atomic bool failed;
    kolo_status_t failure; /* of a device; written once, before `failed` */
    char failure_text[KOLO_ERROR_TEXT_BYTES];
} kolo_devices_t;

extern int64_t kolo_engine_overlap, kolo_engine_gpu_overlap, kolo_engine_gpu_streams; /* parameters */
extern int kolo_finisher_end_ms; /* the end of an engine waits so long for its devices; less in tests */
enum { KOLO_OVERLAP_AUTO, KOLO_OVERLAP_OFF, KOLO_OVERLAP_ON };

/* Finds the devices that the engine may meet (device.c). */
kolo_status_t kolo_engine_devices_init(struct kolo_tensor_engine *e, kolo_comm_t comm);
/* Finds out where a submission's memory is, fills in the entry's `use` and `ready`, and opens the device if it is
 * new. */
kolo_status_t kolo_engine_devices_place(struct kolo_tensor_engine *e, const kolo_tensor_memory_t *memory,
                                        kolo_entry_t *entry, const char *what);
/* Returns the engine's use of a device, opened at the first call. */
kolo_status_t kolo_engine_devices_open(struct kolo_tensor_engine *e, int number, kolo_use_t **use);
void kolo_engine_devices_fini(struct kolo_tensor_engine *e); /* after kolo_finisher_stop() */
/* Opens a device's queue, with its sides if it has streams (device_open.c); closes it with all that is beside it.
 */
kolo_status_t kolo_use_open(struct kolo_tensor_engine *e, int number, kolo_use_t **use);
void kolo_use_close(kolo_use_t *use);
void kolo_use_forget(kolo_use_t *use); /* the engine: it ends, the use is stuck */
/* Finds the n-th queue beside the first one of a device; opened at the first call. The loop's. */
kolo_status_t kolo_use_open_other(struct kolo_tensor_engine *e, kolo_use_t *first, int n, kolo_use_t **use);
/* Returns the k-th queue of a device, k below KOLO_USE_QUEUES: itself, its sides, and those for other sets with
 * theirs; NULL: it is not there. */
#define KOLO_USE_QUEUES (KOLO_GPU_STREAMS * (1 + KOLO_SIDES))
kolo_use_t *kolo_use_queue(kolo_use_t *first, int k);
/* Returns the name of what a use runs on. Functions of one use are called by one thread at a time. */
const char *kolo_use_name(const kolo_use_t *use);
kolo_status_t kolo_use_pin(kolo_use_t *use, void *host, size_t bytes);
void kolo_use_unpin(kolo_use_t *use, void *host); /* NULL: nothing is pinned, or by nobody */
kolo_status_t kolo_use_lift(kolo_use_t *use, const kolo_lift_t *list, size_t n);
kolo_status_t kolo_use_products(kolo_use_t *use, const kolo_blend_t *list, size_t n, kolo_type_t type,
                                double *room);
kolo_status_t kolo_use_blend(kolo_use_t *use, const kolo_blend_t *list, size_t n, kolo_type_t type);
kolo_status_t kolo_use_fetch(kolo_use_t *use, void *host, const void *memory, size_t bytes);
kolo_status_t kolo_use_store(kolo_use_t *use, void *memory, const void *host, size_t bytes);
kolo_status_t kolo_use_mark(kolo_use_t *use, uint64_t *mark);
/* Makes what is queued from here on wait for a mark of another queue of the same device. */
kolo_status_t kolo_use_after(kolo_use_t *use, kolo_use_t *other, uint64_t mark);
/* Makes what is queued from here on wait for what the entry's submission named; *waited: there is something. */
kolo_status_t kolo_use_follow(kolo_use_t *use, kolo_entry_t *entry, bool *waited);
/* Drops, before that, all notes of a batch in one stream of the program but the last, which comes behind them. */
void kolo_use_follow_last(kolo_use_t *use, kolo_response_t *const *batch, size_t n);
/* Makes the program's streams that a batch named wait for the mark, each once. */
kolo_status_t kolo_use_lead(kolo_use_t *use, uint64_t mark, kolo_response_t *const *batch, size_t n);
kolo_status_t kolo_use_stamp(kolo_use_t *use, uint64_t *stamp);
kolo_status_t kolo_use_time(kolo_use_t *use, uint64_t stamp, uint64_t *ns);
/* Waits, on the loop, until a mark is reached or the engine is to end. `what` is done, for the error's text. */
kolo_status_t kolo_use_wait(struct kolo_tensor_engine *e, kolo_use_t *use, uint64_t mark, const char *what);

/* device_cpu.c */
extern const kolo_mem_queue_ops_t kolo_cpu_ops;

/* Starts the finisher's thread, with the first tensor that needs it (finish.c). */
kolo_status_t kolo_finisher_start(struct kolo_tensor_engine *e);
/* Completes what is finishing or, if that takes too long, gives it up; looks at nothing afterwards. */
void kolo_finisher_stop(struct kolo_tensor_engine *e);
/* Has the flight come to its end? KOLO_OK, KOLO_IN_PROGRESS or the failure of its devices. */
kolo_status_t kolo_flight_status(struct kolo_tensor_engine *e, const kolo_flight_t *flight);
/* Completes its entries, with a failure unless status is KOLO_OK, and frees it. */
void kolo_flight_finish(struct kolo_tensor_engine *e, kolo_flight_t *flight, kolo_status_t status);

/* Puts into the timeline, on the loop, what the finisher has measured. */
void kolo_finisher_publish(struct kolo_tensor_engine *e);

/* What the end of a batch completes. */
typedef struct {
    kolo_entry_t **entries; /* the first `n` are complete */
    size_t n;
    kolo_flight_t *later; /* completes the others: to be handed over; NULL: there are no others */
} kolo_completed_t;

/* Returns so many bytes of host memory that nobody uses, valid until the next call of this (fusion.c; on the
 * loop). */
kolo_status_t kolo_fusion_room(struct kolo_tensor_engine *e, size_t bytes, void **memory);
/* Takes a buffer for the batch and begins to pack it, with `extra` bytes behind the tensors. ahead: something else
 * is going on meanwhile. */
kolo_status_t kolo_fusion_begin(kolo_set_t *s, kolo_response_t *const *batch, size_t n, size_t extra, bool ahead,
                                kolo_flight_t **flight);
/* Waits until the batch lies packed in host memory. */
kolo_status_t kolo_fusion_await(kolo_set_t *s, kolo_flight_t *flight, void **memory);
/* Tells whether some of the batch is packed while the caller does other work. Only then does it pay to begin
 * ahead. */
bool kolo_fusion_overlaps(kolo_set_t *s, kolo_response_t *const *batch, size_t n);
/* Unpacks a batch that has been reduced. more: other work goes on meanwhile. `done` has room for n entries. */
kolo_status_t kolo_fusion_end(kolo_set_t *s, kolo_flight_t *flight, kolo_response_t *const *batch, size_t n,
                              bool more, kolo_completed_t *done);
/* Queues the copies between the batch's tensors on this device and `packed`, in or out. Entries that were unpacked
 * are added to the flight's. */
kolo_status_t kolo_fusion_pack(kolo_set_t *s, kolo_use_t *use, kolo_flight_t *flight, kolo_response_t *const *batch,
                               size_t n, void *packed);
typedef struct {
    kolo_response_t *const *responses;
    size_t n;
    char *packed; /* where they lie */
} kolo_packed_t;
kolo_status_t kolo_fusion_unpack(kolo_set_t *s, kolo_use_t *use, kolo_flight_t *flight, const kolo_packed_t *batch,
                                 size_t *nentries);
/* Waits for what the CPU's thread still does, and completes it. */
kolo_status_t kolo_fusion_settle(struct kolo_tensor_engine *e);
/* Frees the memory that no stuck device may still read or write; leaves the rest. */
void kolo_fusion_fini(struct kolo_tensor_engine *e);
/* Takes a flight for n entries and `nlifts` copies, in or out. */
kolo_status_t kolo_flight_take(struct kolo_tensor_engine *e, kolo_tensors_t *lane, size_t n, size_t nlifts,
                               kolo_flight_t **flight);
/* Hands the flight with its entries to the finisher, or to the loop that settles: it ends when its marks are
 * reached. Returns how many entries it has. */
size_t kolo_flight_hand_over(struct kolo_tensor_engine *e, kolo_flight_t *flight);
void kolo_flight_free(kolo_flight_t *flight);
bool kolo_flight_is_free(const kolo_flight_t *flight);
kolo_status_t kolo_flight_await(struct kolo_tensor_engine *e, kolo_flight_t *flight); /* until it is */

/* Serves a single tensor of a device (stage.c): fetches its input, finds room for its output, takes the output
 * back. Hand over the flight of all three, entry->stage, afterwards. */
kolo_status_t kolo_stage_in(kolo_set_t *s, kolo_entry_t *entry, size_t bytes, const void **input);
kolo_status_t kolo_stage_room(kolo_set_t *s, kolo_entry_t *entry, size_t bytes, void **output);
kolo_status_t kolo_stage_out(kolo_entry_t *entry, void *output, size_t bytes);
void kolo_stage_drop(kolo_entry_t *entry); /* there is nothing to take back */

#endif
