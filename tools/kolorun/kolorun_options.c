/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line of kolorun: a row for each option, with its help, where it goes and what it may be.
 */
#include "kolorun_options.h"
#include "kolorun.h"
#include "kolorun_nccl.h"
#include "output.h"

#include <kolo/kolo.h>

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: kolorun -n N [options] program [arguments]\n"
    "       kolorun -H host:slots,... [options] program [arguments]\n"
    "       kolorun --min N [--max N] --discover SCRIPT | -H host:slots,... [options] program [arguments]\n"
    "       kolorun --check-build | --help | --version\n"
    "Starts the ranks of a program, here or over ssh, and shows their output line by line.\n";

static const char more[] =
    "The first rank that fails, or the one that its errors name as lost, is reported and the rest are ended; the\n"
    "exit status is that rank's, 128 + number for a signal. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to "
    "all processes of the job, SIGUSR1 and\n"
    "SIGUSR2 to the ranks; a second SIGINT or SIGTERM kills the job. The end of the process that started kolorun "
    "and\n"
    "waits for it is taken as SIGHUP.\n"
    "--oversubscribe and --allow-run-as-root of mpirun are accepted and not needed.\n"
    "Each finds KOLO_RANK, KOLO_NRANKS, KOLO_LOCAL_RANK, KOLO_LOCAL_SIZE and KOLO_ID_FILE in its environment.\n"
    "With --min, for programs on kolo/state.h, processes come and go: one that fails is started anew.\n";

/* ---- values ---- */

static bool number(const char *text, double min, double max, double *value)
{
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (errno != 0 || end == text || *end != '\0' || !(v >= min && v <= max)) return false;
    *value = v;
    return true;
}

/* Each takes one value; false: what it should have been is in `want`, or it has been said. */
#define WANT_BYTES 100
typedef bool take_t(kolorun_options_t *o, const char *arg, char want[WANT_BYTES]);

static bool want_this(char want[WANT_BYTES], const char *what)
{
    snprintf(want, WANT_BYTES, "%s", what);
    return false;
}

static bool take_hosts(kolorun_options_t *o, const char *arg, char want[WANT_BYTES])
{
    char why[200];
    if (kolorun_hostlist_add(&o->hosts, arg, strlen(arg), why, sizeof why)) return true;
    fprintf(stderr, "kolorun: -H: %s\n", why);
    return want_this(want, "");
}

static bool take_host_file(kolorun_options_t *o, const char *arg, char want[WANT_BYTES])
{
    char why[200];
    if (kolorun_hostlist_read(&o->hosts, arg, why, sizeof why)) return true;
    fprintf(stderr, "kolorun: --hostfile: %s\n", why);
    return want_this(want, "");
}

static bool take_ssh(kolorun_options_t *o, const char *arg, char want[WANT_BYTES])
{
    o->way.ssh = arg;
    return arg[strspn(arg, " ")] != '\0' || want_this(want, "a command");
}

static bool take_bind(kolorun_options_t *o, const char *arg, char want[WANT_BYTES])
{
    return kolorun_bind_parse(arg, &o->bind) || want_this(want, "core, numa or none");
}

static bool take_input(kolorun_options_t *o, const char *arg, char want[WANT_BYTES])
{
    double n = strcmp(arg, "all") == 0 ? KOLORUN_INPUT_ALL : KOLORUN_INPUT_NONE;
    if (n == KOLORUN_INPUT_NONE && strcmp(arg, "none") != 0 &&
        (!number(arg, 0, KOLORUN_SLOTS_MAX, &n) || n != (int)n))
        return want_this(want, "the number of a rank, all or none");
    o->input = (int)n;
    return true;
}

static bool take_back_off(kolorun_options_t *o, const char *arg, char want[WANT_BYTES])
{
    elastic_options_t *e = &o->elastic;
    char first[64];
    const size_t n = strcspn(arg, ":");
    snprintf(first, sizeof first, "%.*s", (int)(n < 63 ? n : 63), arg);
    bool ok = number(first, 0, 1e8, &e->back_off_s);
    if (arg[n] == ':')
        ok = ok && number(arg + n + 1, e->back_off_s, 1e8, &e->back_off_max_s);
    else if (e->back_off_max_s < e->back_off_s)
        e->back_off_max_s = e->back_off_s;
    return ok || want_this(want, "seconds, or seconds:most seconds");
}

