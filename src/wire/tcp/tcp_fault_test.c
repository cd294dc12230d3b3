/* SPDX-License-Identifier: Apache-2.0
 *
 * What can go wrong on a tcp connection: peers that die, close, send nonsense, or wait; and waiters that sleep.
 */
#include "wire/tcp/tcp_testing.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

typedef struct {
    test_pair_t p;
    kolo_tx_t tx;
    kolo_rx_t rx;
    int raw; /* the other end when it is the test itself */
} fix_t;

static void open_both(fix_t *f, uint32_t slot_bytes, int nsocks)
{
    int a[16], b[16];
    kolo_conn_spec_t spec = test_spec(4, slot_bytes, 0);
    pair_init(&f->p);
    make_sockets(a, b, nsocks);
    tx_open(&f->p.w, &f->tx, &spec, a, nsocks);
    rx_open(&f->p.r, &f->rx, &spec, b, nsocks);
}
static void open_reader(fix_t *f, uint32_t slot_bytes)
{
    int b;
    kolo_conn_spec_t spec = test_spec(4, slot_bytes, 0);
    pair_init(&f->p);
    make_sockets(&f->raw, &b, 1);
    rx_open(&f->p.r, &f->rx, &spec, &b, 1);
}
static void open_writer(fix_t *f, uint32_t slot_bytes)
{
    int a;
    kolo_conn_spec_t spec = test_spec(4, slot_bytes, 0);
    pair_init(&f->p);
    make_sockets(&a, &f->raw, 1);
    tx_open(&f->p.w, &f->tx, &spec, &a, 1);
}
static void close_reader(fix_t *f)
{
    close(f->raw);
    kolo_wire_tcp.rx_fini(&f->rx);
    pair_fini(&f->p);
}
static void close_writer(fix_t *f)
{
    close(f->raw);
    kolo_wire_tcp.tx_fini(&f->tx);
    pair_fini(&f->p);
}

/* Pumps until it fails, for at most 30 s. */
static kolo_status_t pump_until_failure(test_side_t *side)
{
    uint64_t until = kolo_deadline_ms(30000);
    kolo_status_t st = KOLO_OK;
    while (st == KOLO_OK && kolo_now_ns() < until) st = kolo_wire_step(&side->ctx);
    return st;
}
static void expect_text(const char *word)
{
    if (!strstr(kolo_error_text(), word)) fail_msg("\"%s\" lacks \"%s\"", kolo_error_text(), word);
}
static void send_frame(int fd, uint16_t magic, uint16_t flags, uint32_t bytes, uint64_t slot)
{
    uint8_t out[KOLO_TCP_FRAME_BYTES];
    kolo_tcp_frame_t f = {.magic = magic, .flags = flags, .bytes = bytes, .slot = slot};
    kolo_tcp_frame_encode(out, &f);
    assert_int_equal(send(fd, out, sizeof out, MSG_NOSIGNAL), sizeof out);
}

static void garbage_is_a_protocol_error(void **state)
{
    (void)state;
    static const struct {
        uint16_t magic, flags;
        uint32_t bytes;
        uint64_t slot;
    } bad[] = {
        {0x1234, 0, 8, 0},
        {KOLO_TCP_FRAME_MAGIC, 2, 8, 0},
        {KOLO_TCP_FRAME_MAGIC, 0, 257, 0},
        {KOLO_TCP_FRAME_MAGIC, 0, UINT32_MAX, 0},
        {KOLO_TCP_FRAME_MAGIC, 0, 8, 1},
        {KOLO_TCP_FRAME_MAGIC, 0, 8, UINT64_MAX},
        {KOLO_TCP_FRAME_MAGIC, KOLO_TCP_FRAME_BYE, 8, 0},
    };
    for (size_t i = 0; i < KOLO_COUNTOF(bad); i++) {
        fix_t f;
        open_reader(&f, 256);
        send_frame(f.raw, bad[i].magic, bad[i].flags, bad[i].bytes, bad[i].slot);
        assert_int_equal(pump_until_failure(&f.p.r), KOLO_ERR_PROTOCOL);
        expect_text("rank 0 on host0 (pid 0, 127.0.0.1:");
        assert_false(kolo_rx_ready(&f.rx));
        assert_int_equal(kolo_wire_step(&f.p.r.ctx), KOLO_ERR_PROTOCOL); /* and stays one */
        close_reader(&f);
    }
}

