/* SPDX-License-Identifier: Apache-2.0
 *
 * Wrong arguments of every collective, send and receive: each is refused by the call itself, with a text that names
 * the function and what is wrong, before anything is sent; so the communicator works on, and nothing is left
 * behind.
 */
#include "kit/ranks.h"

#include <kolo/engine.h>
#include <kolo/job.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 3
#define COUNT 100

typedef struct {
    int32_t *src, *dst;
    size_t count;
    kolo_type_t type;
    kolo_op_t op;
    int root;
    kolo_comm_t comm;
    void *stream;
    const size_t *counts, *displs; /* of v forms */
} args_t;

static kolo_status_t all_reduce(const args_t *a)
{
    return kolo_all_reduce(a->src, a->dst, a->count, a->type, a->op, a->comm, a->stream);
}
static kolo_status_t reduce(const args_t *a)
{
    return kolo_reduce(a->src, a->dst, a->count, a->type, a->op, a->root, a->comm, a->stream);
}
static kolo_status_t broadcast(const args_t *a)
{
    return kolo_broadcast(a->src, a->dst, a->count, a->type, a->root, a->comm, a->stream);
}
static kolo_status_t all_gather(const args_t *a)
{
    return kolo_all_gather(a->src, a->dst, a->count, a->type, a->comm, a->stream);
}
static kolo_status_t all_gatherv(const args_t *a)
{
    return kolo_all_gatherv(a->src, a->dst, a->counts, a->displs, a->type, a->comm, a->stream);
}
static kolo_status_t reduce_scatter(const args_t *a)
{
    return kolo_reduce_scatter(a->src, a->dst, a->count, a->type, a->op, a->comm, a->stream);
}
static kolo_status_t reduce_scatterv(const args_t *a)
{
    return kolo_reduce_scatterv(a->src, a->dst, a->counts, NULL, a->type, a->op, a->comm, a->stream);
}
static kolo_status_t all_to_all(const args_t *a)
{
    return kolo_all_to_all(a->src, a->dst, a->count, a->type, a->comm, a->stream);
}
static kolo_status_t all_to_allv(const args_t *a)
{
    return kolo_all_to_allv(a->src, a->counts, a->displs, a->dst, a->counts, a->displs, a->type, a->comm,
                            a->stream);
}
static kolo_status_t gather(const args_t *a)
{
    return kolo_gather(a->src, a->dst, a->count, a->type, a->root, a->comm, a->stream);
}
static kolo_status_t scatter(const args_t *a)
{
    return kolo_scatter(a->src, a->dst, a->count, a->type, a->root, a->comm, a->stream);
}
static kolo_status_t barrier(const args_t *a)
{
    return kolo_barrier(a->comm, a->stream);
}
static kolo_status_t send_to(const args_t *a)
{
    return kolo_send(a->src, a->count, a->type, a->root, a->comm, a->stream);
}
static kolo_status_t recv_from(const args_t *a)
{
    return kolo_recv(a->dst, a->count, a->type, a->root, a->comm, a->stream);
}

enum { SRC = 1, DST = 2, N = 4, TYPE = 8, OP = 16, ROOT = 32, PEER = 64, TABLES = 128, DISPLS = 256 };
static const struct {
    const char *name;
    kolo_status_t (*call)(const args_t *);
    unsigned takes;
} functions[] = {
    {"all_reduce", all_reduce, SRC | DST | N | TYPE | OP},
    {"reduce", reduce, SRC | DST | N | TYPE | OP | ROOT},
    {"broadcast", broadcast, SRC | DST | N | TYPE | ROOT},
    {"all_gather", all_gather, SRC | DST | N | TYPE},
    {"all_gatherv", all_gatherv, SRC | DST | TYPE | TABLES | DISPLS},
    {"reduce_scatter", reduce_scatter, SRC | DST | N | TYPE | OP},
    {"reduce_scatterv", reduce_scatterv, SRC | DST | TYPE | OP | TABLES},
    {"all_to_all", all_to_all, SRC | DST | N | TYPE},
    {"all_to_allv", all_to_allv, SRC | DST | TYPE | TABLES | DISPLS},
    {"gather", gather, SRC | DST | N | TYPE | ROOT},
    {"scatter", scatter, SRC | DST | N | TYPE | ROOT},
    {"barrier", barrier, 0},
    {"send", send_to, SRC | N | TYPE | PEER},
    {"recv", recv_from, DST | N | TYPE | PEER},
};
#define FUNCTIONS (sizeof functions / sizeof functions[0])

