/* SPDX-License-Identifier: Apache-2.0
 *
 * The wires' share of a communicator (kolo_wire_ctx_t), and the list of all wires.
 */
#include "wire/control.h"
#include "wire/fdpass.h"

#include <string.h>

const kolo_wire_ops_t *const kolo_wires[KOLO_WIRE_COUNT] = {
    &kolo_wire_local, &kolo_wire_cma, &kolo_wire_shm, &kolo_wire_net, &kolo_wire_tcp,
};

kolo_status_t kolo_wire_fill_card(kolo_peer_card_t *card)
{
    uint8_t address[sizeof card->fd_address];
    KOLO_TRY(kolo_fdpass_address(address));
    memcpy(card->fd_address, address, sizeof address);
    card->wires = 0;
    for (int i = 0; i < KOLO_WIRE_COUNT; i++)
        if (!kolo_wire_disabled[kolo_wires[i]->kind]) {
            card->wires |= 1u << kolo_wires[i]->kind;
            kolo_wires[i]->fill_card(card);
        }
    return KOLO_OK;
}

kolo_status_t kolo_wire_ctx_init(kolo_wire_ctx_t *ctx, kolo_oob_t *oob, const kolo_member_t *member,
                                 const _Atomic uint32_t *abort)
{
    memset(ctx, 0, sizeof *ctx);
    ctx->oob = oob;
    ctx->member = member;
    ctx->abort = abort;
    ctx->job = kolo_oob_job(oob);
    ctx->waker.epoll_fd = ctx->waker.event_fd = -1;
    kolo_oob_derive_key(oob, "wire", ctx->key);
    KOLO_TRY(kolo_control_open(ctx));
    kolo_oob_set_bell(oob, &ctx->waker); /* set-up in steps sleeps like any other wait */
    return KOLO_OK;
}

void kolo_wire_ctx_close(kolo_wire_ctx_t *ctx)
{
    kolo_control_close(ctx);
}

void kolo_wire_ctx_fini(kolo_wire_ctx_t *ctx)
{
    if (ctx->oob) kolo_oob_set_bell(ctx->oob, NULL);
    for (int i = 0; i < KOLO_WIRE_COUNT; i++) {
        const kolo_wire_ops_t *ops = kolo_wires[i];
        if (ops && ctx->wire_state[ops->kind]) ops->ctx_fini(ctx);
    }
    kolo_control_fini(ctx);
    memset(ctx, 0, sizeof *ctx);
    ctx->waker.epoll_fd = ctx->waker.event_fd = -1;
}
