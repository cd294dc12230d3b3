/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs in which one rank, any of them, makes one call that differs from the others' in its root, count,
 * type, operator, operation or place in the order: at first use or later, on every wire and on two hosts, with the
 * others thousands of calls ahead, or late, each rank with its own groups, with messages put aside, with windows.
 * No time limit is set. Every rank must end with KOLO_ERR_MISMATCH and the name of that rank, and soon.
 *
 *     mismatch_random_test [RUNS [SEED [LIMIT_MS [plain | WIRE]]]]     `make mismatches RUNS=1000 SEED=1`
 * plain: without groups, messages and windows. WIRE: cma, shm, tcp, hosts; all of them without.
 */
#include "kit/procs.h"

#include <kolo/message.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MOST_RANKS    6
#define MOST_ELEMENTS 70000
#define AFTERWARDS    40 /* calls that follow; the last ones are barriers */
#define BARRIERS      2
#define LATE_MS       300
#define NEVER_MS      5000

typedef enum { ROOT, COUNT, TYPE, OPERATOR, OPERATION, ORDER, KINDS } kind_t;
static const char *const kind_names[] = {"root", "count", "type", "operator", "operation", "order"};

enum {
    ALL_REDUCE,
    REDUCE,
    BROADCAST,
    ALL_GATHER,
    REDUCE_SCATTER,
    GATHER,
    SCATTER,
    ALL_TO_ALL,
    BARRIER,
    OPERATIONS,
    WINDOW /* makes one: only the odd rank does */
};
static const char *const names[] = {"all_reduce",     "reduce", "broadcast",      "all_gather",
                                    "reduce_scatter", "gather", "scatter",        "all_to_all",
                                    "barrier",        "",       "window_register"};

typedef struct {
    int what, root;
    size_t count;
    kolo_type_t type;
    kolo_op_t op;
} plan_call_t;

typedef struct {
    unsigned long seed;
    int ranks, odd, warm; /* warm: calls before it */
    int ahead;            /* small calls of one kind that follow it, of which the others may make thousands */
    int late;             /* this rank comes later to the odd call, -1: none */
    plan_call_t small;
    bool groups, messages, window;
    size_t wire;
    kind_t kind;
    plan_call_t right, wrong;
} program_t;

static const struct {
    const char *name, *env[4];
} wires[] = {
    {"cma", {NULL}},
    {"shm", {"KOLO_CMA_DISABLE=1", NULL}},
    {"tcp", {"KOLO_CMA_DISABLE=1", "KOLO_SHM_DISABLE=1", NULL}},
    {"hosts", {"HOSTS=2", NULL}}, /* two of them */
};
#define WIRES (sizeof wires / sizeof wires[0])

static unsigned draw(uint64_t *s, unsigned below)
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull; /* Knuth, MMIX */
    return (unsigned)((*s >> 33) % below);
}

static bool has_root(int what)
{
    return what == REDUCE || what == BROADCAST || what == GATHER || what == SCATTER;
}

static bool reduces(int what)
{
    return what == ALL_REDUCE || what == REDUCE || what == REDUCE_SCATTER;
}

static bool plain;
static size_t only_wire = WIRES;

static kolo_status_t make_window(kolo_comm_t comm)
{
    kolo_window_t window;
    return kolo_window_register(comm, NULL, 64, &window);
}

static kolo_status_t make_call(kolo_comm_t comm, const plan_call_t *c, char *x)
{
    char *y = x + (size_t)MOST_ELEMENTS * MOST_RANKS * 8;
    switch (c->what) {
    case ALL_REDUCE:
        return kolo_all_reduce(x, y, c->count, c->type, c->op, comm, NULL);
    case REDUCE:
        return kolo_reduce(x, y, c->count, c->type, c->op, c->root, comm, NULL);
    case BROADCAST:
        return kolo_broadcast(x, y, c->count, c->type, c->root, comm, NULL);
    case ALL_GATHER:
        return kolo_all_gather(x, y, c->count, c->type, comm, NULL);
    case REDUCE_SCATTER:
        return kolo_reduce_scatter(x, y, c->count, c->type, c->op, comm, NULL);
    case GATHER:
        return kolo_gather(x, y, c->count, c->type, c->root, comm, NULL);
    case SCATTER:
        return kolo_scatter(x, y, c->count, c->type, c->root, comm, NULL);
    case ALL_TO_ALL:
        return kolo_all_to_all(x, y, c->count, c->type, comm, NULL);
    case WINDOW:
        return make_window(comm);
    default:
        return kolo_barrier(comm, NULL);
    }
}

