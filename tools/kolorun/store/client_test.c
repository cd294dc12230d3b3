/* SPDX-License-Identifier: Apache-2.0
 *
 * The store's client where nobody answers; how it talks with the real store is tests/kolorun/store_test.py.
 */
#include "store.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define FILLERS  8
#define PATIENCE 60000 /* ms, of a call that is cut short */

static int listener = -1, port;
static char key_file[] = "/tmp/kolo-store-key-XXXXXX";

static int set_up(void **state)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    const char key[KOLO_STORE_KEY_BYTES] = "for this test";
    (void)state;
    memcpy(key_file + sizeof key_file - 7, "XXXXXX", 6);
    int fd = mkstemp(key_file);
    bool ok = fd >= 0 && write(fd, key, sizeof key) == (ssize_t)sizeof key;
    if (fd >= 0) close(fd);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ok = ok && bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 0) == 0 &&
         getsockname(listener, (struct sockaddr *)&at, &size) == 0;
    port = ntohs(at.sin_port);
    return ok ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    if (listener >= 0) close(listener);
    unlink(key_file);
    return 0;
}

static kolo_store_t *open_store(const char *host)
{
    char address[64], why[300] = "";
    snprintf(address, sizeof address, "%s:%d", host, port);
    kolo_store_t *s = kolo_store_open(address, key_file, why, sizeof why);
    if (s == NULL) print_message("%s\n", why);
    return s;
}

typedef struct {
    kolo_store_t *store;
    int status;
    char why[300];
} patient_t;

static void *ask_with_patience(void *arg)
{
    patient_t *p = arg;
    p->status = kolo_store_put(p->store, "a", "b", "", 0, PATIENCE, p->why, sizeof p->why);
    return NULL;
}

static void a_call_does_not_wait_for_the_patience_of_another(void **state)
{
    char why[300] = "";
    pthread_t thread;
    (void)state;
    patient_t patient = {.store = open_store("127.0.0.1")};
    assert_non_null(patient.store);
    assert_int_equal(pthread_create(&thread, NULL, ask_with_patience, &patient), 0);
    int waits = accept(listener, NULL, NULL); /* it has connected, and no answer comes */
    assert_true(waits >= 0);
    assert_int_equal(kolo_store_put(patient.store, "a", "c", "", 0, 100, why, sizeof why), -1);
    assert_non_null(strstr(why, strerror(ETIMEDOUT)));
    assert_int_equal(pthread_tryjoin_np(thread, NULL), EBUSY); /* the other still waits */
    assert_int_equal(kolo_store_put(patient.store, "..", "/", "", 0, 100, why, sizeof why), -1);
    assert_non_null(strstr(why, "cannot be one"));
    close(waits);
    close(listener); /* else it asks again */
    listener = -1;
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(patient.status, -1);
    kolo_store_close(patient.store);
}

static void who_is_cut_off_asks_again_until_its_time_is_over(void **state)
{
    pthread_t thread;
    (void)state;
    patient_t patient = {.store = open_store("127.0.0.1")};
    assert_non_null(patient.store);
    assert_int_equal(pthread_create(&thread, NULL, ask_with_patience, &patient), 0);
    for (int i = 0; i < 3; i++) {
        struct pollfd caller = {.fd = listener, .events = POLLIN};
        assert_int_equal(poll(&caller, 1, 10000), 1);
        int fd = accept(listener, NULL, NULL);
        assert_true(fd >= 0);
        close(fd);
    }
    close(listener);
    listener = -1;
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(patient.status, -1);
    kolo_store_close(patient.store);
}

static void a_connection_that_does_not_come_about_is_not_called_refused(void **state)
{
    char why[300] = "";
    int fillers[FILLERS];
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    (void)state;
    for (int i = 0; i < FILLERS; i++) { /* more than wait to be accepted: what comes now is dropped */
        fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        assert_true(fillers[i] >= 0);
        assert_true(connect(fillers[i], (struct sockaddr *)&at, sizeof at) == 0 || errno == EINPROGRESS);
    }
    struct pollfd last = {.fd = fillers[FILLERS - 1], .events = POLLOUT};
    assert_int_equal(poll(&last, 1, 0), 0);
    kolo_store_t *s = open_store("127.0.0.1");
    assert_non_null(s);
    assert_int_equal(kolo_store_put(s, "a", "b", "", 0, 100, why, sizeof why), -1);
    assert_non_null(strstr(why, strerror(ETIMEDOUT)));
    for (int i = 0; i < FILLERS; i++) close(fillers[i]);
    close(listener);
    listener = -1;
    assert_int_equal(kolo_store_put(s, "a", "b", "", 0, 10000, why, sizeof why), -1);
    assert_non_null(strstr(why, strerror(ECONNREFUSED)));
    kolo_store_close(s);
}

static void an_ipv6_address_stands_in_brackets(void **state)
{
    char why[300] = "";
    (void)state;
    kolo_store_t *s = open_store("[::1]");
    assert_non_null(s);
    assert_int_equal(kolo_store_put(s, "a", "b", "", 0, 10000, why, sizeof why), -1); /* nobody listens there */
    assert_non_null(strstr(why, "cannot connect"));
    kolo_store_close(s);
}

static void a_key_that_others_can_read_is_not_taken(void **state)
{
    char why[300] = "";
    (void)state;
    assert_int_equal(chmod(key_file, 0644), 0);
    assert_null(kolo_store_open("127.0.0.1:1", key_file, why, sizeof why));
    assert_non_null(strstr(why, "chmod 600"));
}

static void a_key_behind_a_link_or_of_another_user_is_not_taken(void **state)
{
    char why[300] = "", link_file[sizeof key_file + 8];
    (void)state;
    snprintf(link_file, sizeof link_file, "%s.link", key_file);
    assert_int_equal(symlink(key_file, link_file), 0);
    kolo_store_t *s = kolo_store_open("127.0.0.1:1", link_file, why, sizeof why);
    unlink(link_file);
    assert_null(s);
    assert_non_null(strstr(why, "symbolic link"));
    if (geteuid() != 0) return; /* only root can give a file away */
    assert_int_equal(chown(key_file, 12345, 12345), 0);
    assert_null(kolo_store_open("127.0.0.1:1", key_file, why, sizeof why));
    assert_non_null(strstr(why, "belongs to another user"));
}

int main(void)
{
#ifdef KOLO_HAVE_SODIUM
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_call_does_not_wait_for_the_patience_of_another, set_up, tear_down),
        cmocka_unit_test_setup_teardown(who_is_cut_off_asks_again_until_its_time_is_over, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_connection_that_does_not_come_about_is_not_called_refused, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(an_ipv6_address_stands_in_brackets, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_key_behind_a_link_or_of_another_user_is_not_taken, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_key_that_others_can_read_is_not_taken, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
#else
    return 77;
#endif
}
