/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-perf: options and the loop over collectives and sizes. Run it by kolorun:
 *     kolorun -n 4 kolo-perf all_reduce --min 8 --max 64M --type float32 --op sum --json FILE --plot FILE
 * Exit status: 0, 1 on a wrong value or a failed call, 2 on bad options.
 */
#include "job.h"
#include "perf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: kolo-perf COLLECTIVE... | run   [options]\n"
    "  collectives: all_reduce reduce broadcast all_gather reduce_scatter all_to_all gather scatter sendrecv "
    "barrier;\n"
    "  run: all of them over a few sizes, values checked\n"
    "  --min SIZE --max SIZE --factor N   bytes from, to, times (8, 64M, 4); for all_gather, reduce_scatter,\n"
    "                                     all_to_all, gather and scatter the size of the whole vector\n"
    "  --type T --op O --root R           float32, sum, 0\n"
    "  --in-place | --both                instead of out of place\n"
    "  --iters N --warmup N               calls per row (from the size), before it (10)\n"
    "  --no-check --rotate                do not check values; alternate between two pairs of buffers\n"
    "  --json FILE --plot FILE            write the rows, an SVG plot (rank 0)\n"
    "  --every-algorithm                  at each point every algorithm that can run, in turn with the tuner's "
    "choice\n"
    "                                     (up to 16M unless --max); last line: tuner within 10 % at N of M points\n"
    "  --help\n"
    "Columns: model us is the simulator's time for the plan that ran, on a machine of which only memcpy, a barrier "
    "and\n"
    "a broadcast were measured at the start. of copy (from 1M on) is the copy bound over the median time. The "
    "bound:\n"
    "each byte of the sources in a host read once and each byte of the destinations written once, at the rate at "
    "which\n"
    "all ranks of the host at once memcpy (which does both) between buffers of as many bytes, at most 16M each.\n";

static int bad(const char *what, const char *text)
{
    fprintf(stderr, "kolo-perf: %s: %s\n%s", what, text ? text : "(nothing)", usage);
    return 2;
}

static bool parse_size(const char *text, uint64_t *value)
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

static int find(const char *const *names, int n, const char *text)
{
    for (int i = 0; text && i < n; i++)
        if (strcmp(names[i], text) == 0) return i;
    return -1;
}

/* Options with a value; returns 0, 2 on a bad one, -1 when it is none of these. */
static int value_option(perf_options_t *o, const char *key, const char *text)
{
    uint64_t number = 0;
    int i;
    if (strcmp(key, "--type") == 0) {
        if ((i = find(perf_type_names, KOLO_TYPE_COUNT, text)) < 0) return bad("unknown type", text);
        o->type = (kolo_type_t)i;
    } else if (strcmp(key, "--op") == 0) {
        if ((i = find(perf_op_names, KOLO_OP_BUILTIN_COUNT, text)) < 0) return bad("unknown operator", text);
        o->op = (kolo_op_t)i;
    } else if (strcmp(key, "--json") == 0) {
        if (!(o->json = text)) return bad("--json needs", "a file");
    } else if (strcmp(key, "--plot") == 0) {
        if (!(o->plot = text)) return bad("--plot needs", "a file");
    } else if (!parse_size(text, &number)) {
        return strncmp(key, "--", 2) == 0 &&
                       find((const char *const[]){"--min", "--max", "--factor", "--iters", "--warmup", "--root"}, 6,
                            key) >= 0
                   ? bad(key, text)
                   : -1;
    } else if (strcmp(key, "--min") == 0) {
        o->min_bytes = number;
    } else if (strcmp(key, "--max") == 0) {
        o->max_bytes = number;
    } else if (strcmp(key, "--factor") == 0) {
        o->factor = number;
    } else if (strcmp(key, "--iters") == 0) {
        o->iters = (int)number;
    } else if (strcmp(key, "--warmup") == 0) {
        o->warmup = (int)number;
    } else if (strcmp(key, "--root") == 0) {
        o->root = (int)number;
    } else {
        return -1;
    }
    return 0;
}

static int parse(int argc, char **argv, perf_options_t *o)
{
    bool any = false, run = false, max_given = false, factor_given = false;
    for (int i = 1; i < argc; i++) {
        int coll = find(perf_coll_names, PERF_COUNT, argv[i]);
        if (coll >= 0) {
            o->colls[coll] = any = true;
        } else if (strcmp(argv[i], "run") == 0) {
            for (int c = 0; c < PERF_COUNT; c++) o->colls[c] = true;
            any = run = true;
        } else if (strcmp(argv[i], "--in-place") == 0) {
            o->in_place = 1;
        } else if (strcmp(argv[i], "--both") == 0) {
            o->in_place = 2;
        } else if (strcmp(argv[i], "--every-algorithm") == 0) {
            o->every_algorithm = true;
        } else if (strcmp(argv[i], "--no-check") == 0) {
            o->check = false;
        } else if (strcmp(argv[i], "--rotate") == 0) {
            o->rotate = true;
        } else {
            int status = value_option(o, argv[i], i + 1 < argc ? argv[i + 1] : NULL);
            if (status) return status < 0 ? bad("unknown option", argv[i]) : status;
            max_given |= strcmp(argv[i], "--max") == 0;
            factor_given |= strcmp(argv[i], "--factor") == 0;
            i++;
        }
    }
    if (!any) return bad("no collective named", NULL);
    if (!max_given) o->max_bytes = run || o->every_algorithm ? 16 << 20 : 64 << 20;
    if (!factor_given) o->factor = run && !o->every_algorithm ? 16 : 4;
    if (o->every_algorithm && (o->json || o->plot || o->in_place))
        return bad("--every-algorithm has no --json, --plot, --in-place or --both", NULL);
    if (o->factor < 2) return bad("--factor must be 2 or more", NULL);
    if (o->min_bytes > o->max_bytes) return bad("--min is above --max", NULL);
    return 0;
}

