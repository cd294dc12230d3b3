/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks in processes of their own: the others learn quickly and by name that one was killed, idle ranks cost
 * nothing, memory stays small, and what a rank sent arrives though it has gone in peace.
 */
#include "kit/procs.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS  4
#define VICTIM 2
#define LARGE  (1u << 20)

#ifdef KOLO_SANITIZED
static const bool sanitized = true;
#else
static const bool sanitized = false;
#endif

/* ---- a rank is killed ---- */

typedef enum { SMALL, BIG, BARRIER, RECV, FIRST_USE, CHAIN, SPLIT, KINDS } kind_t;
static const char *const kind_names[KINDS] = {"small all_reduce", "large all_reduce",  "barrier", "receive",
                                              "first use",        "chain of receives", "split"};

static kolo_status_t wait_in(kind_t kind, const rank_t *r, int32_t *data)
{
    switch (kind) {
    case SMALL:
        return kolo_all_reduce(data, data, 2, KOLO_INT32, KOLO_SUM, r->comm, NULL);
    case BIG:
        return kolo_all_reduce(data, data, LARGE, KOLO_INT32, KOLO_SUM, r->comm, NULL);
    case RECV:
        return kolo_recv(data, 1, KOLO_INT32, VICTIM, r->comm, NULL);
    case CHAIN: /* 3 waits for 0, 0 for 1, 1 for the victim */
        return kolo_recv(data, 1, KOLO_INT32, (r->rank + 1) % RANKS, r->comm, NULL);
    case SPLIT: {
        kolo_comm_t child = NULL;
        return kolo_comm_split(r->comm, 0, r->rank, &child, NULL);
    }
    default:
        return kolo_barrier(r->comm, NULL);
    }
}

/* Connects each with each, so that the wait to come is one on a wire. */
static void greet_all(const rank_t *r)
{
    int32_t out = r->rank, in[RANKS];
    EXPECT_OK(kolo_group_start());
    for (int i = 0; i < RANKS; i++) {
        EXPECT_OK(kolo_send(&out, 1, KOLO_INT32, i, r->comm, NULL));
        EXPECT_OK(kolo_recv(&in[i], 1, KOLO_INT32, i, r->comm, NULL));
    }
    EXPECT_OK(kolo_group_end());
    for (int i = 0; i < RANKS; i++) EXPECT(in[i] == i);
}

static void wait_for_the_victim(proc_t *p)
{
    rank_t *r = &p->r;
    kind_t kind = *(kind_t *)r->arg;
    finding_t *f = &p->shared->found[r->rank];
    int32_t *data = calloc(LARGE, sizeof *data);
    if (kind != FIRST_USE) {
        works(r->comm);
        EXPECT_OK(kolo_all_reduce(data, data, LARGE, KOLO_INT32, KOLO_SUM, r->comm, NULL));
        greet_all(r);
    }
    proc_meet(p, 0);
    if (r->rank == VICTIM)
        for (;;) pause();
    f->status = wait_in(kind, r, data);
    f->at_ms = now_ms();
    snprintf(f->text, sizeof f->text, "%s", kolo_get_last_error(kind == SPLIT ? NULL : r->comm));
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
    free(data);
}

/* What a split would have made is not known yet: its words are about the parent. */
static bool names_itself(const finding_t *f, kind_t kind, int rank)
{
    char words[64];
    snprintf(words, sizeof words, "split from comm, rank %d of %d: ", rank, RANKS);
    return kind != SPLIT || strstr(f->text, words);
}

static void kill_one(const kit_wire_t *w, kind_t kind)
{
    job_t job;
    char victim[16];
    snprintf(victim, sizeof victim, "rank %d", VICTIM);
    job_start(&job, RANKS, w->env, wait_for_the_victim, &kind);
    job_await(&job, 0, RANKS);
    nap_ms(100); /* until they are parked */
    uint64_t start = now_ms(), last = 0;
    kill(job.pids[VICTIM], SIGKILL);
    assert_int_equal(job_finish(&job, VICTIM), 0);
    assert_int_equal(waitpid(job.pids[VICTIM], NULL, 0), job.pids[VICTIM]);
    for (int i = 0; i < RANKS; i++) {
        const finding_t *f = &job.shared->found[i];
        if (i == VICTIM) continue;
        if (f->status != KOLO_ERR_REMOTE || !strstr(f->text, victim) || !names_itself(f, kind, i))
            print_message("%s, %s, rank %d: %s: %s\n", w->name, kind_names[kind], i, kolo_status_string(f->status),
                          f->text);
        assert_int_equal(f->status, KOLO_ERR_REMOTE);
        assert_non_null(strstr(f->text, victim));
        assert_true(names_itself(f, kind, i));
        if (f->at_ms - start > last) last = f->at_ms - start;
    }
    print_message("%s, %s: all know after %llu ms\n", w->name, kind_names[kind], (unsigned long long)last);
    assert_true(last < 1000 || sanitized);
}

