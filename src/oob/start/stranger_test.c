/* SPDX-License-Identifier: Apache-2.0
 *
 * Callers that are not of the job: garbage, silence, half a hello, a recorded session, too many at a time. Each is
 * refused and counted, and a job that forms meanwhile does not notice.
 */
#include "oob/oob_test_util.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static kolo_unique_id_t id;
static kolo_id_t parsed;

static int setup(void **state)
{
    if (test_before(state) != 0) return -1;
    test_ok(kolo_id_create(&id));
    return kolo_id_decode(&id, &parsed) == NULL ? 0 : -1;
}

static int stranger(void)
{
    struct sockaddr_storage sa;
    socklen_t bytes = kolo_address_to_sockaddr(&parsed.address, &sa);
    int fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, bytes), 0);
    return fd;
}

static void read_exactly(int fd, void *data, size_t bytes)
{
    assert_int_equal(recv(fd, data, bytes, MSG_WAITALL), (ssize_t)bytes);
}

/* The other side has hung up, with nothing more to read. */
static void assert_hung_up(int fd)
{
    char byte;
    struct pollfd ready = {fd, POLLIN, 0};
    assert_int_equal(poll(&ready, 1, 30000), 1);
    assert_true(recv(fd, &byte, 1, 0) <= 0);
    close(fd);
}

static void the_job_still_forms(void)
{
    uint64_t start = kolo_now_ns();
    test_run_ids(4, 1, &id, NULL);
    assert_true(IN_TIME(kolo_now_ns() - start < 5 * KOLO_NS_PER_S));
}

static void garbage_is_refused_at_its_first_bytes(void **state)
{
    uint8_t greeting[KOLO_GREETING_BYTES];
    kolo_link_counters_t before, after;
    (void)state;
    kolo_link_get_counters(&before);
    for (int i = 0; i < 20; i++) {
        int fd = stranger();
        read_exactly(fd, greeting, sizeof(greeting));
        assert_int_equal(send(fd, "GET / HTTP/1.0\r\n\r\n", 18, 0), 18);
        assert_hung_up(fd);
    }
    kolo_link_get_counters(&after);
    assert_int_equal(after.refused_magic, before.refused_magic + 20);
    the_job_still_forms();
}

static void a_port_scan_is_counted(void **state)
{
    kolo_link_counters_t before, after;
    (void)state;
    kolo_link_get_counters(&before);
    for (int i = 0; i < 20; i++) close(stranger());
    the_job_still_forms();
    kolo_link_get_counters(&after);
    assert_true(after.refused_magic + after.refused_full >= before.refused_magic + before.refused_full + 15);
}

/* Parameters are set before there is a thread that reads them, and back after. */
static int impatient_setup(void **state)
{
    kolo_link_values.handshake_ms = 1000;
    return setup(state);
}

static int narrow_setup(void **state)
{
    kolo_link_values.pending_max = 64;
    return setup(state);
}

static int values_after(void **state)
{
    int failed = test_after(state);
    kolo_link_values.handshake_ms = 10000;
    kolo_link_values.pending_max = 1024;
    return failed;
}

static void silence_ends_after_the_handshake_time(void **state)
{
    uint8_t greeting[KOLO_GREETING_BYTES];
    kolo_link_counters_t before, after;
    (void)state;
    kolo_link_get_counters(&before);
    int silent = stranger(), half = stranger();
    read_exactly(silent, greeting, sizeof(greeting));
    read_exactly(half, greeting, sizeof(greeting));
    assert_int_equal(send(half, "kkh1\1\0", 6, 0), 6);
    uint64_t start = kolo_now_ns();
    assert_hung_up(silent);
    assert_hung_up(half);
    assert_true(IN_TIME(kolo_now_ns() - start < 5 * KOLO_NS_PER_S));
    kolo_link_get_counters(&after);
    assert_int_equal(after.refused_timeout, before.refused_timeout + 2);
    the_job_still_forms();
}

