/* SPDX-License-Identifier: Apache-2.0
 *
 * KOLO_AUTOTUNE_LOG: a line of comma-separated values per setting, on rank 0 with its score. The other ranks write
 * their own if the path has a place for the rank; the lines of all must then be the same but for the score.
 */
#include "base/file/limit.h"
#include "base/file/output.h"
#include "base/log.h"
#include "engine/tuner/autotune.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>

const char *kolo_autotune_log_path;

void kolo_autotune_log_open(kolo_autotune_log_t *log, int rank)
{
    char path[PATH_MAX], why[PATH_MAX + 100] = "the path is too long";
    size_t at = 0;
    const char *p = kolo_autotune_log_path;
    *log = (kolo_autotune_log_t){NULL, 0};
    if (!p || (rank > 0 && !strstr(p, "%r"))) return;
    for (; *p && at + 16 < sizeof path; p++) {
        bool here = p[0] == '%' && p[1] == 'r';
        if (here)
            at += (size_t)snprintf(path + at, 16, "%d", rank);
        else
            path[at++] = *p;
        p += here;
    }
    path[at] = '\0';
    log->file = *p ? NULL : kolo_output_fopen(path, why, sizeof why);
    if (!log->file) {
        kolo_warn("engine", "rank %d tunes without a log (KOLO_AUTOTUNE_LOG): cannot write %.300s", rank, why);
        return;
    }
    kolo_file_quiet_t quiet;
    kolo_file_quiet(&quiet);
    fprintf(log->file, "phase,from_cycle,to_cycle,fusion_threshold,cycle_time_us");
    for (int c = 0; c < KOLO_CHOICES; c++) fprintf(log->file, ",%s", kolo_autotune_choice_name((kolo_choice_t)c));
    fprintf(log->file, ",bytes_per_s\n");
    fflush(log->file);
    kolo_file_loud(&quiet);
}

void kolo_autotune_log_write(kolo_autotune_log_t *log, const kolo_tuned_t *tuned, uint64_t to_cycle, double score)
{
    const kolo_tuning_t *t = &tuned->tuning;
    if (!log->file) return;
    bool last = tuned->phase == KOLO_TUNE_OVER;
    kolo_file_quiet_t quiet;
    kolo_file_quiet(&quiet);
    fprintf(log->file, "%s,%" PRIu64 ",", last ? "best" : kolo_engine_tune_phase_name(tuned->phase),
            log->from_cycle);
    if (!last) fprintf(log->file, "%" PRIu64, to_cycle);
    fprintf(log->file, ",%" PRId64 ",%" PRId64, t->fusion_threshold, t->cycle_time_us);
    for (int c = 0; c < KOLO_CHOICES; c++) fprintf(log->file, ",%d", (int)(t->choices >> c & 1));
    if (score >= 0)
        fprintf(log->file, ",%.0f\n", score); /* no fraction: many locales write it with a comma */
    else
        fprintf(log->file, ",\n");
    fflush(log->file);
    kolo_file_loud(&quiet);
    log->from_cycle = to_cycle;
}

void kolo_autotune_log_close(kolo_autotune_log_t *log)
{
    if (log->file) fclose(log->file);
    log->file = NULL;
}
