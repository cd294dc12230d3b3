/* SPDX-License-Identifier: Apache-2.0
 *
 * What programs do that they should not, or hardly ever do, within one task: odd keys, aborts with odd statuses,
 * thousands of receives that are cleaned up, callbacks that close what called them.
 */
#include "base/params.h"
#include "base/test.h"
#include "base/text/plain.h"
#include "rendezvous/cluster.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TASK      "/job:ps/task:0"
#define DEVICES   TASK "/device:cpu:0;0000000000001234;" TASK "/device:cpu:1;"
#define KEY(edge) DEVICES edge ";0:0"

typedef struct {
    kolo_rendezvous_manager_t manager;
    kolo_rendezvous_t step;
} fixture_t;

static int set_up(void **state)
{
    static fixture_t f;
    *state = &f;
    return kolo_rendezvous_manager_create(&f.manager) ||
           kolo_rendezvous_manager_initialize(f.manager, TASK, 0x1234) ||
           kolo_rendezvous_open(f.manager, 7, &f.step);
}

static int tear_down(void **state)
{
    fixture_t *f = *state;
    return kolo_rendezvous_close(f->step) || kolo_rendezvous_manager_destroy(f->manager);
}

static kolo_value_t number(const int32_t *n)
{
    return (kolo_value_t){.element = KOLO_INT32, .data = (void *)(uintptr_t)n, .bytes = 4};
}

/* ---- time-outs that are none ---- */

typedef struct {
    kolo_rendezvous_t step;
    bool set;
    kolo_status_t status;
    char why[200];
} waiter_t;

static void *wait_for_value(void *arg)
{
    static const char *const keys[2] = {KEY("a"), KEY("b")};
    waiter_t *w = arg;
    kolo_value_t got[2];
    w->status = w->set ? kolo_rendezvous_receive_set(w->step, keys, got, 2, 60000)
                       : kolo_rendezvous_receive(w->step, keys[0], NULL, 60000, got);
    snprintf(w->why, sizeof w->why, "%s", kolo_error_text());
    return NULL;
}

static void await_items(kolo_rendezvous_t step, size_t n)
{
    uint64_t limit = kolo_deadline_ms(30000);
    for (size_t items = 0; items < n; sched_yield()) {
        assert_true(kolo_now_ns() < limit);
        pthread_mutex_lock(&step->lock);
        items = step->table.nitems;
        pthread_mutex_unlock(&step->lock);
    }
}

/* KOLO_ERR_TIMEOUT is how the receive ended, not that it goes on. */
static void an_abort_with_the_status_of_a_time_out_is_an_end(void **state)
{
    fixture_t *f = *state;
    for (uint64_t n = 0; n < 2; n++) {
        waiter_t w = {.set = n == 1};
        pthread_t thread;
        assert_int_equal(kolo_rendezvous_open(f->manager, 100 + n, &w.step), KOLO_OK);
        assert_int_equal(pthread_create(&thread, NULL, wait_for_value, &w), 0);
        await_items(w.step, 1 + n);
        assert_int_equal(kolo_rendezvous_abort(w.step, KOLO_ERR_TIMEOUT, "the step took too long"), KOLO_OK);
        pthread_join(thread, NULL);
        assert_int_equal(w.status, KOLO_ERR_TIMEOUT);
        assert_non_null(strstr(w.why, "the step took too long"));
        kolo_rendezvous_close(w.step);
    }
}

static void a_handle_that_has_gone_is_not_said_to_stay(void **state)
{
    fixture_t *f = *state;
    kolo_receive_t receive;
    kolo_value_t got;
    int ended;
    assert_int_equal(kolo_rendezvous_receive_begin(f->step, KEY("a"), NULL, &receive), KOLO_OK);
    assert_int_equal(kolo_receive_wait(receive, 1, &got), KOLO_ERR_TIMEOUT);
    assert_int_equal(kolo_rendezvous_abort(f->step, KOLO_ERR_TIMEOUT, "enough"), KOLO_OK);
    assert_int_equal(kolo_receive_poll(receive, &ended), KOLO_OK);
    assert_true(ended);
    assert_int_equal(kolo_receive_wait(receive, 1, &got), KOLO_ERR_ABORTED);
    assert_non_null(strstr(kolo_error_text(), "enough"));
}

