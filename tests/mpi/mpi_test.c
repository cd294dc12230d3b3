/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank under a real mpirun: what the engine gives by MPI is compared with what it gives by Kolo, for every
 * operation, type and operator, on all ranks and on process sets, with odd counts and with none. The same
 * operations run twice, so that the second time they are cached. run_mpi.sh starts it, with either MPI, with
 * MPI_Init called here or by Kolo, and with pieces so small that every operation is cut.
 *
 * usage: mpi_test ID-FILE EXPECT     EXPECT: mpi; levels (as if the first two ranks were on one host and the others
 * on another, all_reduce and all_gather in levels of MPI); or a word that the refusal of the backend must have
 */
#include <kolo/engine.h>
#include <math.h>
#ifdef WITH_MPI
#include <mpi.h>
#endif
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAIT_MS 120000

typedef struct {
    kolo_tensor_engine_t mpi, kolo;
    int rank, size; /* of the set */
    int set;
} pair_t;

static int failures;
static bool in_levels;
static uint64_t reduced, gathered; /* how many were done */

static void expect(bool fact, const char *what, const char *detail)
{
    if (fact) return;
    fprintf(stderr, "not so: %s (%s)\n", what, detail);
    failures++;
}

static void must(kolo_status_t status, const char *what)
{
    if (status == KOLO_OK) return;
    fprintf(stderr, "%s: %s\n", what, kolo_get_last_error(NULL));
    exit(1);
}

static uint64_t ran_by(kolo_tensor_engine_t e, const char *name)
{
    kolo_backend_info_t info;
    for (int i = 0; kolo_engine_get_backend(e, i, &info) == KOLO_OK; i++)
        if (strcmp(info.name, name) == 0) return info.operations;
    return UINT64_MAX;
}

/* mpi: in levels, too */
static uint64_t ran(kolo_tensor_engine_t e, const char *name)
{
    return ran_by(e, name) + (strcmp(name, "mpi") == 0 ? ran_by(e, "mpi_hierarchical") : 0);
}

/* ---- values of any type that the type holds exactly ---- */

static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1, 2, 2};
static const char *const type_names[] = {"int8",     "uint8",   "int32",   "uint32", "int64",  "uint64", "float16",
                                         "bfloat16", "float32", "float64", "f8e4m3", "f8e5m2", "int16",  "uint16"};

/* 1, 2 or 4 in each type: sums and products of a few of them are exact, so all orders give the same bits. Some
 * whole numbers are negative, and the largest there are without a sign. */
static void put(kolo_type_t type, void *at, size_t i, int power)
{
    static const uint16_t half[] = {0x3c00, 0x4000, 0x4400}, brain[] = {0x3f80, 0x4000, 0x4080};
    static const uint8_t e4m3[] = {0x38, 0x40, 0x48}, e5m2[] = {0x3c, 0x40, 0x44};
    int64_t whole = (i + (size_t)power) % 2 ? -(1 << power) : 1 << power;
    float single = (float)(1 << power);
    double twice = (double)(1 << power);
    const void *from = &whole;
    if (type == KOLO_FLOAT16) from = &half[power];
    if (type == KOLO_BFLOAT16) from = &brain[power];
    if (type == KOLO_FLOAT32) from = &single;
    if (type == KOLO_FLOAT64) from = &twice;
    if (type == KOLO_FLOAT8_E4M3) from = &e4m3[power];
    if (type == KOLO_FLOAT8_E5M2) from = &e5m2[power];
    memcpy((char *)at + i * sizes[type], from, sizes[type]);
}

static void *values(const pair_t *p, kolo_type_t type, int64_t count)
{
    void *data = malloc((size_t)count * sizes[type] + 8);
    bool tiny = type == KOLO_FLOAT8_E4M3 ||
                type == KOLO_FLOAT8_E5M2; /* what is exact up to 7 only: 2 at one rank at most */
    for (int64_t i = 0; i < count; i++) {
        int power = (int)((uint64_t)(i * 5 + p->rank * 3 + i / 7 * p->rank) % 3);
        put(type, data, (size_t)i, !tiny ? power : p->rank == 0 ? power % 2 : 0);
    }
    return data;
}

/* ---- each operation, by both ---- */

typedef enum { REDUCE, GATHER, BROADCAST, EXCHANGE, SCATTER } kind_t;

