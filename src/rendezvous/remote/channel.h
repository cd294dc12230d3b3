/* SPDX-License-Identifier: Apache-2.0
 *
 * The connections between tasks: the adapter with its thread, channels, and on them requests (of the receiving
 * task) and answers (of the sending task). message.h has the messages.
 *
 * The receiving task opens a channel at its first receive, so two tasks that receive from each other have two
 * channels. Everything belongs to the adapter's thread; other threads queue commands. Users' callbacks run on
 * threads of the pool, never on the adapter's.
 *
 * Numbers of notices: 0xffffffff a message is there; 0xc0000000 + n: that many messages (modulo 2^24) were taken;
 * 0x80000000 + n: buffer n holds a value; else the index of the request whose value is complete.
 */
#ifndef KOLO_RENDEZVOUS_CHANNEL_H
#define KOLO_RENDEZVOUS_CHANNEL_H

#include "link/link.h"
#include "rendezvous/remote/message.h"

#define KOLO_CHANNEL_CREDITS 256          /* the most messages on their way, ... */
#define KOLO_CHANNEL_MAILBOX (512u << 10) /* ... and the bytes of the mailbox that holds them */
#define KOLO_NOTICE_MESSAGE  0xffffffffu
#define KOLO_NOTICE_ACK      0xc0000000u
#define KOLO_NOTICE_BUFFER   0x80000000u
#define KOLO_ACK_MASK        0xffffffu

typedef enum { KOLO_MODE_DIRECT, KOLO_MODE_BUFFERED } kolo_rendezvous_mode_t;

typedef struct kolo_adapter kolo_adapter_t;
typedef struct kolo_meeting kolo_meeting_t;
typedef struct kolo_channel kolo_channel_t;

/* A receive under way, at the task that receives. */
typedef struct kolo_fetch {
    bool used, cancelled, exposed;
    bool direct; /* the exposed memory is the receive's destination */
    uint16_t generation;
    uint32_t index;
    kolo_receive_t receive; /* holds a reference */
    kolo_shape_t shape;     /* the shape in the request, if memory is exposed */
    kolo_onesided_memory_t memory;
    kolo_onesided_window_t window;
    uint64_t patience_ns; /* direct and cancelled: when the peer must have stopped writing, else the channel ends */
    uint32_t next_free;
} kolo_fetch_t;

/* A request of another task, at the task that sends. */
typedef enum { KOLO_ANSWER_WAITS, KOLO_ANSWER_TOLD, KOLO_ANSWER_WRITES, KOLO_ANSWER_QUEUED } kolo_answer_state_t;
typedef struct kolo_answer {
    /* In its bucket; in the adapter's `ready`; in a buffer's queue. */
    struct kolo_answer *next, *next_ready, *next_queued;
    kolo_adapter_t *adapter;
    kolo_channel_t *channel; /* NULL: it has ended */
    kolo_answer_state_t state;
    kolo_message_t request;
    kolo_rendezvous_t rendezvous;
    kolo_receive_t receive;
    kolo_status_t status; /* set when value_ready() is called */
    char *why;
    kolo_value_t value;
    bool has_value;
} kolo_answer_t;

/* Buffered mode: one per key at each end. */
typedef struct kolo_tensor_buffer {
    struct kolo_tensor_buffer *next;
    uint32_t number;
    kolo_onesided_memory_t memory; /* the receiver's buffer; at the sender: the copy that is written into it */
    uint64_t size;
    kolo_onesided_window_t window;
    bool local_busy, remote_busy, asked;
    kolo_answer_t *first, **last;
    char name[KOLO_TENSOR_KEY_MAX + 1];
} kolo_tensor_buffer_t;

typedef struct kolo_known_shape {
    struct kolo_known_shape *next;
    kolo_shape_t shape;
    char name[];
} kolo_known_shape_t;

typedef struct kolo_letter { /* a message that waits for room in the peer's mailbox */
    struct kolo_letter *next;
    size_t length;
    uint8_t bytes[];
} kolo_letter_t;

