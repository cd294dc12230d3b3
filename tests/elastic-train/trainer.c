/* SPDX-License-Identifier: Apache-2.0
 *
 * A small training program for elastic jobs, with sums that are known beforehand: each sample of each step is added
 * once in each half of the step, so that a step that is lost, done twice or done by halves is seen. Rank 0 writes a
 * line of JSON for each epoch.
 *
 *     trainer --log FILE [--epochs N] [--steps N] [--sizes N,N,...] [--die E.S:W,W/E.S:W] [--how exit|kill]
 *             [--slow MS] [--work ENGINE] [--other W]
 *
 * sizes: an epoch begins when there are so many ranks (0: any number). die: in epoch E, step S, in the middle of
 * it, the processes with these numbers of the launcher end. slow: pause of each step, in which commands may come.
 * other: the process with this number is of another build and has a buffer more.
 */
#include "state/samples.h"

#include <fcntl.h>
#include <kolo/engine.h>
#include <kolo/state.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FILLER 10000
#define MOST   64
#define WAIT_S 60

typedef struct {
    int64_t step, founder, first, second, filler[FILLER];
} model_t;

static struct {
    const char *log, *die, *sizes;
    int epochs, steps, slow_ms, other;
    bool kill, engine;
} options = {.epochs = 3, .steps = 10, .other = -1};
static model_t model;
static int worker; /* the launcher's number of this process */

static void pause_ms(int ms)
{
    poll(NULL, 0, ms);
}

/* The Nth number of a list. */
static int nth(const char *list, int64_t n)
{
    for (; list && n > 0; n--) {
        list = strchr(list, ',');
        if (list) list++;
    }
    return list ? atoi(list) : 0;
}

static bool is_my_end(int64_t epoch, int64_t step)
{
    char when[32];
    snprintf(when, sizeof when, "%lld.%lld:", (long long)epoch, (long long)step);
    for (const char *at = options.die; at; at = strchr(at, '/') ? strchr(at, '/') + 1 : NULL) {
        if (strncmp(at, when, strlen(when)) != 0) continue;
        for (const char *who = at + strlen(when); *who && *who != '/';) {
            char *end;
            if (strtol(who, &end, 10) == worker) return true;
            who = *end == ',' ? end + 1 : end;
        }
    }
    return false;
}

static kolo_status_t add_up(int64_t *x, kolo_comm_t comm, kolo_tensor_engine_t engine)
{
    int64_t one = 1, handle;
    const kolo_tensor_t t = {"sum", KOLO_INT64, 1, &one, x, x};
    if (!engine) return kolo_all_reduce(x, x, 1, KOLO_INT64, KOLO_SUM, comm, NULL);
    kolo_status_t status = kolo_engine_all_reduce(engine, &t, KOLO_SUM, 1, 1, NULL, &handle);
    return status == KOLO_OK ? kolo_engine_wait(engine, handle, 0, NULL) : status;
}

static kolo_status_t half(int64_t *sum, kolo_comm_t comm, kolo_tensor_engine_t engine,
                          const kolo_state_info_t *info)
{
    int64_t mine = 0;
    for (int i = info->rank; i < SAMPLES; i += info->nranks) mine += sample(model.step, i);
    kolo_status_t status = add_up(&mine, comm, engine);
    if (status == KOLO_OK) *sum += mine;
    return status;
}

static kolo_status_t write_line(kolo_comm_t comm, const kolo_state_info_t *info)
{
    int64_t mine[2] = {worker, getpid()}, all[2 * MOST];
    char line[4096];
    if (info->nranks > MOST) return KOLO_ERR_INTERNAL;
    kolo_status_t status = kolo_all_gather(mine, all, 2, KOLO_INT64, comm, NULL);
    if (status != KOLO_OK || info->rank > 0) return status;
    int at = snprintf(line, sizeof line, "{\"epoch\": %lld, \"size\": %d, \"sum\": %lld, \"workers\": [",
                      (long long)(model.step / options.steps - 1), info->nranks, (long long)model.first);
    for (int r = 0; r < info->nranks; r++)
        at += snprintf(line + at, sizeof line - (size_t)at, "%s%d", r ? ", " : "", (int)all[2 * r]);
    at += snprintf(line + at, sizeof line - (size_t)at, "], \"pids\": [");
    for (int r = 0; r < info->nranks; r++)
        at += snprintf(line + at, sizeof line - (size_t)at, "%s%d", r ? ", " : "", (int)all[2 * r + 1]);
    at += snprintf(line + at, sizeof line - (size_t)at, "]}\n");
    int fd = open(options.log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, line, (size_t)at) != at) status = KOLO_ERR_SYSTEM;
    if (fd >= 0) close(fd);
    return status;
}

