/* SPDX-License-Identifier: Apache-2.0
 *
 * Options, random runs, and the line that sums them up. See chaos.h.
 */
#include "chaos/chaos.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

chaos_options_t chaos_options = {.jobs = 1, .slow = 1, .part = 1, .parts = 1};

static const char usage[] =
    "usage: chaos [--runs N] [--seed S] [--net]      random runs with seeds S, S+1, ...\n"
    "       chaos --points TIMES [--seed S] [--only NAME]  every fail point, every fault, so many times\n"
    "       chaos --table FILE... [--points TIMES]   the table of records that were written by --records\n"
    "       chaos --list                             the fail points\n"
    "  --jobs N      runs side by side (1); limits grow where there are more than cores\n"
    "  --part I/N    only share I of N of the runs; the records of all shares make one --table\n"
    "  --seconds T   stops after so many seconds, whatever is left (as SIGINT and SIGTERM do)\n"
    "  --out FILE    the table goes there, too, below a head that tells how it was made\n"
    "  --records FILE  appends a line per run\n"
    "  --net         ranks on hosts that are network namespaces, links that are cut (root; else exit status 77)\n"
    "  --cards       all bytes go by RDMA where this machine has it (tests/vm), else by tcp\n"
    "  --any-name    an error that does not name the lost rank is only counted (else it is wrong)\n"
    "  --slow F      all limits F times longer; they also grow with the load of the machine\n"
    "  --debugger C  runs \"C PID\" for each hung process\n"
    "  -v            tells each run and shows what the ranks log\n"
    "A single bad run again: chaos --runs 1 --seed S (random), chaos --points 1 --seed S --only NAME.\n"
    "Needs nothing but this program and its libraries. The last line sums up. Exit status: 0; 1 if anything hung,\n"
    "was wrong or was left behind, or if with --points a point met a fault less often than asked.\n";

typedef struct {
    uint64_t seed, runs, seconds;
    int points;
    bool net, list, table, seeded;
    const char *only, *out, *records;
} arguments_t;

/* ---- limits ---- */

static double crowd = 1, burden = 1;

/* Where more wants to run than there are cores, everything takes longer: our own runs, and what else is there. */
void chaos_look_around(void)
{
    double cores = (double)sysconf(_SC_NPROCESSORS_ONLN), load = 0;
    if (getloadavg(&load, 1) != 1) load = 0;
    burden = cores > 0 && load > 8 * cores ? load / (8 * cores) : 1;
    if (load < 4 * chaos_options.jobs) load = 4 * chaos_options.jobs; /* it comes late */
    crowd = cores > 0 ? load / (8 * cores) : 1;
    if (crowd < 1) crowd = 1;
    int nice = getpriority(PRIO_PROCESS, 0); /* whoever stands back gets little of a crowded core */
    if (nice > 0 && crowd > 1) crowd *= 1 + nice / 5.0;
}

/* Many runs sit such a time out, so it follows the load that there is, not that which there may be. */
int chaos_init_timeout_ms(void)
{
    return (int)(CHAOS_INIT_MS * chaos_options.slow * (CHAOS_SANITIZED ? 4 : 1) * burden);
}

uint64_t chaos_limit_ns(uint64_t ms)
{
    return (uint64_t)((double)ms * 1e6 * chaos_options.slow * (CHAOS_SANITIZED ? 20 : 1) * crowd);
}

uint64_t chaos_wait_ns(void)
{
    return (uint64_t)(1.5e6 * chaos_init_timeout_ms());
}

/* ---- random runs ---- */

typedef struct {
    const arguments_t *a;
    chaos_table_t *table;
} random_t;

