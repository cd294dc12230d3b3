/* SPDX-License-Identifier: Apache-2.0
 *
 * The wires' share of a communicator (kolo_wire_ctx_t), and what a card says of them.
 */
#include "share/fdpass.h"
#include "wire/control.h"

#include <string.h>

static kolo_wire_id_t id_of(const char *name, uint8_t version)
{
    kolo_wire_id_t id = {.version = version};
    for (size_t i = 0; i < sizeof id.name && name[i]; i++) id.name[i] = name[i];
    return id;
}

kolo_wire_id_t kolo_wire_id(const kolo_wire_ops_t *wire)
{
    return id_of(wire->name, wire->version);
}

bool kolo_wire_card_names(const kolo_peer_card_t *card, const char *name, uint8_t version)
{
    kolo_wire_id_t id = id_of(name, version);
    for (uint32_t i = 0; i < card->nwires && i < KOLO_CARD_WIRES; i++)
        if (memcmp(&card->wires[i], &id, sizeof id) == 0) return true;
    return false;
}

bool kolo_wire_card_name(kolo_peer_card_t *card, const char *name, uint8_t version)
{
    if (card->nwires >= KOLO_CARD_WIRES) return false;
    card->wires[card->nwires++] = id_of(name, version);
    return true;
}

bool kolo_wire_on_card(const kolo_peer_card_t *card, const kolo_wire_ops_t *wire)
{
    return kolo_wire_card_names(card, wire->name, wire->version);
}

kolo_status_t kolo_wire_fill_card(kolo_peer_card_t *card)
{
    uint8_t address[sizeof card->fd_address];
    KOLO_TRY(kolo_fdpass_address(address));
    memcpy(card->fd_address, address, sizeof address);
    memset(card->wires, 0, sizeof card->wires);
    card->nwires = 0;
    for (int i = 0; kolo_wires[i]; i++) {
        if (kolo_wire_disabled(kolo_wires[i])) continue;
        kolo_status_t status = kolo_wires[i]->fill_card(card);
        if (status == KOLO_OK && !kolo_wire_card_name(card, kolo_wires[i]->name, kolo_wires[i]->version))
            status = kolo_fail(KOLO_ERR_INTERNAL, "no room for wire %s on the card", kolo_wires[i]->name);
        if (status != KOLO_OK && status != KOLO_ERR_UNSUPPORTED) return status;
    }
    return KOLO_OK;
}

#define SEEK_NS      (200 * KOLO_NS_PER_MS) /* after which the owner is called: does it live? */
#define ELSEWHERE_NS KOLO_NS_PER_S /* after which one that lives, and whose server nobody is, is not here */

typedef struct {
    const kolo_wire_ctx_t *ctx;
    const kolo_peer_card_t *card;
    int rank;
    uint64_t since_ns, unserved_ns; /* unserved_ns: since when nobody has listened at its address; 0: it serves */
    bool sought;
} owner_t;

/* Fails for an owner that has left or that nobody hears from: it offers nothing any more. Each rank's server is
 * there before init is through, so one that lives and is not served lives on another host. */
static kolo_status_t check_owner(void *arg, bool served)
{
    owner_t *owner = arg;
    if (served) owner->unserved_ns = 0;
    if (!served && owner->unserved_ns == 0) owner->unserved_ns = kolo_now_ns();
    if (!owner->sought && kolo_now_ns() - owner->since_ns > SEEK_NS)
        owner->sought = kolo_oob_seek_peer(owner->ctx->oob, owner->rank);
    KOLO_TRY(kolo_oob_check_peer(owner->ctx->oob, owner->rank, "asking for shared memory"));
    if (owner->unserved_ns == 0 || kolo_now_ns() - owner->unserved_ns < ELSEWHERE_NS) return KOLO_OK;
    return kolo_fail(KOLO_ERR_SYSTEM, "%s is " KOLO_FDPASS_TWIN, KOLO_WHO(owner->card));
}

/* Fills in a call to a rank's descriptor server. The caller sets .who: the text that KOLO_WHO() makes lives in its
 * frame. */
static kolo_fdpass_call_t call_to(kolo_wire_ctx_t *ctx, const kolo_peer_card_t *card, owner_t *owner)
{
    *owner = (owner_t){.ctx = ctx, .card = card, .rank = card->rank, .since_ns = kolo_now_ns()};
    return (kolo_fdpass_call_t){
        .address = card->fd_address,
        .key = ctx->key,
        .deadline_ns = ctx->oob ? kolo_oob_deadline(ctx->oob, ctx->deadline_ns) : ctx->deadline_ns,
        .abort = ctx->abort,
        .waker = ctx->waker.epoll_fd >= 0 ? &ctx->waker : NULL,
        .ranks_here = ctx->member && ctx->member->node_size ? ctx->member->node_size[ctx->member->my_node] : 1,
        .there = ctx->oob ? check_owner : NULL,
        .arg = owner,
    };
}

kolo_status_t kolo_wire_fetch(kolo_wire_ctx_t *ctx, const kolo_peer_card_t *card, const uint8_t name[16],
                              kolo_fdpass_patience_t patience, int *fds, int nfds)
{
    owner_t owner;
    kolo_fdpass_call_t call = call_to(ctx, card, &owner);
    call.who = KOLO_WHO(card);
    return kolo_fdpass_fetch(&call, name, patience, fds, nfds, NULL);
}

kolo_status_t kolo_wire_fetch_peer(kolo_wire_ctx_t *ctx, const kolo_peer_card_t *card, const uint8_t name[16],
                                   int fds[2], kolo_fdpass_peer_t *peer)
{
    owner_t owner;
    kolo_fdpass_call_t call = call_to(ctx, card, &owner);
    call.who = KOLO_WHO(card);
    return kolo_fdpass_fetch(&call, name, KOLO_FDPASS_MAY_COME, fds, 2, peer);
}

void **kolo_wire_state(kolo_wire_ctx_t *ctx, const kolo_wire_ops_t *wire)
{
    int i = 0;
    while (kolo_wires[i] && kolo_wires[i] != wire) i++;
    return &ctx->wire_state[i];
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
    kolo_control_fini(ctx);
    memset(ctx, 0, sizeof *ctx);
    ctx->waker.epoll_fd = ctx->waker.event_fd = -1;
}
