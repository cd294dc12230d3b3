/* SPDX-License-Identifier: Apache-2.0
 *
 * Records of KOLO_TCP_SECURITY: whatever is done to the bytes between two ends, the reader has what was sent, or a
 * beginning of it and an error.
 */
#include "link/link.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>
#ifdef KOLO_HAVE_SODIUM
#include <sodium.h>
#endif

#define RAW_MAX (1u << 18)

typedef struct {
    kolo_socket_t dialler, acceptor; /* no path between them but the test */
    int from, to; /* what the dialler has sent comes out at `from`, what is put into `to` the acceptor reads */
} path_t;

static void path_open(path_t *p, int64_t mode, bool may_aes)
{
    static const kolo_key_t key = {{7}};
    uint8_t greeting[KOLO_GREETING_BYTES], hello[KOLO_HELLO_BYTES];
    kolo_claim_t claim = {.purpose = KOLO_PURPOSE_STREAM, .from = 1};
    int a[2], b[2];
#ifdef KOLO_HAVE_SODIUM
    assert_true(sodium_init() >= 0); /* else it does not look for AES */
#endif
    kolo_link_values.security = mode;
    assert_int_equal(kolo_auth_greeting(kolo_seal_offer(), greeting), KOLO_OK);
    assert_true(kolo_seal_answer(kolo_auth_greeting_security(greeting), &claim.security));
    if (!may_aes) claim.security &= 0x0f;
    assert_true(kolo_seal_fits(claim.security));
    assert_int_equal(kolo_auth_hello(&(kolo_shake_t){&key, 0, greeting, hello}, &claim), KOLO_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, a), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, b), 0);
    *p = (path_t){.dialler = {.fd = a[0]}, .acceptor = {.fd = b[0]}, .from = a[1], .to = b[1]};
    assert_int_equal(kolo_seal_create(&key, greeting, hello, true, &p->dialler.seal), KOLO_OK);
    assert_int_equal(kolo_seal_create(&key, greeting, hello, false, &p->acceptor.seal), KOLO_OK);
}

static void path_close(path_t *p)
{
    kolo_socket_close(&p->dialler);
    kolo_socket_close(&p->acceptor);
    close(p->from);
    close(p->to);
    kolo_link_values.security = KOLO_SECURITY_NONE;
}

static uint8_t byte_at(size_t i)
{
    return (uint8_t)(i * 31 + (i >> 8) + 5);
}

/* Sends one message of these bytes [at, at + length) and returns what it is on the wire. */
static size_t send_raw(path_t *p, size_t at, size_t length, uint8_t *raw)
{
    uint8_t text[4096];
    assert_true(length <= sizeof text);
    for (size_t i = 0; i < length; i++) text[i] = byte_at(at + i);
    assert_int_equal(kolo_socket_send_bytes(&p->dialler, text, length), length);
    ssize_t n = read(p->from, raw, RAW_MAX);
    assert_true(n > (ssize_t)length);
    return (size_t)n;
}

/* The acceptor reads until it cannot: all of it must be the beginning of what was sent. Returns errno, 0 for the
 * end. */
static int read_all(path_t *p, size_t *got)
{
    uint8_t text[333];
    ssize_t n;
    for (*got = 0; (n = kolo_socket_recv_bytes(&p->acceptor, text, sizeof text)) > 0; *got += (size_t)n)
        for (ssize_t i = 0; i < n; i++) assert_int_equal(text[i], byte_at(*got + (size_t)i));
    return n == 0 ? 0 : errno;
}

static void for_each_way(void (*fn)(path_t *))
{
    for (int64_t mode = KOLO_SECURITY_MAC; mode <= KOLO_SECURITY_ENCRYPT; mode++)
        for (int aes = 0; aes < 2; aes++) {
            path_t p;
            path_open(&p, mode, aes);
            fn(&p);
            path_close(&p);
        }
}