static bool take_variable(kolorun_options_t *o, const char *arg, char want[WANT_BYTES])
{
    char *copy = NULL;
    const char *value = NULL;
    if (arg[0] == '=' || arg[0] == '\0') return want_this(want, "KEY=VALUE");
    if (strchr(arg, '=') == NULL && (value = getenv(arg)) == NULL)
        return want_this(want, "KEY=VALUE, or the name of a variable that is set");
    if (asprintf(&copy, value ? "%s=%s" : "%s", arg, value) < 0) return want_this(want, "less: there is no memory");
    o->env = kolorun_grow(o->env, sizeof *o->env * (o->nenv + 1));
    o->env[o->nenv++] = copy;
    return true;
}

/* Behind what the user preloads; other hosts have the library at the same path. */
static bool add_nccl(kolorun_options_t *o)
{
    char path[PATH_MAX], why[2 * PATH_MAX + 200], *text = NULL;
    const char *first = getenv("LD_PRELOAD");
    if (!kolorun_nccl_find(path, sizeof path, why, sizeof why)) {
        fprintf(stderr, "kolorun: --as-nccl: %s\n", why);
        return false;
    }
    for (size_t i = 0; i < o->nenv; i++)
        if (strncmp(o->env[i], "LD_PRELOAD=", 11) == 0) first = o->env[i] + 11;
    if (asprintf(&text, "LD_PRELOAD=%s%s%s", first ? first : "", first && *first ? ":" : "", path) < 0)
        return false;
    o->env = kolorun_grow(o->env, sizeof *o->env * (o->nenv + 1));
    o->env[o->nenv++] = text;
    return true;
}

/* ---- the options ---- */

typedef enum { FLAG, NO_FLAG, COUNT, SECONDS, TEXT, OWN } kind_t; /* NO_FLAG clears one; OWN: by `take` */

typedef struct {
    const char *name;  /* NULL: only as a letter */
    char letter;       /* 0: none */
    const char *value; /* what the help calls its value */
    kind_t kind;
    size_t at;    /* in kolorun_options_t */
    double least; /* COUNT, SECONDS */
    take_t *take;
    const char *help; /* NULL: another row has it */
} row_t;

