/* SPDX-License-Identifier: Apache-2.0
 *
 * What each collective needs: shapes, the call, the bus factor (as nccl-tests define them), data and their check.
 * Values are small integers, so that sums are exact in every type but the 8-bit floats with many ranks.
 */
#include "perf.h"

#include <math.h>
#include <string.h>

const char *const perf_coll_names[PERF_COUNT] = {"all_reduce",     "reduce",     "broadcast", "all_gather",
                                                 "reduce_scatter", "all_to_all", "gather",    "scatter",
                                                 "sendrecv",       "barrier",    "put"};
const char *const perf_type_names[KOLO_TYPE_COUNT] = {"int8",       "uint8",      "int32",    "uint32",  "int64",
                                                      "uint64",     "float16",    "bfloat16", "float32", "float64",
                                                      "float8e4m3", "float8e5m2", "int16",    "uint16",  "bool"};
const char *const perf_op_names[KOLO_OP_BUILTIN_COUNT] = {"sum", "prod", "min",  "max", "avg", "band",
                                                          "bor", "bxor", "land", "lor", "lxor"};

void perf_shape(const perf_job_t *job, perf_coll_t coll, uint64_t bytes, uint64_t *count, uint64_t *src_count,
                uint64_t *dst_count)
{
    uint64_t n = (uint64_t)job->nranks, c = bytes / kolo_type_size(job->options->type);
    bool parts = coll == PERF_ALL_GATHER || coll == PERF_REDUCE_SCATTER || coll == PERF_ALL_TO_ALL ||
                 coll == PERF_GATHER || coll == PERF_SCATTER;
    if (parts) c = c / n ? c / n : 1;
    if (coll == PERF_BARRIER) c = 0;
    *count = *src_count = *dst_count = c;
    if (coll == PERF_ALL_GATHER || coll == PERF_ALL_TO_ALL || coll == PERF_GATHER) *dst_count = c * n;
    if (coll == PERF_REDUCE_SCATTER || coll == PERF_ALL_TO_ALL || coll == PERF_SCATTER) *src_count = c * n;
}

static kolo_status_t sendrecv(const perf_job_t *job, const void *src, void *dst, uint64_t count, void *stream)
{
    int next = (job->rank + 1) % job->nranks, prev = (job->rank + job->nranks - 1) % job->nranks;
    kolo_type_t type = job->options->type;
    kolo_status_t status = kolo_group_start();
    if (status == KOLO_OK) status = kolo_send(src, count, type, next, job->comm, stream);
    if (status == KOLO_OK) status = kolo_recv(dst, count, type, prev, job->comm, stream);
    kolo_status_t ended = kolo_group_end();
    return status == KOLO_OK ? ended : status;
}

static struct {
    void *dst[2];
    kolo_window_t windows[2];
} open_windows;

void perf_put_windows(void *const *dst, const kolo_window_t *windows)
{
    memset(&open_windows, 0, sizeof open_windows);
    if (!dst) return;
    memcpy(open_windows.dst, dst, sizeof open_windows.dst);
    memcpy(open_windows.windows, windows, sizeof open_windows.windows);
}

/* As sendrecv, but the next rank does not take it: it waits for the signal behind it. */
static kolo_status_t put(const perf_job_t *job, const void *src, const void *dst, uint64_t count, void *stream)
{
    int next = (job->rank + 1) % job->nranks;
    kolo_signal_wait_t wait = {(job->rank + job->nranks - 1) % job->nranks, 0, 1};
    kolo_window_t window = open_windows.windows[dst == open_windows.dst[1] && dst != open_windows.dst[0]];
    kolo_status_t status = kolo_put_signal(src, count, job->options->type, next, window, 0, 0, job->comm, stream);
    return status == KOLO_OK ? kolo_wait_signal(&wait, 1, job->comm, stream) : status;
}

kolo_status_t perf_call(const perf_job_t *job, perf_coll_t coll, const void *src, void *dst, uint64_t count,
                        void *stream)
{
    const perf_options_t *o = job->options;
    switch (coll) {
    case PERF_ALL_REDUCE:
        return kolo_all_reduce(src, dst, count, o->type, o->op, job->comm, stream);
    case PERF_REDUCE:
        return kolo_reduce(src, dst, count, o->type, o->op, o->root, job->comm, stream);
    case PERF_BROADCAST:
        return kolo_broadcast(src, dst, count, o->type, o->root, job->comm, stream);
    case PERF_ALL_GATHER:
        return kolo_all_gather(src, dst, count, o->type, job->comm, stream);
    case PERF_REDUCE_SCATTER:
        return kolo_reduce_scatter(src, dst, count, o->type, o->op, job->comm, stream);
    case PERF_ALL_TO_ALL:
        return kolo_all_to_all(src, dst, count, o->type, job->comm, stream);
    case PERF_GATHER:
        return kolo_gather(src, dst, count, o->type, o->root, job->comm, stream);
    case PERF_SCATTER:
        return kolo_scatter(src, dst, count, o->type, o->root, job->comm, stream);
    case PERF_SENDRECV:
        return sendrecv(job, src, dst, count, stream);
    case PERF_PUT:
        return put(job, src, dst, count, stream);
    default:
        return kolo_barrier(job->comm, stream);
    }
}

