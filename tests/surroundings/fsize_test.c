/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks under RLIMIT_FSIZE, with and without a log and a timeline: the system sends SIGXFSZ to who would make a
 * file, or shared memory, larger than that. What is a convenience goes without; the job ends right. Also a log and
 * a timeline whose name is a pipe that nobody reads; and sandboxes in which memfd_create(2) or accept4(2) is
 * refused.
 */
#include <kolo/engine.h>
#include <kolo/kolo.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS 3
#define COUNT 300000

static char dir[] = "/tmp/kolo-fsize.XXXXXX";
static char id_file[64], log_file[64], timeline[64], autotune[64];

static int fail(int rank, const char *what)
{
    fprintf(stderr, "rank %d: %s (%s)\n", rank, what, kolo_get_last_error(NULL));
    return 1;
}
#define CHECK(cond)                                                                                                \
    do {                                                                                                           \
        if (!(cond)) return fail(rank, #cond);                                                                     \
    } while (0)

static int use_engine(int rank, kolo_comm_t comm)
{
    kolo_tensor_engine_t engine;
    int64_t shape[1] = {1000}, handle;
    static float data[1000];
    CHECK(kolo_engine_init(&engine, comm, NULL) == KOLO_OK);
    for (int i = 0; i < 300; i++) {
        char name[32];
        snprintf(name, sizeof name, "tensor/%d", i);
        kolo_tensor_t tensor = {name, KOLO_FLOAT32, 1, shape, data, data};
        CHECK(kolo_engine_all_reduce(engine, &tensor, KOLO_SUM, 1, 1, NULL, &handle) == KOLO_OK);
        CHECK(kolo_engine_wait(engine, handle, 0, NULL) == KOLO_OK);
    }
    CHECK(kolo_engine_shutdown(engine) == KOLO_OK);
    return 0;
}

/* One of the caller's memory and one of Kolo's. */
static int use_windows(int rank, kolo_comm_t comm)
{
    static int32_t mine[5000], sent[5000];
    kolo_window_t windows[2];
    void *made;
    const int to = (rank + 1) % RANKS, from = (rank + RANKS - 1) % RANKS;
    const kolo_signal_wait_t wait = {from, 0, 2};
    CHECK(kolo_window_register(comm, mine, sizeof mine, &windows[0]) == KOLO_OK);
    CHECK(kolo_window_register(comm, NULL, sizeof mine, &windows[1]) == KOLO_OK);
    CHECK(kolo_window_memory(comm, windows[1], &made, NULL) == KOLO_OK);
    for (int i = 0; i < 5000; i++) sent[i] = 100 * rank + i;
    for (int i = 0; i < 2; i++)
        CHECK(kolo_put_signal(sent, 5000, KOLO_INT32, to, windows[i], 0, 0, comm, NULL) == KOLO_OK);
    CHECK(kolo_wait_signal(&wait, 1, comm, NULL) == KOLO_OK);
    for (int i = 0; i < 5000; i++) CHECK(mine[i] == 100 * from + i && ((int32_t *)made)[i] == 100 * from + i);
    for (int i = 2; i-- > 0;) CHECK(kolo_window_deregister(comm, windows[i]) == KOLO_OK);
    return 0;
}

static int be_rank(int rank, bool engine)
{
    kolo_unique_id_t id;
    kolo_comm_t comm;
    static int32_t data[COUNT];
    if (rank == 0) CHECK(kolo_get_unique_id(&id) == KOLO_OK && kolo_unique_id_save(&id, id_file) == KOLO_OK);
    if (rank != 0) CHECK(kolo_unique_id_load(&id, id_file, 20000) == KOLO_OK);
    CHECK(kolo_comm_init_rank(&comm, RANKS, id, rank, NULL) == KOLO_OK);
    for (int i = 0; i < COUNT; i++) data[i] = rank + 1;
    CHECK(kolo_all_reduce(data, data, COUNT, KOLO_INT32, KOLO_SUM, comm, NULL) == KOLO_OK);
    for (int i = 0; i < COUNT; i++) CHECK(data[i] == RANKS * (RANKS + 1) / 2);
    if (use_windows(rank, comm) || (engine && use_engine(rank, comm))) return 1;
    CHECK(kolo_comm_finalize(comm) == KOLO_OK);
    CHECK(kolo_comm_destroy(comm) == KOLO_OK);
    return 0;
}

static void limit_to(rlim_t bytes)
{
    struct rlimit limit = {bytes, bytes};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) abort();
}

/* Who may not make memory files: no rank, all, or one. */
enum { NOBODY = -2, ALL = -1 };
static int sandboxed = NOBODY;

