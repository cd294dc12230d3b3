/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests of the base room: parameters, waits, gates.
 */
#include "base/clock.h"
#include "base/cpu/yield.h"
#include "base/log.h"
#include "base/params.h"
#include "base/process.h"
#include "base/test.h"
#include "base/test_time.h"
#include "base/wait.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int64_t v_int, v_size, v_enum;
static bool v_bool;
static const char *v_str;
static const kolo_param_t rows[] = {
    {"KOLO_T_INT", KOLO_PARAM_INT, "7", -5, 10, NULL, true, "an int", &v_int},
    {"KOLO_T_SIZE", KOLO_PARAM_SIZE, "64K", 0, INT64_MAX, NULL, false, "a size", &v_size},
    {"KOLO_T_BOOL", KOLO_PARAM_BOOL, "0", 0, 0, NULL, false, "a bool", &v_bool},
    {"KOLO_T_ENUM", KOLO_PARAM_ENUM, "auto", 0, 0, "auto|ring|tree", false, "an enum", &v_enum},
    {"KOLO_T_STR", KOLO_PARAM_STR, NULL, 0, 0, NULL, false, "a string", &v_str},
};
static const kolo_param_table_t table = {"test", rows, KOLO_COUNTOF(rows), NULL};
static const kolo_param_table_t *const tables[] = {&table};

struct pair {
    const char *key, *text;
};

static const char *lookup(const char *key, void *arg)
{
    const struct pair *p = arg;
    return p && strcmp(p->key, key) == 0 ? p->text : NULL;
}

static void params_take_defaults_and_values(void **state)
{
    (void)state;
    assert_int_equal(kolo_params_load(tables, 1, lookup, NULL), KOLO_OK);
    assert_int_equal(v_int, 7);
    assert_int_equal(v_size, 65536);
    assert_null(v_str);
    struct pair p = {"KOLO_T_ENUM", "TREE"};
    assert_int_equal(kolo_params_load(tables, 1, lookup, &p), KOLO_OK);
    assert_int_equal(v_enum, 2);
    char text[16];
    kolo_param_print(&rows[3], text, sizeof text);
    assert_string_equal(text, "tree");
}

static void params_refuse_bad_text_by_name(void **state)
{
    (void)state;
    static const struct pair bad[] = {
        {"KOLO_T_INT", "11"},
        {"KOLO_T_INT", "x"},
        {"KOLO_T_INT", ""},
        {"KOLO_T_INT", "3 "},
        {"KOLO_T_SIZE", "1Q"},
        {"KOLO_T_SIZE", "-1"},
        {"KOLO_T_SIZE", "99999999999G"},
        {"KOLO_T_BOOL", "2"},
        {"KOLO_T_ENUM", "rin"},
        {"KOLO_T_ENUM", "auto|ring"},
    };
    for (size_t i = 0; i < KOLO_COUNTOF(bad); i++) {
        struct pair p = bad[i];
        assert_int_equal(kolo_params_load(tables, 1, lookup, &p), KOLO_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(kolo_error_text(), bad[i].key));
    }
}

static void zero_spins_and_yields_are_taken_as_said(void **state)
{
    (void)state;
    const kolo_param_table_t *base[] = {&kolo_base_params};
    kolo_wait_t wait;
    struct pair p = {"KOLO_SPINS", "0"};
    assert_int_equal(kolo_params_load(base, 1, lookup, &p), KOLO_OK);
    kolo_wait_init(&wait, NULL, 0, NULL, NULL, 1);
    assert_int_equal(wait.spins, 0);
    assert_int_equal(wait.yields, 10000);
    p = (struct pair){"KOLO_YIELDS", "0"};
    assert_int_equal(kolo_params_load(base, 1, lookup, &p), KOLO_OK);
    kolo_wait_init(&wait, NULL, 0, NULL, NULL, 1);
    assert_int_equal(wait.spins, 2000);
    assert_int_equal(wait.yields, 0);
    assert_int_equal(kolo_params_load(base, 1, lookup, NULL), KOLO_OK);
}

