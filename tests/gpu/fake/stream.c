/* SPDX-License-Identifier: Apache-2.0
 *
 * The fake driver's streams. A stream is a queue with a thread; each piece of work has a mark that tells when it is
 * done, and an event (event.c), a wait or the next piece holds on to marks. The legacy default stream waits for
 * the blocking streams of its context and they for it, as the driver has it.
 */
#include "stream.h"
#include "memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static struct CUstream_st *streams;
static pthread_key_t own_key; /* per-thread default streams */
static pthread_once_t own_once = PTHREAD_ONCE_INIT;

/* ---- marks; lock held ---- */

mark_t *fake_hold(mark_t *m)
{
    if (m) m->refs++;
    return m;
}

void fake_drop(mark_t *m)
{
    if (!m || --m->refs) return;
    pthread_cond_destroy(&m->over);
    free(m);
}

/* Takes over a hold. */
void fake_await(mark_t *m)
{
    if (!m) return;
    while (!m->done) pthread_cond_wait(&m->over, &fake_lock);
    fake_drop(m);
}

/* ---- the stream's thread ---- */

static void check_range(const work_t *w, uintptr_t p, int device, const char *what)
{
    bool pageable;
    pthread_mutex_lock(&fake_lock);
    bool fine = fake_usable_locked(p, w->bytes, device, &pageable, what);
    pthread_mutex_unlock(&fake_lock);
    if (!fine) fake_abort("memory was freed while a %s on it was queued", what);
}

/* Looks at the memory each time: it may not be freed while a stream waits there. */
static void await_word(const work_t *w, int device)
{
    struct timespec nap = {0, 20000};
    for (;; nanosleep(&nap, NULL)) {
        check_range(w, w->to, device, "wait for a word");
        uint32_t now = __atomic_load_n((uint32_t *)w->to, __ATOMIC_ACQUIRE); /* NOLINT: a driver's address */
        if (w->how == KOLO_CU_WAIT_EQUAL     ? now == w->word
            : w->how == KOLO_CU_WAIT_ANY_BIT ? (now & w->word) != 0
                                             : (int32_t)(now - w->word) >= 0)
            return;
    }
}

static _Atomic int held[FAKE_MAX_DEVICES]; /* streams that wait for a word */

static void await_turn(int device)
{
    struct timespec nap = {0, 200000};
    while (fake_one_queue() && atomic_load(&held[device])) nanosleep(&nap, NULL);
}

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#define SEEN(at)    __tsan_acquire((void *)(uintptr_t)(at)) /* NOLINT: to what it reads */
#define WRITTEN(at) __tsan_release((void *)(uintptr_t)(at)) /* NOLINT */
#else
#define SEEN(at)    (void)(at)
#define WRITTEN(at) (void)(at)
#endif

/* Kernels of others store and load flags in the memory that Kolo makes itself while settle.c copies these. A copy
 * engine reads and writes a word of them whole, as this does; who gets an older one, or one of a row that is half
 * written, looks again (settle.c), and what is written back is what stood there, but for flags that only the writer
 * sets. The thread sanitizer knows nothing between an atomic access and a race, so of these copies it is told the
 * order that a flag makes, and no accesses. It sees all others: those of the programs' buffers. */
__attribute__((no_sanitize("thread"))) static void copy_words(volatile uint32_t *to, const volatile uint32_t *from,
                                                              size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t word = from[i];
        SEEN(from + i);
        if (to[i] == word) continue;
        WRITTEN(to + i);
        to[i] = word;
    }
}

static bool is_of_flags(const work_t *w)
{
    pthread_mutex_lock(&fake_lock);
    bool in = fake_is_mapped_locked(w->to) && fake_is_host_locked(w->from),
         out = fake_is_mapped_locked(w->from) && fake_is_host_locked(w->to);
    pthread_mutex_unlock(&fake_lock);
    return (in || out) && (w->to | w->from | w->bytes) % sizeof(uint32_t) == 0;
}

