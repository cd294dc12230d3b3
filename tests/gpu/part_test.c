/* SPDX-License-Identifier: Apache-2.0
 *
 * A communicator of GPUs on several hosts ends on one rank while the part inside its host hears that a neighbour is
 * gone. Fail points have the news come at the moment at which the part's executor is closed.
 */
#include <kolo/job.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LEAVES_US 300000 /* within the delay before the part is closed */

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, kolo_get_last_error(NULL));
    return 1;
}

int main(void)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_job_place_t job;
    kolo_comm_t comm, none = NULL;
    kolo_status_t state = KOLO_OK;
    char host[32];
    const char *rank = getenv("KOLO_RANK");
    if (!rank) return 77;
    snprintf(host, sizeof host, "host-%d", atoi(rank) / 2); /* two ranks each */
    setenv("KOLO_HOST_ID", host, 1);
    config.device = 0;
    if (kolo_job_get_place(&job) != KOLO_OK) return failed("place");
    if (kolo_job_connect(&comm, &config) != KOLO_OK) return failed("connect");
    kolo_status_t met = kolo_comm_split(comm, KOLO_SPLIT_NOCOLOR, 0, &none, NULL);
    if (met != KOLO_OK && job.rank == 0) return failed("split"); /* who comes out late may hear of rank 0's abort */
    if (job.rank == 1) {
        usleep(LEAVES_US);
        _exit(0); /* the kernel closes its connections */
    }
    while (job.rank > 1 && state == KOLO_OK && kolo_comm_get_async_error(comm, &state) == KOLO_OK) usleep(1000);
    return kolo_comm_abort(comm) == KOLO_OK ? 0 : failed("abort");
}
