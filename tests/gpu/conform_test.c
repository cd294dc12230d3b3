/* SPDX-License-Identifier: Apache-2.0
 *
 * Conformance of the public API on GPUs (or, for comparison, on the CPU): every collective, type and operator,
 * lengths from nothing to more than one tile, in and out of place, off alignment, every root, several streams;
 * ranks as threads, as processes, or all driven by one thread. Streams, --stress, --calls, --fresh, --soak,
 * --programs, --places, --counts, --order, --windows, --vmm and --faults are in files of their own.
 */
#include "cases.h"
#include "conform.h"

#include <stdio.h>
#include <stdlib.h>

static size_t limit(const kit_options_t *o)
{
    return o->quick ? (size_t)6 << 20 : (size_t)64 << 20;
}

static size_t room(const kit_options_t *o)
{
    return 2 * limit(o) + 65536;
}

/* The case, no longer than there is room for. */
static bool run(kit_team_t *t, case_t c)
{
    int n = t->ranks[0].nranks;
    size_t most = limit(t->options) / kolo_type_size(c.type) / (size_t)n / 8 * 7; /* an eighth: several messages */
    if (c.count > most) c.count = most;
    if (c.kind == CASE_RING && n == 1) return true;
    if (c.in_place && !case_has_place(c.kind)) return true;
    c.seed = t->options->seed * 1000003 + (uint64_t)t->number;
    c.root %= n;
    return case_run(t, &c);
}

/* ---- types and operators ---- */

static bool operators_of(kit_team_t *t, kolo_type_t type, size_t count, int turn)
{
    static const case_kind_t kinds[] = {CASE_ALL_REDUCE, CASE_REDUCE, CASE_REDUCE_SCATTER, CASE_REDUCE_SCATTERV};
    for (int op = 0; op <= VALUES_PREMUL; op++) {
        for (int k = 0; k < 4; k++) {
            if (t->options->quick && k && (op + k + turn) % 4) continue;
            case_t c = {.kind = kinds[k],
                        .count = count,
                        .type = type,
                        .op = op,
                        .root = turn + op,
                        .in_place = (turn + op + k) & 1 && kinds[k] != CASE_REDUCE_SCATTERV,
                        .skew = (size_t)(turn + k) % 3,
                        .stream = op % KIT_STREAMS};
            if (!run(t, c)) return false;
            if (type < KOLO_FLOAT16 || (t->options->quick && k)) continue;
            c.values = VALUES_ROUGH;
            if (kolo_type_size(type) > 1 && op != VALUES_PREMUL && !run(t, c)) return false;
            c.values = VALUES_SPECIAL;
            if ((op == KOLO_SUM || op == KOLO_MIN || op == KOLO_MAX) && !run(t, c)) return false;
        }
    }
    return true;
}

static bool types_and_operators(kit_team_t *t)
{
    static const size_t few[] = {7, 4099, 1, 1000, 65537};
    int turns = t->options->quick ? 2 : 5;
    for (int turn = 0; turn < turns; turn++)
        for (int type = 0; type < VALUES_TYPES; type++)
            if (!operators_of(t, (kolo_type_t)type, few[turn], turn + type)) return false;
    return true;
}

/* Long enough to be made in several steps, in which a scale must come once. */
static bool long_operators(kit_team_t *t)
{
    static const kolo_type_t types[] = {KOLO_FLOAT32, KOLO_INT32, KOLO_FLOAT16};
    static const case_kind_t kinds[] = {CASE_ALL_REDUCE, CASE_REDUCE_SCATTER};
    for (int type = 0; type < 3; type++)
        for (int op = 0; op <= VALUES_PREMUL; op++)
            for (int k = 0; k < 2; k++)
                if (!run(t,
                         (case_t){
                             .kind = kinds[k], .count = 70001, .type = types[type], .op = op, .in_place = k & op}))
                    return false;
    return true;
}

/* ---- lengths, places, alignment, roots ---- */

static bool all_forms(kit_team_t *t, case_kind_t kind, size_t count, int turn)
{
    static const kolo_type_t types[] = {KOLO_FLOAT32, KOLO_UINT8, KOLO_BFLOAT16, KOLO_INT64, KOLO_INT32};
    bool quick = t->options->quick, large = count > 70000;
    for (int place = 0; place < 2; place++) {
        for (size_t skew = 0; skew < 3; skew++) {
            if (quick && (large ? skew != (size_t)place : (skew + (size_t)place + (size_t)turn) % 3 == 0)) continue;
            case_t c = {.kind = kind,
                        .count = count,
                        .type = types[((size_t)turn + skew) % 5],
                        .op = KOLO_SUM,
                        .root = turn + (int)skew,
                        .in_place = place,
                        .skew = skew * skew * skew,
                        .stream = (turn + place) % KIT_STREAMS};
            if (!run(t, c)) return false;
        }
    }
    return true;
}

