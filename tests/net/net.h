/* SPDX-License-Identifier: Apache-2.0
 *
 * What the programs have in common that `hosts` runs, one rank each.
 */
#ifndef KOLO_TESTS_NET_NET_H
#define KOLO_TESTS_NET_NET_H

#include <kolo/kolo.h>

#include <stdio.h>
#include <time.h>

static int rank, nranks;
static char id_file[400];

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t); /* one clock for all hosts of this machine */
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int fail(const char *what)
{
    fprintf(stderr, "rank %d: %s (%s)\n", rank, what, kolo_get_last_error(NULL));
    return 1;
}
#define CHECK(cond)                                                                                                \
    do {                                                                                                           \
        if (!(cond)) return fail(#cond);                                                                           \
    } while (0)

/* Rank 0 makes an id, which the others read from the file. */
static int share_id(kolo_unique_id_t *id)
{
    if (rank == 0) {
        CHECK(kolo_get_unique_id(id) == KOLO_OK);
        CHECK(kolo_unique_id_save(id, id_file) == KOLO_OK);
    }
    CHECK(rank == 0 || kolo_unique_id_load(id, id_file, 20000) == KOLO_OK);
    return 0;
}

#endif
