/* SPDX-License-Identifier: Apache-2.0
 *
 * Places that a reader of the GPU code found suspicious (docs/decisions/0067): memory after an abort, a GPU of
 * which something else has taken a part, launches that may block in the driver. Lines of 128 bytes over PCIe need a
 * machine whose GPUs have nothing better. See conform.h.
 */
#include "clients.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory after an abort ---- */

/* A rank aborts while all store into each other's memory, fills its own as soon as that returns, and looks later.
 * The others notice the abort by themselves. */
static bool left_alone(kit_team_t *t, int round)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kit_rank_t *r = &t->ranks[0];
    kolo_comm_t first = r->comm;
    size_t bytes = r->room / 3 / 4096 * 4096, dst = r->room / 2 / 4096 * 4096, bad = 0;
    bool good = true;
    if (!kit_comms_make(t, &config)) return false;
    good = KIT_OK(kolo_all_reduce(r->buffer, r->buffer + dst, bytes / 4, KOLO_INT32, KOLO_SUM, r->comm,
                                  r->streams[0])) &&
           kit_sync(r, r->streams[0]); /* others have mapped it */
    memset(r->image + dst, 0x5a, bytes);
    if (!kit_meet(t)) return false;
    for (int i = 0; i < 20 && good; i++) {
        kolo_status_t status =
            kolo_all_reduce(r->buffer, r->buffer + dst, bytes / 4, KOLO_INT32, KOLO_SUM, r->comm, r->streams[0]);
        good = status == KOLO_OK || (r->rank && status == KOLO_ERR_REMOTE) || KIT_OK(status); /* it was told */
    }
    if (r->rank == 0) {
        for (int i = 0; i < round; i++) sched_yield();
        good = KIT_OK(kolo_comm_abort(r->comm)) && good;
        good = kit_sync(r, r->streams[0]) && kit_upload(r, dst, bytes, r->streams[0]) &&
               kit_sync(r, r->streams[0]) && good;
        for (int k = 0; k < 500; k++) kit_nap();
        good = kit_download(r, dst, bytes, r->streams[0]) && kit_sync(r, r->streams[0]) && good;
        for (size_t k = 0; k < bytes; k++) bad += r->back[dst + k] != 0x5a;
        if (bad) good = KIT_FAIL("%zu of %zu bytes were written after an abort", bad, bytes);
    }
    if (!kit_meet(t)) return false;
    if (r->rank) kolo_comm_abort(r->comm);
    good = kit_sync(r, r->streams[0]) && good;
    r->comm = first;
    return kit_case_end(t, good, "memory is left alone after an abort");
}

/* The others come to the operation when the first rank has aborted and filled its memory. */
static bool come_late(kit_team_t *t)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kit_rank_t *r = &t->ranks[0];
    kolo_comm_t first = r->comm;
    size_t bytes = r->room / 3 / 4096 * 4096, dst = r->room / 2 / 4096 * 4096, bad = 0;
    if (!kit_comms_make(t, &config)) return false;
    bool good = true;
    for (int i = 0; i < 2 && good; i++) /* then others have mapped it */
        good = KIT_OK(kolo_all_reduce(r->buffer, r->buffer + dst, bytes / 4, KOLO_INT32, KOLO_SUM, r->comm,
                                      r->streams[0])) &&
               kit_sync(r, r->streams[0]);
    if (r->rank) good = good && kit_hold(r, r->streams[0]);
    good = good && KIT_OK(kolo_all_reduce(r->buffer, r->buffer + dst, bytes / 4, KOLO_INT32, KOLO_SUM, r->comm,
                                          r->streams[0]));
    if (!kit_meet(t)) return false;
    memset(r->image + dst, 0x5a, bytes);
    if (r->rank == 0) {
        for (int k = 0; k < 50; k++) kit_nap(); /* its kernel waits for the others */
        good = KIT_OK(kolo_comm_abort(r->comm)) && kit_sync(r, r->streams[0]) &&
               kit_upload(r, dst, bytes, r->streams[0]) && kit_sync(r, r->streams[0]) && good;
    }
    if (!kit_meet(t)) return false;
    kit_let_go(r);
    if (r->rank) kolo_comm_abort(r->comm);
    good = kit_sync(r, r->streams[0]) && good;
    if (!kit_meet(t)) return false;
    if (r->rank == 0) {
        good = kit_download(r, dst, bytes, r->streams[0]) && kit_sync(r, r->streams[0]) && good;
        for (size_t k = 0; k < bytes; k++) bad += r->back[dst + k] != 0x5a;
        if (bad) good = KIT_FAIL("%zu of %zu bytes were written after an abort", bad, bytes);
    }
    r->comm = first;
    return kit_case_end(t, good, "memory is left alone by who comes late to what was aborted");
}

