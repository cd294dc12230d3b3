/* SPDX-License-Identifier: Apache-2.0
 *
 * A job whose ranks say how much memory their communicator has taken: anonymous and shared pages (these by the
 * rank's share, Pss) before init and after every collective at every size. kolo_info_test.py holds that against
 * kolo-info --memory. With the argument "descriptors" it counts these instead. Exit status 77 where the kernel does
 * not tell.
 */
#include <kolo/job.h>

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST ((size_t)16 << 20)

static long memory_kb(void)
{
    char line[256];
    long sum = 0, kb;
    int found = 0;
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "Pss_Anon: %ld", &kb) != 1 && sscanf(line, "Pss_Shmem: %ld", &kb) != 1) continue;
        sum += kb;
        found++;
    }
    if (f) fclose(f);
    if (found != 2) exit(77);
    return sum;
}

static void must(kolo_status_t status)
{
    if (status == KOLO_OK) return;
    fprintf(stderr, "memory_use: %s\n", kolo_get_last_error(NULL));
    exit(1);
}

static void call_all(kolo_comm_t comm, const char *src, char *dst, size_t n, size_t part)
{
    const kolo_type_t type = KOLO_FLOAT32;
    must(kolo_all_reduce(src, dst, n, type, KOLO_SUM, comm, NULL));
    must(kolo_reduce(src, dst, n, type, KOLO_SUM, 0, comm, NULL));
    must(kolo_broadcast(src, dst, n, type, 0, comm, NULL));
    must(kolo_all_gather(src, dst, part, type, comm, NULL));
    must(kolo_reduce_scatter(src, dst, part, type, KOLO_SUM, comm, NULL));
    must(kolo_all_to_all(src, dst, part, type, comm, NULL));
    must(kolo_gather(src, dst, part, type, 0, comm, NULL));
    must(kolo_scatter(src, dst, part, type, 0, comm, NULL));
}

/* Descriptors of this process. */
static int count_descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 4096; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* Each with each, beside the collectives. */
static void greet_all(kolo_comm_t comm, int nranks, const char *src, char *dst)
{
    must(kolo_group_start());
    for (int r = 0; r < nranks; r++) {
        must(kolo_send(src, 8, KOLO_UINT8, r, comm, NULL));
        must(kolo_recv(dst + 8 * r, 8, KOLO_UINT8, r, comm, NULL));
    }
    must(kolo_group_end());
}

/* Says how many the first communicator has taken, with what is shared, and how many each further one takes. */
static void count_further(kolo_comm_t comm, int nranks, const char *src, char *dst, int first)
{
    enum { MORE = 4 };
    kolo_comm_t more[MORE];
    const int before = count_descriptors();
    for (int i = 0; i < MORE; i++) {
        must(kolo_comm_dup(comm, &more[i], NULL));
        for (size_t n = 2; n <= MOST / sizeof(float); n *= 8)
            call_all(more[i], src, dst, n, n / (size_t)nranks ? n / (size_t)nranks : 1);
        greet_all(more[i], nranks, src, dst);
        must(kolo_barrier(more[i], NULL));
    }
    printf("%d %d\n", first, (count_descriptors() - before + MORE - 1) / MORE);
    for (int i = 0; i < MORE; i++) {
        must(kolo_comm_finalize(more[i]));
        must(kolo_comm_destroy(more[i]));
    }
}

int main(int argc, char **argv)
{
    kolo_job_place_t job;
    kolo_comm_t comm;
    int version;
    char *src = malloc(MOST), *dst = malloc(MOST);
    if (!src || !dst) return 1;
    memset(src, 1, MOST); /* zeros would make it one calloc(), whose pages come late */
    memset(dst, 1, MOST);
    must(kolo_job_get_place(&job));
    must(kolo_get_version(&version));
    const bool descriptors = argc > 1 && strcmp(argv[1], "descriptors") == 0;
    const int open = count_descriptors();
    long before = descriptors ? 0 : memory_kb();
    must(kolo_job_connect(&comm, NULL));
    for (size_t bytes = 8; bytes <= MOST; bytes *= 2) {
        size_t n = bytes / sizeof(float), part = n / (size_t)job.nranks;
        call_all(comm, src, dst, n, part ? part : 1);
    }
    must(kolo_barrier(comm, NULL));
    if (descriptors) {
        greet_all(comm, job.nranks, src, dst);
        must(kolo_barrier(comm, NULL));
        count_further(comm, job.nranks, src, dst, count_descriptors() - open);
    } else {
        printf("%ld\n", (memory_kb() - before) * 1024);
    }
    must(kolo_barrier(comm, NULL)); /* all have looked while all were there */
    must(kolo_comm_finalize(comm));
    must(kolo_comm_destroy(comm));
    free(src);
    free(dst);
    return 0;
}
