/* SPDX-License-Identifier: Apache-2.0
 *
 * See job.h. The loop that drives a job, whatever its policy; no polling by time. When kolorun itself goes, by
 * whatever signal, nothing stays behind: the agents see to that.
 */
#include "job.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#define KILL_S       5.0 /* from SIGKILL until a host that does not tell the end is given up */
#define FIXED_POLLS  (KOLORUN_USER_POLLS + 3)
#define INPUT_POLL   (KOLORUN_USER_POLLS + 1)
#define STARTER_POLL (KOLORUN_USER_POLLS + 2)

/* ---- the end of a job ---- */

void job_signal_all(job_t *job, int sig)
{
    for (int i = 0; i < job->nhosts; i++)
        if (job->hosts[i]->agent != NULL) kolorun_host_signal(job->hosts[i]->agent, KOLORUN_ALL, sig);
}

static void begin_end(job_t *job, int status)
{
    if (job->exit_status == 0) job->exit_status = status;
    job->ending = true;
    job->kill_at = kolorun_now() + job->options->grace_s;
}

void job_end(job_t *job, int status, const char *format, ...)
{
    char text[900];
    va_list args;
    if (job->exit_status == 0) job->exit_status = status;
    if (job->ending) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    kolorun_sink_printf(&job->err, "%s", text);
    begin_end(job, status);
    job_signal_all(job, SIGTERM);
}

static void kill_rest(job_t *job)
{
    job->killed = job->ending = true;
    job->kill_at = kolorun_now() + KILL_S;
    job_signal_all(job, SIGKILL);
}

/* ---- signals and time ---- */

static void on_second_signal(job_t *job, int sig)
{
    job->impatient = true;
    if (!job->killed) {
        kolorun_sink_printf(&job->err, "second signal %d: killing the job", sig);
        kill_rest(job);
    }
    if (job->exit_status == 0) job->exit_status = 128 + sig;
}

static void on_signal(job_t *job)
{
    struct signalfd_siginfo info;
    if (read(job->signal_fd, &info, sizeof info) != (ssize_t)sizeof info) return;
    const int sig = (int)info.ssi_signo;
    if (sig == SIGUSR1 || sig == SIGUSR2) {
        /* Ends a process that does not expect it, so it goes to the ranks and not to their helpers. */
        for (int i = 0; i < job->nprocesses; i++)
            if (!job->processes[i]->ended)
                kolorun_host_signal(job->processes[i]->host->agent, job->processes[i]->id, sig);
        return;
    }
    if (sig == SIGINT || sig == SIGTERM) {
        if (job->interrupted) {
            on_second_signal(job, sig);
            return;
        }
        job->interrupted = true;
    }
    if (job->policy->restarts && sig != SIGQUIT && !job->ending) {
        begin_end(job, 128 + sig);
    } else if ((sig == SIGTERM || sig == SIGHUP) && job->kill_at == 0) {
        job->asked_by = sig; /* how the ranks end then decides how the job does */
        job->kill_at = kolorun_now() + job->options->grace_s;
    }
    job_signal_all(job, sig);
}

static void on_time(job_t *job)
{
    char names[80];
    const double t = kolorun_now(), grace_s = job->options->grace_s;
    if (job->end_at != 0 && t >= job->end_at) {
        job->end_at = 0;
        job_end(job, KOLORUN_STATUS_TIMEOUT, "time limit of %g s passed; ending %s", job->options->timeout_s,
                job_names(job, NULL, names));
        kolorun_sink_printf(
            &job->err,
            "if they wait for each other: kolo-top --dump, before the limit, says for whom; or give "
            "operations a limit that is shorter, -x KOLO_OP_TIMEOUT_MS=%.0f -x KOLO_INIT_TIMEOUT_MS=%.0f (that is "
            "for "
            "the first ones, which connect), and they say it themselves",
            job->options->timeout_s * 500, job->options->timeout_s * 500);
    }
    if (job->kill_at == 0 || t < job->kill_at) return;
    job_names(job, NULL, names);
    if (!job->killed) {
        kolorun_sink_printf(&job->err, "killing what did not end within %g s: %s", grace_s, names);
        if (job->exit_status == 0 && job->asked_by != 0) job->exit_status = 128 + job->asked_by;
        kill_rest(job);
    } else { /* their agents will, or have lost the connection and did */
        kolorun_sink_printf(&job->err, "nothing is heard of the end of %s", names);
        for (int i = 0; i < job->nprocesses; i++) job_mark_ended(job->processes[i]);
    }
}

