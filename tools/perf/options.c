/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-perf's command line. The short options, and the other spellings of names, are those of nccl-tests, so that a
 * line that measured NCCL measures Kolo.
 */
#include "output.h"
#include "perf.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: kolorun -n N kolo-perf COLLECTIVE... [options]\n"
    "       kolorun -n N kolo-perf run [options]\n"
    "       kolo-perf rendezvous [options]   (keyed tensors; see kolo-perf rendezvous --help)\n"
    "Times collectives and checks their values. COLLECTIVE is all_reduce, reduce, broadcast, all_gather, "
    "reduce_scatter,\n"
    "all_to_all, gather, scatter, sendrecv or barrier (also without \"_\"); run: all of them over a few sizes. "
    "put: each rank\n"
    "writes into a window of the next and waits for the signal of the one before it.\n"
    "  -b, --min SIZE        first size in bytes (8); for all_gather, reduce_scatter, all_to_all, gather and "
    "scatter\n"
    "                        the size of the whole vector. Sizes take K, M, G\n"
    "  -e, --max SIZE        last size (64M)\n"
    "  -f, --factor N        each size is N times the one before (4)\n"
    "  -n, --iters N         timed calls per row (more for small sizes)\n"
    "  -w, --warmup N        calls before them (10)\n"
    "  -c, --check 0|1       check the values (1); also --no-check\n"
    "  -d, --type T          float32, float64, float16, bfloat16, int32, ... or float, double, half (float32)\n"
    "  -o, --op O            sum, prod, min, max, avg; band, bor, bxor, land, lor, lxor for integers and bool "
    "(sum)\n"
    "  -r, --root R          of reduce, broadcast, gather and scatter (0)\n"
    "  --in-place, --both    in place; out of place and in place, a row each\n"
    "  --rotate              alternate between two pairs of buffers\n"
    "  --gpu, --graph        on GPUs, one for each rank of a host in turn; calls in a row from a CUDA graph. A "
    "time is\n"
    "                        a part of that of a burst of calls, by the GPU's clock; -n counts samples\n"
    "  --json FILE, --plot FILE   write the rows as JSON, an SVG plot (rank 0)\n"
    "  --every-algorithm     time every algorithm that can run at each point beside the tuner's choice (up to "
    "16M)\n"
    "  --table FILE, --seconds S   with --every-algorithm (and --gpu): what was the fastest becomes lines of the "
    "table\n"
    "                        file that KOLO_TUNE_FILE names; in about S seconds. kolo-tune does it for all "
    "numbers of ranks\n"
    "  --help, --version\n"
    "time is the median over the timed calls; the time of a call is that of its slowest rank. algbw is size / "
    "time,\n"
    "busbw as nccl-tests define it. model is the time that the simulator predicts. of copy (from 1M on) is the "
    "time\n"
    "that copying the same bytes once takes, over the time.\n"
    "Exit status: 0, 1 a wrong value or a failed call, 2 wrong arguments.\n";

int perf_bad(const char *what, const char *text)
{
    fprintf(stderr, "kolo-perf: %s%s%s; try 'kolo-perf --help'\n", what, text ? ": " : "", text ? text : "");
    return 2;
}

/* A name that is in no list. */
static int unknown(const char *what, const char *text, const char *const *names, int count)
{
    char pair[160];
    const char *meant = kolo_tool_nearest(names, count, text);
    snprintf(pair, sizeof pair, "%.60s%s%s%s", text, meant ? " (did you mean " : "", meant ? meant : "",
             meant ? "?)" : "");
    return perf_bad(what, pair);
}

bool perf_parse_size(const char *text, uint64_t *value)
{
    char *end;
    errno = 0;
    if (!text || text[0] < '0' || text[0] > '9') return false;
    unsigned long long v = strtoull(text, &end, 10);
    int shift = *end == 'K' || *end == 'k'   ? 10
                : *end == 'M' || *end == 'm' ? 20
                : *end == 'G' || *end == 'g' ? 30
                                             : 0;
    if (shift) end++;
    if (errno || *end || v > (1ull << 40) >> shift) return false;
    *value = v << shift;
    return true;
}

/* Are the names the same but for case, '_' and '-'? */
static bool same_name(const char *a, const char *b)
{
    for (;; a++, b++) {
        while (*a == '_' || *a == '-') a++;
        while (*b == '_' || *b == '-') b++;
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b)) return false;
        if (!*a) return true;
    }
}

