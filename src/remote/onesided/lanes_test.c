/* SPDX-License-Identifier: Apache-2.0
 *
 * Large writes over TCP by lanes: two ends of one process, driven by one thread, whose lanes the threads of their
 * domains move. What the conformance kit asks of writes must hold for these, too.
 */
#include "base/bytes.h"
#include "link/link.h"
#include "remote/onesided/lanes.h"
#include "remote/onesided/test_ends.h"

#include <dirent.h>
#ifdef KOLO_HAVE_SODIUM
#include <sodium.h>
#endif

#define SPLIT (64u << 10)

static char *data; /* 20 MB that differ everywhere */
static int lane_fds[KOLO_LANES_MAX][2];

static void add_lanes(pair_t *p, int n)
{
    for (int i = 0; i < n; i++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, lane_fds[i]), 0);
        for (int k = 0; k < 2; k++)
            assert_int_equal(kolo_onesided_add_lane(p->end[k], (kolo_socket_t){.fd = lane_fds[i][k]}), KOLO_OK);
    }
}

static uint64_t parted(void)
{
    kolo_onesided_counters_t counters;
    kolo_onesided_get_counters(&counters);
    return counters.parted;
}

static void every_size_comes_whole(void **state)
{
    static const uint64_t sizes[] = {SPLIT - 1, SPLIT,    SPLIT + 1,      (256u << 10) - 1,   (256u << 10) + 1,
                                     999983,    1u << 20, (4u << 20) + 5, (17u << 20) + 12345};
    pair_t *p = *state;
    for (int lanes = 1; lanes <= 4; lanes += lanes) { /* 1, 2, 4 of them */
        add_lanes(p, lanes == 1 ? 1 : lanes / 2);
        for (size_t i = 0; i < KOLO_COUNTOF(sizes); i++) {
            kolo_onesided_event_t event;
            uint64_t before = parted();
            memset(p->memory.base, 0, sizes[i] + 100);
            write_at(p, data, sizes[i], 5 * i, KOLO_ONESIDED_NOTIFY, (uint32_t)i, i + 1);
            expect(p, 1, 1, &event);
            assert_int_equal(event.number, i);
            assert_int_equal(event.bytes, sizes[i]);
            assert_memory_equal((char *)p->memory.base + 5 * i, data, sizes[i]);
            assert_int_equal(((char *)p->memory.base)[5 * i + sizes[i]], 0);
            assert_int_equal(parted() - before, sizes[i] >= SPLIT);
        }
    }
}

