/* SPDX-License-Identifier: Apache-2.0
 *
 * Conformance cases on data: order, bounds, sizes, fan-out, lines, references, wrap-around.
 */
#include "mem/range.h"
#include "wire/conformance.h"
#include "wire/ll.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define WAIT_MS 30000 /* only what hangs takes that long */

static kolo_conn_spec_t pair_spec(kolo_proto_t proto, uint32_t depth, uint32_t slot_bytes)
{
    return (kolo_conn_spec_t){.kind = KOLO_CONN_PAIR,
                              .proto = proto,
                              .writer = 0,
                              .reader = 1,
                              .lane = 3,
                              .depth = depth,
                              .slot_bytes = slot_bytes};
}

/* Lines need memory that both ends see, as fan-out does. */
static bool takes_lines(void)
{
    return kolo_conformance_wire->caps & KOLO_CAP_FANOUT;
}

/* Byte i of message n. */
static uint8_t pattern(uint64_t n, size_t i)
{
    return (uint8_t)(n * 131 + i * 7 + (i >> 8));
}

static void fill(void *data, size_t bytes, uint64_t n)
{
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)data)[i] = pattern(n, i);
}

static bool holds(const void *data, size_t bytes, uint64_t n)
{
    for (size_t i = 0; i < bytes; i++)
        if (((const uint8_t *)data)[i] != pattern(n, i)) return false;
    return true;
}

static int send_one(kolo_kit_t *kit, kolo_tx_t *tx, uint32_t bytes, uint64_t n)
{
    KIT_CHECK(kolo_kit_wait_tx(kit, tx, WAIT_MS) == KOLO_OK);
    fill(kolo_tx_payload(tx), bytes, n);
    kolo_tx_post(tx, bytes, 0, 0x1234 + n, n);
    return 0;
}

static int receive_one(kolo_kit_t *kit, kolo_rx_t *rx, uint32_t bytes, uint64_t n)
{
    KIT_CHECK(kolo_kit_wait_rx(kit, rx, WAIT_MS) == KOLO_OK);
    const kolo_slot_header_t *h = kolo_rx_header(rx);
    KIT_CHECK(h->bytes == bytes && h->flags == 0 && h->signature == 0x1234 + n && h->operation == n);
    KIT_CHECK(holds(kolo_rx_payload(rx), bytes, n));
    kolo_rx_release(rx);
    return 0;
}

static int finish(kolo_kit_t *kit, kolo_tx_t *tx, kolo_rx_t *rx)
{
    if (tx && tx->ops) KIT_CHECK(kolo_kit_wait_released(kit, tx, WAIT_MS) == KOLO_OK);
    KIT_CHECK(kolo_oob_barrier(kit->oob) == KOLO_OK);
    if (tx) {
        kolo_tx_close(tx);
        kolo_tx_fini(tx);
        kolo_tx_fini(tx); /* twice is fine */
    }
    if (rx) {
        kolo_rx_close(rx);
        kolo_rx_fini(rx);
        kolo_rx_fini(rx);
    }
    return 0;
}

static int messages_keep_their_order(kolo_kit_t *kit)
{
    enum { MESSAGES = 3000, SLOT = 1024 };
    kolo_tx_t tx;
    kolo_rx_t rx;
    KIT_CHECK(kolo_kit_connect_both(kit, pair_spec(KOLO_PROTO_SIMPLE, 8, SLOT), &tx, &rx) == KOLO_OK);
    KIT_CHECK(tx.ops == kolo_conformance_wire && rx.ops == tx.ops && tx.caps == rx.caps);
    KIT_CHECK(tx.ops->tx_memory(&tx) > 0 && rx.ops->rx_memory(&rx) > 0);
    uint64_t sent = 0, received = 0;
    while (received < MESSAGES) { /* both ways at once; what can be done is done */
        if (sent < MESSAGES && kolo_tx_ready(&tx)) {
            KIT_TRY(send_one(kit, &tx, (uint32_t)(sent * 37 % (SLOT + 1)), sent));
            sent++;
        } else {
            KIT_TRY(receive_one(kit, &rx, (uint32_t)(received * 37 % (SLOT + 1)), received));
            received++;
        }
        KIT_CHECK(kolo_wire_step(&kit->ctx) == KOLO_OK);
    }
    while (sent < MESSAGES) {
        KIT_TRY(send_one(kit, &tx, (uint32_t)(sent * 37 % (SLOT + 1)), sent));
        sent++;
    }
    return finish(kit, &tx, &rx);
}

