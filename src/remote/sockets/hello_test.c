/* SPDX-License-Identifier: Apache-2.0
 *
 * What the sockets provider sends in bytes, and a caller who does not know the secret.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/test.h"
#include "remote/sockets/sockets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define LIMIT 10000 /* ms; a test that comes near it has failed */

static kolo_sockets_hello_t good_hello(void)
{
    kolo_sockets_hello_t h = {.token = 0x1234567890abcdefull, .sockets = 2, .depth = 8, .device = "eth0"};
    assert_int_equal(kolo_address_parse("10.0.0.7:4711", &h.address), KOLO_OK);
    return h;
}

static void a_hello_says_what_was_put_in(void **state)
{
    kolo_sockets_hello_t h = good_hello(), got;
    kolo_net_hello_t wire;
    (void)state;
    memset(&got, 0, sizeof got);
    kolo_sockets_hello_encode(&h, true, &wire);
    assert_int_equal(kolo_sockets_hello_decode(&wire, true, &got), KOLO_OK);
    assert_memory_equal(&h, &got, sizeof h);
    assert_int_equal(kolo_sockets_hello_decode(&wire, false, &got), KOLO_ERR_PROTOCOL); /* of the other role */
}

static void a_hello_with_a_field_that_makes_no_sense_is_refused(void **state)
{
    kolo_sockets_hello_t bad[6], got;
    kolo_net_hello_t wire;
    (void)state;
    for (size_t i = 0; i < KOLO_COUNTOF(bad); i++) bad[i] = good_hello();
    bad[0].sockets = 0;
    bad[1].sockets = KOLO_SOCKETS_MAX + 1;
    bad[2].depth = 12;
    memset(bad[3].device, 'x', sizeof bad[3].device); /* no end */
    bad[4].device[1] = '\n';
    kolo_address_set_port(&bad[5].address, 0);
    for (size_t i = 0; i < KOLO_COUNTOF(bad); i++) {
        kolo_sockets_hello_encode(&bad[i], true, &wire);
        assert_int_equal(kolo_sockets_hello_decode(&wire, true, &got), KOLO_ERR_PROTOCOL);
    }
}

/* ---- ends ---- */

static const kolo_net_ops_t *ops = &kolo_net_sockets;

typedef struct {
    kolo_net_open_t *open;
    kolo_net_end_t *end;
    kolo_net_hello_t hello;
} side_t;

static void make(side_t *side, bool reads, const uint8_t key[32])
{
    const char *why;
    const kolo_net_end_config_t config = {.depth = 4, .message_bytes = 256, .key = key, .label = "a test"};
    assert_true(ops->count(&why) > 0);
    assert_int_equal(ops->open(0, &side->open), KOLO_OK);
    assert_int_equal((reads ? ops->listen : ops->start)(side->open, &config, &side->hello, &side->end), KOLO_OK);
}

static void drop(side_t *side)
{
    ops->shut(side->end);
    ops->close(side->open);
}

/* Polls both until a call fails, a message is there or nothing has happened for too long. */
static kolo_status_t exchange(side_t *w, side_t *r)
{
    uint64_t deadline = kolo_deadline_ms(LIMIT);
    static char sent[256] = "words", came[256];
    kolo_net_region_t *region;
    kolo_net_done_t done;
    int n = 0, m;
    uint64_t tag;
    bool said = false;
    KOLO_TRY(ops->enroll(r->open, came, sizeof came, true, &region));
    KOLO_TRY(ops->irecv(r->end, came, sizeof came, region, 3, 77));
    while (n == 0) {
        if (kolo_now_ns() > deadline) return kolo_fail(KOLO_ERR_TIMEOUT, "nothing happens");
        KOLO_TRY(ops->push(r->end));
        KOLO_TRY(ops->test(r->end, &done, 1, &n));
        KOLO_TRY(ops->test(w->end, &done, n ? 0 : 1, &m));
        if (said || !ops->offered(w->end, &tag)) continue;
        assert_int_equal(tag, 77);
        KOLO_TRY(ops->isend(w->end, sent, sizeof sent, region, 4));
        KOLO_TRY(ops->push(w->end));
        said = true;
    }
    assert_memory_equal(sent, came, sizeof sent);
    return KOLO_OK;
}

