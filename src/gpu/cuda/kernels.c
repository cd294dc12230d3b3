/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels' module: compiled by nvcc and embedded (embed.S), loaded once per device with all its functions,
 * before anything runs: a driver that loads a function later waits for kernels that wait for each other.
 */
#include "gpu/cuda/cuda.h"
#include "mem/cuda/beside.h"

#include <pthread.h>
#include <stdatomic.h>

extern const unsigned char kolo_cuda_image[], kolo_cuda_image_end[];

static const char *const names[KOLO_CUDA_FAMILIES][KOLO_EXEC_DEVICE_TYPES] = {
    [KOLO_CUDA_LL] = {[KOLO_INT8] = "kolo_cuda_ll_int8",
                      [KOLO_UINT8] = "kolo_cuda_ll_uint8",
                      [KOLO_INT16] = "kolo_cuda_ll_int16",
                      [KOLO_UINT16] = "kolo_cuda_ll_uint16",
                      [KOLO_INT32] = "kolo_cuda_ll_int32",
                      [KOLO_UINT32] = "kolo_cuda_ll_uint32",
                      [KOLO_INT64] = "kolo_cuda_ll_int64",
                      [KOLO_UINT64] = "kolo_cuda_ll_uint64",
                      [KOLO_FLOAT16] = "kolo_cuda_ll_float16",
                      [KOLO_BFLOAT16] = "kolo_cuda_ll_bfloat16",
                      [KOLO_FLOAT32] = "kolo_cuda_ll_float32",
                      [KOLO_FLOAT64] = "kolo_cuda_ll_float64",
                      [KOLO_FLOAT8_E4M3] = "kolo_cuda_ll_e4m3",
                      [KOLO_FLOAT8_E5M2] = "kolo_cuda_ll_e5m2"},
    [KOLO_CUDA_LL128] = {[KOLO_INT8] = "kolo_cuda_ll128_int8",
                         [KOLO_UINT8] = "kolo_cuda_ll128_uint8",
                         [KOLO_INT16] = "kolo_cuda_ll128_int16",
                         [KOLO_UINT16] = "kolo_cuda_ll128_uint16",
                         [KOLO_INT32] = "kolo_cuda_ll128_int32",
                         [KOLO_UINT32] = "kolo_cuda_ll128_uint32",
                         [KOLO_INT64] = "kolo_cuda_ll128_int64",
                         [KOLO_UINT64] = "kolo_cuda_ll128_uint64",
                         [KOLO_FLOAT16] = "kolo_cuda_ll128_float16",
                         [KOLO_BFLOAT16] = "kolo_cuda_ll128_bfloat16",
                         [KOLO_FLOAT32] = "kolo_cuda_ll128_float32",
                         [KOLO_FLOAT64] = "kolo_cuda_ll128_float64",
                         [KOLO_FLOAT8_E4M3] = "kolo_cuda_ll128_e4m3",
                         [KOLO_FLOAT8_E5M2] = "kolo_cuda_ll128_e5m2"},
    [KOLO_CUDA_STAGED] = {[KOLO_INT8] = "kolo_cuda_staged_int8",
                          [KOLO_UINT8] = "kolo_cuda_staged_uint8",
                          [KOLO_INT16] = "kolo_cuda_staged_int16",
                          [KOLO_UINT16] = "kolo_cuda_staged_uint16",
                          [KOLO_INT32] = "kolo_cuda_staged_int32",
                          [KOLO_UINT32] = "kolo_cuda_staged_uint32",
                          [KOLO_INT64] = "kolo_cuda_staged_int64",
                          [KOLO_UINT64] = "kolo_cuda_staged_uint64",
                          [KOLO_FLOAT16] = "kolo_cuda_staged_float16",
                          [KOLO_BFLOAT16] = "kolo_cuda_staged_bfloat16",
                          [KOLO_FLOAT32] = "kolo_cuda_staged_float32",
                          [KOLO_FLOAT64] = "kolo_cuda_staged_float64",
                          [KOLO_FLOAT8_E4M3] = "kolo_cuda_staged_e4m3",
                          [KOLO_FLOAT8_E5M2] = "kolo_cuda_staged_e5m2"},
    [KOLO_CUDA_TWO_STEP] = {[KOLO_INT8] = "kolo_cuda_two_step_int8",
                            [KOLO_UINT8] = "kolo_cuda_two_step_uint8",
                            [KOLO_INT16] = "kolo_cuda_two_step_int16",
                            [KOLO_UINT16] = "kolo_cuda_two_step_uint16",
                            [KOLO_INT32] = "kolo_cuda_two_step_int32",
                            [KOLO_UINT32] = "kolo_cuda_two_step_uint32",
                            [KOLO_INT64] = "kolo_cuda_two_step_int64",
                            [KOLO_UINT64] = "kolo_cuda_two_step_uint64",
                            [KOLO_FLOAT16] = "kolo_cuda_two_step_float16",
                            [KOLO_BFLOAT16] = "kolo_cuda_two_step_bfloat16",
                            [KOLO_FLOAT32] = "kolo_cuda_two_step_float32",
                            [KOLO_FLOAT64] = "kolo_cuda_two_step_float64",
                            [KOLO_FLOAT8_E4M3] = "kolo_cuda_two_step_e4m3",
                            [KOLO_FLOAT8_E5M2] = "kolo_cuda_two_step_e5m2"},
    [KOLO_CUDA_CHAIN] = {[KOLO_INT32] = "kolo_cuda_chain_int32",
                         [KOLO_UINT32] = "kolo_cuda_chain_uint32",
                         [KOLO_INT64] = "kolo_cuda_chain_int64",
                         [KOLO_UINT64] = "kolo_cuda_chain_uint64",
                         [KOLO_FLOAT32] = "kolo_cuda_chain_float32",
                         [KOLO_FLOAT64] = "kolo_cuda_chain_float64"},
    [KOLO_CUDA_PLAN] = {[KOLO_INT8] = "kolo_cuda_plan_int8",
                        [KOLO_UINT8] = "kolo_cuda_plan_uint8",
                        [KOLO_INT16] = "kolo_cuda_plan_int16",
                        [KOLO_UINT16] = "kolo_cuda_plan_uint16",
                        [KOLO_INT32] = "kolo_cuda_plan_int32",
                        [KOLO_UINT32] = "kolo_cuda_plan_uint32",
                        [KOLO_INT64] = "kolo_cuda_plan_int64",
                        [KOLO_UINT64] = "kolo_cuda_plan_uint64",
                        [KOLO_FLOAT16] = "kolo_cuda_plan_float16",
                        [KOLO_BFLOAT16] = "kolo_cuda_plan_bfloat16",
                        [KOLO_FLOAT32] = "kolo_cuda_plan_float32",
                        [KOLO_FLOAT64] = "kolo_cuda_plan_float64",
                        [KOLO_FLOAT8_E4M3] = "kolo_cuda_plan_e4m3",
                        [KOLO_FLOAT8_E5M2] = "kolo_cuda_plan_e5m2"},
};