static int the_queue_is_bounded(kolo_kit_t *kit)
{
    enum { DEPTH = 8, SLOT = 4096, MOST = 20000 };
    kolo_tx_t tx = {0};
    kolo_rx_t rx = {0};
    kolo_conn_spec_t spec = pair_spec(KOLO_PROTO_SIMPLE, DEPTH, SLOT);
    KIT_CHECK(kolo_kit_connect(kit, &spec, &tx, &rx) == KOLO_OK);
    uint64_t sent = 0;
    if (kit->rank == 0) {
        /* A wire that moves bytes itself has buffers of its own, but they are bounded too. */
        bool moves = tx.caps & KOLO_CAP_STEP;
        for (int idle = 0; sent < MOST && idle < 200;) {
            KIT_CHECK(kolo_wire_step(&kit->ctx) == KOLO_OK);
            if (!kolo_tx_ready(&tx)) {
                idle++;
                if (moves) kolo_kit_sleep_ms(1);
                continue;
            }
            idle = 0;
            KIT_TRY(send_one(kit, &tx, SLOT, sent));
            sent++;
        }
        KIT_CHECK(moves ? sent < MOST : sent == DEPTH);
        KIT_CHECK(!kolo_tx_released(&tx) || moves);
        KIT_CHECK(kolo_tx_sent(&tx) || moves); /* what was posted from is free all the same */
    }
    KIT_CHECK(kolo_oob_broadcast(kit->oob, 0, &sent, sizeof sent) == KOLO_OK);
    for (uint64_t i = 0; kit->rank == 1 && i < sent; i++) KIT_TRY(receive_one(kit, &rx, SLOT, i));
    if (kit->rank == 0) KIT_TRY(send_one(kit, &tx, 5, sent)); /* room again */
    if (kit->rank == 1) KIT_TRY(receive_one(kit, &rx, 5, sent));
    return finish(kit, &tx, &rx);
}

static int huge_and_empty_messages(kolo_kit_t *kit)
{
    enum { SLOT = 256 << 10, SLOTS = 200 };
    kolo_tx_t tx = {0};
    kolo_rx_t rx = {0};
    kolo_conn_spec_t spec = pair_spec(KOLO_PROTO_SIMPLE, 4, SLOT);
    KIT_CHECK(kolo_kit_connect(kit, &spec, &tx, &rx) == KOLO_OK);
    for (uint64_t i = 0; i < SLOTS; i++) {
        uint32_t bytes = i % 3 == 1 ? 0 : i % 3 == 2 ? SLOT - 1 : SLOT;
        KIT_TRY(kit->rank == 0 ? send_one(kit, &tx, bytes, i) : receive_one(kit, &rx, bytes, i));
    }
    return finish(kit, &tx, &rx);
}

/* One rank writes for all others of its host; one of them is slow. */
static int fan_out_waits_for_the_slowest(kolo_kit_t *kit)
{
    enum { DEPTH = 4, SLOT = 512, MESSAGES = 400 };
    kolo_tx_t tx = {0};
    kolo_rx_t rx = {0};
    kolo_conn_spec_t spec = pair_spec(KOLO_PROTO_SIMPLE, DEPTH, SLOT);
    spec.kind = KOLO_CONN_NODE;
    spec.writer = 1;
    spec.reader = -1;
    KIT_CHECK(kolo_kit_connect(kit, &spec, &tx, &rx) == KOLO_OK);
    for (uint64_t i = 0; i < MESSAGES; i++) {
        if (kit->rank == 1) {
            KIT_TRY(send_one(kit, &tx, SLOT, i));
            KIT_CHECK(tx.end.next - kolo_tx_end_consumed(&tx.end) <= DEPTH);
        } else {
            if (kit->rank == 0 && i % 20 == 0) kolo_kit_sleep_ms(2);
            KIT_TRY(receive_one(kit, &rx, SLOT, i));
        }
    }
    return finish(kit, &tx, &rx);
}

