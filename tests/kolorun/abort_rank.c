/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank whose program fails and aborts, and takes a moment to end, as Python does: rank 2 ends with status 7. The
 * others print what they are told and are gone before it.
 */
#include <kolo/job.h>

#include <poll.h>
#include <stdio.h>

int main(void)
{
    kolo_job_place_t job;
    kolo_comm_t comm;
    float mine = 1, sum;
    if (kolo_job_get_place(&job) != KOLO_OK || kolo_job_connect(&comm, NULL) != KOLO_OK) return 3;
    kolo_status_t status = kolo_all_reduce(&mine, &sum, 1, KOLO_FLOAT32, KOLO_SUM, comm, NULL);
    if (status == KOLO_OK && job.rank == 2) {
        kolo_comm_abort(comm);
        poll(NULL, 0, 200);
        return 7;
    }
    while (status == KOLO_OK) status = kolo_all_reduce(&mine, &sum, 1, KOLO_FLOAT32, KOLO_SUM, comm, NULL);
    fprintf(stderr, "%s\n", kolo_get_last_error(NULL));
    kolo_comm_abort(comm);
    return 1;
}
