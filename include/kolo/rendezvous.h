/* SPDX-License-Identifier: Apache-2.0
 *
 * Kolo's rendezvous: a tensor is sent under a key by one task and received under the same key by another, in
 * whichever order the two come.
 *
 * A program has tasks (`/job:ps/task:0`), each with devices (`/job:ps/task:0/device:cpu:0`). Its work is numbered
 * in steps, and each step has a rendezvous of its own, in which the keys of that step meet. A send is passive: the
 * value stays with its task until it is received. Each value is received once; values of one key arrive in the
 * order of their sends.
 *
 *     kolo_rendezvous_manager_create(&manager);
 *     kolo_rendezvous_manager_initialize(manager, "/job:ps/task:0", incarnation);
 *     kolo_rendezvous_open(manager, step, &rendezvous);
 *     kolo_rendezvous_send(rendezvous, key, &value, NULL);              on the task of the key's source
 *     kolo_rendezvous_receive(rendezvous, key, NULL, 1000, &value);     on the task of its destination
 *     kolo_rendezvous_close(rendezvous);
 *     kolo_rendezvous_manager_cleanup(manager, step);
 *
 * A receiver may also wait with a handle or be called back. A step that has failed is aborted, with a status that
 * all waiting and all later calls of that step return.
 *
 * Threads: every function may be called from any thread at any time, also from callbacks, unless it says otherwise.
 * The caller of a function that frees a handle makes sure that no other call uses it. Functions that may wait
 * return KOLO_ERR_INVALID_USAGE on a thread of the library. In a child of fork() so do all functions on a server,
 * since its threads are not there. Errors: as in kolo.h. A function that returns anything but KOLO_OK has done
 * nothing; kolo_get_last_error(NULL) says why. Output arguments are set on success only. A handle that was freed
 * is KOLO_ERR_INVALID_ARGUMENT, until 64 more of its kind were made. Units: sizes are bytes, times milliseconds.
 *
 * Arguments: these names mean the same in all functions whose words say nothing else.
 *
 *     manager      the manager of all steps
 *     rendezvous   the rendezvous of one step
 *     step         the number of the step
 *     incarnation  the number of one start of a task
 *     key          the key as text
 *     keys         `count` keys
 *     value        the tensor that is sent; or set to what has come, and then the caller's
 *     values       `count` values
 *     count        how many entries the lists have
 *     args         kind of memory, destination and context of this end; NULL: all zeros
 *     receive      the receive
 *     why          the text of the error
 *     server       the server
 *     config       options of the server
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
    char src_device[KOLO_DEVICE_NAME_MAX + 1]; /* where the value is sent */
    uint64_t src_incarnation;                  /* the number of this start of the source's task */
    char dst_device[KOLO_DEVICE_NAME_MAX + 1]; /* where it is received */
    char edge_name[KOLO_EDGE_NAME_MAX + 1];    /* without ';' and control characters */
    uint64_t frame, iteration;                 /* of a loop; 0 and 0 outside of one */
} kolo_tensor_key_t;

/* Writes a key as text into a buffer of `bytes` bytes (KOLO_TENSOR_KEY_MAX + 1 are enough for any key).
 * KOLO_ERR_INVALID_ARGUMENT names a part that is not valid. */
kolo_status_t kolo_tensor_key_make(const kolo_tensor_key_t *key, char *text, size_t bytes);

/* Parses a key. Each key has exactly one spelling; KOLO_ERR_INVALID_ARGUMENT says what is wrong in any other text,
 * and where. */
kolo_status_t kolo_tensor_key_parse(const char *text, kolo_tensor_key_t *key);

/* ---- values ------------------------------------------------------------------------------------------------ */

/* Types of elements: those of kolo_type_t with their numbers, and these further ones. */
typedef enum kolo_element {
    KOLO_ELEMENT_BOOL = 32,       /* one byte, 0 or 1 */
    KOLO_ELEMENT_INT16 = 33,      /* 2 bytes */
    KOLO_ELEMENT_UINT16 = 34,     /* 2 bytes, without a sign */
    KOLO_ELEMENT_COMPLEX64 = 35,  /* two float32 */
    KOLO_ELEMENT_COMPLEX128 = 36, /* two float64 */
    /* Strings of any length. The data of n strings is n numbers of 64 bits, the offset at which each string ends,
       counted from the first byte behind the numbers; then the bytes of all strings without gaps. */
    KOLO_ELEMENT_STRING = 37
} kolo_element_t;

