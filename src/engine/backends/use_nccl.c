/* SPDX-License-Identifier: Apache-2.0
 *
 * See use_nccl.h. A lost rank ends what is queued by ncclCommAbort().
 */
#include "engine/backends/use_nccl.h"
#include "engine/backends/levels.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 };
/* NCCL's numbers of our types and operators. */
static const int types[KOLO_TYPE_COUNT] = {
    [KOLO_INT8] = 0,    [KOLO_UINT8] = 1,    [KOLO_INT32] = 2,        [KOLO_UINT32] = 3,
    [KOLO_INT64] = 4,   [KOLO_UINT64] = 5,   [KOLO_FLOAT16] = 6,      [KOLO_FLOAT32] = 7,
    [KOLO_FLOAT64] = 8, [KOLO_BFLOAT16] = 9, [KOLO_FLOAT8_E4M3] = 10, [KOLO_FLOAT8_E5M2] = 11};
static const int ops[] = {[KOLO_SUM] = 0, [KOLO_PROD] = 1, [KOLO_MAX] = 2, [KOLO_MIN] = 3, [KOLO_AVG] = 4};

/* ---- the library ---- */

static kolo_status_t find_all(nccl_functions_t *n)
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
                  {&n->all_gather, "ncclAllGather"},
                  {&n->reduce_scatter, "ncclReduceScatter"},
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

void kolo_engine_nccl_close_backend(struct kolo_tensor_engine *e, void *state)
{
    (void)e;
    free(state); /* the library stays loaded: it does not like to go */
}

kolo_status_t kolo_engine_nccl_open_backend(struct kolo_tensor_engine *e, void **state)
{
    const kolo_cuda_api_t *api;
    int gpus = 0;
    nccl_functions_t *n = calloc(1, sizeof *n);
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
        kolo_engine_nccl_close_backend(e, n);
    return status;
}

bool kolo_engine_nccl_knows(const kolo_need_t *need)
{
    if (need->memory != KOLO_MEMORY_DEVICE) return false;
    bool reduces = need->work == KOLO_WORK_ALL_REDUCE || need->work == KOLO_WORK_REDUCE_SCATTER;
    bool tiny = need->type == KOLO_FLOAT8_E4M3 || need->type == KOLO_FLOAT8_E5M2; /* which not every GPU adds */
    if (need->type > KOLO_FLOAT8_E5M2) return false;                              /* it has no such types */
    return !reduces || (need->op <= KOLO_AVG && !tiny);
}

static kolo_status_t check(const nccl_functions_t *n, int result, const char *what)
{
    if (result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS) return KOLO_OK;
    return kolo_fail(KOLO_ERR_REMOTE, "engine: %s of NCCL: %s", what, n->error_string(result));
}

/* ---- groups ---- */

/* Makes an id in the first rank of each group; all go round in the set. Finds that of this rank's group. */
static kolo_status_t share_id(kolo_set_t *s, const nccl_functions_t *n, const int *ranks, int rank, nccl_id_t *id)
{
    nccl_id_t *all = calloc((size_t)s->size, sizeof *all);
    kolo_status_t status = all ? KOLO_OK : kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for ids of NCCL");
    memset(id, 0, sizeof *id);
    if (status == KOLO_OK && rank == 0) status = check(n, n->get_unique_id(id), "ncclGetUniqueId");
    if (status == KOLO_OK) status = kolo_all_gather(id, all, sizeof *id, KOLO_UINT8, s->comm, NULL);
    if (status == KOLO_OK) *id = all[ranks[0]];
    free(all);
    return status; /* of one rank alone: the others learn it when it leaves */
}

kolo_status_t kolo_engine_nccl_meet(kolo_set_t *s, const nccl_functions_t *n, const int *ranks, int size, int rank,
                                    kolo_nccl_t **nccl)
{
    nccl_id_t id;
    bool pushed;
    KOLO_TRY(share_id(s, n, ranks, rank, &id));
    kolo_nccl_t *c = calloc(1, sizeof *c);
    if (!c) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for a communicator of NCCL");
    *c = (kolo_nccl_t){.n = n, .rank = rank, .size = size};
    kolo_status_t status = kolo_cuda_device(atomic_load(&s->engine->device), &c->device);
    if (status == KOLO_OK) status = kolo_cuda_enter(c->device, &pushed);
    if (status == KOLO_OK) {
        status = check(n, n->comm_init_rank(&c->comm, size, id, rank), "ncclCommInitRank");
        kolo_cuda_leave(pushed);
    }
    if (status == KOLO_OK)
        *nccl = c;
    else
        free(c);
    return status;
}

void kolo_engine_nccl_leave(void *nccl, bool abort)
{
    const kolo_nccl_t *c = nccl;
    if (abort)
        c->n->comm_abort(c->comm);
    else
        c->n->comm_destroy(c->comm);
}

