/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-info --explain and --memory: asks the tuner and the algorithms about a job that is not running. The job is
 * imagined as `ranks` spread evenly over `nodes` hosts like this one, with every wire usable inside a host.
 */
#include "algo/algo.h"
#include "base/clock.h"
#include "base/recorder.h"
#include "base/wait.h"
#include "kolo-info-machine.h"
#include "kolo-info.h"
#include "topo/topo.h"
#include "tune/tune.h"
#include "wire/queue.h"
#include "wire/tcp/tcp.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define MAX_RANKS (1 << 20)
#define MAX_SIZE  ((int64_t)1 << 50)

typedef struct {
    kolo_emit_env_t emit;
    kolo_tune_env_t tune;
    kolo_tune_sizes_t sizes;
    int *node_of, *node_first, *node_size, *node_ranks;
} job_t;

static void job_fini(job_t *job)
{
    free(job->node_of);
}

static uint64_t l3_bytes(void)
{
    kolo_topo_t topo;
    uint64_t most = 0;
    if (kolo_topo_load_gpus(&topo) != KOLO_OK) return 0;
    for (int i = 0; i < topo.count; i++) most = KOLO_MAX(most, (uint64_t)topo.nodes[i].cache_bytes);
    kolo_topo_fini(&topo);
    return most;
}

/* False with a message on stderr. */
static bool job_init(job_t *job, const char *ranks, int nodes)
{
    int64_t n;
    memset(job, 0, sizeof *job);
    if (!kolo_info_number("RANKS", ranks, false, 1, MAX_RANKS, &n)) return false;
    if (nodes > n) {
        fprintf(stderr, "kolo-info: %d nodes for %" PRId64 " ranks: a node without a rank\n", nodes, n);
        return false;
    }
    job->node_of = malloc((size_t)(2 * n + 2 * nodes) * sizeof(int));
    if (!job->node_of) {
        fprintf(stderr, "kolo-info: no memory for %" PRId64 " ranks\n", n);
        return false;
    }
    job->node_ranks = job->node_of + n;
    job->node_first = job->node_ranks + n;
    job->node_size = job->node_first + nodes;
    for (int k = 0; k < nodes; k++) {
        int first = (int)(n * k / nodes), end = (int)(n * (k + 1) / nodes);
        job->node_first[k] = first;
        job->node_size[k] = end - first;
        for (int r = first; r < end; r++) job->node_of[job->node_ranks[r] = r] = k;
    }
    job->emit = (kolo_emit_env_t){.nranks = (uint32_t)n,
                                  .nnodes = (uint32_t)nodes,
                                  .node_of = job->node_of,
                                  .node_first = job->node_first,
                                  .node_size = job->node_size,
                                  .node_ranks = job->node_ranks,
                                  .fanout = true,
                                  .refs = nodes == 1,
                                  .lanes = 1};
    job->tune = (kolo_tune_env_t){.nranks = (uint32_t)n,
                                  .nnodes = (uint32_t)nodes,
                                  .max_node_size = (uint32_t)KOLO_DIV_UP(n, nodes),
                                  .min_node_size = (uint32_t)(n / nodes),
                                  .cores = (uint32_t)kolo_cores(),
                                  .fanout = true,
                                  .refs = nodes == 1,
                                  .ll = nodes == 1,
                                  .l3_bytes = l3_bytes()};
    kolo_tune_sizes(&job->tune, &job->sizes);
    return true;
}

static int failed(void)
{
    fprintf(stderr, "kolo-info: %s\n", kolo_error_text());
    return INFO_FAILED;
}

/* Elements of a call whose data have `bytes` bytes in all: the count of the call is per rank for most. */
static uint64_t count_of(kolo_coll_t coll, uint64_t bytes, size_t elem, uint32_t ranks)
{
    return bytes / elem / (kolo_coll_by_rank(coll) ? ranks : 1);
}

/* "allreduce", "all-reduce". */
kolo_status_t kolo_info_coll(const char *name, kolo_coll_t *coll)
{
    for (int c = 0; c < KOLO_COLL_COUNT; c++) {
        const char *a = name, *b = kolo_coll_name((kolo_coll_t)c);
        while (*a && *b) {
            if (*b == '_' && *a != '_' && *a != '-') b++;
            if (*a != *b && !(*a == '-' && *b == '_')) break;
            a++;
            b++;
        }
        if (*a || *b) continue;
        *coll = (kolo_coll_t)c;
        return KOLO_OK;
    }
    return kolo_coll_parse(name, coll); /* for its message */
}

