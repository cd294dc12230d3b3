/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of this room share: the receive, the table in which sends and receives of one step meet, the
 * rendezvous of a step, and the manager of all steps.
 *
 * A receive ends exactly once: by its value, an abort, a timeout, or a discard. Each of these first claims it with
 * one atomic exchange (receive.c); the loser releases what it brought. So no thread needs to know the state of a
 * receive, and a late end does no harm.
 *
 * Locks: the manager's, then a rendezvous'; callbacks and releases run with none of them held.
 */
#ifndef KOLO_RENDEZVOUS_INTERNAL_H
#define KOLO_RENDEZVOUS_INTERNAL_H

#include "base/clock.h"
#include "base/slots.h"
#include "base/wait.h"
#include "rendezvous/key.h"

#include <pthread.h>

#define KOLO_WHY_BYTES 400

/* ---- values (value.c) ---- */

/* Checks that type, shape, bytes and the offsets of strings fit together. NULL: they do; else what is wrong. Also
 * for values from another process. */
const char *kolo_rendezvous_value_check(const kolo_value_t *value);
/* Computes the bytes of a value of this type and shape, strings without their text; false: too large, or bad. */
bool kolo_rendezvous_value_size(int element, int ndims, const int64_t *dims, uint64_t *bytes);

/* ---- calls that would hang (guard.c) ---- */

typedef enum { KOLO_THREAD_OF_PROGRAM, KOLO_THREAD_OF_CALLBACKS, KOLO_THREAD_OF_CHANNELS } kolo_thread_of_t;
/* Sets what kind of thread this is; returns what it was before. */
kolo_thread_of_t kolo_rendezvous_enter(kolo_thread_of_t what);
/* Checks that this thread may wait in `call`: threads of a kind above `most` get KOLO_ERR_INVALID_USAGE. */
kolo_status_t kolo_rendezvous_check_wait(const char *call, kolo_thread_of_t most);
/* Checks that the handle is not NULL and one of a living object. `call` and `what` are words for the error. */
kolo_status_t kolo_rendezvous_check_handle(const char *call, const char *what, const void *handle);
/* Checks that an argument which is no handle is there. */
kolo_status_t kolo_rendezvous_check_given(const char *call, const char *what, const void *argument);
kolo_status_t kolo_rendezvous_check_timeout(const char *call, int timeout_ms);
/* Was the manager made in this process? A manager without a server may also be used by a child. */
kolo_status_t kolo_rendezvous_check_process(const kolo_rendezvous_manager_t manager);

/* ---- receives (receive.c) ---- */

typedef struct kolo_item kolo_item_t;
struct kolo_receive {
    kolo_slot_t slot; /* lives until its owner has waited for it, or discarded it */
    _Atomic uint32_t refs;
    _Atomic bool claimed, ended;
    kolo_rendezvous_t rendezvous; /* holds a reference */
    kolo_tensor_key_t key;
    kolo_transfer_args_t args;
    uint64_t most;           /* the most bytes it takes: those of args.into, or no limit */
    _Atomic uint32_t parted; /* into.c */
    kolo_receive_fn_t fn;    /* NULL: a thread waits at the gate */
    void *fn_arg;
    kolo_gate_t gate;
    uint64_t since_ns;
    /* Written by the adapter's thread: how far the sender says it is (a kolo_sent_t), since when it has been in a
     * callback of its own, 0: it is not; and, for itself, when it was last asked. */
    _Atomic uint32_t sent;
    _Atomic uint64_t sent_step, callback_ns;
    uint64_t asked_ns;
    bool serves; /* made for another task's request: takes from this task's table, whatever the key's destination */
    kolo_item_t *item; /* its place in the table; NULL: none. Guarded by the rendezvous' lock, as the next two */
    kolo_receive_t next_other, *prev_other; /* in the step's list `others`; prev NULL: not listed */
    kolo_receive_t next_deferred;           /* guarded by the manager's lock */
    int remote_task;                        /* the task that sends it; adapter's thread only, as the next two */
    void *remote, *remote_channel;          /* its request and channel (remote/channel.h); NULL: no request */
    /* set at the end, for a thread that waits */
    kolo_status_t status;
    char *why;
    kolo_value_t value;
    char text[KOLO_TENSOR_KEY_MAX + 1]; /* of the key */
};
kolo_status_t kolo_receive_new(kolo_rendezvous_t rendezvous, const char *text, const kolo_tensor_key_t *key,
                               const kolo_transfer_args_t *args, kolo_receive_t *receive);
/* Implements kolo_rendezvous_receive_begin(), with the name of the public call for errors. */
kolo_status_t kolo_receive_begin(const char *call, kolo_rendezvous_t rendezvous, const char *text,
                                 const kolo_transfer_args_t *args, kolo_receive_t *receive);
