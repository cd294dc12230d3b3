/* SPDX-License-Identifier: Apache-2.0
 *
 * Channels over TCP that get lanes for large values, in both modes: when they come, what goes by them, and what
 * becomes of receives when one is cut or the task that sends is restarted.
 */
#include "rendezvous/remote/test_tasks.h"

#include <sys/socket.h>

#define LARGE (1 << 20) /* elements: 4 MB */

static uint64_t parted(void)
{
    kolo_onesided_counters_t counters;
    kolo_onesided_get_counters(&counters);
    return counters.parted;
}

static uint64_t accepted(void)
{
    kolo_link_counters_t counters;
    kolo_link_get_counters(&counters);
    return counters.accepted;
}

/* Large values until one has gone by lanes. */
static void widen(fixture_t *f, const char *key)
{
    uint64_t deadline = kolo_deadline_ms(30000), before = parted();
    while (parted() == before) {
        assert_true(kolo_now_ns() < deadline);
        send_value(f->at_ps, key, LARGE, 1);
        receive_value(f->at_worker, key, LARGE, 1);
    }
}

static void values_of_all_sizes_come_whole(void **state)
{
    static const int64_t elements[] = {16383, 16384, 16385, 65537, 1000003, 5 << 20};
    fixture_t *f = *state;
    char *key = make_key(f->worker, PS, WORKER, "sizes"), *other = make_key(f->worker, PS, WORKER, "widen");
    uint64_t calls = accepted(), before = parted();
    receive_value(f->at_worker, (send_value(f->at_ps, key, 100, 9), key), 100, 9);
    receive_value(f->at_worker, (send_value(f->at_ps, key, 16000, 9), key), 16000, 9);
    assert_int_equal(parted(), before);
    assert_in_range(accepted() - calls, 0, 2); /* the channel itself, and the one back; no lanes for these */
    widen(f, other);
    for (size_t i = 0; i < KOLO_COUNTOF(elements); i++) {
        for (int again = 0; again < 3; again++) send_value(f->at_ps, key, elements[i], again);
        for (int again = 0; again < 3; again++) receive_value(f->at_worker, key, elements[i], again);
    }
}

static void many_at_a_time_come_in_their_order(void **state)
{
    enum { MANY = 24 };
    fixture_t *f = *state;
    kolo_receive_t receives[MANY];
    kolo_value_t value;
    char *key = make_key(f->worker, PS, WORKER, "many");
    widen(f, key);
    for (int i = 0; i < MANY; i++)
        assert_int_equal(kolo_rendezvous_receive_begin(f->at_worker, key, NULL, &receives[i]), KOLO_OK);
    for (int i = 0; i < MANY; i++) send_value(f->at_ps, key, i % 3 ? 200000 + i : 10 + i, i);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(kolo_receive_wait(receives[i], 30000, &value), KOLO_OK);
        check_value(&value, i % 3 ? 200000 + i : 10 + i, i);
    }
}

static void destinations_are_written_by_lanes(void **state)
{
    fixture_t *f = *state;
    char *key = make_key(f->worker, PS, WORKER, "into");
    uint32_t *room = calloc(LARGE, 4);
    kolo_value_t value;
    assert_non_null(room);
    widen(f, key);
    for (int i = 0; i < 3; i++) {
        kolo_transfer_args_t args = {.into = room, .into_bytes = LARGE * 4};
        send_value(f->at_ps, key, LARGE, 5 + i);
        assert_int_equal(kolo_rendezvous_receive(f->at_worker, key, &args, 30000, &value), KOLO_OK);
        assert_ptr_equal(value.data, room);
        check_value(&value, LARGE, 5 + i);
    }
    free(room);
}

static void one_lane_means_none(void **state)
{
    fixture_t *f = *state;
    char *key = make_key(f->worker, PS, WORKER, "narrow");
    int64_t lanes = kolo_onesided_param_lanes;
    uint64_t before = parted(), calls;
    kolo_onesided_param_lanes = 1;
    send_value(f->at_ps, key, 100, 1);
    receive_value(f->at_worker, key, 100, 1);
    calls = accepted();
    for (int i = 0; i < 5; i++) {
        send_value(f->at_ps, key, LARGE, i);
        receive_value(f->at_worker, key, LARGE, i);
    }
    kolo_onesided_param_lanes = lanes;
    assert_int_equal(parted(), before);
    assert_int_equal(accepted(), calls);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

/* ---- faults ---- */

static int sockets(bool seen[1024])
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++) {
        struct sockaddr_storage peer;
        socklen_t length = sizeof peer;
        seen[fd] = getpeername(fd, (struct sockaddr *)&peer, &length) == 0 && peer.ss_family == AF_INET;
        n += seen[fd];
    }
    return n;
}

