/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks are processes and die at each step of an agreement, one or two of them. All that live get a result, and all
 * that got one, also those that died afterwards, got the same.
 */
#include "base/failpoint.h"
#include "member/agree_frame.h"
#include "oob/oob_test_util.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS   5
#define LIMIT_S 60

typedef struct {
    _Atomic int there; /* 0: nothing yet, 1: a result, 2: an error */
    kolo_status_t status;
    uint32_t flags;
    uint8_t map[8], rows[RANKS * 4];
    char text[KOLO_ERROR_TEXT_BYTES];
} result_t;

typedef struct {
    kolo_unique_id_t id;
    _Atomic int id_there, met;
    result_t results[RANKS];
} shared_t;

static void wait_for(_Atomic int *word, int value)
{
    for (int i = 0; i < LIMIT_S * 1000 && atomic_load(word) < value; i++) poll(NULL, 0, 1);
    test_true(atomic_load(word) >= value);
}

static void be_rank(shared_t *s, int rank, const char *rule, int kill_after_us)
{
    kolo_oob_t *oob;
    result_t *res = &s->results[rank];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(LIMIT_S);
    if (rank == 0) {
        test_ok(kolo_id_create(&s->id));
        atomic_store(&s->id_there, 1);
    }
    wait_for(&s->id_there, 1);
    kolo_oob_config_t config = {rank, RANKS, 1, &s->id, 20000, NULL, "kill"};
    test_ok(kolo_oob_open(&config, &oob));
    atomic_fetch_add(&s->met, 1);
    wait_for(&s->met, RANKS);
    test_ok(kolo_fail_points_arm(rule));
    if (kill_after_us > 0) ualarm((unsigned)kill_after_us, 0); /* SIGALRM ends the process */
    kolo_agreement_t a = {.key = 5,
                          .flags = ~(1u << rank),
                          .out = res->map,
                          .rows = res->rows,
                          .row_bytes = 4,
                          .deadline_ns = kolo_deadline_ms(20000),
                          .what = "a test"};
    memset(res->rows + rank * 4, rank + 1, 4);
    res->status = kolo_agree_survivors(oob, &a);
    res->flags = a.flags;
    snprintf(res->text, sizeof(res->text), "%s", kolo_error_text());
    atomic_store(&res->there, res->status == KOLO_OK ? 1 : 2);
    if (kill_after_us > 0) raise(SIGKILL);      /* whoever is to die does */
    while (getppid() != 1) poll(NULL, 0, 1000); /* stays reachable until the parent ends it */
    _exit(0);
}

static bool same(const result_t *a, const result_t *b)
{
    return a->flags == b->flags && memcmp(a->map, b->map, sizeof(a->map)) == 0 &&
           memcmp(a->rows, b->rows, sizeof(a->rows)) == 0;
}

/* rules[r]: the fail points of rank r, or NULL; after_us[r] > 0: it is killed by a timer. */
static void run_job(const char *const *rules, const int *after_us)
{
    pid_t pids[RANKS];
    shared_t *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    test_true(s != MAP_FAILED);
    for (int r = 0; r < RANKS; r++) {
        pids[r] = fork();
        test_true(pids[r] >= 0);
        if (pids[r] == 0) be_rank(s, r, rules[r], after_us != NULL ? after_us[r] : 0);
    }
    const result_t *first = NULL;
    for (int r = 0; r < RANKS; r++) {
        result_t *res = &s->results[r];
        bool dies = rules[r] != NULL || (after_us != NULL && after_us[r] > 0);
        int status;
        if (dies) {
            for (int i = 0; waitpid(pids[r], &status, WNOHANG) == 0; i++) {
                poll(NULL, 0, 1);
                if (atomic_load(&res->there) == 0) test_true(i < LIMIT_S * 1000);
                if (atomic_load(&res->there) != 0 && i > 50) { /* its point was not on its way */
                    kill(pids[r], SIGKILL);
                    waitpid(pids[r], &status, 0);
                    break;
                }
            }
        } else {
            wait_for(&res->there, 1);
            if (res->status != KOLO_OK) fprintf(stderr, "rank %d: %s\n", r, res->text);
            test_equal(res->status, KOLO_OK);
        }
        if (atomic_load(&res->there) != 1) continue;
        if (first == NULL) first = res;
        test_true(same(first, res));
    }
    for (int r = 0; r < RANKS; r++) {
        if (rules[r] != NULL || (after_us != NULL && after_us[r] > 0)) continue;
        test_true(!kolo_map_has(s->results[r].map, r)); /* no false word */
        kill(pids[r], SIGKILL);
        waitpid(pids[r], NULL, 0);
    }
    munmap(s, sizeof(*s));
}

static const char *const points[] = {
    "oob.agree.report:1:kill",   "oob.agree.reported:1:kill", "oob.agree.accept:1:kill",
    "oob.agree.accepted:1:kill", "oob.agree.propose:1:kill",  "oob.agree.propose:3:kill",
    "oob.agree.decided:1:kill",  "oob.agree.decide:1:kill",   "oob.agree.decide:3:kill"};

static void one_dies_at_each_step(void **state)
{
    (void)state;
    static const int victims[] = {0, 1, RANKS - 1};
    for (size_t p = 0; p < KOLO_COUNTOF(points); p++)
        for (size_t v = 0; v < KOLO_COUNTOF(victims); v++) {
            const char *rules[RANKS] = {NULL};
            bool leads = p >= 4;
            if (leads != (victims[v] == 0)) continue;
            rules[victims[v]] = points[p];
            run_job(rules, NULL);
        }
}

/* The coordinator at each of its steps, and the next one at each step of a member and of a coordinator. */
static void two_die(void **state)
{
    (void)state;
    for (size_t p = 4; p < KOLO_COUNTOF(points); p++)
        for (size_t q = 0; q < KOLO_COUNTOF(points); q++) {
            const char *rules[RANKS] = {points[p], points[q]};
            run_job(rules, NULL);
        }
}

static void some_die_at_any_time(void **state)
{
    (void)state;
    unsigned seed = 12345;
    const char *rules[RANKS] = {NULL};
    for (int i = 0; i < 30; i++) {
        int after_us[RANKS] = {0};
        for (int k = 0; k < 1 + i % 3; k++) {
            int victim = (int)((seed = seed * 1103515245 + 12345) >> 16) % RANKS;
            after_us[victim] = 1 + (int)((seed = seed * 1103515245 + 12345) >> 16) % 1500;
        }
        run_job(rules, after_us);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_dies_at_each_step),
        cmocka_unit_test(two_die),
        cmocka_unit_test(some_die_at_any_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
