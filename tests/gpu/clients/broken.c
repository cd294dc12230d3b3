/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams that take nothing: one whose capture has failed, since the program called something that a capture
 * forbids; the default stream while a stream that waits for it is captured; one of another GPU in a group. What is
 * called there is refused, before anything is queued, and the communicator is as good as before. See clients.h.
 */
#include "clients.h"

#include <stdlib.h>
#include <string.h>

static kolo_status_t sum(const kit_rank_t *r, kolo_comm_t comm, size_t to, void *stream)
{
    return kolo_all_reduce(r->buffer + A, r->buffer + to, COUNT, KOLO_INT32, KOLO_SUM, comm, stream);
}

static bool refused(const kit_rank_t *r, kolo_status_t status, kolo_status_t want, const char *words)
{
    const char *text = kolo_get_last_error(NULL);
    if (status == want && strstr(text, words)) return true;
    return KIT_FAIL("rank %d: %s, not %s: %s", r->rank, kolo_status_string(status), kolo_status_string(want),
                    status == KOLO_OK ? "" : text);
}

/* A program that has caught the failure of its capture goes on without a graph, then with a new one. */
static bool goes_on(kit_rank_t *r, int salt)
{
    void *plan = NULL, *graph = NULL;
    bool good = clients_put(r, A, COUNT, salt, r->streams[0]) && kit_sync(r, r->streams[0]) &&
                KIT_OK(sum(r, r->comm, B, r->streams[0])) &&
                clients_is_sum(r, B, COUNT, salt, 1, r->streams[0], "behind a capture that failed");
    good = good && kit_capture(r, r->streams[0]) && KIT_OK(sum(r, r->comm, C, r->streams[0]));
    good = kit_captured(r, r->streams[0], &plan) && good && kit_graph(r, plan, &graph);
    good = good && kit_replay(r, graph, r->streams[0]) &&
           clients_is_sum(r, C, COUNT, salt, 1, r->streams[0], "a new capture");
    kit_graph_end(graph);
    return good;
}

typedef enum { A_CALL, MESSAGES, STREAMS, A_GROUP, A_SIGNAL } how_t;

static kolo_status_t call(const kit_rank_t *r, kolo_comm_t other, how_t how)
{
    int next = (r->rank + 1) % r->nranks, last = (r->rank + r->nranks - 1) % r->nranks;
    if (how == A_CALL) return sum(r, r->comm, B, r->streams[0]);
    if (how == A_SIGNAL) return kolo_signal(next, 0, r->comm, r->streams[0]);
    kolo_status_t status = kolo_group_start();
    if (how == MESSAGES) {
        if (status == KOLO_OK) status = kolo_send(r->buffer, COUNT, KOLO_INT32, next, r->comm, r->streams[0]);
        if (status == KOLO_OK) status = kolo_recv(r->buffer + C, COUNT, KOLO_INT32, last, r->comm, r->streams[0]);
    } else {
        if (status == KOLO_OK) status = sum(r, how == STREAMS ? r->comm : other, C, r->streams[1]);
        if (status == KOLO_OK) status = sum(r, r->comm, B, r->streams[0]);
    }
    kolo_status_t end = kolo_group_end();
    return status == KOLO_OK ? end : status;
}

static bool capture_fails(kit_team_t *t, kolo_comm_t other, how_t how, bool begun)
{
    kit_rank_t *r = &t->ranks[0];
    kolo_cu_event_t event = NULL;
    bool good = kit_event_new(&event) && kit_capture(r, r->streams[0]) &&
                (!begun || KIT_OK(sum(r, r->comm, B, r->streams[0])));
    good = good && kit_cuda()->event_query(event) != KOLO_CU_SUCCESS; /* a capture forbids to ask */
    good = good && refused(r, call(r, other, how), KOLO_ERR_INVALID_USAGE,
                           how == STREAMS || how == A_GROUP ? "captur" : "capture has failed");
    kit_event_end(event);
    if (!kit_capture_lost(r, r->streams[0])) good = KIT_FAIL("rank %d: the capture is good", r->rank);
    return kit_case_end(t, good && goes_on(r, 100 + (int)how), "calls on a stream whose capture has failed");
}