#define KOLO_CHANNEL_BUCKETS 256
struct kolo_channel {
    kolo_channel_t *next;
    kolo_adapter_t *adapter;
    int peer;     /* number of the task */
    uint64_t tag; /* of the claim of its first connection; its lanes have the same */
    bool caller, opened, greeted;
    uint32_t place, quiet; /* place in adapter->channels; rounds without an event */
    uint64_t deadline_ns;  /* of the greeting */
    kolo_onesided_t *end;
    uint64_t sent, taken, received,
        told;        /* counts of messages: sent; taken by the peer; received; acknowledged to the peer */
    uint32_t credit; /* how many messages may be unacknowledged */
    /* A message is placed where the one before it ends, rounded up to 64 bytes, or at the start of the mailbox if
     * it does not fit there. Both ends compute the places, which count on over all rounds. */
    uint64_t write_at, read_at, told_at;
    uint64_t ends[KOLO_CHANNEL_CREDITS]; /* where my messages end, indexed by message number */
    uint8_t *outbox;                     /* a copy of the peer's mailbox, made at first need */
    kolo_letter_t *letters, **last_letter;
    uint64_t nletters;
    kolo_fetch_t *requests; /* a table; index = generation << 15 | place */
    uint32_t nrequests, free_request, used_requests;
    uint64_t patience_ns; /* the earliest of the requests'; 0: none */
    kolo_answer_t *answers[KOLO_CHANNEL_BUCKETS];
    kolo_tensor_buffer_t *buffers[KOLO_CHANNEL_BUCKETS];
    kolo_known_shape_t *shapes[KOLO_CHANNEL_BUCKETS];
    uint32_t nshapes;
    struct kolo_lane_calls *lanes; /* of the task that opened the channel; NULL: no lanes yet */
};

typedef struct kolo_command kolo_command_t;
typedef struct { /* another task */
    kolo_adapter_t *adapter;
    kolo_dial_t *dial;
    kolo_command_t *call; /* the command that will report how dialling ended */
    bool dialling;
    kolo_address_t address;                /* where it was dialled last, ... */
    uint64_t tag;                          /* ... with that tag */
    kolo_channel_t *channel;               /* the channel that this task opened to it */
    kolo_receive_t pending, *last_pending; /* by next_deferred, each with a reference */
} kolo_peer_task_t;

typedef struct {
    char name[KOLO_TASK_NAME_MAX + 1];
    kolo_address_t address;
    char host[128]; /* as it was given */
} kolo_cluster_task_t;
/* Returns the index of a task, -1 if it is unknown. by_name: indices in the order of names (cluster.c). */
int kolo_task_find(const kolo_cluster_task_t *tasks, const int *by_name, int ntasks, const char *name);

typedef struct kolo_call_failure {
    uint64_t count;
    kolo_status_t status;
    char why[KOLO_WHY_BYTES];
} kolo_call_failure_t;

struct kolo_adapter {
    kolo_rendezvous_manager_t manager;
    const kolo_cluster_task_t *tasks;
    const int *by_name;
    int ntasks, me;
    uint64_t incarnation;
    unsigned kinds;
    kolo_rendezvous_mode_t mode;
    int connect_ms;
    kolo_key_t key;
    kolo_progress_t *progress;
    kolo_listener_t *listener;
    kolo_onesided_domain_t *domain;
    struct kolo_callback_pool *pool;
    pthread_t thread;
    _Atomic bool stop;
    _Atomic uint32_t served; /* answers whose value may still come, on whatever thread brings it */
    bool running;
    pthread_mutex_t lock; /* of commands, ready, asked, failures */
    kolo_command_t *commands, **last_command;
    bool closed; /* no more commands are accepted */
    kolo_answer_t *ready, **last_ready;
    /* New receives, linked by next_deferred, each with a reference; under the lock. */
    kolo_receive_t asked, *last_asked;
    uint64_t nasked, nbegun; /* counts so far; nasked under the lock, nbegun by the thread */
    kolo_answer_t *spare;    /* the thread's */
    uint32_t nspare;
    kolo_receive_t settled,
        *last_settled; /* the thread's: by next_deferred, each with a reference; gates to open */
    kolo_peer_task_t *peers;
    _Atomic uint64_t *incarnations;     /* of tasks with an open channel; else 0 */
    kolo_gate_t changed;                /* opened when an incarnation changes or a dial fails */
    struct kolo_call_failure *failures; /* by task: its last failed dial; under the lock */
    kolo_channel_t *accepted;
    /* All channels: first the `nhot` ones that each round looks at, then the cold ones, of which each round looks
     * at a few. Before and after a sleep all are looked at. */
    kolo_channel_t **channels;
    uint32_t nchannels, nhot, next_cold, channel_room;
    kolo_meeting_t *meeting; /* NULL: the cluster lists the tasks' addresses */
    int watch_fd;            /* of manager->watch */
    uint64_t looked_ns;
};