/* Returns the size of one element in bytes, 8 for a string (its offset), 0 for an unknown type. */
size_t kolo_element_size(int element);

#define KOLO_VALUE_DIMS_MAX 16 /* dimensions of a value */

/* A tensor and its memory. Values change their owner: the sender gives its memory away, the receiver owns it and
 * frees it with kolo_value_release(). Between tasks of one process nothing is copied: the receiver gets the
 * sender's memory. */
typedef struct kolo_value {
    int element;                       /* a kolo_type_t or kolo_element_t */
    int ndims;                         /* 0: a single element */
    int64_t dims[KOLO_VALUE_DIMS_MAX]; /* the first `ndims` count */
    void *data;                        /* the elements, row by row */
    size_t bytes;                      /* of data: number of elements times their size, except for strings */
    int dead; /* 1: the branch that should have made it was not taken; data may be missing (bytes 0) */
    /* Frees the data. Called once, on any thread, when it is not used any more. NULL: nothing to free. */
    void (*release)(void *arg);
    void *arg;
} kolo_value_t;

/* Frees the memory of a received value. A value without `release`, or one already released, is fine. */
kolo_status_t kolo_value_release(kolo_value_t *value);

/* Kinds of memory of values. */
typedef enum kolo_memory {
    KOLO_MEMORY_HOST = 0,  /* ordinary memory */
    KOLO_MEMORY_DEVICE = 1 /* of a GPU, from cudaMalloc(); the work that makes the value must be complete */
} kolo_memory_t;

/* What a sender or receiver passes beside the key. The receiver's callback gets both; `context` of another process
 * is NULL there. NULL arguments mean all zeros.
 *
 * A value arrives in the kind of memory that its receiver names. From a device to the host, to another task or to
 * another device it is copied through host memory. A receiver that wants it on a device names a destination there;
 * within one task it may also take the sender's memory. Strings are in host memory only.
 *
 * A receiver may name a destination: its own memory (`into`, `into_bytes`). It must exist until the receive has
 * ended, successfully or not; after that Kolo does not touch it. The received value then points there and has
 * nothing to release. It is written there directly over TCP, over RDMA, and over shared memory if the processes may
 * copy from each other; else it is copied once. A value longer than into_bytes ends the receive with
 * KOLO_ERR_INVALID_ARGUMENT and stays for the next receive. Ending such a receive early (timeout, discard, abort)
 * may take a second if the sender is writing at that moment and does not answer: its channel is then closed. */
typedef struct kolo_transfer_args {
    int memory;          /* a kolo_memory_t: where the value is, or is wanted */
    uint32_t attributes; /* of its allocator; their meaning is the program's */
    void *context;       /* the program's; not touched */
    void *into;          /* a receiver's destination; NULL: Kolo allocates */
    size_t into_bytes;   /* more than 0, if into is not NULL */
} kolo_transfer_args_t;

/* ---- manager: the rendezvous of all steps ------------------------------------------------------------------ */

typedef struct kolo_rendezvous_manager *kolo_rendezvous_manager_t;
typedef struct kolo_rendezvous *kolo_rendezvous_t;

/* Makes a manager without steps. Until it is initialized with its task, receives wait and sends are refused. The
 * caller frees it with kolo_rendezvous_manager_destroy(). */
kolo_status_t kolo_rendezvous_manager_create(kolo_rendezvous_manager_t *manager);
/* Sets the manager's task, and the number of this start of the task (not 0, different for each start). Receives
 * that were called before start now. The same values again do nothing; others are KOLO_ERR_INVALID_USAGE. */
kolo_status_t kolo_rendezvous_manager_initialize(kolo_rendezvous_manager_t manager, const char *task,
                                                 uint64_t incarnation);
/* Ends a step: waiting receives get KOLO_ERR_ABORTED, values that were not received are released. The same number
 * may be opened anew. An unknown step is fine. */
kolo_status_t kolo_rendezvous_manager_cleanup(kolo_rendezvous_manager_t manager, uint64_t step);
/* Ends all steps of a manager, each as kolo_rendezvous_manager_cleanup() does. */
kolo_status_t kolo_rendezvous_manager_cleanup_all(kolo_rendezvous_manager_t manager);
/* Returns the number of steps in *steps. */
kolo_status_t kolo_rendezvous_manager_count(kolo_rendezvous_manager_t manager, size_t *steps);
/* Ends all steps and frees the manager, as soon as the last open rendezvous is closed. NULL is fine. The manager of
 * a server is KOLO_ERR_INVALID_USAGE: the server frees it. */
