/* SPDX-License-Identifier: Apache-2.0
 *
 * Kolo's rendezvous: a tensor is sent under a key by one task and received under the same key by another, in
 * whichever order the two come.
 *
 * A program has tasks (`/job:ps/task:0`), each with devices (`/job:ps/task:0/device:cpu:0`). What it does is
 * counted in steps, and each step has a rendezvous of its own, in which the keys of that step meet. A send is
 * passive: the value stays with its task until somebody receives it. Each value is received once; values of one key
 * come in the order of their sends.
 *
 *     kolo_rendezvous_manager_create(&manager);
 *     kolo_rendezvous_manager_initialize(manager, "/job:ps/task:0", incarnation);
 *     kolo_rendezvous_open(manager, step, &rendezvous);
 *     kolo_rendezvous_send(rendezvous, key, &value, NULL);              on the task of the key's source
 *     kolo_rendezvous_receive(rendezvous, key, NULL, 1000, &value);     on the task of its destination
 *     kolo_rendezvous_close(rendezvous);
 *     kolo_rendezvous_manager_cleanup(manager, step);
 *
 * A receiver may also wait by a handle or be called back. A step that goes wrong is aborted, with a status that all
 * later and all waiting calls of that step get.
 *
 * Threads: every function may be called from any thread at any time, also from callbacks, unless it says otherwise;
 * who ends the life of a handle sees to it that no other call uses it. What may wait is refused with
 * KOLO_ERR_INVALID_USAGE on a thread of the library, and so is everything that concerns a server in a child of
 * fork(): it has none of the server's threads.
 * Errors: as in kolo.h. A function that returns anything but KOLO_OK has done nothing; its sentence is
 * kolo_get_last_error(NULL). Output arguments are set on success only.
 */
#ifndef KOLO_RENDEZVOUS_H
#define KOLO_RENDEZVOUS_H

#include <kolo/kolo.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/* ---- keys -------------------------------------------------------------------------------------------------- */

#define KOLO_TENSOR_KEY_MAX  511 /* bytes of a key */
#define KOLO_DEVICE_NAME_MAX 127 /* bytes of the name of a device */
#define KOLO_EDGE_NAME_MAX   207 /* bytes of the name of an edge */

/* A key taken apart. As text: `src_device;src_incarnation;dst_device;edge_name;frame:iteration`, the incarnation as
 * 16 hexadecimal digits, the last two as decimal numbers. A device is
 * `/job:NAME[/replica:N]/task:N/device:TYPE:N`. */
typedef struct kolo_tensor_key {
    char src_device[KOLO_DEVICE_NAME_MAX + 1];
    uint64_t src_incarnation; /* of the source's task: another one each time that it starts */
    char dst_device[KOLO_DEVICE_NAME_MAX + 1];
    char edge_name[KOLO_EDGE_NAME_MAX + 1]; /* without ';' and control characters */
    uint64_t frame, iteration;              /* of a loop; 0 and 0 outside of one */
} kolo_tensor_key_t;

/* Writes a key as text into a buffer of `bytes` (KOLO_TENSOR_KEY_MAX + 1 are enough for any). A part that no key
 * can have is KOLO_ERR_INVALID_ARGUMENT with its name. */
kolo_status_t kolo_tensor_key_make(const kolo_tensor_key_t *key, char *text, size_t bytes);

/* Takes a key apart. There is one way to write each key; anything else is KOLO_ERR_INVALID_ARGUMENT with what is
 * wrong and where. */
kolo_status_t kolo_tensor_key_parse(const char *text, kolo_tensor_key_t *key);

/* ---- values ------------------------------------------------------------------------------------------------ */

/* Types of elements: those of kolo_type_t with their numbers, and these. */
typedef enum kolo_element {
    KOLO_ELEMENT_BOOL = 32, /* one byte, 0 or 1 */
    KOLO_ELEMENT_INT16 = 33,
    KOLO_ELEMENT_UINT16 = 34,
    KOLO_ELEMENT_COMPLEX64 = 35,  /* two float32 */
    KOLO_ELEMENT_COMPLEX128 = 36, /* two float64 */
    /* Strings of any length. n of them are n numbers of 64 bits, where each string ends, counted from the first
     * byte behind the numbers; then the bytes of all strings, one behind the other. */
    KOLO_ELEMENT_STRING = 37
} kolo_element_t;

