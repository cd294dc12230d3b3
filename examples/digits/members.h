/* SPDX-License-Identifier: Apache-2.0
 *
 * Who trains together: the communicator of a worker, and how it changes when a rank is lost or a new one comes; and
 * the engine, which is made anew on each.
 */
#ifndef DIGITS_MEMBERS_H
#define DIGITS_MEMBERS_H

#include "train.h"

#include <kolo/engine.h>

#define MEMBERS_MOST 16

typedef struct {
    kolo_comm_t comm;
    kolo_tensor_engine_t engine; /* NULL until members_engage(), and after each change */
    int rank, nranks;
    char error[400]; /* of the last call that failed */
} members_t;

typedef struct {
    bool equal;    /* step and hash are the same on all ranks */
    uint64_t wish; /* the greatest that a rank has passed */
} agreement_t;

/* The first communicator, by an id that rank 0 has made. */
kolo_status_t members_start(members_t *m, kolo_unique_id_t id, int nranks, int rank);
/* Starts the engine. With a folder it writes a timeline, one file for each rank: "STEP-of-RANKS.RANK.json". Another
 * rank may be lost in here, too. */
kolo_status_t members_engage(members_t *m, const char *folder, uint64_t step);
/* Has a rank been lost (or the call of another rank failed because of that), so that mending helps? */
bool members_is_loss(kolo_status_t status);
/* After a loss: goes on with the ranks that are left, as all of them agree. */
kolo_status_t members_mend(members_t *m);

/* Takes in one more rank, a new process, as the last. Collective over the old ranks; rank 0 has made the id by
 * members_make_id() and handed it to the newcomer, which calls members_join(). What fails for one fails for all;
 * the old ranks then mend, whatever the status, as it may be that of one of them. */
kolo_status_t members_make_id(members_t *m, kolo_unique_id_t *id);
kolo_status_t members_grow(members_t *m, const kolo_unique_id_t *id);
kolo_status_t members_join(members_t *m, kolo_unique_id_t id, int nranks);

/* Do all ranks have this state? */
kolo_status_t members_agree(members_t *m, uint64_t step, uint64_t hash, uint64_t wish, agreement_t *agreement);
/* After a change: all ranks get the newest committed state. Where one rank has committed a step, each that was
 * there has seen all sums of it: its own next state is the same, and is compared with what is sent. `has_state` is
 * false for a newcomer. *greatest becomes the greatest of all ranks. *equal: no rank had another state of the same
 * step. */
kolo_status_t members_settle(members_t *m, train_t *t, bool has_state, uint64_t *greatest, bool *equal);
/* Ends together with the others. */
kolo_status_t members_end(members_t *m);
/* Ends alone, wherever the others are. */
void members_abort(members_t *m);

#endif
