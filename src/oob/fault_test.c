/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that abort, close or die while others wait for them: every wait ends soon, and the message names the rank
 * that was at fault, also where another one passed it on.
 */
#include "oob/frame.h"
#include "oob/oob_test_util.h"
#include "progress/test_fork.h"
#include "progress/test_running.h"

#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* 100 ms is the promise; here it is only told from waiting until the limit of 20 s, whatever else the machine
 * does. */
#define ABORT_WITHIN_MS 5000u

static _Atomic uint32_t abort_flag;
static _Atomic int inside, done;

static void set_abort_when_inside(int count)
{
    for (int i = 0; i < 2000 && atomic_load(&inside) < count; i++) poll(NULL, 0, 5);
    poll(NULL, 0, 60); /* let it reach its wait */
}

/* ---- abort in every kind of wait ---- */

typedef kolo_status_t (*blocking_call_t)(kolo_oob_t *oob);

static kolo_status_t call_recv(kolo_oob_t *oob)
{
    char byte;
    return kolo_oob_recv(oob, 1, 1, &byte, 1, 0);
}

static kolo_status_t call_gather(kolo_oob_t *oob)
{
    uint64_t table[2] = {0};
    return kolo_oob_all_gather(oob, table, 8);
}

static kolo_status_t call_barrier(kolo_oob_t *oob)
{
    return kolo_oob_barrier(oob);
}

static kolo_status_t call_broadcast(kolo_oob_t *oob)
{
    char byte;
    return kolo_oob_broadcast(oob, 1, &byte, 1);
}

static kolo_status_t call_accept(kolo_oob_t *oob)
{
    kolo_socket_t socket;
    return kolo_oob_accept(oob, 1, 1, 0, &socket);
}

static kolo_status_t call_send(kolo_oob_t *oob)
{
    static uint8_t data[1 << 20];
    for (uint64_t i = 0; i < 1000; i++) KOLO_TRY(kolo_oob_send(oob, 1, i, data, sizeof(data)));
    return KOLO_OK;
}

static blocking_call_t blocking_call;
static uint64_t set_ns;

static void wait_for_nothing(test_rank_t *me)
{
    atomic_fetch_add(&inside, 1);
    if (me->rank == 0) {
        kolo_status_t status = blocking_call(me->oob);
        uint64_t took_ms = (kolo_now_ns() - set_ns) / KOLO_NS_PER_MS;
        test_equal(status, KOLO_ERR_ABORTED);
        if (!IN_TIME(took_ms <= ABORT_WITHIN_MS)) {
            fprintf(stderr, "the abort took %llu ms\n", (unsigned long long)took_ms);
            abort();
        }
    }
    if (me->rank == 0) atomic_store(&done, 1);
    while (atomic_load(&done) == 0) poll(NULL, 0, 5);
}

static void abort_one(blocking_call_t call, bool close_it)
{
    kolo_unique_id_t id;
    test_rank_t ranks[2];
    atomic_store(&abort_flag, 0);
    atomic_store(&inside, 0);
    atomic_store(&done, 0);
    blocking_call = call;
    test_ok(kolo_id_create(&id));
    for (int r = 0; r < 2; r++) {
        ranks[r] = (test_rank_t){.rank = r,
                                 .nranks = 2,
                                 .nids = 1,
                                 .ids = &id,
                                 .timeout_ms = 20000,
                                 .body = wait_for_nothing,
                                 .abort = r == 0 && !close_it ? &abort_flag : NULL};
    }
    test_start(&ranks[1]);
    test_start(&ranks[0]);
    set_abort_when_inside(2);
    set_ns = kolo_now_ns();
    if (close_it) kolo_oob_close(ranks[0].oob);
    atomic_store(&abort_flag, 1);
    for (int r = 0; r < 2; r++) pthread_join(ranks[r].thread, NULL);
}

static void the_abort_flag_ends_every_wait(void **state)
{
    static const blocking_call_t calls[] = {call_recv,      call_gather, call_barrier,
                                            call_broadcast, call_accept, call_send};
    (void)state;
    for (size_t i = 0; i < KOLO_COUNTOF(calls); i++) abort_one(calls[i], false);
}

static void closing_ends_a_wait(void **state)
{
    (void)state;
    abort_one(call_recv, true);
    abort_one(call_gather, true);
}

