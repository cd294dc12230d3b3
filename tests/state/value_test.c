/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of a kolo_state, whose size changes, on ranks as processes: what is lost with a rank is what nobody has
 * committed, and rank 0's value is everybody's at the start.
 */
#include "kit/procs.h"

#include <kolo/state.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define STEPS  40
#define KILLED 6 /* the step in which a rank is */

typedef struct {
    proc_t *p;
    int64_t step;
    int calls;
    bool is_victim;
} writer_t;

#define GROWS 700 /* bytes a step */

static void fill_text(char *text, int64_t step)
{
    for (int64_t i = 0; i < step * GROWS; i++) text[i] = (char)('a' + (i * 31 + step) % 26);
}

static bool is_text_of(kolo_state_t state, int64_t step)
{
    static char want[STEPS * GROWS];
    const void *text;
    size_t bytes;
    fill_text(want, step);
    return EXPECT_OK(kolo_state_get(state, "seen", &text, &bytes)) && bytes == (size_t)(step * GROWS) &&
           (bytes == 0 ? text == NULL : memcmp(text, want, bytes) == 0);
}

/* In each step the value is put twice: what was not committed is not there after a change. */
static kolo_status_t write_down(kolo_state_t state, void *arg)
{
    static char text[STEPS * GROWS];
    writer_t *t = arg;
    kolo_comm_t comm;
    kolo_status_t status = kolo_state_comm(state, &comm);
    EXPECT(is_text_of(state, t->step));
    t->calls++;
    while (status == KOLO_OK && t->step < STEPS) {
        EXPECT_OK(kolo_state_put(state, "seen", "nonsense", 8));
        if (t->is_victim && t->step == KILLED) proc_meet(t->p, 0); /* the parent kills it */
        status = kolo_barrier(comm, NULL);
        if (status != KOLO_OK) break;
        t->step++;
        fill_text(text, t->step);
        EXPECT_OK(kolo_state_put(state, "seen", text, (size_t)(t->step * GROWS)));
        status = kolo_state_commit(state);
    }
    return status;
}

static void keep_a_value(proc_t *p)
{
    writer_t t = {.p = p, .is_victim = p->r.rank == 0};
    kolo_state_config_t config = KOLO_STATE_CONFIG_INITIALIZER;
    kolo_state_t state;
    const void *data;
    size_t bytes;
    config.comm = p->r.comm;
    p->r.comm = NULL;
    if (!EXPECT_OK(kolo_state_create(&state, &config))) return;
    EXPECT_OK(kolo_state_put(state, "seen", "xxxx", (size_t)p->r.rank)); /* that of rank 0 counts: nothing */
    EXPECT_OK(kolo_state_register(state, "step", &t.step, sizeof t.step));
    EXPECT_OK(kolo_state_put(state, "note", "kept", 4));
    EXPECT_OK(kolo_state_run(state, write_down, &t));
    EXPECT(t.calls == 2);
    EXPECT(is_text_of(state, STEPS));
    EXPECT_OK(kolo_state_get(state, "note", &data, &bytes));
    EXPECT(bytes == 4 && memcmp(data, "kept", 4) == 0);
    EXPECT_OK(kolo_state_destroy(state));
}

static void values_may_change_their_size(void **state)
{
    job_t job;
    int status;
    (void)state;
    job_start(&job, 4, NULL, keep_a_value, NULL);
    job_await(&job, 0, 1);
    kill(job.pids[0], SIGKILL);
    for (int r = 0; r < 4; r++) {
        if (waitpid(job.pids[r], &status, 0) != job.pids[r]) abort();
        assert_true(r == 0 || status == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(values_may_change_their_size)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
