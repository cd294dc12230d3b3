/* SPDX-License-Identifier: Apache-2.0
 *
 * What users and machines do wrong, and that the others get to know it in words and can go on: pointers and devices
 * that do not fit, calls after an abort, a rank that does not come, counts that differ, a process that is killed.
 * See conform.h.
 */
#include "gpu/cases.h"
#include "gpu/conform.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef KOLO_SANITIZED
#define TIMES 5
#else
#define TIMES 1
#endif
#define SOON_MS  (1000 * TIMES) /* until survivors know */
#define LIMIT_MS (8000 * TIMES)

/* The status, with words that hold `needle`. */
static bool refused(const kit_rank_t *r, kolo_status_t want, kolo_status_t got, const char *needle,
                    const char *what)
{
    const char *text = got == KOLO_OK ? "" : kolo_get_last_error(NULL);
    if (got == want && strstr(text, needle)) return true;
    return KIT_FAIL("rank %d: %s: %s instead of %s with \"%s\": %s", r->rank, what, kolo_status_string(got),
                    kolo_status_string(want), needle, text);
}

static kolo_status_t sum(const kit_rank_t *r, const void *src, void *dst, size_t count)
{
    return kolo_all_reduce(src, dst, count, KOLO_INT32, KOLO_SUM, r->comm, r->streams[0]);
}

/* The first error of a communicator within `ms`. */
static kolo_status_t await_error(kolo_comm_t comm, uint64_t ms)
{
    kolo_status_t state = KOLO_OK;
    for (uint64_t end = kit_now_ms() + ms; kit_now_ms() < end; kit_nap())
        if (kolo_comm_get_async_error(comm, &state) == KOLO_OK && state != KOLO_OK && state != KOLO_IN_PROGRESS)
            break;
    return state;
}

static bool drains(const kit_rank_t *r, const char *what)
{
    kolo_status_t state = KOLO_IN_PROGRESS;
    for (uint64_t end = kit_now_ms() + LIMIT_MS; state == KOLO_IN_PROGRESS && kit_now_ms() < end; kit_nap())
        state = kit_query(r, r->streams[0]);
    return state == KOLO_OK || KIT_FAIL("rank %d: %s: the stream does not come to an end", r->rank, what);
}

static bool works(kit_team_t *t)
{
    case_t c = {.kind = CASE_ALL_REDUCE, .count = 20011, .type = KOLO_INT32, .op = KOLO_SUM, .seed = 7};
    return case_run(t, &c);
}

/* ---- arguments ---- */

static bool fits_no_pointer(kit_rank_t *r)
{
    int32_t host[100] = {0};
    bool good =
        refused(r, KOLO_ERR_INVALID_ARGUMENT, sum(r, host, r->buffer, 100), "not memory of a GPU", "host source");
    good = refused(r, KOLO_ERR_INVALID_ARGUMENT, sum(r, r->buffer, host, 100), "not memory of a GPU",
                   "host destination") &&
           good;
    good = refused(r, KOLO_ERR_INVALID_ARGUMENT, sum(r, r->buffer, r->buffer + r->room - 40, 100), "allocation",
                   "past the end") &&
           good;
    return good;
}

