/* SPDX-License-Identifier: Apache-2.0
 *
 * One run: starts the ranks, does the fault when its moment has come, continues who is stopped, and waits for all,
 * for a limited time. Never calls the library, so it may fork and kill at will.
 */
#include "chaos/chaos.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_INITS    7.5  /* a run may take as long as so many time limits of init */
#define STRAY_LIMIT_MS 3000 /* longer than children of faults hold on */

uint64_t chaos_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

void *chaos_share(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) abort();
    return p;
}

void chaos_nap_us(long us)
{
    struct timespec ts = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&ts, NULL);
}

static void set(const char *key, const char *value)
{
    if (setenv(key, value, 1)) abort();
}

static void set_parameters(const chaos_scenario_t *s, int rank)
{
    if (s->wires >= CHAOS_SHM || chaos_options.cards) set("KOLO_CMA_DISABLE", "1");
    if (s->wires >= CHAOS_TCP || chaos_options.cards) set("KOLO_SHM_DISABLE", "1");
    if (*s->algorithms) set("KOLO_ALGO", s->algorithms);
    if (s->how == CHAOS_AT_POINT && rank == s->victim) set("KOLO_FAIL_POINT", s->rule);
    if (rank == s->early_victim) set("KOLO_FAIL_POINT", s->early_rule);
    if (s->how == CHAOS_CUT_LINK) set("KOLO_SUSPECT_MS", "300");
    if (s->how == CHAOS_CUT_LINK) set("KOLO_VERDICT_MS", "1000");
    set("KOLO_ROOT_IDLE_MS", "15000"); /* the census waits for that */
    set("KOLO_STALL_WARN_MS", "5000"); /* a hung rank has said what it waits for */
    set("KOLO_LOG", chaos_options.verbose ? "info" : "warn");
}

static void be_rank(const chaos_scenario_t *s, chaos_shared_t *shared, const chaos_run_t *run, int rank, bool count)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(run->log_fd, 2);
    close(run->log_fd);
    if (s->hosts && !chaos_net_enter(rank % s->hosts)) abort();
    set_parameters(s, rank);
    chaos_faults_prepare(s, shared, rank);
    if (count) kolo_fail_points_watch();
    chaos_rank_live(s, shared, rank);
    exit(0); /* with the sanitizers' last look */
}

static void start(const chaos_scenario_t *s, chaos_shared_t *shared, chaos_run_t *run, bool count)
{
    memset(run, 0, sizeof *run);
    memset(shared, 0, sizeof *shared);
    run->log_fd = memfd_create("chaos-log", MFD_CLOEXEC);
    if (run->log_fd < 0) abort();
    fflush(NULL);
    for (int r = 0; r < chaos_procs(s); r++) {
        run->exits[r] = -1;
        run->pids[r] = fork();
        if (run->pids[r] < 0) abort();
        if (run->pids[r] == 0) be_rank(s, shared, run, r, count);
    }
}

static void note_fault(chaos_shared_t *shared, const chaos_scenario_t *s)
{
    uint64_t none = 0;
    if (atomic_compare_exchange_strong(&shared->fault_ns, &none, chaos_now_ns()))
        atomic_store(&shared->fault_progress, atomic_load(&shared->ranks[s->victim].progress));
}

static void do_fault(const chaos_scenario_t *s, chaos_shared_t *shared, const chaos_run_t *run)
{
    pid_t pid = run->pids[s->victim];
    if (run->exits[s->victim] != -1) return; /* it was quicker */
    if (s->how == CHAOS_CUT_LINK) {
        note_fault(shared, s);
        chaos_net_link(s->victim % s->hosts, false);
    } else if (s->fault == KOLO_FAULT_KILL || s->fault == KOLO_FAULT_STOP) {
        note_fault(shared, s);
        kill(pid, s->fault == KOLO_FAULT_KILL ? SIGKILL : SIGSTOP);
    } else if (s->fault == KOLO_FAULT_DELAY || s->fault == KOLO_FAULT_ERROR) {
        return; /* only at points */
    } else {
        kill(pid, SIGUSR1); /* the rank notes the time */
    }
}

/* The moment has come, or is about to: true once it is done. */
static bool inject(const chaos_scenario_t *s, chaos_shared_t *shared, const chaos_run_t *run, uint64_t *due_ns)
{
    if (s->how != CHAOS_AT_MOMENT && s->how != CHAOS_CUT_LINK) return true;
    if (atomic_load(&shared->ranks[s->victim].progress) < s->at_progress) return false;
    if (*due_ns == 0) *due_ns = chaos_now_ns() + (uint64_t)s->after_us * 1000;
    if (chaos_now_ns() < *due_ns) return false;
    do_fault(s, shared, run);
    return true;
}

typedef struct {
    uint64_t continue_ns[CHAOS_PROCS]; /* when a stopped rank goes on */
    int left;
} watch_t;

static int rank_of(const chaos_run_t *run, int nranks, pid_t pid)
{
    for (int r = 0; r < nranks; r++)
        if (run->pids[r] == pid) return r;
    return -1;
}

