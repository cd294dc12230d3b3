/* SPDX-License-Identifier: Apache-2.0
 *
 * A server is stopped and destroyed while another thread sends a value that a task has asked for: that thread is
 * about to hand it to the thread of the channels, which ends. A fail point holds it there; then the same at any
 * moment. And a send that has left its value, and is about to note that in the server's flight record.
 */
#include "base/failpoint.h"
#include "rendezvous/remote/test_tasks.h"

#define ROUNDS 20

static const char *place;  /* where a fail point holds a thread, */
static _Atomic bool there; /* ... and whether it is there */

static void note(const char *name, kolo_fault_t fault)
{
    if (fault == KOLO_FAULT_DELAY && strcmp(name, place) == 0) atomic_store(&there, true);
}

/* The next thread that passes stays for that long. */
static void hold(const char *name, int ms)
{
    char rule[80];
    place = name;
    atomic_store(&there, false);
    snprintf(rule, sizeof rule, "%s:1:delay:%d", name, ms);
    assert_int_equal(kolo_fail_points_arm(rule), KOLO_OK);
}

static void let_go(void)
{
    assert_int_equal(kolo_fail_points_arm(NULL), KOLO_OK);
}

typedef struct {
    kolo_rendezvous_t step;
    const char *key;
    _Atomic bool sends;
} sender_t;

static void *send_late(void *arg)
{
    sender_t *s = arg;
    kolo_value_t value = make_value(1000, 5);
    atomic_store(&s->sends, true);
    if (kolo_rendezvous_send(s->step, s->key, &value, NULL) != KOLO_OK) kolo_value_release(&value);
    return NULL;
}

/* wait_us: after the thread has begun; -1: until it is held. */
static void stop_while_it_sends(fixture_t *f, int wait_us)
{
    heard_t heard = {0};
    pthread_t thread;
    sender_t s = {.step = f->at_ps, .key = make_key(f->worker, PS, WORKER, "late")};
    assert_int_equal(kolo_rendezvous_receive_call(f->at_worker, s.key, NULL, hear, &heard), KOLO_OK);
    send_value(f->at_ps, make_key(f->worker, PS, WORKER, "x"), 1, 1);
    receive_value(f->at_worker, make_key(f->worker, PS, WORKER, "x"), 1, 1); /* the request has arrived */
    assert_int_equal(pthread_create(&thread, NULL, send_late, &s), 0);
    while (!atomic_load(wait_us < 0 ? &there : &s.sends)) sched_yield();
    if (wait_us > 0) usleep((useconds_t)wait_us); /* any moment will do */
    assert_int_equal(kolo_server_destroy(f->ps), KOLO_OK);
    pthread_join(thread, NULL);
    wait_calls(&heard, 1);
    kolo_rendezvous_close(f->at_ps);
    kolo_rendezvous_close(f->at_worker);
    kolo_server_destroy(f->worker); /* the next round begins anew */
    f->ps = start_server(PS);
    f->worker = start_server(WORKER);
    f->at_ps = open_step(f->ps, 1);
    f->at_worker = open_step(f->worker, 1);
}

static void a_value_that_is_handed_over_is_awaited(void **state)
{
    hold("rendezvous.answer.handed", 150);
    stop_while_it_sends(*state, -1);
    let_go();
}

static void a_send_notes_what_it_did_in_a_record_that_is_there(void **state)
{
    fixture_t *f = *state;
    pthread_t thread;
    sender_t s = {.step = f->at_ps, .key = make_key(f->worker, PS, WORKER, "late")};
    hold("rendezvous.send.met", 300);
    assert_int_equal(pthread_create(&thread, NULL, send_late, &s), 0);
    while (!atomic_load(&there)) sched_yield();
    assert_int_equal(kolo_server_destroy(f->ps), KOLO_OK);
    pthread_join(thread, NULL);
    let_go();
    kolo_rendezvous_close(f->at_ps);
    f->ps = start_server(PS);
    f->at_ps = open_step(f->ps, 1);
}

static void *receive_late(void *arg)
{
    sender_t *s = arg;
    kolo_value_t value;
    atomic_store(&s->sends, true);
    if (kolo_rendezvous_receive(s->step, s->key, NULL, 5000, &value) == KOLO_OK) kolo_value_release(&value);
    return NULL;
}