static void copy(const work_t *w)
{
    if (is_of_flags(w))
        copy_words((uint32_t *)w->to, (const uint32_t *)w->from, w->bytes / sizeof(uint32_t)); /* NOLINT */
    else
        memmove((void *)w->to, (const void *)w->from, w->bytes); /* NOLINT: a driver's address */
}

/* Zeros are pages that nobody has touched: each new communicator clears tens of megabytes, most of which it never
 * uses. */
static void set(const work_t *w)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = (w->to + page - 1) & ~(page - 1), to = (w->to + w->bytes) & ~(page - 1);
    bool whole = w->value == 0 && from < to && madvise((void *)from, to - from, MADV_REMOVE) == 0; /* NOLINT */
    if (!whole) from = to = w->to + w->bytes;
    memset((void *)w->to, w->value, from - w->to);       /* NOLINT: a driver's address */
    memset((void *)to, w->value, w->to + w->bytes - to); /* NOLINT */
}

static void run(const work_t *w, int device)
{
    if (w->kind != WAIT) fake_jitter();
    if (w->kind == COPY) await_turn(device);
    switch (w->kind) {
    case WAIT:
        pthread_mutex_lock(&fake_lock);
        fake_await(fake_hold(w->awaited));
        pthread_mutex_unlock(&fake_lock);
        break;
    case RECORD:
    case GET:
        break;
    case SET:
        check_range(w, w->to, device, "memset");
        set(w);
        break;
    case COPY:
        check_range(w, w->to, device, "copy");
        check_range(w, w->from, device, "copy");
        copy(w);
        break;
    case LAUNCH:
        fake_launch_run(w->launch);
        break;
    case AWAIT_WORD:
        atomic_fetch_add(&held[device], 1);
        await_word(w, device);
        atomic_fetch_sub(&held[device], 1);
        break;
    case WRITE_WORD:
        check_range(w, w->to, device, "write of a word");
        __atomic_store_n((uint32_t *)w->to, w->word, __ATOMIC_RELEASE); /* NOLINT */
        break;
    case CALL:
        w->fn(w->arg);
        break;
    }
}

static void free_stream_locked(struct CUstream_st *s)
{
    for (struct CUstream_st **p = &streams; *p; p = &(*p)->next) {
        if (*p != s) continue;
        *p = s->next;
        break;
    }
    fake_drop(s->last);
    pthread_cond_destroy(&s->more);
    free(s);
}

static void *serve(void *arg)
{
    struct CUstream_st *s = arg;
    fake_become_device();
    pthread_mutex_lock(&fake_lock);
    for (;;) {
        while (!s->head && !s->destroyed) pthread_cond_wait(&s->more, &fake_lock);
        work_t *w = s->head;
        if (!w) break;
        const work_t *next = w->next; /* an event between two kernels may hold nothing up */
        while (next && next->kind == RECORD) next = next->next;
        pthread_mutex_unlock(&fake_lock);
        fake_launch_take(w->launch, next ? next->launch : NULL, s->ctx->device); /* which stay there */
        run(w, s->ctx->device);
        if (w->launch) fake_launch_free(w->launch);
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        pthread_mutex_lock(&fake_lock);
        s->head = w->next;
        if (!s->head) s->tail = &s->head;
        w->mark->done = true;
        w->mark->ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
        pthread_cond_broadcast(&w->mark->over);
        fake_drop(w->mark);
        fake_drop(w->awaited);
        free(w);
    }
    free_stream_locked(s);
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

/* Handles come again at once, as a driver's may, also while work of the stream that had one is queued. */
static struct {
    char places[4096];
    kolo_cu_stream_t spare[4096];
    size_t used, nspare;
} handles;

static kolo_cu_stream_t new_handle_locked(void)
{
    if (handles.nspare) return handles.spare[--handles.nspare];
    if (handles.used == sizeof handles.places) fake_abort("too many streams");
    return (kolo_cu_stream_t)(void *)&handles.places[handles.used++];
}

struct CUstream_st *fake_new_stream_locked(struct CUctx_st *ctx, bool blocking)
{
    static unsigned long long last_id;
    struct CUstream_st *s = calloc(1, sizeof *s);
    pthread_attr_t attr;
    pthread_t thread;
    if (!s) abort();
    s->ctx = ctx;
    s->id = ++last_id;
    s->blocking = blocking;
    s->tail = &s->head;
    pthread_cond_init(&s->more, NULL);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &attr, serve, s)) fake_abort("no thread for a stream");
    pthread_attr_destroy(&attr);
    s->next = streams;
    streams = s;
    return s;
}

