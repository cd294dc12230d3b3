/* SPDX-License-Identifier: Apache-2.0
 *
 * A task of the job with hostile intent: it shows a task that task's own card, or stands between two tasks and
 * passes their cards on. Neither may be made to copy into memory that is not that of who it talks with. And a
 * process that has ended is not copied into, whoever has its number by then.
 */
#include "remote/onesided/test_ends.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define IN_PROCESS (UINT64_C(1) << 63) /* as in shm.c */

/* A connection by TCP; fds[1] is the hostile task's. */
static void connect_by_tcp(int fds[2])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &size), 0);
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fds[0], (struct sockaddr *)&at, sizeof at), 0);
    fds[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(fds[1] >= 0);
    close(listener);
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
}

static void read_card(int fd, uint8_t card[KOLO_ONESIDED_CARD_BYTES])
{
    assert_int_equal(recv(fd, card, KOLO_ONESIDED_CARD_BYTES, MSG_WAITALL), KOLO_ONESIDED_CARD_BYTES);
}

static void open_up(kolo_onesided_domain_t *domain, kolo_onesided_t *end)
{
    kolo_onesided_event_t event;
    assert_int_equal(wait_event(domain, end, &event), KOLO_OK);
    assert_int_equal(event.kind, KOLO_ONESIDED_OPENED);
}

/* The peer names a window that lies at any address: is it written to? */
static void write_to_where_the_peer_says(kolo_onesided_domain_t *domain, kolo_onesided_t *end, char *victim)
{
    kolo_onesided_window_t window = {.address = (uint64_t)(uintptr_t)victim | IN_PROCESS, .bytes = 5};
    kolo_onesided_write_t w = {"evil", 5, &window, 0, 0, 0, 1};
    kolo_onesided_event_t event;
    kolo_status_t status = kolo_onesided_write(end, &w);
    if (status == KOLO_OK) status = wait_event(domain, end, &event);
    assert_string_equal(victim, "mine");
    assert_int_equal(status, KOLO_ERR_PROTOCOL);
}

static void who_is_shown_its_own_card_does_not_copy_into_itself(void **state)
{
    kolo_onesided_domain_t *domain;
    uint8_t card[KOLO_ONESIDED_CARD_BYTES];
    char victim[8] = "mine";
    int fds[2];
    (void)state;
    assert_int_equal(kolo_onesided_domain_create(key, &domain), KOLO_OK);
    connect_by_tcp(fds);
    kolo_onesided_t *end = open_end(domain, fds[0], "the hostile task");
    int n;
    kolo_onesided_event_t event;
    assert_int_equal(kolo_onesided_step(end, &event, 1, &n), KOLO_OK); /* sends its card */
    read_card(fds[1], card);
    assert_int_equal(send(fds[1], card, sizeof card, 0), (ssize_t)sizeof card);
    open_up(domain, end);
    write_to_where_the_peer_says(domain, end, victim);
    kolo_onesided_close(end);
    close(fds[1]);
    kolo_onesided_domain_destroy(domain);
}

/* Two honest tasks; here they are in one process, which is all the same to them. */
static void two_tasks_with_a_third_between_them_do_not_copy_into_each_other(void **state)
{
    kolo_onesided_domain_t *domain[2];
    kolo_onesided_t *end[2];
    kolo_onesided_event_t event;
    uint8_t card[2][KOLO_ONESIDED_CARD_BYTES];
    char victim[8] = "mine";
    int fds[2][2], n;
    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kolo_onesided_domain_create(key, &domain[i]), KOLO_OK);
        connect_by_tcp(fds[i]);
        end[i] = open_end(domain[i], fds[i][0], "the task between");
        assert_int_equal(kolo_onesided_step(end[i], &event, 1, &n), KOLO_OK);
        read_card(fds[i][1], card[i]);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(send(fds[i][1], card[!i], sizeof card[0], 0), (ssize_t)sizeof card[0]);
    for (int i = 0; i < 2; i++) open_up(domain[i], end[i]);
    write_to_where_the_peer_says(domain[0], end[0], victim);
    for (int i = 0; i < 2; i++) {
        kolo_onesided_close(end[i]);
        close(fds[i][1]);
        kolo_onesided_domain_destroy(domain[i]);
    }
}

/* Without anybody in between they do. */
static void two_tasks_joined_by_tcp_copy_into_each_other(void **state)
{
    kolo_onesided_domain_t *domain[2];
    kolo_onesided_t *end[2];
    kolo_onesided_event_t event;
    int fds[2], n;
    (void)state;
    connect_by_tcp(fds);
    fcntl(fds[1], F_SETFL, O_NONBLOCK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kolo_onesided_domain_create(key, &domain[i]), KOLO_OK);
        end[i] = open_end(domain[i], fds[i], "the other");
    }
    for (bool open[2] = {false, false}; !open[0] || !open[1];)
        for (int i = 0; i < 2; i++) {
            assert_int_equal(kolo_onesided_step(end[i], &event, 1, &n), KOLO_OK);
            open[i] |= n == 1;
        }
    for (int i = 0; i < 2; i++) assert_true(kolo_onesided_pays(end[i], 1 << 20));
    for (int i = 0; i < 2; i++) {
        kolo_onesided_close(end[i]);
        kolo_onesided_domain_destroy(domain[i]);
    }
}

static void a_process_that_has_ended_is_not_copied_into(void **state)
{
    static const _Atomic uint32_t closed;
    char here[6] = "theirs", from[6] = "copied";
    (void)state;
    pid_t child = fork();
    if (child == 0) pause();
    int alive_fd = (int)syscall(SYS_pidfd_open, child, 0);
    assert_true(alive_fd >= 0);
    /* The number of the process that was met is this one's "by now". */
    kolo_copy_t copy = {
        .from = from, .to = here, .pid = getpid(), .alive_fd = alive_fd, .closed = &closed, .bytes = sizeof here};
    if (kolo_copy_piece(&copy, 0, 1) == EPERM) print_message("process_vm_writev() is not permitted here\n");
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(kolo_copy_piece(&copy, 1, 5), ESRCH);
    assert_memory_equal(here + 1, "heirs", 5);
    close(alive_fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_shown_its_own_card_does_not_copy_into_itself),
        cmocka_unit_test(two_tasks_with_a_third_between_them_do_not_copy_into_each_other),
        cmocka_unit_test(two_tasks_joined_by_tcp_copy_into_each_other),
        cmocka_unit_test(a_process_that_has_ended_is_not_copied_into),
    };
    const kolo_param_table_t *tables[] = {&kolo_onesided_params};
    if (kolo_params_load(tables, 1, NULL, NULL) != KOLO_OK) return 1;
    kind = KOLO_ONESIDED_SHM;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
