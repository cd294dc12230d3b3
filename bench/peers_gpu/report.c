/* SPDX-License-Identifier: Apache-2.0
 *
 * The table, the rows for machines, and the ratios. See peers_gpu.h.
 */
#include "peers_gpu.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static FILE *json;
static struct {
    double logs, min, max;
    uint64_t at;
    int n;
} sums[OPS][PLACES][MOST_LIBRARIES]; /* ratios to Kolo's time: of NCCL, of the variants */

static const char *mode_of(const options_t *o)
{
    return o->graph ? "graph" : "plain";
}
static const char *how_of(const options_t *o)
{
    return o->processes ? "processes" : "threads";
}
static const char *peer_of(const options_t *o)
{
    return o->windows ? "windows" : "plain";
}

void report_begin(const options_t *o, const char *device)
{
    int version = 0, driver = 0;
    if (!o->alone) nccl.version(&version);
    cuda.driver_version(&driver);
    printf("# %d x %s, driver API %d.%d, NCCL %d.%d.%d (NVLS off, %s), Kolo %d.%d.%d, %s, %s, %zu-byte elements%s",
           o->gpus, device, driver / 1000, driver % 1000 / 10, version / 10000, version / 100 % 100, version % 100,
           o->windows ? "registered windows" : "plain buffers", KOLO_VERSION_MAJOR, KOLO_VERSION_MINOR,
           KOLO_VERSION_PATCH, how_of(o), o->graph ? "CUDA graphs" : "calls on a stream", kolo_type_size(o->type),
           o->odd ? ", odd counts" : "");
    if (o->offset) printf(", buffers begin %d elements behind an aligned address", o->offset);
    printf("\n# us: host clock around the calls of a round and a wait for the stream, slowest rank, per call; "
           "medians of rounds, NCCL and Kolo in turn; GB/s: of a link\n");
    for (int i = 0; i < o->nvariants; i++)
        printf("# v%d: Kolo with %s; ratios: time of NCCL and of each variant over Kolo's\n", i + 1,
               o->variants[i]);
    printf("%-15s %12s", "op", "bytes");
    for (int place = 0; place < PLACES; place++) {
        if (!o->places[place]) continue;
        printf(" | %s: NCCL us %9s %7s %6s %6s", place == IN_PLACE ? "in " : "out", "Kolo us", "ratio", "GB/s",
               "GB/s");
        for (int i = 0; i < o->nvariants; i++) printf("     v%-2d us   ratio", i + 1);
    }
    printf("\n");
    fflush(stdout);
    if (!o->json_path) return;
    json = fopen(o->json_path, "a");
    if (!json) die("cannot write %s", o->json_path);
}

/* Counts a ratio in, and returns it. */
static double ratio_of(const row_t *row, int place, int library)
{
    double ratio = row->us[place][library] / row->us[place][KOLO];
    sums[row->op][place][library].logs += log(ratio);
    if (!sums[row->op][place][library].n++ || ratio < sums[row->op][place][library].min) {
        sums[row->op][place][library].min = ratio;
        sums[row->op][place][library].at = row->bytes;
    }
    if (ratio > sums[row->op][place][library].max) sums[row->op][place][library].max = ratio;
    return ratio;
}

static void row_as_json(const options_t *o, const row_t *row, int place, double ratio, const double *gb)
{
    const double *us = row->us[place];
    fprintf(
        json,
        "{\"op\": \"%s\", \"place\": \"%s\", \"gpus\": %d, \"mode\": \"%s\", \"how\": \"%s\", \"peer\": \"%s\", "
        "\"type_bytes\": %zu, \"offset\": %d, \"bytes\": %llu, \"nccl_us\": %.3f, \"kolo_us\": %.3f, \"ratio\": "
        "%.4f, "
        "\"nccl_busbw\": %.3f, \"kolo_busbw\": %.3f, \"calls\": %d, \"rounds\": %d",
        op_names[row->op], place_names[place], o->gpus, mode_of(o), how_of(o), peer_of(o), kolo_type_size(o->type),
        o->offset, (unsigned long long)row->bytes, us[NCCL], us[KOLO], ratio, gb[NCCL], gb[KOLO], row->calls,
        row->rounds);
    for (int i = 0; i < o->nvariants; i++) fprintf(json, ", \"v%d_us\": %.3f", i + 1, us[VARIANT + i]);
    fprintf(json, "}\n");
    fflush(json);
}

static void row_of_place(const options_t *o, const row_t *row, int place)
{
    const double *us = row->us[place];
    double gb[LIBRARIES] = {0}, ratio = 0;
    if (us[KOLO] <= 0) {
        printf(" | %12s %9s %7s %6s %6s", "-", "-", "-", "-", "-");
        return;
    }
    for (int l = first_library(o); l < LIBRARIES; l++)
        gb[l] = (double)row->bytes * share_of(o, row->op) / us[l] / 1e3;
    if (!o->alone) ratio = ratio_of(row, place, NCCL);
    printf(" | %12.2f %9.2f %7.3f %6.1f %6.1f", us[NCCL], us[KOLO], ratio, gb[NCCL], gb[KOLO]);
    for (int l = VARIANT; l < (int)end_of_libraries(o); l++)
        printf(" %10.2f %7.3f", us[l], ratio_of(row, place, l));
    if (json) row_as_json(o, row, place, ratio, gb);
}

void report_row(const options_t *o, const row_t *row)
{
    printf("%-15s %12llu", op_names[row->op], (unsigned long long)row->bytes);
    for (int place = 0; place < PLACES; place++)
        if (o->places[place]) row_of_place(o, row, place);
    printf("\n");
    fflush(stdout);
}

static void means_of(const options_t *o, int op, int place)
{
    if (sums[op][place][NCCL].n)
        printf("ratio %s gpus=%d mode=%s how=%s peer=%s place=%s geomean=%.3f min=%.3f at=%llu\n", op_names[op],
               o->gpus, mode_of(o), how_of(o), peer_of(o), place_names[place],
               exp(sums[op][place][NCCL].logs / sums[op][place][NCCL].n), sums[op][place][NCCL].min,
               (unsigned long long)sums[op][place][NCCL].at);
    for (int l = VARIANT; l < (int)end_of_libraries(o); l++)
        if (sums[op][place][l].n)
            printf("variant %s gpus=%d mode=%s how=%s place=%s geomean=%.3f min=%.3f max=%.3f of %s\n",
                   op_names[op], o->gpus, mode_of(o), how_of(o), place_names[place],
                   exp(sums[op][place][l].logs / sums[op][place][l].n), sums[op][place][l].min,
                   sums[op][place][l].max, o->variants[l - VARIANT]);
}

void report_end(const options_t *o)
{
    for (int op = 0; op < OPS; op++)
        for (int place = 0; place < PLACES; place++) means_of(o, op, place);
    if (json) fclose(json);
}
