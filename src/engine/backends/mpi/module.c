/* SPDX-License-Identifier: Apache-2.0
 *
 * The module for one MPI: see api.h. Everything is begun without blocking, so that libkolo can give up when a rank
 * is lost. Floats of 8 and 16 bits, which MPI does not have, are types of our own; their operators, and minimum and
 * maximum of all floats, where MPI says nothing about NaN, call back into libkolo.
 */
#include "engine/backends/mpi/api.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

struct kolo_mpi_comm {
    MPI_Comm comm;
    MPI_Request begun[2];
    int nbegun;
};

static kolo_mpi_reduce_fn_t reduce_by_kolo;
static MPI_Datatype types[KOLO_TYPE_COUNT];
static MPI_Op own_ops[4]; /* KOLO_SUM to KOLO_MAX */
static int started, ours, spoiled, unusable;

static int fail(int error, const char *what, char *why)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (error == MPI_SUCCESS) return 0;
    MPI_Error_string(error, text, &length);
    snprintf(why, KOLO_MPI_WHY_BYTES, "%s: %.400s", what, text);
    return 1;
}

/* ---- operators ---- */

static void apply(kolo_op_t op, void *in, void *inout, const int *count, const MPI_Datatype *type)
{
    for (int t = 0; t < KOLO_TYPE_COUNT; t++)
        if (types[t] == *type) {
            reduce_by_kolo((kolo_type_t)t, op, in, inout, (size_t)*count);
            return;
        }
}

static void apply_sum(void *in, void *inout, int *count, MPI_Datatype *type)
{
    apply(KOLO_SUM, in, inout, count, type);
}

static void apply_prod(void *in, void *inout, int *count, MPI_Datatype *type)
{
    apply(KOLO_PROD, in, inout, count, type);
}

static void apply_min(void *in, void *inout, int *count, MPI_Datatype *type)
{
    apply(KOLO_MIN, in, inout, count, type);
}

static void apply_max(void *in, void *inout, int *count, MPI_Datatype *type)
{
    apply(KOLO_MAX, in, inout, count, type);
}

/* Returns MPI's operator, or Kolo's: for NaN in minimum and maximum of floats, and for all of unsigned integers.
 * MPICH 4.0.2 and, with 8 bytes, Open MPI 4.1.4 compare them as if they were signed, and Open MPI's sums of 1 and 2
 * bytes end at the largest value. */
static MPI_Op op_of(int type, int op)
{
    int by_mpi = type == KOLO_INT8 || type == KOLO_INT16 || type == KOLO_INT32 || type == KOLO_INT64;
    if (type == KOLO_FLOAT32 || type == KOLO_FLOAT64) by_mpi = op == KOLO_SUM || op == KOLO_PROD;
    if (op == KOLO_MPI_BAND) return MPI_BAND;
    if (op == KOLO_MPI_BOR) return MPI_BOR;
    if (!by_mpi) return own_ops[op];
    return op == KOLO_SUM ? MPI_SUM : op == KOLO_PROD ? MPI_PROD : op == KOLO_MIN ? MPI_MIN : MPI_MAX;
}

static int make_types(char *why)
{
    static MPI_User_function *const functions[] = {apply_sum, apply_prod, apply_min, apply_max};
    static const struct {
        kolo_type_t type;
        int bytes;
    } small[] = {{KOLO_FLOAT16, 2}, {KOLO_BFLOAT16, 2}, {KOLO_FLOAT8_E4M3, 1}, {KOLO_FLOAT8_E5M2, 1}};
    types[KOLO_INT8] = MPI_INT8_T;
    types[KOLO_UINT8] = MPI_UINT8_T;
    types[KOLO_INT32] = MPI_INT32_T;
    types[KOLO_UINT32] = MPI_UINT32_T;
    types[KOLO_INT64] = MPI_INT64_T;
    types[KOLO_UINT64] = MPI_UINT64_T;
    types[KOLO_INT16] = MPI_INT16_T;
    types[KOLO_UINT16] = MPI_UINT16_T;
    types[KOLO_BOOL] = MPI_UINT8_T; /* only moved */
    types[KOLO_FLOAT32] = MPI_FLOAT;
    types[KOLO_FLOAT64] = MPI_DOUBLE;
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        MPI_Datatype *type = &types[small[i].type];
        if (fail(MPI_Type_contiguous(small[i].bytes, MPI_BYTE, type), "MPI_Type_contiguous", why)) return 1;
        if (fail(MPI_Type_commit(type), "MPI_Type_commit", why)) return 1;
    }
    for (int op = 0; op < 4; op++)
        if (fail(MPI_Op_create(functions[op], 1, &own_ops[op]), "MPI_Op_create", why)) return 1;
    return 0;
}

