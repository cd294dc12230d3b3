/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests of the library's own descriptors: what a child of fork() has of them, and which numbers they get.
 */
#include "base/file/fds.h"
#include "base/test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT_MS 5000

static int run_child(int (*fn)(void *), void *arg)
{
    int status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(30);
        _exit(fn(arg));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

static void make_pair(int fds[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    fds[0] = kolo_fd_own(fds[0]);
    assert_true(fds[0] > 2 && fds[1] > 2);
}

static void a_child_that_sleeps_keeps_no_connection_alive(void **state)
{
    int fds[2], block[2];
    char byte;
    (void)state;
    make_pair(fds);
    assert_int_equal(pipe(block), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) { /* touches nothing of the library */
        close(block[1]);
        close(fds[1]);
        (void)!read(block[0], &byte, 1);
        _exit(0);
    }
    kolo_fd_close(fds[0]);
    struct pollfd end = {.fd = fds[1], .events = POLLIN};
    assert_int_equal(poll(&end, 1, LIMIT_MS), 1);
    assert_int_equal(read(fds[1], &byte, 1), 0);
    close(block[1]);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(fds[1]);
    close(block[0]);
}

static int use_number(void *arg)
{
    int fd = *(int *)arg;
    if (fcntl(fd, F_GETFD) < 0) return 1; /* it must not be free */
    if (send(fd, "x", 1, MSG_NOSIGNAL) >= 0 || recv(fd, &fd, 1, MSG_DONTWAIT) >= 0) return 2; /* nobody is there */
    return 0;
}

static void a_number_leads_nowhere_in_a_child_and_stays_taken(void **state)
{
    int fds[2];
    char byte = 0;
    (void)state;
    make_pair(fds);
    assert_int_equal(run_child(use_number, &fds[0]), 0);
    assert_int_equal(write(fds[0], "p", 1), 1); /* the parent's works on */
    assert_int_equal(read(fds[1], &byte, 1), 1);
    assert_int_equal(byte, 'p');
    kolo_fd_close(fds[0]);
    close(fds[1]);
}

static int use_own_file(void *arg)
{
    const int *fds = arg;
    char byte = 0;
    return write(fds[0], "c", 1) == 1 && read(fds[1], &byte, 1) == 1 && byte == 'c' ? 0 : 1;
}

static void a_number_that_was_given_back_is_the_programs_again(void **state)
{
    int own[2], fds[2];
    (void)state;
    make_pair(own);
    int number = own[0];
    kolo_fd_close(own[0]);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    assert_true(fds[0] == number || fds[1] == number);
    assert_int_equal(run_child(use_own_file, fds), 0);
    close(own[1]);
    close(fds[0]);
    close(fds[1]);
}

static int find_full_table(void *arg)
{
    int fd, first = -1;
    while ((fd = dup(0)) >= 0) first = first < 0 ? fd : first;
    return run_child(use_number, arg);
}

static void it_works_without_a_free_descriptor(void **state)
{
    int fds[2];
    (void)state;
    make_pair(fds);
    assert_int_equal(run_child(find_full_table, &fds[0]), 0);
    kolo_fd_close(fds[0]);
    close(fds[1]);
}

static int open_without_standard_files(void *arg)
{
    (void)arg;
    for (int fd = 0; fd < 3; fd++) close(fd);
    int a = kolo_fd_socket(AF_UNIX, SOCK_STREAM), b = kolo_fd_own(dup(a)), c = kolo_fd_copy(b);
    int d = kolo_fd_above(open("/dev/null", O_WRONLY));
    bool above = a > 2 && b > 2 && c > 2 && d > 2;
    for (int fd = 0; fd < 3; fd++) above &= fcntl(fd, F_GETFD) < 0;
    return above ? 0 : 1;
}

static void no_own_descriptor_takes_the_place_of_a_standard_file(void **state)
{
    (void)state;
    assert_int_equal(run_child(open_without_standard_files, NULL), 0);
}

static void a_failed_call_keeps_its_error(void **state)
{
    (void)state;
    errno = EMFILE;
    assert_int_equal(kolo_fd_own(-1), -1);
    assert_int_equal(errno, EMFILE);
    assert_int_equal(kolo_fd_accept(-1, NULL, NULL), -1);
    assert_int_equal(errno, EBADF);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_child_that_sleeps_keeps_no_connection_alive),
        cmocka_unit_test(a_number_leads_nowhere_in_a_child_and_stays_taken),
        cmocka_unit_test(a_number_that_was_given_back_is_the_programs_again),
        cmocka_unit_test(it_works_without_a_free_descriptor),
        cmocka_unit_test(no_own_descriptor_takes_the_place_of_a_standard_file),
        cmocka_unit_test(a_failed_call_keeps_its_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