static void pump_pieces(path_t *p)
{
    static uint8_t raw[RAW_MAX], text[200000], back[sizeof text];
    size_t sent = 0, got = 0, pieces = 0;
    unsigned seed = 3;
    int small = 4096;
    for (size_t i = 0; i < sizeof text; i++) text[i] = byte_at(i);
    setsockopt(p->dialler.fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    while (got < sizeof text) {
        size_t left = sizeof text - sent, first = KOLO_MIN(left, (size_t)rand_r(&seed) % 700),
               second = KOLO_MIN(left - first, (size_t)rand_r(&seed) % 60000);
        struct iovec out[2] = {{text + sent, first}, {text + sent + first, second}}, in[2];
        if (left > 0 && first + second > 0) {
            ssize_t n = kolo_socket_send(&p->dialler, out, 2);
            assert_true(n > 0 || errno == EAGAIN);
            if (n > 0) sent += (size_t)n;
            pieces += n < 0;
        }
        ssize_t moved = read(p->from, raw, 1 + (size_t)rand_r(&seed) % 9000);
        for (ssize_t done = 0, n; done<moved; done += n> 0 ? n : 0)
            n = write(p->to, raw + done, (size_t)(moved - done));
        size_t room = KOLO_MIN(sizeof back - got, 1 + (size_t)rand_r(&seed) % 40000), half = room / 3;
        in[0] = (struct iovec){back + got, half};
        in[1] = (struct iovec){back + got + half, room - half};
        ssize_t n = kolo_socket_recv(&p->acceptor, in, 2);
        assert_true(n > 0 || errno == EAGAIN);
        if (n > 0) got += (size_t)n;
    }
    assert_int_equal(sent, sizeof text);
    assert_memory_equal(text, back, sizeof text);
    assert_true(pieces > 0); /* records went out in parts */
}
static void what_is_sent_arrives_in_whatever_pieces(void **state)
{
    (void)state;
    for_each_way(pump_pieces);
}

static void each_changed_bit_is_noticed(void **state)
{
    static uint8_t raw[RAW_MAX];
    (void)state;
    for (int64_t mode = KOLO_SECURITY_MAC; mode <= KOLO_SECURITY_ENCRYPT; mode++)
        for (size_t at = 0, length = 1; at < length; at++) {
            path_t p;
            size_t got;
            path_open(&p, mode, at % 2);
            length = send_raw(&p, 0, 60, raw);
            length += send_raw(&p, 60, 5, raw + length);
            raw[at] ^= (uint8_t)(1u << at % 8);
            assert_int_equal(write(p.to, raw, length), length);
            assert_int_equal(read_all(&p, &got), EBADMSG);
            assert_true(got == (at < 60 + KOLO_SEAL_EXTRA_BYTES ? 0 : 60));
            assert_int_equal(read_all(&p, &got), EBADMSG); /* and nothing behind it is believed */
            assert_int_equal(got, 0);
            path_close(&p);
        }
}

static void shuffle(path_t *p)
{
    enum { DROP, REPEAT, SWAP, CASES };
    static uint8_t raw[3][RAW_MAX];
    static int call;
    size_t length[3], got;
    for (int i = 0; i < 3; i++) length[i] = send_raw(p, (size_t)i * 100, 100, raw[i]);
    static const int orders[CASES][4] = {{0, 2, -1, -1}, {0, 0, 1, -1}, {1, 0, 2, -1}};
    const int *order = orders[call++ % CASES];
    for (int i = 0; i < 4 && order[i] >= 0; i++)
        assert_int_equal(write(p->to, raw[order[i]], length[order[i]]), length[order[i]]);
    assert_int_equal(read_all(p, &got), EBADMSG);
    assert_true(got <= 100);
}
static void records_left_out_repeated_or_moved_are_noticed(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) for_each_way(shuffle);
}

static void reflect(path_t *p)
{
    static uint8_t raw[RAW_MAX];
    uint8_t text[64];
    size_t length = send_raw(p, 0, 40, raw);
    assert_int_equal(write(p->from, raw, length), length); /* back to who has sent it */
    assert_int_equal(kolo_socket_recv_bytes(&p->dialler, text, sizeof text), -1);
    assert_int_equal(errno, EBADMSG);
}
static void a_record_does_not_open_at_its_own_sender(void **state)
{
    (void)state;
    for_each_way(reflect);
}

static void only_a_cipher_hides(void **state)
{
    static uint8_t raw[RAW_MAX];
    (void)state;
    for (int64_t mode = KOLO_SECURITY_MAC; mode <= KOLO_SECURITY_ENCRYPT; mode++) {
        path_t p;
        uint8_t text[64];
        path_open(&p, mode, true);
        for (size_t i = 0; i < sizeof text; i++) text[i] = byte_at(i);
        size_t length = send_raw(&p, 0, sizeof text, raw);
        assert_int_equal(memmem(raw, length, text, sizeof text) == NULL, mode == KOLO_SECURITY_ENCRYPT);
        path_close(&p);
    }
}

static void both_ends_need_one_mode(void **state)
{
    uint8_t answer;
    (void)state;
    for (int64_t there = KOLO_SECURITY_NONE; there <= KOLO_SECURITY_ENCRYPT; there++)
        for (int64_t here = KOLO_SECURITY_NONE; here <= KOLO_SECURITY_ENCRYPT; here++) {
            kolo_link_values.security = there;
            uint8_t offer = kolo_seal_offer();
            kolo_link_values.security = here;
            assert_int_equal(kolo_seal_answer(offer, &answer), there == here);
            assert_int_equal(kolo_seal_fits(offer), there == here);
        }
    kolo_link_values.security = KOLO_SECURITY_NONE;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_sent_arrives_in_whatever_pieces),
        cmocka_unit_test(each_changed_bit_is_noticed),
        cmocka_unit_test(records_left_out_repeated_or_moved_are_noticed),
        cmocka_unit_test(a_record_does_not_open_at_its_own_sender),
        cmocka_unit_test(only_a_cipher_hides),
        cmocka_unit_test(both_ends_need_one_mode),
    };
#ifndef KOLO_HAVE_SODIUM
    puts("built without libsodium");
    return 77;
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