/* Cuts a lane while four values of 64 MB are under way; returns how many of them have not come. */
static int cut_once(fixture_t *f, const char *key, const bool before[1024])
{
    kolo_receive_t receives[4];
    kolo_value_t value;
    bool now[1024];
    int ended = 0;
    assert_in_range(sockets(now), 4, 1024);
    for (int i = 0; i < 4; i++) {
        send_value(f->at_ps, key, 16 << 20, i);
        assert_int_equal(kolo_rendezvous_receive_begin(f->at_worker, key, NULL, &receives[i]), KOLO_OK);
    }
    for (int fd = 1023, left = 1; fd >= 0 && left > 0; fd--) /* the end of a lane */
        if (now[fd] && !before[fd]) left -= shutdown(fd, SHUT_RDWR) == 0;
    for (int i = 0; i < 4; i++) {
        kolo_status_t status = kolo_receive_wait(receives[i], 30000, &value);
        assert_int_not_equal(status, KOLO_ERR_TIMEOUT);
        if (status == KOLO_OK)
            kolo_value_release(&value);
        else
            ended++;
    }
    return ended;
}

static void a_lane_that_is_cut_costs_what_is_under_way(void **state)
{
    fixture_t *f = *state;
    bool before[1024];
    char edge[16], *key = make_key(f->worker, PS, WORKER, "first");
    int ended = 0;
    send_value(f->at_ps, key, 100, 1);
    receive_value(f->at_worker, key, 100, 1);
    (void)sockets(before);
    for (int i = 0; i < 10 && ended == 0; i++) { /* unless this thread was not run until all had come */
        snprintf(edge, sizeof edge, "cut_%d", i);
        key = make_key(f->worker, PS, WORKER, edge);
        widen(f, key);
        ended = cut_once(f, key, before);
    }
    assert_in_range(ended, 1, 4);
    /* The task is called again, and its channel gets lanes again. */
    widen(f, make_key(f->worker, PS, WORKER, "again"));
}

static void a_task_that_is_restarted_is_called_anew(void **state)
{
    fixture_t *f = *state;
    kolo_receive_t receive;
    kolo_value_t value;
    char *key = make_key(f->worker, PS, WORKER, "restart");
    widen(f, key);
    send_value(f->at_ps, key, 16 << 20, 1);
    assert_int_equal(kolo_rendezvous_receive_begin(f->at_worker, key, NULL, &receive), KOLO_OK);
    kolo_rendezvous_close(f->at_ps);
    kolo_server_destroy(f->ps);
    kolo_status_t status = kolo_receive_wait(receive, 30000, &value);
    if (status == KOLO_OK) check_value(&value, 16 << 20, 1); /* it was there already */
    f->ps = start_server(PS);
    f->at_ps = open_step(f->ps, 1);
    char old[KOLO_TENSOR_KEY_MAX + 1];
    snprintf(old, sizeof old, "%s", key);
    uint64_t deadline = kolo_deadline_ms(30000);
    while (strcmp(old, key = make_key(f->worker, PS, WORKER, "restart")) == 0)
        assert_true(kolo_now_ns() < deadline);
    widen(f, key);
}

static int run(const char *only, const char *name)
{
    const struct CMUnitTest tests[] = {
        TEST(values_of_all_sizes_come_whole),
        TEST(many_at_a_time_come_in_their_order),
        TEST(destinations_are_written_by_lanes),
        TEST(one_lane_means_none),
        TEST(a_lane_that_is_cut_costs_what_is_under_way),
        TEST(a_task_that_is_restarted_is_called_anew),
    };
    protocol = name;
    return only && strcmp(only, name) != 0 ? 0 : cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : NULL;
    setenv("KOLO_ONESIDED_SPLIT", "64K", 1);
    setenv("KOLO_ONESIDED_LANES", "3", 1);
    if (kolo_server_register_protocol("test+buffered+tcp", "tcp", 1) != KOLO_OK) return 1;
    return run(only, "kolo+tcp") + run(only, "test+buffered+tcp");
}
