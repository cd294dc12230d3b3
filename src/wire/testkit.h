/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a function as n ranks, threads of this process or processes of their own, each with a real bootstrap over
 * loopback and an open wire context. For tests and measurements; not part of the library.
 */
#ifndef KOLO_WIRE_TESTKIT_H
#define KOLO_WIRE_TESTKIT_H

#include "base/test_time.h"
#include "wire/wire.h"

#include <stdio.h>

struct kolo_kit_job;

typedef struct kolo_kit { /* one rank */
    const struct kolo_kit_job *job;
    int rank, nranks;
    kolo_oob_t *oob;
    kolo_member_t member;
    kolo_wire_ctx_t ctx;
    _Atomic uint32_t abort;
    kolo_unique_id_t id;
    int result;
} kolo_kit_t;

typedef struct kolo_kit_job {
    const char *name;
    int nranks;
    bool processes;
    int limit_s;                 /* whoever is not done by then is killed and the job has failed */
    int (*run)(kolo_kit_t *kit); /* 0: passed */
    void *arg;
    int dies; /* rank that is expected to be killed by a signal; -1 none */
} kolo_kit_job_t;

/* Returns 0 when all ranks passed. */
int kolo_kit_run(const kolo_kit_job_t *job);

/* Says where a rank stands and why; returns `line`. */
int kolo_kit_report(const kolo_kit_t *kit, const char *file, int line, const char *what);
#define KIT_CHECK(cond)                                                                                            \
    do {                                                                                                           \
        if (!(cond)) return kolo_kit_report(kit, __FILE__, __LINE__, #cond);                                       \
    } while (0)
#define KIT_TRY(call)                                                                                              \
    do {                                                                                                           \
        int kit_line = (call);                                                                                     \
        if (kit_line) return kit_line;                                                                             \
    } while (0)

/* Waits as executors do: poll, step, pause, look after the peer. Within limit_ms. */
kolo_status_t kolo_kit_wait_rx(kolo_kit_t *kit, kolo_rx_t *rx, int limit_ms);
kolo_status_t kolo_kit_wait_line(kolo_kit_t *kit, kolo_rx_t *rx, size_t line, int limit_ms);
kolo_status_t kolo_kit_wait_tx(kolo_kit_t *kit, kolo_tx_t *tx, int limit_ms);
kolo_status_t kolo_kit_wait_released(kolo_kit_t *kit, kolo_tx_t *tx, int limit_ms);

/* Connects tx (if this rank writes) or rx (if it reads); ranks that do neither do nothing. */
kolo_status_t kolo_kit_connect(kolo_kit_t *kit, const kolo_conn_spec_t *spec, kolo_tx_t *tx, kolo_rx_t *rx);
/* A connection to and one from the other of two ranks. */
kolo_status_t kolo_kit_connect_both(kolo_kit_t *kit, kolo_conn_spec_t spec, kolo_tx_t *tx, kolo_rx_t *rx);
/* A whole copy between `mine` and a reference (wire.h: ref_start). */
kolo_status_t kolo_kit_copy(kolo_rx_t *rx, const kolo_ref_t *ref, uint64_t offset, void *mine, size_t bytes,
                            bool write);
void kolo_kit_sleep_ms(int ms);

/* What a process holds, to be compared before and after. */
typedef struct {
    int fds, threads, segments;
} kolo_kit_holdings_t;
void kolo_kit_count(kolo_kit_holdings_t *holdings);
/* Waits a little until what there is now is no more than before; `after` is what there was last. */
bool kolo_kit_no_more_than(const kolo_kit_holdings_t *before, kolo_kit_holdings_t *after);

#endif