/* Every size there is room for, whole and in parts that start at other lines. */
static int put_lines(kolo_kit_t *kit, kolo_tx_t *tx, size_t bytes, uint64_t n)
{
    uint8_t data[1024];
    size_t half = bytes / 2 / KOLO_LL_DATA * KOLO_LL_DATA;
    fill(data, bytes, n);
    KIT_CHECK(kolo_kit_wait_tx(kit, tx, WAIT_MS) == KOLO_OK);
    kolo_ll_begin(tx, 0x77, n);
    if (n % 2 && half) { /* the later part first */
        kolo_ll_put(tx, half / KOLO_LL_DATA, data + half, bytes - half, kolo_ll_signature(0x77, n));
        kolo_ll_put(tx, 0, data, half, kolo_ll_signature(0x77, n));
    } else {
        kolo_ll_put(tx, 0, data, bytes, kolo_ll_signature(0x77, n));
    }
    kolo_ll_post(tx);
    return 0;
}

/* `bytes` from line `first` on, which were put at once, maybe with more round them. */
static int get_part(kolo_kit_t *kit, kolo_rx_t *rx, size_t first, size_t bytes, uint64_t n)
{
    uint8_t data[1024];
    bool mismatch = false;
    for (size_t done = 0; done < bytes;) {
        KIT_CHECK(kolo_kit_wait_line(kit, rx, first + done / KOLO_LL_DATA, WAIT_MS) == KOLO_OK);
        done = kolo_ll_get(rx, first, data, bytes, done, kolo_ll_signature(0x77, n), &mismatch);
        KIT_CHECK(!mismatch);
    }
    for (size_t i = 0; i < bytes; i++) KIT_CHECK(data[i] == pattern(n, first * KOLO_LL_DATA + i));
    return 0;
}

static int get_lines(kolo_kit_t *kit, kolo_rx_t *rx, size_t bytes, uint64_t n)
{
    size_t skip = n % 3 == 2 ? bytes / 3 / KOLO_LL_DATA : 0; /* only the part from line `skip` on */
    size_t half = n % 2 ? bytes / 2 / KOLO_LL_DATA : 0;      /* what was put in two parts is got in two */
    KIT_CHECK(kolo_kit_wait_line(kit, rx, skip, WAIT_MS) == KOLO_OK);
    if (half > skip) KIT_TRY(get_part(kit, rx, skip, (half - skip) * KOLO_LL_DATA, n));
    if (half < skip) half = skip;
    KIT_TRY(get_part(kit, rx, half, bytes - half * KOLO_LL_DATA, n));
    /* A release hands the whole slot back, so all of it must have come. */
    KIT_CHECK(kolo_kit_wait_line(kit, rx, kolo_ll_lines(bytes) - 1, WAIT_MS) == KOLO_OK);
    KIT_CHECK(kolo_kit_wait_line(kit, rx, 0, WAIT_MS) == KOLO_OK);
    kolo_rx_release(rx);
    return 0;
}

static int lines_of_every_size(kolo_kit_t *kit)
{
    kolo_tx_t tx;
    kolo_rx_t rx;
    KIT_CHECK(kolo_kit_connect_both(kit, pair_spec(KOLO_PROTO_LL, 4, 1024), &tx, &rx) == KOLO_OK);
    size_t most = kolo_ll_capacity(1024);
    for (size_t i = 0; i < 3 * (most + 1); i++) { /* three rounds: each size meets each way of cutting */
        KIT_TRY(put_lines(kit, &tx, i % (most + 1), i));
        KIT_TRY(get_lines(kit, &rx, i % (most + 1), i));
    }
    return finish(kit, &tx, &rx);
}

