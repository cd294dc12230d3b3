/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-perf --every-algorithm --table FILE: what was measured becomes lines of the table file (tune/table.h). Lines
 * for other numbers of ranks stay as they are. On rank 0 alone.
 */
#ifndef KOLO_TOOLS_PERF_INSIDE_TABLE_H
#define KOLO_TOOLS_PERF_INSIDE_TABLE_H

#include "inside.h"
#include "tune/table.h"

/* Reads what is in the file, which need not be there. */
kolo_status_t perf_table_open(const char *path, kolo_tune_table_t *table);
/* Forgets the lines of this number of ranks of a CPU; of this number of GPUs. */
void perf_table_drop_cpu(kolo_tune_table_t *table, kolo_coll_t coll, uint32_t ranks);
void perf_table_drop_gpu(kolo_tune_table_t *table, uint32_t ranks);
kolo_status_t perf_table_add_cpu(kolo_tune_table_t *table, const kolo_tune_row_t *row);
kolo_status_t perf_table_add_gpu(kolo_tune_table_t *table, const kolo_tune_gpu_t *gpu);
/* Whole or not at all: by a file beside it that takes its name. */
kolo_status_t perf_table_save(const kolo_tune_table_t *table, const char *path);

/* inside_gpu.c: measures the limits and constants of the job's GPUs. Collective; exit status. */
int perf_gpu_limits(const perf_job_t *job);
/* The simulator's time for a row, in which calls follow each other on a stream or in a graph; rank 0. */
void perf_gpu_predict(const perf_job_t *job, perf_row_t *row);

#endif
