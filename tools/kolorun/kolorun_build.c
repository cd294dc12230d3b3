/* SPDX-License-Identifier: Apache-2.0
 *
 * kolorun --check-build: what is compiled in, and which libraries and programs that Kolo can work with are found on
 * this machine. [X] is there, [ ] is not; nothing is demanded.
 */
#include "kolorun_options.h"
#include "store/store.h"

#include <kolo/kolo.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef KOLO_HAVE_HWLOC
#define WITH_HWLOC 1
#else
#define WITH_HWLOC 0
#endif
#ifdef KOLO_HAVE_SODIUM
#define WITH_SODIUM 1
#else
#define WITH_SODIUM 0
#endif
#ifdef KOLO_HAVE_PROTOBUF
#define WITH_PROTOBUF 1
#else
#define WITH_PROTOBUF 0
#endif

static void line(bool there, const char *name, const char *what)
{
    printf("    [%c] %-14s %s\n", there ? 'X' : ' ', name, what);
}

static bool library(const char *name)
{
    void *handle = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (handle != NULL) dlclose(handle);
    return handle != NULL;
}

static bool program(const char *name)
{
    char path[4096];
    const char *dirs = getenv("PATH");
    while (dirs != NULL && *dirs) {
        size_t n = strcspn(dirs, ":");
        int bytes = snprintf(path, sizeof path, "%.*s/%s", (int)n, dirs, name);
        if (bytes > 0 && (size_t)bytes < sizeof path && access(path, X_OK) == 0) return true;
        dirs += n + (dirs[n] == ':');
    }
    return false;
}

int kolorun_check_build(void)
{
    printf("Kolo %d.%d.%d\n", KOLO_VERSION_MAJOR, KOLO_VERSION_MINOR, KOLO_VERSION_PATCH);
    printf("compiled in:\n");
    line(WITH_HWLOC, "hwloc", "machine topology");
    line(WITH_SODIUM, "libsodium", "authenticated connections (without: this host only)");
    line(WITH_PROTOBUF, "protobuf-c", "the engine's messages (without: engines of one rank)");
    line(kolo_store_server_available(), "libmicrohttpd", "the store of kolorun (--store)");
    printf("libraries found:\n");
    line(library("libmpi.so.40") || library("libmpi.so"), "Open MPI", "libmpi");
    line(library("libmpich.so.12"), "MPICH", "libmpich");
    line(library("libnccl.so.2"), "NCCL", "libnccl");
    line(library("libcuda.so.1"), "CUDA driver", "libcuda");
    line(library("libibverbs.so.1"), "RDMA", "libibverbs");
    line(library("libz.so.1"), "zlib", "compressed timelines");
    printf("launchers found:\n");
    line(program("ssh"), "ssh", "kolorun on other hosts");
    line(program("mpirun") || program("mpirun.openmpi") || program("mpirun.mpich"), "mpirun",
         "ranks find each other");
    line(program("srun"), "srun", "ranks find each other");
    line(program("torchrun"), "torchrun", "ranks find each other");
    return 0;
}