/* There the tuner is not asked: kernels made for a collective run it unless an algorithm is forced. */
static void explain_gpus(kolo_coll_t coll)
{
    kolo_way_t way = kolo_tune_forced(coll);
    if (way.algo != KOLO_ALGO_COUNT)
        printf("on GPUs of one host: the %s plan, by the kernel that interprets plans (KOLO_ALGO)\n",
               kolo_way_name(coll, way));
    else
        printf("on GPUs of one host: kernels made for the collective; KOLO_ALGO would have a plan interpreted\n");
}

int kolo_info_explain(const char *name, const char *size, const char *ranks, int nodes, const char *fabric)
{
    kolo_coll_t coll;
    int64_t bytes;
    job_t job;
    if (kolo_info_coll(name, &coll) != KOLO_OK) {
        failed();
        return INFO_USAGE;
    }
    if (!kolo_info_number("SIZE", size, true, 0, MAX_SIZE, &bytes)) return INFO_USAGE;
    if (!job_init(&job, ranks, nodes)) return INFO_USAGE;
    size_t elem = bytes % 4 ? 1 : 4;
    uint64_t count = count_of(coll, (uint64_t)bytes, elem, job.emit.nranks);
    int status = INFO_OK;
    if (kolo_tune_explain(&(kolo_tune_ask_t){&job.tune, &job.emit, &job.sizes, coll, count, elem}, stdout) !=
        KOLO_OK)
        status = failed();
    if (status == INFO_OK && fabric)
        status = kolo_info_predict(fabric, &job.emit, coll, count, (uint32_t)elem, job.sizes.remote_slot_bytes);
    if (status == INFO_OK) explain_gpus(coll);
    job_fini(&job);
    return status;
}

/* ---- memory ---- */

/* What a communicator of few ranks has besides queues and scratch: topology, plans, buffers of the engine.
 * Measured; tests/kolo-info compares the whole with a job. And what each rank of the job adds: its card, address,
 * tables. */
#define FIXED_BYTES    (592u << 10)
#define BYTES_PER_RANK (sizeof(kolo_peer_card_t) + 384)

typedef struct {
    kolo_plan_conn_t key;
    uint64_t fill; /* most bytes that a slot holds; 0: references alone */
} conn_use_t;

typedef struct {
    conn_use_t *uses;
    size_t count, capacity;
    uint64_t scratch; /* of the plan that needs most */
} conn_set_t;

/* Processes that map a connection's queue and so share its memory. */
static uint64_t conn_sharers(const job_t *job, const kolo_plan_conn_t *conn)
{
    if (conn->node) return (uint64_t)job->node_size[0];
    return job->node_of[conn->peer] != job->node_of[0] ? 1 : 2;
}

static uint32_t depth_of(const job_t *job, const kolo_plan_conn_t *conn, bool ll)
{
    bool remote = !conn->node && job->node_of[conn->peer] != job->node_of[0];
    if (conn->node) return kolo_tune_node_depth(&job->tune, &job->sizes, ll);
    if (ll) return job->sizes.ll_depth;
    return remote ? job->sizes.remote_depth : kolo_tune_pair_depth(&job->sizes, conn->lane);
}

/* Rank 0's bytes of a connection: queues are mapped by both ends (between hosts each end has its own). */
static uint64_t conn_bytes(const job_t *job, const kolo_plan_conn_t *conn, bool ll)
{
    bool remote = !conn->node && job->node_of[conn->peer] != job->node_of[0];
    kolo_conn_spec_t spec = {.kind = conn->node ? KOLO_CONN_NODE : KOLO_CONN_PAIR,
                             .depth = depth_of(job, conn, ll),
                             .slot_bytes = remote ? job->sizes.remote_slot_bytes : job->sizes.local_slot_bytes};
    if (ll) spec.slot_bytes = job->sizes.ll_slot_bytes;
    uint32_t readers = conn->node ? (uint32_t)job->node_size[0] - 1 : 1;
    return kolo_queue_bytes(&spec, KOLO_MAX(readers, 1));
}

static int compare_conns(const void *pa, const void *pb)
{
    const kolo_plan_conn_t *a = &((const conn_use_t *)pa)->key, *b = &((const conn_use_t *)pb)->key;
    if (a->dir != b->dir) return a->dir < b->dir ? -1 : 1;
    if (a->node != b->node) return a->node < b->node ? -1 : 1;
    if (a->lane != b->lane) return a->lane < b->lane ? -1 : 1;
    return (a->peer > b->peer) - (a->peer < b->peer);
}