kolo_status_t kolo_rendezvous_manager_destroy(kolo_rendezvous_manager_t manager);

/* ---- rendezvous: one step ---------------------------------------------------------------------------------- */

/* Finds the rendezvous of a step, or makes it. Each open needs one kolo_rendezvous_close(). A cleanup in between is
 * safe: calls then return KOLO_ERR_ABORTED. */
kolo_status_t kolo_rendezvous_open(kolo_rendezvous_manager_t manager, uint64_t step, kolo_rendezvous_t *rendezvous);
kolo_status_t kolo_rendezvous_close(kolo_rendezvous_t rendezvous); /* NULL is fine */

/* Sends a value under a key, whose source must be a device of this task. Never waits. The callback of a receive
 * that waits for it may run in this call. On success the value's memory is given away; on failure it stays the
 * caller's. If no receive waits for it and the values of this task that wait come to more than
 * KOLO_RENDEZVOUS_WAITING bytes with it, it is KOLO_ERR_NO_MEMORY: the same send may succeed later. */
kolo_status_t kolo_rendezvous_send(kolo_rendezvous_t rendezvous, const char *key, const kolo_value_t *value,
                                   const kolo_transfer_args_t *args);

/* Receives the next value of a key, whose destination must be a device of this task. After timeout_ms (0: no limit)
 * it returns KOLO_ERR_TIMEOUT, and the value stays for later receives. Not from a callback. */
kolo_status_t kolo_rendezvous_receive(kolo_rendezvous_t rendezvous, const char *key,
                                      const kolo_transfer_args_t *args, int timeout_ms, kolo_value_t *value);

/* Called once for each receive that was started with it: with KOLO_OK and the value, which the callback then owns;
 * or with an error, its text in `why`, and value NULL. Runs on the thread that sends, aborts or receives, or on a
 * thread of the library: it must return soon. */
typedef void (*kolo_receive_fn_t)(void *arg, kolo_status_t status, const char *why,
                                  const kolo_transfer_args_t *sender, const kolo_transfer_args_t *receiver,
                                  kolo_value_t *value);
/* Starts to receive the next value of a key; fn is called with arg at the end, maybe before this call returns. */
kolo_status_t kolo_rendezvous_receive_call(kolo_rendezvous_t rendezvous, const char *key,
                                           const kolo_transfer_args_t *args, kolo_receive_fn_t fn, void *arg);

typedef struct kolo_receive *kolo_receive_t;
/* Starts to receive the next value of a key; kolo_receive_wait() or kolo_receive_discard() frees *receive. */
kolo_status_t kolo_rendezvous_receive_begin(kolo_rendezvous_t rendezvous, const char *key,
                                            const kolo_transfer_args_t *args, kolo_receive_t *receive);
/* Sets *ended to 1 if the receive has ended, with a value or without, else to 0. Never waits. */
kolo_status_t kolo_receive_poll(kolo_receive_t receive, int *ended);
/* Waits until the receive has ended, frees the handle and returns the receive's status; KOLO_ERR_TIMEOUT of a
 * receive (its step was aborted with it, or a task did not answer) becomes KOLO_ERR_ABORTED. After timeout_ms (0:
 * no limit) it returns KOLO_ERR_TIMEOUT, and the handle stays. One thread at a time. On a thread of the library
 * only after the receive has ended. */
kolo_status_t kolo_receive_wait(kolo_receive_t receive, int timeout_ms, kolo_value_t *value);
/* Ends a receive early and frees the handle; a value that has arrived is released. With a destination it waits
 * until nothing is written there any more, so a value's release() must not call it. NULL is fine. */
kolo_status_t kolo_receive_discard(kolo_receive_t receive);

/* Aborts a step: waiting receives end with this status (an error) and this text, values that were not received are
 * released, and each later call on the step returns the same. Only the first abort counts. */
kolo_status_t kolo_rendezvous_abort(kolo_rendezvous_t rendezvous, kolo_status_t status, const char *why);

/* ---- sets of tensors ---------------------------------------------------------------------------------------- */