/* Memory that was freed after a call had used it: the address may be nobody's now, or another allocation's. */
static bool freed_memory(kit_rank_t *r)
{
    const size_t bytes = (size_t)8 << 20;
    kolo_unique_id_t id;
    kolo_comm_t comm = NULL;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.device = r->device;
    char *p = kit_alloc(r, bytes), *again;
    if (!p || !KIT_OK(kolo_get_unique_id(&id)) || !KIT_OK(kolo_comm_init_rank(&comm, 1, id, 0, &config)))
        return false;
    bool good = KIT_OK(kolo_all_reduce(p, p + bytes / 2, 100, KOLO_INT32, KOLO_SUM, comm, r->streams[0])) &&
                kit_sync(r, r->streams[0]);
    kit_free(r, p);
    good = refused(r, KOLO_ERR_INVALID_ARGUMENT,
                   kolo_all_reduce(p, r->buffer, 100, KOLO_INT32, KOLO_SUM, comm, r->streams[0]),
                   "not memory of a GPU", "memory that was freed") &&
           good;
    again = kit_alloc(r, bytes / 2);
    if (again == p)
        good = refused(r, KOLO_ERR_INVALID_ARGUMENT,
                       kolo_all_reduce(r->buffer, p, bytes / 8 + 1, KOLO_INT32, KOLO_SUM, comm, r->streams[0]),
                       "allocation", "a smaller allocation in the place of a freed one") &&
               good;
    kit_free(r, again);
    return KIT_OK(kolo_comm_destroy(comm)) && good;
}

static void add(const void *in, void *inout, size_t count, kolo_type_t type, void *arg)
{
    (void)type;
    (void)arg;
    for (size_t i = 0; i < count; i++) ((int32_t *)inout)[i] += ((const int32_t *)in)[i];
}

static bool fits_no_operator(kit_rank_t *r)
{
    kolo_op_t op;
    kolo_status_t status = kolo_op_create_callback(&op, add, NULL, KOLO_INT32, r->comm);
    if (status == KOLO_OK) {
        status = kolo_all_reduce(r->buffer, r->buffer, 10, KOLO_INT32, op, r->comm, r->streams[0]);
        bool good = refused(r, KOLO_ERR_UNSUPPORTED, status, "GPU", "an operator of the host");
        return KIT_OK(kolo_op_destroy(op, r->comm)) && good;
    }
    return refused(r, KOLO_ERR_UNSUPPORTED, status, "GPU", "an operator of the host");
}

static bool fits_no_device(kit_rank_t *r)
{
    kolo_unique_id_t id;
    kolo_comm_t comm = NULL;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.device = 99;
    if (!KIT_OK(kolo_get_unique_id(&id))) return false;
    return refused(r, KOLO_ERR_INVALID_ARGUMENT, kolo_comm_init_rank(&comm, 1, id, 0, &config), "no GPU 99",
                   "a device that is not there");
}

static bool arguments(kit_team_t *t)
{
    bool good = true;
    for (int i = 0; i < t->n && !t->options->host; i++) {
        kit_rank_t *r = &t->ranks[i];
        good = fits_no_pointer(r) && good;
        good = freed_memory(r) && good;
        good = fits_no_operator(r) && good;
        good = fits_no_device(r) && good;
    }
    return kit_case_end(t, good, "arguments that do not fit are refused in words") && works(t);
}

/* Two ranks on one GPU by accident: with one process a GPU, the usual mistake. */
static bool one_gpu_for_two(kit_team_t *t)
{
    kolo_unique_id_t id;
    kolo_comm_t comms[2] = {NULL, NULL};
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    bool good = true;
    if (getenv("KOLO_GPU_SHARED") || t->options->host) return true;
    config.device = 0;
    if (kit_leads(t)) {
        good = KIT_OK(kolo_get_unique_id(&id)) && KIT_OK(kolo_group_start());
        for (int i = 0; i < 2 && good; i++) good = KIT_OK(kolo_comm_init_rank(&comms[i], 2, id, i, &config));
        kolo_status_t status = kolo_group_end();
        if (status == KOLO_OK || !strstr(kolo_get_last_error(NULL), "KOLO_GPU_SHARED"))
            good = KIT_FAIL("two ranks on a GPU: %s: %s", kolo_status_string(status), kolo_get_last_error(NULL));
    }
    return kit_case_end(t, good, "two ranks on one GPU are refused");
}

