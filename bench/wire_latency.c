/* SPDX-License-Identifier: Apache-2.0
 *
 * What the same-host wires cost by themselves: one-way latency (half of a round trip) and bandwidth of slots and of
 * lines between two threads (local) or two processes (shm), and single copies (cma) against memcpy. No collective,
 * no executor: only the inline hot path of wire.h and ll.h.
 *
 *     bench-wire-latency [ms per point, default 30]
 */
#include "wire/cma/cma.h"
#include "wire/conformance.h"
#include "wire/ll.h"
#include "wire/local/local.h"
#include "wire/mapped.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define BATCHES 15
#define MOST    (1u << 16)

static int64_t point_ns = 30000000;

typedef struct {
    kolo_proto_t proto;
    uint32_t bytes;
} point_t;

static const point_t points[] = {{KOLO_PROTO_LL, 8},       {KOLO_PROTO_LL, 56},       {KOLO_PROTO_LL, 512},
                                 {KOLO_PROTO_LL, 4096},    {KOLO_PROTO_SIMPLE, 0},    {KOLO_PROTO_SIMPLE, 8},
                                 {KOLO_PROTO_SIMPLE, 512}, {KOLO_PROTO_SIMPLE, 4096}, {KOLO_PROTO_SIMPLE, 65536}};

static void pin(int rank)
{
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all) != 0) return;
    int skip = rank % CPU_COUNT(&all);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all) || skip-- > 0) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        sched_setaffinity(0, sizeof one, &one);
        return;
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct {
    kolo_tx_t tx;
    kolo_rx_t rx;
    kolo_wait_t wait;
    uint8_t *out, *in;
} ends_t;

static int put(kolo_kit_t *kit, ends_t *e, uint32_t bytes)
{
    while (!kolo_tx_ready(&e->tx)) KIT_CHECK(kolo_wait_pause(&e->wait) == KOLO_OK);
    kolo_wait_end(&e->wait);
    if (e->tx.spec.proto == KOLO_PROTO_LL) {
        kolo_ll_begin(&e->tx, 1, 1);
        kolo_ll_put(&e->tx, 0, e->out, bytes, 1);
        kolo_ll_post(&e->tx);
    } else {
        if (bytes) memcpy(kolo_tx_payload(&e->tx), e->out, bytes);
        kolo_tx_post(&e->tx, bytes, 0, 1, 1);
    }
    return 0;
}

static int get(kolo_kit_t *kit, ends_t *e, uint32_t bytes)
{
    if (e->rx.spec.proto == KOLO_PROTO_LL) {
        size_t done = 0;
        bool mismatch = false;
        for (;;) {
            done = kolo_ll_get(&e->rx, 0, e->in, bytes, done, 1, &mismatch);
            if (done == bytes) break;
            KIT_CHECK(!mismatch && kolo_wait_pause(&e->wait) == KOLO_OK);
        }
    } else {
        while (!kolo_rx_ready(&e->rx)) KIT_CHECK(kolo_wait_pause(&e->wait) == KOLO_OK);
        if (bytes) memcpy(e->in, kolo_rx_payload(&e->rx), bytes);
    }
    kolo_wait_end(&e->wait);
    kolo_rx_release(&e->rx);
    return 0;
}

static int ping_pong(kolo_kit_t *kit, ends_t *e, uint32_t bytes, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        if (kit->rank == 0) KIT_TRY(put(kit, e, bytes));
        KIT_TRY(get(kit, e, bytes));
        if (kit->rank == 1) KIT_TRY(put(kit, e, bytes));
    }
    return 0;
}

static int stream(kolo_kit_t *kit, ends_t *e, uint32_t bytes, int rounds)
{
    for (int i = 0; i < rounds; i++) KIT_TRY(kit->rank == 0 ? put(kit, e, bytes) : get(kit, e, bytes));
    /* one back, so that the clock stops when all has arrived */
    return kit->rank == 0 ? get(kit, e, KOLO_MIN(bytes, 8)) : put(kit, e, KOLO_MIN(bytes, 8));
}