/* Ranks 0 and 1 of 3: the first waits for the root's answer, the others exchange addresses already. */
static void the_abort_flag_ends_every_step_of_joining(void **state)
{
    kolo_unique_id_t id;
    (void)state;
    for (int present = 1; present < 6; present += 2) {
        test_rank_t ranks[6];
        atomic_store(&abort_flag, 0);
        test_ok(kolo_id_create(&id));
        for (int r = 0; r < present; r++) {
            ranks[r] = (test_rank_t){
                .rank = r, .nranks = 6, .nids = 1, .ids = &id, .timeout_ms = 20000, .abort = &abort_flag};
            test_start(&ranks[r]);
        }
        poll(NULL, 0, 100);
        uint64_t start = kolo_now_ns();
        atomic_store(&abort_flag, 1);
        for (int r = 0; r < present; r++) pthread_join(ranks[r].thread, NULL);
        test_true(IN_TIME((kolo_now_ns() - start) / KOLO_NS_PER_MS <= ABORT_WITHIN_MS));
        for (int r = 0; r < present; r++)
            test_true(ranks[r].status == KOLO_ERR_ABORTED || ranks[r].status == KOLO_ERR_REMOTE);
        kolo_root_stop_all();
    }
}

/* ---- death ---- */

enum { RANKS = 5, VICTIM = 3 };

/* Whatever it waits for, it must hear of VICTIM. */
static void die_process(int id_pipe, int rank, int how)
{
    kolo_unique_id_t id;
    kolo_oob_config_t config = {rank, RANKS, 1, &id, 20000, NULL, "test"};
    kolo_oob_t *oob;
    uint64_t table[RANKS] = {0};
    if (read(id_pipe, &id, sizeof(id)) != sizeof(id)) _exit(9);
    if (kolo_oob_open(&config, &oob) != KOLO_OK) _exit(10);
    /* The victim may be through while others are not: then those hear of it here. */
    kolo_status_t status = kolo_oob_barrier(oob);
    if (rank == VICTIM) {
        if (how == 0) kill(getpid(), SIGKILL);
        if (how == 1) _exit(0);
    }
    if (status == KOLO_OK) status = kolo_oob_all_gather(oob, table, sizeof(table[0]));
    char expected[32];
    snprintf(expected, sizeof(expected), "rank %d", VICTIM);
    bool named = strstr(kolo_error_text(), expected) != NULL;
    if (!named) fprintf(stderr, "rank %d: %s\n", rank, kolo_error_text());
    kolo_oob_fini(oob);
    _exit(status == KOLO_ERR_REMOTE && named ? 0 : 12);
}

static void a_rank_that_dies_is_named_by_all_survivors(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* TSan has no threads after a fork of a process that has some */
#endif
    for (int how = 0; how < 2; how++) {
        kolo_unique_id_t id;
        pid_t children[RANKS];
        int result, id_pipe[2];
        test_equal(pipe(id_pipe), 0);
        for (int r = 0; r < RANKS; r++) /* before the root's thread allocates: progress/test_fork.h says why */
            if ((children[r] = fork()) == 0) die_process(id_pipe[0], r, how);
        test_ok(kolo_id_create(&id));
        for (int r = 0; r < RANKS; r++) test_equal(write(id_pipe[1], &id, sizeof(id)), sizeof(id));
        uint64_t start = kolo_now_ns();
        for (int r = 0; r < RANKS; r++) {
            test_equal(waitpid(children[r], &result, 0), children[r]);
            if (r == VICTIM) continue;
            test_true(WIFEXITED(result));
            test_equal(WEXITSTATUS(result), 0);
        }
        test_true(IN_TIME(kolo_now_ns() - start < 10 * KOLO_NS_PER_S));
        close(id_pipe[0]);
        close(id_pipe[1]);
        kolo_root_stop_all();
    }
}

static void leave_early(test_rank_t *me)
{
    uint64_t word = 1;
    if (me->rank == 1) {
        test_ok(kolo_oob_send(me->oob, 0, 1, &word, sizeof(word)));
        return; /* leaves in order, while the others go on */
    }
    if (me->rank == 0) {
        poll(NULL, 0, 50);
        test_ok(kolo_oob_recv(me->oob, 1, 1, &word, sizeof(word), 0)); /* what it said before counts */
        test_equal(kolo_oob_recv(me->oob, 1, 2, &word, sizeof(word), 0), KOLO_ERR_REMOTE);
        test_says(kolo_error_text(), "rank 1");
    }
    if (me->rank == 2) {
        test_ok(kolo_oob_recv(me->oob, 3, 3, &word, sizeof(word), 0));
        atomic_store(&done, 1);
    }
    /* A call of rank 0 failed: when it leaves, it tells the others that the job is broken. */
    while (me->rank == 0 && atomic_load(&done) == 0) poll(NULL, 0, 5);
    if (me->rank == 3) {
        poll(NULL, 0, 100);
        test_ok(kolo_oob_send(me->oob, 2, 3, &word, sizeof(word)));
    }
}

