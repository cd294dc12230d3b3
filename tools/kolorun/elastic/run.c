/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop of an elastic job: signals, the discovery script, the hosts' agents, and time.
 */
#include "elastic.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define KILL_S      5.0 /* from SIGKILL until a host that does not tell the end is given up */
#define FIXED_POLLS (KOLORUN_USER_POLLS + DISCOVERY_POLLS + 1)
#define INPUT_POLL  (KOLORUN_USER_POLLS + DISCOVERY_POLLS)

/* ---- the end ---- */

void elastic_end(elastic_t *e, int status, const char *format, ...)
{
    char text[900];
    va_list args;
    if (e->over) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    kolorun_sink_printf(&e->err, "%s; ending the job", text);
    e->over = true;
    e->exit_status = status;
    elastic_signal_all(e, SIGTERM);
    e->kill_at = kolorun_now() + e->options->grace_s;
}

static void kill_rest(elastic_t *e)
{
    e->killed = e->over = true;
    e->kill_at = kolorun_now() + KILL_S;
    elastic_signal_all(e, SIGKILL);
}

static void on_signal(elastic_t *e)
{
    struct signalfd_siginfo info;
    if (read(e->signal_fd, &info, sizeof info) != (ssize_t)sizeof info) return;
    int sig = (int)info.ssi_signo;
    if (sig == SIGUSR1 || sig == SIGUSR2) {
        for (int i = 0; i < e->nworkers; i++)
            if (e->workers[i]->state != WORKER_ENDED && e->workers[i]->host->agent != NULL)
                kolorun_host_signal(e->workers[i]->host->agent, e->workers[i]->id, sig);
        return;
    }
    if (sig == SIGINT || sig == SIGTERM || sig == SIGHUP) {
        if (e->interrupted && sig != SIGHUP) {
            e->impatient = true;
            if (!e->killed) {
                kolorun_sink_printf(&e->err, "second signal %d: killing the job", sig);
                kill_rest(e);
            }
            return;
        }
        e->interrupted = e->interrupted || sig != SIGHUP;
        if (!e->over) { /* nothing is started in place of what ends now */
            e->over = true;
            e->exit_status = 128 + sig;
            e->kill_at = kolorun_now() + e->options->grace_s;
        }
    }
    elastic_signal_all(e, sig);
}

static void on_time(elastic_t *e)
{
    double t = kolorun_now();
    if (e->end_at != 0 && t >= e->end_at) {
        e->end_at = 0;
        elastic_end(e, KOLORUN_STATUS_TIMEOUT, "time limit of %g s passed", e->options->timeout_s);
    }
    if (e->kill_at == 0 || t < e->kill_at) return;
    if (e->killed) {
        kolorun_sink_printf(&e->err, "nothing is heard of the end of %d processes", elastic_live(e));
        for (int i = 0; i < e->nworkers; i++) e->workers[i]->state = WORKER_ENDED;
        e->kill_at = 0;
        return;
    }
    kolorun_sink_printf(&e->err, "killing what did not end within %g s", e->options->grace_s);
    kill_rest(e);
}

/* ---- the loop ---- */

static int wait_ms(const elastic_t *e)
{
    double next = e->end_at;
    kolorun_sooner(&next, e->kill_at);
    kolorun_sooner(&next, discovery_next_s(&e->discovery));
    kolorun_sooner(&next, kolorun_input_next_s(&e->input));
    if (!e->over) kolorun_sooner(&next, elastic_next_start_s(e));
    if (!e->over && !e->finishing) kolorun_sooner(&next, elastic_next_plan_s(e));
    for (int i = 0; i < e->nhosts; i++)
        if (e->hosts[i]->agent != NULL) kolorun_sooner(&next, kolorun_host_next_s(e->hosts[i]->agent));
    return kolorun_wait_ms(next);
}

static nfds_t fill_polls(elastic_t *e)
{
    e->polls = kolorun_grow(e->polls, sizeof *e->polls * (FIXED_POLLS + KOLORUN_HOST_POLLS * (size_t)e->nhosts));
    struct pollfd *p = e->polls;
    kolorun_user_polls(&e->out, &e->err, e->signal_fd, p);
    p += KOLORUN_USER_POLLS;
    discovery_polls(&e->discovery, p);
    p += DISCOVERY_POLLS;
    *p++ = kolorun_input_poll(&e->input);
    for (int i = 0; i < e->nhosts; i++) {
        if (e->hosts[i]->agent == NULL) continue;
        kolorun_host_polls(e->hosts[i]->agent, p);
        p += KOLORUN_HOST_POLLS;
    }
    return (nfds_t)(p - e->polls);
}

