/* SPDX-License-Identifier: Apache-2.0
 *
 * See kit.h.
 */
#include "kit.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    _Atomic int failures, arrived, round;
    ncclUniqueId id;
} shared_t;
static shared_t *shared;
static bool processes, gpu;
static int nranks = 3, hosts = 1;
static const char *running = "";

/* ---- facts ---- */

bool fact(const char *file, int line, const char *text, bool is)
{
    if (is) return true;
    atomic_fetch_add(&shared->failures, 1);
    printf("%s: %s:%d: not so: %s (last error: %s)\n", running, file, line, text, ncclGetLastError(NULL));
    return false;
}

bool result_is(const char *file, int line, const char *text, ncclResult_t want, ncclResult_t got)
{
    char words[400];
    snprintf(words, sizeof words, "%.200s gives %d (%s), not %d", text, got, ncclGetErrorString(got), want);
    return fact(file, line, words, want == got);
}

bool equal(const char *file, int line, const char *text, double value, double want)
{
    char words[300];
    snprintf(words, sizeof words, "%.200s is %g, not %g", text, value, want);
    return fact(file, line, words, value == want);
}

/* ---- the driver, if there is one ---- */

typedef unsigned long long ptr_t;
static struct {
    int (*init)(unsigned);
    int (*count)(int *);
    int (*retain)(void **, int);
    int (*set)(void *);
    int (*alloc)(ptr_t *, size_t);
    int (*copy)(ptr_t, ptr_t, size_t, void *);
    int (*stream)(void **, unsigned);
    int (*sync)(void *);
    int (*host)(void *, void (*)(void *), void *);
    int (*event)(void **, unsigned);
    int (*query)(void *);
} cu;
static int ndevices;

static void load_driver(void)
{
    const char *name = getenv("KOLO_CUDA_LIBRARY");
    void *lib = dlopen(name ? name : "libcuda.so.1", RTLD_NOW);
    const struct {
        const char *name;
        void *at;
    } list[] = {
        {"cuInit", &cu.init},           {"cuDeviceGetCount", &cu.count},   {"cuDevicePrimaryCtxRetain", &cu.retain},
        {"cuCtxSetCurrent", &cu.set},   {"cuMemAlloc_v2", &cu.alloc},      {"cuMemcpyAsync", &cu.copy},
        {"cuStreamCreate", &cu.stream}, {"cuStreamSynchronize", &cu.sync}, {"cuLaunchHostFunc", &cu.host},
        {"cuEventCreate", &cu.event},   {"cuEventQuery", &cu.query}};
    for (size_t i = 0; lib && i < sizeof list / sizeof list[0]; i++)
        *(void **)list[i].at = dlsym(lib, list[i].name);
    if (!lib || !cu.init || cu.init(0) || cu.count(&ndevices)) {
        printf("no GPU: %s\n", lib ? "the driver does not start" : dlerror());
        exit(77);
    }
}

bool on_gpu(void)
{
    return gpu;
}
bool as_processes(void)
{
    return processes;
}

bool on_hosts(void)
{
    return hosts > 1;
}

int device_of(int rank)
{
    return gpu ? rank % ndevices : -1;
}

void use_device(int device)
{
    void *ctx;
    if (gpu && (cu.retain(&ctx, device) || cu.set(ctx))) FACT(!"the device can be used");
}

cudaStream_t new_stream(int device)
{
    void *s = NULL;
    use_device(device);
    if (gpu && cu.stream(&s, 1)) FACT(!"a stream can be made");
    return s;
}

static void sleeps(void *ms)
{
    nanosleep(&(struct timespec){.tv_sec = (intptr_t)ms / 1000, .tv_nsec = (intptr_t)ms % 1000 * 1000000}, NULL);
}

void delay_stream(const me_t *me, int ms)
{
    use_device(device_of(me->rank));
    if (gpu && cu.host(me->stream, sleeps, (void *)(intptr_t)ms)) FACT(!"a function of the host can be queued");
}

