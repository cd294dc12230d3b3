/* SPDX-License-Identifier: Apache-2.0
 *
 * One call of a library, in place or not. See peers_gpu.h.
 */
#include "peers_gpu.h"

const char *const op_names[OPS] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                   "broadcast",  "reduce",     "gather",         "scatter",
                                   "sendrecv",   "mixed",      "alternate"};
const char *const place_names[PLACES] = {"out", "in"};

/* NCCL's numbers of our types. */
static const int nccl_types[KOLO_TYPE_COUNT] = {
    [KOLO_INT8] = 0,    [KOLO_UINT8] = 1,    [KOLO_INT32] = 2,        [KOLO_UINT32] = 3,
    [KOLO_INT64] = 4,   [KOLO_UINT64] = 5,   [KOLO_FLOAT16] = 6,      [KOLO_FLOAT32] = 7,
    [KOLO_FLOAT64] = 8, [KOLO_BFLOAT16] = 9, [KOLO_FLOAT8_E4M3] = 10, [KOLO_FLOAT8_E5M2] = 11};
#define NCCL_SUM 0
#define ROOT     0

/* Is the larger buffer made of one part per rank? */
static bool has_parts(op_t op)
{
    return op == ALL_GATHER || op == REDUCE_SCATTER || op == ALL_TO_ALL || op == GATHER || op == SCATTER ||
           op == ALTERNATE;
}

size_t count_of(const options_t *o, op_t op, uint64_t *bytes)
{
    size_t parts = has_parts(op) ? (size_t)o->gpus : 1, elem = kolo_type_size(o->type);
    size_t count = *bytes / elem / parts;
    if (o->odd && count > 3) count -= 3 - count % 2; /* odd, and below what was asked for */
    if (!count) count = 1;
    *bytes = (uint64_t)count * elem * parts;
    return count;
}

uint64_t room_of(const options_t *o, op_t op, uint64_t bytes)
{
    return op == MIXED ? 2 * bytes + 64 * (uint64_t)o->gpus : bytes;
}

double share_of(const options_t *o, op_t op)
{
    double n = o->gpus, part = (n - 1) / n, mixed = part * n / 64, length = 1;
    if (op == ALL_REDUCE) return 2 * part;
    if (op == ALTERNATE) return 4 * part + 1;
    if (op != MIXED) return op == BROADCAST || op == REDUCE || op == SENDRECV ? 1 : part;
    for (int d = 1; d < o->gpus; d++, length /= 4) mixed += length;
    return mixed;
}

bool has_place(op_t op, place_t place)
{
    return place == OUT_OF_PLACE || (op != ALL_TO_ALL && op != SENDRECV && op != MIXED);
}

/* ---- where ---- */

typedef struct {
    const char *src;
    char *dst;
} buffers_t;

static buffers_t buffers_of(const rank_t *r, op_t op, place_t place, size_t count)
{
    size_t own = (size_t)r->rank * count * kolo_type_size(r->o->type);
    buffers_t b = {r->src, r->dst};
    if (place == OUT_OF_PLACE) return b;
    if (op == ALL_GATHER || (op == GATHER && r->rank == ROOT))
        b.src = r->dst + own;
    else if (op == REDUCE_SCATTER || (op == SCATTER && r->rank == ROOT))
        b.dst = r->src + own;
    else if (op == ALL_REDUCE || op == BROADCAST || op == REDUCE || op == ALTERNATE)
        b.dst = r->src;
    return b;
}

/* Elements of the longer message to the d-th rank behind, of the shorter one to each. */
static size_t mixed_long(size_t count, int d)
{
    size_t n = count >> 2 * (d - 1);
    return n ? n : 1;
}
static size_t mixed_short(size_t count)
{
    return count / 64 ? count / 64 : 1;
}

char *result_of(const rank_t *r, op_t op, place_t place, size_t count, size_t *bytes)
{
    size_t elem = kolo_type_size(r->o->type), n = (size_t)r->o->gpus, elems = count;
    if (op == ALL_GATHER || op == ALL_TO_ALL || op == GATHER || op == ALTERNATE) elems = count * n;
    if ((op == REDUCE || op == GATHER) && r->rank != ROOT) elems = 0;
    if (op == MIXED) {
        elems = (n - 1) * mixed_short(count);
        for (int d = 1; d < r->o->gpus; d++) elems += mixed_long(count, d);
    }
    *bytes = elems * elem;
    return buffers_of(r, op, place, count).dst;
}

#define KOLOS_MUST(library, call) kolos_must((library), kolos[library].call, #call)

/* ---- messages: group_start(), send(), recv(), group_end() of either library ---- */

static void send_to(const rank_t *r, library_t library, size_t from, size_t count, int peer)
{
    const char *src = r->src + from * kolo_type_size(r->o->type);
    if (library == NCCL)
        NCCL_MUST(nccl.send(src, count, nccl_types[r->o->type], peer, r->nccl, r->stream));
    else
        KOLOS_MUST(library, send(src, count, r->o->type, peer, kolo_comm_of(r, library), r->stream));
}
static void recv_from(const rank_t *r, library_t library, char *buffer, size_t to, size_t count, int peer)
{
    char *dst = buffer + to * kolo_type_size(r->o->type);
    if (library == NCCL)
        NCCL_MUST(nccl.recv(dst, count, nccl_types[r->o->type], peer, r->nccl, r->stream));
    else
        KOLOS_MUST(library, recv(dst, count, r->o->type, peer, kolo_comm_of(r, library), r->stream));
}

