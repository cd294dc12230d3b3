/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-top: the jobs of this host as they run, who is stuck and for whom, from the flight records of their
 * processes. It only reads memory that they offer and never touches them.
 */
#include "kolo-top.h"

#include "base/clock.h"
#include "base/params.h"

#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REFRESH_MS 1000
#define ONCE_MS    200 /* between two looks, for rates */
#define STUCK_NS   KOLO_NS_PER_S

static const char usage[] =
    "usage: kolo-top [--job ID] [--pid PID]... [--once]\n"
    "                              the jobs of this host, each second: rates, last operation, who is stuck\n"
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
    for (int c; (c = getopt_long(argc, argv, "h", longs, NULL)) != -1;) {
        if (c == 'h') {
            fputs(usage, stdout);
            return TOP_OK;
        }
        if (c == 'V') {
            printf("kolo-top %d.%d.%d\n", KOLO_VERSION_MAJOR, KOLO_VERSION_MINOR, KOLO_VERSION_PATCH);
            return TOP_OK;
        }
        if (!take_option(o, c)) return wrong_usage(NULL);
    }
    bool table = o->dump || o->join;
    if (o->dump + o->join + o->once > 1) return wrong_usage("--once, --dump and --join exclude each other");
    if (o->json && !table) return wrong_usage("--json goes with --dump and --join");
    if (o->save && !o->dump) return wrong_usage("--save goes with --dump");
    if (o->join != (optind < argc)) return wrong_usage("files go with --join, and --join needs some");
    if (o->join && o->npids) return wrong_usage("--pid does not go with --join");
    return -1;
}

/* ---- the screen ---- */

static void print_rate(double n)
{
    static const char units[] = " KMGTP";
    size_t u = 0;
    for (; n >= 1000 && u + 1 < sizeof units - 1; u++) n /= 1000;
    printf(u ? " %6.1f%c" : " %6.0f%c", n, units[u]);
}

/* What this rank did since it was looked at before. */
static void count_since(const top_rank_t *r, const top_set_t *before, double *ops, double *bytes)
{
    uint64_t from = 0;
    bool known = false;
    for (size_t i = 0; before && i < before->count; i++) {
        const top_rank_t *b = &before->ranks[i];
        if (b->inode != r->inode || b->slot != r->slot || b->view.job != r->view.job) continue;
        known = true;
        from = b->nops ? b->ops[b->nops - 1].index + 1 : 0;
    }
    *ops = *bytes = 0;
    if (!known || r->nops == 0) return;
    uint64_t seen = 0;
    for (size_t i = 0; i < r->nops; i++) {
        if (r->ops[i].index < from) continue;
        seen++;
        *bytes += (double)r->ops[i].count * r->ops[i].elem;
    }
    uint64_t newest = r->ops[r->nops - 1].index + 1;
    *ops = newest > from ? (double)(newest - from) : 0;
    if (seen) *bytes *= *ops / (double)seen; /* more than the record holds: they were all alike */
}

static uint64_t longest_wait(const kolo_verdict_rank_t *ranks, int n)
{
    uint64_t most = 0;
    for (int i = 0; i < n; i++)
        for (uint32_t k = 0; k < ranks[i].nops; k++) {
            const kolo_verdict_op_t *op = &ranks[i].ops[k];
            if (op->state != KOLO_RECORD_DONE && op->state != KOLO_RECORD_FAILED && op->age_ns != KOLO_AGE_UNKNOWN)
                most = KOLO_MAX(most, op->age_ns);
        }
    return most;
}

