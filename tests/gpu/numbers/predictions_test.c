/* SPDX-License-Identifier: Apache-2.0
 *
 * What kolo-info and kolo-perf predict of GPUs, from the built-in constants, against what was measured: 95 of 100
 * rows of bench/results are within a quarter.
 * usage: gpu_predictions_test RESULTS (bench/results): the files in `files`, out of place and of 4-byte elements.
 */
#include "../../../tools/tuning/gpu_model.h"
#include "base/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 64 /* of a file, at least */

static const struct {
    const char *name;
    uint32_t gpus; /* where a command does not say */
} files[] = {{"gpu-2.txt", 2}, {"gpu-4.txt", 4}};

static const struct {
    const char *name;
    kolo_coll_t coll;
} ops[] = {{"all_reduce", KOLO_COLL_ALL_REDUCE},
           {"all_gather", KOLO_COLL_ALL_GATHER},
           {"reduce_scatter", KOLO_COLL_REDUCE_SCATTER},
           {"all_to_all", KOLO_COLL_ALL_TO_ALL},
           {"broadcast", KOLO_COLL_BROADCAST},
           {"reduce", KOLO_COLL_REDUCE},
           {"gather", KOLO_COLL_GATHER},
           {"scatter", KOLO_COLL_SCATTER},
           {"sendrecv", KOLO_COLL_P2P}};

static const char *folder;

typedef struct {
    bool counts, graph; /* counts: of what the model is for */
    uint32_t gpus;
    unsigned rows, close;
} file_t;

static void command(file_t *f, const char *line, uint32_t gpus)
{
    static const char *const others[] = {"--odd",  "--windows", "--type",      "--piece",
                                         "--init", "--product", "--processes", "8G --rounds"};
    const char *n = strstr(line, "--gpus ");
    f->counts = true;
    for (size_t i = 0; i < KOLO_COUNTOF(others); i++) f->counts = f->counts && !strstr(line, others[i]);
    f->graph = strstr(line, "--graph") != NULL;
    f->gpus = n ? (uint32_t)strtoul(n + 7, NULL, 10) : gpus;
}

/* op bytes [|] NCCL's us, Kolo's us */
static void row(file_t *f, const char *line)
{
    char op[32];
    unsigned long long bytes;
    double nccl, us;
    gpu_prediction_t p;
    if (sscanf(line, "%31s %llu | %lf %lf", op, &bytes, &nccl, &us) != 4 &&
        sscanf(line, "%31s %llu %lf %lf", op, &bytes, &nccl, &us) != 4)
        return;
    for (size_t i = 0; i < KOLO_COUNTOF(ops); i++) {
        if (strcmp(op, ops[i].name) != 0) continue;
        const gpu_machine_t machine = gpu_machine_built_in(f->gpus);
        uint64_t parts = kolo_coll_by_rank(ops[i].coll) ? f->gpus : 1, count = bytes / 4 / parts;
        gpu_call_t call = {.coll = ops[i].coll,
                           .nranks = f->gpus,
                           .count = count ? count : 1,
                           .type = KOLO_FLOAT32,
                           .graph = f->graph};
        assert_int_equal(gpu_predict(&machine, &call, &p), KOLO_OK);
        f->rows++;
        if (us <= 1.25 * p.us && us >= 0.8 * p.us)
            f->close++;
        else
            print_message("%s of %llu bytes on %u GPUs%s: measured %.2f us, predicted %.2f (%s)\n", op, bytes,
                          f->gpus, f->graph ? ", in a graph" : "", us, p.us, p.way);
    }
}

static void predictions_are_within_a_quarter_at_95_of_100_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < KOLO_COUNTOF(files); i++) {
        char path[512], line[512];
        file_t f = {0};
        snprintf(path, sizeof path, "%s/%s", folder, files[i].name);
        FILE *in = fopen(path, "r");
        assert_non_null(in);
        while (fgets(line, sizeof line, in)) {
            if (strncmp(line, "# peers-gpu", 11) == 0)
                command(&f, line, files[i].gpus);
            else if (f.counts)
                row(&f, line);
        }
        fclose(in);
        print_message("%s: %u of %u rows\n", files[i].name, f.close, f.rows);
        assert_true(f.rows >= ROWS);
        assert_true(100 * f.close >= 95 * f.rows);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(predictions_are_within_a_quarter_at_95_of_100_rows)};
    if (argc != 2) return 2;
    folder = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
