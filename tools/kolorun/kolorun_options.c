/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line of kolorun, and the environment that its processes get.
 */
#include "kolorun_options.h"
#include "kolorun.h"

#include <kolo/kolo.h>

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: kolorun -n N [options] program [arguments]\n"
    "       kolorun -H host:slots,... [options] program [arguments]\n"
    "       kolorun --check-build | --help | --version\n"
    "Starts the ranks of a program, here or over ssh, and shows their output line by line.\n"
    "  -n, -np N       number of ranks (default: all slots of the hosts)\n"
    "  -H, --host LIST hosts and slots, as host:slots,host:slots; ranks fill them in this order\n"
    "  --hostfile F    the same from a file, a host a line: host:slots or host slots=N, # for comments\n"
    "  --ssh COMMAND   ssh with its options (default ssh); it must need no password\n"
    "  --remote-kolorun PATH   where kolorun is on the other hosts (default: the same path as here)\n"
    "  --start-timeout S       seconds until kolorun must run on all hosts (default 60)\n"
    "  -x KEY=VALUE    set a variable for the ranks (repeatable); -x KEY: with the value it has here\n"
    "  --no-tag        do not put [rank] in front of each line (--tag is the default)\n"
    "  --stdin R       hand the standard input of kolorun to rank R, or to all, or to none (the default)\n"
    "  --output-dir D  write the output of each rank to D/rank.R/stdout and stderr, too (with --min: of each\n"
    "                  process, to D/process.N)\n"
    "  --store         keep a store of small values for the ranks (KOLO_STORE, KOLO_STORE_KEY_FILE)\n"
    "  --bind-to WHAT  core (the default): the ranks of a host divide its cores, unless there are too few; numa: "
    "each\n"
    "                  gets the NUMA nodes of its cores; none\n"
    "  --report-bindings       each rank says where it is bound\n"
    "  --timeout S     end the job after S seconds, with status 124\n"
    "  --grace S       seconds between SIGTERM and SIGKILL when the job is ended (default 5)\n"
    "  --check-build   say what is compiled in and what is found on this machine\n"
    "The first rank that fails is reported and the rest are ended; the exit status is that rank's, 128 + number\n"
    "for a signal. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to all processes of the job, SIGUSR1 and\n"
    "SIGUSR2 to the ranks; a second SIGINT or SIGTERM kills the job.\n"
    "Each finds KOLO_RANK, KOLO_NRANKS, KOLO_LOCAL_RANK, KOLO_LOCAL_SIZE and KOLO_ID_FILE in its environment.\n";

static bool parse_number(const char *text, double min, double max, double *value)
{
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (errno != 0 || end == text || *end != '\0' || !(v >= min && v <= max)) return false;
    *value = v;
    return true;
}

static int wrong_usage(const char *what)
{
    if (what != NULL) fprintf(stderr, "kolorun: %s\n", what);
    fprintf(stderr, "try 'kolorun --help'\n");
    return KOLORUN_STATUS_USAGE;
}

static int bad_option(const char *option, const char *text, const char *want)
{
    fprintf(stderr, "kolorun: %s \"%s\": expected %s\n", option, text, want);
    return KOLORUN_STATUS_USAGE;
}

static int add_variable(kolorun_options_t *o, const char *text)
{
    char *copy = NULL;
    if (strchr(text, '=') != NULL && text[0] != '=') {
        copy = strdup(text);
    } else if (text[0] != '=' && text[0] != '\0') {
        const char *value = getenv(text);
        if (value == NULL) return bad_option("-x", text, "KEY=VALUE, or the name of a variable that is set");
        if (asprintf(&copy, "%s=%s", text, value) < 0) copy = NULL;
    } else {
        return bad_option("-x", text, "KEY=VALUE");
    }
    if (copy == NULL) return 1;
    o->env = kolorun_grow(o->env, sizeof *o->env * (o->nenv + 1));
    o->env[o->nenv++] = copy;
    return -1;
}

static int take_elastic(kolorun_options_t *o, int c, const char *arg)
{
    const char *want;
    if (elastic_option_take(&o->elastic, c, arg, &want)) return -1;
    return bad_option(elastic_option_name(c), arg, want);
}

static int take_input(kolorun_options_t *o, const char *arg)
{
    double n = strcmp(arg, "all") == 0 ? KOLORUN_INPUT_ALL : KOLORUN_INPUT_NONE;
    if (n == KOLORUN_INPUT_NONE && strcmp(arg, "none") != 0 &&
        (!parse_number(arg, 0, KOLORUN_SLOTS_MAX, &n) || n != (int)n))
        return bad_option("--stdin", arg, "the number of a rank, all or none");
    o->input = (int)n;
    return -1;
}