static void refuse(int number, int error)
{
    struct sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                                   BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
                                   BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
                                   BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        abort();
}

/* Returns how many ranks did not end right. */
static int run(rlim_t bytes, bool files, int (*fn)(int rank, bool engine))
{
    pid_t pids[RANKS];
    int wrong = 0, status;
    unlink(id_file);
    for (int r = 0; r < RANKS; r++) {
        pids[r] = fork();
        if (pids[r] < 0) abort();
        if (pids[r] > 0) continue;
        alarm(60);
        if (files) {
            setenv("KOLO_LOG", "debug", 1);
            setenv("KOLO_LOG_FILE", log_file, 1);
            setenv("KOLO_TIMELINE", timeline, 1);
            setenv("KOLO_AUTOTUNE", "1", 1);
            setenv("KOLO_AUTOTUNE_LOG", autotune, 1);
        }
        if (bytes > 0) limit_to(bytes);
        if (sandboxed == ALL || sandboxed == r) refuse(SYS_memfd_create, r % 2 ? EPERM : ENOSYS);
        _exit(fn(r, files));
    }
    for (int r = 0; r < RANKS; r++) {
        if (waitpid(pids[r], &status, 0) != pids[r]) abort();
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
        fprintf(stderr, "rank %d: %s %d\n", r, WIFSIGNALED(status) ? "signal" : "status",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        wrong++;
    }
    return wrong;
}

/* The call fails at once, with the name of the file. */
static int be_refused(int rank, bool engine)
{
    kolo_unique_id_t id;
    (void)engine;
    CHECK(kolo_get_unique_id(&id) != KOLO_OK && strstr(kolo_get_last_error(NULL), "pipe"));
    return 0;
}

/* A root that may accept nobody says so in its log, and does not burn a core meanwhile. */
static int be_unheard(int rank, bool engine)
{
    kolo_unique_id_t id;
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    kolo_comm_t comm;
    static char text[65536];
    (void)engine;
    if (rank != 0) return 0;
    refuse(SYS_accept4, EPERM);
    config.init_timeout_ms = 1500;
    CHECK(kolo_get_unique_id(&id) == KOLO_OK && kolo_comm_init_rank(&comm, 2, id, 0, &config) != KOLO_OK);
    CHECK(clock() < CLOCKS_PER_SEC / 2);
    int fd = open(log_file, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0 && close(fd) == 0);
    CHECK(strstr(text, "cannot accept a caller now: Operation not permitted"));
    return 0;
}

static int be_without_timeline(int rank, bool engine)
{
    kolo_tensor_engine_t one;
    (void)engine;
    kolo_status_t status = kolo_engine_init(&one, NULL, NULL); /* one without a timeline, or none */
    CHECK(strstr(kolo_get_last_error(NULL), "pipe"));
    CHECK(status != KOLO_OK || kolo_engine_shutdown(one) == KOLO_OK);
    return 0;
}

static int report(const char *name, int wrong)
{
    printf("%s %s\n", wrong ? "FAIL" : "ok  ", name);
    fflush(stdout);
    return wrong != 0;
}

int main(void)
{
    int failed = 0;
    if (!mkdtemp(dir)) return 1;
    snprintf(id_file, sizeof id_file, "%s/id", dir);
    snprintf(log_file, sizeof log_file, "%s/log", dir);
    snprintf(timeline, sizeof timeline, "%s/timeline", dir);
    snprintf(autotune, sizeof autotune, "%s/autotune", dir);
    failed += report("a megabyte: no flight record, right sums", run(1000000, false, be_rank));
    failed += report("a page", run(4096, false, be_rank));
    failed += report("two hundred bytes: an id, and no page", run(200, false, be_rank));
    sandboxed = ALL;
    failed += report("no memory files in a sandbox", run(0, false, be_rank));
    sandboxed = 1;
    failed += report("no memory files on one rank", run(0, false, be_rank));
    sandboxed = NOBODY;
    failed += report("log, timeline and autotune's log end early, the ranks do not", run(5000, true, be_rank));
    unlink(log_file);
    unlink(timeline);
    unlink(autotune);
    failed += report("a root that may accept nobody says so", run(0, true, be_unheard));
    unlink(log_file);
    if (mkfifo(log_file, 0600) != 0) return 1;
    failed += report("a log that is a pipe without a reader holds nobody up", run(0, true, be_refused));
    unlink(log_file);
    if (mkfifo(timeline, 0600) != 0) return 1;
    failed +=
        report("a timeline that is a pipe without a reader holds nobody up", run(0, true, be_without_timeline));
    unlink(timeline);
    unlink(log_file);
    unlink(autotune);
    unlink(id_file);
    rmdir(dir);
    return failed > 0;
}
