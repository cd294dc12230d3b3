/* SPDX-License-Identifier: Apache-2.0
 *
 * Conformance of the public API on GPUs (or, for comparison, on the CPU): every collective, type and operator,
 * lengths from nothing to more than one tile, in and out of place, off alignment, every root, several streams;
 * ranks as threads, as processes, or all driven by one thread. --stress, --calls, --fresh, --soak, --windows, --vmm
 * and --faults are in files of their own.
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

/* Each rank's sum over `count` elements at `from`, to `to`; no context is current. */
static bool sums(kit_team_t *t, size_t from, size_t to, size_t count, void *const *streams)
{
    bool good = true;
    if (t->n > 1) good = KIT_OK(kolo_group_start());
    for (int i = 0; i < t->n; i++) {
        kit_rank_t *r = &t->ranks[i];
        kit_leave(r);
        good = KIT_OK(kolo_all_reduce(r->buffer + from, r->buffer + to, count, KOLO_INT32, KOLO_SUM, r->comm,
                                      streams[i])) &&
               good;
    }
    if (t->n > 1) good = KIT_OK(kolo_group_end()) && good;
    return good;
}

static void fill(kit_rank_t *r, size_t count)
{
    for (size_t k = 0; k < count; k++) ((int32_t *)(void *)r->image)[k] = (int32_t)k + r->rank;
}

/* After `sums` sums, each over the last one's result. */
static bool holds(kit_rank_t *r, size_t at, size_t count, int sums, void *stream)
{
    const int32_t *back = (const int32_t *)(const void *)(r->back + at);
    int32_t n = r->nranks, times = 1;
    for (int i = 1; i < sums; i++) times *= n;
    if (!kit_download(r, at, 4 * count, stream) || !kit_sync(r, stream)) return false;
    for (size_t k = 0; k < count; k++)
        if (back[k] != times * (n * (int32_t)k + n * (n - 1) / 2))
            return KIT_FAIL("rank %d: element %zu is %d", r->rank, k, (int)back[k]);
    return true;
}

/* The default streams by their three names, and a thread without a context. */
static bool default_streams(kit_team_t *t)
{
    void *const names[] = {NULL, (void *)(uintptr_t)1, (void *)(uintptr_t)2}; /* NOLINT: a driver's numbers */
    const size_t count = 5000;
    bool good = true;
    if (t->options->host || t->ranks[0].streams[3] != names[2]) return true; /* ranks that share a context */
    for (int s = 0; s < 3; s++) {
        void *streams[KIT_RANKS];
        for (int i = 0; i < t->n; i++) {
            fill(&t->ranks[i], count);
            streams[i] = names[s];
            good = kit_upload(&t->ranks[i], 0, 4 * count, names[s]) && good;
        }
        good = sums(t, 0, 65536, count, streams) && good;
        for (int i = 0; i < t->n && good; i++) good = holds(&t->ranks[i], 65536, count, 1, names[s]);
    }
    return kit_case_end(t, good, "the default streams, without a current context");
}

/* Two on each device, whose calls alternate on two streams, and wait for each other by the data alone. */
static bool two_communicators(kit_team_t *t)
{
    const size_t count = 20000;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t first[KIT_RANKS], second[KIT_RANKS];
    void *streams[2][KIT_RANKS];
    bool good = true;
    if (t->options->host) return true;
    for (int i = 0; i < t->n; i++) first[i] = t->ranks[i].comm;
    if (!kit_comms_make(t, &config)) return false;
    for (int i = 0; i < t->n; i++) {
        second[i] = t->ranks[i].comm;
        for (int s = 0; s < 2; s++) streams[s][i] = t->ranks[i].streams[s];
        fill(&t->ranks[i], count);
        good =
            kit_upload(&t->ranks[i], 0, 4 * count, streams[0][i]) && kit_sync(&t->ranks[i], streams[0][i]) && good;
    }
    for (int round = 0; round < 6; round++)
        for (int s = 0; s < 2; s++) {
            for (int i = 0; i < t->n; i++) t->ranks[i].comm = s ? second[i] : first[i];
            size_t place = 100000 * (1 + (size_t)s);
            good = sums(t, round % 3 ? place : 0, place, count, streams[s]) && good;
        }
    for (int i = 0; i < t->n; i++)
        for (int s = 0; s < 2 && good; s++)
            good = holds(&t->ranks[i], 100000 * (1 + (size_t)s), count, 3, streams[s][i]);
    for (int i = 0; i < t->n; i++) good = KIT_OK(kolo_comm_destroy(second[i])) && good;
    for (int i = 0; i < t->n; i++) t->ranks[i].comm = first[i];
    return kit_case_end(t, good, "two communicators on each device");
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
    if (!kit_comms_make(t, &config)) return;
    bool good = devices_are_told(t);
    if (t->options->stress_s > 0)
        good = good && conform_stress(t);
    else if (t->options->soak)
        good = good && conform_soak(t);
    else if (t->options->fresh)
        good = good && conform_fresh(t);
    else if (t->options->calls)
        good = good && conform_chain(t);
    else if (t->options->vmm)
        good = good && conform_vmm(t);
    else if (t->options->windows)
        good = good && conform_windows(t);
    else
        good = good && default_streams(t) && two_communicators(t) && suspended(t) && types_and_operators(t) &&
               long_operators(t) && lengths(t) && roots(t);
    if (good) kit_comms_end(t);
}

int main(int argc, char **argv)
{
    return kit_main(argc, argv, room, conform);
}