static int lines_fan_out(kolo_kit_t *kit)
{
    kolo_tx_t tx = {0};
    kolo_rx_t rx = {0};
    kolo_conn_spec_t spec = pair_spec(KOLO_PROTO_LL, 8, 512);
    spec.kind = KOLO_CONN_NODE;
    spec.writer = 2;
    spec.reader = -1;
    KIT_CHECK(kolo_kit_connect(kit, &spec, &tx, &rx) == KOLO_OK);
    for (uint64_t i = 0; i < 1000; i++) {
        size_t bytes = i * 13 % (kolo_ll_capacity(512) + 1);
        KIT_TRY(kit->rank == 2 ? put_lines(kit, &tx, bytes, i) : get_lines(kit, &rx, bytes, i));
    }
    return finish(kit, &tx, &rx);
}

static int references_are_read_and_written(kolo_kit_t *kit)
{
    enum { BYTES = 9 << 20, ROUNDS = 3 };
    kolo_status_t status;
    kolo_tx_t tx = {0};
    kolo_rx_t rx = {0};
    kolo_conn_spec_t spec = pair_spec(KOLO_PROTO_SIMPLE, 4, 64);
    uint8_t *data = (uint8_t *)malloc(BYTES);
    KIT_CHECK(data != NULL);
    KIT_CHECK(kolo_kit_connect(kit, &spec, &tx, &rx) == KOLO_OK);
    for (uint64_t n = 0; n < ROUNDS; n++) {
        if (kit->rank == 0) {
            KIT_CHECK(tx.caps & KOLO_CAP_REF);
            fill(data, BYTES, n);
            KIT_CHECK(kolo_kit_wait_tx(kit, &tx, WAIT_MS) == KOLO_OK);
            kolo_ref_t ref;
            KIT_CHECK(tx.ops->ref_make(&tx, data, BYTES, &ref) == KOLO_OK);
            memcpy(kolo_tx_payload(&tx), &ref, sizeof ref);
            kolo_tx_post(&tx, sizeof ref, KOLO_SLOT_REF, 1, n);
            KIT_CHECK(kolo_kit_wait_released(kit, &tx, WAIT_MS) == KOLO_OK);
            KIT_CHECK(holds(data, 1000, n) && data[1000] == 0xee && data[2999] == 0xee &&
                      data[3000] == pattern(n, 3000));
            continue;
        }
        kolo_ref_t ref, other;
        kolo_ref_copy_t copy = {0, (char *)data, BYTES, false};
        uint8_t mark[2000];
        int turns = 1;
        KIT_CHECK(kolo_kit_wait_rx(kit, &rx, WAIT_MS) == KOLO_OK);
        KIT_CHECK(kolo_rx_header(&rx)->flags == KOLO_SLOT_REF && kolo_rx_header(&rx)->bytes == sizeof ref);
        memcpy(&ref, kolo_rx_payload(&rx), sizeof ref);
        KIT_CHECK(ref.bytes == BYTES);
        KIT_CHECK(rx.ops->ref_start(&rx, &ref, &copy) == KOLO_OK);
        while ((status = rx.ops->ref_done(&rx, &copy)) == KOLO_IN_PROGRESS) turns++;
        KIT_CHECK(status == KOLO_OK && holds(data, BYTES, n) && turns >= BYTES / (int)KOLO_REF_PIECE);
        KIT_CHECK(kolo_kit_copy(&rx, &ref, 777, data, 5, false) == KOLO_OK && data[4] == pattern(n, 781));
        KIT_CHECK(kolo_kit_copy(&rx, &ref, BYTES, data, 0, false) == KOLO_OK);
        KIT_CHECK(kolo_kit_copy(&rx, &ref, BYTES - 1, data, 2, false) == KOLO_ERR_PROTOCOL);
        KIT_CHECK(kolo_kit_copy(&rx, &ref, UINT64_MAX, data, 2, false) == KOLO_ERR_PROTOCOL);
        other = ref;
        other.key++;
        KIT_CHECK(kolo_kit_copy(&rx, &other, 0, data, 2, false) == KOLO_ERR_PROTOCOL);
        KIT_CHECK(strstr(kolo_error_text(), "another process"));
        memset(mark, 0xee, sizeof mark);
        KIT_CHECK(kolo_kit_copy(&rx, &ref, 1000, mark, sizeof mark, true) == KOLO_OK);
        KIT_CHECK(kolo_kit_copy(&rx, &ref, BYTES - 10, mark, 11, true) == KOLO_ERR_PROTOCOL);
        kolo_rx_release(&rx);
        KIT_CHECK(kolo_kit_copy(&rx, &ref, 0, data, 2, false) == KOLO_ERR_PROTOCOL);
        KIT_CHECK(strstr(kolo_error_text(), "is over"));
    }
    free(data);
    return finish(kit, &tx, &rx);
}

