/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU is waited for without stopping anybody: a thread waits while a stream is held, another one launches and
 * captures. On the fake driver, which stops launches, or ends captures, in other calls that wait (mem/cuda/idle.c).
 */
#include "base/clock.h"
#include "gpu/kit.h"
#include "mem/cuda/beside.h"

#include <pthread.h>
#include <stdio.h>

static kit_rank_t rank = {.rank = 0, .nranks = 1};
static const kolo_cuda_device_t *device;
static _Atomic bool waits, came;

static void note(void *arg)
{
    (void)arg;
    if (kit_query(&rank, rank.streams[0]) != KOLO_OK) KIT_FAIL("it came while a stream was held");
    atomic_store(&came, true);
}

static void *wait_for_it(void *arg)
{
    kit_enter(&rank);
    atomic_store(&waits, true);
    if (!kolo_cuda_when_idle(device, note, arg)) KIT_FAIL("the driver lets nobody wait");
    return NULL;
}

/* Ends the capture, which becomes a graph. */
static bool makes_a_graph(void)
{
    void *plan = NULL, *graph = NULL;
    bool good = kit_captured(&rank, rank.streams[1], &plan) && kit_graph(&rank, plan, &graph);
    kit_graph_end(graph);
    return good;
}

/* What another thread does meanwhile goes on: an event behind a copy, a capture and what it takes. */
static void go_on(void)
{
    kolo_cu_event_t event;
    uint64_t end = kolo_deadline_ms(10000);
    for (int k = 0; k < 100; k++) kit_nap(); /* it waits in the driver */
    if (!kit_event_new(&event) || !kit_upload(&rank, 0, 4096, rank.streams[1]) ||
        !kit_event_record(event, rank.streams[1]) || !kit_sync(&rank, rank.streams[1]))
        KIT_FAIL("work beside the wait");
    if (!kit_capture(&rank, rank.streams[1]) || !kit_upload(&rank, 0, 4096, rank.streams[1]) || !makes_a_graph())
        KIT_FAIL("a capture beside the wait");
    kit_event_end(event);
    if (kolo_now_ns() > end) KIT_FAIL("work beside the wait stood still");
    if (atomic_load(&came)) KIT_FAIL("nobody waited");
}

/* The thread that captures may wait itself, as ncclMemFree() does. */
static void wait_in_a_capture(void)
{
    if (!kit_capture(&rank, rank.streams[1]) || !kit_upload(&rank, 0, 4096, rank.streams[1])) KIT_FAIL("a capture");
    if (kolo_cuda_await_idle(device)) KIT_FAIL("a wait in a capture is refused");
    if (!makes_a_graph()) KIT_FAIL("a wait ends the capture");
}

int main(void)
{
    int devices = 0;
    pthread_t thread;
    kolo_unique_id_t id;
    if (kolo_get_unique_id(&id) != KOLO_OK) return 1; /* reads the parameters */
    if (!kit_open(false, &devices) || devices < 1 || !kit_rank_open(&rank, 0, 1 << 16)) return 77;
    if (kolo_cuda_device(0, &device) != KOLO_OK) return 1;
    kolo_cuda_idle_prepare(device);
    if (!kit_hold(&rank, rank.streams[0]) || pthread_create(&thread, NULL, wait_for_it, NULL)) return 1;
    while (!atomic_load(&waits)) kit_nap();
    go_on();
    kit_let_go(&rank);
    pthread_join(thread, NULL);
    if (!atomic_load(&came)) KIT_FAIL("it never came");
    for (int i = 0; i < 20; i++) wait_in_a_capture(); /* more than the stock has */
    printf("%d failures\n", kit_failures);
    return kit_failures > 0;
}
