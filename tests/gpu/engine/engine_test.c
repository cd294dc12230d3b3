/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine with tensors on GPUs: every operation beside the same one in host memory, with streams and events of
 * the program, with ranks that keep a tensor elsewhere, that join, that are in a process set; and its timeline.
 * Started by kolorun, a process per rank; on the fake driver or on real GPUs. An event in the completion tells that
 * the operation ran on the GPUs.
 */
#include "engine_kit.h"

#include <kolo/engine.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

kit_rank_t gpu;
kolo_engine_place_t me;
kolo_tensor_engine_t engine;
bool native = true;                /* what all have on GPUs is to run there */
static const char *wanted_backend; /* that is to run what it takes of it */

/* ---- values: small whole numbers, so that sums are exact in every type and order ---- */

static int value(int rank, int64_t i)
{
    return (int)((i * 7 + rank * 5) % 11) % 3;
}

static void put_value(kolo_type_t type, void *at, double v)
{
    float f = (float)v;
    int64_t n = (int64_t)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint16_t half = v == 0 ? 0 : (uint16_t)((bits >> 13 & 0x3ff) | (((bits >> 23) - 112) << 10)),
             brain = bits >> 16;
    if (type == KOLO_FLOAT32)
        memcpy(at, &f, 4);
    else if (type == KOLO_FLOAT64)
        memcpy(at, &v, 8);
    else if (type == KOLO_FLOAT16)
        memcpy(at, &half, 2);
    else if (type == KOLO_BFLOAT16)
        memcpy(at, &brain, 2);
    else
        memcpy(at, &n, kolo_type_size(type));
}

size_t used;

void make_twin(twin_t *t, kolo_type_t type, int64_t rows, int64_t columns, int64_t out_rows)
{
    size_t elem = kolo_type_size(type);
    *t = (twin_t){.type = type, .shape = {rows, columns}, .out_rows = out_rows};
    t->in_bytes = (size_t)(rows * columns) * elem;
    t->out_bytes = (size_t)(out_rows * columns) * elem;
    t->at = (used + elem - 1) / elem * elem; /* a GPU wants no more than that */
    used = t->at + t->in_bytes + t->out_bytes;
    if (used > gpu.room) {
        KIT_FAIL("the buffer is too short");
        exit(1);
    }
    t->here = malloc(t->in_bytes + 16);
    t->result = malloc(t->out_bytes + 16);
    for (int64_t i = 0; i < rows * columns; i++) put_value(type, t->here + (size_t)i * elem, value(me.rank, i));
    memcpy(gpu.image + t->at, t->here, t->in_bytes);
}

void free_twin(twin_t *t)
{
    free(t->here);
    free(t->result);
}

kolo_tensor_t tensor(const twin_t *t, const char *name, bool there)
{
    char *in = there ? gpu.buffer + t->at : t->here, *out = there ? in + t->in_bytes : t->result;
    return (kolo_tensor_t){name, t->type, 2, t->shape, in, out};
}

/* The GPU's result in `back`. */
bool fetch(const twin_t *t)
{
    return kit_download(&gpu, t->at + t->in_bytes, t->out_bytes, gpu.streams[0]) && kit_sync(&gpu, gpu.streams[0]);
}

bool same(const twin_t *t)
{
    return memcmp(gpu.back + t->at + t->in_bytes, t->result, t->out_bytes) == 0;
}

bool upload(const twin_t *t)
{
    return kit_upload(&gpu, t->at, t->in_bytes, gpu.streams[0]) && kit_sync(&gpu, gpu.streams[0]);
}

bool wait_for(int64_t handle, bool there)
{
    there = there && native;
    kolo_completion_t c;
    if (!KIT_OK(kolo_engine_wait(engine, handle, WAIT_MS, &c))) return false;
    if ((c.event != NULL) != there)
        return KIT_FAIL("%s: %s", c.name, there ? "it did not run on the GPUs" : "it ran on the GPUs");
    return true;
}