/* Blocks of a kernel work with those of the same number on the other ranks. */
static bool two_profiles(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    kolo_comm_t comm = NULL;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    config.gpu_profile = r->rank == r->nranks - 1 ? KOLO_GPU_COMPUTE : KOLO_GPU_LATENCY;
    bool good = refused(r, KOLO_ERR_MISMATCH, kolo_comm_split(r->comm, 0, r->rank, &comm, &config), "GPU profile",
                        "two profiles");
    config.gpu_profile = 7;
    good = refused(r, KOLO_ERR_INVALID_ARGUMENT, kolo_comm_split(r->comm, 0, r->rank, &comm, &config),
                   "gpu_profile is 7", "a profile that is not there") &&
           good;
    return kit_case_end(t, good, "two GPU profiles in a communicator are refused");
}

/* ---- a rank that does not come ---- */

static void abort_all(kit_team_t *t)
{
    for (int i = 0; i < t->n; i++) {
        if (t->ranks[i].comm) kolo_comm_abort(t->ranks[i].comm);
        t->ranks[i].comm = NULL;
    }
}

static bool aborted(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    bool good = true;
    if (kit_leads(t)) {
        good = KIT_OK(sum(r, r->buffer, r->buffer + 4096, 1000));
        for (int i = 0; i < 250; i++) kit_nap();
        if (kit_query(r, r->streams[0]) != KOLO_IN_PROGRESS)
            good = KIT_FAIL("an all_reduce of one rank is complete");
        kolo_comm_t comm = r->comm;
        good = KIT_OK(kolo_comm_abort(comm)) && drains(r, "abort") && good;
        kolo_status_t status = sum(r, r->buffer, r->buffer + 4096, 1000); /* r->comm is a dead handle */
        if (status != KOLO_ERR_INVALID_ARGUMENT && status != KOLO_ERR_ABORTED)
            good = KIT_FAIL("a call after the abort: %s", kolo_status_string(status));
        r->comm = NULL;
    }
    bool go_on = kit_case_end(t, good, "abort ends kernels that wait");
    abort_all(t);
    return go_on;
}

/* The words of a communicator's error: both must be in it. By way of host memory (several hosts) operations are cut
 * into pieces, of which the words are. */
static bool says(const kit_team_t *t, kolo_status_t want, kolo_status_t got, const char *one, const char *other,
                 const char *what)
{
    const kit_rank_t *r = &t->ranks[0];
    const char *text = kolo_get_last_error(r->comm);
    if (got == want && (t->options->hosts || getenv("KOLO_GPU_EXECUTOR"))) return true;
    if (got == want && strstr(text, one) && strstr(text, other)) return true;
    return KIT_FAIL("rank %d: %s: %s, not %s with \"%s\" and \"%s\": %s", r->rank, what, kolo_status_string(got),
                    kolo_status_string(want), one, other, text);
}

/* Operations that nobody joins: a short one, a receive, one that is long enough for the kernels inside a host, and
 * one of a host alone, which waits in lanes. */
static const struct {
    const char *words, *name;
    size_t count;
    bool message, host;
} lates[] = {
    {"operation 1 (all_reduce 1000 int32 sum)", "a time limit ends an operation that nobody joins", 1000, false,
     false},
    {"recv 70 int32", "a time limit ends a receive that nobody sends to", 70, true, false},
    {"all_reduce 1300000 int32 sum", "a time limit ends a long operation that nobody joins", 1300000, false, false},
    {"ranks 0, ", "a time limit ends an operation that other hosts do not join", 1300000, false, true},
};
#define LATES ((int)(sizeof lates / sizeof lates[0]))

