/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages with tags (kolo/message.h): which receive takes which message, what ends a request, and what others do
 * meanwhile. Ranks are processes.
 */
#include "kit/procs.h"

#include <kolo/message.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS    4
#define LONG     (3u << 20)
#define MANY     3000
#define LIMIT_MS 300
#define TOLD_MS  (LIMIT_MS + 2000)

static const char *const plain[] = {NULL};
static const char *const hosts[] = {"KOLO_CMA_DISABLE=1", "HOSTS=2", NULL};
static const char *const sealed[] = {"KOLO_TCP_SECURITY=encrypt", NULL};

static void ranks_do(int n, const char *const *env, void (*fn)(proc_t *), int killed)
{
    job_t job;
    job_start(&job, n, env, fn, NULL);
    if (killed >= 0) {
        job_await(&job, 1, n);
        kill(job.pids[killed], SIGKILL);
        waitpid(job.pids[killed], NULL, 0);
    }
    int wrong = job_finish(&job, killed);
    munmap(job.shared, sizeof *job.shared);
    assert_int_equal(wrong, 0);
}

static kolo_status_t send8(proc_t *p, const void *buf, size_t n, int peer, uint64_t tag)
{
    return kolo_send_tag(buf, n, KOLO_UINT8, peer, tag, p->r.comm, NULL);
}

static kolo_request_t ask8(proc_t *p, void *buf, size_t n, int source, uint64_t tag, int timeout_ms)
{
    kolo_request_t request = NULL;
    kolo_call_opts_t opts = KOLO_CALL_OPTS_INITIALIZER;
    opts.timeout_ms = timeout_ms;
    EXPECT_OK(kolo_irecv_tag(buf, n, KOLO_UINT8, source, tag, p->r.comm, &opts, &request));
    return request;
}

static uint8_t *bytes_of(size_t n, int seed)
{
    uint8_t *x = malloc(n + 1);
    for (size_t i = 0; i < n; i++) x[i] = (uint8_t)(i * 7 + i / 251 + (size_t)seed);
    return x;
}

static bool are(const uint8_t *x, size_t n, int seed)
{
    uint8_t *want = bytes_of(n, seed);
    bool same = memcmp(x, want, n) == 0;
    free(want);
    return same;
}

static void end(proc_t *p)
{
    EXPECT_OK(kolo_comm_finalize(p->r.comm));
    EXPECT_OK(kolo_comm_destroy(p->r.comm));
    p->r.comm = NULL;
}

/* ---- order ---- */

/* Every rank sends first, to all and itself, short and long, and receives afterwards, by tags the other way round.
 */
static void exchange(proc_t *p)
{
    static const size_t sizes[] = {0, 1, 5000, 65536, 65537, LONG};
    kolo_request_t sends[RANKS * 6];
    uint8_t *out[6], *in = malloc(LONG);
    int n = 0;
    for (int s = 0; s < 6; s++) out[s] = bytes_of(sizes[s], s + p->r.rank);
    for (int r = 0; r < RANKS; r++)
        for (int s = 0; s < 6; s++)
            EXPECT_OK(
                kolo_isend_tag(out[s], sizes[s], KOLO_UINT8, r, (uint64_t)s << 40, p->r.comm, NULL, &sends[n++]));
    for (int s = 5; s >= 0; s--)
        for (int r = 0; r < RANKS; r++) {
            kolo_received_t got = {0};
            EXPECT_OK(kolo_recv_tag(in, LONG, KOLO_UINT8, r, (uint64_t)s << 40, p->r.comm, NULL, &got));
            EXPECT(got.source == r && got.tag == (uint64_t)s << 40 && got.bytes == sizes[s]);
            EXPECT(are(in, sizes[s], s + r));
        }
    for (int i = 0; i < n; i++) {
        EXPECT_OK(kolo_request_wait(sends[i], -1));
        EXPECT_OK(kolo_request_free(sends[i]));
    }
    EXPECT(works(p->r.comm));
    for (int s = 0; s < 6; s++) free(out[s]);
    free(in);
    end(p);
}

static void all_ranks_send_first_and_receive_in_another_order(void **state)
{
    (void)state;
    ranks_do(RANKS, plain, exchange, -1);
    ranks_do(RANKS, hosts, exchange, -1);
    ranks_do(RANKS, sealed, exchange, -1);
}

