/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL itself over Kolo's network plug-in: two processes with a GPU each, which reach each other by nothing else,
 * all_reduce and exchange buffers of many sizes, and every value is compared. Both libraries and the driver are
 * loaded at run time; where one of them or the second GPU is missing the test is skipped.
 *
 *     nccl PLUGIN FOLDER    (as for NCCL_NET_PLUGIN, and where its object lies)
 *
 * NCCL_LIBRARY: path of libnccl.so.2, if the loader does not find it.
 */
#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SKIPPED   77
#define MOST      ((size_t)64 << 20)
#define FLOAT32   7
#define SUM       0
#define NCCL_WORD 128

typedef struct {
    char bytes[NCCL_WORD];
} nccl_id_t;
typedef unsigned long long address_t;

static struct {
    int (*init)(unsigned);
    int (*device_count)(int *n);
    int (*retain)(void **context, int device);
    int (*set_current)(void *context);
    int (*alloc)(address_t *at, size_t bytes);
    int (*to_device)(address_t to, const void *from, size_t bytes);
    int (*to_host)(void *to, address_t from, size_t bytes);
    int (*synchronize)(void);
} cuda;
static struct {
    int (*get_id)(nccl_id_t *id);
    int (*init_rank)(void **comm, int n, nccl_id_t id, int rank);
    int (*all_reduce)(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream);
    int (*send)(const void *from, size_t count, int type, int peer, void *comm, void *stream);
    int (*recv)(void *to, size_t count, int type, int peer, void *comm, void *stream);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*destroy)(void *comm);
    const char *(*last_error)(void *comm);
} nccl;

static struct {
    _Atomic int ready;
    nccl_id_t id;
} * shared;

static void *find(void *library, const char *name)
{
    void *f = library ? dlsym(library, name) : NULL;
    if (f) return f;
    fprintf(stderr, "skipped: %s is not to be had: %s\n", name, dlerror());
    exit(SKIPPED);
}