static bool lengths(kit_team_t *t)
{
    static const size_t counts[] = {0, 1, 7, 1000, 4099, 65537, (1 << 20) + 3, (5 << 20) + 77};
    int n = t->options->quick ? 7 : 8, turn = 0;
    for (int i = 0; i < n; i++)
        for (int kind = 0; kind < CASE_KINDS; kind++)
            if (!all_forms(t, (case_kind_t)kind, counts[i], turn++)) return false;
    return true;
}

static bool roots(kit_team_t *t)
{
    static const case_kind_t kinds[] = {CASE_BROADCAST, CASE_REDUCE, CASE_GATHER, CASE_SCATTER};
    static const size_t counts[] = {3, 1500, 70001}; /* the last: in levels, over several hosts */
    for (int root = 0; root < t->ranks[0].nranks; root++)
        for (int k = 0; k < 4; k++)
            for (int i = 0; i < 3; i++) {
                case_t c = {.kind = kinds[k],
                            .count = counts[i],
                            .type = KOLO_UINT8,
                            .root = root,
                            .in_place = (k + i) & 1};
                if (!run(t, c)) return false;
            }
    return true;
}

/* ---- who works where ---- */

static bool devices_are_told(kit_team_t *t)
{
    bool good = true;
    for (int i = 0; i < t->n; i++) {
        int device = -2;
        good = KIT_OK(kolo_comm_device(t->ranks[i].comm, &device)) && good;
        if (device != t->ranks[i].device) good = KIT_FAIL("device %d instead of %d", device, t->ranks[i].device);
    }
    return kit_case_end(t, good, "kolo_comm_device() tells the device");
}

/* Device memory is given back and got again: operations before, refused ones between, and after. */
static bool suspended(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    size_t bytes = 0;
    case_t c = {.kind = CASE_ALL_REDUCE, .count = 4099, .type = KOLO_INT32, .op = KOLO_SUM, .seed = 3};
    if (t->n > 1 || t->options->hosts) return true; /* one thread cannot wait for all */
    if (!case_run(t, &c)) return false;
    kolo_status_t status = kolo_comm_suspend(r->comm, &bytes);
    if (t->options->host || getenv("KOLO_GPU_EXECUTOR")) {
        bool known =
            status == KOLO_ERR_UNSUPPORTED || KIT_FAIL("suspend on the CPU: %s", kolo_status_string(status));
        return kit_case_end(t, known, "a communicator of the CPU has no device memory to give back");
    }
    bool good = (status == KOLO_OK && bytes > 0) ||
                KIT_FAIL("rank %d: suspend: %s, %zu bytes", r->rank, kolo_get_last_error(NULL), bytes);
    status = kolo_barrier(r->comm, r->streams[0]);
    if (status != KOLO_ERR_INVALID_USAGE)
        good = KIT_FAIL("a barrier while suspended: %s", kolo_status_string(status));
    status = kolo_comm_suspend(r->comm, NULL);
    if (status != KOLO_ERR_INVALID_USAGE) good = KIT_FAIL("suspended twice: %s", kolo_status_string(status));
    good = KIT_OK(kolo_comm_resume(r->comm)) && good;
    status = kolo_comm_resume(r->comm);
    if (status != KOLO_ERR_INVALID_USAGE) good = KIT_FAIL("resumed twice: %s", kolo_status_string(status));
    if (t->options->verbose && kit_leads(t)) fprintf(stderr, "gave back %zu bytes\n", bytes);
    return kit_case_end(t, good, "device memory is given back for a while") && case_run(t, &c);
}

static void conform(kit_team_t *t)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    if (t->options->twice) {
        conform_twice(t);
        return;
    }
    if (t->options->faults) {
        conform_faults(t);
        return;
    }
    if (t->options->order) config.order = KOLO_ORDER_RANKS;
    if (!kit_comms_make(t, &config)) return;
    bool good = devices_are_told(t);
    if (t->options->stress_s > 0)
        good = good && conform_stress(t);
    else if (t->options->soak)
        good = good && conform_soak(t);
    else if (t->options->places)
        good = good && conform_places(t);
    else if (t->options->programs)
        good = good && conform_programs(t);
    else if (t->options->fresh)
        good = good && conform_fresh(t);
    else if (t->options->order)
        good = good && conform_order(t);
    else if (t->options->calls)
        good = good && conform_chain(t);
    else if (t->options->vmm)
        good = good && conform_vmm(t);
    else if (t->options->counts)
        good = good && conform_counts(t);
    else if (t->options->clients)
        good = good && conform_clients(t);
    else if (t->options->windows)
        good = good && conform_windows(t);
    else
        good = good && conform_streams(t) && suspended(t) && types_and_operators(t) && conform_bits(t) &&
               long_operators(t) && lengths(t) && roots(t);
    if (good) kit_comms_end(t);
}

int main(int argc, char **argv)
{
    return kit_main(argc, argv, room, conform);
}