/* ---- handles ---- */

static void end_own(void *arg)
{
    struct CUstream_st **own = arg;
    pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < FAKE_MAX_DEVICES; i++) {
        if (!own[i]) continue;
        own[i]->destroyed = true;
        pthread_cond_signal(&own[i]->more);
    }
    pthread_mutex_unlock(&fake_lock);
    free(own);
}

static void make_key(void)
{
    pthread_key_create(&own_key, end_own);
}

static struct CUstream_st *own_stream_locked(struct CUctx_st *ctx)
{
    pthread_once(&own_once, make_key);
    struct CUstream_st **own = pthread_getspecific(own_key);
    if (!own) {
        own = calloc(FAKE_MAX_DEVICES, sizeof(struct CUstream_st *));
        if (!own || pthread_setspecific(own_key, own)) abort();
    }
    if (!own[ctx->device]) own[ctx->device] = fake_new_stream_locked(ctx, true);
    return own[ctx->device];
}

/* The stream behind a handle, of the current context; NULL with the result in *why. Lock held. */
struct CUstream_st *fake_stream_locked(kolo_cu_stream_t handle, struct CUctx_st *ctx, const char *what,
                                       kolo_cu_result_t *why)
{
    if ((uintptr_t)handle <= 1) {
        if (!ctx->legacy) ctx->legacy = fake_new_stream_locked(ctx, false);
        return ctx->legacy;
    }
    if ((uintptr_t)handle == 2) return own_stream_locked(ctx);
    for (struct CUstream_st *s = streams; s; s = s->next) {
        if (s->handle != handle || s->destroyed) continue;
        if (s->ctx == ctx) return s;
        *why = FAKE_INVALID_HANDLE;
        fake_wrong(0, "%s: the stream belongs to device %d, the current context to device %d", what, s->ctx->device,
                   ctx->device);
        return NULL;
    }
    *why = FAKE_INVALID_HANDLE;
    fake_wrong(0, "%s: %p is no stream, or was destroyed", what, (void *)handle);
    return NULL;
}

/* The same for something that is to be queued there. */
struct CUstream_st *fake_taker_locked(kolo_cu_stream_t handle, struct CUctx_st *ctx, const char *what,
                                      kolo_cu_result_t *why)
{
    struct CUstream_st *s = fake_stream_locked(handle, ctx, what, why);
    if (!s || !fake_capture_is_broken(s)) return s;
    *why = fake_wrong(FAKE_CAPTURE_INVALIDATED, "%s: the stream's capture has failed", what);
    return NULL;
}

/* ---- queueing; lock held ---- */

mark_t *fake_push_one(struct CUstream_st *s, work_t work)
{
    work_t *w = malloc(sizeof *w);
    mark_t *m = calloc(1, sizeof *m);
    if (!w || !m) abort();
    *w = work;
    w->next = NULL;
    w->mark = m;
    pthread_cond_init(&m->over, NULL);
    m->refs = 2; /* the work's and the stream's */
    *s->tail = w;
    s->tail = &w->next;
    fake_drop(s->last);
    s->last = m;
    pthread_cond_signal(&s->more);
    return m;
}

void fake_push_wait(struct CUstream_st *s, mark_t *m)
{
    if (m && !m->done) fake_push_one(s, (work_t){.kind = WAIT, .awaited = fake_hold(m)});
}

struct CUstream_st *fake_streams_locked(void)
{
    return streams;
}

