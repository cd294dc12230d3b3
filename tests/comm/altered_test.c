/* SPDX-License-Identifier: Apache-2.0
 *
 * Somebody between the hosts who changes bytes: all connections of the ranks go through relays which, from a point
 * on, flip single bits of what they pass on. With KOLO_TCP_SECURITY a result is right or there is an error. Ranks
 * that disagree about it hear which value each has.
 */
#include "kit/procs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RANKS  3
#define ROUNDS 120
#define COUNTS 9000

static struct {
    _Atomic bool armed; /* bits are flipped from here on */
    unsigned each;      /* in one of so many pieces that the relays pass on */
    _Atomic uint64_t flipped, relayed, wrong, right, failed;
} * seen; /* by all processes */

/* ---- the relay: one thread per connection, between connect() and whom it calls ---- */

typedef struct {
    int listener, far;
} relay_t;

static void pass_on(int from, int to, bool *open, unsigned *seed)
{
    static __thread char bytes[65536];
    ssize_t n = recv(from, bytes, sizeof bytes, 0);
    if (n <= 0) {
        *open = false;
        shutdown(to, SHUT_WR);
        return;
    }
    atomic_fetch_add(&seen->relayed, (uint64_t)n);
    if (atomic_load(&seen->armed) && (unsigned)rand_r(seed) % seen->each == 0) {
        bytes[(unsigned)rand_r(seed) % (unsigned)n] ^= (char)(1 << rand_r(seed) % 8);
        atomic_fetch_add(&seen->flipped, 1);
    }
    for (ssize_t done = 0, k; done < n; done += k)
        if ((k = send(to, bytes + done, (size_t)(n - done), MSG_NOSIGNAL)) < 0) break;
}

static void *run_relay(void *arg)
{
    relay_t *relay = arg;
    static _Atomic unsigned seeds;
    unsigned seed = (unsigned)getpid() * 1000 + atomic_fetch_add(&seeds, 1);
    bool open[2] = {true, true};
    int end[2] = {accept4(relay->listener, NULL, NULL, SOCK_CLOEXEC), relay->far};
    close(relay->listener);
    while (open[0] || open[1]) {
        struct pollfd ready[2] = {{open[0] ? end[0] : -1, POLLIN, 0}, {open[1] ? end[1] : -1, POLLIN, 0}};
        if (poll(ready, 2, -1) < 0) break;
        for (int i = 0; i < 2; i++)
            if (ready[i].revents) pass_on(end[i], end[1 - i], &open[i], &seed);
    }
    close(end[0]);
    close(end[1]);
    free(relay);
    return NULL;
}

/* Stands before the C library's: whom the library calls is called by a relay. */
__attribute__((visibility("default"))) int connect(int fd, const struct sockaddr *to, socklen_t bytes)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t at_bytes = sizeof at;
    pthread_t thread;
    int type = 0; /* datagrams only ask the system for a route */
    socklen_t type_bytes = sizeof type;
    getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_bytes);
    if (to->sa_family != AF_INET || type != SOCK_STREAM) return (int)syscall(SYS_connect, fd, to, bytes);
    relay_t *relay = calloc(1, sizeof *relay);
    if (!relay) abort();
    relay->far = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (syscall(SYS_connect, relay->far, to, bytes) != 0) {
        int refused = errno;
        close(relay->far);
        free(relay);
        errno = refused;
        return -1;
    }
    relay->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (relay->listener < 0 || bind(relay->listener, (struct sockaddr *)&at, sizeof at) != 0 ||
        listen(relay->listener, 1) != 0 || getsockname(relay->listener, (struct sockaddr *)&at, &at_bytes) != 0)
        abort();
    int result = (int)syscall(SYS_connect, fd, &at, at_bytes), err = errno;
    if (pthread_create(&thread, NULL, run_relay, relay) != 0) abort();
    pthread_detach(thread);
    errno = err;
    return result;
}

/* ---- the ranks ---- */

static bool is_right(const int32_t *sums, int count, int round)
{
    for (int i = 0; i < count; i++)
        if (sums[i] != RANKS * (round + i) + RANKS * (RANKS - 1) / 2) return false;
    return true;
}