/* Each byte of a hello, two ways: refused, or a message arrives and is right, or the connection fails. But for the
 * address: a test calls nobody else. */
static void a_damaged_hello_is_refused_or_fails(void **state)
{
    enum { ADDRESS = 32, ALL = 72 }; /* its fields, and a bit of the rest */
    static const uint8_t key[32] = {1};
    int refused = 0, failed = 0, fine = 0;
    (void)state;
    for (size_t i = 0; i < 4 * ALL; i++) {
        side_t w, r;
        if (i % 2 == 0 && i / 4 < ADDRESS) continue;
        make(&r, true, key);
        make(&w, false, key);
        kolo_net_hello_t *hello = i % 2 ? &w.hello : &r.hello;
        hello->bytes[i / 4] ^= (i / 2) % 2 ? 0x01 : 0xc5;
        kolo_status_t status = ops->connect(w.end, &r.hello);
        if (status == KOLO_OK) status = ops->accept(r.end, &w.hello);
        if (status != KOLO_OK) {
            refused++;
        } else if ((status = exchange(&w, &r)) != KOLO_OK) {
            if (status == KOLO_ERR_TIMEOUT)
                fail_msg("byte %zu of the %s's: a hang", i / 4, i % 2 ? "writer" : "reader");
            failed++;
        } else {
            fine++; /* names of devices; where a writer would be called, which nobody does */
        }
        drop(&w);
        drop(&r);
    }
    printf("hellos: %d refused, %d failed later, %d make no difference\n", refused, failed, fine);
    assert_true(refused > 20 && failed > 10 && fine > 0);
}

static void who_does_not_know_the_key_is_not_let_in(void **state)
{
    static const uint8_t key[32] = {1}, other[32] = {2};
    (void)state;
    for (int wrong = 0; wrong < 2; wrong++) {
        side_t w, r;
        make(&r, true, key);
        make(&w, false, wrong ? other : key);
        assert_int_equal(ops->connect(w.end, &r.hello), KOLO_OK);
        assert_int_equal(ops->accept(r.end, &w.hello), KOLO_OK);
        assert_int_equal(exchange(&w, &r), wrong ? KOLO_ERR_AUTH : KOLO_OK);
        if (wrong) assert_non_null(strstr(kolo_error_text(), "secret"));
        drop(&w);
        drop(&r);
    }
}

/* A stranger says what he likes to the listener, while a writer comes up beside him. */
static void noise_at_the_listener_does_no_harm(void **state)
{
    static const uint8_t key[32] = {1};
    side_t w, r;
    kolo_sockets_hello_t hello;
    struct sockaddr_storage sa;
    int fds[8];
    char noise[200];
    (void)state;
    make(&r, true, key);
    make(&w, false, key);
    assert_int_equal(kolo_sockets_hello_decode(&r.hello, true, &hello), KOLO_OK);
    socklen_t length = kolo_address_to_sockaddr(&hello.address, &sa);
    for (size_t i = 0; i < KOLO_COUNTOF(fds); i++) {
        fds[i] = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(fds[i], (struct sockaddr *)&sa, length), 0);
        memset(noise, (int)(i * 37), sizeof noise);
        assert_true(send(fds[i], noise, i * 25, MSG_NOSIGNAL) >= 0);
    }
    assert_int_equal(ops->connect(w.end, &r.hello), KOLO_OK);
    assert_int_equal(ops->accept(r.end, &w.hello), KOLO_OK);
    assert_int_equal(exchange(&w, &r), KOLO_OK);
    for (size_t i = 0; i < KOLO_COUNTOF(fds); i++) close(fds[i]);
    drop(&w);
    drop(&r);
}

/* A writer whose hello says one socket opens two: with the second the reader would take the connection for complete
 * while the first is still to come. */
