/* SPDX-License-Identifier: Apache-2.0
 *
 * Kolo against another build of Kolo, in the same processes: the library that the first argument names is
 * loaded beside the one that the program is linked with; with FILE,KEY=VALUE,... the same file may be both, and
 * reads other parameters. Started by kolorun; the other library's id travels over this one's ranks.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "loop.h"

#include "../again.h"

#include <kolo/job.h>
#include <stdbool.h>

static struct {
    void *library;
    kolo_comm_t comm;
    const char *(*get_last_error)(kolo_comm_t);
    kolo_status_t (*get_unique_id)(kolo_unique_id_t *);
    kolo_status_t (*comm_init_rank)(kolo_comm_t *, int, kolo_unique_id_t, int, const kolo_config_t *);
    kolo_status_t (*comm_finalize)(kolo_comm_t);
    kolo_status_t (*comm_destroy)(kolo_comm_t);
    kolo_status_t (*group_start)(void);
    kolo_status_t (*group_end)(void);
    __typeof__(&kolo_all_reduce) all_reduce;
    __typeof__(&kolo_reduce) reduce;
    __typeof__(&kolo_broadcast) broadcast;
    __typeof__(&kolo_all_gather) all_gather;
    __typeof__(&kolo_reduce_scatter) reduce_scatter;
    __typeof__(&kolo_all_to_all) all_to_all;
    __typeof__(&kolo_send) send;
    __typeof__(&kolo_recv) recv;
} other;

static void *find(const char *name)
{
    void *found = dlsym(other.library, name);
    if (found) return found;
    fprintf(stderr, "peer-kolo: the other library has no %s()\n", name);
    exit(1);
}

static void must(kolo_status_t status)
{
    if (status == KOLO_OK) return;
    fprintf(stderr, "peer-kolo: the other library: %s\n", other.get_last_error(NULL));
    exit(1);
}

static void find_all(void)
{
    *(void **)&other.get_last_error = find("kolo_get_last_error");
    *(void **)&other.get_unique_id = find("kolo_get_unique_id");
    *(void **)&other.comm_init_rank = find("kolo_comm_init_rank");
    *(void **)&other.comm_finalize = find("kolo_comm_finalize");
    *(void **)&other.comm_destroy = find("kolo_comm_destroy");
    *(void **)&other.group_start = find("kolo_group_start");
    *(void **)&other.group_end = find("kolo_group_end");
    *(void **)&other.all_reduce = find("kolo_all_reduce");
    *(void **)&other.reduce = find("kolo_reduce");
    *(void **)&other.broadcast = find("kolo_broadcast");
    *(void **)&other.all_gather = find("kolo_all_gather");
    *(void **)&other.reduce_scatter = find("kolo_reduce_scatter");
    *(void **)&other.all_to_all = find("kolo_all_to_all");
    *(void **)&other.send = find("kolo_send");
    *(void **)&other.recv = find("kolo_recv");
}

/* FILE or FILE,KEY=VALUE,... */
static void load(char *what)
{
    char *settings = what ? strchr(what, ',') : NULL;
    again_t again = {.n = 0};
    if (settings) *settings++ = 0;
    if (what) other.library = settings ? again_load(what) : dlopen(what, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (!other.library || (settings && !again_enter(&again, settings))) {
        fprintf(stderr, "peer-kolo: the other library as FILE or FILE,KEY=VALUE,...: %s\n",
                what && !other.library ? dlerror() : "it is missing, or not so");
        exit(1);
    }
    find_all();
    must(other.group_start()); /* the first call reads the parameters */
    must(other.group_end());
    again_leave(&again);
}

static int call(int op, const float *src, float *dst, size_t n, int rank, int nranks, void *arg)
{
    kolo_comm_t c = other.comm;
    (void)nranks;
    (void)arg;
    switch (op) {
    case OP_ALL_REDUCE:
        must(other.all_reduce(src, dst, n, KOLO_FLOAT32, KOLO_SUM, c, NULL));
        return 0;
    case OP_REDUCE:
        must(other.reduce(src, dst, n, KOLO_FLOAT32, KOLO_SUM, 0, c, NULL));
        return 0;
    case OP_BROADCAST:
        must(other.broadcast(src, dst, n, KOLO_FLOAT32, 0, c, NULL));
        return 0;
    case OP_ALL_GATHER:
        must(other.all_gather(src, dst, n, KOLO_FLOAT32, c, NULL));
        return 0;
    case OP_REDUCE_SCATTER:
        must(other.reduce_scatter(src, dst, n, KOLO_FLOAT32, KOLO_SUM, c, NULL));
        return 0;
    case OP_ALL_TO_ALL:
        must(other.all_to_all(src, dst, n, KOLO_FLOAT32, c, NULL));
        return 0;
    default:
        break;
    }
    if (rank == 0) {
        must(other.send(src, n, KOLO_FLOAT32, 1, c, NULL));
        must(other.recv(dst, n, KOLO_FLOAT32, 1, c, NULL));
    } else if (rank == 1) {
        must(other.recv(dst, n, KOLO_FLOAT32, 0, c, NULL));
        must(other.send(src, n, KOLO_FLOAT32, 0, c, NULL));
    }
    return 0;
}

int main(int argc, char **argv)
{
    kolo_job_place_t job;
    kolo_comm_t comm;
    kolo_unique_id_t id = {0};
    const peer_t peer = {"kolo", call, NULL};
    if (kolo_group_start() != KOLO_OK || kolo_group_end() != KOLO_OK) return 1; /* reads this one's parameters */
    load(argv[1]);
    if (kolo_job_get_place(&job) != KOLO_OK || kolo_job_connect(&comm, NULL) != KOLO_OK) {
        fprintf(stderr, "init: %s\n", kolo_get_last_error(NULL));
        return 1;
    }
    if (job.rank == 0) must(other.get_unique_id(&id));
    if (kolo_broadcast(&id, &id, sizeof id, KOLO_UINT8, 0, comm, NULL) != KOLO_OK) return 1;
    must(other.comm_init_rank(&other.comm, job.nranks, id, job.rank, NULL));
    int status = peers_run(&peer, comm, job.rank, job.nranks, argc - 1, argv + 1);
    must(other.comm_finalize(other.comm));
    must(other.comm_destroy(other.comm));
    if (kolo_comm_finalize(comm) != KOLO_OK || kolo_comm_destroy(comm) != KOLO_OK) {
        fprintf(stderr, "end: %s\n", kolo_get_last_error(NULL));
        return 1;
    }
    return status;
}