static void an_orderly_leave_disturbs_only_who_needs_it(void **state)
{
    (void)state;
    atomic_store(&done, 0);
    test_run(4, leave_early);
}

static void a_child_of_fork_can_let_go(void **state)
{
    kolo_unique_id_t id;
    kolo_oob_t *oob;
    int result;
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* as above */
#endif
    test_ok(kolo_id_create(&id));
    kolo_oob_config_t config = {0, 1, 1, &id, 5000, NULL, "test"};
    test_ok(kolo_oob_open(&config, &oob));
    kolo_progress_t *progress;
    test_ok(kolo_progress_get(&progress));
    pid_t child = kolo_test_fork(progress);
    if (child == 0) {
        kolo_oob_fini(oob); /* the progress thread's thread is not here */
        kolo_oob_t *own;
        kolo_unique_id_t own_id;
        if (kolo_id_create(&own_id) != KOLO_OK) _exit(1);
        config.ids = &own_id;
        if (kolo_oob_open(&config, &own) != KOLO_OK) _exit(2);
        kolo_oob_fini(own);
        kolo_root_stop_all();
        _exit(0);
    }
    test_equal(waitpid(child, &result, 0), child);
    test_true(WIFEXITED(result));
    test_equal(WEXITSTATUS(result), 0);
    test_ok(kolo_oob_barrier(oob)); /* the parent is as it was */
    kolo_progress_put(progress);
    kolo_oob_fini(oob);
}

/* ---- a farewell to one that was called ---- */

static int called_fd;  /* the side that is called, which has let the caller in and says so too late */
static atomic_int met; /* ranks that are through the barrier: what comes after does not disturb them */

static void call_and_leave(test_rank_t *me)
{
    uint8_t greeting[KOLO_GREETING_BYTES], hello[KOLO_HELLO_BYTES];
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof(sa);
    test_ok(kolo_oob_barrier(me->oob));
    atomic_fetch_add(&met, 1);
    if (me->rank != 0) return;
    while (atomic_load(&met) < 6) sched_yield();
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    test_equal(bind(listener, (struct sockaddr *)&sa, bytes) | listen(listener, 1), 0);
    test_equal(getsockname(listener, (struct sockaddr *)&sa, &bytes), 0);
    pthread_mutex_lock(&me->oob->lock);
    kolo_address_from_sockaddr(&me->oob->table[3], (const struct sockaddr *)&sa);
    kolo_peer_t *peer = kolo_peer_get(me->oob, 3);
    test_true(peer != NULL && peer->live == 0 && !peer->dialling);
    test_ok(kolo_peer_dial(me->oob, peer, kolo_deadline_ms(20000)));
    pthread_mutex_unlock(&me->oob->lock);
    called_fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    close(listener);
    test_ok(kolo_auth_greeting(0, greeting));
    test_equal(send(called_fd, greeting, sizeof(greeting), MSG_NOSIGNAL), sizeof(greeting));
    test_equal(recv(called_fd, hello, sizeof(hello), MSG_WAITALL), sizeof(hello));
    kolo_oob_give_reason(me->oob, "rank 5 has died");
    pthread_mutex_lock(&me->oob->lock);
    me->oob->failed = true;
    pthread_mutex_unlock(&me->oob->lock);
}