static void frames_after_the_farewell_are_a_protocol_error(void **state)
{
    (void)state;
    fix_t f;
    open_reader(&f, 256);
    send_frame(f.raw, KOLO_TCP_FRAME_MAGIC, KOLO_TCP_FRAME_BYE, 0, 0);
    send_frame(f.raw, KOLO_TCP_FRAME_MAGIC, 0, 0, 0);
    assert_int_equal(pump_until_failure(&f.p.r), KOLO_ERR_PROTOCOL);
    close_reader(&f);
}

static void a_reader_that_talks_back_is_a_protocol_error(void **state)
{
    (void)state;
    fix_t f;
    open_writer(&f, 256);
    send_frame(f.raw, KOLO_TCP_FRAME_MAGIC, 0, 8, 0);
    assert_int_equal(pump_until_failure(&f.p.w), KOLO_ERR_PROTOCOL);
    expect_text("rank 1 on host1");
    close_writer(&f);
}

static void a_connection_that_ends_within_a_frame_says_so(void **state)
{
    (void)state;
    for (int whole_header = 0; whole_header < 2; whole_header++) {
        fix_t f;
        open_reader(&f, 256);
        if (whole_header)
            send_frame(f.raw, KOLO_TCP_FRAME_MAGIC, 0, 8, 0);
        else
            assert_int_equal(send(f.raw, "KO", 2, 0), 2);
        shutdown(f.raw, SHUT_WR);
        assert_int_equal(pump_until_failure(&f.p.r), KOLO_ERR_REMOTE);
        expect_text("in the middle of slot 0");
        assert_false(kolo_rx_ready(&f.rx));
        close_reader(&f);
    }
}

static void a_connection_that_ends_without_farewell_is_a_death(void **state)
{
    (void)state;
    fix_t f;
    open_reader(&f, 256);
    shutdown(f.raw, SHUT_WR);
    assert_int_equal(pump_until_failure(&f.p.r), KOLO_ERR_REMOTE);
    expect_text("rank 0 on host0 (pid 0, 127.0.0.1:");
    close_reader(&f);
    open_writer(&f, 256);
    shutdown(f.raw, SHUT_WR);
    assert_int_equal(pump_until_failure(&f.p.w), KOLO_ERR_REMOTE);
    expect_text("rank 1 on host1 (pid 0, 127.0.0.1:");
    close_writer(&f);
}

static void what_was_sent_before_closing_still_arrives(void **state)
{
    (void)state;
    for (int nsocks = 1; nsocks <= 4; nsocks *= 2) {
        fix_t f;
        kolo_status_t st = KOLO_OK;
        uint64_t until = kolo_deadline_ms(30000);
        open_both(&f, 32768, nsocks);
        for (uint64_t n = 0; n < 4; n++) {
            test_put(kolo_tx_payload(&f.tx), n, 32768);
            kolo_tx_post(&f.tx, 32768, 0, 0, 0);
        }
        while (!kolo_tx_sent(&f.tx)) assert_int_equal(kolo_wire_step(&f.p.w.ctx), KOLO_OK);
        kolo_wire_tcp.tx_close(&f.tx);
        kolo_wire_tcp.tx_fini(&f.tx);
        for (uint64_t n = 0; n < 4; n++) {
            while (!kolo_rx_ready(&f.rx)) {
                assert_true(kolo_now_ns() < until);
                assert_int_equal(kolo_wire_step(&f.p.r.ctx), KOLO_OK);
                if (kolo_rx_ready(&f.rx)) break;
                assert_int_equal(kolo_wire_tcp.rx_check(&f.rx), KOLO_OK);
            }
            test_verify(kolo_rx_payload(&f.rx), n, 32768);
            kolo_rx_release(&f.rx);
        }
        while (st == KOLO_OK && kolo_now_ns() < until) st = kolo_wire_tcp.rx_check(&f.rx);
        assert_int_equal(st, KOLO_ERR_REMOTE);
        expect_text("has closed the connection");
        /* A farewell concerns this connection only: waiters on others go on. */
        assert_int_equal(kolo_wire_step(&f.p.r.ctx), KOLO_OK);
        kolo_wire_tcp.rx_fini(&f.rx);
        pair_fini(&f.p);
    }
}