static void an_abort_needs_the_status_of_an_error(void **state)
{
    static const int wrong[] = {KOLO_OK, KOLO_IN_PROGRESS, KOLO_ERR_REVOKED + 1, 999, -1};
    fixture_t *f = *state;
    for (size_t i = 0; i < KOLO_COUNTOF(wrong); i++)
        assert_int_equal(kolo_rendezvous_abort(f->step, (kolo_status_t)wrong[i], "x"), KOLO_ERR_INVALID_ARGUMENT);
    static const int32_t five = 5;
    kolo_value_t value = number(&five), got;
    assert_int_equal(kolo_rendezvous_send(f->step, KEY("a"), &value, NULL), KOLO_OK); /* it goes on */
    assert_int_equal(kolo_rendezvous_receive(f->step, KEY("a"), NULL, 30000, &got), KOLO_OK);
    char *longest = malloc(100001);
    memset(longest, 'w', 100000);
    longest[100000] = '\0';
    assert_int_equal(kolo_rendezvous_abort(f->step, KOLO_ERR_SYSTEM, longest), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive(f->step, KEY("a"), NULL, 30000, &got), KOLO_ERR_SYSTEM);
    free(longest);
}

/* ---- keys ---- */

static void count_call(void *arg, kolo_status_t status, const char *why, const kolo_transfer_args_t *sender,
                       const kolo_transfer_args_t *receiver, kolo_value_t *value)
{
    int *calls = arg;
    (void)why;
    (void)sender;
    (void)receiver;
    calls[status == KOLO_OK]++;
    if (value) kolo_value_release(value);
}

static void keys_that_are_none_are_refused_everywhere(void **state)
{
    static char huge[1 << 20];
    memset(huge, 'a', sizeof huge - 1);
    const char *const wrong[] = {NULL,
                                 "",
                                 ";;;;",
                                 huge,
                                 KEY("a;b"),
                                 KEY("a\nb"),
                                 KEY("a\tb"),
                                 KEY("\x7f"),
                                 KEY(""),
                                 KEY("a") " ",
                                 " " KEY("a"),
                                 KEY("a") ";",
                                 "/job:ps/task:00/device:cpu:0;0000000000001234;" TASK "/device:cpu:1;a;0:0",
                                 TASK "/device:cpu:0;0000000000001234;" TASK "/device:cpu:1;a;0:-1",
                                 TASK "/device:cpu:0;0000000000001234;" TASK
                                      "/device:cpu:1;a;18446744073709551616:0",
                                 TASK "/device:cpu:0;000000000000123G;" TASK "/device:cpu:1;a;0:0",
                                 TASK "/device:cpu:0;0000000000001234;/job:../task:0/../device:cpu:1;a;0:0"};
    fixture_t *f = *state;
    static const int32_t five = 5;
    kolo_value_t value = number(&five), got;
    kolo_receive_t receive;
    int calls[2] = {0};
    for (size_t i = 0; i < KOLO_COUNTOF(wrong); i++) {
        assert_int_equal(kolo_rendezvous_send(f->step, wrong[i], &value, NULL), KOLO_ERR_INVALID_ARGUMENT);
        assert_int_equal(kolo_rendezvous_receive(f->step, wrong[i], NULL, 1, &got), KOLO_ERR_INVALID_ARGUMENT);
        assert_int_equal(kolo_rendezvous_receive_begin(f->step, wrong[i], NULL, &receive),
                         KOLO_ERR_INVALID_ARGUMENT);
        assert_int_equal(kolo_rendezvous_receive_call(f->step, wrong[i], NULL, count_call, calls),
                         KOLO_ERR_INVALID_ARGUMENT);
    }
    assert_int_equal(calls[0] + calls[1], 0);
}

static void keys_that_look_odd_are_keys(void **state)
{
    char longest[KOLO_EDGE_NAME_MAX + 1], key[KOLO_TENSOR_KEY_MAX + 1];
    memset(longest, 'e', KOLO_EDGE_NAME_MAX);
    longest[KOLO_EDGE_NAME_MAX] = '\0';
    const char *const edges[] = {" ",
                                 "%s%n%d",
                                 "gr\xc3\xa4"
                                 "dient/\xe2\x88\x82w",
                                 "\xff\xfe",
                                 "/job:ps",
                                 "../..",
                                 ":",
                                 longest};
    fixture_t *f = *state;
    for (size_t i = 0; i < KOLO_COUNTOF(edges); i++) {
        static const int32_t five = 5;
        kolo_value_t value = number(&five), got;
        kolo_tensor_key_t parts;
        snprintf(key, sizeof key, DEVICES "%s;18446744073709551615:0", edges[i]);
        assert_int_equal(kolo_tensor_key_parse(key, &parts), KOLO_OK);
        assert_string_equal(parts.edge_name, edges[i]);
        assert_int_equal(kolo_rendezvous_send(f->step, key, &value, NULL), KOLO_OK);
        assert_int_equal(kolo_rendezvous_receive(f->step, key, NULL, 30000, &got), KOLO_OK);
        assert_ptr_equal(got.data, &five);
        /* What is said of it is text, whatever the edge is called. */
        assert_int_equal(kolo_rendezvous_receive(f->step, key, NULL, 1, &got), KOLO_ERR_TIMEOUT);
        char plain[KOLO_EDGE_NAME_MAX + 1];
        kolo_plain_copy(plain, sizeof plain, edges[i], sizeof plain);
        assert_non_null(strstr(kolo_error_text(), plain));
    }
}