static void an_empty_text_in_the_environment_is_none(void **state)
{
    (void)state;
    for (size_t i = 0; i < tables[0]->count; i++) assert_int_equal(setenv(tables[0]->rows[i].key, "", 1), 0);
    assert_int_equal(kolo_params_load(tables, 1, NULL, NULL), KOLO_OK);
    assert_null(v_str);
    for (size_t i = 0; i < tables[0]->count; i++) {
        assert_false(kolo_param_in_environment(&tables[0]->rows[i]));
        assert_int_equal(unsetenv(tables[0]->rows[i].key), 0);
    }
}

static void agree_hash_follows_must_agree_rows_only(void **state)
{
    (void)state;
    assert_int_equal(kolo_params_load(tables, 1, lookup, NULL), KOLO_OK);
    uint64_t before = kolo_params_agree_hash(tables, 1);
    v_size = 1;
    assert_true(kolo_params_agree_hash(tables, 1) == before);
    v_int = 8;
    assert_false(kolo_params_agree_hash(tables, 1) == before);
}

static void describe(void *arg, char *buf, size_t bytes)
{
    snprintf(buf, bytes, "%s", (const char *)arg);
}

static void wait_ends_at_its_deadline_and_says_what_it_waited_for(void **state)
{
    (void)state;
    kolo_waker_t waker;
    kolo_wait_t wait;
    kolo_status_t status;
    assert_int_equal(kolo_waker_init(&waker, NULL), KOLO_OK);
    uint64_t start = kolo_now_ns();
    kolo_wait_init(&wait, NULL, kolo_deadline_ms(30), describe, "godot", 1);
    wait.wakers[wait.nwakers++] = &waker;
    while ((status = kolo_wait_pause(&wait)) == KOLO_OK) {
    }
    assert_int_equal(status, KOLO_ERR_TIMEOUT);
    assert_non_null(strstr(kolo_error_text(), "godot"));
    assert_true(kolo_now_ns() - start >= 30 * KOLO_NS_PER_MS);
    assert_true(IN_TIME(kolo_now_ns() - start < 5 * KOLO_NS_PER_S));
    kolo_waker_fini(&waker);
}

struct abort_case {
    kolo_waker_t *waker;
    _Atomic uint32_t flag;
};

static void a_wait_says_that_it_stalls_at_ever_longer_times(void **state)
{
    (void)state;
    const kolo_param_table_t *base[] = {&kolo_base_params};
    const struct pair p = {"KOLO_STALL_WARN_MS", "1000"}, never = {"KOLO_STALL_WARN_MS", "0"};
    const uint64_t began = 77 * KOLO_NS_PER_S;
    uint64_t next = 0, said[16];
    size_t n = 0;
    assert_int_equal(kolo_params_load(base, 1, lookup, (void *)&p), KOLO_OK);
    for (uint64_t ms = 0; ms <= 200000 && n < KOLO_COUNTOF(said); ms += 10)
        if (kolo_wait_stalls(began, began + ms * KOLO_NS_PER_MS, &next)) said[n++] = ms / 1000;
    static const uint64_t wanted[] = {1, 2, 4, 8, 16, 32, 64, 124, 184};
    assert_int_equal(n, KOLO_COUNTOF(wanted));
    assert_memory_equal(said, wanted, sizeof wanted);
    next = 0; /* a wait of nothing to do */
    for (uint64_t s = 300; s < 400; s++, next = 0)
        assert_false(kolo_wait_stalls(began, began + s * KOLO_NS_PER_S, &next));
    assert_int_equal(kolo_params_load(base, 1, lookup, (void *)&never), KOLO_OK);
    assert_false(kolo_wait_stalls(began, began + 1000 * KOLO_NS_PER_S, &next));
    assert_int_equal(kolo_params_load(base, 1, lookup, NULL), KOLO_OK);
}

static void *aborter(void *arg)
{
    struct abort_case *c = arg;
    while (atomic_load(c->waker->asleep) == 0) kolo_cpu_relax();
    atomic_store(&c->flag, 1);
    kolo_waker_wake(c->waker);
    return NULL;
}

