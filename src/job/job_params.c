/* SPDX-License-Identifier: Apache-2.0
 *
 * The variables of launchers, in a parameter table as all that comes from the environment. They are texts: names
 * like RANK may mean anything in a program that no launcher has started, so they are looked at only when a job is
 * asked for.
 */
#include "base/params.h"
#include "comm/params.h"
#include "job/job.h"

kolo_job_values_t kolo_job_values;

#define TEXT      KOLO_PARAM_STR, NULL, 0, 0, NULL, false
#define FILE_NAME KOLO_PARAM_FILE, NULL, 0, 0, NULL, false
static const kolo_param_t rows[] = {
    {"KOLO_JOB_LAUNCHER", KOLO_PARAM_ENUM, "auto", 0, 0, "auto|kolorun|torchrun|openmpi|mpich|slurm|none", false,
     "job: whose variables give rank and size; auto: the first in this order that are all there; none: rank 0 of 1",
     &kolo_job_values.launcher},
    {"KOLO_JOB_DIR", FILE_NAME,
     "job: directory, shared by all hosts, in which ranks find each other under other launchers than kolorun; not "
     "set: $HOME/.kolo",
     &kolo_job_values.dir},
    {"KOLO_JOB_NAME", TEXT,
     "job: a text that all ranks of a job share and other jobs do not, where the launcher's variables are not "
     "enough",
     &kolo_job_values.name},
    {"HOME", FILE_NAME, "job: where KOLO_JOB_DIR is if it is not set", &kolo_job_values.home},
    {"KOLO_RANK", TEXT, "job: rank, as kolorun sets it", &kolo_job_values.rank},
    {"KOLO_NRANKS", TEXT, "job: number of ranks, as kolorun sets it", &kolo_job_values.size},
    {"KOLO_LOCAL_RANK", TEXT, "job: rank among those of this host, as kolorun sets it",
     &kolo_job_values.local_rank},
    {"KOLO_LOCAL_SIZE", TEXT, "job: number of ranks on this host, as kolorun sets it", &kolo_job_values.local_size},
    {"KOLO_ID_FILE", FILE_NAME, "job: where rank 0 leaves the unique id for the others, as kolorun sets it",
     &kolo_job_values.id_file},
    {"KOLO_ELASTIC_WORKER", TEXT, "job: the number of this process in a job of kolorun --min, as kolorun sets it",
     &kolo_job_values.worker},
    {"KOLO_STORE", TEXT, "job: host:port of the store of kolorun, as kolorun sets it", &kolo_job_values.store},
    {"KOLO_STORE_KEY_FILE", FILE_NAME, "job: file with the store's key, as kolorun sets it",
     &kolo_job_values.store_key_file},
    {"RANK", TEXT, "job: rank, as torchrun sets it", &kolo_job_values.torch_rank},
    {"WORLD_SIZE", TEXT, "job: number of ranks, as torchrun sets it", &kolo_job_values.torch_size},
    {"LOCAL_RANK", TEXT, "job: rank among those of this host, as torchrun sets it",
     &kolo_job_values.torch_local_rank},
    {"LOCAL_WORLD_SIZE", TEXT, "job: number of ranks on this host, as torchrun sets it",
     &kolo_job_values.torch_local_size},
    {"MASTER_ADDR", TEXT, "job: host of rank 0, as torchrun sets it", &kolo_job_values.torch_address},
    {"MASTER_PORT", TEXT, "job: torchrun's port on that host; ranks that have a secret meet on the next four",
     &kolo_job_values.torch_port},
    {"TORCHELASTIC_RUN_ID", TEXT, "job: name of the job, as torchrun sets it", &kolo_job_values.torch_run},
    {"TORCHELASTIC_RESTART_COUNT", TEXT, "job: how often it was started again, as torchrun sets it",
     &kolo_job_values.torch_restart},
    {"OMPI_COMM_WORLD_RANK", TEXT, "job: rank, as Open MPI's mpirun sets it", &kolo_job_values.ompi_rank},
    {"OMPI_COMM_WORLD_SIZE", TEXT, "job: number of ranks, as Open MPI's mpirun sets it",
     &kolo_job_values.ompi_size},
    {"OMPI_COMM_WORLD_LOCAL_RANK", TEXT, "job: rank among those of this host, as Open MPI's mpirun sets it",
     &kolo_job_values.ompi_local_rank},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", TEXT, "job: number of ranks on this host, as Open MPI's mpirun sets it",
     &kolo_job_values.ompi_local_size},
    {"PMIX_NAMESPACE", TEXT, "job: name of the job, as Open MPI's mpirun sets it", &kolo_job_values.ompi_job},
    {"OMPI_MCA_orte_precondition_transports", TEXT, "job: random number of the job, as Open MPI's mpirun sets it",
     &kolo_job_values.ompi_key},
    {"PMI_RANK", TEXT, "job: rank, as MPICH's mpiexec sets it", &kolo_job_values.pmi_rank},
    {"PMI_SIZE", TEXT, "job: number of ranks, as MPICH's mpiexec sets it", &kolo_job_values.pmi_size},
    {"MPI_LOCALRANKID", TEXT, "job: rank among those of this host, as MPICH's mpiexec sets it",
     &kolo_job_values.mpi_local_rank},
    {"MPI_LOCALNRANKS", TEXT, "job: number of ranks on this host, as MPICH's mpiexec sets it",
     &kolo_job_values.mpi_local_size},
    {"SLURM_PROCID", TEXT, "job: rank, as Slurm's srun sets it", &kolo_job_values.slurm_rank},
    {"SLURM_STEP_NUM_TASKS", TEXT, "job: number of ranks, as Slurm's srun sets it", &kolo_job_values.slurm_size},
    {"SLURM_LOCALID", TEXT, "job: rank among those of this host, as Slurm's srun sets it",
     &kolo_job_values.slurm_local_rank},
    {"SLURM_NODEID", TEXT, "job: number of this host, as Slurm's srun sets it", &kolo_job_values.slurm_node},
    {"SLURM_STEP_TASKS_PER_NODE", TEXT, "job: number of ranks of each host, as Slurm's srun sets it",
     &kolo_job_values.slurm_tasks},
    {"SLURM_STEP_NODELIST", TEXT, "job: the hosts, as Slurm's srun sets it", &kolo_job_values.slurm_hosts},
    {"SLURM_CLUSTER_NAME", TEXT, "job: name of the cluster, as Slurm sets it", &kolo_job_values.slurm_cluster},
    {"SLURM_JOB_ID", TEXT, "job: number of the job, as Slurm sets it", &kolo_job_values.slurm_job},
    {"SLURM_STEP_ID", TEXT, "job: number of the step, as Slurm's srun sets it", &kolo_job_values.slurm_step},
    {"SLURM_RESTART_COUNT", TEXT, "job: how often it was started again, as Slurm sets it",
     &kolo_job_values.slurm_restart},
};
const kolo_param_table_t kolo_job_params = {"job", rows, KOLO_COUNTOF(rows), NULL};

const char *kolo_job_variable(size_t at)
{
    const char *value = (const char *)&kolo_job_values + at;
    for (size_t i = 0; i < KOLO_COUNTOF(rows); i++)
        if (rows[i].value == value) return rows[i].key;
    return "";
}