static bool none_left(const chaos_scenario_t *s, const chaos_run_t *run)
{
    for (int r = 0; r < s->nranks; r++)
        if (run->exits[r] == -1) return false;
    return true;
}

static void reap(const chaos_scenario_t *s, chaos_shared_t *shared, chaos_run_t *run, watch_t *w)
{
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0;) {
        int r = rank_of(run, chaos_procs(s), pid);
        if (r < 0) continue; /* a child that a fault left */
        if (WIFSTOPPED(status)) {
            w->continue_ns[r] = chaos_now_ns() + (uint64_t)s->stop_ms * 1000000;
            continue;
        }
        run->exits[r] = status;
        w->continue_ns[r] = 0; /* its number may be another's now */
        w->left--;
        /* an application whose rank 0 is lost before it had an id does not go on waiting for one */
        int none = 0;
        if (r == 0) atomic_compare_exchange_strong(&shared->id_there, &none, -1);
        if (none_left(s, run)) { /* who would have called the new ones is gone */
            none = 0;
            atomic_compare_exchange_strong(&shared->grow_there, &none, -1);
        }
        if (atomic_load(&shared->ranks[r].progress) != CHAOS_GONE) atomic_store(&shared->broken, 1);
    }
    for (int r = 0; r < chaos_procs(s); r++) {
        if (!w->continue_ns[r] || chaos_now_ns() < w->continue_ns[r]) continue;
        w->continue_ns[r] = 0;
        kill(run->pids[r], SIGCONT);
    }
}

/* Not every kernel lists the children of a process, so all are asked for their parent. Returns how many. */
static int kill_children(void)
{
    int n = 0;
    DIR *dir = opendir("/proc");
    for (const struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        char path[300], line[256] = "", *after;
        int parent = 0;
        snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
        FILE *f = e->d_name[0] >= '1' && e->d_name[0] <= '9' ? fopen(path, "r") : NULL;
        if (!f) continue;
        if (fgets(line, sizeof line, f) && (after = strrchr(line, ')')) &&
            sscanf(after, ") %*c %d", &parent) == 1 && parent == (int)getpid()) {
            kill((pid_t)strtol(e->d_name, NULL, 10), SIGKILL);
            n++;
        }
        fclose(f);
    }
    if (dir) closedir(dir);
    return n ? n : 1; /* somebody was there, or we would not look */
}

/* Whatever still lives below us; the strays of faults end by themselves. */
static void sweep(chaos_run_t *run)
{
    uint64_t end = chaos_now_ns() + chaos_limit_ns(STRAY_LIMIT_MS);
    pid_t pid;
    while ((pid = waitpid(-1, NULL, WNOHANG)) >= 0 && chaos_now_ns() < end)
        if (pid == 0) chaos_nap_us(1000);
    if (pid < 0) return;
    run->strays = kill_children();
    while (waitpid(-1, NULL, 0) > 0) continue;
}

static void debug_hung(const chaos_scenario_t *s, const chaos_run_t *run)
{
    for (int r = 0; r < s->nranks && chaos_options.debugger; r++) {
        char command[256];
        if (run->exits[r] != -1) continue;
        snprintf(command, sizeof command, "%s %d 1>&2", chaos_options.debugger, (int)run->pids[r]);
        if (system(command) != 0) fprintf(stderr, "chaos: %s failed\n", command);
    }
}

void chaos_run(const chaos_scenario_t *s, chaos_shared_t *shared, chaos_verdict_t *verdict, bool count)
{
    chaos_run_t run;
    watch_t w = {.left = chaos_procs(s)};
    bool done = false;
    chaos_look_around();
    uint64_t due_ns = 0, begin = chaos_now_ns(),
             end = begin + (uint64_t)(LIMIT_INITS * 1e6 * chaos_init_timeout_ms());
    if (s->hosts) chaos_net_link(-1, true);
    start(s, shared, &run, count);
    while (w.left && chaos_now_ns() < end) {
        if (!done) done = inject(s, shared, &run, &due_ns);
        reap(s, shared, &run, &w);
        chaos_nap_us(done ? 500 : 100);
    }
    run.took_ns = chaos_now_ns() - begin;
    run.fired = atomic_load(&shared->fault_ns) != 0;
    if (w.left) {
        chaos_print_lock(true);
        chaos_dump(s, shared, &run);
        debug_hung(s, &run);
        chaos_print_lock(false);
        for (int r = 0; r < chaos_procs(s); r++)
            if (run.exits[r] == -1) kill(run.pids[r], SIGKILL);
    }
    sweep(&run);
    chaos_judge(s, shared, &run, verdict);
    if (chaos_options.verbose || verdict->hang || verdict->wrong || verdict->leak) {
        chaos_print_lock(true);
        fprintf(stderr, "chaos: what the ranks of seed %llu logged:\n", (unsigned long long)s->seed);
        chaos_show_log(run.log_fd);
        chaos_print_lock(false);
    }
    close(run.log_fd);
}
