/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests of the search: properties that every result must have, checked over many shapes of jobs, and the exact
 * result on machines where the right one is known.
 */
#include "base/clock.h"
#include "base/test.h"
#include "base/test_time.h"
#include "topo/test_data.h"
#include "topo/topo.h"

#include <stdlib.h>
#include <string.h>

#ifdef KOLO_SANITIZED
#define PATIENCE 20
#else
#define PATIENCE 1
#endif

/* ---- the pair of trees ---- */

static int depth_of(const int *parent, int n, int at)
{
    int depth = 0;
    for (; parent[at] >= 0; at = parent[at]) assert_true(++depth <= n); /* no cycle */
    return depth;
}

static void each_host_is_leaf_in_one_tree_and_inner_in_the_other(void **state)
{
    (void)state;
    int parent[2][1100], children[2][1100];
    for (int n = 1; n <= 1100; n += n < 300 ? 1 : 37) {
        int most = 0;
        while (1 << most < n) most++;
        memset(children, 0, sizeof children);
        for (int t = 0; t < 2; t++) {
            int roots = 0;
            kolo_topo_tree_pair(n, t, parent[t]);
            for (int h = 0; h < n; h++) {
                assert_in_range(parent[t][h] + 1, 0, n);
                roots += parent[t][h] < 0;
                if (parent[t][h] >= 0) children[t][parent[t][h]]++;
            }
            assert_int_equal(roots, 1);
            for (int h = 0; h < n; h++) {
                assert_in_range(children[t][h], 0, 2);
                assert_true(depth_of(parent[t], n, h) <= most + 1);
            }
        }
        for (int h = 0; n > 1 && h < n; h++)
            if ((children[0][h] == 0) == (children[1][h] == 0))
                fail_msg("%d hosts: host %d has %d and %d children", n, h, children[0][h], children[1][h]);
    }
}

/* ---- properties of any result ---- */

static int crossings(const kolo_topo_place_t *places, const int *path, int n)
{
    int count = 0;
    for (int i = 0; i + 1 < n; i++) count += places[path[i]].socket != places[path[i + 1]].socket;
    return count;
}

static void check_lane(const kolo_topo_place_t *places, const kolo_topo_search_t *s, int lane)
{
    const int *ring = s->ring + (size_t)lane * (size_t)s->nranks;
    const int *parent = s->tree_parent + (size_t)lane * (size_t)s->nranks;
    char *seen = calloc((size_t)s->nranks, 1);
    int roots = 0, host = -1;
    assert_non_null(seen);
    for (int i = 0; i < s->nranks; i++) {
        assert_in_range(ring[i], 0, s->nranks - 1);
        assert_false(seen[ring[i]]);
        seen[ring[i]] = 1;
        bool head = places[ring[i]].node != host;
        if (head) assert_int_equal(places[ring[i]].node, ++host); /* hosts in order, each in one piece */
        roots += parent[ring[i]] < 0;
        if (!head)
            assert_int_equal(parent[ring[i]], ring[i - 1]); /* the chain */
        else if (parent[ring[i]] >= 0)
            assert_int_not_equal(places[parent[ring[i]]].node, host);
        depth_of(parent, s->nranks, ring[i]);
    }
    assert_int_equal(host + 1, s->nhosts);
    assert_int_equal(roots, 1);
    free(seen);
}

/* The ranks' closeness to the lane's NIC: the first is a closest one, the last is the closest of the others. */
static void check_ends(const kolo_topo_place_t *places, const kolo_topo_place_t *nic, const int *path, int n)
{
    kolo_distance_t first = kolo_topo_place_distance(nic, &places[path[0]]);
    kolo_distance_t last = kolo_topo_place_distance(nic, &places[path[n - 1]]);
    for (int i = 1; i < n; i++) {
        kolo_distance_t d = kolo_topo_place_distance(nic, &places[path[i]]);
        assert_true(first <= d);
        assert_true(n <= 2 || last <= d);
    }
}

