/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank of the conformance kit of wires, for ranks in network namespaces of their own (tests/net/hosts):
 *
 *     hosts 2 1 wire_net               all cases for this number of ranks in which nobody dies
 *     hosts -q 2 1 wire_net CASE       one case
 *     hosts 2 1 wire_net cut_link      the network goes away in the middle of a wait
 *     HOSTS_NICS=2 hosts 2 1 wire_net lose_nic    one of two networks does, in the middle of a stream
 *
 * Wire tcp; with KOLO_NET_PROVIDER the net wire by that provider.
 */
#include "wire/conformance.h"
#include "wire/net/conn.h"
#include "wire/tcp/tcp.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SETUP_MS 30000

static int rank, nranks;
static const kolo_wire_ops_t *wire;
static const char *id_file;

static int open_rank(kolo_kit_t *kit, const char *name)
{
    char path[512];
    kolo_peer_card_t card;
    kolo_oob_config_t config = {.rank = rank,
                                .nranks = nranks,
                                .nids = 1,
                                .ids = &kit->id,
                                .timeout_ms = SETUP_MS,
                                .abort = &kit->abort,
                                .name = name};
    snprintf(path, sizeof path, "%s.%s", id_file, name);
    if (rank == 0) {
        KIT_CHECK(kolo_id_create(&kit->id) == KOLO_OK);
        KIT_CHECK(kolo_id_save(&kit->id, path) == KOLO_OK);
    } else {
        KIT_CHECK(kolo_id_load(&kit->id, path, SETUP_MS) == KOLO_OK);
    }
    KIT_CHECK(kolo_oob_open(&config, &kit->oob) == KOLO_OK);
    KIT_CHECK(kolo_member_fill_card(&card, rank, -1) == KOLO_OK);
    KIT_CHECK(kolo_wire_fill_card(&card) == KOLO_OK);
    KIT_CHECK(kolo_member_gather(kit->oob, &card, &kit->member) == KOLO_OK);
    KIT_CHECK(kolo_wire_ctx_init(&kit->ctx, kit->oob, &kit->member, &kit->abort) == KOLO_OK);
    kit->ctx.deadline_ns = kolo_deadline_ms(SETUP_MS);
    return 0;
}

static int run_case(const char *name, int (*run)(kolo_kit_t *kit))
{
    static kolo_kit_t kit;
    kolo_kit_job_t job = {.name = name, .nranks = nranks, .processes = true, .dies = -1};
    kolo_kit_holdings_t before, after;
    kolo_kit_count(&before);
    memset(&kit, 0, sizeof kit);
    kit.job = &job;
    kit.rank = rank;
    kit.nranks = nranks;
    kit.ctx.waker.epoll_fd = kit.ctx.waker.event_fd = -1;
    int result = open_rank(&kit, name);
    if (!result) result = run(&kit);
    uint64_t t = kolo_now_ns();
    kolo_wire_ctx_close(&kit.ctx);
    kolo_wire_ctx_fini(&kit.ctx);
    kolo_member_fini(&kit.member);
    if (kit.oob) {
        kolo_oob_close(kit.oob);
        kolo_oob_fini(kit.oob);
    }
    kolo_root_stop_all();
    if (kolo_now_ns() - t > KOLO_NS_PER_S)
        result = kolo_kit_report(&kit, __FILE__, __LINE__, "the end in a second");
    if (!kolo_kit_no_more_than(&before, &after)) {
        fprintf(stderr, "%s: rank %d leaves %d descriptors, %d threads, %d segments; had %d, %d, %d\n", name, rank,
                after.fds, after.threads, after.segments, before.fds, before.threads, before.segments);
        result = 1;
    }
    if (rank == 0) printf("%s %s\n", result ? "FAILED" : "ok    ", name);
    fflush(stdout);
    return result != 0;
}

/* ---- the network goes away ---- */

static void describe_slot(void *arg, char *text, size_t bytes)
{
    const kolo_kit_t *kit = arg;
    snprintf(text, bytes, "a slot from rank 1 on %.32s", kit->member.peers[1].host_name);
}

static int cut_link(kolo_kit_t *kit)
{
    kolo_tx_t tx = {0};
    kolo_rx_t rx = {0};
    kolo_conn_spec_t spec = {
        .kind = KOLO_CONN_PAIR, .proto = KOLO_PROTO_SIMPLE, .writer = 1, .depth = 4, .slot_bytes = 65536};
    KIT_CHECK(kolo_kit_connect(kit, &spec, &tx, &rx) == KOLO_OK);
    KIT_CHECK(kolo_oob_barrier(kit->oob) == KOLO_OK);
    if (rank == 1) {
        for (int i = 0; i < 20; i++) {
            KIT_CHECK(kolo_kit_wait_tx(kit, &tx, 5000) == KOLO_OK);
            kolo_tx_post(&tx, 65536, 0, 0, 0);
        }
        KIT_CHECK(kolo_kit_wait_released(kit, &tx, 5000) == KOLO_OK);
        kolo_kit_sleep_ms(100);
        KIT_CHECK(system("ip link set eth0 down") == 0);
        kolo_tx_post(&tx, 65536, 0, 0, 0);
        KIT_CHECK(kolo_wire_step(&kit->ctx) == KOLO_OK);
        kolo_kit_sleep_ms(600);
    } else {
        kolo_wait_t w;
        kolo_status_t st = KOLO_OK;
        uint64_t t = 0;
        for (int i = 0; i < 20; i++) {
            KIT_CHECK(kolo_kit_wait_rx(kit, &rx, 5000) == KOLO_OK);
            kolo_rx_release(&rx);
        }
        t = kolo_now_ns();
        kolo_wait_init(&w, &kit->abort, kolo_deadline_ms(500), describe_slot, kit, 1);
        w.wakers[w.nwakers++] = &kit->ctx.waker;
        while (st == KOLO_OK && !kolo_rx_ready(&rx)) {
            st = kolo_wire_step(&kit->ctx);
            if (st == KOLO_OK) st = kolo_wait_pause(&w);
        }
        kolo_wait_end(&w);
        KIT_CHECK(st == KOLO_ERR_TIMEOUT && kolo_now_ns() - t < KOLO_NS_PER_S);
        KIT_CHECK(strstr(kolo_error_text(), "rank 1 on ") != NULL);
    }
    kolo_tx_close(&tx);
    kolo_rx_close(&rx);
    kolo_tx_fini(&tx);
    kolo_rx_fini(&rx);
    return 0;
}