/* Until there are as many ranks as this epoch wants. */
static kolo_status_t await_size(kolo_state_t state, const kolo_state_info_t *info)
{
    int64_t epoch = model.step / options.steps;
    int want = nth(options.sizes, epoch);
    time_t end = time(NULL) + WAIT_S;
    while (want > 0 && info->nranks != want) {
        kolo_status_t status = kolo_state_commit(state);
        if (status != KOLO_OK) return status;
        if (time(NULL) > end) {
            fprintf(stderr, "trainer: epoch %lld wants %d ranks, there are %d\n", (long long)epoch, want,
                    info->nranks);
            return KOLO_ERR_TIMEOUT;
        }
        pause_ms(5);
    }
    return KOLO_OK;
}

static kolo_status_t one_step(kolo_state_t state, kolo_comm_t comm, kolo_tensor_engine_t engine,
                              const kolo_state_info_t *info)
{
    int64_t in_epoch = model.step % options.steps;
    kolo_status_t status = in_epoch == 0 ? await_size(state, info) : KOLO_OK;
    if (status == KOLO_OK) status = half(&model.first, comm, engine, info);
    if (is_my_end(model.step / options.steps, in_epoch)) {
        if (options.kill) kill(getpid(), SIGKILL);
        return KOLO_ERR_INTERNAL;
    }
    if (options.slow_ms > 0) pause_ms(options.slow_ms);
    if (status == KOLO_OK) status = half(&model.second, comm, engine, info);
    if (status != KOLO_OK) return status;
    model.step++;
    for (int i = 0; i < FILLER; i++) model.filler[i] = model.step * i;
    status = kolo_state_commit(state);
    if (in_epoch < options.steps - 1 || (status != KOLO_OK && status != KOLO_IN_PROGRESS)) return status;
    kolo_status_t written = write_line(comm, info);
    return written == KOLO_OK ? status : written;
}

static kolo_status_t train(kolo_state_t state, void *arg)
{
    kolo_comm_t comm;
    kolo_state_info_t info;
    kolo_tensor_engine_t engine = NULL;
    (void)arg;
    kolo_status_t status = kolo_state_comm(state, &comm);
    if (status == KOLO_OK) status = kolo_state_get_info(state, &info);
    if (status == KOLO_OK && options.engine) status = kolo_engine_init(&engine, comm, NULL);
    while (status == KOLO_OK && model.step < (int64_t)options.epochs * options.steps)
        status = one_step(state, comm, engine, &info);
    if (status == KOLO_OK || status == KOLO_IN_PROGRESS)
        kolo_engine_shutdown(engine);
    else
        kolo_engine_abort(engine);
    return status;
}

static bool sums_are_right(void)
{
    int64_t steps = (int64_t)options.epochs * options.steps, sum = right_sum(steps) + model.founder;
    if (model.step == steps && model.first == sum && model.second == sum &&
        model.filler[FILLER - 1] == steps * (FILLER - 1))
        return true;
    fprintf(stderr, "trainer: %lld steps with sums %lld and %lld, expected %lld with %lld\n", (long long)model.step,
            (long long)model.first, (long long)model.second, (long long)steps, (long long)sum);
    return false;
}

static bool read_options(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (strcmp(name, "--log") == 0) options.log = value;
        if (strcmp(name, "--die") == 0) options.die = value;
        if (strcmp(name, "--sizes") == 0) options.sizes = value;
        if (strcmp(name, "--epochs") == 0) options.epochs = atoi(value);
        if (strcmp(name, "--steps") == 0) options.steps = atoi(value);
        if (strcmp(name, "--slow") == 0) options.slow_ms = atoi(value);
        if (strcmp(name, "--other") == 0) options.other = atoi(value);
        if (strcmp(name, "--how") == 0) options.kill = strcmp(value, "kill") == 0;
        if (strcmp(name, "--work") == 0) options.engine = strcmp(value, "engine") == 0;
    }
    const char *number = getenv("KOLO_ELASTIC_WORKER");
    worker = number ? atoi(number) : 0;
    return options.log != NULL;
}

int main(int argc, char **argv)
{
    kolo_state_t state;
    if (!read_options(argc, argv)) return 2;
    /* What the founder begins with counts: process 0, or another where that dies before there is a rank. */
    model.founder = model.first = model.second = worker;
    kolo_status_t status = kolo_state_create(&state, NULL);
    if (status == KOLO_OK) status = kolo_state_register(state, "model", &model, sizeof model);
    if (status == KOLO_OK && worker == options.other)
        status = kolo_state_register(state, "more", &worker, sizeof worker);
    if (status == KOLO_OK) status = kolo_state_run(state, train, NULL);
    if (status == KOLO_IN_PROGRESS) {
        printf("left at step %lld\n", (long long)model.step);
        return 0;
    }
    if (status != KOLO_OK) {
        fprintf(stderr, "trainer: %s\n", kolo_get_last_error(NULL));
        return 1;
    }
    kolo_state_destroy(state);
    return sums_are_right() ? 0 : 3;
}