static void abort_ends_a_parked_wait(void **state)
{
    (void)state;
    kolo_waker_t waker;
    struct abort_case c = {.waker = &waker};
    kolo_wait_t wait;
    kolo_status_t status;
    pthread_t thread;
    assert_int_equal(kolo_waker_init(&waker, NULL), KOLO_OK);
    kolo_wait_init(&wait, &c.flag, 0, NULL, NULL, 1);
    wait.wakers[wait.nwakers++] = &waker;
    assert_int_equal(pthread_create(&thread, NULL, aborter, &c), 0);
    while ((status = kolo_wait_pause(&wait)) == KOLO_OK) {
    }
    pthread_join(thread, NULL);
    assert_int_equal(status, KOLO_ERR_ABORTED);
    kolo_waker_fini(&waker);
}

struct bell_case {
    kolo_waker_t waker;
    _Atomic uint32_t ping, pong;
};

static void *echo(void *arg)
{
    struct bell_case *c = arg;
    for (uint32_t i = 1; i <= 200; i++) {
        /* only write once the waiter is parked, so that every round needs the bell */
        while (atomic_load(&c->pong) != i || atomic_load(c->waker.asleep) == 0) kolo_cpu_relax();
        atomic_store_explicit(&c->ping, i, memory_order_release);
        kolo_doorbell_ring(c->waker.asleep, c->waker.event_fd);
    }
    return NULL;
}

static void a_parked_waiter_is_woken_by_the_doorbell(void **state)
{
    (void)state;
    struct bell_case c = {0};
    kolo_wait_t wait;
    pthread_t thread;
    assert_int_equal(kolo_waker_init(&c.waker, NULL), KOLO_OK);
    kolo_wait_init(&wait, NULL, kolo_deadline_ms(20000), NULL, NULL, 1);
    wait.wakers[wait.nwakers++] = &c.waker;
    wait.spins = 1;
    wait.yields = 1;
    assert_int_equal(pthread_create(&thread, NULL, echo, &c), 0);
    for (uint32_t i = 1; i <= 200; i++) {
        atomic_store(&c.pong, i);
        while (atomic_load_explicit(&c.ping, memory_order_acquire) != i)
            assert_int_equal(kolo_wait_pause(&wait), KOLO_OK);
        kolo_wait_end(&wait);
    }
    pthread_join(thread, NULL);
    kolo_waker_fini(&c.waker);
}

static void ask_for_news(void *arg)
{
    ++*(int *)arg;
}

static void a_sleeper_asks_for_news_before_its_last_poll(void **state)
{
    (void)state;
    kolo_waker_t waker;
    kolo_wait_t wait;
    int asked = 0;
    assert_int_equal(kolo_waker_init(&waker, NULL), KOLO_OK);
    waker.arm = ask_for_news;
    waker.arm_arg = &asked;
    kolo_wait_init(&wait, NULL, kolo_deadline_ms(20000), NULL, NULL, 1);
    wait.wakers[wait.nwakers++] = &waker;
    wait.spins = wait.yields = 1;
    while (!asked) assert_int_equal(kolo_wait_pause(&wait), KOLO_OK);
    assert_true(wait.armed); /* and has not slept yet: the caller polls once more */
    assert_int_equal(asked, 1);
    assert_int_equal(kolo_wait_pause(&wait), KOLO_OK);
    assert_false(wait.armed);
    assert_int_equal(asked, 1);
    kolo_waker_fini(&waker);
}

/* It asks for news, sleeps and looks again: two returns for each sleep, and no sleep is cut short. */
static void a_parked_wait_returns_only_to_look(void **state)
{
    (void)state;
    kolo_waker_t waker;
    kolo_wait_t wait;
    const int limit_ms = 500, each_ms = kolo_fence_is_full ? KOLO_PARK_BLIND_MS : KOLO_PARK_MAX_MS;
    int returns = 0;
    assert_int_equal(kolo_waker_init(&waker, NULL), KOLO_OK);
    kolo_wait_init(&wait, NULL, kolo_deadline_ms(limit_ms), NULL, NULL, 1);
    wait.wakers[wait.nwakers++] = &waker;
    wait.spins = wait.yields = 1;
    while (kolo_wait_pause(&wait) == KOLO_OK) returns++;
    assert_in_range(returns, 1, 2 * (limit_ms / each_ms + 2));
    kolo_waker_fini(&waker);
}

