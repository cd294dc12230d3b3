/* SPDX-License-Identifier: Apache-2.0
 *
 * Values between tasks: the same tests for both modes and over shared memory and TCP. See
 * test_tasks.h for the tasks.
 */
#include "rendezvous/remote/test_tasks.h"

/* ---- what every mode does ---- */

static void values_cross_in_either_order_of_the_two_calls(void **state)
{
    fixture_t *f = *state;
    kolo_receive_t receive;
    kolo_value_t value;
    char *key = make_key(f->worker, PS, WORKER, "w");
    send_value(f->at_ps, key, 1000, 1);
    receive_value(f->at_worker, key, 1000, 1);
    assert_int_equal(kolo_rendezvous_receive_begin(f->at_worker, key, NULL, &receive), KOLO_OK);
    send_value(f->at_ps, key, 1000, 2);
    assert_int_equal(kolo_receive_wait(receive, 30000, &value), KOLO_OK);
    check_value(&value, 1000, 2);
    char *back = make_key(f->ps, WORKER, PS, "g"); /* the other way, at the same time */
    send_value(f->at_worker, back, 77, 3);
    receive_value(f->at_ps, back, 77, 3);
}

static void sizes_and_shapes_may_change_from_value_to_value(void **state)
{
    static const int64_t sizes[] = {1, 0, 3, 100000, 5, 100000, 100001, 0, 2000000, 1};
    fixture_t *f = *state;
    char *key = make_key(f->worker, PS, WORKER, "w");
    for (size_t i = 0; i < KOLO_COUNTOF(sizes); i++) {
        send_value(f->at_ps, key, sizes[i], (int)i);
        receive_value(f->at_worker, key, sizes[i], (int)i);
    }
}

/* Counts of this process, which is both ends. */
static uint64_t count(_Atomic uint64_t *counter)
{
    return atomic_load(counter);
}

static void small_values_come_with_the_answer(void **state)
{
    fixture_t *f = *state;
    if (buffered) return; /* nothing does there */
    char *key = make_key(f->worker, PS, WORKER, "small");
    kolo_rendezvous_counters_t *c = &kolo_rendezvous_counters;
    uint64_t carried = count(&c->carried), again = count(&c->rerequests), asked = count(&c->requests);
    for (int i = 0; i < 3; i++) { /* the first use of the key, too */
        send_value(f->at_ps, key, 200, i);
        receive_value(f->at_worker, key, 200, i);
    }
    assert_int_equal(count(&c->carried) - carried, 3);
    assert_int_equal(count(&c->requests) - asked, 3);
    send_value(f->at_ps, key, 1024, 7); /* as much as a message can carry */
    receive_value(f->at_worker, key, 1024, 7);
    assert_int_equal(count(&c->carried) - carried, 4);
    assert_int_equal(count(&c->rerequests), again);
}

static void many_receives_are_under_way_at_once(void **state)
{
    enum { MANY = 300 };
    fixture_t *f = *state;
    kolo_receive_t receives[MANY];
    char *key = make_key(f->worker, PS, WORKER, "w"), other[KOLO_TENSOR_KEY_MAX + 1];
    kolo_value_t value;
    snprintf(other, sizeof other, "%s", make_key(f->worker, PS, WORKER, "v"));
    for (int i = 0; i < MANY; i++)
        assert_int_equal(kolo_rendezvous_receive_begin(f->at_worker, i % 3 ? key : other, NULL, &receives[i]),
                         KOLO_OK);
    for (int i = 0; i < MANY; i++) send_value(f->at_ps, i % 3 ? key : other, 10 + i % 4, i);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(kolo_receive_wait(receives[i], 30000, &value), KOLO_OK);
        check_value(&value, 10 + i % 4, i); /* per key, in the order of the sends */
    }
}

