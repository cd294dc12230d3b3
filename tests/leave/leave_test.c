/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that leave communicators without meeting each other: in an order that differs by rank, while others are
 * late, and while others are still in operations that the leaver has completed. Ranks are processes, on each wire
 * and on two hosts.
 */
#include "kit/procs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RANKS   4
#define COMMS   5
#define LATE_MS 400
#define COUNT   3000
#define TRIES   20
#ifdef KOLO_SANITIZED
#define SOON_MS 600
#define TOLD_MS 6000
#else
#define SOON_MS 100
#define TOLD_MS 2000
#endif

/* Notes in `told` which ranks found a mismatch. */
static void on_wire(size_t wire, void (*fn)(proc_t *), void *arg, bool *told)
{
    job_t job;
    job_start(&job, RANKS, kit_wires[wire].env, fn, arg);
    int wrong = job_finish(&job, -1);
    for (int r = 0; r < RANKS; r++) {
        const finding_t *f = &job.shared->found[r];
        if (wrong)
            print_message("%s, rank %d: %d after %d ms: %s\n", kit_wires[wire].name, r, (int)f->status,
                          (int)f->at_ms, f->text);
        if (told) told[r] = told[r] || f->status == KOLO_ERR_MISMATCH;
    }
    munmap(job.shared, sizeof *job.shared);
    assert_int_equal(wrong, 0);
}

static void on_each_wire(void (*fn)(proc_t *), void *arg)
{
    for (size_t i = 0; i < ALL_WIRES; i++) on_wire(i, fn, arg, NULL);
}

static void leave(kolo_comm_t *comm)
{
    uint64_t start = now_ms();
    EXPECT_OK(kolo_comm_leave(*comm));
    EXPECT_OK(kolo_comm_destroy(*comm));
    EXPECT(IN_TIME(now_ms() - start < SOON_MS));
    *comm = NULL;
}

static kolo_status_t sum(kolo_comm_t comm, float *x)
{
    return kolo_all_reduce(x, x + COUNT, COUNT, KOLO_FLOAT32, KOLO_SUM, comm, NULL);
}

/* ---- orders ---- */

static void leave_in_turn(proc_t *p)
{
    kolo_comm_t comms[COMMS];
    float x[2 * COUNT] = {0};
    EXPECT(works(p->r.comm));
    proc_meet(p, 1);
    census_t before = census_take();
    for (int i = 0; i < COMMS; i++) EXPECT_OK(kolo_comm_dup(p->r.comm, &comms[i], NULL));
    for (int i = 0; i < COMMS; i++) EXPECT_OK(sum(comms[i], x));
    for (int i = 0; i < COMMS; i++) {
        int which = p->r.rank % 2 ? (i + p->r.rank) % COMMS : (2 * COMMS - 1 - i - p->r.rank) % COMMS;
        if (p->r.rank == i % RANKS) nap_ms(LATE_MS / 4); /* each is late once */
        leave(&comms[which]);
    }
    EXPECT(works(p->r.comm));
    proc_meet(p, 0);
    EXPECT(census_no_more_than(before)); /* the last who leaves lets go of all that lingered */
}

static void the_order_of_leaving_may_differ_by_rank(void **state)
{
    (void)state;
    on_each_wire(leave_in_turn, NULL);
}

/* ---- late ranks ---- */

/* The root, and ranks in between, are through and gone when the last one comes. */
static void leave_before_the_last_comes(proc_t *p)
{
    float *x = calloc(2 * COUNT, sizeof *x), *y = calloc(2 * COUNT, sizeof *y);
    bool last = p->r.rank == RANKS - 1;
    for (int i = 0; i < COUNT; i++) x[i] = p->r.rank == 0 ? (float)i : -1;
    EXPECT_OK(kolo_broadcast(x + COUNT, x + COUNT, COUNT, KOLO_FLOAT32, 0, p->r.comm, NULL)); /* it connects */
    EXPECT_OK(kolo_scatter(x + COUNT, y, 16, KOLO_FLOAT32, 0, p->r.comm, NULL));
    EXPECT_OK(sum(p->r.comm, y));
    proc_meet(p, 0);
    if (last) nap_ms(LATE_MS);
    EXPECT_OK(kolo_broadcast(x, x, COUNT, KOLO_FLOAT32, 0, p->r.comm, NULL));
    EXPECT_OK(kolo_scatter(x, y, 16, KOLO_FLOAT32, 0, p->r.comm, NULL));
    int wrong = 0;
    for (int i = 0; i < COUNT; i++) wrong += x[i] != (float)i;
    for (int i = 0; i < 16; i++) wrong += y[i] != (float)(16 * p->r.rank + i);
    EXPECT(wrong == 0);
    leave(&p->r.comm);
    free(x);
    free(y); /* and the process may end */
}