static void refused(size_t f, const args_t *a, const char *about)
{
    char wrong[96];
    snprintf(wrong, sizeof wrong, "%s, about: %s", functions[f].name, about);
    const char *const needles[] = {functions[f].name, about, NULL};
    expect_error(__FILE__, __LINE__, wrong, KOLO_ERR_INVALID_ARGUMENT, functions[f].call(a), needles);
}

static const size_t even[RANKS] = {COUNT, COUNT, COUNT}, places[RANKS] = {0, COUNT, 2 * COUNT};

/* This rank is the root, so that both buffers are used. */
static void wrong_scalars(size_t f, const args_t *good)
{
    unsigned takes = functions[f].takes;
    args_t a = *good;
    a.comm = NULL;
    refused(f, &a, "communicator is NULL");
    for (int i = 0; i < 4 && (takes & TYPE); i++) {
        a = *good;
        a.type =
            (kolo_type_t[]){(kolo_type_t)-1, KOLO_TYPE_COUNT, (kolo_type_t)INT32_MAX, (kolo_type_t)INT32_MIN}[i];
        refused(f, &a, "unknown type");
    }
    for (int i = 0; i < 5 && (takes & OP); i++) {
        a = *good;
        a.op = (kolo_op_t[]){(kolo_op_t)-1, KOLO_OP_BUILTIN_COUNT, KOLO_OP_BUILTIN_COUNT + 64, (kolo_op_t)INT32_MAX,
                             (kolo_op_t)INT32_MIN}[i];
        refused(f, &a, "operator");
    }
    if (takes & OP) {
        a = *good;
        a.type = KOLO_FLOAT32;
        a.op = KOLO_BXOR;
        refused(f, &a, "operator bxor is not for float32");
        a.type = KOLO_BOOL;
        a.op = KOLO_AVG;
        refused(f, &a, "operator avg is not for bool");
        a = *good;
        a.op = KOLO_ADASUM;
        refused(f, &a, "for the engine only");
    }
    for (int i = 0; i < 4 && (takes & (ROOT | PEER)); i++) {
        a = *good;
        a.root = (int[]){-1, RANKS, INT32_MAX, INT32_MIN}[i];
        refused(f, &a, takes & ROOT ? "root" : "peer");
    }
    /* the second and third are small once multiplied by the element's size */
    for (int i = 0; i < 5 && (takes & N); i++) {
        a = *good;
        a.count = (size_t[]){SIZE_MAX, SIZE_MAX / 4 + 2, (size_t)1 << 62, (size_t)-1000, (size_t)1 << 46}[i];
        refused(f, &a, "count");
    }
    int not_a_stream = 0;
    a = *good;
    a.stream = &not_a_stream;
    refused(f, &a, "stream");
}

static void wrong_buffers(size_t f, const args_t *good)
{
    unsigned takes = functions[f].takes;
    args_t a = *good;
    if (takes & SRC) {
        a.src = NULL;
        refused(f, &a, takes & PEER ? "buffer is NULL" : "source is NULL");
    }
    a = *good;
    if (takes & DST) {
        a.dst = NULL;
        refused(f, &a, takes & PEER ? "buffer is NULL" : "destination is NULL");
    }
    if (takes & PEER || !(takes & SRC)) return;
    for (int shift = 1; shift < COUNT; shift += COUNT - 2) {
        a = *good;
        a.dst = a.src + shift;
        refused(f, &a, "overlap");
        a.src = good->src + shift;
        a.dst = good->src;
        refused(f, &a, "overlap");
    }
}

static void wrong_tables(size_t f, const args_t *good)
{
    static const size_t endless[RANKS] = {1, SIZE_MAX, 1}, wraps[RANKS] = {1, SIZE_MAX / 4 + 2, 1},
                        together[RANKS] = {(size_t)1 << 44, (size_t)1 << 44, (size_t)1 << 44},
                        far[RANKS] = {0, COUNT, SIZE_MAX - 4}, same[RANKS] = {0, COUNT, COUNT + 1};
    args_t a = *good;
    if (!(functions[f].takes & TABLES)) return;
    a.counts = NULL;
    refused(f, &a, "counts");
    a.counts = endless;
    refused(f, &a, "of rank 1 is too large");
    a.counts = wraps;
    refused(f, &a, "of rank 1 is too large");
    a.counts = together;
    refused(f, &a, "too large");
    if (!(functions[f].takes & DISPLS)) return;
    a = *good;
    a.displs = NULL;
    refused(f, &a, "displacements");
    a.displs = far;
    refused(f, &a, "of rank 2 is too large");
    a.displs = same;
    refused(f, &a, "parts of ranks 1 and 2 overlap");
}

