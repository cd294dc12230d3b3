/* SPDX-License-Identifier: Apache-2.0
 *
 * The fake driver's modules and launches. A module is any image; its kernels are those of kernels.cc, by name. Each
 * block of a launch is a thread, all of one launch at the same time, because blocks wait for those of other ranks;
 * a launch that a device could not hold at once is refused, as a cooperative one would be.
 */
#include "fake.h"
#include "memory.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SM_THREADS 2048

struct CUmod_st {
    struct CUmod_st *next;
    struct CUctx_st *ctx;
    struct CUfunc_st *functions;
};
struct CUfunc_st {
    struct CUfunc_st *next;
    struct CUmod_st *module;
    const fake_kernel_t *kernel;
};

struct fake_launch {
    struct fake_launch *next;
    const fake_kernel_t *kernel;
    unsigned grid, threads;
    bool early, placed; /* placed: it has room on the device */
    int device;
    unsigned taken, running; /* blocks */
    size_t room;             /* of bytes */
    pthread_cond_t over;
    void *params[FAKE_MAX_PARAMS];
    _Alignas(16) unsigned char bytes[];
};

static struct CUmod_st *modules;

/* ---- the threads that run blocks ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    fake_launch_t *launches; /* with blocks that nobody has taken */
    unsigned idle;           /* threads that no launch counts on */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};

/* ---- room on the devices ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    unsigned taken[FAKE_MAX_DEVICES]; /* blocks */
} room = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};

static bool place_locked(fake_launch_t *l, int device)
{
    if (!l->placed && room.taken[device] + l->grid > 2u * (unsigned)fake_multiprocessors()) return false;
    if (!l->placed) room.taken[device] += l->grid;
    l->device = device;
    l->placed = true;
    return true;
}

void fake_launch_take(fake_launch_t *l, fake_launch_t *next, int device)
{
    if (!fake_resident() || !l) return;
    pthread_mutex_lock(&room.lock);
    while (!place_locked(l, device)) pthread_cond_wait(&room.more, &room.lock);
    if (next && next->early) (void)place_locked(next, device);
    pthread_mutex_unlock(&room.lock);
}

static void give_room(fake_launch_t *l)
{
    if (!l->placed) return;
    pthread_mutex_lock(&room.lock);
    room.taken[l->device] -= l->grid;
    l->placed = false;
    pthread_cond_broadcast(&room.more);
    pthread_mutex_unlock(&room.lock);
}

/* ---- blocks ---- */

static void run_block(fake_launch_t *l, unsigned index)
{
    fake_jitter();
    fake_block_enter(index, l->grid, l->threads);
    l->kernel->block(l->params);
}

static void *work(void *arg)
{
    (void)arg;
    fake_become_device();
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (!pool.launches) pthread_cond_wait(&pool.more, &pool.lock);
        fake_launch_t *l = pool.launches;
        unsigned index = l->taken++;
        if (l->taken == l->grid) pool.launches = l->next;
        pthread_mutex_unlock(&pool.lock);
        run_block(l, index);
        pthread_mutex_lock(&pool.lock);
        pool.idle++;
        if (--l->running == 0) pthread_cond_signal(&l->over);
    }
    return NULL;
}

static void add_threads(unsigned n)
{
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, (size_t)1 << 20);
    for (; n; n--)
        if (pthread_create(&thread, &attr, work, NULL)) fake_abort("no thread for a block");
    pthread_attr_destroy(&attr);
}