static void a_late_rank_finds_what_leavers_have_sent(void **state)
{
    (void)state;
    on_each_wire(leave_before_the_last_comes, NULL);
}

/* ---- ranks that have called something else ---- */

typedef enum { OTHER_ROOT, ONE_MORE, FINALIZE, RECEIVE, FEWER, WAYS } way_t;

static bool leaves(way_t way)
{
    return way == OTHER_ROOT || way == FEWER;
}

static kolo_status_t go_wrong(way_t way, kolo_comm_t comm, float *x)
{
    switch (way) {
    case OTHER_ROOT:
    case FEWER:
        return kolo_comm_leave(comm);
    case ONE_MORE:
        return sum(comm, x);
    case FINALIZE:
        return kolo_comm_finalize(comm);
    default:
        return kolo_recv(x, COUNT, KOLO_FLOAT32, 0, comm, NULL);
    }
}

static void differ_from_a_leaver(proc_t *p)
{
    way_t way = *(const way_t *)p->r.arg;
    finding_t *f = &p->shared->found[p->r.rank];
    float x[2 * COUNT] = {0};
    for (int i = 0; i < RANKS; i++) EXPECT_OK(kolo_broadcast(x, x, 8, KOLO_FLOAT32, i, p->r.comm, NULL));
    if (way == RECEIVE && p->r.rank == 0)
        for (int i = 1; i < RANKS; i++) EXPECT_OK(kolo_send(x, COUNT, KOLO_FLOAT32, i, p->r.comm, NULL));
    if (way == RECEIVE && p->r.rank != 0) EXPECT_OK(kolo_recv(x, COUNT, KOLO_FLOAT32, 0, p->r.comm, NULL));
    EXPECT_OK(sum(p->r.comm, x));
    /* It fits into the queues, and nobody waits: rank 0 names another root, or makes a call that the others do not.
     */
    if (way == OTHER_ROOT || (way == FEWER && p->r.rank == 0))
        EXPECT_OK(kolo_broadcast(x, x, 8, KOLO_FLOAT32, way == FEWER ? 0 : p->r.rank, p->r.comm, NULL));
    proc_meet(p, 0);
    if (p->r.rank == 0) leave(&p->r.comm);
    proc_meet(p, 1);
    if (p->r.rank == 0) {
        proc_meet(p, 2); /* it lives on, or has ended: */
        return;
    }
    if (p->r.rank % 2) proc_meet(p, 2);
    uint64_t start = now_ms();
    f->status = go_wrong(way, p->r.comm, x);
    f->at_ms = now_ms() - start;
    snprintf(f->text, sizeof f->text, "%s", kolo_get_last_error(p->r.comm));
    if (p->r.rank % 2 == 0) proc_meet(p, 2);
    EXPECT_OK(kolo_comm_destroy(p->r.comm));
    p->r.comm = NULL;
    if (leaves(way) && f->status == KOLO_OK) return; /* word of rank 0 had not come yet, and none is waited for */
    EXPECT(f->status == KOLO_ERR_MISMATCH && IN_TIME(f->at_ms < TOLD_MS));
    /* With a root for each, all differ, and each of them may be the first of whose leaving one has heard. */
    EXPECT(strstr(f->text, way == OTHER_ROOT ? "that of rank " : "rank 0") != NULL);
    if (way == ONE_MORE || way == FINALIZE) EXPECT(strstr(f->text, "comm_leave") != NULL);
}

static void who_differs_from_a_leaver_is_told(void **state)
{
    (void)state;
    for (way_t way = 0; way < WAYS; way++)
        for (size_t i = way % 2; i < ALL_WIRES; i += 2) {
            bool told[RANKS] = {true};
            for (int k = 0; k < TRIES && !(told[1] && told[2] && told[3]); k++)
                on_wire(i, differ_from_a_leaver, &way, told);
            assert_true(told[1] && told[2] && told[3]);
        }
}

