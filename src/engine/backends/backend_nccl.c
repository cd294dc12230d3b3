/* SPDX-License-Identifier: Apache-2.0
 *
 * The backend that gives moves of device memory to a real NCCL. libnccl.so.2 is loaded when somebody wants it; of
 * its interface we declare what we call, so it builds without. Communicators are made per process set, with the GPU
 * that the rank works on. Moves are queued on the engine's stream; a lost rank ends them by ncclCommAbort().
 */
#include "engine/backends/backend.h"
#include "mem/cuda/cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct nccl_comm *nccl_comm_t;
typedef struct {
    char bytes[128];
} nccl_id_t;

enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 };
/* NCCL's numbers of our types and operators. */
static const int types[KOLO_TYPE_COUNT] = {
    [KOLO_INT8] = 0,    [KOLO_UINT8] = 1,    [KOLO_INT32] = 2,        [KOLO_UINT32] = 3,
    [KOLO_INT64] = 4,   [KOLO_UINT64] = 5,   [KOLO_FLOAT16] = 6,      [KOLO_FLOAT32] = 7,
    [KOLO_FLOAT64] = 8, [KOLO_BFLOAT16] = 9, [KOLO_FLOAT8_E4M3] = 10, [KOLO_FLOAT8_E5M2] = 11};
static const int ops[] = {[KOLO_SUM] = 0, [KOLO_PROD] = 1, [KOLO_MAX] = 2, [KOLO_MIN] = 3, [KOLO_AVG] = 4};

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
    int (*broadcast)(const void *in, void *out, size_t count, int type, int root, nccl_comm_t comm, void *stream);
    int (*reduce)(const void *in, void *out, size_t count, int type, int op, int root, nccl_comm_t comm,
                  void *stream);
    int (*send)(const void *in, size_t count, int type, int peer, nccl_comm_t comm, void *stream);
    int (*recv)(void *out, size_t count, int type, int peer, nccl_comm_t comm, void *stream);
} nccl_t;

typedef struct {
    const nccl_t *n;
    nccl_comm_t comm;
    const kolo_cuda_device_t *device;
    int size;
} here_t;

/* ---- the library ---- */

static kolo_status_t find_all(nccl_t *n)
{
    const struct {
        void *function;
        const char *name;
    } wanted[] = {{&n->get_unique_id, "ncclGetUniqueId"},
                  {&n->comm_init_rank, "ncclCommInitRank"},
                  {&n->comm_destroy, "ncclCommDestroy"},
                  {&n->comm_abort, "ncclCommAbort"},
                  {&n->error_string, "ncclGetErrorString"},
                  {&n->group_start, "ncclGroupStart"},
                  {&n->group_end, "ncclGroupEnd"},
                  {&n->all_reduce, "ncclAllReduce"},
                  {&n->broadcast, "ncclBroadcast"},
                  {&n->reduce, "ncclReduce"},
                  {&n->send, "ncclSend"},
                  {&n->recv, "ncclRecv"}};
    for (size_t i = 0; i < KOLO_COUNTOF(wanted); i++) {
        void *found = dlsym(n->library, wanted[i].name);
        if (!found) return kolo_fail(KOLO_ERR_UNSUPPORTED, "this NCCL has no %s", wanted[i].name);
        *(void **)wanted[i].function = found;
    }
    return KOLO_OK;
}

static void close_nccl(struct kolo_tensor_engine *e, void *state)
{
    (void)e;
    free(state); /* the library stays loaded: it does not like to go */
}

static kolo_status_t open_nccl(struct kolo_tensor_engine *e, void **state)
{
    const kolo_cuda_api_t *api;
    int gpus = 0;
    nccl_t *n = calloc(1, sizeof *n);
    if (!n) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine_init: out of memory");
    kolo_status_t status = kolo_cuda_load(&api);
    if (status == KOLO_OK && (api->device_count(&gpus) != KOLO_CU_SUCCESS || gpus < 1))
        status = kolo_fail(KOLO_ERR_UNSUPPORTED, "there is no GPU");
    if (status == KOLO_OK) n->library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (status == KOLO_OK && !n->library)
        status = kolo_fail(KOLO_ERR_UNSUPPORTED, "NCCL cannot be loaded: %s", dlerror());
    if (status == KOLO_OK) status = find_all(n);
    if (status == KOLO_OK)
        *state = n;
    else
        close_nccl(e, n);
    return status;
}

static kolo_status_t check(const nccl_t *n, int result, const char *what)
{
    if (result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS) return KOLO_OK;
    return kolo_fail(KOLO_ERR_REMOTE, "engine: %s of NCCL: %s", what, n->error_string(result));
}