#ifdef KOLO_HAVE_SODIUM
/* A write whose first record has gone out in part when the lanes come: it goes on as it began. */
static void lanes_that_come_within_a_sealed_record_split_nothing(void **state)
{
    static const kolo_key_t session = {{7}};
    uint8_t greeting[KOLO_GREETING_BYTES], hello[KOLO_HELLO_BYTES];
    kolo_claim_t claim = {.purpose = KOLO_PURPOSE_STREAM, .from = 1};
    kolo_onesided_event_t event, events[3];
    pair_t *p = *state;
    int small = 4096, n;
    assert_true(sodium_init() >= 0);
    kolo_link_values.security = KOLO_SECURITY_ENCRYPT;
    assert_int_equal(kolo_auth_greeting(kolo_seal_offer(), greeting), KOLO_OK);
    assert_true(kolo_seal_answer(kolo_auth_greeting_security(greeting), &claim.security));
    assert_int_equal(kolo_auth_hello(&(kolo_shake_t){&session, 0, greeting, hello}, &claim), KOLO_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(kolo_seal_create(&session, greeting, hello, i == 0, &p->end[i]->socket.seal), KOLO_OK);
    kolo_link_values.security = KOLO_SECURITY_NONE;
    setsockopt(p->end[0]->socket.fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    uint64_t before = parted();
    for (uint32_t i = 0; i < 3; i++)
        write_at(p, data + 77 * i, 2u << 20, (uint64_t)i * (2u << 20), KOLO_ONESIDED_NOTIFY, i, i + 1);
    assert_int_equal(kolo_onesided_step(p->end[0], &event, 1, &n), KOLO_OK); /* until the socket takes no more */
    assert_int_equal(n, 0);
    assert_true(kolo_socket_within(&p->end[0]->socket));
    add_lanes(p, 2);
    expect(p, 3, 3, events);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(events[i].number, i);
        assert_memory_equal((char *)p->memory.base + (size_t)i * (2u << 20), data + 77 * i, 2u << 20);
    }
    assert_true(parted() - before < 3);
}
#endif

static void order_is_that_of_the_writes(void **state)
{
    enum { MANY = 120 };
    pair_t *p = *state;
    kolo_onesided_event_t event;
    uint32_t seen = 0;
    int n, written = 0;
    uint64_t deadline = kolo_deadline_ms(30000), before = parted();
    add_lanes(p, 3);
    for (uint32_t i = 0; i < MANY; i++) { /* large, without a notice; then small, with one */
        uint64_t large = SPLIT + 4099 * (i % 7);
        write_at(p, data + 64 * i, large, (uint64_t)i * 131072, 0, 0, 2 * i + 1);
        write_at(p, &data[i], 1, (uint64_t)i * 131072 + large, KOLO_ONESIDED_NOTIFY, i, 2 * i + 2);
    }
    while (seen < MANY || written < 2 * MANY) {
        assert_true(kolo_now_ns() < deadline);
        assert_int_equal(kolo_onesided_step(p->end[0], &event, 1, &n), KOLO_OK);
        written += n;
        assert_int_equal(kolo_onesided_step(p->end[1], &event, 1, &n), KOLO_OK);
        if (n == 0) continue;
        uint64_t large = SPLIT + 4099 * (seen % 7);
        const char *at = (const char *)p->memory.base + (uint64_t)seen * 131072;
        assert_int_equal(event.number, seen);
        assert_memory_equal(at, data + 64 * seen, large);
        assert_int_equal(at[large], data[seen]);
        seen++;
    }
    assert_int_equal(parted() - before, MANY);
    assert_false(kolo_onesided_is_writing(p->end[0]));
}

static void both_directions_go_by_the_same_lanes(void **state)
{
    pair_t *p = *state;
    kolo_onesided_memory_t memory;
    kolo_onesided_window_t window;
    kolo_onesided_event_t event;
    uint64_t deadline = kolo_deadline_ms(30000), bytes = 3u << 20;
    int heard[2] = {0, 0}, n;
    add_lanes(p, 2);
    assert_int_equal(kolo_onesided_alloc(p->end[0], bytes, &memory), KOLO_OK);
    assert_int_equal(kolo_onesided_expose(p->end[0], memory.base, bytes, &window), KOLO_OK);
    for (uint32_t i = 0; i < 4; i++) {
        kolo_onesided_write_t back = {data + i, bytes, &window, 0, KOLO_ONESIDED_NOTIFY, i, 0};
        assert_int_equal(kolo_onesided_write(p->end[1], &back), KOLO_OK);
        write_at(p, data + 7 + i, bytes, 0, KOLO_ONESIDED_NOTIFY, i, 0);
    }
    while (heard[0] < 4 || heard[1] < 4) {
        assert_true(kolo_now_ns() < deadline);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(kolo_onesided_step(p->end[k], &event, 1, &n), KOLO_OK);
            if (n) assert_int_equal(event.number, heard[k]++);
        }
    }
    assert_memory_equal(memory.base, data + 3, bytes);
    assert_memory_equal(p->memory.base, data + 10, bytes);
    kolo_onesided_free(&memory);
}

/* The other end does not look at what comes: nothing is lost, nothing is told too early. */
static void a_slow_receiver_gets_all_in_the_end(void **state)
{
    pair_t *p = *state;
    kolo_onesided_event_t event, events[6];
    uint64_t until;
    int n;
    add_lanes(p, 2);
    for (uint32_t i = 0; i < 6; i++)
        write_at(p, data + i, 3u << 20, (uint64_t)i * (3u << 20), KOLO_ONESIDED_NOTIFY, i, i + 1);
    until = kolo_deadline_ms(50);
    while (kolo_now_ns() < until) {
        assert_int_equal(kolo_onesided_step(p->end[0], &event, 1, &n), KOLO_OK);
        assert_int_equal(n, 0); /* no socket takes 3 MB */
    }
    assert_true(kolo_onesided_is_writing(p->end[0]));
    expect(p, 6, 6, events);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(events[i].number, i);
        assert_memory_equal((char *)p->memory.base + (uint64_t)i * (3u << 20), data + i, 3u << 20);
    }
}

static void one_lane_alone_is_cut(void **state, int which, uint64_t cut_at)
{
    pair_t *p = *state;
    kolo_onesided_event_t event;
    kolo_status_t status[2] = {KOLO_OK, KOLO_OK};
    uint64_t deadline = kolo_deadline_ms(20000);
    int n;
    add_lanes(p, 3);
    for (uint32_t i = 0; i < 3; i++) write_at(p, data, 17u << 20, 0, KOLO_ONESIDED_NOTIFY, i, i + 1);
    for (uint64_t turn = 0; status[0] == KOLO_OK || status[1] == KOLO_OK; turn++) {
        assert_true(kolo_now_ns() < deadline);
        if (turn == cut_at) assert_int_equal(shutdown(lane_fds[which][turn % 2], SHUT_RDWR), 0);
        for (int k = 0; k < 2; k++)
            if (status[k] == KOLO_OK) status[k] = kolo_onesided_step(p->end[k], &event, 1, &n);
    }
    assert_int_equal(status[0], KOLO_ERR_REMOTE);
    assert_int_equal(status[1], KOLO_ERR_REMOTE);
    assert_non_null(strstr(kolo_error_text(), "end"));
}