/* ---- what goes on ---- */

static void go_on_without_the_first(proc_t *p)
{
    kolo_comm_t comm = p->r.comm;
    float x[2 * COUNT] = {0};
    EXPECT_OK(sum(comm, x));
    if (p->r.rank == 0) leave(&p->r.comm);
    proc_meet(p, 0);
    int next = p->r.rank % (RANKS - 1) + 1, previous = (p->r.rank + RANKS - 3) % (RANKS - 1) + 1;
    for (int i = 0; i < 50 && p->r.rank; i++) {
        x[0] = (float)p->r.rank;
        EXPECT_OK(kolo_group_start());
        EXPECT_OK(kolo_send(x, COUNT, KOLO_FLOAT32, next, comm, NULL));
        EXPECT_OK(kolo_recv(x + COUNT, COUNT, KOLO_FLOAT32, previous, comm, NULL));
        EXPECT_OK(kolo_group_end());
        EXPECT(x[COUNT] == (float)previous);
    }
    if (p->r.rank) leave(&p->r.comm);
    proc_meet(p, 1);
}

static void messages_between_the_others_go_on(void **state)
{
    (void)state;
    on_each_wire(go_on_without_the_first, NULL);
}

/* ---- synchronize ---- */

static void synchronize(proc_t *p)
{
    kolo_stream_t stream;
    kolo_pending_t request = NULL;
    float x[2 * COUNT] = {0}, y = (float)p->r.rank;
    int complete = 0, peer = p->r.rank ^ 1;
    EXPECT_OK(kolo_stream_create(&stream));
    x[0] = 1;
    for (int i = 0; i < 20; i++)
        EXPECT_OK(kolo_all_reduce(x, x + COUNT, COUNT, KOLO_FLOAT32, KOLO_SUM, p->r.comm, stream));
    if (p->r.rank % 2)
        EXPECT_OK(kolo_irecv(&y, 1, KOLO_FLOAT32, peer, p->r.comm, &request));
    else
        EXPECT_OK(kolo_isend(&y, 1, KOLO_FLOAT32, peer, p->r.comm, &request));
    if (p->r.rank == 2) nap_ms(50);
    EXPECT_OK(kolo_comm_synchronize(p->r.comm));
    EXPECT(x[COUNT] == RANKS && y == (float)(p->r.rank & ~1));
    EXPECT_OK(kolo_pending_test(request, &complete));
    EXPECT(complete);
    EXPECT_OK(kolo_pending_wait(request));
    EXPECT(works(p->r.comm));
    EXPECT_OK(kolo_stream_destroy(stream));
    EXPECT_OK(kolo_group_start());
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_comm_synchronize(p->r.comm), "comm_synchronize", "group");
    EXPECT_OK(kolo_group_end());
    leave(&p->r.comm);
}

static void synchronize_waits_for_all_that_was_called(void **state)
{
    (void)state;
    on_each_wire(synchronize, NULL);
}

/* ---- what is refused ---- */

static void leave_with_a_window(proc_t *p)
{
    kolo_window_t window;
    float x[4];
    EXPECT_OK(kolo_window_register(p->r.comm, x, sizeof x, &window));
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_comm_leave(p->r.comm), "comm_leave", "kolo_window_deregister()");
    EXPECT_OK(kolo_window_deregister(p->r.comm, window));
    EXPECT_OK(kolo_comm_leave(p->r.comm));
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_barrier(p->r.comm, NULL), "has left");
    EXPECT_ERROR(KOLO_ERR_INVALID_USAGE, kolo_comm_leave(p->r.comm), "comm_leave", "has left");
    EXPECT_OK(kolo_comm_destroy(p->r.comm));
    p->r.comm = NULL;
}

static void windows_are_deregistered_first(void **state)
{
    (void)state;
    on_each_wire(leave_with_a_window, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_order_of_leaving_may_differ_by_rank),
        cmocka_unit_test(a_late_rank_finds_what_leavers_have_sent),
        cmocka_unit_test(who_differs_from_a_leaver_is_told),
        cmocka_unit_test(messages_between_the_others_go_on),
        cmocka_unit_test(synchronize_waits_for_all_that_was_called),
        cmocka_unit_test(windows_are_deregistered_first),
    };
    limit_s(200);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
