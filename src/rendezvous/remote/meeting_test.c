/* SPDX-License-Identifier: Apache-2.0
 *
 * Tasks that meet at KOLO_COMM_ID, each a process: they start in any order, find each other without addresses, and
 * come back by another door after they were killed, the keeper of the book as well.
 */
#include "base/test.h"
#include "rendezvous/remote/channel.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CLUSTER "ps=2;worker=2"
#define PS0     "/job:ps/task:0"
#define PS1     "/job:ps/task:1"
#define WORKER0 "/job:worker/task:0"
#define WORKER1 "/job:worker/task:1"
#define LIMIT   30000

static const char *program;
static char place[64];
static const char secret[] = "a secret of these tests alone";

/* ---- a task: a process that serves until its input ends ---- */

static kolo_server_t make_server(const char *task, int connect_ms)
{
    kolo_server_config_t config = KOLO_SERVER_CONFIG_INITIALIZER;
    kolo_server_t server = NULL;
    config.cluster = CLUSTER;
    config.task = task;
    config.secret = secret;
    config.secret_bytes = sizeof secret;
    config.connect_timeout_ms = connect_ms;
    if (kolo_server_create(&server, &config) != KOLO_OK) fail_msg("%s", kolo_error_text());
    return server;
}

static kolo_status_t key_of(kolo_server_t server, const char *from, const char *to, int limit_ms, char *text)
{
    kolo_tensor_key_t key = {.edge_name = "number"};
    kolo_status_t status = kolo_server_incarnation(server, from, limit_ms, &key.src_incarnation);
    snprintf(key.src_device, sizeof key.src_device, "%s/device:cpu:0", from);
    snprintf(key.dst_device, sizeof key.dst_device, "%s/device:cpu:0", to);
    return status == KOLO_OK ? kolo_tensor_key_make(&key, text, KOLO_TENSOR_KEY_MAX + 1) : status;
}

static kolo_status_t send_number(kolo_server_t server, const char *from, const char *to, int number)
{
    char key[KOLO_TENSOR_KEY_MAX + 1];
    kolo_rendezvous_manager_t manager;
    kolo_rendezvous_t step;
    KOLO_TRY(key_of(server, from, to, LIMIT, key));
    KOLO_TRY(kolo_server_manager(server, &manager));
    KOLO_TRY(kolo_rendezvous_open(manager, 1, &step));
    kolo_value_t value = {.element = KOLO_INT32, .data = malloc(4), .bytes = 4, .release = free};
    value.arg = value.data;
    memcpy(value.data, &number, 4);
    kolo_status_t status = kolo_rendezvous_send(step, key, &value, NULL);
    if (status != KOLO_OK) free(value.data);
    kolo_rendezvous_close(step);
    return status;
}

/* What a process of this program does: says that it serves, and ends when it is told to. */
static int be_task(const char *task)
{
    static const char *const others[] = {PS0, PS1, WORKER0, WORKER1};
    char byte;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    kolo_server_t server = make_server(task, LIMIT);
    kolo_status_t status = kolo_server_start(server);
    for (size_t i = 0; i < KOLO_COUNTOF(others) && status == KOLO_OK; i++)
        if (strcmp(others[i], task) != 0) status = send_number(server, task, others[i], (int)getpid());
    if (status != KOLO_OK) fprintf(stderr, "%s: %s\n", task, kolo_error_text());
    ssize_t n = read(STDIN_FILENO, &byte, 1);
    kolo_server_destroy(server);
    return n == 0 && status == KOLO_OK ? 0 : 1;
}

typedef struct {
    pid_t pid;
    int fd;
} process_t;

static process_t start(const char *task)
{
    process_t p;
    int fds[2];
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    p.pid = fork();
    if (p.pid == 0) {
        dup2(fds[0], STDIN_FILENO);
        execl(program, program, task, (char *)NULL);
        _exit(127);
    }
    close(fds[0]);
    p.fd = fds[1];
    assert_true(p.pid > 0);
    return p;
}