static args_t good_args(const rank_t *r, int32_t *buffer)
{
    return (args_t){.src = buffer,
                    .dst = buffer + RANKS * COUNT,
                    .count = COUNT,
                    .type = KOLO_INT32,
                    .op = KOLO_SUM,
                    .root = r->rank,
                    .comm = r->comm,
                    .counts = even,
                    .displs = places};
}

static void call_all_wrongly(rank_t *r)
{
    int32_t *buffer = calloc(2 * RANKS * COUNT, sizeof *buffer);
    args_t good = good_args(r, buffer);
    for (size_t f = 0; f < FUNCTIONS; f++) {
        if (functions[f].takes & PEER) good.root = (r->rank + 1) % RANKS;
        wrong_scalars(f, &good);
        wrong_buffers(f, &good);
        wrong_tables(f, &good);
    }
    kolo_status_t state = KOLO_ERR_INTERNAL;
    EXPECT_OK(kolo_comm_get_async_error(r->comm, &state));
    EXPECT_OK(state);
    works(r->comm);
    free(buffer);
}

static void wrong_arguments_are_named_and_harm_nothing(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(RANKS, call_all_wrongly, NULL), 0);
    census_t before = census_take();
    assert_int_equal(run_ranks(RANKS, call_all_wrongly, NULL), 0);
    assert_true(census_no_more_than(before));
}

/* A refused call ends the group that it was made in, and nothing of it runs; so does group_drop. */
static void call_wrongly_in_group(rank_t *r)
{
    int32_t in[4] = {r->rank, 1, 2, 3}, out[4] = {0};
    EXPECT_OK(kolo_group_start());
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_send(in, 4, KOLO_INT32, RANKS, r->comm, NULL), "send", "peer 3");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_recv(NULL, 4, KOLO_INT32, 0, r->comm, NULL), "recv", "buffer");
    EXPECT_OK(kolo_all_reduce(in, out, 4, KOLO_INT32, KOLO_SUM, r->comm, NULL));
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_comm_finalize(r->comm), "finalize", "group");
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_comm_destroy(r->comm), "destroy", "group");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_group_end(), "nothing of the group has run", "peer 3");
    EXPECT(out[0] == 0 && out[3] == 0);
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_group_end(), "group_end without group_start");
    EXPECT_OK(kolo_group_start());
    EXPECT_OK(kolo_group_start());
    EXPECT_OK(kolo_all_reduce(in, out, 4, KOLO_INT32, KOLO_SUM, r->comm, NULL));
    EXPECT_OK(kolo_group_drop());
    EXPECT(out[0] == 0 && out[3] == 0);
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_group_drop(), "group_drop without group_start");
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_group_end(), "group_end without group_start");
    works(r->comm);
}

/* Communicators are not made among operations: nothing of them begins. */
static void make_among_operations(rank_t *r)
{
    int32_t in = 1, out = 0;
    kolo_unique_id_t id, fresh;
    kolo_comm_t comm = NULL;
    EXPECT_OK(kolo_get_unique_id(&fresh));
    EXPECT_OK(kolo_comm_get_grow_id(r->comm, &id));
    for (int grows = 0; grows < 2; grows++) {
        EXPECT_OK(kolo_group_start());
        EXPECT_OK(kolo_all_reduce(&in, &out, 1, KOLO_INT32, KOLO_SUM, r->comm, NULL));
        kolo_status_t status = grows ? kolo_comm_grow(NULL, RANKS + 1, &id, RANKS, &comm, NULL)
                                     : kolo_comm_init_rank(&comm, 1, fresh, 0, NULL);
        EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, status, grows ? "comm_grow: a group" : "init: a group");
        EXPECT(comm == NULL);
        EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_group_end(), "nothing of the group has run");
    }
    EXPECT(out == 0);
    works(r->comm);
}