typedef struct {
    kind_t kind;
    kolo_type_t type;
    kolo_op_t op;
    int64_t rows, columns;
    int root;
    bool in_place;
} job_t;

static void *allocate(void *arg, int index, size_t bytes, int ndims, const int64_t *shape)
{
    void *data = calloc(1, bytes + 1);
    (void)index, (void)ndims, (void)shape;
    *(void **)arg = data;
    return data;
}

static kolo_status_t submit(const pair_t *p, kolo_tensor_engine_t e, const job_t *j, const kolo_tensor_t *t,
                            const kolo_submission_t *how, int64_t *handle)
{
    int64_t splits[64];
    switch (j->kind) {
    case REDUCE:
        return kolo_engine_all_reduce(e, t, j->op, 1, 1, how, handle);
    case GATHER:
        return kolo_engine_all_gather(e, t, how, handle);
    case BROADCAST:
        return kolo_engine_broadcast(e, t, j->root, how, handle);
    case SCATTER:
        return kolo_engine_reduce_scatter(e, t, j->op, 1, 1, how, handle);
    case EXCHANGE:
    default:
        for (int r = 0; r < p->size; r++) splits[r] = 0;
        for (int64_t i = 0; i < t->shape[0]; i++) splits[(i * i + p->rank) % p->size]++;
        return kolo_engine_all_to_all(e, t, splits, how, handle);
    }
}

static size_t do_one(const pair_t *p, kolo_tensor_engine_t e, const job_t *j, const char *name, void **out)
{
    int64_t rows = j->rows, handle;
    if (j->kind == GATHER || j->kind == EXCHANGE) rows = j->rows * (p->rank % 3); /* uneven, and none */
    int64_t shape[] = {rows, j->columns};
    void *in = values(p, j->type, rows * j->columns);
    kolo_completion_t c;
    kolo_tensor_t t = {name, j->type, 2, shape, in, NULL};
    kolo_submission_t how = {.allocate = allocate, .arg = out, .set = p->set};
    *out = NULL;
    if (j->in_place) t.output = *out = in;
    must(submit(p, e, j, &t, &how, &handle), name);
    must(kolo_engine_wait(e, handle, WAIT_MS, &c), name);
    size_t bytes = sizes[j->type];
    for (int d = 0; d < c.ndims; d++) bytes *= (size_t)c.shape[d];
    if (!j->in_place) free(in);
    return bytes;
}

static void compare(const pair_t *p, const job_t *j)
{
    static const char *const kinds[] = {"all_reduce", "all_gather", "broadcast", "all_to_all", "reduce_scatter"};
    char name[128];
    void *a, *b;
    snprintf(name, sizeof name, "%s %s op %d, %lld x %lld, root %d, set %d%s", kinds[j->kind], type_names[j->type],
             (int)j->op, (long long)j->rows, (long long)j->columns, j->root, p->set,
             j->in_place ? ", in place" : "");
    for (int round = 0; round < 2; round++) {
        size_t got = do_one(p, p->mpi, j, name, &a), want = do_one(p, p->kolo, j, name, &b);
        expect(got == want, "as many bytes", name);
        expect(want == 0 || (got == want && memcmp(a, b, want) == 0), "equal", name);
        free(a);
        free(b);
        reduced += j->kind == REDUCE;
        gathered += j->kind == GATHER;
    }
}

static uint64_t compare_all(const pair_t *p)
{
    static const kolo_op_t ops[] = {KOLO_SUM, KOLO_PROD, KOLO_MIN, KOLO_MAX};
    uint64_t n = 0;
    for (int type = 0; type < KOLO_BOOL; type++) {
        for (int o = 0; o < 4; o++) {
            job_t reduce = {REDUCE, (kolo_type_t)type, ops[o], 13 + o, 3, 0, o % 2};
            job_t scatter = {SCATTER, (kolo_type_t)type, ops[o], 9 + o, 5, 0, false};
            compare(p, &reduce);
            n += 2;
            if (in_levels) continue; /* the rest has none */
            compare(p, &scatter);
            n += 2;
        }
        job_t gather = {GATHER, (kolo_type_t)type, KOLO_SUM, 5, 3, 0, false};
        job_t cast = {BROADCAST, (kolo_type_t)type, KOLO_SUM, 11, 2, type % p->size, type % 2};
        job_t exchange = {EXCHANGE, (kolo_type_t)type, KOLO_SUM, 7, 3, 0, false};
        compare(p, &gather);
        n += 2;
        if (in_levels) continue;
        compare(p, &cast);
        compare(p, &exchange);
        n += 4;
    }
    return n;
}