static void end(process_t *p, bool killed)
{
    int status;
    if (killed) kill(p->pid, SIGKILL);
    close(p->fd);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    if (!killed) assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* The process' number, from the task itself, in its life after `old`. */
static void expect_number(kolo_server_t server, const char *from, const char *to, pid_t pid)
{
    char key[KOLO_TENSOR_KEY_MAX + 1];
    kolo_rendezvous_manager_t manager;
    kolo_rendezvous_t step;
    kolo_value_t value;
    int number = 0;
    uint64_t deadline = kolo_deadline_ms(LIMIT);
    assert_int_equal(kolo_server_manager(server, &manager), KOLO_OK);
    assert_int_equal(kolo_rendezvous_open(manager, 1, &step), KOLO_OK);
    while (number != (int)pid) { /* a task that was killed may be known for a moment longer */
        if (kolo_now_ns() > deadline) fail_msg("%s was not found: %s", from, kolo_error_text());
        if (key_of(server, from, to, LIMIT, key) != KOLO_OK) continue;
        if (kolo_rendezvous_receive(step, key, NULL, LIMIT, &value) != KOLO_OK) continue;
        memcpy(&number, value.data, 4);
        kolo_value_release(&value);
    }
    kolo_rendezvous_close(step);
}

/* ---- tests ---- */

static void tasks_meet_in_any_order(void **state)
{
    (void)state;
    kolo_server_t server = make_server(WORKER0, LIMIT);
    assert_int_equal(kolo_server_start(server), KOLO_OK); /* nobody is there */
    process_t ps1 = start(PS1), worker1 = start(WORKER1), ps0 = start(PS0);
    expect_number(server, PS1, WORKER0, ps1.pid);
    expect_number(server, WORKER1, WORKER0, worker1.pid);
    expect_number(server, PS0, WORKER0, ps0.pid);
    end(&ps1, false);
    end(&worker1, false);
    end(&ps0, false);
    kolo_server_destroy(server);
}

static void a_task_comes_back_by_another_door(void **state)
{
    (void)state;
    process_t ps0 = start(PS0), ps1 = start(PS1);
    kolo_server_t server = make_server(WORKER0, LIMIT);
    assert_int_equal(kolo_server_start(server), KOLO_OK);
    for (int life = 0; life < 3; life++) {
        expect_number(server, PS1, WORKER0, ps1.pid);
        end(&ps1, true);
        ps1 = start(PS1);
    }
    expect_number(server, PS1, WORKER0, ps1.pid);
    end(&ps1, false);
    end(&ps0, false);
    kolo_server_destroy(server);
}

/* The book is written anew by those who are in it. */
static void the_keeper_of_the_book_may_be_started_again(void **state)
{
    (void)state;
    process_t ps0 = start(PS0), ps1 = start(PS1);
    kolo_server_t server = make_server(WORKER0, LIMIT), late = make_server(WORKER1, LIMIT);
    assert_int_equal(kolo_server_start(server), KOLO_OK);
    expect_number(server, PS1, WORKER0, ps1.pid);
    end(&ps0, true);
    ps0 = start(PS0);
    assert_int_equal(kolo_server_start(late), KOLO_OK);
    expect_number(late, PS1, WORKER1, ps1.pid);
    expect_number(late, PS0, WORKER1, ps0.pid);
    expect_number(server, PS0, WORKER0, ps0.pid);
    end(&ps1, false);
    end(&ps0, false);
    kolo_server_destroy(late);
    kolo_server_destroy(server);
}

/* Whom the keeper cannot tell of a door loses his channel, and asks again; the task whose door it is does not pay.
 */
static void who_could_not_be_told_of_a_door_asks_again(void **state)
{
    uint64_t incarnation;
    (void)state;
    setenv("KOLO_FAIL_POINT", "rendezvous.meeting.tell:1:error", 1);
    process_t ps0 = start(PS0);
    unsetenv("KOLO_FAIL_POINT");
    kolo_server_t server = make_server(WORKER0, LIMIT);
    assert_int_equal(kolo_server_start(server), KOLO_OK);
    expect_number(server, PS0, WORKER0, ps0.pid);
    assert_int_equal(kolo_server_incarnation(server, PS1, 200, &incarnation), KOLO_ERR_TIMEOUT); /* it has asked */
    process_t ps1 = start(PS1);
    uint64_t late = kolo_deadline_ms(LIMIT / 2); /* who is never told looks for it until his limit */
    expect_number(server, PS1, WORKER0, ps1.pid);
    assert_true(kolo_now_ns() < late);
    end(&ps1, false);
    end(&ps0, false);
    kolo_server_destroy(server);
}

static void who_does_not_come_in_time_is_an_error_with_his_name(void **state)
{
    uint64_t incarnation;
    (void)state;
    kolo_server_t server = make_server(WORKER0, 300), keeper = make_server(PS0, 300);
    assert_int_equal(kolo_server_start(server), KOLO_OK);
    assert_int_equal(kolo_server_incarnation(server, PS1, LIMIT, &incarnation), KOLO_ERR_TIMEOUT);
    assert_non_null(strstr(kolo_error_text(), PS1));
    assert_non_null(strstr(kolo_error_text(), "KOLO_COMM_ID"));
    assert_int_equal(kolo_server_start(keeper), KOLO_OK);
    assert_int_equal(kolo_server_incarnation(server, PS0, LIMIT, &incarnation), KOLO_OK);
    assert_int_equal(kolo_server_incarnation(server, PS1, LIMIT, &incarnation), KOLO_ERR_TIMEOUT);
    assert_non_null(strstr(kolo_error_text(), "has not come"));
    assert_int_equal(kolo_server_incarnation(keeper, PS1, LIMIT, &incarnation), KOLO_ERR_TIMEOUT);
    kolo_server_destroy(server);
    kolo_server_destroy(keeper);
}

static void a_cluster_has_addresses_or_numbers(void **state)
{
    static const struct {
        const char *cluster, *words;
    } bad[] = {{"ps=2;worker=127.0.0.1:7000", "others numbers"},
               {"ps=127.0.0.1:7000;worker=2", "others numbers"},
               {"ps=99999", "more than"},
               {"ps=0", "cluster: "}};
    kolo_server_config_t config = KOLO_SERVER_CONFIG_INITIALIZER;
    kolo_server_t server;
    (void)state;
    config.task = PS0;
    config.secret = secret;
    config.secret_bytes = sizeof secret;
    for (size_t i = 0; i < KOLO_COUNTOF(bad); i++) {
        config.cluster = bad[i].cluster;
        assert_int_not_equal(kolo_server_create(&server, &config), KOLO_OK);
        assert_non_null(strstr(kolo_error_text(), bad[i].words));
    }
}

#ifdef KOLO_HAVE_SODIUM
/* What whoever calls a task would try for each word of a list, if it came cheap. */
static void a_password_costs_more_than_a_hash_to_guess(void **state)
{
    static const char *const secrets[] = {
        "correct horse battery", /* and 32 bytes of /dev/urandom in hexadecimal: */
        "8d1f0f2cb2a96e0d5e3b7c4a9f86d1e2038495a6b7c8d9eaf1b2c3d4e5f60718"};
    static const kolo_key_t zero;
    (void)state;
    for (int i = 0; i < 2; i++) {
        kolo_server_config_t config = KOLO_SERVER_CONFIG_INITIALIZER;
        kolo_key_t key, again, hash;
        config.secret = secrets[i];
        config.secret_bytes = strlen(secrets[i]);
        assert_int_equal(kolo_adapter_read_secret(&config, &key), KOLO_OK);
        assert_int_equal(kolo_adapter_read_secret(&config, &again), KOLO_OK);
        assert_memory_equal(&key, &again, sizeof key);
        kolo_auth_derive(&zero, "rendezvous", config.secret, config.secret_bytes, &hash);
        assert_int_equal(memcmp(&key, &hash, sizeof key) == 0, i == 1);
    }
}
#endif

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tasks_meet_in_any_order),
        cmocka_unit_test(a_task_comes_back_by_another_door),
        cmocka_unit_test(the_keeper_of_the_book_may_be_started_again),
        cmocka_unit_test(who_could_not_be_told_of_a_door_asks_again),
        cmocka_unit_test(who_does_not_come_in_time_is_an_error_with_his_name),
        cmocka_unit_test(a_cluster_has_addresses_or_numbers),
#ifdef KOLO_HAVE_SODIUM
        cmocka_unit_test(a_password_costs_more_than_a_hash_to_guess),
#endif
    };
    program = argv[0];
    if (argc > 1) return be_task(argv[1]);
    int pid = (int)getpid();
    snprintf(place, sizeof place, "127.%d.%d.7:7315", 1 + pid % 200, pid / 200 % 250);
    setenv("KOLO_COMM_ID", place, 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
