/* SPDX-License-Identifier: Apache-2.0
 *
 * MPI as backend_mpi.c and talk_mpi.c use it: the module of the right MPI (mpi/api.h), communicators of it over
 * the ranks of a process set, and operations that take any count and end when a rank is lost. MPI's ranks are found
 * out at the start of each engine, so an engine over fewer ranks than before just has other communicators.
 */
#ifndef KOLO_ENGINE_BACKENDS_USE_MPI_H
#define KOLO_ENGINE_BACKENDS_USE_MPI_H

#include "engine/backends/backend.h"
#include "engine/backends/mpi/api.h"

extern int64_t kolo_mpi_which, kolo_mpi_chunk; /* parameters; AUTO, OPENMPI or MPICH of use_mpi.c */
extern const char *kolo_mpi_modules;

typedef struct {
    kolo_set_t *set;
    const kolo_mpi_api_t *api;
    kolo_mpi_comm_t *comm;
    int rank, size;
    int *tables;                  /* four of `size` */
    bool dirty;                   /* something was begun and not polled to its end */
    const _Atomic uint32_t *stop; /* not 0: no operation waits any longer; NULL: the engine's end alone ends them */
} kolo_mpi_t;

/* Finds MPI, and which of its ranks are the job's: e->mpi_ranks. Collective over the job, also where it fails. */
kolo_status_t kolo_mpi_open(struct kolo_tensor_engine *e);
void kolo_mpi_close(struct kolo_tensor_engine *e); /* may be called for each that has opened */
/* Opens it as kolo_backend_t has it. */
kolo_status_t kolo_mpi_open_backend(struct kolo_tensor_engine *e, void **state);
void kolo_mpi_close_backend(struct kolo_tensor_engine *e, void *state);
/* A communicator over the set, or over some ranks of it (`rank` is this one's place among them); two of one purpose
 * must not be made at once, but by ranks that have none in common. */
enum { KOLO_MPI_BACKEND, KOLO_MPI_TALK, KOLO_MPI_LEVELS, KOLO_MPI_PURPOSES = KOLO_MPI_LEVELS + 2 };
kolo_status_t kolo_mpi_meet(kolo_set_t *s, int purpose, kolo_mpi_t **mpi);
kolo_status_t kolo_mpi_meet_some(kolo_set_t *s, const int *members, int count, int rank, int purpose,
                                 kolo_mpi_t **mpi);
void kolo_mpi_leave(void *mpi, bool abort);
void kolo_mpi_free(void *mpi);

/* ---- run_mpi.c ---- */
/* Does what Kolo's own of that name does; so do those below. KOLO_AVG is taken of floats, by all_reduce. */
kolo_status_t kolo_mpi_all_reduce(kolo_mpi_t *m, const void *in, void *out, size_t count, kolo_type_t type, int op);
kolo_status_t kolo_mpi_broadcast(kolo_mpi_t *m, void *data, size_t count, kolo_type_t type, int root);
kolo_status_t kolo_mpi_all_gather(kolo_mpi_t *m, const void *in, void *out, const size_t *counts,
                                  const size_t *displs, kolo_type_t type);
/* Runs a move, as backends and groups have it, over the communicator's ranks. */
kolo_status_t kolo_mpi_run(void *mpi, const kolo_move_t *move);
/* Moves the bytes of all ranks but the first, one behind the other, to the first. lengths: of all, on all. */
kolo_status_t kolo_mpi_gather(kolo_mpi_t *m, const void *in, void *out, const uint64_t *lengths);
/* Sends to another rank, which receives just as many bytes. */
kolo_status_t kolo_mpi_send(kolo_mpi_t *m, const void *in, size_t bytes, int to);
kolo_status_t kolo_mpi_receive(kolo_mpi_t *m, void *out, size_t bytes, int from);

#endif
