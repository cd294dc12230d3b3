/* SPDX-License-Identifier: Apache-2.0
 *
 * The parameters of this room. The values stand here with their defaults, so that code which runs before the tables
 * are parsed (tests, tools) finds them.
 */
#include "meet/id.h"

kolo_meet_values_t kolo_meet_values = {
    .secret_fd = -1,
    .stagger_above = 2048,
    .stagger_rate = 8000,
};

static const kolo_param_t rows[] = {
    {.key = "KOLO_COMM_ID",
     .kind = KOLO_PARAM_STR,
     .help = "host:port of the root; every rank can then make the id itself (needs KOLO_COMM_SECRET_FILE or _FD)",
     .value = &kolo_meet_values.comm_id},
    {.key = "KOLO_COMM_SECRET_FILE",
     .kind = KOLO_PARAM_FILE,
     .help = "file with the job's secret for KOLO_COMM_ID, at least 16 bytes, equal on all ranks; a text of less "
             "than 64 characters is taken for a password and hashed with Argon2id (0.1 s and 64 MB per process)",
     .value = &kolo_meet_values.secret_file},
    {.key = "KOLO_COMM_SECRET_FD",
     .kind = KOLO_PARAM_INT,
     .def = "-1",
     .min = -1,
     .max = INT32_MAX,
     .help = "descriptor to read the secret from instead of a file; read once, to its end",
     .value = &kolo_meet_values.secret_fd},
    {.key = "KOLO_OOB_STAGGER_ABOVE",
     .kind = KOLO_PARAM_INT,
     .def = "2048",
     .min = 1,
     .max = INT32_MAX,
     .help = "ranks per root above which check-ins are spread over time",
     .value = &kolo_meet_values.stagger_above},
    {.key = "KOLO_OOB_STAGGER_RATE",
     .kind = KOLO_PARAM_INT,
     .def = "8000",
     .min = 1,
     .max = INT32_MAX,
     .help = "check-ins per second and root when they are spread",
     .value = &kolo_meet_values.stagger_rate},
    {.key = "KOLO_ROOT_IDLE_MS",
     .kind = KOLO_PARAM_INT,
     .def = "86400000",
     .min = 0,
     .max = INT32_MAX,
     .help = "milliseconds after which an id that no rank has called with ends, and its socket is closed; 0: never "
             "(then only with its process)",
     .value = &kolo_meet_values.root_idle_ms},
};

const kolo_param_table_t kolo_meet_params = {.module = "meet", .rows = rows, .count = KOLO_COUNTOF(rows)};