void kolo_engine_nccl_free(void *nccl)
{
    free(nccl);
}

/* ---- operations ---- */

/* Makes a group of what NCCL has where it has no form for different lengths. Within a group errors are its end's.
 * */
static int gather_pieces(const kolo_nccl_t *c, const kolo_move_t *m)
{
    int type = types[m->need.type], result = c->n->group_start();
    size_t elem = kolo_type_size(m->need.type);
    for (int r = 0; r < c->size && result == NCCL_SUCCESS; r++)
        if (m->counts[r] > 0)
            result = c->n->broadcast(m->in, (char *)m->out + m->displs[r] * elem, m->counts[r], type, r, c->comm,
                                     m->stream);
    int ended = c->n->group_end();
    return result == NCCL_SUCCESS ? ended : result;
}

static int reduce_pieces(const kolo_nccl_t *c, const kolo_move_t *m)
{
    int type = types[m->need.type], op = ops[m->need.op], result = c->n->group_start();
    size_t elem = kolo_type_size(m->need.type);
    const char *in = m->in;
    for (int r = 0; r < c->size && result == NCCL_SUCCESS; in += m->counts[r++] * elem)
        if (m->counts[r] > 0) result = c->n->reduce(in, m->out, m->counts[r], type, op, r, c->comm, m->stream);
    int ended = c->n->group_end();
    return result == NCCL_SUCCESS ? ended : result;
}

static int exchange(const kolo_nccl_t *c, const kolo_move_t *m)
{
    size_t elem = kolo_type_size(m->need.type);
    const char *in = m->in;
    char *out = m->out;
    int type = types[m->need.type], result = c->n->group_start();
    for (int r = 0; r < c->size && result == NCCL_SUCCESS; r++) {
        if (m->counts[r] > 0)
            result = c->n->send(in + m->displs[r] * elem, m->counts[r], type, r, c->comm, m->stream);
        if (m->recv_counts[r] > 0 && result == NCCL_SUCCESS)
            result = c->n->recv(out + m->recv_displs[r] * elem, m->recv_counts[r], type, r, c->comm, m->stream);
    }
    int ended = c->n->group_end();
    return result == NCCL_SUCCESS ? ended : result;
}

/* Queues the move and returns NCCL's result; *what: the function that it is of. */
static int queue(const kolo_nccl_t *c, const kolo_move_t *m, const char **what)
{
    const nccl_functions_t *n = c->n;
    int type = types[m->need.type];
    switch (m->need.work) {
    case KOLO_WORK_ALL_REDUCE:
        *what = "ncclAllReduce";
        return n->all_reduce(m->in, m->out, m->count, type, ops[m->need.op], c->comm, m->stream);
    case KOLO_WORK_BROADCAST:
        *what = "ncclBroadcast";
        return n->broadcast(m->in ? m->in : m->out, m->out, m->count, type, m->root, c->comm, m->stream);
    case KOLO_WORK_ALL_GATHER:
        *what = "ncclAllGather";
        if (!kolo_backend_is_even(m->counts, m->displs, c->size)) return gather_pieces(c, m);
        return n->all_gather(m->in, (char *)m->out + m->displs[0] * kolo_type_size(m->need.type), m->counts[0],
                             type, c->comm, m->stream);
    case KOLO_WORK_REDUCE_SCATTER:
        *what = "ncclReduceScatter";
        if (!kolo_backend_is_even(m->counts, NULL, c->size)) return reduce_pieces(c, m);
        return n->reduce_scatter(m->in, m->out, m->counts[0], type, ops[m->need.op], c->comm, m->stream);
    default:
        *what = "ncclSend and ncclRecv";
        return exchange(c, m);
    }
}

kolo_status_t kolo_engine_nccl_run(void *nccl, const kolo_move_t *move)
{
    const kolo_nccl_t *c = nccl;
    const char *what;
    bool pushed;
    KOLO_TRY(kolo_cuda_enter(c->device, &pushed));
    int result = queue(c, move, &what);
    kolo_cuda_leave(pushed);
    return check(c->n, result, what);
}

static kolo_status_t meet_group(kolo_set_t *s, void *state, const kolo_level_t *level, void **group)
{
    kolo_nccl_t *c = NULL;
    KOLO_TRY(kolo_engine_nccl_meet(s, state, level->ranks, level->nranks, level->rank, &c));
    *group = c;
    return KOLO_OK;
}

const kolo_group_ops_t kolo_group_nccl = {.meet = meet_group,
                                          .leave = kolo_engine_nccl_leave,
                                          .free = kolo_engine_nccl_free,
                                          .run = kolo_engine_nccl_run,
                                          .broadcasts = true};
