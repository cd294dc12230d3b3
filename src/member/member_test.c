/* SPDX-License-Identifier: Apache-2.0
 *
 * Cards, their checks, the node map, and agreement, with ranks as threads.
 */
#include "base/test.h"
#include "member/member.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX = 16 };

typedef struct {
    int rank, nranks;
    const kolo_unique_id_t *id;
    kolo_peer_card_t card;
    kolo_agree_row_t rows[3];
    uint64_t values[3];
    size_t nrows;
    bool elsewhere; /* as a task of another process would: shows its card, and is not listed in this one */
    kolo_status_t status;
    char text[KOLO_ERROR_TEXT_BYTES];
    kolo_member_t member;
    pthread_t thread;
} rank_t;

static rank_t ranks[MAX];

static void *rank_main(void *arg)
{
    rank_t *me = arg;
    kolo_oob_t *oob;
    kolo_oob_config_t config = {me->rank, me->nranks, 1, me->id, 20000, NULL, "test"};
    me->status = kolo_oob_open(&config, &oob);
    if (me->status != KOLO_OK) abort();
    kolo_peer_card_t cards[MAX] = {0};
    cards[me->rank] = me->card;
    if (me->elsewhere)
        me->status = kolo_oob_all_gather(oob, cards, sizeof(cards[0]));
    else
        me->status = me->nrows > 0 ? kolo_member_agree(oob, me->rows, me->nrows)
                                   : kolo_member_gather(oob, &me->card, &me->member);
    if (me->status != KOLO_OK) snprintf(me->text, sizeof(me->text), "%s", kolo_error_text());
    kolo_oob_fini(oob);
    return NULL;
}

static void prepare(int nranks)
{
    memset(ranks, 0, sizeof(ranks));
    for (int r = 0; r < nranks; r++) {
        ranks[r].rank = r;
        ranks[r].nranks = nranks;
        assert_int_equal(kolo_member_fill_card(&ranks[r].card, r, -1), KOLO_OK);
    }
}

static void run(int nranks)
{
    kolo_unique_id_t id;
    assert_int_equal(kolo_id_create(&id), KOLO_OK);
    for (int r = 0; r < nranks; r++) {
        ranks[r].id = &id;
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    }
    for (int r = 0; r < nranks; r++) pthread_join(ranks[r].thread, NULL);
    kolo_root_stop_all();
}

static void assert_all(int nranks, kolo_status_t status, const char *a, const char *b)
{
    for (int r = 0; r < nranks; r++) {
        assert_int_equal(ranks[r].status, status);
        if (strstr(ranks[r].text, a) == NULL || strstr(ranks[r].text, b) == NULL)
            fail_msg("expected '%s' and '%s' in: %s", a, b, ranks[r].text);
    }
}

static void a_card_says_who_and_where(void **state)
{
    kolo_peer_card_t a, b;
    (void)state;
    assert_int_equal(kolo_member_fill_card(&a, 3, 5), KOLO_OK);
    assert_int_equal(kolo_member_fill_card(&b, 4, -1), KOLO_OK);
    assert_int_equal(a.rank, 3);
    assert_int_equal(a.device, 5);
    assert_int_equal(a.version, KOLO_VERSION);
    assert_true(a.host_hash == b.host_hash);
    assert_true(a.process_hash == b.process_hash);
    assert_true(a.process_hash != a.host_hash);
    assert_true(a.shm_hash != 0);
    assert_true(a.cores >= 1);
    assert_true(strlen(a.host_name) > 0);
}

static const char *other_host(const char *key, void *arg)
{
    return strcmp(key, "KOLO_HOST_ID") == 0 ? arg : NULL;
}

/* Parameters are read once in the life of a process; whoever reads them again owns the earlier text. */
static void free_host_id(void)
{
    for (size_t i = 0; i < kolo_member_params.count; i++)
        if (strcmp(kolo_member_params.rows[i].key, "KOLO_HOST_ID") == 0)
            free(*(char **)kolo_member_params.rows[i].value);
}

