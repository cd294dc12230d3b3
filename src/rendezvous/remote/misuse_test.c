/* SPDX-License-Identifier: Apache-2.0
 *
 * What programs do between tasks that they should not, or hardly ever do: calls that wait from callbacks and
 * releases, a child of fork() that uses its parent's server, thousands of receives that are cleaned up at once,
 * empty values. Nothing of it may hang. The same in both modes, over shared memory, TCP and RDMA.
 */
#include "progress/test_fork.h"
#include "rendezvous/remote/test_tasks.h"

#include <signal.h>
#include <sys/wait.h>

/* ---- callbacks and releases ---- */

typedef struct {
    fixture_t *f;
    const char *key;
    kolo_receive_t pending;
    kolo_status_t stop, destroy, join, receive, set, wait, ask;
    _Atomic int calls;
} meddler_t;

static void meddle(meddler_t *m)
{
    kolo_value_t got;
    m->stop = kolo_server_stop(m->f->worker);
    m->destroy = kolo_server_destroy(m->f->worker);
    m->join = kolo_server_join(m->f->worker, 0);
    m->receive = kolo_rendezvous_receive(m->f->at_worker, m->key, NULL, 0, &got);
    m->set = kolo_rendezvous_receive_set(m->f->at_worker, &m->key, &got, 1, 0);
    m->wait = kolo_receive_wait(m->pending, 0, &got);
    atomic_fetch_add(&m->calls, 1);
}

static void meddle_when_called(void *arg, kolo_status_t status, const char *why, const kolo_transfer_args_t *sender,
                               const kolo_transfer_args_t *receiver, kolo_value_t *value)
{
    (void)status;
    (void)why;
    (void)sender;
    (void)receiver;
    if (value) kolo_value_release(value);
    meddle(arg);
}

static void check_refused(meddler_t *m)
{
    uint64_t limit = kolo_deadline_ms(30000);
    while (atomic_load(&m->calls) == 0) {
        assert_true(kolo_now_ns() < limit);
        sched_yield();
    }
    const kolo_status_t all[] = {m->stop, m->destroy, m->join, m->receive, m->set, m->wait};
    for (size_t i = 0; i < KOLO_COUNTOF(all); i++) assert_int_equal(all[i], KOLO_ERR_INVALID_USAGE);
    assert_int_equal(kolo_receive_discard(m->pending), KOLO_OK);
}

static void begin_meddling(meddler_t *m, fixture_t *f)
{
    *m = (meddler_t){.f = f, .key = make_key(f->worker, PS, WORKER, "never")};
    assert_int_equal(kolo_rendezvous_receive_begin(f->at_worker, m->key, NULL, &m->pending), KOLO_OK);
}

static void a_callback_that_would_wait_for_itself_is_told_so(void **state)
{
    fixture_t *f = *state;
    meddler_t m;
    char *key = make_key(f->worker, PS, WORKER, "w");
    begin_meddling(&m, f);
    assert_int_equal(kolo_rendezvous_receive_call(f->at_worker, key, NULL, meddle_when_called, &m), KOLO_OK);
    send_value(f->at_ps, key, 3, 3);
    check_refused(&m);
    send_value(f->at_ps, key, 5000, 4); /* nothing has been stopped */
    receive_value(f->at_worker, key, 5000, 4);
}

static void meddle_when_released(void *arg)
{
    meddler_t *m = arg;
    uint64_t incarnation;
    m->ask = kolo_server_incarnation(m->f->worker, "/job:worker/task:1", 10000, &incarnation); /* is not there */
    meddle(m);
}

/* Of what is sent to a task: its memory is released on the thread of the channels. */
static void a_release_that_would_wait_for_itself_is_told_so(void **state)
{
    static uint32_t data[5000];
    fixture_t *f = *state;
    meddler_t m;
    char *key = make_key(f->ps, WORKER, PS, "w");
    kolo_value_t value = {.element = KOLO_UINT32,
                          .ndims = 1,
                          .dims = {5000},
                          .data = data,
                          .bytes = sizeof data,
                          .release = meddle_when_released,
                          .arg = &m},
                 got;
    begin_meddling(&m, f);
    assert_int_equal(kolo_rendezvous_send(f->at_worker, key, &value, NULL), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive(f->at_ps, key, NULL, 30000, &got), KOLO_OK);
    kolo_value_release(&got);
    check_refused(&m);
    assert_int_equal(m.ask, KOLO_ERR_INVALID_USAGE);
}