typedef struct {
    perf_row_t rows[PERF_MAX_ROWS];
    size_t count;
    bool failed;
} results_t;

static void run_row(const perf_job_t *job, const perf_model_t *model, perf_coll_t coll, uint64_t bytes,
                    bool in_place, results_t *results)
{
    perf_row_t row;
    kolo_status_t status = perf_measure(job, coll, bytes, in_place, &row);
    if (status != KOLO_OK) {
        fprintf(stderr, "kolo-perf: rank %d: %s of %llu bytes: %s: %s\n", job->rank, perf_coll_names[coll],
                (unsigned long long)bytes, kolo_status_string(status), kolo_get_last_error(NULL));
        results->failed = true;
        return;
    }
    if (job->rank == 0) {
        perf_model_row(model, &row);
        perf_print_row(&row);
    }
    if (row.wrong > 0) results->failed = true;
    if (results->count < PERF_MAX_ROWS) results->rows[results->count++] = row;
}

static void run_coll(const perf_job_t *job, const perf_model_t *model, perf_coll_t coll, results_t *results)
{
    const perf_options_t *o = job->options;
    uint64_t elem = kolo_type_size(o->type), least = o->min_bytes < elem ? elem : o->min_bytes;
    if (job->rank == 0) perf_print_head(job, coll);
    if (coll == PERF_SENDRECV && job->nranks == 1) return;
    if (coll == PERF_BARRIER) {
        run_row(job, model, coll, 0, false, results);
        return;
    }
    for (uint64_t bytes = least; bytes <= o->max_bytes && !results->failed; bytes *= o->factor) {
        if (o->in_place != 1 || !perf_has_in_place(coll)) run_row(job, model, coll, bytes, false, results);
        if (o->in_place && perf_has_in_place(coll)) run_row(job, model, coll, bytes, true, results);
    }
}

static int write_files(const perf_job_t *job, const results_t *results)
{
    const perf_options_t *o = job->options;
    int status = 0;
    if (job->rank != 0) return 0;
    if (o->json && perf_write_json(job, results->rows, results->count, o->json)) {
        fprintf(stderr, "kolo-perf: cannot write %s: %s\n", o->json, strerror(errno));
        status = 1;
    }
    if (o->plot && perf_write_plot(job, results->rows, results->count, o->plot)) {
        fprintf(stderr, "kolo-perf: cannot write %s: %s\n", o->plot, strerror(errno));
        status = 1;
    }
    return status;
}

static bool has_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    return false;
}

static int run_rows(const perf_job_t *job)
{
    static results_t results;
    perf_model_t *model = NULL;
    char shared[320];
    if (job->rank == 0 && perf_inside_shared(job, shared, sizeof shared))
        printf("# %s: these are not the times of ranks that have a core each\n", shared);
    if (perf_model_open(job, &model) != KOLO_OK) {
        fprintf(stderr, "kolo-perf: rank %d: %s\n", job->rank, kolo_get_last_error(NULL));
        results.failed = true;
    }
    for (int c = 0; c < PERF_COUNT && !results.failed; c++)
        if (job->options->colls[c]) run_coll(job, model, (perf_coll_t)c, &results);
    perf_model_close(model);
    int status = write_files(job, &results);
    return results.failed ? 1 : status;
}

int main(int argc, char **argv)
{
    static perf_options_t options = {
        .min_bytes = 8, .type = KOLO_FLOAT32, .op = KOLO_SUM, .warmup = 10, .check = true};
    kolo_job_t place;
    perf_job_t job = {.options = &options};
    if (has_help(argc, argv)) {
        fputs(usage, stdout);
        return 0;
    }
    int status = parse(argc, argv, &options);
    if (status) return status;
    if (kolo_job_from_env(&place) != KOLO_OK || kolo_job_comm_init(&place, &job.comm, NULL) != KOLO_OK) {
        fprintf(stderr, "kolo-perf: cannot join the job: %s %s\n", place.error, kolo_get_last_error(NULL));
        return 1;
    }
    job.rank = place.rank;
    job.nranks = place.nranks;
    if (options.root >= job.nranks) return bad("--root is beyond the last rank", NULL);
    status = options.every_algorithm ? perf_every_algorithm(&job) : run_rows(&job);
    if (status) {
        kolo_comm_abort(job.comm);
        return status;
    }
    if (kolo_comm_finalize(job.comm) != KOLO_OK || kolo_comm_destroy(job.comm) != KOLO_OK) {
        fprintf(stderr, "kolo-perf: %s\n", kolo_get_last_error(NULL));
        status = 1;
    }
    return status;
}