/* The default stream waits for streams that are not made otherwise, so nothing can be queued there meanwhile. */
static bool default_stream(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    kolo_cu_stream_t blocking = NULL;
    void *plan = NULL, *graph = NULL;
    bool good = !kit_cuda()->stream_create(&blocking, 0) && clients_put(r, A, COUNT, 110, blocking) &&
                kit_sync(r, blocking) && kit_capture(r, blocking) && KIT_OK(sum(r, r->comm, B, blocking));
    good = good && refused(r, sum(r, r->comm, C, NULL), KOLO_ERR_INVALID_USAGE, "default stream");
    good = good && KIT_OK(sum(r, r->comm, D, r->streams[1])); /* any other may be used */
    good = kit_captured(r, blocking, &plan) && good && kit_graph(r, plan, &graph);
    good = good && kit_replay(r, graph, blocking) && clients_is_sum(r, B, COUNT, 110, 1, blocking, "the capture") &&
           clients_is_sum(r, D, COUNT, 110, 1, r->streams[1], "beside the capture");
    kit_graph_end(graph);
    kit_stream_end(r, blocking);
    return kit_case_end(t, good, "calls on the default stream beside a capture that it would wait for");
}

/* The second communicator's calls name a stream of another GPU: the first one's are not queued either. */
static bool other_gpu(kit_team_t *t, kolo_comm_t other)
{
    kit_rank_t *r = &t->ranks[0], there = {.device = (r->device + 1) % kit_devices()};
    kolo_cu_device_t device;
    if (kit_devices() < 2) return true;
    bool good = !kit_cuda()->device_get(&device, there.device) && !kit_cuda()->primary_retain(&there.ctx, device);
    void *stream = good ? kit_stream_new(&there) : NULL;
    kit_enter(r);
    memset(r->image + B, 0x55, 4 * COUNT);
    good = stream && kit_upload(r, B, 4 * COUNT, r->streams[0]) && kit_sync(r, r->streams[0]) &&
           KIT_OK(kolo_group_start()) && KIT_OK(sum(r, r->comm, B, r->streams[0])) &&
           KIT_OK(sum(r, other, C, stream)) &&
           refused(r, kolo_group_end(), KOLO_ERR_INVALID_ARGUMENT, "pass a stream of that GPU");
    good = good && kit_download(r, B, 4 * COUNT, r->streams[0]) && kit_sync(r, r->streams[0]);
    for (size_t i = 0; i < 4 * COUNT && good; i++)
        if (r->back[B + i] != 0x55) good = KIT_FAIL("rank %d: a part of a group that was refused has run", r->rank);
    kit_stream_end(&there, stream);
    kit_enter(r);
    if (there.ctx) kit_cuda()->primary_release(device);
    return kit_case_end(t, good && goes_on(r, 120), "a group of which a part names a stream of another GPU");
}

bool clients_broken(kit_team_t *t)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t first = t->ranks[0].comm, other;
    if (t->n > 1) return true;
    if (!kit_comms_make(t, &config)) return false;
    other = t->ranks[0].comm;
    t->ranks[0].comm = first;
    bool good = true;
    int ways = getenv("KOLO_GPU_EXECUTOR") ? A_GROUP : A_SIGNAL; /* signals need kernels */
    kolo_window_t window = NULL;
    good = ways == A_GROUP || KIT_OK(kolo_window_register(first, t->ranks[0].buffer + D, 4096, &window));
    for (int how = A_CALL; how <= ways && good; how++)
        good = capture_fails(t, other, (how_t)how, false) && capture_fails(t, other, (how_t)how, true);
    good = good && default_stream(t) && other_gpu(t, other);
    good = good && (!window || KIT_OK(kolo_window_deregister(first, window)));
    return KIT_OK(kolo_comm_destroy(other)) && good;
}