static void waits(void *flag)
{
    while (!atomic_load((_Atomic int *)flag)) sleeps((void *)(intptr_t)1);
}

void hold_stream(const me_t *me, _Atomic int *flag)
{
    use_device(device_of(me->rank));
    if (gpu && cu.host(me->stream, waits, flag)) FACT(!"a function of the host can be queued");
}

cudaEvent_t new_event(const me_t *me)
{
    void *event = NULL;
    use_device(device_of(me->rank));
    if (gpu && cu.event(&event, 2)) FACT(!"an event can be made");
    return event;
}

bool is_over(cudaEvent_t event)
{
    return cu.query(event) == 0;
}

void copy_bytes(const me_t *me, void *to, const void *from, size_t bytes)
{
    if (!gpu) {
        memcpy(to, from, bytes);
        return;
    }
    use_device(device_of(me->rank));
    if (cu.copy((ptr_t)(uintptr_t)to, (ptr_t)(uintptr_t)from, bytes, me->stream) || cu.sync(me->stream))
        FACT(!"the buffer can be copied");
}

/* What floats() gave, until the case is over. */
typedef struct given {
    struct given *next;
    float values[];
} given_t;
static _Atomic(given_t *) given;

static void take_back(void)
{
    for (given_t *g = atomic_exchange(&given, NULL), *next; g; g = next) {
        next = g->next;
        free(g);
    }
}

float *floats(const me_t *me, int n, float value)
{
    given_t *g = malloc(sizeof *g + (size_t)n * sizeof *g->values);
    if (!g) abort();
    float *host = g->values;
    ptr_t p = 0;
    for (int i = 0; i < n; i++) host[i] = value;
    if (!gpu) {
        g->next = atomic_load(&given);
        while (!atomic_compare_exchange_weak(&given, &g->next, g)) continue;
        return host;
    }
    use_device(device_of(me->rank));
    if (cu.alloc(&p, (size_t)n * sizeof *host)) abort();
    copy_bytes(me, (void *)(uintptr_t)p, host, (size_t)n * sizeof *host);
    free(g);
    return (float *)(uintptr_t)p;
}

float at(const me_t *me, const float *p, int i)
{
    float value;
    copy_bytes(me, &value, p + i, sizeof value);
    return value;
}

void put(const me_t *me, float *p, int i, float value)
{
    copy_bytes(me, p + i, &value, sizeof value);
}

void sync_stream(const me_t *me)
{
    use_device(device_of(me->rank));
    if (gpu && cu.sync(me->stream)) FACT(!"the stream ends without an error");
}

/* ---- ranks ---- */

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

void meet(const me_t *me)
{
    int round = atomic_load(&shared->round);
    if (atomic_fetch_add(&shared->arrived, 1) + 1 == me->n) {
        atomic_store(&shared->arrived, 0);
        atomic_fetch_add(&shared->round, 1);
        return;
    }
    while (atomic_load(&shared->round) == round) nap();
}

ncclUniqueId shared_id(const me_t *me)
{
    if (me->rank == 0) OK(ncclGetUniqueId(&shared->id));
    meet(me);
    ncclUniqueId id = shared->id;
    meet(me);
    return id;
}

ncclResult_t settled(ncclComm_t comm)
{
    ncclResult_t now = ncclInProgress;
    while (OK(ncclCommGetAsyncError(comm, &now)) && now == ncclInProgress) nap();
    return now;
}

bool works(const me_t *me, ncclComm_t comm, int n)
{
    float *a = floats(me, 10, 1), *b = floats(me, 10, 0);
    ncclResult_t r = ncclAllReduce(a, b, 10, ncclFloat32, ncclSum, comm, me->stream);
    if (r == ncclInProgress) r = settled(comm);
    if (!OK(r)) return false;
    sync_stream(me);
    return EQ(at(me, b, 9), n);
}

