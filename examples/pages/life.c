/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of communicators, for their manual pages. Run by kolorun -n 3.
 */
#include "page.h"

#include <kolo/job.h>
#include <string.h>

#define RANKS 3

static int rank;
static char path[200]; /* of a file that all ranks see */

/* Without a launcher: rank 0 makes the id, the others read it from a file. */
static kolo_status_t comm_init_rank(void)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_unique_id_t id;
    kolo_comm_t comm;
    int count, me, device;
    config.name = "by hand";
    config.op_timeout_ms = 60000; /* an operation that takes longer is an error, which says who is missing */
    if (rank == 0) {
        TRY(kolo_get_unique_id(&id));
        TRY(kolo_unique_id_save(&id, path));
    } else {
        TRY(kolo_unique_id_load(&id, path, 30000));
    }
    TRY(kolo_comm_init_rank(&comm, RANKS, id, rank, &config));
    TRY(kolo_comm_count(comm, &count));
    TRY(kolo_comm_user_rank(comm, &me));
    TRY(kolo_comm_device(comm, &device));
    EXPECT(count == RANKS && me == rank && device == -1);
    TRY(kolo_comm_finalize(comm)); /* waits for the others, so that nobody loses one that still works */
    return kolo_comm_destroy(comm);
}

/* With config.blocking 0 a call that makes a communicator returns at once, and the program asks how it is. */
static kolo_status_t comm_get_async_error(kolo_comm_t parent)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_status_t state = KOLO_IN_PROGRESS;
    kolo_comm_t comm;
    config.blocking = 0;
    if (kolo_comm_dup(parent, &comm, &config) != KOLO_IN_PROGRESS) return KOLO_ERR_INTERNAL;
    while (state == KOLO_IN_PROGRESS) TRY(kolo_comm_get_async_error(comm, &state)); /* here one would compute */
    if (state != KOLO_OK) fprintf(stderr, "%s: %s\n", kolo_status_string(state), kolo_get_last_error(comm));
    return kolo_comm_destroy(comm);
}

static kolo_status_t get_last_error(kolo_comm_t comm)
{
    float value = 1;
    int root = RANKS; /* there is no such rank */
    if (kolo_broadcast(&value, &value, 1, KOLO_FLOAT32, root, comm, NULL) == KOLO_OK) return KOLO_ERR_INTERNAL;
    EXPECT(strstr(kolo_get_last_error(NULL), "root") != NULL); /* nothing was done; comm goes on */
    return KOLO_OK;
}

static kolo_status_t comm_split(kolo_comm_t comm)
{
    kolo_comm_t even;
    int count;
    TRY(kolo_comm_split(comm, rank % 2 ? KOLO_SPLIT_NOCOLOR : 0, rank, &even, NULL)); /* all ranks call it */
    if (!even) return KOLO_OK;
    TRY(kolo_comm_count(even, &count));
    EXPECT(count == 2); /* ranks 0 and 2 */
    return kolo_comm_destroy(even);
}

static kolo_status_t comm_dup(kolo_comm_t comm)
{
    kolo_comm_t own; /* for a library that is not to mix its calls with the program's */
    TRY(kolo_comm_dup(comm, &own, NULL));
    TRY(kolo_barrier(own, NULL));
    TRY(kolo_comm_leave(own)); /* meets nobody, unlike kolo_comm_finalize() */
    return kolo_comm_destroy(own);
}

/* Rank 2 is left out (a lost rank is left out by itself), and comes in again as a new one. */
static kolo_status_t comm_shrink(kolo_comm_t comm)
{
    const int out = 2;
    kolo_unique_id_t id;
    kolo_comm_t rest = NULL, all;
    int lost[RANKS], nlost = RANKS;
    TRY(kolo_comm_lost(comm, lost, &nlost));
    EXPECT(nlost == 0);
    if (rank != out) TRY(kolo_comm_shrink(comm, &out, 1, KOLO_SHRINK_DEFAULT, &rest, NULL));
    if (rank == 0) TRY(kolo_comm_get_grow_id(rest, &id));
    TRY(kolo_broadcast(&id, &id, sizeof id, KOLO_UINT8, 0, comm, NULL)); /* how the newcomer gets it */
    if (rank == out)
        TRY(kolo_comm_grow(NULL, RANKS, &id, 2, &all, NULL));
    else
        TRY(kolo_comm_grow(rest, RANKS, rank == 0 ? &id : NULL, -1, &all, NULL));
    TRY(kolo_barrier(all, NULL));
    if (rest) TRY(kolo_comm_destroy(rest));
    return kolo_comm_destroy(all);
}

/* One rank finds that the job cannot go on as it is; all get out of what they are in. */
static kolo_status_t comm_revoke(kolo_comm_t comm)
{
    kolo_comm_t own, again;
    TRY(kolo_comm_dup(comm, &own, NULL));
    TRY(kolo_barrier(own, NULL)); /* all have it: who is still making it would get an error without a handle */
    if (rank == 1) TRY(kolo_comm_revoke(own));
    kolo_status_t status = kolo_barrier(own, NULL);
    EXPECT(status == KOLO_ERR_REVOKED);
    TRY(kolo_comm_shrink(own, NULL, 0, KOLO_SHRINK_ABORT, &again, NULL)); /* of all that live */
    TRY(kolo_comm_abort(own));                                            /* does not wait for anybody */
    return kolo_comm_destroy(again);
}