/* Slots that only carry references, or a barrier's byte, are hardly touched. */
static bool fills_slots(const kolo_plan_t *plan)
{
    static const bool data[KOLO_OP_COUNT] = {[KOLO_OP_SEND] = true,
                                             [KOLO_OP_RECV] = true,
                                             [KOLO_OP_RECV_SEND] = true,
                                             [KOLO_OP_RECV_REDUCE] = true,
                                             [KOLO_OP_RECV_REDUCE_SEND] = true,
                                             [KOLO_OP_RECV_REDUCE_COPY_SEND] = true,
                                             [KOLO_OP_REDUCE_MANY] = true};
    bool fills = false;
    for (uint32_t i = 0; i < plan->ninsns; i++) fills |= data[plan->insns[i].op];
    return fills && plan->coll != KOLO_COLL_BARRIER;
}

/* `bytes`: of the longest vector that goes by this plan. */
static bool set_add(conn_set_t *set, const kolo_plan_t *plan, uint64_t bytes)
{
    size_t need = set->count + plan->nconns;
    if (need > set->capacity) {
        conn_use_t *more = realloc(set->uses, 2 * need * sizeof *more);
        if (!more) return false;
        set->uses = more;
        set->capacity = 2 * need;
    }
    uint64_t fill = fills_slots(plan) ? KOLO_DIV_UP(bytes, plan->nparts) : 0;
    for (uint32_t i = 0; i < plan->nconns; i++) set->uses[set->count + i] = (conn_use_t){plan->conns[i], fill};
    qsort(set->uses, need, sizeof *set->uses, compare_conns);
    set->count = 0;
    for (size_t i = 0; i < need; i++) {
        if (set->count == 0 || compare_conns(&set->uses[set->count - 1], &set->uses[i]) != 0)
            set->uses[set->count++] = set->uses[i];
        else
            set->uses[set->count - 1].fill = KOLO_MAX(set->uses[set->count - 1].fill, set->uses[i].fill);
    }
    return true;
}

static void print_line(const char *what, const char *how, uint64_t conns, uint64_t bytes)
{
    printf("  %-16s %-18s %6" PRIu64 " connections %12" PRIu64 " bytes\n", what, how, conns, bytes);
}

/* Bytes of the flat path: one LL queue from each rank of the host to all others. */
static uint64_t flat_memory(const job_t *job)
{
    if (!job->tune.ll || job->emit.nranks < 2) return 0;
    uint64_t bytes = 0;
    for (int i = 0; i < job->node_size[0]; i++)
        bytes += conn_bytes(
            job, &(kolo_plan_conn_t){.dir = i ? KOLO_DIR_RX : KOLO_DIR_TX, .node = true, .peer = i ? i : -1}, true);
    print_line("flat path", "small messages", (uint64_t)job->node_size[0], bytes);
    return bytes;
}

static bool add_algorithm(const job_t *job, kolo_coll_t coll, kolo_algo_t algo, uint64_t bytes, conn_set_t *all)
{
    kolo_plan_t *plan;
    if (kolo_algo_emit(coll, algo, &job->emit, &plan) != KOLO_OK) return false;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < plan->nconns; i++) sum += conn_bytes(job, &plan->conns[i], false);
    print_line(kolo_coll_name(coll), kolo_plan_algo_name(algo), plan->nconns, sum);
    uint64_t slot = KOLO_MIN(job->sizes.local_slot_bytes, bytes);
    all->scratch = KOLO_MAX(all->scratch, plan->nscratch * plan->slices * slot);
    bool added = set_add(all, plan, bytes);
    kolo_plan_free(plan);
    return added || kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for connections") == KOLO_OK;
}

/* The algorithms that the tuner takes for `coll` at some size from 8 bytes to 1 GiB, added to the set. */
static bool add_collective(const job_t *job, kolo_coll_t coll, conn_set_t *all)
{
    uint64_t longest[KOLO_ALGO_COUNT] = {0};
    for (uint64_t bytes = 8; bytes <= (uint64_t)1 << 30; bytes *= 2) {
        kolo_tune_choice_t choice;
        uint64_t count = coll == KOLO_COLL_BARRIER ? 0 : count_of(coll, bytes, 4, job->emit.nranks);
        if (kolo_tune_choose(&(kolo_tune_ask_t){&job->tune, &job->emit, &job->sizes, coll, count, 4}, &choice) !=
            KOLO_OK)
            return false;
        if (!choice.way.lines) longest[choice.way.algo] = bytes;
    }
    for (int a = 0; a < KOLO_ALGO_COUNT; a++) {
        if (longest[a] && !add_algorithm(job, coll, (kolo_algo_t)a, longest[a], all)) return false;
    }
    return true;
}