static void a_wrong_proof_learns_nothing(void **state)
{
    uint8_t greeting[KOLO_GREETING_BYTES], hello[KOLO_HELLO_BYTES], verdict[KOLO_VERDICT_BYTES];
    kolo_key_t wrong = parsed.secret;
    kolo_claim_t claim = {KOLO_PURPOSE_CHECKIN, 0, KOLO_RANK_ROOT, 0, KOLO_SECURITY_NONE};
    kolo_link_counters_t before, after;
    kolo_auth_verdict_t code;
    (void)state;
    wrong.bytes[0] ^= 1;
    kolo_link_get_counters(&before);
    int fd = stranger();
    read_exactly(fd, greeting, sizeof(greeting));
    test_ok(kolo_auth_hello(&(kolo_shake_t){&wrong, 0, greeting, hello}, &claim));
    assert_int_equal(send(fd, hello, sizeof(hello), 0), (ssize_t)sizeof(hello));
    read_exactly(fd, verdict, sizeof(verdict));
    assert_false(kolo_auth_check_verdict(&(kolo_shake_t){&parsed.secret, 0, greeting, hello}, verdict, &code));
    assert_int_equal(code, KOLO_VERDICT_REFUSED);
    for (int i = 8; i < KOLO_VERDICT_BYTES; i++) assert_int_equal(verdict[i], 0);
    assert_hung_up(fd);
    kolo_link_get_counters(&after);
    assert_int_equal(after.refused_auth, before.refused_auth + 1);
    the_job_still_forms();
}

/* A caller that knows the secret, up to and with the verdict. */
static int proven_caller(const kolo_claim_t *claim, uint8_t hello[KOLO_HELLO_BYTES], kolo_auth_verdict_t expected)
{
    uint8_t greeting[KOLO_GREETING_BYTES], verdict[KOLO_VERDICT_BYTES];
    kolo_auth_verdict_t code;
    int fd = stranger();
    read_exactly(fd, greeting, sizeof(greeting));
    const kolo_shake_t shake = {&parsed.secret, kolo_address_cookie(&parsed.address), greeting, hello};
    test_ok(kolo_auth_hello(&shake, claim));
    assert_int_equal(send(fd, hello, KOLO_HELLO_BYTES, 0), KOLO_HELLO_BYTES);
    read_exactly(fd, verdict, sizeof(verdict));
    assert_true(kolo_auth_check_verdict(&shake, verdict, &code));
    assert_int_equal(code, expected);
    return fd;
}

static void a_recorded_hello_does_not_open_a_second_session(void **state)
{
    uint8_t greeting[KOLO_GREETING_BYTES], hello[KOLO_HELLO_BYTES], verdict[KOLO_VERDICT_BYTES];
    kolo_claim_t claim = {KOLO_PURPOSE_CHECKIN, 0, KOLO_RANK_ROOT, 0, KOLO_SECURITY_NONE};
    kolo_link_counters_t before, after;
    (void)state;
    int first = proven_caller(&claim, hello, KOLO_VERDICT_OK);
    kolo_link_get_counters(&before);
    int second = stranger();
    read_exactly(second, greeting, sizeof(greeting));
    assert_int_equal(send(second, hello, sizeof(hello), 0), (ssize_t)sizeof(hello));
    read_exactly(second, verdict, sizeof(verdict));
    assert_hung_up(second);
    kolo_link_get_counters(&after);
    assert_int_equal(after.refused_auth, before.refused_auth + 1);
    close(first);
    the_job_still_forms();
}

static void a_proven_caller_with_a_bad_frame_is_refused(void **state)
{
    uint8_t hello[KOLO_HELLO_BYTES], frame[KOLO_CHECKIN_BYTES];
    kolo_claim_t claim = {KOLO_PURPOSE_CHECKIN, 0, KOLO_RANK_ROOT, 0, KOLO_SECURITY_NONE};
    kolo_link_counters_t before, after;
    (void)state;
    kolo_link_get_counters(&before);
    memset(frame, 0xff, sizeof(frame));
    int fd = proven_caller(&claim, hello, KOLO_VERDICT_OK);
    assert_int_equal(send(fd, frame, sizeof(frame), 0), (ssize_t)sizeof(frame));
    uint8_t ack;
    recv(fd, &ack, 1, 0);
    assert_hung_up(fd);
    claim.purpose = KOLO_PURPOSE_MESSAGE; /* the root takes check-ins only */
    assert_hung_up(proven_caller(&claim, hello, KOLO_VERDICT_REFUSED));
    kolo_link_get_counters(&after);
    assert_int_equal(after.refused_frame, before.refused_frame + 2);
    the_job_still_forms();
}

