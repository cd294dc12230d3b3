/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank that has left in order may end at any time. Whoever is connected to it hears so, also who calls it
 * afterwards, and behind whatever was still on its way.
 */
#include "oob/oob_test_util.h"

#define SOON_MS  20000u
#define MESSAGES 48 /* more than the receiver takes before it asks, and than sockets hold */
#define LARGE    (1u << 20)

static atomic_int met, left, told;

static bool has_said_farewell(kolo_oob_t *oob, int rank)
{
    pthread_mutex_lock(&oob->lock);
    const kolo_peer_t *peer = kolo_peer_find(oob, rank);
    bool said = peer != NULL && peer->farewell;
    pthread_mutex_unlock(&oob->lock);
    return said;
}

/* As long as the other one does nothing more that would say it. */
static bool hears_farewell(kolo_oob_t *oob, int rank)
{
    uint64_t end = kolo_deadline_ms(SOON_MS);
    while (!has_said_farewell(oob, rank) && kolo_now_ns() < end) poll(NULL, 0, 1);
    return has_said_farewell(oob, rank);
}

static void await(atomic_int *count, int n)
{
    while (atomic_load(count) < n) poll(NULL, 0, 1);
}

/* Three places are no power of two: the exchanges of a start have not connected these. */
static void call_one_that_has_left(test_rank_t *me)
{
    uint64_t word = 7;
    test_ok(kolo_oob_barrier(me->oob));
    atomic_fetch_add(&met, 1);
    await(&met, me->nranks);
    if (me->rank == 0) {
        test_false(kolo_oob_connected(me->oob, 3));
        kolo_oob_take_leave(me->oob);
        atomic_store(&left, 1);
    }
    await(&left, 1);
    if (me->rank == 3) {
        test_ok(kolo_oob_send(me->oob, 0, 1, &word, sizeof(word)));
        test_true(hears_farewell(me->oob, 0));
        atomic_store(&told, 1);
    }
    await(&told, 1);
}

static void who_calls_a_rank_that_has_left_hears_so(void **state)
{
    (void)state;
    test_run(6, call_one_that_has_left);
}

static void *send_all(void *arg)
{
    static const uint8_t data[LARGE];
    for (uint64_t i = 0; i < MESSAGES; i++) test_ok(kolo_oob_send(arg, 1, i, data, sizeof(data)));
    return NULL;
}

static bool has_unsent(kolo_oob_t *oob, int rank)
{
    pthread_mutex_lock(&oob->lock);
    const kolo_peer_t *peer = kolo_peer_find(oob, rank);
    bool unsent = peer != NULL && peer->out != NULL && peer->out->out != NULL;
    pthread_mutex_unlock(&oob->lock);
    return unsent;
}

static void leave_behind_messages(test_rank_t *me)
{
    if (me->rank == 0) {
        pthread_t thread;
        test_equal(pthread_create(&thread, NULL, send_all, me->oob), 0);
        for (int quiet = 0; quiet < 20; quiet = has_unsent(me->oob, 1) ? quiet + 1 : 0) poll(NULL, 0, 1);
        kolo_oob_take_leave(me->oob);
        atomic_store(&left, 1);
        pthread_join(thread, NULL);
        await(&told, 1);
        return;
    }
    uint8_t *data = malloc(LARGE);
    await(&left, 1);
    for (uint64_t i = 0; i < MESSAGES; i++) test_ok(kolo_oob_recv(me->oob, 0, i, data, LARGE, 0));
    free(data);
    test_true(hears_farewell(me->oob, 0));
    atomic_store(&told, 1);
}

static void a_farewell_follows_what_is_still_on_its_way(void **state)
{
    (void)state;
    test_run(2, leave_behind_messages);
}

static int before(void **state)
{
    atomic_store(&met, 0);
    atomic_store(&left, 0);
    atomic_store(&told, 0);
    return test_before(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(who_calls_a_rank_that_has_left_hears_so, before, test_after),
        cmocka_unit_test_setup_teardown(a_farewell_follows_what_is_still_on_its_way, before, test_after),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
