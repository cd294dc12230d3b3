/* SPDX-License-Identifier: Apache-2.0
 *
 * Values that were sent and wait for their receives: how many bytes of them there may be, and what a send beyond
 * that gets. A sender that is faster than its receivers is told so; it neither waits nor fills the memory.
 */
#include "base/cpu/group.h"
#include "base/test.h"
#include "rendezvous/internal.h"

#include <stdlib.h>
#include <string.h>

#define TASK        "/job:ps/task:0"
#define INCARNATION 0x1234ull
#define KEY(edge)   TASK "/device:cpu:0;0000000000001234;" TASK "/device:cpu:1;" edge ";0:0"
#define LIMIT       (1u << 20)
#define BYTES       (64u << 10)

static int made, released;

typedef struct {
    kolo_rendezvous_manager_t manager;
    kolo_rendezvous_t step;
} fixture_t;

static void release(void *arg)
{
    free(arg);
    released++;
}

static kolo_status_t send_value(kolo_rendezvous_t step, const char *key, size_t bytes)
{
    char *data = malloc(bytes);
    assert_non_null(data);
    kolo_value_t value = {.element = KOLO_UINT8,
                          .ndims = 1,
                          .dims = {(int64_t)bytes},
                          .data = data,
                          .bytes = bytes,
                          .release = release,
                          .arg = data};
    kolo_status_t status = kolo_rendezvous_send(step, key, &value, NULL);
    if (status == KOLO_OK)
        made++;
    else
        free(data); /* it is still the caller's */
    return status;
}

static void receive(kolo_rendezvous_t step, const char *key)
{
    kolo_value_t value;
    assert_int_equal(kolo_rendezvous_receive(step, key, NULL, 1000, &value), KOLO_OK);
    kolo_value_release(&value);
}

/* Returns how many were taken before one was refused. */
static int fill(kolo_rendezvous_t step, const char *key)
{
    int n = 0;
    while (n < 100 && send_value(step, key, BYTES) == KOLO_OK) n++;
    return n;
}

static int set_up(void **state)
{
    static fixture_t f;
    made = released = 0;
    *state = &f;
    return kolo_rendezvous_manager_create(&f.manager) ||
           kolo_rendezvous_manager_initialize(f.manager, TASK, INCARNATION) ||
           kolo_rendezvous_open(f.manager, 7, &f.step);
}

static int tear_down(void **state)
{
    fixture_t *f = *state;
    uint64_t left;
    (void)kolo_rendezvous_manager_cleanup_all(f->manager);
    left = f->manager->waits;
    return kolo_rendezvous_close(f->step) || kolo_rendezvous_manager_destroy(f->manager) || made != released ||
           left != 0;
}

static void a_send_beyond_the_limit_is_refused_in_words_and_stays_the_callers(void **state)
{
    const fixture_t *f = *state;
    int n = fill(f->step, KEY("grad"));
    assert_in_range(n, 14, 16);
    assert_int_equal(send_value(f->step, KEY("grad"), BYTES), KOLO_ERR_NO_MEMORY);
    assert_non_null(strstr(kolo_error_text(), "send of edge grad to " TASK "/device:cpu:1: "));
    assert_non_null(strstr(kolo_error_text(), "of 1048576 that may (KOLO_RENDEZVOUS_WAITING)"));
    assert_int_equal(released, 0);
}

static void a_refused_send_leaves_a_receive_that_is_too_small(void **state)
{
    const fixture_t *f = *state;
    char small;
    kolo_transfer_args_t args = {.into = &small, .into_bytes = 1};
    kolo_receive_t waits;
    kolo_value_t value;
    int ended;
    fill(f->step, KEY("other"));
    assert_int_equal(kolo_rendezvous_receive_begin(f->step, KEY("grad"), &args, &waits), KOLO_OK);
    assert_int_equal(send_value(f->step, KEY("grad"), BYTES), KOLO_ERR_NO_MEMORY);
    assert_non_null(strstr(kolo_error_text(), "send of edge grad to " TASK "/device:cpu:1: no receive waits"));
    assert_int_equal(kolo_receive_poll(waits, &ended), KOLO_OK);
    assert_false(ended); /* what was refused ends nothing: it gets a value that fits */
    assert_int_equal(send_value(f->step, KEY("grad"), 1), KOLO_OK);
    assert_int_equal(kolo_receive_wait(waits, 1000, &value), KOLO_OK);
    assert_int_equal(value.bytes, 1);
    kolo_value_release(&value);
    assert_int_equal(kolo_rendezvous_receive_begin(f->step, KEY("grad"), &args, &waits), KOLO_OK);
    receive(f->step, KEY("other"));
    assert_int_equal(send_value(f->step, KEY("grad"), 1000), KOLO_OK);
    assert_int_equal(kolo_receive_wait(waits, 1000, &value), KOLO_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(kolo_error_text(), "its destination 1"));
}