static void a_killed_rank_is_named_within_a_second(void **state)
{
    (void)state;
    for (size_t w = 0; w < LOCAL_WIRES; w++)
        for (kind_t kind = SMALL; kind < KINDS; kind++) kill_one(&kit_wires[w], kind);
}

/* ---- a rank leaves in peace ---- */

static void leave_at_once(proc_t *p)
{
    rank_t *r = &p->r;
    size_t large = 300000;
    int32_t *data = malloc(large * sizeof *data);
    for (size_t i = 0; i < large; i++) data[i] = r->rank == 0 ? (int32_t)i : -1;
    works(r->comm);
    for (size_t n = 1; n <= large; n *= large) {
        if (r->rank) nap_ms(100 * r->rank);
        EXPECT_OK(kolo_broadcast(data, data, n, KOLO_INT32, 0, r->comm, NULL));
        EXPECT(data[n - 1] == (int32_t)n - 1);
    }
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
    free(data);
}

static void what_was_sent_arrives_though_the_sender_has_left(void **state)
{
    (void)state;
    for (size_t w = 0; w < LOCAL_WIRES; w++) {
        job_t job;
        job_start(&job, 3, kit_wires[w].env, leave_at_once, NULL);
        int bad = job_finish(&job, -1);
        if (bad) print_message("%s\n", kit_wires[w].name);
        assert_int_equal(bad, 0);
    }
}

static void call_one_that_left(proc_t *p)
{
    rank_t *r = &p->r;
    finding_t *f = &p->shared->found[r->rank];
    if (r->rank == 0) {
        EXPECT_OK(kolo_comm_destroy(r->comm));
        r->comm = NULL;
        proc_meet(p, 0);
        return;
    }
    proc_meet(p, 0);
    f->status = kolo_barrier(r->comm, NULL);
    snprintf(f->text, sizeof f->text, "%s", kolo_get_last_error(r->comm));
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
}

/* A first operation connects: that must not wait for a rank that cannot come any more until set-up's time limit. */
static void who_has_left_keeps_nobody_waiting(void **state)
{
    (void)state;
    for (size_t w = 0; w < LOCAL_WIRES; w++) {
        job_t job;
        uint64_t start = now_ms();
        job_start(&job, 2, kit_wires[w].env, call_one_that_left, NULL);
        assert_int_equal(job_finish(&job, -1), 0);
        const finding_t *f = &job.shared->found[1];
        if (f->status != KOLO_ERR_REMOTE || !strstr(f->text, "rank 0"))
            print_message("%s: %s\n", kit_wires[w].name, f->text);
        assert_int_equal(f->status, KOLO_ERR_REMOTE);
        assert_non_null(strstr(f->text, "rank 0"));
        assert_true(now_ms() - start < 60000);
    }
}

/* ---- a rank exits without a word ---- */

static void exit_with_communicator(proc_t *p)
{
    rank_t *r = &p->r;
    finding_t *f = &p->shared->found[r->rank];
    int32_t x = 1;
    works(r->comm);
    proc_meet(p, 0);
    if (r->rank == VICTIM) exit(0); /* the program's end, without destroying anything */
    f->status = kolo_all_reduce(&x, &x, 1, KOLO_INT32, KOLO_SUM, r->comm, NULL);
    snprintf(f->text, sizeof f->text, "%s", kolo_get_last_error(r->comm));
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
}

static void a_rank_that_just_exits_is_named(void **state)
{
    static const char *const apart[] = {"HOSTS=4", NULL}; /* nobody sees the process, only its connections */
    (void)state;
    for (size_t w = 0; w <= LOCAL_WIRES; w++) {
        job_t job;
        uint64_t start = now_ms();
        job_start(&job, RANKS, w < LOCAL_WIRES ? kit_wires[w].env : apart, exit_with_communicator, NULL);
        assert_int_equal(job_finish(&job, -1), 0);
        assert_true(IN_TIME(now_ms() - start < 5000 || sanitized));
        for (int i = 0; i < RANKS; i++) {
            if (i == VICTIM) continue;
            if (!strstr(job.shared->found[i].text, "rank 2")) print_message("%s\n", job.shared->found[i].text);
            assert_int_equal(job.shared->found[i].status, KOLO_ERR_REMOTE);
            assert_non_null(strstr(job.shared->found[i].text, "rank 2"));
            if (strstr(job.shared->found[i].text, "its connection was closed"))
                assert_non_null(strstr(job.shared->found[i].text,
                                       "the process was killed, or ended without kolo_comm_finalize() or "
                                       "kolo_comm_destroy()"));
        }
    }
}

/* ---- programs that end after finalize ---- */

