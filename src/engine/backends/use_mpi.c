/* SPDX-License-Identifier: Apache-2.0
 *
 * Finding MPI, and its communicators. See use_mpi.h.
 */
#include "engine/backends/use_mpi.h"

#include "exec/host/reduce.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { AUTO, OPENMPI, MPICH }; /* KOLO_MPI */
static const char *const module_files[] = {
    [AUTO] = NULL, [OPENMPI] = "kolo-mpi-openmpi.so", [MPICH] = "kolo-mpi-mpich.so"};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
int64_t kolo_mpi_which, kolo_mpi_chunk;
const char *kolo_mpi_modules;
static const kolo_mpi_api_t *api; /* once it is loaded it stays */

/* ---- the module ---- */

static kolo_status_t path_of(int which, char *path, size_t bytes)
{
    Dl_info info;
    const char *slash = NULL;
    if (kolo_mpi_modules) {
        snprintf(path, bytes, "%s/%s", kolo_mpi_modules, module_files[which]);
        return KOLO_OK;
    }
    if (dladdr(&api, &info) && info.dli_fname) slash = strrchr(info.dli_fname, '/');
    if (!slash) return kolo_fail(KOLO_ERR_SYSTEM, "cannot find out where libkolo lies; set KOLO_MPI_MODULES");
    snprintf(path, bytes, "%.*s/kolo/%s", (int)(slash - info.dli_fname), info.dli_fname, module_files[which]);
    return KOLO_OK;
}

static bool is_there(int which)
{
    char path[4096];
    return path_of(which, path, sizeof path) == KOLO_OK && access(path, R_OK) == 0;
}

/* Chooses the one that the program has loaded itself, or the only one that there is a module for. Two MPIs in one
 * process would take each other's symbols. */
static kolo_status_t choose(int *which)
{
    int loaded = dlsym(RTLD_DEFAULT, "ompi_mpi_comm_world") ? OPENMPI
                 : dlsym(RTLD_DEFAULT, "MPI_Init")          ? MPICH
                                                            : AUTO;
    int asked = (int)kolo_mpi_which;
    if (loaded && asked && loaded != asked)
        return kolo_fail(KOLO_ERR_UNSUPPORTED, "KOLO_MPI wants %s, but the program has loaded another MPI",
                         module_files[asked]);
    *which = loaded ? loaded : asked;
    if (*which != AUTO) return KOLO_OK;
    bool open = is_there(OPENMPI), mpich = is_there(MPICH);
    if (open && mpich)
        return kolo_fail(KOLO_ERR_UNSUPPORTED,
                         "there are modules for Open MPI and for MPICH and the program has loaded neither MPI: set "
                         "KOLO_MPI to openmpi or mpich");
    *which = mpich ? MPICH : OPENMPI;
    return KOLO_OK;
}

static kolo_status_t load(void)
{
    char path[4096];
    int which = AUTO;
    if (api) return KOLO_OK;
    KOLO_TRY(choose(&which));
    KOLO_TRY(path_of(which, path, sizeof path));
    /* For all: Open MPI loads plugins that need its symbols. */
    void *module = dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    if (!module)
        return kolo_fail(KOLO_ERR_UNSUPPORTED,
                         "the MPI module cannot be loaded (was libkolo built with this MPI?): %s", dlerror());
    const kolo_mpi_api_t *found = dlsym(module, KOLO_MPI_SYMBOL);
    if (!found || found->version != KOLO_MPI_API_VERSION)
        return kolo_fail(KOLO_ERR_UNSUPPORTED, "%s is the module of another version of libkolo", path);
    api = found;
    return KOLO_OK;
}

static void reduce(kolo_type_t type, kolo_op_t op, const void *in, void *inout, size_t count)
{
    kolo_reducer_t reducer;
    if (kolo_reducer_init(&reducer, type, op, 1) == KOLO_OK) kolo_reduce_pair(&reducer, inout, in, inout, count, 0);
}

static kolo_status_t start(int *rank)
{
    char why[KOLO_MPI_WHY_BYTES] = "";
    KOLO_TRY(load());
    if (api->start(reduce, rank, why)) return kolo_fail(KOLO_ERR_UNSUPPORTED, "%s: %s", api->library, why);
    return KOLO_OK;
}

/* ---- which of MPI's ranks are ours ---- */

