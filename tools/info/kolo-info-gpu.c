/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-info --explain ... --gpu and --model: what the executor of GPUs would do with a call, and what the simulator
 * predicts for it, from the constants that kolo-tune has measured (KOLO_TUNE_FILE) or else those of two or four
 * H200.
 */
#include "../tuning/gpu_model.h"
#include "comm/gpu/device.h"
#include "kolo-info.h"
#include "tune/tune.h"

#include <inttypes.h>
#include <stdio.h>

#define MOST_SIZE ((int64_t)1 << 50)

static gpu_machine_t machine_now(uint32_t nranks, bool *measured)
{
    const kolo_tune_machine_t *t = kolo_tune_machine();
    *measured = t != NULL;
    return t ? gpu_machine_of(t) : gpu_machine_built_in(nranks);
}

static kolo_exec_tuned_t tuned_of(uint32_t nranks, kolo_tune_gpu_t *gpu)
{
    kolo_tune_gpu(nranks, gpu);
    return (kolo_exec_tuned_t){.profile = (int)kolo_gpus_profile,
                               .ll_all_reduce = gpu->ll_all_reduce,
                               .ll_others = gpu->ll_others,
                               .ll128_all_reduce = gpu->ll128_all_reduce,
                               .ll128_others = gpu->ll128_others,
                               .message_lines = gpu->message_lines,
                               .ll128_two = gpu->ll128_two,
                               .give = gpu->give,
                               .pipe = gpu->pipe};
}

/* A call with about `bytes` in its larger buffer; all types of one length take the same time. */
static gpu_call_t call_of(kolo_coll_t coll, int64_t ranks, uint64_t bytes, bool graph,
                          const kolo_exec_tuned_t *tuned)
{
    uint64_t parts = kolo_coll_by_rank(coll) ? (uint64_t)ranks : 1, count = bytes / 4 / parts;
    return (gpu_call_t){.coll = coll,
                        .nranks = (uint32_t)ranks,
                        .count = coll == KOLO_COLL_BARRIER ? 0
                                 : count                   ? count
                                                           : 1,
                        .type = KOLO_FLOAT32,
                        .graph = graph,
                        .tuned = *tuned};
}

static bool parse(const char *name, const char *ranks, kolo_coll_t *coll, int64_t *n)
{
    if (kolo_info_coll(name, coll) != KOLO_OK) {
        fprintf(stderr, "kolo-info: %s\n", kolo_error_text());
        return false;
    }
    return kolo_info_number("GPUS", ranks, false, 1, KOLO_CUDA_RANKS, n);
}

static int failed(void)
{
    fprintf(stderr, "kolo-info: %s\n", kolo_error_text());
    return INFO_FAILED;
}

static void print_source(bool measured, uint32_t ranks, const kolo_tune_gpu_t *gpu)
{
    bool table = gpu->ll_all_reduce || gpu->ll_others || gpu->ll128_all_reduce || gpu->ll128_others ||
                 gpu->message_lines || gpu->ll128_two || gpu->give || gpu->pipe;
    printf("  limits: %s\n", kolo_gpus_profile == KOLO_GPU_COMPUTE ? "built in, of the profile compute"
                             : table                               ? "from the table file (KOLO_TUNE_FILE)"
                             : ranks > 2                           ? "built in, measured on four H200"
                                                                   : "built in, measured on two H200");
    printf("  constants of the prediction: %s\n", measured    ? "from the table file (KOLO_TUNE_FILE)"
                                                  : ranks > 2 ? "built in, measured on four H200"
                                                              : "built in, measured on two H200");
}

int kolo_info_explain_gpu(const char *name, const char *size, const char *ranks, bool graph)
{
    kolo_coll_t coll;
    int64_t n, bytes;
    bool measured;
    kolo_tune_gpu_t gpu;
    gpu_prediction_t p;
    if (!parse(name, ranks, &coll, &n)) return INFO_USAGE;
    if (!kolo_info_number("SIZE", size, true, 0, MOST_SIZE, &bytes)) return INFO_USAGE;
    gpu_machine_t m = machine_now((uint32_t)n, &measured);
    kolo_exec_tuned_t tuned = tuned_of((uint32_t)n, &gpu);
    gpu_call_t call = call_of(coll, n, (uint64_t)bytes, graph, &tuned);
    if (gpu_predict(&m, &call, &p) != KOLO_OK) return failed();
    printf("%s of %" PRId64 " bytes on %" PRId64 " GPUs of one host, each rank with one\n", kolo_coll_name(coll),
           bytes, n);
    printf("chosen: %s", p.way);
    if (p.blocks) printf(", %u blocks of %u threads", p.blocks, p.threads);
    printf("\n");
    print_source(measured, (uint32_t)n, &gpu);
    printf("  predicted: %.2f us %s, by the plan of %s\n", p.us, graph ? "in a CUDA graph" : "on a stream",
           kolo_plan_algo_name(p.algo));
    return INFO_OK;
}

int kolo_info_model(const char *name, const char *ranks, bool graph)
{
    kolo_coll_t coll;
    int64_t n;
    bool measured;
    kolo_tune_gpu_t gpu;
    if (!parse(name, ranks, &coll, &n)) return INFO_USAGE;
    gpu_machine_t m = machine_now((uint32_t)n, &measured);
    kolo_exec_tuned_t tuned = tuned_of((uint32_t)n, &gpu);
    printf("%s on %" PRId64 " GPUs of one host, %s\n", kolo_coll_name(coll), n,
           graph ? "in a CUDA graph" : "calls on a stream");
    print_source(measured, (uint32_t)n, &gpu);
    printf("%12s %14s  %s\n", "bytes", "predicted us", "way");
    for (uint64_t bytes = 8; bytes <= (uint64_t)8 << 30; bytes *= 2) {
        gpu_prediction_t p;
        gpu_call_t call = call_of(coll, n, bytes, graph, &tuned);
        if (gpu_predict(&m, &call, &p) != KOLO_OK) return failed();
        printf("%12" PRIu64 " %14.2f  %s\n", bytes, p.us, p.way);
        if (coll == KOLO_COLL_BARRIER) break;
    }
    return INFO_OK;
}
