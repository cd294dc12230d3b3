/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters of this room.
 */
#include "comm/params.h"
#include "elastic/state.h"

int64_t kolo_state_change_ms;

static const kolo_param_t rows[] = {
    {"KOLO_STATE_CHANGE_MS", KOLO_PARAM_INT, "60000", 1, 86400000, NULL, false,
     "state: limit in milliseconds of one change of the ranks, the coming of new processes included",
     &kolo_state_change_ms},
};
const kolo_param_table_t kolo_elastic_params = {"elastic", rows, KOLO_COUNTOF(rows), NULL};