static int find(const char *const *names, int n, const char *text)
{
    for (int i = 0; i < n; i++)
        if (same_name(names[i], text)) return i;
    return -1;
}

static int find_type(const char *text)
{
    static const char *const theirs[][2] = {{"float", "float32"},
                                            {"double", "float64"},
                                            {"half", "float16"},
                                            {"fp8_e4m3", "float8e4m3"},
                                            {"fp8_e5m2", "float8e5m2"}};
    for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++)
        if (same_name(text, theirs[i][0])) text = theirs[i][1];
    return find(perf_type_names, KOLO_TYPE_COUNT, text);
}

/* Of an option with a number. */
static int take_number(perf_options_t *o, int c, const char *text, bool *max_given, bool *factor_given)
{
    uint64_t number;
    const char *const names = "befnwcrS";
    static const char *const words[] = {"--min (-b) needs a size, not",
                                        "--max (-e) needs a size, not",
                                        "--factor (-f) needs a whole number from 2 on, not",
                                        "--iters (-n) needs a number from 1 on, not",
                                        "--warmup (-w) needs a number, not",
                                        "--check (-c) needs 0 or 1, not",
                                        "--root (-r) needs a rank, not",
                                        "--seconds needs a number, not"};
    const char *at = strchr(names, c);
    if (!perf_parse_size(text, &number) || (c != 'b' && c != 'e' && number > INT32_MAX) ||
        (c == 'c' && number > 1) || (c == 'n' && number == 0))
        return perf_bad(words[at - names], text);
    if (c == 'b') o->min_bytes = number;
    if (c == 'e') o->max_bytes = number;
    if (c == 'f') o->factor = number;
    if (c == 'n') o->iters = (int)number;
    if (c == 'w') o->warmup = (int)number;
    if (c == 'c') o->check = number != 0;
    if (c == 'r') o->root = (int)number;
    if (c == 'S') o->seconds = (int)number;
    *max_given |= c == 'e';
    *factor_given |= c == 'f';
    return -1;
}

/* Of nccl-tests: what says how many GPUs a rank has, and what there is nothing for here. -1: go on. */
static int take_theirs(int c, const char *text)
{
    static const char *const words[] = {
        ['g'] = "-g needs 1, since a rank has one GPU and kolorun -n says how many ranks there are, not",
        ['t'] = "-t needs 1, since a rank has one thread and kolorun -n says how many ranks there are, not",
        ['i'] = "-i is not possible: each size is the one before it times -f, and not by steps of",
        ['m'] = "-m needs 1, since calls are not timed in groups, not",
        ['z'] = "-z needs 0: how calls wait is not chosen, not",
    };
    if (c != 'i' && strcmp(text, c == 'z' ? "0" : "1") == 0) return -1;
    return perf_bad(words[c], text);
}

/* One option; -1: go on. */
static int take(perf_options_t *o, int c, const char *text, bool *max_given, bool *factor_given)
{
    int i;
    switch (c) {
    case 'd':
        if ((i = find_type(text)) < 0) return unknown("unknown type", text, perf_type_names, KOLO_TYPE_COUNT);
        o->type = (kolo_type_t)i;
        return -1;
    case 'o':
        if ((i = find(perf_op_names, KOLO_OP_BUILTIN_COUNT, text)) < 0)
            return unknown("unknown operator", text, perf_op_names, KOLO_OP_BUILTIN_COUNT);
        o->op = (kolo_op_t)i;
        return -1;
    case 'g':
    case 't':
    case 'i':
    case 'm':
    case 'z':
        return take_theirs(c, text);
    case 'J':
        o->json = text;
        return -1;
    case 'P':
        o->plot = text;
        return -1;
    case 'T':
        o->table = text;
        return -1;
    case 'I':
    case 'B':
        o->in_place = c == 'I' ? 1 : 2;
        return -1;
    case 'E':
        o->every_algorithm = true;
        return -1;
    case 'N':
        o->check = false;
        return -1;
    case 'R':
        o->rotate = true;
        return -1;
    case 'G':
        o->gpu = true;
        return -1;
    case 'H':
        o->gpu = o->graph = true;
        return -1;
    case 'h':
        fputs(usage, stdout);
        return 0;
    case 'V':
        printf("kolo-perf %d.%d.%d\n", KOLO_VERSION_MAJOR, KOLO_VERSION_MINOR, KOLO_VERSION_PATCH);
        return 0;
    default:
        return take_number(o, c, text, max_given, factor_given);
    }
}

