/* SPDX-License-Identifier: Apache-2.0
 *
 * Receives into memory of the receiver's own: the same tests in both modes, over shared memory (with the kernel's
 * permission to copy, and without), TCP and RDMA. See test_tasks.h for the tasks.
 */
#include "progress/test_fork.h"
#include "rendezvous/remote/test_tasks.h"

#include <signal.h>
#include <sys/wait.h>

#define ROOM   (9u << 20)
#define CANARY 0x5a

static unsigned char *room; /* a destination, with something behind it */

static int set_up_room(void **state)
{
    room = malloc(ROOM);
    assert_non_null(room);
    memset(room, CANARY, ROOM);
    return set_up(state);
}

static int tear_down_room(void **state)
{
    int failed = tear_down(state);
    free(room);
    return failed;
}

static kolo_transfer_args_t args_for(size_t bytes)
{
    return (kolo_transfer_args_t){.into = room, .into_bytes = bytes};
}

static void check_landed(kolo_value_t *value, int64_t elements, int seed)
{
    size_t bytes = (size_t)elements * 4;
    if (elements) assert_ptr_equal(value->data, room);
    assert_null(value->release);
    for (size_t i = bytes; i < bytes + 64; i++) assert_int_equal(room[i], CANARY);
    check_value(value, elements, seed);
    memset(room, CANARY, bytes);
}

static void receive_into(kolo_rendezvous_t step, const char *key, int64_t elements, int seed)
{
    kolo_transfer_args_t args = args_for((size_t)elements * 4 + 1);
    kolo_value_t value;
    if (kolo_rendezvous_receive(step, key, &args, 30000, &value) != KOLO_OK) fail_msg("%s", kolo_error_text());
    check_landed(&value, elements, seed);
}

static void a_value_lies_in_the_receivers_memory(void **state)
{
    static const int64_t sizes[] = {1, 200, 0, 1000, 5000, 5000, 100000, 100000, 2000000, 2000000, 7, 5000};
    fixture_t *f = *state;
    char *key = make_key(f->worker, PS, WORKER, "w");
    kolo_transfer_args_t args = args_for(ROOM - 64);
    kolo_receive_t receive;
    kolo_value_t value;
    for (size_t i = 0; i < KOLO_COUNTOF(sizes); i++) { /* a new shape costs a round trip more, the same one none */
        send_value(f->at_ps, key, sizes[i], (int)i);
        receive_into(f->at_worker, key, sizes[i], (int)i);
    }
    assert_int_equal(kolo_rendezvous_receive_begin(f->at_worker, key, &args, &receive), KOLO_OK);
    send_value(f->at_ps, key, 5000, 77);
    assert_int_equal(kolo_receive_wait(receive, 30000, &value), KOLO_OK);
    check_landed(&value, 5000, 77);
}

static void a_value_that_is_too_long_is_an_error_and_stays(void **state)
{
    static const int64_t sizes[] = {10, 100000, 100000, 300000};
    fixture_t *f = *state;
    char *key = make_key(f->worker, PS, WORKER, "w");
    kolo_receive_t early;
    kolo_value_t value;
    for (size_t i = 0; i < KOLO_COUNTOF(sizes); i++) {
        kolo_transfer_args_t args = args_for((size_t)sizes[i] * 4 - 1);
        send_value(f->at_ps, key, sizes[i], (int)i);
        assert_int_equal(kolo_rendezvous_receive(f->at_worker, key, &args, 30000, &value),
                         KOLO_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(kolo_error_text(), "the value stays for the next receive"));
        assert_int_equal(room[0], CANARY);
        receive_into(f->at_worker, key, sizes[i], (int)i);
        /* The receive comes first. */
        assert_int_equal(kolo_rendezvous_receive_begin(f->at_worker, key, &args, &early), KOLO_OK);
        send_value(f->at_ps, key, sizes[i], 50);
        assert_int_equal(kolo_receive_wait(early, 30000, &value), KOLO_ERR_INVALID_ARGUMENT);
        assert_int_equal(room[0], CANARY);
        receive_into(f->at_worker, key, sizes[i], 50);
    }
}

static void arguments_that_make_no_sense_are_refused(void **state)
{
    fixture_t *f = *state;
    char *key = make_key(f->worker, PS, WORKER, "w");
    kolo_transfer_args_t args = args_for(0);
    kolo_value_t got, value = make_value(4, 1);
    assert_int_equal(kolo_rendezvous_receive(f->at_worker, key, &args, 100, &got), KOLO_ERR_INVALID_ARGUMENT);
    args = (kolo_transfer_args_t){.into_bytes = 100};
    assert_int_equal(kolo_rendezvous_receive(f->at_worker, key, &args, 100, &got), KOLO_ERR_INVALID_ARGUMENT);
    args = args_for(100);
    assert_int_equal(kolo_rendezvous_send(f->at_ps, key, &value, &args), KOLO_ERR_INVALID_ARGUMENT);
    kolo_value_release(&value);
}