static void a_farewell_counts_when_every_socket_has_brought_it(void **state)
{
    (void)state;
    fix_t f;
    int raw[2], b[2];
    kolo_conn_spec_t spec = test_spec(4, 256, 0);
    kolo_status_t st = KOLO_OK;
    uint64_t until = kolo_deadline_ms(30000);
    pair_init(&f.p);
    make_sockets(raw, b, 2);
    rx_open(&f.p.r, &f.rx, &spec, b, 2);
    for (uint64_t n = 0; n < 2; n++) { /* slot n and the farewell on socket n, the second one later */
        send_frame(raw[n], KOLO_TCP_FRAME_MAGIC, 0, 0, n);
        send_frame(raw[n], KOLO_TCP_FRAME_MAGIC, KOLO_TCP_FRAME_BYE, 0, n + 2);
        shutdown(raw[n], SHUT_WR);
        while (!kolo_rx_ready(&f.rx) && kolo_now_ns() < until)
            assert_int_equal(kolo_wire_step(&f.p.r.ctx), KOLO_OK);
        assert_true(kolo_rx_ready(&f.rx));
        kolo_rx_release(&f.rx);
        for (int i = 0; n == 0 && i < 1000; i++) assert_int_equal(kolo_wire_tcp.rx_check(&f.rx), KOLO_OK);
    }
    while (st == KOLO_OK && kolo_now_ns() < until) st = kolo_wire_tcp.rx_check(&f.rx);
    assert_int_equal(st, KOLO_ERR_REMOTE);
    expect_text("has closed the connection");
    close(raw[0]);
    close(raw[1]);
    kolo_wire_tcp.rx_fini(&f.rx);
    pair_fini(&f.p);
}

static void a_writer_learns_that_its_reader_has_closed(void **state)
{
    (void)state;
    fix_t f;
    kolo_status_t st = KOLO_OK;
    uint64_t until = kolo_deadline_ms(30000);
    open_both(&f, 256, 1);
    kolo_wire_tcp.rx_close(&f.rx);
    assert_int_equal(kolo_wire_tcp.rx_check(&f.rx), KOLO_ERR_ABORTED);
    while (st == KOLO_OK && kolo_now_ns() < until) st = kolo_wire_tcp.tx_check(&f.tx);
    assert_int_equal(st, KOLO_ERR_REMOTE);
    expect_text("has closed the connection");
    assert_int_equal(kolo_wire_step(&f.p.w.ctx), KOLO_OK);
    kolo_wire_tcp.rx_fini(&f.rx);
    kolo_wire_tcp.tx_fini(&f.tx);
    pair_fini(&f.p);
}

static void a_writer_that_closes_with_frames_unsent_did_not_end_well(void **state)
{
    (void)state;
    fix_t f;
    open_both(&f, 256, 1);
    kolo_tx_post(&f.tx, 8, 0, 0, 0);
    kolo_wire_tcp.tx_close(&f.tx);
    assert_int_equal(pump_until_failure(&f.p.r), KOLO_ERR_REMOTE);
    expect_text("without");
    kolo_wire_tcp.tx_fini(&f.tx);
    kolo_wire_tcp.rx_fini(&f.rx);
    pair_fini(&f.p);
}

/* ---- waiting ---- */

static void describe(void *arg, char *text, size_t bytes)
{
    const kolo_rx_t *rx = arg;
    snprintf(text, bytes, "slot %llu from rank %d", (unsigned long long)rx->end.next, rx->spec.writer);
}

