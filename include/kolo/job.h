/* SPDX-License-Identifier: Apache-2.0
 *
 * The job: which rank this process is, and the first communicator of all of them.
 *
 * Both come from the launcher's environment variables. The first of these whose variables are all set is used:
 *
 *     kolorun                              KOLO_RANK and more
 *     torchrun, and what sets the same     RANK, WORLD_SIZE, MASTER_ADDR and more
 *     mpirun of Open MPI                   OMPI_COMM_WORLD_RANK and more
 *     mpiexec of MPICH                     PMI_RANK and more
 *     srun of Slurm                        SLURM_PROCID and more
 *
 * Without a launcher: rank 0 of 1. KOLO_JOB_LAUNCHER chooses one where several have set theirs.
 *
 * How ranks find each other: kolorun names a file for the unique id (KOLO_ID_FILE). Elsewhere rank 0 writes it to a
 * file of mode 0600 in KOLO_JOB_DIR ($HOME/.kolo), which all hosts must share. Its name is made from the launcher's
 * variables about the job. It is removed once all have read it; the file of a job that died is not mistaken for it.
 * Without a shared directory, give all ranks a secret (KOLO_COMM_SECRET_FILE). They then meet at KOLO_COMM_ID, or
 * at an address made from the variables of torchrun (one of four ports above MASTER_PORT) or Slurm (the step's
 * first host, a port between 21000 and 30999 computed from the step's number). No secret is ever in the
 * environment.
 *
 * Jobs that run at the same time need different names. The variables of torchrun, mpirun and srun give one, for
 * jobs started by hand MASTER_PORT does; KOLO_JOB_NAME, the same on all ranks of a job, is added to it. MPICH's
 * mpiexec gives none: on one host its process id is used, on several KOLO_JOB_NAME must be set.
 */
#ifndef KOLO_JOB_H
#define KOLO_JOB_H

#include <kolo/kolo.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

typedef struct kolo_job_place {
    int rank, nranks; /* this process's, and how many there are */
    /* Among the ranks of this host, as the launcher counts; -1 and 0 if it does not say. kolo_engine_get_place()
     * counts without the launcher. */
    int local_rank, local_size;
    const char *launcher; /* "kolorun", "torchrun", "openmpi", "mpich", "slurm", or "none" */
} kolo_job_place_t;

/* Returns this process's place in the job, from the variables. Values that are no numbers, incomplete or contradict
 * each other are KOLO_ERR_INVALID_ARGUMENT, with the names of the variables. A worker of kolorun --min has no fixed
 * place: KOLO_ERR_INVALID_USAGE; use kolo_state_run(). Any thread. */
kolo_status_t kolo_job_get_place(kolo_job_place_t *place);

/* Makes a communicator of all ranks of the job. Collective: all ranks call it, equally often. config may be NULL.
 * Waits for the id at most the init timeout, then for the other ranks as kolo_comm_init_rank() does. With blocking
 * 0 the second part goes on after KOLO_IN_PROGRESS; then the file with the id stays until the job ends (kolorun) or
 * for good, and an id left by a dead job is an error of the communicator. The caller ends *comm with
 * kolo_comm_destroy(). Any thread, one at a time. */
kolo_status_t kolo_job_connect(kolo_comm_t *comm, const kolo_config_t *config);

/* Makes a communicator of some ranks of the job: ranks[0..count), each once, get the ranks 0 to count - 1 in it, in
 * this order. Collective over these ranks alone, which give the same list, each list equally often; the others do
 * not call it. config, waiting and the end are as with kolo_job_connect(). The first of the list makes the id:
 * where ranks meet at KOLO_COMM_ID that must be rank 0; at an address of another launcher lists that do not begin
 * with rank 0 take the file. A rank that is not in its list gets KOLO_ERR_INVALID_ARGUMENT. Any thread, one at a
 * time. With an id of one's own there is nothing to it: kolo_comm_init_rank() with the number of the ranks that
 * take part and each one's place among them. */
kolo_status_t kolo_job_connect_ranks(kolo_comm_t *comm, const int *ranks, int count, const kolo_config_t *config);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