static void results_are_rings_and_trees_on_any_shape(void **state)
{
    (void)state;
    srand(7);
    for (int round = 0; round < 400; round++) {
        int nhosts = 1 + rand() % 9, nranks = 0, nnics = 0, nlanes = 1 + rand() % 5;
        kolo_topo_place_t places[200], nics[64];
        for (int h = 0; h < nhosts; h++) {
            bool devices = rand() & 1;
            for (int i = 1 + rand() % 16; i > 0; i--) {
                int numa = rand() % 4;
                places[nranks++] = (kolo_topo_place_t){h,
                                                       numa / 2,
                                                       numa,
                                                       rand() % 8,
                                                       devices ? -1 : numa * 2 + rand() % 2,
                                                       devices ? numa * 2 + rand() % 2 : -1};
            }
            for (int i = rand() % 5; i > 0; i--) {
                int numa = rand() % 4;
                nics[nnics++] = (kolo_topo_place_t){h, numa / 2, numa, i, -1, numa * 2 + rand() % 2};
            }
        }
        for (int i = nranks - 1; i > 0; i--) { /* ranks need not be grouped by host */
            int j = rand() % (i + 1);
            kolo_topo_place_t t = places[i];
            places[i] = places[j];
            places[j] = t;
        }
        kolo_topo_search_t s, again;
        assert_int_equal(kolo_topo_search(places, nranks, nlanes, nics, nnics, &s), KOLO_OK);
        assert_int_equal(kolo_topo_search(places, nranks, nlanes, nics, nnics, &again), KOLO_OK);
        size_t bytes = (size_t)nranks * (size_t)nlanes * sizeof(int);
        assert_memory_equal(s.ring, again.ring, bytes);
        assert_memory_equal(s.tree_parent, again.tree_parent, bytes);
        for (int lane = 0; lane < nlanes; lane++) {
            check_lane(places, &s, lane);
            const int *ring = s.ring + (size_t)lane * (size_t)nranks;
            for (int i = 0, end; i < nranks; i = end) {
                int host = places[ring[i]].node, slot = s.nic[lane * nhosts + host];
                for (end = i; end < nranks && places[ring[end]].node == host; end++) continue;
                for (int k = 0; k < nnics; k++)
                    if (nics[k].node == host && nics[k].slot == slot)
                        check_ends(places, &nics[k], ring + i, end - i);
                assert_true(crossings(places, ring + i, end - i) <= 2);
            }
        }
        kolo_topo_search_fini(&s);
        kolo_topo_search_fini(&again);
    }
}

/* ---- known machines ---- */

/* `hosts` copies of the eight-GPU sample; a rank per GPU. Its slow ninth NIC is left out. */
static void place_gpus(kolo_topo_place_t *places, kolo_topo_place_t *nics, int hosts)
{
    kolo_topo_t topo;
    char path[4096];
    snprintf(path, sizeof path, "%s/eight-gpu.xml", kolo_topo_test_data);
    if (kolo_topo_import_file(&topo, path) != KOLO_OK) fail_msg("%s", kolo_error_text());
    int fast[8], n = 0;
    for (int i = 0; i < topo.count; i++)
        if (topo.nodes[i].kind == KOLO_TOPO_NIC && topo.nodes[i].link_mbps == 400000) fast[n++] = i;
    assert_int_equal(n, 8);
    for (int h = 0; h < hosts; h++) {
        for (int i = 0; i < 8; i++) {
            places[8 * h + i] = kolo_topo_place(&topo, kolo_topo_find(&topo, KOLO_TOPO_GPU, i), h);
            nics[8 * h + i] = kolo_topo_place(&topo, fast[i], h);
        }
    }
    kolo_topo_fini(&topo);
}

static void lanes_of_eight_gpu_machines_use_all_nics_by_their_switch(void **state)
{
    (void)state;
    kolo_topo_place_t places[16], nics[16];
    kolo_topo_search_t s;
    place_gpus(places, nics, 2);
    assert_int_equal(kolo_topo_search(places, 16, 8, nics, 16, &s), KOLO_OK);
    for (int lane = 0; lane < 8; lane++) {
        const int *ring = s.ring + lane * 16;
        for (int h = 0; h < 2; h++) {
            const int *path = ring + 8 * h;
            const kolo_topo_place_t *nic = &nics[8 * h + lane];
            assert_int_equal(s.nic[lane * 2 + h], nic->slot);
            assert_int_equal(kolo_topo_place_distance(nic, &places[path[0]]), KOLO_DISTANCE_PCI);
            assert_int_equal(kolo_topo_place_distance(nic, &places[path[7]]), KOLO_DISTANCE_PCI);
            assert_int_equal(crossings(places, path, 8), 2); /* out to the other socket and back */
        }
    }
    static const int first[] = {0, 2, 3, 4, 5, 6, 7, 1}; /* both GPUs of the first switch at the ends */
    assert_memory_equal(s.ring, first, sizeof first);
    kolo_topo_search_fini(&s);
}

