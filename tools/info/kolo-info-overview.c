/* SPDX-License-Identifier: Apache-2.0
 *
 * kolo-info without options: what was built, what this machine allows.
 */
#include "base/clock.h"
#include "base/wait.h"
#include "engine/engine.h"
#include "engine/tuner/numeric.h"
#include "exec/host/reduce.h"
#include "gpu/cuda/cuda.h"
#include "kolo-info.h"
#include "remote/net.h"
#include "topo/topo.h"
#include "wire/mapped.h"

#if defined(KOLO_HAVE_HWLOC)
#include <hwloc.h>
#endif
#include <inttypes.h>
#if defined(KOLO_HAVE_SODIUM)
#include <sodium.h>
#endif
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#ifndef __has_feature
#define __has_feature(x) 0
#endif

/* Loads what tuning needs, as rank 0 of a job does. */
static void print_autotune(void)
{
    kolo_numeric_t *numeric;
    kolo_engine_config_t config;
    if (kolo_numeric_open(&numeric) != KOLO_OK) {
        printf("  autotune     out: %s\n", kolo_error_text());
        return;
    }
    kolo_numeric_close(numeric);
    bool on = kolo_engine_config_fill(NULL, &config) == KOLO_OK && config.autotune == 1;
    printf("  autotune     LAPACKE and NLopt in: %s\n",
           on ? "engines tune themselves (KOLO_AUTOTUNE=1)" : "off, KOLO_AUTOTUNE=1 lets engines tune themselves");
}

