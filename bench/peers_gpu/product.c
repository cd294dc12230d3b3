/* SPDX-License-Identifier: Apache-2.0
 *
 * What a call takes from a program that computes meanwhile. Each GPU multiplies bfloat16 matrices on one stream, by
 * cuBLAS; on another one calls follow each other without a gap, of NCCL, of a communicator of Kolo with either
 * profile, or of a variant, in turn. Times are by the GPU's clock: of the products, alone and beside, and of the
 * calls, as many as were done before the last product.
 */
#include "peers_gpu.h"

#include <stdio.h>
#include <stdlib.h>

enum { ALONE, BESIDE_NCCL, BESIDE_LATENCY, BESIDE_COMPUTE, BESIDE_VARIANT, WAYS = BESIDE_VARIANT + MOST_VARIANTS };
static const char *const way_names[BESIDE_VARIANT] = {"alone", "nccl", "kolo latency", "kolo compute"};

#define PRODUCTS    16  /* one behind the other in a round */
#define CALLS_MOST  400 /* calls of a round */
#define ALONE_CALLS 6
#define ROUNDS_MOST 50
#define TYPE_BF16   14 /* CUDA_R_16BF */
#define IN_FLOAT    68 /* CUBLAS_COMPUTE_32F */

typedef struct {
    void *handle, *stream, *begin, *end, *marks[CALLS_MOST + 1];
    unsigned long long a, b, c;
    kolo_comm_t compute;
    op_t op;
} bench_t;

typedef struct {
    double product_us, call_us, calls; /* of one; calls done meanwhile */
    double call_alone_us;              /* of a call without products */
} figure_t;

static void cublas_must(int result, const char *what)
{
    if (result) die("%s: cuBLAS error %d", what, result);
}
#define CUBLAS_MUST(call) cublas_must((call), #call)

static void multiply(const rank_t *r, const bench_t *b)
{
    const float one = 1, zero = 0;
    int n = r->o->product;
    CUBLAS_MUST(cublas.gemm(b->handle, 0, 0, n, n, n, &one, (void *)(uintptr_t)b->a, TYPE_BF16, n,
                            (void *)(uintptr_t)b->b, TYPE_BF16, n, &zero, (void *)(uintptr_t)b->c, TYPE_BF16, n,
                            IN_FLOAT, -1));
}

static int ways(const rank_t *r)
{
    return BESIDE_VARIANT + r->o->nvariants;
}

static void put_call(const rank_t *r, const bench_t *b, int way, size_t count)
{
    rank_t as = *r;
    if (way == BESIDE_COMPUTE) as.kolo = b->compute;
    int library = way == BESIDE_NCCL ? NCCL : way < BESIDE_VARIANT ? KOLO : VARIANT + way - BESIDE_VARIANT;
    call(&as, (library_t)library, b->op, OUT_OF_PLACE, count);
}

static void open_bench(rank_t *r, bench_t *b)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    size_t bytes = (size_t)r->o->product * (size_t)r->o->product * 2;
    unsigned long long *matrices[] = {&b->a, &b->b, &b->c};
    config.device = r->rank;
    config.gpu_profile = KOLO_GPU_COMPUTE;
    meet(r);
    if (r->rank == 0) KOLO_MUST(kolo_get_unique_id(&r->shared->kolo_id));
    meet(r);
    KOLO_MUST(kolo_comm_init_rank(&b->compute, r->o->gpus, r->shared->kolo_id, r->rank, &config));
    CUDA_MUST(cuda.stream_create(&b->stream, 1));
    CUDA_MUST(cuda.event_create(&b->begin, 0));
    CUDA_MUST(cuda.event_create(&b->end, 0));
    for (int i = 0; i <= CALLS_MOST; i++) CUDA_MUST(cuda.event_create(&b->marks[i], 0));
    for (int i = 0; i < 3; i++) {
        CUDA_MUST(cuda.mem_alloc(matrices[i], bytes));
        CUDA_MUST(cuda.memset8(*matrices[i], 0x3c, bytes, b->stream)); /* small numbers: 0.0115 */
    }
    CUBLAS_MUST(cublas.create(&b->handle));
    CUBLAS_MUST(cublas.set_stream(b->handle, b->stream));
    CUDA_MUST(cuda.stream_sync(b->stream));
}

static void close_bench(rank_t *r, bench_t *b)
{
    CUBLAS_MUST(cublas.destroy(b->handle));
    CUDA_MUST(cuda.mem_free(b->a));
    CUDA_MUST(cuda.mem_free(b->b));
    CUDA_MUST(cuda.mem_free(b->c));
    meet(r);
    KOLO_MUST(kolo_comm_finalize(b->compute));
    KOLO_MUST(kolo_comm_destroy(b->compute));
}

static double elapsed_us(void *from, void *to)
{
    float ms = 0;
    CUDA_MUST(cuda.event_elapsed(&ms, from, to));
    return (double)ms * 1e3;
}

static void put_products(const rank_t *r, const bench_t *b)
{
    CUDA_MUST(cuda.event_record(b->begin, b->stream));
    for (int k = 0; k < PRODUCTS; k++) multiply(r, b);
    CUDA_MUST(cuda.event_record(b->end, b->stream));
}

