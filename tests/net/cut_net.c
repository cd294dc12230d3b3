/* SPDX-License-Identifier: Apache-2.0
 *
 * The network between hosts goes away without a word while ranks work: run by `hosts`, as many ranks on the last
 * host as the argument says. That host takes its link down. Every rank has the error within KOLO_VERDICT_MS and a
 * half; the smaller side (of two halves: the one without rank 0) gets the partition, the other goes on without it.
 *
 *     KOLO_VERDICT_MS=1000 hosts 2 3,1 cut_net 1
 *
 * With the second argument `hole` the last host takes no packets any more that are longer than 600 bytes:
 * heartbeats come through, and what is sent to it does not.
 *
 * With `split` the ranks are making a child by split when it happens: the first of those cut off is
 * slow in setting it up, so the others wait for it over connections that tell nothing.
 */
#include "net.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT (1 << 18)

static int away, local;
static char cut_file[420];

static int start(kolo_comm_t *comm)
{
    kolo_unique_id_t id;
    const char *names[] = {"KOLO_RANK", "KOLO_NRANKS", "KOLO_LOCAL_RANK"};
    int *values[] = {&rank, &nranks, &local};
    for (int i = 0; i < 3; i++) {
        const char *text = getenv(names[i]);
        if (!text) return fail(names[i]);
        *values[i] = atoi(text);
    }
    snprintf(id_file, sizeof id_file, "%s", getenv("KOLO_ID_FILE"));
    snprintf(cut_file, sizeof cut_file, "%s.cut", id_file);
    CHECK(share_id(&id) == 0);
    CHECK(kolo_comm_init_rank(comm, nranks, id, rank, NULL) == KOLO_OK);
    return 0;
}

static bool hole;

static int cut(void)
{
    FILE *file = fopen(cut_file, "w");
    CHECK(file);
    CHECK(system(hole ? "ip link set eth0 mtu 600" : "ip link set eth0 down") == 0);
    fprintf(file, "%.3f\n", now_ms());
    CHECK(fclose(file) == 0);
    return 0;
}

static double when_cut(void)
{
    double at = 0;
    FILE *file = fopen(cut_file, "r");
    if (file && fscanf(file, "%lf", &at) != 1) at = 0;
    if (file) fclose(file);
    return at;
}

static int go_on(kolo_comm_t comm, int32_t *data)
{
    int excluded[64], n = 0;
    kolo_comm_t rest;
    for (int r = nranks - away; r < nranks; r++) excluded[n++] = r;
    CHECK(kolo_comm_shrink(comm, excluded, n, KOLO_SHRINK_ABORT, &rest, NULL) == KOLO_OK);
    for (int i = 0; i < COUNT; i++) data[i] = 1;
    CHECK(kolo_all_reduce(data, data, COUNT, KOLO_INT32, KOLO_SUM, rest, NULL) == KOLO_OK);
    for (int i = 0; i < COUNT; i++) CHECK(data[i] == nranks - away);
    CHECK(kolo_comm_finalize(rest) == KOLO_OK);
    CHECK(kolo_comm_destroy(rest) == KOLO_OK);
    return 0;
}

static int run(kolo_comm_t comm, int32_t *data)
{
    bool minority = rank >= nranks - away;
    double begin = now_ms();
    bool done = false;
    kolo_status_t status = KOLO_OK;
    while (status == KOLO_OK) {
        status = kolo_all_reduce(data, data, COUNT, KOLO_INT32, KOLO_MAX, comm, NULL);
        if (!done && rank == nranks - away && now_ms() - begin > 500) {
            done = true;
            if (cut()) return 1;
        }
    }
    double told = now_ms(), at = when_cut();
    printf("rank %d of %d: %s, %.0f ms after the cut: %s\n", rank, nranks, minority ? "cut off" : "at home",
           told - at, kolo_get_last_error(comm));
    CHECK(at > 0 && told - at < atof(getenv("KOLO_VERDICT_MS")) * (hole ? 4 : 1.5));
    if (hole) CHECK(minority || strstr(kolo_get_last_error(comm), "MTU"));
    CHECK(status == (minority ? KOLO_ERR_PARTITION : KOLO_ERR_REMOTE));
    return minority ? 0 : go_on(comm, data);
}

static void *cut_soon(void *arg)
{
    usleep(500 * 1000);
    (void)arg;
    return cut() ? cut_file : NULL;
}

static int run_split(kolo_comm_t comm)
{
    bool minority = rank >= nranks - away, cuts = rank == nranks - away;
    kolo_comm_t child = NULL;
    pthread_t thread;
    void *failed = NULL;
    CHECK(kolo_barrier(comm, NULL) == KOLO_OK);
    if (cuts) CHECK(pthread_create(&thread, NULL, cut_soon, NULL) == 0);
    kolo_status_t status = kolo_comm_split(comm, 0, 0, &child, NULL);
    double told = now_ms();
    char text[1024];
    snprintf(text, sizeof text, "%s", kolo_get_last_error(NULL));
    if (cuts) CHECK(pthread_join(thread, &failed) == 0 && !failed);
    printf("rank %d of %d: %s, %.0f ms after the cut: %s\n", rank, nranks, minority ? "cut off" : "at home",
           told - when_cut(), text);
    CHECK(when_cut() > 0 && told - when_cut() < 20000); /* the time limit of init is 120 s */
    CHECK(!child && status == (minority ? KOLO_ERR_PARTITION : KOLO_ERR_REMOTE));
    return 0;
}

int main(int argc, char **argv)
{
    kolo_comm_t comm;
    int32_t *data = calloc(COUNT, sizeof *data);
    if (argc < 2 || !data || !getenv("KOLO_VERDICT_MS")) return 2;
    away = atoi(argv[1]);
    alarm(60);
    hole = argc > 2 && strcmp(argv[2], "hole") == 0;
    if (hole) CHECK(system("ip link set eth0 gso_max_segs 1") == 0); /* a packet is a segment */
    bool splits = argc > 2 && !hole;
    if (splits && getenv("KOLO_RANK") && getenv("KOLO_NRANKS") &&
        atoi(getenv("KOLO_RANK")) == atoi(getenv("KOLO_NRANKS")) - away)
        setenv("KOLO_FAIL_POINT", "comm.split.open:1:delay:1000", 1);
    int failed = start(&comm) || (splits ? run_split(comm) : run(comm, data));
    if (!failed) CHECK(kolo_comm_destroy(comm) == KOLO_OK);
    free(data);
    return failed;
}
