/* SPDX-License-Identifier: Apache-2.0
 *
 * Ends, and a beginning, of a communicator that have to do without the GPU: while a stream is held, while other
 * ranks' GPUs wait for another communicator's next call, while no copy is done. See conform.h.
 */
#include "clients.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *clients_let_go_late(void *arg)
{
    kit_rank_t *r = arg;
    for (int k = 0; k < 100000 && !__atomic_load_n(r->held, __ATOMIC_ACQUIRE); k++) {
        if (k == 15000) kit_show_threads(); /* where is who should not wait? */
        kit_nap();
    }
    kit_let_go(r);
    return NULL;
}

/* Aborts while a stream that the program holds keeps the GPU from all copies, which are not waited for without end.
 * Other calls of the driver may wait there, too. */
static bool ends_without_copies(kit_team_t *t)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kit_rank_t *r = &t->ranks[0];
    kolo_comm_t first = r->comm;
    bool good = true;
    for (int round = 0; round < 2 && good; round++) { /* the second one frees what the first had to keep */
        if (!kit_comms_make(t, &config)) return false;
        good = KIT_OK(kolo_all_reduce(r->buffer, r->buffer + 4096, 64, KOLO_INT32, KOLO_SUM, r->comm,
                                      r->streams[0])) &&
               kit_sync(r, r->streams[0]) && kit_hold(r, r->streams[1]);
        for (int k = 0; k < 100; k++) kit_nap(); /* it is held */
        if (!kit_meet(t)) return false;
        uint64_t begun = kit_now_ms();
        good = KIT_OK(kolo_comm_abort(r->comm)) && good;
        if (kit_now_ms() - begun > 20000) good = KIT_FAIL("rank %d: an abort waited for copies", r->rank);
        kit_let_go(r);
        good = kit_sync(r, r->streams[1]) && good;
        r->comm = first;
    }
    return kit_case_end(t, good, "an abort ends while the GPU does not come to copies");
}

/* ---- the end of one communicator beside the work of another ---- */

typedef struct {
    const kit_rank_t *r;
    kolo_comm_t comm;
    size_t bytes;
    atomic_bool ended;
    bool late;
    kolo_status_t status;
} beside_t;

/* Makes the call that the other ranks' GPUs wait for: when the end has returned, or has not for five seconds. */
static void *call_behind(void *arg)
{
    beside_t *b = arg;
    uint64_t end = kit_now_ms() + 5000;
    while (!atomic_load(&b->ended) && kit_now_ms() < end) kit_nap();
    b->late = !atomic_load(&b->ended);
    b->status = kolo_all_reduce(b->r->buffer, b->r->buffer + b->bytes, b->bytes / 4, KOLO_INT32, KOLO_SUM, b->comm,
                                b->r->streams[0]);
    return NULL;
}

/* The first rank ends a communicator while the others' GPUs wait for its next call on another one. */
static bool ends_beside(kit_team_t *t, bool aborts)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kit_rank_t *r = &t->ranks[0];
    beside_t b = {.r = r, .comm = r->comm, .bytes = 1 << 16};
    const char *what = aborts ? "an abort beside another communicator's work" : "leaving beside another's work";
    pthread_t thread;
    if (!kit_comms_make(t, &config)) return false;
    kolo_comm_t ending = r->comm;
    r->comm = b.comm;
    bool good = clients_put(r, 0, b.bytes / 4, 70, r->streams[0]) &&
                KIT_OK(kolo_all_reduce(r->buffer, r->buffer + b.bytes, b.bytes / 4, KOLO_INT32, KOLO_SUM, ending,
                                       r->streams[0])) &&
                kit_sync(r, r->streams[0]);
    if (r->rank && !aborts) good = KIT_OK(kolo_comm_leave(ending)) && good;
    if (r->rank)
        good = KIT_OK(kolo_all_reduce(r->buffer, r->buffer + b.bytes, b.bytes / 4, KOLO_INT32, KOLO_SUM, b.comm,
                                      r->streams[0])) &&
               good;
    if (!kit_meet(t)) return false;
    if (!r->rank) {
        for (int k = 0; k < 50; k++) kit_nap(); /* their kernels have begun */
        if (pthread_create(&thread, NULL, call_behind, &b)) return KIT_FAIL("no thread");
        good = KIT_OK(aborts ? kolo_comm_abort(ending) : kolo_comm_leave(ending)) && good;
        atomic_store(&b.ended, true);
        pthread_join(thread, NULL);
        good = KIT_OK(b.status) && good;
        if (b.late) good = KIT_FAIL("%s waits for it", what);
    }
    good = clients_is_sum(r, b.bytes, b.bytes / 4, 70, 1, r->streams[0], what) && good;
    if (!kit_meet(t)) return false;
    if (r->rank && aborts) kolo_comm_abort(ending);
    return kit_case_end(t, good, what);
}