/* ---- launches that block ---- */

/* What others have mapped is freed; then a stream is held while short calls go on, which give the mappings up. */
static bool goes_on(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    pthread_t thread;
    size_t bytes = (size_t)4 << 20;
    bool good = true;
    int before = kit_foreign();
    for (int i = 0; i < 4 && good; i++) {
        char *p = kit_alloc(r, 2 * bytes);
        good = p &&
               KIT_OK(kolo_all_reduce(p, p + bytes, bytes / 4, KOLO_INT32, KOLO_SUM, r->comm, r->streams[0])) &&
               KIT_OK(kolo_all_reduce(p, p + bytes, bytes / 4, KOLO_INT32, KOLO_SUM, r->comm, r->streams[0])) &&
               kit_sync(r, r->streams[0]);
        if (!kit_meet(t)) return false;
        kit_free(r, p); /* a driver may wait for all that the GPU does: also for another rank's next call */
        if (!kit_meet(t)) return false;
    }
    good = good && kit_hold(r, r->streams[1]);
    if (!good || pthread_create(&thread, NULL, clients_let_go_late, r)) return false;
    uint64_t longest = 0;
    for (int i = 0; i < 400 && good; i++) {
        uint64_t begun = kit_now_ms();
        good =
            KIT_OK(kolo_all_reduce(r->buffer, r->buffer + 4096, 64, KOLO_INT32, KOLO_SUM, r->comm, r->streams[0]));
        if (kit_now_ms() - begun > longest) longest = kit_now_ms() - begun;
        good = good && (i % 10 || kit_sync(r, r->streams[0]));
    }
    int mapped = kit_foreign();
    kit_let_go(r);
    pthread_join(thread, NULL);
    good = kit_sync(r, r->streams[0]) && kit_sync(r, r->streams[1]) && good;
    uint64_t end = kit_now_ms() + 5000;
    while (mapped >= 0 && kit_foreign() > before && kit_now_ms() < end) kit_nap();
    if (good && kit_foreign() > before)
        good = KIT_FAIL("rank %d: %d mappings of freed memory are left", r->rank, kit_foreign() - before);
    if (t->options->verbose)
        fprintf(stderr, "rank %d: at most %llu ms, %d mappings of others are left\n", r->rank,
                (unsigned long long)longest, mapped);
    if (longest > 2000)
        good =
            KIT_FAIL("rank %d: a call took %llu ms, while a stream was held", r->rank, (unsigned long long)longest);
    return kit_case_end(t, good, "calls go on while a stream is held and mappings are given up");
}

/* ---- lines of 128 bytes ---- */

/* By the PCI bus they may come in parts, which their sum finds but once in four billion times: they are not used.
 */
static bool by_whole_lines(kit_team_t *t)
{
    enum { MIDDLE = 125000 }; /* 500 KB: by lines of 128 bytes, where there are any */
    kit_rank_t *r = &t->ranks[0];
    int next = (r->rank + 1) % r->nranks, last = (r->rank + r->nranks - 1) % r->nranks;
    long before = kit_calls("kolo_cuda_ll128_int32");
    bool pci = getenv("FAKE_CUDA_PCI") != NULL, good = true;
    if (before < 0 || getenv("KOLO_GPU_EXECUTOR")) return true; /* a real driver; no such lines */
    if (r->nranks > t->options->devices) return true;           /* nor where ranks share a GPU */
    for (int i = 0; i < 5 && good; i++) {
        good = clients_put(r, A, MIDDLE, 70 + i, r->streams[0]) &&
               KIT_OK(kolo_all_reduce(r->buffer + A, r->buffer + B, MIDDLE, KOLO_INT32, KOLO_SUM, r->comm,
                                      r->streams[0])) &&
               clients_is_sum(r, B, MIDDLE, 70 + i, 1, r->streams[0], "in the middle");
        good = good && KIT_OK(kolo_group_start()) &&
               KIT_OK(kolo_send(r->buffer + A, COUNT / 8, KOLO_INT32, next, r->comm, r->streams[0])) &&
               KIT_OK(kolo_recv(r->buffer + C, COUNT / 8, KOLO_INT32, last, r->comm, r->streams[0])) &&
               KIT_OK(kolo_group_end()) &&
               clients_is_from(r, last, C, COUNT / 8, 70 + i, r->streams[0], "a message");
    }
    long lines = kit_calls("kolo_cuda_ll128_int32") - before;
    if (good && pci && lines) good = KIT_FAIL("rank %d: %ld operations by lines of 128 bytes", r->rank, lines);
    if (good && !pci && !lines) good = KIT_FAIL("rank %d: no operation by lines of 128 bytes", r->rank);
    return kit_case_end(t, good, "lines of 128 bytes only where they come whole");
}

