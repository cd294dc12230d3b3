/* SPDX-License-Identifier: Apache-2.0
 *
 * The commonest hang: two ranks that first send to each other, and then receive. Neither is wrong by itself, so
 * nothing ends it but a time limit; the error says which call it is, in the user's words, and what to do.
 */
#include "kit/ranks.h"

static kolo_comm_t connect_with_limit(rank_t *r, kolo_unique_id_t id)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t comm = NULL;
    config.init_timeout_ms = config.op_timeout_ms = 1000;
    EXPECT_OK(kolo_comm_init_rank(&comm, r->nranks, id, r->rank, &config));
    return comm;
}

static void send_to_each_other(rank_t *r)
{
    static float out[2], in[2];
    int other = 1 - r->rank;
    kolo_comm_t comm = connect_with_limit(r, *(kolo_unique_id_t *)r->arg);
    meet();
    EXPECT_ERROR(KOLO_ERR_TIMEOUT, kolo_send(&out[r->rank], 1, KOLO_FLOAT32, other, comm, NULL),
                 "in its first send to rank", "to call the receive", "that is a circle", "a group", "kolo_isend()");
    meet(); /* who goes first ends the other's wait */
    kolo_status_t status = kolo_recv(&in[r->rank], 1, KOLO_FLOAT32, other, comm, NULL);
    EXPECT(status != KOLO_OK);
    EXPECT_OK(kolo_comm_destroy(comm));
}

static void receive_from_each_other(rank_t *r)
{
    static float in[2];
    int other = 1 - r->rank;
    kolo_comm_t comm = connect_with_limit(r, *(kolo_unique_id_t *)r->arg);
    meet();
    EXPECT_ERROR(KOLO_ERR_TIMEOUT, kolo_recv(&in[r->rank], 1, KOLO_FLOAT32, other, comm, NULL),
                 "in its first receive from rank", "to call the send");
    meet();
    EXPECT_OK(kolo_comm_destroy(comm));
}

static void test_sends_to_each_other_are_said_to_be_a_circle(void **state)
{
    (void)state;
    kolo_unique_id_t id;
    assert_int_equal(kolo_get_unique_id(&id), KOLO_OK);
    assert_int_equal(run_threads(2, send_to_each_other, &id), 0);
}

static void test_receives_from_each_other_name_the_call_that_is_missing(void **state)
{
    (void)state;
    kolo_unique_id_t id;
    assert_int_equal(kolo_get_unique_id(&id), KOLO_OK);
    assert_int_equal(run_threads(2, receive_from_each_other, &id), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sends_to_each_other_are_said_to_be_a_circle),
        cmocka_unit_test(test_receives_from_each_other_name_the_call_that_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
