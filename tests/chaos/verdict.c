/* SPDX-License-Identifier: Apache-2.0
 *
 * Was a run right? Everybody ended in time and by itself, right results or an error, errors only where there was a
 * reason, the lost rank by its name, nothing left behind. And of those that hang, what they wait for.
 */
#include "chaos/chaos.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(chaos_verdict_t *v, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(chaos_verdict_t *v, const char *fmt, ...)
{
    size_t used = strlen(v->text);
    va_list args;
    va_start(args, fmt);
    if (used + 1 < sizeof v->text) vsnprintf(v->text + used, sizeof v->text - used, fmt, args);
    va_end(args);
}

/* How the processes ended. */
static void judge_exit(const chaos_scenario_t *s, const chaos_run_t *run, int r, chaos_verdict_t *v)
{
    int status = run->exits[r];
    bool victim = (chaos_is_deadly(s) && run->fired && r == s->victim) || r == s->early_victim;
    if (status == -1) {
        v->hang = true;
        say(v, "  rank %d hangs\n", r);
    } else if (WIFSIGNALED(status) && !(victim && WTERMSIG(status) == SIGKILL)) {
        v->wrong = true;
        say(v, "  rank %d died of signal %d\n", r, WTERMSIG(status));
    } else if (WIFEXITED(status) && WEXITSTATUS(status) != 0 && !(victim && WEXITSTATUS(status) == 3)) {
        v->wrong = true;
        say(v, "  rank %d ended with status %d\n", r, WEXITSTATUS(status));
    }
}

/* A survivor met the loss in a child and gave this communicator up: that is what its peers here know. */
static bool names_who_gave_up(const chaos_scenario_t *s, const chaos_shared_t *shared, const chaos_run_t *run,
                              const chaos_report_t *p)
{
    char process[32];
    for (int r = 0; r < chaos_procs(s) && strstr(p->text, "gave up"); r++) {
        snprintf(process, sizeof process, "process %d)", (int)run->pids[r]);
        if (shared->ranks[r].beside && strstr(p->text, process)) return true;
    }
    return false;
}

static bool another_failed(const chaos_scenario_t *s, const chaos_shared_t *shared, const chaos_report_t *p)
{
    for (int r = 0; r < chaos_procs(s); r++)
        if (r != s->victim && &shared->ranks[r] != p && atomic_load(&shared->ranks[r].error_ns)) return true;
    return false;
}

/* "...: ranks 1-2 (never called) are missing: 2 of 4 ranks have called ..." */
static bool lists_as_missing(const char *text, const char *number)
{
    const char *end = strstr(text, " missing: "), *list = NULL;
    for (const char *at = strstr(text, ": rank"); end && at && at < end; at = strstr(at + 1, ": rank")) list = at;
    const char *found = list ? strstr(list, number) : NULL;
    return found && found < end;
}

/* Before all are in there are other words for a lost rank: it is missing, or the root does not answer. */
static bool names_the_missing(const chaos_scenario_t *s, const chaos_shared_t *shared, const chaos_report_t *p)
{
    char number[12];
    snprintf(number, sizeof number, "%d", p->victim_as);
    if (strcmp(p->where, "get_unique_id") == 0) return true;
    /* A revoke of the program may be the first that a rank hears: its revoker does not wait for who is in
     * trouble. */
    if (s->revoke_at >= 0 && p->status == KOLO_ERR_REVOKED && strstr(p->text, " revoked ")) return true;
    /* Some shrink without the last rank, some without the lost one, some without a list. */
    bool of_all = strncmp(p->where, "shrink of all", 13) == 0, shrinks = strncmp(p->where, "shrink", 6) == 0;
    if (of_all && strstr(p->text, "all must name the same")) return true;
    /* One that met the loss elsewhere leaves in the midst of a shrink: that is what the others know. */
    bool leaves = strstr(p->text, "gave up") || strstr(p->text, "has given the communicator up");
    if (shrinks && leaves && another_failed(s, shared, p)) return true;
    if (strcmp(p->where, "the last shrink") == 0) return true;
    if (lists_as_missing(p->text, number)) return true;
    /* The root of a grow is in the gateway's process. */
    if (strcmp(p->where, "grow as a new rank") == 0 && strstr(p->text, "the root")) return true;
    /* At the door of a grow ranks have other numbers, and the words say which. */
    const char *door = strstr(p->text, " door (k is rank k+");
    int shift = 0;
    if (door && sscanf(door, " door (k is rank k+%d)", &shift) == 1) {
        char there[24];
        bool gateway = shared->ranks[s->victim].made_grow_id; /* between them it is rank 0 */
        snprintf(there, sizeof there, "rank %d ", gateway ? 0 : p->victim_as - shift);
        if (strstr(p->text, there)) return true;
    }
    return s->victim == 0 && strcmp(p->where, "init") == 0 && strstr(p->text, "the root");
}