static void a_lane_that_is_cut_ends_the_connection(void **state)
{
    static const uint64_t turns[] = {0, 1, 40};
    for (int i = 0; i < 3; i++) {
        one_lane_alone_is_cut(state, i, turns[i]);
        tear_down(state);
        set_up(state);
    }
}

static void an_idle_lane_that_is_cut_ends_the_connection(void **state)
{
    pair_t *p = *state;
    kolo_onesided_event_t event;
    add_lanes(p, 2);
    assert_int_equal(shutdown(lane_fds[1][0], SHUT_RDWR), 0);
    assert_int_equal(wait_event(p->domain[1], p->end[1], &event), KOLO_ERR_REMOTE);
    assert_non_null(strstr(kolo_error_text(), "a lane"));
}

static void what_came_before_the_end_is_seen_before_it(void **state)
{
    pair_t *p = *state;
    kolo_onesided_event_t event;
    int n;
    add_lanes(p, 2);
    write_at(p, data, SPLIT, 0, KOLO_ONESIDED_NOTIFY, 5, 1); /* fits into the sockets */
    write_at(p, "last", 5, SPLIT, KOLO_ONESIDED_NOTIFY, 6, 0);
    do {
        assert_int_equal(kolo_onesided_step(p->end[0], &event, 1, &n), KOLO_OK);
    } while (n == 0);
    kolo_onesided_close(p->end[0]);
    p->end[0] = NULL;
    for (uint32_t i = 5; i <= 6; i++) {
        assert_int_equal(wait_event(p->domain[1], p->end[1], &event), KOLO_OK);
        assert_int_equal(event.number, i);
    }
    assert_memory_equal(p->memory.base, data, SPLIT);
    assert_int_equal(wait_event(p->domain[1], p->end[1], &event), KOLO_ERR_REMOTE);
}

/* A large write that has begun, for half a millisecond; false: it was over by then. */
static bool begin_large(pair_t *p)
{
    kolo_onesided_event_t event;
    uint64_t until;
    int n;
    memset(p->memory.base, 0, 20u << 20);
    write_at(p, data, 19u << 20, 0, KOLO_ONESIDED_NOTIFY, 1, 0);
    until = kolo_now_ns() + 500000;
    while (kolo_now_ns() < until)
        for (int k = 0; k < 2; k++) {
            assert_int_equal(kolo_onesided_step(p->end[k], &event, 1, &n), KOLO_OK);
            if (n) return false;
        }
    return true;
}

static void a_window_that_is_hidden_is_left_alone(void **state)
{
    pair_t *p = *state;
    kolo_onesided_event_t event;
    uint64_t deadline = kolo_deadline_ms(20000);
    kolo_status_t status = KOLO_OK;
    int n;
    const char *bytes = p->memory.base;
    add_lanes(p, 2);
    while (!begin_large(p)) assert_true(kolo_now_ns() < deadline); /* this thread was not run for a while */
    kolo_onesided_hide(p->end[1], &p->window);
    memset(p->memory.base, 1, 20u << 20);
    while (status == KOLO_OK) {
        assert_true(kolo_now_ns() < deadline);
        (void)kolo_onesided_step(p->end[0], &event, 1, &n);
        status = kolo_onesided_step(p->end[1], &event, 1, &n);
    }
    assert_int_equal(status, KOLO_ERR_PROTOCOL);
    assert_non_null(strstr(kolo_error_text(), "hidden"));
    for (size_t i = 0; i < 20u << 20; i++) assert_int_equal(bytes[i], 1);
}

/* A piece that somebody made up. */
static void refuses(void **state, const kolo_onesided_frame_t *frame, const char *why)
{
    pair_t *p = *state;
    kolo_onesided_event_t event;
    kolo_status_t status;
    uint8_t head[KOLO_ONESIDED_FRAME_BYTES];
    int n;
    uint64_t deadline = kolo_deadline_ms(20000);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, lane_fds[0]), 0);
    assert_int_equal(kolo_onesided_add_lane(p->end[0], (kolo_socket_t){.fd = dup(lane_fds[0][0])}), KOLO_OK);
    assert_int_equal(kolo_onesided_add_lane(p->end[1], (kolo_socket_t){.fd = lane_fds[0][1]}), KOLO_OK);
    kolo_onesided_frame_encode(frame, head);
    assert_int_equal(write(lane_fds[0][0], head, sizeof head), sizeof head);
    if (frame->bytes == 1) assert_int_equal(write(lane_fds[0][0], "x", 1), 1);
    /* It is announced, and its bytes come behind the forged ones. */
    write_at(p, data, SPLIT, 0, KOLO_ONESIDED_NOTIFY, 1, 0);
    do {
        assert_true(kolo_now_ns() < deadline);
        (void)kolo_onesided_step(p->end[0], &event, 1, &n);
        status = kolo_onesided_step(p->end[1], &event, 1, &n);
        assert_int_equal(n, 0);
    } while (status == KOLO_OK);
    assert_int_equal(status, KOLO_ERR_PROTOCOL);
    if (!strstr(kolo_error_text(), why)) fail_msg("%s", kolo_error_text());
    close(lane_fds[0][0]);
    tear_down(state);
    set_up(state);
}

