/* SPDX-License-Identifier: Apache-2.0
 *
 * The elastic service in one command: this process becomes the monitor and the front, and starts itself again for
 * each worker. See README.md.
 */
#include "monitor.h"

#include <kolo/kolo.h>

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define SKIPPED  77
#define DRAIN_MS 15000 /* for what is unanswered at the end */
#define LEAVE_MS 5000  /* for the workers to leave */

#ifdef KOLO_SANITIZED
#define PATIENCE 3
#else
#define PATIENCE 1
#endif

void say(const monitor_t *m, const char *format, ...)
{
    va_list args;
    printf("[%7.3f s] ", (double)(now_ns() - m->start_ns) / 1e9);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

uint64_t dice(monitor_t *m, uint64_t sides)
{
    m->dice ^= m->dice << 13;
    m->dice ^= m->dice >> 7;
    m->dice ^= m->dice << 17;
    return m->dice % sides;
}

/* ---- options ---- */

static const char usage[] =
    "usage: elastic [--workers N] [--seconds S] [--seed X] [--faults kill,stop,cut,slow|none] "
    "[--pause MS] [--check] [--patience N]\n"
    "  --workers   most workers at a time, 2 to 12 (4)\n"
    "  --seconds   how long requests are made (15)\n"
    "  --seed      of faults and requests (the time)\n"
    "  --faults    kill -9; SIGSTOP; the cable between two hosts (root); a slow worker (all)\n"
    "  --pause     mean time between faults (1500)\n"
    "  --check     fail unless each of the four moves was made; 77 where a fault is not possible\n"
    "  --patience  multiplies all time limits\n"
    "  --help, --version\n";

static int print_usage(void)
{
    fputs(usage, stdout);
    return 0;
}

static int print_version(void)
{
    printf("elastic %d.%d.%d\n", KOLO_VERSION_MAJOR, KOLO_VERSION_MINOR, KOLO_VERSION_PATCH);
    return 0;
}

/* getopt has said what it did not understand. */
static int wrong_usage(void)
{
    fprintf(stderr, "try 'elastic --help'\n");
    return 2;
}

static int bad_value(const struct option *option, const char *text)
{
    const char *want = option->val == 'w'   ? "a number from 2 to 12"
                       : option->val == 's' ? "seconds, from 1 to 86400"
                       : option->val == 'p' ? "a number from 1 to 100"
                       : option->val == 'g' ? "milliseconds, from 1 to 3600000"
                                            : "a list of kill, stop, cut, slow, or none";
    fprintf(stderr, "elastic: --%s \"%s\": expected %s\n", option->name, text, want);
    return wrong_usage();
}

static bool take_faults(options_t *o, const char *list)
{
    char copy[64], *rest = copy;
    o->kill = o->stop = o->cut = o->slow = false;
    snprintf(copy, sizeof copy, "%s", list);
    while (rest) {
        const char *word = strsep(&rest, ",");
        if (strcmp(word, "kill") == 0)
            o->kill = true;
        else if (strcmp(word, "stop") == 0)
            o->stop = true;
        else if (strcmp(word, "cut") == 0)
            o->cut = true;
        else if (strcmp(word, "slow") == 0)
            o->slow = true;
        else if (strcmp(word, "none") != 0)
            return false;
    }
    return true;
}

static bool take_number(const char *text, long least, long most, int *number)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < least || value > most) return false;
    *number = (int)value;
    return true;
}

/* -1: go on; else the exit status. */
static int take_options(options_t *o, int argc, char **argv)
{
    static const struct option names[] = {
        {"workers", required_argument, NULL, 'w'},  {"seconds", required_argument, NULL, 's'},
        {"seed", required_argument, NULL, 'x'},     {"faults", required_argument, NULL, 'f'},
        {"patience", required_argument, NULL, 'p'}, {"pause", required_argument, NULL, 'g'},
        {"check", no_argument, NULL, 'c'},          {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},        {NULL, 0, NULL, 0},
    };
    static char own_name[] = "elastic";
    int c, which = 0;
    bool fine = true;
    argv[0] = own_name; /* in the messages of getopt */
    while (fine && (c = getopt_long(argc, argv, "h", names, &which)) != -1) {
        if (c == 'h') return print_usage();
        if (c == 'V') return print_version();
        if (c == '?') return wrong_usage();
        if (c == 'w') fine = take_number(optarg, 2, 12, &o->workers);
        if (c == 's') fine = take_number(optarg, 1, 86400, &o->seconds);
        if (c == 'p') fine = take_number(optarg, 1, 100, &o->patience);
        if (c == 'g') fine = take_number(optarg, 1, 3600000, &o->pause_ms);
        if (c == 'f') fine = take_faults(o, optarg);
        if (c == 'x') o->seed = strtoull(optarg, NULL, 0);
        if (c == 'c') o->check = true;
    }
    if (!fine) return bad_value(&names[which], optarg);
    if (optind == argc) return -1;
    fprintf(stderr, "elastic: unexpected argument \"%s\"\n", argv[optind]);
    return wrong_usage();
}