static void steps_are_apart_and_a_key_may_be_in_many(void **state)
{
    enum { STEPS = 40 };
    fixture_t *f = *state;
    kolo_rendezvous_t ps[STEPS], worker[STEPS];
    char *key = make_key(f->worker, PS, WORKER, "w");
    kolo_receive_t receives[STEPS];
    kolo_value_t value;
    for (uint64_t i = 0; i < STEPS; i++) {
        ps[i] = open_step(f->ps, 100 + i);
        worker[i] = open_step(f->worker, 100 + i);
        assert_int_equal(kolo_rendezvous_receive_begin(worker[i], key, NULL, &receives[i]), KOLO_OK);
    }
    for (int i = STEPS - 1; i >= 0; i--) send_value(ps[i], key, 64, i);
    for (int i = 0; i < STEPS; i++) {
        assert_int_equal(kolo_receive_wait(receives[i], 30000, &value), KOLO_OK);
        check_value(&value, 64, i);
        kolo_rendezvous_close(ps[i]);
        kolo_rendezvous_close(worker[i]);
    }
}

static void dead_values_and_strings_cross(void **state)
{
    fixture_t *f = *state;
    kolo_value_t dead = {.element = KOLO_FLOAT64, .ndims = 1, .dims = {9}, .dead = 1}, got;
    char *key = make_key(f->worker, PS, WORKER, "d");
    uint64_t *strings = calloc(1, 64);
    strings[0] = 5;
    strings[1] = 5;
    strings[2] = 11;
    memcpy(&strings[3], "hello world", 11);
    kolo_value_t text = {.element = KOLO_ELEMENT_STRING,
                         .ndims = 1,
                         .dims = {3},
                         .data = strings,
                         .bytes = 35,
                         .release = release,
                         .arg = strings};
    atomic_fetch_add(&made, 1);
    assert_int_equal(kolo_rendezvous_send(f->at_ps, key, &dead, NULL), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive(f->at_worker, key, NULL, 30000, &got), KOLO_OK);
    assert_int_equal(got.dead, 1);
    assert_int_equal(got.dims[0], 9);
    kolo_value_release(&got);
    assert_int_equal(kolo_rendezvous_send(f->at_ps, key, &text, NULL), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive(f->at_worker, key, NULL, 30000, &got), KOLO_OK);
    assert_int_equal(got.element, KOLO_ELEMENT_STRING);
    assert_int_equal(got.bytes, 35);
    assert_memory_equal((char *)got.data + 24, "hello world", 11);
    kolo_value_release(&got);
}

/* Where the sender can still write to them, strings would not stay what they were when they were checked. */
static void strings_are_handed_out_where_the_sender_cannot_write(void **state)
{
    enum { COUNT = 9000 }; /* more than goes with a message */
    fixture_t *f = *state;
    kolo_value_t got;
    char *key = make_key(f->worker, PS, WORKER, "s"), line[400];
    uint64_t *strings = calloc(COUNT, 9);
    for (int i = 0; i < COUNT; i++) strings[i] = (uint64_t)i + 1;
    kolo_value_t text = {.element = KOLO_ELEMENT_STRING,
                         .ndims = 1,
                         .dims = {COUNT},
                         .data = strings,
                         .bytes = COUNT * 9,
                         .release = release,
                         .arg = strings};
    atomic_fetch_add(&made, 1);
    assert_int_equal(kolo_rendezvous_send(f->at_ps, key, &text, NULL), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive(f->at_worker, key, NULL, 30000, &got), KOLO_OK);
    assert_int_equal(got.bytes, COUNT * 9);
    FILE *maps = fopen("/proc/self/maps", "re");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        assert_int_equal(sscanf(line, "%lx-%lx", &from, &to), 2);
        if ((uintptr_t)got.data >= from && (uintptr_t)got.data < to) assert_null(strstr(line, "/memfd:"));
    }
    fclose(maps);
    kolo_value_release(&got);
}

static void callbacks_run_on_threads_of_the_pool(void **state)
{
    fixture_t *f = *state;
    heard_t heard = {0};
    char *key = make_key(f->worker, PS, WORKER, "w");
    assert_int_equal(kolo_rendezvous_receive_call(f->at_worker, key, NULL, hear, &heard), KOLO_OK);
    send_value(f->at_ps, key, 5, 1);
    wait_calls(&heard, 1);
    assert_int_equal(heard.status, KOLO_OK);
    assert_false(pthread_equal(heard.thread, pthread_self()));
}