/* What a rank adds to the memory in use: of a queue its share, the others who map it have the rest. */
static void print_memory(const job_t *job, const conn_set_t *all, uint64_t flat)
{
    uint64_t queues = flat / (uint64_t)job->node_size[0];
    for (size_t i = 0; i < all->count; i++) {
        const kolo_plan_conn_t *key = &all->uses[i].key;
        uint64_t pages = (uint64_t)depth_of(job, key, false) * KOLO_ROUND_UP(all->uses[i].fill + 64, 4096);
        queues += KOLO_MIN(conn_bytes(job, key, false), pages) / conn_sharers(job, key);
    }
    uint64_t rest = FIXED_BYTES + sizeof(kolo_record_t) + job->emit.nranks * (uint64_t)BYTES_PER_RANK;
    printf("memory per rank: %" PRIu64 " bytes (queues %" PRIu64
           ", each shared by those who map it; scratch %" PRIu64 "; topology, tables, plans, flight record %" PRIu64
           ")\n",
           queues + all->scratch + rest, queues, all->scratch, rest);
}

/* Measured, with each rank connected with each by all collectives and messages (decision 0097). Of a communicator:
 * listener, engine's events, control page and its copy; of each other rank the out-of-band socket, and over TCP six
 * connections. All communicators share the library's and, of each other rank of the host, its doorbell and what
 * tells of its end, twice. */
#define FDS_OF_COMM      4u
#define FDS_PER_RANK     1u
#define FDS_PER_TCP      (6u << kolo_tcp_param_sockets)
#define FDS_OF_LIBRARY   6u
#define FDS_SHARED_LOCAL 3u
#define FDS_SHARED_TCP   1u

static void print_descriptors(const job_t *job)
{
    struct rlimit limit = {0};
    const uint64_t here = (uint64_t)job->node_size[0] - 1, all = job->emit.nranks - 1, elsewhere = all - here;
    const uint64_t shared = FDS_OF_COMM + all * FDS_PER_RANK + elsewhere * FDS_PER_TCP;
    const uint64_t tcp = shared + here * FDS_PER_TCP;
    const uint64_t once = FDS_OF_LIBRARY + here * FDS_SHARED_LOCAL,
                   once_tcp = FDS_OF_LIBRARY + here * FDS_SHARED_TCP;
    printf("descriptors per rank: at most %" PRIu64
           " of a communicator where ranks of a host share memory, %" PRIu64
           " where all goes over TCP (KOLO_TCP_SOCKETS=%u); %" PRIu64 " and %" PRIu64
           " that all communicators share\n",
           shared, tcp, 1u << kolo_tcp_param_sockets, once, once_tcp);
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max == RLIM_INFINITY) return;
    const uint64_t most = limit.rlim_max;
    printf("  a process may have %" PRIu64 " (ulimit -Hn): room for %" PRIu64 " and %" PRIu64
           " such communicators; ranks that are threads share it\n",
           most, most > once ? (most - once) / shared : 0, most > once_tcp ? (most - once_tcp) / tcp : 0);
}

int kolo_info_memory(const char *ranks, int nodes)
{
    job_t job;
    conn_set_t all = {0};
    if (!job_init(&job, ranks, nodes)) return INFO_USAGE;
    printf("rank 0 of %u ranks on %d node(s); connections are made when a call first needs them\n", job.emit.nranks,
           nodes);
    printf(
        "slots: local %u x %u bytes (to all of a host: %u), remote %u x %u, LL %u x %u (to all: %u); a connection "
        "holds depth x (64 + slot) bytes\n",
        job.sizes.local_depth, job.sizes.local_slot_bytes, kolo_tune_node_depth(&job.tune, &job.sizes, false),
        job.sizes.remote_depth, job.sizes.remote_slot_bytes, job.sizes.ll_depth, job.sizes.ll_slot_bytes,
        kolo_tune_node_depth(&job.tune, &job.sizes, true));
    uint64_t flat = flat_memory(&job), total = flat, count = flat ? (uint64_t)job.node_size[0] : 0;
    bool good = true;
    for (int coll = 0; good && job.emit.nranks > 1 && coll < KOLO_COLL_COUNT; coll++)
        if (coll != KOLO_COLL_P2P) good = add_collective(&job, (kolo_coll_t)coll, &all);
    for (size_t i = 0; i < all.count; i++) total += conn_bytes(&job, &all.uses[i].key, false);
    if (good) {
        print_line("all of them", "mapped, each once", count + all.count, total);
        print_memory(&job, &all, flat);
        print_descriptors(&job);
    }
    free(all.uses);
    job_fini(&job);
    return good ? INFO_OK : failed();
}