static void a_callback_of_a_stop_that_would_wait_for_it_is_told_so(void **state)
{
    fixture_t *f = *state;
    meddler_t m;
    char *key = make_key(f->worker, PS, WORKER, "w");
    begin_meddling(&m, f);
    assert_int_equal(kolo_rendezvous_receive_call(f->at_worker, key, NULL, meddle_when_called, &m), KOLO_OK);
    assert_int_equal(kolo_server_stop(f->worker), KOLO_OK);
    assert_int_equal(atomic_load(&m.calls), 1);
    assert_int_equal(m.stop, KOLO_ERR_INVALID_USAGE);
    assert_int_equal(m.join, KOLO_ERR_INVALID_USAGE);
    assert_int_equal(m.destroy, KOLO_ERR_INVALID_USAGE);
    if (m.wait == KOLO_ERR_INVALID_USAGE) /* else the stop had ended it before, so it could be waited for */
        assert_int_equal(kolo_receive_discard(m.pending), KOLO_OK);
    else
        assert_int_equal(m.wait, KOLO_ERR_ABORTED);
}

static void who_asks_for_a_task_that_is_not_there_is_told_where(void **state)
{
    fixture_t *f = *state;
    uint64_t incarnation;
    assert_int_equal(kolo_server_incarnation(f->ps, "/job:worker/task:1", 50, &incarnation), KOLO_ERR_TIMEOUT);
    assert_non_null(strstr(kolo_error_text(), "/job:worker/task:1 (at 127."));
    assert_non_null(strstr(kolo_error_text(), ".3:7311) to tell its incarnation"));
}

/* ---- a child of fork() ---- */

static int use_in_child(fixture_t *f, const char *key, kolo_receive_t pending)
{
    kolo_rendezvous_manager_t manager;
    kolo_rendezvous_t step;
    kolo_value_t got, value = {.element = KOLO_UINT8, .ndims = 1, .dims = {0}};
    uint64_t incarnation;
    if (kolo_server_manager(f->worker, &manager) != KOLO_OK) return 1;
    const kolo_status_t all[] = {kolo_rendezvous_open(manager, 1, &step),
                                 kolo_rendezvous_send(f->at_ps, key, &value, NULL),
                                 kolo_rendezvous_receive(f->at_worker, key, NULL, 0, &got),
                                 kolo_receive_wait(pending, 0, &got),
                                 kolo_receive_discard(pending),
                                 kolo_rendezvous_abort(f->at_worker, KOLO_ERR_SYSTEM, "x"),
                                 kolo_rendezvous_manager_cleanup(manager, 1),
                                 kolo_rendezvous_manager_cleanup_all(manager),
                                 kolo_server_incarnation(f->worker, PS, 0, &incarnation),
                                 kolo_server_start(f->worker),
                                 kolo_server_join(f->worker, 0),
                                 kolo_server_stop(f->worker),
                                 kolo_server_destroy(f->worker)};
    for (size_t i = 0; i < KOLO_COUNTOF(all); i++)
        if (all[i] != KOLO_ERR_INVALID_USAGE) return 2 + (int)i;
    return 0;
}

static void a_child_of_fork_has_no_part_in_a_server(void **state)
{
    fixture_t *f = *state;
    kolo_progress_t *progress;
    kolo_receive_t pending;
    int status;
    char *key = make_key(f->worker, PS, WORKER, "w");
#ifdef __SANITIZE_THREAD__
    skip(); /* it allows no threads in the child of a process that has some */
#endif
    assert_int_equal(kolo_rendezvous_receive_begin(f->at_worker, key, NULL, &pending), KOLO_OK);
    assert_int_equal(kolo_progress_get(&progress), KOLO_OK);
    pid_t child = kolo_test_fork(progress);
    if (child == 0) _exit(use_in_child(f, key, pending));
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("the child ended with %d (signal %d)", WEXITSTATUS(status), WTERMSIG(status));
    kolo_progress_put(progress);
    kolo_value_t got;
    send_value(f->at_ps, key, 3, 3);
    assert_int_equal(kolo_receive_wait(pending, 30000, &got), KOLO_OK);
    check_value(&got, 3, 3);
}

/* ---- owners ---- */

static void a_servers_manager_is_the_servers(void **state)
{
    fixture_t *f = *state;
    kolo_rendezvous_manager_t manager;
    char *key = make_key(f->worker, PS, WORKER, "w");
    assert_int_equal(kolo_server_manager(f->worker, &manager), KOLO_OK);
    assert_int_equal(kolo_rendezvous_manager_destroy(manager), KOLO_ERR_INVALID_USAGE);
    send_value(f->at_ps, key, 3, 3);
    receive_value(f->at_worker, key, 3, 3);
}