/* ---- adapter.c ---- */

extern int64_t kolo_rendezvous_param_credits, kolo_rendezvous_param_chunk, kolo_rendezvous_param_threads,
    kolo_rendezvous_param_inline;
extern const kolo_remote_ops_t kolo_adapter_remote;
/* Prepares an adapter (init; the caller has set the configuration's fields and zeroed the others); listens and
 * starts the thread (start). */
kolo_status_t kolo_adapter_init(kolo_adapter_t *adapter);
kolo_status_t kolo_adapter_start(kolo_adapter_t *adapter);
/* Ends the thread, all channels, requests and answers (stop; safe after a failed start); frees (fini). */
void kolo_adapter_stop(kolo_adapter_t *adapter);
void kolo_adapter_fini(kolo_adapter_t *adapter);
/* Dials a task, unless that is under way. Any thread. */
kolo_status_t kolo_adapter_call(kolo_adapter_t *adapter, int task);
/* Sends an answer that has its value, or has failed. Any thread. */
void kolo_adapter_answer_ready(kolo_answer_t *answer);
/* Ends a receive and drops the reference to it. A sleeper is woken by kolo_adapter_wake_settled(), once for many
 * receives that end together. */
void kolo_adapter_deliver(kolo_adapter_t *adapter, kolo_receive_t receive, kolo_status_t status, const char *why,
                          const kolo_value_t *value);
void kolo_adapter_wake_settled(kolo_adapter_t *adapter);
/* Forgets a receive to whose destination no task writes any more; drops the reference to it. */
void kolo_adapter_part(kolo_adapter_t *adapter, kolo_receive_t receive);
/* Adds or removes a channel; makes it hot (looked at in each round) or cold. */
kolo_status_t kolo_adapter_add_channel(kolo_adapter_t *adapter, kolo_channel_t *channel);
void kolo_adapter_remove_channel(kolo_adapter_t *adapter, kolo_channel_t *channel);
void kolo_adapter_heat(kolo_channel_t *channel);
void kolo_adapter_cool(kolo_channel_t *channel);

/* ---- command.c: any thread ---- */

static inline void kolo_receives_append(kolo_receive_t **last, kolo_receive_t receive) /* by next_deferred */
{
    receive->next_deferred = NULL;
    **last = receive;
    *last = &receive->next_deferred;
}
typedef enum { KOLO_DO_CANCEL, KOLO_DO_CALL, KOLO_DO_CALLED, KOLO_DO_LET_IN, KOLO_DO_LANE } kolo_do_t;
struct kolo_command {
    kolo_command_t *next;
    kolo_do_t what;
    kolo_receive_t receive; /* with a reference */
    int task;
    uint64_t behind; /* how many receives were queued before this command */
    bool caller;     /* LANE: of a channel that this task opened */
    uint64_t tag;    /* of the claim; odd for a lane */
    kolo_socket_t socket;
    kolo_status_t status;
    char why[KOLO_WHY_BYTES];
};
kolo_command_t *kolo_command_new(kolo_do_t what, int task);
bool kolo_command_give(kolo_adapter_t *adapter,
                       kolo_command_t *c); /* false: the adapter is closed; the caller keeps c */
void kolo_command_drop(kolo_command_t *c);
/* Completes a command whose call has ended, with how it has ended and the socket. */
void kolo_command_called(kolo_adapter_t *adapter, kolo_command_t *c, kolo_status_t status, kolo_socket_t socket,
                         const char *text);

/* Dials a task, on the thread, and handles a dial that fails. */
void kolo_adapter_dial(kolo_adapter_t *adapter, int task);
void kolo_adapter_call_failed(kolo_adapter_t *adapter, int task, kolo_status_t status, const char *why);

/* ---- meeting.c: how tasks without listed addresses find each other; no-ops where addresses are listed ---- */

