/* SPDX-License-Identifier: Apache-2.0
 *
 * See job.h. The processes of a job and the agents that start them: what is told to either, and what they tell.
 */
#include "job.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- processes ---- */

static int by_id(const void *id, const void *process)
{
    return *(const int *)id - (*(process_t *const *)process)->id;
}

/* The number comes over the wire. */
static process_t *process_of(const job_host_t *host, int id)
{
    const job_t *job = host->job;
    process_t **p = job->nprocesses == 0
                        ? NULL
                        : bsearch(&id, job->processes, (size_t)job->nprocesses, sizeof(process_t *), by_id);
    return p != NULL && (*p)->host == host ? *p : NULL;
}

const char *job_names(const job_t *job, const job_host_t *host, char text[80])
{
    int n = 0;
    for (int i = 0; i < job->nprocesses; i++) {
        const process_t *p = job->processes[i];
        n += !p->ended && (host == NULL || p->host == host);
    }
    size_t at = (size_t)snprintf(text, 80, "%s",
                                 n == 0   ? "the job"
                                 : n == 1 ? job->policy->one
                                          : job->policy->many);
    const char *comma = " ";
    for (int i = 0; n > 0 && i < job->nprocesses; i++) {
        const process_t *p = job->processes[i];
        if (p->ended || (host != NULL && p->host != host)) continue;
        if (at > 60) {
            snprintf(text + at, 80 - at, ", ...");
            break;
        }
        at += (size_t)snprintf(text + at, 80 - at, "%s%d", comma, p->id);
        comma = ", ";
    }
    return text;
}

void job_mark_ended(process_t *p)
{
    if (p->ended) return;
    p->ended = true;
    p->host->job->running--;
    kolorun_input_leave(&p->host->job->input, p->id);
}

bool job_open_files(process_t *p)
{
    job_t *job = p->host->job;
    const kolorun_options_t *o = job->options;
    char path[4096] = "";
    if (o->output_dir == NULL) return true;
    const int digits = snprintf(NULL, 0, "%d", o->nranks > 0 ? o->nranks - 1 : 0);
    int n = snprintf(path, sizeof path, "%s/%s.%0*d", o->output_dir, job->policy->one, digits, p->id);
    bool ok = n > 0 && (size_t)n + 8 < sizeof path && (mkdir(path, 0777) == 0 || errno == EEXIST);
    for (int k = 0; k < 2 && ok; k++) {
        snprintf(path + n, sizeof path - (size_t)n, k == 0 ? "/stdout" : "/stderr");
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (!(ok = fd >= 0)) break;
        kolorun_sink_init(&p->files[k], fd);
        p->files[k].is_file = true;
        (k == 0 ? &p->out : &p->err)->file = &p->files[k];
    }
    if (!ok && errno == EEXIST)
        kolorun_sink_printf(
            &job->err, "--output-dir: %s is there already, from an earlier job: remove it, or name another folder",
            path);
    else if (!ok)
        kolorun_sink_printf(&job->err, "--output-dir: cannot write %s: %s", path, strerror(errno));
    return ok;
}

static void free_process(job_t *job, process_t *p)
{
    kolorun_stream_fini(&p->out);
    kolorun_stream_fini(&p->err);
    for (int k = 0; k < 2; k++) {
        if (p->files[k].broken)
            kolorun_sink_printf(&job->err, "the output files of %s %d are not complete: %s", job->policy->one,
                                p->id, strerror(p->files[k].error));
        if (p->files[k].fd >= 0) close(p->files[k].fd);
        kolorun_sink_fini(&p->files[k]);
    }
    free(p);
}

void job_drop_ended(job_t *job)
{
    int kept = 0;
    for (int i = 0; i < job->nprocesses; i++)
        if (job->processes[i]->ended)
            free_process(job, job->processes[i]);
        else
            job->processes[kept++] = job->processes[i];
    job->nprocesses = kept;
}

process_t *job_add(job_host_t *host, int slot, size_t bytes)
{
    job_t *job = host->job;
    char tag[24] = "";
    process_t *p = memset(kolorun_grow(NULL, bytes), 0, bytes);
    *p = (process_t){.id = job->started++, .host = host, .slot = slot, .files = {{.fd = -1}, {.fd = -1}}};
    if (job->options->tagged) snprintf(tag, sizeof tag, "[%d] ", p->id);
    kolorun_stream_init(&p->out, tag, &job->out, NULL);
    kolorun_stream_init(&p->err, tag, &job->err, NULL);
    job->processes = kolorun_grow(job->processes, sizeof(process_t *) * ((size_t)job->nprocesses + 1));
    job->processes[job->nprocesses++] = p;
    job->running++;
    return p;
}