/* ---- the loop ---- */

static int wait_ms(const job_t *job)
{
    double next = job->end_at;
    kolorun_sooner(&next, job->kill_at);
    kolorun_sooner(&next, job->policy->next_s(job));
    for (int i = 0; i < job->nhosts; i++)
        if (job->hosts[i]->agent != NULL) kolorun_sooner(&next, kolorun_host_next_s(job->hosts[i]->agent));
    if (job->store) kolorun_sooner(&next, kolo_store_server_next_s(job->store));
    kolorun_sooner(&next, kolorun_input_next_s(&job->input));
    return kolorun_wait_ms(next);
}

static nfds_t fill_polls(job_t *job)
{
    const size_t most = FIXED_POLLS + POLICY_POLLS + KOLORUN_HOST_POLLS * (size_t)job->nhosts;
    struct pollfd *p = job->polls = kolorun_grow(job->polls, sizeof *p * most);
    kolorun_user_polls(&job->out, &job->err, job->signal_fd, p);
    p += KOLORUN_USER_POLLS;
    *p++ = (struct pollfd){.fd = job->store ? kolo_store_server_fd(job->store) : -1, .events = POLLIN};
    *p++ = kolorun_input_poll(&job->input);
    *p++ = (struct pollfd){.fd = job->starter_fd, .events = POLLIN};
    if (job->policy->polls) p += job->policy->polls(job, p);
    for (int i = 0; i < job->nhosts; i++) {
        if (job->hosts[i]->agent == NULL) continue;
        kolorun_host_polls(job->hosts[i]->agent, p);
        p += KOLORUN_HOST_POLLS;
    }
    return (nfds_t)(p - job->polls);
}

/* While the user does not read, the processes wait in write(); how they end is told all the same. */
static void pause_processes(job_t *job)
{
    const kolorun_sink_t *sinks[2] = {&job->out, &job->err};
    for (int k = 0; k < 2; k++) {
        const bool full = kolorun_sink_pending(sinks[k]) > KOLORUN_SINK_HIGH;
        if (full == job->paused[k]) continue;
        job->paused[k] = full;
        for (int i = 0; i < job->nhosts; i++)
            if (job->hosts[i]->agent != NULL) kolorun_host_pause(job->hosts[i]->agent, k + 1, full);
    }
}

static void read_input(job_t *job)
{
    kolorun_input_progress(&job->input, &job->polls[INPUT_POLL]);
    if (job->input.error[0] != '\0') kolorun_sink_printf(&job->err, "%s", job->input.error);
    job->input.error[0] = '\0';
}

/* A shell that is killed by -9 hangs up nobody. */
static void on_starter_gone(job_t *job)
{
    close(job->starter_fd);
    job->starter_fd = -1;
    kolorun_sink_printf(&job->err, "the process that started kolorun has ended; ending the job");
    kill(getpid(), SIGHUP);
}