typedef int (*loop_t)(kolo_kit_t *kit, ends_t *e, uint32_t bytes, int rounds);

/* Nanoseconds per round: least and median over the batches, at rank 0. */
static int measure(kolo_kit_t *kit, ends_t *e, loop_t loop, uint32_t bytes, double *least, double *median)
{
    double ns[BATCHES];
    int rounds = 64;
    KIT_TRY(loop(kit, e, bytes, rounds));
    uint64_t t = kolo_now_ns();
    KIT_TRY(loop(kit, e, bytes, rounds));
    double once = (double)(kolo_now_ns() - t) / rounds;
    rounds = (int)KOLO_MAX(16, (double)point_ns / BATCHES / KOLO_MAX(once, 50));
    KIT_CHECK(kolo_oob_broadcast(kit->oob, 0, &rounds, sizeof rounds) == KOLO_OK);
    for (int i = 0; i < BATCHES; i++) {
        t = kolo_now_ns();
        KIT_TRY(loop(kit, e, bytes, rounds));
        ns[i] = (double)(kolo_now_ns() - t) / rounds;
    }
    qsort(ns, BATCHES, sizeof ns[0], by_value);
    *least = ns[0];
    *median = ns[BATCHES / 2];
    return 0;
}

static int measure_slots(kolo_kit_t *kit)
{
    ends_t e;
    memset(&e, 0, sizeof e);
    pin(kit->rank);
    e.out = (uint8_t *)calloc(1, MOST);
    e.in = (uint8_t *)calloc(1, MOST);
    KIT_CHECK(e.out && e.in);
    kolo_wait_init(&e.wait, &kit->abort, 0, NULL, NULL, 2);
    e.wait.wakers[e.wait.nwakers++] = &kit->ctx.waker;
    for (size_t i = 0; i < KOLO_COUNTOF(points); i++) {
        const point_t *p = &points[i];
        uint32_t slot = p->proto == KOLO_PROTO_LL ? (uint32_t)kolo_ll_lines(p->bytes) * 64
                                                  : KOLO_MAX(64, KOLO_ROUND_UP(p->bytes, 64));
        kolo_conn_spec_t spec = {.kind = KOLO_CONN_PAIR, .proto = p->proto, .depth = 8, .slot_bytes = slot};
        double rtt[2] = {0}, one[2] = {1, 1};
        KIT_CHECK(kolo_kit_connect_both(kit, spec, &e.tx, &e.rx) == KOLO_OK);
        KIT_TRY(measure(kit, &e, ping_pong, p->bytes, &rtt[0], &rtt[1]));
        KIT_TRY(measure(kit, &e, stream, p->bytes, &one[0], &one[1]));
        if (kit->rank == 0)
            printf("%-6s %-7s %7u %9.0f %9.0f %11.1f %9.2f %9.2f\n", e.tx.ops->name,
                   p->proto == KOLO_PROTO_LL ? "lines" : "slots", p->bytes, rtt[0] / 2, rtt[1] / 2, one[1],
                   p->bytes / one[0], p->bytes / one[1]);
        fflush(stdout);
        KIT_CHECK(kolo_oob_barrier(kit->oob) == KOLO_OK);
        kolo_tx_fini(&e.tx);
        kolo_rx_fini(&e.rx);
    }
    free(e.out);
    free(e.in);
    return 0;
}