/* ---- one of two networks goes away, and comes back ---- */

enum { STREAM = 600, LOST_AT = 200, BACK_AT = 400, SLOT = 65536 };

static void fill(void *at, uint32_t n)
{
    for (uint32_t i = 0; i < SLOT / 4; i++) ((uint32_t *)at)[i] = n * 40503u + i;
}

static int send_stream(kolo_kit_t *kit, kolo_tx_t *tx)
{
    for (uint32_t n = 0; n < STREAM; n++) {
        KIT_CHECK(kolo_kit_wait_tx(kit, tx, 20000) == KOLO_OK);
        if (n == LOST_AT) KIT_CHECK(system("ip link set eth1 down") == 0);
        if (n == BACK_AT) KIT_CHECK(system("ip link set eth1 up") == 0);
        fill(kolo_tx_payload(tx), n);
        kolo_tx_post(tx, SLOT, 0, 1, n);
    }
    KIT_CHECK(kolo_kit_wait_released(kit, tx, 20000) == KOLO_OK);
    return 0;
}

static int take_stream(kolo_kit_t *kit, kolo_rx_t *rx)
{
    static uint32_t want[SLOT / 4];
    for (uint32_t n = 0; n < STREAM; n++) {
        KIT_CHECK(kolo_kit_wait_rx(kit, rx, 20000) == KOLO_OK);
        fill(want, n);
        KIT_CHECK(kolo_rx_header(rx)->operation == n && memcmp(kolo_rx_payload(rx), want, SLOT) == 0);
        kolo_rx_release(rx);
    }
    return 0;
}

static int lose_nic(kolo_kit_t *kit)
{
    kolo_tx_t tx = {0};
    kolo_rx_t rx = {0};
    kolo_conn_spec_t spec = {
        .kind = KOLO_CONN_PAIR, .proto = KOLO_PROTO_SIMPLE, .writer = 1, .depth = 8, .slot_bytes = SLOT};
    KIT_CHECK(kolo_kit_connect(kit, &spec, &tx, &rx) == KOLO_OK);
    kolo_net_conn_t *conn = kit->rank == 1 ? tx.priv : rx.priv;
    KIT_CHECK(conn->nrails == 2);
    KIT_TRY(kit->rank == 1 ? send_stream(kit, &tx) : take_stream(kit, &rx));
    KIT_CHECK(conn->reordered); /* it has happened, and nothing came twice, or not at all */
    KIT_CHECK(kolo_oob_barrier(kit->oob) == KOLO_OK);
    kolo_tx_close(&tx);
    kolo_rx_close(&rx);
    kolo_tx_fini(&tx);
    kolo_rx_fini(&rx);
    return 0;
}

static int run_list(const kolo_conformance_case_t *cases, size_t n, const char *only, int *ran)
{
    uint32_t caps = wire->caps;
    int failed = 0;
    for (size_t i = 0; i < n; i++) {
        const kolo_conformance_case_t *c = &cases[i];
        if (only ? strcmp(only, c->name) != 0 : c->dies >= 0) continue;
        if (c->nranks != nranks || (c->needs & ~caps) || (c->except & caps)) continue;
        failed += run_case(c->name, c->run);
        ++*ran;
    }
    return failed;
}

int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : NULL, *r = getenv("KOLO_RANK"), *n = getenv("KOLO_NRANKS");
    int ran = 0;
    id_file = getenv("KOLO_ID_FILE");
    if (!r || !n || !id_file) {
        fprintf(stderr, "wire_net: start it by tests/net/hosts\n");
        return 2;
    }
    rank = atoi(r);
    nranks = atoi(n);
    wire = getenv("KOLO_NET_PROVIDER") ? &kolo_wire_net : &kolo_wire_tcp;
    if (kolo_conformance_force(wire) != KOLO_OK) {
        fprintf(stderr, "the wire cannot be forced: %s\n", kolo_error_text());
        return 1;
    }
    alarm(60);
    if (only && strcmp(only, "cut_link") == 0) return run_case(only, cut_link);
    if (only && strcmp(only, "lose_nic") == 0) return run_case(only, lose_nic);
    int failed = run_list(kolo_conformance_data, kolo_conformance_ndata, only, &ran) +
                 run_list(kolo_conformance_faults, kolo_conformance_nfaults, only, &ran);
    if (ran == 0)
        fprintf(stderr, "wire_net: no case for %d ranks%s%s\n", nranks, only ? ": " : "", only ? only : "");
    return failed || ran == 0;
}