static void random_work(void *arg, uint64_t i)
{
    const arguments_t *a = ((random_t *)arg)->a;
    uint64_t seed = a->seed + (uint64_t)(chaos_options.part - 1) + i * (uint64_t)chaos_options.parts;
    static chaos_shared_t *shared;
    if (!shared) shared = chaos_share(sizeof *shared);
    chaos_scenario_t s;
    chaos_verdict_t v;
    chaos_result_t r;
    char words[512];
    chaos_scenario(&s, seed, a->net);
    chaos_scenario_print(&s, words, sizeof words);
    if (chaos_options.verbose) fprintf(stderr, "seed %llu: %s\n", (unsigned long long)seed, words);
    chaos_run(&s, shared, &v, false);
    chaos_result(&r, &s, &v, -1);
    bool bad = v.hang || v.wrong || v.leak;
    chaos_print_lock(true);
    if (bad || (chaos_options.verbose && *v.text))
        fprintf(stderr, "chaos: seed %llu:%s%s%s %s\n%s", (unsigned long long)seed, v.hang ? " HANG" : "",
                v.wrong ? " WRONG" : "", v.leak ? " LEAK" : "", words, v.text);
    if (chaos_options.verbose)
        fprintf(stderr, "seed %llu: %s\n", (unsigned long long)seed,
                bad       ? "bad"
                : v.fired ? "good"
                          : "good, no fault");
    chaos_print_lock(false);
    chaos_result_send(&r);
}

static void random_took(void *arg, const chaos_result_t *r)
{
    chaos_table_add(((random_t *)arg)->table, r);
}

static bool run_many(const arguments_t *a, chaos_table_t *t, uint64_t end_ns)
{
    random_t random = {a, t};
    uint64_t parts = (uint64_t)chaos_options.parts, part = (uint64_t)chaos_options.part;
    chaos_jobs_t jobs = {
        (a->runs + parts - part) / parts, end_ns, a->net ? CHAOS_HOSTS : 0, random_work, random_took, &random};
    printf("chaos: seeds from %llu on\n", (unsigned long long)a->seed);
    return chaos_jobs_run(&jobs);
}

/* ---- what is possible here ---- */

static bool single_copy_works(void)
{
    static volatile char byte = 1;
    char got = 0;
    int status = 1;
    pid_t owner = fork();
    if (owner == 0)
        for (;;) pause();
    pid_t reader = fork(); /* between sisters, as ranks are */
    if (reader == 0) {
        struct iovec to = {&got, 1}, from = {(void *)(uintptr_t)&byte, 1};
        _exit(process_vm_readv(owner, &to, 1, &from, 1, 0) == 1 ? 0 : 1);
    }
    waitpid(reader, &status, 0);
    kill(owner, SIGKILL);
    waitpid(owner, NULL, 0);
    return status == 0;
}

static bool prepare(const arguments_t *a)
{
    char why[128];
    if (!single_copy_works())
        printf("chaos: not possible here: process_vm_readv between processes; programs for single copy use what "
               "Kolo takes instead\n");
    if (!a->net && a->points == 0) printf("chaos: hosts and cut links are with --net\n");
    if (!a->net) return true;
    bool fine = chaos_net_open(CHAOS_HOSTS, why, sizeof why);
    chaos_net_close();
    if (!fine) printf("chaos: skipped: %s\n", why);
    return fine;
}

static int list_points(void)
{
    for (size_t i = 0; kolo_fail_point_at(i); i++)
        printf("%s%s\n", kolo_fail_point_at(i)->name, kolo_fail_point_at(i)->returns ? " (can fail)" : "");
    return 0;
}

/* ---- options ---- */

static const struct option longs[] = {
    {"runs", required_argument, NULL, 'n'},    {"seed", required_argument, NULL, 's'},
    {"seconds", required_argument, NULL, 't'}, {"points", required_argument, NULL, 'p'},
    {"only", required_argument, NULL, 'o'},    {"out", required_argument, NULL, 'f'},
    {"records", required_argument, NULL, 'r'}, {"jobs", required_argument, NULL, 'j'},
    {"part", required_argument, NULL, 'P'},    {"slow", required_argument, NULL, 'S'},
    {"table", no_argument, NULL, 'T'},         {"net", no_argument, NULL, 'e'},
    {"any-name", no_argument, NULL, 'm'},      {"cards", no_argument, NULL, 'c'},
    {"list", no_argument, NULL, 'l'},          {"debugger", required_argument, NULL, 'd'},
    {"help", no_argument, NULL, 'h'},          {NULL, 0, NULL, 0},
};

