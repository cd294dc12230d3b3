/* SPDX-License-Identifier: Apache-2.0
 *
 * Kolo's state: what lets a training job go on when a rank is lost, when ranks come and when they go.
 *
 * A program registers the buffers that make up its state (weights, moments, the number of the step), and hands the
 * function that trains to kolo_state_run(). The function commits at points at which the state is whole. When a rank
 * is lost, the others do not start again: they make a communicator of those that are left, take the last commit
 * back and call the function once more. When ranks come or go by the launcher's word (kolorun --min --max
 * --discover), all ranks learn of it from the same commit, change the communicator, give those that are new the
 * last commit, and call the function once more. Old ranks keep their order, new ones come after them.
 *
 *     static kolo_status_t train(kolo_state_t state, void *arg)
 *     {
 *         kolo_comm_t comm;
 *         KOLO_TRY(kolo_state_comm(state, &comm));       (anything but KOLO_OK is returned at once)
 *         while (step < last) {
 *             ... one step on comm, which changes the registered buffers; step++ ...
 *             KOLO_TRY(kolo_state_commit(state));
 *         }
 *         return KOLO_OK;
 *     }
 *
 * A commit counts everywhere or nowhere: if one survivor has seen it succeed, all go on from it, so that no step is
 * lost or done twice. As long as one rank that has a commit lives, the state lives.
 *
 * Threads: a state is used by one thread at a time.
 * Errors: as in kolo.h; the sentence of a failure is kolo_get_last_error(NULL).
 */
#ifndef KOLO_STATE_H
#define KOLO_STATE_H

#include <kolo/kolo.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

typedef struct kolo_state *kolo_state_t;

#define KOLO_STATE_NAME_MAX     127         /* bytes of a name */
#define KOLO_STATE_CONFIG_MAGIC 0x6b6f7374u /* "kost" */

/* Options of one state. Start from KOLO_STATE_CONFIG_INITIALIZER. */
typedef struct kolo_state_config {
    uint32_t size;         /* sizeof of the caller's struct: newer fields than the caller knows take defaults */
    uint32_t magic;        /* KOLO_STATE_CONFIG_MAGIC */
    kolo_comm_t comm;      /* the ranks that begin, blocking or not; the state owns it from kolo_state_run() on.
                              NULL: the job that kolorun started, with --min or without, or another launcher
                              (kolo/job.h); one rank without any */
    int min_ranks;         /* the function is not called with fewer. Default: kolorun's --min, or 1 */
    int change_timeout_ms; /* limit of one change of the ranks. KOLO_STATE_CHANGE_MS: 60000 */
} kolo_state_config_t;
#define KOLO_STATE_CONFIG_INITIALIZER                                                                              \
    {                                                                                                              \
        sizeof(kolo_state_config_t), KOLO_STATE_CONFIG_MAGIC, NULL, KOLO_UNDEFINED_INT, KOLO_UNDEFINED_INT         \
    }

/* Makes an empty state. Local. config may be NULL. */
kolo_status_t kolo_state_create(kolo_state_t *state, const kolo_state_config_t *config);
/* Adds `bytes` bytes at `buffer` to the state, under a name of 1 to KOLO_STATE_NAME_MAX bytes. All ranks register
 * the same names and sizes in the same order, before kolo_state_run(): else KOLO_ERR_MISMATCH when they meet, or,
 * if only newcomers have others, on those alone. What lies in the buffers of rank 0 when the job begins is commit
 * 0. The memory stays the caller's and must stay where it is; the state holds two copies of it. */
kolo_status_t kolo_state_register(kolo_state_t state, const char *name, void *buffer, size_t bytes);
/* Frees the state, and its communicator without waiting for any rank. Not from inside kolo_state_run(). NULL is
 * fine. */
kolo_status_t kolo_state_destroy(kolo_state_t state);

/* Calls fn, and again after each change of the ranks, until it returns KOLO_OK on all of them. Collective over the
 * ranks that begin; a process that kolorun starts later calls it, too, and comes in when it can.
 *
 * What fn returns: KOLO_OK, all is done (the other ranks must say so at the same point). KOLO_ERR_REMOTE, _ABORTED
 * or _REVOKED: a rank is lost, or another rank's call has failed for that; the ranks that are left take the last
 * commit back and fn is called again. KOLO_IN_PROGRESS, from a commit: the ranks change. Anything else ends the job
 * on this rank, and kolo_state_run() returns it. Before it returns, fn destroys what it has made from the
 * communicator (an engine, by kolo_engine_abort() after an error): it is not used again.
 *
 * Returns KOLO_OK when all is done; KOLO_IN_PROGRESS when the job goes on without this process, whose place has
 * been taken away; KOLO_ERR_REMOTE when fewer than min_ranks are left and nobody can come. */
kolo_status_t kolo_state_run(kolo_state_t state, kolo_status_t (*fn)(kolo_state_t state, void *arg), void *arg);

/* Keeps what lies in the buffers now as the newest commit. Collective, only from the function of kolo_state_run().
 * Returns KOLO_IN_PROGRESS when ranks are to come or go: the commit has succeeded, and all ranks get this from the
 * same one; the function returns it. After an error the function returns that. */
kolo_status_t kolo_state_commit(kolo_state_t state);
/* Puts the last commit back into the buffers. Local. KOLO_ERR_INVALID_USAGE without a commit. */
kolo_status_t kolo_state_restore(kolo_state_t state);
/* Gives the newest commit of any rank to all, and puts it into the buffers. Collective over the communicator.
 * kolo_state_run() does it after each change; only who changes buffers without a commit needs it. */
kolo_status_t kolo_state_sync(kolo_state_t state);

/* Tells the communicator of now: owned by the state, gone at the next change. */
kolo_status_t kolo_state_comm(kolo_state_t state, kolo_comm_t *comm);

typedef struct kolo_state_info {
    int rank, nranks; /* in the communicator of now */
    uint64_t commits; /* of the whole job: also of the time before this rank came */
    uint64_t changes; /* communicators that this rank has been in, but for its first */
    uint64_t losses;  /* of them those made after a loss */
    uint64_t plan;    /* the last change by the launcher's word that was tried, 0 if none */
    uint64_t synced;  /* bytes that this rank has sent or got in syncs */
} kolo_state_info_t;

/* The state of this rank. */
kolo_status_t kolo_state_get_info(kolo_state_t state, kolo_state_info_t *info);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
