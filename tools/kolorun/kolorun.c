/* SPDX-License-Identifier: Apache-2.0
 *
 * kolorun: starts the ranks of a program on one or more hosts, shows their output line by line, and brings the job
 * to an end: the first rank that fails is reported first and the rest are ended; when kolorun itself goes, by
 * whatever signal, nothing stays behind. One loop over signals and the hosts' agents (kolorun_host.h); no polling
 * by time.
 */
#include "kolorun.h"
#include "elastic/elastic.h"
#include "kolorun_agent.h"
#include "kolorun_input.h"
#include "kolorun_options.h"
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SETTLE_S    0.5 /* after a failure on one of several hosts, for word of its cause to come from another */
#define KILL_S      5.0 /* from SIGKILL until a host that does not tell the end is given up */
#define FIXED_POLLS (KOLORUN_USER_POLLS + 2)
#define INPUT_POLL  (KOLORUN_USER_POLLS + 1)

typedef struct {
    int host, local_rank;
    int pid;
    int status; /* of waitpid, once ended */
    bool ended;
    kolorun_stream_t out, err;
    kolorun_sink_t files[2];
} rank_t;

typedef struct {
    const kolorun_options_t *options;
    kolorun_host_t **hosts; /* of options->hosts, those that have ranks */
    int nhosts;
    rank_t *ranks;
    kolorun_sink_t out, err;
    kolorun_input_t input;
    bool paused[2];             /* the hosts were told not to read the ranks' stdout, stderr */
    kolo_store_server_t *store; /* NULL: none */
    int signal_fd;
    int running;
    int failed;             /* the rank whose failure was seen and not yet told, -1 */
    double judge_at;        /* when it is told; 0: at once */
    bool ending, killed;    /* asked the rest to end; stopped asking */
    bool impatient;         /* a second signal: output that nobody takes is not waited for */
    int asked_by;           /* the SIGTERM or SIGHUP that asked the ranks to end; 0: none */
    bool interrupted;       /* the user wants the end: a second time means now */
    int exit_status;        /* of the first failure */
    double end_at, kill_at; /* seconds of the monotonic clock, 0 = none */
    struct pollfd *polls;
} runner_t;

/* ---- the end of a job ---- */

static void signal_all(runner_t *r, int sig)
{
    for (int i = 0; i < r->nhosts; i++) kolorun_host_signal(r->hosts[i], KOLORUN_ALL, sig);
}

static void end_rest(runner_t *r, int status)
{
    if (r->exit_status == 0) r->exit_status = status;
    if (r->ending) return;
    r->ending = true;
    signal_all(r, SIGTERM);
    r->kill_at = kolorun_now() + r->options->grace_s;
}

static void kill_rest(runner_t *r)
{
    r->killed = r->ending = true;
    r->kill_at = kolorun_now() + KILL_S;
    signal_all(r, SIGKILL);
}

static int exit_status_of(int wait_status)
{
    return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

/* "; ending the other 3" */
static const char *and_the_rest(const runner_t *r, char text[48])
{
    text[0] = '\0';
    if (r->running > 0) snprintf(text, 48, "; ending the other %d", r->running);
    return text;
}

static void report(runner_t *r, int rank)
{
    const rank_t *p = &r->ranks[rank];
    const kolorun_host_t *host = r->hosts[p->host];
    char rest[48], where[KOLORUN_HOST_NAME_MAX + 8] = "";
    and_the_rest(r, rest);
    if (!kolorun_host_is_local(host)) snprintf(where, sizeof where, " on %s", kolorun_host_name(host));
    if (WIFSIGNALED(p->status))
        kolorun_sink_printf(&r->err, "rank %d (pid %d%s) was killed by signal %d (%s%s)%s", rank, p->pid, where,
                            WTERMSIG(p->status), strsignal(WTERMSIG(p->status)),
                            WCOREDUMP(p->status) ? ", core dumped" : "", rest);
    else
        kolorun_sink_printf(&r->err, "rank %d (pid %d%s) exited with status %d%s", rank, p->pid, where,
                            WEXITSTATUS(p->status), rest);
}

static void judge_round(runner_t *r)
{
    if (r->failed < 0 || r->ending) return;
    rank_t *p = &r->ranks[r->failed];
    if (r->nhosts > 1 && r->running > 0 && !WIFSIGNALED(p->status)) {
        if (r->judge_at == 0) r->judge_at = kolorun_now() + SETTLE_S;
        if (kolorun_now() < r->judge_at) return;
    }
    r->judge_at = 0;
    /* Its last words come before the report. */
    kolorun_stream_fini(&p->err);
    kolorun_stream_fini(&p->out);
    report(r, r->failed);
    end_rest(r, exit_status_of(p->status));
}

/* "0, 3, 4, ..." of those that run, on one host or (-1) on all, into text of 64 bytes */
static const char *running_ranks(const runner_t *r, int host, char *text)
{
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < r->options->nranks; i++) {
        if (r->ranks[i].ended || (host >= 0 && r->ranks[i].host != host)) continue;
        int n = snprintf(text + at, 64 - at, "%s%d", at ? ", " : "", i);
        at += n > 0 ? (size_t)n : 0;
        if (at > 44) {
            snprintf(text + at, 64 - at, ", ...");
            break;
        }
    }
    return text;
}