kolo_status_t kolo_meeting_create(kolo_adapter_t *adapter);
void kolo_meeting_destroy(kolo_adapter_t *adapter);
/* Chooses the address at which this task will listen. Called when it listens. */
kolo_status_t kolo_meeting_choose_door(const kolo_adapter_t *adapter, kolo_address_t *address);
void kolo_meeting_opened(kolo_adapter_t *adapter, const kolo_address_t *address);
/* Finds the address of a task, and the deadline of this dial. Returns false while the address is being asked for;
 * the task is dialled when it is known. */
bool kolo_meeting_find(kolo_adapter_t *adapter, int task, kolo_address_t *address, uint64_t *deadline_ns);
/* Reports a dial that has failed. Returns true if a newer address is asked for. */
bool kolo_meeting_shut(kolo_adapter_t *adapter, int task, kolo_status_t status);
void kolo_meeting_reached(kolo_adapter_t *adapter, int task);
void kolo_meeting_poll(kolo_adapter_t *adapter); /* ends dials whose address was asked for too long ago */
kolo_status_t kolo_meeting_heard(kolo_channel_t *channel, const kolo_message_t *message); /* DOOR */
kolo_status_t kolo_meeting_asked(kolo_channel_t *channel, const kolo_message_t *message); /* WHERE */
kolo_status_t kolo_meeting_greeted(kolo_channel_t *channel);
void kolo_meeting_left(kolo_adapter_t *adapter,
                       const kolo_channel_t *channel); /* the channel is about to be closed */
/* Reports that the channel to the first task has ended, or that dialling it has failed. */
void kolo_meeting_keeper_lost(kolo_adapter_t *adapter, kolo_status_t status, const char *why);

/* ---- channel.c ---- */

kolo_status_t kolo_channel_open(kolo_adapter_t *adapter, int peer, bool caller, kolo_socket_t socket,
                                kolo_channel_t **channel);
/* Queues a write of this channel. */
kolo_status_t kolo_channel_write(kolo_channel_t *channel, const kolo_onesided_write_t *write);
/* Returns the bytes that the channel holds, without pages that were never touched. */
size_t kolo_channel_memory(const kolo_channel_t *channel);
/* Ends its requests and answers with this status and frees it. */
void kolo_channel_close(kolo_channel_t *channel, kolo_status_t status, const char *why);
/* Moves what can be moved; *busy becomes true if anything happened. */
kolo_status_t kolo_channel_step(kolo_channel_t *channel, bool *busy);
kolo_status_t kolo_channel_send(kolo_channel_t *channel, kolo_message_t *message);
/* Sends a message followed by n bytes (at most KOLO_MESSAGE_VALUE_MAX; such a message has no name). */
kolo_status_t kolo_channel_send_with(kolo_channel_t *channel, kolo_message_t *message, const void *bytes, size_t n);
kolo_status_t kolo_channel_bad_message(const kolo_channel_t *channel, const char *what, const char *wrong);

/* ---- widen.c: lanes of a channel, for large values over TCP ---- */

/* Values of `bytes` bytes are expected: dials lanes if they would help and were not dialled yet. */
void kolo_channel_widen(kolo_channel_t *channel, uint64_t bytes);
void kolo_channel_narrow(kolo_channel_t *channel); /* ends dials of lanes that are under way */
kolo_status_t kolo_channel_add_lane(kolo_channel_t *channel, kolo_socket_t socket); /* takes the socket */

/* ---- fetch.c: the task that receives ---- */

/* Takes the reference to the receive. */
kolo_status_t kolo_fetch_begin(kolo_channel_t *channel, kolo_receive_t receive);
/* Cancels a request. False: the peer may be writing to its destination and must answer first. */
bool kolo_fetch_cancel(kolo_receive_t receive);
/* Moves the requests of a channel. Returns KOLO_ERR_TIMEOUT if the peer does not answer a cancel: the caller then
 * ends the channel. */
kolo_status_t kolo_fetches_poll(kolo_channel_t *channel);
/* Takes a message that describes a value. bytes: the value behind a final message, in memory that the peer can
 * still change. */
