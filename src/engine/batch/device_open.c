/* SPDX-License-Identifier: Apache-2.0
 *
 * The queues of an engine on a device: one, or on a GPU one for each stream of process sets, each with what is
 * packed and unpacked beside its collectives.
 */
#include "engine/batch/device.h"

#include <stdlib.h>

/* Takes word of a queue. The use stays as long as that: a stuck one may tell long after the engine has ended. */
static void on_tell(void *arg)
{
    kolo_use_t *use = arg;
    pthread_mutex_lock(&use->tells);
    if (use->engine) {
        kolo_finisher_wake(use->engine);
        kolo_engine_kick(use->engine); /* the loop may wait for a batch to be packed */
    }
    pthread_mutex_unlock(&use->tells);
}

void kolo_use_forget(kolo_use_t *use)
{
    pthread_mutex_lock(&use->tells);
    use->engine = NULL;
    pthread_mutex_unlock(&use->tells);
}

static void free_use(kolo_use_t *use)
{
    pthread_mutex_destroy(&use->lock);
    pthread_mutex_destroy(&use->tells);
    free(use);
}

static kolo_status_t open_use(struct kolo_tensor_engine *e, int number, kolo_use_t **out)
{
    const kolo_mem_ops_t *row = NULL;
    if (number != KOLO_USE_CPU && kolo_mem_row(number, &row) != KOLO_OK)
        return kolo_fail_prefix(KOLO_ERR_INVALID_ARGUMENT, "there is no device %d: ", number);
    kolo_use_t *use = calloc(1, sizeof *use);
    if (!use) return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for a device");
    use->engine = e;
    use->number = number;
    use->row = row;
    use->ops = row ? row->queues : &kolo_cpu_ops;
    pthread_mutex_init(&use->lock, NULL);
    pthread_mutex_init(&use->tells, NULL);
    kolo_status_t status = use->ops->open(number, on_tell, use, &use->queue);
    if (status == KOLO_OK)
        *out = use;
    else
        free_use(use);
    return status;
}

void kolo_use_close(kolo_use_t *use)
{
    for (int i = 0; i < KOLO_SIDES; i++)
        if (use->sides[i]) kolo_use_close(use->sides[i]);
    for (int i = 0; i < KOLO_GPU_STREAMS - 1; i++)
        if (use->others[i]) kolo_use_close(use->others[i]);
    use->ops->close(use->queue);
    free_use(use);
}

kolo_status_t kolo_use_open(struct kolo_tensor_engine *e, int number, kolo_use_t **use)
{
    kolo_status_t status = open_use(e, number, use);
    if (status != KOLO_OK || !(*use)->ops->stream || kolo_engine_gpu_overlap == 0) return status;
    for (int i = 0; i < KOLO_SIDES && status == KOLO_OK; i++) status = open_use(e, number, &(*use)->sides[i]);
    if (status != KOLO_OK) kolo_use_close(*use);
    return status;
}

kolo_status_t kolo_use_open_other(struct kolo_tensor_engine *e, kolo_use_t *first, int n, kolo_use_t **use)
{
    kolo_use_t *other = first->others[n];
    if (!other) KOLO_TRY(kolo_use_open(e, first->number, &other));
    *use = first->others[n] = other;
    return KOLO_OK;
}

kolo_use_t *kolo_use_queue(kolo_use_t *first, int k)
{
    int stream = k / (1 + KOLO_SIDES), side = k % (1 + KOLO_SIDES);
    kolo_use_t *use = stream ? first->others[stream - 1] : first;
    return use && side ? use->sides[side - 1] : use;
}