static void strings_and_dead_values_land_too(void **state)
{
    fixture_t *f = *state;
    kolo_value_t dead = {.element = KOLO_FLOAT64, .ndims = 1, .dims = {9}, .dead = 1}, got;
    kolo_transfer_args_t args = args_for(1000);
    char *key = make_key(f->worker, PS, WORKER, "d");
    static uint64_t strings[8] = {5, 5, 11};
    memcpy(&strings[3], "hello world", 11);
    kolo_value_t text = {.element = KOLO_ELEMENT_STRING, .ndims = 1, .dims = {3}, .data = strings, .bytes = 35};
    assert_int_equal(kolo_rendezvous_send(f->at_ps, key, &dead, NULL), KOLO_OK);
    assert_int_equal(kolo_rendezvous_send(f->at_ps, key, &text, NULL), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive(f->at_worker, key, &args, 30000, &got), KOLO_OK);
    assert_int_equal(got.dead, 1);
    assert_int_equal(room[0], CANARY);
    assert_int_equal(kolo_rendezvous_receive(f->at_worker, key, &args, 30000, &got), KOLO_OK);
    assert_ptr_equal(got.data, room);
    assert_int_equal(got.bytes, 35);
    assert_memory_equal(room + 24, "hello world", 11);
}

typedef struct {
    heard_t heard;
    void *data;
    size_t into_bytes;
} landed_t;

static void hear_where(void *arg, kolo_status_t status, const char *why, const kolo_transfer_args_t *sender,
                       const kolo_transfer_args_t *receiver, kolo_value_t *value)
{
    landed_t *landed = arg;
    landed->data = value ? value->data : NULL;
    landed->into_bytes = receiver->into_bytes;
    hear(&landed->heard, status, why, sender, receiver, value);
}

static void a_callback_is_told_where_the_value_lies(void **state)
{
    fixture_t *f = *state;
    kolo_transfer_args_t args = args_for(100000);
    char *key = make_key(f->worker, PS, WORKER, "w");
    for (int64_t elements = 5; elements <= 20000; elements *= 20) {
        landed_t landed = {0};
        assert_int_equal(kolo_rendezvous_receive_call(f->at_worker, key, &args, hear_where, &landed), KOLO_OK);
        send_value(f->at_ps, key, elements, 1);
        wait_calls(&landed.heard, 1);
        assert_int_equal(landed.heard.status, KOLO_OK);
        assert_ptr_equal(landed.data, room);
        assert_int_equal(landed.into_bytes, 100000);
    }
}

/* A key that is known, so that its memory is exposed with the request. */
static char *known_key(const fixture_t *f, int64_t elements)
{
    char *key = make_key(f->worker, PS, WORKER, "w");
    send_value(f->at_ps, key, elements, 1);
    receive_into(f->at_worker, key, elements, 1);
    return key;
}

static void memory_is_the_callers_again_after_a_time_out(void **state)
{
    fixture_t *f = *state;
    char *key = known_key(f, 100000), *probe = make_key(f->worker, PS, WORKER, "probe");
    kolo_transfer_args_t args = args_for(500000);
    kolo_receive_t receive;
    kolo_value_t value;
    assert_int_equal(kolo_rendezvous_receive(f->at_worker, key, &args, 20, &value), KOLO_ERR_TIMEOUT);
    assert_int_equal(kolo_rendezvous_receive_begin(f->at_worker, key, &args, &receive), KOLO_OK);
    kolo_receive_discard(receive);
    send_value(f->at_ps, probe, 1, 1); /* what was given up is told in the order of the requests */
    receive_value(f->at_worker, probe, 1, 1);
    send_value(f->at_ps, key, 100000, 2);
    receive_value(f->at_worker, key, 100000, 2);
    for (size_t i = 0; i < 500000; i++) assert_int_equal(room[i], CANARY);
}

static void an_abort_ends_a_receive_once_its_memory_is_free(void **state)
{
    fixture_t *f = *state;
    kolo_rendezvous_t worker = open_step(f->worker, 5);
    char *key = known_key(f, 100000);
    kolo_transfer_args_t args = args_for(500000);
    landed_t landed = {0};
    kolo_receive_t handle;
    kolo_value_t value;
    assert_int_equal(kolo_rendezvous_receive_call(worker, key, &args, hear_where, &landed), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive_begin(worker, key, &args, &handle), KOLO_OK);
    assert_int_equal(kolo_rendezvous_abort(worker, KOLO_ERR_SYSTEM, "enough"), KOLO_OK);
    wait_calls(&landed.heard, 1);
    assert_int_equal(landed.heard.status, KOLO_ERR_SYSTEM);
    assert_non_null(strstr(landed.heard.why, "enough"));
    assert_int_equal(kolo_receive_wait(handle, 30000, &value), KOLO_ERR_SYSTEM);
    assert_int_equal(landed.heard.calls, 1);
    kolo_rendezvous_close(worker);
    send_value(f->at_ps, key, 100000, 2); /* the channel lives on */
    receive_into(f->at_worker, key, 100000, 2);
}

