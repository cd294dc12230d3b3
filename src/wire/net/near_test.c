/* SPDX-License-Identifier: Apache-2.0
 *
 * Which card for which lane, and which rail for which slot.
 */
#include "base/test.h"
#include "topo/test_data.h"
#include "topo/topo.h"
#include "wire/net/conn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NICS = 8 };
/* Four cards on each socket, in an order of their own. */
static const char *const buses[NICS] = {"0000:94:00.0", "0000:14:00.0", "0000:96:00.0", "0000:16:00.0",
                                        "0000:c4:00.0", "0000:44:00.0", "0000:c6:00.0", "0000:46:00.0"};

static void sample(kolo_topo_t *topo, kolo_net_device_t *devices)
{
    char path[512];
    snprintf(path, sizeof path, "%s/eight-gpu.xml", kolo_topo_test_data);
    assert_int_equal(kolo_topo_import_file(topo, path), KOLO_OK);
    memset(devices, 0, NICS * sizeof *devices);
    for (int i = 0; i < NICS; i++) {
        snprintf(devices[i].name, sizeof devices[i].name, "card%d", i);
        snprintf(devices[i].bus_id, sizeof devices[i].bus_id, "%s", buses[i]);
        assert_true(kolo_topo_find_bus(topo, buses[i]) >= 0);
    }
}

static void the_cards_of_the_own_socket_come_first(void **state)
{
    kolo_topo_t topo;
    kolo_net_device_t devices[NICS];
    int order[NICS], nclose;
    (void)state;
    sample(&topo, devices);
    for (int socket = 0; socket < 2; socket++) {
        cpu_set_t cores;
        CPU_ZERO(&cores);
        CPU_SET(8 * socket + 3, &cores); /* CPUs 0 to 7 are on the first one, 8 to 15 on the other */
        kolo_net_order(&topo, &cores, devices, NICS, order, &nclose);
        assert_int_equal(nclose, 4);
        for (int i = 0; i < NICS; i++) /* and each half in the system's order */
            assert_int_equal(order[i], i < 4 ? 2 * i + (socket == 0) : 2 * (i - 4) + (socket == 1));
    }
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int c = 0; c < 32; c++) CPU_SET(c, &all);
    kolo_net_order(&topo, &all, devices, NICS, order, &nclose);
    assert_int_equal(nclose, NICS); /* who may be anywhere is close to all */
    kolo_topo_fini(&topo);
}

static void a_card_that_the_topology_does_not_know_comes_last(void **state)
{
    kolo_topo_t topo;
    kolo_net_device_t devices[NICS];
    int order[NICS], nclose;
    cpu_set_t cores;
    (void)state;
    sample(&topo, devices);
    devices[1].bus_id[0] = '\0'; /* of the first socket */
    CPU_ZERO(&cores);
    CPU_SET(0, &cores);
    kolo_net_order(&topo, &cores, devices, NICS, order, &nclose);
    assert_int_equal(nclose, 3);
    assert_int_equal(order[NICS - 1], 1);
    snprintf(devices[1].name, sizeof devices[1].name, "ib0"); /* found by its interface, too */
    kolo_net_order(&topo, &cores, devices, NICS, order, &nclose);
    assert_int_equal(nclose, 4);
    kolo_topo_fini(&topo);
}

static void lanes_go_round_the_close_cards(void **state)
{
    static const int order[] = {4, 2, 0, 1, 3};
    bool seen[5];
    (void)state;
    for (int nclose = 1; nclose <= 5; nclose++)
        for (uint32_t lane = 0; lane < 12; lane++) {
            assert_int_equal(kolo_net_device_for(order, 5, nclose, lane, 0), order[lane % (uint32_t)nclose]);
            memset(seen, 0, sizeof seen);
            for (uint32_t rail = 0; rail < 5;
                 rail++) { /* all are used before one is used twice, the close ones first */
                int d = kolo_net_device_for(order, 5, nclose, lane, rail), at = 0;
                assert_false(seen[d]);
                seen[d] = true;
                while (order[at] != d) at++;
                assert_int_equal(rail < (uint32_t)nclose, at < nclose);
            }
        }
}

