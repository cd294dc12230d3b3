/* SPDX-License-Identifier: Apache-2.0
 *
 * The threads that run users' callbacks for values from other tasks. A callback may take long, while the adapter's
 * thread goes on. There are KOLO_RENDEZVOUS_THREADS of them.
 */
#include "rendezvous/remote/channel.h"

#include "base/process.h"

#include <stdlib.h>
#include <string.h>

#define MOST_THREADS 64

typedef struct job {
    struct job *next;
    kolo_receive_t receive;
    kolo_status_t status;
    char *why;
    kolo_value_t value;
    bool has_value;
} job_t;

struct kolo_callback_pool {
    pthread_mutex_t lock;
    pthread_cond_t more;
    job_t *first, **last;
    bool stop;
    int nthreads;
    pthread_t threads[MOST_THREADS];
};

static void run(job_t *job)
{
    kolo_receive_end(job->receive, job->status, job->why ? job->why : "", NULL,
                     job->has_value ? &job->value : NULL);
    kolo_receive_unref(job->receive);
    free(job->why);
    free(job);
}

static void *serve(void *arg)
{
    kolo_callback_pool_t *pool = arg;
    (void)kolo_rendezvous_enter(KOLO_THREAD_OF_CALLBACKS);
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        job_t *job = pool->first;
        if (job == NULL && pool->stop) break;
        if (job == NULL) {
            pthread_cond_wait(&pool->more, &pool->lock);
            continue;
        }
        pool->first = job->next;
        if (pool->first == NULL) pool->last = &pool->first;
        pthread_mutex_unlock(&pool->lock);
        run(job);
        pthread_mutex_lock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

kolo_status_t kolo_callback_pool_create(int threads, kolo_callback_pool_t **out)
{
    kolo_callback_pool_t *pool = calloc(1, sizeof *pool);
    if (pool == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "rendezvous: no memory for threads");
    pool->last = &pool->first;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->more, NULL);
    for (int err = 0; pool->nthreads < KOLO_MIN(threads, MOST_THREADS); pool->nthreads++) {
        err = kolo_thread_start(&pool->threads[pool->nthreads], 0, serve, pool);
        if (err == 0) continue;
        kolo_callback_pool_destroy(pool);
        return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "rendezvous: cannot start a thread for callbacks");
    }
    *out = pool;
    return KOLO_OK;
}

void kolo_callback_pool_add(kolo_callback_pool_t *pool, kolo_receive_t receive, kolo_status_t status,
                            const char *why, const kolo_value_t *value)
{
    job_t *job = calloc(1, sizeof *job);
    if (job == NULL) { /* rather here than never */
        kolo_receive_end(receive, status, why, NULL, value);
        kolo_receive_unref(receive);
        return;
    }
    job->receive = receive;
    job->status = status;
    if (why) job->why = strdup(why);
    if (value) job->value = *value;
    job->has_value = value != NULL;
    pthread_mutex_lock(&pool->lock);
    *pool->last = job;
    pool->last = &job->next;
    pthread_cond_signal(&pool->more);
    pthread_mutex_unlock(&pool->lock);
}

void kolo_callback_pool_destroy(kolo_callback_pool_t *pool)
{
    if (pool == NULL) return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->more);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->nthreads; i++) pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->more);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}
