/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of the conformance program that are not single calls.
 */
#ifndef KOLO_TESTS_GPU_CONFORM_H
#define KOLO_TESTS_GPU_CONFORM_H

#include "kit.h"

/* The default streams, two communicators, one communicator's calls on two streams, captured ones. */
bool conform_streams(kit_team_t *t);
/* Random calls, several under way on several streams, for options->stress_s seconds; all values checked. */
bool conform_stress(kit_team_t *t);
/* options->calls small calls on the same memory, one behind the other, checked every few. */
bool conform_chain(kit_team_t *t);
/* options->fresh calls on memory that comes and goes: more allocations than others map of a rank. */
bool conform_fresh(kit_team_t *t);
/* options->soak calls of mixed kinds and lengths, whose values are checked on the GPU; from graphs, if it says so.
 */
bool conform_soak(kit_team_t *t);
/* options->order random reductions of a communicator whose config.order is KOLO_ORDER_RANKS. */
bool conform_order(kit_team_t *t);
/* Types and operators of integers and bool that the other cases do not have. */
bool conform_bits(kit_team_t *t);
/* What users and machines do wrong. Makes its own communicators. */
void conform_faults(kit_team_t *t);
/* Calls that one rank alone refuses. Makes its own communicators. */
bool conform_refused(kit_team_t *t);
/* Buffers over pieces that the program has mapped beside each other. */
bool conform_vmm(kit_team_t *t);
/* Streams that come and go, groups on several of them, refused ones, ones of many messages; captures and replays.
 */
bool conform_clients(kit_team_t *t);
/* What a short call asks of the driver. */
bool conform_counts(kit_team_t *t);
/* Memory after an abort, GPUs of which others have a part, launches that may block. */
bool conform_places(kit_team_t *t);
/* options->programs random programs: calls, groups, captures, replays, streams that go, aborts. */
bool conform_programs(kit_team_t *t);
/* Windows: puts, signals, waits. Ends with communicators that were aborted. */
bool conform_windows(kit_team_t *t);
/* Two processes with one GPU each, which is the same. */
void conform_twice(kit_team_t *t);

#endif