static void who_leaves_in_the_middle_of_a_call_says_so_and_why(void **state)
{
    (void)state;
    uint8_t bytes[KOLO_HEAD_BYTES], more;
    char words[64] = "";
    kolo_head_t head;
    atomic_store(&met, 0);
    test_run(6, call_and_leave);
    assert_int_equal(recv(called_fd, bytes, sizeof(bytes), MSG_WAITALL), sizeof(bytes));
    assert_null(kolo_oob_head_decode(bytes, sizeof(bytes), &head));
    assert_int_equal(head.kind, KOLO_FRAME_WORDS);
    assert_in_range(head.bytes, 1, sizeof(words) - 1);
    assert_int_equal(recv(called_fd, words, head.bytes, MSG_WAITALL), head.bytes);
    assert_string_equal(words, "rank 5 has died");
    assert_int_equal(recv(called_fd, bytes, sizeof(bytes), MSG_WAITALL), sizeof(bytes));
    assert_null(kolo_oob_head_decode(bytes, sizeof(bytes), &head));
    assert_int_equal(head.kind, KOLO_FRAME_FAREWELL);
    assert_true(recv(called_fd, &more, 1, 0) <= 0);
    close(called_fd);
}

/* ---- a rank's thread that has nothing to wait for on a connection, while its handler waits for the lock ---- */

/* A message whose bytes had no place gets one: what was put aside is counted no more. */
static void resume(kolo_conn_t *conn, kolo_inbound_t in)
{
    conn->frame = (kolo_head_t){KOLO_FRAME_MESSAGE, 4, 5};
    conn->stalled = true;
    conn->stash = calloc(1, 4);
    conn->stash_bytes = 4;
    kolo_inbound_post(conn->oob, &in);
    test_true(in.done && !conn->stalled && conn->stash_bytes == 0);
    kolo_inbound_withdraw(conn->oob, &in);
}

static void post_while_the_handler_waits(test_rank_t *me)
{
    test_ok(kolo_oob_barrier(me->oob));
    if (me->rank == 1) {
        while (atomic_load(&done) == 0) poll(NULL, 0, 5);
        return;
    }
    kolo_oob_t *oob = me->oob;
    static char body[4];
    static uint8_t behind[4 + KOLO_HEAD_BYTES]; /* the message's bytes, and the head of one that has no place */
    const kolo_head_t next = {KOLO_FRAME_MESSAGE, 100, 6};
    kolo_inbound_t in = {.kind = KOLO_FRAME_MESSAGE, .peer = 1, .tag = 5, .bytes = 4};
    in.part[0] = (uint8_t *)body;
    in.part_bytes[0] = 4;
    kolo_oob_head_encode(&next, behind + 4);
    pthread_mutex_lock(&oob->lock);
    kolo_conn_t *conn = kolo_peer_out(kolo_peer_get(oob, 1));
    resume(conn, in);
    size_t queued = conn->peer->queued_bytes;
    conn->peer->queued_bytes = (size_t)kolo_oob_values.queue_bytes;
    conn->frame = (kolo_head_t){KOLO_FRAME_MESSAGE, 4, 5};
    conn->stalled = true;
    conn->stash = malloc(sizeof(behind));
    memcpy(conn->stash, behind, sizeof(behind));
    conn->stash_bytes = sizeof(behind);
    conn->events = EPOLLOUT; /* as after a send that was given up: the socket has room, so its handler comes */
    test_ok(kolo_watch_mod(conn->watch, EPOLLOUT));
    kolo_test_await_handler(oob->progress, conn->watch);
    alarm(30); /* the two waited for each other */
    kolo_inbound_post(oob, &in);
    alarm(0);
    test_true(in.done && conn->stalled);
    kolo_inbound_withdraw(oob, &in);
    conn->peer->queued_bytes = queued;
    pthread_mutex_unlock(&oob->lock);
    atomic_store(&done, 1);
}

static void a_receive_does_not_wait_for_the_handler_of_its_connection(void **state)
{
    (void)state;
    atomic_store(&done, 0);
    test_run(2, post_while_the_handler_waits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_abort_flag_ends_every_wait, test_before, test_after),
        cmocka_unit_test_setup_teardown(closing_ends_a_wait, test_before, test_after),
        cmocka_unit_test_setup_teardown(the_abort_flag_ends_every_step_of_joining, test_before, test_after),
        cmocka_unit_test_setup_teardown(a_rank_that_dies_is_named_by_all_survivors, test_before, test_after),
        cmocka_unit_test_setup_teardown(an_orderly_leave_disturbs_only_who_needs_it, test_before, test_after),
        cmocka_unit_test_setup_teardown(who_leaves_in_the_middle_of_a_call_says_so_and_why, test_before,
                                        test_after),
        cmocka_unit_test_setup_teardown(a_child_of_fork_can_let_go, test_before, test_after),
        cmocka_unit_test_setup_teardown(a_receive_does_not_wait_for_the_handler_of_its_connection, test_before,
                                        test_after),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
