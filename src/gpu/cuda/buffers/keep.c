/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators that have ended while copies of theirs are queued on a GPU that does not come to them: something
 * holds it up, and freeing what they read or write would make them fail, and with them the whole program. They are
 * kept until the copies are through.
 */
#include "base/log.h"
#include "gpu/cuda/cuda.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kolo_cuda_state_t *kept;

void kolo_cuda_keep(kolo_cuda_state_t *s)
{
    kolo_warn("exec",
              "rank %d: GPU %d did not come to the last copies of an aborted communicator: its memory (%.1f MB) is "
              "kept until it does, and other ranks may still store into this rank's buffers (a stream that never "
              "goes on? CUDA_DEVICE_MAX_CONNECTIONS below the number of streams?)",
              s->regions.rank, s->device->ordinal, (double)s->region_bytes / (1 << 20));
    pthread_mutex_lock(&lock);
    s->next_kept = kept;
    kept = s;
    pthread_mutex_unlock(&lock);
}

static bool is_through(const kolo_cuda_state_t *s)
{
    bool pushed;
    if (kolo_cuda_enter(s->device, &pushed) != KOLO_OK) return false;
    bool through = kolo_cuda_stream_query(s->unsettled) != KOLO_CU_NOT_READY;
    kolo_cuda_leave(pushed);
    return through;
}

kolo_cuda_state_t *kolo_cuda_kept(void)
{
    pthread_mutex_lock(&lock);
    kolo_cuda_state_t **at = &kept;
    while (*at && !is_through(*at)) at = &(*at)->next_kept;
    kolo_cuda_state_t *s = *at;
    if (s) *at = s->next_kept;
    pthread_mutex_unlock(&lock);
    return s;
}