#define ENDS 12

/* Who has met all others in finalize may end, as a program with MPI does, though others are still in it. */
static void exit_after_finalize(proc_t *p)
{
    works(p->r.comm);
    EXPECT_OK(kolo_comm_finalize(p->r.comm));
    exit(expect_failures() ? 1 : 0);
}

static void who_exits_after_finalize_is_not_lost(void **state)
{
    static const char *const hosts[] = {"HOSTS=3", NULL};
    (void)state;
    for (int i = 0; i < ENDS; i++) {
        job_t job;
        job_start(&job, 3 + i % 3, i % 2 ? hosts : NULL, exit_after_finalize, NULL);
        assert_int_equal(job_finish(&job, -1), 0);
    }
}

static void die_before_finalize(proc_t *p)
{
    rank_t *r = &p->r;
    works(r->comm);
    proc_meet(p, 0);
    if (r->rank == VICTIM) {
        nap_ms(200); /* the others are in it */
        raise(SIGKILL);
    }
    EXPECT_ERROR(KOLO_ERR_REMOTE, kolo_comm_finalize(r->comm), "comm_finalize", "rank 2 was lost");
}

static void who_dies_before_finalize_is_named(void **state)
{
    (void)state;
    job_t job;
    job_start(&job, RANKS, NULL, die_before_finalize, NULL);
    assert_int_equal(job_finish(&job, VICTIM), 0);
}

/* ---- idle ranks ---- */

static uint64_t cpu_us(void)
{
    struct rusage u;
    if (getrusage(RUSAGE_SELF, &u)) abort();
    return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 +
           (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void idle(proc_t *p)
{
    works(p->r.comm);
    proc_meet(p, 0);
    nap_ms(200);
    uint64_t before = cpu_us();
    nap_ms(2000);
    p->shared->found[p->r.rank].cpu_us = cpu_us() - before;
    proc_meet(p, 1);
    works(p->r.comm);
}

static void idle_ranks_use_no_core(void **state)
{
    (void)state;
    for (size_t w = 0; w < LOCAL_WIRES; w++) {
        job_t job;
        uint64_t sum = 0;
        job_start(&job, RANKS, kit_wires[w].env, idle, NULL);
        assert_int_equal(job_finish(&job, -1), 0);
        for (int i = 0; i < RANKS; i++) sum += job.shared->found[i].cpu_us;
        print_message("%s: %d idle ranks use %.3f %% of a core\n", kit_wires[w].name, RANKS, (double)sum / 20000.0);
        assert_true(IN_TIME(sum < 10000 || sanitized)); /* 0.5 % of two seconds */
    }
}

/* ---- memory ---- */

static uint64_t pss_bytes(void)
{
    char line[256];
    unsigned long long kb = 0;
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    if (!f) return 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "Pss: %llu kB", &kb) == 1) break;
    fclose(f);
    return kb * 1024;
}

static void use_some_memory(proc_t *p)
{
    finding_t *f = &p->shared->found[p->r.rank];
    kolo_comm_t comm = NULL;
    size_t n = (1u << 20) / sizeof(float);
    float *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);
    /* the process has met the library once; what counts is a communicator more */
    end_comm(&p->r.comm);
    for (size_t i = 0; i < n; i++) x[i] = 1, y[i] = 0;
    if (p->r.rank == 0) {
        EXPECT_OK(kolo_get_unique_id(&p->shared->id));
    }
    proc_meet(p, 0);
    uint64_t before = pss_bytes();
    proc_meet(p, 1);
    EXPECT_OK(kolo_comm_init_rank(&comm, p->r.nranks, p->shared->id, p->r.rank, NULL));
    EXPECT_OK(kolo_all_reduce(x, y, n, KOLO_FLOAT32, KOLO_SUM, comm, NULL));
    EXPECT(y[n - 1] == (float)p->r.nranks);
    proc_meet(p, 2);
    f->bytes = pss_bytes() - before;
    size_t told = 0;
    EXPECT(kolo_comm_memory(comm, &told) == KOLO_OK && told > 0);
    f->at_ms = told / 1024;
    proc_meet(p, 3);
    end_comm(&comm);
    free(x);
    free(y);
}

static void a_rank_of_four_needs_less_than_8_MB(void **state)
{
    (void)state;
    for (size_t w = 0; w < LOCAL_WIRES; w++) {
        job_t job;
        uint64_t most = 0, sum = 0;
        job_start(&job, RANKS, kit_wires[w].env, use_some_memory, NULL);
        assert_int_equal(job_finish(&job, -1), 0);
        for (int i = 0; i < RANKS; i++) {
            sum += job.shared->found[i].bytes;
            if (job.shared->found[i].bytes > most) most = job.shared->found[i].bytes;
        }
        print_message("%s: %.2f MB per rank, %.2f at most; kolo_comm_memory says %.2f\n", kit_wires[w].name,
                      (double)sum / RANKS / 1e6, (double)most / 1e6, (double)job.shared->found[0].at_ms / 1e3);
        assert_true(most < 8000000 || sanitized);
        /* what it holds by itself; over shared memory queues are told whole, as they are mapped */
        assert_true(job.shared->found[0].at_ms * 1024 > job.shared->found[0].bytes / 2 || sanitized);
    }
}

