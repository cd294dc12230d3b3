/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine on GPUs where not all goes on as usual: a rank has joined, an operation is refused, a timeline ends.
 */
#include "engine_kit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Adasum ---- */

enum { BLENDED = 70 }; /* more of a type than one launch takes */

static double value_of(kolo_type_t type, const char *at)
{
    uint16_t half;
    uint32_t bits;
    float f;
    double d;
    memcpy(&half, at, 2);
    if (type == KOLO_FLOAT64) {
        memcpy(&d, at, 8);
        return d;
    }
    if (type == KOLO_FLOAT16)
        return ldexp(half & 0x7c00 ? 1024 + (half & 0x3ff) : 0, (half >> 10 & 31) - 25) * (half >> 15 ? -1 : 1);
    bits = (uint32_t)half << 16;
    if (type == KOLO_FLOAT32) memcpy(&bits, at, 4);
    memcpy(&f, &bits, 4);
    return f;
}

/* The order in which products are added differs from the CPU's: a result may be the next number of its type. */
static bool nearly_same(const twin_t *t)
{
    static const double steps[KOLO_TYPE_COUNT] = {
        [KOLO_FLOAT16] = 0x1p-10, [KOLO_BFLOAT16] = 0x1p-7, [KOLO_FLOAT32] = 0x1p-23, [KOLO_FLOAT64] = 0x1p-46};
    size_t elem = t->type == KOLO_FLOAT64 ? 8 : t->type == KOLO_FLOAT32 ? 4 : 2;
    for (size_t at = 0; at < t->out_bytes; at += elem) {
        double got = value_of(t->type, gpu.back + t->at + t->in_bytes + at),
               want = value_of(t->type, t->result + at);
        if (fabs(got - want) > 4 * steps[t->type] * (1 + fabs(want))) return false;
    }
    return true;
}

/* All ranks have the same bits. */
static void compare_ranks(const twin_t *t)
{
    uint64_t sum = 1, most[2];
    int64_t handle, two = 2;
    for (size_t i = 0; i < t->out_bytes; i++) sum = sum * 31 + (uint8_t)gpu.back[t->at + t->in_bytes + i];
    uint64_t mine[2] = {sum >> 1, INT64_MAX - (sum >> 1)};
    kolo_tensor_t x = {"bits", KOLO_UINT64, 1, &two, mine, most};
    KIT_OK(kolo_engine_all_reduce(engine, &x, KOLO_MAX, 1, 1, NULL, &handle));
    KIT_OK(kolo_engine_wait(engine, handle, WAIT_MS, NULL));
    if (most[0] != INT64_MAX - most[1]) KIT_FAIL("the ranks' results differ");
}

/* Every so many tensors are done by themselves, the others share operations. */
static void blend_all(int alone)
{
    static const kolo_type_t types[] = {KOLO_FLOAT32, KOLO_FLOAT16, KOLO_FLOAT64, KOLO_BFLOAT16};
    static twin_t t[BLENDED];
    static char names[2][BLENDED][24];
    int64_t handles[2][BLENDED];
    used = 0;
    for (int i = 0; i < BLENDED; i++) {
        int64_t rows = i == 69 ? LARGE / 2 : i % 9 == 8 ? 0 : 1 + 37 * i % 100;
        make_twin(&t[i], i < 66 ? KOLO_FLOAT32 : types[i % 4], rows, 1 + i % 3 * (i < 69), rows);
        CHECK(upload(&t[i]));
    }
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < BLENDED; i++) {
            double pre = i % 5 == 1 ? 3.0 : 1.0, post = i % 7 == 2 ? 0.25 : 1.0;
            for (int there = 0; there < 2; there++) {
                snprintf(names[there][i], sizeof names[0][i], "blend.%d.%d.%d", alone, there, i);
                kolo_tensor_t x = tensor(&t[i], names[there][i], there);
                KIT_OK(kolo_engine_all_reduce(engine, &x, KOLO_ADASUM, pre, post, NULL, &handles[there][i]));
                if (i % alone == 0) CHECK(wait_for(handles[there][i], there));
            }
        }
        for (int i = 0; i < BLENDED; i++) {
            if (i % alone) CHECK(wait_for(handles[0][i], false));
            if (i % alone) CHECK(wait_for(handles[1][i], true));
            if (!fetch(&t[i]) || !nearly_same(&t[i])) KIT_FAIL("Adasum of tensor %d, round %d: wrong", i, round);
        }
        compare_ranks(&t[BLENDED - 1]);
    }
    for (int i = 0; i < BLENDED; i++) free_twin(&t[i]);
}

void blend_each(void)
{
    blend_all(BLENDED);
    blend_all(4);
}

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
    if (me.rank > 0) blend_all(4);
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
