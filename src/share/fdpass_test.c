/* SPDX-License-Identifier: Apache-2.0
 *
 * Descriptor passing between two processes: the child serves, the parent asks, strangers knock.
 */
#include "base/clock.h"
#include "base/file/fds.h"
#include "base/params.h"
#include "base/test_time.h"
#include "progress/test_fork.h"
#include "share/fdpass_frame.h"

#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const uint8_t name_often[16] = "often", name_once[16] = "once", name_missing[16] = "missing";
static const uint8_t name_late[16] = "late";
static const uint8_t key[32] = "the key of the job", other_key[32] = "the key of another job";

typedef struct {
    uint8_t address[16];
    pid_t pid;
    int command, answer; /* pipes to and from the child */
} service_t;

static int memfd_with(const char *text)
{
    int fd = memfd_create("fdpass-test", MFD_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) _exit(3);
    return fd;
}

/* Somebody has asked for what is not there. */
static bool await_refusal(void)
{
    kolo_fdpass_counters_t counters;
    for (int i = 0; i < 10000; i++, poll(NULL, 0, 1)) {
        kolo_fdpass_get_counters(&counters);
        if (counters.refused_name > 0) return true;
    }
    return false;
}

/* No descriptor is free any more, or (false) again. */
static void use_up_descriptors(bool all)
{
    static struct rlimit before;
    if (all && getrlimit(RLIMIT_NOFILE, &before) != 0) _exit(11);
    struct rlimit limit = {all ? 3 : before.rlim_cur, before.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(12);
}

/* The child: 'l' makes the late offer, 'c' answers with its counters, 'u' uses up its descriptors and 'f' frees
 * them, end of file ends it. */
static void serve(int command, int answer)
{
    uint8_t address[16];
    char c;
    int fds[2] = {memfd_with("first"), memfd_with("second")};
    if (kolo_fdpass_start() != KOLO_OK || kolo_fdpass_address(address) != KOLO_OK) _exit(4);
    if (kolo_fdpass_offer(name_often, key, fds, 2, 0) != KOLO_OK) _exit(5);
    if (kolo_fdpass_offer(name_once, key, fds, 1, 1) != KOLO_OK) _exit(6);
    if (write(answer, address, sizeof address) < 0) _exit(7);
    while (read(command, &c, 1) == 1) {
        kolo_fdpass_counters_t counters;
        if (c == 'l') {
            if (!await_refusal()) _exit(10);
            if (kolo_fdpass_offer(name_late, key, fds, 1, 1) != KOLO_OK) _exit(8);
        }
        if (c == 'u' || c == 'f') use_up_descriptors(c == 'u');
        kolo_fdpass_get_counters(&counters);
        if (c == 'c' && write(answer, &counters, sizeof counters) < 0) _exit(9);
    }
    kolo_fdpass_withdraw(name_often);
    kolo_fdpass_withdraw(name_late);
    kolo_fdpass_stop();
    _exit(0);
}

static int start_service(void **state)
{
    static service_t service;
    int down[2], up[2];
    if (pipe(down) || pipe(up)) return -1;
    fflush(NULL);
    service.pid = fork();
    if (service.pid == 0) {
        kolo_fd_close(down[1]);
        kolo_fd_close(up[0]);
        serve(down[0], up[1]);
    }
    kolo_fd_close(down[0]);
    kolo_fd_close(up[1]);
    service.command = down[1];
    service.answer = up[0];
    *state = &service;
    return read(up[0], service.address, 16) == 16 ? 0 : -1;
}

static int stop_service(void **state)
{
    service_t *service = (service_t *)*state;
    int status;
    kolo_fd_close(service->command);
    kolo_fd_close(service->answer);
    if (waitpid(service->pid, &status, 0) != service->pid) return -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
}

static kolo_fdpass_counters_t counters_of(service_t *service)
{
    kolo_fdpass_counters_t counters;
    assert_int_equal(write(service->command, "c", 1), 1);
    assert_int_equal(read(service->answer, &counters, sizeof counters), sizeof counters);
    return counters;
}

static kolo_fdpass_call_t caller(const service_t *service, int64_t limit_ms)
{
    return (kolo_fdpass_call_t){.address = service->address,
                                .key = key,
                                .who = "rank 5",
                                .deadline_ns = kolo_deadline_ms(limit_ms),
                                .ranks_here = 1};
}

static void assert_text(int fd, const char *text)
{
    char buf[16] = {0};
    assert_true(pread(fd, buf, sizeof buf - 1, 0) >= 0);
    assert_string_equal(buf, text);
    kolo_fd_close(fd);
}

static void descriptors_arrive(void **state)
{
    service_t *service = (service_t *)*state;
    kolo_fdpass_call_t call = caller(service, 3000);
    kolo_fdpass_peer_t peer;
    int fds[2];
    assert_int_equal(kolo_fdpass_fetch(&call, name_often, KOLO_FDPASS_MAY_COME, fds, 2, &peer), KOLO_OK);
    assert_text(fds[0], "first");
    assert_text(fds[1], "second");
    assert_int_equal(peer.pid, service->pid);
    assert_true(peer.alive_fd >= 0);
    kolo_fd_close(peer.alive_fd);
    /* an offer may end by itself */
    assert_int_equal(kolo_fdpass_fetch(&call, name_once, KOLO_FDPASS_MAY_COME, fds, 1, NULL), KOLO_OK);
    assert_text(fds[0], "first");
    call = caller(service, 50);
    assert_int_equal(kolo_fdpass_fetch(&call, name_once, KOLO_FDPASS_MAY_COME, fds, 1, NULL), KOLO_ERR_TIMEOUT);
    assert_non_null(strstr(kolo_error_text(), "rank 5"));
    call = caller(service, 3000);
    assert_int_equal(kolo_fdpass_fetch(&call, name_once, KOLO_FDPASS_MUST_BE_THERE, fds, 1, NULL), KOLO_ERR_REMOTE);
    assert_int_equal(counters_of(service).offers, 1);
}

/* There is room for the socket to the server, and then none for what it passes. */
static void a_full_table_of_descriptors_is_named(void **state)
{
    service_t *service = (service_t *)*state;
    kolo_fdpass_call_t call = caller(service, 3000);
    struct rlimit limit, small;
    int fds[2], next = dup(0);
    kolo_fd_close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    small = (struct rlimit){(rlim_t)next + 1, limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &small), 0);
    kolo_status_t status = kolo_fdpass_fetch(&call, name_often, KOLO_FDPASS_MAY_COME, fds, 2, NULL);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(status, KOLO_ERR_SYSTEM);
    assert_non_null(strstr(kolo_error_text(), "0 of 2 descriptors that rank 5 has passed"));
    assert_non_null(strstr(kolo_error_text(), "RLIMIT_NOFILE"));
}

