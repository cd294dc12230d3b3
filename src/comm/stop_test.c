/* SPDX-License-Identifier: Apache-2.0
 *
 * Which of two errors a communicator keeps: the first, but for what news told before an operation found the cause.
 */
#include "base/test.h"
#include "comm/comm.h"

#include <string.h>

/* Has a communicator fail twice, and returns what it keeps. */
static kolo_status_t keep(kolo_status_t first, bool news, kolo_status_t second)
{
    kolo_comm_t comm;
    char text[KOLO_ERROR_TEXT_BYTES];
    assert_int_equal(kolo_comm_init_all(&comm, 1, NULL), KOLO_OK);
    kolo_body_fail_as(comm->body, first, "the first");
    comm->error_is_news = news;
    kolo_body_fail_as(comm->body, second, "the second");
    kolo_status_t kept = kolo_handle_error(comm, text, sizeof text);
    if (first != second) assert_string_equal(text, kept == first ? "the first" : "the second");
    if (first == second) assert_string_equal(text, news ? "the second" : "the first");
    assert_int_equal(kolo_comm_finalize(comm), kept);
    assert_non_null(strstr(kolo_get_last_error(NULL), text));
    assert_int_equal(kolo_comm_destroy(comm), KOLO_OK);
    return kept;
}

static void the_cause_is_kept(void **state)
{
    (void)state;
    assert_int_equal(keep(KOLO_ERR_REMOTE, true, KOLO_ERR_MISMATCH), KOLO_ERR_MISMATCH);
    assert_int_equal(keep(KOLO_ERR_REMOTE, true, KOLO_ERR_REMOTE), KOLO_ERR_REMOTE);
    assert_int_equal(keep(KOLO_ERR_REMOTE, true, KOLO_ERR_ABORTED), KOLO_ERR_REMOTE);
    assert_int_equal(keep(KOLO_ERR_MISMATCH, true, KOLO_ERR_REMOTE), KOLO_ERR_MISMATCH);
    assert_int_equal(keep(KOLO_ERR_TIMEOUT, false, KOLO_ERR_MISMATCH), KOLO_ERR_TIMEOUT);
    assert_int_equal(keep(KOLO_ERR_REMOTE, false, KOLO_ERR_REMOTE), KOLO_ERR_REMOTE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cause_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
