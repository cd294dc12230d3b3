/* SPDX-License-Identifier: Apache-2.0
 *
 * How a test ends a job of tests/vm that should run while it does something: it makes the file that VM_TEST_END
 * names. One rank looks, and tells the others by what they compute.
 */
#ifndef KOLO_TESTS_VM_UNTIL_H
#define KOLO_TESTS_VM_UNTIL_H

#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

static inline bool end_may_be_asked_for(void)
{
    return getenv("VM_TEST_END") != NULL;
}

static inline bool end_is_asked_for(void)
{
    return end_may_be_asked_for() && access(getenv("VM_TEST_END"), F_OK) == 0;
}

#endif