#define CALLS 300
static void call_as_another_user(const service_t *service)
{
    struct sockaddr_un sun;
    socklen_t size = kolo_fdpass_sockaddr(service->address, &sun);
    char byte;
    if (setuid(65534) != 0) _exit(77);
    for (int i = 0; i < CALLS; i++) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&sun, size) != 0) _exit(1);
        if (recv(fd, &byte, 1, 0) > 0) _exit(2); /* until it has hung up */
        kolo_fd_close(fd);
    }
    _exit(0);
}

static void another_user_cannot_fill_the_log(void **unused)
{
    int log = memfd_create("log", MFD_CLOEXEC), own = dup(2), lines = 0, status;
    char text[16384];
    void *state = NULL;
    (void)unused;
    assert_int_equal(dup2(log, 2), 2);
    int started = start_service(&state);
    dup2(own, 2);
    kolo_fd_close(own);
    assert_int_equal(started, 0);
    service_t *service = (service_t *)state;
    pid_t stranger = fork();
    if (stranger == 0) call_as_another_user(service);
    assert_int_equal(waitpid(stranger, &status, 0), stranger);
    bool is_root = WIFEXITED(status) && WEXITSTATUS(status) != 77;
    if (is_root) assert_int_equal(status, 0);
    if (is_root) assert_int_equal(counters_of(service).refused_user, CALLS);
    assert_int_equal(stop_service(&state), 0);
    ssize_t n = pread(log, text, sizeof text, 0);
    for (ssize_t i = 0; i < n; i++) lines += text[i] == '\n';
    kolo_fd_close(log);
    if (!is_root) skip(); /* there is no other user to be */
    assert_true(lines > 0 && lines < 20);
}