static kolo_status_t wait_for_slot(fix_t *f, uint64_t deadline, bool park_at_once)
{
    kolo_wait_t w;
    kolo_status_t st = KOLO_OK;
    kolo_wait_init(&w, &f->p.r.abort, deadline, describe, &f->rx, 1);
    if (park_at_once) w.spins = w.yields = 0;
    w.wakers[0] = &f->p.r.ctx.waker;
    w.nwakers = 1;
    while (!kolo_rx_ready(&f->rx)) {
        if ((st = kolo_wire_step(&f->p.r.ctx)) != KOLO_OK) break;
        if (kolo_rx_ready(&f->rx)) break;
        if ((st = kolo_wait_pause(&w)) != KOLO_OK) break;
    }
    kolo_wait_end(&w);
    return st;
}

static void *abort_soon(void *arg)
{
    fix_t *f = arg;
    struct timespec ts = {.tv_nsec = 30000000};
    nanosleep(&ts, NULL);
    atomic_store(&f->p.r.abort, 1);
    kolo_waker_wake(&f->p.r.ctx.waker);
    return NULL;
}

static void abort_ends_a_wait(void **state)
{
    (void)state;
    fix_t f;
    pthread_t thread;
    open_both(&f, 256, 1);
    uint64_t start = kolo_now_ns();
    assert_int_equal(pthread_create(&thread, NULL, abort_soon, &f), 0);
    assert_int_equal(wait_for_slot(&f, kolo_deadline_ms(30000), true), KOLO_ERR_ABORTED);
    assert_true(IN_TIME(kolo_now_ns() - start < KOLO_NS_PER_S));
    expect_text("slot 0 from rank 0");
    pthread_join(thread, NULL);
    kolo_wire_tcp.tx_fini(&f.tx);
    kolo_wire_tcp.rx_fini(&f.rx);
    pair_fini(&f.p);
}

static void a_silent_peer_ends_in_a_time_out_that_names_it(void **state)
{
    (void)state;
    fix_t f;
    open_both(&f, 256, 1);
    assert_int_equal(wait_for_slot(&f, kolo_deadline_ms(50), false), KOLO_ERR_TIMEOUT);
    expect_text("slot 0 from rank 0");
    kolo_wire_tcp.tx_fini(&f.tx);
    kolo_wire_tcp.rx_fini(&f.rx);
    pair_fini(&f.p);
}

/* The writer posts one message a few milliseconds after the reader has gone to sleep, then wakes it by an eventfd:
 * what that takes is the machine's. */
typedef struct {
    fix_t *f;
    int event_fd;
    _Atomic uint64_t posted_ns;
} sleepy_t;
#define SLEEPY_MESSAGES 15

static void *post_later(void *arg)
{
    sleepy_t *s = arg;
    fix_t *f = s->f;
    for (int i = 0; i < 2 * SLEEPY_MESSAGES; i++) {
        struct timespec ts = {.tv_nsec = 13000000};
        nanosleep(&ts, NULL);
        atomic_store(&s->posted_ns, kolo_now_ns());
        if (i % 2) {
            if (eventfd_write(s->event_fd, 1) != 0) return NULL;
            continue;
        }
        kolo_tx_post(&f->tx, 8, 0, 0, 0);
        while (!kolo_tx_sent(&f->tx))
            if (kolo_wire_step(&f->p.w.ctx) != KOLO_OK) return NULL;
    }
    return NULL;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The medians of what a wake-up takes: by the socket, and by the eventfd. */
static void measure_wake_ups(fix_t *f, uint64_t *by_socket, uint64_t *by_event)
{
    sleepy_t s = {.f = f, .event_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE)};
    pthread_t thread;
    uint64_t took[SLEEPY_MESSAGES], control[SLEEPY_MESSAGES];
    struct pollfd event = {.fd = s.event_fd, .events = POLLIN};
    eventfd_t value;
    assert_int_equal(pthread_create(&thread, NULL, post_later, &s), 0);
    for (int i = 0; i < SLEEPY_MESSAGES; i++) {
        assert_int_equal(wait_for_slot(f, kolo_deadline_ms(30000), true), KOLO_OK);
        took[i] = kolo_now_ns() - atomic_load(&s.posted_ns);
        kolo_rx_release(&f->rx);
        assert_int_equal(poll(&event, 1, 30000), 1);
        control[i] = kolo_now_ns() - atomic_load(&s.posted_ns);
        assert_int_equal(eventfd_read(s.event_fd, &value), 0);
    }
    pthread_join(thread, NULL);
    close(s.event_fd);
    qsort(took, SLEEPY_MESSAGES, sizeof took[0], compare);
    qsort(control, SLEEPY_MESSAGES, sizeof control[0], compare);
    *by_socket = took[SLEEPY_MESSAGES / 2];
    *by_event = control[SLEEPY_MESSAGES / 2];
}

