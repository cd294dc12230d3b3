/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks for the tests of libnccl.so.2: as threads of one process, or each in its own; with buffers in host memory
 * (KOLO_NCCL_CPU=1), or on a GPU, real or of the fake driver (--gpu). They call nothing but NCCL's functions.
 */
#ifndef TESTS_NCCL_KIT_H
#define TESTS_NCCL_KIT_H

#include "nccl/abi.h"

#include <stdatomic.h>
#include <stdbool.h>

#define RANKS_MAX 16

typedef struct {
    int rank, n;
    ncclComm_t comm; /* made before a case */
    cudaStream_t stream;
} me_t;

/* States a fact, from any thread; the program ends with the number of those that were wrong. */
bool fact(const char *file, int line, const char *text, bool is);
bool result_is(const char *file, int line, const char *text, ncclResult_t want, ncclResult_t got);
#define FACT(expr)     fact(__FILE__, __LINE__, #expr, (expr))
#define OK(call)       result_is(__FILE__, __LINE__, #call, ncclSuccess, (call))
#define IS(want, call) result_is(__FILE__, __LINE__, #call, (want), (call))
/* A float of a buffer of the rank's. */
#define EQ(value, want) equal(__FILE__, __LINE__, #value, (value), (want))
bool equal(const char *file, int line, const char *text, double value, double want);

/* A buffer of n floats on the rank's device, each `value`; lives until the program ends. */
float *floats(const me_t *me, int n, float value);
float at(const me_t *me, const float *p, int i);
void put(const me_t *me, float *p, int i, float value);
/* From or to the rank's device. */
void copy_bytes(const me_t *me, void *to, const void *from, size_t bytes);
/* Waits for what was put on the stream (in CPU mode it is done). */
void sync_stream(const me_t *me);
cudaStream_t new_stream(int device);
/* What is put on the stream from now on comes so much later. Nothing in CPU mode. */
void delay_stream(const me_t *me, int ms);
/* What is put on the stream from now on waits until the flag is set. Nothing in CPU mode. */
void hold_stream(const me_t *me, _Atomic int *flag);
/* An event of the rank's device; NULL in CPU mode. Is what it was recorded behind over? It is, if it never was. */
cudaEvent_t new_event(const me_t *me);
bool is_over(cudaEvent_t event);
/* The device is this thread's from now on; -1 in CPU mode. */
void use_device(int device);
int device_of(int rank);
bool on_gpu(void);
bool as_processes(void);
bool on_hosts(void); /* on more than one, as they take it */

/* All ranks of the case are here. Threads and processes. */
void meet(const me_t *me);
/* An id that one rank makes and all have, as often as needed. */
ncclUniqueId shared_id(const me_t *me);
/* Waits while it is in progress; what it comes to. */
ncclResult_t settled(ncclComm_t comm);
bool works(const me_t *me, ncclComm_t comm, int n);

/* NCCL_CONFIG_INITIALIZER of version 2.30.7, all else undefined. */
ncclConfig_t new_config(void);

typedef struct {
    const char *name;
    void (*fn)(me_t *me);
    enum {
        EACH,
        FIRST,
        PROCESSES
    } who; /* each rank; rank 0 alone, without communicator; each rank, processes only */
} case_t;
extern const case_t base_cases[], life_cases[], more_cases[], rest_cases[], bad_cases[], leave_cases[],
    edge_cases[], cancel_cases[], hold_cases[], ends_cases[], late_cases[], never_cases[], random_cases[],
    ranks_cases[], many_cases[], foul_cases[];
int run_cases(int argc, char **argv, const case_t *const *lists);

#endif
