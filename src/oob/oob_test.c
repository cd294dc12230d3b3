/* SPDX-License-Identifier: Apache-2.0
 *
 * The out-of-band room with ranks as threads over real sockets: joining at several sizes, collectives, messages,
 * streams, children, and that nothing remains afterwards.
 */
#include "meet/meet.h"
#include "oob/oob_test_util.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- joining and collectives ---- */

static void check_table(const uint64_t *table, int nranks, int words, uint64_t salt)
{
    for (int r = 0; r < nranks; r++)
        for (int w = 0; w < words; w++) test_true(table[r * words + w] == salt + (uint64_t)(r * words + w));
}

static void gather_rows(kolo_oob_t *oob, int words, uint64_t salt)
{
    int n = kolo_oob_nranks(oob), r = kolo_oob_rank(oob);
    uint64_t *table = calloc((size_t)(n * words) + 1, sizeof(*table));
    for (int w = 0; w < words; w++) table[r * words + w] = salt + (uint64_t)(r * words + w);
    test_ok(kolo_oob_all_gather(oob, table, (size_t)words * sizeof(*table)));
    check_table(table, n, words, salt);
    free(table);
}

static void use_everything(test_rank_t *me)
{
    kolo_oob_t *oob = me->oob;
    int n = me->nranks;
    gather_rows(oob, 1, 7);
    gather_rows(oob, 16, 1000);
    gather_rows(oob, n <= 16 ? 8192 : 300, 5);
    test_ok(kolo_oob_barrier(oob));
    for (int root = 0; root < n && root < 5; root++) {
        char text[40] = "";
        if (me->rank == root) snprintf(text, sizeof(text), "word of %d", root);
        test_ok(kolo_oob_broadcast(oob, root, text, sizeof(text)));
        test_true(atoi(text + 8) == root);
    }
    uint64_t job = kolo_oob_job(oob), both[2] = {job, 0};
    uint8_t key[32];
    kolo_oob_derive_key(oob, "test", key);
    memcpy(&both[1], key, 8);
    uint64_t *jobs = calloc((unsigned)n, sizeof(both));
    memcpy(jobs + 2 * me->rank, both, sizeof(both));
    test_ok(kolo_oob_all_gather(oob, jobs, sizeof(both)));
    for (int r = 0; r < n; r++) test_true(memcmp(jobs + 2 * r, both, sizeof(both)) == 0);
    test_true(kolo_oob_memory(oob) >= (size_t)n * 32);
    free(jobs);
}

static void *receive_from_oneself(void *arg)
{
    kolo_oob_t *oob = arg;
    int got = 0;
    test_ok(kolo_oob_recv(oob, kolo_oob_rank(oob), 3, &got, sizeof got, 0));
    test_equal(got, 17);
    return NULL;
}

/* The receive waits already when the send comes. */
static void send_to_oneself(test_rank_t *me)
{
    kolo_oob_t *oob = me->oob;
    const int word = 17;
    pthread_t thread;
    test_true(pthread_create(&thread, NULL, receive_from_oneself, oob) == 0);
    for (bool waits = false; !waits; poll(NULL, 0, 1)) {
        pthread_mutex_lock(&oob->lock);
        waits = oob->awaiting != NULL;
        pthread_mutex_unlock(&oob->lock);
    }
    test_ok(kolo_oob_send(oob, me->rank, 3, &word, sizeof word));
    pthread_join(thread, NULL);
}

static void a_thread_hears_its_own_rank(void **state)
{
    (void)state;
    test_run(2, send_to_oneself);
}

static void ranks_join_and_exchange(void **state)
{
    static const int sizes[] = {1, 2, 3, 5, 8, 9, 16, 64};
    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) test_run(sizes[i], use_everything);
}

static void several_roots_share_the_ranks(void **state)
{
    (void)state;
    for (int nids = 2; nids <= 5; nids++) test_run_roots(nids == 2 ? 2 : 13, nids, use_everything);
}

static void large_broadcast_and_gather(test_rank_t *me)
{
    size_t bytes = (3u << 20) + 5;
    uint8_t *data = malloc(bytes);
    memset(data, me->rank == 1 ? 0x5a : 0, bytes);
    test_ok(kolo_oob_broadcast(me->oob, 1, data, bytes));
    for (size_t i = 0; i < bytes; i += 4099) test_true(data[i] == 0x5a);
    free(data);
    gather_rows(me->oob, 1 << 17, 9); /* 1 MiB rows */
}

