/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages that run side by side are not cut into pieces; their inputs and outputs are placed one after another.
 * With pieces one message of a rank would wait for another, and legal programs would hang.
 */
#include "base/log.h"
#include "gpu/staged/staged.h"

#include <stdlib.h>

#define ALIGN 64u

static uint64_t room_of(const kolo_exec_call_t *c)
{
    return KOLO_ROUND_UP(c->count * c->elem, ALIGN);
}

kolo_status_t kolo_staged_messages_plan(kolo_staged_t *s, kolo_staged_op_t *op)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < op->n; i++) bytes += room_of(&op->calls[i]);
    if (bytes > s->message_bytes) {
        uint64_t more = KOLO_MAX(2 * s->message_bytes, bytes);
        KOLO_TRY(kolo_staged_pin(s, more, &s->message_room));
        s->message_bytes = more;
        kolo_info("exec", "rank %d: %llu bytes are pinned for messages of GPU %d", s->rank,
                  (unsigned long long)more, s->device->ordinal);
    }
    op->room = s->message_room;
    op->pieces = 1;
    return KOLO_OK;
}

kolo_status_t kolo_staged_messages_copy(kolo_staged_t *s, const kolo_staged_op_t *op, bool from_device,
                                        kolo_cu_stream_t stream)
{
    char *at = op->room;
    for (size_t i = 0; i < op->n; i++) {
        const kolo_exec_call_t *c = &op->calls[i];
        bool send = c->kind == KOLO_EXEC_SEND;
        if (send && from_device) KOLO_TRY(kolo_staged_copy(s, stream, at, c->src, c->count * c->elem));
        if (!send && !from_device) KOLO_TRY(kolo_staged_copy(s, stream, c->dst, at, c->count * c->elem));
        at += room_of(c);
    }
    return KOLO_OK;
}

kolo_status_t kolo_staged_messages_run(kolo_staged_t *s, const kolo_staged_op_t *op)
{
    char *at = op->room;
    kolo_exec_call_t *calls = calloc(op->n, sizeof *calls);
    if (!calls) return kolo_fail(KOLO_ERR_NO_MEMORY, "out of memory for %zu messages", op->n);
    for (size_t i = 0; i < op->n; i++) {
        calls[i] = op->calls[i];
        if (op->pair) calls[i].number = 0; /* of the capture, not of this replay */
        if (calls[i].kind == KOLO_EXEC_SEND)
            calls[i].src = at;
        else
            calls[i].dst = at;
        at += room_of(&calls[i]);
    }
    kolo_status_t status = s->env.host->exchange(s->env.host_arg, calls, op->n);
    free(calls);
    return status;
}
