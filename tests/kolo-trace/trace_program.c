/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank whose engine writes timelines, under kolorun. usage: trace_program MODE [ARGUMENT]
 *   steps LATE   20 steps of 5 tensors; rank LATE submits each step 30 ms after the others. KOLO_TIMELINE is set.
 *   stops PATH [END]   timelines PATH.%r.0END to .29END, each stopped while tensors may be in flight; in each third
 *                one some are
 *   forever      steps without end, for who is to be killed; rank 0 says "ready" after the first
 */
#include <kolo/engine.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TENSORS 5
#define WAIT_MS 30000

static kolo_tensor_engine_t engine;
static kolo_engine_place_t place;

static void must(kolo_status_t status, const char *what)
{
    if (status == KOLO_OK) return;
    fprintf(stderr, "%s: %s\n", what, kolo_get_last_error(NULL));
    exit(1);
}

static void nap_ms(long ms)
{
    const struct timespec t = {0, ms * 1000000};
    nanosleep(&t, NULL);
}

static void submit(const char *base, float x[][64], int64_t *handles)
{
    static const int64_t count = 64;
    char name[64];
    for (int i = 0; i < TENSORS; i++) {
        int k = (i + place.rank) % TENSORS;
        snprintf(name, sizeof name, "%s.%d", base, k);
        const kolo_tensor_t t = {name, KOLO_FLOAT32, 1, &count, x[k], x[k]};
        must(kolo_engine_all_reduce(engine, &t, KOLO_MAX, 1, 1, NULL, &handles[k]), "all_reduce");
    }
}

static void finish(const int64_t *handles)
{
    for (int i = 0; i < TENSORS; i++) must(kolo_engine_wait(engine, handles[i], WAIT_MS, NULL), "wait");
}

static void step(int late)
{
    static float x[TENSORS][64];
    int64_t handles[TENSORS];
    if (place.rank == late) nap_ms(30);
    submit("layer", x, handles);
    finish(handles);
}

static void stops(const char *path, const char *end)
{
    static float x[TENSORS][64];
    static float y[TENSORS][64];
    char name[400];
    int64_t handles[TENSORS], open[TENSORS];
    for (int i = 0; i < 30; i++) {
        snprintf(name, sizeof name, "%s.%%r.%d%s", path, i, end);
        must(kolo_engine_timeline_start(engine, name, i % 2), "timeline_start");
        if (i % 3 == 0 && place.rank == 0) submit("open", y, open);
        submit("layer", x, handles);
        if (i % 3 == 0) finish(handles);
        for (int n = 0; n < i * 20; n++) kolo_engine_poll(engine, handles[0], &(int){0});
        must(kolo_engine_timeline_stop(engine), "timeline_stop");
        if (i % 3 == 0) { /* all have stopped before "open" can end anywhere */
            submit("stopped", x, handles);
            finish(handles);
        }
        if (i % 3 == 0 && place.rank > 0) submit("open", y, open);
        finish(i % 3 == 0 ? open : handles);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) return 2;
    must(kolo_engine_init(&engine, NULL, NULL), "init");
    must(kolo_engine_get_place(engine, &place), "place");
    if (strcmp(argv[1], "steps") == 0)
        for (int i = 0; i < 20; i++) step(argc > 2 ? (int)strtol(argv[2], NULL, 10) : -1);
    if (strcmp(argv[1], "stops") == 0 && argc > 2) stops(argv[2], argc > 3 ? argv[3] : "");
    for (int i = 0; strcmp(argv[1], "forever") == 0; i++) {
        step(-1);
        if (i == 0 && place.rank == 0 && printf("ready %d\n", (int)time(NULL)) > 0) fflush(stdout);
    }
    must(kolo_engine_shutdown(engine), "shutdown");
    return 0;
}
