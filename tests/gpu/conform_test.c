/* SPDX-License-Identifier: Apache-2.0
 *
 * Conformance of the public API on GPUs (or, for comparison, on the CPU): every collective, type and operator,
 * lengths from nothing to more than one tile, in and out of place, off alignment, every root, several streams;
 * ranks as threads, as processes, or all driven by one thread. --stress, --calls and --faults are in files of their
 * own.
 */
#include "cases.h"
#include "conform.h"

#include <stdio.h>

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
        for (int type = 0; type < KOLO_TYPE_COUNT; type++)
            if (!operators_of(t, (kolo_type_t)type, few[turn], turn + type)) return false;
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
    for (int root = 0; root < t->ranks[0].nranks; root++)
        for (int k = 0; k < 4; k++)
            for (size_t count = 3; count < 400000; count *= 500)
                if (!run(
                        t,
                        (case_t){
                            .kind = kinds[k], .count = count, .type = KOLO_UINT8, .root = root, .in_place = k & 1}))
                    return false;
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

static void conform(kit_team_t *t)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    if (t->options->faults) {
        conform_faults(t);
        return;
    }
    if (!kit_comms_make(t, &config)) return;
    bool good = devices_are_told(t);
    if (t->options->stress_s > 0)
        good = good && conform_stress(t);
    else if (t->options->calls)
        good = good && conform_chain(t);
    else
        good = good && types_and_operators(t) && lengths(t) && roots(t);
    if (good) kit_comms_end(t);
}

int main(int argc, char **argv)
{
    return kit_main(argc, argv, room, conform);
}