static void large_data_passes(void **state)
{
    (void)state;
    test_run(3, large_broadcast_and_gather);
    test_run(10, large_broadcast_and_gather);
}

/* ---- messages ---- */

static void all_pairs(test_rank_t *me)
{
    int n = me->nranks;
    for (int i = 0; i < n; i++) { /* nobody receives before all have sent: sends must not wait for the receiver */
        uint64_t word = (uint64_t)me->rank * 1000 + (uint64_t)i;
        test_ok(kolo_oob_send(me->oob, i, 42, &word, sizeof(word)));
        test_ok(kolo_oob_send(me->oob, i, 41, NULL, 0));
    }
    for (int i = n - 1; i >= 0; i--) {
        uint64_t word = 0;
        test_ok(kolo_oob_recv(me->oob, i, 41, NULL, 0, 0));
        test_ok(kolo_oob_recv(me->oob, i, 42, &word, sizeof(word), 0));
        test_true(word == (uint64_t)(i * 1000 + me->rank));
    }
    test_ok(kolo_oob_barrier(me->oob));
}

static void any_rank_sends_to_any(void **state)
{
    (void)state;
    test_run(2, all_pairs);
    test_run(7, all_pairs);
    test_run(20, all_pairs);
}

static void tags_and_sizes(test_rank_t *me)
{
    static const size_t sizes[] = {0, 1, 23, 4096, 65536, 1u << 20};
    enum { COUNT = 6 };
    int peer = 1 - me->rank;
    uint8_t *data = malloc(1u << 20);
    for (int i = 0; i < COUNT; i++) {
        memset(data, i + 1, sizes[i]);
        test_ok(kolo_oob_send(me->oob, peer, (uint64_t)i << 40, data, sizes[i]));
        test_ok(kolo_oob_send(me->oob, peer, 7, &i, sizeof(i))); /* one tag many times: in order */
    }
    for (int i = COUNT - 1; i >= 0; i--) {
        memset(data, 0, 1u << 20);
        test_ok(kolo_oob_recv(me->oob, peer, (uint64_t)i << 40, data, sizes[i], 0));
        for (size_t b = 0; b < sizes[i]; b++) test_true(data[b] == i + 1);
    }
    for (int i = 0; i < COUNT; i++) {
        int got = -1;
        test_ok(kolo_oob_recv(me->oob, peer, 7, &got, sizeof(got), 0));
        test_equal(got, i);
    }
    test_equal(kolo_oob_send(me->oob, peer, 1, data, (1u << 20) + 1), KOLO_ERR_INVALID_ARGUMENT);
    test_equal(kolo_oob_send(me->oob, 2, 1, data, 1), KOLO_ERR_INVALID_ARGUMENT);
    test_equal(kolo_oob_recv(me->oob, -1, 1, data, 1, 0), KOLO_ERR_INVALID_ARGUMENT);
    free(data);
    test_ok(kolo_oob_barrier(me->oob));
}

static void tags_come_out_of_order_and_large(void **state)
{
    (void)state;
    test_run(2, tags_and_sizes);
}

static void wrong_length(test_rank_t *me)
{
    uint64_t word = 0;
    if (me->rank == 0) {
        test_ok(kolo_oob_send(me->oob, 1, 3, &word, sizeof(word)));
    } else {
        test_equal(kolo_oob_recv(me->oob, 0, 3, &word, 4, 0), KOLO_ERR_MISMATCH);
        test_says(kolo_error_text(), "rank 0");
    }
}

static void a_message_of_another_length_is_a_mismatch(void **state)
{
    (void)state;
    test_run(2, wrong_length);
}

static void receive_late(test_rank_t *me)
{
    uint64_t word = 5;
    if (me->rank == 1) { /* gives up, and gets it later */
        test_equal(kolo_oob_recv(me->oob, 0, 9, &word, sizeof(word), kolo_deadline_ms(60)), KOLO_ERR_TIMEOUT);
        test_says(kolo_error_text(), "from rank 0");
    }
    test_ok(kolo_oob_barrier(me->oob));
    if (me->rank == 0) test_ok(kolo_oob_send(me->oob, 1, 9, &word, sizeof(word)));
    if (me->rank == 1) test_ok(kolo_oob_recv(me->oob, 0, 9, &word, sizeof(word), 0));
}

static void a_receive_that_timed_out_can_be_repeated(void **state)
{
    (void)state;
    test_run(2, receive_late);
}