static int counters_wrap_around(kolo_kit_t *kit)
{
    static const uint64_t starts[] = {0xfffffff0ull, 0x100000000ull - 3, UINT64_MAX - 40, UINT64_MAX,
                                      (1ull << 63) - 9};
    for (size_t s = 0; s < KOLO_COUNTOF(starts); s++) {
        for (int proto = KOLO_PROTO_SIMPLE; proto <= (takes_lines() ? KOLO_PROTO_LL : KOLO_PROTO_SIMPLE); proto++) {
            kolo_conn_spec_t spec = pair_spec((kolo_proto_t)proto, 4, 512);
            kolo_tx_t tx;
            kolo_rx_t rx;
            spec.start = starts[s];
            KIT_CHECK(kolo_kit_connect_both(kit, spec, &tx, &rx) == KOLO_OK);
            for (uint64_t i = 0; i < 100; i++) {
                size_t bytes = i < 50 ? 8 : kolo_ll_capacity(512); /* long ones meet lines never used */
                if (proto == KOLO_PROTO_LL) {
                    KIT_TRY(put_lines(kit, &tx, bytes, i));
                    KIT_TRY(get_lines(kit, &rx, bytes, i));
                } else {
                    KIT_TRY(send_one(kit, &tx, (uint32_t)bytes, i));
                    KIT_TRY(receive_one(kit, &rx, (uint32_t)bytes, i));
                }
            }
            KIT_TRY(finish(kit, &tx, &rx));
        }
    }
    return 0;
}

/* Many connections of one list, in both directions, on several lanes. */
static int many_connections_at_once(kolo_kit_t *kit)
{
    enum { LANES = 6, RANKS = 3, MOST = LANES * (RANKS - 1) * 2 };
    static const uint32_t depth = 2, slot = 128;
    kolo_conn_request_t requests[MOST];
    kolo_tx_t txs[MOST];
    kolo_rx_t rxs[MOST];
    int n = 0;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        for (int peer = 0; peer < RANKS; peer++) {
            if (peer == kit->rank) continue;
            kolo_conn_spec_t spec =
                pair_spec(lane % 2 && takes_lines() ? KOLO_PROTO_LL : KOLO_PROTO_SIMPLE, depth, slot);
            spec.lane = lane;
            spec.writer = kit->rank;
            spec.reader = peer;
            requests[n] = (kolo_conn_request_t){.spec = spec, .tx = &txs[n]};
            n++;
            spec.writer = peer;
            spec.reader = kit->rank;
            requests[n] = (kolo_conn_request_t){.spec = spec, .rx = &rxs[n]};
            n++;
        }
    }
    KIT_CHECK(kolo_wire_connect(&kit->ctx, requests, n) == KOLO_OK);
    for (uint64_t round = 0; round < 20; round++) {
        for (int i = 0; i < n; i += 2) {
            uint64_t mark = round * 100 + requests[i].spec.lane * 10 + (uint64_t)kit->rank;
            if (requests[i].spec.proto == KOLO_PROTO_LL)
                KIT_TRY(put_lines(kit, &txs[i], 100, mark));
            else
                KIT_TRY(send_one(kit, &txs[i], 100, mark));
        }
        for (int i = 1; i < n; i += 2) {
            uint64_t mark = round * 100 + requests[i].spec.lane * 10 + (uint64_t)requests[i].spec.writer;
            if (requests[i].spec.proto == KOLO_PROTO_LL)
                KIT_TRY(get_lines(kit, &rxs[i], 100, mark));
            else
                KIT_TRY(receive_one(kit, &rxs[i], 100, mark));
        }
    }
    for (int i = 0; i < n; i += 2) KIT_CHECK(kolo_kit_wait_released(kit, &txs[i], WAIT_MS) == KOLO_OK);
    KIT_CHECK(kolo_oob_barrier(kit->oob) == KOLO_OK);
    for (int i = 0; i < n; i += 2) {
        kolo_tx_close(&txs[i]);
        kolo_rx_close(&rxs[i + 1]);
        kolo_tx_fini(&txs[i]);
        kolo_rx_fini(&rxs[i + 1]);
    }
    return 0;
}