static plan_call_t draw_call(uint64_t *s, int ranks)
{
    static const kolo_type_t types[] = {KOLO_INT32, KOLO_FLOAT32, KOLO_UINT8, KOLO_FLOAT64};
    static const kolo_op_t ops[] = {KOLO_SUM, KOLO_MAX, KOLO_MIN};
    plan_call_t c = {.what = (int)draw(s, OPERATIONS), .root = (int)draw(s, (unsigned)ranks)};
    c.type = types[draw(s, 4)];
    c.op = ops[draw(s, 3)];
    unsigned size = draw(s, 3);
    c.count = 1 + draw(s, size == 0 ? 64 : size == 1 ? 4000 : MOST_ELEMENTS - 1);
    return c;
}

static bool differ(const plan_call_t *a, const plan_call_t *b)
{
    if (a->what != b->what) return true;
    if (a->what == BARRIER) return false;
    return a->count != b->count || a->type != b->type || (reduces(a->what) && a->op != b->op) ||
           (has_root(a->what) && a->root != b->root);
}

static program_t draw_program(unsigned long seed)
{
    uint64_t s = seed * 0x9e3779b97f4a7c15ull;
    program_t p = {.seed = seed, .ranks = 2 + (int)draw(&s, MOST_RANKS - 1), .wire = draw(&s, WIRES)};
    p.odd = (int)draw(&s, (unsigned)p.ranks);
    p.warm = draw(&s, 2) ? (int)draw(&s, 30) : 0;
    p.kind = (kind_t)draw(&s, KINDS);
    do {
        p.right = p.wrong = draw_call(&s, p.ranks);
        if (p.kind == ROOT) p.wrong.root = (int)draw(&s, (unsigned)p.ranks);
        if (p.kind == COUNT) p.wrong.count = draw(&s, 2) ? p.right.count + 1 : 1 + draw(&s, MOST_ELEMENTS - 1);
        if (p.kind == TYPE) p.wrong.type = p.right.type == KOLO_INT32 ? KOLO_FLOAT32 : KOLO_INT32;
        if (p.kind == OPERATOR) p.wrong.op = p.right.op == KOLO_SUM ? KOLO_MAX : KOLO_SUM;
        if (p.kind == OPERATION) p.wrong.what = (int)draw(&s, OPERATIONS);
        if (p.kind == ORDER) p.wrong = draw_call(&s, p.ranks);
    } while (!differ(&p.right, &p.wrong));
    static const int rooted[] = {BROADCAST, SCATTER, REDUCE, GATHER};
    p.ahead = draw(&s, 4) == 0 ? 1500 + (int)draw(&s, 3000) : 0;
    p.late = draw(&s, 4) == 0 ? (int)draw(&s, (unsigned)p.ranks) : -1;
    p.small = (plan_call_t){rooted[draw(&s, 4)], (int)draw(&s, (unsigned)p.ranks), 256, KOLO_FLOAT32, KOLO_SUM};
    p.groups = draw(&s, 2) && !plain;
    p.messages = draw(&s, 3) == 0 && !plain;
    p.window = draw(&s, 3) == 0 && !plain;
    if (p.kind == OPERATION && p.window && draw(&s, 2)) p.wrong.what = WINDOW;
    if (p.wrong.what == WINDOW) p.groups = false; /* nor is it allowed in one */
    if (only_wire < WIRES) p.wire = only_wire;
    return p;
}

/* What comes before and after, the same on all ranks. Both calls are made in order first, every other time, so that
 * their connections are there. */