/* ---- all_reduce ---- */

enum { TENSORS = 130 }; /* more than one launch of the kernel that packs takes */

void reduce_many(kolo_op_t op, bool scaled)
{
    static const kolo_type_t types[] = {KOLO_FLOAT32, KOLO_INT8,  KOLO_FLOAT16, KOLO_FLOAT64,
                                        KOLO_UINT64,  KOLO_INT32, KOLO_UINT8,   KOLO_BFLOAT16};
    static twin_t t[TENSORS];
    static char names[TENSORS][2][24];
    int64_t handles[TENSORS][2];
    used = 0;
    for (int i = 0; i < TENSORS; i++) {
        int64_t rows = i % 13 == 12 ? 0 : i % 40 == 7 ? 30000 : 1 + i % 17, columns = 1 + i % 3;
        make_twin(&t[i], types[i / 5 % 8], rows, columns, rows);
        CHECK(upload(&t[i]));
        for (int k = 0; k < 2; k++) snprintf(names[i][k], sizeof names[i][k], "many.%d.%d", k, i);
    }
    for (int round = 0; round < 3; round++) { /* agreed, then from the cache */
        for (int k = 0; k < TENSORS; k++) {
            int i = (k * 7 + me.rank + round) % TENSORS; /* in some order */
            double pre = scaled && i % 3 == 0 ? 2.0 : 1.0, post = scaled && i % 4 == 0 ? 0.5 : 1.0;
            for (int there = 0; there < 2; there++) {
                kolo_tensor_t x = tensor(&t[i], names[i][there], there);
                KIT_OK(kolo_engine_all_reduce(engine, &x, op, pre, post, NULL, &handles[i][there]));
            }
        }
        for (int i = 0; i < TENSORS; i++) {
            CHECK(wait_for(handles[i][0], false));
            CHECK(wait_for(handles[i][1], true));
        }
        for (int i = 0; i < TENSORS; i++)
            if (!fetch(&t[i]) || !same(&t[i]))
                KIT_FAIL("tensor %d of type %d, operator %d: wrong", i, t[i].type, op);
    }
    for (int i = 0; i < TENSORS; i++) free_twin(&t[i]);
}

void reduce_alone(bool in_place)
{
    twin_t t;
    int64_t handle;
    used = 0;
    make_twin(&t, KOLO_FLOAT32, LARGE, 1, LARGE);
    for (int round = 0; round < 3; round++) {
        CHECK(upload(&t));
        kolo_tensor_t here = tensor(&t, "alone.here", false), there = tensor(&t, "alone", true);
        if (in_place) there.output = gpu.buffer + t.at;
        KIT_OK(kolo_engine_all_reduce(engine, &here, KOLO_AVG, 2, 0.5, NULL, &handle));
        CHECK(wait_for(handle, false));
        KIT_OK(kolo_engine_all_reduce(engine, &there, KOLO_AVG, 2, 0.5, NULL, &handle));
        CHECK(wait_for(handle, true));
        size_t at = t.at + (in_place ? 0 : t.in_bytes);
        CHECK(kit_download(&gpu, at, t.out_bytes, gpu.streams[0]) && kit_sync(&gpu, gpu.streams[0]));
        bool good = true; /* the two may sum in another order */
        for (int i = 0; i < LARGE; i++) {
            float a, b;
            memcpy(&a, gpu.back + at + 4 * i, 4);
            memcpy(&b, t.result + 4 * i, 4);
            good = good && fabsf(a - b) <= 1e-6f;
        }
        CHECK(good);
    }
    free_twin(&t);
}

/* ---- the other operations ---- */

void *allocate_there(void *arg, int index, size_t bytes, int ndims, const int64_t *shape)
{
    (void)index, (void)ndims, (void)shape;
    return bytes <= ROOM ? arg : NULL;
}