bool job_start(process_t *p, const kolorun_place_t *place)
{
    job_t *job = p->host->job;
    const kolorun_options_t *o = job->options;
    char dir[4096] = "";
    const bool remote = !kolorun_host_is_local(p->host->agent), input = kolorun_input_wanted(&job->input, p->id);
    if (remote && getcwd(dir, sizeof dir) == NULL) dir[0] = '\0';
    char **env = kolorun_env_make(o, remote, place);
    const kolorun_spec_t spec = {.dir = dir, .argv = o->argv, .env = env, .input = input};
    if (input) kolorun_input_add(&job->input, p->host->agent, p->id);
    bool ok = kolorun_host_start(p->host->agent, p->id, &spec);
    kolorun_env_free(env);
    return ok;
}

/* ---- what agents tell ---- */

static void on_started(void *arg, kolorun_host_t *agent, int id, int pid)
{
    process_t *p = process_of(arg, id);
    (void)agent;
    if (p != NULL) p->pid = pid;
}

static void ended(process_t *p)
{
    job_t *job = p->host->job;
    job_cause_end(&p->cause);
    kolorun_stream_fini(&p->err); /* its last words come before any report */
    kolorun_stream_fini(&p->out);
    job_mark_ended(p);
    job->policy->ended(job, p);
}