static void an_abort_at_either_end_reaches_the_receiver(void **state)
{
    fixture_t *f = *state;
    heard_t heard[2] = {0};
    char *key = make_key(f->worker, PS, WORKER, "w");
    kolo_rendezvous_t ps = open_step(f->ps, 5), worker = open_step(f->worker, 5);
    assert_int_equal(kolo_rendezvous_receive_call(worker, key, NULL, hear, &heard[0]), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive_call(f->at_worker, key, NULL, hear, &heard[1]), KOLO_OK);
    assert_int_equal(kolo_rendezvous_abort(ps, KOLO_ERR_SYSTEM, "the disk is full"), KOLO_OK);
    wait_calls(&heard[0], 1);
    assert_int_equal(heard[0].status, KOLO_ERR_SYSTEM);
    assert_non_null(strstr(heard[0].why, "the disk is full"));
    assert_int_equal(kolo_rendezvous_abort(f->at_worker, KOLO_ERR_TIMEOUT, "enough"), KOLO_OK);
    wait_calls(&heard[1], 1);
    assert_int_equal(heard[1].status, KOLO_ERR_TIMEOUT);
    kolo_rendezvous_close(ps);
    kolo_rendezvous_close(worker);
    kolo_rendezvous_t next = open_step(f->worker, 6), sender = open_step(f->ps, 6); /* the channel lives on */
    send_value(sender, key, 9, 9);
    receive_value(next, key, 9, 9);
    kolo_rendezvous_close(next);
    kolo_rendezvous_close(sender);
}

static void a_time_out_leaves_the_value_to_the_next_receive(void **state)
{
    fixture_t *f = *state;
    kolo_value_t value;
    char *key = make_key(f->worker, PS, WORKER, "w"), *probe = make_key(f->worker, PS, WORKER, "probe");
    assert_int_equal(kolo_rendezvous_receive(f->at_worker, key, NULL, 20, &value), KOLO_ERR_TIMEOUT);
    send_value(f->at_ps, probe, 1, 1); /* what was given up is told in the order of the requests */
    receive_value(f->at_worker, probe, 1, 1);
    send_value(f->at_ps, key, 4, 4);
    receive_value(f->at_worker, key, 4, 4);
}

static void a_restarted_task_is_noticed_and_served_again(void **state)
{
    fixture_t *f = *state;
    heard_t heard = {0};
    kolo_value_t value;
    char old[KOLO_TENSOR_KEY_MAX + 1];
    snprintf(old, sizeof old, "%s", make_key(f->worker, PS, WORKER, "w"));
    assert_int_equal(kolo_rendezvous_receive_call(f->at_worker, old, NULL, hear, &heard), KOLO_OK);
    send_value(f->at_ps, make_key(f->worker, PS, WORKER, "x"), 1, 1);
    receive_value(f->at_worker, make_key(f->worker, PS, WORKER, "x"), 1, 1); /* the request has arrived */
    kolo_rendezvous_close(f->at_ps);
    kolo_server_destroy(f->ps);
    wait_calls(&heard, 1);
    assert_int_not_equal(heard.status, KOLO_OK);
    f->ps = start_server(PS);
    f->at_ps = open_step(f->ps, 1);
    char *fresh = make_key(f->ps, PS, WORKER, "w");
    assert_string_not_equal(fresh, old);
    send_value(f->at_ps, fresh, 50, 5);
    receive_value(f->at_worker, fresh, 50, 5);
    assert_int_equal(kolo_rendezvous_receive(f->at_worker, old, NULL, 20000, &value), KOLO_ERR_REMOTE);
    assert_non_null(strstr(kolo_error_text(), "has been restarted"));
}