static void move_each(void)
{
    int n = me.size;
    int64_t splits[KIT_RANKS], handle, sent = 0, got = 0;
    for (int r = 0; r < n; r++) sent += splits[r] = (me.rank + r) % 3;
    for (int r = 0; r < n; r++) got += (me.rank + r) % 3;
    for (int round = 0; round < 3; round++) {
        twin_t gather, even, spread, exchange, scatter;
        int64_t all = 0, rows = 3 * n + 1;
        for (int r = 0; r < n; r++) all += 2 + r;
        used = 0;
        make_twin(&gather, KOLO_INT32, 2 + me.rank, 5, all);
        make_twin(&even, KOLO_FLOAT32, 4, 5, 4 * n);
        make_twin(&spread, KOLO_FLOAT64, 7, 3, 7);
        make_twin(&exchange, KOLO_UINT8, sent, 3, got);
        make_twin(&scatter, KOLO_FLOAT32, rows, 4, rows / n + (me.rank < rows % n));
        const twin_t *each[] = {&gather, &even, &spread, &exchange, &scatter};
        for (int i = 0; i < 5; i++) CHECK(upload(each[i]));
        for (int there = 0; there < 2; there++) {
            kolo_tensor_t t = tensor(&gather, there ? "gather" : "gather.here", there);
            KIT_OK(kolo_engine_all_gather(engine, &t, NULL, &handle));
            CHECK(wait_for(handle, there));
            t = tensor(&even, there ? "even" : "even.here", there);
            kolo_submission_t how = {.allocate = allocate_there, .arg = t.output};
            t.output = NULL;
            KIT_OK(kolo_engine_all_gather(engine, &t, &how, &handle));
            CHECK(wait_for(handle, there));
            t = tensor(&spread, there ? "spread" : "spread.here", there);
            KIT_OK(kolo_engine_broadcast(engine, &t, n - 1, NULL, &handle));
            CHECK(wait_for(handle, there));
            t = tensor(&exchange, there ? "exchange" : "exchange.here", there);
            KIT_OK(kolo_engine_all_to_all(engine, &t, splits, NULL, &handle));
            CHECK(wait_for(handle, there));
            t = tensor(&scatter, there ? "scatter" : "scatter.here", there);
            KIT_OK(kolo_engine_reduce_scatter(engine, &t, KOLO_SUM, 2, 0.5, NULL, &handle));
            CHECK(wait_for(handle, there));
        }
        for (int i = 0; i < 5; i++)
            if (!fetch(each[i]) || !same(each[i])) KIT_FAIL("operation %d: wrong", i);
        free_twin(&gather), free_twin(&even), free_twin(&spread), free_twin(&exchange), free_twin(&scatter);
    }
}

/* ---- gathered and scattered tensors that share operations ---- */

enum { SHARING = 45, SHARED_TYPES = 3 };

static uint64_t operations_so_far(void)
{
    kolo_engine_counters_t c;
    return KIT_OK(kolo_engine_get_counters(engine, &c)) ? c.operations : 0;
}

/* A group at once, here or there: an operation for each type. */
static void share(const twin_t *t, bool gathers, bool there)
{
    static char names[SHARING][24];
    kolo_tensor_t x[SHARING];
    int64_t handles[SHARING];
    uint64_t before = operations_so_far();
    for (int i = 0; i < SHARING; i++) {
        snprintf(names[i], sizeof names[i], "share.%d.%d.%d", gathers, there, i);
        x[i] = tensor(&t[i], names[i], there);
    }
    if (gathers)
        KIT_OK(kolo_engine_all_gather_group(engine, x, SHARING, NULL, handles));
    else
        KIT_OK(kolo_engine_reduce_scatter_group(engine, x, SHARING, KOLO_SUM, 2, 0.5, NULL, handles));
    for (int i = 0; i < SHARING; i++) CHECK(wait_for(handles[i], there));
    uint64_t took = operations_so_far() - before;
    if (took != SHARED_TYPES)
        KIT_FAIL("%s %s took %llu operations, not %d", gathers ? "all_gathers" : "reduce_scatters",
                 there ? "there" : "here", (unsigned long long)took, SHARED_TYPES);
}

