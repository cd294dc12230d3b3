/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-perf: the loop over collectives and sizes. Run it by kolorun:
 *     kolorun -n 4 kolo-perf all_reduce -b 8 -e 64M -d float -o sum --json FILE --plot FILE
 * Exit status: 0, 1 on a wrong value or a failed call, 2 on bad options.
 */
#include "gpu.h"
#include "inside_table.h"
#include "output.h"
#include "rendezvous.h"

#include <errno.h>
#include <kolo/job.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    perf_row_t rows[PERF_MAX_ROWS];
    size_t count;
    bool failed;
} results_t;

/* Why a call of Kolo's or of the GPU's driver failed. A failing driver is the cause of what fails after it. */
static const char *reason(void)
{
    return perf_gpu_error()[0] ? perf_gpu_error() : kolo_get_last_error(NULL);
}

static void run_row(const perf_job_t *job, const perf_model_t *model, perf_coll_t coll, uint64_t bytes,
                    bool in_place, results_t *results)
{
    perf_row_t row;
    kolo_status_t status = perf_measure(job, coll, bytes, in_place, &row);
    if (status != KOLO_OK) {
        fprintf(stderr, "kolo-perf: rank %d: %s of %llu bytes: %s%s%s\n", job->rank, perf_coll_names[coll],
                (unsigned long long)bytes, kolo_status_string(status), reason()[0] ? ": " : "", reason());
        results->failed = true;
        return;
    }
    if (job->rank == 0) {
        if (model) perf_model_row(model, &row);
        if (job->options->gpu) perf_gpu_predict(job, &row);
        perf_print_row(job, &row);
    }
    if (row.wrong > 0) results->failed = true;
    if (results->count < PERF_MAX_ROWS) results->rows[results->count++] = row;
}

static void run_coll(const perf_job_t *job, const perf_model_t *model, perf_coll_t coll, results_t *results)
{
    const perf_options_t *o = job->options;
    uint64_t elem = kolo_type_size(o->type), least = o->min_bytes < elem ? elem : o->min_bytes;
    if (job->rank == 0) perf_print_head(job, coll);
    if (coll == PERF_SENDRECV && job->nranks == 1) return; /* the head says what to do */
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

static int run_rows(const perf_job_t *job)
{
    static results_t results;
    perf_model_t *model = NULL;
    char shared[320];
    if (job->rank == 0 && !job->options->gpu && perf_inside_shared(job, shared, sizeof shared))
        printf("# %s: these are not the times of ranks that have a core each\n", shared);
    if (!job->options->gpu && perf_model_open(job, &model) != KOLO_OK) {
        fprintf(stderr, "kolo-perf: rank %d: %s\n", job->rank, kolo_get_last_error(NULL));
        results.failed = true;
    }
    for (int c = 0; c < PERF_COUNT && !results.failed; c++)
        if (job->options->colls[c]) run_coll(job, model, (perf_coll_t)c, &results);
    perf_model_close(model);
    if (job->rank == 0) perf_print_end(job, results.rows, results.count);
    int status = write_files(job, &results);
    return results.failed ? 1 : status;
}

/* A communicator of GPUs beside that of the job. */
static bool take_gpu(perf_job_t *job, int local_rank)
{
    kolo_config_t config = KOLO_CONFIG_INITIALIZER;
    bool good = perf_gpu_open(local_rank < 0 ? 0 : local_rank, job->options->graph, &config.device);
    if (good && kolo_comm_split(job->host, 0, 0, &job->comm, &config) == KOLO_OK) return true;
    fprintf(stderr, "kolo-perf: rank %d: no communicator of GPUs: %s\n", job->rank, reason());
    kolo_comm_abort(job->host);
    return false;
}

int main(int argc, char **argv)
{
    static perf_options_t options = {
        .min_bytes = 8, .type = KOLO_FLOAT32, .op = KOLO_SUM, .warmup = 10, .check = true};
    kolo_job_place_t place;
    perf_job_t job = {.options = &options};
    kolo_tool_output("kolo-perf");
    if (argc > 1 && strcmp(argv[1], "rendezvous") == 0) {
        static char name[] = "kolo-perf rendezvous"; /* getopt_long() puts it in front of its messages */
        argv[1] = name;
        return perf_rendezvous(argc - 1, argv + 1);
    }
    int status = perf_options_parse(argc, argv, &options);
    if (status >= 0) return status;
    bool placed = kolo_job_get_place(&place) == KOLO_OK;
    if (placed && place.rank == 0 && !(perf_can_write(options.json) && perf_can_write(options.plot))) return 1;
    if (!placed || kolo_job_connect(&job.comm, NULL) != KOLO_OK) {
        fprintf(stderr, "kolo-perf: cannot join the job: %s\n", kolo_get_last_error(NULL));
        return 1;
    }
    job.rank = place.rank;
    job.nranks = place.nranks;
    job.host = job.comm;
    if (options.root >= job.nranks) {
        char ranks[80];
        snprintf(ranks, sizeof ranks, "--root %d, the ranks are 0 to %d", options.root, job.nranks - 1);
        return perf_bad(ranks, NULL);
    }
    if (options.gpu && !take_gpu(&job, place.local_rank)) return 1;
    if (options.every_algorithm)
        status = options.gpu ? perf_gpu_limits(&job) : perf_every_algorithm(&job);
    else
        status = run_rows(&job);
    bool beside = job.comm != job.host;
    if (status) {
        if (beside) kolo_comm_abort(job.host);
        kolo_comm_abort(job.comm);
        return status;
    }
    if (beside && (kolo_comm_finalize(job.comm) != KOLO_OK || kolo_comm_destroy(job.comm) != KOLO_OK)) {
        fprintf(stderr, "kolo-perf: %s\n", kolo_get_last_error(NULL));
        status = 1;
    }
    job.comm = job.host;
    if (kolo_comm_finalize(job.comm) != KOLO_OK || kolo_comm_destroy(job.comm) != KOLO_OK) {
        fprintf(stderr, "kolo-perf: %s\n", kolo_get_last_error(NULL));
        status = 1;
    }
    return status;
}