static void tasks_start_in_any_order(void **state)
{
    fixture_t *f = *state;
    const char *late = "/job:worker/task:1";
    kolo_server_t server = make_server(late, secret);
    kolo_rendezvous_t step = open_step(server, 1);
    heard_t heard = {0};
    char *key = make_key(f->ps, PS, late, "w");
    assert_int_equal(kolo_rendezvous_receive_call(step, key, NULL, hear, &heard), KOLO_OK); /* kept */
    send_value(f->at_ps, key, 3, 3);
    assert_int_equal(heard.calls, 0);
    assert_int_equal(kolo_server_start(server), KOLO_OK);
    assert_int_equal(kolo_server_start(server), KOLO_OK);
    wait_calls(&heard, 1);
    assert_int_equal(heard.status, KOLO_OK);
    kolo_rendezvous_close(step);
    kolo_server_destroy(server);
}

static void a_join_ends_a_server_that_was_not_started(void **state)
{
    fixture_t *f = *state;
    kolo_server_t server = make_server("/job:worker/task:1", secret);
    assert_int_equal(kolo_server_join(server, 0), KOLO_OK);
    assert_int_equal(kolo_server_join(server, 0), KOLO_OK);
    assert_int_equal(kolo_server_start(server), KOLO_ERR_INVALID_USAGE);
    kolo_server_destroy(server);
    assert_int_equal(kolo_server_join(f->ps, 20), KOLO_ERR_TIMEOUT);
    assert_int_equal(kolo_server_stop(f->ps), KOLO_OK);
    assert_int_equal(kolo_server_stop(f->ps), KOLO_OK);
    assert_int_equal(kolo_server_join(f->ps, 0), KOLO_OK);
    assert_int_equal(kolo_server_start(f->ps), KOLO_ERR_INVALID_USAGE);
}

static void who_does_not_know_the_secret_is_refused(void **state)
{
    static const char wrong[] = "a secret of other tests, alone";
    fixture_t *f = *state;
    kolo_server_t stranger = make_server("/job:worker/task:1", wrong);
    uint64_t incarnation;
    (void)f;
    assert_int_equal(kolo_server_start(stranger), KOLO_OK);
    assert_int_equal(kolo_server_incarnation(stranger, PS, 20000, &incarnation), KOLO_ERR_AUTH);
    kolo_server_destroy(stranger);
}

static void keys_that_this_cluster_does_not_have_are_errors(void **state)
{
    fixture_t *f = *state;
    heard_t heard = {0};
    kolo_value_t value;
    char *key = make_key(f->worker, PS, WORKER, "w"), text[KOLO_TENSOR_KEY_MAX + 1];
    kolo_tensor_key_t parts;
    assert_int_equal(kolo_tensor_key_parse(key, &parts), KOLO_OK);
    strcpy(parts.src_device, "/job:ps/task:7/device:cpu:0");
    assert_int_equal(kolo_tensor_key_make(&parts, text, sizeof text), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive(f->at_worker, text, NULL, 30000, &value), KOLO_ERR_INVALID_ARGUMENT);
    assert_int_equal(kolo_rendezvous_receive_call(f->at_worker, text, NULL, hear, &heard),
                     KOLO_ERR_INVALID_ARGUMENT);
    assert_int_equal(heard.calls, 0);
}

static void sets_cross_all_or_none(void **state)
{
    fixture_t *f = *state;
    char first[KOLO_TENSOR_KEY_MAX + 1], second[KOLO_TENSOR_KEY_MAX + 1];
    const char *keys[2] = {first, second};
    kolo_value_t values[2] = {make_value(10, 1), make_value(20, 2)}, got[2];
    int sent;
    snprintf(first, sizeof first, "%s", make_key(f->worker, PS, WORKER, "a"));
    snprintf(second, sizeof second, "%s", make_key(f->worker, PS, WORKER, "b"));
    assert_int_equal(kolo_rendezvous_send_set(f->at_ps, keys, values, 2, &sent), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive_set(f->at_worker, keys, got, 2, 30000), KOLO_OK);
    check_value(&got[0], 10, 1);
    check_value(&got[1], 20, 2);
    send_value(f->at_ps, first, 1, 1);
    assert_int_equal(kolo_rendezvous_receive_set(f->at_worker, keys, got, 2, 50), KOLO_ERR_TIMEOUT);
}

/* ---- what the modes cost ---- */