/* Rows of every number, also none, and columns that leave no piece at a multiple of anything. */
static void share_operations(bool gathers)
{
    static const kolo_type_t types[SHARED_TYPES] = {KOLO_FLOAT32, KOLO_INT8, KOLO_FLOAT16};
    static twin_t t[SHARING];
    int n = me.size;
    for (int round = 0; round < 3; round++) { /* agreed, then from the cache */
        used = 0;
        for (int i = 0; i < SHARING; i++) {
            int64_t rows = gathers ? (i + 2 * me.rank) % 5 : i % 8, all = 0, columns = 1 + i % 7;
            for (int r = 0; r < n; r++) all += (i + 2 * r) % 5;
            make_twin(&t[i], types[i % SHARED_TYPES], rows, columns,
                      gathers ? all : rows / n + (me.rank < rows % n));
            CHECK(upload(&t[i]));
        }
        share(t, gathers, false);
        share(t, gathers, true);
        for (int i = 0; i < SHARING; i++)
            if (!fetch(&t[i]) || !same(&t[i])) KIT_FAIL("shared tensor %d of %d: wrong", i, gathers);
        for (int i = 0; i < SHARING; i++) free_twin(&t[i]);
    }
}

/* ---- streams and events of the program ---- */

static void reduce_in_a_stream(void)
{
    twin_t t;
    kolo_completion_t c;
    int64_t handle;
    void *stream = gpu.streams[1];
    used = 0;
    make_twin(&t, KOLO_FLOAT32, 1000, 1, 1000);
    kolo_tensor_t x = tensor(&t, "stream", true);
    for (int round = 0; round < 20; round++) { /* nobody waits for the GPU but the stream */
        for (int64_t i = 0; i < 1000; i++) put_value(KOLO_FLOAT32, gpu.image + t.at + 4 * i, round + me.rank);
        kolo_tensor_memory_t memory = {gpu.device, NULL, stream};
        kolo_submission_t how = {.memory = &memory};
        CHECK(kit_upload(&gpu, t.at, t.in_bytes, stream));
        KIT_OK(kolo_engine_all_reduce(engine, &x, KOLO_SUM, 1, 1, &how, &handle));
        KIT_OK(kolo_engine_wait(engine, handle, WAIT_MS, &c));
        CHECK((c.event != NULL) == native);
        CHECK(kit_download(&gpu, t.at + t.in_bytes, t.out_bytes, stream) && kit_sync(&gpu, stream));
        bool good = true;
        for (int64_t i = 0; i < 1000; i++) {
            float f;
            int64_t want = (int64_t)me.size * round + (int64_t)me.size * (me.size - 1) / 2;
            memcpy(&f, gpu.back + t.at + t.in_bytes + 4 * i, 4);
            good = good && f == (float)want;
        }
        CHECK(good);
    }
    free_twin(&t);
}

/* Tensors of two streams in one operation, submitted in another order than it has them. A stream is held in the
 * middle: what was put into it last is not there when the operation is queued. */