/* One option; -1: go on. */
static int take(kolorun_options_t *o, int c, const char *arg)
{
    char why[200];
    double n;
    switch (c) {
    case 'n':
        if (!parse_number(arg, 1, KOLORUN_SLOTS_MAX, &n) || n != (int)n)
            return bad_option("-n", arg, "a whole number from 1 to 65536");
        o->nranks = (int)n;
        return -1;
    case 'H':
    case 'f':
        if (c == 'H' ? kolorun_hostlist_add(&o->hosts, arg, strlen(arg), why, sizeof why)
                     : kolorun_hostlist_read(&o->hosts, arg, why, sizeof why))
            return -1;
        fprintf(stderr, "kolorun: %s: %s\n", c == 'H' ? "-H" : "--hostfile", why);
        return KOLORUN_STATUS_USAGE;
    case 'l':
        return parse_number(arg, 1e-3, 1e8, &o->timeout_s) ? -1
                                                           : bad_option("--timeout", arg, "seconds, more than 0");
    case 'g':
        return parse_number(arg, 0, 1e6, &o->grace_s) ? -1 : bad_option("--grace", arg, "seconds");
    case 'S':
        if (!parse_number(arg, 1, 1e6, &n)) return bad_option("--start-timeout", arg, "seconds, at least 1");
        o->way.start_timeout_s = (int)n;
        return -1;
    case 's':
        o->way.ssh = arg;
        return arg[strspn(arg, " ")] != '\0' ? -1 : bad_option("--ssh", arg, "a command");
    case 'R':
        o->way.remote = arg;
        return arg[0] != '\0' ? -1 : bad_option("--remote-kolorun", arg, "a path");
    case 'o':
        o->output_dir = arg;
        return arg[0] != '\0' ? -1 : bad_option("--output-dir", arg, "a directory");
    case 'i':
        return take_input(o, arg);
    case 'B':
        return kolorun_bind_parse(arg, &o->bind) ? -1 : bad_option("--bind-to", arg, "core, numa or none");
    case 'r':
        o->report_bindings = true;
        return -1;
    case 'x':
        return add_variable(o, arg);
    case 'k':
        o->store = true;
        return -1;
    case 'b':
        o->check_build = true;
        return -1;
    case 't':
    case 'T':
        o->tagged = c == 't';
        return -1;
    default:
        if (c >= ELASTIC_OPTION_FIRST) return take_elastic(o, c, arg);
        if (c == 'V') {
            printf("kolorun %d.%d.%d\n", KOLO_VERSION_MAJOR, KOLO_VERSION_MINOR, KOLO_VERSION_PATCH);
            return 0;
        }
        if (c != 'h') return wrong_usage(NULL); /* getopt has said what is wrong */
        fputs(usage, stdout);
        fputs(elastic_usage, stdout);
        return 0;
    }
}

/* The default of --bind-to. */
static bool take_environment(kolorun_options_t *o)
{
    const char *text = getenv(KOLORUN_BIND_VARIABLE);
    if (text == NULL || text[0] == '\0' || kolorun_bind_parse(text, &o->bind)) return true;
    return bad_option(KOLORUN_BIND_VARIABLE, text, "core, numa or none") < 0;
}

static int check(kolorun_options_t *o)
{
    const char *wrong = elastic_options_check(&o->elastic, o->hosts.count > 0, o->nranks > 0);
    if (wrong != NULL) {
        fprintf(stderr, "kolorun: %s\n", wrong);
        return KOLORUN_STATUS_USAGE;
    }
    if (o->elastic.min > 0 && o->input == KOLORUN_INPUT_ALL) {
        fprintf(stderr, "kolorun: --stdin all cannot be used with --min: who comes later would miss the beginning; "
                        "--stdin 0 is for the first process\n");
        return KOLORUN_STATUS_USAGE;
    }
    if (o->elastic.min > 0) return o->argv[0] != NULL ? -1 : wrong_usage("the program is missing");
    if (o->hosts.count == 0 && o->nranks > 0) {
        char here[32], why[100];
        snprintf(here, sizeof here, "localhost:%d", o->nranks);
        if (!kolorun_hostlist_add(&o->hosts, here, strlen(here), why, sizeof why)) return 1;
    }
    if (o->nranks == 0) o->nranks = o->hosts.slots;
    if (o->nranks == 0 || o->argv[0] == NULL)
        return wrong_usage(o->nranks == 0 ? "-n N or -H is missing" : "the program is missing");
    if (o->input >= o->nranks) {
        fprintf(stderr, "kolorun: --stdin %d: the ranks are 0 to %d\n", o->input, o->nranks - 1);
        return KOLORUN_STATUS_USAGE;
    }
    if (o->nranks <= o->hosts.slots) return -1;
    fprintf(stderr, "kolorun: -n %d is more than the hosts have slots (%d)\n", o->nranks, o->hosts.slots);
    return KOLORUN_STATUS_USAGE;
}

