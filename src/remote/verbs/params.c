/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters of the verbs provider. They are known where it was not built in, too: a job's environment is the same
 * on all machines.
 */
#include "base/params.h"
#include "remote/verbs/options.h"

kolo_verbs_options_t kolo_verbs_options = {.flush = KOLO_VERBS_FLUSH_DEVICE, .lines = true};

static const kolo_param_t rows[] = {
    {"KOLO_IB_HCA", KOLO_PARAM_STR, NULL, 0, 0, NULL, false,
     "RDMA devices that may be used: [^][=]name[:port],... compares the beginnings of names, with = whole names; ^ "
     "takes all others; unset: all",
     &kolo_verbs_options.hca},
    {"KOLO_IB_GID_INDEX", KOLO_PARAM_INT, "-1", -1, 255, NULL, false,
     "entry of the GID table that connections use; -1: RoCE v2 with an IPv4 address, if there is one",
     &kolo_verbs_options.gid_index},
    {"KOLO_IB_TIMEOUT", KOLO_PARAM_INT, "18", 1, 31, NULL, false,
     "a packet that is not acknowledged within 4.096 us times two to this power is sent again",
     &kolo_verbs_options.timeout},
    {"KOLO_IB_RETRY_CNT", KOLO_PARAM_INT, "7", 0, 7, NULL, false,
     "times a packet is sent again before its connection fails", &kolo_verbs_options.retry_count},
    {"KOLO_IB_RNR_TIMER", KOLO_PARAM_INT, "12", 0, 31, NULL, false,
     "code of the time that a sender waits for a receiver that was not ready (12: 0.64 ms)",
     &kolo_verbs_options.rnr_timer},
    {"KOLO_IB_SL", KOLO_PARAM_INT, "0", 0, 15, NULL, false, "service level of connections",
     &kolo_verbs_options.service_level},
    {"KOLO_IB_TC", KOLO_PARAM_INT, "0", 0, 255, NULL, false, "traffic class of connections (RoCE: DSCP and ECN)",
     &kolo_verbs_options.traffic_class},
    {"KOLO_IB_PKEY", KOLO_PARAM_INT, "0", 0, 65535, NULL, false,
     "entry of the P_Key table that connections use (InfiniBand)", &kolo_verbs_options.pkey_index},
    {"KOLO_IB_HOP_LIMIT", KOLO_PARAM_INT, "255", 1, 255, NULL, false, "routers that a packet may pass",
     &kolo_verbs_options.hop_limit},
    {"KOLO_IB_PORT_DOWN_MS", KOLO_PARAM_INT, "2000", 0, 3600000, NULL, false,
     "milliseconds that the port of a device may be down before its connections fail",
     &kolo_verbs_options.port_down_ms},
    {"KOLO_IB_FLUSH", KOLO_PARAM_ENUM, "device", 0, 0, "never|device|always", false,
     "after which receives a card reads back a word of what it has written, so that it is there for whoever reads "
     "next: device: those into memory of GPUs (never run on one so far); always: into any, for tests",
     &kolo_verbs_options.flush},
    {"KOLO_IB_LINES", KOLO_PARAM_BOOL, "1", 0, 0, NULL, false,
     "1: messages of up to 120 bytes are found in memory, before their completions; 0: by their completions alone",
     &kolo_verbs_options.lines},
};
const kolo_param_table_t kolo_ib_params = {"ib", rows, KOLO_COUNTOF(rows), NULL};