/* ---- thousands ---- */

static void thousands_of_receives_end_once_with_their_step(void **state)
{
    enum { MANY = 10000 };
    fixture_t *f = *state;
    static kolo_receive_t receives[MANY];
    int calls[2] = {0};
    char key[KOLO_TENSOR_KEY_MAX + 1];
    for (int i = 0; i < MANY; i++) {
        snprintf(key, sizeof key, DEVICES "edge %d;0:0", i % 3000);
        assert_int_equal(kolo_rendezvous_receive_begin(f->step, key, NULL, &receives[i]), KOLO_OK);
        assert_int_equal(kolo_rendezvous_receive_call(f->step, key, NULL, count_call, calls), KOLO_OK);
    }
    for (int i = 0; i < MANY; i += 4) assert_int_equal(kolo_receive_discard(receives[i]), KOLO_OK);
    assert_int_equal(kolo_rendezvous_manager_cleanup(f->manager, 7), KOLO_OK);
    assert_int_equal(calls[0], MANY);
    assert_int_equal(calls[1], 0);
    for (int i = 0; i < MANY; i++) {
        kolo_value_t got;
        int ended = 0;
        if (i % 4 == 0) continue;
        assert_int_equal(kolo_receive_poll(receives[i], &ended), KOLO_OK);
        assert_true(ended);
        if (i % 4 == 1)
            assert_int_equal(kolo_receive_wait(receives[i], 0, &got), KOLO_ERR_ABORTED);
        else
            assert_int_equal(kolo_receive_discard(receives[i]), KOLO_OK);
    }
}

/* As many tasks as there may be: to look at each for each took many seconds, and minutes under ASan. */
static void a_large_cluster_is_read_and_searched_soon(void **state)
{
    enum { MANY = KOLO_CLUSTER_TASKS_MAX };
    char *text = malloc((size_t)MANY * 24), *at = text, name[64];
    kolo_cluster_t cluster;
    (void)state;
    assert_non_null(text);
    for (int i = 0; i < MANY; i++)
        at += sprintf(at, "%s127.%d.%d.1:%d",
                      i == 0          ? "a="
                      : i == MANY / 2 ? ";b="
                                      : ",",
                      i / 250 % 250, i % 250, 7000 + i / 62500);
    assert_int_equal(kolo_cluster_parse(text, &cluster), KOLO_OK);
    assert_int_equal(cluster.ntasks, MANY);
    for (int i = 0; i < MANY; i++) {
        bool first = i < MANY / 2;
        snprintf(name, sizeof name, "/job:%s/task:%d", first ? "a" : "b", first ? i : i - MANY / 2);
        assert_int_equal(kolo_cluster_find(&cluster, name), i);
    }
    assert_int_equal(kolo_cluster_find(&cluster, "/job:a/task:32768"), -1);
    assert_int_equal(kolo_cluster_find(&cluster, ""), -1);
    kolo_cluster_free(&cluster);
    free(text);
    assert_int_equal(kolo_cluster_parse("a=127.0.0.1:7000,127.0.0.2:7000;b=127.0.0.1:7000", &cluster),
                     KOLO_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(kolo_error_text(), "/job:a/task:0 and /job:b/task:0 have the same address"));
    assert_int_equal(kolo_cluster_parse("a=127.0.0.1:7000;b=127.0.0.2:7000;a=127.0.0.3:7000", &cluster),
                     KOLO_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(kolo_error_text(), "/job:a/task:0 comes twice"));
    assert_int_equal(kolo_cluster_parse("a=2;b=1;a=1", &cluster), KOLO_ERR_INVALID_ARGUMENT);
}

/* ---- callbacks ---- */

static void close_all(void *arg, kolo_status_t status, const char *why, const kolo_transfer_args_t *sender,
                      const kolo_transfer_args_t *receiver, kolo_value_t *value)
{
    fixture_t *f = arg;
    (void)why;
    (void)sender;
    (void)receiver;
    (void)status;
    if (value) kolo_value_release(value);
    kolo_rendezvous_t step = f->step;
    f->step = NULL;
    if (step == NULL) return; /* the second one */
    (void)kolo_rendezvous_close(step);
    (void)kolo_rendezvous_manager_destroy(f->manager);
    f->manager = NULL;
}

