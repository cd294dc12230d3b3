/* SPDX-License-Identifier: Apache-2.0
 *
 * All parameter tables of the library in one list, parsed once. See params.h.
 */
#include "comm/params.h"
#include "comm/gpu/device.h"
#include "exec/host/reduce.h"
#include "link/link.h"
#include "link/seal.h"
#include "mem/cuda/cuda.h"
#include "mem/range.h"
#include "member/member.h"
#include "oob/oob.h"
#include "remote/net.h"
#include "remote/onesided.h"
#include "topo/topo.h"
#include "tune/tune.h"
#include "wire/wire.h"

#include <pthread.h>
#include <stdio.h>

kolo_comm_options_t kolo_comm_options;

static const kolo_param_t rows[] = {
    {"KOLO_BLOCKING", KOLO_PARAM_BOOL, "1", 0, 0, NULL, false,
     "0: init, split, shrink, finalize and first uses return at once and go on in the background",
     &kolo_comm_options.blocking},
    {"KOLO_INIT_TIMEOUT_MS", KOLO_PARAM_INT, "120000", 1, INT64_C(86400000), NULL, false,
     "limit of init, split, and of connecting with ranks that have called, in milliseconds",
     &kolo_comm_options.init_timeout_ms},
    {"KOLO_OP_TIMEOUT_MS", KOLO_PARAM_INT, "0", 0, INT64_C(86400000), NULL, false,
     "limit of one operation in milliseconds; 0: none; one that makes connections has KOLO_INIT_TIMEOUT_MS if that "
     "is longer",
     &kolo_comm_options.op_timeout_ms},
    {"KOLO_CHECK", KOLO_PARAM_ENUM, "off", 0, 0, "off|basic|deep", true,
     "basic: also touch the first and last byte of every buffer, so that a bad pointer fails in the call that "
     "brought it; deep: look whether buffers may be read and written over their whole length and whether all ranks "
     "pass the same arguments, before anything runs (slow; a rank later than KOLO_INIT_TIMEOUT_MS is an error)",
     &kolo_comm_options.check},
    {"KOLO_REDUCE_ORDER", KOLO_PARAM_ENUM, "free", 0, 0, "free|ranks", true,
     "order in which a reduction combines the ranks' values, where config.order does not say it. free: as is "
     "fastest; "
     "ranks: ((r0 + r1) + r2) + ..., so that equal values give equal bits whatever the count and the algorithm",
     &kolo_comm_options.order},
    {"KOLO_MISMATCH_MS", KOLO_PARAM_INT, "200", 1, INT64_C(86400000), NULL, false,
     "an operation that waits this many milliseconds asks its peers which operation they are in",
     &kolo_comm_options.mismatch_ms},
    {"KOLO_RECORDER", KOLO_PARAM_BOOL, "1", 0, 0, NULL, false,
     "1: keep the last 1024 operations of each communicator where kolo-top can read them", &kolo_recorder_wanted},
    {"KOLO_QUIET_EXIT", KOLO_PARAM_BOOL, "0", 0, 0, NULL, false,
     "1: a rank that aborts a communicator, or whose process exits, is an error on the others once they call "
     "something or wait for it, not before; a rank that is killed is one at once",
     &kolo_comm_options.quiet},
    {"KOLO_HOLD_MS", KOLO_PARAM_INT, "0", 0, INT64_C(86400000), NULL, false,
     "on GPUs of one host: kernels of operations that have failed stay on their streams until the program was "
     "told, "
     "at most so many milliseconds, so that a stream that is through means results; 0: they end at once",
     &kolo_comm_options.hold_ms},
    {"KOLO_COUNTER_START", KOLO_PARAM_INT, "0", INT64_MIN, INT64_MAX, NULL, true,
     "first number of slots and operations (tests start just below wrap-around)", &kolo_comm_options.counter_start},
};
static const kolo_param_table_t comm_table = {"comm", rows, KOLO_COUNTOF(rows), NULL};

kolo_nccl_options_t kolo_nccl_options;

