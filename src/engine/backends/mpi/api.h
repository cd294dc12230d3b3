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

#define KOLO_MPI_API_VERSION 4
#define KOLO_MPI_WHY_BYTES   512
#define KOLO_MPI_BAND        100 /* operators besides KOLO_SUM, _PROD, _MIN, _MAX; of KOLO_UINT64 */
#define KOLO_MPI_BOR         101

/* inout[i] = in[i] op inout[i], in Kolo's own arithmetic. */
typedef void (*kolo_mpi_reduce_fn_t)(kolo_type_t type, kolo_op_t op, const void *in, void *inout, size_t count);

typedef struct kolo_mpi_comm kolo_mpi_comm_t;

typedef enum {
    KOLO_MPI_ALL_REDUCE,
    KOLO_MPI_REDUCE,
    KOLO_MPI_REDUCE_SCATTER,
    KOLO_MPI_BROADCAST, /* of what is at `out` */
    KOLO_MPI_ALL_GATHER,
    KOLO_MPI_GATHER,
    KOLO_MPI_ALL_TO_ALL,
    KOLO_MPI_SEND,
    KOLO_MPI_RECEIVE
} kolo_mpi_what_t;

/* An operation; of the members those that MPI's of that name has. */
typedef struct {
    kolo_mpi_what_t what;
    const void *in; /* all_gather: NULL, this rank's part is in its place */
    void *out;
    int count;                            /* of a gather: of this rank's part */
    const int *counts, *displs;           /* all_to_all: of the parts of `in` */
    const int *recv_counts, *recv_displs; /* all_to_all: of the parts of `out` */
    int type, op, peer;                   /* peer: the root, or the other rank */
} kolo_mpi_work_t;

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

    int (*begin)(kolo_mpi_comm_t *comm, const kolo_mpi_work_t *work, char *why);
    int (*poll)(kolo_mpi_comm_t *comm, int *done, char *why);
} kolo_mpi_api_t;

/* What a module exports. */
#define KOLO_MPI_SYMBOL "kolo_mpi_api"
extern const kolo_mpi_api_t kolo_mpi_api;

#endif