void kolo_receive_ref(kolo_receive_t receive);
void kolo_receive_unref(kolo_receive_t receive);
/* Waits for the end. *ended true: it has ended, and the caller's reference is gone. (A receive may itself end with
 * KOLO_ERR_TIMEOUT.) */
kolo_status_t kolo_receive_await(kolo_receive_t receive, int timeout_ms, kolo_value_t *value, bool *ended);
/* Claims the receive: true for exactly one caller, which then must end it. */
bool kolo_receive_claim(kolo_receive_t receive);
/* Ends a receive that the caller has claimed. Takes *value (NULL unless KOLO_OK). No lock is held. */
void kolo_receive_end(kolo_receive_t receive, kolo_status_t status, const char *why,
                      const kolo_transfer_args_t *sender, const kolo_value_t *value);
/* Does the first half of kolo_receive_end(), for a receive without a callback of which the caller holds a
 * reference: polls see the end; a sleeper at the gate sleeps until the gate is opened. */
void kolo_receive_settle(kolo_receive_t receive, kolo_status_t status, const char *why, const kolo_value_t *value);
/* Claims and ends; a value that is too late is released. */
void kolo_receive_finish(kolo_receive_t receive, kolo_status_t status, const char *why,
                         const kolo_transfer_args_t *sender, const kolo_value_t *value);

/* ---- receives with a destination (into.c) ---- */

/* Checks the arguments of a send or a receive. */
kolo_status_t kolo_rendezvous_transfer_check(const kolo_transfer_args_t *args, bool receives);
/* Returns KOLO_OK if the receive can take a value that was sent with these arguments (NULL: zeros), else why not.
 */
kolo_status_t kolo_receive_takes(const kolo_receive_t receive, const kolo_value_t *value,
                                 const kolo_transfer_args_t *sender);
/* Moves a value to the destination and the kind of memory that the receive names, unless it is there already. The
 * caller has claimed the receive and ends it. On an error the value is released. */
kolo_status_t kolo_receive_land(kolo_receive_t receive, const kolo_transfer_args_t *sender, kolo_value_t *value);
/* Says that no other thread or process writes to the destination any more. True, once: the caller must end the
 * receive with kolo_receive_end_late(). */
bool kolo_receive_part(kolo_receive_t receive);
bool kolo_receive_has_parted(const kolo_receive_t receive);
void kolo_receive_wait_parted(kolo_receive_t receive);
/* Ends a claimed receive, at once or as soon as its destination is free. No lock is held. */
void kolo_receive_end_when_parted(kolo_receive_t receive, kolo_status_t status, const char *why);
void kolo_receive_end_late(kolo_receive_t receive);

/* ---- memory of devices (device.c) ---- */

/* Checks that memory is a device's; if not, the error says why. */
kolo_status_t kolo_rendezvous_device_check(const void *memory, const char *what);
/* Copies within and between host memory and devices; complete when it returns. */
kolo_status_t kolo_rendezvous_device_copy(void *to, const void *from, size_t bytes);
/* Replaces a value on a device with one in host memory, which is released as usual. */
kolo_status_t kolo_rendezvous_device_bring(kolo_value_t *value);

/* ---- the table of one step (table.c); with the rendezvous' lock held ---- */

struct kolo_item { /* one send or one receive in a queue */
    kolo_item_t *next;
    struct kolo_queue_of_key *queue;
    kolo_receive_t receive; /* holds a reference; NULL: a send */
    kolo_value_t value;
    kolo_transfer_args_t args;
};
typedef struct kolo_queue_of_key { /* only sends, or only receives */
    struct kolo_queue_of_key *next;
    uint64_t hash;
    kolo_item_t *first, **last;
    char text[];
} kolo_queue_of_key_t;
typedef struct {
    kolo_queue_of_key_t **buckets;
    size_t nbuckets, nqueues, nitems;
} kolo_key_table_t;
/* Returns the first receive of the key, which stays in the table; NULL: none. The others are behind it. */
kolo_item_t *kolo_table_first_receive(kolo_key_table_t *table, const char *text);
/* Returns the first send of the key, which stays in the table; NULL: none. */
kolo_item_t *kolo_table_first_send(kolo_key_table_t *table, const char *text);
/* Puts an item at the end of its queue. KOLO_ERR_NO_MEMORY. */
kolo_status_t kolo_table_add(kolo_key_table_t *table, const char *text, kolo_item_t *item);
void kolo_table_remove(kolo_key_table_t *table, kolo_item_t *item);
/* Takes out all items as one list; the table can still be used. */
kolo_item_t *kolo_table_take_all(kolo_key_table_t *table);

/* ---- one step (rendezvous.c) ---- */

