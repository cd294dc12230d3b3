/* SPDX-License-Identifier: Apache-2.0
 *
 * Two streams that bring the slots of one queue, looked at in orders that sockets show seldom.
 */
#include "base/test.h"
#include "wire/queue.h"
#include "wire/tcp/frame.h"

#include <stdlib.h>
#include <string.h>

#define DEPTH 4u

typedef struct {
    kolo_head_line_t head;
    kolo_slot_header_t slots[DEPTH];
    kolo_rx_t rx;
    kolo_tcp_sink_t sink;
    kolo_tcp_stream_t streams[2];
} fix_t;

static int make(void **state)
{
    fix_t *f =
        aligned_alloc(KOLO_CACHE_LINE, (sizeof *f + KOLO_CACHE_LINE - 1) / KOLO_CACHE_LINE * KOLO_CACHE_LINE);
    assert_non_null(f);
    memset(f, 0, sizeof *f);
    const kolo_conn_spec_t spec = {.depth = DEPTH};
    f->rx = kolo_queue_rx(&spec, NULL);
    f->rx.end.slots = (char *)f->slots;
    f->rx.end.stride = sizeof(kolo_slot_header_t);
    f->rx.end.head = &f->head;
    f->sink = (kolo_tcp_sink_t){.rx = &f->rx, .mixed = true, .nstreams = 2};
    for (int i = 0; i < 2; i++) f->streams[i] = (kolo_tcp_stream_t){.sink = &f->sink, .step = 1};
    *state = f;
    return 0;
}

static int discard(void **state)
{
    free(*state);
    return 0;
}

/* An empty frame comes on the stream. */
static kolo_status_t bring(fix_t *f, int stream, uint64_t slot, unsigned flags)
{
    kolo_tcp_stream_t *s = &f->streams[stream];
    const kolo_tcp_frame_t frame = {.magic = KOLO_TCP_FRAME_MAGIC, .flags = (uint16_t)flags, .slot = slot};
    struct iovec iov[2];
    assert_int_equal(kolo_tcp_stream_want(s, iov), 1);
    assert_true(iov[0].iov_len >= KOLO_TCP_FRAME_BYTES);
    kolo_tcp_frame_encode(iov[0].iov_base, &frame);
    return kolo_tcp_stream_got(s, KOLO_TCP_FRAME_BYTES);
}

static void read_slots(fix_t *f, int count)
{
    while (count-- > 0) {
        assert_true(kolo_rx_ready(&f->rx));
        kolo_rx_release(&f->rx);
    }
}

/* Slots 0 to 3 are read. One stream stood at slot 4 before, the other stands at slot 8 now. */
static void both_stand_at_later_slots(fix_t *f)
{
    assert_int_equal(bring(f, 1, 4, 0), KOLO_OK);
    for (uint64_t slot = 0; slot < DEPTH; slot++) assert_int_equal(bring(f, 0, slot, 0), KOLO_OK);
    assert_int_equal(f->sink.arrived, DEPTH);
    read_slots(f, DEPTH);
    assert_int_equal(bring(f, 0, 8, 0), KOLO_OK);
}

static void a_slot_on_a_stream_not_looked_at_yet_is_waited_for(void **state)
{
    fix_t *f = *state;
    both_stand_at_later_slots(f);
    for (int i = 0; i < 1000; i++) assert_int_equal(kolo_tcp_stream_parse(&f->streams[0]), KOLO_OK);
    assert_int_equal(kolo_tcp_stream_parse(&f->streams[1]), KOLO_OK);
    read_slots(f, 1);
    for (uint64_t slot = 5; slot < 8; slot++) assert_int_equal(bring(f, 1, slot, 0), KOLO_OK);
    assert_int_equal(kolo_tcp_stream_parse(&f->streams[0]), KOLO_OK);
    read_slots(f, 4);
}

static void a_slot_that_no_stream_can_bring_is_an_error_at_once(void **state)
{
    fix_t *f = *state;
    both_stand_at_later_slots(f);
    assert_int_equal(kolo_tcp_stream_parse(&f->streams[1]), KOLO_OK);
    read_slots(f, 1);
    assert_int_equal(kolo_tcp_stream_parse(&f->streams[0]),
                     KOLO_OK); /* slot 8 was free: 9 is next there, or later */
    assert_int_equal(bring(f, 1, 9, 0), KOLO_ERR_PROTOCOL);
    assert_non_null(strstr(kolo_error_text(), "none for slot 5"));
}

static void an_ended_stream_brings_nothing_more(void **state)
{
    fix_t *f = *state;
    assert_int_equal(bring(f, 0, 5, KOLO_TCP_FRAME_BYE), KOLO_OK);
    assert_int_equal(bring(f, 1, 4, 0), KOLO_ERR_PROTOCOL);
    assert_non_null(strstr(kolo_error_text(), "none for slot 0"));
}

static void a_detached_stream_is_not_counted(void **state)
{
    fix_t *f = *state;
    assert_int_equal(bring(f, 0, 4, 0), KOLO_OK);
    kolo_tcp_stream_detach(&f->streams[0]);
    assert_int_equal(f->sink.nstreams, 1);
    assert_int_equal(bring(f, 1, 0, 0), KOLO_OK);
    read_slots(f, 1);
    assert_int_equal(bring(f, 1, 6, 0), KOLO_ERR_PROTOCOL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_slot_on_a_stream_not_looked_at_yet_is_waited_for, make, discard),
        cmocka_unit_test_setup_teardown(a_slot_that_no_stream_can_bring_is_an_error_at_once, make, discard),
        cmocka_unit_test_setup_teardown(an_ended_stream_brings_nothing_more, make, discard),
        cmocka_unit_test_setup_teardown(a_detached_stream_is_not_counted, make, discard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