/* Size of one element in bytes, 8 for a string (its number); 0 for a type that there is not. */
size_t kolo_element_size(int element);

#define KOLO_VALUE_DIMS_MAX 16

/* A tensor with the memory that it lies in. Values are handed over: who sends one gives its memory away, who
 * receives one owns it and gives it back by kolo_value_release(). Between tasks of one process nothing is copied:
 * the receiver then gets the sender's memory. */
typedef struct kolo_value {
    int element; /* a kolo_type_t or kolo_element_t */
    int ndims;   /* 0: a single element */
    int64_t dims[KOLO_VALUE_DIMS_MAX];
    void *data;
    size_t bytes; /* of data: the number of elements times their size, but for strings */
    int dead;     /* 1: the branch that should have made it was not taken; there need be no data (bytes 0) */
    void (*release)(void *arg); /* called once when nobody reads the data any more, on any thread; NULL: nothing */
    void *arg;
} kolo_value_t;

/* Gives the memory of a received value back. A value without `release`, and one that was released, is fine. */
kolo_status_t kolo_value_release(kolo_value_t *value);

/* Kinds of memory that values lie in. */
typedef enum kolo_memory {
    KOLO_MEMORY_HOST = 0,
    KOLO_MEMORY_DEVICE = 1 /* of a GPU, as cudaMalloc() gives it; what made the value there is complete */
} kolo_memory_t;

/* What a sender or receiver says beside the key; both reach the receiver's callback. NULL means zeros. Of
 * another process, `context` is NULL.
 *
 * A value comes in the memory that its receiver names: what lies on a device and is wanted on the host, goes to
 * another task, or to another device, is copied through host memory. A receiver that wants it on a device names a
 * destination there, or gets the sender's memory, if both are one task. Strings lie on the host only.
 *
 * A receiver may name its destination: memory of its own (`into`, `into_bytes`), where the value shall lie. It
 * must stay until the receive has ended, and is the caller's alone from then on, however it ended. The value then
 * has its data there and nothing to release. Over TCP, RDMA, and shared memory whose ends may copy from one process
 * to the other, it is written there directly; else it is copied there once. A value that is longer than into_bytes
 * ends the receive with KOLO_ERR_INVALID_ARGUMENT and stays for the next receive. To give such a receive up (a
 * time-out, a discard, an abort) takes up to a second where the sender is writing at that moment and does not
 * answer: its channel is closed then. */
typedef struct kolo_transfer_args {
    int memory;          /* a kolo_memory_t: where the value lies, or shall lie */
    uint32_t attributes; /* of the allocator that it comes from, in the program's own meaning */
    void *context;       /* anything; not touched */
    void *into;          /* of a receiver; NULL: Kolo makes memory for the value */
    size_t into_bytes;   /* more than 0, if into is not NULL */
} kolo_transfer_args_t;

/* ---- manager: the rendezvous of all steps ------------------------------------------------------------------ */

typedef struct kolo_rendezvous_manager *kolo_rendezvous_manager_t;
typedef struct kolo_rendezvous *kolo_rendezvous_t;

/* Makes a manager, with no steps, which does not know yet which task it serves. Until it does, receives are kept
 * and sends are refused. */
kolo_status_t kolo_rendezvous_manager_create(kolo_rendezvous_manager_t *manager);
/* Tells the manager its task, and the number that distinguishes this start of the task from others (not 0).
 * Receives that have come before begin now. Once; the same again does nothing, another name or number is
 * KOLO_ERR_INVALID_USAGE. */
kolo_status_t kolo_rendezvous_manager_initialize(kolo_rendezvous_manager_t manager, const char *task,
                                                 uint64_t incarnation);
/* Forgets a step: what waits in it ends with KOLO_ERR_ABORTED, what was sent and not received is released. The same
 * number may be opened anew. A step that there is not is fine. */
