/* SPDX-License-Identifier: Apache-2.0
 *
 * Two ends of one process, driven by one thread, so that each test decides who moves when; and how the tests of
 * one-sided transfers are run for each kind.
 */
#ifndef KOLO_REMOTE_ONESIDED_TEST_ENDS_H
#define KOLO_REMOTE_ONESIDED_TEST_ENDS_H

#include "base/test.h"
#include "remote/net.h"
#include "remote/onesided/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static kolo_onesided_kind_t kind; /* of the run */
static const uint8_t key[32] = "the key of this job";

typedef struct {
    kolo_onesided_domain_t *domain[2];
    kolo_onesided_t *end[2];
    kolo_onesided_memory_t memory; /* of end 1, exposed to end 0 */
    kolo_onesided_window_t window;
} pair_t;

static inline kolo_onesided_t *open_end(kolo_onesided_domain_t *domain, int fd, const char *who)
{
    kolo_onesided_config_t config = {.socket = {.fd = fd}, .kinds = 1u << kind, .mailbox = 300};
    kolo_onesided_t *end;
    snprintf(config.who, sizeof config.who, "%s", who);
    assert_int_equal(kolo_onesided_open(domain, &config, &end), KOLO_OK);
    return end;
}

/* Moves an end until it has an event. */
static inline kolo_status_t wait_event(kolo_onesided_domain_t *domain, kolo_onesided_t *end,
                                       kolo_onesided_event_t *event)
{
    kolo_wait_t wait;
    kolo_status_t status;
    int n = 0;
    kolo_wait_init(&wait, NULL, kolo_deadline_ms(20000), NULL, NULL, 8);
    wait.wakers[wait.nwakers++] = kolo_onesided_domain_waker(domain);
    while ((status = kolo_onesided_step(end, event, 1, &n)) == KOLO_OK && n == 0)
        if ((status = kolo_wait_pause(&wait)) != KOLO_OK) break;
    kolo_wait_end(&wait);
    return status;
}

static inline int set_up(void **state)
{
    pair_t *p = calloc(1, sizeof *p);
    kolo_onesided_event_t event;
    int fds[2], n, told[2] = {0, 0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kolo_onesided_domain_create(key, &p->domain[i]), KOLO_OK);
        p->end[i] = open_end(p->domain[i], fds[i], i ? "end 0" : "end 1");
    }
    while (!told[0] || !told[1])
        for (int i = 0; i < 2; i++) {
            assert_int_equal(kolo_onesided_step(p->end[i], &event, 1, &n), KOLO_OK);
            if (n == 1) {
                assert_int_equal(event.kind, KOLO_ONESIDED_OPENED);
                told[i]++;
            }
        }
    assert_int_equal(kolo_onesided_kind(p->end[0]), kind);
    assert_int_equal(kolo_onesided_alloc(p->end[1], 20 << 20, &p->memory), KOLO_OK);
    assert_int_equal(kolo_onesided_expose(p->end[1], p->memory.base, p->memory.bytes, &p->window), KOLO_OK);
    *state = p;
    return 0;
}

static inline int tear_down(void **state)
{
    pair_t *p = *state;
    for (int i = 0; i < 2; i++) {
        kolo_onesided_close(p->end[i]);
        kolo_onesided_domain_destroy(p->domain[i]);
    }
    kolo_onesided_free(&p->memory);
    free(p);
    return 0;
}

static inline void write_at(pair_t *p, const void *data, uint64_t bytes, uint64_t offset, uint32_t flags,
                            uint32_t number, uint64_t cookie)
{
    kolo_onesided_write_t w = {data, bytes, bytes ? &p->window : NULL, offset, flags, number, cookie};
    assert_int_equal(kolo_onesided_write(p->end[0], &w), KOLO_OK);
}

/* Moves both ends until each has had its events; asserts that there are no others. */
static inline void expect(pair_t *p, int written, int notified, kolo_onesided_event_t *events)
{
    kolo_onesided_event_t event;
    uint64_t deadline = kolo_deadline_ms(30000);
    int n;
    while (written > 0 || notified > 0) {
        assert_true(kolo_now_ns() < deadline);
        assert_int_equal(kolo_onesided_step(p->end[0], &event, 1, &n), KOLO_OK);
        if (n) assert_int_equal(event.kind, KOLO_ONESIDED_WRITTEN);
        if (n) assert_true(written-- > 0);
        assert_int_equal(kolo_onesided_step(p->end[1], &event, 1, &n), KOLO_OK);
        if (n) assert_int_equal(event.kind, KOLO_ONESIDED_NOTIFIED);
        if (n) assert_true(notified-- > 0);
        if (n) *events++ = event;
    }
}

/* Writes to a forged window: one of the two ends must notice, with KOLO_ERR_PROTOCOL; nothing is written. */
static inline void forge(pair_t *p, kolo_onesided_window_t window)
{
    kolo_onesided_write_t w = {"data", 5, &window, 0, KOLO_ONESIDED_NOTIFY, 1, 0};
    kolo_status_t status[2] = {KOLO_OK, KOLO_OK};
    kolo_onesided_event_t event;
    uint64_t deadline = kolo_deadline_ms(20000);
    int n;
    memset(p->memory.base, 1, 100);
    assert_int_equal(kolo_onesided_write(p->end[0], &w), KOLO_OK);
    while (status[0] == KOLO_OK && status[1] == KOLO_OK) {
        assert_true(kolo_now_ns() < deadline);
        for (int i = 0; i < 2; i++) {
            status[i] = kolo_onesided_step(p->end[i], &event, 1, &n);
            assert_int_equal(n, 0);
        }
    }
    assert_true(status[0] == KOLO_ERR_PROTOCOL || status[1] == KOLO_ERR_PROTOCOL);
    assert_int_equal(((char *)p->memory.base)[0], 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

static inline bool has_device(void)
{
    const char *why;
    bool has = kolo_net_has("verbs", &why);
    if (!has) printf("onesided_test: no RDMA: %s\n", why);
    return has;
}

/* Runs all kinds that are here, or the one that is named. */
static inline int run_kinds(int argc, char **argv, const struct CMUnitTest *tests, size_t n)
{
    int failed = 0;
    const kolo_param_table_t *tables[] = {&kolo_onesided_params, &kolo_ib_params};
    if (kolo_params_load(tables, 2, NULL, NULL) != KOLO_OK) return 1;
    for (int i = 0; i < KOLO_ONESIDED_KINDS; i++) {
        kind = (kolo_onesided_kind_t)i;
        if (argc > 1 && strcmp(argv[1], kolo_onesided_kind_name(kind)) != 0) continue;
        if (kind == KOLO_ONESIDED_VERBS && !has_device()) continue;
        failed += _cmocka_run_group_tests(kolo_onesided_kind_name(kind), tests, n, NULL, NULL);
    }
    return failed;
}

#endif
