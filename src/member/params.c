/* SPDX-License-Identifier: Apache-2.0
 *
 * The parameters of this room. The values stand here with their defaults, so that code which runs before the tables
 * are parsed (tests, tools) finds them.
 */
#include "member/member.h"

kolo_member_values_t kolo_member_values = {.suspect_ms = 1000, .verdict_ms = 10000};

static const kolo_param_t rows[] = {
    {.key = "KOLO_HOST_ID",
     .kind = KOLO_PARAM_STR,
     .help = "ranks with equal values are taken to share a host, others not (default: boot id, name, namespaces)",
     .value = &kolo_member_values.host_id},
    {.key = "KOLO_SUSPECT_MS",
     .kind = KOLO_PARAM_INT,
     .def = "1000",
     .min = 100,
     .max = 3600000,
     .must_agree = true,
     .help = "milliseconds without a heartbeat from a rank on another host until a warning is logged",
     .value = &kolo_member_values.suspect_ms},
    {.key = "KOLO_VERDICT_MS",
     .kind = KOLO_PARAM_INT,
     .def = "10000",
     .min = 0,
     .max = 3600000,
     .must_agree = true,
     .help = "milliseconds without a heartbeat from a rank on another host until it is given up (100 or more); 0: "
             "no heartbeats",
     .value = &kolo_member_values.verdict_ms},
};
const kolo_param_table_t kolo_member_params = {.module = "member", .rows = rows, .count = KOLO_COUNTOF(rows)};