/* More than may be on its way unasked, before the first receive. */
static void send_many(proc_t *p)
{
    static uint32_t values[MANY][64];
    kolo_request_t *sends = calloc(MANY, sizeof *sends);
    for (uint32_t i = 0; i < MANY; i++) {
        values[i][0] = i;
        if (p->r.rank > 0)
            EXPECT_OK(kolo_isend_tag(values[i], sizeof values[i], KOLO_UINT8, 0, 5, p->r.comm, NULL, &sends[i]));
    }
    proc_meet(p, 0);
    uint32_t next[RANKS] = {0}, got[64];
    for (int i = 0; p->r.rank == 0 && i < MANY * (p->r.nranks - 1); i++) {
        kolo_received_t message = {0};
        EXPECT_OK(kolo_recv_tag(got, sizeof got, KOLO_UINT8, KOLO_ANY_SOURCE, 5, p->r.comm, NULL, &message));
        EXPECT(got[0] == next[message.source]++);
    }
    for (int i = 0; p->r.rank > 0 && i < MANY; i++) {
        EXPECT_OK(kolo_request_wait(sends[i], -1));
        EXPECT_OK(kolo_request_free(sends[i]));
    }
    size_t bytes = 0;
    EXPECT_OK(kolo_comm_memory(p->r.comm, &bytes));
    free(sends);
    end(p);
}

static void messages_of_a_source_keep_their_order_when_any_is_asked_for(void **state)
{
    (void)state;
    ranks_do(RANKS, plain, send_many, -1);
}

/* ---- what ends one request ---- */

static void time_out(proc_t *p)
{
    uint8_t x[8] = {0}, *data = bytes_of(LONG, 3), *in = malloc(LONG);
    const char *text;
    if (p->r.rank == 0) {
        EXPECT_OK(send8(p, x, 8, 1, 1)); /* another tag */
        kolo_request_t late = ask8(p, x, 8, 1, 99, LIMIT_MS), send;
        kolo_call_opts_t opts = KOLO_CALL_OPTS_INITIALIZER;
        opts.timeout_ms = LIMIT_MS;
        uint64_t start = now_ms();
        EXPECT_OK(kolo_isend_tag(data, LONG, KOLO_UINT8, 1, 2, p->r.comm, &opts, &send));
        EXPECT_ERROR(KOLO_ERR_TIMEOUT, kolo_request_wait(late, -1), "irecv_tag: ", "rank 0", "tag 99 from rank 1",
                     "no such message");
        EXPECT_ERROR(KOLO_ERR_TIMEOUT, kolo_request_wait(send, -1), "isend_tag: ", "tag 2 to rank 1",
                     "has called no receive");
        EXPECT(IN_TIME(now_ms() - start < TOLD_MS));
        EXPECT_IS(KOLO_ERR_TIMEOUT, kolo_request_error(send, &text));
        EXPECT(strstr(text, "time limit") != NULL);
        memset(data, 0, LONG); /* it is ours again */
        EXPECT_OK(kolo_request_free(late));
        EXPECT_OK(kolo_request_free(send));
        free(data);
        data = bytes_of(LONG, 4);
        proc_meet(p, 0);
        EXPECT_OK(send8(p, data, LONG, 1, 2)); /* this one is received, not the one that was withdrawn */
    } else {
        kolo_request_t late = ask8(p, x, 8, 0, 98, LIMIT_MS);
        EXPECT_ERROR(KOLO_ERR_TIMEOUT, kolo_request_wait(late, -1), "tag 98", "nobody asked for",
                     "tag 1 of rank 0 (8 bytes)");
        EXPECT_OK(kolo_request_free(late));
        proc_meet(p, 0);
        EXPECT_OK(kolo_recv_tag(in, LONG, KOLO_UINT8, 0, 2, p->r.comm, NULL, NULL));
        EXPECT(are(in, LONG, 4));
        EXPECT_OK(kolo_recv_tag(x, 8, KOLO_UINT8, 0, 1, p->r.comm, NULL, NULL));
    }
    EXPECT(works(p->r.comm));
    free(in);
    free(data);
    end(p);
}

static void a_time_limit_ends_one_request_and_nothing_else(void **state)
{
    (void)state;
    ranks_do(2, plain, time_out, -1);
}

