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
    double logs, min;
    uint64_t at;
    int n;
} sums[OPS][PLACES];

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
    nccl.version(&version);
    cuda.driver_version(&driver);
    printf("# %d x %s, driver API %d.%d, NCCL %d.%d.%d (NVLS off, %s), Kolo %d.%d.%d, %s, %s, %zu-byte elements%s",
           o->gpus, device, driver / 1000, driver % 1000 / 10, version / 10000, version / 100 % 100, version % 100,
           o->windows ? "registered windows" : "plain buffers", KOLO_VERSION_MAJOR, KOLO_VERSION_MINOR,
           KOLO_VERSION_PATCH, how_of(o), o->graph ? "CUDA graphs" : "calls on a stream", kolo_type_size(o->type),
           o->odd ? ", odd counts" : "");
    if (o->offset) printf(", buffers begin %d elements behind an aligned address", o->offset);
    printf("\n# us: host clock around the calls of a round and a wait for the stream, slowest rank, per call; "
           "medians of rounds, NCCL and Kolo in turn; GB/s: of a link\n");
    printf("%-15s %12s", "op", "bytes");
    for (int place = 0; place < PLACES; place++)
        if (o->places[place])
            printf(" | %s: NCCL us %9s %7s %6s %6s", place == IN_PLACE ? "in " : "out", "Kolo us", "ratio", "GB/s",
                   "GB/s");
    printf("\n");
    fflush(stdout);
    if (!o->json_path) return;
    json = fopen(o->json_path, "a");
    if (!json) die("cannot write %s", o->json_path);
}

static void row_of_place(const options_t *o, const row_t *row, int place)
{
    const double *us = row->us[place];
    double ratio = us[KOLO] > 0 ? us[NCCL] / us[KOLO] : 0, gb[LIBRARIES];
    if (ratio <= 0) {
        printf(" | %12s %9s %7s %6s %6s", "-", "-", "-", "-", "-");
        return;
    }
    for (int l = 0; l < LIBRARIES; l++) gb[l] = (double)row->bytes * share_of(o, row->op) / us[l] / 1e3;
    printf(" | %12.2f %9.2f %7.3f %6.1f %6.1f", us[NCCL], us[KOLO], ratio, gb[NCCL], gb[KOLO]);
    sums[row->op][place].logs += log(ratio);
    if (!sums[row->op][place].n++ || ratio < sums[row->op][place].min) {
        sums[row->op][place].min = ratio;
        sums[row->op][place].at = row->bytes;
    }
    if (!json) return;
    fprintf(
        json,
        "{\"op\": \"%s\", \"place\": \"%s\", \"gpus\": %d, \"mode\": \"%s\", \"how\": \"%s\", \"peer\": \"%s\", "
        "\"type_bytes\": %zu, \"offset\": %d, \"bytes\": %llu, \"nccl_us\": %.3f, \"kolo_us\": %.3f, \"ratio\": "
        "%.4f, "
        "\"nccl_busbw\": %.3f, \"kolo_busbw\": %.3f, \"calls\": %d, \"rounds\": %d}\n",
        op_names[row->op], place_names[place], o->gpus, mode_of(o), how_of(o), peer_of(o), kolo_type_size(o->type),
        o->offset, (unsigned long long)row->bytes, us[NCCL], us[KOLO], ratio, gb[NCCL], gb[KOLO], row->calls,
        row->rounds);
    fflush(json);
}

void report_row(const options_t *o, const row_t *row)
{
    printf("%-15s %12llu", op_names[row->op], (unsigned long long)row->bytes);
    for (int place = 0; place < PLACES; place++)
        if (o->places[place]) row_of_place(o, row, place);
    printf("\n");
    fflush(stdout);
}

void report_end(const options_t *o)
{
    for (int op = 0; op < OPS; op++)
        for (int place = 0; place < PLACES; place++)
            if (sums[op][place].n)
                printf("ratio %s gpus=%d mode=%s how=%s peer=%s place=%s geomean=%.3f min=%.3f at=%llu\n",
                       op_names[op], o->gpus, mode_of(o), how_of(o), peer_of(o), place_names[place],
                       exp(sums[op][place].logs / sums[op][place].n), sums[op][place].min,
                       (unsigned long long)sums[op][place].at);
    if (json) fclose(json);
}
