/* SPDX-License-Identifier: Apache-2.0
 *
 * Kolo against an MPI, in the MPI's processes. Compiled once per MPI (PEER_NAME).
 */
#include "loop.h"

#include <mpi.h>
#include <stdio.h>

static int call(int op, const float *src, float *dst, size_t n, int rank, int nranks, void *arg)
{
    int count = (int)n;
    (void)arg;
    (void)nranks;
    switch (op) {
    case OP_ALL_REDUCE:
        return MPI_Allreduce(src, dst, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    case OP_REDUCE:
        return MPI_Reduce(src, dst, count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
    case OP_BROADCAST:
        return MPI_Bcast(dst, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    case OP_ALL_GATHER:
        return MPI_Allgather(src, count, MPI_FLOAT, dst, count, MPI_FLOAT, MPI_COMM_WORLD);
    case OP_REDUCE_SCATTER:
        return MPI_Reduce_scatter_block(src, dst, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    case OP_ALL_TO_ALL:
        return MPI_Alltoall(src, count, MPI_FLOAT, dst, count, MPI_FLOAT, MPI_COMM_WORLD);
    default:
        break;
    }
    if (rank == 0) {
        MPI_Send(src, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(dst, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == 1) {
        MPI_Recv(dst, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(src, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
    }
    return 0;
}

int main(int argc, char **argv)
{
    int rank, nranks;
    kolo_unique_id_t id;
    kolo_comm_t comm;
    const peer_t peer = {PEER_NAME, call, NULL};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    if (rank == 0 && kolo_get_unique_id(&id) != KOLO_OK) {
        fprintf(stderr, "unique id: %s\n", kolo_get_last_error(NULL));
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (kolo_comm_init_rank(&comm, nranks, id, rank, NULL) != KOLO_OK) {
        fprintf(stderr, "init: %s\n", kolo_get_last_error(NULL));
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    int status = peers_run(&peer, comm, rank, nranks, argc, argv);
    if (kolo_comm_finalize(comm) != KOLO_OK || kolo_comm_destroy(comm) != KOLO_OK) {
        fprintf(stderr, "end: %s\n", kolo_get_last_error(NULL));
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
    return status;
}
