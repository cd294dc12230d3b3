/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages, groups, windows and streams, for their manual pages. Run by kolorun -n 2.
 */
#include "page.h"

#include <kolo/job.h>
#include <kolo/message.h>

static int rank, peer;

static kolo_status_t send(kolo_comm_t comm)
{
    float data[4] = {1, 2, 3, 4};
    if (rank == 0) return kolo_send(data, 4, KOLO_FLOAT32, 1, comm, NULL);
    return kolo_recv(data, 4, KOLO_FLOAT32, 0, comm, NULL);
}

/* Both ranks send and receive: in a group neither waits for the other's receive first. */
static kolo_status_t group_start(kolo_comm_t comm)
{
    int32_t mine = rank, theirs;
    TRY(kolo_group_start());
    kolo_send(&mine, 1, KOLO_INT32, peer, comm, NULL);
    kolo_recv(&theirs, 1, KOLO_INT32, peer, comm, NULL);
    TRY(kolo_group_end()); /* says what went wrong in the calls as well */
    EXPECT(theirs == peer);
    return KOLO_OK;
}

static kolo_status_t group_drop(kolo_comm_t comm)
{
    float data = 0;
    TRY(kolo_group_start());
    if (kolo_send(&data, 1, KOLO_FLOAT32, 99, comm, NULL) != KOLO_OK) return kolo_group_drop(); /* nothing runs */
    return kolo_group_end();
}

static kolo_status_t isend(kolo_comm_t comm)
{
    int32_t mine = rank, theirs;
    kolo_pending_t requests[2];
    int complete;
    TRY(kolo_isend(&mine, 1, KOLO_INT32, peer, comm, &requests[0]));
    TRY(kolo_irecv(&theirs, 1, KOLO_INT32, peer, comm, &requests[1]));
    TRY(kolo_pending_test(requests[1], &complete)); /* starts them; the program may compute meanwhile */
    TRY(kolo_pending_wait(requests[0]));
    TRY(kolo_pending_wait(requests[1]));
    EXPECT(theirs == peer);
    return KOLO_OK;
}

/* ---- messages with tags ---- */

static kolo_status_t send_tag(kolo_comm_t comm)
{
    kolo_call_opts_t opts = KOLO_CALL_OPTS_INITIALIZER;
    kolo_received_t received;
    char text[16] = "hello";
    opts.timeout_ms = 10000;
    if (rank == 0) return kolo_send_tag(text, 6, KOLO_UINT8, 1, 7, comm, &opts);
    TRY(kolo_recv_tag(text, sizeof text, KOLO_UINT8, KOLO_ANY_SOURCE, 7, comm, &opts, &received));
    EXPECT(received.source == 0 && received.bytes == 6);
    return KOLO_OK;
}

static kolo_status_t isend_tag(kolo_comm_t comm)
{
    int32_t mine = 10 + rank, theirs;
    kolo_received_t received;
    kolo_request_t out, in;
    int complete;
    TRY(kolo_irecv_tag(&theirs, 1, KOLO_INT32, peer, 1, comm, NULL, &in));
    TRY(kolo_isend_tag(&mine, 1, KOLO_INT32, peer, 1, comm, NULL, &out));
    TRY(kolo_request_test(in, &complete));
    TRY(kolo_request_wait(in, -1));
    TRY(kolo_request_wait(out, -1));
    TRY(kolo_request_get_received(in, &received));
    EXPECT(theirs == 10 + peer && received.tag == 1);
    TRY(kolo_request_free(in));
    return kolo_request_free(out);
}

/* Several receives, taken as they come; what does not come is cancelled. */
static kolo_status_t request_wait_any(kolo_comm_t comm)
{
    int32_t mine = rank, theirs[2];
    kolo_request_t in[2];
    const char *why;
    int first;
    for (int i = 0; i < 2; i++)
        TRY(kolo_irecv_tag(&theirs[i], 1, KOLO_INT32, KOLO_ANY_SOURCE, 20 + (uint64_t)i, comm, NULL, &in[i]));
    TRY(kolo_send_tag(&mine, 1, KOLO_INT32, peer, 21, comm, NULL));
    TRY(kolo_request_wait_any(in, 2, -1, &first));
    EXPECT(first == 1 && theirs[1] == peer);
    TRY(kolo_request_cancel(in[0])); /* nobody sends a message with tag 20 */
    EXPECT(kolo_request_error(in[0], &why) == KOLO_ERR_ABORTED);
    for (int i = 0; i < 2; i++) TRY(kolo_request_free(in[i]));
    return KOLO_OK;
}