typedef struct {
    int fd;
    const uint8_t *hello;
} withdrawal_t;

/* On the progress thread, so that the end is there when the words are read. */
static void say_and_go(void *arg)
{
    static const struct linger at_once = {1, 0};
    const withdrawal_t *w = arg;
    test_equal(send(w->fd, w->hello, KOLO_HELLO_BYTES, 0), KOLO_HELLO_BYTES);
    test_equal(setsockopt(w->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
    close(w->fd);
}

/* A rank whose communicator ends may take a call back at any moment: that is no stranger to warn of. */
static void a_rank_that_takes_its_call_back_is_no_stranger(void **state)
{
    uint8_t greeting[KOLO_GREETING_BYTES], hello[KOLO_HELLO_BYTES];
    const kolo_claim_t claim = {KOLO_PURPOSE_CHECKIN, 0, KOLO_RANK_ROOT, 0, KOLO_SECURITY_NONE};
    kolo_link_counters_t before, after;
    kolo_progress_t *progress;
    (void)state;
    kolo_link_get_counters(&before);
    test_ok(kolo_progress_get(&progress));
    for (int i = 0; i < 8; i++) {
        int fd = stranger();
        read_exactly(fd, greeting, sizeof(greeting));
        test_ok(kolo_auth_hello(
            &(kolo_shake_t){&parsed.secret, kolo_address_cookie(&parsed.address), greeting, hello}, &claim));
        kolo_progress_call(progress, say_and_go, &(withdrawal_t){fd, hello});
    }
    kolo_progress_put(progress);
    the_job_still_forms();
    kolo_link_get_counters(&after);
    assert_int_equal(after.refused_frame, before.refused_frame);
}

static void a_flood_of_half_open_callers_delays_nobody_for_long(void **state)
{
    enum { FLOOD = 300 };
    int fds[FLOOD];
    kolo_link_counters_t before, after;
    (void)state;
    kolo_link_get_counters(&before);
    for (int i = 0; i < FLOOD; i++) fds[i] = stranger();
    the_job_still_forms();
    kolo_link_get_counters(&after);
    assert_true(after.refused_full > before.refused_full);
    for (int i = 0; i < FLOOD; i++) close(fds[i]);
}

static int open_descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 512; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* With 1,024 that may be pending, and 80 descriptors: a process whose descriptors strangers take can do nothing
 * more. */
static void silent_callers_leave_most_descriptors_alone(void **state)
{
    enum { CALLERS = 60, LIMIT = 160 };
    struct rlimit before, few;
    int fds[CALLERS];
    int64_t pending = kolo_link_values.pending_max;
    (void)state;
    __atomic_store_n(&kolo_link_values.pending_max, 1024, __ATOMIC_RELAXED);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){LIMIT, before.rlim_max};
    int own = open_descriptors();
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (int i = 0; i < CALLERS; i++) fds[i] = stranger();
    poll(NULL, 0, 100); /* all that are accepted are by now */
    int taken = open_descriptors() - own - CALLERS;
    setrlimit(RLIMIT_NOFILE, &before);
    the_job_still_forms();
    for (int i = 0; i < CALLERS; i++) close(fds[i]);
    __atomic_store_n(&kolo_link_values.pending_max, pending, __ATOMIC_RELAXED);
    assert_true(taken <= LIMIT / 4);
}

/* ---- between ranks ---- */

static void send_to_peer(const test_rank_t *me, const uint8_t *bytes, size_t n)
{
    pthread_mutex_lock(&me->oob->lock);
    kolo_peer_t *peer = kolo_peer_find(me->oob, 1 - me->rank);
    test_equal(send(peer->conns->socket.fd, bytes, n, MSG_NOSIGNAL), (ssize_t)n);
    pthread_mutex_unlock(&me->oob->lock);
}

static void oversized(test_rank_t *me)
{
    uint8_t head[KOLO_HEAD_BYTES];
    kolo_head_t wrong = {KOLO_FRAME_MESSAGE, KOLO_OOB_MESSAGE_MAX + 1, 5};
    uint64_t word;
    if (me->rank == 0) {
        kolo_oob_head_encode(&wrong, head);
        send_to_peer(me, head, sizeof(head));
        test_equal(kolo_oob_recv(me->oob, 1, 6, &word, sizeof(word), 0), KOLO_ERR_REMOTE);
    } else {
        test_equal(kolo_oob_recv(me->oob, 0, 5, &word, sizeof(word), 0), KOLO_ERR_REMOTE);
        test_says(kolo_error_text(), "rank 0");
    }
}

static void an_oversized_message_ends_the_connection(void **state)
{
    kolo_link_counters_t before, after;
    (void)state;
    kolo_link_get_counters(&before);
    test_run_ids(2, 1, &id, oversized);
    kolo_link_get_counters(&after);
    assert_int_equal(after.refused_frame, before.refused_frame + 1);
}

/* ---- the proofs themselves ---- */

static void a_proof_covers_every_bit(void **state)
{
    kolo_key_t key = {{1, 2, 3}};
    kolo_claim_t claim = {KOLO_PURPOSE_STREAM, 3, 4, 99, KOLO_SECURITY_NONE}, got;
    uint8_t greeting[KOLO_GREETING_BYTES], hello[KOLO_HELLO_BYTES], verdict[KOLO_VERDICT_BYTES];
    kolo_auth_verdict_t code;
    unsigned version;
    (void)state;
    test_ok(kolo_auth_greeting(0, greeting));
    assert_true(kolo_auth_greeting_fits(greeting, &version));
    const kolo_shake_t shake = {&key, 7, greeting, hello}, elsewhere = {&key, 8, greeting, hello};
    test_ok(kolo_auth_hello(&shake, &claim));
    assert_int_equal(kolo_auth_check_hello(&shake, &got), KOLO_HELLO_OK);
    assert_int_equal(got.from, 3);
    assert_int_equal(got.to, 4);
    assert_int_equal(got.tag, 99);
    assert_int_equal(kolo_auth_check_hello(&elsewhere, &got), KOLO_HELLO_BAD_PROOF);
    for (int i = 0; i < KOLO_HELLO_BYTES * 8; i++) {
        hello[i / 8] ^= (uint8_t)(1 << i % 8);
        assert_int_not_equal(kolo_auth_check_hello(&shake, &got), KOLO_HELLO_OK);
        hello[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    kolo_auth_verdict(&shake, KOLO_VERDICT_OK, verdict);
    assert_true(kolo_auth_check_verdict(&shake, verdict, &code));
    for (int i = 0; i < KOLO_VERDICT_BYTES * 8; i++) {
        verdict[i / 8] ^= (uint8_t)(1 << i % 8);
        assert_false(kolo_auth_check_verdict(&shake, verdict, &code));
        verdict[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    memcpy(verdict + 8, hello + 56, 32); /* the caller's own proof, reflected */
    assert_false(kolo_auth_check_verdict(&shake, verdict, &code));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(garbage_is_refused_at_its_first_bytes, setup, test_after),
        cmocka_unit_test_setup_teardown(a_port_scan_is_counted, setup, test_after),
        cmocka_unit_test_setup_teardown(silence_ends_after_the_handshake_time, impatient_setup, values_after),
        cmocka_unit_test_setup_teardown(a_wrong_proof_learns_nothing, setup, test_after),
        cmocka_unit_test_setup_teardown(a_recorded_hello_does_not_open_a_second_session, setup, test_after),
        cmocka_unit_test_setup_teardown(a_proven_caller_with_a_bad_frame_is_refused, setup, test_after),
        cmocka_unit_test_setup_teardown(a_rank_that_takes_its_call_back_is_no_stranger, setup, test_after),
        cmocka_unit_test_setup_teardown(silent_callers_leave_most_descriptors_alone, setup, test_after),
        cmocka_unit_test_setup_teardown(a_flood_of_half_open_callers_delays_nobody_for_long, narrow_setup,
                                        values_after),
        cmocka_unit_test_setup_teardown(an_oversized_message_ends_the_connection, setup, test_after),
        cmocka_unit_test(a_proof_covers_every_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
