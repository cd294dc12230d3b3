/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank fails by itself, alone, aborts and is gone. Nobody else was in that call, so nobody else has an error. One
 * that has never met it waits for it next, and the others for that one: all of them are told, whatever the wire.
 */
#include "kit/procs.h"

#include <string.h>

#define RANKS  6
#define WAITER 2
#define GONE   5 /* no step of a split's exchange among 6 goes from the one to the other */
#ifdef KOLO_SANITIZED
#define LIMIT_MS 30000
#else
#define LIMIT_MS 10000
#endif

typedef struct {
    const char *env[5];
    bool sends; /* the one that waits */
} case_t;

static void use(proc_t *p)
{
    const case_t *c = p->r.arg;
    kolo_comm_t comm = p->r.comm, child = NULL;
    int32_t x = 0;
    int rank = p->r.rank;
    kolo_status_t status = kolo_comm_split(comm, rank == GONE, 0, &child, NULL);
    if (rank == GONE) {
        EXPECT(status != KOLO_OK && strstr(kolo_get_last_error(NULL), "fail point") != NULL);
    } else if (EXPECT_OK(status)) {
        uint64_t began = now_ms();
        status = rank == WAITER && c->sends
                     ? kolo_send(&x, 1, KOLO_INT32, GONE, comm, NULL)
                     : kolo_recv(&x, 1, KOLO_INT32, rank == WAITER ? GONE : WAITER, comm, NULL);
        EXPECT_IS(KOLO_ERR_REMOTE, status);
        EXPECT(strstr(kolo_get_last_error(comm), "rank 5") != NULL);
        EXPECT(now_ms() - began < LIMIT_MS);
    }
    if (child) EXPECT_OK(kolo_comm_abort(child));
    EXPECT_OK(kolo_comm_abort(comm));
    p->r.comm = NULL;
}

#define FAILS "@5:KOLO_FAIL_POINT=comm.split.members:1:error"

static void who_was_never_met_and_is_gone_is_told(void **state)
{
    (void)state;
    for (int sends = 0; sends < 2; sends++) {
        case_t cases[] = {
            {{FAILS}, sends},
            {{FAILS, "KOLO_LOCAL_DISABLE=1", "KOLO_CMA_DISABLE=1"}, sends},
            {{FAILS, "KOLO_LOCAL_DISABLE=1", "KOLO_CMA_DISABLE=1", "KOLO_SHM_DISABLE=1"}, sends},
        };
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            job_t job;
            job_start(&job, RANKS, cases[i].env, use, &cases[i]);
            assert_int_equal(job_finish(&job, -1), 0);
        }
    }
}

int main(void)
{
    limit_s(100);
    const struct CMUnitTest tests[] = {cmocka_unit_test(who_was_never_met_and_is_gone_is_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
