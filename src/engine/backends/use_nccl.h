/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL as backend_nccl.c and levels.h use it: the library, loaded when somebody wants it (of its
 * interface we declare what we call, so it builds without), and communicators of it over ranks of a process set,
 * with the GPUs that these work on. Operations are queued on a stream.
 */
#ifndef KOLO_ENGINE_BACKENDS_USE_NCCL_H
#define KOLO_ENGINE_BACKENDS_USE_NCCL_H

#include "engine/backends/backend.h"
#include "mem/cuda/cuda.h"

typedef struct nccl_comm *nccl_comm_t;
typedef struct {
    char bytes[128];
} nccl_id_t;

/* The functions by their own names; every one is looked up when the library is opened. */
typedef struct {
    void *library;
    int (*get_unique_id)(nccl_id_t *id);
    int (*comm_init_rank)(nccl_comm_t *comm, int nranks, nccl_id_t id, int rank);
    int (*comm_destroy)(nccl_comm_t comm);
    int (*comm_abort)(nccl_comm_t comm);
    const char *(*error_string)(int result);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*all_reduce)(const void *in, void *out, size_t count, int type, int op, nccl_comm_t comm, void *stream);
    int (*all_gather)(const void *in, void *out, size_t count, int type, nccl_comm_t comm, void *stream);
    int (*reduce_scatter)(const void *in, void *out, size_t count, int type, int op, nccl_comm_t comm,
                          void *stream);
    int (*broadcast)(const void *in, void *out, size_t count, int type, int root, nccl_comm_t comm, void *stream);
    int (*reduce)(const void *in, void *out, size_t count, int type, int op, int root, nccl_comm_t comm,
                  void *stream);
    int (*send)(const void *in, size_t count, int type, int peer, nccl_comm_t comm, void *stream);
    int (*recv)(void *out, size_t count, int type, int peer, nccl_comm_t comm, void *stream);
} nccl_functions_t;

typedef struct {
    const nccl_functions_t *n;
    nccl_comm_t comm;
    const kolo_cuda_device_t *device;
    int rank, size;
} kolo_nccl_t;

/* Opens it as kolo_backend_t has it. */
kolo_status_t kolo_engine_nccl_open_backend(struct kolo_tensor_engine *e, void **state);
void kolo_engine_nccl_close_backend(struct kolo_tensor_engine *e, void *state);
/* Does NCCL know memory, type and operator of this? */
bool kolo_engine_nccl_knows(const kolo_need_t *need);

/* Makes a communicator over `ranks` of the set, in which this rank is the `rank`-th. Collective over the set, whose
 * ranks may be of several such groups. */
kolo_status_t kolo_engine_nccl_meet(kolo_set_t *s, const nccl_functions_t *n, const int *ranks, int size, int rank,
                                    kolo_nccl_t **nccl);
void kolo_engine_nccl_leave(void *nccl, bool abort);
void kolo_engine_nccl_free(void *nccl);

/* Queues a move, as backends and groups have it, on its stream. */
kolo_status_t kolo_engine_nccl_run(void *nccl, const kolo_move_t *move);

#endif
