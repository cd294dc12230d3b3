/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the conformance cases on one wire. See conformance.h.
 */
#include "wire/conformance.h"
#include "remote/net.h"

#include "base/log.h"
#include "link/link.h"

#include <stdlib.h>
#include <string.h>

#define LIMIT_S 120

const kolo_wire_ops_t *kolo_conformance_wire;

kolo_status_t kolo_conformance_force(const kolo_wire_ops_t *wire)
{
    static const kolo_param_table_t *const tables[] = {&kolo_base_params, &kolo_oob_params,    &kolo_member_params,
                                                       &kolo_wire_params, &kolo_ib_params,     &kolo_sockets_params,
                                                       &kolo_link_params, &kolo_plugin_params, &kolo_net_params};
    bool before = true;
    kolo_conformance_wire = wire;
    KOLO_TRY(kolo_params_load(tables, KOLO_COUNTOF(tables), NULL, NULL)); /* a failing test: KOLO_LOG=debug */
    for (int i = 0; kolo_wires[i]; i++) {
        KOLO_TRY(kolo_params_load(&kolo_wires[i]->params, 1, NULL, NULL));
        if (kolo_wires[i] == wire) before = false;
        KOLO_TRY(kolo_param_parse(&kolo_wires[i]->params->rows[0], before ? "1" : "0"));
    }
    return kolo_params_apply_base();
}

/* Leaves nothing behind: the same descriptors, threads and segments as before. */
static int run_case(const kolo_conformance_case_t *c, bool processes)
{
    kolo_kit_job_t job = {.name = c->name,
                          .nranks = c->nranks,
                          .processes = processes,
                          .limit_s = LIMIT_S,
                          .run = c->run,
                          .dies = c->dies};
    kolo_kit_holdings_t before, after;
    kolo_kit_count(&before);
    uint64_t t = kolo_now_ns();
    int failed = kolo_kit_run(&job);
    double ms = (double)(kolo_now_ns() - t) / 1e6;
    if (!kolo_kit_no_more_than(&before, &after)) {
        fprintf(stderr, "%s leaves %d descriptors, %d threads, %d segments; there were %d, %d, %d\n", c->name,
                after.fds, after.threads, after.segments, before.fds, before.threads, before.segments);
        failed++;
    }
    printf("%s %-9s %-28s %7.1f ms\n", failed ? "FAILED" : "ok    ", processes ? "processes" : "threads", c->name,
           ms);
    fflush(stdout);
    return failed != 0;
}

static int run_list(const kolo_conformance_case_t *cases, size_t n, int mode, uint32_t caps, const char *only)
{
    int failed = 0;
    for (size_t i = 0; i < n; i++) {
        const kolo_conformance_case_t *c = &cases[i];
        if (!(c->modes & mode) || (c->needs & ~caps) || (c->except & caps)) continue;
        if (only && !strstr(c->name, only)) continue;
        failed += run_case(c, mode == KOLO_CONFORM_PROCESSES);
    }
    return failed;
}

static int nothing(kolo_kit_t *kit)
{
    (void)kit;
    return 0;
}

int kolo_conformance_main(const kolo_wire_ops_t *wire, int modes, int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : NULL;
    int failed = 0;
    if (KOLO_KIT_TSAN) modes &= KOLO_CONFORM_THREADS; /* it does not see across processes */
    if (kolo_conformance_force(wire) != KOLO_OK) {
        fprintf(stderr, "the wire cannot be forced: %s\n", kolo_error_text());
        return 1;
    }
    /* The first use of the library, the C library and a sanitizer leaves a little that stays. */
    kolo_kit_job_t warm_up = {.name = "warm-up", .nranks = 2, .limit_s = LIMIT_S, .run = nothing, .dies = -1};
    if (kolo_kit_run(&warm_up) != 0) return 1;
    uint32_t caps = wire->caps;
    printf("wire %s\n", wire->name);
    for (int mode = KOLO_CONFORM_THREADS; mode <= KOLO_CONFORM_PROCESSES; mode <<= 1) {
        if (!(modes & mode)) continue;
        failed += run_list(kolo_conformance_data, kolo_conformance_ndata, mode, caps, only);
        failed += run_list(kolo_conformance_faults, kolo_conformance_nfaults, mode, caps, only);
    }
    if (failed) printf("%d cases FAILED\n", failed);
    return failed;
}