kolo_status_t kolo_rendezvous_manager_cleanup(kolo_rendezvous_manager_t manager, uint64_t step);
/* The same for all steps. */
kolo_status_t kolo_rendezvous_manager_cleanup_all(kolo_rendezvous_manager_t manager);
/* Tells how many steps there are. */
kolo_status_t kolo_rendezvous_manager_count(kolo_rendezvous_manager_t manager, size_t *steps);
/* Cleans all up and frees the manager, once the last rendezvous that is open has been closed. NULL is fine; that of
 * a server is KOLO_ERR_INVALID_USAGE. */
kolo_status_t kolo_rendezvous_manager_destroy(kolo_rendezvous_manager_t manager);

/* ---- rendezvous: one step ---------------------------------------------------------------------------------- */

/* Finds the rendezvous of a step, or makes it. It stays usable until kolo_rendezvous_close(), once for each open;
 * a cleanup meanwhile is safe: calls then return KOLO_ERR_ABORTED. */
kolo_status_t kolo_rendezvous_open(kolo_rendezvous_manager_t manager, uint64_t step, kolo_rendezvous_t *rendezvous);
kolo_status_t kolo_rendezvous_close(kolo_rendezvous_t rendezvous); /* NULL is fine */

/* Leaves a value under a key, whose source must be a device of this task. Never waits. If somebody waits for it,
 * his callback runs in this call. On success the value's memory is given away; on failure it stays the caller's. */
kolo_status_t kolo_rendezvous_send(kolo_rendezvous_t rendezvous, const char *key, const kolo_value_t *value,
                                   const kolo_transfer_args_t *args);

/* Receives the next value of a key, whose destination must be a device of this task; waits at most timeout_ms (0:
 * for ever), then KOLO_ERR_TIMEOUT, and the value stays for others. Not from a callback. */
kolo_status_t kolo_rendezvous_receive(kolo_rendezvous_t rendezvous, const char *key,
                                      const kolo_transfer_args_t *args, int timeout_ms, kolo_value_t *value);

/* Called once for each receive that was begun with it: KOLO_OK and the value, which is the callback's from then on;
 * or why it has no value (NULL). On the thread that sent the value, that aborted, or that receives, or on one
 * of the library's own; so it must not wait for long. */
typedef void (*kolo_receive_fn_t)(void *arg, kolo_status_t status, const char *why,
                                  const kolo_transfer_args_t *sender, const kolo_transfer_args_t *receiver,
                                  kolo_value_t *value);
/* Begins to receive the next value of a key; fn is called when it ends, maybe before this call returns. */
kolo_status_t kolo_rendezvous_receive_call(kolo_rendezvous_t rendezvous, const char *key,
                                           const kolo_transfer_args_t *args, kolo_receive_fn_t fn, void *arg);

typedef struct kolo_receive *kolo_receive_t;
/* Begins to receive the next value of a key, for kolo_receive_wait() to end. */
kolo_status_t kolo_rendezvous_receive_begin(kolo_rendezvous_t rendezvous, const char *key,
                                            const kolo_transfer_args_t *args, kolo_receive_t *receive);
/* Tells whether the receive has ended, with a value or without. Never waits. */
kolo_status_t kolo_receive_poll(kolo_receive_t receive, int *ended);
/* Waits until the receive has ended, at most timeout_ms (0: for ever); KOLO_ERR_TIMEOUT then, and the handle stays.
 * Else frees the handle and returns how the receive ended; one that ended with KOLO_ERR_TIMEOUT (its step was
 * aborted with that, or a task did not answer) is KOLO_ERR_ABORTED here. One thread at a time; from a callback on a
 * thread of the library only once it has ended. */
kolo_status_t kolo_receive_wait(kolo_receive_t receive, int timeout_ms, kolo_value_t *value);
/* Gives a receive up and frees the handle; a value that has come is released. NULL is fine. One with a destination
 * waits until nobody writes there any more, so it is not to be called by a value's release(). */
kolo_status_t kolo_receive_discard(kolo_receive_t receive);

/* Ends a step that has gone wrong: what waits in it ends with this status (an error) and these words, what was
 * sent and not received is released, and each later call of the step returns the same. The first abort counts. */
kolo_status_t kolo_rendezvous_abort(kolo_rendezvous_t rendezvous, kolo_status_t status, const char *why);

/* ---- sets of tensors ---------------------------------------------------------------------------------------- */

/* Sends count values under count keys. On failure those before the one that failed (*sent of them) are given away.
 */