static void an_offer_may_come_later(void **state)
{
    service_t *service = (service_t *)*state;
    kolo_fdpass_call_t call = caller(service, 3000);
    int fd;
    assert_int_equal(write(service->command, "l", 1), 1);
    assert_int_equal(kolo_fdpass_fetch(&call, name_late, KOLO_FDPASS_MAY_COME, &fd, 1, NULL), KOLO_OK);
    kolo_fd_close(fd);
    assert_true(counters_of(service).refused_name > 0);
}

static void a_wrong_key_gets_nothing(void **state)
{
    service_t *service = (service_t *)*state;
    kolo_fdpass_call_t call = caller(service, 3000);
    int fds[2];
    call.key = other_key;
    assert_int_equal(kolo_fdpass_fetch(&call, name_often, KOLO_FDPASS_MAY_COME, fds, 2, NULL), KOLO_ERR_AUTH);
    assert_int_equal(counters_of(service).refused_key, 1);
    assert_int_equal(counters_of(service).served, 0);
    call = caller(service, 30);
    assert_int_equal(kolo_fdpass_fetch(&call, name_missing, KOLO_FDPASS_MAY_COME, fds, 2, NULL), KOLO_ERR_TIMEOUT);
}

static int knock(const service_t *service)
{
    struct sockaddr_un sun;
    socklen_t size = kolo_fdpass_sockaddr(service->address, &sun);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&sun, size) != 0) return -1;
    return fd;
}

/* More silent callers than the server listens to at a time: the others still get through, the silent are
 * dropped. */
static void silent_callers_do_not_stop_others(void **state)
{
    enum { SILENT = 300 };
    service_t *service = (service_t *)*state;
    int silent[SILENT], fds[2];
    for (int i = 0; i < SILENT; i++) assert_true((silent[i] = knock(service)) >= 0);
    kolo_fdpass_call_t call = caller(service, 10000);
    assert_int_equal(kolo_fdpass_fetch(&call, name_often, KOLO_FDPASS_MAY_COME, fds, 2, NULL), KOLO_OK);
    kolo_fd_close(fds[0]);
    kolo_fd_close(fds[1]);
    kolo_fdpass_counters_t counters = counters_of(service);
    assert_true(counters.refused_timeout > 0 && counters.refused_full > 0);
    for (int i = 0; i < SILENT; i++) kolo_fd_close(silent[i]);
}

/* A server without a descriptor for its caller looks again now and then, and serves it once there is one. */
static void a_caller_waits_while_there_is_no_descriptor(void **state)
{
    service_t *service = (service_t *)*state;
    char hello[256];
    assert_int_equal(write(service->command, "u", 1), 1);
    assert_int_equal(counters_of(service).refused_full, 0); /* it has read that */
    int fd = knock(service);
    assert_true(fd >= 0);
    uint64_t limit = kolo_deadline_ms(10000);
    while (counters_of(service).refused_full == 0 && kolo_now_ns() < limit) poll(NULL, 0, 5);
    assert_true(counters_of(service).refused_full > 0);
    assert_int_equal(write(service->command, "f", 1), 1);
    assert_int_equal(recv(fd, hello, sizeof hello, 0), sizeof(kolo_fdpass_hello_t));
    kolo_fd_close(fd);
}

static void noise_is_refused(void **state)
{
    service_t *service = (service_t *)*state;
    kolo_fdpass_request_t request = {.magic = KOLO_FDPASS_MAGIC, .nfds = 2};
    uint8_t noise[4096];
    char byte[256];
    memset(noise, 0xa5, sizeof noise);
    memcpy(request.name, name_often, 16);
    const struct {
        const void *data;
        size_t bytes;
    } frames[] = {{noise, 1},
                  {noise, sizeof request},
                  {noise, sizeof noise},
                  {&request, sizeof request - 1},
                  {&request, sizeof request}};
    for (size_t i = 0; i < KOLO_COUNTOF(frames); i++) {
        int fd = knock(service);
        assert_true(fd >= 0);
        assert_int_equal(recv(fd, byte, sizeof byte, 0), sizeof(kolo_fdpass_hello_t));
        assert_int_equal(send(fd, frames[i].data, frames[i].bytes, MSG_NOSIGNAL), frames[i].bytes);
        while (recv(fd, byte, sizeof byte, 0) > 0) assert_int_equal(((kolo_fdpass_answer_t *)byte)->result, 2);
        kolo_fd_close(fd);
    }
    kolo_fdpass_counters_t counters = counters_of(service);
    assert_int_equal(counters.refused_frame, 4);
    assert_int_equal(counters.refused_key, 1);
    assert_int_equal(counters.served, 0);
    assert_int_equal(counters.connections, 0);
}

