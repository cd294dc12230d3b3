/* SPDX-License-Identifier: Apache-2.0
 *
 * Fail points of the interpreter: one per kind of instruction, passed before each of its slots.
 */
#include "base/failpoint.h"
#include "exec/host/task.h"

kolo_status_t kolo_interp_fail_point(const kolo_insn_t *in)
{
    switch (in->op) {
    case KOLO_OP_SEND: {
        KOLO_FAIL_POINT_TRY("exec.send");
        break;
    }
    case KOLO_OP_RECV: {
        KOLO_FAIL_POINT_TRY("exec.recv");
        break;
    }
    case KOLO_OP_RECV_REDUCE: {
        KOLO_FAIL_POINT_TRY("exec.recv_reduce");
        break;
    }
    case KOLO_OP_RECV_SEND: {
        KOLO_FAIL_POINT_TRY("exec.recv_send");
        break;
    }
    case KOLO_OP_RECV_REDUCE_SEND: {
        KOLO_FAIL_POINT_TRY("exec.recv_reduce_send");
        break;
    }
    case KOLO_OP_RECV_REDUCE_COPY_SEND: {
        KOLO_FAIL_POINT_TRY("exec.recv_reduce_copy_send");
        break;
    }
    case KOLO_OP_REDUCE_MANY: {
        KOLO_FAIL_POINT_TRY("exec.reduce_many");
        break;
    }
    case KOLO_OP_COPY: {
        KOLO_FAIL_POINT_TRY("exec.copy");
        break;
    }
    case KOLO_OP_REDUCE: {
        KOLO_FAIL_POINT_TRY("exec.reduce");
        break;
    }
    case KOLO_OP_EXPOSE: {
        KOLO_FAIL_POINT_TRY("exec.expose");
        break;
    }
    case KOLO_OP_GET: {
        KOLO_FAIL_POINT_TRY("exec.get");
        break;
    }
    case KOLO_OP_GET_REDUCE: {
        KOLO_FAIL_POINT_TRY("exec.get_reduce");
        break;
    }
    case KOLO_OP_PUT: {
        KOLO_FAIL_POINT_TRY("exec.put");
        break;
    }
    default:
        break;
    }
    return KOLO_OK;
}
