/* SPDX-License-Identifier: Apache-2.0
 *
 * The threads that copy large values: they end with their last user and start again with the next one.
 */
#include "base/process.h"
#include "base/test.h"
#include "base/test_time.h"
#include "remote/onesided/internal.h"

#include <string.h>

#define ROUNDS 2000
#define BYTES  (64u << 10)

typedef struct {
    char from[BYTES], to[BYTES];
    _Atomic uint32_t asleep;
    kolo_waker_t waker;
    bool right;
} user_t;

static void *use_again_and_again(void *arg)
{
    user_t *u = arg;
    u->right = true;
    for (int i = 0; i < kolo_test_steps(ROUNDS) && u->right; i++) {
        memset(u->from, i, sizeof u->from);
        kolo_copy_t copy = {.from = u->from, .to = u->to, .alive_fd = -1, .bytes = BYTES, .waker = &u->waker};
        kolo_copy_pool_get();
        u->right = kolo_copy_start(&copy);
        if (u->right) kolo_copy_wait(&copy);
        u->right = u->right && memcmp(u->from, u->to, BYTES) == 0;
        kolo_copy_pool_put();
    }
    return NULL;
}

/* One is the last user while the other becomes the first: its copy is served all the same. */
static void a_user_that_comes_while_the_last_one_goes_is_served(void **state)
{
    static user_t users[2];
    pthread_t threads[2];
    (void)state;
    kolo_onesided_param_copiers = 2;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kolo_waker_init(&users[i].waker, &users[i].asleep), KOLO_OK);
        assert_int_equal(kolo_thread_start(&threads[i], 0, use_again_and_again, &users[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_true(users[i].right);
        kolo_waker_fini(&users[i].waker);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_user_that_comes_while_the_last_one_goes_is_served)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
