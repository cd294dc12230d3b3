/* SPDX-License-Identifier: Apache-2.0
 *
 * The job that a launcher started: job_params.c names its variables, job_place.c reads rank and size out of them,
 * job_name.c a name of the job that its ranks share and an address at which they could meet; job_meet.c gets the
 * unique id from rank 0 to the others by these, and job.c makes the communicator.
 */
#ifndef KOLO_JOB_JOB_H
#define KOLO_JOB_JOB_H

#include "base/status.h"

#include <kolo/job.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    KOLO_JOB_AUTO,
    KOLO_JOB_KOLORUN,
    KOLO_JOB_TORCHRUN,
    KOLO_JOB_OPENMPI,
    KOLO_JOB_MPICH,
    KOLO_JOB_SLURM,
    KOLO_JOB_NONE
};

/* What launchers set, as texts; NULL: not set. */
typedef struct {
    int64_t launcher; /* KOLO_JOB_LAUNCHER */
    const char *rank, *size, *local_rank, *local_size, *id_file;
    const char *torch_rank, *torch_size, *torch_local_rank, *torch_local_size, *torch_address, *torch_port,
        *torch_run, *torch_restart;
    const char *ompi_rank, *ompi_size, *ompi_local_rank, *ompi_local_size, *ompi_job, *ompi_key;
    const char *pmi_rank, *pmi_size, *mpi_local_rank, *mpi_local_size;
    const char *slurm_rank, *slurm_size, *slurm_local_rank, *slurm_node, *slurm_tasks, *slurm_hosts, *slurm_cluster,
        *slurm_job, *slurm_step, *slurm_restart;
    const char *worker; /* of an elastic job, whose ranks change: kolo/state.h has them */
    const char *name, *dir, *home;
    const char *store, *store_key_file; /* for programs; the library itself has no use for it */
} kolo_job_values_t;
extern kolo_job_values_t kolo_job_values;
/* Returns the name of the variable whose text stands at this offset of the values. */
const char *kolo_job_variable(size_t at);

static inline bool kolo_job_is_set(const char *text)
{
    return text && text[0] != '\0';
}

/* Parses a whole number from min on; `name` is the variable's, for the error. */
kolo_status_t kolo_job_number(const char *name, const char *text, int min, int *value);
/* Does what kolo_job_get_place() does, from any values. */
kolo_status_t kolo_job_place_from(const kolo_job_values_t *values, kolo_job_place_t *place);

#define KOLO_JOB_NAME_BYTES 64
/* Makes a name that the ranks of one job share and other jobs do not, without '/'. */
kolo_status_t kolo_job_name(const kolo_job_values_t *values, const kolo_job_place_t *place,
                            char name[KOLO_JOB_NAME_BYTES]);
/* Makes the host:port at which the ranks can meet for the job's communicator of that number, if the launcher tells
 * one; false: it does not. */
bool kolo_job_address(const kolo_job_values_t *values, const kolo_job_place_t *place, unsigned number, char *text,
                      size_t bytes);

/* How the id of one communicator comes to all ranks. */
typedef struct {
    kolo_job_place_t place;
    unsigned number;  /* of the communicator in the job, or of those of this list */
    uint64_t list;    /* of the ranks that meet, a hash; 0: all */
    int first;        /* the rank of the job that makes the id */
    int rank, nranks; /* in the communicator */
    const int *ranks; /* of the job, by rank of the communicator; NULL: the same. While it meets */
    int timeout_ms;   /* for rank 0's file to come */
    char path[4200];  /* the file through which it goes, "": it goes through none */
    bool shared;      /* in the directory where other jobs are, too */
    bool was_there;   /* the file was there when this rank came: the first was faster, or another job has left it */
    bool failed;      /* with the id below, which is not to be had again */
    kolo_unique_id_t id;
    kolo_status_t status; /* how it failed */
    char text[KOLO_ERROR_TEXT_BYTES];
} kolo_job_meeting_t;

/* Makes the id on the first rank, and finds it on the others. */
kolo_status_t kolo_job_meet(kolo_job_meeting_t *meeting);
/* Reports that no communicator came of the id, as the thread's error says. Returns true if another job may have
 * left it, so that they should meet again. */
bool kolo_job_meet_again(kolo_job_meeting_t *meeting, kolo_status_t status);
/* Removes the file once all have read it, or nobody is to find it any more. */
void kolo_job_clear(const kolo_job_meeting_t *meeting);

#endif
