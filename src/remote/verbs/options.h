/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of the verbs provider's parameters (params.c).
 */
#ifndef KOLO_REMOTE_VERBS_OPTIONS_H
#define KOLO_REMOTE_VERBS_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    const char *hca;
    int64_t gid_index, timeout, retry_count, rnr_timer, service_level, traffic_class, pkey_index, hop_limit,
        port_down_ms, flush;
    bool lines;
} kolo_verbs_options_t;
enum { /* KOLO_IB_FLUSH */
       KOLO_VERBS_FLUSH_NEVER,
       KOLO_VERBS_FLUSH_DEVICE,
       KOLO_VERBS_FLUSH_ALWAYS
};
extern kolo_verbs_options_t kolo_verbs_options;

#endif