static void mark_ended(runner_t *r, int rank)
{
    if (r->ranks[rank].ended) return;
    r->ranks[rank].ended = true;
    r->running--;
    kolorun_input_leave(&r->input, rank);
}

/* ---- what hosts tell ---- */

static rank_t *rank_of(runner_t *r, kolorun_host_t *host, int id)
{
    /* The id comes over the wire. */
    if (id < 0 || id >= r->options->nranks || r->hosts[r->ranks[id].host] != host) return NULL;
    return &r->ranks[id];
}

static void on_started(void *arg, kolorun_host_t *host, int id, int pid)
{
    rank_t *p = rank_of(arg, host, id);
    if (p != NULL) p->pid = pid;
}

static void on_not_started(void *arg, kolorun_host_t *host, int id, int error)
{
    runner_t *r = arg;
    rank_t *p = rank_of(r, host, id);
    if (p == NULL || p->ended) return;
    char where[KOLORUN_HOST_NAME_MAX + 8] = "", dir[4096] = "?";
    if (!kolorun_host_is_local(host)) snprintf(where, sizeof where, " on %s", kolorun_host_name(host));
    if (!r->ending && (error & KOLORUN_ERROR_DIR) != 0)
        kolorun_sink_printf(&r->err, "rank %d cannot enter %s%s: %s", id, getcwd(dir, sizeof dir) ? dir : "?",
                            where, strerror(error & ~KOLORUN_ERROR_DIR));
    else if (!r->ending)
        kolorun_sink_printf(&r->err, "rank %d cannot start %s%s: %s", id, r->options->argv[0], where,
                            strerror(error));
    end_rest(r, error == ENOENT ? 127 : 126);
    if (p->pid == 0) mark_ended(r, id); /* not even forked: no end will be told */
}

static void on_output(void *arg, kolorun_host_t *host, int id, int stream, const void *data, size_t bytes)
{
    rank_t *p = rank_of(arg, host, id);
    if (p != NULL) kolorun_stream_feed(stream == 1 ? &p->out : &p->err, data, bytes);
}

/* Of several failures seen at once the one by signal is the cause: the others are more likely to be ranks that
 * missed it. */
static void on_ended(void *arg, kolorun_host_t *host, int id, int wait_status)
{
    runner_t *r = arg;
    rank_t *p = rank_of(r, host, id);
    if (p == NULL || p->ended) return;
    p->status = wait_status;
    mark_ended(r, id);
    if (exit_status_of(wait_status) == 0) return;
    if (r->failed < 0 || (WIFSIGNALED(wait_status) && !WIFSIGNALED(r->ranks[r->failed].status))) r->failed = id;
}

static void on_took(void *arg, kolorun_host_t *host, int id, int bytes)
{
    runner_t *r = arg;
    kolorun_input_took(&r->input, host, id, bytes);
}

static void on_file(void *arg, kolorun_host_t *host, const char *name, const void *data, size_t bytes)
{
    runner_t *r = arg;
    for (int i = 0; i < r->nhosts; i++)
        if (r->hosts[i] != host) kolorun_host_put_file(r->hosts[i], name, data, bytes);
}

static void on_said(void *arg, kolorun_host_t *host, const char *line)
{
    runner_t *r = arg;
    kolorun_sink_printf(&r->err, "%s: %s", kolorun_host_name(host), line);
}

static void on_lost(void *arg, kolorun_host_t *host, const char *why)
{
    runner_t *r = arg;
    char names[64], rest[48];
    int h = 0, left = 0;
    while (r->hosts[h] != host) h++;
    running_ranks(r, h, names);
    for (int i = 0; i < r->options->nranks; i++) {
        if (r->ranks[i].host != h || r->ranks[i].ended) continue;
        mark_ended(r, i);
        left++;
    }
    if (left == 0) return;
    if (!r->ending)
        kolorun_sink_printf(&r->err, "host %s is lost with rank%s %s: %s%s", kolorun_host_name(host),
                            left == 1 ? "" : "s", names, why, and_the_rest(r, rest));
    end_rest(r, 1);
}