static void none_is_made_among_operations(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(RANKS, make_among_operations, NULL), 0);
}

static void a_refused_call_ends_its_group(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(RANKS, call_wrongly_in_group, NULL), 0);
}

/* Buffers that a rank does not use may be NULL, and with count 0 all of them. */
static void leave_out_buffers(rank_t *r)
{
    int32_t buffer[2 * RANKS * COUNT];
    bool root = r->rank == 1;
    size_t none[RANKS] = {0}, mine[RANKS] = {0, COUNT, 0}, at[RANKS] = {0};
    for (int i = 0; i < 2 * RANKS * COUNT; i++) buffer[i] = i;
    int32_t *dst = buffer + RANKS * COUNT;
    EXPECT_OK(kolo_broadcast(root ? buffer : NULL, dst, COUNT, KOLO_INT32, 1, r->comm, NULL));
    EXPECT(dst[COUNT - 1] == COUNT - 1);
    EXPECT_OK(kolo_reduce(buffer, root ? dst : NULL, COUNT, KOLO_INT32, KOLO_SUM, 1, r->comm, NULL));
    EXPECT(!root || dst[COUNT - 1] == RANKS * (COUNT - 1));
    EXPECT_OK(kolo_scatter(root ? buffer : NULL, dst, COUNT, KOLO_INT32, 1, r->comm, NULL));
    EXPECT(dst[0] == r->rank * COUNT);
    EXPECT_OK(kolo_gather(buffer, root ? dst : NULL, COUNT, KOLO_INT32, 1, r->comm, NULL));
    EXPECT_OK(kolo_all_gatherv(root ? buffer : NULL, dst, mine, at, KOLO_INT32, r->comm, NULL));
    EXPECT(dst[COUNT - 1] == COUNT - 1);
    EXPECT_OK(kolo_reduce_scatterv(buffer, root ? dst : NULL, mine, NULL, KOLO_INT32, KOLO_SUM, r->comm, NULL));
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT,
                 kolo_all_gatherv(root ? buffer : NULL, NULL, mine, at, KOLO_INT32, r->comm, NULL),
                 "destination is NULL");
    for (size_t f = 0; f < FUNCTIONS; f++) {
        args_t a = {.type = KOLO_INT32, .comm = r->comm, .counts = none, .displs = at};
        a.root = 1;
        if (!(functions[f].takes & PEER)) EXPECT_OK(functions[f].call(&a));
    }
    works(r->comm);
}

static void unused_buffers_may_be_null(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(RANKS, leave_out_buffers, NULL), 0);
}

static void self_counts_must_agree(rank_t *r)
{
    int32_t buffer[2 * RANKS] = {0};
    size_t one[RANKS] = {1, 1, 1}, at[RANKS] = {0, 1, 2}, other[RANKS] = {1, 1, 1};
    other[r->rank] = 0;
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT,
                 kolo_all_to_allv(buffer, one, at, buffer + RANKS, other, at, KOLO_INT32, r->comm, NULL),
                 "all_to_allv", "sends itself 1");
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_send(buffer, 1, KOLO_INT32, r->rank, r->comm, NULL), "send", "group");
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_recv(buffer, 1, KOLO_INT32, r->rank, r->comm, NULL), "recv", "group");
    works(r->comm);
}

static void messages_to_oneself_are_checked(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(RANKS, self_counts_must_agree, NULL), 0);
}

static void *read_last_error(void *comm)
{
    return (void *)(uintptr_t)kolo_get_last_error(comm);
}

static void a_refusal_can_be_read(rank_t *r)
{
    int32_t buffer[1] = {0};
    pthread_t other;
    void *there = NULL;
    kolo_status_t status = kolo_broadcast(buffer, buffer, 1, KOLO_INT32, RANKS, r->comm, NULL);
    const char *here = kolo_get_last_error(r->comm);
    EXPECT(status == KOLO_ERR_INVALID_ARGUMENT && strstr(here, "root 3 is out of range"));
    EXPECT(pthread_create(&other, NULL, read_last_error, r->comm) == 0 && pthread_join(other, &there) == 0);
    EXPECT(there != here); /* or one would change while the other is read */
    works(r->comm);
}

static void *read_in_a_new_thread(void *comm)
{
    return (void *)(uintptr_t)(strstr(kolo_get_last_error(comm), "get_last_error: ") != NULL);
}

