/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop that runs the cycles, and how ranks that sleep are woken.
 */
#ifndef KOLO_ENGINE_LOOP_LOOP_H
#define KOLO_ENGINE_LOOP_LOOP_H

#include "engine/controller/negotiate.h"
#include "engine/sets/sets.h"

typedef struct {
    int *neighbours; /* who is told by this rank */
    int count;
    bool direct;             /* all ranks are neighbours: nobody passes on */
    _Atomic uint64_t called; /* number of the latest cycle that somebody asked for */
    _Atomic uint64_t sent;   /* notifications of this rank's own, for tests */
    /* the loop's */
    bool owes;         /* this rank is in the next cycle, and calls the others if it has to wait for them */
    uint64_t since_ns; /* when it came there */
    size_t words;      /* of the last cycle's vector, for which there are connections */
    bool settled;      /* no rank sleeps on what others have not submitted, as far as this one knows */
} kolo_wake_t;

/* wake.c */
#define KOLO_WAKE_FAN_OUT 8
extern uint64_t kolo_wake_patience_ns; /* that the others have to come by themselves; tests have more */
kolo_status_t kolo_wake_init(struct kolo_tensor_engine *e); /* collective */
void kolo_wake_fini(struct kolo_tensor_engine *e);
/* Asks all ranks to begin this cycle, unless somebody has: at once, or when this rank has waited for them there. */
kolo_status_t kolo_wake_call(struct kolo_tensor_engine *e, uint64_t cycle);
/* Notes that all ranks have come to the cycle, with vectors of this length; and what came of it. */
void kolo_wake_met(struct kolo_tensor_engine *e, size_t words);
void kolo_wake_note(struct kolo_tensor_engine *e, const kolo_outcome_t *outcome);
bool kolo_wake_called(const struct kolo_tensor_engine *e, uint64_t cycle);

/* Runs the thread (loop.c). */
void *kolo_engine_loop(void *engine);
void kolo_engine_loop_calls(void *engine, bool begins); /* of the engine's queue */

/* sleep.c */
/* Sleeps until there is something to do, and tells for which set. */
kolo_status_t kolo_engine_sleep(struct kolo_tensor_engine *e, kolo_set_t **set);
void kolo_engine_look_for_stalls(struct kolo_tensor_engine *e);

#endif