/* ---- payloads in the caller's memory ---- */

enum { PLACE_BYTES = 65536, PLACE_SLOTS = 4 };

/* Registered memory for four payloads. */
typedef struct {
    char *data;
    kolo_mem_range_t *range;
    bool in_use; /* false: this machine does not tell of memory that goes away */
} place_t;

static bool place_make(place_t *p)
{
    size_t bytes = (size_t)PLACE_SLOTS * PLACE_BYTES;
    p->data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p->data == MAP_FAILED || kolo_mem_range_register(p->data, bytes, &p->range) != KOLO_OK) return false;
    memset(p->data, 0x55, bytes);
    kolo_mem_range_t *found = kolo_mem_range_find(p->data, bytes);
    p->in_use = found != NULL;
    kolo_mem_range_put(found);
    return true;
}

static void place_free(place_t *p)
{
    kolo_mem_range_deregister(p->range);
    munmap(p->data, (size_t)PLACE_SLOTS * PLACE_BYTES);
}

/* All four slots are announced where the wire wants that, each is where it should be and nowhere else. */
static int payloads_come_where_they_belong(kolo_kit_t *kit)
{
    kolo_tx_t tx = {0};
    kolo_rx_t rx = {0};
    place_t place;
    kolo_conn_spec_t spec = pair_spec(KOLO_PROTO_SIMPLE, PLACE_SLOTS, PLACE_BYTES);
    KIT_CHECK(place_make(&place));
    KIT_CHECK(kolo_oob_barrier(kit->oob) == KOLO_OK);
    KIT_CHECK(kolo_kit_connect(kit, &spec, &tx, &rx) == KOLO_OK);
    for (uint32_t n = 0; kit->rank == 0 && n < 3 * PLACE_SLOTS; n++) {
        char *from = place.data + (size_t)(n % PLACE_SLOTS) * PLACE_BYTES;
        if (n % PLACE_SLOTS == 0) KIT_CHECK(kolo_kit_wait_released(kit, &tx, WAIT_MS) == KOLO_OK);
        KIT_CHECK(kolo_kit_wait_tx(kit, &tx, WAIT_MS) == KOLO_OK);
        fill(from, PLACE_BYTES, n);
        KIT_CHECK(tx.ops->tx_post_from(&tx, from, PLACE_BYTES, 7, n) == KOLO_OK);
    }
    for (uint32_t n = 0; kit->rank == 1 && n < 3 * PLACE_SLOTS; n++) {
        char *to = place.data + (size_t)(n % PLACE_SLOTS) * PLACE_BYTES;
        bool ahead = rx.caps & KOLO_CAP_AHEAD;
        uint32_t many = ahead && n % PLACE_SLOTS == 0 ? PLACE_SLOTS : ahead ? 0 : 1;
        for (uint32_t k = 0; k < many; k++)
            if (k > 0 || !kolo_rx_ready(&rx)) rx.ops->rx_expect(&rx, k, to + (size_t)k * PLACE_BYTES, PLACE_BYTES);
        KIT_CHECK(kolo_kit_wait_rx(kit, &rx, WAIT_MS) == KOLO_OK);
        KIT_CHECK(!rx.direct || rx.direct == to);
        if (ahead && place.in_use) KIT_CHECK(rx.direct == to);
        KIT_CHECK(kolo_rx_header(&rx)->bytes == PLACE_BYTES && holds(kolo_rx_payload(&rx), PLACE_BYTES, n));
        kolo_rx_release(&rx);
    }
    KIT_TRY(finish(kit, tx.ops ? &tx : NULL, rx.ops ? &rx : NULL));
    place_free(&place);
    return 0;
}