static void forged_pieces_are_refused(void **state)
{
    kolo_onesided_frame_t piece = {.flags = KOLO_ONESIDED_PIECE, .bytes = 1000};
    piece.address = SPLIT - 999;
    refuses(state, &piece, "outside");
    piece.address = UINT64_MAX - 5;
    refuses(state, &piece, "outside");
    piece.address = 0;
    piece.bytes = SPLIT + 1;
    refuses(state, &piece, "outside");
    piece.flags = KOLO_ONESIDED_NOTIFY;
    refuses(state, &piece, "no piece");
    piece.flags = KOLO_ONESIDED_PIECE | KOLO_ONESIDED_NOTIFY;
    refuses(state, &piece, "exclude");
    piece.flags = KOLO_ONESIDED_PIECE;
    piece.bytes = 0;
    refuses(state, &piece, "nothing");
    piece.bytes = 1; /* then the real one is too long for what is left */
    refuses(state, &piece, "twice");
}

static void without_lanes_it_goes_as_ever(void **state)
{
    pair_t *p = *state;
    kolo_onesided_event_t event;
    int64_t lanes = kolo_onesided_param_lanes;
    uint64_t before = parted();
    assert_in_range(kolo_onesided_wants_lanes(p->end[0], SPLIT), 0, 4);
    kolo_onesided_param_lanes = 1;
    assert_int_equal(kolo_onesided_wants_lanes(p->end[0], UINT64_MAX), 0);
    add_lanes(p, 2); /* the peer wants some: they are let in and not used */
    write_at(p, data, 5u << 20, 0, KOLO_ONESIDED_NOTIFY, 1, 1);
    expect(p, 1, 1, &event);
    assert_memory_equal(p->memory.base, data, 5u << 20);
    assert_int_equal(parted(), before);
    kolo_onesided_param_lanes = 3;
    assert_int_equal(kolo_onesided_wants_lanes(p->end[0], SPLIT - 1), 0);
    assert_int_equal(kolo_onesided_wants_lanes(p->end[0], SPLIT), 3);
    kolo_onesided_param_lanes = lanes;
}

static int count_threads(void)
{
    DIR *folder = opendir("/proc/self/task");
    int n = 0;
    assert_non_null(folder);
    while (readdir(folder)) n++;
    closedir(folder);
    return n;
}

static void threads_end_with_the_domain(void **state)
{
    pair_t *p = *state;
    int before = count_threads();
    uint64_t deadline = kolo_deadline_ms(30000);
    add_lanes(p, 4);
    assert_true(count_threads() > before);
    tear_down(state);
    while (count_threads() > before)
        assert_true(kolo_now_ns() < deadline); /* a joined thread is listed for a moment */
    set_up(state);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(every_size_comes_whole),
#ifdef KOLO_HAVE_SODIUM
        TEST(lanes_that_come_within_a_sealed_record_split_nothing),
#endif
        TEST(order_is_that_of_the_writes),
        TEST(both_directions_go_by_the_same_lanes),
        TEST(a_slow_receiver_gets_all_in_the_end),
        TEST(a_lane_that_is_cut_ends_the_connection),
        TEST(an_idle_lane_that_is_cut_ends_the_connection),
        TEST(what_came_before_the_end_is_seen_before_it),
        TEST(a_window_that_is_hidden_is_left_alone),
        TEST(forged_pieces_are_refused),
        TEST(without_lanes_it_goes_as_ever),
        TEST(threads_end_with_the_domain),
    };
    char *only_tcp[] = {argv[0], "tcp", NULL};
    (void)argc;
    setenv("KOLO_ONESIDED_SPLIT", "64K", 1);
    setenv("KOLO_ONESIDED_LANES", "3", 1);
    data = malloc(21u << 20);
    if (data == NULL) return 1;
    for (size_t i = 0; i < 21u << 20; i++) data[i] = (char)(i * 7 + i / 251 + i / 65521);
    int failed = run_kinds(2, only_tcp, tests, KOLO_COUNTOF(tests));
    free(data);
    return failed;
}
