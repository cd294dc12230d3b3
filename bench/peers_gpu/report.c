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
} sums[OPS];

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

/* Bytes that must cross a GPU's link over bytes of the call. */
static double share(const options_t *o, op_t op)
{
    double n = o->gpus;
    if (op == ALL_REDUCE) return 2 * (n - 1) / n;
    return op == BROADCAST || op == SENDRECV ? 1 : (n - 1) / n;
}

void report_begin(const options_t *o, const char *device)
{
    int version = 0, driver = 0;
    nccl.version(&version);
    cuda.driver_version(&driver);
    printf("# %d x %s, driver API %d.%d, NCCL %d.%d.%d (NVLS off, %s), Kolo %d.%d.%d, %s, %s, out of place\n",
           o->gpus, device, driver / 1000, driver % 1000 / 10, version / 10000, version / 100 % 100, version % 100,
           o->windows ? "registered windows" : "plain buffers", KOLO_VERSION_MAJOR, KOLO_VERSION_MINOR,
           KOLO_VERSION_PATCH, how_of(o), o->graph ? "CUDA graphs" : "calls on a stream");
    printf("# us: host clock around the calls of a round and a wait for the stream, slowest rank, per call; "
           "medians of "
           "rounds, NCCL and Kolo in turn\n");
    printf("%-15s %12s %11s %11s %7s %9s %9s %6s %6s\n", "op", "bytes", "NCCL us", "Kolo us", "ratio", "NCCL GB/s",
           "Kolo GB/s", "calls", "rounds");
    fflush(stdout);
    if (!o->json_path) return;
    json = fopen(o->json_path, "a");
    if (!json) die("cannot write %s", o->json_path);
}

void report_row(const options_t *o, const row_t *row)
{
    double ratio = row->us[NCCL] / row->us[KOLO], gb[LIBRARIES];
    for (int l = 0; l < LIBRARIES; l++) gb[l] = (double)row->bytes * share(o, row->op) / row->us[l] / 1e3;
    printf("%-15s %12llu %11.2f %11.2f %7.3f %9.2f %9.2f %6d %6d\n", op_names[row->op],
           (unsigned long long)row->bytes, row->us[NCCL], row->us[KOLO], ratio, gb[NCCL], gb[KOLO], row->calls,
           row->rounds);
    fflush(stdout);
    sums[row->op].logs += log(ratio);
    if (!sums[row->op].n++ || ratio < sums[row->op].min) {
        sums[row->op].min = ratio;
        sums[row->op].at = row->bytes;
    }
    if (!json) return;
    fprintf(
        json,
        "{\"op\": \"%s\", \"gpus\": %d, \"mode\": \"%s\", \"how\": \"%s\", \"peer\": \"%s\", \"type_bytes\": %zu, "
        "\"bytes\": %llu, \"nccl_us\": %.3f, \"kolo_us\": %.3f, \"ratio\": %.4f, \"nccl_busbw\": %.3f, "
        "\"kolo_busbw\": %.3f, \"calls\": %d, \"rounds\": %d}\n",
        op_names[row->op], o->gpus, mode_of(o), how_of(o), peer_of(o), kolo_type_size(o->type),
        (unsigned long long)row->bytes, row->us[NCCL], row->us[KOLO], ratio, gb[NCCL], gb[KOLO], row->calls,
        row->rounds);
    fflush(json);
}

void report_end(const options_t *o)
{
    for (int op = 0; op < OPS; op++)
        if (sums[op].n)
            printf("ratio %s gpus=%d mode=%s how=%s peer=%s geomean=%.3f min=%.3f at=%llu\n", op_names[op], o->gpus,
                   mode_of(o), how_of(o), peer_of(o), exp(sums[op].logs / sums[op].n), sums[op].min,
                   (unsigned long long)sums[op].at);
    if (json) fclose(json);
}