static const kolorun_host_events_t events = {.started = on_started,
                                             .not_started = on_not_started,
                                             .output = on_output,
                                             .ended = on_ended,
                                             .took = on_took,
                                             .file = on_file,
                                             .said = on_said,
                                             .lost = on_lost};

/* ---- signals and time ---- */

static void on_signal(runner_t *r)
{
    struct signalfd_siginfo info;
    if (read(r->signal_fd, &info, sizeof info) != (ssize_t)sizeof info) return;
    int sig = (int)info.ssi_signo;
    if (sig == SIGUSR1 || sig == SIGUSR2) {
        /* Ends a process that does not expect it, so it goes to the ranks and not to their helpers. */
        for (int i = 0; i < r->options->nranks; i++)
            if (!r->ranks[i].ended) kolorun_host_signal(r->hosts[r->ranks[i].host], i, sig);
        return;
    }
    if (sig == SIGINT || sig == SIGTERM) {
        if (r->interrupted) {
            r->impatient = true;
            if (!r->killed) {
                kolorun_sink_printf(&r->err, "second signal %d: killing the job", sig);
                kill_rest(r);
            }
            if (r->exit_status == 0) r->exit_status = 128 + sig;
            return;
        }
        r->interrupted = true;
    }
    if ((sig == SIGTERM || sig == SIGHUP) && r->kill_at == 0) {
        r->asked_by = sig;
        r->kill_at = kolorun_now() + r->options->grace_s;
    }
    signal_all(r, sig);
}

static void on_time(runner_t *r)
{
    char names[64];
    double t = kolorun_now();
    if (r->end_at != 0 && t >= r->end_at) {
        r->end_at = 0;
        if (!r->ending)
            kolorun_sink_printf(&r->err, "time limit of %g s passed; ending rank%s %s", r->options->timeout_s,
                                r->running == 1 ? "" : "s", running_ranks(r, -1, names));
        end_rest(r, KOLORUN_STATUS_TIMEOUT);
    }
    if (r->kill_at == 0 || t < r->kill_at) return;
    if (!r->killed) {
        kolorun_sink_printf(&r->err, "killing what did not end within %g s: rank%s %s", r->options->grace_s,
                            r->running == 1 ? "" : "s", running_ranks(r, -1, names));
        if (r->exit_status == 0 && r->asked_by != 0) r->exit_status = 128 + r->asked_by;
        kill_rest(r);
    } else { /* their agents will, or have lost the connection and did */
        kolorun_sink_printf(&r->err, "nothing is heard of the end of rank%s %s", r->running == 1 ? "" : "s",
                            running_ranks(r, -1, names));
        r->running = 0;
    }
}

static void on_broken_output(runner_t *r)
{
    if (!r->out.broken || r->ending) return;
    kolorun_sink_printf(&r->err, "nobody reads the output any more; ending the job");
    end_rest(r, 128 + SIGPIPE);
}

/* ---- the loop ---- */

static int wait_ms(const runner_t *r)
{
    double next = r->end_at;
    kolorun_sooner(&next, r->kill_at);
    if (!r->ending) kolorun_sooner(&next, r->judge_at);
    for (int i = 0; i < r->nhosts; i++) kolorun_sooner(&next, kolorun_host_next_s(r->hosts[i]));
    if (r->store) kolorun_sooner(&next, kolo_store_server_next_s(r->store));
    kolorun_sooner(&next, kolorun_input_next_s(&r->input));
    return kolorun_wait_ms(next);
}

static nfds_t fill_polls(runner_t *r)
{
    struct pollfd *p = r->polls;
    kolorun_user_polls(&r->out, &r->err, r->signal_fd, p);
    p += KOLORUN_USER_POLLS;
    *p++ = (struct pollfd){.fd = r->store ? kolo_store_server_fd(r->store) : -1, .events = POLLIN};
    *p++ = kolorun_input_poll(&r->input);
    for (int i = 0; i < r->nhosts; i++, p += KOLORUN_HOST_POLLS) kolorun_host_polls(r->hosts[i], p);
    return (nfds_t)(p - r->polls);
}

static void pause_ranks(runner_t *r)
{
    const kolorun_sink_t *sinks[2] = {&r->out, &r->err};
    for (int k = 0; k < 2; k++) {
        if (!kolorun_pause_changes(sinks[k], &r->paused[k])) continue;
        for (int i = 0; i < r->nhosts; i++) kolorun_host_pause(r->hosts[i], k + 1, r->paused[k]);
    }
}

