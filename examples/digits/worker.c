/* SPDX-License-Identifier: Apache-2.0
 *
 * A worker: trains with the others, step by step. This is what a training program of your own looks like: its
 * weights are registered with a kolo_state, train_all() is called with the ranks of now and commits after each
 * step, and kolorun --min starts the processes. When one is lost, or another comes, train_all() returns what failed
 * and is called again, from the last commit. What the monitor is to know is printed, a line each (see job.c).
 */
#include "digits.h"
#include "gpu.h"
#include "reduce.h"
#include "train.h"

#include <kolo/state.h>

#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef KOLO_SANITIZED
#define STEP_MS 60000
#else
#define STEP_MS 20000 /* a rank that is alive and does not take part for so long is stuck */
#endif

#define GATHER_OF                                                                                                  \
    8 /* the last 8th of the steps is for all: a run that is short, or quick, waits for who is missing */
#define GATHER_MS 5
#define GATHERS   4000 /* commits, for which all wait alike; then they go on without */

typedef struct {
    const options_t *options;
    digits_t digits;
    train_t train;
    kolo_state_info_t place;     /* rank and how many */
    kolo_tensor_engine_t engine; /* on the ranks of now */
    int was;                     /* how many there were before them; 0: this process was not there */
    uint64_t told;               /* the newest step that was told of */
    uint64_t since;              /* when what changes the ranks was noticed */
} worker_t;

__attribute__((format(printf, 1, 2))) static kolo_status_t fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("failed ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
    fflush(stdout);
    return KOLO_ERR_INTERNAL;
}

/* Has a rank been lost, or has the call of another rank failed because of that? Then kolo_state_run() goes on. */
static bool is_loss(kolo_status_t status)
{
    return status == KOLO_ERR_REMOTE || status == KOLO_ERR_ABORTED || status == KOLO_ERR_REVOKED;
}

/* ---- one step ---- */

typedef struct {
    reduce_t reduce;
    train_t *train;
    double scale;
} sums_t;

static void submit(void *arg, const net_tensor_t *tensor)
{
    sums_t *s = arg;
    reduce_submit(&s->reduce, tensor->name, s->train->gradient + tensor->first, tensor->count, KOLO_FLOAT64,
                  s->scale);
}

/* Each tensor of the gradient is on its way as soon as the backward pass has made it. */
static kolo_status_t compute_and_sum(worker_t *w)
{
    train_t *t = &w->train;
    sums_t s = {.train = t, .scale = 1.0 / train_samples(t)};
    reduce_begin(&s.reduce, w->engine);
    train_compute(t, w->place.rank, w->place.nranks, submit, &s);
    reduce_submit(&s.reduce, "loss", &t->loss, 1, KOLO_FLOAT64, s.scale);
    reduce_submit(&s.reduce, "used", t->used, (size_t)t->images->count, KOLO_UINT8, 1.0);
    kolo_status_t status = reduce_wait(&s.reduce);
    if (status == KOLO_OK || is_loss(status)) return status;
    return fail("step %" PRIu64 ": %s", t->state->step, s.reduce.error);
}

/* samples 0: this process took the commit over from others, which tell of it. */
static void tell_step(worker_t *w, int samples)
{
    const state_t *s = w->train.state;
    w->told = s->step;
    printf("step %" PRIu64 " %016" PRIx64 " %d %d %.9g\n", s->step, train_hash(s), samples, w->place.nranks,
           w->train.loss);
    fflush(stdout);
}

static kolo_status_t one_step(worker_t *w, kolo_state_t state)
{
    const char *why;
    const int samples = train_samples(&w->train);
    kolo_status_t status = compute_and_sum(w);
    if (status != KOLO_OK) return status;
    if (!train_update(&w->train, &why)) return fail("step %" PRIu64 ": %s", w->train.state->step, why);
    status = kolo_state_commit(state);
    if (status == KOLO_OK || status == KOLO_IN_PROGRESS) tell_step(w, samples);
    if (status == KOLO_OK || status == KOLO_IN_PROGRESS || is_loss(status)) return status;
    return fail("the commit of step %" PRIu64 ": %s", w->train.state->step, kolo_get_last_error(NULL));
}

/* A commit is where a newcomer comes in. */
static kolo_status_t gather(worker_t *w, kolo_state_t state)
{
    const uint64_t steps = train_steps(&w->train);
    kolo_status_t status = KOLO_OK;
    if (w->train.state->step != steps - steps / GATHER_OF) return KOLO_OK;
    for (int i = 0; i < GATHERS && status == KOLO_OK && w->place.nranks < w->options->workers; i++) {
        poll(NULL, 0, GATHER_MS);
        status = kolo_state_commit(state);
    }
    return status;
}

/* ---- the whole ---- */