/* Here, not in room nccl, so that one list of parameters serves both libraries. */
static const kolo_param_t nccl_rows[] = {
    {"KOLO_NCCL_CPU", KOLO_PARAM_BOOL, "0", 0, 0, NULL, true,
     "1: buffers are ordinary memory, streams are ignored and calls are complete when they return (libnccl.so.2 "
     "for tests of programs without a GPU)",
     &kolo_nccl_options.cpu},
    {"KOLO_NCCL_VERSION", KOLO_PARAM_INT, "23007", 22000, 29999, NULL, false,
     "the version that libnccl.so.2 says it has: 10000 * major + 100 * minor + patch", &kolo_nccl_options.version},
    {"KOLO_NCCL_WAIT_MS", KOLO_PARAM_INT, "0", 0, INT64_C(86400000), NULL, false,
     "libnccl.so.2: an operation that waits so many milliseconds for another rank becomes an asynchronous error "
     "that names it; 0: it waits as long as it takes",
     &kolo_nccl_options.wait_ms},
    {"KOLO_NCCL_WINDOWS", KOLO_PARAM_BOOL, "1", 0, 0, NULL, true,
     "libnccl.so.2: 0: ncclCommWindowRegister() answers as NCCL does where there is no symmetric memory",
     &kolo_nccl_options.windows},
};
static const kolo_param_table_t nccl_table = {"nccl", nccl_rows, KOLO_COUNTOF(nccl_rows), NULL};

static const kolo_param_table_t *const fixed[] = {
    &kolo_base_params,    &kolo_link_params,   &kolo_meet_params, &kolo_oob_params,      &kolo_member_params,
    &kolo_topo_params,    &kolo_wire_params,   &kolo_ib_params,   &kolo_onesided_params, &kolo_rendezvous_params,
    &kolo_tune_params,    &kolo_reduce_params, &comm_table,       &kolo_job_params,      &kolo_engine_params,
    &kolo_elastic_params, &kolo_cuda_params,   &kolo_gpus_params, &kolo_mem_params,      &kolo_sockets_params,
    &kolo_plugin_params,  &kolo_net_params,    &nccl_table,
};
/* And those of the wires and the executors. */
static const kolo_param_table_t *tables[KOLO_COUNTOF(fixed) + KOLO_WIRES_MAX + KOLO_EXECUTORS_MAX];
static size_t ntables;
static pthread_once_t listed = PTHREAD_ONCE_INIT;

static void list_tables(void)
{
    for (size_t i = 0; i < KOLO_COUNTOF(fixed); i++) tables[ntables++] = fixed[i];
    for (size_t i = 0; kolo_wires[i] && i < KOLO_WIRES_MAX; i++) tables[ntables++] = kolo_wires[i]->params;
    for (size_t i = 0; kolo_executors[i] && i < KOLO_EXECUTORS_MAX; i++)
        if (kolo_executors[i]->params) tables[ntables++] = kolo_executors[i]->params;
}

const kolo_param_table_t *const *kolo_param_tables(size_t *count)
{
    pthread_once(&listed, list_tables);
    *count = ntables;
    return tables;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static kolo_status_t result;
static char message[KOLO_ERROR_TEXT_BYTES];

static void load(void)
{
    size_t count;
    const kolo_param_table_t *const *all = kolo_param_tables(&count);
    kolo_gpu_init();
    result = kolo_params_load(all, count, NULL, NULL);
    if (result == KOLO_OK) result = kolo_params_apply_base();
    if (result == KOLO_OK) result = kolo_tune_load();
    if (result == KOLO_OK) result = kolo_seal_check_build();
    if (result == KOLO_OK)
        kolo_params_warn_unknown(all, count);
    else
        snprintf(message, sizeof message, "%s", kolo_error_text());
}

kolo_status_t kolo_comm_library_init(void)
{
    pthread_once(&once, load);
    return KOLO_LIKELY(result == KOLO_OK) ? KOLO_OK : kolo_fail(result, "%s", message);
}
