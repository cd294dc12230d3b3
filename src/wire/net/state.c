/* SPDX-License-Identifier: Apache-2.0
 *
 * What the connections of one context share: opened devices and what sleepers are woken by. It comes with the first
 * connection and goes with the last, so a communicator without one holds nothing.
 */
#include "wire/net/conn.h"

#include <stdlib.h>

static void arm(void *arg)
{
    kolo_net_state_t *state = arg;
    for (int i = 0; i < state->ndevices; i++)
        if (state->devices[i].open) state->ops->arm(state->devices[i].open);
    for (kolo_net_conn_t *conn = state->first; conn; conn = conn->next) conn->idle = KOLO_NET_IDLE;
}

static kolo_status_t state_get(kolo_wire_ctx_t *ctx, kolo_net_state_t **result)
{
    kolo_net_state_t *state = *kolo_wire_state(ctx, &kolo_wire_net);
    const char *why;
    bool demanded;
    if (!state) {
        const kolo_net_ops_t *ops = kolo_net_provider(&why, &demanded);
        if (!ops) return kolo_fail(KOLO_ERR_UNSUPPORTED, "net: no device: %s", why);
        if (ctx->nsteps == KOLO_WIRE_MAX_STEPS) return kolo_fail(KOLO_ERR_INTERNAL, "net: no room for a step");
        state = calloc(1, sizeof *state);
        if (!state) return kolo_fail(KOLO_ERR_NO_MEMORY, "net: no memory for the connection list");
        state->ctx = ctx;
        state->ops = ops;
        state->ndevices = ops->count(&why);
        kolo_net_look_around(state);
        ctx->steps[ctx->nsteps].fn = kolo_net_step;
        ctx->steps[ctx->nsteps++].arg = state;
        *kolo_wire_state(ctx, &kolo_wire_net) = state;
        ctx->waker.arm = arm;
        ctx->waker.arm_arg = state;
    }
    *result = state;
    return KOLO_OK;
}

/* Registers a range with one device: peers may write where an offer points. */
static kolo_status_t pin(void *arg, void *memory, size_t bytes, void **handle)
{
    const kolo_net_device_state_t *d = arg;
    kolo_net_region_t *region;
    if (!d->ops->fork_safe())
        return kolo_fail(KOLO_ERR_UNSUPPORTED, "net: pages that a card knows may be a child's after fork()");
    KOLO_TRY(d->ops->enroll(d->open, memory, bytes, true, &region));
    *handle = region;
    return KOLO_OK;
}

static void unpin(void *arg, void *handle)
{
    const kolo_net_device_state_t *d = arg;
    d->ops->withdraw(handle);
}

static void close_device(kolo_net_state_t *state, int device)
{
    kolo_net_device_state_t *d = &state->devices[device];
    int fds[2], n = state->ops->wake_fds(d->open, fds);
    for (int i = 0; i < n; i++) kolo_waker_del_fd(&state->ctx->waker, fds[i]);
    kolo_mem_pinner_leave(&d->pinner);
    state->ops->close(d->open);
    d->open = NULL;
}

static void state_put(kolo_net_state_t *state)
{
    kolo_wire_ctx_t *ctx = state->ctx;
    if (state->first) return;
    for (int i = 0; i < state->ndevices; i++)
        if (state->devices[i].open) close_device(state, i);
    for (uint32_t i = 0; i < ctx->nsteps; i++) {
        if (ctx->steps[i].arg != state) continue;
        ctx->steps[i] = ctx->steps[--ctx->nsteps];
        break;
    }
    ctx->waker.arm = NULL;
    *kolo_wire_state(ctx, &kolo_wire_net) = NULL;
    free(state);
}

static kolo_status_t open_device(kolo_net_state_t *state, int device)
{
    kolo_net_device_state_t *d = &state->devices[device];
    int fds[2];
    if (d->open) return KOLO_OK;
    KOLO_TRY(state->ops->open(device, &d->open));
    d->ops = state->ops;
    d->pinner = (kolo_mem_pinner_t){.pin = pin, .unpin = unpin, .arg = d};
    int n = state->ops->wake_fds(d->open, fds);
    kolo_status_t status = KOLO_OK;
    for (int i = 0; i < n && status == KOLO_OK; i++) status = kolo_waker_add_fd(&state->ctx->waker, fds[i]);
    if (status != KOLO_OK) close_device(state, device); /* else the next connection would find it open, and sleep */
    return status;
}

/* Chooses how many rails a connection has here, and on which devices. */
static void choose_devices(const kolo_net_state_t *state, kolo_net_conn_t *conn, uint32_t lane)
{
    uint32_t cards = (uint32_t)KOLO_MIN(kolo_net_options.nics, (int64_t)state->ndevices);
    conn->nrails = 1;
    conn->rails[0].device = kolo_net_device_for(state->order, state->ndevices, state->nclose, lane, 0);
    conn->rails[0].weight = 1;
    if (!state->ops->offered) return;
    conn->nrails = KOLO_MIN(cards * (uint32_t)kolo_net_options.queue_pairs, KOLO_NET_MAX_RAILS);
    bool known = true;
    for (uint32_t i = 0; i < conn->nrails; i++) {
        conn->rails[i].device = kolo_net_device_for(state->order, state->ndevices, state->nclose, lane, i % cards);
        known = known && state->devices[conn->rails[i].device].gbps > 0;
    }
    for (uint32_t i = 0; i < conn->nrails; i++)
        conn->rails[i].weight = known ? state->devices[conn->rails[i].device].gbps : 1;
}

/* Writers first: what is posted leaves before free slots are offered, which somebody else may wait for, but
 * later. */
static void enlist(kolo_net_state_t *state, kolo_net_conn_t *conn)
{
    kolo_net_conn_t *before = NULL, *behind = state->first;
    for (; conn->rx && behind; behind = behind->next) before = behind;
    conn->prev = before;
    conn->next = behind;
    if (behind) behind->prev = conn;
    if (before)
        before->next = conn;
    else
        state->first = conn;
}

kolo_status_t kolo_net_state_join(kolo_wire_ctx_t *ctx, kolo_net_conn_t *conn)
{
    kolo_net_state_t *state = NULL;
    const kolo_conn_spec_t *spec = kolo_net_spec(conn);
    KOLO_TRY(state_get(ctx, &state));
    choose_devices(state, conn, spec->lane);
    kolo_status_t status = KOLO_OK;
    for (uint32_t i = 0; i < conn->nrails && status == KOLO_OK; i++) {
        status = open_device(state, conn->rails[i].device);
        conn->rails[i].open = state->devices[conn->rails[i].device].open;
    }
    if (status != KOLO_OK) {
        state_put(state);
        return status;
    }
    conn->state = state;
    conn->ops = state->ops;
    enlist(state, conn);
    kolo_net_mate_find(conn);
    return KOLO_OK;
}

void kolo_net_state_leave(kolo_net_conn_t *conn)
{
    kolo_net_state_t *state = conn->state;
    if (!state) return;
    kolo_net_mate_lose(conn);
    if (conn->prev) conn->prev->next = conn->next;
    if (conn->next) conn->next->prev = conn->prev;
    if (state->first == conn) state->first = conn->next;
    conn->state = NULL;
    state_put(state);
}
