/* SPDX-License-Identifier: Apache-2.0
 *
 * A job of two ranks that needs nothing but libc and the file it is given: old_system /path/of/libnccl.so.2. For
 * systems on which nothing of this project can be built; tests/nccl/old_system_test.py runs it there.
 */
#include "nccl/abi.h"

#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COUNT 100000

typedef struct {
    _Atomic int ready;
    ncclUniqueId id;
} shared_t;

static void *function(void *library, const char *name)
{
    void *p = dlsym(library, name);
    if (p) return p;
    printf("there is no %s\n", name);
    exit(1);
}

static int rank_main(const char *path, shared_t *shared, int rank)
{
    void *lib = dlopen(path, RTLD_NOW);
    if (!lib) {
        printf("rank %d: %s\n", rank, dlerror());
        return 1;
    }
    __typeof(ncclGetUniqueId) *get_id = (__typeof(get_id))function(lib, "ncclGetUniqueId");
    __typeof(ncclCommInitRank) *init = (__typeof(init))function(lib, "ncclCommInitRank");
    __typeof(ncclAllReduce) *all_reduce = (__typeof(all_reduce))function(lib, "ncclAllReduce");
    __typeof(ncclCommDestroy) *destroy = (__typeof(destroy))function(lib, "ncclCommDestroy");
    __typeof(ncclGetLastError) *last_error = (__typeof(last_error))function(lib, "ncclGetLastError");
    float *a = malloc(COUNT * sizeof *a);
    ncclComm_t comm;
    if (!a) return 1;
    for (int i = 0; i < COUNT; i++) a[i] = (float)(rank + 1);
    if (rank == 0) {
        if (get_id(&shared->id) != ncclSuccess) goto failed;
        shared->ready = 1;
    }
    while (!shared->ready) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (init(&comm, 2, shared->id, rank) != ncclSuccess) goto failed;
    if (all_reduce(a, a, COUNT, ncclFloat32, ncclSum, comm, NULL) != ncclSuccess) goto failed;
    if (destroy(comm) != ncclSuccess) goto failed;
    for (int i = 0; i < COUNT; i++)
        if (a[i] != 3) {
            printf("rank %d: element %d is %g, not 3\n", rank, i, (double)a[i]);
            return 1;
        }
    free(a);
    return 0;
failed:
    printf("rank %d: %s\n", rank, last_error(NULL));
    return 1;
}

int main(int argc, char **argv)
{
    int wrong = 0, status;
    shared_t *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (argc != 2 || shared == MAP_FAILED) return 2;
    setenv("KOLO_NCCL_CPU", "1", 1);
    for (int rank = 0; rank < 2; rank++)
        if (fork() == 0) {
            int result = rank_main(argv[1], shared, rank);
            fflush(stdout);
            _exit(result);
        }
    while (wait(&status) > 0) wrong += status != 0;
    printf("glibc %s: the sum of 2 ranks is %s\n", gnu_get_libc_version(), wrong ? "WRONG" : "right");
    return wrong != 0;
}