static void cancel_some(proc_t *p)
{
    uint8_t *data = bytes_of(LONG, 1), *in = malloc(LONG);
    kolo_request_t r[4], send;
    if (p->r.rank == 0) {
        for (int i = 0; i < 4; i++) r[i] = ask8(p, in, LONG, i % 2 ? 1 : KOLO_ANY_SOURCE, 7, 0);
        int index = 0, complete = 1;
        EXPECT_IS(KOLO_IN_PROGRESS, kolo_request_wait_any(r, 4, 20, &index));
        EXPECT_IS(KOLO_IN_PROGRESS, kolo_request_wait(r[0], 0));
        EXPECT_OK(kolo_request_test(r[0], &complete));
        EXPECT(!complete);
        EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_comm_finalize(p->r.comm), "4 requests", "kolo_request_cancel()");
        for (int i = 0; i < 3; i++) EXPECT_OK(kolo_request_cancel(r[i]));
        EXPECT_OK(kolo_request_wait_any(r, 4, -1, &index));
        EXPECT(index == 0);
        EXPECT_ERROR(KOLO_ERR_ABORTED, kolo_request_wait(r[2], -1), "tag 7", "cancelled");
        proc_meet(p, 0);
        EXPECT_OK(kolo_request_wait(r[3], -1)); /* the others took nothing */
        EXPECT(are(in, LONG, 1));
        kolo_received_t got;
        EXPECT_OK(kolo_request_get_received(r[3], &got));
        EXPECT(got.source == 1 && got.bytes == LONG);
        for (int i = 0; i < 4; i++) EXPECT_OK(kolo_request_free(r[i]));
        EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_request_wait(r[0], -1), "was freed");
        proc_meet(p, 1);
        EXPECT_ERROR(KOLO_ERR_MISMATCH, kolo_recv_tag(in, 10, KOLO_UINT8, 1, 8, p->r.comm, NULL, NULL),
                     "3145728 bytes", "room for 10");
    } else {
        EXPECT_OK(kolo_isend_tag(data, LONG, KOLO_UINT8, 0, 7000, p->r.comm, NULL, &send)); /* never asked for */
        EXPECT_OK(kolo_request_cancel(send));
        EXPECT_OK(kolo_request_free(send));
        proc_meet(p, 0);
        EXPECT_OK(send8(p, data, LONG, 0, 7));
        proc_meet(p, 1);
        EXPECT_ERROR(KOLO_ERR_MISMATCH, send8(p, data, LONG, 0, 8), "room for 10", "tag 8");
    }
    EXPECT(works(p->r.comm));
    free(in);
    free(data);
    end(p);
}

static void cancelled_requests_take_nothing_and_too_short_ones_are_told(void **state)
{
    (void)state;
    ranks_do(2, plain, cancel_some, -1);
}

/* ---- what ends all ---- */

static void lose_one(proc_t *p)
{
    uint8_t x[8] = {0}, *data = bytes_of(LONG, 1);
    kolo_request_t r[3];
    int index;
    if (p->r.rank == 2) EXPECT_OK(send8(p, x, 8, 0, 1)); /* connected */
    if (p->r.rank == 0) EXPECT_OK(kolo_recv_tag(x, 8, KOLO_UINT8, 2, 1, p->r.comm, NULL, NULL));
    r[0] = ask8(p, x, 8, 2, 3, 0);
    r[1] = ask8(p, x, 8, KOLO_ANY_SOURCE, 4, 0);
    EXPECT_OK(kolo_isend_tag(data, LONG, KOLO_UINT8, 2, 5, p->r.comm, NULL, &r[2]));
    proc_meet(p, 1);
    uint64_t start = now_ms();
    EXPECT_OK(kolo_request_wait_any(r, 3, -1, &index));
    for (int i = 0; i < 3; i++) EXPECT_ERROR(KOLO_ERR_REMOTE, kolo_request_wait(r[i], -1), "rank 2");
    EXPECT(IN_TIME(now_ms() - start < 2000));
    EXPECT_ERROR(KOLO_ERR_REMOTE, send8(p, x, 8, 1, 3), "rank 2");
    EXPECT_OK(kolo_comm_destroy(p->r.comm));
    p->r.comm = NULL;
    for (int i = 0; i < 3; i++) EXPECT_OK(kolo_request_free(r[i])); /* they outlive it */
    free(data);
}