/* Milliseconds until a wait that nobody ends goes to sleep for the first time. */
static double awake_ms(bool outlasts, bool quiet)
{
    kolo_waker_t waker;
    kolo_wait_t wait;
    assert_int_equal(kolo_waker_init(&waker, NULL), KOLO_OK);
    waker.outlasts = outlasts;
    waker.quiet = quiet;
    kolo_wait_init(&wait, NULL, 0, NULL, NULL, 1);
    wait.wakers[wait.nwakers++] = &waker;
    wait.spins = wait.yields = 1;
    uint64_t begun = kolo_now_ns();
    while (!wait.armed) assert_int_equal(kolo_wait_pause(&wait), KOLO_OK);
    while (wait.armed) assert_int_equal(kolo_wait_pause(&wait), KOLO_OK);
    kolo_waker_fini(&waker);
    return (double)(kolo_now_ns() - begun) / 1e6 - KOLO_PARK_MAX_MS;
}

/* On a core that turns crowded during the wait nothing outlasts a gap, also if it is not crowded any more
 * afterwards. */
static bool outlasts_a_gap(bool quiet)
{
    for (int i = 0; i < 50; i++)
        if (awake_ms(true, quiet) >= 20 || kolo_yield_is_crowded()) return true;
    return false;
}

static void a_wait_for_ranks_with_cores_of_their_own_outlasts_a_gap(void **state)
{
    (void)state;
    assert_true(outlasts_a_gap(false));
    assert_true(outlasts_a_gap(true));
}

static void what_arrives_while_a_quiet_sleeper_settles_is_seen(void **state)
{
    (void)state;
    kolo_waker_t waker;
    kolo_wait_t wait;
    int polls = 0;
    assert_int_equal(kolo_waker_init(&waker, NULL), KOLO_OK);
    waker.quiet = true;
    kolo_wait_init(&wait, NULL, kolo_deadline_ms(20000), NULL, NULL, 1);
    wait.wakers[wait.nwakers++] = &waker;
    wait.spins = wait.yields = 1;
    while (!wait.armed) assert_int_equal(kolo_wait_pause(&wait), KOLO_OK);
    uint64_t settles = wait.settle_ns;
    for (; wait.armed; polls++) assert_int_equal(kolo_wait_pause(&wait), KOLO_OK);
    assert_true(kolo_fence_is_full || (settles != 0 && kolo_now_ns() >= settles && polls > 0));
    kolo_waker_doorbell(waker.event_fd); /* rung: the next sleep is none */
    while (!wait.armed) assert_int_equal(kolo_wait_pause(&wait), KOLO_OK);
    kolo_wait_end(&wait);
    kolo_waker_fini(&waker);
}

static void a_quota_is_so_many_cores(void **state)
{
    (void)state;
    assert_int_equal(kolo_cores_of_quota("max 100000"), 0);
    assert_int_equal(kolo_cores_of_quota("400000 100000\n"), 4);
    assert_int_equal(kolo_cores_of_quota("450000 100000\n"), 5);
    assert_int_equal(kolo_cores_of_quota("1000 100000\n"), 1);
    assert_int_equal(kolo_cores_of_quota("0 0"), 0);
    assert_int_equal(kolo_cores_of_quota("9223372036854775807 1"), 0);
    assert_int_equal(kolo_cores_of_quota(""), 0);
    assert_true(kolo_cores_quota() > 0);
}

static bool write_word(const char *folder, const char *file, const char *word)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *f = fopen(path, "r+e");
    return f && fputs(word, f) >= 0 && fclose(f) == 0;
}

/* In a group of its own of this controller, whose quota is half a core. */
static int cores_in_a_group(const char *controllers, bool older)
{
    char folder[100];
    int status = -1;
    snprintf(folder, sizeof folder, "/sys/fs/cgroup%s/kolo-base-%d", controllers, (int)getpid());
    if (mkdir(folder, 0755) != 0) return -1;
    pid_t child = fork();
    if (child == 0) {
        bool good = older ? write_word(folder, "cpu.cfs_period_us", "50000") &&
                                write_word(folder, "cpu.cfs_quota_us", "25000")
                          : write_word(folder, "cpu.max", "25000 50000");
        _exit(good && write_word(folder, "cgroup.procs", "0") ? KOLO_MIN(kolo_cores_quota(), 99) : 77);
    }
    assert_true(waitpid(child, &status, 0) == child && WIFEXITED(status));
    rmdir(folder);
    return WEXITSTATUS(status) == 77 ? -1 : WEXITSTATUS(status);
}