static bool late(kit_team_t *t, int i)
{
    kit_rank_t *r = &t->ranks[0];
    bool good = true;
    case_t first = {.kind = CASE_ALL_REDUCE, .count = 1000, .type = KOLO_INT32, .op = KOLO_SUM, .seed = 7};
    if (!lates[i].message) first.count = lates[i].count;
    if (!case_run(t, &first)) return false; /* making connections has a limit of its own */
    if (lates[i].host && !kit_leads(t) && kit_host_of(r->rank) == 0)
        good = KIT_OK(sum(r, r->buffer, r->buffer + r->room / 2, lates[i].count));
    if (kit_leads(t)) {
        kolo_status_t status = lates[i].message
                                   ? kolo_recv(r->buffer, lates[i].count, KOLO_INT32, 1, r->comm, r->streams[0])
                                   : sum(r, r->buffer, r->buffer + r->room / 2, lates[i].count);
        good = KIT_OK(status);
        kolo_status_t state = await_error(r->comm, LIMIT_MS);
        good = says(t, KOLO_ERR_TIMEOUT, state, lates[i].words, "for data from rank 1", "a rank does not come") &&
               good;
        if (lates[i].host && !strstr(kolo_get_last_error(r->comm), lates[i].words))
            good = KIT_FAIL("no word of %s: %s", lates[i].words, kolo_get_last_error(r->comm));
        good = drains(r, "a time limit") && good;
    }
    bool go_on = kit_case_end(t, good, lates[i].name);
    abort_all(t);
    return go_on;
}

/* ---- ranks that do different things ---- */

/* What all ranks call, what the last one calls instead, and what it is told that is found. */
static const struct {
    const char *name, *all, *last;
    case_kind_t kind, last_kind;
    size_t count, last_count;
    kolo_type_t type, last_type;
    kolo_op_t op, last_op;
    int root, last_root;
} differences[] = {
    {.name = "counts of a short operation", .count = 1000, .last_count = 1001, .all = "1000 i", .last = "1001 i"},
    {.name = "counts by lines of 128 bytes",
     .count = 100001,
     .last_count = 100002,
     .all = "100001",
     .last = "100002"},
    {.name = "counts of a long operation",
     .count = 1300000,
     .last_count = 1300100,
     .all = "1300000",
     .last = "1300100"},
    {.name = "a short operation and a long one",
     .count = 10,
     .last_count = 1300000,
     .all = "10 i",
     .last = "1300000"},
    {.name = "types of one size", .count = 1000, .last_type = KOLO_FLOAT32, .all = "int32", .last = "float32"},
    {.name = "types, long", .count = 1300000, .last_type = KOLO_UINT32, .all = " int32", .last = "uint32"},
    {.name = "operators", .count = 1000, .last_op = KOLO_MAX, .all = "sum", .last = "max"},
    {.name = "operators, middle", .count = 100000, .last_op = KOLO_MAX, .all = "sum", .last = "max"},
    {.name = "operators, long", .count = 1300000, .last_op = KOLO_MIN, .all = "sum", .last = "min"},
    {.name = "roots",
     .kind = CASE_BROADCAST,
     .last_kind = CASE_BROADCAST,
     .count = 500,
     .last_root = 1,
     .all = "root 0",
     .last = "root 1"},
    {.name = "collectives", .last_kind = CASE_ALL_GATHER, .count = 500, .all = "all_reduce", .last = "all_gather"},
    {.name = "an operation and a barrier",
     .last_kind = CASE_BARRIER,
     .count = 500,
     .all = "all_reduce",
     .last = "barrier"},
    {.name = "counts of a long all_to_all",
     .kind = CASE_ALL_TO_ALL,
     .last_kind = CASE_ALL_TO_ALL,
     .count = 100000,
     .last_count = 100100,
     .all = "100000",
     .last = "100100"},
    {.name = "a short all_to_all and a long one",
     .kind = CASE_ALL_TO_ALL,
     .last_kind = CASE_ALL_TO_ALL,
     .count = 10,
     .last_count = 100000,
     .all = "10 i",
     .last = "100000"},
    {.name = "an all_to_all and an all_gather",
     .kind = CASE_ALL_TO_ALL,
     .last_kind = CASE_ALL_GATHER,
     .count = 100000,
     .all = "all_to_all",
     .last = "all_gather"},
    {.name = "roots, long",
     .kind = CASE_BROADCAST,
     .last_kind = CASE_BROADCAST,
     .count = 1300000,
     .last_root = 1,
     .all = "root 0",
     .last = "root 1"},
    {.name = "lengths of a message",
     .kind = CASE_RING,
     .last_kind = CASE_RING,
     .count = 300,
     .last_count = 301,
     .all = "send 300",
     .last = "recv 301"},
    {.name = "lengths of a long message",
     .kind = CASE_RING,
     .last_kind = CASE_RING,
     .count = 1300000,
     .last_count = 1300001,
     .all = "send 1300000",
     .last = "recv 1300001"},
    {.name = "a short message and a long one",
     .kind = CASE_RING,
     .last_kind = CASE_RING,
     .count = 300,
     .last_count = 1300000,
     .all = "send 300",
     .last = "recv 1300000"},
    {.name = "a long message and a short one",
     .kind = CASE_RING,
     .last_kind = CASE_RING,
     .count = 1300000,
     .last_count = 300,
     .all = "send 1300000",
     .last = "recv 300"},
    {.name = "an operation and a receive",
     .last_kind = CASE_RING,
     .count = 500,
     .all = "all_reduce 500",
     .last = "recv 500"},
    {.name = "a send and an operation",
     .kind = CASE_RING,
     .count = 1300000,
     .all = "send 1300000",
     .last = "all_reduce 1300000"},
    {.name = "types of a message",
     .kind = CASE_RING,
     .last_kind = CASE_RING,
     .count = 300,
     .last_type = KOLO_FLOAT32,
     .all = "int32",
     .last = "float32"},
};
#define DIFFERENCES ((int)(sizeof differences / sizeof differences[0]))

