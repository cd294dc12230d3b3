/* SPDX-License-Identifier: Apache-2.0
 *
 * Kolo's state: lets a training job continue when ranks are lost, added or removed.
 *
 * A program registers the buffers that make up its state (weights, moments, step number) and passes its training
 * function to kolo_state_run(). The function commits wherever the state is consistent. When a rank is lost, the
 * others make a communicator of the survivors, restore the last commit and call the function again. When the
 * launcher adds or removes ranks (kolorun --min --max --discover), all ranks learn of it from the same commit,
 * change the communicator, send the last commit to new ranks and call the function again. Old ranks keep their
 * order, new ones come after them.
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
 * Languages without callbacks, and programs that would rather have a loop, use kolo_state_enter() and
 * kolo_state_next() instead of kolo_state_run(); what follows is the same:
 *
 *     int again;
 *     kolo_status_t status = kolo_state_enter(state);
 *     while ((status = kolo_state_next(state, status, &again)) == KOLO_OK && again) status = train(state, NULL);
 *
 * "The function" below is then what the loop does between two calls of kolo_state_next().
 *
 * State whose size changes (text, a list of samples that were seen) is not a buffer but a value, which the state
 * keeps: kolo_state_put() and kolo_state_get().
 *
 * A commit is valid on all ranks or on none: if one survivor saw it succeed, all continue from it, so no step is
 * lost or done twice. The state survives as long as one rank with a commit does.
 *
 * Threads: a state is used by one thread at a time.
 * Errors: as in kolo.h; kolo_get_last_error(NULL) says why a call failed.
 *
 * Arguments: these names mean the same in all functions.
 *
 *     state  the state
 *     arg    handed to fn as it is
 *     name   of a buffer or value: 1 to KOLO_STATE_NAME_MAX bytes, each once
 *     info   set to what is known
 *     comm   set to the communicator
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
    uint32_t size;  /* sizeof of the caller's struct: newer fields than the caller knows take defaults */
    uint32_t magic; /* KOLO_STATE_CONFIG_MAGIC */
    /* The ranks that start, blocking or not; the state owns it from kolo_state_run() on. NULL: the job of the
     * launcher (kolo/job.h; kolorun with --min or without); one rank without a launcher. */
    kolo_comm_t comm;
    int min_ranks;         /* the function is not called with fewer ranks. Default: kolorun's --min, or 1 */
    int change_timeout_ms; /* limit of one change of the ranks. KOLO_STATE_CHANGE_MS: 60000 */
} kolo_state_config_t;
#define KOLO_STATE_CONFIG_INITIALIZER                                                                              \
    {                                                                                                              \
        sizeof(kolo_state_config_t), KOLO_STATE_CONFIG_MAGIC, NULL, KOLO_UNDEFINED_INT, KOLO_UNDEFINED_INT         \
    }

/* Makes an empty state. Local. config may be NULL. The caller frees it with kolo_state_destroy(). */
kolo_status_t kolo_state_create(kolo_state_t *state, const kolo_state_config_t *config);
/* Adds `bytes` bytes at `buffer` to the state, under a name of 1 to KOLO_STATE_NAME_MAX bytes. All ranks register
 * the same names and sizes in the same order, before kolo_state_run(). Else all get KOLO_ERR_MISMATCH when they
 * meet; if only newcomers differ, only they get it. The buffers of rank 0 at the start of the job are commit 0. The
 * memory stays the caller's and must stay valid at this address; the state holds two copies of it. */
kolo_status_t kolo_state_register(kolo_state_t state, const char *name, void *buffer, size_t bytes);
/* Makes a copy of `bytes` bytes at `data` (0: an empty value, then data may be NULL) the value of this name. It is
 * part of the next commit, and kolo_state_restore() brings it back as it was in the last one, with its size. A name
 * is put for the first time before kolo_state_run(), on all ranks in the same order among all registered names; the
 * sizes may differ, those of rank 0 count. Later any size may be put, between commits. KOLO_ERR_NO_MEMORY leaves
 * the value as it was. */
