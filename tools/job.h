/* SPDX-License-Identifier: Apache-2.0
 *
 * How the tools, examples and tests find their place in the job and their first communicator: by kolo/job.h, with
 * the text of an error kept beside it. Programs of users call kolo/job.h themselves.
 */
#ifndef KOLO_TOOLS_JOB_H
#define KOLO_TOOLS_JOB_H

#include <kolo/kolo.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kolo_job {
    int rank, nranks;
    int local_rank, local_size; /* among the ranks of this host */
    unsigned comms;             /* how many communicators were made; the same on all ranks */
    char error[256];            /* what is wrong with the variables, after kolo_job_from_env() failed */
} kolo_job_t;

/* Reads the variables. Anything but whole numbers that fit together is KOLO_ERR_INVALID_ARGUMENT, with a sentence
 * in job->error. */
kolo_status_t kolo_job_from_env(kolo_job_t *job);

/* Makes a communicator of all ranks of the job; all must call it equally often. config may be NULL. The text of a
 * failure is kolo_get_last_error(NULL), or job->error where that is not empty. The file with the id is gone again
 * when a blocking call returns. */
kolo_status_t kolo_job_comm_init(kolo_job_t *job, kolo_comm_t *comm, const kolo_config_t *config);

#ifdef __cplusplus
}
#endif

#endif
