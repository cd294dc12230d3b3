/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages on a GPU of which blocks of something else have taken a part: they need a free place for each of their
 * own, and nothing that ends first. See conform.h.
 */
#include "clients.h"

#include <stdio.h>

enum { GROUPS = 20, STUCK_MS = 10000 };

/* One thread of each block asks every 50 us for a word that is not 0: what is taken are places for blocks alone. If
 * all threads ask all the time, what others read of the host's memory takes a hundred times as long. */
static const char spin_text[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                                ".visible .entry spin(.param .u64 p)\n{\n.reg .pred %q;\n.reg .u64 %a;\n"
                                ".reg .u32 %v;\nmov.u32 %v,%tid.x;\nsetp.ne.u32 %q,%v,0;\n@%q bra E;\n"
                                "ld.param.u64 %a,[p];\ncvta.to.global.u64 %a,%a;\n"
                                "L:\nnanosleep.u32 50000;\nld.volatile.global.u32 %v,[%a];\nsetp.eq.u32 %q,%v,0;\n"
                                "@%q bra L;\nE:\nbar.sync 0;\nret;\n}\n";

static bool queue_all(kit_rank_t *r, size_t count)
{
    size_t each = r->room / 2 / (size_t)r->nranks / 512 * 512;
    bool good = KIT_OK(kolo_group_start());
    for (int p = 0; p < r->nranks && good; p++) /* sends first */
        good = KIT_OK(kolo_send(r->buffer + (size_t)p * each, count, KOLO_UINT8, p, r->comm, r->streams[0]));
    for (int p = 0; p < r->nranks && good; p++)
        good = KIT_OK(kolo_recv(r->buffer + r->room / 2 + (size_t)(r->nranks - 1 - p) * each, count, KOLO_UINT8,
                                r->nranks - 1 - p, r->comm, r->streams[0]));
    return KIT_OK(kolo_group_end()) && good;
}

/* Queues groups and waits for one after the other, for each as long as none has come for `limit` ms: other programs
 * may have turns on the GPU, and one of theirs takes as long as ours. */
static bool all_come(kit_rank_t *r, uint64_t limit, const char *where, uint64_t *took)
{
    size_t most = r->room / 2 / (size_t)r->nranks / 512 * 512;
    kolo_cu_event_t events[GROUPS] = {NULL};
    uint64_t begun = kit_now_ms(), last = begun;
    int made = 0, done = 0;
    bool good = true;
    for (; made < GROUPS && good; made++)
        good = kit_event_new(&events[made]) && queue_all(r, made % 2 ? most : 70000) &&
               kit_event_record(events[made], r->streams[0]);
    while (done < made && good) {
        kolo_status_t status = kit_event_query(events[done]);
        good = status == KOLO_OK || status == KOLO_IN_PROGRESS;
        if (status == KOLO_OK) {
            last = kit_now_ms();
            done++;
        } else if (kit_now_ms() - last > limit) {
            good =
                KIT_FAIL("rank %d: messages hang beside %s: %d of %d groups came within %llu ms, then none for "
                         "%llu ms",
                         r->rank, where, done, made, (unsigned long long)(last - begun), (unsigned long long)limit);
            kit_show_threads();
        } else {
            kit_nap();
        }
    }
    *took = kit_now_ms() - begun;
    for (int i = 0; i < GROUPS; i++)
        if (events[i]) kit_event_end(events[i]);
    return good;
}

/* Blocks that spin have taken a part of each multiprocessor, on every second rank, or on all. */
static bool beside_others(kit_team_t *t, unsigned blocks, bool all)
{
    kit_rank_t *r = &t->ranks[0];
    unsigned here = (unsigned)((r->nranks + t->options->devices - 1) / t->options->devices); /* ranks on a GPU */
    kolo_cu_func_t spin;
    uint64_t word = (uint64_t)(uintptr_t)r->held, alone = 0, took = 0;
    char where[64];
    void *stream = kit_stream_new(r);
    bool good = stream && kit_kernel(r, spin_text, "spin", &spin), spins = all || r->rank % 2;
    __atomic_store_n(r->held, 0, __ATOMIC_RELEASE);
    if (!kit_meet(t)) return false; /* to load a kernel the driver may wait for all GPUs of the process */
    good = good && all_come(r, STUCK_MS, "nothing", &alone);
    if (good && spins) good = kit_launch(r, spin, blocks / here, &word, stream);
    if (!kit_meet(t)) return false;
    for (int k = 0; k < 50; k++) kit_nap();
    snprintf(where, sizeof where, "%u other blocks on %s", blocks / here, all ? "all GPUs" : "every second GPU");
    good = good && all_come(r, STUCK_MS + 20 * alone, where, &took);
    uint64_t rest = kit_now_ms();
    kit_let_go(r);
    good = kit_sync(r, r->streams[0]) && good;
    rest = kit_now_ms() - rest;
    if (t->options->verbose || !good)
        fprintf(
            stderr, "rank %d: %d groups of messages: %llu ms beside nothing, %llu beside %s, what was left %llu\n",
            r->rank, GROUPS, (unsigned long long)alone, (unsigned long long)took, where, (unsigned long long)rest);
    good = kit_sync(r, stream) && good;
    kit_stream_end(r, stream);
    return kit_case_end(t, good, "messages on a part of a GPU");
}

bool clients_crowd(kit_team_t *t)
{
    static const unsigned blocks[] = {132, 264, 396};
    bool good = true;
    for (int i = 0; i < 3 && good; i++)
        good = beside_others(t, blocks[i], false) && beside_others(t, blocks[i], true);
    return good;
}
