/* SPDX-License-Identifier: Apache-2.0
 *
 * Shrinks, and splits that share, take what they know from their parent: no card goes round, and what comes of it
 * is the same. Ranks are four handles of one thread.
 */
#include "base/failpoint.h"
#include "base/test.h"
#include "comm/call/call.h"
#include "comm/life/life.h"

#include <poll.h>
#include <string.h>

enum { RANKS = 4 };

static _Atomic int exchanges; /* of cards, by any rank */

static void count(const char *name, kolo_fault_t fault)
{
    (void)fault;
    if (strcmp(name, "member.cards") == 0) atomic_fetch_add(&exchanges, 1);
}

static void settle(kolo_comm_t comm)
{
    kolo_status_t status = KOLO_IN_PROGRESS;
    while (status == KOLO_IN_PROGRESS) {
        assert_int_equal(kolo_comm_get_async_error(comm, &status), KOLO_OK);
        if (status == KOLO_IN_PROGRESS) poll(NULL, 0, 1);
    }
    if (status != KOLO_OK) print_error("%s\n", kolo_get_last_error(comm));
    assert_int_equal(status, KOLO_OK);
}

static void make_all(kolo_comm_t *comms)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.init_timeout_ms = 20000;
    assert_int_equal(kolo_comm_init_all(comms, RANKS, &config), KOLO_OK);
    atomic_store(&exchanges, 0);
}

static void assert_begun(kolo_status_t status) /* a first use connects in the background */
{
    if (status != KOLO_IN_PROGRESS) assert_int_equal(status, KOLO_OK);
}

/* The sum of rank + 1 and its place in a gathered row: n handles of one communicator, in the order of its ranks. */
static void assert_works(kolo_comm_t *comms, int n)
{
    int64_t in[RANKS], sum[RANKS], all[RANKS][RANKS];
    assert_int_equal(kolo_group_start(), KOLO_OK);
    for (int r = 0; r < n; r++) {
        in[r] = r + 1;
        assert_begun(kolo_all_reduce(&in[r], &sum[r], 1, KOLO_INT64, KOLO_SUM, comms[r], NULL));
        assert_begun(kolo_all_gather(&in[r], all[r], 1, KOLO_INT64, comms[r], NULL));
    }
    assert_begun(kolo_group_end());
    for (int r = 0; r < n; r++) settle(comms[r]);
    for (int r = 0; r < n; r++) {
        assert_int_equal(sum[r], n * (n + 1) / 2);
        for (int i = 0; i < n; i++) assert_int_equal(all[r][i], i + 1);
    }
}

static void end_all(kolo_comm_t *comms, int n)
{
    for (int r = 0; r < n; r++) assert_int_equal(kolo_comm_destroy(comms[r]), KOLO_OK);
}

/* Even ranks and odd ones, the larger first; share[r] is what rank r asks for. */
static void split_by_two(kolo_comm_t *comms, const int *share, kolo_comm_t parts[2][RANKS])
{
    kolo_comm_t made[RANKS] = {NULL};
    for (int r = 0; r < RANKS; r++) {
        kolo_config_t config = KOLO_CONFIG_INITIALIZER;
        config.blocking = 0;
        config.split_share = share[r];
        assert_int_equal(kolo_comm_split(comms[r], r % 2, -r, &made[r], &config), KOLO_IN_PROGRESS);
    }
    for (int r = 0; r < RANKS; r++) {
        settle(made[r]);
        parts[r % 2][RANKS / 2 - 1 - r / 2] = made[r];
    }
}

static void assert_split(const int *share, int asked)
{
    kolo_comm_t comms[RANKS], parts[2][RANKS];
    make_all(comms);
    split_by_two(comms, share, parts);
    assert_int_equal(atomic_load(&exchanges), asked);
    for (int i = 0; i < 2; i++) assert_works(parts[i], RANKS / 2);
    assert_works(comms, RANKS);
    end_all(comms, RANKS);
    for (int i = 0; i < 2; i++) assert_works(parts[i], RANKS / 2); /* what was shared is theirs, too */
    for (int i = 0; i < 2; i++) end_all(parts[i], RANKS / 2);
}