static void a_killed_rank_ends_all_requests_by_name(void **state)
{
    (void)state;
    ranks_do(RANKS, plain, lose_one, 2);
    ranks_do(RANKS, hosts, lose_one, 2);
}

static void *abort_soon(void *comm)
{
    nap_ms(100);
    kolo_comm_abort(comm);
    return NULL;
}

static void abort_while_waiting(proc_t *p)
{
    pthread_t thread;
    uint8_t x[8];
    kolo_request_t r = ask8(p, x, 8, KOLO_ANY_SOURCE, 4, 0);
    proc_meet(p, 0);
    pthread_create(&thread, NULL, abort_soon, p->r.comm);
    kolo_status_t status = kolo_request_wait(r, -1);
    EXPECT(status == KOLO_ERR_ABORTED || status == KOLO_ERR_REMOTE);
    pthread_join(thread, NULL);
    EXPECT_OK(kolo_request_free(r));
    p->r.comm = NULL;
}

static void an_abort_on_another_thread_ends_the_wait(void **state)
{
    (void)state;
    ranks_do(2, plain, abort_while_waiting, -1);
}

/* ---- ranks that leave ---- */

static void leave_at_once(proc_t *p)
{
    uint8_t x[8] = {0}, *data = bytes_of(60000, 1), *in = malloc(60000);
    if (p->r.rank == 0) {
        for (int i = 0; i < 10; i++) EXPECT_OK(send8(p, data, 60000, 1, 1));
        EXPECT_OK(kolo_comm_leave(p->r.comm));
        proc_meet(p, 0);
    } else {
        proc_meet(p, 0);
        for (int i = 0; i < 10; i++) {
            EXPECT_OK(kolo_recv_tag(in, 60000, KOLO_UINT8, 0, 1, p->r.comm, NULL, NULL));
            EXPECT(are(in, 60000, 1));
        }
        EXPECT_ERROR(KOLO_ERR_REMOTE, kolo_recv_tag(x, 8, KOLO_UINT8, 0, 1, p->r.comm, NULL, NULL), "rank 0");
        EXPECT_OK(kolo_comm_leave(p->r.comm));
    }
    EXPECT_OK(kolo_comm_destroy(p->r.comm));
    p->r.comm = NULL;
    free(in);
    free(data);
}

static void what_a_leaver_has_sent_is_received_and_then_it_is_named(void **state)
{
    (void)state;
    ranks_do(2, plain, leave_at_once, -1);
}

/* Who waits for anybody's message is told when nobody is left that could send it, and not before: ranks 1 and 2
 * leave at once, rank 3 sends one and leaves last. */
static void leave_one_after_the_other(proc_t *p)
{
    uint8_t x[8] = {0};
    kolo_received_t got;
    if (p->r.rank == 1) EXPECT_OK(kolo_comm_leave(p->r.comm));
    if (p->r.rank == 2) EXPECT_OK(kolo_comm_leave(p->r.comm));
    proc_meet(p, 0);
    if (p->r.rank == 3) {
        EXPECT_OK(send8(p, "from 3", 7, 0, 5));
        EXPECT_OK(kolo_comm_leave(p->r.comm));
    }
    if (p->r.rank == 0) {
        EXPECT_OK(kolo_recv_tag(x, 8, KOLO_UINT8, KOLO_ANY_SOURCE, 5, p->r.comm, NULL, &got));
        EXPECT(got.source == 3 && strcmp((char *)x, "from 3") == 0);
        uint64_t began = now_ms();
        EXPECT_ERROR(KOLO_ERR_REMOTE, kolo_recv_tag(x, 8, KOLO_UINT8, KOLO_ANY_SOURCE, 5, p->r.comm, NULL, NULL),
                     "tag 5 from any rank", "all 3 other ranks have left or are lost");
        EXPECT(IN_TIME(now_ms() - began < 10000));
        EXPECT_OK(kolo_comm_leave(p->r.comm));
    }
    EXPECT_OK(kolo_comm_destroy(p->r.comm));
    p->r.comm = NULL;
}

static void a_receive_from_any_rank_ends_when_all_others_have_left(void **state)
{
    (void)state;
    ranks_do(4, plain, leave_one_after_the_other, -1);
    ranks_do(4, hosts, leave_one_after_the_other, -1);
}

