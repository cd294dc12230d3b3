/* SPDX-License-Identifier: Apache-2.0
 *
 * What libkolo asks of an MPI. There is no MPI ABI: handles are pointers in one library and numbers in another. So
 * module.c is compiled once per MPI, against its own mpi.h, into a small module that libkolo loads when somebody
 * wants MPI; libkolo itself neither links nor includes any MPI, and one libkolo serves all of them.
 *
 * Functions that can fail return 0, or 1 with a sentence in `why`. Begun operations run one after the other: each
 * is polled to its end before the next one begins, except that a send and a receive may be begun together. All
 * counts are what MPI takes, int; who has more cuts it into pieces. Types and operators are kolo.h's.
 */
#ifndef KOLO_ENGINE_BACKENDS_MPI_API_H
#define KOLO_ENGINE_BACKENDS_MPI_API_H

#include <kolo/kolo.h>
#include <stddef.h>
#include <stdint.h>

#define KOLO_MPI_API_VERSION 3
#define KOLO_MPI_WHY_BYTES   512
#define KOLO_MPI_BAND        100 /* operators besides KOLO_SUM, _PROD, _MIN, _MAX; of KOLO_UINT64 */
#define KOLO_MPI_BOR         101

/* inout[i] = in[i] op inout[i], in Kolo's own arithmetic. */
typedef void (*kolo_mpi_reduce_fn_t)(kolo_type_t type, kolo_op_t op, const void *in, void *inout, size_t count);

typedef struct kolo_mpi_comm kolo_mpi_comm_t;

typedef struct {
    uint32_t version;
    const char *library;
    /* Once per process: initialises MPI if nobody has, and then finalises it when the process exits; an MPI that
     * somebody else has initialised is left to him. Needs MPI_THREAD_MULTIPLE. */
    int (*start)(kolo_mpi_reduce_fn_t reduce, int *world_rank, char *why);
    /* A rank may be lost: MPI is not finalised, for that could wait for ever. unusable: what was begun will never
     * be polled to its end, so that MPI may still touch its memory. */
    void (*spoil)(int unusable);
    /* A communicator of these ranks of MPI_COMM_WORLD, in this order. Collective over them. */
    int (*make)(const int *world_ranks, int count, int tag, kolo_mpi_comm_t **comm, char *why);
    int (*size)(const kolo_mpi_comm_t *comm);
    void (*drop)(kolo_mpi_comm_t *comm, int collective); /* 0: MPI is not told, its memory stays */

    int (*all_reduce)(kolo_mpi_comm_t *comm, const void *in, void *out, int count, int type, int op, char *why);
    int (*reduce)(kolo_mpi_comm_t *comm, const void *in, void *out, int count, int type, int op, int root,
                  char *why);
    int (*reduce_scatter)(kolo_mpi_comm_t *comm, const void *in, void *out, const int *counts, int type, int op,
                          char *why);
    int (*broadcast)(kolo_mpi_comm_t *comm, void *data, int count, int type, int root, char *why);
    /* in NULL: this rank's part is in its place. */
    int (*all_gather)(kolo_mpi_comm_t *comm, const void *in, int count, void *out, const int *counts,
                      const int *displs, int type, char *why);
    int (*gather)(kolo_mpi_comm_t *comm, const void *in, int count, void *out, const int *counts, const int *displs,
                  int type, int root, char *why);
    int (*all_to_all)(kolo_mpi_comm_t *comm, const void *in, const int *counts, const int *displs, void *out,
                      const int *recv_counts, const int *recv_displs, int type, char *why);
    int (*send)(kolo_mpi_comm_t *comm, const void *in, int count, int type, int to, char *why);
    int (*receive)(kolo_mpi_comm_t *comm, void *out, int count, int type, int from, char *why);
    int (*poll)(kolo_mpi_comm_t *comm, int *done, char *why);
} kolo_mpi_api_t;

/* What a module exports. */
#define KOLO_MPI_SYMBOL "kolo_mpi_api"
extern const kolo_mpi_api_t kolo_mpi_api;

#endif
