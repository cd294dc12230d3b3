/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine on GPUs where not all goes on as usual: a rank has joined, an operation is refused, a timeline ends.
 */
#include "engine_kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- without a rank ---- */

/* The others reduce without rank 0, which has joined and puts in what changes nothing. */
static void reduce_with_others(kolo_op_t op, const char *word)
{
    enum { MANY = 30 };
    static const kolo_type_t types[] = {KOLO_FLOAT32, KOLO_INT8,  KOLO_FLOAT16,
                                        KOLO_INT64,   KOLO_UINT8, KOLO_FLOAT64};
    twin_t t[MANY];
    char names[MANY][2][32];
    int64_t handles[MANY][2];
    used = 0;
    for (int i = 0; i < MANY; i++) {
        make_twin(&t[i], types[i % 6],
                  i == 29   ? 40000
                  : i == 28 ? 0
                            : 1 + i,
                  3,
                  i == 29   ? 40000
                  : i == 28 ? 0
                            : 1 + i);
        CHECK(upload(&t[i]));
        for (int there = 0; there < 2; there++) {
            snprintf(names[i][there], sizeof names[i][there], "without.%s.%d.%d", word, there, i);
            kolo_tensor_t x = tensor(&t[i], names[i][there], there);
            KIT_OK(kolo_engine_all_reduce(engine, &x, op, i % 4 == 1 ? 2 : 1, 1, NULL, &handles[i][there]));
        }
    }
    for (int i = 0; i < MANY; i++) {
        CHECK(wait_for(handles[i][0], false));
        CHECK(wait_for(handles[i][1], true));
        if (!fetch(&t[i]) || !same(&t[i])) KIT_FAIL("%s without rank 0: tensor %d is wrong", word, i);
        free_twin(&t[i]);
    }
}

void reduce_without_one(void)
{
    int64_t join;
    if (me.rank > 0) {
        reduce_with_others(KOLO_MIN, "min");
        reduce_with_others(KOLO_SUM, "sum");
        reduce_with_others(KOLO_MAX, "max");
        reduce_with_others(KOLO_PROD, "prod");
        reduce_with_others(KOLO_AVG, "avg");
    }
    KIT_OK(kolo_engine_join(engine, NULL, &join));
    KIT_OK(kolo_engine_wait(engine, join, WAIT_MS, NULL));
}

/* ---- operations that are refused ---- */

/* Memory that is none of the GPU's, on one rank or on all: their operation refuses it when it is to run. */
static void *allocate_here(void *arg, int index, size_t bytes, int ndims, const int64_t *shape)
{
    (void)index, (void)bytes, (void)ndims, (void)shape;
    return arg;
}

void fail_some(bool all)
{
    twin_t bad, good;
    kolo_completion_t c;
    int64_t handles[2];
    static const char *const names[2][2] = {{"bad.one", "behind.one"}, {"bad.all", "behind.all"}};
    used = 0;
    make_twin(&bad, KOLO_FLOAT32, 3, 100, 3 * me.size);
    make_twin(&good, KOLO_FLOAT32, LARGE, 1, LARGE);
    CHECK(upload(&bad) && upload(&good));
    for (int round = 0; round < 2; round++) {
        kolo_tensor_t b = tensor(&bad, names[all][0], true), g = tensor(&good, names[all][1], true);
        bool mine = all || me.rank == me.size - 1;
        kolo_submission_t how = {.allocate = mine ? allocate_here : allocate_there,
                                 .arg = mine ? (void *)bad.result : b.output};
        b.output = NULL;
        KIT_OK(kolo_engine_all_gather(engine, &b, &how, &handles[0]));
        KIT_OK(kolo_engine_all_reduce(engine, &g, KOLO_MAX, 1, 1, NULL, &handles[1]));
        kolo_status_t status = kolo_engine_wait(engine, handles[0], WAIT_MS, &c);
        if (mine &&
            (status != KOLO_ERR_INVALID_ARGUMENT || !strstr(kolo_get_last_error(NULL), "not memory of a GPU")))
            KIT_FAIL("bad memory: %s: %s", kolo_status_string(status), kolo_get_last_error(NULL));
        status = kolo_engine_wait(engine, handles[1], WAIT_MS, &c); /* it may have been on its way */
        if (status != KOLO_OK && status != KOLO_ERR_REVOKED)
            KIT_FAIL("behind it: %s: %s", kolo_status_string(status), kolo_get_last_error(NULL));
    }
    free_twin(&bad), free_twin(&good);
    reduce_alone(false); /* on the GPUs, as before */
}