ncclConfig_t new_config(void)
{
    ncclConfig_t c;
    memset(&c, 0, sizeof c);
    c.head.size = offsetof(ncclConfig_t, launchOrderImplicit);
    c.head.magic = NCCL_API_MAGIC;
    c.head.version = 23007;
    c.blocking = c.cgaClusterSize = c.minCTAs = c.maxCTAs = c.splitShare = c.trafficClass = NCCL_CONFIG_UNDEF_INT;
    c.collnetEnable = c.CTAPolicy = c.shrinkShare = c.nvlsCTAs = c.nChannelsPerNetPeer = NCCL_CONFIG_UNDEF_INT;
    c.nvlinkCentricSched = c.graphUsageMode = c.numRmaCtx = c.maxP2pPeers = NCCL_CONFIG_UNDEF_INT;
    c.graphStreamOrdering = NCCL_CONFIG_UNDEF_INT;
    return c;
}

typedef struct {
    const case_t *test;
    int rank;
} start_t;

static void *run_rank(void *arg)
{
    const start_t *s = arg;
    me_t me = {.rank = s->rank, .n = nranks};
    use_device(device_of(me.rank));
    if (s->test->who == FIRST) {
        if (me.rank == 0) s->test->fn(&me);
        return NULL;
    }
    ncclUniqueId id = shared_id(&me);
    if (!OK(ncclCommInitRank(&me.comm, me.n, id, me.rank))) return NULL;
    me.stream = new_stream(device_of(me.rank));
    s->test->fn(&me);
    if (me.comm) OK(ncclCommDestroy(me.comm));
    return NULL;
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void run_case(const case_t *test)
{
    double began = now_s();
    start_t starts[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    pid_t pids[RANKS_MAX];
    int status;
    if (test->who == PROCESSES && !processes) return;
    running = test->name;
    atomic_store(&shared->arrived, 0);
    fflush(stdout);
    for (int i = 0; i < nranks; i++) {
        starts[i] = (start_t){test, i};
        if (!processes) {
            if (pthread_create(&threads[i], NULL, run_rank, &starts[i])) abort();
        } else if ((pids[i] = fork()) == 0) {
            char host[20];
            snprintf(host, sizeof host, "host%d", i * hosts / nranks);
            if (hosts > 1) setenv("KOLO_HOST_ID", host, 1);
            if (gpu) load_driver();
            run_rank(&starts[i]);
            exit(0); /* as programs do */
        }
    }
    for (int i = 0; i < nranks; i++)
        if (!processes)
            pthread_join(threads[i], NULL);
        else if (waitpid(pids[i], &status, 0) == pids[i] && status != 0 && test->who != PROCESSES)
            fact(__FILE__, __LINE__, "the process ends by itself", false);
    take_back();
    printf("%s: %d wrong so far, %.2f s\n", test->name, atomic_load(&shared->failures), now_s() - began);
}

int run_cases(int argc, char **argv, const case_t *const *lists)
{
    const char *only = NULL;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--processes")) processes = true;
        if (!strcmp(argv[i], "--gpu")) gpu = true;
        if (!strcmp(argv[i], "--ranks") && i + 1 < argc) nranks = atoi(argv[++i]);
        if (!strcmp(argv[i], "--hosts") && i + 1 < argc) hosts = atoi(argv[++i]);
        if (!strcmp(argv[i], "--only") && i + 1 < argc) only = argv[++i];
    }
    if (hosts > 1) processes = true;
    if (!gpu) setenv("KOLO_NCCL_CPU", "1", 1);
    if (gpu && !processes) load_driver(); /* a child of fork() starts its own */
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || nranks < 2 || nranks > RANKS_MAX) return 2;
    for (; *lists; lists++)
        for (const case_t *c = *lists; c->name; c++)
            if (!only || !strcmp(only, c->name)) run_case(c);
    printf("%d wrong\n", atomic_load(&shared->failures));
    return atomic_load(&shared->failures) ? 1 : 0;
}