static void more_sockets_than_were_said_are_refused(void **state)
{
    enum { AT_SOCKETS = 40 };
    static const uint8_t key[32] = {1};
    int64_t sockets = kolo_sockets_options.sockets;
    side_t w, r;
    (void)state;
    kolo_sockets_options.sockets = 2;
    make(&r, true, key);
    make(&w, false, key);
    kolo_sockets_options.sockets = sockets;
    assert_int_equal(w.hello.bytes[AT_SOCKETS], 2);
    w.hello.bytes[AT_SOCKETS] = 1;
    assert_int_equal(ops->connect(w.end, &r.hello), KOLO_OK);
    assert_int_equal(ops->accept(r.end, &w.hello), KOLO_OK);
    assert_int_equal(exchange(&w, &r), KOLO_ERR_AUTH);
    drop(&w);
    drop(&r);
}

/* As many as are listened to at a time, and half as many again: they delay the writer, but not for their ten
 * seconds. */
static void silent_callers_make_room(void **state)
{
    static const uint8_t key[32] = {1};
    side_t w, r;
    kolo_sockets_hello_t hello;
    struct sockaddr_storage sa;
    int fds[KOLO_SOCKETS_PENDING * 3 / 2];
    (void)state;
    make(&r, true, key);
    make(&w, false, key);
    assert_int_equal(kolo_sockets_hello_decode(&r.hello, true, &hello), KOLO_OK);
    socklen_t length = kolo_address_to_sockaddr(&hello.address, &sa);
    for (size_t i = 0; i < KOLO_COUNTOF(fds); i++) {
        fds[i] = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(fds[i], (struct sockaddr *)&sa, length), 0);
    }
    uint64_t begun = kolo_now_ns();
    assert_int_equal(ops->connect(w.end, &r.hello), KOLO_OK);
    assert_int_equal(ops->accept(r.end, &w.hello), KOLO_OK);
    assert_int_equal(exchange(&w, &r), KOLO_OK);
    assert_true(kolo_now_ns() - begun < (uint64_t)LIMIT / 2 * KOLO_NS_PER_MS);
    for (size_t i = 0; i < KOLO_COUNTOF(fds); i++) close(fds[i]);
    drop(&w);
    drop(&r);
}

/* Counts the lines of a log that say this. */
static int count_lines(const char *path, const char *what)
{
    char line[400];
    int n = 0;
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) n += strstr(line, what) != NULL;
    fclose(f);
    return n;
}

static void who_has_no_descriptor_for_a_caller_says_so_once_and_goes_on(void **state)
{
    static const uint8_t key[32] = {1};
    char path[] = "/tmp/kolo-starved-XXXXXX";
    struct rlimit limit, none;
    side_t w, r;
    kolo_net_done_t done;
    int n, log = mkstemp(path);
    (void)state;
    assert_true(log >= 0);
    make(&r, true, key);
    make(&w, false, key);
    assert_int_equal(kolo_log_open("warn", KOLO_LOG_TEXT, path), KOLO_OK);
    assert_int_equal(ops->connect(w.end, &r.hello), KOLO_OK);
    assert_int_equal(ops->accept(r.end, &w.hello), KOLO_OK);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = (struct rlimit){.rlim_cur = 3, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    for (int i = 0; i < 3; i++) assert_int_equal(ops->test(r.end, &done, 1, &n), KOLO_OK);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(exchange(&w, &r), KOLO_OK);
    assert_int_equal(kolo_log_open(NULL, KOLO_LOG_TEXT, NULL), KOLO_OK);
    assert_int_equal(count_lines(path, "cannot accept a caller now"), 1);
    drop(&w);
    drop(&r);
    close(log);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hello_says_what_was_put_in),
        cmocka_unit_test(a_hello_with_a_field_that_makes_no_sense_is_refused),
        cmocka_unit_test(a_damaged_hello_is_refused_or_fails),
        cmocka_unit_test(who_does_not_know_the_key_is_not_let_in),
        cmocka_unit_test(noise_at_the_listener_does_no_harm),
        cmocka_unit_test(more_sockets_than_were_said_are_refused),
        cmocka_unit_test(silent_callers_make_room),
        cmocka_unit_test(who_has_no_descriptor_for_a_caller_says_so_once_and_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
