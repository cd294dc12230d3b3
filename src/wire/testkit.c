/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks as threads or processes for tests and measurements. See testkit.h.
 */
#include "wire/testkit.h"

#include "wire/ll.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#define SETUP_MS 30000

int kolo_kit_report(const kolo_kit_t *kit, const char *file, int line, const char *what)
{
    fprintf(stderr, "%s: rank %d of %d (%s): %s:%d: %s is not so; last error: %s\n", kit->job->name, kit->rank,
            kit->nranks, kit->job->processes ? "process" : "thread", file, line, what, kolo_error_text());
    return line;
}

kolo_status_t kolo_kit_copy(kolo_rx_t *rx, const kolo_ref_t *ref, uint64_t offset, void *mine, size_t bytes,
                            bool write)
{
    kolo_ref_copy_t copy = {offset, mine, bytes, write};
    kolo_status_t status = rx->ops->ref_start(rx, ref, &copy);
    if (status != KOLO_OK) return status;
    do {
        status = rx->ops->ref_done(rx, &copy);
    } while (status == KOLO_IN_PROGRESS);
    return status;
}

void kolo_kit_sleep_ms(int ms)
{
    poll(NULL, 0, ms); /* a test that wants time to pass, not a wait for anything */
}

/* ---- one rank ---- */

static int open_rank(kolo_kit_t *kit)
{
    kolo_oob_config_t config = {.rank = kit->rank,
                                .nranks = kit->nranks,
                                .nids = 1,
                                .ids = &kit->id,
                                .timeout_ms = SETUP_MS,
                                .abort = &kit->abort,
                                .name = kit->job->name};
    kolo_peer_card_t card;
    KIT_CHECK(kolo_oob_open(&config, &kit->oob) == KOLO_OK);
    KIT_CHECK(kolo_member_fill_card(&card, kit->rank, -1) == KOLO_OK);
    KIT_CHECK(kolo_wire_fill_card(&card) == KOLO_OK);
    KIT_CHECK(kolo_member_gather(kit->oob, &card, &kit->member) == KOLO_OK);
    KIT_CHECK(kolo_wire_ctx_init(&kit->ctx, kit->oob, &kit->member, &kit->abort) == KOLO_OK);
    kit->ctx.deadline_ns = kolo_deadline_ms(SETUP_MS);
    return 0;
}

static int rank_main(kolo_kit_t *kit)
{
    int result = open_rank(kit);
    if (!result) result = kit->job->run(kit);
    kolo_wire_ctx_close(&kit->ctx);
    kolo_wire_ctx_fini(&kit->ctx);
    kolo_member_fini(&kit->member);
    if (kit->oob) {
        kolo_oob_close(kit->oob);
        kolo_oob_fini(kit->oob);
    }
    return result;
}

static void *thread_main(void *arg)
{
    kolo_kit_t *kit = (kolo_kit_t *)arg;
    kit->result = rank_main(kit);
    return NULL;
}

static void init_rank(kolo_kit_t *kit, const kolo_kit_job_t *job, int rank)
{
    kit->job = job;
    kit->rank = rank;
    kit->nranks = job->nranks;
    kit->ctx.waker.epoll_fd = kit->ctx.waker.event_fd = -1;
}

/* ---- threads ---- */

static int run_threads(const kolo_kit_job_t *job)
{
    kolo_kit_t *kits = (kolo_kit_t *)calloc((size_t)job->nranks, sizeof *kits);
    pthread_t *threads = (pthread_t *)calloc((size_t)job->nranks, sizeof *threads);
    struct timespec limit;
    kolo_unique_id_t id;
    int failed = 0;
    if (!kits || !threads || kolo_id_create(&id) != KOLO_OK) abort();
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += job->limit_s;
    for (int i = 0; i < job->nranks; i++) {
        init_rank(&kits[i], job, i);
        kits[i].id = id;
        if (pthread_create(&threads[i], NULL, thread_main, &kits[i]) != 0) abort();
    }
    for (int i = 0; i < job->nranks; i++) {
        if (pthread_timedjoin_np(threads[i], NULL, &limit) != 0) {
            fprintf(stderr, "%s: rank %d (thread) is not done after %d s\n", job->name, i, job->limit_s);
            abort(); /* a hung thread cannot be ended */
        }
        failed += kits[i].result != 0;
    }
    kolo_root_stop_all();
    free(kits);
    free(threads);
    return failed;
}

