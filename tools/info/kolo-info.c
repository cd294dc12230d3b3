/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-info: what this library is, what it sees and what it would do. Without options: version, build, wires and
 * limits. It links the library's insides, runs no job and changes nothing.
 */
#include "kolo-info.h"
#include "base/failpoint.h"
#include "kolo-info-machine.h"
#include "output.h"
#include "topo/topo.h"
#include "tune/tune.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: kolo-info                                  version, build, wires, limits\n"
    "       kolo-info --params [--json]                every parameter with its value and where that came from\n"
    "       kolo-info --topo                           the machine (or KOLO_TOPO_FILE), drawn, and its lanes\n"
    "       kolo-info --explain COLL SIZE RANKS [--nodes K]\n"
    "                                                  which algorithm for COLL (all_reduce, ...) of SIZE bytes, "
    "and why\n"
    "                 [--fabric FILE[,rails][,pod=N][,over=X]]\n"
    "                                                  and how long it would take on such machines (hwloc's XML), "
    "joined\n"
    "                                                  by a leaf switch for each pod of N (rails: for each of "
    "their "
    "cards),\n"
    "                                                  with X times more below a leaf switch than above it\n"
    "       kolo-info --explain COLL SIZE GPUS --gpu [--graph]\n"
    "                                                  the same on GPUs of one host\n"
    "       kolo-info --model COLL GPUS [--graph]      times that the simulator predicts for GPUs, 8 B to 8 GB\n"
    "       kolo-info --memory RANKS [--nodes K]       memory and descriptors per rank of a communicator\n"
    "       kolo-info --fail-points                    the names of KOLO_FAIL_POINT\n"
    "       kolo-info --help | --version\n"
    "Sizes take K, M, G. Ranks are spread evenly over K nodes (1 unless given).\n"
    "Exit status: 0, 1 something is wrong with a parameter or the machine, 2 wrong arguments, 3 not in this "
    "build.\n";

static int wrong_usage(const char *why)
{
    if (why) fprintf(stderr, "kolo-info: %s\n", why);
    fprintf(stderr, "try 'kolo-info --help'\n");
    return INFO_USAGE;
}

bool kolo_info_number(const char *what, const char *text, bool size, int64_t min, int64_t max, int64_t *value)
{
    const kolo_param_t row = {.key = what,
                              .kind = size ? KOLO_PARAM_SIZE : KOLO_PARAM_INT,
                              .min = min,
                              .max = max,
                              .help = size ? "bytes" : "a whole number",
                              .value = value};
    if (kolo_param_parse(&row, text) == KOLO_OK) return true;
    fprintf(stderr, "kolo-info: %s\n", kolo_error_text());
    return false;
}

int kolo_info_topology(void)
{
    info_machine_t machine = {0};
    if (kolo_topo_load_gpus(&machine.topo) != KOLO_OK) {
        fprintf(stderr, "kolo-info: %s\n", kolo_error_text());
        return INFO_FAILED;
    }
    kolo_topo_print(&machine.topo, stdout);
    int status = kolo_info_print_lanes(&machine);
    kolo_topo_fini(&machine.topo);
    return status;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int list_fail_points(void)
{
    size_t n = 0;
    while (kolo_fail_point_at(n)) n++;
    const char **names = calloc(n + 1, sizeof *names);
    if (!names) return INFO_FAILED;
    for (size_t i = 0; i < n; i++) names[i] = kolo_fail_point_at(i)->name;
    qsort(names, n, sizeof *names, by_text);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(names[i], names[i - 1]) != 0) puts(names[i]);
    free(names);
    return INFO_OK;
}

typedef enum {
    MODE_OVERVIEW,
    MODE_PARAMS,
    MODE_TOPO,
    MODE_EXPLAIN,
    MODE_MEMORY,
    MODE_FAIL_POINTS,
    MODE_MODEL
} info_mode_t;

typedef struct {
    info_mode_t mode;
    bool json, nodes_given, gpu, graph;
    int64_t nodes;
    const char *fabric;
} info_options_t;