kolo_status_t kolo_rendezvous_send_set(kolo_rendezvous_t rendezvous, const char *const *keys,
                                       const kolo_value_t *values, int count, int *sent);
/* Receives one value of each of count keys, at the same time; at most timeout_ms for all (0: for ever). All or
 * none: when one fails, the others are given up, and values that have come are released. */
kolo_status_t kolo_rendezvous_receive_set(kolo_rendezvous_t rendezvous, const char *const *keys,
                                          kolo_value_t *values, int count, int timeout_ms);

/* ---- servers: tasks that are connected ----------------------------------------------------------------------- */

typedef struct kolo_server *kolo_server_t;

#define KOLO_SERVER_CONFIG_MAGIC 0x6b6f7376u /* "kosv" */
/* Options of one server. Start from KOLO_SERVER_CONFIG_INITIALIZER. */
typedef struct kolo_server_config {
    uint32_t size;  /* sizeof of the caller's struct: newer fields than the caller knows take defaults */
    uint32_t magic; /* KOLO_SERVER_CONFIG_MAGIC */
    /* All tasks, the same text on all: `ps=host:port,host:port;worker=host:port` are /job:ps/task:0, /job:ps/task:1
     * and /job:worker/task:0. Each listens at its own address. Or their numbers, `ps=2;worker=1`: then the first
     * task listens at KOLO_COMM_ID (host:port, the same on all), and the others find each other through it; each
     * start of one of them has an address of its own. */
    const char *cluster;
    const char *task; /* this one */
    /* How values move: "kolo" (shared memory within a host, else RDMA where both ends have it, else TCP; written
     * into the receiver's memory), "kolo+shm", "kolo+verbs", "kolo+tcp", "kolo+buffered" (through a buffer for each
     * key), or one that was registered; the same on all tasks. NULL: "kolo" */
    const char *protocol;
    /* Known to all tasks and nobody else, at least 16 bytes. NULL: that of KOLO_COMM_SECRET_FILE */
    const void *secret;
    size_t secret_bytes;
    int connect_timeout_ms; /* how long a task that does not answer is called. 30000 */
} kolo_server_config_t;
#define KOLO_SERVER_CONFIG_INITIALIZER                                                                             \
    {                                                                                                              \
        sizeof(kolo_server_config_t), KOLO_SERVER_CONFIG_MAGIC, NULL, NULL, NULL, NULL, 0, 30000                   \
    }

/* Makes a protocol: a name for wires ("shm", "verbs", "tcp", or several with commas) and a mode. A name that there
 * is already is KOLO_ERR_INVALID_USAGE. */
kolo_status_t kolo_server_register_protocol(const char *name, const char *wires, int buffered);

/* Makes a server for one task of a cluster. It does nothing yet: receives are kept. */
kolo_status_t kolo_server_create(kolo_server_t *server, const kolo_server_config_t *config);
/* Opens the task's door, under a new incarnation. Others may be started before or after. Once more does nothing;
 * after a stop or join that came first it is KOLO_ERR_INVALID_USAGE. */
kolo_status_t kolo_server_start(kolo_server_t server);
/* Waits until the server is stopped; at most timeout_ms (0: for ever), then KOLO_ERR_TIMEOUT. A server that was not
 * started is ended by it, and cannot be started any more. */
kolo_status_t kolo_server_join(kolo_server_t server, int timeout_ms);
/* Ends all steps and connections: what waits, here and for values of this task elsewhere, ends with an error. Once
 * more does nothing. Not from a callback. */
kolo_status_t kolo_server_stop(kolo_server_t server);
/* Stops and frees; every rendezvous of it is closed before. NULL is fine. */
kolo_status_t kolo_server_destroy(kolo_server_t server);

/* Tells the manager of the server's steps, which the server owns. */
kolo_status_t kolo_server_manager(kolo_server_t server, kolo_rendezvous_manager_t *manager);
/* Tells the incarnation of a task, for keys whose source it is: at once of the own one, else it connects, waits
 * until the task is there, at most timeout_ms (0: the connect timeout), and asks. */
kolo_status_t kolo_server_incarnation(kolo_server_t server, const char *task, int timeout_ms,
                                      uint64_t *incarnation);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