/* What looks like a line of a shell is none to kolorun. */
static const char *hint_for(const char *program)
{
    size_t name = strspn(program, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_");
    if (name > 0 && program[name] == '=') return "; a variable is given with -x NAME=VALUE";
    if (strpbrk(program, " |&;<>$") != NULL) return "; a line of the shell is given as: sh -c 'LINE'";
    return "";
}

/* A name without a slash is looked for in PATH alone, which surprises whoever is in the folder of the file. */
static void print_not_started(process_t *p, const kolorun_host_t *agent, int number)
{
    const char *program = p->host->job->options->argv[0];
    const bool in_path = number == ENOENT && strchr(program, '/') == NULL;
    const bool here = in_path && kolorun_host_is_local(agent) && access(program, R_OK) == 0;
    const bool may_not_run = here && access(program, X_OK) != 0;
    const char *hint = may_not_run ? "; it lies here and may not be executed: chmod +x, then ./"
                       : here      ? "; try ./"
                       : in_path   ? hint_for(program)
                                   : "";
    struct stat file;
    const char *why = strerror(number);
    if (number == EACCES && kolorun_host_is_local(agent) && stat(program, &file) == 0)
        why = S_ISDIR(file.st_mode) ? "it is a directory" : "it may not be executed (chmod +x?)";
    if (number == EMFILE) why = "too many open files (ulimit -n)";
    if (number == ENOENT && !in_path && kolorun_host_is_local(agent) && access(program, F_OK) == 0)
        why = "what is to run it is not there: the interpreter that its first line names, or the dynamic loader";
    snprintf(p->how, sizeof p->how, "cannot start %.60s: %s%s%s%.60s", program, why, in_path ? " in PATH" : "",
             hint, here ? program : "");
}

static void on_not_started(void *arg, kolorun_host_t *agent, int id, int error)
{
    process_t *p = process_of(arg, id);
    char dir[4096] = "?";
    if (p == NULL || p->ended) return;
    const int number = error & ~KOLORUN_ERROR_DIR;
    if (number != error)
        snprintf(p->how, sizeof p->how, "cannot enter %.120s: %s", getcwd(dir, sizeof dir) ? dir : "?",
                 strerror(number));
    else
        print_not_started(p, agent, number);
    p->status = error == ENOENT ? 127 : 126;
    p->pid = 0; /* it never became the program */
    ended(p);
}

static void on_output(void *arg, kolorun_host_t *agent, int id, int stream, const void *data, size_t bytes)
{
    process_t *p = process_of(arg, id);
    (void)agent;
    if (p == NULL) return;
    if (stream == 2) job_cause_feed(&p->cause, data, bytes);
    kolorun_stream_feed(stream == 1 ? &p->out : &p->err, data, bytes);
}

static void on_ended(void *arg, kolorun_host_t *agent, int id, int wait_status)
{
    process_t *p = process_of(arg, id);
    (void)agent;
    if (p == NULL || p->ended) return;
    p->sig = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
    p->status = p->sig != 0 ? 128 + p->sig : WEXITSTATUS(wait_status);
    if (p->sig != 0)
        snprintf(p->how, sizeof p->how, "was killed by signal %d (%s%s)", p->sig, strsignal(p->sig),
                 WCOREDUMP(wait_status) ? ", core dumped" : "");
    else
        snprintf(p->how, sizeof p->how, "exited with status %d%s", p->status,
                 p->status == 127
                     ? " (a shared library was not found: LD_LIBRARY_PATH? or a shell knew no such command)"
                     : "");
    ended(p);
}

static void on_took(void *arg, kolorun_host_t *agent, int id, int bytes)
{
    job_host_t *host = arg;
    kolorun_input_took(&host->job->input, agent, id, bytes);
}

static void on_file(void *arg, kolorun_host_t *agent, const char *name, const void *data, size_t bytes)
{
    job_host_t *host = arg;
    (void)agent;
    host->job->policy->file(host->job, host, name, data, bytes);
}

static void on_said(void *arg, kolorun_host_t *agent, const char *line)
{
    job_host_t *host = arg;
    (void)agent;
    kolorun_sink_printf(&host->job->err, "%s: %s", host->name, line);
}

static void on_lost(void *arg, kolorun_host_t *agent, const char *why)
{
    job_host_t *host = arg;
    job_t *job = host->job;
    (void)agent;
    host->lost = true;
    job->policy->lost(job, host, why);
    for (int i = 0; i < job->nprocesses; i++)
        if (job->processes[i]->host == host) job_mark_ended(job->processes[i]);
}

/* ---- hosts ---- */

job_host_t *job_host_named(job_t *job, const char *name)
{
    for (int i = 0; i < job->nhosts; i++)
        if (strcmp(job->hosts[i]->name, name) == 0) return job->hosts[i];
    job_host_t *host = kolorun_grow(NULL, sizeof *host);
    *host = (job_host_t){.job = job};
    snprintf(host->name, sizeof host->name, "%s", name);
    job->hosts = kolorun_grow(job->hosts, sizeof(job_host_t *) * ((size_t)job->nhosts + 1));
    job->hosts[job->nhosts++] = host;
    return host;
}

bool job_host_open(job_host_t *host)
{
    static const kolorun_host_events_t events = {.started = on_started,
                                                 .not_started = on_not_started,
                                                 .output = on_output,
                                                 .ended = on_ended,
                                                 .took = on_took,
                                                 .file = on_file,
                                                 .said = on_said,
                                                 .lost = on_lost};
    job_t *job = host->job;
    char why[300];
    if (host->agent != NULL) return true;
    host->lost = false;
    host->agent = kolorun_host_open(host->name, &job->options->way, &events, host, why, sizeof why);
    if (host->agent == NULL) {
        kolorun_sink_printf(&job->err, "%s", why);
        return false;
    }
    if (job->store)
        kolorun_host_put_file(host->agent, "store.key", kolo_store_server_key(job->store), KOLO_STORE_KEY_BYTES);
    for (int k = 0; k < 2; k++)
        if (job->paused[k]) kolorun_host_pause(host->agent, k + 1, true);
    return true;
}

static bool is_used(const job_host_t *host)
{
    bool used = host->slots > 0;
    for (int i = 0; i < host->job->nprocesses && !used; i++) used = host->job->processes[i]->host == host;
    return used && !host->lost;
}

void job_close_agents(job_t *job, bool all, double patience_s)
{
    kolorun_host_t **agents = kolorun_grow(NULL, sizeof *agents * ((size_t)job->nhosts + 1));
    int n = 0;
    for (int i = 0; i < job->nhosts; i++) {
        job_host_t *host = job->hosts[i];
        if (host->agent == NULL || (!all && is_used(host))) continue;
        agents[n++] = host->agent;
        host->agent = NULL;
        host->lost = false;
    }
    kolorun_hosts_close(agents, n, patience_s); /* side by side: the loop serves no other host meanwhile */
    free(agents);
}