mark_t *fake_push(struct CUstream_st *s, work_t work)
{
    if (s->capture.graph) {
        fake_capture_work(s, &work);
        return NULL;
    }
    if (s == s->ctx->legacy) {
        for (struct CUstream_st *o = streams; o; o = o->next)
            if (o->ctx == s->ctx && o->blocking) fake_push_wait(s, o->last);
    } else if (s->blocking && s->ctx->legacy) {
        fake_push_wait(s, s->ctx->legacy->last);
    }
    return fake_push_one(s, work);
}

kolo_cu_result_t fake_stream_launch(kolo_cu_stream_t stream, struct CUctx_st *ctx, fake_launch_t *launch)
{
    kolo_cu_result_t why = KOLO_CU_SUCCESS;
    pthread_mutex_lock(&fake_lock);
    struct CUstream_st *s = fake_taker_locked(stream, ctx, "launch", &why);
    if (s) fake_push(s, (work_t){.kind = LAUNCH, .launch = launch});
    pthread_mutex_unlock(&fake_lock);
    return why;
}

/* ---- exported: memset, memcpy ---- */

kolo_cu_result_t cuMemsetD8Async(kolo_cu_ptr_t p, unsigned char value, size_t n, kolo_cu_stream_t stream)
{
    FAKE_CONTEXT(ctx);
    kolo_cu_result_t why = FAKE_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    if (fake_usable_locked((uintptr_t)p, n, ctx->device, NULL, "memset")) {
        why = KOLO_CU_SUCCESS;
        struct CUstream_st *s = fake_taker_locked(stream, ctx, "memset", &why);
        if (s) fake_push(s, (work_t){.kind = SET, .to = (uintptr_t)p, .bytes = n, .value = value});
    }
    pthread_mutex_unlock(&fake_lock);
    return why;
}

kolo_cu_result_t cuMemcpyAsync(kolo_cu_ptr_t to, kolo_cu_ptr_t from, size_t bytes, kolo_cu_stream_t stream)
{
    FAKE_CONTEXT(ctx);
    kolo_cu_result_t why = FAKE_INVALID_VALUE;
    bool pageable_to = false, pageable_from = false;
    pthread_mutex_lock(&fake_lock);
    if (fake_usable_locked((uintptr_t)to, bytes, ctx->device, &pageable_to, "copy") &&
        fake_usable_locked((uintptr_t)from, bytes, ctx->device, &pageable_from, "copy")) {
        why = KOLO_CU_SUCCESS;
        struct CUstream_st *s = fake_taker_locked(stream, ctx, "copy", &why);
        mark_t *m = NULL;
        if (s)
            m = fake_push(s, (work_t){.kind = COPY, .to = (uintptr_t)to, .from = (uintptr_t)from, .bytes = bytes});
        bool host = fake_is_host_locked((uintptr_t)to) && fake_is_host_locked((uintptr_t)from);
        if (pageable_to || pageable_from || host) fake_await(fake_hold(m)); /* the driver waits there, too */
    }
    pthread_mutex_unlock(&fake_lock);
    return why;
}

kolo_cu_result_t cuMemcpyBatchAsync_v2(kolo_cu_ptr_t *to, kolo_cu_ptr_t *from, size_t *bytes, size_t n,
                                       const kolo_cu_copy_how_t *how, const size_t *first_of_how, size_t nhow,
                                       kolo_cu_stream_t stream)
{
    FAKE_CONTEXT(ctx);
    kolo_cu_result_t why = KOLO_CU_SUCCESS;
    pthread_mutex_lock(&fake_lock);
    const struct CUstream_st *s = fake_stream_locked(stream, ctx, "cuMemcpyBatchAsync", &why);
    bool captured = s && s->capture.graph;
    pthread_mutex_unlock(&fake_lock);
    if (why) return why;
    if (captured || (uintptr_t)stream <= 1 || nhow != 1 || *first_of_how || how->order != KOLO_CU_COPY_IN_ORDER)
        return fake_wrong(FAKE_INVALID_VALUE, "cuMemcpyBatchAsync: a capture, the default stream or other orders");
    for (size_t i = 0; i < n && !why; i++) why = cuMemcpyAsync(to[i], from[i], bytes[i], stream);
    return why;
}

