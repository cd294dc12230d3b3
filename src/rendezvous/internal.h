/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of this room share: the receive, the table in which sends and receives of one step meet, the
 * rendezvous of a step, and the manager of all steps.
 *
 * A receive ends once, whoever comes first: the value, an abort, a time-out, its owner who gives it up. Each of
 * them claims it by one exchange (receive.c); who loses gives back what he brought. So nobody has to know where a
 * receive stands at the moment, and what comes too late does no harm.
 *
 * Locks: the manager's, then a rendezvous'; callbacks and releases run with none of them held.
 */
#ifndef KOLO_RENDEZVOUS_INTERNAL_H
#define KOLO_RENDEZVOUS_INTERNAL_H

#include "base/clock.h"
#include "base/wait.h"
#include "rendezvous/key.h"

#include <pthread.h>

#define KOLO_WHY_BYTES 400

/* The time in steps of some milliseconds: what is only asked whether it has taken long costs no more. */
static inline uint64_t kolo_about_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
    return (uint64_t)ts.tv_sec * KOLO_NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* ---- values (value.c) ---- */

/* Do type, shape and bytes fit together, and a string's numbers? NULL when they do, else what is wrong. Also for
 * what came from another process. */
const char *kolo_value_check(const kolo_value_t *value);
/* Bytes of a value of this type and shape, strings without their text; false: too large, or bad. */
bool kolo_value_size(int element, int ndims, const int64_t *dims, uint64_t *bytes);

/* ---- calls from where they cannot work (guard.c) ---- */

typedef enum { KOLO_THREAD_OF_PROGRAM, KOLO_THREAD_OF_CALLBACKS, KOLO_THREAD_OF_CHANNELS } kolo_thread_of_t;
/* What this thread is from now on; returns what it was. */
kolo_thread_of_t kolo_rendezvous_enter(kolo_thread_of_t what);
/* May this thread wait in `call`, where no thread may behind `most`? */
kolo_status_t kolo_rendezvous_check_wait(const char *call, kolo_thread_of_t most);
uint32_t kolo_rendezvous_forks(void); /* another number in each child of fork() */
/* Is it this process's? A manager without a server may be used by a child, too. */
kolo_status_t kolo_rendezvous_check_process(const kolo_rendezvous_manager_t manager);

/* ---- receives (receive.c) ---- */

typedef struct kolo_item kolo_item_t;
struct kolo_receive {
    _Atomic uint32_t refs;
    _Atomic bool claimed, ended;
    kolo_rendezvous_t rendezvous; /* holds a reference */
    kolo_tensor_key_t key;
    kolo_transfer_args_t args;
    uint64_t most;           /* bytes that it takes: of args.into, or as many as there are */
    _Atomic uint32_t parted; /* into.c */
    kolo_receive_fn_t fn;    /* NULL: somebody waits at the gate */
    void *fn_arg;
    kolo_gate_t gate;
    uint64_t since_ns;
    uint32_t sent; /* of the adapter's thread: what the sender says it has sent, a kolo_sent_t, ... */
    uint64_t sent_step, asked_ns; /* ... and when it was asked */
    bool serves;       /* for another task: it takes from this one's table, whatever its destination is */
    kolo_item_t *item; /* its place in the table; NULL: none. Guarded by the rendezvous' lock, as the next two */
    kolo_receive_t next_other, *prev_other; /* of the step's others; prev NULL: it is not listed */
    kolo_receive_t next_deferred;           /* guarded by the manager's lock */
    int remote_task;                        /* that sends it; of the adapter's thread, as the next two */
    void *remote, *remote_channel;          /* of the adapter's thread (remote/channel.h); NULL: none under way */
    /* once it has ended, for who waits */
    kolo_status_t status;
    char *why;
    kolo_value_t value;
    char text[]; /* of the key; with it most receives are what malloc() has at hand (1 KB) */
};
kolo_status_t kolo_receive_new(kolo_rendezvous_t rendezvous, const char *text, const kolo_tensor_key_t *key,
                               const kolo_transfer_args_t *args, kolo_receive_t *receive);
