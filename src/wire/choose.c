/* SPDX-License-Identifier: Apache-2.0
 *
 * Who reads a connection, and which wire carries it: the first in the order of preference that connects its writer
 * with all its readers, by what their cards say, so that both ends choose alike. And the end of an end.
 */
#include "wire/queue.h"

#include <stdio.h>
#include <string.h>

/* ---- who reads ---- */

uint32_t kolo_wire_readers(const kolo_wire_ctx_t *ctx, const kolo_conn_spec_t *spec)
{
    if (spec->kind == KOLO_CONN_PAIR) return 1;
    return (uint32_t)ctx->member->node_size[ctx->member->node_of[spec->writer]] - 1;
}

int kolo_wire_reader_at(const kolo_wire_ctx_t *ctx, const kolo_conn_spec_t *spec, uint32_t index)
{
    const kolo_member_t *m = ctx->member;
    if (spec->kind == KOLO_CONN_PAIR) return spec->reader;
    int at = (int)index + ((int)index >= m->local_of[spec->writer]);
    return m->node_ranks[m->node_first[m->node_of[spec->writer]] + at];
}

int kolo_wire_reader_index(const kolo_wire_ctx_t *ctx, const kolo_conn_spec_t *spec, int rank)
{
    const kolo_member_t *m = ctx->member;
    if (spec->kind == KOLO_CONN_PAIR) return spec->reader == rank ? 0 : -1;
    if (rank == spec->writer || m->node_of[rank] != m->node_of[spec->writer]) return -1;
    return m->local_of[rank] - (m->local_of[rank] > m->local_of[spec->writer]);
}

/* ---- choosing ---- */

static bool connects_all(const kolo_wire_ops_t *ops, const kolo_wire_ctx_t *ctx, const kolo_conn_spec_t *spec)
{
    const kolo_peer_card_t *peers = ctx->member->peers;
    uint32_t nreaders = kolo_wire_readers(ctx, spec);
    /* LL lines, like a fan-out, live in memory that both ends map. */
    bool mapped = spec->kind == KOLO_CONN_NODE || spec->proto == KOLO_PROTO_LL;
    if (mapped && !(ops->caps & KOLO_CAP_FANOUT)) return false;
    for (uint32_t i = 0; i < nreaders; i++) {
        int reader = kolo_wire_reader_at(ctx, spec, i);
        if (!ops->can_connect(ctx, &peers[spec->writer], &peers[reader])) return false;
    }
    return nreaders > 0;
}

const kolo_wire_ops_t *kolo_wire_choose(const kolo_wire_ctx_t *ctx, const kolo_conn_spec_t *spec)
{
    for (int i = 0; kolo_wires[i]; i++)
        if (connects_all(kolo_wires[i], ctx, spec)) return kolo_wires[i];
    return NULL;
}

bool kolo_wire_may_copy(const kolo_wire_ctx_t *ctx)
{
    const kolo_member_t *m = ctx->member;
    for (int i = 0; i < m->node_size[m->my_node]; i++) {
        int peer = m->node_ranks[m->node_first[m->my_node] + i];
        if (peer == m->rank) continue;
        kolo_conn_spec_t spec = {.kind = KOLO_CONN_PAIR, .writer = peer, .reader = m->rank};
        const kolo_wire_ops_t *wire = kolo_wire_choose(ctx, &spec);
        if (!wire || !wire->may_copy(ctx, &m->peers[peer])) return false;
    }
    return true;
}

/* Writes the names of the wires on a card, as in "local shm tcp". */
static void list_wires(const kolo_peer_card_t *card, char *buf, size_t bytes)
{
    size_t at = 0;
    snprintf(buf, bytes, "none");
    for (uint32_t i = 0; i < card->nwires && i < KOLO_CARD_WIRES && at < bytes; i++)
        at += (size_t)snprintf(buf + at, bytes - at, "%s%.7s", i ? " " : "", card->wires[i].name);
}

kolo_status_t kolo_wire_none(const kolo_wire_ctx_t *ctx, const kolo_conn_spec_t *spec)
{
    uint32_t nreaders = kolo_wire_readers(ctx, spec);
    int reader = nreaders ? kolo_wire_reader_at(ctx, spec, 0) : spec->writer;
    const kolo_peer_card_t *w = &ctx->member->peers[spec->writer], *r = &ctx->member->peers[reader];
    char switches[256] = "", theirs[2][80];
    for (int i = 0; kolo_wires[i]; i++) {
        size_t at = strlen(switches);
        snprintf(switches + at, sizeof switches - at, "%s%s", i ? ", " : "", kolo_wire_switch(kolo_wires[i]));
    }
    list_wires(w, theirs[0], sizeof theirs[0]);
    list_wires(r, theirs[1], sizeof theirs[1]);
    return kolo_fail(
        KOLO_ERR_UNSUPPORTED,
        "no wire connects rank %d (host %.32s, pid %d, wires %s) with %srank %d (host %.32s, pid %d, wires %s); "
        "look at %s",
        spec->writer, w->host_name, w->pid, theirs[0],
        spec->kind == KOLO_CONN_NODE ? "all ranks of its host, such as " : "", reader, r->host_name, r->pid,
        theirs[1], switches);
}

/* ---- ends ---- */

void kolo_tx_close(kolo_tx_t *tx)
{
    if (tx->ops) tx->ops->tx_close(tx);
}

void kolo_rx_close(kolo_rx_t *rx)
{
    if (rx->ops) rx->ops->rx_close(rx);
}

void kolo_tx_fini(kolo_tx_t *tx)
{
    if (tx->ops) tx->ops->tx_fini(tx);
    memset(tx, 0, sizeof *tx);
}

void kolo_rx_fini(kolo_rx_t *rx)
{
    if (rx->ops) rx->ops->rx_fini(rx);
    memset(rx, 0, sizeof *rx);
}