/* ---- a rank leaves that another one still needs ---- */

/* Rank 0 waits for rank 1, which has left, and gives up; rank 2 waits for rank 0. */
static void leave_in_turn(proc_t *p)
{
    rank_t *r = &p->r;
    int32_t x = 0;
    works(r->comm);
    proc_meet(p, 0);
    if (r->rank == 0) EXPECT_IS(KOLO_ERR_REMOTE, kolo_recv(&x, 1, KOLO_INT32, 1, r->comm, NULL));
    if (r->rank == 2)
        EXPECT_ERROR(KOLO_ERR_REMOTE, kolo_recv(&x, 1, KOLO_INT32, 0, r->comm, NULL), "rank 1", "closed");
    EXPECT_OK(kolo_comm_destroy(r->comm));
    r->comm = NULL;
}

static void who_left_is_not_said_to_have_died(void **state)
{
    (void)state;
    job_t job;
    job_start(&job, 3, NULL, leave_in_turn, NULL);
    assert_int_equal(job_finish(&job, -1), 0);
}

/* ---- a buffer that is none ---- */

/* May this process copy from rank 0's? */
static bool may_copy(proc_t *p, void *word)
{
    struct {
        pid_t pid;
        void *at;
    } card = {getpid(), word};
    int32_t value = 0, may;
    EXPECT_OK(kolo_broadcast(&card, &card, sizeof card, KOLO_UINT8, 0, p->r.comm, NULL));
    struct iovec here = {&value, sizeof value}, there = {card.at, sizeof value};
    may = process_vm_readv(card.pid, &here, 1, &there, 1, 0) == (ssize_t)sizeof value;
    EXPECT_OK(kolo_all_reduce(&may, &may, 1, KOLO_INT32, KOLO_MIN, p->r.comm, NULL));
    return may;
}

/* The root of a broadcast gives memory that cannot be read: it does not touch it itself where others copy. */
static void give_no_memory(proc_t *p)
{
    static int32_t word = 7;
    size_t bytes = 4u << 20;
    char *data =
        mmap(NULL, bytes, p->r.rank == 0 ? PROT_NONE : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!may_copy(p, &word)) {
        snprintf(p->shared->found[p->r.rank].text, sizeof p->shared->found[0].text, "not tried");
        return;
    }
    kolo_status_t status = kolo_broadcast(data, data, bytes, KOLO_UINT8, 0, p->r.comm, NULL);
    EXPECT(status == KOLO_ERR_REMOTE || (p->r.rank == 0 && status == KOLO_ERR_SYSTEM));
    snprintf(p->shared->found[p->r.rank].text, sizeof p->shared->found[0].text, "%s", kolo_get_last_error(NULL));
    EXPECT_OK(kolo_comm_destroy(p->r.comm));
    p->r.comm = NULL;
}

static void a_buffer_that_is_no_memory_is_told_as_that(void **state)
{
    static const char *const env[] = {"KOLO_ALGO=broadcast=single_copy", NULL};
    (void)state;
    job_t job;
    job_start(&job, 2, env, give_no_memory, NULL);
    assert_int_equal(job_finish(&job, -1), 0);
    const char *told[2] = {job.shared->found[0].text, job.shared->found[1].text};
    bool tried = strcmp(told[0], "not tried") != 0;
    if (!tried) printf("not tried: processes may not copy from each other here\n");
    if (tried && !strstr(told[0], "of the buffer that rank 0") && !strstr(told[1], "of the buffer that rank 0"))
        fail_msg("neither says whose buffer it is: %s; %s", told[0], told[1]);
}

int main(void)
{
    limit_s(200);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_is_named_within_a_second),
        cmocka_unit_test(a_rank_that_just_exits_is_named),
        cmocka_unit_test(who_exits_after_finalize_is_not_lost),
        cmocka_unit_test(who_dies_before_finalize_is_named),
        cmocka_unit_test(who_left_is_not_said_to_have_died),
        cmocka_unit_test(who_has_left_keeps_nobody_waiting),
        cmocka_unit_test(what_was_sent_arrives_though_the_sender_has_left),
        cmocka_unit_test(a_buffer_that_is_no_memory_is_told_as_that),
        cmocka_unit_test(idle_ranks_use_no_core),
        cmocka_unit_test(a_rank_of_four_needs_less_than_8_MB),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