static void death_of_the_server_is_seen(void **state)
{
    service_t *service = (service_t *)*state;
    kolo_fdpass_call_t call = caller(service, 3000);
    kolo_fdpass_peer_t peer;
    int fds[2];
    assert_int_equal(kolo_fdpass_fetch(&call, name_often, KOLO_FDPASS_MAY_COME, fds, 2, &peer), KOLO_OK);
    kolo_fd_close(fds[0]);
    kolo_fd_close(fds[1]);
    struct pollfd pfd = {.fd = peer.alive_fd, .events = POLLIN};
    assert_int_equal(poll(&pfd, 1, 20), 0);
    kill(service->pid, SIGKILL);
    assert_int_equal(poll(&pfd, 1, 1000), 1);
    kolo_fd_close(peer.alive_fd);
    /* and it cannot be reached any more */
    call = caller(service, 50);
    assert_int_equal(kolo_fdpass_fetch(&call, name_often, KOLO_FDPASS_MAY_COME, fds, 2, NULL), KOLO_ERR_TIMEOUT);
    int status;
    waitpid(service->pid, &status, 0);
    kolo_fd_close(service->command);
    kolo_fd_close(service->answer);
}

/* A child of fork() inherits neither the address nor the offers. */
static void a_forked_child_starts_afresh(void **state)
{
    uint8_t mine[16], its[16];
    int pipes[2], fd = memfd_with("mine"), got = -1;
    kolo_fdpass_result_t result;
    kolo_progress_t *progress;
    (void)state;
    if (KOLO_KIT_TSAN) skip(); /* it allows no threads in the child of a process with threads */
    assert_int_equal(kolo_fdpass_start(), KOLO_OK);
    assert_int_equal(kolo_fdpass_address(mine), KOLO_OK);
    assert_int_equal(kolo_fdpass_offer(name_often, key, &fd, 1, 0), KOLO_OK);
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(kolo_progress_get(&progress), KOLO_OK);
    pid_t pid = kolo_test_fork(progress);
    if (pid == 0) {
        int bad = kolo_fdpass_fetch_own(mine, name_often, key, &got, 1, &result);
        bad += kolo_fdpass_address(its) != KOLO_OK;
        bad += kolo_fdpass_start() != KOLO_OK; /* under its own name, beside the parent's */
        kolo_fdpass_stop();
        _exit(write(pipes[1], its, sizeof its) == sizeof its ? bad : 9);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(read(pipes[0], its, sizeof its), sizeof its);
    assert_memory_not_equal(mine, its, sizeof its);
    assert_true(kolo_fdpass_fetch_own(mine, name_often, key, &got, 1, &result));
    assert_int_equal(result, KOLO_FDPASS_SERVED);
    assert_text(got, "mine");
    kolo_fdpass_withdraw(name_often);
    kolo_fdpass_stop();
    kolo_progress_put(progress);
    kolo_fd_close(fd);
    kolo_fd_close(pipes[0]);
    kolo_fd_close(pipes[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(descriptors_arrive, start_service, stop_service),
        cmocka_unit_test_setup_teardown(a_full_table_of_descriptors_is_named, start_service, stop_service),
        cmocka_unit_test(another_user_cannot_fill_the_log),
        cmocka_unit_test_setup_teardown(an_offer_may_come_later, start_service, stop_service),
        cmocka_unit_test_setup_teardown(a_wrong_key_gets_nothing, start_service, stop_service),
        cmocka_unit_test_setup_teardown(silent_callers_do_not_stop_others, start_service, stop_service),
        cmocka_unit_test_setup_teardown(a_caller_waits_while_there_is_no_descriptor, start_service, stop_service),
        cmocka_unit_test_setup_teardown(noise_is_refused, start_service, stop_service),
        cmocka_unit_test_setup(death_of_the_server_is_seen, start_service),
        cmocka_unit_test(a_forked_child_starts_afresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