static kolo_status_t call_one(const kit_rank_t *r, case_kind_t kind, size_t count, kolo_type_t type, kolo_op_t op,
                              int root, bool last)
{
    char *dst = r->buffer + r->room / 2;
    switch (kind) {
    case CASE_BROADCAST:
        return kolo_broadcast(r->buffer, dst, count, type, root, r->comm, r->streams[0]);
    case CASE_ALL_GATHER:
        return kolo_all_gather(r->buffer, dst, count, type, r->comm, r->streams[0]);
    case CASE_ALL_TO_ALL:
        return kolo_all_to_all(r->buffer, dst, count, type, r->comm, r->streams[0]);
    case CASE_BARRIER:
        return kolo_barrier(r->comm, r->streams[0]);
    case CASE_RING: /* the first rank sends to the last one */
        if (last) return kolo_recv(dst, count, type, 0, r->comm, r->streams[0]);
        return r->rank ? KOLO_OK : kolo_send(r->buffer, count, type, r->nranks - 1, r->comm, r->streams[0]);
    default:
        return kolo_all_reduce(r->buffer, dst, count, type, op, r->comm, r->streams[0]);
    }
}

static kolo_status_t call_differently(const kit_rank_t *r, int i)
{
    bool last = r->rank == r->nranks - 1;
    size_t count = last && differences[i].last_count ? differences[i].last_count : differences[i].count;
    kolo_type_t type = last && differences[i].last_type ? differences[i].last_type : differences[i].type;
    if (type == 0) type = KOLO_INT32;
    return call_one(r, last ? differences[i].last_kind : differences[i].kind, count, type,
                    last ? differences[i].last_op : differences[i].op,
                    last ? differences[i].last_root : differences[i].root, last);
}

