/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters of the tuner: forced choices and sizes.
 */
#include "tune/internal.h"

kolo_tune_config_t kolo_tune_config;

static const kolo_param_t rows[] = {
    {"KOLO_ALGO", KOLO_PARAM_STR, NULL, 0, 0, NULL, true,
     "forced algorithms, as \"ring\" for all collectives or \"all_reduce=ring,broadcast=tree\"; where one cannot "
     "run, the tuner chooses",
     &kolo_tune_config.algo},
    {"KOLO_TUNE_FILE", KOLO_PARAM_FILE, NULL, 0, 0, NULL, false,
     "table of what kolo-tune has measured on this machine, taken instead of the built-in rules; the same file on "
     "all ranks",
     &kolo_tune_config.file},
    {"KOLO_FLAT_MAX", KOLO_PARAM_SIZE, "8K", 0, 8192, NULL, true,
     "most bytes that one rank puts into an operation of the flat path; 0: never use it",
     &kolo_tune_config.flat_max},
    {"KOLO_SLOT_BYTES", KOLO_PARAM_SIZE, "0", 0, 1 << 24, NULL, true,
     "bytes of a slot between ranks of one host; 0: from the number of ranks", &kolo_tune_config.slot_bytes},
    {"KOLO_NET_SLOT_BYTES", KOLO_PARAM_SIZE, "256K", 4096, 1 << 24, NULL, true, "bytes of a slot between hosts",
     &kolo_tune_config.net_slot_bytes},
    {"KOLO_SLOT_BUDGET", KOLO_PARAM_SIZE, "3M", 65536, 1 << 30, NULL, true,
     "bytes of slots that one rank makes for its host, from which the slot size follows", &kolo_tune_config.budget},
    {"KOLO_P2P_REF_MIN", KOLO_PARAM_SIZE, "36K", 0, INT64_MAX, NULL, true,
     "sends from this many bytes on go by reference (single copy) where the wire can", &kolo_tune_config.ref_min},
    {"KOLO_P2P_HALVES_MIN", KOLO_PARAM_SIZE, "36K", 0, INT64_MAX, NULL, true,
     "not above KOLO_P2P_REF_MIN: sender and receiver copy one half each of those; above it: the receiver copies "
     "all",
     &kolo_tune_config.halves_min},
};
const kolo_param_table_t kolo_tune_params = {"tune", rows, KOLO_COUNTOF(rows), kolo_tune_check_param};