static void a_split_asks_all_unless_all_share(void **state)
{
    (void)state;
    assert_split((int[]){0, 0, 0, 0}, RANKS);
    assert_split((int[]){1, 1, 1, 1}, 0);
    assert_split((int[]){1, 1, 0, 1}, RANKS / 2); /* the other color shares all the same */
    assert_split((int[]){0, 0, 0, 1}, RANKS);
}

static void a_part_hands_it_on(void **state)
{
    (void)state;
    kolo_comm_t comms[RANKS], parts[2][RANKS], again[RANKS / 2];
    make_all(comms);
    split_by_two(comms, (int[]){1, 1, 1, 1}, parts);
    end_all(comms, RANKS);
    for (int r = 0; r < RANKS / 2; r++) /* no config: the parent's */
        assert_int_equal(kolo_comm_split(parts[1][r], 0, -r, &again[r], NULL), KOLO_IN_PROGRESS);
    for (int r = 0; r < RANKS / 2; r++) settle(again[r]);
    assert_int_equal(atomic_load(&exchanges), 0);
    kolo_comm_t turned[] = {again[1], again[0]};
    assert_works(turned, RANKS / 2);
    for (int i = 0; i < 2; i++) end_all(parts[i], RANKS / 2);
    assert_works(turned, RANKS / 2);
    end_all(turned, RANKS / 2);
}

static void a_shrink_asks_nobody(void **state)
{
    (void)state;
    kolo_comm_t comms[RANKS], left[RANKS];
    int excluded[] = {1}, n = 0;
    make_all(comms);
    for (int r = 0; r < RANKS; r++) {
        kolo_config_t config = KOLO_CONFIG_INITIALIZER;
        config.blocking = 0;
        if (r == 1) continue;
        assert_int_equal(kolo_comm_shrink(comms[r], excluded, 1, KOLO_SHRINK_DEFAULT, &left[n++], &config),
                         KOLO_IN_PROGRESS);
    }
    for (int r = 0; r < n; r++) settle(left[r]);
    assert_int_equal(atomic_load(&exchanges), 0);
    assert_works(left, n);
    assert_works(comms, RANKS);
    end_all(comms, RANKS);
    assert_works(left, n);
    end_all(left, n);
}

static void what_is_neither_yes_nor_no_is_refused(void **state)
{
    (void)state;
    kolo_comm_t comms[RANKS], part;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    make_all(comms);
    config.split_share = 2;
    assert_int_equal(kolo_comm_split(comms[0], 0, 0, &part, &config), KOLO_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(kolo_get_last_error(NULL), "split_share is 2"));
    end_all(comms, RANKS);
}

/* Nothing can be taken over from a communicator that never came about. */
static void what_was_never_set_up_is_not_shrunk(void **state)
{
    (void)state;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_unique_id_t id;
    kolo_comm_t comm, rest;
    kolo_status_t status = KOLO_IN_PROGRESS;
    config.blocking = 0;
    config.init_timeout_ms = 200;
    assert_int_equal(kolo_get_unique_id(&id), KOLO_OK);
    assert_int_equal(kolo_comm_init_rank(&comm, 2, id, 0, &config), KOLO_IN_PROGRESS);
    while (status == KOLO_IN_PROGRESS && kolo_comm_get_async_error(comm, &status) == KOLO_OK) poll(NULL, 0, 1);
    assert_int_equal(status, KOLO_ERR_TIMEOUT);
    config.blocking = 1;
    assert_int_equal(kolo_comm_shrink(comm, NULL, 0, KOLO_SHRINK_DEFAULT, &rest, &config), KOLO_ERR_INVALID_USAGE);
    assert_non_null(strstr(kolo_get_last_error(NULL), "never"));
    assert_int_equal(kolo_comm_destroy(comm), KOLO_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_split_asks_all_unless_all_share),
        cmocka_unit_test(a_part_hands_it_on),
        cmocka_unit_test(a_shrink_asks_nobody),
        cmocka_unit_test(what_is_neither_yes_nor_no_is_refused),
        cmocka_unit_test(what_was_never_set_up_is_not_shrunk),
    };
    kolo_fail_point_hook = count;
    kolo_fail_points_watch();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