static bool some_noticed(const chaos_scenario_t *s, const chaos_shared_t *shared)
{
    for (int r = 0; r < chaos_procs(s); r++)
        if (r != s->victim && atomic_load(&shared->ranks[r].error_ns) && shared->ranks[r].victim_as >= 0)
            return true;
    return false;
}

static void judge_error(const chaos_scenario_t *s, const chaos_shared_t *shared, const chaos_run_t *run, int r,
                        chaos_verdict_t *v)
{
    const chaos_report_t *p = &shared->ranks[r];
    char name[24], pid[24], as[24];
    uint64_t fault = atomic_load(&shared->fault_ns), error = atomic_load(&p->error_ns);
    bool deadly = chaos_is_deadly(s);
    if (!error) return;
    if ((!run->fired && !s->after_error) || chaos_is_harmless(s)) {
        v->wrong = true;
        say(v, "  rank %d has an error without a reason in %s: %s: %s\n", r, p->where,
            kolo_status_string(p->status), p->text);
        return;
    }
    if (!*p->text) {
        v->wrong = true;
        say(v, "  rank %d: %s in %s without a word\n", r, kolo_status_string(p->status), p->where);
    }
    bool cut = s->how == CHAOS_CUT_LINK; /* both sides are to hear of it */
    if (!cut && (!deadly || r == s->victim)) return;
    if (s->after_error) return;                                      /* it may be of that */
    if (!cut && p->victim_as < 0 && some_noticed(s, shared)) return; /* and went ways of their own */
    /* It may be a member all the same: a shrink that has been agreed on when a rank dies succeeds with it. */
    snprintf(pid, sizeof pid, "process %d)", (int)run->pids[s->victim]);
    if (!cut && p->victim_as < 0 && !strstr(p->text, pid)) {
        v->wrong = true;
        say(v, "  rank %d has an error in %s where the lost rank is not a member: %s: %s\n", r, p->where,
            kolo_status_string(p->status), p->text);
        return;
    }
    if (error >= fault) {
        v->late[v->ndetect] = strcmp(p->where, "grow as a new rank") == 0; /* this rank was not in yet */
        v->detect_ms[v->ndetect++] = (double)(error - fault) / 1e6;
    }
    if (cut) return;
    snprintf(name, sizeof name, "rank %d", p->victim_at);
    snprintf(pid, sizeof pid, "%d", (int)run->pids[s->victim]);
    snprintf(as, sizeof as, "rank %d", p->victim_as); /* in a child it has another number */
    bool named = strstr(p->text, name) || strstr(p->text, pid) || strstr(p->text, as);
    if (!named && !names_the_missing(s, shared, p) && !names_who_gave_up(s, shared, run, p)) {
        v->misnamed++;
        if (!chaos_options.any_name) v->wrong = true;
        say(v, "  rank %d does not name %s in %s: %s: %s\n", r, name, p->where, kolo_status_string(p->status),
            p->text);
    }
}

/* After a death in the middle, when all survivors met it, shrink has to work. */
static void judge_shrink(const chaos_scenario_t *s, const chaos_shared_t *shared, const chaos_run_t *run,
                         chaos_verdict_t *v)
{
    int tried[CHAOS_PROCS + 1] = {0}, failed = -1; /* generations are few */
    int progress = atomic_load(&shared->fault_progress);
    if (!chaos_is_deadly(s) || !run->fired || !s->shrinks || s->after_error) return;
    if (progress < CHAOS_READY || progress >= CHAOS_ENDING) return;
    for (int r = 0; r < chaos_procs(s); r++)
        if (shared->ranks[r].shrunk_before) return; /* they did not mean the same shrink */
    for (int r = 0; r < chaos_procs(s); r++) {
        const chaos_report_t *p = &shared->ranks[r];
        if (r != s->victim && p->shrunk) tried[p->shrunk_of]++;
    }
    for (int r = 0; r < chaos_procs(s); r++) {
        const chaos_report_t *p = &shared->ranks[r];
        if (r != s->victim && p->shrunk < 0 && tried[p->shrunk_of] == p->shrunk_ranks - 1) failed = r;
    }
    if (failed < 0) return;
    /* One that had met no loss before the end leaves out the last rank, not the lost one. */
    for (int r = 0; r < chaos_procs(s); r++) {
        const chaos_report_t *p = &shared->ranks[r], *q = &shared->ranks[failed];
        if (r != s->victim && p->shrunk && p->shrunk_of == q->shrunk_of && p->shrunk_out != q->shrunk_out) return;
    }
    v->wrong = true;
    say(v, "  all survivors shrank, rank %d failed: %s\n", failed, shared->ranks[failed].shrink_text);
}

