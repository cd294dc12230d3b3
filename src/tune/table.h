/* SPDX-License-Identifier: Apache-2.0
 *
 * The table file: what kolo-tune has measured on this machine, as text. The tuner takes it instead of its own
 * rules, the executor of GPUs instead of its own limits. One item a line, words with blanks between them; # begins
 * a comment.
 *
 *     kolo-tune 1
 *     cpu all_reduce ranks=4 from=65536 algo=direct
 *     gpu ranks=2 ll_all_reduce=262144 ll_others=262144 ll128_all_reduce=1048576 ll128_others=4194304 \
 *         message_lines=1048576 give=16777216   (in one line)
 *     machine launch_ns=3700 ...
 *     end 3
 *
 * cpu: the algorithm from this many bytes on (rising, per collective and number of ranks), on one host. gpu: see
 * kolo_exec_tuned_t; 0: not measured. machine: constants of the GPUs, for predictions alone. end: how many lines of
 * items come before it, so that a file that was cut off is noticed. All ranks must have the same bytes.
 */
#ifndef KOLO_TUNE_TABLE_H
#define KOLO_TUNE_TABLE_H

#include "tune/tune.h"

#define KOLO_TUNE_TABLE_VERSION 1
#define KOLO_TUNE_TABLE_BYTES   (1u << 20) /* longest file */
#define KOLO_TUNE_TABLE_ROWS    4096
#define KOLO_TUNE_TABLE_GPUS    32
#define KOLO_TUNE_TABLE_LINE    512 /* longest line */

typedef struct {
    kolo_coll_t coll;
    uint32_t ranks;
    uint64_t from;
    kolo_way_t way;
} kolo_tune_row_t;

typedef struct {
    uint32_t nrows, ngpus;
    bool has_machine;
    kolo_tune_gpu_t gpus[KOLO_TUNE_TABLE_GPUS];
    kolo_tune_machine_t machine;
    uint64_t hash; /* of the bytes it was read from */
    kolo_tune_row_t rows[KOLO_TUNE_TABLE_ROWS];
} kolo_tune_table_t;

/* Parses a table; `name` appears in messages. After an error the table must not be used. */
kolo_status_t kolo_tune_table_parse(const char *text, size_t bytes, const char *name, kolo_tune_table_t *table);
kolo_status_t kolo_tune_table_read(const char *path, kolo_tune_table_t *table);
/* Writes text that can be read again. `comment`: one line, or NULL. */
void kolo_tune_table_write(const kolo_tune_table_t *table, const char *comment, FILE *out);
/* Returns the row for a call on one host, or NULL. */
const kolo_tune_row_t *kolo_tune_table_find(const kolo_tune_table_t *table, kolo_coll_t coll, uint32_t ranks,
                                            uint64_t bytes);

#endif