static kolo_status_t warm_up(const program_t *p, kolo_comm_t comm, char *x, uint64_t *s)
{
    kolo_status_t status = KOLO_OK;
    for (int i = 0; i < p->warm && status == KOLO_OK; i++) {
        plan_call_t c = draw_call(s, p->ranks);
        status = make_call(comm, i == 0 ? &p->right : i == 1 && p->wrong.what != WINDOW ? &p->wrong : &c, x);
    }
    return status;
}

/* A window that all have, and a signal from each to the next. */
static void use_window(kolo_comm_t comm, int rank, int ranks)
{
    const kolo_signal_wait_t wait = {(rank + ranks - 1) % ranks, 0, 1};
    kolo_window_t window;
    if (EXPECT_OK(kolo_window_register(comm, NULL, 4096, &window)) &&
        EXPECT_OK(kolo_put_signal(&rank, 1, KOLO_INT32, (rank + 1) % ranks, window, 0, 0, comm, NULL)))
        EXPECT_OK(kolo_wait_signal(&wait, 1, comm, NULL));
}

typedef struct { /* messages that are under way when the odd call comes */
    int out, in, unused;
    kolo_pending_t send, receive;
    kolo_request_t never;
} messages_t;

/* Others may have been told already, and this rank by them. */
static void accept(kolo_status_t status)
{
    if (status != KOLO_ERR_MISMATCH) EXPECT_OK(status);
}

static void put_messages_aside(messages_t *m, kolo_comm_t comm, int rank, int ranks)
{
    m->out = rank;
    accept(kolo_isend(&m->out, 1, KOLO_INT32, (rank + 1) % ranks, comm, &m->send));
    accept(kolo_irecv(&m->in, 1, KOLO_INT32, (rank + ranks - 1) % ranks, comm, &m->receive));
    accept(kolo_irecv_tag(&m->unused, 1, KOLO_INT32, KOLO_ANY_SOURCE, 1, comm, NULL, &m->never));
}

/* They went along with the odd call, and end as it did; what nobody sends ends with the communicator. */
static void end_messages(messages_t *m)
{
    (void)kolo_pending_wait(m->send);
    (void)kolo_pending_wait(m->receive);
    if (m->never) EXPECT_IS(KOLO_ERR_MISMATCH, kolo_request_wait(m->never, NEVER_MS));
    EXPECT_OK(kolo_request_free(m->never));
}

/* Calls one by one, or, for `cut`, so many of them in one group. */
static kolo_status_t make_calls(kolo_comm_t comm, const plan_call_t *const *calls, int count, int cut, char *x)
{
    kolo_status_t status = KOLO_OK;
    for (int i = 0; i < count && status == KOLO_OK; i++) {
        if (cut && i == 0) EXPECT_OK(kolo_group_start());
        status = make_call(comm, calls[i], x);
        if (cut && (i + 1 == cut || i + 1 == count || status != KOLO_OK)) {
            kolo_status_t ended = kolo_group_end();
            if (status == KOLO_OK) status = ended;
            cut = 0;
        }
    }
    return status;
}

/* The odd call and what comes behind it; each rank draws its own groups. */
static kolo_status_t go_wrong(const program_t *p, kolo_comm_t comm, int rank, char *x)
{
    uint64_t own = p->seed * 1000003 + (uint64_t)rank * 7919 + 1;
    const plan_call_t *calls[4] = {rank == p->odd ? &p->wrong : &p->right};
    int count = 1;
    if (p->kind == ORDER) calls[count++] = rank == p->odd ? &p->right : &p->wrong;
    if (p->groups) {
        calls[count++] = &p->small;
        calls[count++] = &p->small;
    }
    return make_calls(comm, calls, count, p->groups ? (int)draw(&own, (unsigned)count + 1) : 0, x);
}

