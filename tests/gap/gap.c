/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank's process is stopped for 20 ms in the middle of short operations: are the next ones as fast as before?
 * Where each rank has a core, lateness that feeds itself (all go to sleep, wake late, and are late for the next
 * one) would never end. Started by kolorun; rank 0 counts, over the gaps, how many of the operations after one took
 * more than four times the usual and a tenth of a millisecond. Without a core for each rank, or slow where others
 * run on them, it only prints (status 77). usage: kolorun -n N comm_gap [gaps, 7] [most slow
 * operations after one, 5]
 */
#include <kolo/job.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum {
    COUNT = 192,
    BEFORE = 400,
    AFTER = 400,
    GAPS_MOST = 100,
    GAP_NS = 20000000,
    ASK_EACH = 50,
    PATIENCE_US = 2000000
};

static kolo_comm_t comm;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void must(kolo_status_t status)
{
    if (status == KOLO_OK) return;
    fprintf(stderr, "%s\n", kolo_get_last_error(comm));
    exit(1);
}

/* A process that stops its parent for the time of a gap whenever a byte comes. Returns the pipe's end. */
static int start_stopper(void)
{
    int ends[2];
    pid_t parent = getpid();
    if (pipe(ends) != 0) exit(1);
    pid_t child = fork();
    if (child != 0) {
        close(ends[0]);
        if (child < 0) exit(1);
        return ends[1];
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[1]);
    for (char byte; read(ends[0], &byte, 1) == 1;) {
        kill(parent, SIGSTOP);
        nanosleep(&(struct timespec){0, GAP_NS}, NULL);
        kill(parent, SIGCONT);
    }
    _exit(0);
}

static double operation(void)
{
    static float data[COUNT];
    double begun = now_us();
    must(kolo_all_reduce(data, data, COUNT, KOLO_FLOAT32, KOLO_SUM, comm, NULL));
    return now_us() - begun;
}

/* What rank 0 says. */
static bool agreed(bool mine)
{
    float word = mine;
    must(kolo_broadcast(&word, &word, 1, KOLO_FLOAT32, 0, comm, NULL));
    return word != 0;
}

/* How often another process had this rank's core. */
static long shared(void)
{
    struct rusage use;
    return getrusage(RUSAGE_SELF, &use) == 0 ? use.ru_nivcsw : 0;
}

/* Returns how many operations after a gap were slow; the one in which it lies is not counted. */
static int after_gap(int stopper, double usual)
{
    int slow = 0, after = -1; /* since the gap */
    double begun = now_us();
    if (stopper >= 0 && write(stopper, "x", 1) != 1) exit(1);
    for (int i = 1;; i++) {
        double took = operation();
        if (after >= 0 && after++ < AFTER) slow += took > 4 * usual && took > usual + 100;
        if (after < 0 && took > GAP_NS / 2000.0) after = 0;
        if (i % ASK_EACH == 0 && agreed(after >= AFTER || now_us() - begun > PATIENCE_US)) return slow;
    }
}

int main(int argc, char **argv)
{
    kolo_job_place_t job;
    int gaps = argc > 1 ? atoi(argv[1]) : 7, most = argc > 2 ? atoi(argv[2]) : 5, stopper = -1;
    double times[BEFORE], slow[GAPS_MOST];
    if (gaps < 1 || gaps > GAPS_MOST || kolo_job_get_place(&job) != KOLO_OK) return 2;
    if (job.rank == job.nranks - 1) stopper = start_stopper(); /* before there are threads */
    must(kolo_job_connect(&comm, NULL));
    for (int i = 0; i < 2 * BEFORE; i++) times[i % BEFORE] = operation();
    qsort(times, BEFORE, sizeof *times, ascending);
    double usual = times[BEFORE / 2];
    float switches = (float)shared();
    for (int g = 0; g < gaps; g++) slow[g] = after_gap(stopper, usual);
    switches = (float)shared() - switches;
    must(kolo_all_reduce(&switches, &switches, 1, KOLO_FLOAT32, KOLO_MAX, comm, NULL));
    qsort(slow, (size_t)gaps, sizeof *slow, ascending);
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (job.rank == 0)
        printf("%d ranks, %d cores: an operation takes %.1f us; after a gap of 20 ms %.0f of the next %d are slow "
               "(median of %d, most %.0f); others had a core %.0f times\n",
               job.nranks, cores, usual, slow[gaps / 2], AFTER, gaps, slow[gaps - 1], (double)switches);
    must(kolo_comm_finalize(comm));
    must(kolo_comm_destroy(comm));
    if (job.nranks > cores) return 77;
    if (job.rank > 0 || slow[gaps / 2] <= most) return 0;
    return switches > 5 * (float)gaps ? 77 : 1;
}
