/* SPDX-License-Identifier: Apache-2.0
 *
 * The job for programs (kolo/job.h): the place of this process and a communicator of all ranks.
 */
#include "job/job.h"
#include "base/log.h"

#include "comm/life/life.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Atomic unsigned connects; /* how often; the same on all ranks */

kolo_status_t kolo_job_get_place(kolo_job_place_t *place)
{
    if (!place) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "job_get_place: the place is NULL");
    KOLO_TRY(kolo_comm_library_init());
    KOLO_TRY(kolo_job_place_from(&kolo_job_values, place));
    kolo_log_identify(place->rank, NULL);
    return KOLO_OK;
}

/* Compares what the launcher says of this host with where the ranks are. */
static void look_at_hosts(const kolo_job_place_t *place, const kolo_member_t *m)
{
    if (place->local_size != place->nranks || m->nnodes == 1 || m->local_of[place->rank] != 0) return;
    int other = 0;
    while (m->node_of[other] == m->my_node) other++;
    kolo_warn("job",
              "rank %d: the launcher says that all %d ranks are on this host (LOCAL_WORLD_SIZE is WORLD_SIZE), but "
              "rank %d is on host %s%s. Set LOCAL_WORLD_SIZE to the ranks of each host",
              place->rank, place->nranks, other, m->peers[other].host_name,
              strcmp(m->peers[other].host_name, m->peers[place->rank].host_name) != 0
                  ? ""
                  : ", another one of this name (or a container with a network or an IPC namespace of its own)");
}

static kolo_status_t connect_by(kolo_job_meeting_t *m, kolo_comm_t *comm, const kolo_config_t *config)
{
    kolo_status_t status;
    char text[KOLO_ERROR_TEXT_BYTES];
    do {
        status = kolo_job_meet(m);
        if (status != KOLO_OK) break;
        status = kolo_comm_init_rank(comm, m->nranks, m->id, m->rank, config);
        if (status == KOLO_IN_PROGRESS) return status; /* others may still have to read the file */
    } while (status != KOLO_OK && kolo_job_meet_again(m, status));
    snprintf(text, sizeof text, "%s", kolo_error_text()); /* clearing may have words of its own */
    kolo_job_clear(m);
    if (status == KOLO_OK && !m->list) look_at_hosts(&m->place, &(*comm)->body->member);
    return status == KOLO_OK ? KOLO_OK : kolo_fail(status, "%s", text);
}

/* Counts how often a list has met: the same on all of its ranks, whatever else they have done. */
static kolo_status_t count_list(uint64_t list, unsigned *number)
{
    static struct {
        uint64_t list;
        unsigned count;
    } * lists;
    static size_t nlists;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    size_t i = 0;
    while (i < nlists && lists[i].list != list) i++;
    void *more = i < nlists ? lists : realloc(lists, (nlists + 1) * sizeof *lists);
    if (more) {
        lists = more;
        if (i == nlists) {
            nlists++;
            lists[i].list = list;
            lists[i].count = 0;
        }
        *number = lists[i].count++;
    }
    pthread_mutex_unlock(&lock);
    return more ? KOLO_OK : kolo_fail(KOLO_ERR_NO_MEMORY, "job_connect_ranks: out of memory");
}

/* Puts the list into the meeting: which of its ranks this is, and who makes the id. */
static kolo_status_t take_list(kolo_job_meeting_t *m, const int *ranks, int count)
{
    const kolo_job_place_t *place = &m->place;
    if (count > place->nranks) /* before more is read than there can be */
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "job_connect_ranks: a list of %d ranks, of a job that has %d",
                         count, place->nranks);
    bool *seen = calloc((size_t)place->nranks, sizeof *seen);
    kolo_status_t status = seen ? KOLO_OK : kolo_fail(KOLO_ERR_NO_MEMORY, "job_connect_ranks: out of memory");
    m->rank = -1;
    for (int i = 0; i < count && status == KOLO_OK; i++) {
        int r = ranks[i];
        if (r < 0 || r >= place->nranks || seen[r])
            status =
                kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "job_connect_ranks: the list has %d (place %d), which is %s",
                          r, i, r < 0 || r >= place->nranks ? "no rank of the job" : "in it twice");
        else
            seen[r] = true;
        if (r == place->rank) m->rank = i;
    }
    free(seen);
    KOLO_TRY(status);
    if (m->rank < 0)
        return kolo_fail(
            KOLO_ERR_INVALID_ARGUMENT,
            "job_connect_ranks: rank %d is not in its own list of %d ranks: only those in it call this",
            place->rank, count);
    m->nranks = count;
    m->first = ranks[0];
    m->ranks = ranks;
    m->list = kolo_hash_bytes(KOLO_HASH_INIT, ranks, (size_t)count * sizeof *ranks);
    if (m->list == 0) m->list = 1;
    return count_list(m->list, &m->number);
}

/* Says which ranks of the job an error of the communicator means: it counts them by their place in the list. */
static kolo_status_t fail_of_list(kolo_status_t status, const int *ranks, int count)
{
    char text[120];
    size_t n = 0;
    for (int i = 0; i < count && n < sizeof text - 20; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%d", i ? ", " : "", ranks[i]);
    return kolo_fail_prefix(
        status, "job_connect_ranks (rank 0 here is rank %d of the job, and so on: %s): ", ranks[0], text);
}

/* Connects all ranks if `ranks` is NULL. */
static kolo_status_t connect_some(kolo_comm_t *comm, const int *ranks, int count, const kolo_config_t *config)
{
    kolo_job_meeting_t *m = calloc(1, sizeof *m);
    if (!m) return kolo_fail(KOLO_ERR_NO_MEMORY, "job_connect: out of memory");
    kolo_status_t status = kolo_job_place_from(&kolo_job_values, &m->place);
    m->rank = m->place.rank;
    m->nranks = m->place.nranks;
    if (status == KOLO_OK && ranks) status = take_list(m, ranks, count);
    if (status == KOLO_OK) {
        if (!ranks) m->number = atomic_fetch_add(&connects, 1);
        m->timeout_ms = config && config->init_timeout_ms > 0 ? config->init_timeout_ms
                                                              : (int)kolo_comm_options.init_timeout_ms;
        status = connect_by(m, comm, config);
        if (ranks && status != KOLO_OK && status != KOLO_IN_PROGRESS) status = fail_of_list(status, ranks, count);
    }
    explicit_bzero(m, sizeof *m);
    free(m);
    return status;
}

kolo_status_t kolo_job_connect(kolo_comm_t *comm, const kolo_config_t *config)
{
    if (!comm) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "job_connect: the communicator is NULL");
    KOLO_TRY(kolo_comm_library_init());
    KOLO_TRY(kolo_comm_config_check(config, "job_connect")); /* before anybody is waited for */
    return connect_some(comm, NULL, 0, config);
}

kolo_status_t kolo_job_connect_ranks(kolo_comm_t *comm, const int *ranks, int count, const kolo_config_t *config)
{
    if (!comm || !ranks || count < 1)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT,
                         "job_connect_ranks: the communicator or the list is NULL, or the list is empty");
    KOLO_TRY(kolo_comm_library_init());
    KOLO_TRY(kolo_comm_config_check(config, "job_connect_ranks"));
    return connect_some(comm, ranks, count, config);
}
