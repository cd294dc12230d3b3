/* SPDX-License-Identifier: Apache-2.0
 *
 * What a communicator holds is given back. How it ends for its user: teardown.c.
 */
#include "base/failpoint.h"
#include "comm/call/call.h"
#include "comm/life/life.h"
#include "comm/tagged/tagged.h"
#include "comm/window/window.h"

#include <stdlib.h>

void kolo_body_unset(kolo_body_t *body)
{
    if (body->oob) kolo_news_set_handler(body->oob, NULL, NULL);
    if (body->oob) kolo_inherit_set_who(body->oob, NULL, NULL);
    kolo_tagged_close(body);
    kolo_device_close(body);
    kolo_windows_close(body);
    kolo_p2p_forget(body);
    kolo_body_disconnect(body);
    kolo_record_close(body);
    if (body->life.ctx_open) {
        kolo_wire_ctx_close(&body->ctx);
        kolo_wire_ctx_fini(&body->ctx);
    }
    body->life.ctx_open = false;
    kolo_member_fini(&body->member);
    free(body->choice.ring);
    free(body->conns.ll_rx);
    free(body->conns.by_peer);
    body->choice.ring = NULL;
    body->conns.ll_rx = NULL;
    body->conns.by_peer = NULL;
}

void kolo_body_free(kolo_body_t *body)
{
    KOLO_FAIL_POINT("comm.free.start");
    kolo_body_unset(body);
    KOLO_FAIL_POINT("comm.free.wires_closed");
    if (body->oob) {
        kolo_oob_close(body->oob);
        kolo_oob_fini(body->oob);
    }
    KOLO_FAIL_POINT("comm.free.oob_closed");
    free(body->life.ids);
    kolo_body_borrow_end(body);
    free(body->conns.ll_temp);
    free(body->track.pairs);
    kolo_device_pairs_free(body);
    free(body->life.agreed_lost);
    free(body->levels.owner_ranks);
    free(body->plans.scratch);
    free(body->plans.src_parts);
    free(body->plans.dst_parts);
    kolo_call_registrations_free(body);
    kolo_call_user_ops_free(body);
    kolo_handle_drop(body->handle);
    free(body);
}