/* Rank 1 copies from rank 0's memory, and, for comparison, within its own. */
static int measure_single_copies(kolo_kit_t *kit)
{
    enum { BYTES = 16 << 20 };
    static const size_t sizes[] = {4096, 65536, 1 << 20, BYTES};
    kolo_tx_t tx = {0};
    kolo_rx_t rx = {0};
    kolo_conn_spec_t spec = {.kind = KOLO_CONN_PAIR, .reader = 1, .depth = 2, .slot_bytes = 64};
    char *data = (char *)malloc(BYTES), *here = (char *)malloc(BYTES);
    KIT_CHECK(data && here);
    memset(data, 1, BYTES);
    memset(here, 2, BYTES);
    pin(kit->rank);
    KIT_CHECK(kolo_kit_connect(kit, &spec, &tx, &rx) == KOLO_OK);
    kolo_ref_t ref = {0};
    if (kit->rank == 0) KIT_CHECK(tx.ops->ref_make(&tx, data, BYTES, &ref) == KOLO_OK);
    KIT_CHECK(kolo_oob_broadcast(kit->oob, 0, &ref, sizeof ref) == KOLO_OK);
    for (size_t s = 0; kit->rank == 1 && s < KOLO_COUNTOF(sizes); s++) {
        double ns[3][BATCHES];
        int rounds = (int)KOLO_MAX(1, point_ns / BATCHES / (int64_t)(sizes[s] / 4 + 500));
        for (int b = 0; b < BATCHES; b++) {
            uint64_t t[4] = {kolo_now_ns()};
            for (int i = 0; i < rounds; i++)
                KIT_CHECK(kolo_kit_copy(&rx, &ref, 0, here, sizes[s], false) == KOLO_OK);
            t[1] = kolo_now_ns();
            for (int i = 0; i < rounds; i++)
                KIT_CHECK(kolo_kit_copy(&rx, &ref, 0, here, sizes[s], true) == KOLO_OK);
            t[2] = kolo_now_ns();
            for (int i = 0; i < rounds; i++) {
                memcpy(here, data, sizes[s]);
                __asm__ volatile("" ::: "memory");
            }
            t[3] = kolo_now_ns();
            for (int k = 0; k < 3; k++) ns[k][b] = (double)(t[k + 1] - t[k]) / rounds;
        }
        for (int k = 0; k < 3; k++) qsort(ns[k], BATCHES, sizeof(double), by_value);
        printf("%-6s %9zu %12.2f %12.2f %12.2f\n", rx.ops->name, sizes[s], (double)sizes[s] / ns[0][BATCHES / 2],
               (double)sizes[s] / ns[1][BATCHES / 2], (double)sizes[s] / ns[2][BATCHES / 2]);
        fflush(stdout);
    }
    KIT_CHECK(kolo_oob_barrier(kit->oob) == KOLO_OK);
    kolo_tx_fini(&tx);
    kolo_rx_fini(&rx);
    free(data);
    free(here);
    return 0;
}

int main(int argc, char **argv)
{
    const kolo_wire_ops_t *const kinds[] = {&kolo_wire_shm, &kolo_wire_local};
    int failed = 0;
    if (argc > 1) point_ns = (int64_t)(atof(argv[1]) * 1e6);
    printf("wire   queue     bytes  ns least ns median  ns streamed GB/s best GB/s med.\n");
    for (size_t i = 0; i < KOLO_COUNTOF(kinds); i++) {
        kolo_kit_job_t job = {.name = "slots",
                              .nranks = 2,
                              .limit_s = 60,
                              .run = measure_slots,
                              .dies = -1,
                              .processes = kinds[i] != &kolo_wire_local};
        failed += kolo_conformance_force(kinds[i]) != KOLO_OK || kolo_kit_run(&job) != 0;
    }
    printf("\nwire       bytes    read GB/s   write GB/s  memcpy GB/s (medians)\n");
    kolo_kit_job_t job = {.name = "single copies",
                          .nranks = 2,
                          .limit_s = 60,
                          .run = measure_single_copies,
                          .processes = true,
                          .dies = -1};
    failed += kolo_conformance_force(&kolo_wire_cma) != KOLO_OK || kolo_kit_run(&job) != 0;
    return failed != 0;
}