static void a_sleeping_reader_is_woken_by_its_socket(void **state)
{
    (void)state;
    fix_t f;
    uint64_t by_socket, by_event;
    bool soon = false;
    open_both(&f, 256, 1);
    for (int tries = 0; tries < 5 && !soon; tries++) { /* the longer way: a crowded machine halts it more often */
        measure_wake_ups(&f, &by_socket, &by_event);
        /* Without a wake-up the median would be half of KOLO_PARK_MAX_MS. */
        soon = by_socket <= by_event + 2 * KOLO_NS_PER_MS;
    }
    assert_true(IN_TIME(soon));
    kolo_wire_tcp.tx_fini(&f.tx);
    kolo_wire_tcp.rx_fini(&f.rx);
    pair_fini(&f.p);
}

/* ---- two processes ---- */

static void a_killed_writer_is_noticed_at_once(void **state)
{
    (void)state;
    fix_t f;
    int a, b;
    kolo_conn_spec_t spec = test_spec(4, 65536, 0);
    make_sockets(&a, &b, 1);
    pid_t child = fork();
    assert_true(child >= 0);
    pair_init(&f.p);  /* after the fork: what the library had before leads nowhere in a child */
    if (child == 0) { /* posts what it can, then sits there until it is killed */
        close(b);
        tx_open(&f.p.w, &f.tx, &spec, &a, 1);
        for (;;) {
            if (kolo_tx_ready(&f.tx)) kolo_tx_post(&f.tx, 65536, 0, 0, 0);
            if (kolo_wire_step(&f.p.w.ctx) != KOLO_OK) _exit(1);
        }
    }
    close(a);
    rx_open(&f.p.r, &f.rx, &spec, &b, 1);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(wait_for_slot(&f, kolo_deadline_ms(30000), false), KOLO_OK);
        kolo_rx_release(&f.rx);
    }
    kill(child, SIGKILL);
    uint64_t start = kolo_now_ns();
    kolo_status_t st;
    while ((st = wait_for_slot(&f, kolo_deadline_ms(30000), false)) == KOLO_OK) kolo_rx_release(&f.rx);
    assert_int_equal(st, KOLO_ERR_REMOTE);
    assert_true(IN_TIME(kolo_now_ns() - start < KOLO_NS_PER_S));
    expect_text("rank 0 on host0 (pid 0, 127.0.0.1:");
    waitpid(child, NULL, 0);
    kolo_wire_tcp.rx_fini(&f.rx);
    pair_fini(&f.p);
}

static void a_killed_reader_is_noticed_at_once(void **state)
{
    (void)state;
    for (int busy = 0; busy < 2; busy++) { /* a writer with frames to send, and one with none */
        fix_t f;
        int a, b;
        kolo_conn_spec_t spec = test_spec(4, 65536, 0);
        pair_init(&f.p);
        make_sockets(&a, &b, 1);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            close(a);
            for (;;) pause();
        }
        close(b);
        tx_open(&f.p.w, &f.tx, &spec, &a, 1);
        for (int i = 0; i < 100; i++) {
            if (busy && kolo_tx_ready(&f.tx)) kolo_tx_post(&f.tx, 65536, 0, 0, 0);
            assert_int_equal(kolo_wire_step(&f.p.w.ctx), KOLO_OK);
        }
        kill(child, SIGKILL);
        assert_int_equal(pump_until_failure(&f.p.w), KOLO_ERR_REMOTE);
        expect_text("rank 1 on host1 (pid 0, 127.0.0.1:");
        waitpid(child, NULL, 0);
        kolo_wire_tcp.tx_fini(&f.tx);
        pair_fini(&f.p);
    }
}