/* ---- windows ---- */

static kolo_status_t window_register(kolo_comm_t comm)
{
    kolo_signal_wait_t from_peer = {.peer = peer, .signal = 0, .count = 1};
    double mine[2] = {rank, rank + 0.5}, *memory;
    kolo_window_t window;
    void *at;
    TRY(kolo_window_register(comm, NULL, 2 * sizeof *memory, &window)); /* NULL: Kolo makes the memory */
    TRY(kolo_put_signal(mine, 2, KOLO_FLOAT64, peer, window, 0, 0, comm, NULL));
    TRY(kolo_wait_signal(&from_peer, 1, comm, NULL)); /* now the peer's data is here */
    TRY(kolo_window_memory(comm, window, &at, NULL));
    memory = at;
    EXPECT(memory[1] == peer + 0.5);
    return kolo_window_deregister(comm, window);
}

static kolo_status_t put(kolo_comm_t comm)
{
    kolo_signal_wait_t from_peer = {.peer = peer, .signal = 3, .count = 1};
    int32_t table[2] = {0}, mine = 40 + rank;
    kolo_window_t window;
    TRY(kolo_window_register(comm, table, sizeof table, &window));
    TRY(kolo_put(&mine, 1, KOLO_INT32, peer, window, sizeof mine, comm, NULL)); /* into table[1] */
    TRY(kolo_signal(peer, 3, comm, NULL));                                      /* comes behind the put */
    TRY(kolo_wait_signal(&from_peer, 1, comm, NULL));
    EXPECT(table[1] == 40 + peer);
    return kolo_window_deregister(comm, window);
}

/* ---- streams and events ---- */

static void note(void *arg)
{
    *(int *)arg = 1;
}

static kolo_status_t stream_create(kolo_comm_t comm)
{
    float value = 1;
    int noted = 0;
    kolo_stream_t stream;
    TRY(kolo_stream_create(&stream));
    TRY(kolo_all_reduce(&value, &value, 1, KOLO_FLOAT32, KOLO_SUM, comm, stream)); /* queued */
    TRY(kolo_stream_call(stream, note, &noted));                                   /* runs behind it */
    while (kolo_stream_query(stream) == KOLO_IN_PROGRESS) continue;                /* here one would compute */
    TRY(kolo_stream_synchronize(stream));                                          /* its first error, if any */
    EXPECT(value == 2 && noted);
    return kolo_stream_destroy(stream);
}

static kolo_status_t event_create(kolo_comm_t comm)
{
    float value = 1;
    kolo_stream_t sums, copies;
    kolo_event_t summed;
    TRY(kolo_stream_create(&sums));
    TRY(kolo_stream_create(&copies));
    TRY(kolo_event_create(&summed));
    TRY(kolo_all_reduce(&value, &value, 1, KOLO_FLOAT32, KOLO_SUM, comm, sums));
    TRY(kolo_event_record(summed, sums));
    TRY(kolo_stream_wait_event(copies, summed)); /* what is queued to `copies` from now on sees the sum */
    TRY(kolo_event_synchronize(summed));         /* so does this thread */
    EXPECT(kolo_event_query(summed) == KOLO_OK && value == 2);
    TRY(kolo_event_destroy(summed));
    TRY(kolo_stream_destroy(copies));
    return kolo_stream_destroy(sums);
}

static kolo_status_t comm_register(kolo_comm_t comm)
{
    static float large[1 << 16];
    kolo_registration_t handle;
    TRY(kolo_comm_register(comm, large, sizeof large, &handle)); /* worth it for buffers that are used often */
    TRY(kolo_all_reduce(large, large, 1 << 16, KOLO_FLOAT32, KOLO_SUM, comm, NULL));
    return kolo_comm_deregister(comm, handle);
}

int main(void)
{
    static kolo_status_t (*const examples[])(kolo_comm_t) = {
        send, group_start,   group_drop,   isend,        send_tag, isend_tag, request_wait_any, window_register,
        put,  stream_create, event_create, comm_register};
    kolo_job_place_t place;
    kolo_comm_t comm;
    SHOW(kolo_job_get_place, &place);
    EXPECT(place.nranks == 2);
    rank = place.rank;
    peer = 1 - rank;
    SHOW(kolo_job_connect, &comm, NULL);
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) SHOW(examples[i], comm);
    SHOW(kolo_comm_finalize, comm);
    SHOW(kolo_comm_destroy, comm);
    return 0;
}