static void lanes_that_share_a_nic_enter_at_different_ranks(void **state)
{
    (void)state;
    kolo_topo_place_t places[8], nics[8];
    kolo_topo_search_t s;
    place_gpus(places, nics, 1);
    assert_int_equal(kolo_topo_search(places, 8, 2, nics, 1, &s), KOLO_OK);
    assert_int_equal(s.nic[0], s.nic[1]);
    assert_int_not_equal(s.ring[0], s.ring[8]);
    kolo_topo_search_fini(&s);
}

static void ranks_that_know_nothing_stay_in_order(void **state)
{
    (void)state;
    kolo_topo_place_t places[12];
    kolo_topo_search_t s;
    for (int i = 0; i < 12; i++) places[i] = (kolo_topo_place_t){i / 4, -1, -1, i % 4, -1, -1};
    assert_int_equal(kolo_topo_search(places, 12, 1, NULL, 0, &s), KOLO_OK);
    for (int i = 0; i < 12; i++) assert_int_equal(s.ring[i], i);
    for (int h = 0; h < 3; h++) assert_int_equal(s.nic[h], -1);
    kolo_topo_search_fini(&s);
}

static void wrong_arguments_are_errors(void **state)
{
    (void)state;
    kolo_topo_place_t places[3] = {{0, 0, 0, 0, 0, -1}, {2, 0, 0, 1, 0, -1}, {0, 0, 0, 2, 0, -1}};
    kolo_topo_place_t nic = {5, 0, 0, 0, -1, 0};
    kolo_topo_search_t s = {0};
    assert_int_equal(kolo_topo_search(NULL, 3, 1, NULL, 0, &s), KOLO_ERR_INVALID_ARGUMENT);
    assert_int_equal(kolo_topo_search(places, 0, 1, NULL, 0, &s), KOLO_ERR_INVALID_ARGUMENT);
    assert_int_equal(kolo_topo_search(places, 3, 0, NULL, 0, &s), KOLO_ERR_INVALID_ARGUMENT);
    assert_int_equal(kolo_topo_search(places, 3, 1 << 30, NULL, 0, &s), KOLO_ERR_INVALID_ARGUMENT);
    assert_int_equal(kolo_topo_search(places, 3, 1, NULL, 0, &s), KOLO_ERR_INVALID_ARGUMENT); /* host 1 is empty */
    assert_non_null(strstr(kolo_error_text(), "host 1"));
    places[1].node = 3;
    assert_int_equal(kolo_topo_search(places, 3, 1, NULL, 0, &s), KOLO_ERR_INVALID_ARGUMENT);
    places[1].node = 1;
    assert_int_equal(kolo_topo_search(places, 3, 1, &nic, 1, &s), KOLO_ERR_INVALID_ARGUMENT);
    assert_null(s.ring);
}

static void a_thousand_hosts_are_searched_quickly(void **state)
{
    (void)state;
    enum { HOSTS = 1024, RANKS = 8 * HOSTS };
    kolo_topo_place_t *places = malloc(2 * RANKS * sizeof *places);
    kolo_topo_search_t s;
    assert_non_null(places);
    place_gpus(places, places + RANKS, HOSTS);
    uint64_t start = kolo_now_ns();
    assert_int_equal(kolo_topo_search(places, RANKS, 8, places + RANKS, RANKS, &s), KOLO_OK);
    double ms = (double)(kolo_now_ns() - start) / 1e6;
    print_message("%d ranks on %d hosts, 8 lanes: %.1f ms\n", RANKS, HOSTS, ms);
    assert_true(IN_TIME(ms < 500 * PATIENCE));
    for (int lane = 0; lane < 8; lane++) check_lane(places, &s, lane);
    kolo_topo_search_fini(&s);
    free(places);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_host_is_leaf_in_one_tree_and_inner_in_the_other),
        cmocka_unit_test(results_are_rings_and_trees_on_any_shape),
        cmocka_unit_test(lanes_of_eight_gpu_machines_use_all_nics_by_their_switch),
        cmocka_unit_test(lanes_that_share_a_nic_enter_at_different_ranks),
        cmocka_unit_test(ranks_that_know_nothing_stay_in_order),
        cmocka_unit_test(wrong_arguments_are_errors),
        cmocka_unit_test(a_thousand_hosts_are_searched_quickly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