void chaos_judge(const chaos_scenario_t *s, const chaos_shared_t *shared, const chaos_run_t *run,
                 chaos_verdict_t *v)
{
    memset(v, 0, sizeof *v);
    v->fired = run->fired;
    v->in_bootstrap = atomic_load(&shared->fault_progress) < CHAOS_READY;
    for (int r = 0; r < chaos_procs(s); r++) {
        const chaos_report_t *p = &shared->ranks[r];
        judge_exit(s, run, r, v);
        judge_error(s, shared, run, r, v);
        if (atomic_load(&p->wrong)) {
            v->wrong = true;
            say(v, "  rank %d: %s\n", r, p->wrong_text);
        }
        if (atomic_load(&p->leaks)) {
            v->leak = true;
            say(v, "  rank %d leaves behind %s\n", r, p->leak_text);
        }
    }
    judge_shrink(s, shared, run, v);
    if (run->strays) {
        v->leak = true;
        say(v, "  %d processes were left behind\n", run->strays);
    }
    for (int r = 0; r < chaos_procs(s) && v->hang; r++)
        if (atomic_load(&shared->ranks[r].error_ns))
            say(v, "  rank %d had %s in %s: %.400s\n", r, kolo_status_string(shared->ranks[r].status),
                shared->ranks[r].where, shared->ranks[r].text);
}

/* ---- what the hung wait for ---- */

static void print_file(const char *path, const char *label)
{
    char line[256];
    FILE *f = fopen(path, "r");
    if (!f) return;
    if (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        fprintf(stderr, " %s=%s", label, line);
    }
    fclose(f);
}

static void dump_threads(pid_t pid)
{
    char path[128];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *dir = opendir(path);
    if (!dir) return;
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        fprintf(stderr, "    thread %.20s:", e->d_name);
        static const char *const files[] = {"comm", "wchan", "syscall"};
        for (int i = 0; i < 3; i++) {
            snprintf(path, sizeof path, "/proc/%d/task/%.20s/%s", (int)pid, e->d_name, files[i]);
            print_file(path, files[i]);
        }
        fprintf(stderr, "\n");
    }
    closedir(dir);
}

void chaos_dump(const chaos_scenario_t *s, const chaos_shared_t *shared, const chaos_run_t *run)
{
    fprintf(stderr, "chaos: seed %llu hangs after %llu ms:\n", (unsigned long long)s->seed,
            (unsigned long long)(run->took_ns / 1000000));
    for (int r = 0; r < chaos_procs(s); r++) {
        const chaos_report_t *p = &shared->ranks[r];
        fprintf(stderr, "  rank %d (pid %d): %s, progress %d, doing \"%s\"\n", r, (int)run->pids[r],
                run->exits[r] == -1 ? "is still there" : "has ended", atomic_load(&p->progress), p->doing);
        if (run->exits[r] == -1) dump_threads(run->pids[r]);
    }
}

void chaos_show_log(int fd)
{
    char buf[4096];
    ssize_t n;
    off_t size = lseek(fd, 0, SEEK_END), from = chaos_options.verbose || size < 16384 ? 0 : size - 16384;
    lseek(fd, from, SEEK_SET);
    while ((n = read(fd, buf, sizeof buf)) > 0) fwrite(buf, 1, (size_t)n, stderr);
}

void chaos_result(chaos_result_t *r, const chaos_scenario_t *s, const chaos_verdict_t *v, int point)
{
    *r = (chaos_result_t){.seed = s->seed,
                          .point = point,
                          .fault = s->fault,
                          .cut = s->how == CHAOS_CUT_LINK,
                          .hang = v->hang,
                          .wrong = v->wrong,
                          .leak = v->leak,
                          .fired = v->fired,
                          .joining = v->in_bootstrap,
                          .misnamed = v->misnamed,
                          .ndetect = v->ndetect};
    memcpy(r->detect_ms, v->detect_ms, sizeof r->detect_ms);
    memcpy(r->late, v->late, sizeof r->late);
}
