/* SPDX-License-Identifier: Apache-2.0
 *
 * A device for tests where there is none: it has memory of its own, which only the threads of its queues can touch
 * (everybody else faults), and queues that take their time. Host memory that was not pinned ends the test. It
 * breaks when it is told to.
 */
#ifndef KOLO_TESTS_ENGINE_KIT_FAKE_DEVICE_H
#define KOLO_TESTS_ENGINE_KIT_FAKE_DEVICE_H

#include "engine/batch/device.h"

typedef struct fake fake_t;
typedef struct fake_queue fake_queue_t;
typedef struct fake_event fake_event_t;

#define FAKE_TELLS    1 /* it calls back when an event or a mark has come; else it is asked */
#define FAKE_PUNCTUAL 2 /* it does not dawdle */

/* Made known to Kolo under this number. All that are there at a time have the same flags. Ended after the last
 * engine that uses it. */
fake_t *fake_new(int number, uint64_t seed, unsigned flags);
void fake_end(fake_t *f);

void *fake_alloc(fake_t *f, size_t bytes);
void fake_free(fake_t *f, void *memory);

/* A queue of the user's own. */
fake_queue_t *fake_queue_new(fake_t *f);
void fake_queue_end(fake_queue_t *q); /* done with its work */
/* Queued; the bytes are copied by the call. */
void fake_write(fake_queue_t *q, void *memory, const void *bytes, size_t count);
/* Waits until they are there. */
void fake_read(fake_queue_t *q, const void *memory, void *bytes, size_t count);
/* An event behind what is queued. It may be ended before the queue has come to it. */
fake_event_t *fake_event_new(fake_queue_t *q);
void fake_event_end(fake_event_t *event);
/* Nothing more is done in this queue until it may go on. */
void fake_hold(fake_queue_t *q);
void fake_go(fake_queue_t *q);

typedef enum { FAKE_LIFT, FAKE_FETCH, FAKE_STORE, FAKE_EVENT, FAKE_NEVER } fake_step_t;
/* From the n-th such step on (0: the next) the device is broken and does nothing. */
void fake_break(fake_t *f, fake_step_t step, int n);
/* The queues of engines get stuck, whatever they have to do; and come back. */
void fake_jam(fake_t *f);
void fake_unjam(fake_t *f);
/* Ends the queues, and gives up the memory and the pins, of engines that have ended without. */
void fake_bury(fake_t *f);
/* Steps that queues still have to do. */
int fake_left(fake_t *f);
/* Steps of this kind that engines have asked for. */
int fake_steps(fake_t *f, fake_step_t step);

#endif
