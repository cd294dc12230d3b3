/* SPDX-License-Identifier: Apache-2.0
 *
 * See job.h.
 */
#include "job.h"

#include <kolo/job.h>
#include <stdio.h>

kolo_status_t kolo_job_from_env(kolo_job_t *job)
{
    kolo_job_place_t place;
    kolo_status_t status = kolo_job_get_place(&place);
    *job = (kolo_job_t){.rank = -1, .nranks = -1, .local_rank = -1, .local_size = -1};
    if (status != KOLO_OK) {
        snprintf(job->error, sizeof job->error, "%s", kolo_get_last_error(NULL));
        return status;
    }
    job->rank = place.rank;
    job->nranks = place.nranks;
    job->local_rank = place.local_rank;
    job->local_size = place.local_size;
    return KOLO_OK;
}

kolo_status_t kolo_job_comm_init(kolo_job_t *job, kolo_comm_t *comm, const kolo_config_t *config)
{
    job->error[0] = '\0';
    kolo_status_t status = kolo_job_connect(comm, config);
    if (status == KOLO_OK || status == KOLO_IN_PROGRESS) job->comms++;
    return status;
}