struct kolo_rendezvous {
    kolo_slot_t slot;
    _Atomic uint32_t refs, opens; /* opens: calls of kolo_rendezvous_open() that were not closed yet */
    kolo_rendezvous_manager_t manager;
    uint64_t step;
    kolo_rendezvous_t next; /* in the manager's bucket */
    pthread_mutex_t lock;
    kolo_key_table_t table;
    /* Receives under way from other tasks, and those that wait until the manager has a name. */
    kolo_receive_t others;
    kolo_status_t status; /* KOLO_OK until it is aborted */
    char why[KOLO_WHY_BYTES];
};
/* Makes a rendezvous with one reference, that of the manager's list. NULL: no memory. */
kolo_rendezvous_t kolo_rendezvous_new(kolo_rendezvous_manager_t manager, uint64_t step);
void kolo_rendezvous_ref(kolo_rendezvous_t rendezvous);
void kolo_rendezvous_unref(kolo_rendezvous_t rendezvous);
/* Starts a receive that waited until the manager had a name. */
void kolo_rendezvous_replay(kolo_receive_t receive);
/* Removes a receive from `others`: an abort need not reach it any more. */
void kolo_rendezvous_unlist(kolo_receive_t receive);
typedef struct {
    const char *text;
    const kolo_tensor_key_t *key;
    uint64_t most;        /* bytes; 0: any number */
    kolo_receive_fn_t fn; /* as in kolo_rendezvous_receive_call(); it also gets errors */
    void *arg;
} kolo_serve_t;
/* Starts a receive for another task's request, from this task's table. *receive holds a reference, for
 * kolo_rendezvous_give_up(). */
kolo_status_t kolo_rendezvous_serve(kolo_rendezvous_t rendezvous, const kolo_serve_t *serve,
                                    kolo_receive_t *receive);
/* Takes, without a receive, the first value of the key, if it is there, in host memory, and not larger than `most`
 * bytes. Returns false otherwise: start a receive then, which also reports errors. */
bool kolo_rendezvous_take(kolo_rendezvous_t rendezvous, const char *text, const kolo_tensor_key_t *key,
                          uint64_t most, kolo_value_t *value);
/* Ends a receive whose owner does not want it any more, without a callback, and takes it out of the table. False:
 * it has ended already. */
bool kolo_rendezvous_give_up(kolo_receive_t receive);

/* ---- all steps (manager.c) ---- */

/* How values of other tasks are fetched. The only implementation is the adapter (remote/channel.h). */
typedef struct {
    /* Starts a receive from another task; never waits. On KOLO_OK it takes a reference, and later, on its own
     * thread, calls kolo_rendezvous_unlist() and kolo_receive_finish() and drops the reference. */
    kolo_status_t (*receive)(void *arg, kolo_receive_t receive);
    /* The receive has ended for another reason: its value is not needed any more. Never waits. Makes a receive with
     * a destination part from it (kolo_receive_part). */
    void (*cancel)(void *arg, kolo_receive_t receive);
} kolo_remote_ops_t;

struct kolo_rendezvous_manager {
    kolo_slot_t slot;
    _Atomic uint32_t refs; /* the owner's, and one of each rendezvous */
    pthread_mutex_t lock;
    kolo_rendezvous_t *buckets;
    size_t nbuckets, nsteps;
    kolo_receive_t deferred, *last_deferred; /* each with a reference */
    _Atomic bool named;
    char task[KOLO_TASK_NAME_MAX + 1];
    uint64_t incarnation;
    uint32_t forks;         /* kolo_process_forks() where it was made */
    uint64_t waits_most;    /* bytes of sends that may wait for their receives (KOLO_RENDEZVOUS_WAITING), */
    _Atomic uint64_t waits; /* and that do, in the tables of all steps */
    const kolo_remote_ops_t *remote; /* NULL: no other tasks */
    void *remote_arg;
    _Atomic uint32_t asking; /* threads that are about to call one of `remote`: raised with the lock of a step that
                                is not over, so after the end of all steps it only falls */
    struct kolo_rendezvous_watch *_Atomic watch; /* watch.h; NULL: no flight record */
};
/* Sets what reaches other tasks. Call it before the first step is made. */
void kolo_rendezvous_manager_set_remote(kolo_rendezvous_manager_t manager, const kolo_remote_ops_t *ops, void *arg);
extern int64_t kolo_rendezvous_param_waiting; /* parameter */
/* Ends all steps and drops the owner's reference. */
void kolo_rendezvous_manager_end(kolo_rendezvous_manager_t manager);
void kolo_rendezvous_manager_unref(kolo_rendezvous_manager_t manager);
/* Keeps a receive until the manager has a name; false: it has one. */
bool kolo_rendezvous_manager_defer(kolo_rendezvous_manager_t manager, kolo_receive_t receive);

#endif
