/* SPDX-License-Identifier: Apache-2.0
 *
 * Whom a process names that may copy from and to its memory.
 */
#include "base/test.h"
#include "mem/admit.h"

#include <sys/prctl.h>

static void process_1_is_not_named(void **state)
{
    (void)state;
    assert_int_equal(kolo_mem_admitted(KOLO_PTRACER_PARENT, 1), 0);
    assert_int_equal(kolo_mem_admitted(KOLO_PTRACER_PARENT, 0), 0); /* of another namespace */
    assert_int_equal(kolo_mem_admitted(KOLO_PTRACER_PARENT, 4711), 4711);
    assert_int_equal(kolo_mem_admitted(KOLO_PTRACER_NONE, 4711), 0);
    assert_true(kolo_mem_admitted(KOLO_PTRACER_ANY, 1) == PR_SET_PTRACER_ANY); /* it was asked for */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(process_1_is_not_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
