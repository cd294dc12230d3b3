/* SPDX-License-Identifier: Apache-2.0
 *
 * Registered memory between two ranks: large sends, receives, broadcasts and all-gathers, with right values each
 * time. Exit status 0, or 1 with what was wrong. usage: place registered | plain | remapped | grouped | turns
 * [STEPS] grouped: registered memory, and four messages in a group each time, which share one round trip. turns: a
 * hundred short messages to and fro each time. remapped: the memory is unmapped without giving the registration
 * back, and other memory mapped in its place. With VM_TEST_END it ends before STEPS when that file is there. Rank 0
 * prints each step.
 */
#include "until.h"

#include <kolo/job.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define BYTES ((size_t)1 << 20)

static kolo_comm_t comm;
static int rank;

static char *map_at(char *where)
{
    char *p = mmap(where, 2 * BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (where ? MAP_FIXED : 0),
                   -1, 0);
    if (p == MAP_FAILED) exit(1);
    memset(p, 0, 2 * BYTES);
    return p;
}

static char value(int from, int step, size_t i)
{
    return (char)(i * 7 + (i >> 12) + (size_t)(100 * from + step));
}

static void check(kolo_status_t status, const char *what)
{
    if (status == KOLO_OK) return;
    fprintf(stderr, "place: rank %d: %s: %s\n", rank, what, kolo_get_last_error(NULL));
    exit(1);
}

static void compare(const char *got, size_t bytes, int from, int step, const char *what)
{
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != value(from, step, i)) {
            fprintf(stderr, "place: rank %d: %s, step %d: wrong at byte %zu\n", rank, what, step, i);
            exit(1);
        }
}

/* All that only moves data: nothing of it needs a copy. */
static void run(char *src, char *dst, int step)
{
    for (size_t i = 0; i < BYTES; i++) src[i] = value(rank, step, i);
    if (rank == 0) {
        check(kolo_send(src, BYTES, KOLO_INT8, 1, comm, NULL), "send");
    } else {
        check(kolo_recv(dst, BYTES, KOLO_INT8, 0, comm, NULL), "recv");
        compare(dst, BYTES, 0, step, "recv");
    }
    memset(dst, 0, 2 * BYTES);
    check(kolo_all_gather(src, dst, BYTES, KOLO_INT8, comm, NULL), "all_gather");
    for (int r = 0; r < 2; r++) compare(dst + (size_t)r * BYTES, BYTES, r, step, "all_gather");
    char *both = rank == 0 ? src : dst;
    check(kolo_broadcast(both, both, BYTES, KOLO_INT8, 0, comm, NULL), "broadcast");
    compare(both, BYTES, 0, step, "broadcast");
}

/* Four messages of different lengths, in one group at both ends. */
static void run_group(char *src, char *dst, int step)
{
    static const size_t lengths[] = {BYTES / 16, BYTES / 64, BYTES / 32, BYTES / 16 - 4096}; /* a slot each */
    size_t at = 0, n = sizeof lengths / sizeof *lengths;
    for (size_t i = 0; i < BYTES; i++) src[i] = value(rank, step, i);
    check(kolo_group_start(), "group");
    for (size_t i = 0; i < n; at += lengths[i++]) {
        if (rank == 0)
            check(kolo_send(src + at, lengths[i], KOLO_INT8, 1, comm, NULL), "send");
        else
            check(kolo_recv(dst + at, lengths[i], KOLO_INT8, 0, comm, NULL), "recv");
    }
    check(kolo_group_end(), "group");
    if (rank == 1) compare(dst, at, 0, step, "group");
    memset(dst, 0, BYTES);
}

static void run_turns(int step)
{
    for (int i = 0; i < 100; i++) {
        int64_t out = 1000 * step + i, in = -1;
        if (rank == 0) check(kolo_send(&out, 1, KOLO_INT64, 1, comm, NULL), "send");
        check(kolo_recv(&in, 1, KOLO_INT64, 1 - rank, comm, NULL), "recv");
        if (rank == 1) check(kolo_send(&in, 1, KOLO_INT64, 0, comm, NULL), "send");
        if (in != out) {
            fprintf(stderr, "place: rank %d: turn %d of step %d: wrong\n", rank, i, step);
            exit(1);
        }
    }
}

/* The answer of rank 0, at all ranks. */
static bool is_over(int step)
{
    int over = rank == 0 && end_is_asked_for();
    if (!end_may_be_asked_for()) return false; /* counts stay those of the transfers */
    check(kolo_broadcast(&over, &over, 1, KOLO_INT32, 0, comm, NULL), "broadcast");
    if (rank == 0) printf("step %d\n", step);
    return over != 0;
}

int main(int argc, char **argv)
{
    int steps = argc > 2 ? atoi(argv[2]) : 4;
    kolo_job_place_t job;
    kolo_registration_t handles[2];
    const char *how = argc > 1 ? argv[1] : "registered";
    char *src = map_at(NULL), *dst = map_at(NULL);
    setvbuf(stdout, NULL, _IOLBF, 0);
    check(kolo_job_get_place(&job), "place");
    rank = job.rank;
    check(kolo_job_connect(&comm, NULL), "connect");
    if (strcmp(how, "plain") != 0 && strcmp(how, "turns") != 0) {
        check(kolo_comm_register(comm, src, 2 * BYTES, &handles[0]), "register");
        check(kolo_comm_register(comm, dst, 2 * BYTES, &handles[1]), "register");
    }
    for (int step = 0; step < steps && !is_over(step); step++) {
        if (strcmp(how, "remapped") == 0 && step > 0) {
            munmap(dst, 2 * BYTES); /* what lies there next is not what was registered */
            map_at(dst);
            if (step == 2) src = map_at(src);
        }
        if (strcmp(how, "grouped") == 0)
            run_group(src, dst, step);
        else if (strcmp(how, "turns") == 0)
            run_turns(step);
        else
            run(src, dst, step);
    }
    if (strcmp(how, "registered") == 0 || strcmp(how, "grouped") == 0)
        for (int i = 0; i < 2; i++) check(kolo_comm_deregister(comm, handles[i]), "deregister");
    check(kolo_comm_finalize(comm), "finalize");
    check(kolo_comm_destroy(comm), "destroy");
    return 0;
}