#define AT(field) offsetof(kolorun_options_t, field)
#define CONTINUED "\n                          "
static const row_t rows[] = {
    {"np", 'n', "N", COUNT, AT(nranks), 1, NULL, "number of ranks (default: all slots of the hosts)"},
    {"host", 'H', "LIST", OWN, 0, 0, take_hosts,
     "hosts and slots, as host:slots,host:slots; ranks fill them in this order"},
    {"hostfile", 0, "F", OWN, 0, 0, take_host_file,
     "the same from a file, a host a line: host:slots or host slots=N, # for" CONTINUED "comments"},
    {"ssh", 0, "COMMAND", OWN, 0, 0, take_ssh, "ssh with its options (default ssh); it must need no password"},
    {"remote-kolorun", 0, "PATH", TEXT, AT(way.remote), 0, NULL,
     "where kolorun is on the other hosts (default: the same path as here)"},
    {"start-timeout", 0, "S", COUNT, AT(way.start_timeout_s), 1, NULL,
     "seconds until kolorun must run on all hosts (default 60)"},
    {NULL, 'x', "KEY=VALUE", OWN, 0, 0, take_variable,
     "set a variable for the ranks (repeatable); -x KEY: with the value it has here"},
    {"as-nccl", 0, NULL, FLAG, AT(as_nccl), 0, NULL,
     "programs that use NCCL (PyTorch, JAX, CuPy) use Kolo: preload its" CONTINUED "libnccl.so.2"},
    {"no-tag", 0, NULL, NO_FLAG, AT(tagged), 0, NULL,
     "do not put [rank] in front of each line (--tag is the default)"},
    {"tag", 0, NULL, FLAG, AT(tagged), 0, NULL, NULL},
    {"stdin", 0, "R", OWN, 0, 0, take_input,
     "hand the standard input of kolorun to rank R, or to all, or to none (the" CONTINUED "default)"},
    {"output-dir", 0, "D", TEXT, AT(output_dir), 0, NULL,
     "write the output of each rank to D/rank.R/stdout and stderr, too (with" CONTINUED
     "--min: of each process, to D/process.N)"},
    {"store", 0, NULL, FLAG, AT(store), 0, NULL,
     "keep a store of small values for the ranks (KOLO_STORE," CONTINUED "KOLO_STORE_KEY_FILE)"},
    {"bind-to", 0, "WHAT", OWN, 0, 0, take_bind,
     "core (the default): the ranks of a host divide its cores, unless there are" CONTINUED
     "too few; numa: each gets the NUMA nodes of its cores; none"},
    {"report-bindings", 0, NULL, FLAG, AT(report_bindings), 0, NULL, "each rank says where it is bound"},
    {"timeout", 0, "S", SECONDS, AT(timeout_s), 1e-3, NULL, "end the job after S seconds, with status 124"},
    {"grace", 0, "S", SECONDS, AT(grace_s), 0, NULL,
     "seconds between SIGTERM and SIGKILL when the job is ended (default 5)"},
    {"min", 0, "N", COUNT, AT(elastic.min), 1, NULL, "fewest ranks with which the job goes on"},
    {"max", 0, "N", COUNT, AT(elastic.max), 1, NULL, "most ranks (default: all slots)"},
    {"discover", 0, "SCRIPT", TEXT, AT(elastic.discover), 0, NULL,
     "a command that prints the hosts of now, a host a line: host:slots"},
    {"discover-every", 0, "S", SECONDS, AT(elastic.every_s), 1e-3, NULL, "seconds between its runs (default 1)"},
    {"discover-limit", 0, "S", SECONDS, AT(elastic.patience_s), 1e-3, NULL,
     "seconds that it may take (default 10)"},
    {"elastic-timeout", 0, "S", SECONDS, AT(elastic.timeout_s), 0, NULL,
     "end the job when there are fewer than --min for S seconds (default 600)"},
    {"back-off", 0, "S[:MAX]", OWN, 0, 0, take_back_off,
     "seconds that a host rests after a failure, doubled each time up to MAX" CONTINUED "(1:600)"},
    {"reset-limit", 0, "N", COUNT, AT(elastic.reset_limit), 0, NULL,
     "end the job when the ranks change more than N times (default: no limit)"},
    {"oversubscribe", 0, NULL, FLAG, AT(needless), 0, NULL, NULL},
    {"allow-run-as-root", 0, NULL, FLAG, AT(needless), 0, NULL, NULL},
    {"check-build", 0, NULL, FLAG, AT(check_build), 0, NULL,
     "say what is compiled in and what is found on this machine"},
};
#define ROWS      (sizeof rows / sizeof *rows)
#define FIRST_ROW 1000 /* what getopt returns for the first one */
#define HELP      1
#define VERSION   2

static int wrong_usage(const char *what)
{
    if (what != NULL) fprintf(stderr, "kolorun: %s\n", what);
    fprintf(stderr, "try 'kolorun --help'\n");
    return KOLORUN_STATUS_USAGE;
}

static int print_help(void)
{
    fputs(usage, stdout);
    for (const row_t *r = rows; r < rows + ROWS; r++) {
        char letter[8] = "", shown[64];
        if (r->letter) snprintf(letter, sizeof letter, "-%c%s", r->letter, r->name ? ", " : "");
        snprintf(shown, sizeof shown, "%s%s%s%s%s", letter, r->name ? "--" : "", r->name ? r->name : "",
                 r->value ? " " : "", r->value ? r->value : "");
        if (r->help) printf("  %-22s  %s\n", shown, r->help);
    }
    fputs(more, stdout);
    return 0;
}

