/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor of GPU communicators whose kernels do not reach each other: several hosts, no peer access, no
 * kernels for a device. An operation is queued as two marks on the caller's stream: one that tells it has come to
 * it, one that waits until it is over. In between a thread of the communicator copies to pinned memory, has the
 * CPU's algorithms run there (exec.h, kolo_exec_host_t), and copies back; long operations go in pieces, so that
 * copies and network overlap.
 *
 * open.c: memory, streams, the thread's life; queue.c: from a call to the stream; worker.c: the thread;
 * collective.c and messages.c: one operation.
 */
#ifndef KOLO_EXEC_STAGED_STAGED_H
#define KOLO_EXEC_STAGED_STAGED_H

#include "base/wait.h"
#include "exec/exec.h"
#include "mem/cuda/cuda.h"

#include <pthread.h>

extern const kolo_param_table_t kolo_exec_staged_params; /* KOLO_GPU_STAGING_SIZE */

#define KOLO_STAGED_DEPTH 4u /* pieces under way */
/* The words that streams and host share, in the first page: which operation the streams have come to, which is
 * over, then one for each operation of a captured graph. */
#define KOLO_STAGED_WORDS_BYTES 16384u
enum { KOLO_STAGED_READY, KOLO_STAGED_DONE, KOLO_STAGED_CAPTURED };
#define KOLO_STAGED_WORDS (KOLO_STAGED_WORDS_BYTES / sizeof(uint32_t))

struct kolo_staged;

/* One collective, or messages that stand side by side. */
typedef struct kolo_staged_op {
    struct kolo_staged_op *next;
    struct kolo_staged *state;
    uint32_t number; /* in the order of the calls; cyclic */
    uint32_t word;   /* of a captured one, which lives until close; 0: not captured */
    struct kolo_staged_op *next_captured;
    size_t n;
    kolo_exec_call_t calls[];
} kolo_staged_op_t;

typedef struct {
    kolo_staged_op_t *head, **tail;
} kolo_staged_queue_t;

/* A piece of pinned memory, and the copies that were queued on it last. */
typedef struct {
    kolo_cu_event_t came, left; /* from the device, to the device */
    bool coming, leaving;
} kolo_staged_slot_t;

typedef struct kolo_staged {
    const kolo_cuda_api_t *api;
    const kolo_cuda_device_t *device;
    kolo_exec_env_t env;
    int rank, nranks;

    char *pinned; /* words, then slots; of messages: two slots for each peer and direction instead */
    size_t pinned_bytes;
    bool registered;
    uint32_t *words;
    kolo_cu_ptr_t words_device;
    char *room;
    size_t room_bytes, slot_bytes, message_bytes;

    /* the caller's side */
    kolo_cu_stream_t last; /* of the last launch */
    bool launched, asked;  /* asked: for the end of all that was launched */
    kolo_cu_event_t order, end;
    uint32_t words_used;
    kolo_staged_op_t *captured; /* all of them */

    /* between both */
    pthread_mutex_t lock;
    kolo_staged_queue_t queue, replays; /* replays: captured operations that a stream has come to */
    uint32_t number;                    /* of the last one queued */
    bool running;
    _Atomic uint32_t cancelled, stopping;
    kolo_gate_t gate;

    /* the thread's side */
    pthread_t thread;
    bool started;
    kolo_cu_stream_t down, up; /* from and to the device */
    kolo_staged_slot_t slots[KOLO_STAGED_DEPTH];
    kolo_staged_slot_t *lanes; /* [2][nranks][2]: messages to, messages from each peer */
    kolo_cu_event_t tail;      /* after the last copy to the device */
    bool tail_set;
    uint64_t turn; /* pieces so far */
    bool messages; /* the last operation was one of messages: the room is cut otherwise */
} kolo_staged_t;

/* worker.c */
void *kolo_staged_work(void *state);
/* Waits until a copy is over; ends by cancel. `set` is cleared. */
kolo_status_t kolo_staged_await(kolo_staged_t *s, kolo_cu_event_t event, bool *set);
/* Is it over? KOLO_IN_PROGRESS: not yet. */
kolo_status_t kolo_staged_look(kolo_staged_t *s, kolo_cu_event_t event, bool *set);
/* Copies on `stream` between pinned memory and the device; then the event is recorded. */
kolo_status_t kolo_staged_copy(kolo_staged_t *s, kolo_cu_stream_t stream, void *to, const void *from, size_t bytes);
kolo_status_t kolo_staged_mark(kolo_staged_t *s, kolo_cu_stream_t stream, kolo_cu_event_t event, bool *set);
/* All copies of earlier operations are over. */
kolo_status_t kolo_staged_settle(kolo_staged_t *s);

/* collective.c, messages.c: run one operation, but for the last copies, which are queued when they return. */
kolo_status_t kolo_staged_collective(kolo_staged_t *s, const kolo_exec_call_t *call);
kolo_status_t kolo_staged_messages(kolo_staged_t *s, const kolo_exec_call_t *calls, size_t n);

/* queue.c */
kolo_status_t kolo_staged_launch(void *state, const kolo_exec_call_t *calls, size_t n);
kolo_status_t kolo_staged_poll(void *state);
void kolo_staged_push(kolo_staged_queue_t *queue, kolo_staged_op_t *op);
kolo_staged_op_t *kolo_staged_pop(kolo_staged_queue_t *queue);

static inline uint32_t kolo_staged_word(const kolo_staged_t *s, uint32_t index)
{
    return __atomic_load_n(&s->words[index], __ATOMIC_ACQUIRE);
}
static inline void kolo_staged_set_word(kolo_staged_t *s, uint32_t index, uint32_t value)
{
    __atomic_store_n(&s->words[index], value, __ATOMIC_RELEASE);
}
static inline kolo_cu_ptr_t kolo_staged_word_device(const kolo_staged_t *s, uint32_t index)
{
    return s->words_device + index * sizeof(uint32_t);
}

#endif