/* ---- what it costs ---- */

static void a_known_key_costs_no_copy_where_the_peer_may_write(void **state)
{
    fixture_t *f = *state;
    kolo_rendezvous_counters_t *c = &kolo_rendezvous_counters;
    uint64_t copies = 0, asked = 0;
    bool fallback = strcmp(protocol, "kolo+shm") == 0 && kolo_onesided_param_direct == 0;
    char *key = make_key(f->worker, PS, WORKER, "w");
    for (int i = 0; i < 11; i++) {
        send_value(f->at_ps, key, 50000, i);
        receive_into(f->at_worker, key, 50000, i);
        if (i == 0) copies = c->copies;
        if (i == 0) asked = c->requests;
    }
    assert_int_equal(c->requests - asked, 10);
    assert_int_equal(c->copies - copies, buffered ? 20 : fallback ? 10 : 0);
}

/* ---- threads, and a peer that does not answer ---- */

typedef struct {
    kolo_rendezvous_t step;
    const char *key;
    _Atomic bool stop;
} storm_t;

static void *send_on(void *arg)
{
    storm_t *s = arg;
    for (int i = 0; !atomic_load(&s->stop); i++) {
        kolo_value_t value = make_value(60000, i);
        if (kolo_rendezvous_send(s->step, s->key, &value, NULL) != KOLO_OK) kolo_value_release(&value);
        usleep(300);
    }
    return NULL;
}

/* Not by yields: on a busy machine each of them takes milliseconds, and hundreds of rounds minutes. */
static void linger_us(uint64_t us)
{
    for (uint64_t end = kolo_now_ns() + us * 1000; kolo_now_ns() < end;) {
    }
}

/* Whenever a receive has ended without its value, nothing is written to its memory any more. */
static void receives_that_are_given_up_under_way_leave_their_memory_alone(void **state)
{
    fixture_t *f = *state;
    storm_t s = {.step = f->at_ps, .key = known_key(f, 60000)};
    kolo_transfer_args_t args = args_for(240000);
    int values = 0, without = 0;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, send_on, &s), 0);
    for (int i = 0; i < 300; i++) {
        kolo_receive_t receive;
        kolo_value_t value;
        int ended;
        memset(room, CANARY, 240000);
        assert_int_equal(kolo_rendezvous_receive_begin(f->at_worker, s.key, &args, &receive), KOLO_OK);
        if (i % 3 != 1) linger_us((uint64_t)(i * 7 % 300));
        assert_int_equal(kolo_receive_poll(receive, &ended), KOLO_OK);
        if (ended || i % 3 == 0) {
            assert_int_equal(kolo_receive_wait(receive, 30000, &value), KOLO_OK);
            assert_ptr_equal(value.data, room);
            values++;
            continue;
        }
        kolo_receive_discard(receive);
        memset(room, i, 240000);
        sched_yield();
        for (size_t k = 0; k < 240000; k += 61)
            if (room[k] != (unsigned char)i) fail_msg("round %d: byte %zu was written afterwards", i, k);
        without++;
    }
    atomic_store(&s.stop, true);
    pthread_join(thread, NULL);
    assert_true(values > 0 && without > 0);
}

/* In a process of its own: sends a value for each byte that it is given. */
static void serve_in_child(int orders)
{
    kolo_server_t server = start_server(PS);
    kolo_rendezvous_t step = open_step(server, 1);
    char *key = make_key(server, PS, WORKER, "w"), byte;
    while (read(orders, &byte, 1) == 1) send_value(step, key, 60000, byte);
    _exit(0);
}

/* A sender in a process of its own, which has sent one value and is stopped. */
typedef struct {
    pid_t pid;
    int orders;
    kolo_progress_t *progress;
    kolo_server_t server;
    kolo_rendezvous_t step;
    char *key;
} stopped_t;