/* -1: go on. */
static int take(kolorun_options_t *o, const row_t *r, const char *arg)
{
    char want[WANT_BYTES] = "a value", *at = (char *)o + r->at;
    double n = 0;
    bool ok = true;
    switch (r->kind) {
    case FLAG:
    case NO_FLAG:
        *(bool *)at = r->kind == FLAG;
        break;
    case COUNT:
        ok = number(arg, r->least, KOLORUN_SLOTS_MAX, &n) && n == (int)n;
        snprintf(want, sizeof want, "a whole number from %g to %d", r->least, KOLORUN_SLOTS_MAX);
        *(int *)at = (int)n;
        break;
    case SECONDS:
        ok = number(arg, r->least, 1e8, (double *)at);
        snprintf(want, sizeof want, "seconds%s", r->least > 0 ? ", more than 0" : "");
        break;
    case TEXT:
        ok = arg[0] != '\0';
        *(const char **)at = arg;
        break;
    case OWN:
        ok = r->take(o, arg, want);
    }
    if (ok) return -1;
    if (want[0] == '\0') return KOLORUN_STATUS_USAGE;
    if (r->letter)
        fprintf(stderr, "kolorun: -%c \"%s\": expected %s\n", r->letter, arg, want);
    else
        fprintf(stderr, "kolorun: --%s \"%s\": expected %s\n", r->name, arg, want);
    return KOLORUN_STATUS_USAGE;
}

/* ---- what fits together ---- */

static const char *check_elastic(const kolorun_options_t *o)
{
    const elastic_options_t *e = &o->elastic;
    const bool hosts = o->hosts.count > 0;
    if (e->min == 0) return e->max || e->discover || e->reset_limit >= 0 ? "--min is missing" : NULL;
    if (e->max != 0 && e->max < e->min) return "--max is less than --min";
    if (o->nranks > 0)
        return "-n cannot be used with --min: the hosts' slots say how many ranks there are (for N here: -H "
               "localhost:N)";
    if (e->discover && hosts) return "--discover cannot be used with -H or --hostfile: the script names the hosts";
    if (!e->discover && !hosts)
        return "--discover SCRIPT is missing, or, for hosts that stay, -H host:slots (here: -H localhost:N)";
    if (o->input == KOLORUN_INPUT_ALL)
        return "--stdin all cannot be used with --min: who comes later would miss the beginning; --stdin 0 is for "
               "the first process";
    return NULL;
}

/* A colon may be an argument; before an option of mpirun's it begins another program. */
static bool has_programs(char *const *argv)
{
    static const char *const options[] = {"-n", "-np", "--np", "-x", "-H", "-host", "--host", "-wdir", "--wdir"};
    for (; *argv != NULL && argv[1] != NULL; argv++)
        for (size_t i = 0; strcmp(*argv, ":") == 0 && i < sizeof options / sizeof *options; i++)
            if (strcmp(argv[1], options[i]) == 0) return true;
    return false;
}

/* Tells whether an option that is missing stands among the words for the program. */
static bool stands_behind(char *const *argv)
{
    static const char *const options[] = {"-n", "-np", "-H", "--np", "--host"};
    for (size_t i = 0; argv[0] && i < sizeof options / sizeof options[0]; i++)
        for (char *const *word = argv + 1; *word; word++)
            if (strcmp(*word, options[i]) == 0) return true;
    return false;
}

static int check(kolorun_options_t *o)
{
    const char *wrong = check_elastic(o);
    if (wrong != NULL) {
        fprintf(stderr, "kolorun: %s\n", wrong);
        return KOLORUN_STATUS_USAGE;
    }
    if (o->as_nccl && !add_nccl(o)) return 1;
    if (o->elastic.min == 0 && o->hosts.count == 0 && o->nranks > 0) {
        char here[32], why[100];
        snprintf(here, sizeof here, "localhost:%d", o->nranks);
        if (!kolorun_hostlist_add(&o->hosts, here, strlen(here), why, sizeof why)) return 1;
    }
    if (o->elastic.min == 0 && o->nranks == 0) o->nranks = o->hosts.slots;
    if (o->elastic.min == 0 && o->nranks == 0)
        return wrong_usage(stands_behind(o->argv)
                               ? "-n and -H come before the program: what stands behind it is the program's"
                               : "-n N or -H is missing");
    if (o->argv[0] == NULL) return wrong_usage("the program is missing");
    if (!o->literal && has_programs(o->argv))
        return wrong_usage(
            "several programs, separated by \":\", are not possible: start one that chooses by its rank, as sh -c "
            "'if [ $KOLO_RANK = 0 ]; then exec a; else exec b; fi'; if the \":\" is a word for the program, put -- "
            "before the program");
    if (o->elastic.min > 0) return -1;
    if (o->input >= o->nranks) {
        fprintf(stderr, "kolorun: --stdin %d: the ranks are 0 to %d\n", o->input, o->nranks - 1);
        return KOLORUN_STATUS_USAGE;
    }
    if (o->nranks <= o->hosts.slots) return -1;
    fprintf(stderr, "kolorun: -n %d is more than the hosts have slots (%d): -H %s:N gives that host N\n", o->nranks,
            o->hosts.slots, o->hosts.hosts[0].name);
    return KOLORUN_STATUS_USAGE;
}

