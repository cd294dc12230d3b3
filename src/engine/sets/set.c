/* SPDX-License-Identifier: Apache-2.0
 *
 * What a process set consists of on one rank, and its memory. Which sets there are is sets.c's.
 */
#include "comm/comm.h"
#include "engine/backends/backend.h"
#include "engine/controller/talk.h"

#include <stdlib.h>
#include <string.h>

static void and_words(const void *in, void *inout, size_t count, kolo_type_t type, void *arg)
{
    const uint64_t *a = in;
    uint64_t *b = inout;
    (void)type, (void)arg;
    for (size_t i = 0; i < count; i++) b[i] &= a[i];
}

static void or_words(const void *in, void *inout, size_t count, kolo_type_t type, void *arg)
{
    const uint64_t *a = in;
    uint64_t *b = inout;
    (void)type, (void)arg;
    for (size_t i = 0; i < count; i++) b[i] |= a[i];
}

kolo_status_t kolo_set_new(struct kolo_tensor_engine *e, int id, const int *ranks, int count, kolo_set_t **out)
{
    kolo_set_t *s = calloc(1, sizeof *s);
    if (s) s->ranks = malloc((size_t)count * sizeof *s->ranks);
    if (!s || !s->ranks) {
        free(s);
        return kolo_fail(KOLO_ERR_NO_MEMORY, "engine: out of memory for a process set of %d ranks", count);
    }
    s->engine = e;
    s->id = id;
    s->size = count;
    s->rank = -1;
    memcpy(s->ranks, ranks, (size_t)count * sizeof *ranks);
    for (int i = 0; i < count; i++)
        if (ranks[i] == e->rank) s->rank = i;
    pthread_mutex_init(&s->note.lock, NULL);
    s->cycle = 1;
    s->pending_tail = &s->pending;
    s->failed_tail = &s->failed;
    kolo_tensors_init(&s->lane, &e->queue, id);
    *out = s;
    return KOLO_OK;
}

kolo_status_t kolo_set_open(kolo_set_t *s, kolo_comm_t comm)
{
    const kolo_engine_config_t *config = &s->engine->config;
    s->comm = comm;
    KOLO_TRY(kolo_member_build(&s->members, s->rank, s->size, comm->body->member.peers));
    KOLO_TRY(kolo_cache_init(&s->cache, (int)config->cache_capacity, s->size));
    kolo_cache_switch(&s->cache, !s->engine->cache_off);
    KOLO_TRY(kolo_controller_init(&s->controller, s->rank == 0 ? s->size : 1));
    kolo_stall_init(&s->controller.stall, config->stall_warn_ms, config->stall_limit_ms);
    s->controller.set = s->id;
    s->controller.ranks = s->ranks;
    s->controller.stall.peers = s->members.peers;
    s->note.record = comm->body->track.record.at;
    s->controller.stall.note = s->rank == 0 && s->note.record ? &s->note : NULL;
    KOLO_TRY(kolo_op_create_agreement(&s->and_op, and_words, KOLO_SIGNATURE_AGREE, comm));
    KOLO_TRY(kolo_op_create_agreement(&s->or_op, or_words, KOLO_SIGNATURE_AGREE + 1, comm));
    return kolo_talk_meet(s);
}

void kolo_set_leave_gpu(kolo_set_t *s, bool abort)
{
    kolo_comm_t gpu = atomic_exchange(&s->gpu, NULL);
    if (!gpu) return;
    if (abort)
        kolo_comm_abort(gpu);
    else
        kolo_comm_destroy(gpu);
}

void kolo_set_finalize_gpu(kolo_set_t *s)
{
    kolo_comm_t gpu = atomic_load(&s->gpu);
    if (gpu) kolo_call_finalize(KOLO_CALL_WORD_ENGINE_END, gpu);
}

void kolo_set_leave(kolo_set_t *s, bool abort)
{
    if (!s->comm || atomic_exchange(&s->comm_ended, true)) return;
    kolo_note_close(&s->note);
    if (abort) {
        kolo_backends_leave(s, true);
        kolo_talk_leave(s, true);
    }
    kolo_set_leave_gpu(s, abort);
    if (abort)
        kolo_comm_abort(s->comm);
    else
        kolo_comm_destroy(s->comm);
}

void kolo_set_close(kolo_set_t *s)
{
    kolo_backends_leave(s, false);
    kolo_talk_leave(s, false);
    kolo_set_finalize_gpu(s);
    if (!atomic_load(&s->comm_ended)) kolo_call_finalize(KOLO_CALL_WORD_SET_END, s->comm);
    kolo_set_leave(s, false);
    kolo_backends_free(s);
    kolo_talk_free(s);
    kolo_cache_fini(&s->cache);
    kolo_controller_fini(&s->controller);
    memset(&s->cache, 0, sizeof s->cache);
    memset(&s->controller, 0, sizeof s->controller);
}

void kolo_set_free(kolo_set_t *s)
{
    if (!s) return;
    kolo_tensors_fini(&s->lane);
    kolo_backends_free(s);
    kolo_talk_free(s);
    kolo_cache_fini(&s->cache);
    kolo_controller_fini(&s->controller);
    kolo_failed_free(s);
    pthread_mutex_destroy(&s->note.lock);
    kolo_member_fini(&s->members);
    free(s->ranks);
    free(s);
}

kolo_op_t kolo_set_reduction(const kolo_set_t *s, kolo_op_t op, double *factor)
{
    if (op != KOLO_AVG || s->njoined == 0) return op;
    int by = s->engine->config.average == KOLO_AVERAGE_CONTRIBUTORS ? s->size - s->njoined : s->size;
    *factor /= by;
    return KOLO_SUM;
}
