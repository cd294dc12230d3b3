/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of all parameter tables, and the options of communicators.
 */
#ifndef KOLO_COMM_PARAMS_H
#define KOLO_COMM_PARAMS_H

#include "base/params.h"

const kolo_param_table_t *const *kolo_param_tables(size_t *count);
/* Of rooms above, which include this header and define them. */
extern const kolo_param_table_t kolo_rendezvous_params, kolo_job_params, kolo_engine_params, kolo_elastic_params;

/* Of arguments: what costs nothing; the ends of buffers are touched; all that can be found out (deep_check.c). */
enum { KOLO_CHECK_OFF, KOLO_CHECK_BASIC, KOLO_CHECK_DEEP };

typedef struct {
    bool blocking;
    bool quiet;    /* a rank that gave up is told when it is needed (lost.c) */
    int64_t check; /* KOLO_CHECK_... */
    int64_t order; /* KOLO_ORDER_... */
    int64_t init_timeout_ms, op_timeout_ms;
    int64_t hold_ms;       /* so long kernels that have failed stay on their streams (stop.c) */
    int64_t mismatch_ms;   /* a wait this long asks the peers what they are in */
    int64_t counter_start; /* tests: slot and operation numbers start here */
} kolo_comm_options_t;
extern kolo_comm_options_t kolo_comm_options;

typedef struct { /* of libnccl.so.2 */
    bool cpu, windows;
    int64_t version, wait_ms;
} kolo_nccl_options_t;
extern kolo_nccl_options_t kolo_nccl_options;

#endif