static void a_refusal_by_a_dead_handle_can_be_read(rank_t *r)
{
    int nranks = 0;
    pthread_t other;
    void *said = NULL;
    kolo_comm_t copy = NULL;
    if (kolo_comm_dup(r->comm, &copy, NULL) != KOLO_OK || kolo_comm_destroy(copy) != KOLO_OK) {
        EXPECT(!"a communicator that ends");
        return;
    }
    EXPECT(kolo_comm_destroy(copy) == KOLO_ERR_INVALID_ARGUMENT);
    EXPECT(strstr(kolo_get_last_error(copy), "comm_destroy: ") != NULL);
    EXPECT(kolo_comm_count(copy, &nranks) == KOLO_ERR_INVALID_ARGUMENT);
    EXPECT(strstr(kolo_get_last_error(copy), "comm_count: ") != NULL);
    EXPECT(pthread_create(&other, NULL, read_in_a_new_thread, copy) == 0 && pthread_join(other, &said) == 0);
    EXPECT(said != NULL); /* where nothing has failed it is the question that is wrong */
    works(r->comm);
}

static void refusals_by_dead_handles_can_be_read(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(RANKS, a_refusal_by_a_dead_handle_can_be_read, NULL), 0);
}

static void refusals_can_be_read_by_the_communicator(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(RANKS, a_refusal_can_be_read, NULL), 0);
}

/* Before anybody is waited for: of a job's ranks only one might have it wrong. */
static void a_job_is_not_joined_with_a_wrong_config(void **state)
{
    (void)state;
    kolo_comm_t comm = NULL;
    const kolo_config_t zeros = {0};
    int before = expect_failures();
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_job_connect(&comm, &zeros), "job_connect",
                 "KOLO_CONFIG_INITIALIZER");
    /* nor is the id awaited, which another rank may never write, since it was refused as well (main() makes this
     * process rank 1 of such a job) */
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    uint64_t start = now_ms();
    config.op_timeout_ms = -1;
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_job_connect(&comm, &config), "job_connect",
                 "config.op_timeout_ms is -1");
    EXPECT(now_ms() - start < 5000);
    assert_int_equal(expect_failures() - before, 0);
}

/* What a newcomer gets wrong is put right in the words of the refusal. */
static void mistake(rank_t *r)
{
    float x[4 * RANKS] = {0};
    kolo_status_t status = kolo_all_reduce(x, x, KOLO_FLOAT32, (kolo_type_t)1000, KOLO_SUM, r->comm, NULL);
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, status, "unknown type 1000 (the count comes before the type)");
    if (r->rank > 0) { /* to rank 0 this is the in-place form */
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_all_gather(x, x, 4, KOLO_FLOAT32, r->comm, NULL),
                     "in-place form: src == dst + rank * count");
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_reduce_scatter(x, x, 4, KOLO_FLOAT32, KOLO_SUM, r->comm, NULL),
                     "in-place form: dst == src + rank * count");
    }
    EXPECT_OK(kolo_group_start());
    EXPECT_OK(kolo_all_reduce(x, x, 4, KOLO_FLOAT32, KOLO_SUM, r->comm, NULL));
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_comm_finalize(r->comm), "is kolo_group_end() missing?");
    EXPECT_OK(kolo_group_drop());
    EXPECT(works(r->comm));
}

static void mistakes_are_put_right_in_the_words(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(RANKS, mistake, NULL), 0);
}

int main(void)
{
    setenv("KOLO_RANK", "1", 1);
    setenv("KOLO_NRANKS", "2", 1);
    setenv("KOLO_ID_FILE", "/nonexistent/id", 1);
    limit_s(110);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_arguments_are_named_and_harm_nothing),
        cmocka_unit_test(a_refused_call_ends_its_group),
        cmocka_unit_test(none_is_made_among_operations),
        cmocka_unit_test(unused_buffers_may_be_null),
        cmocka_unit_test(messages_to_oneself_are_checked),
        cmocka_unit_test(refusals_can_be_read_by_the_communicator),
        cmocka_unit_test(refusals_by_dead_handles_can_be_read),
        cmocka_unit_test(a_job_is_not_joined_with_a_wrong_config),
        cmocka_unit_test(mistakes_are_put_right_in_the_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