static void reduce_of_streams(void)
{
    enum { EACH = 12, HELD = 5, COUNT = 500 };
    static twin_t t[EACH];
    static char names[EACH][24];
    int64_t handles[EACH];
    used = 0;
    for (int i = 0; i < EACH; i++) {
        make_twin(&t[i], KOLO_INT32, COUNT, 1, COUNT);
        snprintf(names[i], sizeof names[i], "streams.%d", i);
    }
    for (int round = 0; round < 6; round++) {
        for (int k = 0; k < EACH; k++) {
            int i = (k * 5 + round) % EACH;
            int32_t v = 100 * round + i + me.rank;
            kolo_tensor_memory_t memory = {gpu.device, NULL, gpu.streams[k % 2]};
            kolo_submission_t how = {.memory = &memory};
            kolo_tensor_t x = tensor(&t[i], names[i], true);
            if (k == HELD) CHECK(kit_hold(&gpu, gpu.streams[HELD % 2]));
            for (int j = 0; j < COUNT; j++) memcpy(gpu.image + t[i].at + 4 * j, &v, 4);
            CHECK(kit_upload(&gpu, t[i].at, t[i].in_bytes, memory.stream));
            KIT_OK(kolo_engine_all_reduce(engine, &x, KOLO_SUM, 1, 1, &how, &handles[i]));
        }
        for (int i = 0; i < EACH; i++) KIT_OK(kolo_engine_wait(engine, handles[i], WAIT_MS, NULL));
        kit_let_go(&gpu);
        for (int i = 0; i < EACH; i++) {
            int32_t got, want = me.size * (100 * round + i) + me.size * (me.size - 1) / 2;
            CHECK(fetch(&t[i]) && kit_sync(&gpu, gpu.streams[1]) && fetch(&t[i]));
            memcpy(&got, gpu.back + t[i].at + t[i].in_bytes + 4 * (COUNT - 1), 4);
            if (got != want) KIT_FAIL("tensor %d of two streams, round %d: %d, not %d", i, round, got, want);
        }
    }
    for (int i = 0; i < EACH; i++) free_twin(&t[i]);
}

/* The event has not passed when the tensor is submitted: else there would be nothing to wait for. */
void reduce_behind_an_event(void)
{
    twin_t t;
    kolo_cu_event_t event;
    int64_t handle;
    used = 0;
    make_twin(&t, KOLO_INT64, 5000, 1, 5000);
    kolo_tensor_t here = tensor(&t, "event.here", false), there = tensor(&t, "event", true);
    KIT_OK(kolo_engine_all_reduce(engine, &here, KOLO_MAX, 1, 1, NULL, &handle));
    CHECK(wait_for(handle, false));
    kit_enter(&gpu);
    CHECK(kit_event_new(&event));
    for (int round = 0; round < 10; round++) {
        CHECK(kit_hold(&gpu, gpu.streams[1]));
        CHECK(kit_upload(&gpu, t.at, t.in_bytes, gpu.streams[1]) && kit_event_record(event, gpu.streams[1]));
        kolo_tensor_memory_t memory = {gpu.device, event, NULL};
        kolo_submission_t how = {.memory = &memory};
        KIT_OK(kolo_engine_all_reduce(engine, &there, KOLO_MAX, 1, 1, &how, &handle));
        kit_let_go(&gpu);
        CHECK(wait_for(handle, true));
        CHECK(fetch(&t) && same(&t));
    }
    kit_event_end(event);
    free_twin(&t);
}

/* ---- what passes through host memory, or fails ---- */

static void mix(void)
{
    twin_t t;
    int64_t handle;
    used = 0;
    make_twin(&t, KOLO_FLOAT32, 700, 2, 700);
    CHECK(upload(&t));
    kolo_tensor_t here = tensor(&t, "mixed.here", false), there = tensor(&t, "mixed", true);
    KIT_OK(kolo_engine_all_reduce(engine, &here, KOLO_SUM, 1, 1, NULL, &handle));
    CHECK(wait_for(handle, false));
    for (int round = 0; round < 3; round++) {
        kolo_tensor_t mine = there;
        if (me.rank == 0 && me.size > 1) mine.input = t.here, mine.output = t.result;
        KIT_OK(kolo_engine_all_reduce(engine, &mine, KOLO_SUM, 1, 1, NULL, &handle));
        CHECK(wait_for(handle, me.size == 1));
        CHECK(fetch(&t) && ((me.rank == 0 && me.size > 1) || same(&t)));
    }
    KIT_OK(kolo_engine_all_reduce(engine, &there, KOLO_SUM, 1, 1, NULL, &handle)); /* and now all there */
    CHECK(wait_for(handle, true));
    CHECK(fetch(&t) && same(&t));
    free_twin(&t);
}