kolo_status_t kolo_state_put(kolo_state_t state, const char *name, const void *data, size_t bytes);
/* Sets *data and *bytes to the present value of this name; an empty one is NULL and 0. The memory is the state's:
 * it is valid until this name is put again, or a restore or a change of the ranks puts another value there. */
kolo_status_t kolo_state_get(kolo_state_t state, const char *name, const void **data, size_t *bytes);
/* Frees the state and its values, and its communicator without waiting for any rank. Not from inside the function
 * of kolo_state_run(); between two calls of kolo_state_next() it ends the job on this rank. NULL is fine. */
kolo_status_t kolo_state_destroy(kolo_state_t state);

/* Calls fn, and calls it again after each change of the ranks, until it returns KOLO_OK on all of them. Collective
 * over the ranks that start. A process that kolorun starts later calls it, too, and joins at a commit. A state runs
 * once; for another run make another one.
 *
 * What fn returns: KOLO_OK: all is done (the other ranks must return it at the same point). KOLO_ERR_REMOTE,
 * _ABORTED or _REVOKED: a rank is lost, or another rank's call failed because of a loss; the survivors restore the
 * last commit and fn is called again. KOLO_IN_PROGRESS, from a commit: the ranks change. Anything else ends the job
 * on this rank, and kolo_state_run() returns it. Before it returns, fn destroys all it has made from the
 * communicator (an engine with kolo_engine_abort() after an error), since that communicator is not used again.
 *
 * Returns KOLO_OK when all is done; KOLO_IN_PROGRESS when the launcher removed this process and the job goes on
 * without it; KOLO_ERR_REMOTE when fewer than min_ranks are left and none can be added; KOLO_ERR_MISMATCH, also
 * after the last step, when the ranks have called different collectives, and results may be wrong. */
kolo_status_t kolo_state_run(kolo_state_t state, kolo_status_t (*fn)(kolo_state_t state, void *arg), void *arg);

/* Starts what kolo_state_run() does, as a loop of the program's: waits for the first communicator, or, in a process
 * that comes later, for its place in it. Collective over the ranks that start. Its result goes to the first
 * kolo_state_next(), also when it is an error. Instead of kolo_state_run(), once. */
kolo_status_t kolo_state_enter(kolo_state_t state);
/* Takes the result of the function's last round, or of kolo_state_enter(), and does all that is to be done before
 * the next: restores the last commit after a loss, changes the ranks. Sets *again to 1, and returns KOLO_OK: the
 * function is to be called (again). Sets *again to 0: the loop ends, with what kolo_state_run() would return. A
 * loop that leaves without this call ends by kolo_state_destroy(). */
kolo_status_t kolo_state_next(kolo_state_t state, kolo_status_t result, int *again);

/* Saves the present content of the buffers and values as the newest commit. Collective, only from the function of
 * kolo_state_run(), which returns any status but KOLO_OK at once. KOLO_IN_PROGRESS: the commit has succeeded, and
 * ranks will be added or removed; all ranks get it from the same commit. */
kolo_status_t kolo_state_commit(kolo_state_t state);
/* Copies the last commit back into the buffers and values. Local. KOLO_ERR_INVALID_USAGE without a commit. */
kolo_status_t kolo_state_restore(kolo_state_t state);
/* Copies the newest commit of any rank into the buffers and values of all ranks. Collective over the communicator.
 * kolo_state_run() does this after each change; call it only after changing buffers without a commit. */
kolo_status_t kolo_state_sync(kolo_state_t state);

/* Returns the present communicator. The state owns it; it is invalid after the next change. */
kolo_status_t kolo_state_comm(kolo_state_t state, kolo_comm_t *comm);

typedef struct kolo_state_info {
    int rank, nranks; /* in the present communicator */
    uint64_t commits; /* of the whole job, also before this rank joined */
    uint64_t changes; /* communicators of this rank, without its first */
    uint64_t losses;  /* how many of them were made after a loss */
    uint64_t plan;    /* the number of the launcher's last change that was tried, 0 if none */
    uint64_t synced;  /* bytes that this rank has sent or received in syncs */
} kolo_state_info_t;

/* Returns counters and place of this rank. */
kolo_status_t kolo_state_get_info(kolo_state_t state, kolo_state_info_t *info);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