static kolo_status_t check_ranks(const struct kolo_tensor_engine *e)
{
    for (int r = 0; r < e->size; r++) {
        if (e->mpi_ranks[r] < 0) return kolo_fail(KOLO_ERR_UNSUPPORTED, "rank %d has no MPI, and says why", r);
        for (int q = 0; q < r; q++)
            if (e->mpi_ranks[q] == e->mpi_ranks[r])
                return kolo_fail(
                    KOLO_ERR_UNSUPPORTED,
                    "ranks %d and %d are both rank %d of MPI_COMM_WORLD: each must be a process of its own "
                    "that mpirun has started",
                    q, r, e->mpi_ranks[r]);
    }
    return KOLO_OK;
}

static kolo_status_t find_ranks(struct kolo_tensor_engine *e)
{
    char text[KOLO_ERROR_TEXT_BYTES];
    int rank = -1;
    if (e->mpi_ranks) return check_ranks(e);
    pthread_mutex_lock(&lock);
    kolo_status_t status = start(&rank);
    pthread_mutex_unlock(&lock);
    snprintf(text, sizeof text, "%s", kolo_error_text());
    if (status != KOLO_OK) rank = -1;
    e->mpi_ranks = malloc((size_t)e->size * sizeof *e->mpi_ranks);
    if (!e->mpi_ranks) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine_init: out of memory for %d ranks", e->size);
    KOLO_TRY(kolo_all_gather(&rank, e->mpi_ranks, 1, KOLO_INT32, e->all->comm, NULL));
    return status == KOLO_OK ? check_ranks(e) : kolo_fail(status, "%s", text);
}

/* Leaves nothing where it fails: who has not opened does not close. */
kolo_status_t kolo_mpi_open(struct kolo_tensor_engine *e)
{
    kolo_status_t status = find_ranks(e);
    if (status == KOLO_OK) return KOLO_OK;
    free(e->mpi_ranks);
    e->mpi_ranks = NULL;
    return status;
}

void kolo_mpi_close(struct kolo_tensor_engine *e)
{
    if (api && e->failure != KOLO_OK) api->spoil(0); /* a rank may be lost that MPI would wait for */
    free(e->mpi_ranks);
    e->mpi_ranks = NULL;
}

kolo_status_t kolo_mpi_open_backend(struct kolo_tensor_engine *e, void **state)
{
    (void)state;
    return kolo_mpi_open(e);
}

void kolo_mpi_close_backend(struct kolo_tensor_engine *e, void *state)
{
    (void)state;
    kolo_mpi_close(e);
}

/* ---- communicators ---- */

static kolo_status_t wrap(kolo_set_t *s, kolo_mpi_comm_t *comm, int rank, kolo_mpi_t **mpi)
{
    kolo_mpi_t *m = calloc(1, sizeof *m);
    int size = api->size(comm);
    if (m) m->tables = calloc((size_t)size, 4 * sizeof *m->tables);
    if (!m || !m->tables) {
        free(m);
        api->drop(comm, 0);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %d ranks of MPI", size);
    }
    *m = (kolo_mpi_t){.set = s, .api = api, .comm = comm, .rank = rank, .size = size, .tables = m->tables};
    *mpi = m;
    return KOLO_OK;
}

/* Makes a communicator of some ranks; members NULL: all of the set. */
kolo_status_t kolo_mpi_meet_some(kolo_set_t *s, const int *members, int count, int rank, int purpose,
                                 kolo_mpi_t **mpi)
{
    char why[KOLO_MPI_WHY_BYTES] = "";
    kolo_mpi_comm_t *comm = NULL;
    int *ranks = malloc((size_t)count * sizeof *ranks);
    if (!ranks) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for %d ranks", count);
    for (int r = 0; r < count; r++) ranks[r] = s->engine->mpi_ranks[s->ranks[members ? members[r] : r]];
    int failed = api->make(ranks, count, (s->id * KOLO_MPI_PURPOSES + purpose) & 0x7fff, &comm, why);
    free(ranks);
    if (failed)
        return kolo_fail(KOLO_ERR_SYSTEM, "engine: process set %d has no communicator of %s: %s", s->id,
                         api->library, why);
    return wrap(s, comm, rank, mpi);
}

kolo_status_t kolo_mpi_meet(kolo_set_t *s, int purpose, kolo_mpi_t **mpi)
{
    return kolo_mpi_meet_some(s, NULL, s->size, s->rank, purpose, mpi);
}

void kolo_mpi_leave(void *mpi, bool abort)
{
    kolo_mpi_t *m = mpi;
    if (!m || abort || m->dirty) return; /* kolo_mpi_free() then leaves it to MPI */
    api->drop(m->comm, 1);
    m->comm = NULL;
}

void kolo_mpi_free(void *mpi)
{
    kolo_mpi_t *m = mpi;
    if (!m) return;
    if (m->comm) api->drop(m->comm, 0);
    free(m->tables);
    free(m);
}