static void use_a_set(void)
{
    int set, half[KIT_RANKS], n = (me.size + 1) / 2;
    twin_t t;
    int64_t handle;
    if (me.size < 3) return;
    for (int i = 0; i < n; i++) half[i] = i;
    KIT_OK(kolo_engine_add_set(engine, half, n, &set));
    if (me.rank < n) {
        kolo_submission_t how = {.set = set};
        used = 0;
        make_twin(&t, KOLO_FLOAT32, 100, 1, 100);
        CHECK(upload(&t));
        kolo_tensor_t here = tensor(&t, "set.here", false), there = tensor(&t, "set", true);
        KIT_OK(kolo_engine_all_reduce(engine, &here, KOLO_SUM, 1, 1, &how, &handle));
        CHECK(wait_for(handle, false));
        KIT_OK(kolo_engine_all_reduce(engine, &there, KOLO_SUM, 1, 1, &how, &handle));
        CHECK(wait_for(handle, true));
        CHECK(fetch(&t) && same(&t));
        free_twin(&t);
    }
    KIT_OK(kolo_engine_remove_set(engine, set));
}

static void submit_wrongly(void)
{
    char name[] = "wrong";
    float here[4] = {0};
    int64_t shape[1] = {4};
    kolo_tensor_t t = {name, KOLO_FLOAT32, 1, shape, here, here};
    kolo_tensor_memory_t memory = {gpu.device, NULL, NULL};
    kolo_submission_t how = {.memory = &memory};
    CHECK(kolo_engine_all_reduce(engine, &t, KOLO_SUM, 1, 1, &how, NULL) == KOLO_ERR_INVALID_ARGUMENT);
    CHECK(strstr(kolo_get_last_error(NULL), "its input is no memory of device"));
    t.input = t.output = gpu.buffer + 2;
    CHECK(kolo_engine_all_reduce(engine, &t, KOLO_SUM, 1, 1, &how, NULL) == KOLO_ERR_INVALID_ARGUMENT);
    CHECK(strstr(kolo_get_last_error(NULL), "is no multiple of the 4 bytes of a float32"));
    void *plan = NULL, *graph = NULL;
    t.input = t.output = gpu.buffer;
    memory.stream = gpu.streams[1];
    CHECK(kit_capture(&gpu, gpu.streams[1]));
    CHECK(kolo_engine_all_reduce(engine, &t, KOLO_SUM, 1, 1, &how, NULL) == KOLO_ERR_UNSUPPORTED);
    CHECK(strstr(kolo_get_last_error(NULL), "the stream is being captured"));
    CHECK(kit_captured(&gpu, gpu.streams[1], &plan) && kit_graph(&gpu, plan, &graph));
    kit_graph_end(graph);
    t.input = t.output = here;
    memory = (kolo_tensor_memory_t){KOLO_DEVICE_CPU, NULL, gpu.streams[0]};
    CHECK(kolo_engine_all_reduce(engine, &t, KOLO_SUM, 1, 1, &how, NULL) == KOLO_ERR_INVALID_ARGUMENT);
    CHECK(strstr(kolo_get_last_error(NULL), "a stream comes with memory of a GPU"));
    memory.device = 15;
    CHECK(kolo_engine_all_reduce(engine, &t, KOLO_SUM, 1, 1, &how, NULL) == KOLO_ERR_INVALID_ARGUMENT);
    CHECK(strstr(kolo_get_last_error(NULL), "no device 15"));
}

/* ---- who did it ---- */

static uint64_t operations_of(const char *name)
{
    kolo_backend_info_t info;
    for (int i = 0; kolo_engine_get_backend(engine, i, &info) == KOLO_OK; i++)
        if (strcmp(info.name, name) == 0) return info.operations;
    return 0;
}

