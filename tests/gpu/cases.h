/* SPDX-License-Identifier: Apache-2.0
 *
 * One collective call on real buffers: what goes in, what must come out, and that nothing else was touched.
 */
#ifndef KOLO_TESTS_GPU_CASES_H
#define KOLO_TESTS_GPU_CASES_H

#include "kit.h"
#include "values.h"

typedef enum {
    CASE_ALL_REDUCE,
    CASE_REDUCE,
    CASE_BROADCAST,
    CASE_ALL_GATHER,
    CASE_REDUCE_SCATTER,
    CASE_ALL_TO_ALL,
    CASE_GATHER,
    CASE_SCATTER,
    CASE_ALL_GATHERV,
    CASE_REDUCE_SCATTERV,
    CASE_ALL_TO_ALLV,
    CASE_RING,     /* send to the next rank, receive from the one before */
    CASE_MESSAGES, /* several messages of different lengths to every rank, in one group */
    CASE_BARRIER,
    CASE_KINDS
} case_kind_t;
extern const char *const case_names[CASE_KINDS];

typedef struct {
    case_kind_t kind;
    size_t count;
    kolo_type_t type;
    int op; /* kolo_op_t or VALUES_PREMUL */
    int root;
    bool in_place; /* where there is such a form */
    size_t skew;   /* elements by which source and destination are off an aligned address */
    values_kind_t values;
    uint64_t seed;
    int stream;
} case_t;

#define CASE_GUARD 512 /* bytes around each buffer that nobody may touch */

/* Bytes of a rank's buffer that the case needs. */
size_t case_room(const case_t *c, int nranks);
bool case_reduces(case_kind_t kind);
bool case_has_place(case_kind_t kind);
/* The case at offset `at` of the ranks' buffers, queued: values go up, the call is made, all comes down. */
bool case_queue(kit_team_t *t, const case_t *c, size_t at);
/* After the stream has been waited for. */
bool case_check(kit_team_t *t, const case_t *c, size_t at);
bool case_sync(kit_team_t *t, const case_t *c);
/* All of it, and the same bits on all ranks. False: end the run. */
bool case_run(kit_team_t *t, const case_t *c);
void case_describe(const case_t *c, char *text, size_t bytes);

#endif