/* A rank leaves while its program holds a stream: what others have given up is unmapped later. */
static bool ends_beside_held(kit_team_t *t)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kit_rank_t *r = &t->ranks[0];
    kolo_comm_t first = r->comm;
    pthread_t thread;
    size_t bytes = (size_t)4 << 20;
    char *p = kit_alloc(r, 2 * bytes), *q = kit_alloc(r, 4096);
    kolo_window_t windows[2];
    if (!p || !q || !kit_comms_make(t, &config)) return false;
    bool good = getenv("KOLO_GPU_EXECUTOR") || /* through host memory there are none */
                (KIT_OK(kolo_window_register(r->comm, NULL, 4096, &windows[0])) &&
                 KIT_OK(kolo_window_register(r->comm, q, 4096, &windows[1])));
    for (int i = 0; i < 3 && good; i++) /* then others have mapped it */
        good = KIT_OK(kolo_all_reduce(p, p + bytes, bytes / 4, KOLO_INT32, KOLO_SUM, r->comm, r->streams[0])) &&
               kit_sync(r, r->streams[0]);
    good = good && kit_hold(r, r->streams[1]);
    if (!kit_meet(t) || pthread_create(&thread, NULL, clients_let_go_late, r)) return false;
    uint64_t begun = kit_now_ms();
    for (int i = 0; i < 2 && good && !getenv("KOLO_GPU_EXECUTOR"); i++)
        good = KIT_OK(kolo_window_deregister(r->comm, windows[i]));
    good = KIT_OK(kolo_comm_leave(r->comm)) && KIT_OK(kolo_comm_destroy(r->comm)) && good;
    good = KIT_OK(kolo_all_reduce(p, p + bytes, bytes / 4, KOLO_INT32, KOLO_SUM, first, r->streams[0])) &&
           kit_sync(r, r->streams[0]) && good; /* nothing that the end has left to do stops it */
    uint64_t took = kit_now_ms() - begun;
    kit_let_go(r);
    pthread_join(thread, NULL);
    if (t->options->verbose) fprintf(stderr, "rank %d: the end took %llu ms\n", r->rank, (unsigned long long)took);
    if (took > 10000 && kit_foreign() >= 0) /* a real driver may stop other calls meanwhile */
        good = KIT_FAIL("rank %d: the end took %llu ms while a stream was held", r->rank, (unsigned long long)took);
    r->comm = first;
    good = kit_sync(r, r->streams[1]) && good;
    if (!kit_meet(t)) return false;
    kit_free(r, p);
    kit_free(r, q);
    return kit_case_end(t, good, "the end of a communicator with windows while a stream is held");
}

/* The first communicator on a GPU has its kernels loaded, for which the driver waits, too. */
static bool begins_beside_held(kit_team_t *t)
{
    enum { LIMIT = 700 };
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kit_rank_t *r = &t->ranks[0], alone = {.rank = 0, .nranks = 1};
    kolo_unique_id_t id;
    kolo_comm_t comm;
    pthread_t thread;
    config.device = r->device + r->nranks;
    if (config.device >= kit_devices() || getenv("KOLO_GPU_EXECUTOR")) return true;
    bool good = kit_rank_open(&alone, config.device, 1 << 16) && kit_hold(&alone, alone.streams[1]);
    if (!good || pthread_create(&thread, NULL, clients_let_go_late, &alone)) return false;
    for (int round = 0; round < 3 && good; round++) { /* the second one still waits for what the first has asked */
        uint64_t begun = kit_now_ms();
        good = KIT_OK(kolo_get_unique_id(&id));
        config.init_timeout_ms = round < 2 ? LIMIT : 60000;
        kolo_status_t status = kolo_comm_init_rank(&comm, 1, id, 0, &config);
        uint64_t took = kit_now_ms() - begun;
        if (round < 2 && (status != KOLO_ERR_TIMEOUT || !strstr(kolo_get_last_error(NULL), "load the kernels")))
            good = KIT_FAIL("rank %d: init behind a held stream: %s", r->rank, kolo_get_last_error(NULL));
        if (took > 15000) good = KIT_FAIL("rank %d: init took %llu ms", r->rank, (unsigned long long)took);
        if (round == 2) good = KIT_OK(status) && KIT_OK(kolo_comm_destroy(comm)) && good;
        if (round == 1) kit_let_go(&alone);
    }
    kit_let_go(&alone);
    pthread_join(thread, NULL);
    good = kit_sync(&alone, alone.streams[1]) && good;
    kit_rank_close(&alone);
    kit_enter(r);
    return kit_case_end(t, good, "the first communicator on a GPU while a stream is held");
}

bool clients_ends(kit_team_t *t)
{
    if (getenv("FAKE_CUDA_ONE_QUEUE")) return ends_without_copies(t);
    return ends_beside(t, true) && ends_beside(t, false) && ends_beside_held(t) && begins_beside_held(t);
}