static void a_host_id_stands_for_the_host(void **state)
{
    const kolo_param_table_t *tables[] = {&kolo_member_params};
    kolo_peer_card_t plain, first, second, same;
    (void)state;
    assert_int_equal(kolo_member_fill_card(&plain, 0, -1), KOLO_OK);
    assert_int_equal(kolo_params_load(tables, 1, other_host, "one"), KOLO_OK);
    assert_int_equal(kolo_member_fill_card(&first, 0, -1), KOLO_OK);
    assert_int_equal(kolo_member_fill_card(&same, 1, -1), KOLO_OK);
    free_host_id();
    assert_int_equal(kolo_params_load(tables, 1, other_host, "two"), KOLO_OK);
    assert_int_equal(kolo_member_fill_card(&second, 0, -1), KOLO_OK);
    free_host_id();
    assert_int_equal(kolo_params_load(tables, 1, other_host, NULL), KOLO_OK);
    assert_true(first.host_hash != second.host_hash && first.host_hash != plain.host_hash);
    assert_true(first.host_hash == same.host_hash && first.shm_hash == same.shm_hash);
    assert_true(first.shm_hash != second.shm_hash);
}

static void nodes_are_numbered_by_their_lowest_rank(void **state)
{
    static const uint64_t hosts[10] = {9, 2, 9, 7, 2, 9, 7, 7, 7, 1};
    static const int node[10] = {0, 1, 0, 2, 1, 0, 2, 2, 2, 3}, local[10] = {0, 0, 1, 0, 1, 2, 1, 2, 3, 0};
    static const int grouped[10] = {0, 2, 5, 1, 4, 3, 6, 7, 8, 9}, size[4] = {3, 2, 4, 1};
    kolo_peer_card_t cards[10];
    kolo_member_t m;
    (void)state;
    memset(cards, 0, sizeof(cards));
    for (int r = 0; r < 10; r++) {
        cards[r].rank = r;
        cards[r].host_hash = hosts[r];
    }
    assert_int_equal(kolo_member_build(&m, 4, 10, cards), KOLO_OK);
    assert_int_equal(m.nnodes, 4);
    assert_int_equal(m.my_node, 1);
    for (int r = 0; r < 10; r++) {
        assert_int_equal(m.node_of[r], node[r]);
        assert_int_equal(m.local_of[r], local[r]);
        assert_int_equal(m.node_ranks[r], grouped[r]);
        assert_int_equal(m.node_ranks[m.node_first[node[r]] + local[r]], r);
    }
    for (int n = 0; n < 4; n++) assert_int_equal(m.node_size[n], size[n]);
    kolo_member_fini(&m);
    kolo_member_fini(&m);
    assert_int_equal(kolo_member_build(&m, 10, 10, cards), KOLO_ERR_INVALID_ARGUMENT);
}

static void all_ranks_see_all_cards(void **state)
{
    (void)state;
    for (int n = 1; n <= MAX; n += 5) {
        prepare(n);
        for (int r = 0; r < n; r++) ranks[r].card.device = r;
        run(n);
        for (int r = 0; r < n; r++) {
            assert_int_equal(ranks[r].status, KOLO_OK);
            assert_int_equal(ranks[r].member.nnodes, 1);
            for (int p = 0; p < n; p++)
                assert_memory_equal(&ranks[r].member.peers[p], &ranks[p].card, sizeof(kolo_peer_card_t));
            kolo_member_fini(&ranks[r].member);
        }
    }
}

static void devices_on_some_ranks_alone_are_refused_with_both_names(void **state)
{
    (void)state;
    prepare(5);
    for (int r = 0; r < 5; r++) ranks[r].card.device = r == 3 ? -1 : 0;
    run(5);
    assert_all(5, KOLO_ERR_MISMATCH, "rank 0", "rank 3");
    prepare(3); /* equal numbers are fine: they are each process's own */
    for (int r = 0; r < 3; r++) ranks[r].card.device = 0;
    run(3);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(ranks[r].status, KOLO_OK);
        kolo_member_fini(&ranks[r].member);
    }
}

