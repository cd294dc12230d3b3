/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-perf rendezvous: the command line and the table.
 */
#include "rendezvous.h"

#include "base/status.h"

#include <getopt.h>
#include <kolo/job.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: kolo-perf rendezvous [options]\n"
    "Times keyed tensors between two processes of this host: one sends, one receives by key, both in steps.\n"
    "  -b, --min SIZE        first size in bytes (4K). Sizes take K, M, G\n"
    "  -e, --max SIZE        last size (64M)\n"
    "  -f, --factor N        each size is N times the one before (16)\n"
    "  -n, --values N        values of a row (by default from the size)\n"
    "  --depth N             receives that are under way at a time (by default from the size)\n"
    "  --into                values are received into memory of the receiver's own, which is used again and again\n"
    "  --protocol NAME       kolo, kolo+shm, kolo+tcp, kolo+buffered, ... (kolo)\n"
    "  --help\n"
    "time is that of all values over their number. copies, writes (work requests), notices (completions), "
    "messages\n"
    "and trips (round trips) are counted in both processes, per value; so are, with RDMA, requests and "
    "completions\n"
    "of the network card, and its registrations of memory.\n"
    "Exit status: 0, 1 a failed call, 2 wrong arguments.\n";

typedef struct {
    uint64_t min, max, factor, values;
    int depth;
    bool own;
    const char *protocol;
} options_t;

static int bad(const char *what, const char *text)
{
    fprintf(stderr, "kolo-perf rendezvous: %s%s%s; try 'kolo-perf rendezvous --help'\n", what, text ? ": " : "",
            text ? text : "");
    return 2;
}

static const char *need_of(int c)
{
    return c == 'b'   ? "--min (-b) needs a number from 1 on, not"
           : c == 'e' ? "--max (-e) needs a number from 1 on, not"
           : c == 'f' ? "--factor (-f) needs a number from 1 on, not"
           : c == 'n' ? "--values (-n) needs a number from 1 on, not"
                      : "--depth needs a number from 1 on, not";
}

static int parse(int argc, char **argv, options_t *o)
{
    enum { DEPTH = 256, PROTOCOL, INTO, HELP };
    static const struct option rows[] = {
        {"min", 1, NULL, 'b'},    {"max", 1, NULL, 'e'},     {"factor", 1, NULL, 'f'},
        {"values", 1, NULL, 'n'}, {"depth", 1, NULL, DEPTH}, {"protocol", 1, NULL, PROTOCOL},
        {"into", 0, NULL, INTO},  {"help", 0, NULL, HELP},   {NULL, 0, NULL, 0}};
    uint64_t number = 0;
    for (int c; (c = getopt_long(argc, argv, "b:e:f:n:", rows, NULL)) != -1;) {
        bool sized = c != PROTOCOL && c != INTO && c != HELP && c != '?';
        if (c == '?') { /* getopt has said what is wrong */
            fprintf(stderr, "try 'kolo-perf rendezvous --help'\n");
            return 2;
        }
        if (sized && (!perf_parse_size(optarg, &number) || number == 0)) return bad(need_of(c), optarg);
        if (c == HELP) return fputs(usage, stdout) < 0;
        if (c == 'b') o->min = number;
        if (c == 'e') o->max = number;
        if (c == 'f') o->factor = number;
        if (c == 'n') o->values = number;
        if (c == DEPTH) o->depth = number < 16384 ? (int)number : 0;
        if (c == DEPTH && o->depth == 0) return bad("--depth is at most 16383", optarg);
        if (c == PROTOCOL) o->protocol = optarg;
        if (c == INTO) o->own = true;
    }
    if (optind < argc) return bad("unexpected argument", argv[optind]);
    if (o->factor < 2 || o->min > o->max) return bad("--factor is at least 2, and --min at most --max", NULL);
    kolo_job_place_t job;
    if (kolo_job_get_place(&job) == KOLO_OK && job.nranks > 1)
        return bad("this starts both processes itself: run it without kolorun", NULL);
    return -1;
}

static void print_row(const perf_rdv_row_t *row, const char *protocol)
{
    const double *c = row->counts;
    printf("%11llu %6d %9llu %10.2f %10.0f %9.3f\n", (unsigned long long)row->bytes, row->depth,
           (unsigned long long)row->values, row->us, 1e6 / row->us, (double)row->bytes / row->us * 1e-3);
    printf("count rendezvous protocol=%s bytes=%llu copies=%.2f writes=%.2f notices=%.2f messages=%.2f trips=%.2f",
           protocol, (unsigned long long)row->bytes, c[PERF_RDV_COPIES], c[PERF_RDV_WRITES], c[PERF_RDV_NOTICES],
           c[PERF_RDV_MESSAGES], c[PERF_RDV_REQUESTS] + c[PERF_RDV_REREQUESTS]);
    if (c[PERF_RDV_WORK] > 0)
        printf(" requests=%.2f completions=%.2f registrations=%.2f", c[PERF_RDV_WORK], c[PERF_RDV_COMPLETIONS],
               c[PERF_RDV_REGISTRATIONS]);
    printf("\n");
    fflush(stdout);
}

static kolo_status_t run(perf_rdv_t *r, const options_t *o)
{
    printf("# keyed tensors between two processes, protocol %s\n", o->protocol);
    printf("%11s %6s %9s %10s %10s %9s\n", "bytes", "depth", "values", "us/value", "values/s", "GB/s");
    for (uint64_t bytes = o->min; bytes <= o->max; bytes *= o->factor) {
        perf_rdv_row_t row;
        uint64_t values = o->values, least = 24, most = 200000, fit = ((uint64_t)2 << 30) / bytes;
        if (values == 0) values = fit < least ? least : fit > most ? most : fit;
        int depth = o->depth;
        if (depth == 0) depth = bytes <= 65536 ? 256 : bytes <= 4u << 20 ? 16 : 3;
        KOLO_TRY(
            perf_rdv_measure(r, bytes, values < 512 ? values : 512, depth, &row)); /* a first use of each key */
        KOLO_TRY(perf_rdv_measure(r, bytes, values, depth, &row));
        print_row(&row, o->protocol);
    }
    return KOLO_OK;
}

int perf_rendezvous(int argc, char **argv)
{
    options_t o = {.min = 4096, .max = 64u << 20, .factor = 16, .protocol = "kolo"};
    perf_rdv_t r;
    int status = parse(argc, argv, &o);
    if (status >= 0) return status;
    kolo_status_t result = perf_rdv_open(&r, o.protocol);
    r.own = o.own;
    if (result == KOLO_OK) result = run(&r, &o);
    if (result != KOLO_OK) fprintf(stderr, "kolo-perf: rendezvous: %s\n", kolo_get_last_error(NULL));
    return perf_rdv_close(&r, result == KOLO_OK);
}