/* On the stream's thread, which is the first block itself. */
void fake_launch_run(fake_launch_t *l)
{
    unsigned others = l->grid - 1;
    l->taken = 1;
    l->running = others;
    if (others) {
        pthread_mutex_lock(&pool.lock);
        unsigned missing = others > pool.idle ? others - pool.idle : 0;
        pool.idle -= others - missing;
        l->next = pool.launches;
        pool.launches = l;
        pthread_cond_broadcast(&pool.more);
        pthread_mutex_unlock(&pool.lock);
        add_threads(missing);
    }
    run_block(l, 0);
    pthread_mutex_lock(&pool.lock);
    while (l->running) pthread_cond_wait(&l->over, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
    give_room(l);
}

void fake_launch_free(fake_launch_t *l)
{
    pthread_cond_destroy(&l->over);
    free(l);
}

fake_launch_t *fake_launch_again(const fake_launch_t *launch)
{
    fake_launch_t *l = calloc(1, sizeof *l + launch->room);
    if (!l) abort();
    memcpy(l, launch, sizeof *l + launch->room);
    l->placed = false;
    pthread_cond_init(&l->over, NULL);
    for (int i = 0; i < l->kernel->count; i++)
        l->params[i] = l->bytes + ((unsigned char *)launch->params[i] - launch->bytes);
    return l;
}

/* ---- exported ---- */

kolo_cu_result_t cuModuleLoadData(kolo_cu_module_t *module, const void *image)
{
    FAKE_CONTEXT(ctx);
    if (!image) return fake_wrong(FAKE_INVALID_VALUE, "cuModuleLoadData without an image");
    struct CUmod_st *m = calloc(1, sizeof *m);
    if (!m) abort();
    m->ctx = ctx;
    fake_await_and_stop(ctx, false); /* as the real one, which has to place it */
    pthread_mutex_lock(&fake_lock);
    m->next = modules;
    modules = m;
    pthread_mutex_unlock(&fake_lock);
    *module = m;
    return KOLO_CU_SUCCESS;
}

static struct CUmod_st **module_locked(const struct CUmod_st *module)
{
    struct CUmod_st **m = &modules;
    while (*m && *m != module) m = &(*m)->next;
    return m;
}

kolo_cu_result_t cuModuleUnload(kolo_cu_module_t module)
{
    FAKE_CONTEXT(ctx);
    if (fake_capture_forbids(__func__)) return FAKE_CAPTURE_UNSUPPORTED;
    fake_await_all(ctx); /* and stops nobody, of all calls that wait */
    pthread_mutex_lock(&fake_lock);
    struct CUmod_st **at = module_locked(module);
    bool there = *at != NULL;
    if (there) *at = module->next;
    for (struct CUfunc_st *f = there ? module->functions : NULL, *next; f; f = next) {
        next = f->next;
        free(f);
    }
    if (there) free(module);
    pthread_mutex_unlock(&fake_lock);
    return there ? KOLO_CU_SUCCESS : fake_wrong(FAKE_INVALID_HANDLE, "%p is no module", (void *)module);
}

kolo_cu_result_t cuModuleGetFunction(kolo_cu_func_t *function, kolo_cu_module_t module, const char *name)
{
    FAKE_CONTEXT(ctx);
    (void)ctx;
    const fake_kernel_t *kernel = fake_kernels;
    while (kernel->name && strcmp(kernel->name, name) != 0) kernel++;
    if (!kernel->name) return fake_wrong(FAKE_NOT_FOUND, "there is no kernel \"%s\"", name);
    struct CUfunc_st *f = calloc(1, sizeof *f);
    if (!f) abort();
    pthread_mutex_lock(&fake_lock);
    bool there = *module_locked(module) != NULL;
    if (there) {
        *f = (struct CUfunc_st){module->functions, module, kernel};
        module->functions = f;
    }
    pthread_mutex_unlock(&fake_lock);
    if (!there) {
        free(f);
        return fake_wrong(FAKE_INVALID_HANDLE, "%p is no module", (void *)module);
    }
    *function = f;
    return KOLO_CU_SUCCESS;
}

static kolo_cu_result_t find_function(const struct CUfunc_st *function, const struct CUctx_st *ctx,
                                      const fake_kernel_t **kernel)
{
    kolo_cu_result_t result = FAKE_INVALID_HANDLE;
    const struct CUfunc_st *f = NULL;
    pthread_mutex_lock(&fake_lock);
    for (struct CUmod_st *m = modules; m && !f; m = m->next)
        for (f = m->functions; f && f != function;) f = f->next;
    if (!f)
        fake_wrong(0, "launch: %p is no function, or its module was unloaded", (const void *)function);
    else if (f->module->ctx != ctx)
        fake_wrong(0, "launch: the function belongs to device %d, the current context to device %d",
                   f->module->ctx->device, ctx->device);
    else
        result = KOLO_CU_SUCCESS;
    if (f) *kernel = f->kernel;
    pthread_mutex_unlock(&fake_lock);
    return result;
}

static kolo_cu_result_t launch(struct CUctx_st *ctx, const kolo_cu_launch_t *how, kolo_cu_func_t function,
                               void **params, void **extra)
{
    const fake_kernel_t *kernel = NULL;
    size_t bytes = 0;
    kolo_cu_result_t r = find_function(function, ctx, &kernel);
    if (r) return r;
    if (!how->grid_x || how->grid_y != 1 || how->grid_z != 1 || !how->block_x || how->block_x > 1024 ||
        how->block_y != 1 || how->block_z != 1 || extra || how->shared > 48 << 10 || (kernel->count && !params))
        return fake_wrong(FAKE_INVALID_VALUE,
                          "launch of %s: grid (%u,%u,%u), block (%u,%u,%u), %u bytes how->shared", kernel->name,
                          how->grid_x, how->grid_y, how->grid_z, how->block_x, how->block_y, how->block_z,
                          how->shared);
    if (how->grid_x > (unsigned)fake_multiprocessors() * (SM_THREADS / how->block_x))
        return fake_wrong(FAKE_TOO_LARGE,
                          "launch of %s: %u blocks of %u threads are not resident together on %d "
                          "multiprocessors",
                          kernel->name, how->grid_x, how->block_x, fake_multiprocessors());
    for (int i = 0; i < kernel->count; i++) bytes += (kernel->bytes[i] + 15) / 16 * 16;
    fake_launch_t *l = calloc(1, sizeof *l + bytes);
    if (!l) abort();
    l->room = bytes;
    l->kernel = kernel;
    l->grid = how->grid_x;
    l->threads = how->block_x;
    l->early = how->count > 0;
    fake_count(kernel->name);
    pthread_cond_init(&l->over, NULL);
    unsigned char *at = l->bytes;
    for (int i = 0; i < kernel->count; i++) {
        memcpy(at, params[i], kernel->bytes[i]);
        l->params[i] = at;
        at += (kernel->bytes[i] + 15) / 16 * 16;
    }
    r = fake_stream_launch(how->stream, ctx, l);
    if (r) fake_launch_free(l);
    return r;
}

void fake_go_on(const struct CUctx_st *ctx)
{
    const struct timespec nap = {0, 100000};
    while (__atomic_load_n(&ctx->stopped, __ATOMIC_ACQUIRE)) nanosleep(&nap, NULL);
}

kolo_cu_result_t cuLaunchKernel(kolo_cu_func_t function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                kolo_cu_stream_t stream, void **params, void **extra)
{
    FAKE_CONTEXT(ctx);
    fake_go_on(ctx);
    kolo_cu_launch_t how = {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, NULL, 0};
    return launch(ctx, &how, function, params, extra);
}

/* A kernel that may be launched early waits itself for the one before it; here it comes after it. */
kolo_cu_result_t cuLaunchKernelEx(const kolo_cu_launch_t *l, kolo_cu_func_t function, void **params, void **extra)
{
    FAKE_CONTEXT(ctx);
    fake_go_on(ctx);
    for (unsigned i = 0; i < l->count; i++)
        if (l->attributes[i].id != KOLO_CU_LAUNCH_EARLY || l->attributes[i].value.flag != 1)
            return fake_wrong(FAKE_INVALID_VALUE, "launch attribute %d is not known here", l->attributes[i].id);
    return launch(ctx, l, function, params, extra);
}

kolo_cu_result_t cuFuncGetAttribute(int *value, int attribute, kolo_cu_func_t function)
{
    const fake_kernel_t *kernel = NULL;
    FAKE_CONTEXT(ctx);
    kolo_cu_result_t r = find_function(function, ctx, &kernel);
    if (r) return r;
    if (attribute != KOLO_CU_FUNC_PTX_VERSION)
        return fake_wrong(FAKE_INVALID_VALUE, "function attribute %d is not known here", attribute);
    *value = 90;
    return KOLO_CU_SUCCESS;
}