/* With the ranks of now: who they are, and an engine, which writes a timeline of its own for each rank. */
static kolo_status_t begin(worker_t *w, kolo_state_t state)
{
    kolo_comm_t comm;
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    char path[4096];
    config.stall_limit_ms = STEP_MS;
    w->engine = NULL;
    kolo_status_t status = kolo_state_get_info(state, &w->place);
    if (status == KOLO_OK) status = kolo_state_comm(state, &comm);
    if (status == KOLO_OK) status = kolo_engine_init(&w->engine, comm, &config);
    if (status != KOLO_OK) return is_loss(status) ? status : fail("no engine: %s", kolo_get_last_error(NULL));
    if (w->was > 0 && w->train.state->step > w->told) tell_step(w, 0);
    printf("ranks %d %d %d %" PRIu64 " %" PRIu64 "\n", w->was, w->place.nranks, w->place.rank, w->train.state->step,
           w->since ? (now_ns() - w->since) / 1000 : 0);
    fflush(stdout);
    w->since = 0;
    w->was = w->place.nranks;
    w->told = w->train.state->step;
    if (!w->options->timeline) return KOLO_OK;
    snprintf(path, sizeof path, "%s/%06" PRIu64 "-of-%d.%%r.json", w->options->timeline, w->train.state->step,
             w->place.nranks);
    status = kolo_engine_timeline_start(w->engine, path, 0);
    return status == KOLO_OK || is_loss(status) ? status : fail("no timeline: %s", kolo_get_last_error(NULL));
}

/* The engine goes before the communicator does. */
static void end(worker_t *w, kolo_status_t status)
{
    if (status == KOLO_OK || status == KOLO_IN_PROGRESS)
        kolo_engine_shutdown(w->engine);
    else
        kolo_engine_abort(w->engine);
}

static kolo_status_t test(worker_t *w)
{
    const images_t *images = &w->digits.test;
    int rank = w->place.rank, n = w->place.nranks;
    int32_t right =
        net_right(w->train.state->weights, images, images->count * rank / n, images->count * (rank + 1) / n);
    reduce_t r;
    reduce_begin(&r, w->engine);
    reduce_submit(&r, "right", &right, 1, KOLO_INT32, 1.0);
    kolo_status_t status = reduce_wait(&r);
    if (status != KOLO_OK) return is_loss(status) ? status : fail("the test: %s", r.error);
    printf("done %d %d %016" PRIx64 "\n", right, images->count, train_hash(w->train.state));
    fflush(stdout);
    return KOLO_OK;
}

static kolo_status_t train_all(kolo_state_t state, void *arg)
{
    worker_t *w = arg;
    kolo_status_t status = begin(w, state);
    while (status == KOLO_OK && w->train.state->step < train_steps(&w->train)) {
        status = gather(w, state);
        if (status == KOLO_OK) status = one_step(w, state);
    }
    if (status == KOLO_OK) status = test(w);
    w->since = now_ns();
    end(w, status);
    return status;
}

static kolo_status_t run(worker_t *w)
{
    kolo_state_t state;
    kolo_status_t status = kolo_state_create(&state, NULL);
    if (status != KOLO_OK) return fail("no state: %s", kolo_get_last_error(NULL));
    status = kolo_state_register(state, "training", w->train.state, sizeof *w->train.state);
    if (status == KOLO_OK) status = kolo_state_run(state, train_all, w);
    const bool left = status == KOLO_IN_PROGRESS; /* the others go on, or were done before this one came in */
    if (status != KOLO_OK && !left) fail("%s", kolo_get_last_error(NULL));
    kolo_state_destroy(state);
    return left ? KOLO_OK : status;
}

int worker_main(const options_t *options)
{
    static worker_t w;
    char error[400];
    const char *number = getenv("KOLO_ELASTIC_WORKER"), *slot = getenv("KOLO_LOCAL_RANK");
    const int worker = number ? atoi(number) : 0; /* kolorun's number of this process, which it keeps */
    for (int i = 0; i < options->settings; i++)
        if (options->setting[i].worker == worker) putenv(options->setting[i].value);
    printf("hello %d\n", (int)getpid());
    fflush(stdout);
    w.options = options;
    kolo_status_t status = KOLO_OK;
    if (!digits_load(&w.digits, options->data, error, sizeof error)) status = fail("%s", error);
    if (status == KOLO_OK && !train_open(&w.train, &w.digits.train, options->epochs, options->seed))
        status = fail("out of memory");
    if (status == KOLO_OK && options->gpu && !gpu_open(slot ? atoi(slot) : 0))
        status = fail("no GPU: %s", gpu_error());
    if (status == KOLO_OK) status = run(&w);
    if (w.train.state) train_close(&w.train);
    digits_free(&w.digits);
    return status == KOLO_OK ? 0 : 1;
}