void kolo_receive_ref(kolo_receive_t receive);
void kolo_receive_unref(kolo_receive_t receive);
/* Waits for its end; with *ended the reference is given up. A receive may end with KOLO_ERR_TIMEOUT, too. */
kolo_status_t kolo_receive_await(kolo_receive_t receive, int timeout_ms, kolo_value_t *value, bool *ended);
/* The right to end the receive; true for one caller only. */
bool kolo_receive_claim(kolo_receive_t receive);
/* Ends a receive that the caller has claimed. Takes *value (NULL unless KOLO_OK). No lock is held. */
void kolo_receive_end(kolo_receive_t receive, kolo_status_t status, const char *why,
                      const kolo_transfer_args_t *sender, const kolo_value_t *value);
/* The first half of it for one without a callback, of which the caller holds a reference: who polls sees the end,
 * who sleeps at the gate does so until it is opened. */
void kolo_receive_settle(kolo_receive_t receive, kolo_status_t status, const char *why, const kolo_value_t *value);
/* Claim and end at once; a value that comes too late is released. */
void kolo_receive_finish(kolo_receive_t receive, kolo_status_t status, const char *why,
                         const kolo_transfer_args_t *sender, const kolo_value_t *value);

/* ---- receives with a destination (into.c) ---- */

/* Are these arguments of a send, or of a receive, such as there may be? */
kolo_status_t kolo_transfer_args_check(const kolo_transfer_args_t *args, bool receives);
/* Can the receive take a value that was sent with these arguments (NULL: zeros)? If not, why. */
kolo_status_t kolo_receive_takes(const kolo_receive_t receive, const kolo_value_t *value,
                                 const kolo_transfer_args_t *sender);
/* Moves a value to the destination and the kind of memory that the receive names, if it does not lie there; the
 * receive is the caller's to end. On an error the value is released. */
kolo_status_t kolo_receive_land(kolo_receive_t receive, const kolo_transfer_args_t *sender, kolo_value_t *value);
/* No other thread or process writes to the destination any more. True: the caller is to end the receive, by
 * kolo_receive_end_late(); once. */
bool kolo_receive_part(kolo_receive_t receive);
bool kolo_receive_has_parted(const kolo_receive_t receive);
void kolo_receive_wait_parted(kolo_receive_t receive);
/* Whoever has claimed the receive ends it so, at once or once its destination is free. No lock is held. */
void kolo_receive_end_when_parted(kolo_receive_t receive, kolo_status_t status, const char *why);
void kolo_receive_end_late(kolo_receive_t receive);

/* ---- memory of devices (device.c) ---- */

/* Is it memory of a device? KOLO_OK, or why not. */
kolo_status_t kolo_device_memory_check(const void *memory, const char *what);
/* Copies within and between host memory and devices; complete when it returns. */
kolo_status_t kolo_device_copy(void *to, const void *from, size_t bytes);
/* Host memory with the bytes of a value that lies on a device, instead of it; released as any. */
kolo_status_t kolo_device_bring(kolo_value_t *value);

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
/* The first receive of the key, taken out; NULL: there is none. */
kolo_item_t *kolo_table_take_receive(kolo_key_table_t *table, const char *text);
/* The first send of the key, which stays; NULL: there is none. */
kolo_item_t *kolo_table_first_send(kolo_key_table_t *table, const char *text);
/* Puts an item at the end of its queue. KOLO_ERR_NO_MEMORY. */
kolo_status_t kolo_table_add(kolo_key_table_t *table, const char *text, kolo_item_t *item);
void kolo_table_remove(kolo_key_table_t *table, kolo_item_t *item);
/* All items as one list; the table is empty and may be used on. */
kolo_item_t *kolo_table_take_all(kolo_key_table_t *table);

/* ---- one step (rendezvous.c) ---- */