static void start_and_stop(stopped_t *s)
{
    int orders[2], status;
    name_cluster();
    room = malloc(ROOM);
    assert_non_null(room);
    memset(room, CANARY, ROOM);
    assert_int_equal(pipe(orders), 0);
    assert_int_equal(kolo_progress_get(&s->progress), KOLO_OK);
    s->pid = kolo_test_fork(s->progress);
    if (s->pid == 0) {
        close(orders[1]);
        serve_in_child(orders[0]);
    }
    close(orders[0]);
    s->orders = orders[1];
    s->server = start_server(WORKER);
    s->step = open_step(s->server, 1);
    s->key = make_key(s->server, PS, WORKER, "w");
    assert_int_equal(write(s->orders, "a", 1), 1);
    receive_into(s->step, s->key, 60000, 'a');
    assert_int_equal(kill(s->pid, SIGSTOP), 0);
    assert_int_equal(waitpid(s->pid, &status, WUNTRACED), s->pid);
}

static void end_stopped(stopped_t *s)
{
    int status;
    kolo_rendezvous_close(s->step);
    kolo_server_destroy(s->server);
    close(s->orders);
    assert_int_equal(kill(s->pid, SIGCONT), 0);
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    kolo_progress_put(s->progress);
    free(room);
}

static void who_does_not_leave_off_writing_loses_its_channel(void **state)
{
    kolo_transfer_args_t args;
    kolo_value_t value;
    stopped_t s;
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* it allows no threads in the child of a process that has some */
#endif
    start_and_stop(&s);
    args = args_for(240000);
    assert_int_equal(write(s.orders, "b", 1), 1);
    uint64_t before = kolo_now_ns();
    assert_int_equal(kolo_rendezvous_receive(s.step, s.key, &args, 50, &value), KOLO_ERR_TIMEOUT);
    assert_true(kolo_now_ns() - before < 20 * KOLO_NS_PER_S);
    assert_int_equal(kill(s.pid, SIGCONT), 0);
    assert_int_equal(write(s.orders, "c", 1), 1); /* the one before it may be lost, with its channel */
    args = (kolo_transfer_args_t){.into = room + 1000000, .into_bytes = 240000};
    if (kolo_rendezvous_receive(s.step, s.key, &args, 30000, &value) != KOLO_OK) /* by a new channel */
        fail_msg("%s", kolo_error_text());
    int seed = (int)((const uint32_t *)value.data)[0];
    assert_true(seed == 'b' || seed == 'c');
    check_value(&value, 60000, seed);
    for (size_t i = 0; i < 240000; i++) assert_int_equal(room[i], CANARY);
    end_stopped(&s);
}

/* Where the sender may write to the destination. */
static void an_aborted_receive_ends_with_its_channel_if_nobody_answers(void **state)
{
    bool direct = !buffered && (strcmp(protocol, "kolo+shm") != 0 || kolo_onesided_param_direct > 0);
    landed_t landed = {0};
    stopped_t s;
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip();
#endif
    start_and_stop(&s);
    kolo_transfer_args_t args = args_for(240000);
    uint64_t asked = kolo_rendezvous_counters.requests, limit = kolo_deadline_ms(30000);
    assert_int_equal(kolo_rendezvous_receive_call(s.step, s.key, &args, hear_where, &landed), KOLO_OK);
    for (; kolo_rendezvous_counters.requests == asked; sched_yield()) assert_true(kolo_now_ns() < limit);
    uint64_t before = kolo_now_ns();
    assert_int_equal(kolo_rendezvous_abort(s.step, KOLO_ERR_SYSTEM, "enough"), KOLO_OK);
    int calls = atomic_load(&landed.heard.calls);
    if (direct && kolo_now_ns() - before < 500 * KOLO_NS_PER_MS) assert_int_equal(calls, 0);
    wait_calls(&landed.heard, 1);
    assert_int_equal(landed.heard.status, KOLO_ERR_SYSTEM);
    end_stopped(&s);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_room, tear_down_room)

static int run(const char *name)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_does_not_leave_off_writing_loses_its_channel),
        cmocka_unit_test(an_aborted_receive_ends_with_its_channel_if_nobody_answers),
        TEST(a_value_lies_in_the_receivers_memory),
        TEST(a_value_that_is_too_long_is_an_error_and_stays),
        TEST(arguments_that_make_no_sense_are_refused),
        TEST(strings_and_dead_values_land_too),
        TEST(a_callback_is_told_where_the_value_lies),
        TEST(memory_is_the_callers_again_after_a_time_out),
        TEST(an_abort_ends_a_receive_once_its_memory_is_free),
        TEST(a_known_key_costs_no_copy_where_the_peer_may_write),
        TEST(receives_that_are_given_up_under_way_leave_their_memory_alone),
    };
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : NULL;
    setenv("KOLO_RENDEZVOUS_WAITING", "64M", 1); /* of a thread that sends faster than the test receives */
    setenv("KOLO_RENDEZVOUS_CHUNK", "128K", 1);  /* so that large values take several writes */
    int failed = run_protocols(only, run);
    kolo_onesided_param_direct = 0; /* as where the kernel does not permit it */
    return failed + run_protocol(only, "kolo+shm", run);
}