static void take_number(int c, const char *text, arguments_t *a)
{
    if (c == 'n') a->runs = strtoull(text, NULL, 0);
    if (c == 't') a->seconds = strtoull(text, NULL, 0);
    if (c == 'p') a->points = (int)strtol(text, NULL, 0);
    if (c == 'j') chaos_options.jobs = (int)strtol(text, NULL, 0);
    if (c == 'S' && strtod(text, NULL) > 1) chaos_options.slow = strtod(text, NULL);
    if (c == 's') {
        a->seed = strtoull(text, NULL, 0);
        a->seeded = true;
    }
    if (c == 'P' && sscanf(text, "%d/%d", &chaos_options.part, &chaos_options.parts) != 2) chaos_options.parts = 0;
}

static void take_option(int c, const char *text, arguments_t *a)
{
    if (c == 'o') a->only = text;
    if (c == 'f') a->out = text;
    if (c == 'r') a->records = text;
    if (c == 'd') chaos_options.debugger = text;
    a->net |= c == 'e';
    a->list |= c == 'l';
    a->table |= c == 'T';
    chaos_options.any_name |= c == 'm';
    chaos_options.cards |= c == 'c';
    chaos_options.verbose |= c == 'v';
}

static int parse(int argc, char **argv, arguments_t *a)
{
    for (int c; (c = getopt_long(argc, argv, "vh", longs, NULL)) != -1;) {
        if (c == 'h' || c == '?') {
            fputs(usage, c == 'h' ? stdout : stderr);
            return c == 'h' ? 0 : 2;
        }
        take_number(c, optarg, a);
        take_option(c, optarg, a);
    }
    const chaos_options_t *o = &chaos_options;
    if (o->jobs > 0 && o->parts > 0 && o->part > 0 && o->part <= o->parts && (a->table || optind == argc))
        return -1;
    fputs(usage, stderr);
    return 2;
}

/* ---- all together ---- */

static int finish(const arguments_t *a, chaos_table_t *t, const char *command, bool fine)
{
    uint64_t missing = 0;
    FILE *f = a->out ? fopen(a->out, "w") : NULL;
    if (a->out && !f) perror(a->out);
    if (f) {
        chaos_print_head(f, command);
        chaos_table_print(t, f);
        if (a->points) chaos_table_print_points(t, f, (uint64_t)a->points, a->only);
        chaos_table_print_line(t, f);
        if (fclose(f) != 0) perror(a->out);
    }
    chaos_table_print(t, stdout);
    if (a->points) missing = chaos_table_print_points(t, stdout, (uint64_t)a->points, a->only);
    if (chaos_options.parts > 1 || a->seconds) missing = 0; /* all shares together have to be complete */
    if (!fine) printf("chaos: a worker broke, see above\n");
    if (chaos_options.stopped) printf("chaos: stopped by a signal\n");
    chaos_table_print_line(t, stdout);
    fine = fine && !t->all.hangs && !t->all.wrong && !t->all.leaks && !missing;
    chaos_table_fini(t);
    return fine ? 0 : 1;
}

int main(int argc, char **argv)
{
    static chaos_table_t table;
    arguments_t a = {.runs = 100};
    char command[512] = "";
    bool fine = true;
    for (int i = 0; i < argc; i++)
        snprintf(command + strlen(command), sizeof command - strlen(command), "%s%s", i ? " " : "",
                 i ? argv[i] : "chaos");
    int status = parse(argc, argv, &a);
    if (status >= 0) return status;
    if (a.list) return list_points();
    if (!a.seeded) a.seed = chaos_now_ns() & 0xffffffff;
    if (!prepare(&a)) return 77;
    for (int i = optind; a.table && i < argc; i++) fine &= chaos_records_read(argv[i], &table);
    if (a.table) return finish(&a, &table, command, fine);
    uint64_t end_ns = a.seconds ? chaos_now_ns() + a.seconds * 1000000000ull : UINT64_MAX;
    table.records = a.records ? fopen(a.records, "ae") : NULL;
    fine = a.points ? chaos_points(&table, a.seed, a.points, a.only, end_ns) : run_many(&a, &table, end_ns);
    return finish(&a, &table, command, fine);
}