static void pause_workers(elastic_t *e)
{
    const kolorun_sink_t *sinks[2] = {&e->out, &e->err};
    for (int k = 0; k < 2; k++) {
        if (!kolorun_pause_changes(sinks[k], &e->paused[k])) continue;
        for (int i = 0; i < e->nhosts; i++)
            if (e->hosts[i]->agent != NULL) kolorun_host_pause(e->hosts[i]->agent, k + 1, e->paused[k]);
    }
}

static void one_turn(elastic_t *e)
{
    nfds_t n = fill_polls(e);
    if (poll(e->polls, n, wait_ms(e)) < 0 && errno != EINTR) return;
    if (e->over || e->finishing)
        discovery_fini(&e->discovery); /* what it would say, and when it would be asked, wakes nobody any more */
    else if (discovery_progress(&e->discovery))
        elastic_take_hosts(e, &e->discovery.answer);
    for (int i = 0; i < e->nhosts; i++)
        if (e->hosts[i]->agent != NULL) kolorun_host_progress(e->hosts[i]->agent);
    if (e->polls[0].revents) on_signal(e);
    kolorun_input_progress(&e->input, &e->polls[INPUT_POLL]);
    if (e->input.error[0] != '\0') kolorun_sink_printf(&e->err, "%s", e->input.error);
    e->input.error[0] = '\0';
    elastic_tidy(e);
    if (!e->over) elastic_fill_slots(e);
    elastic_plan(e);
    on_time(e);
    kolorun_sink_flush(&e->out);
    kolorun_sink_flush(&e->err);
    pause_workers(e);
    if (e->out.broken) elastic_end(e, 128 + SIGPIPE, "nobody reads the output any more");
}

static bool prepare(elastic_t *e, const kolorun_options_t *options)
{
    *e = (elastic_t){.options = options};
    kolorun_input_init(&e->input, options->input);
    e->signal_fd = kolorun_begin(&e->out, &e->err);
    discovery_init(&e->discovery, &options->elastic, &options->way.files, &e->err);
    return e->signal_fd >= 0;
}

static void finish(elastic_t *e)
{
    discovery_fini(&e->discovery);
    for (int i = 0; i < e->nworkers; i++) e->workers[i]->state = WORKER_ENDED;
    kolorun_host_t **agents = kolorun_grow(NULL, sizeof *agents * ((size_t)e->nhosts + 1));
    int n = 0;
    for (int i = 0; i < e->nhosts; i++) {
        if (e->hosts[i]->agent != NULL) agents[n++] = e->hosts[i]->agent;
        e->hosts[i]->agent = NULL;
    }
    kolorun_hosts_close(agents, n, KILL_S);
    free(agents);
    elastic_tidy(e);
    kolorun_sink_flush(&e->out);
    kolorun_sink_flush(&e->err);
    if (!e->impatient) kolorun_drain(&e->out, &e->err, e->signal_fd);
    kolorun_sink_fini(&e->out);
    kolorun_sink_fini(&e->err);
    if (e->signal_fd >= 0) close(e->signal_fd);
    for (int i = 0; i < e->nhosts; i++) free(e->hosts[i]);
    free(e->hosts);
    free(e->workers);
    free(e->polls);
    kolorun_input_fini(&e->input);
}

int elastic_run(const kolorun_options_t *options)
{
    elastic_t e;
    if (!prepare(&e, options)) {
        finish(&e);
        return 1;
    }
    if (options->timeout_s > 0) e.end_at = kolorun_now() + options->timeout_s;
    if (options->elastic.discover == NULL) elastic_take_hosts(&e, &options->hosts);
    elastic_fill_slots(&e);
    while (elastic_live(&e) > 0 || !(e.over || e.finishing)) one_turn(&e);
    if (!e.over && e.first_failure != 0 && e.exit_status == 0)
        kolorun_sink_printf(&e.err, "all is done; %d change%s of the ranks, the first failure: %s", e.resets,
                            e.resets == 1 ? "" : "s", e.first_failure_text);
    int status = e.exit_status;
    finish(&e);
    return status;
}