struct kolo_rendezvous {
    _Atomic uint32_t refs;
    kolo_rendezvous_manager_t manager;
    uint64_t step;
    kolo_rendezvous_t next; /* in the manager's bucket */
    pthread_mutex_t lock;
    kolo_key_table_t table;
    kolo_receive_t others; /* under way from other tasks, and those that wait for the manager's name */
    kolo_status_t status;  /* KOLO_OK until it is aborted */
    char why[KOLO_WHY_BYTES];
};
void kolo_rendezvous_ref(kolo_rendezvous_t rendezvous);
void kolo_rendezvous_unref(kolo_rendezvous_t rendezvous);
/* Begins a receive that waited for the manager's name. */
void kolo_rendezvous_replay(kolo_receive_t receive);
/* A receive from another task is over: an abort need not reach it any more. */
void kolo_rendezvous_unlist(kolo_receive_t receive);
/* Begins a receive for another task, which takes `most` bytes (0: any number): out of this task's table, with fn as
 * of kolo_rendezvous_receive_call(). What is wrong is told to fn. *receive holds a reference, so that it can be
 * given up. */
kolo_status_t kolo_rendezvous_serve(kolo_rendezvous_t rendezvous, const char *text, const kolo_tensor_key_t *key,
                                    uint64_t most, kolo_receive_fn_t fn, void *arg, kolo_receive_t *receive);
/* The same at once, without a receive: the first value of the key, if it is there, lies in host memory and has no
 * more than `most` bytes. False: a receive has to see to it, also where anything is wrong. */
bool kolo_rendezvous_take(kolo_rendezvous_t rendezvous, const char *text, const kolo_tensor_key_t *key,
                          uint64_t most, kolo_value_t *value);
/* Gives a receive up whose owner does not want it any more: out of the table, ended without a word. False: it has
 * ended already. */
bool kolo_rendezvous_give_up(kolo_receive_t receive);

/* ---- all steps (manager.c) ---- */

/* How values of other tasks are fetched; the task's channels (remote/channel.h) are one. */
typedef struct {
    /* Begins a receive from another task; never waits. On KOLO_OK it takes a reference, and ends the receive later
     * on a thread of its own: kolo_rendezvous_unlist(), kolo_receive_finish(), the reference. */
    kolo_status_t (*receive)(void *arg, kolo_receive_t receive);
    /* The receive has ended for another reason: whoever is asked for its value may keep it. Never waits. Sees to
     * it that a receive with a destination parts from it (kolo_receive_part). */
    void (*cancel)(void *arg, kolo_receive_t receive);
} kolo_remote_ops_t;

struct kolo_rendezvous_manager {
    _Atomic uint32_t refs; /* the owner's, and one of each rendezvous */
    pthread_mutex_t lock;
    kolo_rendezvous_t *buckets;
    size_t nbuckets, nsteps;
    kolo_receive_t deferred, *last_deferred; /* each with a reference */
    _Atomic bool named;
    char task[KOLO_TASK_NAME_MAX + 1];
    uint64_t incarnation;
    uint32_t forks;                  /* kolo_rendezvous_forks() of its process */
    const kolo_remote_ops_t *remote; /* NULL: there are no other tasks */
    void *remote_arg;
    struct kolo_watch *_Atomic watch; /* watch.h; NULL: nobody looks */
};
/* Before any step is there. */
void kolo_rendezvous_manager_set_remote(kolo_rendezvous_manager_t manager, const kolo_remote_ops_t *ops, void *arg);
/* Cleans all up and gives up the owner's reference. */
void kolo_rendezvous_manager_end(kolo_rendezvous_manager_t manager);
void kolo_rendezvous_manager_unref(kolo_rendezvous_manager_t manager);
/* Keeps a receive until there is a name; false: there is one already. */
bool kolo_rendezvous_manager_defer(kolo_rendezvous_manager_t manager, kolo_receive_t receive);

#endif