static const struct option longs[] = {{"min", required_argument, NULL, 'b'},
                                      {"minbytes", required_argument, NULL, 'b'},
                                      {"max", required_argument, NULL, 'e'},
                                      {"maxbytes", required_argument, NULL, 'e'},
                                      {"factor", required_argument, NULL, 'f'},
                                      {"stepfactor", required_argument, NULL, 'f'},
                                      {"iters", required_argument, NULL, 'n'},
                                      {"warmup", required_argument, NULL, 'w'},
                                      {"warmup_iters", required_argument, NULL, 'w'},
                                      {"check", required_argument, NULL, 'c'},
                                      {"no-check", no_argument, NULL, 'N'},
                                      {"type", required_argument, NULL, 'd'},
                                      {"datatype", required_argument, NULL, 'd'},
                                      {"op", required_argument, NULL, 'o'},
                                      {"root", required_argument, NULL, 'r'},
                                      {"in-place", no_argument, NULL, 'I'},
                                      {"both", no_argument, NULL, 'B'},
                                      {"rotate", no_argument, NULL, 'R'},
                                      {"gpu", no_argument, NULL, 'G'},
                                      {"graph", no_argument, NULL, 'H'},
                                      {"json", required_argument, NULL, 'J'},
                                      {"plot", required_argument, NULL, 'P'},
                                      {"every-algorithm", no_argument, NULL, 'E'},
                                      {"table", required_argument, NULL, 'T'},
                                      {"seconds", required_argument, NULL, 'S'},
                                      {"help", no_argument, NULL, 'h'},
                                      {"version", no_argument, NULL, 'V'},
                                      {NULL, 0, NULL, 0}};

static int take_collectives(perf_options_t *o, char **names, bool *run)
{
    *run = false;
    if (!*names) return perf_bad("no collective is named", NULL);
    for (; *names; names++) {
        int coll = find(perf_coll_names, PERF_COUNT, *names);
        bool all = strcmp(*names, "run") == 0;
        if (coll < 0 && !all) return unknown("unknown collective", *names, perf_coll_names, PERF_COUNT);
        for (int c = 0; c < PERF_COUNT; c++) o->colls[c] |= (all && c != PERF_PUT) || c == coll;
        *run |= all;
    }
    return -1;
}

int perf_options_parse(int argc, char **argv, perf_options_t *o)
{
    bool max_given = false, factor_given = false, run = false;
    int status = -1, c;
    opterr = 0;
    while (status < 0 && (c = getopt_long(argc, argv, ":b:e:f:n:w:c:d:o:r:g:t:i:m:z:h", longs, NULL)) != -1) {
        const char *word = argv[optind - 1];
        if (c == ':') return perf_bad("a value is missing after", word);
        if (c == '?') {
            status = perf_bad("unknown option", word);
            kolo_tool_suggest(longs, word);
            return status;
        }
        status = take(o, c, optarg, &max_given, &factor_given);
    }
    if (status < 0) status = take_collectives(o, argv + optind, &run);
    if (status >= 0) return status;
    if (!max_given)
        o->max_bytes = o->gpu && o->every_algorithm ? 64 << 20 : run || o->every_algorithm ? 16 << 20 : 64 << 20;
    if (!factor_given) o->factor = run && !o->every_algorithm ? 16 : 4;
    if (o->every_algorithm && (o->json || o->plot || o->in_place))
        return perf_bad("--every-algorithm cannot be used with --json, --plot, --in-place or --both", NULL);
    if ((o->table || o->seconds) && !o->every_algorithm)
        return perf_bad("--table and --seconds need --every-algorithm", NULL);
    if (!kolo_op_takes(o->op, o->type)) {
        char pair[64];
        snprintf(pair, sizeof pair, "%s by %s", perf_type_names[o->type], perf_op_names[o->op]);
        return perf_bad("this type cannot be reduced by this operator", pair);
    }
    if (o->factor < 2) return perf_bad("--factor must be 2 or more", NULL);
    if (o->min_bytes > o->max_bytes) return perf_bad("--min is above --max", NULL);
    if (o->max_bytes < kolo_type_size(o->type))
        return perf_bad("--max is less than one element has bytes", perf_type_names[o->type]);
    return -1;
}