/* Averages in floats, where the number of ranks is a power of two and so all is exact; NaN through MIN. */
static uint64_t compare_floats(const pair_t *p)
{
    float x[3] = {1, p->rank == 1 ? NAN : 2, 3}, y[3];
    int64_t three = 3, handle;
    kolo_tensor_t t = {"nan", KOLO_FLOAT32, 1, &three, x, y};
    kolo_submission_t how = {.set = p->set};
    uint64_t n = 1;
    must(kolo_engine_all_reduce(p->mpi, &t, KOLO_MIN, 1, 1, &how, &handle), "nan");
    must(kolo_engine_wait(p->mpi, handle, WAIT_MS, NULL), "nan");
    expect(y[0] == 1 && (isnan(y[1]) || p->size == 1) && y[2] == 3, "NaN stays", "nan");
    if (p->size & (p->size - 1)) return n;
    for (int type = KOLO_FLOAT16; type <= KOLO_FLOAT64; type++, n += 2) {
        job_t reduce = {REDUCE, (kolo_type_t)type, KOLO_AVG, 100, 1, 0, type % 2};
        compare(p, &reduce);
    }
    job_t scatter = {SCATTER, KOLO_FLOAT64, KOLO_AVG, 10, 3, 0, false};
    compare(p, &scatter);
    return n + 2;
}

/* What MPI does not take goes on by Kolo. */
static void compare_left_over(const pair_t *p)
{
    uint64_t before = ran(p->mpi, "mpi"), other = ran(p->mpi, "kolo");
    job_t whole = {REDUCE, KOLO_INT32, KOLO_AVG, 10, 1, 0, false};
    job_t half = {SCATTER, KOLO_FLOAT16, KOLO_AVG, 10, 1, 0, false};
    compare(p, &whole);
    compare(p, &half);
    expect(ran(p->mpi, "mpi") == before && ran(p->mpi, "kolo") == other + 4, "averages of integers by Kolo", "");
}

static void check_set(const pair_t *p)
{
    uint64_t before = ran(p->mpi, "mpi"), n = compare_all(p) + compare_floats(p);
    char text[80];
    snprintf(text, sizeof text, "%llu operations", (unsigned long long)n);
    expect(ran(p->mpi, "mpi") - before == n && ran(p->kolo, "mpi") == 0, "each ran by MPI", text);
    compare_left_over(p);
}

/* Of a set with so many ranks on the first host and on the second. */
static void check_levels(const pair_t *p, int first, int second)
{
    uint64_t before = ran_by(p->mpi, "mpi_hierarchical"), in_sums = reduced, in_gathers = gathered, expected = 0;
    bool levels = first > 0 && second > 0 && first + second > 2;
    char text[80];
    check_set(p);
    uint64_t took = ran_by(p->mpi, "mpi_hierarchical") - before;
    if (levels) expected = reduced - in_sums + 1 - 2; /* the one with NaN; but the averages of integers */
    if (levels && first == second) expected += gathered - in_gathers;
    if (levels && first != second && !(p->size & (p->size - 1))) expected -= 8; /* averages of floats */
    snprintf(text, sizeof text, "%llu operations, expected %llu, set %d", (unsigned long long)took,
             (unsigned long long)expected, p->set);
    expect(took == expected, "each that can be ran in levels", text);
}

static void check_sets(const pair_t *all)
{
    int odd[] = {1, 3}, but_first[] = {1, 2, 3}, *sets[] = {odd, but_first}, counts[] = {2, 3};
    for (int k = 0; k < 2 && all->size >= 4; k++) {
        pair_t p = *all;
        int ids[2];
        must(kolo_engine_add_set(p.mpi, sets[k], counts[k], &ids[0]), "add_set");
        must(kolo_engine_add_set(p.kolo, sets[k], counts[k], &ids[1]), "add_set");
        p.set = ids[0];
        p.size = counts[k];
        p.rank = -1;
        for (int i = 0; i < counts[k]; i++)
            if (sets[k][i] == all->rank) p.rank = i;
        if (p.rank >= 0 && in_levels) check_levels(&p, 1, counts[k] - 1); /* of the first host rank 1 alone */
        if (p.rank >= 0 && !in_levels) check_set(&p);
        must(kolo_engine_remove_set(p.mpi, ids[0]), "remove_set");
        must(kolo_engine_remove_set(p.kolo, ids[1]), "remove_set");
    }
}