static void compute(proc_t *p)
{
    static int32_t mine[COUNTS], sums[COUNTS];
    proc_meet(p, 0);
    if (p->r.arg) atomic_store(&seen->armed, true);
    int rounds = p->r.arg ? 100 * ROUNDS : ROUNDS; /* until a bit is changed, which comes by chance */
    for (int round = 0; round < rounds; round++) {
        int count = round % 3 ? 1 + round % 40 : COUNTS;
        for (int i = 0; i < count; i++) mine[i] = round + i + p->r.rank;
        kolo_status_t status = kolo_all_reduce(mine, sums, (size_t)count, KOLO_INT32, KOLO_SUM, p->r.comm, NULL);
        if (status != KOLO_OK) {
            atomic_fetch_add(&seen->failed, 1);
            break;
        }
        atomic_fetch_add(is_right(sums, count, round) ? &seen->right : &seen->wrong, 1);
    }
    if (p->r.arg) { /* who is through, or has failed, is not to wait for a farewell that is changed as well */
        kolo_comm_abort(p->r.comm);
        kolo_comm_destroy(p->r.comm);
        p->r.comm = NULL;
        return;
    }
    end_comm(&p->r.comm);
    proc_meet(p, 1); /* the relays of this process still pass on what has been said at the end */
}

static void run(const char *security, unsigned each)
{
    char text[64];
    const char *env[] = {"KOLO_CMA_DISABLE=1", "KOLO_SHM_DISABLE=1", "KOLO_OP_TIMEOUT_MS=20000", text, NULL};
    job_t job;
    static int yes = 1;
    snprintf(text, sizeof text, "KOLO_TCP_SECURITY=%s", security);
    memset(seen, 0, sizeof *seen);
    seen->each = each;
    job_start(&job, RANKS, env, compute, each ? &yes : NULL);
    assert_int_equal(job_finish(&job, -1), 0);
    print_message(
        "%s: %llu bytes relayed, %llu bits flipped, %llu results right, %llu wrong, %llu ranks with an error\n",
        security, (unsigned long long)seen->relayed, (unsigned long long)seen->flipped,
        (unsigned long long)seen->right, (unsigned long long)seen->wrong, (unsigned long long)seen->failed);
}

static void without_changes_all_is_right(void **state)
{
    (void)state;
    static const char *const modes[] = {"none", "mac", "encrypt"};
    for (int i = 0; i < 3; i++) {
        run(modes[i], 0);
        assert_int_equal(seen->right, RANKS * ROUNDS);
        assert_true(seen->relayed > 0);
    }
}

static void a_changed_bit_is_an_error_and_never_a_wrong_value(void **state)
{
    (void)state;
    static const unsigned each[] = {4, 30, 200};
    for (int i = 0; i < 6; i++) {
        run(i % 2 ? "mac" : "encrypt", each[i / 2]);
        assert_true(seen->flipped > 0);
        assert_true(seen->failed > 0);
        assert_int_equal(seen->wrong, 0);
    }
}

/* ---- one that disagrees ---- */

static void join_odd(proc_t *p, int odd)
{
    finding_t *f = &p->shared->found[p->r.rank];
    setenv("KOLO_TCP_SECURITY", p->r.rank == odd ? "encrypt" : "mac", 1);
    limit_s(60);
    if (p->r.rank == 0) {
        EXPECT_OK(kolo_get_unique_id(&p->shared->id));
        atomic_store(&p->shared->id_there, 1);
    }
    EXPECT(await_count(&p->shared->id_there, 1));
    f->status = kolo_comm_init_rank(&p->r.comm, RANKS, p->shared->id, p->r.rank, NULL);
    snprintf(f->text, sizeof f->text, "%s", kolo_get_last_error(NULL));
    proc_meet(p, 0); /* the root stays until all have called it */
    exit(expect_failures() ? 1 : 0);
}

static void ranks_that_disagree_hear_both_values(void **state)
{
    (void)state;
    for (int odd = 0; odd < RANKS; odd++) {
        job_t job = {.n = RANKS};
        job.shared = mmap(NULL, sizeof *job.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_true(job.shared != MAP_FAILED);
        for (int i = 0; i < RANKS; i++)
            if ((job.pids[i] = fork()) == 0) join_odd(&(proc_t){{i, RANKS, NULL, NULL}, job.shared}, odd);
        assert_int_equal(job_finish(&job, -1), 0);
        for (int i = 0; i < RANKS; i++) {
            const finding_t *f = &job.shared->found[i];
            if (f->status != KOLO_ERR_MISMATCH) print_message("rank %d: %s\n", i, f->text);
            assert_int_equal(f->status, KOLO_ERR_MISMATCH);
            assert_non_null(strstr(f->text, "KOLO_TCP_SECURITY"));
            assert_true(strstr(f->text, "mac") && strstr(f->text, "encrypt"));
        }
        munmap(job.shared, sizeof *job.shared);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_changes_all_is_right),
        cmocka_unit_test(ranks_that_disagree_hear_both_values),
        cmocka_unit_test(a_changed_bit_is_an_error_and_never_a_wrong_value),
    };
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seen == MAP_FAILED) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