/* -1: go on; else the exit status. */
static int parse_options(int argc, char **argv, info_options_t *options)
{
    static const struct option longs[] = {
        {"params", no_argument, NULL, 'p'},       {"json", no_argument, NULL, 'j'},
        {"topo", no_argument, NULL, 't'},         {"explain", no_argument, NULL, 'e'},
        {"memory", no_argument, NULL, 'm'},       {"fail-points", no_argument, NULL, 'f'},
        {"model", no_argument, NULL, 'M'},        {"gpu", no_argument, NULL, 'g'},
        {"graph", no_argument, NULL, 'G'},        {"nodes", required_argument, NULL, 'n'},
        {"fabric", required_argument, NULL, 'F'}, {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},      {NULL, 0, NULL, 0},
    };
    static const char letters[] = "ptemfM"; /* in the order of info_mode_t from MODE_PARAMS on */
    static char own_name[] = "kolo-info";
    argv[0] = own_name; /* in the messages of getopt */
    for (int c; (c = getopt_long(argc, argv, "h", longs, NULL)) != -1;) {
        const char *letter = strchr(letters, c);
        if (c == '?' && optopt == 0) kolo_tool_suggest(longs, argv[optind - 1]);
        if (letter && options->mode != MODE_OVERVIEW)
            return wrong_usage(
                "--params, --topo, --explain, --model, --memory and --fail-points exclude each other");
        if (letter) {
            options->mode = (info_mode_t)(MODE_PARAMS + (letter - letters));
        } else if (c == 'j') {
            options->json = true;
        } else if (c == 'g') {
            options->gpu = true;
        } else if (c == 'G') {
            options->graph = true;
        } else if (c == 'n') {
            if (!kolo_info_number("--nodes", optarg, false, 1, 1 << 20, &options->nodes)) return INFO_USAGE;
            options->nodes_given = true;
        } else if (c == 'F') {
            options->fabric = optarg;
        } else if (c == 'h') {
            fputs(usage, stdout);
            return INFO_OK;
        } else if (c == 'V') {
            printf("kolo-info %d.%d.%d\n", KOLO_VERSION_MAJOR, KOLO_VERSION_MINOR, KOLO_VERSION_PATCH);
            return INFO_OK;
        } else {
            return wrong_usage(NULL); /* getopt has said what is wrong */
        }
    }
    return -1;
}

static int check_options(const info_options_t *options, int rest, char *const *words)
{
    bool nodes = options->mode == MODE_EXPLAIN || options->mode == MODE_MEMORY;
    if (options->json && options->mode != MODE_PARAMS) return wrong_usage("--json goes with --params");
    if (options->nodes_given && !nodes) return wrong_usage("--nodes goes with --explain and --memory");
    if (options->fabric && (options->mode != MODE_EXPLAIN || options->gpu))
        return wrong_usage("--fabric goes with --explain, without --gpu");
    if (options->gpu && (options->mode != MODE_EXPLAIN || options->nodes_given))
        return wrong_usage("--gpu goes with --explain, for one node");
    if (options->graph && options->mode != MODE_MODEL && !options->gpu)
        return wrong_usage("--graph goes with --model and with --explain --gpu");
    if (options->mode == MODE_MODEL && rest != 2) return wrong_usage("--model needs COLL GPUS");
    if (options->mode == MODE_EXPLAIN && rest != 3) return wrong_usage("--explain needs COLL SIZE RANKS");
    if (options->mode == MODE_MEMORY && rest != 1) return wrong_usage("--memory needs a number of RANKS");
    if (nodes || options->mode == MODE_MODEL || rest == 0) return INFO_OK;
    fprintf(stderr, "kolo-info: unexpected argument: %s\n", words[0]);
    return wrong_usage(NULL);
}

int main(int argc, char **argv)
{
    info_options_t options = {.nodes = 1};
    kolo_tool_output("kolo-info");
    int status = parse_options(argc, argv, &options);
    if (status >= 0) return status;
    status = check_options(&options, argc - optind, argv + optind);
    if (status != INFO_OK) return status;

    size_t ntables;
    const kolo_param_table_t *const *tables = kolo_info_tables(&ntables);
    bool good = kolo_params_load(tables, ntables, NULL, NULL) == KOLO_OK;
    good = good && kolo_tune_load() == KOLO_OK;
    if (!good) fprintf(stderr, "kolo-info: %s\n", kolo_error_text()); /* go on: defaults stand in */
    if (good) kolo_params_warn_unknown(tables, ntables);
    char **rest = argv + optind;
    switch (options.mode) {
    case MODE_OVERVIEW:
        status = kolo_info_overview();
        break;
    case MODE_PARAMS:
        status = kolo_info_params(options.json);
        break;
    case MODE_TOPO:
        status = kolo_info_topology();
        break;
    case MODE_EXPLAIN:
        status = options.gpu ? kolo_info_explain_gpu(rest[0], rest[1], rest[2], options.graph)
                             : kolo_info_explain(rest[0], rest[1], rest[2], (int)options.nodes, options.fabric);
        break;
    case MODE_MEMORY:
        status = kolo_info_memory(rest[0], (int)options.nodes);
        break;
    case MODE_MODEL:
        status = kolo_info_model(rest[0], rest[1], options.graph);
        break;
    case MODE_FAIL_POINTS:
        status = list_fail_points();
        break;
    }
    return status == INFO_OK && !good ? INFO_FAILED : status;
}