static void a_key_that_is_known_costs_one_round_trip_and_no_copy(void **state)
{
    fixture_t *f = *state;
    char *key = make_key(f->worker, PS, WORKER, "w");
    kolo_rendezvous_counters_t *c = &kolo_rendezvous_counters;
    uint64_t before[5] = {0}, after[5] = {0};
    for (int i = 0; i < 11; i++) {
        send_value(f->at_ps, key, 5000, i);
        receive_value(f->at_worker, key, 5000, i);
        uint64_t now[5] = {c->requests, c->metas, c->rerequests, c->copies, c->buffers_grown};
        if (i == 0) memcpy(before, now, sizeof now); /* the first one may cost more */
        memcpy(after, now, sizeof now);
    }
    assert_int_equal(after[0] - before[0], 10);
    assert_int_equal(after[1] - before[1], 0);
    assert_int_equal(after[2] - before[2], 0);
    assert_int_equal(after[3] - before[3], buffered ? 20 : 0);
    assert_int_equal(after[4] - before[4], 0);
}

/* ---- threads ---- */

enum { STORM = 1500 };
typedef struct {
    kolo_rendezvous_t step;
    const char *key;
    int failed;
} storm_t;

static void *storm_send(void *arg)
{
    storm_t *s = arg;
    for (int i = 0; i < STORM; i++) {
        kolo_value_t value = make_value(1 + i % 50, i);
        if (kolo_rendezvous_send(s->step, s->key, &value, NULL) != KOLO_OK) {
            kolo_value_release(&value);
            s->failed++;
        }
    }
    return NULL;
}

static void *storm_receive(void *arg)
{
    storm_t *s = arg;
    for (int i = 0; i < STORM; i++) {
        kolo_value_t value;
        if (kolo_rendezvous_receive(s->step, s->key, NULL, 60000, &value) != KOLO_OK) {
            s->failed++;
            break;
        }
        check_value(&value, 1 + i % 50, i);
    }
    return NULL;
}

static void threads_on_both_sides_lose_nothing(void **state)
{
    fixture_t *f = *state;
    storm_t s[4] = {{f->at_ps, make_key(f->worker, PS, WORKER, "a"), 0},
                    {f->at_worker, NULL, 0},
                    {f->at_worker, make_key(f->ps, WORKER, PS, "b"), 0},
                    {f->at_ps, NULL, 0}};
    pthread_t threads[4];
    s[1].key = s[0].key;
    s[3].key = s[2].key;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, i % 2 ? storm_receive : storm_send, &s[i]), 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++) assert_int_equal(s[i].failed, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

static int run(const char *name)
{
    const struct CMUnitTest tests[] = {
        TEST(values_cross_in_either_order_of_the_two_calls),
        TEST(sizes_and_shapes_may_change_from_value_to_value),
        TEST(small_values_come_with_the_answer),
        TEST(many_receives_are_under_way_at_once),
        TEST(steps_are_apart_and_a_key_may_be_in_many),
        TEST(dead_values_and_strings_cross),
        TEST(strings_are_handed_out_where_the_sender_cannot_write),
        TEST(callbacks_run_on_threads_of_the_pool),
        TEST(an_abort_at_either_end_reaches_the_receiver),
        TEST(a_time_out_leaves_the_value_to_the_next_receive),
        TEST(a_restarted_task_is_noticed_and_served_again),
        TEST(tasks_start_in_any_order),
        TEST(a_join_ends_a_server_that_was_not_started),
        TEST(who_does_not_know_the_secret_is_refused),
        TEST(keys_that_this_cluster_does_not_have_are_errors),
        TEST(sets_cross_all_or_none),
        TEST(a_key_that_is_known_costs_one_round_trip_and_no_copy),
        TEST(threads_on_both_sides_lose_nothing),
    };
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    setenv("KOLO_RENDEZVOUS_CHUNK", "128K", 1); /* so that large values take several writes */
    if (kolo_server_register_protocol("kolo", "tcp", 1) != KOLO_ERR_INVALID_USAGE ||
        kolo_server_register_protocol("test+x", "tcp,carrier pigeon", 0) != KOLO_ERR_INVALID_ARGUMENT)
        return 1;
    return run_protocols(argc > 1 ? argv[1] : NULL, run);
}
