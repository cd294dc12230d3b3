/* SPDX-License-Identifier: Apache-2.0
 *
 * A libnccl.so.2 for machines without GPUs: NCCL's functions, as the engine's backends call them, by communicators
 * of Kolo on the fake driver's GPUs. It really moves and reduces between processes, in the order of streams; what
 * is tested with it is who calls NCCL, when, with which buffers and counts. What NCCL would refuse, it refuses.
 */
#include "mem/cuda/api.h"

#include <dlfcn.h>
#include <kolo/kolo.h>
#include <stdio.h>
#include <stdlib.h>

enum { SUCCESS = 0, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };

typedef struct nccl_comm {
    kolo_comm_t comm;
    int rank, nranks;
} * nccl_comm_t;

static int result_of(kolo_status_t status)
{
    if (status != KOLO_OK) fprintf(stderr, "NCCL's stand-in: %s\n", kolo_get_last_error(NULL));
    return status == KOLO_OK ? SUCCESS : INTERNAL_ERROR;
}

static kolo_type_t type_of(int type)
{
    static const kolo_type_t types[] = {KOLO_INT8,   KOLO_UINT8,   KOLO_INT32,   KOLO_UINT32,  KOLO_INT64,
                                        KOLO_UINT64, KOLO_FLOAT16, KOLO_FLOAT32, KOLO_FLOAT64, KOLO_BFLOAT16};
    return type >= 0 && type < (int)(sizeof types / sizeof types[0]) ? types[type] : KOLO_TYPE_COUNT;
}

static kolo_op_t op_of(int op)
{
    static const kolo_op_t ops[] = {KOLO_SUM, KOLO_PROD, KOLO_MAX, KOLO_MIN, KOLO_AVG};
    return op >= 0 && op < (int)(sizeof ops / sizeof ops[0]) ? ops[op] : KOLO_OP_BUILTIN_COUNT;
}

/* The device of the context that is current. */
static int current_device(void)
{
    int (*ask)(int *device) = NULL, device = -1;
    const char *path = getenv("KOLO_CUDA_LIBRARY");
    void *driver = dlopen(path ? path : "libcuda.so.1", RTLD_NOW);
    if (driver) *(void **)&ask = dlsym(driver, "cuCtxGetDevice");
    return ask && ask(&device) == 0 ? device : -1;
}

const char *ncclGetErrorString(int result);
const char *ncclGetErrorString(int result)
{
    return result == INVALID_USAGE ? "invalid usage" : result == SUCCESS ? "no error" : "internal error";
}

int ncclGetUniqueId(kolo_unique_id_t *id);
int ncclGetUniqueId(kolo_unique_id_t *id)
{
    return result_of(kolo_get_unique_id(id));
}

int ncclCommInitRank(nccl_comm_t *out, int nranks, kolo_unique_id_t id, int rank);
int ncclCommInitRank(nccl_comm_t *out, int nranks, kolo_unique_id_t id, int rank)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    nccl_comm_t c = calloc(1, sizeof *c);
    if (!c) return INTERNAL_ERROR;
    *c = (struct nccl_comm){.rank = rank, .nranks = nranks};
    config.blocking = 1;
    config.name = "NCCL's stand-in";
    config.device = current_device();
    int result =
        config.device < 0 ? INVALID_USAGE : result_of(kolo_comm_init_rank(&c->comm, nranks, id, rank, &config));
    if (result == SUCCESS)
        *out = c;
    else
        free(c);
    return result;
}

int ncclCommDestroy(nccl_comm_t c);
int ncclCommDestroy(nccl_comm_t c)
{
    int finalized = result_of(kolo_comm_finalize(c->comm)), destroyed = result_of(kolo_comm_destroy(c->comm));
    free(c);
    return finalized ? finalized : destroyed;
}

int ncclCommAbort(nccl_comm_t c);
int ncclCommAbort(nccl_comm_t c)
{
    int result = result_of(kolo_comm_abort(c->comm));
    free(c);
    return result;
}

int ncclGroupStart(void);
int ncclGroupStart(void)
{
    return result_of(kolo_group_start());
}

int ncclGroupEnd(void);
int ncclGroupEnd(void)
{
    return result_of(kolo_group_end());
}

int ncclAllReduce(const void *in, void *out, size_t count, int type, int op, nccl_comm_t c, void *stream);
int ncclAllReduce(const void *in, void *out, size_t count, int type, int op, nccl_comm_t c, void *stream)
{
    return result_of(kolo_all_reduce(in, out, count, type_of(type), op_of(op), c->comm, stream));
}

int ncclAllGather(const void *in, void *out, size_t count, int type, nccl_comm_t c, void *stream);
int ncclAllGather(const void *in, void *out, size_t count, int type, nccl_comm_t c, void *stream)
{
    return result_of(kolo_all_gather(in, out, count, type_of(type), c->comm, stream));
}

int ncclReduceScatter(const void *in, void *out, size_t count, int type, int op, nccl_comm_t c, void *stream);
int ncclReduceScatter(const void *in, void *out, size_t count, int type, int op, nccl_comm_t c, void *stream)
{
    return result_of(kolo_reduce_scatter(in, out, count, type_of(type), op_of(op), c->comm, stream));
}

int ncclBroadcast(const void *in, void *out, size_t count, int type, int root, nccl_comm_t c, void *stream);
int ncclBroadcast(const void *in, void *out, size_t count, int type, int root, nccl_comm_t c, void *stream)
{
    if (!in || root < 0 || root >= c->nranks) return INVALID_ARGUMENT; /* it looks at the pointer on all ranks */
    return result_of(kolo_broadcast(in, out, count, type_of(type), root, c->comm, stream));
}

int ncclReduce(const void *in, void *out, size_t count, int type, int op, int root, nccl_comm_t c, void *stream);
int ncclReduce(const void *in, void *out, size_t count, int type, int op, int root, nccl_comm_t c, void *stream)
{
    return result_of(kolo_reduce(in, out, count, type_of(type), op_of(op), root, c->comm, stream));
}

int ncclSend(const void *in, size_t count, int type, int peer, nccl_comm_t c, void *stream);
int ncclSend(const void *in, size_t count, int type, int peer, nccl_comm_t c, void *stream)
{
    return result_of(kolo_send(in, count, type_of(type), peer, c->comm, stream));
}

int ncclRecv(void *out, size_t count, int type, int peer, nccl_comm_t c, void *stream);
int ncclRecv(void *out, size_t count, int type, int peer, nccl_comm_t c, void *stream)
{
    return result_of(kolo_recv(out, count, type_of(type), peer, c->comm, stream));
}