static void run_program(proc_t *proc)
{
    const program_t *p = proc->r.arg;
    finding_t *f = &proc->shared->found[proc->r.rank];
    kolo_comm_t comm = proc->r.comm;
    uint64_t s = p->seed;
    messages_t messages = {0};
    char *x = calloc((size_t)MOST_ELEMENTS * MOST_RANKS * 2, 8);
    if (!x) abort();
    EXPECT_OK(warm_up(p, comm, x, &s));
    if (p->window) use_window(comm, proc->r.rank, p->ranks);
    proc_meet(proc, 0);
    if (proc->r.rank == p->late) nap_ms(LATE_MS);
    uint64_t start = now_ms();
    if (p->messages) put_messages_aside(&messages, comm, proc->r.rank, p->ranks);
    f->status = go_wrong(p, comm, proc->r.rank, x);
    for (int i = 0; i < p->ahead && f->status == KOLO_OK; i++) f->status = make_call(comm, &p->small, x);
    for (int i = 0; i < AFTERWARDS && f->status == KOLO_OK; i++) {
        plan_call_t c = draw_call(&s, p->ranks);
        if (i >= AFTERWARDS - BARRIERS) c.what = BARRIER;
        f->status = make_call(comm, &c, x);
    }
    f->at_ms = now_ms() - start;
    snprintf(f->text, sizeof f->text, "%s", kolo_get_last_error(comm));
    end_messages(&messages);
    EXPECT_OK(kolo_comm_destroy(comm));
    proc->r.comm = NULL;
    free(x);
}

static void print_call(const char *who, const plan_call_t *c)
{
    print_message("  %s: %s count %zu type %d op %d root %d\n", who, names[c->what], c->count, (int)c->type,
                  (int)c->op, c->root);
}

static bool names_rank(const char *text, int rank)
{
    char word[16];
    size_t n = (size_t)snprintf(word, sizeof word, "rank %d", rank);
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
        if (at[n] < '0' || at[n] > '9') return true;
    return false;
}

static unsigned long runs = 60, seed = 1, limit = 10000;

static bool run_one(unsigned long number, uint64_t *slowest)
{
    program_t p = draw_program(number);
    job_t job;
    job_start(&job, p.ranks, wires[p.wire].env, run_program, &p);
    bool fine = job_finish(&job, -1) == 0;
    for (int r = 0; r < p.ranks; r++) {
        const finding_t *f = &job.shared->found[r];
        const char *said = f->text + (strncmp(f->text, "comm rank", 9) ? 0 : 10); /* behind who says it */
        fine = fine && f->status == KOLO_ERR_MISMATCH && f->at_ms <= limit && names_rank(said, p.odd);
        if (f->at_ms > *slowest) *slowest = f->at_ms;
    }
    if (!fine) {
        print_message("seed %lu: %d ranks, %s, %d calls before, the %s of rank %d, %d ahead, late %d%s%s%s\n",
                      number, p.ranks, wires[p.wire].name, p.warm, kind_names[p.kind], p.odd, p.ahead, p.late,
                      p.groups ? ", groups" : "", p.messages ? ", messages" : "", p.window ? ", a window" : "");
        print_call("most", &p.right);
        print_call("odd", &p.wrong);
        for (int r = 0; r < p.ranks; r++)
            print_message("  rank %d: %d after %d ms: %s\n", r, (int)job.shared->found[r].status,
                          (int)job.shared->found[r].at_ms, job.shared->found[r].text);
    }
    munmap(job.shared, sizeof *job.shared);
    return fine;
}

static void every_rank_is_told_who_is_odd(void **state)
{
    int wrong = 0;
    uint64_t slowest = 0;
    (void)state;
    for (unsigned long i = 0; i < runs; i++) wrong += !run_one(seed + i, &slowest);
    print_message("%lu programs, %d went wrong; the slowest rank was told after %d ms\n", runs, wrong,
                  (int)slowest);
    assert_int_equal(wrong, 0);
}

int main(int argc, char **argv)
{
    if (argc > 1) runs = strtoul(argv[1], NULL, 0);
    if (argc > 2) seed = strtoul(argv[2], NULL, 0);
    if (argc > 3) limit = strtoul(argv[3], NULL, 0);
    plain = argc > 4 && !strcmp(argv[4], "plain");
    for (size_t i = 0; argc > 4 && i < WIRES; i++)
        if (!strcmp(argv[4], wires[i].name)) only_wire = i;
    limit_s(60 + 12 * (unsigned)runs);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_is_told_who_is_odd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