typedef enum { NOT_ASKED, ASKED, HERE } asked_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kolo_cuda_kernels_t loaded[KOLO_CUDA_DEVICES];
static _Atomic bool known[KOLO_CUDA_DEVICES];
static struct {
    _Atomic asked_t asked; /* ASKED: a thread has it, and nobody else looks at what follows */
    kolo_cu_module_t module;
    kolo_cu_result_t result;
} modules[KOLO_CUDA_DEVICES]; /* as the driver gave them */

bool kolo_cuda_built(void)
{
    return kolo_cuda_image_end - kolo_cuda_image > 64; /* without nvcc embed.S has only a mark */
}

static const char loading[] = "load the kernels of the first communicator there";

static bool is_here(void *arg)
{
    return atomic_load(&modules[((const kolo_cuda_device_t *)arg)->ordinal].asked) == HERE;
}

static void load_module(void *arg)
{
    const kolo_cuda_device_t *device = arg;
    int i = device->ordinal;
    modules[i].result = kolo_cuda_loaded()->module_load(&modules[i].module, kolo_cuda_image);
    kolo_cuda_idle_prepare(device);
    atomic_store(&modules[i].asked, HERE);
}

/* Waits for the module, for which the driver may wait for all that the GPU has to do; who comes after a time limit
 * takes what has come since. */