static void a_callback_may_close_what_calls_it(void **state)
{
    static const int32_t five = 5;
    (void)state;
    for (int how = 0; how < 3; how++) {
        fixture_t f;
        kolo_value_t value = number(&five);
        assert_int_equal(kolo_rendezvous_manager_create(&f.manager), KOLO_OK);
        assert_int_equal(kolo_rendezvous_manager_initialize(f.manager, TASK, 0x1234), KOLO_OK);
        assert_int_equal(kolo_rendezvous_open(f.manager, 1, &f.step), KOLO_OK);
        assert_int_equal(kolo_rendezvous_receive_call(f.step, KEY("a"), NULL, close_all, &f), KOLO_OK);
        assert_int_equal(kolo_rendezvous_receive_call(f.step, KEY("b"), NULL, close_all, &f), KOLO_OK);
        assert_int_equal(kolo_rendezvous_send(f.step, KEY("c"), &value, NULL), KOLO_OK);
        if (how == 0) assert_int_equal(kolo_rendezvous_send(f.step, KEY("a"), &value, NULL), KOLO_OK);
        if (how == 1) assert_int_equal(kolo_rendezvous_abort(f.step, KOLO_ERR_SYSTEM, "enough"), KOLO_OK);
        if (how == 2) assert_int_equal(kolo_rendezvous_manager_cleanup(f.manager, 1), KOLO_OK);
        assert_null(f.manager);
    }
}

/* ---- handles ---- */

static void is_refused(kolo_status_t status, const char *who, const char *what)
{
    assert_int_equal(status, KOLO_ERR_INVALID_ARGUMENT);
    if (strstr(kolo_error_text(), who) != kolo_error_text() || strstr(kolo_error_text(), what) == NULL)
        fail_msg("\"%s\" does not begin with %s, or lacks \"%s\"", kolo_error_text(), who, what);
}

static void a_receive_is_waited_for_once(void **state)
{
    static const int32_t five = 5;
    fixture_t *f = *state;
    kolo_receive_t receive;
    kolo_value_t value = number(&five), got;
    int ended;
    for (int how = 0; how < 2; how++) {
        assert_int_equal(kolo_rendezvous_receive_begin(f->step, KEY("a"), NULL, &receive), KOLO_OK);
        if (how == 0) {
            assert_int_equal(kolo_rendezvous_send(f->step, KEY("a"), &value, NULL), KOLO_OK);
            assert_int_equal(kolo_receive_wait(receive, 0, &got), KOLO_OK);
        } else {
            assert_int_equal(kolo_receive_discard(receive), KOLO_OK);
        }
        is_refused(kolo_receive_wait(receive, 1, &got), "receive_wait:", "is not a receive");
        is_refused(kolo_receive_poll(receive, &ended), "receive_poll:", "is not a receive");
        is_refused(kolo_receive_discard(receive), "receive_discard:", "is not a receive");
    }
}

static void a_step_is_closed_as_often_as_it_was_opened(void **state)
{
    fixture_t *f = *state;
    kolo_rendezvous_t step, same;
    assert_int_equal(kolo_rendezvous_open(f->manager, 8, &step), KOLO_OK);
    assert_int_equal(kolo_rendezvous_open(f->manager, 8, &same), KOLO_OK);
    assert_ptr_equal(step, same);
    assert_int_equal(kolo_rendezvous_close(step), KOLO_OK);
    assert_int_equal(kolo_rendezvous_close(step), KOLO_OK);
    is_refused(kolo_rendezvous_close(step), "rendezvous_close:", "step 8 was closed already");
    assert_int_equal(kolo_rendezvous_manager_cleanup(f->manager, 8), KOLO_OK);
    is_refused(kolo_rendezvous_close(step), "rendezvous_close:", "is not a rendezvous");
    is_refused(kolo_rendezvous_abort(step, KOLO_ERR_SYSTEM, "x"), "rendezvous_abort:", "is not a rendezvous");
}