static void flood(test_rank_t *me)
{
    enum { COUNT = 40 };
    uint8_t *data = calloc(1, 1u << 20);
    kolo_oob_t *oob = me->oob;
    if (me->rank == 0) {
        for (uint64_t i = 0; i < COUNT; i++) test_ok(kolo_oob_send(oob, 1, i, data, 1u << 20));
    } else {
        poll(NULL, 0, 150); /* let it run into the bound */
        test_true(kolo_oob_memory(oob) <= (size_t)(17u << 20) + 65536);
        for (uint64_t i = 0; i < COUNT; i++) test_ok(kolo_oob_recv(oob, 0, i, data, 1u << 20, 0));
    }
    free(data);
}

static void early_messages_are_bounded_and_none_is_lost(void **state)
{
    (void)state;
    test_run(2, flood);
}

/* ---- streams ---- */

static void streams(test_rank_t *me)
{
    int n = me->nranks, next = (me->rank + 1) % n, before = (me->rank + n - 1) % n;
    kolo_socket_t sockets[8];
    for (int i = 0; i < 4; i++) test_ok(kolo_oob_dial(me->oob, next, (uint64_t)i, 0, &sockets[i]));
    for (int i = 3; i >= 0; i--) test_ok(kolo_oob_accept(me->oob, before, (uint64_t)i, 0, &sockets[4 + i]));
    for (int i = 0; i < 4; i++) {
        char mine = (char)(me->rank * 4 + i), theirs = -1;
        test_equal(kolo_socket_send_bytes(&sockets[i], &mine, 1), 1);
        struct pollfd ready = {sockets[4 + i].fd, POLLIN, 0};
        test_equal(poll(&ready, 1, 30000), 1);
        test_equal(kolo_socket_recv_bytes(&sockets[4 + i], &theirs, 1), 1);
        test_equal(theirs, before * 4 + i);
    }
    kolo_socket_t none = {.fd = -1};
    test_equal(kolo_oob_accept(me->oob, before, 99, kolo_deadline_ms(50), &none), KOLO_ERR_TIMEOUT);
    test_equal(none.fd, -1);
    for (int i = 0; i < 8; i++) kolo_socket_close(&sockets[i]);
    test_ok(kolo_oob_barrier(me->oob));
}

static void streams_are_handed_over(void **state)
{
    (void)state;
    test_run(2, streams);
    test_run(5, streams);
}

/* ---- two threads of a rank ---- */

static void *answer(void *arg)
{
    kolo_oob_t *oob = arg;
    test_ok(kolo_oob_recv(oob, 1, 1, NULL, 0, kolo_deadline_ms(5000)));
    test_ok(kolo_oob_send(oob, 1, 2, NULL, 0));
    return NULL;
}

/* Rank 1 comes to the all-gather only when it has its answer, which rank 0 gives beside that all-gather. */
static void answer_beside(test_rank_t *me)
{
    pthread_t thread;
    if (me->rank == 0) test_equal(pthread_create(&thread, NULL, answer, me->oob), 0);
    poll(NULL, 0, me->rank == 0 ? 50 : 150); /* so that they wait in this order */
    if (me->rank == 1) {
        test_ok(kolo_oob_send(me->oob, 0, 1, NULL, 0));
        test_ok(kolo_oob_recv(me->oob, 0, 2, NULL, 0, 0));
    }
    gather_rows(me->oob, 1, 7);
    if (me->rank == 0) pthread_join(thread, NULL);
}

static void a_thread_is_answered_beside_an_all_gather_of_another(void **state)
{
    (void)state;
    test_run(2, answer_beside);
}

/* ---- children ---- */

