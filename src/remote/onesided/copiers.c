/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that copy large values over shared memory, so that the thread that moves all connections goes on
 * meanwhile, and several cores share one value. All connections of the process use the same few threads, which
 * start when the first value needs them.
 */
#include "remote/onesided/internal.h"

#include "base/process.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/uio.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define PIECE      (2u << 20)
#define PAST_CACHE (16u << 20) /* from here on a value is written past the caches */
#define MOST       16

static struct {
    pthread_mutex_t lock;
    pthread_cond_t more, done;
    kolo_copy_t *first, **last;
    uint32_t users, nthreads;
    bool stop;
    pthread_t threads[MOST];
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .more = PTHREAD_COND_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER,
          .last = &pool.first};

#ifdef __SSE2__
static void copy_past_cache(char *to, const char *from, size_t bytes)
{
    size_t ahead = (size_t)(-(uintptr_t)to & 63), whole;
    if (ahead > bytes) ahead = bytes;
    memcpy(to, from, ahead);
    to += ahead;
    from += ahead;
    bytes -= ahead;
    whole = bytes / 64 * 64;
    for (size_t at = 0; at < whole; at += 64) {
        const __m128i *f = (const __m128i *)(const void *)(from + at);
        __m128i *t = (__m128i *)(void *)(to + at);
        __m128i a = _mm_loadu_si128(f), b = _mm_loadu_si128(f + 1), c = _mm_loadu_si128(f + 2),
                d = _mm_loadu_si128(f + 3);
        _mm_stream_si128(t, a);
        _mm_stream_si128(t + 1, b);
        _mm_stream_si128(t + 2, c);
        _mm_stream_si128(t + 3, d);
    }
    _mm_sfence();
    memcpy(to + whole, from + whole, bytes - whole);
}
#else
static void copy_past_cache(char *to, const char *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
#endif

static bool has_ended(const kolo_copy_t *copy)
{
    struct pollfd pfd = {.fd = copy->alive_fd, .events = POLLIN};
    return copy->alive_fd >= 0 && poll(&pfd, 1, 0) != 0;
}

int kolo_copy_piece(const kolo_copy_t *copy, uint64_t at, uint64_t bytes)
{
    if (copy->pid == 0 && copy->bytes >= PAST_CACHE) {
        copy_past_cache(copy->to + at, copy->from + at, (size_t)bytes);
    } else if (copy->pid == 0) {
        memcpy(copy->to + at, copy->from + at, (size_t)bytes);
    }
    for (ssize_t n = 0; copy->pid && bytes > 0; at += (uint64_t)n, bytes -= (uint64_t)n) {
        if (atomic_load_explicit(copy->closed, memory_order_acquire)) return ECANCELED;
        if (has_ended(copy)) return ESRCH;
        struct iovec here = {(char *)(uintptr_t)copy->from + at, (size_t)KOLO_MIN(bytes, (uint64_t)PIECE)};
        struct iovec there = {copy->to + at, here.iov_len};
        n = process_vm_writev(copy->pid, &here, 1, &there, 1, 0);
        if (n <= 0) return n < 0 ? errno : EFAULT;
    }
    return 0;
}

static void *serve(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&pool.lock);
    while (!pool.stop) {
        kolo_copy_t *copy = pool.first;
        if (copy == NULL) {
            pthread_cond_wait(&pool.more, &pool.lock);
            continue;
        }
        uint64_t bytes = copy->bytes, at = copy->taken, n = KOLO_MIN(bytes - at, (uint64_t)PIECE);
        copy->taken += n;
        if (copy->taken == copy->bytes) {
            pool.first = copy->next;
            if (pool.first == NULL) pool.last = &pool.first;
        }
        pthread_mutex_unlock(&pool.lock);
        int failed = kolo_copy_piece(copy, at, n);
        if (failed) atomic_store_explicit(&copy->failed, failed, memory_order_relaxed);
        pthread_mutex_lock(&pool.lock);
        /* The owner may be gone as soon as all is done, its waker not before the lock is free
         * (kolo_copy_pool_put). */
        kolo_waker_t *waker = copy->waker;
        if (atomic_fetch_add_explicit(&copy->done, n, memory_order_release) + n < bytes) continue;
        pthread_cond_broadcast(&pool.done);
        kolo_waker_wake(waker);
    }
    pthread_mutex_unlock(&pool.lock);
    return NULL;
}

bool kolo_copy_start(kolo_copy_t *copy)
{
    pthread_mutex_lock(&pool.lock);
    while ((int64_t)pool.nthreads < KOLO_MIN(kolo_onesided_param_copiers, (int64_t)MOST) &&
           kolo_thread_start(&pool.threads[pool.nthreads], 0, serve, NULL) == 0)
        pool.nthreads++;
    bool served = pool.nthreads > 0;
    if (served) {
        copy->next = NULL;
        *pool.last = copy;
        pool.last = &copy->next;
        pthread_cond_broadcast(&pool.more);
    }
    pthread_mutex_unlock(&pool.lock);
    return served;
}

void kolo_copy_wait(kolo_copy_t *copy)
{
    pthread_mutex_lock(&pool.lock);
    while (atomic_load_explicit(&copy->done, memory_order_acquire) < copy->bytes)
        pthread_cond_wait(&pool.done, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}

static pthread_mutex_t ending = PTHREAD_MUTEX_INITIALIZER; /* taken before the pool's lock */

/* Waits for threads that are being ended: what a new user gave them nobody would serve. */
void kolo_copy_pool_get(void)
{
    pthread_mutex_lock(&ending);
    pthread_mutex_lock(&pool.lock);
    pool.users++;
    pthread_mutex_unlock(&pool.lock);
    pthread_mutex_unlock(&ending);
}

/* Ends the threads with their last user. No copy is under way, and none will start. */
void kolo_copy_pool_put(void)
{
    pthread_t threads[MOST];
    pthread_mutex_lock(&ending);
    pthread_mutex_lock(&pool.lock);
    uint32_t n = --pool.users == 0 ? pool.nthreads : 0;
    if (n > 0) {
        memcpy(threads, pool.threads, sizeof threads);
        pool.nthreads = 0;
        pool.stop = true;
        pthread_cond_broadcast(&pool.more);
    }
    pthread_mutex_unlock(&pool.lock);
    for (uint32_t i = 0; i < n; i++) pthread_join(threads[i], NULL);
    pthread_mutex_lock(&pool.lock);
    if (n > 0) pool.stop = false;
    pthread_mutex_unlock(&pool.lock);
    pthread_mutex_unlock(&ending);
}