static void show_job(const top_set_t *set, size_t first, size_t count, const top_set_t *before, double seconds)
{
    const kolo_record_view_t *view = &set->ranks[first].view;
    double ops = 0, bytes = 0;
    char words[200] = "-", text[1024], duration[32];
    kolo_verdict_rank_t *ranks;
    for (size_t i = first; i < first + count; i++) {
        double o, b;
        count_since(&set->ranks[i], before, &o, &b);
        ops = KOLO_MAX(ops, o);
        bytes = KOLO_MAX(bytes, b);
    }
    int n = top_verdict_ranks(set, first, count, &ranks);
    for (int i = 0; i < n; i++) {
        if (!ranks[i].nops) continue;
        const kolo_verdict_op_t *op = &ranks[i].ops[ranks[i].nops - 1];
        kolo_verdict_words(op, text, 160);
        if (op->kind == KOLO_RECORD_COLL)
            snprintf(words, sizeof words, "%" PRIu64 " %.160s", op->number, text);
        else
            snprintf(words, sizeof words, "%.160s", text);
        break;
    }
    printf("%016" PRIx64 "  %-12.12s %5d %5zu", view->job, view->name, view->nranks, count);
    print_rate(ops / seconds);
    print_rate(bytes / seconds);
    printf("  %s\n", words);
    uint64_t wait = longest_wait(ranks, n);
    if (kolo_verdict_brief(ranks, n, view->nranks, text, sizeof text) && wait >= STUCK_NS) {
        kolo_verdict_duration(wait, duration, sizeof duration);
        printf("    stuck for %s: %s\n", duration, text);
    }
    for (size_t i = first; i < first + count; i++)
        if (set->ranks[i].view.status != KOLO_OK)
            printf("    rank %d failed: %.200s\n", set->ranks[i].view.rank, set->ranks[i].view.error);
    free(ranks);
}

void top_show(const top_set_t *set, const top_set_t *before, double seconds)
{
    printf("%-16s  %-12s %5s %5s %7s %7s  %s\n", "JOB", "NAME", "RANKS", "HERE", "OPS/S", "BYTES/S",
           "LAST OPERATION");
    for (size_t first = 0, count; first < set->count; first += count) {
        count = top_job_size(set, first);
        show_job(set, first, count, before, seconds);
    }
}

static int watch(const top_options_t *o)
{
    top_set_t before, now;
    if (!top_scan(o, &before)) return TOP_FAILED;
    uint64_t then_ns = kolo_now_ns();
    int keys = 0;
    bool screen = isatty(STDOUT_FILENO) && !o->once;
    for (;;) {
        poll(NULL, 0, o->once ? ONCE_MS : REFRESH_MS);
        if (!top_scan(o, &now)) break;
        uint64_t now_ns = kolo_now_ns();
        if (screen) printf("\033[H\033[2J");
        top_show(&now, &before, (double)(now_ns - then_ns) / (double)KOLO_NS_PER_S);
        keys = top_show_keys(o);
        if (now.count == 0 && keys == 0) printf("no job of Kolo runs here that may be looked into\n");
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

static int dump(const top_options_t *o, char **files, int nfiles)
{
    top_set_t set;
    int status = TOP_FAILED;
    bool good = o->join ? top_read_files(o, files, nfiles, &set) : top_scan(o, &set);
    bool keys = good && !o->join && !o->json && !o->save && top_show_keys(o) > 0;
    if (keys && set.count == 0)
        status = TOP_OK;
    else if (good && set.count == 0 && !o->json)
        fprintf(stderr, "kolo-top: %s\n",
                o->join ? "there is no such record in these files"
                        : "no job of Kolo runs here that may be looked into");
    else if (good)
        status = o->save ? (top_save(o->save, &set) ? TOP_OK : TOP_FAILED) : top_dump(o, &set);
    top_free(&set);
    return status;
}

int main(int argc, char **argv)
{
    top_options_t options = {.last = 8};
    int status = parse_options(argc, argv, &options);
    if (status >= 0) return status;
    status = options.dump || options.join ? dump(&options, argv + optind, argc - optind) : watch(&options);
    if (fflush(stdout) != 0) {
        perror("kolo-top: standard output");
        return TOP_FAILED;
    }
    return status;
}