/* Before what asks for the quota: it is found once. */
static void a_quota_of_either_hierarchy_counts(void **state)
{
    (void)state;
    int of_one = cores_in_a_group("", false), of_the_older = cores_in_a_group("/cpu", true);
    if (of_one < 0 && of_the_older < 0) skip();
    if (of_one >= 0) assert_int_equal(of_one, 1);
    if (of_the_older >= 0) assert_int_equal(of_the_older, 1);
}

static void *opener(void *arg)
{
    kolo_gate_open(arg);
    return NULL;
}

static void gate_lets_a_ticket_through_once_opened(void **state)
{
    (void)state;
    kolo_gate_t gate = {0};
    kolo_wait_t wait;
    pthread_t thread;
    kolo_wait_init(&wait, NULL, kolo_deadline_ms(10000), NULL, NULL, 1);
    uint32_t ticket = kolo_gate_ticket(&gate);
    assert_int_equal(pthread_create(&thread, NULL, opener, &gate), 0);
    assert_int_equal(kolo_gate_wait(&gate, ticket, &wait), KOLO_OK);
    pthread_join(thread, NULL);
    wait.deadline_ns = kolo_deadline_ms(20);
    assert_int_equal(kolo_gate_wait(&gate, kolo_gate_ticket(&gate), &wait), KOLO_ERR_TIMEOUT);
}

/* ---- fences without membarrier(2) ---- */

#define ROUNDS 5000
static struct {
    _Atomic int round, done, light, slow; /* light, slow: what each side has stored */
    int seen_by_slow;
} dekker;

static void await_number(_Atomic int *number, int n)
{
    for (int spins = 0; atomic_load(number) < n; spins++)
        if (spins % 1000 == 999) sched_yield();
}

static void *store_slowly(void *unused)
{
    (void)unused;
    for (int i = 1; i <= ROUNDS; i++) {
        await_number(&dekker.round, i);
        atomic_store_explicit(&dekker.slow, i, memory_order_relaxed);
        kolo_fence_cores();
        dekker.seen_by_slow = atomic_load_explicit(&dekker.light, memory_order_relaxed);
        atomic_store(&dekker.done, i);
    }
    return NULL;
}

/* Each stores and then looks at what the other has stored: in every round one of them sees it. */
static bool one_sees_the_other(void)
{
    pthread_t thread;
    bool good = true;
    if (pthread_create(&thread, NULL, store_slowly, NULL) != 0) return false;
    for (int i = 1; i <= ROUNDS; i++) {
        atomic_store(&dekker.round, i);
        atomic_store_explicit(&dekker.light, i, memory_order_relaxed);
        kolo_fence_light();
        int seen = atomic_load_explicit(&dekker.slow, memory_order_relaxed);
        await_number(&dekker.done, i);
        good = good && (seen == i || dekker.seen_by_slow == i);
    }
    pthread_join(thread, NULL);
    return good;
}

