/* SPDX-License-Identifier: Apache-2.0
 *
 * The job on one host, twice: two servers and three workers undisturbed, then with server 1 killed half way and
 * started anew. Prints a line of progress, draws the loss of both runs, and says at the end whether it was worth
 * it.
 */
#include "ps.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_S 240 /* of one run */

typedef struct {
    const options_t *options;
    char ps[512], work[512], secret[512], out[512];
    bool disturbed;
    int report[2];
    pid_t pids[2 * MOST_TASKS]; /* servers, then workers */
    bool over[2 * MOST_TASKS];
    uint64_t steps;
    uint64_t applied[MOST_TASKS];
    int restarts, right, of;
    float *loss; /* by step, the mean of the workers */
} job_t;

static const char *const pictures[2] = {"undisturbed", "disturbed"};

static bool start(job_t *job, int i)
{
    const options_t *o = job->options;
    bool serves = i < o->servers;
    char task[16], epochs[16], seed[32], report[16];
    snprintf(task, sizeof task, "%d", serves ? i : i - o->servers);
    snprintf(epochs, sizeof epochs, "%d", o->epochs);
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)o->seed);
    snprintf(report, sizeof report, "%d", job->report[1]);
    const char *argv[] = {"param-server",
                          "--job",
                          serves ? "ps" : "worker",
                          "--task",
                          task,
                          "--ps",
                          job->ps,
                          "--workers",
                          job->work,
                          "--secret",
                          job->secret,
                          "--epochs",
                          epochs,
                          "--seed",
                          seed,
                          "--out",
                          job->out,
                          "--report",
                          report,
                          "--protocol",
                          o->protocol ? o->protocol : "kolo",
                          "--data",
                          o->data,
                          o->async ? "--async" : NULL,
                          NULL};
    pid_t parent = getpid();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        execv("/proc/self/exe", (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    if (pid < 0) perror("param-server: fork");
    job->pids[i] = pid;
    return pid > 0;
}

static void progress(const job_t *job, const note_t *note)
{
    static uint64_t last_ms;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
    if (ms < last_ms + 500 && note->step < job->steps) return;
    last_ms = ms;
    printf("%s: step %llu of %llu, loss %.4f, restarts %d\n", pictures[job->disturbed],
           (unsigned long long)note->step, (unsigned long long)job->steps, (double)note->loss, job->restarts);
}

static bool take_note(job_t *job, const note_t *note)
{
    const options_t *o = job->options;
    if (note->role == 'p') {
        job->applied[note->task] = note->applied;
        if (!job->disturbed || job->restarts || note->task != 1 || note->step < job->steps / 2) return true;
        printf("%s: server 1 is killed after step %llu\n", pictures[1], (unsigned long long)note->step);
        kill(job->pids[1], SIGKILL);
        waitpid(job->pids[1], NULL, 0);
        job->restarts++;
        return start(job, 1);
    }
    if (note->step >= 1 && note->step <= job->steps) job->loss[note->step - 1] += note->loss / (float)o->workers;
    if (note->task == 0 && note->step <= job->steps) progress(job, note);
    if (note->of) {
        job->right = note->right;
        job->of = note->of;
    }
    return true;
}

/* How many still run; -1: one has failed. */
static int look_after(job_t *job)
{
    int n = job->options->servers + job->options->workers, alive = 0;
    for (int i = 0; i < n; i++) {
        int status;
        if (job->over[i]) continue;
        pid_t pid = waitpid(job->pids[i], &status, WNOHANG);
        alive += pid == 0;
        if (pid != job->pids[i]) continue;
        job->over[i] = true;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
        fprintf(stderr, "param-server: %s %d has failed (status %d)\n",
                i < job->options->servers ? "server" : "worker",
                i < job->options->servers ? i : i - job->options->servers, status);
        return -1;
    }
    return alive;
}

static bool watch(job_t *job)
{
    time_t end = time(NULL) + LIMIT_S;
    for (int alive = 1; time(NULL) < end;) {
        struct pollfd fd = {.fd = job->report[0], .events = POLLIN};
        note_t note;
        if (poll(&fd, 1, alive ? 100 : 0) > 0) {
            if (read(job->report[0], &note, sizeof note) != (ssize_t)sizeof note) return false;
            if (!take_note(job, &note)) return false;
            continue;
        }
        if (alive == 0) return true; /* and nothing is left to read */
        alive = look_after(job);
        if (alive < 0) return false;
    }
    fprintf(stderr, "param-server: the run has taken longer than %d s\n", LIMIT_S);
    return false;
}

static bool prepare(job_t *job, int run)
{
    uint8_t secret[32];
    int pid = (int)getpid(), n = 0;
    char part[600];
    for (int i = 0; i < job->options->servers; i++)
        n += snprintf(job->ps + n, sizeof job->ps - (size_t)n, "%s127.%d.%d.%d:7411", i ? "," : "", 1 + pid % 200,
                      pid / 200 % 250, 1 + i + 20 * run);
    n = 0;
    for (int i = 0; i < job->options->workers; i++)
        n += snprintf(job->work + n, sizeof job->work - (size_t)n, "%s127.%d.%d.%d:7411", i ? "," : "",
                      1 + pid % 200, pid / 200 % 250, 101 + i + 20 * run);
    snprintf(job->out, sizeof job->out, "%s", job->options->out);
    if (mkdir(job->out, 0777) != 0 && errno != EEXIST) perror(job->out);
    snprintf(job->secret, sizeof job->secret, "%.400s/param-server-secret", job->options->out);
    for (int i = 0; i < job->options->servers; i++) { /* of an earlier run */
        snprintf(part, sizeof part, "%s/param-server-part-%d", job->out, i);
        unlink(part);
    }
    int fd = open(job->secret, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool fine = fd >= 0 && getrandom(secret, sizeof secret, 0) == (ssize_t)sizeof secret &&
                write(fd, secret, sizeof secret) == (ssize_t)sizeof secret;
    if (fd >= 0) close(fd);
    if (!fine) perror(job->secret);
    return fine && pipe(job->report) == 0 && fcntl(job->report[0], F_SETFD, FD_CLOEXEC) == 0;
}

static bool run(job_t *job, int which)
{
    int n = job->options->servers + job->options->workers;
    job->disturbed = which == 1;
    if (!prepare(job, which)) return false;
    bool fine = true;
    for (int i = 0; fine && i < n; i++) fine = start(job, i);
    fine = fine && watch(job);
    for (int i = 0; i < n; i++) {
        if (job->over[i] || job->pids[i] <= 0) continue;
        kill(job->pids[i], SIGKILL);
        waitpid(job->pids[i], NULL, 0);
    }
    close(job->report[0]);
    close(job->report[1]);
    unlink(job->secret);
    return fine;
}

static void draw(const job_t *jobs, const char *out)
{
    char name[600];
    snprintf(name, sizeof name, "%s/param-server.svg", out);
    FILE *file = fopen(name, "w");
    if (file == NULL) return;
    fprintf(file, "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 800 400' font-family='sans-serif'>\n"
                  "<rect width='800' height='400' fill='white'/><text x='40' y='24'>loss by step (logarithmic): "
                  "grey undisturbed, blue with a server killed half way</text>\n");
    for (int r = 0; r < 2; r++) {
        fprintf(file, "<polyline fill='none' stroke='%s' stroke-width='%d' points='", r ? "#1668b8" : "#8a8a8a",
                r ? 1 : 3);
        for (uint64_t i = 0; i < jobs[r].steps; i++)
            fprintf(file, "%.1f,%.1f ", 40 + 740 * (double)i / (double)jobs[r].steps,
                    120 - 65 * log10(fmax((double)jobs[r].loss[i], 0.0001)));
        fprintf(file, "'/>\n");
    }
    fprintf(file, "</svg>\n");
    fclose(file);
    printf("loss of both runs: %s\n", name);
}

int run_monitor(const options_t *options)
{
    job_t jobs[2];
    digits_t digits;
    char error[256];
    memset(jobs, 0, sizeof jobs);
    if (!digits_load(&digits, options->data, error, sizeof error)) {
        fprintf(stderr, "param-server: %s\n", error);
        return 1;
    }
    uint64_t steps = (uint64_t)options->epochs * (uint64_t)shards_steps(digits.train.count), lost = 0;
    digits_free(&digits);
    signal(SIGPIPE, SIG_IGN);
    bool fine = true;
    for (int r = 0; fine && r < 2; r++) {
        jobs[r].options = options;
        jobs[r].steps = steps;
        jobs[r].loss = calloc(steps, sizeof(float));
        fine = jobs[r].loss && run(&jobs[r], r) && jobs[r].of > 0;
        for (int s = 0; s < options->servers; s++) lost += steps * (uint64_t)options->workers - jobs[r].applied[s];
    }
    if (fine) {
        double accuracy[2];
        draw(jobs, options->out);
        for (int r = 0; r < 2; r++) accuracy[r] = (double)jobs[r].right / jobs[r].of;
        printf("accuracy disturbed=%.3f undisturbed=%.3f restarts=%d lost=%llu\n", accuracy[1], accuracy[0],
               jobs[1].restarts, (unsigned long long)lost);
        /* asynchronous runs differ by the order of gradients, disturbed or not: each has to learn */
        bool alike = options->async ? accuracy[1] >= 0.9 : fabs(accuracy[1] - accuracy[0]) <= 0.005;
        fine = alike && accuracy[0] >= 0.9 && jobs[1].restarts == 1 && lost == 0;
    }
    free(jobs[0].loss);
    free(jobs[1].loss);
    return fine ? 0 : 1;
}
