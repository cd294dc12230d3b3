/* SPDX-License-Identifier: Apache-2.0
 *
 * The table (columns as in nccl-tests, times from the slowest rank of each call) and JSON.
 */
#include "perf.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static bool reduces(perf_coll_t coll)
{
    return coll == PERF_ALL_REDUCE || coll == PERF_REDUCE || coll == PERF_REDUCE_SCATTER;
}

static bool has_root(perf_coll_t coll)
{
    return coll == PERF_REDUCE || coll == PERF_BROADCAST || coll == PERF_GATHER || coll == PERF_SCATTER;
}

void perf_print_head(const perf_job_t *job, perf_coll_t coll)
{
    printf("# %s, %d rank%s\n", perf_coll_names[coll], job->nranks, job->nranks == 1 ? "" : "s");
    if (job->nranks == 1)
        printf("# nothing goes between ranks; for more ranks: kolorun -n 4 kolo-perf %s\n", perf_coll_names[coll]);
    printf("# %12s %12s %10s %6s %5s %10s %8s %8s %7s  %-5s %9s %9s %9s %7s  %s\n", "size", "count", "type",
           "redop", "root", "time", "algbw", "busbw", "#wrong", "place", "min", "p99", "model", "of copy",
           "algorithm");
    printf("# %12s %12s %10s %6s %5s %10s %8s %8s %7s  %-5s %9s %9s %9s %7s\n", "(B)", "(elements)", "", "", "",
           "(us)", "(GB/s)", "(GB/s)", "", "", "(us)", "(us)", "(us)", "");
    fflush(stdout); /* the first row may take minutes */
}

void perf_print_row(const perf_job_t *job, const perf_row_t *row)
{
    char wrong[32] = "N/A", model[32] = "-", share[32] = "-", root[16] = "-1";
    if (row->wrong >= 0) snprintf(wrong, sizeof wrong, "%ld", row->wrong);
    if (row->predicted_us > 0) snprintf(model, sizeof model, "%.2f", row->predicted_us);
    if (row->copy_share > 0) snprintf(share, sizeof share, "%.2f", row->copy_share);
    if (has_root(row->coll)) snprintf(root, sizeof root, "%d", job->options->root);
    printf("  %12llu %12llu %10s %6s %5s %10.2f %8.3f %8.3f %7s  %-5s %9.2f %9.2f %9s %7s  %s\n",
           (unsigned long long)row->bytes, (unsigned long long)row->count, perf_type_names[job->options->type],
           reduces(row->coll) ? perf_op_names[job->options->op] : "none", root, row->median_us, row->algbw,
           row->busbw, wrong, row->in_place ? "in" : "out", row->min_us, row->p99_us, model, share,
           row->algo ? row->algo : "-");
    fflush(stdout);
}

void perf_print_end(const perf_job_t *job, const perf_row_t *rows, size_t count)
{
    double busbw = 0;
    long wrong = 0;
    size_t with_bytes = 0;
    for (size_t i = 0; i < count; i++) {
        if (rows[i].wrong > 0) wrong += rows[i].wrong;
        if (rows[i].bytes == 0) continue; /* a barrier */
        busbw += rows[i].busbw;
        with_bytes++;
    }
    if (job->options->check)
        printf("# out of bounds values: %ld %s", wrong, wrong ? "FAILED" : "OK");
    else
        printf("# out of bounds values: not checked");
    if (with_bytes) printf(", average busbw: %.3f GB/s", busbw / (double)with_bytes);
    printf("\n");
}

static void machine_line(char *buf, size_t bytes)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(buf, bytes, "unknown");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(buf, bytes, "%s", colon + 2);
        break;
    }
    if (f) fclose(f);
    for (char *p = buf; *p; p++)
        if (*p == '"' || *p == '\\') *p = ' ';
}

/* A number that may be unknown. */
static void json_number(FILE *f, const char *key, double value)
{
    if (value > 0)
        fprintf(f, "\"%s\": %.4f, ", key, value);
    else
        fprintf(f, "\"%s\": null, ", key);
}

int perf_write_json(const perf_job_t *job, const perf_row_t *rows, size_t count, const char *path)
{
    char machine[256], date[32];
    int version = 0;
    time_t now = time(NULL);
    struct tm tm;
    FILE *f = perf_output(path);
    if (!f) return -1;
    machine_line(machine, sizeof machine);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    kolo_get_version(&version);
    fprintf(f, "{\"version\": %d, \"date\": \"%s\", \"machine\": \"%s\", \"cores\": %ld, \"ranks\": %d,\n", version,
            date, machine, sysconf(_SC_NPROCESSORS_ONLN), job->nranks);
    fprintf(f, " \"type\": \"%s\", \"op\": \"%s\", \"rows\": [\n", perf_type_names[job->options->type],
            perf_op_names[job->options->op]);
    for (size_t i = 0; i < count; i++) {
        const perf_row_t *r = &rows[i];
        fprintf(f,
                "  {\"collective\": \"%s\", \"bytes\": %llu, \"count\": %llu, \"in_place\": %s, \"iters\": %d, "
                "\"min_us\": %.3f, \"median_us\": %.3f, \"p99_us\": %.3f, \"algbw\": %.4f, \"busbw\": %.4f, ",
                perf_coll_names[r->coll], (unsigned long long)r->bytes, (unsigned long long)r->count,
                r->in_place ? "true" : "false", r->iters, r->min_us, r->median_us, r->p99_us, r->algbw, r->busbw);
        json_number(f, "predicted_us", r->predicted_us);
        json_number(f, "copy_share", r->copy_share);
        fprintf(f, "\"algorithm\": \"%s\", \"wrong\": %ld}%s\n", r->algo ? r->algo : "none", r->wrong,
                i + 1 < count ? "," : "");
    }
    fprintf(f, " ]}\n");
    return fclose(f);
}