/* ---- two communicators that fill two GPUs ---- */

/* Both streams have all their calls when they begin; which begins first differs by rank. */
static bool queue_both(kit_rank_t *r, kolo_comm_t *comms, size_t bytes)
{
    enum { CALLS = 4 };
    int first = r->rank & 1;
    kolo_cu_event_t event;
    bool good = kit_event_new(&event) && kit_hold(r, r->streams[first]) &&
                kit_event_record(event, r->streams[first]) && kit_stream_wait(r, r->streams[1 - first], event) &&
                kit_upload(r, r->room - 4096, 4096, r->streams[1 - first]);
    for (int i = 0; i < 2 * CALLS && good; i++) {
        size_t which = (size_t)((i + first) & 1);
        good = KIT_OK(kolo_all_reduce(r->buffer + which * bytes, r->buffer + (which + 2) * bytes, bytes / 4,
                                      KOLO_INT32, KOLO_SUM, comms[which], r->streams[which]));
    }
    kit_event_end(event);
    kit_let_go(r);
    return good;
}

/* Kernels that are launched early have their blocks beside those of the ones before them. Where ranks share a GPU,
 * the kernels of all their communicators have to find room on it, which nobody promises (0108): they are shorter.
 */
static bool crowded(kit_team_t *t, size_t bytes)
{
    kit_rank_t *r = &t->ranks[0];
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t comms[2] = {r->comm, NULL};
    if (!kit_comms_make(t, &config)) return false;
    comms[1] = r->comm;
    r->comm = comms[0];
    bool good = true;
    for (int round = 0; round < 4 && good; round++) {
        for (int i = 0; i < 2; i++)
            good = clients_put(r, (size_t)i * bytes, bytes / 4, 80 + i, r->streams[0]) &&
                   kit_sync(r, r->streams[0]) && good;
        good = good && queue_both(r, comms, bytes);
        uint64_t end = kit_now_ms() + 40000; /* blocks are threads on the fake driver */
        for (int i = 0; i < 2; i++)
            while (good && kit_query(r, r->streams[i]) == KOLO_IN_PROGRESS) {
                kit_nap();
                if (kit_now_ms() > end) good = KIT_FAIL("rank %d: two communicators wait for each other", r->rank);
            }
        for (size_t i = 0; i < 2 && good; i++)
            good = clients_is_sum(r, (i + 2) * bytes, bytes / 4, 80 + (int)i, 1, r->streams[i], "of two");
    }
    kolo_comm_abort(comms[1]);
    if (!good) kit_give_up(t);
    return kit_case_end(t, good, "two communicators on GPUs that they fill");
}

bool conform_places(kit_team_t *t)
{
    bool real = kit_foreign() < 0; /* the fake driver has no kernels but those of the library */
    size_t here = (size_t)(t->ranks[0].nranks + t->options->devices - 1) / (size_t)t->options->devices;
    if (t->n > 1 || t->options->host || t->ranks[0].nranks < 2) return true;
    if (getenv("FAKE_CUDA_ONE_QUEUE")) return clients_ends(t);
    bool good = goes_on(t) && come_late(t) && by_whole_lines(t) && crowded(t, (size_t)(2 << 20) / here / here) &&
                clients_ends(t);
    good = good && (!real || clients_crowd(t));
    for (int round = 0; round < 40 && good; round += real ? 4 : 10) good = left_alone(t, round);
    return good;
}