static void each_receive_makes_room_for_a_send(void **state)
{
    const fixture_t *f = *state;
    int n = fill(f->step, KEY("grad"));
    for (int i = 0; i < 50; i++) {
        receive(f->step, KEY("grad"));
        assert_int_equal(send_value(f->step, KEY("grad"), BYTES), KOLO_OK);
        assert_int_equal(send_value(f->step, KEY("grad"), BYTES), KOLO_ERR_NO_MEMORY);
    }
    for (int i = 0; i < n; i++) receive(f->step, KEY("grad"));
    assert_int_equal(fill(f->step, KEY("grad")), n);
}

static void a_value_whose_receive_waits_is_never_refused(void **state)
{
    const fixture_t *f = *state;
    kolo_receive_t waits;
    kolo_value_t value;
    fill(f->step, KEY("other"));
    assert_int_equal(kolo_rendezvous_receive_begin(f->step, KEY("grad"), NULL, &waits), KOLO_OK);
    assert_int_equal(send_value(f->step, KEY("grad"), 10 * LIMIT), KOLO_OK);
    assert_int_equal(kolo_receive_wait(waits, 1000, &value), KOLO_OK);
    kolo_value_release(&value);
}

static void the_values_of_all_steps_count_and_those_of_ended_ones_do_not(void **state)
{
    const fixture_t *f = *state;
    kolo_rendezvous_t other;
    assert_int_equal(kolo_rendezvous_open(f->manager, 8, &other), KOLO_OK);
    int n = fill(other, KEY("grad"));
    assert_int_equal(send_value(f->step, KEY("grad"), BYTES), KOLO_ERR_NO_MEMORY);
    assert_int_equal(kolo_rendezvous_manager_cleanup(f->manager, 8), KOLO_OK);
    assert_int_equal(fill(f->step, KEY("grad")), n);
    assert_int_equal(kolo_rendezvous_abort(f->step, KOLO_ERR_SYSTEM, "enough"), KOLO_OK);
    kolo_rendezvous_close(other);
    assert_int_equal(kolo_rendezvous_open(f->manager, 8, &other), KOLO_OK);
    assert_int_equal(fill(other, KEY("grad")), n);
    kolo_rendezvous_close(other);
}

static void one_value_may_be_larger_than_the_limit(void **state)
{
    const fixture_t *f = *state;
    assert_int_equal(send_value(f->step, KEY("grad"), 3 * LIMIT), KOLO_OK);
    assert_int_equal(send_value(f->step, KEY("grad"), 1), KOLO_ERR_NO_MEMORY);
    receive(f->step, KEY("grad"));
    assert_int_equal(send_value(f->step, KEY("grad"), 1), KOLO_OK);
}

static void empty_values_count_as_well(void **state)
{
    const fixture_t *f = *state;
    int n = 0;
    while (n < (1 << 20) && send_value(f->step, KEY("tick"), 0) == KOLO_OK) n++;
    assert_in_range(n, 1000, LIMIT / sizeof(kolo_item_t));
}

static void unless_it_is_set_the_limit_is_half_of_the_memory(void **state)
{
    kolo_rendezvous_manager_t manager;
    (void)state;
    kolo_rendezvous_param_waiting = 0;
    assert_int_equal(kolo_rendezvous_manager_create(&manager), KOLO_OK);
    kolo_rendezvous_param_waiting = LIMIT;
    assert_in_range(kolo_memory_limit(), 64u << 20, UINT64_C(1) << 50);
    assert_int_equal(manager->waits_most, kolo_memory_limit() / 2);
    assert_int_equal(kolo_rendezvous_manager_destroy(manager), KOLO_OK);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(a_send_beyond_the_limit_is_refused_in_words_and_stays_the_callers),
                                       TEST(a_refused_send_leaves_a_receive_that_is_too_small),
                                       TEST(each_receive_makes_room_for_a_send),
                                       TEST(a_value_whose_receive_waits_is_never_refused),
                                       TEST(the_values_of_all_steps_count_and_those_of_ended_ones_do_not),
                                       TEST(one_value_may_be_larger_than_the_limit),
                                       TEST(empty_values_count_as_well),
                                       cmocka_unit_test(unless_it_is_set_the_limit_is_half_of_the_memory)};
    setenv("KOLO_RENDEZVOUS_WAITING", "1M", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
