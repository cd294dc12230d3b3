/* SPDX-License-Identifier: Apache-2.0
 *
 * What a child that is being set up takes over from its parent: who died, not who has left the parent, or has given
 * it up.
 */
#include "member/life.h"
#include "oob/oob_test_util.h"

#define LABEL 77

static atomic_int done;

static void open_child(test_rank_t *me, kolo_oob_t **child)
{
    static const int members[] = {0, 1, 2, 3};
    kolo_oob_child_t *prepared = NULL;
    uint8_t addresses[4][KOLO_OOB_ADDRESS_BYTES];
    kolo_oob_config_t config = {.rank = me->rank, .nranks = me->nranks, .timeout_ms = 20000, .name = "child"};
    test_ok(kolo_oob_prepare_child(me->oob, &prepared, addresses[me->rank]));
    test_ok(kolo_oob_all_gather(me->oob, addresses, sizeof(addresses[0])));
    test_ok(kolo_oob_open_child(prepared, &config, LABEL, addresses[0], child));
    test_ok(kolo_inherit_failures(*child, me->oob, members, true));
}

static int lost_in_child(kolo_oob_t *parent, kolo_oob_t *child, int rank, kolo_loss_how_t how)
{
    char why[8];
    pthread_mutex_lock(&parent->lock);
    kolo_news_lost(parent, rank, how, parent->rank);
    pthread_mutex_unlock(&parent->lock);
    return kolo_member_first_lost(child, 1, why, sizeof(why));
}

static void set_up_a_child(test_rank_t *me)
{
    kolo_oob_t *child = NULL;
    open_child(me, &child);
    test_ok(kolo_oob_barrier(child));
    atomic_fetch_add(&done, 1);
    while (atomic_load(&done) < me->nranks) poll(NULL, 0, 1);
    if (me->rank == 0) {
        test_equal(lost_in_child(me->oob, child, 1, KOLO_LOSS_LEFT), -1);
        test_equal(lost_in_child(me->oob, child, 2, KOLO_LOSS_GAVE_UP), -1);
        test_equal(lost_in_child(me->oob, child, 3, KOLO_LOSS_PROCESS), 3);
        atomic_fetch_add(&done, 1);
    }
    while (atomic_load(&done) <= me->nranks) poll(NULL, 0, 1);
    kolo_oob_fini(child);
}

static void a_child_takes_over_deaths_only(void **state)
{
    (void)state;
    test_run(4, set_up_a_child);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_child_takes_over_deaths_only, test_before, test_after),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