double perf_touched(const perf_job_t *job, perf_coll_t coll, uint64_t count, bool in_place, int local)
{
    double part = (double)count * (double)kolo_type_size(job->options->type), n = job->nranks, m = local;
    switch (coll) {
    case PERF_BARRIER:
        return 0;
    case PERF_REDUCE:
        return part * (m + 1);
    case PERF_BROADCAST: /* in place the root writes nothing */
        return part * (in_place ? m : m + 1);
    case PERF_ALL_GATHER:
        return part * m * (in_place ? n : n + 1);
    case PERF_REDUCE_SCATTER:
        return part * m * (n + 1);
    case PERF_GATHER: /* in place the root's own part stays where it is */
    case PERF_SCATTER:
        return part * (in_place ? n + m - 2 : n + m);
    case PERF_ALL_TO_ALL:
        return part * 2 * n * m;
    default:
        return part * 2 * m;
    }
}

double perf_bus_factor(perf_coll_t coll, int nranks)
{
    double n = nranks;
    if (coll == PERF_ALL_REDUCE) return 2 * (n - 1) / n;
    if (coll == PERF_ALL_GATHER || coll == PERF_REDUCE_SCATTER || coll == PERF_ALL_TO_ALL || coll == PERF_GATHER ||
        coll == PERF_SCATTER)
        return (n - 1) / n;
    return 1;
}

bool perf_has_in_place(perf_coll_t coll)
{
    return coll != PERF_ALL_TO_ALL && coll != PERF_SENDRECV && coll != PERF_BARRIER && coll != PERF_PUT &&
           coll != PERF_REDUCE_SCATTER && coll != PERF_SCATTER;
}

void *perf_in_place_src(const perf_job_t *job, perf_coll_t coll, void *dst, uint64_t count)
{
    uint64_t part = count * kolo_type_size(job->options->type);
    if (coll == PERF_ALL_GATHER) return (char *)dst + (uint64_t)job->rank * part;
    if (coll == PERF_GATHER) return (char *)dst + (uint64_t)job->options->root * part;
    return dst;
}