static bool mismatched(kit_team_t *t, int i)
{
    kit_rank_t *r = &t->ranks[0];
    char name[128];
    kolo_status_t status = call_differently(r, i);
    uint64_t begin = kit_now_ms();
    if (status == KOLO_OK) status = await_error(r->comm, LIMIT_MS);
    uint64_t after = kit_now_ms() - begin;
    bool good = says(t, KOLO_ERR_MISMATCH, status, differences[i].all, differences[i].last, differences[i].name);
    snprintf(name, sizeof name, "rank %d", r->nranks - 1);
    if (!strstr(kolo_get_last_error(r->comm), name))
        good = KIT_FAIL("rank %d: no word of %s: %s", r->rank, name, kolo_get_last_error(r->comm));
    good = drains(r, "a mismatch") && good;
    snprintf(name, sizeof name, "%s that differ are told on every rank", differences[i].name);
    if (t->options->verbose && kit_leads(t))
        fprintf(stderr, "told after %llu ms: %s\n", (unsigned long long)after, kolo_get_last_error(r->comm));
    bool go_on = kit_case_end(t, good, name);
    abort_all(t);
    return go_on;
}

/* The last rank takes the communicator for done while the others call once more. */
static const struct {
    const char *name, *words;
    case_kind_t kind;
    size_t count;
} ends[] = {
    {"a short operation", "all_reduce", CASE_ALL_REDUCE, 1000},
    {"an operation by lines of 128 bytes", "all_reduce", CASE_ALL_REDUCE, 100000},
    {"a long operation", "all_reduce", CASE_ALL_REDUCE, 1300000},
    {"a barrier", "barrier", CASE_BARRIER, 0},
    {"a message", "send", CASE_RING, 1300000},
};
#define ENDS ((int)(sizeof ends / sizeof ends[0]))

static bool ended(kit_team_t *t, int i)
{
    kit_rank_t *r = &t->ranks[0];
    char name[128];
    bool last = r->rank == r->nranks - 1;
    if (!works(t)) return false;
    kolo_status_t status = last ? kolo_comm_finalize(r->comm)
                                : call_one(r, ends[i].kind, ends[i].count, KOLO_INT32, KOLO_SUM, 0, false);
    /* who has nothing to wait for ends, too */
    if (status == KOLO_OK && ends[i].kind == CASE_RING && r->rank) status = kolo_comm_finalize(r->comm);
    if (status == KOLO_OK) status = await_error(r->comm, LIMIT_MS);
    bool good = says(t, KOLO_ERR_MISMATCH, status, ends[i].words, "comm_finalize", ends[i].name);
    good = drains(r, "the end of a rank") && good;
    snprintf(name, sizeof name, "%s that meets the end of a rank is told on every rank", ends[i].name);
    bool go_on = kit_case_end(t, good, name);
    abort_all(t);
    return go_on;
}

/* ---- a process that is killed ---- */

/* So many calls are queued at most: each of them has to come to its end when the victim is gone, which took half a
 * minute for 70 on a busy machine. */
#define QUEUED 8

static bool survive(kit_team_t *t, int victim)
{
    kit_rank_t *r = &t->ranks[0];
    kolo_comm_t rest = NULL;
    kolo_status_t state = KOLO_OK;
    char needle[16];
    const size_t count = t->options->quick ? 100000 : 4000000;
    uint64_t end = kit_now_ms() + LIMIT_MS;
    for (int calls = 1; state == KOLO_OK && kit_now_ms() < end; calls++) {
        kolo_status_t status = sum(r, r->buffer, r->buffer + count * 4 + 4096, count);
        if (status != KOLO_OK) break;
        for (int naps = calls % QUEUED ? 5 : INT_MAX; naps > 0 && state == KOLO_OK && kit_now_ms() < end; naps--) {
            if (kolo_comm_get_async_error(r->comm, &state) != KOLO_OK) return KIT_FAIL("no state");
            if (kit_query(r, r->streams[0]) != KOLO_IN_PROGRESS) break;
            kit_nap();
        }
    }
    state = await_error(r->comm, LIMIT_MS);
    uint64_t after = kit_now_ms() - t->shared->found[victim].at_ms;
    snprintf(needle, sizeof needle, "rank %d", victim);
    bool good = true;
    if (state != KOLO_ERR_REMOTE || !strstr(kolo_get_last_error(r->comm), needle))
        good = KIT_FAIL("rank %d: %s: %s", r->rank, kolo_status_string(state), kolo_get_last_error(r->comm));
    if (after > SOON_MS) good = KIT_FAIL("rank %d: told after %llu ms", r->rank, (unsigned long long)after);
    good = drains(r, "a lost rank") && good;
    if (!KIT_OK(kolo_comm_shrink(r->comm, NULL, 0, KOLO_SHRINK_ABORT, &rest, NULL))) return false;
    KIT_OK(kolo_comm_destroy(r->comm));
    r->comm = rest;
    good = KIT_OK(kolo_comm_count(rest, &r->nranks)) && KIT_OK(kolo_comm_user_rank(rest, &r->rank)) && good;
    fprintf(stderr, "rank %d: told after %llu ms\n", r->rank, (unsigned long long)after);
    return good;
}