/* Frees the types when MPI is finalized, whoever does it. */
static int free_types(MPI_Comm comm, int key, void *value, void *extra)
{
    static const kolo_type_t small[] = {KOLO_FLOAT16, KOLO_BFLOAT16, KOLO_FLOAT8_E4M3, KOLO_FLOAT8_E5M2};
    (void)comm, (void)key, (void)value, (void)extra;
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) MPI_Type_free(&types[small[i]]);
    for (int op = 0; op < 4; op++) MPI_Op_free(&own_ops[op]);
    return MPI_SUCCESS;
}

static int free_types_at_end(char *why)
{
    int key = 0;
    if (fail(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, free_types, &key, NULL), "MPI_Comm_create_keyval", why))
        return 1;
    return fail(MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL), "MPI_Comm_set_attr", why);
}

/* ---- the life of MPI ---- */

static void finalize(void)
{
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized && !spoiled) MPI_Finalize();
}

static int initialize(char *why)
{
    int level = MPI_THREAD_SINGLE;
    if (fail(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread", why)) return 1;
    ours = 1;
    atexit(finalize);
    return 0;
}

static int start(kolo_mpi_reduce_fn_t reduce, int *world_rank, char *why)
{
    int there = 0, over = 0, level = MPI_THREAD_SINGLE;
    MPI_Initialized(&there);
    MPI_Finalized(&over);
    if (over || unusable) {
        snprintf(
            why, KOLO_MPI_WHY_BYTES, "%s",
            over ? "MPI has been finalized in this process"
                 : "an operation of an earlier engine never ended in MPI: it cannot be used again in this process");
        return 1;
    }
    if (!there && initialize(why)) return 1;
    MPI_Query_thread(&level);
    if (level < MPI_THREAD_MULTIPLE) {
        snprintf(
            why, KOLO_MPI_WHY_BYTES,
            "MPI was initialized %s with thread level %d, and the engine's thread needs MPI_THREAD_MULTIPLE (%d)",
            ours ? "here" : "by the program", level, MPI_THREAD_MULTIPLE);
        return 1;
    }
    reduce_by_kolo = reduce;
    if (!started && (make_types(why) || free_types_at_end(why))) return 1;
    started = 1;
    return fail(MPI_Comm_rank(MPI_COMM_WORLD, world_rank), "MPI_Comm_rank", why);
}

static void spoil(int for_good)
{
    spoiled = 1;
    unusable |= for_good;
}

/* ---- communicators ---- */

static int wrap(MPI_Comm comm, kolo_mpi_comm_t **out, char *why)
{
    kolo_mpi_comm_t *c = calloc(1, sizeof *c);
    if (!c || comm == MPI_COMM_NULL) {
        snprintf(why, KOLO_MPI_WHY_BYTES, c ? "MPI made no communicator" : "out of memory");
        free(c);
        return 1;
    }
    c->comm = comm;
    *out = c;
    return fail(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", why);
}

static int make(const int *world_ranks, int count, int tag, kolo_mpi_comm_t **comm, char *why)
{
    MPI_Group world, group;
    MPI_Comm made = MPI_COMM_NULL;
    if (fail(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group", why)) return 1;
    int error = MPI_Group_incl(world, count, world_ranks, &group);
    MPI_Group_free(&world);
    if (fail(error, "MPI_Group_incl", why)) return 1;
    error = MPI_Comm_create_group(MPI_COMM_WORLD, group, tag, &made);
    MPI_Group_free(&group);
    return fail(error, "MPI_Comm_create_group", why) || wrap(made, comm, why);
}

static int size_of(const kolo_mpi_comm_t *c)
{
    int size = 0;
    MPI_Comm_size(c->comm, &size);
    return size;
}

static void drop(kolo_mpi_comm_t *c, int collective)
{
    if (collective) MPI_Comm_free(&c->comm);
    free(c);
}

/* ---- operations ---- */

static int begin(kolo_mpi_comm_t *c, const kolo_mpi_work_t *w, char *why)
{
    static const char *const names[] = {
        [KOLO_MPI_ALL_REDUCE] = "MPI_Iallreduce", [KOLO_MPI_REDUCE] = "MPI_Ireduce",
        [KOLO_MPI_BROADCAST] = "MPI_Ibcast",      [KOLO_MPI_REDUCE_SCATTER] = "MPI_Ireduce_scatter",
        [KOLO_MPI_GATHER] = "MPI_Igatherv",       [KOLO_MPI_ALL_GATHER] = "MPI_Iallgatherv",
        [KOLO_MPI_ALL_TO_ALL] = "MPI_Ialltoallv", [KOLO_MPI_SEND] = "MPI_Isend",
        [KOLO_MPI_RECEIVE] = "MPI_Irecv"};
    MPI_Request *request = &c->begun[c->nbegun];
    MPI_Datatype type = types[w->type];
    int error = MPI_SUCCESS;
    switch (w->what) {
    case KOLO_MPI_ALL_REDUCE:
        error = MPI_Iallreduce(w->in == w->out ? MPI_IN_PLACE : w->in, w->out, w->count, type,
                               op_of(w->type, w->op), c->comm, request);
        break;
    case KOLO_MPI_REDUCE:
        error = MPI_Ireduce(w->in, w->out, w->count, type, op_of(w->type, w->op), w->peer, c->comm, request);
        break;
    case KOLO_MPI_REDUCE_SCATTER:
        error = MPI_Ireduce_scatter(w->in, w->out, w->counts, type, op_of(w->type, w->op), c->comm, request);
        break;
    case KOLO_MPI_BROADCAST:
        error = MPI_Ibcast(w->out, w->count, type, w->peer, c->comm, request);
        break;
    case KOLO_MPI_ALL_GATHER:
        error = MPI_Iallgatherv(w->in ? w->in : MPI_IN_PLACE, w->count, type, w->out, w->counts, w->displs, type,
                                c->comm, request);
        break;
    case KOLO_MPI_GATHER:
        error = MPI_Igatherv(w->in, w->count, type, w->out, w->counts, w->displs, type, w->peer, c->comm, request);
        break;
    case KOLO_MPI_ALL_TO_ALL:
        error = MPI_Ialltoallv(w->in, w->counts, w->displs, type, w->out, w->recv_counts, w->recv_displs, type,
                               c->comm, request);
        break;
    case KOLO_MPI_SEND:
        error = MPI_Isend(w->in, w->count, type, w->peer, 0, c->comm, request);
        break;
    case KOLO_MPI_RECEIVE:
        error = MPI_Irecv(w->out, w->count, type, w->peer, 0, c->comm, request);
        break;
    }
    if (fail(error, names[w->what], why)) return 1;
    c->nbegun++;
    return 0;
}

static int poll_all(kolo_mpi_comm_t *c, int *done, char *why)
{
    MPI_Status statuses[2];
    if (fail(MPI_Testall(c->nbegun, c->begun, done, statuses), "MPI_Testall", why)) return 1;
    if (*done) c->nbegun = 0;
    return 0;
}

__attribute__((visibility("default"))) const kolo_mpi_api_t kolo_mpi_api = {.version = KOLO_MPI_API_VERSION,
                                                                            .library = KOLO_MPI_LIBRARY,
                                                                            .start = start,
                                                                            .spoil = spoil,
                                                                            .make = make,
                                                                            .size = size_of,
                                                                            .drop = drop,
                                                                            .begin = begin,
                                                                            .poll = poll_all};