static void mixed(const rank_t *r, library_t library, size_t count)
{
    int n = r->o->gpus;
    size_t sent = 0, received = 0, few = mixed_short(count);
    for (int d = 1; d < n; d++) {
        size_t many = mixed_long(count, d);
        int to = (r->rank + d) % n, from = (r->rank + n - d) % n;
        send_to(r, library, sent, many, to);
        send_to(r, library, sent + many, few, to);
        recv_from(r, library, r->dst, received, many, from);
        recv_from(r, library, r->dst, received + many, few, from);
        sent += many + few;
        received += many + few;
    }
}

static void exchange(const rank_t *r, library_t library, op_t op, place_t place, size_t count)
{
    int n = r->o->gpus;
    buffers_t b = buffers_of(r, op, place, count);
    if (library == NCCL)
        NCCL_MUST(nccl.group_start());
    else
        KOLOS_MUST(library, group_start());
    if (op == SENDRECV) {
        send_to(r, library, 0, count, (r->rank + 1) % n);
        recv_from(r, library, r->dst, 0, count, (r->rank + n - 1) % n);
    }
    if (op == MIXED) mixed(r, library, count);
    for (int p = 0; p < n; p++) {
        size_t at = (size_t)p * count, own = (size_t)(b.src - r->src) / kolo_type_size(r->o->type);
        if (op == ALL_TO_ALL || (op == SCATTER && r->rank == ROOT)) send_to(r, library, at, count, p);
        if (op == ALL_TO_ALL || (op == GATHER && r->rank == ROOT)) recv_from(r, library, b.dst, at, count, p);
        if (op == GATHER && p == ROOT) send_to(r, library, own, count, p);
        if (op == SCATTER && p == ROOT) recv_from(r, library, b.dst, 0, count, p);
    }
    if (library == NCCL)
        NCCL_MUST(nccl.group_end());
    else
        KOLOS_MUST(library, group_end());
}

/* ---- collectives ---- */

static void call_nccl(const rank_t *r, op_t op, place_t place, size_t count)
{
    int type = nccl_types[r->o->type];
    buffers_t b = buffers_of(r, op, place, count);
    if (op == ALL_REDUCE)
        NCCL_MUST(nccl.all_reduce(b.src, b.dst, count, type, NCCL_SUM, r->nccl, r->stream));
    else if (op == ALL_GATHER)
        NCCL_MUST(nccl.all_gather(b.src, b.dst, count, type, r->nccl, r->stream));
    else if (op == REDUCE_SCATTER)
        NCCL_MUST(nccl.reduce_scatter(b.src, b.dst, count, type, NCCL_SUM, r->nccl, r->stream));
    else if (op == BROADCAST)
        NCCL_MUST(nccl.broadcast(b.src, b.dst, count, type, ROOT, r->nccl, r->stream));
    else if (op == REDUCE)
        NCCL_MUST(nccl.reduce(b.src, b.dst, count, type, NCCL_SUM, ROOT, r->nccl, r->stream));
    else if (op == ALL_TO_ALL && nccl.all_to_all)
        NCCL_MUST(nccl.all_to_all(b.src, b.dst, count, type, r->nccl, r->stream));
    else if (op == GATHER && nccl.gather)
        NCCL_MUST(nccl.gather(b.src, b.dst, count, type, ROOT, r->nccl, r->stream));
    else if (op == SCATTER && nccl.scatter)
        NCCL_MUST(nccl.scatter(b.src, b.dst, count, type, ROOT, r->nccl, r->stream));
    else
        exchange(r, NCCL, op, place, count);
}

static void call_kolo(const rank_t *r, library_t library, op_t op, place_t place, size_t count)
{
    kolo_type_t type = r->o->type;
    kolo_comm_t comm = kolo_comm_of(r, library);
    buffers_t b = buffers_of(r, op, place, count);
    if (op == ALL_REDUCE)
        KOLOS_MUST(library, all_reduce(b.src, b.dst, count, type, KOLO_SUM, comm, r->stream));
    else if (op == ALL_GATHER)
        KOLOS_MUST(library, all_gather(b.src, b.dst, count, type, comm, r->stream));
    else if (op == REDUCE_SCATTER)
        KOLOS_MUST(library, reduce_scatter(b.src, b.dst, count, type, KOLO_SUM, comm, r->stream));
    else if (op == BROADCAST)
        KOLOS_MUST(library, broadcast(b.src, b.dst, count, type, ROOT, comm, r->stream));
    else if (op == REDUCE)
        KOLOS_MUST(library, reduce(b.src, b.dst, count, type, KOLO_SUM, ROOT, comm, r->stream));
    else if (op == ALL_TO_ALL)
        KOLOS_MUST(library, all_to_all(b.src, b.dst, count, type, comm, r->stream));
    else if (op == GATHER)
        KOLOS_MUST(library, gather(b.src, b.dst, count, type, ROOT, comm, r->stream));
    else if (op == SCATTER)
        KOLOS_MUST(library, scatter(b.src, b.dst, count, type, ROOT, comm, r->stream));
    else
        exchange(r, library, op, place, count);
}

static void one(const rank_t *r, library_t library, op_t op, place_t place, size_t count)
{
    if (library == NCCL)
        call_nccl(r, op, place, count);
    else
        call_kolo(r, library, op, place, count);
}

void call(const rank_t *r, library_t library, op_t op, place_t place, size_t count)
{
    static const op_t turns[] = {BROADCAST, REDUCE_SCATTER, ALL_GATHER, ALL_REDUCE};
    size_t all = count * (size_t)r->o->gpus;
    if (op != ALTERNATE) {
        one(r, library, op, place, count);
        return;
    }
    for (int i = 0; i < 4; i++) one(r, library, turns[i], place, has_parts(turns[i]) ? count : all);
}