int kolorun_options_parse(int argc, char **argv, kolorun_options_t *o)
{
    static const struct option longs[] = {{"tag", no_argument, NULL, 't'},
                                          {"no-tag", no_argument, NULL, 'T'},
                                          {"np", required_argument, NULL, 'n'},
                                          {"timeout", required_argument, NULL, 'l'},
                                          {"grace", required_argument, NULL, 'g'},
                                          {"host", required_argument, NULL, 'H'},
                                          {"hostfile", required_argument, NULL, 'f'},
                                          {"ssh", required_argument, NULL, 's'},
                                          {"remote-kolorun", required_argument, NULL, 'R'},
                                          {"start-timeout", required_argument, NULL, 'S'},
                                          {"output-dir", required_argument, NULL, 'o'},
                                          {"stdin", required_argument, NULL, 'i'},
                                          {"store", no_argument, NULL, 'k'},
                                          {"bind-to", required_argument, NULL, 'B'},
                                          {"report-bindings", no_argument, NULL, 'r'},
                                          {"check-build", no_argument, NULL, 'b'},
                                          ELASTIC_OPTION_ROWS,
                                          {"version", no_argument, NULL, 'V'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    *o = (kolorun_options_t){
        .tagged = true, .grace_s = 5, .input = KOLORUN_INPUT_NONE, .elastic = ELASTIC_OPTION_DEFAULTS};
    if (!kolorun_way_init(&o->way)) {
        fprintf(stderr, "kolorun: cannot find its own program in /proc\n");
        return 1;
    }
    static char own_name[] = "kolorun";
    argv[0] = own_name; /* in the messages of getopt */
    int c, status = take_environment(o) ? -1 : KOLORUN_STATUS_USAGE;
    while (status < 0 && (c = getopt_long(argc, argv, "+n:H:x:h", longs, NULL)) != -1) {
        if (c == 'n' && strcmp(optarg, "p") == 0 && optind < argc)
            optarg = argv[optind++]; /* -np N, as of mpirun */
        status = take(o, c, optarg);
    }
    if (status >= 0 || o->check_build) return status;
    o->argv = argv + optind;
    return check(o);
}

void kolorun_options_fini(kolorun_options_t *o)
{
    for (size_t i = 0; i < o->nenv; i++) free(o->env[i]);
    free(o->env);
    kolorun_hostlist_fini(&o->hosts);
}

/* ---- the environment of a process ---- */

/* What belongs to one process or one host only. */
static bool goes_along(const char *variable)
{
    static const char *const stays[] = {
        "KOLO_STORE=",      "KOLO_STORE_KEY_FILE=", "KOLO_STORE_AT=", "KOLO_RANK=",          "KOLO_NRANKS=",
        "KOLO_LOCAL_RANK=", "KOLO_LOCAL_SIZE=",     "KOLO_ID_FILE=",  "KOLO_COMM_SECRET_FD="};
    if (strncmp(variable, "KOLO_", 5) != 0) return false;
    for (size_t i = 0; i < sizeof stays / sizeof *stays; i++)
        if (strncmp(variable, stays[i], strlen(stays[i])) == 0) return false;
    return true;
}

static void add(char ***env, size_t *n, const char *variable)
{
    size_t bytes = strlen(variable) + 1;
    char *text = memcpy(kolorun_grow(NULL, bytes), variable, bytes);
    *env = kolorun_grow(*env, sizeof **env * (*n + 2));
    (*env)[(*n)++] = text;
    (*env)[*n] = NULL;
}

static void add_number(char ***env, size_t *n, const char *name, int value)
{
    char text[64];
    snprintf(text, sizeof text, "%s=%d", name, value);
    add(env, n, text);
}

char **kolorun_env_make(const kolorun_options_t *options, bool remote, const kolorun_place_t *place)
{
    char **env = NULL;
    size_t n = 0;
    for (char **e = environ; remote && e != NULL && *e != NULL; e++)
        if (goes_along(*e)) add(&env, &n, *e);
    if (place->nranks > 0) {
        add_number(&env, &n, "KOLO_RANK", place->rank);
        add_number(&env, &n, "KOLO_NRANKS", place->nranks);
    } else {
        add_number(&env, &n, "KOLO_ELASTIC_WORKER", place->worker);
    }
    add_number(&env, &n, "KOLO_LOCAL_RANK", place->local_rank);
    add_number(&env, &n, "KOLO_LOCAL_SIZE", place->local_size);
    if (options->store_at != NULL) {
        char text[64];
        if (remote)
            snprintf(text, sizeof text, "KOLO_STORE_AT=%d", options->store_port);
        else
            snprintf(text, sizeof text, "KOLO_STORE_AT=%s", options->store_at);
        add(&env, &n, text);
    }
    char bind[64];
    kolorun_bind_variable(options->bind, options->report_bindings, bind, sizeof bind);
    add(&env, &n, bind);
    for (size_t i = 0; i < options->nenv; i++) add(&env, &n, options->env[i]);
    return env;
}

void kolorun_env_free(char **env)
{
    for (char **e = env; e != NULL && *e != NULL; e++) free(*e);
    free(env);
}