/* The backend that was named has run each kind of operation once that it takes: of all_reduces most were its
 * own. */
static void look_who_ran(void)
{
    uint64_t before = operations_of(wanted_backend);
    if (before < 10) KIT_FAIL("%s ran %llu operations only", wanted_backend, (unsigned long long)before);
    move_each();
    uint64_t more = operations_of(wanted_backend) - before;
    if (more < 6) KIT_FAIL("%s ran %llu all_gathers and broadcasts of 6", wanted_backend, (unsigned long long)more);
}

/* The ranks take themselves for several hosts, with equally many on each. */
static void split_hosts(const char *hosts)
{
    static const char *const each[][2] = {{"KOLO_RANK", "KOLO_NRANKS"},
                                          {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                          {"PMI_RANK", "PMI_SIZE"}}; /* of kolorun, Open MPI, MPICH */
    char name[32];
    int i = 0;
    while (i < 2 && !getenv(each[i][0])) i++;
    const char *rank = getenv(each[i][0]), *size = getenv(each[i][1]);
    if (!rank || !size) exit(77);
    snprintf(name, sizeof name, "host-%d", atoi(rank) * atoi(hosts) / atoi(size));
    setenv("KOLO_HOST_ID", name, 1);
}

static void try_all(void)
{
    reduce_many(KOLO_SUM, false);
    reduce_many(KOLO_SUM, true);
    reduce_many(KOLO_MIN, false);
    reduce_alone(false);
    reduce_alone(true);
    move_each();
    share_operations(true);
    share_operations(false);
    reduce_in_a_stream();
    reduce_behind_an_event();
    if (native) reduce_of_streams();
    mix();
    blend_each();
    reduce_without_one();
    if (wanted_backend) look_who_ran();
    if (native && !wanted_backend) {
        fail_some(false);
        fail_some(true);
    }
    if (native) use_a_set();
    submit_wrongly();
    if (native) write_timeline();
    if (native && !wanted_backend) stop_at_once();
}

/* "sets=N": N ranks with sets from the start on, and nothing else. "removes": sets that are removed, and nothing
 * else. "host": what is on GPUs passes through host memory, as its environment wants it. "hosts=N": of so many
 * hosts. "ran=NAME": by this backend, among others. */
int main(int argc, char **argv)
{
    int devices = 0;
    bool removes = false, sets = false;
    kolo_engine_config_t config = KOLO_ENGINE_CONFIG_INITIALIZER;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "host") == 0) native = false;
        if (strcmp(argv[i], "removes") == 0) removes = true;
        if (strncmp(argv[i], "sets=", 5) == 0) {
            sets = true;
            name_sets(&config, atoi(argv[i] + 5));
        }
        if (strncmp(argv[i], "hosts=", 6) == 0) split_hosts(argv[i] + 6);
        if (strncmp(argv[i], "ran=", 4) == 0) wanted_backend = argv[i] + 4;
    }
    if (!kit_open(false, &devices) || devices < 1) return 77;
    if (!KIT_OK(kolo_engine_init(&engine, NULL, &config))) return 1;
    KIT_OK(kolo_engine_get_place(engine, &me));
    kit_me = me.rank;
    if (!kit_rank_open(&gpu, me.local_rank % devices, ROOM)) return 1;
    if (sets)
        run_sets();
    else if (removes)
        remove_behind_streams();
    else
        try_all();
    if (!KIT_OK(kolo_engine_shutdown(engine))) return 1;
    kit_rank_close(&gpu);
    if (kit_failures) fprintf(stderr, "rank %d: %d failures\n", me.rank, kit_failures);
    if (me.rank == 0 && !kit_failures) printf("engine on %d ranks, %d GPUs: all is well\n", me.size, devices);
    return kit_failures ? 1 : 0;
}