static void a_receive_that_is_handed_over_is_awaited(void **state)
{
    fixture_t *f = *state;
    pthread_t thread;
    sender_t s = {.step = f->at_worker, .key = make_key(f->worker, PS, WORKER, "late")};
    hold("rendezvous.receive.listed", 300);
    assert_int_equal(pthread_create(&thread, NULL, receive_late, &s), 0);
    while (!atomic_load(&there)) sched_yield();
    assert_int_equal(kolo_server_destroy(f->worker), KOLO_OK);
    f->worker = make_server(WORKER, secret); /* another object where the first was, or not */
    pthread_join(thread, NULL);
    let_go();
    kolo_rendezvous_close(f->at_worker);
    assert_int_equal(kolo_server_start(f->worker), KOLO_OK);
    f->at_worker = open_step(f->worker, 1);
}

typedef struct {
    kolo_rendezvous_t step;
    const char *key;
    heard_t heard;
    kolo_status_t status;
} caller_t;

static void *call_nobody(void *arg)
{
    caller_t *c = arg;
    c->status = kolo_rendezvous_receive_call(c->step, c->key, NULL, hear, &c->heard);
    return NULL;
}

/* Whoever is told an error frees what the callback would be given. */
static void an_abort_beside_a_receive_that_is_refused_ends_it_once(void **state)
{
    fixture_t *f = *state;
    pthread_t thread;
    caller_t c = {.step = f->at_worker,
                  .key = "/job:none/task:0/device:cpu:0;0000000000000001;" WORKER "/device:cpu:0;w;0:0"};
    hold("rendezvous.receive.listed", 150);
    assert_int_equal(pthread_create(&thread, NULL, call_nobody, &c), 0);
    while (!atomic_load(&there)) sched_yield();
    assert_int_equal(kolo_rendezvous_abort(f->at_worker, KOLO_ERR_SYSTEM, "enough"), KOLO_OK);
    pthread_join(thread, NULL);
    let_go();
    if (c.status == KOLO_OK) wait_calls(&c.heard, 1);
    assert_int_equal(atomic_load(&c.heard.calls), c.status == KOLO_OK);
}

static _Atomic bool inside, let_out;

static void stay(void *arg, kolo_status_t status, const char *why, const kolo_transfer_args_t *sender,
                 const kolo_transfer_args_t *receiver, kolo_value_t *value)
{
    uint64_t limit = kolo_deadline_ms(30000);
    hear(arg, status, why, sender, receiver, value);
    atomic_store(&inside, true);
    while (!atomic_load(&let_out) && kolo_now_ns() < limit) sched_yield();
    atomic_store(&inside, false);
}

static void *stop(void *server)
{
    kolo_server_stop(server);
    return NULL;
}

static void a_join_beside_a_stop_keeps_its_time_limit(void **state)
{
    fixture_t *f = *state;
    pthread_t thread;
    heard_t heard = {0};
    uint64_t incarnation;
    const char *key = make_key(f->worker, PS, WORKER, "w");
    atomic_store(&inside, false);
    atomic_store(&let_out, false);
    assert_int_equal(kolo_rendezvous_receive_call(f->at_worker, key, NULL, stay, &heard), KOLO_OK);
    send_value(f->at_ps, key, 1, 1);
    while (!atomic_load(&inside)) sched_yield();
    assert_int_equal(pthread_create(&thread, NULL, stop, f->worker), 0);
    while (kolo_server_incarnation(f->worker, WORKER, 0, &incarnation) == KOLO_OK) sched_yield();
    assert_int_equal(kolo_server_join(f->worker, 20), KOLO_ERR_TIMEOUT);
    assert_true(atomic_load(&inside));
    atomic_store(&let_out, true);
    assert_int_equal(kolo_server_join(f->worker, 0), KOLO_OK);
    assert_false(atomic_load(&inside));
    pthread_join(thread, NULL);
}

static void stops_meet_sends_at_any_moment(void **state)
{
    for (int i = 0; i < ROUNDS; i++) stop_while_it_sends(*state, i % 5 * 20);
}

static int run(const char *name)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_value_that_is_handed_over_is_awaited, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_send_notes_what_it_did_in_a_record_that_is_there, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_receive_that_is_handed_over_is_awaited, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_abort_beside_a_receive_that_is_refused_ends_it_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_join_beside_a_stop_keeps_its_time_limit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(stops_meet_sends_at_any_moment, set_up, tear_down),
    };
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    kolo_fail_point_hook = note; /* before there are threads that read it */
    return run_protocols(argc > 1 ? argv[1] : "kolo+tcp", run);
}