/* ---- threads ---- */

typedef struct {
    proc_t *p;
    int number;
} worker_t;

static void *work(void *arg)
{
    worker_t *w = arg;
    proc_t *p = w->p;
    int peer = 1 - p->r.rank;
    for (int i = 0; i < 100; i++) {
        size_t n = i % 10 == 9 ? 100000 : 1000;
        uint8_t *out = bytes_of(n, i + w->number), *in = malloc(n);
        kolo_request_t send, both[2] = {ask8(p, in, n, peer, (uint64_t)w->number, 0), NULL};
        EXPECT_OK(kolo_isend_tag(out, n, KOLO_UINT8, peer, (uint64_t)w->number, p->r.comm, NULL, &send));
        both[1] = send;
        EXPECT_OK(kolo_request_wait(both[0], -1));
        EXPECT_OK(kolo_request_wait(both[1], -1));
        EXPECT(are(in, n, i + w->number));
        EXPECT_OK(kolo_request_free(both[0]));
        EXPECT_OK(kolo_request_free(both[1]));
        free(out);
        free(in);
    }
    return NULL;
}

static void work_on_threads(proc_t *p)
{
    pthread_t threads[4];
    worker_t workers[4];
    for (int i = 0; i < 4; i++) {
        workers[i] = (worker_t){p, i};
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    for (int i = 0; i < 20; i++) EXPECT(works(p->r.comm)); /* collectives go on beside them */
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    end(p);
}

static void several_threads_send_and_receive_beside_collectives(void **state)
{
    (void)state;
    ranks_do(2, plain, work_on_threads, -1);
}

/* ---- arguments ---- */

static void go_wrong(proc_t *p)
{
    kolo_comm_t c = p->r.comm;
    kolo_request_t r;
    int index = 7;
    uint8_t x[8] = {0};
    kolo_call_opts_t bad = {0, 0}, negative = {sizeof bad, -5};
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_isend_tag(x, 8, KOLO_UINT8, 9, 1, c, NULL, &r), "isend_tag",
                 "9 is not");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_isend_tag(x, 8, KOLO_UINT8, -1, 1, c, NULL, &r), "-1 is not");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_irecv_tag(x, 8, KOLO_UINT8, -2, 1, c, NULL, &r),
                 "KOLO_ANY_SOURCE");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_irecv_tag(NULL, 8, KOLO_UINT8, 0, 1, c, NULL, &r), "NULL");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_irecv_tag(x, 8, KOLO_UINT8, 0, 1, c, NULL, NULL),
                 "request is NULL");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_irecv_tag(x, 8, (kolo_type_t)99, 0, 1, c, NULL, &r), "99");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_irecv_tag(x, 8, KOLO_UINT8, 0, 1, c, &bad, &r), "INITIALIZER");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_irecv_tag(x, 8, KOLO_UINT8, 0, 1, c, &negative, &r), "timeout_ms");
    EXPECT_ERROR(KOLO_ERR_INVALID_ARGUMENT, kolo_irecv_tag(x, 8, KOLO_UINT8, 0, 1, NULL, NULL, &r), "irecv_tag");
    EXPECT_OK(kolo_request_wait_any(NULL, 0, 0, &index));
    EXPECT(index == -1);
    EXPECT_OK(kolo_request_free(NULL));
    end(p);
}

static void wrong_arguments_are_told(void **state)
{
    (void)state;
    ranks_do(1, plain, go_wrong, -1);
}

/* ---- a program by chance ---- */

#define STEPS 400