static void one_turn(job_t *job)
{
    nfds_t n = fill_polls(job);
    if (poll(job->polls, n, wait_ms(job)) < 0 && errno != EINTR) return;
    for (int i = 0; i < job->nhosts; i++)
        if (job->hosts[i]->agent != NULL) kolorun_host_progress(job->hosts[i]->agent);
    if (job->store) kolo_store_server_run(job->store);
    if (job->polls[STARTER_POLL].revents) on_starter_gone(job);
    if (job->polls[0].revents) on_signal(job);
    read_input(job);
    job->policy->turn(job);
    on_time(job);
    kolorun_sink_flush(&job->out);
    kolorun_sink_flush(&job->err);
    pause_processes(job);
    if (job->out.broken && job->out.error == EPIPE)
        job_end(job, 128 + SIGPIPE, "nobody reads the output any more; ending the job");
    else if (job->out.broken)
        job_end(job, 1, "the output cannot be written: %s; ending the job", strerror(job->out.error));
}

/* ---- the store ---- */

/* Before the processes, whose environment tells of it. A script may name other hosts later. */
static bool start_store(job_t *job)
{
    char why[200];
    kolorun_options_t *o = job->options;
    bool here = o->elastic.discover == NULL;
    if (!o->store) return true;
    for (int i = 0; i < job->nhosts; i++) here = here && kolorun_host_is_here(job->hosts[i]->name);
    job->store = kolo_store_server_start(here, why, sizeof why);
    if (job->store == NULL) {
        kolorun_sink_printf(&job->err, "%s", why);
        return false;
    }
    o->store_at = kolo_store_server_address(job->store);
    o->store_port = kolo_store_server_port(job->store);
    return true;
}

static void stop_store(job_t *job)
{
    if (job->store == NULL) return;
    const kolo_store_counts_t *c = kolo_store_server_counts(job->store);
    unsigned long long refused = c->is_unsigned + c->badly_signed + c->replayed + c->too_large + c->malformed;
    if (refused > 0)
        kolorun_sink_printf(
            &job->err,
            "the store refused %llu request%s: %llu unsigned, %llu wrongly signed, %llu replayed, %llu "
            "too large, %llu malformed",
            refused, refused == 1 ? "" : "s", (unsigned long long)c->is_unsigned,
            (unsigned long long)c->badly_signed, (unsigned long long)c->replayed, (unsigned long long)c->too_large,
            (unsigned long long)c->malformed);
    kolo_store_server_stop(job->store);
    job->store = NULL;
}

/* ---- the whole ---- */

static bool begin(job_t *job)
{
    const char *dir = job->options->output_dir;
    kolorun_input_init(&job->input, job->options->input);
    job->starter_fd = kolorun_open_starter();
    job->signal_fd = kolorun_begin(&job->out, &job->err);
    if (job->signal_fd < 0) return false;
    if (dir != NULL && mkdir(dir, 0777) != 0 && errno != EEXIST) {
        kolorun_sink_printf(&job->err, "--output-dir %s: %s", dir, strerror(errno));
        return false;
    }
    return job->policy->prepare(job) && start_store(job) && job->policy->begin(job);
}

int job_run(job_t *job, const policy_t *policy, kolorun_options_t *options)
{
    job->policy = policy;
    job->options = options;
    if (begin(job)) {
        if (options->timeout_s > 0) job->end_at = kolorun_now() + options->timeout_s;
        while (job->running > 0 || (policy->expects && policy->expects(job))) one_turn(job);
    } else {
        job->exit_status = 1;
    }
    if (policy->finish) policy->finish(job);
    job_close_agents(job, true, KILL_S); /* with what processes that have ended left behind */
    stop_store(job);
    for (int i = 0; i < job->nprocesses; i++) job->processes[i]->ended = true;
    job_drop_ended(job);
    kolorun_sink_flush(&job->out);
    if (!job->impatient) kolorun_drain(&job->out, &job->err, job->signal_fd);
    kolorun_sink_flush(&job->err);
    kolorun_sink_fini(&job->out);
    kolorun_sink_fini(&job->err);
    if (job->signal_fd >= 0) close(job->signal_fd);
    if (job->starter_fd >= 0) close(job->starter_fd);
    for (int i = 0; i < job->nhosts; i++) free(job->hosts[i]);
    free(job->hosts);
    free(job->processes);
    free(job->polls);
    kolorun_input_fini(&job->input);
    return job->exit_status;
}