/* ---- processes ---- */

static void child_main(const kolo_kit_job_t *job, int rank, int id_fd)
{
    static kolo_kit_t kit;
    kolo_kit_holdings_t before, after;
    init_rank(&kit, job, rank);
    alarm((unsigned)job->limit_s);
    kolo_kit_count(&before);
    if (read(id_fd, &kit.id, sizeof kit.id) != (ssize_t)sizeof kit.id) _exit(2);
    int result = rank_main(&kit);
    if (!result && !kolo_kit_no_more_than(&before, &after)) {
        fprintf(stderr, "%s: rank %d (process) leaves %d descriptors, %d threads, %d segments; had %d, %d, %d\n",
                job->name, rank, after.fds, after.threads, after.segments, before.fds, before.threads,
                before.segments);
        result = 1;
    }
#if defined(__SANITIZE_ADDRESS__)
    if (!result) result = __lsan_do_recoverable_leak_check();
#endif
    fflush(NULL);
    _exit(result ? 1 : 0);
}

static bool passed(const kolo_kit_job_t *job, int rank, int status)
{
    if (rank == job->dies) return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
    fprintf(stderr, "%s: rank %d (process) ended with %s %d\n", job->name, rank,
            WIFEXITED(status) ? "exit status" : "signal",
            WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    return false;
}

static int run_processes(const kolo_kit_job_t *job)
{
    pid_t pids[64];
    int pipes[2], failed = 0;
    kolo_unique_id_t id;
    if (job->nranks > 64 || pipe(pipes) != 0) abort();
    fflush(NULL);
    /* Fork first: the root's thread must not be there yet. */
    for (int i = 0; i < job->nranks; i++) {
        pids[i] = fork();
        if (pids[i] < 0) abort();
        if (pids[i] == 0) {
            close(pipes[1]);
            child_main(job, i, pipes[0]);
        }
    }
    if (kolo_id_create(&id) != KOLO_OK) abort();
    for (int i = 0; i < job->nranks; i++)
        if (write(pipes[1], &id, sizeof id) != (ssize_t)sizeof id) abort();
    close(pipes[0]);
    close(pipes[1]);
    for (int i = 0; i < job->nranks; i++) {
        int status = 0;
        while (waitpid(pids[i], &status, 0) < 0 && errno == EINTR) {
        }
        failed += !passed(job, i, status);
    }
    kolo_root_stop_all();
    return failed;
}

int kolo_kit_run(const kolo_kit_job_t *job)
{
    return job->processes ? run_processes(job) : run_threads(job);
}

/* ---- waiting ---- */

typedef struct {
    kolo_kit_t *kit;
    kolo_tx_t *tx;
    kolo_rx_t *rx;
    size_t line;
    enum { WAIT_SLOT, WAIT_LINE, WAIT_ROOM, WAIT_DRAINED } what;
} awaited_t;

static bool has_come(const awaited_t *a)
{
    switch (a->what) {
    case WAIT_SLOT:
        return kolo_rx_ready(a->rx);
    case WAIT_LINE:
        return kolo_ll_arrived(a->rx, a->line);
    case WAIT_ROOM:
        return kolo_tx_ready(a->tx);
    case WAIT_DRAINED:
        break;
    }
    return kolo_tx_released(a->tx);
}

static void describe(void *arg, char *buf, size_t bytes)
{
    const awaited_t *a = (const awaited_t *)arg;
    static const char *const words[] = {"a slot", "a line", "room", "everything to be taken"};
    snprintf(buf, bytes, "%s (test %s, rank %d)", words[a->what], a->kit->job->name, a->kit->rank);
}

static kolo_status_t await(awaited_t *a, int limit_ms)
{
    kolo_kit_t *kit = a->kit;
    kolo_status_t status = KOLO_OK;
    kolo_wait_t wait;
    if (has_come(a)) return KOLO_OK;
    kolo_wait_init(&wait, &kit->abort, kolo_deadline_ms(limit_ms), describe, a, kit->nranks);
    wait.wakers[wait.nwakers++] = &kit->ctx.waker;
    for (uint32_t polls = 1; status == KOLO_OK; polls++) {
        status = kolo_wire_step(&kit->ctx);
        if (has_come(a)) {
            status = KOLO_OK;
            break;
        }
        bool look = polls % 512 == 0 || wait.polls > wait.spins + wait.yields;
        if (status == KOLO_OK && look) {
            status = a->rx ? a->rx->ops->rx_check(a->rx) : a->tx->ops->tx_check(a->tx);
        }
        if (status == KOLO_OK) status = kolo_wait_pause(&wait);
    }
    kolo_wait_end(&wait);
    return status;
}

kolo_status_t kolo_kit_wait_rx(kolo_kit_t *kit, kolo_rx_t *rx, int limit_ms)
{
    awaited_t a = {.kit = kit, .rx = rx, .what = WAIT_SLOT};
    return await(&a, limit_ms);
}

kolo_status_t kolo_kit_wait_line(kolo_kit_t *kit, kolo_rx_t *rx, size_t line, int limit_ms)
{
    awaited_t a = {.kit = kit, .rx = rx, .line = line, .what = WAIT_LINE};
    return await(&a, limit_ms);
}

kolo_status_t kolo_kit_wait_tx(kolo_kit_t *kit, kolo_tx_t *tx, int limit_ms)
{
    awaited_t a = {.kit = kit, .tx = tx, .what = WAIT_ROOM};
    return await(&a, limit_ms);
}

kolo_status_t kolo_kit_wait_released(kolo_kit_t *kit, kolo_tx_t *tx, int limit_ms)
{
    awaited_t a = {.kit = kit, .tx = tx, .what = WAIT_DRAINED};
    return await(&a, limit_ms);
}

/* ---- connecting ---- */

kolo_status_t kolo_kit_connect(kolo_kit_t *kit, const kolo_conn_spec_t *spec, kolo_tx_t *tx, kolo_rx_t *rx)
{
    kolo_conn_request_t request = {.spec = *spec};
    kit->ctx.deadline_ns = kolo_deadline_ms(SETUP_MS); /* of this set-up, however long the test has run */
    if (spec->writer == kit->rank)
        request.tx = tx;
    else if (kolo_wire_reader_index(&kit->ctx, spec, kit->rank) >= 0)
        request.rx = rx;
    else
        return KOLO_OK;
    return kolo_wire_connect(&kit->ctx, &request, 1);
}

kolo_status_t kolo_kit_connect_both(kolo_kit_t *kit, kolo_conn_spec_t spec, kolo_tx_t *tx, kolo_rx_t *rx)
{
    kolo_conn_request_t requests[2] = {{.spec = spec, .tx = tx}, {.spec = spec, .rx = rx}};
    requests[0].spec.writer = requests[1].spec.reader = kit->rank;
    requests[0].spec.reader = requests[1].spec.writer = 1 - kit->rank;
    kit->ctx.deadline_ns = kolo_deadline_ms(SETUP_MS); /* of this set-up, however long the test has run */
    return kolo_wire_connect(&kit->ctx, requests, 2);
}

/* ---- counting ---- */

static int count_entries(const char *path)
{
    DIR *dir = opendir(path);
    int n = 0;
    if (!dir) return 0;
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

void kolo_kit_count(kolo_kit_holdings_t *holdings)
{
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    holdings->segments = 0;
    while (maps && fgets(line, sizeof line, maps))
        holdings->segments += strstr(line, "memfd:") || strstr(line, "/dev/shm/");
    if (maps) fclose(maps);
    holdings->fds = count_entries("/proc/self/fd");
    holdings->threads = count_entries("/proc/self/task");
}

/* A thread that has been joined may be on its last instructions for the kernel. */
bool kolo_kit_no_more_than(const kolo_kit_holdings_t *before, kolo_kit_holdings_t *after)
{
    for (int i = 0; i < 1000; i++) {
        kolo_kit_count(after);
        if (after->fds <= before->fds && after->threads <= before->threads && after->segments <= before->segments)
            return true;
        poll(NULL, 0, 2);
    }
    return false;
}
