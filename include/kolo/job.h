/* SPDX-License-Identifier: Apache-2.0
 *
 * The job: which rank this process is, and the first communicator of all of them.
 *
 * It comes from the launcher's environment variables. The first launcher whose variables are all there counts:
 *
 *     kolorun                              KOLO_RANK and more
 *     torchrun, and what sets the same     RANK, WORLD_SIZE, MASTER_ADDR and more
 *     mpirun of Open MPI                   OMPI_COMM_WORLD_RANK and more
 *     mpiexec of MPICH                     PMI_RANK and more
 *     srun of Slurm                        SLURM_PROCID and more
 *
 * None: rank 0 of 1. KOLO_JOB_LAUNCHER names the one that counts where several have left theirs.
 *
 * How ranks find each other: kolorun gives them a place for the unique id (KOLO_ID_FILE). Elsewhere rank 0 puts it
 * into a file of mode 0600 in KOLO_JOB_DIR ($HOME/.kolo), which all hosts must share, under a name that follows
 * from the launcher's variables about the job; it is removed once all have read it, and what a job that died has
 * left is not taken for it. Where there is no such directory, give all ranks a secret (KOLO_COMM_SECRET_FILE): then
 * they meet at KOLO_COMM_ID, or at an address made of what torchrun or Slurm tell (one of four ports above
 * MASTER_PORT; the step's first host and a port between 21000 and 30999 that follows from the step's number). No
 * secret is ever in the environment.
 *
 * Jobs that run at the same time need names of their own. What torchrun, mpirun and srun tell makes one,
 * MASTER_PORT for jobs that were started by hand; KOLO_JOB_NAME, the same on all ranks of a job, adds to it.
 * MPICH's mpiexec gives none: on one host its process makes the name, on several KOLO_JOB_NAME must be set.
 */
#ifndef KOLO_JOB_H
#define KOLO_JOB_H

#include <kolo/kolo.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

typedef struct kolo_job_place {
    int rank, nranks;
    /* Among the ranks of this host, as the launcher counts; -1 and 0 where it does not tell. The engine counts
     * itself (kolo_engine_get_place()). */
    int local_rank, local_size;
    const char *launcher; /* "kolorun", "torchrun", "openmpi", "mpich", "slurm", or "none" */
} kolo_job_place_t;

/* Reads the variables. What is no number, is only half there, or does not fit together is KOLO_ERR_INVALID_ARGUMENT
 * with the names of the variables. A worker of kolorun --min has no fixed place: KOLO_ERR_INVALID_USAGE, use
 * kolo_state_run(). Any thread. */
kolo_status_t kolo_job_get_place(kolo_job_place_t *place);

/* Makes a communicator of all ranks of the job. All ranks must call it, and equally often. config may be NULL.
 * Waits at most the init timeout for the id, then as kolo_comm_init_rank() does. With blocking 0 that part goes on
 * behind KOLO_IN_PROGRESS; the file with the id then stays until the job ends (kolorun) or for good, and an id that
 * a job which died has left is an error of the communicator. Any thread, but one at a time. */
kolo_status_t kolo_job_connect(kolo_comm_t *comm, const kolo_config_t *config);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