static void read_input(runner_t *r)
{
    kolorun_input_progress(&r->input, &r->polls[INPUT_POLL]);
    if (r->input.error[0] != '\0') kolorun_sink_printf(&r->err, "%s", r->input.error);
    r->input.error[0] = '\0';
}

static void run_job(runner_t *r)
{
    while (r->running > 0) {
        nfds_t n = fill_polls(r);
        if (poll(r->polls, n, wait_ms(r)) < 0 && errno != EINTR) break;
        for (int i = 0; i < r->nhosts; i++) kolorun_host_progress(r->hosts[i]);
        judge_round(r);
        if (r->store) kolo_store_server_run(r->store);
        if (r->polls[0].revents) on_signal(r);
        read_input(r);
        on_time(r);
        kolorun_sink_flush(&r->out);
        kolorun_sink_flush(&r->err);
        pause_ranks(r);
        on_broken_output(r);
    }
}

/* All ranks have ended: what we have not written yet. */
static void drain(runner_t *r)
{
    for (int i = 0; i < r->options->nranks; i++) {
        rank_t *p = &r->ranks[i];
        kolorun_stream_fini(&p->out);
        kolorun_stream_fini(&p->err);
        for (int k = 0; k < 2; k++) {
            if (p->files[k].broken) kolorun_sink_printf(&r->err, "the output files of rank %d are not complete", i);
            if (p->files[k].fd >= 0) close(p->files[k].fd);
            kolorun_sink_fini(&p->files[k]);
        }
    }
    kolorun_sink_flush(&r->out);
    if (!r->impatient) kolorun_drain(&r->out, &r->err, r->signal_fd);
}

/* ---- the begin ---- */

static bool open_file(runner_t *r, int rank, int k)
{
    char path[4096];
    int digits = snprintf(NULL, 0, "%d", r->options->nranks - 1);
    int n = snprintf(path, sizeof path, "%s/rank.%0*d", r->options->output_dir, digits, rank);
    int fd = -1;
    if (n > 0 && (size_t)n + 8 < sizeof path && (mkdir(path, 0777) == 0 || errno == EEXIST)) {
        snprintf(path + n, sizeof path - (size_t)n, k == 0 ? "/stdout" : "/stderr");
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    }
    if (fd < 0) {
        kolorun_sink_printf(&r->err, "--output-dir: cannot write %s: %s", path, strerror(errno));
        return false;
    }
    kolorun_sink_init(&r->ranks[rank].files[k], fd);
    r->ranks[rank].files[k].is_file = true;
    return true;
}

/* Ranks fill the hosts in their order. */
static bool place_ranks(runner_t *r)
{
    const kolorun_options_t *o = r->options;
    bool ok = o->output_dir == NULL || mkdir(o->output_dir, 0777) == 0 || errno == EEXIST;
    if (!ok) kolorun_sink_printf(&r->err, "--output-dir %s: %s", o->output_dir, strerror(errno));
    r->ranks = kolorun_grow(NULL, sizeof *r->ranks * (size_t)o->nranks);
    for (int i = 0, host = 0, local = 0; i < o->nranks; i++, local++) {
        rank_t *p = &r->ranks[i];
        if (local == o->hosts.hosts[host].slots) {
            local = 0;
            host++;
        }
        *p = (rank_t){.host = host, .local_rank = local, .files = {{.fd = -1}, {.fd = -1}}};
        char tag[24] = "";
        if (o->tagged) snprintf(tag, sizeof tag, "[%d] ", i);
        const bool files = o->output_dir != NULL;
        kolorun_stream_init(&p->out, tag, &r->out, files ? &p->files[0] : NULL);
        kolorun_stream_init(&p->err, tag, &r->err, files ? &p->files[1] : NULL);
        if (files) ok = ok && open_file(r, i, 0) && open_file(r, i, 1);
        r->nhosts = host + 1;
    }
    return ok;
}

static bool prepare(runner_t *r, const kolorun_options_t *options)
{
    *r = (runner_t){.options = options, .failed = -1};
    kolorun_input_init(&r->input, options->input);
    r->signal_fd = kolorun_begin(&r->out, &r->err);
    bool ok = place_ranks(r);
    r->hosts = kolorun_grow(NULL, sizeof *r->hosts * (size_t)r->nhosts);
    memset(r->hosts, 0, sizeof *r->hosts * (size_t)r->nhosts);
    r->polls = kolorun_grow(NULL, sizeof *r->polls * (FIXED_POLLS + KOLORUN_HOST_POLLS * (size_t)r->nhosts));
    return ok && r->signal_fd >= 0;
}

