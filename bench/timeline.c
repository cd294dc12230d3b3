/* SPDX-License-Identifier: Apache-2.0
 *
 * What a timeline costs the engine's loop: the records of tensors that go through all their stages, in batches of
 * 100, put while the writer is at work; time of this thread's core only, so that other work matters little. The
 * last line is for machines:
 *
 *     timeline event_ns=... tensor_ns=... lost=...
 *
 * usage: bench-timeline [FILE] (default /dev/null)
 */
#include "engine/timeline/timeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH  100
#define ROUNDS 3000

static uint64_t core_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * KOLO_NS_PER_S + (uint64_t)ts.tv_nsec;
}

static void go_through(kolo_set_t *s, kolo_entry_t **entries, kolo_response_t **responses)
{
    for (int i = 0; i < BATCH; i++) kolo_trace_taken(s, entries[i]);
    kolo_trace_agreed(s, responses, BATCH);
    kolo_trace_begin(s, responses, BATCH);
    kolo_trace_do(s, responses, BATCH, KOLO_DO_COPY_IN, 1000, 2000);
    kolo_trace_do(s, responses, BATCH, KOLO_DO_MOVE(0, KOLO_WORK_ALL_REDUCE), 2000, 3000);
    kolo_trace_do(s, responses, BATCH, KOLO_DO_COPY_OUT, 3000, 4000);
    kolo_trace_done(s, responses, BATCH);
    kolo_trace_cycle_over(s->engine);
}

/* The writer has caught up, so that what follows is not measured against a full ring. */
static void catch_up(const kolo_timeline_t *t)
{
    while (atomic_load(&t->ring.tail) != atomic_load(&t->ring.head)) kolo_cpu_relax();
}

int main(int argc, char **argv)
{
    static struct kolo_tensor_engine engine = {.size = 1};
    static kolo_set_t set = {.engine = &engine, .size = 1};
    static kolo_response_t answers[BATCH];
    static int ranks[1];
    kolo_entry_t *entries[BATCH];
    kolo_response_t *responses[BATCH];
    char name[32];
    uint64_t spent = 0;
    kolo_timeline_queue = 65536;
    set.ranks = ranks;
    engine.place.size = 1;
    kolo_timeline_path = argc > 1 ? argv[1] : "/dev/null";
    kolo_timeline_begin(&engine); /* warns */
    if (!engine.timeline_next) return 1;
    for (int i = 0; i < BATCH; i++) {
        snprintf(name, sizeof name, "layer%d.weight", i);
        if (kolo_entry_new(name, (uint32_t)strlen(name), NULL, 0, &entries[i]) != KOLO_OK) return 1;
        entries[i]->request.type = KOLO_FLOAT32;
        entries[i]->request.ndims = 2;
        entries[i]->request.shape[0] = entries[i]->request.shape[1] = 128;
        answers[i] = (kolo_response_t){.request = entries[i]->request, .entry = entries[i]};
        responses[i] = &answers[i];
    }
    kolo_timeline_adopt(&engine);
    kolo_timeline_t *t = engine.timeline;
    go_through(&set, entries, responses); /* names are new only once */
    uint64_t records = atomic_load(&t->ring.head);
    for (int round = 0; round < ROUNDS; round++) {
        if (round % 16 == 0) catch_up(t);
        uint64_t began = core_ns();
        go_through(&set, entries, responses);
        spent += core_ns() - began;
    }
    records = atomic_load(&t->ring.head) - records;
    unsigned long long lost = atomic_load(&t->ring.lost) + atomic_load(&t->ring.left_out);
    kolo_timeline_end(&engine);
    for (int i = 0; i < BATCH; i++) kolo_entry_free(entries[i]);
    printf("timeline event_ns=%.1f tensor_ns=%.1f lost=%llu\n", (double)spent / (double)records,
           (double)spent / (BATCH * ROUNDS), lost);
    return 0;
}