static void load(void)
{
    const char *path = getenv("NCCL_LIBRARY");
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *library = dlopen(path ? path : "libnccl.so.2", RTLD_NOW);
    *(void **)&cuda.init = find(driver, "cuInit");
    *(void **)&cuda.device_count = find(driver, "cuDeviceGetCount");
    *(void **)&cuda.retain = find(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&cuda.set_current = find(driver, "cuCtxSetCurrent");
    *(void **)&cuda.alloc = find(driver, "cuMemAlloc_v2");
    *(void **)&cuda.to_device = find(driver, "cuMemcpyHtoD_v2");
    *(void **)&cuda.to_host = find(driver, "cuMemcpyDtoH_v2");
    *(void **)&cuda.synchronize = find(driver, "cuCtxSynchronize");
    *(void **)&nccl.get_id = find(library, "ncclGetUniqueId");
    *(void **)&nccl.init_rank = find(library, "ncclCommInitRank");
    *(void **)&nccl.all_reduce = find(library, "ncclAllReduce");
    *(void **)&nccl.send = find(library, "ncclSend");
    *(void **)&nccl.recv = find(library, "ncclRecv");
    *(void **)&nccl.group_start = find(library, "ncclGroupStart");
    *(void **)&nccl.group_end = find(library, "ncclGroupEnd");
    *(void **)&nccl.destroy = find(library, "ncclCommDestroy");
    *(void **)&nccl.last_error = find(library, "ncclGetLastError");
}

static void must(int result, const char *what)
{
    if (result == 0) return;
    fprintf(stderr, "%s returned %d: %s\n", what, result, nccl.last_error ? nccl.last_error(NULL) : "");
    _exit(1);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* What rank `rank` has at i: small whole numbers, so that sums are exact. */
static float value(int rank, size_t i)
{
    return (float)((i * 7 + (size_t)rank * 13) % 1021);
}

static void compare(int rank, const char *what, const float *got, size_t count, int peer)
{
    for (size_t i = 0; i < count; i++) {
        float want = peer < 0 ? value(0, i) + value(1, i) : value(peer, i);
        if (got[i] == want) continue;
        fprintf(stderr, "rank %d: %s of %zu: element %zu is %g, not %g\n", rank, what, count, i, (double)got[i],
                (double)want);
        _exit(1);
    }
}

static void run_size(int rank, void *comm, address_t from, address_t to, float *host, size_t count, int times)
{
    for (size_t i = 0; i < count; i++) host[i] = value(rank, i);
    must(cuda.to_device(from, host, count * 4), "copy to the GPU");
    double begun = now_s();
    for (int i = 0; i < times; i++)
        must(nccl.all_reduce((void *)from, (void *)to, count, FLOAT32, SUM, comm, NULL), "ncclAllReduce");
    must(cuda.synchronize(), "all_reduce");
    double us = (now_s() - begun) * 1e6 / times;
    must(cuda.to_host(host, to, count * 4), "copy from the GPU");
    compare(rank, "all_reduce", host, count, -1);
    must(nccl.group_start(), "ncclGroupStart");
    must(nccl.send((void *)from, count, FLOAT32, 1 - rank, comm, NULL), "ncclSend");
    must(nccl.recv((void *)to, count, FLOAT32, 1 - rank, comm, NULL), "ncclRecv");
    must(nccl.group_end(), "ncclGroupEnd");
    must(cuda.synchronize(), "send and receive");
    must(cuda.to_host(host, to, count * 4), "copy from the GPU");
    compare(rank, "send and receive", host, count, 1 - rank);
    if (rank == 0)
        printf("all_reduce of %zu bytes: right, %.1f us, %.2f GB/s\n", count * 4, us, (double)count * 4e-3 / us);
}

static int run_rank(int rank)
{
    void *context, *comm;
    address_t from, to;
    float *host = malloc(MOST);
    char name[32];
    snprintf(name, sizeof name, "kolo-test-%d", rank);
    setenv("NCCL_HOSTID", name, 1); /* each on a host of its own: nothing but the network joins them */
    must(cuda.init(0), "cuInit");
    must(cuda.retain(&context, rank), "cuDevicePrimaryCtxRetain");
    must(cuda.set_current(context), "cuCtxSetCurrent");
    must(cuda.alloc(&from, MOST) || cuda.alloc(&to, MOST) || !host, "memory");
    if (rank == 0) {
        must(nccl.get_id(&shared->id), "ncclGetUniqueId");
        atomic_store(&shared->ready, 1);
    }
    while (!atomic_load(&shared->ready)) sched_yield();
    must(nccl.init_rank(&comm, 2, shared->id, rank), "ncclCommInitRank");
    static const size_t counts[] = {1, 2, 255, 1024, 16384, 65537, 1 << 20, MOST / 4};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        run_size(rank, comm, from, to, host, counts[i], counts[i] > 65537 ? 5 : 20);
    must(nccl.destroy(comm), "ncclCommDestroy");
    free(host);
    return 0;
}

static void use_plugin(const char *plugin, const char *folder)
{
    char path[4096], *before = getenv("LD_LIBRARY_PATH");
    snprintf(path, sizeof path, "%s%s%s", folder, before ? ":" : "", before ? before : "");
    if (!before || strncmp(before, folder, strlen(folder)) != 0) {
        setenv("LD_LIBRARY_PATH", path, 1);
        return;
    }
    setenv("NCCL_NET_PLUGIN", plugin, 1);
    setenv("NCCL_NET", "Kolo", 1); /* this network or none */
    setenv("NCCL_P2P_DISABLE", "1", 1);
    setenv("NCCL_SHM_DISABLE", "1", 1);
}

int main(int argc, char **argv)
{
    int status, failed = 0, n = 0;
    if (argc < 3) return 2;
    use_plugin(argv[1], argv[2]);
    if (!getenv("NCCL_NET_PLUGIN")) { /* the loader reads its path when a program begins */
        execv("/proc/self/exe", argv);
        return 1;
    }
    load();
    pid_t asks = fork(); /* a process that has begun with CUDA must not fork */
    if (asks == 0) _exit(cuda.init(0) == 0 && cuda.device_count(&n) == 0 ? n : 0);
    if (waitpid(asks, &status, 0) != asks || !WIFEXITED(status) || WEXITSTATUS(status) < 2) {
        fprintf(stderr, "skipped: it needs two GPUs\n");
        return SKIPPED;
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    pid_t ranks[2];
    for (int rank = 0; rank < 2; rank++) {
        ranks[rank] = fork();
        if (ranks[rank] != 0) continue;
        int result = run_rank(rank);
        fflush(stdout);
        _exit(result);
    }
    for (int i = 0; i < 2; i++) {
        pid_t ended = wait(&status);
        if (ended > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
        failed = 1;
        for (int r = 0; r < 2; r++)
            if (ranks[r] > 0 && ranks[r] != ended) kill(ranks[r], SIGKILL);
    }
    return failed;
}