/* ---- rails ---- */

static kolo_net_conn_t conn_of(uint32_t nrails)
{
    kolo_net_conn_t conn = {.nrails = nrails};
    for (uint32_t i = 0; i < nrails; i++) {
        conn.rails[i].state = KOLO_NET_RAIL_UP;
        conn.rails[i].weight = 1;
    }
    return conn;
}

static void equal_rails_take_turns(void **state)
{
    kolo_net_conn_t conn = conn_of(3);
    uint32_t used[3] = {0};
    (void)state;
    for (uint64_t slot = 0; slot < 300; slot++) {
        uint32_t rail = kolo_net_rail_for(&conn, slot);
        used[rail]++;
        conn.rails[rail].requests++;
        if (slot >= 8) conn.rails[kolo_net_rail_for(&conn, slot) % 3].done++;
    }
    for (int i = 0; i < 3; i++) assert_in_range(used[i], 90, 110);
}

static void a_slow_or_busy_rail_is_asked_for_less(void **state)
{
    kolo_net_conn_t conn = conn_of(2);
    uint32_t used[2] = {0};
    (void)state;
    conn.rails[0].weight = 3; /* three times as fast a card, nothing comes back yet */
    for (uint64_t slot = 0; slot < 8; slot++) {
        uint32_t rail = kolo_net_rail_for(&conn, slot);
        used[rail]++;
        conn.rails[rail].requests++;
    }
    assert_int_equal(used[0], 6);
    conn = conn_of(2);
    conn.rails[1].requests = 5; /* five that its card has not brought */
    for (uint64_t slot = 0; slot < 5; slot++) {
        assert_int_equal(kolo_net_rail_for(&conn, slot), 0);
        conn.rails[0].requests++;
    }
}

static void a_lost_rail_gets_nothing(void **state)
{
    kolo_net_conn_t conn = conn_of(3);
    (void)state;
    conn.rails[1].state = KOLO_NET_RAIL_GONE;
    for (uint64_t slot = 0; slot < 20; slot++) {
        uint32_t rail = kolo_net_rail_for(&conn, slot);
        assert_int_not_equal(rail, 1);
        conn.rails[rail].requests++;
    }
    assert_int_equal(conn.rails[0].requests, 10);
}

static void a_link_of_the_system_says_where_a_card_is_plugged_in(void **state)
{
    (void)state;
    char name[] = "/tmp/kolo-bus-XXXXXX", link[64];
    kolo_net_device_t device = {0};
    assert_non_null(mkdtemp(name));
    snprintf(link, sizeof link, "%s/device", name);
    kolo_net_bus_of_link(&device, link); /* there is none, as for a card that is no hardware */
    assert_string_equal(device.bus_id, "");
    assert_int_equal(symlink("../../../0000:3b:00.0", link), 0);
    kolo_net_bus_of_link(&device, link);
    assert_string_equal(device.bus_id, "0000:3b:00.0");
    kolo_net_bus_of_path(&device, "/sys/devices/a-name-that-is-no-address-of-a-bus");
    assert_string_equal(device.bus_id, "0000:3b:00.0");
    assert_int_equal(unlink(link) | rmdir(name), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cards_of_the_own_socket_come_first),
        cmocka_unit_test(a_card_that_the_topology_does_not_know_comes_last),
        cmocka_unit_test(lanes_go_round_the_close_cards),
        cmocka_unit_test(equal_rails_take_turns),
        cmocka_unit_test(a_slow_or_busy_rail_is_asked_for_less),
        cmocka_unit_test(a_lost_rail_gets_nothing),
        cmocka_unit_test(a_link_of_the_system_says_where_a_card_is_plugged_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