static kolo_status_t take_module(const kolo_cuda_device_t *device, uint64_t deadline_ns)
{
    void *arg = (void *)(uintptr_t)device; /* NOLINT: to const, which it is there, too */
    asked_t before = NOT_ASKED;
    if (atomic_compare_exchange_strong(&modules[device->ordinal].asked, &before, ASKED))
        return kolo_cuda_beside(device, load_module, arg, deadline_ns, loading);
    return kolo_cuda_beside_wait(device, is_here, arg, deadline_ns, loading);
}

static kolo_status_t load_locked(const kolo_cuda_device_t *device, uint64_t deadline_ns, kolo_cuda_kernels_t *k)
{
    const kolo_cuda_api_t *api = kolo_cuda_loaded();
    int i = device->ordinal;
    bool pushed;
    KOLO_TRY(take_module(device, deadline_ns));
    KOLO_TRY(kolo_cuda_enter(device, &pushed));
    kolo_cu_result_t r = modules[i].result;
    k->module = modules[i].module;
    if (r) atomic_store(&modules[i].asked, NOT_ASKED);
    for (int f = 0; !r && f < KOLO_CUDA_FAMILIES; f++)
        for (int t = 0; !r && t < KOLO_EXEC_DEVICE_TYPES; t++)
            if (names[f][t]) r = api->module_function(&k->collective[f][t], k->module, names[f][t]);
    if (!r) r = api->module_function(&k->messages, k->module, "kolo_cuda_messages");
    if (!r) r = api->module_function(&k->lift, k->module, "kolo_cuda_lift");
    if (!r) r = api->module_function(&k->products, k->module, "kolo_cuda_products");
    if (!r) r = api->module_function(&k->product_sums, k->module, "kolo_cuda_product_sums");
    if (!r) r = api->module_function(&k->blend, k->module, "kolo_cuda_blend");
    if (!r) r = api->module_function(&k->messages_few, k->module, "kolo_cuda_messages_few");
    if (!r) r = api->module_function(&k->messages_table, k->module, "kolo_cuda_messages_table");
    if (!r) r = api->module_function(&k->table, k->module, "kolo_cuda_table");
    int ptx = 0; /* kolo_begin() waits from compute capability 9.0 on */
    if (!r) r = api->func_attribute(&ptx, KOLO_CU_FUNC_PTX_VERSION, k->messages);
    k->early = api->launch_ex && ptx >= 90;
    kolo_cuda_leave(pushed);
    if (!r) return KOLO_OK;
    kolo_cuda_fail(r, device->ordinal, "load the kernels");
    if (!kolo_cuda_built())
        return kolo_fail_prefix(KOLO_ERR_UNSUPPORTED, "this library was built without nvcc, so without kernels: ");
    return KOLO_ERR_SYSTEM;
}

kolo_status_t kolo_cuda_kernels(const kolo_cuda_device_t *device, uint64_t deadline_ns,
                                const kolo_cuda_kernels_t **kernels)
{
    int i = device->ordinal;
    kolo_status_t status = KOLO_OK;
    if (!atomic_load_explicit(&known[i], memory_order_acquire)) {
        pthread_mutex_lock(&lock);
        if (!atomic_load(&known[i])) status = load_locked(device, deadline_ns, &loaded[i]);
        if (status == KOLO_OK) atomic_store_explicit(&known[i], true, memory_order_release);
        pthread_mutex_unlock(&lock);
    }
    if (status == KOLO_OK) *kernels = &loaded[i];
    return status;
}
