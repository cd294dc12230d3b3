/* SPDX-License-Identifier: Apache-2.0
 *
 * What a communicator costs that has nothing to do: the ranks of a job connect, sleep for some seconds without a
 * call and print the share of a core that their process has used, and how often its threads woke up. How much is
 * too much is the caller's to say: emulated, a wake-up costs twenty times as much as elsewhere.
 */
#include <kolo/job.h>

#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#define SECONDS 4

static double cpu_seconds(long *switches)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    *switches = u.ru_nvcsw;
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

int main(void)
{
    kolo_comm_t comm;
    float one = 1, sum = 0;
    if (kolo_job_connect(&comm, NULL) != KOLO_OK ||
        kolo_all_reduce(&one, &sum, 1, KOLO_FLOAT32, KOLO_SUM, comm, NULL) != KOLO_OK) {
        fprintf(stderr, "idle: %s\n", kolo_get_last_error(NULL));
        return 1;
    }
    long before, after;
    double cpu = cpu_seconds(&before);
    poll(NULL, 0, SECONDS * 1000); /* this is what is measured, not a wait */
    cpu = (cpu_seconds(&after) - cpu) / SECONDS * 100;
    printf("idle: %.2f %% of a core, %.1f wake-ups a second\n", cpu, (double)(after - before) / SECONDS);
    bool fine = kolo_barrier(comm, NULL) == KOLO_OK && kolo_comm_finalize(comm) == KOLO_OK &&
                kolo_comm_destroy(comm) == KOLO_OK;
    return fine ? 0 : 1;
}