static void split(test_rank_t *me)
{
    int n = me->nranks, color = me->rank % 2, members = 0, rank = 0;
    kolo_oob_child_t *child, *unused;
    uint8_t *all = calloc((size_t)n, KOLO_OOB_ADDRESS_BYTES), *mine = calloc((size_t)n, KOLO_OOB_ADDRESS_BYTES);
    uint8_t dropped[KOLO_OOB_ADDRESS_BYTES];
    test_ok(kolo_oob_prepare_child(me->oob, &unused, dropped));
    kolo_oob_discard_child(unused);
    test_ok(kolo_oob_prepare_child(me->oob, &child, all + me->rank * KOLO_OOB_ADDRESS_BYTES));
    test_ok(kolo_oob_all_gather(me->oob, all, KOLO_OOB_ADDRESS_BYTES));
    for (int r = color; r < n; r += 2) {
        if (r == me->rank) rank = members;
        memcpy(mine + members++ * KOLO_OOB_ADDRESS_BYTES, all + r * KOLO_OOB_ADDRESS_BYTES, KOLO_OOB_ADDRESS_BYTES);
    }
    kolo_oob_config_t config = {.rank = rank, .nranks = members, .timeout_ms = 30000, .name = "child"};
    test_rank_t in_child = {.rank = rank, .nranks = members};
    test_ok(kolo_oob_open_child(child, &config, 77, mine, &in_child.oob));
    test_true(kolo_oob_job(in_child.oob) != kolo_oob_job(me->oob));
    use_everything(&in_child);
    test_ok(kolo_oob_barrier(me->oob));
    kolo_oob_fini(in_child.oob);
    free(all);
    free(mine);
    test_ok(kolo_oob_barrier(me->oob));
}

static void a_child_works_beside_its_parent(void **state)
{
    (void)state;
    test_run(5, split);
    test_run(24, split);
}

/* ---- addresses ---- */

static void ranks_join_over_ipv6(void **state)
{
    (void)state;
    kolo_link_values.socket_family = KOLO_FAMILY_IPV6;
    kolo_link_values.socket_ifname = "=lo";
    kolo_unique_id_t id;
    bool possible = kolo_id_create(&id) == KOLO_OK;
    kolo_root_stop_all();
    if (possible) test_run(9, use_everything);
    kolo_link_values.socket_family = KOLO_FAMILY_AUTO;
    kolo_link_values.socket_ifname = NULL;
    if (!possible) skip();
}

static void interface_lists_follow_the_syntax(void **state)
{
    (void)state;
    test_true(kolo_address_ifname_matches("eth,ib", "eth0"));
    test_true(kolo_address_ifname_matches("eth,ib", "ib12"));
    test_false(kolo_address_ifname_matches("eth,ib", "lo"));
    test_true(kolo_address_ifname_matches("=eth0", "eth0"));
    test_false(kolo_address_ifname_matches("=eth0", "eth01"));
    test_false(kolo_address_ifname_matches("^docker,lo", "docker0"));
    test_true(kolo_address_ifname_matches("^docker,lo", "eth0"));
    test_true(kolo_address_ifname_matches("^=docker0", "docker01"));
    test_false(kolo_address_ifname_matches("^=docker0", "docker0"));
}

static void who_names_no_interface_is_told_which_there_are(void **state)
{
    (void)state;
    kolo_link_values.socket_ifname = "eth99";
    test_equal(kolo_id_check_interfaces(), KOLO_ERR_INVALID_USAGE);
    kolo_link_values.socket_ifname = NULL;
    test_true(strstr(kolo_error_text(), "KOLO_SOCKET_IFNAME=eth99 ") != NULL);
    const char *names = strstr(kolo_error_text(), "those that are up: ");
    test_true(names != NULL && (strstr(names, "lo") != NULL || strstr(names, "none") != NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ranks_join_and_exchange, test_before, test_after),
        cmocka_unit_test_setup_teardown(a_thread_hears_its_own_rank, test_before, test_after),
        cmocka_unit_test_setup_teardown(several_roots_share_the_ranks, test_before, test_after),
        cmocka_unit_test_setup_teardown(large_data_passes, test_before, test_after),
        cmocka_unit_test_setup_teardown(any_rank_sends_to_any, test_before, test_after),
        cmocka_unit_test_setup_teardown(tags_come_out_of_order_and_large, test_before, test_after),
        cmocka_unit_test_setup_teardown(a_message_of_another_length_is_a_mismatch, test_before, test_after),
        cmocka_unit_test_setup_teardown(a_receive_that_timed_out_can_be_repeated, test_before, test_after),
        cmocka_unit_test_setup_teardown(early_messages_are_bounded_and_none_is_lost, test_before, test_after),
        cmocka_unit_test_setup_teardown(streams_are_handed_over, test_before, test_after),
        cmocka_unit_test_setup_teardown(a_thread_is_answered_beside_an_all_gather_of_another, test_before,
                                        test_after),
        cmocka_unit_test_setup_teardown(a_child_works_beside_its_parent, test_before, test_after),
        cmocka_unit_test_setup_teardown(ranks_join_over_ipv6, test_before, test_after),
        cmocka_unit_test(interface_lists_follow_the_syntax),
        cmocka_unit_test(who_names_no_interface_is_told_which_there_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
