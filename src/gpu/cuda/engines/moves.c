/* SPDX-License-Identifier: Apache-2.0
 *
 * One-sided work on a GPU (exec.h): copies by the copy engines to memory that this GPU reaches, and words in pinned
 * host memory that streams write and wait for. No kernel takes part, here or there.
 */
#include "gpu/cuda/cuda.h"

static kolo_status_t refuse_capture(const kolo_cuda_state_t *s, const kolo_exec_move_t *m)
{
    bool captured;
    KOLO_TRY(kolo_cuda_capturing(s->device, m->stream, &captured));
    if (!captured || !m->word) return KOLO_OK;
    return kolo_fail(
        KOLO_ERR_UNSUPPORTED,
        "rank %d: signals, and waits for them, cannot be captured in a graph: a replay would repeat the "
        "counts of its capture (a put without a signal can)",
        s->regions.rank);
}

static kolo_status_t move(kolo_cuda_state_t *s, const kolo_exec_move_t *m)
{
    kolo_cu_result_t r = KOLO_CU_SUCCESS;
    KOLO_TRY(kolo_cuda_order_before(&s->order, m->stream));
    if (m->bytes && m->dst != m->src)
        r = s->api->memcpy_async((kolo_cu_ptr_t)(uintptr_t)m->dst, (kolo_cu_ptr_t)(uintptr_t)m->src, m->bytes,
                                 m->stream);
    if (r) return kolo_cuda_fail(r, s->device->ordinal, "queue a copy to another GPU");
    if (m->word && m->wait)
        r = s->api->stream_wait_word(m->stream, m->word, m->value, KOLO_CU_WAIT_AT_LEAST);
    else if (m->word)
        r = s->api->stream_write_word(m->stream, m->word, m->value, 0);
    if (r) return kolo_cuda_fail(r, s->device->ordinal, m->wait ? "queue a wait for a signal" : "queue a signal");
    s->copied = true;
    return kolo_cuda_order_behind(&s->order, m->stream);
}

kolo_status_t kolo_cuda_move(void *state, const kolo_exec_move_t *moves, size_t n)
{
    kolo_cuda_state_t *s = state;
    bool pushed;
    kolo_status_t status = KOLO_OK;
    KOLO_TRY(kolo_cuda_enter(s->device, &pushed));
    for (size_t i = 0; i < n && status == KOLO_OK; i++) {
        s->asks = moves[i].stream;
        status = kolo_cuda_check_memory(s, moves[i].src, moves[i].bytes, "the source");
        if (status == KOLO_OK) status = refuse_capture(s, &moves[i]);
    }
    for (size_t i = 0; i < n && status == KOLO_OK; i++) status = move(s, &moves[i]);
    kolo_cuda_leave(pushed);
    return status;
}