/* A descriptor that epoll cannot watch, here of a file, makes the fifth socket fail; the four before it work on. */
static void a_connection_that_cannot_be_watched_leaves_the_others_working(void **state)
{
    (void)state;
    fix_t f;
    kolo_rx_t second;
    kolo_wire_card_t card;
    kolo_conn_spec_t spec = test_spec(4, 64, 0);
    open_both(&f, 64, KOLO_TCP_TRY_SOCKETS);
    spec.lane = 1;
    test_fill_rx(&second, &spec);
    assert_int_equal(kolo_wire_tcp.rx_setup(&f.p.r.ctx, &second, &card), KOLO_OK);
    const kolo_socket_t file = {.fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC)};
    assert_true(file.fd >= 0);
    assert_int_equal(kolo_tcp_conn_attach(second.priv, &f.p.r.ctx, &file, 1), KOLO_ERR_SYSTEM);
    for (int i = 0; i < 8; i++)
        assert_int_equal(kolo_wire_step(&f.p.r.ctx), KOLO_OK); /* all is read that has come */
    kolo_tx_post(&f.tx, 0, 0, 7, 8);
    uint64_t until = kolo_deadline_ms(10000);
    while (!kolo_rx_ready(&f.rx) && kolo_now_ns() < until) {
        assert_int_equal(kolo_wire_step(&f.p.w.ctx), KOLO_OK);
        assert_int_equal(kolo_wire_step(&f.p.r.ctx), KOLO_OK);
    }
    assert_true(kolo_rx_ready(&f.rx));
    kolo_wire_tcp.rx_fini(&second);
    kolo_wire_tcp.tx_fini(&f.tx);
    kolo_wire_tcp.rx_fini(&f.rx);
    pair_fini(&f.p);
}

/* Bytes that were peeked at and are not there any more are a broken connection, whatever call failed before. */
static void peeked_bytes_that_are_gone_are_a_lost_connection(void **state)
{
    (void)state;
    fix_t f;
    open_reader(&f, 64);
    kolo_tcp_conn_t *conn = f.rx.priv;
    assert_int_equal(shutdown(f.raw, SHUT_WR), 0);
    conn->socks[0].peeked = 5;
    alarm(20); /* it went round for ever */
    errno = EINTR;
    assert_false(kolo_tcp_take_peeked(&conn->socks[0]));
    alarm(0);
    assert_int_equal(errno, ECONNRESET);
    conn->socks[0].peeked = 0;
    close_reader(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(garbage_is_a_protocol_error),
        cmocka_unit_test(frames_after_the_farewell_are_a_protocol_error),
        cmocka_unit_test(a_reader_that_talks_back_is_a_protocol_error),
        cmocka_unit_test(a_connection_that_ends_within_a_frame_says_so),
        cmocka_unit_test(a_connection_that_ends_without_farewell_is_a_death),
        cmocka_unit_test(what_was_sent_before_closing_still_arrives),
        cmocka_unit_test(a_farewell_counts_when_every_socket_has_brought_it),
        cmocka_unit_test(a_writer_learns_that_its_reader_has_closed),
        cmocka_unit_test(a_writer_that_closes_with_frames_unsent_did_not_end_well),
        cmocka_unit_test(abort_ends_a_wait),
        cmocka_unit_test(a_silent_peer_ends_in_a_time_out_that_names_it),
        cmocka_unit_test(a_sleeping_reader_is_woken_by_its_socket),
        cmocka_unit_test(a_killed_writer_is_noticed_at_once),
        cmocka_unit_test(a_killed_reader_is_noticed_at_once),
        cmocka_unit_test(a_connection_that_cannot_be_watched_leaves_the_others_working),
        cmocka_unit_test(peeked_bytes_that_are_gone_are_a_lost_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
