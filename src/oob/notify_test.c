/* SPDX-License-Identifier: Apache-2.0
 *
 * Notifications reach a rank whose thread does something else, in order and each once; a rank without a connection
 * is told.
 */
#include "oob/oob_test_util.h"

#define ROUNDS 100

typedef struct {
    kolo_oob_t *oob;
    kolo_gate_t gate;
    _Atomic uint64_t last, wrong, count;
} listener_t;

static void on_notify(void *arg, int from, uint64_t number)
{
    listener_t *l = arg;
    if (number != atomic_load(&l->last) + 1) atomic_fetch_add(&l->wrong, 1);
    if (from != (kolo_oob_rank(l->oob) + kolo_oob_nranks(l->oob) - 1) % kolo_oob_nranks(l->oob))
        atomic_fetch_add(&l->wrong, 1);
    atomic_store(&l->last, number);
    atomic_fetch_add(&l->count, 1);
    kolo_gate_open(&l->gate);
}

static void notify_the_next(test_rank_t *me)
{
    listener_t l = {.oob = me->oob};
    kolo_wait_t wait;
    int next = (me->rank + 1) % me->nranks;
    kolo_oob_set_notify(me->oob, on_notify, &l);
    test_ok(kolo_oob_send(me->oob, next, 5, NULL, 0));
    test_ok(kolo_oob_barrier(me->oob));
    for (uint64_t i = 1; i <= ROUNDS; i++) test_ok(kolo_oob_notify(me->oob, next, i));
    kolo_wait_init(&wait, NULL, kolo_deadline_ms(20000), NULL, NULL, 1);
    for (;;) {
        uint32_t ticket = kolo_gate_ticket(&l.gate);
        if (atomic_load(&l.last) == ROUNDS) break;
        test_ok(kolo_gate_wait(&l.gate, ticket, &wait));
    }
    test_equal(atomic_load(&l.count), ROUNDS);
    test_equal(atomic_load(&l.wrong), 0);
    test_ok(kolo_oob_recv(me->oob, (me->rank + me->nranks - 1) % me->nranks, 5, NULL, 0, 0));
    test_ok(kolo_oob_barrier(me->oob));
    kolo_oob_set_notify(me->oob, NULL, NULL);
}

static void notifications_come_in_order(void **state)
{
    (void)state;
    test_run(2, notify_the_next);
    test_run(5, notify_the_next);
}

static void notify_a_stranger(test_rank_t *me)
{
    if (me->rank == 0) test_equal(kolo_oob_notify(me->oob, 9, 1), KOLO_ERR_REMOTE);
    test_ok(kolo_oob_barrier(me->oob));
}

static void without_a_connection_it_is_an_error(void **state)
{
    (void)state;
    test_run(20, notify_a_stranger);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(notifications_come_in_order, test_before, test_after),
        cmocka_unit_test_setup_teardown(without_a_connection_it_is_an_error, test_before, test_after),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
