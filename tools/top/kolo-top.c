/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-top: the jobs of this host as they run, who is stuck and for whom, from the flight records of their
 * processes. It only reads memory that they offer and never touches them.
 */
#include "kolo-top.h"

#include "base/clock.h"
#include "base/params.h"
#include "base/process.h"
#include "output.h"

#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REFRESH_MS 1000
#define ONCE_MS    200 /* between two looks, for rates */

static const char usage[] =
    "usage: kolo-top [--job ID] [--pid PID]... [--once]\n"
    "                              the jobs of this host, each second: rates, last operation, who is stuck; in a\n"
    "                              terminal ? says what the keys do\n"
    "       kolo-top --dump [--job ID] [--pid PID]... [--last N] [--json] [--save FILE]\n"
    "                              the last N operations (8) of each rank and a verdict, or all for --join\n"
    "       kolo-top --join [--job ID] [--last N] [--json] FILE...\n"
    "                              the same from files saved on several hosts\n"
    "       kolo-top --help | --version\n"
    "Exit status: 0, 1 nothing was found or something failed, 2 wrong arguments.\n";

static int wrong_usage(const char *why)
{
    if (why) fprintf(stderr, "kolo-top: %s\n", why);
    fprintf(stderr, "try 'kolo-top --help'\n");
    return TOP_USAGE;
}

static bool number(const char *what, const char *text, int64_t min, int64_t max, int64_t *value)
{
    const kolo_param_t row = {
        .key = what, .kind = KOLO_PARAM_INT, .min = min, .max = max, .help = "", .value = value};
    if (kolo_param_parse(&row, text) == KOLO_OK) return true;
    fprintf(stderr, "kolo-top: %s\n", kolo_error_text());
    return false;
}

static bool take_option(top_options_t *o, int c)
{
    int64_t pid;
    char *end;
    switch (c) {
    case 'o':
        o->once = true;
        return true;
    case 'd':
        o->dump = true;
        return true;
    case 'J':
        o->join = true;
        return true;
    case 'j':
        o->json = true;
        return true;
    case 's':
        o->save = optarg;
        return true;
    case 'l':
        o->has_last = true;
        return number("--last", optarg, 1, KOLO_RECORD_ENTRIES, &o->last);
    case 'p':
        if (o->npids == TOP_PIDS || !number("--pid", optarg, 1, INT32_MAX, &pid)) return false;
        o->pids[o->npids++] = (int)pid;
        return true;
    case 'i':
        o->job = strtoull(optarg, &end, 16);
        o->has_job = true;
        if (*optarg && !*end) return true;
        fprintf(stderr, "kolo-top: --job %s: expected the number of a job, in hexadecimal\n", optarg);
        return false;
    default:
        return false;
    }
}

/* -1: go on; else the exit status. */
static int parse_options(int argc, char **argv, top_options_t *o)
{
    static const struct option longs[] = {
        {"once", no_argument, NULL, 'o'},
        {"dump", no_argument, NULL, 'd'},
        {"join", no_argument, NULL, 'J'},
        {"json", no_argument, NULL, 'j'},
        {"save", required_argument, NULL, 's'},
        {"last", required_argument, NULL, 'l'},
        {"pid", required_argument, NULL, 'p'},
        {"job", required_argument, NULL, 'i'},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},
        {NULL, 0, NULL, 0},
    };
    static char own_name[] = "kolo-top";
    argv[0] = own_name; /* in the messages of getopt */
    for (int c; (c = getopt_long(argc, argv, "h", longs, NULL)) != -1;) {
        if (c == 'h') {
            fputs(usage, stdout);
            return TOP_OK;
        }
        if (c == 'V') {
            printf("kolo-top %d.%d.%d\n", KOLO_VERSION_MAJOR, KOLO_VERSION_MINOR, KOLO_VERSION_PATCH);
            return TOP_OK;
        }
        if (c == '?' && optopt == 0) kolo_tool_suggest(longs, argv[optind - 1]);
        if (!take_option(o, c)) return wrong_usage(NULL);
    }
    bool table = o->dump || o->join;
    if (o->dump + o->join + o->once > 1) return wrong_usage("--once, --dump and --join exclude each other");
    if (o->json && !table) return wrong_usage("--json goes with --dump and --join");
    if (o->save && !o->dump) return wrong_usage("--save goes with --dump");
    if (o->join && optind == argc) return wrong_usage("--join needs files");
    if (!o->join && optind < argc) {
        fprintf(stderr, "kolo-top: unexpected argument: %s (files go with --join)\n", argv[optind]);
        return wrong_usage(NULL);
    }
    if (o->has_last && !table) return wrong_usage("--last goes with --dump and --join");
    int gone = 0;
    while (gone < o->npids && kolo_process_gone(o->pids[gone])) gone++; /* a rank among others may be */
    if (gone > 0 && gone == o->npids) {
        fprintf(stderr, "kolo-top: --pid %d: there is no such process on this host\n", o->pids[0]);
        return TOP_FAILED;
    }
    if (o->join && o->npids) return wrong_usage("--pid cannot be used with --join");
    return -1;
}

/* ---- what is shown ---- */

/* The list once, or each second into a pipe. */
static int list(const top_options_t *o)
{
    static const top_view_t view = {.order = TOP_BY_STUCK};
    top_set_t before, now;
    if (!top_scan(o, &before)) return TOP_FAILED;
    uint64_t then_ns = kolo_now_ns();
    int keys = 0;
    for (;;) {
        poll(NULL, 0, o->once ? ONCE_MS : REFRESH_MS);
        if (!top_scan(o, &now)) break;
        uint64_t now_ns = kolo_now_ns();
        top_show(stdout, &now, &before, (double)(now_ns - then_ns) / (double)KOLO_NS_PER_S, &view);
        keys = top_show_keys(stdout, o);
        if (now.count == 0 && keys == 0) printf("%s\n", TOP_NO_JOB);
        if (!o->once) printf("\n");
        bool gone = fflush(stdout) != 0;
        top_free(&before);
        before = now;
        then_ns = now_ns;
        if (o->once || gone) break;
    }
    int status = before.count || keys ? TOP_OK : TOP_FAILED;
    top_free(&before);
    return status;
}

static int watch(const top_options_t *o)
{
    return isatty(STDOUT_FILENO) && !o->once ? top_screen(o) : list(o);
}

static int dump(const top_options_t *o, char **files, int nfiles)
{
    top_set_t set;
    int status = TOP_FAILED;
    bool good = o->join ? top_read_files(o, files, nfiles, &set) : top_scan(o, &set);
    bool keys = good && !o->join && !o->json && !o->save && top_show_keys(stdout, o) > 0;
    if (keys && set.count == 0)
        status = TOP_OK;
    else if (good && set.count == 0 && !o->json)
        fprintf(stderr, "kolo-top: %s\n", o->join ? "there is no such record in these files" : TOP_NO_JOB);
    else if (good)
        status = o->save ? (top_save(o->save, &set) ? TOP_OK : TOP_FAILED) : top_dump(o, &set);
    top_free(&set);
    return status;
}

int main(int argc, char **argv)
{
    top_options_t options = {.last = 8};
    kolo_tool_output("kolo-top");
    int status = parse_options(argc, argv, &options);
    if (status >= 0) return status;
    return options.dump || options.join ? dump(&options, argv + optind, argc - optind) : watch(&options);
}