/* ---- a job ---- */

static void run(kolo_comm_t comm, int rank, int size, int first_host)
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    pair_t p = {.rank = rank, .size = size};
    config.backends = in_levels ? "mpi_hierarchical,mpi" : "mpi";
    must(kolo_engine_init(&p.mpi, comm, &config), "engine_init");
    config.backends = "kolo";
    must(kolo_engine_init(&p.kolo, comm, &config), "engine_init");
    if (in_levels)
        check_levels(&p, first_host, size - first_host);
    else
        check_set(&p);
    if (!in_levels || first_host == 2) check_sets(&p);
    must(kolo_engine_shutdown(p.mpi), "shutdown");
    must(kolo_engine_shutdown(p.kolo), "shutdown");
}

static void refuse(kolo_comm_t comm, const char *word)
{
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    kolo_tensor_engine_t e;
    config.backends = "mpi";
    kolo_status_t status = kolo_engine_init(&e, comm, &config);
    expect(status == KOLO_ERR_UNSUPPORTED, "refused", kolo_get_last_error(NULL));
    expect(strstr(kolo_get_last_error(NULL), word) != NULL, word, kolo_get_last_error(NULL));
}

/* All but the last rank go on as a job of their own: other ranks of MPI take part than before. */
static void run_fewer(kolo_comm_t comm, int rank, int size)
{
    kolo_comm_t fewer = NULL;
    must(kolo_comm_split(comm, rank + 1 < size ? 0 : KOLO_SPLIT_NOCOLOR, -rank, &fewer, NULL), "split");
    if (!fewer) return;
    run(fewer, size - 2 - rank, size - 1, size - 3); /* in the other order */
    must(kolo_comm_finalize(fewer), "finalize");
    must(kolo_comm_destroy(fewer), "destroy");
}

static int number(const char *first, const char *second)
{
    const char *text = getenv(first) ? getenv(first) : getenv(second);
    return text ? atoi(text) : -1;
}

int main(int argc, char **argv)
{
    int rank = number("OMPI_COMM_WORLD_RANK", "PMI_RANK"), size = number("OMPI_COMM_WORLD_SIZE", "PMI_SIZE");
    kolo_unique_id_t id;
    kolo_comm_t comm;
    if (argc < 3 || rank < 0 || size < 1) {
        fprintf(stderr, "usage: mpirun -n RANKS mpi_test ID-FILE EXPECT\n");
        return 2;
    }
    in_levels = strcmp(argv[2], "levels") == 0;
    if (in_levels) setenv("KOLO_HOST_ID", rank < 2 ? "one" : "other", 1);
#ifdef WITH_MPI
    int level = -1, there = 0;
    if (MPI_Init_thread(&argc, &argv, argc > 3 ? MPI_THREAD_FUNNELED : MPI_THREAD_MULTIPLE, &level)) return 1;
#endif
    if (rank == 0) {
        must(kolo_get_unique_id(&id), "id");
        must(kolo_unique_id_save(&id, argv[1]), "save");
    } else {
        must(kolo_unique_id_load(&id, argv[1], 60000), "load");
    }
    must(kolo_comm_init_rank(&comm, size, id, rank, NULL), "init");
    if (strcmp(argv[2], "mpi") != 0 && !in_levels) {
        refuse(comm, argv[2]);
    } else {
        run(comm, rank, size, 2);
        run_fewer(comm, rank, size);
    }
    must(kolo_comm_finalize(comm), "finalize");
    must(kolo_comm_destroy(comm), "destroy");
#ifdef WITH_MPI
    MPI_Finalized(&there);
    expect(!there, "an MPI that the program has initialized is its own", "");
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
#endif
    if (rank == 0 && failures == 0) printf("all is well\n");
    return failures ? 1 : 0;
}