/* The default of --bind-to. */
static bool take_environment(kolorun_options_t *o)
{
    const char *text = getenv(KOLORUN_BIND_VARIABLE);
    if (text == NULL || text[0] == '\0' || kolorun_bind_parse(text, &o->bind)) return true;
    fprintf(stderr, "kolorun: %s \"%s\": expected core, numa or none\n", KOLORUN_BIND_VARIABLE, text);
    return false;
}

static const row_t *row_of(int c)
{
    if (c >= FIRST_ROW) return &rows[c - FIRST_ROW];
    for (const row_t *r = rows; r < rows + ROWS; r++)
        if (r->letter == c) return r;
    return NULL;
}

/* What mpirun takes with one dash, and getopt would take for -h. */
static char *with_two_dashes(char *word)
{
    static char host[] = "--host", hostfile[] = "--hostfile";
    if (strcmp(word, "-host") == 0 || strcmp(word, "-hosts") == 0) return host;
    return strcmp(word, "-hostfile") == 0 ? hostfile : word;
}

static int take_all(kolorun_options_t *o, int argc, char **argv)
{
    struct option longs[ROWS + 3] = {{"help", no_argument, NULL, HELP}, {"version", no_argument, NULL, VERSION}};
    int n = 2, c, status = -1;
    for (const row_t *r = rows; r < rows + ROWS; r++)
        if (r->name)
            longs[n++] = (struct option){r->name, r->value ? required_argument : no_argument, NULL,
                                         FIRST_ROW + (int)(r - rows)};
    while (status < 0) {
        const int next = optind;
        if (optind < argc) argv[optind] = with_two_dashes(argv[optind]);
        if ((c = getopt_long(argc, argv, "+n:H:x:h", longs, NULL)) == -1) {
            o->literal = optind > next; /* getopt has gone past -- */
            break;
        }
        const row_t *r = row_of(c);
        if (c == 'n' && strcmp(optarg, "p") == 0 && optind < argc)
            optarg = argv[optind++]; /* -np N, as of mpirun */
        if (c == 'h' || c == HELP) return print_help();
        if (c == VERSION) {
            printf("kolorun %d.%d.%d\n", KOLO_VERSION_MAJOR, KOLO_VERSION_MINOR, KOLO_VERSION_PATCH);
            return 0;
        }
        if (!r && optopt == 0) kolo_tool_suggest(longs, argv[optind - 1]);
        if (!r && optopt == 0 && strncmp(argv[optind - 1], "--nproc", 7) == 0)
            fprintf(stderr, "did you mean -n N?\n");
        status = r ? take(o, r, optarg) : wrong_usage(NULL); /* getopt has said what is wrong */
    }
    return status;
}

int kolorun_options_parse(int argc, char **argv, kolorun_options_t *o)
{
    *o = (kolorun_options_t){.tagged = true,
                             .grace_s = 5,
                             .input = KOLORUN_INPUT_NONE,
                             .elastic = {.every_s = 1,
                                         .patience_s = 10,
                                         .timeout_s = 600,
                                         .back_off_s = 1,
                                         .back_off_max_s = 600,
                                         .reset_limit = -1}};
    if (!kolorun_way_init(&o->way)) {
        fprintf(stderr, "kolorun: cannot find its own program in /proc\n");
        return 1;
    }
    static char own_name[] = "kolorun";
    argv[0] = own_name; /* in the messages of getopt */
    int status = take_environment(o) ? take_all(o, argc, argv) : KOLORUN_STATUS_USAGE;
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