/* ---- a process set ---- */

static kolo_status_t meet(kolo_set_t *s, void *state, void **here)
{
    const nccl_t *n = state;
    nccl_id_t id = {{0}};
    kolo_status_t status = KOLO_OK;
    if (s->rank == 0) status = check(n, n->get_unique_id(&id), "ncclGetUniqueId");
    KOLO_TRY(status); /* the others learn it when this rank leaves */
    KOLO_TRY(kolo_broadcast(&id, &id, sizeof id, KOLO_UINT8, 0, s->comm, NULL));
    bool pushed;
    here_t *h = calloc(1, sizeof *h);
    if (!h) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for a communicator of NCCL");
    *h = (here_t){.n = n, .size = s->size};
    status = kolo_cuda_device(atomic_load(&s->engine->device), &h->device);
    if (status == KOLO_OK) status = kolo_cuda_enter(h->device, &pushed);
    if (status == KOLO_OK) {
        status = check(n, n->comm_init_rank(&h->comm, s->size, id, s->rank), "ncclCommInitRank");
        kolo_cuda_leave(pushed);
    }
    if (status == KOLO_OK)
        *here = h;
    else
        free(h);
    return status;
}

static void leave(void *here, bool abort)
{
    here_t *h = here;
    if (abort)
        h->n->comm_abort(h->comm);
    else
        h->n->comm_destroy(h->comm);
}

/* ---- moves ---- */

static bool takes(const kolo_set_t *s, const kolo_need_t *need)
{
    (void)s;
    if (need->memory != KOLO_MEMORY_DEVICE) return false;
    bool reduces = need->work == KOLO_WORK_ALL_REDUCE || need->work == KOLO_WORK_REDUCE_SCATTER;
    bool tiny = need->type == KOLO_FLOAT8_E4M3 || need->type == KOLO_FLOAT8_E5M2; /* which not every GPU adds */
    if (need->type > KOLO_FLOAT8_E5M2) return false;                              /* it has no such types */
    return !reduces || (need->op <= KOLO_AVG && !tiny);
}

/* What NCCL has no form of for different lengths is a group of what it has. Within a group errors are its end's. */
static int pieces(const here_t *h, const kolo_move_t *m)
{
    const nccl_t *n = h->n;
    int type = types[m->need.type], result = n->group_start();
    size_t elem = kolo_type_size(m->need.type), at = 0;
    const char *in = m->in;
    char *out = m->out;
    for (int r = 0; r < h->size && result == NCCL_SUCCESS; r++) {
        if (m->need.work == KOLO_WORK_ALL_GATHER) {
            if (m->counts[r] > 0)
                result = n->broadcast(in, out + m->displs[r] * elem, m->counts[r], type, r, h->comm, m->stream);
        } else if (m->need.work == KOLO_WORK_REDUCE_SCATTER) {
            if (m->counts[r] > 0)
                result = n->reduce(in + at * elem, out, m->counts[r], type, ops[m->need.op], r, h->comm, m->stream);
            at += m->counts[r];
        } else {
            if (m->counts[r] > 0)
                result = n->send(in + m->displs[r] * elem, m->counts[r], type, r, h->comm, m->stream);
            if (m->recv_counts[r] > 0 && result == NCCL_SUCCESS)
                result = n->recv(out + m->recv_displs[r] * elem, m->recv_counts[r], type, r, h->comm, m->stream);
        }
    }
    int ended = n->group_end();
    return result == NCCL_SUCCESS ? ended : result;
}

static kolo_status_t run(kolo_set_t *s, void *here, const kolo_move_t *m)
{
    const here_t *h = here;
    const nccl_t *n = h->n;
    int type = types[m->need.type], result;
    bool pushed;
    (void)s;
    KOLO_TRY(kolo_cuda_enter(h->device, &pushed));
    if (m->need.work == KOLO_WORK_ALL_REDUCE)
        result = n->all_reduce(m->in, m->out, m->count, type, ops[m->need.op], h->comm, m->stream);
    else if (m->need.work == KOLO_WORK_BROADCAST)
        result = n->broadcast(m->in ? m->in : m->out, m->out, m->count, type, m->root, h->comm, m->stream);
    else
        result = pieces(h, m);
    kolo_cuda_leave(pushed);
    return check(n, result, kolo_work_name(m->need.work));
}

const kolo_backend_t kolo_backend_nccl = {.name = "nccl",
                                          .open = open_nccl,
                                          .close = close_nccl,
                                          .meet = meet,
                                          .leave = leave,
                                          .free = free,
                                          .takes = takes,
                                          .run = run};