/* ---- the timeline ---- */

void write_timeline(void)
{
    static const char *const wanted[] = {"WAIT_FOR_DATA", "MEMCPY_IN_FUSION_BUFFER", "KOLO_ALLREDUCE",
                                         "MEMCPY_OUT_FUSION_BUFFER"};
    char path[] = "/tmp/kolo-gpu-timeline-XXXXXX", *text = calloc(1, 1 << 22);
    int fd = mkstemp(path);
    KIT_OK(kolo_engine_timeline_start(engine, path, 0));
    reduce_behind_an_event();
    reduce_many(KOLO_SUM, false);
    KIT_OK(kolo_engine_timeline_stop(engine));
    FILE *f = fdopen(fd, "r");
    if (me.rank == 0 && f && text) {
        if (fread(text, 1, (1 << 22) - 1, f) < 100) KIT_FAIL("the timeline is empty");
        for (int i = 0; i < 4; i++)
            if (!strstr(text, wanted[i])) KIT_FAIL("the timeline has no %s", wanted[i]);
        CHECK(strstr(text, "\"name\":\"ALLREDUCE\",\"args\":{\"dtype\":\"int64\",\"shape\":\"[5000, 1]\""));
    }
    if (f) fclose(f);
    unlink(path);
    free(text);
}

/* What a GPU did last is in the file although the program stops at once. */
void stop_at_once(void)
{
    twin_t t;
    int64_t handle;
    char path[] = "/tmp/kolo-gpu-timeline-XXXXXX", *text = calloc(1, 1 << 20);
    int fd = mkstemp(path), found = 0;
    used = 0;
    make_twin(&t, KOLO_FLOAT32, 1000, 1, 1000);
    CHECK(upload(&t));
    for (int round = 0; round < 20; round++) {
        kolo_tensor_t x = tensor(&t, "last", true);
        KIT_OK(kolo_engine_timeline_start(engine, path, 0));
        KIT_OK(kolo_engine_all_reduce(engine, &x, KOLO_SUM, 1, 1, NULL, &handle));
        CHECK(wait_for(handle, true));
        KIT_OK(kolo_engine_timeline_stop(engine));
        FILE *f = fopen(path, "r");
        if (!f || !text) break;
        text[fread(text, 1, (1 << 20) - 1, f)] = 0;
        found += strstr(text, "KOLO_ALLREDUCE") != NULL;
        fclose(f);
    }
    if (me.rank == 0 && found < 20) KIT_FAIL("%d of 20 timelines have what the GPU did last", found);
    free_twin(&t);
    unlink(path);
    close(fd);
    free(text);
}

/* ---- a set that is removed ---- */

/* Tensors whose streams wait are complete before the GPU has done anything: their set may go, while the timeline
 * still asks how they ended. */
void remove_behind_streams(void)
{
    int set, most[KIT_RANKS], n = me.size - 1;
    twin_t t;
    int64_t handle;
    char path[] = "/tmp/kolo-gpu-timeline-XXXXXX";
    int fd = mkstemp(path);
    for (int i = 0; i < n; i++) most[i] = i;
    used = 0;
    make_twin(&t, KOLO_FLOAT32, 1000, 1, 1000);
    CHECK(upload(&t));
    kolo_tensor_memory_t memory = {gpu.device, NULL, gpu.streams[1]};
    KIT_OK(kolo_engine_timeline_start(engine, path, 0));
    for (int round = 0; round < 2; round++) {
        KIT_OK(kolo_engine_add_set(engine, most, n, &set));
        kolo_submission_t how = {.set = set, .memory = &memory};
        kolo_tensor_t x = tensor(&t, "behind", true);
        if (me.rank < n) KIT_OK(kolo_engine_all_reduce(engine, &x, KOLO_SUM, 1, 1, &how, &handle));
        if (me.rank < n) KIT_OK(kolo_engine_wait(engine, handle, WAIT_MS, NULL));
        KIT_OK(kolo_engine_remove_set(engine, set));
    }
    KIT_OK(kolo_engine_timeline_stop(engine));
    CHECK(kit_sync(&gpu, gpu.streams[1]));
    free_twin(&t);
    unlink(path);
    close(fd);
}