static bool refuse_membarrier(void)
{
    struct sock_filter rows_of[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {KOLO_COUNTOF(rows_of), rows_of};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/* The first test: what the system has is asked once per process. */
static void fences_hold_without_membarrier(void **state)
{
    (void)state;
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        if (!refuse_membarrier()) _exit(77);
        kolo_fence_cores();
        bool good = kolo_fence_is_full && one_sees_the_other();
        _exit(good ? 0 : 1);
    }
    assert_true(waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static pthread_mutex_t of_any_thread = PTHREAD_MUTEX_INITIALIZER;
KOLO_FORK_RENEWS(of_any_thread)

static void *hold_lock(void *held)
{
    pthread_mutex_lock(&of_any_thread);
    atomic_store((_Atomic int *)held, 1);
    while (atomic_load((_Atomic int *)held) == 1) poll(NULL, 0, 1);
    pthread_mutex_unlock(&of_any_thread);
    return NULL;
}

static void a_child_waits_for_no_thread_of_its_parent(void **state)
{
    _Atomic int held = 0;
    pthread_t thread;
    int status = -1;
    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, hold_lock, &held), 0);
    while (atomic_load(&held) == 0) poll(NULL, 0, 1);
    pid_t child = fork();
    if (child == 0) _exit(pthread_mutex_trylock(&of_any_thread) != 0);
    assert_true(waitpid(child, &status, 0) == child && status == 0);
    assert_int_not_equal(pthread_mutex_trylock(&of_any_thread), 0); /* here it is held still */
    atomic_store(&held, 2);
    pthread_join(thread, NULL);
}

/* As in programs whose libraries have much of their own for each thread. */
static _Thread_local volatile char of_each_thread[1 << 20];

static void *use_stack(void *arg)
{
    volatile char on_stack[400 * 1024];
    for (size_t i = 0; i < sizeof on_stack; i += 512) on_stack[i] = 1;
    of_each_thread[sizeof of_each_thread - 1] = on_stack[512];
    *(int *)arg = (unsigned char)of_each_thread[sizeof of_each_thread - 1];
    return NULL;
}

static void a_thread_has_its_stack_beside_the_variables_of_each_thread(void **state)
{
    (void)state;
    pthread_t thread;
    int done = 0;
    assert_int_equal(kolo_thread_start(&thread, 512 * 1024, use_stack, &done), 0);
    pthread_join(thread, NULL);
    assert_int_equal(done, 1);
}

static void *tell_mask(void *arg)
{
    pthread_sigmask(SIG_BLOCK, NULL, arg);
    return NULL;
}

static void threads_leave_signals_to_the_program_but_for_their_own_faults(void **state)
{
    (void)state;
    sigset_t before, in_thread, after;
    pthread_t thread;
    pthread_sigmask(SIG_BLOCK, NULL, &before);
    assert_int_equal(kolo_thread_start(&thread, 512 * 1024, tell_mask, &in_thread), 0);
    pthread_join(thread, NULL);
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    static const int for_the_program[] = {SIGINT, SIGTERM, SIGCHLD, SIGALRM, SIGUSR1, SIGHUP};
    for (size_t i = 0; i < KOLO_COUNTOF(for_the_program); i++) {
        assert_true(sigismember(&in_thread, for_the_program[i]));
        assert_int_equal(sigismember(&after, for_the_program[i]), sigismember(&before, for_the_program[i]));
    }
    assert_false(sigismember(&in_thread, SIGSEGV));
    assert_false(sigismember(&in_thread, SIGBUS));
    assert_false(sigismember(&in_thread, SIGPROF));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_has_its_stack_beside_the_variables_of_each_thread),
        cmocka_unit_test(fences_hold_without_membarrier),
        cmocka_unit_test(a_child_waits_for_no_thread_of_its_parent),
        cmocka_unit_test(a_quota_of_either_hierarchy_counts),
        cmocka_unit_test(params_take_defaults_and_values),
        cmocka_unit_test(params_refuse_bad_text_by_name),
        cmocka_unit_test(zero_spins_and_yields_are_taken_as_said),
        cmocka_unit_test(an_empty_text_in_the_environment_is_none),
        cmocka_unit_test(agree_hash_follows_must_agree_rows_only),
        cmocka_unit_test(wait_ends_at_its_deadline_and_says_what_it_waited_for),
        cmocka_unit_test(a_wait_says_that_it_stalls_at_ever_longer_times),
        cmocka_unit_test(abort_ends_a_parked_wait),
        cmocka_unit_test(a_parked_waiter_is_woken_by_the_doorbell),
        cmocka_unit_test(a_sleeper_asks_for_news_before_its_last_poll),
        cmocka_unit_test(a_parked_wait_returns_only_to_look),
        cmocka_unit_test(gate_lets_a_ticket_through_once_opened),
        cmocka_unit_test(a_wait_for_ranks_with_cores_of_their_own_outlasts_a_gap),
        cmocka_unit_test(what_arrives_while_a_quiet_sleeper_settles_is_seen),
        cmocka_unit_test(a_quota_is_so_many_cores),
        cmocka_unit_test(threads_leave_signals_to_the_program_but_for_their_own_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