/* A status that means something else to who waits must not be taken for it. */
static void a_sender_that_aborts_with_a_time_out_ends_the_receive(void **state)
{
    fixture_t *f = *state;
    kolo_receive_t receive;
    kolo_value_t got;
    char *key = make_key(f->worker, PS, WORKER, "w");
    assert_int_equal(kolo_rendezvous_receive_begin(f->at_worker, key, NULL, &receive), KOLO_OK);
    assert_int_equal(kolo_rendezvous_abort(f->at_ps, KOLO_ERR_TIMEOUT, "the step took too long"), KOLO_OK);
    assert_int_equal(kolo_rendezvous_receive(f->at_worker, key, NULL, 30000, &got), KOLO_ERR_TIMEOUT);
    assert_non_null(strstr(kolo_error_text(), "the step took too long"));
    assert_int_equal(kolo_receive_wait(receive, 30000, &got), KOLO_ERR_ABORTED);
    assert_non_null(strstr(kolo_error_text(), "the step took too long"));
}

/* ---- thousands, and nothing ---- */

static void count_end(void *arg, kolo_status_t status, const char *why, const kolo_transfer_args_t *sender,
                      const kolo_transfer_args_t *receiver, kolo_value_t *value)
{
    heard_t *heard = arg;
    (void)status;
    (void)why;
    (void)sender;
    (void)receiver;
    if (value) kolo_value_release(value);
    atomic_fetch_add(&heard->calls, 1);
}

static void thousands_of_receives_end_once_with_their_step(void **state)
{
    const int many = buffered ? 1000 : 10000; /* with buffers one message at a time is under way */
    fixture_t *f = *state;
    heard_t heard = {0};
    kolo_rendezvous_manager_t manager;
    char *key = make_key(f->worker, PS, WORKER, "w"), *probe = make_key(f->worker, PS, WORKER, "probe");
    kolo_rendezvous_t step = open_step(f->worker, 9);
    assert_int_equal(kolo_server_manager(f->worker, &manager), KOLO_OK);
    for (int i = 0; i < many; i++)
        assert_int_equal(kolo_rendezvous_receive_call(step, key, NULL, count_end, &heard), KOLO_OK);
    assert_int_equal(kolo_rendezvous_manager_cleanup(manager, 9), KOLO_OK);
    wait_calls(&heard, many);
    kolo_rendezvous_close(step);
    send_value(f->at_ps, probe, 1, 1); /* the channel goes on, and all of them were given up before it */
    receive_value(f->at_worker, probe, 1, 1);
    assert_int_equal(atomic_load(&heard.calls), many);
}

static void values_without_bytes_come_as_they_are(void **state)
{
    static const int64_t dims[][3] = {{0, 0, 0}, {0, 5, 7}, {3, 0, 1}};
    fixture_t *f = *state;
    char *key = make_key(f->worker, PS, WORKER, "w");
    unsigned char room[8] = "canary!";
    kolo_transfer_args_t into = {.into = room, .into_bytes = 1};
    for (int i = 0; i < 3 * (int)KOLO_COUNTOF(dims); i++) {
        const int64_t *d = dims[i / 3];
        kolo_value_t got,
            value = {.element = i % 3 ? KOLO_FLOAT64 : KOLO_ELEMENT_STRING, .ndims = 3, .dead = i % 3 == 2};
        memcpy(value.dims, d, 3 * sizeof *d);
        assert_int_equal(kolo_rendezvous_send(f->at_ps, key, &value, NULL), KOLO_OK);
        assert_int_equal(kolo_rendezvous_receive(f->at_worker, key, i % 2 ? &into : NULL, 30000, &got), KOLO_OK);
        assert_int_equal(got.bytes, 0);
        assert_int_equal(got.ndims, 3);
        assert_memory_equal(got.dims, d, 3 * sizeof *d);
        assert_int_equal(got.dead, value.dead);
        assert_int_equal(got.element, value.element);
        kolo_value_release(&got);
    }
    assert_string_equal((char *)room, "canary!");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

static int run(const char *name)
{
    const struct CMUnitTest tests[] = {
        TEST(a_child_of_fork_has_no_part_in_a_server),
        TEST(a_callback_that_would_wait_for_itself_is_told_so),
        TEST(a_release_that_would_wait_for_itself_is_told_so),
        TEST(a_callback_of_a_stop_that_would_wait_for_it_is_told_so),
        TEST(a_servers_manager_is_the_servers),
        TEST(who_asks_for_a_task_that_is_not_there_is_told_where),
        TEST(a_sender_that_aborts_with_a_time_out_ends_the_receive),
        TEST(thousands_of_receives_end_once_with_their_step),
        TEST(values_without_bytes_come_as_they_are),
    };
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    return run_protocols(argc > 1 ? argv[1] : NULL, run);
}