/* Sends `count` values under `count` keys. On failure the values before the one that failed (*sent of them) are
 * given away. */
kolo_status_t kolo_rendezvous_send_set(kolo_rendezvous_t rendezvous, const char *const *keys,
                                       const kolo_value_t *values, int count, int *sent);
/* Receives one value of each of `count` keys, at the same time, within timeout_ms for all (0: no limit). All or
 * none: if one fails, the others are ended, and values that have arrived are released. */
kolo_status_t kolo_rendezvous_receive_set(kolo_rendezvous_t rendezvous, const char *const *keys,
                                          kolo_value_t *values, int count, int timeout_ms);

/* ---- servers: tasks that are connected ----------------------------------------------------------------------- */

typedef struct kolo_server *kolo_server_t;

#define KOLO_SERVER_CONFIG_MAGIC 0x6b6f7376u /* "kosv" */
/* Options of one server. Start from KOLO_SERVER_CONFIG_INITIALIZER. */
typedef struct kolo_server_config {
    uint32_t size;  /* sizeof of the caller's struct: newer fields than the caller knows take defaults */
    uint32_t magic; /* KOLO_SERVER_CONFIG_MAGIC */
    /* All tasks, the same text on all of them. `ps=host:port,host:port;worker=host:port` means /job:ps/task:0,
     * /job:ps/task:1 and /job:worker/task:0; each listens at its own address. Or only how many, `ps=2;worker=1`:
     * then the first task listens at KOLO_COMM_ID (host:port, the same on all), and the others find each other
     * through it, with a new address at each start. */
    const char *cluster;
    const char *task; /* this one */
    /* How values move, the same on all tasks: "kolo" (into the receiver's memory, over shared memory within a host,
     * else RDMA where both ends have it, else TCP); "kolo+shm", "kolo+verbs", "kolo+tcp" (one of these only);
     * "kolo+buffered" (through a buffer for each key); or a registered name. NULL: "kolo" */
    const char *protocol;
    /* Known to all tasks and to nobody else, at least 16 bytes. NULL: the content of KOLO_COMM_SECRET_FILE */
    const void *secret;
    size_t secret_bytes;
    int connect_timeout_ms; /* how long to try to reach a task. 30000 */
} kolo_server_config_t;
#define KOLO_SERVER_CONFIG_INITIALIZER                                                                             \
    {                                                                                                              \
        sizeof(kolo_server_config_t), KOLO_SERVER_CONFIG_MAGIC, NULL, NULL, NULL, NULL, 0, 30000                   \
    }

/* Registers a protocol: a name for wires ("shm", "verbs", "tcp", or several with commas) and a mode (buffered 1 or
 * 0). A name that exists is KOLO_ERR_INVALID_USAGE. */
kolo_status_t kolo_server_register_protocol(const char *name, const char *wires, int buffered);

/* Makes a server for one task of a cluster. Until it is started, receives wait. The caller frees it with
 * kolo_server_destroy(). */
kolo_status_t kolo_server_create(kolo_server_t *server, const kolo_server_config_t *config);
/* Starts to accept connections, under a new incarnation. Tasks may start in any order. A second start does nothing;
 * after a stop or join it is KOLO_ERR_INVALID_USAGE. */
kolo_status_t kolo_server_start(kolo_server_t server);
/* Waits until the server is stopped; after timeout_ms (0: no limit) it returns KOLO_ERR_TIMEOUT. A server that was
 * never started ends, and cannot be started any more. */
kolo_status_t kolo_server_join(kolo_server_t server, int timeout_ms);
/* Stops the server: ends all steps and connections. Receives on this task, and receives elsewhere of this task's
 * values, end with an error. A second stop does nothing. Not from a callback. */
kolo_status_t kolo_server_stop(kolo_server_t server);
/* Stops the server and frees it. Close all its rendezvous before. NULL is fine. */
kolo_status_t kolo_server_destroy(kolo_server_t server);

/* Returns the manager of the server's steps. The server owns it. */
kolo_status_t kolo_server_manager(kolo_server_t server, kolo_rendezvous_manager_t *manager);
/* Returns the incarnation of a task, for keys with that task as source. For the own task at once; else it connects
 * and asks, within timeout_ms (0: the connect timeout). */
kolo_status_t kolo_server_incarnation(kolo_server_t server, const char *task, int timeout_ms,
                                      uint64_t *incarnation);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