static void what_has_ended_ends_once(void **state)
{
    kolo_server_config_t config = KOLO_SERVER_CONFIG_INITIALIZER;
    kolo_rendezvous_manager_t manager;
    kolo_rendezvous_t step;
    kolo_server_t server;
    (void)state;
    assert_int_equal(kolo_rendezvous_manager_create(&manager), KOLO_OK);
    assert_int_equal(kolo_rendezvous_open(manager, 1, &step), KOLO_OK);
    assert_int_equal(kolo_rendezvous_manager_destroy(manager), KOLO_OK);
    is_refused(kolo_rendezvous_manager_destroy(manager), "rendezvous_manager_destroy:", "is not a manager");
    is_refused(kolo_rendezvous_open(manager, 1, &step), "rendezvous_open:", "is not a manager");
    assert_int_equal(kolo_rendezvous_close(step), KOLO_OK);
    config.cluster = "a=127.0.0.1:7000";
    config.task = "/job:a/task:0";
    config.secret = "a secret of this test";
    config.secret_bytes = strlen(config.secret);
    assert_int_equal(kolo_server_create(&server, &config), KOLO_OK);
    assert_int_equal(kolo_server_destroy(server), KOLO_OK);
    is_refused(kolo_server_destroy(server), "server_destroy:", "is not a server");
    is_refused(kolo_server_start(server), "server_start:", "is not a server");
    is_refused(kolo_server_stop(server), "server_stop:", "is not a server");
}

static void the_argument_that_is_wrong_is_named(void **state)
{
    static const char *const keys[] = {KEY("a")};
    fixture_t *f = *state;
    kolo_server_config_t config = KOLO_SERVER_CONFIG_INITIALIZER;
    kolo_value_t value = {.element = KOLO_INT32};
    kolo_server_t server;
    int sent;
    is_refused(kolo_rendezvous_send(NULL, keys[0], &value, NULL), "rendezvous_send:", "rendezvous is NULL");
    is_refused(kolo_rendezvous_send(f->step, NULL, &value, NULL), "rendezvous_send:", "key is NULL");
    is_refused(kolo_rendezvous_send(f->step, keys[0], NULL, NULL), "rendezvous_send:", "value is NULL");
    is_refused(kolo_rendezvous_receive(f->step, keys[0], NULL, 0, NULL), "rendezvous_receive:", "result is NULL");
    is_refused(kolo_rendezvous_receive(f->step, keys[0], NULL, -7, &value), "rendezvous_receive:", "-7 ms");
    is_refused(kolo_rendezvous_send_set(f->step, keys, NULL, 1, &sent), "rendezvous_send_set:", "list of values");
    is_refused(kolo_rendezvous_send_set(f->step, NULL, &value, 1, &sent), "rendezvous_send_set:", "list of keys");
    is_refused(kolo_rendezvous_send_set(f->step, keys, &value, -1, &sent), "rendezvous_send_set:", "-1 tensors");
    is_refused(kolo_rendezvous_receive_set(NULL, keys, &value, 1, 0),
               "rendezvous_receive_set:", "rendezvous is NULL");
    is_refused(kolo_rendezvous_manager_initialize(f->manager, NULL, 1), "rendezvous_manager_initialize:", "task");
    is_refused(kolo_rendezvous_manager_initialize(f->manager, TASK, 0), "rendezvous_manager_initialize:", "is 0");
    is_refused(kolo_server_create(&server, &config), "server_create:", "cluster of the configuration is NULL");
    config.cluster = "a=1";
    is_refused(kolo_server_create(&server, &config), "server_create:", "task of the configuration is NULL");
    config.task = "a:0"; /* as kolo-top writes it */
    is_refused(kolo_server_create(&server, &config), "server_create: the cluster has no task \"a:0\"",
               "its first one is /job:a/task:0");
    config.protocol = "kolo+tpc";
    is_refused(kolo_server_create(&server, &config), "server_create: unknown protocol \"kolo+tpc\"",
               "kolo+tcp, kolo+buffered");
    config.protocol = NULL;
    config.task = TASK;
    config.connect_timeout_ms = 0;
    is_refused(kolo_server_create(&server, &config), "server_create:", "connect_timeout_ms is 0");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_abort_with_the_status_of_a_time_out_is_an_end),
        TEST(a_handle_that_has_gone_is_not_said_to_stay),
        TEST(an_abort_needs_the_status_of_an_error),
        TEST(keys_that_are_none_are_refused_everywhere),
        TEST(keys_that_look_odd_are_keys),
        TEST(thousands_of_receives_end_once_with_their_step),
        TEST(a_receive_is_waited_for_once),
        TEST(a_step_is_closed_as_often_as_it_was_opened),
        TEST(the_argument_that_is_wrong_is_named),
        cmocka_unit_test(what_has_ended_ends_once),
        cmocka_unit_test(a_large_cluster_is_read_and_searched_soon),
        cmocka_unit_test(a_callback_may_close_what_calls_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
