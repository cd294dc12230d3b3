/* SPDX-License-Identifier: Apache-2.0
 *
 * The parameters of this room. The values stand here with their defaults, so that code which runs before the tables
 * are parsed (tests, tools) finds them.
 */
#include "oob/internal.h"

kolo_oob_values_t kolo_oob_values = {
    .early_max = 4096,
    .queue_bytes = 16 << 20,
};

static const kolo_param_t rows[] = {
    {.key = "KOLO_OOB_EARLY_MAX",
     .kind = KOLO_PARAM_INT,
     .def = "4096",
     .min = 1,
     .max = 1 << 20,
     .help = "streams per communicator that may arrive before they are expected, beside 256 of each rank",
     .value = &kolo_oob_values.early_max},
    {.key = "KOLO_OOB_QUEUE_BYTES",
     .kind = KOLO_PARAM_SIZE,
     .def = "16M",
     .min = 2 << 20,
     .max = 1ll << 40,
     .help = "bytes of messages per peer that may arrive before they are expected",
     .value = &kolo_oob_values.queue_bytes},
};

const kolo_param_table_t kolo_oob_params = {.module = "oob", .rows = rows, .count = KOLO_COUNTOF(rows)};
