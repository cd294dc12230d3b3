/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of the fake driver that wait for all that is queued: some stop other threads' launches meanwhile, as real
 * ones do.
 */
#include "stream.h"

void fake_await_all(const struct CUctx_st *ctx)
{
    pthread_mutex_lock(&fake_lock);
    mark_t *marks[1024];
    int n = 0;
    for (struct CUstream_st *s = fake_streams_locked(); s && n < 1024; s = s->next)
        if ((!ctx || s->ctx == ctx) && s->last) marks[n++] = fake_hold(s->last);
    for (int i = 0; i < n; i++) fake_await(marks[i]);
    pthread_mutex_unlock(&fake_lock);
}

void fake_await_and_stop(struct CUctx_st *ctx, bool all)
{
    __atomic_fetch_add(&ctx->stopped, 1, __ATOMIC_SEQ_CST);
    fake_await_all(all ? NULL : ctx);
    __atomic_fetch_sub(&ctx->stopped, 1, __ATOMIC_SEQ_CST);
}

/* Ends all captures in the context, whatever this thread's mode. */
kolo_cu_result_t cuCtxSynchronize(void)
{
    bool captures;
    FAKE_CONTEXT(ctx);
    pthread_mutex_lock(&fake_lock);
    captures = fake_capture_break_locked(ctx);
    pthread_mutex_unlock(&fake_lock);
    if (captures) return fake_wrong(FAKE_CAPTURE_UNSUPPORTED, "cuCtxSynchronize while a stream is captured");
    fake_await_all(ctx);
    return KOLO_CU_SUCCESS;
}