kolo_status_t kolo_fetch_meta(kolo_channel_t *channel, const kolo_message_t *message, const uint8_t *bytes);
kolo_status_t kolo_fetch_error(kolo_channel_t *channel, const kolo_message_t *message);
/* Takes a value of strings that has come; value->data: where the peer may still write. */
kolo_status_t kolo_fetch_strings(kolo_channel_t *channel, kolo_fetch_t *request, kolo_value_t *value);
kolo_status_t kolo_fetch_complete(kolo_channel_t *channel, uint32_t index);
kolo_fetch_t *kolo_fetch_find(kolo_channel_t *channel, uint32_t index);
/* Returns the destination of a value from a message or a buffer. NULL: allocate. */
void *kolo_fetch_into(const kolo_fetch_t *request);
/* Ends a request with its value or a status. memory: of the value, taken over; NULL: the value is where
 * kolo_fetch_into() says, or there is no value. */
void kolo_fetch_end(kolo_channel_t *channel, kolo_fetch_t *request, kolo_status_t status, const char *why,
                    const kolo_shape_t *shape, kolo_onesided_memory_t *memory);
/* Asks the sender about receives that have waited long, a few at a time; handles its reply. */
kolo_status_t kolo_fetches_ask_progress(kolo_channel_t *channel, uint64_t now_ns);
kolo_status_t kolo_fetch_sent(kolo_channel_t *channel, const kolo_message_t *message);
void kolo_fetches_close(kolo_channel_t *channel, kolo_status_t status, const char *why);

/* ---- answer.c: the task that sent ---- */

kolo_status_t kolo_answer_request(kolo_channel_t *channel, const kolo_message_t *message,
                                  const kolo_tensor_key_t *key);
kolo_status_t kolo_answer_step(kolo_channel_t *channel, const kolo_message_t *message,
                               const kolo_tensor_key_t *key);
kolo_status_t kolo_answer_memory(kolo_channel_t *channel, const kolo_message_t *message);
kolo_status_t kolo_answer_cancel(kolo_channel_t *channel, const kolo_message_t *message);
kolo_status_t kolo_answer_ready(kolo_answer_t *answer);
kolo_status_t kolo_answer_written(kolo_channel_t *channel, kolo_answer_t *answer);
void kolo_answer_free(kolo_answer_t *answer); /* releases its value, removes it from its channel */
void kolo_answer_close_all(kolo_channel_t *channel);

/* ---- buffer.c: buffered mode ---- */

kolo_status_t kolo_buffer_queue(kolo_channel_t *channel, kolo_answer_t *answer);
kolo_status_t kolo_buffer_written(kolo_channel_t *channel, kolo_tensor_buffer_t *buffer);
kolo_status_t kolo_buffer_wanted(kolo_channel_t *channel, const kolo_message_t *message);
kolo_status_t kolo_buffer_made(kolo_channel_t *channel, const kolo_message_t *message);
kolo_status_t kolo_buffer_idle(kolo_channel_t *channel, const kolo_message_t *message);
kolo_status_t kolo_buffer_filled(kolo_channel_t *channel, uint32_t number, uint64_t bytes);
void kolo_buffer_close_all(kolo_channel_t *channel);

/* ---- pool.c: the threads on which callbacks of users run ---- */

typedef struct kolo_callback_pool kolo_callback_pool_t;
kolo_status_t kolo_callback_pool_create(int threads, kolo_callback_pool_t **pool);
/* Ends a receive that the caller has claimed; takes the reference to it. */
void kolo_callback_pool_add(kolo_callback_pool_t *pool, kolo_receive_t receive, kolo_status_t status,
                            const char *why, const kolo_value_t *value);
void kolo_callback_pool_destroy(kolo_callback_pool_t *pool); /* once all have run; NULL is fine */

/* Counters of the process, for tests and benchmarks. looks: at channels; round_looks: at channels in `rounds`, the
 * rounds between sleeps. */
typedef struct {
    _Atomic uint64_t requests, metas, carried, rerequests, copies, copied_bytes, buffers_grown, queued, acks,
        messages, looks, rounds, round_looks;
} kolo_rendezvous_counters_t;
extern kolo_rendezvous_counters_t kolo_rendezvous_counters;
#define KOLO_RDV_COUNT(what, n) atomic_fetch_add_explicit(&kolo_rendezvous_counters.what, (n), memory_order_relaxed)

/* Reads the key of the cluster, from the configuration or KOLO_COMM_SECRET_FILE (server.c). */
kolo_status_t kolo_adapter_read_secret(const kolo_server_config_t *config, kolo_key_t *key);

#endif