static kolo_status_t comm_synchronize(kolo_comm_t comm)
{
    static float data[1000];
    kolo_stream_t stream;
    size_t bytes;
    TRY(kolo_stream_create(&stream));
    TRY(kolo_all_reduce(data, data, 1000, KOLO_FLOAT32, KOLO_SUM, comm, stream));
    TRY(kolo_comm_synchronize(comm)); /* whatever streams its operations are on */
    TRY(kolo_comm_memory(comm, &bytes));
    printf("rank %d: the communicator holds %zu bytes\n", rank, bytes);
    return kolo_stream_destroy(stream);
}

static kolo_status_t comm_set_op_timeout(kolo_comm_t comm)
{
    int before;
    TRY(kolo_comm_set_op_timeout(comm, 60000, &before)); /* the next call alone has a minute */
    TRY(kolo_barrier(comm, NULL));
    return kolo_comm_set_op_timeout(comm, before, NULL);
}

/* All ranks in one process. One thread calls for all of them, so the calls are a group. */
static kolo_status_t comm_init_all(void)
{
    float values[2] = {1, 2};
    kolo_comm_t comms[2];
    TRY(kolo_comm_init_all(comms, 2, NULL));
    TRY(kolo_group_start());
    for (int i = 0; i < 2; i++) kolo_all_reduce(&values[i], &values[i], 1, KOLO_FLOAT32, KOLO_SUM, comms[i], NULL);
    TRY(kolo_group_end());
    EXPECT(values[0] == 3 && values[1] == 3);
    for (int i = 0; i < 2; i++) TRY(kolo_comm_destroy(comms[i]));
    return KOLO_OK;
}

static kolo_status_t comm_init_devices(void)
{
    static const int devices[2] = {-1, -1}; /* 0 and 1: two GPUs */
    kolo_comm_t comms[2];
    size_t bytes;
    TRY(kolo_comm_init_devices(comms, 2, devices, NULL));
    if (kolo_comm_suspend(comms[0], &bytes) == KOLO_OK) /* on a GPU: its memory is the program's until resume */
        TRY(kolo_comm_resume(comms[0]));
    for (int i = 0; i < 2; i++) TRY(kolo_comm_destroy(comms[i]));
    return KOLO_OK;
}

/* For thousands of ranks several of them serve those that come. */
static kolo_status_t comm_init_rank_scalable(kolo_comm_t parent)
{
    kolo_unique_id_t ids[2], mine;
    kolo_comm_t comm;
    TRY(kolo_get_unique_id(&mine));
    for (int i = 0; i < 2; i++) TRY(kolo_broadcast(&mine, &ids[i], sizeof mine, KOLO_UINT8, i, parent, NULL));
    TRY(kolo_comm_init_rank_scalable(&comm, RANKS, rank, 2, ids, NULL));
    return kolo_comm_destroy(comm);
}

static kolo_status_t get_version(void)
{
    int version;
    TRY(kolo_get_version(&version));
    EXPECT(version / 10000 == KOLO_VERSION_MAJOR); /* the library is not older than the headers */
    return KOLO_OK;
}

/* What a program begins with, whoever has started it. */
static kolo_status_t job_connect(kolo_comm_t *comm)
{
    kolo_job_place_t place;
    TRY(kolo_job_get_place(&place));
    rank = place.rank;
    printf("rank %d of %d, started by %s\n", place.rank, place.nranks, place.launcher);
    return kolo_job_connect(comm, NULL);
}

/* Ranks 2 and 0 alone, the others go on without a call. */
static kolo_status_t job_connect_ranks(void)
{
    const int ranks[] = {2, 0};
    kolo_comm_t pair;
    int me;
    if (rank == 1) return KOLO_OK;
    TRY(kolo_job_connect_ranks(&pair, ranks, 2, NULL));
    TRY(kolo_comm_user_rank(pair, &me));
    EXPECT(ranks[me] == rank);
    TRY(kolo_barrier(pair, NULL));
    TRY(kolo_comm_finalize(pair));
    return kolo_comm_destroy(pair);
}

int main(int argc, char **argv)
{
    static kolo_status_t (*const examples[])(kolo_comm_t) = {comm_get_async_error,
                                                             get_last_error,
                                                             comm_split,
                                                             comm_dup,
                                                             comm_shrink,
                                                             comm_revoke,
                                                             comm_synchronize,
                                                             comm_set_op_timeout,
                                                             comm_init_rank_scalable};
    kolo_comm_t comm;
    if (argc != 2) return 2;
    snprintf(path, sizeof path, "%s/id", argv[1]);
    SHOW(job_connect, &comm);
    SHOW(comm_init_rank);
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) SHOW(examples[i], comm);
    SHOW(job_connect_ranks);
    SHOW(comm_init_all);
    SHOW(comm_init_devices);
    SHOW(get_version);
    SHOW(kolo_comm_finalize, comm);
    SHOW(kolo_comm_destroy, comm);
    return 0;
}
