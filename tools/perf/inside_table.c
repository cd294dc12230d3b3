/* SPDX-License-Identifier: Apache-2.0
 *
 * See inside_table.h.
 */
#include "inside_table.h"
#include "base/file/output.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

kolo_status_t perf_table_open(const char *path, kolo_tune_table_t *table)
{
    memset(table, 0, sizeof *table);
    if (access(path, F_OK) != 0 && errno == ENOENT) return KOLO_OK;
    return kolo_tune_table_read(path, table);
}

void perf_table_drop_cpu(kolo_tune_table_t *t, kolo_coll_t coll, uint32_t ranks)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->nrows; i++)
        if (t->rows[i].coll != coll || t->rows[i].ranks != ranks) t->rows[n++] = t->rows[i];
    t->nrows = n;
}

void perf_table_drop_gpu(kolo_tune_table_t *t, uint32_t ranks)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->ngpus; i++)
        if (t->gpus[i].ranks != ranks) t->gpus[n++] = t->gpus[i];
    t->ngpus = n;
}

kolo_status_t perf_table_add_cpu(kolo_tune_table_t *t, const kolo_tune_row_t *row)
{
    if (t->nrows == KOLO_TUNE_TABLE_ROWS) return kolo_fail(KOLO_ERR_INVALID_USAGE, "the table file is full");
    t->rows[t->nrows++] = *row;
    return KOLO_OK;
}

kolo_status_t perf_table_add_gpu(kolo_tune_table_t *t, const kolo_tune_gpu_t *gpu)
{
    if (t->ngpus == KOLO_TUNE_TABLE_GPUS) return kolo_fail(KOLO_ERR_INVALID_USAGE, "the table file is full");
    t->gpus[t->ngpus++] = *gpu;
    return KOLO_OK;
}

kolo_status_t perf_table_save(const kolo_tune_table_t *t, const char *path)
{
    char temp[4096], comment[160], host[64] = "?", day[32] = "";
    time_t now = time(NULL);
    struct tm tm;
    if (snprintf(temp, sizeof temp, "%s.new", path) >= (int)sizeof temp)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "the path of the table file is too long");
    gethostname(host, sizeof host - 1);
    if (gmtime_r(&now, &tm)) strftime(day, sizeof day, "%Y-%m-%d", &tm);
    snprintf(comment, sizeof comment, "measured on %s, %s, by Kolo %d.%d.%d", host, day, KOLO_VERSION_MAJOR,
             KOLO_VERSION_MINOR, KOLO_VERSION_PATCH);
    char why[sizeof temp + 100];
    FILE *out = kolo_output_fopen(temp, why, sizeof why);
    if (!out) return kolo_fail(KOLO_ERR_SYSTEM, "cannot write %s", why);
    kolo_tune_table_write(t, comment, out);
    if (fclose(out) == 0 && rename(temp, path) == 0) return KOLO_OK;
    kolo_fail(KOLO_ERR_SYSTEM, "cannot write %s: %s", path, strerror(errno));
    unlink(temp);
    return KOLO_ERR_SYSTEM;
}
