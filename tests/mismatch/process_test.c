/* SPDX-License-Identifier: Apache-2.0
 *
 * The same with ranks as processes, on each wire: who waits for a rank that called something else is told, and a
 * rank whose own thread is far from the library still answers, so nobody is told anything about it.
 */
#include "kit/procs.h"
#include "mismatch/calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define RANKS 3
#ifdef KOLO_SANITIZED
#define SOON_MS 3000
#else
#define SOON_MS 1500
#endif

typedef struct {
    const char *name;
    call_t call[2];
    const char *words[2];
} case_t;
static const case_t cases[] = {
    {"small and large all_reduce", {sum_few, sum_many}, {"all_reduce 10 ", "all_reduce 300000"}},
    {"all_reduce and barrier", {sum_many, meet_all}, {"all_reduce", "barrier"}},
    {"two roots", {broadcast_many, broadcast_other}, {"root 0", "root 1"}},
    {"all_reduce and recv", {sum_few, recv_few}, {"all_reduce", "recv 10 int32 from rank 0"}},
    {"all_reduce and large send", {sum_few, send_many}, {"all_reduce", "send 300000 int32 to rank 0"}},
};

static void call_different_things(proc_t *p)
{
    const case_t *c = p->r.arg;
    finding_t *f = &p->shared->found[p->r.rank];
    int32_t *x = calloc(CALL_ELEMENTS, sizeof *x);
    proc_meet(p, 0);
    uint64_t start = now_ms();
    f->status = c->call[p->r.rank == RANKS - 1](p->r.comm, x);
    if (f->status == KOLO_OK) f->status = kolo_barrier(p->r.comm, NULL); /* a root may need nobody */
    f->at_ms = now_ms() - start;
    snprintf(f->text, sizeof f->text, "%s", kolo_get_last_error(p->r.comm));
    proc_meet(p, 1);
    EXPECT_OK(kolo_comm_destroy(p->r.comm));
    p->r.comm = NULL;
    free(x);
}

static void run_case(const case_t *c, const char *wire, const char *const *env)
{
    job_t job;
    uint64_t slowest = 0;
    bool told[2] = {false, false};
    job_start(&job, RANKS, env, call_different_things, (void *)(uintptr_t)c);
    bool fine = job_finish(&job, -1) == 0;
    for (int i = 0; i < RANKS; i++) {
        const finding_t *f = &job.shared->found[i];
        fine = fine && f->status == KOLO_ERR_MISMATCH && IN_TIME(f->at_ms < SOON_MS);
        if (f->at_ms > slowest) slowest = f->at_ms;
        for (int w = 0; w < 2; w++) told[w] = told[w] || strstr(f->text, c->words[w]);
    }
    print_message("%s, %s: told after %d ms\n", c->name, wire, (int)slowest);
    for (int i = 0; i < RANKS && !(fine && told[0] && told[1]); i++)
        print_message("%s, %s, rank %d after %d ms: %d, %s\n", c->name, wire, i, (int)job.shared->found[i].at_ms,
                      (int)job.shared->found[i].status, job.shared->found[i].text);
    munmap(job.shared, sizeof *job.shared);
    assert_true(fine && told[0] && told[1]);
}

static void processes_are_told(void **state)
{
    (void)state;
    for (size_t w = 0; w < LOCAL_WIRES; w++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
            run_case(&cases[i], kit_wires[w].name, kit_wires[w].env);
}

static void come_late(proc_t *p)
{
    int32_t *x = calloc(CALL_ELEMENTS, sizeof *x);
    if (p->r.rank == 1) nap_ms(1500);
    EXPECT_OK(sum_many(p->r.comm, x));
    if (p->r.rank == 0) nap_ms(1500);
    if (p->r.rank == 0) EXPECT_OK(kolo_send(x, 10, KOLO_INT32, 1, p->r.comm, NULL));
    if (p->r.rank == 1) EXPECT_OK(recv_few(p->r.comm, x));
    EXPECT_OK(kolo_barrier(p->r.comm, NULL)); /* in which rank 2 has been since */
    free(x);
}

static void a_late_process_is_nobodys_mistake(void **state)
{
    (void)state;
    for (size_t w = 0; w < LOCAL_WIRES; w++) {
        job_t job;
        job_start(&job, RANKS, kit_wires[w].env, come_late, NULL);
        assert_int_equal(job_finish(&job, -1), 0);
        munmap(job.shared, sizeof *job.shared);
    }
}

int main(void)
{
    limit_s(110);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_are_told),
        cmocka_unit_test(a_late_process_is_nobodys_mistake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