static bool killed(kit_team_t *t)
{
    int victim = t->ranks[0].nranks / 2;
    kit_rank_t *r = &t->ranks[0];
    if (t->options->mode != KIT_PROCESSES || r->nranks < 3) return true;
    if (!works(t)) return false;
    if (r->rank == victim) {
        for (int i = 0; i < 20; i++) sum(r, r->buffer, r->buffer + 1000000, 100000);
        t->shared->found[victim].at_ms = kit_now_ms();
        kill(getpid(), SIGKILL);
    }
    bool good = survive(t, victim);
    t->teams--; /* the dead do not meet */
    if (!good) kit_give_up(t);
    return kit_case_end(t, good, "the loss of a process is told, and the others shrink") && works(t);
}

static bool again(kit_team_t *t, const kolo_config_t *config, bool (*test)(kit_team_t *))
{
    return kit_comms_make(t, config) && test(t);
}

void conform_faults(kit_team_t *t)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER, hasty = KOLO_CONFIG_INITIALIZER;
    hasty.op_timeout_ms = 2000 * TIMES; /* longer than a long operation that all join takes on crowded cores */
    if (!again(t, &config, arguments) || !one_gpu_for_two(t)) return;
    if (t->n > 1 || t->ranks[0].nranks == 1) {
        kit_comms_end(t);
        return;
    }
    if (!two_profiles(t)) return;
    abort_all(t);
    if (!again(t, &config, aborted)) return;
    for (int i = 0; i < LATES; i++)
        if ((t->options->hosts || !lates[i].host) && (!kit_comms_make(t, &hasty) || !late(t, i))) return;
    for (int i = 0; i < DIFFERENCES; i++)
        if (!kit_comms_make(t, &config) || !mismatched(t, i)) return;
    for (int i = 0; i < ENDS; i++)
        if (!kit_comms_make(t, &config) || !ended(t, i)) return;
    if (!getenv("KOLO_GPU_EXECUTOR") && !conform_refused(t)) return;
    if (again(t, &config, killed)) abort_all(t); /* last: it leaves fewer ranks */
}

/* By what the driver says of it alone: ordinals are equal everywhere, and here the hosts differ. */
void conform_twice(kit_team_t *t)
{
    kit_rank_t *r = &t->ranks[0];
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    bool good = true;
    config.device = r->device;
    if (kit_leads(t)) good = KIT_OK(kolo_get_unique_id(&t->shared->id));
    if (!kit_meet(t)) return;
    kolo_status_t status = kolo_comm_init_rank(&r->comm, r->nranks, t->shared->id, r->rank, &config);
    const char *text = status == KOLO_OK ? "" : kolo_get_last_error(NULL);
    if (status != KOLO_ERR_INVALID_USAGE || !strstr(text, "rank 0 (") || !strstr(text, "rank 1 (") ||
        !strstr(text, "KOLO_GPU_SHARED"))
        good = KIT_FAIL("rank %d: one GPU for two: %s: %s", r->rank, kolo_status_string(status), text);
    kit_case_end(t, good, "two ranks on one GPU are told who they are");
}
