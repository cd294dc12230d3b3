/* SPDX-License-Identifier: Apache-2.0
 *
 * Upper limits of real time mean something on a quiet machine only. Tests state them by IN_TIME(), and `make
 * test-all`, which sets TEST_TIME for the release build, asserts them; elsewhere what counts is the result. What
 * must take at least some time is asserted everywhere.
 */
#ifndef KOLO_BASE_TEST_TIME_H
#define KOLO_BASE_TEST_TIME_H

#include <stdbool.h>
#include <stdlib.h>

static inline bool kolo_test_times(void)
{
    return getenv("TEST_TIME") != NULL;
}

/* Returns how many steps a test makes that draws them: TEST_PERCENT of them where a sanitizer makes it slow; with
 * TEST_TIME all. */
static inline int kolo_test_steps(int all)
{
    const char *percent = getenv("TEST_PERCENT");
    return percent != NULL && !kolo_test_times() ? (all * atoi(percent) + 99) / 100 : all;
}

#define IN_TIME(fact) (!kolo_test_times() || (fact))

/* Is this the thread sanitizer's build? */
#if defined(__SANITIZE_THREAD__)
#define KOLO_KIT_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KOLO_KIT_TSAN 1
#endif
#endif
#ifndef KOLO_KIT_TSAN
#define KOLO_KIT_TSAN 0
#endif

#endif