static void another_version_is_refused_with_both_versions(void **state)
{
    (void)state;
    prepare(3);
    ranks[2].card.version = 777;
    run(3);
    assert_all(2, KOLO_ERR_MISMATCH, "rank 2", "777");
    assert_int_equal(ranks[2].status, KOLO_ERR_MISMATCH);
}

static void set_row(rank_t *rank, int i, const char *key, kolo_agree_kind_t kind, uint64_t value)
{
    rank->values[i] = value;
    rank->rows[i] = (kolo_agree_row_t){key, kind, &rank->values[i]};
    rank->nrows = (size_t)i + 1;
}

/* Who is believed to be in this process is given plain addresses of its memory. */
static void who_shows_the_card_of_another_process_is_not_believed_to_be_in_it(void **state)
{
    (void)state;
    prepare(3);
    ranks[1].elsewhere = true; /* with a card that says "in the process of ranks 0 and 2" */
    run(3);
    for (int r = 0; r < 3; r += 2) {
        assert_int_equal(ranks[r].status, KOLO_ERR_AUTH);
        assert_non_null(strstr(ranks[r].text, "rank 1 says that it is in process"));
    }
    prepare(3); /* the honest way, afterwards */
    run(3);
    assert_all(3, KOLO_OK, "", "");
    for (int r = 0; r < 3; r++) kolo_member_fini(&ranks[r].member);
}

static void ranks_adopt_common_values(void **state)
{
    (void)state;
    prepare(9);
    for (int r = 0; r < 9; r++) {
        set_row(&ranks[r], 0, "lanes", KOLO_AGREE_MIN, (uint64_t)(8 + (r * 5) % 9));
        set_row(&ranks[r], 1, "slots", KOLO_AGREE_MAX, (uint64_t)((r * 5) % 9));
        set_row(&ranks[r], 2, "table", KOLO_AGREE_EQUAL, 42);
    }
    run(9);
    for (int r = 0; r < 9; r++) {
        assert_int_equal(ranks[r].status, KOLO_OK);
        assert_int_equal(ranks[r].values[0], 8);
        assert_int_equal(ranks[r].values[1], 8);
        assert_int_equal(ranks[r].values[2], 42);
    }
}

static void what_cannot_be_agreed_names_rank_key_and_both_values(void **state)
{
    (void)state;
    prepare(4);
    for (int r = 0; r < 4; r++) {
        set_row(&ranks[r], 0, "lanes", KOLO_AGREE_MIN, (uint64_t)r + 1);
        set_row(&ranks[r], 1, "KOLO_SLOT_BYTES", KOLO_AGREE_EQUAL, r == 2 ? 4096 : 65536);
    }
    run(4);
    assert_all(4, KOLO_ERR_MISMATCH, "rank 2 has KOLO_SLOT_BYTES = 4096", "rank 0 has 65536");
    for (int r = 0; r < 4; r++) assert_int_equal(ranks[r].values[0], r + 1); /* nothing was adopted */
    prepare(3);
    for (int r = 0; r < 3; r++) set_row(&ranks[r], 0, r == 1 ? "this" : "that", KOLO_AGREE_MIN, 1);
    run(3);
    assert_all(3, KOLO_ERR_MISMATCH, "rank 1", "different lists");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_card_says_who_and_where),
        cmocka_unit_test(a_host_id_stands_for_the_host),
        cmocka_unit_test(nodes_are_numbered_by_their_lowest_rank),
        cmocka_unit_test(all_ranks_see_all_cards),
        cmocka_unit_test(devices_on_some_ranks_alone_are_refused_with_both_names),
        cmocka_unit_test(another_version_is_refused_with_both_versions),
        cmocka_unit_test(who_shows_the_card_of_another_process_is_not_believed_to_be_in_it),
        cmocka_unit_test(ranks_adopt_common_values),
        cmocka_unit_test(what_cannot_be_agreed_names_rank_key_and_both_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