/* Once a receive is given up its memory is the caller's: whatever is sent later goes elsewhere, or nowhere. */
static int what_is_given_up_is_not_written_to(kolo_kit_t *kit)
{
    kolo_tx_t tx = {0};
    kolo_rx_t rx = {0};
    place_t place;
    kolo_conn_spec_t spec = pair_spec(KOLO_PROTO_SIMPLE, PLACE_SLOTS, PLACE_BYTES);
    KIT_CHECK(place_make(&place));
    KIT_CHECK(kolo_oob_barrier(kit->oob) == KOLO_OK);
    KIT_CHECK(kolo_kit_connect(kit, &spec, &tx, &rx) == KOLO_OK);
    if (kit->rank == 1) {
        rx.ops->rx_expect(&rx, 0, place.data, PLACE_BYTES);
        KIT_CHECK(rx.ops->rx_check(&rx) == KOLO_OK); /* the wire has told the writer of it by now */
        rx.ops->rx_unexpect(&rx);
        rx.ops->rx_unexpect(&rx); /* twice is fine */
    }
    KIT_CHECK(kolo_oob_barrier(kit->oob) == KOLO_OK);
    if (kit->rank == 0) {
        fill(place.data, PLACE_BYTES, 3);
        KIT_CHECK(tx.ops->tx_post_from(&tx, place.data, PLACE_BYTES, 7, 1) == KOLO_OK);
        (void)kolo_kit_wait_released(kit, &tx, WAIT_MS); /* or the connection has failed */
    } else {
        kolo_status_t status = kolo_kit_wait_rx(kit, &rx, WAIT_MS);
        KIT_CHECK(status == KOLO_OK || status == KOLO_ERR_ABORTED);
        if (status == KOLO_OK) KIT_CHECK(!rx.direct && holds(kolo_rx_payload(&rx), PLACE_BYTES, 3));
        for (size_t i = 0; i < PLACE_BYTES; i++) KIT_CHECK(place.data[i] == 0x55);
        rx.ops->rx_close(&rx); /* a writer that waits hears of it */
    }
    KIT_CHECK(kolo_oob_barrier(kit->oob) == KOLO_OK);
    if (tx.ops) kolo_tx_close(&tx);
    kolo_tx_fini(&tx);
    kolo_rx_fini(&rx);
    place_free(&place);
    return 0;
}

#define BOTH (KOLO_CONFORM_THREADS | KOLO_CONFORM_PROCESSES)
const kolo_conformance_case_t kolo_conformance_data[] = {
    {"messages_keep_their_order", 2, BOTH, messages_keep_their_order, 0, 0, -1},
    {"the_queue_is_bounded", 2, BOTH, the_queue_is_bounded, 0, 0, -1},
    {"huge_and_empty_messages", 2, BOTH, huge_and_empty_messages, 0, 0, -1},
    {"fan_out_waits_for_the_slowest", 3, BOTH, fan_out_waits_for_the_slowest, KOLO_CAP_FANOUT, 0, -1},
    {"lines_of_every_size", 2, BOTH, lines_of_every_size, KOLO_CAP_FANOUT, 0, -1},
    {"lines_fan_out", 4, BOTH, lines_fan_out, KOLO_CAP_FANOUT, 0, -1},
    {"references_are_read_and_written", 2, BOTH, references_are_read_and_written, KOLO_CAP_REF, 0, -1},
    {"payloads_come_where_they_belong", 2, BOTH, payloads_come_where_they_belong, KOLO_CAP_POST_FROM, 0, -1},
    {"what_is_given_up_is_not_written_to", 2, BOTH, what_is_given_up_is_not_written_to, KOLO_CAP_POST_FROM, 0, -1},
    {"counters_wrap_around", 2, BOTH, counters_wrap_around, 0, 0, -1},
    {"many_connections_at_once", 3, BOTH, many_connections_at_once, 0, 0, -1},
};
const size_t kolo_conformance_ndata = KOLO_COUNTOF(kolo_conformance_data);