static void set_limits(monitor_t *m)
{
    int p = m->options.patience;
    m->beat_ms = 40 * p;
    m->silent_ms = 400 * p;
    m->batch_ms = 600 * p;
    m->settle_ms = 150 * p;
    m->init_ms = 2000 * p;
}

/* ---- the loop ---- */

static void take_signal(monitor_t *m, int signals)
{
    struct signalfd_siginfo info;
    while (read(signals, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD) m->interrupted = true;
}

static void listen_once(monitor_t *m, int signals, int limit_ms)
{
    struct pollfd fds[2 * MOST_PEERS + 1];
    nfds_t n = 0;
    fds[n++] = (struct pollfd){signals, POLLIN, 0};
    for (int i = 0; i < MOST_PEERS; i++) {
        const peer_t *p = &m->peers[i];
        if (p->state == PEER_NONE || p->pid <= 0) continue;
        fds[n++] = (struct pollfd){p->control, POLLIN, 0};
        fds[n++] = (struct pollfd){p->front, POLLIN, 0};
    }
    if (poll(fds, n, limit_ms) > 0 && fds[0].revents) take_signal(m, signals);
    for (int i = 0; i < MOST_PEERS; i++) {
        if (m->peers[i].state == PEER_NONE) continue;
        front_hear(m, &m->peers[i]);
        rules_hear(m, &m->peers[i]);
    }
    fleet_reap(m);
}

static bool drained(const monitor_t *m)
{
    return m->front.done == m->front.made && !m->front.waiting && !m->move.recovery && !m->move.kind && m->epoch;
}

static bool every_move_made(const monitor_t *m)
{
    for (int kind = MOVE_SECOND_INIT; kind < MOVE_KINDS; kind++)
        if (!m->moves[kind]) return false;
    return true;
}

/* Which moves are called for depends on what breaks when: a run that is to show all of them may last three times as
 * long. */
static void extend(monitor_t *m, uint64_t now)
{
    uint64_t asked_ns = (uint64_t)m->options.seconds * 1000 * MS;
    if (!m->options.check || now < m->end_ns || now - m->start_ns >= 3 * asked_ns || every_move_made(m)) return;
    say(m, "a move has not been made yet: the run goes on");
    m->end_ns += asked_ns / 4;
}

/* The service runs until all that was asked is answered, then stops at a batch like everything else. */
static bool serve(monitor_t *m, int signals)
{
    bool ended = false;
    while (!m->stopping && !m->interrupted) {
        listen_once(m, signals, m->front.waiting ? 5 : 2);
        uint64_t now = now_ns();
        if (!ended) extend(m, now);
        if (now > m->end_ns + (uint64_t)DRAIN_MS * MS * (uint64_t)m->options.patience) break;
        if (now < m->end_ns && m->epoch && !front_generate(m)) return false;
        if (now >= m->end_ns && !ended) {
            say(m, "no more requests; %llu to answer", (unsigned long long)(m->front.made - m->front.done));
            faults_undo(m);
            ended = true;
        }
        if (m->epoch) faults_work(m);
        rules_decide(m);
        if (ended && drained(m)) m->order = ORDER_STOP;
        front_work(m);
    }
    return m->stopping;
}

static void leave(monitor_t *m, int signals)
{
    uint64_t limit_ns = now_ns() + (uint64_t)LEAVE_MS * MS * (uint64_t)m->options.patience;
    faults_undo(m);
    for (int i = 0; i < MOST_PEERS; i++) {
        peer_t *p = &m->peers[i];
        if (p->state == PEER_NONE) continue;
        if (p->state == PEER_MEMBER && m->stopping)
            p->state = PEER_FENCED; /* leaves by itself, after the batch with the order to stop */
        else
            fleet_fence(m, p, NULL);
    }
    while (!m->interrupted && !fleet_all_ended(m) && now_ns() < limit_ns) listen_once(m, signals, 20);
    fleet_end(m);
    hosts_end();
}

/* ---- the summary ---- */

static bool summarise(const monitor_t *m)
{
    const front_t *f = &m->front;
    uint64_t answered = 0;
    bool fine = true, moved = every_move_made(m);
    for (uint64_t i = 0; i < f->made; i++) answered += f->requests[i].answers != 0;
    uint64_t lost = f->made - answered;
    printf(
        "\nrequests made %llu, answered %llu, retried %llu, lost %llu, duplicates %llu, wrong %llu, late answers "
        "refused %llu\n",
        (unsigned long long)f->made, (unsigned long long)answered, (unsigned long long)f->retried,
        (unsigned long long)lost, (unsigned long long)f->duplicates, (unsigned long long)f->wrong,
        (unsigned long long)f->refused);
    printf("faults: kill -9 %llu, SIGSTOP %llu, cable cut %llu, slow worker %llu\n",
           (unsigned long long)m->faults[0], (unsigned long long)m->faults[1], (unsigned long long)m->faults[2],
           (unsigned long long)m->faults[3]);
    printf("moves:");
    for (int kind = MOVE_SECOND_INIT; kind < MOVE_KINDS; kind++)
        printf("%s %s %llu", kind > 1 ? "," : "", move_names[kind], (unsigned long long)m->moves[kind]);
    printf("; given up %llu\n", (unsigned long long)m->failed_moves);
    printf("recoveries %llu: mean %.0f ms, longest %.0f ms\n", (unsigned long long)m->recoveries,
           m->recoveries ? (double)m->recovery_ns / 1e6 / (double)m->recoveries : 0.0,
           (double)m->longest_recovery_ns / 1e6);
    printf("longest gap between answers: %.0f ms after a fault, %.1f ms in planned moves, %.1f ms while nothing "
           "went on\n",
           (double)f->gap_ns / 1e6, (double)f->move_gap_ns / 1e6, (double)f->calm_gap_ns / 1e6);
    printf("worker processes started %d, ended badly %d\n", m->made_peers, m->bad_ends);
    fine = f->made && !lost && !f->duplicates && !f->wrong && !m->bad_ends;
    if (m->options.check && !moved) printf("FAILED: not every move was made\n");
    if (m->options.check) fine = fine && moved;
    printf("%s (seed %llu)\n",
           m->interrupted ? "interrupted"
           : fine         ? "ok"
                          : "FAILED",
           (unsigned long long)m->options.seed);
    return fine;
}

static int monitor_main(monitor_t *m)
{
    const char *why_not;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0) return 1;
    m->start_ns = now_ns();
    m->end_ns = m->start_ns + (uint64_t)m->options.seconds * 1000 * MS;
    m->dice = m->options.seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
    m->bag = ~0u;
    printf("elastic: up to %d workers, %d s, seed %llu\n", m->options.workers, m->options.seconds,
           (unsigned long long)m->options.seed);
    if (m->options.cut && !hosts_make(m, &why_not)) {
        printf("the cable between two hosts cannot be cut here: %s; that fault is left out\n", why_not);
        m->options.cut = false;
        hosts_end();
        if (m->options.check) return SKIPPED;
    }
    m->move = (move_t){.recovery = true, .first = true, .step = STEP_CREW, .started_ns = m->start_ns};
    m->move.deadline_ns = m->start_ns + (uint64_t)m->init_ms * MS;
    while (fleet_count(m, PEER_STARTING) < m->options.workers && fleet_spawn(m)) continue;
    bool served = serve(m, signals);
    if (m->interrupted) say(m, "interrupted: workers and hosts are ended");
    leave(m, signals);
    close(signals);
    bool fine = summarise(m);
    free(m->front.requests);
    if (m->interrupted) return 130;
    return served && fine ? 0 : 1;
}

int main(int argc, char **argv)
{
    static monitor_t m;
    if (argc == 6 && strcmp(argv[1], "--worker") == 0)
        return worker_main(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
    m.options =
        (options_t){.workers = 4, .seconds = 15, .seed = now_ns() / MS, .patience = PATIENCE, .pause_ms = 1500};
    m.options.kill = m.options.stop = m.options.cut = m.options.slow = true;
    int status = take_options(&m.options, argc, argv);
    if (status >= 0) return status;
    set_limits(&m);
    return monitor_main(&m);
}