/* Of a bool, 0 and 1. */
static double value(const perf_job_t *job, int rank, uint64_t index, kolo_op_t op)
{
    uint64_t h = (index + 1) * 2654435761u + (uint64_t)rank * 40503u;
    if (job->options->type == KOLO_BOOL) return (double)((h >> 7) % 3 == 0);
    return op == KOLO_PROD ? 1 : (double)((h >> 7) % 3);
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* v is 0, 1 or 2, or small enough to be exact in the type. */
static void store(void *at, kolo_type_t type, double v)
{
    int64_t i = (int64_t)v;
    float f = (float)v;
    int exponent = 0;
    double m = v > 0 ? frexp(v, &exponent) : 0; /* v = m * 2^exponent, m in [0.5, 1) */
    uint32_t u = 0;
    switch (type) {
    case KOLO_FLOAT16:
        if (v > 0) u = (uint32_t)(exponent + 14) << 10 | ((uint32_t)(m * 2048) & 0x3ff);
        memcpy(at, &u, 2);
        return;
    case KOLO_BFLOAT16:
        u = bits_of(f) >> 16;
        memcpy(at, &u, 2);
        return;
    case KOLO_FLOAT8_E4M3:
        if (v > 0) u = (uint32_t)(exponent + 6) << 3 | ((uint32_t)(m * 16) & 7);
        memcpy(at, &u, 1);
        return;
    case KOLO_FLOAT8_E5M2:
        if (v > 0) u = (uint32_t)(exponent + 14) << 2 | ((uint32_t)(m * 8) & 3);
        memcpy(at, &u, 1);
        return;
    case KOLO_FLOAT32:
        memcpy(at, &f, 4);
        return;
    case KOLO_FLOAT64:
        memcpy(at, &v, 8);
        return;
    default:
        memcpy(at, &i, kolo_type_size(type));
    }
}

static double load(const void *at, kolo_type_t type)
{
    uint64_t u = 0;
    float f;
    double d;
    memcpy(&u, at, kolo_type_size(type));
    switch (type) {
    case KOLO_FLOAT16:
        return u ? ldexp(1.0 + (double)(u & 0x3ff) / 1024, (int)(u >> 10 & 31) - 15) : 0;
    case KOLO_BFLOAT16:
        u <<= 16;
        memcpy(&f, &u, 4);
        return f;
    case KOLO_FLOAT8_E4M3:
        return u ? ldexp(1.0 + (double)(u & 7) / 8, (int)(u >> 3 & 15) - 7) : 0;
    case KOLO_FLOAT8_E5M2:
        return u ? ldexp(1.0 + (double)(u & 3) / 4, (int)(u >> 2 & 31) - 15) : 0;
    case KOLO_FLOAT32:
        memcpy(&f, &u, 4);
        return f;
    case KOLO_FLOAT64:
        memcpy(&d, &u, 8);
        return d;
    case KOLO_INT8:
        return (int8_t)u;
    case KOLO_INT16:
        return (int16_t)u;
    case KOLO_INT32:
        return (int32_t)u;
    default:
        return (double)(int64_t)u;
    }
}

void perf_fill(const perf_job_t *job, perf_coll_t coll, void *src, uint64_t src_count, int rank)
{
    kolo_type_t type = job->options->type;
    kolo_op_t op =
        coll == PERF_ALL_REDUCE || coll == PERF_REDUCE || coll == PERF_REDUCE_SCATTER ? job->options->op : KOLO_SUM;
    size_t elem = kolo_type_size(type);
    for (uint64_t i = 0; i < src_count; i++) store((char *)src + i * elem, type, value(job, rank, i, op));
}

static double by_bits(kolo_op_t op, unsigned a, unsigned b)
{
    switch (op) {
    case KOLO_BAND:
        return a & b;
    case KOLO_BOR:
        return a | b;
    case KOLO_BXOR:
        return a ^ b;
    case KOLO_LAND:
        return a && b;
    case KOLO_LOR:
        return a || b;
    default:
        return !a != !b;
    }
}

static double reduced(const perf_job_t *job, uint64_t index)
{
    kolo_op_t op = job->options->op;
    double acc = value(job, 0, index, op);
    for (int r = 1; r < job->nranks; r++) {
        double v = value(job, r, index, op);
        if (op >= KOLO_BAND)
            acc = by_bits(op, (unsigned)acc, (unsigned)v);
        else if (op == KOLO_MIN)
            acc = fmin(acc, v);
        else if (op == KOLO_MAX)
            acc = fmax(acc, v);
        else
            acc = op == KOLO_PROD ? acc * v : acc + v;
    }
    if (job->options->type == KOLO_BOOL || op >= KOLO_LAND) return acc != 0;
    return op == KOLO_AVG ? acc / job->nranks : acc;
}

static double expected(const perf_job_t *job, perf_coll_t coll, uint64_t i, uint64_t count)
{
    int n = job->nranks, root = job->options->root;
    uint64_t me = (uint64_t)job->rank;
    switch (coll) {
    case PERF_ALL_REDUCE:
    case PERF_REDUCE:
        return reduced(job, i);
    case PERF_REDUCE_SCATTER:
        return reduced(job, me * count + i);
    case PERF_BROADCAST:
        return value(job, root, i, KOLO_SUM);
    case PERF_SCATTER:
        return value(job, root, me * count + i, KOLO_SUM);
    case PERF_SENDRECV:
    case PERF_PUT:
        return value(job, (job->rank + n - 1) % n, i, KOLO_SUM);
    case PERF_ALL_TO_ALL:
        return value(job, (int)(i / count), me * count + i % count, KOLO_SUM);
    default:
        return value(job, (int)(i / count), i % count, KOLO_SUM);
    }
}

static double tolerance(const perf_job_t *job)
{
    switch (job->options->type) {
    case KOLO_FLOAT8_E4M3:
    case KOLO_FLOAT8_E5M2:
        return 0.25 * job->nranks;
    case KOLO_FLOAT16:
        return 0x1p-8;
    case KOLO_BFLOAT16:
        return 0x1p-5;
    case KOLO_FLOAT32:
        return 0x1p-18;
    case KOLO_FLOAT64:
        return 0x1p-40;
    default:
        return 0.999; /* integer averages are cut */
    }
}

long perf_check(const perf_job_t *job, perf_coll_t coll, const void *dst, uint64_t count)
{
    uint64_t c, s, d;
    long wrong = 0;
    kolo_type_t type = job->options->type;
    bool rooted = coll == PERF_REDUCE || coll == PERF_GATHER;
    if (coll == PERF_BARRIER || (rooted && job->rank != job->options->root)) return 0;
    perf_shape(job, coll, 0, &c, &s, &d);
    d = coll == PERF_ALL_GATHER || coll == PERF_ALL_TO_ALL || coll == PERF_GATHER ? count * (uint64_t)job->nranks
                                                                                  : count;
    bool exact = (type < KOLO_FLOAT16 || type >= KOLO_INT16) && job->options->op != KOLO_AVG;
    for (uint64_t i = 0; i < d; i++) {
        double want = expected(job, coll, i, count), got = load((const char *)dst + i * kolo_type_size(type), type);
        if (exact ? want != got : fabs(want - got) > tolerance(job) * (1 + fabs(want))) wrong++;
    }
    return wrong;
}