/* ---- exported: streams ---- */

kolo_cu_result_t cuStreamCreate(kolo_cu_stream_t *stream, unsigned flags)
{
    FAKE_CONTEXT(ctx);
    if (flags > KOLO_CU_STREAM_NON_BLOCKING) return fake_wrong(FAKE_INVALID_VALUE, "cuStreamCreate(%u)", flags);
    pthread_mutex_lock(&fake_lock);
    struct CUstream_st *s = fake_new_stream_locked(ctx, flags != KOLO_CU_STREAM_NON_BLOCKING);
    *stream = s->handle = new_handle_locked();
    pthread_mutex_unlock(&fake_lock);
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    FAKE_CONTEXT(ctx);
    (void)ctx;
    *least = 0;
    *greatest = -5;
    return KOLO_CU_SUCCESS;
}

kolo_cu_result_t cuStreamCreateWithPriority(kolo_cu_stream_t *stream, unsigned flags, int priority)
{
    (void)priority; /* a wish */
    return cuStreamCreate(stream, flags);
}

/* What is queued is still done. */
kolo_cu_result_t cuStreamDestroy_v2(kolo_cu_stream_t stream)
{
    FAKE_CONTEXT(ctx);
    kolo_cu_result_t why = KOLO_CU_SUCCESS;
    if ((uintptr_t)stream <= 2) return fake_wrong(FAKE_INVALID_HANDLE, "a default stream cannot be destroyed");
    pthread_mutex_lock(&fake_lock);
    struct CUstream_st *s = fake_stream_locked(stream, ctx, "cuStreamDestroy", &why);
    if (s) {
        s->destroyed = true;
        handles.spare[handles.nspare++] = s->handle;
        pthread_cond_signal(&s->more);
    }
    pthread_mutex_unlock(&fake_lock);
    return why;
}

kolo_cu_result_t cuStreamGetId(kolo_cu_stream_t stream, unsigned long long *id)
{
    FAKE_CONTEXT(ctx);
    kolo_cu_result_t why = KOLO_CU_SUCCESS;
    pthread_mutex_lock(&fake_lock);
    const struct CUstream_st *s = fake_stream_locked(stream, ctx, "cuStreamGetId", &why);
    if (s && s->capture.graph) why = fake_wrong(FAKE_CAPTURE_UNSUPPORTED, "cuStreamGetId of a captured stream");
    if (s) *id = s->id;
    pthread_mutex_unlock(&fake_lock);
    return why;
}

/* Of a stream of any context. */
kolo_cu_result_t cuStreamGetCtx(kolo_cu_stream_t stream, kolo_cu_ctx_t *out)
{
    FAKE_CONTEXT(ctx);
    kolo_cu_result_t why = FAKE_INVALID_HANDLE;
    pthread_mutex_lock(&fake_lock);
    const struct CUstream_st *s = streams;
    while (s && (s->handle != stream || s->destroyed)) s = s->next;
    if (s || (uintptr_t)stream <= 2) {
        *out = s ? s->ctx : ctx;
        why = KOLO_CU_SUCCESS;
    }
    pthread_mutex_unlock(&fake_lock);
    return why;
}

kolo_cu_result_t cuStreamSynchronize(kolo_cu_stream_t stream)
{
    FAKE_CONTEXT(ctx);
    if (fake_capture_forbids(__func__)) return FAKE_CAPTURE_UNSUPPORTED;
    kolo_cu_result_t why = KOLO_CU_SUCCESS;
    pthread_mutex_lock(&fake_lock);
    struct CUstream_st *s = fake_stream_locked(stream, ctx, "cuStreamSynchronize", &why);
    if (s && s->capture.graph) why = FAKE_CAPTURE_UNSUPPORTED;
    if (s) fake_await(fake_hold(s->last));
    pthread_mutex_unlock(&fake_lock);
    /* It fails behind the work: nothing is queued any more that uses memory which the caller now frees. */
    return why || !fake_fails(__func__) ? why : FAKE_LAUNCH_FAILED;
}

