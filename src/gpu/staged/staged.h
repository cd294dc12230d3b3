/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor of GPU communicators whose kernels do not reach each other: several hosts, no peer access, no
 * kernels for a device. An operation is queued whole on the caller's stream: copies to pinned memory, a mark after
 * them, a wait, copies back. In between a thread of the communicator runs the CPU's algorithms there (exec.h,
 * kolo_exec_host_t). Long collectives go in pieces, so that copies and network overlap.
 *
 * All copies are on the caller's stream, before the waits that depend on them: a driver maps many streams to few
 * hardware queues, and a wait may block work of another stream behind it.
 *
 * open.c: memory, the thread's life; queue.c: onto the stream; worker.c: the thread; collective.c and messages.c:
 * what lies where, and what is run there.
 */
#ifndef KOLO_GPU_STAGED_STAGED_H
#define KOLO_GPU_STAGED_STAGED_H

#include "base/wait.h"
#include "gpu/gpu.h"
#include "mem/cuda/order.h"

#include <pthread.h>

extern const kolo_param_table_t kolo_exec_staged_params; /* KOLO_GPU_STAGING_SIZE */

#define KOLO_STAGED_DEPTH 4u /* pieces under way */
/* The words that streams and host share, in pairs: up to which piece streams have come, up to which the host is
 * through. The first pair is of all operations; then one for each call of a captured graph, whose operations begin
 * it anew. */
#define KOLO_STAGED_WORDS_BYTES 16384u
#define KOLO_STAGED_PAIRS       (KOLO_STAGED_WORDS_BYTES / 2 / sizeof(uint32_t))

/* Memory that is pinned until close. */
typedef struct kolo_staged_pinned {
    struct kolo_staged_pinned *next;
    char *at;
    size_t bytes;
} kolo_staged_pinned_t;

struct kolo_staged;

/* One collective, or messages that stand side by side. */
typedef struct kolo_staged_op {
    struct kolo_staged_op *next;
    struct kolo_staged *state;
    uint32_t pair; /* its words; not 0: captured, and lives until close */
    uint32_t base; /* number before that of its first piece; cyclic */
    uint32_t pieces;
    uint64_t each; /* collectives: elements of a part in a piece */
    struct kolo_staged_op *next_captured;
    char *room;
    size_t n;
    kolo_exec_call_t calls[]; /* addresses: of the device */
} kolo_staged_op_t;

typedef struct kolo_staged_host_copy kolo_staged_host_copy_t;

typedef struct {
    kolo_staged_op_t *head, **tail;
} kolo_staged_queue_t;

typedef struct kolo_staged {
    const kolo_cuda_api_t *api;
    const kolo_cuda_device_t *device;
    kolo_exec_env_t env;
    int rank, nranks;
    kolo_staged_pinned_t *pinned;
    uint32_t *words;
    kolo_cu_ptr_t words_device;
    char *room; /* of collectives */
    size_t room_bytes, slot_bytes;
    char *message_room; /* grows with the messages; the same at first */
    size_t message_bytes;

    /* the caller's side */
    kolo_cuda_order_t order;
    uint32_t pairs_used;
    kolo_staged_op_t *captured;           /* all of them */
    kolo_staged_host_copy_t *host_copies; /* captured */

    /* between both */
    pthread_mutex_t lock;
    kolo_staged_queue_t queue, replays; /* replays: captured operations that a stream has come to */
    uint32_t number;                    /* of the last piece queued */
    bool running;
    bool ended; /* the thread has: replays go on with what is in their buffers */
    _Atomic uint32_t cancelled, stopping;
    _Atomic bool dropped; /* operations ended without their results */
    kolo_gate_t gate;
    size_t *counts; /* by rank; of the thread */
    pthread_t thread;
    bool started;
} kolo_staged_t;

/* Pins memory of at least `bytes` (open.c). */
kolo_status_t kolo_staged_pin(kolo_staged_t *s, size_t bytes, char **at);
/* Runs the worker's thread (worker.c). */
void *kolo_staged_work(void *state);

/* Finds the room and the number of pieces (_plan), queues the copies of a piece from or to the device (_copy), runs
 * a piece on the host (_run). collective.c, messages.c. */
kolo_status_t kolo_staged_collective_plan(kolo_staged_t *s, kolo_staged_op_t *op);
kolo_status_t kolo_staged_collective_copy(kolo_staged_t *s, const kolo_staged_op_t *op, uint32_t piece,
                                          bool from_device, kolo_cu_stream_t stream);
kolo_status_t kolo_staged_collective_run(kolo_staged_t *s, const kolo_staged_op_t *op, uint32_t piece);
kolo_status_t kolo_staged_messages_plan(kolo_staged_t *s, kolo_staged_op_t *op);
kolo_status_t kolo_staged_messages_copy(kolo_staged_t *s, const kolo_staged_op_t *op, bool from_device,
                                        kolo_cu_stream_t stream);
kolo_status_t kolo_staged_messages_run(kolo_staged_t *s, const kolo_staged_op_t *op);

/* Queues a copy in the stream's order; never waits for it (copies.c). */
kolo_status_t kolo_staged_copy(kolo_staged_t *s, kolo_cu_stream_t stream, void *to, const void *from, size_t bytes);
void kolo_staged_free_copies(kolo_staged_t *s);

/* Checks calls as launch does, without queuing them (queue.c). */
kolo_status_t kolo_staged_check(void *state, const kolo_exec_call_t *calls, size_t n);
kolo_status_t kolo_staged_launch(void *state, const kolo_exec_call_t *calls, size_t n);
kolo_status_t kolo_staged_follow(void *state, void *stream);
kolo_status_t kolo_staged_poll(void *state);
/* Lets replays go on, now and later: the communicator has ended. */
void kolo_staged_end_replays(kolo_staged_t *s);
void kolo_staged_push(kolo_staged_queue_t *queue, kolo_staged_op_t *op);
kolo_staged_op_t *kolo_staged_pop(kolo_staged_queue_t *queue);

/* Makes a call of the driver a status; a failure says what was to be done. */
static inline kolo_status_t kolo_staged_done(const kolo_staged_t *s, kolo_cu_result_t r, const char *what)
{
    return r ? kolo_cuda_fail(r, s->device->ordinal, what) : KOLO_OK;
}
static inline bool kolo_staged_is_coll(const kolo_staged_op_t *op)
{
    return op->calls[0].kind == KOLO_EXEC_COLL;
}
/* Has a stream brought the pieces up to this one? */
static inline bool kolo_staged_came(const kolo_staged_t *s, uint32_t pair, uint32_t number)
{
    return (int32_t)(__atomic_load_n(&s->words[2 * pair], __ATOMIC_ACQUIRE) - number) >= 0;
}
/* Lets streams go on that wait for pieces up to this one. */
static inline void kolo_staged_let_go(kolo_staged_t *s, uint32_t pair, uint32_t number)
{
    __atomic_store_n(&s->words[2 * pair + 1], number, __ATOMIC_RELEASE);
}

#endif