static bool start_ranks(runner_t *r)
{
    const kolorun_options_t *o = r->options;
    char why[300], dir[4096] = "";
    for (int i = 0; i < r->nhosts; i++) {
        r->hosts[i] = kolorun_host_open(o->hosts.hosts[i].name, &o->way, &events, r, why, sizeof why);
        if (r->hosts[i] == NULL) {
            kolorun_sink_printf(&r->err, "%s", why);
            return false;
        }
    }
    for (int i = 0; i < r->nhosts && r->store; i++)
        kolorun_host_put_file(r->hosts[i], "store.key", kolo_store_server_key(r->store), KOLO_STORE_KEY_BYTES);
    if (getcwd(dir, sizeof dir) == NULL) dir[0] = '\0';
    for (int i = 0; i < o->nranks; i++) {
        const rank_t *p = &r->ranks[i];
        bool remote = !kolorun_host_is_local(r->hosts[p->host]);
        int left = o->nranks - (i - p->local_rank), slots = o->hosts.hosts[p->host].slots;
        char **env = kolorun_env_make(o, remote, i, o->nranks, p->local_rank, left < slots ? left : slots);
        const bool input = kolorun_input_wanted(&r->input, i);
        const kolorun_spec_t spec = {.dir = remote ? dir : "", .argv = o->argv, .env = env, .input = input};
        if (input) kolorun_input_add(&r->input, r->hosts[p->host], i);
        bool ok = kolorun_host_start(r->hosts[p->host], i, &spec);
        kolorun_env_free(env);
        if (!ok) {
            kolorun_sink_printf(&r->err, "the arguments and variables of a rank are more than 8 MiB");
            return false;
        }
    }
    r->running = o->nranks;
    return true;
}

/* Before the ranks, whose environment tells of it. */
static bool start_store(runner_t *r, kolorun_options_t *options)
{
    char why[200];
    bool here = true;
    if (!options->store) return true;
    for (int i = 0; i < r->nhosts; i++) here = here && kolorun_host_is_here(options->hosts.hosts[i].name);
    r->store = kolo_store_server_start(here, why, sizeof why);
    if (r->store == NULL) kolorun_sink_printf(&r->err, "%s", why);
    options->store_at = r->store ? kolo_store_server_address(r->store) : NULL;
    options->store_port = r->store ? kolo_store_server_port(r->store) : 0;
    return r->store != NULL;
}

static void stop_store(runner_t *r)
{
    if (r->store == NULL) return;
    const kolo_store_counts_t *c = kolo_store_server_counts(r->store);
    unsigned long long refused = c->is_unsigned + c->badly_signed + c->replayed + c->too_large + c->malformed;
    if (refused > 0)
        kolorun_sink_printf(
            &r->err,
            "the store refused %llu request%s: %llu unsigned, %llu wrongly signed, %llu replayed, %llu "
            "too large, %llu malformed",
            refused, refused == 1 ? "" : "s", (unsigned long long)c->is_unsigned,
            (unsigned long long)c->badly_signed, (unsigned long long)c->replayed, (unsigned long long)c->too_large,
            (unsigned long long)c->malformed);
    kolo_store_server_stop(r->store);
    r->store = NULL;
}

static int run_ranks(kolorun_options_t *options)
{
    runner_t r;
    if (prepare(&r, options) && start_store(&r, options) && start_ranks(&r)) {
        if (options->timeout_s > 0) r.end_at = kolorun_now() + options->timeout_s;
        run_job(&r);
    } else {
        r.exit_status = 1;
    }
    kolorun_hosts_close(r.hosts, r.nhosts, KILL_S); /* with what ranks that have ended left behind */
    r.nhosts = 0;
    stop_store(&r);
    drain(&r);
    kolorun_sink_flush(&r.err);
    kolorun_sink_fini(&r.out);
    kolorun_sink_fini(&r.err);
    if (r.signal_fd >= 0) close(r.signal_fd);
    free(r.hosts);
    free(r.ranks);
    free(r.polls);
    kolorun_input_fini(&r.input);
    return r.exit_status;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--agent") == 0) return kolorun_agent_main();
    kolorun_options_t options;
    int status = kolorun_options_parse(argc, argv, &options);
    if (status < 0 && options.check_build) status = kolorun_check_build();
    if (status < 0) status = options.elastic.min > 0 ? elastic_run(&options) : run_ranks(&options);
    kolorun_options_fini(&options);
    return status;
}