kolo_cu_result_t cuStreamQuery(kolo_cu_stream_t stream)
{
    FAKE_CONTEXT(ctx);
    if (fake_capture_forbids(__func__)) return FAKE_CAPTURE_UNSUPPORTED;
    kolo_cu_result_t why = KOLO_CU_SUCCESS;
    pthread_mutex_lock(&fake_lock);
    struct CUstream_st *s = fake_stream_locked(stream, ctx, "cuStreamQuery", &why);
    if (s && s->last && !s->last->done) why = KOLO_CU_NOT_READY;
    if (s && s->capture.graph) why = FAKE_CAPTURE_UNSUPPORTED;
    pthread_mutex_unlock(&fake_lock);
    return why;
}

kolo_cu_result_t cuStreamWaitEvent(kolo_cu_stream_t stream, kolo_cu_event_t event, unsigned flags)
{
    FAKE_CONTEXT(ctx);
    kolo_cu_result_t why = FAKE_INVALID_HANDLE;
    if (flags & ~1u) return fake_wrong(FAKE_INVALID_VALUE, "cuStreamWaitEvent with flags %u", flags);
    pthread_mutex_lock(&fake_lock);
    struct CUevent_st *e = fake_event_locked(event, "cuStreamWaitEvent");
    if (e) {
        why = KOLO_CU_SUCCESS;
        struct CUstream_st *s = fake_taker_locked(stream, ctx, "cuStreamWaitEvent", &why);
        if (s && (s->capture.graph || e->capture.graph))
            why = fake_capture_wait(s, e, flags == KOLO_CU_EVENT_EXTERNAL);
        else if (s)
            fake_push_wait(s, e->mark);
    }
    pthread_mutex_unlock(&fake_lock);
    return why;
}

static kolo_cu_result_t push_word(kolo_cu_stream_t stream, struct CUctx_st *ctx, const work_t *work)
{
    kolo_cu_result_t why = FAKE_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    if (work->kind == CALL || fake_usable_locked(work->to, work->bytes, ctx->device, NULL, "a word")) {
        why = KOLO_CU_SUCCESS;
        struct CUstream_st *s = fake_taker_locked(stream, ctx, "a word or a call", &why);
        if (s) fake_push(s, *work);
    }
    pthread_mutex_unlock(&fake_lock);
    return why;
}

kolo_cu_result_t cuStreamWaitValue32_v2(kolo_cu_stream_t stream, kolo_cu_ptr_t word, uint32_t value, unsigned flags)
{
    FAKE_CONTEXT(ctx);
    if (word % 4 || flags > KOLO_CU_WAIT_ANY_BIT)
        return fake_wrong(FAKE_INVALID_VALUE, "cuStreamWaitValue32(%#llx, flags %u)", word, flags);
    work_t w = {.kind = AWAIT_WORD, .to = (uintptr_t)word, .bytes = 4, .word = value, .how = flags};
    return push_word(stream, ctx, &w);
}

kolo_cu_result_t cuStreamWriteValue32_v2(kolo_cu_stream_t stream, kolo_cu_ptr_t word, uint32_t value,
                                         unsigned flags)
{
    FAKE_CONTEXT(ctx);
    if (word % 4 || flags)
        return fake_wrong(FAKE_INVALID_VALUE, "cuStreamWriteValue32(%#llx, flags %u)", word, flags);
    return push_word(stream, ctx, &(work_t){.kind = WRITE_WORD, .to = (uintptr_t)word, .bytes = 4, .word = value});
}

kolo_cu_result_t cuLaunchHostFunc(kolo_cu_stream_t stream, void (*fn)(void *arg), void *arg)
{
    FAKE_CONTEXT(ctx);
    if (!fn) return fake_wrong(FAKE_INVALID_VALUE, "cuLaunchHostFunc without a function");
    return push_word(stream, ctx, &(work_t){.kind = CALL, .fn = fn, .arg = arg});
}