static void print_compiler(void)
{
    const char *sanitizers = "none";
#if defined(__clang__)
    printf("  compiler     clang %d.%d.%d", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
    printf("  compiler     gcc %d.%d.%d", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
#if defined(__OPTIMIZE__)
    printf(", optimized\n");
#else
    printf(", not optimized: timings mean nothing\n");
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
    sanitizers = "address: slow, timings mean nothing";
#elif defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
    sanitizers = "thread: slow, timings mean nothing";
#elif defined(KOLO_SANITIZED)
    sanitizers = "some: slow, timings mean nothing";
#endif
    printf("  sanitizers   %s\n", sanitizers);
}

/* What the build found: the version, "" if it is known at run time only, NULL without the library. */
static const char *hwloc_found(void)
{
#if defined(KOLO_HAVE_HWLOC)
    static char version[16];
    unsigned v = hwloc_get_api_version();
    snprintf(version, sizeof version, "%u.%u ", v >> 16, v >> 8 & 255);
    return version;
#else
    return NULL;
#endif
}
static const char *sodium_found(void)
{
#if defined(KOLO_HAVE_SODIUM)
    static char version[32];
    snprintf(version, sizeof version, "%s ", sodium_version_string());
    return version;
#else
    return NULL;
#endif
}
#if defined(KOLO_HAVE_PROTOBUF)
#define PROTOBUF ""
#else
#define PROTOBUF NULL
#endif
#if defined(KOLO_HAVE_MICROHTTPD)
#define MICROHTTPD ""
#else
#define MICROHTTPD NULL
#endif
#if defined(KOLO_HAVE_VERBS)
#define VERBS ""
#else
#define VERBS NULL
#endif
#if defined(KOLO_HAVE_ZLIB)
#define ZLIB ""
#else
#define ZLIB NULL
#endif

static void print_libraries(void)
{
    const struct {
        const char *name, *found, *with, *without;
    } rows[] = {
        {"hwloc", hwloc_found(), "the topology of this machine is read (kolo-info --topo)",
         "this machine counts as one flat node; KOLO_TOPO_FILE works, KOLO_TOPO_DUMP does not"},
        {"libsodium", sodium_found(), "connections prove that they know the job's secret",
         "nothing can be proved, so ranks connect on the loopback interface only"},
        {"protobuf-c", PROTOBUF, "engines of several ranks", "the tensor engine works with one rank only"},
        {"microhttpd", MICROHTTPD, "kolorun can keep a store for the ranks (--store)", "kolorun has no --store"},
        {"MPI", KOLO_MPI_MODULES[0] ? "modules for " KOLO_MPI_MODULES " " : NULL, "KOLO_ENGINE_BACKENDS=mpi",
         "the engine has no backend mpi"},
        {"libibverbs", VERBS, "loaded when a job looks for RDMA devices",
         "the net wire has no RDMA, hosts use tcp"},
        {"zlib", ZLIB, "loaded for a timeline whose name ends in .gz", "timelines cannot be compressed"},
        {"CUDA", kolo_cuda_built() ? "" : NULL,
         "kernels for GPUs; the driver is loaded by the first GPU communicator",
         "built without nvcc, GPU communicators are refused"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        printf("  %-12s %s%s: %s\n", rows[i].name, rows[i].found ? rows[i].found : "", rows[i].found ? "in" : "out",
               rows[i].found ? rows[i].with : rows[i].without);
}

static void print_build(void)
{
    printf("Kolo %d.%d.%d\n\nbuild\n", KOLO_VERSION_MAJOR, KOLO_VERSION_MINOR, KOLO_VERSION_PATCH);
    print_compiler();
    print_libraries();
    print_autotune();
}

static void print_net_devices(void)
{
    const char *why;
    bool demanded;
    const kolo_net_ops_t *net = kolo_net_provider(&why, &demanded);
    if (!net) {
        printf("  net has no device here: %s\n", why);
        return;
    }
    for (int i = 0, n = net->count(&why); i < n; i++) {
        kolo_net_device_t device;
        net->properties(i, &device);
        printf("  net device %s by %s, %.0f Gb/s\n", device.name, net->name, device.gbps * 8);
    }
}

static void print_wires(void)
{
    printf("\nwires, the first that connects is taken\n");
    for (int i = 0; kolo_wires[i]; i++) {
        bool on_shm = kolo_wires[i]->fallback == &kolo_wire_shm; /* its queues are those of shm */
        printf("  %-6s %s%s\n", kolo_wires[i]->name, kolo_wires[i]->what,
               kolo_wire_disabled(kolo_wires[i])              ? " (disabled by parameter)"
               : on_shm && kolo_wire_disabled(&kolo_wire_shm) ? " (disabled with shm, whose queues it needs)"
                                                              : "");
    }
    print_net_devices();
    int scope = -1;
    FILE *file = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
    if (file && fscanf(file, "%d", &scope) != 1) scope = -1;
    if (file) fclose(file);
    if (scope > 0)
        printf("  cma is restricted here: kernel.yama.ptrace_scope is %d; with 1 descendants of KOLO_CMA_PTRACER's "
               "choice copy from each other, with 0 all processes of one user do\n",
               scope);
}

static void print_limit(const char *what, int resource, bool bytes, const char *note)
{
    struct rlimit limit;
    if (getrlimit(resource, &limit) != 0) return;
    printf("  %-12s ", what);
    const rlim_t both[] = {limit.rlim_cur, limit.rlim_max};
    for (int i = 0; i < 2; i++) {
        if (i) printf(", at most ");
        if (both[i] == RLIM_INFINITY)
            printf("unlimited");
        else if (bytes)
            printf("%" PRIu64 " KiB", (uint64_t)both[i] >> 10);
        else
            printf("%" PRIu64, (uint64_t)both[i]);
    }
    printf("%s\n", note);
}

static void print_limits(void)
{
    int64_t page = sysconf(_SC_PAGESIZE), pages = sysconf(_SC_PHYS_PAGES);
    printf("\nlimits of this process\n");
    print_limit("descriptors", RLIMIT_NOFILE, false, " (raised to that when a job needs it)");
    print_limit("memlock", RLIMIT_MEMLOCK, true, " (only memory for network cards is locked)");
    printf("  %-12s %d usable of %ld online, reductions use %s\n", "cores", kolo_cores(),
           sysconf(_SC_NPROCESSORS_ONLN), kolo_reduce_isa());
    printf("  %-12s %" PRId64 " MiB in pages of %" PRId64 " bytes\n", "memory", pages * (page >> 10) >> 10, page);
}

static int print_machine(void)
{
    kolo_topo_t topo;
    int count[KOLO_TOPO_KIND_COUNT] = {0};
    if (kolo_topo_load(&topo) != KOLO_OK) {
        fprintf(stderr, "kolo-info: %s\n", kolo_error_text());
        return INFO_FAILED;
    }
    for (int i = 0; i < topo.count; i++) count[topo.nodes[i].kind]++;
    printf("\nmachine (drawn by kolo-info --topo)\n  %s", topo.nodes[0].name);
    for (int kind = KOLO_TOPO_SOCKET; kind < KOLO_TOPO_KIND_COUNT; kind++)
        if (count[kind]) printf(", %d %s", count[kind], kolo_topo_kind_name((kolo_topo_kind_t)kind));
    printf("\n");
    kolo_topo_fini(&topo);
    return INFO_OK;
}

/* Those that are not at their defaults, which is what one asks about first. Launchers' own variables and HOME are
 * none of ours. */
static void print_parameters(void)
{
    char value[4200];
    size_t ntables, all = 0, set = 0;
    const kolo_param_table_t *const *tables = kolo_info_tables(&ntables);
    printf("\nparameters set in the environment (kolo-info --params has all)\n");
    for (size_t t = 0; t < ntables; t++) {
        for (size_t i = 0; i < tables[t]->count; i++) {
            const kolo_param_t *row = &tables[t]->rows[i];
            if (strncmp(row->key, "KOLO_", 5) != 0) continue;
            all++;
            if (!kolo_param_in_environment(row)) continue;
            kolo_param_print(row, value, sizeof value);
            printf("  %s = %s\n", row->key, value);
            set++;
        }
    }
    printf("  %zu of %zu\n", set, all);
}

int kolo_info_overview(void)
{
    print_build();
    print_wires();
    int status = print_machine();
    print_parameters();
    print_limits();
    printf("\nmemory and descriptors of a communicator per rank: kolo-info --memory RANKS\n");
    return status;
}
