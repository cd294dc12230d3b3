/* SPDX-License-Identifier: Apache-2.0
 *
 * Which ranks share cores, from the cards of made-up hosts.
 */
#include "base/test.h"
#include "comm/comm.h"

#include <stdio.h>
#include <string.h>

#define RANKS_MAX 192

static kolo_peer_card_t cards[RANKS_MAX];

/* Rank `rank` of host `host` may use the cores [from, to). */
static void put(int rank, int host, int from, int to)
{
    kolo_peer_card_t *card = &cards[rank];
    memset(card, 0, sizeof *card);
    card->rank = rank;
    card->pid = 1000 + rank;
    card->host_hash = 100 + (uint64_t)host;
    card->process_hash = 100000 + (uint64_t)rank;
    card->cores = (uint32_t)(to - from);
    snprintf(card->host_name, sizeof card->host_name, "host%d", host);
    for (int c = from; c < to; c++) card->core_mask[c % 128 / 8] |= (uint8_t)(1u << c % 8);
}

/* Of the host of rank 0; NULL: nobody shares. */
static const char *shared(int nranks, uint32_t cores)
{
    static char text[320];
    kolo_member_t m;
    assert_int_equal(kolo_member_build(&m, 0, nranks, cards), KOLO_OK);
    assert_int_equal(kolo_cores_of_node(&m, m.my_node), cores);
    bool yes = kolo_cores_shared(&m, m.my_node, text, sizeof text);
    kolo_member_fini(&m);
    return yes ? text : NULL;
}

static void more_ranks_than_cores_share(void **state)
{
    (void)state;
    for (int r = 0; r < 4; r++) put(r, 0, 0, 2);
    assert_string_equal(shared(4, 2), "4 ranks share 2 cores of host host0");
    assert_null(shared(2, 2));
}

static void ranks_bound_to_the_same_core_are_named(void **state)
{
    (void)state;
    for (int r = 0; r < 4; r++) put(r, 0, r, r + 1);
    assert_null(shared(4, 4));
    put(1, 0, 3, 4);
    put(2, 0, 0, 3);
    assert_string_equal(shared(4, 4),
                        "ranks 1, 3 are bound to the same 1 core of host host0, whose ranks may use 4");
}

static void other_hosts_do_not_count(void **state)
{
    (void)state;
    for (int r = 0; r < 4; r++) put(r, r % 2, 0, 2);
    assert_null(shared(4, 2));
    for (int r = 0; r < 6; r++) put(r, r % 2, 0, r % 2 ? 1 : 4);
    assert_null(shared(6, 4));
}

static void more_cores_than_the_masks_hold(void **state)
{
    (void)state;
    for (int r = 0; r < RANKS_MAX; r++) put(r, 0, 0, RANKS_MAX);
    assert_null(shared(RANKS_MAX, RANKS_MAX));
    for (int r = 0; r < RANKS_MAX; r++) put(r, 0, r, r + 1);
    assert_null(shared(RANKS_MAX, RANKS_MAX));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_ranks_than_cores_share),
        cmocka_unit_test(ranks_bound_to_the_same_core_are_named),
        cmocka_unit_test(other_hosts_do_not_count),
        cmocka_unit_test(more_cores_than_the_masks_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
