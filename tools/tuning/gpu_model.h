/* SPDX-License-Identifier: Apache-2.0
 *
 * What the simulator says about operations on GPUs of one host: the plan that the kernels of a call follow, timed
 * on a machine of which a few constants were measured.
 */
#ifndef KOLO_TOOLS_TUNING_GPU_MODEL_H
#define KOLO_TOOLS_TUNING_GPU_MODEL_H

#include "gpu/cuda/cuda.h"
#include "tune/tune.h"

typedef struct {
    double launch_us;             /* from launch to launch of a short operation, as the host can queue them */
    double gap_us;                /* between two kernels on a stream, more than in a graph */
    double begin_us;              /* of a kernel in a graph, with its end */
    double hop_us;                /* a line to another GPU, until it is seen there */
    double meet_us;               /* of the blocks of a long operation, once */
    double message_us;            /* what a message takes more than a collective */
    double ll_gbps, ll128_gbps;   /* payload by lines out of one GPU, bytes per ns */
    double store_gbps, load_gbps; /* between GPUs, each way, by all multiprocessors */
    double store_block_gbps, load_block_gbps, memory_block_gbps; /* most that a block moves */
    double memory_gbps;                                          /* copies and reductions in a GPU's own memory */
    uint32_t multiprocessors;
} gpu_machine_t;
/* Returns what is built in, measured on two and on four H200. */
gpu_machine_t gpu_machine_built_in(uint32_t nranks);
/* The same with what the table file has. */
gpu_machine_t gpu_machine_of(const kolo_tune_machine_t *measured);

typedef struct {
    kolo_coll_t coll; /* KOLO_COLL_P2P: a ring, each rank sends and receives one message */
    uint32_t nranks;
    uint64_t count;
    kolo_type_t type;
    bool graph; /* the calls are in a CUDA graph, else queued one by one */
    kolo_exec_tuned_t tuned;
} gpu_call_t;
typedef struct {
    double us;
    const char *way;  /* static: how the kernels do it */
    kolo_algo_t algo; /* whose plan they follow */
    uint32_t blocks;  /* 0: of messages */
    uint32_t threads; /* of each block */
} gpu_prediction_t;
kolo_status_t gpu_predict(const gpu_machine_t *machine, const gpu_call_t *call, gpu_prediction_t *out);

#endif