static uint32_t chance(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Each rank sends to each STEPS messages, of tags and lengths by chance that the receiver knows, too; receives of
 * each (source, tag) are in order, those of different ones in an order by chance. */
typedef struct {
    uint64_t tag;
    size_t bytes;
    int seed;
} planned_t;

static planned_t plan_of(int from, int to, int i)
{
    uint32_t seed = (uint32_t)(from * 131 + to * 17 + i * 7919 + 1);
    chance(&seed);
    uint32_t size = chance(&seed) % 20;
    return (planned_t){chance(&seed) % 3,
                       size == 0  ? 200000
                       : size < 3 ? 70000
                                  : size * 100,
                       (int)(chance(&seed) % 200)};
}

static void by_chance(proc_t *p)
{
    int n = p->r.nranks, left = 0, index;
    uint32_t seed = (uint32_t)p->r.rank + 99;
    kolo_request_t *sends = calloc((size_t)n * STEPS, sizeof *sends);
    uint8_t **out = calloc((size_t)n * STEPS, sizeof *out), *in = malloc(200000);
    for (int i = 0; i < STEPS; i++)
        for (int to = 0; to < n; to++) {
            planned_t m = plan_of(p->r.rank, to, i);
            out[left] = bytes_of(m.bytes, m.seed);
            EXPECT_OK(kolo_isend_tag(out[left], m.bytes, KOLO_UINT8, to, m.tag, p->r.comm, NULL, &sends[left]));
            left++;
        }
    int next[RANKS][3] = {{0}};
    for (int got = 0; got < n * STEPS;) {
        int from = (int)(chance(&seed) % (uint32_t)n);
        uint64_t tag = chance(&seed) % 3;
        int *at = &next[from][tag];
        while (*at < STEPS && plan_of(from, p->r.rank, *at).tag != tag) (*at)++;
        if (*at == STEPS) continue;
        planned_t m = plan_of(from, p->r.rank, (*at)++);
        kolo_received_t what = {0};
        if (chance(&seed) % 4 == 0) { /* a receive that takes nothing does no harm */
            kolo_request_t none = ask8(p, in, 200000, from, 50, 0);
            EXPECT_OK(kolo_request_free(none));
        }
        EXPECT_OK(kolo_recv_tag(in, 200000, KOLO_UINT8, from, tag, p->r.comm, NULL, &what));
        if (!EXPECT(what.bytes == m.bytes && are(in, m.bytes, m.seed))) break;
        got++;
    }
    while (left > 0) {
        EXPECT_OK(kolo_request_wait_any(sends, n * STEPS, -1, &index));
        if (index < 0) break;
        EXPECT_OK(kolo_request_wait(sends[index], 0));
        EXPECT_OK(kolo_request_free(sends[index]));
        sends[index] = NULL;
        left--;
    }
    for (int i = 0; i < n * STEPS; i++) free(out[i]);
    free(out);
    free(sends);
    free(in);
    end(p);
}

static void programs_by_chance_receive_what_was_sent(void **state)
{
    (void)state;
    ranks_do(3, plain, by_chance, -1);
    ranks_do(3, sealed, by_chance, -1);
}

/* Each waits for the other's message, which comes later. */
static void wait_idly(proc_t *p)
{
    uint8_t got = 0;
    kolo_request_t request = ask8(p, &got, 1, !p->r.rank, 5, 0);
    proc_meet(p, 0);
    clock_t used = clock();
    nap_ms(500);
    used = clock() - used;
    if (!EXPECT(used < CLOCKS_PER_SEC / 10)) printf("%.3f s of 0.5 s\n", (double)used / CLOCKS_PER_SEC);
    EXPECT_OK(send8(p, &got, 1, !p->r.rank, 5));
    EXPECT_OK(kolo_request_wait(request, -1));
    EXPECT_OK(kolo_request_free(request));
    end(p);
}

static void who_waits_for_a_message_takes_no_core(void **state)
{
    (void)state;
    ranks_do(2, plain, wait_idly, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_send_first_and_receive_in_another_order),
        cmocka_unit_test(messages_of_a_source_keep_their_order_when_any_is_asked_for),
        cmocka_unit_test(a_time_limit_ends_one_request_and_nothing_else),
        cmocka_unit_test(cancelled_requests_take_nothing_and_too_short_ones_are_told),
        cmocka_unit_test(a_killed_rank_ends_all_requests_by_name),
        cmocka_unit_test(an_abort_on_another_thread_ends_the_wait),
        cmocka_unit_test(what_a_leaver_has_sent_is_received_and_then_it_is_named),
        cmocka_unit_test(a_receive_from_any_rank_ends_when_all_others_have_left),
        cmocka_unit_test(several_threads_send_and_receive_beside_collectives),
        cmocka_unit_test(who_waits_for_a_message_takes_no_core),
        cmocka_unit_test(wrong_arguments_are_told),
        cmocka_unit_test(programs_by_chance_receive_what_was_sent),
    };
    limit_s(200);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
