/* SPDX-License-Identifier: Apache-2.0
 *
 * A communicator of Kolo over any communicator of MPI: one rank makes an id, MPI tells it to the others. Nothing
 * else of MPI is used, so this is also how a program that has been moved to Kolo in part goes on. Build it with
 *     mpicc mpi_comm.c $(pkg-config --cflags --libs kolo)
 */
#include <kolo/kolo.h>
#include <mpi.h>
#include <stdio.h>

/* Collective over `from`; each of its ranks gets the same rank in *comm. The id has the secret of the communicator:
 * where others can read what MPI sends, give all ranks a secret of their own (KOLO_COMM_SECRET_FILE). */
static kolo_status_t comm_from_mpi(kolo_comm_t *comm, MPI_Comm from, const kolo_config_t *config)
{
    kolo_unique_id_t id = {{0}};
    int rank, nranks;
    MPI_Comm_rank(from, &rank);
    MPI_Comm_size(from, &nranks);
    int status = rank == 0 ? (int)kolo_get_unique_id(&id) : (int)KOLO_OK;
    MPI_Bcast(&status, 1, MPI_INT, 0, from); /* so that all end if there is no id */
    if (status != KOLO_OK) return (kolo_status_t)status;
    MPI_Bcast(&id, (int)sizeof id, MPI_BYTE, 0, from);
    return kolo_comm_init_rank(comm, nranks, id, rank, config);
}

int main(int argc, char **argv)
{
    int rank;
    float mine, sum = 0;
    MPI_Comm half;
    kolo_comm_t comm;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half); /* even and odd ranks, the last one first */
    mine = (float)(rank + 1);
    kolo_status_t status = comm_from_mpi(&comm, half, NULL);
    if (status == KOLO_OK) status = kolo_all_reduce(&mine, &sum, 1, KOLO_FLOAT32, KOLO_SUM, comm, NULL);
    if (status == KOLO_OK) status = kolo_comm_finalize(comm);
    if (status == KOLO_OK) status = kolo_comm_destroy(comm);
    if (status != KOLO_OK) fprintf(stderr, "rank %d: %s\n", rank, kolo_get_last_error(NULL));
    printf("rank %d: %g\n", rank, (double)sum);
    MPI_Comm_free(&half);
    MPI_Finalize();
    return status == KOLO_OK ? 0 : 1;
}
