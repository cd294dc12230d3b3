/* SPDX-License-Identifier: Apache-2.0
 *
 * Fail points: named places where a fault may be asked for, so that tests reach every transition instead of hoping
 * to hit it. A place costs one relaxed load and a branch that is never taken; KOLO_FAIL_POINT arms some:
 *
 *     KOLO_FAIL_POINT=oob.checkin.sent:1:kill,wire.tcp.dial:3:delay:200      name:hit:action[:number]
 *
 * `hit` says which passage through the place counts (1 is the first of this process). Each rule acts once.
 *
 *     kill    SIGKILL to this process
 *     stop    SIGSTOP (somebody else continues it)
 *     exit    _exit(3)
 *     delay   sleeps `number` ms (50)
 *     reset   every TCP connection of the process gets a reset
 *     nofile  the descriptor table is full from now on
 *     nomem   the hook makes allocations fail
 *     fork    a child that holds all inherited descriptors for `number` ms (300)
 *     orphan  the same, then kill
 *     error   the place returns KOLO_ERR_SYSTEM (where it can; elsewhere nothing happens)
 *
 * Each place adds itself to a list at link time, so a test that goes over the list covers new ones by itself.
 */
#ifndef KOLO_BASE_FAILPOINT_H
#define KOLO_BASE_FAILPOINT_H

#include "base/status.h"

#include <stdatomic.h>
#include <stdbool.h>

typedef enum {
    KOLO_FAULT_NONE,
    KOLO_FAULT_KILL,
    KOLO_FAULT_STOP,
    KOLO_FAULT_EXIT,
    KOLO_FAULT_DELAY,
    KOLO_FAULT_RESET,
    KOLO_FAULT_NOFILE,
    KOLO_FAULT_NOMEM,
    KOLO_FAULT_FORK,
    KOLO_FAULT_ORPHAN,
    KOLO_FAULT_ERROR,
    KOLO_FAULT_COUNT
} kolo_fault_t;

typedef struct {
    const char *name; /* room.step.moment; one name may stand at several places */
    bool returns;     /* the place returns the status of KOLO_FAULT_ERROR */
} kolo_fail_point_t;

extern _Atomic uint32_t kolo_fail_points_armed; /* 0: nobody has asked for anything */

#define KOLO_FAIL_POINTS_ARMED KOLO_UNLIKELY(atomic_load_explicit(&kolo_fail_points_armed, memory_order_relaxed))

/* A place that cannot fail by itself. */
#define KOLO_FAIL_POINT(point_name)                                                                                \
    do {                                                                                                           \
        KOLO_FAIL_POINT_LIST(point_name, false);                                                                   \
        if (KOLO_FAIL_POINTS_ARMED) (void)kolo_fail_point_pass(point_name);                                        \
    } while (0)
/* A place in a function that returns a status: KOLO_FAULT_ERROR makes it return. */
#define KOLO_FAIL_POINT_TRY(point_name)                                                                            \
    do {                                                                                                           \
        KOLO_FAIL_POINT_LIST(point_name, true);                                                                    \
        if (KOLO_FAIL_POINTS_ARMED) KOLO_TRY(kolo_fail_point_pass(point_name));                                    \
    } while (0)
/* The list is a section of the program; its ends are symbols that the linker makes. */
#define KOLO_FAIL_POINT_LIST(point_name, point_returns)                                                            \
    static const kolo_fail_point_t kolo_fail_point_here                                                            \
        __attribute__((used, section("kolo_fail_points"), aligned(sizeof(void *)))) = {point_name, point_returns}

/* Counts a passage and does what a rule asks for: the slow half. Any thread. */
kolo_status_t kolo_fail_point_pass(const char *name);

/* Reads the rules (NULL or "": none). KOLO_ERR_INVALID_ARGUMENT for a name, hit or action that does not exist. */
kolo_status_t kolo_fail_points_arm(const char *rules);

/* Returns place `i` of the list, NULL behind the last. A name that stands at several places comes once for each. */
const kolo_fail_point_t *kolo_fail_point_at(size_t i);
const char *kolo_fault_name(kolo_fault_t fault);
/* Returns the fault of this name, KOLO_FAULT_NONE if it is none. */
kolo_fault_t kolo_fault_find(const char *name);

/* For tests: called at each passage while points are armed, before the fault is done (KOLO_FAULT_NONE: no rule
 * says anything here). KOLO_FAULT_NOMEM is all the hook's. Who
 * sets another one has the old one called by passages that are under way. */
extern void (*_Atomic kolo_fail_point_hook)(const char *name, kolo_fault_t fault);
/* Has passages call the hook though there is no rule, for tests. */
void kolo_fail_points_watch(void);

/* Resets this process's sockets. The functions below are the faults themselves, for a test that wants one at a
 * moment of its own. */
void kolo_fault_reset_sockets(void);
void kolo_fault_fill_descriptors(void);

#endif