/* The products begin when the calls are running, and are to end before those do. */
static figure_t once(rank_t *r, const bench_t *b, int way, size_t count, int calls)
{
    int first = 0, last = 0;
    meet(r);
    if (way == ALONE) put_products(r, b);
    for (int i = 0; i < calls && way != ALONE; i++) {
        put_call(r, b, way, count);
        CUDA_MUST(cuda.event_record(b->marks[i], r->stream));
        if (i == 0) CUDA_MUST(cuda.stream_wait(b->stream, b->marks[0], 0));
        if (i == 3) put_products(r, b);
    }
    CUDA_MUST(cuda.stream_sync(b->stream));
    CUDA_MUST(cuda.stream_sync(r->stream));
    double all = elapsed_us(b->begin, b->end);
    figure_t f = {.product_us = all / PRODUCTS};
    if (way == ALONE) return f;
    for (int i = 0; i < calls; i++) {
        double at = elapsed_us(b->begin, b->marks[i]);
        if (at < 0) first = i;
        if (at <= all) last = i;
    }
    if (last == calls - 1) die("rank %d: all %d calls ended before the products", r->rank, calls);
    if (last <= first) last = first + 1;
    f.call_us = elapsed_us(b->marks[first], b->marks[last]) / (last - first);
    f.calls = all / f.call_us;
    return f;
}

/* Times calls without products. */
static double calls_alone(rank_t *r, const bench_t *b, int way, size_t count)
{
    meet(r);
    put_call(r, b, way, count);
    CUDA_MUST(cuda.event_record(b->begin, r->stream));
    for (int i = 0; i < ALONE_CALLS; i++) put_call(r, b, way, count);
    CUDA_MUST(cuda.event_record(b->end, r->stream));
    CUDA_MUST(cuda.stream_sync(r->stream));
    return elapsed_us(b->begin, b->end) / ALONE_CALLS;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(const figure_t *f, int n, size_t field)
{
    double v[ROUNDS_MOST];
    for (int i = 0; i < n; i++) v[i] = *(const double *)((const char *)&f[i] + field);
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* Returns how many calls last four times as long as the products do alone; all ranks take rank 0's number. */
static int calls_for(rank_t *r, const bench_t *b, size_t count)
{
    double alone = 0;
    for (int i = 0; i < 3; i++) alone = once(r, b, ALONE, count, 0).product_us * PRODUCTS;
    for (int way = BESIDE_NCCL; way < ways(r); way++)
        for (int i = 0; i < 3; i++) put_call(r, b, way, count);
    double calls = 4 * alone / calls_alone(r, b, BESIDE_LATENCY, count) + 8;
    if (r->rank == 0) atomic_store(&r->shared->calls, (int)(calls > CALLS_MOST ? CALLS_MOST : calls));
    meet(r);
    return atomic_load(&r->shared->calls);
}

static void print(const rank_t *r, const bench_t *b, uint64_t bytes, figure_t f[][ROUNDS_MOST], int rounds)
{
    double order = r->o->product, alone = median_of(f[ALONE], rounds, offsetof(figure_t, product_us));
    double share = share_of(r->o, b->op) * (double)bytes;
    printf("# product of %d x %d bfloat16, %s of %llu bytes beside it%s; medians of %d rounds, in turn\n",
           r->o->product, r->o->product, op_names[b->op], (unsigned long long)bytes,
           r->o->windows ? ", windows" : "", rounds);
    printf("%-14s %11s %8s %8s %10s %14s %13s %8s %8s\n", "beside", "product us", "TFLOP/s", "loss %", "call us",
           "without it us", "lost us each", "GB/s", "alone");
    for (int w = 0; w < ways(r); w++) {
        double us = median_of(f[w], rounds, offsetof(figure_t, product_us));
        double each = median_of(f[w], rounds, offsetof(figure_t, call_us));
        double calls = median_of(f[w], rounds, offsetof(figure_t, calls));
        double by_itself = median_of(f[w], rounds, offsetof(figure_t, call_alone_us));
        const char *name = w < BESIDE_VARIANT ? way_names[w] : r->o->variants[w - BESIDE_VARIANT];
        printf("%-14s %11.1f %8.1f %8.2f", name, us, 2 * order * order * order / us / 1e6, 100 * (1 - alone / us));
        if (w == ALONE)
            printf("\n");
        else
            printf(" %10.1f %14.1f %13.1f %8.1f %8.1f\n", each, by_itself, (us - alone) * PRODUCTS / calls,
                   share / each / 1e3, share / by_itself / 1e3);
    }
    fflush(stdout);
}

static void measure_op(rank_t *r, bench_t *b, uint64_t bytes)
{
    static figure_t figures[WAYS][ROUNDS_MOST]; /* of rank 0 */
    size_t count = count_of(r->o, b->op, &bytes);
    int rounds = r->o->rounds < ROUNDS_MOST ? r->o->rounds : ROUNDS_MOST, calls = calls_for(r, b, count);
    for (int i = 0; i < rounds; i++) {
        for (int k = 0; k < ways(r); k++) {
            int way = (i + k) % ways(r);
            figure_t f = once(r, b, way, count, calls);
            if (way != ALONE) f.call_alone_us = calls_alone(r, b, way, count);
            if (r->rank == 0) figures[way][i] = f;
        }
    }
    if (r->rank == 0) print(r, b, bytes, figures, rounds);
}

void measure_product(rank_t *r)
{
    bench_t b = {0};
    open_bench(r, &b);
    for (int op = 0; op < OPS; op++) {
        if (!r->o->ops[op]) continue;
        b.op = (op_t)op;
        snprintf(r->shared->doing, sizeof r->shared->doing, "a product beside %s", op_names[op]);
        measure_op(r, &b, r->o->max);
    }
    close_bench(r, &b);
}
